"""Where is the knee? From the levels of a ramp, measured or simulated, to the last load that is worth having.

The rule is stated, not seen. From one level to the next the load grows by some factor; a step is past the knee if

- throughput gains less than half of what the load gains, and
- P99 gains more than half of what the load gains,

both gains as logarithms of factors. The knee is the level before the first such step. Half is where the two meet: in a
closed loop without pauses, throughput times mean latency is the number of clients (Little's law), so the two gains of
a step add up to the load's, and from half on a larger part of what is added is queue.

Two things make a knee uncertain, and both are told. The ramp has steps: the rule can't say where between two levels it
lies. And each level is a sample: its P99 and its throughput are drawn again from pieces of its own run (a block
bootstrap: neighbours in a queue are alike, so whole pieces of time are drawn), the rule is applied to what was drawn,
and the share of draws that gives each level is counted. The pieces must be long against the queue's memory; near
saturation no short level's are, so the shares are too sure there.

Source of the bootstrap: H. R. Künsch, "The jackknife and the bootstrap for general stationary observations", *Annals of
Statistics* 17 (1989) 1217–1241.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_number
from servinglab.metrics.percentiles import nearest_rank, percentile

if TYPE_CHECKING:
    from servinglab.result.result import Result

HALF = 0.5
PIECES = 20


@dataclass(frozen=True, eq=False)
class Level:
    """One level of a ramp, seen through a window of time. Made by `level_of`.

    Attributes
    ----------
    load : float
        Requests per second, as they were really offered, or clients.
    seconds : float
        The window's length.
    arrival_s, latency_s : float arrays of n
        When each request that arrived in the window came, in seconds from the window's start, ascending, and its E2E
        latency; infinite if it never finished.
    finish_s : float array
        Completions in the window, of whichever requests, in seconds from its start.
    unpriced_attention : str or None
        As `Result.unpriced_attention`, of the run that the level shows.
    """

    load: float
    seconds: float
    arrival_s: Floats
    latency_s: Floats
    finish_s: Floats
    unpriced_attention: str | None = None

    @property
    def request_throughput(self) -> float:
        """Completions per second: not the rate that was offered."""
        return len(self.finish_s) / self.seconds

    def percentile(self, q: float) -> float:
        """A nearest-rank percentile of the latencies."""
        return percentile(self.latency_s, q)


@dataclass(frozen=True)
class Knee:
    """Where a ramp's knee is, and how sure of it we are.

    Attributes
    ----------
    load : float or None
        The last level before the first step past the knee; None if no step is.
    next_load : float or None
        The level after it: the knee lies between the two.
    confidence : float
    low, high : float or None
        The levels between which the knee lies in that share of the draws; None stands for "not reached".
    shares : mapping of (float or None) to float
        The share of draws that gives each level.
    reason : str
        The rule's verdict in one sentence, with the numbers.
    """

    load: float | None
    next_load: float | None
    confidence: float
    low: float | None
    high: float | None
    shares: Mapping[float | None, float]
    reason: str

    def __str__(self) -> str:
        def name(load: float | None) -> str:
            return "beyond the last level" if load is None else f"{load:.4g}"

        between = "" if self.load is None else f", before {name(self.next_load)}"
        spread = f"{100 * self.confidence:g} % of resamples: {name(self.low)}"
        spread += "" if self.low == self.high else f" to {name(self.high)}"
        return f"{name(self.load)}{between} ({spread}); {self.reason}"


def level_of(result: Result, load: float | None = None, from_s: float = 0.0, until_s: float | None = None) -> Level:
    """The level that a run shows through a window.

    Latencies are of the requests that *arrive* in the window, so that the slow ones aren't dropped; throughput counts
    what *finishes* in it.

    Parameters
    ----------
    result : Result
        Simulated or measured.
    load : float, optional
        What was offered: clients of a closed loop, or a rate that is known better than from one run. If not given,
        requests per second as they came in the window.
    from_s, until_s : float, s
        The window, on the result's clock; until the last arrival if not given. Cut the warm-up and, in an open loop,
        nothing else; what is cut is cut by arrival. Of a level of fixed length (`timed_arrivals`) give its end.

    Raises
    ------
    ValueError
        If nobody arrives in the window.

    Examples
    --------
    >>> import servinglab as sl
    >>> served = sl.simulate(sl.poisson(20, 1000, seed=1), sl.StaticBatching(20), sl.AffineStep(0.4, 0.02))
    >>> level = level_of(served, load=20, from_s=10)
    >>> round(level.request_throughput, 1), round(level.percentile(0.5), 2)
    (19.9, 1.27)
    """
    if load is not None:
        check_number("load", load, gt=0)
    begin = check_number("from_s", from_s, ge=0)
    arrivals = result.arrival_s
    end = float(np.nanmax(arrivals, initial=begin)) if until_s is None else check_number("until_s", until_s, gt=begin)
    inside = (arrivals >= begin) & (arrivals <= end)
    if not inside.any() or end <= begin:
        raise ValueError(f"from_s and until_s must hold arrivals between them; none came from {begin:g} to {end:g} s")
    order = np.flatnonzero(inside)[np.argsort(arrivals[inside], kind="stable")]
    latency = np.where(result.finished, result.e2e_s, np.inf)[order]
    finish = result.finish_s[result.finished]
    finish = np.sort(finish[(finish >= begin) & (finish <= end)])
    offered = len(order) / (end - begin) if load is None else float(load)
    return Level(offered, end - begin, arrivals[order] - begin, latency, finish - begin, result.unpriced_attention)


def find_knee(
    levels: Sequence[Level], *, q: float = 0.99, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Knee:
    """The knee of a ramp by the rule at the top of this module, with its uncertainty.

    Parameters
    ----------
    levels : sequence of Level
        At least two, of rising load.
    q : float
        Of the percentile that is watched; 0 < q < 1.
    confidence : float
        Of the interval; between 0 and 1.
    resamples : int
        Draws of the bootstrap.
    seed : int
        Of the draws.

    Raises
    ------
    ValueError
        If there are fewer than two levels or their load doesn't rise.

    Examples
    --------
    Eight clients are all that a server of 1 s and 8 places can use:

    >>> def level(clients):
    ...     latency = max(1.0, clients / 8)
    ...     times = np.arange(0, 100, latency / clients)
    ...     return Level(clients, 100.0, times, np.full(len(times), latency), times)
    >>> knee = find_knee([level(clients) for clients in (1, 2, 4, 8, 16, 32)])
    >>> knee.load, knee.next_load, knee.shares
    (8.0, 16.0, {8.0: 1.0})
    """
    check_number("q", q, gt=0, lt=1)
    check_number("confidence", confidence, gt=0, lt=1)
    draws = check_number("resamples", resamples, ge=1, integer=True)
    loads = np.array([level.load for level in levels], np.float64)
    if len(levels) < 2 or (np.diff(loads) <= 0).any():
        raise ValueError(
            f"levels must be at least two, each of a higher load than the one before; got {loads.tolist()}"
        )
    rates = np.array([level.request_throughput for level in levels])
    tails = np.array([level.percentile(q) for level in levels])
    step = _first_step(loads, rates, tails)
    rng = np.random.default_rng(seed)
    drawn = [_resample(level, q, draws, rng) for level in levels]
    each = [
        _first_step(loads, np.array([r[d] for r, _ in drawn]), np.array([t[d] for _, t in drawn])) for d in range(draws)
    ]

    def load(step: int | None) -> float | None:
        return None if step is None else float(loads[step])

    ranked = sorted(len(levels) if step is None else step for step in each)
    ends = [ranked[nearest_rank(p, draws) - 1] for p in ((1 - confidence) / 2, (1 + confidence) / 2)]
    low, high = (None if end == len(levels) else float(loads[end]) for end in ends)
    counts = Counter(each)
    return Knee(
        load=load(step),
        next_load=None if step is None else float(loads[step + 1]),
        confidence=confidence,
        low=low,
        high=high,
        shares={load(step): count / draws for step, count in counts.most_common()},
        reason=_reason(step, loads, rates, tails, q),
    )


def _first_step(loads: Floats, rates: Floats, tails: Floats) -> int | None:
    """The number of the level before the first step past the knee."""
    for k in range(len(loads) - 1):
        more = math.log(loads[k + 1] / loads[k])
        if _gain(rates[k], rates[k + 1]) < HALF * more and _gain(tails[k], tails[k + 1]) > HALF * more:
            return k
    return None


def _gain(before: float, after: float) -> float:
    """The logarithm of a factor; of nothing, or of what is infinite already, as large as it can be."""
    if after == before:
        return 0.0
    if math.isinf(after) or before == 0:
        return math.inf
    return -math.inf if math.isinf(before) or after == 0 else math.log(after / before)


def _resample(level: Level, q: float, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Throughputs and percentiles of runs put together from pieces of this one, drawn with replacement."""
    edges = np.linspace(0, level.seconds, PIECES + 1)[1:-1]
    times = rng.multinomial(PIECES, np.full(PIECES, 1 / PIECES), draws)  # how often each piece is drawn
    finished = np.bincount(np.searchsorted(edges, level.finish_s, "right"), minlength=PIECES)
    rates = times @ finished / level.seconds
    order = np.argsort(level.latency_s, kind="stable")
    piece = np.searchsorted(edges, level.arrival_s, "right")[order]
    ordered = level.latency_s[order]
    tails = np.empty(draws)
    for d in range(draws):
        reached = np.cumsum(times[d][piece])
        total = int(reached[-1])
        tails[d] = ordered[np.searchsorted(reached, nearest_rank(q, total), "left")] if total else np.inf
    return rates, tails


def _reason(step: int | None, loads: Floats, rates: Floats, tails: Floats, q: float) -> str:
    if step is None:
        return "in no step does throughput gain less, and the tail more, than half of what the load gains"
    names = ("load", "throughput", f"P{100 * q:g}")
    factors = [
        f"{name} × {column[step + 1] / column[step]:.3g}"
        for name, column in zip(names, (loads, rates, tails), strict=True)
    ]
    return f"from there to the next level {', '.join(factors)}"
