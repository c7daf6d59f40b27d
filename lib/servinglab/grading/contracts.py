"""In which order and in which units is a function asked for its answer?

The checks of an assignment are written once, for one order of arguments, in seconds and requests per second. A variant
may ask for another: ``pot_rate(per_request_ms, fixed_ms, B)``, in requests per minute. A `Contract` holds both sides
and carries numbers across. A name's unit is what stands after its last ``_``; numbers are scaled as decimals, so that
0.07 s is 70 ms and not 70.00000000000001.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

# the unit of the checks: the unit that a variant may ask for, and how many of those one is
OTHERS = {"s": ("ms", 1000), "rps": ("rpm", 60)}
WORDS = {"s": "seconds", "ms": "milliseconds", "rps": "per second", "rpm": "per minute"}
_BACK = {other: unit for unit, (other, _) in OTHERS.items()}


@dataclass(frozen=True)
class Contract:
    """How a function is asked, beside the arguments that the checks have for it.

    Parameters
    ----------
    shipped : tuple of str
        The arguments' names in the checks, in their order.
    asked : tuple of str
        The names that the function has in this variant, in its order.
    factor : int
        What the function answers where the checks expect 1.

    Examples
    --------
    >>> contract = Contract(("B", "fixed_s"), ("fixed_ms", "B"), 60)
    >>> contract.arguments((4, 0.07))
    (70, 4)
    >>> contract.answer([120, None])
    [2.0, None]
    >>> contract.fit(lambda B, fixed_s: B * fixed_s)(70.0, 4)
    16.8
    """

    shipped: tuple[str, ...]
    asked: tuple[str, ...]
    factor: int = 1

    def __post_init__(self) -> None:
        if sorted(map(_shipped, self.asked)) != sorted(self.shipped):
            raise ValueError(f"asked must have the arguments of shipped, {self.shipped}; got {self.asked}")

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """A call's arguments as the function takes them, from those of the checks."""
        if len(args) != len(self.shipped):
            raise TypeError(f"a call has the arguments {', '.join(self.shipped)}; got {len(args)} values")
        return tuple(_times(args[place], factor) for place, factor in self._places())

    def answer(self, value: Any) -> Any:
        """The function's answer, in the units of the checks."""
        return _over(value, self.factor)

    def asked_for(self, value: Any) -> Any:
        """An answer of the checks, in the units of the function."""
        return _times(value, self.factor)

    def fit(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the checks' arguments, made to be called as it is asked."""

        def fitted(*asked: Any) -> Any:
            own: list[Any] = [None] * len(self.shipped)
            for value, (place, factor) in zip(asked, self._places(), strict=True):
                own[place] = _over(value, factor)
            before = [list(value) if isinstance(value, list) else None for value in own]
            result = answer(*own)
            for value, (place, factor) in zip(asked, self._places(), strict=True):
                if own[place] is not value and before[place] not in (None, own[place]):
                    value[:] = _times(own[place], factor)  # what it did to its caller's list
            return _times(result, self.factor)

        return fitted

    @property
    def parameters(self) -> str:
        """The function's parameters, as they stand after ``def``."""
        return ", ".join(self.asked)

    def name_of(self, argument: str) -> str:
        """What an argument of the checks is called where it is asked."""
        return next(name for name in self.asked if _shipped(name) == argument)

    def read_in(self, *lists: str) -> str:
        """A line for the solution that makes the checks' arguments out of the asked ones; empty if they are the same.

        `lists` names those arguments that are lists of numbers.

        Examples
        --------
        >>> Contract(("waits_s", "fixed_s"), ("fixed_ms", "waits_ms")).read_in("waits_s")
        'fixed_s, waits_s = fixed_ms / 1000, [x / 1000 for x in waits_ms]'
        >>> Contract(("B", "fixed_s"), ("fixed_s", "B")).read_in()
        ''
        """
        changed = [
            (name, self.shipped[place], by) for name, (place, by) in zip(self.asked, self._places(), strict=True)
        ]
        changed = [(name, own, by) for name, own, by in changed if by != 1]
        values = [f"[x / {by} for x in {name}]" if own in lists else f"{name} / {by}" for name, own, by in changed]
        return f"{', '.join(own for _, own, _ in changed)} = {', '.join(values)}" if changed else ""

    def _places(self) -> list[tuple[int, int]]:
        """For each argument as it is asked: its place in the checks, and how many of its units one unit there is."""
        return [
            (self.shipped.index(own), 1 if own == name else OTHERS[own.rsplit("_", 1)[-1]][1])
            for name, own in ((name, _shipped(name)) for name in self.asked)
        ]


def draw_contract(
    parameters: str, answer: str, variant: int, dice: random.Random, keep: Sequence[str] = ()
) -> Contract:
    """The contract of one function in one variant.

    Parameters
    ----------
    parameters : str
        The arguments in the checks, such as ``"B, fixed_s, per_request_s"``.
    answer : str
        The unit of the answer, ``"s"`` or ``"rps"``; anything else is never converted.
    variant : int
        0 keeps everything as it is.
    dice : random.Random
        Picks another order, if there is one, and the units.
    keep : sequence of str
        Names whose unit stays.

    Examples
    --------
    >>> draw_contract("B, fixed_s", "rps", 0, random.Random(1)).asked
    ('B', 'fixed_s')
    >>> contract = draw_contract("B, fixed_s", "rps", 3, random.Random(4))
    >>> contract.asked, contract.factor
    (('fixed_ms', 'B'), 60)
    """
    shipped = tuple(name.strip() for name in parameters.split(",") if name.strip())
    if not variant:
        return Contract(shipped, shipped)
    changed = {unit for unit in OTHERS if dice.random() < 0.7}
    asked = []
    for name in shipped:
        stem, _, unit = name.rpartition("_")
        asked.append(f"{stem}_{OTHERS[unit][0]}" if stem and unit in changed and name not in keep else name)
    order = list(asked)
    while len(order) > 1 and order == asked:
        dice.shuffle(order)
    return Contract(shipped, tuple(order), OTHERS[answer][1] if answer in changed else 1)


def _shipped(name: str) -> str:
    """A name with the unit that the checks have for it."""
    stem, _, unit = name.rpartition("_")
    return f"{stem}_{_BACK[unit]}" if stem and unit in _BACK else name


def _times(value: Any, factor: int) -> Any:
    """Each number of a plain value, however deep in lists and dictionaries, times `factor`."""

    def times(x: float) -> float:
        product = Decimal(repr(x)) * factor if math.isfinite(x) else x * factor
        return int(product) if math.isfinite(product) and product == int(product) else float(product)

    return _each(value, times, factor)


def _over(value: Any, factor: int) -> Any:
    return _each(value, lambda x: x / factor, factor)


def _each(value: Any, change: Callable[[Any], Any], factor: int) -> Any:
    if factor == 1:
        return value
    if hasattr(value, "tolist"):  # numpy's
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return type(value)(_each(item, change, factor) for item in value)
    if isinstance(value, dict):
        return {key: _each(item, change, factor) for key, item in value.items()}
    return change(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
