"""Which batch keeps a promise about the P99?

Three answers, each better than the one before. `formula_batch` is the first document's formula: a mean wait, and no
queue. `gathering_batch` takes the exact P99 of the wait for a full batch, and still no queue. `best_batch` knows the
queue: by an exact law where there is one, otherwise by simulation, it tries batches from small to large, looks closer
where it matters, and says what would keep the promise if nothing it tried does.

What it doesn't model: traffic whose rate changes while it is measured, several machines behind a router, prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from . import theory
from ._checks import check_callback, check_choice, check_number
from ._grid_search import Axis, Point, search
from .intervals import PercentileInterval, independent_percentile_interval, percentile_interval
from .metrics import check_slo, percentile, show_number
from .reference import check_pots
from .result import Result
from .schedulers import ContinuousBatching, DynamicBatching, Scheduler, StaticBatching
from .simulate import simulate
from .step_time import AffineStep, StepTime
from .token_reference import HasBlocks
from .token_theory import max_rate_rps, static_rate_rps
from .workload import Workload, poisson

Traffic = float | Workload | Callable[[int, int], Workload]
Progress = Callable[[int, Mapping[str, Any]], None]

KINDS = ("static", "dynamic", "continuous")
PREFERENCES = ("least_work", "headroom")

_ROUNDING = 1e-9
_EXACT_UP_TO = 64  # batches beyond which an exact law takes longer than a long simulation
_SAME = 1.01  # headrooms that count as equal
_WARM_UP = 0.1  # share of generated requests, the first to come, that isn't counted
_HOPEFUL = 1.1  # a short run's P99 over the limit, beyond which no long run is tried
_MOST_LONG_RUNS = 16
_COARSE = 10  # values on an axis to begin with
_MOST_ROWS = 16  # of the printed table
_ALONE = 1e-4  # at this share of its rate, traffic comes one by one


# On paper


@dataclass(frozen=True)
class BatchFormula:
    """The first document's batch under a P99 promise, and both branches that it comes from.

    Attributes
    ----------
    by_window : int or None
        ⌊(L − W_max − t)/r⌋: the batch is so large that the window ends first. None without a window.
    by_gathering : int
        ⌊(λ(L − t) + 1)/(1 + λr)⌋: the batch is full before the window ends.
    smallest_stable : int or None
        ⌊λt/(1 − λr)⌋ + 1, below which the pot can't keep up; None if no batch can (λr ≥ 1).
    """

    by_window: int | None
    by_gathering: int
    smallest_stable: int | None

    @property
    def batch_size(self) -> int | None:
        """The larger branch, if it is at least 1 and stable; None where the formula finds no batch."""
        largest = max(self.by_gathering, self.by_window if self.by_window is not None else 0)
        return largest if self.smallest_stable is not None and largest >= max(1, self.smallest_stable) else None


def formula_batch(
    rate_rps: float, fixed_s: float, per_request_s: float, limit_s: float, max_wait_s: float = math.inf
) -> BatchFormula:
    """The largest B with P99 ≈ W + t + r·B ≤ L, W = min(W_max, (B − 1)/λ), as the first document has it.

    W depends on B, so both branches are solved, and the larger one counts: it is enough that one of the two waits is
    short. W is the *mean* wait of a batch's *first* guest, and the guests behind a busy pot aren't in it, so the true
    P99 is larger: compare `gathering_batch` and `best_batch`.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    fixed_s, per_request_s : float
        t ≥ 0 and r > 0, in seconds.
    limit_s : float
        L > 0, in seconds.
    max_wait_s : float
        W_max ≥ 0, in seconds; infinite (the default) for no window.

    Examples
    --------
    >>> formula_batch(20, fixed_s=0.4, per_request_s=0.02, limit_s=1.8).batch_size
    20
    >>> formula_batch(20, 0.4, 0.02, limit_s=0.6)      # 5 is what the promise allows, 14 what the rate demands
    BatchFormula(by_window=None, by_gathering=3, smallest_stable=14)
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, gt=0)
    limit = check_number("limit_s", limit_s, gt=0)
    window = max_wait_s if max_wait_s == math.inf else check_number("max_wait_s", max_wait_s, ge=0)
    return BatchFormula(
        by_window=None if window == math.inf else max(0, _floor((limit - window - fixed) / per_request)),
        by_gathering=max(0, _floor((rate * (limit - fixed) + 1) / (1 + rate * per_request))),
        smallest_stable=theory.min_stable_batch(rate, fixed, per_request),
    )


