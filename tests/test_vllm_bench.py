"""A real vLLM, recorded: the recorder on a made-up scheduler, the reader, the rules and the predictions."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from servinglab.cli.main import main
from servinglab.measure import machine
from servinglab.measure.engines import vllm_prediction
from servinglab.measure.engines.vllm_prediction import read_vllm_bench
from servinglab.measure.engines.vllm_recorder import Recording
from servinglab.measure.engines.vllm_server import VllmServer, VllmSettings, vllm_versions
from servinglab.measure.readers.vllm_steps import read_vllm_steps, vllm_trace, write_vllm_steps
from servinglab.scheduling.recorded import compare
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence

CONFIG = {
    "max_num_seqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64, "block_size": 8, "num_blocks": 9,
    "chunked_prefill": True, "prefix_caching": False, "policy": "fcfs", "watermark": 0.0, "reserve_full_isl": True,
    "long_prefill_token_threshold": 0, "async": False,
}  # fmt: skip


class MadeUp:
    """A scheduler with the parts of vLLM's that the recorder looks at, which decides by our rules."""

    def __init__(self) -> None:
        rules = sl.ContinuousBatching(3, 32, max_model_len=64)
        self.engine = PagedScheduler(rules, CONFIG["num_blocks"], CONFIG["block_size"])
        self.requests: dict[str, Any] = {}
        self.scheduler_config = SimpleNamespace(
            max_num_seqs=3, max_num_batched_tokens=32, enable_chunked_prefill=True, policy="fcfs", watermark=0.0,
            scheduler_reserve_full_isl=True, long_prefill_token_threshold=0, async_scheduling=False,
        )  # fmt: skip
        self.cache_config = SimpleNamespace(enable_prefix_caching=False)
        self.max_model_len, self.block_size = 64, 8
        self.kv_cache_config = SimpleNamespace(num_blocks=10)
        held: dict[str, list[Any]] = {}
        self.held = held
        pool = SimpleNamespace(get_num_free_blocks=lambda: self.engine.pool.free)
        self.kv_cache_manager = SimpleNamespace(
            block_pool=pool, coordinator=SimpleNamespace(single_type_managers=[SimpleNamespace(req_to_blocks=held)])
        )

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        request.sequence = Sequence(
            len(self.requests), request.num_prompt_tokens, request.max_tokens, 0, lambda k: (request.request_id, k)
        )
        self.engine.add(request.sequence)

    @property
    def running(self) -> list[Any]:
        return [self.of(sequence) for sequence in self.engine.running]

    @property
    def waiting(self) -> list[Any]:
        return [self.of(sequence) for sequence in self.engine.waiting]

    def of(self, sequence: Sequence) -> Any:
        return next(request for request in self.requests.values() if request.sequence is sequence)

    def schedule(self) -> Any:
        self.step = self.engine.schedule()
        for request in self.requests.values():
            sequence = request.sequence
            request.num_computed_tokens, request.num_preemptions = sequence.computed, sequence.preemptions
            request.num_tokens = sequence.tokens
            self.held[request.request_id] = sequence.blocks
        chunks = {self.of(chunk.sequence).request_id: chunk.tokens for chunk in self.step.chunks}
        return SimpleNamespace(num_scheduled_tokens=chunks)

    def update_from_output(self, scheduled: Any, result: Any) -> Any:
        gave = [self.of(chunk.sequence).request_id for chunk in self.step.chunks if chunk.emits]
        for sequence in self.engine.finish(self.step):
            del self.requests[self.of(sequence).request_id]
        return {0: SimpleNamespace(outputs=[SimpleNamespace(request_id=name, new_token_ids=[1]) for name in gave])}


class Recorded(Recording, MadeUp):
    """As vLLM's own scheduler is recorded."""


def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[tuple[int, int]]) -> Path:
    """Serve requests that come one a step, and write the recording."""
    monkeypatch.setenv("VLLM_RECORD", str(tmp_path / "raw.jsonl"))
    scheduler = Recorded()
    coming = list(enumerate(lengths))
    while coming or scheduler.requests:
        if coming:
            number, (prompt, output) = coming.pop(0)
            scheduler.add_request(
                SimpleNamespace(
                    request_id=f"cmpl-{number}", num_prompt_tokens=prompt, max_tokens=output, priority=0,
                    arrival_time=0.0, num_preemptions=0,
                )
            )  # fmt: skip
        scheduler.update_from_output(scheduler.schedule(), None)
    scheduler.update_from_output(scheduler.schedule(), None)  # an empty look, as vLLM takes one
    scheduler._out.close()
    config, recording = (tmp_path / "raw.jsonl").read_text().split("\n", 1)
    assert json.loads(config) == {"config": CONFIG}
    about = {"load": "made up", "config": CONFIG, "environment": {"vllm": "0"}, "first_request": 0}
    write_vllm_steps(tmp_path / "made-up.steps.jsonl.xz", about, recording)
    return tmp_path / "made-up.steps.jsonl.xz"


