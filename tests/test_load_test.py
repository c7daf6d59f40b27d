"""The load generator against a small server: nothing lost, nothing turned into a zero, and an honest report."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import numpy as np
import pytest
import servinglab as sl
from servinglab.base.text import show_number
from servinglab.measure.load_test.plan import Stage, burst, fingerprint, jobs, mixed, ramp, ramp_clients, sends_for_s
from servinglab.measure.load_test.prompts import Prompts
from servinglab.measure.load_test.records import Record, read_records, record_of, to_result
from servinglab.measure.load_test.report import SCHEMA, LoadTest, make_report, read_load_test
from servinglab.measure.load_test.run import Setup, run_load_test
from servinglab.measure.load_test.server_facts import get, kept
from servinglab.workload.outcomes import OUTCOMES
from streaming_server import StreamingServer

# What each fault of the server must be called. Requests ask for 1, 2, ... tokens, and so choose theirs.
CALLED = {
    "": "finished", "429": "rate_limited", "500": "server_error", "400": "client_error",
    "slow_first": "first_token_timeout", "hang": "hung", "cut": "cut", "malformed": "malformed",
    "not_utf8": "not_utf8", "disconnect": "disconnected", "stream_error": "stream_error", "empty": "no_tokens",
    "drip": "timeout",
    "no_usage": "finished", "two_tokens": "finished", "no_end": "finished", "302": "redirected", "307": "redirected",
    "304": "redirected", "500_cut": "server_error", "500_hang": "server_error", "abort": "finish_abort",
    "error": "finish_error", "no_reason": "finish_unknown", "soup": "finish_unknown", "error_event": "stream_error",
    "error_body": "error_body", "not_streamed": "not_streamed",
}  # fmt: skip
FAULTS = list(CALLED)


def chosen(body: dict[str, Any]) -> str:
    return FAULTS[(body["max_tokens"] - 1) % len(FAULTS)]


def orders(*limits: int) -> Stage:
    """Requests 5 ms apart, that ask for so many tokens."""
    return Stage(sl.Workload.from_arrivals(0.005 * np.arange(len(limits)), 20, limits), 200.0)


def setup(server: StreamingServer, **more: Any) -> Setup:
    patience = {"first_token_timeout_s": 2.0, "idle_timeout_s": 1.5, "timeout_s": 4.0}
    return Setup(server.url, "chat", "soup-1b", seed=1, **{**patience, **more})


@pytest.mark.alone
@pytest.mark.slow
def test_every_fault_is_counted_under_its_name(tmp_path: Path) -> None:
    limits = [1 + k for k in range(len(FAULTS))] * 2
    with StreamingServer(faults=chosen) as server:
        assert run_load_test(tmp_path, setup(server), [orders(*limits)], workers=2)
        assert len(server.bodies) == len(limits)  # nothing is sent twice: neither after a failure nor to elsewhere
        elsewhere = f"{server.url}/elsewhere"
    records = {record.request: record for record in read_records(tmp_path / "requests.jsonl")}
    assert sorted(records) == list(range(len(limits)))  # none lost
    for number, record in records.items():
        fault = FAULTS[number % len(FAULTS)]
        assert (fault, record.outcome) == (fault, CALLED[fault])
        assert (record.finish_s is not None) == record.finished
        assert record.ended_s >= record.scheduled_s
        if record.finished:
            assert record.first_token_s <= record.finish_s  # type: ignore[operator]
    by_fault = {fault: records[k] for k, fault in enumerate(FAULTS)}
    assert by_fault["429"].retry_after_s == 7.0
    assert by_fault["429"].detail == "soup"
    assert [by_fault["two_tokens"].output_tokens, by_fault["two_tokens"].chunk_tokens] == [6, None]
    assert (by_fault["no_usage"].output_tokens, by_fault["no_usage"].tokens_from) == (None, "")
    assert [len(by_fault[fault].chunk_s) for fault in ("hang", "cut", "malformed", "not_utf8")] == [2, 2, 2, 2]
    assert "out of memory" in by_fault["stream_error"].detail
    assert "out of memory" in by_fault["error_event"].detail
    assert by_fault["302"].detail == f"to {elsewhere}: not followed"
    assert (by_fault["307"].http_status, by_fault["307"].detail) == (307, "to /v1/chat/completions: not followed")
    assert by_fault["304"].detail == "without a Location"
    assert (by_fault["500_cut"].http_status, by_fault["500_hang"].http_status) == (500, 500)
    assert (by_fault["abort"].finish_reason, len(by_fault["abort"].chunk_s)) == ("abort", 2)
    assert (by_fault["error"].finish_s, by_fault["soup"].finish_s) == (None, None)

    content = make_report(read_load_test(tmp_path)).content
    (level,) = content["levels"]
    assert level["outcomes"] == Counter(CALLED[fault] for fault in FAULTS * 2)
    n = len(limits)
    assert level["timeout_rate"] == 6 / n  # slow first bytes, a hung stream, and one without end
    assert level["rate_limited_rate"] == 2 / n
    assert level["failure_rate"] == pytest.approx(
        level["error_rate"] + level["timeout_rate"] + level["rate_limited_rate"]
    )
    assert level["e2e_sched_s"]["missing"] == sum(CALLED[fault] != "finished" for fault in FAULTS) * 2
    assert level["e2e_sched_s"]["p99"] is None  # infinite
    assert level["tpot_s"] is None  # not every answer was counted
    assert content["records"]["kv_cache"]["answers_that_name_out_of_memory"] == 4
    with pytest.raises(ValueError, match="unknown number of tokens"):
        sl.read_run(tmp_path)


@pytest.mark.alone
@pytest.mark.slow
def test_a_servers_own_reasons_to_finish_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from servinglab.cli.main import main

    with StreamingServer(faults=lambda body: ("soup", "no_reason")[body["max_tokens"] % 2]) as server:
        assert run_load_test(tmp_path / "a", setup(server, finish_reasons=["Soup"]), [orders(2, 3)], workers=1)
        words = ["--burst", "2", "1", "2", "--output-tokens", "3", "--finish-reason", "none", "--workers", "1"]
        assert main(["bench", "http", server.url, *words, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert [r.outcome for r in read_records(tmp_path / "a" / "requests.jsonl")] == ["finished", "finish_unknown"]
    assert {r.outcome for r in read_records(tmp_path / "b" / "requests.jsonl")} == {"finished"}


def test_reasons_to_finish_are_a_list_of_words() -> None:
    for wrong in ("soup", [7]):
        with pytest.raises(ValueError, match="finish_reasons must be a list of words; got"):
            Setup("http://127.0.0.1:9", "chat", "m", seed=1, finish_reasons=wrong)  # type: ignore[arg-type]


@pytest.mark.alone
def test_the_load_goes_straight_to_the_server_without_cookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with StreamingServer() as server:
        by_name = replace(setup(server), root=f"http://localhost:{server.port}")
        assert run_load_test(tmp_path, by_name, [orders(1, 1, 1)], workers=1)
        assert (len(server.bodies), server.cookies) == (3, 0)  # each request is another user's
    assert {record.outcome for record in read_records(tmp_path / "requests.jsonl")} == {"finished"}


@pytest.mark.alone
def test_nobody_is_there(tmp_path: Path) -> None:
    with StreamingServer() as server:
        gone = setup(server)
    assert run_load_test(tmp_path, gone, [orders(1, 1, 1)], workers=1)
    records = read_records(tmp_path / "requests.jsonl")
    assert [record.outcome for record in records] == ["refused"] * 3
    assert all(record.first_token_s is None and record.output_tokens is None for record in records)
    report = make_report(read_load_test(tmp_path))
    assert report.content["levels"][0]["request_throughput"] == 0
    assert "inf" in str(report)
    summary = sl.read_run(tmp_path).summary()
    assert (summary.by_status["REFUSED"], summary.e2e_s.p50) == (3, math.inf)


@pytest.mark.alone
@pytest.mark.slow
def test_a_closed_loop_never_has_more_under_way_than_clients(tmp_path: Path) -> None:
    stages = [
        Stage(sl.closed_loop(3, 14, seed=1, prompt_tokens=20, output_tokens=3), 3.0),
        Stage(sl.closed_loop(1, 6, seed=2, prompt_tokens=20, output_tokens=3), 1.0),
    ]
    with StreamingServer(gap_s=0.002) as server:
        assert run_load_test(tmp_path, replace(setup(server), api="completions"), stages, workers=2)
        assert len(server.bodies) == 20
        assert all("prompt" in body and body["stream_options"] == {"include_usage": True} for body in server.bodies)
    records = read_records(tmp_path / "requests.jsonl")
    assert sorted(record.request for record in records) == list(range(20))
    for stage, clients in enumerate((3, 1)):
        mine = [record for record in records if record.stage == stage]
        events = sorted([(r.sent_s, 1) for r in mine] + [(r.finish_s, -1) for r in mine])  # type: ignore[operator]
        assert max(np.cumsum([change for _, change in events])) <= clients
    result = sl.read_run(tmp_path)
    assert len(result) == 20
    assert result.summary().tpot_s.count == 20
    assert result.summary().itl_s.count == 40
    assert result.summary().wait_s.count == result.summary().wait_s.missing == 0  # a client doesn't see it
    again = tmp_path / "saved.npz"
    sl.save_run(result, again)
    assert sl.read_run(again).summary().to_dict() == result.summary().to_dict()


@pytest.mark.alone
def test_what_the_server_says_of_itself_is_in_the_report(tmp_path: Path) -> None:
    with StreamingServer() as server:
        assert run_load_test(tmp_path, setup(server), [orders(3, 3)], workers=1, about={"precision": "bf16"})
    records = make_report(read_load_test(tmp_path)).content["records"]
    assert records["model"] == {"name": "soup-1b", "precision": "bf16", "quantization": "not told"}
    assert records["engine"]["version"] == "0.0-test"
    assert records["kv_cache"]["kv_cache_usage_perc"] == [{"mean": 0.25, "max": 0.25}]


def test_who_has_nothing_to_send_is_not_there(tmp_path: Path) -> None:
    """A second process used to live for a millisecond, and to be busy for all of it."""
    eight = Stage(sl.closed_loop(1, 8, seed=1, prompt_tokens=20, output_tokens=3), 1.0)
    with StreamingServer(gap_s=0.002) as server:
        assert run_load_test(tmp_path / "one", setup(server), [eight], workers=2)
        (clock,) = read_load_test(tmp_path / "one").state["clocks"]
        assert len(clock["workers"]) == 1
        assert clock["workers"][0]["busy"] is None, "in so short a time no share means anything"
        two = Stage(sl.closed_loop(3, 9, seed=1, prompt_tokens=20, output_tokens=3), 3.0)
        assert run_load_test(tmp_path / "ramp", setup(server), [eight, two], workers=2)
    clocks = read_load_test(tmp_path / "ramp").state["clocks"]
    assert [len(clock["workers"]) for clock in clocks] == [1, 2]
    assert read_load_test(tmp_path / "ramp").state["workers"] == 2
    assert read_load_test(tmp_path / "one").state["workers"] == 1


def test_the_share_of_a_core_is_of_the_whole_stage(tmp_path: Path) -> None:
    apart = Stage(sl.Workload.from_arrivals([0.0, 1.2], 20, [1, 1]), 1.0)  # one process has done its part at once
    with StreamingServer() as server:
        assert run_load_test(tmp_path, setup(server), [apart], workers=2)
    (clock,) = read_load_test(tmp_path).state["clocks"]
    assert len(clock["workers"]) == 2
    assert all(0 < worker["busy"] < 0.2 for worker in clock["workers"])


# --- arguments, and parts that die -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("connect_timeout_s", "first_token_timeout_s", "idle_timeout_s", "timeout_s")
            for value in (math.inf, math.nan, 0, -1, True, "soon", None)
        ),
        *((name, value) for name in ("seed", "shared_tokens") for value in (-1, 1.5, True, "7", math.inf)),
        *(("groups", value) for value in (0, -1, 2.5, True, "7")),
        *(("usage_per_chunk", value) for value in (1, "yes", None)),
        *(("tokenizer", value) for value in (7, True)),
        *(("headers", value) for value in ("X: y", {"x": 7}, {7: "x"}, [("a", "b")])),
        *(("extra", value) for value in ("{}", {"x": math.nan}, {"x": object()}, {7: 1}, [1])),
        *(("api", value) for value in ("telnet", None)),
        *(("model", value) for value in ("", 7)),
    ],
)
def test_a_setup_is_checked_where_it_is_made(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Setup(**{"root": "http://x", "api": "chat", "model": "m", "seed": 1, name: value})


def worker_facts() -> dict[str, Any]:
    """What a worker is told first, of a server that isn't there."""
    nowhere = "http://127.0.0.1:9"
    return {
        **vars(Setup(nowhere, "chat", "m", seed=1)),
        "headers": {},
        "extra": {},
        "url": nowhere,
        "models_url": nowhere,
    }


