"""The laws of tokens at known values, and against the simulator inside and outside their conditions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from scipy import stats
from servinglab import theory
from servinglab.metrics.intervals import Interval, batch_means
from servinglab.workload.lengths import Constant, Geometric, Uniform

A, B = 0.02, 0.0005
STEP = sl.AffineStep(A, B)
ENDLESS = sl.ContinuousBatching(100_000)
WARM_UP = 5_000


def mean(values: np.ndarray) -> Interval:
    return batch_means(values[WARM_UP:], batches=40, confidence=0.999)


def saturated(scheduler: Any, work: sl.Workload, step: sl.AffineStep, skip: int) -> float:
    """Requests per second while the line is never empty: between the first and the last `skip` of them."""
    finish = np.sort(sl.simulate(work, scheduler, step).finish_s)
    return (len(finish) - 2 * skip) / float(finish[-skip] - finish[skip])


def at_once(n: int, prompt: int = 0, seed: int = 1, mean_tokens: int = 100) -> sl.Workload:
    lengths = Geometric(mean_tokens).sample(np.random.default_rng(seed), n)
    return sl.Workload.from_arrivals(np.zeros(n), prompt_tokens=prompt, output_tokens=lengths)


# Sharing


@pytest.mark.parametrize(("fixed", "per_request"), [(0.02, 0.0005), (0.0, 0.001), (0.02, 0.0), (0.003, 0.002)])
def test_sharing_is_the_product_formula(fixed: float, per_request: float) -> None:
    rate, tokens = 2.0, 200.0
    law = theory.decode_sharing(rate, tokens, fixed, per_request)
    n = np.arange(600)
    weights = np.concatenate([[1.0], np.cumprod(rate * tokens * (fixed + per_request * n[1:]) / n[1:])])
    p = weights / weights.sum()
    assert law.pmf(n) == pytest.approx(p, rel=1e-6, abs=1e-12)
    assert law.mean_in_system == pytest.approx(p @ n, rel=1e-6)
    assert law.tail(10) == pytest.approx(p[11:].sum(), rel=1e-6, abs=1e-12)
    q = law.quantile(0.99)
    assert p[: q + 1].sum() >= 0.99 > p[:q].sum()
    assert law.mean_latency_s == pytest.approx(law.mean_in_system / rate)


@pytest.mark.parametrize(
    "lengths", [Geometric(500), Constant(500), Uniform(1, 999)], ids=lambda law: type(law).__name__
)
def test_sharing_whatever_the_lengths(lengths: Any) -> None:
    work = sl.poisson(rate_rps=1.6, n=60_000, seed=5, output_tokens=lengths)
    served = sl.simulate(work, ENDLESS, STEP)
    law = theory.decode_sharing(1.6, 500, A, B)
    interval = mean(served.e2e_s)
    assert law.mean_latency_s in interval
    assert interval.half_width < 0.03 * law.mean_latency_s
    log = served.segments
    assert log is not None
    time_s = np.bincount(log.running, weights=(log.end_ns - log.start_ns) / 1e9, minlength=200)
    p = time_s / served.duration_s
    p[0] = 1 - p[1:].sum()
    expected = law.pmf(np.arange(len(p)))
    assert np.abs(p - expected).sum() / 2 < 0.04  # the total variation between seen and computed
    within = np.where(served.output_tokens > 1, served.tpot_s, np.nan)
    long = served.output_tokens > 700
    if long.any():  # a long answer's tokens take as long as others'
        assert np.nanmean(within[long]) == pytest.approx(law.tpot_s, rel=0.03)


def test_bursts_break_sharing() -> None:
    work = sl.gamma_arrivals(rate_rps=1.6, n=60_000, cv=4, seed=5, output_tokens=Constant(500))
    law = theory.decode_sharing(1.6, 500, A, B)
    assert mean(sl.simulate(work, ENDLESS, STEP).e2e_s).low > 1.05 * law.mean_latency_s


def test_few_tokens_break_sharing() -> None:
    """With 5 tokens instead of 500, the half step that an arrival waits for is a tenth of its stay."""
    work = sl.poisson(rate_rps=160, n=60_000, seed=5, output_tokens=5)
    law = theory.decode_sharing(160, 5, A, B)
    assert mean(sl.simulate(work, ENDLESS, STEP).e2e_s).low > 1.05 * law.mean_latency_s


def test_under_a_cap_the_lengths_law_matters() -> None:
    """The same means and a cap that binds: sharing with a line is M/G/1-like, and varied lengths wait longer."""
    law = theory.decode_sharing(1.6, 500, A, B)
    assert law.tail(31) > 0.2
    waits = {}
    for lengths in (Constant(500), Geometric(500)):
        work = sl.poisson(rate_rps=1.6, n=400_000, seed=6, output_tokens=lengths)
        waits[type(lengths)] = mean(sl.simulate(work, sl.ContinuousBatching(32), STEP).wait_s)
    assert waits[Geometric].low > 1.3 * waits[Constant].high


# TPOT and capacity


def test_tpot_is_sharings_without_prompts() -> None:
    assert theory.tpot_s(4, 200, A, B) == pytest.approx(theory.decode_sharing(4, 200, A, B).tpot_s)


@pytest.mark.parametrize("per_prefill", [2e-5, 1e-4])
def test_tpot_with_prompts(per_prefill: float) -> None:
    work = sl.poisson(4, 40_000, seed=7, prompt_tokens=1000, output_tokens=Geometric(200))
    served = sl.simulate(work, ENDLESS, sl.AffineStep(A, B, per_prefill))
    seen = np.sum(served.finish_s - served.first_token_s) / np.sum(served.output_tokens - 1)
    assert seen == pytest.approx(theory.tpot_s(4, 200, A, B, per_prefill, 1000), rel=0.04)


def test_long_prompts_break_tpot() -> None:
    """Prompts of 0.6 s each, one a second: who has one beside it loses its whole time."""
    work = sl.poisson(1, 20_000, seed=7, prompt_tokens=3000, output_tokens=Geometric(200))
    served = sl.simulate(work, sl.ContinuousBatching(2000), sl.AffineStep(A, B, 2e-4))
    seen = np.sum(served.finish_s - served.first_token_s) / np.sum(served.output_tokens - 1)
    assert seen > 1.1 * theory.tpot_s(1, 200, A, B, 2e-4, 3000)


@pytest.mark.parametrize(("seats", "prompt"), [(8, 0), (8, 500), (64, 500)])
def test_capacity_under_a_cap(seats: int, prompt: int) -> None:
    work = at_once(6000, prompt)
    seen = saturated(sl.ContinuousBatching(seats), work, sl.AffineStep(A, B, 1e-4), skip=400)
    answer = float(work.output_tokens.mean())
    assert seen == pytest.approx(theory.max_rate_rps(seats, answer, A, B, 1e-4, prompt), rel=0.02)


@pytest.mark.parametrize("budget", [64, 256])
def test_capacity_under_a_budget_of_tokens(budget: int) -> None:
    work = at_once(6000, prompt=500)
    seen = saturated(sl.ContinuousBatching(budget, budget), work, sl.AffineStep(A, B, 1e-4), skip=800)
    answer = float(work.output_tokens.mean())
    seats = theory.budget_seats(budget, answer, 500)
    assert seen == pytest.approx(theory.max_rate_rps(seats, answer, A, B, 1e-4, 500), rel=0.03)
    assert seen < 0.9 * theory.max_rate_rps(budget, answer, A, B, 1e-4, 500)  # which takes every seat for taken


def test_capacity_limits() -> None:
    assert theory.max_rate_rps(math.inf, 200, A, B) == pytest.approx(1 / (200 * B))
    assert theory.max_rate_rps(math.inf, 200, A, 0.0) == math.inf
    assert theory.max_rate_rps(15, 1, 0.4, 0.02) == pytest.approx(sl.theory.pot_rate(15, 0.4, 0.02))


# KV held


def test_kv_held_weighs_requests_by_their_length() -> None:
    rng = np.random.default_rng(8)
    outputs = np.where(rng.random(60_000) < 0.9, 50, 1000)  # E[T] = 145, E[T²]/(2E[T]) = 352.6
    work = sl.poisson(4, 60_000, seed=8, prompt_tokens=40, output_tokens=outputs)
    served = sl.simulate(work, ENDLESS, STEP)
    log = served.segments
    assert log is not None
    lasts = (log.end_ns - log.start_ns) / 1e9
    held = (log.kv_tokens + (log.steps - 1) / 2 * log.charged) @ lasts / served.duration_s
    stay = float(served.e2e_s.mean())
    assert held == pytest.approx(theory.kv_tokens_held(work.rate_rps, stay, 40, outputs), rel=0.02)
    assert held > 2.5 * work.rate_rps * stay * (40 + outputs.mean() / 2)  # what "on average half done" would say


def test_kv_held_with_prompts_that_go_with_answers() -> None:
    assert theory.kv_tokens_held(1, 1, [100, 300], [10, 30]) == pytest.approx(
        (100 * 10 + 300 * 30) / 40 + (10**2 + 30**2) / 2 / 40
    )
    assert theory.kv_tokens_held(1, 1, 100, 10) == 105


# Static batches


def test_longest_of_is_the_law_of_the_largest() -> None:
    k = np.arange(40_000)
    for mean_tokens, size in ((1.5, 3), (200, 1), (200, 64)):
        cdf = stats.geom(1 / mean_tokens).cdf(k)
        assert theory.longest_of(Geometric(mean_tokens), size) == pytest.approx(np.sum(1 - cdf**size), rel=1e-8)
    assert theory.longest_of(Geometric(1), 5) == 1.0
    assert theory.longest_of([7], 9) == 7.0
    draws = np.random.default_rng(1).integers(1, 7, size=(200_000, 3)).max(axis=1)
    error = 4 * draws.std() / math.sqrt(len(draws))
    assert theory.longest_of(range(1, 7), 3) == pytest.approx(draws.mean(), abs=error)


@pytest.mark.parametrize("size", [8, 32])
def test_static_batches_last_as_long_as_their_longest_answer(size: int) -> None:
    work = at_once(400 * size)
    served = sl.simulate(work, sl.StaticBatching(size), STEP)
    seen = len(work) / served.duration_s
    assert seen == pytest.approx(theory.static_rate_rps(work.output_tokens, size, A, B), rel=0.02)
    per_mean = size / (work.output_tokens.mean() * STEP(size))
    assert seen < 0.5 * per_mean  # what E[T] would promise


def test_sorted_lengths_break_the_longest() -> None:
    """Neighbours of equal length: the batch's longest is no longer than the others."""
    lengths = np.sort(at_once(3200).output_tokens)
    work = sl.Workload.from_arrivals(np.zeros(3200), output_tokens=lengths)
    seen = 3200 / sl.simulate(work, sl.StaticBatching(32), STEP).duration_s
    assert seen > 3 * theory.static_rate_rps(lengths, 32, A, B)


