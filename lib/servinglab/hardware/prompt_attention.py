"""Is attention within a run's prompts priced?

Computing a prompt of p tokens takes p·(p + 1)/2 pairs of tokens that attend to each other, beside work that grows with
p. A step time is asked for totals, ``step(requests, prefill_tokens, kv_tokens)``, which don't tell the pairs: an
`AffineStep` or a `RoofStep` has no term for them, whether it was typed, fitted or made from a roofline, and any other
callable can only guess. By a roofline it is 7 % of the time of a prompt of 4,000 tokens for 8B on an H100, 71 % at
131,000, and more for smaller models. So a run with a longer prompt than 4,000 says it in one line, and its figures
carry `MARK`.
"""

from __future__ import annotations

from typing import Any

from servinglab.base.text import show_number
from servinglab.hardware.roofline import Roofline
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.step_time.affine import ClosedForm, StepTime

LONG_PROMPT = 4_000  # tokens
MARK = "prompt attention not priced"
_MOST_ASKED = 1000


def unpriced_attention(longest_prompt: int, scheduler: Any, step_time: Any) -> str | None:
    """Say in one line that attention within prompts isn't priced, and what that leaves out where a roofline knows.

    Parameters
    ----------
    longest_prompt : int
        Tokens of the run's longest prompt, at least 0; whether parts of it are computed in pieces, or cached, doesn't
        matter.
    scheduler
        What decides in which pieces the prompt is computed, as in `simulate`.
    step_time
        As in `simulate`; the name of one is enough.

    Returns
    -------
    str or None
        None up to 4,000 tokens, and for a `Roofline` itself that is asked for the whole prompt in one step.

    Examples
    --------
    >>> import servinglab as sl
    >>> step, engine = sl.roofline("llama-3.1-8b", "h100-sxm").sides(), sl.ContinuousBatching(256)
    >>> unpriced_attention(131_000, engine, step)
    "attention within prompts isn't priced: the longest prompt, 131,000 tokens, would take 10.66 s alone,
    simulated as 3.081"
    >>> unpriced_attention(4000, engine, step) is None
    True
    """
    if longest_prompt <= LONG_PROMPT:
        return None
    roof = step_time if isinstance(step_time, Roofline) else getattr(step_time, "roofline", None)
    if roof is not None:
        priced_s, simulated_s = _alone_s(longest_prompt, scheduler, step_time, roof)
        if roof is step_time and simulated_s >= priced_s:
            return None
        what = "isn't priced" if roof is not step_time else "is priced within a step only"
        return (
            f"attention within prompts {what}: the longest prompt, {longest_prompt:,} tokens, would take "
            f"{show_number(priced_s)} s alone, simulated as {show_number(simulated_s)}"
        )
    if isinstance(step_time, ClosedForm):
        why = "the step time has no term for it"
    else:
        why = "the step time is told totals only"
    return f"attention within prompts isn't priced: {why}, and the longest prompt has {longest_prompt:,} tokens"


def _alone_s(prompt: int, scheduler: Any, step_time: StepTime, roof: Roofline) -> tuple[float, float]:
    """Seconds until the first token of a prompt that is alone: with all its attention, and as it is simulated."""
    budget = scheduler.max_num_batched_tokens if isinstance(scheduler, ContinuousBatching) else None
    at_once = min(prompt, budget or prompt)  # a threshold cuts prompts in company only
    steps = -(-prompt // at_once)
    asked = min(steps, _MOST_ASKED)  # of more steps than that a sample at even distances is near enough
    priced = simulated = 0.0
    for k in range(asked):
        done = (2 * k + 1) * steps // (2 * asked) * at_once
        ends = min(done + at_once, prompt)
        new = ends - done
        priced += roof(1, new, ends, prefill_pairs=new * ends - new * (new - 1) / 2)
        simulated += step_time(1, new, ends)
    return priced * steps / asked, simulated * steps / asked
