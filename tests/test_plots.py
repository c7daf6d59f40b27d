"""Figures show what they are given, with units; the animation's data say the same as the runs they come from."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import servinglab as sl
from servinglab import metrics, plots
from servinglab.course import explorers

POT = sl.AffineStep(fixed_s=0.4, per_request_s=0.02)
STEPS = [2, 1, 6, 1, 3, 1, 5, 2, 1, 4, 1]  # eleven orders: the last batch of four stays incomplete
FEW = sl.Workload.from_arrivals(0.3 * np.arange(1, len(STEPS) + 1), output_tokens=STEPS)
SCHEDULERS = {
    "static": sl.StaticBatching(4),
    "streaming": sl.StaticBatching(4, streaming=True, padded=False, last="partial"),
    "dynamic": sl.DynamicBatching(4, window_s=0.5),
    "continuous": sl.ContinuousBatching(4),
}
RUNS = {name: sl.simulate(FEW, scheduler, POT) for name, scheduler in SCHEDULERS.items()}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def _curve(ax, index: int = 0) -> tuple[list[float], list[float]]:
    line = ax.lines[index]
    return list(line.get_xdata()), list(line.get_ydata())


def test_throughput_draws_its_points_and_rules() -> None:
    ax = plots.throughput([1, 2, 4], {"a": [2.0, 4.0, np.inf], "b": [1.0, 2.0, 3.0]}, limit_rps=50, offered_rps=20)
    assert _curve(ax)[0] == [1, 2, 4]
    assert _curve(ax)[1][:2] == [2.0, 4.0] and np.isnan(_curve(ax)[1][2])
    assert {text.get_text() for text in ax.texts} == {"a", "b", "1/r = 50", "λ = 20"}
    assert ax.get_ylim()[0] == 0


def test_p99_refuses_columns_of_different_length() -> None:
    with pytest.raises(ValueError, match=r"sample must have one value for each x; got \(2,\) for \(3,\)"):
        plots.p99([1, 2, 3], {"sample": [1.0, 2.0]})


def test_p99_cuts_the_axis_where_asked() -> None:
    ax = plots.p99([1, 2, 3], [300.0, 2.0, 1.9], slo_s=1.8, top_s=5)
    assert ax.get_ylim() == (0, 5)
    assert "s" in ax.get_ylabel()


def test_lines_differ_by_more_than_colour() -> None:
    plots.use_style()
    ax = plots.p99([1, 2], {"a": [1, 1], "b": [2, 2], "c": [3, 3]})
    styles = {(line.get_marker(), line.get_linestyle()) for line in ax.lines}
    assert len(styles) == 3
    assert len({marker for marker, _ in styles}) == 3


@pytest.mark.parametrize("name", RUNS)
def test_number_in_system_starts_and_ends_empty(name: str) -> None:
    run = RUNS[name]
    time_s, number = plots.number_in_system(run)
    assert number[0] == number[-1] == 0
    assert (np.diff(time_s) >= 0).all() and (number >= 0).all()
    area = float(np.sum(number[:-1] * np.diff(time_s)))
    assert area == pytest.approx(float(run.e2e_s.sum()), rel=1e-12)  # every order-second is counted once


def test_queue_growth_stops_where_asked() -> None:
    ax = plots.queue_growth({"ρ = 0.9": RUNS["static"], "ρ = 1.1": RUNS["continuous"]}, until_s=2.0)
    assert len(ax.lines) == 2
    assert max(ax.lines[0].get_xdata()) <= 2.0
    assert {text.get_text() for text in ax.texts} == {"ρ = 0.9", "ρ = 1.1"}


def test_names_of_lines_that_end_together_stay_apart() -> None:
    ax = plots.throughput([1, 2], {"a": [1.0, 5.0], "b": [2.0, 5.1], "c": [3.0, 9.0]})
    ax.figure.canvas.draw()
    low, middle, high = sorted(text.get_window_extent().y0 for text in ax.texts)
    height = max(text.get_window_extent().height for text in ax.texts)
    assert middle - low >= 0.8 * height and high - middle >= 0.8 * height


def test_load_test_draws_pairs_and_the_diagonal() -> None:
    ax = plots.load_test([10, 30], [9.9, 21.2], capacity_rps=21.4)
    curves = [_curve(ax, index) for index in range(len(ax.lines))]
    assert ([0, 30], [0, 30]) in curves
    assert ([10, 30], [9.9, 21.2]) in curves


def test_histogram_marks_the_nearest_rank() -> None:
    values = np.arange(1.0, 201.0)
    ax = plots.latency_histogram(values, marks=(0.5, 0.99))
    assert [text.get_text() for text in ax.texts] == ["mean 100", "P50 100", "P99 198"]
    assert sum(patch.get_height() for patch in ax.patches) == pytest.approx(100)
    with pytest.raises(ValueError, match="latency_s must be"):
        plots.latency_histogram([])


def test_cdf_is_the_share_at_or_below() -> None:
    ax = plots.latency_cdf({"a": [3.0, 1.0, 2.0, 2.0], "b": RUNS["static"]}, marks=(0.5,))
    x, share = _curve(ax)
    assert x == [1.0, 2.0, 2.0, 3.0] and share == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("name", RUNS)
def test_timeline_has_a_wait_and_a_cook_for_each_order(name: str) -> None:
    run = RUNS[name]
    ax = plots.timeline(run, first=5)
    assert len(ax.patches) == 10
    widths = [patch.get_width() for patch in ax.patches]
    assert widths[:5] == pytest.approx(list(run.wait_s[:5]))
    assert widths[5:] == pytest.approx(list((run.finish_s - run.scheduled_s)[:5]))


@pytest.mark.parametrize("name", RUNS)
def test_kitchen_data_agree_with_the_run(name: str) -> None:
    run = RUNS[name]
    data = plots.kitchen({name: run}).data
    (lane,) = data["lanes"]
    assert lane["seats"] == 4
    assert data["duration"] == lane["last"] == run.finish_s.max()
    step_ends = {end for _, end in lane["steps"]}
    for k, order in enumerate(lane["orders"]):
        assert order["arrival"] == run.arrival_s[k]
        assert len(order["ends"]) == STEPS[k] and set(order["ends"]) <= step_ends
        assert order["arrival"] <= order["scheduled"] < order["ends"][0]
        assert order["ends"][-1] <= order["finish"] <= order["leaves"]
        if name in ("continuous", "streaming"):
            assert order["finish"] == order["ends"][-1]
    for seat in range(4):  # nobody sits on anybody's lap
        stays = sorted((o["scheduled"], o["leaves"]) for o in lane["orders"] if o["seat"] == seat)
        assert all(left <= taken for (_, left), (taken, _) in itertools.pairwise(stays))


def test_a_static_seat_stays_taken_until_the_batch_is_done() -> None:
    for name in ("static", "streaming"):
        (lane,) = plots.kitchen({name: RUNS[name]}).data["lanes"]
        first_batch = [order for order in lane["orders"] if order["scheduled"] == lane["orders"][0]["scheduled"]]
        assert len(first_batch) == 4
        assert len({order["leaves"] for order in first_batch}) == 1
        assert len({order["ends"][-1] for order in first_batch}) > 1


def test_kitchen_says_the_outcome_without_a_script() -> None:
    run = RUNS["continuous"]
    html = plots.kitchen({"continuous": run})._repr_html_()
    for cell in (f"{run.finish_s.max():.2f} s", f"{len(run) / run.finish_s.max():.2f} /s", f"{run.e2e_s.mean():.2f} s"):
        assert f"<td>{cell}</td>" in html


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "at least one run"),
        ({"a": RUNS["static"], "b": sl.simulate(FEW.head(3), sl.StaticBatching(1), POT)}, "same orders; 'b' differs"),
        ({"a": sl.simulate(FEW, sl.StaticBatching(4), POT, pots=2)}, "one pot; 'a' has 2 pots"),
        ({"a": sl.simulate(FEW, sl.StaticBatching(4, last="never"), POT)}, "'a' has 8 of 11 served"),
        ({"a": sl.simulate(sl.poisson(1, 41, seed=1), sl.ContinuousBatching(4), POT)}, "1 to 40 orders"),
    ],
)
def test_kitchen_refuses_what_it_cannot_show(results, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plots.kitchen(results)


def test_explorer_data_are_what_a_long_run_gives() -> None:
    sizes = (10, 16, 20, 28)
    _, p99, _ = explorers.batch_curves(20, 0.4, 0.02, sizes)
    assert p99[0] is None
    orders = sl.poisson(20, 400_000, seed=7)
    for size, exact in zip(sizes[1:], p99[1:], strict=True):
        run = sl.simulate(orders, sl.StaticBatching(size), POT)
        # twenty batches of 20,000: their P99s scatter around the long run's
        parts = [metrics.percentile(part, 0.99) for part in np.array_split(run.e2e_s, 20)]
        margin = 2.86 * np.std(parts, ddof=1) / np.sqrt(len(parts))  # 99 %, t with 19 degrees of freedom
        assert abs(np.mean(parts) - exact) < margin + 0.01 * exact  # 1 %: the bias of a quantile of a short run


def test_a_live_component_brings_its_own_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVINGLAB_BOOK", raising=False)
    html = plots.kitchen(RUNS)._repr_html_()
    assert "<style>" in html and "mount('[data-sl=\"kitchen\"]'" in html


def test_a_curve_of_latencies_ends_below_one_where_some_are_endless() -> None:
    ax = plots.latency_cdf([1.0, 2.0, np.inf, np.inf], marks=(0.25, 0.5, 0.99))
    assert ax.lines[0].get_ydata().tolist() == [0.25, 0.5]
    marked = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines[1:] if line.get_linestyle() == "None"]
    assert marked == [(1.0, 0.25), (2.0, 0.5)]  # the P99 is endless
    assert len(plots.latency_cdf({"none": [np.inf]}).lines[0].get_xdata()) == 0
    with pytest.raises(ValueError, match="finite"):
        plots.latency_histogram([1.0, np.inf])


def test_a_ramp_marks_its_knee_only_where_it_has_one() -> None:
    from servinglab.metrics.knee import Level, find_knee

    def level(load: float, latency_s: float) -> Level:
        times = np.arange(0, 50, latency_s / load)
        return Level(load, 50.0, times, np.full(len(times), latency_s), times)

    levels = [level(n, max(1.0, n / 8)) for n in (4, 8, 16)]
    top, bottom = plots.load_curve(levels, find_knee(levels), unit="clients")
    assert [text.get_text() for text in top.texts] == ["knee 8", "X"]
    assert top.patches[0].get_x() == 8
    assert bottom.get_xlabel() == "load (clients)"
    assert bottom.lines[1].get_ydata().tolist() == [1.0, 1.0, 2.0]
    top, _ = plots.load_curve(levels[:2], find_knee(levels[:2]))
    assert [text.get_text() for text in top.texts] == ["X", "y = λ"]
