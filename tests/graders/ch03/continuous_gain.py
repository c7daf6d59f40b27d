"""Answers to `continuous_gain`: wrong ideas about the longest of B, and differently built right ones."""

import itertools
import math
import random

import numpy as np


def compares_the_means(lengths, B):
    return 1.0


def puts_the_longest_of_all_in_every_batch(lengths, B):
    return max(lengths) / (sum(lengths) / len(lengths))


def turns_the_ratio_round(lengths, B):
    return 1 / by_the_distribution(lengths, B)


def returns_the_longest_itself(lengths, B):
    return by_the_distribution(lengths, B) * sum(lengths) / len(lengths)


def counts_the_seats(lengths, B):
    return float(B)


def draws_without_putting_back(lengths, B):
    sets = list(itertools.combinations(lengths, min(B, len(lengths))))
    return sum(map(max, sets)) / len(sets) / (sum(lengths) / len(lengths))


def draws_a_hundred_batches(lengths, B):
    dice = random.Random(5)
    drawn = [max(dice.choices(lengths, k=B)) for _ in range(100)]
    return sum(drawn) / 100 / (sum(lengths) / len(lengths))


def raises_the_probability_of_the_value(lengths, B):
    n = len(lengths)
    return sum(x * (lengths.count(x) / n) ** B for x in set(lengths)) / (sum(lengths) / n)


def forgets_that_lengths_repeat(lengths, B):
    return by_the_distribution(sorted(set(lengths)), B)


def by_the_distribution(lengths, B):
    ordered, n = sorted(lengths), len(lengths)
    longest = sum(x * (((k + 1) / n) ** B - (k / n) ** B) for k, x in enumerate(ordered))
    return longest / (sum(ordered) / n)


def by_the_sum_over_k(lengths, B):
    x = np.sort(lengths)
    share = np.searchsorted(x, np.arange(x[-1]), side="right") / len(x)
    return np.sum(1 - share**B) / x.mean()


def one_seat_after_the_other(lengths, B):
    """The law of the longest of b + 1 from that of b."""
    values = sorted(set(lengths))
    own = {x: lengths.count(x) / len(lengths) for x in values}
    law = dict(own)
    for _ in range(B - 1):
        law = {
            x: law[x] * sum(own[y] for y in values if y <= x) + own[x] * sum(law[y] for y in values if y < x)
            for x in values
        }
    return math.fsum(x * p for x, p in law.items()) / (sum(lengths) / len(lengths))


WRONG = {
    compares_the_means: {"basic": "the means are the same", "edges": None, "property": None},
    puts_the_longest_of_all_in_every_batch: {"basic": "not every batch", "edges": None, "property": None},
    turns_the_ratio_round: {"basic": "upside down", "edges": None, "property": None},
    returns_the_longest_itself: {"basic": "divide", "edges": None, "property": None},
    counts_the_seats: {"basic": "number of seats", "edges": None, "property": None},
    draws_without_putting_back: {"basic": "may be drawn more than once", "edges": None, "property": None},
    draws_a_hundred_batches: {"basic": "exact", "edges": None, "property": None},
    raises_the_probability_of_the_value: {"basic": "at most", "edges": None, "property": None},
    forgets_that_lengths_repeat: {"edges": "as often as it stands in the list", "property": None},
}
RIGHT = [by_the_distribution, by_the_sum_over_k, one_seat_after_the_other]
