"""Files of runs as a `Result`: our load tests, vLLM's bench and engine, GuideLLM, AIPerf; refused where inexact.

The tools use the same words for different things. What is done about it:

- vLLM's ``ttfts`` count from the real send: kept, as ``since="sent"``.
- vLLM's ``itls`` are gaps between chunks: ITL where each answer has as many chunks as tokens, else refused.
- vLLM's ``queue_times`` say how long its client held a request back. At a finite rate ``since="scheduled"`` counts from
  before that, so that a concurrency limit can't hide a queue.
- GuideLLM's ``time_per_output_token_ms`` is (last token − send)/N: it holds the TTFT, and is refused. TPOT is made from
  the times of the first and the last token, over N − 1.
- GuideLLM's ``inter_token_latency_ms`` is that TPOT, one a request: never ITL, of which the file has no gaps.
- AIPerf's ``inter_token_latency`` is our TPOT, too, and never ITL.
- AIPerf's ``inter_chunk_latency`` is gaps between chunks: ITL where each answer has as many as tokens, else refused.
- None of these files says why an answer ended (``finish_reason``): one that its server aborted counts as whole there.
- AIPerf's ``credit_issued_ns`` is when a credit was issued, not when it was due: ``since="scheduled"`` is refused.

Their percentiles (numpy's linear rule, or others) are left aside: the metrics compute them anew, by nearest rank, with
failed requests in every denominator. Where ITL is refused, `Result.setup` says why, and the summary has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.base.checks import check_choice
from servinglab.measure.load_test.records import Record, read_records, to_result
from servinglab.measure.load_test.report import REPORT_FORMAT, read_load_test
from servinglab.measure.load_test.run import FORMAT
from servinglab.measure.readers.vllm_run import read_vllm_run
from servinglab.measure.readers.vllm_steps import is_vllm_steps, read_vllm_steps
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.workload.outcomes import NEVER, Status

SINCE = ("scheduled", "sent")


@dataclass
class _Row:
    """One request in seconds on the file's clock; None for what never happened."""

    scheduled_s: float | None
    sent_s: float
    first_s: float | None
    finish_s: float | None
    prompt_tokens: int
    output_tokens: int
    gaps_s: Sequence[float] | None = field(default=None)


def read_measured_run(path: str | Path, since: str | None = None) -> Result:
    """Read a load test of `servinglab bench http`, or a result file of another tool.

    Parameters
    ----------
    path : str or Path
        A load test's folder, or its ``requests.jsonl`` alone; the JSON of vLLM's bench, written with
        ``--save-detailed``; a vLLM engine's own times, as `servinglab.measure.readers.vllm_run` describes them; one
        recording of `servinglab bench vllm`; GuideLLM's JSON; AIPerf's JSON lines of records. The content decides, not
        the name.
    since : {"scheduled", "sent"}, optional
        What an arrival is. The default is "scheduled" for our load tests and "sent" for the others, which all have the
        real send; `Result.setup` says which it is. An engine's own times count from when it queued a request.

    Returns
    -------
    Result
        Without a log of steps, but for a recording of vLLM's. A failed request's status is its outcome, or FAILED
        where the file doesn't name it.

    Raises
    ------
    ValueError
        If the file is of none of these kinds, lacks what a `Result` needs, or has no schedule where one is asked for.
    OSError
        If it can't be read.
    """
    place = Path(path)
    if since is not None:
        check_choice("since", since, SINCE)
    if place.is_dir():
        return _folder(place, since)
    if is_vllm_steps(place):
        if since is not None:
            raise ValueError(f"{place} holds an engine's own steps, from when it got each request: since isn't theirs")
        return read_vllm_steps(place).result
    try:
        text = place.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise _unknown(place) from None
    first = _first_object(text)
    if "scheduled_s" in first and "outcome" in first:
        return _records(place, read_records(place), since)
    if "queued_ts" in first:
        if since is not None:
            raise ValueError(f"{place} holds an engine's own times, from when it queued a request: since isn't theirs")
        return read_vllm_run(place).result
    if (what := first.get("format")) in _NO_RUNS:
        raise ValueError(f"{place} holds {_NO_RUNS[what]}")
    if text.startswith("request,arrival_s,"):
        raise ValueError(f"{place} is a table of requests, without what was run and the gaps between tokens: save_run")
    try:
        whole = json.loads(text)
    except ValueError:
        return _aiperf(place, text, since)
    if isinstance(whole, dict):
        if "calibration" in whole:
            raise ValueError(
                f"{place} holds a calibration and figures, without the requests' times: read the .npz files beside it"
            )
        if "aiperf_version" in whole:
            raise ValueError(
                f"{place} holds AIPerf's summaries only: percentiles can't be taken apart. Give its file of records"
            )
        if "benchmarks" in whole:
            return _guidellm(place, whole, since)
        if "ttfts" in whole or "request_throughput" in whole:
            return _vllm(place, whole, since)
        if "metadata" in whole and "metrics" in whole:
            return _aiperf(place, text, since)
    raise _unknown(place)


