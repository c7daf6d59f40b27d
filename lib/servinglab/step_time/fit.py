"""Step times from measured steps: looked up in a table, or fitted as an `AffineStep` with its uncertainty.

A row of a measurement is what one step held (requests, prompt tokens, tokens of KV cache) and how many seconds it
took. `TabulatedStep` interpolates in a full grid of such rows and so keeps every kink that was measured.
`fit_step_time` finds the coefficients of `AffineStep`, says how sure each is, and refuses where the steps can't
tell two of them apart.

What this leaves out: fitting from a run's request timestamps, where steps weren't timed one by one, and noise that
depends on time (a shared machine): time the steps in one run, and compare within it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servinglab.base.checks import check_array, check_choice, check_number
from servinglab.step_time.affine import COEFFICIENTS, AffineStep

_HOLDS = ("one", "requests", "prefill_tokens", "kv_tokens", "prefill_pairs")  # what each of COEFFICIENTS multiplies
_OF_A_TABLE = _HOLDS[1:4]
_CONFOUNDED = 0.95  # correlation of errors
_SAME = 1e-6  # singular value, of columns scaled to length 1, under which columns count as the same


class TabulatedStep:
    """A step time looked up in a measured grid, linear between its points along each axis.

    Parameters
    ----------
    requests, prefill_tokens, kv_tokens : sequence of int, or None
        The grid's values along each axis, increasing, at least 0. None: the time doesn't depend on it.
    seconds : array_like
        Seconds at each point, > 0, of shape (requests, prefill_tokens, kv_tokens) without the axes that are None.
    outside : {"refuse", "edge", "extend"}
        What happens to a step beyond the grid: an error; the value at the edge; or the line of the last two points
        carried on (which wants two points along that axis, and a result above 0).

    Raises
    ------
    ValueError
        If the grid isn't as described; and, when called, if a step lies beyond it.

    Examples
    --------
    >>> table = TabulatedStep(requests=[1, 8, 32], seconds=[0.010, 0.011, 0.016])
    >>> round(table(20), 4)
    0.0135
    >>> table(64)
    Traceback (most recent call last):
    ...
    ValueError: requests must be 1 to 32, the range measured; got 64 (outside='edge' or 'extend' goes on)
    """

    def __init__(
        self,
        requests: ArrayLike | None = None,
        prefill_tokens: ArrayLike | None = None,
        kv_tokens: ArrayLike | None = None,
        *,
        seconds: ArrayLike,
        outside: str = "refuse",
    ) -> None:
        self.outside = check_choice("outside", outside, ("refuse", "edge", "extend"))
        given = {"requests": requests, "prefill_tokens": prefill_tokens, "kv_tokens": kv_tokens}
        self._axes: dict[str, list[int]] = {}
        for name, values in given.items():
            if values is None:
                continue
            axis = check_array(name, values, ge=0, integer=True)
            if axis.size == 0 or (np.diff(axis) <= 0).any():
                raise ValueError(f"{name} must hold at least one value, increasing; got {axis.tolist()}")
            self._axes[name] = axis.tolist()
        if not self._axes:
            raise ValueError("at least one of requests, prefill_tokens and kv_tokens must be given")
        shape = tuple(len(axis) for axis in self._axes.values())
        try:
            table = np.asarray(seconds, np.float64)
        except (TypeError, ValueError):
            raise ValueError("seconds must be an array of numbers") from None
        if table.shape != shape:
            raise ValueError(
                f"seconds must have shape {shape}, one value for each point of the grid; got {table.shape}"
            )
        if not (np.isfinite(table).all() and (table > 0).all()):
            worst = table[~(np.isfinite(table) & (table > 0))][0]
            raise ValueError(f"seconds must be finite numbers > 0; got {worst.item()!r}")
        self._table = {
            point: table[point].item() for point in product(*(range(len(axis)) for axis in self._axes.values()))
        }

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, float]], outside: str = "refuse") -> TabulatedStep:
        """A table of rows with keys ``requests``, ``prefill_tokens``, ``kv_tokens`` (those measured) and ``seconds``.

        The rows must fill a grid, in any order; several rows of the same point count with their median.

        Raises
        ------
        ValueError
            If a point of the grid is missing, naming it.

        Examples
        --------
        >>> rows = [{"requests": n, "kv_tokens": k, "seconds": 0.01 + 1e-4 * n + 1e-8 * k}
        ...         for n in (1, 10) for k in (0, 100_000)]
        >>> round(TabulatedStep.from_rows(rows)(4, 0, 50_000), 5)
        0.0109
        """
        if not rows:
            raise ValueError("rows must hold at least one row; got none")
        names = [name for name in _OF_A_TABLE if name in rows[0]]
        found: dict[tuple[int, ...], list[float]] = {}
        for number, row in enumerate(rows):
            if set(row) != {*names, "seconds"}:
                raise ValueError(f"rows[{number}] must have the keys {[*names, 'seconds']}; got {sorted(row)}")
            point = tuple(check_number(f"rows[{number}].{name}", row[name], ge=0, integer=True) for name in names)
            found.setdefault(point, []).append(check_number(f"rows[{number}].seconds", row["seconds"], gt=0))
        axes = [sorted({point[axis] for point in found}) for axis in range(len(names))]
        for point in product(*axes):
            if point not in found:
                missing = ", ".join(f"{name}={value}" for name, value in zip(names, point, strict=True))
                raise ValueError(f"rows must fill a grid; there is none with {missing}")
        seconds = np.reshape([float(np.median(found[point])) for point in product(*axes)], [len(axis) for axis in axes])
        return cls(**dict(zip(names, axes, strict=True)), seconds=seconds, outside=outside)

    def __call__(self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0) -> float:
        """Seconds that a step takes with this many requests, prompt tokens and KV tokens."""
        step = {"requests": requests, "prefill_tokens": prefill_tokens, "kv_tokens": kv_tokens}
        corners: list[tuple[tuple[int, float], ...]] = []  # for each axis: positions in the grid, and their weights
        for name, axis in self._axes.items():
            corners.append(self._weights(name, axis, step[name]))
        total = 0.0
        for corner in product(*corners):
            total += math.prod(weight for _, weight in corner) * self._table[tuple(position for position, _ in corner)]
        if not total > 0:
            raise ValueError(f"the table extends to {total!r} s at {step}: measure nearer to it, or use outside='edge'")
        return total

    def _weights(self, name: str, axis: list[int], value: float) -> tuple[tuple[int, float], ...]:
        inside = axis[0] <= value <= axis[-1]
        if not inside and self.outside == "refuse":
            raise ValueError(
                f"{name} must be {axis[0]} to {axis[-1]}, the range measured; got {value!r} "
                "(outside='edge' or 'extend' goes on)"
            )
        if not inside and self.outside == "edge":
            value = min(max(value, axis[0]), axis[-1])
        if len(axis) == 1:
            if value != axis[0]:
                raise ValueError(f"{name} must be {axis[0]}, all that was measured; got {value!r}")
            return ((0, 1.0),)
        left = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
        share = (value - axis[left]) / (axis[left + 1] - axis[left])
        return ((left, 1 - share), (left + 1, share))

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={axis[0]}…{axis[-1]} ({len(axis)})" for name, axis in self._axes.items())
        return f"TabulatedStep({axes}, outside={self.outside!r})"


@dataclass(frozen=True, eq=False)
class StepFit:
    """An `AffineStep` fitted to measured steps, and how far to trust it. Made by `fit_step_time`.

    Attributes
    ----------
    step : AffineStep
        The fitted step time.
    standard_error : dict of str to float
        Of each coefficient, in its unit; 0 for a fixed one.
    interval : dict of str to (float, float)
        Confidence interval of each coefficient at `confidence`, cut at 0.
    covariance : ndarray of shape (5, 5)
        In the order of `COEFFICIENTS`; zero for what is fixed or at its bound.
    at_zero : tuple of str
        Coefficients that the data would like to be negative; they were held at 0, and the others fitted again.
    fixed : tuple of str
        Coefficients that were given, or that no step holds anything of.
    residual_s : ndarray
        Measured minus fitted seconds of each row.
    confidence : float
    condition : float
        Ratio of the largest to the smallest singular value of the scaled columns: 1 is best, over 1e6 is refused.
    confounded : tuple of (str, str)
        Pairs whose errors have a correlation beyond ±0.95: what one has too much, the other has too little.
    """

    step: AffineStep
    standard_error: dict[str, float]
    interval: dict[str, tuple[float, float]]
    covariance: NDArray[np.float64]
    at_zero: tuple[str, ...]
    fixed: tuple[str, ...]
    residual_s: NDArray[np.float64]
    confidence: float
    condition: float
    confounded: tuple[tuple[str, str], ...]

    @property
    def rms_s(self) -> float:
        """Root of the mean squared residual, seconds."""
        return float(np.sqrt(np.mean(self.residual_s**2)))

    def __str__(self) -> str:
        lines = [f"{'coefficient':<21}{'seconds':>12}  {self.confidence:.0%} interval"]
        for name in COEFFICIENTS:
            low, high = self.interval[name]
            remark = "  (fixed)" if name in self.fixed else "  (held at 0)" if name in self.at_zero else ""
            lines.append(f"{name:<21}{getattr(self.step, name):>12.4g}  {low:.4g} to {high:.4g}{remark}")
        lines.append(f"{len(self.residual_s)} rows, rms residual {self.rms_s:.3g} s, condition {self.condition:.3g}")
        lines += [f"hardly told apart: {first} and {second}" for first, second in self.confounded]
        return "\n".join(lines)


def fit_step_time(
    requests: ArrayLike,
    seconds: ArrayLike,
    prefill_tokens: ArrayLike | None = None,
    kv_tokens: ArrayLike | None = None,
    prefill_pairs: ArrayLike | None = None,
    *,
    fixed: Mapping[str, float] | None = None,
    relative: bool = False,
    confidence: float = 0.95,
) -> StepFit:
    """Fit `AffineStep` to measured steps by least squares with no coefficient below 0.

    Parameters
    ----------
    requests, seconds : array_like of shape (n,)
        Requests in each step, at least 0, and the seconds it took, > 0. One row a step; n must exceed the number of
        coefficients fitted.
    prefill_tokens, kv_tokens, prefill_pairs : array_like of shape (n,), optional
        Prompt tokens computed, KV tokens held and pairs that the prompts attend; without them their coefficients are 0.
    fixed : mapping of str to float, optional
        Coefficients known beforehand, by `AffineStep`'s names, in seconds.
    relative : bool
        Whether to weigh each row by 1/seconds: for noise that grows with the step.
    confidence : float
        Of the intervals, > 0 and < 1.

    Returns
    -------
    StepFit

    Raises
    ------
    ValueError
        If the arrays don't fit together, if there are too few rows, or if the rows can't tell coefficients apart
        (the message names them; fix one, or measure steps that differ in it).

    Notes
    -----
    Lawson and Hanson's non-negative least squares (`scipy.optimize.nnls`). Covariance: s²·(XᵀX)⁻¹ of the columns that
    aren't held at 0, s² = residual sum of squares / (n − their number); intervals by Student's t. They take rows to be
    independent with equal noise (equal relative noise with ``relative=True``). Where a coefficient is held at 0, each
    interval is widened to hold also that of the fit without bounds, cut at 0.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> n, kv = rng.integers(1, 65, 200), rng.integers(0, 200_000, 200)
    >>> measured = 0.006 + 5e-5 * n + 4e-8 * kv + rng.normal(0, 1e-4, 200)
    >>> fit = fit_step_time(n, measured, kv_tokens=kv)
    >>> fit.fixed
    ('per_prefill_token_s', 'per_prefill_pair_s')
    >>> low, high = fit.interval["per_kv_token_s"]
    >>> low < 4e-8 < high
    True

    Steps of one context length can't tell requests from the tokens they hold:

    >>> fit_step_time(n, measured, kv_tokens=1000 * n)
    Traceback (most recent call last):
    ...
    ValueError: these steps can't tell per_request_s from per_kv_token_s: requests and kv_tokens move together; fix one
    with fixed={'per_kv_token_s': ...}, or measure steps that differ in it
    """
    from scipy.optimize import nnls
    from scipy.stats import t as student

    confidence = check_number("confidence", confidence, gt=0, lt=1)
    y = check_array("seconds", seconds, gt=0)
    columns = [np.ones(y.size), check_array("requests", requests, length=y.size, ge=0)]
    held = (("prefill_tokens", prefill_tokens), ("kv_tokens", kv_tokens), ("prefill_pairs", prefill_pairs))
    for name, values in held:
        columns.append(np.zeros(y.size) if values is None else check_array(name, values, length=y.size, ge=0))
    known = {} if fixed is None else dict(fixed)
    for name in known:
        check_choice("fixed", name, COEFFICIENTS)
        known[name] = check_number(f"fixed[{name!r}]", known[name], ge=0)
    for name, column in zip(COEFFICIENTS, columns, strict=True):
        if not column.any():
            known.setdefault(name, 0.0)  # no step holds any of it

    offset = sum(
        (known[name] * column for name, column in zip(COEFFICIENTS, columns, strict=True) if name in known), 0.0
    )
    free = [index for index, name in enumerate(COEFFICIENTS) if name not in known]
    if not free:
        raise ValueError("fixed must leave at least one coefficient to fit; got all of them")
    if y.size <= len(free):
        raise ValueError(f"seconds must hold more than {len(free)} steps to fit {len(free)} coefficients; got {y.size}")
    scale_rows = 1 / y if relative else np.ones(y.size)
    design = np.column_stack([columns[index] for index in free]) * scale_rows[:, None]
    target = (y - offset) * scale_rows
    lengths = np.linalg.norm(design, axis=0)
    scaled = design / lengths
    condition = _check_apart(scaled, free)

    solution, _ = nnls(scaled, target)
    active = solution > 0
    residual = target - scaled @ solution
    freedom = y.size - int(active.sum())
    variance = float(residual @ residual) / freedom
    inside = np.zeros((len(COEFFICIENTS), len(COEFFICIENTS)))
    kept = np.flatnonzero(active)
    kept_rows = [free[index] for index in kept]
    inside[np.ix_(kept_rows, kept_rows)] = (
        variance * np.linalg.inv(scaled[:, kept].T @ scaled[:, kept]) / np.outer(lengths[kept], lengths[kept])
    )
    unbound, unbound_error, confounded = _unbound(scaled, target, lengths, free)

    value = {name: known.get(name, 0.0) for name in COEFFICIENTS}
    error = dict.fromkeys(COEFFICIENTS, 0.0)
    interval = {name: (value[name], value[name]) for name in COEFFICIENTS}
    quantile = float(student.ppf((1 + confidence) / 2, freedom))
    for position, index in enumerate(free):
        name = COEFFICIENTS[index]
        value[name] = float(solution[position] / lengths[position])
        error[name] = math.sqrt(inside[index, index]) if active[position] else float(unbound_error[position])
        ranges = [(value[name], error[name])] if active[position] else []
        if not active.all():
            ranges.append((float(unbound[position]), float(unbound_error[position])))
        low = min(centre - quantile * spread for centre, spread in ranges)
        high = max(centre + quantile * spread for centre, spread in ranges)
        interval[name] = (max(0.0, low), max(0.0, high))
    try:
        step = AffineStep(**value)
    except ValueError as problem:
        raise ValueError(f"the fit isn't a step time: {problem}") from None
    at_zero = tuple(COEFFICIENTS[index] for position, index in enumerate(free) if not active[position])
    return StepFit(
        step=step,
        standard_error=error,
        interval=interval,
        covariance=inside,
        at_zero=at_zero,
        fixed=tuple(name for name in COEFFICIENTS if name in known),
        residual_s=y - np.array([step(*row) for row in zip(*(column.tolist() for column in columns[1:]), strict=True)]),
        confidence=confidence,
        condition=condition,
        confounded=confounded,
    )


def _unbound(
    scaled: NDArray[np.float64], target: NDArray[np.float64], lengths: NDArray[np.float64], free: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[tuple[str, str], ...]]:
    """Least squares without bounds: coefficients, their standard errors, and which pairs trade off."""
    solution = np.linalg.lstsq(scaled, target, rcond=None)[0]
    residual = target - scaled @ solution
    variance = float(residual @ residual) / (target.size - lengths.size)
    inverse = np.linalg.inv(scaled.T @ scaled)
    spread = np.sqrt(np.diag(inverse))
    correlation = np.abs(inverse / np.outer(spread, spread))
    pairs = tuple(
        (COEFFICIENTS[free[first]], COEFFICIENTS[free[second]])
        for first, second in combinations(range(len(free)), 2)
        if correlation[first, second] > _CONFOUNDED
    )
    return solution / lengths, math.sqrt(variance) * spread / lengths, pairs


def _check_apart(scaled: NDArray[np.float64], free: Sequence[int]) -> float:
    """Condition of the columns; an error that names those which move together."""
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    if sizes[-1] > _SAME * sizes[0]:
        return float(sizes[0] / sizes[-1])
    together = np.abs(directions[-1]) > 1e-3
    names = [COEFFICIENTS[free[index]] for index in np.flatnonzero(together).tolist()]
    holds = [_HOLDS[free[index]] for index in np.flatnonzero(together).tolist()]
    if holds[0] == "one":
        why = f"{' and '.join(holds[1:])} {'is' if len(holds) == 2 else 'together are'} the same in all"
    else:
        why = f"{' and '.join(holds)} move together"
    advice = f"fix one with fixed={{{names[-1]!r}: ...}}, or measure steps that differ in it"
    raise ValueError(f"these steps can't tell {' from '.join(names)}: {why}; {advice}")
