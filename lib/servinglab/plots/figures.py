"""Figures: plain arrays or `Result` objects in, matplotlib axes out.

Every figure labels its axes with units and its lines directly, by short terms and symbols, so that one figure serves
all languages; what it shows is said in the text and in the alternative text beside it. Nothing here computes a
statistic that `metrics` or `theory` doesn't: the only arithmetic is counting what is where at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_number
from servinglab.metrics.percentiles import percentile
from servinglab.step_time.prompt_attention import MARK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from servinglab.metrics.knee import Knee, Level
    from servinglab.result.result import Result


COLORS = {
    "blue": "#0072B2", "orange": "#D55E00", "green": "#009E73",
    "dark": "#333333", "grey": "#777777", "pale": "#BBBBBB",
}  # fmt: skip
# One look for each style of an explorer, the same as in its page. Dashes, too: not everyone can tell the colours apart.
LINES: dict[str, dict[str, str]] = {
    "blue": {"color": "#0072B2", "linestyle": "-"},
    "orange": {"color": "#D55E00", "linestyle": "-"},
    "green": {"color": "#009E73", "linestyle": ":"},
    "grey": {"color": "#777777", "linestyle": "--"},
    "purple": {"color": "#A04A86", "linestyle": "-."},
}
STYLE = resources.files("servinglab.plots") / "figure.mplstyle"


def use_style() -> None:
    """Use the course's figure style in this session, and crisp SVG figures in a notebook.

    Examples
    --------
    >>> use_style()
    """
    import matplotlib.pyplot as plt

    with resources.as_file(STYLE) as path:
        plt.style.use(path)
    try:
        from IPython import get_ipython
    except ImportError:
        return
    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")


def mark_unpriced(ax: Axes, *runs: Result | Level) -> None:
    """Say above the axes where they show runs whose prompts' attention isn't priced, which needs a prompt over 4,000.

    Figures made from `Result` or `Level` objects do it by themselves; those made from plain arrays can't know.

    Examples
    --------
    >>> import servinglab as sl
    >>> work = sl.Workload.from_arrivals([0.0], prompt_tokens=8000)
    >>> run = sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(0.01, 0.0, 1e-5))
    >>> ax = curves([1, 2], {"E2E": [0.09, 0.18]}, x_label="requests", y_label="s")
    >>> mark_unpriced(ax, run)
    >>> [text.get_text() for text in ax.texts]
    ['E2E', 'prompt attention not priced']
    """
    if any(run.unpriced_attention for run in runs) and MARK not in (text.get_text() for text in ax.texts):
        ax.annotate(
            MARK, (1, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", ha="right", va="bottom",
            fontsize=9, color=COLORS["grey"], annotation_clip=False,
        )  # fmt: skip


def throughput(
    batch_sizes: npt.ArrayLike,
    throughput_rps: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    *,
    limit_rps: float | None = None,
    offered_rps: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Throughput against batch size.

    Parameters
    ----------
    batch_sizes : array of n
    throughput_rps : array of n, or a mapping label -> array of n
        Requests per second; NaN leaves a gap.
    limit_rps : float, optional
        Draws the line that Q(B) can't cross, 1/r.
    offered_rps : float, optional
        Draws the arrival rate λ.

    Examples
    --------
    >>> ax = throughput([1, 2, 4], [2.4, 4.5, 8.3], limit_rps=50, offered_rps=20)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('batch size B', 'throughput (1/s)')
    """
    ax = _axes(ax)
    curves = throughput_rps if isinstance(throughput_rps, Mapping) else {"Q(B)": throughput_rps}
    lines = _curves(ax, batch_sizes, curves)
    if limit_rps is not None:
        _rule(ax, limit_rps, f"1/r = {limit_rps:g}")
    if offered_rps is not None:
        _rule(ax, offered_rps, f"λ = {offered_rps:g}")
    ax.set(xlabel="batch size B", ylabel="throughput (1/s)", ylim=(0, None))
    _label_ends(ax, lines)
    return ax


