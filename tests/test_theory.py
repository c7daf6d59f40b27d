"""Formulas at known values and limits, and the exact laws against other ways to compute them."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from servinglab import theory

POT = {"fixed_s": 0.4, "per_request_s": 0.02}
RATES = st.floats(0.01, 100)
TIMES = st.floats(0, 10)


# One pot


def test_pot_rate_counts_requests_not_batches() -> None:
    assert theory.pot_rate(1, **POT) == pytest.approx(1 / 0.42)
    assert theory.pot_rate(20, **POT) == pytest.approx(25.0)
    assert theory.pot_rate(13.5, 0.4, 0.0) == pytest.approx(13.5 / 0.4)


@given(st.integers(1, 1000), st.floats(1e-3, 10), st.floats(1e-3, 10))
def test_pot_rate_rises_below_its_limit(batch: int, fixed: float, per_request: float) -> None:
    here, next_ = (theory.pot_rate(b, fixed, per_request) for b in (batch, batch + 1))
    assert here < next_ < theory.pot_rate_limit(per_request) * (1 + 1e-12)


def test_limits() -> None:
    assert theory.pot_rate_limit(0.02) == 50
    assert theory.pot_rate_limit(0) == math.inf
    assert theory.pot_rate(1e9, **POT) == pytest.approx(50)


def test_half_saturation_is_where_throughput_over_latency_peaks() -> None:
    half = theory.half_saturation_batch(**POT)
    assert half == 20
    assert theory.pot_rate(half, **POT) == 25
    ratio = {b: theory.pot_rate(b, **POT) / (0.4 + 0.02 * b) for b in range(1, 100)}
    assert max(ratio, key=ratio.__getitem__) == 20


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99])
@pytest.mark.parametrize(("fixed", "per_request"), [(0.4, 0.02), (0.3, 0.1), (0.021, 0.0007), (0.0, 0.5)])
def test_smallest_batch_for_fraction(fraction: float, fixed: float, per_request: float) -> None:
    found = theory.smallest_batch_for_fraction(fraction, fixed, per_request)
    enough = fraction / per_request * (1 - 1e-9)
    assert theory.pot_rate(found, fixed, per_request) >= enough
    assert found == 1 or theory.pot_rate(found - 1, fixed, per_request) < enough


def test_utilization() -> None:
    assert theory.utilization(20, 15, **POT) == pytest.approx(20 * 0.7 / 15)
    assert theory.utilization(20, 15, **POT, pots=2) == pytest.approx(20 * 0.7 / 30)
    assert theory.utilization(40, 1, **POT) > 1  # a load, not a share that stops at 1


@pytest.mark.parametrize(
    ("rate", "fixed", "per_request", "expected"),
    [
        (20, 0.4, 0.02, 14),
        (10, 0.5, 0.05, 11),  # at 10, ρ = 1
        (0.1, 3.0, 7.0, 2),  # at 1, ρ = 1, and 0.1·3/(1 − 0.7) is 0.9999999999999998 in floats
        (30, 0.1, 0.01, 5),  # 4.285…
        (3, 0.1, 0.3, 4),  # at 3, ρ = 1, and the float is 2.9999999999999996
        (1, 0.0, 0.5, 1),
        (1, 0.25, 0.5, 1),
        (50, 0.4, 0.02, None),  # λr = 1
        (60, 0.4, 0.02, None),
        (49, 0.4, 1 / 49, None),  # 49 · (1/49) is 0.9999999999999999
        (1, 0.0, 1.0, None),
    ],
)
def test_min_stable_batch(rate: float, fixed: float, per_request: float, expected: int | None) -> None:
    assert theory.min_stable_batch(rate, fixed, per_request) == expected


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 99))
def test_min_stable_batch_in_exact_arithmetic(rate: int, fixed_cs: int, per_request_ms: int) -> None:
    """λ·(t + r·B) < B with t in hundredths and r in thousandths of a second, in whole numbers."""
    found = theory.min_stable_batch(rate, fixed_cs / 100, per_request_ms / 1000)

    def stable(batch: int) -> bool:
        return rate * (10 * fixed_cs + per_request_ms * batch) < 1000 * batch

    if rate * per_request_ms >= 1000:
        assert found is None
    else:
        assert found is not None and stable(found) and not (found > 1 and stable(found - 1))


def test_mean_taken_batch_balances() -> None:
    b = theory.mean_taken_batch(20, **POT)
    assert b == pytest.approx(20 * (0.4 + 0.02 * b))
    assert theory.mean_taken_batch(50, **POT) == math.inf


# Gathering


def test_first_guest_wait() -> None:
    assert theory.first_guest_wait(20, 15) == pytest.approx(14 / 20)
    assert theory.first_guest_wait(20, 15, max_wait_s=0.5) == 0.5
    assert theory.first_guest_wait(20, 1) == 0.0
    assert theory.first_guest_wait(20, 15, max_wait_s=0) == 0.0


def test_gathering_averages_over_the_places_in_the_batch() -> None:
    rate, size, t = 20.0, 6, 0.17
    expected = sum(stats.erlang.sf(t, j, scale=1 / rate) for j in range(1, size)) / size
    assert theory.gather_tail(t, rate, size) == pytest.approx(expected, rel=1e-12)
    assert theory.gather_tail(0, rate, size) == pytest.approx(5 / 6)
    assert theory.gather_tail(-1e-9, rate, size) == 1.0
    assert theory.gather_tail(t, rate, 1) == 0.0


@given(RATES, st.integers(2, 100))
def test_gathering_mean_is_half_the_first_guests(rate: float, size: int) -> None:
    longest = theory.gather_quantile(1 - 1e-12, rate, size)
    area, _ = integrate.quad(lambda t: theory.gather_tail(t, rate, size), 0, longest, limit=200)
    assert area == pytest.approx(theory.gather_mean(rate, size), rel=1e-6)
    assert theory.gather_mean(rate, size) == pytest.approx(theory.first_guest_wait(rate, size) / 2)


@given(RATES, st.integers(1, 60), st.floats(0.01, 5))
@settings(max_examples=40)
def test_gathering_with_a_window(rate: float, size: int, window: float) -> None:
    tail = partial(theory.gather_tail, rate_rps=rate, batch_size=size, max_wait_s=window)
    edges = np.linspace(0, window, 41)
    area = sum(integrate.fixed_quad(lambda t: tail(t), low, high, n=8)[0] for low, high in pairwise(edges))
    assert area == pytest.approx(theory.gather_mean(rate, size, window), rel=1e-6, abs=1e-12)
    # whoever fills the batch waits for nobody: with probability P(B − 1 others came within the window)
    filled = stats.poisson.sf(size - 2, rate * window)
    assert tail(0.0) == pytest.approx(1 - filled / theory.gathered_batch(rate, size, window), abs=1e-9)
    assert tail(np.nextafter(window, 0)) <= tail(window / 2) and tail(window) == 0.0


def test_a_long_window_is_none_and_no_window_takes_who_is_there() -> None:
    for t in (0.0, 0.2, 0.7):
        long = theory.gather_tail(t, 20, 15, max_wait_s=50.0)
        assert long == pytest.approx(theory.gather_tail(t, 20, 15), rel=1e-9)
    assert theory.gather_mean(20, 15, max_wait_s=50.0) == pytest.approx(theory.gather_mean(20, 15))
    assert theory.gathered_batch(20, 15, max_wait_s=0.0) == 1.0
    assert theory.gather_mean(20, 15, max_wait_s=0.0) == theory.gather_quantile(0.99, 20, 15, max_wait_s=0.0) == 0.0
    # the formula's smaller of two numbers is more than the mean of the smaller
    assert 2 * theory.gather_mean(20, 2, max_wait_s=0.05) < 2 * theory.first_guest_wait(20, 2, max_wait_s=0.05)


def test_a_random_guests_p99_is_neither_the_first_guests_nor_the_mean() -> None:
    p99 = theory.gather_quantile(0.99, 20, 15)
    assert theory.first_guest_wait(20, 15) < p99 < stats.erlang.ppf(0.99, 14, scale=1 / 20)
    assert theory.gather_tail(p99, 20, 15) == pytest.approx(0.01, rel=1e-9)


def test_quantile_of_a_law_with_an_atom() -> None:
    assert theory.gather_quantile(0.2, 20, 4) == 0.0  # every fourth guest completes its batch
    assert theory.gather_quantile(0.26, 20, 4) > 0.0


# M/M/1, M/D/1, M/G/1


def test_mm1() -> None:
    law = theory.mm1(rate_rps=3, service_s=0.25)
    assert law.utilization == 0.75
    assert law.mean_in_system == pytest.approx(0.75 / 0.25)  # ρ/(1 − ρ)
    assert law.mean_latency_s == pytest.approx(1 / (4 - 3))
    assert law.mean_wait_s == pytest.approx(theory.pollaczek_khinchine(3, 0.25, service_cv=1))
    assert law.wait_tail(0) == pytest.approx(0.75)
    assert law.wait_quantile(0.2) == 0.0  # a quarter doesn't wait
    assert law.latency_quantile(0.99) == pytest.approx(math.log(100), rel=1e-9)
    assert law.latency_tail([0.0, 1.0, -1.0]).tolist() == pytest.approx([1.0, math.exp(-1), 1.0])


def test_md1_waits_half_as_long_as_mm1() -> None:
    for load in (0.1, 0.5, 0.9, 0.99):
        assert theory.md1(load, 1.0).mean_wait_s == pytest.approx(theory.mm1(load, 1.0).mean_wait_s / 2)


@pytest.mark.parametrize("load", [0.05, 0.5, 0.9, 0.99])
def test_md1_is_erlangs_formula_where_that_keeps_its_digits(load: float) -> None:
    law = theory.md1(load, 1.0)
    for t in (0.0, 0.3, 0.999, 1.0, 1.7, 3.0, 5.5):
        terms = [(-load * (t - k)) ** k / math.factorial(k) * math.exp(load * (t - k)) for k in range(int(t) + 1)]
        assert law.wait_tail(t) == pytest.approx(1 - (1 - load) * sum(terms), rel=1e-9)


def test_md1_far_out_falls_by_its_decay_rate() -> None:
    load = 0.9
    law = theory.md1(load, 1.0)
    decay = stats_root(load)
    for t in (20.0, 60.0, 110.0):  # where Erlang's alternating sum has no digit left
        assert law.wait_tail(t + 1) / law.wait_tail(t) == pytest.approx(math.exp(-decay), rel=1e-3)


def stats_root(load: float) -> float:
    """θ > 0 with λ·(e^θ − 1) = θ: the Cramér–Lundberg decay of M/D/1's wait, for a service of 1."""
    from scipy.optimize import brentq

    return float(brentq(lambda x: load * math.expm1(x) - x, 1e-3, 5))