def gathering_batch(
    rate_rps: float,
    fixed_s: float,
    per_request_s: float,
    limit_s: float,
    max_wait_s: float = math.inf,
    q: float = 0.99,
) -> int | None:
    """The largest B whose exact P99 of gathering, plus t + r·B, is within L, with a pot always free; None if none is.

    Better than `formula_batch` by the wait's law (`theory.gather_quantile`) in place of a mean, and exact for endless
    pots without a window. One pot that is sometimes busy makes the P99 larger. The sum rises with B, so the largest is
    the last.

    Parameters
    ----------
    rate_rps, fixed_s, per_request_s, limit_s, max_wait_s
        As in `formula_batch`. With a window a batch may start before it is full; its cooking is taken for a full one's.
    q : float
        0 < q < 1.

    Examples
    --------
    >>> gathering_batch(20, fixed_s=0.4, per_request_s=0.02, limit_s=1.8)
    16
    >>> gathering_batch(20, 0.4, 0.02, limit_s=0.41) is None
    True
    """
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, gt=0)
    limit = check_number("limit_s", limit_s, gt=0)
    theory.gather_quantile(q, rate_rps, 1, max_wait_s)  # checks these, also where no batch is tried

    def fits(size: int) -> bool:
        cooking = fixed + per_request * size
        if cooking > limit + _ROUNDING:
            return False
        return theory.gather_quantile(q, rate_rps, size, max_wait_s) + cooking <= limit + _ROUNDING

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


# By exact laws and simulation


@dataclass(frozen=True)
class Candidate:
    """One setting that was tried.

    Attributes
    ----------
    settings : mapping
        What was set, such as ``{"batch_size": 15}``.
    scheduler : Scheduler
        With these settings.
    percentiles : mapping
        For each limit's name the percentile in seconds: exact if `how` says so, else of the simulated requests.
    intervals : mapping
        Their confidence intervals; empty for what wasn't simulated.
    ratio : float
        The largest percentile over its limit: at most 1 where the promise is kept.
    busy_fraction : float
        The share of the pots' time spent on steps; NaN with endless pots.
    how : {"exact", "simulated", "unstable"}
        By an exact law; by simulation; or not at all, because requests come faster than they can be served.
    requests : int
        How many were simulated.
    verdict : {"meets", "fails", "close"}
        "close": the limit lies within the interval, so the run can't tell.
    """

    settings: Mapping[str, Any]
    scheduler: Scheduler
    percentiles: Mapping[str, float]
    intervals: Mapping[str, PercentileInterval] = field(repr=False)
    ratio: float
    busy_fraction: float
    how: str
    requests: int
    verdict: str


@dataclass(frozen=True)
class Remedy:
    """What would keep the promise.

    Attributes
    ----------
    what : {"limit", "rate", "scheduler"}
        A longer limit with the best setting tried; fewer requests per second; or another scheduler.
    settings : mapping
        With these settings.
    percentiles : mapping
        The percentiles then, in seconds.
    rate_rps : float
        At this rate.
    """

    what: str
    settings: Mapping[str, Any]
    percentiles: Mapping[str, float]
    rate_rps: float


