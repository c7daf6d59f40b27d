"""Engines whose steps are taken by hand: a made-up one whose truth is known, and OpenVINO GenAI itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import servinglab as sl
from servinglab.cli.main import main
from servinglab.engine.reference.tokens import holdings
from servinglab.measure.calibration.steps import calibrate, prediction_table
from servinglab.measure.engines.predicted_loads import calibration_loads, predict_loads
from servinglab.measure.engines.stepped import EngineDiffers, Taken, serve_stepped
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence
from servinglab.workload.lengths import Geometric, LogNormal

TRUTH = sl.AffineStep(1e-3, 1e-4, 2e-5, 1e-7)
LENGTHS: dict[str, Any] = {"prompt_tokens": LogNormal(60, 400, max=500), "output_tokens": Geometric(12)}


class MadeUp:
    """An engine that schedules by vLLM's rules and whose steps take what TRUTH says, on both clocks.

    `faults` maps a step's number to what is wrong with what it says.
    """

    facts: ClassVar[dict[str, str]] = {"engine": "made up"}

    def __init__(self, noise: float = 0.0, faults: dict[int, dict[str, Any]] | None = None) -> None:
        self.scheduler = sl.ContinuousBatching(6, 128, max_model_len=1024)
        self.kv = sl.Blocks(400, 16)
        self._engine = PagedScheduler(self.scheduler, self.kv.usable_blocks, self.kv.block_size)
        self._noise, self._rng = noise, np.random.default_rng(1)
        self._faults, self._steps = faults or {}, 0
        self.asked: Counter[int] = Counter()

    def add(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        assert len(self._engine.running) < self.scheduler.seats  # a seat is free
        self.asked[number] += output_tokens
        self._engine.add(Sequence(number, prompt_tokens, output_tokens, 0, lambda k: (number, k)))

    def step(self) -> Taken:
        step = self._engine.schedule()
        seconds = TRUTH.step_ns(*holdings(step).values()) / 1e9 * np.exp(self._noise * self._rng.standard_normal())
        gave = {chunk.sequence.number: 1 for chunk in step.chunks if chunk.emits}
        self._engine.finish(step)
        taken = Taken(seconds, 0.5 * seconds, len(step.chunks), gave)
        self._steps += 1
        return replace(taken, **self._faults.get(self._steps - 1, {}))


@pytest.mark.parametrize(
    "work",
    [
        sl.poisson(20, 60, 3, **LENGTHS),
        sl.closed_loop(9, 60, 3, **LENGTHS),
        sl.Workload.from_arrivals(np.zeros(20), [300] * 20, range(1, 21)),
    ],
    ids=lambda work: work.name,
)
def test_an_engine_that_keeps_the_rules_gives_the_simulators_result_to_the_nanosecond(work):
    engine = MadeUp()
    measured = serve_stepped(work, engine)
    simulated = sl.simulate(work, engine.scheduler, TRUTH, kv=engine.kv)
    for name in ("arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "status", "preemptions"):
        np.testing.assert_array_equal(getattr(measured, name), getattr(simulated, name), err_msg=name)
    ours, theirs = measured.steps(), simulated.steps()
    for name in (
        "start_ns",
        "end_ns",
        "charged",
        "prefill_tokens",
        "prefill_pairs",
        "decode_tokens",
        "kv_tokens",
        "waiting",
    ):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    for a, b in zip(measured.itl(), simulated.itl(), strict=True):
        np.testing.assert_array_equal(a, b)
    by_step = sl.reference(work, engine.scheduler, TRUTH, kv=engine.kv)  # logs each step, as a measured run does
    assert measured.summary(slo={"ttft_s": 0.1}).to_dict() == by_step.summary(slo={"ttft_s": 0.1}).to_dict()
    assert dict(engine.asked) == dict(enumerate(work.output_tokens.tolist()))
    assert measured.setup.source == "made up"
    assert measured.setup.cpu_per_wall == pytest.approx(0.5)


def test_cpu_time_can_be_the_clock():
    work = sl.Workload.from_arrivals(np.zeros(4), [50] * 4, [5] * 4)
    wall, cpu = (serve_stepped(work, MadeUp(), clock) for clock in ("wall", "cpu"))
    assert cpu.duration_s == pytest.approx(wall.duration_s / 2, rel=1e-6)
    with pytest.raises(ValueError, match="clock must be one of 'wall', 'cpu'; got 'sun'"):
        serve_stepped(work, MadeUp(), "sun")


@pytest.mark.parametrize("fault", [{"scheduled": 1}, {"gave": {}}, {"gave": {0: 2}}, {"gave": {0: 1, 1: 1, 9: 1}}])
def test_a_step_that_breaks_the_rules_is_named(fault):
    work = sl.Workload.from_arrivals(np.zeros(3), [20] * 3, [5] * 3)
    with pytest.raises(EngineDiffers, match="step 2: by its rules the engine computes 3 requests"):
        serve_stepped(work, MadeUp(faults={2: fault}))


def test_a_request_that_can_never_be_served_is_refused():
    work = sl.Workload.from_arrivals([0.0], [2000], [5])
    with pytest.raises(ValueError, match="request 0 can never be served: 2005 tokens are more than max_model_len"):
        serve_stepped(work, MadeUp())


def test_a_measured_run_is_saved_and_read_like_any_other(tmp_path):
    measured = serve_stepped(sl.closed_loop(3, 20, 1, **LENGTHS), MadeUp())
    sl.save_run(measured, tmp_path / "run.npz")
    again = sl.read_run(tmp_path / "run.npz")
    assert again.summary().to_dict() == measured.summary().to_dict()
    assert again.setup.facts["engine"] == {"engine": "made up"}


def test_calibration_finds_the_truth_within_its_intervals_under_noise():
    engine = MadeUp(noise=0.05)
    runs = [serve_stepped(work, engine) for _ in range(4) for work in calibration_loads(6, 400)]
    found = calibrate(runs)
    for name, (low, high) in found.fit.interval.items():
        width = high - low  # of 95 %: once more on either side is beyond any seed's luck
        assert low - width <= getattr(TRUTH, name) <= high + width, name
    # 4 equal steps each: their interquartile range is near 1.35 σ, less for so few
    assert 0.03 < found.spread < 0.1
    assert found.steps == sum(len(run.steps()) for run in runs)


def test_calibration_says_how_many_steps_were_held_up():
    work = sl.Workload.from_arrivals(np.zeros(2), [30] * 2, [40] * 2)
    runs = [serve_stepped(work, MadeUp(faults=faults)) for faults in ({}, {}, {5: {"wall_s": 1.0}})]
    # a burst of one more, so that the coefficients can be told apart
    runs += [serve_stepped(sl.Workload.from_arrivals(np.zeros(n), [64] * n, [9] * n), MadeUp()) for n in (1, 4)]
    found = calibrate(runs)
    assert found.late == pytest.approx(1 / found.steps)


def test_without_noise_the_predictions_are_exact():
    outcome = predict_loads(MadeUp(), n=40, repeats=1, longest_prompt=128)
    assert [each.load for each in outcome.predictions] == ["open, half", "open, near the knee", "closed, 6 clients"]
    for each in outcome.predictions:
        for row in each.rows():
            # steps are whole nanoseconds of about a millisecond, so the fit is off by 1e-6, and a gap of arrivals
            # now and then falls to the other side of a step's end
            assert abs(row["error"]) < 0.02, (each.load, row)
            assert row["apart"] is None
    table = prediction_table(outcome.predictions)
    assert "!" not in table
    assert len(table.splitlines()) == 1 + 3 * 7


def test_the_table_marks_what_is_beyond_the_goal_and_what_noise_explains():
    outcome = predict_loads(MadeUp(), n=20, repeats=1, longest_prompt=64)
    (first, *_) = outcome.predictions
    slower = sl.simulate(
        sl.Workload.from_arrivals(first.measured[0].arrival_s, first.measured[0].prompt_tokens,
                                  first.measured[0].output_tokens),
        MadeUp().scheduler, sl.AffineStep(2e-3, 2e-4, 4e-5, 2e-7), kv=MadeUp().kv,
    )  # fmt: skip
    beyond = prediction_table([replace(first, predicted=slower)])
    noisy = prediction_table([replace(first, measured=[first.measured[0], slower], predicted=slower)])
    assert "% !" in beyond and "% ~" not in beyond
    assert "% ~" in noisy


def test_bad_arguments_are_named():
    for wrong in ({"n": 0}, {"repeats": 0}, {"longest_prompt": 8}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a whole number"):
            predict_loads(MadeUp(), **{"n": 5, **wrong})
    with pytest.raises(ValueError, match="runs must hold at least one"):
        calibrate([])


# OpenVINO GenAI


@pytest.fixture(scope="module")
def tiny_model(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with random weights."""
    pytest.importorskip("openvino_genai", reason="OpenVINO GenAI isn't installed: make engines adds it")
    archive = data_dir / "engines" / "tiny_ov.tgz"
    if not archive.is_file():
        pytest.skip("SERVINGLAB_DATA holds no engines/tiny_ov.tgz: no model for the real engine")
    folder = tmp_path_factory.mktemp("engine")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "models" / "tiny_ov"


