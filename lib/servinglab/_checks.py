"""Argument checks that every module shares: one clear sentence naming the argument, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def check_number(
    name: str,
    value: Any,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    integer: bool = False,
) -> Any:
    """Return `value` as a plain float (or int) if it is a finite number within the bounds.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : number
        A Python or numpy scalar; booleans are refused.
    gt, ge, lt, le : float, optional
        Bounds: greater than, at least, less than, at most.
    integer : bool
        Whether the value must be whole.

    Returns
    -------
    int or float

    Raises
    ------
    ValueError
        If a rule is broken. The message names the argument, the rule and the value.

    Examples
    --------
    >>> check_number("rate_rps", 20, gt=0)
    20.0
    >>> check_number("rate_rps", -1, gt=0)
    Traceback (most recent call last):
    ...
    ValueError: rate_rps must be a finite number > 0; got -1
    """
    bounds = [(gt, ">"), (ge, ">="), (lt, "<"), (le, "<=")]
    rule = " and ".join(f"{sign} {bound:g}" for bound, sign in bounds if bound is not None)
    kind = "a whole number" if integer else "a finite number"
    message = f"{name} must be {kind}{' ' + rule if rule else ''}; got {value!r}"
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise ValueError(message)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(message) from None
    ok = (
        math.isfinite(number)
        and (gt is None or number > gt)
        and (ge is None or number >= ge)
        and (lt is None or number < lt)
        and (le is None or number <= le)
        and not (integer and number != int(number))
    )
    if not ok:
        raise ValueError(message)
    return int(value) if integer else number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`.

    Examples
    --------
    >>> check_choice("last", "partial", ("full_price", "partial"))
    'partial'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
    return str(value)
