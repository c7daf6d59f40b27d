"""Pots that share one line, whole stretches of steps at once: the rules of `reference.pots`, compiled.

Between two changes of its members a pot's steps form a stretch whose length in nanoseconds has a closed form. The loop
jumps from one instant to the next at which anything changes: a stretch's end, an arrival, the end of a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from servinglab.base.compiled import FAR, compiled, part, whole_numbers
from servinglab.engine.kernel.clients import send_next
from servinglab.engine.kernel.heap import pop, push
from servinglab.engine.kernel.prices import attended_pairs, base_fs
from servinglab.engine.kernel.sums import roof_ns, steps_to

NOBODY = -1
GONE = -2  # when a request finishes that was given up

RULES = whole_numbers("clients completes streaming padded seats window_ns full_price cooks_last scaled")
"""Settings; `completes`: a batch is cooked to completion. `window_ns` is -1 for static batching."""

STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_ns",  # up to when everything has happened, but for what can begin then
            "open",  # whether something can still begin then
            "reached",  # whether the last call went as far as it was asked to
            "looked_ns",  # up to when the line's waiting has been counted
            "present_ns", "closed_ns",  # how far that was, and the last instant at which all that could begin has begun
            "known", "next", "pending",  # requests known; the first that hasn't come; clients about to send one
            "more_to_come",  # whether others may come who aren't known
            "head", "tail",  # the line: `order` from head to tail
            "busy", "fresh", "freed",  # pots: with members; the first that never had any; in the heap of empty ones
            "cooking", "ready", "begun",  # pots: in the heap of stretches; between two steps; that began now
            "done", "answered",  # requests finished; how many of `answered` are written
            "rows",  # what the last call has written
        )
    ]
    + [("waited_ns", np.float64)]
)  # fmt: skip

POT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "step", "members", "alive",  # steps done of the batch; who hasn't got all; who still lacks tokens
            "first", "batch", "seats", "longest_prompt",  # the batch's place in `order`, its size, what it pays for
            "kv_tokens",  # held by those alive
            "list",  # those alive, by the step at which they leave
            "new_from", "new_to",  # who is new, in `order`
            "end_ns",  # of the stretch under way; -1: none
            "start_ns", "steps", "running", "charged", "prefill_tokens", "decode_tokens", "first_tokens", "read_tokens",
            "prefill_pairs", "base_fs", "base_2_fs", "waiting",
        )
    ]
    + [("waited_ns", np.float64)]
)  # fmt: skip
"""A pot; from `start_ns` on, its stretch. `read_tokens` are read by the stretch's first step."""


class Memory(NamedTuple):
    """All that an engine remembers.

    Attributes
    ----------
    rules, state : arrays of one RULES, STATE
    sides : array of two SIDE
    arrival, prompt, output, scale, think : columns of requests
        When each comes (-1: not known yet), its lengths, what it multiplies a step's time by, its client's pause.
    scheduled, first_token, finish : columns of requests
        What becomes of them.
    pending : int64, two rows
        A heap of a closed loop's clients: when each sends its request, and which.
    answered : column of requests, or empty
        Who has finished, in order.
    order, after, leaves : columns of requests
        Who came, in order; who leaves a request's pot next; after which of the batch's steps it leaves.
    pot : array of POT
    ends, place : columns of pots
        A heap of those with a stretch under way, by its end; where each stands in it.
    freed : two columns of pots
        A heap of the empty ones that had members.
    ready, begun : columns of pots
    """

    rules: Any
    sides: Any
    arrival: Any
    prompt: Any
    output: Any
    scale: Any
    think: Any
    scheduled: Any
    first_token: Any
    finish: Any
    pending: Any
    state: Any
    answered: Any
    order: Any
    after: Any
    leaves: Any
    pot: Any
    ends: Any
    place: Any
    freed: Any
    ready: Any
    begun: Any


# ---- the heap of stretches' ends ----


