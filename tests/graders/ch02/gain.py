"""Answers to `gain`: six and more wrong ideas, and differently built right ones."""

from fractions import Fraction


def _step(B, context, e):
    read = e["weights"] * e["bytes_each"] + B * context * e["kv_bytes_per_token"]
    return max(read / e["bytes_per_s"], 2 * e["weights"] * B / e["flops_per_s"])


def _reading(B, context, e):
    return (e["weights"] * e["bytes_each"] + B * context * e["kv_bytes_per_token"]) / e["bytes_per_s"]


def thinks_it_is_the_batch(B, context, e):
    return B


def how_much_longer_the_step_takes(B, context, e):
    return _step(B, context, e) / _step(1, context, e)


def one_token_of_each_step(B, context, e):
    return _step(1, context, e) / _step(B, context, e)


def one_request_has_no_cache(B, context, e):
    return B * _step(1, 0, e) / _step(B, context, e)


def upside_down(B, context, e):
    return B * _step(B, context, e) / _step(1, context, e)


def tokens_a_second(B, context, e):
    return B / _step(B, context, e)


def ignores_computing(B, context, e):
    return B * _reading(1, context, e) / _reading(B, context, e)


def ignores_the_context(B, context, e):
    return B * _step(1, 0, e) / _step(B, 0, e)


def whole_numbers(B, context, e):
    return int(B * _step(1, context, e) / _step(B, context, e))


def a_sum_of_both(B, context, e):
    def step(n):
        return _reading(n, context, e) + 2 * e["weights"] * n / e["flops_per_s"]

    return B * step(1) / step(B)


def by_two_steps(B, context, e):
    return B * _step(1, context, e) / _step(B, context, e)


def as_a_ratio_of_rates(B, context, e):
    one, many = (n / _step(n, context, e) for n in (1, B))
    return many / one


def in_fractions(B, context, e):
    f = {name: Fraction(value) for name, value in e.items()}
    return float(B * _step(1, context, f) / _step(B, context, f))


WRONG = {
    thinks_it_is_the_batch: {
        "basic": "only without context",
        "computing": "not even without context",
        "property": "the longer the context, the smaller",
    },
    how_much_longer_the_step_takes: {
        "basic": "how much longer the step takes",
        "computing": None,
        "property": "the longer the context",
    },
    one_token_of_each_step: {"basic": "the large step gives B tokens", "computing": None, "property": None},
    one_request_has_no_cache: {"basic": "a single request has a cache", "computing": None, "property": None},
    upside_down: {"basic": "upside down", "computing": None, "property": "the longer the context"},
    tokens_a_second: {"basic": "divide them by those of one", "computing": None, "property": "exactly 1"},
    ignores_computing: {"computing": "once computing takes longer than reading"},
    ignores_the_context: {"basic": "only without context", "computing": None, "property": "the longer the context"},
    whole_numbers: {"basic": "needn't be whole", "computing": None},
    a_sum_of_both: {"basic": "divide by those of one request", "computing": None},
}
RIGHT = [by_two_steps, as_a_ratio_of_rates, in_fractions]
