"""Simulated, saved, recorded or live: every public metric and figure takes any `Result`, or says what it lacks."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import matplotlib.pyplot as plt
import pytest
import servinglab as sl
import servinglab.measure.calibration
import servinglab.result
from servinglab import metrics, plots
from servinglab.measure.calibration import steps as calibration
from servinglab.metrics import knee
from servinglab.result import compare
from servinglab.sim_server import serve
from streaming_server import StreamingServer

ORDERS = sl.Workload.from_arrivals([0.01 * k for k in range(20)], output_tokens=[1 + k % 5 for k in range(20)])
RULES, STEP = sl.ContinuousBatching(4), sl.AffineStep(0.002, 1e-4, 1e-5, 1e-7)
pytestmark = pytest.mark.filterwarnings("ignore:the client was the bottleneck")  # a busy machine's
KINDS = ("simulated", "saved", "recorded", "live")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, sl.Result]:
    folder = tmp_path_factory.mktemp("runs")
    simulated = sl.simulate(ORDERS, RULES, STEP)
    sl.save_run(simulated, folder / "saved.npz")
    data = Path(sl.__file__).parent / "data" / "load_tests.zip"
    ZipFile(data).extractall(folder)
    work = sl.poisson(200, 20, seed=1, prompt_tokens=20, output_tokens=5)
    with serve(RULES, STEP) as url:
        live = sl.bench(url, work)
    return {
        "simulated": simulated,
        "saved": sl.read_run(folder / "saved.npz"),
        "recorded": sl.read_run(folder / "busy"),
        "live": live,
    }


# What takes a run, how it is called, and what of the run it can't do without: how a run that lacks it is refused.
NOTHING, LOG, GAPS = "", "no log of steps|must have a log of steps", "no gaps between tokens"


def ok(run: sl.Result) -> Any:
    return run.e2e_s[run.finished]


def level(run: sl.Result, rate: float) -> knee.Level:
    return metrics.level_of(run, rate)


TAKES: dict[str, tuple[Callable[[sl.Result], Any], str]] = {
    "percentile": (lambda run: metrics.percentile(ok(run), 0.99), NOTHING),
    "weighted_percentile": (lambda run: metrics.weighted_percentile(*run.itl(), 0.5), GAPS),
    "little": (metrics.little, LOG),
    "whole_run": (metrics.whole_run, NOTHING),
    "request_throughput": (metrics.request_throughput, NOTHING),
    "output_throughput": (metrics.output_throughput, NOTHING),
    "total_token_throughput": (metrics.total_token_throughput, NOTHING),
    "request_goodput": (lambda run: metrics.request_goodput(run, {"e2e_s": 1}), NOTHING),
    "busy_fraction": (metrics.busy_fraction, NOTHING),
    "mean_in_system": (metrics.mean_in_system, NOTHING),
    "relative_errors": (lambda run: compare.relative_errors(run, run), "every request must have finished|^$"),
    "binding_caps": (metrics.binding_caps, LOG),
    "summarize": (metrics.summarize, NOTHING),
    "good_requests": (lambda run: metrics.good_requests(run, {"ttft_s": 1, "tpot_s": 1, "e2e_s": 2}), NOTHING),
    "mark_unpriced": (lambda run: plots.mark_unpriced(plots.timeline(run), run, level(run, 1)), NOTHING),
    "number_in_system": (plots.number_in_system, NOTHING),
    "queue_growth": (lambda run: plots.queue_growth({"a": run}), NOTHING),
    "latency_histogram": (plots.latency_histogram, NOTHING),
    "latency_cdf": (lambda run: plots.latency_cdf({"a": run, "b": run.ttft_s}), NOTHING),
    "timeline": (lambda run: plots.timeline(run, first=30), NOTHING),
    "kitchen": (lambda run: plots.kitchen({"a": run}), LOG),
    "load_curve": (lambda run: plots.load_curve([level(run, 1), level(run, 2)]), NOTHING),
    "level_of": (lambda run: metrics.level_of(run, 1), NOTHING),
    "find_knee": (lambda run: metrics.find_knee([level(run, 1), level(run, 2)], resamples=10), NOTHING),
    "windowed_percentile": (lambda run: metrics.windowed_percentile(run, 1), NOTHING),
    "windowed_attainment": (lambda run: metrics.windowed_attainment(run, 1, 0.5), NOTHING),
    "independent_percentile_interval": (
        lambda run: metrics.independent_percentile_interval(ok(run), 0.5), NOTHING),
    "batch_means": (lambda run: metrics.batch_means(ok(run), 5), NOTHING),
    "percentile_interval": (lambda run: metrics.percentile_interval(ok(run), 0.5), NOTHING),
    "save_run": (lambda run: sl.save_run(run, "/dev/null"), NOTHING),
    "compare_runs": (lambda run: str(sl.compare_runs(run, run)), NOTHING),
    "run_settings": (compare.run_settings, NOTHING),
    "step_states": (lambda run: plots.step_states(run, ORDERS), LOG),
    "step_timeline": (lambda run: plots.step_timeline(ORDERS, {"a": run}), LOG),
    "calibrate": (lambda run: calibration.calibrate([run]), LOG),
    "prediction_table": (
        lambda run: calibration.prediction_table([calibration.Prediction("a", [run], run)]), NOTHING),
    "Result.steps": (lambda run: run.steps(), LOG),
    "Result.log_facts": (lambda run: run.log_facts, LOG),
    "Result.itl": (lambda run: run.itl(), GAPS),
    "Result.summary": (lambda run: run.summary(slo={"e2e_s": 1}), NOTHING),
    "Result.optional": (lambda run: run.optional, NOTHING),
    "Result.rows": (lambda run: run.rows(), NOTHING),
    "Result.to_csv": (lambda run: run.to_csv("/dev/null"), NOTHING),
    "Result.to_parquet": (lambda run: run.to_parquet("/dev/null"), NOTHING),
    **{
        f"Result.{name}": (lambda run, name=name: getattr(run, name), NOTHING)
        for name in (
            "arrival_s", "scheduled_s", "first_token_s", "finish_s", "finished", "wait_s", "ttft_s", "tpot_s", "e2e_s",
            "span_s", "duration_s", "unpriced_attention",
        )
    },
}  # fmt: skip

NO_RUN_IN_IT = {
    "as_text": "takes a setting",
    "per_second": "takes a count",
    "is_known": "takes a setting",
    "is_saved_run": "takes a file",
    "read_saved_run": "takes a file",
    "read_log": "takes a log",
    "nearest_rank": "takes a count",
    "values_at_ranks": "takes numbers",
    "spread_of": "takes numbers",
    "weighted_spread_of": "takes numbers",
    "within_limits": "is good_requests, once limits are checked",
    "chunk_gaps": "takes a stream's chunks",
    "chunk_tpot_s": "takes a stream's chunks",
    "tokens_held": "takes lengths",
    "running_caps": "takes lengths",
    "check_slo": "checks limits",
    "check_numbers": "checks numbers",
    "use_style": "sets a style",
    "throughput": "draws rates of a sweep",
    "p99": "draws tails of a sweep",
    "curves": "draws any numbers",
    "load_test": "draws rates of a sweep",
    "promise_confidence": "takes a number of requests",
    "samples_needed": "takes a promise",
    "told_plainly": "takes a description",
}


def public_names() -> Iterator[str]:
    for room in (metrics, plots, servinglab.result, servinglab.measure.calibration):
        for each in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            if each.name != "servinglab.measure.calibration.run_fit":  # its input is a measured run with settings
                yield from functions_of(importlib.import_module(each.name))
    for name, member in vars(sl.Result).items():
        is_field = name in sl.Result.__dataclass_fields__
        if not name.startswith("_") and not is_field and not isinstance(member, (classmethod, staticmethod)):
            yield f"Result.{name}"


def functions_of(module: Any) -> Iterator[str]:
    for name, member in vars(module).items():
        if inspect.isfunction(member) and member.__module__ == module.__name__ and not name.startswith("_"):
            yield name


def test_every_public_metric_and_figure_is_tried_or_excepted() -> None:
    assert not set(TAKES) & set(NO_RUN_IN_IT)
    assert sorted([*TAKES, *NO_RUN_IN_IT]) == sorted(public_names())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_any_result_goes_through_every_metric_and_figure(kind: str, runs: dict[str, sl.Result]) -> None:
    run = runs[kind]
    assert run.finished.any()
    for name, (call, lacks) in TAKES.items():
        refused = ""
        try:
            call(run)
        except ValueError as error:
            refused = str(error)
        plt.close("all")
        if lacks and run.segments is None and not (lacks == GAPS and len(run.late_gaps[0])):
            assert re.search(lacks, refused), f"{name} of a {kind} run: {refused or 'no error'}"
        elif name == "calibrate":  # twenty orders of one shape can't tell the coefficients apart
            assert re.search("^$|can't tell", refused), refused
        else:
            assert refused == "", f"{name} of a {kind} run"


def test_a_clients_timeline_is_pale_until_the_first_token(runs: dict[str, sl.Result]) -> None:
    assert {text.get_text() for text in plots.timeline(runs["live"]).texts} == {"TTFT", "decode"}
    assert {text.get_text() for text in plots.timeline(runs["simulated"]).texts} == {"wait", "cook"}
    plt.close("all")


# The live one


@pytest.mark.alone
def test_a_live_run_is_what_was_sent_and_keeps_its_folder(tmp_path: Path) -> None:
    work = sl.poisson(100, 8, seed=1, prompt_tokens=20, output_tokens=3)
    with StreamingServer() as server:
        run = sl.bench(server.url, work, tmp_path / "kept", model="soup-1b", api="completions", seed=5)
        assert len(server.bodies) == 8
        assert all(body["model"] == "soup-1b" and "prompt" in body for body in server.bodies)
    assert run.arrival_s - work.arrival_s == pytest.approx(run.arrival_s[0] - work.arrival_s[0], abs=1e-6)
    assert run.setup.since == "scheduled"
    again = sl.read_run(tmp_path / "kept", since="scheduled")
    assert again.finish_ns.tolist() == run.finish_ns.tolist()
    records = sl.read_run(tmp_path / "kept" / "requests.jsonl")
    assert records.finish_ns.tolist() == run.finish_ns.tolist()
    with pytest.raises(ValueError, match="complete"):
        sl.bench(server.url, work, tmp_path / "kept", model="soup-1b")


@pytest.mark.alone
def test_it_works_where_an_event_loop_is_running_as_in_a_notebook() -> None:
    async def cell(url: str) -> sl.Result:
        return sl.bench(url, sl.closed_loop(2, 6, seed=1, prompt_tokens=5, output_tokens=3))

    with StreamingServer() as server:
        run = asyncio.run(cell(server.url))
    assert run.finished.all()
    assert len(run) == 6


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"url": "ftp://x"}, "URL must be an address"),
        ({"since": "whenever"}, "since must be"),
        ({"api": "telnet"}, "api must be"),
        ({"url": 8000}, "URL must be an address"),
        ({"workload": [1, 2]}, "workload must be a Workload"),
        ({"folder": 7}, "folder must be a path"),
        ({"model": 7}, "model must be"),
        *(({"workers": value}, "workers must be") for value in (0, True, "2", 1.5, math.nan)),
        *(
            ({"model": "m", "timeout_s": value}, "timeout_s must be")
            for value in (math.inf, math.nan, "soon", True, -1)
        ),
        ({"model": "m", "seed": -1}, "seed must be"),
        ({"model": "m", "headers": "X: y"}, "headers must be"),
        ({"model": "m", "extra": {"temperature": math.nan}}, "extra must be"),
        *(
            ({"workload": sl.closed_loop(1, 2, seed=1), "duration_s": value}, "duration_s must be")
            for value in (math.inf, math.nan, 0, True, "3")
        ),
        ({"duration_s": 3.0}, "duration_s belongs to a closed loop"),
        ({"url": "127.0.0.1:9"}, "no model to ask for"),
    ],
)
def test_a_live_run_refuses_what_it_cannot_do(arguments: dict[str, Any], told: str) -> None:
    work = sl.poisson(100, 2, seed=1, prompt_tokens=5, output_tokens=2)
    with pytest.raises(ValueError, match=told):
        sl.bench(**{"url": "127.0.0.1:9", "workload": work, **arguments})


def test_a_bound_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from servinglab.measure.load_test import report

    bound = {"levels": [{"client": {"bound": True, "why": ["it was slow"]}}]}
    monkeypatch.setattr(report, "make_report", lambda test: SimpleNamespace(content=bound))
    with StreamingServer() as server, pytest.warns(UserWarning, match="the client was the bottleneck .it was slow"):
        sl.bench(server.url, sl.poisson(100, 2, seed=1, prompt_tokens=5, output_tokens=3))


# Files


def test_an_engines_own_times_are_a_run(tmp_path: Path) -> None:
    row = {"input_toks": 10, "output_toks": 3, "queued_ts": 5.0, "scheduled_ts": 5.1, "first_token_ts": 5.2}
    rows = [{**row, "request_id": k, "last_token_ts": 5.4 + k} for k in range(2)]
    file = tmp_path / "a_requests.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    run = sl.read_run(file)
    assert run.e2e_s.tolist() == pytest.approx([0.4, 1.4])
    assert run.wait_s.tolist() == pytest.approx([0.1, 0.1])
    with pytest.raises(ValueError, match="since isn't theirs"):
        sl.read_run(file, since="sent")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"format": "servinglab load test report", "levels": []}', "report, without its requests' times"),
        ('{\n "format": "servinglab load test",\n "setup": {}}', "settings, without its requests"),
        ('{"format": "servinglab torch steps"}\n{"kind": "head"}', "steps of bench torch, without requests"),
        ('{"engine": {}, "calibration": {}}', "without the requests' times: read the .npz files"),
        ("request,arrival_s,scheduled_s\r\n0,0.1,0.2\r\n", "a table of requests, without"),
    ],
)
def test_our_other_files_say_what_they_lack(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "some file"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"some file.*{told}"):
        sl.read_run(file)


def test_a_folder_of_runs_names_them(tmp_path: Path, runs: dict[str, sl.Result]) -> None:
    sl.save_run(runs["simulated"], tmp_path / "a.npz")
    sl.save_run(runs["simulated"], tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"holds 2 runs: give one of its files, a\.npz, b\.npz"):
        sl.read_run(tmp_path)
