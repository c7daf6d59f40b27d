"""The best batch: the formula in exact arithmetic, the search against trying everything, the answer elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given, settings
from hypothesis import strategies as st
from servinglab import theory
from servinglab.decide.answer import BestBatch
from servinglab.decide.formulas import formula_batch, gathering_batch
from servinglab.decide.grid_search import Axis, search
from servinglab.decide.search import SearchInterrupted, best_batch
from servinglab.metrics.percentiles import percentile
from servinglab.scheduling.blocks import Blocks
from servinglab.workload.lengths import Geometric, LogNormal

POT = sl.AffineStep(0.4, 0.02)
CHIP = sl.AffineStep(6e-3, 32e-6, 32e-6, 49e-9)


def chat(n: int, seed: int) -> sl.Workload:
    return sl.poisson(8, n, seed, prompt_tokens=LogNormal(500, 4000), output_tokens=Geometric(200))


# On paper


@given(st.integers(1, 60), st.integers(0, 90), st.integers(1, 30), st.integers(1, 400), st.integers(0, 300))
@settings(max_examples=60)
def test_the_formula_is_the_largest_batch_it_allows(rate: int, t: int, r: int, limit: int, window: int) -> None:
    """Everything in hundredths of a second and exact: W + t + r·B ≤ L with W = min(W_max, (B − 1)/λ)."""
    found = formula_batch(rate, t / 100, r / 100, limit / 100, window / 100)

    def allowed(size: int) -> bool:
        wait = min(Fraction(window), Fraction(100 * (size - 1), rate))
        return wait + t + r * size <= limit

    largest = max((size for size in range(1, 500) if allowed(size)), default=0)
    assert max(found.by_gathering, found.by_window or 0) == largest
    stable = [size for size in range(1, 10_000) if rate * (t + r * size) < 100 * size] if rate * r < 100 else []
    assert found.smallest_stable == (stable[0] if stable else None)
    assert found.batch_size == (largest if stable and largest >= stable[0] else None)


def test_the_formulas_floor_is_not_the_floats() -> None:
    assert math.floor((0.9 - 0.4 - 0.2) / 0.1) == 2
    assert formula_batch(1000, 0.2, 0.1, 0.9, max_wait_s=0.4).by_window == 3


def test_no_window_in_the_formula() -> None:
    found = formula_batch(20, 0.4, 0.02, 1.8)
    assert (found.by_window, found.by_gathering, found.smallest_stable, found.batch_size) == (None, 20, 14, 20)
    assert formula_batch(20, 0.4, 0.02, 0.3).batch_size is None
    assert formula_batch(60, 0.4, 0.02, 9).batch_size is None  # λr > 1


@pytest.mark.parametrize(("rate", "limit", "window"), [(20, 1.8, math.inf), (5, 3.0, 0.7), (100, 0.9, math.inf)])
def test_gathering_batch_is_the_largest(rate: float, limit: float, window: float) -> None:
    found = gathering_batch(rate, 0.4, 0.02, limit, window)
    p99 = {
        size: theory.gather_quantile(0.99, rate, size, window) + 0.4 + 0.02 * size
        for size in range(1, (found or 0) + 9)
    }
    assert found == max(size for size, value in p99.items() if value <= limit + 1e-9)


def test_endless_pots_are_what_gathering_knows() -> None:
    answer = best_batch(20, POT, {"e2e_s": 1.8}, pots=None, max_requests=20_000)
    assert answer.choice is not None and answer.choice.settings == {"batch_size": 16}
    assert answer.gathering == 16


# The search


@given(st.integers(1, 300), st.floats(0.5, 3), st.floats(0.5, 3), st.floats(1.0, 40))
@settings(max_examples=60)
def test_search_finds_a_valleys_floor_and_its_far_edge(low: int, left: float, right: float, limit: float) -> None:
    def height(size: float) -> float:
        return left * (low - size) if size < low else right * (size - low)

    def best(seen: Any) -> Any:
        kept = [each for each in seen if each[0] <= limit]
        return [min(seen), *([max(kept, key=lambda each: each[1])] if kept else [])]

    coarse = [1, 2, 4, 8, 15, 28, 54, 102, 196, 300]
    found = search([Axis(coarse, whole=True, finest=0)], lambda p: (height(p[0]), p), best, lambda each: each[1])
    assert min(found)[0] == 0.0
    assert max(p[0] for h, p in found if h <= limit) == max(x for x in range(1, 301) if height(x) <= limit)
    assert len(found) < 45


# Against trying everything


def by_the_law(rate: float, step: sl.AffineStep, largest: int) -> dict[int, float]:
    first = theory.min_stable_batch(rate, step.fixed_s, step.per_request_s)
    assert first is not None
    return {
        size: theory.static_batching(rate, size, step.fixed_s, step.per_request_s).latency_quantile(0.99)
        for size in range(first, largest + 1)
    }


@pytest.mark.parametrize(
    ("rate", "step", "largest"),
    [(20.0, POT, 40), (3.0, sl.AffineStep(0.1, 0.05), 30), (9.0, sl.AffineStep(0.2, 0.07), 40)],
    ids=["the kitchen", "light", "slow to cook"],
)
def test_static_is_the_exhaustive_answer(rate: float, step: sl.AffineStep, largest: int) -> None:
    p99 = by_the_law(rate, step, largest)
    lowest = min(p99.values())
    for limit in (0.97 * lowest, 1.001 * lowest, 1.1 * lowest, 1.4 * lowest):
        answer = best_batch(rate, step, {"e2e_s": limit}, max_batch_size=largest, remedies=False, max_requests=20_000)
        kept = [size for size, value in p99.items() if value <= limit]
        chosen = answer.choice.settings["batch_size"] if answer.choice else None
        assert chosen == (max(kept) if kept else None), limit
        assert answer.smallest.percentiles["e2e_s"] == pytest.approx(lowest)
        assert answer.choice is None or answer.choice.percentiles["e2e_s"] == pytest.approx(p99[chosen])


def test_the_first_failures_end_nothing() -> None:
    answer = best_batch(20, POT, {"e2e_s": 2.0}, max_batch_size=32)
    verdicts = {each.settings["batch_size"]: each.verdict for each in answer.candidates}
    assert answer.choice is not None and answer.choice.settings == {"batch_size": 18}
    assert all(verdict == "fails" for size, verdict in verdicts.items() if size < 17 or size > 18)
    interval = answer.choice.intervals["e2e_s"]  # of the simulation; the percentile is the law's
    assert abs(answer.choice.percentiles["e2e_s"] - interval.estimate) < 2 * interval.half_width
    assert answer.formula is not None and answer.formula.batch_size == 23  # on paper


def test_a_workload_is_judged_as_it_is() -> None:
    orders = sl.poisson(20, 1000, seed=42)
    answer = best_batch(orders, POT, {"e2e_s": 2.2}, max_batch_size=40)
    p99 = {size: percentile(sl.simulate(orders, sl.StaticBatching(size), POT).e2e_s, 0.99) for size in range(1, 41)}
    assert answer.choice is not None
    assert answer.choice.settings["batch_size"] == max(size for size, value in p99.items() if value <= 2.2)
    assert answer.choice.verdict == "meets"


def test_simulation_and_law_agree() -> None:
    """A roof of two equal sides is the same pot, but no law is known for it."""
    slo = {"e2e_s": 2.0}
    same = best_batch(20, sl.RoofStep(POT, POT), slo, max_batch_size=32, seed=4)
    exact = best_batch(20, POT, slo, max_batch_size=32)
    assert same.choice is not None and exact.choice is not None
    assert same.choice.how == "simulated" and exact.choice.how == "exact"
    truth = by_the_law(20, POT, 32)
    assert truth[same.choice.settings["batch_size"]] <= 2.0
    assert same.choice.verdict == "meets"
    for each in same.candidates:  # the search's short runs may be off; the long runs' intervals are not
        if each.requests > 20_000:
            interval = each.intervals["e2e_s"]
            assert abs(truth[each.settings["batch_size"]] - interval.estimate) < 2 * interval.half_width


# Nothing keeps the promise


@pytest.fixture(scope="module")
def none_fits() -> BestBatch:
    return best_batch(20, POT, {"e2e_s": 1.8}, max_batch_size=32)


def test_says_that_none_fits_and_what_would(none_fits: BestBatch) -> None:
    assert none_fits.choice is None
    assert none_fits.smallest.settings == {"batch_size": 17}
    limit, scheduler, rate = none_fits.remedies
    assert (limit.what, scheduler.what, rate.what) == ("limit", "scheduler", "rate")
    assert limit.percentiles == none_fits.smallest.percentiles
    law = theory.bulk_service(20, [POT(b) for b in range(1, scheduler.settings["max_num_seqs"] + 1)])
    assert (
        scheduler.percentiles["e2e_s"] == pytest.approx(law.latency_quantile(0.99)) and law.latency_quantile(0.99) < 1.8
    )
    assert min(by_the_law(rate.rate_rps, POT, 20).values()) <= 1.8
    assert min(by_the_law(1.03 * rate.rate_rps, POT, 20).values()) > 1.8
    text = str(none_fits)
    assert "no static batch meets this SLO" in text and "continuous batching, max_num_seqs=" in text
    assert "formula: 20" in text


def test_no_scheduler_helps_where_one_request_alone_is_late() -> None:
    answer = best_batch(20, POT, {"e2e_s": 0.41})
    assert answer.choice is None and answer.hopeless and answer.remedies == ()
    assert answer.alone["e2e_s"] == pytest.approx(0.42)
    assert "even alone" in str(answer)


def test_no_batch_keeps_up_with_such_a_rate() -> None:
    answer = best_batch(60, POT, {"e2e_s": 3.0}, max_batch_size=32)
    assert answer.choice is None and {each.how for each in answer.candidates} == {"unstable"}
    assert [each.what for each in answer.remedies] == ["rate"]
    assert answer.remedies[0].rate_rps < theory.pot_rate(32, 0.4, 0.02)
    assert "smallest" not in str(answer)


def test_what_a_pot_can_carry_is_told_though_nothing_tried_can_keep_up() -> None:
    remedy = best_batch(60, POT, {"e2e_s": 2.0}, max_batch_size=32).remedies[-1]
    assert remedy.what == "rate"
    kept = {lam: any(law(lam, B) <= 2 for B in range(1, 33)) for lam in (20.5, 22.0)}
    assert kept == {20.5: True, 22.0: False} and 20.5 < remedy.rate_rps < 22


def law(rate: float, size: int) -> float:
    """The exact P99 of the pot; infinite where it can't keep up."""
    if rate * POT(size) >= size:
        return math.inf
    return theory.static_batching(rate, size, 0.4, 0.02).latency_quantile(0.99)


