"""What mathematics says about engines that hand out tokens, each result with its source and its conditions.

Models a step that takes a + b·n + c·(prompt tokens) seconds with n requests in it (`fixed_s`, `per_request_s`,
`per_prefill_token_s`), Poisson arrivals at λ (`rate_rps`), and requests of P prompt tokens and T output tokens, each
one step. Continuous batching admits at once; a request leaves after its last token. The steady state, unless a function
says otherwise.

Doesn't model steps that read the KV cache (`per_kv_token_s`), budgets of tokens, preemption or bursts. Where those
count, simulate. Kitchen orders of one step are in `servinglab.theory`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats
from servinglab.base.checks import check_array, check_number
from servinglab.workload.lengths import Geometric

_ROUNDING = 1e-9


# Continuous batching


@dataclass(frozen=True)
class SharingLaw:
    """How many requests are inside, and how long each stays, where every step serves all of them.

    Attributes
    ----------
    rate_rps : float
        λ.
    mean_output_tokens : float
        E[T].
    load : float
        b·λ·E[T]: the share of time that tokens cost however well steps are shared. Below 1.
    mean_in_system : float
        E[n].
    tpot_s : float
        E[n]/(λ·E[T]): seconds per token.
    mean_latency_s : float
        E[n]/λ.

    Examples
    --------
    >>> law = decode_sharing(rate_rps=4, mean_output_tokens=200, fixed_s=0.02, per_request_s=0.0005)
    >>> round(law.tpot_s, 5), round(law.mean_in_system, 2), round(law.mean_latency_s, 3)
    (0.03417, 27.33, 6.833)
    """

    rate_rps: float
    mean_output_tokens: float
    load: float
    mean_in_system: float
    tpot_s: float
    mean_latency_s: float
    _shape: float  # a/b; infinite where b = 0
    _mean_at_no_slope: float  # a·λ·E[T]

    def pmf(self, n: Any) -> Any:
        """P(n requests inside), for a whole number n ≥ 0 or an array of them."""
        return np.exp(self._log_pmf(np.asarray(n)))

    def tail(self, n: int) -> float:
        """P(more than n inside): how often a cap of n seats would bind."""
        from scipy.stats import nbinom, poisson

        if self.load == 0:
            return float(poisson.sf(n, self._mean_at_no_slope))
        return float(nbinom.sf(n, self._shape + 1, 1 - self.load))

    def quantile(self, q: float) -> int:
        """The smallest n with P(at most n inside) ≥ q, for 0 < q < 1."""
        from scipy.stats import nbinom, poisson

        fraction = check_number("q", q, gt=0, lt=1)
        if self.load == 0:
            return int(poisson.ppf(fraction, self._mean_at_no_slope))
        return int(nbinom.ppf(fraction, self._shape + 1, 1 - self.load))

    def _log_pmf(self, n: npt.NDArray[Any]) -> Floats:
        from scipy.stats import nbinom, poisson

        if self.load == 0:
            return np.asarray(poisson.logpmf(n, self._mean_at_no_slope))
        return np.asarray(nbinom.logpmf(n, self._shape + 1, 1 - self.load))


def decode_sharing(rate_rps: float, mean_output_tokens: float, fixed_s: float, per_request_s: float) -> SharingLaw:
    """Decode-only continuous batching without a cap: p(n) ∝ (λE[T])^n ∏_{k≤n} (a + b·k)/k.

    With n inside, each gets a token every a + b·n seconds: in the limit of many tokens the pot is a processor that
    shares n/(a + b·n) tokens per second evenly. For such a queue p(n) depends on the lengths' mean alone, whatever
    their law, and a request's mean latency is proportional to its length. The product is a negative binomial law
    (Poisson for b = 0), with E[n] = (a + b)·X/(1 − b·X) for X = λE[T], so TPOT = (a + b)/(1 − b·X).

    Source: F. P. Kelly, *Reversibility and Stochastic Networks* (1979), section 3.3 (symmetric queues); J. W. Cohen,
    "The multiple phase service network with generalized processor sharing", *Acta Informatica* 12 (1979) 245–284.

    Exact in that limit, for Poisson arrivals, independent lengths, immediate admission and prompts that cost nothing. A
    real request waits for the end of the step that it comes into, and leaves only at a step's end; with few steps
    between arrivals (λ·(a + b·n) well below 1) that is little. With a cap and a line, first come, first served, lengths
    matter.

    Parameters
    ----------
    rate_rps : float
        λ > 0, below 1/(b·E[T]).
    mean_output_tokens : float
        E[T] ≥ 1.
    fixed_s, per_request_s : float
        a ≥ 0 and b ≥ 0, in seconds, not both 0.

    Returns
    -------
    SharingLaw

    Raises
    ------
    ValueError
        If b·λ·E[T] ≥ 1: no batch is large enough.

    Examples
    --------
    >>> law = decode_sharing(rate_rps=4, mean_output_tokens=200, fixed_s=0.02, per_request_s=0.0005)
    >>> law.quantile(0.99), round(law.tail(40), 4)
    (45, 0.0341)
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    tokens = check_number("mean_output_tokens", mean_output_tokens, ge=1)
    fixed, per_request, _ = _check_step(fixed_s, per_request_s, 0.0)
    load = rate * tokens * per_request
    if load >= 1 - _ROUNDING:
        raise ValueError(
            f"rate_rps must be < 1/(per_request_s * mean_output_tokens) = {1 / (per_request * tokens):.6g}, "
            f"or the requests inside grow for ever; got {rate!r}"
        )
    token_rate = rate * tokens
    inside = token_rate * (fixed + per_request) / (1 - load)
    return SharingLaw(
        rate_rps=rate,
        mean_output_tokens=tokens,
        load=load,
        mean_in_system=inside,
        tpot_s=inside / token_rate,
        mean_latency_s=inside / rate,
        _shape=fixed / per_request if per_request else math.inf,
        _mean_at_no_slope=fixed * token_rate,
    )


