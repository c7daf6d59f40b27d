"""From a `Result` to the numbers one decides with.

What counts as what:

- P99 is the nearest rank, inf{x : F(x) ≥ 0.99}; other rules go by name.
- TTFT, E2E and the wait count from a request's arrival. TPOT is a request's (last − first token)/(N − 1); ITL
  pools the gaps between tokens, so it is weighted by tokens.
- A request that didn't finish stays in every denominator. It is never good, and where its latency is missing
  it ranks above every latency that was measured, so dropping requests can't improve a percentile. Means and
  maxima are of what was measured; the missing are counted beside them.
- A request of one token has no TPOT: it is left out of TPOT's row, passes a TPOT limit, and is counted.

What isn't here: how sure of a number we are (`servinglab.metrics.intervals`), and how it changes over time
(`servinglab.metrics.windows`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.metrics.rates import output_throughput, per_second, request_throughput, whole_run
from servinglab.workload.outcomes import Status

if TYPE_CHECKING:
    from servinglab.result.result import Result

from servinglab.base.text import show_number
from servinglab.metrics.percentiles import nearest_rank, values_at_ranks
from servinglab.metrics.slo import SLO_NAMES, check_slo, within_limits


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
        How many requests ended with which `Status`, by name; FINISHED, UNSERVED and REJECTED always, others if any did.
    one_token : int
        Requests of one output token: without a TPOT.
    duration_s : float
        From the first arrival to the last event: `servinglab.metrics.rates.whole_run`.
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
    unpriced_attention : str or None
        That prompts are longer than the step time can price, in one line, as `Result.unpriced_attention` says it.
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
    unpriced_attention: str | None = None

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
        shown = {name: count for name, count in self.by_status.items() if count or name != Status.REJECTED.name}
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
        if self.unpriced_attention:
            facts.append(("note", self.unpriced_attention))
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
    n, window = len(result), whole_run(result)
    one_token = result.output_tokens <= 1
    gaps, tokens = _itl(result)
    latencies_s = {name: getattr(result, name) for name in SLO_NAMES}
    good: int | None = None
    if slo is not None:
        slo = check_slo(slo)
        good = int(np.count_nonzero(within_limits(result, slo, latencies_s)))
    return Summary(
        requests=n,
        by_status=_by_status(result),
        one_token=int(np.count_nonzero(one_token)),
        duration_s=result.duration_s,
        request_throughput=request_throughput(result),
        output_throughput=output_throughput(result),
        ttft_s=spread_of(latencies_s["ttft_s"]),
        tpot_s=spread_of(latencies_s["tpot_s"][~one_token]),
        itl_s=weighted_spread_of(gaps, tokens),
        e2e_s=spread_of(latencies_s["e2e_s"]),
        wait_s=spread_of(result.wait_s) if _tells_wait(result) else _NOTHING,
        preemptions=int(result.preemptions.sum()),
        rejected_because=_reasons(result),
        **_from_log(result),
        slo=None if slo is None else dict(slo),
        good_requests=good,
        request_goodput=None if good is None else per_second(good, window),
        good_request_fraction=None if good is None else (good / n if n else math.nan),
        unpriced_attention=result.unpriced_attention,
    )


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
    log, window = result.segments, whole_run(result)
    names = ("mean_batch_size", "busy_fraction", "mean_in_system", "mean_kv_usage", "max_kv_usage")
    if log is None or not (facts := result.log_facts).steps:
        return {**dict.fromkeys(names, math.nan), "kv_blocks": None}
    pool = result.setup.usable_blocks
    numbers = (
        facts.running_steps / facts.steps,
        math.nan if result.pots is None else per_second(facts.busy_s, window) / result.pots,
        per_second(facts.in_pots_s + log.waited_s, window),
        math.nan if pool is None else per_second(facts.block_s, window) / pool,
        math.nan if pool is None else facts.most_blocks / pool,
    )
    return {**dict(zip(names, numbers, strict=True)), "kv_blocks": pool}


def _by_status(result: Result) -> dict[str, int]:
    counts, left = {}, len(result)
    for status in Status:
        count = int(np.count_nonzero(result.status == int(status))) if left else 0
        left -= count
        if count or status in (Status.FINISHED, Status.UNSERVED, Status.REJECTED):
            counts[status.name] = count
    return counts


def _reasons(result: Result) -> dict[str, int]:
    """Why requests were turned away. A reason begins with what is the request's own: its tokens or blocks."""
    counts = Counter(re.sub(r"^\d+ ", "", reason) for reason in result.rejections.values())
    return dict(counts.most_common())


def spread_of(column_s: Floats) -> Spread:
    """Of a column with NaN for the missing, which is left in another order."""
    nothing = np.isnan(column_s)
    missing = int(np.count_nonzero(nothing))
    n, measured = len(column_s), column_s[~nothing] if missing else column_s
    if not n:
        return _NOTHING
    mean, longest = (float(measured.mean()), float(measured.max())) if len(measured) else (math.nan, math.nan)
    p50, p90, p99 = values_at_ranks(measured, [nearest_rank(q, n) for q in (0.5, 0.9, 0.99)])
    return Spread(n - missing, missing, mean, p50, p90, p99, longest)


def weighted_spread_of(values: Floats, weights: npt.NDArray[np.int64]) -> Spread:
    """Of values in ascending order that each occur `weights` times, at least once."""
    if not len(values):
        return _NOTHING
    reached = np.cumsum(weights)
    total = int(reached[-1])
    p50, p90, p99 = (float(values[np.searchsorted(reached, nearest_rank(q, total))]) for q in (0.5, 0.9, 0.99))
    return Spread(total, 0, float((values * weights).sum()) / total, p50, p90, p99, float(values[-1]))
