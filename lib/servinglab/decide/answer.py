"""The answer to "which batch keeps this promise?", and how it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from servinglab.base.text import show_number
from servinglab.decide.formulas import BatchFormula
from servinglab.metrics.intervals import PercentileInterval
from servinglab.scheduling.schedulers import Scheduler

_MOST_ROWS = 16  # of the printed table


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
    unpriced_attention : str or None
        That prompts are longer than the step time can price, in one line; see `servinglab.step_time.prompt_attention`.
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
    unpriced_attention: str | None = None

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
                lines.append(f"smallest   {settings_as_text(best.settings)}: {self._measured(best)}")
            if self.hopeless:
                lines.append(f"alone      {times_as_text(self.alone)}: no request keeps the promise, even alone")
            lines += [f"{'would do' if not i else '':<11}{self._remedy(each)}" for i, each in enumerate(self.remedies)]
        else:
            sure = "" if self.choice.verdict == "meets" else ", but no run was long enough to be sure"
            lines.append(f"answer     {settings_as_text(self.choice.settings)}{sure}")
            lines.append(f"then       {self._measured(self.choice)}")
        if self.formula is not None:
            paper = {"formula": self.formula.batch_size, "exact gathering, no queue": self.gathering}
            lines.append("on paper   " + ", ".join(f"{what}: {size or 'none'}" for what, size in paper.items()))
        if self.unpriced_attention:
            lines.append(f"note       {self.unpriced_attention}")
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
        at = f"{settings_as_text(each.settings)}: {times_as_text(each.percentiles)}"
        if each.what == "limit":
            return f"a limit of {times_as_text(each.percentiles)}, with {settings_as_text(each.settings)}"
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


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def settings_as_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in settings.items())


def times_as_text(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removesuffix('_s')} {show_number(value)} s" for name, value in times.items())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True)) for row in rows]
