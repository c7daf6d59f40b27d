"""Workloads: arrival processes against their laws, streams that don't mix, errors that name the culprit."""

from __future__ import annotations

import math
import random
from itertools import accumulate, pairwise

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from servinglab.workload.lengths import Constant, Empirical, Exponential, Geometric, LogNormal, Uniform

# four standard errors: a right generator fails once in 16,000 seeds, and the seeds here are fixed
SIGMAS = 4.0
P_VALUE = 1e-4


def gaps(work):
    return np.diff(work.arrival_s, prepend=0)


# --- arrival processes ---


def test_demo_arrivals_are_pythons_own():
    rng = random.Random(42)
    arrivals = list(accumulate(rng.expovariate(1 / 0.05) for _ in range(1000)))
    demo = sl.Workload.from_arrivals(arrivals)
    assert demo.arrival_s[:3].tolist() == [0.05100301436374005, 0.052269456315877, 0.06835065951962527]
    assert demo.arrival_s.tolist() == arrivals
    assert len(demo) == 1000
    assert set(demo.output_tokens) == {1}
    assert set(demo.prompt_tokens) == {0}


@pytest.mark.parametrize("rate", [0.2, 20, 5000])
def test_poisson_gaps_are_exponential(rate):
    n = 50_000
    work = sl.poisson(rate, n, seed=1)
    assert abs(gaps(work).mean() * rate - 1) <= SIGMAS / math.sqrt(n)
    assert abs(work.cv - 1) <= SIGMAS / math.sqrt(n)  # the standard error of an exponential's CV is 1/sqrt(n)
    assert stats.kstest(gaps(work) * rate, "expon").pvalue > P_VALUE


def test_deterministic_is_a_clock():
    work = sl.deterministic(4, 1000)
    assert work.arrival_s.tolist() == [k / 4 for k in range(1, 1001)]
    assert work.rate_rps == pytest.approx(4, rel=1e-12)
    assert work.cv == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_has_its_rate_and_cv(cv):
    n = 100_000
    work = sl.gamma_arrivals(20, n, cv=cv, seed=2)
    assert abs(gaps(work).mean() * 20 - 1) <= SIGMAS * cv / math.sqrt(n)
    # the delta method with a gamma's skewness 2 cv and kurtosis 3 + 6 cv^2
    assert abs(work.cv - cv) <= SIGMAS * cv * math.sqrt((1 + cv**2) / (2 * n))
    law = stats.gamma(cv**-2, scale=cv**2)
    for level in (0.5, 0.9, 0.99):
        below = (gaps(work) * 20 <= law.ppf(level)).mean()
        assert abs(below - level) <= SIGMAS * math.sqrt(level * (1 - level) / n)


@pytest.mark.parametrize("rate", [0.5, 1, 2, 4, 7.3])
def test_timed_arrivals_are_as_many_as_they_should_be_within_their_time(rate):
    for seed in range(20):
        work = sl.timed_arrivals(rate, 60, seed)
        assert len(work) == round(60 * rate)
        assert 0 <= work.arrival_s[0] <= work.arrival_s[-1] <= 60
    assert len(sl.timed_arrivals(0.001, 60, seed=1)) == 1, "a level without a request is none"


def test_timed_arrivals_are_poissons_given_their_number():
    """Poisson arrivals of a known number are that many uniform times."""
    times = np.concatenate([sl.timed_arrivals(2, 10, seed).arrival_s for seed in range(2000)])
    assert stats.kstest(times / 10, "uniform").pvalue > 0.001
    first = np.array([sl.timed_arrivals(2, 10, seed).arrival_s[0] for seed in range(2000)])
    assert stats.kstest(first / 10, stats.beta(1, 20).cdf).pvalue > 0.001  # the least of 20


