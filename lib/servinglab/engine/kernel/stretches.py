"""One pot that counts tokens and blocks, whole stretches of steps at once: `servinglab.scheduling.vllm_rules`'s rules,
compiled.

First come first served, synchronous, without thresholds and without a prefix cache: `steps` has the rest. Between two
changes of those who run, the steps form a stretch whose length in nanoseconds has a closed form; the loop jumps from
one stretch's end to the next.

Steps are numbered. A decoding request's place in the cache is the step's number plus its seat's offset, so that nothing
is touched while it decodes: `need[p]` counts those who need a new block at steps ≡ p, and `wheel[s]` lists the seats
whose last token comes at step s. Seats are linked in running order, in which those with an unfinished prompt come last:
first who completes it in the step under way (from `ready` on), then at most one who doesn't (`partial`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from servinglab.base.compiled import FAR, HALF, NS, compiled, own_copy, part, whole_numbers, write_back
from servinglab.engine.kernel.clients import send_next
from servinglab.engine.kernel.heap import pop
from servinglab.engine.kernel.prices import attended_pairs, base_fs
from servinglab.engine.kernel.sums import roof_ns, steps_to, stretch
from servinglab.result.packed_log import MOST_STEPS

NOBODY = -1


RULES = whole_numbers(
    "clients seats budget chunked full_prompt_gate whole_answer watermark_blocks num_blocks block_size limited"
    " keeps_order"
)
"""Settings; `limited` says whether there is a pool, `keeps_order` whether the line isn't simply in order of numbers."""

STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_ns",  # when the next stretch begins, or the one under way has begun
            "under_way",  # whether a stretch is
            "reached",  # whether the last call went as far as it was asked to
            "known", "next", "pending",  # requests known; the first that hasn't come; clients about to send one
            "head", "tail", "preempted",  # the line: `order` from head to tail, behind a stack of the preempted
            "running", "decoding", "partial", "last", "spare",  # seats: how many; special ones; the first free one
            "steps", "phase",  # steps done, and the same modulo the block size
            "free_blocks", "held_tokens",  # the latter of those who decode
            "lost",  # preemptions that no row has told of yet
            "done", "answered",  # requests finished or turned away; how many of `answered` are written
            "untold",  # clients whose request has finished at now_ns, and who haven't begun to think
            "rows", "marks", "late", "logged_ns",  # what the last call has written, and up to when
            "looked_ns",  # up to when the line's wait is counted
            "present_ns", "closed_ns",  # how far it went, and the last instant at which all that could begin has begun
            "preemptions",
        )
    ]
    + [("waited_ns", np.float64)]
)  # fmt: skip

STEP = whole_numbers(
    "start_ns end_ns steps base_fs base_2_fs charged tokens prefill_tokens prefill_pairs kv_tokens first_tokens"
    " decode_tokens ready blocks waiting grows"
)
"""The stretch under way; a step's cost is its base and what its KV tokens cost. `grows`: for all its steps, blocks are
taken as they fill."""

SEAT = whole_numbers("request before after wheel_before wheel_after offset phase ends tokens computed last_ns left")
"""A running request: its neighbours in running order and in the wheel, its place; `ends` is its last token's step;
`tokens` of prompt and earlier answer to compute, `last_ns` when its last token came, and tokens left to come."""

PREEMPTED = whole_numbers("request tokens last_ns left")


class Memory(NamedTuple):
    """All that an engine remembers.

    Attributes
    ----------
    rules, state, step : arrays of one RULES, STATE, STEP
    sides : array of two SIDE
    arrival, prompt, output, reject, think : columns of requests
        When each comes (-1: not known yet), its lengths, whether it's turned away, its client's pause before it.
    scheduled, first_token, finish, preemptions : columns of requests
        What becomes of them.
    pending : int64, two rows
        A heap of a closed loop's clients: when each sends its request, and which.
    order : column of requests
        Who came, in order, if `keeps_order`.
    answered : column of requests, or empty
        Who has finished, in order.
    seat, wheel, need, stack : arrays
    """

    rules: Any
    sides: Any
    arrival: Any
    prompt: Any
    output: Any
    reject: Any
    think: Any
    scheduled: Any
    first_token: Any
    finish: Any
    preemptions: Any
    pending: Any
    state: Any
    step: Any
    order: Any
    answered: Any
    seat: Any
    wheel: Any
    need: Any
    stack: Any


@part
def _blocks(rules: Any, tokens: int) -> int:
    return (tokens + rules.block_size - 1) // rules.block_size


