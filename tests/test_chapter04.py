"""Chapter 04: what its words and alternative texts claim is computed again here."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import servinglab as sl
from servinglab import metrics
from servinglab.course import quiz
from servinglab.fidelity.validation import recorded
from servinglab.metrics.caps import binding_caps, running_caps
from servinglab.workload.lengths import Geometric

PROMPT, ANSWER = 2000, 500
KV = sl.kv_cache("llama-3.1-8b", "h100-sxm")
ROOF = sl.roofline("llama-3.1-8b", "h100-sxm")
STEP = ROOF.sides()
ANSWERS = np.random.default_rng(5).geometric(1 / ANSWER, 1500)
LINE = sl.Workload.from_arrivals(np.zeros(1500), prompt_tokens=PROMPT, output_tokens=ANSWERS)


@pytest.fixture(scope="module")
def chapter() -> str:
    """The page as one line."""
    text = (Path(__file__).resolve().parents[1] / "chapters" / "04_concurrency_and_memory.md").read_text("utf-8")
    return " ".join(text.split())


@pytest.fixture(scope="module")
def seven() -> sl.Workload:
    return sl.poisson(7, 3000, seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER))


def _run(seats: int, budget: int, step: sl.RoofStep | sl.AffineStep = STEP) -> sl.Result:
    return sl.simulate(LINE, sl.ContinuousBatching(seats, budget), step, kv=KV)


def _line(run: sl.Result) -> tuple[float, np.ndarray]:
    """When the first quarter of the line is gone, and the seconds of each later row in which somebody waits."""
    log = run.segments
    from_s = 0.25 * log.end_ns[log.waiting > 0].max() / 1e9
    rows = (log.waiting > 0) & (log.start_ns >= from_s * 1e9)
    return from_s, np.where(rows, log.end_ns - log.start_ns, 0) / 1e9


def _tokens_a_second(run: sl.Result) -> float:
    log, lasts = run.segments, _line(run)[1]
    return float(((log.decode_tokens + log.first_tokens) * log.steps * (lasts > 0)).sum() / lasts.sum())


def _running(run: sl.Result) -> float:
    lasts = _line(run)[1]
    return float((run.segments.running * lasts).sum() / lasts.sum())


def _itl_p99(run: sl.Result) -> float:
    return metrics.weighted_percentile(*run.itl(), 0.99)


def test_what_a_token_holds(chapter: str) -> None:
    llama, old, wide, windows = map(sl.catalog.model, ("llama-3.1-8b", "llama-2-7b", "deepseek-v3", "gemma-3-27b"))
    assert r"$2 \cdot 32 \cdot 8 \cdot 128 \cdot 2$" in chapter and "128 KiB" in chapter
    assert 2 * llama.layers * llama.kv_heads * llama.head_dim * 2 == 128 * 1024 == llama.kv_bytes_per_token()
    assert "The model has 32 query heads, but four of them share" in chapter
    assert (llama.heads, llama.heads // llama.kv_heads) == (32, 4)
    assert "four times Llama-3.1-8B's bytes for a smaller model" in chapter
    assert old.kv_bytes_per_token() == 4 * llama.kv_bytes_per_token() and old.params < llama.params
    assert "vector of 512 + 64 numbers" in chapter and (wide.kv_lora_rank, wide.qk_rope_head_dim) == (512, 64)
    assert "671 billion parameters holds about half" in chapter
    assert round(wide.params / 1e9) == 671
    assert wide.kv_bytes_per_token() / llama.kv_bytes_per_token() == pytest.approx(0.5, abs=0.05)
    assert "52 of 62 layers look back at 1,024 tokens only" in chapter
    assert (windows.sliding_layers, windows.layers, windows.sliding_window) == (52, 62, 1024)


def test_the_plane(chapter: str) -> None:
    assert "Seats bind on the left, up to 128; tokens bind at the bottom right, and up to a budget of 2,048" in chapter
    assert "blocks bind at the top right, from 4,096 on" in chapter
    assert "a diagonal to 167 seats and 834 tokens" in chapter
    assert round(KV.tokens / (PROMPT + ANSWER)) == 167 and round(5 * KV.tokens / (PROMPT + ANSWER)) == 834
    for seats in (8, 32, 128, 256, 1024):
        for budget in (64, 256, 512, 1024, 2048, 4096, 8192):
            if budget < seats:
                continue
            run = _run(seats, budget)
            shares = binding_caps(run, _line(run)[0])
            binds = max(shares, key=shares.get)
            if seats <= 128:
                assert binds == ("max_num_seqs" if seats < budget / 5 else "max_num_batched_tokens"), (seats, budget)
            else:
                assert binds == ("kv_blocks" if budget >= 4096 else "max_num_batched_tokens"), (seats, budget)
            allowed = running_caps(seats, budget, KV.tokens, PROMPT, ANSWERS)
            # one prompt is being read beside them, and sits while it gives no token
            assert min(allowed.values()) * 0.97 < _running(run) < min(allowed.values()) * 1.02 + 1.2


def test_the_combinations(chapter: str) -> None:
    assert "more tokens a second, no preemption, and gaps half as long" in chapter
    large, fitting, spread = _run(1024, 8192), _run(150, 8192), _run(150, 1024)
    assert large.preemptions.sum() > 100 and fitting.preemptions.sum() == spread.preemptions.sum() == 0
    assert 1.02 < _tokens_a_second(fitting) / _tokens_a_second(large) < 1.1
    assert _itl_p99(fitting) / _itl_p99(large) == pytest.approx(0.5, abs=0.05)
    assert "gaps down to a quarter of those" in chapter
    assert _itl_p99(spread) / _itl_p99(fitting) == pytest.approx(0.25, abs=0.03)
    apart = ROOF.affine("sum")
    gain = _tokens_a_second(_run(150, 1024, apart)) / _tokens_a_second(_run(150, 8192, apart))
    assert gain == pytest.approx(1, abs=0.01)


def test_budget_of_tokens_at_seven_a_second(chapter: str, seven: sl.Workload) -> None:
    assert "Too small a budget starves prompts and TTFT explodes; a large one makes gaps." in chapter
    runs = {M: sl.simulate(seven, sl.ContinuousBatching(256, M), STEP, kv=KV) for M in (256, 512, 2048, 8192)}
    ttft = {M: metrics.percentile(run.ttft_s, 0.99) for M, run in runs.items()}
    assert ttft[256] > 10 * ttft[512]
    assert _itl_p99(runs[8192]) > 1.8 * _itl_p99(runs[2048]) > 5 * _itl_p99(runs[512])


def test_the_four_regimes(chapter: str) -> None:
    assert "to a peak at 160, drop by some 7 percent and stay flat" in chapter
    assert "grow elevenfold from 1 client to 16" in chapter
    assert "TPOT rises with the clients and stays at 40 ms beyond 192; TTFT stays below a second up to 160" in chapter
    assert "to 97 s at 1,024" in chapter and "From 192 on the curve is flat" in chapter
    tokens, tpot_ms, ttft_s = {}, {}, {}
    for clients in (1, 16, 128, 160, 192, 512, 1024):
        work = sl.closed_loop(
            clients, max(800, 8 * clients), seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER)
        )
        run = sl.simulate(work, sl.ContinuousBatching(1024, 8192), STEP, kv=KV)
        log, end = run.segments, run.duration_s * 1e9
        middle = (log.start_ns > 0.2 * end) & (log.start_ns < 0.7 * end)
        given = ((log.decode_tokens + log.first_tokens) * log.steps)[middle].sum()
        tokens[clients] = given / (log.end_ns - log.start_ns)[middle].sum() * 1e9
        tpot_ms[clients], ttft_s[clients] = 1e3 * np.nanmean(run.tpot_s), run.ttft_s.mean()
    assert tokens[16] / tokens[1] == pytest.approx(11, abs=0.3)
    assert max(tokens, key=tokens.get) == 160
    assert 1 - tokens[1024] / tokens[160] == pytest.approx(0.07, abs=0.01)
    assert tokens[192] == pytest.approx(tokens[512], rel=0.02) == pytest.approx(tokens[1024], rel=0.02)
    assert tpot_ms[16] < tpot_ms[128] < 40 and tpot_ms[192] == pytest.approx(tpot_ms[1024], abs=2)
    assert ttft_s[160] < 1 < 3 < ttft_s[192] and round(ttft_s[1024]) == 97


def test_the_line_that_grows(chapter: str) -> None:
    assert "running requests stay flat near 167, though max_num_seqs is 1,024" in chapter
    assert "to about a thousand after ten minutes" in chapter
    work = sl.poisson(10, 6000, seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER))
    log = sl.simulate(work, sl.ContinuousBatching(1024, 8192), STEP, kv=KV).segments
    settled = (log.start_ns > 100e9) & (log.start_ns < 600e9)
    assert abs(log.running[settled] - 167).max() < 15
    waiting, at = log.waiting[settled], log.start_ns[settled]
    assert np.corrcoef(at, waiting)[0, 1] > 0.99 and 900 < waiting[-1] < 1100


def test_memory_that_runs_out(chapter: str) -> None:
    assert "leaves more than half of the pool empty" in chapter
    reserved = _run(KV.usable_blocks // KV.blocks_of(PROMPT + 4096), 8192)
    lasts = _line(reserved)[1]
    assert (reserved.segments.kv_blocks * lasts).sum() / lasts.sum() < 0.5 * KV.usable_blocks
    assert ANSWERS.max() <= 4096, "the limit cuts no answer"
    crowd = sl.closed_loop(1000, 3000, seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER))
    run = sl.simulate(crowd, sl.ContinuousBatching(1024, 8192), STEP, kv=KV)
    assert "Under a thousand clients" in chapter and run.segments.kv_blocks.max() == KV.usable_blocks
    assert run.finished.all() and run.preemptions.sum() > 0

    cell = re.search(r"arrivals_s, prompts, written = (\[.*?\]), (\[.*?\]), np.array\((\[.*?\])\)", chapter)
    assert cell, "the timeline's requests"
    arrivals_s, prompts, written = (list(map(float, part.strip("[]").split(","))) for part in cell.groups())
    assert len(written) == 6 and "Six requests share a pool of blocks of four tokens" in chapter
    assert "in product((3, 4, 6), (8, 16, 32), (8, 12, 16), (1, 1.5))" in chapter
    lost = {}
    for key in product((3, 4, 6), (8, 16, 32), (8, 12, 16), (1, 1.5)):
        seats, budget, blocks, times = key
        small = sl.Workload.from_arrivals(
            arrivals_s, prompt_tokens=prompts, output_tokens=[times * tokens for tokens in written]
        )
        run = sl.simulate(
            small, sl.ContinuousBatching(seats, budget), sl.AffineStep(0.05, 0.002, 0.002), kv=sl.Blocks(blocks, 4)
        )
        lost[key] = run.preemptions.sum()
    assert lost[3, 8, 8, 1] > 0, "where the sliders stand at first there is a preemption to look for"
    assert "Only 16 blocks together with 3 seats" in chapter
    ended = {
        (seats, blocks)
        for seats, blocks in product((3, 4, 6), (8, 12, 16))
        if not any(lost[seats, budget, blocks, times] for budget, times in product((8, 16, 32), (1, 1.5)))
    }
    assert ended == {(3, 16)}


def test_offload_and_the_stage_before(chapter: str, seven: sl.Workload) -> None:
    assert "Even at a third of it, fetching a 2,500-token chat beats computing it again" in chapter
    model = sl.catalog.model("llama-3.1-8b")
    ratios = [
        ROOF(1, tokens, tokens) / (model.kv_bytes(tokens) / (32e9 * 16 * 128 / 130 / 8))
        for tokens in (500, 2500, 10_000, 40_000, 128_000)
    ]
    assert ratios[1] > 3 and ratios[1] < ratios[2] < ratios[3] < ratios[4]
    assert "which reports an empty queue and a fine TTFT, while users wait for seconds" in chapter
    search = sl.simulate(
        sl.Workload.from_arrivals(seven.arrival_s), sl.ContinuousBatching(1), sl.AffineStep(0.3, 0.0), pots=2
    )
    assert search.wait_s[-100:].mean() > search.wait_s[1000:1100].mean() > 1, "longer every minute"


def test_the_error_budget(chapter: str) -> None:
    assert "times of their first 100 requests come out within 2 percent" in chapter
    runs = [row for row in recorded() if row.part == "runs"]
    assert max(abs(row.error) for row in runs if "unknown" not in row.subject) < 0.02
    unknown = max((row for row in runs if "unknown" in row.subject), key=lambda row: abs(row.error))
    assert "the larger card's TTFT comes out 8 percent short" in chapter
    assert ("PRO6000" in unknown.subject, unknown.figure, round(100 * unknown.error)) == (True, "mean TTFT", -8)
    carried = [abs(row.error) for row in recorded() if row.part == "carried"]
    assert "miss by 17 to 43 percent" in chapter and (round(100 * min(carried)), round(100 * max(carried))) == (17, 43)


def test_the_exercises_answers(chapter: str) -> None:
    assert "`max_num_seqs` is 64, `max_num_batched_tokens` 2,048, and the pool holds 400,000 tokens" in chapter
    caps = running_caps(64, 2048, 400_000, 4000, [100])
    assert "Tokens bind" in chapter and min(caps, key=caps.get) == "max_num_batched_tokens"
    assert "FP8 doubles the blocks to 5,176, of which 5,175 are usable" in chapter and 2 * 2588 == 5176


def test_the_quiz_by_hand() -> None:
    fit, cap, gain, seats, tpot = quiz.load("ch04")
    for v in fit.variants:
        a_block = 16 * v.given["layers"] * v.given["kv_heads"] * 128 * 2 * 2
        each = math.ceil(v.given["tokens"] / 16)
        assert v.answer * each <= v.given["kv_gib"] * 2**30 / a_block < (v.answer + 1) * each
    for v in cap.variants:
        holds = {
            "seats": v.given["running"] == v.given["seats"],
            "tokens": v.given["computed"] == v.given["budget"],
            "blocks": 16 * v.given["free"] < v.given["head"],
        }
        assert [name for name, held_back in holds.items() if held_back] == [v.answer]
        assert v.given["running"] <= v.given["computed"]
    for v in gain.variants:
        assert v.answer * v.given["mean"] == pytest.approx(v.given["longest"], rel=1e-12)
        assert 1 < v.answer < v.given["batch"]
    for v in seats.variants:
        assert v.answer == v.given["rate"] * v.given["stay"] * v.given["held"]
    for v in tpot.variants:
        gap_s = (v.given["last"] - v.given["first"]) / (v.given["tokens"] - 1)
        assert v.answer == pytest.approx(1e3 * gap_s, rel=1e-6) and v.given["first"] > v.given["arrived"]


def test_the_assignment_is_where_the_chapter_says(chapter: str) -> None:
    root = Path(__file__).resolve().parents[1]
    paths = re.findall(r"(exercises/\S+\.ipynb)", chapter)
    assert paths and all((root / path).is_file() for path in paths)
