"""Answers to `continuous_gain`: wrong ideas about the longest of B, and differently built right ones."""

import itertools
import math
import random
from fractions import Fraction

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


def draws_five_thousand_batches(lengths, B):
    dice = random.Random(5)
    drawn = [max(dice.choices(lengths, k=B)) for _ in range(5000)]
    return sum(drawn) / 5000 / (sum(lengths) / len(lengths))


def draws_other_batches_each_time(lengths, B):
    longest = [max(random.choices(lengths, k=B)) for _ in range(100)]
    drawn = random.choices(lengths, k=1000)  # so that two calls hardly ever agree
    return 10 * sum(longest) / sum(drawn)


def rounds_to_two_digits(lengths, B):
    return round(by_the_distribution(lengths, B), 2)


def counts_one_seat_less(lengths, B):
    """Not near enough to be drawn or rounded: the hint must not say so."""
    return by_the_distribution(lengths, B - 1)


def starts_the_sum_at_one(lengths, B):
    return by_the_distribution(lengths, B) - 1 / (sum(lengths) / len(lengths))


def asks_for_less_than_k(lengths, B):
    n = len(lengths)
    longest = sum(1 - (sum(x < k for x in lengths) / n) ** B for k in range(max(lengths) + 1))
    return longest / (sum(lengths) / n)


def raises_the_probability_of_the_value(lengths, B):
    n = len(lengths)
    return sum(x * (lengths.count(x) / n) ** B for x in set(lengths)) / (sum(lengths) / n)


def forgets_that_lengths_repeat(lengths, B):
    return by_the_distribution(sorted(set(lengths)), B)


def forgets_to_return(lengths, B):
    by_the_distribution(lengths, B)


def sorts_the_callers_list(lengths, B):
    lengths.sort()
    return by_the_distribution(lengths, B)


_kept = []


def keeps_the_lengths_of_before(lengths, B):
    _kept.extend(lengths)
    _kept.append(2 * max(_kept))
    return by_the_distribution(_kept, B)


def by_the_distribution(lengths, B):
    ordered, n = sorted(lengths), len(lengths)
    longest = sum(x * (((k + 1) / n) ** B - (k / n) ** B) for k, x in enumerate(ordered))
    return longest / (sum(ordered) / n)


def by_the_sum_over_k(lengths, B):
    x = np.sort(lengths)
    share = np.searchsorted(x, np.arange(x[-1]), side="right") / len(x)
    return np.sum(1 - share**B) / x.mean()


def through_all_ways_to_fill_a_batch(lengths, B):
    ways = list(map(max, itertools.product(lengths, repeat=B)))
    return Fraction(sum(ways), len(ways)) / Fraction(sum(lengths), len(lengths)) + 0.0


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


EVERYWHERE = {"basic": None, "edges": None, "property": None}
WRONG = {
    compares_the_means: {**EVERYWHERE, "basic": "the means are the same"},
    puts_the_longest_of_all_in_every_batch: {**EVERYWHERE, "basic": "not every batch"},
    turns_the_ratio_round: {**EVERYWHERE, "basic": "upside down"},
    returns_the_longest_itself: {**EVERYWHERE, "basic": "divide"},
    counts_the_seats: {**EVERYWHERE, "basic": "number of seats"},
    draws_without_putting_back: {**EVERYWHERE, "basic": "may be drawn more than once"},
    draws_five_thousand_batches: {**EVERYWHERE, "basic": "do you draw, round, or end a sum too early"},
    draws_other_batches_each_time: {**EVERYWHERE, "basic": "drawn at random"},
    rounds_to_two_digits: {**EVERYWHERE, "basic": "do you draw, round"},
    counts_one_seat_less: {**EVERYWHERE, "basic": "unless all B of its lengths"},
    starts_the_sum_at_one: {**EVERYWHERE, "basic": "k starts at 0"},
    asks_for_less_than_k: {**EVERYWHERE, "basic": "AT MOST k"},
    raises_the_probability_of_the_value: {**EVERYWHERE, "basic": "at most"},
    forgets_that_lengths_repeat: {"edges": "as often as it stands in the list", "property": None},
    forgets_to_return: dict.fromkeys(EVERYWHERE, "end in a `return`"),
    sorts_the_callers_list: {**EVERYWHERE, "edges": "changes `lengths`"},
    keeps_the_lengths_of_before: {**EVERYWHERE, "basic": "kept from one call to the next"},
}
RIGHT = [by_the_distribution, by_the_sum_over_k, through_all_ways_to_fill_a_batch, one_seat_after_the_other]
