"""What every engine can be asked: to take requests in, to let time pass, to change, and to be looked at.

An engine's state outlives a call, so whoever drives it decides when to look and what to do: `simulate` hands over a
whole workload and lets all time pass at once; a controller stops at its own instants; a fleet moves many engines on one
clock; a server follows the real one.

Time is in whole nanoseconds and never goes back. At one instant things happen in this order:

1. steps end: tokens come out, who is done leaves;
2. requests come (`join`), settings change (`change`), the door closes (`close`);
3. what can begin begins: empty pots first, then those between two steps, each by number.

`advance(t)` lets everything happen before t, and at t what is first in this order. So whoever advances to t and looks
sees the steps ended that end at t, and whom he lets join at t, or what he changes, counts for what begins at t.
`abort` and `next_ns` are last in this order: what can begin at t has then begun. A request that joins at t after that
is one that came a little later: it finds the step begun.

A step that has begun is never changed. What a change of settings means:

- `batch_size`: the next batch that is formed; one that is cooked to completion keeps its size and price.
- `window_s`: everyone in the line, from now on; if the oldest has waited long enough, its batch begins now.
- `max_num_seqs`, `max_num_active_seqs`: the next admission. If more run than may, nobody is put out: nobody is let in
  until fewer run, as in vLLM.
- `max_num_batched_tokens`: the next step. The budget always holds a token for each who runs, so that lowering it pauses
  nobody; it shrinks with those who leave. Without `chunked_prefill` a prompt that is longer than the new budget waits,
  and with it the line, until the budget is raised.
- `watermark`: the next admission.

All else stays: no other scheduler, no other policy, and an engine that doesn't count tokens can't begin to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, TypeVar

from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching, LengthBucketedBatching, StaticBatching

CHANGEABLE = {
    StaticBatching: ("batch_size",),
    DynamicBatching: ("batch_size", "window_s"),
    LengthBucketedBatching: ("batch_size", "window_s"),
    ContinuousBatching: ("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "watermark"),
}
"""What of a scheduler may change while it runs."""

_FIXED = {
    kind: [each.name for each in fields(kind) if each.init and each.name not in may] for kind, may in CHANGEABLE.items()
}

AnyScheduler = TypeVar("AnyScheduler")


@dataclass(frozen=True)
class Request:
    """A request as it comes to an engine.

    Attributes
    ----------
    number : int
        Its name in this engine, at least 0; numbers ascend in the order of coming, gaps are allowed.
    prompt_tokens, output_tokens : int
        The latter at least 1; where tokens are counted, the former too.
    priority : int
        Smaller is more urgent.
    service_scale : float
        Multiplies the time of a step that it is in; 1 where tokens are counted.
    prefix_ids : tuple of int
        What the pieces of its prompt hold, for the prefix cache; see `Workload.prefix_hashes`.
    key : callable, optional
        Instead of `prefix_ids`: what its k-th block holds. Only the reference loops ask it.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    service_scale: float = 1.0
    prefix_ids: tuple[int, ...] = ()
    key: Callable[[int], Hashable] | None = None


class Given(NamedTuple):
    """Tokens that a step brings one request: how many, whether they are its last, and the step's row of the log."""

    number: int
    tokens: int
    done: bool
    row: dict[str, Any]


class Happened(NamedTuple):
    """What has happened since the engine was last asked to advance.

    Attributes
    ----------
    finished : sequence of int
        Who got its last token, in order.
    given : sequence of Given
        The tokens of each step that ended. Only a loop that goes step by step can tell; a compiled engine jumps over
        steps, and leaves this empty.
    rows : sequence of dict
        The log's rows of the steps that began; from the same loops.
    """

    finished: Sequence[int]
    given: Sequence[Given] = ()
    rows: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class View:
    """What one who watches an engine can know at an instant.

    Attributes
    ----------
    now_ns : int
    running : int
        Requests in the pots that haven't got all of their answer.
    waiting : int
        Requests in the line.
    kv_tokens : int
        Tokens in the KV cache that the step under way reads; between steps, those of the running.
    kv_blocks : int
        Blocks in use; 0 where none are modelled.
    step_tokens : int
        Tokens that the step under way computes; 0 between steps.
    done : int
        Requests finished or turned away so far.
    preemptions : int
        So far.

    Notes
    -----
    Over several pots the figures are sums. With asynchronous scheduling the older of two steps under way counts.
    """

    now_ns: int
    running: int
    waiting: int
    kv_tokens: int
    kv_blocks: int
    step_tokens: int
    done: int
    preemptions: int


