"""Answers to `kv_blocks`: wrong ideas about what is left for the cache, and differently built right ones."""

import math

GIB = 2**30


def gives_the_whole_budget(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return int(utilization * total_gib * GIB // (block_size * bytes_per_token))


def forgets_other(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int((utilization * total_gib - weights_gib) * GIB // (block_size * bytes_per_token)))


def takes_the_share_of_what_is_left(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int(utilization * (total_gib - weights_gib - other_gib) * GIB // (block_size * bytes_per_token)))


def takes_the_whole_card(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int((total_gib - weights_gib - other_gib) * GIB // (block_size * bytes_per_token)))


def takes_gib_for_gb(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int((utilization * total_gib - weights_gib - other_gib) * 1e9 // (block_size * bytes_per_token)))


def counts_tokens(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int((utilization * total_gib - weights_gib - other_gib) * GIB // bytes_per_token))


def rounds_up(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    left = (utilization * total_gib - weights_gib - other_gib) * GIB
    return max(0, math.ceil(left / (block_size * bytes_per_token)))


def keeps_a_part_of_a_block(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    left = (utilization * total_gib - weights_gib - other_gib) * GIB
    return max(0, left / (block_size * bytes_per_token))


def takes_off_the_null_block(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    left = (utilization * total_gib - weights_gib - other_gib) * GIB
    return max(0, int(left // (block_size * bytes_per_token)) - 1)


def goes_below_zero(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return int((utilization * total_gib - weights_gib - other_gib) * GIB // (block_size * bytes_per_token))


def forgets_the_weights(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return max(0, int((utilization * total_gib - other_gib) * GIB // (block_size * bytes_per_token)))


def always_16_tokens(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    return at_once(total_gib, utilization, weights_gib, other_gib, bytes_per_token, 16)


def forgets_to_return(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    at_once(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size)


def at_once(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    left_gib = max(0.0, utilization * total_gib - weights_gib - other_gib)
    return math.floor(left_gib * GIB / bytes_per_token / block_size)


def tokens_first(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    import numpy as np

    left = np.float64(utilization) * total_gib - (weights_gib + other_gib)
    tokens = np.floor(left * GIB / bytes_per_token)
    return max(np.int64(0), np.int64(tokens // block_size))


WRONG = {
    forgets_the_weights: {
        "basic": "the weights come off",
        "edges": "the weights come off, too",
        "size": "the weights come off, too",
        "property": "weights and other memory both come off",
    },
    always_16_tokens: {
        "basic": "from the budget take weights and other,",
        "edges": "a part of a block is no block",
        "size": "not always 16",
        "property": None,
    },
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "nothing came back: does every way through",
        "size": "nothing came back: does every way through",
        "property": "nothing came back: does every way through",
    },
    gives_the_whole_budget: {
        "basic": "weights and other come off first",
        "edges": "this gives the whole budget to the KV",
        "size": "this gives the whole budget to the KV",
        "property": "the share is for everything",
    },
    forgets_other: {
        "basic": "other memory comes off",
        "edges": None,
        "size": "other memory comes off, too",
        "property": "both come off the budget",
    },
    takes_the_share_of_what_is_left: {
        "basic": "the share is of the whole card",
        "edges": None,
        "size": "the share is of the whole card: take it",
        "property": None,
    },
    takes_the_whole_card: {
        "basic": "only its share",
        "edges": None,
        "size": "the engine may use only its share of the",
        "property": "the share is for everything",
    },
    takes_gib_for_gb: {
        "basic": "not in GB",
        "edges": "sizes are in GiB, two to the thirtieth,",
        "size": "sizes are in GiB, two to the thirtieth,",
        "property": "in GiB",
    },
    counts_tokens: {
        "basic": "these are tokens",
        "edges": "these are tokens: a block holds",
        "size": "these are tokens: a block holds",
        "property": "too many blocks",
    },
    rounds_up: {
        "basic": "round down",
        "edges": "a part of a block",
        "size": "a part of a block is no block: round down",
        "property": "a part of a block is no block",
    },
    keeps_a_part_of_a_block: {
        "basic": "round down",
        "edges": "a block is whole: round down",
        "size": "a block is whole: round down",
        "property": "the answer must be a whole number",
    },
    takes_off_the_null_block: {
        "basic": "count all blocks",
        "edges": None,
        "size": "one too few: count all blocks, for the",
        "property": "too few blocks",
    },
    goes_below_zero: {"edges": "there are no negative blocks"},
}
RIGHT = [at_once, tokens_first]
