"""Numbers of chapter 4's quiz: what fits, which cap binds; and from earlier, the price of the longest, Little, TPOT."""

from __future__ import annotations

import math

import numpy as np

from servinglab.course.quiz import Variant, drawn

HEAD_SIZE, BLOCK = 128, 16


def _fit(rng: np.random.Generator) -> Variant:
    layers, kv_heads = int(rng.choice([24, 28, 32, 36, 40, 48])), int(rng.choice([4, 8]))
    heads, kv_gib = kv_heads * int(rng.choice([4, 8])), int(rng.integers(8, 61))
    tokens = int(rng.integers(11, 60)) * 100
    per_token = 2 * layers * kv_heads * HEAD_SIZE * 2
    each = math.ceil(tokens / BLOCK)

    def fit(bytes_per_token: float, unit: int = 2**30) -> int:
        return int(kv_gib * unit // (BLOCK * bytes_per_token)) // each

    return Variant(
        given={"layers": layers, "heads": heads, "kv_heads": kv_heads, "kv_gib": kv_gib, "tokens": tokens},
        answer=fit(per_token),
        wrong={
            "forgets-two": fit(per_token / 2),
            "query-heads": fit(per_token * heads / kv_heads),
            "no-blocks": int(kv_gib * 2**30 // (per_token * tokens)),
            "gigabytes": fit(per_token, 10**9),
        },
        also={"per_token": per_token, "blocks": kv_gib * 2**30 // (BLOCK * per_token), "each": each},
    )


def _cap(rng: np.random.Generator) -> Variant:
    binds = str(rng.choice(["seats", "tokens", "blocks"]))
    seats, budget = int(rng.choice([64, 128, 256])), int(rng.choice([1024, 2048, 4096]))
    head = int(rng.integers(20, 80)) * 50
    needs = math.ceil(head / BLOCK)
    running = seats if binds == "seats" else int(seats * rng.uniform(0.5, 0.95))
    computed = budget if binds == "tokens" else running + int(rng.uniform(0.1, 0.6) * (budget - running))
    free = int(needs * rng.uniform(0.3, 0.9)) if binds == "blocks" else int(needs * rng.uniform(1.2, 4))
    return Variant(
        given={
            "seats": seats,
            "budget": budget,
            "running": running,
            "computed": computed,
            "free": free,
            "waiting": int(rng.integers(5, 90)),
            "head": head,
        },
        answer=binds,
        also={"needs": needs},
    )


def _gain(rng: np.random.Generator) -> Variant:
    batch, mean = int(rng.choice([8, 16, 32])), int(rng.integers(5, 41)) * 10
    longest = int(round(mean * float(rng.uniform(1.5, 4)), -1))
    return Variant(
        given={"batch": batch, "longest": longest, "mean": mean},
        answer=longest / mean,
        wrong={"means": 1, "seats": batch, "inverted": mean / longest, "idle": 1 - mean / longest},
    )


def _seats(rng: np.random.Generator) -> Variant:
    rate, stay = int(rng.integers(2, 16)), int(rng.integers(3, 21))
    held = int(rng.integers(6, 41)) * 100
    return Variant(
        given={"rate": rate, "stay": stay, "held": held},
        answer=rate * stay * held,
        wrong={"per-second": rate * held, "requests": rate * stay, "divided": rate / stay * held},
        also={"running": rate * stay},
    )


def _tpot(rng: np.random.Generator) -> Variant:
    arrived, ttft = int(rng.integers(1, 90)) / 10, int(rng.integers(2, 30)) / 10
    gaps, gap_ms = int(rng.integers(10, 60)), int(rng.integers(10, 60))
    first = round(arrived + ttft, 1)
    last = round(first + gaps * gap_ms / 1e3, 3)
    return Variant(
        given={"arrived": arrived, "first": first, "tokens": gaps + 1, "last": last},
        answer=gap_ms,
        wrong={"from-arrival": (last - arrived) / gaps * 1e3, "one-gap-too-many": (last - first) / (gaps + 1) * 1e3},
        also={"gaps": gaps},
    )


QUESTIONS = (
    drawn("fit", _fit, seed=401, unit="chats", tolerance=0),
    drawn("cap", _cap, seed=403, choices=("seats", "tokens", "blocks")),
    drawn("gain", _gain, seed=402, unit="×", tolerance=0.01),
    drawn("seats", _seats, seed=404, unit="tokens", tolerance=0.01),
    drawn("tpot", _tpot, seed=405, unit="ms", tolerance=0.005),
)
