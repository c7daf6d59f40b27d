"""The engine loop of `reference`, fast.

`simulate` jumps from one change of a pot's members to the next instead of walking every step, and agrees with the
reference to the last step and nanosecond. What it models: pots that share one line, first come, first served, and steps
whose time depends on what they hold; or one pot with a budget of tokens and a pool of KV blocks, with preemption.
Priorities, thresholds for long prompts, prompts first, prefix caching and asynchronous scheduling are simulated step by
step, which is slower but compiled too. So is, where tokens are counted, a step time of your own, which is asked at
every step; elsewhere it is left to the reference, as schedulers of your own are. Both come with a warning.
"""

from __future__ import annotations

import warnings
from typing import Any

from servinglab.base.checks import check_callback
from servinglab.engine.clock import Progress, SimulationInterrupted
from servinglab.engine.fast import FastEngine, FastPots, FastSteps, FastStretches
from servinglab.engine.limits import check_clock, check_scale, seats_of
from servinglab.engine.reference.pots import check_pots, check_run, counts_tokens, describe, reference
from servinglab.engine.reference.tokens import check_token_workload
from servinglab.result.result import Result
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import (
    ContinuousBatching,
    DynamicBatching,
    LengthBucketedBatching,
    Scheduler,
    StaticBatching,
)
from servinglab.step_time.affine import ClosedForm, StepTime
from servinglab.workload.model import Workload

_STRETCHES_NEED = {  # settings under which stretches of steps have a closed form
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "prefill_first": False,
    "prefix_caching": False,
    "async_scheduling": False,
}


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
        Seconds of a step. A callable of your own is asked at every step, which is slower, with a warning. Where it has
        no price for attention within prompts, `Result.unpriced_attention` says so if a prompt has over 4,000 tokens.
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
        if not tokens:
            return reference(workload, scheduler, step_time, pots, progress, kv=kv)
    if tokens:
        check_token_workload(workload)
    n = len(workload)
    if isinstance(step_time, ClosedForm):
        if not tokens:
            check_scale(step_time, float(workload.service_scale.max()))
        seats = seats_of(scheduler)
        check_clock(workload, scheduler, seats if isinstance(scheduler, StaticBatching) else min(seats, n), step_time)
    engine = open_engine(scheduler, step_time, pots, kv, workload)
    setup = describe(workload, scheduler, step_time, 1 if tokens else pots, kv if tokens else None)
    try:
        engine.run(progress)
    except KeyboardInterrupt:
        raise SimulationInterrupted(engine.result(setup)) from None
    return engine.result(setup)


def open_engine(
    scheduler: Any, step_time: StepTime, pots: int | None, kv: HasBlocks | None, workload: Workload
) -> FastEngine:
    """The fastest compiled engine that knows these rules."""
    if not counts_tokens(scheduler, pots, kv):
        assert isinstance(step_time, ClosedForm)
        return FastPots(scheduler, step_time, pots, workload, lists_finished=False)
    if isinstance(step_time, ClosedForm) and all(
        getattr(scheduler, name) == usual for name, usual in _STRETCHES_NEED.items()
    ):
        return FastStretches(scheduler, step_time, kv, workload, lists_finished=False)
    return FastSteps(scheduler, step_time, kv, workload, lists_finished=False)


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
