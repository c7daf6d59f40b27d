"""The engines: the fast one equals the readable one; nothing is lost; each scheduler does what it says."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import fields, replace

import numpy as np
import pytest
import servinglab as sl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servinglab.engine import clock, fast
from servinglab.engine.kernel import sums
from servinglab.engine.reference import tokens
from servinglab.workload.outcomes import NEVER

TOKENS = st.integers(1, 12)


@st.composite
def workloads(draw):
    n = draw(st.integers(1, 40))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    scales = column(st.sampled_from([0.25, 1.0, 1.7])) if draw(st.booleans()) else [1.0] * n
    shape = dict(
        prompt_tokens=column(st.integers(0, 30)),
        output_tokens=[1] * n if draw(st.booleans()) else column(TOKENS),
        service_scale=scales,
    )
    # multiples of 1/8 s meet steps of 1/8 s at the same nanosecond, so ties of every kind are frequent
    gap = st.integers(0, 24).map(lambda k: k / 8) if draw(st.booleans()) else st.floats(0, 2)
    if draw(st.booleans()):
        return sl.Workload.from_arrivals(np.cumsum(column(gap)), **shape)
    columns = dict(zip(("prompt_tokens", "output_tokens", "service_scale"), shape.values(), strict=True))
    clients = draw(st.integers(1, 10))
    return sl.closed_loop(clients, n, seed=0, think_s=column(gap), **columns)


@st.composite
def schedulers(draw):
    size = draw(st.integers(1, 9))
    streaming, padded = draw(st.booleans()), draw(st.booleans())
    kind = draw(st.sampled_from(["static", "dynamic", "continuous"]))
    if kind == "static":
        last = draw(st.sampled_from(["full_price", "partial", "never"] if padded else ["partial", "never"]))
        return sl.StaticBatching(size, last=last, streaming=streaming, padded=padded)
    if kind == "dynamic":
        window_s = draw(st.sampled_from([0.0, 0.125, 0.5, 3.3]))
        return sl.DynamicBatching(size, window_s, streaming=streaming, padded=padded)
    return sl.ContinuousBatching(size)


@st.composite
def step_times(draw, kv):
    eighth = st.integers(0, 4).map(lambda k: k / 8)
    fixed, per_request = draw(eighth), draw(eighth)
    per_prefill = draw(st.sampled_from([0.0, 0.125, 1e-3 / 3]))
    per_kv = draw(st.sampled_from([0.0, 1 / 64, 39.1e-9, 1.23456789e-4])) if kv else 0.0
    per_pair = draw(st.sampled_from([0.0, 1 / 256, 8.83e-10, 1.23456789e-5]))
    return sl.AffineStep(fixed + (fixed + per_request == 0), per_request, per_prefill, per_kv, per_pair)


@st.composite
def roofs(draw, kv):
    one = draw(step_times(kv))
    return one if draw(st.booleans()) else sl.RoofStep(one, draw(step_times(kv)))


POTS = st.sampled_from([1, 1, 2, 3, None])


def assert_same(fast: sl.Result, plain: sl.Result) -> None:
    for name in ("arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "status"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(plain, name), name)
    steps, truth = fast.steps(), plain.steps()
    for field in fields(sl.Segments):
        mine, theirs = getattr(steps, field.name), getattr(truth, field.name)
        if field.name == "kv_blocks":
            assert (mine[-1:] >= 0).all()
            mine, theirs = mine[mine >= 0], theirs[mine >= 0]
        if field.name != "waited_request_s":
            np.testing.assert_array_equal(mine, theirs, field.name)
    assert plain.segments is not None and fast.segments is not None
    order = np.lexsort((plain.segments.pot, plain.segments.start_ns))
    np.testing.assert_array_equal(plain.segments.waiting[order], truth.waiting, "steps() recounts the line")
    assert steps.waited_request_s.sum() == pytest.approx(plain.segments.waited_request_s.sum())
    np.testing.assert_array_equal(fast.preemptions, plain.preemptions)
    assert fast.rejections == plain.rejections
    for mine, theirs in zip(fast.itl(), plain.itl(), strict=True):
        np.testing.assert_array_equal(mine, theirs, "itl")


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), workloads(), schedulers(), POTS)
@pytest.mark.slow
def test_the_fast_engine_equals_the_readable_one(data, workload, scheduler, pots):
    scaled = bool((workload.service_scale != 1).any())
    step_time = data.draw(roofs(kv=not scaled))
    assert_same(sl.simulate(workload, scheduler, step_time, pots), sl.reference(workload, scheduler, step_time, pots))


TOGETHER = [
    (), (), ("async_scheduling",), ("prefix_caching",), ("prefix_caching", "async_scheduling"), ("prefill_first",),
    ("prefix_caching", "prefill_first"), ("reserve_whole_answer",), ("reserve_whole_answer", "async_scheduling"),
    ("reserve_whole_answer", "prefill_first"),
]  # fmt: skip


@st.composite
def token_runs(draw, all_rules):
    """Workload, scheduler and pool of a run that counts tokens; small numbers, so that everything is scarce."""
    n = draw(st.integers(1, 30))
    pieces = st.lists(st.integers(0, 1), max_size=3)  # of prompts; a third of them begin as another does

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    shape = dict(prompt_tokens=column(st.integers(1, 30)), output_tokens=column(TOKENS))
    gap = st.integers(0, 24).map(lambda k: k / 8) if draw(st.booleans()) else st.floats(0, 2)
    if draw(st.booleans()):
        work = sl.Workload.from_arrivals(np.cumsum(column(gap)), **shape)
    else:
        work = sl.closed_loop(draw(st.integers(1, 10)), n, seed=0, think_s=column(gap), **shape)
    hashes = column(pieces) if all_rules and draw(st.booleans()) else None
    if all_rules:
        work = replace(work, priority=column(st.integers(0, 2)), prefix_hashes=hashes)
    pool = (
        sl.Blocks(draw(st.integers(10, 60)), draw(st.sampled_from([1, 2 if hashes else 3, 4, 16])))
        if draw(st.booleans())
        else None
    )
    seats, chunked = draw(st.integers(1, 8)), draw(st.booleans())
    longest = draw(st.one_of(st.none(), st.integers(2, 40)))
    if pool is not None and longest is not None:
        longest = min(longest, pool.usable_blocks * pool.block_size)
    least = seats if chunked or longest is None else max(seats, longest)
    if all_rules:
        thresholds = st.sampled_from([0, 1, 5] if longest is None or longest >= 5 else [0, 1])
        more = dict(
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            long_prefill_token_threshold=draw(thresholds),
            adaptive_threshold=draw(st.booleans()),
            **dict.fromkeys(draw(st.sampled_from(TOGETHER)), True),
        )
    else:
        more = dict(reserve_whole_answer=draw(st.integers(0, 3)) == 0)
    rules = sl.ContinuousBatching(
        seats,
        draw(st.one_of(st.none(), st.integers(least, 60))),
        chunked_prefill=chunked,
        max_num_active_seqs=draw(st.one_of(st.none(), st.integers(1, seats))),
        max_model_len=longest,
        full_prompt_gate=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        **more,
    )
    return work, rules, pool


@pytest.fixture(scope="module", autouse=True)
def short_pieces():
    """Pieces of prompts as short as the prompts of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PREFIX_TOKENS", 16)
        patch.setattr(fast, "PREFIX_TOKENS", 16)
        yield


@settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))
@given(token_runs(all_rules=False), roofs(kv=True))
@pytest.mark.slow
def test_the_fast_engine_counts_tokens_and_blocks_as_the_readable_one(run, step_time):
    check_tokens(run, step_time)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(token_runs(all_rules=True), roofs(kv=True))
@pytest.mark.slow
def test_it_follows_all_other_rules_as_the_readable_one_does(run, step_time):
    check_tokens(run, step_time)


@pytest.mark.filterwarnings("ignore:simulated step by step")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(token_runs(all_rules=True), roofs(kv=True), st.sampled_from([2, 1 << 16]))
@pytest.mark.slow
def test_a_step_time_of_your_own_is_asked_at_the_same_steps(run, step_time, log_rows):
    def steps_of_its_own(requests, prefill_tokens, kv_tokens, prefill_pairs):
        return step_time(requests, prefill_tokens, kv_tokens, prefill_pairs) + 1e-3 * (kv_tokens % 7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_LOG_ROWS", log_rows)
        check_tokens(run, steps_of_its_own)


def check_tokens(run, step_time):
    work, rules, pool = run
    fast, plain = (serve(work, rules, step_time, kv=pool) for serve in (sl.simulate, sl.reference))
    assert_same(fast, plain)
    rejected = plain.status == sl.Status.REJECTED
    assert plain.finished[~rejected].all() and set(plain.rejections) == set(np.flatnonzero(rejected))
    assert fast.segments.preempted.sum() == fast.preemptions.sum()


@pytest.mark.parametrize("scheduler", [
    sl.StaticBatching(8), sl.StaticBatching(8, streaming=True, padded=False, last="partial"),
    sl.DynamicBatching(8, 0.2), sl.ContinuousBatching(8),
], ids=lambda s: type(s).__name__)  # fmt: skip
@pytest.mark.parametrize("pots", [1, 3, None])
@pytest.mark.parametrize("per_kv", [0.0, 39.1e-9])
def test_longer_runs_with_real_lengths_agree_too(scheduler, pots, per_kv):
    answers = sl.lengths.Geometric(40)
    work = sl.poisson(9.0, 600, seed=3, prompt_tokens=sl.lengths.Uniform(10, 900), output_tokens=answers)
    step_time = sl.AffineStep(5e-3, 1e-3 / 7, 3e-5, per_kv, 8.83e-10)
    assert_same(sl.simulate(work, scheduler, step_time, pots), sl.reference(work, scheduler, step_time, pots))


@settings(max_examples=300, deadline=None)
@given(workloads(), schedulers(), POTS)
@pytest.mark.slow
def test_nothing_is_lost(workload, scheduler, pots):
    result = sl.simulate(workload, scheduler, sl.AffineStep(0.25, 0.125, 0.01), pots)
    done = result.finished
    times = [result.arrival_ns, result.scheduled_ns, result.first_token_ns, result.finish_ns]
    assert (np.diff([t[done] for t in times], axis=0) >= 0).all()
    assert (result.finish_ns[~done] == NEVER).all()
    if getattr(scheduler, "last", "") != "never":
        assert done.all()
    log = result.segments
    assert log is not None
    tokens = int((log.decode_tokens.astype(int) * log.steps).sum() + log.first_tokens.sum())
    assert tokens == result.output_tokens[done].sum()
    gaps, counts = result.itl()
    assert counts.sum() == (result.output_tokens[done] - 1).sum() and (gaps >= 0).all()
    if not getattr(scheduler, "padded", False):
        assert log.prefill_tokens.sum() == result.prompt_tokens[done].sum()
        prompts = result.prompt_tokens[done].astype(np.int64)
        assert log.prefill_pairs.sum() == (prompts * (prompts + 1) // 2).sum()
    if done.all():  # the number in system, integrated over the log and summed over the rows
        assert log.request_seconds == pytest.approx(result.e2e_s.sum(), rel=1e-9, abs=1e-9)
    if isinstance(scheduler, sl.ContinuousBatching) and pots is not None:
        assert log.running.max() <= scheduler.max_num_seqs
    steps = result.steps()
    for pot in np.unique(steps.pot):
        mine = steps.pot == pot
        assert (steps.start_ns[mine][1:] >= steps.end_ns[mine][:-1]).all()


def served(scheduler, arrivals, outputs, **more):
    work = sl.Workload.from_arrivals(arrivals, output_tokens=outputs)
    return sl.simulate(work, scheduler, more.pop("step", sl.AffineStep(1.0, 0.0)), **more)


def test_static_batches_wait_to_be_full_and_hand_over_together():
    result = served(sl.StaticBatching(2, last="partial"), [0, 3, 4], [1, 4, 2])
    assert result.scheduled_s.tolist() == [3, 3, 7]
    assert result.finish_s.tolist() == [7, 7, 9]
    assert result.ttft_s.tolist() == result.e2e_s.tolist() == [7, 4, 5]


def test_static_streaming_hands_over_each_token_but_keeps_the_seat():
    result = served(sl.StaticBatching(2, last="partial", streaming=True), [0, 3, 4], [1, 4, 2])
    assert result.finish_s.tolist() == [4, 7, 9]
    assert result.first_token_s.tolist() == [4, 4, 8]


@pytest.mark.parametrize(("last", "finish"), [("full_price", 3.4), ("partial", 3.2), ("never", np.nan)])
def test_the_last_batch_is_cooked_by_its_rule(last, finish):
    result = served(sl.StaticBatching(2, last=last), [0, 0, 1], 1, step=sl.AffineStep(1.0, 0.2))
    assert result.finish_s[:2].tolist() == [1.4, 1.4]
    np.testing.assert_allclose(result.finish_s[2], finish - 0.6, rtol=1e-12)
    assert sl.Status(result.status[2]) == (sl.Status.UNSERVED if last == "never" else sl.Status.FINISHED)


def test_a_window_runs_from_the_oldest_arrival():
    result = served(sl.DynamicBatching(3, 0.5), [0, 0.4, 0.8, 0.9, 0.95], 1, step=sl.AffineStep(0.1, 0.0))
    assert result.scheduled_s.round(9).tolist() == [0.5, 0.5, 0.95, 0.95, 0.95]


def test_a_window_that_ends_behind_a_busy_pot_starts_when_the_pot_is_free():
    result = served(sl.DynamicBatching(3, 0.5), [0, 0.6, 0.7], 1)
    assert result.scheduled_s.tolist() == [0.5, 1.5, 1.5]


def uneven(n, rate_rps, seed):
    lengths = sl.lengths.LogNormal(100, 1000, max=4000)
    return sl.poisson(rate_rps, n, seed, prompt_tokens=lengths, output_tokens=sl.lengths.Geometric(20))


@pytest.mark.parametrize("pots", [1, 3])
def test_a_bucketed_batch_is_of_one_line_and_the_oldest_ready_line_goes_first(pots):
    rules = sl.LengthBucketedBatching(4, window_s=1.5, edges=[50, 120, 400])
    work = uneven(400, 4.0, seed=6)
    result = sl.reference(work, rules, sl.AffineStep(0.02, 0.002, 1e-5), pots)
    assert result.finished.all()
    line = np.searchsorted(rules.edges, work.prompt_tokens)  # edges end their own line
    came, seated = result.arrival_ns, result.scheduled_ns
    window = round(1.5e9)
    log = result.segments
    starts = log.start_ns[log.first_tokens > 0]  # of batches, in the order in which they were formed
    batches = [np.flatnonzero(seated == at) for at in np.unique(starts)]
    assert len(batches) == len(starts), "two pots never begin at once here"
    assert {len(batch) for batch in batches} == {1, 2, 3, 4}
    for batch in batches:
        at, mine = seated[batch[0]], line[batch[0]]
        assert (line[batch] == mine).all()
        heads = {}
        for each in range(4):
            there = np.flatnonzero((line == each) & (came <= at) & (seated >= at))  # before this batch is taken
            if len(there) >= 4 or (len(there) and at >= came[there[0]] + window):
                heads[each] = there
        assert batch.tolist() == heads[mine][:4].tolist()
        assert mine == min(heads, key=lambda each: heads[each][0])


def test_buckets_by_length_waste_less_padding():
    work = uneven(2000, 30.0, seed=7)
    step = sl.AffineStep(0.02, 0.0005, 2e-5)
    mixed = sl.simulate(work, sl.DynamicBatching(8, 2.0), step)
    apart = sl.reference(work, sl.LengthBucketedBatching(8, 2.0, edges=[50, 120, 400, 1000]), step)
    wasted = [1 - work.prompt_tokens.sum() / run.segments.prefill_tokens.sum() for run in (mixed, apart)]
    assert apart.finished.all() and wasted[1] < 0.6 * wasted[0], wasted
    assert apart.duration_s < mixed.duration_s


@settings(max_examples=100, deadline=None)
@given(workloads(), st.integers(1, 6), st.sampled_from([0.0, 0.5, 3.3]), st.booleans(), POTS)
@pytest.mark.slow
def test_one_bucket_for_all_is_dynamic_batching(work, size, window_s, streaming, pots):
    step = sl.AffineStep(0.25, 0.125, 0.01)
    bucketed = sl.reference(work, sl.LengthBucketedBatching(size, window_s, streaming, edges=[30]), step, pots)
    assert_same(sl.simulate(work, sl.DynamicBatching(size, window_s, streaming), step, pots), bucketed)


def test_continuous_fills_a_free_seat_at_the_next_step():
    result = served(sl.ContinuousBatching(2), [0, 0, 0.5, 0.6], [1, 3, 1, 1])
    assert result.scheduled_s.tolist() == [0, 0, 1, 2]
    assert result.finish_s.tolist() == [1, 3, 2, 3]


def test_padding_is_charged_until_the_longest_answer_ends():
    step = sl.AffineStep(1.0, 0.5)
    padded = served(sl.StaticBatching(2), [0, 0], [1, 3], step=step)
    lean = served(sl.StaticBatching(2, padded=False, last="partial"), [0, 0], [1, 3], step=step)
    assert (padded.duration_s, lean.duration_s) == (6.0, 5.0)


def test_a_step_reads_what_the_cache_holds():
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=10, output_tokens=3)
    result = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0, 0.1, 0.01))
    assert result.finish_s[0] == pytest.approx((1 + 1 + 0.10) + (1 + 0.11) + (1 + 0.12))


