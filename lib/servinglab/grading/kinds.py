"""What kind of value an answer must be: a number, a whole number or None, a list of two numbers.

A kind is written as Python writes it: ``float`` (any number), ``int`` (a whole number, 4.0 too), ``bool``, ``str``,
``None``, a union such as ``int | None``, a list of any length ``[float]``, a list of a fixed length
``[int | None, float]``, and a dictionary from texts ``{str: float}``.
"""

from __future__ import annotations

import math
import types
import typing
from typing import Any

_WORDS = {float: "a number", int: "a whole number", bool: "True or False", str: "a text", type(None): "None"}
_MANY = {float: "numbers", int: "whole numbers", bool: "True or False", str: "texts", type(None): "None"}


def is_number(value: Any) -> bool:
    """Whether a plain value is a number (True and False are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers(value: Any) -> list[float] | None:
    """A plain sequence or array of numbers as a list of floats; None for anything else."""
    value = arrays_as_lists(value)
    if not isinstance(value, list) or not all(is_number(item) for item in value):
        return None
    return [float(item) for item in value]


def arrays_as_lists(value: Any) -> Any:
    """A plain value whose arrays and tuples are lists, at every depth.

    Examples
    --------
    >>> import numpy as np
    >>> arrays_as_lists((1, np.array([2.0, 3.0])))
    [1, [2.0, 3.0]]
    """
    if type(value).__module__ == "numpy":
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [arrays_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: arrays_as_lists(item) for key, item in value.items()}
    return value


def misfit(value: Any, kind: Any) -> str:
    """In words what a plain value is, if it is not of this kind; empty if it is.

    Examples
    --------
    >>> misfit(4.0, int), misfit(None, int | None), misfit([1, 2.5], [float])
    ('', '', '')
    >>> misfit(4.5, int), misfit(None, float), misfit([1, 2, 3], [int, int]), misfit([1, None], [float])
    ('a number that is not whole', 'None', 'a list of 3', 'a list that holds None')
    """
    if isinstance(kind, list):
        if isinstance(value, (set, frozenset)) and kind == [str]:  # names without an order
            value = list(value)
        if not isinstance(value, list):
            return what(value)
        if len(kind) > 1 and len(value) != len(kind):
            return f"a list of {len(value)}"
        kinds = kind if len(kind) > 1 else kind * len(value)
        held = [wrong for item, one in zip(value, kinds, strict=True) if (wrong := misfit(item, one))]
        return f"a list that holds {held[0]}" if held else ""
    if isinstance(kind, dict):
        ((_, inside),) = kind.items()
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            return what(value)
        held = [wrong for item in value.values() if (wrong := misfit(item, inside))]
        return f"a dictionary that holds {held[0]}" if held else ""
    if isinstance(kind, types.UnionType):
        return "" if any(not misfit(value, one) for one in typing.get_args(kind)) else what(value)
    if kind is float:
        return "" if is_number(value) else what(value)
    if kind is int:
        if is_number(value) and math.isfinite(value):
            return "" if value == int(value) else "a number that is not whole"
        return what(value)
    if kind is None or kind is type(None):
        return "" if value is None else what(value)
    return "" if isinstance(value, kind) else what(value)


def what(value: Any) -> str:
    """In words what a plain value is, without a number."""
    if value is None or isinstance(value, bool):
        return str(value)
    if is_number(value):
        if math.isnan(value):
            return "not a number (nan)"
        return "a number" if math.isfinite(value) else "an endless number (inf)"
    names: dict[type, str] = {str: "a text", list: "a list", dict: "a dictionary", set: "a set", frozenset: "a set"}
    return names.get(type(value), f"a {type(value).__name__}")


def in_words(kind: Any) -> str:
    """A kind in words.

    Examples
    --------
    >>> in_words(int | None), in_words([float]), in_words([int | None, float])
    ('a whole number or None', 'a list of numbers', 'a list of 2: a whole number or None, a number')
    """
    if isinstance(kind, list):
        if len(kind) > 1:
            return f"a list of {len(kind)}: " + ", ".join(in_words(one) for one in kind)
        (inside,) = kind
        return f"a list of {_MANY[inside]}" if isinstance(inside, type) else f"a list, each entry {in_words(inside)}"
    if isinstance(kind, dict):
        ((_, inside),) = kind.items()
        return "a dictionary, under each text " + in_words(inside)
    if isinstance(kind, types.UnionType):
        return " or ".join(in_words(one) for one in typing.get_args(kind))
    return _WORDS[type(None) if kind is None else kind]
