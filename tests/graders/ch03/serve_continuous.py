"""Answers to `serve_continuous`: wrong ideas about joining, leaving and paying, and differently built right ones."""

import heapq
import math

import numpy as np


def _serve(
    arrivals_s, prompts, tokens, seats, a, b, c,
    joins=lambda came, now, end: came <= now, late=False, charged=None, read=None, into_empty=False, company=1,
    newest=False, jump=True, silent_steps=0, at_once=math.inf, rank=None,
):  # fmt: skip
    """The right loop with one part replaced."""
    n = len(tokens)
    line, running = list(range(n)), []
    left, first, finish, now = list(tokens), [0.0] * n, [0.0] * n, 0.0
    steps = [0] * n  # that it has been in
    while line or any(left[k] for k in running):
        if not any(left[k] for k in running):
            running = []
            if jump:
                now = max(now, arrivals_s[line[min(company, len(line)) - 1]])
        end = now + a + b * (len(running) + 1)
        closed = into_empty and bool(running)
        joined = 0
        while line and len(running) < seats and not closed and joined < at_once:
            here = [k for k in line if joins(arrivals_s[k], now, end) or not jump]
            if not here:
                break
            k = min(here, key=rank) if rank else here[-1 if newest else 0]
            joined += 1
            line.remove(k)
            running.append(k)
        if late:
            running = [k for k in running if left[k] > 0]
        prompt = sum(prompts[k] for k in running if not steps[k]) if read is None else read(running, prompts)
        now += a + b * (len(running) if charged is None else charged(running, seats)) + c * prompt
        for k in running:
            steps[k] += 1
            left[k] -= steps[k] > silent_steps
            if steps[k] == 1 + silent_steps:
                first[k] = now
            if left[k] == 0:
                finish[k] = now
        if not late:
            running = [k for k in running if left[k] > 0]
    return [[x, y] for x, y in zip(first, finish, strict=True)]


def joins_while_a_step_runs(*args):
    return _serve(*args, joins=lambda came, now, end: came < end)


def frees_a_seat_a_step_late(*args):
    return _serve(*args, late=True)


def admits_only_into_an_empty_engine(*args):
    return _serve(*args, into_empty=True)


def waits_until_all_seats_are_taken(arrivals_s, prompts, tokens, seats, a, b, c):
    return _serve(arrivals_s, prompts, tokens, seats, a, b, c, company=seats)


def pays_for_all_seats(*args):
    return _serve(*args, charged=lambda running, seats: seats)


def pays_for_one_seat(*args):
    return _serve(*args, charged=lambda running, seats: min(1, len(running)))


def charges_for_no_seat(*args):
    return _serve(*args, charged=lambda running, seats: 0)


def forgets_the_prompt(*args):
    return _serve(*args, read=lambda running, prompts: 0)


def pays_for_a_prompt_as_for_one_token(arrivals_s, prompts, *rest):
    return _serve(arrivals_s, [1] * len(prompts), *rest)


def reads_the_prompt_in_every_step(*args):
    return _serve(*args, read=lambda running, prompts: sum(prompts[k] for k in running))


def gets_no_token_from_the_prompts_step(*args):
    return _serve(*args, silent_steps=1)


def serves_the_newest_first(*args):
    return _serve(*args, newest=True)


def serves_before_anyone_came(*args):
    return _serve(*args, jump=False)


def lets_one_join_in_a_step(*args):
    return _serve(*args, at_once=1)


def stops_the_others_while_it_reads(arrivals_s, prompts, tokens, seats, a, b, c):
    n = len(tokens)
    line, running, left, now = list(range(n)), [], list(tokens), 0.0
    first, finish = [0.0] * n, [0.0] * n
    while line or running:
        now = now if running else max(now, arrivals_s[line[0]])
        new = [k for k in line if arrivals_s[k] <= now][: seats - len(running)]
        line = [k for k in line if k not in new]
        now += a + b * len(new or running) + c * sum(prompts[k] for k in new)
        for k in new or running:
            left[k] -= 1
            first[k] = now if k in new else first[k]
            finish[k] = now
        running = [k for k in running + new if left[k]]
    return [[x, y] for x, y in zip(first, finish, strict=True)]


def takes_the_shortest_answer_first(arrivals_s, prompts, tokens, seats, a, b, c):
    return _serve(arrivals_s, prompts, tokens, seats, a, b, c, rank=lambda k: (tokens[k], k))


def returns_seconds_since_arrival(arrivals_s, *rest):
    return [[x - t, y - t] for t, (x, y) in zip(arrivals_s, _serve(arrivals_s, *rest), strict=True)]


def returns_the_finish_alone(*args):
    return [finish for _, finish in _serve(*args)]


def puts_the_finish_first(*args):
    return [pair[::-1] for pair in _serve(*args)]


def returns_two_lists(*args):
    return [list(times) for times in zip(*_serve(*args), strict=True)] or [[], []]


def looks_at_the_first_of_nobody(*args):
    args[0][0]
    return _serve(*args)


def forgets_to_return(*args):
    _serve(*args)


_kept = []


def keeps_what_it_found_before(*args):
    _kept.extend(_serve(*args))
    return _kept[:]


def eats_its_tokens(arrivals_s, prompts, tokens, *rest):
    pairs = _serve(arrivals_s, prompts, tokens, *rest)
    for k in range(len(tokens)):
        tokens[k] = 0
    return pairs


