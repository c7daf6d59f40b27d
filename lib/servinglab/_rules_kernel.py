"""The engine's loop under all of `servinglab.scheduling.vllm_rules`'s rules, for numba: one step at a time.

`_kernel` jumps over stretches of steps, but knows nothing of priorities, thresholds for long prompts, prompts first,
asynchronous scheduling and prefix caching. This loop follows `paged` and `token_reference` line by line, on arrays.

All of it is in this one file, because numba's on-disk cache is keyed on the file that holds the compiled function and
wouldn't notice a change elsewhere. State lives in arrays so that the loop can stop when a log is full and go on later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab._kernel import njit  # numba's, or a stand-in
from servinglab.scheduling.blocks import prefix_keys
from servinglab.scheduling.vllm_rules import PagedScheduler
from servinglab.workload.model import PREFIX_TOKENS, Workload

FAR = 2**62  # later than any instant
NS = 1_000_000  # femtoseconds in a nanosecond
HALF = NS // 2
WORK = 1 << 24  # chunks served between two reports of progress, if no log is full before

# state: what the loop remembers between two calls, beside the arrays
(
    NOW, FREE_AT, LOOKED, CAME, NEXT, PENDING, HEAD, TAIL, RUNNING, UNDER_WAY, OLDEST, LOST, CHANGES, LOGGED, FREE,
    EMPTY, FRESH, DONE, LATE, USED, ASKING, LASTS, STATE,
) = range(23)  # fmt: skip

# what doesn't change
(
    CLIENTS, SEATS, BUDGET, CHUNKED, THRESHOLD, ADAPTIVE, BY_PRIORITY, LONGEST, GATE, WHOLE, PROMPTS_FIRST, WATERMARK,
    BLOCKS, BLOCK_SIZE, LIMITED, CACHING, ASYNC, PER_PIECE, ASKS,
) = range(19)  # fmt: skip

# a request. ROOM: tokens that its blocks can hold. With prefix caching also where in `store` its blocks, its prompt's
# pieces and its own contents stand, how many pieces there are, and how many blocks are noted as full
(
    PROMPT, OUTPUT, OUTPUTS, IN_FLIGHT, COMPUTED, ROOM, LAST, PRIORITY, BLOCK_AT, PIECE_AT, OWN_AT, PIECES, KEPT,
    REQUEST,
) = range(14)  # fmt: skip

# when a request was scheduled, got its first token, and its last: rows of `times`
SCHEDULED, FIRST_TOKEN, FINISH = range(3)

# a block: what it holds; how many use it; the next with the same content; its neighbours among the unused; and an
# entry of a stack of blocks that were used and hold nothing. Block 0 is none, and both ends of the list of the unused
CONTENT, USERS, TWIN, SOONER, LATER, HOLE = range(6)

# a step under way. MEMBERS: how often those who run had changed when it was decided
(
    START, END, CHUNKS, R_RUNNING, PREFILL, DECODE, FIRST, KV, WAITING, IN_USE, PREEMPTED, MEMBERS, ROW,
) = range(13)  # fmt: skip


def memory(
    workload: Workload, engine: PagedScheduler, limited: bool, reject: Any, side: Any | None, requests: Any
) -> tuple[Any, ...]:
    """What `run` takes, before anything has happened.

    Parameters
    ----------
    workload : Workload
    engine : PagedScheduler
        The rules and the size of the pool.
    limited : bool
        Whether there is a pool.
    reject : bool array
        Who is turned away.
    side : int64 array or None
        The step time's two sides. None: `run` asks for each step's length.
    requests
        Arrivals and outcomes, as `simulate` keeps them.
    """
    n, rules = len(workload), engine.rules
    seats = min(rules.seats, n)
    request = np.zeros((n, REQUEST if rules.prefix_caching else BLOCK_AT), np.int64)
    request[:, PROMPT], request[:, OUTPUT] = workload.prompt_tokens, np.where(reject, 0, workload.output_tokens)
    request[:, PRIORITY], request[:, LAST] = workload.priority, -1

    store, block, per_piece = np.zeros(1, np.int64), np.zeros((1, 6), np.int64), 1
    if (
        rules.prefix_caching
    ):  # the store: the blocks of each request, the pieces of each, then the block of each content
        blocks = np.where(reject, 0, -(-(workload.prompt_tokens + workload.output_tokens) // engine.block_size))
        total, pieces, shared = int(blocks.sum()), np.zeros(0, np.int64), 0
        if workload.prefix_hashes is not None:
            prefix_keys(0, workload.prefix_hashes[0], PREFIX_TOKENS, engine.block_size)  # refuses pieces of part blocks
            per_piece = PREFIX_TOKENS // engine.block_size
            request[:, PIECES] = [len(ids) for ids in workload.prefix_hashes]
            distinct, pieces = np.unique(np.concatenate(workload.prefix_hashes), return_inverse=True)
            shared = len(distinct) * per_piece
        contents = total + len(pieces)
        request[:, BLOCK_AT] = np.cumsum(blocks) - blocks
        request[:, PIECE_AT] = total + np.cumsum(request[:, PIECES]) - request[:, PIECES]
        request[:, OWN_AT] = contents + shared + request[:, BLOCK_AT]
        store = np.zeros(contents + shared + total + 1, np.int64)
        store[total:contents] = contents + pieces * per_piece
        block = np.zeros((min(engine.num_blocks, total) + 1, 6), np.int64)

    state = np.zeros(STATE, np.int64)
    state[NEXT] = state[PENDING] = requests.sent
    state[FREE], state[CAME], state[FRESH] = engine.num_blocks, -1, 1
    fixed = (
        workload.clients, seats, engine.budget, rules.chunked_prefill, rules.long_prefill_token_threshold,
        rules.adaptive_threshold, rules.policy == "priority", engine.longest, rules.full_prompt_gate,
        rules.reserve_whole_answer, rules.prefill_first, engine.watermark_blocks, engine.num_blocks, engine.block_size,
        limited, rules.prefix_caching, rules.async_scheduling, per_piece, side is None,
    )  # fmt: skip
    return (
        np.array(fixed, np.int64),
        np.zeros((2, 4), np.int64) if side is None else side,
        requests.think,
        requests.arrival,
        requests.times,
        requests.preemptions,
        state,
        np.zeros(3),  # what the line waited since the last row began, and what belongs to each step under way
        request,
        np.zeros((2, n), np.int64),  # the line: priorities, requests; from HEAD to TAIL, or a heap if priorities count
        requests.pending,
        np.zeros(seats, np.int64),  # who runs
        np.zeros((2, seats, 3), np.int64),  # the chunks of each step: request, tokens, whether a token comes out
        np.zeros((2, ROW), np.int64),
        store,
        block,
    )


# a part of `run`, cached with it: numba makes nothing for callers from Python
part = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")


@part
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


@part
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


# ---- the line ----


@part
def _join(rules: Any, s: Any, request: Any, line: Any, r: int, preempted: bool) -> None:
    """A request joins the line; the preempted, who left it before, at its head."""
    if rules[BY_PRIORITY]:
        s[TAIL] = _push(line[0], line[1], s[TAIL], request[r, PRIORITY], r)
    elif preempted:
        s[HEAD] -= 1
        line[1, s[HEAD]] = r
    else:
        line[1, s[TAIL]] = r
        s[TAIL] += 1


@part
def _leave(rules: Any, s: Any, line: Any, at: int) -> None:
    """The request at this place of the line leaves it."""
    if rules[BY_PRIORITY]:
        while at > 0:  # to the top of the heap, whoever is there
            up = (at - 1) >> 1
            line[0, at], line[1, at] = line[0, up], line[1, up]
            at = up
        s[TAIL] = _pop(line[0], line[1], s[TAIL])
    else:
        while at > s[HEAD]:
            line[1, at] = line[1, at - 1]
            at -= 1
        s[HEAD] += 1


@part
def _answered(rules: Any, s: Any, think: Any, pending: Any, now: int) -> None:
    """A client of a closed loop thinks, then sends the next request that nobody has sent."""
    if rules[CLIENTS] > 0 and s[NEXT] < len(think):
        k = s[NEXT]
        s[NEXT] += 1
        s[PENDING] = _push(pending[0], pending[1], s[PENDING], now + think[k], k)


@part
def _look(s: Any, waited: Any, at: int) -> None:
    """Count the time that the line has spent waiting up to here."""
    waited[0] += float(s[TAIL] - s[HEAD]) * float(at - s[LOOKED])
    s[LOOKED] = at


@part
def _come(
    rules: Any, s: Any, waited: Any, think: Any, arrival: Any, request: Any, line: Any, pending: Any, until: int
) -> int:
    """Requests that come up to and including `until` join the line; return when the next one comes."""
    while True:
        at = FAR
        if rules[CLIENTS] > 0:
            if s[PENDING] > 0:
                at = pending[0, 0]
        elif s[NEXT] < len(arrival):
            at = arrival[s[NEXT]]
        if at > until:
            return at
        _look(s, waited, at)
        if rules[CLIENTS] > 0:
            r = pending[1, 0]
            s[PENDING] = _pop(pending[0], pending[1], s[PENDING])
            arrival[r] = at
        else:
            r = s[NEXT]
            s[NEXT] += 1
        if request[r, OUTPUT] == 0:  # turned away
            s[DONE] += 1
            _answered(rules, s, think, pending, at)
        else:
            s[CAME] = at
            _join(rules, s, request, line, r, False)


# ---- the pool ----


@part
def _content(rules: Any, request: Any, store: Any, r: int, k: int) -> int:
    """What a request's k-th full block holds: the place in `store` of the first block that holds it."""
    piece = k // rules[PER_PIECE]
    if piece < request[r, PIECES]:
        return store[request[r, PIECE_AT] + piece] + k % rules[PER_PIECE]
    return request[r, OWN_AT] + k


