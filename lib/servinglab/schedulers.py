"""Who is in the next step?

Three ways to fill a pot. *Static* waits for a full batch and *dynamic* for a full batch or the end of a window; both
cook a batch until its longest answer is done. *Continuous* re-forms the batch at every step: who is done leaves, and
the line fills the free seats. (Some authors call both of the last two "dynamic".)

The line is first come, first served. Prompts are computed whole in a request's first step; there is no token budget
and no limit of memory here.

A scheduler is plain data plus one method, `admit`, which both engines follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ._checks import check_choice, check_number


class Scheduler(Protocol):
    """What the engines ask of a scheduler."""

    run_to_completion: ClassVar[bool]
    """Whether a pot takes nobody in until everyone in it is done."""

    @property
    def streaming(self) -> bool:
        """Whether each token is handed over at its step, or the whole answer when the batch ends."""
        ...

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """How many of the line join a pot that is between steps."""
        ...


@dataclass(frozen=True)
class StaticBatching:
    """Wait for `batch_size` requests, then cook until the longest answer is done.

    Parameters
    ----------
    batch_size : int
        Requests in a batch. At least 1.
    last : {"full_price", "partial", "never"}
        What becomes of a batch that can't fill any more because nobody else will come: it is cooked at the price of
        a full one, cooked at the price of its own size, or never cooked (its requests end as UNSERVED).
    streaming : bool
        False: every answer is handed over when the batch ends, so first token and finish are the batch's end.
        True: each token is handed over at its step, yet the seat stays taken until the batch ends.
    padded : bool
        True: every seat is computed until the batch ends, as long as its longest prompt and its longest answer.
        False: a step costs only those who still lack tokens; ``last="full_price"`` needs padded seats.

    Examples
    --------
    >>> StaticBatching(4).admit(waiting=3, running=0, oldest_ns=0, now_ns=10**9, more_to_come=True)
    0
    >>> StaticBatching(4).admit(waiting=5, running=0, oldest_ns=0, now_ns=10**9, more_to_come=True)
    4
    """

    batch_size: int
    last: str = "full_price"
    streaming: bool = False
    padded: bool = True
    run_to_completion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_number("batch_size", self.batch_size, ge=1, integer=True))
        check_choice("last", self.last, ("full_price", "partial", "never"))
        if self.last == "full_price" and not self.padded:
            raise ValueError('last="full_price" charges empty seats, so padded must be True; got False')

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """A full batch into an empty pot; the last, incomplete one by the rule `last`."""
        if running:
            return 0
        if waiting >= self.batch_size:
            return self.batch_size
        return 0 if more_to_come or self.last == "never" else waiting


@dataclass(frozen=True)
class DynamicBatching:
    """Cook when `batch_size` requests wait or the oldest has waited `window_s`, whichever comes first.

    The window belongs to the oldest request in the line and runs from its arrival. While every pot is busy it may run
    out; the batch then starts when a pot is free.

    Parameters
    ----------
    batch_size : int
        The most requests in a batch. At least 1.
    window_s : float
        The longest that the oldest request waits for company, in seconds. At least 0.
    streaming, padded : bool
        As in `StaticBatching`.

    Examples
    --------
    >>> window = DynamicBatching(batch_size=4, window_s=0.5)
    >>> window.admit(waiting=2, running=0, oldest_ns=0, now_ns=499_999_999, more_to_come=True)
    0
    >>> window.admit(waiting=2, running=0, oldest_ns=0, now_ns=500_000_000, more_to_come=True)
    2
    """

    batch_size: int
    window_s: float
    streaming: bool = False
    padded: bool = True
    run_to_completion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_number("batch_size", self.batch_size, ge=1, integer=True))
        object.__setattr__(self, "window_s", check_number("window_s", self.window_s, ge=0, le=1e9))

    @property
    def window_ns(self) -> int:
        """The window in whole nanoseconds."""
        return round(self.window_s * 1e9)

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """Up to a full batch into an empty pot, once it is full or the oldest request's window is over."""
        if running:
            return 0
        if waiting >= self.batch_size or now_ns >= oldest_ns + self.window_ns:
            return min(waiting, self.batch_size)
        return 0


@dataclass(frozen=True)
class ContinuousBatching:
    """Re-form the batch at every step: finished requests leave and the line fills the free seats.

    With kitchen orders of one step this is "take what is there, up to `max_num_seqs`".

    Parameters
    ----------
    max_num_seqs : int
        The most requests in a pot at once. At least 1.

    Examples
    --------
    >>> ContinuousBatching(8).admit(waiting=5, running=6, oldest_ns=0, now_ns=0, more_to_come=True)
    2
    """

    max_num_seqs: int
    streaming: ClassVar[bool] = True
    run_to_completion: ClassVar[bool] = False

    def __post_init__(self) -> None:
        value = check_number("max_num_seqs", self.max_num_seqs, ge=1, integer=True)
        object.__setattr__(self, "max_num_seqs", value)

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """As many as there are free seats."""
        return min(waiting, self.max_num_seqs - running)
