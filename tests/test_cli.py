"""The command line: it asks the library for what the options say, writes what came of it, and fails in one line."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given
from hypothesis import strategies as st
from servinglab import _engine_options, _output, _progress, cli, lengths
from servinglab.grading import cli as grading_cli

ORDERS = ["simulate", "--poisson", "20", "--n", "50", "--seed", "1"]
TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.0000000,20,1\n"
)


class Call(NamedTuple):
    work: sl.Workload
    scheduler: object
    step_time: object
    pots: int | None
    kv: object


@pytest.fixture
def run(capsys):
    """Call the command line; give its exit status, stdout and stderr."""

    def run(*words):
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def served(monkeypatch):
    """What the command line gave to `simulate`, in order."""
    calls = []

    def simulate(work, scheduler, step_time, pots, *, kv, progress):
        calls.append(Call(work, scheduler, step_time, pots, kv))
        return sl.simulate(work, scheduler, step_time, pots, progress, kv=kv)

    monkeypatch.setattr(cli, "simulate", simulate)
    return calls


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    return file


def same(a, b):
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "service_scale", "priority")
    return (
        all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in columns)
        and a.clients == b.clients
        and (a.think_s is b.think_s is None or np.array_equal(a.think_s, b.think_s))
    )


# What is asked for is what is run


@pytest.mark.parametrize(
    ("words", "work"),
    [
        ("--poisson 20 --n 30 --seed 4", sl.poisson(20, 30, 4)),
        ("--deterministic 20 --n 30", sl.deterministic(20, 30)),
        (
            "--deterministic 20 --n 30 --seed 4 --output-tokens geometric:9",
            sl.deterministic(20, 30, 4, output_tokens=lengths.Geometric(9)),
        ),
        ("--gamma 20 3 --n 30 --seed 4", sl.gamma_arrivals(20, 30, 3, 4)),
        ("--on-off 40 1 5 6 --n 30 --seed 4", sl.on_off(40, 1, 5, 6, 30, 4)),
        ("--rate-profile 0:0 10:5 10:1 20:1 --seed 4", sl.rate_profile([0, 10, 10, 20], [0, 5, 1, 1], 4)),
        (
            "--closed-loop 3 --n 30 --seed 4 --think-s exponential:2",
            sl.closed_loop(3, 30, 4, think_s=lengths.Exponential(2)),
        ),
        ("--closed-loop 3 --n 30 --seed 4", sl.closed_loop(3, 30, 4)),
        (
            "--poisson 20 --n 30 --seed 4 --prompt-tokens lognormal:500:4000:8000 --output-tokens uniform:1:9",
            sl.poisson(20, 30, 4, lengths.LogNormal(500, 4000, max=8000), lengths.Uniform(1, 9)),
        ),
        (
            "--poisson 20 --n 30 --seed 4 --prompt-tokens lognormal:500:4000 --output-tokens 7",
            sl.poisson(20, 30, 4, lengths.LogNormal(500, 4000), 7),
        ),
        (
            "--poisson 20 --n 30 --seed 4 --service-scale exponential:1 --per-request-s 0.02",
            sl.poisson(20, 30, 4, service_scale=lengths.Exponential(1)),
        ),
        ("--poisson 20 --n 30 --seed 4 --head 7 --speed 2", sl.poisson(20, 30, 4).head(7).scaled(2)),
    ],
)
def test_generators(run, served, words, work):
    status, _, err = run("simulate", *words.split(), "--quiet")
    assert (status, err) == (0, "")
    assert same(served[0].work, work)


@pytest.mark.parametrize(
    ("words", "scheduler"),
    [
        ("", sl.ContinuousBatching(256)),
        ("--max-num-seqs 8", sl.ContinuousBatching(8)),
        ("--scheduler continuous --max-num-seqs 8", sl.ContinuousBatching(8)),
        ("--scheduler static --batch-size 4", sl.StaticBatching(4)),
        ("--scheduler static --batch-size 4 --last never", sl.StaticBatching(4, last="never")),
        ("--scheduler dynamic --batch-size 4 --window-s 0.5", sl.DynamicBatching(4, 0.5)),
    ],
)
def test_schedulers(run, served, words, scheduler):
    assert run(*ORDERS, *words.split(), "--quiet")[0] == 0
    assert served[0].scheduler == scheduler
    assert served[0].kv is None


def test_step_time_and_pots(run, served):
    run(*ORDERS, "--quiet")
    assert served[-1][2:4] == (sl.AffineStep(**_engine_options.STEP_TIME), 1)
    run(*ORDERS, "--quiet", "--fixed-s", "0.4", "--per-request-s", "0.02", "--pots", "3")
    assert served[-1][2:4] == (sl.AffineStep(0.4, 0.02), 3)
    run(*ORDERS, "--quiet", "--fixed-s", "0", "--per-request-s", "0.02", "--pots", "endless")
    assert served[-1][2:4] == (sl.AffineStep(0, 0.02), None)
    run(*ORDERS, "--quiet", "--fixed-s", "1", "--per-prefill-token-s", "2", "--per-kv-token-s", "3")
    assert served[-1][2:4] == (sl.AffineStep(1, 0, 2, 3), 1)


def test_default_step_time_follows_from_what_is_said_about_it():
    source = _engine_options.STEP_TIME_SOURCE
    assert all(text in source for text in ("16.06 GB", "131,072 B", "80 % of 3.35 TB/s", "16.06 GFLOP", "50 % of 989"))
    bandwidth, compute = 0.8 * 3.35e12, 0.5 * 989e12
    assert _engine_options.STEP_TIME["fixed_s"] == pytest.approx(16.06e9 / bandwidth, rel=0.02)
    assert _engine_options.STEP_TIME["per_kv_token_s"] == pytest.approx(131_072 / bandwidth, rel=0.02)
    assert _engine_options.STEP_TIME["per_request_s"] == pytest.approx(16.06e9 / compute, rel=0.02)
    assert _engine_options.STEP_TIME["per_prefill_token_s"] == pytest.approx(16.06e9 / compute, rel=0.02)


def test_defaults_are_named_and_what_was_given_is_not(run):
    out = " ".join(run(*ORDERS)[1].split())
    named = re.search(r"defaults used: (.*?) \(step", out)[1]
    assert set(named.split(", ")) == {
        "--scheduler continuous", "--max-num-seqs 256", "--pots 1", "--prompt-tokens 0", "--output-tokens 1",
        "--service-scale 1", "--fixed-s 0.006", "--per-request-s 3.2e-05", "--per-prefill-token-s 3.2e-05",
        "--per-kv-token-s 4.9e-08", "--max-num-batched-tokens unlimited", "--kv-blocks unlimited",
    }  # fmt: skip
    assert _engine_options.STEP_TIME_SOURCE in out
    everything = (
        "--scheduler static --batch-size 5 --last partial --fixed-s 0.4 --pots 1 --prompt-tokens 0 "
        "--output-tokens 1 --service-scale 1"
    )
    assert "default" not in run(*ORDERS, *everything.split())[1]


def test_the_examples_of_the_help_run(run, trace, tmp_path, monkeypatch):
    status, text, _ = run("simulate", "--help")
    assert status == 0
    examples = text.partition("examples:")[2].replace("\\\n", " ").strip().splitlines()
    assert len(examples) == 5
    monkeypatch.chdir(tmp_path)
    for name in ("trace.jsonl", "AzureLLMInferenceTrace_conv.csv"):  # what decides is the content
        (tmp_path / name).write_text(TRACE)
    for example in examples:
        status, out, err = run(*shlex.split(example)[1:])
        assert (status, err) == (0, ""), example
        assert "request_throughput" in out
    assert (tmp_path / "requests.parquet").exists()
    assert (tmp_path / "h100.npz").exists()


def test_help_and_version(run):
    assert run("--version")[:2] == (0, f"servinglab {sl.__version__}\n")
    status, out, _ = run("--help")
    assert status == 0
    assert all(command in out for command in ("simulate", "data", "check", "grade"))
    status, out, _ = run("simulate", "--help")
    assert " ".join(_engine_options.STEP_TIME_SOURCE.split()) in " ".join(out.split())


# What comes out


def test_a_trace_and_its_summary(run, trace):
    status, out, err = run("simulate", trace, "--slo", "ttft_s=2,tpot_s=0.1")
    assert (status, err) == (0, "")
    assert "3 requests over 4.3 s" in out
    result = sl.simulate(sl.read_trace(trace), sl.ContinuousBatching(256), sl.AffineStep(**_engine_options.STEP_TIME))
    assert str(result.summary({"ttft_s": 2, "tpot_s": 0.1})) in out


def test_a_name_is_looked_up_in_the_data_folder(run, tmp_path, monkeypatch):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "hour.csv").write_text(TRACE)
    monkeypatch.setenv("SERVINGLAB_DATA", str(tmp_path))
    assert run("simulate", "hour.csv")[0] == 0
    status, _, err = run("simulate", "minute.csv")
    assert status == 2
    assert err == f"servinglab: no file minute.csv, here or in {tmp_path / 'traces'}; see `servinglab data`\n"
    monkeypatch.delenv("SERVINGLAB_DATA")
    assert "no file hour.csv, and SERVINGLAB_DATA isn't set" in run("simulate", "hour.csv")[2]


def test_quiet(run, trace, tmp_path):
    assert run("simulate", trace, "--quiet", "--out", tmp_path / "r.csv") == (0, "", "")
    assert (tmp_path / "r.csv").exists()


def test_every_request_to_csv_and_parquet(run, trace, tmp_path):
    import pyarrow.parquet

    result = sl.simulate(sl.read_trace(trace), sl.ContinuousBatching(256), sl.AffineStep(**_engine_options.STEP_TIME))
    for name in ("r.csv", "r.parquet"):
        status, out, _ = run("simulate", trace, "--out", tmp_path / name)
        assert status == 0
        assert f"wrote 3 requests to {tmp_path / name}" in out
    with open(tmp_path / "r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["finish_s"]) for row in rows] == result.finish_s.tolist()
    assert [row["tpot_s"] for row in rows][2] == ""  # one token: no TPOT
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pydict()
    assert table["finish_s"] == result.finish_s.tolist()
    assert table["tpot_s"][2] is None
    assert table["status"] == ["FINISHED"] * 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.csv", "r.parquet", "trace.csv"]


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json(run, tmp_path):
    file = tmp_path / "run.json"
    assert run(*ORDERS, "--slo", "e2e_s=1", "--json", file)[0] == 0
    report = strict(file.read_text())
    assert report["workload"]["requests"] == 50
    assert report["scheduler"] == {"kind": "ContinuousBatching", **vars(sl.ContinuousBatching(256))}
    assert report["step_time"] == {"kind": "AffineStep", **_engine_options.STEP_TIME}
    assert report["kv"] is report["roofline"] is None
    assert report["interrupted"] is False
    assert report["defaults_used"]["pots"] == 1
    result = sl.simulate(sl.poisson(20, 50, 1), sl.ContinuousBatching(256), sl.AffineStep(**_engine_options.STEP_TIME))
    assert report["summary"] == result.summary({"e2e_s": 1}).to_dict()
    status, out, _ = run(*ORDERS, "--quiet", "--json", "-")
    assert status == 0
    assert strict(out)["summary"]["requests"] == 50


def test_json_of_what_never_happened(run):
    """The last, incomplete batch is never cooked: its latencies are infinite in the ranking, and null in JSON."""
    out = run(*ORDERS, "--scheduler", "static", "--batch-size", "40", "--last", "never", "--quiet", "--json", "-")[1]
    summary = strict(out)["summary"]
    assert summary["by_status"]["UNSERVED"] == 10
    assert summary["e2e_s"]["missing"] == 10
    assert summary["e2e_s"]["p99"] is None
    assert run("simulate", "--closed-loop", "2", "--n", "5", "--seed", "1", "--quiet", "--json", "-")[0] == 0


def test_data(run, tmp_path, monkeypatch):
    monkeypatch.delenv("SERVINGLAB_DATA", raising=False)
    status, out, _ = run("data")
    assert status == 0
    assert "SERVINGLAB_DATA isn't set" in out
    assert out.count("not here") == 4
    assert "https://github.com/Azure/AzurePublicDataset" in out
    assert "https://github.com/kvcache-ai/Mooncake" in out
    assert "CC BY 4.0" in out
    assert "Apache 2.0" in out
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "AzureLLMInferenceTrace_conv.csv").write_text("x" * 1_234_567)
    monkeypatch.setenv("SERVINGLAB_DATA", str(tmp_path))
    out = run("data")[1]
    assert "AzureLLMInferenceTrace_conv.csv: here, 1.2 MB" in out
    assert out.count("not here") == 3
    monkeypatch.setenv("SERVINGLAB_DATA", str(tmp_path / "nowhere"))
    assert run("data") == (2, "", f"servinglab: SERVINGLAB_DATA must name a folder; got '{tmp_path / 'nowhere'}'\n")


@pytest.mark.parametrize("command", ["check", "grade"])
def test_check_and_grade_are_those_of_grading(run, monkeypatch, command):
    given = []
    monkeypatch.setattr(grading_cli, f"{command}_main", lambda words: given.append(words) or 1)
    assert run(command, "one.ipynb", "--timeout", "5")[0] == 1
    assert given == [["one.ipynb", "--timeout", "5"]]


# Mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("cook", "invalid choice: 'cook'"),
        ("simulate", "give one workload, a trace or one of --poisson, .*; got none"),
        ("simulate TRACE --poisson 20 --n 5 --seed 1", "give one workload, .*; got the trace .* and --poisson"),
        ("simulate --poisson 20 --gamma 20 3 --n 5 --seed 1", "; got --poisson and --gamma"),
        ("simulate --poisson 20 --n 5", "a random workload needs --seed"),
        ("simulate --poisson 20 --seed 5", "a random workload needs --n"),
        ("simulate --deterministic 20", "--deterministic needs --n"),
        ("simulate --rate-profile 0:5 60:5", "--rate-profile needs --seed"),
        ("simulate --rate-profile 0:5 60:5 --seed 1 --n 5", "--n doesn't go with --rate-profile"),
        ("simulate --rate-profile 0:5 60 --seed 1", "--rate-profile takes points TIME:RATE such as 60:20; got '60'"),
        ("simulate --rate-profile 60:5 0:5 --seed 1", "times_s must never decrease"),
        ("simulate --poisson 0 --n 5 --seed 1", "rate_rps must be a finite number > 0; got 0.0"),
        ("simulate --poisson -2 --n 5 --seed 1", "rate_rps must be a finite number > 0; got -2.0"),
        ("simulate --poisson nan --n 5 --seed 1", "rate_rps must be a finite number > 0; got nan"),
        ("simulate --poisson fast --n 5 --seed 1", "argument --poisson: invalid float value: 'fast'"),
        ("simulate --poisson 20 --n 0 --seed 1", "n must be a whole number >= 1"),
        ("simulate --poisson 20 --n 2.5 --seed 1", "argument --n: invalid int value: '2.5'"),
        ("simulate --poisson 20 --n 5 --seed -1", "seed must be a whole number >= 0; got -1"),
        ("simulate --poisson 20 --n 5 --seed 1 --think-s 3", "--think-s belongs to --closed-loop"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens 0", r"output_tokens\[0\] must be a whole number >= 1"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens many", "argument --output-tokens: .*'many'"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens gauss:5", "no law 'gauss'; there are geometric,"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens uniform:5", "'uniform:5' has too many or too few"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens uniform:5:x", "'uniform:5:x': could not convert"),
        ("simulate --poisson 20 --n 5 --seed 1 --output-tokens uniform:9:5", "'uniform:9:5': hi must be a whole"),
        ("simulate --poisson 20 --n 5 --seed 1 --head 0", "n must be a whole number >= 1"),
        ("simulate --poisson 20 --n 5 --seed 1 --speed 0", "speed must be a finite number > 0"),
        ("simulate TRACE --n 5", "--n belongs to a generated workload; a trace brings its own requests"),
        ("simulate TRACE --output-tokens 5", "--output-tokens belongs to a generated workload"),
        ("simulate TRACE --scheduler static", "--scheduler static needs --batch-size"),
        ("simulate TRACE --scheduler dynamic --batch-size 4", "--scheduler dynamic needs --window-s"),
        ("simulate TRACE --batch-size 4", "--batch-size doesn't go with --scheduler continuous"),
        ("simulate TRACE --scheduler static --batch-size 4 --max-num-seqs 4", "--max-num-seqs doesn't go with"),
        ("simulate TRACE --scheduler fifo", "argument --scheduler: invalid choice: 'fifo'"),
        ("simulate TRACE --max-num-seqs 0", "max_num_seqs must be a whole number >= 1; got 0"),
        ("simulate TRACE --pots 0", "pots must be"),
        ("simulate TRACE --pots many", "argument --pots: a whole number or endless, not 'many'"),
        ("simulate TRACE --fixed-s -1", "fixed_s must be a finite number >= 0"),
        ("simulate TRACE --fixed-s 0", r"fixed_s \+ per_request_s must be at least 1e-9 s"),
        ("simulate TRACE --slo ttft=2", "argument --slo: 'ttft=2': NAME must be one of 'ttft_s', 'tpot_s', 'e2e_s'"),
        ("simulate TRACE --slo ttft_s=0", "argument --slo: 'ttft_s=0': ttft_s must be a finite number > 0"),
        ("simulate TRACE --slo ttft_s", "argument --slo: 'ttft_s': could not convert"),
        ("simulate TRACE --out r.txt", "--out must end in .csv or .parquet; got 'r.txt'"),
        ("simulate TRACE --out NOWHERE/r.csv", "no folder .*nowhere to write r.csv into"),
        ("simulate TRACE --out FOLDER.csv", "folder.csv is a folder, not a file to write"),
        ("simulate TRACE --out TRACE", "writing .*trace.csv would overwrite the trace"),
        ("simulate TRACE --json TRACE", "writing .*trace.csv would overwrite the trace"),
        ("simulate TRACE --out r.csv --json r.csv", "--out and --json must name different files"),
        ("simulate TRACE --frobnicate", "unrecognized arguments: --frobnicate"),
        ("simulate TRACE --max-num 8", "unrecognized arguments: --max-num"),
        ("simulate BAD", "bad.csv:3: GeneratedTokens must be a whole number from 1 to 1000000000; got 0"),
        ("simulate NOWHERE.csv", "no file .*nowhere.csv"),
        ("simulate FOLDER.csv", "folder.csv: Is a directory"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run, served, trace, tmp_path, words, message):
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE.replace(",109", ",0"))
    (tmp_path / "folder.csv").mkdir()
    words = words.replace("TRACE", str(trace)).replace("BAD", str(bad))
    words = words.replace("NOWHERE", str(tmp_path / "nowhere")).replace("FOLDER", str(tmp_path / "folder"))
    before = sorted(tmp_path.iterdir())
    status, out, err = run(*words.split())
    assert status == 2
    assert re.search(message, err)
    assert err.startswith("servinglab")
    assert err.count("\n") == 1
    assert "request_throughput" not in out
    assert trace.read_text() == TRACE
    assert sorted(tmp_path.iterdir()) == before


def test_parquet_without_pyarrow_is_refused_before_the_work(run, served, monkeypatch, tmp_path):
    monkeypatch.setattr(_output.importlib.util, "find_spec", lambda name: None)
    status, _, err = run(*ORDERS, "--out", tmp_path / "r.parquet")
    assert (status, served) == (2, [])
    assert err == "servinglab: --out to Parquet needs pyarrow: pip install pyarrow, or write CSV\n"


def test_a_full_disk_leaves_no_half_file(run, monkeypatch, tmp_path):
    file = tmp_path / "r.csv"
    file.write_text("of yesterday")

    def to_csv(self, path):
        path.write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(sl.Result, "to_csv", to_csv)
    status, _, err = run(*ORDERS, "--out", file)
    assert (status, err) == (2, f"servinglab: {file}.part: No space left on device\n")
    assert file.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [file]


words_of_a_command = st.sampled_from(
    [
        "simulate",
        "data",
        "--poisson",
        "--n",
        "--seed",
        "--gamma",
        "--on-off",
        "--rate-profile",
        "--closed-loop",
        "--prompt-tokens",
        "--output-tokens",
        "--think-s",
        "--head",
        "--speed",
        "--scheduler",
        "static",
        "dynamic",
        "continuous",
        "--batch-size",
        "--window-s",
        "--last",
        "never",
        "--max-num-seqs",
        "--fixed-s",
        "--per-request-s",
        "--per-kv-token-s",
        "--pots",
        "endless",
        "--slo",
        "ttft_s=1",
        "--json",
        "-",
        "--quiet",
        "0",
        "1",
        "2",
        "7",
        "-1",
        "0.5",
        "nan",
        "inf",
        "1e300",
        "1e-300",
        "-0",
        "0:1",
        "5:2",
        "geometric:3",
        "uniform:1:4",
        "lognormal:5:50",
        ":",
        "=",
        "--",
    ]
) | st.text(max_size=4)


@given(st.lists(words_of_a_command, max_size=14))
def test_any_words_end_in_a_status(tmp_path_factory, words):
    """Nonsense never gives a traceback, nor more than a line of complaint."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = cli.main(["simulate", *words])
        except SystemExit as stop:
            status = stop.code
    assert status in (0, 2)
    assert err.getvalue().count("\n") == (status == 2)


