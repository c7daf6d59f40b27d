"""How many files may this process open? A connection is one."""

from __future__ import annotations

from contextlib import suppress

_SOME = 10_240  # what macOS allows at most where it says there is no limit


def open_file_limit() -> int | None:
    """How many files this process may have open at once; None where there is no such limit, as on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def open_more_files() -> None:
    """Have this process open as many files as its system lets it."""
    try:
        import resource
    except ImportError:
        return
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (most, _SOME):
        if soft != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > soft):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
                return
