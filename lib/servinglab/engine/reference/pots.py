"""The engine loop as a reader would write it: plain Python, one step at a time, no tricks.

`servinglab.simulate` gives the same result, to the last step and nanosecond, many times faster; this module is what
it is held against, and what a chapter may show. It also serves step times and schedulers of your own. `PotLoop` holds
the rules; `reference` lets the time of a simulation pass, `servinglab.sim_server` real time.

At one instant things happen in this order: steps that end, requests that come, pots that begin a step — empty pots
first, then those between two steps, each by number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from servinglab.base.checks import check_callback, check_number
from servinglab.engine.arrivals import Arrivals
from servinglab.engine.clock import Progress, drive
from servinglab.engine.protocol import Given, Request, View
from servinglab.engine.reference.stepwise import Stepwise, not_here
from servinglab.engine.reference.tokens import serve_tokens
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching, Scheduler
from servinglab.step_time.affine import ClosedForm, StepTime, asked_ns, attended_pairs, told_pairs
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import NEVER


@dataclass(eq=False)
class Order:
    """A request as the pots see it.

    Attributes
    ----------
    number : int
    prompt_tokens, output_tokens : int
    scale : float
        Multiplies the time of a step that it is in.
    tokens : int
        Those of the answer that have been cooked.
    owed : bool
        Whether some of the answer hasn't been handed over.
    arrival_ns : int
        Set when it joins the line.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    scale: float = 1.0
    tokens: int = 0
    owed: bool = True
    arrival_ns: int = NEVER

    @property
    def alive(self) -> bool:
        """Whether it still lacks tokens."""
        return self.tokens < self.output_tokens


@dataclass(eq=False)
class _Pot:
    number: int
    seats: int = 0  # that the present batch pays for, if it pays for empty ones
    members: list[Order] = field(default_factory=list)  # in the order of admission
    steps_done: int = 0  # of the present batch
    step_ends_ns: int | None = None  # None: between steps
    row: dict[str, Any] = field(default_factory=dict)


