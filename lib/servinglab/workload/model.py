"""Who comes, when, and how much work do they bring?

A `Workload` is a table with one row a request. It comes from a generator (`servinglab.workload.arrival_laws` and
laws for the lengths), from anyone's arrivals (`Workload.from_arrivals`), or from a public trace
(`servinglab.workload.traces`).

Arrivals, lengths, service scales, priorities and think times are drawn from separate random streams of one
seed: change the length law, and the same requests still come at the same moments.

Not modelled: guests who give up or come back, lengths that depend on the hour or on each other, and arrivals
that react to the service. The exception is a closed loop, whose clients wait for an answer before they ask
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servinglab.base.checks import check_array, check_number
from servinglab.workload.lengths import Constant, Law
from servinglab.workload.request import MAX_TOKENS, OPTIONAL, Texts, check_optional

MAX_TIME_S = 4e9  # the engines count nanoseconds in 64 bits, which is 292 years; this leaves room to serve
MAX_REQUESTS = 10**8  # drawn at once; their table takes several GB

Column = float | Sequence[float] | NDArray[Any] | Law
"""What a generator takes for a column: one number for all, a sequence of n, or a law to draw n from."""

# the random stream of each column; a number once given away stays
ARRIVALS, _PROMPTS, _OUTPUTS, _SCALES, _PRIORITIES, THINKS, PHASES = range(7)


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order of their arrival. The arrays are copied, checked and made read-only.

    Parameters
    ----------
    arrival_s : array of n floats, s
        When each request comes: >= 0, never decreasing. All NaN in a closed loop: the simulation decides.
    prompt_tokens : array of n ints
        Tokens to read before the first answer token; 0 to 10**9. A kitchen order has none.
    output_tokens : array of n ints
        Tokens to write, one engine step each; 1 to 10**9. A kitchen order has one.
    priority : array of n ints
        Smaller is more urgent. Schedulers without priorities ignore it.
    service_scale : array of n floats
        Multiplies a step's time, for kitchen orders of unequal size; > 0.
    prefix_hashes : tuple of n int arrays, optional
        For each request the ids of its prompt's blocks: equal ids at the start are a shared prefix.
    clients : int
        0: an open loop, requests come whatever happens. > 0: a closed loop with that many clients, each of
        whom waits for its answer, thinks, and sends the next unsent request of the list. Client c (from 0)
        sends request c at think_s[c]; when a request finishes at t, the next unsent request k comes at
        t + think_s[k].
    think_s : array of n floats, s
        In a closed loop, the pause before each request; >= 0. None in an open loop.
    name : str
        For labels and reports.
    user, request_class : sequence of n texts, optional
        Who sends each request, and what kind it is; see `servinglab.workload.request`.
    deadline_s : array of n floats, s, optional
        By when after its arrival its sender wants the whole answer; > 0.
    max_tokens : array of n ints, optional
        The longest answer that its sender would take; at least `output_tokens`.

    Raises
    ------
    ValueError
        If a column breaks its rule; the message names the column, the position, the rule and the value.

    Examples
    --------
    >>> work = Workload.from_arrivals([0.0, 0.5, 2.0], prompt_tokens=100, output_tokens=[20, 5, 9])
    >>> len(work), work.rate_rps
    (3, 1.0)
    >>> Workload.from_arrivals([0.0, 2.0, 1.0])
    Traceback (most recent call last):
    ...
    ValueError: arrival_s must never decrease; arrival_s[2] = 1.0 comes after 2.0
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64]
    service_scale: NDArray[np.float64]
    prefix_hashes: tuple[NDArray[np.int64], ...] | None = None
    clients: int = 0
    think_s: NDArray[np.float64] | None = None
    name: str = ""
    user: Texts | None = None
    request_class: Texts | None = None
    deadline_s: NDArray[np.float64] | None = None
    max_tokens: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        def put(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        put("clients", check_number("clients", self.clients, ge=0, integer=True))
        if self.clients:
            arrival_s = np.array(self.arrival_s, dtype=np.float64)
            if arrival_s.ndim != 1 or not np.isnan(arrival_s).all():
                raise ValueError("arrival_s must be all NaN in a closed loop: the simulation decides it")
            arrival_s.setflags(write=False)
        else:
            arrival_s = check_array("arrival_s", self.arrival_s, ge=0, le=MAX_TIME_S)
            check_never_decreases("arrival_s", arrival_s)
        n = arrival_s.size
        if n == 0:
            raise ValueError("arrival_s must hold at least one request; got none")
        put("arrival_s", arrival_s)

        def whole(field: str, ge: int, le: int) -> None:
            put(field, check_array(field, getattr(self, field), length=n, ge=ge, le=le, integer=True))

        whole("prompt_tokens", 0, MAX_TOKENS)
        whole("output_tokens", 1, MAX_TOKENS)
        whole("priority", -(10**9), 10**9)
        put("service_scale", check_array("service_scale", self.service_scale, length=n, gt=0))
        if self.clients:
            if self.think_s is None:
                raise ValueError("think_s must be given in a closed loop (clients > 0); got None")
            put("think_s", check_array("think_s", self.think_s, length=n, ge=0, le=MAX_TIME_S))
        elif self.think_s is not None:
            raise ValueError("think_s belongs to a closed loop: it must be None where clients is 0")
        if self.prefix_hashes is not None:
            got = len(self.prefix_hashes) if _is_sequence(self.prefix_hashes) else repr(self.prefix_hashes)
            if got != n:
                raise ValueError(f"prefix_hashes must hold {n} arrays, one for each request; got {got}")
            blocks = (
                check_array(f"prefix_hashes[{k}]", row, ge=-(2**53), le=2**53, integer=True)
                for k, row in enumerate(self.prefix_hashes)
            )
            put("prefix_hashes", tuple(blocks))
        for field, column in check_optional(n, self.output_tokens, **self.optional).items():
            put(field, column)

    @classmethod
    def from_arrivals(
        cls,
        arrival_s: ArrayLike,
        prompt_tokens: ArrayLike = 0,
        output_tokens: ArrayLike = 1,
        priority: ArrayLike = 0,
        service_scale: ArrayLike = 1.0,
        prefix_hashes: Sequence[Any] | None = None,
        name: str = "",
        **optional: Any,
    ) -> Workload:
        """An open-loop workload from anyone's arrivals; with nothing else given, one-step kitchen orders.

        Parameters
        ----------
        arrival_s : sequence of n floats, s
            >= 0, never decreasing.
        prompt_tokens, output_tokens, priority, service_scale : number or sequence of n numbers
            As in `Workload`; one number stands for all.
        prefix_hashes : sequence of n int sequences, optional
            As in `Workload`.
        name : str
            For labels and reports.
        **optional
            `user`, `request_class`, `deadline_s` and `max_tokens`, as in `Workload`.

        Returns
        -------
        Workload

        Examples
        --------
        The first document's demo draws its 1,000 orders, 20 a second on average, from Python's own generator:

        >>> import random
        >>> from itertools import accumulate
        >>> rng = random.Random(42)
        >>> demo = Workload.from_arrivals(list(accumulate(rng.expovariate(1 / 0.05) for _ in range(1000))))
        >>> demo.arrival_s[:3].round(4)
        array([0.051 , 0.0523, 0.0684])
        """
        arrivals = check_array("arrival_s", arrival_s, ge=0, le=MAX_TIME_S)

        def spread(field: str, value: Any) -> Any:
            return value if _is_sequence(value) else np.full(arrivals.size, check_number(field, value))

        return cls(
            arrival_s=arrivals,
            prompt_tokens=spread("prompt_tokens", prompt_tokens),
            output_tokens=spread("output_tokens", output_tokens),
            priority=spread("priority", priority),
            service_scale=spread("service_scale", service_scale),
            prefix_hashes=prefix_hashes,  # type: ignore[arg-type]  # made a tuple of arrays in there
            name=name,
            **optional,
        )

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def __repr__(self) -> str:
        return f"<Workload {self.name or 'unnamed'}: {len(self)} requests>"

    @property
    def optional(self) -> dict[str, Any]:
        """The optional columns, by name; None for one that isn't given."""
        return {field: getattr(self, field) for field in OPTIONAL}

    @property
    def is_closed(self) -> bool:
        """Whether clients wait for their answers before they ask again."""
        return self.clients > 0

    @property
    def rate_rps(self) -> float:
        """Requests per second from the first arrival to the last: (n - 1) / span.

        NaN with one request and in a closed loop, where the rate is an outcome; infinite if all come at once.
        """
        if self.is_closed or len(self) < 2:
            return float("nan")
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span > 0 else float("inf")

    @property
    def cv(self) -> float:
        """Burstiness: standard deviation over mean of the gaps between arrivals.

        0 for a clock, 1 in the long run for Poisson arrivals, more in bursts. NaN where the rate is NaN or
        infinite.
        """
        if not np.isfinite(self.rate_rps):
            return float("nan")
        gaps = np.diff(self.arrival_s)
        return float(gaps.std() / gaps.mean())

    def describe(self) -> dict[str, Any]:
        """The workload in a few numbers.

        Returns
        -------
        dict
            name; requests; clients (0: open loop); span_s, rate_rps and cv of the arrivals; mean and largest
            prompt_tokens and output_tokens of a request.

        Examples
        --------
        >>> Workload.from_arrivals([0, 1, 2], output_tokens=[1, 2, 6]).describe()["mean_output_tokens"]
        3.0
        """
        return {
            "name": self.name,
            "requests": len(self),
            "clients": self.clients,
            "span_s": float(self.arrival_s[-1] - self.arrival_s[0]),
            "rate_rps": self.rate_rps,
            "cv": self.cv,
            "mean_prompt_tokens": float(self.prompt_tokens.mean()),
            "max_prompt_tokens": int(self.prompt_tokens.max()),
            "mean_output_tokens": float(self.output_tokens.mean()),
            "max_output_tokens": int(self.output_tokens.max()),
        }

    def head(self, n: int) -> Workload:
        """The first `n` requests, or all of them where there are fewer.

        Parameters
        ----------
        n : int
            >= 1.

        Examples
        --------
        >>> Workload.from_arrivals([0, 1, 2]).head(2).arrival_s
        array([0., 1.])
        """
        n = check_number("n", n, ge=1, integer=True)
        return replace(
            self,
            arrival_s=self.arrival_s[:n],
            prompt_tokens=self.prompt_tokens[:n],
            output_tokens=self.output_tokens[:n],
            priority=self.priority[:n],
            service_scale=self.service_scale[:n],
            prefix_hashes=None if self.prefix_hashes is None else self.prefix_hashes[:n],
            think_s=None if self.think_s is None else self.think_s[:n],
            **{field: None if column is None else column[:n] for field, column in self.optional.items()},  # type: ignore[arg-type]
        )

    def scaled(self, speed: float) -> Workload:
        """The same requests, `speed` times as fast: arrivals (in a closed loop, pauses) are divided by it.

        Parameters
        ----------
        speed : float
            > 0; below 1 it slows down.

        Examples
        --------
        >>> Workload.from_arrivals([0, 1, 2]).scaled(2).arrival_s
        array([0. , 0.5, 1. ])
        """
        speed = check_number("speed", speed, gt=0)
        name = f"{self.name} at {speed:g}x" if self.name else ""
        if self.think_s is not None:
            return replace(self, think_s=self.think_s / speed, name=name)
        return replace(self, arrival_s=self.arrival_s / speed, name=name)


