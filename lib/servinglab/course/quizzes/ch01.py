"""Numbers of chapter 1's quiz: one pot's throughput, a busy pot, the smallest stable batch, Little, a load test."""

from __future__ import annotations

import math

import numpy as np

from servinglab import theory
from servinglab.course.quiz import Variant, drawn


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


def _busy_pot(rng: np.random.Generator) -> Variant:
    fixed_s, per_request_s = _pot(rng)
    batch = int(rng.integers(3, 21))
    step_s = round(fixed_s + per_request_s * batch, 6)
    first_s = int(rng.integers(1, 21)) / 10
    second_s = round(first_s + step_s * float(rng.choice([0.4, 0.6, 1.5])), 1)  # twice in three the pot is busy
    free_s = first_s + step_s
    start_s = max(second_s, free_s)
    return Variant(
        given={
            "fixed_s": fixed_s,
            "per_request_s": per_request_s,
            "batch": batch,
            "first_s": first_s,
            "second_s": second_s,
        },
        answer=start_s + step_s,
        wrong={"wrong-start": min(second_s, free_s) + step_s, "starts-not-ends": start_s},
        also={"step_s": step_s, "free_s": free_s, "start_s": start_s},
    )


def _stable(rng: np.random.Generator) -> Variant:
    fixed_s, per_request_s = _pot(rng)
    rate_rps = int(rng.integers(2, 31))
    answer = theory.min_stable_batch(rate_rps, fixed_s, per_request_s)
    bound = theory.mean_taken_batch(rate_rps, fixed_s, per_request_s)
    meets_one = math.isfinite(bound) and abs(bound - round(bound)) < 1e-6  # a whole bound: the batch with ρ = 1
    if answer is None or meets_one != (rng.random() < 0.97):  # it is rare: keep few of the others
        return Variant(given={}, answer=math.inf)  # refused by `drawn`
    return Variant(
        given={"fixed_s": fixed_s, "per_request_s": per_request_s, "rate_rps": rate_rps},
        answer=answer,
        wrong={"one-less": answer - 1, "forgets-r": math.floor(round(rate_rps * fixed_s, 6)) + 1},
        also={"bound": bound},
    )


def _little(rng: np.random.Generator) -> Variant:
    rate_rps = int(rng.integers(4, 41))
    number = int(rng.integers(5, 121))
    return Variant(
        given={"rate_rps": rate_rps, "number": number},
        answer=number / rate_rps,
        wrong={"inverted": rate_rps / number, "multiplied": number * rate_rps, "one-at-a-time": 1 / rate_rps},
    )


def _shows(rng: np.random.Generator) -> Variant:
    rate_rps, start = int(rng.integers(8, 31)), int(rng.integers(4, 13))
    kind = rng.choice(["overload", "stable", "catching up"])
    # in tenths of an order a second, over half an hour
    missing = {"overload": int(rng.integers(2, 40)), "stable": 0, "catching up": -int(rng.integers(2, 8))}[str(kind)]
    end = int(rng.integers(4, 13))
    from_line, to_line = (start + max(0, -180 * missing), end + max(0, 180 * missing))
    return Variant(
        given={
            "rate_rps": rate_rps,
            "completed_rps": round(rate_rps - missing / 10, 1),
            "from_line": from_line,
            "to_line": to_line,
        },
        answer="capacity" if kind == "overload" else "at-least",
    )


QUESTIONS = (
    drawn("pot-rate", _pot_rate, seed=101, unit="orders/s"),
    drawn("busy-pot", _busy_pot, seed=102, unit="s", tolerance=0.005),
    drawn("stable", _stable, seed=103, unit="orders", tolerance=0),
    drawn("little", _little, seed=104, unit="s"),
    drawn("shows", _shows, seed=105, choices=("capacity", "at-least")),
)