def test_static_throughput_can_fall_with_the_batch() -> None:
    lengths = [1] * 99 + [1000]
    rates = [theory.static_rate_rps(lengths, size, 0.001, 0.01) for size in (1, 16)]
    assert rates[0] > rates[1]


# Overload


def test_overload_grows_in_time_and_recovers() -> None:
    """Batches of 13 carry 19.7 orders a second; 24 come for ten minutes, then 15."""
    capacity = sl.theory.pot_rate(13, 0.4, 0.02)
    work = sl.rate_profile([0, 600, 600, 2400], [24, 24, 15, 15], seed=9)
    served = sl.simulate(work, sl.StaticBatching(13), sl.AffineStep(0.4, 0.02))
    for t in (200, 400, 590):
        near = np.abs(served.arrival_s - t) < 10
        noise = 4 * math.sqrt(24 * t) / capacity + 1  # of the count of arrivals, and a batch
        assert served.wait_s[near].mean() == pytest.approx(theory.overload_wait_s(t, 24, capacity), abs=noise)
    calm = 600 + theory.recovery_s(600, 24, capacity, 15)
    waiting = served.wait_s > 2.0
    last = served.arrival_s[waiting].max()
    assert last == pytest.approx(calm, rel=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.decode_sharing(10, 200, A, B), r"rate_rps must be < .* = 10, or the requests inside grow"),
        (lambda: theory.decode_sharing(1, 200, 0, 0), r"fixed_s \+ per_request_s must be > 0"),
        (lambda: theory.tpot_s(9, 200, A, B, 1e-4, 1000), r"rate_rps must be < 1/\(b·T \+ c·P\) = 5"),
        (lambda: theory.max_rate_rps(0, 200, A, B), "max_num_seqs must be a finite number > 0; got 0"),
        (
            lambda: theory.kv_tokens_held(1, 1, [1, 2], [1, 2, 3]),
            "prompt_tokens must be as many as output_tokens, 3; got 2",
        ),
        (lambda: theory.longest_of([], 2), "output_tokens must hold at least one length"),
        (lambda: theory.overload_wait_s(1, 1, 2), "rate_rps must be a finite number >= 2"),
        (lambda: theory.recovery_s(1, 3, 2, 2), "later_rate_rps must be a finite number >= 0 and < 2"),
    ],
)
def test_refuses(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
