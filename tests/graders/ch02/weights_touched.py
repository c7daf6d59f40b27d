"""Answers to `weights_touched`: six and more wrong ideas, and differently built right ones."""

import math
from fractions import Fraction


def _all(read, m, shared=1):
    return shared * m["shared"] + m["layers"] * read * m["expert"]


def _read(B, m):
    return m["experts"] * (1 - (1 - m["chosen"] / m["experts"]) ** B)


def active_weights_only(B, m):
    return _all(m["chosen"], m)


def all_weights(B, m):
    return _all(m["experts"], m)


def counts_every_choice(B, m):
    return _all(min(m["experts"], B * m["chosen"]), m)


def lets_a_token_choose_twice(B, m):
    return _all(m["experts"] * (1 - (1 - 1 / m["experts"]) ** (B * m["chosen"])), m)


def active_weights_for_each_token(B, m):
    return B * _all(m["chosen"], m)


def shared_weights_for_each_token(B, m):
    return _all(_read(B, m), m, shared=B)


def leaves_out_the_shared(B, m):
    return _all(_read(B, m), m, shared=0)


def one_layer(B, m):
    return _all(_read(B, m), {**m, "layers": 1})


def counts_experts(B, m):
    return _read(B, m)


def rounds_experts(B, m):
    return _all(round(_read(B, m)), m)


def rounds_experts_up(B, m):
    return _all(math.ceil(_read(B, m) - 1e-9), m)


def the_missed_ones(B, m):
    return _all(m["experts"] - _read(B, m), m)


def rounds_to_a_whole_weight(B, m):
    return int(_all(_read(B, m), m))


def forgets_to_return(B, m):
    _all(_read(B, m), m)


def by_the_formula(B, m):
    return _all(_read(B, m), m)


def token_by_token(B, m):
    unread = m["experts"]
    for _ in range(B):
        unread -= unread * m["chosen"] / m["experts"]
    return _all(m["experts"] - unread, m)


def in_fractions(B, m):
    missed = (1 - Fraction(m["chosen"], m["experts"])) ** min(B, 500)
    return _all(float(m["experts"] * (1 - missed)), m)


def by_logarithms(B, m):
    share = m["chosen"] / m["experts"]
    return _all(m["experts"] * (-math.expm1(B * math.log1p(-share)) if share < 1 else 1), m)


WRONG = {
    active_weights_only: {"basic": "the active weights of one token", "edges": None, "property": "adds experts"},
    all_weights: {"basic": "these are all weights", "edges": "these are all weights", "property": "adds experts"},
    counts_every_choice: {"basic": "which is read once", "edges": None, "property": "fewer than the one before"},
    lets_a_token_choose_twice: {
        "basic": "one token's choices are different",
        "edges": "one token's choices",
        "property": None,
    },
    active_weights_for_each_token: {"basic": "each expert once", "edges": None, "property": "adds experts"},
    shared_weights_for_each_token: {"basic": "shared weights are read once", "edges": None, "property": None},
    leaves_out_the_shared: {"basic": "left out", "edges": "left out", "property": None},
    one_layer: {"basic": "times the layers", "edges": None, "property": None},
    counts_experts: {"basic": "these are experts of a layer", "edges": None, "property": None},
    rounds_experts: {"basic": "don't round", "edges": "don't round", "property": None},
    rounds_experts_up: {"basic": "don't round", "edges": "don't round", "property": None},
    rounds_to_a_whole_weight: {"edges": "don't round"},
    forgets_to_return: dict.fromkeys(("basic", "edges", "property"), "end in a `return`"),
    the_missed_ones: {"basic": "the experts that are missed", "edges": None, "property": None},
}
RIGHT = [by_the_formula, token_by_token, in_fractions, by_logarithms]
