"""How long does one step take?

A *step* is one pass of the pot: every request in it gets one token (for a kitchen order, the whole dish). Here the
time of a step is affine in what the step holds, or the longer of two such times. What this leaves out: kernel shapes
and noise.

A *step time* is anything callable as ``step(requests, prefill_tokens, kv_tokens)`` that returns seconds. One that has a
parameter named `prefill_pairs` is told it, too: how many pairs of tokens the step's prompts attend (`attended_pairs`).
`AffineStep` and `RoofStep` are those whose stretches of steps have a closed form; any other callable is asked at every
step, which is slower.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_number

FS_PER_NS = 1_000_000
COEFFICIENTS = ("fixed_s", "per_request_s", "per_prefill_token_s", "per_kv_token_s", "per_prefill_pair_s")
_LONGEST_STEP_S = 9_000.0  # a step is summed in femtoseconds, and 2**63 fs are 9,223 s

StepTime = Callable[..., float]


def attended_pairs(tokens: int, before: int = 0) -> int:
    """Pairs of a token that is computed and one that it attends to: ``m·c + m·(m + 1)/2``.

    Each of m tokens of a prompt attends to the c tokens before all of them, to those of the m before it, and to itself.

    Parameters
    ----------
    tokens : int
        m, the tokens computed in one step, at least 0.
    before : int
        c, those of the same request that were computed earlier, or found in a prefix cache; at least 0.

    Examples
    --------
    A prompt's pairs are the same in whatever pieces it is computed:

    >>> attended_pairs(100), attended_pairs(60) + attended_pairs(40, before=60)
    (5050, 5050)
    """
    return tokens * before + tokens * (tokens + 1) // 2


@dataclass(frozen=True)
class AffineStep:
    """A step's time: ``fixed + per_request·n + per_prefill_token·p + per_kv_token·k + per_prefill_pair·a``.

    The engines keep time in whole nanoseconds. A step's terms are summed in femtoseconds and rounded once, half up,
    so a closed-form sum over many steps equals the step-by-step sum exactly.

    Parameters
    ----------
    fixed_s : float
        Seconds that every step costs, however full it is (the pot's heating; reading the weights). At least 0.
    per_request_s : float
        Seconds for each request in the step. At least 0. ``fixed_s + per_request_s`` is at least a nanosecond.
    per_prefill_token_s : float
        Seconds for each prompt token computed in the step. At least 0.
    per_kv_token_s : float
        Seconds for each token held in the KV cache that the step reads. At least 0.
    per_prefill_pair_s : float
        Seconds for each pair of tokens that the step's prompts attend (`attended_pairs`). At least 0.
    roofline : Roofline, optional
        What the coefficients were computed from; it plays no part in the time.

    Raises
    ------
    ValueError
        If a coefficient is negative, not finite, or larger than 9,000 s, or if a step could take no time.

    Examples
    --------
    >>> pot = AffineStep(fixed_s=0.4, per_request_s=0.02)
    >>> round(pot(15), 9)
    0.7
    >>> pot.step_ns(15)
    700000000
    """

    fixed_s: float
    per_request_s: float
    per_prefill_token_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_prefill_pair_s: float = 0.0
    roofline: Any = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in COEFFICIENTS:
            value = check_number(name, getattr(self, name), ge=0, le=_LONGEST_STEP_S)
            object.__setattr__(self, name, value)
        if self.fixed_s + self.per_request_s < 1e-9:
            total = self.fixed_s + self.per_request_s
            raise ValueError(f"fixed_s + per_request_s must be at least 1e-9 s; got {total!r}")

    def __call__(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: int | None = None
    ) -> float:
        """Seconds that a step takes with this many requests, prompt tokens, KV tokens and pairs.

        Without `prefill_pairs` all prompt tokens are those of one prompt, computed at once.
        """
        return (
            self.fixed_s
            + self.per_request_s * requests
            + self.per_prefill_token_s * prefill_tokens
            + self.per_kv_token_s * kv_tokens
            + self.per_prefill_pair_s * (attended_pairs(prefill_tokens) if prefill_pairs is None else prefill_pairs)
        )

    @property
    def sides_fs(self) -> npt.NDArray[np.int64]:
        """The coefficients in whole femtoseconds, one row, in the order of `COEFFICIENTS`."""
        return np.array([[round(getattr(self, name) * 1e15) for name in COEFFICIENTS]], np.int64)

    def step_ns(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: int = 0, scale: float = 1.0
    ) -> int:
        """Whole nanoseconds of one step, as both engines count them.

        Parameters
        ----------
        requests, prefill_tokens, kv_tokens, prefill_pairs : int
            What the step holds.
        scale : float
            The largest `service_scale` in the step; it multiplies all but the KV term.

        Examples
        --------
        >>> AffineStep(1.0, 0.5).step_ns(2, scale=1.5)
        3000000000
        """
        fixed, per_request, per_prefill, per_kv, per_pair = self.sides_fs[0].tolist()
        base = fixed + per_request * requests + per_prefill * prefill_tokens + per_pair * prefill_pairs
        if scale != 1.0:
            base = round(scale * base)
        return max(1, (base + per_kv * kv_tokens + FS_PER_NS // 2) // FS_PER_NS)

    def longest_s(self, requests: int, prefill_tokens: int, kv_tokens: int, prefill_pairs: int, scale: float) -> float:
        """Seconds of the longest step that a run could have.

        Raises
        ------
        ValueError
            If that step would overflow the engine's clock.
        """
        scaled = self(requests, prefill_tokens, 0, prefill_pairs) * max(scale, 1.0)
        longest = scaled + self.per_kv_token_s * kv_tokens
        if longest > _LONGEST_STEP_S:
            raise ValueError(
                f"a step of this run could last {longest:.4g} s; the engine's clock holds steps up to "
                f"{_LONGEST_STEP_S:g} s: use smaller coefficients, scales or batches"
            )
        return longest


@dataclass(frozen=True)
class RoofStep:
    """The longer of two affine times, step by step: a roofline's two sides.

    Parameters
    ----------
    memory, compute : AffineStep
        A step takes as long as the longer of them.
    roofline : Roofline, optional
        What they were computed from; it plays no part in the time.

    Examples
    --------
    >>> roof = RoofStep(AffineStep(5e-3, 0.0, 0.0, 4e-8), AffineStep(1e-3, 2e-5, 2e-5))
    >>> [round(1e3 * roof(n), 3) for n in (1, 100, 1000)]
    [5.0, 5.0, 21.0]
    """

    memory: AffineStep
    compute: AffineStep
    roofline: Any = field(default=None, repr=False, compare=False, kw_only=True)

    def __call__(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: int | None = None
    ) -> float:
        """Seconds that a step takes, as `AffineStep`."""
        return max(side(requests, prefill_tokens, kv_tokens, prefill_pairs) for side in (self.memory, self.compute))

    @property
    def per_kv_token_s(self) -> float:
        """The larger of the two sides' seconds for each token held."""
        return max(self.memory.per_kv_token_s, self.compute.per_kv_token_s)

    @property
    def per_prefill_pair_s(self) -> float:
        """The larger of the two sides' seconds for each pair."""
        return max(self.memory.per_prefill_pair_s, self.compute.per_prefill_pair_s)

    @property
    def sides_fs(self) -> npt.NDArray[np.int64]:
        """The coefficients in whole femtoseconds, a row for each side."""
        return np.concatenate([self.memory.sides_fs, self.compute.sides_fs])

    def step_ns(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: int = 0, scale: float = 1.0
    ) -> int:
        """Whole nanoseconds of one step, as both engines count them."""
        holds = (requests, prefill_tokens, kv_tokens, prefill_pairs, scale)
        return max(side.step_ns(*holds) for side in (self.memory, self.compute))

    def longest_s(self, requests: int, prefill_tokens: int, kv_tokens: int, prefill_pairs: int, scale: float) -> float:
        """Seconds of the longest step that a run could have, as `AffineStep.longest_s`."""
        holds = (requests, prefill_tokens, kv_tokens, prefill_pairs, scale)
        return max(side.longest_s(*holds) for side in (self.memory, self.compute))


ClosedForm = AffineStep | RoofStep
"""Step times whose sums over many steps have a closed form, which the fast engine needs."""


def told_pairs(step_time: StepTime) -> Callable[[int, int, int, int], float]:
    """A step time as it is asked: with pairs by their name if it has a parameter `prefill_pairs`, else without.

    Examples
    --------
    >>> told_pairs(lambda n, p, k: 0.4 + 0.02 * n)(15, 0, 0, 0)
    0.7
    >>> told_pairs(lambda n, p, k, prefill_pairs: 1e-9 * prefill_pairs)(1, 100, 100, 5_000)
    5e-06
    """
    if not takes_pairs(step_time):
        return lambda requests, prefill_tokens, kv_tokens, _: step_time(requests, prefill_tokens, kv_tokens)
    return lambda requests, prefill_tokens, kv_tokens, prefill_pairs: step_time(
        requests, prefill_tokens, kv_tokens, prefill_pairs=prefill_pairs
    )


def takes_pairs(step_time: StepTime) -> bool:
    """Whether a step time has a parameter named `prefill_pairs`; what tells nothing of itself hasn't."""
    try:
        return "prefill_pairs" in inspect.signature(step_time).parameters
    except (TypeError, ValueError):
        return False


def asked_ns(
    ask: Callable[[int, int, int, int], float],
    requests: int,
    prefill_tokens: int = 0,
    kv_tokens: int = 0,
    prefill_pairs: int = 0,
    scale: float = 1.0,
) -> int:
    """What a step time of one's own, as `told_pairs` gives it, comes to in whole nanoseconds.

    Raises
    ------
    ValueError
        If no step can last that long.

    Examples
    --------
    >>> asked_ns(told_pairs(lambda n, p, k: 0.4 + 0.02 * n), 15)
    700000000
    """
    seconds = scale * ask(requests, prefill_tokens, kv_tokens, prefill_pairs)
    lasts = round(seconds * 1e9) if math.isfinite(seconds) else 0
    if lasts < 1:
        holds = {
            "charged": requests,
            "prefill_tokens": prefill_tokens,
            "kv_tokens": kv_tokens,
            "prefill_pairs": prefill_pairs,
        }
        raise ValueError(f"step_time must be at least 1e-9 s, and finite; got {seconds!r} s for {holds}")
    return lasts