def test_static_batches_of_answers_wait_for_the_longest() -> None:
    """Batches that E[T] would carry and E[max T] doesn't fail without a run; those tried are judged by simulation."""

    def answers(n: int, seed: int) -> sl.Workload:
        return sl.poisson(2, n, seed, output_tokens=Geometric(50))

    step = sl.AffineStep(0.02, 0.001)
    answer = best_batch(answers, step, {"e2e_s": 60.0}, max_batch_size=32, requests=2000, max_requests=8000)
    how = {each.settings["batch_size"]: each.how for each in answer.candidates}
    unstable = [size for size, by in how.items() if by == "unstable"]
    capacity = {size: size / (50 * step(size)) for size in how}
    assert any(capacity[size] > 2 for size in unstable)
    assert answer.choice is not None and answer.choice.how == "simulated"
    assert answer.choice.settings["batch_size"] > max(unstable)


# Two settings at once


def test_dynamic_chooses_batch_and_window_together() -> None:
    answer = best_batch(20, POT, {"e2e_s": 1.8}, "dynamic", max_batch_size=32)
    assert answer.choice is not None and answer.choice.verdict == "meets"
    other = sl.simulate(sl.poisson(20, 400_000, seed=77), answer.choice.scheduler, POT)
    assert percentile(other.e2e_s[1000:], 0.99) <= 1.8 * 1.005
    busy = other.summary().busy_fraction
    # no other pair on a grid works less and keeps the promise
    orders = sl.poisson(20, 100_000, seed=78)
    for size in (17, 20, 24, 28, 32):
        for window in (0.0, 0.3, 0.6, 0.8, 0.9, 1.1, 1.4):
            run = sl.simulate(orders, sl.DynamicBatching(size, window), POT)
            if percentile(run.e2e_s[1000:], 0.99) <= 1.78:
                assert run.summary().busy_fraction > busy - 0.015, (size, window)