# ---- the line ----


@part
def _waiting(s: Any) -> int:
    return s.tail - s.head + s.preempted


@part
def _look(s: Any, at: int) -> None:
    """Count the time that the line has spent waiting up to here."""
    s.waited_ns += float(_waiting(s)) * float(at - s.looked_ns)
    s.looked_ns = at


@part
def _come(m: Any, rules: Any, s: Any, until: int) -> int:
    """Requests that come up to and including `until` join the line; return when the next one comes."""
    if rules.clients == 0:
        arrival, r = m.arrival, s.next
        if r < s.known and arrival[r] <= until:
            waiting, looked, waited = _waiting(s), s.looked_ns, s.waited_ns
            while r < s.known and arrival[r] <= until:
                waited += float(waiting) * float(arrival[r] - looked)
                looked = arrival[r]
                if not rules.keeps_order:
                    waiting += 1
                elif not m.reject[r]:
                    m.order[waiting + s.head - s.preempted] = r
                    waiting += 1
                r += 1
            s.next, s.looked_ns, s.waited_ns = r, looked, waited
            s.tail = waiting + s.head - s.preempted
        return arrival[r] if r < s.known else FAR
    while True:
        at = m.pending[0, 0] if s.pending > 0 else FAR
        if s.untold > 0 and at >= s.now_ns:
            s.untold -= 1
            send_next(s, m.think, m.pending, s.now_ns)
            continue
        if at > until:
            return at
        r = m.pending[1, 0]
        s.pending = pop(m.pending[0], m.pending[1], s.pending)
        m.arrival[r] = at
        if m.reject[r]:
            s.done += 1
            send_next(s, m.think, m.pending, at)
        else:
            _look(s, at)
            m.order[s.tail] = r
            s.tail += 1


# ---- the seats ----


@part
def _unseat(s: Any, seat: Any, q: int) -> None:
    """Take a seat out of the running order; it is free."""
    before, after = seat[q].before, seat[q].after
    if before >= 0:
        seat[before].after = after
    if after >= 0:
        seat[after].before = before
    else:
        s.last = before
    seat[q].after = s.spare
    s.spare = q
    s.running -= 1


@part
def _start_decoding(rules: Any, s: Any, seat: Any, wheel: Any, need: Any, q: int, left: int) -> None:
    """The first token of this seat comes out of the step under way; so many are left."""
    each = seat[q]
    each.offset = each.tokens - (s.steps + 1)
    each.ends = s.steps + left
    if not rules.whole_answer:
        each.phase = (s.steps + 1 - each.tokens) % rules.block_size
        need[each.phase] += 1
    s.decoding += 1
    s.held_tokens += each.tokens
    bucket = each.ends & (len(wheel) - 1)
    after = wheel[bucket]
    each.wheel_before, each.wheel_after = NOBODY, after
    if after >= 0:
        seat[after].wheel_before = q
    wheel[bucket] = q


@part
def _stop_decoding(rules: Any, s: Any, seat: Any, wheel: Any, need: Any, q: int) -> None:
    """Take a seat out of what is known of those who decode, before its last token."""
    each = seat[q]
    if not rules.whole_answer:
        need[each.phase] -= 1
    s.decoding -= 1
    s.held_tokens -= s.steps + each.offset
    if each.wheel_before >= 0:
        seat[each.wheel_before].wheel_after = each.wheel_after
    else:
        wheel[each.ends & (len(wheel) - 1)] = each.wheel_after
    if each.wheel_after >= 0:
        seat[each.wheel_after].wheel_before = each.wheel_before


# ---- the next step ----


@part
def _preempt_last(m: Any, rules: Any, s: Any) -> None:
    """The last to come loses its blocks, and waits at the head of the line."""
    seat, q = m.seat, s.last
    each, waits = seat[q], m.stack[s.preempted]
    waits.request = each.request
    if q == s.partial:
        held = each.computed
        waits.tokens, waits.last_ns, waits.left = each.tokens, each.last_ns, each.left
        s.partial = NOBODY
    else:
        held = s.steps + each.offset
        waits.tokens, waits.last_ns, waits.left = held + 1, s.now_ns, each.ends - s.steps + 1
        _stop_decoding(rules, s, seat, m.wheel, m.need, q)
    s.preempted += 1
    s.free_blocks += _blocks(rules, held)
    m.preemptions[each.request] += 1
    s.preemptions += 1
    _unseat(s, seat, q)


