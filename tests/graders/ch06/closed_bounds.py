"""Answers to `closed_bounds`: clients who never think, and differently built right ones."""

import math


def _throughput(clients, think_s, alone_s, most_rps):
    return min(most_rps, clients / (alone_s + think_s))


def forgets_the_pause_in_n_star(clients, think_s, alone_s, most_rps):
    return (
        alone_s * most_rps,
        _throughput(clients, think_s, alone_s, most_rps),
        max(alone_s, clients / most_rps - think_s),
    )


def forgets_the_pause_in_the_latency(clients, think_s, alone_s, most_rps):
    star = (alone_s + think_s) * most_rps
    return star, _throughput(clients, think_s, alone_s, most_rps), max(alone_s, clients / most_rps)


def rounds_n_star(clients, think_s, alone_s, most_rps):
    star = round((alone_s + think_s) * most_rps)
    return star, _throughput(clients, think_s, alone_s, most_rps), max(alone_s, clients / most_rps - think_s)


def rounds_n_star_up(clients, think_s, alone_s, most_rps):
    star, most, least = by_little(clients, think_s, alone_s, most_rps)
    return math.ceil(star - 1e-9), most, least


def divides_by_the_rate(clients, think_s, alone_s, most_rps):
    star = (alone_s + think_s) / most_rps
    return star, _throughput(clients, think_s, alone_s, most_rps), max(alone_s, clients / most_rps - think_s)


def takes_the_smaller_bound(clients, think_s, alone_s, most_rps):
    star = (alone_s + think_s) * most_rps
    return star, _throughput(clients, think_s, alone_s, most_rps), min(alone_s, clients / most_rps - think_s)


def never_queues(clients, think_s, alone_s, most_rps):
    return (alone_s + think_s) * most_rps, _throughput(clients, think_s, alone_s, most_rps), alone_s


def gives_the_whole_round(clients, think_s, alone_s, most_rps):
    star = (alone_s + think_s) * most_rps
    return star, _throughput(clients, think_s, alone_s, most_rps), max(alone_s + think_s, clients / most_rps)


def adds_the_bounds(clients, think_s, alone_s, most_rps):
    star = (alone_s + think_s) * most_rps
    queue = max(0, clients / most_rps - think_s)
    return star, _throughput(clients, think_s, alone_s, most_rps), alone_s + queue


def by_little(clients, think_s, alone_s, most_rps):
    throughput = _throughput(clients, think_s, alone_s, most_rps)
    return most_rps * think_s + most_rps * alone_s, throughput, clients / throughput - think_s


def by_cases(clients, think_s, alone_s, most_rps):
    star = most_rps * (think_s + alone_s)
    if clients <= star:
        return star, clients / (think_s + alone_s), alone_s
    return star, most_rps, (clients - star) / most_rps + alone_s


WRONG = {
    forgets_the_pause_in_n_star: {
        "few": "a client who thinks is away",
        "many": "N* doesn't depend on how",
        "property": "N* is where both bounds",
    },
    forgets_the_pause_in_the_latency: {
        "few": "of N / X the client spends",
        "many": "of the round N / X the client",
        "property": "each client is either waiting",
    },
    rounds_n_star: {
        "few": "don't round N*: it is where",
        "many": "N* doesn't depend on how",
        "property": "N* is where both bounds",
    },
    rounds_n_star_up: {"few": "don't round N*: it is where", "many": "N* doesn't depend on how"},
    divides_by_the_rate: {
        "few": "multiply by the rate: Little's",
        "many": "N* doesn't depend on how",
        "property": "N* is where both bounds",
    },
    takes_the_smaller_bound: {
        "few": "no request is faster than",
        "many": "the latency is at least",
        "property": "each client is either waiting",
    },
    never_queues: {"many": "the latency is at least", "property": "each client is either waiting"},
    gives_the_whole_round: {
        "few": "that is a client's whole",
        "many": "of the round N / X the client",
        "property": "each client is either waiting",
    },
    adds_the_bounds: {"many": "the latency is at least", "property": "each client is either waiting"},
}
RIGHT = [by_little, by_cases]