@pytest.fixture(scope="module")
def chat_answer() -> BestBatch:
    return best_batch(
        chat, CHIP, {"ttft_s": 0.5, "tpot_s": 0.015}, "continuous",
        max_batch_size=128, max_num_batched_tokens=4096, kv=Blocks(4000), requests=4000, max_requests=64_000,
    )  # fmt: skip


def test_continuous_chooses_seats_and_budget_together(chat_answer: BestBatch) -> None:
    choice = chat_answer.choice
    assert choice is not None and choice.verdict == "meets"
    assert choice.settings["max_num_seqs"] <= choice.settings["max_num_batched_tokens"]
    other = sl.simulate(chat(60_000, 99), choice.scheduler, CHIP, kv=Blocks(4000)).summary()
    assert other.ttft_s.p99 <= 0.5 * 1.02
    assert other.tpot_s.p99 <= 0.015 * 1.02


def test_each_limit_rules_out_its_own(chat_answer: BestBatch) -> None:
    """Large budgets break TPOT and few seats break TTFT."""
    large = [each for each in chat_answer.candidates if each.settings["max_num_batched_tokens"] == 4096]
    most, fewest = large[-1], next(each for each in large if each.how != "unstable")
    assert most.percentiles["tpot_s"] > 0.015 and most.percentiles["ttft_s"] < 0.5
    assert fewest.percentiles["ttft_s"] > 0.5
    kept = [each for each in chat_answer.candidates if each.ratio <= 1]
    assert all(each.percentiles[name] <= limit for each in kept for name, limit in chat_answer.slo.items())


