"""How far is the simulator from real engines? The error budget behind `servinglab validate`.

Each figure is computed when asked for, from the public data in the folder that SERVINGLAB_DATA names: decisions of a
real scheduler, replayed; real runs, fitted to the times of their first requests and simulated whole; one run's
coefficients carried to another device; published points of closed loops, predicted from others. What isn't there is
named, not skipped in silence.

A run's recorded arrivals and lengths are the simulator's input, as any workload's are, and the limits hold for that.
Each run is also fitted knowing nothing of what comes after the first requests, which is reported without a limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import permutations
from pathlib import Path
from typing import Any

from servinglab.fidelity.published_points import Point, fit_capped, leave_one_out
from servinglab.hardware import catalog
from servinglab.measure.calibration.run_fit import RunFit, carry, fit_run, replay, roofline_start, step_of
from servinglab.measure.readers.vllm_run import MeasuredRun, SeveralEngines, read_vllm_run
from servinglab.result.compare import relative_errors
from servinglab.scheduling.recorded import differences, read_engine_trace
from servinglab.workload.public_data import data_folder

PARTS = ("traces", "runs", "carried", "closed-loop", "shapes")
MEAN_LIMIT, P99_LIMIT = 0.03, 0.06
ITL_LIMIT, TTFT_LIMIT = 0.05, 0.10  # of a closed loop's predicted points
FITTED_CLIENTS = (1, 5, 25, 50, 150)

_NAMES = {
    "request_throughput": "requests/s",
    "output_throughput": "tokens/s",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "E2E",
    "itl_s": "ITL",
    "tokens_per_s": "tokens/s",
}


Runs = dict[str, tuple[MeasuredRun, RunFit]]


@dataclass(frozen=True)
class Row:
    """One line of the budget.

    Attributes
    ----------
    part : str
        One of `PARTS`.
    subject : str
        What was compared.
    figure : str
        Which figure of it.
    error : float or None
        (simulated − real) / real; for traces, the share of steps that differ. None where the data is absent.
    limit : float or None
        What the error must stay within, either way; None where it is only reported.
    note : str
    """

    part: str
    subject: str
    figure: str
    error: float | None
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the error is within its limit; None where there is no limit or no error."""
        return None if self.error is None or self.limit is None else abs(self.error) <= self.limit


def error_budget(folder: Path | None, parts: Iterable[str] = PARTS, seed: int = 0) -> Iterator[Row]:
    """The rows, part by part, as they are computed; the runs take about half a minute each.

    Parameters
    ----------
    folder : path or None
        The data; None where there is none.
    parts : iterable of str
        Some of `PARTS`.
    seed : int
        Of the fits' draws.

    Raises
    ------
    TraceError, ValueError
        If a file is there but isn't as described.
    """
    runs: Runs = {}
    made: dict[str, Callable[[Path], Iterator[Row]]] = {
        "traces": _traces,
        "runs": lambda folder: _runs(folder, runs, seed),
        "carried": lambda folder: _carried(folder, runs, seed),
        "closed-loop": _closed_loop,
        "shapes": _shapes,
    }
    for part in parts:
        if part not in made:
            raise ValueError(f"parts must be some of {', '.join(PARTS)}; got {part!r}")
        if folder is None:
            yield Row(part, "SERVINGLAB_DATA isn't set", "", None, note="absent; see `servinglab data`")
        else:
            yield from made[part](folder)


def recorded() -> list[Row]:
    """The figures of the budget as they were when last computed, for readers who don't have the data.

    ``servinglab validate --json lib/servinglab/data/error_budget.json`` writes it; where the data is there, a test
    computes it again and compares.

    Examples
    --------
    >>> sum(bool(row.met) for row in recorded()), sum(row.limit is not None for row in recorded())
    (26, 26)
    """
    rows = json.loads((resources.files("servinglab") / "data" / "error_budget.json").read_text("utf-8"))
    made = (Row(**{name: value for name, value in row.items() if name != "met"}) for row in rows)
    return [row for row in made if row.error is not None]  # what was left out has none