@pytest.mark.parametrize("part", ["_watch", "_lag"])
def test_a_part_of_a_worker_that_dies_is_told(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from servinglab.measure.load_test import worker

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "write", told.append)

    async def dies(self: Any) -> None:
        raise OverflowError("the watchdog is gone")

    async def run() -> None:
        commands: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        running = asyncio.create_task(worker.Worker(worker_facts()).run(commands))
        while not told:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        commands.put_nowait(None)
        await running

    monkeypatch.setattr(worker.Worker, part, dies)
    asyncio.run(asyncio.wait_for(run(), 30))
    assert {"failed": "OverflowError: the watchdog is gone"} in told


def test_a_request_whose_answer_cannot_be_understood_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from servinglab.measure.load_test import worker

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "write", told.append)
    monkeypatch.setattr(worker.Worker, "_record", lambda self, stage, flight: {}["no such thing"])

    async def run(closed: bool) -> None:
        commands: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        job = {
            "request": 0,
            "offset_ns": 0,
            "prompt_tokens": 1,
            "max_tokens": 1,
            "request_class": "",
            "user": "",
            "deadline_s": None,
        }
        stage = {"do": "stage", "stage": 0, "session": 0, "origin_ns": 0, "clients": 1, "closed": closed}
        commands.put_nowait({**stage, "duration_ns": None, "jobs": [job]})
        commands.put_nowait({"do": "start", "start_ns": worker.now_ns()})
        running = asyncio.create_task(worker.Worker(worker_facts()).run(commands))
        while not any("failed" in message for message in told):
            await asyncio.sleep(0.01)
        commands.put_nowait(None)
        await running

    for closed in (False, True):
        told.clear()
        asyncio.run(asyncio.wait_for(run(closed), 30))
        assert next(message for message in told if "failed" in message) == {"failed": "KeyError: 'no such thing'"}


