"""Figures: plain arrays or results in, matplotlib axes out; and those that move."""

from __future__ import annotations

from servinglab.plots.animation import KITCHEN_ORDERS, kitchen
from servinglab.plots.figures import (
    COLORS,
    LINES,
    STYLE,
    curves,
    latency_cdf,
    latency_histogram,
    load_curve,
    load_test,
    mark_unpriced,
    number_in_system,
    p99,
    queue_growth,
    throughput,
    timeline,
    use_style,
)
from servinglab.plots.steps import MOST_REQUESTS, MOST_STEPS, StepStates, step_states, step_timeline

__all__ = [
    "COLORS",
    "KITCHEN_ORDERS",
    "LINES",
    "MOST_REQUESTS",
    "MOST_STEPS",
    "STYLE",
    "StepStates",
    "curves",
    "kitchen",
    "latency_cdf",
    "latency_histogram",
    "load_curve",
    "load_test",
    "mark_unpriced",
    "number_in_system",
    "p99",
    "queue_growth",
    "step_states",
    "step_timeline",
    "throughput",
    "timeline",
    "use_style",
]
