"""How much a second? Throughput, goodput and what is averaged over time, each over a stated window of a run.

There is one window by default, `whole_run`: from the first arrival to the last event. What came before the first
arrival is no part of the run, however late its clock began.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.metrics.slo import good_requests

if TYPE_CHECKING:
    from servinglab.result.result import Result


@dataclass(frozen=True)
class Window:
    """A span of a run's time, or several of them.

    Parameters
    ----------
    spans_s : sequence of (float, float)
        From when until when, in seconds on the result's clock, ascending; an event at either end is inside.

    Examples
    --------
    >>> window = Window([(0.0, 10.0), (20.0, 25.0)])
    >>> window.seconds, window.holds(np.array([3.0, 15.0, 25.0])).tolist()
    (15.0, [True, False, True])
    >>> Window([(5.0, 4.0)])
    Traceback (most recent call last):
    ...
    ValueError: spans_s must ascend; got [(5.0, 4.0)]
    """

    spans_s: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        edges = [edge for span in self.spans_s for edge in span]
        if not edges or any(after < before for before, after in itertools.pairwise(edges)):
            raise ValueError(f"spans_s must ascend; got {list(self.spans_s)}")

    @property
    def seconds(self) -> float:
        """How long it is."""
        return sum(end - begin for begin, end in self.spans_s)

    def holds(self, at_s: Floats) -> npt.NDArray[np.bool_]:
        """Which of these instants are inside; NaN, for what never happened, isn't."""
        inside = np.zeros(at_s.shape, np.bool_)
        for begin, end in self.spans_s:
            inside |= (at_s >= begin) & (at_s <= end)
        return inside


def whole_run(result: Result) -> Window:
    """From the first arrival to the last event of any request; of no time where nobody came.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([10.0, 10.1])
    >>> whole_run(sl.simulate(orders, sl.ContinuousBatching(8), sl.AffineStep(0.5, 0.0))).spans_s
    ((10.0, 11.0),)
    """
    return Window(((0.0, 0.0) if result.span_s is None else result.span_s,))


def per_second(count: float, window: Window) -> float:
    """So many in the window, a second; NaN where it has no length."""
    return count / window.seconds if window.seconds > 0 else math.nan


def request_throughput(result: Result, window: Window | None = None) -> float:
    """Requests that finish in the window, per second of it.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([10.0, 10.1, 10.2, 10.3])
    >>> run = sl.simulate(orders, sl.ContinuousBatching(8), sl.AffineStep(0.5, 0.0))
    >>> request_throughput(run), request_throughput(run, Window([(10.0, 10.5)]))
    (4.0, 2.0)
    """
    return per_second(int(np.count_nonzero(_finishing(result, window))), window or whole_run(result))


def output_throughput(result: Result, window: Window | None = None) -> float:
    """Output tokens of the requests that finish in the window, per second of it."""
    return per_second(int(result.output_tokens.sum(where=_finishing(result, window))), window or whole_run(result))


def total_token_throughput(result: Result, window: Window | None = None) -> float:
    """As `output_throughput`, with the prompts' tokens."""
    tokens = np.add(result.prompt_tokens, result.output_tokens, dtype=np.int64)
    return per_second(int(tokens.sum(where=_finishing(result, window))), window or whole_run(result))


def request_goodput(result: Result, slo: Mapping[str, float], window: Window | None = None) -> float:
    """Requests that finish in the window within every limit of `slo`, per second of it."""
    good = good_requests(result, slo)
    if window is not None:
        good &= window.holds(result.finish_s)
    return per_second(int(np.count_nonzero(good)), window or whole_run(result))


def busy_fraction(result: Result) -> float:
    """The share of the pots' time spent on steps, over the whole run; NaN with endless pots or without a log."""
    if result.segments is None or result.pots is None:
        return math.nan
    return per_second(result.segments.busy_s, whole_run(result)) / result.pots


def mean_in_system(result: Result) -> float:
    """Requests in the line and in the pots, averaged over the whole run; NaN without a log."""
    return math.nan if result.segments is None else per_second(result.segments.request_seconds, whole_run(result))


def _finishing(result: Result, window: Window | None) -> npt.NDArray[np.bool_]:
    """Who finishes in the window, or, without one, at all."""
    return result.finished if window is None else result.finished & window.holds(result.finish_s)
