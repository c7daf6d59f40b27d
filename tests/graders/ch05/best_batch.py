"""Answers to `best_batch`: wrong ideas about the search in a table, and differently built right ones."""


def _kept(p99_s, limit):
    return [B for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]


def as_it_was(p99_s, limit):
    best = 1
    for B, p99 in enumerate(p99_s, 1):
        if p99 is None or p99 > limit:
            break
        best = B
    return best


def stops_at_the_first_failure(p99_s, limit):
    best = None
    for B, p99 in enumerate(p99_s, 1):
        if p99 is None or p99 > limit:
            break
        best = B
    return best


def stops_at_the_first_failure_that_runs(p99_s, limit):
    best = None
    for B, p99 in enumerate(p99_s, 1):
        if p99 is None:
            continue
        if p99 > limit:
            break
        best = B
    return best


def stops_at_the_second_bank(p99_s, limit):
    best = None
    for B, p99 in enumerate(p99_s, 1):
        if p99 is not None and p99 <= limit:
            best = B
        elif best:
            break
    return best


def answers_one_when_none_fits(p99_s, limit):
    return max(_kept(p99_s, limit), default=1)


def answers_zero_when_none_fits(p99_s, limit):
    return max(_kept(p99_s, limit), default=0)


def the_lowest_p99(p99_s, limit):
    known = [(p99, B) for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]
    return min(known)[1] if known else None


def the_lowest_of_all(p99_s, limit):
    known = [(p99, B) for B, p99 in enumerate(p99_s, 1) if p99 is not None]
    return min(known)[1] if known else None


def the_smallest_that_fits(p99_s, limit):
    return min(_kept(p99_s, limit), default=None)


def the_nearest_to_the_limit(p99_s, limit):
    known = [(p99, B) for B, p99 in enumerate(p99_s, 1) if p99 is not None and p99 <= limit]
    return max(known)[1] if known else None


def counts_from_zero(p99_s, limit):
    return max((B - 1 for B in _kept(p99_s, limit)), default=None)


def counts_those_that_fit(p99_s, limit):
    return len(_kept(p99_s, limit)) or None


def the_whole_table(p99_s, limit):
    return len(p99_s) if _kept(p99_s, limit) else None


def at_the_limit_is_late(p99_s, limit):
    return max((B for B in _kept(p99_s, limit) if p99_s[B - 1] < limit), default=None)


def none_counts_as_zero(p99_s, limit):
    return max((B for B, p99 in enumerate(p99_s, 1) if (p99 or 0) <= limit), default=None)


def forgets_to_return(p99_s, limit):
    max(_kept(p99_s, limit), default=None)


def takes_late_ones_off_the_list(p99_s, limit):
    while p99_s and (p99_s[-1] is None or p99_s[-1] > limit):
        p99_s.pop()
    return len(p99_s) or None


def keeps_the_best(p99_s, limit, best=[0]):  # noqa: B006
    best[0] += max(_kept(p99_s, limit), default=1)
    return best[0]


def from_the_far_end(p99_s, limit):
    for B in range(len(p99_s), 0, -1):
        if p99_s[B - 1] is not None and p99_s[B - 1] <= limit:
            return B
    return None


def by_popping(p99_s, limit):
    late = [p99 is None or p99 > limit for p99 in p99_s]
    while late and late[-1]:
        late.pop()
    return len(late) or None


def with_numpy(p99_s, limit):
    import numpy as np

    within = np.flatnonzero(np.array([np.inf if p99 is None else p99 for p99 in p99_s]) <= limit)
    return within[-1] + 1 if within.size else None


STOPS = "stops at the first batch that fails"
WRONG = {
    as_it_was: {"basic": STOPS, "none": "say None", "property": None},
    stops_at_the_first_failure: {"basic": "the largest", "property": None},
    stops_at_the_first_failure_that_runs: {"basic": "the largest", "property": None},
    stops_at_the_second_bank: {"basic": "keeps the limit again", "property": None},
    answers_one_when_none_fits: {"none": "say None", "property": None},
    answers_zero_when_none_fits: {"none": "no batch is None", "property": None},
    the_lowest_p99: {"basic": "not the one with the lowest P99", "property": None},
    the_lowest_of_all: {
        "basic": "not the one with the lowest P99",
        "none": "may still be over the limit",
        "property": None,
    },
    the_smallest_that_fits: {"basic": "not the smallest", "property": None},
    the_nearest_to_the_limit: {"basic": "nearest to the limit", "property": None},
    counts_from_zero: {"basic": "lists from 0", "property": None},
    counts_those_that_fit: {"basic": "counts the batches", "property": None},
    the_whole_table: {"basic": "the last batch of the table", "property": None},
    at_the_limit_is_late: {"basic": "a P99 at the limit keeps it"},
    none_counts_as_zero: {"none": "say None where no batch keeps the limit", "property": None},
    forgets_to_return: {"basic": "end in a `return`", "property": None},
    takes_late_ones_off_the_list: dict.fromkeys(("basic", "none", "property"), "work on a copy"),
    keeps_the_best: {"basic": "kept from one call to the next", "none": None, "property": None},
}
RIGHT = [from_the_far_end, by_popping, with_numpy]
