"""Numbers of chapter 6's quiz: N*, omission, the knee; and from earlier, offered load and how many samples."""

from __future__ import annotations

import numpy as np

from servinglab.course.quiz import Variant, drawn
from servinglab.metrics.intervals import samples_needed
from servinglab.theory.pots import pot_rate

LOADS = (2, 4, 8, 16, 32)


def _saturating(rng: np.random.Generator) -> Variant:
    alone, think, most = int(rng.integers(4, 25)) / 4, int(rng.integers(5, 41)), int(rng.integers(4, 41)) / 2
    return Variant(
        given={"alone": alone, "think": think, "most": most},
        answer=(alone + think) * most,
        wrong={"no-pause": alone * most, "pause-only": think * most, "divided": (alone + think) / most},
        also={"round": alone + think},
    )


def _omission(rng: np.random.Generator) -> Variant:
    gap, normal, stall = int(rng.integers(3, 9)) / 10, int(rng.integers(1, 3)) / 10, int(rng.integers(6, 21))
    later = int(rng.integers(4, 9))
    waits = stall + (later - 1) * normal - later * gap
    return Variant(
        given={"gap": gap, "stall": stall, "normal": normal, "later": later},
        answer=waits + normal,
        wrong={"from-send": normal, "delay": waits, "whole-stall": stall, "no-queue": stall - later * gap + normal},
        also={"planned": later * gap, "ends": stall + later * normal},
    )


def _knee(rng: np.random.Generator) -> Variant:
    place = int(rng.integers(1, 5))  # of the knee in LOADS; the last stands for none
    rate, p99 = rng.uniform(1.7, 1.95), rng.uniform(1, 3)
    rows = [(rate, p99)]
    for k in range(4):
        past = k >= place
        rate *= rng.uniform(0.97, 1.15) if past else rng.uniform(1.65, 1.95)
        p99 *= rng.uniform(1.7, 2.4) if past else rng.uniform(1.02, 1.3)
        rows.append((rate, p99))
    given: dict[str, float] = {f"x{load}": round(x, 1) for load, (x, _) in zip(LOADS, rows, strict=True)}
    given |= {f"p{load}": round(p, 1) for load, (_, p) in zip(LOADS, rows, strict=True)}
    return Variant(given=given, answer=("four", "eight", "sixteen", "none")[place - 1])


def _offered(rng: np.random.Generator) -> Variant:
    batch, fixed, each = int(rng.integers(8, 33)), int(rng.integers(2, 9)) / 10, int(rng.integers(1, 4)) / 100
    most = pot_rate(batch, fixed, each)
    rate = int(rng.uniform(0.4, 0.8) * most)
    return Variant(
        given={"batch": batch, "fixed": fixed, "each": each, "rate": rate},
        answer=rate,
        wrong={"capacity": most, "no-fixed": 1 / each},
        also={"most": most},
    )


def _samples(rng: np.random.Generator) -> Variant:
    q, confidence = int(rng.integers(90, 100)) / 100, float(rng.choice([0.8, 0.9, 0.95, 0.98, 0.99]))
    return Variant(
        given={"q": round(100 * q), "confidence": round(100 * confidence)},
        answer=samples_needed(0, q, confidence),
        wrong={"one-late": round(1 / (1 - q)), "half-sure": samples_needed(0, q, 0.5)},
        also={"share": q, "chance": round(1 - confidence, 2)},
    )


QUESTIONS = (
    drawn("saturating", _saturating, seed=601, unit="clients", tolerance=0.01),
    drawn("omission", _omission, seed=602, unit="s", tolerance=0.01),
    drawn("knee", _knee, seed=603, choices=("four", "eight", "sixteen", "none")),
    drawn("offered", _offered, seed=604, unit="orders/s", tolerance=0.02),
    drawn("samples", _samples, seed=605, unit="requests", tolerance=0.01),
)
