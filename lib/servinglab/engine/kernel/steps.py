"""One pot under all of `servinglab.scheduling.vllm_rules`'s rules, compiled: one step at a time.

`stretches` jumps over stretches of steps, but knows nothing of priorities, thresholds for long prompts, prompts first,
asynchronous scheduling, prefix caching, and step times of one's own. This loop follows
`servinglab.scheduling.vllm_rules` and `reference.tokens` line by line, on arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from servinglab.base.compiled import FAR, HALF, NS, compiled, part, whole_numbers
from servinglab.engine.kernel.clients import send_next
from servinglab.engine.kernel.heap import pop, push
from servinglab.engine.kernel.prices import attended_pairs, base_fs

WORK = 1 << 24  # chunks served between two reports of progress, if no log is full before

RULES = whole_numbers(
    "clients seats budget chunked threshold adaptive by_priority longest full_prompt_gate whole_answer prompts_first"
    " watermark_blocks num_blocks block_size limited caching asynchronous per_piece asks"
)
"""Settings; `limited` says whether there is a pool, `per_piece` how many blocks a piece of a prompt fills, and `asks`
whether the length of each step is asked for."""

STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_ns",  # when the next step is decided
            "free_ns",  # when the youngest step ends
            "must_end",  # whether a step must end before another is decided
            "reached",  # whether the last call went as far as it was asked to
            "present_ns", "closed_ns",  # how far that was, and the last instant at which all that could begin has begun
            "known", "next", "pending",  # requests known; the first that hasn't come; clients about to send one
            "came_ns", "looked_ns",  # when the last one came; up to when the line's wait is counted
            "head", "tail",  # the line
            "running", "under_way", "oldest",  # requests; steps; which of the two steps is the oldest
            "lost", "changes", "logged",  # preemptions since a step; changes of who runs; those of the last row
            "free_blocks", "empty", "fresh",  # how many hold nothing but did; the first block that was never used
            "done", "answered",  # requests finished or turned away; how many of `answered` are written
            "preemptions",
            "rows", "late",  # what the last call has written
            "asking", "lasts_ns",  # 1 + which step's length is asked for, 0 for none's; the answer
        )
    ]
    + [("waited_ns", np.float64)]
)  # fmt: skip

REQUEST = whole_numbers("prompt output outputs in_flight computed room last_ns priority gone")
"""`room`: tokens that its blocks can hold. `outputs` have come back, those `in_flight` haven't."""

CACHED = whole_numbers("block_at piece_at own_at pieces kept")
"""With prefix caching: where in `store` a request's blocks, its prompt's pieces and its own contents stand; how many
pieces there are, and how many blocks are noted as full."""

BLOCK = whole_numbers("content users twin sooner later hole")
"""What a block holds; how many use it; the next with the same content; its neighbours among the unused; and an entry of
a stack of blocks that were used and hold nothing. Block 0 is none, and both ends of the list of the unused."""

CHUNK = whole_numbers("request tokens emits")

STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            "start_ns", "end_ns", "chunks", "tokens", "running", "prefill_tokens", "decode_tokens", "first_tokens",
            "kv_tokens", "prefill_pairs", "waiting", "blocks", "preempted", "changes",
        )
    ]
    + [("waited_ns", np.float64)]
)  # fmt: skip
"""A step under way; `changes`: how often those who run had changed when it was decided."""


class Memory(NamedTuple):
    """All that an engine remembers.

    Attributes
    ----------
    rules, state : arrays of one RULES, STATE
    sides : array of two SIDE
    arrival, think : columns of requests
        When each comes (-1: not known yet), and its client's pause before it.
    request, cached : arrays of REQUEST, CACHED
        One for each request; without prefix caching there is no CACHED.
    scheduled, first_token, finish, preemptions : columns of requests
        What becomes of them.
    pending : int64, two rows
        A heap of a closed loop's clients: when each sends its request, and which.
    answered : column of requests, or empty
        Who has finished, in order.
    line : two columns of requests
        Priorities and requests, from head to tail, or a heap if priorities count.
    running : column of seats
        Who runs.
    step, chunk : the two steps under way, and the chunks of each
    store : int64
        For each request its blocks, and what its prompt's pieces hold; for each content a block that holds it. What is
        held is named by the place of that block.
    block : array of BLOCK
    """

    rules: Any
    sides: Any
    arrival: Any
    think: Any
    request: Any
    cached: Any
    scheduled: Any
    first_token: Any
    finish: Any
    preemptions: Any
    pending: Any
    state: Any
    answered: Any
    line: Any
    running: Any
    step: Any
    chunk: Any
    store: Any
    block: Any


