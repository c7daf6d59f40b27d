"""What mathematics says about pots, lines and batches, each result with its source and its conditions.

Models one kind of guest: arrivals are Poisson with rate λ (`rate_rps`), a batch of B takes t + r·B seconds
(`fixed_s` + `per_request_s`·B), the line is first come, first served and endless, and the kitchen has been
open for long (the *steady state*). Chapter 1 sets these laws beside `servinglab.simulate`.

Doesn't model bursts, guests who leave, answers of several tokens (`servinglab.theory.tokens`), or the first minutes
after opening. Each function says where else its formula stops being true.

The exact laws come as a `QueueLaw`: means, tails P(· > t) for a time or an array of times, and quantiles.
Accuracy: a tail is right to about 1e-10, so a P99 to about 1e-8 of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_array, check_number
from servinglab.theory.steady_state import BatchStarts, Departures, Line

_ROUNDING = 1e-9  # 4.999999999 is 5: how far a computed count may lie from a whole number


# One pot, no randomness


def pot_rate(batch_size: float, fixed_s: float, per_request_s: float) -> float:
    """Requests per second of one pot that always cooks full batches: Q(B) = B / (t + r·B).

    This is a capacity: what the pot could serve, whatever comes. It rises with B towards 1/r and has no peak.
    Holds for one-step orders (the first document's "throughput of one instance").

    Parameters
    ----------
    batch_size : float
        B > 0; a mean batch may be fractional.
    fixed_s, per_request_s : float
        t ≥ 0 and r ≥ 0, in seconds, not both 0.

    Returns
    -------
    float
        Requests per second.

    Examples
    --------
    >>> round(pot_rate(15, fixed_s=0.4, per_request_s=0.02), 2)
    21.43
    """
    size = check_number("batch_size", batch_size, gt=0)
    fixed, per_request = _check_pot(fixed_s, per_request_s)
    return float(size / (fixed + per_request * size))


def pot_rate_limit(per_request_s: float) -> float:
    """What Q(B) approaches as B grows: 1/r requests per second; infinite if r = 0.

    Examples
    --------
    >>> pot_rate_limit(0.02)
    50.0
    """
    per_request = check_number("per_request_s", per_request_s, ge=0)
    return 1 / per_request if per_request else math.inf


def half_saturation_batch(fixed_s: float, per_request_s: float) -> float:
    """The batch at which Q(B) is half of its limit: B = t/r.

    Throughput over latency, Q(B)/(t + r·B), has its peak there.

    Parameters
    ----------
    fixed_s : float
        t ≥ 0, in seconds.
    per_request_s : float
        r > 0, in seconds.

    Examples
    --------
    >>> half_saturation_batch(fixed_s=0.4, per_request_s=0.02)
    20.0
    """
    fixed = check_number("fixed_s", fixed_s, ge=0)
    return float(fixed / check_number("per_request_s", per_request_s, gt=0))


def smallest_batch_for_fraction(fraction: float, fixed_s: float, per_request_s: float) -> int:
    """The smallest whole B whose Q(B) reaches a fraction f of the limit 1/r: ⌈f/(1 − f) · t/r⌉.

    Not linear in f: each halving of what is missing doubles the batch.

    Parameters
    ----------
    fraction : float
        0 < f < 1.
    fixed_s : float
        t ≥ 0, in seconds.
    per_request_s : float
        r > 0, in seconds.

    Examples
    --------
    >>> [smallest_batch_for_fraction(f, fixed_s=0.4, per_request_s=0.02) for f in (0.5, 0.75, 0.9, 0.99)]
    [20, 60, 180, 1980]
    """
    share = check_number("fraction", fraction, gt=0, lt=1)
    return max(1, math.ceil(_settle(share / (1 - share) * half_saturation_batch(fixed_s, per_request_s))))


def utilization(rate_rps: float, batch_size: float, fixed_s: float, per_request_s: float, pots: int = 1) -> float:
    """Offered load ρ = λ·(t + r·B) / (B·pots): the share of time that the pots must cook full batches.

    Below 1 a steady state exists; at 1 or above the line grows for ever.

    Examples
    --------
    >>> round(utilization(20, batch_size=15, fixed_s=0.4, per_request_s=0.02), 4)
    0.9333
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    many = check_number("pots", pots, ge=1, integer=True)
    return float(rate / pot_rate(batch_size, fixed_s, per_request_s) / many)


def min_stable_batch(rate_rps: float, fixed_s: float, per_request_s: float) -> int | None:
    """The smallest whole B for which one pot keeps up: ⌊λt/(1 − λr)⌋ + 1, or None if λr ≥ 1.

    λ·(t + r·B) < B must hold strictly: at ρ = 1 the line has no steady state. A value within 1e-9 of a whole
    number counts as that number, so that rounding can't let ρ = 1 through.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    fixed_s, per_request_s : float
        t ≥ 0 and r ≥ 0, in seconds, not both 0.

    Examples
    --------
    >>> min_stable_batch(20, fixed_s=0.4, per_request_s=0.02)
    14
    >>> min_stable_batch(10, fixed_s=0.5, per_request_s=0.05)    # at 10, ρ is exactly 1
    11
    >>> min_stable_batch(50, fixed_s=0.4, per_request_s=0.02) is None
    True
    """
    mean = mean_taken_batch(rate_rps, fixed_s, per_request_s)
    return None if math.isinf(mean) else math.floor(_settle(mean)) + 1


def mean_taken_batch(rate_rps: float, fixed_s: float, per_request_s: float) -> float:
    """Where the batch settles by itself when a pot takes what is there: λt/(1 − λr); infinite if λr ≥ 1.

    The batch that brings in, while it cooks, as many guests as it holds: b = λ·(t + r·b). It is a balance of
    means: exactly, the mean batch is (λt + p)/(1 − λr) with p the share of batches that leave nobody waiting
    (`bulk_service`), so it holds when the pot is seldom idle. Under an upper limit B it needs λt/(1 − λr) <
    B.

    Examples
    --------
    >>> round(mean_taken_batch(20, fixed_s=0.4, per_request_s=0.02), 3)
    13.333
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    fixed, per_request = _check_pot(fixed_s, per_request_s)
    spare = 1 - rate * per_request
    return float(rate * fixed / spare) if spare > _ROUNDING else math.inf


# Gathering a batch


def first_guest_wait(rate_rps: float, batch_size: int, max_wait_s: float = math.inf) -> float:
    """The first document's wait before a batch starts: min(W_max, (B − 1)/λ), for the batch's *first* guest.

    (B − 1)/λ is a mean: B − 1 others must come. With a window the formula is the smaller of two numbers, not
    the mean of the smaller, which is less. It knows nothing of a pot that is still busy.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    batch_size : int
        B ≥ 1.
    max_wait_s : float
        W_max ≥ 0 in seconds; infinite (the default) for no window.

    Examples
    --------
    >>> first_guest_wait(20, 15)
    0.7
    >>> first_guest_wait(20, 15, max_wait_s=0.5)
    0.5
    """
    rate, size, window = _check_gathering(rate_rps, batch_size, max_wait_s)
    return float(min(window, (size - 1) / rate))


def gather_mean(rate_rps: float, batch_size: int, max_wait_s: float = math.inf) -> float:
    """Mean wait of a random guest until its batch starts: (B − 1)/(2λ) without a window, half of the first guest's.

    With a window it is the area under `gather_tail`, in closed form.

    Parameters
    ----------
    rate_rps, batch_size, max_wait_s
        As in `gather_tail`.

    Examples
    --------
    >>> gather_mean(20, 15)
    0.35
    >>> round(gather_mean(20, 15, max_wait_s=0.5), 4)
    0.2635
    """
    rate, size, window = _check_gathering(rate_rps, batch_size, max_wait_s)
    if window == math.inf:
        return (size - 1) / rate / 2
    from scipy.special import pdtrc

    others = np.arange(1, size)
    first = pdtrc(others - 1, rate * window).sum() / rate  # ∫ P(fewer than B − 1 came by t) dt
    rest = (np.arange(1, size - 1) * pdtrc(np.arange(1, size - 1), rate * window)).sum() / rate
    return float((first + rest) / gathered_batch(rate, size, window))


def gathered_batch(rate_rps: float, batch_size: int, max_wait_s: float) -> float:
    """Mean size of a batch that starts when B are there or the first has waited W: 1 + E[min(Poisson(λW), B − 1)].

    Holds where a pot is always free; behind a busy pot batches grow.

    Parameters
    ----------
    rate_rps, batch_size, max_wait_s
        As in `gather_tail`.

    Examples
    --------
    >>> round(gathered_batch(20, 15, max_wait_s=0.5), 2)
    10.81
    """
    rate, size, window = _check_gathering(rate_rps, batch_size, max_wait_s)
    if window == math.inf:
        return float(size)
    from scipy.special import pdtrc

    return float(1 + pdtrc(np.arange(size - 1), rate * window).sum())


def gather_tail(t_s: Any, rate_rps: float, batch_size: int, max_wait_s: float = math.inf) -> Any:
    """P(a random guest waits longer than t until its batch starts), with a pot always free.

    Without a window, (1/B) Σ_{j<B} P(Erlang(j, λ) > t): a guest is equally likely to be any of the B, and with j guests
    still to come it waits for j exponential gaps.

    With a window W the batch starts when B are there or the first has waited W. The first waits longer than t < W if
    fewer than B − 1 came within t. One who comes u − t after the first does if u < W and, itself counted, fewer than
    B − 1 came within u. So with N guests per batch (`gathered_batch`),
    P(> t) = [P(Poisson(λt) ≤ B − 2) + Σ_{j≤B−3} (P(Erlang(j + 1) ≤ W) − P(Erlang(j + 1) ≤ t))] / E[N].

    Exact for Poisson arrivals; the wait for a busy pot isn't in it.

    Parameters
    ----------
    t_s : float or array
        Seconds.
    rate_rps : float
        λ > 0.
    batch_size : int
        B ≥ 1.
    max_wait_s : float
        W ≥ 0 in seconds; infinite (the default) for no window.

    Returns
    -------
    float or array
        Probabilities, of the shape of `t_s`.

    Examples
    --------
    >>> gather_tail(0.0, 20, 4)      # all but the last guest wait
    0.75
    """
    rate, size, window = _check_gathering(rate_rps, batch_size, max_wait_s)
    mean_batch = gathered_batch(rate, size, window)
    from scipy.special import pdtr, pdtrc

    def tail(t: float) -> float:
        if t < 0:
            return 1.0
        if t >= window:
            return 0.0
        if window == math.inf:  # P(Erlang(j) > t): fewer than j arrivals within t
            return float(pdtr(np.arange(size - 1), rate * t).sum() / size)
        first = float(pdtr(size - 2, rate * t)) if size > 1 else 0.0
        later = np.arange(size - 2)
        return (first + float((pdtrc(later, rate * window) - pdtrc(later, rate * t)).sum())) / mean_batch

    return _at_each(t_s, tail)


def gather_quantile(q: float, rate_rps: float, batch_size: int, max_wait_s: float = math.inf) -> float:
    """The wait for a batch's start that a fraction q of the guests don't exceed, in seconds, with a pot always free.

    Parameters
    ----------
    q : float
        0 < q < 1, for example 0.99.
    rate_rps, batch_size, max_wait_s
        As in `gather_tail`.

    Examples
    --------
    >>> round(gather_quantile(0.99, 20, 15) + 0.4 + 0.02 * 15, 3)    # P99 of batch 15, a pot always free
    1.697
    """
    return _quantile(lambda t: gather_tail(t, rate_rps, batch_size, max_wait_s), q)


# Laws of waiting


@dataclass(frozen=True)
class QueueLaw:
    """How long guests wait and stay in the steady state.

    Attributes
    ----------
    rate_rps : float
        Customers per second (guests; batches in `batch_queue`).
    utilization : float
        The share of the pots' time spent cooking.
    mean_wait_s, mean_latency_s : float
        From arrival until cooking starts, and until it ends.

    Examples
    --------
    >>> law = mm1(rate_rps=0.8, service_s=1.0)
    >>> round(law.mean_latency_s, 9), round(law.latency_quantile(0.99), 3)
    (5.0, 23.026)
    """

    rate_rps: float
    utilization: float
    mean_wait_s: float
    mean_latency_s: float
    _wait_tail: Callable[[float], float] = field(repr=False)
    _latency_tail: Callable[[float], float] = field(repr=False)

    @property
    def mean_in_system(self) -> float:
        """Little's law: rate · mean latency."""
        return self.rate_rps * self.mean_latency_s

    @property
    def mean_in_line(self) -> float:
        """Little's law for the line alone: rate · mean wait."""
        return self.rate_rps * self.mean_wait_s

    def wait_tail(self, t_s: Any) -> Any:
        """P(wait > t) for a time or an array of times, in seconds."""
        return _at_each(t_s, self._wait_tail)

    def latency_tail(self, t_s: Any) -> Any:
        """P(latency > t) for a time or an array of times, in seconds."""
        return _at_each(t_s, self._latency_tail)

    def wait_quantile(self, q: float) -> float:
        """inf{t : P(wait ≤ t) ≥ q} in seconds, for 0 < q < 1."""
        return _quantile(self._wait_tail, q)

    def latency_quantile(self, q: float) -> float:
        """inf{t : P(latency ≤ t) ≥ q} in seconds, for 0 < q < 1."""
        return _quantile(self._latency_tail, q)


def mm1(rate_rps: float, service_s: float) -> QueueLaw:
    """M/M/1: Poisson arrivals, exponential service times, one pot, one guest at a time.

    With μ = 1/service_s and ρ = λ/μ: P(wait > t) = ρ·e^{−(μ−λ)t}, P(latency > t) = e^{−(μ−λ)t}, mean wait
    ρ/(μ − λ). Source: Kleinrock, *Queueing Systems, Volume 1: Theory* (1975), chapter 3 (the M/M/1 queue) for
    the means and Gross and Harris, *Fundamentals of Queueing Theory*, chapter on simple Markovian models, for
    the waiting times. The means hold in any order that ignores lengths; the tails need first come, first
    served.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below 1/service_s.
    service_s : float
        Mean service time > 0, in seconds.

    Raises
    ------
    ValueError
        If λ·service_s ≥ 1: there is no steady state.

    Examples
    --------
    >>> round(mm1(rate_rps=0.9, service_s=1.0).mean_wait_s, 9)
    9.0
    """
    rate, service, load = _check_queue(rate_rps, service_s)
    slack = (1 - load) / service  # μ − λ
    return QueueLaw(
        rate_rps=rate,
        utilization=load,
        mean_wait_s=load / slack,
        mean_latency_s=1 / slack,
        _wait_tail=lambda t: load * math.exp(-slack * t) if t >= 0 else 1.0,
        _latency_tail=lambda t: math.exp(-slack * t) if t >= 0 else 1.0,
    )


def md1(rate_rps: float, service_s: float) -> QueueLaw:
    """M/D/1: Poisson arrivals, one guest at a time, every service as long as every other.

    Mean wait ρ·service_s/(2(1 − ρ)): half of M/M/1's. The law of the wait is Erlang's (1909), here by Franx's
    sum of positive terms, which doesn't lose digits as Erlang's alternating sum does: G. J. Franx, "A simple
    solution for the M/D/c waiting time distribution", *Operations Research Letters* 29 (2001) 221–229, with c
    = 1. First come, first served.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below 1/service_s.
    service_s : float
        Service time > 0, in seconds.

    Raises
    ------
    ValueError
        If λ·service_s ≥ 1: there is no steady state.

    Examples
    --------
    >>> law = md1(rate_rps=0.9, service_s=1.0)
    >>> round(law.mean_wait_s, 9), round(1 - law.wait_tail(0.0), 9)     # who doesn't wait: 1 − ρ
    (4.5, 0.1)
    """
    rate, service, load = _check_queue(rate_rps, service_s)
    mean_wait = pollaczek_khinchine(rate, service, service_cv=0.0)
    return _constant_service(rate, service, load, mean_wait, Departures(rate, 1, service).wait_tail)


def pollaczek_khinchine(rate_rps: float, service_s: float, service_cv: float) -> float:
    """Mean wait of M/G/1, in seconds: ρ/(1 − ρ) · (1 + c²)/2 · service_s, with c the service time's CV.

    Only the mean and the CV (standard deviation over mean) of the service time matter. Source: Kleinrock,
    *Queueing Systems, Volume 1* (1975), chapter 5 (the Pollaczek–Khinchine mean value formula). Holds for
    Poisson arrivals and independent service times, one pot, one guest at a time, in any order that ignores
    lengths.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below 1/service_s.
    service_s : float
        Mean service time > 0, in seconds.
    service_cv : float
        c ≥ 0: 0 for constant, 1 for exponential services.

    Examples
    --------
    >>> [round(pollaczek_khinchine(0.9, 1.0, service_cv=c), 6) for c in (0, 1, 2)]
    [4.5, 9.0, 22.5]
    """
    _, service, load = _check_queue(rate_rps, service_s)
    cv = check_number("service_cv", service_cv, ge=0)
    return float(load / (1 - load) * (1 + cv * cv) / 2 * service)


def batch_queue(rate_rps: float, batch_size: int, service_s: float, pots: int = 1) -> QueueLaw:
    """E_B/D/pots: full batches as customers. How long does a batch, once full, wait for a pot?

    Every B-th guest completes a batch, so batches come at Erlang(B, λ) gaps and are cooked for `service_s`
    each. A batch waits as long as the customers of M/D/c with c = B·pots servers do: there, too, a customer
    follows the one c places before. The law is Franx's sum (see `md1`); the mean is Little's law for that
    line.

    Parameters
    ----------
    rate_rps : float
        Guests per second, λ > 0, below B·pots/service_s.
    batch_size : int
        B ≥ 1.
    service_s : float
        What a batch takes, > 0, in seconds.
    pots : int
        At least 1.

    Returns
    -------
    QueueLaw
        Of batches: its rate is λ/B.

    Raises
    ------
    ValueError
        If there is no steady state, or it lies too near to saturation for the numerical method.

    Examples
    --------
    >>> law = batch_queue(rate_rps=20, batch_size=15, service_s=0.7)
    >>> round(law.mean_wait_s, 4), round(law.wait_quantile(0.99), 4)
    (0.2591, 1.4846)
    """
    rate, size, _ = _check_gathering(rate_rps, batch_size)
    service = check_number("service_s", service_s, gt=0)
    many = check_number("pots", pots, ge=1, integer=True)
    load = _check_stable(rate, size * many / service)
    departures = Departures(rate, size * many, service)
    return _constant_service(rate / size, service, load, departures.mean_wait_s, departures.wait_tail)


def static_batching(
    rate_rps: float, batch_size: int, fixed_s: float, per_request_s: float, pots: int | None = 1
) -> QueueLaw:
    """What guests of static batching live through: gathering, the batch's wait for a pot, and the cooking.

    The mean adds up: (B − 1)/(2λ) + the batch's mean wait + t + r·B. The P99s don't: a batch that was slow to
    gather finds its pot free. With `pots` endless, latency = gathering + t + r·B. Otherwise guest j of a
    batch waits for the later of two moments: its batch is full, G = Erlang(B − j, λ) after its arrival, or
    the batch `pots` before is done, V = W + D − Erlang((pots − 1)·B + j, λ) after it, where W is that batch's
    wait. Past and future gaps are independent, so P(wait ≤ z) = (1/B) Σ_j P(G ≤ z)·P(V ≤ z). P(V ≤ z) is the
    chance that the customer B·(pots−1) + j places before has left M/D/(B·pots) by z, which Franx's argument
    (see `md1`) gives for any number of places.

    Exact for Poisson arrivals, one-step orders, and batches that start only when full.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below pots · Q(B).
    batch_size : int
        B ≥ 1.
    fixed_s, per_request_s : float
        t ≥ 0 and r ≥ 0, in seconds, not both 0.
    pots : int or None
        None: endless, a pot is always free.

    Returns
    -------
    QueueLaw
        Of guests; `utilization` is the load per pot, 0 if endless.

    Raises
    ------
    ValueError
        If there is no steady state, or it lies too near to saturation for the numerical method.

    Examples
    --------
    >>> for pots in (1, 2, None):
    ...     law = static_batching(20, batch_size=15, fixed_s=0.4, per_request_s=0.02, pots=pots)
    ...     print(pots, round(law.mean_latency_s, 3), round(law.latency_quantile(0.99), 3))
    1 1.309 2.569
    2 1.05 1.697
    None 1.05 1.697
    """
    rate, size, _ = _check_gathering(rate_rps, batch_size)
    fixed, per_request = _check_pot(fixed_s, per_request_s)
    service = fixed + per_request * size
    if pots is None:
        return _constant_service(
            rate, service, 0.0, gather_mean(rate, size), lambda t: float(gather_tail(t, rate, size))
        )
    many = check_number("pots", pots, ge=1, integer=True)
    load = _check_stable(rate, size * many / service)
    departures = Departures(rate, size * many, service)
    from scipy.special import pdtrc

    seat = np.arange(1, size + 1)
    places = (many - 1) * size + seat

    def wait_tail(z: float) -> float:
        if z < 0:
            return 1.0
        full = np.ones(size)
        full[:-1] = pdtrc(size - seat[:-1] - 1, rate * z)  # P(Erlang(B − j) ≤ z): at least B − j arrivals
        return float(1 - (full * departures.by(z, places)).mean())

    mean_wait = gather_mean(rate, size) + departures.mean_wait_s
    return _constant_service(rate, service, load, mean_wait, wait_tail)


# Taking what is there


@dataclass(frozen=True)
class BulkLaw(QueueLaw):
    """A `QueueLaw` of guests, with the sizes of the batches they are cooked in.

    Attributes
    ----------
    batch_pmf : float array, B + 1
        Share of the batches that hold 0, 1, … B guests.
    clear_probability : float
        Share of the batches that leave nobody waiting.
    """

    batch_pmf: Floats = field(repr=False)
    clear_probability: float

    @property
    def mean_batch(self) -> float:
        """Guests per batch."""
        return float(self.batch_pmf @ np.arange(len(self.batch_pmf)))


def bulk_service(rate_rps: float, service_s: Sequence[float] | Floats) -> BulkLaw:
    """Take what is there, up to B: a free pot takes min(line, B) guests, or the next one to come.

    The line that a batch leaves behind is a Markov chain, n → n − b + Poisson(λ·s(b)) with b = min(max(n, 1),
    B). It is solved as a finite system of equations with a geometric tail, twice, and the two sizes must
    agree to 1e-10. A guest finds the state that an outside observer would (Poisson arrivals see time
    averages), so its latency follows by conditioning on the batch in the pot, the time that batch still
    needs, and the line ahead; that density is integrated by polynomials that are exact to rounding between
    its kinks.

    Source of the chain: N. T. J. Bailey, "On queueing processes with bulk service", *J. Royal Statistical
    Society B* 16 (1954) 80–87; M. F. Neuts, "A general class of bulk queues with Poisson input", *Annals of
    Mathematical Statistics* 38 (1967) 759–770; M. L. Chaudhry and J. G. C. Templeton, *A First Course in Bulk
    Queues* (1983). For inference servers without a limit B: Y. Inoue, "Queueing analysis of GPU-based
    inference servers with dynamic batching", *Performance Evaluation* 147 (2021) 102183, arXiv:1912.06322.

    Exact for Poisson arrivals, one pot and one-step orders, first come, first served.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below B/s(B).
    service_s : sequence of B floats
        s(1) … s(B) in seconds, > 0, none shorter than the one before; B is its length.

    Returns
    -------
    BulkLaw

    Raises
    ------
    ValueError
        If a service time breaks the rule, if there is no steady state, or if it lies too near to saturation
        for the numerical method.

    Examples
    --------
    >>> law = bulk_service(20, [0.4 + 0.02 * b for b in range(1, 33)])
    >>> round(law.mean_batch, 2), round(law.mean_latency_s, 3), round(law.latency_quantile(0.99), 3)
    (13.33, 1.029, 1.537)
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    service = check_array("service_s", service_s, gt=0)
    if not service.size or (np.diff(service) < 0).any():
        raise ValueError(f"service_s must be a rising sequence of finite times > 0 s; got {service_s!r}")
    _check_stable(rate, len(service) / service[-1])

    line = Line(rate * service)
    limit = len(service)
    sizes = np.arange(limit + 1)
    pmf = line.pmf(sizes)
    pmf[1] += pmf[0]  # an empty line: the next guest is cooked alone
    clear, pmf[0] = float(pmf[0]), 0.0
    pmf[limit] = 1 - pmf[:limit].sum()
    mean_batch = float(pmf @ sizes)
    cooking = float(pmf[1:] @ service)
    starts = BatchStarts(rate, service, line, pmf, clear, mean_batch)
    return BulkLaw(
        rate_rps=rate,
        utilization=cooking / (cooking + clear / rate),
        mean_wait_s=starts.mean_wait_s,
        mean_latency_s=starts.mean_latency_s,
        _wait_tail=starts.wait_tail,
        _latency_tail=starts.latency_tail,
        batch_pmf=pmf,
        clear_probability=clear,
    )


def _constant_service(
    rate: float, service: float, load: float, mean_wait: float, wait_tail: Callable[[float], float]
) -> QueueLaw:
    return QueueLaw(
        rate_rps=rate,
        utilization=load,
        mean_wait_s=mean_wait,
        mean_latency_s=mean_wait + service,
        _wait_tail=wait_tail,
        _latency_tail=lambda t: wait_tail(t - service),
    )


def _at_each(t_s: Any, tail: Callable[[float], float]) -> Any:
    times = np.asarray(t_s, dtype=np.float64)
    if times.ndim == 0:
        return tail(float(times))
    return np.array([tail(float(t)) for t in times.ravel()]).reshape(times.shape)


def _quantile(tail: Callable[[float], float], q: float) -> float:
    """inf{t : tail(t) ≤ 1 − q} by bisection, which jumps in the law don't disturb."""
    beyond = 1 - check_number("q", q, gt=0, lt=1)
    low, high = 0.0, 1.0
    if tail(low) <= beyond:
        return low
    while tail(high) > beyond:
        low, high = high, high * 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if tail(middle) > beyond:
            low = middle
        else:
            high = middle
    return high


def _settle(count: float) -> float:
    """A count that lies within rounding of a whole number is that number."""
    whole = round(count)
    return float(whole) if abs(count - whole) <= _ROUNDING * max(1.0, abs(count)) else count


def _check_pot(fixed_s: float, per_request_s: float) -> tuple[float, float]:
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, ge=0)
    if fixed + per_request == 0:
        raise ValueError("fixed_s + per_request_s must be > 0; got 0")
    return fixed, per_request


def _check_gathering(rate_rps: float, batch_size: int, max_wait_s: float = math.inf) -> tuple[float, int, float]:
    rate = check_number("rate_rps", rate_rps, gt=0)
    size = check_number("batch_size", batch_size, ge=1, integer=True)
    return rate, size, math.inf if max_wait_s == math.inf else check_number("max_wait_s", max_wait_s, ge=0)


def _check_queue(rate_rps: float, service_s: float) -> tuple[float, float, float]:
    rate = check_number("rate_rps", rate_rps, gt=0)
    service = check_number("service_s", service_s, gt=0)
    return rate, service, _check_stable(rate, 1 / service)


def _check_stable(rate: float, capacity: float) -> float:
    """The load, if it is below 1."""
    load = rate / capacity
    if load >= 1 - _ROUNDING:
        raise ValueError(
            f"rate_rps must be < {capacity:.6g}, what the pots can serve, or the line grows for ever; got {rate!r}"
        )
    return load
