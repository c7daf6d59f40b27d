"""How fast does a service spend its error budget, and when should somebody wake up?

An objective of 99.9 % over 30 days leaves 0.1 % of the requests to fail: the error budget. A burn rate is the share of
bad requests over the share that may be bad. At 1 the budget lasts the whole period, at 14.4 for 50 hours.

A rule looks at two windows: the long one says that the spending matters, the short one that it still goes on. Source:
Beyer, Murphy, Rensin, Kawahara and Thorne (eds.), *The Site Reliability Workbook* (O'Reilly 2018), chapter 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Bools, Floats
from servinglab.base.checks import check_number

PERIOD_S = 30 * 86400.0


@dataclass(frozen=True)
class BurnRule:
    """Alarm when the budget burns at `burn` times its even pace, over a long and a short window.

    Attributes
    ----------
    burn : float
        > 0.
    long_s, short_s : float
        Lengths of the windows in seconds; the short one at most as long.

    Examples
    --------
    >>> [f"{rule.burn:g}x over {rule.long_s / 3600:g} h: {rule.spent():.0%}" for rule in STANDARD_RULES]
    ['14.4x over 1 h: 2%', '6x over 6 h: 5%', '3x over 24 h: 10%', '1x over 72 h: 10%']
    """

    burn: float
    long_s: float
    short_s: float

    def __post_init__(self) -> None:
        check_number("burn", self.burn, gt=0)
        check_number("long_s", self.long_s, gt=0)
        check_number("short_s", self.short_s, gt=0, le=self.long_s)

    def spent(self, period_s: float = PERIOD_S) -> float:
        """The share of the period's budget that is gone when the long window has burnt at this rate."""
        return self.burn * self.long_s / check_number("period_s", period_s, gt=0)

    def bad_share(self, objective: float) -> float:
        """The share of bad requests at which it fires.

        Raises
        ------
        ValueError
            If more than all requests would have to be bad: such a rule never fires.

        Examples
        --------
        >>> round(BurnRule(14.4, 3600, 300).bad_share(0.999), 4)
        0.0144
        >>> BurnRule(14.4, 3600, 300).bad_share(0.9)
        Traceback (most recent call last):
        ...
        ValueError: burn must be at most 10 for an objective of 0.9, where all requests are bad; got 14.4
        """
        allowed = 1 - check_number("objective", objective, gt=0, lt=1)
        if self.burn * allowed > 1 + 1e-12:
            raise ValueError(
                f"burn must be at most {1 / allowed:.6g} for an objective of {objective:g}, "
                f"where all requests are bad; got {self.burn:g}"
            )
        return self.burn * allowed

    def detection_s(self, objective: float, bad_share: float) -> float:
        """How long after the first bad request the long window fires, if all was well before it, in seconds.

        Parameters
        ----------
        objective : float
            Between 0 and 1.
        bad_share : float
            Of the requests from then on, > 0 and at most 1. Infinite is returned if it is too small ever to fire.

        Examples
        --------
        A full outage of a service that promises 99.9 %, and 1.44 % errors:

        >>> rule = BurnRule(14.4, 3600, 300)
        >>> round(rule.detection_s(0.999, 1.0), 2), round(rule.detection_s(0.999, 0.0144) / 60, 6)
        (51.84, 60.0)
        """
        share = check_number("bad_share", bad_share, gt=0, le=1)
        needed = self.bad_share(objective)
        return self.long_s * needed / share if needed <= share * (1 + 1e-12) else float("inf")


STANDARD_RULES = (
    BurnRule(14.4, 3600, 300),
    BurnRule(6, 6 * 3600, 1800),
    BurnRule(3, 86400, 7200),
    BurnRule(1, 3 * 86400, 6 * 3600),
)
"""2 % of a 30-day budget in an hour, 5 % in six: a page; 10 % in a day or in three: a ticket."""


def burn_rates(
    time_s: npt.ArrayLike, good: npt.ArrayLike, total: npt.ArrayLike, window_s: float, objective: float
) -> Floats:
    """The burn rate over the window that ends at each instant; NaN where no request ended in it.

    Parameters
    ----------
    time_s : array of n numbers
        Rising.
    good, total : arrays of n numbers
        How many requests have been good, and how many there have been, up to each instant: counters from 0 on.
    window_s : float
        > 0. Before `time_s[0]` nothing is taken to have happened.
    objective : float
        Between 0 and 1.

    Examples
    --------
    One request a second, all bad from 100 s on:

    >>> seconds = np.arange(201.0)
    >>> rates = burn_rates(seconds, np.minimum(seconds, 100), seconds, window_s=50, objective=0.9)
    >>> rates[[100, 125, 150, 200]].round(3).tolist()
    [0.0, 5.0, 10.0, 10.0]
    """
    when, kept, every = (np.asarray(each, dtype=float) for each in (time_s, good, total))
    if not when.shape == kept.shape == every.shape or when.ndim != 1:
        raise ValueError("time_s, good and total must be three lists of one length")
    if (np.diff(when) <= 0).any() or (np.diff(every) < 0).any() or (np.diff(kept) < 0).any():
        raise ValueError("time_s must rise, and good and total must not fall")
    length = check_number("window_s", window_s, gt=0)
    allowed = 1 - check_number("objective", objective, gt=0, lt=1)
    before = np.searchsorted(when, when - length + 1e-9, "right") - 1
    start_good = np.where(before >= 0, kept[np.maximum(before, 0)], 0.0)
    start_total = np.where(before >= 0, every[np.maximum(before, 0)], 0.0)
    ended = every - start_total
    bad = ended - (kept - start_good)
    return np.where(ended > 0, bad / np.maximum(ended, 1e-300) / allowed, np.nan)


def firing(time_s: npt.ArrayLike, good: npt.ArrayLike, total: npt.ArrayLike, rule: BurnRule, objective: float) -> Bools:
    """At which instants a rule fires: both windows burn at its rate or more. A window without requests doesn't.

    The arguments are those of `burn_rates`.

    Examples
    --------
    >>> seconds = np.arange(7201.0)
    >>> outage = np.minimum(seconds, 3600)              # one request a second, all bad after an hour
    >>> int(seconds[firing(seconds, outage, seconds, BurnRule(14.4, 3600, 300), 0.999)][0]) - 3600
    52
    """
    rule.bad_share(objective)
    windows = (burn_rates(time_s, good, total, each, objective) for each in (rule.long_s, rule.short_s))
    return np.logical_and.reduce([rates >= rule.burn * (1 - 1e-12) for rates in windows])
