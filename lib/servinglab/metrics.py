"""From a `Result` to the numbers one decides with.

What counts as what:

- P99 is the nearest rank, inf{x : F(x) ≥ 0.99}; other rules go by name.
- TTFT, E2E and the wait count from a request's arrival. TPOT is a request's (last − first token)/(N − 1); ITL
  pools the gaps between tokens, so it is weighted by tokens.
- A request that didn't finish stays in every denominator. It is never good, and where its latency is missing
  it ranks above every latency that was measured, so dropping requests can't improve a percentile. Means and
  maxima are of what was measured; the missing are counted beside them.
- A request of one token has no TPOT: it is left out of TPOT's row, passes a TPOT limit, and is counted.

What isn't here: how sure of a number we are (`servinglab.intervals`), and how it changes over time
(`servinglab.windows`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._checks import check_choice, check_number

if TYPE_CHECKING:
    from .result import Result

Floats = npt.NDArray[np.float64]

RULES = ("nearest_rank", "linear", "demo")
SLO_NAMES = ("ttft_s", "tpot_s", "e2e_s")


# Percentiles


def percentile(values: npt.ArrayLike, q: float, rule: str = "nearest_rank") -> float:
    """The value that a fraction `q` of the values don't exceed.

    Parameters
    ----------
    values : array of n ≥ 1 numbers
        In any order; infinite ones are allowed.
    q : float
        A fraction, 0 < q ≤ 1, for example 0.99.
    rule : {"nearest_rank", "linear", "demo"}
        nearest_rank: inf{x : F(x) ≥ q}, the ⌈q·n⌉-th smallest; always a value that occurred. The rank is
        computed exactly, with q as the decimal fraction it was written as. linear: numpy's default, between
        the two values around position q·(n − 1). demo: the first document's ``sorted(values)[int(q * n) -
        1]``, which rounds the rank down.

    Raises
    ------
    ValueError
        If there are no values, one is NaN, q is out of range, or rule "demo" has no rank (q·n < 1).

    Examples
    --------
    >>> [percentile(range(1, 11), q) for q in (0.9, 0.99)]
    [9.0, 10.0]
    >>> [round(percentile(range(1, 11), q, rule="linear"), 2) for q in (0.9, 0.99)]
    [9.1, 9.91]
    >>> percentile(range(1, 11), 0.99, rule="demo")
    9.0
    """
    ordered = np.sort(check_numbers("values", values))
    fraction = check_number("q", q, gt=0, le=1)
    check_choice("rule", rule, RULES)
    n = len(ordered)
    if rule == "linear":
        place = fraction * (n - 1)
        low = min(int(place), n - 1)
        below, above = float(ordered[low]), float(ordered[min(low + 1, n - 1)])
        return below if above == below else below + (place - low) * (above - below)
    if rule == "demo":
        if int(fraction * n) < 1:
            raise ValueError(f'rule="demo" needs q * n >= 1, its index would be -1; got q={q!r} and n={n}')
        return float(ordered[int(fraction * n) - 1])
    return float(ordered[_rank(fraction, n) - 1])


def weighted_percentile(values: npt.ArrayLike, weights: npt.ArrayLike, q: float) -> float:
    """The nearest-rank percentile of values that each occur `weights` times: inf{x : F(x) ≥ q}.

    For the ITL of `Result.itl`: the gaps are the values, and the tokens that came after each gap the weights.

    Parameters
    ----------
    values : array of n ≥ 1 numbers
    weights : array of n numbers ≥ 0
        Not all 0. With whole weights the rank is exact.
    q : float
        A fraction, 0 < q ≤ 1.

    Examples
    --------
    >>> weighted_percentile([20.0, 26.7], [6, 3], 0.5)
    20.0
    """
    numbers, counts = check_numbers("values", values), np.asarray(weights)
    if counts.dtype.kind not in "iubf":
        raise ValueError(f"weights must be numbers; got {weights!r:.60}")
    fraction = check_number("q", q, gt=0, le=1)
    if counts.shape != numbers.shape:
        raise ValueError(f"weights must be as many as values, {len(numbers)}; got {counts.size}")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and (counts > 0).any()):
        raise ValueError("weights must be finite numbers >= 0, and not all 0")
    order = np.argsort(numbers, kind="stable")
    reached = np.cumsum(counts[order])
    if counts.dtype.kind in "iub":
        needed = float(_rank(fraction, int(reached[-1])))
    else:
        needed = fraction * float(reached[-1]) * (1 - 1e-12)
    return float(numbers[order][np.searchsorted(reached, needed, "left")])


# Little's law


@dataclass(frozen=True)
class Little:
    """Both sides of L = λ·W for one run, from two sources.

    Attributes
    ----------
    mean_in_system : float
        L: the number of requests present, integrated from the log of steps over the run's time, divided by
        it.
    rate_rps : float
        λ: requests per second of that time.
    mean_latency_s : float
        W: the mean E2E latency of the requests.
    """

    mean_in_system: float
    rate_rps: float
    mean_latency_s: float

    @property
    def gap(self) -> float:
        """(λ·W − L)/L: 0 but for rounding."""
        return self.rate_rps * self.mean_latency_s / self.mean_in_system - 1


def little(result: Result) -> Little:
    """L from the log of steps, λ and W from the rows of requests.

    J. D. C. Little, "A proof for the queuing formula: L = λW", *Operations Research* 9 (1961) 383–387. Over a
    run that begins and ends empty the law is an identity, whatever the arrivals and the scheduler, so a gap
    is a mistake in the log or in the rows.

    Parameters
    ----------
    result : Result
        A run with a log, in which every request finished.

    Raises
    ------
    ValueError
        If the run is empty, has no log, or some request didn't finish: who is still inside has no latency
        yet.

    Examples
    --------
    >>> import servinglab as sl
    >>> served = sl.simulate(sl.poisson(20, 1000, seed=1), sl.StaticBatching(20), sl.AffineStep(0.4, 0.02))
    >>> abs(little(served).gap) < 1e-9
    True
    """
    n, done = len(result), int(result.finished.sum())
    if result.segments is None:
        raise ValueError("result must have a log of steps: segments is None")
    if n == 0 or done < n:
        raise ValueError(f"result must hold at least one request, all finished; got {done} finished of {n}")
    return Little(
        mean_in_system=result.segments.request_seconds / result.duration_s,
        rate_rps=n / result.duration_s,
        mean_latency_s=float(result.e2e_s.mean()),
    )


# The summary


@dataclass(frozen=True)
class Spread:
    """One latency over all requests (or, for ITL, over all tokens).

    Attributes
    ----------
    count : int
        How many values were measured.
    missing : int
        Requests that should have a value but never got so far.
    mean, max : float
        Of the measured values; NaN if there are none.
    p50, p90, p99 : float
        Nearest rank, with the missing ranked as infinite; NaN if there is nothing to rank.
    """

    count: int
    missing: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


_NOTHING = Spread(0, 0, math.nan, math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Summary:
    """What a run comes to. Printing it gives a table.

    Attributes
    ----------
    requests : int
        All of them, finished or not.
    by_status : dict
        How many requests ended with which `Status`, by name.
    one_token : int
        Requests of one output token: without a TPOT.
    duration_s : float
        From time 0, when the doors open, to the last finish; NaN if nothing finished.
    request_throughput, output_throughput : float
        Finished requests, and their output tokens, per second of the duration.
    ttft_s, tpot_s, itl_s, e2e_s, wait_s : Spread
    mean_batch_size : float
        Requests with tokens to come, averaged over steps; NaN without a log.
    busy_fraction : float
        The share of the pots' time spent on steps; NaN with endless pots or without a log.
    mean_in_system : float
        Requests in the line and in the pots, averaged over the duration; NaN without a log.
    preemptions : int
        How often a request lost its blocks to make room for another.
    rejected_because : dict
        How many requests were turned away for which reason, the commonest first.
    kv_blocks : int or None
        The pool's blocks that requests can use; None where no pool is modelled.
    mean_kv_usage, max_kv_usage : float
        Share of them in use, from 0 to 1: averaged over the duration, and in the fullest step; NaN without a pool.
    slo : dict or None
        The limits asked for, in seconds.
    good_requests : int or None
        Finished requests within every limit. The three are None without an SLO.
    request_goodput : float or None
        Good requests per second of the duration.
    good_request_fraction : float or None
        Good requests among all requests.
    """

    requests: int
    by_status: dict[str, int]
    one_token: int
    duration_s: float
    request_throughput: float
    output_throughput: float
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    wait_s: Spread
    mean_batch_size: float
    busy_fraction: float
    mean_in_system: float
    preemptions: int
    rejected_because: dict[str, int]
    kv_blocks: int | None
    mean_kv_usage: float
    max_kv_usage: float
    slo: dict[str, float] | None = None
    good_requests: int | None = None
    request_goodput: float | None = None
    good_request_fraction: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries under the same names; None for what is undefined (NaN)."""

        def plain(value: Any) -> Any:
            if isinstance(value, Spread):
                return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
            return None if isinstance(value, float) and math.isnan(value) else value

        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def __str__(self) -> str:
        facts, (header, *rows) = self._facts(), self._spreads()
        wide = max(len(name) for name, _ in facts)
        room = max(10, *(2 + len(cell) for row in rows for cell in row[1:]))
        lines = [f"{name:<{wide}}  {value}" for name, value in facts]
        lines += [
            "",
            *("".join([f"{row[0]:<8}", *(f"{cell:>{room}}" for cell in row[1:])]) for row in [header, *rows]),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def table(rows: list[list[str]], head: list[str] | None = None) -> str:
            top = "".join(f"<th>{cell}</th>" for cell in head or [])
            body = "".join(
                f"<tr><th>{row[0]}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
            )
            return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"

        header, *rows = self._spreads()
        return table([list(fact) for fact in self._facts()]) + table(rows, header)

    def _facts(self) -> list[tuple[str, str]]:
        shown = {name: count for name, count in self.by_status.items() if count or name != "REJECTED"}
        statuses = ", ".join(f"{count:,} {name.lower()}" for name, count in shown.items())
        facts = [
            ("requests", f"{self.requests:,} ({statuses})"),
            ("duration", f"{show_number(self.duration_s)} s"),
            ("request_throughput", f"{show_number(self.request_throughput)} requests/s"),
            ("output_throughput", f"{show_number(self.output_throughput)} tokens/s"),
            ("mean_batch_size", f"{show_number(self.mean_batch_size)} requests/step"),
            ("busy_fraction", show_number(self.busy_fraction)),
            ("mean_in_system", f"{show_number(self.mean_in_system)} requests"),
        ]
        if self.kv_blocks is not None:
            shares = f"{100 * self.mean_kv_usage:.1f} % on average, {100 * self.max_kv_usage:.1f} % at most"
            facts.append(("kv_usage", f"{shares} of {self.kv_blocks:,} blocks"))
        if self.preemptions or self.kv_blocks is not None:
            facts.append(("preemptions", f"{self.preemptions:,}"))
        if self.rejected_because:
            (reason, count), *others = self.rejected_because.items()
            other = f"; {sum(other for _, other in others):,} for other reasons" if others else ""
            facts.append(("rejected", f"{count:,}: {reason}{other}"))
        if self.one_token:
            facts.append(("one_token", f"{self.one_token:,} requests, without TPOT"))
        if self.slo is not None:
            assert self.request_goodput is not None and self.good_request_fraction is not None
            limits = ", ".join(f"{name} <= {limit:g}" for name, limit in self.slo.items()) or "finished"
            facts += [
                ("slo", limits),
                ("request_goodput", f"{show_number(self.request_goodput)} requests/s"),
                (
                    "good_request_fraction",
                    f"{show_number(self.good_request_fraction)} ({self.good_requests:,} requests)",
                ),
            ]
        return facts

    def _spreads(self) -> list[list[str]]:
        table = [["seconds", "mean", "P50", "P90", "P99", "max", "count", "missing"]]
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "wait_s"):
            s: Spread = getattr(self, name)
            numbers = [show_number(x) for x in (s.mean, s.p50, s.p90, s.p99, s.max)]
            table.append([name.removesuffix("_s"), *numbers, f"{s.count:,}", f"{s.missing:,}"])
        return table


