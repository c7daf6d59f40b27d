"""The simulator's own loops, stepped in real time.

`servinglab.engine.reference`'s `TokenLoop` and `PotLoop` decide who is in a step and how long it
lasts. `LiveEngine` lets the time pass between: it sleeps until a step is due, hands its tokens over and has the next
one begin. A step begins at the instant when the one before it ended by the engine's clock, however late the machine
noticed. So lateness never adds up: a late step is handed over late, and the next one is due when it would have been.

A request that comes after a step was due joins the step after the next one, even if nobody has noticed yet that it is
due: as it would in the simulator. If this machine can't keep pace, the engine's clock lags behind; `step_lateness` of
the metrics says by how much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from servinglab.base.checks import check_number
from servinglab.engine.protocol import Given, Request
from servinglab.engine.reference.pots import PotLoop, check_engine, check_pots, counts_tokens
from servinglab.engine.reference.tokens import TokenLoop
from servinglab.metrics import exposed
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import Scheduler
from servinglab.sim_server.prometheus import Metrics
from servinglab.step_time.affine import StepTime
from servinglab.workload.outcomes import NEVER


class Clock(Protocol):
    """What the engine asks of time."""

    def now_ns(self) -> int:
        """Nanoseconds of the engine's time."""
        ...

    def call_at(self, instant_ns: int, then: Callable[[], None]) -> Any:
        """Have `then` called at this instant; returns something to `cancel`."""
        ...

    def call_soon(self, then: Callable[[], None]) -> None:
        """Have `then` called after all that has come by now."""
        ...


