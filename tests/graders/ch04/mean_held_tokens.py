"""Answers to `mean_held_tokens`: wrong ideas about what running requests hold, and differently built right ones."""

from statistics import median


def _running(rate_rps, tpot_s, output_tokens):
    return rate_rps * tpot_s * sum(output_tokens) / len(output_tokens)


def half_of_the_mean(rate_rps, tpot_s, prompt_tokens, output_tokens):
    mean = sum(output_tokens) / len(output_tokens)
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + mean / 2)


def at_the_end(rate_rps, tpot_s, prompt_tokens, output_tokens):
    mean = sum(output_tokens) / len(output_tokens)
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + mean)


def the_long_ones_at_their_end(rate_rps, tpot_s, prompt_tokens, output_tokens):
    square = sum(T * T for T in output_tokens) / len(output_tokens)
    mean = sum(output_tokens) / len(output_tokens)
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + square / mean)


def prompts_only(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return _running(rate_rps, tpot_s, output_tokens) * prompt_tokens


def answers_only(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return rate_rps * tpot_s * sum(T * T / 2 for T in output_tokens) / len(output_tokens)


def takes_the_variance(rate_rps, tpot_s, prompt_tokens, output_tokens):
    mean = sum(output_tokens) / len(output_tokens)
    variance = sum((T - mean) ** 2 for T in output_tokens) / len(output_tokens)
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + variance / (2 * mean))


def of_one_request(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return prompt_tokens + sum(T * T for T in output_tokens) / sum(output_tokens) / 2


def forgets_how_long_they_run(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return rate_rps * of_one_request(rate_rps, tpot_s, prompt_tokens, output_tokens)


def counts_the_first_step_as_empty(rate_rps, tpot_s, prompt_tokens, output_tokens):
    paid = [tpot_s * (prompt_tokens * T + T * (T - 1) / 2) for T in output_tokens]
    return rate_rps * sum(paid) / len(paid)


def half_of_the_longest(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + max(output_tokens) / 2)


def half_of_the_median(rate_rps, tpot_s, prompt_tokens, output_tokens):
    return _running(rate_rps, tpot_s, output_tokens) * (prompt_tokens + median(output_tokens) / 2)


def token_seconds(rate_rps, tpot_s, prompt_tokens, output_tokens):
    paid = [tpot_s * (prompt_tokens * T + T * T / 2) for T in output_tokens]
    return rate_rps * sum(paid) / len(paid)


def weighted_by_length(rate_rps, tpot_s, prompt_tokens, output_tokens):
    import numpy as np

    T = np.array(output_tokens, float)
    return np.average(prompt_tokens + T / 2, weights=T) * rate_rps * tpot_s * T.mean()


WRONG = {
    half_of_the_mean: {"basic": "seen more often", "edges": "mean of the squares", "property": "the mean alone"},
    at_the_end: {"basic": "at their end", "edges": "half of its answer", "property": "the mean alone"},
    the_long_ones_at_their_end: {"basic": "half-way", "edges": "half of its answer", "property": "each step"},
    prompts_only: {"basic": "answers are held, too", "edges": "half of its answer", "property": "the mean alone"},
    answers_only: {"basic": "the prompt is held", "edges": "its prompt", "property": "each step"},
    takes_the_variance: {"basic": "this is the variance", "edges": "half of its answer", "property": None},
    of_one_request: {"basic": "this is one request", "edges": None, "property": None},
    forgets_how_long_they_run: {"basic": "Little", "edges": None, "property": None},
    counts_the_first_step_as_empty: {
        "basic": "half a token off",
        "edges": "half of its answer",
        "property": "each step",
    },
    half_of_the_longest: {"basic": "as the longest", "edges": "squares", "property": None},
    half_of_the_median: {"basic": "half of its answer", "edges": "squares", "property": "the mean alone"},
}
RIGHT = [token_seconds, weighted_by_length]