@part
def _run(m: Any, rules: Any, s: Any, step: Any, budget: int) -> int:
    """Blocks for the next tokens of those who run, or the last to come makes room; return how many lost theirs."""
    seat, partial, lost = m.seat, s.partial, 0
    demand, chunk = np.int64(0), np.int64(0)
    while s.running > 0:
        demand, chunk = m.need[s.phase], np.int64(0)
        if partial >= 0:
            done = seat[partial].computed
            chunk = min(seat[partial].tokens - done, budget - s.decoding)
            if not rules.whole_answer:
                demand += _blocks(rules, done + chunk) - _blocks(rules, done)
        if not rules.limited or demand <= s.free_blocks:
            break
        _preempt_last(m, rules, s)
        partial = s.partial
        demand, chunk = np.int64(0), np.int64(0)
        lost += 1
    s.lost += lost
    s.free_blocks -= demand
    charged, kv, prefill, firsts, ready = s.decoding, s.held_tokens + s.decoding, np.int64(0), np.int64(0), NOBODY
    step.prefill_pairs = 0
    step.decode_tokens, step.tokens = charged, charged + chunk
    if partial >= 0:
        each = seat[partial]
        charged += 1
        if chunk > 1 or each.computed < m.prompt[each.request]:
            prefill = chunk
            step.prefill_pairs = attended_pairs(chunk, each.computed)
        each.computed += chunk
        kv += each.computed
        if each.computed == each.tokens:
            ready, s.partial = partial, NOBODY
            firsts += each.last_ns < 0
    step.charged, step.kv_tokens, step.prefill_tokens, step.first_tokens = charged, kv, prefill, firsts
    step.ready = ready
    return lost


@part
def _admit(m: Any, rules: Any, s: Any, step: Any, budget: int) -> int:
    """The head of the line is let in, while it fits; return how many were."""
    seat, last, running, free, firsts = m.seat, s.last, s.running, s.free_blocks, np.int64(0)
    before, at_first, pairs = running, budget - step.tokens, np.int64(0)
    left, waiting = at_first, _waiting(s)
    while waiting > 0 and left > 0 and running < rules.seats:
        if s.preempted > 0:
            r, tokens = m.stack[s.preempted - 1].request, m.stack[s.preempted - 1].tokens
        else:
            r = m.order[s.head] if rules.keeps_order else s.head
            tokens = m.prompt[r]
        if not rules.chunked and tokens > left:
            break
        chunk = min(tokens, left)
        held = _blocks(rules, m.prompt[r] + m.output[r] - 1 if rules.whole_answer else chunk)
        if rules.limited:
            gated = rules.full_prompt_gate and not rules.whole_answer and chunk < tokens
            wanted = _blocks(rules, tokens) if gated else held
            if wanted > free - (rules.watermark_blocks if running > 0 else 0):
                break
        q = s.spare
        each = seat[q]
        s.spare = each.after
        if s.preempted > 0:
            s.preempted -= 1
            each.last_ns, each.left = m.stack[s.preempted].last_ns, m.stack[s.preempted].left
            if m.scheduled[r] < 0:
                m.scheduled[r] = s.now_ns
        else:
            s.head += 1
            each.last_ns, each.left = NOBODY, m.output[r]
            m.scheduled[r] = s.now_ns
        each.request, each.tokens, each.computed = r, tokens, chunk
        each.before, each.after = last, NOBODY
        if last >= 0:
            seat[last].after = q
        last = q
        running += 1
        waiting -= 1
        free -= held
        left -= chunk
        pairs += attended_pairs(chunk, 0)
        if chunk < tokens:
            s.partial = q
        else:
            firsts += each.last_ns < 0
            if step.ready < 0:
                step.ready = q
    s.last, s.running, s.free_blocks = last, running, free
    step.charged += running - before
    step.tokens += at_first - left
    step.kv_tokens += at_first - left
    step.prefill_tokens += at_first - left
    step.prefill_pairs += pairs
    step.first_tokens += firsts
    return running - before


@part
def _take_blocks(m: Any, rules: Any, s: Any, decoding: int, steps: int) -> int:
    """Take the blocks for the further steps of a stretch; return for how many steps there are blocks."""
    rounds = (steps - 1) // rules.block_size if steps > rules.block_size else np.int64(0)
    fit, phase = 1 + rounds * rules.block_size, s.phase
    if decoding * (rounds + 1) <= s.free_blocks:
        s.free_blocks -= decoding * rounds
    else:
        fit = np.int64(1)
    while fit < steps:
        phase = phase + 1 if phase + 1 < rules.block_size else 0
        if m.need[phase] > s.free_blocks:
            return fit
        s.free_blocks -= m.need[phase]
        fit += 1
    return steps


