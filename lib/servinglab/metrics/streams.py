"""What do a stream's chunks say of its tokens?

A server sends an answer in chunks, and a chunk may hold several tokens. When each token of a chunk was made, the client
can't see. The rule here: the tokens of a chunk share the gap before it evenly. The first chunk has no gap before it
(its wait is the TTFT), so its tokens count for TPOT but give no inter-token latency.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_array


def chunk_gaps(arrived_s: Any, tokens: Any) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The inter-token latencies of one answer: each chunk's gap, split evenly, and how many tokens share it.

    For `metrics.weighted_percentile`: pooled over answers, with the tokens as weights, every token counts once. To
    count every chunk once instead would let the long chunks, behind the long gaps, count too little.

    Parameters
    ----------
    arrived_s : sequence of floats
        When each chunk came, in seconds; never decreasing.
    tokens : sequence of int
        How many tokens each chunk held; ≥ 1. A chunk without a token (a role, a finish reason) is to be left out
        before.

    Returns
    -------
    gaps_s : float array
        One entry per chunk after the first: (gap before it) / (its tokens).
    tokens : int64 array
        Of those chunks.

    Examples
    --------
    >>> from servinglab.metrics.percentiles import weighted_percentile
    >>> gaps_s, tokens = chunk_gaps([0.50, 0.52, 0.60, 0.62, 0.70], [1, 1, 4, 1, 3])
    >>> gaps_s.round(4).tolist(), tokens.tolist()
    ([0.02, 0.02, 0.02, 0.0267], [1, 4, 1, 3])
    >>> round(1e3 * weighted_percentile(gaps_s, tokens, 0.5), 1)
    20.0
    """
    times, counts = _check_chunks(arrived_s, tokens)
    return np.diff(times) / counts[1:], counts[1:]


def chunk_tpot_s(arrived_s: Any, tokens: Any) -> float:
    """Time per output token of one answer: (last − first chunk) / (N − 1), with N tokens in all; NaN for one token.

    Parameters
    ----------
    arrived_s, tokens
        As in `chunk_gaps`.

    Examples
    --------
    >>> round(1e3 * chunk_tpot_s([0.50, 0.52, 0.60, 0.62, 0.70], [1, 1, 4, 1, 3]), 2)
    22.22
    """
    times, counts = _check_chunks(arrived_s, tokens)
    total = int(counts.sum())
    return float(times[-1] - times[0]) / (total - 1) if total > 1 else float("nan")


def _check_chunks(arrived_s: Any, tokens: Any) -> tuple[Floats, npt.NDArray[np.int64]]:
    times = check_array("arrived_s", arrived_s)
    if not times.size:
        raise ValueError("arrived_s must hold at least one chunk; got none")
    counts = check_array("tokens", tokens, length=times.size, ge=1, le=2**53, integer=True)
    if (np.diff(times) < 0).any():
        where = int(np.argmax(np.diff(times) < 0)) + 1
        raise ValueError(
            f"arrived_s must never decrease; got arrived_s[{where}]={times[where]:g} after {times[where - 1]:g}"
        )
    return times, counts
