"""From measured runs a step time, and from the step time predictions of runs that it hasn't seen.

`calibrate` takes measured runs with a log of steps, whatever engine they are of, and fits an `AffineStep`. Steps that
hold the same count as one point with their mean: what holds up a step now and then holds up a load as well. How many
were held up, and how far apart equal steps are, is said.

`predict_loads` does the whole on an engine that is stepped by hand: short runs to calibrate with, and loads of other
lengths and arrivals, in turns, so that a machine that changes its pace changes it for both. Each load runs several
times; by how much the runs differ is noise that no prediction can beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._checks import check_number
from ..lengths import Geometric, LogNormal, Uniform
from ..measured_steps import StepFit, fit_step_time
from ..metrics import Summary, show_number
from ..result import Result
from ..saved_runs import aligned
from ..simulate import simulate
from ..token_theory import max_rate_rps
from ..workload import Workload, closed_loop, poisson
from .stepped import SteppedEngine, serve_stepped

LATE = 1.5  # times its point's median: a step that something held up
# What a figure may be off before the table marks it, relative: the median and the mean of a run are steadier than its
# hundredth-worst request.
GOALS = {"throughput": 0.05, "P50": 0.10, "P99": 0.20}
LOADS = {"half": 0.5, "near the knee": 0.8}  # open loop, as a share of the calibrated capacity


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
    20/s  throughput  80.33 tokens/s  80.34 tokens/s   +0.0 %             –   5 %
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


# On an engine that is stepped by hand


def calibration_loads(seats: int, longest_prompt: int) -> list[Workload]:
    """What to calibrate with: bursts, and two closed loops that mix prompts and answers.

    A burst is 1, 2, 4 … `seats` requests that come at once. In half of the bursts all prompts are short and in half
    they are spread up to the longest, so that tokens of context aren't in step with requests; answers end one after
    the other, so that each number of requests occurs. In a burst nearly all steps of answers follow such a step, and
    so find the processor's caches warm; in the loops, as in service, many follow a prompt, and take longer.

    Parameters
    ----------
    seats : int
        The most requests in a step, at least 1.
    longest_prompt : int
        In tokens, at least 16.

    Examples
    --------
    >>> [len(load) for load in calibration_loads(8, 512)]
    [1, 1, 2, 2, 4, 4, 8, 8, 16, 32]
    """
    seats = check_number("seats", seats, ge=1, integer=True)
    longest = check_number("longest_prompt", longest_prompt, ge=16, integer=True)
    made = []
    for level in sorted({2**k for k in range(seats.bit_length())} | {seats}):
        for top in (16, longest):
            prompts = np.linspace(top, max(8, top // 4), level).round().astype(int)
            name = f"burst of {level}, up to {top} tokens"
            made.append(Workload.from_arrivals(np.zeros(level), prompts, 8 + 2 * np.arange(level), name=name))
    lengths: dict[str, Any] = {"prompt_tokens": Uniform(8, longest), "output_tokens": Uniform(4, 28)}
    return made + [closed_loop(n, 4 * n, 1, **lengths) for n in sorted({max(1, seats // 2), seats})]


def loads(step: Any, seats: int, n: int, seed: int, longest_prompt: int) -> Iterator[tuple[str, Workload]]:
    """Loads that calibration hasn't seen: open loop at a half and near the knee, and a closed loop.

    Parameters
    ----------
    step : AffineStep
        Says what the engine can carry.
    seats, n, seed, longest_prompt : int
        Requests at once; in each load; of arrivals and lengths; no prompt is longer.
    """
    lengths = {
        "prompt_tokens": LogNormal(longest_prompt / 8, longest_prompt * 0.75, max=longest_prompt),
        "output_tokens": Geometric(24),
    }
    sample = poisson(1.0, n, seed, **lengths)  # type: ignore[arg-type]
    prompt, output = float(sample.prompt_tokens.mean()), float(sample.output_tokens.mean())
    held = step.per_request_s + step.per_kv_token_s * (prompt + output / 2)
    most = max_rate_rps(seats, output, step.fixed_s, held, step.per_prefill_token_s, prompt)
    for name, share in LOADS.items():
        yield f"open, {name}", poisson(share * most, n, seed, **lengths)  # type: ignore[arg-type]
    yield f"closed, {seats} clients", closed_loop(seats, n, seed, **lengths)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What calibrating an engine and predicting it came to. Made by `predict_loads`.

    Attributes
    ----------
    calibration : Calibration
    runs : list of Result
        What was calibrated with.
    predictions : list of Prediction
    cpu_per_wall : float
        CPU seconds per second of the measured steps.
    """

    calibration: Calibration
    runs: list[Result]
    predictions: list[Prediction]

    @property
    def steps(self) -> int:
        """Steps that were measured, those of the calibration included."""
        runs = [*self.runs, *(run for each in self.predictions for run in each.measured)]
        return sum(run.log_facts.steps for run in runs)

    @property
    def cpu_per_wall(self) -> float:
        runs = [run for each in self.predictions for run in each.measured]
        return float(np.mean([run.description["cpu_per_wall"] for run in runs]))


def predict_loads(
    engine: SteppedEngine,
    *,
    n: int = 200,
    seed: int = 0,
    repeats: int = 3,
    longest_prompt: int = 512,
    clock: str = "wall",
    say: Callable[[str], None] = lambda text: None,
    keep: Callable[[str, Result], None] = lambda name, run: None,
) -> Outcome:
    """Calibrate an engine and predict three loads that calibration hasn't seen.

    Parameters
    ----------
    engine : SteppedEngine
    n : int
        Requests in each load, at least 1; a P99 of fewer than 100 is its slowest request.
    seed : int
        Of arrivals and lengths.
    repeats : int
        How often all is measured, at least 1, after warming up.
    longest_prompt : int
        In tokens, at least 16.
    clock : {"wall", "cpu"}
        As in `serve_stepped`.
    say : callable
        Is told what is being done.
    keep : callable
        Is given each measured run of a load as it ends, and its name.
    """
    repeats = check_number("repeats", repeats, ge=1, integer=True)
    n = check_number("n", n, ge=1, integer=True)
    seats = engine.scheduler.seats
    say("warming up")

    def calibration_round() -> list[Result]:
        return [serve_stepped(work, engine, clock) for work in calibration_loads(seats, longest_prompt)]

    # first runs are the slowest: engines prepare a kernel for each number of tokens that they meet
    calibration_round()
    runs = calibration_round()
    works = dict(loads(calibrate(runs).fit.step, seats, n, seed, longest_prompt))
    for work in works.values():
        serve_stepped(work, engine, clock)
    measured: dict[str, list[Result]] = {name: [] for name in works}
    for number in range(repeats):
        say(f"round {number + 1} of {repeats}: what calibrates, then the loads")
        runs += calibration_round()
        for name, work in works.items():
            measured[name].append(serve_stepped(work, engine, clock))
            keep(f"{name}, measured {number + 1}", measured[name][-1])
    calibration = calibrate(runs)
    predictions = [
        Prediction(name, measured[name], simulate(work, engine.scheduler, calibration.fit.step, kv=engine.kv))
        for name, work in works.items()
    ]
    return Outcome(calibration, runs, predictions)
