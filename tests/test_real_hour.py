"""The real hour, 19,366 requests of a production service, through the command line: nothing lost, nothing invented.

The trace is the Azure LLM inference trace of conversations, 2023 (Azure/AzurePublicDataset, CC BY 4.0). It isn't part
of this repository: `servinglab data` says where to get it.
"""

from __future__ import annotations

import csv
import json
from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest
import servinglab as sl
from servinglab import metrics
from servinglab.cli import engine_options
from servinglab.cli import main as cli

REQUESTS = 19_366
FILE = "AzureLLMInferenceTrace_conv.csv"


@pytest.fixture(scope="module")
def hour(data_dir, tmp_path_factory):
    """One replay by the command line: its files, its text, and the result that it made."""
    folder = tmp_path_factory.mktemp("hour")
    made = []

    def simulate(*args, **options):
        made.append(sl.simulate(*args, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "simulate", simulate)
        patch.setenv("SERVINGLAB_DATA", str(data_dir))
        words = ["simulate", FILE, "--slo", "ttft_s=2,tpot_s=0.1", "--quiet"]
        assert cli.main([*words, "--out", str(folder / "r.csv"), "--json", str(folder / "r.json")]) == 0
        assert cli.main([*words, "--out", str(folder / "r.parquet")]) == 0
    with open(folder / "r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return folder, rows, made[0]


@pytest.fixture(scope="module")
def source(data_dir):
    """The trace by other means than the library's reader: exact seconds from the first request, and the tokens."""
    with open(data_dir / "traces" / FILE, newline="") as file:
        rows = list(csv.DictReader(file))

    def seconds(stamp):
        whole, _, decimals = stamp.partition(".")
        since = datetime.fromisoformat(whole) - datetime(2023, 11, 16)
        return since // timedelta(seconds=1) + Decimal(f"0.{decimals}")

    first = seconds(rows[0]["TIMESTAMP"])
    return (
        [seconds(row["TIMESTAMP"]) - first for row in rows],
        [int(row["ContextTokens"]) for row in rows],
        [int(row["GeneratedTokens"]) for row in rows],
    )


def test_every_request_comes_out_once(hour, source):
    _, rows, _ = hour
    arrivals, prompts, outputs = source
    assert len(rows) == len(arrivals) == REQUESTS
    assert [int(row["request"]) for row in rows] == list(range(REQUESTS))
    assert {row["status"] for row in rows} == {"FINISHED"}
    assert [Decimal(row["arrival_s"]) for row in rows] == arrivals
    assert [int(row["prompt_tokens"]) for row in rows] == prompts
    assert [int(row["output_tokens"]) for row in rows] == outputs


def test_every_request_moves_forward_in_time(hour):
    _, rows, _ = hour
    arrival, scheduled, first, finish = (
        np.array([float(row[name]) for row in rows])
        for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
    )
    several = np.array([int(row["output_tokens"]) > 1 for row in rows])
    assert (scheduled >= arrival).all()
    assert (first > scheduled).all()
    assert (finish[several] > first[several]).all()
    assert (finish[~several] == first[~several]).all()
    assert (np.diff(scheduled) >= 0).all()  # first come, first served


def test_tokens_are_conserved(hour, source):
    """What the steps computed is what the requests asked for: one step per output token."""
    _, _, result = hour
    _, prompts, outputs = source
    log = result.segments
    written = (log.first_tokens.astype(int) + log.decode_tokens) * log.steps
    assert int(written.sum()) == sum(outputs)
    assert int((log.prefill_tokens * log.steps).sum()) == sum(prompts)
    assert int((log.first_tokens * log.steps).sum()) == REQUESTS
    _, tokens = result.itl()
    assert int(tokens.sum()) == sum(outputs) - REQUESTS


def test_one_machine_does_one_step_at_a_time(hour):
    _, _, result = hour
    log = result.segments
    assert set(log.pot) == {0}
    assert (log.start_ns[1:] >= log.end_ns[:-1]).all()
    assert log.running.max() <= cli.MAX_NUM_SEQS
    step = sl.AffineStep(**engine_options.STEP_TIME)
    singles = result.steps()
    prices = [
        step.step_ns(*holds)
        for holds in zip(
            singles.charged.tolist(),
            singles.prefill_tokens.tolist(),
            singles.kv_tokens.tolist(),
            singles.prefill_pairs.tolist(),
            strict=True,
        )
    ]
    assert (singles.end_ns - singles.start_ns).tolist() == prices


def test_littles_law_from_two_sources(hour):
    """L = λW, with L from the log of steps and λW from the rows.

    The number in system is integrated over time from the log: those in the pot (`running` times each stretch's
    length) and those in the line (`waited_request_s`). λW is the sum of the rows' latencies over the same time. The
    run begins and ends empty, so both are the area between the curves of arrivals and departures, and equal. The
    engine counts whole nanoseconds; what is left is the rounding of sums of floats, some 1e-12 of the area.
    """
    _, rows, result = hour
    log = result.segments
    in_pot_s = float((log.running * (log.end_ns - log.start_ns)).sum()) / 1e9
    in_line_s = float(log.waited_request_s.sum())
    duration_s = max(float(row["finish_s"]) for row in rows)
    number_in_system = (in_pot_s + in_line_s) / duration_s
    rate_rps = len(rows) / duration_s
    latency_s = float(np.mean([float(row["finish_s"]) - float(row["arrival_s"]) for row in rows]))
    assert number_in_system == pytest.approx(rate_rps * latency_s, rel=1e-11)
    assert 5 < number_in_system < 20
    # and each part by itself: the line holds those who wait for their first step, the pot those who don't
    waits_s = sum(float(row["scheduled_s"]) - float(row["arrival_s"]) for row in rows)
    assert in_line_s == pytest.approx(waits_s, rel=1e-11)
    assert abs(metrics.little(result).gap) < 1e-11


def test_the_files_hold_what_the_simulation_made(hour):
    import pyarrow.parquet

    folder, rows, result = hour
    table = pyarrow.parquet.read_table(folder / "r.parquet").to_pydict()
    assert list(table) == list(rows[0])
    assert len(table["request"]) == REQUESTS
    for name, column in result.rows().items():
        if column.dtype.kind == "f":
            written = np.array([float(row[name] or "nan") for row in rows])
            assert np.allclose(written, column, rtol=0, atol=5.1e-10, equal_nan=True), name  # nine decimals
            stored = np.array([np.nan if x is None else x for x in table[name]])
            assert np.array_equal(stored, column, equal_nan=True), name
        else:
            assert [row[name] for row in rows] == [str(x) for x in column.tolist()], name
            assert table[name] == column.tolist(), name


def test_the_summary_is_of_this_hour(hour):
    folder, _, result = hour
    report = json.loads((folder / "r.json").read_text())
    assert report["workload"]["requests"] == REQUESTS
    assert report["workload"]["rate_rps"] == pytest.approx(5.530, abs=1e-3)
    assert report["workload"]["cv"] == pytest.approx(1.094, abs=1e-3)
    assert report["workload"]["span_s"] == 3501.721937
    assert report["summary"] == result.summary({"ttft_s": 2, "tpot_s": 0.1}).to_dict()
    assert report["summary"]["by_status"] == {"FINISHED": REQUESTS, "UNSERVED": 0, "REJECTED": 0}
    assert report["defaults_used"]["max_num_seqs"] == cli.MAX_NUM_SEQS
    # stable: the machine keeps up with the hour and is done within seconds of the last arrival
    assert report["summary"]["duration_s"] - 3501.7 < 30


@pytest.mark.parametrize(
    ("file", "requests", "prompt_tokens", "output_tokens"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 1154.697408, 211.125942),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 2047.848282, 27.882526),
        ("mooncake_synthetic_trace.jsonl", 3_993, 15325.476584, 149.118958),
    ],
)
def test_the_public_traces_are_read_whole(data_dir, file, requests, prompt_tokens, output_tokens):
    """Against counts and means taken from the files by other means."""
    work = sl.read_trace(data_dir / "traces" / file)
    assert len(work) == requests
    assert work.prompt_tokens.mean() == pytest.approx(prompt_tokens, abs=1e-6)
    assert work.output_tokens.mean() == pytest.approx(output_tokens, abs=1e-6)
    assert work.arrival_s[0] == 0
    if work.prefix_hashes is not None:
        blocks = [len(row) for row in work.prefix_hashes]
        assert blocks == [-(-tokens // 512) for tokens in work.prompt_tokens.tolist()]
