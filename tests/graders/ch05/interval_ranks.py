"""Answers to `interval_ranks`: wrong ideas about what a sample bounds, and differently built right ones."""

import math


def _below(n, q):
    """P(fewer than i of n lie at or below the percentile), for i from 0 to n + 1."""
    below = [0.0]
    for k in range(n + 1):
        below.append(below[-1] + math.comb(n, k) * q**k * (1 - q) ** (n - k))
    return below


def _ranks(n, q, tail):
    below = _below(n, q)
    low = max((i for i in range(1, n + 1) if below[i] <= tail), default=None)
    high = min((i for i in range(1, n + 1) if 1 - below[i] <= tail), default=None)
    return [low, high]


def a_hundred_will_do(n, q, confidence):
    low, high = _ranks(n, q, (1 - confidence) / 2)
    return [low or 1, high or n]


def both_ends_take_all(n, q, confidence):
    return _ranks(n, q, 1 - confidence)


def by_the_bell_curve(n, q, confidence):
    half = 1.96 * math.sqrt(n * q * (1 - q))
    return [round(n * q - half), round(n * q + half)]


def counts_ranks_from_zero(n, q, confidence):
    low, high = _ranks(n, q, (1 - confidence) / 2)
    return [None if low is None else low - 1, None if high is None else high - 1]


def one_rank_too_narrow(n, q, confidence):
    low, high = _ranks(n, q, (1 - confidence) / 2)
    return [None if low is None else low + 1, None if high is None else high - 1]


def ends_swapped(n, q, confidence):
    return _ranks(n, q, (1 - confidence) / 2)[::-1]


def always_95_percent(n, q, confidence):
    return _ranks(n, q, 0.025)


def the_rank_itself(n, q, confidence):
    rank = math.ceil(q * n)
    return [rank, rank]


def by_loops(n, q, confidence):
    below, tail = _below(n, q), (1 - confidence) / 2
    low = 0
    while low < n and below[low + 1] <= tail:
        low += 1
    high = 1
    while high <= n and 1 - below[high] > tail:
        high += 1
    return low or None, high if high <= n else None


def by_scipy(n, q, confidence):
    from scipy.stats import binom

    tail = (1 - confidence) / 2
    low, high = int(binom.ppf(tail, n, q)), int(binom.ppf(1 - tail, n, q)) + 1
    if binom.cdf(low, n, q) <= tail:
        low += 1
    return [low if low > 0 else None, high if high <= n else None]


WRONG = {
    a_hundred_will_do: {"edges": "even the largest"},
    both_ends_take_all: {"basic": "each gets half", "edges": None, "property": None},
    by_the_bell_curve: {"basic": "bell curve", "edges": None, "property": "confidence"},
    counts_ranks_from_zero: {"basic": "count from 1", "edges": None},
    one_rank_too_narrow: {"basic": "too narrow", "edges": None, "property": None},
    ends_swapped: {"basic": "comes first", "edges": None, "property": None},
    always_95_percent: {"basic": None, "property": "use the argument confidence"},
    the_rank_itself: {"basic": None, "edges": "even the largest", "property": None},
}
RIGHT = [by_loops, by_scipy]
