"""What may cross between a submission and the checks: plain values, in length-prefixed JSON frames.

The submission's side is not trusted. Nothing it sends is ever unpickled or executed: it is decoded into numbers,
text, lists, tuples, dictionaries, sets and numeric arrays, or into an `Opaque` that only names a class. An object
whose ``==`` always answers True can therefore never reach a check. Nor can a value that takes far more memory or time
to build than to send.

What this module does not do: decide what is right. That is `checks`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_FRAME_BYTES = 16 * 2**20
MAX_CONTAINERS = 10**6  # lists and tables in one frame: each takes two bytes there and up to 200 in memory
MAX_DEPTH = 20
MAX_NAME_CHARS = 100
MAX_WHOLE = 10**300
# Numbers can be chosen whose hashes are equal: whole ones beyond this one, and tuples. A set of n of them takes n²
# steps to build, so there may be a few only.
HASHED_AS_THEY_ARE = 2**61 - 1
MAX_BEYOND = 1000
MAX_SAME_HASH = 50  # 35 floats, at most, share one
_ARRAY_KINDS = re.compile(r"[<>|=]?[biuf][1248]")
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
    their type, arrays of text and of objects, such as `np.array([4, None])`, become lists.

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
    if kind is int and abs(value) < MAX_WHOLE:
        return {"v": value}
    if kind is Opaque:
        return {"o": value.kind[:MAX_NAME_CHARS], "ref": value.ref}
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
            if kind is np.str_ or (kind is np.ndarray and value.dtype.kind in "UO"):
                return encode(value.tolist(), keep, depth + 1)
            if kind is np.ndarray and value.dtype.kind in "biuf":
                if value.ndim == 0:
                    return {"v": value.item()}
                if value.dtype.itemsize > 8:  # long doubles
                    value = value.astype(float)
                return {"a": value.ravel().tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
    return {"o": kind.__name__[:MAX_NAME_CHARS], "ref": keep(value)}


def decode(data: Any, depth: int = 0) -> Any:
    """Rebuild a plain value from `encode`'s JSON; raise `WireError` for anything else."""
    try:
        if depth > MAX_DEPTH + 1:
            raise WireError("nested too deeply")
        match data:
            case {"v": int(value)} if abs(value) < MAX_WHOLE:
                return value
            case {"v": value} if value is None or type(value) in (float, str):
                return value
            case {"l": list(items)}:
                return _few_beyond([decode(item, depth + 1) for item in items])
            case {"t": list(items)}:
                return tuple(_few_beyond([decode(item, depth + 1) for item in items]))
            case {"s": list(items)}:
                return set(_spread([decode(item, depth + 1) for item in items]))
            case {"d": list(pairs)}:
                keys = _spread([decode(k, depth + 1) for k, _ in pairs])
                return dict(zip(keys, _few_beyond([decode(v, depth + 1) for _, v in pairs]), strict=True))
            case {"a": list(items), "dtype": str(dtype), "shape": list(shape)} if (
                _ARRAY_KINDS.fullmatch(dtype)
                and all(type(item) in (bool, int, float) for item in items)
                and _is_shape(shape, len(items))
            ):
                import numpy as np

                return np.array(items, dtype=np.dtype(dtype)).reshape(shape)
            case {"o": str(kind), "ref": int(ref)} if 0 <= ref < 2**31:
                return Opaque(kind[:MAX_NAME_CHARS] if kind.isidentifier() else "object", ref)
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


def _is_shape(shape: list[Any], count: int) -> bool:
    """Whether an array of `count` numbers can have this shape; as lists, also an empty one must be small."""
    if not all(type(side) is int and 0 <= side <= MAX_FRAME_BYTES for side in shape):
        return False
    return math.prod(shape) == count and (count > 0 or math.prod(side or 1 for side in shape) <= MAX_CONTAINERS)


def _few_beyond(items: list[Any]) -> list[Any]:
    """The same items, unless a check that makes a set of them could wait for hours."""
    if sum(type(item) is int and abs(item) >= HASHED_AS_THEY_ARE for item in items) > MAX_BEYOND:
        raise WireError(f"more than {MAX_BEYOND} whole numbers of over 60 bits")
    return items


def _spread(keys: list[Any]) -> list[Any]:
    """The same keys, unless too many of them share a hash."""
    if keys and max(Counter(map(hash, keys)).values()) > MAX_SAME_HASH:
        raise WireError("keys that were chosen to have the same hash")
    return keys


def pack(message: Any) -> bytes:
    """One frame: four bytes of length, then JSON."""
    body = json.dumps(message).encode()
    _check_size(len(body), body)
    return _HEADER.pack(len(body)) + body


def _check_size(size: int, body: bytes = b"") -> None:
    if size > MAX_FRAME_BYTES:
        raise WireError(f"a message of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
    if (count := body.count(b"[") + body.count(b"{")) > MAX_CONTAINERS:
        raise WireError(f"a message of {count} lists and tables is over the limit of {MAX_CONTAINERS}")


def read_frame(read: Callable[[int], bytes]) -> Any:
    """Read one frame with `read(n)`, which returns at most n bytes and b"" at the end."""
    return parse(read_body(read))


def read_body(read: Callable[[int], bytes]) -> bytes:
    """The JSON of one frame, not looked at yet."""
    size = _HEADER.unpack(_read_exactly(read, _HEADER.size))[0]
    _check_size(size)
    return _read_exactly(read, size)


def parse(body: bytes) -> Any:
    """What a frame's JSON says."""
    _check_size(len(body), body)
    try:
        return json.loads(body)
    except (ValueError, RecursionError, MemoryError):
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
