"""Chapter 01 and its primer: the numbers that they show and claim are computed again here, in another way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
from servinglab import theory
from servinglab.metrics.percentiles import percentile

RATE_RPS, FIXED_S, PER_REQUEST_S, LIMIT_S = 20, 0.4, 0.02, 1.8
POT = sl.AffineStep(FIXED_S, PER_REQUEST_S)
SIZES = range(1, 33)
STABLE = range(14, 33)


@pytest.fixture(scope="module")
def chapter(records: Callable[[str], Records]) -> Records:
    return records("01_night_kitchen")


@pytest.fixture(scope="module")
def primer(records: Callable[[str], Records]) -> Records:
    return records("primer")


@pytest.fixture(scope="module")
def arrivals_s() -> list[float]:
    """The demo's, drawn as it draws them."""
    rng = random.Random(42)
    return list(accumulate(rng.expovariate(1 / 0.05) for _ in range(1000)))


@pytest.fixture(scope="module")
def exact_s() -> dict[int, float]:
    return {size: _exact(size) for size in STABLE}


@pytest.fixture(scope="module")
def long_orders() -> sl.Workload:
    return sl.poisson(RATE_RPS, 400_000, seed=3)


def _exact(size: int, pots: int | None = 1) -> float:
    return theory.static_batching(RATE_RPS, size, FIXED_S, PER_REQUEST_S, pots=pots).latency_quantile(0.99)


def _simulated(orders: sl.Workload, scheduler: sl.StaticBatching | sl.ContinuousBatching) -> float:
    return percentile(sl.simulate(orders, scheduler, POT).e2e_s, 0.99)


def _served(arrivals_s: Sequence[float], size: int, pots: int | None = 1) -> list[float]:
    """Latencies by a loop of this test's own: slices, and a list of the moments at which pots are free."""
    free_s = [0.0] * (pots or 0)
    latencies_s: list[float] = []
    for first in range(0, len(arrivals_s), size):
        batch = arrivals_s[first : first + size]
        begin_s = max(batch[-1], min(free_s)) if free_s else batch[-1]
        end_s = begin_s + FIXED_S + PER_REQUEST_S * size
        if free_s:
            free_s[free_s.index(min(free_s))] = end_s
        latencies_s += [end_s - came_s for came_s in batch]
    return latencies_s


