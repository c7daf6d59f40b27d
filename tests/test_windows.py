"""Windows as they could be known at their end: against a plain recount, and in a stall that others don't see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import servinglab as sl
from servinglab.metrics.percentiles import percentile
from servinglab.metrics.slo import good_requests
from servinglab.metrics.windows import windowed_attainment, windowed_percentile
from servinglab.workload.lengths import Geometric

POT = sl.AffineStep(0.4, 0.02)


@pytest.fixture(scope="module")
def busy() -> sl.Result:
    """Answers of several tokens, who overtake each other, under a load that swings; some are rejected."""
    work = sl.on_off(3, 0.2, 30, 30, 600, seed=4, prompt_tokens=Geometric(60), output_tokens=Geometric(20))
    return sl.simulate(work, sl.ContinuousBatching(16, max_model_len=120), sl.AffineStep(0.01, 0.005, 1e-4))


@pytest.mark.parametrize("metric", ["e2e_s", "ttft_s"])
@pytest.mark.parametrize(("window_s", "every_s"), [(7.0, None), (20.0, 3.0), (2.0, 5.0)])
def test_is_the_plain_recount(busy: sl.Result, metric: str, window_s: float, every_s: float | None) -> None:
    assert (busy.status == sl.Status.REJECTED).any() and (np.diff(busy.finish_ns) < 0).any()
    seen = windowed_percentile(busy, window_s, every_s, q=0.9, metric=metric)
    ends = busy.finish_s if metric == "e2e_s" else busy.first_token_s
    for i, now in enumerate(seen.end_s):
        known, inside = [], []
        for came, end, status in zip(busy.arrival_s, ends, busy.status, strict=True):
            if status == sl.Status.REJECTED:
                known += [np.inf] if now - window_s < came <= now else []
            elif now - window_s < end <= now:
                known.append(end - came)
            elif came <= now < end:
                inside.append(now - came)
        assert (seen.finished[i], seen.unfinished[i]) == (len(known), len(inside))
        both = known + inside
        expected = [percentile(group, 0.9) if group else np.nan for group in (both, known)]
        assert [seen.value_s[i], seen.finished_only_s[i]] == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_a_window_over_the_whole_run_is_the_whole_run() -> None:
    served = sl.simulate(sl.poisson(20, 2000, seed=1), sl.StaticBatching(20), POT)
    seen = windowed_percentile(served, window_s=served.duration_s + 1)
    assert seen.value_s.tolist() == [percentile(served.e2e_s, 0.99)] == seen.finished_only_s.tolist()


def test_a_stall_shows_at_once_and_only_to_those_who_look_at_who_waits() -> None:
    """At 100 s the pot breaks for a minute (one order takes that long); windows of ten seconds."""
    arrivals = np.arange(0, 200, 0.5)
    scale = np.ones(400)
    scale[200] = 600.0
    orders = sl.Workload.from_arrivals(arrivals, service_scale=scale)
    served = sl.simulate(orders, sl.ContinuousBatching(4), sl.AffineStep(0.1, 0.0))
    seen = windowed_percentile(served, window_s=10)
    stalled = (seen.end_s > 100) & (seen.end_s <= 160)
    assert (np.diff(seen.value_s[stalled]) > 9).all()  # it rises with the clock
    blind = seen.finished_only_s[stalled]
    assert np.isnan(blind[1:-1]).all()
    calm = seen.end_s <= 100
    assert seen.value_s[calm] == pytest.approx(0.1)


def test_it_is_a_lower_bound() -> None:
    """Of the same requests, no P99 is smaller in the end than it was in the window."""
    served = sl.simulate(sl.poisson(20, 4000, seed=2), sl.StaticBatching(14), POT)
    seen = windowed_percentile(served, window_s=15)
    for now, value in zip(seen.end_s, seen.value_s, strict=True):
        ended = (served.finish_s > now - 15) & (served.finish_s <= now)
        inside = (served.arrival_s <= now) & (served.finish_s > now)
        assert value <= percentile(served.e2e_s[ended | inside], 0.99) + 1e-9


def test_never_served_ones_wait_for_ever() -> None:
    orders = sl.Workload.from_arrivals([0.0, 1.0, 2.0, 30.0])
    served = sl.simulate(orders, sl.StaticBatching(3, last="never"), sl.AffineStep(0.4, 0.0))
    seen = windowed_percentile(served, window_s=10, q=1.0)
    assert seen.unfinished.tolist() == [0, 0, 1]
    assert seen.value_s.tolist() == pytest.approx([2.4, np.nan, 0.0], nan_ok=True)


# Attainment


@pytest.mark.parametrize(("metric", "limit_s"), [("e2e_s", 1.5), ("ttft_s", 0.2)])
def test_attainment_over_windows_adds_up_to_the_run(busy: sl.Result, metric: str, limit_s: float) -> None:
    seen = windowed_attainment(busy, limit_s, window_s=11, metric=metric)
    good = good_requests(busy, {metric: limit_s})
    assert seen.good.sum() == good.sum() > 0
    assert seen.late.sum() == (~good).sum() > 0


def test_late_is_counted_when_the_limit_passes() -> None:
    served = sl.simulate(
        sl.Workload.from_arrivals([0.0], service_scale=[100.0]), sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0)
    )
    seen = windowed_attainment(served, limit_s=4.0, window_s=3)
    assert seen.end_s.tolist() == [3.0, 6.0]  # decided at 4 s; it finishes at 100 s
    assert seen.late.tolist() == [0, 1]
    assert seen.fraction.tolist() == pytest.approx([np.nan, 0.0], nan_ok=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: windowed_percentile(r, 0), "window_s must be a finite number >= 1e-09"),
        (lambda r: windowed_percentile(r, 1, -1), "every_s must be"),
        (lambda r: windowed_percentile(r, 1, q=99), "q must be"),
        (lambda r: windowed_percentile(r, 1, metric="tpot_s"), "metric must be one of 'ttft_s', 'e2e_s'; got 'tpot_s'"),
        (lambda r: windowed_percentile(r, 1e-6), "window_s must give at most 10,000,000 windows over the run; got"),
        (lambda r: windowed_attainment(r, 0, 1), "limit_s must be"),
    ],
)
def test_refuses(busy: sl.Result, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(busy)
