"""Compiles the kernels, and keeps what was compiled until any of their sources changes.

numba's own on-disk cache is keyed by the file that holds the compiled function: it would go on using a function
whose helper in another file has changed. Here the key also covers this file, `pieces` and every source file beside the
function's own, so a kernel's parts lie in one folder.

In these functions no index of an array may be negative, unless it is written as a number: nothing is counted from an
array's end. With `NUMBA_BOUNDSCHECK=1` and an empty `NUMBA_CACHE_DIR` one that is, or is too large, raises IndexError.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FAR = 2**62  # later than any instant
NS = 1_000_000  # femtoseconds in a nanosecond
HALF = NS // 2


def whole_numbers(names: str) -> np.dtype[Any]:
    """A record of whole numbers with these names."""
    return np.dtype([(name, np.int64) for name in names.split()])


try:
    import numba
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import cgutils, types
    from numba.core.caching import CompileResultCacheImpl, FunctionCache
    from numba.extending import intrinsic

    from servinglab.base import pieces
except ImportError:  # pragma: no cover - the tests run it in a child process without numba
    warnings.warn("numba isn't installed: the simulator runs in plain Python, about 100 times slower", stacklevel=2)

    def part(function: Callable[..., Any]) -> Any:
        return function

    apart = part

    def compiled(function: Callable[..., Any]) -> Any:
        def call(*arguments: Any) -> Any:
            return function(*map(_by_name, arguments))

        return call

    def own_copy(record: Any) -> Any:
        return record

    def write_back(record: Any, own: Any) -> None:
        pass

    def _by_name(value: Any) -> Any:
        """A memory whose records have attributes, as they do for numba."""
        if isinstance(value, tuple):
            return type(value)(*map(_by_name, value))
        return value.view(np.recarray) if getattr(value, "dtype", np.dtype(int)).names else value
else:
    # Memory is made in Python: without numba's counts of references to it the kernels are ten times as fast.
    _OPTIONS = {"error_model": "numpy", "_nrt": False}

    @functools.cache
    def sources_stamp(folder: Path) -> bytes:
        """What the sources of a folder, and those of this module, come to."""
        digest = hashlib.sha256()
        for each in [Path(__file__), Path(pieces.__file__), *sorted(folder.glob("*.py"))]:
            text = each.read_bytes()
            digest.update(f"{each.name} {len(text)} ".encode() + text)
        return digest.digest()

    class _KeyedByAllSources(CompileResultCacheImpl):
        def __init__(self, function: Callable[..., Any]) -> None:
            super().__init__(function)
            own = self.locator.get_source_stamp()
            sources = sources_stamp(Path(function.__code__.co_filename).parent)
            self.locator.get_source_stamp = lambda: (own, sources)

    class _Cache(FunctionCache):
        _impl_class = _KeyedByAllSources

    def compiled(function: Callable[..., Any]) -> Any:
        """Compile a function that Python calls; keep it on disk where numba finds a place."""
        dispatcher = numba.njit(**_OPTIONS, pipeline_class=pieces.KernelCompiler)(function)
        dispatcher._cache = _Cache(function)  # as `cache=True` does, but for the key
        return dispatcher

    _PIECE = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": pieces.PieceCompiler}

    def part(function: Callable[..., Any]) -> Any:
        """Compile a piece of such a function into it; Python can't call it."""
        return numba.njit(**_PIECE, forceinline=True)(function)

    def apart(function: Callable[..., Any]) -> Any:
        """The same, but called: a piece that is large, or rarely needed."""
        return numba.njit(**_PIECE, forceinline=False)(function)

    @intrinsic
    def own_copy(_context: Any, record: Any) -> Any:
        """A copy of a record that only the caller can see, so that the compiler keeps its fields in registers."""

        def copy(_target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            size = signature.args[0].size
            own = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(8), size))
            own.align = 16
            cgutils.raw_memcpy(builder, own, arguments[0], ir.IntType(64)(size), 1)
            return builder.bitcast(own, arguments[0].type)

        return record(record), copy

    @intrinsic
    def write_back(_context: Any, record: Any, own: Any) -> Any:
        """Write such a copy back to where it came from."""

        def copy(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            cgutils.raw_memcpy(builder, arguments[0], arguments[1], ir.IntType(64)(signature.args[0].size), 1)
            return target.get_dummy_value()

        return types.void(record, own), copy
