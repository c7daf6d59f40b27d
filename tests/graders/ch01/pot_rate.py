"""Answers to `pot_rate`: six and more wrong ideas, and differently built right ones."""


def counts_batches(B, fixed_s, per_request_s):
    return 1 / (fixed_s + per_request_s * B)


def forgets_the_parentheses(B, fixed_s, per_request_s):
    return B / fixed_s + per_request_s * B if fixed_s else 1 / per_request_s


def seconds_per_order(B, fixed_s, per_request_s):
    return (fixed_s + per_request_s * B) / B


def leaves_out_the_fixed_time(B, fixed_s, per_request_s):
    return 1 / per_request_s


def charges_one_order(B, fixed_s, per_request_s):
    return B / (fixed_s + per_request_s)


def pays_the_fixed_time_for_each_order(B, fixed_s, per_request_s):
    return B / (B * (fixed_s + per_request_s))


def divides_without_rest(B, fixed_s, per_request_s):
    return B // (fixed_s + per_request_s * B)


def rounds_to_two_digits(B, fixed_s, per_request_s):
    return round(B / (fixed_s + per_request_s * B), 2)


def only_the_example(B, fixed_s, per_request_s):
    return B / (0.4 + 0.02 * B)


def leaves_out_the_orders_time(B, fixed_s, per_request_s):
    return B / fixed_s if fixed_s else 1 / per_request_s


def as_the_formula(B, fixed_s, per_request_s):
    return B / (fixed_s + per_request_s * B)


def one_over_the_time_of_an_order(B, fixed_s, per_request_s):
    return 1 / (fixed_s / B + per_request_s)


def as_share_of_the_limit(B, fixed_s, per_request_s):
    import numpy as np

    busy = np.float64(per_request_s) * B
    return busy / (busy + fixed_s) / per_request_s


def forgets_to_return(B, fixed_s, per_request_s):
    as_the_formula(B, fixed_s, per_request_s)


def the_time_of_a_batch(B, fixed_s, per_request_s):
    return fixed_s + per_request_s * B


WRONG = {
    counts_batches: {
        "basic": "this counts batches: each batch holds",
        "edges": "this counts batches: each batch holds",
        "property": "more orders share one fixed time",
    },
    the_time_of_a_batch: {"basic": "the time of one batch: divide", "edges": "divide", "property": "below the line"},
    forgets_the_parentheses: {"basic": "parentheses", "edges": "parentheses", "property": "and each adds its own"},
    seconds_per_order: {"basic": "upside down", "edges": "upside down", "property": "more orders share"},
    leaves_out_the_fixed_time: {
        "basic": "the fixed time is left out",
        "edges": "the fixed time is left out",
        "property": "more orders share one fixed time",
    },
    charges_one_order: {
        "basic": "every order in the batch adds",
        "edges": "every order in the batch adds",
        "property": "and each adds its own",
    },
    pays_the_fixed_time_for_each_order: {
        "basic": "paid once per batch",
        "edges": "paid once per batch",
        "property": "more orders share one fixed time",
    },
    divides_without_rest: {"basic": "needn't be whole", "edges": "needn't be whole", "property": None},
    rounds_to_two_digits: {
        "basic": "the answer is rounded",
        "edges": "the answer is rounded",
        "property": "nothing is rounded",
    },
    only_the_example: {"basic": "orders in a batch divided", "edges": "ends", "property": "a check above fails"},
    leaves_out_the_orders_time: {"basic": "orders in a batch divided", "edges": "ends", "property": "each adds"},
    forgets_to_return: {"basic": "end in a `return`", "edges": "end in a `return`", "property": "end in a `return`"},
}
RIGHT = [as_the_formula, one_over_the_time_of_an_order, as_share_of_the_limit]