# ---- the line ----


@part
def _look(s: Any, at: int) -> None:
    """Count the time that the line has spent waiting up to here."""
    s.waited_ns += float(s.tail - s.head) * float(at - s.looked_ns)
    s.looked_ns = at


@part
def _join(m: Any, rules: Any, s: Any, r: int, preempted: bool) -> None:
    """A request joins the line; the preempted, who left it before, at its head."""
    if rules.by_priority:
        s.tail = push(m.line[0], m.line[1], s.tail, m.request[r].priority, r)
    elif preempted:
        s.head -= 1
        m.line[1, s.head] = r
    else:
        m.line[1, s.tail] = r
        s.tail += 1


@part
def _leave(m: Any, rules: Any, s: Any, at: int) -> None:
    """The request at this place of the line leaves it."""
    line = m.line
    if rules.by_priority:
        while at > 0:  # to the top of the heap, whoever is there
            up = (at - 1) >> 1
            line[0, at], line[1, at] = line[0, up], line[1, up]
            at = up
        s.tail = pop(line[0], line[1], s.tail)
    else:
        while at > s.head:
            line[1, at] = line[1, at - 1]
            at -= 1
        s.head += 1


@part
def _place(m: Any, s: Any, r: int) -> int:
    """Where in the line a request stands."""
    at = s.head
    while m.line[1, at] != r:
        at += 1
    return at


@part
def _answered(m: Any, rules: Any, s: Any, now: int) -> None:
    if rules.clients > 0:
        send_next(s, m.think, m.pending, now)


@part
def _come(m: Any, rules: Any, s: Any, until: int) -> int:
    """Requests that come up to and including `until` join the line; return when the next one comes."""
    while True:
        at = FAR
        if rules.clients > 0:
            if s.pending > 0:
                at = m.pending[0, 0]
        elif s.next < s.known:
            at = m.arrival[s.next]
        if at > until:
            return at
        _look(s, at)
        if rules.clients > 0:
            r = m.pending[1, 0]
            s.pending = pop(m.pending[0], m.pending[1], s.pending)
            m.arrival[r] = at
        else:
            r = s.next
            s.next += 1
        if m.request[r].output == 0:  # turned away
            s.done += 1
            _answered(m, rules, s, at)
        else:
            s.came_ns = at
            _join(m, rules, s, r, False)


# ---- the pool ----


@part
def _content(m: Any, rules: Any, r: int, k: int) -> int:
    """What a request's k-th full block holds: the place in `store` of the first block that holds it."""
    each, piece = m.cached[r], k // rules.per_piece
    if piece < each.pieces:
        return m.store[each.piece_at + piece] + k % rules.per_piece
    return each.own_at + k


@part
def _find(m: Any, rules: Any, r: int) -> int:
    """Note the blocks that hold a waiting request's contents, up to the first that none holds; return how many."""
    most = (m.request[r].prompt + m.request[r].outputs - 1) // rules.block_size
    for k in range(most):
        b = m.store[_content(m, rules, r, k)]
        if b == 0:
            return k
        m.store[m.cached[r].block_at + k] = b
    return most


@part
def _unlink(block: Any, b: int) -> None:
    """Take a block from the list of the unused."""
    block[block[b].sooner].later = block[b].later
    block[block[b].later].sooner = block[b].sooner


@part
def _share(m: Any, s: Any, r: int, hits: int) -> None:
    """Use blocks that are held already."""
    for k in range(hits):
        b = m.store[m.cached[r].block_at + k]
        if m.block[b].users == 0:
            _unlink(m.block, b)
            s.free_blocks -= 1
        m.block[b].users += 1
    m.cached[r].kept = hits


