"""Explorers: controls that change a figure, live in a notebook and in the built page.

In a notebook they are ipywidgets that compute on every move. A page has no Python behind it, so while the book is
built the same call computes every setting of its sliders, and the page's own script draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from . import theory
from ._web import Component, in_book, word

RATES_RPS = (5, 10, 15, 20, 25, 30)
FIXED_S = (0.2, 0.4, 0.8)
PER_REQUEST_S = (0.005, 0.01, 0.02, 0.04)
BATCH_SIZES = (1, 2, 4, 6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 20, 24, 28, 32)
SLO_S = (0.6, 1.0, 1.4, 1.8, 2.2, 3.0)


def explore_batch(
    rates_rps: Sequence[float] = RATES_RPS,
    fixed_s: Sequence[float] = FIXED_S,
    per_request_s: Sequence[float] = PER_REQUEST_S,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    slo_s: Sequence[float] = SLO_S,
    *,
    start: Sequence[float] = (20, 0.4, 0.02, 15, 1.8),
) -> Any:
    """Move λ, t, r, B and the limit; see the throughput and the exact P99 of static batching with one pot.

    Parameters
    ----------
    rates_rps, fixed_s, per_request_s, batch_sizes, slo_s : sequences
        The stops of each slider, ascending.
    start : five numbers
        λ, t, r, B and the limit at first: each a stop of its slider.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.

    Raises
    ------
    ValueError
        If `start` isn't on the sliders, or a setting lies too near to saturation for `theory.static_batching`.
    """
    stops = {"rate": rates_rps, "fixed": fixed_s, "slope": per_request_s, "batch": batch_sizes, "slo": slo_s}
    if len(start) != len(stops):
        raise ValueError(f"start must hold five numbers: λ, t, r, B and the limit; got {start!r}")
    for (name, values), value in zip(stops.items(), start, strict=True):
        if value not in values:
            raise ValueError(f"start must be on the sliders; got {name} = {value!r}, not one of {list(values)}")
    at = {name: list(values).index(value) for (name, values), value in zip(stops.items(), start, strict=True)}
    if in_book():
        return _page(rates_rps, fixed_s, per_request_s, batch_sizes, slo_s, at)
    return _live(stops, at)


def batch_curves(
    rate_rps: float, fixed_s: float, per_request_s: float, batch_sizes: Sequence[int]
) -> dict[str, list[float | None]]:
    """Capacity, exact P99 and the first document's formula at each batch size.

    Returns
    -------
    dict
        "capacity_rps"; "p99_s", None where ρ ≥ 1; "formula_s", (B − 1)/λ + t + r·B.

    Examples
    --------
    >>> batch_curves(20, 0.4, 0.02, [10, 17])
    {'capacity_rps': [16.67, 22.97], 'p99_s': [None, 1.945], 'formula_s': [1.05, 1.54]}
    """
    capacity: list[float | None] = []
    p99: list[float | None] = []
    formula: list[float | None] = []
    for size in batch_sizes:
        capacity.append(_short(theory.pot_rate(size, fixed_s, per_request_s)))
        p99.append(_p99(rate_rps, fixed_s, per_request_s, size))
        wait_s = theory.first_guest_wait(rate_rps, size)
        formula.append(_short(wait_s + fixed_s + per_request_s * size))
    return {"capacity_rps": capacity, "p99_s": p99, "formula_s": formula}


@cache
def _p99(rate_rps: float, fixed_s: float, per_request_s: float, batch_size: int) -> float | None:
    if theory.utilization(rate_rps, batch_size, fixed_s, per_request_s) >= 1 - 1e-9:
        return None
    return _short(theory.static_batching(rate_rps, batch_size, fixed_s, per_request_s).latency_quantile(0.99))


def _short(value: float) -> float:
    """Four significant digits: all that a chart shows, and a small page."""
    return float(f"{value:.4g}") if math.isfinite(value) else value


def _page(
    rates_rps: Sequence[float],
    fixed_s: Sequence[float],
    per_request_s: Sequence[float],
    batch_sizes: Sequence[int],
    slo_s: Sequence[float],
    start: dict[str, int],
) -> Component:
    table = [
        [[batch_curves(rate, fixed, slope, batch_sizes) for slope in per_request_s] for fixed in fixed_s]
        for rate in rates_rps
    ]
    data = {
        "rates_rps": list(rates_rps),
        "fixed_s": list(fixed_s),
        "per_request_s": list(per_request_s),
        "batch_sizes": list(batch_sizes),
        "slo_s": list(slo_s),
        "start": start,
        "capacity_rps": [[cell["capacity_rps"] for cell in row] for row in table[0]],
        "p99_s": [[[cell["p99_s"] for cell in row] for row in plane] for plane in table],
        "formula_s": [[[cell["formula_s"] for cell in row] for row in plane] for plane in table],
    }
    fallback = f'<p class="sl-fallback">{word("needs_script")}</p>'
    return Component("explorer", data, fallback, "explorer: batch size, throughput and P99")


def _live(stops: dict[str, Sequence[float]], start: dict[str, int]) -> Any:
    import ipywidgets
    import matplotlib.pyplot as plt
    from IPython.display import display

    from . import plots

    names = {"rate": "λ (1/s)", "fixed": "t (s)", "slope": "r (s)", "batch": "B", "slo": "P99 ≤ (s)"}
    sliders = {
        name: ipywidgets.SelectionSlider(
            options=list(stops[name]), value=stops[name][start[name]], description=label, continuous_update=False
        )
        for name, label in names.items()
    }

    def draw(rate: float, fixed: float, slope: float, batch: int, slo: float) -> None:
        sizes = list(stops["batch"])
        curves = batch_curves(rate, fixed, slope, [int(size) for size in sizes])
        p99 = [math.nan if value is None else value for value in curves["p99_s"]]
        capacity = [float(value or 0) for value in curves["capacity_rps"]]
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
        plots.throughput(sizes, capacity, limit_rps=1 / slope, offered_rps=rate, ax=left)
        known = [value for value in p99 if not math.isnan(value)]
        top = max(1.3 * slo, 1.1 * min(max(known), 3.5 * min(known)) if known else 0)
        formula = [float(value or 0) for value in curves["formula_s"]]
        plots.p99(sizes, {"P99": p99, "formula": formula}, slo_s=slo, top_s=top, ax=right)
        for ax in (left, right):
            ax.axvline(batch, color=plots.COLORS["grey"], linestyle=":")
        index = sizes.index(batch)
        load = rate / capacity[index]
        left.set_title(f"B = {batch}: Q = {capacity[index]:.3g} /s, ρ = {load:.2f}")
        right.set_title(f"P99 = {p99[index]:.3g} s" if load < 1 else "ρ ≥ 1")
        display(figure)
        plt.close(figure)

    output = ipywidgets.interactive_output(draw, sliders)
    return ipywidgets.VBox([ipywidgets.HBox(list(sliders.values()), layout={"flex_flow": "row wrap"}), output])