@pytest.mark.parametrize("cv", [0.01, 0.3, 3.0, 100.0])
def test_timed_arrivals_have_their_burstiness(cv):
    work = sl.timed_arrivals(1000, 100, seed=2, cv=cv)
    assert len(work) == 100_000 and work.arrival_s[-1] <= 100
    if cv < 10:  # beyond, no sample of this size shows it
        assert work.cv == pytest.approx(cv, rel=SIGMAS * math.sqrt((1 + cv**2) / 2e5))
    for seed in range(50):  # gaps of which nearly all are 0
        few = sl.timed_arrivals(1, 3, seed, cv=cv).arrival_s
        assert len(few) == 3 and np.isfinite(few).all() and 0 <= few[0] <= few[-1] <= 3


@pytest.mark.parametrize(
    ("on", "off", "mean_on", "mean_off"), [(40, 0, 5, 5), (100, 5, 0.5, 2), (30, 10, 20, 60), (5, 50, 1, 1)]
)
def test_on_off_has_its_mean_rate(on, off, mean_on, mean_off):
    n = 100_000
    work = sl.on_off(on, off, mean_on, mean_off, n, seed=3)
    share = mean_on / (mean_on + mean_off)
    rate = share * on + (1 - share) * off
    # variance of the count per second: Poisson's own, and the integral of the rate's covariance
    variance = rate + 2 * (on - off) ** 2 * share * (1 - share) / (1 / mean_on + 1 / mean_off)
    expected_s = n / rate
    assert abs(work.arrival_s[-1] - expected_s) <= SIGMAS * math.sqrt(variance * expected_s) / rate


def test_on_off_with_silent_pauses_is_hyperexponential():
    """Kuczura (1973): arrivals with an off rate of 0 are a renewal process with hyperexponential gaps."""
    on, mean_on, mean_off = 10.0, 0.5, 2.0
    work = sl.on_off(on, 0, mean_on, mean_off, 50_000, seed=4)
    leave, come = 1 / mean_on, 1 / mean_off
    root = math.sqrt((on + leave + come) ** 2 - 4 * on * come)
    fast, slow = (on + leave + come + root) / 2, (on + leave + come - root) / 2
    p = (on - slow) / (fast - slow)

    def cdf(t):
        return 1 - p * np.exp(-fast * t) - (1 - p) * np.exp(-slow * t)

    between = np.diff(work.arrival_s)
    assert stats.kstest(between, cdf).pvalue > P_VALUE
    cv = math.sqrt(1 + 2 * on * leave / (leave + come) ** 2)
    kurtosis = 34.8  # of these gaps; leaving the skewness out of the delta method widens the interval
    assert abs(work.cv - cv) <= SIGMAS * cv * math.sqrt((kurtosis - 1) / 4 / len(between))


def test_on_off_starts_in_either_phase_by_its_share_of_time():
    seeds = 600
    at_once = [sl.on_off(1e6, 0, 3, 1, 1, seed=seed).arrival_s[0] < 1e-3 for seed in range(seeds)]
    assert abs(np.mean(at_once) - 0.75) <= SIGMAS * math.sqrt(0.75 * 0.25 / seeds)


def test_rate_profile_counts_are_poisson_with_the_area_of_each_piece():
    times, rates = [0, 10, 20, 20, 30, 40], [0, 20, 20, 5, 0, 0]
    areas = np.array([100, 200, 25, 0])  # up, level, down after a jump, nothing
    runs = 400
    counts = np.array(
        [
            np.histogram(sl.rate_profile(times, rates, seed=seed).arrival_s, [0, 10, 20, 30, 40])[0]
            for seed in range(runs)
        ]
    )
    assert (abs(counts.mean(axis=0) - areas) <= SIGMAS * np.sqrt(areas / runs)).all()
    # a Poisson count varies as much as its mean: no more (thinning twice), no less (a fixed number)
    for column in range(3):
        dispersion = counts[:, column].var(ddof=1) / areas[column] * (runs - 1)
        assert P_VALUE < stats.chi2(runs - 1).cdf(dispersion) < 1 - P_VALUE


