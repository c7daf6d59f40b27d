"""The rows that the compiled engines write, and reading them: unpacked, added up, the gaps between tokens counted.

A row of the general log has all columns of `Segments`. That of the engine that counts tokens in whole stretches is
packed: what every stretch has in one array, what only some have in another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab.base.compiled import HALF, NS, compiled

# a row of the log, for both loops; the names are those of result.Segments
LOG = np.dtype(
    [(name, np.int64) for name in ("start_ns", "end_ns", "kv_tokens", "prefill_tokens", "prefill_pairs")]
    + [("waited_request_s", np.float64)]
    + [
        (name, np.int32)
        for name in (
            "pot", "steps", "running", "charged", "decode_tokens", "first_tokens", "waiting", "kv_blocks",
            "preempted",
        )
    ]
)  # fmt: skip


MOST_STEPS = np.int64(2**15 - 1)  # in one row

# A row of this loop's log holds what every stretch has; `unpack` reads it. A stretch in which more goes on than
# decoding also has a mark, and says so by a negative number of steps; a row of no steps is a pause.
ROW = np.dtype(
    [("end_ns", "i8"), ("kv_tokens", "i4"), ("kv_blocks", "i4"), ("charged", "u2"), ("steps", "i2")]
)  # fmt: skip
MARK = np.dtype(
    [
        ("prefill_pairs", "i8"), ("waiting", "i4"), ("prefill_tokens", "i4"), ("decode_tokens", "u2"),
        ("first_tokens", "u2"), ("preempted", "u2"),
    ]
)  # fmt: skip
# the same for counts that these might not hold
WIDE_ROW, WIDE_MARK = (np.dtype([(name, "i8") for name in each.names or ()]) for each in (ROW, MARK))

UNPACKED = (
    "start_ns", "end_ns", "steps", "charged", "kv_tokens", "kv_blocks",
    "waiting", "prefill_tokens", "prefill_pairs", "decode_tokens", "first_tokens", "preempted",
)  # fmt: skip


@compiled
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
                columns[8, used], columns[9, used] = more["prefill_pairs"], more["decode_tokens"]
                columns[10, used], columns[11, used] = more["first_tokens"], more["preempted"]
                mark += 1
            else:
                columns[6, used] = columns[7, used] = columns[8, used] = columns[10, used] = columns[11, used] = 0
                columns[9, used] = charged
            used += 1
        start = end
        row += 1
    at[0], at[1], at[2] = row, mark, start
    return used


# A prime, so that gaps any few nanoseconds apart spread over all slots; few enough to stay in the cache of a core.
SLOTS = np.uint64(32_749)


@compiled
def _count_gap(gap: int, count: int, recent: Any, gaps: Any, tokens: Any, used: int) -> int:
    """Add to a gap's count in its slot; list what another gap left there; return where the list ends now.

    Without branches, which would be guessed wrong too often: what was there is written to the list in any case.
    """
    slot = np.uint64(gap) % SLOTS
    before, so_far = recent[slot, 0], recent[slot, 1]
    gaps[used], tokens[used] = before, so_far
    recent[slot, 0], recent[slot, 1] = gap, count + (so_far if before == gap else 0)
    return used + (1 if (before != gap) & (so_far > 0) else 0)


@compiled
def list_gaps(
    at: Any, start: Any, end: Any, steps: Any, charged: Any, decode: Any, kv: Any, side: Any, even: bool, recent: Any,
    gaps: Any, tokens: Any,
) -> bool:  # fmt: skip
    """Count the gaps before the tokens of the log's rows until the list is full; return whether all are counted.

    `recent` holds one gap per slot, and how many tokens; whatever had to give way to another is in the list. `at` says
    where to go on: the row, the step within it, the end of the list. `even`: all steps of a row are alike. A row of
    several steps has no prompt tokens.
    """
    row, step, used, full = at[0], at[1], at[2], len(gaps)
    fixed, per_request, per_kv = side[0, 0] + HALF, side[0, 1], side[0, 3]
    fixed_2, per_request_2, per_kv_2 = side[1, 0] + HALF, side[1, 1], side[1, 3]
    while row < len(start) and used < full:
        count, each = steps[row], decode[row]
        if each == 0:
            step = count
        elif even or count == 1:
            used = _count_gap((end[row] - start[row]) // count, each * count, recent, gaps, tokens, used)
            step = count
        else:
            n = charged[row]
            held = kv[row] + step * n
            fs = fixed + per_request * n + per_kv * held
            fs_2 = fixed_2 + per_request_2 * n + per_kv_2 * held
            while step < count and used < full:
                used = _count_gap(max(fs, fs_2) // NS, each, recent, gaps, tokens, used)
                fs += per_kv * n
                fs_2 += per_kv_2 * n
                step += 1
        if step == count:
            row, step = row + 1, np.int64(0)
    at[0], at[1], at[2] = row, step, used
    return row == len(start)


@compiled
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


@compiled
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


@compiled
def read_packed(
    rows: Any, marks: Any, place: Any, columns: Any, blocks_per_step: float, whole: Any, parts: Any, side: Any,
    even: bool, at: Any, recent: Any, gaps: Any, tokens: Any,
) -> bool:  # fmt: skip
    """`unpack`, `add_up` and `list_gaps`, a few rows at a time, until the list is full; return whether all is read.

    `place` says where `unpack` goes on, and how many rows it left in `columns`; `at` where `list_gaps` does.
    """
    end, steps, charged, kv, blocks = columns[1], columns[2], columns[3], columns[4], columns[5]
    decode = columns[9]
    while True:
        start = columns[0][: place[3]]
        if not list_gaps(at, start, end, steps, charged, decode, kv, side, even, recent, gaps, tokens):
            return False
        place[3] = unpack(rows, marks, place, columns)
        if place[3] == 0:
            return True
        add_up(columns[0][: place[3]], end, steps, charged, charged, blocks, blocks_per_step, whole, parts)
        at[0], at[1] = 0, 0
