"""Tables and fits of measured steps: exact on exact data, honest about noise, loud where data can't tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.engine.reference.pots import reference
from servinglab.hardware.roofline import roofline
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.step_time.affine import AffineStep
from servinglab.step_time.fit import COEFFICIENTS, TabulatedStep, fit_step_time
from servinglab.workload.arrival_laws import poisson

TRUE = AffineStep(
    fixed_s=0.006, per_request_s=5e-5, per_prefill_token_s=2e-5, per_kv_token_s=4e-8, per_prefill_pair_s=1e-9
)


def steps(n: int, seed: int) -> tuple[Any, ...]:
    """Random steps: requests, prompt tokens, tokens of KV, pairs."""
    rng = np.random.default_rng(seed)
    requests = rng.integers(1, 65, n)
    prefill, kv = rng.integers(0, 3, n) * rng.integers(0, 2048, n), requests * rng.integers(10, 4000, n)
    return requests, prefill, kv, prefill * rng.integers(0, 50_000, n) + prefill * (prefill + 1) // 2


def times(step: AffineStep, held: tuple[Any, ...]) -> np.ndarray:
    return np.array([step(*map(int, row)) for row in zip(*held, strict=True)])


# --- fits ------------------------------------------------------------------------------------------------------------


@given(
    st.floats(1e-4, 1), st.floats(1e-6, 1e-2), st.floats(0, 1e-3), st.floats(0, 1e-5), st.floats(0, 1e-8),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_exact_steps_give_exact_coefficients(
    a: float, b: float, c: float, d: float, e: float, relative: bool, seed: int
) -> None:
    true = AffineStep(a, b, c, d, e)
    requests, *rest = held = steps(20, seed)
    fit = fit_step_time(requests, times(true, held), *rest, relative=relative)
    most = (64, 4096, 64 * 4000, 4096 * 50_000)
    longest = true(*most)
    for name, amount in zip(COEFFICIENTS, (1, *most), strict=True):
        assert abs(getattr(fit.step, name) - getattr(true, name)) * amount < 1e-8 * longest, name
    assert fit.rms_s < 1e-8 * longest


def test_the_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """400 fits at 90 %: each coefficient's count lies within 4 standard errors of 360."""
    held = steps(50, seed=3)
    exact = times(TRUE, held)
    hits = dict.fromkeys(COEFFICIENTS, 0)
    for seed in range(400):
        noisy = exact + np.random.default_rng(seed).normal(0, 3e-4, exact.size)
        fit = fit_step_time(held[0], noisy, *held[1:], confidence=0.9)
        for name, (low, high) in fit.interval.items():
            hits[name] += low <= getattr(TRUE, name) <= high
    for name, count in hits.items():
        assert abs(count - 360) < 4 * np.sqrt(400 * 0.9 * 0.1), (name, count)


def test_the_covariance_is_that_of_repeated_fits() -> None:
    held = steps(80, seed=5)
    exact = times(TRUE, held)
    found, stated = [], []
    for seed in range(400):
        noisy = exact + np.random.default_rng(1000 + seed).normal(0, 1e-4, exact.size)
        fit = fit_step_time(held[0], noisy, *held[1:])
        found.append([getattr(fit.step, name) for name in COEFFICIENTS])
        stated.append(np.diag(fit.covariance))
        assert list(np.sqrt(stated[-1])) == pytest.approx(list(fit.standard_error.values()))
    ratio = np.var(found, axis=0, ddof=1) / np.mean(stated, axis=0)
    assert np.all(np.abs(ratio - 1) < 4 * np.sqrt(2 / 399)), ratio


def test_a_coefficient_that_would_be_negative_is_held_at_zero() -> None:
    requests = np.arange(1, 41)
    falling = 0.1 - 1e-4 * requests
    fit = fit_step_time(requests, falling)
    assert fit.at_zero == ("per_request_s",)
    assert fit.step.per_request_s == 0
    assert fit.step.fixed_s == pytest.approx(falling.mean())
    assert fit.interval["per_request_s"] == (0, 0)  # below 0 without doubt
    noise = np.random.default_rng(0).normal(0, 0.01, 40)
    flat = fit_step_time(requests, 0.1 + noise - 2e-4 * (requests - 20))
    assert flat.at_zero == ("per_request_s",) and flat.interval["per_request_s"][1] > 0  # a small one isn't excluded
    assert "(held at 0)" in str(flat)


def test_what_is_known_can_be_fixed() -> None:
    requests, *rest = held = steps(60, seed=7)
    fit = fit_step_time(requests, times(TRUE, held), *rest, fixed={"fixed_s": 0.006})
    assert fit.fixed == ("fixed_s",) and fit.interval["fixed_s"] == (0.006, 0.006)
    assert fit.step.per_kv_token_s == pytest.approx(4e-8)
    alone = fit_step_time(requests, times(AffineStep(0.006, 5e-5), held))
    assert alone.fixed == ("per_prefill_token_s", "per_kv_token_s", "per_prefill_pair_s")


