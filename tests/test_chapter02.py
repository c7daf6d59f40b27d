"""Chapter 02: the numbers that it shows and claims are computed again here, from bytes and operations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
from servinglab.course import quiz
from servinglab.fidelity import validation
from servinglab.workload.lengths import LogNormal

# Llama-3.1-8B on an H100, from public configuration files and the vendor's page
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, WORDS = 32, 4096, 32, 8, 128, 14_336, 128_256
MATRICES = LAYERS * (HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD_DIM + HIDDEN * HIDDEN + 3 * HIDDEN * MLP)
HEAD = WORDS * HIDDEN
READ = 2 * (MATRICES + HEAD)
CACHE = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
TOKEN = 2 * (MATRICES + HEAD)
PAIR = 4 * LAYERS * HEADS * HEAD_DIM
BANDWIDTH, FLOPS = 3.35e12, 989.4e12


@pytest.fixture(scope="module")
def chapter(records: Callable[[str], Records]) -> Records:
    return records("02_why_batching_pays")


def step_s(B: int, context: int) -> float:
    return max((READ + B * context * CACHE) / BANDWIDTH, B * (TOKEN + context * PAIR) / FLOPS)


def real_s(B: int, context: int) -> float:
    """With the usual efficiencies."""
    reading = (READ + B * context * CACHE) / BANDWIDTH / 0.8
    return max(reading, B * (TOKEN + context * PAIR) / FLOPS / 0.6) + 0.001


def gain(B: int, context: int) -> float:
    return B * step_s(1, context) / step_s(B, context)


def test_the_gain(chapter: Records) -> None:
    assert chapter.number("ch02-g-32") == pytest.approx(gain(32, 4096), abs=0.05) == pytest.approx(15.5, abs=0.05)
    real = 32 * real_s(1, 4096) / real_s(32, 4096)
    assert chapter.number("ch02-gain-efficient") == pytest.approx(real, abs=0.05) == pytest.approx(16.7, abs=0.05)
    assert chapter.number("ch02-gain-about") == 16 and abs((gain(32, 4096) + real) / 2 - 16) < 0.2
    assert chapter.holds("ch02-empty-contexts-share-all") and gain(32, 0) == 32
    assert chapter.holds("ch02-reading-is-most-of-it")
    weights_s = READ / BANDWIDTH / 0.8
    assert 0.8 < weights_s / (weights_s + 0.001) < 0.9
    assert chapter.holds("ch02-caches-outweigh-weights") and 32 * 4096 * CACHE > READ


def test_the_ridge_moves_and_goes(chapter: Records) -> None:
    def ridge(context: int) -> int | None:
        return next((B for B in range(1, 20_000) if B * (TOKEN + context * PAIR) / FLOPS >= step_s(B, context)), None)

    contexts = (0, 64, 128, 256, 512, 4096)
    assert [ridge(c) for c in contexts] == [296, 353, 438, 848, None, None]
    assert [chapter.number(f"ch02-ridge-{c}") for c in contexts[:4]] == [296, 353, 438, 848]
    assert chapter.holds("ch02-no-ridge-by") and chapter.text("ch02-ridge-512") == chapter.text("ch02-ridge-4096")
    gone = (TOKEN / FLOPS) / (CACHE / BANDWIDTH - PAIR / FLOPS)
    assert ridge(math.floor(gone) - 20) is not None and ridge(math.ceil(gone)) is None
    assert round(gone) == chapter.number("ch02-no-ridge") == 393
    assert chapter.says("ch02-card-ridge") == [round(FLOPS / BANDWIDTH)] == [295]


def test_the_two_sweeps(chapter: Records) -> None:
    flat_ms, last = chapter.says("ch02-flat")
    assert 1e3 * step_s(1, 0) == 1e3 * step_s(int(last), 0) == pytest.approx(flat_ms, abs=0.05)
    assert step_s(int(last) + 1, 0) > step_s(1, 0)
    assert chapter.holds("ch02-then-computing") and step_s(512, 0) == 512 * TOKEN / FLOPS
    assert chapter.holds("ch02-above-computing")
    assert all(step_s(B, c) > B * TOKEN / FLOPS for B in range(1, 1025) for c in (512, 4096, 16384))
    starts = [1 / step_s(1, c) for c in (0, 512, 4096, 16384)]
    assert chapter.says("ch02-all-start") == pytest.approx(starts, abs=25)
    assert chapter.says("ch02-empty-ends") == [pytest.approx(512 / step_s(512, 0), rel=0.02)]
    ends = [1024 / step_s(1024, c) for c in (512, 4096, 16384)]
    assert [chapter.says(f"ch02-ends-{c}")[0] for c in (512, 4096, 16384)] == pytest.approx(ends, rel=0.05)


def test_the_crossing(chapter: Records) -> None:
    rate = [B / step_s(B, 4096) for B in range(1, 2000)]
    assert chapter.holds("ch02-never-turns-down") and all(later > sooner for sooner, later in pairwise(rate))
    weighed = [B / step_s(B, 4096) ** 2 for B in range(1, 200)]
    crossing = READ / (4096 * CACHE)
    assert 1 + weighed.index(max(weighed)) == round(crossing) == chapter.number("ch02-half") == 28
    assert chapter.holds("ch02-peaks-at-the-crossing")
    assert rate[27] == pytest.approx(BANDWIDTH / (4096 * CACHE) / 2, rel=0.01)
    assert chapter.holds("ch02-doubling-up-to-it-pays")
    assert rate[27] / rate[13] > step_s(28, 4096) / step_s(14, 4096)
    assert chapter.holds("ch02-doubling-from-it-does-not")
    assert rate[55] / rate[27] < step_s(56, 4096) / step_s(28, 4096)
    assert chapter.says("ch02-turn") == [4.5, 296] and chapter.holds("ch02-sum-is-twice")
    assert (READ / BANDWIDTH + 296 * TOKEN / FLOPS) / step_s(296, 0) == pytest.approx(2, abs=0.01)


def test_prompts(chapter: Records) -> None:
    step = sl.roofline("llama-3.1-8b", "h100-sxm")
    assert chapter.holds("ch02-pieces-are-free") and chapter.text("ch02-chunk") == chapter.text("ch02-calm")
    assert step(32, 256, 32 * 4096 + 256) == pytest.approx(step(32, 0, 32 * 4096), rel=0.005)
    assert step.parts(32, 256, 32 * 4096 + 256).bound == "memory"
    assert chapter.holds("ch02-faster-than-the-prompt")
    assert step(1, 32_767, 32_768) > 16 * step(1, 2_047, 2_048) > 60 * step(1, 511, 512)
    assert chapter.holds("ch02-prompt-is-no-decode") and 2048 * step(1) > 200 * step(1, 2047, 2048)
    shown_ms = chapter.number("ch02-p-d-2048"), chapter.number("ch02-p-t-2048")
    assert shown_ms == pytest.approx((2048e3 * step(1), 1e3 * step(1, 2047, 2048)), rel=1e-3)


@pytest.fixture(scope="module")
def served() -> dict[str, dict[int, tuple[float, float, float]]]:
    """Tokens/s, mean TTFT in ms, mean TPOT in ms: closed loops and open ones."""
    step, kv = sl.roofline("llama-3.1-8b", "h100-sxm").sides(), sl.kv_cache("llama-3.1-8b", "h100-sxm")
    lengths = {"prompt_tokens": LogNormal(median=1000, p99=3000), "output_tokens": LogNormal(median=150, p99=500)}
    found: dict[str, dict[int, tuple[float, float, float]]] = {"closed": {}, "open": {}}
    for B in (1, 32, 64, 128, 256, 512):
        work = sl.closed_loop(B, n=25 * B + 2000, seed=7, **lengths)
        run = sl.simulate(work, sl.ContinuousBatching(512, 2048), step, kv=kv)
        first, last = np.sort(run.finish_s)[[5 * B, -5 * B - 1]]
        inside = (run.finish_s > first) & (run.finish_s <= last)  # another way to cut the ends than the page's
        rate = run.output_tokens[inside].sum() / (last - first)
        found["closed"][B] = rate, 1e3 * run.ttft_s[inside].mean(), 1e3 * np.nanmean(run.tpot_s[inside])
        work = sl.poisson(20, n=12_000, seed=7, **lengths)
        run = sl.simulate(work, sl.ContinuousBatching(B, 2048), step, kv=kv)
        rate = run.output_tokens.sum() / run.duration_s
        found["open"][B] = rate, 1e3 * run.ttft_s.mean(), 1e3 * np.nanmean(run.tpot_s)
    return found


def test_what_the_user_sees(chapter: Records, served: dict[str, dict[int, tuple[float, float, float]]]) -> None:
    closed, opened = served["closed"], served["open"]
    assert chapter.says("ch02-closed-tokens-start") == [pytest.approx(closed[1][0], abs=15)]
    assert chapter.holds("ch02-closed-tokens-turn-flat")
    assert closed[256][0] > 5000 and closed[512][0] < 1.1 * closed[256][0] < 1.6 * closed[128][0]
    offered = 20 * sl.poisson(20, 12_000, 7, output_tokens=LogNormal(median=150, p99=500)).output_tokens.mean()
    assert chapter.says("ch02-open-tokens") == [pytest.approx(offered, rel=0.03)]
    assert chapter.holds("ch02-open-tokens-stop")
    assert all(opened[B][0] == pytest.approx(offered, rel=0.03) for B in (64, 128, 256, 512))
    last, first = map(int, chapter.says("ch02-keeps-up-from"))
    assert closed[last][0] < offered < closed[first][0]

    assert chapter.says("ch02-closed-ttft-start") == [pytest.approx(closed[1][1], abs=2)]
    assert chapter.holds("ch02-closed-ttft-reaches-seconds") and closed[512][1] > 2000
    assert opened[32][1] > 10_000 and 100 < opened[64][1] < 1000
    assert chapter.says("ch02-open-ttft-ends") == pytest.approx([opened[B][1] for B in (128, 256, 512)], abs=8)
    alone_ms, full_ms = chapter.says("ch02-closed-tpot")
    assert closed[1][2] == pytest.approx(alone_ms, abs=0.5) and closed[512][2] == pytest.approx(full_ms, abs=2)
    assert chapter.says("ch02-open-tpot") == pytest.approx([opened[B][2] for B in (128, 256, 512)], abs=0.7)


def test_experts(chapter: Records) -> None:
    assert chapter.holds("ch02-first-ones-share-little")
    rng = np.random.default_rng(2)
    draws = [len({int(e) for _ in range(8) for e in rng.choice(128, 8, replace=False)}) for _ in range(400)]
    moe = sl.roofline("qwen3-30b-a3b", "h100-sxm")
    assert chapter.number("ch02-e-8") == round(moe.experts_read(8))
    assert abs(np.mean(draws) - moe.experts_read(8)) < 3.3 * np.std(draws, ddof=1) / 20  # one in a thousand
    assert chapter.holds("ch02-ridge-lies-far-out") and moe.ridge_requests() > 2000


def test_speculative_decoding(chapter: Records) -> None:
    from servinglab.hardware.speculative import speedup

    large, small = sl.roofline("qwen3-8b", "h100-sxm"), sl.roofline("qwen3-0.6b", "h100-sxm")

    def paying(B: int, context: int, draft: sl.Roofline | None = None) -> float:
        return speedup(large, B, context, acceptance=0.8, drafts=3, draft=draft)

    assert chapter.says("ch02-draft-starts") == pytest.approx([paying(1, c, small) for c in (512, 4096)], abs=0.1)
    last = [next(B for B in range(1, 500) if paying(B + 1, c, small) < 1) for c in (512, 4096)]
    assert [chapter.number(f"ch02-spec-last-{c}") for c in (512, 4096)] == last
    assert chapter.holds("ch02-draft-ends-before") and last[1] < last[0] < 256
    falling = [paying(B, c, small) for c in (512, 4096) for B in range(1, 400)]
    assert chapter.holds("ch02-draft-falls")
    assert all(b <= a + 1e-9 for k, (a, b) in enumerate(pairwise(falling)) if k != 398)
    kept = sum(0.8**k for k in range(4))
    assert chapter.says("ch02-free-starts") == [round(kept)] * 2 == [3, 3]
    assert chapter.says("ch02-free-falls-from") == [80]
    assert paying(70, 512) == pytest.approx(kept, abs=0.001) and paying(90, 512) < 2.9
    assert chapter.holds("ch02-free-stays") and chapter.number("ch02-spec-free") == round(kept, 2)
    assert all(paying(B, 4096) == pytest.approx(kept, abs=0.001) for B in (1, 100, 1000, 10_000))


def test_the_errors(chapter: Records) -> None:
    found: dict[str, list[float]] = {"runs": [], "closed-loop": [], "carried": []}
    for row in validation.recorded():
        if row.part in found and "unknown" not in row.subject and row.error is not None:
            found[row.part].append(100 * row.error)
    assert chapter.holds("ch02-fitted-within") and max(map(abs, found["runs"])) < 2
    assert chapter.holds("ch02-closed-loop-within") and max(map(abs, found["closed-loop"])) < 5.05
    low, high = chapter.says("ch02-carried")
    assert (round(min(found["carried"])), round(max(found["carried"]))) == (-low, high) == (-43, 25)
    shapes = next(row.note for row in validation.recorded() if row.part == "shapes")
    assert chapter.says("ch02-shapes") == [float(re.search(r"\d+", shapes)[0])] == [15]


def test_the_quiz_from_chapter_1_by_hand() -> None:
    capacity, half, little = quiz.load("ch02")[2:]
    for v in capacity.variants:
        requests_ms = v.given["tokens"] * (v.given["fixed_ms"] + v.given["slope_ms"] * v.given["batch"])
        assert v.answer * requests_ms / 1e3 == pytest.approx(v.given["batch"], rel=1e-12)  # ρ = 1
    for v in half.variants:
        step_ms = v.given["fixed_ms"] + v.given["slope_ms"] * v.answer
        assert v.answer / step_ms == pytest.approx(0.5 / v.given["slope_ms"], rel=1e-12)
    for v in little.variants:
        assert v.answer / v.given["tokens_s"] == pytest.approx(v.given["tpot_ms"] / 1e3, rel=1e-12)