def test_pollaczek_khinchine() -> None:
    assert theory.pollaczek_khinchine(0.5, 1.0, service_cv=0) == pytest.approx(0.5)
    assert theory.pollaczek_khinchine(0.5, 1.0, service_cv=1) == pytest.approx(1.0)
    # λE[S²]/(2(1 − ρ)) for services of 0.5 or 1.5, equally likely
    assert theory.pollaczek_khinchine(0.8, 1.0, service_cv=0.5) == pytest.approx(0.8 * (0.25 + 2.25) / 2 / (2 * 0.2))


# Full batches


def test_batch_queue_of_single_guests_is_md1() -> None:
    batches, guests = theory.batch_queue(0.9, 1, 1.0), theory.md1(0.9, 1.0)
    assert batches.mean_wait_s == pytest.approx(guests.mean_wait_s, rel=1e-10)
    assert batches.wait_quantile(0.99) == pytest.approx(guests.wait_quantile(0.99), rel=1e-10)


@pytest.mark.parametrize(("size", "pots"), [(1, 1), (2, 1), (15, 1), (15, 2), (3, 4)])
def test_the_batchs_wait_solves_lindleys_equation(size: int, pots: int) -> None:
    """F(t) = P(W + D − A ≤ t) with A the gap to the batch `pots` before, Erlang(B·pots, λ)."""
    service, load = 0.7, 0.9
    rate = load * size * pots / service
    law = theory.batch_queue(rate, size, service, pots)
    gap = stats.erlang(size * pots, scale=1 / rate)
    for t in (0.0, 0.21, 0.7, 1.3):
        # the wait is at most t + a − D for a gap of a; kinks of the wait's law lie at whole service times
        kinks = [service - t + k * service for k in range(60)]
        edges = [service - t if t < service else 0.0, *[a for a in kinks if a > max(service - t, 0.0)][:40]]
        expected = sum(
            integrate.fixed_quad(lambda a, t=t: gap.pdf(a) * (1 - law.wait_tail(a + t - service)), low, high, n=60)[0]
            for low, high in pairwise(edges)
        )
        assert 1 - law.wait_tail(t) == pytest.approx(expected, abs=1e-8), t


