"""Answers to `where_time_went`: one part of the three is wrong, and differently built right ones."""

import numpy as np


def _step(step, n, p, h):
    return step["fixed_s"] + step["per_request_s"] * n + step["per_prefill_token_s"] * p + step["per_kv_token_s"] * h


def by_sums(B, P, T, step):
    prefill = _step(step, B, B * P, B * P)
    still = sum(_step(step, B, 0, B * P) for _ in range(T - 1))
    growth = sum(step["per_kv_token_s"] * B * k for k in range(1, T))
    return [prefill, still, growth]


def t_steps_follow(B, P, T, step):
    prefill, _, growth = by_sums(B, P, T, step)
    return [prefill, T * _step(step, B, 0, B * P), growth]


def one_prompt_is_read(B, P, T, step):
    return [_step(step, B, P, P), *by_sums(B, P, T, step)[1:]]


def the_prompts_alone(B, P, T, step):
    return [step["per_prefill_token_s"] * B * P, *by_sums(B, P, T, step)[1:]]


def the_first_step_holds_nothing(B, P, T, step):
    return [_step(step, B, B * P, 0), *by_sums(B, P, T, step)[1:]]


def one_request_holds_its_tokens(B, P, T, step):
    prefill, _, growth = by_sums(B, P, T, step)
    return [prefill, (T - 1) * _step(step, B, 0, P), growth]


def grows_by_all_of_it(B, P, T, step):
    return [*by_sums(B, P, T, step)[:2], step["per_kv_token_s"] * B * T * (T - 1)]


def one_context_grows(B, P, T, step):
    return [*by_sums(B, P, T, step)[:2], step["per_kv_token_s"] * T * (T - 1) / 2]


def grows_from_zero(B, P, T, step):
    return [*by_sums(B, P, T, step)[:2], step["per_kv_token_s"] * B * sum(range(T - 1))]


def half_of_t_squared(B, P, T, step):
    return [*by_sums(B, P, T, step)[:2], step["per_kv_token_s"] * B * T * T / 2]


def the_sum_alone(B, P, T, step):
    return sum(by_sums(B, P, T, step))


def in_another_order(B, P, T, step):
    prefill, still, growth = by_sums(B, P, T, step)
    return [still, prefill, growth]


def charges_one_request(B, P, T, step):
    prefill, _, growth = by_sums(B, P, T, step)
    return [prefill, (T - 1) * _step(step, 1, 0, B * P), growth]


def forgets_to_return(B, P, T, step):
    by_sums(B, P, T, step)


def in_closed_form(B, P, T, step):
    calm = step["fixed_s"] + B * (step["per_request_s"] + step["per_kv_token_s"] * P)
    return calm + step["per_prefill_token_s"] * B * P, (T - 1) * calm, step["per_kv_token_s"] * B * T * (T - 1) / 2


def in_numpy(B, P, T, step):
    held = B * (P + np.arange(T))
    price = step["fixed_s"] + step["per_request_s"] * B + step["per_kv_token_s"] * held
    still = price[0] * (T - 1)
    return np.array([price[0] + step["per_prefill_token_s"] * B * P, still, price[1:].sum() - still])


WRONG = {
    t_steps_follow: {"basic": "T - 1 steps follow", "simulated": None, "edges": None, "property": None},
    one_prompt_is_read: {"basic": "the prompts of all B requests", "simulated": None, "edges": None, "property": None},
    the_prompts_alone: {"basic": "the price of every step", "simulated": None, "edges": None},
    the_first_step_holds_nothing: {"basic": "holds the prompts that it reads", "simulated": None, "edges": None},
    one_request_holds_its_tokens: {"basic": "hold their tokens, not one", "simulated": None, "property": None},
    grows_by_all_of_it: {"basic": "on average by half of it", "simulated": None, "edges": None},
    one_context_grows: {"basic": "the contexts of all B requests grow", "simulated": None, "property": None},
    grows_from_zero: {"basic": "holds one token more already", "simulated": None, "edges": None},
    half_of_t_squared: {"basic": "their sum is T (T - 1) / 2", "simulated": None, "edges": None, "property": None},
    the_sum_alone: dict.fromkeys(("basic", "simulated", "edges", "property"), "a list of 3"),
    in_another_order: {"basic": "in another order", "edges": None, "property": None},
    charges_one_request: {"basic": "has its price", "simulated": None, "edges": None, "property": None},
    forgets_to_return: dict.fromkeys(("basic", "simulated", "edges", "property"), "end in a `return`"),
}
RIGHT = [by_sums, in_closed_form, in_numpy]
