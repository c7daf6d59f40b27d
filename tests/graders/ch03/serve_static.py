"""Answers to `serve_static` at token level: wrong ideas, and differently built right ones."""

import numpy as np


def _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=max, start=max, ready=lambda batch: batch[-1]):
    """The right loop with one part replaced: a batch's steps, when it starts, or when it is ready."""
    free, finished = 0.0, []
    for first in range(0, len(arrivals_s), B):
        batch = arrivals_s[first : first + B]
        lengths = tokens[first : first + B]
        free = start(ready(batch), free) + steps(lengths) * (fixed_s + per_request_s * B)
        finished += [free] * len(batch)
    return finished


def lets_each_leave_when_it_is_done(arrivals_s, tokens, B, fixed_s, per_request_s):
    step = fixed_s + per_request_s * B
    ends = _serve(arrivals_s, tokens, B, fixed_s, per_request_s)
    longest = [max(tokens[k // B * B : k // B * B + B]) for k in range(len(tokens))]
    return [end - (most - own) * step for end, most, own in zip(ends, longest, tokens, strict=True)]


def lasts_as_long_as_the_mean_answer(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=lambda lengths: sum(lengths) / len(lengths))


def runs_them_one_after_the_other(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=sum)


def takes_one_step_whatever_the_length(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=lambda lengths: 1)


def takes_the_length_of_the_first(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=lambda lengths: lengths[0])


def takes_the_longest_of_all(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, steps=lambda lengths: max(tokens))


def charges_only_those_who_lack_tokens(arrivals_s, tokens, B, fixed_s, per_request_s):
    free, finished = 0.0, []
    for first in range(0, len(arrivals_s), B):
        lengths = tokens[first : first + B]
        free = max(arrivals_s[first : first + B][-1], free)
        for step in range(max(lengths)):
            free += fixed_s + per_request_s * sum(length > step for length in lengths)
        finished += [free] * len(lengths)
    return finished


def charges_one_seat(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s + per_request_s * (1 - B), per_request_s)


def starts_though_the_engine_is_busy(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, start=lambda ready, free: ready)


def starts_before_the_batch_is_full(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s, ready=lambda batch: batch[0])


def drops_the_last_batch(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s[: len(arrivals_s) // B * B], tokens, B, fixed_s, per_request_s)


def charges_the_last_batch_for_its_own_seats(arrivals_s, tokens, B, fixed_s, per_request_s):
    full = len(arrivals_s) // B * B
    ends = _serve(arrivals_s, tokens, B, fixed_s, per_request_s)
    if full == len(arrivals_s):
        return ends
    saved = max(tokens[full:]) * per_request_s * (B - len(arrivals_s) + full)
    return ends[:full] + [end - saved for end in ends[full:]]


def looks_at_the_last_of_nobody(arrivals_s, tokens, B, fixed_s, per_request_s):
    arrivals_s[-1]
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s)


def returns_latencies(arrivals_s, tokens, B, fixed_s, per_request_s):
    ends = _serve(arrivals_s, tokens, B, fixed_s, per_request_s)
    return [end - arrival for end, arrival in zip(ends, arrivals_s, strict=True)]


def returns_one_time_for_each_batch(arrivals_s, tokens, B, fixed_s, per_request_s):
    return _serve(arrivals_s, tokens, B, fixed_s, per_request_s)[::B]


def forgets_to_return(*args):
    _serve(*args)


_kept = []


def keeps_what_it_found_before(*args):
    _kept.extend(_serve(*args))
    return _kept[:]


def eats_its_arrivals(arrivals_s, tokens, B, fixed_s, per_request_s):
    finished = _serve(arrivals_s, tokens, B, fixed_s, per_request_s)
    del arrivals_s[:]
    return finished


def in_a_loop(arrivals_s, tokens, B, fixed_s, per_request_s):
    free, finished = 0.0, []
    for first in range(0, len(arrivals_s), B):
        batch, lengths = arrivals_s[first : first + B], tokens[first : first + B]
        free = max(max(batch), free) + max(lengths) * (fixed_s + per_request_s * B)
        for _ in batch:
            finished.append(free)
    return finished


def in_numpy(arrivals_s, tokens, B, fixed_s, per_request_s):
    n = len(arrivals_s)
    batches = -(-n // B)
    lengths = np.zeros(batches * B)
    lengths[:n] = tokens
    spans = lengths.reshape(batches, B).max(axis=1, initial=0) * (fixed_s + per_request_s * B)
    ready = np.asarray(arrivals_s, float)[np.minimum(np.arange(1, batches + 1) * B, n) - 1]
    before = np.concatenate([[0.0], np.cumsum(spans)])
    ends = np.maximum.accumulate(ready - before[:-1]) + before[1:]
    return np.repeat(ends, B)[:n]


def step_by_step(arrivals_s, tokens, B, fixed_s, per_request_s):
    finish, now = {}, 0.0
    line = list(range(len(tokens)))
    while line:
        batch, line = line[:B], line[B:]
        now = max(now, *(arrivals_s[k] for k in batch))
        left = {k: tokens[k] for k in batch}
        while max(left.values()) > 0:
            left = {k: rest - 1 for k, rest in left.items()}
            now += fixed_s + per_request_s * B
        finish |= dict.fromkeys(batch, now)
    return tuple(finish[k] for k in range(len(tokens)))


EVERYWHERE = {"longest": None, "busy": None, "last_batch": None, "property": None}
WRONG = {
    lets_each_leave_when_it_is_done: {**EVERYWHERE, "longest": "nobody is returned before the longest answer is done"},
    lasts_as_long_as_the_mean_answer: {**EVERYWHERE, "longest": "not as long as the mean answer"},
    runs_them_one_after_the_other: {**EVERYWHERE, "longest": "share their steps"},
    takes_one_step_whatever_the_length: {**EVERYWHERE, "longest": "a batch takes a step for each token"},
    takes_the_length_of_the_first: {**EVERYWHERE, "longest": "look at all lengths of the batch"},
    takes_the_longest_of_all: {**EVERYWHERE, "longest": "a longest answer of its own"},
    charges_only_those_who_lack_tokens: {**EVERYWHERE, "longest": "rule 3: every step costs B seats"},
    charges_one_seat: {**EVERYWHERE, "longest": "a step costs B seats, not one"},
    starts_though_the_engine_is_busy: {"busy": "the engine is still busy", "property": "the engine is still busy"},
    starts_before_the_batch_is_full: {
        "longest": "before the batch is full",
        "busy": "before the batch is full",
        "last_batch": "before the batch is full",
        "property": "before the batch is full",
    },
    drops_the_last_batch: {"last_batch": "requests are missing", "property": "requests are missing"},
    charges_the_last_batch_for_its_own_seats: {"last_batch": "pays for B seats", "property": "pays for B seats"},
    looks_at_the_last_of_nobody: {"last_batch": "nobody comes, so there is nothing to return"},
    returns_latencies: {**EVERYWHERE, "longest": "these are latencies"},
    returns_one_time_for_each_batch: {**EVERYWHERE, "longest": "not for each batch"},
    forgets_to_return: dict.fromkeys(EVERYWHERE, "end in a `return`"),
    keeps_what_it_found_before: {**EVERYWHERE, "longest": "kept from one call to the next"},
    eats_its_arrivals: dict.fromkeys(EVERYWHERE, "changes `arrivals_"),
}
RIGHT = [in_a_loop, in_numpy, step_by_step]
