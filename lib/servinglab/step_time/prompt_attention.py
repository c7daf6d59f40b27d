"""Is attention within a run's prompts priced?

Computing a prompt of p tokens takes p·(p + 1)/2 pairs of tokens that attend to each other, beside work that grows with
p. A step time prices the pairs if it has a term for them, or a parameter `prefill_pairs`; one that was typed or fitted
without leaves them out. By a roofline they are 7 % of the time of a prompt of 4,000 tokens for 8B on an H100, 71 % at
131,000, and more for smaller models. So where they aren't priced, a run with a longer prompt than 4,000 says so in one
line, and its figures carry `MARK`.
"""

from __future__ import annotations

from typing import Any

from servinglab.step_time.affine import ClosedForm, takes_pairs

LONG_PROMPT = 4_000  # tokens
MARK = "prompt attention not priced"


def unpriced_attention(longest_prompt: int, step_time: Any) -> str | None:
    """Say in one line that attention within prompts isn't priced.

    Parameters
    ----------
    longest_prompt : int
        Tokens of the run's longest prompt, at least 0.
    step_time
        As in `simulate`; the name of one is enough.

    Returns
    -------
    str or None
        None up to 4,000 tokens, and for a step time that prices it.

    Examples
    --------
    >>> import servinglab as sl
    >>> unpriced_attention(131_000, sl.AffineStep(0.006, 3e-5, 3e-5))
    "attention within prompts isn't priced: the step time has no term for it, and the longest prompt has 131,000 tokens"
    >>> unpriced_attention(131_000, sl.roofline("llama-3.1-8b", "h100-sxm").sides()) is None
    True
    """
    if longest_prompt <= LONG_PROMPT:
        return None
    if isinstance(step_time, ClosedForm):
        if step_time.per_prefill_pair_s:
            return None
        why = "the step time has no term for it"
    elif takes_pairs(step_time):
        return None
    else:
        why = "the step time is told totals only"
    return f"attention within prompts isn't priced: {why}, and the longest prompt has {longest_prompt:,} tokens"
