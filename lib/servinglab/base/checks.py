"""Argument checks that every module shares: one sentence that names the argument, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def check_callback(name: str, value: Any) -> None:
    """Refuse what is neither None nor callable.

    Examples
    --------
    >>> check_callback("progress", print)
    """
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be callable; got {value!r}")


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


def check_array(
    name: str,
    values: Any,
    *,
    length: int | None = None,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    integer: bool = False,
) -> NDArray[Any]:
    """Return `values` as a read-only copy, a flat float64 (or int64) array, if every entry keeps the rules.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    values : sequence of numbers
        A list, tuple or array of one dimension; strings, booleans and None are refused.
    length : int, optional
        How many entries there must be.
    gt, ge, le : float, optional
        Bounds of every entry. A whole-number array wants bounds within ±2**53.
    integer : bool
        Whether every entry must be whole.

    Returns
    -------
    ndarray

    Raises
    ------
    ValueError
        If a rule is broken. The message names the argument, the position, the rule and the value.

    Examples
    --------
    >>> check_array("output_tokens", [3, 8, 2], ge=1, integer=True)
    array([3, 8, 2])
    >>> check_array("output_tokens", [3, 0, 2], ge=1, integer=True)
    Traceback (most recent call last):
    ...
    ValueError: output_tokens[1] must be a whole number >= 1; got 0
    """
    bounds = [(gt, ">"), (ge, ">="), (le, "<=")]
    limits = " and ".join(f"{sign} {bound:.15g}" for bound, sign in bounds if bound is not None)
    rule = f"{'a whole number' if integer else 'a finite number'}{' ' + limits if limits else ''}"
    try:
        array = np.asarray(values)
    except ValueError:  # a ragged list
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise ValueError(f"{name} must be a flat sequence of numbers; got {_brief(values)}")
    if array.dtype.kind not in "iuf":
        for position, entry in enumerate(values):
            if not isinstance(entry, Real) or isinstance(entry, (bool, np.bool_)):
                raise ValueError(f"{name}[{position}] must be {rule}; got {_brief(entry)}")
        array = np.array([float(entry) for entry in values])
    if length is not None and array.size != length:
        raise ValueError(f"{name} must hold {length} values; got {array.size}")
    bad = ~np.isfinite(array)
    if gt is not None:
        bad |= array <= gt
    if ge is not None:
        bad |= array < ge
    if le is not None:
        bad |= array > le
    if integer and array.dtype.kind == "f":
        bad |= array != np.floor(array)
    if bad.any():
        position = int(np.argmax(bad))
        raise ValueError(f"{name}[{position}] must be {rule}; got {array[position].item()!r}")
    array = np.array(array, dtype=np.int64 if integer else np.float64)
    array.setflags(write=False)
    return array


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False.

    Examples
    --------
    >>> check_flag("padded", "no")
    Traceback (most recent call last):
    ...
    ValueError: padded must be True or False; got 'no'
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return bool(value)