LENGTHS = [(20, 12), (17, 9), (22, 14), (5, 1), (40, 3)]


def test_the_recorder_writes_what_was_decided_and_the_reader_gives_it_back(tmp_path, monkeypatch):
    file = record(tmp_path, monkeypatch, LENGTHS)
    trace = vllm_trace(file)
    assert compare(trace) == (len(trace["steps"]), None)
    run = read_vllm_steps(file)
    result, log = run.result, run.result.steps()
    assert list(zip(run.workload.prompt_tokens, run.workload.output_tokens, strict=True)) == LENGTHS
    assert result.finished.all()
    assert result.preemptions.sum() == sum(len(step["preempted"]) for step in trace["steps"]) > 0
    assert log.preempted.sum() == result.preemptions.sum()
    assert (log.decode_tokens + log.first_tokens).sum() + result.late_gaps[1].sum() == sum(o for _, o in LENGTHS)
    assert log.kv_blocks.max() <= CONFIG["num_blocks"]
    assert (result.arrival_ns <= result.scheduled_ns).all() and (result.scheduled_ns < result.first_token_ns).all()
    assert abs(sl.metrics.little(result).gap) < 1e-9
    assert result.itl()[1].sum() == sum(output - 1 for _, output in LENGTHS)
    result.summary(slo={"ttft_s": 1.0})
    sl.save_run(result, tmp_path / "run.npz")
    assert sl.read_run(tmp_path / "run.npz").summary().to_dict() == result.summary().to_dict()


@pytest.mark.parametrize("key, wrong", [("tokens", 3), ("from", 1), ("blocks", 7), ("emits", 5)])
def test_a_step_that_was_decided_otherwise_is_counted_and_named(tmp_path, monkeypatch, key, wrong):
    trace = vllm_trace(record(tmp_path, monkeypatch, LENGTHS))
    trace["steps"][2]["scheduled"][0][key] = wrong
    equal, first = compare(trace)
    assert equal == len(trace["steps"]) - 1
    assert first.startswith("step 2: scheduled is ")


def test_what_isnt_a_recording_is_refused(tmp_path, monkeypatch):
    file = record(tmp_path, monkeypatch, LENGTHS)
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    other = tmp_path / "other.xz"
    for content in (b"", b"no xz", file.read_bytes()[:60], lzma.compress(b"{}"), lzma.compress(b"[1]\n")):
        other.write_bytes(content)
        with pytest.raises(ValueError, match=r"other\.xz isn't a recording"):
            read_vllm_steps(other)
    for wrong in ('{"step":1}', '{"arrive":[1,2]}', "[]"):
        other.write_bytes(lzma.compress("\n".join([*lines[:3], wrong]).encode()))
        with pytest.raises(ValueError, match=r"other\.xz:4: a line must be a request or a step"):
            read_vllm_steps(other)
    other.write_bytes(lzma.compress("\n".join(lines[:-4]).encode()))
    with pytest.raises(ValueError, match="1 of 5 requests aren't done in it"):
        read_vllm_steps(other)


# The run that ships


@pytest.fixture(scope="module")
def shipped() -> Any:
    with resources.as_file(resources.files("servinglab") / "data" / "vllm_cpu.zip") as file:
        assert file.stat().st_size < 1_000_000
        return read_vllm_bench(file)


@pytest.mark.slow
def test_every_step_of_the_shipped_run_is_decided_by_our_rules(shipped):
    assert shipped.difference is None
    assert shipped.equal == shipped.steps > 1000
    assert sum(int(run.result.preemptions.sum()) for run in shipped.runs.values()) > 0


