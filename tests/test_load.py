"""The knee's rule on ramps whose knee is known, and how sure it is on noisy ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import servinglab as sl
from servinglab.metrics.knee import Level, find_knee, level_of


def made(load: float, throughput_rps: float, latency_s: float, seconds: float = 100.0) -> Level:
    """A level without noise."""
    times = (np.arange(round(throughput_rps * seconds)) + 0.5) / throughput_rps
    return Level(load, seconds, times, np.full(len(times), latency_s), times)


def closed(clients: float, places: int = 8, service_s: float = 1.0) -> Level:
    """A server of so many places: the bounds of a closed loop without pauses meet at N* = places."""
    latency_s = max(service_s, clients * service_s / places)
    return made(clients, clients / latency_s, latency_s)


def test_the_knee_of_a_closed_loop_is_where_its_two_bounds_meet() -> None:
    knee = find_knee([closed(n) for n in (1, 2, 4, 8, 16, 32)])
    assert (knee.load, knee.next_load, knee.low, knee.high) == (8, 16, 8, 8)
    assert knee.shares == {8: 1.0}


def test_a_knee_between_two_levels_is_given_as_the_lower_one() -> None:
    # N* = 8 lies between 6 and 12: throughput gains ln(8/6) of ln 2, less than half of it
    assert find_knee([closed(n) for n in (3, 6, 12, 24)]).load == 6
    # and between 7 and 9, ln(8/7) of ln(9/7): more than half, so that step still pays
    assert find_knee([closed(n) for n in (5, 7, 9, 11)]).load == 9


def test_an_open_loop_past_its_capacity() -> None:
    kept_up = [made(rate, rate, 1.0) for rate in (5.0, 10.0, 20.0)]
    knee = find_knee([*kept_up, made(40.0, 20.0, 30.0), made(80.0, 20.0, 60.0)])
    assert (knee.load, knee.next_load) == (20, 40)


def test_both_must_turn() -> None:
    flat_only = [made(1, 1, 1.0), made(2, 1.1, 1.0), made(4, 1.2, 1.0)]  # who sleeps between answers
    slow_only = [made(1, 1, 1.0), made(2, 2, 2.0), made(4, 4, 8.0)]
    for levels in (flat_only, slow_only):
        knee = find_knee(levels)
        assert (knee.load, knee.next_load, knee.shares) == (None, None, {None: 1.0})
        assert "beyond the last level" in str(knee)


def test_the_argmax_of_throughput_is_another_level() -> None:
    levels = [closed(4), closed(8), made(16, 8.4, 1.9), made(32, 8.5, 3.8)]
    assert max(levels, key=lambda level: level.request_throughput).load == 32
    assert find_knee(levels).load == 8


def test_failures_count_as_endless_latencies() -> None:
    failing = made(40, 10.0, 1.0)
    failing.latency_s[: len(failing.latency_s) // 50] = np.inf  # 2 %
    assert failing.percentile(0.99) == math.inf
    assert find_knee([made(10, 10.0, 1.0), failing]).load == 10
    assert find_knee([made(10, 10.0, 1.0), failing], q=0.9).load is None  # its P90 hasn't moved


def test_resamples_say_how_sure() -> None:
    rng = np.random.default_rng(1)

    def noisy(load: float, throughput_rps: float, mean_s: float) -> Level:
        level = made(load, throughput_rps, 1.0, seconds=20.0)
        return Level(load, 20.0, level.arrival_s, rng.exponential(mean_s, len(level.arrival_s)), level.finish_s)

    # from 2 to 4 P99 gains about half of what the load gains: a coin's toss; from 4 to 8 both have turned
    levels = [noisy(2, 20.0, 1.0), noisy(4, 22.0, math.sqrt(2)), noisy(8, 23.0, 4.0)]
    knee = find_knee(levels, seed=3)
    assert set(knee.shares) == {2.0, 4.0}
    assert min(knee.shares.values()) > 0.05
    assert sum(knee.shares.values()) == pytest.approx(1)
    assert (knee.low, knee.high) == (2.0, 4.0)
    assert knee == find_knee(levels, seed=3)
    assert knee != find_knee(levels, seed=4)


def test_the_bootstraps_spread_is_that_of_independent_samples() -> None:
    """For independent latencies a median's standard error is 1/(2 f √n), f the density there: 1/√n for exponential."""
    from servinglab.metrics.knee import _resample

    n = 20_000
    rng = np.random.default_rng(5)
    times = np.sort(rng.random(n)) * 1000
    level = Level(20.0, 1000.0, times, rng.exponential(1.0, n), times)
    rates, medians = _resample(level, 0.5, 2000, np.random.default_rng(6))
    # 20 pieces give the spread itself to about 1/√(2·19) = 16 %
    assert medians.std() == pytest.approx(1 / math.sqrt(n), rel=0.5)
    assert rates.std() == pytest.approx(math.sqrt(n) / 1000, rel=0.5)


def test_a_level_cuts_by_arrival_and_counts_what_finishes() -> None:
    work = sl.Workload.from_arrivals([0.0, 1.0, 2.0, 3.0])
    served = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(1.5, 0.0))  # finish at 1.5, 3, 4.5, 6
    level = level_of(served, load=1.0, from_s=0.5)
    assert level.seconds == 2.5
    assert level.arrival_s.tolist() == [0.5, 1.5, 2.5]
    assert level.latency_s.tolist() == [2.0, 2.5, 3.0]
    assert level.finish_s.tolist() == [1.0, 2.5]  # the first request's too, though it came before
    assert level.request_throughput == 2 / 2.5


def test_a_simulated_ramp_has_its_knee_below_capacity() -> None:
    """Twenty orders in 0.4 + 20 · 0.02 = 0.8 s: 25 a second are the most."""
    levels = []
    for k, rate in enumerate((5, 10, 20, 40)):
        served = sl.simulate(sl.poisson(rate, 100 * rate, seed=k), sl.ContinuousBatching(20), sl.AffineStep(0.4, 0.02))
        levels.append(level_of(served, load=rate, from_s=10))
    knee = find_knee(levels)
    assert (knee.load, knee.next_load) == (20, 40)
    assert levels[3].request_throughput == pytest.approx(25, rel=0.02)  # whole batches, once the line is long


@pytest.mark.parametrize(
    ("levels", "more", "told"),
    [
        ([closed(1)], {}, "at least two"),
        ([closed(2), closed(1)], {}, "higher load"),
        ([closed(1), closed(1)], {}, "higher load"),
        ([closed(1), closed(2)], {"q": 1.0}, "q must be"),
        ([closed(1), closed(2)], {"confidence": 0}, "confidence must be"),
        ([closed(1), closed(2)], {"resamples": 0}, "resamples must be"),
    ],
)
def test_bad_arguments(levels: list[Level], more: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        find_knee(levels, **more)  # type: ignore[arg-type]


def test_a_window_without_arrivals() -> None:
    served = sl.simulate(sl.Workload.from_arrivals([0.0, 1.0]), sl.ContinuousBatching(1), sl.AffineStep(1.5, 0.0))
    with pytest.raises(ValueError, match="none came from 5"):
        level_of(served, load=1.0, from_s=5.0, until_s=6.0)