# Ctrl-C, progress, pipes

# orders that find an empty pot, each a row of the log: enough of them that `simulate` reports more than once
MANY = ["simulate", "--deterministic", "10", "--n", "150000", "--fixed-s", "0.01"]


@pytest.fixture
def interrupt(monkeypatch):
    """Press Ctrl-C when `simulate` first reports its progress."""
    report = _progress.Progress.report

    def press(self, done, total):
        report(self, done, total)
        if done < total:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_progress.Progress, "report", press)


@pytest.mark.usefixtures("interrupt")
def test_ctrl_c_writes_what_is_done_and_says_what_is_missing(run, tmp_path):
    file, report = tmp_path / "r.csv", tmp_path / "r.json"
    status, out, err = run(*MANY, "--out", file, "--json", report)
    assert status == 130
    with open(file, newline="") as rows:
        statuses = [row["status"] for row in csv.DictReader(rows)]
    done = statuses.count("FINISHED")
    assert 0 < done < 150_000
    assert statuses.count("UNSERVED") == 150_000 - done
    assert err == (
        f"servinglab: interrupted: {done:,} of 150,000 requests finished, the other {150_000 - done:,} are UNSERVED "
        f"in {file}\n"
    )
    assert "request_throughput" not in out
    partial = strict(report.read_text())
    assert partial["interrupted"] is True
    assert partial["summary"]["by_status"] == {"FINISHED": done, "UNSERVED": 150_000 - done, "REJECTED": 0}


