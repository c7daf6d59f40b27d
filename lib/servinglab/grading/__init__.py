"""Exercises: built from text, checked by the learner, graded for a class.

`grade_one` takes one notebook and returns one `Report`. The submission runs in a process that holds no check;
`check_main` and `grade_main` are the command lines for a learner and for a teacher.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "grade_one": "grade",
    "Report": "grade",
    "CellReport": "grade",
    "Limits": "sandbox",
    "SandboxError": "sandbox",
    "NotebookError": "notebooks",
    "check_main": "cli",
    "grade_main": "cli",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
