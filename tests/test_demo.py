"""The first document's demo, to the last digit, and what it hides: the pots, the sample, the percentile, the stop."""

from __future__ import annotations

import random

import numpy as np
import pytest
import servinglab as sl
from servinglab import metrics, theory
from servinglab.metrics.intervals import percentile_interval
from servinglab.metrics.percentiles import percentile

RATE, FIXED, PER_REQUEST, SLO = 20, 0.4, 0.02, 1.8
POT = sl.AffineStep(fixed_s=FIXED, per_request_s=PER_REQUEST)


def demo_arrivals() -> list[float]:
    rng, t, arrivals = random.Random(42), 0.0, []
    for _ in range(1000):
        t += rng.expovariate(1 / 0.05)
        arrivals.append(t)
    return arrivals


ORDERS = sl.Workload.from_arrivals(demo_arrivals())


def run(batch_size: int, pots: int | None) -> tuple[float, float]:
    """Throughput and P99 as the demo counts them."""
    served = sl.simulate(ORDERS, sl.StaticBatching(batch_size, last="full_price"), POT, pots=pots)
    since_opening = metrics.Window([(0.0, served.finish_s.max())])  # the demo counts from time 0
    return metrics.request_throughput(served, since_opening), percentile(served.e2e_s, 0.99, rule="demo")


def the_demos_own_loop(batch_size: int) -> tuple[float, float]:
    """The document's arithmetic: every batch starts when its last guest is there, whatever else is cooking."""
    arrivals = demo_arrivals()
    latencies, last_finish = [], 0.0
    for start in range(0, len(arrivals), batch_size):
        stop = min(start + batch_size, len(arrivals))
        last_finish = arrivals[stop - 1] + FIXED + batch_size * PER_REQUEST
        latencies += [last_finish - arrival for arrival in arrivals[start:stop]]
    return len(arrivals) / last_finish, sorted(latencies)[int(len(latencies) * 0.99) - 1]


@pytest.mark.parametrize("batch_size", range(1, 33))
def test_endless_pots_are_the_demos_loop(batch_size: int) -> None:
    throughput, p99 = run(batch_size, pots=None)
    expected_throughput, expected_p99 = the_demos_own_loop(batch_size)
    assert throughput == pytest.approx(expected_throughput, rel=1e-9)
    assert p99 == pytest.approx(expected_p99, abs=2e-9)  # two roundings to nanoseconds


def test_the_demo_to_the_last_digit() -> None:
    best = 1
    for batch_size in range(1, 33):
        if run(batch_size, pots=None)[1] > SLO:
            break  # the demo stops at the first failure
        best = batch_size
    throughput, p99 = run(best, pots=None)
    assert (best, f"{throughput:.2f}", f"{p99:.3f}") == (15, "18.71", "1.746")


@pytest.mark.parametrize(
    ("batch_size", "p99"), [(1, "363.643"), (10, "8.075"), (14, "1.966"), (15, "1.823"), (16, "1.848")]
)
def test_the_same_arrivals_with_one_pot(batch_size: int, p99: str) -> None:
    assert f"{run(batch_size, pots=1)[1]:.3f}" == p99


def test_fifteen_is_the_samples_best_with_one_pot_and_misses_the_slo() -> None:
    p99 = {batch_size: run(batch_size, pots=1)[1] for batch_size in range(1, 65)}
    assert min(p99, key=p99.__getitem__) == 15
    assert p99[15] > SLO


def test_a_thousand_guests_have_the_same_p99_by_nearest_rank() -> None:
    served = sl.simulate(ORDERS, sl.StaticBatching(15), POT, pots=None)
    assert percentile(served.e2e_s, 0.99) == percentile(served.e2e_s, 0.99, rule="demo")
    assert percentile(served.e2e_s, 0.99, rule="linear") > percentile(served.e2e_s, 0.99)


# The long run


def exact_p99(batch_size: int, pots: int | None) -> float:
    return theory.static_batching(RATE, batch_size, FIXED, PER_REQUEST, pots).latency_quantile(0.99)


def test_the_long_run_with_endless_pots_allows_sixteen() -> None:
    assert exact_p99(16, pots=None) == pytest.approx(1.772, abs=5e-4)
    assert [b for b in range(1, 65) if exact_p99(b, pots=None) <= SLO] == list(range(1, 17))


def test_the_long_run_with_one_pot_meets_the_slo_with_no_batch() -> None:
    first = theory.min_stable_batch(RATE, FIXED, PER_REQUEST)
    assert first == 14
    p99 = {batch_size: exact_p99(batch_size, pots=1) for batch_size in range(first, 65)}
    best = min(p99, key=p99.__getitem__)
    assert best == 17
    assert p99[17] == pytest.approx(1.945, abs=5e-4)
    assert p99[15] == pytest.approx(2.569, abs=5e-4)
    assert p99[17] > SLO


def test_taking_what_is_there_meets_the_slo() -> None:
    law = theory.bulk_service(RATE, [POT(b) for b in range(1, 33)])
    assert law.latency_quantile(0.99) == pytest.approx(1.537, abs=5e-4)


@pytest.mark.parametrize(
    ("scheduler", "pots", "law"),
    [
        (sl.StaticBatching(15), 1, theory.static_batching(RATE, 15, FIXED, PER_REQUEST)),
        (sl.StaticBatching(17), 1, theory.static_batching(RATE, 17, FIXED, PER_REQUEST)),
        (sl.StaticBatching(16), None, theory.static_batching(RATE, 16, FIXED, PER_REQUEST, pots=None)),
        (sl.ContinuousBatching(32), 1, theory.bulk_service(RATE, [POT(b) for b in range(1, 33)])),
    ],
    ids=["15, one pot", "17, one pot", "16, endless", "up to 32"],
)
@pytest.mark.slow
def test_the_simulated_long_run_agrees(
    scheduler: sl.StaticBatching | sl.ContinuousBatching, pots: int | None, law: theory.QueueLaw
) -> None:
    orders = sl.poisson(rate_rps=RATE, n=2_000_000, seed=2024)
    latency = sl.simulate(orders, scheduler, POT, pots=pots).e2e_s[20_000:]
    interval = percentile_interval(latency, 0.99, confidence=0.999)
    assert law.latency_quantile(0.99) in interval
    assert interval.half_width < 0.06 * interval.estimate


def test_so_lucky_a_thousand_guests_are_common() -> None:
    orders = sl.poisson(rate_rps=RATE, n=1_000_000, seed=7)
    latency = sl.simulate(orders, sl.StaticBatching(15), POT).e2e_s
    samples = np.array([percentile(thousand, 0.99) for thousand in latency.reshape(1000, 1000)])
    assert np.mean(samples <= 1.823) > 0.1  # the document's sample isn't rare, and yet
    assert percentile(latency, 0.99) > 2.3  # far from the long run
