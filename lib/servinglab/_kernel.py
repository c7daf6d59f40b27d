"""The engine's inner loop, for numba: whole stretches of steps at once.

All of it is in this one file, because numba's on-disk cache is keyed on the file that holds the compiled function and
wouldn't notice a change elsewhere.

Between two changes of its members a pot's steps form a stretch whose length in nanoseconds has a closed form. The loop
jumps from one instant to the next at which anything changes: a stretch's end, an arrival, the end of a window. State
lives in arrays so that the loop can stop when its log is full and go on later.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

try:
    from numba import njit as njit  # for _rules_kernel, too
except ImportError:  # pragma: no cover - the tests run it in a child process without numba
    warnings.warn("numba isn't installed: the simulator runs in plain Python, about 100 times slower", stacklevel=2)

    def njit(**_options: Any) -> Any:
        return lambda function: function


FAR = 2**62  # later than any instant
NS = 1_000_000  # femtoseconds in a nanosecond
HALF = NS // 2
FEW = 24  # steps up to which adding one by one beats the closed form

# state: what the loop remembers between two calls, beside the arrays
NOW, NEXT, HEAD, TAIL, BUSY, DONE, FREED, FRESH, COOKING, PENDING, BEFORE, STATE = range(12)

# columns of one pot
(STEP, MEMBERS, ALIVE, FIRST, SEATS, BATCH, LONGEST_PROMPT, KV, LIST, NEW_FROM, NEW_TO, EVENT) = range(12)
(S_START, S_STEPS, S_RUNNING, S_CHARGED, S_PREFILL, S_DECODE, S_FIRST, S_KV, S_BASE, S_BASE_2, S_WAITING) = range(
    12, 23
)
POT_COLUMNS = 23

# a row of the log, for both loops; the names are those of result.Segments
LOG = np.dtype(
    [(name, np.int64) for name in ("start_ns", "end_ns", "kv_tokens", "prefill_tokens")]
    + [("waited_request_s", np.float64)]
    + [
        (name, np.int32)
        for name in (
            "pot", "steps", "running", "charged", "decode_tokens", "first_tokens", "waiting", "kv_blocks",
            "preempted",
        )
    ]
)  # fmt: skip


@njit(cache=True)
def _push(key: Any, value: Any, size: int, k: int, v: int) -> int:
    """Push (k, v) onto a binary heap ordered by key, then value; return the new size."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if key[up] < k or (key[up] == k and value[up] <= v):
            break
        key[i], value[i] = key[up], value[up]
        i = up
    key[i], value[i] = k, v
    return size + 1


