"""Little's law, checked on a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from servinglab.metrics.rates import mean_in_system, request_throughput

if TYPE_CHECKING:
    from servinglab.result.result import Result


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
        mean_in_system=mean_in_system(result),
        rate_rps=request_throughput(result),
        mean_latency_s=float(result.e2e_s.mean()),
    )
