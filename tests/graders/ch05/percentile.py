"""Answers to `percentile`: wrong ideas about the rank, and differently built right ones."""

import math


def rounds_the_rank_down(values, percent):
    return sorted(values)[max(int(percent / 100 * len(values)), 1) - 1]


def counts_from_one(values, percent):
    ordered = sorted(values)
    return ordered[min(int(percent / 100 * len(ordered)), len(ordered) - 1)]


def one_rank_too_high(values, percent):
    ordered = sorted(values)
    return ordered[min(-(-percent * len(ordered) // 100), len(ordered) - 1)]


def draws_a_line(values, percent):
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def share_of_the_mean(values, percent):
    return percent / 100 * sum(values) / len(values)


def forgets_to_sort(values, percent):
    return values[-(-percent * len(values) // 100) - 1]


def takes_the_largest(values, percent):
    return max(values)


def counts_from_the_largest(values, percent):
    return sorted(values, reverse=True)[-(-percent * len(values) // 100) - 1]


def lets_floats_round(values, percent):
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def rounds_to_the_nearest_rank(values, percent):
    return sorted(values)[max(round(percent * len(values) / 100), 1) - 1]


def the_largest_below_the_share(values, percent):
    ordered = sorted(values)
    below = [x for x in ordered if 100 * sum(y <= x for y in ordered) < percent * len(ordered)]
    return below[-1] if below else ordered[0]


def drops_equal_values(values, percent):
    ordered = sorted(set(values))
    return ordered[-(-percent * len(ordered) // 100) - 1]


def sorts_in_place(values, percent):
    values.sort()
    return values[-(-percent * len(values) // 100) - 1]


def keeps_what_it_saw(values, percent, seen=[]):  # noqa: B006
    seen += values
    return sorted(seen)[-(-percent * len(values) // 100) - 1]


def forgets_to_return(values, percent):
    ordered = sorted(values)
    ordered[-(-percent * len(ordered) // 100) - 1]


def by_counting(values, percent):
    n = len(values)
    return min(x for x in values if 100 * sum(y <= x for y in values) >= percent * n)


def by_divmod(values, percent):
    ordered = list(values)
    ordered.sort()
    whole, rest = divmod(percent * len(ordered), 100)
    return ordered[whole if rest else whole - 1]


def by_the_heap(values, percent):
    import heapq
    from fractions import Fraction

    return heapq.nsmallest(math.ceil(Fraction(percent * len(values), 100)), values)[-1]


def with_numpy(values, percent):
    import numpy as np

    rank = (percent * len(values) + 99) // 100
    return np.partition(np.array(values), rank - 1)[rank - 1]


ALL = ("basic", "edges", "property")
WRONG = {
    rounds_the_rank_down: dict.fromkeys(ALL, "this rank is too low"),
    counts_from_one: {"basic": "one too high", "edges": "rounding pushed it up", "property": None},
    one_rank_too_high: {"basic": "one too high", "edges": None, "property": None},
    draws_a_line: {"basic": "draws a line", "edges": "draws a line", "property": "between two of them"},
    share_of_the_mean: {"basic": "a share of the mean", "edges": "share of the mean", "property": "from their mean"},
    forgets_to_sort: {"basic": "sorted first", "edges": None, "property": None},
    takes_the_largest: {"basic": "the largest value", "edges": "the largest value", "property": None},
    counts_from_the_largest: {"basic": "from the largest down", "edges": None, "property": None},
    lets_floats_round: {"edges": "whole numbers"},
    rounds_to_the_nearest_rank: {"basic": "rank is too low", "edges": "rank is too low", "property": None},
    the_largest_below_the_share: {"basic": "rank is too low", "edges": None, "property": None},
    drops_equal_values: {"edges": "the largest value", "property": None},
    sorts_in_place: {"basic": "changes `values`", "edges": "work on a copy", "property": "work on a copy"},
    keeps_what_it_saw: {"basic": "kept from one call to the next", "edges": None, "property": None},
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
}
RIGHT = [by_counting, by_divmod, by_the_heap, with_numpy]
