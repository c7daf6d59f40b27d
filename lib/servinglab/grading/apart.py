"""The grader's own work on what a submission chose, kept from taking all memory and all time.

What this module does not do: run submissions. That is `sandbox`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection

MEMORY_BYTES = 4 * 2**30


def bound_memory() -> None:
    """Let too much memory of this process end in a `MemoryError`; what it starts can have a limit of its own."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def in_time(work: Callable[[], None], seconds: float) -> str:
    """Do some work in a copy of this process, for so many seconds at most; return why it failed, or nothing.

    Where a process can't be copied safely (macOS, Windows), it is done here, and takes the time that it takes.

    Examples
    --------
    >>> in_time(lambda: None, 5.0), in_time(lambda: print(1 / 0), 5.0)
    ('', 'division by zero')
    """
    if sys.platform != "linux":
        return _failure(work)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(work, theirs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, of which the grader has none by then
        process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(seconds) else f"it took more than {seconds:g} s"
    except EOFError:
        return "it ended without a word"
    finally:
        process.kill()
        process.join()
        ours.close()


def _report(work: Callable[[], None], line: Connection) -> None:
    bound_memory()
    line.send(_failure(work))


def _failure(work: Callable[[], None]) -> str:
    try:
        work()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
