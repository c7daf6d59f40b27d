"""How long are prompts and answers, service and think times? Laws to draw them from.

A law is a small frozen object with `sample(rng, n)` and `mean`; anything with these two will do in its place.
Every draw is independent of every other, and of the arrivals. Real lengths aren't: a conversation's prompts
grow, and prompt and answer lengths go together. Where that matters, replay a trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servinglab.base.checks import check_array, check_number

_Z99 = NormalDist().inv_cdf(0.99)


class Law(Protocol):
    """What every law offers."""

    @property
    def mean(self) -> float:
        """The mean of one draw."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` independent draws."""


@dataclass(frozen=True)
class Constant:
    """Always the same value.

    Parameters
    ----------
    value : float
        Finite.

    Examples
    --------
    >>> Constant(128).sample(np.random.default_rng(1), 3)
    array([128., 128., 128.])
    """

    value: float

    def __post_init__(self) -> None:
        check_number("value", self.value)

    @property
    def mean(self) -> float:
        """The value."""
        return float(self.value)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` copies of the value; nothing is drawn from `rng`."""
        return np.full(n, float(self.value))


@dataclass(frozen=True)
class Uniform:
    """Each whole number from `lo` to `hi`, both included, equally often.

    Parameters
    ----------
    lo, hi : int
        0 <= lo <= hi <= 10**9.

    Examples
    --------
    >>> Uniform(1, 6).mean
    3.5
    >>> Uniform(1, 6).sample(np.random.default_rng(1), 8)
    array([3, 4, 5, 6, 1, 1, 5, 6])
    """

    lo: int
    hi: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "lo", check_number("lo", self.lo, ge=0, integer=True))
        object.__setattr__(self, "hi", check_number("hi", self.hi, ge=self.lo, le=10**9, integer=True))

    @property
    def mean(self) -> float:
        """(lo + hi) / 2."""
        return (self.lo + self.hi) / 2

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` whole numbers."""
        return rng.integers(self.lo, self.hi, size=n, endpoint=True)


@dataclass(frozen=True)
class Geometric:
    """Whole numbers from 1: after each token the answer ends with the same probability, 1 / mean.

    The only whole-number law without memory, which is why queueing formulas like it:
    P(N > k) = (1 - 1/mean)^k.

    Parameters
    ----------
    mean : float
        1 <= mean <= 10**6.

    Examples
    --------
    >>> Geometric(mean=200).sample(np.random.default_rng(1), 5)
    array([ 215,   62, 1073,   74,   24])
    """

    mean: float

    def __post_init__(self) -> None:
        check_number("mean", self.mean, ge=1, le=10**6)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` whole numbers >= 1."""
        return rng.geometric(1 / self.mean, size=n)


@dataclass(frozen=True)
class LogNormal:
    """Many short, few very long: the logarithm is normal. A common fit of prompt and answer lengths.

    Give the width as `p99` or as `sigma`. `max` cuts what is longer down to `max`, as a server's token limit
    does.

    Parameters
    ----------
    median : float
        Half of the draws are below it; > 0, at most 10**12.
    p99 : float, optional
        One draw in a hundred is above it; >= median, and so close that sigma <= 10.
    sigma : float, optional
        Standard deviation of the logarithm; 0 <= sigma <= 10.
    max : float, optional
        The largest value; at least `p99` where that is given, else > 0.

    Examples
    --------
    >>> law = LogNormal(median=100, p99=1000, max=2048)
    >>> round(law.mean, 1)
    162.3
    >>> law.sample(np.random.default_rng(1), 3).round(1)
    array([140.8, 225.5, 138.7])
    """

    median: float
    p99: float | None = None
    sigma: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        check_number("median", self.median, gt=0, le=1e12)
        if (self.p99 is None) == (self.sigma is None):
            raise ValueError(f"give either p99 or sigma; got p99={self.p99!r} and sigma={self.sigma!r}")
        if self.p99 is not None:
            check_number("p99", self.p99, ge=self.median, le=self.median * math.exp(10 * _Z99))
        else:
            check_number("sigma", self.sigma, ge=0, le=10)
        if self.max is not None and self.p99 is not None:
            check_number("max", self.max, ge=self.p99)
        elif self.max is not None:
            check_number("max", self.max, gt=0)

    @property
    def log_sigma(self) -> float:
        """Standard deviation of the logarithm: `sigma`, or ln(p99 / median) / 2.326."""
        return float(self.sigma) if self.p99 is None else math.log(self.p99 / self.median) / _Z99  # type: ignore

    @property
    def mean(self) -> float:
        """E[min(X, max)]; without `max` it is median * exp(sigma^2 / 2)."""
        width = self.log_sigma
        whole = self.median * math.exp(width**2 / 2)
        if self.max is None:
            return whole
        if width == 0:
            return float(min(self.median, self.max))
        phi = NormalDist().cdf
        z = math.log(self.max / self.median) / width
        return whole * phi(z - width) + self.max * (1 - phi(z))

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` positive floats."""
        draws = self.median * np.exp(self.log_sigma * rng.standard_normal(n))
        return draws if self.max is None else np.minimum(draws, self.max)


@dataclass(frozen=True)
class Exponential:
    """Floats without memory: P(X > x) = exp(-x / mean). For service scales (M/M/1) and think times.

    Parameters
    ----------
    mean : float
        > 0.

    Examples
    --------
    >>> Exponential(mean=1.0).sample(np.random.default_rng(1), 3).round(3)
    array([1.073, 0.308, 5.375])
    """

    mean: float

    def __post_init__(self) -> None:
        check_number("mean", self.mean, gt=0)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` positive floats."""
        return rng.exponential(self.mean, size=n)


@dataclass(frozen=True)
class Empirical:
    """Values that were observed, each drawn equally often, with replacement.

    Parameters
    ----------
    values : sequence of numbers
        At least one, all finite.

    Examples
    --------
    >>> law = Empirical([10, 10, 400])
    >>> law.mean
    140.0
    >>> law.sample(np.random.default_rng(1), 5)
    array([ 10.,  10., 400., 400.,  10.])
    """

    values: Sequence[float]

    def __post_init__(self) -> None:
        values = check_array("values", self.values)
        if not values.size:
            raise ValueError("values must hold at least one value; got none")
        object.__setattr__(self, "values", tuple(values.tolist()))

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return math.fsum(self.values) / len(self.values)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[Any]:
        """`n` of the values, as floats."""
        return rng.choice(np.array(self.values), size=n)
