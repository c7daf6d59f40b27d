"""Answers to `samples_needed`: wrong ideas about how many it takes, and differently built right ones."""

import math


def _chance(n, late, q):
    return sum(math.comb(n, k) * (1 - q) ** k * q ** (n - k) for k in range(late + 1))


def _independent(late, q, confidence):
    n = late + 1
    while _chance(n, late, q) > 1 - confidence:
        n += 1
    return n


def one_queue_is_independent(late, q, confidence, worth):
    return _independent(late, q, confidence)


def one_late_expected(late, q, confidence, worth):
    return math.ceil(round((late + 1) / (1 - q)) * worth)


def a_rule_of_thumb(late, q, confidence, worth):
    return math.ceil(round(100 / (1 - q)) * worth)


def one_too_few(late, q, confidence, worth):
    return math.ceil((_independent(late, q, confidence) - 1) * worth)


def forgets_the_late_ones(late, q, confidence, worth):
    return math.ceil(_independent(0, q, confidence) * worth)


def falls_to_confidence(late, q, confidence, worth):
    return math.ceil(_independent(late, q, 1 - confidence) * worth)


def halves_the_rest(late, q, confidence, worth):
    return math.ceil(_independent(late, q, (1 + confidence) / 2) * worth)


def divides_by_worth(late, q, confidence, worth):
    return math.ceil(_independent(late, q, confidence) / worth)


def rounds_down(late, q, confidence, worth):
    return int(_independent(late, q, confidence) * worth)


def keeps_the_fraction(late, q, confidence, worth):
    return _independent(late, q, confidence) * worth


def by_halving(late, q, confidence, worth):
    low, high = late, late + 1
    while _chance(high, late, q) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _chance(middle, late, q) > 1 - confidence:
            low = middle
        else:
            high = middle
    return math.ceil(high * worth)


def request_by_request(late, q, confidence, worth):
    chances, n = [1.0] + [0.0] * late, 0
    while sum(chances) > 1 - confidence:
        chances = [c * q + (chances[k - 1] * (1 - q) if k else 0) for k, c in enumerate(chances)]
        n += 1
    return -int(-n * worth // 1)


def as_a_whole_float(late, q, confidence, worth):
    return float(math.ceil(_independent(late, q, confidence) * worth))


WRONG = {
    one_queue_is_independent: {"queue": "neighbours in one queue", "property": None},
    one_late_expected: {"basic": "far from being sure", "queue": None, "property": None},
    a_rule_of_thumb: {"basic": "no rule of thumb", "queue": None, "property": None},
    one_too_few: {"basic": "one too few", "queue": None, "property": None},
    forgets_the_late_ones: {"basic": "none late", "queue": None, "property": "depends on late"},
    falls_to_confidence: {"basic": "1 − confidence", "queue": None, "property": None},
    halves_the_rest: {"basic": "don't halve", "queue": None, "property": None},
    divides_by_worth: {"queue": "multiply", "property": None},
    rounds_down: {"queue": "round up"},
    keeps_the_fraction: {"queue": "round up"},
}
RIGHT = [by_halving, request_by_request, as_a_whole_float]