@pytest.mark.parametrize("pots", [1, 2, 3, None])
@pytest.mark.parametrize("size", [1, 2, 7, 15])
def test_static_batching_mean_is_the_area_under_its_tail(size: int, pots: int | None) -> None:
    rate = 0.9 * theory.pot_rate(size, **POT) * (pots or 1)
    law = theory.static_batching(rate, size, **POT, pots=pots)
    service = 0.4 + 0.02 * size
    end = law.wait_quantile(1 - 1e-10)
    edges = np.arange(0.0, end + service, service / 4)  # its kinks lie at whole service times
    area = sum(integrate.fixed_quad(law.wait_tail, low, high, n=12)[0] for low, high in pairwise(edges))
    assert area == pytest.approx(law.mean_wait_s, rel=1e-6)
    assert law.mean_latency_s == pytest.approx(law.mean_wait_s + service)
    batches = theory.batch_queue(rate, size, service, pots).mean_wait_s if pots else 0.0
    assert law.mean_wait_s == pytest.approx(theory.gather_mean(rate, size) + batches, rel=1e-9)


def test_static_batching_with_many_pots_approaches_endless_ones() -> None:
    endless = theory.static_batching(20, 15, **POT, pots=None)
    p99 = [theory.static_batching(20, 15, **POT, pots=pots).latency_quantile(0.99) for pots in (1, 2, 3, 4)]
    assert p99 == sorted(p99, reverse=True)
    assert p99[-1] == pytest.approx(endless.latency_quantile(0.99), rel=1e-6)
    assert endless.latency_quantile(0.99) == pytest.approx(theory.gather_quantile(0.99, 20, 15) + 0.7)


