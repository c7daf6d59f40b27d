"""The engine loop with a budget of tokens and a pool of blocks, as a reader would write it.

`servinglab.paged` decides what each step computes; this loop lets time pass: it asks for a step, prices it, and hands
it back when it ends. With asynchronous scheduling a step is decided when the one before it begins, so a request that
comes meanwhile joins a step later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ._checks import check_number
from .arrivals import Arrivals
from .paged import PagedScheduler, Sequence, Step, prefix_keys
from .result import NEVER, Result, Segments, Status
from .schedulers import ContinuousBatching
from .step_time import ClosedForm, StepTime
from .workload import Workload

PREFIX_TOKENS = 512  # tokens behind one id of Workload.prefix_hashes, as Mooncake's traces count them


class HasBlocks(Protocol):
    """What the engines ask of a KV cache."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can use."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...


@dataclass(frozen=True)
class Blocks:
    """A KV cache by its size alone.

    Parameters
    ----------
    usable_blocks : int
        Blocks that requests can use, at least 1. (vLLM's log counts one more, its null block.)
    block_size : int
        Tokens in a block, at least 1.

    Examples
    --------
    >>> Blocks(2587).usable_blocks * Blocks(2587).block_size
    41392
    """

    usable_blocks: int
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("usable_blocks", "block_size"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), ge=1, integer=True))


def price_ns(step: Step, step_time: StepTime) -> tuple[int, dict[str, int]]:
    """A step's length in nanoseconds, and what it holds.

    Each chunk is one request. Its tokens are prompt tokens to compute (after a preemption, answer tokens too), but for
    a single token beyond the prompt, which is a decode. The step reads all that its requests hold after it.
    """
    prefill = sum(c.tokens for c in step.chunks if c.tokens > 1 or c.start < c.sequence.prompt_tokens)
    holds = {
        "charged": len(step.chunks),
        "prefill_tokens": prefill,
        "kv_tokens": sum(c.start + c.tokens for c in step.chunks),
    }
    if isinstance(step_time, ClosedForm):
        return step_time.step_ns(*holds.values()), holds
    lasts = round(step_time(*holds.values()) * 1e9)
    if lasts < 1:
        raise ValueError(f"step_time must be at least 1e-9 s; got {lasts * 1e-9!r} s for {holds}")
    return lasts, holds


def serve_tokens(
    workload: Workload,
    scheduler: ContinuousBatching,
    step_time: StepTime,
    kv: HasBlocks | None,
    description: dict[str, Any],
) -> Result:
    """Serve a workload step by step under `scheduler`'s budget and `kv`'s blocks; see `servinglab.simulate`."""
    check_token_workload(workload)
    n = len(workload)
    engine = PagedScheduler(scheduler, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
    engine.check_start()
    arrivals = Arrivals(workload)
    arrival, scheduled = [NEVER] * n, [NEVER] * n
    first_token, last_token, finish = [NEVER] * n, [NEVER] * n, [NEVER] * n
    preemptions, status = [0] * n, [Status.UNSERVED] * n
    reasons: dict[int, str] = {}
    late_gaps: Counter[int] = Counter()
    log: list[dict[str, Any]] = []
    under_way: deque[tuple[Step, dict[str, Any]]] = deque()
    now, free, waited, looked, lost = 0, 0, 0, 0, 0

    def look(at: int) -> None:
        """Count the time that the line has spent waiting up to here."""
        nonlocal waited, looked
        waited += len(engine.waiting) * (at - looked)
        looked = at

    def come(until: int) -> None:
        """Requests that come up to and including `until` join the line, or are turned away for good."""
        while (at := arrivals.next_ns()) is not None and at <= until:
            look(at)
            for k in arrivals.pop(at):
                arrival[k] = at
                prompt, output = int(workload.prompt_tokens[k]), int(workload.output_tokens[k])
                reason = engine.why_never(prompt, output)
                if reason is not None:
                    reasons[k], status[k] = reason, Status.REJECTED
                    arrivals.answered(at)
                    continue
                engine.add(Sequence(k, prompt, output, int(workload.priority[k]), _key(workload, k, engine.block_size)))

    def begin(step: Step) -> None:
        """The step begins as soon as the one before it ends."""
        nonlocal free, waited, lost
        start = max(now, free)
        lasts, holds = price_ns(step, step_time)
        free = start + lasts
        first = decode = 0
        for chunk in step.chunks:
            k = chunk.sequence.number
            if scheduled[k] == NEVER:
                scheduled[k] = start
            if chunk.emits:
                new = chunk.sequence.outputs + chunk.sequence.in_flight == 1
                first, decode = first + new, decode + (not new)
        row = dict(
            start_ns=start, end_ns=free, pot=0, steps=1, running=len(engine.running), **holds,
            decode_tokens=decode, first_tokens=first, waiting=len(engine.waiting), waited_request_s=waited / 1e9,
            kv_blocks=engine.used_blocks if kv is not None else 0, preempted=lost,
        )  # fmt: skip
        waited = lost = 0
        log.append(row)
        under_way.append((step, row))

    def come_back() -> None:
        """The oldest step under way ends: tokens come out, the finished leave."""
        nonlocal now
        step, row = under_way.popleft()
        now = row["end_ns"]
        come(now - 1)
        look(now)
        done = engine.finish(step)
        for chunk in step.chunks:
            if chunk.emits:
                k = chunk.sequence.number
                if first_token[k] == NEVER:
                    first_token[k] = now
                elif last_token[k] != row["start_ns"]:
                    row["decode_tokens"] -= 1
                    late_gaps[now - last_token[k]] += 1
                last_token[k] = now
        for sequence in done:
            finish[sequence.number] = now
            status[sequence.number] = Status.FINISHED
            arrivals.answered(now)

    while True:
        come(now)
        step = engine.schedule()
        lost += len(step.preempted)
        for victim in step.preempted:
            preemptions[victim.number] += 1
        if step.chunks:
            begin(step)
        emits = any(chunk.emits for chunk in step.chunks)
        if under_way and (not scheduler.async_scheduling or len(under_way) > 1 or not emits):
            come_back()
        elif not under_way and not step.preempted:
            coming = arrivals.next_ns()
            if coming is None:
                break
            now = coming

    return Result(
        arrival_ns=np.array(arrival, np.int64),
        scheduled_ns=np.array(scheduled, np.int64),
        first_token_ns=np.array(first_token, np.int64),
        finish_ns=np.array(finish, np.int64),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        preemptions=np.array(preemptions, np.int32),
        status=np.array(status, np.uint8),
        segments=Segments.from_rows(log, waited),
        step_time=step_time,
        pots=1,
        description=description,
        late_gaps=(np.array(sorted(late_gaps), np.int64), np.array([late_gaps[g] for g in sorted(late_gaps)], int)),
        rejections=reasons,
    )


def check_token_workload(workload: Workload) -> None:
    """Refuse what a budget of tokens and a pool of blocks don't know of."""
    if (workload.prompt_tokens < 1).any():
        where = int(np.argmin(workload.prompt_tokens))
        raise ValueError(f"prompt_tokens must be at least 1 where tokens are counted; got 0 at request {where}")
    if (workload.service_scale != 1).any():
        raise ValueError("service_scale must be 1 for every request where tokens are counted")


def _key(workload: Workload, k: int, block_size: int) -> Callable[[int], Any]:
    ids = workload.prefix_hashes[k] if workload.prefix_hashes is not None else None
    return prefix_keys(k, ids, PREFIX_TOKENS, block_size)
