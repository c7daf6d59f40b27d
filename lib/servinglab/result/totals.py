"""What the log of steps comes to, in one pass: the gaps between tokens, counted exactly, and totals over the run.

Most gaps are counted in a table small enough for a core's cache. Those that have to leave it are listed until a list is
full, then sorted, and equal ones are joined. A gap and its count go into one whole number wherever both fit, because
sorting plain numbers is ten times as fast as sorting an index to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from servinglab.result.token_log import TokenSegments
from servinglab.step_time.affine import COEFFICIENTS, ClosedForm, StepTime

if TYPE_CHECKING:
    from servinglab.base.arrays import Floats, Ints
    from servinglab.result.log import Segments

_LISTED = 1 << 20  # gaps in a list
_COLUMNS = (
    "start_ns", "end_ns", "steps", "running", "charged", "decode_tokens", "kv_tokens", "kv_blocks",
)  # fmt: skip


@dataclass(frozen=True)
class LogFacts:
    """What the log of steps comes to.

    Attributes
    ----------
    gaps_s, tokens : arrays
        The distinct gaps between one request's tokens in seconds, ascending; how many tokens came after each.
    steps : int
    running_steps : int
        Requests in the pot, summed over steps.
    busy_s : float
        Pot-seconds in which a step was running.
    in_pots_s : float
        Request-seconds in the pots.
    block_s : float
        Block-seconds in use. The log holds the blocks of each stretch's last step, the most it has; before it they are
        taken to grow by one each time that a request fills one, so by ``charged / block_size`` a step on average.
    most_blocks : int
        In use in the fullest step.
    """

    gaps_s: Floats
    tokens: npt.NDArray[np.int64]
    steps: int
    running_steps: int
    busy_s: float
    in_pots_s: float
    block_s: float
    most_blocks: int


def read_log(
    log: Segments, step_time: StepTime | None, late_ns: Ints, late_tokens: Ints, blocks_per_step: float
) -> LogFacts:
    """Read a log. `blocks_per_step` is by how many blocks a request grows in a step, on average."""
    from servinglab.result import packed_log as kernel

    sides, even = np.zeros((2, len(COEFFICIENTS)), np.int64), True
    if isinstance(step_time, ClosedForm):
        known = step_time.sides_fs
        sides[: len(known)] = known
        even = step_time.per_kv_token_s == 0
    whole, parts = np.zeros(4, np.int64), np.zeros(2)
    totals = (blocks_per_step, whole, parts)
    gaps, tokens = (_longer(late, _LISTED) for late in (late_ns, late_tokens))
    recent = np.zeros((kernel.SLOTS, 2), np.int64)
    at = np.array([0, 0, len(late_ns)])  # row of the block, step of the row, end of the list
    for read in _passes(log, totals, sides, even, at):
        while not read(recent, gaps, tokens):
            at[2] = kept = _join(gaps, tokens, at[2])
            if 2 * kept > len(gaps):
                gaps, tokens = (_longer(each[:kept], 3 * kept) for each in (gaps, tokens))
    rest = recent[recent[:, 1] > 0].T
    gaps, tokens = (np.append(listed[: at[2]], more) for listed, more in zip((gaps, tokens), rest, strict=True))
    kept = _join(gaps, tokens, len(gaps))
    gaps_s, tokens = gaps[:kept] / 1e9, tokens[:kept].copy()
    gaps_s.flags.writeable = tokens.flags.writeable = False  # whoever asks gets the same arrays
    all_steps, in_steps, busy_ns, most = whole.tolist()
    in_pots_ns, block_ns = parts.tolist()
    return LogFacts(gaps_s, tokens, all_steps, in_steps, busy_ns / 1e9, in_pots_ns / 1e9, block_ns / 1e9, most)


def _passes(log: Segments, totals: tuple[Any, ...], sides: Any, even: bool, at: Any) -> Iterator[Callable[..., bool]]:
    """Functions that read a part of the log each, to be called again until they return true."""
    from servinglab.result import packed_log as kernel

    if isinstance(log, TokenSegments):
        place = np.zeros(4, np.int64)
        columns = np.zeros((len(kernel.UNPACKED), kernel.READ_AT_ONCE), np.int64)
        yield partial(kernel.read_packed, *log.packed, place, columns, *totals, sides, even, at)
        return
    for start, end, steps, running, charged, decode, kv, blocks in log.blocks(*_COLUMNS):
        kernel.add_up(start, end, steps, running, charged, blocks, *totals)
        at[:2] = 0
        yield partial(kernel.list_gaps, at, start, end, steps, charged, decode, kv, sides, even)


def _longer(column: Ints, room: int) -> npt.NDArray[np.int64]:
    return np.concatenate([column, np.empty(room, np.int64)], dtype=np.int64)


def _join(gaps: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], used: int) -> int:
    """Sort the first `used` gaps in place, and join equal ones; return how many are left."""
    from servinglab.result import packed_log as kernel

    these, counts = gaps[:used], tokens[:used]
    shift = int(counts.max(initial=0)).bit_length()
    if int(these.max(initial=0)).bit_length() + shift < 64:
        these <<= shift
        these |= counts
        these.sort()
        return int(kernel.join_equal(these, shift, tokens))
    distinct, where = np.unique(these, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, where, counts)
    gaps[: len(distinct)], tokens[: len(distinct)] = distinct, sums
    return len(distinct)
