"""What Prometheus makes of a server's samples: quantiles of histograms, increases and rates of counters.

The rules are those of Prometheus 2.42; where 3.x differs, `version=3` follows that. Sources: Prometheus 2.42.0,
``promql/quantile.go`` and ``promql/functions.go`` (`bucketQuantile`, `extrapolatedRate`), and the same files of 3.0.

What a panel shows is these numbers, so their errors are a panel's errors: a quantile is a straight line through one
bucket, and an increase is stretched to the whole range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_number

VERSIONS = (2, 3)
_SMALL_DELTA = 1e-12  # what 3.x takes for rounding, as a share of two neighbouring counts' sum
_AT_AN_END = 1.1  # a series reaches the range's end if the gap there is at most so many mean intervals


def histogram_quantile(q: float, buckets: Mapping[float, float], version: int = 2) -> float:
    """A quantile from the counts of a histogram's buckets, as PromQL's `histogram_quantile`.

    The observation of rank q·n is taken to lie in its bucket as if the bucket's observations were spread evenly over
    it; the first bucket begins at 0. A rank in the last bucket, which has no upper end, gives the highest finite bound.

    Parameters
    ----------
    q : float
        Below 0 gives −∞, above 1 +∞, NaN NaN.
    buckets : mapping of float to float
        Upper bound (`le`) to the number of observations at most as large, in any order. Counts that fall from one bound
        to the next are raised to the one before.
    version : {2, 3}
        3.x takes a difference of less than 1e-12 of two neighbours' counts for rounding, and drops it: the sum of two
        replicas' counts, each a float, may differ by so little where no observation lies.

    Returns
    -------
    float
        NaN without a bucket for +∞, with no finite one, or with no observations.

    Examples
    --------
    >>> counts = {2: 1, 4: 2, 6: 3, math.inf: 3}
    >>> [round(histogram_quantile(q, counts), 12) for q in (1 / 6, 1 / 2, 5 / 6)]
    [1.0, 3.0, 5.0]
    >>> histogram_quantile(0.5, {2: 1, 4: 2, 6: 3})                    # nobody knows how many are above 6
    nan
    >>> round(histogram_quantile(0.5, {0: 6, 0.5: 11, 1: 14, math.inf: 19}), 12)
    0.35
    >>> histogram_quantile(0.5, {1: 0, 2: 0, math.inf: 7})             # all beyond the bounds
    2.0
    """
    _check_version(version)
    if math.isnan(q):
        return math.nan
    if q < 0 or q > 1:
        return math.copysign(math.inf, q)
    bounds = np.array(sorted(buckets), dtype=float)
    if np.isnan(bounds).any():
        raise ValueError("buckets must have bounds that are numbers; got NaN")
    counts = _never_falling([float(buckets[bound]) for bound in sorted(buckets)], version)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return math.nan
    if not counts[-1]:
        return math.nan
    rank = q * float(counts[-1])
    at = int(np.argmax(counts[:-1] >= rank)) if (counts[:-1] >= rank).any() else len(counts) - 1
    if at == len(counts) - 1:
        return float(bounds[-2])
    if at == 0 and bounds[0] <= 0:
        return float(bounds[0])
    start, before = (float(bounds[at - 1]), float(counts[at - 1])) if at else (0.0, 0.0)
    inside = float(counts[at]) - before
    share = (rank - before) / inside if inside else math.nan  # an empty first bucket and rank 0: 0/0, as there
    return start + (float(bounds[at]) - start) * share


def _never_falling(counts: Sequence[float], version: int) -> Floats:
    """Counts that fall from bucket to bucket, raised to the one before; 3.x takes tiny rises for rounding, too."""
    risen = list(counts)
    for k in range(1, len(risen)):
        before, now = risen[k - 1 : k + 1]
        rounding = version == 3 and abs(now - before) < _SMALL_DELTA * (abs(now) + abs(before))
        if now < before or rounding:
            risen[k] = before
    return np.array(risen)


def sum_buckets(histograms: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """The histogram of a fleet: the counts of each bound, summed over the replicas.

    A fleet's P99 is a quantile of this sum. The mean of the replicas' P99s is no percentile of anything.

    Raises
    ------
    ValueError
        If two replicas have different bounds: their sum would fall where one lacks a bucket.

    Examples
    --------
    >>> quick, slow = {1: 98, 10: 100, math.inf: 100}, {1: 0, 10: 1, math.inf: 1}
    >>> histogram_quantile(0.99, sum_buckets([quick, slow])) < 10
    True
    """
    if not histograms:
        raise ValueError("histograms must be at least one; got none")
    first = sorted(histograms[0])
    for number, each in enumerate(histograms):
        if sorted(each) != first:
            raise ValueError(f"histograms must have the same bounds; got {first} and, at {number}, {sorted(each)}")
    return {bound: math.fsum(each[bound] for each in histograms) for bound in first}


def increase(
    time_s: npt.ArrayLike, value: npt.ArrayLike, now_s: float, range_s: float, version: int = 2
) -> float | None:
    """By how much a counter rose within a range, as PromQL's `increase`.

    A fall is a restart: the counter is taken to have begun again at 0. What the samples show is stretched to the whole
    range where they nearly reach its ends, else by half a mean interval; never to before the counter would have been 0.

    Parameters
    ----------
    time_s, value : arrays of n numbers
        When the counter was scraped, rising, in seconds (kept in whole milliseconds, as there), and what it said.
    now_s : float
        The range's end.
    range_s : float
        Its length, > 0. With `version=2` a sample at its very beginning belongs to it, with 3 it doesn't.

    Returns
    -------
    float or None
        None with fewer than two samples in the range: there is no point then, not a 0.

    Examples
    --------
    Ten a second, scraped every 15 s from 5 s on; a minute has four samples, 45 s apart, and is stretched to 60 s.

    >>> scraped = [5, 20, 35, 50, 65]
    >>> increase(scraped, [50, 200, 350, 500, 650], now_s=65, range_s=60)
    600.0
    >>> increase(scraped, [50, 200, 350, 20, 170], now_s=65, range_s=60)        # restarted after 35 s
    470.0
    >>> increase(scraped, [50, 200, 350, 500, 650], now_s=65, range_s=10) is None
    True
    """
    return _extrapolated(time_s, value, now_s, range_s, version)


def rate(time_s: npt.ArrayLike, value: npt.ArrayLike, now_s: float, range_s: float, version: int = 2) -> float | None:
    """How much a counter rose a second within a range, as PromQL's `rate`: `increase` over the range's length.

    Parameters and what it returns are those of `increase`.

    Examples
    --------
    >>> rate([5, 20, 35, 50, 65], [50, 200, 350, 500, 650], now_s=65, range_s=60)
    10.0
    """
    risen = _extrapolated(time_s, value, now_s, range_s, version)
    return None if risen is None else risen / range_s


def _extrapolated(
    time_s: npt.ArrayLike, value: npt.ArrayLike, now_s: float, range_s: float, version: int
) -> float | None:
    _check_version(version)
    length = check_number("range_s", range_s, gt=0)
    when, what = np.asarray(time_s, dtype=float), np.asarray(value, dtype=float)
    if when.ndim != 1 or when.shape != what.shape:
        raise ValueError(f"time_s and value must be two lists of one length; got shapes {when.shape} and {what.shape}")
    ms = np.rint(when * 1000)
    if (np.diff(ms) <= 0).any():
        raise ValueError("time_s must rise, by at least a millisecond from sample to sample")
    end = round(now_s * 1000)
    start = end - round(length * 1000)
    inside = (ms <= end) & ((ms >= start) if version == 2 else (ms > start))
    ms, what = ms[inside], what[inside]
    if len(ms) < 2:
        return None
    risen = float(what[-1] - what[0]) + math.fsum(what[:-1][np.diff(what) < 0])
    sampled = (ms[-1] - ms[0]) / 1000
    mean = sampled / (len(ms) - 1)
    before, after = (ms[0] - start) / 1000, (end - ms[-1]) / 1000
    if version == 3 and before >= _AT_AN_END * mean:
        before = mean / 2
    if risen > 0 and what[0] >= 0:
        before = min(before, sampled * float(what[0]) / risen)  # when it would have been 0
    reached = sampled
    reached += before if before < _AT_AN_END * mean else mean / 2
    reached += after if after < _AT_AN_END * mean else mean / 2
    return float(risen * (reached / sampled))


def _check_version(version: int) -> None:
    if version not in VERSIONS:
        raise ValueError(f"version must be 2 or 3, of Prometheus; got {version!r}")
