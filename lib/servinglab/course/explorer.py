"""Explorers: what does a figure look like at each setting of its sliders?

`explore` takes a function from one setting to a `View`: a few charts and a line of words. In a notebook it makes
ipywidgets that call the function on every move. A page has no Python behind it, so while the book is built `explore`
calls the function for every setting, and the page's own script draws what came back. A part of the view that doesn't
change with a slider is stored once for all of its stops.

Words are short terms: those in ``web/strings.json`` appear in the page's language, all others as they are.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from servinglab.base.checks import check_choice
from servinglab.web import Component, in_book, strings, word

STYLES = ("blue", "orange", "green", "grey", "purple")
LARGEST_PAGE_DATA = 300_000  # bytes of one explorer


@dataclass(frozen=True)
class Slider:
    """One control.

    Parameters
    ----------
    name : str
        The argument of the function that it sets.
    label : str
        What the reader sees.
    stops : sequence
        The values it can take: numbers or names.
    start : object
        The first value; one of the stops.
    unit : str
        Written after each value, with its own space: ``" s"``.
    """

    name: str
    label: str
    stops: Sequence[Any]
    start: Any
    unit: str = ""

    def __post_init__(self) -> None:
        if self.start not in self.stops:
            raise ValueError(
                f"start must be on the sliders; got {self.name} = {self.start!r}, not one of {list(self.stops)}"
            )


@dataclass(frozen=True)
class Curve:
    """A line through points; None in `y` leaves a gap. `marks` also draws each point."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    style: str = "blue"
    marks: bool = False

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must be as long as each other; got {len(self.x)} and {len(self.y)} in a curve")


@dataclass(frozen=True)
class Rule:
    """A line across the chart at one value of y, with a short `text` at its end; `label` names it in the legend."""

    label: str
    value: float
    text: str
    style: str = "orange"

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)


