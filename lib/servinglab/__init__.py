"""servinglab: simulators, mathematics and benchmark hooks for LLM serving.

Data flows one way: a workload is served by `simulate` under a scheduler and a step time, and gives a `Result`
that `metrics`, `theory` and `plots` read. Public names load on first use, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# public name -> the module that answers for it
_HOME = {
    "Workload": "workload",
    "TraceError": "workload",
    "poisson": "workload",
    "deterministic": "workload",
    "gamma_arrivals": "workload",
    "on_off": "workload",
    "rate_profile": "workload",
    "closed_loop": "workload",
    "read_trace": "workload",
    "AffineStep": "step_time",
    "StaticBatching": "schedulers",
    "DynamicBatching": "schedulers",
    "ContinuousBatching": "schedulers",
    "reference": "reference",
    "simulate": "simulate",
    "SimulationInterrupted": "simulate",
    "Result": "result",
    "Status": "result",
    "percentile": "metrics",
    "summarize": "metrics",
}
_MODULES = ("metrics", "theory", "workload", "plots", "widgets", "quiz", "grading")

__all__ = [*_HOME, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
