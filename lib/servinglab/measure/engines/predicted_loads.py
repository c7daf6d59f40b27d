"""An engine that is stepped by hand: calibrated with short runs, and predicted on loads that it hasn't seen.

Short runs and loads are measured in turns, so that a machine that changes its pace changes it for both. Each load runs
several times; by how much the runs differ is noise that no prediction can beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from servinglab.base.checks import check_number
from servinglab.engine.simulate import simulate
from servinglab.measure.calibration.steps import Calibration, Prediction, calibrate
from servinglab.measure.engines.stepped import SteppedEngine, serve_stepped
from servinglab.result.result import Result
from servinglab.theory.tokens import max_rate_rps
from servinglab.workload.arrival_laws import closed_loop, poisson
from servinglab.workload.lengths import Geometric, LogNormal, Uniform
from servinglab.workload.model import Workload

LOADS = {"half": 0.5, "near the knee": 0.8}  # open loop, as a share of the calibrated capacity


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
        return float(np.mean([run.setup.cpu_per_wall for run in runs]))


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
