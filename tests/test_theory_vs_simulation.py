"""The exact laws and the simulator agree within confidence intervals, and disagree where a law's conditions fail.

Intervals are 99.9 % by batch means over the steady state; seeds are fixed. Each comparison also asserts that
its interval is narrow enough to notice an error of one to a few per cent.
"""

from __future__ import annotations

import numpy as np
import pytest
import servinglab as sl
from servinglab import theory
from servinglab.metrics.intervals import Interval, PercentileInterval, batch_means, percentile_interval
from servinglab.workload.lengths import Exponential

POT = sl.AffineStep(fixed_s=0.4, per_request_s=0.02)
WARM_UP = 20_000  # requests, thousands of times what an empty kitchen needs to forget that it was empty


def mean(values: np.ndarray) -> Interval:
    return batch_means(values[WARM_UP:], batches=40, confidence=0.999)


def p99(values: np.ndarray) -> PercentileInterval:
    return percentile_interval(values[WARM_UP:], 0.99, confidence=0.999)


def assert_agrees(exact: float, interval: Interval | PercentileInterval, precision: float) -> None:
    assert exact in interval, (exact, interval)
    assert interval.half_width < precision * exact
    if isinstance(interval, Interval):
        assert abs(interval.lag1) < 0.5  # batches long enough


# Single guests


def test_mm1() -> None:
    work = sl.poisson(rate_rps=0.5, n=2_000_000, seed=11, service_scale=Exponential(1.0))
    served = sl.simulate(work, sl.StaticBatching(1), sl.AffineStep(fixed_s=1.0, per_request_s=0.0))
    law = theory.mm1(rate_rps=0.5, service_s=1.0)
    assert_agrees(law.mean_wait_s, mean(served.wait_s), 0.02)
    assert_agrees(law.mean_latency_s, mean(served.e2e_s), 0.01)
    assert_agrees(law.latency_quantile(0.99), p99(served.e2e_s), 0.03)
    assert_agrees(law.wait_tail(0.0), mean(served.wait_s > 0), 0.01)
    assert_agrees(law.wait_tail(2.0), mean(served.wait_s > 2.0), 0.02)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_md1(load: float) -> None:
    work = sl.poisson(rate_rps=load, n=2_000_000, seed=12)
    served = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(fixed_s=1.0, per_request_s=0.0))
    law = theory.md1(rate_rps=load, service_s=1.0)
    assert_agrees(law.mean_wait_s, mean(served.wait_s), 0.03)
    assert_agrees(law.wait_tail(0.0), mean(served.wait_s > 0), 0.01)
    assert_agrees(law.wait_quantile(0.99), p99(served.wait_s), 0.05)
    assert_agrees(law.mean_in_system, mean_in_system(served), 0.02)


def mean_in_system(served: sl.Result) -> Interval:
    """From the log: the number present, averaged over 40 stretches of equal time."""
    times = np.concatenate([served.arrival_ns, served.finish_ns])
    order = np.argsort(times, kind="stable")
    present = np.cumsum(np.repeat([1.0, -1.0], len(served))[order])
    times = times[order] / 1e9
    area = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])
    edges = np.linspace(times[WARM_UP], served.arrival_s[-1], 41)
    return batch_means(np.diff(np.interp(edges, times, area)) / np.diff(edges), batches=40, confidence=0.999)


@pytest.mark.parametrize("scale_cv", [0.0, 1.0])
def test_pollaczek_khinchine_sees_only_mean_and_cv(scale_cv: float) -> None:
    scale = Exponential(1.0) if scale_cv else 1.0
    work = sl.poisson(rate_rps=0.5, n=2_000_000, seed=13, service_scale=scale)
    served = sl.simulate(work, sl.StaticBatching(1), sl.AffineStep(fixed_s=1.0, per_request_s=0.0))
    exact = theory.pollaczek_khinchine(0.5, 1.0, service_cv=scale_cv)
    assert_agrees(exact, mean(served.wait_s), 0.02)
    other = theory.pollaczek_khinchine(0.5, 1.0, service_cv=1 - scale_cv)
    assert other not in mean(served.wait_s)


