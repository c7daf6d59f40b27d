"""Explorers: what a page stores is what the library computes at each setting, and a notebook gets widgets."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict

import pytest
from servinglab.course import explorer, explorers
from servinglab.course.explorer import Chart, Curve, Rule, Slider, View, explore
from servinglab.hardware.memory import kv_cache
from servinglab.hardware.roofline import roofline

STOPS = ((10, 20), (0.4,), (0.02,), (10, 15, 20), (1.8, 2.2))
START = (20, 0.4, 0.02, 15, 1.8)


def line(slope: int, name: str) -> View:
    """A view in which everything that can change does: values, a gap, the number of rules, a read-out's length."""
    y = [None if slope == 3 else slope * x for x in (1, 2)]
    rules = (Rule("limit", slope, str(slope)),) if slope != 2 else ()
    chart = Chart("t", "x", "y", (Curve(name, [1, 2], y),), rules, top=5.0)
    says = ((f"{slope}",), (name, ": ", "meets") if slope == 1 else ())
    return View((chart,), says, "good" if slope == 1 else "")


@pytest.fixture
def in_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVINGLAB_BOOK", "1")


@pytest.mark.usefixtures("in_book")
def test_a_page_holds_the_view_of_every_setting() -> None:
    slopes, names = (1, 2, 3), ("a", "b")
    page = explore(line, [Slider("slope", "m", slopes, 2), Slider("name", "n", names, "b", " !")], title="lines")
    assert [each["start"] for each in page.data["sliders"]] == [1, 1]
    assert page.data["sliders"][1]["texts"] == ["a !", "b !"]
    for (i, slope), (j, name) in itertools.product(enumerate(slopes), enumerate(names)):
        assert explorer.at_setting(page.data, [i, j]) == json.loads(json.dumps(asdict(line(slope, name))))
    assert "<script>" not in page._repr_html_()  # the book loads the script once, from a file


@pytest.mark.usefixtures("in_book")
def test_what_a_slider_does_not_change_is_stored_once() -> None:
    page = explorers.explore_batch(*STOPS, start=START)
    throughput, latency = page.data["view"]["charts"]
    assert throughput["curves"][0]["y"] == list(explorers.batch_curves(*START[:3], STOPS[3])[0])
    p99 = latency["curves"][1]["y"]
    assert p99["$on"] == [0]  # of the five sliders only λ has two stops and moves the curve
    assert p99["$of"][p99["$at"][1]][0] is None  # at λ = 20, B = 10 the line grows without end


@pytest.mark.usefixtures("in_book")
@pytest.mark.slow
def test_the_default_explorer_is_small() -> None:
    assert len(explorers.explore_batch()._repr_html_()) < 100_000


@pytest.mark.usefixtures("in_book")
def test_too_large_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "LARGEST_PAGE_DATA", 100)
    with pytest.raises(ValueError, match=r"must be at most 100 bytes; got [0-9,]+: use fewer stops or points"):
        explore(line, [Slider("slope", "m", [1, 2], 1), Slider("name", "n", ["a"], "a")], title="lines")


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="start must be on the sliders; got batch = 11"):
        explorers.explore_batch(*STOPS, start=(20, 0.4, 0.02, 11, 1.8))
    with pytest.raises(ValueError, match="start must hold five numbers"):
        explorers.explore_batch(*STOPS, start=(20, 0.4))
    with pytest.raises(ValueError, match="style must be one of"):
        Curve("a", [1], [1], "red")
    with pytest.raises(ValueError, match="style must be one of"):
        Rule("a", 1, "1", "red")
    with pytest.raises(ValueError, match="state must be one of"):
        View((), (), "fine")
    with pytest.raises(ValueError, match="got 2 and 1 in a curve"):
        Curve("a", [1, 2], [1])