@part
def _find(rules: Any, request: Any, store: Any, r: int) -> int:
    """Note the blocks that hold a waiting request's contents, up to the first that none holds; return how many."""
    most = (request[r, PROMPT] + request[r, OUTPUTS] - 1) // rules[BLOCK_SIZE]
    for k in range(most):
        b = store[_content(rules, request, store, r, k)]
        if b == 0:
            return k
        store[request[r, BLOCK_AT] + k] = b
    return most


@part
def _share(s: Any, request: Any, store: Any, block: Any, r: int, hits: int) -> None:
    """Use blocks that are held already."""
    for k in range(hits):
        b = store[request[r, BLOCK_AT] + k]
        if block[b, USERS] == 0:
            block[block[b, SOONER], LATER] = block[b, LATER]
            block[block[b, LATER], SOONER] = block[b, SOONER]
            s[FREE] -= 1
        block[b, USERS] += 1
    request[r, KEPT] = hits


@part
def _take(rules: Any, s: Any, request: Any, store: Any, block: Any, r: int, count: int) -> None:
    """Take free blocks, first those that hold nothing, then the longest unused; what they held is gone."""
    s[FREE] -= count
    if rules[CACHING]:
        at = request[r, BLOCK_AT] + request[r, ROOM] // rules[BLOCK_SIZE]
        for i in range(count):
            if s[EMPTY] > 0:
                s[EMPTY] -= 1
                b = block[s[EMPTY], HOLE]
            elif s[FRESH] < len(block):
                b = s[FRESH]
                s[FRESH] += 1
            else:
                b = block[0, LATER]
                block[0, LATER] = block[b, LATER]
                block[block[b, LATER], SOONER] = 0
                content = block[b, CONTENT]
                if store[content] == b:
                    store[content] = block[b, TWIN]
                else:
                    before = store[content]
                    while block[before, TWIN] != b:
                        before = block[before, TWIN]
                    block[before, TWIN] = block[b, TWIN]
                block[b, CONTENT] = block[b, TWIN] = 0
            block[b, USERS] = 1
            store[at + i] = b
    request[r, ROOM] += count * rules[BLOCK_SIZE]


