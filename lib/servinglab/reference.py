"""The engine loop as a reader would write it: plain Python, one step at a time, no tricks.

`servinglab.simulate` gives the same result, to the last step and nanosecond, many times faster; this module is what
it is held against, and what a chapter may show. It also serves step times and schedulers of your own.

At one instant things happen in this order: steps that end, requests that come, pots that begin a step — empty pots
first, then those between two steps, each by number.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from ._checks import check_number
from .arrivals import Arrivals
from .result import NEVER, Result, Segments, Status
from .schedulers import ContinuousBatching, DynamicBatching, Scheduler
from .step_time import ClosedForm, StepTime
from .token_reference import HasBlocks, serve_tokens
from .workload import Workload


@dataclass(eq=False)
class _Pot:
    number: int
    members: list[int] = field(default_factory=list)  # in the order of admission
    steps_done: int = 0  # of the present batch
    step_ends_ns: int | None = None  # None: between steps
    row: dict[str, Any] = field(default_factory=dict)


def reference(
    workload: Workload, scheduler: Scheduler, step_time: StepTime, pots: int | None = 1, *, kv: HasBlocks | None = None
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
    pots = check_pots(pots)
    if counts_tokens(scheduler, pots, kv):
        return serve_tokens(workload, scheduler, step_time, kv, describe(workload, scheduler, step_time, pots, kv))
    n = len(workload)
    prompt, output = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()
    scale = workload.service_scale.tolist()
    arrivals = Arrivals(workload)
    line: deque[int] = deque()
    kitchen: list[_Pot] = [] if pots is None else [_Pot(number) for number in range(min(pots, n))]

    arrival, scheduled = [NEVER] * n, [NEVER] * n
    first_token, finish = [NEVER] * n, [NEVER] * n
    tokens = [0] * n
    log: list[dict[str, Any]] = []
    waited_ns, before_ns = 0, 0

    def end_step(pot: _Pot, now: int) -> None:
        """Everyone in the pot who still lacks tokens gets one; who is done leaves if the scheduler lets them."""
        pot.row["end_ns"] = now
        pot.step_ends_ns = None
        pot.steps_done += 1
        for request in pot.members:
            if tokens[request] < output[request]:
                tokens[request] += 1
                if scheduler.streaming and tokens[request] == 1:
                    first_token[request] = now
                if scheduler.streaming and tokens[request] == output[request]:
                    finish[request] = now
                    arrivals.answered(now)
        all_done = all(tokens[request] == output[request] for request in pot.members)
        if all_done and not scheduler.streaming:
            for request in pot.members:
                first_token[request] = finish[request] = now
                arrivals.answered(now)
        if all_done:
            pot.members = []
        elif not scheduler.run_to_completion:
            pot.members = [request for request in pot.members if tokens[request] < output[request]]

    def begin(pot: _Pot, now: int, begun: list[_Pot]) -> bool:
        """Let as many of the line into the pot as the scheduler admits; begin a step if anyone is in it."""
        if line:
            places = scheduler.admit(len(line), len(pot.members), arrival[line[0]], now, more_to_come())
            if places and not pot.members:
                pot.steps_done = 0
            pot.members += [line.popleft() for _ in range(places)]
        if pot.members:
            begin_step(pot, now)
            begun.append(pot)
        return bool(pot.members)

    def begin_step(pot: _Pot, now: int) -> None:
        """Price the step and log it."""
        nonlocal waited_ns
        alive = [request for request in pot.members if tokens[request] < output[request]]
        new = [request for request in alive if tokens[request] == 0]
        if scheduler.run_to_completion and getattr(scheduler, "padded", False):
            full_price = getattr(scheduler, "last", "") == "full_price"
            seats = scheduler.batch_size if full_price else len(pot.members)  # type: ignore[attr-defined]
            longest = max(prompt[request] for request in pot.members)
            charged, prefill = seats, seats * longest if pot.steps_done == 0 else 0
            kv = seats * (longest + pot.steps_done)
        else:
            charged, prefill = len(alive), sum(prompt[request] for request in new)
            kv = sum(prompt[request] + tokens[request] for request in alive)
        if isinstance(step_time, ClosedForm):
            lasts = step_time.step_ns(charged, prefill, kv, max(scale[request] for request in pot.members))
        else:
            lasts = round(max(scale[r] for r in pot.members) * step_time(charged, prefill, kv) * 1e9)
        if lasts < 1:
            raise ValueError(f"step_time must be at least 1e-9 s; got {lasts * 1e-9!r} s for {charged} requests")
        for request in new:
            scheduled[request] = now
        pot.step_ends_ns = now + lasts
        owed = [request for request in pot.members if finish[request] == NEVER]
        pot.row = dict(
            start_ns=now, end_ns=NEVER, pot=pot.number, steps=1, running=len(owed), charged=charged,
            prefill_tokens=prefill, decode_tokens=len(alive) - len(new), first_tokens=len(new), kv_tokens=kv,
            waiting=0, waited_request_s=waited_ns / 1e9, kv_blocks=0, preempted=0,
        )  # fmt: skip
        waited_ns = 0
        log.append(pot.row)

    def more_to_come() -> bool:
        cooking = any(pot.members for pot in kitchen)
        return bool(arrivals.coming) or (bool(arrivals.unsent) and cooking)

    def next_instant() -> int | None:
        instants = [pot.step_ends_ns for pot in kitchen if pot.step_ends_ns is not None]
        coming = arrivals.next_ns()
        if coming is not None:
            instants.append(coming)
        has_empty_pot = pots is None or any(not pot.members for pot in kitchen)
        if isinstance(scheduler, DynamicBatching) and line and has_empty_pot:
            instants.append(arrival[line[0]] + scheduler.window_ns)
        return min(instants, default=None)

    while (now := next_instant()) is not None:
        waited_ns += len(line) * (now - before_ns)
        before_ns = now

        for pot in kitchen:
            if pot.step_ends_ns == now:
                end_step(pot, now)
        for request in arrivals.pop(now):
            arrival[request] = now
            line.append(request)

        begun: list[_Pot] = []
        between = [pot for pot in kitchen if pot.step_ends_ns is None]
        for pot in between:
            if not pot.members:
                begin(pot, now, begun)
        while pots is None and line and begin(new := _Pot(len(kitchen)), now, begun):
            kitchen.append(new)
        for pot in between:
            if pot.members and pot not in begun:
                begin(pot, now, begun)
        for pot in begun:
            pot.row["waiting"] = len(line)

    return Result(
        arrival_ns=np.array(arrival, np.int64),
        scheduled_ns=np.array(scheduled, np.int64),
        first_token_ns=np.array(first_token, np.int64),
        finish_ns=np.array(finish, np.int64),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        preemptions=np.zeros(n, np.int32),
        status=np.array([Status.UNSERVED if t == NEVER else Status.FINISHED for t in finish], np.uint8),
        segments=Segments.from_rows(log, waited_ns),
        streaming=scheduler.streaming,
        pots=pots,
        step_time=step_time,
        description=describe(workload, scheduler, step_time, pots),
    )


def check_run(workload: Workload, scheduler: Scheduler, step_time: StepTime) -> None:
    """Refuse what isn't a workload, a scheduler or a step time."""
    if not isinstance(workload, Workload):
        raise ValueError(
            "workload must be a Workload (Workload.from_arrivals makes one of arrival times); "
            f"got {type(workload).__name__}"
        )
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
) -> dict[str, Any]:
    """What is being run, for titles and reports."""
    told = {"workload": workload.name, "scheduler": scheduler, "step_time": step_time, "pots": pots or "endless"}
    return told if kv is None else {**told, "kv": kv}
