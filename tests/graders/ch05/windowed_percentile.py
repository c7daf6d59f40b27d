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


WRONG = {
    only_the_finished: {"basic": "wait longest are missing", "edges": None, "property": "rises"},
    only_those_inside: {"basic": "complete in the window count", "edges": None, "property": None},
    sees_the_future: {"basic": "count the time so far", "edges": None, "property": None},
    only_hung_ones_are_inside: {"basic": "still inside at that moment", "edges": None, "property": None},
    waits_from_the_window_s_start: {"basic": "also before the window", "edges": None, "property": None},
    by_arrival: {"basic": "take who left in it", "edges": None, "property": None},
    unfinished_count_zero: {"basic": "have waited already", "edges": None, "property": None},
    keeps_earlier_windows: {"basic": "an earlier one", "edges": None, "property": None},
    counts_who_comes_later: {"basic": "isn't known yet", "edges": None, "property": None},
    counts_who_left_at_the_start: {"edges": "after the start"},
    only_newcomers_are_inside: {"basic": None, "edges": "with the time so far", "property": None},
    an_empty_window_is_zero: {"edges": "no longer"},
}
RIGHT = [in_two_lists, by_cutting_at_the_end]
