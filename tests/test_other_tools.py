"""Result files of other load testers: what their own figures say is what ours say, or it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from servinglab.measure.readers.other_tools import read_measured_run


@pytest.fixture(scope="module")
def outputs(data_dir: Path) -> Path:
    """Files that the tools really wrote."""
    return data_dir / "bench_outputs"


def vllm_file(**changes: Any) -> dict[str, Any]:
    """Three answers, of which one failed."""
    return {
        "request_throughput": 1.0,
        "request_rate": 2.0,
        "max_concurrency": None,
        "model_id": "m",
        "input_lens": [10, 20, 30],
        "output_lens": [3, 0, 2],
        "ttfts": [0.5, 0.0, 0.25],
        "itls": [[0.1, 0.2], [], [0.3]],
        "start_times": [100.0, 101.0, 103.0],
        "queue_times": [0.0, 0.0, 2.5],
        "errors": ["", "Connection refused", ""],
        **changes,
    }


def put(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "run.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_file_of_vllms_bench(tmp_path: Path) -> None:
    result = sl.read_run(put(tmp_path, vllm_file()))
    assert result.arrival_s.tolist() == [0.0, 1.0, 3.0]
    assert result.ttft_s[[0, 2]] == pytest.approx([0.5, 0.25])
    assert result.e2e_s[[0, 2]] == pytest.approx([0.8, 0.55])
    assert result.tpot_s[[0, 2]] == pytest.approx([0.15, 0.3])
    assert [sl.Status(each).name for each in result.status] == ["FINISHED", "FAILED", "FINISHED"]
    gaps, tokens = result.itl()
    assert gaps.tolist() == [0.1, 0.2, 0.3]
    assert tokens.tolist() == [1, 1, 1]
    summary = result.summary(slo={"e2e_s": 1.0})
    assert (summary.good_requests, summary.tpot_s.missing) == (2, 1)  # the failed one stays in every denominator


def test_a_concurrency_limit_hides_a_queue_unless_the_schedule_counts(tmp_path: Path) -> None:
    file = put(tmp_path, vllm_file(max_concurrency=1))
    sent, scheduled = sl.read_run(file), sl.read_run(file, since="scheduled")
    assert sent.e2e_s[2] == pytest.approx(0.55)
    assert scheduled.e2e_s.max(initial=0, where=scheduled.finished) == pytest.approx(3.05)
    assert (sent.setup.since, scheduled.setup.since) == ("sent", "scheduled")


@pytest.mark.parametrize("changes", [{"request_rate": "inf"}, {"queue_times": None}])
def test_no_schedule_no_latency_from_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no schedule"):
        sl.read_run(put(tmp_path, vllm_file(**changes)), since="scheduled")


def test_gaps_between_chunks_are_no_itl_where_chunks_are_no_tokens(tmp_path: Path) -> None:
    result = sl.read_run(put(tmp_path, vllm_file(output_lens=[5, 0, 2])))
    assert result.setup.no_itl.startswith("1 of 2 answers have other numbers of chunks")
    assert result.summary().itl_s.count == 0
    assert result.tpot_s[0] == pytest.approx(0.3 / 4)  # what needs no gaps is exact all the same
    with pytest.raises(ValueError, match="no gaps between tokens"):
        result.itl()


@pytest.mark.parametrize("name", ["vllm_bench_open.json", "vllm_bench_closed.json"])
def test_real_files_of_vllms_bench(outputs: Path, name: str) -> None:
    theirs = json.loads((outputs / name).read_text())
    result = sl.read_run(outputs / name)
    assert len(result) == theirs["num_prompts"] == theirs["completed"]
    by_start = np.argsort(theirs["start_times"], kind="stable")
    assert result.e2e_s == pytest.approx(np.array(theirs["latencies"])[by_start], abs=2e-9)
    for metric, values in (("ttft", result.ttft_s), ("tpot", result.tpot_s)):
        assert 1000 * values.mean() == pytest.approx(theirs[f"mean_{metric}_ms"], rel=1e-6)
        assert 1000 * np.percentile(values, 99) == pytest.approx(theirs[f"p99_{metric}_ms"], rel=1e-6)
    itl = result.summary().itl_s
    assert 1000 * itl.mean == pytest.approx(theirs["mean_itl_ms"], rel=1e-6)
    assert itl.count == theirs["total_output_tokens"] - theirs["completed"]


def test_a_real_file_of_guidellm(outputs: Path) -> None:
    (theirs,) = json.loads((outputs / "guidellm_open.json").read_text())["benchmarks"]
    rows = sorted(theirs["requests"]["successful"], key=lambda row: row["request_start_time"])
    result = sl.read_run(outputs / "guidellm_open.json")
    assert len(result) == len(rows)
    assert result.ttft_s == pytest.approx([row["time_to_first_token_ms"] / 1000 for row in rows], abs=2e-6)
    # its ITL is our TPOT, and its TPOT holds the TTFT: not ours
    assert result.tpot_s == pytest.approx([row["inter_token_latency_ms"] / 1000 for row in rows], abs=2e-6)
    not_ours = np.array([row["time_per_output_token_ms"] / 1000 for row in rows])
    assert (not_ours > 1.04 * result.tpot_s).all()
    assert "no gaps between tokens" in result.setup.no_itl
    assert result.summary().itl_s.count == 0
    scheduled = sl.read_run(outputs / "guidellm_open.json", since="scheduled")
    due = sorted(row["info"]["timings"]["targeted_start"] for row in rows)
    assert scheduled.arrival_s == pytest.approx(np.array(due) - due[0], abs=2e-6)
    assert (scheduled.e2e_s > result.e2e_s).all()


def test_a_real_file_of_aiperf(outputs: Path) -> None:
    lines = (outputs / "aiperf_open_records.jsonl").read_text().splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["metadata"]["request_start_ns"])

    def theirs(name: str) -> np.ndarray:
        return np.array([row["metrics"][name]["value"] for row in rows]) / 1000

    result = sl.read_run(outputs / "aiperf_open_records.jsonl")
    assert result.ttft_s == pytest.approx(theirs("time_to_first_token"), abs=1e-6)
    assert result.e2e_s == pytest.approx(theirs("request_latency"), abs=1e-6)
    assert result.tpot_s == pytest.approx(theirs("inter_token_latency"), abs=1e-6)  # under the name of another metric
    fewer = sum(len(row["metrics"]["inter_chunk_latency"]["value"]) != 23 for row in rows)
    assert result.setup.no_itl.startswith(f"{fewer} of 16 answers")
    with pytest.raises(ValueError, match="has no schedule"):
        sl.read_run(outputs / "aiperf_open_records.jsonl", since="scheduled")
    with pytest.raises(ValueError, match="summaries only"):
        sl.read_run(outputs / "aiperf_open.json")


def aiperf_line(**changes: Any) -> dict[str, Any]:
    metrics = {
        "request_latency": 900.0,
        "time_to_first_token": 300.0,
        "output_sequence_length": 3,
        "input_sequence_length": 7,
    }
    metrics["inter_chunk_latency"] = [200.0, 400.0]  # type: ignore[assignment]
    about = {"request_start_ns": 10**18, "benchmark_phase": "profiling", "was_cancelled": False}
    return {"metadata": about, "metrics": {name: {"value": value} for name, value in metrics.items()}, **changes}


def test_aiperfs_warm_up_and_failures(tmp_path: Path) -> None:
    warm = aiperf_line(metadata={"request_start_ns": 5, "benchmark_phase": "warmup"})
    failed = aiperf_line(error={"message": "boom"}, metrics={})
    cancelled = aiperf_line(metadata={**aiperf_line()["metadata"], "was_cancelled": True})
    lines = [warm, aiperf_line(), failed, cancelled]
    result = sl.read_run(put(tmp_path, "\n".join(map(json.dumps, lines))))
    assert result.summary().by_status == {"FINISHED": 1, "UNSERVED": 0, "REJECTED": 0, "FAILED": 2}
    assert result.setup.facts["warm_up_requests_left_out"] == 1
    assert result.itl()[0].tolist() == [0.2, 0.4]
    assert result.summary().tpot_s.missing == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"hello": 1}, "isn't a run"),
        ([1, 2], "isn't a run"),
        ("no JSON at all", "isn't a run"),
        ({"request_throughput": 1.0, "completed": 5}, "--save-detailed"),
        (vllm_file(itls=[[]]), "equal length"),
        ({"benchmarks": [{}, {}]}, "holds 2 benchmarks"),
        ({"benchmarks": [{"requests": {}}]}, "isn't a GuideLLM file"),
        (json.dumps(aiperf_line()) + "\n{", r"run\.json:2: not one of AIPerf's records"),
        (
            aiperf_line(metadata={"request_start_ns": 5, "benchmark_phase": "warmup"}),
            "no record of the profiling phase",
        ),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_measured_run(put(tmp_path, content))


def test_bytes_that_are_no_text_and_an_unknown_since(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="isn't a run"):
        sl.read_run(file)
    with pytest.raises(ValueError, match="since must be"):
        sl.read_run(put(tmp_path, vllm_file()), since="whenever")


def test_our_own_vllm_names_are_read_back_as_the_same_run(tmp_path: Path) -> None:
    from servinglab.measure.load_test.records import to_result
    from servinglab.measure.load_test.vllm_fields import vllm_bench_fields
    from test_load_test import made_run, record

    rows = [record(k, float(k), None if k == 3 else 1.0 + 0.1 * k) for k in range(6)]
    (fields,) = vllm_bench_fields(made_run(*rows)).values()
    again, ours = sl.read_run(put(tmp_path, fields)), to_result(rows, since="sent")
    for name in ("arrival_ns", "first_token_ns", "finish_ns", "output_tokens", "finished"):
        assert getattr(again, name) == pytest.approx(getattr(ours, name), abs=2), name
    assert fields["mean_ttft_ms"] == pytest.approx(1000 * np.nanmean(ours.ttft_s))
