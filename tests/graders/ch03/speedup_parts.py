"""Answers to `speedup_parts`: wrong ideas about what a throughput is made of, and differently built right ones."""

import numpy as np


def _parts(run):
    return run["tokens"] / run["steps"], run["steps"] / run["busy_s"], run["busy_s"] / run["duration_s"]


def _ratios(parts, before, after):
    return [y / x for x, y in zip(parts(before), parts(after), strict=True)]


def the_gpu_got_faster(before, after):
    rate = [run["tokens"] / run["duration_s"] for run in (before, after)]
    return [1.0, rate[1] / rate[0], 1.0]


def steps_per_second_of_the_clock(before, after):
    return _ratios(
        lambda r: (r["tokens"] / r["steps"], r["steps"] / r["duration_s"], r["busy_s"] / r["duration_s"]), before, after
    )


def turns_the_ratios_round(before, after):
    return _ratios(_parts, after, before)


def gives_the_values_after(before, after):
    return list(_parts(after))


def gives_differences(before, after):
    return [y - x for x, y in zip(_parts(before), _parts(after), strict=True)]


def compares_the_totals(before, after):
    return [after[key] / before[key] for key in ("tokens", "steps", "busy_s")]


def seconds_per_step(before, after):
    return _ratios(
        lambda r: (r["tokens"] / r["steps"], r["busy_s"] / r["steps"], r["busy_s"] / r["duration_s"]), before, after
    )


def busy_seconds_instead_of_the_share(before, after):
    return _ratios(lambda r: (r["tokens"] / r["steps"], r["steps"] / r["busy_s"], r["busy_s"]), before, after)


def in_another_order(before, after):
    full, fast, busy = _ratios(_parts, before, after)
    return [fast, full, busy]


def part_by_part(before, after):
    return _ratios(_parts, before, after)


def in_numpy(before, after):
    keys = ["tokens", "steps", "busy_s", "duration_s"]
    x, y = (np.array([run[key] for key in keys], float) for run in (before, after))
    return (y[:3] / y[1:]) / (x[:3] / x[1:])


def from_the_totals(before, after):
    grew = {key: after[key] / before[key] for key in before}
    return (grew["tokens"] / grew["steps"], grew["steps"] / grew["busy_s"], grew["busy_s"] / grew["duration_s"])


WRONG = {
    the_gpu_got_faster: {"basic": "the whole gain", "property": None},
    steps_per_second_of_the_clock: {"basic": "busy seconds", "property": None},
    turns_the_ratios_round: {"basic": "after over before", "property": None},
    gives_the_values_after: {"basic": "values of one run", "property": None},
    gives_differences: {"basic": "a ratio, not a difference", "property": None},
    compares_the_totals: {"basic": "totals", "property": None},
    seconds_per_step: {"basic": "seconds per step", "property": None},
    busy_seconds_instead_of_the_share: {"basic": "share", "property": None},
    in_another_order: {"basic": "in this order", "property": None},
}
RIGHT = [part_by_part, in_numpy, from_the_totals]
