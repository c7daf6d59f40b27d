"""Answers to `crossing_batch`: six and more wrong ideas, and differently built right ones."""

import math
from fractions import Fraction


def _times(context, e):
    """Weights, a request's cache, a token's arithmetic."""
    return (
        e["weights"] * e["bytes_each"] / e["bytes_per_s"],
        context * e["kv_bytes_per_token"] / e["bytes_per_s"],
        2 * e["weights"] / e["flops_per_s"],
    )


def _up(exact):
    return max(1, math.ceil(exact * (1 - 1e-9)))


def one_ridge_whatever_the_context(context, e):
    weights, _, token = _times(context, e)
    return _up(weights / token)


def the_cards_flop_per_byte(context, e):
    return _up(e["flops_per_s"] / e["bytes_per_s"])


def adds_the_cache(context, e):
    weights, cache, token = _times(context, e)
    return _up(weights / (token + cache))


def only_one_request_has_a_cache(context, e):
    weights, cache, token = _times(context, e)
    return _up((weights + cache) / token)


def where_the_caches_take_as_long_as_the_weights(context, e):
    weights, cache, token = _times(context, e)
    if cache >= token * (1 - 1e-9):
        return None
    return _up(weights / cache) if cache else _up(weights / token)


def rounds_down(context, e):
    weights, cache, token = _times(context, e)
    return max(1, math.floor(weights / (token - cache) * (1 + 1e-9))) if token - cache > 1e-9 * token else None


def no_whole_number(context, e):
    weights, cache, token = _times(context, e)
    return max(1.0, weights / (token - cache)) if token - cache > 1e-9 * token else None


def trusts_floats(context, e):
    weights, cache, token = _times(context, e)
    return max(1, math.ceil(weights / (token - cache))) if token > cache else None


def wants_computing_to_take_longer(context, e):
    weights, cache, token = _times(context, e)
    return math.floor(weights / (token - cache) * (1 + 1e-9)) + 1 if token - cache > 1e-9 * token else None


def returns_the_negative_batch(context, e):
    weights, cache, token = _times(context, e)
    return _right(context, e) if token > cache * (1 + 1e-9) else math.floor(-abs(weights / ((token - cache) or 1e-9)))


def no_batch_is_zero(context, e):
    return _right(context, e) or 0


def no_batch_is_infinite(context, e):
    return _right(context, e) or math.inf


def searches_up_to_200_000(context, e):
    weights, cache, token = _times(context, e)
    return next((B for B in range(1, 200_001) if B * token >= (weights + B * cache) * (1 - 1e-9)), None)


def a_batch_of_zero(context, e):
    weights, cache, token = _times(context, e)
    return round(weights / (token - cache)) if weights < (token - cache) * 0.9 else _right(context, e)


def _right(context, e):
    weights, cache, token = _times(context, e)
    return _up(weights / (token - cache)) if token - cache > 1e-9 * token else None


def forgets_to_return(context, e):
    _right(context, e)


def by_the_formula(context, e):
    return _right(context, e)


def doubles_then_halves(context, e):
    weights, cache, token = _times(context, e)
    if token <= cache * (1 + 1e-9):
        return None

    def computes(B):
        return B * token >= (weights + B * cache) * (1 - 1e-12)

    high = 1
    while not computes(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def in_fractions(context, e):
    f = {name: Fraction(value) for name, value in e.items()}
    cache = context * f["kv_bytes_per_token"] / f["bytes_per_s"]
    token = 2 * f["weights"] / f["flops_per_s"]
    if token - cache <= token / 10**9:
        return None
    exact = f["weights"] * f["bytes_each"] / f["bytes_per_s"] / (token - cache)
    return max(1, math.ceil(exact * (1 - Fraction(1, 10**9))))


RIDGE = "this is the ridge of an empty context"
WRONG = {
    one_ridge_whatever_the_context: {"basic": RIDGE, "none": RIDGE, "edges": None, "property": "to larger batches"},
    the_cards_flop_per_byte: {
        "basic": "the card's FLOP per byte",
        "none": "FLOP per byte",
        "edges": None,
        "property": None,
    },
    adds_the_cache: {"basic": "not nearer", "none": "not nearer", "edges": None, "property": "to larger batches"},
    only_one_request_has_a_cache: {
        "basic": "every request of the batch",
        "none": "brings a cache",
        "edges": None,
        "property": None,
    },
    where_the_caches_take_as_long_as_the_weights: {
        "basic": "the caches take as long as the weights",
        "edges": None,
        "property": None,
    },
    rounds_down: {"basic": "round up", "edges": None, "property": "too small"},
    no_whole_number: {"basic": "a whole number of requests", "edges": None, "property": "whole number"},
    trusts_floats: {"none": "exactly as long", "edges": "don't go one further"},
    wants_computing_to_take_longer: {"edges": "don't go one further"},
    returns_the_negative_batch: {"none": "a negative batch", "property": "no batch catches up"},
    no_batch_is_zero: {"none": "return None, not 0", "property": "no batch catches up"},
    no_batch_is_infinite: {"none": "not infinity", "property": "a whole number or None"},
    searches_up_to_200_000: {"edges": "stops at some largest batch"},
    a_batch_of_zero: {"edges": "never smaller than one request"},
    forgets_to_return: {"basic": "end in a `return`", "edges": "end in a `return`", "property": None},
}
RIGHT = [by_the_formula, doubles_then_halves, in_fractions]