@part
def _sooner(pot: Any, p: int, other: int) -> bool:
    return pot[p].end_ns < pot[other].end_ns or (pot[p].end_ns == pot[other].end_ns and p < other)


@part
def _rise(m: Any, i: int) -> None:
    """Let the pot at place i of the heap of ends rise to where it belongs: by end, then by number."""
    pot, heap, place = m.pot, m.ends, m.place
    p = heap[i]
    while i > 0:
        up = (i - 1) >> 1
        above = heap[up]
        if _sooner(pot, above, p):
            break
        heap[i], place[above] = above, i
        i = up
    heap[i], place[p] = p, i


@part
def _take_first(m: Any, s: Any) -> int:
    """Remove the pot whose stretch ends first from the heap, and return it."""
    pot, heap, place = m.pot, m.ends, m.place
    first = heap[0]
    s.cooking -= 1
    size = s.cooking
    p, i = heap[size], 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        c, other = heap[child], child + 1
        if other < size and _sooner(pot, heap[other], c):
            child, c = other, heap[other]
        if _sooner(pot, p, c):
            break
        heap[i], place[c] = c, i
        i = child
    heap[i], place[p] = p, i
    return first


# ---- stretches that end ----


@part
def _finish(m: Any, rules: Any, s: Any, r: int, now: int) -> None:
    m.finish[r] = now
    s.done += 1
    if len(m.answered) > 0:
        m.answered[s.answered] = r
        s.answered += 1
    if rules.clients > 0:
        send_next(s, m.think, m.pending, now)


@part
def _write(q: Any, p: int, row: Any) -> None:
    """Log the stretch that ends."""
    row["start_ns"] = q.start_ns
    row["end_ns"] = q.end_ns
    row["pot"] = p
    row["steps"] = q.steps
    row["running"] = q.running
    row["charged"] = q.charged
    row["prefill_tokens"] = q.prefill_tokens
    row["decode_tokens"] = q.decode_tokens
    row["first_tokens"] = q.first_tokens
    row["kv_tokens"] = q.read_tokens
    row["prefill_pairs"] = q.prefill_pairs
    row["waiting"] = q.waiting
    row["waited_request_s"] = q.waited_ns / 1e9
    row["kv_blocks"] = 0
    row["preempted"] = 0


@part
def _end(m: Any, rules: Any, s: Any, p: int, now: int) -> None:
    """A pot's stretch ends: tokens come out; who has all leaves if the scheduler lets them."""
    q, finish = m.pot[p], m.finish
    q.end_ns = NOBODY
    q.step += q.steps
    q.kv_tokens += q.alive * q.steps
    if rules.streaming:
        for i in range(q.new_from, q.new_to):
            if finish[m.order[i]] != GONE:
                m.first_token[m.order[i]] = now
    q.new_from = q.new_to
    while q.list >= 0 and m.leaves[q.list] == q.step:
        r = q.list
        q.list = m.after[r]
        q.alive -= 1
        q.kv_tokens -= m.prompt[r] + m.output[r]
        if rules.streaming and finish[r] != GONE:
            q.members -= 1
            _finish(m, rules, s, r, now)
    if q.alive > 0:
        i = s.ready
        while i > 0 and m.ready[i - 1] > p:
            m.ready[i] = m.ready[i - 1]
            i -= 1
        m.ready[i] = p
        s.ready += 1
        return
    if not rules.streaming:
        for i in range(q.first, q.first + q.batch):
            if finish[m.order[i]] != GONE:
                m.first_token[m.order[i]] = now
                _finish(m, rules, s, m.order[i], now)
        q.members = 0
    s.busy -= 1
    s.freed = push(m.freed[0], m.freed[1], s.freed, p, 0)


# ---- requests that come ----


@part
def _come(m: Any, rules: Any, s: Any, now: int) -> None:
    """Who comes now joins the line."""
    if rules.clients > 0:
        while s.pending > 0 and m.pending[0, 0] == now:
            r = m.pending[1, 0]
            s.pending = pop(m.pending[0], m.pending[1], s.pending)
            m.arrival[r] = now
            m.order[s.tail] = r
            s.tail += 1
    else:
        while s.next < s.known and m.arrival[s.next] == now:
            if m.finish[s.next] != GONE:
                m.order[s.tail] = s.next
                s.tail += 1
            s.next += 1