@part
def _keep_full(rules: Any, request: Any, store: Any, block: Any, r: int, tokens: int) -> None:
    """Note what the blocks hold that these tokens fill; those before were noted in an earlier step."""
    while (request[r, KEPT] + 1) * rules[BLOCK_SIZE] <= tokens:
        k = request[r, KEPT]
        content, b = _content(rules, request, store, r, k), store[request[r, BLOCK_AT] + k]
        block[b, CONTENT] = content
        if store[content] == 0:
            store[content] = b
        else:
            last = store[content]
            while block[last, TWIN] != 0:
                last = block[last, TWIN]
            block[last, TWIN] = b
        request[r, KEPT] += 1


@part
def _give_back(rules: Any, s: Any, request: Any, store: Any, block: Any, r: int) -> None:
    """A request gives up its blocks, the tail first, so that a tail block is taken again before a head block."""
    blocks = request[r, ROOM] // rules[BLOCK_SIZE]
    request[r, ROOM] = 0
    if not rules[CACHING]:
        s[FREE] += blocks
        return
    for k in range(blocks - 1, -1, -1):
        b = store[request[r, BLOCK_AT] + k]
        block[b, USERS] -= 1
        if block[b, USERS] == 0:
            s[FREE] += 1
            if block[b, CONTENT] == 0:
                block[s[EMPTY], HOLE] = b
                s[EMPTY] += 1
            else:
                last = block[0, SOONER]
                block[b, SOONER], block[b, LATER] = last, 0
                block[last, LATER] = block[0, SOONER] = b


