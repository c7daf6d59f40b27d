"""The engine loop of `servinglab.reference`, fast.

`simulate` jumps from one change of a pot's members to the next instead of walking every step, and agrees with the
reference to the last step and nanosecond. What it models: pots that share one line, first come, first served; steps
whose time depends on what they hold. What it doesn't: limits of memory, budgets of tokens, preemption.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .reference import check_pots, describe, reference
from .result import NEVER, Result, Segments, Status
from .schedulers import ContinuousBatching, DynamicBatching, Scheduler, StaticBatching
from .step_time import AffineStep, StepTime
from .workload import Workload

Progress = Callable[[int, int], None]

_LAST_INSTANT_S = 9e9  # nanoseconds in 64 bits hold 9.2e9 s
_LOG_ROWS = 1 << 16  # rows of the log between two reports of progress


class SimulationInterrupted(KeyboardInterrupt):
    """Raised when a simulation is interrupted; `partial` holds what was done, the rest as UNSERVED."""

    def __init__(self, partial: Result) -> None:
        super().__init__(f"interrupted after {int(partial.finished.sum())} of {len(partial)} requests")
        self.partial = partial


def simulate(
    workload: Workload,
    scheduler: Scheduler,
    step_time: StepTime,
    pots: int | None = 1,
    progress: Progress | None = None,
) -> Result:
    """Serve a workload and say what happened to every request.

    Parameters
    ----------
    workload : Workload
        Who comes, when, with how long prompts and answers.
    scheduler : StaticBatching, DynamicBatching or ContinuousBatching
        Who is in the next step. Any other object with their attributes and an `admit` method is served by the
        reference engine, more slowly, with a warning.
    step_time : AffineStep or callable
        Seconds of a step. A callable of your own is served by the reference engine too.
    pots : int or None
        How many pots share the line. None: as many as anyone could want.
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
    pots = check_pots(pots)
    if not isinstance(step_time, AffineStep):
        return _step_by_step(workload, scheduler, step_time, pots, "the step time isn't an AffineStep")
    if not isinstance(scheduler, (StaticBatching, DynamicBatching, ContinuousBatching)):
        return _step_by_step(workload, scheduler, step_time, pots, "the scheduler isn't one of servinglab's")
    from . import _kernel as k

    n = len(workload)
    completes = scheduler.run_to_completion
    cap = scheduler.max_num_seqs if isinstance(scheduler, ContinuousBatching) else scheduler.batch_size
    pot_count = n if pots is None else min(pots, n)
    scaled = bool((workload.service_scale != 1.0).any())
    if scaled and step_time.per_kv_token_s > 0:
        raise ValueError(
            "service_scale must be 1 for every request where per_kv_token_s > 0; "
            f"got scales up to {workload.service_scale.max():g} with per_kv_token_s={step_time.per_kv_token_s:g}"
        )
    _check_clock(workload, cap if isinstance(scheduler, StaticBatching) else min(cap, n), step_time)

    arrival = np.full(n, NEVER, np.int64)
    think = np.zeros(1, np.int64)
    if workload.is_closed:
        assert workload.think_s is not None
        think = np.rint(workload.think_s * 1e9).astype(np.int64)
    else:
        arrival = np.rint(workload.arrival_s * 1e9).astype(np.int64)
    scheduled, first_token, finish = (np.full(n, NEVER, np.int64) for _ in range(3))

    first = min(workload.clients, n)
    state = np.zeros(k.STATE, np.int64)
    pending_time, pending_request = np.zeros(first + 1, np.int64), np.zeros(first + 1, np.int64)
    for request in range(first):
        state[k.PENDING] = k._push(pending_time, pending_request, state[k.PENDING], think[request], request)
    state[k.NEXT] = first
    pot = np.full((pot_count, k.POT_COLUMNS), NEVER, np.int64)
    memory = dict(
        state=state,
        waited=np.zeros(pot_count + 1),
        pot=pot,
        order=np.zeros(n, np.int64),
        after=np.zeros(n, np.int64),
        leaves=np.zeros(n, np.int64),
        freed=np.zeros((2, pot_count), np.int64),
        ready=np.zeros(pot_count, np.int64),
        begun=np.zeros(pot_count, np.int64),
        ends=np.zeros(pot_count, np.int64),
        place=np.zeros(pot_count, np.int64),
        pending_time=pending_time,
        pending_request=pending_request,
    )
    fixed, per_request, per_prefill, per_kv = step_time.coefficients_fs
    last = getattr(scheduler, "last", "")
    window = scheduler.window_ns if isinstance(scheduler, DynamicBatching) else NEVER

    rows = np.zeros((_LOG_ROWS, k.ROW_COLUMNS), np.int64)
    row_waited = np.zeros(_LOG_ROWS)
    chunks: list[tuple[np.ndarray, ...]] = []

    def result() -> Result:
        return Result(
            arrival_ns=arrival,
            scheduled_ns=scheduled,
            first_token_ns=first_token,
            finish_ns=finish,
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            preemptions=np.zeros(n, np.int32),
            status=np.where(finish == NEVER, Status.UNSERVED, Status.FINISHED).astype(np.uint8),
            segments=_segments(chunks),
            streaming=scheduler.streaming,
            pots=pots,
            step_time=step_time,
            description=describe(workload, scheduler, step_time, pots),
        )

    try:
        while state[k.NOW] != k.FAR:
            used = k.run(
                arrival, workload.prompt_tokens, workload.output_tokens, workload.service_scale, think, scaled,
                workload.clients, completes, scheduler.streaming, getattr(scheduler, "padded", False), cap, window,
                last == "full_price", last != "never", fixed, per_request, per_prefill, per_kv,
                scheduled, first_token, finish, *memory.values(), rows, row_waited,
            )  # fmt: skip
            chunks.append(_packed(rows[:used], row_waited[:used]))
            if state[k.BUSY] + 1 > len(rows):
                rows = np.zeros((4 * len(rows), k.ROW_COLUMNS), np.int64)
                row_waited = np.zeros(len(rows))
            if progress is not None:
                progress(int(state[k.DONE]), n)
        for *_, waited_s in reversed(chunks):
            if len(waited_s):
                waited_s[-1] += memory["waited"][0] / 1e9
                break
    except KeyboardInterrupt:
        raise SimulationInterrupted(result()) from None
    return result()