def check_never_decreases(name: str, times: NDArray[np.float64]) -> None:
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        k = int(back[0]) + 1
        raise ValueError(
            f"{name} must never decrease; {name}[{k}] = {times[k].item()} comes after {times[k - 1].item()}"
        )


def _is_sequence(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    return isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0


def check_seed(seed: int) -> int:
    return int(check_number("seed", seed, ge=0, integer=True))


def random_stream(seed: int, stream: int) -> np.random.Generator:
    seed = check_seed(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def draw_column(name: str, value: Any, n: int, seed: int | None, stream: int) -> NDArray[Any]:
    """One column of n values, not yet checked against the column's own bounds."""
    if _is_sequence(value):
        return check_array(name, value, length=n)
    if hasattr(value, "sample"):
        if seed is None and not isinstance(value, Constant):
            raise ValueError(f"seed must be given where {name} is drawn from a law; got None")
        drawn = value.sample(random_stream(seed or 0, stream), n)
        if stream in (_PROMPTS, _OUTPUTS, _PRIORITIES):
            drawn = np.rint(drawn)
        return np.maximum(drawn, 1) if stream == _OUTPUTS else drawn
    return np.full(n, check_number(name, value))


def draw_columns(
    n: int, seed: int | None, prompt_tokens: Any, output_tokens: Any, service_scale: Any, priority: Any
) -> dict[str, Any]:
    return {
        "prompt_tokens": draw_column("prompt_tokens", prompt_tokens, n, seed, _PROMPTS),
        "output_tokens": draw_column("output_tokens", output_tokens, n, seed, _OUTPUTS),
        "service_scale": draw_column("service_scale", service_scale, n, seed, _SCALES),
        "priority": draw_column("priority", priority, n, seed, _PRIORITIES),
    }


PREFIX_TOKENS = 512  # tokens behind one id of Workload.prefix_hashes, as Mooncake's traces count them
