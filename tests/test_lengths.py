"""Laws of lengths and times: closed-form means, and samples that agree within confidence intervals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.workload.lengths import Constant, Empirical, Exponential, Geometric, LogNormal, Uniform

# four standard errors: a right law fails once in 16,000 seeds, and the seeds here are fixed
SIGMAS = 4.0

LAWS = [
    Constant(7),
    Uniform(3, 12),
    Uniform(5, 5),
    Geometric(1),
    Geometric(200),
    LogNormal(median=100, p99=1000),
    LogNormal(median=100, p99=1000, max=1500),
    LogNormal(median=100, sigma=0.5, max=120),
    LogNormal(median=100, sigma=0, max=80),
    Exponential(0.25),
    Empirical([1, 1, 2, 50]),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_sample_mean_agrees_with_the_closed_form(law):
    n = 40_000
    draws = law.sample(np.random.default_rng(11), n)
    assert draws.shape == (n,)
    half_width = SIGMAS * draws.std() / math.sqrt(n)
    assert abs(draws.mean() - law.mean) <= half_width + 1e-12


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        (Constant(128), 128),
        (Uniform(1, 6), 3.5),
        (Geometric(200), 200),
        (Exponential(0.05), 0.05),
        (Empirical([10, 20, 60]), 30),
        (LogNormal(median=100, sigma=1), 100 * math.exp(0.5)),
        (LogNormal(median=100, sigma=0), 100),
    ],
    ids=repr,
)
def test_known_means(law, mean):
    assert law.mean == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(("p99", "cut"), [(300, 400), (1000, 1000), (5000, 6000)])
def test_mean_of_a_cut_lognormal_is_the_integral_of_its_quantiles(p99, cut):
    law = LogNormal(median=100, p99=p99, max=cut)
    u = (np.arange(20_000) + 0.5) / 20_000
    z = np.array([NormalDist().inv_cdf(x) for x in u])
    quantiles = np.minimum(100 * np.exp(law.log_sigma * z), cut)
    assert law.mean == pytest.approx(quantiles.mean(), rel=1e-3)


def test_lognormal_has_its_median_and_p99():
    n = 100_000
    draws = LogNormal(median=100, p99=1000).sample(np.random.default_rng(5), n)
    for value, share in ((100, 0.5), (1000, 0.01)):
        assert abs((draws > value).mean() - share) <= SIGMAS * math.sqrt(share * (1 - share) / n)


def test_geometric_forgets():
    n = 100_000
    draws = Geometric(5).sample(np.random.default_rng(6), n)
    assert draws.min() == 1
    for k in (1, 3, 10):
        beyond = 0.8**k
        assert abs((draws > k).mean() - beyond) <= SIGMAS * math.sqrt(beyond * (1 - beyond) / n)


def test_uniform_reaches_both_ends_equally():
    n = 60_000
    draws = Uniform(1, 6).sample(np.random.default_rng(7), n)
    counts = np.bincount(draws, minlength=7)[1:]
    assert counts.sum() == n
    assert (abs(counts - n / 6) <= SIGMAS * math.sqrt(n * 5 / 36)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(math.nan), "value must be a finite number; got nan"),
        (lambda: Uniform(5, 4), "hi must be a whole number >= 5"),
        (lambda: Uniform(-1, 4), "lo must be a whole number >= 0"),
        (lambda: Uniform(1, 2.5), "hi must be a whole number"),
        (lambda: Geometric(0.5), "mean must be a finite number >= 1"),
        (lambda: Exponential(0), "mean must be a finite number > 0"),
        (lambda: LogNormal(0, sigma=1), "median must be a finite number > 0"),
        (lambda: LogNormal(100), "give either p99 or sigma; got p99=None and sigma=None"),
        (lambda: LogNormal(100, p99=300, sigma=1), "give either p99 or sigma"),
        (lambda: LogNormal(100, p99=90), "p99 must be a finite number >= 100 and .*; got 90"),
        (lambda: LogNormal(1e-300, p99=1), "p99 must be a finite number >= 1e-300 and <= .*; got 1"),
        (lambda: LogNormal(100, sigma=-1), "sigma must be a finite number >= 0"),
        (lambda: LogNormal(100, p99=300, max=200), "max must be a finite number >= 300; got 200"),
        (lambda: LogNormal(100, sigma=1, max=0), "max must be a finite number > 0"),
        (lambda: Empirical([]), "values must hold at least one value"),
        (lambda: Empirical([1, math.inf]), r"values\[1\] must be a finite number; got inf"),
        (lambda: Empirical("12"), "values must be a flat sequence of numbers; got '12'"),
    ],
)
def test_a_broken_rule_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 2**40))
def test_empirical_draws_only_what_was_seen(values, seed):
    law = Empirical(values)
    assert set(law.sample(np.random.default_rng(seed), 50)) <= set(values)
    assert min(values) <= law.mean * (1 + 1e-12)
    assert law.mean <= max(values) * (1 + 1e-12)
    assert law == Empirical(np.array(values))