def test_a_worker_that_is_told_nonsense_says_so() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "servinglab.measure.load_test.worker"],
        input=json.dumps(worker_facts()) + "\nsoup\n",
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(sl.__file__).parents[1])},
    )
    assert any("JSONDecodeError" in json.loads(line).get("failed", "") for line in run.stdout.splitlines())


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands in for the sending process")
def test_a_worker_that_talks_nonsense_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "soup"
    script.write_text("#!/bin/sh\necho soup\nexec sleep 60\n")
    script.chmod(0o755)
    with StreamingServer() as server:
        monkeypatch.setattr(sys, "executable", str(script))
        with pytest.raises(ChildProcessError, match="soup"):
            run_load_test(tmp_path / "run", setup(server), [orders(1)], workers=1)


def test_a_sampler_that_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(text: str) -> dict[str, float]:
        raise KeyError("a gauge")

    monkeypatch.setattr(importlib.import_module("servinglab.measure.load_test.server_facts"), "kept", dies)
    with (
        StreamingServer(gap_s=0.2) as server,
        pytest.raises(ChildProcessError, match=r"metrics can't be kept: KeyError: 'a gauge'"),
    ):
        run_load_test(tmp_path, setup(server), [orders(5)], workers=1)


COMMAND = [sys.executable, "-m", "servinglab", "bench", "http"]


@pytest.mark.alone
@pytest.mark.slow
def test_ctrl_c_keeps_what_there_is_and_resume_sends_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StreamingServer(gap_s=0.01) as server:
        words = [
            "--deterministic",
            "50",
            "--n",
            "40",
            "--prompt-tokens",
            "20",
            "--output-tokens",
            "3",
            "--workers",
            "1",
        ]
        first = subprocess.Popen(
            [*COMMAND, server.url, *words, "--out", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(sl.__file__).parents[1])},
        )
        requests = folder / "requests.jsonl"
        until = time.monotonic() + 60
        while not (requests.exists() and requests.read_bytes().count(b"\n") >= 5):
            assert time.monotonic() < until
            assert first.poll() is None, first.communicate()
            time.sleep(0.01)
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=30)
        assert first.returncode == 130, err
        assert "go on with --resume" in err
        assert "warning: the run was broken off" in out
        had = read_records(requests)
        done = {record.request for record in had if record.outcome != "interrupted"}
        assert 5 <= len(done) < 40
        with requests.open("ab") as file:
            file.write(b'{"request": 39, "half a li')  # as a process killed while it writes would leave it
        with pytest.raises(ValueError, match="another plan"):
            run_load_test(folder, setup(server), [orders(1)], workers=1)

        from servinglab.cli.main import main

        assert main(["bench", "http", "--resume", str(folder), "--quiet"]) == 0
        assert len(server.bodies) <= 40 + len(had) - len(done)  # nothing that was done is sent again
    records = read_records(requests)
    assert [record.request for record in records] == list(range(40))
    assert {record.outcome for record in records} == {"finished"}
    assert {record.session for record in records} == {0, 1}
    assert {record.request for record in records if record.session == 0} == done
    report = make_report(read_load_test(folder))
    assert report.content["complete"]
    assert any("resumed" in warning for warning in report.content["warnings"])
    # each session has a window of its own: the pause between them isn't time that the server had
    assert report.content["levels"][0]["seconds"] < 40 / 50 + 5
    assert main(["bench", "http", "--resume", str(folder)]) == 2  # nothing is left


