"""Chapter 01 and its primer: what their words and alternative texts claim is computed again here."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from servinglab import theory
from servinglab.metrics.percentiles import percentile

RATE_RPS, FIXED_S, PER_REQUEST_S, LIMIT_S = 20, 0.4, 0.02, 1.8
POT = sl.AffineStep(FIXED_S, PER_REQUEST_S)
SIZES = range(1, 33)
STABLE = range(14, 33)


@pytest.fixture(scope="module")
def chapter() -> str:
    return _words("01_night_kitchen.md")


@pytest.fixture(scope="module")
def primer() -> str:
    return _words("primer.md")


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


def _words(name: str) -> str:
    """A page as one line."""
    text = (Path(__file__).resolve().parents[1] / "chapters" / name).read_text(encoding="utf-8")
    return " ".join(text.split())


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


def test_throughput_figure_and_paper_estimate(chapter: str) -> None:
    assert (
        "towards the limit of 50 a second; it crosses the arrival rate of 20 a second between batches of 13 and 14"
        in chapter
    )
    assert 1 / PER_REQUEST_S == 50
    assert 13 / POT(13) < 20 < 14 / POT(14)

    assert "On paper, then, the answer is 20." in chapter
    paper_s = [(size - 1) / RATE_RPS + POT(size) for size in (20, 21)]
    assert paper_s[0] <= LIMIT_S < paper_s[1]


def test_the_sample_and_the_published_answer(chapter: str, arrivals_s: list[float]) -> None:
    one = {size: _p99(_served(arrivals_s, size)) for size in SIZES}
    assert [round(one[size], 3) for size in (1, 10, 14, 15, 16, 20)] == [363.643, 8.075, 1.966, 1.823, 1.848, 2.075]
    assert "The sample is lowest at 15" in chapter and min(one, key=one.get) == 15
    assert "That is the worst batch of all." in chapter and max(one, key=one.get) == 1
    assert "With one pot there is none in either." in chapter and min(one.values()) > LIMIT_S

    endless = {size: _p99(_served(arrivals_s, size, pots=None)) for size in SIZES}
    assert round(endless[15], 3) == 1.746 and max(s for s, p in endless.items() if p <= LIMIT_S) == 15
    assert (
        round(1000 / max(map(sum, zip(arrivals_s[-10:], _served(arrivals_s, 15, pots=None)[-10:], strict=True))), 2)
        == 18.71
    )


def test_the_published_rule_for_the_percentile(chapter: str) -> None:
    assert (
        "For 1,000 values it picks the 990th, which is right. For 1,050 it picks the 1,039th where P99 is the 1,040th"
        in chapter
    )
    for n, picked, right in ((1000, 990, 990), (1050, 1039, 1040)):
        ranks = range(1, n + 1)
        assert ranks[int(n * 0.99) - 1] == picked
        assert next(rank for rank in ranks if 100 * rank >= 99 * n) == right == percentile(ranks, 0.99)


def test_the_valley(chapter: str, exact_s: dict[int, float], long_orders: sl.Workload) -> None:
    assert "the long run and the theory at 17, and none of the three reaches 1.8 s" in chapter
    assert min(exact_s, key=exact_s.get) == 17 and exact_s[17] > LIMIT_S
    long_s = {size: _simulated(long_orders, sl.StaticBatching(size)) for size in STABLE}
    assert min(long_s, key=long_s.get) == 17 and long_s[17] > LIMIT_S
    for size in range(17, 33):
        assert long_s[size] == pytest.approx(exact_s[size], rel=0.015)
    assert "On the steep side the two still differ: at 14 orders" in chapter
    assert abs(long_s[14] - exact_s[14]) > 0.05 * exact_s[14]

    assert "at batch 14 to {glue:text}`ch01-exact-17` s at 17 before it rises" in chapter
    assert exact_s[14] > exact_s[15] > exact_s[16] > exact_s[17] < exact_s[18] < exact_s[32]


def test_the_three_rules(chapter: str, exact_s: dict[int, float], long_orders: sl.Workload) -> None:
    assert "With endless pots it rises all the way and passes 1.8 s after 16." in chapter
    endless = [_exact(size, pots=None) for size in SIZES]
    assert endless == sorted(endless) and endless[15] <= LIMIT_S < endless[16]

    assert "it falls from 14 on, passes below 1.8 s and stays near 1.54 s" in chapter
    take_s = [_simulated(long_orders, sl.ContinuousBatching(size)) for size in STABLE]
    assert take_s[0] > LIMIT_S > take_s[-1]
    assert all(later < sooner + 0.005 for sooner, later in pairwise(take_s))
    assert take_s[-8:] == pytest.approx([1.54] * 8, abs=0.02)

    assert "Should the batch stay at 17?" in chapter and "The valley moves left" in chapter
    assert _exact(7, pots=2) < _exact(6, pots=2) and _exact(7, pots=2) < _exact(8, pots=2) < _exact(17, pots=2) / 1.5


def test_the_lines_that_grow(chapter: str) -> None:
    assert "At a load of 1.20 they grow in a straight line to about two thousand" in chapter
    assert "at 1.02 they drift up to some two hundred, at 0.87 they stay below a hundred" in chapter
    orders = sl.poisson(RATE_RPS, 12_000, seed=3)
    inside = {}
    for size, load in ((10, "1.20"), (13, "1.02"), (17, "0.87")):
        assert f"{RATE_RPS * POT(size) / size:.2f}" == load
        run = sl.simulate(orders, sl.StaticBatching(size), POT)
        at_s = np.arange(1, 600)
        inside[size] = np.searchsorted(run.arrival_s, at_s, "right") - np.searchsorted(run.finish_s, at_s, "right")
    assert 1800 < inside[10][-1] < 2200 and np.corrcoef(np.arange(1, 600), inside[10])[0, 1] > 0.99
    assert 150 < inside[13][-1] < 250
    assert inside[17].max() < 100


def test_the_load_tests(chapter: str) -> None:
    assert "on the diagonal up to about 21, then flat at Q(15), which is 21.4" in chapter
    capacity = 15 / POT(15)
    assert round(capacity, 1) == 21.4
    for rate in range(3, 31, 3):
        run = sl.simulate(sl.poisson(rate, 700 * rate, seed=rate), sl.StaticBatching(15), POT)
        completed = float((run.finish_s <= 600).sum()) / 600
        assert completed == pytest.approx(min(rate, capacity), rel=0.04)


def test_the_animation_has_what_the_text_says(chapter: str) -> None:
    cell = re.search(r"steps = (\[[\d, ]+\])", chapter)
    assert cell
    steps = [int(n) for n in re.findall(r"\d+", cell[1])]
    assert "same twelve orders" in chapter and len(steps) == 12
    assert "takes one to five steps" in chapter and (min(steps), max(steps)) == (1, 5)
    assert "four seats" in chapter and {"StaticBatching(4)", "ContinuousBatching(4)"} <= set(
        re.findall(r"\w+\(4\)", chapter)
    )


def test_the_primer(primer: str) -> None:
    assert "the first of 15 guests waits" in primer and "for the other 14" in primer
    assert "Of 1,000 values it is the 990th; of 50 values it is the 50th" in primer
    assert [percentile(range(1, n + 1), 0.99) for n in (1000, 50, 200)] == [990, 50, 198]
    assert "Of 200 latencies" in primer and "The 198th" in primer

    assert "Latencies of 20,000 orders spread from 0.74 s to over two seconds" in primer
    assert "the mean and the median lie close together near 1.2 s" in primer
    latency_s = sl.simulate(sl.poisson(20, 20_000, seed=3), sl.StaticBatching(17), POT).e2e_s
    assert round(latency_s.min(), 2) == 0.74 and latency_s.max() > 2
    assert [latency_s.mean(), percentile(latency_s, 0.5)] == pytest.approx([1.2, 1.2], abs=0.05)


def test_the_assignment_is_where_the_chapter_says(repo: Path, chapter: str) -> None:
    paths = re.findall(r"(exercises/\S+\.ipynb)", chapter)
    assert paths and all((repo / path).is_file() for path in paths)


def test_no_words_hide_in_a_directive_option(repo: Path) -> None:
    """An option swallows the rest of its line, and the strict build doesn't mind."""
    for page in (repo / "chapters").glob("*.md"):
        options = re.findall(r"^:(?:class|label|name): (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(len(option.split()) == 1 for option in options), page.name