class PotLoop(Stepwise):
    """Pots that share one line, a step at a time; an `engine.protocol.Engine`.

    Parameters
    ----------
    scheduler : Scheduler
    step_time : StepTime
    pots : int or None
        None: as many as anyone could want.
    more_to_come : callable, optional
        Whether anyone may still come, which decides about an incomplete batch. None: until `close`.

    Attributes
    ----------
    lines : dict of deques of Order, by number
        Usually one; a scheduler with a method `line_of` has as many as it needs.
    pots : list
        Those that have been needed so far, if they are endless.

    Examples
    --------
    >>> from servinglab import AffineStep, ContinuousBatching
    >>> loop = PotLoop(ContinuousBatching(2), AffineStep(0.1, 0.0), 1)
    >>> loop.join(Request(7, prompt_tokens=0, output_tokens=1), 0)
    >>> [row["running"] for row in loop.begin(0)], loop.next_ns()
    ([1], 100000000)
    >>> [(given.number, given.tokens, given.done) for given in loop.end(100_000_000)]
    [(7, 1, True)]
    """

    counts_tokens = False

    def __init__(
        self,
        scheduler: Scheduler,
        step_time: StepTime,
        pots: int | None,
        more_to_come: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(scheduler)
        self.lines: dict[int, deque[Order]] = {}
        self.pots = [] if pots is None else [_Pot(number) for number in range(pots)]
        self._endless = pots is None
        self._step_time, self._ask = step_time, told_pairs(step_time)
        self._more_to_come = more_to_come or (lambda: not self.closed)
        self._here: dict[int, Order] = {}

    @property
    def waiting(self) -> int:
        """How many stand in the lines."""
        return sum(map(len, self.lines.values()))

    @property
    def cooking(self) -> bool:
        """Whether anyone is in a pot."""
        return any(pot.members for pot in self.pots)

    def view(self) -> View:
        """What can be seen at the present instant."""
        cooking = [pot.row for pot in self.pots if pot.step_ends_ns is not None]
        held = sum(
            order.prompt_tokens + order.tokens
            for pot in self.pots
            if pot.step_ends_ns is None
            for order in pot.members
            if order.alive
        )
        return View(
            now_ns=self._now,
            running=sum(order.owed for pot in self.pots for order in pot.members),
            waiting=self.waiting,
            kv_tokens=held + sum(row["kv_tokens"] for row in cooking),
            kv_blocks=0,
            step_tokens=sum(row["prefill_tokens"] + row["decode_tokens"] for row in cooking),
            done=self._done,
            preemptions=0,
        )

    def _due_ns(self) -> int | None:
        instants = [pot.step_ends_ns for pot in self.pots if pot.step_ends_ns is not None]
        has_empty_pot = self._endless or any(not pot.members for pot in self.pots)
        if isinstance(self.scheduler, DynamicBatching) and has_empty_pot:
            instants += [line[0].arrival_ns + self.scheduler.window_ns for line in self.lines.values() if line]
        return min(instants, default=None)

    def _enter(self, request: Request) -> None:
        order = Order(request.number, request.prompt_tokens, request.output_tokens, request.service_scale)
        order.arrival_ns = self._now
        self._here[order.number] = order
        self.lines.setdefault(self._line_of(order), deque()).append(order)

    def _drop(self, number: int) -> None:
        """It leaves the line, or what it gets in the pot is nobody's."""
        order = self._here.pop(number, None)
        if order is None:
            raise not_here(number)
        line = self.lines.get(self._line_of(order), deque())
        if order in line:
            line.remove(order)
        order.output_tokens, order.owed = order.tokens, False

    def _end(self, now: int) -> list[Given]:
        given = [given for pot in self.pots if pot.step_ends_ns == now for given in self._end_step(pot, now)]
        for each in given:
            if each.done:
                del self._here[each.number]
        return given

    def _begin_all(self, now: int) -> list[dict[str, Any]]:
        """Empty pots first."""
        begun: list[_Pot] = []
        between = [pot for pot in self.pots if pot.step_ends_ns is None]
        for pot in between:
            if not pot.members:
                self._fill(pot, now, begun)
        while self._endless and self.waiting and self._fill(new := _Pot(len(self.pots)), now, begun):
            self.pots.append(new)
        for pot in between:
            if pot.members and pot not in begun:
                self._fill(pot, now, begun)
        for pot in begun:
            pot.row["waiting"] = self.waiting
        return [pot.row for pot in begun]

    def _end_step(self, pot: _Pot, now: int) -> list[Given]:
        """Everyone in the pot who still lacks tokens gets one; who is done leaves if the scheduler lets them."""
        pot.row["end_ns"] = now
        pot.step_ends_ns = None
        pot.steps_done += 1
        given = []
        for order in pot.members:
            if order.alive:
                order.tokens += 1
                if self.scheduler.streaming:
                    order.owed = order.alive
                    given.append(Given(order.number, 1, not order.owed, pot.row))
        all_done = not any(order.alive for order in pot.members)
        if all_done and not self.scheduler.streaming:
            given = [Given(order.number, order.tokens, True, pot.row) for order in pot.members if order.owed]
            for order in pot.members:
                order.owed = False
        if all_done:
            pot.members = []
        elif not self.scheduler.run_to_completion:
            pot.members = [order for order in pot.members if order.alive]
        return given

    def _line_of(self, order: Order) -> int:
        return self.scheduler.line_of(order.prompt_tokens) if hasattr(self.scheduler, "line_of") else 0

    def _fill(self, pot: _Pot, now: int, begun: list[_Pot]) -> bool:
        """Let as many into the pot as the scheduler admits, from the line whose oldest came first; begin a step."""
        for line in sorted(filter(None, self.lines.values()), key=lambda line: (line[0].arrival_ns, line[0].number)):
            places = self.scheduler.admit(len(line), len(pot.members), line[0].arrival_ns, now, self._more_to_come())
            if places > 0:
                if not pot.members:
                    pot.steps_done = 0
                    pot.seats = getattr(self.scheduler, "batch_size", 0)
                pot.members += [line.popleft() for _ in range(places)]
                break
        if pot.members:
            self._begin_step(pot, now)
            begun.append(pot)
        return bool(pot.members)

    def _begin_step(self, pot: _Pot, now: int) -> None:
        """Price the step and make its row of the log."""
        scheduler, step_time = self.scheduler, self._step_time
        alive = [order for order in pot.members if order.alive]
        new = [order for order in alive if order.tokens == 0]
        if scheduler.run_to_completion and getattr(scheduler, "padded", False):
            full_price = getattr(scheduler, "last", "") == "full_price"
            seats = pot.seats if full_price else len(pot.members)
            longest = max(order.prompt_tokens for order in pot.members)
            read = seats if pot.steps_done == 0 else 0
            charged, prefill, pairs = seats, read * longest, read * attended_pairs(longest)
            kv = seats * (longest + pot.steps_done)
        else:
            charged, prefill = len(alive), sum(order.prompt_tokens for order in new)
            pairs = sum(attended_pairs(order.prompt_tokens) for order in new)
            kv = sum(order.prompt_tokens + order.tokens for order in alive)
        scale = max(order.scale for order in pot.members)
        if isinstance(step_time, ClosedForm):
            lasts = step_time.step_ns(charged, prefill, kv, pairs, scale)
        else:
            lasts = asked_ns(self._ask, charged, prefill, kv, pairs, scale)
        for order in new:
            self.scheduled_ns[order.number] = now
        pot.step_ends_ns = now + lasts
        pot.row = dict(
            start_ns=now, end_ns=NEVER, pot=pot.number, steps=1, running=sum(order.owed for order in pot.members),
            charged=charged, prefill_tokens=prefill, decode_tokens=len(alive) - len(new), first_tokens=len(new),
            kv_tokens=kv, prefill_pairs=pairs, waiting=0, waited_request_s=self.waited_ns / 1e9, kv_blocks=0,
            preempted=0,
        )  # fmt: skip
        self.waited_ns = 0


def reference(
    workload: Workload,
    scheduler: Scheduler,
    step_time: StepTime,
    pots: int | None = 1,
    progress: Progress | None = None,
    *,
    kv: HasBlocks | None = None,
) -> Result:
    """Serve a workload step by step.

    Parameters, result and errors are those of `servinglab.simulate`; the log has one row per step.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.0, 0.1], output_tokens=[1, 3, 1])
    >>> served = sl.reference(orders, sl.ContinuousBatching(2), sl.AffineStep(0.1, 0.0))
    >>> served.finish_s.tolist()
    [0.1, 0.3, 0.2]
    """
    check_run(workload, scheduler, step_time)
    check_callback("progress", progress)
    pots = check_pots(pots)
    setup = describe(workload, scheduler, step_time, pots, kv)
    if counts_tokens(scheduler, pots, kv):
        return serve_tokens(workload, scheduler, step_time, kv, setup, progress)
    prompt, output = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()
    scale = workload.service_scale.tolist()
    arrivals = Arrivals(workload)

    def more_to_come() -> bool:
        return bool(arrivals.coming) or (bool(arrivals.unsent) and loop.cooking)

    def come(k: int, now: int) -> str | None:
        return loop.join(Request(k, prompt[k], output[k], service_scale=scale[k]), now)

    loop = PotLoop(scheduler, step_time, None if pots is None else min(pots, len(workload)), more_to_come)
    facts: dict[str, Any] = dict(streaming=scheduler.streaming, pots=pots, step_time=step_time, setup=setup)
    return drive(loop, workload, arrivals, come, progress, **facts)


def check_run(workload: Workload, scheduler: Scheduler, step_time: StepTime) -> None:
    """Refuse what isn't a workload, a scheduler or a step time."""
    if not isinstance(workload, Workload):
        raise ValueError(
            "workload must be a Workload (Workload.from_arrivals makes one of arrival times); "
            f"got {type(workload).__name__}"
        )
    check_engine(scheduler, step_time)


def check_engine(scheduler: Scheduler, step_time: StepTime) -> None:
    """Refuse what isn't a scheduler or a step time."""
    if not callable(getattr(scheduler, "admit", None)):
        raise ValueError(f"scheduler must have a method admit, as ContinuousBatching(32) does; got {scheduler!r}")
    if not callable(step_time):
        raise ValueError(f"step_time must be callable, as AffineStep(0.4, 0.02) is; got {step_time!r}")


def check_pots(pots: int | None) -> int | None:
    """Return the number of pots if it is a whole number of at least 1, or None for endless ones."""
    return None if pots is None else check_number("pots", pots, ge=1, integer=True)


def counts_tokens(scheduler: Scheduler, pots: int | None, kv: HasBlocks | None) -> TypeGuard[ContinuousBatching]:
    """Whether a run has a budget of tokens or a pool of blocks; refuse those where they have no meaning."""
    if not isinstance(scheduler, ContinuousBatching):
        if kv is not None:
            raise ValueError(f"kv goes with ContinuousBatching; got {type(scheduler).__name__}")
        return False
    counts = kv is not None or scheduler.counts_tokens
    if counts and pots != 1:
        raise ValueError(f"pots must be 1 where tokens or blocks are counted; got {pots}")
    return counts


def describe(
    workload: Workload, scheduler: Scheduler, step_time: StepTime, pots: int | None, kv: HasBlocks | None = None
) -> RunSetup:
    """What is being run."""
    return RunSetup(workload.name, scheduler, step_time, pots or "endless", kv)
