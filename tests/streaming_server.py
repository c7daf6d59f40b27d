"""A small OpenAI-compatible server for tests: it streams what it is told to, with the faults that it is told to make.

One thread, plain asyncio, HTTP by hand: a fault must be able to break the protocol itself. What a request gets is
chosen by its body: `faults` is a function from it to a name below.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

FAULTS = (
    "", "429", "500", "400", "slow_first", "hang", "cut", "malformed", "not_utf8", "disconnect", "stream_error",
    "empty", "no_usage", "two_tokens", "no_end", "302", "307", "304", "500_cut", "500_hang", "drip", "abort", "error",
    "no_reason", "soup", "error_event", "error_body", "not_streamed",
)  # fmt: skip


class StreamingServer:
    """A context: serves on a free port from a thread of its own.

    Parameters
    ----------
    chunks : int
        Of each answer; one token each.
    gap_s : float
        Before each chunk.
    faults : callable
        From the body of a request to one of `FAULTS`.
    """

    def __init__(
        self, chunks: int = 3, gap_s: float = 0.0, faults: Callable[[dict[str, Any]], str] = lambda body: ""
    ) -> None:
        self.chunks, self.gap_s, self.faults = chunks, gap_s, faults
        self.bodies: list[dict[str, Any]] = []
        self.cookies = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StreamingServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False to close the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if head.startswith("GET"):
            return self._get(head.split()[1], writer)
        asked = json.loads(body)
        self.bodies.append(asked)
        self.cookies += "\r\ncookie:" in head.lower()
        fault = self.faults(asked)
        if fault == "disconnect":
            return False
        if fault.isdigit():
            more = {"429": "Retry-After: 7\r\n", "302": f"Location: {self.url}/elsewhere\r\n"}
            more["307"] = f"Location: {head.split()[1]}\r\n"  # here: who follows it is heard again
            length = 0 if fault == "304" else 4
            told = f"{more.get(fault, '')}Content-Length: {length}\r\n\r\n{'soup'[:length]}"
            writer.write(f"HTTP/1.1 {fault} No\r\n{told}".encode())
            return True
        if fault.startswith("500_"):
            writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 40\r\n\r\nsoup")
            await writer.drain()
            await asyncio.sleep(3600 if fault == "500_hang" else 0)
            return False
        if fault in ("error_body", "not_streamed"):
            choice = {"message": {"content": "soup"}, "finish_reason": "stop"}
            whole = {"choices": [choice]} if fault == "not_streamed" else {"error": {"message": "no soup"}}
            text = json.dumps(whole)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: replica=3; Path=/\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if fault == "slow_first":
            await asyncio.sleep(3600)
        gap_s, chunks = (0.2, 1000) if fault == "drip" else (self.gap_s, 0 if fault == "empty" else self.chunks)
        for k in range(chunks):
            if gap_s:
                await asyncio.sleep(gap_s)
            _send(writer, _chunk(asked, f" soup{k}", None))
            await writer.drain()
            if k == 1:
                if fault == "hang":
                    await asyncio.sleep(3600)
                if fault == "cut":
                    return False
                if fault == "malformed":
                    _send(writer, b'data: {"choices": [{"delta"\n\n')
                if fault == "not_utf8":
                    _send(writer, b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n')
                if fault == "stream_error":
                    _send(writer, b'data: {"error": {"message": "CUDA out of memory"}}\n\n')
                if fault == "error_event":
                    _send(writer, b'event: error\ndata: {"message": "CUDA out of memory"}\n\n')
                if fault in ("abort", "error"):
                    break
        if fault != "no_reason":
            _send(writer, _chunk(asked, "", fault if fault in ("abort", "error", "soup") else "stop"))
        if fault != "no_usage":
            tokens = {"empty": 0, "abort": 2, "error": 2, "two_tokens": 2 * self.chunks}.get(fault, self.chunks)
            usage = {"prompt_tokens": 11, "completion_tokens": tokens, "total_tokens": 11 + tokens}
            _send(writer, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        _send(writer, b"data: [DONE]\n\n")
        if fault == "no_end":
            await asyncio.sleep(3600)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _get(self, path: str, writer: asyncio.StreamWriter) -> bool:
        pages = {
            "/v1/models": json.dumps({"data": [{"id": "soup-1b", "max_model_len": 4096}]}),
            "/version": json.dumps({"version": "0.0-test"}),
            "/metrics": "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.25\n"
            "vllm:num_preemptions_total 3\n",
        }
        page = pages.get(path)
        status, text = ("404 Not Found", "") if page is None else ("200 OK", page)
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        return True


def _chunk(asked: dict[str, Any], text: str, reason: str | None) -> bytes:
    chat = "messages" in asked
    choice = {"index": 0, "finish_reason": reason, **({"delta": {"content": text}} if chat else {"text": text})}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