@part
def _begin(m: Any, rules: Any, s: Any, step: Any, next_ns: int) -> bool:
    """Decide who is in the next step; one step, or as many as pass before anything changes. False if it is empty."""
    _look(s, s.now_ns)
    step.start_ns = s.now_ns
    budget = max(rules.budget, s.running)
    resumed = s.partial >= 0
    lost, admitted = _run(m, rules, s, step, budget), 0
    if s.running == 0:  # if nobody is left to run, the line may try again at once
        lost = 0
    if lost == 0:
        admitted = _admit(m, rules, s, step, budget)
    if s.running == 0:
        return False
    per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
    charged, kv, waiting = step.charged, step.kv_tokens, _waiting(s)
    base = base_fs(m.sides[0], charged, step.prefill_tokens, step.prefill_pairs)
    base_2 = base_fs(m.sides[1], charged, step.prefill_tokens, step.prefill_pairs)
    steps, grows = np.int64(1), False
    if admitted > 0 or lost > 0 or resumed:
        lasts = max(base + per_kv * kv + HALF, base_2 + per_kv_2 * kv + HALF) // NS
    else:
        mask, ends = len(m.wheel) - 1, s.steps
        while m.wheel[ends & mask] < 0:
            ends += 1
        may_come = waiting == 0 and s.running < rules.seats and s.decoding < budget
        gap = next_ns - s.now_ns if may_come else FAR
        steps, lasts = stretch(base, per_kv, base_2, per_kv_2, kv, charged, min(ends - s.steps + 1, MOST_STEPS), gap)
        grows = bool(rules.limited) and not rules.whole_answer
        if steps > 1 and grows:
            fit = _take_blocks(m, rules, s, s.decoding, steps)
            if fit < steps:
                steps, lasts = fit, roof_ns(base, per_kv, base_2, per_kv_2, kv, charged, fit)
    step.steps, step.end_ns = steps, s.now_ns + lasts
    step.base_fs, step.base_2_fs, step.grows = base, base_2, grows
    step.blocks = rules.num_blocks - s.free_blocks
    step.waiting = waiting
    s.under_way = 1
    return True


# ---- a stretch ends ----


@part
def _finish(m: Any, rules: Any, s: Any, r: int, now: int) -> None:
    m.finish[r] = now
    s.done += 1
    if len(m.answered) > 0:
        m.answered[s.answered] = r
        s.answered += 1
    if rules.clients > 0:
        s.untold += 1


@part
def _end(m: Any, rules: Any, s: Any, step: Any, log: Any, marks: Any, late: Any) -> None:
    """The stretch under way ends: tokens come out, the finished leave."""
    seat, wheel, need = m.seat, m.wheel, m.need
    now = step.end_ns
    s.held_tokens += s.decoding * step.steps
    q = step.ready
    while q >= 0 and q != s.partial:
        each = seat[q]
        after = each.after
        if each.last_ns < 0:
            m.first_token[each.request] = now
        else:
            late[s.late] = now - each.last_ns
            s.late += 1
        if each.left == 1:  # an answer of one token holds no more than its prompt
            s.free_blocks += _blocks(rules, each.tokens)
            _finish(m, rules, s, each.request, now)
            _unseat(s, seat, q)
        else:
            _start_decoding(rules, s, seat, wheel, need, q, each.left - 1)
        q = after
    _write(rules, s, step, log, marks)
    s.steps += step.steps
    s.phase += step.steps
    if s.phase >= rules.block_size:
        s.phase %= rules.block_size
    done, bucket = s.steps, (s.steps - 1) & (len(wheel) - 1)
    q = wheel[bucket]
    wheel[bucket] = NOBODY
    left, held, blocks = np.int64(0), np.int64(0), np.int64(0)
    while q >= 0:
        each = seat[q]
        after, tokens = each.wheel_after, done + each.offset
        if not rules.whole_answer:
            need[each.phase] -= 1
        left += 1
        held += tokens
        blocks += _blocks(rules, tokens)
        _finish(m, rules, s, each.request, now)
        _unseat(s, seat, q)
        q = after
    s.decoding -= left
    s.held_tokens -= held
    s.free_blocks += blocks
    s.now_ns, s.under_way = now, 0


