"""How long does one step take?

A *step* is one pass of the pot: every request in it gets one token (for a kitchen order, the whole dish). Here the
time of a step is affine in what the step holds, or the longer of two such times. What this leaves out: kernel shapes,
noise, and attention within prompts (`prompt_attention` says where that matters).

A *step time* is anything callable as ``step(requests, prefill_tokens, kv_tokens)`` that returns seconds. `AffineStep`
and `RoofStep` are those whose stretches of steps have a closed form; any other callable is asked at every step, which
is slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_number

FS_PER_NS = 1_000_000
_LONGEST_STEP_S = 9_000.0  # a step is summed in femtoseconds, and 2**63 fs are 9,223 s

StepTime = Callable[[int, int, int], float]


@dataclass(frozen=True)
class AffineStep:
    """A step's time: ``fixed + per_request·n + per_prefill_token·p + per_kv_token·k``.

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
    roofline: Any = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("fixed_s", "per_request_s", "per_prefill_token_s", "per_kv_token_s"):
            value = check_number(name, getattr(self, name), ge=0, le=_LONGEST_STEP_S)
            object.__setattr__(self, name, value)
        if self.fixed_s + self.per_request_s < 1e-9:
            total = self.fixed_s + self.per_request_s
            raise ValueError(f"fixed_s + per_request_s must be at least 1e-9 s; got {total!r}")

    def __call__(self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0) -> float:
        """Seconds that a step takes with this many requests, prompt tokens and KV tokens."""
        return (
            self.fixed_s
            + self.per_request_s * requests
            + self.per_prefill_token_s * prefill_tokens
            + self.per_kv_token_s * kv_tokens
        )

    @property
    def sides_fs(self) -> npt.NDArray[np.int64]:
        """The coefficients in whole femtoseconds, one row: fixed, per request, per prefill token, per KV token."""
        seconds = (self.fixed_s, self.per_request_s, self.per_prefill_token_s, self.per_kv_token_s)
        return np.array([[round(each * 1e15) for each in seconds]], np.int64)

    def step_ns(self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, scale: float = 1.0) -> int:
        """Whole nanoseconds of one step, as both engines count them.

        Parameters
        ----------
        requests, prefill_tokens, kv_tokens : int
            What the step holds.
        scale : float
            The largest `service_scale` in the step; it multiplies all but the KV term.

        Examples
        --------
        >>> AffineStep(1.0, 0.5).step_ns(2, scale=1.5)
        3000000000
        """
        fixed, per_request, per_prefill, per_kv = self.sides_fs[0].tolist()
        base = fixed + per_request * requests + per_prefill * prefill_tokens
        if scale != 1.0:
            base = round(scale * base)
        return max(1, (base + per_kv * kv_tokens + FS_PER_NS // 2) // FS_PER_NS)

    def longest_s(self, requests: int, prefill_tokens: int, kv_tokens: int, scale: float) -> float:
        """Seconds of the longest step that a run could have.

        Raises
        ------
        ValueError
            If that step would overflow the engine's clock.
        """
        longest = self(requests, prefill_tokens, 0) * max(scale, 1.0) + self.per_kv_token_s * kv_tokens
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

    def __call__(self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0) -> float:
        """Seconds that a step takes with this many requests, prompt tokens and KV tokens."""
        return max(side(requests, prefill_tokens, kv_tokens) for side in (self.memory, self.compute))

    @property
    def per_kv_token_s(self) -> float:
        """The larger of the two sides' seconds for each token held."""
        return max(self.memory.per_kv_token_s, self.compute.per_kv_token_s)

    @property
    def sides_fs(self) -> npt.NDArray[np.int64]:
        """The coefficients in whole femtoseconds, a row for each side."""
        return np.concatenate([self.memory.sides_fs, self.compute.sides_fs])

    def step_ns(self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, scale: float = 1.0) -> int:
        """Whole nanoseconds of one step, as both engines count them."""
        return max(side.step_ns(requests, prefill_tokens, kv_tokens, scale) for side in (self.memory, self.compute))

    def longest_s(self, requests: int, prefill_tokens: int, kv_tokens: int, scale: float) -> float:
        """Seconds of the longest step that a run could have, as `AffineStep.longest_s`."""
        return max(side.longest_s(requests, prefill_tokens, kv_tokens, scale) for side in (self.memory, self.compute))


ClosedForm = AffineStep | RoofStep
"""Step times whose sums over many steps have a closed form, which the fast engine needs."""


def asked_ns(
    step_time: StepTime, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, scale: float = 1.0
) -> int:
    """What a step time of one's own comes to in whole nanoseconds; ValueError if no step can last that long.

    Examples
    --------
    >>> asked_ns(lambda n, p, k: 0.4 + 0.02 * n, 15)
    700000000
    """
    seconds = scale * step_time(requests, prefill_tokens, kv_tokens)
    lasts = round(seconds * 1e9) if math.isfinite(seconds) else 0
    if lasts < 1:
        holds = {"charged": requests, "prefill_tokens": prefill_tokens, "kv_tokens": kv_tokens}
        raise ValueError(f"step_time must be at least 1e-9 s, and finite; got {seconds!r} s for {holds}")
    return lasts
