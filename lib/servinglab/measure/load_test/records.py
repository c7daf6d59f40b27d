"""What came of each request? One line of JSON a request, and from the lines a `Result`.

The fields of a line, times in seconds since the run began, null for what never happened or isn't known:

=====================  ================================================================================================
request                number in the plan, from 0
stage                  which step of the plan, from 0
session                0, and one more each time the run was resumed
request_class          what kind of request it is; empty if the plan doesn't say
user                   who sends it; empty if the plan doesn't say
deadline_s             by how many seconds after its arrival the whole answer is wanted
scheduled_s            when the plan wanted it sent
sent_s                 when it was sent: just before the client asked for a connection
first_token_s          when the first chunk with output came
finish_s               when the last chunk with output came, of an answer that is whole
ended_s                when the client was done with it, however it ended
outcome                one of `servinglab.workload.outcomes.OUTCOMES`
http_status            the status of the response
detail                 what was wrong, for a person
retry_after_s          what a response of 429 or 503 asked for; it is recorded, and nothing is sent again
prompt_tokens_asked    words in the prompt
max_tokens             the limit sent to the server
prompt_tokens          as counted; see tokens_from
output_tokens          as counted
tokens_from            usage, tokenizer, or empty: not counted
chunk_tokens_from      how the tokens of a chunk are known (`servinglab.measure.load_test.stream`); empty: unknown
finish_reason          why the server stopped, in its words
chunk_s                when each chunk with output came, in seconds since sent_s
chunk_tokens           tokens in each of them
=====================  ================================================================================================
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_choice
from servinglab.metrics.streams import chunk_gaps
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.workload.outcomes import NEVER, OUTCOMES, Status


@dataclass(frozen=True)
class Record:
    """One request, with the fields of its line."""

    request: int
    stage: int
    session: int
    request_class: str
    user: str
    deadline_s: float | None
    scheduled_s: float
    sent_s: float | None
    first_token_s: float | None
    finish_s: float | None
    ended_s: float
    outcome: str
    http_status: int | None
    detail: str
    retry_after_s: float | None
    prompt_tokens_asked: int
    max_tokens: int
    prompt_tokens: int | None
    output_tokens: int | None
    tokens_from: str
    chunk_tokens_from: str
    finish_reason: str
    chunk_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...] | None

    @property
    def finished(self) -> bool:
        """Whether the answer is whole."""
        return self.outcome == "finished"

    @property
    def schedule_delay_s(self) -> float | None:
        """How late the client was: sent − scheduled."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    def gaps(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Gaps between the chunks that brought tokens, each shared evenly by the tokens of the later chunk.

        Returns
        -------
        gaps_s : float array
        tokens : int64 array
            How many share each gap: see `servinglab.metrics.streams.chunk_gaps`. Empty where the tokens of the chunks
            aren't known.
        """
        kept = [(at_s, count) for at_s, count in zip(self.chunk_s, self.chunk_tokens or (), strict=False) if count]
        if not kept:
            return np.zeros(0), np.zeros(0, np.int64)
        return chunk_gaps(*zip(*kept, strict=True))


def pooled_gaps(records: Sequence[Record]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The gaps of all records, ascending, and the tokens that share each."""
    each = [record.gaps() for record in records]
    gaps_s = np.concatenate([np.zeros(0), *(gaps for gaps, _ in each)])
    tokens = np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in each)])
    order = np.argsort(gaps_s, kind="stable")
    return gaps_s[order], tokens[order]


_FIELDS = tuple(each.name for each in fields(Record))


def record_of(line: str | bytes) -> Record:
    """Read one line.

    Raises
    ------
    ValueError
        If it isn't one.
    """
    row = json.loads(line)
    if isinstance(row, dict) and "kind" in row:  # written before a request had these names
        row = {"request_class": row.pop("kind"), "user": "", "deadline_s": None, **row}
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        raise ValueError("a record must be a JSON object with exactly the fields of a request")
    check_choice("outcome", row["outcome"], tuple(OUTCOMES))
    for name in ("chunk_s", "chunk_tokens"):
        row[name] = None if row[name] is None else tuple(row[name])
    if row["chunk_tokens"] is not None and len(row["chunk_tokens"]) != len(row["chunk_s"]):
        raise ValueError("chunk_tokens must be as many as chunk_s")
    return Record(**row)


