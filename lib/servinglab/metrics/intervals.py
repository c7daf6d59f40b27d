"""How sure are we of a number, and how many samples does a P99 need?

Two kinds of samples. *Independent* ones, such as requests sent hours apart, obey the binomial law exactly:
`promise_confidence`, `samples_needed` and `independent_percentile_interval`. The latencies of *one queue*, in the order
they came, are alike where they are neighbours, and are worth far fewer independent ones: `batch_means` for a mean and
`percentile_interval` for a percentile. All assume that the law doesn't change within the sample: cut the warm-up off
before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_number
from servinglab.metrics.percentiles import check_numbers, percentile

_MOST_BATCHES, _FEWEST_BATCHES = 64, 10
_LATE_ENOUGH = 10  # independent late values that an upper end needs; with fewer it covered far too seldom
_LAG1_CAP = 0.9


# Independent samples


def promise_confidence(samples: int, late: int = 0, q: float = 0.99) -> float:
    """How sure we are of "P99 ≤ limit" after `samples` independent latencies of which `late` exceeded the limit.

    1 − P(Binomial(n, 1 − q) ≤ late): were a fraction 1 − q of all requests late or more, so few late ones would be seen
    that seldom. It assumes independent samples of one law, and a number of samples that was fixed before looking.

    Parameters
    ----------
    samples : int
        n ≥ 1.
    late : int
        0 ≤ late ≤ n.
    q : float
        0 < q < 1.

    Examples
    --------
    >>> round(promise_confidence(100), 3)      # none of 100 was late
    0.634
    >>> round(promise_confidence(459), 4)
    0.9901
    """
    n = check_number("samples", samples, ge=1, integer=True)
    seen = check_number("late", late, ge=0, le=n, integer=True)
    fraction = check_number("q", q, gt=0, lt=1)
    from scipy.stats import binom

    return float(binom.sf(seen, n, 1 - fraction))


def samples_needed(late: int = 0, q: float = 0.99, confidence: float = 0.99) -> int:
    """The fewest independent samples after which at most `late` late ones show that a fraction q keeps the limit.

    The smallest n with P(Binomial(n, 1 − q) ≤ late) ≤ 1 − confidence; for no late one, ⌈ln(1 − confidence) / ln q⌉. The
    bound is one-sided and holds for any law of latency. It assumes what `promise_confidence` does. The latencies of one
    queue aren't independent: of those it takes more, by `PercentileInterval.samples` over
    `PercentileInterval.independent_samples`. Source: S. S. Wilks, "Determination of sample sizes for setting tolerance
    limits", *Annals of Mathematical Statistics* 12 (1941) 91–96.

    Parameters
    ----------
    late : int
        ≥ 0.
    q, confidence : float
        Each between 0 and 1.

    Examples
    --------
    >>> [samples_needed(late) for late in (0, 1, 2)]
    [459, 662, 838]
    >>> samples_needed(confidence=0.95)
    299
    """
    allowed = check_number("late", late, ge=0, integer=True)
    fraction = check_number("q", q, gt=0, lt=1)
    level = check_number("confidence", confidence, gt=0, lt=1)
    from scipy.stats import binom

    def enough(n: int) -> bool:
        return bool(binom.cdf(allowed, n, 1 - fraction) <= (1 - level) * (1 + 1e-9))  # equal but for rounding will do

    low, high = allowed, allowed + 1  # at `low` samples all may be late
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class PercentileInterval:
    """A percentile and its confidence interval; ``x in interval`` asks whether x lies inside.

    Attributes
    ----------
    estimate : float
        The percentile of the samples, nearest rank.
    low, high : float
        The ends, each a value that occurred; infinite where the samples can't bound the percentile on that side.
    q, confidence : float
        Which percentile, and how often such an interval holds the true one if the assumptions do.
    samples : int
        How many values there were.
    independent_samples : float
        How many independent ones they are worth.
    batches : int
        How the run was cut to find that out; 0 if the samples were taken to be independent.
    """

    estimate: float
    low: float
    high: float
    q: float
    confidence: float
    samples: int
    independent_samples: float
    batches: int

    def __contains__(self, x: float) -> bool:
        return self.low <= x <= self.high

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.high - self.low) / 2


def independent_percentile_interval(values: npt.ArrayLike, q: float, confidence: float = 0.95) -> PercentileInterval:
    """A percentile of independent values, with a confidence interval between two of them; exact for any law.

    The number of values at or below the true percentile is Binomial(n, q). So the i-th smallest value lies above it
    with probability P(Binomial(n, q) < i), and below it with P(Binomial(n, q) ≥ i) at most: each end is the nearest
    value for which that is ≤ (1 − confidence)/2. Source: David and Nagaraja, *Order Statistics* (2003), section 7.1.

    Parameters
    ----------
    values : array of n ≥ 1 numbers
        Independent; in any order.
    q, confidence : float
        Each between 0 and 1.

    Examples
    --------
    >>> interval = independent_percentile_interval(range(1, 1001), 0.99)
    >>> interval.estimate, interval.low, interval.high
    (990.0, 983.0, 997.0)
    >>> independent_percentile_interval(range(1, 101), 0.99).high      # 100 values don't bound a P99 from above
    inf
    """
    ordered = np.sort(check_numbers("values", values))
    fraction = check_number("q", q, gt=0, lt=1)
    level = check_number("confidence", confidence, gt=0, lt=1)
    from scipy.stats import binom

    n, tail = len(ordered), (1 - level) / 2
    below = binom.cdf(np.arange(n), n, fraction)  # P(fewer than i), i = 1 … n
    first = int(np.searchsorted(below, tail, "right"))
    last = int(np.searchsorted(below, 1 - tail, "left")) + 1
    return PercentileInterval(
        estimate=percentile(ordered, fraction),
        low=float(ordered[first - 1]) if first else -math.inf,
        high=float(ordered[last - 1]) if last <= n else math.inf,
        q=fraction,
        confidence=level,
        samples=n,
        independent_samples=float(n),
        batches=0,
    )


# One queue's latencies


@dataclass(frozen=True)
class Interval:
    """A mean from one run and its confidence interval; ``x in interval`` asks whether x lies inside.

    Attributes
    ----------
    estimate, low, high : float
    confidence : float
        How often such an interval holds the true value, if the assumptions do.
    batches, batch_size : int
        How the run was cut.
    lag1 : float
        Correlation of neighbouring batches. Well above 0 (2/√batches is noise): the batches are too short and
        the interval too narrow.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    batches: int
    batch_size: int
    lag1: float

    def __contains__(self, x: float) -> bool:
        return self.low <= x <= self.high

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.high - self.low) / 2


