"""What did the last minute look like, as it could be known at its end?

A window that counts only what finished in it is blind just when it matters: while a queue stalls, those who wait
longest haven't finished, and the few who did are the lucky ones. Here whoever is still inside counts too, with the time
waited so far. That is less than its latency will be, so a windowed percentile is a lower bound: it never raises a false
alarm for these requests, and it rises with the clock as soon as something hangs.

What it doesn't undo: a request that came a moment ago counts as waiting for a moment, which dilutes the others. To ask
only whether a limit is kept, use `windowed_attainment`, which counts a request once its fate is decided, and isn't
diluted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats, Ints
from servinglab.base.checks import check_choice, check_number
from servinglab.metrics.percentiles import percentile
from servinglab.workload.outcomes import NEVER, TURNED_AWAY

if TYPE_CHECKING:
    from servinglab.result.result import Result

_ENDS = {"ttft_s": "first_token_ns", "e2e_s": "finish_ns"}
_NOT_YET = np.iinfo(np.int64).max
_MOST_WINDOWS = 10_000_000  # beyond that, a slip of the units


@dataclass(frozen=True, eq=False)
class WindowedPercentile:
    """A percentile over time, one entry per window.

    Attributes
    ----------
    end_s : float array
        When each window ends, and what it shows is known.
    value_s : float array
        The percentile of the latencies that ended in the window and of the time waited so far by those still inside;
        infinite where more than 1 − q of them were rejected, NaN in an empty window.
    finished_only_s : float array
        The same without those still inside: what it would be blind to.
    finished, unfinished : int arrays
        How many latencies ended in the window (rejected requests count), and how many requests were inside at its end.
    """

    end_s: Floats
    value_s: Floats
    finished_only_s: Floats
    finished: Ints
    unfinished: Ints


def windowed_percentile(
    result: Result, window_s: float, every_s: float | None = None, q: float = 0.99, metric: str = "e2e_s"
) -> WindowedPercentile:
    """The percentile of a latency in each window, those who are still inside included.

    Parameters
    ----------
    result : Result
        Simulated or measured, with at least one request.
    window_s : float
        Length of a window, > 0.
    every_s : float, optional
        From one window's end to the next, > 0; `window_s` if not given, so that windows don't overlap.
    q : float
        A fraction, 0 < q ≤ 1.
    metric : {"e2e_s", "ttft_s"}
        Up to the last or to the first token. (A TPOT isn't known to be late before it ends.)

    Returns
    -------
    WindowedPercentile

    Examples
    --------
    A pot stalls: six orders come, one a second, and the first takes ten seconds.

    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0, 1, 2, 3, 4, 5], service_scale=[10, 1, 1, 1, 1, 1])
    >>> served = sl.simulate(orders, sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0))
    >>> seen = windowed_percentile(served, window_s=5, q=0.9)
    >>> seen.value_s.tolist()
    [5.0, 10.0, 10.0]
    >>> seen.finished_only_s.tolist()
    [nan, 10.0, 10.0]
    """
    fraction = check_number("q", q, gt=0, le=1)
    rows = []
    for now, ended, waiting in _windows(result, window_s, every_s, metric):
        known = ended / 1e9
        known[ended == _NOT_YET] = np.inf  # rejected
        both = np.concatenate([known, waiting / 1e9])
        rows.append(
            (
                now,
                percentile(both, fraction) if both.size else np.nan,
                percentile(known, fraction) if known.size else np.nan,
                ended.size,
                waiting.size,
            )
        )
    end, value, only, finished, unfinished = (np.array(column) for column in zip(*rows, strict=True))
    return WindowedPercentile(end, value, only, finished, unfinished)


@dataclass(frozen=True, eq=False)
class WindowedAttainment:
    """How many requests kept a limit, one entry per window.

    Attributes
    ----------
    end_s : float array
        When each window ends, and what it shows is known.
    good, late : int arrays
        Requests whose fate was decided in the window: ended within the limit; or passed it, ended or not, or rejected.
    fraction : float array
        good / (good + late); NaN where nothing was decided.
    """

    end_s: Floats
    good: Ints
    late: Ints

    @property
    def fraction(self) -> Floats:
        decided = self.good + self.late
        return np.where(decided, self.good / np.maximum(decided, 1), np.nan)


def windowed_attainment(
    result: Result, limit_s: float, window_s: float, every_s: float | None = None, metric: str = "e2e_s"
) -> WindowedAttainment:
    """The share of requests within a limit, each counted in the window in which its fate was decided.

    A request is good when it ends within the limit, and late at the moment at which it has waited longer: nobody waits
    for a hung request to finish. Over windows that don't overlap every request counts once, so their sums are the whole
    run's. A P99 within the limit is a fraction of at least 0.99.

    Parameters
    ----------
    result, window_s, every_s, metric
        As in `windowed_percentile`.
    limit_s : float
        > 0.

    Returns
    -------
    WindowedAttainment

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0, 1, 2, 3, 4, 5], service_scale=[10, 1, 1, 1, 1, 1])
    >>> served = sl.simulate(orders, sl.ContinuousBatching(1), sl.AffineStep(1.0, 0.0))
    >>> seen = windowed_attainment(served, limit_s=4.5, window_s=5)
    >>> seen.late.tolist(), seen.good.tolist()
    ([1, 5], [0, 0])
    """
    arrival, end, rejected = _times(result, metric)
    limit = round(check_number("limit_s", limit_s, gt=0, le=9e9) * 1e9)
    late = (end == _NOT_YET) | (end - arrival > limit)
    decided = np.where(late, arrival + limit, end)
    decided[rejected] = arrival[rejected]
    window, ends = _ends(decided, window_s, every_s)

    def count(moments: Ints) -> Ints:
        ordered = np.sort(moments)
        return np.searchsorted(ordered, ends, "right") - np.searchsorted(ordered, ends - window, "right")

    return WindowedAttainment(ends / 1e9, count(decided[~late]), count(decided[late]))


def _windows(result: Result, window_s: float, every_s: float | None, metric: str) -> Iterator[tuple[float, Ints, Ints]]:
    """Each window's end in seconds, the latencies that ended in it and the ages of those inside, in nanoseconds."""
    arrival, end, rejected = _times(result, metric)
    latency = np.where(end == _NOT_YET, _NOT_YET, end - arrival)
    moment = np.where(rejected, arrival, end)  # when it was over
    came = np.argsort(arrival, kind="stable")
    arrival, gone = arrival[came], moment[came]
    all_gone = np.maximum.accumulate(gone)
    by_end = np.argsort(moment, kind="stable")
    moment, latency = moment[by_end], latency[by_end]
    known = moment[moment != _NOT_YET]
    window, ends = _ends(np.append(known, arrival), window_s, every_s)
    for now in ends.tolist():
        first, last = np.searchsorted(known, [now - window, now], "right")
        oldest, newest = np.searchsorted(all_gone, now, "right"), np.searchsorted(arrival, now, "right")
        inside = slice(oldest, max(oldest, newest))
        yield now / 1e9, latency[first:last], now - arrival[inside][gone[inside] > now]