@pytest.mark.alone
@pytest.mark.slow
def test_a_ramp_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from servinglab.cli.main import main

    folder = tmp_path / "ramp"
    with StreamingServer(gap_s=0.002) as server:
        words = ["--ramp", "20,40,80", "--stage-s", "0.4", "--gap-s", "0.05", "--lengths", "mixed", "--workers", "1"]
        assert main(["bench", "http", server.url, *words, "--out", str(folder), "--slo", "e2e_s=5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for number, name in enumerate(
        ("model", "accelerator", "engine", "prompt tokens", "output tokens", "load"), start=1
    ):
        assert f"{number:>2}  {name}" in out
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "requests.jsonl", "server.jsonl", "report.json", "report.png", "vllm-0.json", "vllm-1.json",
        "vllm-2.json",
    }  # fmt: skip
    content = json.loads((folder / "report.json").read_text())
    assert len(content["records"]) == 11
    assert [level["load"] for level in content["levels"]] == [20, 40, 80]
    assert [level["requests"] for level in content["levels"]] == [8, 16, 32]
    assert content["knee"]["confidence"] == 0.95
    assert content["levels"][0]["request_classes"].keys() <= {"200+100", "4000+200"}
    vllm = json.loads((folder / "vllm-2.json").read_text())
    assert (vllm["completed"], vllm["total_output_tokens"], len(vllm["itls"][0])) == (32, 96, 2)
    clocks = json.loads((folder / "run.json").read_text())["clocks"]
    assert all(clock["ended_s"] - clock["start_s"] >= clock["sends_s"] == 0.4 for clock in clocks)
    starts = [[r.scheduled_s for r in read_records(folder / "requests.jsonl") if r.stage == k] for k in range(3)]
    assert starts[0][-1] < starts[1][0] < starts[2][0]
    shown = tmp_path / "again.json"
    assert main(["bench", "show", str(folder), "--warmup-s", "0.1", "--json", str(shown)]) == 0
    assert json.loads(shown.read_text())["cut"]["requests"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--poisson", "1"], "URL"),
        (["ftp://x", "--poisson", "1", "--n", "1"], "URL must be"),
        (["http://127.0.0.1:9", "--model", "m"], "give one workload"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--n", "1", "--ramp", "1,2"], "--ramp"),
        (["http://127.0.0.1:9", "--model", "m", "--ramp", "2,1"], "each higher"),
        (["http://127.0.0.1:9", "--model", "m", "--ramp", "1,2", "--burst", "1", "2", "3"], "give one load"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--n", "1", "--stage-s", "5"], "--stage-s"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--n", "1", "--duration-s", "5"], "give one"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--n", "1", "--timeout-s", "0"], "timeout_s must be"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--duration-s", "nan"], "--duration-s must be"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--duration-s", "5", "--speed", "2"], "--speed"),
        (["http://127.0.0.1:9", "--model", "m", "--ramp", "1,2", "--gap-s", "-1"], "gap_s must be"),
        (["http://127.0.0.1:9", "--model", "m", "--poisson", "1", "--n", "1", "--workers", "0"], "workers must be"),
        (["http://127.0.0.1:x", "--model", "m", "--poisson", "1", "--n", "1"], "URL must be"),
        (["http://127.0.0.1:9", "--poisson", "1", "--n", "1"], "give --model"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    from servinglab.cli.main import main

    assert main(["bench", "http", *words]) == 2
    _, err = capsys.readouterr()
    assert told in err
    assert err.count("\n") == 1


def test_an_answer_may_name_seconds_or_a_date_to_wait_until() -> None:
    from servinglab.measure.load_test.worker import _retry_after_s

    assert _retry_after_s("7") == 7.0
    assert _retry_after_s(formatdate(time.time() + 90, usegmt=True)) == pytest.approx(90, abs=30)
    assert _retry_after_s("soon") is None
    assert _retry_after_s(None) is None


@pytest.mark.parametrize(
    ("raised", "status", "outcome"),
    [
        (aiohttp.ConnectionTimeoutError(), None, "connect_timeout"),
        (aiohttp.ClientConnectorError(None, ConnectionRefusedError()), None, "refused"),  # type: ignore[arg-type]
        (aiohttp.ClientConnectorError(None, OSError("no route")), None, "connect_failed"),  # type: ignore[arg-type]
        (aiohttp.ServerDisconnectedError(), None, "disconnected"),
        (aiohttp.ClientPayloadError(), 200, "cut"),
        (ValueError("a mistake of ours"), 200, "client_fault"),
    ],
)
def test_what_the_connection_raises_has_a_name(raised: Exception, status: int | None, outcome: str) -> None:
    from types import SimpleNamespace

    from servinglab.measure.load_test.worker import _fault

    if isinstance(raised, aiohttp.ClientConnectorError):
        key = SimpleNamespace(host="x", port=1, ssl=True)
        raised = aiohttp.ClientConnectorError(key, raised.os_error)  # type: ignore[arg-type]
    assert _fault(raised, SimpleNamespace(status=status))[0] == outcome  # type: ignore[arg-type]


# --- plans and prompts -----------------------------------------------------------------------------------------------


def planned(*words: str) -> list[Stage]:
    """The plan of a command line."""
    from servinglab.cli.bench_http import _stages, add_parser

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(), argparse.ArgumentParser)
    return _stages(parser.parse_args(["bench", "http", "http://x", *words]))


def test_the_seven_kinds_of_test() -> None:
    (fixed,) = planned("--closed-loop", "16", "--n", "500", "--think-s", "exponential:2")
    assert (fixed.load, fixed.unit, len(fixed.workload)) == (16, "clients", 500)
    (rate,) = planned("--poisson", "4", "--duration-s", "120")
    assert (rate.load, rate.unit, len(rate.workload), rate.duration_s) == (4, "requests/s", 480, 120)
    (fast,) = planned("--poisson", "4", "--n", "10", "--speed", "2")
    assert fast.load == 8
    assert rate.workload.prompt_tokens[0] == 512
    levels = planned("--ramp", "1,2,4", "--stage-s", "60", "--ramp-cv", "2", "--prompt-tokens", "9")
    assert [(level.load, len(level.workload), level.workload.prompt_tokens[0]) for level in levels] == [
        (1, 60, 9), (2, 120, 9), (4, 240, 9),
    ]  # fmt: skip
    clients = planned("--ramp-clients", "1,2", "--stage-s", "60", "--n", "77")
    assert [(level.load, len(level.workload), level.duration_s) for level in clients] == [(1, 77, 60), (2, 77, 60)]
    (mix,) = planned("--deterministic", "4", "--n", "300", "--lengths", "mixed")
    assert set(mix.workload.request_class) == {"200+100", "4000+200"}
    assert 0.1 < mix.workload.request_class.count("4000+200") / 300 < 0.3  # 20 %, ± 4 standard errors of 2.3 %
    (context,) = planned("--gamma", "1", "3", "--n", "5", "--lengths", "long-context")
    assert set(context.workload.prompt_tokens) == {16_000}
    (output,) = planned("--closed-loop", "8", "--duration-s", "30", "--lengths", "long-output")
    assert (set(output.workload.output_tokens), output.duration_s) == ({2000}, 30)
    (own,) = planned("--poisson", "4", "--n", "40", "--mix", "1", "10", "20", "--mix", "1", "30", "40")
    assert set(own.workload.request_class) == {"10+20", "30+40"}
    (bursts,) = planned("--burst", "50", "30", "5")
    assert (len(bursts.workload), bursts.load) == (250, 50)
    assert sorted(set(bursts.workload.arrival_s)) == [0, 30, 60, 90, 120]


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (["--ramp", "1,2,4", "--stage-s", "60"], [60, 120, 240]),
        (["--ramp", "1,2,4", "--stage-s", "60", "--ramp-cv", "3"], [60, 120, 240]),
        (["--poisson", "2", "--duration-s", "60"], [120]),
        (["--gamma", "2", "3", "--duration-s", "60"], [120]),
        (["--deterministic", "2", "--duration-s", "60"], [120]),
    ],
)
def test_a_level_sends_what_it_says_in_the_time_that_it_says(words: list[str], counts: list[int]) -> None:
    for seed in range(30):
        levels = planned(*words, "--seed", str(seed))
        assert [len(level.workload) for level in levels] == counts
        for level in levels:
            assert level.duration_s == 60
            assert 0 <= level.workload.arrival_s[0] <= level.workload.arrival_s[-1] <= 60
    plans = [fingerprint(planned(*words, "--seed", "5")) for _ in range(2)]
    assert plans[0] == plans[1], "one seed, one plan"