def batch_means(values: npt.ArrayLike, batches: int = 30, confidence: float = 0.95) -> Interval:
    """The mean of a correlated series, with a confidence interval from the means of long batches.

    Latencies of neighbours in one queue are alike, so s/√n is far too small. Cut the series, in the order the
    requests came, into `batches` equal runs: their means are nearly independent and normal if the runs are
    long against the queue's memory. The interval is mean ± t·s/√batches with Student's t for batches − 1
    degrees of freedom. The first n mod `batches` values are left out.

    Source: Law, *Simulation Modeling and Analysis*, the chapter on output analysis (batch means); 10 to 30
    batches: B. Schmeiser, "Batch size effects in the analysis of simulation output", *Operations Research* 30
    (1982) 556–568.

    Parameters
    ----------
    values : array of n numbers
        In the order they came; n ≥ batches.
    batches : int
        At least 2.
    confidence : float
        Between 0 and 1.

    Raises
    ------
    ValueError
        If there are fewer values than batches, or one is NaN or infinite: such a mean has no interval.

    Examples
    --------
    >>> interval = batch_means([1, 3, 2, 4, 3, 5], batches=3)
    >>> interval.estimate, round(interval.half_width, 3), 2.5 in interval
    (3.0, 2.484, True)
    """
    numbers = check_numbers("values", values)
    many = check_number("batches", batches, ge=2, integer=True)
    level = check_number("confidence", confidence, gt=0, lt=1)
    if np.isinf(numbers).any():
        raise ValueError(f"values must be finite; got {np.isinf(numbers).sum()} infinite ones")
    if len(numbers) < many:
        raise ValueError(f"values must be at least as many as batches, {many}; got {len(numbers)}")
    runs = _cut(numbers, many)
    center, means = float(runs.mean()), runs.mean(axis=1)
    half = _student(level, many - 1) * float(means.std(ddof=1)) / math.sqrt(many)
    return Interval(center, center - half, center + half, level, many, runs.shape[1], _lag1(means))