# Full batches


def batch_waits(served: sl.Result, size: int) -> np.ndarray:
    """How long each full batch waits for its pot."""
    full = len(served) // size * size
    return (served.scheduled_ns[:full:size] - served.arrival_ns[size - 1 : full : size]) / 1e9


@pytest.mark.parametrize(
    ("size", "rate", "pots", "precision"),
    [(4, 6.0, 1, 0.02), (17, 20.0, 1, 0.06), (15, 20.0, 1, 0.08), (15, 38.0, 2, 0.06)],
)
def test_batches_wait_as_in_ed1(size: int, rate: float, pots: int, precision: float) -> None:
    orders = sl.poisson(rate_rps=rate, n=2_400_000, seed=14)
    served = sl.simulate(orders, sl.StaticBatching(size), POT, pots=pots)
    law = theory.batch_queue(rate, size, POT(size), pots)
    waits = batch_waits(served, size)
    assert_agrees(law.mean_wait_s, mean(waits), precision)
    assert_agrees(law.wait_tail(0.0), mean(waits > 0), precision / 2)
    assert_agrees(law.wait_quantile(0.99), p99(waits), 2 * precision)


@pytest.mark.parametrize(
    ("size", "pots", "precision"), [(15, 1, 0.015), (17, 1, 0.005), (15, 2, 0.005), (16, None, 0.005)]
)
@pytest.mark.slow
def test_guests_of_static_batching(size: int, pots: int | None, precision: float) -> None:
    orders = sl.poisson(rate_rps=20, n=2_400_000, seed=15)
    served = sl.simulate(orders, sl.StaticBatching(size), POT, pots=pots)
    law = theory.static_batching(20, size, POT.fixed_s, POT.per_request_s, pots)
    assert_agrees(law.mean_latency_s, mean(served.e2e_s), precision)
    assert_agrees(law.latency_quantile(0.99), p99(served.e2e_s), 10 * precision)
    for t in (0.1, 0.3, 0.6):
        assert_agrees(law.wait_tail(t), mean(served.wait_s > t), 4 * precision)


def test_lindleys_recursion_to_the_nanosecond() -> None:
    """The n-th batch ends at max(it is full, the pot is free) + D: another implementation in three lines."""
    size = 15
    orders = sl.poisson(rate_rps=20, n=30_000, seed=16)
    served = sl.simulate(orders, sl.StaticBatching(size), POT)
    full, lasts = served.arrival_ns[size - 1 :: size], POT.step_ns(size)
    nth = np.arange(len(full))
    ends = np.maximum.accumulate(full - nth * lasts) + (nth + 1) * lasts
    assert np.array_equal(served.finish_ns, np.repeat(ends, size))


@pytest.mark.parametrize(("size", "window"), [(15, 0.5), (4, 0.5), (40, 0.3)])
def test_gathering_with_a_window(size: int, window: float) -> None:
    orders = sl.poisson(rate_rps=20, n=400_000, seed=23)
    served = sl.simulate(orders, sl.DynamicBatching(size, window), POT, pots=None)
    assert_agrees(theory.gather_mean(20, size, window), mean(served.wait_s), 0.01)
    for t in (0.0, 0.1, 0.29):
        assert_agrees(theory.gather_tail(t, 20, size, window), mean(served.wait_s > t), 0.05)
    assert served.summary().mean_batch_size == pytest.approx(theory.gathered_batch(20, size, window), rel=0.01)


# Taking what is there


