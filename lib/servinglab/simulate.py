"""The engine loop of `servinglab.reference`, fast.

`simulate` jumps from one change of a pot's members to the next instead of walking every step, and agrees with the
reference to the last step and nanosecond. What it models: pots that share one line, first come, first served, and steps
whose time depends on what they hold; or one pot with a budget of tokens and a pool of KV blocks, with preemption.
Priorities, thresholds for long prompts, prompts first, prefix caching and asynchronous scheduling are simulated step by
step, which is slower but compiled too. So is, where tokens are counted, a step time of your own, which is asked at
every step; elsewhere it is left to the reference, as schedulers of your own are. Both come with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from servinglab.base.checks import check_callback
from servinglab.engine.clock import Progress, SimulationInterrupted
from servinglab.reference import check_pots, check_run, counts_tokens, describe, reference
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.result.token_log import TokenSegments
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import (
    ContinuousBatching,
    DynamicBatching,
    LengthBucketedBatching,
    Scheduler,
    StaticBatching,
)
from servinglab.scheduling.vllm_rules import PagedScheduler
from servinglab.step_time.affine import ClosedForm, StepTime, asked_ns
from servinglab.token_reference import check_token_workload
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import NEVER, Status

_LAST_INSTANT_S = 4.6e9  # the kernels take 2**62 ns for never
_RECOMPUTED = 10  # times that preemptions may have a run's work done, to be far on the safe side
_STRETCHES_NEED = {  # settings under which stretches of steps have a closed form
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "prefill_first": False,
    "prefix_caching": False,
    "async_scheduling": False,
}
_LOG_ROWS = 1 << 16  # rows of the log between two reports of progress


def simulate(
    workload: Workload,
    scheduler: Scheduler,
    step_time: StepTime,
    pots: int | None = 1,
    progress: Progress | None = None,
    *,
    kv: HasBlocks | None = None,
) -> Result:
    """Serve a workload and say what happened to every request.

    Parameters
    ----------
    workload : Workload
        Who comes, when, with how long prompts and answers.
    scheduler : StaticBatching, DynamicBatching or ContinuousBatching
        Who is in the next step. LengthBucketedBatching, and any other object with their attributes and an `admit`
        method, is served by the reference engine, more slowly, with a warning.
    step_time : AffineStep, RoofStep or callable
        Seconds of a step. A callable of your own is asked at every step, which is slower, with a warning.
    pots : int or None
        How many pots share the line. None: as many as anyone could want.
    kv : Blocks or KVCache, optional
        Blocks of KV cache; anything with `usable_blocks` and `block_size`. It goes with ContinuousBatching and one pot.
        None: no limit of memory.
    progress : callable, optional
        Called now and then with (requests finished, requests in all).

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        If an argument breaks its rule, or a step would last longer than the engine's clock can hold.
    SimulationInterrupted
        On Ctrl-C, with what was done.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.poisson(rate_rps=20, n=1000, seed=42)
    >>> served = sl.simulate(orders, sl.ContinuousBatching(32), sl.AffineStep(0.4, 0.02))
    >>> bool(served.finished.all())
    True
    """
    check_run(workload, scheduler, step_time)
    check_callback("progress", progress)
    pots = check_pots(pots)
    tokens = counts_tokens(scheduler, pots, kv)
    slow = _why_slow(scheduler, step_time)
    if slow is not None:
        warnings.warn(f"simulated step by step, which is slower: {slow}", stacklevel=2)
    if tokens:
        assert isinstance(scheduler, ContinuousBatching)
        if isinstance(step_time, ClosedForm) and all(
            getattr(scheduler, name) == usual for name, usual in _STRETCHES_NEED.items()
        ):
            return _simulate_tokens(workload, scheduler, step_time, kv, progress)
        return _simulate_rules(workload, scheduler, step_time, kv, progress)
    if slow is not None:
        return reference(workload, scheduler, step_time, pots, progress, kv=kv)
    assert isinstance(step_time, ClosedForm)
    return _simulate_pots(workload, scheduler, step_time, pots, progress)


def _simulate_pots(
    workload: Workload, scheduler: Any, step_time: ClosedForm, pots: int | None, progress: Progress | None
) -> Result:
    """Pots that share a line, with no limit but seats."""
    from servinglab import _kernel as k

    n = len(workload)
    cap = scheduler.max_num_seqs if isinstance(scheduler, ContinuousBatching) else scheduler.batch_size
    pot_count = n if pots is None else min(pots, n)
    scaled = bool((workload.service_scale != 1.0).any())
    if scaled and step_time.per_kv_token_s > 0:
        raise ValueError(
            "service_scale must be 1 for every request where per_kv_token_s > 0; "
            f"got scales up to {workload.service_scale.max():g} with per_kv_token_s={step_time.per_kv_token_s:g}"
        )
    _check_clock(workload, scheduler, cap if isinstance(scheduler, StaticBatching) else min(cap, n), step_time)

    requests, log = _Requests(workload), _Log(k.LOG, 5 * n // 2)
    state = np.zeros(k.STATE, np.int64)
    state[k.NEXT] = state[k.PENDING] = requests.sent
    waited = np.zeros(pot_count + 1)
    memory = (
        state,
        waited,
        np.full((pot_count, k.POT_COLUMNS), NEVER, np.int64),
        *np.zeros((3, n), np.int64),  # the line's order; each request's successor in its pot's list; when it leaves
        np.zeros((2, pot_count), np.int64),
        *np.zeros((4, pot_count), np.int64),
        *requests.pending,
    )
    settings = (
        scheduler.run_to_completion, scheduler.streaming, getattr(scheduler, "padded", False), cap,
        scheduler.window_ns if isinstance(scheduler, DynamicBatching) else NEVER,
        getattr(scheduler, "last", "") == "full_price", getattr(scheduler, "last", "") != "never",
    )  # fmt: skip

    def result() -> Result:
        return requests.result(
            segments=log.segments(waited[0]),
            streaming=scheduler.streaming,
            pots=pots,
            step_time=step_time,
            description=describe(workload, scheduler, step_time, pots),
        )

    try:
        while state[k.NOW] != k.FAR:
            used = k.run(
                requests.arrival, workload.prompt_tokens, workload.output_tokens, workload.service_scale,
                requests.think, scaled, workload.clients, *settings, _sides(step_time),
                requests.scheduled, requests.first_token, requests.finish, *memory, log.buffer,
            )  # fmt: skip
            log.keep(used, at_least=int(state[k.BUSY]) + 1)
            if progress is not None:
                progress(int(state[k.DONE]), n)
    except KeyboardInterrupt:
        raise SimulationInterrupted(result()) from None
    return result()


def _simulate_tokens(
    workload: Workload,
    scheduler: ContinuousBatching,
    step_time: ClosedForm,
    kv: HasBlocks | None,
    progress: Progress | None,
) -> Result:
    """One pot with a budget of tokens and a pool of blocks."""
    from servinglab import _kernel as k

    check_token_workload(workload)
    engine = PagedScheduler(scheduler, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
    engine.check_start()
    n = len(workload)
    seats = min(scheduler.seats, n)
    _check_clock(workload, scheduler, seats, step_time)
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    reasons, reject = _turned_away(workload, engine)

    requests = _Requests(workload)
    narrow = _fits_narrow(workload, seats, kv)
    log = _Log(k.ROW if narrow else k.WIDE_ROW, 4 * n)
    marks = _Log(k.MARK if narrow else k.WIDE_MARK, 2 * n)
    columns: list[Any] = [requests.arrival, prompts, outputs, reject]
    outcome: list[Any] = [requests.scheduled, requests.first_token, requests.finish, requests.preemptions]
    some = bool(reasons) and not workload.is_closed  # nobody notices those who are turned away: they are left out
    if some:
        columns, outcome = [_kept(c, ~reject) for c in columns], [_kept(c, ~reject) for c in outcome]
    state = np.zeros(k.TOKEN_STATE, np.int64)
    state[k.T_NEXT] = state[k.T_PENDING] = requests.sent
    state[k.T_PARTIAL] = state[k.T_LAST] = NEVER
    state[k.T_FREE] = engine.num_blocks
    seat = np.full((seats, k.SEAT_COLUMNS), NEVER, np.int64)
    seat[:-1, k.Q_AFTER] = np.arange(1, seats)
    waited = np.zeros(1)
    late = np.zeros(max(_LOG_ROWS, 4 * seats), np.int64)
    memory = (
        state,
        waited,
        seat,
        np.full(1 << int(outputs.max()).bit_length(), NEVER, np.int64),  # the wheel: longer than any answer
        np.zeros(engine.block_size, np.int64),
        np.zeros((seats, k.STACK_COLUMNS), np.int64),
        np.zeros(n if workload.is_closed else 1, np.int64),
        *requests.pending,
    )
    late_gaps: list[np.ndarray] = [np.zeros(0, np.int64)]

    def result() -> Result:
        if some:
            requests.scheduled[~reject], requests.first_token[~reject], requests.finish[~reject] = outcome[:3]
            requests.preemptions[~reject] = outcome[3]
        return requests.result(
            segments=TokenSegments(log.rows, marks.rows, waited[0] / 1e9, requests.arrival, reject),
            step_time=step_time,
            description=describe(workload, scheduler, step_time, 1, kv),
            late_gaps=np.unique(np.concatenate(late_gaps), return_counts=True),
            rejections={i: reason for i, reason in reasons.items() if requests.arrival[i] != NEVER},
        )

    try:
        while state[k.T_NOW] != k.FAR:
            used = k.run_tokens(
                *columns, requests.think, workload.clients, seats, engine.budget, scheduler.chunked_prefill,
                scheduler.full_prompt_gate, scheduler.reserve_whole_answer, engine.watermark_blocks, engine.num_blocks,
                engine.block_size, kv is not None, _sides(step_time), *outcome, *memory, log.buffer, marks.buffer,
                late,
            )  # fmt: skip
            log.keep(used)
            marks.keep(int(state[k.T_MARKS]))
            late_gaps.append(late[: state[k.T_LATE]].copy())
            if progress is not None:
                progress(int(state[k.T_DONE]) + (0 if workload.is_closed else len(reasons)), n)
    except KeyboardInterrupt:
        raise SimulationInterrupted(result()) from None
    return result()


def _fits_narrow(workload: Workload, seats: int, kv: HasBlocks | None) -> bool:
    """Whether every count of a run is sure to fit the columns of the kernel's narrow log."""
    tokens = seats * (int(workload.prompt_tokens.max()) + int(workload.output_tokens.max()))
    blocks = 0
    if kv is not None:
        blocks, tokens = kv.usable_blocks, min(tokens, kv.usable_blocks * kv.block_size)
    return seats < 2**16 and max(len(workload), tokens, blocks) < 2**31


