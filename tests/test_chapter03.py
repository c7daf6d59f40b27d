"""Chapter 03: what its words and alternative texts claim is computed again here."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from servinglab.course import quiz
from servinglab.metrics.percentiles import percentile, weighted_percentile
from servinglab.workload.lengths import Constant, Geometric, LogNormal, Uniform

A_S, B_S, SEATS, MEAN = 0.008, 0.0001, 16, 200
ENGINE = sl.AffineStep(A_S, B_S)
GPU = sl.roofline("llama-3.1-8b", "h100-sxm").sides()


@pytest.fixture(scope="module")
def chapter() -> str:
    text = (Path(__file__).resolve().parents[1] / "chapters" / "03_static_dynamic_continuous.md").read_text("utf-8")
    return " ".join(text.split())


def _chats(rate_rps: float, n: int = 16_000) -> sl.Workload:
    return sl.poisson(rate_rps, n, seed=1, output_tokens=Geometric(MEAN))


def _longest(mean: float, size: int) -> float:
    """E[max of `size`] of geometric lengths by inclusion and exclusion in place of the chapter's sum over k."""
    from math import comb

    q = 1 - 1 / mean
    return sum((-1) ** (j + 1) * comb(size, j) / (1 - q**j) for j in range(1, size + 1))


def test_the_timeline_of_four(chapter: str) -> None:
    assert "complete after four steps and comes back after sixteen" in chapter and "D, who needs six steps" in chapter
    step = [A_S + B_S * n for n in range(4)]
    static_s = 16 * step[3]
    last_s = static_s + 6 * step[1]
    four = sl.Workload.from_arrivals([0, 0, 0, 0.02], output_tokens=[4, 6, 16, 6])
    static = sl.simulate(four, sl.StaticBatching(3, last="partial"), ENGINE)
    assert static.finish_s == pytest.approx([static_s] * 3 + [last_s])
    continuous = sl.simulate(four, sl.ContinuousBatching(3), ENGINE)
    # A leaves after 4 steps of three, B after 6, D after 10, and C goes on alone
    ends = [4 * step[3], 6 * step[3], 6 * step[3] + 4 * step[2] + 6 * step[1], 6 * step[3] + 4 * step[2]]
    assert continuous.finish_s == pytest.approx(ends)
    assert "C gains next to nothing" in chapter and 0.97 < ends[2] / static_s < 1


def test_the_price_of_the_longest(chapter: str) -> None:
    assert "100 % at one, about 48 % at four, 30 % at 16 and 21 % at 64" in chapter
    assert [round(100 * MEAN / _longest(MEAN, size)) for size in (1, 4, 16)] == [100, 48, 30]
    drawn = np.random.default_rng(3).geometric(1 / MEAN, size=(40_000, 64)).max(axis=1).mean()
    assert round(100 * MEAN / drawn) == 21
    assert _longest(MEAN, SEATS) == pytest.approx(675, abs=0.5)

    assert "promises a machine that is two thirds idle" in chapter
    assert 3 * MEAN * ENGINE(SEATS) / SEATS == pytest.approx(0.36, abs=0.005)
    assert 3 * _longest(MEAN, SEATS) * ENGINE(SEATS) / SEATS > 1


def test_the_three_clocks(chapter: str) -> None:
    assert "requests at 0.3, 0.9, 1.6 and 2.2 s" in chapter and "waits for a silence of 1 s" in chapter
    came_s = [0.3, 0.9, 1.6, 2.2]
    window = sl.simulate(sl.Workload.from_arrivals(came_s), sl.DynamicBatching(16, window_s=1.0), sl.AffineStep(5, 0))
    assert window.scheduled_s[0] == pytest.approx(1.3) and (window.scheduled_s == window.scheduled_s[0]).sum() == 2
    assert max(np.diff(came_s)) < 1  # so the restarting clock ends only after the last


def test_the_window_helps_no_latency(chapter: str) -> None:
    assert (
        "At the two low rates it rises all the way, from about 3 s without a window to about 14 s with 16 s" in chapter
    )
    windows_s = (0, 0.5, 1, 2, 4, 8, 16)
    means = {
        rate: [sl.simulate(_chats(rate), sl.DynamicBatching(SEATS, w), ENGINE).e2e_s.mean() for w in windows_s]
        for rate in (0.25, 0.5, 2.0)
    }
    for rate in (0.25, 0.5):
        assert all(later > sooner for sooner, later in pairwise(means[rate]))
        assert 2.3 < means[rate][0] < 4 and means[rate][-1] == pytest.approx(14, abs=0.5)
    assert "At 2 a second it stays between 10 and 13 s" in chapter
    assert min(means[2.0]) > 10 and max(means[2.0]) < 13.05
    assert "windows up to 2 s change little" in chapter and max(means[2.0][:4]) / min(means[2.0][:4]) < 1.02
    assert "At 2 a second a batch runs for seconds, and the next one's window is over before it ends" in chapter
    two = sl.simulate(_chats(2.0), sl.DynamicBatching(SEATS, 2.0), ENGINE)
    assert two.segments.busy_s > 0.97 * two.duration_s and np.median(two.finish_s - two.scheduled_s) > 4
    assert len(two) / len(np.unique(two.scheduled_ns)) < 12  # they run before they are full
    best = sl.simulate(_chats(0.5), sl.ContinuousBatching(SEATS), ENGINE).e2e_s.mean()
    assert "No window reaches the continuous rule" in chapter and best < 0.5 * min(means[0.5])