def in_an_array(arrivals_s, prompts, tokens, seats, a, b, c):
    came, lengths = np.asarray(arrivals_s, float), np.asarray(tokens, int)
    done, times, first, now = np.zeros(len(came), int), np.zeros((len(came), 2)), 0, 0.0
    inside = np.zeros(len(came), bool)
    while (done < lengths).any():
        if not inside.any():
            now = max(now, came[first])
        until = min(first + seats - inside.sum(), np.searchsorted(came, now, side="right"))
        new = np.arange(first, until)
        first = max(first, until)
        inside[new] = True
        now += a + b * inside.sum() + c * sum(prompts[k] for k in new)
        done += inside
        times[new, 0] = now
        times[inside, 1] = now
        inside &= done < lengths
    return times


def with_a_heap_of_last_steps(arrivals_s, prompts, tokens, seats, a, b, c):
    """Counts steps instead of tokens left: a request that joins at step s leaves after step s + tokens − 1."""
    n, now, step, place = len(tokens), 0.0, 0, 0
    leaving, first, finish = [], {}, {}
    while place < n or leaving:
        if not leaving:
            now = max(now, arrivals_s[place])
        new = []
        while place < n and arrivals_s[place] <= now and len(leaving) < seats:
            heapq.heappush(leaving, (step + tokens[place] - 1, place))
            new.append(place)
            place += 1
        now += a + b * len(leaving) + c * sum(prompts[k] for k in new)
        first |= dict.fromkeys(new, now)
        while leaving and leaving[0][0] == step:
            finish[heapq.heappop(leaving)[1]] = now
        step += 1
    return [(first[k], finish[k]) for k in range(n)]


def with_records(arrivals_s, prompts, tokens, seats, a, b, c):
    requests = [
        {"came": came, "prompt": prompt, "left": length, "first": math.nan, "finish": math.nan}
        for came, prompt, length in zip(arrivals_s, prompts, tokens, strict=True)
    ]
    waiting, inside, clock = requests[:], [], 0.0
    while waiting or inside:
        inside = [r for r in inside if r["left"]]
        if not inside and waiting and waiting[0]["came"] > clock:
            clock = waiting[0]["came"]
        while waiting and len(inside) < seats and waiting[0]["came"] <= clock:
            inside.append(waiting.pop(0))
        if not inside:
            break
        clock += a + b * len(inside) + c * sum(r["prompt"] for r in inside if math.isnan(r["first"]))
        for r in inside:
            r["left"] -= 1
            r["first"] = clock if math.isnan(r["first"]) else r["first"]
            r["finish"] = clock
    return [[r["first"], r["finish"]] for r in requests]


EVERYWHERE = dict.fromkeys(["alone", "joining", "leaving", "edges", "property"])
WRONG = {
    joins_while_a_step_runs: {"joining": "while a step runs", "property": None},
    frees_a_seat_a_step_late: {"leaving": "a step late", "property": None},
    admits_only_into_an_empty_engine: {
        "joining": "an engine that is running",
        "leaving": "an engine that is running",
        "edges": "an engine that is running",
        "property": "an engine that is running",
    },
    waits_until_all_seats_are_taken: {
        "alone": "nobody waits for company",
        "joining": "nobody waits for company",
        "edges": "nobody waits for company",
        "property": None,
    },
    pays_for_all_seats: {"alone": "not the seats", "joining": None, "edges": None, "property": None},
    pays_for_one_seat: {"joining": "not only one", "leaving": None, "edges": None, "property": None},
    charges_for_no_seat: {**EVERYWHERE, "alone": "each request in a step has its price"},
    forgets_the_prompt: {**EVERYWHERE, "alone": "the prompt isn't paid for"},
    pays_for_a_prompt_as_for_one_token: {**EVERYWHERE, "alone": "each token of the prompt costs"},
    reads_the_prompt_in_every_step: {**EVERYWHERE, "alone": "in its request's first step only"},
    gets_no_token_from_the_prompts_step: {**EVERYWHERE, "alone": "first token"},
    serves_the_newest_first: {"leaving": "first come, first served", "property": None},
    lets_one_join_in_a_step: {
        "joining": None,
        "leaving": "not one in a step",
        "edges": "not one in a step",
        "property": "not one in a step",
    },
    stops_the_others_while_it_reads: {
        "joining": "no step of its own",
        "leaving": None,
        "edges": None,
        "property": None,
    },
    takes_the_shortest_answer_first: {"leaving": "first come, first served", "property": None},
    serves_before_anyone_came: {"alone": "before it came", "joining": None, "edges": None, "property": None},
    returns_seconds_since_arrival: {**EVERYWHERE, "alone": "since the arrival"},
    returns_the_finish_alone: {**EVERYWHERE, "alone": "a pair for each request"},
    puts_the_finish_first: {**EVERYWHERE, "alone": "the first token comes first"},
    returns_two_lists: {**EVERYWHERE, "alone": "not a list of all first tokens"},
    looks_at_the_first_of_nobody: {"edges": "nobody comes, so there is nothing to do"},
    forgets_to_return: dict.fromkeys(EVERYWHERE, "end in a `return`"),
    keeps_what_it_found_before: {**EVERYWHERE, "alone": "kept from one call to the next"},
    eats_its_tokens: dict.fromkeys(EVERYWHERE, "changes `tokens`"),
}
RIGHT = [in_an_array, with_a_heap_of_last_steps, with_records]
