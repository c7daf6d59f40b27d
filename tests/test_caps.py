"""Which cap binds: the formulas against runs, and the shares of time from their logs."""

from __future__ import annotations

import numpy as np
import pytest
import servinglab as sl
from servinglab.metrics.caps import CAPS, binding_caps, running_caps, tokens_held

STEP = sl.AffineStep(0.005, 1e-4, 2e-5, 4e-8)
ANSWERS = np.random.default_rng(4).geometric(1 / 200, 1500)
LINE = sl.Workload.from_arrivals(np.zeros(1500), prompt_tokens=600, output_tokens=ANSWERS)


def test_what_running_requests_hold_is_what_a_run_holds():
    """Little in tokens: the integral over the log equals requests running times tokens held of each."""
    work = sl.poisson(
        3.0, 4000, seed=2, prompt_tokens=sl.lengths.Uniform(1, 800), output_tokens=sl.lengths.Geometric(200)
    )
    run = sl.simulate(work, sl.ContinuousBatching(1024), sl.AffineStep(0.01, 1e-9))
    log = run.segments
    mean_kv = log.kv_tokens + log.charged * (log.steps - 1) / 2
    held = float((mean_kv * (log.end_ns - log.start_ns)).sum() / (log.running * (log.end_ns - log.start_ns)).sum())
    # a step counts its request before the token that it makes: half a token less, and steps of equal length
    assert held == pytest.approx(tokens_held(work.prompt_tokens, work.output_tokens) - 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("seats", "budget", "blocks", "binds"),
    [(20, 2048, 4000, "max_num_seqs"), (256, 256, 10_000, "max_num_batched_tokens"), (256, 4096, 3000, "kv_blocks")],
)
def test_the_smallest_cap_is_what_runs_and_what_the_log_blames(seats, budget, blocks, binds):
    run = sl.simulate(LINE, sl.ContinuousBatching(seats, budget), STEP, kv=sl.Blocks(blocks, 16))
    caps = running_caps(seats, budget, 16 * blocks, 600, ANSWERS)
    log = run.segments
    line = log.waiting > 0
    from_s = 0.25 * float(log.end_ns[line].max()) / 1e9
    line &= log.start_ns >= from_s * 1e9
    lasts = (log.end_ns - log.start_ns)[line]
    running = float((log.running[line] * lasts).sum() / lasts.sum())
    assert min(caps, key=caps.get) == binds
    assert running == pytest.approx(caps[binds], rel=0.05)
    shares = binding_caps(run, from_s)
    assert max(shares, key=shares.get) == binds and shares[binds] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_nobody_waiting_blames_no_cap():
    run = sl.simulate(LINE.head(3), sl.ContinuousBatching(8, 4096), STEP)
    assert binding_caps(run) == dict.fromkeys(CAPS, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tokens_held(-1, [3]), "prompt_tokens must be a finite number >= 0; got -1"),
        (lambda: tokens_held([1, 2], [3]), "prompt_tokens must hold 1 values; got 2"),
        (lambda: tokens_held(1, []), "output_tokens must hold at least one request"),
        (lambda: tokens_held(1, [0]), r"output_tokens\[0\] must be a finite number >= 1"),
        (lambda: running_caps(0, 1, 1, 1, [1]), "max_num_seqs must be a whole number >= 1"),
        (lambda: binding_caps(sl.simulate(LINE.head(3), sl.StaticBatching(3), STEP)), "a run of ContinuousBatching"),
        (
            lambda: binding_caps(sl.simulate(LINE.head(3), sl.ContinuousBatching(3, 700, chunked_prefill=False), STEP)),
            "a run with chunked_prefill",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
