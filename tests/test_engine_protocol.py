"""One protocol: every engine may be stopped, seen and changed at any instant; compiled ones equal the loops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servinglab.engine import fast
from servinglab.engine.protocol import FOREVER, Request
from servinglab.engine.reference import tokens
from servinglab.engine.reference.pots import PotLoop
from servinglab.engine.reference.tokens import TokenLoop
from servinglab.result.setup import RunSetup
from servinglab.workload.outcomes import NEVER, Status

EIGHTH = 125_000_000  # ns; steps and gaps are often multiples of it, so that much happens at the same instant
OFTEN = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def short_pieces():
    """Pieces of prompts as short as the prompts of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PREFIX_TOKENS", 16)
        patch.setattr(fast, "PREFIX_TOKENS", 16)
        yield


# ---- engines: what makes a compiled one and its reference ----


@st.composite
def affine_steps(draw, kv):
    eighth = st.integers(0, 4).map(lambda k: k / 8)
    fixed, per_request = draw(eighth), draw(eighth)
    per_kv = draw(st.sampled_from([0.0, 1 / 64, 1.23456789e-4])) if kv else 0.0
    per_prefill, per_pair = (
        draw(st.sampled_from([0.0, 0.125, 1e-3 / 3])),
        draw(st.sampled_from([0.0, 1 / 256, 1.23e-5])),
    )
    return sl.AffineStep(fixed + (fixed + per_request == 0), per_request, per_prefill, per_kv, per_pair)


@st.composite
def step_times(draw, kv=True):
    one = draw(affine_steps(kv))
    return one if draw(st.booleans()) else sl.RoofStep(one, draw(affine_steps(kv)))


@st.composite
def pot_engines(draw):
    size, streaming, padded = draw(st.integers(1, 6)), draw(st.booleans()), draw(st.booleans())
    kind = draw(st.sampled_from(["static", "dynamic", "continuous", "continuous"]))
    if kind == "static":
        last = draw(st.sampled_from(["full_price", "partial", "never"] if padded else ["partial", "never"]))
        rules = sl.StaticBatching(size, last=last, streaming=streaming, padded=padded)
    elif kind == "dynamic":
        rules = sl.DynamicBatching(size, draw(st.sampled_from([0.0, 0.125, 0.5, 3.3])), streaming, padded)
    else:
        rules = sl.ContinuousBatching(size)
    scaled = draw(st.integers(0, 3)) == 0
    step = draw(step_times(kv=not scaled))
    pots = draw(st.sampled_from([1, 1, 2, 3, None]))
    return rules, (lambda work=None: fast.FastPots(rules, step, pots, work)), lambda: PotLoop(rules, step, pots), scaled


@st.composite
def token_engines(draw, all_rules, own_step_time=False):
    seats, chunked = draw(st.integers(1, 6)), draw(st.booleans())
    pool = sl.Blocks(draw(st.integers(10, 60)), draw(st.sampled_from([1, 2, 4, 16]))) if draw(st.booleans()) else None
    more = dict(reserve_whole_answer=draw(st.integers(0, 3)) == 0)
    if all_rules:
        more = dict(
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            long_prefill_token_threshold=draw(st.sampled_from([0, 1, 5])),
            adaptive_threshold=draw(st.booleans()),
            **dict.fromkeys(draw(st.sampled_from([
                (), ("async_scheduling",), ("prefix_caching",), ("prefix_caching", "async_scheduling"),
                ("prefill_first",), ("reserve_whole_answer", "async_scheduling"),
            ])), True),
        )  # fmt: skip
    rules = sl.ContinuousBatching(
        seats, draw(st.integers(seats, 40)), chunked_prefill=chunked, full_prompt_gate=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])), **more,
    )  # fmt: skip
    step = draw(step_times())
    if own_step_time:
        affine = step
        step = lambda *holds: affine(*holds) + 1e-3 * (holds[2] % 7)  # noqa: E731
    kind = fast.FastSteps if all_rules else fast.FastStretches
    return rules, (lambda work=None: kind(rules, step, pool, work)), lambda: TokenLoop(rules, step, pool), False


ENGINES = {
    "pots": pot_engines(),
    "stretches": token_engines(all_rules=False),
    "steps": token_engines(all_rules=True),
    "own step time": token_engines(all_rules=True, own_step_time=True),
}


@st.composite
def requests(draw, scaled):
    n = draw(st.integers(1, 25))
    gap = st.integers(0, 24).map(lambda k: k * EIGHTH) if draw(st.booleans()) else st.integers(0, 2 * 10**9)
    at = np.cumsum([draw(gap) for _ in range(n)]).tolist()
    scales = st.sampled_from([0.25, 1.0, 1.7] if scaled else [1.0])
    return [
        (
            when,
            Request(
                number=k, prompt_tokens=draw(st.integers(1, 30)), output_tokens=draw(st.integers(1, 12)),
                priority=draw(st.integers(0, 2)), service_scale=draw(scales),
                prefix_ids=tuple(draw(st.lists(st.integers(0, 1), max_size=1))),
            ),
        )
        for k, when in enumerate(at)
    ]  # fmt: skip


