"""Answers to `window_batches`: the wrong clocks and others, and differently built right ones."""

import math
from collections import deque

import numpy as np


def _batches(arrivals_s, B, window_s, batch_s, due, take=None, busy=True):
    """The right loop with its clock replaced: `due(waiting, free)` says when the batch starts at the latest."""
    line, free, found = list(arrivals_s), 0.0, []
    while line:
        full = line[B - 1] if len(line) >= B else math.inf
        start = min(full, due(line, free))
        start = max(start, free) if busy else start
        size = min(B, sum(t <= start for t in line)) if take is None else take(line, start)
        found.append([start, size])
        free = start + batch_s
        line = line[size:]
    return found


def times_from_the_last_arrival(arrivals_s, B, window_s, batch_s):
    def due(line, free):
        for came, after in zip(line, [*line[1:], math.inf], strict=True):
            if after > came + window_s:
                return came + window_s
        return math.inf

    return _batches(arrivals_s, B, window_s, batch_s, due)


def waits_for_a_clock_that_ticks(arrivals_s, B, window_s, batch_s):
    return _batches(
        arrivals_s,
        B,
        window_s,
        batch_s,
        lambda line, free: window_s * math.ceil(line[0] / window_s) if window_s else line[0],
    )


def starts_the_window_when_the_engine_is_free(arrivals_s, B, window_s, batch_s):
    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: max(line[0], free) + window_s)


def waits_out_the_window_though_the_batch_is_full(arrivals_s, B, window_s, batch_s):
    line, free, found = list(arrivals_s), 0.0, []
    while line:
        start = max(line[0] + window_s, free)
        size = min(B, sum(t <= start for t in line))
        found.append([start, size])
        free, line = start + batch_s, line[size:]
    return found


def starts_though_the_engine_is_busy(arrivals_s, B, window_s, batch_s):
    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s, busy=False)


def takes_everyone_who_waits(arrivals_s, B, window_s, batch_s):
    return _batches(
        arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s,
        take=lambda line, start: sum(t <= start for t in line),
    )  # fmt: skip


def takes_only_those_of_the_oldests_window(arrivals_s, B, window_s, batch_s):
    return _batches(
        arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s,
        take=lambda line, start: min(B, sum(t <= line[0] + window_s for t in line)),
    )  # fmt: skip


def takes_B_whoever_is_there(arrivals_s, B, window_s, batch_s):
    return _batches(
        arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s,
        take=lambda line, start: min(B, len(line)),
    )  # fmt: skip


def waits_for_a_full_batch(arrivals_s, B, window_s, batch_s):
    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: line[-1] if len(line) < B else math.inf)


def leaves_out_who_comes_at_the_last_moment(arrivals_s, B, window_s, batch_s):
    def take(line, start):
        return max(1, min(B, sum(t < start for t in line)))

    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s, take=take)


def never_starts_at_once(arrivals_s, B, window_s, batch_s):
    if not window_s:
        raise ZeroDivisionError("division by zero")
    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s)


def knows_that_nobody_else_comes(arrivals_s, B, window_s, batch_s):
    def due(line, free):
        return line[0] + window_s if len(line) >= B else min(line[0] + window_s, line[-1])

    return _batches(arrivals_s, B, window_s, batch_s, due)


def with_slices(arrivals_s, B, window_s, batch_s):
    return _batches(arrivals_s, B, window_s, batch_s, lambda line, free: line[0] + window_s)


def from_event_to_event(arrivals_s, B, window_s, batch_s):
    coming, line, found = deque(arrivals_s), [], []
    now, free = 0.0, 0.0
    while coming or line:
        while coming and coming[0] <= now:
            line.append(coming.popleft())
        if line and now >= free and (len(line) >= B or now >= line[0] + window_s):
            found.append((now, min(B, len(line))))
            line = line[B:]
            free = now + batch_s
            continue
        events = [t for t in (free, line[0] + window_s if line else math.inf) if t > now]
        now = min([*events, *list(coming)[:1]])
    return found


def by_place(arrivals_s, B, window_s, batch_s):
    starts, sizes, place, free = [], [], 0, 0.0
    while place < len(arrivals_s):
        start = arrivals_s[place] + window_s
        if place + B <= len(arrivals_s) and arrivals_s[place + B - 1] < start:
            start = arrivals_s[place + B - 1]
        start = start if start > free else free
        end = place
        while end < len(arrivals_s) and end < place + B and arrivals_s[end] <= start:
            end += 1
        starts.append(start)
        sizes.append(end - place)
        place, free = end, start + batch_s
    return [list(pair) for pair in zip(starts, sizes, strict=True)]


def in_an_array(*args):
    """Two columns: the sizes are floats too."""
    return np.array(_batches(*args, lambda line, free: line[0] + args[2])).reshape(-1, 2)


EVERYWHERE = dict.fromkeys(["window", "full", "busy", "edges", "property"])
WRONG = {
    times_from_the_last_arrival: {**EVERYWHERE, "window": "doesn't restart"},
    waits_for_a_clock_that_ticks: {**EVERYWHERE, "window": "not to a clock that ticks"},
    starts_the_window_when_the_engine_is_free: {
        "window": None, "full": None, "busy": "runs while the engine is busy", "property": None,
    },
    waits_out_the_window_though_the_batch_is_full: {"full": "it starts as soon as B wait", "property": None},
    starts_though_the_engine_is_busy: {"busy": "the engine is still busy", "property": None},
    takes_everyone_who_waits: {"busy": "at most B", "property": None},
    takes_only_those_of_the_oldests_window: {"busy": "who came while the engine was busy", "property": None},
    takes_B_whoever_is_there: {**EVERYWHERE, "window": "who hasn't come yet"},
    waits_for_a_full_batch: {**EVERYWHERE, "window": "the window is over"},
    leaves_out_who_comes_at_the_last_moment: {**EVERYWHERE, "edges": "at that very moment"},
    knows_that_nobody_else_comes: {"window": "rule 4", "full": None, "edges": None, "property": None},
    never_starts_at_once: {"edges": "an answer", "property": None},
}  # fmt: skip
RIGHT = [with_slices, from_event_to_event, by_place, in_an_array]