@part
def _evict(m: Any) -> int:
    """The block that is unused longest, which then holds nothing."""
    store, block = m.store, m.block
    b = block[0].later
    _unlink(block, b)
    content = block[b].content
    if store[content] == b:
        store[content] = block[b].twin
    else:
        before = store[content]
        while block[before].twin != b:
            before = block[before].twin
        block[before].twin = block[b].twin
    block[b].content = block[b].twin = 0
    return b


@part
def _take(m: Any, rules: Any, s: Any, r: int, count: int) -> None:
    """Take free blocks, first those that hold nothing, then the longest unused."""
    s.free_blocks -= count
    if rules.caching:
        at = m.cached[r].block_at + m.request[r].room // rules.block_size
        for i in range(count):
            if s.empty > 0:
                s.empty -= 1
                b = m.block[s.empty].hole
            elif s.fresh < len(m.block):
                b = s.fresh
                s.fresh += 1
            else:
                b = _evict(m)
            m.block[b].users = 1
            m.store[at + i] = b
    m.request[r].room += count * rules.block_size


@part
def _keep_full(m: Any, rules: Any, r: int, tokens: int) -> None:
    """Note what the blocks hold that these tokens fill; those before were noted in an earlier step."""
    store, block, each = m.store, m.block, m.cached[r]
    while (each.kept + 1) * rules.block_size <= tokens:
        content, b = _content(m, rules, r, each.kept), store[each.block_at + each.kept]
        block[b].content = content
        if store[content] == 0:
            store[content] = b
        else:
            last = store[content]
            while block[last].twin != 0:
                last = block[last].twin
            block[last].twin = b
        each.kept += 1


@part
def _give_back(m: Any, rules: Any, s: Any, r: int) -> None:
    """A request gives up its blocks, the tail first, so that a tail block is taken again before a head block."""
    block, blocks = m.block, m.request[r].room // rules.block_size
    m.request[r].room = 0
    if not rules.caching:
        s.free_blocks += blocks
        return
    for k in range(blocks - 1, -1, -1):
        b = m.store[m.cached[r].block_at + k]
        block[b].users -= 1
        if block[b].users == 0:
            s.free_blocks += 1
            if block[b].content == 0:
                block[s.empty].hole = b
                s.empty += 1
            else:
                last = block[0].sooner
                block[b].sooner, block[b].later = last, 0
                block[last].later = block[0].sooner = b


