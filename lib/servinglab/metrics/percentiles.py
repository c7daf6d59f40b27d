"""Percentiles by stated rules: of samples, and of weighted samples."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_choice, check_number

if TYPE_CHECKING:
    pass

from servinglab.base.arrays import Floats

RULES = ("nearest_rank", "linear", "demo")


# Percentiles
def percentile(values: npt.ArrayLike, q: float, rule: str = "nearest_rank") -> float:
    """The value that a fraction `q` of the values don't exceed.

    Parameters
    ----------
    values : array of n ≥ 1 numbers
        In any order; infinite ones are allowed.
    q : float
        A fraction, 0 < q ≤ 1, for example 0.99.
    rule : {"nearest_rank", "linear", "demo"}
        nearest_rank: inf{x : F(x) ≥ q}, the ⌈q·n⌉-th smallest; always a value that occurred. The rank is
        computed exactly, with q as the decimal fraction it was written as. linear: numpy's default, between
        the two values around position q·(n − 1). demo: the first document's ``sorted(values)[int(q * n) -
        1]``, which rounds the rank down.

    Raises
    ------
    ValueError
        If there are no values, one is NaN, q is out of range, or rule "demo" has no rank (q·n < 1).

    Examples
    --------
    >>> [percentile(range(1, 11), q) for q in (0.9, 0.99)]
    [9.0, 10.0]
    >>> [round(percentile(range(1, 11), q, rule="linear"), 2) for q in (0.9, 0.99)]
    [9.1, 9.91]
    >>> percentile(range(1, 11), 0.99, rule="demo")
    9.0
    """
    ordered = np.sort(check_numbers("values", values))
    fraction = check_number("q", q, gt=0, le=1)
    check_choice("rule", rule, RULES)
    n = len(ordered)
    if rule == "linear":
        place = fraction * (n - 1)
        low = min(int(place), n - 1)
        below, above = float(ordered[low]), float(ordered[min(low + 1, n - 1)])
        return below if above == below else below + (place - low) * (above - below)
    if rule == "demo":
        if int(fraction * n) < 1:
            raise ValueError(f'rule="demo" needs q * n >= 1, its index would be -1; got q={q!r} and n={n}')
        return float(ordered[int(fraction * n) - 1])
    return float(ordered[nearest_rank(fraction, n) - 1])


def weighted_percentile(values: npt.ArrayLike, weights: npt.ArrayLike, q: float) -> float:
    """The nearest-rank percentile of values that each occur `weights` times: inf{x : F(x) ≥ q}.

    For the ITL of `Result.itl`: the gaps are the values, and the tokens that came after each gap the weights.

    Parameters
    ----------
    values : array of n ≥ 1 numbers
    weights : array of n numbers ≥ 0
        Not all 0. With whole weights the rank is exact.
    q : float
        A fraction, 0 < q ≤ 1.

    Examples
    --------
    >>> weighted_percentile([20.0, 26.7], [6, 3], 0.5)
    20.0
    """
    numbers, counts = check_numbers("values", values), np.asarray(weights)
    if counts.dtype.kind not in "iubf":
        raise ValueError(f"weights must be numbers; got {weights!r:.60}")
    fraction = check_number("q", q, gt=0, le=1)
    if counts.shape != numbers.shape:
        raise ValueError(f"weights must be as many as values, {len(numbers)}; got {counts.size}")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts > 0).any()):
        raise ValueError("weights must be finite numbers >= 0, and not all 0")
    order = np.argsort(numbers, kind="stable")
    reached = np.cumsum(counts[order])
    if counts.dtype.kind in "iub":
        needed = float(nearest_rank(fraction, int(reached[-1])))
    else:
        needed = fraction * float(reached[-1]) * (1 - 1e-12)
    return float(numbers[order][np.searchsorted(reached, needed, "left")])


def values_at_ranks(values: Floats, ranks: list[int]) -> list[float]:
    """The values of ascending ranks, from 1; infinite beyond the last. Each is sought above the one before.

    The values are left in another order.
    """
    found, rest, below = [], values, 0
    for rank in ranks:
        if rank > len(values):
            found.append(math.inf)
            continue
        place = rank - 1 - below
        rest.partition(place)
        found.append(float(rest[place]))
        rest, below = rest[place:], rank - 1
    return found


def nearest_rank(q: float, n: int) -> int:
    """⌈q·n⌉ in exact arithmetic: 0.07 · 100 is 7, though its float is 7.000000000000001."""
    return max(1, math.ceil(Fraction(q).limit_denominator(10**9) * n))


def check_numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a sequence of numbers; got {values!r:.60}") from None
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{name} must be a sequence of at least one number; got shape {numbers.shape}")
    if np.isnan(numbers).any():
        raise ValueError(f"{name} must hold no NaN; got {int(np.isnan(numbers).sum())}")
    return numbers
