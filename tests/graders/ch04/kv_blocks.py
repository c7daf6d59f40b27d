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


def at_once(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    left_gib = max(0.0, utilization * total_gib - weights_gib - other_gib)
    return math.floor(left_gib * GIB / bytes_per_token / block_size)


def tokens_first(total_gib, utilization, weights_gib, other_gib, bytes_per_token, block_size):
    import numpy as np

    left = np.float64(utilization) * total_gib - (weights_gib + other_gib)
    tokens = np.floor(left * GIB / bytes_per_token)
    return max(np.int64(0), np.int64(tokens // block_size))


WRONG = {
    gives_the_whole_budget: {
        "basic": "weights and other come off first",
        "edges": "nothing is left",
        "property": "the share is for everything",
    },
    forgets_other: {"basic": "other memory comes off", "edges": None, "property": "both come off the budget"},
    takes_the_share_of_what_is_left: {"basic": "the share is of the whole card", "edges": None, "property": None},
    takes_the_whole_card: {"basic": "only its share", "edges": None, "property": "the share is for everything"},
    takes_gib_for_gb: {"basic": "not in GB", "edges": "a part of a block", "property": "in GiB"},
    counts_tokens: {"basic": "these are tokens", "edges": "a part of a block", "property": "too many blocks"},
    rounds_up: {"basic": "round down", "edges": "a part of a block", "property": "a part of a block is no block"},
    keeps_a_part_of_a_block: {"basic": "round down", "edges": "a part of a block", "property": "blocks are whole"},
    takes_off_the_null_block: {"basic": "count all blocks", "edges": None, "property": "too few blocks"},
    goes_below_zero: {"edges": "there are no negative blocks"},
}
RIGHT = [at_once, tokens_first]