def test_the_rules_under_load(chapter: str) -> None:
    assert "Static falls from 37 s at 0.25 a second to 12 s at 1.5, then turns up" in chapter
    rates = (0.25, 0.5, 1, 1.5, 2, 2.2, 2.35)
    static = [sl.simulate(_chats(r), sl.StaticBatching(SEATS), ENGINE).e2e_s.mean() for r in rates]
    assert round(static[0]) == 37 and round(static[3]) == 12 and min(static) == static[3] and static[-1] > 2 * static[3]
    window = [sl.simulate(_chats(r), sl.DynamicBatching(SEATS, 1.0), ENGINE).e2e_s.mean() for r in (0.25, 2.35)]
    assert window[0] == pytest.approx(3.3, abs=0.1) and window[1] == pytest.approx(static[-1], rel=0.15)
    assert "Continuous stays below 2 s up to 6 a second and reaches 4 s at 8" in chapter
    continuous = [sl.simulate(_chats(r), sl.ContinuousBatching(SEATS), ENGINE).e2e_s.mean() for r in (6, 8)]
    assert continuous[0] < 2 and continuous[1] == pytest.approx(4, abs=0.3)


def test_what_moved(chapter: str) -> None:
    assert "as empty as before, twice the pace" in chapter
    lengths = np.random.default_rng(1).geometric(1 / MEAN, 3200)
    pile = sl.Workload.from_arrivals(np.zeros(3200), output_tokens=lengths)
    static, continuous = (
        sl.simulate(pile, rule, ENGINE) for rule in (sl.StaticBatching(SEATS), sl.ContinuousBatching(SEATS))
    )
    steps = [int(run.segments.steps.sum()) for run in (static, continuous)]
    assert steps[0] == lengths.reshape(-1, SEATS).max(axis=1).sum()  # a batch is as long as its longest
    gain = static.duration_s / continuous.duration_s
    assert gain == pytest.approx(_longest(MEAN, SEATS) / MEAN, rel=0.05)
    assert steps[0] / steps[1] == pytest.approx(gain, rel=0.01)  # all of it is fuller steps

    assert "At 2 a second the throughput of all three is the same" in chapter
    calm = [sl.simulate(_chats(2.0), rule, ENGINE) for rule in (sl.StaticBatching(SEATS), sl.ContinuousBatching(SEATS))]
    assert calm[0].duration_s == pytest.approx(calm[1].duration_s, rel=0.01)
    assert "The continuous engine is even busy for more of the time" in chapter
    assert calm[1].segments.busy_s > calm[0].segments.busy_s


def test_one_long_prompt(chapter: str) -> None:
    assert "all pieces are read before anyone else gets a token" in chapter
    guests = sl.Workload.from_arrivals(
        [0.0] * 8 + [0.1], prompt_tokens=[200] * 8 + [8000], output_tokens=[60] * 8 + [20]
    )
    gaps = {}
    for budget in (256, 512, 1024, 2048, 8192):
        for first in (False, True):
            run = sl.reference(guests, sl.ContinuousBatching(16, budget, prefill_first=first), GPU)
            gaps[budget, first] = run.itl()[0].max()
    decode_first = [gaps[budget, False] for budget in (256, 512, 1024, 2048, 8192)]
    assert all(smaller < larger / 1.5 for smaller, larger in pairwise(decode_first))
    assert min(gaps[budget, True] for budget in (256, 512, 1024, 2048, 8192)) >= decode_first[-1]


def test_the_budget_under_load(chapter: str) -> None:
    assert "From 256 to 512 tokens TTFT falls from 1.1 to 0.5 s while ITL rises from 10 to 13 ms" in chapter
    assert "from 2,048 on TTFT stays near 0.43 s and then rises slightly, while ITL rises to 160 ms" in chapter
    prompts = LogNormal(median=800, p99=8000, max=16_000)
    mixed = sl.poisson(16, 4000, seed=2, prompt_tokens=prompts, output_tokens=Geometric(MEAN))
    found = {}
    for budget in (256, 512, 2048, 4096, 8192):
        run = sl.simulate(mixed, sl.ContinuousBatching(256, budget), GPU)
        found[budget] = percentile(run.ttft_s, 0.99), 1e3 * weighted_percentile(*run.itl(), 0.99)
    assert [round(found[b][0], 1) for b in (256, 512)] == [1.1, 0.5]
    assert [round(found[b][1]) for b in (256, 512, 8192)] == [10, 13, 160]
    assert found[2048][0] == pytest.approx(0.43, abs=0.01) and found[2048][0] < found[4096][0] < found[8192][0] < 0.46