def test_rate_profile_follows_its_slope():
    work = sl.rate_profile([0, 100, 150], [10, 200, 0], seed=5)
    t = work.arrival_s
    area = np.where(t < 100, 10 * t + 0.95 * t**2, 10_500 + 200 * (t - 100) - 2 * (t - 100) ** 2)
    assert stats.kstest(area / 15_500, "uniform").pvalue > P_VALUE


def test_a_level_profile_is_poisson():
    level = sl.rate_profile([0, 50], [20, 20], seed=6)
    same = sl.poisson(20, len(level) + 1, seed=6)
    assert np.allclose(level.arrival_s, same.arrival_s[:-1], rtol=1e-12)
    assert same.arrival_s[-1] > 50


def test_a_longer_profile_begins_with_the_shorter_one():
    short = sl.rate_profile([0, 60], [5, 25], seed=7)
    long = sl.rate_profile([0, 60, 120], [5, 25, 0], seed=7)
    assert long.arrival_s[: len(short)].tolist() == short.arrival_s.tolist()
    assert long.arrival_s[len(short)] > 60


def test_profile_may_start_late():
    late = sl.rate_profile([100, 160], [5, 5], seed=8)
    early = sl.rate_profile([0, 60], [5, 5], seed=8)
    assert np.allclose(late.arrival_s - 100, early.arrival_s, atol=1e-9)


def test_closed_loop_leaves_the_arrivals_to_the_simulation():
    work = sl.closed_loop(8, 100, seed=1, think_s=Exponential(5), output_tokens=Geometric(20))
    assert work.is_closed
    assert work.clients == 8
    assert np.isnan(work.arrival_s).all()
    assert len(set(work.think_s)) == 100
    assert math.isnan(work.rate_rps)
    assert math.isnan(work.cv)
    assert sl.closed_loop(8, 3, seed=1).think_s.tolist() == [0, 0, 0]
    assert not sl.poisson(1, 3, seed=1).is_closed


# --- columns and streams ---

GENERATORS = {
    "poisson": lambda seed, **columns: sl.poisson(20, 300, seed, **columns),
    "deterministic": lambda seed, **columns: sl.deterministic(20, 300, seed, **columns),
    "gamma_arrivals": lambda seed, **columns: sl.gamma_arrivals(20, 300, 2.5, seed, **columns),
    "timed_arrivals": lambda seed, **columns: sl.timed_arrivals(20, 15, seed, 2.5, **columns),
    "on_off": lambda seed, **columns: sl.on_off(40, 1, 5, 5, 300, seed, **columns),
    "rate_profile": lambda seed, **columns: sl.rate_profile([0, 30], [5, 15], seed, **columns),
    "closed_loop": lambda seed, **columns: sl.closed_loop(4, 300, seed, Exponential(1), **columns),
}
COLUMNS = {
    "prompt_tokens": Uniform(1, 10**6),
    "output_tokens": Uniform(1, 10**6),
    "service_scale": Exponential(1),
    "priority": Uniform(0, 10**6),
}


def everything(work):
    return {
        "arrival_s": work.arrival_s.tolist() if not work.is_closed else work.think_s.tolist(),
        **{column: getattr(work, column).tolist() for column in COLUMNS},
    }


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
def test_one_seed_one_workload(generate):
    assert everything(generate(5, **COLUMNS)) == everything(generate(5, **COLUMNS))
    assert generate(5, **COLUMNS).prompt_tokens.tolist() != generate(6, **COLUMNS).prompt_tokens.tolist()


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("changed", COLUMNS)
def test_a_column_has_a_stream_of_its_own(generate, changed):
    """Changing one law changes that column and nothing else, so that two runs compare like with like."""
    before = everything(generate(5, **COLUMNS))
    after = everything(generate(5, **{**COLUMNS, changed: 3}))
    assert {name for name in before if before[name] != after[name]} == {changed}


