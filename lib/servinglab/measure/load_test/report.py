"""What did a load test show? Its folder becomes a report: the third document's eleven records, a level a row, the knee.

What counts as what:

- ``_sched`` latencies begin when the plan wanted the request sent, the others when it was sent. The knee, goodput and
  percentiles against load use the first: a client that stalls can't hide a queue.
- Warm-up and cool-down are cut by arrival. Latencies are of the requests that were scheduled in what is left, finished
  or not; one that failed ranks above every latency that was measured. With a cut, throughput counts what finished in
  the window; without one, all that finished, up to the end of the last request.
- What was offered is counted as it was sent: requests of the window, by its length or, if the client was later, by the
  time it took to send them. A ramp's knee is found from these rates, not from the ones that were planned.
- Tokens are counted by the server's `usage` or by a tokenizer, never by chunks. Where neither counts, what needs tokens
  is null.
- ITL pools the gaps between chunks that brought tokens, each shared evenly by the tokens of the later chunk, of the
  requests for which these are known.
- The client was the bottleneck of a level if its P99 of schedule delay or its event loop's P99 of lateness is above
  `late_s`, or a sending process used more than 90 % of a core over the whole stage. Its latencies then tell of the
  client. Of a stage below a second no such share is told: it would be that of the first requests.

`SCHEMA` names every field of the JSON file.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.base.checks import check_number
from servinglab.base.text import aligned, show_number
from servinglab.base.version import __version__
from servinglab.measure.load_test.records import Record, pooled_gaps, read_records, to_result
from servinglab.measure.load_test.run import read_state
from servinglab.measure.load_test.server_facts import EVERY_S
from servinglab.metrics.knee import Knee, Level, find_knee
from servinglab.metrics.rates import (
    Window,
    output_throughput,
    request_goodput,
    request_throughput,
    total_token_throughput,
)
from servinglab.metrics.slo import SLO_NAMES, good_requests
from servinglab.metrics.summary import Spread, spread_of, weighted_spread_of
from servinglab.workload.outcomes import OUTCOMES, TIMEOUTS

LATE_S = 0.005
BUSY = 0.9
SHORT_S = 1.0
_INSTANT_S = 0.01
REPORT_FORMAT = "servinglab load test report"
NOT_TOLD = "not told"

SCHEMA = {
    "format, format_version, servinglab": "what wrote this",
    "began": "UTC, ISO 8601",
    "complete": "false: the run was broken off, and this is of what it has",
    "cut": "warmup_s, cooldown_s as asked for, and how many requests they cut",
    "records": "the eleven records of the third document, by name; 'not told' where nobody said",
    "levels[].load, unit": "what was turned up, and in what: requests/s or clients",
    "levels[].requests, outcomes": "requests in the window; how many ended in which way, by the names of the records",
    "levels[].seconds": "length of the window",
    "levels[].offered_rps": "requests of the window that were sent, per second of sending; null at one instant",
    "levels[].request_throughput, output_throughput, total_token_throughput": "finished requests, their output tokens, "
    "and these with their prompt tokens, per second of the window",
    "levels[].schedule_delay_s": "sent - scheduled; a spread",
    "levels[].ttft_s, e2e_s": "first and last token - sent; spreads",
    "levels[].ttft_sched_s, e2e_sched_s": "first and last token - scheduled; spreads",
    "levels[].tpot_s": "(last - first token) / (tokens - 1) of a request; a spread",
    "levels[].itl_s": "gaps between tokens, pooled; a spread over tokens",
    "levels[].itl_requests": "of how many requests the gaps are known",
    "a spread": "count and missing values; mean and max of those measured; p50, p90, p99 by nearest rank, with the "
    "missing ranked as infinite (null)",
    "levels[].failure_rate, error_rate, timeout_rate, rate_limited_rate": "shares of the requests: all that failed; "
    "and of these the timeouts, the 429s, and the rest",
    "levels[].slo, good_requests, request_goodput, good_request_fraction": "with limits: requests that kept all, "
    "from the scheduled time, and their share; of those that finished in the window, how many a second",
    "levels[].client": "bound: whether the client was the bottleneck; why; busy: the busiest sending process's share "
    "of a core over the stage, null below a second; lag_p99_s: of the event loop",
    "levels[].server": "from its metrics: kv_cache_usage_perc mean and max (0 to 1), num_preemptions, "
    "num_requests_running and num_requests_waiting mean and max; null where it has none",
    "levels[].request_classes": "where the plan names classes: for each its requests, failures and spreads",
    "knee": "load, next_load, low, high, confidence, shares, reason: see servinglab.metrics.knee; loads are the "
    "levels' offered_rps, or clients; null with one level, or if the rates that were sent don't rise",
    "warnings": "what to know before believing the numbers",
}
"""The fields of the JSON report."""


@dataclass(frozen=True, eq=False)
class LoadTest:
    """A load test's folder, read.

    Attributes
    ----------
    state : dict
        What ``run.json`` says.
    records : tuple of Record
        In the order of their scheduled times.
    samples : tuple of dict
        The server's own metrics, with ``t_s`` on the records' clock.
    """

    state: dict[str, Any]
    records: tuple[Record, ...]
    samples: tuple[dict[str, float], ...]


@dataclass(frozen=True, eq=False)
class Report:
    """A report. Printing it gives a table.

    Attributes
    ----------
    content : dict
        What the JSON file holds: `SCHEMA`.
    levels : tuple of Level
        For figures.
    knee : Knee or None
    """

    content: dict[str, Any]
    levels: tuple[Level, ...]
    knee: Knee | None

    def __str__(self) -> str:
        return "\n".join(_text(self.content, self.knee))


def read_load_test(folder: str | Path) -> LoadTest:
    """Read a load test's folder, finished or not.

    Raises
    ------
    ValueError
        If it isn't one, or a line of it can't be read.
    OSError
        If a file can't be read.
    """
    place = Path(folder)
    state = read_state(place)
    requests, samples = place / "requests.jsonl", place / "server.jsonl"
    lines = samples.read_text(encoding="utf-8").split("\n")[:-1] if samples.exists() else []
    return LoadTest(
        state,
        tuple(read_records(requests)) if requests.exists() else (),
        tuple(json.loads(line) for line in lines),
    )


def make_report(
    test: LoadTest,
    *,
    warmup_s: float = 0.0,
    cooldown_s: float = 0.0,
    late_s: float = LATE_S,
    slo: Mapping[str, float] | None = None,
) -> Report:
    """Sum up a load test.

    Parameters
    ----------
    test : LoadTest
    warmup_s, cooldown_s : float, s
        What is cut, by arrival, from the start of each stage (and of each time that it was resumed) and before its end:
        that of its time, or else its last arrival.
    late_s : float, s
        A client later than that was the bottleneck.
    slo : mapping, optional
        Limits in seconds on ``ttft_s``, ``tpot_s`` and ``e2e_s``, the first and the last from the scheduled time.

    Raises
    ------
    ValueError
        If no request is left.
    """
    check_number("warmup_s", warmup_s, ge=0)
    check_number("cooldown_s", cooldown_s, ge=0)
    check_number("late_s", late_s, gt=0)
    for name in slo or {}:
        if name not in SLO_NAMES:
            raise ValueError(f"slo's names must be among {', '.join(SLO_NAMES)}; got {name!r}")
    windows = [_window(test, k, warmup_s, cooldown_s) for k in range(len(test.state["stages"]))]
    windows = [window for window in windows if window.rows]
    if not windows:
        raise ValueError(f"no request is left between a warm-up of {warmup_s:g} s and a cool-down of {cooldown_s:g} s")
    rows = [_level(test, window, late_s, slo) for window in windows]
    levels = tuple(_as_level(test, window) for window in windows)
    loads = [level.load for level in levels]
    rising = all(a < b for a, b in pairwise(loads))
    knee = find_knee(levels) if rising and len(levels) > 1 else None
    used = [record for window in windows for record in window.rows]
    content = {
        "format": REPORT_FORMAT,
        "format_version": 2,
        "servinglab": __version__,
        "began": datetime.fromtimestamp(test.state["began_unix_s"], UTC).isoformat(timespec="seconds"),
        "complete": test.state["complete"],
        "cut": {"warmup_s": warmup_s, "cooldown_s": cooldown_s, "requests": len(test.records) - len(used)},
        "records": _eleven(test, used, rows),
        "levels": rows,
        "knee": None
        if knee is None
        else {**asdict(knee), "shares": [[load, share] for load, share in knee.shares.items()]},
        "warnings": _warnings(test, used, rows, (warmup_s, cooldown_s), None if rising else loads),
    }
    return Report(content, levels, knee)


# Windows and levels


@dataclass(frozen=True)
class _Window:
    stage: int
    rows: list[Record]  # scheduled in it
    finished: list[Record]  # finished in it
    seconds: float
    spans: list[tuple[float, float]]  # start and end of its parts
    offered_rps: float | None  # as sent

    @property
    def span(self) -> Window:
        """Its parts, to the nanosecond, as a result has its times."""
        return Window([(round(begin * 1e9) / 1e9, round(end * 1e9) / 1e9) for begin, end in self.spans])


def _window(test: LoadTest, stage: int, warmup_s: float, cooldown_s: float) -> _Window:
    rows: list[Record] = []
    finished: list[Record] = []
    spans: list[tuple[float, float]] = []
    sent, sending_s = 0, 0.0
    for clock in test.state["clocks"]:
        mine = [
            r
            for r in test.records
            if (r.session, r.stage) == (clock["session"], stage) == (clock["session"], clock["stage"])
        ]
        mine = [record for record in mine if record.outcome != "interrupted"]
        if not mine:
            continue
        begin = clock["start_s"] + warmup_s if warmup_s else min(record.scheduled_s for record in mine)
        last_s = _sends_until(test, clock, mine) - cooldown_s
        if warmup_s or cooldown_s:
            end = last_s
        else:
            end = max(record.ended_s if record.finish_s is None else record.finish_s for record in mine)
        if end <= begin:
            continue
        inside = [record for record in mine if begin <= record.scheduled_s <= end]
        rows.extend(inside)
        sent_s = [record.sent_s for record in inside if record.sent_s is not None]
        sent += len(sent_s)
        sending_s += max(last_s, *sent_s, begin) - begin
        finished.extend(r for r in mine if r.finish_s is not None and begin <= r.finish_s <= end)
        spans.append((begin, end))
    offered = sent / sending_s if sending_s > _INSTANT_S else None
    return _Window(stage, rows, finished, sum(end - begin for begin, end in spans), spans, offered)


def _sends_until(test: LoadTest, clock: Mapping[str, Any], mine: Sequence[Record]) -> float:
    """The end of an open loop's time, or of what it had of it; where none was set, the last arrival."""
    last_s = max(record.scheduled_s for record in mine)
    sends_s = clock.get("sends_s")
    if sends_s is None or test.state["stages"][clock["stage"]]["unit"] == "clients":
        return last_s
    planned_s = clock["start_s"] + sends_s
    return max(last_s, min(planned_s, planned_s if clock["ended_s"] is None else clock["ended_s"]))


