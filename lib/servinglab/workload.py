"""Who comes, when, and how much work do they bring?

A `Workload` is a table with one row a request. It comes from a generator here (an arrival process and laws
for the lengths), from anyone's arrivals (`Workload.from_arrivals`), or from a public trace
(`servinglab.traces`).

Arrivals, lengths, service scales, priorities and think times are drawn from separate random streams of one
seed: change the length law, and the same requests still come at the same moments.

Not modelled: guests who give up or come back, lengths that depend on the hour or on each other, and arrivals
that react to the service. The exception is `closed_loop`, whose clients wait for an answer before they ask
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._checks import check_array, check_number
from .lengths import Constant, Law

MAX_TIME_S = 4e9  # the engines count nanoseconds in 64 bits, which is 292 years; this leaves room to serve
MAX_TOKENS = 10**9
MAX_REQUESTS = 10**8  # drawn at once; their table takes several GB
_MAX_SOJOURNS = 10**7

Column = float | Sequence[float] | NDArray[Any] | Law
"""What a generator takes for a column: one number for all, a sequence of n, or a law to draw n from."""

# the random stream of each column; a number once given away stays
_ARRIVALS, _PROMPTS, _OUTPUTS, _SCALES, _PRIORITIES, _THINKS, _PHASES = range(7)


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
            _check_never_decreases("arrival_s", arrival_s)
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
        )

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def __repr__(self) -> str:
        return f"<Workload {self.name or 'unnamed'}: {len(self)} requests>"

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


def poisson(
    rate_rps: float,
    n: int,
    seed: int,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Arrivals without memory: independent exponential gaps, the first of them after time 0.

    Parameters
    ----------
    rate_rps : float, requests/s
        Mean rate; > 0.
    n : int
        How many requests; 1 to 10**8.
    seed : int
        >= 0. The same seed gives the same workload.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        The columns of `Workload`. What a law draws for tokens or priorities is rounded to the nearest whole
        number, and for `output_tokens` to no less than 1.

    Returns
    -------
    Workload

    Raises
    ------
    ValueError
        If an argument breaks its rule.

    Examples
    --------
    >>> orders = poisson(rate_rps=20, n=1000, seed=42)
    >>> orders.arrival_s[:3].round(4)
    array([0.0484, 0.1399, 0.1627])
    >>> from servinglab.lengths import Geometric
    >>> chat = poisson(rate_rps=20, n=1000, seed=42, prompt_tokens=500, output_tokens=Geometric(mean=200))
    >>> bool((chat.arrival_s == orders.arrival_s).all())
    True
    """
    rate_rps, n = _check_rate(rate_rps), _check_n(n)
    gaps = _stream(seed, _ARRIVALS).exponential(1 / rate_rps, size=n)
    name = f"poisson(rate_rps={rate_rps:g}, n={n}, seed={seed})"
    return _open(np.cumsum(gaps), seed, prompt_tokens, output_tokens, service_scale, priority, name)


