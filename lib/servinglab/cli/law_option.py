"""The command line's LAW: a number, or a law of lengths such as geometric:200."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from servinglab.workload import lengths


def parse_law(text: str) -> Any:
    """A number, or a law such as geometric:200."""
    laws: dict[str, Callable[..., lengths.Law]] = {
        "geometric": lengths.Geometric,
        "lognormal": lambda median, p99, maximum=None: lengths.LogNormal(median, p99, max=maximum),
        "uniform": lengths.Uniform,
        "exponential": lengths.Exponential,
    }
    name, *numbers = text.split(":")
    try:
        if not numbers:
            return float(name)
        return laws[name](*map(float, numbers))
    except KeyError:
        raise argparse.ArgumentTypeError(f"no law {name!r}; there are {', '.join(laws)}") from None
    except TypeError:
        raise argparse.ArgumentTypeError(f"{text!r} has too many or too few numbers") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
