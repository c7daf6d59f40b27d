"""Answers to `smallest_stable_batch`: a load of 1, one pot for several, and differently built right ones."""

import math
from fractions import Fraction


def _right(rate_rps, fixed_s, per_request_s, pots):
    spare = pots - rate_rps * per_request_s
    return math.floor(rate_rps * fixed_s / spare * (1 + 1e-9)) + 1 if spare > 1e-9 else None


def accepts_rho_one(rate_rps, fixed_s, per_request_s, pots):
    spare = pots - rate_rps * per_request_s
    return max(1, math.ceil(rate_rps * fixed_s / spare - 1e-9)) if spare > 1e-9 else None


def trusts_floats(rate_rps, fixed_s, per_request_s, pots):
    spare = pots - rate_rps * per_request_s
    return math.floor(rate_rps * fixed_s / spare) + 1 if spare > 0 else None


def loops_without_a_tolerance(rate_rps, fixed_s, per_request_s, pots):
    if rate_rps * per_request_s >= pots * (1 - 1e-9):
        return None
    B = 1
    while rate_rps * (fixed_s + per_request_s * B) / (pots * B) >= 1:
        B += 1
    return B


def leaves_out_the_orders_time(rate_rps, fixed_s, per_request_s, pots):
    return math.floor(rate_rps * fixed_s / pots + 1e-9) + 1


def no_batch_is_zero(rate_rps, fixed_s, per_request_s, pots):
    return _right(rate_rps, fixed_s, per_request_s, pots) or 0


def never_says_none(rate_rps, fixed_s, per_request_s, pots):
    return math.floor(rate_rps * fixed_s / ((pots - rate_rps * per_request_s) or 1e-9) + 1e-9) + 1


def rounds_down(rate_rps, fixed_s, per_request_s, pots):
    spare = pots - rate_rps * per_request_s
    return max(1, math.floor(rate_rps * fixed_s / spare + 1e-9)) if spare > 1e-9 else None


def no_whole_number(rate_rps, fixed_s, per_request_s, pots):
    spare = pots - rate_rps * per_request_s
    return max(1.0, rate_rps * fixed_s / spare) if spare > 1e-9 else None


def compares_with_batches_per_second(rate_rps, fixed_s, per_request_s, pots):
    return 1 if rate_rps * (fixed_s + per_request_s) < pots else None


def searches_up_to_64(rate_rps, fixed_s, per_request_s, pots):
    for B in range(1, 65):
        if rate_rps * (fixed_s + per_request_s * B) / (pots * B) < 1 - 1e-9:
            return B
    return None


def answers_half_of_the_limit(rate_rps, fixed_s, per_request_s, pots):
    half = max(1, math.ceil(fixed_s / per_request_s - 1e-9))
    return half if rate_rps * per_request_s < pots * (1 - 1e-9) else None


def a_batch_of_zero(rate_rps, fixed_s, per_request_s, pots):
    if fixed_s == 0 and rate_rps * per_request_s < pots * (1 - 1e-9):
        return 0
    return _right(rate_rps, fixed_s, per_request_s, pots)


def calls_the_limit_stable(rate_rps, fixed_s, per_request_s, pots):
    if abs(rate_rps * per_request_s - pots) < 1e-9:
        return 1
    return _right(rate_rps, fixed_s, per_request_s, pots)


def forgets_the_other_pots(rate_rps, fixed_s, per_request_s, pots):
    return _right(rate_rps, fixed_s, per_request_s, 1)


def knows_the_limit_of_one_pot(rate_rps, fixed_s, per_request_s, pots):
    return _right(rate_rps, fixed_s, per_request_s, pots) if rate_rps * per_request_s < 1 - 1e-9 else None


def divides_one_pots_batch(rate_rps, fixed_s, per_request_s, pots):
    alone = _right(rate_rps, fixed_s, per_request_s, 1)
    return math.ceil(alone / pots) if alone else None


def forgets_to_return(rate_rps, fixed_s, per_request_s, pots):
    _right(rate_rps, fixed_s, per_request_s, pots)


def by_the_formula(rate_rps, fixed_s, per_request_s, pots):
    return _right(rate_rps, fixed_s, per_request_s, pots)


def doubles_then_halves(rate_rps, fixed_s, per_request_s, pots):
    def stable(B):
        return rate_rps * (fixed_s + per_request_s * B) / B / pots < 1 - 1e-9

    high = 1
    while not stable(high):
        if high > 2**50:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stable(middle) else (middle, high)
    return high


def in_decimal_fractions(rate_rps, fixed_s, per_request_s, pots):
    rate, t, r = (Fraction(repr(float(value))) for value in (rate_rps, fixed_s, per_request_s))
    spare = pots - rate * r
    return math.floor(rate * t / spare) + 1 if spare > Fraction(1, 10**9) else None


def counts_up(rate_rps, fixed_s, per_request_s, pots):
    for B in range(1, 100_001):
        if rate_rps * (fixed_s + per_request_s * B) / (pots * B) < 1 - 1e-9:
            return B
    return None


WRONG = {
    accepts_rho_one: {"boundary": "with this batch rho is 1"},
    trusts_floats: {"boundary": "with this batch rho is 1", "none": "return None"},
    loops_without_a_tolerance: {"boundary": "with this batch rho is 1"},
    leaves_out_the_orders_time: {
        "basic": "orders cost time as well",
        "boundary": None,
        "none": "orders cost",
        "property": None,
    },
    no_batch_is_zero: {"none": "when no batch is stable the answer is None"},
    never_says_none: {"none": "when no batch is stable the answer is None"},
    rounds_down: {"basic": "round up", "boundary": "with this batch rho is 1", "property": None},
    no_whole_number: {
        "basic": "a whole number of orders",
        "boundary": None,
        "none": "a whole number or None",
        "property": "a whole number or None",
    },
    compares_with_batches_per_second: {
        "basic": "large enough a batch does it",
        "boundary": None,
        "none": "below the limit some batch is large enough",
        "property": "below the limit some batch is large enough",
    },
    searches_up_to_64: {
        "basic": "don't stop searching early",
        "none": "below the limit some batch is large enough",
        "property": "don't stop searching early",
    },
    answers_half_of_the_limit: {"basic": "half of the limit", "boundary": None, "property": None},
    a_batch_of_zero: {"boundary": "never smaller than one order"},
    calls_the_limit_stable: {"none": "return None"},
    knows_the_limit_of_one_pot: {
        "basic": "below the number of pots",
        "boundary": None,
        "property": "1/r is the limit of one pot",
    },
    forgets_the_other_pots: {"basic": "the batch for a single pot", "boundary": None, "property": None},
    divides_one_pots_batch: {"basic": "that is divided", "boundary": None, "property": None},
    forgets_to_return: {
        "basic": "end in a `return`",
        "boundary": "end in a `return`",
        "none": "a `return` is missing",
        "property": "a `return` is missing",
    },
}
RIGHT = [by_the_formula, doubles_then_halves, in_decimal_fractions, counts_up]
