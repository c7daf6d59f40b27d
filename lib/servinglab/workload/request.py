"""What a request says of itself beside its lengths: the same optional columns in a workload, a result and their files.

=============  =======================================================================================================
user           who sent it
request_class  what kind of request it is, such as "chat"; a load test reports each class by itself
deadline_s     by how many seconds after its arrival its sender wants the whole answer
max_tokens     the longest answer that its sender would take, which is what a server knows of it beforehand
=============  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servinglab.base.checks import check_array

TEXTS = ("user", "request_class")
NUMBERS = ("deadline_s", "max_tokens")
OPTIONAL = (*TEXTS, *NUMBERS)
MAX_TOKENS = 10**9

Texts = tuple[str, ...]


def check_optional(
    n: int, output_tokens: NDArray[Any] | None = None, **columns: Any
) -> dict[str, Texts | NDArray[Any] | None]:
    """The optional columns of n requests, checked; those that are None stay None.

    Parameters
    ----------
    n : int
    output_tokens : array of n ints, optional
        No answer may be longer than its `max_tokens`.
    **columns
        Some of `OPTIONAL`: texts as a sequence of n strings; `deadline_s` > 0; `max_tokens` at least 1.

    Raises
    ------
    ValueError
        If a column breaks its rule.

    Examples
    --------
    >>> check_optional(2, user=["ada", "bob"], deadline_s=[1.0, 2.5])
    {'user': ('ada', 'bob'), 'deadline_s': array([1. , 2.5])}
    >>> check_optional(2, user=["ada"])
    Traceback (most recent call last):
    ...
    ValueError: user must hold 2 texts, one for each request; got 1
    """
    made: dict[str, Texts | NDArray[Any] | None] = {}
    for name, column in columns.items():
        if column is None:
            made[name] = None
        elif name in TEXTS:
            made[name] = _texts(name, column, n)
        elif name == "deadline_s":
            made[name] = check_array(name, column, length=n, gt=0)
        else:
            made[name] = limits = check_array(name, column, length=n, ge=1, le=MAX_TOKENS, integer=True)
            if output_tokens is not None and (beyond := np.flatnonzero(output_tokens > limits)).size:
                k = int(beyond[0])
                raise ValueError(
                    f"max_tokens must be at least output_tokens; max_tokens[{k}] = {limits[k]} and "
                    f"output_tokens[{k}] = {output_tokens[k]}"
                )
    return made


def _texts(name: str, column: Any, n: int) -> Texts:
    if isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
        raise ValueError(f"{name} must hold {n} texts, one for each request; got {column!r}")
    texts = tuple(column.tolist() if isinstance(column, np.ndarray) else column)
    if len(texts) != n:
        raise ValueError(f"{name} must hold {n} texts, one for each request; got {len(texts)}")
    for k, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name} must hold texts; {name}[{k}] is {text!r}")
    return texts


def given(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the columns that aren't None."""
    return {name: column for name, column in columns.items() if column is not None}