def test_clients_of_a_closed_loop_wait_for_their_answer():
    work = sl.closed_loop(2, 5, seed=0, think_s=[0, 0, 1, 0, 0])
    result = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0))
    assert result.arrival_s.tolist() == [0, 0, 2, 2, 3]
    assert result.finish_s.tolist() == [1, 2, 3, 4, 5]


def chats(scheduler, **more):
    work = sl.Workload.from_arrivals([0, 1], prompt_tokens=[4, 4], output_tokens=[5, 2])
    return sl.reference(work, scheduler, sl.AffineStep(1.0, 0.0), **more)


def test_prompts_first_pause_the_running_answers():
    mixed, first = chats(sl.ContinuousBatching(4)), chats(sl.ContinuousBatching(4, prefill_first=True))
    assert mixed.finish_s.tolist() == [5, 3]
    assert first.finish_s.tolist() == [6, 3] and first.first_token_s.tolist() == [1, 2]
    assert first.itl()[0].tolist() == [1, 2] and first.itl()[1].tolist() == [4, 1]


def test_reserving_the_whole_answer_waits_where_admitting_at_once_preempts():
    at_once = chats(sl.ContinuousBatching(4), kv=sl.Blocks(11, 1))
    reserve = chats(sl.ContinuousBatching(4, reserve_whole_answer=True), kv=sl.Blocks(11, 1))
    assert at_once.scheduled_s.tolist() == [0, 1] and at_once.preemptions.tolist() == [0, 0]
    assert reserve.scheduled_s.tolist() == [0, 5] and reserve.segments.kv_blocks.max() == 8
    tight = chats(sl.ContinuousBatching(4), kv=sl.Blocks(10, 1))
    assert tight.preemptions.tolist() == [0, 1] and tight.finish_s.tolist() == [5, 6]
    assert tight.late_gaps[0].tolist() == [4 * 10**9]


