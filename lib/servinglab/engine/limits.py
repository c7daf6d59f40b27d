"""What the clock of the compiled engines can hold: steps are summed in femtoseconds, instants are nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab.scheduling.schedulers import ContinuousBatching, StaticBatching
from servinglab.step_time.affine import ClosedForm, attended_pairs
from servinglab.workload.model import Workload

LAST_INSTANT_S = 4.6e9  # the kernels take 2**62 ns for never
_RECOMPUTED = 10  # times that preemptions may have a run's work done, to be far on the safe side


def check_clock(workload: Workload, scheduler: Any, seats: int, step_time: ClosedForm) -> None:
    """Refuse a run whose steps, or whose end, the engine's clock couldn't hold."""
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    longest_prompt, longest_answer, answers = int(prompts.max()), int(outputs.max()), float(outputs.sum())
    scale = float(workload.service_scale.max())
    step_s = longest_step_s(scheduler, seats, step_time, longest_prompt, longest_answer, scale)
    opens_s = 0.0 if workload.is_closed else float(workload.arrival_s[-1])
    pauses_s = float(workload.think_s.sum()) if workload.think_s is not None else 0.0
    if not isinstance(scheduler, ContinuousBatching):
        check_end(opens_s + pauses_s + step_s * answers)
        return
    to_read = float(prompts.sum())
    at_once = min(each or np.inf for each in (scheduler.long_prefill_token_threshold, scheduler.max_num_batched_tokens))
    steps = answers + to_read / at_once

    longest = longest_prompt + longest_answer

    def ends_s(held: float) -> float:
        """No later than one by one, but for prompts computed again; `held` are tokens in the cache, over all steps."""
        per_step = (step_time.sides_fs * np.array([steps, steps, to_read, held, to_read * longest])).sum()
        return opens_s + pauses_s + _RECOMPUTED * max(scale, 1.0) * float(per_step) / 1e15

    if ends_s(answers * longest) > LAST_INSTANT_S:  # as if each were the longest
        check_end(ends_s(sum(float(np.einsum("i,i", outputs, each, dtype=np.float64)) for each in (prompts, outputs))))


def longest_step_s(
    scheduler: Any, seats: int, step_time: ClosedForm, longest_prompt: int, longest_answer: int, scale: float
) -> float:
    """Seconds of the longest step that requests of these lengths could have; ValueError if the clock can't hold it."""
    read, keep = seats * longest_prompt, seats * (longest_prompt + longest_answer)
    budget = getattr(scheduler, "max_num_batched_tokens", None)
    if budget is None:
        return step_time.longest_s(seats, read, keep, seats * attended_pairs(longest_prompt + longest_answer), scale)
    read = min(read, budget)
    return step_time.longest_s(seats, read, keep, read * (longest_prompt + longest_answer), scale)


def check_end(ends_s: float) -> None:
    """Refuse a run that could end later than the clock can tell."""
    if ends_s > LAST_INSTANT_S:
        raise ValueError(
            f"this run could last {ends_s:.4g} s; the engine's clock holds {LAST_INSTANT_S:g} s: "
            "use fewer or shorter requests, or shorter steps"
        )


def check_scale(step_time: ClosedForm, scale: float) -> None:
    """Refuse scales where a step's time depends on the tokens it reads."""
    if scale != 1.0 and step_time.per_kv_token_s > 0:
        raise ValueError(
            "service_scale must be 1 for every request where per_kv_token_s > 0; "
            f"got scales up to {scale:g} with per_kv_token_s={step_time.per_kv_token_s:g}"
        )


def seats_of(scheduler: Any) -> int:
    """The most requests that a pot holds at once."""
    if isinstance(scheduler, ContinuousBatching):
        return scheduler.seats
    assert isinstance(scheduler, StaticBatching) or hasattr(scheduler, "batch_size")
    return scheduler.batch_size
