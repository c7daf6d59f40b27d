"""Answers to `prefill_s`: six and more wrong ideas, and differently built right ones."""

import numpy as np


def _parts(P, e):
    """Weights, one token's cache, one token's arithmetic: seconds."""
    return (
        e["weights"] * e["bytes_each"] / e["bytes_per_s"],
        e["kv_bytes_per_token"] / e["bytes_per_s"],
        2 * e["weights"] / e["flops_per_s"],
    )


def p_readings_of_the_weights(P, e):
    return P * _parts(P, e)[0]


def p_decode_steps_with_a_growing_cache(P, e):
    weights, cache, token = _parts(P, e)
    return sum(max(weights + held * cache, token) for held in range(1, P + 1))


def p_decode_steps_with_the_whole_cache(P, e):
    weights, cache, token = _parts(P, e)
    return P * max(weights + P * cache, token)


def computes_only(P, e):
    return P * _parts(P, e)[2]


def reads_only(P, e):
    weights, cache, _ = _parts(P, e)
    return weights + P * cache


def forgets_the_cache(P, e):
    weights, _, token = _parts(P, e)
    return max(weights, P * token)


def a_cache_for_every_token(P, e):
    weights, cache, token = _parts(P, e)
    return max(weights + P * P * cache, P * token)


def adds_both(P, e):
    weights, cache, token = _parts(P, e)
    return weights + P * cache + P * token


def counts_one_operation_for_a_weight(P, e):
    weights, cache, token = _parts(P, e)
    return max(weights + P * cache, P * token / 2)


def computes_one_token(P, e):
    weights, cache, token = _parts(P, e)
    return max(weights + P * cache, token)


def takes_every_weight_for_two_bytes(P, e):
    return as_two_sides(P, {**e, "bytes_each": 2})


def forgets_to_return(P, e):
    as_two_sides(P, e)


def as_two_sides(P, e):
    weights, cache, token = _parts(P, e)
    return max(weights + P * cache, P * token)


def as_a_batch_of_tokens(P, e):
    """A prompt of P tokens is a step of P requests of which one has a cache."""
    read = e["weights"] * e["bytes_each"] + e["kv_bytes_per_token"] * P
    computed = sum(2 * e["weights"] for _ in range(P))
    reading, computing = read / e["bytes_per_s"], computed / e["flops_per_s"]
    return computing if computing > reading else reading


def in_numpy(P, e):
    weights, cache, token = _parts(P, e)
    return np.maximum(weights + P * cache, np.float64(P) * token)


STEPS = "these are P decode steps"
WRONG = {
    p_readings_of_the_weights: {"basic": STEPS, "short": STEPS, "property": "hardly longer"},
    p_decode_steps_with_a_growing_cache: {"basic": STEPS, "short": None, "property": "hardly longer"},
    p_decode_steps_with_the_whole_cache: {"basic": STEPS, "short": None, "property": "hardly longer"},
    computes_only: {"short": "the arithmetic alone", "property": "hardly longer"},
    reads_only: {"basic": "the time of reading", "property": "twice a long one"},
    forgets_the_cache: {"short": "goes through memory too", "property": None},
    a_cache_for_every_token: {
        "basic": "not once for each token",
        "short": "not once for each token",
        "property": None,
    },
    adds_both: {"basic": "reading and computing overlap", "short": "overlap", "property": None},
    counts_one_operation_for_a_weight: {"basic": "two operations for each weight", "property": None},
    computes_one_token: {"basic": "the time of reading", "property": "twice a long one"},
    takes_every_weight_for_two_bytes: {"short": "aren't in 16 bits", "property": None},
}
WRONG[forgets_to_return] = dict.fromkeys(("basic", "short", "property"), "end in a `return`")
RIGHT = [as_two_sides, as_a_batch_of_tokens, in_numpy]