@part
def _hold(rules: Any, s: Any, request: Any, store: Any, block: Any, r: int, tokens: int) -> bool:
    """Take the blocks that the request needs for so many more tokens; False if there aren't enough."""
    tokens += request[r, COMPUTED]
    if tokens > request[r, ROOM]:
        short = -(-(tokens - request[r, ROOM]) // rules[BLOCK_SIZE])
        if short > s[FREE]:
            return False
        _take(rules, s, request, store, block, r, short)
    if rules[CACHING]:
        _keep_full(rules, request, store, block, r, min(tokens, request[r, PROMPT] + request[r, OUTPUTS]))
    return True


# ---- the next step ----


@part
def _threshold(rules: Any, s: Any) -> int:
    """The most tokens of one request in this step."""
    here = s[RUNNING] + s[TAIL] - s[HEAD]
    if rules[THRESHOLD] == 0 or here <= 1:
        return rules[BUDGET]
    if rules[ADAPTIVE]:
        return max(rules[THRESHOLD], rules[BUDGET] // here)
    return rules[THRESHOLD]


@part
def _victim(rules: Any, s: Any, request: Any, running: Any) -> int:
    """The place among the running of the one to preempt."""
    if not rules[BY_PRIORITY]:
        return s[RUNNING] - 1
    least = 0
    for at in range(1, s[RUNNING]):
        r, other = running[at], running[least]
        if (request[r, PRIORITY], r) > (request[other, PRIORITY], other):
            least = at
    return least


@part
def _preempt(
    rules: Any, s: Any, preemptions: Any, request: Any, line: Any, running: Any, chunk: Any, row: Any, store: Any,
    block: Any, at: int,
) -> int:  # fmt: skip
    """The running request at this place loses all blocks; return the tokens that it gives back to the step."""
    r, tokens = running[at], 0
    s[RUNNING] -= 1
    for i in range(at, s[RUNNING]):
        running[i] = running[i + 1]
    for i in range(row[CHUNKS]):
        if chunk[i, 0] == r:
            tokens = chunk[i, 1]
            row[CHUNKS] -= 1
        if tokens > 0 and i < row[CHUNKS]:
            chunk[i, 0], chunk[i, 1] = chunk[i + 1, 0], chunk[i + 1, 1]
    _give_back(rules, s, request, store, block, r)
    request[r, COMPUTED] = 0
    preemptions[r] += 1
    s[LOST] += 1
    s[CHANGES] += 1
    _join(rules, s, request, line, r, True)
    return tokens


@part
def _run(
    rules: Any, s: Any, preemptions: Any, request: Any, line: Any, running: Any, chunk: Any, row: Any, store: Any,
    block: Any, budget: int, prompts: bool,
) -> int:  # fmt: skip
    """Give those who run their next tokens (or only those with unfinished prompts); return the budget left."""
    threshold, longest, caching, block_size = _threshold(rules, s), rules[LONGEST], rules[CACHING], rules[BLOCK_SIZE]
    i, chunks, count = 0, row[CHUNKS], s[RUNNING]
    while i < count and budget > 0:
        r = running[i]
        computed = request[r, COMPUTED]
        outputs = request[r, OUTPUTS] + request[r, IN_FLIGHT]
        tokens = request[r, PROMPT] + outputs - computed
        if prompts and tokens == 1:
            i += 1
            continue
        tokens = min(tokens, threshold, budget, longest - 1 - computed)
        if tokens <= 0 or outputs >= request[r, OUTPUT]:
            i += 1
            continue
        held = computed + tokens <= request[r, ROOM]
        if caching and held:
            held = (
                min(computed + tokens, request[r, PROMPT] + request[r, OUTPUTS]) < (request[r, KEPT] + 1) * block_size
            )
        while not held and not _hold(rules, s, request, store, block, r, tokens):
            at = _victim(rules, s, request, running)
            itself = running[at] == r
            row[CHUNKS] = chunks
            budget += _preempt(rules, s, preemptions, request, line, running, chunk, row, store, block, at)
            i -= chunks - row[CHUNKS]
            chunks = row[CHUNKS]
            count = s[RUNNING]
            if itself:
                return budget
        chunk[chunks, 0], chunk[chunks, 1] = r, tokens
        chunks += 1
        budget -= tokens
        i += 1
    row[CHUNKS] = chunks
    return budget


@part
def _admit(
    rules: Any, s: Any, request: Any, line: Any, running: Any, chunk: Any, row: Any, store: Any, block: Any, budget: int
) -> None:
    """Let the head of the line in, while there are seats, tokens and blocks for it."""
    threshold, block_size = _threshold(rules, s), rules[BLOCK_SIZE]
    while s[TAIL] > s[HEAD] and budget > 0 and s[RUNNING] < rules[SEATS]:
        r = line[1, s[HEAD]]
        known = request[r, PROMPT] + request[r, OUTPUTS]
        hits, spare = 0, s[FREE] - (rules[WATERMARK] if s[RUNNING] > 0 else 0)
        if rules[CACHING]:
            hits = _find(rules, request, store, r)
            for k in range(hits):
                spare -= block[store[request[r, BLOCK_AT] + k], USERS] == 0
        start = hits * block_size
        tokens = min(known - start, threshold)
        if not rules[CHUNKED] and tokens > budget:
            break
        tokens = min(tokens, budget)
        wanted = start + tokens
        if rules[WHOLE]:
            wanted = request[r, PROMPT] + request[r, OUTPUT] - 1
        elif rules[GATE]:
            wanted = max(wanted, min(known, rules[LONGEST]))
        if -(-wanted // block_size) - hits > spare:
            break
        _leave(rules, s, line, s[HEAD])
        if rules[CACHING]:
            _share(s, request, store, block, r, hits)
        request[r, COMPUTED] = request[r, ROOM] = start
        if rules[WHOLE]:
            _take(rules, s, request, store, block, r, -(-wanted // block_size))
        _hold(rules, s, request, store, block, r, tokens)
        running[s[RUNNING]] = r
        s[RUNNING] += 1
        s[CHANGES] += 1
        chunk[row[CHUNKS], 0], chunk[row[CHUNKS], 1] = r, tokens
        row[CHUNKS] += 1
        budget -= tokens


@part
def _begin(
    rules: Any, side: Any, times: Any, s: Any, waited: Any, request: Any, chunk: Any, row: Any, slot: int
) -> None:
    """The step begins as soon as the one before it ends."""
    start, chunks = max(s[NOW], s[FREE_AT]), row[CHUNKS]
    prefill = kv = first = emitting = 0
    for i in range(chunks):
        r, tokens = chunk[i, 0], chunk[i, 1]
        computed, prompt = request[r, COMPUTED], request[r, PROMPT]
        if tokens > 1 or computed < prompt:
            prefill += tokens
        computed += tokens
        request[r, COMPUTED] = computed
        kv += computed
        outputs = request[r, OUTPUTS] + request[r, IN_FLIGHT]
        emits = computed >= prompt + outputs
        chunk[i, 2] = emits
        if emits:
            emitting += 1
            first += outputs == 0
            request[r, IN_FLIGHT] += 1
        if outputs == 0 and times[SCHEDULED, r] < 0:
            times[SCHEDULED, r] = start
    lasts = 1
    for i in range(len(side)):
        fs = side[i, 0] + side[i, 1] * chunks + side[i, 2] * prefill + side[i, 3] * kv
        lasts = max(lasts, (fs + HALF) // NS)
    s[LASTS] = lasts
    row[START], row[R_RUNNING], row[PREFILL], row[KV] = start, s[RUNNING], prefill, kv
    row[FIRST], row[DECODE], row[WAITING] = first, emitting - first, s[TAIL] - s[HEAD]
    row[IN_USE], row[PREEMPTED], row[MEMBERS] = rules[BLOCKS] - s[FREE], s[LOST], s[CHANGES]
    waited[1 + slot], waited[0] = waited[0], 0.0
    s[LOST] = 0


@part
def _come_back(
    rules: Any, think: Any, times: Any, s: Any, request: Any, line: Any, pending: Any, running: Any, chunk: Any,
    row: Any, store: Any, block: Any, late: Any,
) -> None:  # fmt: skip
    """A step ends: tokens come out, the finished leave."""
    start, now, caching, block_size = row[START], row[END], rules[CACHING], rules[BLOCK_SIZE]
    s[NOW] = now
    left = False
    for i in range(row[CHUNKS]):
        if not chunk[i, 2]:
            continue
        r = chunk[i, 0]
        request[r, OUTPUTS] += 1
        request[r, IN_FLIGHT] -= 1
        last = request[r, LAST]
        if last < 0:
            times[FIRST_TOKEN, r] = now
        elif last != start:
            row[DECODE] -= 1
            late[s[LATE]] = now - last
            s[LATE] += 1
        request[r, LAST] = now
        if request[r, OUTPUTS] == request[r, OUTPUT]:
            times[FINISH, r] = now
            s[DONE] += 1
            s[CHANGES] += 1
            if request[r, COMPUTED] > 0:
                left = True
            else:  # preempted while its last token was under way
                at = s[HEAD]
                while line[1, at] != r:
                    at += 1
                _leave(rules, s, line, at)
            _give_back(rules, s, request, store, block, r)
            _answered(rules, s, think, pending, now)
        elif caching and request[r, COMPUTED] > 0:  # not preempted meanwhile: the new token may have filled a block
            tokens = min(request[r, COMPUTED], request[r, PROMPT] + request[r, OUTPUTS])
            if tokens >= (request[r, KEPT] + 1) * block_size:
                _keep_full(rules, request, store, block, r, tokens)
    if left:
        count = 0
        for i in range(s[RUNNING]):
            r = running[i]
            if times[FINISH, r] < 0:
                running[count] = r
                count += 1
        s[RUNNING] = count


@part
def _write(rules: Any, s: Any, waited: Any, row: Any, slot: int, log: Any, used: int) -> int:
    """Log a step; it lengthens the row before if nothing but tokens came or went since; return the rows in use."""
    plain = row[DECODE] == row[CHUNKS] and row[PREFILL] == 0 and rules[ASKS] == 0
    if used > 0 and plain and s[LOGGED] == row[MEMBERS]:
        before = log[used - 1]
        same = before["charged"] == row[CHUNKS] and before["waiting"] == row[WAITING]
        if same and s[CAME] <= before["start_ns"]:
            before["end_ns"] = row[END]
            before["steps"] += 1
            before["kv_blocks"] = row[IN_USE] if rules[LIMITED] else 0
            waited[0] += waited[1 + slot]
            waited[1 + slot] = 0.0
            return used
    s[LOGGED] = row[MEMBERS] if plain else -1
    new = log[used]
    new["start_ns"] = row[START]
    new["end_ns"] = row[END]
    new["pot"] = 0
    new["steps"] = 1
    new["running"] = row[R_RUNNING]
    new["charged"] = row[CHUNKS]
    new["prefill_tokens"] = row[PREFILL]
    new["decode_tokens"] = row[DECODE]
    new["first_tokens"] = row[FIRST]
    new["kv_tokens"] = row[KV]
    new["waiting"] = row[WAITING]
    new["waited_request_s"] = waited[1 + slot] / 1e9
    new["kv_blocks"] = row[IN_USE] if rules[LIMITED] else 0
    new["preempted"] = row[PREEMPTED]
    waited[1 + slot] = 0.0
    return used + 1


@njit(cache=True)
def run(
    rules: Any, side: Any, think: Any, arrival: Any, times: Any, preemptions: Any, s: Any, waited: Any, request: Any,
    line: Any, pending: Any, running: Any, chunk: Any, row: Any, store: Any, block: Any, log: Any, late: Any,
) -> int:  # fmt: skip
    """Serve on until everything is done or a log is full; return the number of rows written.

    All but the logs comes from `memory`. `late` gets the gaps before tokens whose request got none in the step before.
    It's finished when the state's NOW is FAR. While the state is ASKING, it waits to be called again with the
    nanoseconds in LASTS that the youngest step takes, and with the same logs.
    """
    used, work = s[USED] if s[ASKING] > 0 else 0, 0
    if s[ASKING] == 0:
        s[LATE] = 0
    while used < len(log) and s[LATE] + rules[SEATS] <= len(late) and work < WORK:
        slot = (s[OLDEST] + s[UNDER_WAY]) & 1
        here, step = chunk[slot], row[slot]
        coming, lost = FAR, s[LOST]
        if s[ASKING] == 0:
            coming = _come(rules, s, waited, think, arrival, request, line, pending, s[NOW])
            step[CHUNKS] = 0
            prompts_first = rules[PROMPTS_FIRST] > 0
            budget = _run(
                rules, s, preemptions, request, line, running, here, step, store, block, rules[BUDGET], prompts_first
            )
            if s[LOST] == lost:
                _admit(rules, s, request, line, running, here, step, store, block, budget)
            if prompts_first and step[CHUNKS] == 0:
                _run(rules, s, preemptions, request, line, running, here, step, store, block, rules[BUDGET], False)
            lost = s[LOST] - lost
            if step[CHUNKS] > 0:
                _begin(rules, side, times, s, waited, request, here, step, slot)
                if rules[ASKS] > 0:
                    s[ASKING], s[USED] = 1, used
                    return used
        s[ASKING] = 0
        emits = False
        if step[CHUNKS] > 0:
            step[END] = s[FREE_AT] = step[START] + s[LASTS]
            emits = step[FIRST] + step[DECODE] > 0
            s[UNDER_WAY] += 1
            work += step[CHUNKS]
        if s[UNDER_WAY] > 0 and (not rules[ASYNC] or s[UNDER_WAY] > 1 or not emits):
            slot = s[OLDEST]
            here, step = chunk[slot], row[slot]
            _come(rules, s, waited, think, arrival, request, line, pending, step[END] - 1)
            _look(s, waited, step[END])
            _come_back(rules, think, times, s, request, line, pending, running, here, step, store, block, late)
            used = _write(rules, s, waited, step, slot, log, used)
            s[OLDEST] ^= 1
            s[UNDER_WAY] -= 1
        elif s[UNDER_WAY] == 0 and lost == 0:
            s[NOW] = coming
            if coming == FAR:
                break
    return used
