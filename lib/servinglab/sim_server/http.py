"""HTTP/1.1 for the simulated server: requests in, answers and streams out, over asyncio's transports.

One `Connection` per client. Requests are parsed as their bytes come, so that a request is known before a step that is
due at the same moment, and a stream's events go straight to the socket, without a task for each request.

What there is: keep-alive, pipelining (one request at a time), bodies with a length or in chunks, ``Expect:
100-continue``, limits on sizes, HTTP/1.0 clients. What isn't: TLS, compression, upgrades.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 32 * 1024 * 1024
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,16}")


@dataclass(frozen=True)
class HttpRequest:
    """A request: `headers` by their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool
    http_1_0: bool


class _Refused(Exception):
    """The request can't be read; the connection ends after saying so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class _Head:
    method: str
    path: str
    headers: dict[str, str]
    http_1_0: bool
    length: int | None  # None: in chunks

    @property
    def keep_alive(self) -> bool:
        wishes = self.headers.get("connection", "").lower()
        return "keep-alive" in wishes if self.http_1_0 else "close" not in wishes


def parse_head(head: bytes) -> _Head:
    """The request line and the headers, without the empty line that ends them."""
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, version = first.split(" ")
        pairs = [line.split(":", 1) for line in lines]
        headers = {name.lower(): value.strip() for name, value in pairs}
    except ValueError:
        raise _Refused(400, "the request is not HTTP/1.1") from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _Refused(505, f"{version} is not spoken here; HTTP/1.1 is")
    length: int | None = 0
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise _Refused(501, f"transfer-encoding {headers['transfer-encoding']} is not understood")
        length = None
    elif "content-length" in headers:
        if not headers["content-length"].isdecimal():
            raise _Refused(400, f"content-length must be a whole number; got {headers['content-length']!r}")
        length = int(headers["content-length"])
        if length > MAX_BODY_BYTES:
            raise _Refused(413, f"a body may have {MAX_BODY_BYTES} bytes; got {length}")
    return _Head(method, path, headers, version == "HTTP/1.0", length)


class Connection(asyncio.Protocol):
    """One client's connection.

    Parameters
    ----------
    handle : callable
        Called with (connection, request); must `respond` or `start_stream`, at once or later.
    on_error : callable
        Called with (status, message) where a request can't be read; returns the body of the answer.
    connections : set
        Holds the connection while it is open.
    spare : bool
        Whether it ends with its first answer.
    on_closed : callable
        Called when it is over.

    Attributes
    ----------
    on_lost : callable or None
        Called if the client goes away before its answer is complete.
    """

    def __init__(
        self,
        handle: Callable[[Connection, HttpRequest], None],
        on_error: Callable[[int, str], bytes],
        connections: set[Connection],
        spare: bool = False,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.spare, self._on_closed = spare, on_closed
        self._handle, self._on_error, self._connections = handle, on_error, connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._body = bytearray()
        self._answering: HttpRequest | None = None
        self._chunked = self._reading = False
        self.on_lost: Callable[[], None] | None = None

    # what comes in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        self._lose()
        self._on_closed()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def _read(self) -> None:
        """Hand over each request that is complete, once the one before it is answered."""
        if self._reading:  # an answer at once: the loop below goes on
            return
        self._reading = True
        try:
            self._hand_over_all()
        finally:
            self._reading = False

    def _hand_over_all(self) -> None:
        while self._answering is None and self._transport is not None:
            try:
                request = self._next_request()
            except _Refused as refused:
                body = self._on_error(refused.status, str(refused))
                self._answering = HttpRequest("", "", {}, b"", False, False)
                self.respond(refused.status, body)
                return
            if request is None:
                return
            self._answering = request
            self._handle(self, request)

    def _next_request(self) -> HttpRequest | None:
        if self._head is None:
            while self._buffer.startswith(b"\r\n"):
                del self._buffer[:2]
            end = self._buffer.find(b"\r\n\r\n")
            if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
                raise _Refused(431, f"request line and headers may have {MAX_HEAD_BYTES} bytes")
            if end < 0:
                return None
            self._head = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._body = bytearray()
            if self._head.headers.get("expect", "").lower() == "100-continue":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = self._head
        if head.length is None:
            if not self._read_chunks():
                return None
        elif len(self._buffer) < head.length:
            return None
        else:
            self._body = self._buffer[: head.length]
            del self._buffer[: head.length]
        self._head = None
        keep_alive = head.keep_alive and not self.spare
        return HttpRequest(head.method, head.path, head.headers, bytes(self._body), keep_alive, head.http_1_0)

    def _read_chunks(self) -> bool:
        """Move whole chunks into the body; True after the last."""
        while (line := self._buffer.find(b"\r\n")) >= 0:
            digits = bytes(self._buffer[:line]).split(b";")[0].strip()
            if not _HEXADECIMAL.fullmatch(digits):
                raise _Refused(400, "a chunk's size is not a hexadecimal number")
            size = int(digits, 16)
            if len(self._body) + size > MAX_BODY_BYTES:
                raise _Refused(413, f"a body may have {MAX_BODY_BYTES} bytes")
            if size == 0:
                end = self._buffer.find(b"\r\n\r\n", line)  # trailers, if any, are dropped
                if end < 0:
                    return False
                del self._buffer[: end + 4]
                return True
            if len(self._buffer) < line + 2 + size + 2:
                return False
            self._body += self._buffer[line + 2 : line + 2 + size]
            del self._buffer[: line + 2 + size + 2]
        return False

    # what goes out

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        promised_bytes: int | None = None,
    ) -> None:
        """A whole answer, if the client is still there.

        `promised_bytes` states another length than the body's, to break off on purpose.
        """
        request = self._answering
        if request is None:
            return
        lines = _status_lines(request, status, content_type, headers)
        lines.append(f"content-length: {len(body) if promised_bytes is None else promised_bytes}\r\n\r\n")
        self._write("".join(lines).encode("latin-1") + (b"" if request.method == "HEAD" else body))
        if promised_bytes is None:
            self._answered()
        else:
            self.close()

    def start_stream(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """The head of an answer that comes in pieces, if the client is still there."""
        request = self._answering
        if request is None:
            return
        self._chunked = not request.http_1_0
        lines = _status_lines(request, 200, content_type, {"cache-control": "no-cache"}, keep_alive=self._chunked)
        lines.append("transfer-encoding: chunked\r\n\r\n" if self._chunked else "\r\n")
        self._write("".join(lines).encode("latin-1"))

    def frame(self, piece: bytes) -> bytes:
        """A piece of a stream as it goes over the wire."""
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece

    def write(self, frames: bytes) -> None:
        """Send frames of a stream."""
        self._write(frames)

    def end_stream(self, frames: bytes = b"") -> None:
        """Send the last frames of a stream."""
        self._write(frames + (b"0\r\n\r\n" if self._chunked else b""))
        self._answered(keep_alive=self._chunked)

    def close(self) -> None:
        """Close it, whatever was promised."""
        self._answering = None
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> bool:
        """Close it without sending what waits; whether it was open."""
        if self._transport is None:
            return False
        self._transport.abort()
        return True

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _answered(self, keep_alive: bool = True) -> None:
        request, self._answering, self.on_lost = self._answering, None, None
        if request is None or not (request.keep_alive and keep_alive):
            self.close()
        else:
            self._read()

    def _lose(self) -> None:
        on_lost, self.on_lost, self._answering = self.on_lost, None, None
        if on_lost is not None:
            on_lost()


def _status_lines(
    request: HttpRequest,
    status: int,
    content_type: str,
    headers: Mapping[str, str] | None,
    keep_alive: bool = True,
) -> list[str]:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in (headers or {}).items()]
    if not (request.keep_alive and keep_alive):
        lines.append("connection: close\r\n")
    elif request.http_1_0:
        lines.append("connection: keep-alive\r\n")
    return lines
