"""Chapter 02: what its words and alternative texts claim is computed again here, from bytes and operations."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
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
def chapter() -> str:
    text = (Path(__file__).resolve().parents[1] / "chapters" / "02_why_batching_pays.md").read_text(encoding="utf-8")
    return " ".join(text.split())


def step_s(B: int, context: int) -> float:
    return max((READ + B * context * CACHE) / BANDWIDTH, B * (TOKEN + context * PAIR) / FLOPS)


def real_s(B: int, context: int) -> float:
    """With the usual efficiencies."""
    reading = (READ + B * context * CACHE) / BANDWIDTH / 0.8
    return max(reading, B * (TOKEN + context * PAIR) / FLOPS / 0.6) + 0.001


def gain(B: int, context: int) -> float:
    return B * step_s(1, context) / step_s(B, context)


def test_the_gain(chapter: str) -> None:
    assert gain(32, 4096) == pytest.approx(15.5, abs=0.05)
    real = 32 * real_s(1, 4096) / real_s(32, 4096)
    assert real == pytest.approx(16.7, abs=0.05)
    assert "With the library's usual efficiencies instead of the printed rates" in chapter and "say 16" in chapter
    assert "about 16 on this model and card" in chapter and abs((gain(32, 4096) + real) / 2 - 16) < 0.2
    assert gain(32, 0) == 32
    assert "Most of the gain comes from reading the book once" in chapter
    weights_s = READ / BANDWIDTH / 0.8
    assert 0.8 < weights_s / (weights_s + 0.001) < 0.9
    assert "reading those takes longer than reading the model" in chapter and 32 * 4096 * CACHE > READ


def test_the_ridge_moves_and_goes(chapter: str) -> None:
    def ridge(context: int) -> int | None:
        return next((B for B in range(1, 20_000) if B * (TOKEN + context * PAIR) / FLOPS >= step_s(B, context)), None)

    assert [ridge(c) for c in (0, 64, 128, 256, 512, 4096)] == [296, 353, 438, 848, None, None]
    assert "At 256 tokens and printed rates it takes" in chapter and "at 512 no number is enough" in chapter
    gone = (TOKEN / FLOPS) / (CACHE / BANDWIDTH - PAIR / FLOPS)
    assert ridge(math.floor(gone) - 20) is not None and ridge(math.ceil(gone)) is None
    assert round(gone) == 393
    assert "becomes compute-bound at a batch of 295" in chapter and round(FLOPS / BANDWIDTH) == 295


def test_the_two_sweeps(chapter: str) -> None:
    assert "flat at 4.5 ms up to 295 requests and then follows the computing line" in chapter
    assert 1e3 * step_s(1, 0) == 1e3 * step_s(295, 0) == pytest.approx(4.5, abs=0.05)
    assert step_s(512, 0) == 512 * TOKEN / FLOPS
    assert "stays above the computing line at every batch size" in chapter
    assert all(step_s(B, c) > B * TOKEN / FLOPS for B in range(1, 1025) for c in (512, 4096, 16384))
    assert "All curves start near 200" in chapter
    assert all(195 < 1 / step_s(1, c) < 225 for c in (0, 512, 4096, 16384))
    assert "to 65,000 and turns flat" in chapter and 512 / step_s(512, 0) == pytest.approx(65_900, rel=0.01)
    assert "end at about 40,000, 6,000 and 1,500" in chapter
    ends = [1024 / step_s(1024, c) for c in (512, 4096, 16384)]
    assert ends == pytest.approx([40_000, 6_000, 1_500], rel=0.05)


def test_the_crossing(chapter: str) -> None:
    rate = [B / step_s(B, 4096) for B in range(1, 2000)]
    assert "never turns down" in chapter and all(later > sooner for sooner, later in pairwise(rate))
    weighed = [B / step_s(B, 4096) ** 2 for B in range(1, 200)]
    crossing = READ / (4096 * CACHE)
    assert 1 + weighed.index(max(weighed)) == round(crossing) == 28
    assert rate[27] == pytest.approx(BANDWIDTH / (4096 * CACHE) / 2, rel=0.01)
    assert "A doubling that ends at the crossing raises throughput by more than the step's time" in chapter
    assert rate[27] / rate[13] > step_s(28, 4096) / step_s(14, 4096)
    assert "one that starts there, by less" in chapter and rate[55] / rate[27] < step_s(56, 4096) / step_s(28, 4096)
    assert "at the ridge the sum is twice the maximum" in chapter
    assert (READ / BANDWIDTH + 296 * TOKEN / FLOPS) / step_s(296, 0) == pytest.approx(2, abs=0.01)


def test_prompts(chapter: str) -> None:
    step = sl.roofline("llama-3.1-8b", "h100-sxm")
    assert "the same 32 readers see gaps of" in chapter and "as if there were no prompt" in chapter
    assert step(32, 256, 32 * 4096 + 256) == pytest.approx(step(32, 0, 32 * 4096), rel=0.005)
    assert step.parts(32, 256, 32 * 4096 + 256).bound == "memory"
    assert "Time grows a little faster than the prompt" in chapter
    assert step(1, 32_767, 32_768) > 16 * step(1, 2_047, 2_048) > 60 * step(1, 511, 512)
    assert "{glue:text}`ch02-p-t-2048` ms against {glue:text}`ch02-p-d-2048` ms" in chapter
    assert 2048 * step(1) > 200 * step(1, 2047, 2048)


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


def test_what_the_user_sees(chapter: str, served: dict[str, dict[int, tuple[float, float, float]]]) -> None:
    closed, opened = served["closed"], served["open"]
    assert "closed rises from 140 to over 5,000 and turns flat from 256 on" in chapter
    assert closed[1][0] == pytest.approx(145, abs=10) and closed[256][0] > 5000
    assert closed[512][0] < 1.1 * closed[256][0] < 1.6 * closed[128][0]
    assert "open stops at the 3,400 that are offered, from 64 on" in chapter
    offered = 20 * sl.poisson(20, 12_000, 7, output_tokens=LogNormal(median=150, p99=500)).output_tokens.mean()
    assert all(opened[B][0] == pytest.approx(offered, rel=0.03) for B in (64, 128, 256, 512))
    assert offered == pytest.approx(3400, rel=0.03)
    assert "Up to a batch of 32 it can't write so many" in chapter and closed[32][0] < offered < closed[64][0]

    assert "closed rises from 27 ms to seconds" in chapter
    assert closed[1][1] == pytest.approx(27, abs=2) and closed[512][1] > 2000
    assert "has no value up to 32, because the line grows, and falls to about 60 ms" in chapter
    assert opened[32][1] > 10_000 and 100 < opened[64][1] < 1000 and opened[128][1] == pytest.approx(62, abs=6)
    assert "TPOT: closed rises from 7 ms to 50 ms; open settles at 17 ms" in chapter
    assert closed[1][2] == pytest.approx(6.7, abs=0.3) and closed[512][2] == pytest.approx(50, abs=2)
    assert [opened[B][2] for B in (128, 256, 512)] == pytest.approx([17] * 3, abs=0.7)


def test_experts(chapter: str) -> None:
    assert "So the first requests of a batch share little" in chapter
    rng = np.random.default_rng(2)
    draws = [len({int(e) for _ in range(8) for e in rng.choice(128, 8, replace=False)}) for _ in range(400)]
    moe = sl.roofline("qwen3-30b-a3b", "h100-sxm")
    assert abs(np.mean(draws) - moe.experts_read(8)) < 3.3 * np.std(draws, ddof=1) / 20  # one in a thousand
    assert "the ridge lies far out" in chapter and moe.ridge_requests() > 2000


def test_speculative_decoding(chapter: str) -> None:
    from servinglab.hardware.speculative import speedup

    large, small = sl.roofline("qwen3-8b", "h100-sxm"), sl.roofline("qwen3-0.6b", "h100-sxm")

    def paying(B: int, context: int, draft: sl.Roofline | None = None) -> float:
        return speedup(large, B, context, acceptance=0.8, drafts=3, draft=draft)

    assert "it starts near 1.8 and falls below 1 before 256 requests, at 4,096 tokens of context earlier" in chapter
    assert paying(1, 512, small) == pytest.approx(1.8, abs=0.1) == paying(1, 4096, small)
    last = [next(B for B in range(1, 500) if paying(B + 1, c, small) < 1) for c in (512, 4096)]
    assert last[1] < last[0] < 256
    falling = [paying(B, c, small) for c in (512, 4096) for B in range(1, 400)]
    assert all(b <= a + 1e-9 for k, (a, b) in enumerate(pairwise(falling)) if k != 398)
    assert "With free drafts it starts near 3; at 512 tokens it falls from about 80 requests on" in chapter
    assert paying(70, 512) == pytest.approx(2.952, abs=0.001) and paying(90, 512) < 2.9
    assert "keep their {glue:text}`ch02-spec-free` at any batch there" in chapter
    assert all(paying(B, 4096) == pytest.approx(2.952, abs=0.001) for B in (1, 100, 1000, 10_000))


def test_the_errors(chapter: str) -> None:
    found: dict[str, list[float]] = {"runs": [], "closed-loop": [], "carried": []}
    for row in validation.recorded():
        if row.part in found and "unknown" not in row.subject and row.error is not None:
            found[row.part].append(100 * row.error)
    assert "all within 2 % of zero" in chapter and max(map(abs, found["runs"])) < 2
    assert "Published points of a closed loop: within 5 %" in chapter and max(map(abs, found["closed-loop"])) < 5.05
    assert "from minus 43 % to plus 25 %" in chapter
    assert (round(min(found["carried"])), round(max(found["carried"]))) == (-43, 25)
    shapes = next(row.note for row in validation.recorded() if row.part == "shapes")
    assert "across 15 published configurations" in chapter and "each of 15 shapes" in shapes


def test_the_assignment_is_where_the_chapter_says(repo: Path, chapter: str) -> None:
    paths = re.findall(r"(exercises/\S+\.ipynb)", chapter)
    assert paths and all((repo / path).is_file() for path in paths)


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
