"""Chapter 03: the numbers that it shows and claims are computed again here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
from servinglab.course import quiz
from servinglab.metrics.percentiles import percentile, weighted_percentile
from servinglab.workload.lengths import Constant, Geometric, LogNormal, Uniform

A_S, B_S, SEATS, MEAN = 0.008, 0.0001, 16, 200
ENGINE = sl.AffineStep(A_S, B_S)
GPU = sl.roofline("llama-3.1-8b", "h100-sxm").sides()


@pytest.fixture(scope="module")
def chapter(records: Callable[[str], Records]) -> Records:
    return records("03_static_dynamic_continuous")


def _chats(rate_rps: float, n: int = 16_000) -> sl.Workload:
    return sl.poisson(rate_rps, n, seed=1, output_tokens=Geometric(MEAN))


def _longest(mean: float, size: int) -> float:
    """E[max of `size`] of geometric lengths by inclusion and exclusion in place of the chapter's sum over k."""
    from math import comb

    q = 1 - 1 / mean
    return sum((-1) ** (j + 1) * comb(size, j) / (1 - q**j) for j in range(1, size + 1))


def test_the_timeline_of_four(chapter: Records) -> None:
    assert chapter.holds("ch03-A-waits-for-C")
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
    assert chapter.holds("ch03-C-gains-next-to-nothing") and 0.97 < ends[2] / static_s < 1
    shown = [[chapter.number(f"ch03-four-{rule}-{who}") for who in "ABC"] for rule in ("static", "continuous")]
    assert shown == [[round(1e3 * static_s)] * 3, [round(1e3 * end_s) for end_s in ends[:3]]]


def test_the_price_of_the_longest(chapter: Records) -> None:
    *shown, of_64 = chapter.says("ch03-useful-shares")
    assert [round(100 * MEAN / _longest(MEAN, size)) for size in (1, 4, 16)] == shown == [100, 48, 30]
    drawn = np.random.default_rng(3).geometric(1 / MEAN, size=(40_000, 64)).max(axis=1).mean()
    assert round(100 * MEAN / drawn) == of_64 == 21
    assert round(_longest(MEAN, SEATS)) == chapter.number("ch03-longest") == 675

    assert chapter.holds("ch03-two-thirds-idle") and chapter.holds("ch03-overloaded")
    assert 3 * MEAN * ENGINE(SEATS) / SEATS == pytest.approx(chapter.number("ch03-rho-mean"), abs=0.005)
    assert 3 * _longest(MEAN, SEATS) * ENGINE(SEATS) / SEATS > 1


def test_the_three_clocks(chapter: Records) -> None:
    *came_s, window_s, room = chapter.says("ch03-clock-example")
    rule = sl.DynamicBatching(int(room), window_s=window_s)
    window = sl.simulate(sl.Workload.from_arrivals(came_s), rule, sl.AffineStep(5, 0))
    assert window.scheduled_s[0] == pytest.approx(1.3) and (window.scheduled_s == window.scheduled_s[0]).sum() == 2
    assert (
        chapter.holds("ch03-window-ends") and max(np.diff(came_s)) < window_s
    )  # so the restarting clock ends only after the last


def test_the_window_helps_no_latency(chapter: Records) -> None:
    windows_s = (0, 0.5, 1, 2, 4, 8, 16)
    means = {
        rate: [sl.simulate(_chats(rate), sl.DynamicBatching(SEATS, w), ENGINE).e2e_s.mean() for w in windows_s]
        for rate in (0.25, 0.5, 2.0)
    }
    assert chapter.holds("ch03-low-rates-rise")
    for rate, start, end in zip(
        (0.25, 0.5), chapter.says("ch03-low-rates-start"), chapter.says("ch03-low-rates-end"), strict=True
    ):
        assert all(later > sooner for sooner, later in pairwise(means[rate]))
        assert means[rate][0] == pytest.approx(start, abs=1) and means[rate][-1] == pytest.approx(end, abs=0.5)
    low, high = chapter.says("ch03-busy-rate-stays-between")
    assert low < min(means[2.0]) and max(means[2.0]) < high + 0.05
    assert chapter.holds("ch03-short-windows-change-little") and max(means[2.0][:4]) / min(means[2.0][:4]) < 1.02
    assert chapter.holds("ch03-batch-runs-for-seconds") and chapter.holds("ch03-batches-start-before-full")
    two = sl.simulate(_chats(2.0), sl.DynamicBatching(SEATS, 2.0), ENGINE)
    assert two.segments.busy_s > 0.97 * two.duration_s and np.median(two.finish_s - two.scheduled_s) > 4
    assert len(two) / len(np.unique(two.scheduled_ns)) < 12  # they run before they are full
    best = sl.simulate(_chats(0.5), sl.ContinuousBatching(SEATS), ENGINE).e2e_s.mean()
    assert chapter.holds("ch03-no-window-reaches-continuous") and best < 0.5 * min(means[0.5])


def test_the_rules_under_load(chapter: Records) -> None:
    rates = (0.25, 0.5, 1, 1.5, 2, 2.2, 2.35)
    static = [sl.simulate(_chats(r), sl.StaticBatching(SEATS), ENGINE).e2e_s.mean() for r in rates]
    assert chapter.says("ch03-static-falls") == [0.25, round(static[0]), 1.5, round(static[3])] == [0.25, 37, 1.5, 12]
    assert chapter.holds("ch03-static-turns-up") and min(static) == static[3] and static[-1] > 2 * static[3]
    assert chapter.says("ch03-static-capacity") == [round(SEATS / (_longest(MEAN, SEATS) * ENGINE(SEATS)), 2)]
    window = [sl.simulate(_chats(r), sl.DynamicBatching(SEATS, 1.0), ENGINE).e2e_s.mean() for r in (0.25, 2.35)]
    assert chapter.says("ch03-window-starts") == [pytest.approx(window[0], abs=0.1)]
    assert chapter.holds("ch03-window-meets-static") and window[1] == pytest.approx(static[-1], rel=0.15)
    continuous = [sl.simulate(_chats(r), sl.ContinuousBatching(SEATS), ENGINE).e2e_s.mean() for r in (6, 8)]
    assert chapter.holds("ch03-continuous-stays-below-2") and continuous[0] < 2
    assert chapter.says("ch03-continuous-ends") == [8, pytest.approx(continuous[1], abs=0.5)]


