"""Numbers of chapter 2's quiz: a step's reading, a gain; from chapter 1 capacity, half of the limit, Little."""

from __future__ import annotations

import numpy as np

from servinglab.course.quiz import Variant, drawn


def _step_time(rng: np.random.Generator) -> Variant:
    weights, bits = int(rng.integers(3, 33)), int(rng.choice([8, 16]))
    kv_kib, tb_s = int(rng.choice([64, 96, 128, 160])), int(rng.integers(2, 17)) / 2
    batch, context = int(rng.choice([8, 16, 24, 32, 48, 64])), 1024 * int(rng.integers(1, 9))
    weight_gb = weights * bits / 8
    one_gb = context * kv_kib * 1024 / 1e9
    cache_gb = batch * one_gb
    return Variant(
        given={"weights": weights, "bits": bits, "kv_kib": kv_kib, "tb_s": tb_s, "batch": batch, "context": context},
        answer=(weight_gb + cache_gb) / tb_s,
        wrong={
            "no-cache": weight_gb / tb_s,
            "one-cache": (weight_gb + one_gb) / tb_s,
            "wrong-precision": (weights * (3 - bits / 8) + cache_gb) / tb_s,
            "weights-each": (batch * weight_gb + cache_gb) / tb_s,
        },
        also={"weight_gb": weight_gb, "cache_gb": cache_gb},
    )


def _gain(rng: np.random.Generator) -> Variant:
    weights_ms, cache_ms = int(rng.integers(20, 121)) / 10, int(rng.integers(1, 13)) / 20
    batch = int(rng.choice([8, 12, 16, 24, 32, 48]))
    one_ms, all_ms = weights_ms + cache_ms, weights_ms + batch * cache_ms
    return Variant(
        given={"weights_ms": weights_ms, "cache_ms": cache_ms, "batch": batch},
        answer=batch * one_ms / all_ms,
        wrong={
            "batch-itself": batch,
            "of-the-step": all_ms / one_ms,
            "weights-alone": batch * weights_ms / all_ms,
        },
        also={"one_ms": one_ms, "all_ms": all_ms},
    )


def _capacity(rng: np.random.Generator) -> Variant:
    fixed_ms, slope_ms = int(rng.integers(40, 121)) / 10, int(rng.integers(1, 13)) / 20
    batch, tokens = int(rng.choice([8, 12, 16, 24, 32, 48])), 10 * int(rng.integers(5, 41))
    step_ms = fixed_ms + slope_ms * batch
    tokens_s = 1e3 * batch / step_ms
    return Variant(
        given={"fixed_ms": fixed_ms, "slope_ms": slope_ms, "batch": batch, "tokens": tokens},
        answer=tokens_s / tokens,
        wrong={
            "one-alone": 1e3 / (step_ms * tokens),
            "tokens": tokens_s,
            "no-fixed-time": 1e3 / (slope_ms * tokens),
        },
        also={"step_ms": step_ms, "tokens_s": tokens_s},
    )


def _half_batch(rng: np.random.Generator) -> Variant:
    batch, slope_ms = int(rng.integers(5, 81)), int(rng.integers(1, 13)) / 20
    fixed_ms = round(batch * slope_ms, 6)
    return Variant(
        given={"fixed_ms": fixed_ms, "slope_ms": slope_ms},
        answer=batch,
        wrong={"half-of-that": batch / 2, "inverted": slope_ms / fixed_ms},
    )


def _little(rng: np.random.Generator) -> Variant:
    tokens_s, tpot_ms = 100 * int(rng.integers(5, 61)), int(rng.integers(6, 61))
    return Variant(
        given={"tokens_s": tokens_s, "tpot_ms": tpot_ms},
        answer=tokens_s * tpot_ms / 1e3,
        wrong={"divided": tokens_s / tpot_ms * 1e3, "milliseconds": tokens_s * tpot_ms},
    )


QUESTIONS = (
    drawn("step-time", _step_time, seed=201, unit="ms"),
    drawn("gain", _gain, seed=202, unit="×"),
    drawn("capacity", _capacity, seed=203, unit="1/s"),
    drawn("half-batch", _half_batch, seed=204, unit="requests"),
    drawn("little", _little, seed=205, unit="requests"),
)
