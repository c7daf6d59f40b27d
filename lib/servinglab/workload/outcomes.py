"""How a request can end: one vocabulary for simulated, measured and saved runs."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


NEVER = -1  # in a nanosecond column: it didn't happen


class Status(IntEnum):
    """How a request ended."""

    FINISHED = 0
    UNSERVED = 1
    """Still waiting when nothing more could happen, or when the run was interrupted."""
    REJECTED = 2
    """Turned away on arrival, because it could never have been served to its end."""
