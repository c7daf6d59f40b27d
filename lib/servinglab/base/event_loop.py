"""An event loop that is on time: for a server that keeps a clock's instants, and for a client that sends at them."""

from __future__ import annotations

import asyncio
import select
import selectors
from typing import Any

_FD_SETSIZE = 1024  # descriptors that `select` takes


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers fire within some 0.1 ms.

    Python's epoll selector rounds a timeout up to whole milliseconds. `select` doesn't; it waits here for the epoll
    descriptor alone, so there is no limit on connections.
    """
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class PreciseSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> Any:
            if timeout is not None and timeout > 0 and self.fileno() < _FD_SETSIZE:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(PreciseSelector())
