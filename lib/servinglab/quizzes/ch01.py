"""Numbers of chapter 1's quiz: one pot's throughput, half its limit, the smallest stable batch, Little, overload."""

from __future__ import annotations

import math

import numpy as np

from servinglab import theory
from servinglab.quiz import Variant, drawn


def _pot(rng: np.random.Generator) -> tuple[float, float]:
    """A pot's fixed time and time per order, round enough to be shown exactly."""
    return int(rng.integers(2, 13)) / 10, int(rng.integers(2, 11)) / 200


def _pot_rate(rng: np.random.Generator) -> Variant:
    fixed_s, per_request_s = _pot(rng)
    batch = int(rng.integers(3, 33))
    step_s = fixed_s + per_request_s * batch
    return Variant(
        given={"fixed_s": fixed_s, "per_request_s": per_request_s, "batch": batch},
        answer=theory.pot_rate(batch, fixed_s, per_request_s),
        wrong={
            "counts-batches": 1 / step_s,
            "no-brackets": batch / fixed_s + per_request_s * batch,
            "no-fixed-time": 1 / per_request_s,
        },
        also={"step_s": step_s},
    )


def _fraction(rng: np.random.Generator) -> Variant:
    fixed_s, per_request_s = _pot(rng)
    percent = int(rng.choice([60, 70, 75, 80, 90]))
    fraction = percent / 100
    half = fixed_s / per_request_s
    return Variant(
        given={"fixed_s": fixed_s, "per_request_s": per_request_s, "percent": percent},
        answer=theory.smallest_batch_for_fraction(fraction, fixed_s, per_request_s),
        wrong={
            "linear": math.ceil(round(2 * fraction * half, 6)),
            "inverted": math.ceil(round((1 - fraction) / fraction * half, 6)),
        },
        also={"limit_rps": 1 / per_request_s, "half": half},
    )


def _stable(rng: np.random.Generator) -> Variant:
    fixed_s, per_request_s = _pot(rng)
    rate_rps = int(rng.integers(2, 31))
    answer = theory.min_stable_batch(rate_rps, fixed_s, per_request_s)
    if answer is None:  # no batch is large enough: a variant that `drawn` refuses
        return Variant(given={}, answer=math.inf)
    return Variant(
        given={"fixed_s": fixed_s, "per_request_s": per_request_s, "rate_rps": rate_rps},
        answer=answer,
        wrong={"one-less": answer - 1, "forgets-r": math.floor(round(rate_rps * fixed_s, 6)) + 1},
        also={"bound": rate_rps * fixed_s / (1 - rate_rps * per_request_s)},
    )


def _little(rng: np.random.Generator) -> Variant:
    rate_rps = int(rng.integers(4, 41))
    number = int(rng.integers(5, 121))
    return Variant(
        given={"rate_rps": rate_rps, "number": number},
        answer=number / rate_rps,
        wrong={"inverted": rate_rps / number, "multiplied": number * rate_rps, "one-at-a-time": 1 / rate_rps},
    )


def _overload(rng: np.random.Generator) -> Variant:
    # whole milliseconds, so that ρ = 1 is met exactly
    fixed_ms, per_request_ms = 100 * int(rng.integers(2, 9)), 10 * int(rng.integers(1, 6))
    batch = int(rng.choice([4, 5, 8, 10, 16, 20]))
    step_ms = fixed_ms + per_request_ms * batch
    capacity_rps = 1000 * batch / step_ms
    rate_rps = round(capacity_rps * float(rng.choice([0.8, 1.0, 1.25])), 1)
    offered = round(10 * rate_rps) * step_ms  # against 10,000 · batch
    answer = "settles" if offered < 10_000 * batch else "edge" if offered == 10_000 * batch else "grows"
    return Variant(
        given={
            "fixed_s": fixed_ms / 1000,
            "per_request_s": per_request_ms / 1000,
            "batch": batch,
            "rate_rps": rate_rps,
        },
        answer=answer,
        also={"capacity_rps": capacity_rps, "rho": rate_rps / capacity_rps},
    )


QUESTIONS = (
    drawn("pot-rate", _pot_rate, seed=101, unit="orders/s"),
    drawn("fraction", _fraction, seed=102, unit="orders", tolerance=0),
    drawn("stable", _stable, seed=103, unit="orders", tolerance=0),
    drawn("little", _little, seed=104, unit="s"),
    drawn("overload", _overload, seed=105, choices=("settles", "edge", "grows"), count=30),
)