_NO_RUNS = {
    REPORT_FORMAT: "a load test's report, without its requests' times: read the folder, or its requests.jsonl",
    FORMAT: "a load test's settings, without its requests: read the folder, or its requests.jsonl",
    "servinglab torch steps": "steps of bench torch, without requests: servinglab bench show reads it",
}
"""What our other files hold, by the format that they say."""


def _folder(place: Path, since: str | None) -> Result:
    runs = sorted(file.name for file in place.glob("*.npz"))
    if runs and not (place / "run.json").exists():
        raise ValueError(f"{place} holds {len(runs)} runs: give one of its files, {', '.join(runs)}")
    test = read_load_test(place)
    setup = test.state["setup"]
    about = {
        "server": setup["root"],
        "model": setup["model"],
        "workload": tuple(s["name"] for s in test.state["stages"]),
    }
    return _records(place, test.records, since, about)


def _records(place: Path, records: Sequence[Record], since: str | None, about: Mapping[str, Any] = {}) -> Result:
    used = [record for record in records if record.outcome != "interrupted"]
    if not used:
        raise ValueError(f"{place} holds no request that was sent to its end")
    since = since or "scheduled"
    try:
        return to_result(used, since, setup=RunSetup.of({"source": place.name, "since": since, **about}))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _first_object(text: str) -> Mapping[str, Any]:
    """The JSON object that a text is, or that its first line is; an empty one if neither."""
    for piece in (text.lstrip("\ufeff \r\n").split("\n", 1)[0], text):
        with suppress(ValueError):
            if isinstance(found := json.loads(piece), dict):
                return found
    return {}


def _unknown(path: Path) -> ValueError:
    return ValueError(
        f"{path} isn't a run: neither a NumPy archive of servinglab, nor the folder or the records of a load test, nor "
        "a result file of vLLM's bench, GuideLLM or AIPerf, nor a vLLM engine's times of requests"
    )


# vLLM


def _vllm(path: Path, whole: Mapping[str, Any], since: str | None) -> Result:
    names = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
    missing = [name for name in names if name not in whole]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: run vLLM's bench with --save-detailed")
    columns = [whole[name] for name in names]
    n = len(columns[0])
    if any(len(column) != n for column in columns):
        raise ValueError(f"{path}: {', '.join(names)} must be of equal length")
    held = whole.get("queue_times")
    rate = whole.get("request_rate")
    planned = held is not None and rate not in (None, "inf") and math.isfinite(float(rate))
    if since == "scheduled" and not planned:
        raise ValueError(f"{path} has no schedule: it needs queue_times and a finite request_rate")
    rows = []
    for k, (prompt, output, ttft, itls, start, error) in enumerate(zip(*columns, strict=True)):
        whole_answer = not error and output > 0
        rows.append(
            _Row(
                scheduled_s=start - held[k] if planned and held is not None else None,
                sent_s=start,
                first_s=start + ttft if whole_answer else None,
                finish_s=start + ttft + sum(itls) if whole_answer else None,
                prompt_tokens=prompt,
                output_tokens=output,
                gaps_s=itls if len(itls) == output - 1 else None,
            )
        )
    about = {"tool": "vLLM bench", "model": whole.get("model_id"), "request_rate": rate}
    return _result(path, rows, since, about | {"max_concurrency": whole.get("max_concurrency")})


# GuideLLM


def _guidellm(path: Path, whole: Mapping[str, Any], since: str | None) -> Result:
    benchmarks = whole["benchmarks"]
    if len(benchmarks) != 1:
        raise ValueError(
            f"{path} holds {len(benchmarks)} benchmarks, which can't be one run: write each to its own file"
        )
    try:
        groups = benchmarks[0]["requests"]
        rows = [
            _guidellm_row(each, kind) for kind in ("successful", "errored", "incomplete") for each in groups[kind] or ()
        ]
        strategy = benchmarks[0]["config"]["strategy"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} isn't a GuideLLM file as version 0.8 writes it: {type(error).__name__} {error}"
        ) from None
    about = {"tool": "GuideLLM", "strategy": strategy.get("type_"), "rate": strategy.get("rate")}
    return _result(path, rows, since, about, no_gaps="GuideLLM's file has no gaps between tokens, only their mean")


