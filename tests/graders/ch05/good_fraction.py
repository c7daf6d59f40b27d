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


def counts_without_dividing(requests, ttft, tpot):
    return sum(all(_kept(r, ttft, tpot)) for r in requests)


def the_smaller_share(requests, ttft, tpot):
    kept = [_kept(r, ttft, tpot) for r in requests]
    return min(sum(a for a, _ in kept), sum(b for _, b in kept)) / len(kept)


def at_the_limit_is_late(requests, ttft, tpot):
    return good_one_by_one(requests, ttft * (1 - 1e-12), tpot * (1 - 1e-12))


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


WRONG = {
    product_of_attainments: {"basic": "multiplies two shares", "edges": None, "property": "count the requests"},
    drops_one_token_requests: {"basic": "counts: it has no TPOT", "edges": None, "property": None},
    one_token_is_late: {"basic": "it passes that limit", "edges": None, "property": None},
    drops_failed_requests: {"basic": "failed requests count", "edges": None, "property": None},
    one_limit_will_do: {"basic": "both limits", "edges": None, "property": None},
    ttft_from_time_zero: {"basic": "from the request's arrival", "edges": None, "property": None},
    divides_by_tokens: {"basic": "N − 1 gaps"},
    counts_without_dividing: {"basic": "divide by all", "edges": None, "property": None},
    the_smaller_share: {"basic": "only the most it can be", "property": None},
    at_the_limit_is_late: {"edges": "at the limit is within it"},
}
RIGHT = [good_one_by_one, with_numpy]
