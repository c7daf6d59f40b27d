"""Answers to `serve_static`: six and more wrong ideas, and differently built right ones."""

import heapq

import numpy as np


def _serve(arrivals_s, B, pots, seconds, start=max, ready=lambda batch: batch[-1]):
    """The right loop with one part replaced: a batch's seconds, when it starts, or when it is ready."""
    free = [0.0] * (pots or len(arrivals_s))
    finished = []
    for first in range(0, len(arrivals_s), B):
        batch = arrivals_s[first : first + B]
        end = start(ready(batch), heapq.heappop(free)) + seconds(len(batch))
        heapq.heappush(free, end)
        finished += [end] * len(batch)
    return finished


def starts_at_the_last_arrival_though_the_pot_is_busy(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, None, lambda n: fixed_s + per_request_s * B)


def starts_before_the_batch_is_full(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B, ready=lambda batch: batch[0])


def drops_the_last_batch(arrivals_s, B, fixed_s, per_request_s, pots):
    full = len(arrivals_s) // B * B
    return _serve(arrivals_s[:full], B, pots, lambda n: fixed_s + per_request_s * B)


def charges_the_last_batch_for_its_own_orders(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * n)


def returns_latencies(arrivals_s, B, fixed_s, per_request_s, pots):
    ends = _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)
    return [end - arrival for end, arrival in zip(ends, arrivals_s, strict=True)]


def lets_each_order_leave_when_it_is_done(arrivals_s, B, fixed_s, per_request_s, pots):
    ends = _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)
    return [end - per_request_s * (B - 1 - i % B) for i, end in enumerate(ends)]


def forgets_the_orders_time(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s)


def knows_one_pot_only(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, 1, lambda n: fixed_s + per_request_s * B)


def thinks_more_pots_cook_faster(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, 1 if pots else None, lambda n: (fixed_s + per_request_s * B) / (pots or 1))


def one_time_for_each_batch(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)[::B]


def thinks_none_is_one_pot(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots or 1, lambda n: fixed_s + per_request_s * B)


def trips_over_an_empty_list(arrivals_s, B, fixed_s, per_request_s, pots):
    _first = arrivals_s[0]
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)


def takes_none_for_ten(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots or 10, lambda n: fixed_s + per_request_s * B)


def adds_one_orders_time(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s)


def cooks_each_order_by_itself(arrivals_s, B, fixed_s, per_request_s, pots):
    return [arrival + fixed_s + per_request_s * B for arrival in arrivals_s]


def keeps_a_list_between_calls(arrivals_s, B, fixed_s, per_request_s, pots, finished=[]):  # noqa: B006
    finished += _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)
    return finished


def eats_the_orders(arrivals_s, B, fixed_s, per_request_s, pots):
    finished = _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)
    while arrivals_s:
        arrivals_s.pop(0)
    return finished


def forgets_to_return(arrivals_s, B, fixed_s, per_request_s, pots):
    _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)


def with_a_heap(arrivals_s, B, fixed_s, per_request_s, pots):
    return _serve(arrivals_s, B, pots, lambda n: fixed_s + per_request_s * B)


def looks_back_by_pots(arrivals_s, B, fixed_s, per_request_s, pots):
    seconds = fixed_s + per_request_s * B
    batches = [arrivals_s[k : k + B] for k in range(0, len(arrivals_s), B)]
    ends = []
    for number, batch in enumerate(batches):
        # equal batches leave in order, so the pot that is free first is the one used `pots` batches ago
        before = ends[number - pots] if pots is not None and number >= pots else 0.0
        ends.append(max(batch[-1], before) + seconds)
    return tuple(end for end, batch in zip(ends, batches, strict=True) for _ in batch)


def in_numpy(arrivals_s, B, fixed_s, per_request_s, pots):
    arrivals = np.asarray(arrivals_s, dtype=float)
    if not len(arrivals):
        return arrivals
    seconds = fixed_s + per_request_s * B
    ready = arrivals[np.minimum(np.arange(B - 1, len(arrivals) + B - 1, B), len(arrivals) - 1)]
    ends = ready + seconds
    if pots is not None:
        for pot in range(min(pots, len(ready))):
            steps = seconds * np.arange(len(ready[pot::pots]))
            ends[pot::pots] = np.maximum.accumulate(ready[pot::pots] - steps) + steps + seconds
    return np.repeat(ends, B)[: len(arrivals)]


ALL = ("gathering", "busy", "last_batch", "pots", "endless", "property")
WRONG = {
    starts_at_the_last_arrival_though_the_pot_is_busy: {
        "busy": "the pot is still busy",
        "pots": "endless pots",
        "property": "a batch starts though all pots are busy",
    },
    starts_before_the_batch_is_full: {
        "gathering": "the pot starts before the batch is full",
        "busy": None,
        "last_batch": None,
        "pots": None,
        "endless": None,
        "property": "the pot starts before the batch is full",
    },
    drops_the_last_batch: {
        "last_batch": "orders are missing",
        "endless": None,
        "property": "one finish time for each order",
    },
    charges_the_last_batch_for_its_own_orders: {
        "last_batch": "as long as a full one",
        "endless": None,
        "property": "perhaps the last, takes",
    },
    returns_latencies: {
        "gathering": "these are latencies",
        "busy": None,
        "last_batch": None,
        "pots": None,
        "endless": None,
        "property": "none earlier than the one before",
    },
    lets_each_order_leave_when_it_is_done: {
        "gathering": "all orders of a batch finish together",
        "busy": None,
        "last_batch": None,
        "pots": None,
        "endless": None,
        "property": "finish together",
    },
    forgets_the_orders_time: {
        "gathering": "each order of the batch adds",
        "busy": None,
        "last_batch": None,
        "pots": None,
        "endless": None,
        "property": "takes too little time",
    },
    knows_one_pot_only: {
        "pots": "the answer for a single pot",
        "endless": "the answer for a single pot",
        "property": "a batch waits although it is full and a pot is free",
    },
    thinks_more_pots_cook_faster: {"pots": "more pots don't make a batch faster", "property": None},
    one_time_for_each_batch: {
        "gathering": "one time for each order",
        "busy": "one time for each order",
        "last_batch": "one time for each order",
        "pots": "one time for each order",
        "endless": "one time for each order",
        "property": "one number for each order",
    },
    thinks_none_is_one_pot: {"endless": "the answer for a single pot", "property": "although it is full"},
    trips_over_an_empty_list: {"last_batch": "an empty list gives an empty list"},
    takes_none_for_ten: {"endless": "however many cook"},
    adds_one_orders_time: {
        "gathering": "not only one",
        "busy": "not only one",
        "last_batch": "not only one",
        "pots": None,
        "endless": None,
        "property": None,
    },
    cooks_each_order_by_itself: {
        "gathering": "orders are cooked in batches",
        "busy": "orders are cooked in batches",
        "last_batch": None,
        "pots": "orders are cooked in batches",
        "endless": "orders are cooked in batches",
        "property": None,
    },
    keeps_a_list_between_calls: dict.fromkeys(ALL, "kept from one call to the next"),
    eats_the_orders: dict.fromkeys(ALL, "your function changes `arrivals_"),
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
}
RIGHT = [with_a_heap, looks_back_by_pots, in_numpy]
