"""What happened: one row per request and a log of steps.

`Result` is plain data: the engines make it, measured runs can be read into it, and `servinglab.metrics` and
`servinglab.plots` read it. Times are whole nanoseconds since the doors opened (time 0); properties ending in ``_s``
give seconds, with NaN for what never happened.

The log holds one row per stretch of steps with the same members, so that a million requests fit in memory;
`Result.steps` expands it to single steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from servinglab.result.setup import RunSetup
from servinglab.step_time.affine import FS_PER_NS, ClosedForm

if TYPE_CHECKING:
    from servinglab.metrics.summary import Summary
    from servinglab.result.totals import LogFacts

from servinglab.base.arrays import Floats, Ints
from servinglab.result.log import BLOCK, Segments
from servinglab.workload.outcomes import NEVER, Status
from servinglab.workload.request import OPTIONAL, Texts, given


@dataclass(frozen=True, eq=False)
class Result:
    """One row per request, in the order of the workload, and the log of what the pots did.

    Attributes
    ----------
    arrival_ns, scheduled_ns, first_token_ns, finish_ns : int64 arrays
        When the request came, began its first step, got its first and its last token; -1 for never.
    prompt_tokens, output_tokens, preemptions : int arrays
    status : uint8 array of `Status`
    segments : Segments or None
        None for a measured run without a log of steps.
    streaming : bool
        Whether tokens were handed over one by one.
    pots : int or None
        None: as many as anyone could want.
    step_time : callable or None
        What priced the steps.
    setup : RunSetup
        What was run.
    late_gaps : pair of int64 arrays
        Gaps in nanoseconds before tokens whose request got none in the step before, and how many there were: after a
        preemption, or when the budget of tokens passed a request over. In a measured run without a log of steps, all
        gaps that were measured.
    rejections : mapping
        Why each rejected request could never have been served, by its number.
    user, request_class, deadline_s, max_tokens : columns, optional
        As in the workload; see `servinglab.workload.request`.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.3])
    >>> served = sl.simulate(orders, sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02))
    >>> served.e2e_s.round(6).tolist()
    [0.54, 0.44, 0.66]
    >>> [s.name for s in map(sl.Status, served.status)]
    ['FINISHED', 'FINISHED', 'FINISHED']
    """

    arrival_ns: Ints
    scheduled_ns: Ints
    first_token_ns: Ints
    finish_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    status: npt.NDArray[np.uint8]
    segments: Segments | None = None
    streaming: bool = True
    pots: int | None = 1
    step_time: Any = None
    setup: RunSetup = field(default_factory=RunSetup)
    late_gaps: tuple[Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64), np.zeros(0, np.int64)))
    rejections: Mapping[int, str] = field(default_factory=dict)
    user: Texts | None = None
    request_class: Texts | None = None
    deadline_s: Floats | None = None
    max_tokens: Ints | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def optional(self) -> dict[str, Any]:
        """The optional columns, by name; None for one that isn't known."""
        return {name: getattr(self, name) for name in OPTIONAL}

    @property
    def arrival_s(self) -> Floats:
        """When each request came, in seconds."""
        return _seconds(self.arrival_ns)

    @property
    def scheduled_s(self) -> Floats:
        """When each request's first step began, in seconds; NaN for never."""
        return _seconds(self.scheduled_ns)

    @property
    def first_token_s(self) -> Floats:
        """When each request got its first token, in seconds; NaN for never."""
        return _seconds(self.first_token_ns)

    @property
    def finish_s(self) -> Floats:
        """When each request got its last token, in seconds; NaN for never."""
        return _seconds(self.finish_ns)

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Which requests finished."""
        return self.status == int(Status.FINISHED)  # numpy compares bytes with a plain int ten times as fast

    @property
    def wait_s(self) -> Floats:
        """Queue wait: first step's start − arrival, in seconds."""
        return _difference(self.scheduled_ns, self.arrival_ns)

    @property
    def ttft_s(self) -> Floats:
        """Time to first token: first token − arrival, queue and prefill included, in seconds."""
        return _difference(self.first_token_ns, self.arrival_ns)

    @property
    def e2e_s(self) -> Floats:
        """End-to-end latency: last token − arrival, in seconds."""
        return _difference(self.finish_ns, self.arrival_ns)

    @property
    def tpot_s(self) -> Floats:
        """Time per output token: (last − first token) / (N − 1); NaN for an answer of one token."""
        later = np.subtract(self.output_tokens, 1, dtype=np.float64)
        later[later < 1] = np.nan
        return _difference(self.finish_ns, self.first_token_ns) / later

    @cached_property
    def span_s(self) -> tuple[float, float] | None:
        """When the first request came, and when the last event of any was, in seconds; None if nobody came."""
        came = self.arrival_ns
        if NEVER in came:
            came = came[came != NEVER]
        if not len(came):
            return None
        columns = (self.arrival_ns, self.scheduled_ns, self.first_token_ns, self.finish_ns)
        return int(came.min()) / 1e9, max(int(column.max()) for column in columns) / 1e9

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last event; NaN if nobody came."""
        return float("nan") if self.span_s is None else self.span_s[1] - self.span_s[0]

    def steps(self) -> Segments:
        """The log with one row per step, ordered by start and pot.

        `kv_blocks` is -1 where the log doesn't tell: within a row, before its last step.

        Raises
        ------
        ValueError
            If the run has no log.
        """
        log = self._log()
        count = log.steps.astype(np.int64)
        row, nth, lasts = self._step_lengths(log)
        kv = log.kv_tokens[row] + nth * log.charged[row].astype(np.int64)
        total = np.cumsum(lasts)
        before = total - lasts
        start = log.start_ns[row] + before - np.repeat(before[np.cumsum(count) - count], count)
        came = np.sort(self.arrival_ns[self.status != Status.REJECTED])
        if self.pots == 1:  # within a row nobody leaves the line
            before_row = np.searchsorted(came, log.start_ns, "right")
            waiting = log.waiting[row] + np.searchsorted(came, start, "right") - before_row[row]
        else:
            seated = np.sort(self.scheduled_ns[self.scheduled_ns != NEVER])
            waiting = np.searchsorted(came, start, "right") - np.searchsorted(seated, start, "right")
        order = np.lexsort((log.pot[row], start))
        known = (nth == count[row] - 1) | (not log.kv_blocks.any())
        columns = {f.name: getattr(log, f.name)[row] for f in fields(Segments)}
        columns |= {
            "start_ns": start,
            "end_ns": start + lasts,
            "steps": np.ones(len(row), np.int64),
            "kv_tokens": kv,
            "waiting": waiting,
            "waited_request_s": np.where(nth == 0, columns["waited_request_s"], 0.0),
            "preempted": np.where(nth == 0, columns["preempted"], 0),
            "kv_blocks": np.where(known, columns["kv_blocks"], NEVER),
        }
        return Segments(**{name: column[order] for name, column in columns.items()})

    def itl(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Inter-token latency: every gap between one request's tokens, as an exact histogram.

        Returns
        -------
        gaps_s : float array
            The distinct gaps in seconds, ascending.
        tokens : int64 array
            How many tokens came after each gap.

        Raises
        ------
        ValueError
            If the run has neither a log of steps nor measured gaps.
        """
        if self.segments is None and len(self.late_gaps[0]):
            gaps_ns, of_gap = np.unique(self.late_gaps[0], return_inverse=True)
            counts = np.zeros(len(gaps_ns), np.int64)
            np.add.at(counts, of_gap, self.late_gaps[1])
            return gaps_ns / 1e9, counts
        if not self.streaming:
            done = self.finished
            later = int((self.output_tokens[done] - 1).sum())
            return np.zeros(min(later, 1)), np.full(min(later, 1), later, np.int64)
        if self.segments is None:
            raise ValueError("this result has no gaps between tokens: neither measured ones nor a log of steps")
        facts = self.log_facts
        return facts.gaps_s, facts.tokens

    @cached_property
    def log_facts(self) -> LogFacts:
        """What the log of steps comes to; read once.

        Raises
        ------
        ValueError
            If the run has no log.
        """
        from servinglab.result.totals import read_log

        return read_log(self._log(), self.step_time, *self.late_gaps, self.setup.blocks_per_step)

    @cached_property
    def unpriced_attention(self) -> str | None:
        """That attention within prompts isn't priced, in one line; None if no prompt has over 4,000 tokens.

        None, too, for a measured run: a real engine pays for all its work.
        """
        from servinglab.step_time.prompt_attention import LONG_PROMPT, unpriced_attention

        step_time = self.step_time or self.setup.step_time
        if step_time is None:
            return None
        longest = int(self.prompt_tokens.max(initial=0))
        if longest > LONG_PROMPT:  # of those who were served
            longest = int(self.prompt_tokens.max(initial=0, where=self.scheduled_ns != NEVER))
        return unpriced_attention(longest, step_time)

    def _step_lengths(self, log: Segments) -> tuple[Ints, Ints, Ints]:
        """For each step: its row of the log, its place in the row, and its nanoseconds."""
        count = log.steps.astype(np.int64)
        row = np.repeat(np.arange(len(log)), count)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        lasts = ((log.end_ns - log.start_ns) // count)[row]
        if isinstance(self.step_time, ClosedForm) and self.step_time.per_kv_token_s > 0:
            charged = log.charged[row].astype(np.int64)
            kv = log.kv_tokens[row] + nth * charged
            sides = [  # several steps in a row have no prompts
                (fixed + per_request * charged + per_kv * kv + FS_PER_NS // 2) // FS_PER_NS
                for fixed, per_request, _, per_kv, _ in self.step_time.sides_fs
            ]
            lasts = np.where(count[row] > 1, np.max(sides, axis=0), lasts)
        return row, nth, lasts

    def summary(self, slo: Mapping[str, float] | None = None) -> Summary:
        """Counts, throughput and percentiles; goodput if `slo` gives limits such as ``{"ttft_s": 2.0}``."""
        from servinglab.metrics.summary import summarize

        return summarize(self, slo)

    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """One column per fact about a request, in seconds and tokens, for a table."""
        names = np.array([status.name for status in Status])
        return {
            "request": np.arange(len(self)),
            "arrival_s": self.arrival_s,
            "scheduled_s": self.scheduled_s,
            "first_token_s": self.first_token_s,
            "finish_s": self.finish_s,
            "wait_s": self.wait_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "preemptions": self.preemptions,
            "status": names[self.status],
            **{name: np.asarray(column) for name, column in given(self.optional).items()},
        }

    def to_csv(self, path: str | Path) -> None:
        """Write every request to a CSV file; an empty field stands for what never happened."""
        rows = self.rows()
        line = ",".join("%.9f" if column.dtype.kind == "f" else "%s" for column in rows.values()) + "\r\n"
        with open(path, "w", newline="", encoding="utf-8") as file:
            file.write(",".join(rows) + "\r\n")
            for first in range(0, len(self), BLOCK):
                columns = [column[first : first + BLOCK].tolist() for column in rows.values()]
                text = "".join([line % row for row in zip(*columns, strict=True)])
                file.write(text.replace("nan", ""))  # which no name contains

    def to_parquet(self, path: str | Path) -> None:
        """Write every request to a Parquet file.

        Raises
        ------
        ImportError
            If pyarrow isn't installed.
        """
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise ImportError("writing Parquet needs pyarrow: pip install pyarrow, or write CSV") from None
        rows = self.rows()
        pq.write_table(pa.table({name: pa.array(column, from_pandas=True) for name, column in rows.items()}), path)

    def _log(self) -> Segments:
        if self.segments is None:
            raise ValueError("this result has no log of steps: segments is None")
        return self.segments


def _seconds(column_ns: Ints) -> Floats:
    return np.where(column_ns == NEVER, np.nan, column_ns / 1e9)


def _difference(later_ns: Ints, earlier_ns: Ints) -> Floats:
    seconds = (later_ns - earlier_ns) / 1e9
    if NEVER in (later_ns.min(initial=0), earlier_ns.min(initial=0)):
        seconds[(later_ns == NEVER) | (earlier_ns == NEVER)] = np.nan
    return seconds
