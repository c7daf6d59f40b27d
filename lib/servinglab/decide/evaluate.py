"""How well does one setting keep the promise? By an exact law, or by simulation; and which settings to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from servinglab import theory
from servinglab.base.checks import check_choice, check_number
from servinglab.decide.answer import Candidate
from servinglab.decide.formulas import ROUNDING, BatchFormula, formula_batch, gathering_batch
from servinglab.decide.grid_search import Axis, Point, search
from servinglab.engine.reference.pots import check_pots
from servinglab.engine.simulate import simulate
from servinglab.metrics.intervals import PercentileInterval, independent_percentile_interval, percentile_interval
from servinglab.metrics.percentiles import percentile
from servinglab.metrics.rates import busy_fraction
from servinglab.metrics.slo import check_slo
from servinglab.result.result import Result
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching, Scheduler, StaticBatching
from servinglab.step_time.affine import AffineStep, StepTime
from servinglab.step_time.prompt_attention import unpriced_attention
from servinglab.theory.tokens import max_rate_rps, static_rate_rps
from servinglab.workload.arrival_laws import poisson
from servinglab.workload.model import Workload

Traffic = float | Workload | Callable[[int, int], Workload]
Progress = Callable[[int, Mapping[str, Any]], None]

KINDS = ("static", "dynamic", "continuous")
PREFERENCES = ("least_work", "headroom")
_EXACT_UP_TO = 64  # batches beyond which an exact law takes longer than a long simulation
_SAME = 1.01  # headrooms that count as equal
_WARM_UP = 0.1  # share of generated requests, the first to come, that isn't counted
_HOPEFUL = 1.1  # a short run's P99 over the limit, beyond which no long run is tried
_MOST_LONG_RUNS = 16
_COARSE = 10  # values on an axis to begin with
_ALONE = 1e-4  # at this share of its rate, traffic comes one by one


@dataclass(frozen=True)
class Question:
    """The arguments of `best_batch`, and the share of the traffic's rate that it is asked for."""

    traffic: Traffic
    step_time: StepTime
    slo: Mapping[str, float]
    kind: str
    max_batch_size: int
    q: float
    prefer: str | None
    pots: int | None
    kv: HasBlocks | None
    max_tokens: int | None
    requests: int | None
    max_requests: int | None
    seed: int
    progress: Progress | None
    speed: float = 1.0