@part
def _write(rules: Any, s: Any, step: Any, log: Any, marks: Any) -> None:
    """Log the stretch."""
    row = log[s.rows]
    row["end_ns"] = s.logged_ns = step.end_ns
    row["kv_tokens"] = step.kv_tokens
    row["kv_blocks"] = step.blocks if rules.limited else 0
    row["charged"] = step.charged
    row["steps"] = step.steps
    s.rows += 1
    if step.waiting > 0 or step.decode_tokens < step.charged or s.lost > 0:
        row["steps"] = -step.steps
        mark = marks[s.marks]
        mark["waiting"] = step.waiting
        mark["prefill_tokens"] = step.prefill_tokens
        mark["prefill_pairs"] = step.prefill_pairs
        mark["decode_tokens"] = step.decode_tokens
        mark["first_tokens"] = step.first_tokens
        mark["preempted"] = s.lost
        s.marks += 1
        s.lost = 0


@part
def _pause(s: Any, log: Any) -> None:
    """Log that nothing was computed since the last row."""
    row = log[s.rows]
    row["end_ns"] = s.logged_ns = s.now_ns
    row["kv_tokens"] = row["kv_blocks"] = row["charged"] = row["steps"] = 0
    s.rows += 1


@part
def _stop(s: Any, until: int, begins: bool) -> None:
    """It went as far as it was asked to."""
    s.reached = 1
    s.present_ns = until if until < FAR else s.now_ns
    if begins:
        s.closed_ns = s.present_ns


@part
def _serve(m: Any, rules: Any, s: Any, step: Any, log: Any, marks: Any, late: Any, until: int, begins: bool) -> None:
    """Stretches end and begin in turn."""
    full = min(len(log), len(marks))
    s.rows = s.marks = s.late = s.reached = 0
    while True:
        if s.under_way and step.end_ns <= until:
            _end(m, rules, s, step, log, marks, late)
        next_ns = _come(m, rules, s, until if s.under_way else s.now_ns)
        if s.under_way or s.now_ns > until or (s.now_ns == until and not begins):
            _stop(s, until, begins)
            return
        if s.rows + 1 >= full or s.late + len(m.seat) >= len(late):
            return
        if s.running > 0 or _waiting(s) > 0:
            if s.logged_ns < s.now_ns:
                _pause(s, log)
            if _begin(m, rules, s, step, next_ns):
                continue
        if next_ns > until or next_ns == FAR:
            if until < FAR:
                s.now_ns = until
            _stop(s, until, begins)
            return
        s.now_ns = next_ns


@compiled
def advance(m: Any, log: Any, marks: Any, late: Any, until: int, begins: bool) -> None:
    """Serve on, up to the steps that end and the requests that come at `until`, or until a log is full.

    `begins`: what can begin at `until` begins, too. `late` gets the gaps before tokens whose request got none in the
    step before. The state says how many rows, marks and gaps were written, and whether `until` was `reached`.
    """
    rules, s, step = own_copy(m.rules[0]), own_copy(m.state[0]), own_copy(m.step[0])
    _serve(m, rules, s, step, log, marks, late, until, begins)
    write_back(m.state[0], s)
    write_back(m.step[0], step)


# ---- between two calls ----


@part
def _later_blocks(m: Any, rules: Any, s: Any, step: Any, first: int) -> int:
    """Blocks that the stretch under way took for its steps from this one on."""
    if not step.grows:
        return 0
    rounds = (step.steps - first) // rules.block_size
    taken = rounds * s.decoding
    for i in range(first + rounds * rules.block_size, step.steps):
        taken += m.need[(s.phase + i) % rules.block_size]
    return taken


@part
def _steps_past(m: Any, step: Any, gap: int) -> int:
    """The fewest steps of the stretch under way that last at least `gap` nanoseconds."""
    per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
    return steps_to(step.base_fs, per_kv, step.base_2_fs, per_kv_2, step.kv_tokens, step.charged, step.steps, gap)


@part
def _shorten(m: Any, rules: Any, s: Any, step: Any, steps: int) -> None:
    """The stretch under way has only so many steps."""
    if steps < step.steps:
        s.free_blocks += _later_blocks(m, rules, s, step, steps)
        per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
        lasts = roof_ns(step.base_fs, per_kv, step.base_2_fs, per_kv_2, step.kv_tokens, step.charged, steps)
        step.steps, step.end_ns = steps, step.start_ns + lasts
        step.blocks = rules.num_blocks - s.free_blocks


