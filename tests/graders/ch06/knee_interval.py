"""Answers to `knee_interval`: ways to look surer than one is, and differently built right ones."""

import math


def _ranks(n, confidence):
    return [max(1, math.ceil(round(p * n, 9))) for p in ((1 - confidence) / 2, (1 + confidence) / 2)]


def drops_those_without_a_knee(knees, confidence):
    found = sorted(k for k in knees if k is not None)
    low, high = _ranks(len(found), confidence)
    return found[low - 1], found[high - 1]


def drops_them_and_keeps_the_ranks(knees, confidence):
    found = sorted(k for k in knees if k is not None)
    low, high = _ranks(len(knees), confidence)
    return found[min(low, len(found)) - 1], found[min(high, len(found)) - 1]


def ranks_none_lowest(knees, confidence):
    ranked = sorted(knees, key=lambda k: -1 if k is None else k)
    low, high = _ranks(len(knees), confidence)
    return ranked[low - 1], ranked[high - 1]


def takes_the_extremes(knees, confidence):
    ranked = sorted(knees, key=lambda k: math.inf if k is None else k)
    return ranked[0], ranked[-1]


def forgets_to_sort(knees, confidence):
    low, high = _ranks(len(knees), confidence)
    return knees[low - 1], knees[high - 1]


def counts_ranks_from_zero(knees, confidence):
    ranked = sorted(knees, key=lambda k: math.inf if k is None else k)
    low, high = _ranks(len(knees), confidence)
    return ranked[min(low, len(knees) - 1)], ranked[min(high, len(knees) - 1)]


def takes_mean_and_spread(knees, confidence):
    found = [k for k in knees if k is not None]
    mean = sum(found) / len(found)
    spread = (sum((k - mean) ** 2 for k in found) / len(found)) ** 0.5
    return mean - 2 * spread, mean + 2 * spread


def leaves_out_the_whole_on_each_side(knees, confidence):
    ranked = sorted(knees, key=lambda k: math.inf if k is None else k)
    low, high = (max(1, math.ceil(round(p * len(knees), 9))) for p in (1 - confidence, confidence))
    return ranked[low - 1], ranked[high - 1]


def ranks_each_value_once(knees, confidence):
    ranked = sorted(set(knees), key=lambda k: math.inf if k is None else k)
    low, high = _ranks(len(ranked), confidence)
    return ranked[low - 1], ranked[high - 1]


def leaves_infinity(knees, confidence):
    return tuple(math.inf if end is None else end for end in by_infinity(knees, confidence))


def by_infinity(knees, confidence):
    ranked = sorted(math.inf if k is None else k for k in knees)
    ends = (ranked[rank - 1] for rank in _ranks(len(knees), confidence))
    return [None if end == math.inf else end for end in ends]


def by_counting(knees, confidence):
    values = sorted({k for k in knees if k is not None})
    ends = []
    for rank in _ranks(len(knees), confidence):
        counts = [sum(k is not None and k <= value for k in knees) for value in values]
        ends.append(next((value for value, count in zip(values, counts, strict=True) if count >= rank), None))
    return tuple(ends)


def takes_a_thousand_for_none(knees, confidence):
    ranked = sorted(1000 if k is None else k for k in knees)
    low, high = _ranks(len(knees), confidence)
    return [None if end == 1000 else end for end in (ranked[low - 1], ranked[high - 1])]


def forgets_to_return(knees, confidence):
    by_infinity(knees, confidence)


def sorts_in_place(knees, confidence):
    knees.sort(key=lambda k: math.inf if k is None else k)
    low, high = _ranks(len(knees), confidence)
    return knees[low - 1], knees[high - 1]


def in_numpy(knees, confidence):
    import numpy as np

    ranked = np.sort(np.array([np.inf if k is None else k for k in knees], float))
    low, high = _ranks(len(knees), confidence)
    return [None if np.isinf(end) else end for end in ranked[[low - 1, high - 1]]]


WRONG = {
    takes_a_thousand_for_none: {"beyond": "below None, however large"},
    forgets_to_return: {
        "basic": "end in a `return`",
        "beyond": "nothing came back: does every way through",
        "property": None,
    },
    sorts_in_place: {"basic": "changes `knees`", "beyond": "your function changes `knees`, which", "property": None},
    drops_those_without_a_knee: {"beyond": "resamples without a knee", "property": "the share left out is split"},
    drops_them_and_keeps_the_ranks: {"beyond": "resamples without a knee", "property": "the share left out is split"},
    ranks_none_lowest: {"beyond": "None is beyond the last", "property": "the share left out is split"},
    leaves_infinity: {"beyond": "in the answer, too, beyond the last", "property": "take the ends by rank"},
    takes_the_extremes: {
        "basic": "these are all of them: the",
        "beyond": "these are all of them: the",
        "property": "sort first: the resamples",
    },
    forgets_to_sort: {
        "basic": "sort first: the resamples come in no order",
        "beyond": "sort first: the resamples come in no order",
        "property": "sort first: the resamples",
    },
    counts_ranks_from_zero: {
        "basic": "ranks count from 1, places in a list from",
        "beyond": "this leaves out too much: (1 −",
        "property": "sort first: the resamples",
    },
    takes_mean_and_spread: {
        "basic": "an end is one of the knees",
        "beyond": "sort the knees, None last, and take the",
        "property": "sort first: the resamples",
    },
    leaves_out_the_whole_on_each_side: {
        "basic": "this leaves out too much: (1 −",
        "beyond": "this leaves out too much: (1 −",
        "property": "sort first: the resamples",
    },
    ranks_each_value_once: {
        "basic": "these are all of them: the",
        "beyond": "these are all of them: the",
        "property": "sort first: the resamples",
    },
}
RIGHT = [in_numpy, by_infinity, by_counting]