def test_static_batching_of_one_is_md1() -> None:
    static = theory.static_batching(2, 1, **POT)
    plain = theory.md1(2, 0.42)
    for q in (0.5, 0.9, 0.99):
        assert static.latency_quantile(q) == pytest.approx(plain.latency_quantile(q), rel=1e-9)


def test_means_add_and_p99s_do_not() -> None:
    guest = theory.static_batching(20, 15, **POT)
    batch = theory.batch_queue(20, 15, 0.7)
    assert guest.mean_wait_s == pytest.approx(theory.gather_mean(20, 15) + batch.mean_wait_s)
    added = theory.gather_quantile(0.99, 20, 15) + batch.wait_quantile(0.99)
    assert guest.wait_quantile(0.99) < 0.8 * added


# Taking what is there


def plain_chain(rate: float, service: list[float], states: int) -> np.ndarray:
    """Law of the line that a batch leaves behind: the whole matrix, by repeated squaring."""
    limit = len(service)
    move = np.zeros((states, states))
    for n in range(states):
        batch = min(max(n, 1), limit)
        left = max(n, 1) - batch
        come = stats.poisson.pmf(np.arange(states - left), rate * service[batch - 1])
        move[n, left:] = come
        move[n, -1] += 1 - come.sum()
    for _ in range(20):
        move = move @ move
        move /= move.sum(axis=1, keepdims=True)
    return np.asarray(move[0])


