"""Answers to `gathering_p99`: wrong ideas about whose wait it is, and differently built right ones."""

import math


def _erlang(j, rate, x):
    return sum(math.exp(-rate * x) * (rate * x) ** k / math.factorial(k) for k in range(j))


def _solve(tail, share=0.01):
    if tail(0.0) <= share:
        return 0.0
    low, high = 0.0, 1.0
    while tail(high) > share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > share else (low, middle)
    return high


def _averaged(js, rate, share=0.01):
    return _solve(lambda x: sum(_erlang(j, rate, x) for j in js) / len(js), share) if js else 0.0


def mean_of_the_first_guest(rate_rps, batch_size):
    return (batch_size - 1) / rate_rps


def mean_of_a_random_guest(rate_rps, batch_size):
    return (batch_size - 1) / rate_rps / 2


def share_of_the_mean(rate_rps, batch_size):
    return 0.99 * (batch_size - 1) / rate_rps


def p99_of_the_first_guest(rate_rps, batch_size):
    return _averaged([batch_size - 1], rate_rps)


def one_guest_more(rate_rps, batch_size):
    return _averaged(range(1, batch_size + 1), rate_rps)


def forgets_the_last_guest(rate_rps, batch_size):
    return _averaged(range(1, batch_size), rate_rps)


def averages_percentiles(rate_rps, batch_size):
    return sum(_averaged([j], rate_rps) for j in range(batch_size)) / batch_size


def takes_the_other_tail(rate_rps, batch_size):
    return _averaged(range(batch_size), rate_rps, 0.99)


def looks_no_further_than_ten_seconds(rate_rps, batch_size):
    return min(_averaged(range(batch_size), rate_rps), 10.0)


def term_by_term(rate_rps, batch_size):
    """The average counts each term of the sums by the guests who see it."""

    def tail(x):
        term, total = math.exp(-rate_rps * x), 0.0
        for k in range(batch_size - 1):
            total += term * (batch_size - 1 - k) / batch_size
            term *= rate_rps * x / (k + 1)
        return total

    return _solve(tail)


def by_scipy(rate_rps, batch_size):
    from scipy.optimize import brentq
    from scipy.stats import gamma

    def tail(x):
        return sum(gamma.sf(x, j, scale=1 / rate_rps) for j in range(1, batch_size)) / batch_size - 0.01

    return brentq(tail, 0, (2 * batch_size + 20) / rate_rps, xtol=1e-10) if batch_size > 1 else 0.0


WRONG = {
    mean_of_the_first_guest: {"basic": "a mean is no P99", "edges": None, "property": None},
    mean_of_a_random_guest: {"basic": "a mean is no P99", "edges": None, "property": None},
    share_of_the_mean: {"basic": "no percentile", "edges": None, "property": None},
    p99_of_the_first_guest: {"basic": "a random guest is any", "edges": None, "property": None},
    one_guest_more: {"basic": "waits for nobody", "edges": "nobody waits", "property": None},
    forgets_the_last_guest: {"basic": "is a guest, too", "edges": None},
    averages_percentiles: {"basic": "average the probabilities", "edges": None, "property": None},
    takes_the_other_tail: {"basic": "not 0.99", "edges": None, "property": None},
    looks_no_further_than_ten_seconds: {"edges": "as far as it takes"},
}
RIGHT = [term_by_term, by_scipy]