def _simulate_rules(
    workload: Workload,
    scheduler: ContinuousBatching,
    step_time: StepTime,
    kv: HasBlocks | None,
    progress: Progress | None,
) -> Result:
    """As `_simulate_tokens`, step by step, under rules or with a step time that its stretches don't know of."""
    from servinglab import _rules_kernel as k
    from servinglab._kernel import LOG

    check_token_workload(workload)
    engine = PagedScheduler(scheduler, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
    engine.check_start()
    n = len(workload)
    seats = min(scheduler.seats, n)
    sides = None
    if isinstance(step_time, ClosedForm):
        _check_clock(workload, scheduler, seats, step_time)
        sides = _sides(step_time)
    reasons, reject = _turned_away(workload, engine)
    requests, log = _Requests(workload), _Log(LOG, 5 * n // 2)
    memory = k.memory(workload, engine, kv is not None, reject, sides, requests)
    state, waited, under_way = *memory[6:8], memory[13]
    late = np.zeros(max(_LOG_ROWS, 4 * seats), np.int64)
    late_gaps: list[np.ndarray] = [np.zeros(0, np.int64)]

    def result() -> Result:
        return requests.result(
            segments=log.segments(waited.sum()),
            step_time=step_time,
            description=describe(workload, scheduler, step_time, 1, kv),
            late_gaps=np.unique(np.concatenate(late_gaps), return_counts=True),
            rejections={i: reason for i, reason in reasons.items() if requests.arrival[i] != NEVER},
        )

    def price() -> None:
        """Tell the kernel how long the step takes that it has decided on."""
        step = under_way[(state[k.OLDEST] + state[k.UNDER_WAY]) & 1]
        state[k.LASTS] = lasts = asked_ns(step_time, *step[[k.CHUNKS, k.PREFILL, k.KV]].tolist())
        _check_end((int(step[k.START]) + lasts) / 1e9)

    try:
        while state[k.NOW] != k.FAR:
            used = k.run(*memory, log.buffer, late)
            while state[k.ASKING]:
                price()
                used = k.run(*memory, log.buffer, late)
            log.keep(used)
            late_gaps.append(late[: state[k.LATE]].copy())
            if progress is not None:
                progress(int(state[k.DONE]), n)
    except KeyboardInterrupt:
        if state[k.ASKING]:
            log.keep(int(state[k.USED]))
            late_gaps.append(late[: state[k.LATE]].copy())
        raise SimulationInterrupted(result()) from None
    return result()


def _turned_away(workload: Workload, engine: PagedScheduler) -> tuple[dict[int, str], np.ndarray]:
    """Why some requests can never be served, by number; and a column that marks them."""
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    reasons = {
        int(i): reason
        for i in np.flatnonzero(prompts + outputs > engine.largest_request)
        if (reason := engine.why_never(int(prompts[i]), int(outputs[i]))) is not None
    }
    reject = np.zeros(len(workload), np.bool_)
    reject[list(reasons)] = True
    return reasons, reject


def _kept(column: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Some of a column, as writable as it was: another kind of array would have the kernel compiled again."""
    part = column[which]
    part.flags.writeable = column.flags.writeable
    return part


class _Requests:
    """A workload's arrivals in nanoseconds, who is about to come, and what becomes of each request."""

    def __init__(self, workload: Workload) -> None:
        n = len(workload)
        self._workload = workload
        self.times = np.full((3, n), NEVER, np.int64)
        self.scheduled, self.first_token, self.finish = self.times
        self.preemptions = np.zeros(n, np.int32)
        self.think = np.zeros(1, np.int64)
        self.sent = min(workload.clients, n)  # requests that a closed loop's clients are about to send
        if workload.think_s is None:
            nanoseconds = workload.arrival_s * 1e9
            self.arrival = np.rint(nanoseconds, out=nanoseconds).astype(np.int64)
            first = np.zeros(0, np.int64)
        else:
            self.arrival = np.full(n, NEVER, np.int64)
            self.think = np.rint(workload.think_s * 1e9).astype(np.int64)
            first = np.argsort(self.think[: self.sent], kind="stable")
        # a heap by time, then number: a sorted list is one
        self.pending = np.zeros((2, self.sent + 1), np.int64)
        self.pending[0, : self.sent], self.pending[1, : self.sent] = self.think[first], first

    def result(self, rejections: Mapping[int, str] | None = None, **facts: Any) -> Result:
        status = (self.finish == NEVER).astype(np.uint8) * np.uint8(Status.UNSERVED)  # else FINISHED, which is 0
        status[list(rejections or ())] = Status.REJECTED
        return Result(
            arrival_ns=self.arrival,
            scheduled_ns=self.scheduled,
            first_token_ns=self.first_token,
            finish_ns=self.finish,
            prompt_tokens=self._workload.prompt_tokens,
            output_tokens=self._workload.output_tokens,
            preemptions=self.preemptions,
            status=status,
            rejections=rejections or {},
            **facts,
        )


class _Log:
    """The rows that a kernel writes, a stretch of `_LOG_ROWS` at a time.

    The array is made long enough for most runs: pages of memory that nobody writes to cost nothing.
    """

    def __init__(self, row: np.dtype, rows: int) -> None:
        self._rows = np.empty(rows + _LOG_ROWS, row)
        self._used = 0
        self._stretch = _LOG_ROWS

    @property
    def buffer(self) -> np.ndarray:
        """Where the kernel writes next."""
        return self._rows[self._used : self._used + self._stretch]

    def keep(self, used: int, at_least: int = 0) -> None:
        """Count rows as written; make room for another stretch, of `at_least` so many rows."""
        self._used += used
        if at_least > self._stretch:
            self._stretch = 4 * at_least
        if self._used + self._stretch > len(self._rows):
            longer = np.empty(2 * self._used + self._stretch, self._rows.dtype)
            longer[: self._used] = self._rows[: self._used]
            self._rows = longer

    @property
    def rows(self) -> np.ndarray:
        """All that was written."""
        return self._rows[: self._used]

    def segments(self, waited_after_ns: float) -> Segments:
        """The whole log; the last row also gets what the line waited after it began."""
        rows = self.rows
        rows["waited_request_s"][-1:] += waited_after_ns / 1e9
        return Segments(**{name: rows[name] for name in rows.dtype.names or ()})


def _check_clock(workload: Workload, scheduler: Any, seats: int, step_time: ClosedForm) -> None:
    """Refuse a run whose steps, or whose end, the engine's clock couldn't hold."""
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    longest_prompt, longest_answer, answers = int(prompts.max()), int(outputs.max()), float(outputs.sum())
    scale = float(workload.service_scale.max())
    read, keep = (seats * each for each in (longest_prompt, longest_prompt + longest_answer))
    budget = getattr(scheduler, "max_num_batched_tokens", None)
    step_s = step_time.longest_s(seats, read if budget is None else min(read, budget), keep, scale)
    opens_s = 0.0 if workload.is_closed else float(workload.arrival_s[-1])
    pauses_s = float(workload.think_s.sum()) if workload.think_s is not None else 0.0
    if isinstance(scheduler, ContinuousBatching):  # no longer than one by one, but for prompts computed again
        held = sum(float(np.einsum("i,i", outputs, each, dtype=np.float64)) for each in (prompts, outputs))
        to_read = float(prompts.sum())
        at_once = min(
            each or np.inf for each in (scheduler.long_prefill_token_threshold, scheduler.max_num_batched_tokens)
        )
        steps = answers + to_read / at_once
        per_step = (step_time.sides_fs * np.array([steps, steps, to_read, held])).sum()
        work_s = _RECOMPUTED * max(scale, 1.0) * float(per_step) / 1e15
    else:
        work_s = step_s * answers
    _check_end(opens_s + pauses_s + work_s)


def _check_end(ends_s: float) -> None:
    if ends_s > _LAST_INSTANT_S:
        raise ValueError(
            f"this run could last {ends_s:.4g} s; the engine's clock holds {_LAST_INSTANT_S:g} s: "
            "use fewer or shorter requests, or shorter steps"
        )


def _sides(step_time: ClosedForm) -> np.ndarray:
    """Two sides for the kernel; the second is nothing where there is only one."""
    sides = step_time.sides_fs
    return sides if len(sides) == 2 else np.concatenate([sides, np.zeros_like(sides)])


def _why_slow(scheduler: Scheduler, step_time: StepTime) -> str | None:
    """What the fast engine can't do of this run, if anything."""
    if not isinstance(step_time, ClosedForm):
        sides = "; its sides() are, less what `affine` leaves out" if hasattr(step_time, "sides") else ""
        return f"the step time isn't an AffineStep or a RoofStep{sides}"
    if not isinstance(scheduler, (StaticBatching, DynamicBatching, ContinuousBatching)):
        return "the scheduler isn't one of servinglab's"
    if isinstance(scheduler, LengthBucketedBatching):
        return "the scheduler keeps several lines"
    return None