def _p99(latencies_s: Sequence[float]) -> float:
    """Of a multiple of 100 values: the place with exactly 99 % at or below it."""
    assert len(latencies_s) % 100 == 0
    return sorted(latencies_s)[99 * len(latencies_s) // 100 - 1]


def test_throughput_figure_and_paper_estimate(chapter: Records) -> None:
    assert chapter.says("ch01-figure-limit") == [chapter.number("ch01-limit")] == [1 / PER_REQUEST_S]
    below, above = map(int, chapter.says("ch01-crossing"))
    assert above == below + 1 and below / POT(below) < RATE_RPS < above / POT(above)

    (answer,) = chapter.says("ch01-paper-answer")
    paper_s = [(size - 1) / RATE_RPS + POT(size) for size in (20, 21)]
    assert answer == 20 and paper_s[0] <= LIMIT_S < paper_s[1]
    assert [chapter.number(f"ch01-paper-{size}") for size in (20, 21)] == pytest.approx(paper_s)


def test_the_sample_and_the_published_answer(chapter: Records, arrivals_s: list[float]) -> None:
    one = {size: _p99(_served(arrivals_s, size)) for size in SIZES}
    shown = [chapter.number(f"ch01-sample-{size}") for size in (1, 10, 14, 15, 20)]
    assert shown == [round(one[size], 3) for size in (1, 10, 14, 15, 20)] == [363.643, 8.075, 1.966, 1.823, 2.075]
    assert min(one, key=one.get) == chapter.number("ch01-sample-best") == chapter.says("ch01-floors")[0] == 15
    assert chapter.holds("ch01-batch-1-is-worst") and max(one, key=one.get) == 1
    assert chapter.holds("ch01-one-pot-has-none") and min(one.values()) > LIMIT_S

    endless = {size: _p99(_served(arrivals_s, size, pots=None)) for size in SIZES}
    assert round(endless[15], 3) == chapter.number("ch01-demo-p99") == 1.746
    assert max(s for s, p in endless.items() if p <= LIMIT_S) == chapter.number("ch01-endless-sample-best") == 15
    last_s = max(map(sum, zip(arrivals_s[-10:], _served(arrivals_s, 15, pots=None)[-10:], strict=True)))
    assert round(1000 / last_s, 2) == chapter.number("ch01-demo-rps") == 18.71


def test_the_published_rule_for_the_percentile(chapter: Records) -> None:
    for n, picked, right in ((1000, 990, 990), (1050, 1039, 1040)):
        ranks = range(1, n + 1)
        assert ranks[int(n * 0.99) - 1] == picked
        assert next(rank for rank in ranks if 100 * rank >= 99 * n) == right == percentile(ranks, 0.99)
    assert chapter.says("ch01-index-rule") == [990, 1039, 1040]


def test_the_valley(chapter: Records, exact_s: dict[int, float], long_orders: sl.Workload) -> None:
    best = min(exact_s, key=exact_s.get)
    assert best == chapter.number("ch01-best") and exact_s[best] > LIMIT_S
    long_s = {size: _simulated(long_orders, sl.StaticBatching(size)) for size in STABLE}
    assert chapter.says("ch01-floors")[1:] == [min(long_s, key=long_s.get), best] == [17, 17]
    assert chapter.holds("ch01-none-reaches-the-slo") and long_s[17] > LIMIT_S
    assert chapter.holds("ch01-long-run-is-near-theory")
    for size in range(17, 33):
        assert long_s[size] == pytest.approx(exact_s[size], rel=0.015)
    assert chapter.holds("ch01-steep-side-differs") and abs(long_s[14] - exact_s[14]) > 0.05 * exact_s[14]

    assert chapter.holds("ch01-falls-then-rises")
    assert exact_s[14] > exact_s[15] > exact_s[16] > exact_s[17] < exact_s[18] < exact_s[32]
    shown = [chapter.number(f"ch01-exact-{size}") for size in (14, 15, 17, 20, 32)]
    assert shown == [round(exact_s[size], 3) for size in (14, 15, 17, 20, 32)]


def test_the_three_rules(chapter: Records, exact_s: dict[int, float], long_orders: sl.Workload) -> None:
    endless = [_exact(size, pots=None) for size in SIZES]
    assert chapter.holds("ch01-endless-rises") and endless == sorted(endless)
    assert chapter.says("ch01-endless-passes") == [sum(p <= LIMIT_S for p in endless)] == [16]

    take_s = [_simulated(long_orders, sl.ContinuousBatching(size)) for size in STABLE]
    assert chapter.says("ch01-take-starts") == [STABLE[0]] and take_s[0] > LIMIT_S > take_s[-1]
    assert chapter.holds("ch01-take-falls") and all(later < sooner + 0.005 for sooner, later in pairwise(take_s))
    assert chapter.says("ch01-take-level") == [1.54] * 2 and take_s[-8:] == pytest.approx([1.54] * 8, abs=0.02)

    assert chapter.says("ch01-one-pot-best") == [min(exact_s, key=exact_s.get)]
    assert chapter.holds("ch01-two-pots-move-left") and chapter.number("ch01-two-best") == 7
    assert _exact(7, pots=2) < _exact(6, pots=2) and _exact(7, pots=2) < _exact(8, pots=2) < _exact(17, pots=2) / 1.5


def test_the_lines_that_grow(chapter: Records) -> None:
    orders = sl.poisson(RATE_RPS, 12_000, seed=3)
    inside = {}
    assert chapter.says("ch01-loads") == [round(RATE_RPS * POT(size) / size, 2) for size in (10, 13, 17)]
    for size in (10, 13, 17):
        run = sl.simulate(orders, sl.StaticBatching(size), POT)
        at_s = np.arange(1, 600)
        inside[size] = np.searchsorted(run.arrival_s, at_s, "right") - np.searchsorted(run.finish_s, at_s, "right")
    assert chapter.holds("ch01-straight-to-two-thousand")
    assert 1800 < inside[10][-1] < 2200 and np.corrcoef(np.arange(1, 600), inside[10])[0, 1] > 0.99
    assert chapter.holds("ch01-drifts-to-two-hundred") and 150 < inside[13][-1] < 250
    assert chapter.holds("ch01-below-a-hundred") and inside[17].max() < 100


def test_the_load_tests(chapter: Records) -> None:
    capacity = 15 / POT(15)
    assert chapter.says("ch01-flat") == [round(capacity), round(capacity, 1)] == [21, 21.4]
    assert chapter.holds("ch01-diagonal-then-flat")
    for rate in range(3, 31, 3):
        run = sl.simulate(sl.poisson(rate, 700 * rate, seed=rate), sl.StaticBatching(15), POT)
        completed = float((run.finish_s <= 600).sum()) / 600
        assert completed == pytest.approx(min(rate, capacity), rel=0.04)
        assert completed == pytest.approx(chapter.number(f"ch01-completed-{rate}"), abs=0.051)


def test_the_animation_has_what_the_text_says(chapter: Records) -> None:
    assert chapter.holds("ch01-twelve-orders") and chapter.holds("ch01-one-to-five-steps")
    assert chapter.holds("ch01-four-seats")


def test_the_primer(primer: Records) -> None:
    assert primer.number("primer-gather") == 14 / RATE_RPS
    ranks = [percentile(range(1, n + 1), 0.99) for n in (1000, 50, 200)]
    assert primer.says("primer-ranks") + primer.says("primer-rank-of-200") == ranks == [990, 50, 198]

    latency_s = sl.simulate(sl.poisson(20, 20_000, seed=3), sl.StaticBatching(17), POT).e2e_s
    assert primer.says("primer-spread") == [20_000, round(latency_s.min(), 2)] == [20_000, 0.74]
    assert primer.holds("primer-over-two-seconds") and latency_s.max() > 2
    assert [latency_s.mean(), percentile(latency_s, 0.5)] == pytest.approx(primer.says("primer-centre"), abs=0.05)
