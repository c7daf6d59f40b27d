"""Answers to `smallest_batch`: six and more wrong ideas, and differently built right ones."""

import math
from fractions import Fraction


def thinks_the_rate_linear(fraction, fixed_s, per_request_s):
    half = fixed_s / per_request_s
    return max(1, math.ceil(2 * fraction * half - 1e-9))


def thinks_the_turning_point_is_the_limit(fraction, fixed_s, per_request_s):
    return max(1, math.ceil(fraction * fixed_s / per_request_s - 1e-9))


def always_the_half(fraction, fixed_s, per_request_s):
    return max(1, math.ceil(fixed_s / per_request_s - 1e-9))


def rounds_down(fraction, fixed_s, per_request_s):
    return max(1, math.floor(fraction * fixed_s / (per_request_s * (1 - fraction)) + 1e-9))


def no_whole_number(fraction, fixed_s, per_request_s):
    return max(1.0, fraction * fixed_s / (per_request_s * (1 - fraction)))


def trusts_floats(fraction, fixed_s, per_request_s):
    return max(1, math.ceil(fraction * fixed_s / (per_request_s * (1 - fraction))))


def wants_more_than_the_share(fraction, fixed_s, per_request_s):
    return math.floor(fraction * fixed_s / (per_request_s * (1 - fraction)) + 1e-9) + 1


def a_batch_of_zero(fraction, fixed_s, per_request_s):
    return math.ceil(fraction * fixed_s / (per_request_s * (1 - fraction)) - 1e-9)


def searches_up_to_1000(fraction, fixed_s, per_request_s):
    for B in range(1, 1001):
        if B * per_request_s / (fixed_s + per_request_s * B) >= fraction * (1 - 1e-9):
            return B
    return 1000


def swaps_the_shares(fraction, fixed_s, per_request_s):
    return max(1, math.ceil((1 - fraction) * fixed_s / (per_request_s * fraction) - 1e-9))


def returns_the_rate(fraction, fixed_s, per_request_s):
    return math.ceil(fraction / per_request_s)


def solves_for_B(fraction, fixed_s, per_request_s):
    exact = fraction * fixed_s / (per_request_s * (1 - fraction))
    return max(1, math.ceil(exact * (1 - 1e-9)))


def bisects(fraction, fixed_s, per_request_s):
    def reaches(B):
        return B / (fixed_s + per_request_s * B) >= fraction / per_request_s * (1 - 1e-9)

    high = 1
    while not reaches(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def in_decimal_fractions(fraction, fixed_s, per_request_s):
    f, t, r = (Fraction(repr(float(value))) for value in (fraction, fixed_s, per_request_s))
    return max(1, math.ceil(f * t / (r * (1 - f))))


def loops_without_a_tolerance(fraction, fixed_s, per_request_s):
    B = 1
    while B / (fixed_s + per_request_s * B) < fraction / per_request_s:
        B += 1
    return B


def forgets_to_return(fraction, fixed_s, per_request_s):
    solves_for_B(fraction, fixed_s, per_request_s)


def counts_up(fraction, fixed_s, per_request_s):
    B = 1
    while per_request_s * B / (fixed_s + per_request_s * B) < fraction * (1 - 1e-9):
        B += 1
    return B


linear = "the rate is not linear in B"
slow = "the approach to the limit is slow"
WRONG = {
    thinks_the_rate_linear: {"basic": linear, "edges": linear, "property": slow},
    thinks_the_turning_point_is_the_limit: {"basic": "gives half of the limit, not", "edges": linear, "property": slow},
    always_the_half: {"basic": "whatever the fraction", "edges": "whatever the fraction", "property": slow},
    rounds_down: {"basic": "falls short", "property": "the batch is too small: round up"},
    no_whole_number: {"basic": "a whole number of orders", "edges": "a whole number of", "property": "whole number"},
    trusts_floats: {"edges": "don't go one further"},
    loops_without_a_tolerance: {"edges": "don't go one further"},
    wants_more_than_the_share: {"edges": "don't go one further"},
    a_batch_of_zero: {"edges": "never smaller than one order"},
    searches_up_to_1000: {"edges": "don't stop searching early"},
    swaps_the_shares: {"basic": "changed places", "edges": "changed places", "property": slow},
    returns_the_rate: {"basic": "this is a rate", "edges": None, "property": slow},
    forgets_to_return: dict.fromkeys(("basic", "edges", "property"), "end in a `return`"),
}
RIGHT = [solves_for_B, bisects, in_decimal_fractions, counts_up]
