"""Chapter 05: what its words and alternative texts claim is computed again here."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from servinglab import decide, metrics, theory
from servinglab.course import explorers, quiz
from servinglab.grading.notebooks import read_notebook
from servinglab.metrics import intervals, windows
from servinglab.metrics.percentiles import percentile
from servinglab.workload.lengths import Geometric

ROOT = Path(__file__).resolve().parents[1]
NAME = "05_percentiles_and_best_batch"
POT = sl.AffineStep(fixed_s=0.4, per_request_s=0.02)
KV = sl.kv_cache("llama-3.1-8b", "h100-sxm")
STEP = sl.roofline("llama-3.1-8b", "h100-sxm").sides()


@pytest.fixture(scope="module")
def chapter() -> str:
    """The page as one line."""
    return " ".join((ROOT / "chapters" / "05_p99_and_the_best_batch.md").read_text("utf-8").split())


@pytest.fixture(scope="module")
def laws() -> dict[int, theory.QueueLaw]:
    return {B: theory.static_batching(20, B, 0.4, 0.02) for B in range(14, 29)}


def test_four_ways_to_a_p99(chapter: str, laws: dict[int, theory.QueueLaw]) -> None:
    exact = {B: law.latency_quantile(0.99) for B, law in laws.items()}
    gathered = {B: theory.gather_quantile(0.99, 20, B) + POT(B) for B in laws}
    paper = {B: theory.first_guest_wait(20, B) + POT(B) for B in laws}
    assert "formula's line lies lowest and reaches 2 s only after 23" in chapter
    assert paper[23] < 2 < paper[24] and all(paper[B] < gathered[B] for B in laws)
    assert "Exact gathering lies 0.3 s above it and reaches 2 s after 19" in chapter
    assert all(0.28 < gathered[B] - paper[B] < 0.4 for B in range(14, 29)) and gathered[19] < 2 < gathered[20]
    assert "falls steeply to its lowest point at 17, keeps 2 s at 17 and 18 only, and from 20 on merges" in chapter
    assert min(exact, key=exact.get) == 17 and [B for B in exact if exact[B] <= 2] == [17, 18]
    assert all(abs(exact[B] - gathered[B]) < 0.005 for B in range(20, 29))
    assert "At 16 orders gathering and cooking would keep the promise with ease" in chapter and gathered[16] < 1.8
    assert "late instead of 1 %" in chapter and laws[23].latency_tail(2.0) > 0.06
    orders = sl.poisson(20, 100_000, seed=4)
    run = {B: percentile(sl.simulate(orders, sl.StaticBatching(B), POT).e2e_s, 0.99) for B in (16, 18, 23)}
    assert "The simulation follows it" in chapter and all(run[B] == pytest.approx(exact[B], rel=0.03) for B in run)


def test_the_formula_by_hand(chapter: str) -> None:
    assert r"$(20 \cdot 1.6 + 1)/1.4$" in chapter and decide.formula_batch(20, 0.4, 0.02, 2.0).batch_size == 23
    assert "first branch gives $1.1/0.02$" in chapter
    for window, size in ((0.5, 55), (1.2, 23)):
        found = decide.formula_batch(20, 0.4, 0.02, 2.0, window).batch_size
        assert found == size
        allowed = min(window, (size - 1) / 20) + 0.4 + 0.02 * size
        more = min(window, size / 20) + 0.4 + 0.02 * (size + 1)
        assert allowed <= 2 + 1e-9 < more
    assert "predicts 2.0 s" in chapter
    assert "whose floor is 14" in chapter and math.floor((0.9 - 0.2 - 0.4) / 0.02) == 14


def test_the_window_lies_both_ways(chapter: str) -> None:
    orders = sl.poisson(20, 100_000, seed=4)
    short = sl.simulate(orders, sl.DynamicBatching(55, 0.5), POT)
    assert "a batch that rarely holds more than half as many" in chapter
    assert (short.segments.running > 55 / 2).mean() < 0.01
    assert percentile(short.e2e_s, 0.99) < 1.6
    assert "too optimistic again" in chapter
    assert percentile(sl.simulate(orders, sl.DynamicBatching(23, 1.2), POT).e2e_s, 0.99) > 2


def test_the_explorer_says_what_the_chapter_says(chapter: str) -> None:
    assert "At 8 orders a second the two exact ways agree" in chapter
    says = explorers.promise_view(8, 2.0, 1000).says
    assert says[1][1] == says[2][1] != says[0][1]
    says = explorers.promise_view(24, 2.0, 1000).says
    assert "with the queue no batch keeps 2 s" in chapter and says[2][-1] == "no_batch"
    assert "look at what the sample allows" in chapter and says[3][-1] != "no_batch"
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


def test_the_explorer_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVINGLAB_BOOK", "1")
    assert len(explorers.explore_promise()._repr_html_()) < 200_000


def test_how_sure(chapter: str) -> None:
    assert "After 100 clean requests you may be" in chapter
    assert intervals.promise_confidence(100) == pytest.approx(1 - 0.99**100)
    assert "A hundred values have no upper end" in chapter and "A thousand do" in chapter
    ends = {n: intervals.independent_percentile_interval(np.arange(1, n + 1), 0.99) for n in (100, 367, 368, 1000)}
    assert math.isinf(ends[100].high) and math.isinf(ends[367].high) and ends[368].high == 368
    assert "among the slowest 2 %" in chapter and ends[1000].low > 980


def test_one_queue_is_not_many_customers(chapter: str, laws: dict[int, theory.QueueLaw]) -> None:
    assert "scatter between 1.6 and 3.5 s and nearly all miss 2.57 s" in chapter
    assert "about a third miss 1.95 s" in chapter
    steady, shown = sl.poisson(20, 420_000, seed=5), {}
    for B in (15, 18):
        latency_s = sl.simulate(steady, sl.StaticBatching(B), POT).e2e_s[20_000:].reshape(-1, 1000)
        found = [intervals.independent_percentile_interval(part, 0.99) for part in latency_s[:40]]
        truth = laws[B].latency_quantile(0.99)
        shown[B] = sum(truth not in each for each in found), found
    assert shown[15][0] >= 36 and 8 <= shown[18][0] <= 16
    assert min(each.low for each in shown[15][1]) > 1.6 and max(each.high for each in shown[15][1]) < 3.5


def test_the_island(chapter: str) -> None:
    assert "80 or more seats and budgets of 384 to 768 tokens" in chapter
    chats = sl.poisson(7, 5000, seed=3, prompt_tokens=2000, output_tokens=Geometric(500))
    for seats in (32, 48, 64, 80, 96, 128, 192, 256):
        for budget in (256, 384, 512, 768, 1024, 2048, 4096, 8192):
            run = sl.simulate(chats, sl.ContinuousBatching(seats, budget), STEP, kv=KV)
            ttft = percentile(run.ttft_s, 0.99) <= 0.5
            tpot = percentile(run.tpot_s[run.output_tokens > 1], 0.99) <= 0.02
            assert (ttft and tpot) == (seats >= 80 and 384 <= budget <= 768), (seats, budget)
            if budget == 256:
                assert tpot and not ttft, "with 256 tokens TTFT fails too"
            if budget >= 1024 and seats >= 80:
                assert not tpot, "with 1,024 tokens and more TPOT fails"
            if seats <= 64:
                assert not ttft, "with fewer seats TTFT fails"


def test_limits_that_are_broken_together(chapter: str) -> None:
    assert "so the same requests break both limits" in chapter
    n, rng = 20_000, np.random.default_rng(7)
    answers = np.where(rng.random(n) < 0.25, 1, rng.geometric(1 / 500, n))
    work = sl.poisson(9, n, seed=3, prompt_tokens=2000, output_tokens=answers)
    run = sl.simulate(work, sl.ContinuousBatching(96, 2048), STEP, kv=KV)
    several = run.output_tokens > 1
    late_first, late_rest = run.ttft_s[several] > 0.5, run.tpot_s[several] > 0.025
    assert np.corrcoef(late_first, late_rest)[0, 1] > 0.2
    good = metrics.good_requests(run, {"ttft_s": 0.5, "tpot_s": 0.025}).mean()
    kept = (run.ttft_s <= 0.5).mean(), ((run.tpot_s <= 0.025) | ~several).mean()
    assert sum(kept) - 1 <= good <= min(kept) and good - kept[0] * kept[1] > 0.02


def test_parts_and_their_sum(chapter: str) -> None:
    assert "Let three parts each stall for 1 s in 0.6 % of the requests" in chapter
    parts = (np.random.default_rng(1).random((3, 100_000)) < 0.006).astype(float)
    assert [percentile(part, 0.99) for part in parts] == [0, 0, 0] and percentile(parts.sum(axis=0), 0.99) == 1


def test_a_window_that_sees_the_stall(chapter: str) -> None:
    assert "it climbs at once, from 1.5 s to 10, 20, 30 and 40 s" in chapter
    assert "it shows 1.5 s in the first window of the stall, nothing for three windows, and jumps to 40 s" in chapter
    assert "stall for 40 s after five minutes" in chapter
    came_s = sl.poisson(20, 12_000, seed=3).arrival_s
    scale = np.ones(len(came_s))
    scale[np.searchsorted(came_s, 300)] = 60
    run = sl.simulate(sl.Workload.from_arrivals(came_s, service_scale=scale), sl.ContinuousBatching(32), POT)
    steps_s = (run.segments.end_ns - run.segments.start_ns) / 1e9 / run.segments.steps
    assert steps_s.max() == pytest.approx(40, abs=2)
    seen = windows.windowed_percentile(run, window_s=10)
    at = int(np.searchsorted(seen.end_s, 300))
    assert seen.value_s[at : at + 5] == pytest.approx([1.5, 10, 20, 30, 40], abs=0.3)
    assert seen.finished_only_s[at + 1] == pytest.approx(1.5, abs=0.1)
    assert np.isnan(seen.finished_only_s[at + 2 : at + 5]).all()
    assert seen.finished_only_s[at + 5] == pytest.approx(40, abs=0.5)


def test_the_exercises_answers(chapter: str) -> None:
    assert r"$(10 \cdot 1.6 + 1)/1.2$" in chapter
    formula = decide.formula_batch(10, 0.4, 0.02, 2.0).batch_size
    kept = [B for B in range(6, formula + 1) if theory.static_batching(10, B, 0.4, 0.02).latency_quantile(0.99) <= 2]
    assert "the same as the truth" in chapter
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


def test_the_assignment_s_examples_are_right() -> None:
    answers: dict = {}
    for cell in read_notebook(ROOT / "solutions" / NAME / f"{NAME}.ipynb").cells:
        if cell.cell_type == "code" and "BEGIN SOLUTION" in cell.source:
            exec(cell.source, answers)
    assert [answers["percentile"]([30, 10, 40, 20], p) for p in (75, 76)] == [30, 40]
    assert answers["interval_ranks"](1000, 0.99, 0.95) == [983, 997]
    needed = [
        answers["samples_needed"](*each) for each in ((0, 0.99, 0.99, 1), (1, 0.99, 0.99, 1), (0, 0.99, 0.99, 6.5))
    ]
    assert needed == [459, 662, 2984]
    assert round(answers["gathering_p99"](20, 15), 5) == 0.99668 == round(theory.gather_quantile(0.99, 20, 15), 5)
    assert answers["best_batch"](20, 0.4, 0.02, 2.0, 1.2, [None, 2.4, 1.9, 1.8, 2.1]) == [23, 4]
    log = [[0, 0.5, 2.5, 21], [1, 1.4, 1.4, 1], [2, None, None, 0]]
    assert answers["good_fraction"](log, 1, 0.1) == pytest.approx(2 / 3)
    assert answers["windowed_percentile"]([5, 8, 21], [12, 25, 22], 10, 20, 99) == 12


def test_the_assignment_is_where_the_chapter_says(chapter: str) -> None:
    paths = re.findall(r"(exercises/\S+\.ipynb)", chapter)
    assert paths and all((ROOT / path).is_file() for path in paths)
