"""Answers to `speedup_parts`: wrong ideas about what a throughput is made of, and differently built right ones."""

from fractions import Fraction

import numpy as np


def _sums(run):
    rows = run["steps"]
    return sum(n * count for n, count, _ in rows), sum(count for _, count, _ in rows), sum(busy for _, _, busy in rows)


def _parts(run):
    tokens, steps, busy = _sums(run)
    return tokens / steps, steps / busy, busy / run["duration_s"]


def _ratios(parts, before, after):
    return [y / x for x, y in zip(parts(before), parts(after), strict=True)]


def _with(place, value):
    """The parts of a run, one of them another."""
    return lambda run: [value(run, *_sums(run)) if k == place else part for k, part in enumerate(_parts(run))]


def the_gpu_got_faster(before, after):
    rate = [_sums(run)[0] / run["duration_s"] for run in (before, after)]
    return [1.0, rate[1] / rate[0], 1.0]


def the_gpu_got_faster_by_the_clock(before, after):
    return [1.0, before["duration_s"] / after["duration_s"], 1.0]


def averages_the_rows(before, after):
    return _ratios(_with(0, lambda run, *_: np.mean([row[0] for row in run["steps"]])), before, after)


def counts_rows_as_steps(before, after):
    return _ratios(_with(0, lambda run, tokens, *_: tokens / len(run["steps"])), before, after)


def averages_the_paces(before, after):
    return _ratios(_with(1, lambda run, *_: np.mean([count / busy for _, count, busy in run["steps"]])), before, after)


def tokens_in_all(before, after):
    return _ratios(_with(0, lambda run, tokens, *_: tokens), before, after)


def steps_per_second_of_the_clock(before, after):
    return _ratios(_with(1, lambda run, tokens, steps, busy: steps / run["duration_s"]), before, after)


def tokens_per_busy_second(before, after):
    return _ratios(_with(1, lambda run, tokens, steps, busy: tokens / busy), before, after)


def turns_the_ratios_round(before, after):
    return _ratios(_parts, after, before)


def gives_the_values_after(before, after):
    return list(_parts(after))


def gives_differences(before, after):
    return [y - x for x, y in zip(_parts(before), _parts(after), strict=True)]


def compares_the_totals(before, after):
    return _ratios(_sums, before, after)


def seconds_per_step(before, after):
    return _ratios(_with(1, lambda run, tokens, steps, busy: busy / steps), before, after)


def busy_seconds_instead_of_the_share(before, after):
    return _ratios(_with(2, lambda run, tokens, steps, busy: busy), before, after)


def the_idle_share(before, after):
    return _ratios(_with(2, lambda run, tokens, steps, busy: 1 - busy / run["duration_s"]), before, after)


def in_another_order(before, after):
    full, fast, busy = _ratios(_parts, before, after)
    return [fast, full, busy]


def gives_the_gain_alone(before, after):
    return float(np.prod(_ratios(_parts, before, after)))


def forgets_to_return(before, after):
    _ratios(_parts, before, after)


def eats_its_rows(before, after):
    ratios = _ratios(_parts, before, after)
    before["steps"].clear()
    return ratios


def row_by_row(before, after):
    found = []
    for run in (before, after):
        tokens = steps = busy = 0
        for n, count, seconds in run["steps"]:
            tokens += n * count
            steps += count
            busy += seconds
        found.append([tokens / steps, steps / busy, busy / run["duration_s"]])
    return [found[1][k] / found[0][k] for k in range(3)]


def in_numpy(before, after):
    x, y = (np.array([*_columns(run), run["duration_s"]], float) for run in (before, after))
    return (y[:3] / y[1:]) / (x[:3] / x[1:])


def _columns(run):
    n, count, busy = np.array(run["steps"], float).T
    return n @ count, count.sum(), busy.sum()


def from_the_totals_in_fractions(before, after):
    totals = []
    for run in (before, after):
        rows = [[Fraction(x) for x in row] for row in run["steps"]]
        tokens = sum(row[0] * row[1] for row in rows)
        totals.append([tokens, sum(row[1] for row in rows), sum(row[2] for row in rows), Fraction(run["duration_s"])])
    grew = [new / old for old, new in zip(*totals, strict=True)]
    return tuple(float(grew[k] / grew[k + 1]) for k in range(3))


WRONG = {
    the_gpu_got_faster: {"basic": "the whole gain", "property": None},
    the_gpu_got_faster_by_the_clock: {"basic": "this puts all into faster steps", "property": None},
    averages_the_rows: {"basic": "weigh n by count", "property": None},
    counts_rows_as_steps: {"basic": "a row isn't a step", "property": None},
    averages_the_paces: {"basic": "paces can't be averaged", "property": None},
    tokens_in_all: {"basic": "not tokens in all", "property": None},
    steps_per_second_of_the_clock: {"basic": "busy seconds only", "property": None},
    tokens_per_busy_second: {"basic": "tokens per busy second", "property": None},
    turns_the_ratios_round: {"basic": "after over before", "property": None},
    gives_the_values_after: {"basic": "values of one run", "property": None},
    gives_differences: {"basic": "a ratio, not a difference", "property": None},
    compares_the_totals: {"basic": "totals", "property": None},
    seconds_per_step: {"basic": "seconds per step", "property": None},
    busy_seconds_instead_of_the_share: {"basic": "share, not the busy seconds", "property": None},
    the_idle_share: {"basic": "idle share", "property": None},
    in_another_order: {"basic": "in this order", "property": None},
    gives_the_gain_alone: {"basic": "a list of 3", "property": "a list of 3"},
    forgets_to_return: {"basic": "end in a `return`", "property": "end in a `return`"},
    eats_its_rows: {"basic": "changes `before`", "property": "changes `before`"},
}
RIGHT = [row_by_row, in_numpy, from_the_totals_in_fractions]
