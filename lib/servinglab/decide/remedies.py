"""What would keep the promise, if nothing tried does?"""

from __future__ import annotations

import math
from collections.abc import Iterable

from servinglab.decide.answer import Candidate, Remedy
from servinglab.decide.evaluate import Judge


def remedies_for(judge: Judge, smallest: Candidate) -> Iterable[Remedy]:
    """What would keep the promise, cheapest to say first."""
    if smallest.ratio < math.inf:
        yield Remedy("limit", smallest.settings, smallest.percentiles, judge.rate_rps)
    if judge.kind != "continuous":
        other = judge.slower(1.0, "continuous")
        _, choice = other.decide()
        if choice is not None:
            yield Remedy("scheduler", choice.settings, choice.percentiles, judge.rate_rps)
    if judge.work(judge.requests).is_closed:
        return
    low, high, found = 0.0, 1.0, None
    while high - low > 0.02 * high and high > 1e-3:
        speed = (low + high) / 2 if low else high / 2
        slower = judge.slower(speed)
        # one that can't keep up tells nothing about where to look
        near = smallest if smallest.ratio < math.inf else None
        kept = min(slower.explore(near), key=lambda each: each.ratio)
        if kept.ratio <= 1:
            low, found = speed, Remedy("rate", kept.settings, kept.percentiles, slower.rate_rps)
        else:
            high = speed
    if found is not None:
        yield found
