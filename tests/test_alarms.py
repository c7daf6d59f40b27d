"""Alarms and burn rates: known answers, and the laws against samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import servinglab as sl
from scipy.stats import binom
from servinglab.metrics.percentiles import percentile
from servinglab.monitoring.alarms import (
    AlarmRule,
    alarm_starts,
    bad_window,
    slow_allowed,
    windowed_counts,
    windows_to_alarm,
)
from servinglab.monitoring.burn_rate import STANDARD_RULES, BurnRule, burn_rates, firing


def test_a_window_is_bad_when_its_nearest_rank_p99_is():
    dice = np.random.default_rng(1)
    for _ in range(2000):
        n, slow, q = int(dice.integers(1, 400)), int(dice.integers(0, 8)), float(dice.choice([0.5, 0.9, 0.95, 0.99]))
        values = np.repeat([1.0, 9.0], [n - min(slow, n), min(slow, n)])
        assert (percentile(values, q) > 5) == (min(slow, n) > slow_allowed(n, q))


@pytest.mark.parametrize(
    ("samples", "share", "once", "thrice"),
    [(50, 0.005, 0.222, 0.011), (1000, 0.005, 0.0135, 2.4e-6), (1000, 0.01, 0.417, 0.072)],
)
def test_known_shares_of_bad_windows(samples, share, once, thrice):
    bad = bad_window(samples, share)
    assert bad == pytest.approx(once, rel=0.005)
    assert bad**3 == pytest.approx(thrice, rel=0.02)


def test_known_alarms():
    rule = AlarmRule(60, in_a_row=3)
    assert round(rule.windows_between(5, 0.005, "exact")) == 3864
    assert round(rule.windows_between(5, 0.005)) == 610
    assert round(rule.delay_s(5, 0.02, "exact") / 60, 1) == 4.2
    assert round(rule.delay_s(5, 0.02) / 60, 1) == 3.7
    assert rule.alarms_per_day(5, 0.005) == pytest.approx(1440 / 610.35, rel=1e-4)


@pytest.mark.parametrize(("bad", "in_a_row"), [(0.3, 1), (0.3, 2), (0.5, 3)])
def test_the_law_of_runs_against_samples(bad, in_a_row):
    dice = np.random.default_rng(7)
    waits = []
    for _ in range(4000):
        row = windows = 0
        while row < in_a_row:
            windows += 1
            row = row + 1 if dice.random() < bad else 0
        waits.append(windows)
    assert np.mean(waits) == pytest.approx(
        windows_to_alarm(bad, in_a_row), abs=4 * np.std(waits) / math.sqrt(len(waits))
    )


@pytest.mark.parametrize("empty", ["good", "bad", "skip"])
def test_alarms_of_poisson_windows_against_samples(empty):
    rule = AlarmRule(10, in_a_row=2, q=0.9, empty=empty)
    dice = np.random.default_rng(3)
    samples = dice.poisson(0.2 * 10, 400_000)
    slow = dice.binomial(samples, 0.05)
    bad = slow > slow_allowed(samples, rule.q)
    bad[samples == 0] = empty == "bad"
    gaps, red, row, since = [], [], 0, 0  # after an alarm the count begins anew, as in the law of runs
    for n, is_bad in zip(samples, bad, strict=True):
        since += 1
        row = row if (n == 0 and empty == "skip") else (row + 1 if is_bad else 0)
        red.append(row >= 2)
        if row == 2:
            gaps.append(since)
            row = since = 0
    assert (alarm_starts(rule.fires(samples, slow))[0]) == red.index(True)
    spread = 4 * np.std(gaps) / math.sqrt(len(gaps))
    assert np.mean(gaps) == pytest.approx(rule.windows_between(0.2, 0.05), abs=spread)


def test_one_queue_s_windows_are_bad_in_swarms():
    """Independent requests would fire an alarm on three in a row far less often than those of one queue."""
    orders = sl.poisson(20, 400_000, seed=5)
    run = sl.simulate(orders, sl.ContinuousBatching(32), sl.AffineStep(0.4, 0.02))
    limit = percentile(run.e2e_s, 0.992)  # 0.8 % are slow: the promise of 1 % is kept
    samples, slow, end_s = windowed_counts(run.finish_s, run.e2e_s, limit, 60.0)
    rule = AlarmRule(60, in_a_row=3)
    seen = len(alarm_starts(rule.fires(samples[:-1], slow[:-1]))) / (end_s[-2] / 86400)
    assert samples.sum() == len(orders.arrival_s)
    assert seen > 2 * rule.alarms_per_day(20, 0.008)


def test_an_alarm_looks_at_each_window_once():
    rule = AlarmRule(60, in_a_row=3)
    assert rule.fires([200] * 6, [3, 3, 3, 3, 0, 3]).tolist() == [False, False, True, True, False, False]
    assert alarm_starts(rule.fires([200] * 6, [3] * 6)).tolist() == [2]
    assert AlarmRule(60, 2, empty="good").fires([100, 0, 100], [2, 0, 2]).tolist() == [False] * 3
    assert AlarmRule(60, 2, empty="skip").fires([100, 0, 100], [2, 0, 2]).tolist() == [False, False, True]


def test_known_burn_rates():
    spent = {(14.4, 3600.0, 300.0): 0.02, (6, 21600, 1800): 0.05, (3, 86400, 7200): 0.1, (1, 259200, 21600): 0.1}
    assert {(r.burn, r.long_s, r.short_s): round(r.spent(), 12) for r in STANDARD_RULES} == spent
    fast = STANDARD_RULES[0]
    assert fast.detection_s(0.999, 1.0) == pytest.approx(51.84)
    assert fast.detection_s(0.999, 0.0144) == pytest.approx(3600)
    assert fast.detection_s(0.999, 0.014) == math.inf
    with pytest.raises(ValueError, match=r"burn must be at most 10 for an objective of 0\.9"):
        fast.bad_share(0.9)
    with pytest.raises(ValueError, match="burn must be at most 10"):
        firing([0, 1], [0, 1], [0, 1], fast, 0.9)


@pytest.mark.parametrize("share", [1.0, 0.1, 0.0144])
def test_a_rule_fires_when_its_formula_says(share):
    rule, objective = STANDARD_RULES[0], 0.999
    seconds = np.arange(0.0, 4 * 3600.0)
    total = 1000 * seconds
    bad = share * 1000 * np.maximum(0, seconds - 7200)
    fires = seconds[firing(seconds, total - bad, total, rule, objective)]
    assert fires[0] - 7200 == pytest.approx(math.ceil(rule.detection_s(objective, share) - 1e-6), abs=1)


def test_the_short_window_ends_an_alarm_and_an_idle_one_burns_nothing():
    rule = BurnRule(14.4, 3600, 300)
    seconds = np.arange(0.0, 4 * 3600.0)
    good = np.minimum(seconds, 3600.0) + np.maximum(0, seconds - 4000)  # an outage of 400 s
    red = firing(seconds, good, seconds, rule, 0.999)
    assert red[4000] and not red[4400]
    idle = np.minimum(seconds, 3600.0)
    assert np.isnan(burn_rates(seconds, idle, idle, 300, 0.999)[5000])
    assert not firing(seconds, idle, idle, rule, 0.999).any()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bad_window(0, 0.1), "samples must"),
        (lambda: bad_window(10.5, 0.1), "samples must"),
        (lambda: bad_window(10, 1.5), "slow_share must"),
        (lambda: bad_window(10, 0.1, counts="some"), "counts must"),
        (lambda: AlarmRule(0), "window_s must"),
        (lambda: AlarmRule(60, 0), "in_a_row must"),
        (lambda: AlarmRule(60, empty="red"), "empty must"),
        (lambda: AlarmRule(60).fires([1], [2]), "slow must be"),
        (lambda: AlarmRule(60).fires([1, 2], [1]), "one length"),
        (lambda: windowed_counts([-1], [1], 1, 1), "at least 0"),
        (lambda: BurnRule(1, 60, 90), "short_s must"),
        (lambda: BurnRule(14.4, 3600, 300).detection_s(0.999, 0), "bad_share must"),
        (lambda: burn_rates([0, 0], [0, 0], [0, 0], 1, 0.9), "must rise"),
    ],
)
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_counts_by_chance_are_bad_more_often():
    for samples in (99, 100, 101, 300, 1000):
        exact = [bad_window(n, 0.004) for n in range(max(1, samples - 400), samples + 400)]
        assert min(exact) <= bad_window(samples, 0.004, counts="poisson") <= max(exact)
    assert bad_window(100, 0.01) == pytest.approx(binom.sf(1, 100, 0.01))