CASES = [
    (20.0, [0.4 + 0.02 * b for b in range(1, 33)]),
    (20.0, [0.4 + 0.02 * b for b in range(1, 17)]),
    (5.0, [0.4 + 0.02 * b for b in range(1, 4)]),
    (1.0, [0.4 + 0.02 * b for b in range(1, 9)]),
    (1.7, [1.0, 1.0]),
    (0.8, [1.0]),
    (3.0, [0.1, 0.5, 0.5, 0.9]),
]


@pytest.mark.parametrize(("rate", "service"), CASES)
def test_bulk_service_is_the_plain_chain(rate: float, service: list[float]) -> None:
    limit, states = len(service), 200
    line = plain_chain(rate, service, states)
    law = theory.bulk_service(rate, service)
    n = np.arange(states)
    batch = np.minimum(np.maximum(n, 1), limit)
    pmf = np.bincount(batch, weights=line, minlength=limit + 1)
    assert law.batch_pmf == pytest.approx(pmf, abs=1e-9)
    assert law.clear_probability == pytest.approx(line[0], abs=1e-9)
    # the line's integral over a batch: who was left behind all the time, who came half of it on average
    took = np.asarray(service)[batch - 1]
    waiting = line @ ((np.maximum(n, 1) - batch) * took + rate * took**2 / 2)
    lasts = line @ took + line[0] / rate
    assert law.utilization == pytest.approx(line @ took / lasts, rel=1e-9)
    assert law.mean_in_line == pytest.approx(waiting / lasts, rel=1e-7)
    # and in the pot
    assert law.mean_in_system == pytest.approx((waiting + line @ (batch * took)) / lasts, rel=1e-7)


@pytest.mark.parametrize(("rate", "service"), CASES)
def test_bulk_service_means_are_the_areas_under_its_tails(rate: float, service: list[float]) -> None:
    law = theory.bulk_service(rate, service)
    end = law.latency_quantile(1 - 1e-9)
    width = end / 5000
    middles = width * (np.arange(5000) + 0.5)  # the sum misplaces a jump by at most half a width
    for tail, mean in ((law.wait_tail, law.mean_wait_s), (law.latency_tail, law.mean_latency_s)):
        assert tail(middles).sum() * width == pytest.approx(mean, abs=width / 2)
    assert law.latency_tail(0.0) == pytest.approx(1.0, abs=1e-9)
    assert law.latency_tail(np.nextafter(service[0], 0)) == pytest.approx(1.0, abs=1e-9)


def test_bulk_service_of_one_is_md1() -> None:
    bulk, plain = theory.bulk_service(0.9, [1.0]), theory.md1(0.9, 1.0)
    t = np.linspace(0, 30, 61)
    assert bulk.wait_tail(t) == pytest.approx(plain.wait_tail(t), abs=1e-9)
    assert bulk.mean_wait_s == pytest.approx(plain.mean_wait_s, rel=1e-9)
    assert bulk.utilization == pytest.approx(0.9, rel=1e-9)


def test_bulk_service_without_a_binding_limit_and_equal_times() -> None:
    """Every batch takes all who came during the last, Poisson(λs): a guest's rest of it is uniform on (0, s)."""
    rate, service, limit = 3.0, 1.5, 60
    law = theory.bulk_service(rate, [service] * limit)
    come = stats.poisson.pmf(np.arange(limit + 1), rate * service)
    assert law.clear_probability == pytest.approx(come[0], rel=1e-9)
    assert law.batch_pmf[2:] == pytest.approx(come[2:], abs=1e-12)
    assert law.batch_pmf[1] == pytest.approx(come[0] + come[1], rel=1e-9)
    free = come[0] / (rate * service + come[0])
    for t in (0.0, 0.4, 1.49):
        assert law.wait_tail(t) == pytest.approx((1 - free) * (1 - t / service), abs=1e-9)
    assert law.mean_latency_s == pytest.approx((1 - free) * service / 2 + service, rel=1e-9)


