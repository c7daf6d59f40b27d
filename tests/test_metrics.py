"""Percentiles, Little's law and the summary: known answers, edges, and the rules for what is missing."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given
from hypothesis import strategies as st
from servinglab.base.text import show_number
from servinglab.metrics.littles_law import little
from servinglab.metrics.percentiles import percentile, weighted_percentile
from servinglab.metrics.slo import good_requests
from servinglab.metrics.summary import summarize
from servinglab.workload.lengths import Geometric
from servinglab.workload.outcomes import NEVER

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
PERCENTS = st.integers(1, 100)


# Percentiles


@pytest.mark.parametrize(("rule", "p90", "p99"), [("nearest_rank", 9, 10), ("linear", 9.1, 9.91), ("demo", 9, 9)])
def test_percentiles_of_one_to_ten(rule: str, p90: float, p99: float) -> None:
    values = np.random.default_rng(1).permutation(np.arange(1, 11))
    assert percentile(values, 0.9, rule) == pytest.approx(p90, rel=1e-12)
    assert percentile(values, 0.99, rule) == pytest.approx(p99, rel=1e-12)


def test_rank_is_exact_where_floats_are_not() -> None:
    assert 0.07 * 100 > 7 and 0.29 * 100 < 29  # what a careless rank would see
    for percent in range(1, 101):
        for n in (10, 100, 1000):
            expected = -(-percent * n // 100)
            assert percentile(np.arange(1, n + 1), percent / 100) == expected, (percent, n)
    assert percentile(np.arange(1, 11), 0.1 + 0.2) == 3
    assert percentile(np.arange(1, 4), 1 / 3) == 1
    assert percentile([1, 2, 3], 1e-12) == 1
    assert percentile([1, 2, 3], 1) == 3


def test_the_rules_differ_on_a_thousand_values_only_where_they_should() -> None:
    thousand = np.arange(1, 1001)
    assert percentile(thousand, 0.99) == percentile(thousand, 0.99, "demo") == 990
    hundred_and_one = np.arange(1, 102)
    assert percentile(hundred_and_one, 0.99) == 100
    assert percentile(hundred_and_one, 0.99, "demo") == 99


@given(NUMBERS, PERCENTS)
def test_nearest_rank_is_the_smallest_value_with_enough_at_or_below(values: list[float], percent: int) -> None:
    q = Fraction(percent, 100)
    enough = [x for x in values if Fraction(sum(y <= x for y in values), len(values)) >= q]
    assert percentile(values, percent / 100) == min(enough)


@given(NUMBERS, PERCENTS)
def test_linear_is_numpys(values: list[float], percent: int) -> None:
    expected = np.quantile(values, percent / 100)
    assert percentile(values, percent / 100, "linear") == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 6)), min_size=1, max_size=20), PERCENTS)
def test_weighted_percentile_is_that_of_the_repeated_values(rows: list[tuple[int, int]], percent: int) -> None:
    values, weights = np.array(rows).T
    if not weights.sum():
        with pytest.raises(ValueError, match="not all 0"):
            weighted_percentile(values, weights, 0.5)
        return
    expected = percentile(np.repeat(values, weights), percent / 100)
    assert weighted_percentile(values, weights, percent / 100) == expected
    assert weighted_percentile(values, weights / 7, percent / 100) == expected


def test_token_weighted_itl_of_a_stream_in_chunks() -> None:
    arrived_s, tokens = np.array([0.50, 0.52, 0.60, 0.62, 0.70]), np.array([1, 1, 4, 1, 3])
    gaps = np.diff(arrived_s) / tokens[1:]  # a chunk's tokens share its gap evenly
    assert weighted_percentile(gaps.round(9), tokens[1:], 0.5) == 0.02
    assert gaps @ tokens[1:] / tokens[1:].sum() == pytest.approx(0.2 / 9)


def test_infinite_values_rank_last() -> None:
    values = [1.0, math.inf, 2.0, 3.0]
    assert percentile(values, 0.75) == 3.0
    assert percentile(values, 0.76) == math.inf
    assert percentile(values, 0.99, "linear") == math.inf
    assert percentile([math.inf, math.inf], 0.5, "linear") == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 0.5), "values must be a sequence of at least one number"),
        (([[1.0]], 0.5), "values must be a sequence of at least one number"),
        ((["fast", 1.0], 0.5), r"values must be a sequence of numbers; got \['fast', 1.0\]"),
        (([1.0, math.nan], 0.5), "values must hold no NaN; got 1"),
        (([1.0], 0), r"q must be a finite number > 0 and <= 1; got 0"),
        (([1.0], 99), r"q must be a finite number > 0 and <= 1; got 99"),
        (([1.0], 0.5, "nearest"), "rule must be one of 'nearest_rank', 'linear', 'demo'; got 'nearest'"),
        (([1.0], 0.99, "demo"), r"needs q \* n >= 1"),
    ],
)
def test_percentile_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        percentile(*arguments)


def test_weighted_percentile_refuses() -> None:
    with pytest.raises(ValueError, match="weights must be as many as values, 2; got 1"):
        weighted_percentile([1, 2], [1], 0.5)
    with pytest.raises(ValueError, match="weights must be finite numbers >= 0"):
        weighted_percentile([1, 2], [1, -1], 0.5)
    with pytest.raises(ValueError, match="weights must be numbers; got"):
        weighted_percentile([1, 2], [1, "a"], 0.5)  # type: ignore[list-item]


# Little's law


@pytest.mark.parametrize(
    "scheduler",
    [
        sl.StaticBatching(8),
        sl.StaticBatching(8, last="partial", streaming=True, padded=False),
        sl.DynamicBatching(8, 0.3, streaming=True),
        sl.ContinuousBatching(8),
    ],
    ids=["static", "static streaming", "dynamic", "continuous"],
)
@pytest.mark.parametrize("pots", [1, 3, None])
def test_littles_law_is_an_identity(scheduler: Any, pots: int | None) -> None:
    work = sl.gamma_arrivals(5, 2000, cv=2, seed=3, output_tokens=Geometric(6), prompt_tokens=10)
    both = little(sl.simulate(work, scheduler, sl.AffineStep(0.05, 0.01, 1e-4), pots=pots))
    assert both.rate_rps * both.mean_latency_s == pytest.approx(both.mean_in_system, rel=1e-9)
    assert abs(both.gap) < 1e-9


def test_little_integrates_the_log() -> None:
    # present: [0, 0.1) 1, [0.1, 0.3) 2, [0.3, 0.54) 3, [0.54, 0.96) 1
    served = sl.simulate(
        sl.Workload.from_arrivals([0.0, 0.1, 0.3]), sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02)
    )
    both = little(served)
    assert both.mean_in_system == pytest.approx((0.1 + 2 * 0.2 + 3 * 0.24 + 0.42) / 0.96)
    assert both.rate_rps == pytest.approx(3 / 0.96)
    assert both.mean_latency_s == pytest.approx((0.54 + 0.44 + 0.66) / 3)


def test_little_refuses_what_it_cannot_know() -> None:
    served = sl.simulate(
        sl.Workload.from_arrivals([0.0, 0.1, 0.3]), sl.StaticBatching(2, last="never"), sl.AffineStep(0.4, 0.02)
    )
    with pytest.raises(ValueError, match="all finished; got 2 finished of 3"):
        little(served)
    with pytest.raises(ValueError, match="must have a log"):
        little(_measured())


# The summary


def _measured(**columns: Any) -> sl.Result:
    """Four measured requests without a log of steps.

    0: 5 tokens, TTFT 1 s, TPOT 0.5 s, E2E 3 s. 1: one token, E2E 0.5 s. 2: never served.
    3: of 3 tokens the first 4 s after it came, then cut off.
    """
    second = 10**9
    values: dict[str, Any] = {
        "arrival_ns": np.array([0, 1, 2, 3]) * second,
        "scheduled_ns": np.array([second // 2, second, NEVER, 5 * second]),
        "first_token_ns": np.array([second, 3 * second // 2, NEVER, 7 * second]),
        "finish_ns": np.array([3 * second, 3 * second // 2, NEVER, NEVER]),
        "prompt_tokens": np.zeros(4, np.int64),
        "output_tokens": np.array([5, 1, 5, 3]),
        "preemptions": np.zeros(4, np.int64),
        "status": np.array([0, 0, 1, 1], np.uint8),
    }
    return sl.Result(**(values | columns))


def test_summary_counts_the_missing_in_every_denominator() -> None:
    s = summarize(_measured(), {"ttft_s": 2.0, "e2e_s": 3.0})
    assert s.requests == 4
    assert s.by_status["FINISHED"] == 2 and s.by_status["UNSERVED"] == 2 and sum(s.by_status.values()) == 4
    assert s.duration_s == 7.0  # until the last event, an arrival that nobody served
    assert s.request_throughput == pytest.approx(2 / 7)
    assert s.output_throughput == pytest.approx(6 / 7)
    assert (s.good_requests, s.good_request_fraction) == (2, 0.5)  # 3.0 s keeps a limit of 3.0 s
    assert s.request_goodput == pytest.approx(2 / 7)
    # E2E: 0.5, 3, never, never
    assert (s.e2e_s.count, s.e2e_s.missing) == (2, 2)
    assert (s.e2e_s.mean, s.e2e_s.max) == (1.75, 3.0)
    assert (s.e2e_s.p50, s.e2e_s.p90, s.e2e_s.p99) == (3.0, math.inf, math.inf)
    # TTFT: 0.5, 1, 4, never: a first token counts though the request was cut off later
    assert (s.ttft_s.count, s.ttft_s.missing, s.ttft_s.p50, s.ttft_s.p90) == (3, 1, 1.0, math.inf)
    # TPOT: 0.5, and two that should have had one; the request of one token isn't among them
    assert (s.one_token, s.tpot_s.count, s.tpot_s.missing) == (1, 1, 2)
    assert (s.tpot_s.mean, s.tpot_s.p50) == (0.5, math.inf)
    assert math.isnan(s.mean_batch_size) and math.isnan(s.busy_fraction) and math.isnan(s.mean_in_system)
    assert s.itl_s.count == 0 and math.isnan(s.itl_s.p99)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        ({}, [True, True, False, False]),  # just finish
        ({"tpot_s": 0.4}, [False, True, False, False]),  # one token passes a TPOT limit
        ({"tpot_s": 0.5}, [True, True, False, False]),
        ({"e2e_s": 0.4}, [False, False, False, False]),
        ({"ttft_s": 10.0}, [True, True, False, False]),  # a first token isn't an answer
        ({"ttft_s": 0.7, "tpot_s": 0.4}, [False, True, False, False]),
        ({"ttft_s": 0.4, "tpot_s": 0.5}, [False, False, False, False]),
    ],
)
def test_good_requests(slo: dict[str, float], good: list[bool]) -> None:
    assert good_requests(_measured(), slo).tolist() == good
    assert summarize(_measured(), slo).good_requests == sum(good)


def test_limits_hold_to_the_nanosecond() -> None:
    exact = _measured(finish_ns=np.array([1_800_000_000, 1_800_000_001 + 10**9, NEVER, NEVER]))
    assert good_requests(exact, {"e2e_s": 1.8}).tolist() == [True, False, False, False]


def test_summary_of_a_run_with_a_log() -> None:
    served = sl.simulate(
        sl.Workload.from_arrivals([0.0, 0.1, 0.3]), sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02)
    )
    s = served.summary()
    assert s.mean_batch_size == 1.5  # two steps, of 2 and of 1
    assert s.busy_fraction == pytest.approx((0.44 + 0.42) / 0.96)
    assert s.mean_in_system == pytest.approx(little(served).mean_in_system)
    assert s.slo is s.good_requests is s.request_goodput is s.good_request_fraction is None
    assert (s.tpot_s.count, s.tpot_s.missing, s.one_token) == (0, 0, 3)
    assert math.isnan(
        sl.simulate(sl.poisson(1, 5, seed=1), sl.StaticBatching(1), sl.AffineStep(1, 0), pots=None)
        .summary()
        .busy_fraction
    )


def test_mean_batch_counts_steps_and_itl_counts_tokens() -> None:
    # together at 0: step 1 serves both (1.2 s), steps 2 to 4 serve one (1.1 s each)
    served = sl.simulate(
        sl.Workload.from_arrivals([0.0, 0.0], output_tokens=[1, 4]), sl.ContinuousBatching(2), sl.AffineStep(1, 0.1)
    )
    s = served.summary()
    assert s.mean_batch_size == pytest.approx((2 + 1 + 1 + 1) / 4)
    assert (s.itl_s.count, s.itl_s.p50, s.itl_s.max) == (3, 1.1, 1.1)
    assert s.itl_s.mean == pytest.approx(1.1)


def test_two_busy_pots_are_not_one() -> None:
    served = sl.simulate(sl.Workload.from_arrivals([0.0, 0.0]), sl.StaticBatching(1), sl.AffineStep(1, 0), pots=2)
    assert served.summary().busy_fraction == pytest.approx(1.0)


def test_percentiles_of_the_summary_are_nearest_rank() -> None:
    served = sl.simulate(sl.poisson(20, 997, seed=4), sl.StaticBatching(16), sl.AffineStep(0.4, 0.02))
    s = served.summary()
    for name in ("ttft_s", "e2e_s", "wait_s"):
        spread = getattr(s, name)
        for q, value in ((0.5, spread.p50), (0.9, spread.p90), (0.99, spread.p99), (1.0, spread.max)):
            assert value == percentile(getattr(served, name), q)


def test_nothing_finished_and_nobody_came() -> None:
    nothing = summarize(_measured(finish_ns=np.full(4, NEVER), status=np.ones(4, np.uint8)), {"e2e_s": 1.0})
    assert nothing.good_request_fraction == 0.0
    assert nothing.duration_s == 7.0 and nothing.request_throughput == 0.0
    assert nothing.e2e_s.count == 0 and nothing.e2e_s.p50 == math.inf and math.isnan(nothing.e2e_s.mean)
    columns = ("arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "output_tokens", "status")
    empty = summarize(_measured(**{name: np.zeros(0, np.int64) for name in columns}), {"e2e_s": 1.0})
    assert empty.requests == 0 and math.isnan(empty.e2e_s.p99)
    assert empty.good_request_fraction is not None and math.isnan(empty.good_request_fraction)


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        (3, "slo must map names of latencies to limits in s, .*; got 3"),
        ({"itl_s": 0.1}, "slo's names must be one of 'ttft_s', 'tpot_s', 'e2e_s'; got 'itl_s'"),
        ({"e2e_s": 0}, r"slo\['e2e_s'\] must be a finite number > 0; got 0"),
        ({"e2e_s": math.nan}, r"slo\['e2e_s'\] must be a finite number > 0; got nan"),
    ],
)
def test_summary_refuses_limits(slo: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize(_measured(), slo)


def test_the_table_is_aligned_and_says_what_is_missing() -> None:
    text = str(summarize(_measured(), {"e2e_s": 3.0}))
    facts, spreads = text.split("\n\n")
    assert "4 (2 finished, 2 unserved)" in facts
    assert "good_request_fraction  0.5000 (2 requests)" in facts
    assert len({len(line) for line in spreads.splitlines()}) == 1
    e2e = next(line for line in spreads.splitlines() if line.startswith("e2e"))
    assert e2e.split() == ["e2e", "1.750", "3.000", "inf", "inf", "3.000", "2", "2"]
    itl = next(line for line in spreads.splitlines() if line.startswith("itl"))
    assert itl.split()[1:6] == ["–"] * 5


def test_a_billion_gaps_have_a_column_of_their_own() -> None:
    summary = summarize(_measured())
    many = dataclasses.replace(summary, itl_s=dataclasses.replace(summary.e2e_s, count=1_234_567_890))
    spreads = str(many).split("\n\n")[1].splitlines()
    assert len({len(line) for line in spreads}) == 1
    assert next(line for line in spreads if line.startswith("itl")).split()[-3:] == ["3.000", "1,234,567,890", "2"]


def test_html_escapes_and_matches_the_text() -> None:
    html = summarize(_measured(), {"e2e_s": 3.0})._repr_html_()
    assert "e2e_s &lt;= 3" in html and "<= 3" not in html
    assert html.count("<table>") == html.count("</table>") == 2


def test_to_dict_is_plain_and_marks_the_undefined() -> None:
    d = summarize(_measured(), {"e2e_s": 3.0}).to_dict()
    assert json.loads(json.dumps(d)) == d
    assert d["mean_batch_size"] is None and d["itl_s"]["p50"] is None
    assert d["e2e_s"]["mean"] == 1.75 and d["slo"] == {"e2e_s": 3.0} and d["good_requests"] == 2


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (0.0, "0.000"),
        (0.00012346, "0.0001235"),
        (0.7, "0.7000"),
        (18.714, "18.71"),
        (19366.0, "19,366"),
        (1e-9, "1.000e-09"),
        (1234567.0, "1,234,567"),
    ],
)
def test_four_digits(x: float, shown: str) -> None:
    assert show_number(x) == shown


# Memory


def _paged(engine: Any, **settings: Any) -> sl.Result:
    work = sl.poisson(40, 300, seed=3, prompt_tokens=60, output_tokens=Geometric(90))
    scheduler = sl.ContinuousBatching(32, 128, **settings)
    return engine(work, scheduler, sl.AffineStep(0.01, 1e-4), kv=sl.Blocks(150))


@pytest.mark.parametrize("settings", [{}, {"reserve_whole_answer": True}])
def test_the_use_of_the_pool_from_stretches_is_that_from_steps(settings: dict[str, Any]) -> None:
    """The reference logs each step's blocks; `simulate` a stretch's last ones, from which the mean is estimated."""
    fast, plain = _paged(sl.simulate, **settings).summary(), _paged(sl.reference, **settings).summary()
    log = _paged(sl.reference, **settings).segments
    assert log is not None
    exact = float(log.kv_blocks @ (log.end_ns - log.start_ns)) / 1e9 / plain.duration_s / 150
    assert plain.mean_kv_usage == pytest.approx(exact, rel=1e-12)
    assert fast.mean_kv_usage == pytest.approx(exact, rel=0.005)
    assert fast.max_kv_usage == plain.max_kv_usage == log.kv_blocks.max() / 150
    assert 0.3 < fast.mean_kv_usage < fast.max_kv_usage <= 1
    assert fast.preemptions == plain.preemptions == log.preempted.sum()
    assert (fast.preemptions > 0) == (not settings)


def test_a_long_answer_alone_uses_half_of_its_blocks_on_average() -> None:
    """1,600 tokens in one stretch: its last step has 100 blocks, yet the mean is about half of that."""
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=1, output_tokens=1600)
    summary = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(0.01, 0.0), kv=sl.Blocks(100)).summary()
    assert summary.max_kv_usage == 1
    assert summary.mean_kv_usage == pytest.approx(0.5, abs=0.01)


def test_rejections_are_counted_by_reason() -> None:
    work = sl.Workload.from_arrivals([0.0] * 6, prompt_tokens=[10, 90, 110, 130, 200, 300], output_tokens=20)
    scheduler = sl.ContinuousBatching(4, 100, chunked_prefill=False)
    summary = sl.simulate(work, scheduler, sl.AffineStep(0.01, 0.0), kv=sl.Blocks(10)).summary()
    assert summary.rejected_because == {
        "tokens to compute at once are more than max_num_batched_tokens = 100": 3,
        "blocks at its end are more than the pool's 10": 2,
    }
    assert list(summary.rejected_because.values()) == [3, 2]
    assert summary.by_status["REJECTED"] == 5
    assert "3: tokens to compute at once are more than max_num_batched_tokens = 100; 2 for other reasons" in str(
        summary
    )


def test_without_a_pool_nothing_is_said_of_one() -> None:
    summary = _measured().summary()
    assert (summary.kv_blocks, summary.preemptions, summary.rejected_because) == (None, 0, {})
    assert math.isnan(summary.mean_kv_usage)
    assert not {"kv_usage", "preemptions", "rejected"} & {line.split()[0] for line in str(summary).splitlines() if line}
