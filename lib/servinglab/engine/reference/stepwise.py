"""The engine protocol for a loop that goes step by step.

A loop knows how steps end (`end`) and how those that can begin do (`begin`); here is when that is asked of it. Whoever
leads a loop himself, as `clock.drive` and the server do, calls at each instant, in this order, `end` if steps are due
(`next_ns`), `join` for each request that comes, and `begin`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from servinglab.engine.protocol import FOREVER, Given, Happened, Request, check_changed, check_request


class Stepwise:
    """What the reference loops have in common.

    Attributes
    ----------
    scheduled_ns : dict
        When each request's first step began, by its number; never forgotten unless the driver deletes it.
    preemptions : Counter
        How often each request lost its place, if it did; never forgotten either.
    waited_ns : int
        Request-nanoseconds spent in the line since a row began.
    """

    counts_tokens: bool

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.scheduled_ns: dict[int, int] = {}
        self.preemptions: Counter[int] = Counter()
        self.waited_ns = 0
        self.closed = False
        self._now = 0
        self._open = False  # whether something may begin that hasn't been asked to
        self._done = 0
        self._told = Happened([], [], [])

    def join(self, request: Request, now_ns: int) -> str | None:
        """A request comes; see `Engine`."""
        check_request(request, self.counts_tokens)
        self._pass(now_ns)
        reason = self._enter(request)
        self._open = True
        self._done += reason is not None
        return reason

    def abort(self, number: int, now_ns: int) -> None:
        """A request is given up; see `Engine`."""
        self._pass(now_ns)
        self._begin()
        self._drop(number)

    def change(self, scheduler: Any, now_ns: int) -> None:
        """Settings change; see `Engine`."""
        scheduler = check_changed(self.scheduler, scheduler, self.counts_tokens)
        self._pass(now_ns)
        self._follow(scheduler)
        self.scheduler = scheduler
        self._open = True

    def close(self, now_ns: int) -> None:
        """Nobody else will come; see `Engine`."""
        self._pass(now_ns)
        self.closed = self._open = True

    def advance(self, until_ns: int) -> Happened:
        """Let time pass; see `Engine`."""
        self._pass(until_ns)
        told, self._told = self._told, Happened([], [], [])
        return told

    def next_ns(self) -> int | None:
        """When a step ends, or the window of the line's oldest; None if nothing happens unless a request comes."""
        self._begin()
        return self._due_ns()

    def end(self, now: int) -> list[Given]:
        """Every step that is due ends."""
        self._look(now)
        self._open = True
        given = self._end(now)
        self._done += sum(each.done for each in given)
        return given

    def begin(self, now: int) -> list[dict[str, Any]]:
        """Begin every step that can begin now; return the rows of the log of those that hold anything."""
        self._look(now)
        self._open = False
        return self._begin_all(now)

    # ---- what each loop does in its own way ----

    @property
    def waiting(self) -> int:
        """How many stand in the line."""
        raise NotImplementedError

    def _due_ns(self) -> int | None:
        """As `next_ns`, once all that can begin has begun."""
        raise NotImplementedError

    def _enter(self, request: Request) -> str | None:
        """A request joins the line; why it can never be served, or None."""
        raise NotImplementedError

    def _drop(self, number: int) -> None:
        """A request is given up."""
        raise NotImplementedError

    def _follow(self, scheduler: Any) -> None:
        """Follow changed settings."""

    def _end(self, now: int) -> list[Given]:
        raise NotImplementedError

    def _begin_all(self, now: int) -> list[dict[str, Any]]:
        raise NotImplementedError

    # ---- time passes ----

    def _pass(self, until: int) -> None:
        """Let everything happen up to here, and here what is first in the order of things."""
        if until < self._now:
            raise ValueError(f"an instant must not be before {self._now} ns, the present; got {until}")
        finished, given, _ = self._told
        while True:
            if self._now < until:
                self._begin()
            due = self._due_ns()
            if self._open or due is None or due > until:
                break
            ended = self.end(due)
            given += ended  # type: ignore[operator]
            finished += [each.number for each in ended if each.done]  # type: ignore[operator]
        if until < FOREVER:
            self._look(until)

    def _begin(self) -> None:
        if self._open:
            self._told.rows.extend(self.begin(self._now))  # type: ignore[attr-defined]

    def _look(self, now: int) -> None:
        """Count the time that the line has spent waiting up to here."""
        self.waited_ns += self.waiting * (now - self._now)
        self._now = now


def not_here(number: int) -> ValueError:
    """What to raise where nobody of this number is here."""
    return ValueError(f"number must be that of a request that is here and isn't done; got {number}")