def tpot_s(
    rate_rps: float,
    mean_output_tokens: float,
    fixed_s: float,
    per_request_s: float,
    per_prefill_token_s: float = 0.0,
    mean_prompt_tokens: float = 0.0,
) -> float:
    """Seconds per token while nothing queues: (a + b)/(1 − b·λT − c·λP).

    Each second, tokens cost b·λT and prompts c·λP; the steps' fixed costs must fit into what is left. Exact for means
    without prompts (`decode_sharing`); with prompts it is a fluid approximation, within a few per cent while λ·c·P
    stays below about a half and one prompt is short against the time between arrivals. It knows no waiting line: with a
    cap it holds while the cap seldom binds.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    mean_output_tokens : float
        T ≥ 1.
    fixed_s, per_request_s, per_prefill_token_s : float
        a, b, c ≥ 0, in seconds; a + b > 0.
    mean_prompt_tokens : float
        P ≥ 0.

    Raises
    ------
    ValueError
        If b·λT + c·λP ≥ 1: no batch is large enough.

    Examples
    --------
    >>> round(tpot_s(4, 200, fixed_s=0.02, per_request_s=5e-4, per_prefill_token_s=1e-4, mean_prompt_tokens=1000), 4)
    0.1025
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    tokens = check_number("mean_output_tokens", mean_output_tokens, ge=1)
    prompt = check_number("mean_prompt_tokens", mean_prompt_tokens, ge=0)
    fixed, per_request, per_prefill = _check_step(fixed_s, per_request_s, per_prefill_token_s)
    each = per_request * tokens + per_prefill * prompt
    if rate * each >= 1 - _ROUNDING:
        raise ValueError(
            f"rate_rps must be < 1/(b·T + c·P) = {1 / each:.6g}, or the requests inside grow for ever; got {rate!r}"
        )
    return float((fixed + per_request) / (1 - rate * each))


def max_rate_rps(
    max_num_seqs: float,
    mean_output_tokens: float,
    fixed_s: float,
    per_request_s: float,
    per_prefill_token_s: float = 0.0,
    mean_prompt_tokens: float = 0.0,
) -> float:
    """The most that a cap of N seats can carry: λ_max = 1/(c·P + T·(a/N + b)) requests per second.

    With a line that never empties all N seats are taken in every step. A request then costs its prompt, and in each of
    its T steps b and an N-th of a. (Its prompt is computed in the step that gives its first token.) At or above λ_max
    the line grows for ever. It is a capacity, whatever the arrivals and the law of lengths. Fewer than N seats are in
    use where memory or a budget of tokens binds first: give that number instead.

    Parameters
    ----------
    max_num_seqs : float
        N > 0; a mean may be fractional, and infinite stands for no cap.
    mean_output_tokens, fixed_s, per_request_s, per_prefill_token_s, mean_prompt_tokens
        As in `tpot_s`.

    Examples
    --------
    >>> [round(max_rate_rps(n, 200, fixed_s=0.02, per_request_s=0.0005), 2) for n in (1, 16, 256, math.inf)]
    [0.24, 2.86, 8.65, 10.0]
    """
    seats = math.inf if max_num_seqs == math.inf else check_number("max_num_seqs", max_num_seqs, gt=0)
    tokens = check_number("mean_output_tokens", mean_output_tokens, ge=1)
    prompt = check_number("mean_prompt_tokens", mean_prompt_tokens, ge=0)
    fixed, per_request, per_prefill = _check_step(fixed_s, per_request_s, per_prefill_token_s)
    each = per_prefill * prompt + tokens * (fixed / seats + per_request)
    return 1 / each if each else math.inf


def budget_seats(max_num_batched_tokens: int, mean_output_tokens: float, mean_prompt_tokens: float) -> float:
    """How many seats a budget of M tokens per step can keep busy: M·T/(T + P).

    With n seats taken n requests' tokens are due in each step, and n/T requests end, so n·P/T prompt tokens must be
    computed for those who take their seats: n·(1 + P/T) ≤ M. (A prompt's last step is a request's first token, so this
    counts one token per request too many.) For `max_rate_rps`.

    Parameters
    ----------
    max_num_batched_tokens : int
        M ≥ 1.
    mean_output_tokens, mean_prompt_tokens : float
        T ≥ 1 and P ≥ 0.

    Examples
    --------
    >>> round(budget_seats(512, mean_output_tokens=200, mean_prompt_tokens=1000), 1)
    85.3
    """
    budget = check_number("max_num_batched_tokens", max_num_batched_tokens, ge=1, integer=True)
    tokens = check_number("mean_output_tokens", mean_output_tokens, ge=1)
    return float(budget * tokens / (tokens + check_number("mean_prompt_tokens", mean_prompt_tokens, ge=0)))


def kv_tokens_held(rate_rps: float, mean_latency_s: float, prompt_tokens: Any, output_tokens: Any) -> float:
    """KV held on average, in tokens: λ·W·(P + E[T²]/(2E[T])), not λ·W·(P + E[T]/2).

    By Little's law λ·W requests are inside. Whoever looks in finds a long answer more often than a short one, in
    proportion to its length, and finds it half done on average: E[T²]/(2E[T]) tokens so far. Prompts weigh by the
    answer that they go with, E[P·T]/E[T], which is E[P] where the two are independent.

    Holds for any arrivals, if a request's time inside is proportional to its length: while nothing queues and steps are
    alike. Who waits in a line holds nothing: then W is the time from the first step on.

    Parameters
    ----------
    rate_rps : float
        λ > 0.
    mean_latency_s : float
        W > 0: mean time inside.
    prompt_tokens, output_tokens : sequences of numbers
        Of a sample of requests, pairwise; one number for all is allowed.

    Examples
    --------
    >>> kv_tokens_held(2.0, 5.0, 100, [50, 150])      # 10 inside, with 100 + (50² + 150²)/2/(2·100) each
    1625.0
    """
    rate = check_number("rate_rps", rate_rps, gt=0)
    inside = rate * check_number("mean_latency_s", mean_latency_s, gt=0)
    answers = check_array("output_tokens", np.atleast_1d(output_tokens), ge=1)
    prompts = check_array("prompt_tokens", np.atleast_1d(prompt_tokens), ge=0)
    if prompts.size not in (1, answers.size) and answers.size != 1:
        raise ValueError(f"prompt_tokens must be as many as output_tokens, {answers.size}; got {prompts.size}")
    prompts, answers = np.broadcast_arrays(prompts, answers)
    return float(inside * ((prompts * answers).mean() + (answers**2).mean() / 2) / answers.mean())


# Static batches


def longest_of(output_tokens: Any, batch_size: int) -> float:
    """E[max T]: the mean length of the longest of B answers, which is how many steps a static batch takes.

    Parameters
    ----------
    output_tokens : Geometric, or sequence of numbers
        The law of the lengths: geometric, or that of a sample, each of whose lengths is equally likely.
    batch_size : int
        B ≥ 1.

    Returns
    -------
    float
        For a sample, Σ x₍ᵢ₎·((i/n)^B − ((i − 1)/n)^B); for the geometric law with p = 1/mean, Σ_{k≥0} 1 − (1 − (1 −
        p)^k)^B. Exact for independent lengths.

    Examples
    --------
    >>> from servinglab.workload.lengths import Geometric
    >>> round(longest_of(Geometric(200), 1), 6), round(longest_of(Geometric(200), 32), 1)
    (200.0, 810.2)
    >>> longest_of([1, 2, 3, 4, 5, 6], 2)      # the larger of two dice: 161/36
    4.472222222222222
    """
    size = check_number("batch_size", batch_size, ge=1, integer=True)
    if isinstance(output_tokens, Geometric):
        stay = 1 - 1 / output_tokens.mean
        if stay == 0:
            return 1.0
        last = math.ceil(math.log(1e-18 / size) / math.log(stay))  # what is left beyond is less than rounding
        return float(-np.expm1(size * np.log1p(-np.exp(np.arange(1, last) * math.log(stay)))).sum()) + 1.0
    ordered = np.sort(check_array("output_tokens", output_tokens, ge=1))
    if not ordered.size:
        raise ValueError("output_tokens must hold at least one length; got none")
    reached = (np.arange(ordered.size + 1) / ordered.size) ** size
    return float(ordered @ np.diff(reached))


def static_rate_rps(output_tokens: Any, batch_size: int, fixed_s: float, per_request_s: float) -> float:
    """Requests per second of padded static batches of answers: B/(E[max T]·(a + b·B)).

    Every batch lasts as many steps as its longest answer, E[max T] on average and not E[T], and each step costs a full
    batch. A capacity, whatever the arrivals. Exact for independent lengths and prompts that cost nothing. It can fall
    with B: the longest answer of a larger batch is longer.

    Parameters
    ----------
    output_tokens, batch_size
        As in `longest_of`.
    fixed_s, per_request_s : float
        a ≥ 0 and b ≥ 0, in seconds, not both 0.

    Examples
    --------
    >>> from servinglab.workload.lengths import Geometric
    >>> round(static_rate_rps(Geometric(200), 32, fixed_s=0.02, per_request_s=0.0005), 2)
    1.1
    """
    fixed, per_request, _ = _check_step(fixed_s, per_request_s, 0.0)
    return batch_size / (longest_of(output_tokens, batch_size) * (fixed + per_request * batch_size))


# Overload


def overload_wait_s(t_s: float, rate_rps: float, capacity_rps: float) -> float:
    """How long somebody waits who comes t after an overload began: (λ/μ − 1)·t, if nobody waited before.

    λ·t came and μ·t were served, so (λ − μ)·t are ahead and take 1/μ each. A fluid law, for first come, first served:
    it holds up to fluctuations, which grow only as √t, and doesn't depend on the arrivals' or services' law.

    Parameters
    ----------
    t_s : float
        ≥ 0, in seconds.
    rate_rps, capacity_rps : float
        λ ≥ μ > 0.

    Examples
    --------
    >>> round(overload_wait_s(600, rate_rps=20, capacity_rps=19.7), 1)      # ten minutes at 1.5 % too much
    9.1
    """
    t = check_number("t_s", t_s, ge=0)
    capacity = check_number("capacity_rps", capacity_rps, gt=0)
    rate = check_number("rate_rps", rate_rps, ge=capacity)
    return float((rate / capacity - 1) * t)


def recovery_s(overload_s: float, rate_rps: float, capacity_rps: float, later_rate_rps: float) -> float:
    """How long an overload's line outlives it: (λ − μ)·D/(μ − λ′) after D seconds at λ, then λ′ < μ.

    Parameters
    ----------
    overload_s : float
        D ≥ 0, in seconds.
    rate_rps, capacity_rps : float
        λ ≥ μ > 0.
    later_rate_rps : float
        λ′, 0 ≤ λ′ < μ.

    Examples
    --------
    >>> recovery_s(60, rate_rps=30, capacity_rps=20, later_rate_rps=18)      # a minute's burst, five minutes' line
    300.0
    """
    capacity = check_number("capacity_rps", capacity_rps, gt=0)
    later = check_number("later_rate_rps", later_rate_rps, ge=0, lt=capacity)
    ahead = overload_wait_s(overload_s, rate_rps, capacity) * capacity
    return float(ahead / (capacity - later))


def _check_step(fixed_s: float, per_request_s: float, per_prefill_token_s: float) -> tuple[float, float, float]:
    fixed = check_number("fixed_s", fixed_s, ge=0)
    per_request = check_number("per_request_s", per_request_s, ge=0)
    if fixed + per_request == 0:
        raise ValueError("fixed_s + per_request_s must be > 0; got 0")
    return fixed, per_request, check_number("per_prefill_token_s", per_prefill_token_s, ge=0)
