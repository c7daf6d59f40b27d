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


def counts_those_who_came(requests, warmup_s, until_s):
    latencies = by_filter(requests, warmup_s, until_s)[0]
    return latencies, len(latencies) / (until_s - warmup_s)


def counts_those_who_came_and_ended(requests, warmup_s, until_s):
    ended = sum(b is not None and warmup_s <= a < until_s and warmup_s <= b < until_s for a, b in requests)
    return by_filter(requests, warmup_s, until_s)[0], ended / (until_s - warmup_s)


def forgets_the_seconds(requests, warmup_s, until_s):
    latencies, rate = by_filter(requests, warmup_s, until_s)
    return latencies, rate * (until_s - warmup_s)


def includes_an_end_at_the_edge(requests, warmup_s, until_s):
    ended = sum(b is not None and warmup_s <= b <= until_s for _, b in requests)
    return by_filter(requests, warmup_s, until_s)[0], ended / (until_s - warmup_s)


def forgets_to_return(requests, warmup_s, until_s):
    by_filter(requests, warmup_s, until_s)


def by_one_walk(requests, warmup_s, until_s):
    latencies, ended_inside = [], 0
    for came, ended in requests:
        if warmup_s <= came < until_s:
            latencies.append(math.inf if ended is None else ended - came)
        if ended is not None and warmup_s <= ended < until_s:
            ended_inside += 1
    return tuple(latencies), ended_inside / (until_s - warmup_s)


WRONG = {
    counts_those_who_came: {"basic": "not those who came", "edges": "throughput counts those who ended in the"},
    counts_those_who_came_and_ended: {
        "basic": "whenever they came",
        "edges": "throughput counts those who ended in the",
    },
    forgets_the_seconds: {"basic": "per second of the window", "edges": "throughput is per second of the window:"},
    includes_an_end_at_the_edge: {"edges": "until_s (excluded)"},
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "nothing came back: does every way through",
        "property": None,
    },
    cuts_by_completion: {
        "basic": "this cuts by completion",
        "edges": "this cuts by completion: it drops those",
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
        "edges": "a missing answer isn't an answer at the",
        "property": "cut by arrival alone: then",
    },
    stops_the_clock_with_the_window: {
        "basic": "don't stop the clock at",
        "edges": "a missing answer isn't an answer at the",
        "property": "who is counted mustn't depend",
    },
    keeps_the_warm_up: {
        "basic": "who came in the warm-up",
        "edges": "this cuts by completion: it drops those",
        "property": "who is counted mustn't depend",
    },
    keeps_what_comes_after: {
        "basic": "who came after the window",
        "edges": "who came after the window is cut as well",
        "property": "who is counted mustn't depend",
    },
    takes_zero_for_the_unanswered: {
        "basic": "a failure isn't fast: infinite",
        "edges": "a failure isn't fast: infinite",
    },
    takes_time_zero_for_no_answer: {"edges": "an answer at zero seconds"},
    includes_the_far_edge: {
        "edges": "who came after the window is cut as well",
        "property": "who is counted mustn't depend",
    },
    sorts_them: {"basic": "keep the order of the list", "edges": "keep the order of the list"},
}
RIGHT = [by_one_walk, by_filter, by_an_array]