class Judge:
    """One promise, one kind of scheduler, one traffic: tries settings and says which is best."""

    def __init__(self, question: Question) -> None:
        ask = self._ask = question
        self.kind = check_choice("scheduler", ask.kind, KINDS)
        self.slo = check_slo(ask.slo)
        if not self.slo:
            raise ValueError("slo must give at least one limit, such as {'e2e_s': 1.8}; got none")
        self.q = check_number("q", ask.q, gt=0, lt=1)
        usual = "headroom" if self.kind == "continuous" else "least_work"
        self.prefer = check_choice("prefer", usual if ask.prefer is None else ask.prefer, PREFERENCES)
        self.largest = check_number("max_batch_size", ask.max_batch_size, ge=1, integer=True)
        self.max_tokens = ask.max_tokens
        if self.kind != "continuous" and (ask.kv is not None or ask.max_tokens is not None):
            raise ValueError(f"kv and max_num_batched_tokens go with scheduler='continuous'; got {self.kind!r}")
        if self.max_tokens is not None:
            check_number("max_num_batched_tokens", self.max_tokens, ge=1, integer=True)
        self.step_time, self.pots = ask.step_time, check_pots(ask.pots)
        self._work: dict[int, Workload] = {}
        self.fixed = isinstance(ask.traffic, Workload)
        self.orders_rps: float | None = None
        if isinstance(ask.traffic, Workload):
            self.requests = self.max_requests = len(ask.traffic)
        else:
            self.requests = 20_000
            if not callable(ask.traffic):
                self.orders_rps = check_number("traffic", ask.traffic, gt=0) * ask.speed
            elif int(self._make(16, ask.seed).output_tokens.max()) > 1:
                self.requests = 5_000
            if ask.requests is not None:
                fewest = math.ceil(20 / (1 - self.q))
                self.requests = check_number("requests", ask.requests, ge=fewest, integer=True)
            longest = 32 * self.requests if ask.max_requests is None else ask.max_requests
            self.max_requests = check_number("max_requests", longest, ge=self.requests, integer=True)
        work = self.work(self.requests)
        self.rate_rps = self.orders_rps if self.orders_rps is not None else work.rate_rps
        self.traffic_name = "Poisson orders of one step" if self.orders_rps is not None else work.name or "a workload"
        self.tried: list[Candidate] = []

    def slower(self, speed: float, kind: str | None = None) -> Judge:
        """The same question for a share of the rate, or for another kind of scheduler."""
        return Judge(replace(self._ask, speed=self._ask.speed * speed, kind=kind or self.kind))

    # Traffic

    def _make(self, n: int, seed: int) -> Workload:
        traffic, speed = self._ask.traffic, self._ask.speed
        if isinstance(traffic, Workload):
            work = traffic
        elif callable(traffic):
            work = traffic(n, seed)
            if not isinstance(work, Workload):
                raise ValueError(f"traffic(n, seed) must make a Workload; got {type(work).__name__}")
        else:
            return poisson(traffic * speed, n, seed)
        return work if speed == 1 else work.scaled(speed)

    def work(self, n: int) -> Workload:
        """The same n requests for every candidate; those of long runs aren't those that the search saw."""
        if n not in self._work:
            self._work[n] = self._make(n, self._ask.seed if n == self.requests else self._ask.seed + 1)
        return self._work[n]

    # One candidate

    def try_point(self, point: Point) -> Candidate | None:
        scheduler, settings = self._scheduler(point)
        if scheduler is None:
            return None
        return self.judge(scheduler, settings, self.requests)

    def _scheduler(self, point: Point) -> tuple[Scheduler | None, dict[str, Any]]:
        size = int(point[0])
        if self.kind == "static":
            return StaticBatching(size), {"batch_size": size}
        if self.kind == "dynamic":
            return DynamicBatching(size, point[1]), {"batch_size": size, "window_s": point[1]}
        if self.max_tokens is None:
            return ContinuousBatching(size), {"max_num_seqs": size}
        budget = int(point[1])
        scheduler = ContinuousBatching(size, budget) if size <= budget else None
        return scheduler, {"max_num_seqs": size, "max_num_batched_tokens": budget}

    def judge(self, scheduler: Scheduler, settings: Mapping[str, Any], requests: int) -> Candidate:
        if self._ask.progress is not None:
            self._ask.progress(len(self.tried), settings)
        found = self._unstable(scheduler, settings) or self._exact(scheduler, settings)
        if found is None or requests > self.requests:
            run = self._simulated(scheduler, settings, requests)
            # a law beats a sample: the run only adds its interval
            found = run if found is None else replace(found, intervals=run.intervals, requests=run.requests)
        self.tried.append(found)
        return found

    def _unstable(self, scheduler: Scheduler, settings: Mapping[str, Any]) -> Candidate | None:
        """What surely can't keep up, if a closed form says so."""
        if not isinstance(self.step_time, AffineStep) or self.fixed or self.pots is None:
            return None
        work = self.work(self.requests)
        step, seats = self.step_time, next(iter(settings.values()))
        if self.kind == "continuous":
            prompts, answers = float(work.prompt_tokens.mean()), float(work.output_tokens.mean())
            most = max_rate_rps(seats, answers, step.fixed_s, step.per_request_s, step.per_prefill_token_s, prompts)
        elif self.orders_rps is not None:
            most = theory.pot_rate(seats, step.fixed_s, step.per_request_s)
        else:
            most = static_rate_rps(work.output_tokens, seats, step.fixed_s, step.per_request_s)
        # generated lengths have a mean of their own, and only what is far beyond it is sure
        if self.rate_rps < most * self.pots * (1 - ROUNDING if self.orders_rps is not None else 1.05):
            return None
        never = {name: math.inf for name in self.slo}
        return Candidate(settings, scheduler, never, {}, math.inf, 1.0, "unstable", 0, "fails")

    def _exact(self, scheduler: Scheduler, settings: Mapping[str, Any]) -> Candidate | None:
        step, size = self.step_time, next(iter(settings.values()))
        if self.orders_rps is None or not isinstance(step, AffineStep) or step.per_kv_token_s or size > _EXACT_UP_TO:
            return None
        try:
            if self.kind == "static":
                law = theory.static_batching(self.orders_rps, size, step.fixed_s, step.per_request_s, self.pots)
            elif self.kind == "continuous" and self.pots == 1 and self._ask.kv is None and self.max_tokens is None:
                law = theory.bulk_service(self.orders_rps, [step(b) for b in range(1, size + 1)])
            else:
                return None
            value = law.latency_quantile(self.q)
        except ValueError:  # too near to saturation for the law's numerical method
            return None
        times = {name: value for name in self.slo if name != "tpot_s"}
        ratio = max((value / self.slo[name] for name in times), default=0.0)
        verdict = "meets" if ratio <= 1 + ROUNDING else "fails"
        busy = law.utilization if self.pots is not None else math.nan
        return Candidate(settings, scheduler, times, {}, ratio, busy, "exact", 0, verdict)

    def _simulated(self, scheduler: Scheduler, settings: Mapping[str, Any], requests: int) -> Candidate:
        result = simulate(self.work(requests), scheduler, self.step_time, self.pots, kv=self._ask.kv)
        times, intervals = self._percentiles(result)
        ratios = [times[name] / self.slo[name] for name in times]
        verdict = "meets"
        for name, value in times.items():
            limit = self.slo[name]
            low, high = (value, value) if self.fixed else (intervals[name].low, intervals[name].high)
            if low > limit:
                verdict = "fails"
            elif high > limit and verdict == "meets":
                verdict = "close"
        return Candidate(
            settings,
            scheduler,
            times,
            intervals,
            max(ratios, default=0.0),
            busy_fraction(result),
            "simulated",
            len(result),
            verdict,
        )

    def _percentiles(self, result: Result) -> tuple[dict[str, float], dict[str, PercentileInterval]]:
        times, intervals = {}, {}
        counted = slice(0 if self.fixed else int(_WARM_UP * len(result)), None)
        for name in self.slo:
            values = getattr(result, name)[counted]
            if name == "tpot_s":
                values = values[result.output_tokens[counted] > 1]
            values = np.where(np.isnan(values), math.inf, values)  # never finished
            if values.size:
                times[name] = percentile(values, self.q)
            if values.size * (1 - self.q) >= 10:
                intervals[name] = percentile_interval(values, self.q)
            elif values.size and not self.fixed:
                intervals[name] = independent_percentile_interval(values, self.q)  # too few: it has no upper end
        return times, intervals

    # All of them

    def axes(self) -> list[Axis]:
        sizes = {*_spread(1, self.largest)}
        formula = self.formula()
        if formula is not None:  # near these P99 turns
            seeds = (formula.batch_size, formula.smallest_stable, self.gathering())
            sizes |= {size + more for size in seeds if size for more in (0, 1) if size + more <= self.largest}
        exact = self.largest <= 128 and self.max_tokens is None
        if exact and self.fixed and self.kind != "dynamic":  # a sample's P99 is jagged, and there is no other sample
            sizes = set(range(1, self.largest + 1))
        axes = [Axis(sizes, whole=True, finest=0.0 if exact else 0.1)]
        if self.kind == "dynamic":
            longest = min(self.slo.values())
            axes.append(Axis([longest * part / 8 for part in (0, 0.5, 1, 2, 3, 4, 6, 8)], whole=False, finest=0.04))
        if self.max_tokens is not None:
            axes.append(Axis(_spread(min(64, self.max_tokens), self.max_tokens), whole=True, finest=0.1))
        return axes

    def explore(self, near: Candidate | None = None) -> list[Candidate]:
        """Try settings over the whole range, or near one."""
        axes = self.axes()
        if near is not None:
            for axis, value in zip(axes, near.settings.values(), strict=True):
                axis.values = sorted({value, *(x for x in axis.values if value / 4 <= x <= 4 * value)})
        return search(axes, self.try_point, self._worth_a_closer_look, lambda each: tuple(each.settings.values()))

    def _worth_a_closer_look(self, found: Sequence[Candidate]) -> Iterable[Candidate]:
        smallest = min(found, key=lambda each: each.ratio)
        kept = [each for each in found if each.ratio <= 1]
        if kept and self.prefer == "least_work":
            return [min(kept, key=self._work_of), smallest]
        return [smallest]

    def _work_of(self, each: Candidate) -> tuple[float, float]:
        """Least first; endless pots have no busy share, and the largest batch needs the fewest of them."""
        busy = each.busy_fraction
        return (-next(iter(each.settings.values())) if math.isnan(busy) else busy), each.ratio

    def decide(self) -> tuple[tuple[Candidate, ...], Candidate | None]:
        """All candidates, and the best that keeps the promise."""
        self.explore()
        hopeful = [each for each in self.tried if each.ratio <= _HOPEFUL]
        if self.prefer == "least_work":
            hopeful.sort(key=self._work_of)
        else:
            best = min((each.ratio for each in hopeful), default=1.0)
            # those within 1 % of the best by their settings, the others after them
            hopeful.sort(
                key=lambda each: (0.0, *each.settings.values()) if each.ratio <= best * _SAME else (each.ratio,)
            )
        close: Candidate | None = None
        choice: Candidate | None = None
        for each in hopeful[: _MOST_LONG_RUNS if not self.fixed else None]:
            if each.how == "exact" and each.verdict == "fails":
                continue
            each = self._run_longer(each)
            if each.verdict == "meets":
                choice = each
                break
            if close is None and each.ratio <= 1:
                close = each
        return by_settings(self.tried), choice or close

    def _run_longer(self, each: Candidate) -> Candidate:
        n = self.requests
        while n < self.max_requests and (each.requests <= self.requests or each.verdict == "close"):
            n = min(4 * n, self.max_requests)
            each = self.judge(each.scheduler, each.settings, n)
        return each

    # Beside the search

    def formula(self) -> BatchFormula | None:
        step, limit = self.step_time, self.slo.get("e2e_s", self.slo.get("ttft_s"))
        if self.orders_rps is None or not isinstance(step, AffineStep) or limit is None or not step.per_request_s:
            return None
        return formula_batch(self.orders_rps, step.fixed_s, step.per_request_s, limit)

    def gathering(self) -> int | None:
        if self.formula() is None:
            return None
        step, limit = self.step_time, self.slo.get("e2e_s", self.slo.get("ttft_s"))
        assert self.orders_rps is not None and isinstance(step, AffineStep) and limit is not None
        return gathering_batch(self.orders_rps, step.fixed_s, step.per_request_s, limit, q=self.q)

    def unpriced_attention(self) -> str | None:
        longest = max(int(work.prompt_tokens.max()) for work in self._work.values())
        return unpriced_attention(longest, self.step_time)

    def alone(self) -> dict[str, float]:
        if self.work(self.requests).is_closed:
            return {}
        work = self.work(self.requests)
        work = work.head(min(len(work), 2000)).scaled(_ALONE)
        return self._percentiles(simulate(work, ContinuousBatching(len(work)), self.step_time))[0]


def by_settings(tried: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Each setting once, the longest run of it."""
    longest: dict[Point, Candidate] = {}
    for each in tried:
        key = tuple(each.settings.values())
        if key not in longest or each.requests >= longest[key].requests:
            longest[key] = each
    return tuple(longest[key] for key in sorted(longest))


def _spread(low: int, high: int) -> list[float]:
    """Whole numbers from low to high, about evenly on a logarithmic scale."""
    if low == high:
        return [low]
    return sorted({round(low * (high / low) ** (i / (_COARSE - 1))) for i in range(_COARSE)})
