"""What the step times leave out, said where their numbers are shown.

A step time knows how many prompt tokens a step computes, not how many tokens each of them attends to. The work of
attention within a prompt grows with the square of its length: at a few hundred tokens it is nothing beside the
matrices, at 8,000 an eighth of the step, at 131,000 most of it.
"""

from __future__ import annotations

from typing import Any

LONG_PROMPT = 4000
"""Tokens above which a prompt's price is marked as too low."""


def unpriced_attention(longest_prompt: int, step_time: Any = None, roofline: Any = None) -> str:
    """What is to be said of a run's longest prompt; empty where there is nothing to say.

    Parameters
    ----------
    longest_prompt : int
        In tokens.
    step_time : callable, optional
        What priced the steps.
    roofline : Roofline, optional
        What the step time was made from: then the price that is missing is said.

    Examples
    --------
    >>> import servinglab as sl
    >>> unpriced_attention(4000)
    ''
    >>> unpriced_attention(8000)
    'attention within prompts, of up to 8,000 tokens here: they cost more than shown'
    >>> card = sl.roofline("llama-3.1-8b", "h100-sxm")
    >>> unpriced_attention(131_000, card.sides(), card)
    'attention within prompts: the longest, 131,000 tokens, takes 10.66 s alone and whole, priced at 3.08 s'
    """
    if longest_prompt <= LONG_PROMPT:
        return ""
    if roofline is None or step_time is None:
        return f"attention within prompts, of up to {longest_prompt:,} tokens here: they cost more than shown"
    whole, priced = (price(1, longest_prompt, longest_prompt) for price in (roofline, step_time))
    return (
        f"attention within prompts: the longest, {longest_prompt:,} tokens, takes {whole:.2f} s alone and whole, "
        f"priced at {priced:.2f} s"
    )