def test_without_limits_tokens_are_counted_as_seats_are():
    """A budget that nobody reaches changes nothing."""
    work = sl.poisson(
        9.0, 600, seed=3, prompt_tokens=sl.lengths.Uniform(10, 900), output_tokens=sl.lengths.Geometric(9)
    )
    step = sl.AffineStep(5e-3, 1e-3 / 7, 3e-5, 1e-8)
    counted = sl.simulate(work, sl.ContinuousBatching(8, 10**7), step)
    plain = sl.reference(work, sl.ContinuousBatching(8), step)
    assert_same(counted, plain)


def test_closed_sums_of_steps_are_exact():
    @pytest.importorskip("numba").njit
    def closed(base, per_kv, base_2, per_kv_2, kv, growth, steps, gap):
        return (
            sums.span_ns(base, per_kv, kv, growth, steps),
            sums.roof_ns(base, per_kv, base_2, per_kv_2, kv, growth, steps),
            sums.steps_to(base, per_kv, base_2, per_kv_2, kv, growth, steps, gap),
        )

    rng = np.random.default_rng(0)
    crossed = 0
    for _ in range(400):
        bases = rng.integers(10**6, 10 ** int(rng.integers(7, 14)), 2).tolist()
        per_kv = rng.integers(0, 10 ** int(rng.integers(1, 9)), 2).tolist()
        kv, growth, steps = int(rng.integers(0, 10**5)), int(rng.integers(1, 1000)), int(rng.integers(1, 400))
        sides = [
            [(base + each * (kv + i * growth) + 500_000) // 1_000_000 for i in range(steps)]
            for base, each in zip(bases, per_kv, strict=True)
        ]
        roof = np.max(sides, axis=0).tolist()
        crossed += roof not in sides
        roof_of = (bases[0], per_kv[0], bases[1], per_kv[1], kv, growth)
        gap = int(rng.integers(0, sum(roof) + 1))
        first = next((k for k in range(1, steps + 1) if sum(roof[:k]) >= gap), steps)
        assert closed(*roof_of, steps, gap) == (sum(sides[0]), sum(roof), first)
    assert crossed > 5


def test_a_step_time_of_your_own_is_served_and_said_to_be_slow():
    work = sl.poisson(2.0, 50, seed=1)
    with pytest.warns(UserWarning, match="step by step"):
        mine = sl.simulate(work, sl.ContinuousBatching(4), lambda n, p, k: 0.1 + 0.01 * n)
    theirs = sl.simulate(work, sl.ContinuousBatching(4), sl.AffineStep(0.1, 0.01))
    np.testing.assert_allclose(mine.finish_s, theirs.finish_s, rtol=1e-9)


ENGINES = {
    "pots": sl.ContinuousBatching(4),
    "tokens": sl.ContinuousBatching(4, 64),
    "all rules": sl.ContinuousBatching(4, async_scheduling=True, policy="priority"),
}


@pytest.mark.parametrize("serve", [sl.simulate, sl.reference], ids=["fast", "readable"])
@pytest.mark.parametrize("scheduler", ENGINES.values(), ids=ENGINES)
def test_progress_is_reported_and_an_interruption_keeps_what_was_done(monkeypatch, scheduler, serve):
    monkeypatch.setattr(fast, "_LOG_ROWS", 64)
    monkeypatch.setattr(clock, "_REPORT_ROWS", 64)
    work = sl.poisson(1.0, 1000, seed=1, prompt_tokens=3)
    seen = []

    def stop_at_half(done, total):
        seen.append(done)
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(sl.SimulationInterrupted, match="interrupted after") as stopped:
        serve(work, scheduler, sl.AffineStep(0.1, 0.1), progress=stop_at_half)
    partial, whole = (
        stopped.value.partial,
        serve(work, scheduler, sl.AffineStep(0.1, 0.1)),
    )
    done = partial.finished
    assert len(seen) > 3 and 500 < done.sum() == seen[-1] < 1000
    np.testing.assert_array_equal(partial.finish_ns[done], whole.finish_ns[done])
    assert (partial.status[~done] == sl.Status.UNSERVED).all()


@pytest.mark.parametrize("scheduler", ENGINES.values(), ids=ENGINES)
def test_an_interruption_within_a_step_leaves_whole_steps(scheduler):
    """Ctrl-C may come anywhere; a step time of one's own is as good a place as any."""
    work = sl.poisson(3.0, 60, seed=2, prompt_tokens=3, output_tokens=4)
    calls = []

    def stopped_at(last):
        def step(requests, prefill_tokens, kv_tokens):
            calls.append(requests)
            if len(calls) == last:
                raise KeyboardInterrupt
            return 0.1 + 0.02 * requests

        return step

    whole = sl.reference(work, scheduler, stopped_at(0))
    calls.clear()
    with pytest.warns(UserWarning, match="step by step"), pytest.raises(sl.SimulationInterrupted) as stopped:
        sl.simulate(work, scheduler, stopped_at(50))
    partial = stopped.value.partial
    done = partial.finished
    assert 0 < done.sum() < 60 and 40 <= len(partial.segments) < 50
    np.testing.assert_array_equal(partial.finish_ns[done], whole.finish_ns[done])
    assert partial.finish_ns.max() <= partial.segments.end_ns[-1] and (partial.finish_ns[~done] == NEVER).all()
    np.testing.assert_array_equal(partial.segments.start_ns, whole.segments.start_ns[: len(partial.segments)])
    decoded, first = partial.segments.decode_tokens.sum(), partial.segments.first_tokens.sum()
    assert first == (partial.first_token_ns != NEVER).sum() and decoded + first >= partial.output_tokens[done].sum()


def test_a_small_log_changes_nothing(monkeypatch):
    work = sl.poisson(30.0, 400, seed=5, output_tokens=sl.lengths.Geometric(6))
    plain = sl.reference(work, sl.StaticBatching(4), sl.AffineStep(0.1, 0.1), pots=None)
    monkeypatch.setattr(fast, "_LOG_ROWS", 2)
    assert_same(sl.simulate(work, sl.StaticBatching(4), sl.AffineStep(0.1, 0.1), pots=None), plain)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: sl.AffineStep(-1, 0), r"fixed_s must be a finite number >= 0 and <= 9000; got -1"),
    (lambda: sl.AffineStep(0, 0), r"fixed_s \+ per_request_s must be at least 1e-9 s"),
    (lambda: sl.AffineStep(float("nan"), 0), r"fixed_s must be a finite number"),
    (lambda: sl.StaticBatching(0), r"batch_size must be a whole number >= 1; got 0"),
    (lambda: sl.StaticBatching(2.5), r"batch_size must be a whole number >= 1; got 2.5"),
    (lambda: sl.StaticBatching(2, last="no"), r"last must be one of .*; got 'no'"),
    (lambda: sl.StaticBatching(2, padded=False), r"padded must be True; got False"),
    (lambda: sl.DynamicBatching(2, -0.1), r"window_s must be a finite number >= 0"),
    (lambda: sl.LengthBucketedBatching(2, 0.1, edges=[]), r"edges must ascend and be at least one; got \(\)"),
    (lambda: sl.LengthBucketedBatching(2, 0.1, edges=[9, 9]), r"edges must ascend and be at least one; got \(9, 9\)"),
    (lambda: sl.LengthBucketedBatching(2, 0.1, edges=[1, 2.5]), r"edges\[1\] must be a whole number >= 0; got 2.5"),
    (lambda: sl.LengthBucketedBatching(2, 0.1, edges=9), r"edges must be a sequence of whole numbers; got 9"),
    (lambda: sl.LengthBucketedBatching(2, -1, edges=[9]), r"window_s must be a finite number >= 0"),
    (lambda: sl.ContinuousBatching(True), r"max_num_seqs must be a whole number >= 1; got True"),
    (lambda: sl.simulate([1, 2], sl.ContinuousBatching(1), sl.AffineStep(1, 0)), r"workload must be .*; got list"),
    (lambda: served(sl.ContinuousBatching(4, 3), [0], 1), r"max_num_batched_tokens must be a whole number >= 4; got 3"),
    (lambda: served(sl.ContinuousBatching(4, 8), [0], 1), r"prompt_tokens must be at least 1 .*; got 0 at request 0"),
    (lambda: served(sl.StaticBatching(1), [0], 1, kv=sl.Blocks(9)), r"kv goes with ContinuousBatching"),
    (lambda: served(sl.ContinuousBatching(1), [0], 1, kv=sl.Blocks(9), pots=2), r"pots must be 1 where tokens"),
    (lambda: sl.simulate(sl.poisson(1, 2, 3), "static", sl.AffineStep(1, 0)), r"scheduler must have .*; got 'static'"),
    (lambda: sl.simulate(sl.poisson(1, 2, 3), sl.ContinuousBatching(1), 0.4), r"step_time must be callable.*; got 0.4"),
    (lambda: sl.simulate(sl.poisson(1, 2, 3), sl.ContinuousBatching(1), sl.AffineStep(1, 0), progress=1),
     r"progress must be callable; got 1"),
    (lambda: sl.reference(sl.poisson(1, 2, 3), sl.ContinuousBatching(1), sl.AffineStep(1, 0), progress=1),
     r"progress must be callable; got 1"),
    (lambda: sl.StaticBatching(2, padded="no"), r"padded must be True or False; got 'no'"),
    (lambda: sl.ContinuousBatching(2, chunked_prefill=None), r"chunked_prefill must be True or False; got None"),
    (lambda: sl.Blocks(0), r"usable_blocks must be a whole number >= 1; got 0"),
    (lambda: served(sl.ContinuousBatching(1), [0], 1, pots=0), r"pots must be a whole number >= 1; got 0"),
    (lambda: sl.simulate(sl.Workload.from_arrivals([0], service_scale=2), sl.ContinuousBatching(1),
                         sl.AffineStep(1, 0, 0, 1)), r"service_scale must be 1 .*; got scales up to 2"),
    (lambda: sl.simulate(sl.Workload.from_arrivals([0], service_scale=1e6), sl.ContinuousBatching(1),
                         sl.AffineStep(1, 0)), r"could last 1e\+06 s"),
    (lambda: served(sl.StaticBatching(1), [0] * 20, 10**9), r"this run could last 2e\+10 s"),
    (lambda: served(sl.ContinuousBatching(1), [0], 10**9), r"this run could last 1e\+10 s"),
])  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.filterwarnings("ignore:simulated step by step")
@pytest.mark.parametrize("serve", [sl.simulate, sl.reference])
@pytest.mark.parametrize("scheduler", [sl.ContinuousBatching(2, 64), sl.ContinuousBatching(2)], ids=["tokens", "pots"])
@pytest.mark.parametrize("seconds", [0.0, 4e-10, -1.0, np.nan, np.inf])
def test_a_step_time_of_your_own_that_no_step_can_have(serve, scheduler, seconds):
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=5, output_tokens=3)
    with pytest.raises(ValueError, match=rf"step_time .* got {seconds!r} s for .*'prefill_tokens': 5, 'kv_tokens': 5"):
        serve(work, scheduler, lambda *_: seconds)


