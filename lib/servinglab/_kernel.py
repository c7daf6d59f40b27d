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
    from numba import njit
except ImportError:  # pragma: no cover - the tests run it in a child process without numba
    warnings.warn("numba isn't installed: the simulator runs in plain Python, about 100 times slower", stacklevel=2)

    def njit(**_options: Any) -> Any:
        return lambda function: function


FAR = 2**62  # later than any instant
NS = 1_000_000  # femtoseconds in a nanosecond
HALF = NS // 2

# state: what the loop remembers between two calls, beside the arrays
NOW, NEXT, HEAD, TAIL, BUSY, DONE, FREED, FRESH, COOKING, PENDING, BEFORE, STATE = range(12)

# columns of one pot
(STEP, MEMBERS, ALIVE, FIRST, SEATS, BATCH, LONGEST_PROMPT, KV, LIST, NEW_FROM, NEW_TO, EVENT) = range(12)
(S_START, S_STEPS, S_RUNNING, S_CHARGED, S_PREFILL, S_DECODE, S_FIRST, S_KV, S_BASE, S_WAITING) = range(12, 22)
POT_COLUMNS = 22

ROW_COLUMNS = 11  # a row of the log: Segments' columns but for waited_request_s, which is a float


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
    n, m, total = steps, NS, 0  # the floor-sum recursion (Euclid's algorithm on a and m)
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
def _steps_to(base: int, per_kv: int, kv: int, growth: int, most: int, gap: int) -> int:
    """The fewest steps, from 1 to `most`, that last at least `gap` nanoseconds; `most` if none do."""
    low, high = 1, most
    while low < high:
        middle = (low + high) >> 1
        if _span_ns(base, per_kv, kv, growth, middle) >= gap:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def run(
    # the workload
    arrival: Any, prompt: Any, output: Any, scale: Any, think: Any, scaled: bool, clients: int,
    # the scheduler
    completes: bool, streaming: bool, padded: bool, cap: int, window: int, full_price: bool, cooks_last: bool,
    # the step time
    fixed: int, per_request: int, per_prefill: int, per_kv: int,
    # what becomes of the requests
    scheduled: Any, first_token: Any, finish: Any,
    # the engine's memory
    state: Any, waited: Any, pot: Any, order: Any, after: Any, leaves: Any, freed: Any, ready: Any, begun: Any,
    ends: Any, place: Any, pending_time: Any, pending_request: Any,
    # the log
    rows: Any, row_waited: Any,
) -> int:  # fmt: skip
    """Serve on until everything is done or the log is full; return the number of rows written.

    `window` is -1 for static batching. It's finished when `state[NOW]` is FAR.
    """
    n, pots = len(arrival), len(pot)
    used, full = 0, len(rows)
    no_marks = np.int64(-1)

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
                rows[used, 0], rows[used, 1], rows[used, 2], rows[used, 3] = q[S_START], now, p, q[S_STEPS]
                rows[used, 4], rows[used, 5], rows[used, 6] = q[S_RUNNING], q[S_CHARGED], q[S_PREFILL]
                rows[used, 7], rows[used, 8], rows[used, 9] = q[S_DECODE], q[S_FIRST], q[S_KV]
                rows[used, 10] = q[S_WAITING]
                row_waited[used] = waited[p + 1] / 1e9
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
                    steps = _steps_to(q[S_BASE], per_kv, q[S_KV], q[S_CHARGED], q[S_STEPS], now - q[S_START])
                    if steps < q[S_STEPS]:
                        q[S_STEPS] = steps
                        q[EVENT] = q[S_START] + _span_ns(q[S_BASE], per_kv, q[S_KV], q[S_CHARGED], steps)
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
            base = fixed + per_request * q[S_CHARGED] + per_prefill * q[S_PREFILL]
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
            q[S_BASE] = base
            q[EVENT] = now + _span_ns(base, per_kv, q[S_KV], q[S_CHARGED], q[S_STEPS])
            ends[state[COOKING]] = p
            _rise(pot, ends, place, state[COOKING])
            state[COOKING] += 1
            waited[p + 1] = waited[0]
            waited[0] = 0.0
            begun[n_begun] = p
            n_begun += 1
        for i in range(n_begun):
            pot[begun[i], S_WAITING] = state[TAIL] - state[HEAD]