def as_dicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows as plain data, `met` included.

    Examples
    --------
    >>> as_dicts([Row("runs", "a card", "mean TTFT", 0.02, 0.03)])[0]["met"]
    True
    """
    return [{**asdict(row), "met": row.met} for row in rows]


def table(rows: Iterable[Row]) -> str:
    """The rows, aligned.

    Examples
    --------
    >>> print(table([Row("runs", "a card", "mean TTFT", 0.02, 0.03), Row("runs", "a card", "P99 TTFT", -0.07, 0.06)]))
    runs  a card  mean TTFT  +2.0 %  within 3 %
    runs  a card  P99 TTFT   -7.0 %  NOT within 6 %
    """
    lines = []
    for row in rows:
        error = "–" if row.error is None else f"{row.error:+.1%}".replace("%", " %")
        verdict = "" if row.limit is None else f"{'' if row.met else 'NOT '}within {100 * row.limit:.3g} %"
        if row.part == "traces" and row.error is not None:
            error, verdict = ("equal" if row.error == 0 else "NOT equal"), ""
        lines.append([row.part, row.subject, row.figure, error, "; ".join(filter(None, (verdict, row.note)))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `servinglab validate`."""
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="of the fits' draws; 0 if not given")
    parser.add_argument("--json", metavar="FILE", help="write the rows; - is stdout, instead of the table")


def validate_main(args: argparse.Namespace) -> int:
    """Print the error budget; 1 if a limit is exceeded, 0 otherwise, absent data included."""
    rows = []
    for row in error_budget(data_folder(), args.part or PARTS, args.seed):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r{len(rows)} figures", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if args.json:
        text = json.dumps(as_dicts(rows), indent=2)
        if args.json == "-":
            print(text)
        else:
            Path(args.json).write_text(text + "\n", encoding="utf-8")
    if args.json != "-":
        print(table(rows))
        limited = [row for row in rows if row.met is not None]
        print(f"\n{sum(bool(row.met) for row in limited)} of {len(limited)} figures with a limit are within it")
    return 1 if any(row.met is False for row in rows) else 0


def start_of(name: str) -> dict[str, float] | None:
    """Where a run's fit starts, if its name is DEVICE_MODEL and the catalogue knows both.

    Examples
    --------
    >>> start_of("RTX4090_Llama-3.1-8B") == roofline_start("llama-3.1-8b", "rtx-4090")
    True
    >>> start_of("some run") is None
    True
    """
    device, _, model = name.partition("_")
    try:
        return roofline_start(catalog.model(model), catalog.accelerator(device))
    except (KeyError, ValueError):
        return None


def _traces(folder: Path) -> Iterator[Row]:
    files = sorted((folder / "vllm_traces").glob("*.json"))
    if not files:
        yield _absent("traces", folder / "vllm_traces")
        return
    steps = stalled = 0
    unequal = []
    for file in files:
        trace = read_engine_trace(file)
        if trace.get("stalled"):
            stalled += 1  # the engine waits for ever; ours rejects the request, with the reason
            continue
        steps += len(trace["steps"])
        if differences(trace) is not None:
            unequal.append(file.stem)
    note = f"{steps:,} steps of {len(files) - stalled} scenarios compared; {stalled} stalls there, rejected here"
    if unequal:
        note += f"; unequal: {', '.join(unequal)}"
    yield Row("traces", "vLLM's scheduler", "every step", len(unequal) / len(files), 0.0, note)


def _runs(folder: Path, runs: Runs, seed: int) -> Iterator[Row]:
    if not _fitted(folder, runs, seed):
        yield _absent("runs", folder / "vllm_runs")
    for name, (run, fit) in runs.items():
        note = f"fitted to the times of the first {fit.requests} of {len(run)} requests"
        yield from _compared("runs", name, relative_errors(replay(run, fit.step), run.result), limits=True, note=note)
        fit = fit_run(run, start=start_of(name), seed=seed, lengths="seen")
        answers = run.workload.output_tokens
        as_long = answers[fit.requests :].mean() / answers[: fit.requests].mean()
        note = f"knowing nothing of later requests, whose answers are {100 * as_long:.0f} % as long"
        errors = relative_errors(replay(run, fit.step), run.result)
        yield from _compared("runs", f"{name}, later unknown", errors, limits=False, note=note)
    for name, reason in _left_out(folder):
        yield Row("runs", name, "", None, note=f"left out: {reason}")


