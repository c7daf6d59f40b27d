"""Published benchmark points of closed loops: fit the simulator to some, predict the others.

A point says: so many clients, each of whom waits for an answer before the next request; all prompts and answers of one
length; mean TTFT, mean time between tokens (ITL), tokens a second. All clients start at once, as load generators do;
that decides how prompts bunch, and so TTFT. With one length for all, a token's share of the KV cache can't be told from
a request's, so `AffineStep` without a KV term is fitted.

Modelled: the queue behind a cap on running requests, whatever sets it (memory or a setting). Not modelled: the network,
tokenising, and other parts of a service before and after the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_number
from servinglab.engine.simulate import simulate
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.step_time.affine import AffineStep
from servinglab.workload.arrival_laws import closed_loop

BUDGETS = (2048, 8192, 16384)  # what engines use for max_num_batched_tokens by default, by version and device
_SPREAD = (0.10, 0.02, 0.02)  # how far off a good model may be: TTFT, ITL, throughput
_GENERATIONS = 4  # requests of each client; the first and the last are left out
_LIKELY = 1.92  # half of the 95 % point of chi-squared with one degree of freedom


@dataclass(frozen=True)
class Point:
    """One published point; times in seconds, `tokens_per_s` of output. What wasn't published is None."""

    clients: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    itl_s: float
    tokens_per_s: float | None = None
    devices: int = 1

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Point:
        """From a row with concurrency, isl, osl, ttft_ms, itl_ms, perhaps out_tok_s and n_gpu."""
        return cls(
            row["concurrency"], row["isl"], row["osl"], row["ttft_ms"] / 1e3, row["itl_ms"] / 1e3, row.get("out_tok_s"),
            row.get("n_gpu", 1),
        )  # fmt: skip


