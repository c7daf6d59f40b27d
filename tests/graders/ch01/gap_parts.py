"""Answers to `gap_parts`: the paper's wait, what is a gap and what is a whole, and differently built right ones."""

from fractions import Fraction
from itertools import groupby

import numpy as np


def _parts(rate_rps, arrivals_s, ready_s, B, seconds, *, wait=None, rows=None):
    """The right answer with a batch's seconds, the paper's wait, or the rows over which means go replaced."""
    wait = (B - 1) / (2 * rate_rps) if wait is None else wait
    batches = [(arrivals_s[k : k + B], ready_s[k]) for k in range(0, len(arrivals_s), B)]
    each = [[(batch[-1] - came, end - seconds(len(batch)) - batch[-1]) for came in batch] for batch, end in batches]
    flat = [row for batch in each for row in batch] if rows is None else rows(each)
    company, pot = (sum(column) / len(flat) for column in zip(*flat, strict=True)) if flat else (0.0, 0.0)
    return [wait + seconds(B), company - wait, pot]


def _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * B)


def takes_the_first_orders_wait(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    wait = (B - 1) / rate_rps
    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * B, wait=wait)


def waits_for_all_of_the_batch(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    wait = B / (2 * rate_rps)
    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * B, wait=wait)


def cooks_for_one_order(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s)


def cooks_a_short_batch_faster(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * n)


def means_over_batches(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    def rows(each):
        return [[sum(column) / len(batch) for column in zip(*batch, strict=True)] for batch in each]

    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * B, rows=rows)


def leaves_out_the_short_batch(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    def rows(each):
        return [row for batch in each if len(batch) == B for row in batch]

    return _parts(rate_rps, arrivals_s, ready_s, B, lambda n: fixed_s + per_request_s * B, rows=rows)


def the_whole_wait_for_company(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, company + (B - 1) / (2 * rate_rps), pot]


def the_sign_reversed(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, -company, pot]


def waits_for_the_pot_from_the_door_on(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, company, pot + company + (B - 1) / (2 * rate_rps)]


def waits_until_it_is_ready(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, company, pot + fixed_s + per_request_s * B]


def blames_the_pot_for_all(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, 0.0, company + pot]


def the_logs_latency_for_the_papers(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper + company + pot, company, pot]


def forgets_to_divide(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    wait, n = (B - 1) / (2 * rate_rps), len(arrivals_s)
    return [paper, (company + wait) * n - wait, pot * n]


def in_another_order(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, pot, company]


def the_mean_latency_alone(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    return sum(_right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s))


def no_company_is_shorter(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, max(0.0, company), pot]


def forgets_to_return(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)


def eats_the_log(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    parts = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    while ready_s:
        ready_s.pop()
    return parts


def keeps_a_list_between_calls(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s, seen=[]):  # noqa: B006
    seen += [ready - came for came, ready in zip(arrivals_s, ready_s, strict=True)]
    paper, company, pot = _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)
    return [paper, company, pot + len(seen)]


def by_orders(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    return _right(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s)


def by_difference(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    n, paper = len(arrivals_s), fixed_s + per_request_s * B + (B - 1) / (2 * rate_rps)
    latency = (sum(ready_s) - sum(arrivals_s)) / n
    last = [arrivals_s[min(i - i % B + B, n) - 1] for i in range(n)]
    waited = (sum(last) - sum(arrivals_s)) / n
    company = waited - (B - 1) / (2 * rate_rps)
    return paper, company, latency - paper - company


def in_numpy(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    came, ready = np.asarray(arrivals_s, float), np.asarray(ready_s, float)
    batch = np.arange(len(came)) // B
    last = np.maximum.reduceat(came, np.arange(0, len(came), B))[batch]
    cooking = fixed_s + per_request_s * B
    wait = (B - 1) / rate_rps / 2
    return np.array([wait + cooking, (last - came).mean() - wait, (ready - cooking - last).mean()])


def in_fractions(rate_rps, arrivals_s, ready_s, B, fixed_s, per_request_s):
    came, ready = [Fraction(x) for x in arrivals_s], [Fraction(x) for x in ready_s]
    cooking, wait = Fraction(fixed_s) + Fraction(per_request_s) * B, Fraction(B - 1) / Fraction(rate_rps) / 2
    company = pot = Fraction(0)
    for _, batch in groupby(range(len(came)), key=lambda i: i // B):
        members = list(batch)
        for i in members:
            company += came[members[-1]] - came[i]
            pot += ready[i] - cooking - came[members[-1]]
    return [float(wait + cooking), float(company / len(came) - wait), float(pot / len(came))]


ALL = ("basic", "edges", "simulated", "property")
ALL = ("basic", "edges", "simulated", "property")
what_broke = "compare the wait for company with the paper's"
together = "the three parts together are the mean latency"
WRONG = {
    takes_the_first_orders_wait: {
        "basic": "the wait of a batch's first order",
        "edges": "the wait of a batch's first order",
        "simulated": what_broke,
        "property": "half of the wait for the B - 1 others",
    },
    waits_for_all_of_the_batch: {
        "basic": "B - 1 of them, and on average",
        "edges": "B - 1 of them, and on average",
        "property": "half of the wait for the B - 1 others",
    },
    cooks_for_one_order: {
        "basic": "each of them adds its own time",
        "edges": "each of them adds its own time",
        "simulated": what_broke,
        "property": "the time of a full batch",
    },
    cooks_a_short_batch_faster: {
        "basic": "a short last batch cooks as long",
        "edges": "a short last batch cooks as long",
        "simulated": together,
        "property": None,
    },
    means_over_batches: {"basic": "means over the batches", "simulated": together, "property": "over all orders"},
    leaves_out_the_short_batch: {
        "basic": "the orders of the last batch count",
        "edges": "the orders of the last batch count",
        "simulated": together,
        "property": None,
    },
    the_whole_wait_for_company: {
        "basic": "take off what the paper has already",
        "edges": "take off what the paper has already",
        "simulated": together,
        "property": None,
    },
    the_sign_reversed: {"basic": "company is positive", "edges": "positive", "simulated": together, "property": None},
    no_company_is_shorter: {"basic": "company is negative", "edges": "negative", "simulated": None, "property": None},
    waits_for_the_pot_from_the_door_on: {
        "basic": "take off its wait for company",
        "edges": "take off its wait for company",
        "simulated": together,
        "property": None,
    },
    waits_until_it_is_ready: {
        "basic": "take off the time in the pot",
        "edges": "take off the time in the pot",
        "simulated": together,
        "property": None,
    },
    blames_the_pot_for_all: {
        "basic": "not all of the gap is the pot's",
        "edges": "not all of the gap is the pot's",
        "simulated": what_broke,
        "property": "from the moment its batch is complete",
    },
    the_logs_latency_for_the_papers: {
        "basic": "the first number is the paper's",
        "edges": "the first number is the paper's",
        "simulated": together,
        "property": "only the wait for the pot",
    },
    forgets_to_divide: {"basic": "these are sums", "edges": "these are sums", "simulated": together, "property": None},
    in_another_order: {"basic": "in another order", "edges": "in another order", "simulated": None, "property": None},
    the_mean_latency_alone: dict.fromkeys(ALL, "a list of 3"),
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
    eats_the_log: dict.fromkeys(ALL, "your function changes `ready_"),
    keeps_a_list_between_calls: dict.fromkeys(ALL, "kept from one call to the next"),
}
RIGHT = [by_orders, by_difference, in_numpy, in_fractions]