def test_columns_are_not_each_others_shadow():
    work = sl.poisson(20, 2000, 5, **COLUMNS)
    columns = np.array([np.diff(work.arrival_s, prepend=0), *(getattr(work, name) for name in COLUMNS)])
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert abs(correlation).max() <= SIGMAS / math.sqrt(2000)


def test_more_requests_begin_with_the_fewer():
    few, many = sl.poisson(20, 10, seed=5), sl.poisson(20, 1000, seed=5)
    assert many.arrival_s[:10].tolist() == few.arrival_s.tolist()
    few, many = sl.on_off(20, 0, 1, 1, 10, seed=5), sl.on_off(20, 0, 1, 1, 5000, seed=5)
    assert many.arrival_s[:10].tolist() == few.arrival_s.tolist()


def test_a_column_is_a_number_a_sequence_or_a_law():
    work = sl.poisson(1, 3, seed=1, prompt_tokens=[5, 0, 9], output_tokens=7, service_scale=np.array([1, 2, 0.5]))
    assert work.prompt_tokens.tolist() == [5, 0, 9]
    assert work.output_tokens.tolist() == [7, 7, 7]
    assert work.service_scale.tolist() == [1, 2, 0.5]
    assert sl.deterministic(1, 2, prompt_tokens=Constant(4)).prompt_tokens.tolist() == [4, 4]
    assert sl.poisson(1, 3, seed=1, prompt_tokens=range(3)).prompt_tokens.tolist() == [0, 1, 2]


def test_any_object_that_samples_is_a_law():
    class Alternating:
        mean = 1.5

        def sample(self, rng, n):
            return np.arange(n) % 2 + 1

    assert sl.poisson(1, 4, seed=1, output_tokens=Alternating()).output_tokens.tolist() == [1, 2, 1, 2]


def test_a_continuous_law_is_rounded_to_whole_tokens_and_an_answer_has_at_least_one():
    law = LogNormal(median=0.6, sigma=1)
    work = sl.poisson(1, 5000, seed=1, prompt_tokens=law, output_tokens=law)
    raw = law.sample(np.random.default_rng(np.random.SeedSequence(1, spawn_key=(1,))), 5000)
    assert work.prompt_tokens.tolist() == np.rint(raw).tolist()
    assert work.prompt_tokens.min() == 0
    assert work.output_tokens.min() == 1
    tokens = sl.poisson(1, 50_000, seed=1, output_tokens=LogNormal(200, p99=2000, max=4096)).output_tokens
    assert abs(tokens.mean() - LogNormal(200, p99=2000, max=4096).mean) <= SIGMAS * tokens.std() / math.sqrt(50_000)


def test_empirical_lengths_come_from_the_sample():
    assert set(sl.poisson(1, 200, 1, output_tokens=Empirical([3, 8])).output_tokens) == {3, 8}


def test_generators_say_what_they_are():
    assert sl.poisson(20, 10, seed=42).name == "poisson(rate_rps=20, n=10, seed=42)"
    assert repr(sl.poisson(20, 10, seed=42)) == "<Workload poisson(rate_rps=20, n=10, seed=42): 10 requests>"
    assert "unnamed" in repr(sl.Workload.from_arrivals([0]))


# --- the table ---


def test_statistics():
    work = sl.Workload.from_arrivals([1, 2, 4, 5], prompt_tokens=[1, 2, 3, 10], output_tokens=5, name="four")
    assert work.rate_rps == pytest.approx(3 / 4)
    assert work.cv == pytest.approx(math.sqrt(2) / 4)
    assert work.describe() == {
        "name": "four",
        "requests": 4,
        "clients": 0,
        "span_s": 4.0,
        "rate_rps": 0.75,
        "cv": pytest.approx(math.sqrt(2) / 4),
        "mean_prompt_tokens": 4.0,
        "max_prompt_tokens": 10,
        "mean_output_tokens": 5.0,
        "max_output_tokens": 5,
    }
    assert math.isnan(sl.Workload.from_arrivals([1]).rate_rps)
    assert math.isnan(sl.Workload.from_arrivals([1]).cv)
    at_once = sl.Workload.from_arrivals([2, 2, 2])
    assert at_once.rate_rps == math.inf
    assert math.isnan(at_once.cv)


