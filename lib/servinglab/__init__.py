"""servinglab: simulators, mathematics and benchmark hooks for LLM serving.

Data flows one way: a workload is served by `simulate` under a scheduler and a step time, and gives a `Result`
that `metrics`, `theory` and `plots` read. The submodules below load on first use, so that importing is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from .bench import bench
from .bench.measured_step_time import read_step_time
from .driver import SimulationInterrupted
from .kv_cache import KVCache, kv_cache
from .reference import reference
from .result import Result, Segments, Status
from .roofline import Roofline, roofline
from .saved_runs import compare_runs, read_run, save_run
from .schedulers import ContinuousBatching, DynamicBatching, LengthBucketedBatching, StaticBatching
from .simulate import simulate
from .step_time import AffineStep, RoofStep
from .token_reference import Blocks
from .traces import TraceError, read_trace
from .workload import Workload, closed_loop, deterministic, gamma_arrivals, on_off, poisson, rate_profile

__version__ = "0.1.0"

_MODULES = (
    "catalog", "grading", "intervals", "lengths", "load", "measured_steps", "metrics", "planning", "plots", "quiz",
    "streams", "theory", "token_theory", "widgets", "windows",
)  # fmt: skip

__all__ = [
    "AffineStep",
    "Blocks",
    "ContinuousBatching",
    "DynamicBatching",
    "KVCache",
    "LengthBucketedBatching",
    "Result",
    "RoofStep",
    "Roofline",
    "Segments",
    "SimulationInterrupted",
    "StaticBatching",
    "Status",
    "TraceError",
    "Workload",
    "bench",
    "closed_loop",
    "compare_runs",
    "deterministic",
    "gamma_arrivals",
    "kv_cache",
    "on_off",
    "poisson",
    "rate_profile",
    "read_run",
    "read_step_time",
    "read_trace",
    "reference",
    "roofline",
    "save_run",
    "simulate",
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