def summarize(result: Result, slo: Mapping[str, float] | None = None) -> Summary:
    """Counts, throughput, latencies and, with limits, goodput of a run.

    Parameters
    ----------
    result : Result
        Simulated or measured. Without a log of steps, the batch size, the busy fraction and the number in
        system are NaN.
    slo : mapping, optional
        Limits in seconds, each > 0, under the names ``ttft_s``, ``tpot_s`` and ``e2e_s``; a request must keep
        all of them. An empty mapping asks only that it finished.

    Raises
    ------
    ValueError
        If a limit has another name or isn't > 0.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.3])
    >>> served = sl.simulate(orders, sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02))
    >>> summary = summarize(served, slo={"e2e_s": 0.6})
    >>> summary.e2e_s.p50, summary.e2e_s.max, summary.good_requests, summary.one_token
    (0.54, 0.66, 2, 3)
    """
    from .result import Status

    n, done = len(result), result.finished
    duration = result.duration_s
    one_token = result.output_tokens <= 1
    gaps, tokens = _itl(result)
    latencies_s = {name: getattr(result, name) for name in SLO_NAMES}
    good: int | None = None
    if slo is not None:
        slo = check_slo(slo)
        good = int(np.count_nonzero(_good(result, slo, latencies_s)))
    return Summary(
        requests=n,
        by_status={status.name: int(np.count_nonzero(result.status == int(status))) for status in Status},
        one_token=int(np.count_nonzero(one_token)),
        duration_s=duration,
        request_throughput=int(np.count_nonzero(done)) / duration,
        output_throughput=int(result.output_tokens.sum(where=done)) / duration,
        ttft_s=_spread(latencies_s["ttft_s"]),
        tpot_s=_spread(latencies_s["tpot_s"][~one_token]),
        itl_s=_weighted_spread(gaps, tokens),
        e2e_s=_spread(latencies_s["e2e_s"]),
        wait_s=_spread(result.wait_s) if _tells_wait(result) else _NOTHING,
        preemptions=int(result.preemptions.sum()),
        rejected_because=_reasons(result),
        **_from_log(result),
        slo=None if slo is None else dict(slo),
        good_requests=good,
        request_goodput=None if good is None else good / duration,
        good_request_fraction=None if good is None else (good / n if n else math.nan),
    )