@part
def _steps_past(m: Any, q: Any, gap: int) -> int:
    """The fewest steps of a pot's stretch that last at least `gap` nanoseconds."""
    per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
    return steps_to(q.base_fs, per_kv, q.base_2_fs, per_kv_2, q.read_tokens, q.charged, q.steps, gap)


@part
def _cut(m: Any, s: Any, p: int, gap: int) -> None:
    """A pot's stretch ends with the first of its steps that lasts it at least `gap` nanoseconds."""
    q = m.pot[p]
    steps = _steps_past(m, q, gap)
    if steps < q.steps:
        per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
        q.steps = steps
        q.end_ns = q.start_ns + roof_ns(q.base_fs, per_kv, q.base_2_fs, per_kv_2, q.read_tokens, q.charged, steps)
        _rise(m, m.place[p])


@part
def _make_way(m: Any, rules: Any, s: Any) -> None:
    """If some find no empty pot, a pot with a free seat ends its stretch at the first step that ends now or later."""
    if rules.completes or s.tail - s.head <= (len(m.pot) - s.busy) * rules.seats:
        return
    for p in range(s.fresh):
        q = m.pot[p]
        if q.end_ns > s.now_ns and q.members < rules.seats and q.steps > 1:
            _cut(m, s, p, s.now_ns - q.start_ns + (s.closed_ns == s.now_ns))


# ---- pots that begin a step ----


@part
def _places(m: Any, rules: Any, s: Any, now: int) -> int:
    """How many join an empty pot."""
    line = s.tail - s.head
    if line == 0 or s.busy == len(m.pot):
        return 0
    if line >= rules.seats or not rules.completes:
        return min(line, rules.seats)
    if rules.window_ns >= 0:
        return line if now >= m.arrival[m.order[s.head]] + rules.window_ns else 0
    if not rules.cooks_last or s.more_to_come:
        return 0
    unsent = s.next < s.known
    more = s.pending > 0 or (unsent and s.busy > 0) if rules.clients > 0 else unsent
    return 0 if more else line


@part
def _open_pot(m: Any, s: Any) -> int:
    """The empty pot with the smallest number."""
    if s.freed > 0:
        p = m.freed[0, 0]
        s.freed = pop(m.freed[0], m.freed[1], s.freed)
    else:
        p = s.fresh
        s.fresh += 1
    s.busy += 1
    q = m.pot[p]
    q.step = q.members = q.alive = q.kv_tokens = 0
    q.list = NOBODY
    q.first = s.head
    return p


@part
def _let_in(m: Any, rules: Any, s: Any, q: Any, places: int, now: int) -> None:
    """New members; those alive stand in a list by the step at which they leave."""
    order, after, leaves, prompt = m.order, m.after, m.leaves, m.prompt
    q.new_from, q.new_to = s.head, s.head + places
    read, longest, pairs = np.int64(0), np.int64(0), np.int64(0)
    for i in range(q.new_from, q.new_to):
        r = order[i]
        m.scheduled[r] = now
        read += prompt[r]
        pairs += attended_pairs(prompt[r], 0)
        longest = max(longest, prompt[r])
        leaves[r] = q.step + m.output[r]
        if q.list < 0 or leaves[q.list] > leaves[r]:
            after[r] = q.list
            q.list = r
        else:
            at = q.list
            while after[at] >= 0 and leaves[after[at]] <= leaves[r]:
                at = after[at]
            after[r] = after[at]
            after[at] = r
    s.head += places
    q.members += places
    q.alive += places
    q.kv_tokens += read
    if rules.completes and places > 0:
        q.batch = places
        q.seats = rules.seats if rules.full_price else places
        q.longest_prompt = longest
    q.prefill_tokens, q.prefill_pairs = read, pairs


