"""Answers to `stops_paying`: wrong ideas about gain and raise, and differently built right ones."""

from fractions import Fraction
from itertools import pairwise, takewhile

import numpy as np


def _rates(log):
    return [B / seconds for B, seconds in log]


def _stop(log, least, pays=lambda raised, least: raised >= least * (1 - 1e-9)):
    rates, at = _rates(log), 0
    while at + 1 < len(log) and pays(rates[at + 1] / rates[at] - 1, least):
        at += 1
    return at


def _entry(log, at):
    rates = _rates(log)
    return [log[at][0], rates[at] / rates[0]]


def thinks_the_gain_is_the_batch(log, least):
    at = _stop(log, least)
    return [log[at][0], log[at][0] / log[0][0]]


def how_much_longer_the_step_takes(log, least):
    at = _stop(log, least)
    return [log[at][0], log[at][1] / log[0][1]]


def tokens_a_second(log, least):
    at = _stop(log, least)
    return [log[at][0], _rates(log)[at]]


def the_most_tokens(log, least):
    rates = _rates(log)
    return _entry(log, rates.index(max(rates)))


def the_last_step_that_pays(log, least):
    rates = _rates(log)
    pays = [k + 1 for k in range(len(log) - 1) if rates[k + 1] / rates[k] - 1 >= least]
    return _entry(log, pays[-1] if pays else 0)


def where_the_last_step_that_pays_starts(log, least):
    rates = _rates(log)
    pays = [k for k in range(len(log) - 1) if rates[k + 1] / rates[k] - 1 >= least]
    return _entry(log, pays[-1] if pays else 0)


def one_row_too_far(log, least):
    return _entry(log, min(_stop(log, least) + 1, len(log) - 1))


def as_a_share_of_the_first_row(log, least):
    rates, at = _rates(log), 0
    while at + 1 < len(log) and rates[at + 1] - rates[at] >= least * rates[0]:
        at += 1
    return _entry(log, at)


def looks_at_the_steps_time(log, least):
    at = 0
    while at + 1 < len(log) and log[at + 1][1] / log[at][1] - 1 <= least:
        at += 1
    return _entry(log, at)


def wants_more_than_the_share(log, least):
    return _entry(log, _stop(log, least, lambda raised, least: raised > least * (1 + 1e-9)))


def trusts_floats(log, least):
    return _entry(log, _stop(log, least, lambda raised, least: raised >= least))


def compares_with_one_request(log, least):
    """Takes the first row's batch for 1."""
    at = _stop(log, least)
    return [log[at][0], log[at][0] * log[0][1] / log[at][1]]


def forgets_the_gain(log, least):
    return log[_stop(log, least)][0]


def forgets_to_return(log, least):
    _entry(log, _stop(log, least))


def eats_the_log(log, least):
    """Takes the rows out of its caller's list."""
    before = first = log.pop(0)
    while log and (log[0][0] / log[0][1]) / (before[0] / before[1]) - 1 >= least * (1 - 1e-9):
        before = log.pop(0)
    return [before[0], before[0] / before[1] / (first[0] / first[1])]


found = []


def keeps_its_answers(log, least):
    found.extend(_entry(log, _stop(log, least)))
    return found


def row_by_row(log, least):
    return _entry(log, _stop(log, least))


def in_numpy(log, least):
    table = np.array(log, dtype=float)
    rates = table[:, 0] / table[:, 1]
    weak = np.flatnonzero(rates[1:] / rates[:-1] - 1 < least * (1 - 1e-9))
    at = int(weak[0]) if len(weak) else len(log) - 1
    return np.array([table[at, 0], rates[at] / rates[0]])


def with_takewhile(log, least):
    def pays(pair):
        (B, seconds), (more, longer) = pair
        return more * seconds >= B * longer * (1 + least * (1 - 1e-9))

    path = list(takewhile(pays, pairwise(log)))
    B, seconds = path[-1][1] if path else log[0]
    return B, B * log[0][1] / (seconds * log[0][0])


def in_fractions(log, least):
    rates = [Fraction(B) / Fraction(str(seconds)) for B, seconds in log]
    at = 0
    share = Fraction(str(least)) * (1 - Fraction(1, 10**9))
    while at + 1 < len(log) and rates[at + 1] / rates[at] - 1 >= share:
        at += 1
    return [log[at][0], rates[at] / rates[0]]


WRONG = {
    thinks_the_gain_is_the_batch: {"basic": "the gain isn't the batch", "edges": None},
    how_much_longer_the_step_takes: {"basic": "how much longer the step takes", "edges": None},
    tokens_a_second: {"basic": "divide them by those of the first row", "edges": None, "property": None},
    the_most_tokens: {"basic": "growing stopped paying before", "edges": None},
    the_last_step_that_pays: {"basic": "even if a later one would", "edges": None},
    where_the_last_step_that_pays_starts: {"basic": "stop where it leads", "edges": None},
    one_row_too_far: {"basic": "stop before it", "edges": None},
    as_a_share_of_the_first_row: {"basic": "not of the first row", "edges": None},
    looks_at_the_steps_time: {"basic": "look at tokens per second", "edges": None, "property": "at least as far"},
    wants_more_than_the_share: {"edges": "at least, not more"},
    trusts_floats: {"edges": "rounding"},
    compares_with_one_request: {"basic": "the first row's", "edges": None},
    forgets_the_gain: {
        "basic": "must be a list of 2",
        "edges": "must be a list of 2",
        "property": "must be a list of 2",
    },
    forgets_to_return: {"basic": "end in a `return`", "edges": "end in a `return`", "property": "end in a `return`"},
    eats_the_log: {"basic": "changes `log`", "edges": "changes `log`", "property": "changes `log`"},
    keeps_its_answers: {"basic": "kept from one call", "edges": None, "property": None},
}
RIGHT = [row_by_row, in_numpy, with_takewhile, in_fractions]
