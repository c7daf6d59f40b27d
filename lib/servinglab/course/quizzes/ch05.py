"""Numbers of chapter 5's quiz: the formula, samples, and from earlier, the window, Little in tokens, a busy pot."""

from __future__ import annotations

import math

import numpy as np

from servinglab.course.quiz import Variant, drawn
from servinglab.decide.formulas import formula_batch
from servinglab.metrics.intervals import samples_needed
from servinglab.theory.pots import pot_rate, utilization


def _formula(rng: np.random.Generator) -> Variant:
    fixed, per_request = int(rng.integers(2, 9)) / 10, float(rng.choice([0.01, 0.02, 0.025, 0.04, 0.05]))
    rate = int(rng.integers(4, 19))
    limit, window = int(rng.integers(12, 31)) / 10, int(rng.integers(1, 11)) / 10
    found = formula_batch(rate, fixed, per_request, limit, window)
    assert found.by_window is not None
    low, high = sorted([found.by_window, found.by_gathering])
    stable = found.batch_size is not None and low >= 1
    return Variant(
        given={"fixed_s": fixed, "per_request_s": per_request, "rate_rps": rate, "window_s": window, "limit_s": limit},
        answer=high if stable else 0,
        wrong={
            "other-branch": low if stable else 0,  # an unfit draw, which is drawn again
            "no-wait": math.floor((limit - fixed) / per_request + 1e-9),
            "rounds-up": high + 1,
        },
        also={"by_window": found.by_window, "by_gathering": found.by_gathering},
    )


def _samples(rng: np.random.Generator) -> Variant:
    late, sure = float(rng.choice([0.5, 1, 2, 2.5, 4, 5])), float(rng.choice([80, 90, 95, 98, 99]))
    q, confidence = 1 - late / 100, sure / 100
    needed = samples_needed(0, q, confidence)
    return Variant(
        given={"late": late, "sure": sure},
        answer=needed,
        wrong={
            "one-expected": round(100 / late),
            "one-less": needed - 1,
            "one-allowed": samples_needed(1, q, confidence),
        },
        also={"raw": math.log(1 - confidence) / math.log(q)},
    )


def _window(rng: np.random.Generator) -> Variant:
    batch, gap_ms = int(rng.integers(6, 17)), int(rng.integers(1, 13)) * 50
    full_ms = (batch - 1) * gap_ms
    window_ms = round(full_ms * float(rng.uniform(0.6, 1.6)), -2)
    starts = min(window_ms, full_ms)
    if starts < 3.5 * gap_ms:
        return Variant(given={}, answer=math.inf)  # the third's batch should be on its way: refused by `drawn`
    return Variant(
        given={"batch": batch, "window_s": window_ms / 1000, "gap_s": gap_ms / 1000},
        answer=(starts - 2 * gap_ms) / 1000,
        wrong={
            "larger": (max(window_ms, full_ms) - 2 * gap_ms) / 1000,
            "first": starts / 1000,
            "gaps": (starts - 3 * gap_ms) / 1000,
        },
        also={"full_s": full_ms / 1000},
    )


def _stay(rng: np.random.Generator) -> Variant:
    rate, stay, held = int(rng.integers(2, 16)), int(rng.integers(3, 31)), int(rng.integers(6, 41)) * 100
    return Variant(
        given={"rate": rate, "held": held, "cache": rate * stay * held},
        answer=stay,
        wrong={"chats": rate * stay, "one-token": stay * held},
        also={"fit": rate * stay},
    )


def _busy(rng: np.random.Generator) -> Variant:
    fixed, per_request = int(rng.integers(2, 10)) / 10, float(rng.choice([0.01, 0.02, 0.03, 0.04]))
    batch, rate = int(rng.integers(6, 31)), int(rng.integers(4, 23))
    load = 100 * utilization(rate, batch, fixed, per_request)
    return Variant(
        given={"fixed_s": fixed, "per_request_s": per_request, "batch": batch, "rate_rps": rate},
        answer=load if 20 < load < 99 else 0,
        wrong={
            "inverted": 1e4 / load if 20 < load < 99 else 0,  # an unfit draw, which is drawn again
            "no-fixed": 100 * rate * per_request,
            "one-by-one": 100 * rate * (fixed + per_request),
        },
        also={"step_s": fixed + per_request * batch, "capacity": pot_rate(batch, fixed, per_request)},
    )


QUESTIONS = (
    drawn("formula", _formula, seed=501, unit="orders", tolerance=0),
    drawn("samples", _samples, seed=502, unit="requests", tolerance=0),
    drawn("window", _window, seed=503, unit="s", tolerance=0.005),
    drawn("stay", _stay, seed=504, unit="s", tolerance=0.005),
    drawn("busy", _busy, seed=505, unit="%", tolerance=0.02),
)
