"""When does speculative decoding pay? Tokens from one pass over the weights against the work of checking guesses.

A small draft model writes k tokens for each request, one step each. The large model then checks them all in one step
and keeps the longest right beginning, and one token of its own after it. If each draft token is right with probability
α, independently, a round gives

    E = 1 + α + α² + … + α^k = (1 − α^(k+1)) / (1 − α)

tokens a request (Leviathan, Kalman, Matias 2023, equation 1). What that costs depends on the batch: the checking step
reads the weights and the KV cache once, as a plain step does, and computes k + 1 tokens a request instead of one.

What this leaves out: that α falls along the draft and differs between requests, sampling, the draft's own prefill, and
models with sliding windows.
"""

from __future__ import annotations

from servinglab.base.checks import check_number
from servinglab.hardware.roofline import Roofline


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a round of speculative decoding is expected to give one request.

    Parameters
    ----------
    acceptance : float
        α: the probability that a draft token is right if those before it are; in [0, 1].
    drafts : int
        k: tokens drafted a round, at least 0.

    Examples
    --------
    >>> [round(expected_tokens(0.8, k), 2) for k in (0, 1, 4)], expected_tokens(1, 4)
    ([1.0, 1.8, 3.36], 5.0)
    """
    alpha = check_number("acceptance", acceptance, ge=0, le=1)
    k = check_number("drafts", drafts, ge=0, integer=True)
    return float(sum(alpha**i for i in range(k + 1)))


def verify_s(target: Roofline, requests: int, context_tokens: int, drafts: int) -> float:
    """Seconds of the step in which the large model checks every request's draft.

    Parameters
    ----------
    target : Roofline
        The large model's step time.
    requests : int
        At least 1.
    context_tokens : int
        Tokens that each request holds, at least 0.
    drafts : int
        Tokens to check for each request, at least 0; with 0 it is a plain decode step.

    Raises
    ------
    ValueError
        If an argument is out of range, or the model has sliding windows.

    Examples
    --------
    Five tokens a request instead of one are free for one request, and dear for 256:

    >>> from servinglab import roofline
    >>> step = roofline("llama-3.1-8b", "h100-sxm")
    >>> [round(verify_s(step, B, 512, 4) / step(B, 0, B * 512), 2) for B in (1, 256)]
    [1.0, 2.61]
    """
    requests = check_number("requests", requests, ge=1, integer=True)
    context = check_number("context_tokens", context_tokens, ge=0, integer=True)
    drafts = check_number("drafts", drafts, ge=0, integer=True)
    if target.model.sliding_layers:
        raise ValueError(f"target must be a model without sliding windows; got {target.model.id}")
    held = requests * context
    # every token of the draft needs its row of logits, and attends to the context, whose cache is read once
    return target(requests * (1 + drafts), 0, held, prefill_pairs=drafts * held)


def speedup(
    target: Roofline,
    requests: int,
    context_tokens: int,
    *,
    acceptance: float,
    drafts: int,
    draft: Roofline | None = None,
) -> float:
    """How many times the tokens a second of plain decoding: ``E · plain step / (k · draft step + checking step)``.

    Parameters
    ----------
    target : Roofline
    requests, context_tokens : int
        As in `verify_s`.
    acceptance, drafts
        As in `expected_tokens`.
    draft : Roofline, optional
        The small model's step time, on the same device; its requests hold as many tokens. Left out: drafts cost
        nothing, as those looked up in the prompt nearly do.

    Examples
    --------
    >>> from servinglab import roofline
    >>> large, small = (roofline(name, "h100-sxm") for name in ("qwen3-8b", "qwen3-0.6b"))
    >>> [round(speedup(large, B, 512, acceptance=0.8, drafts=3, draft=small), 2) for B in (1, 64, 256)]
    [1.78, 1.47, 0.84]
    """
    tokens = expected_tokens(acceptance, drafts)
    round_s = verify_s(target, requests, context_tokens, drafts)
    if draft is not None:
        round_s += drafts * draft(requests, 0, requests * context_tokens)
    return tokens * target(requests, 0, requests * context_tokens) / round_s
