"""Answers to `best_batch`: wrong ideas about the formula and the search, and differently built right ones."""

import math


def _branches(rate, t, r, limit, wait):
    return (limit - wait - t) / r, (rate * (limit - t) + 1) / (1 + rate * r)


def _stable(rate, t, r):
    return math.floor(rate * t / (1 - rate * r) + 1e-9) + 1


def _formula(rate, t, r, limit, wait, pick=max, floor=lambda x: math.floor(x + 1e-9)):
    size = floor(pick(_branches(rate, t, r, limit, wait)))
    return size if size >= max(1, _stable(rate, t, r)) else None


def _truth(p99_s, limit):
    return max((B for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit), default=None)


def the_smaller_branch(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, wait, pick=min), _truth(p99_s, limit)]


def only_the_gathering(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, wait, pick=lambda both: both[1]), _truth(p99_s, limit)]


def leaves_the_wait_out(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, 0.0), _truth(p99_s, limit)]


def floors_floats(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, wait, floor=math.floor), _truth(p99_s, limit)]


def rounds_up(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, wait, floor=lambda x: math.ceil(x - 1e-9)), _truth(p99_s, limit)]


def forgets_stability(rate, t, r, limit, wait, p99_s):
    return [math.floor(max(_branches(rate, t, r, limit, wait)) + 1e-9), _truth(p99_s, limit)]


def answers_one_when_none_fits(rate, t, r, limit, wait, p99_s):
    return [_formula(rate, t, r, limit, wait) or 1, _truth(p99_s, limit) or 1]


def stops_at_the_first_failure(rate, t, r, limit, wait, p99_s):
    best = None
    for B, p99 in enumerate(p99_s, 1):
        if p99 is None or p99 > limit:
            break
        best = B
    return [_formula(rate, t, r, limit, wait), best]


def the_lowest_p99(rate, t, r, limit, wait, p99_s):
    known = [(p99, B) for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]
    return [_formula(rate, t, r, limit, wait), min(known)[1] if known else None]


def the_smallest_that_fits(rate, t, r, limit, wait, p99_s):
    kept = [B for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]
    return [_formula(rate, t, r, limit, wait), min(kept, default=None)]


def counts_from_zero(rate, t, r, limit, wait, p99_s):
    truth = _truth(p99_s, limit)
    return [_formula(rate, t, r, limit, wait), None if truth is None else truth - 1]


def no_larger_than_the_formula(rate, t, r, limit, wait, p99_s):
    formula = _formula(rate, t, r, limit, wait)
    return [formula, _truth(p99_s[:formula], limit)]


def the_nearest_to_the_limit(rate, t, r, limit, wait, p99_s):
    kept = [(p99, B) for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]
    return [_formula(rate, t, r, limit, wait), max(kept)[1] if kept else None]


def by_trying(rate, t, r, limit, wait, p99_s):
    """Tries batch sizes against the formula's own sum, with its tolerance."""
    formula = None
    for B in range(max(1, _stable(rate, t, r)), 1000):
        if min(wait, (B - 1) / rate) + t + r * B <= limit + 1e-10:
            formula = B
    truth = None
    for B in range(len(p99_s), 0, -1):
        if truth is None and p99_s[B - 1] is not None and p99_s[B - 1] <= limit:
            truth = B
    return formula, truth


def by_rounding(rate, t, r, limit, wait, p99_s):
    sizes = []
    for size in _branches(rate, t, r, limit, wait):
        whole = round(size)
        sizes.append(whole if abs(size - whole) < 1e-9 else int(size // 1))
    largest = sorted(sizes)[-1]
    late = [p99 is None or p99 > limit for p99 in p99_s]
    while late and late[-1]:
        late.pop()
    return [largest if largest > 0 and largest >= _stable(rate, t, r) else None, len(late) or None]


WRONG = {
    the_smaller_branch: {"formula": "the larger branch counts", "none": None, "truth": None},
    only_the_gathering: {"formula": "the larger branch counts", "none": None},
    leaves_the_wait_out: {"formula": "leaves the wait out", "none": None, "truth": None},
    floors_floats: {"formula": "computers round", "none": "just below a whole number"},
    rounds_up: {"formula": "round down", "none": None, "truth": None},
    forgets_stability: {"none": "below the smallest stable one"},
    answers_one_when_none_fits: {"none": "say None", "truth": None},
    stops_at_the_first_failure: {"formula": None, "none": None, "truth": "stopped at the first failure"},
    the_lowest_p99: {"none": None, "truth": "not the one with the lowest P99"},
    the_smallest_that_fits: {"none": None, "truth": "not the smallest"},
    no_larger_than_the_formula: {"formula": None, "truth": "look at all batches"},
    the_nearest_to_the_limit: {"truth": "from both banks"},
    counts_from_zero: {"formula": None, "none": None, "truth": "lists from 0"},
}
RIGHT = [by_trying, by_rounding]