def test_a_trace_is_replayed_at_a_speed(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * k, "input_length": 600, "output_length": 5, "hash_ids": [1, k]} for k in range(4)]
    file.write_text("\n".join(map(json.dumps, rows)))
    (stage,) = planned("--trace", str(file), "--speed", "2", "--head", "3")
    work = jobs(stage, 0, set())
    assert [job["offset_ns"] for job in work] == [0, 5 * 10**8, 10**9]
    assert [(job["prompt_tokens"], job["max_tokens"], job["blocks"]) for job in work] == [
        (600, 5, [1, 0]), (600, 5, [1, 1]), (600, 5, [1, 2]),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="a trace brings its own"):
        planned("--trace", str(file), "--prompt-tokens", "5")


def test_a_resumed_open_loop_begins_with_its_first_request_that_is_left() -> None:
    stage = Stage(sl.Workload.from_arrivals([1.0, 2.0, 4.0, 7.0], 10, [1, 2, 3, 4]), 1.0)
    assert [job["offset_ns"] for job in jobs(stage, 10, set())] == [10**9, 2 * 10**9, 4 * 10**9, 7 * 10**9]
    left = jobs(stage, 10, {10, 12})
    assert [(job["request"], job["offset_ns"], job["max_tokens"]) for job in left] == [(11, 0, 2), (13, 5 * 10**9, 4)]


def test_what_is_left_of_a_stage_takes_what_is_left_of_its_time() -> None:
    opened = Stage(sl.Workload.from_arrivals([1.0, 2.0, 4.0, 7.0]), 1.0, duration_s=10.0)
    closed = Stage(sl.closed_loop(2, 4, seed=1), 2.0, duration_s=10.0)
    assert sends_for_s(opened, 0, set(), 0.0) == sends_for_s(closed, 0, set(), 0.0) == 10
    assert sends_for_s(opened, 5, {5, 6}, elapsed_s=3.0) == 6, "it goes on at 4 s"
    assert sends_for_s(closed, 5, {5, 6}, elapsed_s=3.0) == 7, "its clients sent for 3 s"
    assert sends_for_s(Stage(opened.workload, 1.0), 0, set(), 0.0) is None


@pytest.mark.parametrize("stage_s", [0, -1, math.nan, math.inf, True, "60"])
def test_a_ramp_needs_a_length(stage_s: Any) -> None:
    for make in (ramp, ramp_clients):
        with pytest.raises(ValueError, match="stage_s must be"):
            make([1, 2], stage_s, seed=1)