def test_a_notebook_gets_widgets_that_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    import ipywidgets

    monkeypatch.delenv("SERVINGLAB_BOOK", raising=False)
    drawn = []
    monkeypatch.setattr(explorer, "_draw", lambda chart, ax: drawn.append(chart.curves[0].y))
    box = explore(line, [Slider("slope", "m", [1, 2], 2, " s"), Slider("name", "n", ["a"], "a")], title="lines")
    sliders = box.children[0].children
    assert [slider.value for slider in sliders] == [2, "a"]
    assert isinstance(box.children[1], ipywidgets.Output)
    sliders[0].value = 1
    assert drawn == [[2, 4], [1, 2]]


def test_axes_are_drawn_as_the_chart_says() -> None:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    curve = Curve("capacity", [1, 10], [None, 2.0], "grey", marks=True)
    explorer._draw(Chart("t", "batch", "y", (curve,), (Rule("slo", 1, "1 s"),), picked=10, log_x=True), ax)
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "linear", "batch size B")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["capacity Q(B)", "P99 limit: 1 s"]
    plt.close()


def test_the_step_explorer_shows_the_roofline_s_numbers() -> None:
    step = roofline("qwen3-30b-a3b", "h100-sxm")
    memory_ms, compute_ms, step_ms, tokens_s = explorers.step_curves("30B-A3B · H100", 2048, (1, 64))
    parts = step.parts(64, 0, 64 * 2048)
    assert memory_ms[1] == pytest.approx(1e3 * (parts.memory_s + 0.001), rel=1e-3)
    assert compute_ms[1] == pytest.approx(1e3 * (parts.compute_s + 0.001), rel=1e-3)
    assert tokens_s[1] == pytest.approx(64e3 / step_ms[1], rel=1e-3) == pytest.approx(64 / parts.seconds, rel=1e-3)
    room = kv_cache("llama-3.1-8b", "h100-sxm").max_requests(4096)
    for batch, state in ((64, "good"), (128, "bad")):
        view = explorers.step_view("8B · H100", batch, 4096, (1, 64, 128))
        assert view.state == state == ("good" if batch <= room else "bad")
        assert view.says[-1] == ("kv_room", f" {room}: ", "fits" if batch <= room else "fits_not")


def test_the_memory_explorer_shows_the_budget_s_numbers() -> None:
    cache = kv_cache("llama-3.1-8b", "l40s", gpu_memory_utilization=0.8, kv_dtype="fp8", weight_dtype="bf16")
    view = explorers.memory_view("L40S", "Llama-3.1-8B", "bf16", "fp8", 0.8, 5000)
    at = explorers.LENGTHS.index(5000)
    assert view.charts[0].curves[2].y[at] == cache.max_requests(5000)
    assert view.says[2] == ("for_kv", f" {cache.kv_gib:.1f} GiB")
    full = explorers.memory_view("RTX 4090", "Qwen3-32B", "bf16", "bf16", 0.9, 500)
    assert full.state == "bad" and full.says[2] == ("nothing_left",)


@pytest.mark.usefixtures("in_book")
def test_the_memory_explorer_is_small() -> None:
    assert len(explorers.explore_memory()._repr_html_()) < 200_000


def test_the_load_explorer_keeps_to_the_closed_loop_s_laws() -> None:
    most, alone = explorers.load_limits()
    view = explorers.load_view(32, 10, 6)
    bound, throughput = view.charts[0].curves
    assert bound.y[-1] == most == pytest.approx(5)
    for n, ceiling, x, floor, mean in zip(
        explorers.CLIENTS, bound.y, throughput.y, view.charts[1].curves[0].y, view.charts[1].curves[1].y, strict=True
    ):
        assert x <= 1.02 * ceiling and mean >= 0.98 * floor >= 0.98 * alone * 0.999
        assert x * (mean + 10) == pytest.approx(n, rel=0.05), "the interactive response law"
    assert view.charts[2].curves[1].y[-1] > 100 * explorers.closed_level(8, 0).percentile(0.99), (
        "6/s is beyond capacity"
    )


@pytest.mark.usefixtures("in_book")
@pytest.mark.slow
def test_the_load_explorer_is_small() -> None:
    assert len(explorers.explore_load()._repr_html_()) < 50_000