@pytest.mark.usefixtures("interrupt")
def test_ctrl_c_without_a_file(run):
    status, _, err = run(*MANY)
    assert status == 130
    assert re.fullmatch(r"servinglab: interrupted: [\d,]+ of 150,000 requests finished, .* were not served\n", err)


def test_ctrl_c_while_reading_or_writing(run, monkeypatch, tmp_path, trace):
    file = tmp_path / "r.csv"

    def stop(*args):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sl.Result, "to_csv", stop)
    assert run(*ORDERS, "--quiet", "--out", file) == (130, "", f"servinglab: interrupted before {file} was written\n")
    assert list(tmp_path.iterdir()) == [trace]
    monkeypatch.setattr(cli, "read_trace", stop)
    assert run("simulate", trace) == (130, "", "servinglab: interrupted\n")


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_progress_is_shown_while_it_takes_long(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "FIRST_S", 0.0)
    monkeypatch.setattr(_progress, "EVERY_S", 0.0)
    seen = []

    def shown():
        seen.append(capsys.readouterr().err)
        return "".join(seen)

    with _progress.Progress(True) as progress:
        progress.doing = "reading"
        wait_for(lambda: "reading, 0 s\n" in shown())
        progress.report(5, 12_000)
        wait_for(lambda: "simulating: 5 of 12,000 requests, " in shown())
        progress.pause()
        shown()
        time.sleep(0.1)
        assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_stays_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "FIRST_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    seen = []

    def shown():
        seen.append(capsys.readouterr().err)
        return "".join(seen)

    with _progress.Progress(True) as progress:
        progress.doing = "simulating"
        wait_for(lambda: "\r\x1b[Ksimulating, " in shown())
    assert shown().endswith("\r\x1b[K")
    assert "\n" not in shown()