def read_records(path: Path) -> list[Record]:
    """Read a file of requests; each request once, as it ended last.

    A last line without its end, as a killed run leaves it, is passed over: that request is sent again on resuming.

    Raises
    ------
    ValueError
        If another line isn't a record, naming the line.
    """
    latest: dict[int, Record] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = record_of(line)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        latest[record.request] = record
    return sorted(latest.values(), key=lambda record: (record.scheduled_s, record.request))


def to_result(
    records: Sequence[Record],
    since: str = "scheduled",
    opened_s: float | None = None,
    setup: RunSetup = RunSetup(),  # noqa: B008  (it can't be changed)
    counted: bool = True,
) -> Result:
    """A measured run as a `Result` without a log of steps.

    Parameters
    ----------
    records : sequence of Record
        At least one. They are put in the order of their arrivals.
    since : {"scheduled", "sent"}
        What an arrival is: when the plan wanted the request sent, so that a client that stalls can't hide a queue, or
        when it was sent. A request that was never sent arrived when it was scheduled.
    opened_s : float, optional
        Time 0 of the result, on the records' clock; the first arrival if not given.
    setup : RunSetup, optional
        What was run.
    counted : bool
        Whether the tokens of finished requests must have been counted; if not, an unknown number counts as 0.

    Returns
    -------
    Result
        A request that failed has its outcome's status; its output tokens are the limit that was asked for. Times to
        first tokens of answers that failed later are kept. The gaps between tokens are in `late_gaps`.

    Raises
    ------
    ValueError
        If the tokens of a finished request weren't counted.
    """
    check_choice("since", since, ("scheduled", "sent"))
    if not records:
        raise ValueError("records must hold at least one request; got none")
    uncounted = sum(record.finished and not record.output_tokens for record in records)
    if uncounted and counted:
        raise ValueError(
            f"{uncounted} of {len(records)} requests finished with an unknown number of tokens: the server sent no "
            "usage, and chunks aren't tokens. Give the load test a tokenizer"
        )

    def arrival(record: Record) -> float:
        return record.sent_s if since == "sent" and record.sent_s is not None else record.scheduled_s

    rows = sorted(records, key=lambda record: (arrival(record), record.request))
    opened = arrival(rows[0]) if opened_s is None else opened_s

    def ns(times: Iterable[float | None]) -> Any:
        return np.array([NEVER if at is None else round((at - opened) * 1e9) for at in times], np.int64)

    status = np.array([Status.of(record.outcome) for record in rows], np.uint8)
    gaps_s, tokens = pooled_gaps(rows)
    return Result(
        arrival_ns=ns(map(arrival, rows)),
        scheduled_ns=np.full(len(rows), NEVER, np.int64),
        first_token_ns=ns(record.first_token_s for record in rows),
        finish_ns=ns(record.finish_s for record in rows),
        prompt_tokens=np.array([_counted(record.prompt_tokens, record.prompt_tokens_asked) for record in rows]),
        output_tokens=np.array(
            [record.output_tokens or 0 if record.finished else record.max_tokens for record in rows], np.int64
        ),
        preemptions=np.zeros(len(rows), np.int32),
        status=status,
        pots=None,
        setup=setup,
        **_optional(rows),
        late_gaps=(np.rint(gaps_s * 1e9).astype(np.int64), tokens),
        rejections={int(k): Status.RATE_LIMITED.meaning for k in np.flatnonzero(status == Status.RATE_LIMITED)},
    )


def _optional(rows: Sequence[Record]) -> dict[str, Any]:
    """What the requests say of themselves, where all of them do."""
    texts = {name: tuple(getattr(record, name) for record in rows) for name in ("user", "request_class")}
    deadlines = [record.deadline_s for record in rows]
    return {
        **{name: column if any(column) else None for name, column in texts.items()},
        "deadline_s": None if None in deadlines else np.array(deadlines, np.float64),
        "max_tokens": np.array([record.max_tokens for record in rows], np.int64),
    }


def _counted(count: int | None, asked: int) -> int:
    return asked if count is None else count


@contextmanager
def unpacked(path: str | Path, command: str) -> Generator[Path]:
    """The folder that a command wrote, or that a zip file holds; the latter is gone afterwards.

    Raises
    ------
    ValueError
        If it is a file, but no whole zip file; the message names the command.
    """
    if not Path(path).is_file():
        yield Path(path)
        return
    with TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        except (zipfile.BadZipFile, zlib.error):
            raise ValueError(f"{path} must be a folder of {command}, or a zip file of one") from None
        yield Path(folder)
