"""The engine loop with a budget of tokens and a pool of blocks, as a reader would write it.

`servinglab.scheduling.vllm_rules` decides what each step computes; `TokenLoop` asks for a step, prices it, and hands it
back when it ends; `serve_tokens` lets the time of a simulation pass, `servinglab.sim_server` real time. With
asynchronous scheduling a step is decided when the one before it begins, so a request that comes meanwhile joins a step
later.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from servinglab.engine.arrivals import Arrivals
from servinglab.engine.clock import Progress, drive
from servinglab.engine.protocol import Given, Request, View
from servinglab.engine.reference.stepwise import Stepwise, not_here
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.scheduling.blocks import HasBlocks, prefix_keys
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence, Step
from servinglab.step_time.affine import ClosedForm, StepTime, asked_ns, attended_pairs, told_pairs
from servinglab.workload.model import PREFIX_TOKENS, Workload


def holdings(step: Step) -> dict[str, int]:
    """What a step holds.

    Each chunk is one request. Its tokens are prompt tokens to compute (after a preemption, answer tokens too), but for
    a single token beyond the prompt, which is a decode. The step reads all that its requests hold after it.
    """
    prompts = [c for c in step.chunks if c.tokens > 1 or c.start < c.sequence.prompt_tokens]
    return {
        "charged": len(step.chunks),
        "prefill_tokens": sum(c.tokens for c in prompts),
        "kv_tokens": sum(c.start + c.tokens for c in step.chunks),
        "prefill_pairs": sum(attended_pairs(c.tokens, c.start) for c in prompts),
    }


class TokenLoop(Stepwise):
    """One pot with a budget of tokens and a pool of blocks, a step at a time; an `engine.protocol.Engine`.

    Parameters
    ----------
    scheduler : ContinuousBatching
    step_time : StepTime
    kv : HasBlocks or None

    Attributes
    ----------
    engine : PagedScheduler
        Who runs, who waits and the pool of blocks.

    Examples
    --------
    >>> from servinglab import AffineStep, ContinuousBatching
    >>> loop = TokenLoop(ContinuousBatching(8, 16), AffineStep(0.01, 0.0), None)
    >>> loop.join(Request(0, prompt_tokens=20, output_tokens=1), 0)
    >>> [row["prefill_tokens"] for row in loop.begin(0)], loop.next_ns()
    ([16], 10000000)
    >>> loop.end(10_000_000), [row["prefill_tokens"] for row in loop.begin(10_000_000)]
    ([], [4])
    >>> [(given.number, given.tokens, given.done) for given in loop.end(20_000_000)]
    [(0, 1, True)]
    """

    counts_tokens = True

    def __init__(self, scheduler: ContinuousBatching, step_time: StepTime, kv: HasBlocks | None) -> None:
        super().__init__(scheduler)
        self.engine = PagedScheduler(scheduler, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
        self.engine.check_start()
        self._step_time, self._ask = step_time, told_pairs(step_time)
        self._counts_blocks = kv is not None
        self._here: dict[int, Sequence] = {}
        self._under_way: deque[tuple[Step, dict[str, Any]]] = deque()
        self._must_end = False  # before another step can be decided
        self._free = self._lost = 0

    @property
    def waiting(self) -> int:
        """How many stand in the line."""
        return len(self.engine.waiting)

    def view(self) -> View:
        """What can be seen at the present instant."""
        if self._under_way:
            step, row = self._under_way[0]
            kv, tokens = row["kv_tokens"], sum(chunk.tokens for chunk in step.chunks)
        else:
            kv, tokens = sum(sequence.computed for sequence in self.engine.running), 0
        return View(
            now_ns=self._now,
            running=len(self.engine.running),
            waiting=self.waiting,
            kv_tokens=kv,
            kv_blocks=self.engine.used_blocks if self._counts_blocks else 0,
            step_tokens=tokens,
            done=self._done,
            preemptions=self.preemptions.total(),
        )

    def _due_ns(self) -> int | None:
        return self._under_way[0][1]["end_ns"] if self._must_end else None

    def _enter(self, request: Request) -> str | None:
        prompt, output = request.prompt_tokens, request.output_tokens
        reason = self.engine.why_never(prompt, output)
        if reason is None:
            key = request.key
            if key is None:
                shared = request.prefix_ids if self.engine.rules.prefix_caching and request.prefix_ids else None
                key = prefix_keys(request.number, shared, PREFIX_TOKENS, self.engine.block_size)
            sequence = Sequence(request.number, prompt, output, request.priority, key)
            self.engine.add(sequence)
            self._here[request.number] = sequence
        return reason

    def _drop(self, number: int) -> None:
        sequence = self._here.pop(number, None)
        if sequence is None:
            raise not_here(number)
        self.engine.abort(sequence)

    def _follow(self, scheduler: ContinuousBatching) -> None:
        self.engine.change(scheduler)

    def _end(self, now: int) -> list[Given]:
        """The oldest step under way ends, now: tokens come out, the finished leave."""
        step, row = self._under_way.popleft()
        self._must_end = False
        done = set(self.engine.finish(step))
        for sequence in done:
            del self._here[sequence.number]
        gets = [chunk.sequence for chunk in step.chunks if chunk.emits and not chunk.sequence.aborted]
        return [Given(sequence.number, 1, sequence in done, row) for sequence in gets]

    def _begin_all(self, now: int) -> list[dict[str, Any]]:
        """Decide every step that can be decided now."""
        rows = []
        while not self._must_end:
            step = self.engine.schedule()
            self._lost += len(step.preempted)
            self.preemptions.update(sequence.number for sequence in step.preempted)
            if step.chunks:
                rows.append(self._begin_step(step, now))
            emits = any(chunk.emits for chunk in step.chunks)
            ahead = self.engine.rules.async_scheduling and len(self._under_way) == 1 and emits
            self._must_end = bool(self._under_way) and not ahead
            if not self._under_way and not step.preempted:
                break
        return rows

    def _begin_step(self, step: Step, now: int) -> dict[str, Any]:
        """The step begins as soon as the one before it ends."""
        start = max(now, self._free)
        lasts, holds = self._price(step)
        self._free = start + lasts
        first = decode = 0
        for chunk in step.chunks:
            self.scheduled_ns.setdefault(chunk.sequence.number, start)
            if chunk.emits:
                new = chunk.sequence.outputs + chunk.sequence.in_flight == 1
                first, decode = first + new, decode + (not new)
        row = dict(
            start_ns=start, end_ns=self._free, pot=0, steps=1, running=len(self.engine.running), **holds,
            decode_tokens=decode, first_tokens=first, waiting=len(self.engine.waiting),
            waited_request_s=self.waited_ns / 1e9, kv_blocks=self.engine.used_blocks if self._counts_blocks else 0,
            preempted=self._lost,
        )  # fmt: skip
        self.waited_ns = self._lost = 0
        self._under_way.append((step, row))
        return row

    def _price(self, step: Step) -> tuple[int, dict[str, int]]:
        """How long this step lasts in nanoseconds, and what it holds."""
        holds = holdings(step)
        if isinstance(self._step_time, ClosedForm):
            return self._step_time.step_ns(*holds.values()), holds
        return asked_ns(self._ask, *holds.values()), holds


def serve_tokens(
    workload: Workload,
    scheduler: ContinuousBatching,
    step_time: StepTime,
    kv: HasBlocks | None,
    setup: RunSetup,
    progress: Progress | None,
) -> Result:
    """Serve a workload step by step under `scheduler`'s budget and `kv`'s blocks; see `servinglab.simulate`."""
    return serve_loop(TokenLoop(scheduler, step_time, kv), workload, progress, step_time, setup)


def serve_loop(
    loop: TokenLoop,
    workload: Workload,
    progress: Progress | None,
    step_time: StepTime | None,
    setup: RunSetup,
) -> Result:
    """Lead a loop through a workload; `step_time` and `setup` are the result's."""
    check_token_workload(workload)
    hashes = workload.prefix_hashes

    def come(k: int, now: int) -> str | None:
        request = Request(
            number=k,
            prompt_tokens=int(workload.prompt_tokens[k]),
            output_tokens=int(workload.output_tokens[k]),
            priority=int(workload.priority[k]),
            prefix_ids=() if hashes is None else tuple(hashes[k].tolist()),
        )
        return loop.join(request, now)

    arrivals = Arrivals(workload)
    return drive(
        loop,
        workload,
        arrivals,
        come,
        progress,
        loop.preemptions.__getitem__,
        pots=1,
        step_time=step_time,
        setup=setup,
    )


def check_token_workload(workload: Workload) -> None:
    """Refuse what a budget of tokens and a pool of blocks don't know of."""
    if workload.prompt_tokens.min() < 1:
        where = int(np.argmin(workload.prompt_tokens))
        raise ValueError(f"prompt_tokens must be at least 1 where tokens are counted; got 0 at request {where}")
    if not workload.service_scale.min() == workload.service_scale.max() == 1:
        raise ValueError("service_scale must be 1 for every request where tokens are counted")
