"""Answers to `verdicts`: wrong ideas about what a load test shows, and differently built right ones."""

import math


def _at_most(k, n, share):
    from scipy.special import bdtr

    return float(bdtr(k, n, share)) if k >= 0 else 0.0


def _few(k, n, share, rest):
    return _at_most(k, n, share) <= rest


def _many(k, n, share, rest):
    return 1 - _at_most(k - 1, n, share) <= rest


def _judge(tests, q, confidence, kept=_few, broken=_many, weigh=lambda n, k, worth: (n // worth, k // worth)):
    found = []
    for requests, late, worth in tests:
        n, k = weigh(requests, late, worth)
        if kept(k, n, 1 - q, 1 - confidence):
            found.append("kept")
        else:
            found.append("broken" if broken(k, n, 1 - q, 1 - confidence) else "open")
    return found


def the_share_of_the_sample(tests, q, confidence):
    return ["kept" if late <= (1 - q) * requests else "broken" for requests, late, _ in tests]


def a_hundred_will_do(tests, q, confidence):
    return _judge(tests, q, confidence, kept=lambda k, n, s, rest: k == 0 and n >= 100)


def one_queue_is_independent(tests, q, confidence):
    return _judge(tests, q, confidence, weigh=lambda n, k, worth: (n, k))


def only_the_requests_are_divided(tests, q, confidence):
    return _judge(tests, q, confidence, weigh=lambda n, k, worth: (n // worth, k))


def multiplies_by_worth(tests, q, confidence):
    return _judge(tests, q, confidence, weigh=lambda n, k, worth: (n * worth, k * worth))


def not_kept_is_broken(tests, q, confidence):
    return _judge(tests, q, confidence, broken=lambda *case: True)


def falls_to_confidence(tests, q, confidence):
    return _judge(tests, q, confidence, kept=lambda k, n, s, rest: _few(k, n, s, 1 - rest))


def more_than_so_many(tests, q, confidence):
    return _judge(tests, q, confidence, broken=lambda k, n, s, rest: _many(k + 1, n, s, rest))


def fewer_than_so_few(tests, q, confidence):
    return _judge(tests, q, confidence, kept=lambda k, n, s, rest: _few(k - 1, n, s, rest))


def halves_the_rest(tests, q, confidence):
    return _judge(tests, q, (1 + confidence) / 2)


def always_95_percent(tests, q, confidence):
    return _judge(tests, q, 0.95)


def takes_q_for_the_late_share(tests, q, confidence):
    return _judge(tests, 1 - q, confidence)


def only_a_clean_test_counts(tests, q, confidence):
    return _judge(tests, q, confidence, kept=lambda k, n, s, rest: k == 0 and _few(k, n, s, rest))


def the_words_swapped(tests, q, confidence):
    return _judge(tests, q, confidence, kept=_many, broken=_few)


def late_is_late(tests, q, confidence):
    return ["broken" if late else "kept" for _, late, _ in tests]


def nothing_is_ever_sure(tests, q, confidence):
    return ["open" for _ in tests]


def by_the_bell_curve(tests, q, confidence):
    from scipy.special import ndtri

    found = []
    for requests, late, worth in tests:
        n, k = requests / worth, late / worth
        off = (k - n * (1 - q)) / math.sqrt(n * q * (1 - q))
        reach = ndtri(confidence)
        found.append("kept" if off <= -reach else "broken" if off >= reach else "open")
    return found


def one_word_for_all(tests, q, confidence):
    return (_judge(tests, q, confidence) or ["open"])[0]


def numbers_for_words(tests, q, confidence):
    return [("kept", "open", "broken").index(word) for word in _judge(tests, q, confidence)]


def forgets_to_return(tests, q, confidence):
    _judge(tests, q, confidence)


def keeps_the_words(tests, q, confidence, found=[]):  # noqa: B006
    found += _judge(tests, q, confidence)
    return list(found)


def divides_in_the_table(tests, q, confidence):
    for row in tests:
        row[0], row[1], row[2] = row[0] // row[2], row[1] // row[2], 1
    tests.append([1, 0, 1])
    return _judge(tests[:-1], q, confidence)


def request_by_request(tests, q, confidence):
    """No binomials: the chance of each number of late ones, as the requests come."""
    found = []
    for requests, late, worth in tests:
        k = late // worth
        chances = [1.0] + [0.0] * k  # of 0 … k late ones
        for _ in range(requests // worth):
            for j in range(k, 0, -1):
                chances[j] = chances[j] * q + chances[j - 1] * (1 - q)
            chances[0] *= q
        few, many = sum(chances), 1 - sum(chances[:-1])
        found.append("kept" if few <= 1 - confidence else "broken" if many <= 1 - confidence else "open")
    return tuple(found)


def by_the_law_s_ends(tests, q, confidence):
    from scipy.stats import binom

    found = []
    for requests, late, worth in tests:
        law = binom(requests // worth, 1 - q)
        word = "open"
        if law.cdf(late // worth) <= 1 - confidence:
            word = "kept"
        if law.sf(late // worth - 1) <= 1 - confidence:
            word = "broken"
        found.append(word)
    return found


def by_combinations(tests, q, confidence):
    def exactly(k, n):
        return math.exp(
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(1 - q)
            + (n - k) * math.log(q)
        )

    def word(n, k):
        few = sum(exactly(j, n) for j in range(k + 1))
        many = 1 - few + exactly(k, n)
        return {True: "kept", False: {True: "broken", False: "open"}[many <= 1 - confidence]}[few <= 1 - confidence]

    return [word(round(requests / worth), round(late / worth)) for requests, late, worth in tests]


def in_numpy(tests, q, confidence):
    import numpy as np
    from scipy.special import bdtr, bdtrc

    if not len(tests):
        return []
    requests, late, worth = np.array(tests).T
    n, k = requests // worth, late // worth
    many = np.where(k > 0, bdtrc(np.maximum(k - 1, 0), n, 1 - q), 1.0)
    few = bdtr(k, n, 1 - q)
    return np.select([few <= 1 - confidence, many <= 1 - confidence], ["kept", "broken"], "open")


ALL = ("basic", "queue", "edges", "property")
WRONG = {
    the_share_of_the_sample: {"basic": "isn't the share of all", "queue": None, "edges": None, "property": None},
    a_hundred_will_do: {"basic": "no rule", "queue": "no rule", "edges": None, "property": None},
    one_queue_is_independent: {"queue": "alike: divide by worth", "property": None},
    only_the_requests_are_divided: {"queue": "divide both by worth", "edges": None, "property": None},
    multiplies_by_worth: {"queue": "say less, not more", "property": None},
    not_kept_is_broken: {"basic": "a third word", "queue": "a third word", "edges": None, "property": None},
    falls_to_confidence: {"basic": "not confidence", "queue": "not confidence", "edges": None, "property": None},
    more_than_so_many: {"basic": "“so many or more”", "queue": "“so many or more”", "edges": None, "property": None},
    fewer_than_so_few: {"basic": "“so few or fewer”", "queue": None, "edges": None, "property": None},
    halves_the_rest: {"basic": "don't halve", "queue": "don't halve", "edges": None, "property": None},
    always_95_percent: {"basic": "use the argument confidence", "queue": None, "edges": None, "property": None},
    takes_q_for_the_late_share: {
        "basic": "1 − q is the share",
        "queue": "1 − q is the share",
        "edges": None,
        "property": None,
    },
    only_a_clean_test_counts: {"basic": "may hold late ones", "queue": "may hold late ones", "property": None},
    the_words_swapped: {
        "basic": "speak for the promise",
        "queue": "speak for the promise",
        "edges": None,
        "property": None,
    },
    late_is_late: {"basic": "breaks no promise", "queue": None, "edges": None, "property": None},
    nothing_is_ever_sure: {"basic": "do show something", "queue": "do show something", "edges": None, "property": None},
    by_the_bell_curve: {"basic": "compare the chance", "queue": None, "edges": None, "property": None},
    one_word_for_all: dict.fromkeys(ALL, "a list of texts"),
    numbers_for_words: dict.fromkeys(ALL, "a list of texts"),
    forgets_to_return: dict.fromkeys(ALL, "end in a `return`"),
    keeps_the_words: dict.fromkeys(ALL, "kept from one call to the next"),
    divides_in_the_table: dict.fromkeys(ALL, "work on a copy"),
}
RIGHT = [request_by_request, by_the_law_s_ends, by_combinations, in_numpy]
