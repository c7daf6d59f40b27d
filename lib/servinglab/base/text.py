"""Numbers and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def show_number(x: float) -> str:
    """Four significant digits, without exponents for the sizes that occur; a dash for NaN.

    Examples
    --------
    >>> show_number(1234.5678), show_number(0.00012344), show_number(math.nan)
    ('1,235', '0.0001234', '–')
    """
    if math.isnan(x):
        return "–"
    places = 3 - math.floor(math.log10(abs(x))) if x and math.isfinite(x) else 3
    return f"{x:,.{max(0, places)}f}" if places < 9 else f"{x:.3e}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{wide[0]}}", *(f"{cell:>{w}}" for cell, w in zip(row[1:], wide[1:], strict=True))])
        for row in rows
    ]
