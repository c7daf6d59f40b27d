"""The best batch on paper, twice, each better than the one before.

`formula_batch` is the first document's formula: a mean wait, and no queue. `gathering_batch` takes the exact P99 of the
wait for a full batch, and still no queue. `best_batch` knows the queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from servinglab import theory
from servinglab.base.checks import check_number

ROUNDING = 1e-9


# On paper
@dataclass(frozen=True)
class BatchFormula:
    """The first document's batch under a P99 promise, and both branches that it comes from.

    Attributes
    ----------
    by_window : int or None
        ⌊(L − W_max − t)/r⌋: the batch is so large that the window ends first. None without a window.
    by_gathering : int
        ⌊(λ(L − t) + 1)/(1 + λr)⌋: the batch is full before the window ends.
    smallest_stable : int or None
        ⌊λt/(1 − λr)⌋ + 1, below which the pot can't keep up; None if no batch can (λr ≥ 1).
    """

    by_window: int | None
    by_gathering: int
    smallest_stable: int | None

    @property
    def batch_size(self) -> int | None:
        """The larger branch, if it is at least 1 and stable; None where the formula finds no batch."""
        largest = max(self.by_gathering, self.by_window if self.by_window is not None else 0)
        return largest if self.smallest_stable is not None and largest >= max(1, self.smallest_stable) else None


def formula_batch(
    rate_rps: float, fixed_s: float, per_request_s: float, limit_s: float, max_wait_s: float = math.inf
) -> BatchFormula:
    """The largest B with P99 ≈ W + t + r·B ≤ L, W = min(W_max, (B − 1)/λ), as the first document has it.

    W depends on B, so both branches are solved, and the larger one counts: it is enough that one of the two waits is
    short. W is the *mean* wait of a batch's *first* guest, and the guests behind a busy pot aren't in it, so the true
    P99 is larger: compare `gathering_batch` and `best_batch`.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    fixed_s, per_request_s : float
        t ≥ 0 and r > 0, in seconds.
    limit_s : float
        L > 0, in seconds.
    max_wait_s : float
        W_max ≥ 0, in seconds; infinite (the default) for no window.

    Examples
    --------
    >>> formula_batch(20, fixed_s=0.4, per_request_s=0.02, limit_s=1.8).batch_size
    20
    >>> formula_batch(20, 0.4, 0.02, limit_s=0.6)      # 5 is what the promise allows, 14 what the rate demands
    BatchFormula(by_window=None, by_gathering=3, smallest_stable=14)
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, gt=0)
    limit = check_number("limit_s", limit_s, gt=0)
    window = max_wait_s if max_wait_s == math.inf else check_number("max_wait_s", max_wait_s, ge=0)
    return BatchFormula(
        by_window=None if window == math.inf else max(0, _floor((limit - window - fixed) / per_request)),
        by_gathering=max(0, _floor((rate * (limit - fixed) + 1) / (1 + rate * per_request))),
        smallest_stable=theory.min_stable_batch(rate, fixed, per_request),
    )


def gathering_batch(
    rate_rps: float,
    fixed_s: float,
    per_request_s: float,
    limit_s: float,
    max_wait_s: float = math.inf,
    q: float = 0.99,
) -> int | None:
    """The largest B whose exact P99 of gathering, plus t + r·B, is within L, with a pot always free; None if none is.

    Better than `formula_batch` by the wait's law (`theory.gather_quantile`) in place of a mean, and exact for endless
    pots without a window. One pot that is sometimes busy makes the P99 larger. The sum rises with B, so the largest is
    the last.

    Parameters
    ----------
    rate_rps, fixed_s, per_request_s, limit_s, max_wait_s
        As in `formula_batch`. With a window a batch may start before it is full; its cooking is taken for a full one's.
    q : float
        0 < q < 1.

    Examples
    --------
    >>> gathering_batch(20, fixed_s=0.4, per_request_s=0.02, limit_s=1.8)
    16
    >>> gathering_batch(20, 0.4, 0.02, limit_s=0.41) is None
    True
    """
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, gt=0)
    limit = check_number("limit_s", limit_s, gt=0)
    theory.gather_quantile(q, rate_rps, 1, max_wait_s)  # checks these, also where no batch is tried

    def fits(size: int) -> bool:
        cooking = fixed + per_request * size
        if cooking > limit + ROUNDING:
            return False
        return theory.gather_quantile(q, rate_rps, size, max_wait_s) + cooking <= limit + ROUNDING

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


def _floor(count: float) -> int:
    """⌊count⌋, where 4.999999999 is 5."""
    whole = round(count)
    return whole if abs(count - whole) <= ROUNDING * max(1.0, abs(count)) else math.floor(count)