def deterministic(
    rate_rps: float,
    n: int,
    seed: int | None = None,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Arrivals like a clock: request k (from 1) comes at k / rate.

    Parameters
    ----------
    rate_rps : float, requests/s
        > 0.
    n : int
        How many requests; 1 to 10**8.
    seed : int, optional
        >= 0; needed only where a column is a law.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`.

    Returns
    -------
    Workload

    Examples
    --------
    >>> deterministic(rate_rps=4, n=3).arrival_s
    array([0.25, 0.5 , 0.75])
    """
    rate_rps, n = _check_rate(rate_rps), _check_n(n)
    seed = None if seed is None else _check_seed(seed)
    arrival_s = np.arange(1, n + 1) / rate_rps
    name = f"deterministic(rate_rps={rate_rps:g}, n={n})"
    return _open(arrival_s, seed, prompt_tokens, output_tokens, service_scale, priority, name)


def gamma_arrivals(
    rate_rps: float,
    n: int,
    cv: float,
    seed: int,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Arrivals of chosen burstiness: independent gamma gaps with coefficient of variation `cv`.

    The shape is 1 / cv^2, the scale cv^2 / rate, so the mean is 1 / rate. vLLM's benchmark draws its gaps
    like this; its `burstiness` is the shape. A gap remembers nothing of the one before: for lasting bursts
    see `on_off`.

    Parameters
    ----------
    rate_rps : float, requests/s
        Mean rate; > 0.
    n : int
        How many requests; 1 to 10**8.
    cv : float
        0.001 to 100. Below 1 steadier than Poisson, 1 is Poisson, above 1 burstier.
    seed : int
        >= 0.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`.

    Returns
    -------
    Workload

    Examples
    --------
    >>> round(gamma_arrivals(rate_rps=20, n=10_000, cv=3, seed=1).cv, 1)
    3.0
    """
    rate_rps, n, cv = _check_rate(rate_rps), _check_n(n), check_number("cv", cv, ge=0.001, le=100)
    gaps = _stream(seed, _ARRIVALS).gamma(cv**-2, cv**2 / rate_rps, size=n)
    name = f"gamma_arrivals(rate_rps={rate_rps:g}, n={n}, cv={cv:g}, seed={seed})"
    return _open(np.cumsum(gaps), seed, prompt_tokens, output_tokens, service_scale, priority, name)


def on_off(
    rate_on_rps: float,
    rate_off_rps: float,
    mean_on_s: float,
    mean_off_s: float,
    n: int,
    seed: int,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Bursts: Poisson arrivals whose rate switches between two values, a Markov-modulated Poisson process.

    Both phases last an exponential time. The first phase is drawn with the share of time that each takes, so
    the expected rate is the long-run one from the start:
    (rate_on * mean_on + rate_off * mean_off) / (mean_on + mean_off).

    Parameters
    ----------
    rate_on_rps : float, requests/s
        Rate within a burst; > 0.
    rate_off_rps : float, requests/s
        Rate between bursts; >= 0.
    mean_on_s, mean_off_s : float, s
        Mean length of a burst and of a pause; > 0. Phases much shorter than the gaps between requests make no
        bursts; more than about ten million phases are refused.
    n : int
        How many requests; 1 to 10**8.
    seed : int
        >= 0.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`.

    Returns
    -------
    Workload

    Examples
    --------
    >>> bursts = on_off(rate_on_rps=40, rate_off_rps=0, mean_on_s=5, mean_off_s=5, n=50_000, seed=2)
    >>> round(bursts.rate_rps), round(bursts.cv, 1)
    (20, 9.5)
    """
    n = _check_n(n)
    rates = (
        check_number("rate_off_rps", rate_off_rps, ge=0),
        check_number("rate_on_rps", rate_on_rps, gt=0),
    )
    means = (check_number("mean_off_s", mean_off_s, gt=0), check_number("mean_on_s", mean_on_s, gt=0))
    per_cycle = rates[0] * means[0] + rates[1] * means[1]
    if 2 * n / per_cycle > _MAX_SOJOURNS:
        raise ValueError(
            f"mean_on_s = {means[1]:g} and mean_off_s = {means[0]:g} are too short for n = {n}: "
            f"about {2 * n / per_cycle:.2g} phases, at most {_MAX_SOJOURNS:.0e} are drawn"
        )
    # Measured in expected arrivals instead of seconds, the requests are a Poisson process of rate 1.
    work = np.cumsum(_stream(seed, _ARRIVALS).exponential(size=n))
    rng = _stream(seed, _PHASES)
    on_first = int(rng.random() < means[1] / (means[0] + means[1]))
    cycles = int(n / per_cycle) + 8
    phase_mean = np.tile([means[on_first], means[1 - on_first]], cycles)
    phase_rate = np.tile([rates[on_first], rates[1 - on_first]], cycles)
    start_s, start_work = np.zeros(1), np.zeros(1)
    while start_work[-1] <= work[-1]:
        lasts_s = phase_mean * rng.exponential(size=2 * cycles)
        start_s = np.append(start_s, start_s[-1] + np.cumsum(lasts_s))
        start_work = np.append(start_work, start_work[-1] + np.cumsum(lasts_s * phase_rate))
    phase = np.searchsorted(start_work, work, side="right") - 1  # a phase without arrivals is never the last
    arrival_s = start_s[phase] + (work - start_work[phase]) / phase_rate[phase % (2 * cycles)]
    arrival_s = np.maximum.accumulate(np.minimum(arrival_s, start_s[phase + 1]))  # undo rounding at the ends
    name = (
        f"on_off(rate_on_rps={rates[1]:g}, rate_off_rps={rates[0]:g}, mean_on_s={means[1]:g}, "
        f"mean_off_s={means[0]:g}, n={n}, seed={seed})"
    )
    return _open(arrival_s, seed, prompt_tokens, output_tokens, service_scale, priority, name)


def rate_profile(
    times_s: Sequence[float],
    rates_rps: Sequence[float],
    seed: int,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Poisson arrivals whose rate follows a curve: a day, a ramp, a flash crowd.

    The rate runs straight from one point to the next. A time given twice is a jump, so
    `times_s=[0, 60, 60, 120], rates_rps=[5, 5, 20, 20]` is a step from 5 to 20. The curve's end ends the
    arrivals: their number is Poisson with the area under the curve as its mean. Exact, by inversion of that
    area.

    Parameters
    ----------
    times_s : sequence of m floats, s
        At least two, >= 0, never decreasing, the last after the first.
    rates_rps : sequence of m floats, requests/s
        >= 0, not all 0.
    seed : int
        >= 0.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`; as n is drawn, a sequence seldom fits.

    Returns
    -------
    Workload

    Raises
    ------
    ValueError
        If an argument breaks its rule, or if the draw has no request in it.

    Examples
    --------
    >>> ramp = rate_profile([0, 60, 120], [0, 20, 0], seed=3)
    >>> len(ramp)
    1199
    >>> int((ramp.arrival_s < 60).sum())
    611
    """
    times = check_array("times_s", times_s, ge=0, le=MAX_TIME_S)
    _check_never_decreases("times_s", times)
    lasts = np.diff(times)
    if not lasts.sum() > 0:
        raise ValueError(f"times_s must end after they start; got {times.tolist()}")
    rates = check_array("rates_rps", rates_rps, length=times.size, ge=0)
    area = np.concatenate([[0.0], np.cumsum(lasts * (rates[:-1] + rates[1:]) / 2)])
    if area[-1] == 0:
        raise ValueError(f"rates_rps must not be 0 all the time; got {rates.tolist()}")
    if area[-1] > MAX_REQUESTS:
        raise ValueError(f"rates_rps must bring at most {MAX_REQUESTS:g} requests; they bring {area[-1]:g}")
    rng = _stream(seed, _ARRIVALS)
    work = np.zeros(1)
    while work[-1] <= area[-1]:
        left = area[-1] - work[-1]
        gaps = rng.exponential(size=int(left + 4 * np.sqrt(left) + 16))
        work = np.concatenate([work, work[-1] + np.cumsum(gaps)])
    work = work[1 : np.searchsorted(work, area[-1])]
    if not work.size:
        raise ValueError(f"the profile must bring a request; none came, {area[-1]:g} were expected")
    piece = np.searchsorted(area, work, side="right") - 1
    r0, slope = rates[piece], (rates[piece + 1] - rates[piece]) / lasts[piece]
    # r0 * t + slope * t^2 / 2 = area into the piece, solved in the form that keeps its digits at small slopes
    inside = work - area[piece]
    t = 2 * inside / (r0 + np.sqrt(np.maximum(r0**2 + 2 * slope * inside, 0)))
    arrival_s = np.maximum.accumulate(np.minimum(times[piece] + t, times[piece + 1]))
    name = f"rate_profile({times.size} points over {times[-1] - times[0]:g} s, seed={seed})"
    return _open(arrival_s, seed, prompt_tokens, output_tokens, service_scale, priority, name)


def closed_loop(
    clients: int,
    n: int,
    seed: int,
    think_s: Column = 0.0,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """Clients who ask, wait for the answer, think, and ask again: never more than `clients` requests at once.

    When a request comes is up to the simulation: see `Workload`. Many load generators with a fixed
    concurrency work like this, and so does an agent that needs one answer for its next question.

    Parameters
    ----------
    clients : int
        >= 1. With more clients than requests, the rest have nothing to ask.
    n : int
        Requests of all clients together; 1 to 10**8.
    seed : int
        >= 0.
    think_s : number, sequence of n numbers, or law, s
        Pause before each request; >= 0.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`.

    Returns
    -------
    Workload

    Examples
    --------
    >>> from servinglab.lengths import Exponential
    >>> work = closed_loop(clients=8, n=100, seed=1, think_s=Exponential(mean=5))
    >>> work.is_closed, len(work.think_s)
    (True, 100)
    """
    clients, n, seed = check_number("clients", clients, ge=1, integer=True), _check_n(n), _check_seed(seed)
    return Workload(
        arrival_s=np.full(n, np.nan),
        clients=clients,
        think_s=_column("think_s", think_s, n, seed, _THINKS),
        name=f"closed_loop(clients={clients}, n={n}, seed={seed})",
        **_columns(n, seed, prompt_tokens, output_tokens, service_scale, priority),
    )


def _check_never_decreases(name: str, times: NDArray[np.float64]) -> None:
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


def _check_rate(rate_rps: float) -> float:
    return float(check_number("rate_rps", rate_rps, gt=0))


def _check_n(n: int) -> int:
    return int(check_number("n", n, ge=1, le=MAX_REQUESTS, integer=True))


def _check_seed(seed: int) -> int:
    return int(check_number("seed", seed, ge=0, integer=True))


def _stream(seed: int, stream: int) -> np.random.Generator:
    seed = _check_seed(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def _column(name: str, value: Any, n: int, seed: int | None, stream: int) -> NDArray[Any]:
    """One column of n values, not yet checked against the column's own bounds."""
    if _is_sequence(value):
        return check_array(name, value, length=n)
    if hasattr(value, "sample"):
        if seed is None and not isinstance(value, Constant):
            raise ValueError(f"seed must be given where {name} is drawn from a law; got None")
        drawn = value.sample(_stream(seed or 0, stream), n)
        if stream in (_PROMPTS, _OUTPUTS, _PRIORITIES):
            drawn = np.rint(drawn)
        return np.maximum(drawn, 1) if stream == _OUTPUTS else drawn
    return np.full(n, check_number(name, value))


def _columns(
    n: int, seed: int | None, prompt_tokens: Any, output_tokens: Any, service_scale: Any, priority: Any
) -> dict[str, Any]:
    return {
        "prompt_tokens": _column("prompt_tokens", prompt_tokens, n, seed, _PROMPTS),
        "output_tokens": _column("output_tokens", output_tokens, n, seed, _OUTPUTS),
        "service_scale": _column("service_scale", service_scale, n, seed, _SCALES),
        "priority": _column("priority", priority, n, seed, _PRIORITIES),
    }


def _open(
    arrival_s: NDArray[np.float64],
    seed: int | None,
    prompt_tokens: Any,
    output_tokens: Any,
    service_scale: Any,
    priority: Any,
    name: str,
) -> Workload:
    columns = _columns(arrival_s.size, seed, prompt_tokens, output_tokens, service_scale, priority)
    return Workload(arrival_s=arrival_s, name=name, **columns)
