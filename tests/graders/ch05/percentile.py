"""Answers to `percentile`: wrong ideas about the rank, and differently built right ones."""

import math


def rounds_the_rank_down(values, percent):
    return sorted(values)[max(int(percent / 100 * len(values)), 1) - 1]


def counts_from_one(values, percent):
    ordered = sorted(values)
    return ordered[min(int(percent / 100 * len(ordered)), len(ordered) - 1)]


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


def lets_floats_round(values, percent):
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


def the_largest_below_the_share(values, percent):
    ordered = sorted(values)
    below = [x for x in ordered if 100 * sum(y <= x for y in ordered) < percent * len(ordered)]
    return below[-1] if below else ordered[0]


def sorts_in_place(values, percent):
    values.sort()
    return values[-(-percent * len(values) // 100) - 1]


def by_counting(values, percent):
    n = len(values)
    return min(x for x in values if 100 * sum(y <= x for y in values) >= percent * n)


def by_divmod(values, percent):
    ordered = list(values)
    ordered.sort()
    whole, rest = divmod(percent * len(ordered), 100)
    return ordered[whole if rest else whole - 1]


WRONG = {
    rounds_the_rank_down: {
        "basic": "rounds the rank down",
        "edges": "round the rank up",
        "property": "rounds the rank down",
    },
    counts_from_one: {"basic": "one too high", "edges": None, "property": None},
    draws_a_line: {"basic": "draws a line", "edges": None, "property": "between two of them"},
    share_of_the_mean: {"basic": "a share of the mean", "edges": None, "property": "nothing from their mean"},
    forgets_to_sort: {"basic": "sorted first", "edges": None, "property": None},
    takes_the_largest: {"basic": "the largest value", "edges": None, "property": None},
    lets_floats_round: {"edges": "whole numbers"},
    sorts_in_place: {"basic": "changes `values`", "edges": "work on a copy", "property": "work on a copy"},
    the_largest_below_the_share: {"basic": "rounds the rank down", "edges": None, "property": None},
}
RIGHT = [by_counting, by_divmod]
