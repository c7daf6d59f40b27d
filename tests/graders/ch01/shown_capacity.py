"""Answers to `shown_capacity`: six and more wrong ideas, and differently built right ones."""

import numpy as np


def calls_stable_completions_capacity(run):
    late = run["completed_rps"][len(run["completed_rps"]) // 2 :]
    return sum(late) / len(late)


def takes_any_line_for_overload(run):
    return calls_stable_completions_capacity(run) if run["waiting"][-1] > 0 else None


def takes_the_whole_run(run):
    return sum(run["completed_rps"]) / len(run["completed_rps"]) if _shows(run) else None


def takes_the_best_minute(run):
    return max(run["completed_rps"]) if _shows(run) else None


def returns_what_was_offered(run):
    return run["offered_rps"] if _shows(run) else None


def looks_at_the_last_minute_only(run):
    done, waiting = run["completed_rps"], run["waiting"]
    short = done[-1] < 0.98 * run["offered_rps"] and waiting[-1] > waiting[-2]
    return calls_stable_completions_capacity(run) if short else None


def finds_too_few_completions_enough(run):
    done = run["completed_rps"]
    short = all(rate < 0.98 * run["offered_rps"] for rate in done[len(done) // 2 :])
    return calls_stable_completions_capacity(run) if short else None


def finds_a_longer_line_at_the_end_enough(run):
    return calls_stable_completions_capacity(run) if run["waiting"][-1] > run["waiting"][0] else None


def one_bad_minute_is_enough(run):
    done = run["completed_rps"]
    short = any(rate < 0.98 * run["offered_rps"] for rate in done[len(done) // 2 :])
    return calls_stable_completions_capacity(run) if short else None


def answers_yes_or_no(run):
    return True if _shows(run) else None


def never_finds_any(run):
    return None


def _shows(run):
    done, waiting = run["completed_rps"], run["waiting"]
    late = range(len(done) // 2, len(done))
    return all(done[k] < 0.98 * run["offered_rps"] and waiting[k] > waiting[k - 1] for k in late)


def with_all(run):
    return calls_stable_completions_capacity(run) if _shows(run) else None


def in_numpy(run):
    done, waiting = np.array(run["completed_rps"]), np.array(run["waiting"])
    half = len(done) // 2
    short = (done[half:] < 0.98 * run["offered_rps"]) & (np.diff(waiting)[half - 1 :] > 0)
    return done[half:].mean() if short.all() else None


WRONG = {
    calls_stable_completions_capacity: {
        "stable": "this kitchen completes what it is offered",
        "lines": "a line alone shows nothing",
    },
    takes_any_line_for_overload: {"stable": "completes what it is offered", "lines": "a line alone shows nothing"},
    takes_the_whole_run: {"overload": "the first half counts too"},
    takes_the_best_minute: {"overload": "the best minute"},
    returns_what_was_offered: {"overload": "this is what was offered"},
    looks_at_the_last_minute_only: {"lines": "in every minute of the second half"},
    finds_too_few_completions_enough: {"lines": "it must grow"},
    finds_a_longer_line_at_the_end_enough: {"stable": "completes what it is offered", "lines": "a line alone"},
    one_bad_minute_is_enough: {"lines": "in every minute of the second half"},
    answers_yes_or_no: {"overload": "return the capacity itself"},
    never_finds_any: {"overload": "this run shows capacity"},
}
RIGHT = [with_all, in_numpy]
