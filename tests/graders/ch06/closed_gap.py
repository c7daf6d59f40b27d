"""Answers to `closed_gap`: clients who never think, gaps against the wrong bound, and differently built right ones."""

import math

import numpy as np


def by_little(clients, think_s, alone_s, most_rps, measured_rps):
    best = min(most_rps, clients / (alone_s + think_s))
    latency = clients / measured_rps - think_s
    return [most_rps * think_s + most_rps * alone_s, best, latency, latency - (clients / best - think_s)]


def _with(place, value):
    """An answer in which one number is another: the fourth follows from the third."""

    def answer(*args):
        numbers = by_little(*args)
        if place == 2:
            numbers[3] += value(*args) - numbers[2]
        numbers[place] = value(*args)
        return numbers

    return answer


def forgets_the_pause_in_n_star(*args):
    return _with(0, lambda n, z, r, x, m: r * x)(*args)


def forgets_the_pause_in_the_latency(*args):
    return _with(2, lambda n, z, r, x, m: n / m)(*args)


def rounds_n_star(*args):
    return _with(0, lambda n, z, r, x, m: round((r + z) * x))(*args)


def rounds_n_star_up(*args):
    return _with(0, lambda n, z, r, x, m: math.ceil((r + z) * x - 1e-9))(*args)


def divides_by_the_rate(*args):
    return _with(0, lambda n, z, r, x, m: (r + z) / x)(*args)


def takes_the_highest_throughput(*args):
    return _with(2, lambda n, z, r, x, m: n / x - z)(*args)


def of_one_client(*args):
    return _with(2, lambda n, z, r, x, m: 1 / m)(*args)


def beyond_a_lone_request(*args):
    return _with(3, lambda n, z, r, x, m: n / m - z - r)(*args)


def beyond_a_full_service(*args):
    return _with(3, lambda n, z, r, x, m: n / m - z - (n / x - z))(*args)


def beyond_a_whole_round(*args):
    return _with(3, lambda n, z, r, x, m: n / m - z - max(r, n / x))(*args)


def no_gap_at_all(*args):
    return _with(3, lambda n, z, r, x, m: n / m - z)(*args)


def in_requests_per_second(*args):
    return _with(3, lambda n, z, r, x, m: min(x, n / (r + z)) - m)(*args)


def overwrites_the_bound(*args):
    return _with(1, lambda n, z, r, x, m: m)(*args)


def forgets_the_gap(*args):
    return by_little(*args)[:3]


def forgets_to_return(*args):
    by_little(*args)


def by_cases(clients, think_s, alone_s, most_rps, measured_rps):
    star = most_rps * (think_s + alone_s)
    took = clients / measured_rps - think_s
    if clients <= star:
        return star, clients / (think_s + alone_s), took, took - alone_s
    return star, most_rps, took, took - ((clients - star) / most_rps + alone_s)


def in_numpy(clients, think_s, alone_s, most_rps, measured_rps):
    best = np.minimum(most_rps, clients / (alone_s + think_s))
    took = np.float64(clients) / measured_rps - think_s
    lowest = np.maximum(alone_s, clients / most_rps - think_s)
    return np.array([(alone_s + think_s) * most_rps, best, took, took - lowest])


WRONG = {
    forgets_the_pause_in_n_star: {
        "few": "a client who thinks is away",
        "many": "a client who thinks is away for longer:",
    },
    forgets_the_pause_in_the_latency: {
        "few": "of the round N / X",
        "many": "of the round N / X the client spends",
        "simulated": "what is measured fixes the latency, by",
        "property": None,
    },
    rounds_n_star: {"few": "don't round N*", "many": "don't round N*: it is where two lines meet"},
    rounds_n_star_up: {"few": "don't round N*", "many": "don't round N*: it is where two lines meet"},
    divides_by_the_rate: {"few": "multiply by the rate", "many": "N*: multiply by the rate, as Little's law"},
    takes_the_highest_throughput: {
        "few": "the measured throughput fixes the",
        "many": "the measured throughput fixes",
        "simulated": "what is measured fixes the latency, by",
        "property": None,
    },
    of_one_client: {
        "few": "all the clients together",
        "many": "Little: all the clients together make the",
        "simulated": "what is measured fixes the latency, by",
        "property": None,
    },
    beyond_a_lone_request: {"many": "take the larger of the two", "property": None},
    beyond_a_full_service: {"few": "no request is faster", "property": None},
    beyond_a_whole_round: {
        "few": "the bound N / X is a whole round: the",
        "many": "the pause is no latency",
        "simulated": "what is measured fixes the latency, by",
        "property": None,
    },
    no_gap_at_all: {
        "few": "the fourth number is the gap",
        "many": "the fourth number is the gap: take off",
        "property": None,
    },
    in_requests_per_second: {"few": None, "many": "in a full service a client's whole round"},
    overwrites_the_bound: {
        "few": "leave the given line",
        "many": "the second number is the bound, not what",
        "property": None,
    },
    forgets_the_gap: {
        "few": "a list of 4",
        "many": "the answer must be a list of 4: a number,",
        "simulated": "the answer must be a list of 4: a number,",
        "property": None,
    },
    forgets_to_return: {
        "few": "end in a `return`",
        "many": "nothing came back: does every way through",
        "simulated": "nothing came back: does every way through",
        "property": None,
    },
}
RIGHT = [by_little, by_cases, in_numpy]
