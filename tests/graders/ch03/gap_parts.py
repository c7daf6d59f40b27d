"""Answers to `gap_parts`: factors for the wrong assumption, and differently built right ones."""

from fractions import Fraction
from itertools import islice

import numpy as np


def _parts(predicted, tokens, B, full_step_s, continuous_s):
    static = sum(max(tokens[k : k + B]) for k in range(0, len(tokens), B))
    return [static * B / sum(tokens) / predicted, sum(tokens) / B * full_step_s / continuous_s]


def _longest(tokens, B):
    return [max(tokens[k : k + B]) for k in range(0, len(tokens), B)]


def sees_no_gap(*args):
    return [1.0, 1.0]


def gives_the_piles_own_gain(predicted, *rest):
    draw, tail = _parts(predicted, *rest)
    return [draw * predicted, tail]


def turns_draw_round(*args):
    draw, tail = _parts(*args)
    return [1 / draw, tail]


def puts_all_into_draw(*args):
    draw, tail = _parts(*args)
    return [draw * tail, 1.0]


def puts_the_tail_into_draw_too(*args):
    draw, tail = _parts(*args)
    return [draw * tail, tail]


def puts_all_into_the_tail(*args):
    draw, tail = _parts(*args)
    return [1.0, draw * tail]


def puts_the_draw_into_the_tail_too(*args):
    draw, tail = _parts(*args)
    return [draw, draw * tail]


def subtracts_the_prediction(predicted, *rest):
    draw, tail = _parts(predicted, *rest)
    return [draw * predicted - predicted, tail]


def puts_the_longest_of_all_in_every_batch(predicted, tokens, B, *rest):
    tail = _parts(predicted, tokens, B, *rest)[1]
    return [max(tokens) * len(tokens) / sum(tokens) / predicted, tail]


def sorts_the_pile(predicted, tokens, B, *rest):
    return _parts(predicted, sorted(tokens), B, *rest)


def takes_the_mean_of_the_batches(predicted, tokens, B, *rest):
    tail = _parts(predicted, tokens, B, *rest)[1]
    longest = _longest(tokens, B)
    return [sum(longest) / len(longest) / (sum(tokens) / len(tokens)) / predicted, tail]


def drops_the_last_batch(predicted, tokens, B, *rest):
    tail = _parts(predicted, tokens, B, *rest)[1]
    return [sum(_longest(tokens[: len(tokens) // B * B], B)) * B / sum(tokens) / predicted, tail]


def turns_the_tail_round(*args):
    draw, tail = _parts(*args)
    return [draw, 1 / tail]


def one_token_a_step(predicted, tokens, B, *rest):
    draw, tail = _parts(predicted, tokens, B, *rest)
    return [draw, tail * B]


def compares_with_the_static_engine(predicted, tokens, B, full_step_s, continuous_s):
    draw = _parts(predicted, tokens, B, full_step_s, continuous_s)[0]
    return [draw, sum(_longest(tokens, B)) * full_step_s / continuous_s]


def gives_the_lost_share(*args):
    draw, tail = _parts(*args)
    return [draw, 1 - tail]


def counts_steps_instead_of_seconds(predicted, tokens, B, full_step_s, continuous_s):
    draw, tail = _parts(predicted, tokens, B, full_step_s, continuous_s)
    return [draw, tail / full_step_s]


def in_another_order(*args):
    return _parts(*args)[::-1]


def gives_their_product(*args):
    draw, tail = _parts(*args)
    return draw * tail


def forgets_to_return(*args):
    _parts(*args)


def sorts_the_callers_list(predicted, tokens, B, full_step_s, continuous_s):
    tokens.sort()
    return _parts(predicted, tokens, B, full_step_s, continuous_s)


def by_steps(predicted, tokens, B, full_step_s, continuous_s):
    static_steps, first = 0, 0
    while first < len(tokens):
        static_steps += max(tokens[first : first + B])
        first += B
    full_steps = sum(tokens) / B
    return static_steps / full_steps / predicted, full_steps * full_step_s / continuous_s


def in_numpy(predicted, tokens, B, full_step_s, continuous_s):
    lengths = np.zeros(-(-len(tokens) // B) * B)
    lengths[: len(tokens)] = tokens
    static_s = lengths.reshape(-1, B).max(axis=1).sum() * full_step_s
    full_s = lengths.mean() * len(lengths) / B * full_step_s
    return np.array([static_s / full_s / predicted, full_s / continuous_s])


def in_fractions(predicted, tokens, B, full_step_s, continuous_s):
    rest, longest = iter(tokens), []
    while batch := list(islice(rest, B)):
        longest.append(max(batch))
    full = Fraction(sum(tokens), B)
    steps_gap = sum(longest) / full / Fraction(predicted)
    return [float(steps_gap), float(full * Fraction(full_step_s) / Fraction(continuous_s))]


EVERYWHERE = {"basic": None, "simulated": None, "property": None}
WRONG = {
    sees_no_gap: {**EVERYWHERE, "basic": "there is no gap"},
    gives_the_piles_own_gain: {**EVERYWHERE, "basic": "still to be divided by the prediction"},
    turns_draw_round: {**EVERYWHERE, "basic": "draw is upside down"},
    puts_all_into_draw: {"basic": "the whole gap into draw", "property": None},
    puts_the_tail_into_draw_too: {**EVERYWHERE, "basic": "draw holds the empty seats too"},
    puts_all_into_the_tail: {**EVERYWHERE, "basic": "the whole gap into tail"},
    puts_the_draw_into_the_tail_too: {**EVERYWHERE, "basic": "tail holds the draw too"},
    subtracts_the_prediction: {**EVERYWHERE, "basic": "a factor, not a difference"},
    puts_the_longest_of_all_in_every_batch: {"basic": "form the batches", "simulated": None},
    sorts_the_pile: {**EVERYWHERE, "basic": "in the order of the list"},
    takes_the_mean_of_the_batches: {"basic": "count steps, not means", "simulated": None},
    drops_the_last_batch: {"basic": "the last batch counts too", "simulated": None},
    turns_the_tail_round: {**EVERYWHERE, "basic": "tail is upside down"},
    one_token_a_step: {"basic": "a full step gives B tokens", "simulated": None},
    compares_with_the_static_engine: {"basic": "compares with the static engine", "simulated": None},
    gives_the_lost_share: {**EVERYWHERE, "basic": "not the share that is lost"},
    counts_steps_instead_of_seconds: {**EVERYWHERE, "basic": "put full_step_s in"},
    in_another_order: {"basic": "draw comes first", "simulated": None, "property": None},
    gives_their_product: dict.fromkeys(EVERYWHERE, "a list of 2"),
    forgets_to_return: dict.fromkeys(EVERYWHERE, "end in a `return`"),
    sorts_the_callers_list: dict.fromkeys(EVERYWHERE, "changes `tokens`"),
}
RIGHT = [by_steps, in_numpy, in_fractions]