@pytest.mark.parametrize(
    ("rate", "limit", "precision"), [(20.0, 32, 0.005), (20.0, 15, 0.02), (3.0, 32, 0.005), (5.0, 3, 0.02)]
)
def test_bulk_service(rate: float, limit: int, precision: float) -> None:
    orders = sl.poisson(rate_rps=rate, n=2_000_000, seed=17)
    served = sl.simulate(orders, sl.ContinuousBatching(limit), POT)
    law = theory.bulk_service(rate, [POT(b) for b in range(1, limit + 1)])
    assert_agrees(law.mean_latency_s, mean(served.e2e_s), precision)
    assert_agrees(law.mean_wait_s, mean(served.wait_s), 2 * precision)
    assert_agrees(law.latency_quantile(0.99), p99(served.e2e_s), 6 * precision)
    for t in (0.3, 0.8, 1.2):
        if 0.01 < law.latency_tail(t) < 0.99:
            assert_agrees(law.latency_tail(t), mean(served.e2e_s > t), 5 * precision)
    log = served.segments
    assert log is not None
    sizes = log.running[WARM_UP // limit :]
    for size in np.flatnonzero(law.batch_pmf > 0.05):
        share = batch_means((sizes == size).astype(float), batches=40, confidence=0.999)
        assert_agrees(law.batch_pmf[size], share, 0.06)
    assert_agrees(law.mean_batch, batch_means(sizes, batches=40, confidence=0.999), 0.01)
    assert served.summary().busy_fraction == pytest.approx(law.utilization, rel=0.005)


def test_taking_what_is_there_to_the_nanosecond() -> None:
    limit = 8
    orders = sl.poisson(rate_rps=12, n=20_000, seed=18)
    served = sl.simulate(orders, sl.ContinuousBatching(limit), POT)
    arrivals, ends, now, first = served.arrival_ns.tolist(), [], 0, 0
    while first < len(arrivals):
        now = max(now, arrivals[first])
        batch = 0
        while batch < limit and first + batch < len(arrivals) and arrivals[first + batch] <= now:
            batch += 1
        now += POT.step_ns(batch)
        ends += [now] * batch
        first += batch
    assert served.finish_ns.tolist() == ends


# Outside the conditions


def test_bursts_break_md1() -> None:
    """The same rate, the same service, gaps with a CV of 2: M/D/1 promises far too little waiting."""
    work = sl.gamma_arrivals(rate_rps=0.8, n=2_000_000, cv=2.0, seed=19)
    served = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(fixed_s=1.0, per_request_s=0.0))
    law = theory.md1(rate_rps=0.8, service_s=1.0)
    assert mean(served.wait_s).low > 2 * law.mean_wait_s
    assert p99(served.wait_s).low > 2 * law.wait_quantile(0.99)
    assert served.summary().busy_fraction == pytest.approx(law.utilization, rel=0.01)  # this needs no such condition


def test_regular_arrivals_need_no_waiting() -> None:
    work = sl.deterministic(rate_rps=0.8, n=1000)
    served = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(fixed_s=1.0, per_request_s=0.0))
    assert served.wait_s.max() == 0.0 < theory.md1(0.8, 1.0).mean_wait_s


def test_one_pot_breaks_the_law_of_endless_pots() -> None:
    orders = sl.poisson(rate_rps=20, n=1_000_000, seed=20)
    latency = sl.simulate(orders, sl.StaticBatching(15), POT).e2e_s
    endless = theory.static_batching(20, 15, POT.fixed_s, POT.per_request_s, pots=None)
    assert p99(latency).low > 1.3 * endless.latency_quantile(0.99)


def test_p99s_of_gathering_and_of_the_batchs_wait_do_not_add() -> None:
    orders = sl.poisson(rate_rps=20, n=2_000_000, seed=21)
    served = sl.simulate(orders, sl.StaticBatching(15), POT)
    batch = theory.batch_queue(20, 15, POT(15))
    added = theory.gather_quantile(0.99, 20, 15) + batch.wait_quantile(0.99) + POT(15)
    assert p99(served.e2e_s).high < 0.85 * added
    assert theory.gather_mean(20, 15) + batch.mean_wait_s + POT(15) in mean(served.e2e_s)


def test_no_steady_state_at_full_load() -> None:
    """Batches of 13 can't keep up with 20 guests per second: the wait grows with the day."""
    orders = sl.poisson(rate_rps=20, n=200_000, seed=22)
    wait = sl.simulate(orders, sl.StaticBatching(13), POT).wait_s
    quarters = wait.reshape(4, -1).mean(axis=1)
    assert (np.diff(quarters) > 10).all()
    with pytest.raises(ValueError, match="the line grows for ever"):
        theory.static_batching(20, 13, POT.fixed_s, POT.per_request_s)