@dataclass(frozen=True)
class BestBatch:
    """The answer to "which batch keeps this promise?". Printing it gives the reasons.

    Attributes
    ----------
    kind : {"static", "dynamic", "continuous"}
    traffic : str
        What came.
    rate_rps : float
    slo : mapping
        The limits in seconds.
    q : float
        Which percentile each limit is for.
    prefer : {"least_work", "headroom"}
    choice : Candidate or None
        The best setting that keeps the promise; None if none does. Its verdict is "close" where no run was long enough
        to be sure of any.
    candidates : tuple of Candidate
        All that were tried, by their settings.
    formula, gathering : BatchFormula, int; or None
        What `formula_batch` and `gathering_batch` say, where they apply: one-step orders at a Poisson rate.
    alone : mapping
        The percentiles of requests that come one by one: no scheduler and no rate can do better.
    remedies : tuple of Remedy
        What would keep the promise, if nothing tried does; none if not even a request alone keeps it.
    """

    kind: str
    traffic: str
    rate_rps: float
    slo: Mapping[str, float]
    q: float
    prefer: str
    choice: Candidate | None
    candidates: tuple[Candidate, ...] = field(repr=False)
    formula: BatchFormula | None
    gathering: int | None
    alone: Mapping[str, float]
    remedies: tuple[Remedy, ...] = ()

    @property
    def smallest(self) -> Candidate:
        """The candidate whose percentiles are the smallest against their limits."""
        return min(self.candidates, key=lambda each: each.ratio)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, for JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: plain(entry) for name, entry in value.items()}
            if isinstance(value, tuple):
                return [plain(entry) for entry in value]
            if isinstance(value, (BatchFormula, Candidate, Remedy, PercentileInterval)):
                return {name: plain(entry) for name, entry in vars(value).items() if name != "scheduler"}
            return value

        return {name: plain(value) for name, value in vars(self).items()}

    def __str__(self) -> str:
        return "\n".join([*self._answer(), "", *_columns(self._table()), *self._left_out()])

    def _repr_html_(self) -> str:
        header, *rows = self._table()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        answer = "<br>".join(escape(line) for line in self._answer())
        after = "".join(f"<p>{escape(line)}</p>" for line in self._left_out())
        return f"<p>{answer}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{after}"

    def _answer(self) -> list[str]:
        name = f"P{100 * self.q:g}"
        limits = ", ".join(f"{name} of {each.removesuffix('_s')} <= {limit:g} s" for each, limit in self.slo.items())
        lines = [f"promise    {limits}", f"traffic    {self.traffic}, {show_number(self.rate_rps)} requests/s"]
        if self.choice is None:
            best = self.smallest
            lines.append(f"answer     no {self.kind} batch meets this SLO")
            if best.ratio < math.inf:
                lines.append(f"smallest   {_told(best.settings)}: {self._measured(best)}")
            if self.hopeless:
                lines.append(f"alone      {_told_times(self.alone)}: no request keeps the promise, even alone")
            lines += [f"{'would do' if not i else '':<11}{self._remedy(each)}" for i, each in enumerate(self.remedies)]
        else:
            sure = "" if self.choice.verdict == "meets" else ", but no run was long enough to be sure"
            lines.append(f"answer     {_told(self.choice.settings)}{sure}")
            lines.append(f"then       {self._measured(self.choice)}")
        if self.formula is not None:
            paper = {"formula": self.formula.batch_size, "exact gathering, no queue": self.gathering}
            lines.append("on paper   " + ", ".join(f"{what}: {size or 'none'}" for what, size in paper.items()))
        return lines

    @property
    def hopeless(self) -> bool:
        """Whether not even a request that is alone keeps the promise."""
        return any(self.alone[name] > limit for name, limit in self.slo.items() if name in self.alone)

    def _measured(self, each: Candidate) -> str:
        parts = []
        for name, value in each.percentiles.items():
            text = f"{name.removesuffix('_s')} {show_number(value)} s"
            if each.how == "exact":
                text += " (exact)"
            if name in each.intervals:
                interval = each.intervals[name]
                text += (
                    f" ({100 * interval.confidence:g} % interval {show_number(interval.low)} to "
                    f"{show_number(interval.high)}, {interval.samples:,} requests)"
                )
            parts.append(text)
        return (", ".join(parts) or "no request is ranked") + f"; busy {show_number(each.busy_fraction)}"

    def _remedy(self, each: Remedy) -> str:
        at = f"{_told(each.settings)}: {_told_times(each.percentiles)}"
        if each.what == "limit":
            return f"a limit of {_told_times(each.percentiles)}, with {_told(each.settings)}"
        if each.what == "rate":
            return f"at most about {show_number(each.rate_rps)} requests/s, with {at}"
        return f"continuous batching, {at}"

    def _shown(self) -> list[Candidate]:
        """Those that tell most: the nearest to keeping or breaking the promise."""
        worth = [each for each in self.candidates if each.ratio < math.inf]
        nearest = sorted(worth, key=lambda each: (each is not self.choice, abs(each.ratio - 1)))[:_MOST_ROWS]
        return [each for each in worth if each in nearest]

    def _left_out(self) -> list[str]:
        unstable = sum(each.how == "unstable" for each in self.candidates)
        rest = len(self.candidates) - unstable - len(self._shown())
        parts = [f"{unstable} that can't keep up with the rate"] if unstable else []
        parts += [f"{rest} further from the limit"] if rest else []
        return [f"not shown: {', '.join(parts)}"] if parts else []

    def _table(self) -> list[list[str]]:
        names = list(self.candidates[0].settings)
        rows = [[*names, *self.slo, "busy", "verdict", "by"]]
        for each in self._shown():
            values = [_short(each.settings[name]) for name in names]
            times = [show_number(each.percentiles.get(name, math.nan)) for name in self.slo]
            mark = f"{each.verdict} *" if each is self.choice else each.verdict
            rows.append([*values, *times, show_number(each.busy_fraction), mark, each.how])
        return rows