def test_columns_are_copies_that_nobody_can_change():
    mine = np.array([0.0, 1.0])
    work = sl.Workload.from_arrivals(mine)
    mine[0] = 9
    assert work.arrival_s.tolist() == [0, 1]
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "priority", "service_scale"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(work, column)[0] = 1


def test_head_and_scaled():
    work = sl.Workload.from_arrivals([0, 1, 4], prompt_tokens=[1, 2, 3], prefix_hashes=[[1, 2], [], [7]], name="w")
    assert work.head(2).prompt_tokens.tolist() == [1, 2]
    assert [row.tolist() for row in work.head(2).prefix_hashes] == [[1, 2], []]
    assert len(work.head(10)) == 3
    fast = work.scaled(2)
    assert fast.arrival_s.tolist() == [0, 0.5, 2]
    assert fast.name == "w at 2x"
    assert fast.rate_rps == 2 * work.rate_rps
    closed = sl.closed_loop(2, 3, seed=1, think_s=[1, 2, 3])
    assert closed.scaled(2).think_s.tolist() == [0.5, 1, 1.5]
    assert closed.head(2).think_s.tolist() == [1, 2]
    assert closed.head(2).clients == 2


@given(
    st.lists(st.floats(0, 4e9), min_size=1, max_size=30).map(sorted),
    st.integers(1, 40),
    st.floats(0.01, 100),
)
def test_from_arrivals_keeps_what_it_is_given(arrivals, n, speed):
    work = sl.Workload.from_arrivals(arrivals)
    assert work.arrival_s.tolist() == arrivals
    assert work.head(n).arrival_s.tolist() == arrivals[:n]
    if arrivals[-1] / speed <= 4e9:
        assert np.allclose(work.scaled(speed).arrival_s * speed, arrivals)


@given(
    kind=st.sampled_from(["poisson", "deterministic", "gamma", "on_off"]),
    rate=st.floats(1e-3, 1e4),
    n=st.integers(1, 200),
    cv=st.floats(0.05, 20),
    phases=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 1e3)),
    seed=st.integers(0, 2**64),
)
def test_generators_always_make_n_requests_in_order(kind, rate, n, cv, phases, seed):
    on_s, off_s, off_rate = phases
    work = {
        "poisson": lambda: sl.poisson(rate, n, seed),
        "deterministic": lambda: sl.deterministic(rate, n),
        "gamma": lambda: sl.gamma_arrivals(rate, n, cv, seed),
        "on_off": lambda: sl.on_off(rate, off_rate, on_s, off_s, n, seed),
    }[kind]()
    assert len(work) == n
    assert (np.diff(work.arrival_s) >= 0).all()


@given(
    steps=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 30)), min_size=1, max_size=6),
    start=st.floats(0, 1e6),
    seed=st.integers(0, 2**32),
)
def test_profiles_stay_within_their_times_and_off_where_the_rate_is_zero(steps, start, seed):
    times = [start, *(start + t for t in accumulate(lasts for lasts, _ in steps))]
    rates = [0, *(rate for _, rate in steps)]
    try:
        work = sl.rate_profile(times, rates, seed)
    except ValueError as error:
        assert any(rule in str(error) for rule in ("times_s must end", "must not be 0", "must bring a request"))
        return
    assert times[0] <= work.arrival_s[0]
    assert work.arrival_s[-1] <= times[-1]
    for k, (a, b) in enumerate(pairwise(rates)):
        if a == b == 0:
            assert not ((work.arrival_s > times[k]) & (work.arrival_s < times[k + 1])).any()