def percentile_interval(values: npt.ArrayLike, q: float, confidence: float = 0.95) -> PercentileInterval:
    """A percentile of a correlated series, with a confidence interval.

    The share of values above the estimate is a mean, so batch means tell how far it may be off: the variance v of the
    share says that the series is worth q(1 − q)/v independent values, less a correction for estimating v (Student's t).
    The interval is the binomial one for so many (Clopper and Pearson), read off the sorted values. Its upper end is
    infinite where that leaves fewer than 10 independent values above the estimate: the run is too short to bound the
    percentile from above.

    The batches are as many, from 64 down to 10, as leave neighbouring batches nearly uncorrelated (lag-1 correlation
    below 1/√batches); what is left at 10 batches widens the interval as if the batches were an AR(1) series.

    How often 95 % intervals held the true P99, and how often they had an upper end, in 500 runs each
    (`benchmarks/p99_intervals.py`):

    | queue | n | held | had an upper end | spread of the batches' P99s instead |
    |---|---|---|---|---|
    | M/M/1, ρ = 0.7 | 10,000 | 96 % | 5 % | 72 % |
    | M/M/1, ρ = 0.7 | 30,000 | 95 % | 61 % | 85 % |
    | M/M/1, ρ = 0.9 | 30,000 | 99 % | 0 % | 52 % |
    | M/M/1, ρ = 0.9 | 100,000 | 96 % | 4 % | 63 % |
    | static batches of 15, ρ = 0.93 | 20,000 | 98 % | 0 % | 46 % |
    | static batches of 15, ρ = 0.93 | 100,000 | 93 % | 9 % | 59 % |

    The last column is why this function doesn't take the spread of batches' own percentiles (sectioning): a batch
    that saw no slow hour has no slow P99, and the longest memory is in the tail.

    Source: R. S. Woodruff, "Confidence intervals for medians and other position measures", *J. American Statistical
    Association* 47 (1952) 635–646, for inverting the share's interval; E. L. Korn and B. I. Graubard, "Confidence
    intervals for proportions with small expected number of positive counts", *Survey Methodology* 24 (1998) 193–201,
    for the effective number; growing batches: Law, as in `batch_means`.

    Parameters
    ----------
    values : array of n numbers
        In the order they came, at least 10/(1 − q) of them; infinite ones are allowed.
    q, confidence : float
        Each between 0 and 1.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.poisson(20, 400_000, seed=1)
    >>> latency = sl.simulate(orders, sl.ContinuousBatching(32), sl.AffineStep(0.4, 0.02)).e2e_s
    >>> interval = percentile_interval(latency, 0.99)
    >>> [round(x, 3) for x in (interval.low, interval.estimate, interval.high)], round(interval.independent_samples, -2)
    ([1.535, 1.54, 1.546], 60700.0)
    """
    numbers = check_numbers("values", values)
    fraction = check_number("q", q, gt=0, lt=1)
    level = check_number("confidence", confidence, gt=0, lt=1)
    n = len(numbers)
    batches = min(_MOST_BATCHES, math.floor(n * (1 - fraction) + 1e-9))
    if batches < _FEWEST_BATCHES:
        raise ValueError(
            f"values must be at least {_FEWEST_BATCHES}/(1 - q) = {_FEWEST_BATCHES / (1 - fraction):.6g} "
            f"for q={q!r}; got {n}"
        )
    estimate = percentile(numbers, fraction)
    above = (numbers > estimate).astype(np.float64)
    while True:
        shares = _cut(above, batches).mean(axis=1)
        lag1 = _lag1(shares)
        if batches == _FEWEST_BATCHES or lag1 < 1 / math.sqrt(batches):
            break
        batches = max(_FEWEST_BATCHES, int(batches / math.sqrt(2)))
    left = min(max(lag1, 0.0), _LAG1_CAP)
    variance = float(shares.var(ddof=1)) / batches * (1 + left) / (1 - left)
    from scipy.stats import beta, norm

    tail = (1 - level) / 2
    unsure = float(norm.ppf(1 - tail)) / _student(level, batches - 1)
    worth = min(float(n), fraction * (1 - fraction) / variance * unsure**2) if variance else float(n)
    ordered = np.sort(numbers)
    low = float(beta.ppf(tail, worth * fraction, worth * (1 - fraction) + 1))
    high = float(beta.ppf(1 - tail, worth * fraction + 1, worth * (1 - fraction)))
    bounded = worth * (1 - fraction) >= _LATE_ENOUGH
    return PercentileInterval(
        estimate=estimate,
        low=float(ordered[max(math.ceil(low * n), 1) - 1]),
        high=float(ordered[min(math.ceil(high * n), n) - 1]) if bounded else math.inf,
        q=fraction,
        confidence=level,
        samples=n,
        independent_samples=worth,
        batches=batches,
    )


def _cut(numbers: Floats, batches: int) -> Floats:
    """One row per batch, the remainder cut off at the front."""
    return numbers[len(numbers) % batches :].reshape(batches, -1)


def _lag1(means: Floats) -> float:
    around = means - means.mean()
    power = float(around @ around)
    return float(around[1:] @ around[:-1]) / power if power > 0 else 0.0


def _student(level: float, freedom: int) -> float:
    from scipy.stats import t as student

    return float(student.ppf((1 + level) / 2, freedom))
