"""Answers to `gap_parts`: wrong ideas about what a percentile of a wait holds, and differently built right ones."""


def _rank(values, percent):
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def _mean(values):
    return sum(values) / len(values)


def _waits(came, start, size):
    full = [came[k // size * size + size - 1] - came[k] for k in range(len(came))]
    return full, [start[k // size] - came[k] for k in range(len(came))]


def adds_percentiles_of_parts(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = (size - 1) / rate
    return [formula, _rank(full, percent) - formula, _rank([y - x for x, y in zip(full, whole, strict=True)], percent)]


def only_the_first_guests(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula, first = (size - 1) / rate, _rank(full[::size], percent)
    return [formula, first - formula, _rank(whole[::size], percent) - first]


def first_guests_until_full(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula, first = (size - 1) / rate, _rank(full[::size], percent)
    return [formula, first - formula, _rank(whole, percent) - first]


def the_mean_again(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = (size - 1) / rate
    return [formula, _mean(full) - formula, _mean(whole) - _mean(full)]


def the_mean_until_full(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = (size - 1) / rate
    return [formula, _mean(full) - formula, _rank(whole, percent) - _mean(full)]


def one_guest_more(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = size / rate
    return [formula, _rank(full, percent) - formula, _rank(whole, percent) - _rank(full, percent)]


def a_random_guest_s_mean(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = (size - 1) / rate / 2
    return [formula, _rank(full, percent) - formula, _rank(whole, percent) - _rank(full, percent)]


def whole_percentiles(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    return [(size - 1) / rate, _rank(full, percent), _rank(whole, percent)]


def everything_from_the_formula(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula = (size - 1) / rate
    return [formula, _rank(full, percent) - formula, _rank(whole, percent) - formula]


def the_parts_swapped(came, start, size, rate, percent):
    formula, mean, line = in_one_pass(came, start, size, rate, percent)
    return [formula, line, mean]


def the_other_sign(came, start, size, rate, percent):
    formula, mean, line = in_one_pass(came, start, size, rate, percent)
    return [formula, -mean, -line]


def never_below_zero(came, start, size, rate, percent):
    return [max(0.0, part) for part in in_one_pass(came, start, size, rate, percent)]


def the_rate_of_the_log(came, start, size, rate, percent):
    """The mean gap as it was, not as it is given."""
    gap = (came[-1] - came[0]) / max(len(came) - 1, 1)
    full, whole = _waits(came, start, size)
    formula = (size - 1) * gap
    return [formula, _rank(full, percent) - formula, _rank(whole, percent) - _rank(full, percent)]


def always_the_p99(came, start, size, rate, percent):
    return in_one_pass(came, start, size, rate, 99)


def rounds_the_rank_down(came, start, size, rate, percent):
    full, whole = (sorted(values) for values in _waits(came, start, size))
    place, formula = max(percent * len(full) // 100, 1) - 1, (size - 1) / rate
    return [formula, full[place] - formula, whole[place] - full[place]]


def forgets_to_return(came, start, size, rate, percent):
    in_one_pass(came, start, size, rate, percent)


def keeps_the_waits(came, start, size, rate, percent, full=[], whole=[]):  # noqa: B006
    more, others = _waits(came, start, size)
    full += more
    whole += others
    place, formula = -(-percent * len(came) // 100) - 1, (size - 1) / rate
    return [formula, sorted(full)[place] - formula, sorted(whole)[place] - sorted(full)[place]]


def takes_the_starts_away(came, start, size, rate, percent):
    full, whole, formula = [], [], (size - 1) / rate
    while start:
        began = start.pop(0)
        batch = [came.pop(0) for _ in range(size)]
        full += [batch[-1] - x for x in batch]
        whole += [began - x for x in batch]
    return [formula, _rank(full, percent) - formula, _rank(whole, percent) - _rank(full, percent)]


def in_one_pass(came, start, size, rate, percent):
    full, whole = _waits(came, start, size)
    formula, middle = (size - 1) / rate, _rank(full, percent)
    return formula, middle - formula, _rank(whole, percent) - middle


def with_numpy(came, start, size, rate, percent):
    import numpy as np

    orders = np.array(came, float).reshape(-1, size)
    full = np.sort((orders[:, -1:] - orders).ravel())
    whole = np.sort((np.array(start, float)[:, None] - orders).ravel())
    place = (percent * orders.size + 99) // 100 - 1
    return np.diff([0.0, (size - 1) / rate, full[place], whole[place]])


def batch_by_batch(came, start, size, rate, percent):
    import bisect

    full, whole, orders = [], [], iter(came)
    for began in start:
        batch = [next(orders) for _ in range(size)]
        for x in batch:
            bisect.insort(full, batch[-1] - x)
            bisect.insort(whole, began - x)
    rank = next(k for k in range(1, len(full) + 1) if 100 * k >= percent * len(full))
    found = [(size - 1) / rate]
    for values in (full, whole):
        found.append(values[rank - 1] - sum(found))
    return found


ALL = ("basic", "free", "single", "property")
WRONG = {
    adds_percentiles_of_parts: {"basic": "don't add up", "property": None},
    only_the_first_guests: {"basic": "of the first orders alone", "free": None, "single": None, "property": None},
    first_guests_until_full: {"basic": "not only of the first in each batch", "free": None, "single": None},
    the_mean_again: {"basic": "these are means", "free": None, "single": None, "property": None},
    the_mean_until_full: {"basic": "the mean of the waits until full", "free": None, "single": None},
    one_guest_more: {"basic": "waits for B − 1 more", "free": None, "single": None},
    a_random_guest_s_mean: {"basic": "a random guest's mean", "free": None, "single": None},
    whole_percentiles: {
        "basic": "only the difference to the one before",
        "free": None,
        "single": None,
        "property": None,
    },
    everything_from_the_formula: {
        "basic": "starts where the second ends",
        "free": None,
        "single": None,
        "property": None,
    },
    the_parts_swapped: {"basic": "changed places", "free": None, "single": None, "property": None},
    the_other_sign: {"basic": "the signs", "free": None, "single": None, "property": None},
    never_below_zero: {"basic": None, "free": "adds nothing", "single": None, "property": None},
    the_rate_of_the_log: {"basic": "the formula's wait", "free": None, "single": None},
    always_the_p99: {"basic": "whatever the percent", "free": None, "single": None, "property": None},
    rounds_the_rank_down: {"basic": "rounds its rank down", "free": None, "single": None, "property": None},
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
    keeps_the_waits: {"basic": "kept from one call to the next", "free": None, "single": None, "property": None},
    takes_the_starts_away: dict.fromkeys(ALL, "work on a copy"),
}
RIGHT = [in_one_pass, with_numpy, batch_by_batch]
