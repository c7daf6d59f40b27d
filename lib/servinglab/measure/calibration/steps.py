"""From measured runs a step time, and predicted beside measured.

`calibrate` takes measured runs with a log of steps, whatever engine they are of, and fits an `AffineStep`. Steps that
hold the same count as one point with their mean: what holds up a step now and then holds up a load as well. How many
were held up, and how far apart equal steps are, is said. `prediction_table` sets what the simulator says with such a
step time beside what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servinglab.base.text import aligned, show_number
from servinglab.metrics.summary import Summary
from servinglab.result.result import Result
from servinglab.step_time.fit import StepFit, fit_step_time

LATE = 1.5  # times its point's median: a step that something held up
# What a figure may be off before the table marks it, relative: the median and the mean of a run are steadier than its
# hundredth-worst request.
GOALS = {"throughput": 0.05, "P50": 0.10, "P99": 0.20}


@dataclass(frozen=True, eq=False)
class Calibration:
    """A step time fitted to runs, and how steady the runs were. Made by `calibrate`.

    Attributes
    ----------
    fit : StepFit
    steps, points : int
        Steps that were timed; how many different ones there were.
    spread : float
        Median over points of the interquartile range of equal steps, as a share of their median; NaN if no step
        happened twice.
    late : float
        Share of steps that took more than 1.5 times their point's median.
    """

    fit: StepFit
    steps: int
    points: int
    spread: float
    late: float

    def __str__(self) -> str:
        lines = [str(self.fit), f"{self.steps:,} steps at {self.points:,} points"]
        if not math.isnan(self.spread):
            lines[-1] += f"; equal steps differ by {self.spread:.1%}, and {self.late:.1%} were held up"
        if self.spread > 0.1 or self.late > 0.05:
            lines.append("a noisy machine: other programs run, or clocks change; measure again when it is quiet")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        step = self.fit.step
        return {
            "step_time": {name: getattr(step, name) for name in self.fit.interval},
            "interval": {name: list(ends) for name, ends in self.fit.interval.items()},
            "confidence": self.fit.confidence,
            "rms_s": self.fit.rms_s,
            "held_at_zero": list(self.fit.at_zero),
            "steps": self.steps,
            "points": self.points,
            "spread": self.spread,
            "late": self.late,
        }


def calibrate(runs: Sequence[Result]) -> Calibration:
    """Fit a step time to the logs of measured runs.

    Parameters
    ----------
    runs : sequence of Result
        Measured under one engine and its settings; each with a log of steps.

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        If a run has no log, or the steps can't tell the coefficients apart (`fit_step_time` says which).

    Examples
    --------
    A simulated run gives back the step time that made it:

    >>> import servinglab as sl
    >>> from servinglab.workload.lengths import Geometric, LogNormal
    >>> work = sl.closed_loop(6, 200, seed=1, prompt_tokens=LogNormal(50, 300), output_tokens=Geometric(20))
    >>> rules = sl.ContinuousBatching(8, 64)
    >>> run = sl.simulate(work, rules, sl.AffineStep(1e-3, 1e-4, 2e-5, 1e-7))
    >>> again = calibrate([run]).fit.step
    >>> [round(1e6 * each, 2) for each in (again.fixed_s, again.per_request_s, again.per_prefill_token_s)]
    [1000.0, 100.0, 20.0]
    """
    if not runs:
        raise ValueError("runs must hold at least one measured run; got none")
    logs = [run.steps() for run in runs]
    columns = [
        np.concatenate([getattr(log, name) for log in logs]) for name in ("charged", "prefill_tokens", "kv_tokens")
    ]
    seconds = np.concatenate([log.end_ns - log.start_ns for log in logs]) / 1e9
    points, of_step = np.unique(np.stack(columns), axis=1, return_inverse=True)
    order = np.argsort(of_step, kind="stable")
    groups = np.split(seconds[order], np.flatnonzero(np.diff(of_step[order])) + 1)
    means, medians = (np.array([middle(group) for group in groups]) for middle in (np.mean, np.median))
    ranges = [np.subtract(*np.percentile(group, (75, 25))) / np.median(group) for group in groups if len(group) > 1]
    requests, prefill, kv = points
    return Calibration(
        fit=fit_step_time(requests, means, prefill, kv, relative=True),
        steps=len(seconds),
        points=len(groups),
        spread=float(np.median(ranges)) if ranges else math.nan,
        late=float(np.mean(seconds > LATE * medians[of_step])),
    )


@dataclass(frozen=True, eq=False)
class Prediction:
    """One load: measured, once or several times, and simulated.

    Attributes
    ----------
    load : str
    measured : sequence of Result
        At least one run of it.
    predicted : Result
    """

    load: str
    measured: Sequence[Result]
    predicted: Result

    def rows(self) -> list[dict[str, Any]]:
        """A row for each figure.

        ``figure``, ``unit``, ``measured`` (the median over runs), ``predicted``, ``error`` = predicted/measured − 1,
        ``apart`` = (the runs' largest − their smallest)/measured, None of one run, and ``goal``. What is undefined,
        such as the TPOT of one-token answers, has no row.
        """
        real, ours = [_figures(run) for run in self.measured], _figures(self.predicted)
        rows = []
        for name, unit, goal in ours:
            values = [figures[name, unit, goal] for figures in real]
            if any(map(math.isnan, values)):
                continue
            middle, predicted = float(np.median(values)), ours[name, unit, goal]
            rows.append(
                {
                    "figure": name,
                    "unit": unit,
                    "measured": middle,
                    "predicted": predicted,
                    "error": predicted / middle - 1,
                    "apart": (max(values) - min(values)) / middle if len(values) > 1 else None,
                    "goal": GOALS[goal],
                }
            )
        return rows


def prediction_table(predictions: Sequence[Prediction]) -> str:
    r"""Predicted beside measured, a row for each load and figure.

    An error beyond the goal is marked with ``!``, or with ``~`` where the measured runs are as far from one another.

    Examples
    --------
    >>> import servinglab as sl
    >>> work = sl.poisson(20, 500, seed=1, output_tokens=4)
    >>> slow, quick = (sl.simulate(work, sl.ContinuousBatching(8), sl.AffineStep(a, 1e-3)) for a in (0.010, 0.009))
    >>> print(*prediction_table([Prediction("20/s", [slow], quick)]).splitlines()[:3], sep="\n")
    load      figure        measured       predicted      error  runs apart  goal
    20/s  throughput  80.78 tokens/s  80.79 tokens/s   +0.0 %             –   5 %
    20/s    TTFT P50       0.01540 s       0.01285 s  -16.5 % !           –  10 %
    """
    table = [("load", "figure", "measured", "predicted", "error", "runs apart", "goal")]
    for each in predictions:
        for row in each.rows():
            beyond = abs(row["error"]) > row["goal"]
            mark = " " if not beyond else "~" if abs(row["error"]) <= (row["apart"] or 0) else "!"
            off = f"{100 * row['error']:+.1f} % {mark}"
            apart = "–" if row["apart"] is None else f"{100 * row['apart']:.1f} %"
            numbers = [f"{show_number(row[name])} {row['unit']}" for name in ("measured", "predicted")]
            table.append((each.load, row["figure"], *numbers, off, apart, f"{100 * row['goal']:.0f} %"))
    return "\n".join(aligned(table))


def _figures(result: Result) -> dict[tuple[str, str, str], float]:
    summary: Summary = result.summary()
    found = {("throughput", "tokens/s", "throughput"): summary.output_throughput}
    for name, spread in (("TTFT", summary.ttft_s), ("TPOT", summary.tpot_s), ("E2E", summary.e2e_s)):
        found[f"{name} P50", "s", "P50"] = spread.p50
        found[f"{name} P99", "s", "P99"] = spread.p99
    return found