@part
def _largest_scale(m: Any, rules: Any, q: Any) -> float:
    """Of everyone in the pot."""
    largest = 0.0
    if rules.completes:
        for i in range(q.first, q.first + q.batch):
            largest = max(largest, m.scale[m.order[i]])
    else:
        r = q.list
        while r >= 0:
            largest = max(largest, m.scale[r])
            r = m.after[r]
    return largest


@part
def _begin_stretch(m: Any, rules: Any, s: Any, p: int, new: int, now: int) -> None:
    """One step where someone is new, else up to the next member's last token."""
    q = m.pot[p]
    q.charged, q.read_tokens = q.alive, q.kv_tokens
    if rules.completes and rules.padded:
        q.charged = q.seats
        padded = q.seats if new > 0 else 0
        q.prefill_tokens, q.prefill_pairs = padded * q.longest_prompt, padded * attended_pairs(q.longest_prompt, 0)
        q.read_tokens = q.seats * (q.longest_prompt + q.step)
    q.start_ns = now
    q.steps = 1 if new > 0 else m.leaves[q.list] - q.step
    q.running = q.members
    q.first_tokens = new
    q.decode_tokens = q.alive - new
    base = base_fs(m.sides[0], q.charged, q.prefill_tokens, q.prefill_pairs)
    base_2 = base_fs(m.sides[1], q.charged, q.prefill_tokens, q.prefill_pairs)
    if rules.scaled:
        scale = _largest_scale(m, rules, q)
        base, base_2 = np.int64(np.rint(scale * base)), np.int64(np.rint(scale * base_2))
    q.base_fs, q.base_2_fs = base, base_2
    per_kv, per_kv_2 = m.sides[0].per_kv_token, m.sides[1].per_kv_token
    q.end_ns = now + roof_ns(base, per_kv, base_2, per_kv_2, q.read_tokens, q.charged, q.steps)
    q.waited_ns = s.waited_ns
    s.waited_ns = 0.0
    m.ends[s.cooking] = p
    _rise(m, s.cooking)
    s.cooking += 1
    m.begun[s.begun] = p
    s.begun += 1


@part
def _begin(m: Any, rules: Any, s: Any, now: int) -> None:
    """Pots that can begin a step now do: empty ones first, then those between two steps."""
    _look(s, now)
    s.begun, i, empty = 0, 0, True
    while True:
        places = _places(m, rules, s, now) if empty else 0
        if places > 0:
            p = _open_pot(m, s)
        else:
            empty = False
            if i == s.ready:
                break
            p = m.ready[i]
            i += 1
            if not rules.completes:
                places = max(0, min(s.tail - s.head, rules.seats - m.pot[p].members))
        _let_in(m, rules, s, m.pot[p], places, now)
        _begin_stretch(m, rules, s, p, places, now)
    s.ready = 0
    for i in range(s.begun):
        m.pot[m.begun[i]].waiting = s.tail - s.head


# ---- time passes ----


@part
def _next(m: Any, rules: Any, s: Any) -> int:
    """When something happens next; the end of a window only if all that can begin now has begun."""
    at = FAR
    if s.cooking > 0:
        at = m.pot[m.ends[0]].end_ns
    if rules.clients > 0:
        if s.pending > 0:
            at = min(at, m.pending[0, 0])
    elif s.next < s.known:
        at = min(at, m.arrival[s.next])
    if rules.window_ns >= 0 and not s.open and s.tail > s.head and s.busy < len(m.pot):
        at = min(at, m.arrival[m.order[s.head]] + rules.window_ns)
    return at


@part
def _look(s: Any, at: int) -> None:
    """Count the time that the line has spent waiting up to here."""
    s.waited_ns += float(s.tail - s.head) * float(at - s.looked_ns)
    s.looked_ns = at


