"""Answers to `cut_by_arrival`: ways to drop the slow, and differently built right ones."""

import math


def _throughput(requests, warmup_s, until_s):
    return sum(ended is not None and warmup_s <= ended < until_s for _, ended in requests) / (until_s - warmup_s)


def cuts_by_completion(requests, warmup_s, until_s):
    kept = [ended - came for came, ended in requests if ended is not None and warmup_s <= ended < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def wants_both_inside(requests, warmup_s, until_s):
    kept = [ended - came for came, ended in requests if ended is not None and warmup_s <= came and ended < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def drops_the_unanswered(requests, warmup_s, until_s):
    kept = [ended - came for came, ended in requests if ended is not None and warmup_s <= came < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def ends_the_unanswered_with_the_window(requests, warmup_s, until_s):
    kept = [(until_s if ended is None else ended) - came for came, ended in requests if warmup_s <= came < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def stops_the_clock_with_the_window(requests, warmup_s, until_s):
    kept = [
        min(math.inf if ended is None else ended, until_s) - came
        for came, ended in requests
        if warmup_s <= came < until_s
    ]
    return kept, _throughput(requests, warmup_s, until_s)


def keeps_the_warm_up(requests, warmup_s, until_s):
    kept = [
        math.inf if ended is None else ended - came
        for came, ended in requests
        if came < until_s and (ended is None or ended >= warmup_s)
    ]
    return kept, _throughput(requests, warmup_s, until_s)


def keeps_what_comes_after(requests, warmup_s, until_s):
    kept = [math.inf if ended is None else ended - came for came, ended in requests if came >= warmup_s]
    return kept, _throughput(requests, warmup_s, until_s)


def takes_zero_for_the_unanswered(requests, warmup_s, until_s):
    kept = [0 if ended is None else ended - came for came, ended in requests if warmup_s <= came < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def takes_time_zero_for_no_answer(requests, warmup_s, until_s):
    kept = [ended - came if ended else math.inf for came, ended in requests if warmup_s <= came < until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def includes_the_far_edge(requests, warmup_s, until_s):
    kept = [math.inf if ended is None else ended - came for came, ended in requests if warmup_s <= came <= until_s]
    return kept, _throughput(requests, warmup_s, until_s)


def sorts_them(requests, warmup_s, until_s):
    return sorted(by_filter(requests, warmup_s, until_s)[0]), _throughput(requests, warmup_s, until_s)


def by_filter(requests, warmup_s, until_s):
    inside = filter(lambda each: warmup_s <= each[0] < until_s, requests)
    latencies = [float("inf") if ended is None else ended - came for came, ended in inside]
    return [latencies, _throughput(requests, warmup_s, until_s)]


def by_an_array(requests, warmup_s, until_s):
    import numpy as np

    came, ended = np.array([(a, np.nan if b is None else b) for a, b in requests], float).T
    latency = np.where(np.isnan(ended), np.inf, ended - came)
    return latency[(came >= warmup_s) & (came < until_s)], _throughput(requests, warmup_s, until_s)


WRONG = {
    cuts_by_completion: {
        "basic": "this cuts by completion",
        "edges": "from warmup_s (included)",
        "property": "who is counted mustn't depend",
    },
    wants_both_inside: {
        "basic": "this drops whoever hadn't",
        "edges": "who never got an answer",
        "property": "who is counted mustn't depend",
    },
    drops_the_unanswered: {
        "basic": "who never got an answer",
        "edges": "who never got an answer",
        "property": "all who came in the window",
    },
    ends_the_unanswered_with_the_window: {
        "basic": "a missing answer isn't an",
        "edges": "who never got an answer",
        "property": "cut by arrival alone: then",
    },
    stops_the_clock_with_the_window: {
        "basic": "don't stop the clock at",
        "edges": "who never got an answer",
        "property": "who is counted mustn't depend",
    },
    keeps_the_warm_up: {
        "basic": "who came in the warm-up",
        "edges": "from warmup_s (included)",
        "property": "who is counted mustn't depend",
    },
    keeps_what_comes_after: {
        "basic": "who came after the window",
        "edges": "from warmup_s (included)",
        "property": "who is counted mustn't depend",
    },
    takes_zero_for_the_unanswered: {"basic": "a failure isn't fast: infinite", "edges": "who never got an answer"},
    takes_time_zero_for_no_answer: {"edges": "an answer at zero seconds"},
    includes_the_far_edge: {"edges": "from warmup_s (included)", "property": "who is counted mustn't depend"},
    sorts_them: {"basic": "keep the order of the list"},
}
RIGHT = [by_filter, by_an_array]
