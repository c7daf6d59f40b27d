"""How often does a 95 % interval for one queue's P99 hold the true one?

    python benchmarks/p99_intervals.py             # the table of servinglab.metrics.intervals.percentile_interval
    python benchmarks/p99_intervals.py --runs 50   # a rougher one

Each queue's true P99 is known by an exact law. Beside `percentile_interval` stands the interval from the spread of 30
batches' own P99s (sectioning), which is what the docstring warns of.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import servinglab as sl
from scipy.stats import t as student
from servinglab import theory
from servinglab.metrics.intervals import percentile_interval

POT = sl.AffineStep(0.4, 0.02)
WARM_UP = 10_000
Draw = Callable[[int, int], np.ndarray]


def mm1(load: float) -> tuple[float, Draw]:
    """M/M/1's true P99 of latency, and n latencies by Lindley's recursion."""

    def draw(n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        gaps, services = rng.exponential(1 / load, n + WARM_UP), rng.exponential(1.0, n + WARM_UP)
        walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
        return (walk - np.minimum.accumulate(walk) + services)[WARM_UP:]

    return theory.mm1(load, 1.0).latency_quantile(0.99), draw


def static(size: int) -> tuple[float, Draw]:
    """One pot of static batches at 20 orders a second."""

    def draw(n: int, seed: int) -> np.ndarray:
        return sl.simulate(sl.poisson(20, n + WARM_UP, seed), sl.StaticBatching(size), POT).e2e_s[WARM_UP:]

    return theory.static_batching(20, size, POT.fixed_s, POT.per_request_s).latency_quantile(0.99), draw


def by_spread(values: np.ndarray, true: float, batches: int = 30) -> bool:
    """Whether the interval from the spread of the batches' P99s around the whole run's holds the true one."""
    center = np.quantile(values, 0.99, method="inverted_cdf")
    each = np.quantile(values[len(values) % batches :].reshape(batches, -1), 0.99, axis=1, method="inverted_cdf")
    half = student.ppf(0.975, batches - 1) * math.sqrt(((each - center) ** 2).sum() / (batches - 1) / batches)
    return abs(center - true) <= half


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of intervals for a P99.")
    parser.add_argument("--runs", type=int, default=500)
    runs = parser.parse_args().runs
    print(f"{'queue':<32}{'n':>9}{'held':>8}{'has an upper end':>19}{'by spread':>12}")
    for name, (true, draw), n in [
        ("M/M/1, ρ = 0.7", mm1(0.7), 10_000),
        ("M/M/1, ρ = 0.7", mm1(0.7), 30_000),
        ("M/M/1, ρ = 0.9", mm1(0.9), 30_000),
        ("M/M/1, ρ = 0.9", mm1(0.9), 100_000),
        ("static batches of 15, ρ = 0.93", static(15), 20_000),
        ("static batches of 15, ρ = 0.93", static(15), 100_000),
    ]:
        held = bounded = spread = 0
        for seed in range(runs):
            values = draw(n, seed)
            interval = percentile_interval(values, 0.99)
            held += true in interval
            bounded += interval.high < math.inf
            spread += by_spread(values, true)
        print(f"{name:<32}{n:>9,}{held / runs:>8.0%}{bounded / runs:>19.0%}{spread / runs:>12.0%}", flush=True)


if __name__ == "__main__":
    main()
