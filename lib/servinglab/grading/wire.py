"""What may cross between a submission and the checks: plain values, in length-prefixed JSON frames.

The submission's side is not trusted. Nothing it sends is ever unpickled or executed: it is decoded into numbers,
text, lists, tuples, dictionaries, sets and numeric arrays, or into an `Opaque` that only names a class. An object
whose ``==`` always answers True can therefore never reach a check.

What this module does not do: decide what is right. That is `checks`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_FRAME_BYTES = 16 * 2**20
MAX_DEPTH = 20
_HEADER = struct.Struct(">I")


class WireError(Exception):
    """The other side sent something that is no frame, or closed the line."""


@dataclass(frozen=True)
class Opaque:
    """A value that is not plain; `ref` is its number on the other side, `kind` its class name."""

    kind: str
    ref: int


def encode(value: Any, keep: Callable[[Any], int] = lambda value: 0, depth: int = 0) -> Any:
    """Turn a plain value into JSON; anything else into a reference made by `keep`.

    Numpy scalars, arrays without dimensions, fractions and decimals become Python numbers; other numeric arrays keep
    their type, arrays of text become lists.

    Examples
    --------
    >>> decode(encode((1, 2.5, None, [True, "a"])))
    (1, 2.5, None, [True, 'a'])
    >>> decode(encode(object()))
    Opaque(kind='object', ref=0)
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return {"v": value}
    if kind is int and abs(value) < 10**300:
        return {"v": value}
    if kind is Opaque:
        return {"o": value.kind[:100], "ref": value.ref}
    if kind in (Fraction, Decimal):  # exact arithmetic is a good way to a right answer
        return {"v": float(value)}
    if depth < MAX_DEPTH:
        if kind in (list, tuple, set, frozenset):
            tag = "l" if kind is list else "t" if kind is tuple else "s"
            return {tag: [encode(item, keep, depth + 1) for item in value]}
        if kind is dict:
            return {
                "d": [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in value.items()],
            }
        if kind.__module__ == "numpy":
            import numpy as np

            if isinstance(value, (np.bool_, np.integer, np.floating)):
                return {"v": value.item()}
            if kind is np.str_ or (kind is np.ndarray and value.dtype.kind == "U"):
                return encode(value.tolist(), keep, depth + 1)
            if kind is np.ndarray and value.dtype.kind in "biuf":
                if value.ndim == 0:
                    return {"v": value.item()}
                return {"a": value.tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
    return {"o": kind.__name__[:100], "ref": keep(value)}


def decode(data: Any, depth: int = 0) -> Any:
    """Rebuild a plain value from `encode`'s JSON; raise `WireError` for anything else."""
    try:
        if depth > MAX_DEPTH + 1:
            raise WireError("nested too deeply")
        match data:
            case {"v": value} if value is None or type(value) in (bool, int, float, str):
                return value
            case {"l": list(items)}:
                return [decode(item, depth + 1) for item in items]
            case {"t": list(items)}:
                return tuple(decode(item, depth + 1) for item in items)
            case {"s": list(items)}:
                return {decode(item, depth + 1) for item in items}
            case {"d": list(pairs)}:
                return {decode(k, depth + 1): decode(v, depth + 1) for k, v in pairs}
            case {"a": items, "dtype": str(dtype), "shape": list(shape)} if dtype[1:2] in "biuf":
                import numpy as np

                return np.array(items, dtype=np.dtype(dtype)).reshape(shape)
            case {"o": str(kind), "ref": int(ref)}:
                return Opaque(kind if kind.isidentifier() else "object", ref)
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise WireError(f"not a plain value ({type(error).__name__})") from None
    raise WireError("not a plain value")


def picture(values: Iterable[Any]) -> list[str]:
    """One text for each plain value, the same for equal values: to see whether a call changed its arguments.

    Examples
    --------
    >>> picture([[1, 2.0], None])
    ['{"l": [{"v": 1}, {"v": 2.0}]}', '{"v": null}']
    """
    return [json.dumps(encode(value)) for value in values]


def pack(message: Any) -> bytes:
    """One frame: four bytes of length, then JSON."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


def read_frame(read: Callable[[int], bytes]) -> Any:
    """Read one frame with `read(n)`, which returns at most n bytes and b"" at the end."""
    size = _HEADER.unpack(_read_exactly(read, _HEADER.size))[0]
    if size > MAX_FRAME_BYTES:
        raise WireError(f"a message of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
    try:
        return json.loads(_read_exactly(read, size))
    except (ValueError, RecursionError):
        raise WireError("a message that is not JSON") from None


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        part = read(min(size, 2**20))
        if not part:
            raise WireError("the line is closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
