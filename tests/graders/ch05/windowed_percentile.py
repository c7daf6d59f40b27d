"""Answers to `windowed_percentile`: wrong ideas about what a window can know, and differently built right ones."""


def _of(values, percent):
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def _ended(came, left, start, end):
    return [y - x for x, y in zip(came, left, strict=True) if y is not None and start < y <= end]


def _inside(came, left, end):
    return [end - x for x, y in zip(came, left, strict=True) if x <= end and (y is None or y > end)]


def only_the_finished(came, left, start, end, percent):
    return _of(_ended(came, left, start, end), percent)


def only_those_inside(came, left, start, end, percent):
    return _of(_inside(came, left, end), percent)


def sees_the_future(came, left, start, end, percent):
    values = [
        end - x if y is None else y - x
        for x, y in zip(came, left, strict=True)
        if x <= end and (y is None or y > start)
    ]
    return _of(values, percent)


def only_hung_ones_are_inside(came, left, start, end, percent):
    hung = [end - x for x, y in zip(came, left, strict=True) if x <= end and y is None]
    return _of(_ended(came, left, start, end) + hung, percent)


def waits_from_the_window_s_start(came, left, start, end, percent):
    inside = [end - max(x, start) for x, y in zip(came, left, strict=True) if x <= end and (y is None or y > end)]
    return _of(_ended(came, left, start, end) + inside, percent)


def by_arrival(came, left, start, end, percent):
    return _of([y - x for x, y in zip(came, left, strict=True) if start < x <= end and y is not None], percent)


def unfinished_count_zero(came, left, start, end, percent):
    return _of(_ended(came, left, start, end) + [0] * len(_inside(came, left, end)), percent)


def keeps_earlier_windows(came, left, start, end, percent):
    ended = [y - x for x, y in zip(came, left, strict=True) if y is not None and y <= end]
    return _of(ended + _inside(came, left, end), percent)


def counts_who_comes_later(came, left, start, end, percent):
    inside = [end - x for x, y in zip(came, left, strict=True) if y is None or y > end]
    return _of(_ended(came, left, start, end) + inside, percent)


def counts_who_left_at_the_start(came, left, start, end, percent):
    ended = [y - x for x, y in zip(came, left, strict=True) if y is not None and start <= y <= end]
    return _of(ended + _inside(came, left, end), percent)


def only_newcomers_are_inside(came, left, start, end, percent):
    inside = [end - x for x, y in zip(came, left, strict=True) if start < x <= end and (y is None or y > end)]
    return _of(_ended(came, left, start, end) + inside, percent)


def who_came_at_the_end_is_not_here_yet(came, left, start, end, percent):
    inside = [end - x for x, y in zip(came, left, strict=True) if x < end and (y is None or y > end)]
    return _of(_ended(came, left, start, end) + inside, percent)


def who_leaves_at_the_end_is_inside_twice(came, left, start, end, percent):
    inside = [end - x for x, y in zip(came, left, strict=True) if x <= end and (y is None or y >= end)]
    return _of(_ended(came, left, start, end) + inside, percent)


def zero_is_not_yet(came, left, start, end, percent):
    inf = float("inf")
    return by_cutting_at_the_end(came, [y or inf for y in left], start, end, percent)


def the_mean_of_them(came, left, start, end, percent):
    values = _ended(came, left, start, end) + _inside(came, left, end)
    return sum(values) / len(values) if values else None


def the_longest_stay(came, left, start, end, percent):
    return max((end - x for x in came if x <= end), default=None)


def an_empty_list_is_nan(came, left, start, end, percent):
    return _of(_ended(came, left, start, end) + _inside(came, left, end), percent) or None


def rounds_the_rank_down(came, left, start, end, percent):
    ordered = sorted(_ended(came, left, start, end) + _inside(came, left, end))
    return ordered[max(percent * len(ordered) // 100, 1) - 1] if ordered else None


def forgets_to_return(came, left, start, end, percent):
    _of(_ended(came, left, start, end) + _inside(came, left, end), percent)


def keeps_the_values(came, left, start, end, percent, known=[]):  # noqa: B006
    now = _ended(came, left, start, end) + _inside(came, left, end)
    known += now
    return sorted(known)[-(-percent * len(now) // 100) - 1] if now else None


def cuts_the_list_itself(came, left, start, end, percent):
    for k, y in enumerate(left):
        left[k] = end if y is None else min(y, end)
    return _of([y - x for x, y in zip(came, left, strict=True) if x <= end and y > start], percent)


def an_empty_window_is_zero(came, left, start, end, percent):
    return _of(_ended(came, left, start, end) + _inside(came, left, end), percent) or 0


def in_two_lists(came, left, start, end, percent):
    return _of(_ended(came, left, start, end) + _inside(came, left, end), percent)


def by_cutting_at_the_end(came, left, start, end, percent):
    """Everyone leaves at the window's end at the latest; who left before it began isn't of it."""
    values = []
    for x, y in zip(came, left, strict=True):
        if x <= end:
            until = end if y is None else min(y, end)
            if until > start:
                values.append(until - x)
    return _of(values, percent)


def with_numpy(came, left, start, end, percent):
    import numpy as np

    x = np.array(came, float)
    y = np.array([np.inf if each is None else each for each in left], float)
    known = np.sort((np.minimum(y, end) - x)[(x <= end) & (y > start)])
    return known[(percent * len(known) + 99) // 100 - 1] if len(known) else None


ALL = ("basic", "inside", "edges", "property")
WRONG = {
    only_the_finished: {
        "basic": "wait longest are missing",
        "inside": "not nobody",
        "edges": None,
        "property": "rises",
    },
    only_those_inside: {"basic": "complete in the window count", "edges": None, "property": None},
    sees_the_future: {"basic": "count the time so far", "inside": None, "edges": None, "property": None},
    only_hung_ones_are_inside: {
        "basic": "still inside at that moment",
        "inside": None,
        "edges": None,
        "property": None,
    },
    waits_from_the_window_s_start: {"basic": "also before the window", "inside": None, "property": None},
    by_arrival: {"basic": "take who left in it", "inside": None, "edges": None, "property": None},
    unfinished_count_zero: {"basic": "have waited already", "inside": None, "property": None},
    keeps_earlier_windows: {"basic": "an earlier one", "edges": None, "property": None},
    counts_who_comes_later: {"basic": "isn't known yet", "edges": None, "property": None},
    counts_who_left_at_the_start: {"edges": "after the start"},
    only_newcomers_are_inside: {"basic": "came before the window", "inside": None, "property": None},
    who_came_at_the_end_is_not_here_yet: {"edges": "has come by the end counts"},
    who_leaves_at_the_end_is_inside_twice: {"edges": "counts once"},
    zero_is_not_yet: {"edges": "0 is a time"},
    an_empty_window_is_zero: {"edges": "nobody is None"},
    an_empty_list_is_nan: {"edges": "with 0 s too"},
    the_mean_of_them: {"basic": "this is their mean", "inside": None, "edges": None, "property": None},
    the_longest_stay: {"basic": "whoever left", "inside": "whoever left", "edges": None, "property": None},
    rounds_the_rank_down: {"basic": "rounds its rank down", "inside": None, "property": None},
    forgets_to_return: {"basic": "end in a `return`", "inside": None, "edges": None, "property": "a `return` missing"},
    keeps_the_values: {"basic": "kept from one call to the next", "inside": None, "edges": None, "property": None},
    cuts_the_list_itself: {"basic": "work on a copy", "inside": None, "edges": None, "property": None},
}
RIGHT = [in_two_lists, by_cutting_at_the_end, with_numpy]