@pytest.mark.slow
def test_a_real_engine_forms_every_step_by_the_rules_and_gives_every_token(tiny_model):
    from servinglab.measure.engines.openvino import OpenVinoEngine

    engine = OpenVinoEngine(tiny_model, max_num_seqs=5, max_num_batched_tokens=64)
    work = sl.closed_loop(8, 24, 5, prompt_tokens=LogNormal(60, 200, max=250), output_tokens=Geometric(6))
    run = serve_stepped(work, engine)  # stops at the first step that isn't what the rules say
    assert run.finished.all()
    log = run.steps()
    assert log.prefill_tokens.sum() == work.prompt_tokens.sum()
    assert (log.decode_tokens + log.first_tokens).sum() == work.output_tokens.sum()
    assert log.charged.max() == 5
    assert log.prefill_tokens.max() <= 64
    assert (run.arrival_ns <= run.scheduled_ns).all() and (run.scheduled_ns < run.first_token_ns).all()
    assert abs(sl.metrics.little(run).gap) < 1e-9
    assert run.setup.facts["engine"]["threads"] == 1
    # the engine is idle again, and serves the same requests in the same steps
    assert serve_stepped(work, engine).steps().charged.tolist() != [] and engine.step().gave == {}


@pytest.mark.alone
@pytest.mark.slow
def test_the_command_calibrates_predicts_and_writes_runs_that_can_be_read(tiny_model, tmp_path, capsys):
    words = ["bench", "openvino", str(tiny_model), "--n", "8", "--repeats", "1", "--longest-prompt", "64"]
    assert main([*words, "--max-num-seqs", "3", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "each formed as the scheduler's rules say" in said
    assert "closed, 3 clients" in said and "TPOT P50" in said
    written = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert set(written["loads"]) == {"open, half", "open, near the knee", "closed, 3 clients"}
    assert written["calibration"]["step_time"]["fixed_s"] >= 0
    runs = {file.name: sl.read_run(file) for file in (tmp_path / "out").glob("*.npz")}
    assert len(runs) == 6
    measured, predicted = (runs[f"closed-3-clients-{kind}.npz"] for kind in ("measured-1", "predicted"))
    assert measured.output_tokens.tolist() == predicted.output_tokens.tolist()
    assert (
        main(["compare", *(str(tmp_path / "out" / f"open-half-{kind}.npz") for kind in ("measured-1", "predicted"))])
        == 0
    )


@pytest.mark.slow
def test_ctrl_c_still_works_once_an_engine_is_gone(tiny_model):
    script = (
        "import signal, sys; from servinglab.measure.engines.openvino import OpenVinoEngine\n"
        "engine = OpenVinoEngine(sys.argv[1]); engine.add(0, 10, 2); engine.step(); engine.step(); del engine\n"
        "try: signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(tiny_model)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


def test_what_isnt_a_model_is_refused(tmp_path, capsys):
    pytest.importorskip("openvino_genai", reason="OpenVINO GenAI isn't installed: make engines adds it")
    assert main(["bench", "openvino", str(tmp_path)]) == 2
    assert "has no openvino_model.xml" in capsys.readouterr().err
    assert main(["bench", "openvino", str(tmp_path), "--clock", "cpu", "--threads", "2"]) == 2
    assert "--clock cpu needs --threads 1" in capsys.readouterr().err


def test_a_missing_engine_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    assert main(["bench", "openvino", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'servinglab[openvino]'" in said
