"""When do requests come? Arrivals by a law, at drawn or at counted times, and clients who wait for their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servinglab.base.checks import check_array, check_number
from servinglab.workload.model import (
    ARRIVALS,
    MAX_REQUESTS,
    MAX_TIME_S,
    PHASES,
    THINKS,
    Column,
    Workload,
    check_never_decreases,
    check_seed,
    draw_column,
    draw_columns,
    random_stream,
)

_MAX_SOJOURNS = 10**7


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
    >>> from servinglab.workload.lengths import Geometric
    >>> chat = poisson(rate_rps=20, n=1000, seed=42, prompt_tokens=500, output_tokens=Geometric(mean=200))
    >>> bool((chat.arrival_s == orders.arrival_s).all())
    True
    """
    rate_rps, n = _check_rate(rate_rps), _check_n(n)
    gaps = random_stream(seed, ARRIVALS).exponential(1 / rate_rps, size=n)
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
    seed = None if seed is None else check_seed(seed)
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
    gaps = random_stream(seed, ARRIVALS).gamma(cv**-2, cv**2 / rate_rps, size=n)
    name = f"gamma_arrivals(rate_rps={rate_rps:g}, n={n}, cv={cv:g}, seed={seed})"
    return _open(np.cumsum(gaps), seed, prompt_tokens, output_tokens, service_scale, priority, name)


def timed_arrivals(
    rate_rps: float,
    duration_s: float,
    seed: int,
    cv: float = 1.0,
    prompt_tokens: Column = 0,
    output_tokens: Column = 1,
    service_scale: Column = 1.0,
    priority: Column = 0,
) -> Workload:
    """A level of load: exactly round(rate × duration) requests, spread over exactly that time.

    The arrivals of `gamma_arrivals`, given how many come: the gaps before, between and after them are drawn, then
    stretched to fill the time. With `cv` = 1 these are Poisson arrivals given their number, which is that many
    uniform times. Other generators draw the gaps and take the time that comes of it: of 60 requests at 1 a second
    some 60 ± 8 s, so a short level of theirs isn't the rate that it is called.

    Parameters
    ----------
    rate_rps : float, requests/s
        > 0.
    duration_s : float, s
        > 0; rate × duration at most 10**8. A product below 1 brings one request.
    seed : int
        >= 0.
    cv : float
        Burstiness: 0.001 to 100. Below 1 steadier than Poisson, 1 is Poisson, above 1 burstier.
    prompt_tokens, output_tokens, service_scale, priority : number, sequence of n numbers, or law
        As in `poisson`.

    Returns
    -------
    Workload

    Examples
    --------
    >>> level = timed_arrivals(rate_rps=4, duration_s=60, seed=1)
    >>> len(level), bool(level.arrival_s[-1] <= 60)
    (240, True)
    """
    rate_rps, cv = _check_rate(rate_rps), check_number("cv", cv, ge=0.001, le=100)
    duration_s = check_number("duration_s", duration_s, gt=0, le=MAX_TIME_S)
    wanted = rate_rps * duration_s
    if wanted > MAX_REQUESTS:
        raise ValueError(f"rate_rps and duration_s must bring at most {MAX_REQUESTS:g} requests; they bring {wanted:g}")
    n = max(1, round(wanted))
    shares = random_stream(seed, ARRIVALS).dirichlet(np.full(n + 1, cv**-2))  # gamma gaps, divided by their sum
    arrival_s = duration_s * np.minimum(np.cumsum(shares[:n]), 1.0)
    name = f"timed_arrivals(rate_rps={rate_rps:g}, duration_s={duration_s:g}, seed={seed}, cv={cv:g})"
    return _open(arrival_s, seed, prompt_tokens, output_tokens, service_scale, priority, name)


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
    work = np.cumsum(random_stream(seed, ARRIVALS).exponential(size=n))
    rng = random_stream(seed, PHASES)
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
    check_never_decreases("times_s", times)
    lasts = np.diff(times)
    if not lasts.sum() > 0:
        raise ValueError(f"times_s must end after they start; got {times.tolist()}")
    rates = check_array("rates_rps", rates_rps, length=times.size, ge=0)
    area = np.concatenate([[0.0], np.cumsum(lasts * (rates[:-1] + rates[1:]) / 2)])
    if area[-1] == 0:
        raise ValueError(f"rates_rps must not be 0 all the time; got {rates.tolist()}")
    if area[-1] > MAX_REQUESTS:
        raise ValueError(f"rates_rps must bring at most {MAX_REQUESTS:g} requests; they bring {area[-1]:g}")
    rng = random_stream(seed, ARRIVALS)
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
    >>> from servinglab.workload.lengths import Exponential
    >>> work = closed_loop(clients=8, n=100, seed=1, think_s=Exponential(mean=5))
    >>> work.is_closed, len(work.think_s)
    (True, 100)
    """
    clients, n, seed = check_number("clients", clients, ge=1, integer=True), _check_n(n), check_seed(seed)
    return Workload(
        arrival_s=np.full(n, np.nan),
        clients=clients,
        think_s=draw_column("think_s", think_s, n, seed, THINKS),
        name=f"closed_loop(clients={clients}, n={n}, seed={seed})",
        **draw_columns(n, seed, prompt_tokens, output_tokens, service_scale, priority),
    )


def _check_rate(rate_rps: float) -> float:
    return float(check_number("rate_rps", rate_rps, gt=0))


def _check_n(n: int) -> int:
    return int(check_number("n", n, ge=1, le=MAX_REQUESTS, integer=True))


def _open(
    arrival_s: NDArray[np.float64],
    seed: int | None,
    prompt_tokens: Any,
    output_tokens: Any,
    service_scale: Any,
    priority: Any,
    name: str,
) -> Workload:
    columns = draw_columns(arrival_s.size, seed, prompt_tokens, output_tokens, service_scale, priority)
    return Workload(arrival_s=arrival_s, name=name, **columns)
