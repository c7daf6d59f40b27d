"""One function for each rate, over a stated window: the same requests give the same numbers wherever they are from."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from servinglab import metrics
from servinglab.measure.load_test.report import make_report, read_load_test
from servinglab.result.compare import relative_errors
from servinglab.sim_server import serve
from streaming_server import StreamingServer

LATE = sl.Workload.from_arrivals(10 + np.arange(0, 2, 0.25), prompt_tokens=50, output_tokens=[1, 4] * 4)
pytestmark = pytest.mark.filterwarnings("ignore:the client was the bottleneck")  # a busy machine's
RULES, STEP = sl.ContinuousBatching(4), sl.AffineStep(0.2, 0.01)


def own_words(run: sl.Result) -> tuple[float, float]:
    """Requests and output tokens a second, from the first arrival to the last event, by hand."""
    done = run.finished
    seconds = (max(run.finish_ns.max(), run.arrival_ns.max()) - run.arrival_ns.min()) / 1e9
    return done.sum() / seconds, run.output_tokens[done].sum() / seconds


def test_what_came_before_the_first_arrival_is_no_part_of_the_run():
    late = sl.simulate(LATE, RULES, STEP)
    at_once = sl.Workload.from_arrivals(LATE.arrival_s - 10, LATE.prompt_tokens, LATE.output_tokens)
    early = sl.simulate(at_once, RULES, STEP)
    for name in ("duration_s", "request_throughput", "output_throughput", "busy_fraction", "mean_in_system"):
        assert getattr(late.summary(), name) == pytest.approx(getattr(early.summary(), name)), name
    assert late.duration_s < 5
    assert (late.summary().request_throughput, late.summary().output_throughput) == pytest.approx(own_words(late))


def test_simulated_and_saved_and_recorded_runs_give_the_same_numbers(tmp_path: Path):
    simulated = sl.simulate(LATE, RULES, STEP)
    sl.save_run(simulated, tmp_path / "run.npz")
    rows = [
        {
            "request_id": k,
            "input_toks": int(simulated.prompt_tokens[k]), "output_toks": int(simulated.output_tokens[k]),
            "queued_ts": simulated.arrival_ns[k] / 1e9, "scheduled_ts": simulated.scheduled_ns[k] / 1e9,
            "first_token_ts": simulated.first_token_ns[k] / 1e9, "last_token_ts": simulated.finish_ns[k] / 1e9,
        }
        for k in range(len(simulated))
    ]  # fmt: skip
    file = tmp_path / "a_requests.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    told = simulated.summary({"e2e_s": 1.0}).to_dict()
    for other in (sl.read_run(tmp_path / "run.npz"), sl.read_run(file)):
        again = other.summary({"e2e_s": 1.0}).to_dict()
        for name in (
            "duration_s",
            "request_throughput",
            "output_throughput",
            "request_goodput",
            "ttft_s",
            "tpot_s",
            "e2e_s",
        ):
            assert again[name] == pytest.approx(told[name], rel=1e-6), name
        assert list(relative_errors(other, simulated).values()) == pytest.approx([0.0] * 8, abs=1e-6)


def test_a_live_run_gives_the_numbers_of_its_folder_and_of_its_report(tmp_path: Path):
    with serve(RULES, sl.AffineStep(0.01, 0.001)) as url:
        run = sl.bench(url, sl.poisson(50, 20, seed=1, prompt_tokens=20, output_tokens=5), tmp_path / "kept")
    told, again = run.summary(), sl.read_run(tmp_path / "kept").summary()
    assert (told.request_throughput, told.output_throughput) == pytest.approx(own_words(run))
    assert again.request_throughput == told.request_throughput
    (level,) = make_report(read_load_test(tmp_path / "kept")).content["levels"]
    assert level["request_throughput"] == pytest.approx(told.request_throughput, rel=1e-6)
    assert level["output_throughput"] == pytest.approx(told.output_throughput, rel=1e-6)
    assert level["seconds"] == pytest.approx(told.duration_s, rel=1e-6)


def test_where_every_answer_has_one_token_there_is_no_tpot_and_no_error():
    work = sl.poisson(2, 50, seed=1)
    slow, quick = (sl.simulate(work, RULES, sl.AffineStep(a, 0.01)) for a in (0.2, 0.1))
    errors = relative_errors(quick, slow)
    assert not any("tpot" in name for name in errors)
    assert errors["mean_e2e_s"] < 0 and all(map(math.isfinite, errors.values()))


def test_a_window_counts_what_finishes_in_it():
    run = sl.simulate(LATE, RULES, STEP)
    parts = [metrics.Window([span]) for span in ((10, 10.7), (10.7000001, 13.0))]
    whole = metrics.Window([(10, 13)])
    counted = [metrics.request_throughput(run, part) * part.seconds for part in parts]
    assert sum(counted) == pytest.approx(metrics.request_throughput(run, whole) * 3) == pytest.approx(len(run))
    both = metrics.Window([part.spans_s[0] for part in parts])
    assert metrics.output_throughput(run, both) * both.seconds == pytest.approx(run.output_tokens.sum())


def test_a_report_without_a_cut_counts_from_the_first_request(tmp_path: Path):
    work = sl.Workload.from_arrivals([1.0, 1.1], output_tokens=3)
    with StreamingServer() as server:
        run = sl.bench(server.url, work, tmp_path / "kept", model="soup-1b")
    (level,) = make_report(read_load_test(tmp_path / "kept")).content["levels"]
    assert level["seconds"] == pytest.approx(run.duration_s)
    assert run.duration_s < 1
