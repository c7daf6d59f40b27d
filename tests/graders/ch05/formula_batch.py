"""Answers to `formula_batch`: wrong ideas about the two branches, and differently built right ones."""

import math


def _branches(rate, t, r, limit, wait):
    return (limit - wait - t) / r, (rate * (limit - t) + 1) / (1 + rate * r)


def _stable(rate, t, r):
    return math.floor(rate * t / (1 - rate * r) + 1e-9) + 1


def _formula(rate, t, r, limit, wait, pick=max, floor=lambda x: math.floor(x + 1e-9)):
    size = floor(pick(_branches(rate, t, r, limit, wait)))
    return size if size >= max(1, _stable(rate, t, r)) else None


def as_it_was(rate, t, r, limit, wait):
    return max(1, math.floor(min(_branches(rate, t, r, limit, wait))))


def the_smaller_branch(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, pick=min)


def only_the_window(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, pick=lambda both: both[0])


def only_the_gathering(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, pick=lambda both: both[1])


def leaves_the_wait_out(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, 0.0)


def floors_floats(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, floor=math.floor)


def floors_the_gathering_s_float(rate, t, r, limit, wait):
    by_window, by_gathering = _branches(rate, t, r, limit, wait)
    size = max(math.floor(by_window + 1e-9), math.floor(by_gathering))
    return size if size >= max(1, _stable(rate, t, r)) else None


def rounds_up(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, floor=lambda x: math.ceil(x - 1e-9))


def rounds_to_the_nearest(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, floor=round)


def keeps_the_fraction(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait, floor=lambda x: x)


def forgets_stability(rate, t, r, limit, wait):
    size = math.floor(max(_branches(rate, t, r, limit, wait)) + 1e-9)
    return size if size >= 1 else None


def one_below_stable_will_do(rate, t, r, limit, wait):
    size = math.floor(max(_branches(rate, t, r, limit, wait)) + 1e-9)
    return size if size >= max(1, _stable(rate, t, r) - 1) else None


def above_the_smallest_stable(rate, t, r, limit, wait):
    size = _formula(rate, t, r, limit, wait)
    return size if size and size > _stable(rate, t, r) else None


def accepts_a_pot_that_never_rests(rate, t, r, limit, wait):
    size = math.floor(max(_branches(rate, t, r, limit, wait)) + 1e-9)
    return size if size >= rate * t / (1 - rate * r) else None


def answers_one_when_none_fits(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait) or 1


def answers_zero_when_none_fits(rate, t, r, limit, wait):
    return _formula(rate, t, r, limit, wait) or 0


def forgets_to_return(rate, t, r, limit, wait):
    _formula(rate, t, r, limit, wait)


def by_trying(rate, t, r, limit, wait):
    """Tries batch sizes against the formula's own sum, with its tolerance."""
    found = None
    for B in range(max(1, _stable(rate, t, r)), 2000):
        if min(wait, (B - 1) / rate) + t + r * B <= limit + 1e-10:
            found = B
    return found


def by_rounding(rate, t, r, limit, wait):
    sizes = []
    for size in _branches(rate, t, r, limit, wait):
        whole = round(size)
        sizes.append(whole if abs(size - whole) < 1e-9 else int(size // 1))
    largest = sorted(sizes)[-1]
    return largest if largest > 0 and rate * (t + r * largest) < largest * (1 - 1e-12) else None


def in_fractions(rate, t, r, limit, wait):
    from fractions import Fraction

    rate, t, r, limit, wait = (Fraction(str(x)) for x in (rate, t, r, limit, wait))
    largest = max(math.floor((limit - wait - t) / r), math.floor((rate * (limit - t) + 1) / (1 + rate * r)))
    return largest if largest >= 1 and rate * (t + r * largest) < largest else None


def as_a_float(rate, t, r, limit, wait):
    size = by_rounding(rate, t, r, limit, wait)
    return None if size is None else float(size)


ALL = ("basic", "rounding", "none")
SMALLER = "the larger branch counts"
WRONG = {
    as_it_was: {"basic": SMALLER, "rounding": None, "none": None},
    the_smaller_branch: {"basic": SMALLER, "rounding": None, "none": None},
    only_the_window: {"basic": SMALLER, "rounding": None},
    only_the_gathering: {"basic": SMALLER, "rounding": None, "none": None},
    leaves_the_wait_out: {"basic": "leaves the wait out", "rounding": "leaves the wait out", "none": None},
    floors_floats: {"rounding": "computers round"},
    floors_the_gathering_s_float: {"rounding": "computers round"},
    rounds_up: {"basic": "round down", "none": None},
    rounds_to_the_nearest: {"basic": "round down", "none": None},
    keeps_the_fraction: {"basic": "round down", "rounding": "a whole number", "none": None},
    forgets_stability: {"none": "below the smallest stable one"},
    one_below_stable_will_do: {"none": "below the smallest stable one"},
    above_the_smallest_stable: {"none": "it is an answer"},
    accepts_a_pot_that_never_rests: {"none": "can't keep up"},
    answers_one_when_none_fits: {"none": "say None"},
    answers_zero_when_none_fits: {"none": "None where"},
    forgets_to_return: {"basic": "end in a `return`", "rounding": "end in a `return`", "none": None},
}
RIGHT = [by_trying, by_rounding, in_fractions, as_a_float]
