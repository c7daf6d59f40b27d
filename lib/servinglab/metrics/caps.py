"""Which cap binds? What seats, tokens a step and blocks each let run at once, and which of them held back the line.

Three caps bound the requests that run. Each of them alone allows so many, on average and while others wait:

    max_num_seqs              N
    max_num_batched_tokens    M · E[T] / (E[P] + E[T])
    KV blocks                 K · E[T] / E[P·T + T²/2]

with P prompt and T output tokens of a request, M tokens a step and K tokens of cache. A request computes P + T tokens
over its T steps, so a step of n requests computes n·(P + T)/T. It holds P tokens at first and P + T at its end, and the
long ones stay longest: of a running request one sees E[P·T + T²/2]/E[T] tokens, not E[P] + E[T]/2.

What this leaves out: the part of a block that isn't filled (half a block a request), tokens computed again after a
preemption, steps of a prompt's chunks that give no token, and prefixes that are shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_array, check_number
from servinglab.scheduling.schedulers import ContinuousBatching

if TYPE_CHECKING:
    from servinglab.result.result import Result

CAPS = ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")


def tokens_held(prompt_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike) -> float:
    """Tokens in the cache of one running request, averaged over running requests at a random moment.

    ``E[P·T + T²/2] / E[T]``; with one prompt length for all, ``P + E[T²]/(2·E[T])``. A request is seen in proportion
    to its T steps (the inspection paradox), and half-way through them on average. Holds where steps take equally long.

    Parameters
    ----------
    prompt_tokens : int or array of n
        P of each request, at least 0; one number for all alike.
    output_tokens : array of n
        T of each request, at least 1.

    Examples
    --------
    >>> tokens_held(100, [100, 100]), tokens_held(100, [10, 190])
    (150.0, 190.5)
    """
    outputs = check_array("output_tokens", output_tokens, ge=1)
    prompts = _prompts(prompt_tokens, outputs)
    return float((prompts * outputs + outputs**2 / 2).sum() / outputs.sum())


def running_caps(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    kv_tokens: int,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
) -> dict[str, float]:
    """How many requests each cap lets run at once while others wait; the smallest binds.

    Parameters
    ----------
    max_num_seqs, max_num_batched_tokens, kv_tokens : int
        N, M and K, each at least 1.
    prompt_tokens, output_tokens
        As in `tokens_held`.

    Returns
    -------
    dict
        A mean number of requests for each of `CAPS`.

    Examples
    --------
    >>> caps = running_caps(256, 512, 400_000, 2000, [500])
    >>> {name: round(n, 1) for name, n in caps.items()}
    {'max_num_seqs': 256.0, 'max_num_batched_tokens': 102.4, 'kv_blocks': 177.8}
    """
    seats = check_number("max_num_seqs", max_num_seqs, ge=1, integer=True)
    budget = check_number("max_num_batched_tokens", max_num_batched_tokens, ge=1, integer=True)
    tokens = check_number("kv_tokens", kv_tokens, ge=1, integer=True)
    outputs = check_array("output_tokens", output_tokens, ge=1)
    prompts = _prompts(prompt_tokens, outputs)
    mean_prompt, mean_output = float(prompts.mean()), float(outputs.mean())
    allowed = (
        float(seats),
        budget * mean_output / (mean_prompt + mean_output),
        tokens / tokens_held(prompts, outputs),
    )
    return dict(zip(CAPS, allowed, strict=True))


def binding_caps(result: Result, from_s: float = 0.0) -> dict[str, float]:
    """Which cap held back the head of the line, as shares of the time in which somebody waited.

    Seats, if all were taken; else tokens, if the step computed all it may; else blocks. The shares sum to 1, or are
    all 0 where nobody waited.

    Parameters
    ----------
    result : Result
        A run of `ContinuousBatching` with a log and with chunked prefill. (Without chunks a prompt may be too long for
        what is left of a step's budget, and the log doesn't say so.)
    from_s : float
        Leave out what began earlier, at least 0: a run that begins empty first fills up.

    Raises
    ------
    ValueError
        If the run has no log, another scheduler or no chunked prefill.

    Examples
    --------
    Two seats, and blocks for many:

    >>> import servinglab as sl
    >>> chat = sl.Workload.from_arrivals([0.0] * 5, prompt_tokens=8, output_tokens=4)
    >>> run = sl.simulate(chat, sl.ContinuousBatching(2, 64), sl.AffineStep(0.1, 0.0), kv=sl.Blocks(100, 4))
    >>> binding_caps(run)
    {'max_num_seqs': 1.0, 'max_num_batched_tokens': 0.0, 'kv_blocks': 0.0}
    """
    log, rules = result.segments, result.setup.scheduler
    if log is None:
        raise ValueError("result must have a log of steps: segments is None")
    if not isinstance(rules, ContinuousBatching):
        raise ValueError(f"result must be a run of ContinuousBatching; got {rules!r}")
    if not rules.chunked_prefill:
        raise ValueError(f"result must be a run with chunked_prefill; got {rules!r}")
    begins = check_number("from_s", from_s, ge=0) * 1e9
    lasts = np.where((log.waiting > 0) & (log.start_ns >= begins), log.end_ns - log.start_ns, 0)
    seats = log.running >= rules.seats
    budget = rules.max_num_batched_tokens
    tokens = ~seats & (log.prefill_tokens + log.decode_tokens >= (np.inf if budget is None else budget))
    in_all = float(lasts.sum())
    held_s = [float(lasts[which].sum()) for which in (seats, tokens, ~seats & ~tokens)]
    return dict(zip(CAPS, [part / in_all if in_all else 0.0 for part in held_s], strict=True))


def _prompts(prompt_tokens: npt.ArrayLike, outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if not outputs.size:
        raise ValueError("output_tokens must hold at least one request; got none")
    if np.ndim(prompt_tokens) == 0:
        return np.full(outputs.shape, check_number("prompt_tokens", prompt_tokens, ge=0))
    return check_array("prompt_tokens", prompt_tokens, length=outputs.size, ge=0)
