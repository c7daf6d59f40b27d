"""Lets the time of a simulation pass: a loop of steps is led through a workload, and what became of it is told.

The loops, `reference.tokens.TokenLoop` and `reference.pots.PotLoop`, know the rules; `drive` knows who
comes and when something happens next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from servinglab.engine.arrivals import Arrivals
from servinglab.engine.protocol import Given
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import NEVER, Status

Progress = Callable[[int, int], None]

_REPORT_ROWS = 1000  # of the log, between two reports of progress


class SimulationInterrupted(KeyboardInterrupt):
    """Raised when a simulation is interrupted; `partial` holds what was done, the rest as UNSERVED."""

    def __init__(self, partial: Result) -> None:
        super().__init__(f"interrupted after {int(partial.finished.sum())} of {len(partial)} requests")
        self.partial = partial


class Loop(Protocol):
    """What is asked of a loop; at each instant `end` if something is due, what comes, then `begin`."""

    scheduled_ns: dict[int, int]
    waited_ns: int

    def next_ns(self) -> int | None:
        """When something happens next if nobody comes."""
        ...

    def end(self, now: int) -> list[Given]:
        """What is due ends."""
        ...

    def begin(self, now: int) -> list[dict[str, Any]]:
        """What can begin now begins; its rows of the log."""
        ...


def drive(
    loop: Loop,
    workload: Workload,
    arrivals: Arrivals,
    come: Callable[[int, int], str | None],
    progress: Progress | None,
    preemptions: Callable[[int], int] = lambda k: 0,
    **facts: Any,
) -> Result:
    """Serve a workload.

    Parameters
    ----------
    loop : Loop
    workload : Workload
    arrivals : Arrivals
        Of this workload.
    come : callable
        Has request k join the loop at an instant, or says why it can never be served.
    progress : callable, optional
        Called now and then with (requests finished, requests in all).
    preemptions : callable
        How often request k lost its place.
    **facts
        The result's other columns.

    Raises
    ------
    SimulationInterrupted
        On Ctrl-C, with what was done up to the last instant at which everything had happened.
    """
    n = len(workload)
    arrival, first_token, last_token, finish = ([NEVER] * n for _ in range(4))
    if not workload.is_closed:
        for at, k in arrivals.coming:
            arrival[k] = at
    reasons: dict[int, str] = {}
    late: list[tuple[int, int]] = []  # when a token came later than a step after the one before it, and the gap
    log: list[dict[str, Any]] = []
    past, reported = NEVER, 0

    def record(given: Given, now: int) -> None:
        """Tokens came out."""
        k = given.number
        if first_token[k] == NEVER:
            first_token[k] = now
        elif last_token[k] != given.row["start_ns"]:
            given.row["decode_tokens"] -= 1
            late.append((now, now - last_token[k]))
        last_token[k] = now
        if given.done:
            finish[k] = now
            arrivals.answered(now)

    def result() -> Result:
        """What has happened; an instant that was cut short has not."""

        def known(times: list[int]) -> np.ndarray:
            return np.array([at if at <= past else NEVER for at in times], np.int64)

        rows = [row for row in log if NEVER < row["end_ns"] <= past]
        waited = sum(row["waited_request_s"] for row in log) - sum(row["waited_request_s"] for row in rows)
        gaps = Counter(gap for at, gap in late if at <= past)
        status = np.array([Status.UNSERVED if at == NEVER or at > past else Status.FINISHED for at in finish], np.uint8)
        status[list(reasons)] = Status.REJECTED
        return Result(
            arrival_ns=np.array(arrival, np.int64),
            scheduled_ns=known([loop.scheduled_ns.get(k, NEVER) for k in range(n)]),
            first_token_ns=known(first_token),
            finish_ns=known(finish),
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            preemptions=np.array([preemptions(k) for k in range(n)], np.int32),
            status=status,
            segments=Segments.from_rows(rows, loop.waited_ns + round(1e9 * waited)),
            late_gaps=(np.array(sorted(gaps), np.int64), np.array([gaps[gap] for gap in sorted(gaps)], np.int64)),
            rejections=reasons,
            **workload.optional,
            **facts,
        )

    try:
        while (now := soonest(loop.next_ns(), arrivals.next_ns())) is not None:
            if now == loop.next_ns():
                for given in loop.end(now):
                    record(given, now)
            while now == arrivals.next_ns():
                for k in arrivals.pop(now):
                    arrival[k] = now
                    reason = come(k, now)
                    if reason is not None:
                        reasons[k] = reason
                        arrivals.answered(now)
            log += loop.begin(now)
            past = now
            if progress is not None and len(log) >= reported + _REPORT_ROWS:
                reported = len(log)
                progress(n - finish.count(NEVER) + len(reasons), n)
    except KeyboardInterrupt:
        raise SimulationInterrupted(result()) from None
    return result()


def soonest(*instants_ns: int | None) -> int | None:
    """The first of these instants; None if there is none.

    Examples
    --------
    >>> soonest(None, 7, 5)
    5
    """
    return min((instant for instant in instants_ns if instant is not None), default=None)
