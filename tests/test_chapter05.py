"""Chapter 05: the numbers that it shows and claims are computed again here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
from servinglab import decide, metrics, theory
from servinglab.course import explorers, quiz
from servinglab.metrics import intervals, windows
from servinglab.metrics.percentiles import percentile
from servinglab.workload.lengths import Geometric

ROOT = Path(__file__).resolve().parents[1]
NAME = "05_percentiles_and_best_batch"
POT = sl.AffineStep(fixed_s=0.4, per_request_s=0.02)
KV = sl.kv_cache("llama-3.1-8b", "h100-sxm")
STEP = sl.roofline("llama-3.1-8b", "h100-sxm").sides()


@pytest.fixture(scope="module")
def chapter(records: Callable[[str], Records]) -> Records:
    return records("05_p99_and_the_best_batch")


@pytest.fixture(scope="module")
def laws() -> dict[int, theory.QueueLaw]:
    return {B: theory.static_batching(20, B, 0.4, 0.02) for B in range(14, 29)}


def test_four_ways_to_a_p99(chapter: Records, laws: dict[int, theory.QueueLaw]) -> None:
    exact = {B: law.latency_quantile(0.99) for B, law in laws.items()}
    gathered = {B: theory.gather_quantile(0.99, 20, B) + POT(B) for B in laws}
    paper = {B: theory.first_guest_wait(20, B) + POT(B) for B in laws}
    assert chapter.says("ch05-formula-reaches") == [max(B for B in paper if paper[B] < 2)] == [23]
    assert chapter.holds("ch05-formula-is-lowest") and all(paper[B] < gathered[B] for B in laws)
    assert chapter.says("ch05-gathering-lies-above") == [0.3]
    assert all(0.28 < gathered[B] - paper[B] < 0.4 for B in range(14, 29))
    assert chapter.says("ch05-gathering-reaches") == [max(B for B in gathered if gathered[B] <= 2)] == [19]
    assert chapter.says("ch05-lowest") == [min(exact, key=exact.get)] == [17]
    assert chapter.says("ch05-kept") == [B for B in exact if exact[B] <= 2] == [17, 18]
    assert chapter.says("ch05-merges-from") == [20] and abs(exact[19] - gathered[19]) > 0.005
    assert all(abs(exact[B] - gathered[B]) < 0.005 for B in range(20, 29))
    assert chapter.holds("ch05-gathering-keeps-with-ease") and gathered[16] < 1.8
    assert chapter.holds("ch05-many-are-late")
    shown = [chapter.number(f"ch05-late-{B}") for B in (16, 17, 18, 19, 23)]
    assert shown == [round(100 * laws[B].latency_tail(2.0), 1) for B in (16, 17, 18, 19, 23)] and shown[-1] > 6
    orders = sl.poisson(20, 100_000, seed=4)
    run = {B: percentile(sl.simulate(orders, sl.StaticBatching(B), POT).e2e_s, 0.99) for B in (16, 18, 23)}
    assert chapter.holds("ch05-simulation-follows") and all(run[B] == pytest.approx(exact[B], rel=0.03) for B in run)


def test_the_formula_by_hand(chapter: Records) -> None:
    left, slope = chapter.says("ch05-by-hand")
    raw = (20 * left + 1) / slope
    assert (
        chapter.number("ch05-formula-raw") == round(raw, 2) and chapter.number("ch05-formula") == math.floor(raw) == 23
    )
    assert chapter.number("ch05-formula-window") == round(chapter.says("ch05-first-branch")[0] / 0.02) == 55
    for window, size in ((0.5, 55), (1.2, 23)):
        found = decide.formula_batch(20, 0.4, 0.02, 2.0, window).batch_size
        assert found == size
        allowed = min(window, (size - 1) / 20) + 0.4 + 0.02 * size
        more = min(window, size / 20) + 0.4 + 0.02 * (size + 1)
        assert allowed <= 2 + 1e-9 < more
    assert chapter.says("ch05-formula-predicts") == [pytest.approx(0.5 + 0.4 + 0.02 * 55)]
    assert chapter.says("ch05-floor") == [math.floor((0.9 - 0.2 - 0.4) / 0.02)] == [14]
    assert chapter.holds("ch05-that-number")


def test_the_window_lies_both_ways(chapter: Records) -> None:
    orders = sl.poisson(20, 100_000, seed=4)
    short = sl.simulate(orders, sl.DynamicBatching(55, 0.5), POT)
    assert chapter.holds("ch05-rarely-more-than-half")
    assert (short.segments.running > 55 / 2).mean() < 0.01
    assert round(percentile(short.e2e_s, 0.99), 2) == chapter.number("ch05-dynamic-55") < 1.6
    long_s = percentile(sl.simulate(orders, sl.DynamicBatching(23, 1.2), POT).e2e_s, 0.99)
    assert chapter.holds("ch05-too-optimistic-again")
    assert round(long_s, 2) == chapter.number("ch05-dynamic-23") > 2


def test_the_explorer_says_what_the_chapter_says(chapter: Records) -> None:
    assert chapter.holds("ch05-exact-ways-agree")
    says = explorers.promise_view(8, 2.0, 1000).says
    assert says[1][1] == says[2][1] != says[0][1]
    says = explorers.promise_view(24, 2.0, 1000).says
    assert chapter.holds("ch05-queue-allows-none-at-24") and says[2][-1] == "no_batch" != says[3][-1]
    for rate in explorers.PROMISE_RATES_RPS:  # the largest batch that is right lies on the chart
        *_, exact, _ = explorers.promise_curves(rate, 1000)
        assert exact[-1] is not None and exact[-1] > max(explorers.PROMISES_S)


def test_the_explorer_shows_the_laws_numbers() -> None:
    paper, gathering, exact, sample = explorers.promise_curves(20, 1000)
    at = explorers.PROMISE_BATCHES.index(17)
    law = theory.static_batching(20, 17, 0.4, 0.02)
    assert exact[at] == pytest.approx(law.latency_quantile(0.99), rel=1e-3)
    assert paper[at] == pytest.approx(16 / 20 + POT(17), rel=1e-3)
    assert gathering[at] == pytest.approx(theory.gather_quantile(0.99, 20, 17) + POT(17), rel=1e-3)
    run = sl.simulate(sl.poisson(20, 1000, seed=1), sl.StaticBatching(17), POT)
    assert sample[at] == pytest.approx(percentile(run.e2e_s, 0.99), rel=1e-3)
    assert exact[explorers.PROMISE_BATCHES.index(13)] is sample[explorers.PROMISE_BATCHES.index(13)] is None
    view = explorers.promise_view(20, 2.0, 1000)
    assert view.charts[0].picked == 18 and view.state == "good"
    assert view.says[-1] == ("P99(B = 23) = 2.29 s: ", "misses")
    assert explorers.promise_view(20, 1.8, 1000).state == "bad"


@pytest.mark.slow
def test_the_explorer_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVINGLAB_BOOK", "1")
    assert len(explorers.explore_promise()._repr_html_()) < 200_000


def test_how_sure(chapter: Records) -> None:
    assert chapter.number("ch05-sure-100") == round(100 * (1 - 0.99**100))
    assert intervals.promise_confidence(100) == pytest.approx(1 - 0.99**100)
    assert chapter.holds("ch05-hundred-has-no-end") and chapter.holds("ch05-thousand-has-one")
    ends = {n: intervals.independent_percentile_interval(np.arange(1, n + 1), 0.99) for n in (100, 367, 368, 1000)}
    assert math.isinf(ends[100].high) and math.isinf(ends[367].high) and ends[368].high == 368
    assert ends[1000].low > 980
    needs = [next(n for n in range(1, 2000) if 0.99**n <= 0.01)]
    assert chapter.says("ch05-independent-needs") == [chapter.number("ch05-n0")] == needs == [459]


def test_one_queue_is_not_many_customers(chapter: Records, laws: dict[int, theory.QueueLaw]) -> None:
    assert chapter.says("ch05-tests-drawn") == [40, 1000]
    assert chapter.says("ch05-true-p99s") == [round(laws[B].latency_quantile(0.99), 2) for B in (15, 18)]
    assert chapter.says("ch05-busy-at-15") == [round(100 * 20 * POT(15) / 15)] == [93]
    steady, shown = sl.poisson(20, 420_000, seed=5), {}
    for B in (15, 18):
        latency_s = sl.simulate(steady, sl.StaticBatching(B), POT).e2e_s[20_000:].reshape(-1, 1000)
        found = [intervals.independent_percentile_interval(part, 0.99) for part in latency_s[:40]]
        truth = laws[B].latency_quantile(0.99)
        shown[B] = sum(truth not in each for each in found), found
    assert shown[15][0] >= 36 and 8 <= shown[18][0] <= 16
    assert chapter.holds("ch05-nearly-all-miss") and chapter.holds("ch05-a-third-misses")
    low, high = chapter.says("ch05-intervals-lie-between")
    assert min(each.low for each in shown[15][1]) > low == 1.6 and max(each.high for each in shown[15][1]) < high == 3.5


def test_the_island(chapter: Records) -> None:
    least, low, high = chapter.says("ch05-island")
    assert chapter.holds("ch05-island-has-no-holes")
    assert chapter.holds("ch05-fewer-seats-fail-ttft") and chapter.holds("ch05-tiny-budget-fails-ttft")
    assert chapter.holds("ch05-large-budgets-fail-tpot")
    (tiny,), (large,) = chapter.says("ch05-tiny-budget"), chapter.says("ch05-large-budgets-from")
    chats = sl.poisson(7, 5000, seed=3, prompt_tokens=2000, output_tokens=Geometric(500))
    for seats in (32, 48, 64, 80, 96, 128, 192, 256):
        for budget in (256, 384, 512, 768, 1024, 2048, 4096, 8192):
            run = sl.simulate(chats, sl.ContinuousBatching(seats, budget), STEP, kv=KV)
            ttft = percentile(run.ttft_s, 0.99) <= 0.5
            tpot = percentile(run.tpot_s[run.output_tokens > 1], 0.99) <= 0.02
            assert (ttft and tpot) == (seats >= least and low <= budget <= high), (seats, budget)
            if budget == tiny:
                assert tpot and not ttft
            if budget >= large and seats >= least:
                assert not tpot
            if seats < least:
                assert not ttft


def test_limits_that_are_broken_together(chapter: Records) -> None:
    assert chapter.holds("ch05-the-same-break-both") and chapter.holds("ch05-more-than-the-product")
    assert chapter.holds("ch05-between-the-bounds")
    n, rng = 20_000, np.random.default_rng(7)
    answers = np.where(rng.random(n) < 0.25, 1, rng.geometric(1 / 500, n))
    work = sl.poisson(9, n, seed=3, prompt_tokens=2000, output_tokens=answers)
    run = sl.simulate(work, sl.ContinuousBatching(96, 2048), STEP, kv=KV)
    several = run.output_tokens > 1
    late_first, late_rest = run.ttft_s[several] > 0.5, run.tpot_s[several] > 0.025
    assert np.corrcoef(late_first, late_rest)[0, 1] > 0.2
    good = metrics.good_requests(run, {"ttft_s": 0.5, "tpot_s": 0.025}).mean()
    kept = (run.ttft_s <= 0.5).mean(), ((run.tpot_s <= 0.025) | ~several).mean()
    shown = chapter.number("ch05-joint"), chapter.number("ch05-product")
    assert shown == pytest.approx((100 * good, 100 * kept[0] * kept[1]), abs=0.05)
    assert sum(kept) - 1 <= good <= min(kept) and good - kept[0] * kept[1] > 0.02


def test_parts_and_their_sum(chapter: Records) -> None:
    assert chapter.holds("ch05-each-part-is-fine") and chapter.says("ch05-their-sum-is-not") == [1]
    parts = (np.random.default_rng(1).random((3, 100_000)) < 0.006).astype(float)
    assert [percentile(part, 0.99) for part in parts] == [0, 0, 0] and percentile(parts.sum(axis=0), 0.99) == 1


def test_a_window_that_sees_the_stall(chapter: Records) -> None:
    came_s = sl.poisson(20, 12_000, seed=3).arrival_s
    scale = np.ones(len(came_s))
    scale[np.searchsorted(came_s, 300)] = 60
    run = sl.simulate(sl.Workload.from_arrivals(came_s, service_scale=scale), sl.ContinuousBatching(32), POT)
    steps_s = (run.segments.end_ns - run.segments.start_ns) / 1e9 / run.segments.steps
    assert chapter.says("ch05-stall") == [pytest.approx(steps_s.max(), abs=2)]
    seen = windows.windowed_percentile(run, window_s=10)
    at = int(np.searchsorted(seen.end_s, 300))
    assert seen.value_s[at : at + 5] == pytest.approx(chapter.says("ch05-climbs"), abs=0.3)
    before_s, after_s = chapter.says("ch05-finished-show")
    assert seen.finished_only_s[at + 1] == pytest.approx(before_s, abs=0.1)
    assert chapter.holds("ch05-three-windows-show-nothing") and np.isnan(seen.finished_only_s[at + 2 : at + 5]).all()
    assert seen.finished_only_s[at + 5] == pytest.approx(after_s, abs=0.5)


def test_the_exercises_answers(chapter: Records) -> None:
    left, slope = chapter.says("ch05-slow-by-hand")
    formula = decide.formula_batch(10, 0.4, 0.02, 2.0).batch_size
    kept = [B for B in range(6, formula + 1) if theory.static_batching(10, B, 0.4, 0.02).latency_quantile(0.99) <= 2]
    assert formula == chapter.number("ch05-slow-formula") == math.floor((10 * left + 1) / slope)
    assert max(kept) == chapter.number("ch05-slow-best") and chapter.holds("ch05-slow-gathering-is-right")
    assert max(kept) == decide.gathering_batch(10, 0.4, 0.02, 2.0) < formula


def test_the_quiz_by_hand() -> None:
    formula, samples, window, stay, busy = quiz.load("ch05")
    for v in formula.variants:
        g = v.given

        def fits(B: float, g: dict = g) -> bool:
            wait = min(g["window_s"], (B - 1) / g["rate_rps"])
            return wait + g["fixed_s"] + g["per_request_s"] * B <= g["limit_s"] + 1e-9

        assert fits(v.answer) and not any(fits(v.answer + more) for more in range(1, 200))
        assert v.answer > g["rate_rps"] * (g["fixed_s"] + g["per_request_s"] * v.answer), "it can keep up"
    for v in samples.variants:
        share, chance = 1 - v.given["late"] / 100, 1 - v.given["sure"] / 100
        assert share**v.answer <= chance + 1e-12 < share ** (v.answer - 1)
    full = 0
    for v in window.variants:
        g = v.given
        orders = sl.Workload.from_arrivals([k * g["gap_s"] for k in range(g["batch"])])
        run = sl.simulate(orders, sl.DynamicBatching(g["batch"], g["window_s"]), POT)
        assert run.wait_s[2] == pytest.approx(v.answer, abs=1e-6) and v.answer > g["gap_s"]
        full += v.wrong["first"] < g["window_s"]
    assert 4 <= full <= len(window.variants) - 4, "both the window and the full batch come first"
    for v in stay.variants:
        g = v.given
        assert g["rate"] * v.answer * g["held"] == g["cache"]
    for v in busy.variants:
        g = v.given
        step_s = g["fixed_s"] + g["per_request_s"] * g["batch"]
        assert v.answer == pytest.approx(100 * step_s * g["rate_rps"] / g["batch"]) and v.answer < 100