def test_no_progress_where_nobody_asked(run, monkeypatch):
    monkeypatch.setattr(_progress, "FIRST_S", 0.0)
    assert run(*ORDERS)[2] == ""


def test_a_closed_pipe_is_no_drama():
    for words in (ORDERS, ["simulate", "--help"]):
        command = subprocess.Popen(
            [sys.executable, "-m", "servinglab", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        command.stdout.close()
        err = command.stderr.read().decode()
        command.stderr.close()
        command.wait()
        assert err == ""


def test_python_m_servinglab():
    command = subprocess.run([sys.executable, "-m", "servinglab", "simulate"], capture_output=True, text=True)
    assert command.returncode == 2
    assert command.stderr.startswith("servinglab: give one workload")


def test_defaults_keep_the_machine_stable_at_the_hours_load():
    """The default step time can carry more than the real hour's 5.53 requests/s of 1,155 and 211 tokens."""
    prompt, output = 1155, 211
    s = _engine_options.STEP_TIME
    held = prompt + output / 2
    per_token = s["fixed_s"] / cli.MAX_NUM_SEQS + s["per_request_s"] + s["per_kv_token_s"] * held
    most_rps = 1 / (prompt * s["per_prefill_token_s"] + output * per_token)
    assert most_rps > 2 * 5.53
    assert math.isfinite(most_rps)
