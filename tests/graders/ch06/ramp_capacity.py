"""Answers to `ramp_capacity`: offered load taken for capacity, and differently built right ones."""


def _keeps_up(level):
    return level["finished"] >= 0.95 * level["came"]


def _rate(level):
    return level["finished"] / level["seconds"]


def _usable(levels, slo_s):
    usable = None
    for level in levels:
        if not _keeps_up(level) or level["p99_s"] > slo_s:
            break
        usable = level["offered_rps"]
    return usable


def _capacity(levels):
    return max((_rate(level) for level in levels if not _keeps_up(level)), default=None)


def takes_the_largest_throughput(levels, slo_s):
    return max(_rate(level) for level in levels), _usable(levels, slo_s)


def takes_the_load_where_it_falls_behind(levels, slo_s):
    behind = [level["offered_rps"] for level in levels if not _keeps_up(level)]
    return behind[0] if behind else None, _usable(levels, slo_s)


def takes_the_last_load_that_keeps_up(levels, slo_s):
    keeping = [level["offered_rps"] for level in levels if _keeps_up(level)]
    return keeping[-1] if keeping else None, _usable(levels, slo_s)


def compares_with_the_plan(levels, slo_s):
    behind = [_rate(level) for level in levels if _rate(level) < 0.95 * level["offered_rps"]]
    return max(behind, default=None), _usable(levels, slo_s)


def takes_the_first_that_falls_behind(levels, slo_s):
    return next((_rate(level) for level in levels if not _keeps_up(level)), None), _usable(levels, slo_s)


def averages_those_behind(levels, slo_s):
    behind = [_rate(level) for level in levels if not _keeps_up(level)]
    return sum(behind) / len(behind) if behind else None, _usable(levels, slo_s)


def takes_the_last_level(levels, slo_s):
    return None if _keeps_up(levels[-1]) else _rate(levels[-1]), _usable(levels, slo_s)


def forgets_the_seconds(levels, slo_s):
    return max((level["finished"] for level in levels if not _keeps_up(level)), default=None), _usable(levels, slo_s)


def takes_a_lucky_level(levels, slo_s):
    good = [level["offered_rps"] for level in levels if _keeps_up(level) and level["p99_s"] <= slo_s]
    return _capacity(levels), good[-1] if good else None


def forgets_the_slo(levels, slo_s):
    return _capacity(levels), _usable(levels, float("inf"))


def forgets_to_keep_up(levels, slo_s):
    usable = None
    for level in levels:
        if level["p99_s"] > slo_s:
            break
        usable = level["offered_rps"]
    return _capacity(levels), usable


def takes_the_level_that_fails(levels, slo_s):
    failing = [level["offered_rps"] for level in levels if not _keeps_up(level) or level["p99_s"] > slo_s]
    return _capacity(levels), failing[0] if failing else levels[-1]["offered_rps"]


def zero_for_none(levels, slo_s):
    return _capacity(levels) or 0, _usable(levels, slo_s) or 0


def by_sorting(levels, slo_s):
    behind = sorted(_rate(level) for level in levels if level["finished"] / level["came"] < 0.95)
    fails = [k for k, level in enumerate(levels) if level["finished"] / level["came"] < 0.95 or level["p99_s"] > slo_s]
    first = min([*fails, len(levels)])
    return behind[-1] if behind else None, levels[first - 1]["offered_rps"] if first else None


def by_one_walk(levels, slo_s):
    capacity, usable, climbing = None, None, True
    for level in levels:
        keeps = _keeps_up(level)
        if not keeps and (capacity is None or _rate(level) > capacity):
            capacity = _rate(level)
        climbing = climbing and keeps and level["p99_s"] <= slo_s
        if climbing:
            usable = level["offered_rps"]
    return capacity, usable


def takes_the_first_window(levels, slo_s):
    behind = [level["finished"] / levels[0]["seconds"] for level in levels if not _keeps_up(level)]
    return max(behind, default=None), _usable(levels, slo_s)


def usable_is_what_finished(levels, slo_s):
    usable = _usable(levels, slo_s)
    return _capacity(levels), next((_rate(level) for level in levels if level["offered_rps"] == usable), None)


def swaps_the_two(levels, slo_s):
    return _usable(levels, slo_s), _capacity(levels)


def forgets_to_return(levels, slo_s):
    _capacity(levels)


def in_numpy(levels, slo_s):
    import numpy as np

    keeps = np.array([level["finished"] >= 0.95 * level["came"] for level in levels])
    rates = np.array([level["finished"] / level["seconds"] for level in levels])
    good = keeps & np.array([level["p99_s"] <= slo_s for level in levels])
    climbed = int(np.argmin(good)) if not good.all() else len(levels)
    capacity = None if keeps.all() else rates[~keeps].max()
    return [capacity, levels[climbed - 1]["offered_rps"] if climbed else None]


WRONG = {
    takes_the_first_window: {"capacity": "window of its own"},
    usable_is_what_finished: {
        "capacity": "the usable rate is what that level",
        "not_shown": "the usable rate is what that level",
        "usable": "what that level offered",
    },
    swaps_the_two: {
        "capacity": "the capacity comes first",
        "not_shown": "the capacity comes first",
        "usable": "the capacity comes first",
    },
    forgets_to_return: {
        "capacity": "end in a `return`",
        "not_shown": "nothing came back: does every way through",
        "usable": "nothing came back: does every way through",
    },
    takes_the_largest_throughput: {
        "capacity": "the largest of all levels",
        "not_shown": "the largest of all levels: one that keeps",
        "usable": "the largest of all levels: one that keeps",
    },
    takes_the_load_where_it_falls_behind: {
        "capacity": "that was offered, not finished",
        "usable": "that was offered, not finished",
    },
    takes_the_last_load_that_keeps_up: {
        "capacity": "a level that keeps up only",
        "not_shown": "a level that keeps up only gives back",
        "usable": "a level that keeps up only gives back",
    },
    compares_with_the_plan: {"not_shown": "compare what finishes with"},
    takes_the_first_that_falls_behind: {
        "capacity": "the first level that falls behind isn't",
        "usable": "the first level that falls behind isn't",
    },
    averages_those_behind: {
        "capacity": "not their mean: past capacity",
        "usable": "not their mean: past capacity a service",
    },
    takes_the_last_level: {"capacity": "the last level isn't the best", "usable": "no level passes: None"},
    forgets_the_seconds: {"capacity": "per second of the window", "usable": "per second of the window: divide"},
    takes_a_lucky_level: {"usable": "stop at the first level"},
    forgets_the_slo: {
        "capacity": "keeping up isn't enough: the P99 must",
        "usable": "keeping up isn't enough: the P99 must",
    },
    forgets_to_keep_up: {"usable": "a level that falls behind"},
    takes_the_level_that_fails: {
        "capacity": "keeping up isn't enough: the P99 must",
        "usable": "the level before the first",
    },
    zero_for_none: {
        "not_shown": "what nobody has seen is None, not zero",
        "usable": "what nobody has seen is None, not zero",
    },
}
RIGHT = [in_numpy, by_sorting, by_one_walk]