def good_requests(result: Result, slo: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Which requests finished within every limit of `slo`, by the rules of `summarize`.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.3])
    >>> served = sl.simulate(orders, sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02))
    >>> good_requests(served, {"e2e_s": 0.6}).tolist()
    [True, True, False]
    """
    slo = check_slo(slo)
    return _good(result, slo, {name: getattr(result, name) for name in slo})


def check_slo(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits as plain numbers, if each has a name that is known and is > 0 s.

    Examples
    --------
    >>> check_slo({"ttft_s": 2})
    {'ttft_s': 2.0}
    """
    if not isinstance(slo, Mapping):
        raise ValueError(f"slo must map names of latencies to limits in s, such as {{'ttft_s': 2.0}}; got {slo!r}")
    for name in slo:
        check_choice("slo's names", name, SLO_NAMES)
    return {name: check_number(f"slo[{name!r}]", limit, gt=0) for name, limit in slo.items()}


def _good(result: Result, slo: Mapping[str, float], latencies_s: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    good = result.finished  # a new array
    for name, limit in slo.items():
        within = latencies_s[name] <= limit  # False for NaN
        good &= within | (result.output_tokens <= 1) if name == "tpot_s" else within
    return good


def _itl(result: Result) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Gaps and tokens; nothing for a measured run that has neither a log nor gaps."""
    if result.segments is None and result.streaming and not len(result.late_gaps[0]):
        return np.zeros(0), np.zeros(0, np.int64)
    return result.itl()


def _tells_wait(result: Result) -> bool:
    """False for a run measured from outside: a client doesn't see its request's first step."""
    return not (result.finished & (result.scheduled_ns < 0)).any()


def _from_log(result: Result) -> dict[str, Any]:
    """Averages over steps and over time, and the share of the pool's blocks in use; NaN where no log tells."""
    log, duration = result.segments, result.duration_s
    names = ("mean_batch_size", "busy_fraction", "mean_in_system", "mean_kv_usage", "max_kv_usage")
    if log is None or not (facts := result.log_facts).steps:
        return {**dict.fromkeys(names, math.nan), "kv_blocks": None}
    pool = getattr(result.description.get("kv"), "usable_blocks", None)  # one's own comes from a file as text
    numbers = (
        facts.running_steps / facts.steps,
        math.nan if result.pots is None else facts.busy_s / (result.pots * duration),
        (facts.in_pots_s + log.waited_s) / duration,
        math.nan if pool is None else facts.block_s / duration / pool,
        math.nan if pool is None else facts.most_blocks / pool,
    )
    return {**dict(zip(names, numbers, strict=True)), "kv_blocks": pool}


def _reasons(result: Result) -> dict[str, int]:
    """Why requests were turned away. A reason begins with what is the request's own: its tokens or blocks."""
    counts = Counter(re.sub(r"^\d+ ", "", reason) for reason in result.rejections.values())
    return dict(counts.most_common())


def _spread(column_s: Floats) -> Spread:
    """Of a column with NaN for the missing, which is left in another order."""
    nothing = np.isnan(column_s)
    missing = int(np.count_nonzero(nothing))
    n, measured = len(column_s), column_s[~nothing] if missing else column_s
    if not n:
        return _NOTHING
    mean, longest = (float(measured.mean()), float(measured.max())) if len(measured) else (math.nan, math.nan)
    p50, p90, p99 = _at_ranks(measured, [_rank(q, n) for q in (0.5, 0.9, 0.99)])
    return Spread(n - missing, missing, mean, p50, p90, p99, longest)


def _at_ranks(values: Floats, ranks: list[int]) -> list[float]:
    """The values of ascending ranks, from 1; infinite beyond the last. Each is sought above the one before.

    The values are left in another order.
    """
    found, rest, below = [], values, 0
    for rank in ranks:
        if rank > len(values):
            found.append(math.inf)
            continue
        place = rank - 1 - below
        rest.partition(place)
        found.append(float(rest[place]))
        rest, below = rest[place:], rank - 1
    return found


def _weighted_spread(values: Floats, weights: npt.NDArray[np.int64]) -> Spread:
    """Of values in ascending order that each occur `weights` times, at least once."""
    if not len(values):
        return _NOTHING
    reached = np.cumsum(weights)
    total = int(reached[-1])
    p50, p90, p99 = (float(values[np.searchsorted(reached, _rank(q, total))]) for q in (0.5, 0.9, 0.99))
    return Spread(total, 0, float((values * weights).sum()) / total, p50, p90, p99, float(values[-1]))


def _rank(q: float, n: int) -> int:
    """⌈q·n⌉ in exact arithmetic: 0.07 · 100 is 7, though its float is 7.000000000000001."""
    return max(1, math.ceil(Fraction(q).limit_denominator(10**9) * n))


def check_numbers(name: str, values: npt.ArrayLike) -> Floats:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a sequence of numbers; got {values!r:.60}") from None
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{name} must be a sequence of at least one number; got shape {numbers.shape}")
    if np.isnan(numbers).any():
        raise ValueError(f"{name} must hold no NaN; got {int(np.isnan(numbers).sum())}")
    return numbers


def show_number(x: float) -> str:
    """Four significant digits, without exponents for the sizes that occur; a dash for NaN.

    Examples
    --------
    >>> show_number(1234.5678), show_number(0.00012344), show_number(math.nan)
    ('1,235', '0.0001234', '–')
    """
    if math.isnan(x):
        return "–"
    places = 3 - math.floor(math.log10(abs(x))) if x and math.isfinite(x) else 3
    return f"{x:,.{max(0, places)}f}" if places < 9 else f"{x:.3e}"