@pytest.mark.filterwarnings("ignore:simulated step by step")
def test_a_step_time_of_your_own_may_not_outlast_the_clock():
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=5, output_tokens=9)
    with pytest.raises(ValueError, match=r"this run could last 5e\+09 s"):
        sl.simulate(work, sl.ContinuousBatching(2, 64), lambda *_: 1e9)


def test_a_roofline_says_what_is_fast():
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=5, output_tokens=9)
    step = sl.roofline("llama-3.1-8b", "h100-sxm")
    with pytest.warns(UserWarning, match=r"step by step.*its sides\(\) are, less what `affine` leaves out"):
        slow = sl.simulate(work, sl.ContinuousBatching(2, 64), step)
    np.testing.assert_allclose(sl.simulate(work, sl.ContinuousBatching(2, 64), step.sides()).finish_s, slow.finish_s)


def test_a_budget_keeps_steps_of_long_prompts_within_the_clock():
    work = sl.poisson(0.01, 600, seed=1, prompt_tokens=1_000_000, output_tokens=2)
    step = sl.AffineStep(5e-3, 1e-5, 2e-5, 4e-8)
    assert sl.simulate(work, sl.ContinuousBatching(1024, 8192), step).finished.all()
    with pytest.raises(ValueError, match=r"a step of this run could last 1\.2\d*e\+04 s"):
        sl.simulate(work, sl.ContinuousBatching(1024), step)


def test_without_numba_it_still_runs_and_says_so_once():
    code = textwrap.dedent("""
        import sys, warnings
        sys.modules["numba"] = None
        import servinglab as sl
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            done = [
                sl.simulate(sl.poisson(1.0, 200, seed=1, prompt_tokens=3), rules, sl.AffineStep(0.1, 0.1), kv=kv)
                for rules, kv in CASES
            ]
        print(len(said), "numba isn't installed" in str(said[0].message), *(each.finish_ns.sum() for each in done))
    """)
    cases = "[(sl.ContinuousBatching(4), None), (sl.ContinuousBatching(4, prefix_caching=True), sl.Blocks(9, 1))]"
    child = subprocess.run(
        [sys.executable, "-c", code.replace("CASES", cases)], capture_output=True, text=True, check=True
    )
    work = sl.poisson(1.0, 200, seed=1, prompt_tokens=3)
    with_numba = [sl.simulate(work, rules, sl.AffineStep(0.1, 0.1), kv=kv) for rules, kv in eval(cases)]
    assert child.stdout.split() == ["1", "True", *(str(each.finish_ns.sum()) for each in with_numba)]
