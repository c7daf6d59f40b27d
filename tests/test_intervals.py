"""How sure we are: known answers, exact coverage where a law gives it, and coverage in queues by simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from servinglab import theory
from servinglab.metrics.intervals import (
    batch_means,
    independent_percentile_interval,
    percentile_interval,
    promise_confidence,
    samples_needed,
)

# How many samples


def test_samples_for_a_p99() -> None:
    assert [samples_needed(late) for late in range(3)] == [459, 662, 838]
    assert samples_needed(confidence=0.95) == 299
    assert samples_needed(q=0.999) == 4603
    assert samples_needed(q=0.5, confidence=0.5) == 1
    assert samples_needed(q=0.9, confidence=0.19) == 2  # 0.9² is 0.81, though not in floating point
    assert samples_needed(confidence=1 - 1e-14) == 3208  # ln 1e-14 / ln 0.99


@given(st.integers(0, 20), st.floats(0.5, 0.999), st.floats(0.5, 0.999))
@settings(max_examples=40)
def test_samples_needed_is_the_fewest(late: int, q: float, confidence: float) -> None:
    n = samples_needed(late, q, confidence)
    assert promise_confidence(n, late, q) >= confidence - 1e-9
    assert n == late + 1 or promise_confidence(n - 1, late, q) < confidence


def test_confidence_by_hand() -> None:
    assert promise_confidence(100) == pytest.approx(1 - 0.99**100)
    assert promise_confidence(662, late=1) == pytest.approx(1 - 0.99**662 - 662 * 0.01 * 0.99**661)
    assert promise_confidence(5, late=5) == pytest.approx(0.0, abs=1e-15)


def test_what_the_bound_assumes_fails_in_a_queue() -> None:
    """A kitchen whose P99 is just above the limit: how often is none of 459 orders in a row late?"""
    limit = theory.static_batching(20, 15, 0.4, 0.02).latency_quantile(0.9895)  # 1.05 % are late
    served = sl.simulate(sl.poisson(20, 459_000, seed=3), sl.StaticBatching(15), sl.AffineStep(0.4, 0.02))
    rows = served.e2e_s.reshape(-1, 459)
    in_a_row = np.mean((rows <= limit).all(axis=1))
    shuffled = np.random.default_rng(1).permutation(served.e2e_s).reshape(-1, 459)
    independent = np.mean((shuffled <= limit).all(axis=1))
    assert independent < 0.01 + 4 * math.sqrt(0.01 * 0.99 / len(rows))  # at most 1 %, as promised
    assert in_a_row > 0.5


# Independent values


@pytest.mark.parametrize(("n", "q"), [(50, 0.5), (300, 0.9), (2000, 0.99)])
def test_ends_are_the_nearest_ranks_that_are_sure_enough(n: int, q: float) -> None:
    interval = independent_percentile_interval(np.arange(1, n + 1), q, confidence=0.9)
    low, high = int(interval.low), int(interval.high)
    count = stats.binom(n, q)
    assert (
        count.cdf(low - 1) <= 0.05 < count.cdf(low)
    )  # the true value lies below the low end: fewer than `low` below it
    assert count.sf(high - 1) <= 0.05 < count.sf(high - 2)
    assert count.cdf(high - 1) - count.cdf(low - 1) >= 0.9


def test_fewest_values_with_both_ends() -> None:
    assert independent_percentile_interval(np.arange(367), 0.99).high == math.inf  # 0.99^367 = 0.02501
    assert independent_percentile_interval(np.arange(368), 0.99).high == 367
    assert independent_percentile_interval([3.0], 0.5).low == -math.inf


def test_independent_interval_covers_and_for_ties_too() -> None:
    rng = np.random.default_rng(4)
    true = -math.log(0.01)
    draws = rng.exponential(size=(2000, 1000))
    covered = np.mean([true in independent_percentile_interval(row, 0.99) for row in draws])
    count = stats.binom(1000, 0.99)
    promised = count.cdf(996) - count.cdf(982)
    assert promised >= 0.95
    assert abs(covered - promised) < 4 * math.sqrt(promised * (1 - promised) / len(draws))
    tied = rng.integers(1, 7, size=(500, 200))
    assert np.mean([5 in independent_percentile_interval(row, 0.8) for row in tied]) >= 0.95  # the P80 of a die


# One queue's values


def _autoregressive(rng: np.random.Generator, runs: int, n: int, memory: float = 0.9) -> np.ndarray:
    """Stationary AR(1) series with mean 0 and variance 1, one a row."""
    from scipy.signal import lfilter

    noise = rng.normal(size=(runs, n)) * math.sqrt(1 - memory**2)
    noise[:, 0] = rng.normal(size=runs)
    return np.asarray(lfilter([1.0], [1.0, -memory], noise, axis=1))


def _coverage_limits(runs: int) -> tuple[float, float]:
    """Where the share of 95 % intervals that cover may lie: 4 standard errors, and 2 points for finite batches."""
    noise = 4 * math.sqrt(0.95 * 0.05 / runs)
    return 0.93 - noise, 0.97 + noise


def test_batch_means_cover_where_independence_does_not() -> None:
    series = _autoregressive(np.random.default_rng(5), runs=300, n=6000)
    covered = np.mean([0.0 in batch_means(row) for row in series])
    low, high = _coverage_limits(len(series))
    assert low < covered < high
    naive = np.mean([abs(row.mean()) <= 1.96 * row.std(ddof=1) / math.sqrt(len(row)) for row in series])
    assert naive < 0.5  # the same series, taken for independent values


def test_batch_means_by_hand() -> None:
    interval = batch_means([100.0, 1, 3, 2, 4, 3, 5], batches=3)  # 7 = 3·2 + 1: the first is left out
    assert (interval.batches, interval.batch_size) == (3, 2)
    assert interval.estimate == 3.0
    assert interval.half_width == pytest.approx(4.302652729911275 * 1.0 / math.sqrt(3))  # t(0.975; 2), s = 1
    assert interval.lag1 == 0.0
    wider = batch_means([1.0, 3, 2, 4, 3, 5], batches=3, confidence=0.99)
    assert wider.half_width > interval.half_width


def test_lag1_warns_of_short_batches() -> None:
    row = _autoregressive(np.random.default_rng(7), runs=1, n=30_000, memory=0.999)[0]
    assert batch_means(row, batches=3000).lag1 > 0.8
    assert abs(batch_means(row, batches=10).lag1) < 2 / math.sqrt(10)


def test_percentile_interval_covers() -> None:
    series = _autoregressive(np.random.default_rng(6), runs=300, n=12_000)
    true = float(stats.norm.ppf(0.9))
    intervals = [percentile_interval(row, 0.9) for row in series]
    low, high = _coverage_limits(len(series))
    assert low < np.mean([true in each for each in intervals]) < high
    worth = np.mean([each.independent_samples for each in intervals])
    # the series itself is worth n·(1 − 0.9)/(1 + 0.9) values; whether it is above a level is remembered less long
    assert 12_000 / 19 < worth < 12_000 / 5


def _mm1(rng: np.random.Generator, load: float, n: int, warm_up: int) -> np.ndarray:
    """Latencies of M/M/1 by Lindley's recursion."""
    gaps, services = rng.exponential(1 / load, n + warm_up), rng.exponential(1.0, n + warm_up)
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    return (walk - np.minimum.accumulate(walk) + services)[warm_up:]