def closed_loop_point(
    step: AffineStep, clients: int, prompt_tokens: int, output_tokens: int, max_num_seqs: int, budget: int
) -> tuple[float, float, float]:
    """Mean TTFT and ITL in seconds, and output tokens a second, of a closed loop once it has settled.

    Parameters
    ----------
    step : AffineStep
    clients, prompt_tokens, output_tokens : int
        At least 1; at least two answer tokens.
    max_num_seqs, budget : int
        The most requests that run, and the most tokens in a step.

    Examples
    --------
    One client: a prompt in three pieces, then 99 steps of one token.

    >>> ttft_s, itl_s, tokens_per_s = closed_loop_point(AffineStep(0.01, 0.0, 1e-4), 1, 5000, 100, 8, 2048)
    >>> round(ttft_s, 3), round(itl_s, 3), round(tokens_per_s, 1)
    (0.53, 0.01, 65.8)
    """
    clients = check_number("clients", clients, ge=1, integer=True)
    check_number("output_tokens", output_tokens, ge=2, integer=True)
    n = clients * _GENERATIONS
    work = closed_loop(clients, n, 0, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    result = simulate(work, ContinuousBatching(max_num_seqs, max(budget, max_num_seqs)), step)
    settled = slice(clients, n - clients)
    e2e_s = float(result.e2e_s[settled].mean())
    return float(result.ttft_s[settled].mean()), float(result.tpot_s[settled].mean()), output_tokens * clients / e2e_s


@dataclass(frozen=True)
class CappedFit:
    """A step time, a budget of tokens and a cap on running requests that were read off published points.

    Attributes
    ----------
    step : AffineStep
    budget : int
        The one of `BUDGETS` that fits best.
    max_num_seqs : int
        The hidden cap.
    cap_interval : tuple of int
        Caps whose best fit is at most 1.92 units of log-likelihood worse: about 95 %, errors being as `_SPREAD` says.
    """

    step: AffineStep
    budget: int
    max_num_seqs: int
    cap_interval: tuple[int, int]

    def predict(self, point: Point) -> dict[str, float]:
        """Relative errors, (predicted − published) / published, of TTFT, ITL and throughput."""
        ours = closed_loop_point(
            self.step, point.clients, point.prompt_tokens, point.output_tokens, self.max_num_seqs, self.budget
        )
        real = (point.ttft_s, point.itl_s, point.tokens_per_s)
        names = ("ttft_s", "itl_s", "tokens_per_s")
        return {name: o / r - 1 for name, o, r in zip(names, ours, real, strict=True) if r is not None}


def fit_capped(points: Sequence[Point], caps: Sequence[int] | None = None) -> CappedFit:
    """Fit step time, budget and hidden cap to points of which some have a queue and some none.

    Parameters
    ----------
    points : sequence of Point
        At least 4. TTFT beyond ten times the shortest is taken as queueing: only such points tell the cap.
    caps : sequence of int, optional
        Caps to try; left out: around the number that runs by Little's law at the points that queue, ±15 %.

    Raises
    ------
    ValueError
        If there are too few points, or none that queues.
    """
    if len(points) < 4:
        raise ValueError(f"points must hold at least 4 points; got {len(points)}")
    shortest = min(point.ttft_s for point in points)
    queueing = [p for p in points if p.ttft_s > 10 * shortest and p.tokens_per_s is not None]
    if not queueing:
        raise ValueError("points must hold one that queues, with its throughput: its TTFT tells the cap")
    if caps is None:
        running = np.mean([(p.tokens_per_s or 0.0) * p.itl_s for p in queueing])
        caps = range(max(1, int(0.85 * running)), int(1.15 * running) + 2)
    start = _rough_step(points)
    costs: dict[tuple[int, int], tuple[float, AffineStep]] = {}
    for budget in BUDGETS:
        for cap in caps[:: max(1, len(caps) // 6)]:
            costs[budget, cap] = _fit_step(points, cap, budget, start)
    budget = min(costs, key=lambda key: costs[key][0])[0]
    for cap in caps:
        costs.setdefault((budget, cap), _fit_step(points, cap, budget, start))
    best, _ = min(((cap, costs[budget, cap][0]) for cap in caps), key=lambda each: each[1])
    least, step = costs[budget, best]
    likely = [cap for cap in caps if costs[budget, cap][0] <= least + _LIKELY]
    return CappedFit(step, budget, best, (min(likely), max(likely)))


def leave_one_out(points: Sequence[Point], budget: int = 8192) -> list[dict[str, float]]:
    """Predict each point from a fit to all the others; points may differ in how many devices share the model.

    Of each coefficient a part is shared by the devices and a part isn't (launches, all-reduces):
    ``fixed = a0 + a1/devices``, ``per request = b0 + b1/devices``, ``per prompt token = c0 + c1/devices``.

    Returns
    -------
    list of dict
        One a point: clients, devices, and the relative errors ``ttft_s`` and ``itl_s``.
    """
    if len(points) < 8:
        raise ValueError(f"points must hold at least 8 points for six coefficients; got {len(points)}")
    widest = max(point.clients for point in points)
    rough = _rough_step(points)
    unit = np.repeat([rough.fixed_s, rough.per_request_s, rough.per_prefill_token_s], 2) * np.array([0.5, 1.0] * 3)

    def errors(x: Floats, chosen: Sequence[Point]) -> Floats:
        values = x * unit
        rows = []
        for p in chosen:
            step = AffineStep(*(values[0::2] + values[1::2] / p.devices).tolist())
            ttft_s, itl_s, _ = closed_loop_point(step, p.clients, p.prompt_tokens, p.output_tokens, widest, budget)
            rows.append([np.log(ttft_s / p.ttft_s), np.log(itl_s / p.itl_s)])
        return np.array(rows)

    def fit(chosen: Sequence[Point], x: Floats, most: int) -> Floats:
        return _least(lambda x: (errors(x, chosen) / _SPREAD[:2]).ravel(), x, most)[0]

    whole = fit(points, np.ones(6), 15)
    found = []
    for i, point in enumerate(points):
        x = fit([*points[:i], *points[i + 1 :]], whole, 5)
        ttft, itl = np.expm1(errors(x, [point])[0]).tolist()
        found.append({"clients": point.clients, "devices": point.devices, "ttft_s": ttft, "itl_s": itl})
    return found


def _rough_step(points: Sequence[Point]) -> AffineStep:
    fewest = min(points, key=lambda p: (p.clients, p.devices))
    fixed = 0.9 * fewest.itl_s
    return AffineStep(fixed, 0.01 * fixed, max(fewest.ttft_s - fixed, 0.1 * fixed) / fewest.prompt_tokens)


def _fit_step(points: Sequence[Point], cap: int, budget: int, start: AffineStep) -> tuple[float, AffineStep]:
    unit = np.array([start.fixed_s, start.per_request_s, start.per_prefill_token_s])

    def residuals(x: Floats) -> Floats:
        step = AffineStep(*np.maximum(x * unit, [1e-6, 0, 0]).tolist())
        rows = []
        for p in points:
            ours = closed_loop_point(step, p.clients, p.prompt_tokens, p.output_tokens, cap, budget)
            real = (p.ttft_s, p.itl_s, p.tokens_per_s)
            rows += [np.log(o / r) / s for o, r, s in zip(ours, real, _SPREAD, strict=True) if r is not None]
        return np.array(rows)

    x, cost = _least(residuals, np.ones(3), 12)
    return cost, AffineStep(*np.maximum(x * unit, [1e-6, 0, 0]).tolist())


def _least(residuals: Callable[[Floats], Floats], x: Floats, most: int) -> tuple[Floats, float]:
    from scipy.optimize import least_squares

    found = least_squares(residuals, x, bounds=(0, np.inf), diff_step=0.03, loss="soft_l1", max_nfev=most, xtol=1e-4)
    return found.x, float(found.cost)
