"""Answers to `blocks_missing`: wrong ideas about what must fit for a start, and differently built right ones."""

import math


def wants_room_for_all_seats(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, max_num_seqs * math.ceil(max_model_len / block_size) - blocks)


def counts_tokens(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, max_model_len - blocks * block_size)


def takes_tokens_for_blocks(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, max_model_len - blocks)


def forgets_the_blocks_that_are_there(blocks, block_size, max_model_len, max_num_seqs):
    return 0 if blocks * block_size >= max_model_len else math.ceil(max_model_len / block_size)


def rounds_down(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, max_model_len // block_size - blocks)


def rounds_to_the_nearest(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, round(max_model_len / block_size) - blocks)


def goes_below_zero(blocks, block_size, max_model_len, max_num_seqs):
    return math.ceil(max_model_len / block_size) - blocks


def says_only_whether(blocks, block_size, max_model_len, max_num_seqs):
    return blocks * block_size >= max_model_len


def keeps_one_block_back(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, math.ceil(max_model_len / block_size) - (blocks - 1))


def forgets_to_return(blocks, block_size, max_model_len, max_num_seqs):
    rounded_up(blocks, block_size, max_model_len, max_num_seqs)


def rounded_up(blocks, block_size, max_model_len, max_num_seqs):
    return max(0, math.ceil(max_model_len / block_size) - blocks)


def one_at_a_time(blocks, block_size, max_model_len, max_num_seqs):
    missing = 0
    while (blocks + missing) * block_size < max_model_len:
        missing += 1
    return missing


WRONG = {
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "nothing came back: does every way through",
        "property": "nothing came back: does every way through",
    },
    wants_room_for_all_seats: {
        "basic": "doesn't ask for max_num_seqs",
        "edges": None,
        "property": "max_num_seqs has no part in it",
    },
    counts_tokens: {
        "basic": "these are tokens",
        "edges": "these are tokens: blocks are missing, of",
        "property": "too many",
    },
    takes_tokens_for_blocks: {"basic": "turn it into blocks", "edges": None, "property": None},
    forgets_the_blocks_that_are_there: {"basic": "take away the blocks", "edges": None, "property": "too many"},
    rounds_down: {
        "basic": "a request holds whole blocks: round its",
        "edges": "a request holds whole blocks: round its",
        "property": "too few",
    },
    rounds_to_the_nearest: {
        "basic": "a request holds whole blocks: round its",
        "edges": "a request holds whole blocks: round its",
        "property": "too few",
    },
    goes_below_zero: {"edges": "it starts", "property": "where it starts, none is missing"},
    says_only_whether: {"basic": "not whether it starts", "edges": None, "property": None},
    keeps_one_block_back: {"basic": "one too many", "edges": None, "property": "too many"},
}
RIGHT = [rounded_up, one_at_a_time]
