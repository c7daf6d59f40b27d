"""What a step costs, in femtoseconds: the one place where a kernel turns what a step holds into its base.

A step time has one or two sides, of which the longer counts; each is a base plus `per_kv_token` for each token held,
which grows within a stretch of steps. What is constant within a stretch belongs to the base.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab.base.compiled import part

SIDE = np.dtype(
    [(name, np.int64) for name in ("fixed", "per_request", "per_prefill_token", "per_kv_token", "per_prefill_pair")]
)


def two_sides(sides_fs: np.ndarray) -> np.ndarray:
    """The rows of a step time's `sides_fs`, named; the second is nothing where there is only one."""
    sides = np.zeros(2, SIDE)
    for i, row in enumerate(sides_fs.tolist()):
        sides[i] = tuple(row)
    return sides


@part
def attended_pairs(tokens: int, before: int) -> int:
    """As `servinglab.step_time.affine.attended_pairs`."""
    return tokens * before + (tokens * (tokens + 1) >> 1)


@part
def base_fs(side: Any, charged: int, prefill_tokens: int, prefill_pairs: int) -> int:
    """What all steps of a stretch cost on one side, whatever they hold."""
    prompts = side.per_prefill_token * prefill_tokens + side.per_prefill_pair * prefill_pairs
    return side.fixed + side.per_request * charged + prompts