def test_what_moved(chapter: Records) -> None:
    assert chapter.holds("ch03-faster-is-as-empty")
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

    assert chapter.number("ch03-pile-all") == pytest.approx(gain, abs=0.01)
    calm = [sl.simulate(_chats(2.0), rule, ENGINE) for rule in (sl.StaticBatching(SEATS), sl.ContinuousBatching(SEATS))]
    assert chapter.holds("ch03-same-throughput")
    assert calm[0].duration_s == pytest.approx(calm[1].duration_s, rel=0.01)
    assert chapter.holds("ch03-continuous-is-busier")
    assert calm[1].segments.busy_s > calm[0].segments.busy_s


def test_one_long_prompt(chapter: Records) -> None:
    guests = sl.Workload.from_arrivals(
        [0.0] * 8 + [0.1], prompt_tokens=[200] * 8 + [8000], output_tokens=[60] * 8 + [20]
    )
    gaps = {}
    for budget in (256, 512, 1024, 2048, 8192):
        for first in (False, True):
            run = sl.reference(guests, sl.ContinuousBatching(16, budget, prefill_first=first), GPU)
            gaps[budget, first] = run.itl()[0].max()
    decode_first = [gaps[budget, False] for budget in (256, 512, 1024, 2048, 8192)]
    assert chapter.holds("ch03-smaller-budgets-shorter-gaps")
    assert all(smaller < larger / 1.5 for smaller, larger in pairwise(decode_first))
    assert chapter.holds("ch03-prompts-first-stops-all")
    assert min(gaps[budget, True] for budget in (256, 512, 1024, 2048, 8192)) >= decode_first[-1]


def test_the_budget_under_load(chapter: Records) -> None:
    prompts = LogNormal(median=800, p99=8000, max=16_000)
    mixed = sl.poisson(16, 4000, seed=2, prompt_tokens=prompts, output_tokens=Geometric(MEAN))
    found = {}
    for budget in (256, 512, 2048, 4096, 8192):
        run = sl.simulate(mixed, sl.ContinuousBatching(256, budget), GPU)
        found[budget] = percentile(run.ttft_s, 0.99), 1e3 * weighted_percentile(*run.itl(), 0.99)
    ttft_s, itl_ms = [round(found[b][0], 1) for b in (256, 512)], [round(found[b][1]) for b in (256, 512)]
    assert chapter.says("ch03-first-double") == [256, 512, *ttft_s, *itl_ms] == [256, 512, 1.1, 0.6, 10, 17]
    assert chapter.says("ch03-from-2048") == [2048, round(found[2048][0], 2), round(found[8192][1], -1)]
    assert chapter.holds("ch03-then-stays") and all(0.53 < found[b][0] < 0.57 for b in (2048, 4096, 8192))


def test_the_spread_of_lengths(chapter: Records) -> None:
    assert chapter.says("ch03-same-mean") == [MEAN] * 3 and chapter.holds("ch03-waits-differ")
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


def test_the_offline_pile(chapter: Records) -> None:
    assert chapter.says("ch03-pile") == [2048, 70, 90, 32] and chapter.holds("ch03-six-lines")
    dice = np.random.default_rng(5)
    documents = LogNormal(median=600, p99=4000, max=8000).sample(dice, 2048).astype(int)
    edges = [0, 250, 500, 1000, 2000, 4000, 8000]
    lines = [np.flatnonzero((low < documents) & (documents <= high)) for low, high in pairwise(edges)]

    def seconds(batches: list[np.ndarray], tokens: np.ndarray) -> float:
        """Padded batches one after the other: every prompt as long as the longest, then every answer."""
        total = 0.0
        for batch in batches:
            n, prompt = len(batch), int(documents[batch].max())
            total += GPU(n, n * prompt, n * prompt, n * prompt * (prompt + 1) // 2)
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
    for kind in ("even", "free"):
        assert chapter.number(f"ch03-lines-{kind}") == pytest.approx(found[kind, "lines"] / 60, rel=0.05, abs=0.05)
        assert chapter.number(f"ch03-continuous-{kind}") == pytest.approx(found[kind] / 60, abs=0.051)
    assert chapter.holds("ch03-lines-halve-the-time")
    assert found["even", "come"] == pytest.approx(2 * found["even", "lines"], rel=0.15)
    assert chapter.holds("ch03-continuous-wins-offline") and chapter.holds("ch03-even-lines-come-close")
    assert found["free", "lines"] > 2.5 * found["free"] and found["even", "lines"] < 1.7 * found["even"]


def test_two_queues(chapter: Records) -> None:
    dice = np.random.default_rng(12)
    means = np.where(dice.random((100_000, SEATS)) < 0.5, 50, 350)
    mixed = dice.geometric(1 / means).max(axis=1).mean()
    gain = 2 * mixed / (_longest(50, SEATS) + _longest(350, SEATS))
    assert chapter.number("ch03-two-gain") == pytest.approx(gain, abs=0.02)
    assert chapter.holds("ch03-sorting-helps-only-so-far")
    assert 1.2 < gain < 0.5 * mixed / MEAN


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