@njit(cache=True)
def _pop(key: Any, value: Any, size: int) -> int:
    """Remove the heap's top, which the caller has read; return the new size."""
    size -= 1
    k, v = key[size], value[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (key[other] < key[child] or (key[other] == key[child] and value[other] < value[child])):
            child = other
        if k < key[child] or (k == key[child] and v <= value[child]):
            break
        key[i], value[i] = key[child], value[child]
        i = child
    key[i], value[i] = k, v
    return size


@njit(cache=True)
def _rise(pot: Any, heap: Any, place: Any, i: int) -> None:
    """Let the pot at place i of the heap of ends rise to where it belongs: by end, then by number."""
    p = heap[i]
    while i > 0:
        up = (i - 1) >> 1
        above = heap[up]
        if pot[above, EVENT] < pot[p, EVENT] or (pot[above, EVENT] == pot[p, EVENT] and above < p):
            break
        heap[i], place[above] = above, i
        i = up
    heap[i], place[p] = p, i


@njit(cache=True)
def _take_first(pot: Any, heap: Any, place: Any, size: int) -> None:
    """Remove the pot whose stretch ends first from a heap of `size` pots."""
    p = heap[size - 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size - 1:
            break
        c, other = heap[child], child + 1
        if other < size - 1:
            o = heap[other]
            if pot[o, EVENT] < pot[c, EVENT] or (pot[o, EVENT] == pot[c, EVENT] and o < c):
                child, c = other, o
        if pot[p, EVENT] < pot[c, EVENT] or (pot[p, EVENT] == pot[c, EVENT] and p < c):
            break
        heap[i], place[c] = c, i
        i = child
    heap[i], place[p] = p, i


@njit(cache=True)
def _span_ns(base: int, per_kv: int, kv: int, growth: int, steps: int) -> int:
    """Nanoseconds of `steps` steps: Σ ⌊(base + per_kv·(kv + i·growth) + ½ ns)/1 ns⌋, in femtoseconds inside."""
    b = base + per_kv * kv + HALF
    a = per_kv * growth
    if a == 0:
        return steps * max(1, b // NS)
    total = 0
    if steps <= FEW:
        for _ in range(steps):
            total += b // NS
            b += a
        return total
    n, m = steps, NS  # the floor-sum recursion (Euclid's algorithm on a and m)
    while True:
        if a >= m:
            total += (n - 1) * n // 2 * (a // m)
            a %= m
        if b >= m:
            total += n * (b // m)
            b %= m
        top = a * n + b
        if top < m:
            return total
        n, b, a, m = top // m, top % m, m, a


@njit(cache=True)
def _roof_ns(base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, steps: int) -> int:
    """Nanoseconds of `steps` steps of which each takes the longer of two sides, both affine in the tokens held."""
    gap = base - base_2 + (per_kv - per_kv_2) * kv
    slope = (per_kv - per_kv_2) * growth
    if gap >= 0 and gap + slope * (steps - 1) >= 0:
        return _span_ns(base, per_kv, kv, growth, steps)
    if gap <= 0 and gap + slope * (steps - 1) <= 0:
        return _span_ns(base_2, per_kv_2, kv, growth, steps)
    turn = -(-abs(gap) // abs(slope))  # the first step at which the other side is at least as long
    if gap > 0:
        first = _span_ns(base, per_kv, kv, growth, turn)
        return first + _span_ns(base_2, per_kv_2, kv + turn * growth, growth, steps - turn)
    first = _span_ns(base_2, per_kv_2, kv, growth, turn)
    return first + _span_ns(base, per_kv, kv + turn * growth, growth, steps - turn)


@njit(cache=True)
def _steps_to(base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, most: int, gap: int) -> int:
    """The fewest steps, from 1 to `most`, that last at least `gap` nanoseconds; `most` if none do."""
    first = _roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, 1)
    high = min(most, gap // first + 1)  # no step is shorter than the first
    last = _roof_ns(base, per_kv, base_2, per_kv_2, kv + high * growth, growth, 1)
    low = min(high, max(1, gap // last))  # none is longer than the last
    while low < high:
        middle = (low + high) >> 1
        if _roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, middle) >= gap:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def _stretch(
    base: int, per_kv: int, base_2: int, per_kv_2: int, kv: int, growth: int, most: int, gap: int
) -> tuple[int, int]:  # fmt: skip
    """The fewest steps, from 1 to `most`, that last at least `gap` nanoseconds, `most` if none do; and how long."""
    fs, more = base + per_kv * kv + HALF, per_kv * growth
    fs_2, more_2 = base_2 + per_kv_2 * kv + HALF, per_kv_2 * growth
    total = 0
    for i in range(1, min(most, FEW) + 1):
        total += max(fs, fs_2) // NS
        if total >= gap or i == most:
            return i, total
        fs += more
        fs_2 += more_2
    total = _roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, most)
    if total <= gap:
        return most, total
    steps = _steps_to(base, per_kv, base_2, per_kv_2, kv, growth, most, gap)
    return steps, _roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, steps)


@njit(cache=True)
def run(
    # the workload
    arrival: Any, prompt: Any, output: Any, scale: Any, think: Any, scaled: bool, clients: int,
    # the scheduler
    completes: bool, streaming: bool, padded: bool, cap: int, window: int, full_price: bool, cooks_last: bool,
    # the step time
    side: Any,
    # what becomes of the requests
    scheduled: Any, first_token: Any, finish: Any,
    # the engine's memory
    state: Any, waited: Any, pot: Any, order: Any, after: Any, leaves: Any, freed: Any, ready: Any, begun: Any,
    ends: Any, place: Any, pending_time: Any, pending_request: Any,
    # the log
    log: Any,
) -> int:  # fmt: skip
    """Serve on until everything is done or the log is full; return the number of rows written.

    `window` is -1 for static batching. It's finished when `state[NOW]` is FAR.
    """
    n, pots = len(arrival), len(pot)
    used, full = 0, len(log)
    no_marks = np.int64(-1)
    per_kv, per_kv_2 = side[0, 3], side[1, 3]

    while True:
        # ---- the next instant
        now = FAR
        if state[COOKING] > 0:
            now = pot[ends[0], EVENT]
        if clients > 0:
            if state[PENDING] > 0:
                now = min(now, pending_time[0])
        elif state[NEXT] < n:
            now = min(now, arrival[state[NEXT]])
        line = state[TAIL] - state[HEAD]
        if window >= 0 and line > 0 and state[BUSY] < pots:
            now = min(now, arrival[order[state[HEAD]]] + window)
        if now == FAR:
            state[NOW] = FAR
            return used
        if used + state[BUSY] + 1 > full:
            return used
        state[NOW] = now
        waited[0] += float(line) * float(now - state[BEFORE])
        state[BEFORE] = now

        # ---- stretches that end, in the pots' order
        n_ready, ready_stage = 0, 0
        while True:
            while state[COOKING] > 0 and pot[ends[0], EVENT] == now:
                p = ends[0]
                _take_first(pot, ends, place, state[COOKING])
                state[COOKING] -= 1
                q = pot[p]
                row = log[used]
                row["start_ns"] = q[S_START]
                row["end_ns"] = now
                row["pot"] = p
                row["steps"] = q[S_STEPS]
                row["running"] = q[S_RUNNING]
                row["charged"] = q[S_CHARGED]
                row["prefill_tokens"] = q[S_PREFILL]
                row["decode_tokens"] = q[S_DECODE]
                row["first_tokens"] = q[S_FIRST]
                row["kv_tokens"] = q[S_KV]
                row["waiting"] = q[S_WAITING]
                row["waited_request_s"] = waited[p + 1] / 1e9
                row["kv_blocks"] = 0
                row["preempted"] = 0
                used += 1
                q[EVENT] = no_marks
                q[STEP] += q[S_STEPS]
                q[KV] += q[ALIVE] * q[S_STEPS]
                if streaming:
                    for i in range(q[NEW_FROM], q[NEW_TO]):
                        first_token[order[i]] = now
                q[NEW_FROM] = q[NEW_TO]
                while q[LIST] >= 0 and leaves[q[LIST]] == q[STEP]:
                    r = q[LIST]
                    q[LIST] = after[r]
                    q[ALIVE] -= 1
                    q[KV] -= prompt[r] + output[r]
                    if streaming:
                        q[MEMBERS] -= 1
                        finish[r] = now
                        state[DONE] += 1
                        if clients > 0 and state[NEXT] < n:
                            k = state[NEXT]
                            state[NEXT] += 1
                            state[PENDING] = _push(pending_time, pending_request, state[PENDING], now + think[k], k)
                if q[ALIVE] > 0:
                    ready[n_ready] = p
                    n_ready += 1
                    continue
                if not streaming:
                    for i in range(q[FIRST], q[FIRST] + q[MEMBERS]):
                        r = order[i]
                        first_token[r] = now
                        finish[r] = now
                        state[DONE] += 1
                        if clients > 0 and state[NEXT] < n:
                            k = state[NEXT]
                            state[NEXT] += 1
                            state[PENDING] = _push(pending_time, pending_request, state[PENDING], now + think[k], k)
                    q[MEMBERS] = 0
                state[BUSY] -= 1
                state[FREED] = _push(freed[0], freed[1], state[FREED], p, 0)
            if ready_stage == 1:
                break
            ready_stage = 1

            # ---- requests that come
            if clients > 0:
                while state[PENDING] > 0 and pending_time[0] == now:
                    r = pending_request[0]
                    state[PENDING] = _pop(pending_time, pending_request, state[PENDING])
                    arrival[r] = now
                    order[state[TAIL]] = r
                    state[TAIL] += 1
            else:
                while state[NEXT] < n and arrival[state[NEXT]] == now:
                    order[state[TAIL]] = state[NEXT]
                    state[TAIL] += 1
                    state[NEXT] += 1
            # who finds no empty pot: a pot with a free seat ends its stretch at the first step that ends now or later
            if completes or state[TAIL] - state[HEAD] <= (pots - state[BUSY]) * cap:
                break
            for p in range(state[FRESH]):
                q = pot[p]
                if q[EVENT] > now and q[MEMBERS] < cap and q[S_STEPS] > 1:
                    steps = _steps_to(
                        q[S_BASE], per_kv, q[S_BASE_2], per_kv_2, q[S_KV], q[S_CHARGED], q[S_STEPS], now - q[S_START]
                    )
                    if steps < q[S_STEPS]:
                        q[S_STEPS] = steps
                        q[EVENT] = q[S_START] + _roof_ns(
                            q[S_BASE], per_kv, q[S_BASE_2], per_kv_2, q[S_KV], q[S_CHARGED], steps
                        )
                        _rise(pot, ends, place, place[p])

        # ---- pots that begin a step: empty ones first, then those between two steps
        n_begun, i_ready = 0, 0
        if n_ready > 1:
            ready[:n_ready].sort()
        empty_turn = True
        while True:
            line = state[TAIL] - state[HEAD]
            if empty_turn:
                places = 0
                if line > 0 and state[BUSY] < pots:
                    if line >= cap or not completes:
                        places = min(line, cap)
                    elif window >= 0:
                        if now >= arrival[order[state[HEAD]]] + window:
                            places = line
                    elif cooks_last:
                        if clients > 0:
                            more = state[PENDING] > 0 or (state[NEXT] < n and state[BUSY] > 0)
                        else:
                            more = state[NEXT] < n
                        if not more:
                            places = line
                if places == 0:
                    empty_turn = False
                    continue
                if state[FREED] > 0:
                    p = freed[0, 0]
                    state[FREED] = _pop(freed[0], freed[1], state[FREED])
                else:
                    p = state[FRESH]
                    state[FRESH] += 1
                state[BUSY] += 1
                q = pot[p]
                q[STEP] = q[MEMBERS] = q[ALIVE] = q[KV] = 0
                q[LIST] = no_marks
                q[FIRST] = state[HEAD]
            else:
                if i_ready == n_ready:
                    break
                p = ready[i_ready]
                i_ready += 1
                q = pot[p]
                places = 0 if completes else min(line, cap - q[MEMBERS])

            # new members, kept in a list by the step at which they leave
            q[NEW_FROM] = state[HEAD]
            q[NEW_TO] = state[HEAD] + places
            prefill = np.int64(0)
            for i in range(q[NEW_FROM], q[NEW_TO]):
                r = order[i]
                scheduled[r] = now
                prefill += prompt[r]
                leaves[r] = q[STEP] + output[r]
                if q[LIST] < 0 or leaves[q[LIST]] > leaves[r]:
                    after[r] = q[LIST]
                    q[LIST] = r
                else:
                    at = q[LIST]
                    while after[at] >= 0 and leaves[after[at]] <= leaves[r]:
                        at = after[at]
                    after[r] = after[at]
                    after[at] = r
            state[HEAD] += places
            q[MEMBERS] += places
            q[ALIVE] += places
            q[KV] += prefill
            if completes and places > 0:
                q[SEATS] = cap if full_price else places
                q[BATCH] = places
                q[LONGEST_PROMPT] = 0
                for i in range(q[NEW_FROM], q[NEW_TO]):
                    q[LONGEST_PROMPT] = max(q[LONGEST_PROMPT], prompt[order[i]])

            # the stretch: one step where someone is new, else up to the next member's last token
            if completes and padded:
                q[S_CHARGED] = q[SEATS]
                q[S_PREFILL] = q[SEATS] * q[LONGEST_PROMPT] if places > 0 else 0
                q[S_KV] = q[SEATS] * (q[LONGEST_PROMPT] + q[STEP])
            else:
                q[S_CHARGED] = q[ALIVE]
                q[S_PREFILL] = prefill
                q[S_KV] = q[KV]
            q[S_START] = now
            q[S_STEPS] = 1 if places > 0 else leaves[q[LIST]] - q[STEP]
            q[S_RUNNING] = q[MEMBERS]
            q[S_FIRST] = places
            q[S_DECODE] = q[ALIVE] - places
            base = side[0, 0] + side[0, 1] * q[S_CHARGED] + side[0, 2] * q[S_PREFILL]
            base_2 = side[1, 0] + side[1, 1] * q[S_CHARGED] + side[1, 2] * q[S_PREFILL]
            if scaled:
                largest = 0.0
                if completes:
                    for i in range(q[FIRST], q[FIRST] + q[BATCH]):
                        largest = max(largest, scale[order[i]])
                else:
                    at = q[LIST]
                    while at >= 0:
                        largest = max(largest, scale[at])
                        at = after[at]
                base = np.int64(np.rint(largest * base))
                base_2 = np.int64(np.rint(largest * base_2))
            q[S_BASE] = base
            q[S_BASE_2] = base_2
            q[EVENT] = now + _roof_ns(base, per_kv, base_2, per_kv_2, q[S_KV], q[S_CHARGED], q[S_STEPS])
            ends[state[COOKING]] = p
            _rise(pot, ends, place, state[COOKING])
            state[COOKING] += 1
            waited[p + 1] = waited[0]
            waited[0] = 0.0
            begun[n_begun] = p
            n_begun += 1
        for i in range(n_begun):
            pot[begun[i], S_WAITING] = state[TAIL] - state[HEAD]


# ---- tokens and blocks: ContinuousBatching with a budget and a KV cache, as servinglab.scheduling.vllm_rules decides
# it ----

MOST_STEPS = np.int64(2**15 - 1)  # in one row

# A row of this loop's log holds what every stretch has; `unpack` reads it. A stretch in which more goes on than
# decoding also has a mark, and says so by a negative number of steps; a row of no steps is a pause.
ROW = np.dtype(
    [("end_ns", "i8"), ("kv_tokens", "i4"), ("kv_blocks", "i4"), ("charged", "u2"), ("steps", "i2")]
)  # fmt: skip
MARK = np.dtype(
    [("waiting", "i4"), ("prefill_tokens", "i4"), ("decode_tokens", "u2"), ("first_tokens", "u2"), ("preempted", "u2")]
)
# the same for counts that these might not hold
WIDE_ROW, WIDE_MARK = (np.dtype([(name, "i8") for name in each.names or ()]) for each in (ROW, MARK))

# state of `run_tokens`, beside the arrays
(
    T_NOW, T_STEP, T_PHASE, T_NEXT, T_HEAD, T_TAIL, T_STACK, T_COUNT, T_DECODING, T_PARTIAL, T_LAST, T_FREE, T_KV,
    T_SPARE, T_PENDING, T_DONE, T_LATE, T_LOST, T_ANSWERED, T_MARKS,
) = range(20)  # fmt: skip
TOKEN_STATE = 20

# a seat of a running request: who, its neighbours in running order and in the wheel, and how far it is
(
    Q_REQUEST, Q_BEFORE, Q_AFTER, Q_WHEEL_BEFORE, Q_WHEEL_AFTER, Q_OFFSET, Q_PHASE, Q_ENDS, Q_TOKENS, Q_COMPUTED,
    Q_LAST, Q_LEFT,
) = range(12)  # fmt: skip
SEAT_COLUMNS = 12

# a preempted request: who, tokens to compute again, when its last token came (-1: none), tokens still to come
STACK_COLUMNS = 4


@njit(cache=True)
def _unseat(seat: Any, q: int, last: int) -> int:
    """Take a seat out of the running order, whose end is at `last`; return where its end is now."""
    before, after = seat[q, Q_BEFORE], seat[q, Q_AFTER]
    if before >= 0:
        seat[before, Q_AFTER] = after
    if after >= 0:
        seat[after, Q_BEFORE] = before
        return last
    return before


@njit(cache=True, error_model="numpy")
def run_tokens(
    # the workload
    arrival: Any, prompt: Any, output: Any, reject: Any, think: Any, clients: int,
    # the scheduler and the pool
    seats: int, budget: int, chunked: bool, gate: bool, whole: bool, watermark: int, blocks: int, block_size: int,
    limited: bool,
    # the step time
    side: Any,
    # what becomes of the requests
    scheduled: Any, first_token: Any, finish: Any, preemptions: Any,
    # the engine's memory
    state: Any, waited: Any, seat: Any, wheel: Any, need: Any, stack: Any, order: Any,
    pending_time: Any, pending_request: Any,
    # the log
    log: Any, marks: Any, late: Any,
) -> int:  # fmt: skip
    """Serve on until everything is done or the log is full; return the number of rows written.

    First come first served, synchronous, without thresholds and without a prefix cache. Steps are numbered; a decoding
    request's place in the cache is the step's number plus its offset, so that nothing is touched while it decodes.
    `need[p]` counts those who need a new block at steps ≡ p; `wheel[s]` lists those whose last token comes at step s.
    `state` is unpacked here and packed again at the end: the compiler keeps names in registers, but not an array.
    """
    n = len(arrival)
    used, full, marked, late_used = 0, min(len(log), len(marks)), 0, 0
    mask = len(wheel) - 1
    fixed, per_request, per_prefill, per_kv = side[0, 0], side[0, 1], side[0, 2], side[0, 3]
    fixed_2, per_request_2, per_prefill_2, per_kv_2 = side[1, 0], side[1, 1], side[1, 2], side[1, 3]
    now, s, phase = state[T_NOW], state[T_STEP], state[T_PHASE]
    to_send, head, tail, stacked = state[T_NEXT], state[T_HEAD], state[T_TAIL], state[T_STACK]
    count, decoding, partial, last = state[T_COUNT], state[T_DECODING], state[T_PARTIAL], state[T_LAST]
    free, held_tokens, spare, pending = state[T_FREE], state[T_KV], state[T_SPARE], state[T_PENDING]
    finished, lost_before, answered = state[T_DONE], state[T_LOST], state[T_ANSWERED]
    waited_ns = waited[0]

    while True:
        # ---- who has come
        at = FAR
        if clients == 0:
            while to_send < n and arrival[to_send] <= now:
                waited_ns += float(now - arrival[to_send])
                to_send += 1
            tail = to_send
            if to_send < n:
                at = arrival[to_send]
        else:
            while True:
                at = pending_time[0] if pending > 0 else FAR
                if at >= now and answered > 0:  # those answered now send again
                    while answered > 0:
                        answered -= 1
                        if to_send < n:
                            pending = _push(pending_time, pending_request, pending, now + think[to_send], to_send)
                            to_send += 1
                    continue
                if at > now:
                    break
                r = pending_request[0]
                pending = _pop(pending_time, pending_request, pending)
                arrival[r] = at
                if reject[r]:
                    finished += 1
                    if to_send < n:
                        pending = _push(pending_time, pending_request, pending, at + think[to_send], to_send)
                        to_send += 1
                    continue
                waited_ns += float(now - at)
                order[tail] = r
                tail += 1
        waiting = tail - head + stacked

        if used >= full or late_used + seats >= len(late):
            break
        if count == 0 and waiting == 0:
            now = at
            if at == FAR:
                break
            row = log[used]
            row["end_ns"] = now
            row["kv_tokens"] = row["kv_blocks"] = row["charged"] = row["steps"] = 0
            used += 1
            continue

        # ---- those who run: blocks for their next tokens, or the last to come makes room
        demand, chunk, lost = np.int64(0), np.int64(0), np.int64(0)
        while count > 0:
            demand, chunk = need[phase], np.int64(0)
            if partial >= 0:
                done = seat[partial, Q_COMPUTED]
                chunk = min(seat[partial, Q_TOKENS] - done, budget - decoding)  # at least 1: budget >= seats
                if not whole:
                    demand += -(-(done + chunk) // block_size) + (-done // block_size)
            if not limited or demand <= free:
                break
            q = last
            r = seat[q, Q_REQUEST]
            stack[stacked, 0] = r
            if q == partial:
                held = -(-seat[q, Q_COMPUTED] // block_size)
                stack[stacked, 1], stack[stacked, 2] = seat[q, Q_TOKENS], seat[q, Q_LAST]
                stack[stacked, 3] = seat[q, Q_LEFT]
                partial = np.int64(-1)
            else:
                done = s + seat[q, Q_OFFSET]
                held = -(-done // block_size)
                stack[stacked, 1], stack[stacked, 2], stack[stacked, 3] = done + 1, now, seat[q, Q_ENDS] - s + 1
                need[seat[q, Q_PHASE]] -= 1
                decoding -= 1
                held_tokens -= done
                before, after = seat[q, Q_WHEEL_BEFORE], seat[q, Q_WHEEL_AFTER]
                if before >= 0:
                    seat[before, Q_WHEEL_AFTER] = after
                else:
                    wheel[seat[q, Q_ENDS] & mask] = after
                if after >= 0:
                    seat[after, Q_WHEEL_BEFORE] = before
            stacked += 1
            free += held
            preemptions[r] += 1
            waiting += 1
            lost += 1
            last = _unseat(seat, q, last)
            seat[q, Q_AFTER], spare = spare, q
            count -= 1
        lost_before += lost
        if lost > 0 and count == 0:
            continue  # nobody is left to run: the line may try again at once

        decode, resumed = decoding, partial >= 0
        charged, kv, prefill = decode, held_tokens + decode, np.int64(0)
        mark = np.int64(-1)  # the first seat whose prompt is complete after this step, if any
        free -= demand
        if resumed:
            done = seat[partial, Q_COMPUTED]
            charged += 1
            kv += done + chunk
            if chunk > 1 or done < prompt[seat[partial, Q_REQUEST]]:
                prefill += chunk
            seat[partial, Q_COMPUTED] = done + chunk
            if done + chunk == seat[partial, Q_TOKENS]:
                mark, partial = partial, np.int64(-1)

        # ---- those who wait: the head, while it fits
        left = budget - decode - chunk
        admitted = np.int64(0)
        while lost == 0 and waiting > 0 and left > 0 and count < seats:
            if stacked > 0:
                r, tokens = stack[stacked - 1, 0], stack[stacked - 1, 1]
            else:
                r = order[head] if clients > 0 else head
                tokens = prompt[r]
            if not chunked and tokens > left:
                break
            chunk = min(tokens, left)
            held = -(-(prompt[r] + output[r] - 1 if whole else chunk) // block_size)
            if limited:
                wanted = -(-tokens // block_size) if gate and not whole and chunk < tokens else held
                if wanted > free - (watermark if count > 0 else 0):
                    break
            q = spare
            spare = seat[q, Q_AFTER]
            if stacked > 0:
                stacked -= 1
                seat[q, Q_LAST], seat[q, Q_LEFT] = stack[stacked, 2], stack[stacked, 3]
                if scheduled[r] < 0:
                    scheduled[r] = now
            else:
                head += 1
                seat[q, Q_LAST], seat[q, Q_LEFT] = -1, output[r]
                scheduled[r] = now
            seat[q, Q_REQUEST], seat[q, Q_TOKENS], seat[q, Q_COMPUTED] = r, tokens, chunk
            seat[q, Q_BEFORE], seat[q, Q_AFTER] = last, -1
            if last >= 0:
                seat[last, Q_AFTER] = q
            last = q
            count += 1
            free -= held
            charged += 1
            kv += chunk
            prefill += chunk
            left -= chunk
            waiting -= 1
            admitted += 1
            if chunk < tokens:
                partial = q
            elif mark < 0:
                mark = q

        # ---- one step, or as many as pass before anything changes
        steps = np.int64(1)
        base = fixed + per_request * charged + per_prefill * prefill
        base_2 = fixed_2 + per_request_2 * charged + per_prefill_2 * prefill
        if admitted > 0 or lost > 0 or resumed:
            end = now + max(base + per_kv * kv + HALF, base_2 + per_kv_2 * kv + HALF) // NS
        else:
            ends = s
            while wheel[ends & mask] < 0:
                ends += 1
            steps = min(ends - s + 1, MOST_STEPS)
            gap = at - now if waiting == 0 and count < seats and decode < budget else FAR
            steps, lasts = _stretch(base, per_kv, base_2, per_kv_2, kv, charged, steps, gap)
            if (
                steps > 1 and limited and not whole
            ):  # blocks for the further steps, or as many steps as there are blocks
                rounds = (steps - 1) // block_size if steps > block_size else np.int64(0)
                fit, at_phase = 1 + rounds * block_size, phase
                if decode * (rounds + 1) <= free:
                    free -= decode * rounds
                else:
                    fit = np.int64(1)
                while fit < steps:
                    at_phase = at_phase + 1 if at_phase + 1 < block_size else 0
                    if need[at_phase] > free:
                        steps = fit
                        lasts = _roof_ns(base, per_kv, base_2, per_kv_2, kv, charged, steps)
                        break
                    free -= need[at_phase]
                    fit += 1
            end = now + lasts

        in_use = blocks - free

        # ---- the tokens come out
        firsts = np.int64(0)
        held_tokens += decode * steps
        while mark >= 0 and mark != partial:
            q, mark = mark, seat[mark, Q_AFTER]
            r, tokens = seat[q, Q_REQUEST], seat[q, Q_TOKENS]
            if seat[q, Q_LAST] < 0:
                first_token[r] = end
                firsts += 1
            else:
                late[late_used] = end - seat[q, Q_LAST]
                late_used += 1
            remaining = seat[q, Q_LEFT] - 1
            if remaining == 0:
                finish[r] = end
                finished += 1
                free += -(-tokens // block_size)  # an answer of one token holds no more than its prompt
                last = _unseat(seat, q, last)
                seat[q, Q_AFTER], spare = spare, q
                count -= 1
                answered += 1
                continue
            seat[q, Q_OFFSET] = tokens - (s + 1)
            seat[q, Q_ENDS] = s + remaining
            if not whole:
                its_phase = (s + 1 - tokens) % block_size
                seat[q, Q_PHASE] = its_phase
                need[its_phase] += 1
            decoding += 1
            held_tokens += tokens
            bucket = (s + remaining) & mask
            after = wheel[bucket]
            seat[q, Q_WHEEL_BEFORE], seat[q, Q_WHEEL_AFTER] = -1, after
            if after >= 0:
                seat[after, Q_WHEEL_BEFORE] = q
            wheel[bucket] = q

        row = log[used]
        row["end_ns"] = end
        row["kv_tokens"] = kv
        row["kv_blocks"] = in_use if limited else 0
        row["charged"] = charged
        row["steps"] = steps
        used += 1
        waited_ns += float(waiting) * float(end - now)
        if waiting > 0 or decode < charged or lost_before > 0:
            row["steps"] = -steps
            extra = marks[marked]
            extra["waiting"] = waiting
            extra["prefill_tokens"] = prefill
            extra["decode_tokens"] = decode
            extra["first_tokens"] = firsts
            extra["preempted"] = lost_before
            marked += 1
            lost_before = np.int64(0)

        s += steps
        phase += steps
        if phase >= block_size:
            phase %= block_size
        q = wheel[(s - 1) & mask]
        wheel[(s - 1) & mask] = -1
        while q >= 0:
            after = seat[q, Q_WHEEL_AFTER]
            held = s + seat[q, Q_OFFSET]
            finish[seat[q, Q_REQUEST]] = end
            finished += 1
            free += -(-held // block_size)
            if not whole:
                need[seat[q, Q_PHASE]] -= 1
            decoding -= 1
            held_tokens -= held
            last = _unseat(seat, q, last)
            seat[q, Q_AFTER], spare = spare, q
            count -= 1
            answered += 1
            q = after
        now = end

    state[T_NOW], state[T_STEP], state[T_PHASE] = now, s, phase
    state[T_NEXT], state[T_HEAD], state[T_TAIL], state[T_STACK] = to_send, head, tail, stacked
    state[T_COUNT], state[T_DECODING], state[T_PARTIAL], state[T_LAST] = count, decoding, partial, last
    state[T_FREE], state[T_KV], state[T_SPARE], state[T_PENDING] = free, held_tokens, spare, pending
    state[T_DONE], state[T_LOST], state[T_ANSWERED] = finished, lost_before, answered
    state[T_LATE], state[T_MARKS] = late_used, marked
    waited[0] = waited_ns
    return used


# ---- what the log says: its rows unpacked, the gaps between tokens ----

UNPACKED = (
    "start_ns", "end_ns", "steps", "charged", "kv_tokens", "kv_blocks",
    "waiting", "prefill_tokens", "decode_tokens", "first_tokens", "preempted",
)  # fmt: skip


@njit(cache=True)
def unpack(rows: Any, marks: Any, at: Any, columns: Any) -> int:
    """Unpack rows of `run_tokens` into columns, in the order of `UNPACKED`, until those are full; return how many.

    `at` says where to go on: the row, its mark, and when the row before it ended.
    """
    row, mark, start, used = at[0], at[1], at[2], 0
    while row < len(rows) and used < columns.shape[1]:
        each = rows[row]
        end, steps, charged = np.int64(each["end_ns"]), np.int64(each["steps"]), np.int64(each["charged"])
        if steps != 0:
            columns[0, used], columns[1, used], columns[2, used], columns[3, used] = start, end, abs(steps), charged
            columns[4, used], columns[5, used] = each["kv_tokens"], each["kv_blocks"]
            if steps < 0:
                more = marks[mark]
                columns[6, used], columns[7, used] = more["waiting"], more["prefill_tokens"]
                columns[8, used], columns[9, used] = more["decode_tokens"], more["first_tokens"]
                columns[10, used] = more["preempted"]
                mark += 1
            else:
                columns[6, used] = columns[7, used] = columns[9, used] = columns[10, used] = 0
                columns[8, used] = charged
            used += 1
        start = end
        row += 1
    at[0], at[1], at[2] = row, mark, start
    return used


# A prime, so that gaps any few nanoseconds apart spread over all slots; few enough to stay in the cache of a core.
SLOTS = np.uint64(32_749)


@njit(cache=True)
def _count_gap(gap: int, count: int, recent: Any, gaps: Any, tokens: Any, used: int) -> int:
    """Add to a gap's count in its slot; list what another gap left there; return where the list ends now.

    Without branches, which would be guessed wrong too often: what was there is written to the list in any case.
    """
    slot = np.uint64(gap) % SLOTS
    before, so_far = recent[slot, 0], recent[slot, 1]
    gaps[used], tokens[used] = before, so_far
    recent[slot, 0], recent[slot, 1] = gap, count + (so_far if before == gap else 0)
    return used + (1 if (before != gap) & (so_far > 0) else 0)


@njit(cache=True)
def list_gaps(
    at: Any, start: Any, end: Any, steps: Any, charged: Any, prefill: Any, decode: Any, kv: Any, side: Any, even: bool,
    recent: Any, gaps: Any, tokens: Any,
) -> bool:  # fmt: skip
    """Count the gaps before the tokens of the log's rows until the list is full; return whether all are counted.

    `recent` holds one gap per slot, and how many tokens; whatever had to give way to another is in the list. `at` says
    where to go on: the row, the step within it, the end of the list. `even`: all steps of a row are alike.
    """
    row, step, used, full = at[0], at[1], at[2], len(gaps)
    fixed, per_request, per_prefill, per_kv = side[0, 0] + HALF, side[0, 1], side[0, 2], side[0, 3]
    fixed_2, per_request_2, per_prefill_2, per_kv_2 = side[1, 0] + HALF, side[1, 1], side[1, 2], side[1, 3]
    while row < len(start) and used < full:
        count, each = steps[row], decode[row]
        if each == 0:
            step = count
        elif even:
            used = _count_gap((end[row] - start[row]) // count, each * count, recent, gaps, tokens, used)
            step = count
        else:
            n = charged[row]
            held = kv[row] + step * n
            fs = fixed + per_request * n + per_prefill * prefill[row] + per_kv * held
            fs_2 = fixed_2 + per_request_2 * n + per_prefill_2 * prefill[row] + per_kv_2 * held
            while step < count and used < full:
                used = _count_gap(max(fs, fs_2) // NS, each, recent, gaps, tokens, used)
                fs += per_kv * n
                fs_2 += per_kv_2 * n
                step += 1
        if step == count:
            row, step = row + 1, np.int64(0)
    at[0], at[1], at[2] = row, step, used
    return row == len(start)


@njit(cache=True)
def join_equal(keys: Any, shift: int, tokens: Any) -> int:
    """Unpack sorted keys, `gap << shift | tokens`, in place, with equal gaps joined; return how many are left."""
    used, last, mask = 0, -1, (1 << shift) - 1
    for i in range(len(keys)):
        gap, count = keys[i] >> shift, keys[i] & mask
        if gap == last:
            tokens[used - 1] += count
        else:
            keys[used] = last = gap
            tokens[used] = count
            used += 1
    return used


@njit(cache=True)
def add_up(
    start: Any, end: Any, steps: Any, running: Any, charged: Any, blocks: Any, blocks_per_step: float, whole: Any,
    parts: Any,
) -> None:  # fmt: skip
    """Add to totals: steps, requests in them, nanoseconds busy, most blocks; request- and block-nanoseconds."""
    all_steps, in_steps, busy_ns, most = whole[0], whole[1], whole[2], whole[3]
    in_pots_ns, block_ns = parts[0], parts[1]
    for i in range(len(start)):
        lasts = end[i] - start[i]
        all_steps += steps[i]
        in_steps += running[i] * steps[i]
        busy_ns += lasts
        most = max(most, blocks[i])
        in_pots_ns += float(running[i]) * float(lasts)
        block_ns += max(0.0, blocks[i] - 0.5 * blocks_per_step * charged[i] * (steps[i] - 1)) * float(lasts)
    whole[0], whole[1], whole[2], whole[3] = all_steps, in_steps, busy_ns, most
    parts[0], parts[1] = in_pots_ns, block_ns


READ_AT_ONCE = 256  # rows: unpacked, they stay in the cache that is nearest


@njit(cache=True)
def read_packed(
    rows: Any, marks: Any, place: Any, columns: Any, blocks_per_step: float, whole: Any, parts: Any, side: Any,
    even: bool, at: Any, recent: Any, gaps: Any, tokens: Any,
) -> bool:  # fmt: skip
    """`unpack`, `add_up` and `list_gaps`, a few rows at a time, until the list is full; return whether all is read.

    `place` says where `unpack` goes on, and how many rows it left in `columns`; `at` where `list_gaps` does.
    """
    end, steps, charged, kv, blocks = columns[1], columns[2], columns[3], columns[4], columns[5]
    prefill, decode = columns[7], columns[8]
    while True:
        start = columns[0][: place[3]]
        if not list_gaps(at, start, end, steps, charged, prefill, decode, kv, side, even, recent, gaps, tokens):
            return False
        place[3] = unpack(rows, marks, place, columns)
        if place[3] == 0:
            return True
        add_up(columns[0][: place[3]], end, steps, charged, charged, blocks, blocks_per_step, whole, parts)
        at[0], at[1] = 0, 0