def _as_level(test: LoadTest, window: _Window) -> Level:
    """The parts of the window, one behind the other."""

    def inside(at_s: float) -> float:
        before = 0.0
        for start, end in window.spans:
            if start <= at_s <= end:
                return before + at_s - start
            before += end - start
        raise AssertionError(at_s)

    rows = sorted(window.rows, key=lambda record: record.scheduled_s)
    told = test.state["stages"][window.stage]
    offered = None if told["unit"] == "clients" else window.offered_rps
    return Level(
        load=float(told["load"] if offered is None else offered),
        seconds=window.seconds,
        arrival_s=np.array([inside(record.scheduled_s) for record in rows]),
        latency_s=np.array([math.inf if r.finish_s is None else r.finish_s - r.scheduled_s for r in rows]),
        finish_s=np.sort([inside(record.finish_s or 0.0) for record in window.finished]),
    )


def _level(test: LoadTest, window: _Window, late_s: float, slo: Mapping[str, float] | None) -> dict[str, Any]:
    told, rows = test.state["stages"][window.stage], window.rows
    span, run = window.span, to_result([*{*rows, *window.finished}], opened_s=0.0, counted=False)
    counted = all(record.output_tokens is not None for record in window.finished)
    prompt_counted = counted and all(record.prompt_tokens is not None for record in window.finished)
    outcomes = Counter(record.outcome for record in rows)
    limited, late = outcomes["rate_limited"], sum(outcomes[each.outcome] for each in TIMEOUTS)
    failed = len(rows) - outcomes["finished"]
    level: dict[str, Any] = {
        "load": told["load"],
        "unit": told["unit"],
        "requests": len(rows),
        "outcomes": {name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        "seconds": window.seconds,
        "offered_rps": window.offered_rps,
        "request_throughput": request_throughput(run, span),
        "output_throughput": output_throughput(run, span) if counted else None,
        "total_token_throughput": total_token_throughput(run, span) if prompt_counted else None,
        **_spreads(rows),
        "itl_requests": sum(record.chunk_tokens is not None for record in rows),
        "failure_rate": failed / len(rows),
        "error_rate": (failed - limited - late) / len(rows),
        "timeout_rate": late / len(rows),
        "rate_limited_rate": limited / len(rows),
    }
    if slo is not None:
        if "tpot_s" in slo and not counted:
            raise ValueError("slo: tpot_s can't be judged, as the tokens weren't counted")
        good = int((good_requests(run, slo) & span.holds(run.arrival_s)).sum())
        level |= {
            "slo": dict(slo),
            "good_requests": good,
            "request_goodput": request_goodput(run, slo, span),
            "good_request_fraction": good / len(rows),
        }
    level["client"] = _client(test, window, level, late_s)
    level["server"] = _server(test, window)
    names = sorted({record.request_class for record in rows} - {""})
    if names:
        classes = {name: [record for record in rows if record.request_class == name] for name in names}
        level["request_classes"] = {
            name: {"requests": len(of), "failed": sum(not r.finished for r in of), **_spreads(of)}
            for name, of in classes.items()
        }
    return level


def _spreads(rows: Sequence[Record]) -> dict[str, Any]:
    def since(begin: str, end: str, of: Sequence[Record] = rows) -> Spread:
        pairs = [(getattr(record, begin), getattr(record, end)) for record in of]
        return spread_of(np.array([math.nan if None in pair else pair[1] - pair[0] for pair in pairs], np.float64))

    tpot = [_tpot(record) for record in rows if not (record.finished and (record.output_tokens or 2) <= 1)]
    counted = all(record.output_tokens is not None for record in rows if record.finished)
    return {
        name: _plain(spread)
        for name, spread in {
            "schedule_delay_s": since(
                "scheduled_s", "sent_s", [record for record in rows if record.sent_s is not None]
            ),
            "ttft_s": since("sent_s", "first_token_s"),
            "ttft_sched_s": since("scheduled_s", "first_token_s"),
            "tpot_s": spread_of(np.array(tpot, np.float64)) if counted else None,
            "itl_s": weighted_spread_of(*pooled_gaps(rows)),
            "e2e_s": since("sent_s", "finish_s"),
            "e2e_sched_s": since("scheduled_s", "finish_s"),
        }.items()
    }


def _plain(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(spread).items()}


def _tpot(record: Record) -> float:
    if not record.finished or record.output_tokens is None or record.finish_s is None or record.first_token_s is None:
        return math.nan
    return (record.finish_s - record.first_token_s) / (record.output_tokens - 1)


def _clocks(test: LoadTest, window: _Window) -> list[dict[str, Any]]:
    return [clock for clock in test.state["clocks"] if clock["stage"] == window.stage and "start_s" in clock]


def _client(test: LoadTest, window: _Window, level: Mapping[str, Any], late_s: float) -> dict[str, Any]:
    crew = [worker for clock in _clocks(test, window) for worker in clock["workers"]]
    busy = max((worker["busy"] for worker in crew if worker["busy"] is not None), default=None)
    lag = max((worker["lag_p99_s"] for worker in crew if worker["lag_p99_s"] is not None), default=None)
    delay = level["schedule_delay_s"]["p99"]
    why = []
    if delay is not None and delay > late_s:
        why.append(f"P99 of schedule delay is {1000 * delay:.1f} ms")
    if lag is not None and lag > late_s:
        why.append(f"P99 of the event loop's lateness is {1000 * lag:.1f} ms")
    if busy is not None and busy > BUSY:
        why.append(f"a sending process used {100 * busy:.0f} % of a core all through")
    return {"bound": bool(why), "why": why, "late_s": late_s, "busy": busy, "lag_p99_s": lag}


def _server(test: LoadTest, window: _Window) -> dict[str, Any] | None:
    # also the last sample before and the first after: a short stage may have none inside
    spans = [(clock["start_s"] - EVERY_S, (clock["ended_s"] or math.inf) + EVERY_S) for clock in _clocks(test, window)]
    seen = [sample for sample in test.samples if any(low <= sample["t_s"] <= high for low, high in spans)]
    if not seen:
        return None
    found: dict[str, Any] = {}
    for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"):
        values = [sample[name] for sample in seen if name in sample]
        found[name] = {"mean": sum(values) / len(values), "max": max(values)} if values else None
    counts = [sample["num_preemptions"] for sample in seen if "num_preemptions" in sample]
    found["num_preemptions"] = counts[-1] - counts[0] if counts else None
    return found


# The eleven records


def _eleven(test: LoadTest, used: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    about, server, setup = test.state["about"], test.state["server"], test.state["setup"]

    def told(name: str) -> Any:
        return NOT_TOLD if about.get(name) is None else about[name]

    def each(*names: str) -> list[dict[str, Any]]:
        return [{"load": row["load"], **{name: row[name] for name in names}} for row in rows]

    def cells(what: str) -> list[dict[str, Any]]:
        spreads = ("ttft_sched_s", "itl_s", "e2e_sched_s")
        wanted = ("mean",) if what == "mean" else ("p50", "p90", "p99")
        return [
            {"load": row["load"], **{name: {w: (row[name] or {}).get(w) for w in wanted} for name in spreads}}
            for row in rows
        ]

    kv = [row["server"] for row in rows if row["server"] and row["server"]["kv_cache_usage_perc"]]
    no_metrics = f"{NOT_TOLD}: the server has no metrics that are known here"
    return {
        "model": {"name": setup["model"], "precision": told("precision"), "quantization": told("quantization")},
        "accelerator": {
            "name": told("accelerator"),
            "count": told("accelerators"),
            "memory_gib": told("memory_gib"),
        },
        "engine": {
            "name": told("engine"),
            "version": server["version"] or NOT_TOLD,
            "arguments": told("engine_args"),
            "cache_config": server["cache_config"] or NOT_TOLD,
        },
        "prompt_tokens": _lengths(used, "prompt_tokens", "prompt_tokens_asked"),
        "output_tokens": _lengths(used, "output_tokens", "max_tokens"),
        "load": {
            "unit": rows[0]["unit"],
            "levels": [row["load"] for row in rows],
            "workloads": [stage["name"] for stage in test.state["stages"]],
        },
        "latency": cells("mean"),
        "percentiles": cells("percentiles"),
        "tokens_per_second": each("output_throughput", "total_token_throughput"),
        "failures": {
            "rates": each("error_rate", "timeout_rate", "rate_limited_rate"),
            "outcomes": dict(Counter(record.outcome for record in used)),
        },
        "kv_cache": {
            "kv_cache_usage_perc": [row["kv_cache_usage_perc"] for row in kv] or no_metrics,
            "num_preemptions": [row["num_preemptions"] for row in kv] or no_metrics,
            "answers_that_name_out_of_memory": sum("out of memory" in record.detail.lower() for record in used),
        },
    }


def _lengths(used: Sequence[Record], counted: str, asked: str) -> dict[str, Any]:
    finished = [record for record in used if record.finished]
    values = [getattr(record, counted) for record in finished]
    known = np.array([value for value in values if value is not None], np.float64)
    sources = Counter(record.tokens_from or NOT_TOLD for record in finished)
    return {
        **(_plain(spread_of(known)) or {}),
        "missing": len(values) - len(known),
        "counted_by": dict(sources),
        "asked_mean": float(np.mean([getattr(record, asked) for record in used])),
    }


def _warnings(
    test: LoadTest,
    used: Sequence[Record],
    rows: Sequence[Mapping[str, Any]],
    cuts_s: tuple[float, float],
    fallen: Sequence[float] | None,
) -> list[str]:
    found = []
    if not test.state["complete"]:
        found.append("the run was broken off: this is of what it has")
    for row in rows:
        if row["client"]["bound"]:
            found.append(
                f"at {row['load']:g} {row['unit']} the client was the bottleneck ({'; '.join(row['client']['why'])}): "
                "its latencies are the client's as much as the server's"
            )
        if row["seconds"] < SHORT_S and any(cuts_s):
            found.append(
                f"the cuts leave {show_number(row['seconds'])} s at {row['load']:g} {row['unit']}: its rates are chance"
            )
    if fallen is not None:
        loads = ", ".join(map(show_number, fallen))
        found.append(f"the levels' loads don't rise ({loads} {rows[0]['unit']} were sent): no knee can be found")
    finished = [record for record in used if record.finished]
    uncounted = sum(record.output_tokens is None for record in finished)
    if uncounted:
        found.append(
            f"{uncounted:,} of {len(finished):,} answers weren't counted in tokens (no usage, no tokenizer): what "
            "needs tokens is left out"
        )
    unknown = sum(record.chunk_tokens is None for record in finished)
    if unknown:
        found.append(
            f"the gaps between tokens aren't known of {unknown:,} of {len(finished):,} answers: ITL leaves them out"
        )
    if len(rows) > 1 and not cuts_s[0]:
        found.append("no warm-up is cut: throughput counts the time in which each level fills and drains (--warmup-s)")
    if test.state["sessions"] > 1:
        found.append(f"the run was resumed, {test.state['sessions']} sessions in all: each began with an empty server")
    short = sum(
        r.output_tokens is not None and r.output_tokens < r.max_tokens and r.finish_reason == "stop" for r in finished
    )
    if short:
        found.append(f"{short:,} of {len(finished):,} answers ended before their limit: the lengths are the model's")
    return found


# Text


def _text(content: Mapping[str, Any], knee: Knee | None) -> list[str]:
    records, rows = content["records"], content["levels"]
    facts = [(str(number), name, text) for number, (name, text) in enumerate(_facts(records, rows).items(), start=1)]
    wide = max(len(name) for _, name, _ in facts)
    lines = [f"{number:>2}  {name:<{wide}}  {text}" for number, name, text in facts]
    if len(rows) == 1:
        lines += ["", *_one(rows[0])]
    else:
        lines += ["", *_many(rows)]
    for row in rows:
        for name, of in row.get("request_classes", {}).items():
            lines.append(
                f"{row['load']:g} {row['unit']}, {name}: {of['requests']:,} requests, E2E P50 "
                f"{_number(of['e2e_sched_s'], 'p50')} s, P99 {_number(of['e2e_sched_s'], 'p99')} s"
            )
    if knee is not None:
        lines += ["", f"knee  {knee}"]
    if content["warnings"]:
        lines += ["", *(f"warning: {warning}" for warning in content["warnings"])]
    return lines


def _facts(records: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    def joined(record: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in record.items())

    def lengths(record: Mapping[str, Any]) -> str:
        cells = " ".join(f"{name} {_number(record, name)}" for name in ("mean", "p50", "p90", "p99", "max"))
        by = ", ".join(f"{count:,} by {source}" for source, count in record["counted_by"].items())
        return f"{cells} (asked: mean {record['asked_mean']:,.1f}; counted: {by or 'none'})"

    load, failures, kv = records["load"], records["failures"], records["kv_cache"]
    worst = {name: max(row[name] for row in rows) for name in ("error_rate", "timeout_rate", "rate_limited_rate")}
    usage = kv["kv_cache_usage_perc"]
    percent = usage if isinstance(usage, str) else f"up to {100 * max(row['max'] for row in usage):.1f} %"
    tokens = [row["output_throughput"] for row in rows]
    return {
        "model": joined(records["model"]),
        "accelerator": joined(records["accelerator"]),
        "engine": joined(records["engine"]),
        "prompt tokens": lengths(records["prompt_tokens"]),
        "output tokens": lengths(records["output_tokens"]),
        "load": f"{', '.join(f'{level:g}' for level in load['levels'])} {load['unit']}",
        "TTFT, ITL, E2E": "below, in seconds, from the scheduled time (sched) and from the real one",
        "P50, P90, P99": "below, by nearest rank; what never came ranks as infinite",
        "output tokens/s": ", ".join("–" if value is None else show_number(value) for value in tokens),
        "failures": ", ".join(f"{name} {100 * rate:.2f} %" for name, rate in worst.items())
        + f" at most; {', '.join(f'{count:,} {name}' for name, count in failures['outcomes'].items())}",
        "KV cache": f"{percent}; {kv['answers_that_name_out_of_memory']:,} answers name out of memory",
    }


def _number(spread: Mapping[str, Any] | None, name: str) -> str:
    """A figure; infinite where a percentile lies among the missing."""
    if spread is None or (spread[name] is None and not spread.get("missing")):
        return "–"
    return "inf" if spread[name] is None else show_number(spread[name])


def _one(row: Mapping[str, Any]) -> list[str]:
    head = (
        f"{row['requests']:,} requests in {show_number(row['seconds'])} s: "
        f"offered {'–' if row['offered_rps'] is None else show_number(row['offered_rps'])}, "
        f"finished {show_number(row['request_throughput'])} requests/s"
    )
    if "slo" in row:
        limits = ", ".join(f"{name} <= {limit:g}" for name, limit in row["slo"].items())
        share = f"{100 * row['good_request_fraction']:.1f} %"
        head += f"; good {show_number(row['request_goodput'])} requests/s ({share}: {limits})"
    table = [("seconds", "mean", "P50", "P90", "P99", "max", "count", "missing")]
    for name in ("schedule_delay_s", "ttft_sched_s", "ttft_s", "tpot_s", "itl_s", "e2e_sched_s", "e2e_s"):
        spread = row[name]
        cells = [_number(spread, cell) for cell in ("mean", "p50", "p90", "p99", "max")]
        counts = ["–", "–"] if spread is None else [f"{spread['count']:,}", f"{spread['missing']:,}"]
        table.append((name.removesuffix("_s"), *cells, *counts))  # type: ignore[arg-type]
    return [head, "", *aligned(table)]


def _many(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    good, opened = "slo" in rows[0], rows[0]["unit"] != "clients"
    table: list[tuple[str, ...]] = [
        (
            rows[0]["unit"],
            *(["sent/s"] if opened else []),
            "finished/s",
            *(["good/s"] if good else []),
            "tokens/s",
            "TTFT P50",
            "P99",
            "ITL P50",
            "P99",
            "E2E P50",
            "P90",
            "P99",
            "failed",
            "delay P99",
            "client",
        )
    ]
    for row in rows:
        tokens = "–" if row["output_throughput"] is None else show_number(row["output_throughput"])
        table.append(
            (
                f"{row['load']:g}",
                *(["–" if row["offered_rps"] is None else show_number(row["offered_rps"])] if opened else []),
                show_number(row["request_throughput"]),
                *([show_number(row["request_goodput"])] if good else []),
                tokens,
                *(_number(row["ttft_sched_s"], name) for name in ("p50", "p99")),
                *(_number(row["itl_s"], name) for name in ("p50", "p99")),
                *(_number(row["e2e_sched_s"], name) for name in ("p50", "p90", "p99")),
                f"{100 * row['failure_rate']:.1f} %",
                _number(row["schedule_delay_s"], "p99"),
                "BOUND" if row["client"]["bound"] else "ok",
            )
        )
    return aligned(table)
