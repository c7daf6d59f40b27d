"""The log of a run, readable: one row per stretch of steps with the same members in one pot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    pass

from servinglab.base.arrays import Floats, Ints

BLOCK = 1 << 12  # rows of the log that are worked on at a time


@dataclass(frozen=True, eq=False)
class Segments:
    """The log: one row per stretch of steps with the same members in one pot, all columns of equal length.

    Attributes
    ----------
    start_ns, end_ns : int64
        From the first step's start to the last step's end.
    pot : int
        Which pot, from 0.
    steps : int
        Steps in the stretch.
    running : int
        Requests in the pot that haven't got their whole answer.
    charged : int
        Requests that each step is charged for (padding included).
    prefill_tokens : int
        Prompt tokens computed (padding included); only a stretch of one step has any.
    decode_tokens : int
        Tokens that each step gives to requests which got one in the step before.
    first_tokens : int
        Requests that get their first token; only a stretch of one step has any.
    kv_tokens : int64
        Tokens held that the first step reads; each further step reads `charged` more.
    prefill_pairs : int64
        Pairs of tokens that the prompts attend (`servinglab.step_time.affine.attended_pairs`); -1 where a file that was
        saved before they were logged doesn't tell.
    waiting : int
        Requests in the line at the start, once everything that happens at that instant has happened.
    waited_request_s : float64
        Request-seconds spent in the line since the last time that a row began, up to this row's start; the last row
        also holds what came after. Over all rows it's the line's integral over time.
    kv_blocks : int
        Blocks of KV cache in use during the last step; 0 where no pool is modelled.
    preempted : int
        Requests that lost their blocks to make room for the first step.
    """

    start_ns: Ints
    end_ns: Ints
    pot: Ints
    steps: Ints
    running: Ints
    charged: Ints
    prefill_tokens: Ints
    decode_tokens: Ints
    first_tokens: Ints
    kv_tokens: Ints
    prefill_pairs: Ints
    waiting: Ints
    waited_request_s: Floats
    kv_blocks: Ints
    preempted: Ints

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], waited_after_ns: int) -> Segments:
        """The log of rows with these columns' names; the last also gets what the line waited after it began.

        Examples
        --------
        >>> len(Segments.from_rows([], 0))
        0
        """
        columns: dict[str, Any] = {
            each.name: np.array(
                [row[each.name] for row in rows], np.float64 if each.name == "waited_request_s" else np.int64
            )
            for each in fields(cls)
        }
        columns["waited_request_s"][-1:] += waited_after_ns / 1e9
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def busy_s(self) -> float:
        """Pot-seconds in which a step was running."""
        return float((self.end_ns - self.start_ns).sum()) / 1e9

    @property
    def request_seconds(self) -> float:
        """Request-seconds in the system, in the line and in the pots: the integral of the number in system."""
        in_pots = float((self.running.astype(np.float64) * (self.end_ns - self.start_ns)).sum()) / 1e9
        return in_pots + self.waited_s

    @property
    def waited_s(self) -> float:
        """Request-seconds spent in the line."""
        return float(self.waited_request_s.sum())

    def blocks(self, *names: str) -> Iterator[tuple[Ints, ...]]:
        """Columns of whole numbers as int64, a few thousand rows at a time, each good until the next is asked for."""
        for first in range(0, len(self), BLOCK):
            yield tuple(getattr(self, name)[first : first + BLOCK].astype(np.int64) for name in names)