@dataclass(frozen=True)
class Chart:
    """One pair of axes.

    Parameters
    ----------
    title : str
        What the chart shows, for a reader who doesn't see it.
    x_label, y_label : str
        With units.
    curves, rules : tuples of `Curve` and `Rule`
        In the order in which they are drawn and listed.
    picked : float, optional
        Where on the x axis the setting is.
    top : float, optional
        The y axis's end; the largest value and a little more if left out. It starts at 0, or on a logarithmic axis
        at the smallest value.
    log_x, log_y : bool
        Logarithmic axes; all values are then > 0.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    rules: tuple[Rule, ...] = ()
    picked: float | None = None
    top: float | None = None
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class View:
    """What an explorer shows at one setting.

    Parameters
    ----------
    charts : tuple of Chart
    says : tuple of tuples of str
        Read-outs: each joins its pieces, of which the known words are translated: ``("P99 = 2.1 s: ", "misses")``.
        One without pieces isn't shown: give as many at every setting, and the page stays small.
    state : {"", "good", "bad"}
        Whether the setting keeps what was promised.
    """

    charts: tuple[Chart, ...]
    says: tuple[tuple[str, ...], ...]
    state: str = ""

    def __post_init__(self) -> None:
        check_choice("state", self.state, ("", "good", "bad"))


def explore(view: Callable[..., View], sliders: Sequence[Slider], *, title: str) -> Any:
    """Controls that redraw a figure, live in a notebook and in the built page.

    Parameters
    ----------
    view : callable
        Takes one value of each slider by its name. In a page it is called once for every setting.
    sliders : sequence of Slider
    title : str
        The group's name, for a reader who doesn't see it.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.

    Raises
    ------
    ValueError
        If the page would carry more than 300 kB for it.

    Examples
    --------
    >>> def pot(batch):
    ...     line = Curve("Q(B)", [1, 2, 4], [2.4, 4.5, 8.3])
    ...     return View((Chart("Throughput", "B", "1/s", (line,), picked=batch),), ((f"B = {batch}",),))
    >>> pot(2).says
    (('B = 2',),)

    ``explore(pot, [Slider("batch", "batch size B", [1, 2, 4], start=2)], title="One pot")`` then shows it.
    """
    if in_book():
        return _page(view, sliders, title)
    return _live(view, sliders)


def short(value: float) -> float:
    """Four significant digits: all that a chart shows, and a small page.

    Examples
    --------
    >>> short(0.123456)
    0.1235
    """
    return float(f"{value:.4g}") if math.isfinite(value) else value


def at_setting(data: Any, picked: Sequence[int]) -> Any:
    """A page's view at one setting, as its script finds it.

    Parameters
    ----------
    data : dict
        A component's data: ``"sliders"`` and ``"view"``.
    picked : sequence of int
        The index of each slider's stop.
    """

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$on" not in node:
            return {key: resolve(each) for key, each in node.items()}
        index = 0
        for axis in node["$on"]:
            index = index * len(data["sliders"][axis]["texts"]) + picked[axis]
        return node["$of"][node["$at"][index]]

    return resolve(data["view"])


def _page(view: Callable[..., View], sliders: Sequence[Slider], title: str) -> Component:
    names = [slider.name for slider in sliders]
    settings = itertools.product(*(slider.stops for slider in sliders))
    views = [_plain(view(**dict(zip(names, setting, strict=True)))) for setting in settings]
    data = {
        "title": title,
        "sliders": [
            {
                "label": slider.label,
                "texts": [f"{stop}{slider.unit}" for stop in slider.stops],
                "start": list(slider.stops).index(slider.start),
            }
            for slider in sliders
        ],
        "view": _folded(views, tuple(len(slider.stops) for slider in sliders)),
    }
    size = len(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode())
    if size > LARGEST_PAGE_DATA:
        raise ValueError(
            f"an explorer's data must be at most {LARGEST_PAGE_DATA:,} bytes; got {size:,}: use fewer stops or points"
        )
    fallback = f'<p class="sl-fallback">{word("needs_script")}</p>'
    return Component("explorer", data, fallback, f"explorer: {title}")


def _plain(part: Any) -> Any:
    """Dataclasses as dicts (`dataclasses.asdict` copies each number, which takes long for thousands of settings)."""
    if is_dataclass(part):
        return {each.name: _plain(getattr(part, each.name)) for each in fields(part)}
    if isinstance(part, tuple) and part and is_dataclass(part[0]):
        return [_plain(each) for each in part]
    return part


def _folded(nodes: list[Any], shape: tuple[int, ...]) -> Any:
    """One tree for all settings: where they differ, a leaf with the axes it depends on and its value along them."""
    first = nodes[0]
    if isinstance(first, dict):
        return {key: _folded([node[key] for node in nodes], shape) for key in first}
    is_list = isinstance(first, (list, tuple))
    if is_list and first and isinstance(first[0], (dict, tuple, list)) and len({len(node) for node in nodes}) == 1:
        return [_folded([node[k] for node in nodes], shape) for k in range(len(first))]
    keys: dict[str, int] = {}
    index = np.array([keys.setdefault(json.dumps(node, allow_nan=False), len(keys)) for node in nodes]).reshape(shape)
    axes: list[int] = []
    for axis in reversed(range(len(shape))):
        once = index.take([0], axis=axis)
        if (index == once).all():
            index = once.squeeze(axis)
        else:
            axes.insert(0, axis)
    values = [json.loads(key) for key in keys]
    return {"$on": axes, "$of": values, "$at": index.ravel().tolist()} if axes else values[0]


def _live(view: Callable[..., View], sliders: Sequence[Slider]) -> Any:
    import ipywidgets
    import matplotlib.pyplot as plt
    from IPython.display import display

    controls = {
        slider.name: ipywidgets.SelectionSlider(
            options=[(f"{stop}{slider.unit}", stop) for stop in slider.stops],
            value=slider.start,
            description=_in_english(slider.label),
            continuous_update=False,
            style={"description_width": "initial"},
        )
        for slider in sliders
    }

    def draw(**setting: Any) -> None:
        now = view(**setting)
        print("   ".join("".join(map(_in_english, pieces)) for pieces in now.says if pieces))
        figure, axes = plt.subplots(1, len(now.charts), figsize=(8.4, 3.4), layout="constrained", squeeze=False)
        for chart, ax in zip(now.charts, axes[0], strict=True):
            _draw(chart, ax)
        display(figure)
        plt.close(figure)

    output = ipywidgets.interactive_output(draw, controls)
    return ipywidgets.VBox([ipywidgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"}), output])


def _draw(chart: Chart, ax: Any) -> None:
    from servinglab.plots import figures as plots

    for curve in chart.curves:
        y = [math.nan if value is None else value for value in curve.y]
        line = plots.LINES[curve.style]
        ax.plot(curve.x, y, label=_in_english(curve.label), marker="o" if curve.marks else "", markersize=3, **line)
    for rule in chart.rules:
        ax.axhline(rule.value, label=f"{_in_english(rule.label)}: {rule.text}", **plots.LINES[rule.style])
    if chart.picked is not None:
        ax.axvline(chart.picked, color=plots.COLORS["grey"], linestyle=":")
    ax.set(xlabel=_in_english(chart.x_label), ylabel=_in_english(chart.y_label))
    if chart.log_x:
        ax.set_xscale("log")
    if chart.log_y:
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, chart.top)
    ax.legend(fontsize="small")


def _in_english(text: str) -> str:
    return strings()["en"].get(text, text)