@pytest.mark.parametrize(
    ("requests", "prefill", "kv", "message"),
    [
        ([8] * 9, None, None, r"can't tell fixed_s from per_request_s: requests is the same in all; fix one with"),
        (
            range(1, 10),
            None,
            [512 * n for n in range(1, 10)],
            r"per_request_s from per_kv_token_s: requests and kv_",
        ),
        (range(1, 10), [7] * 9, None, r"can't tell fixed_s from per_prefill_token_s: prefill_tokens is the same"),
        (range(1, 10), None, [90 - n for n in range(1, 10)], r"fixed_s from per_request_s from per_kv_token_s: .* are"),
    ],
)
def test_steps_that_cannot_tell_coefficients_apart(requests: Any, prefill: Any, kv: Any, message: str) -> None:
    requests = list(requests)
    with pytest.raises(ValueError, match=message) as caught:
        fit_step_time(requests, [0.01 + 0.001 * n for n in requests], prefill, kv)
    advised = str(caught.value).split("fixed={'")[1].split("'")[0]
    fit = fit_step_time(requests, [0.01 + 0.001 * n for n in requests], prefill, kv, fixed={advised: 0.0})
    assert fit.rms_s < 1e-12  # the advice works


def test_nearly_the_same_is_said() -> None:
    rng = np.random.default_rng(2)
    requests = rng.integers(1, 65, 100)
    kv = 1000 * requests + rng.integers(-300, 300, 100)
    fit = fit_step_time(requests, 0.01 + 1e-4 * requests + rng.normal(0, 1e-4, 100), kv_tokens=kv)
    assert ("per_request_s", "per_kv_token_s") in fit.confounded
    assert "hardly told apart: per_request_s and per_kv_token_s" in str(fit)
    assert fit.interval["per_request_s"][0] <= 1e-4 <= fit.interval["per_request_s"][1]
    far = fit_step_time(requests, 0.01 + 1e-4 * requests + rng.normal(0, 1e-4, 100))
    assert not far.confounded


def test_relative_noise_wants_relative_weights() -> None:
    held = steps(400, seed=11)
    exact = times(TRUE, held)
    errors = {False: [], True: []}  # type: dict[bool, list[float]]
    for seed in range(60):
        noisy = exact * np.random.default_rng(seed).lognormal(0, 0.05, exact.size)
        for relative in errors:
            fit = fit_step_time(held[0], noisy, *held[1:], relative=relative)
            errors[relative].append(fit.step.fixed_s - TRUE.fixed_s)
    assert np.std(errors[True]) < 0.8 * np.std(errors[False])


def test_a_fit_of_the_roofline_where_memory_decides() -> None:
    step = roofline("llama-3.1-8b", "h100-sxm")
    requests, _, kv, _ = steps(60, seed=1)
    seconds = [step(int(n), 0, int(k)) for n, k in zip(requests, kv, strict=True)]
    fit = fit_step_time(requests, seconds, kv_tokens=kv)
    side = step.affine("memory")
    assert fit.step.fixed_s == pytest.approx(side.fixed_s, rel=1e-6)
    assert fit.step.per_kv_token_s == pytest.approx(side.per_kv_token_s, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": [0.1, 0.2]}, r"requests must hold 2 values; got 5"),
        ({"seconds": [0.1, 0.2, 0.3, 0.4, 0.0]}, r"seconds\[4\] must be a finite number > 0; got 0\.0"),
        ({"seconds": [0.1, 0.2, 0.3, 0.4, float("nan")]}, r"seconds\[4\] must be"),
        ({"requests": [1, 2, 3, 4, -5]}, r"requests\[4\] must be a finite number >= 0; got -5"),
        ({"kv_tokens": [1, 2]}, r"kv_tokens must hold 5 values; got 2"),
        (
            {"requests": [1, 2], "seconds": [0.1, 0.2]},
            r"seconds must hold more than 2 steps to fit 2 coeff",
        ),
        ({"confidence": 1}, r"confidence must be a finite number > 0 and < 1; got 1"),
        ({"fixed": {"speed": 1}}, r"fixed must be one of 'fixed_s', .*; got 'speed'"),
        ({"fixed": {"fixed_s": -1}}, r"fixed\['fixed_s'\] must be a finite number >= 0; got -1"),
        ({"fixed": {"fixed_s": 0, "per_request_s": 1}}, r"fixed must leave at least one coefficient to fit"),
    ],
)
def test_bad_measurements_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"requests": [1, 2, 3, 4, 5], "seconds": [0.11, 0.12, 0.13, 0.14, 0.16]}
    with pytest.raises(ValueError, match=message):
        fit_step_time(**(good | arguments))


# --- tables ----------------------------------------------------------------------------------------------------------

FLAT = replace(TRUE, per_prefill_pair_s=0.0)  # a table knows nothing of pairs
GRID: dict[str, Any] = dict(requests=[1, 8, 32], prefill_tokens=[0, 512], kv_tokens=[0, 1000, 50_000])


def _table(outside: str = "refuse") -> TabulatedStep:
    seconds = [[[FLAT(n, p, k) for k in GRID["kv_tokens"]] for p in GRID["prefill_tokens"]] for n in GRID["requests"]]
    return TabulatedStep(**GRID, seconds=seconds, outside=outside)


