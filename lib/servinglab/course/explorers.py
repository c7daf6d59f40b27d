"""The book's explorers that several chapters could use; `servinglab.course.explorer` brings them to life."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from servinglab import theory
from servinglab.course.explorer import Chart, Curve, Rule, Slider, View, explore, short
from servinglab.decide.formulas import formula_batch, gathering_batch
from servinglab.engine.simulate import simulate
from servinglab.hardware.memory import kv_cache
from servinglab.hardware.roofline import roofline
from servinglab.metrics.knee import Level, level_of
from servinglab.metrics.percentiles import percentile
from servinglab.scheduling.schedulers import ContinuousBatching, StaticBatching
from servinglab.step_time.affine import AffineStep
from servinglab.theory.tokens import max_rate_rps
from servinglab.workload.arrival_laws import closed_loop, poisson, timed_arrivals
from servinglab.workload.lengths import Exponential, Uniform

RATES_RPS = (5, 10, 15, 20, 25, 30)
FIXED_S = (0.2, 0.4, 0.8)
PER_REQUEST_S = (0.005, 0.01, 0.02, 0.04)
BATCH_SIZES = (1, 2, 4, 6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 20, 24, 28, 32)
SLO_S = (0.6, 1.0, 1.4, 1.8, 2.2, 3.0)

# label -> model, accelerator, weights; None: the model's own precision
ENGINES: dict[str, tuple[str, str, str | None]] = {
    "8B · H100": ("llama-3.1-8b", "h100-sxm", None),
    "8B FP8 · H100": ("llama-3.1-8b", "h100-sxm", "fp8"),
    "8B · RTX 4090": ("llama-3.1-8b", "rtx-4090", None),
    "30B-A3B · H100": ("qwen3-30b-a3b", "h100-sxm", None),
}
# label -> accelerator, and label -> model, of the memory explorer
CARDS = {"RTX 4090": "rtx-4090", "L40S": "l40s", "H100": "h100-sxm", "H200": "h200-sxm"}
MODELS = {"Llama-2-7B": "llama-2-7b", "Llama-3.1-8B": "llama-3.1-8b", "Qwen3-32B": "qwen3-32b"}
UTILIZATIONS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
LENGTHS = (500, 1000, 2500, 5000, 10_000, 20_000, 40_000)
# chapter 01's pot, and what the explorer of promises tries it with
POT = AffineStep(fixed_s=0.4, per_request_s=0.02)
PROMISE_RATES_RPS = (8, 12, 16, 20, 24)
PROMISES_S = (1.4, 1.6, 1.8, 2.0, 2.2, 2.6, 3.0)
PROMISE_ORDERS = (1000, 20_000)
PROMISE_BATCHES = tuple(range(4, 41))
STEP_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
# chapter 06's service, and the loads that its explorer tries, each for an hour
SERVICE, SERVICE_STEP = ContinuousBatching(8, 2048), AffineStep(0.01, 0.0005, 0.00005)
PROMPT, ANSWER = 500, Uniform(50, 150)
CLIENTS = (1, 2, 4, 6, 8, 12, 16, 32, 64, 128)
THINKS_S = (0, 2, 5, 10, 20)
LOADS_RPS = (1, 2, 3, 3.5, 4, 4.25, 4.5, 4.75, 5, 5.5, 6)
TEST_S, WARMUP_S = 3600, 60


def explore_batch(
    rates_rps: Sequence[float] = RATES_RPS,
    fixed_s: Sequence[float] = FIXED_S,
    per_request_s: Sequence[float] = PER_REQUEST_S,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    slo_s: Sequence[float] = SLO_S,
    *,
    start: Sequence[float] = (20, 0.4, 0.02, 15, 1.8),
) -> Any:
    """Move λ, t, r, B and the limit; see the throughput and the exact P99 of static batching with one pot.

    Parameters
    ----------
    rates_rps, fixed_s, per_request_s, batch_sizes, slo_s : sequences
        The stops of each slider, ascending.
    start : five numbers
        λ, t, r, B and the limit at first: each a stop of its slider.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.

    Raises
    ------
    ValueError
        If `start` isn't on the sliders, or a setting lies too near to saturation for `theory.static_batching`.
    """
    if len(start) != 5:
        raise ValueError(f"start must hold five numbers: λ, t, r, B and the limit; got {start!r}")
    sizes = tuple(batch_sizes)
    sliders = [
        Slider("rate", "rate", rates_rps, start[0], " /s"),
        Slider("fixed", "fixed", fixed_s, start[1], " s"),
        Slider("slope", "slope", per_request_s, start[2], " s"),
        Slider("batch", "batch", sizes, start[3]),
        Slider("slo", "slo", slo_s, start[4], " s"),
    ]

    def view(rate: float, fixed: float, slope: float, batch: int, slo: float) -> View:
        return batch_view(rate, fixed, slope, batch, slo, sizes)

    return explore(view, sliders, title="explorer_label")


def batch_view(
    rate_rps: float, fixed_s: float, per_request_s: float, batch_size: int, slo_s: float, batch_sizes: tuple[int, ...]
) -> View:
    """Throughput and P99 of static batching with one pot against the batch size, with one batch size picked.

    Examples
    --------
    >>> batch_view(20, 0.4, 0.02, 17, 2.2, (10, 17)).says[3]
    ('P99 = 1.95 s: ', 'meets')
    """
    capacity, p99, formula = batch_curves(rate_rps, fixed_s, per_request_s, batch_sizes)
    at = batch_sizes.index(batch_size)
    limit = 1 / per_request_s
    most = max(*capacity, rate_rps)
    known = [value for value in p99 if value is not None]
    throughput = Chart(
        title="throughput_chart",
        x_label="batch",
        y_label="throughput_per_s",
        curves=(Curve("capacity", batch_sizes, capacity, marks=True),),
        rules=(
            Rule("offered", rate_rps, f"λ {rate_rps:g}"),
            Rule("limit", limit, f"1/r {limit:.3g}", "green"),
        ),
        picked=batch_size,
        top=1.1 * (max(most, limit) if limit < 2.5 * most else most),
    )
    latency = Chart(
        title="p99_chart",
        x_label="batch",
        y_label="P99 (s)",
        curves=(
            Curve("p99_formula", batch_sizes, formula, "grey"),
            Curve("p99_exact", batch_sizes, p99, marks=True),
        ),
        rules=(Rule("slo", slo_s, f"{slo_s:g} s"),),
        picked=batch_size,
        top=max(1.3 * slo_s, 1.1 * min(max(known), 3.5 * min(known)) if known else 0),
    )
    now = p99[at]
    kept = now is not None and now <= slo_s
    outcome = ("unstable",) if now is None else (f"P99 = {now:.3g} s: ", "meets" if kept else "misses")
    best = ("best", f": B = {batch_sizes[p99.index(min(known))]}") if known else ()
    load = rate_rps / capacity[at]
    says = ((f"B = {batch_size}",), (f"Q(B) = {capacity[at]:.3g} /s",), (f"ρ = {load:.2f}",), outcome, best)
    return View((throughput, latency), says, "good" if kept else "bad")


@cache
def batch_curves(
    rate_rps: float, fixed_s: float, per_request_s: float, batch_sizes: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float | None, ...], tuple[float, ...]]:
    """Capacity, exact P99 and the first document's formula at each batch size.

    Returns
    -------
    three tuples
        Requests per second; seconds, None where ρ ≥ 1; (B − 1)/λ + t + r·B in seconds.

    Examples
    --------
    >>> batch_curves(20, 0.4, 0.02, (10, 17))
    ((16.67, 22.97), (None, 1.945), (1.05, 1.54))
    """
    capacity = tuple(short(theory.pot_rate(size, fixed_s, per_request_s)) for size in batch_sizes)
    p99 = tuple(_p99(rate_rps, fixed_s, per_request_s, size) for size in batch_sizes)
    waits_s = [theory.first_guest_wait(rate_rps, size) for size in batch_sizes]
    formula = tuple(
        short(wait + fixed_s + per_request_s * size) for wait, size in zip(waits_s, batch_sizes, strict=True)
    )
    return capacity, p99, formula


def _p99(rate_rps: float, fixed_s: float, per_request_s: float, batch_size: int) -> float | None:
    if theory.utilization(rate_rps, batch_size, fixed_s, per_request_s) >= 1 - 1e-9:
        return None
    return short(theory.static_batching(rate_rps, batch_size, fixed_s, per_request_s).latency_quantile(0.99))


def explore_step(
    batch_sizes: Sequence[int] = STEP_BATCHES, contexts: Sequence[int] = CONTEXTS, *, start: Sequence[int] = (32, 4096)
) -> Any:
    """Move engine, batch size and context; see a decode step's time, its two sides and its tokens a second.

    Parameters
    ----------
    batch_sizes, contexts : sequences of int
        The stops, ascending; batch sizes from 1 on, contexts at least 1.
    start : two numbers
        Batch size and context at first.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.
    """
    sizes = tuple(batch_sizes)
    sliders = [
        Slider("engine", "engine", tuple(ENGINES), next(iter(ENGINES))),
        Slider("batch", "batch", sizes, start[0]),
        Slider("context", "context", tuple(contexts), start[1]),
    ]

    def view(engine: str, batch: int, context: int) -> View:
        return step_view(engine, batch, context, sizes)

    return explore(view, sliders, title="step_explorer")


def step_view(engine: str, batch: int, context: int, batch_sizes: tuple[int, ...]) -> View:
    """A decode step's time and its tokens a second against the batch size, at one context, with one batch picked.

    Examples
    --------
    >>> step_view("8B · H100", 32, 4096, (1, 32)).says[:3]
    (('step_time', ' = 13.0 ms'), ('throughput', ' = 2,460 /s'), ('gain', ' = 16.7'))
    """
    memory_ms, compute_ms, step_ms, tokens_s = step_curves(engine, context, batch_sizes)
    at = batch_sizes.index(batch)
    model, card, dtype = ENGINES[engine]
    room = kv_cache(model, card, weight_dtype=dtype).max_requests(context)
    times = Chart(
        title="step_chart",
        x_label="batch",
        y_label="step_ms",
        curves=(
            Curve("reading", batch_sizes, memory_ms, "grey"),
            Curve("computing", batch_sizes, compute_ms, "purple"),
            Curve("step_time", batch_sizes, step_ms, marks=True),
        ),
        picked=batch,
        log_x=True,
        log_y=True,
    )
    throughput = Chart(
        title="tokens_chart",
        x_label="batch",
        y_label="tokens_per_s",
        curves=(
            Curve("one_by_one", batch_sizes, tuple(short(size * tokens_s[0]) for size in batch_sizes), "grey"),
            Curve("throughput", batch_sizes, tokens_s, marks=True),
        ),
        picked=batch,
        top=1.1 * max(tokens_s),
        log_x=True,
    )
    says = (
        ("step_time", f" = {step_ms[at]:.1f} ms"),
        ("throughput", f" = {float(f'{tokens_s[at]:.3g}'):,.0f} /s"),
        ("gain", f" = {tokens_s[at] / tokens_s[0]:.3g}"),
        ("longer", ": ", "reading" if memory_ms[at] >= compute_ms[at] else "computing"),
        ("kv_room", f" {room:,}: ", "fits" if batch <= room else "fits_not"),
    )
    return View((times, throughput), says, "good" if batch <= room else "bad")


@cache
def step_curves(engine: str, context: int, batch_sizes: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """A decode step against the batch size: its reading, its computing and the whole in ms, and tokens a second.

    Examples
    --------
    >>> step_curves("8B · H100", 4096, (1, 32))[2:]
    ((6.801, 13.01), (147.0, 2459.0))
    """
    model, card, dtype = ENGINES[engine]
    step = roofline(model, card, weight_dtype=dtype)
    parts = [step.parts(size, 0, size * context) for size in batch_sizes]
    seconds = [each.seconds for each in parts]
    return (
        tuple(short(1e3 * (each.memory_s + each.overhead_s)) for each in parts),
        tuple(short(1e3 * (each.compute_s + each.overhead_s)) for each in parts),
        tuple(short(1e3 * each) for each in seconds),
        tuple(short(size / each) for size, each in zip(batch_sizes, seconds, strict=True)),
    )


def explore_memory() -> Any:
    """Move card, model, precisions, utilisation and length; see what is left for the KV cache and how many fit.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.
    """
    sliders = [
        Slider("card", "card", tuple(CARDS), "H100"),
        Slider("model", "model", tuple(MODELS), "Llama-3.1-8B"),
        Slider("weights", "weights", ("bf16", "fp8"), "bf16"),
        Slider("kv", "kv_precision", ("bf16", "fp8"), "bf16"),
        Slider("utilization", "gpu_memory_utilization", UTILIZATIONS, 0.9),
        Slider("length", "request_tokens", LENGTHS, 2500),
    ]
    return explore(memory_view, sliders, title="memory_explorer")


def memory_view(card: str, model: str, weights: str, kv: str, utilization: float, length: int) -> View:
    """Requests that fit against their length, and memory against the utilisation, with one of each picked.

    Examples
    --------
    >>> memory_view("H100", "Llama-3.1-8B", "bf16", "bf16", 0.9, 2500).says[-1]
    ('fit_now', ' 166 (159–176)')
    """
    at = LENGTHS.index(length)
    low, middle, high = memory_fits(card, model, weights, kv, utilization)
    budget_gib, taken_gib, kv_gib = memory_split(card, model, weights)
    picked = UTILIZATIONS.index(utilization)
    fits = Chart(
        title="fit_chart",
        x_label="request_tokens",
        y_label="requests_fit",
        curves=(
            Curve("other_most", LENGTHS, tuple(n or None for n in low), "grey"),
            Curve("other_least", LENGTHS, tuple(n or None for n in high), "purple"),
            Curve("other_median", LENGTHS, tuple(n or None for n in middle), marks=True),
        ),
        picked=length,
        log_x=True,
        log_y=True,
    )
    split = Chart(
        title="split_chart",
        x_label="gpu_memory_utilization",
        y_label="GiB",
        curves=(
            Curve("for_all", UTILIZATIONS, budget_gib, "grey"),
            Curve("weights_other", UTILIZATIONS, (taken_gib,) * len(UTILIZATIONS), "orange"),
            Curve("for_kv", UTILIZATIONS, tuple(max(0.0, each) for each in kv_gib), marks=True),
        ),
        picked=utilization,
        top=1.05 * max(budget_gib[-1], taken_gib),
    )
    says = (
        ("for_all", f" {budget_gib[picked]:.1f} GiB"),
        ("weights_other", f" {taken_gib:.1f} GiB"),
        ("for_kv", f" {kv_gib[picked]:.1f} GiB") if kv_gib[picked] > 0 else ("nothing_left",),
        ("fit_now", f" {middle[at]:,} ({low[at]:,}–{high[at]:,})"),
    )
    return View((fits, split), says, "good" if middle[at] else "bad")


@cache
def memory_fits(card: str, model: str, weights: str, kv: str, utilization: float) -> tuple[tuple[int, ...], ...]:
    """Requests that fit at each of `LENGTHS`: with the most, the median and the least other memory in logs.

    Examples
    --------
    >>> [fit[2] for fit in memory_fits("RTX 4090", "Llama-3.1-8B", "bf16", "bf16", 0.9)]
    [12, 14, 16]
    """
    cache_now = kv_cache(
        MODELS[model], CARDS[card], gpu_memory_utilization=utilization, weight_dtype=weights, kv_dtype=kv
    )
    worst, best = cache_now.over_the_range()
    return tuple(tuple(each.max_requests(tokens) for tokens in LENGTHS) for each in (worst, cache_now, best))


@cache
def memory_split(card: str, model: str, weights: str) -> tuple[tuple[float, ...], float, tuple[float, ...]]:
    """GiB at each of `UTILIZATIONS`: the budget; weights and the rest, which don't depend on it; and the KV cache's."""
    each = [
        kv_cache(MODELS[model], CARDS[card], gpu_memory_utilization=share, weight_dtype=weights)
        for share in UTILIZATIONS
    ]
    return (
        tuple(short(one.budget_gib) for one in each),
        short(each[0].weights_gib + each[0].other_gib),
        tuple(short(one.kv_gib) for one in each),
    )


def explore_promise() -> Any:
    """Move λ, the limit and a run's length; see the best batch by formula, by exact laws and by simulation.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.
    """
    sliders = [
        Slider("rate", "rate", PROMISE_RATES_RPS, 20, " /s"),
        Slider("slo", "slo", PROMISES_S, 2.0, " s"),
        Slider("orders", "orders_run", PROMISE_ORDERS, 20_000),
    ]
    return explore(promise_view, sliders, title="promise_explorer")


def promise_view(rate: float, slo: float, orders: int) -> View:
    """P99 of static batching against the batch size in four ways, and the largest batch that each allows.

    Examples
    --------
    >>> promise_view(20, 2.0, 20_000).says[:3]
    (('p99_formula', ': B = 23'), ('p99_gathering', ': B = 19'), ('p99_exact', ': B = 18'))
    """
    paper, gathering, exact, sample = promise_curves(rate, orders)
    formula = formula_batch(rate, POT.fixed_s, POT.per_request_s, slo)
    answers: dict[str, int | None] = {
        "p99_formula": formula.batch_size,
        "p99_gathering": gathering_batch(rate, POT.fixed_s, POT.per_request_s, slo),
        "p99_exact": _largest_within(exact, slo),
        "p99_simulated": _largest_within(sample, slo),
    }
    known = [value for value in exact if value is not None]
    chart = Chart(
        title="p99_chart",
        x_label="batch",
        y_label="P99 (s)",
        curves=(
            Curve("p99_formula", PROMISE_BATCHES, paper, "grey"),
            Curve("p99_gathering", PROMISE_BATCHES, gathering, "purple"),
            Curve("p99_simulated", PROMISE_BATCHES, sample, "green", marks=True),
            Curve("p99_exact", PROMISE_BATCHES, exact, "blue", marks=True),
        ),
        rules=(Rule("slo", slo, f"{slo:g} s"),),
        picked=answers["p99_exact"],
        top=max(1.3 * slo, 2 * min(known)),
    )
    says = [(name, f": B = {size}") if size else (name, ": ", "no_batch") for name, size in answers.items()]
    outcome: tuple[str, ...] = ()
    if formula.batch_size is not None:
        then = _p99(rate, POT.fixed_s, POT.per_request_s, formula.batch_size)
        assert then is not None  # the formula asks for a stable batch
        outcome = (f"P99(B = {formula.batch_size}) = {then:.3g} s: ", "meets" if then <= slo else "misses")
    return View((chart,), (*says, outcome), "good" if answers["p99_exact"] else "bad")


@cache
def promise_curves(rate_rps: float, orders: int) -> tuple[tuple[float | None, ...], ...]:
    """P99 at each of `PROMISE_BATCHES`: on paper, of gathering with a pot always free, exact, and of a simulated run.

    Examples
    --------
    >>> [curve[19] for curve in promise_curves(20, 20_000)[:3]]      # B = 23
    [1.96, 2.294, 2.294]
    """
    paper, gathering = _promise_on_paper(rate_rps)
    exact = _promise_exact(rate_rps)
    work = poisson(rate_rps, orders, seed=1)
    sample = tuple(
        None if value is None else short(percentile(simulate(work, StaticBatching(size), POT).e2e_s, 0.99))
        for size, value in zip(PROMISE_BATCHES, exact, strict=True)
    )
    return paper, gathering, exact, sample


@cache
def _promise_on_paper(rate_rps: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    cooking = [POT(size) for size in PROMISE_BATCHES]
    waits = [theory.first_guest_wait(rate_rps, size) for size in PROMISE_BATCHES]
    late = [theory.gather_quantile(0.99, rate_rps, size) for size in PROMISE_BATCHES]
    return tuple(short(x) for x in np.add(waits, cooking)), tuple(short(x) for x in np.add(late, cooking))


@cache
def _promise_exact(rate_rps: float) -> tuple[float | None, ...]:
    return tuple(_p99(rate_rps, POT.fixed_s, POT.per_request_s, size) for size in PROMISE_BATCHES)


def _largest_within(p99_s: Sequence[float | None], limit_s: float) -> int | None:
    kept = [size for size, value in zip(PROMISE_BATCHES, p99_s, strict=True) if value is not None and value <= limit_s]
    return max(kept, default=None)


def explore_load() -> Any:
    """Move clients, their pause and a rate; see what a closed and an open loop show of the same service.

    Returns
    -------
    Component or ipywidgets.VBox
        The first while the book is built, the second in a notebook.
    """
    sliders = [
        Slider("clients", "clients_n", CLIENTS, 8),
        Slider("think", "think", THINKS_S, 0, " s"),
        Slider("rate", "rate", LOADS_RPS, 4.5, " /s"),
    ]
    return explore(load_view, sliders, title="load_explorer")


def load_view(clients: int, think: float, rate: float) -> View:
    """Throughput and latency of a closed loop against its clients, and latency of an open loop against its rate.

    Examples
    --------
    >>> load_view(8, 0, 4.5).says
    (('closed_loop', ': 5.00/s, P99 2.4 s'), ('open_loop', ': 4.50/s, P99 5.4 s'), ('N* = 5.4',))
    """
    most, alone = load_limits()
    closed, opened = [closed_level(each, think) for each in CLIENTS], [open_level(each) for each in LOADS_RPS]
    now, then = closed_level(clients, think), open_level(rate)
    throughput = Chart(
        title="closed_throughput_chart",
        x_label="clients_n",
        y_label="throughput_per_s",
        curves=(
            Curve("bounds", CLIENTS, [short(min(most, n / (alone + think))) for n in CLIENTS], "grey"),
            Curve("closed_loop", CLIENTS, [short(level.request_throughput) for level in closed], "blue", marks=True),
        ),
        picked=clients,
        log_x=True,
    )
    latency = Chart(
        title="closed_latency_chart",
        x_label="clients_n",
        y_label="latency_s",
        curves=(
            Curve("bounds", CLIENTS, [short(max(alone, n / most - think)) for n in CLIENTS], "grey"),
            Curve("mean", CLIENTS, [short(float(level.latency_s.mean())) for level in closed], "green", marks=True),
            Curve("P99", CLIENTS, [short(level.percentile(0.99)) for level in closed], "blue", marks=True),
        ),
        picked=clients,
        log_x=True,
        log_y=True,
    )
    queue = Chart(
        title="open_latency_chart",
        x_label="rate",
        y_label="latency_s",
        curves=(
            Curve("P50", LOADS_RPS, [short(level.percentile(0.5)) for level in opened], "green", marks=True),
            Curve("P99", LOADS_RPS, [short(level.percentile(0.99)) for level in opened], "orange", marks=True),
        ),
        picked=rate,
        log_y=True,
    )
    says = (
        ("closed_loop", f": {now.request_throughput:.2f}/s, P99 {now.percentile(0.99):.1f} s"),
        ("open_loop", f": {then.request_throughput:.2f}/s, P99 {then.percentile(0.99):.1f} s"),
        (f"N* = {(alone + think) * most:.1f}",),
    )
    return View((throughput, latency, queue), says)


def load_limits() -> tuple[float, float]:
    """What the service can finish per second, and how long a lone request takes on average."""
    tokens, step = ANSWER.mean, SERVICE_STEP
    most = max_rate_rps(
        SERVICE.max_num_seqs, tokens, step.fixed_s, step.per_request_s, step.per_prefill_token_s, PROMPT
    )
    return most, step(1, PROMPT) + (tokens - 1) * step(1)


@cache
def closed_level(clients: int, think_s: float) -> Level:
    """An hour of so many clients, of which the first minute is cut."""
    pause = Exponential(think_s) if think_s else 0.0
    work = closed_loop(clients, 20_000, seed=1, think_s=pause, prompt_tokens=PROMPT, output_tokens=ANSWER)
    return level_of(simulate(work, SERVICE, SERVICE_STEP), clients, WARMUP_S, TEST_S)


@cache
def open_level(rate_rps: float) -> Level:
    """An hour of Poisson arrivals, as many as the rate says, of which the first minute is cut."""
    work = timed_arrivals(rate_rps, TEST_S, seed=1, prompt_tokens=PROMPT, output_tokens=ANSWER)
    return level_of(simulate(work, SERVICE, SERVICE_STEP), rate_rps, WARMUP_S, TEST_S)
