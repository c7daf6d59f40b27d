"""Answers to `good_fraction`: wrong ideas about two limits at once, and differently built right ones."""


def _kept(request, ttft, tpot):
    came, first, last, tokens = request
    if first is None:
        return False, False
    return first - came <= ttft, tokens == 1 or (last - first) / (tokens - 1) <= tpot


def product_of_attainments(requests, ttft, tpot):
    kept = [_kept(r, ttft, tpot) for r in requests]
    return sum(a for a, _ in kept) / len(kept) * sum(b for _, b in kept) / len(kept)


def drops_one_token_requests(requests, ttft, tpot):
    several = [r for r in requests if r[3] != 1]
    return sum(all(_kept(r, ttft, tpot)) for r in several) / len(several) if several else 0.0


def one_token_is_late(requests, ttft, tpot):
    return sum(r[3] != 1 and all(_kept(r, ttft, tpot)) for r in requests) / len(requests)


def drops_failed_requests(requests, ttft, tpot):
    done = [r for r in requests if r[1] is not None]
    return sum(all(_kept(r, ttft, tpot)) for r in done) / len(done) if done else 0.0


def one_limit_will_do(requests, ttft, tpot):
    return sum(any(_kept(r, ttft, tpot)) for r in requests) / len(requests)


def ttft_from_time_zero(requests, ttft, tpot):
    return good_one_by_one([[0, *r[1:]] for r in requests], ttft, tpot)


def divides_by_tokens(requests, ttft, tpot):
    good = 0
    for came, first, last, tokens in requests:
        if first is not None:
            good += first - came <= ttft and (last - first) / tokens <= tpot
    return good / len(requests)


def from_the_arrival(requests, ttft, tpot):
    good = 0
    for came, first, last, tokens in requests:
        if first is not None:
            good += first - came <= ttft and (tokens == 1 or (last - came) / (tokens - 1) <= tpot)
    return good / len(requests)


def e2e_over_tokens(requests, ttft, tpot):
    good = 0
    for came, first, last, tokens in requests:
        if first is not None:
            good += first - came <= ttft and (last - came) / tokens <= tpot
    return good / len(requests)


def counts_without_dividing(requests, ttft, tpot):
    return sum(all(_kept(r, ttft, tpot)) for r in requests)


def the_smaller_share(requests, ttft, tpot):
    kept = [_kept(r, ttft, tpot) for r in requests]
    return min(sum(a for a, _ in kept), sum(b for _, b in kept)) / len(kept)


def at_the_limit_of_ttft_is_late(requests, ttft, tpot):
    return good_one_by_one(requests, ttft * (1 - 1e-12), tpot)


def at_the_limit_of_tpot_is_late(requests, ttft, tpot):
    return good_one_by_one(requests, ttft, tpot * (1 - 1e-12))


def the_sum_less_one(requests, ttft, tpot):
    kept = [_kept(r, ttft, tpot) for r in requests]
    return sum(a for a, _ in kept) / len(kept) + sum(b for _, b in kept) / len(kept) - 1


def only_ttft(requests, ttft, tpot):
    return sum(_kept(r, ttft, tpot)[0] for r in requests) / len(requests)


def drops_one_token_and_failed_requests(requests, ttft, tpot):
    several = [r for r in requests if r[3] > 1]
    return sum(all(_kept(r, ttft, tpot)) for r in several) / len(several) if several else 0.0


def two_tokens_have_no_tpot_either(requests, ttft, tpot):
    return good_one_by_one([[*r[:3], 1] if r[3] == 2 else r for r in requests], ttft, tpot)


def the_share_that_is_late(requests, ttft, tpot):
    return sum(r[1] is not None and not all(_kept(r, ttft, tpot)) for r in requests) / len(requests)


def forgets_to_return(requests, ttft, tpot):
    good_one_by_one(requests, ttft, tpot)


def keeps_the_good_ones(requests, ttft, tpot, good=[]):  # noqa: B006
    good += [r for r in requests if all(_kept(r, ttft, tpot))]
    return len(good) / len(requests)


def takes_failed_ones_off_the_list(requests, ttft, tpot):
    n = len(requests)
    requests[:] = [r for r in requests if r[1] is not None]
    requests.sort(key=lambda r: r[1] - r[0], reverse=True)
    return sum(all(_kept(r, ttft, tpot)) for r in requests) / n


def good_one_by_one(requests, ttft, tpot):
    good = 0
    for came, first, last, tokens in requests:
        if first is None or first - came > ttft:
            continue
        if tokens > 1 and last - first > tpot * (tokens - 1):
            continue
        good += 1
    return good / len(requests)


def with_numpy(requests, ttft, tpot):
    import numpy as np

    came, first, last, tokens = np.array(
        [[np.nan if x is None else x for x in request] for request in requests], dtype=float
    ).T
    gaps = np.maximum(tokens - 1, 1)
    return float(np.mean((first - came <= ttft) & ((tokens == 1) | ((last - first) / gaps <= tpot))))


def by_names(requests, ttft, tpot):
    from collections import Counter
    from fractions import Fraction

    def verdict(came, first, last, tokens):
        if first is None:
            return "failed"
        late = first - came > ttft
        slow = tokens > 1 and Fraction(last) - Fraction(first) > Fraction(tpot) * (tokens - 1)
        return "late" if late else "slow" if slow else "good"

    return Fraction(Counter(verdict(*request) for request in requests)["good"], len(requests))


ALL = ("basic", "edges", "property")
WRONG = {
    product_of_attainments: {"basic": "multiplies two shares", "edges": None, "property": "count the requests"},
    the_smaller_share: {"basic": "only the most it can be", "property": "shares alone don't tell"},
    only_ttft: {"basic": "one limit alone", "edges": None, "property": None},
    the_sum_less_one: {"basic": "only the least it can be", "edges": None, "property": "shares alone don't tell"},
    drops_one_token_requests: {"basic": "counts: it has no TPOT", "edges": None, "property": None},
    drops_one_token_and_failed_requests: {"basic": "and a failed one", "edges": None, "property": None},
    one_token_is_late: {"basic": "it passes that limit", "edges": None, "property": None},
    two_tokens_have_no_tpot_either: {"basic": "have one gap", "edges": None},
    drops_failed_requests: {"basic": "failed requests count", "edges": "never good, and counts", "property": None},
    one_limit_will_do: {"basic": "both limits", "edges": None, "property": None},
    ttft_from_time_zero: {"basic": "from the request's arrival", "edges": None, "property": None},
    from_the_arrival: {"basic": "not at the arrival", "edges": None},
    e2e_over_tokens: {"basic": "E2E over the tokens", "edges": None, "property": None},
    divides_by_tokens: {"basic": "N − 1 gaps", "edges": None},
    counts_without_dividing: {"basic": "divide by all", "edges": None, "property": None},
    the_share_that_is_late: {"basic": "broke a limit", "edges": None, "property": None},
    at_the_limit_of_ttft_is_late: {"edges": "at the limit is within it"},
    at_the_limit_of_tpot_is_late: {"edges": "at the limit is within it"},
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
    keeps_the_good_ones: dict.fromkeys(ALL, "kept from one call to the next"),
    takes_failed_ones_off_the_list: {"basic": "work on a copy", "edges": "work on a copy", "property": None},
}
RIGHT = [good_one_by_one, with_numpy, by_names]