@pytest.mark.parametrize("rate", [0.5, 5.0, 20.0])
def test_the_mean_batch_is_the_balance_up_to_idle_batches(rate: float) -> None:
    law = theory.bulk_service(rate, [0.4 + 0.02 * b for b in range(1, 33)])
    exact = (rate * 0.4 + law.clear_probability) / (1 - rate * 0.02)
    assert law.mean_batch == pytest.approx(exact, rel=1e-9)
    if rate == 20.0:
        assert law.mean_batch == pytest.approx(theory.mean_taken_batch(rate, **POT), rel=1e-5)


def test_a_small_service_time_is_a_new_guest_alone() -> None:
    law = theory.bulk_service(1e-4, [0.4 + 0.02 * b for b in range(1, 257)])
    assert law.mean_batch == pytest.approx(1.0, abs=1e-3)
    assert law.latency_quantile(0.5) == pytest.approx(0.42, rel=1e-9)  # an atom
    assert law.wait_tail(0.0) == pytest.approx(law.utilization, rel=1e-6)  # Poisson arrivals see time averages


def test_waits_are_the_share_of_time_that_the_pot_is_busy() -> None:
    for rate, service in CASES:
        law = theory.bulk_service(rate, service)
        assert law.wait_tail(0.0) == pytest.approx(law.utilization, abs=1e-8)


# Refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.pot_rate(0, **POT), "batch_size must be a finite number > 0; got 0"),
        (lambda: theory.pot_rate(1, 0.0, 0.0), r"fixed_s \+ per_request_s must be > 0; got 0"),
        (lambda: theory.pot_rate(1, -0.1, 0.1), "fixed_s must be a finite number >= 0; got -0.1"),
        (lambda: theory.half_saturation_batch(0.4, 0.0), "per_request_s must be a finite number > 0; got 0.0"),
        (lambda: theory.smallest_batch_for_fraction(1.0, **POT), "fraction must be a finite number > 0 and < 1"),
        (lambda: theory.min_stable_batch(0, **POT), "rate_rps must be a finite number > 0; got 0"),
        (lambda: theory.first_guest_wait(20, 1.5), "batch_size must be a whole number >= 1; got 1.5"),
        (lambda: theory.first_guest_wait(20, 2, max_wait_s=-1), "max_wait_s must be a finite number >= 0; got -1"),
        (lambda: theory.mm1(1.0, 1.0), r"rate_rps must be < 1, .*the line grows for ever; got 1.0"),
        (lambda: theory.md1(2.0, 1.0), "rate_rps must be < 1"),
        (lambda: theory.pollaczek_khinchine(0.5, 1.0, -1), "service_cv must be a finite number >= 0; got -1"),
        (lambda: theory.static_batching(20, 13, **POT), "rate_rps must be < 19.697"),
        (lambda: theory.batch_queue(20, 13, 0.66), "rate_rps must be < 19.697"),
        (lambda: theory.batch_queue(2800, 1500, 0.5), "the numerical method doesn't reach there"),
        (lambda: theory.static_batching(20, 15, **POT, pots=0), "pots must be a whole number >= 1; got 0"),
        (lambda: theory.bulk_service(20, []), "service_s must be a rising sequence"),
        (lambda: theory.bulk_service(20, [0.4, 0.3]), "service_s must be a rising sequence"),
        (lambda: theory.bulk_service(20, [0.0, 0.3]), r"service_s\[0\] must be a finite number > 0; got 0.0"),
        (lambda: theory.bulk_service(20, [0.4, math.nan]), r"service_s\[1\] must be a finite number > 0; got nan"),
        (lambda: theory.bulk_service(20, 0.4), "service_s must be a flat sequence of numbers; got 0.4"),
        (lambda: theory.batch_queue(20, 10**30, 0.7), r"batch_size \* pots must be at most 4096: .* got 1000000"),
        (lambda: theory.static_batching(20, 15, **POT, pots=10**9), r"batch_size \* pots must be at most 4096"),
        (lambda: theory.bulk_service(20, [0.1, 0.1]), "rate_rps must be < 20, "),
        (lambda: theory.mm1(0.5, 1.0).latency_quantile(1.0), "q must be a finite number > 0 and < 1; got 1.0"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