@pytest.mark.parametrize(("load", "n"), [(0.5, 20_000), (0.7, 30_000), (0.9, 60_000)])
def test_percentile_interval_covers_in_a_queue(load: float, n: int) -> None:
    """Also near saturation, where a run of this length has hardly seen a late hour: there it has no upper end."""
    rng, runs = np.random.default_rng(8), 200
    true = -math.log(0.01) / (1 - load)
    intervals = [percentile_interval(_mm1(rng, load, n, 10_000), 0.99) for _ in range(runs)]
    assert np.mean([true in each for each in intervals]) > 0.92 - 3 * math.sqrt(0.92 * 0.08 / runs)
    bounded = np.mean([each.high < math.inf for each in intervals])
    assert bounded > 0.5 if load < 0.8 else bounded < 0.1


def test_independent_values_are_worth_what_they_are() -> None:
    rng = np.random.default_rng(9)
    intervals = [percentile_interval(rng.exponential(size=20_000), 0.99) for _ in range(100)]
    exact = independent_percentile_interval(rng.exponential(size=20_000), 0.99).half_width
    assert np.median([each.independent_samples for each in intervals]) == pytest.approx(20_000, rel=0.15)
    assert np.median([each.half_width for each in intervals]) == pytest.approx(exact, rel=0.3)


def test_percentile_interval_of_what_never_came() -> None:
    values = np.concatenate([np.ones(990), np.full(40, math.inf)])
    interval = percentile_interval(np.random.default_rng(1).permutation(values), 0.99)
    assert interval.estimate == math.inf == interval.high
    same = percentile_interval(np.ones(1000), 0.99)
    assert (same.low, same.estimate, same.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batch_means([1.0] * 29), "values must be at least as many as batches, 30; got 29"),
        (lambda: batch_means([1.0, math.nan, 2.0], batches=2), "no NaN"),
        (lambda: batch_means([1.0, math.inf, 2.0], batches=2), "values must be finite; got 1 infinite ones"),
        (lambda: batch_means([1.0, 2.0], batches=1), "batches must be a whole number >= 2; got 1"),
        (lambda: batch_means([1.0, 2.0], batches=2, confidence=95), "confidence must be"),
        (lambda: percentile_interval(np.arange(999), 0.99), r"at least 10/\(1 - q\) = 1000 for q=0.99; got 999"),
        (lambda: percentile_interval(np.arange(1000), 1.0), "q must be a finite number > 0 and < 1"),
        (lambda: independent_percentile_interval([], 0.5), "values must be a sequence of at least one number"),
        (lambda: samples_needed(late=-1), "late must be a whole number >= 0; got -1"),
        (lambda: promise_confidence(10, late=11), "late must be a whole number >= 0 and <= 10; got 11"),
    ],
)
def test_intervals_refuse(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