class LoopClock:
    """The clock of the running event loop, `speed` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = check_number("speed", speed, gt=0, le=1e9)
        self._loop = asyncio.get_running_loop()
        self._start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return int((time.monotonic_ns() - self._start_ns) * self.speed)

    def call_at(self, instant_ns: int, then: Callable[[], None]) -> Any:
        return self._loop.call_at((self._start_ns + instant_ns / self.speed) / 1e9, then)

    def call_soon(self, then: Callable[[], None]) -> None:
        self._loop.call_soon(then)


@dataclass(eq=False)
class LiveRequest:
    """A request in the engine.

    Attributes
    ----------
    prompt_tokens, output_tokens, priority : int
    on_tokens : callable
        Called with (how many tokens came, whether they are the last).
    reason : {"length", "stop"}
        Why it will end.
    max_tokens : int
        What its sender would have taken, for the metrics.
    key : callable or None
        What its k-th block of KV cache holds, for the prefix cache; None: what nobody else holds.
    number, arrival_ns, first_ns, last_ns
        Set by the engine.
    """

    prompt_tokens: int
    output_tokens: int
    on_tokens: Callable[[int, bool], None]
    priority: int = 0
    reason: str = "length"
    max_tokens: int = 0
    key: Callable[[int], Hashable] | None = None
    number: int = NEVER
    arrival_ns: int = NEVER
    first_ns: int = NEVER
    last_ns: int = NEVER
    inside: bool = field(default=False, repr=False)


class LiveEngine:
    """Serves requests as they come.

    Parameters
    ----------
    scheduler, step_time, kv, pots
        As `servinglab.simulate` takes them.
    clock : Clock
    metrics : Metrics
    speed : float
        By which the metrics divide the engine's time.

    Attributes
    ----------
    closing : bool
        Whether nobody else will come: static batching then cooks its last batch by its own rule.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        step_time: StepTime,
        kv: HasBlocks | None,
        pots: int | None,
        clock: Clock,
        metrics: Metrics,
        speed: float = 1.0,
    ) -> None:
        check_engine(scheduler, step_time)
        self.closing = False
        self._has_pool = kv is not None
        self._clock, self._metrics, self._per_s = clock, metrics, 1e9 * speed
        self._tokens: TokenLoop | None = None
        self._pots: PotLoop | None = None
        if counts_tokens(scheduler, check_pots(pots), kv):
            self._tokens = TokenLoop(scheduler, step_time, kv)
        else:
            self._pots = PotLoop(scheduler, step_time, pots, lambda: not self.closing)
        self._loop: Any = self._tokens or self._pots
        self._here: dict[int, LiveRequest] = {}
        self._inbox: list[LiveRequest] = []
        self._count = self._last_ns = 0
        self._timer: Any = None
        self._soon = False

    @property
    def running(self) -> int:
        """Requests in execution."""
        if self._tokens is not None:
            return len(self._tokens.engine.running)
        assert self._pots is not None
        return sum(order.owed for pot in self._pots.pots for order in pot.members)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        waiting = len(self._tokens.engine.waiting) if self._tokens is not None else self._loop.waiting
        return waiting + len(self._inbox)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, 0 to 1; 0 where none are modelled."""
        if self._tokens is None or not self._has_pool:
            return 0.0
        return self._tokens.engine.used_blocks / self._tokens.engine.num_blocks

    @property
    def prefix_cache_hits(self) -> int:
        """Tokens found in the prefix cache."""
        return self._tokens.engine.hit_tokens if self._tokens is not None else 0

    @property
    def block_size(self) -> int:
        """Tokens in a block of KV cache."""
        return self._tokens.engine.block_size if self._tokens is not None else 1

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests whose prompts begin alike share blocks."""
        return self._tokens is not None and self._tokens.engine.rules.prefix_caching

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return not self._here

    def why_never(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why such a request can never be served to its end; None if it can."""
        return self._tokens.engine.why_never(prompt_tokens, output_tokens) if self._tokens is not None else None

    def submit(self, request: LiveRequest) -> None:
        """A request comes, now."""
        request.number = self._count
        self._count += 1
        request.arrival_ns = self._clock.now_ns()
        self._here[request.number] = request
        self._inbox.append(request)
        self.wake()

    def leave(self, request: LiveRequest) -> None:
        """A request's client has gone: it isn't computed any further."""
        if self._here.pop(request.number, None) is None:
            return
        self._metrics.request_success["abort"] += 1
        if request.inside:
            self._loop.abort(request.number, self._last_ns)
        else:
            self._inbox.remove(request)
        self._forget(request)

    def wake(self) -> None:
        """Look again, soon, whether something can begin."""
        if not self._soon:
            self._soon = True
            self._clock.call_soon(self._turn)

    def _turn(self) -> None:
        """End the step that is due, if one is, and hand its tokens over; let in who has come; begin what can begin."""
        self._soon = False
        now = self._clock.now_ns()
        if self._due(now):
            due = self._loop.next_ns()
            self._last_ns = due
            given = self._loop.end(due)
            if given:  # at once: deciding about the next step takes a while, which its own instants don't show
                self._metrics.observe(exposed.STEP_LATENESS, (now - due) / self._per_s)
                self._hand_over(given, due)
            self._let_in(due)
        elif not self._inbox:
            self._admit(max(self._last_ns, now), [])  # a door that closes may let a last batch begin
        while self._inbox and not self._due(now):  # each at its own instant
            self._let_in(max(self._last_ns, self._inbox[0].arrival_ns))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due(now):
            self.wake()
        elif (upcoming := self._loop.next_ns()) is not None:
            self._timer = self._clock.call_at(upcoming, self._turn)

    def _due(self, now: int) -> bool:
        """Whether a step ends by now."""
        upcoming = self._loop.next_ns()
        return upcoming is not None and upcoming <= now

    def _let_in(self, at: int) -> None:
        """Who has come by an instant joins at it."""
        together = [request for request in self._inbox if request.arrival_ns <= at]
        self._inbox = self._inbox[len(together) :]
        self._admit(at, together)

    def _admit(self, at: int, requests: list[LiveRequest]) -> None:
        self._last_ns = at
        for request in requests:
            request.inside = True
            self._loop.join(
                Request(
                    request.number, request.prompt_tokens, request.output_tokens, request.priority, key=request.key
                ),
                at,
            )
            self._metrics.prefix_cache_queries += request.prompt_tokens if self.shares_prefixes else 0
        for row in self._loop.begin(at):
            self._metrics.num_preemptions += row["preempted"]
            self._metrics.observe(exposed.ITERATION_TOKENS, row["prefill_tokens"] + row["decode_tokens"])

    def _hand_over(self, given: list[Given], at: int) -> None:
        """Hand a step's tokens over, first tokens first: what the writing takes would be a larger share of a TTFT."""
        metrics, per_s = self._metrics, self._per_s
        for number, tokens, done, _row in sorted(given, key=lambda each: self._here[each.number].first_ns):
            request = self._here[number]
            metrics.generation_tokens += tokens
            if request.first_ns == NEVER:
                request.first_ns = at
                metrics.prompt_tokens += request.prompt_tokens
                metrics.observe(exposed.TTFT, max(0, at - request.arrival_ns) / per_s)
                if tokens > 1:
                    metrics.observe(exposed.ITL, 0.0, tokens - 1)
            else:
                metrics.observe(exposed.ITL, (at - request.last_ns) / per_s, tokens)
            request.last_ns = at
            if done:
                del self._here[number]
                self._finished(request)
            request.on_tokens(tokens, done)

    def _finished(self, request: LiveRequest) -> None:
        metrics = self._metrics
        scheduled = self._loop.scheduled_ns[request.number]
        self._forget(request)
        arrival, first, last = request.arrival_ns, request.first_ns, request.last_ns
        for family, begin, end in (
            (exposed.E2E, arrival, last),
            (exposed.QUEUE_TIME, arrival, scheduled),
            (exposed.INFERENCE_TIME, scheduled, last),
            (exposed.PREFILL_TIME, scheduled, first),
            (exposed.DECODE_TIME, first, last),
        ):
            metrics.observe(family, max(0, end - begin) / self._per_s)
        if request.output_tokens > 1:
            metrics.observe(exposed.TPOT, (last - first) / self._per_s / (request.output_tokens - 1))
        metrics.observe(exposed.REQUEST_PROMPT_TOKENS, request.prompt_tokens)
        metrics.observe(exposed.REQUEST_OUTPUT_TOKENS, request.output_tokens)
        metrics.observe(exposed.REQUEST_MAX_TOKENS, request.max_tokens)
        metrics.request_success[request.reason] += 1

    def _forget(self, request: LiveRequest) -> None:
        """The loop keeps what it noted of a request until it's told to forget it."""
        self._loop.scheduled_ns.pop(request.number, None)
        self._loop.preemptions.pop(request.number, None)