def test_the_shipped_run_is_predicted_from_its_plans(shipped):
    assert [each.load for each in shipped.predictions][:3] == ["open, half", "open, near the knee", "closed, 8 clients"]
    for each in shipped.predictions:
        for measured in each.measured:
            assert measured.finished.all()
            assert sorted(measured.output_tokens) == sorted(each.predicted.output_tokens)
            assert abs(sl.metrics.little(measured).gap) < 1e-9
        off = {row["figure"]: abs(row["error"]) for row in each.rows()}
        # the load that runs short of memory has too few requests for what is asked of the others
        assert off["throughput"] < (0.1 if "short of memory" in each.load else 0.05)
        assert max(off["TPOT P50"], off["E2E P50"]) < 0.1
    text = str(shipped)
    assert "decided as by our rules" in text and "clients of closed loops turn around" in text
    assert shipped.environment["vllm"].startswith("0.32.0")


def test_the_turnaround_is_what_clients_spend_outside_the_engine():
    work = sl.closed_loop(4, 60, 1, think_s=0.02, prompt_tokens=30, output_tokens=5)
    run = sl.simulate(work, sl.ContinuousBatching(8, 64), sl.AffineStep(0.01, 0.001))
    plan = vllm_prediction._told(work)
    recorded = type("Run", (), {"result": run, "meta": {"plan": plan}, "__len__": lambda self: 60})()
    found = vllm_prediction._turnaround_s([recorded])
    assert found == pytest.approx(0.02, rel=0.1)  # the last clients' pauses are cut
    again = vllm_prediction._planned(plan, "again", found)
    assert again.think_s.tolist() == [0.0] * 4 + [found] * 56


# The command


def test_without_vllm_the_command_is_one_line(capsys, tmp_path):
    assert main(["bench", "vllm", "--python", sys.executable, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "vLLM isn't installed for" in said
    assert main(["bench", "vllm", "--python", str(tmp_path / "nothing"), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_bad_options_are_named(capsys):
    for words, what in ((["--n", "0"], "--n must"), (["--longest-prompt", "8"], "--longest-prompt must")):
        assert main(["bench", "vllm", *words]) == 2
        assert what in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused(tmp_path, capsys, monkeypatch):
    versions = {"packages": {"vllm": "0", "torch": "0"}, "python": "3"}
    monkeypatch.setattr(sys.modules["servinglab.cli.bench_vllm"], "vllm_versions", lambda python: versions)
    (tmp_path / "bench.json").write_text("{}")
    assert main(["bench", "vllm", "--out", str(tmp_path)]) == 2
    assert "holds a run with other settings" in capsys.readouterr().err
    with pytest.raises(ValueError, match="must hold runs that calibrate and loads; got 0"):
        read_vllm_bench(tmp_path)
    with pytest.raises(ValueError, match="must be a folder of bench vllm, or a zip file"):
        read_vllm_bench(tmp_path / "bench.json")


def test_a_server_that_ends_or_never_answers_is_told_with_its_log(tmp_path):
    (tmp_path / "vllm").mkdir()
    stand_in = tmp_path / "python"
    for script, patience_s, what in (
        ("echo 'no memory'; exit 3", 30.0, "ended as it started.*no memory"),
        ("sleep 60", 0.3, "didn't answer within 0.3 s"),
    ):
        stand_in.write_text(f"#!/bin/sh\n{script}\n")
        stand_in.chmod(0o755)
        server = VllmServer(str(stand_in), tmp_path / "vllm", VllmSettings(), 9, patience_s)
        with pytest.raises(ChildProcessError, match=what), server:
            pass
        assert server._process.poll() is not None


@pytest.mark.alone
def test_the_share_of_others_counts_neither_us_nor_our_children():
    before = machine.cpu_clock()
    if before is None:
        pytest.skip("no /proc: what others use isn't known")
    subprocess.run([sys.executable, "-c", "sum(range(3 * 10**6))"], check=True)
    sum(range(10**6))
    after = machine.cpu_clock()
    assert after.ours_s > before.ours_s
    assert 0 <= machine.others_share(before, after) <= 1
    assert machine.others_share(None, after) is None


def test_versions_come_from_the_python_that_is_asked(tmp_path):
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho \'{"packages": {"vllm-cpu": "1", "torch": "2"}, "python": "3"}\'\n')
    stand_in.chmod(0o755)
    found = vllm_versions(str(stand_in))
    assert vllm_prediction.environment_of(VllmSettings(), found)["vllm"] == "1 (vllm-cpu)"
    assert np.isfinite(vllm_prediction.environment_of(VllmSettings(), found)["settings"]["layers"])
