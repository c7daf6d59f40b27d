"""Which step time makes the simulator's requests come out as a real run's did? A fit to timestamps alone.

Nobody timed the steps. What is known of the first requests of a run: when each came, its lengths, and when its first
and its last token came. The scheduler's rules say what every step held, so the simulator turns five coefficients into
the same timestamps, and the fit looks for those that come out closest:

    step = overhead + max(weights, per_token · tokens computed) + per_request · requests + per_kv_token · KV tokens

It is a roofline for the matrices (they read weights while they compute), and attention, which reads the KV cache, after
it; the engines know it as a `RoofStep`.

The fit sees the times of the first requests only. Later ones share the engine with them until they are done, so it
matters what is known of those. When a recorded workload is served again, all arrivals and lengths are: they are the
simulator's input. When the first requests are all there is, futures take the place of the rest: arrivals and lengths
drawn, with replacement, from what was seen, and two factors on their lengths, which are fitted too and held near 1.

What this leaves out: noise of single steps, and time outside the engine (tokenising, network): times count from when
the engine queued a request. A mixture of experts reads more weights the more tokens a step has; that isn't in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_choice, check_number
from servinglab.engine.simulate import simulate
from servinglab.hardware.catalog import Accelerator, Model, accelerator
from servinglab.hardware.roofline import roofline
from servinglab.measure.readers.vllm_run import MeasuredRun
from servinglab.result.result import Result
from servinglab.step_time.affine import AffineStep, RoofStep
from servinglab.workload.model import Workload

COEFFICIENTS = ("overhead_s", "weights_s", "per_request_s", "per_token_s", "per_kv_token_s")

# How far off a good model's request may be, relative: a TTFT by a step or so, the others by little. They weigh the
# three kinds of residual against each other.
_SPREAD = {"ttft_s": 0.05, "tpot_s": 0.015, "e2e_s": 0.015}
# How far, relative, a coefficient may be from a roofline's start: bandwidths are known, the others less.
_TRUST = (1.0, 0.2, 1.0, 0.5, 0.2)
_FLOOR = (0.0, 0.85, 0.0, 0.6, 0.85)  # of a roofline's start: no device beats its printed bandwidth and FLOP/s
_NO_FLOOR = (0.0,) * 5
_LOOSE = (2.0,) * 5  # and from a start read off the timestamps
_LENGTHS_OFF = 1 / 30  # how far later requests' mean lengths may be from the seen ones'
_CONFOUNDED = 0.9
_CLOSE = (0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05)  # relative widths of the search, one after another
_CLOSER = (0.1, 0.1, 0.05)
_LEAST = 0.2  # of its start: a coefficient near 0 is searched as if it were as large as this
_BLOCK = 10  # requests that run together share their steps and their errors: so many count as one


@dataclass(frozen=True, eq=False)
class RunFit:
    """A step time fitted to a run's timestamps. Made by `fit_run`.

    Attributes
    ----------
    coefficients : dict of str to float
        By `COEFFICIENTS`, in seconds.
    standard_error : dict of str to float
        In seconds, by refitting; NaN without.
    confounded : tuple of (str, str)
        Pairs whose errors have a correlation beyond ±0.9, the start left aside: the run says little about each.
    from_start : dict of str to float
        Share of each coefficient that the start decided, not the data: 0 to 1.
    error : dict of str to float
        Median absolute relative error of the fitted requests' ``ttft_s``, ``tpot_s`` and ``e2e_s``.
    requests : int
        Requests whose times the fit saw.
    simulations : int
        How often the engine was run.
    """

    coefficients: dict[str, float]
    standard_error: dict[str, float]
    confounded: tuple[tuple[str, str], ...]
    from_start: dict[str, float]
    error: dict[str, float]
    requests: int
    simulations: int

    @property
    def step(self) -> RoofStep:
        """The step time."""
        return step_of(self.coefficients)

    def __str__(self) -> str:
        lines = [f"{'coefficient':<16}{'seconds':>11}{'± one s.e.':>12}{'from start':>12}"]
        for name in COEFFICIENTS:
            value, error = self.coefficients[name], self.standard_error[name]
            lines.append(f"{name:<16}{value:>11.4g}{error:>12.2g}{self.from_start[name]:>12.0%}")
        errors = ", ".join(f"{name} {value:.1%}" for name, value in self.error.items())
        lines.append(f"{self.requests} requests seen; median errors: {errors}")
        lines += [f"hardly told apart: {first} and {second}" for first, second in self.confounded]
        return "\n".join(lines)


def step_of(coefficients: Mapping[str, float]) -> RoofStep:
    """The step time with these coefficients.

    Parameters
    ----------
    coefficients : mapping of str to float
        All of `COEFFICIENTS`, in seconds, at least 0; `overhead_s` plus `per_request_s` above 0.

    Examples
    --------
    >>> step = step_of(dict(zip(COEFFICIENTS, (0.002, 0.010, 5e-5, 4e-5, 8e-8))))
    >>> round(step(1, 0, 0), 6), round(step(1, 999, 0), 6)
    (0.01205, 0.04205)
    """
    overhead, weights, request, token, kv = (coefficients[name] for name in COEFFICIENTS)
    return RoofStep(AffineStep(overhead + weights, request, 0.0, kv), AffineStep(overhead, request + token, token, kv))


def roofline_start(model: str | Model, device: str | Accelerator) -> dict[str, float]:
    """Coefficients to start from, by the catalogue: 85 % of the bandwidth and 60 % of the FLOP/s are reached.

    Overhead of 2 ms a step and 50 µs a request (scheduling, launches, sampling) are taken as usual.

    Examples
    --------
    >>> start = roofline_start("llama-3.1-8b", "rtx-4090")
    >>> round(1e3 * start["weights_s"], 1), round(1e9 * start["per_kv_token_s"])
    (17.5, 153)
    """
    roof = roofline(model, device, bandwidth_efficiency=0.85, compute_efficiency=0.6, overhead_s=0.0)
    memory, compute = roof.affine("memory"), roof.affine("compute")
    values = (0.002, memory.fixed_s, 5e-5, compute.per_prefill_token_s, memory.per_kv_token_s)
    return dict(zip(COEFFICIENTS, values, strict=True))


def carry(coefficients: Mapping[str, float], source: str | Accelerator, target: str | Accelerator) -> dict[str, float]:
    """The coefficients that a roofline expects on another device, the same share of its figures being reached.

    What reads memory goes by bandwidth, what computes by FLOP/s; the host's part stays.

    Examples
    --------
    >>> carried = carry(roofline_start("llama-3.1-8b", "rtx-4090"), "rtx-4090", "rtx-pro-6000")
    >>> round(1e3 * carried["weights_s"], 2), carried["overhead_s"]
    (9.85, 0.002)
    """
    here, there = accelerator(source), accelerator(target)
    memory = here.bandwidth_bytes_per_s / there.bandwidth_bytes_per_s
    compute = here.flops("bf16") / there.flops("bf16")
    factors = dict(zip(COEFFICIENTS, (1.0, memory, 1.0, compute, memory), strict=True))
    return {name: value * factors[name] for name, value in coefficients.items()}


def fit_run(
    run: MeasuredRun,
    *,
    requests: int = 100,
    start: Mapping[str, float] | None = None,
    lengths: str = "all",
    futures: int = 12,
    refits: int = 0,
    seed: int = 0,
) -> RunFit:
    """Fit a step time to the first requests of a run.

    Parameters
    ----------
    run : MeasuredRun
        The run and its engine's settings, which are taken as known.
    requests : int
        How many requests, by arrival, the fit may see; at least 20.
    start : mapping of str to float, optional
        Where to begin, and where to stay in what the data can't tell: `roofline_start`. Its efficiencies are taken for
        granted: no coefficient comes out below what all of the bandwidth and FLOP/s would give. Left out: a rough
        reading of the timestamps, to which little is held.
    lengths : {"all", "seen"}
        ``"all"``: arrivals and lengths of later requests are known, as when a recorded workload is served again, though
        not their times. ``"seen"``: nothing of later requests is known; futures are drawn.
    futures : int
        Draws of what comes after the seen requests, at least 2.
    refits : int
        Further fits for the standard errors, 0 or at least 5; each takes about a fifth of the fit's time.
    seed : int
        Of all draws.

    Returns
    -------
    RunFit

    Raises
    ------
    ValueError
        If an argument is out of range, or if more than half of the seen answers have one token and so no TPOT.

    Notes
    -----
    Residuals are logarithms of simulated over measured TTFT, TPOT and E2E of every seen request, in units of 5, 1.5
    and 1.5 %, under a soft L1 loss, with coefficients ≥ 0. Ten requests count as one against the start and against
    the seen requests' mean lengths, for requests that run together share their steps.

    Standard errors: the spread of refits, each to one future and to blocks of 10 requests drawn with replacement. They
    hold the noise of the search too.
    """
    requests = check_number("requests", requests, ge=20, le=len(run), integer=True)
    futures = check_number("futures", futures, ge=2, integer=True)
    if check_number("refits", refits, ge=0, integer=True) in (1, 2, 3, 4):
        raise ValueError(f"refits must be 0 or at least 5; got {refits}")
    seed = check_number("seed", seed, ge=0, integer=True)
    later = run.workload if check_choice("lengths", lengths, ("seen", "all")) == "all" else None
    seen = run.head(requests)  # from here on there is nothing else of the run
    if (seen.workload.output_tokens == 1).sum() > requests / 2:
        raise ValueError("more than half of the seen answers have one token: they say nothing of TPOT")
    if later is not None:
        works = [later]
    else:
        works = [_with_future(seen, np.random.default_rng([seed, k])) for k in range(futures)]
    begin = rough_start(seen) if start is None else dict(start)
    problem = _Problem(seen, works, begin, *((_LOOSE, _NO_FLOOR) if start is None else (_TRUST, _FLOOR)))
    x = problem.solve(np.ones(problem.size), _CLOSE)
    rng = np.random.default_rng([seed, len(works)])
    return problem.report(x, [problem.refit(x, k % len(works), rng) for k in range(refits)])


def rough_start(run: MeasuredRun) -> dict[str, float]:
    """A first guess from timestamps, without a simulation: half of the shortest TPOT is fixed, the rest shared out.

    Examples
    --------
    >>> import servinglab as sl
    >>> true = step_of(dict(zip(COEFFICIENTS, (0.002, 0.010, 5e-5, 4e-5, 8e-8))))
    >>> rules = sl.ContinuousBatching(64, 2048)
    >>> work = sl.poisson(5, 200, seed=1, prompt_tokens=800, output_tokens=sl.lengths.Geometric(200))
    >>> guess = rough_start(MeasuredRun("made up", work, sl.simulate(work, rules, true), rules))
    >>> 0.3 < guess["weights_s"] / 0.010 < 3 and 0.3 < guess["per_token_s"] / 4e-5 < 3
    True
    """
    work, result = run.workload, run.result
    at_s = np.concatenate([result.first_token_s, result.finish_s])
    here = (result.first_token_s[:, None] <= at_s) & (at_s < result.finish_s[:, None])
    running = max(1.0, float(np.median(here.sum(0))))
    context = float(np.mean(work.prompt_tokens + work.output_tokens / 2))
    fixed = 0.5 * float(np.nanmin(result.tpot_s))
    rest = max(0.1 * fixed, float(np.nanmedian(result.tpot_s)) - fixed)
    alone = (result.first_token_s - result.scheduled_s - fixed) / work.prompt_tokens
    token = max(float(np.quantile(alone, 0.25)), 1e-3 * fixed)
    values = (0.15 * fixed, 0.85 * fixed, 0.15 * rest / running, token, 0.3 * rest / (running * context))
    return dict(zip(COEFFICIENTS, values, strict=True))


class _Problem:
    """Residuals under `x`: the coefficients in units of the start, then the future's two factors on lengths."""

    def __init__(
        self,
        seen: MeasuredRun,
        works: list[Workload],
        start: Mapping[str, float],
        trust: tuple[float, ...],
        floor: tuple[float, ...],
    ) -> None:
        self._seen, self._works = seen, works
        self._unit = np.array([max(start[name], 1e-12) for name in COEFFICIENTS])
        futures = len(works) > 1
        self._spread = np.array([*trust, *([_LENGTHS_OFF] * 2 if futures else [])])
        self._floor = np.array([*floor, *([0.0] * (len(self._spread) - len(floor)))])
        real = {name: getattr(seen.result, name) for name in _SPREAD}
        self._known = {name: np.flatnonzero(values > 0) for name, values in real.items()}
        self._real = {name: values[self._known[name]] for name, values in real.items()}
        self._rng = np.random.default_rng(0)
        self._runs = 0

    @property
    def size(self) -> int:
        return len(self._spread)

    def solve(self, x: Floats, widths: Sequence[float]) -> Floats:
        return self._least(lambda x: np.mean(self._residuals(x), 0), x, widths)

    def refit(self, x: Floats, k: int, rng: np.random.Generator) -> Floats:
        """The best coefficients for one future and blocks of requests drawn anew."""
        blocks = np.concatenate([known // _BLOCK for known in self._known.values()])
        count = int(blocks.max()) + 1
        weight = np.sqrt(np.bincount(rng.integers(0, count, count), minlength=count)[blocks])
        return self._least(lambda x: weight * self._run(x, k), x, _CLOSER)

    def report(self, x: Floats, refits: list[Floats]) -> RunFit:
        n = len(COEFFICIENTS)
        average = np.mean(self._residuals(x), 0)
        free = np.flatnonzero(x > 2e-3)
        points, values = self._around(lambda x: np.mean(self._residuals(x), 0), x, _CLOSER[0])
        plane = _plane(points - x, values)
        slopes = plane[1:].T[:, free]
        curvature = (slopes / np.sqrt(1 + average**2)[:, None]).T @ slopes  # soft L1
        held = np.diag(_BLOCK * self._spread[free] ** -2.0)
        share = np.ones(len(x))
        share[free] = np.diag(np.linalg.inv(curvature + held) @ held)
        alone = np.linalg.inv(curvature + 1e-9 * np.trace(curvature) * np.eye(len(free)))
        spread = np.sqrt(np.diag(alone))
        correlation = np.abs(alone / np.outer(spread, spread))
        names = [COEFFICIENTS[i] for i in free if i < n]
        error = np.std(refits, 0, ddof=1) if refits else np.full(len(x), np.nan)
        parts = np.split(average, np.cumsum([len(known) for known in self._known.values()])[:-1])
        return RunFit(
            coefficients=self._coefficients(x),
            standard_error=dict(zip(COEFFICIENTS, (error[:n] * self._unit).tolist(), strict=True)),
            confounded=tuple(
                (names[i], names[j]) for i, j in combinations(range(len(names)), 2) if correlation[i, j] > _CONFOUNDED
            ),
            from_start=dict(zip(COEFFICIENTS, share[:n].tolist(), strict=True)),
            error={
                name: float(np.median(np.abs(np.expm1(part * _SPREAD[name]))))
                for name, part in zip(_SPREAD, parts, strict=True)
            },
            requests=len(self._seen),
            simulations=self._runs,
        )

    def _least(self, residuals: Callable[[Floats], Floats], x: Floats, widths: Sequence[float]) -> Floats:
        """The best coefficients near `x`.

        A request that just misses a step makes residuals jump, so derivatives at a point say little. Instead residuals
        are computed at points around `x`, a plane is laid through them, and its best point is the next `x`; then again,
        closer.
        """
        from scipy.optimize import least_squares

        def held(x: Floats) -> Floats:
            return np.sqrt(_BLOCK) * (x - 1) / self._spread

        def loss(values: Floats, x: Floats) -> float:
            return 2 * float(np.sum(np.sqrt(1 + values**2) - 1)) + float(np.sum(held(x) ** 2))

        best = loss(residuals(x), x)
        for width in widths:
            points, values = self._around(residuals, x, width)
            plane = _plane(points - x, values)
            reach = 2 * width * np.maximum(x, _LEAST)

            def flat(y: Floats, x: Floats = x, plane: Floats = plane) -> Floats:
                return np.concatenate([plane[0] + (y - x) @ plane[1:], held(y)])

            found = least_squares(
                flat, x, bounds=(np.maximum(x - reach, self._floor) - 1e-9, x + reach), loss="soft_l1"
            ).x
            tried = [(loss(value, point), point) for value, point in zip(values, points, strict=True)]
            tried.append((loss(residuals(found), found), found))
            least, point = min(tried, key=lambda each: each[0])
            if least < best:
                best, x = least, np.maximum(point, self._floor)
        return x

    def _around(self, residuals: Callable[[Floats], Floats], x: Floats, width: float) -> tuple[Floats, Floats]:
        """Points around `x`, in pairs on opposite sides, and the residuals there."""
        aside = width * np.maximum(x, _LEAST) * self._rng.uniform(-1.5, 1.5, (2 * len(x), len(x)))
        points = np.maximum(np.concatenate([x + aside, x - aside]), self._floor)
        return points, np.array([residuals(point) for point in points])

    def _residuals(self, x: Floats) -> list[Floats]:
        """One array a future."""
        return [self._run(x, k) for k in range(len(self._works))]

    def _coefficients(self, x: Floats) -> dict[str, float]:
        values = np.maximum(x[: len(COEFFICIENTS)], 1e-6) * self._unit
        return dict(zip(COEFFICIENTS, values.tolist(), strict=True))

    def _run(self, x: Floats, k: int) -> Floats:
        self._runs += 1
        work, n = self._works[k], len(self._seen)
        if len(x) > len(COEFFICIENTS):
            prompt, output = x[len(COEFFICIENTS) :]
            columns: dict[str, Any] = {
                "prompt_tokens": work.prompt_tokens.copy(),
                "output_tokens": work.output_tokens.copy(),
            }
            for column, factor in zip(columns.values(), (prompt, output), strict=True):
                column[n:] = np.maximum(1, np.rint(factor * column[n:]))
            work = Workload.from_arrivals(work.arrival_s, **columns, priority=work.priority)
        result = simulate(work, self._seen.scheduler, step_of(self._coefficients(x)), kv=self._seen.kv)
        parts = []
        for name, spread in _SPREAD.items():
            ours = getattr(result, name)[self._known[name]]
            parts.append(np.log(np.maximum(ours, 1e-9) / self._real[name]) / spread)
        return np.concatenate(parts)


def _plane(aside: Floats, values: Floats) -> Floats:
    """Value in the middle, then slopes, of the plane nearest to the values at these distances from the middle."""
    design = np.column_stack([np.ones(len(aside)), aside])
    return np.asarray(np.linalg.lstsq(design, values, rcond=None)[0], np.float64)


def _with_future(seen: MeasuredRun, rng: np.random.Generator) -> Workload:
    """The seen requests, and others like them until the last of the seen is done, at most twice as many."""
    work, n = seen.workload, len(seen)
    gaps = np.diff(work.arrival_s)
    lasts_s = float(np.nanmax(seen.result.finish_s)) - work.arrival_s[-1]
    more = 2 * n if gaps.mean() <= 0 else int(min(2 * n, lasts_s / gaps.mean()))
    like = rng.integers(0, n, more)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(work, name), getattr(work, name)[like]])
        for name in ("prompt_tokens", "output_tokens", "priority")
    }
    arrivals = work.arrival_s[-1] + np.cumsum(rng.choice(gaps, more))
    return Workload.from_arrivals(np.concatenate([work.arrival_s, arrivals]), **columns)


def replay(run: MeasuredRun, step: RoofStep | AffineStep) -> Result:
    """Simulate the whole workload of a run, with its engine's settings."""
    return simulate(run.workload, run.scheduler, step, kv=run.kv)
