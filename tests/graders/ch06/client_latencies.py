"""Answers to `client_latencies`: ways to hide a wait in the client, and differently built right ones."""

import heapq


def _play(planned_s, answer_s, connections):
    free, rows = [0.0] * connections, []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        k = free.index(min(free))
        sent = max(planned, free[k])
        free[k] = sent + answer
        rows.append((planned, sent, sent + answer))
    return rows


def counts_from_the_real_send(planned_s, answer_s, connections):
    return list(answer_s), list(answer_s)


def counts_both_from_the_schedule(planned_s, answer_s, connections):
    latencies = [ended - planned for planned, _, ended in _play(planned_s, answer_s, connections)]
    return latencies, latencies


def gives_the_delay(planned_s, answer_s, connections):
    rows = _play(planned_s, answer_s, connections)
    return [sent - planned for planned, sent, _ in rows], [ended - sent for _, sent, ended in rows]


def leaves_the_late_ones_out(planned_s, answer_s, connections):
    rows = [row for row in _play(planned_s, answer_s, connections) if row[1] == row[0]]
    return [ended - planned for planned, _, ended in rows], [ended - sent for _, sent, ended in rows]


def has_one_connection(planned_s, answer_s, connections):
    return _lists(_play(planned_s, answer_s, 1))


def _lists(rows):
    return [ended - planned for planned, _, ended in rows], [ended - sent for _, sent, ended in rows]


def takes_the_connection_that_is_free_last(planned_s, answer_s, connections):
    free, rows = [0.0] * connections, []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        k = free.index(max(free))
        sent = max(planned, free[k])
        free[k] = sent + answer
        rows.append((planned, sent, sent + answer))
    return _lists(rows)


def sends_early(planned_s, answer_s, connections):
    free, rows = [0.0] * connections, []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        k = free.index(min(free))
        rows.append((planned, free[k], free[k] + answer))
        free[k] += answer
    return _lists(rows)


def forgets_when_the_connection_is_free(planned_s, answer_s, connections):
    free, rows = [0.0] * connections, []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        k = free.index(min(free))
        sent = max(planned, free[k])
        free[k] = sent
        rows.append((planned, sent, sent + answer))
    return _lists(rows)


def shifts_the_plan(planned_s, answer_s, connections):
    """After a late request the next one is sent its planned gap later."""
    free, late, rows = [0.0] * connections, 0.0, []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        k = free.index(min(free))
        sent = max(planned + late, free[k])
        late = sent - planned
        free[k] = sent + answer
        rows.append((planned, sent, sent + answer))
    return _lists(rows)


def by_a_heap(planned_s, answer_s, connections):
    free = [0.0] * connections
    scheduled, sent = [], []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        delay = max(0.0, heapq.heappop(free) - planned)
        heapq.heappush(free, planned + delay + answer)
        scheduled.append(delay + answer)
        sent.append(answer)
    return scheduled, sent


def swaps_the_lists(planned_s, answer_s, connections):
    return _lists(_play(planned_s, answer_s, connections))[::-1]


def pairs_them(planned_s, answer_s, connections):
    return list(zip(*_lists(_play(planned_s, answer_s, connections)), strict=True))


def as_an_array(planned_s, answer_s, connections):
    import numpy as np

    return np.array(_lists(_play(planned_s, answer_s, connections)))


def by_counting_who_is_out(planned_s, answer_s, connections):
    ends, both = [], []
    for planned, answer in zip(planned_s, answer_s, strict=True):
        out = sorted(end for end in ends if end > planned)
        sent = planned if len(out) < connections else out[-connections]
        ends.append(sent + answer)
        both.append((sent + answer - planned, answer))
    return [late for late, _ in both], [answer for _, answer in both]


def rounds_to_two_digits(planned_s, answer_s, connections):
    return [[round(x, 2) for x in each] for each in _lists(_play(planned_s, answer_s, connections))]


def forgets_to_return(planned_s, answer_s, connections):
    _lists(_play(planned_s, answer_s, connections))


from_schedule, from_send = [], []


def keeps_its_lists(planned_s, answer_s, connections):
    for planned, sent, ended in _play(planned_s, answer_s, connections):
        from_schedule.append(ended - planned)
        from_send.append(ended - sent)
    return from_schedule, from_send


def empties_the_plan(planned_s, answer_s, connections):
    rows = _play(list(planned_s), answer_s, connections)
    while planned_s:
        planned_s.pop()
    return _lists(rows)


WRONG = {
    rounds_to_two_digits: {"basic": "don't round"},
    forgets_to_return: {
        "basic": "nothing came back: does every way through",
        "several": "nothing came back: does every way through",
        "property": None,
    },
    keeps_its_lists: {"basic": "something is kept", "several": None, "property": None},
    empties_the_plan: {"basic": "changes `planned_", "several": None, "property": None},
    counts_from_the_real_send: {
        "basic": "nobody waits here: count",
        "several": "nobody waits here: count from the planned",
        "property": "the schedule's latency holds",
    },
    counts_both_from_the_schedule: {
        "basic": "the second list counts from",
        "several": "the second list counts from the real",
        "property": "the schedule's latency holds",
    },
    gives_the_delay: {
        "basic": "this is how late the request",
        "several": "this is how late the request was sent:",
        "property": "the schedule's latency holds",
    },
    leaves_the_late_ones_out: {
        "basic": "every request counts: leaving",
        "several": "every request counts: leaving the late",
        "property": "the schedule's latency holds",
    },
    has_one_connection: {"several": "all went over one connection: note for", "property": "a late request goes out"},
    takes_the_connection_that_is_free_last: {
        "several": "all went over one connection: note for",
        "property": "a late request goes out",
    },
    sends_early: {
        "basic": "a request isn't sent before",
        "several": "a request isn't sent before its planned",
        "property": "a connection is busy until",
    },
    forgets_when_the_connection_is_free: {
        "basic": "nobody waits here: count",
        "several": "nobody waits here: count from the planned",
        "property": "the schedule's latency holds",
    },
    swaps_the_lists: {
        "basic": "the latencies from the schedule come first",
        "several": "the latencies from the schedule come first",
        "property": "the schedule's latency holds",
    },
    pairs_them: {
        "basic": "return two lists, not a pair",
        "several": "return two lists, not a pair for each",
        "property": None,
    },
    shifts_the_plan: {"basic": "send at the planned time", "property": "a late request goes out"},
}
RIGHT = [by_a_heap, by_counting_who_is_out, as_an_array]