# --- errors ---

NAN = float("nan")
closed = {"clients": 2, "arrival_s": [NAN] * 3, "think_s": [0, 0, 0]}


def table(**changes):
    columns = {
        "arrival_s": [0, 1, 2],
        "prompt_tokens": [0, 0, 0],
        "output_tokens": [1, 1, 1],
        "priority": [0, 0, 0],
        "service_scale": [1, 1, 1],
    }
    return sl.Workload(**{**columns, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_s": [0, 2, 1]}, r"arrival_s must never decrease; arrival_s\[2\] = 1.0 comes after 2.0"),
        (
            {"arrival_s": [0, 1, NAN]},
            r"arrival_s\[2\] must be a finite number >= 0 and <= 4000000000; got nan",
        ),
        ({"arrival_s": [-1e-9, 1, 2]}, r"arrival_s\[0\] must be .* got -1e-09"),
        ({"arrival_s": [0, 1, math.inf]}, r"arrival_s\[2\] must be .* got inf"),
        ({"arrival_s": [0, 1, 5e9]}, r"arrival_s\[2\] must be .* got 5000000000"),
        ({"arrival_s": []}, "arrival_s must hold at least one request; got none"),
        ({"arrival_s": [[0], [1]]}, r"arrival_s must be a flat sequence of numbers; got \[\[0\], \[1\]\]"),
        ({"arrival_s": [[0], [1, 2]]}, "arrival_s must be a flat sequence of numbers"),
        ({"arrival_s": 3}, "arrival_s must be a flat sequence of numbers; got 3"),
        ({"arrival_s": [0, None, 1]}, r"arrival_s\[1\] must be .* got None"),
        ({"arrival_s": [0, "1", 2]}, r"arrival_s\[1\] must be .* got '1'"),
        (
            {"arrival_s": np.array(["2023-11-16"] * 3, "datetime64[s]")},
            r"arrival_s\[0\] must be a finite number",
        ),
        ({"prompt_tokens": [0, 0]}, "prompt_tokens must hold 3 values; got 2"),
        (
            {"prompt_tokens": [0, 0, -1]},
            r"prompt_tokens\[2\] must be a whole number >= 0 and <= 1000000000; got -1",
        ),
        ({"prompt_tokens": [0, 0, 10**9 + 1]}, r"prompt_tokens\[2\] must be .* got 1000000001"),
        ({"prompt_tokens": [0, 0, 10**30]}, r"prompt_tokens\[2\] must be .* got 1e\+30"),
        ({"prompt_tokens": [0, 0.5, 1]}, r"prompt_tokens\[1\] must be a whole number .* got 0.5"),
        ({"output_tokens": [1, 0, 1]}, r"output_tokens\[1\] must be a whole number >= 1 .* got 0"),
        ({"output_tokens": [True, False, True]}, r"output_tokens\[0\] must be .* got True"),
        ({"priority": [0, 0.5, 0]}, r"priority\[1\] must be a whole number .* got 0.5"),
        ({"service_scale": [1, 0, 1]}, r"service_scale\[1\] must be a finite number > 0; got 0"),
        ({"prefix_hashes": ([1], [2])}, "prefix_hashes must hold 3 arrays, one for each request; got 2"),
        ({"prefix_hashes": ([1], [2.5], [3])}, r"prefix_hashes\[1\]\[0\] must be a whole number .* got 2.5"),
        ({"prefix_hashes": 7}, "prefix_hashes must hold 3 arrays, one for each request; got 7"),
        ({"think_s": [0, 0, 0]}, "think_s belongs to a closed loop"),
        ({"clients": -1}, "clients must be a whole number >= 0; got -1"),
        ({"clients": 2, "think_s": [0, 0, 0]}, "arrival_s must be all NaN in a closed loop"),
        ({**closed, "think_s": None}, "think_s must be given in a closed loop"),
        ({**closed, "think_s": [0, -1, 0]}, r"think_s\[1\] must be a finite number >= 0 .* got -1"),
    ],
)
def test_the_table_names_what_breaks_a_rule(changes, message):
    with pytest.raises(ValueError, match=message):
        table(**changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.poisson(0, 5, 1), "rate_rps must be a finite number > 0; got 0"),
        (lambda: sl.poisson(NAN, 5, 1), "rate_rps must be a finite number > 0; got nan"),
        (lambda: sl.poisson("20", 5, 1), "rate_rps must be a finite number > 0; got '20'"),
        (lambda: sl.poisson(1, 0, 1), "n must be a whole number >= 1"),
        (lambda: sl.poisson(1, 2.5, 1), "n must be a whole number .* got 2.5"),
        (lambda: sl.poisson(1, 5, -1), "seed must be a whole number >= 0; got -1"),
        (lambda: sl.poisson(1, 5, None), "seed must be a whole number >= 0; got None"),
        (lambda: sl.poisson(1e-10, 5, 1), r"arrival_s\[\d\] must be a finite number"),
        (lambda: sl.poisson(1, 5, 1, output_tokens=0), r"output_tokens\[0\] must be a whole number >= 1"),
        (
            lambda: sl.poisson(1, 5, 1, output_tokens="many"),
            "output_tokens must be a finite number; got 'many'",
        ),
        (lambda: sl.poisson(1, 5, 1, prompt_tokens=[1, 2]), "prompt_tokens must hold 5 values; got 2"),
        (lambda: sl.poisson(1, 5, 1, prompt_tokens=[[1], [2, 3]]), "prompt_tokens must be a flat sequence"),
        (lambda: sl.poisson(1, 5, 1, priority=0.5), r"priority\[0\] must be a whole number .* got 0.5"),
        (
            lambda: sl.deterministic(1, 5, output_tokens=Geometric(5)),
            "seed must be given where output_tokens",
        ),
        (lambda: sl.gamma_arrivals(1, 5, 0, 1), "cv must be a finite number >= 0.001 and <= 100; got 0"),
        (lambda: sl.timed_arrivals(1, 5, 1, 0), "cv must be a finite number >= 0.001 and <= 100; got 0"),
        (lambda: sl.timed_arrivals(1, math.inf, 1), "duration_s must be a finite number > 0"),
        (lambda: sl.timed_arrivals(1e9, 60, 1), "rate_rps and duration_s must bring at most 1e\\+08 requests"),
        (lambda: sl.on_off(0, 1, 1, 1, 5, 1), "rate_on_rps must be a finite number > 0"),
        (lambda: sl.on_off(1, -1, 1, 1, 5, 1), "rate_off_rps must be a finite number >= 0"),
        (lambda: sl.on_off(1, 0, 1, 0, 5, 1), "mean_off_s must be a finite number > 0"),
        (lambda: sl.on_off(1, 0, 1e-9, 1e-9, 5, 1), "are too short for n = 5"),
        (lambda: sl.rate_profile([0], [1], 1), "times_s must end after they start"),
        (
            lambda: sl.rate_profile([0, 5, 4], [1, 1, 1], 1),
            r"times_s must never decrease; times_s\[2\] = 4.0",
        ),
        (lambda: sl.rate_profile([0, 5], [1], 1), "rates_rps must hold 2 values; got 1"),
        (lambda: sl.rate_profile([0, 5], [1, -1], 1), r"rates_rps\[1\] must be a finite number >= 0; got -1"),
        (lambda: sl.rate_profile([0, 5], [0, 0], 1), "rates_rps must not be 0 all the time"),
        (
            lambda: sl.rate_profile([0, 1], [1e-9, 1e-9], 1),
            "must bring a request; none came, 1e-09 were expected",
        ),
        (lambda: sl.rate_profile([0, 1e9], [1e9, 1e9], 1), "must bring at most 1e\\+08 requests"),
        (lambda: sl.closed_loop(0, 5, 1), "clients must be a whole number >= 1; got 0"),
        (lambda: sl.closed_loop(2, 5, NAN), "seed must be a whole number >= 0; got nan"),
        (lambda: sl.deterministic(1, 5, seed="3"), "seed must be a whole number >= 0; got '3'"),
        (lambda: sl.closed_loop(2, 5, 1, think_s=-1), r"think_s\[0\] must be a finite number >= 0"),
        (lambda: sl.poisson(1, 5, 1).head(0), "n must be a whole number >= 1"),
        (lambda: sl.poisson(1, 5, 1).scaled(0), "speed must be a finite number > 0"),
        (
            lambda: sl.Workload.from_arrivals([0, 1], output_tokens=None),
            "output_tokens must be a finite number",
        ),
    ],
)
def test_generators_name_what_breaks_a_rule(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# What a request says of itself


def test_what_a_request_says_of_itself_goes_through_every_engine_and_every_file(tmp_path):
    said = {
        "user": ("ada", "bob", "ada", "eve"), "request_class": ("chat", "chat", "file", "chat"),
        "deadline_s": [1.0, 2.0, 3.0, 4.5], "max_tokens": [9, 9, 20, 9],
    }  # fmt: skip
    work = sl.Workload.from_arrivals([0.0, 0.5, 1.0, 1.5], 10, [3, 5, 20, 1], **said)
    pot = sl.AffineStep(0.1, 0.01)
    runs = [
        run(work, rule, pot)
        for run in (sl.simulate, sl.reference)
        for rule in (sl.StaticBatching(2), sl.ContinuousBatching(8), sl.ContinuousBatching(8, 64))
    ]
    sl.save_run(runs[0], tmp_path / "run.npz")
    for run in (*runs, sl.read_run(tmp_path / "run.npz")):
        for name, column in said.items():
            assert list(getattr(run, name)) == list(column), name
    runs[0].to_csv(tmp_path / "run.csv")
    header, first, *_ = (tmp_path / "run.csv").read_text().splitlines()
    told = dict(zip(header.split(","), first.split(","), strict=True))
    assert (told["user"], told["request_class"], float(told["deadline_s"]), told["max_tokens"]) == (
        "ada",
        "chat",
        1.0,
        "9",
    )
    assert list(work.head(2).user) == ["ada", "bob"] and list(work.scaled(2).deadline_s) == said["deadline_s"]


def test_a_run_that_says_nothing_has_no_such_columns(tmp_path):
    run = sl.simulate(sl.Workload.from_arrivals([0.0]), sl.StaticBatching(1), sl.AffineStep(0.1, 0.01))
    assert set(run.optional.values()) == {None}
    assert not {"user", "request_class", "deadline_s", "max_tokens"} & set(run.rows())
    sl.save_run(run, tmp_path / "run.npz")
    assert set(sl.read_run(tmp_path / "run.npz").optional.values()) == {None}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": "ada"}, "user must hold 2 texts, one for each request; got 'ada'"),
        ({"user": ["ada"]}, "user must hold 2 texts, one for each request; got 1"),
        ({"request_class": ["chat", 7]}, r"request_class must hold texts; request_class\[1\] is 7"),
        ({"deadline_s": [0.0, 1.0]}, r"deadline_s\[0\] .*> 0|deadline_s must .*> 0"),
        ({"deadline_s": [1.0]}, "deadline_s"),
        ({"max_tokens": [3, 9.5]}, "max_tokens"),
        (
            {"max_tokens": [9, 4]},
            r"max_tokens must be at least output_tokens; max_tokens\[1\] = 4 and output_tokens\[1\] = 5",
        ),
    ],
)
def test_a_column_that_breaks_its_rule_is_named(columns, message):
    with pytest.raises(ValueError, match=message):
        sl.Workload.from_arrivals([0.0, 1.0], 10, 5, **columns)
