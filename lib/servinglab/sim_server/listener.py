"""Who may come in? Accepts connections, and stays polite when no more files can be opened.

A connection is an open file, and a process may have so many. Some are kept in reserve here. When the system has none
left for a new connection, one of the reserve is given up for it. Such a connection is *spare*: it gets one answer, an
error or a page such as /metrics, within `_PATIENCE_S`, and its file goes back to the reserve. While all of the reserve
is out nobody is accepted, and who comes waits in the system's line. (asyncio's own server tries again at once,
thousands of times, and writes each failure to the log.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from servinglab.base.open_files import open_file_limit
from servinglab.sim_server.http import Connection
from servinglab.sim_server.prometheus import Metrics

_BACKLOG = 4096
_RESERVE = 16
_PATIENCE_S = 1.0
_RETRY_S = 0.01
_QUIET_S = 5.0  # so long after the last shortage it is over
_NO_FILE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_log = logging.getLogger(__name__)


class Listener:
    """Accepts connections on the running event loop.

    Parameters
    ----------
    connect : callable
        Called with (spare, on_closed); makes the `Connection`.
    metrics : Metrics
        `connection_rejections` is the number of spare connections that were turned away: here it counts those that
        asked for nothing in time, and who answers one with an error counts that.

    Attributes
    ----------
    port : int
        Of the first address, once it listens.
    """

    def __init__(self, connect: Callable[[bool, Callable[[], None]], Connection], metrics: Metrics) -> None:
        self.port = 0
        self._connect, self._metrics = connect, metrics
        self._places: list[tuple[int, Any]] = []
        self._listening: dict[socket.socket, asyncio.Task[None]] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        self._reserve: list[int] = []
        self._spares = 0
        self._opening: asyncio.TimerHandle | None = None
        self._calming: asyncio.TimerHandle | None = None
        self._short_since_s = self._short_until_s = 0.0
        self._rejections_before = 0

    async def listen(self, host: str, port: int) -> None:
        """Listen at every address of a host; OSError if they can't be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._places = list(dict.fromkeys((family, place) for family, *_, place in found))
        self._open()
        try:
            self._reserve.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE))
        except OSError:
            await self.close()
            raise
        self._places = [(each.family, each.getsockname()) for each in self._listening]
        self.port = self._places[0][1][1]

    def refuse(self, seconds: float) -> None:
        """Refuse new connections for a while; those that are open stay."""
        if self._listening:
            self._shut()
            self._opening = asyncio.get_running_loop().call_later(seconds, self._open)

    async def close(self) -> None:
        """Listen no more."""
        if self._opening is not None:
            self._opening.cancel()
        self._shut()
        if self._arriving:
            await asyncio.wait(self._arriving)
        self._end_shortage()
        while self._reserve:
            os.close(self._reserve.pop())

    def _open(self) -> None:
        loop = asyncio.get_running_loop()
        for family, place in self._places:
            try:
                bound = socket.create_server(place, family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno in _NO_SUCH_FAMILY and (self._listening or place != self._places[-1][1]):
                    continue  # a name may have addresses that this machine doesn't
                self._shut()
                raise
            bound.setblocking(False)
            self._listening[bound] = loop.create_task(self._accept(bound))

    def _shut(self) -> None:
        for bound, task in self._listening.items():
            task.cancel()
            bound.close()
        self._listening.clear()

    # accepting

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._refill()  # first: a file that a spare connection gave back isn't for the next one to keep
            spare = False
            try:
                accepted, _ = await loop.sock_accept(bound)
            except OSError as error:
                taken = self._accept_spare(bound) if error.errno in _NO_FILE_LEFT else None
                if taken is None:
                    await asyncio.sleep(_RETRY_S)
                    continue
                accepted, spare = taken, True
            task = loop.create_task(self._welcome(accepted, spare))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)
            await asyncio.sleep(0)  # those who are here go on while others come

    def _accept_spare(self, bound: socket.socket) -> socket.socket | None:
        """The next connection, in place of a file of the reserve; None if there is none of either."""
        self._note_shortage()
        if not self._reserve:
            return None
        os.close(self._reserve.pop())
        try:
            accepted, _ = bound.accept()
        except OSError:  # who came has gone, or another thread took the file
            return None
        self._spares += 1
        accepted.setblocking(False)
        return accepted

    async def _welcome(self, accepted: socket.socket, spare: bool) -> None:
        loop = asyncio.get_running_loop()
        connect = partial(self._connect, spare, partial(self._closed, spare))
        _, connection = await loop.connect_accepted_socket(connect, accepted)
        if spare:
            loop.call_later(_PATIENCE_S, self._give_up, connection)

    def _give_up(self, connection: Connection) -> None:
        if connection.abort():
            self._metrics.connection_rejections += 1

    def _closed(self, spare: bool) -> None:
        self._spares -= spare
        asyncio.get_running_loop().call_soon(self._refill)  # its file is free when this call has returned

    def _refill(self) -> None:
        while self._listening and len(self._reserve) + self._spares < _RESERVE:
            try:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return

    # a line when files run short, and one when they no longer do

    def _note_shortage(self) -> None:
        loop = asyncio.get_running_loop()
        self._short_until_s = loop.time()
        if self._calming is not None:
            return
        self._short_since_s, self._rejections_before = loop.time(), self._metrics.connection_rejections
        self._calming = loop.call_later(_QUIET_S, self._calm)
        limit = open_file_limit()
        of = "" if limit is None else f" (this process may open {limit:,} files; ulimit -n sets how many)"
        _log.warning("no more connections can be opened%s: further requests are answered 503", of)

    def _calm(self) -> None:
        loop = asyncio.get_running_loop()
        over_s = self._short_until_s + _QUIET_S
        if loop.time() < over_s:
            self._calming = loop.call_at(over_s, self._calm)
        else:
            self._end_shortage()

    def _end_shortage(self) -> None:
        if self._calming is None:
            return
        self._calming.cancel()
        self._calming = None
        count = self._metrics.connection_rejections - self._rejections_before
        lasted_s = self._short_until_s - self._short_since_s
        _log.warning("connections can be opened again: %s were turned away within %.1f s", f"{count:,}", lasted_s)