def test_a_plan_is_known_again() -> None:
    plans = [ramp([1, 2], 5, seed=1), ramp([1, 2], 5, seed=2), ramp([1, 3], 5, seed=1), ramp_clients([1, 2], 5, seed=1)]
    plans.append([mixed(stage, [(1, 5, 5), (1, 9, 9)], seed=0) for stage in plans[0]])
    plans.append([Stage(burst(3, 1.0, 2), 3.0)])
    prints = [fingerprint(plan) for plan in plans]
    assert len(set(prints)) == len(plans)
    assert prints[0] == fingerprint(ramp([1.0, 2.0], 5.0, seed=1)), "as the command line says it"
    assert prints[3] == fingerprint(ramp_clients([1, 2], 5.0, seed=1))


def test_prompts_share_what_they_are_told_to_and_nothing_else() -> None:
    prompts = Prompts(seed=1, shared_tokens=30, groups=2)
    texts = [prompts.text(f"0.{k}", k, 100).split() for k in range(40)]
    assert {len(text) for text in texts} == {100}
    assert len({tuple(text[:30]) for text in texts}) == 2
    assert texts[0][:30] == texts[2][:30] != texts[1][:30]
    assert len({tuple(text[30:34]) for text in texts}) == 40
    assert prompts.text("0.5", 5, 100) == Prompts(1, 30, 2).text("0.5", 5, 100)
    assert prompts.text("0.5", 5, 100) != Prompts(2, 30, 2).text("0.5", 5, 100)
    assert len(prompts.text("x", 0, 200_000).split()) == 200_000  # longer than the text that it is cut from
    assert len(prompts.text("x", 0, 3).split()) == 3


def test_blocks_of_a_trace_are_equal_text_where_their_ids_are() -> None:
    prompts = Prompts(seed=1)
    a, b, c = (
        prompts.text(name, 0, 1100, blocks).split() for name, blocks in (("a", [4, 5, 6]), ("b", [4, 5, 7]), ("c", [9]))
    )
    assert a[:1024] == b[:1024]
    assert a[1024:1032] != b[1024:1032]
    assert a[:8] != c[:8]
    assert len(c) == 1100


def test_a_key_is_shown_to_the_server_alone() -> None:
    """/metrics may be a redirect to /metrics/; one to another server would hand it the key."""
    heard: list[tuple[str, str | None]] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append((self.path, self.headers["Authorization"]))
            place = {"/metrics": "/metrics/", "/away": f"http://localhost:{self.server.server_address[1]}/key"}
            self.send_response(307 if self.path in place else 200)
            self.send_header("Location", place.get(self.path, ""))
            self.end_headers()
            self.wfile.write(b"soup")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        root, key = f"http://127.0.0.1:{server.server_address[1]}", {"Authorization": "Bearer soup"}
        assert get(f"{root}/metrics", key) == "soup"
        with pytest.raises(OSError, match="307"):
            get(f"{root}/away", key)
        server.shutdown()
    assert heard == [(path, "Bearer soup") for path in ("/metrics", "/metrics/", "/away")]


def test_users_classes_deadlines_and_limits_go_from_the_workload_to_the_server_and_back(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "user": ("ada", "bob", "ada"), "request_class": ("chat", "file", "chat"),
        "deadline_s": [1.5, 2.0, 9.0], "max_tokens": [4, 5, 6],
    }  # fmt: skip
    work = sl.Workload.from_arrivals([0.0, 0.01, 0.02], 10, 3, **said)
    with StreamingServer() as server:
        run = sl.bench(server.url, work, tmp_path / "kept", model="soup-1b")
        bodies = sorted(server.bodies, key=lambda body: body["max_tokens"])
    assert [(body["user"], body["max_tokens"]) for body in bodies] == [("ada", 4), ("bob", 5), ("ada", 6)]
    for name, column in said.items():
        assert list(getattr(run, name)) == list(column), name
    (level,) = make_report(read_load_test(tmp_path / "kept")).content["levels"]
    assert {name: of["requests"] for name, of in level["request_classes"].items()} == {"chat": 2, "file": 1}


def test_a_record_of_before_there_were_users_is_read() -> None:
    row = asdict(record(3, 1.0, request_class="200+100"))
    old = {name: value for name, value in row.items() if name not in ("request_class", "user", "deadline_s")}
    assert record_of(json.dumps(old | {"kind": "200+100"})) == record(3, 1.0, request_class="200+100")


def test_metrics_of_two_engines() -> None:
    text = (
        "# HELP vllm:num_requests_running x\n"
        'vllm:num_requests_running{engine="0",model_name="a b"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nother 7\nsglang:token_usage NaNope\n'
    )
    assert kept(text) == {"num_requests_running": 7.0, "kv_cache_usage_perc": 0.5}


# --- records and reports of made-up runs -----------------------------------------------------------------------------


def record(request: int, at_s: float, latency_s: float | None = 1.0, **more: Any) -> Record:
    """A request that was sent 1 ms late and got two tokens, half-way and at the end."""
    whole = latency_s is not None
    base = Record(
        request=request,
        stage=0,
        session=0,
        request_class="",
        user="",
        deadline_s=None,
        scheduled_s=at_s,
        sent_s=at_s + 0.001,
        first_token_s=at_s + latency_s / 2 if whole else None,
        finish_s=at_s + latency_s if whole else None,
        ended_s=at_s + (latency_s or 9.0),
        outcome="finished" if whole else "timeout",
        http_status=200,
        detail="",
        retry_after_s=None,
        prompt_tokens_asked=20,
        max_tokens=2,
        prompt_tokens=21,
        output_tokens=2 if whole else None,
        tokens_from="usage",
        chunk_tokens_from="one token a chunk",
        finish_reason="length",
        chunk_s=(latency_s / 2, latency_s) if whole else (),
        chunk_tokens=(1, 1) if whole else None,
    )
    return replace(base, **more)