def test_the_spread_of_lengths(chapter: str) -> None:
    assert "three laws of length with the same mean of 200 tokens" in chapter and "Its waits differ" in chapter
    laws = Constant(MEAN), Geometric(MEAN), LogNormal(median=66.09, sigma=1.5, max=8000)
    assert laws[2].mean == pytest.approx(MEAN, abs=0.01)
    waits, longest = [], []
    for law in laws:
        requests = sl.poisson(7.5, 200_000, seed=3, output_tokens=law)
        assert requests.output_tokens.mean() == pytest.approx(MEAN, rel=0.01)
        run = sl.simulate(requests, sl.ContinuousBatching(SEATS), ENGINE)
        waits.append(percentile(run.wait_s, 0.99))
        longest.append(requests.output_tokens.reshape(-1, SEATS).max(axis=1).mean())
    assert all(1.5 * shorter < longer for shorter, longer in pairwise(waits))
    assert longest[0] == MEAN and longest[1] == pytest.approx(675, rel=0.01) and longest[2] > 1.8 * longest[1]


def test_the_offline_pile(chapter: str) -> None:
    assert "Here are 2,048 summaries of 70 to 90 tokens, 32 at a time" in chapter
    dice = np.random.default_rng(5)
    documents = LogNormal(median=600, p99=4000, max=8000).sample(dice, 2048).astype(int)
    edges = [0, 250, 500, 1000, 2000, 4000, 8000]
    assert "six lines by prompt" in chapter and str(edges[1:-1]) in chapter
    lines = [np.flatnonzero((low < documents) & (documents <= high)) for low, high in pairwise(edges)]

    def seconds(batches: list[np.ndarray], tokens: np.ndarray) -> float:
        """Padded batches one after the other: every prompt as long as the longest, then every answer."""
        total = 0.0
        for batch in batches:
            n, prompt = len(batch), int(documents[batch].max())
            total += GPU(n, n * prompt, n * prompt)
            total += sum(GPU(n, 0, n * (prompt + k)) for k in range(1, int(tokens[batch].max())))
        return total

    def cut(line: np.ndarray) -> list[np.ndarray]:
        return [line[at : at + 32] for at in range(0, len(line), 32)]

    come, apart = cut(np.arange(2048)), [batch for line in lines for batch in cut(line)]
    found = {}
    for kind, tokens in (("even", Uniform(70, 90).sample(dice, 2048)), ("free", Geometric(80).sample(dice, 2048))):
        heap = sl.Workload.from_arrivals(np.zeros(2048), prompt_tokens=documents, output_tokens=tokens)
        found[kind] = sl.simulate(heap, sl.ContinuousBatching(32, 2048), GPU).duration_s
        found[kind, "come"], found[kind, "lines"] = seconds(come, tokens), seconds(apart, tokens)
        own = sl.simulate(heap, sl.StaticBatching(32, last="partial"), GPU).duration_s
        assert found[kind, "come"] == pytest.approx(own, rel=0.05)
    assert "For the summaries the lines halve the time" in chapter
    assert found["even", "come"] == pytest.approx(2 * found["even", "lines"], rel=0.15)
    assert "Where answers vary, the continuous engine wins offline too" in chapter
    assert found["free", "lines"] > 2.5 * found["free"] and found["even", "lines"] < 1.7 * found["even"]


def test_two_queues(chapter: str) -> None:
    assert "short (mean 50 tokens) or long (mean 350), half of each" in chapter
    dice = np.random.default_rng(12)
    means = np.where(dice.random((100_000, SEATS)) < 0.5, 50, 350)
    mixed = dice.geometric(1 / means).max(axis=1).mean()
    gain = 2 * mixed / (_longest(50, SEATS) + _longest(350, SEATS))
    assert "Sorting helps static batching only as far as lengths are known" in chapter
    assert 1.2 < gain < 0.5 * mixed / MEAN


def test_the_assignment_is_where_the_chapter_says(repo: Path, chapter: str) -> None:
    paths = re.findall(r"(exercises/\S+\.ipynb)", chapter)
    assert paths and all((repo / path).is_file() for path in paths)


def test_the_quiz_from_earlier_chapters_by_hand() -> None:
    prefill, load, inside = quiz.load("ch03")[2:]
    computing = 0
    for v in prefill.variants:
        operations = 2 * v.given["weights"] * 1e9 * v.given["prompt"]
        compute_ms = 1e3 * operations / (v.given["tflop_s"] * 1e12)
        computing += compute_ms > v.given["read_ms"]
        assert v.answer == pytest.approx(max(compute_ms, v.given["read_ms"]), rel=1e-12)
    assert 6 <= computing <= len(prefill.variants) - 6, "both sides are the longer one"
    for v in load.variants:
        batches_s = v.given["rate_rps"] / v.given["batch"]
        assert v.answer == pytest.approx(batches_s * v.given["longest"] * v.given["step_ms"] / 1e3, rel=1e-12)
    for v in inside.variants:
        assert v.answer == pytest.approx(v.given["tokens_per_s"] * v.given["step_ms"] / 1e3, rel=1e-12)