def _carried(folder: Path, runs: Runs, seed: int) -> Iterator[Row]:
    if not _fitted(folder, runs, seed):
        yield _absent("carried", folder / "vllm_runs")
    for source, target in permutations(runs, 2):
        (here, same_model), (there, its_model) = source.split("_", 1), target.split("_", 1)
        if same_model != its_model or start_of(source) is None or start_of(target) is None:
            continue
        run = runs[target][0]
        step = step_of(carry(runs[source][1].coefficients, here, there))
        errors = relative_errors(replay(run, step), run.result)
        yield from _compared("carried", f"{here} to {there}, {its_model}", errors, limits=False)


def _fitted(folder: Path, runs: Runs, seed: int) -> Runs:
    if not runs:
        for file in _run_files(folder):
            with suppress(SeveralEngines):
                run = read_vllm_run(file)
                runs[run.name] = run, fit_run(run, start=start_of(run.name), seed=seed)
    return runs


def _left_out(folder: Path) -> Iterator[tuple[str, str]]:
    """The runs that aren't of one engine, by name, and why."""
    for file in _run_files(folder):
        try:
            read_vllm_run(file)
        except SeveralEngines as error:
            yield file.name.removesuffix("_requests.jsonl"), str(error)


def _run_files(folder: Path) -> list[Path]:
    return sorted((folder / "vllm_runs").glob("*_requests.jsonl"))


def _compared(part: str, subject: str, errors: dict[str, float], limits: bool, note: str = "") -> Iterator[Row]:
    for name, error in errors.items():
        kind, _, metric = name.partition("_")
        figure = _NAMES.get(name) or f"{'mean' if kind == 'mean' else 'P99'} {_NAMES[metric]}"
        limit = (P99_LIMIT if kind == "p99" else MEAN_LIMIT) if limits else None
        yield Row(part, subject, figure, error, limit, note)
        note = ""


def _closed_loop(folder: Path) -> Iterator[Row]:
    points = [Point.from_row(row) for row in _bench_points(folder, "nim")]
    if not points:
        yield _absent("closed-loop", folder / "facts" / "bench_points.json")
        return
    fit = fit_capped([point for point in points if point.clients in FITTED_CLIENTS])
    low, high = fit.cap_interval
    note = f"fitted to {', '.join(map(str, FITTED_CLIENTS))} clients; hidden cap {fit.max_num_seqs}, {low} to {high}"
    for point in points:
        if point.clients in FITTED_CLIENTS:
            continue
        for name, error in fit.predict(point).items():
            limit = TTFT_LIMIT if name == "ttft_s" else ITL_LIMIT
            yield Row("closed-loop", f"NIM, 70B on 2 H100, {point.clients} clients", _NAMES[name], error, limit, note)
            note = ""


def _shapes(folder: Path) -> Iterator[Row]:
    points = [Point.from_row(row) for row in _bench_points(folder, "aiconfigurator")]
    if not points:
        yield _absent("shapes", folder / "facts" / "bench_points.json")
        return
    note = f"each of {len(points)} shapes predicted from the others"
    found = leave_one_out(points)
    for name, figure in (("itl_s", "TPOT"), ("ttft_s", "TTFT")):
        errors = sorted(abs(each[name]) for each in found)
        for label, error in (
            (f"mean |error| of {figure}", sum(errors) / len(errors)),
            (f"largest, {figure}", errors[-1]),
        ):
            yield Row("shapes", "70B on 2, 4, 8 H100", label, error, None, note)
            note = ""


def _bench_points(folder: Path, group: str) -> list[dict[str, Any]]:
    file = folder / "facts" / "bench_points.json"
    if not file.exists():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = [row for value in content.values() if isinstance(value, list) for row in value]
    return [row for row in rows if row.get("group") == group]


def _absent(part: str, path: Path) -> Row:
    return Row(part, f"{path.parent.name}/{path.name}", "", None, note="absent; see `servinglab data`")