class SearchInterrupted(KeyboardInterrupt):
    """Raised when `best_batch` is interrupted; `candidates` holds what was tried."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        best = min(candidates, key=lambda each: each.ratio, default=None)
        so_far = f"; the smallest so far: {_told(best.settings)}, {_told_times(best.percentiles)}" if best else ""
        super().__init__(f"interrupted after {len(candidates)} candidates{so_far}")
        self.candidates = candidates


def best_batch(
    traffic: Traffic,
    step_time: StepTime,
    slo: Mapping[str, float],
    scheduler: str = "static",
    *,
    max_batch_size: int = 64,
    q: float = 0.99,
    prefer: str | None = None,
    pots: int | None = 1,
    kv: HasBlocks | None = None,
    max_num_batched_tokens: int | None = None,
    requests: int | None = None,
    max_requests: int | None = None,
    seed: int = 1,
    remedies: bool = True,
    progress: Progress | None = None,
) -> BestBatch:
    """The best batch whose P99 keeps a promise, of a scheduler's settings from small to large.

    *Which settings.* Static: `batch_size`. Dynamic: `batch_size` and `window_s`, up to the smallest limit. Continuous:
    `max_num_seqs` and, if `max_num_batched_tokens` gives the largest, that budget of tokens too.

    *How they are judged.* Exactly where theory has a law (a Poisson rate of one-step orders, an `AffineStep`, batches
    up to 64; static, or continuous with one pot), by simulation otherwise. All see the same requests (common random
    numbers), so that two of them differ by their settings alone. A setting for which requests come faster than they can
    be served fails without a run, where a closed form says so. P99 isn't monotone in the batch: too small a batch
    queues, too large a one gathers and cooks for long. So no failure ends the search: it begins with a coarse grid over
    the whole range, and halves the steps around the best that keeps the promise and around the smallest P99. With a
    `Workload`, whose P99 is jagged, it tries every batch size up to 128.

    *How sure.* The short runs of the search only order the candidates, and the best of many is also the luckiest. So
    the best run again on other requests, four times as many each time, until the 95 % interval of each percentile
    (`intervals.percentile_interval`) lies on one side of its limit. The first that surely keeps the promise is the
    choice. With a `Workload` the promise is about just these requests: the percentile decides, and the interval says
    what another such day might bring. An overload so small that the longest run doesn't feel it isn't seen where no
    closed form tells of it.

    Parameters
    ----------
    traffic : float, Workload, or callable
        λ > 0: Poisson arrivals of one-step orders. A workload: these requests. Or a function of (n, seed) that makes n
        requests, such as ``lambda n, seed: poisson(4, n, seed, prompt_tokens=500, output_tokens=Geometric(200))``.
    step_time, pots, kv
        As in `simulate`.
    slo : mapping
        Limits in seconds on the percentiles of ``ttft_s``, ``tpot_s``, ``e2e_s``; at least one, and all are to be kept.
        Requests that never finish rank last; those of one token have no TPOT and aren't ranked there.
    scheduler : {"static", "dynamic", "continuous"}
    max_batch_size : int
        The largest `batch_size` or `max_num_seqs`, ≥ 1.
    q : float
        Which percentile; 0 < q < 1.
    prefer : {"least_work", "headroom"}, optional
        Of those that keep the promise: the one whose pots are busy least (for static batching the largest batch), or
        the one whose percentiles lie furthest below their limits (the smallest setting of those within 1 %). By default
        least work for static and dynamic, headroom for continuous batching, where the cap hardly changes the work.
    max_num_batched_tokens : int, optional
        Continuous: the largest budget of tokens per step to try. None: no budget.
    requests, max_requests : int, optional
        How many to generate for the short runs (20,000, or 5,000 if answers have several tokens), and for the longest
        (32 times as many). The first tenth is a warm-up that isn't counted.
    seed : int
        Of the generated requests.
    remedies : bool
        Whether to look for what would keep the promise if nothing tried does; this takes some more searches.
    progress : callable, optional
        Called before each run with (candidates so far, settings).

    Returns
    -------
    BestBatch

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    SearchInterrupted
        On Ctrl-C, with the candidates so far.

    Examples
    --------
    >>> pot = AffineStep(fixed_s=0.4, per_request_s=0.02)
    >>> answer = best_batch(20, pot, {"e2e_s": 2.0}, max_batch_size=32)
    >>> answer.choice.settings, round(answer.choice.percentiles["e2e_s"], 3)
    ({'batch_size': 18}, 1.954)
    """
    check_callback("progress", progress)
    judge = _Judge(
        _Question(
            traffic, step_time, slo, scheduler, max_batch_size, q, prefer, pots, kv, max_num_batched_tokens, requests,
            max_requests, seed, progress,
        )
    )  # fmt: skip
    try:
        candidates, choice = judge.decide()
        answer = BestBatch(
            kind=judge.kind,
            traffic=judge.traffic_name,
            rate_rps=judge.rate_rps,
            slo=judge.slo,
            q=judge.q,
            prefer=judge.prefer,
            choice=choice,
            candidates=candidates,
            formula=judge.formula(),
            gathering=judge.gathering(),
            alone=judge.alone(),
        )
        if choice is not None or not remedies or answer.hopeless:
            return answer
        return replace(answer, remedies=tuple(_remedies(judge, answer.smallest)))
    except KeyboardInterrupt:
        raise SearchInterrupted(_by_settings(judge.tried)) from None


@dataclass(frozen=True)
class _Question:
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


class _Judge:
    """One promise, one kind of scheduler, one traffic: tries settings and says which is best."""

    def __init__(self, question: _Question) -> None:
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

    def slower(self, speed: float, kind: str | None = None) -> _Judge:
        """The same question for a share of the rate, or for another kind of scheduler."""
        return _Judge(replace(self._ask, speed=self._ask.speed * speed, kind=kind or self.kind))

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
        if self.rate_rps < most * self.pots * (1 - _ROUNDING if self.orders_rps is not None else 1.05):
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
        verdict = "meets" if ratio <= 1 + _ROUNDING else "fails"
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
        busy = math.nan
        if result.pots is not None and result.segments is not None:
            busy = result.segments.busy_s / (result.pots * result.duration_s)
        return Candidate(
            settings, scheduler, times, intervals, max(ratios, default=0.0), busy, "simulated", len(result), verdict
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
        return _by_settings(self.tried), choice or close

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

    def alone(self) -> dict[str, float]:
        if self.work(self.requests).is_closed:
            return {}
        work = self.work(self.requests)
        work = work.head(min(len(work), 2000)).scaled(_ALONE)
        return self._percentiles(simulate(work, ContinuousBatching(len(work)), self.step_time))[0]


def _remedies(judge: _Judge, smallest: Candidate) -> Iterable[Remedy]:
    """What would keep the promise, cheapest to say first."""
    if smallest.ratio < math.inf:
        yield Remedy("limit", smallest.settings, smallest.percentiles, judge.rate_rps)
    if judge.kind != "continuous":
        other = judge.slower(1.0, "continuous")
        _, choice = other.decide()
        if choice is not None:
            yield Remedy("scheduler", choice.settings, choice.percentiles, judge.rate_rps)
    if judge.work(judge.requests).is_closed:
        return
    low, high, found = 0.0, 1.0, None
    while high - low > 0.02 * high and high > 1e-3:
        speed = (low + high) / 2 if low else high / 2
        slower = judge.slower(speed)
        # one that can't keep up tells nothing about where to look
        near = smallest if smallest.ratio < math.inf else None
        kept = min(slower.explore(near), key=lambda each: each.ratio)
        if kept.ratio <= 1:
            low, found = speed, Remedy("rate", kept.settings, kept.percentiles, slower.rate_rps)
        else:
            high = speed
    if found is not None:
        yield found


def _by_settings(tried: Iterable[Candidate]) -> tuple[Candidate, ...]:
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


def _floor(count: float) -> int:
    """⌊count⌋, where 4.999999999 is 5."""
    whole = round(count)
    return whole if abs(count - whole) <= _ROUNDING * max(1.0, abs(count)) else math.floor(count)


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in settings.items())


def _told_times(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removesuffix('_s')} {show_number(value)} s" for name, value in times.items())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True)) for row in rows]
