"""Answers to `window_starts`: the wrong clocks and others, and differently built right ones."""

import heapq
import math
from collections import deque

import numpy as np


def _starts(arrivals_s, B, window_s, batch_s, due=lambda line, free, window: line[0] + window, take=None, busy=True):
    """The right loop with its clock replaced: `due(waiting, free, window)` says when the batch starts at the latest."""
    line, free, found = list(arrivals_s), 0.0, []
    while line:
        full = line[B - 1] if len(line) >= B else math.inf
        start = min(full, due(line, free, window_s))
        start = max(start, free) if busy else start
        size = min(B, sum(t <= start for t in line)) if take is None else take(line, start)
        found += [start] * size
        free = start + batch_s
        line = line[size:]
    return found


def times_from_the_last_arrival(*args):
    def due(line, free, window):
        for came, after in zip(line, [*line[1:], math.inf], strict=True):
            if after > came + window:
                return came + window
        return math.inf

    return _starts(*args, due)


def waits_for_a_clock_that_ticks(*args):
    return _starts(*args, lambda line, free, window: window * math.ceil(line[0] / window) if window else line[0])


def starts_the_window_when_the_engine_is_free(*args):
    return _starts(*args, lambda line, free, window: max(line[0], free) + window)


def hands_in_what_the_colleague_wrote(arrivals_s, B, window_s, batch_s):
    line, free_s, starts_s = list(arrivals_s), 0.0, []
    while line:
        due_s = line[0] + window_s
        for came_s in line[1:B]:
            if came_s <= due_s:
                due_s = came_s + window_s
        if len(line) >= B:
            due_s = min(due_s, line[B - 1])
        start_s = max(due_s, free_s)
        batch = [came_s for came_s in line if came_s <= due_s][:B]
        starts_s += [start_s] * len(batch)
        free_s = start_s + batch_s
        line = line[len(batch) :]
    return starts_s


def mends_the_clock_and_forgets_the_full_batch(arrivals_s, B, window_s, batch_s):
    line, free, found = list(arrivals_s), 0.0, []
    while line:
        start = max(line[0] + window_s, free)
        size = min(B, sum(t <= start for t in line))
        found += [start] * size
        free, line = start + batch_s, line[size:]
    return found


def mends_the_clock_alone(*args):
    """Who came while the engine was busy is still left out."""
    B, window_s = args[1:3]
    return _starts(*args, take=lambda line, start: min(B, sum(t <= line[0] + window_s for t in line)))


def starts_though_the_engine_is_busy(*args):
    return _starts(*args, busy=False)


def takes_everyone_who_waits(*args):
    return _starts(*args, take=lambda line, start: sum(t <= start for t in line))


def takes_B_whoever_is_there(*args):
    return _starts(*args, take=lambda line, start: min(args[1], len(line)))


def waits_for_a_full_batch(*args):
    return _starts(*args, lambda line, free, window: line[-1] if len(line) < args[1] else math.inf)


def leaves_out_who_comes_at_the_last_moment(*args):
    return _starts(*args, take=lambda line, start: max(1, min(args[1], sum(t < start for t in line))))


def never_starts_at_once(arrivals_s, B, window_s, batch_s):
    if not window_s:
        raise ZeroDivisionError("division by zero")
    return _starts(arrivals_s, B, window_s, batch_s)


def knows_that_nobody_else_comes(*args):
    def due(line, free, window):
        return line[0] + window if line[-1] > line[0] + window else min(line[0] + window, line[-1])

    return _starts(*args, due)


def starts_with_whoever_is_there(arrivals_s, B, window_s, batch_s):
    return _starts(arrivals_s, B, 0.0, batch_s)


def returns_the_ends(*args):
    return [start + args[3] for start in _starts(*args)]


def returns_the_waits(*args):
    return [start - came for came, start in zip(args[0], _starts(*args), strict=True)]


def returns_one_start_for_each_batch(*args):
    return sorted(set(_starts(*args)))


def looks_at_the_first_of_nobody(*args):
    args[0][0]
    return _starts(*args)


def forgets_to_return(*args):
    _starts(*args)


_kept = []


def keeps_what_it_found_before(*args):
    _kept.extend(_starts(*args))
    return _kept[:]


def eats_its_line(arrivals_s, B, window_s, batch_s):
    found = _starts(arrivals_s, B, window_s, batch_s)
    while arrivals_s:
        arrivals_s.pop(0)
    return found


