"""Which requests did a real service get? Readers of public traces.

Two formats are told apart by their content, plain or gzipped:

- Azure LLM inference traces (Azure/AzurePublicDataset): CSV with the columns TIMESTAMP (up to nine decimals),
  ContextTokens and GeneratedTokens. The hours of 2023 write UTC times without an offset, the weeks of 2024
  with one; both are read.
- Mooncake traces (kvcache-ai/Mooncake): one JSON object a line with timestamp (milliseconds), input_length,
  output_length and mostly hash_ids, the ids of the prompt's blocks of 512 tokens.

Times are read as whole nanoseconds and moved so that the first request comes at 0. A trace says when requests
came, not how long they waited, and nothing about the machine. Nothing is repaired or dropped in silence: no
row of the hours of 2023 or of Mooncake's traces has an empty answer, so 0 output tokens are refused like any
other malformed row. Blank lines are passed over.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.workload.model import MAX_TIME_S, Workload
from servinglab.workload.request import MAX_TOKENS

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|([+-])([01]\d|2[0-3]):?([0-5]\d))?",
    re.ASCII,
)
_WHOLE = re.compile(r"-?\d{1,18}(?:\.0*)?", re.ASCII)

Row = tuple[int, int, int, list[int] | None]
"""Time in ns from the format's own origin, prompt tokens, output tokens, prefix hashes."""


