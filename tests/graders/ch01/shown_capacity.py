"""Answers to `shown_capacity`: six and more wrong ideas, and differently built right ones."""

import itertools

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


def _by(holds, capacity=calls_stable_completions_capacity):
    """An answer that gives a capacity where `holds(offered, completed, waiting, half)`."""

    def answer(run):
        done, waiting = run["completed_rps"], run["waiting"]
        return capacity(run) if holds(run["offered_rps"], done, waiting, len(done) // 2) else None

    return answer


def compares_lines_within_the_second_half(run):
    def holds(offered, done, waiting, half):
        late = waiting[half:]
        return max(done[half:]) < 0.98 * offered and all(a < b for a, b in itertools.pairwise(late))

    return _by(holds)(run)


def compares_with_two_minutes_before(run):
    def holds(offered, done, waiting, half):
        return all(done[k] < 0.98 * offered and waiting[k] > waiting[k - 2] for k in range(half, len(done)))

    return _by(holds)(run)


def compares_the_ends_of_the_second_half(run):
    def holds(offered, done, waiting, half):
        return max(done[half:]) < 0.98 * offered and waiting[-1] > waiting[half - 1]

    return _by(holds)(run)


def looks_at_the_mean_completions(run):
    def holds(offered, done, waiting, half):
        grows = all(waiting[k] > waiting[k - 1] for k in range(half, len(done)))
        return grows and sum(done[half:]) / (len(done) - half) < 0.98 * offered

    return _by(holds)(run)


def takes_just_98_percent_for_fewer(run):
    def holds(offered, done, waiting, half):
        return all(done[k] <= 0.98 * offered and waiting[k] > waiting[k - 1] for k in range(half, len(done)))

    return _by(holds)(run)


def takes_any_shortfall_for_overload(run):
    def holds(offered, done, waiting, half):
        return all(done[k] < offered and waiting[k] > waiting[k - 1] for k in range(half, len(done)))

    return _by(holds)(run)


def looks_at_all_minutes(run):
    def holds(offered, done, waiting, half):
        return max(done) < 0.98 * offered and all(a < b for a, b in itertools.pairwise(waiting))

    return _by(holds)(run)


def takes_the_last_minute(run):
    return run["completed_rps"][-1] if _shows(run) else None


def takes_the_last_two_minutes(run):
    return sum(run["completed_rps"][-2:]) / 2 if _shows(run) else None


def sorts_the_callers_list(run):
    found = calls_stable_completions_capacity(run) if _shows(run) else None
    run["waiting"].sort(reverse=True)
    return found


def forgets_to_return_the_mean(run):
    if not _shows(run):
        return
    calls_stable_completions_capacity(run)


def with_all(run):
    return calls_stable_completions_capacity(run) if _shows(run) else None


def in_numpy(run):
    done, waiting = np.array(run["completed_rps"]), np.array(run["waiting"])
    half = len(done) // 2
    short = (done[half:] < 0.98 * run["offered_rps"]) & (np.diff(waiting)[half - 1 :] > 0)
    return done[half:].mean() if short.all() else None


def from_the_end(run):
    minutes = list(zip(run["completed_rps"], run["waiting"], strict=True))
    enough, total = run["offered_rps"] * 0.98 * (1 - 1e-9), 0.0
    for back in range(1, len(minutes) // 2 + 1):
        done, line = minutes[-back]
        if done >= enough or line <= minutes[-back - 1][1]:
            return None
        total += done
    return 2 * total / len(minutes)


load = "that is the load"
alone = "a line alone shows nothing"
WRONG = {
    calls_stable_completions_capacity: {"stable": load, "lines": alone},
    takes_any_line_for_overload: {"stable": load, "lines": alone},
    takes_the_whole_run: {"overload": "the first half counts too"},
    takes_the_best_minute: {"overload": "the best minute"},
    takes_the_last_minute: {"overload": "the last minute alone"},
    takes_the_last_two_minutes: {"overload": "the last two minutes"},
    returns_what_was_offered: {"overload": "this is what was offered"},
    looks_at_the_last_minute_only: {"stable": load, "lines": alone},
    looks_at_all_minutes: {"overload": "this run shows capacity"},
    finds_too_few_completions_enough: {"lines": alone},
    finds_a_longer_line_at_the_end_enough: {"stable": load, "lines": alone},
    one_bad_minute_is_enough: {"stable": load, "lines": alone},
    compares_lines_within_the_second_half: {"lines": "from the end of the first half on"},
    compares_with_two_minutes_before: {"lines": alone},
    compares_the_ends_of_the_second_half: {"lines": "in every minute of the second half"},
    looks_at_the_mean_completions: {"stable": "in some minute of the second half"},
    takes_just_98_percent_for_fewer: {"stable": "just 98 % isn't fewer"},
    takes_any_shortfall_for_overload: {"stable": "at least 98 % of it"},
    answers_yes_or_no: {"overload": "a number or None"},
    never_finds_any: {"overload": "If it is None on purpose: this run shows capacity"},
    forgets_to_return_the_mean: {"overload": "end in a `return`"},
    sorts_the_callers_list: {"overload": "your function changes `run`", "stable": None, "lines": None},
}
RIGHT = [with_all, in_numpy, from_the_end]