def p99(
    batch_sizes: npt.ArrayLike,
    p99_s: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    *,
    slo_s: float | None = None,
    top_s: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """P99 latency against batch size: a sample, the long run and the theory on one axis.

    Parameters
    ----------
    batch_sizes : array of n
    p99_s : array of n, or a mapping label -> array of n
        Seconds; NaN or infinity leaves a gap (no steady state).
    slo_s : float, optional
        Draws the limit.
    top_s : float, optional
        Upper end of the axis, where an unstable batch size would flatten all else.

    Examples
    --------
    >>> ax = p99([14, 15, 16], {"sample": [1.97, 1.82, 1.85], "theory": [4.8, 2.6, 2.1]}, slo_s=1.8, top_s=5)
    >>> [text.get_text() for text in ax.texts]
    ['SLO 1.8 s', 'sample', 'theory']
    """
    ax = _axes(ax)
    lines = _curves(ax, batch_sizes, p99_s if isinstance(p99_s, Mapping) else {"P99": p99_s})
    if slo_s is not None:
        _rule(ax, slo_s, f"SLO {slo_s:g} s")
    ax.set(xlabel="batch size B", ylabel="P99 (s)", ylim=(0, top_s))
    _label_ends(ax, lines)
    return ax


def curves(
    x: npt.ArrayLike,
    y: Mapping[str, npt.ArrayLike],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    top: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Lines over one axis, each with its name at its end.

    Parameters
    ----------
    x : array of n
    y : mapping label -> array of n
        NaN or infinity leaves a gap.
    x_label, y_label : str
        With units.
    log_x, log_y : bool
        Logarithmic axes; all values are then > 0.
    top : float, optional
        The y axis's end.

    Examples
    --------
    >>> ax = curves([1, 2, 4], {"4,096": [5, 6, 8]}, x_label="batch size B", y_label="step (ms)", log_x=True)
    >>> ax.get_xscale(), ax.get_ylabel()
    ('log', 'step (ms)')
    """
    ax = _axes(ax)
    lines = _curves(ax, x, y)
    ax.set(xlabel=x_label, ylabel=y_label)
    if log_x:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    if log_y:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:,g}")
        ax.set_ylim(top=top)
    else:
        ax.set_ylim(0, top)
    _label_ends(ax, lines)
    return ax


def load_test(
    offered_rps: npt.ArrayLike,
    completed_rps: npt.ArrayLike,
    *,
    capacity_rps: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What a kitchen completed against what it was offered: on the diagonal it kept up.

    Parameters
    ----------
    offered_rps, completed_rps : arrays of n
        Requests per second, one pair for each run.
    capacity_rps : float, optional
        Draws the line that completions can't cross, Q(B).

    Examples
    --------
    >>> ax = load_test([10, 20, 30], [10.1, 19.8, 21.4], capacity_rps=21.43)
    >>> [text.get_text() for text in ax.texts]
    ['Q(B) = 21.4', 'y = λ']
    """
    ax = _axes(ax)
    offered = np.asarray(offered_rps, np.float64)
    (diagonal,) = ax.plot([0, offered.max()], [0, offered.max()], marker="", linestyle="--", color=COLORS["grey"])
    ax.plot(offered, np.asarray(completed_rps, np.float64), color=COLORS["blue"], marker="o")
    if capacity_rps is not None:
        _rule(ax, capacity_rps, f"Q(B) = {capacity_rps:.3g}")
    ax.set(xlabel="offered rate λ (1/s)", ylabel="completed (1/s)", xlim=(0, None), ylim=(0, None))
    _label_ends(ax, [("y = λ", diagonal)])
    return ax


def load_curve(levels: Sequence[Level], knee: Knee | None = None, *, unit: str = "1/s", axes: Any = None) -> Any:
    """Throughput, and P50 and P99 of latency, against load, with the knee between its two levels.

    Parameters
    ----------
    levels : sequence of Level
        Of rising load.
    knee : Knee, optional
        A band from the knee to the level after it, and dotted lines at the ends of its interval.
    unit : str
        Of the load: "1/s" draws the line on which the server keeps up, "clients" doesn't.
    axes : pair of Axes, optional
        For throughput and for latency; a new figure if not given.

    Returns
    -------
    pair of Axes

    Examples
    --------
    >>> from servinglab.metrics.knee import Level, find_knee
    >>> def level(rate):
    ...     times = np.arange(0, 60, 1 / rate)
    ...     return Level(rate, 60.0, times, np.where(rate > 20, times, 1.0), times[: int(60 * min(rate, 20))])
    >>> levels = [level(rate) for rate in (5, 10, 20, 40)]
    >>> top, bottom = load_curve(levels, find_knee(levels))
    >>> top.get_ylabel(), bottom.get_xlabel(), [text.get_text() for text in bottom.texts]
    ('throughput (1/s)', 'load (1/s)', ['P50', 'P99'])
    """
    from matplotlib.ticker import LogLocator

    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(2, 1, sharex=True, figsize=(6.4, 6.4))[1]
    top, bottom = axes
    loads = [level.load for level in levels]
    lines = _curves(top, loads, {"X": [level.request_throughput for level in levels]})
    if unit == "1/s":
        lines += [("y = λ", top.plot(loads, loads, marker="", linestyle="--", color=COLORS["grey"])[0])]
    tails = {f"P{100 * q:g}": [level.percentile(q) for level in levels] for q in (0.5, 0.99)}
    names = _curves(bottom, loads, tails)
    if knee is not None and knee.load is not None and knee.next_load is not None:
        ends = {knee.low, knee.high} - {None, knee.load}
        for ax in axes:
            ax.axvspan(knee.load, knee.next_load, color=COLORS["pale"], alpha=0.4, linewidth=0)
            for end in ends:
                ax.axvline(end, color=COLORS["dark"], linestyle=":")
        top.annotate(f"knee {knee.load:.4g}", (knee.load, 0), xytext=(3, 4), textcoords="offset points")
    top.set(ylabel="throughput (1/s)", ylim=(0, None))
    bottom.set(xlabel=f"load ({unit})", ylabel="latency (s)", yscale="log")
    low, high = bottom.get_ylim()
    # As many marks in a decade as have room for their labels.
    bottom.yaxis.set_minor_locator(LogLocator(subs=(2, 5) if high > 10 * low else (2, 3, 4, 6, 8)))
    for axis in (bottom.yaxis.set_major_formatter, bottom.yaxis.set_minor_formatter):
        axis("{x:,g}")
    _label_ends(top, lines)
    _label_ends(bottom, names)
    mark_unpriced(top, *levels)
    return axes


def number_in_system(result: Result) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """How many requests are in the house, in the line or in a pot, after each arrival and each finish.

    Returns
    -------
    time_s : float array
        From 0, ascending; an arrival and a finish at one instant are two entries.
    number : int64 array

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1])
    >>> time_s, number = number_in_system(sl.simulate(orders, sl.ContinuousBatching(1), sl.AffineStep(0.3, 0.0)))
    >>> time_s.tolist(), number.tolist()
    ([0.0, 0.0, 0.1, 0.3, 0.6], [0, 1, 2, 1, 0])
    """
    came = result.arrival_s[~np.isnan(result.arrival_s)]
    left = result.finish_s[result.finished]
    time_s = np.concatenate([came, left])
    change = np.concatenate([np.ones(len(came), np.int64), -np.ones(len(left), np.int64)])
    order = np.argsort(time_s, kind="stable")  # stable: who arrives at an instant is counted before who leaves
    return np.concatenate([[0.0], time_s[order]]), np.concatenate([[0], np.cumsum(change[order])])


def queue_growth(results: Mapping[str, Result], *, until_s: float | None = None, ax: Axes | None = None) -> Axes:
    """Requests in the house over time, one line for each run: does it settle?

    Parameters
    ----------
    results : mapping label -> Result
        A short label such as "ρ = 0.9".
    until_s : float, optional
        Right end of the axis: the last arrival, say, after which every house empties.
    """
    ax = _axes(ax)
    lines = []
    for label, result in results.items():
        time_s, number = number_in_system(result)
        if until_s is not None:
            number, time_s = number[time_s <= until_s], time_s[time_s <= until_s]
        (line,) = ax.step(time_s, number, where="post", marker="", linewidth=1.4)
        lines.append((label, line))
    ax.set(xlabel="time t (s)", ylabel="orders in the house N(t)")
    ax.set_xlim(0, until_s)
    ax.set_ylim(bottom=0)
    _label_ends(ax, lines)
    mark_unpriced(ax, *results.values())
    return ax


def latency_histogram(
    latency_s: npt.ArrayLike | Result,
    *,
    marks: Sequence[float] = (0.5, 0.99),
    bins: int = 40,
    ax: Axes | None = None,
) -> Axes:
    """How latencies spread, with the mean and some percentiles marked.

    Parameters
    ----------
    latency_s : array or Result
        Seconds; of a result, the end-to-end latency of what finished.
    marks : sequence of float
        Fractions: 0.99 marks P99, by the nearest rank.
    bins : int
        At least 1.

    Examples
    --------
    >>> ax = latency_histogram([1.0, 1.2, 1.3, 2.5], marks=(0.5,))
    >>> [text.get_text() for text in ax.texts]
    ['mean 1.5', 'P50 1.2']
    """
    ax = _axes(ax)
    values = _latencies(latency_s)
    bins = check_number("bins", bins, ge=1, integer=True)
    ax.hist(values, bins=bins, weights=np.full(len(values), 100 / len(values)), color=COLORS["blue"], alpha=0.75)
    ax.set(xlabel="latency (s)", ylabel="orders (%)")
    stops = [("mean", float(values.mean()), ":")] + [(f"P{100 * q:g}", percentile(values, q), "-") for q in marks]
    top = ax.get_ylim()[1]
    for index, (name, value, style) in enumerate(stops):
        ax.axvline(value, color=COLORS["orange"], linestyle=style, linewidth=1.6)
        height = 1.0 - 0.09 * index
        ax.annotate(f"{name} {value:.3g}", (value, top * height), xytext=(4, -2), textcoords="offset points", va="top")
    ax.set_xlim(left=min(0.0, float(values.min())))
    mark_unpriced(ax, *_results(latency_s))
    return ax


def latency_cdf(
    latencies_s: npt.ArrayLike | Result | Mapping[str, npt.ArrayLike | Result],
    *,
    marks: Sequence[float] = (0.5, 0.99),
    ax: Axes | None = None,
) -> Axes:
    """F(x): the share of requests that took at most x seconds, with percentiles marked.

    Parameters
    ----------
    latencies_s : array, Result, or a mapping label -> one of them
        Infinite where there was no answer: the curve then ends below 1.
    marks : sequence of float
        Fractions at which a dotted line is drawn.
    """
    ax = _axes(ax)
    curves = latencies_s if isinstance(latencies_s, Mapping) else {"": latencies_s}
    for index, (label, latency) in enumerate(curves.items()):
        values = np.sort(_latencies(latency, endless=True))
        share = np.arange(1, len(values) + 1) / len(values)
        known = np.isfinite(values)
        tails = [(percentile(values, q), q) for q in marks]
        values, share = values[known], share[known]
        (line,) = ax.step(values, share, where="post", marker="", linestyle=("-", "--", "-.", ":")[index % 4])
        for tail, q in tails:
            if np.isfinite(tail):
                ax.plot(tail, q, linestyle="", color=line.get_color(), marker="osD^"[index % 4])
        if label and len(values):
            at = int(0.75 * (len(values) - 1))
            ax.annotate(
                label, (values[at], share[at]), xytext=(6, -10), textcoords="offset points", color=line.get_color()
            )
    for q in marks:
        ax.axhline(q, color=COLORS["grey"], linestyle=":", linewidth=1)
        ax.annotate(f"P{100 * q:g}", (1, q), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    ax.set(xlabel="latency x (s)", ylabel="share F(x)", ylim=(0, 1.04))
    mark_unpriced(ax, *_results(*curves.values()))
    return ax


def timeline(result: Result, *, first: int | None = None, ax: Axes | None = None) -> Axes:
    """Who waits and who cooks, one bar for each request: pale until its first step, full until it is served.

    Parameters
    ----------
    result : Result
        Where a request's first step isn't known, as in a run measured by a client, its bar is pale until the first
        token.
    first : int, optional
        Only the first so many requests.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.2])
    >>> ax = timeline(sl.simulate(orders, sl.StaticBatching(3), sl.AffineStep(0.4, 0.02)))
    >>> ax.get_ylabel()
    'order'
    """
    ax = _axes(ax)
    count = len(result) if first is None else min(check_number("first", first, ge=1, integer=True), len(result))
    served = np.flatnonzero(result.finished[:count])
    rows = served + 1
    arrival, start, finish = (column[served] for column in (result.arrival_s, result.scheduled_s, result.finish_s))
    parts = "wait", "cook"
    if np.isnan(start).any():
        start, parts = result.first_token_s[served], ("TTFT", "decode")
    ax.barh(rows, start - arrival, left=arrival, height=0.5, color=COLORS["pale"], hatch="///", edgecolor="white")
    ax.barh(rows, finish - start, left=start, height=0.7, color=COLORS["blue"])
    ax.plot(arrival, rows, linestyle="", marker="|", color=COLORS["orange"], markersize=8, markeredgewidth=2)
    ax.set(xlabel="time t (s)", ylabel="order", ylim=(count + 0.7, 0.3))
    ax.set_xlim(left=0)
    if len(served):
        last = -1
        middle = (finish[last] + start[last]) / 2
        ax.annotate(parts[1], (middle, rows[last]), color="white", ha="center", va="center", fontsize=9)
        longest = int(np.argmax(start - arrival))
        middle = (start[longest] + arrival[longest]) / 2
        ax.annotate(parts[0], (middle, rows[longest] - 0.3), ha="center", va="bottom", fontsize=9)
    mark_unpriced(ax, result)
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def _latencies(source: npt.ArrayLike | Result, endless: bool = False) -> npt.NDArray[np.float64]:
    from servinglab.result.result import Result

    values = source.e2e_s[source.finished] if isinstance(source, Result) else np.asarray(source, np.float64)
    if values.ndim != 1 or not len(values) or not (~np.isnan(values) if endless else np.isfinite(values)).all():
        raise ValueError(f"latency_s must be a list of finite numbers, not empty; got {values!r}")
    return values


def _results(*sources: Any) -> list[Result]:
    from servinglab.result.result import Result

    return [source for source in sources if isinstance(source, Result)]


def _curves(ax: Axes, x: npt.ArrayLike, curves: Mapping[str, npt.ArrayLike]) -> list[tuple[str, Line2D]]:
    sizes = np.asarray(x, np.float64)
    lines = []
    for index, (label, y) in enumerate(curves.items()):
        values = np.asarray(y, np.float64)
        if values.shape != sizes.shape:
            raise ValueError(f"{label} must have one value for each x; got {values.shape} for {sizes.shape}")
        values = np.where(np.isfinite(values), values, np.nan)
        (line,) = ax.plot(sizes, values, linestyle=("-", "--", "-.", ":")[index % 4])
        lines.append((label, line))
    return lines


def _label_ends(ax: Axes, lines: Sequence[tuple[str, Line2D]]) -> None:
    """Write each line's name beside its last point, in its colour; names that would touch move apart upwards."""
    ends = []
    for label, line in lines:
        x, y = (np.asarray(values, np.float64) for values in line.get_data())
        known = np.flatnonzero(~np.isnan(y))
        if len(known):
            end = x[known[-1]], y[known[-1]]
            ends.append((ax.transData.transform(end)[1] * 72 / ax.figure.dpi, end, label, line.get_color()))
    free = -np.inf
    for height, end, label, color in sorted(ends, key=lambda each: each[0]):
        moved = max(height, free)
        free = moved + 13  # points: a line of text
        ax.annotate(
            label,
            end,
            xytext=(6, moved - height),
            textcoords="offset points",
            va="center",
            color=color,
            annotation_clip=False,
        )


def _rule(ax: Axes, value: float, label: str) -> None:
    ax.axhline(value, color=COLORS["dark"], linestyle=(0, (1, 1.5)), linewidth=1.6)
    ax.annotate(
        label,
        (0.01, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=COLORS["dark"],
        va="bottom",
    )