@st.composite
def instants(draw, last):
    """Any, and many that are likely to be those of other things."""
    return draw(
        st.one_of(st.integers(0, 2 * last // EIGHTH + 40).map(lambda k: k * EIGHTH), st.integers(0, 2 * last + 10**9))
    )


@st.composite
def changes(draw, rules):
    if isinstance(rules, sl.ContinuousBatching) and rules.max_num_batched_tokens is not None:
        seats = draw(st.integers(1, 8))
        budget = draw(st.integers(seats, 40))
        return replace(
            rules, max_num_seqs=seats, max_num_batched_tokens=budget,
            max_num_active_seqs=draw(st.one_of(st.none(), st.integers(1, seats))),
        )  # fmt: skip
    if isinstance(rules, sl.ContinuousBatching):
        return replace(rules, max_num_seqs=draw(st.integers(1, 8)))
    if isinstance(rules, sl.DynamicBatching):
        return replace(rules, batch_size=draw(st.integers(1, 8)), window_s=draw(st.sampled_from([0.0, 0.25, 1.0, 5.0])))
    return replace(rules, batch_size=draw(st.integers(1, 8)))


# ---- what became of everyone ----


class Told:
    """What a reference loop said, as a result has it."""

    def __init__(self, count: int) -> None:
        self.first_token, self.finish = np.full((2, count), NEVER)
        self.rows, self.last = [], {}

    def note(self, happened) -> None:
        self.rows += happened.rows
        for number, _tokens, done, row in happened.given:
            if self.first_token[number] == NEVER:
                self.first_token[number] = row["end_ns"]
            if done:
                self.finish[number] = row["end_ns"]
            row["decode_tokens"] -= self.last.get(number, row["start_ns"]) != row["start_ns"]  # as `drive` has it
            self.last[number] = row["end_ns"]


def served(loop, came, cuts=()):
    """Lead an engine through requests, stopping at every cut; return what it said and saw."""
    told, seen = Told(len(came)), []
    waiting = list(came)
    for cut in [*sorted(cuts), FOREVER]:
        while waiting and waiting[0][0] <= cut:
            when, request = waiting.pop(0)
            loop.join(request, when)
            if not waiting:
                loop.close(when)  # at the same instant, however time is cut
        told.note(loop.advance(cut))
        seen.append(loop.view())
    return told, seen


def assert_equal_logs(mine, rows):
    """The log of a compiled engine, step by step, has the rows of the steps that ended."""
    ended = [row for row in rows if row["end_ns"] != NEVER]
    theirs = sl.Segments.from_rows(sorted(ended, key=lambda row: (row["start_ns"], row["pot"])), 0)
    for field in fields(sl.Segments):
        if field.name not in ("waited_request_s", "kv_blocks", "waiting"):
            np.testing.assert_array_equal(getattr(mine, field.name), getattr(theirs, field.name), field.name)


def assert_same(engine, loop, told):
    result = engine.result(RunSetup())
    numbers = engine._numbers
    for name, truth in (("first_token_ns", told.first_token), ("finish_ns", told.finish)):
        np.testing.assert_array_equal(getattr(result, name), truth[numbers], name)
    np.testing.assert_array_equal(result.scheduled_ns, [loop.scheduled_ns.get(k, NEVER) for k in numbers])
    np.testing.assert_array_equal(result.preemptions, [loop.preemptions[k] for k in numbers])
    assert_equal_logs(result.steps(), told.rows)


@pytest.mark.parametrize("kind", ENGINES)
@OFTEN
@given(data=st.data())
@pytest.mark.slow
def test_slices_of_time_and_guests_one_by_one_change_nothing(kind, data):
    _rules, compiled, readable, scaled = data.draw(ENGINES[kind])
    came = data.draw(requests(scaled))
    cuts = data.draw(st.lists(instants(came[-1][0]), max_size=12))
    loop, engine, sliced = readable(), compiled(), compiled()
    told, _ = served(loop, came)
    told_2, seen = served(readable_2 := readable(), came, cuts)
    np.testing.assert_array_equal(told.finish, told_2.finish)
    served(engine, came)
    _, seen_sliced = served(sliced, came, cuts)
    assert seen_sliced == seen
    whole, parts = engine.result(RunSetup()), sliced.result(RunSetup())
    np.testing.assert_array_equal(whole.finish_ns, parts.finish_ns)
    assert_same(sliced, readable_2, told_2)
    assert_same(engine, loop, told)
    for mine, theirs in zip(whole.itl(), parts.itl(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ENGINES)
@OFTEN
@given(data=st.data())
@pytest.mark.slow
def test_a_workload_served_in_slices_is_simulate_s(kind, data):
    """The same rows of the log, too: who only looks leaves no trace."""
    _rules, compiled, _readable, scaled = data.draw(ENGINES[kind])
    came = [each for each in data.draw(requests(scaled))]
    work = sl.Workload.from_arrivals(
        [at / 1e9 for at, _ in came],
        **{name: [getattr(r, name) for _, r in came] for name in ("prompt_tokens", "output_tokens", "service_scale")},
    )
    work = replace(work, priority=[r.priority for _, r in came], prefix_hashes=[list(r.prefix_ids) for _, r in came])
    cuts = data.draw(st.lists(instants(came[-1][0]), max_size=12))
    whole, sliced = compiled(work), compiled(work)
    finished = list(whole.advance(FOREVER).finished)
    in_parts = []
    for cut in sorted(cuts):
        in_parts += sliced.advance(cut).finished
        view = sliced.view()
        assert view.now_ns == cut and view.running >= 0
    in_parts += sliced.advance(FOREVER).finished
    assert in_parts == finished
    whole, sliced = whole.result(RunSetup()), sliced.result(RunSetup())
    for name in ("arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "preemptions", "status"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(sliced, name), name)
    for field in fields(sl.Segments):
        if kind not in ("steps", "own step time"):  # its rows are joined within one call
            np.testing.assert_allclose(
                getattr(whole.segments, field.name), getattr(sliced.segments, field.name), err_msg=field.name
            )


@pytest.mark.parametrize("kind", ENGINES)
@OFTEN
@given(data=st.data())
@pytest.mark.slow
def test_changes_and_who_gives_up_count_alike(kind, data):
    rules, compiled, readable, scaled = data.draw(ENGINES[kind])
    came = data.draw(requests(scaled))
    script = [(at, 1, "join", request) for at, request in came]
    for _ in range(data.draw(st.integers(0, 8))):
        at, what = data.draw(instants(came[-1][0])), data.draw(st.sampled_from(["change", "abort", "look", "next"]))
        order = data.draw(st.integers(0, 3))
        thing = data.draw(changes(rules)) if what == "change" else data.draw(st.integers(0, len(came) - 1))
        script.append((at, order, what, thing))
    script.sort(key=lambda each: each[:2])
    engine, loop = compiled(), readable()
    told, finished = Told(len(came)), [[], []]
    gave_up = set()
    for at, _order, what, thing in script:
        if what == "join":
            assert engine.join(thing, at) == loop.join(thing, at)
        elif what == "change":
            engine.change(thing, at)
            loop.change(thing, at)
        elif what == "abort":
            failed = []
            for each in (engine, loop):
                try:
                    each.abort(thing, at)
                except ValueError as error:
                    failed.append(str(error))
            assert len(failed) in (0, 2), failed
            gave_up |= set() if failed else {thing}
        elif what == "next":
            for each in (engine, loop):
                happened = each.advance(at)
                if each is loop:
                    told.note(happened)
                finished[each is loop] += happened.finished
            mine, truth = engine.next_ns(), loop.next_ns()
            assert (mine is None) == (truth is None) and (mine is None or mine >= truth > at)
        else:
            for each in (engine, loop):
                happened = each.advance(at)
                finished[each is loop] += happened.finished
                if each is loop:
                    told.note(happened)
        assert engine.view() == loop.view(), (at, what)
    for each in (engine, loop):
        each.close(script[-1][0])
        happened = each.advance(FOREVER)
        finished[each is loop] += happened.finished
        if each is loop:
            told.note(happened)
    assert sorted(finished[0]) == sorted(finished[1]) == sorted(np.flatnonzero(told.finish != NEVER))
    assert not gave_up & set(finished[0])
    assert_same(engine, loop, told)
    last = engine.view()
    assert last.running == 0 and last.kv_blocks == 0 and last.kv_tokens == 0
    result = engine.result(RunSetup())
    became = dict(zip(engine._numbers, result.status.tolist(), strict=True))
    assert {number for number, ended in became.items() if ended == Status.FINISHED} == set(finished[0])
    assert {number for number, ended in became.items() if ended == Status.ABORTED} == gave_up
    log = result.segments
    out = int((log.decode_tokens * log.steps).sum() + log.first_tokens.sum() + result.late_gaps[1].sum())
    assert out >= sum(request.output_tokens for _, request in came if request.number in set(finished[0]))


def test_who_is_given_up_is_found_among_those_who_were_turned_away():
    """Requests that can never be served are left out of the compiled columns, which moves the others."""
    work = sl.Workload.from_arrivals([0.0, 0.1, 0.2], prompt_tokens=[500, 10, 10], output_tokens=[1, 50, 50])
    engine = fast.FastStretches(sl.ContinuousBatching(4, 64), sl.AffineStep(0.1, 0.0), sl.Blocks(20), work)
    engine.advance(10**9)
    engine.abort(1, 10**9)
    engine.advance(FOREVER)
    statuses = [Status(each).name for each in engine.result(RunSetup()).status]
    assert statuses == ["REJECTED", "ABORTED", "FINISHED"]


# ---- what is said of bad input ----


@pytest.mark.parametrize("make", [
    lambda: fast.FastStretches(sl.ContinuousBatching(4, 64), sl.AffineStep(0.1, 0.0), None),
    lambda: TokenLoop(sl.ContinuousBatching(4, 64), sl.AffineStep(0.1, 0.0), None),
], ids=["compiled", "readable"])  # fmt: skip
def test_what_breaks_a_rule_is_named(make):
    engine = make()
    assert engine.join(Request(0, 5, 3), 10**9) is None
    for call, message in (
        (lambda: engine.join(Request(1, 0, 1), 10**9), "prompt_tokens must be at least 1; got 0"),
        (lambda: engine.join(Request(1, 1, 0), 10**9), "output_tokens must be at least 1; got 0"),
        (lambda: engine.join(Request(1, 1, 1, service_scale=2.0), 10**9), "service_scale must be 1 where tokens"),
        (lambda: engine.advance(10**9 - 1), "an instant must"),
        (lambda: engine.abort(7, 10**9), "number must be that of a request that is here and isn't done; got 7"),
        (lambda: engine.change(sl.StaticBatching(3), 10**9), "scheduler must be a .*, and stay of its kind"),
        (lambda: engine.change(sl.ContinuousBatching(4, 64, policy="priority"), 10**9), "policy can't change while"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    engine.close(10**9)
    assert engine.advance(FOREVER).finished == [0]


@pytest.mark.parametrize("make", [
    lambda: fast.FastStretches(sl.ContinuousBatching(4, 64, max_model_len=9), sl.AffineStep(0.1, 0.0), None),
    lambda: TokenLoop(sl.ContinuousBatching(4, 64, max_model_len=9), sl.AffineStep(0.1, 0.0), None),
], ids=["compiled", "readable"])  # fmt: skip
def test_who_can_never_be_served_is_told_why(make):
    engine = make()
    assert engine.join(Request(0, 8, 8), 0) == "16 tokens are more than max_model_len = 9"
    assert engine.view().done == 1 and engine.next_ns() is None


@pytest.mark.parametrize("make", [
    lambda rules: fast.FastPots(rules, sl.AffineStep(1.0, 0.0), 1),
    lambda rules: PotLoop(rules, sl.AffineStep(1.0, 0.0), 1),
], ids=["compiled", "readable"])  # fmt: skip
def test_fewer_seats_put_nobody_out_and_a_shorter_window_counts_from_the_arrival(make):
    engine = make(sl.ContinuousBatching(3))
    for number in range(5):
        engine.join(Request(number, 0, 4 if number < 3 else 1), 0)
    engine.change(sl.ContinuousBatching(1), 1_500_000_000)
    assert engine.view().running == 3 and engine.view().waiting == 2
    assert engine.advance(4_000_000_000).finished == [0, 1, 2]
    assert engine.advance(FOREVER).finished == [3, 4] and engine.view().now_ns == 6 * 10**9
    engine = make(sl.DynamicBatching(3, window_s=9.0))
    engine.join(Request(0, 0, 1), 0)
    assert engine.next_ns() == 9 * 10**9
    engine.change(sl.DynamicBatching(3, window_s=2.0), 5 * 10**9)
    assert engine.next_ns() == 6 * 10**9 and engine.view().running == 1


# ---- the cache of what was compiled ----


@pytest.mark.slow
def test_a_changed_helper_is_compiled_again(tmp_path):
    """numba's cache alone would go on using the kernel that was compiled with the old one."""
    package = Path(sl.__file__).parent
    copy = tmp_path / "servinglab"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.zip"))
    code = """
import servinglab as sl
work = sl.Workload.from_arrivals([0.0], output_tokens=1)
print(sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0)).finish_s[0])
"""
    places = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **places}, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run() == run() == "1.0"
    kept = sorted(each.stat().st_mtime_ns for each in (tmp_path / "cache").rglob("*.nbc"))
    assert run() == "1.0" and kept == sorted(each.stat().st_mtime_ns for each in (tmp_path / "cache").rglob("*.nbc"))
    helper = copy / "engine" / "kernel" / "prices.py"
    text = helper.read_text()
    assert "return side.fixed + " in text
    helper.write_text(text.replace("return side.fixed + ", "return 3 * side.fixed + "))
    assert run() == "3.0"
