"""Numbers of a result: percentiles, limits, windows, intervals, the knee."""

from __future__ import annotations

from servinglab.metrics.caps import CAPS, binding_caps, running_caps, tokens_held
from servinglab.metrics.intervals import (
    Interval,
    PercentileInterval,
    batch_means,
    independent_percentile_interval,
    percentile_interval,
    promise_confidence,
    samples_needed,
)
from servinglab.metrics.knee import Knee, Level, find_knee, level_of
from servinglab.metrics.littles_law import Little, little
from servinglab.metrics.percentiles import percentile, weighted_percentile
from servinglab.metrics.rates import (
    Window,
    busy_fraction,
    mean_in_system,
    output_throughput,
    request_goodput,
    request_throughput,
    total_token_throughput,
    whole_run,
)
from servinglab.metrics.slo import SLO_NAMES, check_slo, good_requests
from servinglab.metrics.streams import chunk_gaps, chunk_tpot_s
from servinglab.metrics.summary import Spread, Summary, summarize
from servinglab.metrics.windows import WindowedAttainment, WindowedPercentile, windowed_attainment, windowed_percentile

__all__ = [
    "CAPS",
    "SLO_NAMES",
    "Interval",
    "Knee",
    "Level",
    "Little",
    "PercentileInterval",
    "Spread",
    "Summary",
    "Window",
    "WindowedAttainment",
    "WindowedPercentile",
    "batch_means",
    "binding_caps",
    "busy_fraction",
    "check_slo",
    "chunk_gaps",
    "chunk_tpot_s",
    "find_knee",
    "good_requests",
    "independent_percentile_interval",
    "level_of",
    "little",
    "mean_in_system",
    "output_throughput",
    "percentile",
    "percentile_interval",
    "promise_confidence",
    "request_goodput",
    "request_throughput",
    "running_caps",
    "samples_needed",
    "summarize",
    "tokens_held",
    "total_token_throughput",
    "weighted_percentile",
    "whole_run",
    "windowed_attainment",
    "windowed_percentile",
]
