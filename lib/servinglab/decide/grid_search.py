"""From a coarse grid to the best point on it, without trying every point.

Evaluates a coarse grid whole, then halves the steps around the points that are best by each of several measures, until
the steps are as fine as asked. What lies between two grid points is seen only where one of them is among the best: a
measure that dips and rises again between two coarse points, far from the best, is missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Point = tuple[float, ...]
T = TypeVar("T")


class Axis:
    """One setting's values, which get denser where it matters.

    Parameters
    ----------
    values : numbers
        The coarse grid.
    whole : bool
        Whether only whole numbers are values.
    finest : float
        Steps are halved while they are longer than this share of the value, and (whole numbers) longer than 1.
    """

    def __init__(self, values: Iterable[float], *, whole: bool, finest: float) -> None:
        self.values = sorted(set(values))
        self._whole, self._finest = whole, finest

    def around(self, value: float) -> list[float]:
        """The value and one on each side: halfway to the next, or the next where halfway is too near."""
        at = self.values.index(value)
        near = [value]
        for other in self.values[max(at - 1, 0) : at] + self.values[at + 1 : at + 2]:
            gap = abs(other - value)
            if gap > max(self._finest * max(abs(value), abs(other)), 1.0 if self._whole else 0.0):
                other = (other + value) // 2 if self._whole else (other + value) / 2
            near.append(other)
        self.values = sorted({*self.values, *near})
        return near


def search(
    axes: Sequence[Axis],
    evaluate: Callable[[Point], T | None],
    best: Callable[[Sequence[T]], Iterable[T]],
    point_of: Callable[[T], Point],
) -> list[T]:
    """Everything that was evaluated on the way, the first point first.

    Parameters
    ----------
    axes : sequence of Axis
    evaluate : callable
        From a point, one value per axis, to what is known of it; None for a combination that can't be.
    best : callable
        From all evaluated so far to those around which to look closer.
    point_of : callable
        From what `evaluate` returned back to its point.

    Examples
    --------
    >>> found = search([Axis([1, 50, 100], whole=True, finest=0)], lambda p: (abs(p[0] - 37), p),
    ...                lambda seen: [min(seen)], lambda each: each[1])
    >>> min(found)[1], len(found)
    ((37,), 14)
    """
    seen: set[Point] = set()
    found: list[T] = []
    points = list(itertools.product(*(axis.values for axis in axes)))
    while points:
        seen.update(points)
        found += [each for point in points if (each := evaluate(point)) is not None]
        closer = [
            itertools.product(*(axis.around(x) for axis, x in zip(axes, point_of(each), strict=True)))
            for each in (best(found) if found else ())
        ]
        points = [point for point in dict.fromkeys(itertools.chain(*closer)) if point not in seen]
    return found
