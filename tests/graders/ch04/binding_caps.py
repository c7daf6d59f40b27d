"""Answers to `binding_caps`: wrong ideas about who holds the line back, and differently built right ones."""

import math


def _right(step):
    if step["waiting"] == 0:
        return []
    short = math.ceil(step["head_tokens"] / step["block_size"]) > step["free_blocks"]
    holds = {
        "seats": step["running"] >= step["max_num_seqs"],
        "tokens": step["step_tokens"] >= step["max_num_batched_tokens"],
        "blocks": short or step["preempted"] > 0,
    }
    return [name for name, held in holds.items() if held]


def a_line_means_seats(step):
    return ["seats"] if step["waiting"] > 0 else []


def only_the_first_cap(step):
    return _right(step)[:1]


def a_full_pool_by_percentage(step):
    caps = [cap for cap in _right(step) if cap != "blocks"]
    full = step["free_blocks"] < 0.05 * step["num_blocks"]
    return [*caps, "blocks"] if full and step["waiting"] else caps


def forgets_preemption(step):
    return _right({**step, "preempted": 0})


def rounds_blocks_down(step):
    return _right({**step, "head_tokens": step["head_tokens"] // step["block_size"] * step["block_size"]})


def as_many_as_free_is_too_many(step):
    return _right({**step, "free_blocks": step["free_blocks"] - 1})


def blames_caps_without_a_line(step):
    return _right({**step, "waiting": 1})


def wants_the_whole_prompt_in_the_budget(step):
    caps = _right(step)
    room = step["max_num_batched_tokens"] - step["step_tokens"]
    if step["waiting"] and step["head_tokens"] > room and "tokens" not in caps:
        caps = [*caps, "tokens"]
    return sorted(caps, key=["seats", "tokens", "blocks"].index)


def compares_tokens_with_blocks(step):
    return _right({**step, "block_size": 1})


def budget_never_binds(step):
    return [cap for cap in _right(step) if cap != "tokens"]


def names_blocks_twice(step):
    caps = _right({**step, "preempted": 0})
    return [*caps, "blocks"] if step["waiting"] and step["preempted"] else caps


def takes_every_block_for_16(step):
    return _right({**step, "block_size": 16})


def in_another_order(step):
    return _right(step)[::-1]


def forgets_to_return(step):
    _right(step)


def step_by_step(step):
    caps = []
    if step["waiting"]:
        if step["running"] == step["max_num_seqs"]:
            caps.append("seats")
        if step["step_tokens"] == step["max_num_batched_tokens"]:
            caps.append("tokens")
        if step["preempted"] or step["free_blocks"] * step["block_size"] < step["head_tokens"]:
            caps.append("blocks")
    return caps


def as_a_tuple(step):
    return tuple(_right(step))


WRONG = {
    a_line_means_seats: {"one": "a line alone says nothing", "none": "a line alone", "several": "every cap"},
    only_the_first_cap: {"several": "every cap that holds"},
    a_full_pool_by_percentage: {
        "one": "how many blocks does the head need, and",
        "none": "not a share of the pool",
        "several": None,
    },
    forgets_preemption: {"several": "somebody was preempted"},
    rounds_blocks_down: {"one": "how many blocks does the head need, and", "several": None},
    as_many_as_free_is_too_many: {
        "one": "the head's tokens are no blocks: a block",
        "none": "rounded up, with those that are free",
    },
    blames_caps_without_a_line: {"none": "nobody waits"},
    wants_the_whole_prompt_in_the_budget: {"one": None, "none": "can begin the head's prompt"},
    compares_tokens_with_blocks: {"one": "the head's tokens are no blocks: a block", "none": "not its tokens"},
    names_blocks_twice: {"several": "name each cap once"},
    takes_every_block_for_16: {"one": "how many blocks does the head need, and"},
    in_another_order: {"several": "in another order"},
    forgets_to_return: {
        "one": "end in a `return`",
        "none": "nothing came back: does every way through",
        "several": "nothing came back: does every way through",
    },
    budget_never_binds: {"one": "all that it may", "several": "a step that computes all that it may has"},
}
RIGHT = [_right, step_by_step, as_a_tuple]