@compiled
def advance(m: Any, log: Any, until: int, begins: bool) -> None:
    """Serve on, up to the steps that end and the requests that come at `until`, or until the log is full.

    `begins`: what can begin at `until` begins, too. The state says how many rows were written, and whether `until` was
    `reached`.
    """
    rules, s = m.rules[0], m.state[0]
    s.rows = s.reached = 0
    while True:
        at = _next(m, rules, s)
        if s.open and at > s.now_ns:
            if s.now_ns > until or (s.now_ns == until and not begins):
                break
            _begin(m, rules, s, s.now_ns)
            s.open = 0
            continue
        if at > until or at == FAR:
            break
        if s.rows + s.busy + 1 > len(log):
            return
        _look(s, at)
        s.now_ns = at
        while s.cooking > 0 and m.pot[m.ends[0]].end_ns == at:
            p = _take_first(m, s)
            _write(m.pot[p], p, log[s.rows])
            s.rows += 1
            _end(m, rules, s, p, at)
        before = s.tail
        _come(m, rules, s, at)
        if s.tail > before:
            _make_way(m, rules, s)
        s.open = 1
    s.reached = 1
    if until < FAR:
        s.now_ns = until
    s.present_ns = s.now_ns
    if begins:
        s.closed_ns = s.now_ns


# ---- between two calls ----


@compiled
def reopen(m: Any) -> None:
    """Rules have changed: pots with a free seat end their stretches, and what can begin now may begin."""
    rules, s = m.rules[0], m.state[0]
    _make_way(m, rules, s)
    s.open = 1


@compiled
def abort(m: Any, r: int) -> None:
    """A request that has come and isn't done is given up; all that can begin at the present has begun."""
    rules, s = m.rules[0], m.state[0]
    m.finish[r] = GONE
    _look(s, s.now_ns)
    for at in range(s.head, s.tail):
        if m.order[at] == r:
            for i in range(at, s.tail - 1):
                m.order[i] = m.order[i + 1]
            s.tail -= 1
            return
    p, there = -1, False
    while not there:
        p += 1
        q = m.pot[p]
        if q.end_ns < 0:
            continue
        if rules.completes:
            for i in range(q.first, q.first + q.batch):
                there = there or m.order[i] == r
        else:
            at = q.list
            while at >= 0 and not there:
                there = at == r
                at = m.after[at]
    q = m.pot[p]
    q.members -= 1
    _cut(m, s, p, s.present_ns - q.start_ns + 1)
    at, before = q.list, NOBODY
    while at >= 0 and at != r:
        at, before = m.after[at], at
    if at < 0:
        return  # it had all its tokens, and waited for the batch
    if before >= 0:
        m.after[before], m.after[r] = m.after[r], q.list
        q.list = r
    ends = q.step + q.steps
    q.kv_tokens += m.leaves[r] - ends
    m.leaves[r] = ends


@compiled
def next_ns(m: Any) -> int:
    """When a stretch or a window ends, or the next request comes that is known; FAR: never."""
    return _next(m, m.rules[0], m.state[0])


@compiled
def view(m: Any) -> tuple[Any, ...]:
    """As of `stretches.view`; there are no blocks and no preemptions."""
    s = m.state[0]
    running, kv, tokens = np.int64(0), np.int64(0), np.int64(0)
    for p in range(s.fresh):
        q = m.pot[p]
        if q.end_ns >= 0:
            running += q.members
            ended, under_way = np.int64(0), True
            if q.steps > 1:
                gap = s.present_ns - q.start_ns
                ended = _steps_past(m, q, gap + 1) - 1
                if s.closed_ns < s.present_ns and ended > 0 and _steps_past(m, q, gap) == ended:
                    under_way = False  # a step ends right now, and the next one hasn't begun
            if under_way:
                kv += q.read_tokens + ended * q.charged
                tokens += q.prefill_tokens + q.decode_tokens
            else:
                kv += q.kv_tokens + ended * q.alive
    for i in range(s.ready):
        q = m.pot[m.ready[i]]
        running += q.members
        kv += q.kv_tokens
    return running, s.tail - s.head, kv, np.int64(0), tokens, s.done, np.int64(0)
