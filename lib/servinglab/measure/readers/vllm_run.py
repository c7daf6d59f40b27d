"""What did a real engine do with a real workload? A reader of measured runs, and how far a simulation is from one.

The format is that of LLMServingSim's published vLLM runs: `NAME_requests.jsonl` holds one JSON object a request with
its lengths and its times on the engine's monotonic clock; `NAME_meta.json`, where there is one, the engine's settings;
`NAME_timeseries.csv` the engine's log, a row a second. Times are moved so that the first request is queued at 0.

A run becomes a `Workload` (what came) and a measured `Result` without a log of steps (what happened). Preemptions
aren't in these files and count as 0. Nothing is repaired or dropped in silence.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_number
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.scheduling.blocks import Blocks
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import Status
from servinglab.workload.request import MAX_TOKENS
from servinglab.workload.traces import TraceError

_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_LENGTHS = ("input_toks", "output_toks")
_REQUESTS = "_requests.jsonl"

# vLLM 0.19's defaults on a GPU under 70 GiB, for runs without a meta file
_VLLM_0_19 = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


class SeveralEngines(ValueError):
    """A run of engines beside each other, each with seats of its own: one engine's simulation can't stand for them."""


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A real run: what came, what happened, and under which settings.

    Attributes
    ----------
    name : str
    workload : Workload
        Arrivals are when the engine queued each request.
    result : Result
        Measured times, by the same order; no log of steps.
    scheduler : ContinuousBatching
        The engine's settings.
    kv : Blocks or None
        The engine's usable blocks; None where the file doesn't say.
    timeseries : mapping of str to float array
        The engine's log, a column each; empty where there is no such file.
    meta : mapping
        The settings as the engine wrote them; empty where there is no such file.
    """

    name: str
    workload: Workload
    result: Result
    scheduler: ContinuousBatching
    kv: Blocks | None = None
    timeseries: Mapping[str, Floats] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.workload)

    def head(self, n: int) -> MeasuredRun:
        """The first `n` requests by the time they were queued, and nothing of what came later: no engine's log."""
        n = check_number("n", n, ge=1, le=len(self), integer=True)
        whole = self.result
        names = ("arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "preemptions", "status")
        columns = {name: getattr(whole, name)[:n] for name in names}
        work = self.workload.head(n)
        result = Result(prompt_tokens=work.prompt_tokens, output_tokens=work.output_tokens, **columns)
        return MeasuredRun(self.name, work, result, self.scheduler, self.kv, meta=self.meta)


def read_vllm_run(
    path: str | os.PathLike[str], *, max_num_seqs: int | None = None, usable_blocks: int | None = None
) -> MeasuredRun:
    """Read one run of a real vLLM.

    Parameters
    ----------
    path : path
        The file of requests, `NAME_requests.jsonl`. The settings and the engine's log are looked for beside it.
    max_num_seqs, usable_blocks : int, optional
        Settings known from elsewhere; they go before those of the meta file. Without a meta file max_num_seqs is the
        most requests that the engine's log ever shows running, if others waited meanwhile; else vLLM 0.19's default.

    Returns
    -------
    MeasuredRun
        Asynchronous scheduling is on and 2,048 tokens are a step's budget unless the meta file says otherwise: vLLM
        0.19's defaults. Prefix caching is on where blocks are counted.

    Raises
    ------
    TraceError
        If a file isn't as described, naming file and line.
    SeveralEngines
        If the meta file's data_parallel_size is above 1.
    OSError
        If the file of requests can't be opened.
    """
    file = Path(path)
    name = file.name.removesuffix(_REQUESTS)
    rows = _read_requests(file)
    meta, series = (
        _read_meta(file.with_name(f"{name}_meta.json")),
        _read_series(file.with_name(f"{name}_timeseries.csv")),
    )
    rows.sort(key=lambda row: row["queued_ts"])
    opens = rows[0]["queued_ts"]
    queued, scheduled, first, last = ([round((row[k] - opens) * 1e9) for row in rows] for k in _TIMES)
    prompts, outputs = ([row[k] for row in rows] for k in _LENGTHS)
    work = Workload.from_arrivals(np.array(queued) / 1e9, prompts, outputs, name=name)
    result = Result(
        arrival_ns=np.array(queued, np.int64),
        scheduled_ns=np.array(scheduled, np.int64),
        first_token_ns=np.array(first, np.int64),
        finish_ns=np.array(last, np.int64),
        prompt_tokens=work.prompt_tokens,
        output_tokens=work.output_tokens,
        preemptions=np.zeros(len(rows), np.int32),
        status=np.full(len(rows), Status.FINISHED, np.uint8),
        setup=RunSetup(source=name),
    )
    scheduler, kv = _settings(meta, series, max_num_seqs, usable_blocks)
    return MeasuredRun(name, work, result, scheduler, kv, series, meta)


def _read_requests(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen: dict[Any, int] = {}
    for line, text in enumerate(_text(file).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            rows.append(_request(text))
            before = seen.setdefault(rows[-1]["request_id"], line)
            if before != line:
                raise ValueError(f"request_id {rows[-1]['request_id']!r} was in line {before} already")
        except ValueError as error:
            raise TraceError(str(file), line, str(error)) from None
    if not rows:
        raise TraceError(str(file), 1, "the file holds no request")
    return rows


def _request(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the line must be one whole JSON object ({error})") from None
    if not isinstance(row, dict):
        raise ValueError("the line must be a JSON object")
    missing = [key for key in ("request_id", *_LENGTHS, *_TIMES) if key not in row]
    if missing:
        raise ValueError(f"the object must have the keys {', '.join(missing)}")
    if not isinstance(row["request_id"], (str, int)):
        raise ValueError(f"request_id must be a text or a whole number; got {row['request_id']!r}")
    for key in _LENGTHS:
        row[key] = check_number(key, row[key], ge=1, le=MAX_TOKENS, integer=True)
    for key in _TIMES:
        row[key] = check_number(key, row[key], ge=0)
    for before, after in itertools.pairwise(_TIMES):
        if row[after] < row[before]:
            raise ValueError(f"{after} must not be before {before}; got {row[after]!r} and {row[before]!r}")
    return row


def _read_meta(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        meta = json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise TraceError(str(file), error.lineno, f"not JSON: {error.msg}") from None
    if not isinstance(meta, dict):
        raise TraceError(str(file), 1, "the file must hold one JSON object")
    return meta


def _read_series(file: Path) -> dict[str, Floats]:
    if not file.exists():
        return {}
    rows = list(csv.reader(_text(file).splitlines()))
    if not rows or not {"t", "running", "waiting"} <= set(rows[0]):
        raise TraceError(str(file), 1, "the header must have the columns t, running and waiting")
    table: list[list[float]] = []
    for line, row in enumerate(rows[1:], start=2):
        try:
            if len(row) != len(rows[0]):
                raise ValueError(f"the row must have {len(rows[0])} fields; got {len(row)}")
            numbers = [float(entry) for entry in row]
            if not all(map(math.isfinite, numbers)):
                raise ValueError("the fields must be finite numbers")
        except ValueError as error:
            raise TraceError(str(file), line, str(error)) from None
        table.append(numbers)
    columns = np.array(table, np.float64).reshape(-1, len(rows[0])).T
    return dict(zip(rows[0], columns, strict=True))


def _text(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TraceError(str(file), line, f"the file must be UTF-8 text ({error.reason})") from None


def _settings(
    meta: Mapping[str, Any], series: Mapping[str, Floats], max_num_seqs: int | None, usable_blocks: int | None
) -> tuple[ContinuousBatching, Blocks | None]:
    """The engine's settings: given, else as resolved by the engine, else as asked for, else vLLM 0.19's."""
    resolved = meta.get("resolved_config", {}).get("scheduler_config", {})
    asked = meta.get("engine_kwargs", {})
    cache = meta.get("kv_cache", {})

    def setting(key: str, default: Any) -> Any:
        for source in (resolved, asked):
            if source.get(key) is not None:
                return source[key]
        return default

    if (engines := setting("data_parallel_size", 1)) != 1:
        raise SeveralEngines(
            f"data_parallel_size must be 1; got {engines}: this run is of {engines} engines with seats and a budget "
            "each, and one engine is simulated"
        )
    seats = max_num_seqs
    if seats is None:
        seats = setting("max_num_seqs", _seats_shown(series) or _VLLM_0_19["max_num_seqs"])
    if usable_blocks is None and cache.get("num_gpu_blocks"):
        usable_blocks = cache["num_gpu_blocks"] - 1  # one is the null block
    kv = Blocks(usable_blocks, cache.get("block_size", 16)) if usable_blocks else None
    scheduler = ContinuousBatching(
        seats,
        setting("max_num_batched_tokens", _VLLM_0_19["max_num_batched_tokens"]),
        chunked_prefill=setting("enable_chunked_prefill", True),
        long_prefill_token_threshold=setting("long_prefill_token_threshold", 0),
        policy=setting("policy", "fcfs"),
        full_prompt_gate=setting("scheduler_reserve_full_isl", True),
        prefix_caching=kv is not None and cache.get("enable_prefix_caching", True),
        async_scheduling=setting("async_scheduling", True),
    )
    return scheduler, kv


def _seats_shown(series: Mapping[str, Floats]) -> int | None:
    """The most that ever ran, if others waited meanwhile: then it was the cap."""
    if not len(series.get("running", ())):
        return None
    most = series["running"].max()
    full = series["running"] == most
    return int(most) if full.sum() > 1 and (series["waiting"][full] > 0).any() else None