def _guidellm_row(each: Mapping[str, Any], kind: str) -> _Row:
    times = each["info"]["timings"]
    done = kind == "successful"
    started = times["request_start"] if times["request_start"] is not None else times["scheduled_at"]
    return _Row(
        scheduled_s=times["targeted_start"],
        sent_s=started if started is not None else times["targeted_start"],
        first_s=times["first_token_iteration"] if done else None,
        finish_s=times["last_token_iteration"] if done else None,
        prompt_tokens=each["prompt_tokens"] or 0,
        output_tokens=each["output_tokens"] or 0,
    )


# AIPerf


def _aiperf(path: Path, text: str, since: str | None) -> Result:
    if since == "scheduled":
        raise ValueError(f"{path} has no schedule: AIPerf writes when a credit was issued, not when it was due")
    rows: list[_Row] = []
    warm_up = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            each = json.loads(line)
            about, metrics = each["metadata"], each["metrics"]
            start_ns, phase = about["request_start_ns"], about["benchmark_phase"]
        except (ValueError, KeyError, TypeError):
            if not rows and not warm_up:
                raise _unknown(path) from None
            raise ValueError(f"{path}:{number}: not one of AIPerf's records") from None
        if phase != "profiling":
            warm_up += 1
            continue
        rows.append(_aiperf_row(each, start_ns, {name: entry["value"] for name, entry in metrics.items()}))
    if not rows:
        raise ValueError(f"{path} holds no record of the profiling phase") if warm_up else _unknown(path)
    return _result(path, rows, since, {"tool": "AIPerf", "warm_up_requests_left_out": warm_up})


def _aiperf_row(each: Mapping[str, Any], start_ns: int, values: Mapping[str, Any]) -> _Row:
    begin_s = start_ns / 1e9
    latency_ms, first_ms, tokens = (
        values.get(k) for k in ("request_latency", "time_to_first_token", "output_sequence_length")
    )
    cancelled = each["metadata"].get("was_cancelled")
    whole = not each.get("error") and not cancelled and None not in (latency_ms, first_ms, tokens)
    gaps_ms = values.get("inter_chunk_latency")
    return _Row(
        scheduled_s=None,
        sent_s=begin_s,
        first_s=begin_s + first_ms / 1000 if first_ms is not None and whole else None,
        finish_s=begin_s + latency_ms / 1000 if latency_ms is not None and whole else None,
        prompt_tokens=values.get("input_sequence_length") or 0,
        output_tokens=tokens or 0,
        gaps_s=[gap / 1000 for gap in gaps_ms] if gaps_ms is not None and len(gaps_ms) == (tokens or 0) - 1 else None,
    )


# All of them


def _result(path: Path, rows: list[_Row], since: str | None, about: dict[str, Any], no_gaps: str = "") -> Result:
    if not rows:
        raise ValueError(f"{path} holds no request")
    since = since or "sent"

    def arrival(row: _Row) -> float:
        return row.scheduled_s if since == "scheduled" and row.scheduled_s is not None else row.sent_s

    if since == "scheduled" and any(row.scheduled_s is None for row in rows):
        raise ValueError(f"{path} has no schedule for every request")
    rows = sorted(rows, key=arrival)
    opened = arrival(rows[0])
    done = [row.finish_s is not None for row in rows]
    unlike = sum(row.gaps_s is None and row.output_tokens > 1 for row in rows if row.finish_s is not None)
    if unlike and not no_gaps:
        no_gaps = f"{unlike} of {sum(done)} answers have other numbers of chunks than of tokens: their gaps aren't ITL"
    gaps = [] if no_gaps else [gap for row in rows if row.finish_s is not None for gap in row.gaps_s or ()]

    def ns(values: Sequence[float | None]) -> Any:
        return np.array([NEVER if at is None else round((at - opened) * 1e9) for at in values], np.int64)

    return Result(
        arrival_ns=ns([arrival(row) for row in rows]),
        scheduled_ns=np.full(len(rows), NEVER, np.int64),
        first_token_ns=ns([row.first_s for row in rows]),
        finish_ns=ns([row.finish_s for row in rows]),
        prompt_tokens=np.array([row.prompt_tokens for row in rows], np.int64),
        # what a failed request would have got isn't in the files; more than one, so that its TPOT is missing
        output_tokens=np.array([max(row.output_tokens, 2 - done[k]) for k, row in enumerate(rows)], np.int64),
        preemptions=np.zeros(len(rows), np.int32),
        status=np.where(done, Status.FINISHED, Status.FAILED).astype(np.uint8),
        pots=None,
        setup=RunSetup.of({"source": path.name, "since": since, "no_itl": no_gaps, **about}),
        late_gaps=(np.array([round(gap * 1e9) for gap in gaps], np.int64), np.ones(len(gaps), np.int64)),
    )
