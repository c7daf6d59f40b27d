"""Lines in the steady state, solved numerically: the machinery behind the exact laws of `servinglab.theory`.

Three parts. `Line` solves the chain of what a pot finds when it is free. `Departures` turns it into who has
left M/D/c by when, and `BatchStarts` into how long a guest waits and in how large a batch it is cooked when
the pot takes what is there. What it doesn't model: anything but Poisson arrivals, and transients.

Probabilities are sums of positive terms, cut where less than 1e-14 is left.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Floats

ACCURACY = 1e-10  # of a probability: what two truncations may differ by
_NEGLIGIBLE = 1e-14  # where a series is cut
_MOST_STATES = 4096


class Line:
    """Who is there when the pot is free: the steady state of n → max(n, 1) − b + Poisson(load of b).

    b = min(max(n, 1), B); an empty line waits for the next guest, who is cooked alone.

    With B equal loads it is also M/D/B's number in system, seen at moments one service time apart. Far out
    the probabilities fall by a constant factor 1/z, where z > 1 solves z^B = e^{load·(z − 1)}; states from
    `size` on follow that rule.
    """

    def __init__(self, loads: Floats) -> None:
        from scipy.optimize import brentq

        limit, load = len(loads), float(loads[-1])
        high = 1.0
        while load * high < limit * math.log1p(high):
            high *= 2
        root = brentq(lambda x: load * x - limit * math.log1p(x), 1 - load / limit, high, xtol=1e-15, rtol=1e-14)
        self.ratio = 1 / (1 + root)
        size = limit + _reach(load)
        coarse = np.full(size, np.inf)
        while True:
            if size + size // 2 > _MOST_STATES:
                raise ValueError(
                    f"a load of {load / limit:.6g} with batches of up to {limit} needs more than "
                    f"{_MOST_STATES} states: the numerical method doesn't reach there"
                )
            self._above = self._solve(loads, size)
            if np.abs(self._above[: len(coarse)] - coarse).max() < ACCURACY:
                return
            coarse = self._above
            size += size // 2

    def _solve(self, loads: Floats, size: int) -> Floats:
        """P(more than 0, 1, … `size` − 1) from the balance of each state: what comes in equals what is there."""
        from scipy.linalg import solve_banded

        limit, reach = len(loads), _reach(float(loads[-1]))
        come = [_poisson(np.arange(reach + 1), load) for load in loads]
        # row: state reached, column: state left; a column's entries lie side by side in a band
        band = np.zeros((limit + reach + 1, size))
        for state in range(size):
            left = max(state - limit, 0)
            rows = np.arange(left, min(left + reach + 1, size))
            band[limit + rows - state, state] = come[min(max(state, 1), limit) - 1][: len(rows)]
        for beyond in range(limit):  # the tail's first states reach back below `size`: charge them to the last one
            left = size + beyond - limit
            rows = np.arange(left, min(left + reach + 1, size))
            band[limit + rows - size + 1, -1] += self.ratio ** (beyond + 1) * come[-1][: len(rows)]
        band[limit] -= 1.0
        # one balance follows from the others; in its place, a likely state gets weight 1
        likely = 1
        for _ in range(size):  # where the line settles if as many come as are expected
            likely = int(loads[min(max(likely, 1), limit) - 1])
        columns = np.arange(max(likely - reach, 0), min(likely + limit + 1, size))
        band[limit + likely - columns, columns] = 0.0
        band[limit, likely] = 1.0
        weights = np.maximum(solve_banded((reach, limit), band, np.arange(size) == likely), 0.0)
        weights = np.append(weights, weights[-1] * self.ratio / (1 - self.ratio))
        return (weights / weights.sum())[::-1].cumsum()[::-1][1:]

    def above(self, n: npt.NDArray[np.int64]) -> Floats:
        """P(more than n), for whole n ≥ −1."""
        last = len(self._above) - 1
        inside = np.where(n < 0, 1.0, self._above[np.clip(n, 0, last)])
        return inside * self.ratio ** np.maximum(n - last, 0)

    def pmf(self, n: npt.NDArray[np.int64]) -> Floats:
        """P(exactly n), for whole n ≥ 0."""
        return self.above(n - 1) - self.above(n)

    def mean_above(self, n: int) -> float:
        """E[max(N − n, 0)]."""
        last = len(self._above) - 1
        return float(self._above[n:last].sum() + self._above[last] / (1 - self.ratio))

    def quantile(self, beyond: float) -> int:
        """The smallest n with P(more than n) ≤ beyond."""
        inside = np.flatnonzero(self._above <= beyond)
        if inside.size:
            return int(inside[0])
        return len(self._above) - 1 + math.ceil(math.log(beyond / self._above[-1]) / math.log(self.ratio))


class Departures:
    """M/D/c, first come first served: who has left by when."""

    def __init__(self, rate: float, servers: int, service: float) -> None:
        if servers > _MOST_STATES:
            raise ValueError(
                f"batch_size * pots must be at most {_MOST_STATES}: the numerical method doesn't reach beyond; "
                f"got {servers}"
            )
        self.rate, self.servers, self.service = rate, servers, service
        self.line = Line(np.full(servers, rate * service))
        self.mean_wait_s = self.line.mean_above(servers) / rate

    def by(self, t: float, places: npt.NDArray[np.int64]) -> Floats:
        """P(the customer `places` before a new one has left by t ≥ 0 after the new one's arrival).

        Look back from t by whole service times, to a moment less than one service time before the arrival. In
        each service time since then c customers leave, or all that were there at its start, so the answer
        follows from the number in system at that moment and the arrivals since. Franx (2001) has places = c.
        """
        turns = math.floor(t / self.service) + 1
        mean = self.rate * (turns * self.service - t)
        last = (turns - 1) * self.servers + places[:, None] - 1
        came = np.arange(min(int(last.max()), _reach(mean)) + 1)
        room = last - came
        left = np.where(room >= 0, 1 - self.line.above(self.servers + np.maximum(room, 0)), 0.0)
        return left @ _poisson(came, mean)

    def wait_tail(self, t: float) -> float:
        """P(wait > t): the customer c places before is still there."""
        return float(1 - self.by(t, np.array([self.servers]))[0]) if t >= 0 else 1.0


class BatchStarts:
    """Take what is there: the joint law of a guest's wait w and the size c of the batch it is cooked in.

    The density f(w, c) is smooth between kinks at k·s(B) + s(b). On each stretch between kinks it is a
    polynomial through Gauss–Legendre nodes; `_integral` holds each polynomial's integral from the stretch's
    start, and `_beyond` the mass from each edge on. Guests who find the pot free aren't in it: they are the
    atom at w = 0, c = 1."""

    def __init__(
        self, rate: float, service: Floats, line: Line, batch_pmf: Floats, clear: float, mean_batch: float
    ) -> None:
        from numpy.polynomial import legendre

        self._service = service
        self._free = clear / mean_batch  # the share of guests who find the pot free
        state = _InThePot(rate, service, line, batch_pmf)
        edges: list[float] = [0.0]
        integrals: list[Floats] = []
        masses: list[Floats] = []
        by_wait = by_size = 0.0
        found = self._free
        for turn, low, high in _stretches(rate, service, state.most_ahead // len(service) + 1):
            nodes, weights, projection = _gauss(6 + 2 * math.ceil(rate * (high - low)))
            half = (high - low) / 2
            wait = (low + high) / 2 + half * nodes
            density = state.density(wait, turn) * (rate / mean_batch)
            coefficients = projection @ density
            integrals.append(np.asarray(half * legendre.legint(coefficients, lbnd=-1, axis=0), np.float64))
            mass = half * (weights @ density)
            masses.append(mass)
            edges.append(high)
            by_wait += half * float((weights * wait) @ density.sum(axis=1))
            by_size += float(mass @ service)
            found += float(mass.sum())
        if abs(1 - found) > 10 * ACCURACY:
            raise ArithmeticError(f"the shares of all guests add up to {found!r}, not 1")
        self._edges = np.array(edges)
        self._integrals = np.zeros((len(integrals), max(map(len, integrals)), len(service)))
        for stretch, coefficients in enumerate(integrals):
            self._integrals[stretch, : len(coefficients)] = coefficients
        self._beyond = np.append(np.array(masses)[::-1].cumsum(axis=0)[::-1], np.zeros((1, len(service))), axis=0)
        self.mean_wait_s = by_wait
        self.mean_latency_s = by_wait + by_size + self._free * float(service[0])

    def _later(self, waits: Floats) -> Floats:
        """P(wait > waits[c − 1] and size = c) for each c, leaving out the guests who found the pot free."""
        from numpy.polynomial import legendre

        sizes = np.arange(len(waits))
        waits = np.clip(waits, 0.0, self._edges[-1])
        stretch = np.minimum(np.searchsorted(self._edges, waits, "right") - 1, len(self._integrals) - 1)
        low, high = self._edges[stretch], self._edges[stretch + 1]
        x = (2 * waits - low - high) / (high - low)
        sooner = legendre.legval(x, self._integrals[stretch, :, sizes].T, tensor=False)
        return np.asarray(self._beyond[stretch, sizes] - sooner)

    def wait_tail(self, t: float) -> float:
        """P(wait > t)."""
        return float(self._later(np.full(len(self._service), t)).sum()) if t >= 0 else 1.0

    def latency_tail(self, t: float) -> float:
        """P(latency > t)."""
        alone = self._free if t < self._service[0] else 0.0
        return float(self._later(t - self._service).sum()) + alone


class _InThePot:
    """What a guest finds who comes while a batch cooks, and what becomes of it."""

    def __init__(self, rate: float, service: Floats, line: Line, batch_pmf: Floats) -> None:
        self.rate, self.service = rate, service
        self.limit = len(service)
        # a full batch leaves some of the line behind; a smaller one nobody
        self.left = line.pmf(self.limit + np.arange(max(1, line.quantile(_NEGLIGIBLE) - self.limit + 1)))
        if self.limit == 1:
            self.left[0] += line.pmf(np.array(0))  # the guest who found the pot free fills it, too
        self.most_ahead = len(self.left) + _reach(rate * service[-1])
        self.small = [(b, float(batch_pmf[b])) for b in range(1, self.limit) if batch_pmf[b] > _NEGLIGIBLE]

    def density(self, wait: Floats, turn: int) -> Floats:
        """∝ density of (wait, size) at waits that hold the rest of the present batch and `turn` full ones.

        Returns one row per wait and one column per size 1 … B.
        """
        limit, rate = self.limit, self.rate
        rest = wait - turn * self.service[-1]  # what the batch in the pot still needs
        seat = np.arange(limit)
        ahead = turn * limit + seat  # in the line, to be the seat-th of the batch
        gone = rate * (self.service[-1] - rest)
        came = np.arange(_reach(float(gone.max())))
        index = ahead[:, None] - came
        known = (index >= 0) & (index < len(self.left))
        left = np.where(known, self.left[np.clip(index, 0, len(self.left) - 1)], 0.0)
        finds = _poisson(came, gone[:, None]) @ left.T
        for batch, share in self.small:
            cooking = rest < self.service[batch - 1]
            gone = rate * (self.service[batch - 1] - rest[cooking])
            finds[cooking] += share * _poisson(ahead, gone[:, None])
        # the batch fills up with those who come while this guest waits
        follow = _poisson(seat, rate * wait[:, None])
        result = np.empty((len(wait), limit))
        for size in range(1, limit):
            result[:, size - 1] = (finds[:, :size] * follow[:, size - 1 :: -1]).sum(axis=1)
        result[:, -1] = finds.sum(axis=1) - result[:, :-1].sum(axis=1)
        return result


def _stretches(rate: float, service: Floats, turns: int) -> Iterator[tuple[int, float, float]]:
    """Smooth stretches of waiting time, each after the number of full batches waited for.

    A batch of b in the pot gives a kink where it would just have started: s(b) after the last full batch. After
    `turn` of those it is a kink in the (turn·B)-th derivative, which beyond the 12th is lost in rounding.
    """
    for turn in range(turns):
        kinks = np.unique(np.append(0.0, service if turn * len(service) < 12 else service[-1]))
        for low, high in itertools.pairwise(turn * service[-1] + kinks):
            pieces = np.linspace(low, high, 1 + math.ceil(rate * (high - low) / 10))
            for start, end in itertools.pairwise(pieces.tolist()):
                yield turn, start, end


@functools.cache
def _gauss(count: int) -> tuple[Floats, Floats, Floats]:
    """Nodes and weights on [−1, 1], and the matrix from values at the nodes to Legendre coefficients."""
    from numpy.polynomial import legendre

    nodes, weights = legendre.leggauss(count)
    scale = np.arange(count) + 0.5
    return nodes, weights, (legendre.legvander(nodes, count - 1) * weights[:, None]).T * scale[:, None]


def _reach(mean: float) -> int:
    """A count that Poisson(mean) exceeds with a probability below 1e-16."""
    return math.ceil(mean + 10 * math.sqrt(mean) + 20)


def _poisson(n: Any, mean: Any) -> Floats:
    """P(Poisson(mean) = n)."""
    from scipy.special import gammaln, xlogy

    return np.asarray(np.exp(xlogy(n, mean) - mean - gammaln(np.asarray(n) + 1.0)), dtype=np.float64)
