"""Answers to `knee`: other rules that look like it, and differently built right ones."""

import math
from itertools import pairwise


def _steps(levels):
    for (load, rate, p99), (next_load, next_rate, next_p99) in pairwise(levels):
        yield load, next_load, next_rate / rate, next_p99 / p99


def takes_the_largest_throughput(levels):
    return max(levels, key=lambda level: level[1])[0]


def takes_throughput_over_latency(levels):
    return max(levels, key=lambda level: level[1] / level[2])[0]


def looks_at_throughput_alone(levels):
    return next((a for a, b, rate, _ in _steps(levels) if math.log(rate) < math.log(b / a) / 2), None)


def looks_at_the_tail_alone(levels):
    return next((a for a, b, _, p99 in _steps(levels) if math.log(p99) > math.log(b / a) / 2), None)


def takes_either(levels):
    return next(
        (a for a, b, x, y in _steps(levels) if math.log(x) < math.log(b / a) / 2 or math.log(y) > math.log(b / a) / 2),
        None,
    )


def takes_the_level_after(levels):
    return next(
        (b for a, b, x, y in _steps(levels) if math.log(x) < math.log(b / a) / 2 < math.log(y)),
        None,
    )


def takes_the_last_such_step(levels):
    found = [a for a, b, x, y in _steps(levels) if math.log(x) < math.log(b / a) / 2 < math.log(y)]
    return found[-1] if found else None


def compares_percentages(levels):
    return next((a for a, b, x, y in _steps(levels) if x - 1 < (b / a - 1) / 2 < y - 1), None)


def compares_differences(levels):
    """Units and all: requests per second against seconds against clients."""
    for (a, x, y), (b, next_x, next_y) in pairwise(levels):
        if next_x - x < (b - a) / 2 < next_y - y:
            return a
    return None


def returns_the_place(levels):
    found = by_roots(levels)
    return None if found is None else [level[0] for level in levels].index(found)


def by_roots(levels):
    for load, next_load, rate, p99 in _steps(levels):
        half = (next_load / load) ** 0.5
        if rate < half and p99 > half:
            return load
    return None


def by_logarithms_of_all(levels):
    loads, rates, tails = ([math.log(level[k]) for level in levels] for k in range(3))
    past = [
        2 * (rates[k + 1] - rates[k]) < loads[k + 1] - loads[k] < 2 * (tails[k + 1] - tails[k])
        for k in range(len(levels) - 1)
    ]
    return levels[past.index(True)][0] if True in past else None


def remembers_a_flat_step(levels):
    flat = None
    for a, b, rate, p99 in _steps(levels):
        if flat is None and math.log(rate) < math.log(b / a) / 2:
            flat = a
        if flat is not None and math.log(p99) > math.log(b / a) / 2:
            return a
    return None


def takes_a_third_for_the_tail(levels):
    return next((a for a, b, x, y in _steps(levels) if x < (b / a) ** 0.5 and y > (b / a) ** (1 / 3)), None)


def takes_a_third_for_throughput(levels):
    return next((a for a, b, x, y in _steps(levels) if x < (b / a) ** (1 / 3) and y > (b / a) ** 0.5), None)


def takes_the_last_load(levels):
    return levels[-1][0]


def forgets_to_return(levels):
    by_roots(levels)


def in_numpy(levels):
    import numpy as np

    load, rate, p99 = np.diff(np.log(np.array(levels, float)), axis=0).T if len(levels) > 1 else np.empty((3, 0))
    past = np.flatnonzero((2 * rate < load) & (2 * p99 > load))
    return levels[past[0]][0] if len(past) else None


WRONG = {
    remembers_a_flat_step: {"conditions": "judged by itself"},
    takes_a_third_for_the_tail: {"conditions": "more than half"},
    takes_a_third_for_throughput: {
        "basic": "that is where throughput over P99 is",
        "conditions": "less than HALF",
        "property": None,
    },
    takes_the_last_load: {"basic": None, "conditions": "that is where throughput is largest: past", "property": None},
    forgets_to_return: {
        "basic": "end in a `return`",
        "conditions": "nothing came back: does every way through",
        "property": None,
    },
    takes_the_largest_throughput: {
        "basic": "that is where throughput",
        "conditions": "that is where throughput is largest: past",
        "property": "the level before the first",
    },
    takes_throughput_over_latency: {
        "basic": "that is where throughput",
        "conditions": "that is where throughput is largest: past",
    },
    looks_at_throughput_alone: {"conditions": "both conditions must hold: the tail must"},
    looks_at_the_tail_alone: {
        "basic": "both conditions must hold",
        "conditions": "both conditions must hold: throughput",
    },
    takes_either: {"basic": "both conditions must hold", "conditions": "both conditions must hold: throughput"},
    takes_the_level_after: {
        "basic": "that is the level after",
        "conditions": "that is the level after the step: the",
        "property": "the level before the first",
    },
    takes_the_last_such_step: {
        "basic": "that is the last such step",
        "conditions": "that is the last such step: the first one",
        "property": "the level before the first",
    },
    compares_percentages: {"conditions": "gains are logarithms of", "property": "compare both gains with"},
    compares_differences: {
        "basic": "nothing came back: does",
        "conditions": "gains are logarithms of",
        "property": "the level before the first",
    },
    returns_the_place: {
        "basic": "return the load, not its",
        "conditions": "return the load, not its place in the list",
        "property": "the level before the first",
    },
}
RIGHT = [in_numpy, by_roots, by_logarithms_of_all]
