"""Answers to `held_tokens`: wrong ideas about what running requests hold, and differently built right ones."""

from statistics import fmean, pvariance

import numpy as np


def _running(rate_rps, tpot_s, output_tokens):
    return rate_rps * tpot_s * fmean(output_tokens)


def _rule(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + fmean(output_tokens) / 2)


def _all(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return rate_rps * fmean(tpot_s * (prompt_tokens * T + T * T / 2) for T in output_tokens)


def _with(held):
    """An answer whose chats hold `held(prompt, mean, outputs)` in all."""

    def answer(rate_rps, tpot_s, prompt_tokens, output_tokens):
        rule = _rule(rate_rps, tpot_s, prompt_tokens, output_tokens)
        each = held(prompt_tokens, fmean(output_tokens), output_tokens)
        return [rule, _running(rate_rps, tpot_s, output_tokens) * each - rule]

    return answer


def half_way_is_all(*args):
    return [_rule(*args), 0.0]


def the_first_is_all(*args):
    return [_all(*args), _all(*args) - _rule(*args)]


def the_second_is_all(*args):
    return [_rule(*args), _all(*args)]


def at_the_end(rate_rps, tpot_s, prompt_tokens, output_tokens):
    args = rate_rps, tpot_s, prompt_tokens, output_tokens
    end = _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + fmean(output_tokens))
    return [end, _all(*args) - _rule(*args)]


def the_long_ones_at_their_end(*args):
    return _with(lambda P, mean, outs: P + fmean(T * T for T in outs) / mean)(*args)


def answers_only(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return by_the_moments(rate_rps, tpot_s, 0, output_tokens)


def prompts_only(rate_rps, tpot_s, prompt_tokens, output_tokens):
    more = by_the_moments(rate_rps, tpot_s, prompt_tokens, output_tokens)[1]
    return [_running(rate_rps, tpot_s, output_tokens) * prompt_tokens, more]


def takes_the_mean_off_twice(*args):
    return _with(lambda P, mean, outs: P + pvariance(outs) / (2 * mean))(*args)


def of_one_chat(rate_rps, tpot_s, prompt_tokens, output_tokens):
    more = by_the_moments(rate_rps, tpot_s, prompt_tokens, output_tokens)[1]
    return [prompt_tokens + fmean(output_tokens) / 2, more]


def forgets_how_long_they_run(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return [x / (tpot_s * fmean(output_tokens)) for x in by_the_moments(rate_rps, tpot_s, prompt_tokens, output_tokens)]


def counts_the_first_step_as_empty(*args):
    return _with(lambda P, mean, outs: P + fmean(T * T for T in outs) / (2 * mean) - 0.5)(*args)


def half_of_the_longest(*args):
    return _with(lambda P, mean, outs: P + max(outs) / 2)(*args)


def the_sum_alone(*args):
    return _all(*args)


def forgets_to_return(*args):
    by_the_moments(*args)


def eats_its_answers(rate_rps, tpot_s, prompt_tokens, output_tokens):
    output_tokens.sort(reverse=True)
    return by_the_moments(rate_rps, tpot_s, prompt_tokens, output_tokens)


def by_the_moments(rate_rps, tpot_s, prompt_tokens, output_tokens):
    args = rate_rps, tpot_s, prompt_tokens, output_tokens
    return [_rule(*args), _all(*args) - _rule(*args)]


def by_the_variance(rate_rps, tpot_s, prompt_tokens, output_tokens):
    rule = _rule(rate_rps, tpot_s, prompt_tokens, output_tokens)
    return rule, rate_rps * tpot_s * pvariance(output_tokens) / 2


def in_numpy(rate_rps, tpot_s, prompt_tokens, output_tokens):
    T = np.array(output_tokens, float)
    running = rate_rps * tpot_s * T.mean()
    each = np.array([prompt_tokens + T.mean() / 2, np.average(T / 2, weights=T) - T.mean() / 2])
    return running * each


WRONG = {
    half_way_is_all: {"basic": "explains nothing", "edges": None, "simulated": None, "property": None},
    the_first_is_all: {"basic": "is all that is held", "edges": None, "simulated": None, "property": None},
    the_second_is_all: {"basic": "take off what", "edges": None, "simulated": None, "property": None},
    at_the_end: {"basic": "holds half of its answer", "edges": None, "simulated": None, "property": None},
    the_long_ones_at_their_end: {"basic": "half of that", "edges": None, "simulated": None, "property": None},
    prompts_only: {"basic": "answers are held", "edges": None, "simulated": None, "property": None},
    answers_only: {"basic": "the prompt is held", "edges": None, "simulated": None, "property": None},
    takes_the_mean_off_twice: {"basic": "the mean off twice", "edges": None, "simulated": None, "property": None},
    of_one_chat: {"basic": "this is one chat", "edges": None, "simulated": None, "property": None},
    forgets_how_long_they_run: {
        "basic": "half-way: prompt and half of the mean",
        "edges": None,
        "simulated": None,
        "property": None,
    },
    counts_the_first_step_as_empty: {"basic": "half a token off", "edges": None, "property": None},
    half_of_the_longest: {"basic": "as the longest", "edges": None, "simulated": None, "property": None},
    the_sum_alone: {
        "basic": "a list of 2",
        "edges": "a list of 2",
        "simulated": "a list of 2",
        "property": "a list of 2",
    },
    forgets_to_return: {
        "basic": "end in a `return`",
        "edges": "end in a `return`",
        "simulated": "end in a `return`",
        "property": "end in a `return`",
    },
    eats_its_answers: {"basic": "changes `output_tokens`", "edges": None, "simulated": None, "property": None},
}
RIGHT = [by_the_moments, by_the_variance, in_numpy]