class TraceError(ValueError):
    """A trace can't be read. The message begins with the file and the line, `trace.csv:12:`.

    Attributes
    ----------
    path : str
        The file.
    line : int
        The line, from 1.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path, self.line = path, line


def read_trace(path: str | os.PathLike[str]) -> Workload:
    """Read a public trace as a workload.

    Parameters
    ----------
    path : path
        An Azure LLM CSV or a Mooncake JSONL file, plain or gzipped. The content decides, not the name.

    Returns
    -------
    Workload
        One row a request, in the file's order; the first arrives at 0 s, and nanoseconds are kept. The name
        is the file's. `prefix_hashes` is filled from a Mooncake trace that has them.

    Raises
    ------
    TraceError
        If the file is empty, of another format, cut off or not UTF-8; if a row lacks a field or has one too
        many; if a time goes back, or isn't a time; if a count isn't a whole number, is negative, or is 0 for
        output tokens.
    OSError
        If the file can't be opened.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "hour.csv"
    >>> _ = file.write_text(
    ...     "TIMESTAMP,ContextTokens,GeneratedTokens\\n"
    ...     "2023-11-16 18:15:46.6805900,374,44\\n"
    ...     "2023-11-16 18:15:50.9951690,396,109\\n"
    ... )
    >>> trace = read_trace(file)
    >>> trace.arrival_s, trace.output_tokens
    (array([0.      , 4.314579]), array([ 44, 109]))
    """
    name = os.fspath(path)
    lines = _read_lines(name)
    first, opening = next(lines, (1, ""))
    try:
        parse, held = _recognise(opening)
    except ValueError as error:
        raise TraceError(name, first, str(error)) from None
    rows: list[Row] = []
    at = first
    for line, text in itertools.chain([(first, opening)] if held else [], lines):
        try:
            row = parse(text)
            if rows:
                _check_follows(row, rows[-1], at, rows[0])
        except ValueError as error:
            raise TraceError(name, line, str(error)) from None
        rows.append(row)
        at = line
    if not rows:
        raise TraceError(name, first, "the header is all there is: no request follows")
    time_ns, prompt_tokens, output_tokens, hashes = zip(*rows, strict=True)
    return Workload.from_arrivals(
        np.array([t - time_ns[0] for t in time_ns]) / 1e9,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefix_hashes=None if hashes[0] is None else hashes,
        name=Path(name).name,
    )


def _read_lines(path: str) -> Iterator[tuple[int, str]]:
    """The file's lines that aren't blank, with their numbers."""
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise TraceError(path, 1, f"the gzip file is damaged or cut off ({error})") from None
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(path, line, f"the file must be UTF-8 text ({error.reason})") from None
    for line, text in enumerate(content.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        if text.strip():
            yield line, text


def _recognise(opening: str) -> tuple[Callable[[str], Row], bool]:
    """The parser of a row, and whether the first line is a row."""
    if not opening:
        raise ValueError("the file is empty")
    if opening.lstrip().startswith("{"):
        return _mooncake_row, True
    header = [field.strip() for field in _split(opening)]
    if not set(header) & set(_AZURE_COLUMNS):
        known = f"neither the Azure header {','.join(_AZURE_COLUMNS)} nor a Mooncake JSON object"
        raise ValueError(f"the first line is {known}: {_brief(opening)}")
    for column in _AZURE_COLUMNS:
        if header.count(column) != 1:
            raise ValueError(f"the header must have the column {column} once; got {_brief(opening)}")
    time_at, prompt_at, output_at = (header.index(column) for column in _AZURE_COLUMNS)

    def azure_row(text: str) -> Row:
        fields = _split(text)
        if len(fields) != len(header):
            raise ValueError(f"the row must have {len(header)} fields, as the header; got {_brief(text)}")
        return (
            _clock_ns(fields[time_at].strip()),
            _whole("ContextTokens", fields[prompt_at].strip(), 0),
            _whole("GeneratedTokens", fields[output_at].strip(), 1),
            None,
        )

    return azure_row, False


def _split(text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise ValueError(f"the row isn't CSV ({error}): {_brief(text)}") from None


def _clock_ns(text: str) -> int:
    """Nanoseconds from the year 1 to a UTC time, whole: a float couldn't hold them."""
    match = _CLOCK.fullmatch(text)
    try:
        day, hours, minutes, seconds, decimals, sign, off_hours, off_minutes = match.groups()  # type: ignore
        day_number = _day_number(day)
    except (AttributeError, ValueError):
        example = "2023-11-16 18:15:46.6805900"
        raise ValueError(f"TIMESTAMP must be a time such as {example}; got {_brief(text)}") from None
    minute = (day_number * 24 + int(hours)) * 60 + int(minutes)
    if sign:
        minute -= int(f"{sign}1") * (int(off_hours) * 60 + int(off_minutes))
    return (minute * 60 + int(seconds)) * 10**9 + int((decimals or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _day_number(day: str) -> int:
    return date.fromisoformat(day).toordinal()


def _mooncake_row(text: str) -> Row:
    try:
        row = json.loads(text, parse_float=Decimal, parse_constant=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the line must be one whole JSON object ({error}); got {_brief(text)}") from None
    if not isinstance(row, dict):
        raise ValueError(f"the line must be one JSON object; got {_brief(text)}")
    for key in _MOONCAKE_KEYS:
        if key not in row:
            raise ValueError(f"the object must have the key {key}; got {_brief(text)}")
    time_ms = row["timestamp"]
    if not _is_number(time_ms) or not 0 <= time_ms <= MAX_TIME_S * 1000:
        limit = f"{MAX_TIME_S * 1000:g}"
        raise ValueError(f"timestamp must be a number of ms from 0 to {limit}; got {_brief(time_ms)}")
    hashes = row.get("hash_ids")
    if hashes is not None:
        if not isinstance(hashes, list):
            raise ValueError(f"hash_ids must be a list of whole numbers; got {_brief(hashes)}")
        hashes = [_whole(f"hash_ids[{k}]", entry, 0, 2**53) for k, entry in enumerate(hashes)]
    return (
        round(time_ms * 10**6),
        _whole("input_length", row["input_length"], 0),
        _whole("output_length", row["output_length"], 1),
        hashes,
    )


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Decimal) and value.is_finite())


def _whole(name: str, value: Any, least: int, most: int = MAX_TOKENS) -> int:
    """A count, from a CSV field or a JSON value."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value.partition(".")[0])
    if not _is_number(value) or not least <= value <= most or value != int(value):
        raise ValueError(f"{name} must be a whole number from {least} to {most}; got {_brief(value)}")
    return int(value)


def _check_follows(row: Row, before: Row, line_before: int, first: Row) -> None:
    if row[0] < before[0]:
        back_s = Decimal(before[0] - row[0]) / 10**9
        raise ValueError(f"the time must not go back; it is {back_s} s before that of line {line_before}")
    if row[0] - first[0] > MAX_TIME_S * 10**9:
        raise ValueError(f"the trace must span at most {MAX_TIME_S:g} s")
    if (row[3] is None) != (first[3] is None):
        raise ValueError("hash_ids must be in every row or in none; the first row differs")


def _brief(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