def made_run(*records: Record, lag_s: float = 0.001, busy: float | None = 0.1) -> LoadTest:
    stages = 1 + max(each.stage for each in records)
    ends = [max(each.ended_s for each in records if each.stage == k) for k in range(stages)]
    begins = [min(each.scheduled_s for each in records if each.stage == k) for k in range(stages)]
    crew = [{"busy": busy, "lag_p99_s": lag_s, "lag_max_s": 2 * lag_s}]
    clocks = [
        {"session": 0, "stage": k, "start_s": begins[k], "ended_s": ends[k], "workers": crew} for k in range(stages)
    ]
    state = {
        "began_unix_s": 0.0,
        "complete": True,
        "sessions": 1,
        "about": {},
        "setup": {"model": "m", "api": "chat", "tokenizer": None},
        "server": {"version": None, "cache_config": None},
        "stages": [{"load": float(k + 1), "unit": "requests/s", "name": "made", "clients": 0} for k in range(stages)],
        "clocks": clocks,
    }
    return LoadTest(state, tuple(records), ())


def test_a_late_client_can_hide_nothing() -> None:
    late = [record(k, float(k), sent_s=k + 0.9) for k in range(10)]  # the client sent each 0.9 s late
    (level,) = make_report(made_run(*late)).content["levels"]
    assert level["e2e_s"]["p50"] == pytest.approx(0.1)
    assert level["e2e_sched_s"]["p50"] == pytest.approx(1.0)
    assert level["schedule_delay_s"]["p99"] == pytest.approx(0.9)
    assert level["client"]["bound"]


@pytest.mark.parametrize(
    ("more", "told"),
    [({"lag_s": 0.02}, "event loop"), ({"busy": 0.95}, "95 % of a core"), ({"busy": None}, None), ({}, None)],
)
def test_the_report_says_when_the_client_was_the_bottleneck(more: dict[str, Any], told: str | None) -> None:
    report = make_report(made_run(*(record(k, 0.1 * k) for k in range(20)), **more))
    client = report.content["levels"][0]["client"]
    assert client["bound"] == (told is not None)
    assert told is None or told in str(report)
    assert ("the client was the bottleneck" in str(report)) == (told is not None)


def test_warm_up_and_cool_down_are_cut_by_arrival() -> None:
    rows = [record(k, float(k), 5.0 if k == 4 else 1.0) for k in range(10)]
    (level,) = make_report(made_run(*rows), warmup_s=3.5, cooldown_s=2.0).content["levels"]
    # from 3.5 to 7: requests 4, 5, 6, 7, though the slow one finished later and number 3 finished inside
    assert (level["requests"], level["seconds"]) == (4, 3.5)
    assert level["offered_rps"] == pytest.approx(4 / 3.501)  # the last was sent 1 ms late
    assert level["e2e_sched_s"]["max"] == 5.0
    assert level["request_throughput"] == 3 / 3.5  # 3, 5 and 6 finished by 7
    (level,) = make_report(made_run(*rows), warmup_s=3.5, cooldown_s=2.0, slo={"e2e_s": 2.0}).content["levels"]
    assert (level["good_requests"], level["request_goodput"]) == (3, 3 / 3.5)  # 5, 6 and 7; but 7 finished later
    with pytest.raises(ValueError, match="no request is left"):
        make_report(made_run(*rows), warmup_s=20)


def test_failed_requests_rank_last_and_are_never_good() -> None:
    rows = [record(k, float(k), None if k == 3 else 1.0) for k in range(10)]
    (level,) = make_report(made_run(*rows), slo={"e2e_s": 2.0, "tpot_s": 1.0}).content["levels"]
    assert level["good_requests"] == 9
    assert (level["e2e_sched_s"]["p50"], level["e2e_sched_s"]["p99"]) == (pytest.approx(1.0), None)
    assert (level["tpot_s"]["count"], level["tpot_s"]["missing"]) == (9, 1)


def test_a_ramps_knee_is_in_its_report() -> None:
    rows = [record(k, 0.1 * k, 1.0, stage=0) for k in range(100)]
    rows += [record(100 + k, 100 + 0.05 * k, 1.0, stage=1) for k in range(200)]
    rows += [record(300 + k, 200 + 0.025 * k, 1.0 + 0.025 * k, stage=2) for k in range(400)]
    report = make_report(made_run(*rows), warmup_s=0.5)
    assert not report.content["warnings"]
    assert any("no warm-up" in warning for warning in make_report(made_run(*rows)).content["warnings"])
    assert report.knee is not None
    sent = [level["offered_rps"] for level in report.content["levels"]]
    assert sent == pytest.approx([10, 20, 40], rel=0.05), "whatever the levels are called"
    assert (report.knee.load, report.knee.next_load) == (sent[1], sent[2])
    (most, share), *_ = report.content["knee"]["shares"]
    assert (most, share > 0.9) == (sent[1], True)
    assert f"knee  {sent[1]:.4g}, before {sent[2]:.4g}" in str(report)
    assert all(f"  {rate}" in str(report) for rate in map(show_number, sent)), "what was sent is in the table"


def test_a_level_of_set_length_is_as_long_as_that() -> None:
    rows = [record(k, t) for k, t in enumerate((0.0, 1.0, 11.0, 12.0, 13.0, 14.0))]
    made = made_run(*rows)
    made.state["clocks"][0] |= {"sends_s": 20.0, "ended_s": 21.0}
    (level,) = make_report(made, warmup_s=10).content["levels"]
    assert (level["requests"], level["seconds"], level["offered_rps"]) == (4, 10, 0.4)
    (level,) = make_report(made).content["levels"]
    assert level["offered_rps"] == 6 / 20
    (level,) = make_report(made, warmup_s=10, cooldown_s=6.5).content["levels"]
    assert (level["requests"], level["seconds"]) == (3, 3.5), "the end is that of its time"
    made.state["clocks"][0]["ended_s"] = 15.0  # broken off
    assert make_report(made, warmup_s=10).content["levels"][0]["seconds"] == 5
    late = [replace(each, sent_s=each.scheduled_s + 20) for each in rows]
    slow = made_run(*late)
    slow.state["clocks"][0] |= {"sends_s": 20.0, "ended_s": 40.0}
    (level,) = make_report(slow).content["levels"]
    assert level["offered_rps"] == 6 / 34, "six were sent, the last at 34 s"


