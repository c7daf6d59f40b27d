"""Chapter 06: the numbers that it shows and claims are computed again here."""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable
from importlib import resources
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
from servinglab import read_run
from servinglab.cli.bench_http import add_parser
from servinglab.course import explorers, quiz
from servinglab.measure.load_test import plan, report
from servinglab.metrics.knee import Level, find_knee, level_of
from servinglab.metrics.percentiles import percentile
from servinglab.workload.lengths import Geometric, Uniform
from servinglab.workload.outcomes import OUTCOMES

ROOT = Path(__file__).resolve().parents[1]
STEP = sl.AffineStep(fixed_s=0.010, per_request_s=0.0005, per_prefill_token_s=0.00005)
ENGINE = sl.ContinuousBatching(max_num_seqs=8, max_num_batched_tokens=2048)
POOL = sl.Blocks(2265, block_size=16)
LENGTHS = {"prompt_tokens": 500, "output_tokens": Uniform(50, 150)}


def _serve(work: sl.Workload) -> sl.Result:
    return sl.simulate(work, ENGINE, STEP, kv=POOL)


def _open(rate: float, seed: int = 7) -> Level:
    return level_of(_serve(sl.poisson(rate, 100_000, seed=seed, **LENGTHS)), rate, from_s=60)


def _ramp(stage_s: float, seed: int = 6) -> list[Level]:
    stages = plan.ramp(range(1, 9), stage_s, seed=seed, **LENGTHS)
    return [level_of(_serve(stage.workload), from_s=10, until_s=stage_s) for stage in stages]


@pytest.fixture(scope="module")
def chapter(records: Callable[[str], Records]) -> Records:
    return records("06_load_tests_and_the_knee")