class Engine(Protocol):
    """A loop of steps whose time someone else lets pass; the rules are this module's."""

    def join(self, request: Request, now_ns: int) -> str | None:
        """A request comes; why it can never be served to its end, or None."""
        ...

    def abort(self, number: int, now_ns: int) -> None:
        """A request that has come and isn't done is given up.

        It leaves the line at once. Where tokens are counted it leaves the running and its blocks are free at once, too;
        otherwise it leaves its pot when the step under way ends, if the scheduler lets it, else it keeps its seat. A
        token that the step under way would have brought it is dropped.

        Raises
        ------
        ValueError
            If there is no such request here.
        """
        ...

    def change(self, scheduler: Any, now_ns: int) -> None:
        """Settings change to this scheduler's.

        Raises
        ------
        ValueError
            If it differs in more than may change.
        """
        ...

    def close(self, now_ns: int) -> None:
        """Nobody else will come: static batching then cooks its last batch by its own rule."""
        ...

    def advance(self, until_ns: int) -> Happened:
        """Let time pass; for ever, if that is `FOREVER`, so until nothing more happens."""
        ...

    def next_ns(self) -> int | None:
        """When a step ends, a window does, or a request comes that is known; None if nothing happens by itself.

        A compiled engine jumps over steps of which it knows that nothing but tokens comes out of them.
        """
        ...

    def view(self) -> View:
        """What can be seen at the present instant."""
        ...


FOREVER = 2**62
"""Later than any instant."""


def changed(old: AnyScheduler, new: AnyScheduler) -> AnyScheduler:
    """The new settings, if they differ from the old only in what may change.

    Examples
    --------
    >>> changed(ContinuousBatching(8, 64), ContinuousBatching(4, 32)).max_num_seqs
    4
    """
    may = CHANGEABLE.get(type(old))
    if may is None or type(new) is not type(old):
        wanted = " or ".join(each.__name__ for each in CHANGEABLE)
        raise ValueError(f"scheduler must be a {wanted}, and stay of its kind; got {new!r} after {old!r}")
    for name in _FIXED[type(old)]:
        if getattr(new, name) != getattr(old, name):
            raise ValueError(
                f"{name} can't change while an engine runs, only {', '.join(may)}; "
                f"got {getattr(new, name)!r} after {getattr(old, name)!r}"
            )
    return new


def check_changed(old: AnyScheduler, new: AnyScheduler, counts_tokens: bool) -> AnyScheduler:
    """As `changed`; an engine that doesn't count tokens can't begin to."""
    new = changed(old, new)
    if isinstance(new, ContinuousBatching) and not counts_tokens and new.counts_tokens:
        raise ValueError(f"scheduler must not count tokens where the engine doesn't; got {new!r}")
    return new


def check_request(request: Request, counts_tokens: bool) -> None:
    """Refuse a request that breaks a rule.

    Examples
    --------
    >>> check_request(Request(0, prompt_tokens=0, output_tokens=1), counts_tokens=True)
    Traceback (most recent call last):
    ...
    ValueError: prompt_tokens must be at least 1; got 0
    """
    for name, least in (("number", 0), ("prompt_tokens", int(counts_tokens)), ("output_tokens", 1)):
        if getattr(request, name) < least:
            raise ValueError(f"{name} must be at least {least}; got {getattr(request, name)}")
    if counts_tokens and request.service_scale != 1.0:
        raise ValueError(f"service_scale must be 1 where tokens are counted; got {request.service_scale:g}")