def _check_clock(workload: Workload, seats: int, step_time: AffineStep) -> None:
    """Refuse a run whose steps, or whose end, the engine's clock couldn't hold."""
    longest_prompt = int(workload.prompt_tokens.max(initial=0))
    longest_context = longest_prompt + int(workload.output_tokens.max(initial=0))
    scale = float(workload.service_scale.max(initial=1.0))
    step_s = step_time.longest_s(seats, seats * longest_prompt, seats * longest_context, scale)
    opens_s = float(np.nan_to_num(workload.arrival_s).max(initial=0.0))
    pauses_s = float(workload.think_s.sum()) if workload.think_s is not None else 0.0
    ends_s = opens_s + pauses_s + step_s * float(workload.output_tokens.sum())
    if ends_s > _LAST_INSTANT_S:
        raise ValueError(
            f"this run could last {ends_s:.4g} s; the engine's clock holds {_LAST_INSTANT_S:g} s: "
            "use fewer or shorter requests, or shorter steps"
        )


def _step_by_step(workload: Workload, scheduler: Scheduler, step_time: StepTime, pots: int | None, why: str) -> Result:
    warnings.warn(f"simulated step by step, which is slower: {why}", stacklevel=3)
    return reference(workload, scheduler, step_time, pots)


# The log's columns as the kernel writes them; narrow where a narrow type always holds them.
_COLUMNS: dict[str, Any] = {
    "start_ns": np.int64, "end_ns": np.int64, "pot": np.int32, "steps": np.int32, "running": np.int32,
    "charged": np.int32, "prefill_tokens": np.int64, "decode_tokens": np.int32, "first_tokens": np.int32,
    "kv_tokens": np.int64, "waiting": np.int32,
}  # fmt: skip


def _packed(rows: np.ndarray, waited: np.ndarray) -> tuple[np.ndarray, ...]:
    return *(rows[:, i].astype(kind) for i, kind in enumerate(_COLUMNS.values())), waited.copy()


def _segments(chunks: list[tuple[np.ndarray, ...]]) -> Segments:
    kinds = [*_COLUMNS.values(), np.float64]
    columns = [np.concatenate([np.zeros(0, kind), *(chunk[i] for chunk in chunks)]) for i, kind in enumerate(kinds)]
    return Segments(*columns)
