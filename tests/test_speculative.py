"""Speculative decoding: expected tokens against drawn ones, the checking step by hand, where it stops paying."""

from __future__ import annotations

import numpy as np
import pytest
from servinglab.hardware.roofline import roofline
from servinglab.hardware.speculative import expected_tokens, speedup, verify_s

IDEAL = {"bandwidth_efficiency": 1, "compute_efficiency": 1, "overhead_s": 0}
STEP = roofline("llama-3.1-8b", "h100-sxm", **IDEAL)


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.3, 1), (0.7, 4), (0.9, 8)])
def test_expected_tokens_are_those_of_drawn_rounds(acceptance: float, drafts: int) -> None:
    rng, rounds = np.random.default_rng(5), 200_000
    right = rng.random((rounds, drafts)) < acceptance
    tokens = 1 + np.cumprod(right, axis=1).sum(axis=1)  # the drafts before the first wrong one, and one of its own
    margin = 3.3 * tokens.std(ddof=1) / np.sqrt(rounds)  # one in a thousand
    assert abs(tokens.mean() - expected_tokens(acceptance, drafts)) < margin


def test_expected_tokens_at_the_ends() -> None:
    assert expected_tokens(0, 5) == 1
    assert expected_tokens(1, 5) == 6
    assert expected_tokens(0.5, 0) == 1
    assert expected_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / 0.2)


def test_checking_reads_as_much_and_computes_k_plus_one_times() -> None:
    plain, checked = STEP.parts(10, 0, 10 * 700), STEP.parts(50, 0, 10 * 700, prefill_pairs=4 * 10 * 700)
    assert (checked.weight_bytes, checked.kv_bytes) == (plain.weight_bytes, plain.kv_bytes)
    assert checked.gemm_flops == pytest.approx(5 * plain.gemm_flops)
    assert checked.attention_flops == pytest.approx(5 * plain.attention_flops)
    assert verify_s(STEP, 10, 700, 4) == checked.seconds
    assert verify_s(STEP, 10, 700, 0) == plain.seconds


def test_a_mixture_of_experts_touches_more_experts_to_check() -> None:
    step = roofline("qwen3-30b-a3b", "h100-sxm", **IDEAL)
    assert verify_s(step, 1, 0, 4) == pytest.approx(step.parts(5).weight_bytes / 3.35e12)
    assert verify_s(step, 1, 0, 4) > 2 * step(1)


def test_it_pays_while_reading_decides_and_stops_when_computing_does() -> None:
    few = speedup(STEP, 1, 512, acceptance=0.7, drafts=4)
    assert few == pytest.approx(expected_tokens(0.7, 4))  # free: five tokens cost one reading
    assert speedup(STEP, 2000, 0, acceptance=0.7, drafts=4) == pytest.approx(few / 5)  # all five are computed
    falling = [speedup(STEP, n, 512, acceptance=0.7, drafts=4) for n in (1, 64, 128, 256, 512)]
    assert falling == sorted(falling, reverse=True)


def test_a_draft_model_costs_its_steps() -> None:
    large, small = (roofline(name, "h100-sxm", **IDEAL) for name in ("qwen3-8b", "qwen3-0.6b"))
    expected = expected_tokens(0.8, 3) * large(8, 0, 8000) / (3 * small(8, 0, 8000) + verify_s(large, 8, 1000, 3))
    assert speedup(large, 8, 1000, acceptance=0.8, drafts=3, draft=small) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": 1.1}, "acceptance must be a finite number >= 0 and <= 1; got 1.1"),
        ({"drafts": -1}, "drafts must be a whole number >= 0; got -1"),
        ({"requests": 0}, "requests must be a whole number >= 1; got 0"),
        ({"context_tokens": 0.5}, "context_tokens must be a whole number >= 0; got 0.5"),
        ({"target": roofline("gemma-3-27b", "h100-sxm")}, "without sliding windows; got gemma-3-27b"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    inputs = {"target": STEP, "requests": 1, "context_tokens": 0, "acceptance": 0.5, "drafts": 2, **change}
    with pytest.raises(ValueError, match=message):
        speedup(inputs.pop("target"), inputs.pop("requests"), inputs.pop("context_tokens"), **inputs)
