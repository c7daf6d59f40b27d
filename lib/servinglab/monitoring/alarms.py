"""How often is an alarm wrong, and how late does it come?

The rule: P99 above a limit in N windows in a row. A window's P99, by nearest rank, is above the limit when more than
⌊(1 − q)·n⌋ of its n requests are slow. So the number of slow requests decides, and with it chance: how often a window
is bad follows from the binomial law, and how long N bad ones in a row take to come from the law of runs.

That takes the requests for independent. Those of one queue aren't: slow ones come in swarms, so real windows are bad
more often in a row than this says. `alarm_starts` finds the alarms of a simulated or recorded series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Bools, Floats, Ints
from servinglab.base.checks import check_choice, check_number

Empty = Literal["good", "bad", "skip"]
EMPTY: tuple[Empty, ...] = ("good", "bad", "skip")
_TAIL = 1e-15  # of the Poisson law that is left out


def slow_allowed(samples: npt.ArrayLike, q: float = 0.99) -> Ints:
    """How many of n requests may be slow while their percentile, by nearest rank, still keeps the limit: ⌊(1 − q)·n⌋.

    Examples
    --------
    >>> slow_allowed([50, 99, 100, 1000]).tolist()           # below 100 samples one slow request breaks it
    [0, 0, 1, 10]
    """
    n = np.asarray(samples)
    fraction = check_number("q", q, gt=0, lt=1)
    return np.floor((1 - fraction) * n + 1e-9).astype(np.int64)


def bad_window(
    samples: float, slow_share: float, q: float = 0.99, counts: str = "exact", empty: Empty = "skip"
) -> float:
    """How likely the P99 of a window is above the limit, if a share of all requests is slow.

    Parameters
    ----------
    samples : float
        Requests in a window: a whole number, or with ``counts="poisson"`` their mean; > 0.
    slow_share : float
        The true share of slow requests, 0 to 1, each independent of the others.
    q : float
        Which percentile, 0 < q < 1.
    counts : {"exact", "poisson"}
        Whether each window holds the same number, or as many as come by chance.
    empty : {"good", "bad", "skip"}
        What a window without requests counts as. "skip": it is left out, so the answer is that of the other windows.

    Examples
    --------
    Half a percent is slow, half of what a P99 allows:

    >>> round(bad_window(50, 0.005), 3), round(bad_window(1000, 0.005), 4)
    (0.222, 0.0135)
    >>> round(bad_window(300, 0.005), 3), round(bad_window(300, 0.005, counts="poisson"), 3)
    (0.065, 0.123)
    """
    mean = check_number("samples", samples, gt=0)
    share = check_number("slow_share", slow_share, ge=0, le=1)
    check_choice("counts", counts, ("exact", "poisson"))
    check_choice("empty", empty, EMPTY)
    from scipy.stats import binom, poisson

    if counts == "exact":
        n = check_number("samples", samples, ge=1, integer=True)
        return float(binom.sf(slow_allowed(n, q), n, share))
    many = np.arange(1, int(poisson.isf(_TAIL, mean)) + 2)
    bad = float(np.sum(poisson.pmf(many, mean) * binom.sf(slow_allowed(many, q), many, share)))
    none = math.exp(-mean)
    return {"good": bad, "bad": bad + none, "skip": bad / -math.expm1(-mean)}[empty]


def windows_to_alarm(bad: float, in_a_row: int) -> float:
    """The mean number of windows until `in_a_row` bad ones in a row have been seen, the last of them included.

    (1 − b^N)/((1 − b)·b^N) for independent windows, each bad with probability b. Source: W. Feller, *An Introduction to
    Probability Theory and Its Applications*, vol. 1, chapter XIII.7.

    Examples
    --------
    >>> windows_to_alarm(0.5, 1), windows_to_alarm(0.5, 3), windows_to_alarm(1.0, 3)
    (2.0, 14.0, 3.0)
    """
    chance = check_number("bad", bad, ge=0, le=1)
    runs = check_number("in_a_row", in_a_row, ge=1, integer=True)
    return math.inf if not chance else math.fsum(chance**-k for k in range(1, runs + 1))


@dataclass(frozen=True)
class AlarmRule:
    """An alarm on a percentile: above its limit in so many windows in a row.

    Attributes
    ----------
    window_s : float
        Length of a window in seconds, > 0; windows don't overlap.
    in_a_row : int
        At least 1.
    q : float
        Which percentile, 0 < q < 1.
    empty : {"good", "bad", "skip"}
        What a window without requests is. "skip": neither; the count of bad ones stays as it is.

    Examples
    --------
    Five requests a second, one-minute windows, three in a row. Half of what is allowed is slow, then twice as much:

    >>> rule = AlarmRule(window_s=60, in_a_row=3)
    >>> round(rule.windows_between(5, 0.005, counts="exact")), round(rule.windows_between(5, 0.005))
    (3864, 610)
    >>> round(rule.delay_s(5, 0.02, counts="exact") / 60, 1), round(rule.delay_s(5, 0.02) / 60, 1)
    (4.2, 3.7)
    """

    window_s: float
    in_a_row: int = 1
    q: float = 0.99
    empty: Empty = "skip"

    def __post_init__(self) -> None:
        check_number("window_s", self.window_s, gt=0)
        check_number("in_a_row", self.in_a_row, ge=1, integer=True)
        check_number("q", self.q, gt=0, lt=1)
        check_choice("empty", self.empty, EMPTY)

    def windows_between(self, rate_rps: float, slow_share: float, counts: str = "poisson") -> float:
        """The mean number of windows until it fires, counted from a quiet start, empty ones included.

        Parameters
        ----------
        rate_rps : float
            Requests a second, > 0.
        slow_share : float
            The share of slow ones, 0 to 1.
        counts : {"poisson", "exact"}
            Whether they come by chance, or as many in each window.
        """
        samples = check_number("rate_rps", rate_rps, gt=0) * self.window_s
        windows = windows_to_alarm(bad_window(samples, slow_share, self.q, counts, self.empty), self.in_a_row)
        seen = -math.expm1(-samples) if counts == "poisson" and self.empty == "skip" else 1.0
        return windows / seen

    def alarms_per_day(self, rate_rps: float, slow_share: float, counts: str = "poisson") -> float:
        """How often it fires in a day; false alarms, if that share of slow requests keeps the promise."""
        return 86400 / self.window_s / self.windows_between(rate_rps, slow_share, counts)

    def delay_s(self, rate_rps: float, slow_share: float, counts: str = "poisson") -> float:
        """How long it takes on average to fire once that share of requests is slow, in seconds.

        Counted from the beginning of a window. A fault begins within one, half a window earlier on average.
        """
        return self.window_s * self.windows_between(rate_rps, slow_share, counts)

    def fires(self, samples: npt.ArrayLike, slow: npt.ArrayLike) -> Bools:
        """At the end of which windows it is red.

        Parameters
        ----------
        samples, slow : arrays of whole numbers
            Requests of each window, and how many of them were slow; 0 ≤ slow ≤ samples.

        Examples
        --------
        >>> AlarmRule(60, in_a_row=2).fires([100, 100, 0, 100, 100], [2, 0, 0, 2, 2]).tolist()
        [False, False, False, False, True]
        >>> AlarmRule(60, in_a_row=2, empty="bad").fires([100, 0], [2, 0]).tolist()
        [False, True]
        """
        n, late = np.asarray(samples), np.asarray(slow)
        if n.ndim != 1 or n.shape != late.shape:
            raise ValueError(f"samples and slow must be two lists of one length; got shapes {n.shape} and {late.shape}")
        if (late < 0).any() or (late > n).any():
            raise ValueError("slow must be at least 0 and at most samples, in each window")
        bad = late > slow_allowed(n, self.q)
        bad[n == 0] = self.empty == "bad"
        row, red = 0, []
        for is_bad, is_empty in zip(bad, n == 0, strict=True):
            if not (is_empty and self.empty == "skip"):
                row = row + 1 if is_bad else 0
            red.append(row >= self.in_a_row)
        return np.array(red, dtype=bool)


def alarm_starts(red: npt.ArrayLike) -> Ints:
    """The windows in which an alarm begins: red after one that isn't.

    Examples
    --------
    >>> alarm_starts([True, True, False, True]).tolist()
    [0, 3]
    """
    now = np.asarray(red, dtype=bool)
    return np.flatnonzero(now & ~np.concatenate([[False], now[:-1]]))


def windowed_counts(
    time_s: npt.ArrayLike, value: npt.ArrayLike, limit: float, window_s: float
) -> tuple[Ints, Ints, Floats]:
    """Requests of each window, and how many were above a limit.

    Parameters
    ----------
    time_s, value : arrays of n numbers
        When each was known, at least 0, and what it was; infinite is above any limit.
    limit, window_s : float
        The windows begin at 0.

    Returns
    -------
    samples, slow : int arrays
    end_s : float array
        When each window ends; the last holds the latest instant.

    Examples
    --------
    >>> samples, slow, end_s = windowed_counts([1, 2, 11], [0.5, 3.0, 0.1], limit=1.0, window_s=5)
    >>> samples.tolist(), slow.tolist(), end_s.tolist()
    ([2, 0, 1], [1, 0, 0], [5.0, 10.0, 15.0])
    """
    when, what = np.asarray(time_s, dtype=float), np.asarray(value, dtype=float)
    length = check_number("window_s", window_s, gt=0)
    if when.ndim != 1 or when.shape != what.shape:
        raise ValueError(f"time_s and value must be two lists of one length; got shapes {when.shape} and {what.shape}")
    if (when < 0).any() or np.isnan(when).any() or np.isnan(what).any():
        raise ValueError("time_s must be at least 0, and neither it nor value NaN")
    window = (when // length).astype(np.int64)
    many = int(window.max(initial=-1)) + 1
    samples = np.bincount(window, minlength=many)
    slow = np.bincount(window[what > limit], minlength=many)
    return samples, slow, length * np.arange(1, many + 1)
