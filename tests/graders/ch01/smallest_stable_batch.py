"""Answers to `smallest_stable_batch`: six and more wrong ideas, and differently built right ones."""

import math
from fractions import Fraction


def accepts_rho_one(rate_rps, fixed_s, per_request_s):
    spare = 1 - rate_rps * per_request_s
    return max(1, math.ceil(rate_rps * fixed_s / spare - 1e-9)) if spare > 1e-9 else None


def trusts_floats(rate_rps, fixed_s, per_request_s):
    spare = 1 - rate_rps * per_request_s
    return math.floor(rate_rps * fixed_s / spare) + 1 if spare > 0 else None


def leaves_out_the_orders_time(rate_rps, fixed_s, per_request_s):
    return math.floor(rate_rps * fixed_s + 1e-9) + 1


def no_batch_is_zero(rate_rps, fixed_s, per_request_s):
    return _right(rate_rps, fixed_s, per_request_s) or 0


def never_says_none(rate_rps, fixed_s, per_request_s):
    return math.floor(rate_rps * fixed_s / ((1 - rate_rps * per_request_s) or 1e-9) + 1e-9) + 1


def rounds_down(rate_rps, fixed_s, per_request_s):
    spare = 1 - rate_rps * per_request_s
    return max(1, math.floor(rate_rps * fixed_s / spare + 1e-9)) if spare > 1e-9 else None


def compares_with_batches_per_second(rate_rps, fixed_s, per_request_s):
    return 1 if rate_rps * (fixed_s + per_request_s) < 1 else None


def searches_up_to_64(rate_rps, fixed_s, per_request_s):
    for B in range(1, 65):
        if rate_rps * (fixed_s + per_request_s * B) / B < 1 - 1e-9:
            return B
    return None


def answers_half_of_the_limit(rate_rps, fixed_s, per_request_s):
    return max(1, math.ceil(fixed_s / per_request_s)) if rate_rps * per_request_s < 1 - 1e-9 else None


def a_batch_of_zero(rate_rps, fixed_s, per_request_s):
    if fixed_s == 0 and rate_rps * per_request_s < 1 - 1e-9:
        return 0
    return _right(rate_rps, fixed_s, per_request_s)


def calls_the_limit_stable(rate_rps, fixed_s, per_request_s):
    if abs(rate_rps * per_request_s - 1) < 1e-9:
        return 1
    return _right(rate_rps, fixed_s, per_request_s)


def _right(rate_rps, fixed_s, per_request_s):
    spare = 1 - rate_rps * per_request_s
    return math.floor(rate_rps * fixed_s / spare * (1 + 1e-9)) + 1 if spare > 1e-9 else None


def by_the_formula(rate_rps, fixed_s, per_request_s):
    return _right(rate_rps, fixed_s, per_request_s)


def doubles_then_halves(rate_rps, fixed_s, per_request_s):
    def stable(B):
        return rate_rps * (fixed_s + per_request_s * B) / B < 1 - 1e-9

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


def in_decimal_fractions(rate_rps, fixed_s, per_request_s):
    rate, t, r = (Fraction(repr(float(value))) for value in (rate_rps, fixed_s, per_request_s))
    spare = 1 - rate * r
    return math.floor(rate * t / spare) + 1 if spare > Fraction(1, 10**9) else None


WRONG = {
    accepts_rho_one: {"boundary": "at this batch rho is exactly 1"},
    trusts_floats: {"boundary": "at this batch rho is exactly 1", "none": "return None"},
    leaves_out_the_orders_time: {
        "basic": "the orders cost time as well",
        "boundary": None,
        "none": "return None",
        "property": "above the arrival rate",
    },
    no_batch_is_zero: {"none": "when no batch is stable the answer is None"},
    never_says_none: {"none": "when no batch is stable the answer is None"},
    rounds_down: {"basic": "round up", "boundary": "exactly 1", "property": None},
    compares_with_batches_per_second: {"basic": "some batch size is stable", "boundary": None, "property": None},
    searches_up_to_64: {"basic": "some batch size is stable", "boundary": None, "property": "don't stop searching"},
    answers_half_of_the_limit: {"basic": "half of the limit", "boundary": None, "property": None},
    a_batch_of_zero: {"boundary": "never smaller than one order"},
    calls_the_limit_stable: {"none": "return None"},
}
RIGHT = [by_the_formula, doubles_then_halves, in_decimal_fractions]
