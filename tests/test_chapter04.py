"""Chapter 04: the numbers that it shows and claims are computed again here."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import servinglab as sl
from page_records import Records
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
def chapter(records: Callable[[str], Records]) -> Records:
    return records("04_concurrency_and_memory")


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


def test_what_a_token_holds(chapter: Records) -> None:
    llama, old, wide, windows = map(sl.catalog.model, ("llama-3.1-8b", "llama-2-7b", "deepseek-v3", "gemma-3-27b"))
    factors = chapter.says("ch04-per-token-factors")
    assert factors == [llama.layers, llama.kv_heads, llama.head_dim]
    assert (
        2 * 2 * math.prod(factors) == chapter.number("ch04-per-token") == 1024 * chapter.says("ch04-per-token-kib")[0]
    )
    assert 2 * llama.layers * llama.kv_heads * llama.head_dim * 2 == 128 * 1024 == llama.kv_bytes_per_token()
    assert chapter.says("ch04-query-heads") == [llama.heads] == [32]
    assert chapter.holds("ch04-four-share") and llama.heads // llama.kv_heads == 4
    assert chapter.holds("ch04-old-holds-four-times")
    assert old.kv_bytes_per_token() == 4 * llama.kv_bytes_per_token() and old.params < llama.params
    latent = [wide.kv_lora_rank, wide.qk_rope_head_dim, round(wide.params / 1e9)]
    assert chapter.says("ch04-latent-vector") == latent == [512, 64, 671]
    assert chapter.holds("ch04-latent-holds-half")
    assert wide.kv_bytes_per_token() / llama.kv_bytes_per_token() == pytest.approx(0.5, abs=0.05)
    sliding = [windows.sliding_layers, windows.layers, windows.sliding_window]
    assert chapter.says("ch04-windows") == sliding == [52, 62, 1024]


def test_the_plane(chapter: Records) -> None:
    edge = KV.tokens / (PROMPT + ANSWER)
    assert chapter.says("ch04-border") == [round(edge), round(5 * edge)] == [167, 834]
    (most_seats,), (most_tokens,) = chapter.says("ch04-seats-up-to"), chapter.says("ch04-tokens-up-to")
    assert chapter.holds("ch04-seats-bind-left") and chapter.holds("ch04-blocks-bind-right")
    assert chapter.says("ch04-blocks-from") == [2 * most_tokens] == [4096]
    for seats in (8, 32, 128, 256, 1024):
        for budget in (64, 256, 512, 1024, 2048, 4096, 8192):
            if budget < seats:
                continue
            run = _run(seats, budget)
            shares = binding_caps(run, _line(run)[0])
            binds = max(shares, key=shares.get)
            if seats <= most_seats:
                assert binds == ("max_num_seqs" if seats < budget / 5 else "max_num_batched_tokens"), (seats, budget)
            else:
                assert binds == ("kv_blocks" if budget > most_tokens else "max_num_batched_tokens"), (seats, budget)
            allowed = running_caps(seats, budget, KV.tokens, PROMPT, ANSWERS)
            # one prompt is being read beside them, and sits while it gives no token
            assert min(allowed.values()) * 0.97 < _running(run) < min(allowed.values()) * 1.02 + 1.2


def test_the_combinations(chapter: Records) -> None:
    assert chapter.holds("ch04-fitting-gives-more") and chapter.holds("ch04-fitting-preempts-none")
    large, fitting, spread = _run(1024, 8192), _run(150, 8192), _run(150, 1024)
    assert large.preemptions.sum() > 100 and fitting.preemptions.sum() == spread.preemptions.sum() == 0
    assert 1.02 < _tokens_a_second(fitting) / _tokens_a_second(large) < 1.1
    assert chapter.holds("ch04-gaps-half-as-long")
    assert _itl_p99(fitting) / _itl_p99(large) == pytest.approx(0.5, abs=0.05)
    assert chapter.holds("ch04-gaps-a-quarter")
    assert _itl_p99(spread) / _itl_p99(fitting) == pytest.approx(0.25, abs=0.03)
    apart = ROOF.affine("sum")
    gain = _tokens_a_second(_run(150, 1024, apart)) / _tokens_a_second(_run(150, 8192, apart))
    assert gain == pytest.approx(1, abs=0.01) and chapter.number("ch04-spread-sum") <= 1


def test_budget_of_tokens_at_seven_a_second(chapter: Records, seven: sl.Workload) -> None:
    runs = {M: sl.simulate(seven, sl.ContinuousBatching(256, M), STEP, kv=KV) for M in (256, 512, 2048, 8192)}
    ttft = {M: metrics.percentile(run.ttft_s, 0.99) for M, run in runs.items()}
    assert chapter.holds("ch04-small-budget-starves-prompts") and ttft[256] > 10 * ttft[512]
    assert chapter.holds("ch04-large-budget-makes-gaps")
    assert _itl_p99(runs[8192]) > 1.8 * _itl_p99(runs[2048]) > 5 * _itl_p99(runs[512])


def test_the_four_regimes(chapter: Records) -> None:
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
    assert chapter.holds("ch04-elevenfold") and tokens[16] / tokens[1] == pytest.approx(11, abs=0.3)
    assert chapter.says("ch04-grows-up-to") == [16, max(tokens, key=tokens.get)] == [16, 160]
    assert chapter.says("ch04-drops-by") == [pytest.approx(100 * (1 - tokens[1024] / tokens[160]), abs=1)]
    assert chapter.holds("ch04-stays-flat")
    assert tokens[192] == pytest.approx(tokens[512], rel=0.02) == pytest.approx(tokens[1024], rel=0.02)
    assert chapter.holds("ch04-tpot-rises") and tpot_ms[16] < tpot_ms[128] < 40
    assert chapter.says("ch04-tpot-stays") == [40] * 4
    assert [tpot_ms[192], tpot_ms[1024]] == pytest.approx([40, 40], abs=2)
    assert chapter.holds("ch04-ttft-below-a-second") and chapter.holds("ch04-ttft-rises-steeply")
    assert ttft_s[160] < 1 < 3 < ttft_s[192]
    assert chapter.says("ch04-ttft-ends") == [1024, round(ttft_s[1024])] == [1024, 99]


def test_the_line_that_grows(chapter: Records) -> None:
    assert chapter.holds("ch04-running-stays-flat") and chapter.says("ch04-flat-near") == [167]
    assert chapter.holds("ch04-straight-to-a-thousand")
    work = sl.poisson(10, 6000, seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER))
    log = sl.simulate(work, sl.ContinuousBatching(1024, 8192), STEP, kv=KV).segments
    settled = (log.start_ns > 100e9) & (log.start_ns < 600e9)
    assert abs(log.running[settled] - 167).max() < 15
    waiting, at = log.waiting[settled], log.start_ns[settled]
    assert np.corrcoef(at, waiting)[0, 1] > 0.99 and 900 < waiting[-1] < 1100


def test_memory_that_runs_out(chapter: Records) -> None:
    assert chapter.holds("ch04-reserving-leaves-half-empty")
    reserved = _run(KV.usable_blocks // KV.blocks_of(PROMPT + 4096), 8192)
    lasts = _line(reserved)[1]
    assert (reserved.segments.kv_blocks * lasts).sum() / lasts.sum() < 0.5 * KV.usable_blocks
    assert chapter.holds("ch04-limit-cuts-none") and ANSWERS.max() <= 4096
    crowd = sl.closed_loop(1000, 3000, seed=3, prompt_tokens=PROMPT, output_tokens=Geometric(ANSWER))
    run = sl.simulate(crowd, sl.ContinuousBatching(1024, 8192), STEP, kv=KV)
    assert chapter.holds("ch04-pool-fills-and-no-more") and run.segments.kv_blocks.max() == KV.usable_blocks
    assert run.finished.all() and run.preemptions.sum() > 0

    assert chapter.holds("ch04-six-share")
    assert chapter.holds("ch04-one-is-lost-at-first"), "where the sliders stand at first there is one to look for"
    assert chapter.says("ch04-what-ends-them") == [3, 16]


def test_offload_and_the_stage_before(chapter: Records, seven: sl.Workload) -> None:
    model = sl.catalog.model("llama-3.1-8b")
    ratios = [
        ROOF(1, tokens, tokens) / (model.kv_bytes(tokens) / (32e9 * 16 * 128 / 130 / 8))
        for tokens in (500, 2500, 10_000, 40_000, 128_000)
    ]
    assert chapter.holds("ch04-a-third-is-enough") and min(ratios) > 3
    assert chapter.holds("ch04-longer-is-better") and ratios[1] < ratios[2] < ratios[3] < ratios[4]
    assert chapter.holds("ch04-engine-sees-no-queue") and chapter.holds("ch04-longer-every-minute")
    search = sl.simulate(
        sl.Workload.from_arrivals(seven.arrival_s), sl.ContinuousBatching(1), sl.AffineStep(0.3, 0.0), pots=2
    )
    assert search.wait_s[-100:].mean() > search.wait_s[1000:1100].mean() > 1, "longer every minute"


def test_the_error_budget(chapter: Records) -> None:
    runs = [row for row in recorded() if row.part == "runs"]
    assert chapter.holds("ch04-within-two-percent")
    assert max(abs(row.error) for row in runs if "unknown" not in row.subject) < 0.02
    unknown = max((row for row in runs if "unknown" in row.subject), key=lambda row: abs(row.error))
    assert chapter.holds("ch04-larger-card-ttft")
    assert ("PRO6000" in unknown.subject, unknown.figure) == (True, "mean TTFT")
    assert chapter.says("ch04-percent-short") == [round(-100 * unknown.error)] == [8]
    carried = [abs(row.error) for row in recorded() if row.part == "carried"]
    assert chapter.says("ch04-carried-miss") == [round(100 * min(carried)), round(100 * max(carried))] == [17, 43]


def test_the_exercises_answers(chapter: Records) -> None:
    caps = running_caps(64, 2048, 400_000, 4000, [100])
    assert chapter.holds("ch04-tokens-bind") and min(caps, key=caps.get) == "max_num_batched_tokens"
    shown = chapter.says("ch04-which-seats") + [chapter.number(f"ch04-which-{cap}") for cap in ("tokens", "blocks")]
    assert shown == pytest.approx([64, 2048 * 100 / 4100, 400_000 / 4050], abs=0.05)
    blocks, usable = chapter.says("ch04-fp8-doubles")
    assert blocks == 2 * 2588 and usable == blocks - 1
    assert chapter.number("ch04-card-8") == usable // math.ceil(2500 / 16)


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