@pytest.fixture(scope="module")
def minute() -> list[Level]:
    return _ramp(60)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the recorded runs."""
    folder = tmp_path_factory.mktemp("recorded")
    with resources.files("servinglab").joinpath("data/load_tests.zip").open("rb") as file:
        ZipFile(file).extractall(folder)
    return folder


def test_the_service_by_hand(chapter: Records) -> None:
    cost_s = 500 * 50e-6 + 100 * (0.010 / 8 + 0.0005)
    prompt_s, all_s, by_rate_s = chapter.says("ch06-prompt-and-all")
    assert cost_s == pytest.approx(prompt_s + 0.175) == pytest.approx(all_s) == pytest.approx(by_rate_s)
    assert [1e3 * STEP(1, 500), 1e3 * STEP(1)] == pytest.approx(chapter.says("ch06-steps-ms"))
    assert chapter.says("ch06-gaps") == [99]
    most, alone = explorers.load_limits()
    assert (most, alone) == pytest.approx((5, 0.0355 + 99 * 0.0105))
    assert (chapter.number("ch06-xmax"), chapter.number("ch06-alone")) == pytest.approx((most, alone), abs=0.0005)
    assert (explorers.SERVICE, explorers.SERVICE_STEP) == (ENGINE, STEP), "the explorer's service is the chapter's"
    assert {"prompt_tokens": explorers.PROMPT, "output_tokens": explorers.ANSWER} == LENGTHS


def test_closed_and_open(chapter: Records) -> None:
    closed = {n: explorers.closed_level(n, 0) for n in (1, 8, 16, 32)}
    tails = [round(level.percentile(0.99), 1) for level in closed.values()]
    assert chapter.says("ch06-closed-tails") == tails == [1.6, 2.4, 4.3, 7.6]
    shown = chapter.says("ch06-closed-throughput")
    assert shown == [5] * 3 == [pytest.approx(closed[n].request_throughput, abs=0.02) for n in (8, 16, 32)]
    at_4_5 = _open(4.5).percentile(0.99)
    assert chapter.says("ch06-open-tails") == [round(_open(4).percentile(0.99), 1), round(at_4_5)] == [3.8, 6]
    assert chapter.number("ch06-open-p99") == 6 and chapter.holds("ch06-another-seed-moves-it")
    assert 0.05 < max(abs(_open(4.5, seed).percentile(0.99) - at_4_5) for seed in (1, 2)) < 1
    assert chapter.holds("ch06-open-follows-up-to")
    assert _open(2).percentile(0.99) < 1.25 * explorers.closed_level(2, 0).percentile(0.99)
    assert chapter.holds("ch06-eight-do-not-queue")
    run = _serve(sl.closed_loop(8, 2000, seed=1, **LENGTHS))
    assert run.wait_s.max() < 2 * STEP(8, 2048), "they wait for a step to end, and at first for each other's prompts"


def test_the_bounds(chapter: Records) -> None:
    assert chapter.holds("ch06-below-the-bounds") and chapter.holds("ch06-and-stays")
    most, alone = explorers.load_limits()
    for think, full in zip((0, 10), chapter.says("ch06-touches-from"), strict=True):
        for n in explorers.CLIENTS:
            level = explorers.closed_level(n, think)
            mean = float(level.latency_s.mean())
            noise = 4 / math.sqrt(len(level.latency_s))  # of the pauses' mean, above all
            assert level.request_throughput * (mean + think) == pytest.approx(n, rel=0.01 + noise)
            assert level.request_throughput < (1.01 + noise) * min(most, n / (alone + think))
            assert mean > (0.99 - noise) * max(alone, n / most - think)
            assert (level.request_throughput > 0.98 * most) == (n >= full)
    assert chapter.says("ch06-touches-from") == [8, 64] and chapter.holds("ch06-below-both")
    assert explorers.closed_level(5, 0).request_throughput < 0.8 * 5 / alone


def test_omission(chapter: Records) -> None:
    gap_s, requests = chapter.says("ch06-plan")
    assert gap_s * requests == 60
    ends, schedule, send = 0.0, [], []
    for k in range(int(requests)):
        planned = k * gap_s
        begins = max(planned, ends)
        ends = begins + (10 if planned == 20 else 0.1)
        schedule.append(ends - planned)
        send.append(ends - begins)
    assert chapter.holds("ch06-one-is-slow") and sum(each > 0.11 for each in send) == 1
    height_s, from_s, until_s = chapter.says("ch06-jump")
    assert schedule[round(from_s / gap_s)] == height_s == max(schedule) == 10
    back = next(k for k in range(81, 240) if schedule[k] < 0.11)
    assert back * gap_s == until_s == 36.5 and chapter.holds("ch06-along-a-line")
    assert np.allclose(np.diff(schedule[80:back]), -0.15)
    assert chapter.holds("ch06-a-quarter-waited")
    assert sum(each > 1 + 1e-9 for each in schedule) == 60
    assert percentile(schedule, 0.99) > 9 and percentile(send, 0.99) == pytest.approx(0.1)
    # the chapter serves this plan with one seat; its clock begins with the first gap, so all but its last are these
    one = sl.simulate(
        sl.deterministic(4, 240, service_scale=[100 if k == 79 else 1 for k in range(240)]),
        sl.ContinuousBatching(1),
        sl.AffineStep(0.1, 0.0),
    )
    assert np.allclose(one.e2e_s[:-1], schedule[1:]) and np.allclose((one.e2e_s - one.wait_s)[:-1], send[1:])


def test_cuts(chapter: Records) -> None:
    assert chapter.holds("ch06-two-cuts-agree-below") and chapter.holds("ch06-completion-drops-the-end")
    tails = {}
    for rate in (4, 6):
        pairs = []
        for seed in range(40):
            run = _serve(sl.rate_profile([0, 60], [rate, rate], seed=1000 + seed, **LENGTHS))
            ended = (run.finish_s >= 10) & (run.finish_s <= run.arrival_s.max())
            pairs.append([percentile(run.e2e_s[kept], 0.99) for kept in (run.arrival_s >= 10, ended)])
        tails[rate] = np.mean(pairs, axis=0)
    assert tails[4][1] == pytest.approx(tails[4][0], rel=0.03)
    assert tails[6][1] < 0.9 * tails[6][0]


def test_the_knees(chapter: Records, minute: list[Level]) -> None:
    doubling = find_knee([explorers.closed_level(n, 0) for n in (1, 2, 4, 8, 16, 32)])
    assert chapter.holds("ch06-doubling-knee")
    assert (doubling.load, doubling.low, doubling.high) == (8, 8, 8)
    short, long = find_knee(minute), find_knee(_ramp(600))
    band = [short.load, short.next_load, short.low, short.high]
    assert chapter.says("ch06-knee-band") == [round(load or 0) for load in band] == [5, 6, 3, 5]
    assert chapter.says("ch06-longer-knee") == [round(long.load or 0)] * 2 == [5, 5]
    assert chapter.holds("ch06-a-minute-points-to-5") and chapter.holds("ch06-ten-minutes-decide")
    assert 0.7 < short.shares[short.load] < 0.95 and long.shares == {long.load: 1.0}
    assert long.load == pytest.approx(5, abs=0.02)
    assert chapter.holds("ch06-follows-the-load")
    assert all(level.request_throughput == pytest.approx(level.load, rel=0.05) for level in minute[:5])
    near = [pytest.approx(level.request_throughput, abs=0.25) for level in minute[4:]]
    assert chapter.says("ch06-stays-near") == near
    for seed in range(20):  # a level is what it is called, whatever the seed: 60 k times, 50/60 of which the cut leaves
        for k, level in enumerate(_ramp(60, seed), start=1):
            assert level.load == pytest.approx(k, abs=4 * math.sqrt(60 * k * 5 / 36) / 50)
    tails = [level.percentile(0.99) for level in minute]
    assert chapter.holds("ch06-turns-up-between") and tails[5] > 4 * tails[3] > 1.5 * tails[3] > tails[2]
    assert chapter.says("ch06-first-digits") == [round(tails[1]), round(tails[4]), round(tails[5])] == [2, 5, 15]
    assert chapter.holds("ch06-luck-picks-one")
    finished = [[level.request_throughput for level in _ramp(60, seed)] for seed in range(100, 140)]
    largest = Counter(1 + int(np.argmax(each)) for each in finished)
    assert max(largest.values()) < 24 and min(largest) >= 5
    assert chapter.holds("ch06-finds-it-late")
    heavy = {"prompt_tokens": 500, "output_tokens": Geometric(100)}
    tailed = [level_of(_serve(sl.closed_loop(n, 20_000, seed=2, **heavy)), n, 60) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert (find_knee(tailed, resamples=1).load or 64) > 8


def test_a_line_is_handed_on(chapter: Records) -> None:
    assert chapter.holds("ch06-line-is-handed-on")
    overload, after = (sl.timed_arrivals(rate, 60, seed, **LENGTHS) for rate, seed in ((6, 3), (4, 4)))
    both = sl.Workload.from_arrivals(
        np.concatenate([overload.arrival_s, 60 + after.arrival_s]),
        prompt_tokens=500,
        output_tokens=np.concatenate([overload.output_tokens, after.output_tokens]),
    )
    alone, inherited = level_of(_serve(after), 4, 10, 60), level_of(_serve(both), 4, 70, 120)
    assert inherited.percentile(0.5) > 3 * alone.percentile(0.5)


def test_capacity_and_the_usable_rate(chapter: Records, minute: list[Level]) -> None:
    assert chapter.holds("ch06-fall-behind") and chapter.holds("ch06-usable-are")
    behind = [k for k, level in enumerate(minute, 1) if len(level.finish_s) < 0.95 * len(level.arrival_s)]
    assert behind == [6, 7, 8]
    good, longer = (
        [k for k, level in enumerate(ramp, 1) if level.percentile(0.99) <= 3] for ramp in (minute, _ramp(600))
    )
    assert (good, longer) == ([1, 2, 3, 4], [1, 2, 3]), "the usable rate is the level before the first that fails"
    assert (chapter.number("ch06-usable-minute"), chapter.number("ch06-usable")) == (good[-1], longer[-1])
    assert _open(4).percentile(0.99) > 3 > _open(3).percentile(0.99), "which is right"
    at_4 = [_ramp(60, seed)[3].percentile(0.99) for seed in range(20)]
    assert np.mean(np.array(at_4) < _open(4).percentile(0.99)) > 0.7, "a minute shows less than the line will be"


def test_a_level_is_what_it_is_called(chapter: Records) -> None:
    assert chapter.holds("ch06-drawn-gaps-miss-the-rate") and chapter.says("ch06-timed-level") == [240, 60]
    rates = np.array([240 / sl.poisson(4, 240, seed=seed).arrival_s[-1] for seed in range(5000, 7000)])
    assert 0.35 < np.mean((rates < 3.8) | (rates > 4.2)) < 0.55
    assert all(len(stage.workload) == 240 for stage in plan.ramp([4], 60, seed=6))


def test_the_recorded_runs(chapter: Records, recorded: Path) -> None:
    planned = plan.ramp([1, 2, 3, 4, 5, 6], 60, seed=6, **LENGTHS)
    test = report.read_load_test(recorded / "ramp")
    assert plan.fingerprint(planned) == test.state["plan"]
    seen = report.make_report(test, warmup_s=10)
    for measured, stage in zip(seen.levels, planned, strict=True):
        told = level_of(_serve(stage.workload), from_s=10, until_s=60)
        assert measured.load == pytest.approx(told.load, rel=0.001), "sent as planned"
        assert measured.request_throughput == pytest.approx(told.request_throughput, rel=0.01)
        for q in (0.5, 0.99):
            assert measured.percentile(q) == pytest.approx(told.percentile(q), rel=0.01)
    assert not any(row["client"]["bound"] for row in seen.content["levels"])
    assert chapter.holds("ch06-no-level-is-flagged") and chapter.holds("ch06-busy-is-flagged")
    assert chapter.says("ch06-late-is-ms") == [1e3 * report.LATE_S] == [5]
    assert chapter.says("ch06-busy-is-percent") == [100 * report.BUSY] == [90]
    busy = report.make_report(report.read_load_test(recorded / "busy"), warmup_s=10).content["levels"][0]
    assert busy["client"]["bound"] and busy["schedule_delay_s"]["p99"] > report.LATE_S
    assert chapter.holds("ch06-eight-a-chunk")
    assert all(len(r.chunk_s) == 1 + math.ceil((r.output_tokens - 1) / 8) for r in test.records)
    assert len(read_run(recorded / "ramp")) == len(test.records) == sum(len(stage.workload) for stage in planned)


def test_faults_keep_their_names(chapter: Records, recorded: Path) -> None:
    level = report.make_report(report.read_load_test(recorded / "faults")).content["levels"][0]
    assert chapter.holds("ch06-p99-is-infinite") and chapter.holds("ch06-every-end-has-a-name")
    assert chapter.number("ch06-outcomes") == len(OUTCOMES)
    assert level["failure_rate"] > 0.01 and level["e2e_sched_s"]["p99"] is None
    assert sum(level["outcomes"].values()) == level["requests"] and set(level["outcomes"]) <= set(OUTCOMES)
    assert {"rate_limited", "server_error", "cut", "hung", "malformed", "not_utf8"} <= set(level["outcomes"])


def test_eleven_records_and_seven_tests(chapter: Records, recorded: Path) -> None:
    made = report.make_report(report.read_load_test(recorded / "ramp"))
    page = (ROOT / "chapters" / "06_load_tests_and_the_knee.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^\((ch06-\w+)\)=\n(.*?)(?=^\(ch06-|\Z)", page, re.MULTILINE | re.DOTALL))
    numbers = re.findall(r"^\| (\d+) \|", sections["ch06-records"], re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 12)]
    assert len(made.content["records"]) == 11
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_parser(parser.add_subparsers(), argparse.ArgumentParser)
    commands = re.findall(r"\| `(--[^`]+)`", sections["ch06-seven"])
    assert len(commands) == 7
    for command in commands:
        parser.parse_args(["bench", "http", "http://x", *command.split()])


def test_what_the_seven_tests_show(chapter: Records) -> None:
    assert chapter.holds("ch06-seats-worth-two")
    long = _serve(sl.poisson(0.5, 300, seed=1, prompt_tokens=16_000, output_tokens=100))
    assert long.segments.running.max() == 2 and 3 * 16_100 > 16 * POOL.usable_blocks > 2 * 16_100
    assert chapter.holds("ch06-wait-for-an-essay")
    essays = _serve(sl.closed_loop(12, 60, seed=1, prompt_tokens=200, output_tokens=2000))
    assert essays.wait_s.max() > 0.9 * 2000 * STEP(8)
    assert chapter.holds("ch06-half-wait-for-seconds") and chapter.holds("ch06-short-suffer-from-long")
    bursts = _serve(plan.burst(50, 30, 5, seed=1, **LENGTHS))
    assert percentile(bursts.wait_s, 0.5) > 2 and bursts.finish_s[:50].max() < 30
    stage = plan.mixed(plan.ramp([2], 600, seed=1)[0], [(0.8, 200, 100), (0.2, 4000, 200)], seed=1)
    short = stage.workload.prompt_tokens == 200
    apart = sl.Workload.from_arrivals(stage.workload.arrival_s[short], prompt_tokens=200, output_tokens=100)
    mixed_p99, apart_p99 = (
        percentile(ttft, 0.99) for ttft in (_serve(stage.workload).ttft_s[short], _serve(apart).ttft_s)
    )
    assert mixed_p99 > 5 * apart_p99


def test_the_quiz_by_hand() -> None:
    saturating, omission, knee, offered, samples = quiz.load("ch06")
    for v in saturating.variants:
        rounds_a_second = 1 / (v.given["alone"] + v.given["think"])
        assert v.answer * rounds_a_second == pytest.approx(v.given["most"])
    for v in omission.variants:
        ends, latency = 0.0, math.nan
        for k in range(int(v.given["later"]) + 1):
            planned = k * v.given["gap"]
            ends = max(planned, ends) + (v.given["normal"] if k else v.given["stall"])
            latency = ends - planned
        assert v.answer == pytest.approx(latency)
    for v in knee.variants:
        loads, names = (2, 4, 8, 16, 32), {4: "four", 8: "eight", 16: "sixteen"}
        past = [
            a
            for a, b in pairwise(loads)
            if v.given[f"x{b}"] / v.given[f"x{a}"] < 2**0.5 < v.given[f"p{b}"] / v.given[f"p{a}"]
        ]
        assert v.answer == (names[past[0]] if past else "none")
    for v in offered.variants:
        assert v.answer == v.given["rate"] < v.given["batch"] / (v.given["fixed"] + v.given["each"] * v.given["batch"])
    for v in samples.variants:
        share, chance = v.given["q"] / 100, 1 - v.given["confidence"] / 100
        assert share**v.answer <= chance + 1e-12 < share ** (v.answer - 1)


def test_the_exercises_answers(chapter: Records) -> None:
    assert chapter.says("ch06-round-of-300") == [300 / 5] == [60]
    assert chapter.number("ch06-users-wait") == 60 - 30
    assert chapter.number("ch06-users-star") == pytest.approx((0.0355 + 99 * 0.0105 + 30) * 5, abs=0.05)
