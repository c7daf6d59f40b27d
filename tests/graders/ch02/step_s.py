"""Answers to `step_s`: six and more wrong ideas, and differently built right ones."""

import numpy as np


def _sides(B, context, e):
    read = e["weights"] * e["bytes_each"] + B * context * e["kv_bytes_per_token"]
    return read / e["bytes_per_s"], 2 * e["weights"] * B / e["flops_per_s"]


def leaves_out_the_cache(B, context, e):
    return max(*_sides(B, 0, e))


def takes_the_longest_of_three(B, context, e):
    weights = e["weights"] * e["bytes_each"] / e["bytes_per_s"]
    caches = B * context * e["kv_bytes_per_token"] / e["bytes_per_s"]
    return max(weights, caches, _sides(B, context, e)[1])


def reads_one_cache(B, context, e):
    return max(_sides(1, context, e)[0], _sides(B, context, e)[1])


def reads_the_weights_for_each_request(B, context, e):
    reading, computing = _sides(1, context, e)
    return B * max(reading, computing)


def takes_every_weight_for_two_bytes(B, context, e):
    return max(*_sides(B, context, {**e, "bytes_each": 2}))


def takes_every_weight_for_one_byte(B, context, e):
    return max(*_sides(B, context, {**e, "bytes_each": 1}))


def scales_the_cache_by_the_weights_precision(B, context, e):
    return max(*_sides(B, context, {**e, "kv_bytes_per_token": e["kv_bytes_per_token"] * e["bytes_each"]}))


def adds_reading_and_computing(B, context, e):
    return sum(_sides(B, context, e))


def takes_the_shorter(B, context, e):
    return min(_sides(B, context, e))


def reads_only(B, context, e):
    return _sides(B, context, e)[0]


def counts_one_operation_for_a_weight(B, context, e):
    reading, computing = _sides(B, context, e)
    return max(reading, computing / 2)


def computes_one_token(B, context, e):
    return max(_sides(B, context, e)[0], _sides(1, context, e)[1])


def in_milliseconds(B, context, e):
    return 1000 * max(_sides(B, context, e))


def counts_operations_by_bytes(B, context, e):
    reading, computing = _sides(B, context, e)
    return max(reading, computing * e["bytes_each"] / 2)


def forgets_to_return(B, context, e):
    max(_sides(B, context, e))


def the_longer_side(B, context, e):
    return max(_sides(B, context, e))


def weights_and_caches_apart(B, context, e):
    per_byte, per_flop = 1 / e["bytes_per_s"], 1 / e["flops_per_s"]
    reading = e["weights"] * e["bytes_each"] * per_byte
    for _ in range(B):
        reading += context * e["kv_bytes_per_token"] * per_byte
    computing = B * 2 * e["weights"] * per_flop
    return reading if reading >= computing else computing


def in_numpy(B, context, e):
    work = np.array([e["weights"] * e["bytes_each"] + B * context * e["kv_bytes_per_token"], 2 * B * e["weights"]])
    return (work / np.array([e["bytes_per_s"], e["flops_per_s"]])).max()


WRONG = {
    leaves_out_the_cache: {
        "basic": "the KV cache is left out",
        "precision": None,
        "property": "every request's cache is read",
    },
    takes_the_longest_of_three: {"basic": "add their times", "precision": "add their times", "property": None},
    reads_one_cache: {
        "basic": "a cache of its own",
        "precision": None,
        "property": "at least as long as its reading",
    },
    reads_the_weights_for_each_request: {
        "basic": "read once for the whole batch",
        "precision": None,
        "computing": None,
        "property": "no longer than the longer",
    },
    takes_every_weight_for_two_bytes: {"precision": "for two bytes", "property": None},
    takes_every_weight_for_one_byte: {
        "basic": "for one byte",
        "precision": "for one byte",
        "property": None,
    },
    scales_the_cache_by_the_weights_precision: {
        "basic": None,
        "precision": "in bytes already",
        "property": None,
    },
    adds_reading_and_computing: {
        "basic": "not their sum",
        "precision": None,
        "computing": "not their sum",
        "property": "added up",
    },
    takes_the_shorter: {
        "basic": "the arithmetic alone",
        "precision": None,
        "computing": "takes longer here",
        "property": "the shorter of the two was taken",
    },
    reads_only: {"computing": "takes longer here", "property": "as its computing"},
    counts_one_operation_for_a_weight: {"computing": "two operations for each weight", "property": None},
    computes_one_token: {"computing": "takes longer here", "property": "as its computing"},
    in_milliseconds: {
        "basic": "the wrong unit",
        "precision": None,
        "computing": None,
        "property": "no longer than the longer",
    },
    counts_operations_by_bytes: {"computing": "whatever its bytes", "property": None},
    forgets_to_return: dict.fromkeys(("basic", "precision", "computing", "property"), "end in a `return`"),
}
RIGHT = [the_longer_side, weights_and_caches_apart, in_numpy]
