"""The simulated server: requests of OpenAI's API in, words at the simulated engine's pace out.

HTTP and the engine share one event loop. That is enough to keep them from disturbing each other: a step's instants
follow from the engine's clock alone, so HTTP work can make a token late by the length of that work, and never moves a
later step. Where a client's figures matter, run the server in a process of its own, as `servinglab serve-sim` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from servinglab.base.checks import check_number
from servinglab.base.event_loop import precise_loop
from servinglab.base.version import __version__
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import Scheduler
from servinglab.sim_server import faults as fault_kinds
from servinglab.sim_server.api import ApiError, Ask, Ending, Wording, ending, error_body, prefix_key, read_ask, to_json
from servinglab.sim_server.faults import Fault, Faults, parse_fault
from servinglab.sim_server.http import Connection, HttpRequest
from servinglab.sim_server.listener import Listener
from servinglab.sim_server.live import LiveEngine, LiveRequest, LoopClock
from servinglab.sim_server.prometheus import Metrics
from servinglab.sim_server.words import VOCABULARY, word
from servinglab.step_time.affine import StepTime
from servinglab.step_time.prompt_attention import LONG_PROMPT, unpriced_attention
from servinglab.workload.lengths import Law

_DRAWN_AT_ONCE = 1024
_RETRY_AFTER = {"retry-after": "1"}
_LOG = logging.getLogger("servinglab")


@dataclass(frozen=True)
class Settings:
    """What a simulated server is.

    Parameters
    ----------
    scheduler, step_time, kv, pots
        As `servinglab.simulate` takes them.
    speed : float
        How many seconds of the engine pass in one second, > 0.
    model : str
        The model's name in the API.
    output_tokens : Law or None
        How long answers are where `max_tokens` doesn't cut them; None: as long as `max_tokens` says.
    seed : int
        Of the lengths and the faults.
    max_queue : int or None
        With so many requests in the line, others get 503. At least 1.
    faults : sequence of Fault or str
        Texts are read by `servinglab.sim_server.faults.parse_fault`.
    chars_per_token : int or None
        Characters of text that count as one token; None: each word counts as one.
    stream_interval : int
        Tokens in an event of a stream, but for the first, which has one, and the last. At least 1.
    """

    scheduler: Scheduler
    step_time: StepTime
    kv: HasBlocks | None = None
    pots: int | None = 1
    speed: float = 1.0
    model: str = "servinglab"
    output_tokens: Law | None = None
    seed: int = 0
    max_queue: int | None = None
    faults: Sequence[Fault | str] = ()
    chars_per_token: int | None = None
    stream_interval: int = 1

    def __post_init__(self) -> None:
        check_number("speed", self.speed, gt=0, le=1e9)
        for name in ("max_queue", "chars_per_token", "stream_interval"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), ge=1, integer=True)


class SimServer:
    """A server on the running event loop.

    Parameters
    ----------
    settings : Settings

    Attributes
    ----------
    url : str
        Once it has started.
    metrics : Metrics
    longest_prompt : int
        Tokens, of those that were accepted so far.
    """

    def __init__(self, settings: Settings) -> None:
        self.url = ""
        self.longest_prompt = 0
        self.metrics = Metrics(settings.model)
        self._settings = settings
        faults = [parse_fault(fault) if isinstance(fault, str) else fault for fault in settings.faults]
        self._faults = Faults(faults, settings.seed)
        clock = LoopClock(settings.speed)
        self._engine = LiveEngine(
            settings.scheduler, settings.step_time, settings.kv, settings.pots, clock, self.metrics, settings.speed
        )
        self._rng = np.random.default_rng(settings.seed)
        self._drawn: list[int] = []
        self._count = 0
        self._connections: set[Connection] = set()
        self._listener = Listener(partial(Connection, self._route, error_body, self._connections), self.metrics)
        self._closing = False
        self._routes: dict[str, tuple[str, Callable[[Connection, HttpRequest], None]]] = {
            "/v1/completions": ("POST", partial(self._answer, chat=False)),
            "/v1/chat/completions": ("POST", partial(self._answer, chat=True)),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", lambda connection, request: connection.respond(200, b"")),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics_text),
            "/faults": ("GET, PUT", self._admin_faults),
        }

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; OSError if the address can't be had."""
        await self._listener.listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.port}"

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop listening, let the answers under way end for at most so long, and close what is left."""
        self._closing = self._engine.closing = True
        await self._listener.close()
        self._engine.wake()
        ends = time.monotonic() + drain_s
        while not self._engine.idle and time.monotonic() < ends:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            await asyncio.sleep(0.001)

    # the endpoints

    def _route(self, connection: Connection, request: HttpRequest) -> None:
        path = request.path.partition("?")[0]
        try:
            if path not in self._routes:
                raise ApiError(404, f"no {path} here; there are {', '.join(self._routes)}")
            methods, endpoint = self._routes[path]
            allowed = methods.replace("GET", "GET, HEAD")
            if request.method not in allowed.split(", "):
                raise ApiError(405, f"{path} takes {methods}; got {request.method}", None, {"allow": allowed})
            endpoint(connection, request)
        except ApiError as error:
            body = error_body(error.status, str(error), error.param)
            connection.respond(error.status, body, headers=error.headers)

    def _models(self, connection: Connection, request: HttpRequest) -> None:
        longest = getattr(self._settings.scheduler, "max_model_len", None)
        row = {
            "id": self._settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "servinglab",
            "root": self._settings.model,
            "max_model_len": longest,
        }
        connection.respond(200, to_json({"object": "list", "data": [row]}))

    def _version(self, connection: Connection, request: HttpRequest) -> None:
        connection.respond(200, to_json({"version": f"servinglab {__version__}"}))

    def _metrics_text(self, connection: Connection, request: HttpRequest) -> None:
        engine = self._engine
        kv = self._settings.kv
        text = self.metrics.text(
            engine.running, engine.waiting, engine.kv_usage, engine.prefix_cache_hits, len(self._connections),
            self._faults.count,
            {} if kv is None else {"block_size": str(kv.block_size), "num_gpu_blocks": str(kv.usable_blocks + 1)},
        )  # fmt: skip
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _admin_faults(self, connection: Connection, request: HttpRequest) -> None:
        if request.method == "PUT":
            try:
                wanted = json.loads(request.body)
                texts, seed = wanted["faults"], wanted.get("seed", 0)
                self._faults.set([parse_fault(text) for text in texts], seed)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                message = f'the body must be like {{"faults": ["cut:p=0.1"], "seed": 1}}: {error}'
                raise ApiError(400, message, "faults") from None
        active = [
            {"kind": fault.kind, "p": fault.p, "every": fault.every, "seconds": fault.seconds}
            for fault in self._faults.active
        ]
        connection.respond(200, to_json({"faults": active, "count": dict(self._faults.count)}))

    def _answer(self, connection: Connection, request: HttpRequest, chat: bool) -> None:
        settings, engine = self._settings, self._engine
        if self._closing:
            raise ApiError(503, "the server is shutting down")
        if connection.spare:
            self.metrics.connection_rejections += 1
            raise ApiError(503, "overloaded: no open files are left for connections", None, _RETRY_AFTER)
        ask = read_ask(request.body, chat, settings.model, settings.chars_per_token)
        try:
            fault = self._faults.draw(request.headers.get(fault_kinds.HEADER))
        except ValueError as error:
            raise ApiError(400, str(error), fault_kinds.HEADER) from None
        if fault is not None and fault.kind == "429":
            raise ApiError(429, "rate limit reached (on purpose)", None, {"retry-after": f"{fault.seconds:g}"})
        if fault is not None and fault.kind == "500":
            raise ApiError(500, "something broke (on purpose)")
        if fault is not None and fault.kind == "refuse":
            self._listener.refuse(fault.seconds)
        end = ending(ask, self._draw_length())
        why = engine.why_never(len(ask.pieces), end.tokens)
        if why is not None:
            raise ApiError(422, f"this request can never be served: {why}", "messages" if chat else "prompt")
        if settings.max_queue is not None and engine.waiting >= settings.max_queue:
            self.metrics.admission_rejections += 1
            message = f"overloaded: {engine.waiting} requests wait, and {settings.max_queue} may"
            raise ApiError(503, message, None, _RETRY_AFTER)
        self._see(len(ask.pieces))
        number = self._count
        self._count += 1
        wording = Wording(ask, number, settings.model, end.characters)
        answer = _Answer(connection, ask, wording, end, fault, settings.stream_interval)
        key = prefix_key(ask.pieces, engine.block_size, number) if engine.shares_prefixes else None
        live = LiveRequest(
            len(ask.pieces), end.tokens, answer.on_tokens, ask.priority, end.reason, max_tokens=ask.max_tokens, key=key
        )
        connection.on_lost = answer.give_up = partial(engine.leave, live)
        engine.submit(live)
        answer.start()  # after: to the engine the request is here before its answer's head is written

    @property
    def unpriced_attention(self) -> str | None:
        """As `servinglab.Result.unpriced_attention`, of the prompts so far."""
        return unpriced_attention(self.longest_prompt, self._settings.step_time)

    def _see(self, prompt_tokens: int) -> None:
        """Keep the longest; warn of the first that is longer than the step time can price."""
        before, self.longest_prompt = self.longest_prompt, max(self.longest_prompt, prompt_tokens)
        if before <= LONG_PROMPT < prompt_tokens and (note := self.unpriced_attention) is not None:
            _LOG.warning("servinglab: %s (so far)", note)

    def _draw_length(self) -> int | None:
        law = self._settings.output_tokens
        if law is None:
            return None
        if not self._drawn:
            self._drawn = np.rint(law.sample(self._rng, _DRAWN_AT_ONCE)).astype(int).tolist()[::-1]
        return self._drawn.pop()


class _Answer:
    """Puts one request's tokens into words and onto the wire, or does what a fault has it do."""

    def __init__(
        self,
        connection: Connection,
        ask: Ask,
        wording: Wording,
        end: Ending,
        fault: Fault | None,
        interval: int,
    ) -> None:
        self._connection, self._ask, self._wording = connection, ask, wording
        self._tokens, self._reason = end.tokens, end.reason
        self._repeats = end.characters is None and not ask.usage_per_chunk  # events with equal words are equal
        self._fault = fault.kind if fault is not None else ""
        self._interval = interval
        self._sent = self._pending = 0  # tokens that are out, and that wait for more to go out with
        self._held: list[tuple[int, bool]] | None = None  # tokens that wait for a slow first byte
        self._silent = False
        self._frames: dict[int, bytes] = {}
        self._breaks_at = end.tokens // 2 if self._fault in ("hang", "cut", "malformed", "utf8") else -1
        self.give_up: Callable[[], None] = lambda: None
        self._slow_s = fault.seconds if fault is not None and fault.kind == "slow" else None

    def start(self) -> None:
        """Write the head, unless it is to be slow."""
        if self._slow_s is not None:
            self._held = []
            asyncio.get_running_loop().call_later(self._slow_s, self._release)
        elif self._ask.stream:
            self._connection.start_stream()

    def on_tokens(self, count: int, done: bool) -> None:
        """Tokens came from the engine."""
        if self._held is not None:
            self._held.append((count, done))
        elif self._ask.stream:
            self._stream(count, done)
        elif done:
            self._whole()

    def _release(self) -> None:
        held, self._held = self._held or [], None
        if self._ask.stream:
            self._connection.start_stream()
        for count, done in held:
            self.on_tokens(count, done)

    def _stream(self, count: int, done: bool) -> None:
        if self._silent:
            return
        connection, wording = self._connection, self._wording
        self._pending += count
        pieces: list[bytes] = []
        while self._pending and (done or not self._sent or self._pending >= self._interval):
            size = min(self._pending, self._interval) if self._sent else 1
            if self._sent <= self._breaks_at < self._sent + size and not self._break(pieces):
                return
            if self._sent == 0 and self._ask.chat:
                pieces.append(connection.frame(wording.first()))
            if self._sent + size == self._tokens:
                pieces.append(connection.frame(wording.event(self._sent, size, self._reason)))
            else:
                pieces.append(self._frame(self._sent, size))
            self._sent += size
            self._pending -= size
        if not done:
            if pieces:
                connection.write(b"".join(pieces))
            return
        if self._ask.include_usage:
            pieces.append(connection.frame(wording.usage(self._tokens)))
        pieces.append(connection.frame(wording.done()))
        connection.end_stream(b"".join(pieces))

    def _frame(self, place: int, size: int) -> bytes:
        """An event on the wire; of events of one token, those with equal words are put together once."""
        if size > 1 or not self._repeats:
            return self._connection.frame(self._wording.event(place, size, None))
        same = place and 1 + (place - 1) % len(VOCABULARY)
        frame = self._frames.get(same)
        if frame is None:
            frame = self._frames[same] = self._connection.frame(self._wording.event(place, 1, None))
        return frame

    def _break(self, pieces: list[bytes]) -> bool:
        """The fault in the middle of a stream; False if nothing follows."""
        if self._fault in ("hang", "cut"):
            self._connection.write(b"".join(pieces))
            self._silent = True
            if self._fault == "cut":
                self.give_up()
                self._connection.close()
            return False
        self._breaks_at = -1
        event = self._wording.malformed() if self._fault == "malformed" else self._wording.not_utf8()
        pieces.append(self._connection.frame(event))
        return True

    def _whole(self) -> None:
        body = self._wording.whole(self._tokens, self._reason)
        if self._fault == "hang":
            return
        if self._fault == "cut":
            self._connection.respond(200, body[: len(body) // 2], promised_bytes=len(body))
            return
        if self._fault == "malformed":
            body = body[: len(body) // 2]
        elif self._fault == "utf8":
            body = body.replace(word(0).encode(), b"\xc3\x28\xff", 1)
        self._connection.respond(200, body)


async def run(
    settings: Settings, host: str, port: int, started: Callable[[SimServer], Any], stop: asyncio.Event, drain_s: float
) -> None:
    """Serve until `stop` is set; raise what a step time of one's own raised."""
    server = SimServer(settings)
    loop = asyncio.get_running_loop()
    broke: list[BaseException] = []

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:  # of the engine's own calls; a connection's trouble is that connection's
            broke.append(context["exception"])
            stop.set()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
    await server.start(host, port)
    try:
        started(server)
        await stop.wait()
    finally:
        await server.close(0.0 if broke else drain_s)
    if broke:
        raise broke[0]


@contextmanager
def serve(
    scheduler: Scheduler, step_time: StepTime, *, host: str = "127.0.0.1", port: int = 0, **settings: Any
) -> Iterator[str]:
    """Run a simulated server in a thread of this process.

    Parameters
    ----------
    scheduler, step_time
        As `servinglab.simulate` takes them.
    host : str
    port : int
        0: one that is free.
    **settings
        As `Settings` takes them.

    Yields
    ------
    str
        The server's URL, without a path.

    Raises
    ------
    ValueError
        If a setting breaks its rule.
    OSError
        If the address can't be had.

    Examples
    --------
    >>> import urllib.request
    >>> from servinglab import AffineStep, ContinuousBatching
    >>> with serve(ContinuousBatching(8), AffineStep(0.001, 0.0), speed=1000) as url:
    ...     ask = urllib.request.Request(f"{url}/v1/completions", b'{"prompt": "one two", "max_tokens": 3}')
    ...     with urllib.request.urlopen(ask) as response:
    ...         print(json.load(response)["usage"])
    {'prompt_tokens': 2, 'completion_tokens': 3, 'total_tokens': 5}
    """
    wanted = Settings(scheduler, step_time, **settings)
    ready = threading.Event()
    state: dict[str, Any] = {}

    async def main() -> None:
        state["loop"], state["stop"] = asyncio.get_running_loop(), asyncio.Event()

        def started(server: SimServer) -> None:
            state["url"] = server.url
            ready.set()

        await run(wanted, host, port, started, state["stop"], drain_s=0.0)

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=precise_loop) as runner:
                runner.run(main())
        except BaseException as error:
            state["error"] = error
        finally:
            ready.set()

    worker = threading.Thread(target=thread, name="serve-sim", daemon=True)
    worker.start()
    ready.wait()
    try:
        if "error" in state:
            raise state["error"]
        yield state["url"]
    finally:
        if "url" in state and worker.is_alive():
            state["loop"].call_soon_threadsafe(state["stop"].set)
        worker.join()
    if "error" in state:
        raise state["error"]
