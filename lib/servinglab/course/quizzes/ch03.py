"""Numbers of chapter 3's quiz: a window's clock, what moved; from earlier a prefill, the load with tokens, Little."""

from __future__ import annotations

import math

import numpy as np

from servinglab.course.quiz import Variant, drawn


def _window(rng: np.random.Generator) -> Variant:
    window_s = int(rng.integers(4, 31)) / 10
    first_s = int(rng.integers(1, 60)) / 10
    # two more within the window, so that a timer which restarts would run on
    second_s = round(first_s + window_s * float(rng.uniform(0.2, 0.5)), 1)
    third_s = round(first_s + window_s * float(rng.uniform(0.6, 0.9)), 1)
    if not first_s < second_s < third_s < first_s + window_s:
        return Variant(given={}, answer=math.inf)  # rounded into each other: refused by `drawn`
    return Variant(
        given={"window_s": window_s, "first_s": first_s, "second_s": second_s, "third_s": third_s},
        answer=round(first_s + window_s, 1),
        wrong={
            "from-the-last": round(third_s + window_s, 1),
            "clock-tick": window_s * math.ceil(round(first_s / window_s, 6)),
        },
    )


def _moved(rng: np.random.Generator) -> Variant:
    """One factor grows by half or more, the others hardly, or get worse."""
    kind = int(rng.integers(3))
    full, fast, busy = round(float(rng.uniform(3, 12)), 1), int(rng.integers(40, 140)), int(rng.integers(30, 45))
    ratios = rng.uniform(0.85, 1.12, size=3)
    ratios[kind] = rng.uniform(1.5, 2.1)
    after = round(full * float(ratios[0]), 1), round(fast * float(ratios[1])), round(busy * float(ratios[2]))
    exact = after[0] / full, after[1] / fast, after[2] / busy
    return Variant(
        given={
            "full_before": full, "fast_before": fast, "busy_before": busy,
            "full_after": after[0], "fast_after": after[1], "busy_after": after[2],
        },
        answer=("fuller", "faster", "busier")[kind],
        also={
            "full_ratio": exact[0], "fast_ratio": exact[1], "busy_ratio": exact[2], "all_ratio": math.prod(exact),
        },
    )  # fmt: skip


def _prefill(rng: np.random.Generator) -> Variant:
    weights = int(rng.integers(3, 33))
    tflop_s, tb_s = (int(each) for each in rng.choice([(150, 1), (300, 2), (400, 2), (600, 3), (800, 4)]))
    read_ms = round(2 * weights / tb_s, 1)
    prompt = 16 * round(2 ** float(rng.uniform(1, 7)))  # on either side of the ridge
    compute_ms = 2 * weights * prompt / tflop_s
    return Variant(
        given={"prompt": prompt, "weights": weights, "read_ms": read_ms, "tflop_s": tflop_s},
        answer=max(read_ms, compute_ms),
        wrong={
            "decode-steps": prompt * read_ms,
            "shorter-side": min(read_ms, compute_ms),
            "sum": read_ms + compute_ms,
        },
        also={"compute_ms": compute_ms},
    )


def _load(rng: np.random.Generator) -> Variant:
    batch, step_ms = int(rng.choice([4, 8, 16, 32])), int(rng.integers(6, 31))
    mean = int(rng.integers(4, 41)) * 10
    longest = round(mean * float(rng.uniform(1.8, 3.6)), -1)
    batch_s = longest * step_ms / 1000
    rate_rps = round(batch / batch_s * float(rng.uniform(0.4, 1.5)), 1)
    if rate_rps == 0:
        return Variant(given={}, answer=math.inf)
    return Variant(
        given={"rate_rps": rate_rps, "batch": batch, "step_ms": step_ms, "mean": mean, "longest": longest},
        answer=rate_rps * batch_s / batch,
        wrong={"with-the-mean": rate_rps * mean * step_ms / 1000 / batch, "one-request": rate_rps * batch_s},
        also={"batch_s": batch_s},
    )


def _inside(rng: np.random.Generator) -> Variant:
    step_ms, running = int(rng.choice([5, 8, 10, 16, 20, 25, 40])), int(rng.integers(2, 65))
    tokens_per_s = running * 1000 / step_ms
    return Variant(
        given={"step_ms": step_ms, "tokens_per_s": tokens_per_s},
        answer=running,
        wrong={"divided": tokens_per_s / step_ms, "milliseconds": tokens_per_s * step_ms},
        also={"steps_per_s": 1000 / step_ms},
    )


QUESTIONS = (
    drawn("window", _window, seed=302, unit="s", tolerance=0.005),
    drawn("moved", _moved, seed=303, choices=("fuller", "faster", "busier")),
    drawn("prefill", _prefill, seed=301, unit="ms"),
    drawn("load", _load, seed=304, unit=""),
    drawn("inside", _inside, seed=305, unit="requests"),
)
