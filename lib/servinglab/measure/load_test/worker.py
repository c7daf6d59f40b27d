"""One process that sends requests when they are due and times what comes back.

The load generator starts a few of these: ``python -m servinglab.measure.load_test.worker``. Each reads commands from
stdin, a JSON object a line, and writes what happened to stdout, one line each:

- ``{"do": "setup", ...}`` comes first; the answer is ``ready``.
- ``{"do": "stage", ...}`` gives a list of requests; the answer is ``loaded``. ``{"do": "start", ...}`` says when their
  clock starts; then each request is written as it ends, as `servinglab.measure.load_test.records` describes, and
  ``{"over": ...}`` says how the process itself fared.
- ``{"do": "stop"}`` breaks off what is under way; the end of stdin does, too.
- ``{"failed": ...}`` says why the process, or a part of it, can't go on: whoever started it ends the run.

The clock is `time.perf_counter_ns`, which processes of one machine share. Bytes are stamped as they come and understood
only when the stream has ended, so that understanding one answer delays no other one's stamps by much.

How the process fared is measured because a client that is late reports a slow server: how late requests were sent, how
late the event loop was for an appointment every 20 ms (what it reads is stamped that late, too), and how many seconds
of a core it used.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from servinglab.base.event_loop import precise_loop
from servinglab.base.open_files import open_more_files
from servinglab.measure.load_test.prompts import Prompts
from servinglab.measure.load_test.stream import FINISHED, Piece, TokenEnds, read_answer

LAG_EVERY_S = 0.02
WATCH_EVERY_S = 0.05
AFTER_DONE_S = 0.25  # for the end of a transfer whose answer is whole
_DONE = re.compile(rb"(?:^|\n)data: ?\[DONE\]\s*$")
_MOST_OF_AN_ERROR = 2000
_PATIENCE_S = 2.0

now_ns = time.perf_counter_ns


@dataclass(eq=False)
class _Flight:
    """A request under way."""

    task: asyncio.Task[None]
    job: dict[str, Any]
    scheduled_ns: int
    sent_ns: int | None = None
    status: int | None = None
    retry_after: str | None = None
    pieces: list[Piece] = field(default_factory=list)
    done: bool = False
    ended: bool = False
    fault: tuple[str, str] | None = None


class Worker:
    """Sends the requests of one stage after another."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        self.prompts = Prompts(setup["seed"], setup["shared_tokens"], setup["groups"])
        self.token_ends = _tokenizer(setup["tokenizer"])
        self.good_reasons = {reason.lower() for reason in setup["finish_reasons"]}
        self.flights: set[_Flight] = set()
        self.sending: asyncio.Task[None] | None = None
        self.stopped = False
        self.lags_s: list[float] = []

    async def run(self, commands: asyncio.Queue[dict[str, Any] | None]) -> None:
        """Serve commands until there are no more."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.setup["connect_timeout_s"])
        # common servers close what was idle for 5 s; whoever sends at that moment is disconnected
        connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=3600, keepalive_timeout=4)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self.setup["headers"]},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),  # each request is another user's: no balancer may keep them together
            trust_env=False,  # straight to the server, whatever proxies the environment names
        ) as self.session:
            await self._warm_up()
            gc.collect()
            gc.freeze()  # what is here stays: no need to look through it again in the middle of a run
            watch, lag = _task(self._watch()), _task(self._lag())
            write({"ready": True})
            stage: dict[str, Any] = {}
            stages: set[asyncio.Task[None]] = set()
            while True:
                command = await commands.get()
                if command is not None and command["do"] == "stage":
                    stage = command
                    write({"loaded": stage["stage"]})
                    continue
                if command is not None and command["do"] == "start":
                    stages = {_task(self._stage(stage | {"start_ns": command["start_ns"]}))}
                    continue
                self.stopped = True
                for task in [*(flight.task for flight in self.flights), *([self.sending] if self.sending else [])]:
                    task.cancel()
                if stages:
                    await asyncio.wait(stages)
                if command is None:
                    break
            watch.cancel()
            lag.cancel()

    async def _warm_up(self) -> None:
        """One harmless request, unrecorded: the first costs the client tens of ms that aren't the server's."""
        self._body({"request": 0, "prompt_tokens": 1, "max_tokens": 1}, -1)
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S), self._ask_for("GET", self.setup["models_url"]) as response:
                await response.read()

    # A stage

    async def _stage(self, stage: dict[str, Any]) -> None:
        self.lags_s = []
        cpu_s = time.process_time()
        self.sending = _task(self._closed(stage) if stage["closed"] else self._open(stage))
        await asyncio.wait([self.sending])
        while self.flights:
            await asyncio.wait([flight.task for flight in self.flights])
        lags = sorted(self.lags_s)
        write(
            {
                "over": stage["stage"],
                "cpu_s": time.process_time() - cpu_s,
                "lag_p99_s": lags[min(len(lags) - 1, int(0.99 * len(lags)))] if lags else None,
                "lag_max_s": lags[-1] if lags else None,
            }
        )

    async def _open(self, stage: dict[str, Any]) -> None:
        """Requests come whatever happens."""
        for job in stage["jobs"]:
            due_ns = stage["start_ns"] + job["offset_ns"]
            await _until(due_ns)
            _task(self._send(stage, job, due_ns))  # it keeps itself in flights
        await _until(stage["start_ns"] + (stage["duration_ns"] or 0))

    async def _closed(self, stage: dict[str, Any]) -> None:
        """Clients wait for their answers. `offset_ns` is the pause before a request."""
        left = deque(stage["jobs"])
        first = [left.popleft() for _ in range(min(stage["clients"], len(left)))]
        until_ns = stage["start_ns"] + stage["duration_ns"] if stage["duration_ns"] else None

        async def client(job: dict[str, Any]) -> None:
            due_ns = stage["start_ns"] + job["offset_ns"]
            while until_ns is None or due_ns < until_ns:
                await _until(due_ns)
                await _task(self._send(stage, job, due_ns))
                if self.stopped or not left:
                    return
                job = left.popleft()
                due_ns = now_ns() + job["offset_ns"]

        async with asyncio.TaskGroup() as group:
            for job in first:
                group.create_task(client(job))

    # A request

    async def _send(self, stage: dict[str, Any], job: dict[str, Any], due_ns: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        flight = _Flight(task, job, due_ns)
        self.flights.add(flight)
        try:
            await self._ask(flight, stage["session"])
        except asyncio.CancelledError:
            if flight.fault is None and not flight.done:
                flight.fault = ("interrupted", "the run was stopped")
        except Exception as error:
            flight.fault = _fault(error, flight)
        finally:
            self.flights.discard(flight)
        write(self._record(stage, flight))

    async def _ask(self, flight: _Flight, session: int) -> None:
        body = self._body(flight.job, session)
        flight.sent_ns = now_ns()
        async with self._ask_for("POST", self.setup["url"], data=body) as response:
            flight.status = response.status
            if response.status != 200:
                flight.retry_after = response.headers.get("Retry-After")
                flight.fault = (_by_status(response.status), await _told(response))
                return
            read, pieces = response.content.readany, flight.pieces
            while piece := await read():
                pieces.append((now_ns(), piece))
                if _DONE.search(piece[-32:]):
                    flight.done = True
            flight.ended = True

    def _ask_for(self, method: str, url: str, **more: Any) -> Any:
        """A request to this address and no other: one that is sent on would be two, timed as one."""
        return self.session.request(method, url, allow_redirects=False, **more)

    def _body(self, job: dict[str, Any], session: int) -> bytes:
        text = self.prompts.text(f"{session}.{job['request']}", job["request"], job["prompt_tokens"], job.get("blocks"))
        chat = self.setup["api"] == "chat"
        options: dict[str, Any] = {"include_usage": True}
        if self.setup["usage_per_chunk"]:
            options["continuous_usage_stats"] = True
        body = {
            "model": self.setup["model"],
            **({"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}),
            "max_tokens": job["max_tokens"],
            **({"user": job["user"]} if job.get("user") else {}),
            "stream": True,
            "stream_options": options,
            **self.setup["extra"],
        }
        return json.dumps(body).encode()

    def _record(self, stage: dict[str, Any], flight: _Flight) -> dict[str, Any]:
        job, origin_ns, ended_ns = flight.job, stage["origin_ns"], now_ns()
        answer = read_answer(flight.pieces, flight.ended, self.token_ends, self.good_reasons)
        outcome, detail = answer.outcome, answer.detail
        if outcome == "cut" and flight.fault is not None:  # why the stream stopped
            outcome, detail = flight.fault
        sent_ns = flight.sent_ns
        times, tokens = answer.chunk_ns, answer.chunk_tokens

        def seconds(at_ns: int | None, since_ns: int = origin_ns) -> float | None:
            return None if at_ns is None else round((at_ns - since_ns) / 1e9, 9)

        return {
            "request": job["request"],
            "stage": stage["stage"],
            "session": stage["session"],
            "request_class": job["request_class"],
            "user": job["user"],
            "deadline_s": job["deadline_s"],
            "scheduled_s": seconds(flight.scheduled_ns),
            "sent_s": seconds(sent_ns),
            "first_token_s": seconds(times[0]) if times else None,
            "finish_s": seconds(times[-1]) if times and outcome == FINISHED else None,
            "ended_s": seconds(ended_ns),
            "outcome": outcome,
            "http_status": flight.status,
            "detail": detail,
            "retry_after_s": _retry_after_s(flight.retry_after),
            "prompt_tokens_asked": job["prompt_tokens"],
            "max_tokens": job["max_tokens"],
            "prompt_tokens": answer.prompt_tokens,
            "output_tokens": answer.output_tokens,
            "tokens_from": answer.tokens_from,
            "chunk_tokens_from": answer.chunk_tokens_from,
            "finish_reason": answer.finish_reason,
            "chunk_s": [seconds(at_ns, sent_ns or 0) for at_ns in times],
            "chunk_tokens": None if tokens is None else list(tokens),
        }

    # Clocks

    async def _watch(self) -> None:
        """Give up on what takes too long."""
        limits_ns = {name: int(self.setup[name] * 1e9) for name in ("first_token_timeout_s", "idle_timeout_s")}
        total_ns = int(self.setup["timeout_s"] * 1e9)
        while True:
            due_ns = now_ns() + int(WATCH_EVERY_S * 1e9)
            await _until(due_ns)
            at_ns = now_ns()
            if at_ns - due_ns > WATCH_EVERY_S * 1e9:
                continue  # this process was held up, and what came meanwhile isn't read yet
            for flight in list(self.flights):
                if flight.sent_ns is None or flight.fault is not None:
                    continue
                last_ns = flight.pieces[-1][0] if flight.pieces else flight.sent_ns
                if flight.done:
                    if at_ns - last_ns > AFTER_DONE_S * 1e9:
                        flight.task.cancel()
                    continue
                if not flight.pieces and at_ns - last_ns > limits_ns["first_token_timeout_s"]:
                    flight.fault = ("first_token_timeout", f"no byte within {self.setup['first_token_timeout_s']:g} s")
                elif flight.pieces and at_ns - last_ns > limits_ns["idle_timeout_s"]:
                    flight.fault = ("hung", f"no byte for {self.setup['idle_timeout_s']:g} s")
                elif at_ns - flight.sent_ns > total_ns:
                    flight.fault = ("timeout", f"not whole within {self.setup['timeout_s']:g} s")
                else:
                    continue
                flight.task.cancel()

    async def _lag(self) -> None:
        """How late is the loop for an appointment?"""
        due_ns = now_ns()
        while True:
            due_ns += int(LAG_EVERY_S * 1e9)
            await _until(due_ns)
            late_ns = now_ns() - due_ns
            self.lags_s.append(late_ns / 1e9)
            if late_ns > LAG_EVERY_S * 1e9:
                due_ns = now_ns()  # missed appointments are one delay, not many


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that can't die in silence."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell_failure)
    return task


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        write({"failed": f"{type(error).__name__}: {error}"})


async def _until(due_ns: int) -> None:
    wait_ns = due_ns - now_ns()
    await asyncio.sleep(max(wait_ns, 0) / 1e9)


def _fault(error: Exception, flight: _Flight) -> tuple[str, str]:
    what = _line(str(error).encode()) or type(error).__name__
    if isinstance(error, (aiohttp.ConnectionTimeoutError, aiohttp.SocketTimeoutError)):
        return "connect_timeout", what
    if isinstance(error, aiohttp.ClientConnectorError):
        return ("refused" if isinstance(error.os_error, ConnectionRefusedError) else "connect_failed"), what
    if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        return ("disconnected" if flight.status is None else "cut"), what
    if isinstance(error, aiohttp.ClientResponseError):  # what came isn't HTTP
        return "malformed", what
    return "client_fault", f"{type(error).__name__}: {what}"


def _by_status(status: int) -> str:
    if status == 429:
        return "rate_limited"
    return {3: "redirected", 4: "client_error", 5: "server_error"}.get(status // 100, "unexpected_status")


async def _told(response: aiohttp.ClientResponse) -> str:
    """What a response without an answer says; empty if it says so too late, or breaks off: its status is known."""
    if response.status // 100 == 3:
        place = response.headers.get("Location")
        return f"to {_line(place.encode())}: not followed" if place else "without a Location"
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            return _line(await response.content.read(_MOST_OF_AN_ERROR))
    return ""


def _retry_after_s(text: str | None) -> float | None:
    """Seconds, from a number of them or a date; None for neither."""
    if text is None:
        return None
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        return parsedate_to_datetime(text).timestamp() - time.time()
    return None


def _line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())[:300]


def _tokenizer(path: str | None) -> TokenEnds | None:
    if path is None:
        return None
    from servinglab.measure.load_test.tokens import token_ends

    return token_ends(path)


def write(message: dict[str, Any]) -> None:
    """One line to whoever started this process."""
    try:
        sys.stdout.buffer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # it is gone: nobody is left to work for
        os._exit(1)


async def _main() -> None:
    open_more_files()
    setup = json.loads(await asyncio.to_thread(sys.stdin.readline))
    commands: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        try:
            for line in sys.stdin:
                loop.call_soon_threadsafe(commands.put_nowait, json.loads(line))
        except Exception as error:
            write({"failed": f"{type(error).__name__}: {error}"})
        finally:
            loop.call_soon_threadsafe(commands.put_nowait, None)

    threading.Thread(target=listen, daemon=True).start()
    await _task(Worker(setup).run(commands))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_main())