@compiled
def cut(m: Any, newcomer: bool) -> None:
    """The stretch under way ends with the step under way at the present: something may change then.

    That is the first step that ends now or later; later, if what can begin now has begun. For a newcomer only if it
    could be let in.
    """
    rules, s, step = m.rules[0], m.state[0], m.step[0]
    if s.under_way and step.steps > 1:
        may_come = _waiting(s) == 0 and s.running < rules.seats and s.decoding < max(rules.budget, s.running)
        if may_come or not newcomer:
            gap = s.present_ns - step.start_ns + (s.closed_ns == s.present_ns)
            _shorten(m, rules, s, step, _steps_past(m, step, gap))


@compiled
def split(m: Any, log: Any, marks: Any, late: Any) -> None:
    """The stretch under way is only the step that is under way at the present; the steps before it have ended.

    All that can begin at the present has begun. The state says what was logged, as after `advance`.
    """
    rules, s, step = m.rules[0], m.state[0], m.step[0]
    s.rows = s.marks = s.late = 0
    if not s.under_way or step.steps == 1:
        return
    ended = _steps_past(m, step, s.present_ns - step.start_ns + 1) - 1
    _shorten(m, rules, s, step, max(1, ended))
    if ended == 0:
        return
    _end(m, rules, s, step, log, marks, late)
    s.free_blocks -= m.need[s.phase]
    per_kv, per_kv_2, kv = m.sides[0].per_kv_token, m.sides[1].per_kv_token, s.held_tokens + s.decoding
    step.start_ns, step.steps, step.kv_tokens = s.now_ns, 1, kv
    step.end_ns = s.now_ns + roof_ns(step.base_fs, per_kv, step.base_2_fs, per_kv_2, kv, step.charged, 1)
    step.blocks = rules.num_blocks - s.free_blocks
    s.under_way = 1


@compiled
def abort(m: Any, r: int) -> None:
    """A request that waits or runs is given up; at most one step is under way."""
    rules, s, step, seat = m.rules[0], m.state[0], m.step[0], m.seat
    _look(s, s.present_ns)
    for at in range(s.preempted):
        if m.stack[at].request == r:
            for i in range(at, s.preempted - 1):
                m.stack[i] = m.stack[i + 1]
            s.preempted -= 1
            return
    for at in range(s.head, s.tail):
        if m.order[at] == r:
            for i in range(at, s.tail - 1):
                m.order[i] = m.order[i + 1]
            s.tail -= 1
            return
    q, reads = s.last, s.under_way and step.ready >= 0  # whether its prompt will be complete only after the step
    while seat[q].request != r:
        reads = reads and q != step.ready
        q = seat[q].before
    each = seat[q]
    if q == s.partial:
        held = each.computed
        s.partial = NOBODY
        if q == step.ready:
            step.ready = NOBODY
    elif reads:
        held = each.tokens
        step.decode_tokens += each.last_ns >= 0
        if q == step.ready:
            step.ready = each.after
    else:
        held = s.steps + each.offset + s.under_way
        _stop_decoding(rules, s, seat, m.wheel, m.need, q)
    s.free_blocks += _blocks(rules, m.prompt[r] + m.output[r] - 1 if rules.whole_answer else held)
    _unseat(s, seat, q)


@compiled
def next_ns(m: Any) -> int:
    """When the stretch under way ends, or the next request comes that is known; FAR: never."""
    rules, s = m.rules[0], m.state[0]
    if s.under_way:
        return m.step[0].end_ns
    return _come(m, rules, s, s.now_ns)


@compiled
def view(m: Any) -> tuple[Any, ...]:
    """The present: running, waiting, KV tokens and blocks, tokens of the step under way, done, preemptions."""
    rules, s, step = m.rules[0], m.state[0], m.step[0]
    free, tokens, kv = s.free_blocks, np.int64(0), s.held_tokens
    if s.under_way:
        ended, under_way = np.int64(0), np.int64(1)
        if step.steps > 1:
            gap = s.present_ns - step.start_ns
            ended = _steps_past(m, step, gap + 1) - 1
            if s.closed_ns < s.present_ns and ended > 0 and _steps_past(m, step, gap) == ended:
                under_way = np.int64(0)  # a step ends right now, and the next one hasn't begun
        free += _later_blocks(m, rules, s, step, ended + under_way)
        tokens, kv = under_way * step.tokens, step.kv_tokens + (ended + under_way - 1) * step.charged
    elif s.partial >= 0:
        kv += m.seat[s.partial].computed
    blocks = rules.num_blocks - free if rules.limited else np.int64(0)
    return s.running, _waiting(s), kv, blocks, tokens, s.done, s.preemptions