def from_event_to_event(arrivals_s, B, window_s, batch_s):
    coming, line, found = deque(arrivals_s), [], []
    now, free = 0.0, 0.0
    while coming or line:
        while coming and coming[0] <= now:
            line.append(coming.popleft())
        if line and now >= free and (len(line) >= B or now >= line[0] + window_s):
            found += [now] * len(line[:B])
            line = line[B:]
            free = now + batch_s
            continue
        events = [t for t in (free, line[0] + window_s if line else math.inf) if t > now]
        now = min([*events, *list(coming)[:1]])
    return found


def by_place(arrivals_s, B, window_s, batch_s):
    starts, place, free = [], 0, 0.0
    while place < len(arrivals_s):
        start = arrivals_s[place] + window_s
        if place + B <= len(arrivals_s) and arrivals_s[place + B - 1] < start:
            start = arrivals_s[place + B - 1]
        start = start if start > free else free
        end = place
        while end < len(arrivals_s) and end < place + B and arrivals_s[end] <= start:
            starts.append(start)
            end += 1
        place, free = end, start + batch_s
    return tuple(starts)


def with_bisection_in_an_array(arrivals_s, B, window_s, batch_s):
    came = np.asarray(arrivals_s, float)
    starts, first, free = np.zeros(len(came)), 0, 0.0
    while first < len(came):
        full = came[first + B - 1] if first + B <= len(came) else np.inf
        start = max(min(came[first] + window_s, full), free)
        after = min(first + B, int(np.searchsorted(came, start, side="right")))
        starts[first:after] = start
        first, free = after, start + batch_s
    return starts


def with_a_heap(arrivals_s, B, window_s, batch_s):
    line = list(arrivals_s)
    heapq.heapify(line)
    free, found = 0.0, []
    while line:
        earliest = heapq.nsmallest(B, line)
        due = earliest[0] + window_s
        start = max(free, min(due, earliest[-1]) if len(earliest) == B else due)
        while line and len(earliest) > 0 and line[0] <= start:
            heapq.heappop(line)
            earliest.pop()
            found.append(start)
        free = start + batch_s
    return found


EVERYWHERE = dict.fromkeys(["clock", "busy", "edges", "property"])
WRONG = {
    times_from_the_last_arrival: {**EVERYWHERE, "clock": "doesn't restart"},
    waits_for_a_clock_that_ticks: {**EVERYWHERE, "clock": "not to a clock that ticks"},
    starts_the_window_when_the_engine_is_free: {
        "clock": None,
        "busy": "runs while the engine is busy",
        "property": None,
    },
    hands_in_what_the_colleague_wrote: {**EVERYWHERE, "clock": "doesn't restart", "busy": None},
    mends_the_clock_and_forgets_the_full_batch: {
        "clock": "it starts as soon as B wait",
        "busy": "it starts as soon as B wait",
        "property": "it starts as soon as B wait",
    },
    mends_the_clock_alone: {
        "busy": "who came while the engine was busy",
        "edges": "who came while the engine was busy",
        "property": "who came while the engine was busy",
    },
    starts_though_the_engine_is_busy: {"busy": "the engine is still busy", "edges": "is still busy", "property": None},
    takes_everyone_who_waits: {"busy": "at most B", "property": None},
    takes_B_whoever_is_there: {**EVERYWHERE, "clock": "who hasn't come yet"},
    waits_for_a_full_batch: {**EVERYWHERE, "clock": "the window is over"},
    leaves_out_who_comes_at_the_last_moment: {**EVERYWHERE, "edges": "at that very moment"},
    knows_that_nobody_else_comes: {"clock": "rule 4", "edges": None, "property": None},
    starts_with_whoever_is_there: {**EVERYWHERE, "clock": "a window of 0 s"},
    never_starts_at_once: {"edges": "an answer", "property": None},
    returns_the_ends: {**EVERYWHERE, "clock": "the ends of the batches"},
    returns_the_waits: {**EVERYWHERE, "clock": "these are the waits"},
    returns_one_start_for_each_batch: {**EVERYWHERE, "clock": "not for each batch"},
    looks_at_the_first_of_nobody: {"edges": "nobody comes, so there is nothing to return"},
    forgets_to_return: dict.fromkeys(EVERYWHERE, "end in a `return`"),
    keeps_what_it_found_before: {**EVERYWHERE, "clock": "kept from one call to the next"},
    eats_its_line: dict.fromkeys(EVERYWHERE, "changes `arrivals_"),
}
RIGHT = [from_event_to_event, by_place, with_bisection_in_an_array, with_a_heap]
