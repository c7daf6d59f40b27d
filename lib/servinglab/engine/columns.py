"""The arrays that Python and the kernels share: one entry for each request, and the rows of a log."""

from __future__ import annotations

from typing import Any

import numpy as np

from servinglab.result.log import Segments
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import NEVER

ROOM = 64  # requests that an engine has room for before any joined


class Requests:
    """What is known of the requests of a workload, in nanoseconds, and what becomes of each.

    Parameters
    ----------
    workload : Workload or None
        None: nobody is known; there is room for `ROOM`, and lists of who has finished are kept.

    Attributes
    ----------
    known : int
    sent : int
        Requests that a closed loop's clients are about to send, which stand in the heap `pending`.
    """

    def __init__(self, workload: Workload | None, lists_finished: bool) -> None:
        n = ROOM if workload is None else len(workload)
        self.known = 0 if workload is None else n
        self.clients = 0 if workload is None else workload.clients
        self.sent = min(self.clients, self.known)
        self.scheduled, self.first_token, self.finish = np.full((3, n), NEVER, np.int64)
        self.preemptions = np.zeros(n, np.int32)
        self.answered = np.zeros(n if lists_finished else 0, np.int64)
        self.think = np.zeros(1, np.int64)
        first = np.zeros(0, np.int64)
        if workload is None:
            self.arrival = np.full(n, NEVER, np.int64)
            self.prompt, self.output, self.scale = np.zeros(n, np.int64), np.zeros(n, np.int64), np.ones(n)
            for column in (self.prompt, self.output, self.scale):
                column.flags.writeable = False  # as a workload's are: else the kernels would be compiled twice
        else:
            self.prompt, self.output, self.scale = (
                workload.prompt_tokens,
                workload.output_tokens,
                workload.service_scale,
            )
            if workload.think_s is None:
                nanoseconds = workload.arrival_s * 1e9
                self.arrival = np.rint(nanoseconds, out=nanoseconds).astype(np.int64)
            else:
                self.arrival = np.full(n, NEVER, np.int64)
                self.think = np.rint(workload.think_s * 1e9).astype(np.int64)
                first = np.argsort(self.think[: self.sent], kind="stable")
        # a heap by time, then number: a sorted list is one
        self.pending = np.zeros((2, self.sent + 1), np.int64)
        self.pending[0, : self.sent], self.pending[1, : self.sent] = self.think[first], first


def kept(column: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Some of a column, as writable as it was: another kind of array would have the kernel compiled again."""
    part = column[which]
    part.flags.writeable = column.flags.writeable
    return part


def longer(column: np.ndarray, size: int, fill: Any = 0) -> np.ndarray:
    """A column, or several in rows, with room for `size`; as writable as it was."""
    more = np.empty((*column.shape[:-1], size), column.dtype)
    more[..., : column.shape[-1]] = column
    more[..., column.shape[-1] :] = fill
    more.flags.writeable = column.flags.writeable
    return more


def put(column: np.ndarray, r: int, value: Any) -> None:
    """Write to a column that only its owner may write to."""
    column.flags.writeable = True
    column[r] = value
    column.flags.writeable = False


class Log:
    """The rows that a kernel writes, a stretch of `rows_at_once` at a time.

    The array is made long enough for most runs: pages of memory that nobody writes to cost nothing.
    """

    def __init__(self, row: np.dtype, rows: int, rows_at_once: int) -> None:
        self._rows = np.empty(rows + rows_at_once, row)
        self._used = 0
        self._stretch = rows_at_once

    @property
    def buffer(self) -> np.ndarray:
        """Where the kernel writes next."""
        return self._rows[self._used : self._used + self._stretch]

    def keep(self, used: int, at_least: int = 0) -> None:
        """Count rows as written; make room for another stretch, of `at_least` so many rows."""
        self._used += used
        if at_least > self._stretch:
            self._stretch = 4 * at_least
        if self._used + self._stretch > len(self._rows):
            longer = np.empty(2 * self._used + self._stretch, self._rows.dtype)
            longer[: self._used] = self._rows[: self._used]
            self._rows = longer

    @property
    def rows(self) -> np.ndarray:
        """All that was written."""
        return self._rows[: self._used]

    def segments(self, waited_after_ns: float) -> Segments:
        """The whole log; the last row also gets what the line waited after it began."""
        rows = self.rows.copy() if waited_after_ns else self.rows
        rows["waited_request_s"][-1:] += waited_after_ns / 1e9
        return Segments(**{name: rows[name] for name in rows.dtype.names or ()})