@part
def _hold(m: Any, rules: Any, s: Any, r: int, tokens: int) -> bool:
    """Take the blocks that the request needs for so many more tokens; False if there aren't enough."""
    each = m.request[r]
    tokens += each.computed
    if tokens > each.room:
        short = -(-(tokens - each.room) // rules.block_size)
        if short > s.free_blocks:
            return False
        _take(m, rules, s, r, short)
    if rules.caching:
        _keep_full(m, rules, r, min(tokens, each.prompt + each.outputs))
    return True


# ---- the next step ----


@part
def _threshold(rules: Any, s: Any) -> int:
    """The most tokens of one request in this step."""
    here = s.running + s.tail - s.head
    if rules.threshold == 0 or here <= 1:
        return FAR
    if rules.adaptive:
        return max(rules.threshold, rules.budget // here)
    return rules.threshold


@part
def _victim(m: Any, rules: Any, s: Any) -> int:
    """The place among the running of the one to preempt."""
    if not rules.by_priority:
        return s.running - 1
    least = 0
    for at in range(1, s.running):
        r, other = m.running[at], m.running[least]
        if (m.request[r].priority, r) > (m.request[other].priority, other):
            least = at
    return least


@part
def _stop_running(m: Any, s: Any, at: int) -> None:
    """Whoever runs at this place doesn't any more."""
    s.running -= 1
    s.changes += 1
    for i in range(at, s.running):
        m.running[i] = m.running[i + 1]


@part
def _preempt(m: Any, rules: Any, s: Any, chunk: Any, step: Any, at: int) -> Any:
    """The running request at this place loses all blocks; return the tokens that it gives back to the step."""
    r, tokens = m.running[at], np.int64(0)
    _stop_running(m, s, at)
    for i in range(step.chunks):
        if chunk[i].request == r:
            tokens = chunk[i].tokens
            step.chunks -= 1
        if tokens > 0 and i < step.chunks:
            chunk[i].request, chunk[i].tokens = chunk[i + 1].request, chunk[i + 1].tokens
    _give_back(m, rules, s, r)
    m.request[r].computed = 0
    m.preemptions[r] += 1
    s.preemptions += 1
    s.lost += 1
    _join(m, rules, s, r, True)
    return tokens


@part
def _run(m: Any, rules: Any, s: Any, chunk: Any, step: Any, budget: int, prompts: bool) -> int:
    """Give those who run their next tokens (or only those with unfinished prompts); return the budget left."""
    threshold, longest, caching, block_size = _threshold(rules, s), rules.longest, rules.caching, rules.block_size
    i, chunks, count = 0, step.chunks, s.running
    while i < count and budget > 0:
        r = m.running[i]
        each = m.request[r]
        computed, outputs = each.computed, each.outputs + each.in_flight
        tokens = each.prompt + outputs - computed
        if prompts and tokens == 1:
            i += 1
            continue
        tokens = min(tokens, threshold, budget, longest - 1 - computed)
        if tokens <= 0 or outputs >= each.output:
            i += 1
            continue
        held = computed + tokens <= each.room
        if caching and held:
            held = min(computed + tokens, each.prompt + each.outputs) < (m.cached[r].kept + 1) * block_size
        while not held and not _hold(m, rules, s, r, tokens):
            at = _victim(m, rules, s)
            itself = m.running[at] == r
            step.chunks = chunks
            budget += _preempt(m, rules, s, chunk, step, at)
            i -= chunks - step.chunks
            chunks = step.chunks
            count = s.running
            if itself:
                return budget
        chunk[chunks].request, chunk[chunks].tokens = r, tokens
        chunks += 1
        budget -= tokens
        i += 1
    step.chunks = chunks
    return budget


@part
def _admit(m: Any, rules: Any, s: Any, chunk: Any, step: Any, budget: int) -> None:
    """Let the head of the line in, while there are seats, tokens and blocks for it."""
    threshold, block_size = _threshold(rules, s), rules.block_size
    while s.tail > s.head and budget > 0 and s.running < rules.seats:
        r = m.line[1, s.head]
        each = m.request[r]
        known = each.prompt + each.outputs
        hits, spare = 0, s.free_blocks - (rules.watermark_blocks if s.running > 0 else 0)
        if rules.caching:
            hits = _find(m, rules, r)
            for k in range(hits):
                spare -= m.block[m.store[m.cached[r].block_at + k]].users == 0
        start = hits * block_size
        tokens = min(known - start, threshold)
        if not rules.chunked and tokens > budget:
            break
        tokens = min(tokens, budget)
        wanted = start + tokens
        if rules.whole_answer:
            wanted = each.prompt + each.output - 1
        elif rules.full_prompt_gate:
            wanted = max(wanted, min(known, rules.longest))
        if -(-wanted // block_size) - hits > spare:
            break
        _leave(m, rules, s, s.head)
        if rules.caching:
            _share(m, s, r, hits)
        each.computed = each.room = start
        if rules.whole_answer:
            _take(m, rules, s, r, -(-wanted // block_size))
        _hold(m, rules, s, r, tokens)
        m.running[s.running] = r
        s.running += 1
        s.changes += 1
        chunk[step.chunks].request, chunk[step.chunks].tokens = r, tokens
        step.chunks += 1
        budget -= tokens


@part
def _decide(m: Any, rules: Any, s: Any, chunk: Any, step: Any) -> None:
    """Who is in the next step: those who run first, then the head of the line; or the other way round."""
    step.chunks, lost, budget = 0, s.lost, max(rules.budget, s.running)
    prompts_first = rules.prompts_first > 0
    left = _run(m, rules, s, chunk, step, budget, prompts_first)
    if s.lost == lost:
        _admit(m, rules, s, chunk, step, left)
    if prompts_first and step.chunks == 0:
        _run(m, rules, s, chunk, step, budget, False)


@part
def _begin(m: Any, rules: Any, s: Any, chunk: Any, step: Any) -> None:
    """The step begins as soon as the one before it ends."""
    start, chunks, all_tokens = max(s.now_ns, s.free_ns), step.chunks, np.int64(0)
    prefill, pairs, kv, first, emitting = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(chunks):
        r, tokens = chunk[i].request, chunk[i].tokens
        each = m.request[r]
        computed, prompt = each.computed, each.prompt
        if tokens > 1 or computed < prompt:
            prefill += tokens
            pairs += attended_pairs(tokens, computed)
        all_tokens += tokens
        computed += tokens
        each.computed = computed
        kv += computed
        outputs = each.outputs + each.in_flight
        emits = computed >= prompt + outputs
        chunk[i].emits = emits
        if emits:
            emitting += 1
            first += outputs == 0
            each.in_flight += 1
        if outputs == 0 and m.scheduled[r] < 0:
            m.scheduled[r] = start
    lasts = np.int64(1)
    for i in range(len(m.sides)):
        fs = base_fs(m.sides[i], chunks, prefill, pairs) + m.sides[i].per_kv_token * kv
        lasts = max(lasts, (fs + HALF) // NS)
    s.lasts_ns = lasts
    step.start_ns, step.running, step.prefill_tokens, step.kv_tokens = start, s.running, prefill, kv
    step.prefill_pairs = pairs
    step.first_tokens, step.decode_tokens, step.waiting = first, emitting - first, s.tail - s.head
    step.blocks, step.preempted, step.changes = rules.num_blocks - s.free_blocks, s.lost, s.changes
    step.tokens = all_tokens
    step.waited_ns, s.waited_ns = s.waited_ns, 0.0
    s.lost = 0


# ---- a step ends ----


@part
def _end(m: Any, rules: Any, s: Any, chunk: Any, step: Any, late: Any) -> None:
    """A step ends: tokens come out, the finished leave."""
    start, now, caching, block_size = step.start_ns, step.end_ns, rules.caching, rules.block_size
    s.now_ns = now
    left = False
    for i in range(step.chunks):
        r = chunk[i].request
        each = m.request[r]
        if not chunk[i].emits or each.gone:
            continue
        each.outputs += 1
        each.in_flight -= 1
        last = each.last_ns
        if last < 0:
            m.first_token[r] = now
        elif last != start:
            step.decode_tokens -= 1
            late[s.late] = now - last
            s.late += 1
        each.last_ns = now
        if each.outputs == each.output:
            m.finish[r] = now
            s.done += 1
            s.changes += 1
            if len(m.answered) > 0:
                m.answered[s.answered] = r
                s.answered += 1
            if each.computed > 0:
                left = True
            else:  # preempted while its last token was under way
                _leave(m, rules, s, _place(m, s, r))
            _give_back(m, rules, s, r)
            _answered(m, rules, s, now)
        elif caching and each.computed > 0:  # not preempted meanwhile: the new token may have filled a block
            tokens = min(each.computed, each.prompt + each.outputs)
            if tokens >= (m.cached[r].kept + 1) * block_size:
                _keep_full(m, rules, r, tokens)
    if left:
        count = 0
        for i in range(s.running):
            r = m.running[i]
            if m.finish[r] < 0:
                m.running[count] = r
                count += 1
        s.running = count


@part
def _write(rules: Any, s: Any, step: Any, log: Any) -> None:
    """Log a step; it lengthens the row before if nothing but tokens came or went since."""
    plain = step.decode_tokens == step.chunks and step.prefill_tokens == 0 and rules.asks == 0
    blocks = step.blocks if rules.limited else 0
    if s.rows > 0 and plain and s.logged == step.changes:
        before = log[s.rows - 1]
        same = before["charged"] == step.chunks and before["waiting"] == step.waiting
        if same and s.came_ns <= before["start_ns"]:
            before["end_ns"] = step.end_ns
            before["steps"] += 1
            before["kv_blocks"] = blocks
            s.waited_ns += step.waited_ns
            step.waited_ns = 0.0
            return
    s.logged = step.changes if plain else -1
    row = log[s.rows]
    row["start_ns"] = step.start_ns
    row["end_ns"] = step.end_ns
    row["pot"] = 0
    row["steps"] = 1
    row["running"] = step.running
    row["charged"] = step.chunks
    row["prefill_tokens"] = step.prefill_tokens
    row["decode_tokens"] = step.decode_tokens
    row["first_tokens"] = step.first_tokens
    row["kv_tokens"] = step.kv_tokens
    row["prefill_pairs"] = step.prefill_pairs
    row["waiting"] = step.waiting
    row["waited_request_s"] = step.waited_ns / 1e9
    row["kv_blocks"] = blocks
    row["preempted"] = step.preempted
    step.waited_ns = 0.0
    s.rows += 1


# ---- time passes ----


@part
def _stop(s: Any, until: int, begins: bool) -> None:
    """It went as far as it was asked to."""
    s.reached = 1
    s.present_ns = until if until < FAR else s.now_ns
    if begins:
        s.closed_ns = s.present_ns


@compiled
def advance(m: Any, log: Any, late: Any, until: int, begins: bool) -> None:
    """Serve on, up to the steps that end and the requests that come at `until`, or until a log is full.

    `begins`: what can begin at `until` begins, too. `late` gets the gaps before tokens whose request got none in the
    step before. The state says how many rows and gaps were written, and whether `until` was `reached`. While it is
    `asking`, it waits to be called again with the nanoseconds in `lasts_ns` that the youngest step takes, and with the
    same logs.
    """
    rules, s, work = m.rules[0], m.state[0], 0
    if not s.asking:
        s.rows = s.late = 0
    s.reached = 0
    while s.asking or (s.rows < len(log) and s.late + len(m.running) <= len(late) and work < WORK):
        if s.must_end:
            step, chunk = m.step[s.oldest], m.chunk[s.oldest]
            if step.end_ns > until:
                _come(m, rules, s, until)
                _stop(s, until, begins)
                return
            _come(m, rules, s, step.end_ns - 1)
            _look(s, step.end_ns)
            _end(m, rules, s, chunk, step, late)
            _write(rules, s, step, log)
            s.oldest ^= 1
            s.under_way -= 1
            s.must_end = 0
        slot = (s.oldest + s.under_way) & 1
        step, chunk, lost, next_ns = m.step[slot], m.chunk[slot], s.lost, FAR
        if not s.asking:
            next_ns = _come(m, rules, s, s.now_ns)
            if s.now_ns > until or (s.now_ns == until and not begins):
                _stop(s, until, begins)
                return
            _decide(m, rules, s, chunk, step)
            lost = s.lost - lost
            if step.chunks > 0:
                _begin(m, rules, s, chunk, step)
                if rules.asks:
                    s.asking = 1 + slot
                    return
        emits = False
        if step.chunks > 0:
            s.asking = 0
            step.end_ns = s.free_ns = step.start_ns + s.lasts_ns
            emits = step.first_tokens + step.decode_tokens > 0
            s.under_way += 1
            work += step.chunks
        if s.under_way > 0:
            s.must_end = not rules.asynchronous or s.under_way > 1 or not emits
        elif lost == 0:
            if next_ns > until or next_ns == FAR:
                if until < FAR:
                    s.now_ns = until
                _stop(s, until, begins)
                return
            s.now_ns = next_ns


# ---- between two calls ----


@compiled
def abort(m: Any, r: int) -> None:
    """A request that has come and isn't done is given up: what a step under way brings it is dropped."""
    rules, s = m.rules[0], m.state[0]
    _look(s, s.present_ns)
    for at in range(s.running):
        if m.running[at] == r:
            _stop_running(m, s, at)
            _give_back(m, rules, s, r)
            m.request[r].gone = 1
            return
    _leave(m, rules, s, _place(m, s, r))
    m.request[r].gone = 1


@compiled
def next_ns(m: Any) -> int:
    """When the oldest step under way ends, or the next request comes that is known; FAR: never."""
    rules, s = m.rules[0], m.state[0]
    if s.must_end:
        return m.step[s.oldest].end_ns
    return _come(m, rules, s, s.present_ns)


@compiled
def view(m: Any) -> tuple[Any, ...]:
    """As of `stretches.view`; of two steps under way, the older counts."""
    rules, s = m.rules[0], m.state[0]
    blocks = rules.num_blocks - s.free_blocks if rules.limited else np.int64(0)
    tokens, kv = np.int64(0), np.int64(0)
    if s.under_way > 0:
        tokens, kv = m.step[s.oldest].tokens, m.step[s.oldest].kv_tokens
    else:
        for i in range(s.running):
            kv += m.request[m.running[i]].computed
    return s.running, s.tail - s.head, kv, blocks, tokens, s.done, s.preemptions