def _times(result: Result, metric: str) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Arrivals and ends, `_NOT_YET` where there was none, of all who came; and who was turned away."""
    check_choice("metric", metric, tuple(_ENDS))
    came = result.arrival_ns != NEVER
    if not came.any():
        raise ValueError("result must hold at least one request that came; got none")
    end = np.asarray(getattr(result, _ENDS[metric]), np.int64)[came]
    rejected = np.isin(result.status, TURNED_AWAY)[came]
    return np.asarray(result.arrival_ns, np.int64)[came], np.where(end == NEVER, _NOT_YET, end), rejected


def _ends(moments: Ints, window_s: float, every_s: float | None) -> tuple[int, Ints]:
    """The window in nanoseconds, and windows' ends that together see every moment."""
    window = check_number("window_s", window_s, ge=1e-9, le=9e9)
    every = window if every_s is None else check_number("every_s", every_s, ge=1e-9, le=9e9)
    step = round(every * 1e9)
    count = max(1, -(-int(moments.max()) // step))
    if count > _MOST_WINDOWS:
        raise ValueError(
            f"{'window_s' if every_s is None else 'every_s'} must give at most {_MOST_WINDOWS:,} windows over the run; "
            f"got {count:,}"
        )
    return round(window * 1e9), step * np.arange(1, count + 1, dtype=np.int64)
