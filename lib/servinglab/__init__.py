"""servinglab: simulators, mathematics and benchmark hooks for LLM serving.

Data flows one way: a workload is served by `simulate` under a scheduler and a step time, and gives a `Result`
that `metrics`, `decide` and `plots` read. Each room of the library has one question, which its first line says.
"""

from __future__ import annotations

import importlib
from typing import Any

from servinglab.base.version import __version__
from servinglab.engine.clock import SimulationInterrupted
from servinglab.engine.reference.pots import reference
from servinglab.engine.simulate import simulate
from servinglab.hardware.memory import KVCache, kv_cache
from servinglab.hardware.roofline import Roofline, roofline
from servinglab.measure.live import bench
from servinglab.measure.readers.read_run import read_run
from servinglab.measure.step_time_files import read_step_time
from servinglab.result.compare import compare_runs
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.result.save import save_run
from servinglab.scheduling.blocks import Blocks
from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching, LengthBucketedBatching, StaticBatching
from servinglab.step_time.affine import AffineStep, RoofStep
from servinglab.workload.arrival_laws import (
    closed_loop,
    deterministic,
    gamma_arrivals,
    on_off,
    poisson,
    rate_profile,
    timed_arrivals,
)
from servinglab.workload.model import Workload
from servinglab.workload.outcomes import Status
from servinglab.workload.traces import TraceError, read_trace

# what is reachable as `sl.NAME` though it is imported on first use: whole rooms, and two modules that are often typed
_MODULES = {
    "catalog": "hardware.catalog",
    "decide": "decide",
    "grading": "grading",
    "lengths": "workload.lengths",
    "metrics": "metrics",
    "plots": "plots",
    "theory": "theory",
}

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
    "__version__",
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
    "timed_arrivals",
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