@given(st.integers(1, 32), st.integers(0, 512), st.integers(0, 50_000))
def test_a_table_of_an_affine_step_is_that_step(n: int, p: int, k: int) -> None:
    assert _table()(n, p, k) == pytest.approx(FLAT(n, p, k), rel=1e-12)


@given(st.integers(0, 500), st.integers(0, 5000), st.integers(0, 500_000))
def test_beyond_a_table(n: int, p: int, k: int) -> None:
    assert _table("extend")(n, p, k) == pytest.approx(FLAT(n, p, k), rel=1e-9)
    inner = (min(max(n, 1), 32), min(p, 512), min(k, 50_000))
    assert _table("edge")(n, p, k) == pytest.approx(FLAT(*inner), rel=1e-12)
    if (n, p, k) != inner:
        with pytest.raises(ValueError, match=r"must be \d+ to \d+, the range measured; got"):
            _table()(n, p, k)


def test_a_kink_stays_where_it_was_measured() -> None:
    roof = roofline("llama-3.1-8b", "h100-sxm", compute_efficiency=1, bandwidth_efficiency=1)
    sizes = [1, 64, 128, 296, 512, 1024]
    table = TabulatedStep(requests=sizes, seconds=[roof(n) for n in sizes])
    for n in range(1, 1025):
        assert table(n) == pytest.approx(roof(n), rel=2e-3)


def test_tables_from_rows() -> None:
    rows = [
        {"requests": n, "kv_tokens": k, "seconds": AffineStep(0.006, 5e-5, 0, 4e-8)(n, 0, k) + late}
        for n in (32, 1, 8)
        for k in (1000, 0)
        for late in (0, -1e-3, 5)  # two good repeats and a hiccup: the median is the first
    ]
    table = TabulatedStep.from_rows(rows)
    assert table(4, 999, 500) == pytest.approx(AffineStep(0.006, 5e-5, 0, 4e-8)(4, 0, 500))
    assert repr(table) == "TabulatedStep(requests=1…32 (3), kv_tokens=0…1000 (2), outside='refuse')"
    with pytest.raises(ValueError, match="rows must fill a grid; there is none with requests=1, kv_tokens=0"):
        TabulatedStep.from_rows([row for row in rows if (row["requests"], row["kv_tokens"]) != (1, 0)])
    with pytest.raises(ValueError, match=r"rows\[1\] must have the keys \['requests', 'seconds'\]; got \['seconds'\]"):
        TabulatedStep.from_rows([{"requests": 1, "seconds": 1}, {"seconds": 1}])
    with pytest.raises(ValueError, match=r"rows\[0\]\.seconds must be a finite number > 0; got 0"):
        TabulatedStep.from_rows([{"requests": 1, "seconds": 0}])
    with pytest.raises(ValueError, match="rows must hold at least one row; got none"):
        TabulatedStep.from_rows([])


def test_an_engine_runs_on_a_table() -> None:
    work = poisson(rate_rps=20, n=50, seed=1, prompt_tokens=10, output_tokens=5)
    sizes = list(range(1, 17))
    table = TabulatedStep(requests=sizes, seconds=[AffineStep(0.01, 0.002)(n) for n in sizes])
    on_table = reference(work, ContinuousBatching(16), table)
    affine = reference(work, ContinuousBatching(16), AffineStep(0.01, 0.002))
    assert np.abs(on_table.finish_s - affine.finish_s).max() < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": [1, 2]}, r"seconds must have shape \(3,\), one value for each point of the grid; got \(2,\)"),
        ({"seconds": [1, 2, 0]}, r"seconds must be finite numbers > 0; got 0\.0"),
        ({"seconds": [1, float("inf"), 1]}, r"seconds must be finite numbers > 0; got inf"),
        ({"seconds": ["a", 1, 1]}, r"seconds must be an array of numbers"),
        ({"requests": [1, 1, 2]}, r"requests must hold at least one value, increasing; got \[1, 1, 2\]"),
        ({"requests": [-1, 1, 2]}, r"requests\[0\] must be a whole number >= 0; got -1"),
        ({"requests": None}, r"at least one of requests, prefill_tokens and kv_tokens must be given"),
        ({"outside": "guess"}, r"outside must be one of 'refuse', 'edge', 'extend'; got 'guess'"),
    ],
)
def test_bad_tables_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TabulatedStep(**({"requests": [1, 2, 3], "seconds": [1, 2, 3]} | arguments))


def test_a_table_does_not_make_up_what_it_cannot_know() -> None:
    falling = TabulatedStep(requests=[1, 2], seconds=[2, 1], outside="extend")
    with pytest.raises(ValueError, match=r"the table extends to -2\.0 s at .*: measure nearer to it"):
        falling(5)
    single = TabulatedStep(requests=[4], seconds=[2], outside="extend")
    assert single(4) == 2
    with pytest.raises(ValueError, match="requests must be 4, all that was measured; got 5"):
        single(5)
