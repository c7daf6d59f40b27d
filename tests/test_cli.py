"""The command line: it asks the library for what the options say, writes what came of it, and fails in one line."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given
from hypothesis import strategies as st
from servinglab.base import files as _output
from servinglab.cli import engine_options, workload_options
from servinglab.cli import main as cli
from servinglab.cli import progress as _progress
from servinglab.grading import cli as grading_cli
from servinglab.result import save
from servinglab.workload import lengths

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
        (
            "--scheduler bucketed --batch-size 4 --window-s 0.5 --edges 128,512",
            sl.LengthBucketedBatching(4, 0.5, edges=(128, 512)),
        ),
    ],
)
def test_schedulers(run, served, words, scheduler):
    assert run(*ORDERS, *words.split(), "--quiet")[0] == 0
    assert served[0].scheduler == scheduler
    assert served[0].kv is None


def test_step_time_and_pots(run, served):
    run(*ORDERS, "--quiet")
    assert served[-1][2:4] == (sl.AffineStep(**engine_options.STEP_TIME), 1)
    run(*ORDERS, "--quiet", "--fixed-s", "0.4", "--per-request-s", "0.02", "--pots", "3")
    assert served[-1][2:4] == (sl.AffineStep(0.4, 0.02), 3)
    run(*ORDERS, "--quiet", "--fixed-s", "0", "--per-request-s", "0.02", "--pots", "endless")
    assert served[-1][2:4] == (sl.AffineStep(0, 0.02), None)
    run(
        *ORDERS,
        "--quiet",
        "--fixed-s",
        "1",
        "--per-prefill-token-s",
        "2",
        "--per-kv-token-s",
        "3",
        "--per-prefill-pair-s",
        "4",
    )
    assert served[-1][2:4] == (sl.AffineStep(1, 0, 2, 3, 4), 1)


def test_a_measured_step_time_is_read_from_the_folder_or_the_file(run, served, tmp_path):
    file = tmp_path / "prediction.json"
    steps = ('{"fixed": 1}', "{}", "[]", '{"fixed_s": -1, "per_request_s": 0}')
    for content in ("{}", "[]", "no json", *(f'{{"calibration": {{"step_time": {step}}}}}' for step in steps)):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"must be of bench torch, or a prediction\.json of bench vllm or bench"):
            sl.read_step_time(file)
    step = {
        "fixed_s": 0.02, "per_request_s": 1e-3, "per_prefill_token_s": 1e-4, "per_kv_token_s": 1e-6,
        "per_prefill_pair_s": 1e-9,
    }  # fmt: skip
    file.write_text(json.dumps({"calibration": {"step_time": step}}))
    for path in (tmp_path, file):
        run(*ORDERS, "--quiet", "--step-time", str(path))
        assert served[-1][2] == sl.AffineStep(**step)
    run(*ORDERS, "--quiet", "--step-time", str(file), "--overhead-s", "0.005")
    assert served[-1][2] == sl.AffineStep(0.025, 1e-3, 1e-4, 1e-6, 1e-9)
    file.unlink()
    with pytest.raises(
        ValueError, match=r"must be a folder of bench vllm or bench openvino: it has no prediction\.json"
    ):
        sl.read_step_time(tmp_path)


@pytest.mark.parametrize(
    "words",
    ["simulate", "compare", "memory", "best-batch", "serve-sim", "validate", "data", "check", "bench",
     *(f"bench {action}" for action in ("http", "show", "torch", "openvino", "vllm", "llamacpp"))],
)  # fmt: skip
def test_every_command_has_its_help(run, words):
    status, out, _ = run(*words.split(), "--help")
    assert status == 0 and out.startswith("usage: servinglab")


def test_default_step_time_follows_from_what_is_said_about_it():
    source = engine_options.STEP_TIME_SOURCE
    assert all(
        text in source
        for text in ("16.06 GB", "131,072 B", "80 % of 3.35 TB/s", "16.06 GFLOP", "0.524 MFLOP", "50 % of 989")
    )
    bandwidth, compute = 0.8 * 3.35e12, 0.5 * 989e12
    assert engine_options.STEP_TIME["fixed_s"] == pytest.approx(16.06e9 / bandwidth, rel=0.02)
    assert engine_options.STEP_TIME["per_kv_token_s"] == pytest.approx(131_072 / bandwidth, rel=0.02)
    assert engine_options.STEP_TIME["per_request_s"] == pytest.approx(16.06e9 / compute, rel=0.02)
    assert engine_options.STEP_TIME["per_prefill_token_s"] == pytest.approx(16.06e9 / compute, rel=0.02)
    assert engine_options.STEP_TIME["per_prefill_pair_s"] == pytest.approx(0.524e6 / compute, rel=0.02)


def test_defaults_are_named_and_what_was_given_is_not(run):
    out = " ".join(run(*ORDERS)[1].split())
    named = re.search(r"defaults used: (.*?) \(step", out)[1]
    assert set(named.split(", ")) == {
        "--scheduler continuous", "--max-num-seqs 256", "--pots 1", "--prompt-tokens 0", "--output-tokens 1",
        "--service-scale 1", "--fixed-s 0.006", "--per-request-s 3.2e-05", "--per-prefill-token-s 3.2e-05",
        "--per-kv-token-s 4.9e-08", "--per-prefill-pair-s 1.06e-09",
        "--max-num-batched-tokens unlimited", "--kv-blocks unlimited",
    }  # fmt: skip
    assert engine_options.STEP_TIME_SOURCE in out
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
    assert " ".join(engine_options.STEP_TIME_SOURCE.split()) in " ".join(out.split())


# Models, memory and the engine's settings

CHAT = [*ORDERS, "--prompt-tokens", "60", "--output-tokens", "geometric:90"]
LLAMA = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm"]


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--max-num-batched-tokens 512", {"max_num_batched_tokens": 512}),
        ("--max-num-batched-tokens unlimited", {}),
        ("--max-num-active-seqs 100", {"max_num_active_seqs": 100}),
        ("--max-model-len 150", {"max_model_len": 150}),
        (
            "--max-num-batched-tokens 512 --max-model-len 512 --no-chunked-prefill",
            {"max_num_batched_tokens": 512, "max_model_len": 512, "chunked_prefill": False},
        ),
        ("--reserve-whole-answer --kv-blocks 99", {"reserve_whole_answer": True}),
        ("--watermark 0.1 --kv-blocks 99", {"watermark": 0.1}),
        ("--no-full-prompt-gate --kv-blocks 99", {"full_prompt_gate": False}),
        ("--policy fcfs", {}),
        ("--policy priority --priority uniform:0:2", {"policy": "priority"}),
        ("--prefix-caching", {"prefix_caching": True}),
        ("--async-scheduling", {"async_scheduling": True}),
        ("--prefill-first", {"prefill_first": True}),
        ("--long-prefill-token-threshold 8", {"long_prefill_token_threshold": 8}),
        (
            "--long-prefill-token-threshold 8 --adaptive-threshold",
            {"long_prefill_token_threshold": 8, "adaptive_threshold": True},
        ),
    ],
)
def test_settings_of_continuous_batching(run, served, words, settings):
    status, _, err = run(*CHAT, *words.split())
    assert (status, err) == (0, "")
    assert served[0].scheduler == sl.ContinuousBatching(256, **settings)
    assert served[0].kv == (sl.Blocks(99) if "--kv-blocks" in words else None)


def test_the_note_comes_before_the_work(run, monkeypatch):
    """Whoever is about to wait wants to know why."""
    printed = []

    def slow(*args, **options):
        import warnings

        warnings.warn("slower", stacklevel=2)
        printed.append(sys.stderr.getvalue())
        return sl.simulate(*args, **options)

    monkeypatch.setattr(cli, "simulate", slow)
    monkeypatch.setattr(sys, "stderr", StringIO())
    assert cli.main(CHAT) == 0
    assert printed == ["servinglab: slower\n"]


def test_priorities_of_a_generated_workload(run, served):
    run(*CHAT, "--policy", "priority", "--priority", "uniform:0:2")
    assert set(served[0].work.priority) == {0, 1, 2}
    assert same(served[0].work, sl.poisson(20, 50, 1, 60, lengths.Geometric(90), priority=lengths.Uniform(0, 2)))


def test_a_step_time_from_model_and_accelerator(run, served):
    status, out, err = run(*CHAT, *LLAMA)
    assert (status, err) == (0, "")
    assert served[0].step_time == sl.roofline("llama-3.1-8b", "h100-sxm").sides()
    assert served[0].kv == sl.kv_cache("llama-3.1-8b", "h100-sxm")
    assert "roofline of llama-3.1-8b on h100-sxm" in out
    words = "--weight-dtype fp8 --kv-dtype fp8 --compute-dtype bf16 --bandwidth-efficiency 0.7 --overhead-s 0.002"
    words += " --compute-efficiency 0.5 --tensor-parallel 2 --interconnect-gb-s 450 --allreduce-latency-s 1e-5"
    assert run(*CHAT, *LLAMA, *words.split(), "--quiet") == (0, "", "")
    assert served[1].step_time == (
        sl.roofline(
            "llama-3.1-8b", "h100-sxm", weight_dtype="fp8", kv_dtype="fp8", compute_dtype="bf16", tensor_parallel=2,
            bandwidth_efficiency=0.7, compute_efficiency=0.5, overhead_s=0.002, interconnect_gb_s=450,
            allreduce_latency_s=1e-5,
        ).sides()
    )  # fmt: skip
    assert served[1].kv == sl.kv_cache(
        "llama-3.1-8b", "h100-sxm", weight_dtype="fp8", kv_dtype="fp8", tensor_parallel=2
    )


def test_a_pool_from_model_and_accelerator(run, served):
    words = "--gpu-memory-utilization 0.3 --other-gib 2.5 --block-size 32"
    out = " ".join(run(*CHAT, *LLAMA, *words.split())[1].split())
    cache = sl.kv_cache("llama-3.1-8b", "h100-sxm", gpu_memory_utilization=0.3, other_gib=2.5, block_size=32)
    assert served[0].kv == cache
    assert f"{cache.usable_blocks:,} blocks of 32 tokens: {cache.kv_gib:.2f} GiB a device" in out
    assert "2.50 of other (given; measured: 2.26 to 7.51 GiB" in out
    assert "(the median of logs; measured: 2.26 to 7.51 GiB" in " ".join(run(*CHAT, *LLAMA)[1].split())


@pytest.mark.parametrize(
    ("words", "kv"),
    [
        ("--kv-blocks 50", sl.Blocks(50)),
        ("--kv-blocks 50 --block-size 8", sl.Blocks(50, 8)),
        ("--kv-blocks unlimited", None),
        ("--scheduler static --batch-size 4", None),
        ("--scheduler dynamic --batch-size 4 --window-s 1", None),
        ("--pots 2", None),
        ("--pots endless", None),
    ],
)
def test_a_pool_given_by_hand_or_none(run, served, words, kv):
    status, out, _ = run(*CHAT, *LLAMA, *words.split())
    assert status == 0
    assert served[0].kv == kv
    assert ("KV cache   not limited" in out) == (kv is None)


def test_what_a_roofline_leaves_out_is_said(run):
    words = [*CHAT, "--accelerator", "h200-sxm", "--kv-blocks", "unlimited", "--model"]
    assert "(each step is taken to read all experts)" in run(*words, "qwen3-30b-a3b")[1]
    assert "(sliding windows are taken to be as long as the context)" in run(*words, "gpt-oss-20b")[1]
    assert "taken" not in run(*words, "llama-3.1-8b")[1]


def test_defaults_of_a_model_are_named(run):
    out = " ".join(run(*CHAT, *LLAMA)[1].split())
    named = re.search(r"defaults used: (.*?) requests", out)[1]
    assert set(named.split(", ")) == {
        "--scheduler continuous", "--max-num-seqs 256", "--max-num-batched-tokens unlimited", "--pots 1",
        "--service-scale 1", "--weight-dtype bf16", "--kv-dtype bf16", "--tensor-parallel 1",
        "--bandwidth-efficiency 0.8", "--compute-efficiency 0.6", "--overhead-s 0.001", "--block-size 16",
        "--gpu-memory-utilization 0.9", "--other-gib 5.39",
    }  # fmt: skip


CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
ROW = """
[accelerators.half-h100]
name = "Half an H100"
bf16_tflops = 494.7
memory_gb = 40
bandwidth_gb_s = 1675
source = "made up"
date = "2026-11-29"
reliability = "low"
"""


def test_models_and_accelerators_of_ones_own(run, served, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "rows.toml").write_text(ROW)
    own = ["--catalog", tmp_path / "rows.toml", "--accelerator", "half-h100", "--model"]
    for model in (tmp_path / "mine", tmp_path / "mine" / "config.json"):
        assert run(*CHAT, *own, model, "--quiet") == (0, "", "")
    device = sl.catalog.load(tmp_path / "rows.toml").accelerator("half-h100")
    assert served[0].step_time == served[1].step_time == sl.roofline("llama-3.1-8b", device).sides()
    assert served[0].kv.usable_blocks == sl.kv_cache("llama-3.1-8b", device).usable_blocks


def test_the_summary_tells_of_memory(run):
    """Preemptions, use of the pool, and why requests were turned away."""
    status, out, _ = run(*CHAT, "--kv-blocks", "40", "--max-model-len", "400")
    assert status == 0
    result = sl.simulate(
        sl.poisson(20, 50, 1, 60, lengths.Geometric(90)),
        sl.ContinuousBatching(256, max_model_len=400),
        sl.AffineStep(**engine_options.STEP_TIME),
        kv=sl.Blocks(40),
    )
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert result.preemptions.sum() > 0
    assert lines["preemptions"].split()[1] == str(result.preemptions.sum())
    assert lines["kv_usage"].endswith("% at most of 40 blocks")
    rejected = len(result.rejections)
    assert rejected > 0
    assert lines["rejected"].endswith(f"{rejected}: tokens are more than max_model_len = 400")


def test_json_of_a_model_run(run):
    out = run(*CHAT, *LLAMA, "--quiet", "--json", "-")[1]
    report = strict(out)
    assert report["roofline"]["model"] == report["kv"]["model"] == "llama-3.1-8b"
    assert report["roofline"]["bandwidth_efficiency"] == 0.8
    assert report["roofline"]["interconnect_gb_s"] is None  # infinite
    assert report["kv"]["usable_blocks"] == sl.kv_cache("llama-3.1-8b", "h100-sxm").usable_blocks
    assert report["step_time"]["kind"] == "RoofStep"
    assert report["summary"]["kv_blocks"] == report["kv"]["usable_blocks"]
    assert report["summary"]["preemptions"] == 0


def test_the_real_hour_on_a_model(run, data_dir, tmp_path):
    file = tmp_path / "hour.npz"
    words = [data_dir / "traces" / "AzureLLMInferenceTrace_conv.csv", *LLAMA, "--max-num-batched-tokens", "8192"]
    status, out, err = run("simulate", *words, "--save", file)
    assert (status, err) == (0, "")
    assert "19,366 (19,366 finished, 0 unserved)" in out
    result = sl.read_run(file)
    log = result.segments
    written = int(((log.first_tokens.astype(int) + log.decode_tokens) * log.steps).sum())
    late = int(result.late_gaps[1].sum())  # tokens after a step without one, which aren't decode_tokens
    assert written + late == int(result.output_tokens.sum())
    assert int(log.prefill_tokens.max()) <= 8192
    assert abs(sl.metrics.little(result).gap) < 1e-9
    floor = sl.roofline("llama-3.1-8b", "h100-sxm", bandwidth_efficiency=1, compute_efficiency=1, overhead_s=0)
    assert result.summary().itl_s.p50 > floor(1, 0, 1)


# What fits


def test_memory_says_what_the_library_says(run):
    status, out, err = run("memory", "llama-3.1-8b", "rtx-4090")
    assert (status, err) == (0, "")
    cache = sl.kv_cache("llama-3.1-8b", "rtx-4090")
    assert str(cache) in out
    worst, best = cache.over_the_range()
    cases = [cache, worst, best, cache.change(kv_dtype="fp8")]
    rows = {
        line.split("  ")[0]: line.split()[-4:] for line in out.partition("what fits")[2].splitlines() if "  " in line
    }
    assert rows["blocks"] == [f"{case.num_blocks:,}" for case in cases]
    assert rows["requests of 4,096 tokens"] == [str(case.max_requests(4096)) for case in cases]
    assert rows["starts with --max-model-len 131,072"] == ["no"] * 4
    assert rows["missing for it, GiB a device"] == [f"{case.missing_gib(131_072):.2f}" for case in cases]
    assert "other 2.42 GiB  other 1.15 GiB  fp8 KV" in out
    named = " ".join(out.partition("defaults used: ")[2].split())
    assert set(named.split(", ")) == {
        "--gpu-memory-utilization 0.9", "--block-size 16", "--kv-dtype bf16", "--weight-dtype bf16",
        "--tensor-parallel 1", f"--other-gib {cache.other_gib}", "--tokens 1024 4096 16384", "--max-model-len 131072",
    }  # fmt: skip


def test_memory_with_everything_given(run):
    words = "llama-3.1-70b h100-sxm --tensor-parallel 4 --gpu-memory-utilization 0.95 --block-size 32 --kv-dtype fp8"
    words += " --weight-dtype fp8 --other-gib 6 --weights-gib 17 --total-gib 80 --tokens 500 900 --max-model-len 9000"
    status, out, _ = run("memory", *words.split())
    assert status == 0
    assert "default" not in out
    assert "(given; logs: 2.26 to 7.51 GiB" in out
    assert "missing" not in out
    cache = sl.kv_cache(
        "llama-3.1-70b", "h100-sxm", tensor_parallel=4, gpu_memory_utilization=0.95, block_size=32, kv_dtype="fp8",
        weight_dtype="fp8", other_gib=6, weights_gib=17, total_gib=80,
    )  # fmt: skip
    rows = [line.split() for line in out.splitlines()]
    assert ["what", "fits", "as", "asked", "bf16", "KV"] in rows
    counts = [f"{case.max_requests(900):,}" for case in (cache, cache.change(kv_dtype="bf16"))]
    assert ["requests", "of", "900", "tokens", *counts] in rows
    assert ["starts", "with", "--max-model-len", "9,000", "yes", "yes"] in rows


def test_memory_where_nothing_fits(run):
    status, out, _ = run("memory", "llama-3.1-70b", "rtx-4090")
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["blocks", "0", "0", "0", "0"] in rows
    assert ["requests", "of", "1,024", "tokens", "0", "0", "0", "0"] in rows


def test_memory_of_sliding_windows(run):
    def requests(*words):
        return strict(run("memory", "gpt-oss-20b", "h100-sxm", "--tokens", 60_000, "--json", "-", *words)[1])["cases"]

    whole, hybrid = requests()["as asked"], requests("--hybrid")["as asked"]
    cache = sl.kv_cache("gpt-oss-20b", "h100-sxm")
    assert whole["requests"] == {"60000": cache.max_requests(60_000)}
    assert hybrid["requests"] == {"60000": cache.max_requests(60_000, hybrid=True)}
    assert hybrid["requests"]["60000"] > 1.5 * whole["requests"]["60000"]


def test_memory_as_json(run, tmp_path):
    file = tmp_path / "memory.json"
    status, out, _ = run("memory", "llama-3.1-8b", "h100-sxm", "--json", file)
    assert status == 0
    assert "what fits" in out
    report = strict(file.read_text())
    assert strict(run("memory", "llama-3.1-8b", "h100-sxm", "--json", "-")[1]) == report
    cache = sl.kv_cache("llama-3.1-8b", "h100-sxm")
    assert report["measured_other_gib"]["high"] == 7.51
    assert report["cases"]["fp8 KV"]["tokens"] == cache.change(kv_dtype="fp8").tokens
    assert report["cases"]["as asked"] == {
        "kv_dtype": "bf16", "other_gib": 5.39, "bytes_per_token": 131072, "kv_gib": cache.kv_gib,
        "num_blocks": cache.num_blocks, "tokens": cache.tokens,
        "requests": {str(n): cache.max_requests(n) for n in (1024, 4096, 16384)},
        "starts": cache.starts(131_072), "missing_gib": 0.0,
    }  # fmt: skip


def test_the_examples_of_memory_run(run):
    examples = run("memory", "--help")[1].partition("examples:")[2].strip().splitlines()
    assert len(examples) == 3
    for example in examples:
        assert run(*shlex.split(example)[1:])[::2] == (0, ""), example


# Saved runs


@pytest.fixture
def saved(run, tmp_path):
    """Two runs of the same requests, saved."""
    files = tmp_path / "a.npz", tmp_path / "b.npz"
    for file, blocks in zip(files, (40, 80), strict=True):
        status, out, _ = run(*CHAT, "--kv-blocks", blocks, "--save", file)
        assert status == 0
        assert f"saved the run to {file}" in out
    return files


def test_a_saved_run_is_the_run(run, tmp_path):
    file = tmp_path / "run.npz"
    assert run(*CHAT, *LLAMA, "--max-num-batched-tokens", "512", "--quiet", "--save", file) == (0, "", "")
    again = sl.read_run(file)
    roof = sl.roofline("llama-3.1-8b", "h100-sxm")
    result = sl.simulate(
        sl.poisson(20, 50, 1, 60, lengths.Geometric(90)),
        sl.ContinuousBatching(256, 512),
        roof.sides(),
        kv=sl.kv_cache("llama-3.1-8b", "h100-sxm"),
    )
    assert np.array_equal(again.finish_ns, result.finish_ns)
    assert again.setup == dataclasses.replace(result.setup, roofline=roof)


def test_compare(run, saved):
    status, out, err = run("compare", *saved)
    assert (status, err) == (0, "")
    runs = [sl.read_run(file) for file in saved]
    assert out == f"{sl.compare_runs(*runs, names=tuple(map(str, saved)))}\n"
    rows = [line.split() for line in out.splitlines()]
    assert ["kv.usable_blocks", "40", "80"] in rows
    assert "the same arrivals and lengths" in out
    a, b = (each.summary().ttft_s.mean for each in runs)
    assert [f"{100 * (b / a - 1):+.2f}", "%"] == next(row for row in rows if row[:1] == ["ttft_s.mean"])[-2:]
    assert "request_goodput" not in out
    assert "request_goodput" in run("compare", *saved, "--slo", "ttft_s=1")[1]
    report = strict(run("compare", *saved, "--json", "-")[1])
    assert report["settings"] == {"kv.usable_blocks": [40, 80]}
    assert report["figures"]["ttft_s.mean"] == {"a": a, "b": b, "change": b / a - 1}


def test_compare_names_another_version(run, saved, monkeypatch):
    monkeypatch.setattr(save, "__version__", "9.9")
    status, out, err = run("compare", *saved)
    assert status == 0
    lines = err.splitlines()
    assert [line.endswith("was saved by servinglab 0.1.0; this is 9.9") for line in lines] == [True, True]
    assert lines[0].startswith(f"servinglab: {saved[0]}")
    assert "ttft_s.p99" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare A", "the following arguments are required: RUN_B"),
        ("compare A TRACE", "trace.csv isn't a run: neither a NumPy archive of servinglab, nor the folder"),
        ("compare A NOWHERE.npz", "nowhere.npz: No such file or directory"),
        ("compare A FOLDER", "folder isn't the folder of a load test"),
        ("compare A B --slo ttft=1", "argument --slo: 'ttft=1': NAME must be one of"),
        ("compare A B --json FOLDER", "folder is a folder, not a file to write"),
    ],
)
def test_mistakes_in_comparing(run, saved, trace, tmp_path, words, message):
    (tmp_path / "folder").mkdir()
    words = words.replace("TRACE", str(trace)).replace("NOWHERE", str(tmp_path / "nowhere"))
    words = words.replace("FOLDER", str(tmp_path / "folder"))
    names = {"A": saved[0], "B": saved[1]}
    status, out, err = run(*(names.get(word, word) for word in words.split()))
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


# What comes out


def test_a_trace_and_its_summary(run, trace):
    status, out, err = run("simulate", trace, "--slo", "ttft_s=2,tpot_s=0.1")
    assert (status, err) == (0, "")
    assert "3 requests over 4.3 s" in out
    result = sl.simulate(sl.read_trace(trace), sl.ContinuousBatching(256), sl.AffineStep(**engine_options.STEP_TIME))
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

    result = sl.simulate(sl.read_trace(trace), sl.ContinuousBatching(256), sl.AffineStep(**engine_options.STEP_TIME))
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
    assert report["step_time"] == {"kind": "AffineStep", **engine_options.STEP_TIME}
    assert report["kv"] is report["roofline"] is None
    assert report["interrupted"] is False
    assert report["defaults_used"]["pots"] == 1
    result = sl.simulate(sl.poisson(20, 50, 1), sl.ContinuousBatching(256), sl.AffineStep(**engine_options.STEP_TIME))
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
        ("simulate TRACE --edges 9", "--edges doesn't go with --scheduler continuous"),
        ("simulate TRACE --scheduler bucketed --batch-size 4 --window-s 1", "--scheduler bucketed needs --edges"),
        ("simulate TRACE --scheduler bucketed --edges 9;12", "--edges: whole numbers with commas between, not '9;12'"),
        ("simulate TRACE --scheduler static --batch-size 4 --max-num-seqs 4", "--max-num-seqs doesn't go with"),
        ("simulate TRACE --scheduler fifo", "argument --scheduler: invalid choice: 'fifo'"),
        ("simulate TRACE --max-num-seqs 0", "max_num_seqs must be a whole number >= 1; got 0"),
        ("simulate TRACE --pots 0", "pots must be"),
        ("simulate TRACE --no-chunked-prefill", "--no-chunked-prefill needs --max-num-batched-tokens"),
        ("simulate TRACE --adaptive-threshold", "--adaptive-threshold needs --long-prefill-token-threshold"),
        ("simulate TRACE --watermark 0.1", "--watermark needs a pool of KV blocks"),
        ("simulate TRACE --reserve-whole-answer", "--reserve-whole-answer needs a pool of KV blocks"),
        ("simulate TRACE LLAMA --kv-blocks unlimited --watermark 0.1", "--watermark needs a pool of KV blocks"),
        ("simulate TRACE --watermark 1 --kv-blocks 99", "watermark must be a finite number >= 0 and < 1; got 1.0"),
        (
            "simulate TRACE --max-num-batched-tokens 99",
            r"--max-num-batched-tokens 99 is less than --max-num-seqs 256 \(the default\)$",
        ),
        (
            "simulate TRACE --max-num-batched-tokens 9 --max-num-seqs 10",
            "--max-num-batched-tokens 9 is less than --max-num-seqs 10$",
        ),
        ("simulate TRACE --max-num-active-seqs 257", r"--max-num-seqs 256 \(the default\) is less than --max-num-act"),
        ("simulate TRACE --max-num-active-seqs 0", "max_num_active_seqs must be a whole number >= 1"),
        ("simulate TRACE --max-num-batched-tokens many", "argument --max-num-batched-tokens: a whole number or unlim"),
        (
            "simulate TRACE --max-model-len 90 --long-prefill-token-threshold 91",
            "--max-model-len 90 is less than --long-prefill-token-threshold 91",
        ),
        (
            "simulate TRACE --max-num-batched-tokens 256 --no-chunked-prefill --max-model-len 257",
            "--max-num-batched-tokens 256 is less than --max-model-len 257, as --no-chunked-prefill doesn't allow",
        ),
        ("simulate TRACE --prefill-first --async-scheduling", "--prefill-first doesn't go with --async-scheduling"),
        (
            "simulate TRACE --kv-blocks 99 --reserve-whole-answer --prefix-caching",
            "--reserve-whole-answer doesn't go with --prefix-caching",
        ),
        ("simulate TRACE --policy random", "argument --policy: invalid choice: 'random'"),
        ("simulate TRACE --scheduler static --batch-size 4 --policy fcfs", "--policy doesn't go with --scheduler sta"),
        ("simulate TRACE --scheduler static --batch-size 4 --kv-blocks 9", "--kv-blocks doesn't go with --scheduler"),
        ("simulate TRACE LLAMA --scheduler static --batch-size 4 --other-gib 9", "--other-gib doesn't go with --sch"),
        ("simulate TRACE --pots 2 --kv-blocks 9", "--kv-blocks doesn't go with --pots 2"),
        ("simulate TRACE --pots endless --max-model-len 9", "--max-model-len doesn't go with --pots endless"),
        ("simulate TRACE --pots 2 LLAMA --other-gib 9", "--other-gib doesn't go with --pots 2"),
        ("simulate TRACE --kv-blocks 0", "kv_blocks must be a whole number >= 1; got 0"),
        ("simulate TRACE --kv-blocks 9 --block-size 0", "block_size must be a whole number >= 1; got 0"),
        ("simulate TRACE --kv-blocks 9 --other-gib 3", "--other-gib doesn't go with --kv-blocks"),
        ("simulate TRACE LLAMA --kv-blocks 9 --gpu-memory-utilization 1", "--gpu-memory-utilization doesn't go with"),
        ("simulate TRACE --kv-blocks unlimited --block-size 9", "--block-size doesn't go with --kv-blocks unlimited"),
        ("simulate TRACE --block-size 9", "--block-size needs --kv-blocks, or --model and --accelerator"),
        ("simulate TRACE --other-gib 9", "--other-gib needs --model and --accelerator"),
        (
            "simulate TRACE --kv-blocks 9 --max-model-len 200",
            "--max-model-len 200 needs 13 blocks of KV cache; --kv-blocks gives 9",
        ),
        (
            "simulate TRACE LLAMA --gpu-memory-utilization 0.3 --max-model-len 99999",
            "--max-model-len 99999 needs 6250 blocks of KV cache; --gpu-memory-utilization gives 1",
        ),
        ("simulate TRACE LLAMA --max-model-len 200000", "is more than the 131072 tokens that --model llama-3.1-8b"),
        ("simulate TRACE --model llama-3.1-8b", "--model needs --accelerator"),
        ("simulate TRACE --accelerator h100-sxm", "--accelerator needs --model"),
        ("simulate TRACE --kv-dtype fp8", "--kv-dtype needs --model"),
        ("simulate TRACE --catalog rows.toml", "--catalog needs --model"),
        ("simulate TRACE LLAMA --fixed-s 1", "--fixed-s doesn't go with --model"),
        ("simulate TRACE LLAMA --step-time TRACE", "--step-time doesn't go with --model"),
        ("simulate TRACE --step-time TRACE --kv-dtype fp8", "--kv-dtype needs --model"),
        ("simulate TRACE --step-time TRACE --fixed-s 1", "--fixed-s doesn't go with --step-time"),
        ("simulate TRACE --step-time TRACE", "trace.csv must be of bench torch, or a prediction.json of bench vllm"),
        ("simulate TRACE --step-time NOWHERE", "nowhere: No such file"),
        ("simulate TRACE LLAMA --per-kv-token-s 0", "--per-kv-token-s doesn't go with --model"),
        ("simulate TRACE LLAMA --tensor-parallel 2", "--tensor-parallel 2 needs --interconnect-gb-s"),
        ("simulate TRACE LLAMA --tensor-parallel 3 --interconnect-gb-s 9", "tensor_parallel must divide the 32 heads"),
        ("simulate TRACE LLAMA --interconnect-gb-s 9", "--interconnect-gb-s needs --tensor-parallel of at least 2"),
        ("simulate TRACE LLAMA --bandwidth-efficiency 2", "bandwidth_efficiency must be a finite number > 0 and <= 1"),
        ("simulate TRACE LLAMA --kv-dtype fp7", "kv_dtype must be one of"),
        ("simulate TRACE --model llama-9 --accelerator h100-sxm", "model 'llama-9' isn't in the catalogue; nearest: "),
        ("simulate TRACE --model NOWHERE.json --accelerator h100-sxm", "nowhere.json: No such file"),
        ("simulate TRACE --model TRACE.json --accelerator h100-sxm", "trace.csv.json: No such file"),
        ("simulate TRACE --catalog TRACE --model x --accelerator y", "trace.csv: not TOML"),
        (
            "simulate TRACE --model llama-3.1-70b --accelerator h100-sxm",
            "--model llama-3.1-70b doesn't fit --accelerator h100-sxm: of 71.26 GiB, weights take 131.42 and the rest",
        ),
        ("simulate TRACE --policy priority --priority 1", "--priority belongs to a generated workload"),
        ("simulate --poisson 20 --n 5 --seed 1 --priority 1", "--priority needs --policy priority"),
        ("simulate --poisson 20 --n 5 --seed 1 --kv-blocks 9", "--kv-blocks counts tokens, and needs --prompt-tokens"),
        ("simulate --poisson 20 --n 5 --seed 1 LLAMA", "--model counts tokens, and needs --prompt-tokens"),
        (
            "simulate --poisson 20 --n 5 --seed 1 --policy priority --prompt-tokens 0",
            "prompt_tokens must be at least 1 where tokens are counted",
        ),
        (
            "simulate --poisson 20 --n 5 --seed 1 --max-model-len 9 --prompt-tokens 3 --service-scale 2",
            "--service-scale doesn't go with --max-model-len",
        ),
        ("simulate TRACE --save r.csv", "--save must end in .npz; got 'r.csv'"),
        ("simulate TRACE --save NOWHERE/r.npz", "no folder .*nowhere to write r.npz into"),
        ("simulate TRACE --json r.npz --save r.npz", "--json and --save must name different files"),
        ("memory", "the following arguments are required: MODEL, ACCELERATOR"),
        ("memory llama-3.1-8b h900", "accelerator 'h900' isn't in the catalogue; nearest: h"),
        ("memory llama-3.1-8b h100-sxm --hybrid", "--hybrid is for models with sliding windows; llama-3.1-8b has none"),
        ("memory llama-3.1-8b h100-sxm --tokens 0", "tokens must be a whole number >= 1; got 0"),
        ("memory llama-3.1-8b h100-sxm --max-model-len 0", "max_model_len must be a whole number >= 1; got 0"),
        ("memory llama-3.1-8b h100-sxm --other-gib -1", "other_gib must be a finite number >= 0; got -1.0"),
        ("memory llama-3.1-8b h100-sxm --tensor-parallel 5", "tensor_parallel must divide the 32 heads"),
        ("memory llama-3.1-8b h100-sxm --json NOWHERE/m.json", "no folder .*nowhere to write m.json into"),
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
    words = words.replace("TRACE", str(trace)).replace("BAD", str(bad)).replace("LLAMA", " ".join(LLAMA))
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
        "--max-num-batched-tokens",
        "--max-model-len",
        "--long-prefill-token-threshold",
        "--policy",
        "priority",
        "--watermark",
        "--no-chunked-prefill",
        "--prefix-caching",
        "--async-scheduling",
        "--kv-blocks",
        "unlimited",
        "--block-size",
        "--model",
        "llama-3.1-8b",
        "--accelerator",
        "h100-sxm",
        "--kv-dtype",
        "fp8",
        "--other-gib",
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
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = cli.main(["simulate", *words])
        except SystemExit as stop:
            status = stop.code
    assert status in (0, 2)
    assert len(err.getvalue().splitlines()) == (status == 2)


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
def test_ctrl_c_saves_what_is_done(run, tmp_path):
    file = tmp_path / "run.npz"
    status, _, err = run(*MANY, "--save", file)
    assert status == 130
    again = sl.read_run(file)
    done = int(again.finished.sum())
    assert 0 < done < len(again) == 150_000
    assert again.setup.interrupted is True
    assert f"{done:,} of 150,000 requests finished, the other {150_000 - done:,} are UNSERVED in {file}\n" in err


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
    monkeypatch.setattr(workload_options, "read_trace", stop)
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


@pytest.mark.slow
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
    s = engine_options.STEP_TIME
    held = prompt + output / 2
    per_token = s["fixed_s"] / cli.MAX_NUM_SEQS + s["per_request_s"] + s["per_kv_token_s"] * held
    most_rps = 1 / (prompt * s["per_prefill_token_s"] + output * per_token)
    assert most_rps > 2 * 5.53
    assert math.isfinite(most_rps)


def test_validate_prints_the_error_budget(run, data_dir, tmp_path):
    status, out, _ = run("validate", "--part", "traces", "--json", str(tmp_path / "rows.json"))
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert status == 0 and "within it" in out
    assert rows and all(row["error"] == 0 for row in rows if row["error"] is not None)


def test_validate_names_what_is_absent(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SERVINGLAB_DATA", str(tmp_path))
    status, out, _ = run("validate", "--part", "runs", "--part", "closed-loop")
    assert status == 0 and "0 of 0 figures" in out and out.count("absent") >= 2