def test_levels_that_received_the_same_have_no_knee() -> None:
    rows = [record(k, 0.1 * k, stage=0) for k in range(50)]
    rows += [record(50 + k, 100 + 0.2 * k, stage=1) for k in range(50)]  # planned as more, sent as less
    report = make_report(made_run(*rows), warmup_s=0.05)
    assert report.knee is None
    assert any("loads don't rise (10." in warning for warning in report.content["warnings"])


def test_a_window_of_next_to_nothing_is_told() -> None:
    rows = [record(k, float(k)) for k in range(10)]
    report = make_report(made_run(*rows), warmup_s=8.9)
    assert any("leave 0.10000 s at 1 requests/s" in warning for warning in report.content["warnings"])
    assert not make_report(made_run(*rows)).content["warnings"]
    at_once = make_report(made_run(*(record(k, 1e-4 * k) for k in range(8)))).content["levels"][0]
    assert at_once["offered_rps"] is None, "of what comes at one instant there is no rate"


def test_every_field_of_the_report_is_documented() -> None:
    rows = [record(k, 0.1 * k, stage=k // 20, request_class="ab"[k % 2]) for k in range(40)]
    content = make_report(made_run(*rows), slo={"e2e_s": 1.0}).content
    told = {name.strip() for names in SCHEMA for name in names.replace("levels[].", "").split(",")}
    assert set(content) <= told | {"levels"}
    assert set(content["levels"][0]) <= told
    assert told - {"a spread"} <= set(content) | set(content["levels"][0])
    json.dumps(content, allow_nan=False)


def test_gaps_are_shared_by_the_tokens_of_a_chunk() -> None:
    times, tokens = (0.50, 0.52, 0.60, 0.62, 0.70), (1, 1, 4, 1, 3)
    one = record(0, 0.0, 0.7, chunk_s=times, chunk_tokens=tokens, output_tokens=10, first_token_s=0.5, finish_s=0.7)
    result = to_result([one])
    assert result.tpot_s[0] == pytest.approx(0.2 / 9)  # 22.22 ms
    summary = result.summary()
    assert summary.itl_s.p50 == pytest.approx(0.020)
    assert summary.itl_s.count == 9
    assert summary.itl_s.mean == pytest.approx(0.2 / 9)
    (level,) = make_report(made_run(one, record(1, 2.0))).content["levels"]
    assert (level["itl_s"]["count"], level["itl_s"]["p50"], level["itl_s"]["max"]) == (10, pytest.approx(0.02), 0.5)
    assert level["itl_requests"] == 2
    gaps, tokens_after = replace(one, chunk_tokens=(2, 0, 5, 1, 2)).gaps()  # a chunk without a token ends no gap
    assert (gaps.tolist(), tokens_after.tolist()) == (pytest.approx([0.02, 0.02, 0.04]), [5, 1, 2])


def test_statuses_and_arrivals_of_a_result() -> None:
    rows = [record(0, 1.0), record(1, 2.0, None, outcome="rate_limited", http_status=429), record(2, 3.0, None)]
    scheduled, sent = to_result(rows), to_result(rows, since="sent")
    assert [sl.Status(each).name for each in scheduled.status] == ["FINISHED", "RATE_LIMITED", "TIMEOUT"]
    assert scheduled.e2e_s[0] == pytest.approx(1.0)
    assert sent.e2e_s[0] == pytest.approx(0.999)
    assert scheduled.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert scheduled.summary().rejected_because == {OUTCOMES["rate_limited"]: 1}
    with pytest.raises(ValueError, match="since must be"):
        to_result(rows, since="whenever")
    with pytest.raises(ValueError, match="unknown number of tokens"):
        to_result([replace(rows[0], output_tokens=None)])


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    whole = json.dumps({name: getattr(record(0, 0.0), name) for name in Record.__dataclass_fields__})
    assert record_of(whole) == record(0, 0.0)
    file = tmp_path / "requests.jsonl"
    for bad in (
        "7",
        "{",
        '{"request": 1}',
        whole.replace("finished", "lost"),
        whole.replace('"chunk_tokens": [1, 1]', '"chunk_tokens": [1]'),
    ):
        file.write_text(f"{whole}\n{bad}\n")
        with pytest.raises(ValueError, match=r"requests\.jsonl:2: "):
            read_records(file)
    file.write_text(f"{whole}\n{whole[:40]}")  # cut off: that request will be sent again
    assert len(read_records(file)) == 1


# --- the command that shows ------------------------------------------------------------------------------------------


def test_show_reads_other_tools_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from servinglab.cli.main import main
    from servinglab.measure.load_test.vllm_fields import vllm_bench_fields

    (fields,) = vllm_bench_fields(made_run(*(record(k, float(k)) for k in range(5)))).values()
    file = tmp_path / "vllm.json"
    file.write_text(json.dumps(fields))
    assert main(["bench", "show", str(file), "--slo", "e2e_s=2"]) == 0
    out = capsys.readouterr().out
    assert "vLLM bench" in out
    assert "5 finished" in out
    assert main(["bench", "show", str(file), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["requests"] == 5
    assert main(["bench", "show", str(file), "--warmup-s", "1"]) == 2
    assert main(["bench", "show", str(tmp_path)]) == 2
    assert "it holds no run.json" in capsys.readouterr().err.splitlines()[-1]


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_tokenizer_file_counts(tmp_path: Path) -> None:
    from servinglab.measure.load_test.tokens import token_ends

    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers isn't installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"soup": 0, "salad": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert list(token_ends(path)("soup salad é")) == [4, 10, 12]
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="isn't a tokenizer"):
        token_ends(tmp_path / "bad.json")


def test_a_tokenizer_that_cannot_be_had_is_told_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    asked = Setup("http://127.0.0.1:9", "chat", "m", seed=1, tokenizer=str(tmp_path))
    with pytest.raises(ImportError, match="pip install tokenizers"):
        run_load_test(tmp_path / "run", asked, [orders(1)])
    assert not (tmp_path / "run").exists()