def test_a_long_run_may_undo_what_a_short_one_promised() -> None:
    answer = best_batch(
        chat, CHIP, {"tpot_s": 0.0125}, "continuous", max_batch_size=32, requests=2000, max_requests=8000
    )
    assert answer.choice is not None
    assert answer.choice.requests > 2000  # the choice met other requests than those it was found with


# The answer


def test_answers_can_be_read_by_people_and_programs(chat_answer: BestBatch, none_fits: BestBatch) -> None:
    for answer in (chat_answer, none_fits):
        text, page = str(answer), answer._repr_html_()
        assert max(map(len, text.splitlines())) < 200
        assert text.splitlines()[0].removeprefix("promise").strip().replace("<", "&lt;") in page
        content = json.loads(json.dumps(answer.to_dict()))
        assert len(content["candidates"]) == len(answer.candidates)
    assert "*" in str(chat_answer) and "max_num_batched_tokens" in str(chat_answer)


def test_progress_and_interruption() -> None:
    seen: list[tuple[int, Mapping[str, Any]]] = []

    def stop(done: int, settings: Mapping[str, Any]) -> None:
        seen.append((done, settings))
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(SearchInterrupted, match="interrupted after 5 candidates") as stopped:
        best_batch(20, POT, {"e2e_s": 1.8}, progress=stop)
    assert [done for done, _ in seen] == list(range(6)) and set(seen[0][1]) == {"batch_size"}
    assert len(stopped.value.candidates) == 5


def test_same_seed_same_answer() -> None:
    first, second = (best_batch(20, POT, {"e2e_s": 1.8}, "dynamic", max_batch_size=24, requests=5000) for _ in range(2))
    assert first.to_dict() == second.to_dict()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: best_batch(0, POT, {"e2e_s": 1}), "traffic must be a finite number > 0; got 0"),
        (lambda: best_batch(20, POT, {}), "slo must give at least one limit"),
        (lambda: best_batch(20, POT, {"p99": 1}), "slo's names must be one of"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, "greedy"), "scheduler must be one of 'static', 'dynamic'"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, prefer="luck"), "prefer must be one of"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, max_batch_size=0), "max_batch_size must be a whole number >= 1"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, kv=Blocks(9)), "go with scheduler='continuous'; got 'static'"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, requests=100), "requests must be a whole number >= 2000; got 100"),
        (lambda: best_batch(20, POT, {"e2e_s": 1}, progress=1), "progress must be callable; got 1"),  # type: ignore
        (lambda: best_batch(lambda n, seed: n, POT, {"e2e_s": 1}), "must make a Workload; got int"),  # type: ignore
        (lambda: formula_batch(20, 0.4, 0.0, 1), "per_request_s must be a finite number > 0; got 0.0"),
        (lambda: gathering_batch(-1, 0.4, 0.02, 0.3), "rate_rps must be a finite number > 0; got -1"),
        (lambda: gathering_batch(20, 0.4, 0.02, 0.3, q=7), "q must be a finite number > 0 and < 1; got 7"),
        (lambda: gathering_batch(20, 0.4, 0.02, -1), "limit_s must be a finite number > 0; got -1"),
    ],
)
def test_refuses(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_may_be_numpys() -> None:
    answer = best_batch(np.float64(20), POT, {"e2e_s": np.float32(2.0)}, max_batch_size=np.int64(20))  # type: ignore
    assert answer.choice is not None and answer.choice.settings == {"batch_size": 18}
