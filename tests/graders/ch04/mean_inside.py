"""Answers to `mean_inside`: wrong ideas about a window, and differently built right ones."""


def only_those_wholly_within(came_s, left_s, start_s, end_s):
    stays = [
        left - came
        for came, left in zip(came_s, left_s, strict=True)
        if left is not None and came >= start_s and left <= end_s
    ]
    return sum(stays) / (end_s - start_s)


def forgets_those_still_inside(came_s, left_s, start_s, end_s):
    pairs = [(came, left) for came, left in zip(came_s, left_s, strict=True) if left is not None]
    return sum(max(0, min(left, end_s) - max(came, start_s)) for came, left in pairs) / (end_s - start_s)


def _closed(came_s, left_s, end_s):
    return [(came, end_s if left is None else left) for came, left in zip(came_s, left_s, strict=True)]


def counts_whole_stays(came_s, left_s, start_s, end_s):
    stays = [left - came for came, left in _closed(came_s, left_s, end_s) if came < end_s and left > start_s]
    return sum(stays) / (end_s - start_s)


def only_those_who_came_in_the_window(came_s, left_s, start_s, end_s):
    stays = [left - came for came, left in _closed(came_s, left_s, end_s) if start_s <= came < end_s]
    return sum(stays) / (end_s - start_s)


def allows_negative_seconds(came_s, left_s, start_s, end_s):
    overlaps = [min(left, end_s) - max(came, start_s) for came, left in _closed(came_s, left_s, end_s)]
    return sum(overlaps) / (end_s - start_s)


def counts_requests(came_s, left_s, start_s, end_s):
    inside = [1 for came, left in _closed(came_s, left_s, end_s) if came < end_s and left > start_s]
    return len(inside) / (end_s - start_s)


def keeps_the_time_before(came_s, left_s, start_s, end_s):
    overlaps = [max(0, min(left, end_s) - came) for came, left in _closed(came_s, left_s, end_s) if came < end_s]
    return sum(overlaps) / (end_s - start_s)


def keeps_the_time_after(came_s, left_s, start_s, end_s):
    overlaps = [max(0, left - max(came, start_s)) for came, left in _closed(came_s, left_s, end_s)]
    return sum(overlaps) / (end_s - start_s)


def takes_zero_for_none(came_s, left_s, start_s, end_s):
    overlaps = [
        max(0, min(left or end_s, end_s) - max(came, start_s)) for came, left in zip(came_s, left_s, strict=True)
    ]
    return sum(overlaps) / (end_s - start_s)


def averages_over_requests(came_s, left_s, start_s, end_s):
    inside = [
        sum(x <= came and (y is None or y > came) for x, y in zip(came_s, left_s, strict=True))
        for came in came_s
        if start_s <= came < end_s
    ]
    return sum(inside) / len(inside) if inside else 0.0


def request_seconds(came_s, left_s, start_s, end_s):
    return by_overlaps(came_s, left_s, start_s, end_s) * (end_s - start_s)


def forgets_to_return(came_s, left_s, start_s, end_s):
    by_overlaps(came_s, left_s, start_s, end_s)


def fills_in_the_log(came_s, left_s, start_s, end_s):
    for k, left in enumerate(left_s):
        if left is None:
            left_s[k] = end_s
    return by_overlaps(came_s, left_s, start_s, end_s)


def by_overlaps(came_s, left_s, start_s, end_s):
    return sum(
        max(0.0, min(left, end_s) - max(came, start_s)) for came, left in _closed(came_s, left_s, max([end_s, *came_s]))
    ) / (end_s - start_s)


def by_counting_between_events(came_s, left_s, start_s, end_s):
    events = [(came, 1) for came in came_s] + [(left, -1) for left in left_s if left is not None]
    inside, last, total = 0, start_s, 0.0
    for at, change in sorted(events):
        now = min(max(at, start_s), end_s)
        total += inside * (now - last)
        inside, last = inside + change, now
    return (total + inside * (end_s - last)) / (end_s - start_s)


def in_numpy(came_s, left_s, start_s, end_s):
    import numpy as np

    left = np.array([end_s if left is None else left for left in left_s], float)
    overlap = np.minimum(left, end_s) - np.maximum(np.array(came_s, float), start_s)
    return overlap.clip(min=0).sum() / (end_s - start_s)


WRONG = {
    only_those_wholly_within: {
        "basic": "came and left within",
        "edges": "this takes only requests that came and",
        "property": None,
    },
    forgets_those_still_inside: {
        "basic": "haven't left yet",
        "edges": "those who haven't left yet are inside,",
        "property": None,
    },
    counts_whole_stays: {
        "basic": "not with its whole stay",
        "edges": "a request counts only with its seconds",
        "property": None,
    },
    only_those_who_came_in_the_window: {"basic": "came before the window", "edges": None, "property": None},
    allows_negative_seconds: {
        "basic": "no negative seconds",
        "edges": "a request that wasn't inside adds",
        "property": None,
    },
    counts_requests: {"basic": "not the requests", "edges": None, "property": "its whole stay"},
    keeps_the_time_before: {"basic": "the time before", "edges": None, "property": "border"},
    keeps_the_time_after: {"basic": "the time after", "edges": None, "property": None},
    takes_zero_for_none: {"edges": "ask `left is None`"},
    request_seconds: {
        "basic": "divide them by the seconds",
        "edges": "these are request-seconds: divide them by",
        "property": "each request adds its whole stay here",
    },
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "nothing came back: does every way through",
        "property": "nothing came back: does every way through",
    },
    fills_in_the_log: {"basic": "changes `left_", "edges": "changes `left_", "property": "changes `left_"},
    averages_over_requests: {"basic": "average over time", "edges": None, "property": None},
}
RIGHT = [by_overlaps, by_counting_between_events, in_numpy]
