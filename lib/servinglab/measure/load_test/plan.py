"""What will be sent, and when? A load test is a list of stages, each a workload of its own.

The seven kinds of test of the third document are workloads and lists of them: a fixed concurrency is one closed loop, a
fixed rate one open one, a ramp one stage a level, and mixed, long-context and long-output tests choose lengths. A burst
is a number of requests at one instant, again and again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from servinglab.base.checks import check_array, check_number
from servinglab.workload.arrival_laws import closed_loop, timed_arrivals
from servinglab.workload.model import Column, Workload


@dataclass(frozen=True, eq=False)
class Stage:
    """One level of load.

    Attributes
    ----------
    workload : Workload
        Open or closed.
    load : float
        What is turned up from stage to stage: requests per second in an open loop, clients in a closed one.
    duration_s : float or None
        How long the stage sends: after that the clients of a closed loop send no more, and all arrivals of an open one
        lie within it. None: until the workload's requests are used up.
    """

    workload: Workload
    load: float
    duration_s: float | None = None

    @property
    def unit(self) -> str:
        """Of the load."""
        return "clients" if self.workload.is_closed else "requests/s"


def stage_of(workload: Workload, duration_s: float | None = None, load: float | None = None) -> Stage:
    """One workload as a test of its own.

    Parameters
    ----------
    workload : Workload
    duration_s : float, optional
        After which clients of a closed loop send no more; an open loop has none.
    load : float, optional
        Requests per second of an open loop, where it is known better than from the arrivals.

    Examples
    --------
    >>> stage_of(closed_loop(4, 100, 1)).load, stage_of(Workload.from_arrivals([0.0, 0.5, 1.0])).load
    (4, 2.0)
    """
    if workload.is_closed:
        if duration_s is not None:
            duration_s = check_number("duration_s", duration_s, gt=0)
        return Stage(workload, workload.clients, duration_s)
    if duration_s is not None:
        raise ValueError("duration_s belongs to a closed loop; an open one ends with its arrivals")
    if load is None:  # of one request, or of all at once, there is no rate
        load = workload.rate_rps if math.isfinite(workload.rate_rps) else float(len(workload))
    return Stage(workload, load)


def burst(
    size: int, every_s: float, count: int, prompt_tokens: Any = 512, output_tokens: Any = 128, seed: int = 0
) -> Workload:
    """`count` bursts of `size` requests at one instant, `every_s` seconds apart, the first at 0.

    Examples
    --------
    >>> burst(3, 10, 2).arrival_s
    array([ 0.,  0.,  0., 10., 10., 10.])
    """
    check_number("size", size, ge=1, integer=True)
    check_number("count", count, ge=1, integer=True)
    check_number("every_s", every_s, gt=0)
    lengths = closed_loop(1, size * count, seed, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return Workload.from_arrivals(
        np.repeat(every_s * np.arange(count), size),
        lengths.prompt_tokens,
        lengths.output_tokens,
        name=f"burst(size={size}, every_s={every_s:g}, count={count})",
    )


def ramp(rates_rps: Sequence[float], stage_s: float, seed: int, cv: float = 1.0, **columns: Column) -> list[Stage]:
    """Open loops of growing rate, of `stage_s` seconds each: exactly round(rate × stage_s) `timed_arrivals`.

    Parameters
    ----------
    rates_rps : sequence of float
        Each higher than the one before.
    stage_s : float, s
        > 0.
    seed : int
        Of the first level; the next one's is higher by 1, and so on.
    cv : float
        Burstiness of the gaps; 1 is Poisson.

    Examples
    --------
    >>> [(stage.load, len(stage.workload)) for stage in ramp([1, 2, 4], stage_s=30, seed=1)]
    [(1.0, 30), (2.0, 60), (4.0, 120)]
    """
    rates = _rising("rates_rps", rates_rps)
    stage_s = check_number("stage_s", stage_s, gt=0)
    return [
        Stage(timed_arrivals(rate, stage_s, seed + k, cv, **columns), rate, duration_s=stage_s)
        for k, rate in enumerate(rates)
    ]


def ramp_clients(
    clients: Sequence[int], stage_s: float, seed: int, requests: int = 10_000, think_s: Column = 0.0, **columns: Column
) -> list[Stage]:
    """Closed loops of growing concurrency, of `stage_s` seconds each or until `requests` were sent.

    Examples
    --------
    >>> [(stage.load, stage.duration_s) for stage in ramp_clients([1, 2, 4], stage_s=30, seed=1)]
    [(1.0, 30.0), (2.0, 30.0), (4.0, 30.0)]
    """
    levels = _rising("clients", clients)
    stage_s = check_number("stage_s", stage_s, gt=0)
    return [
        Stage(closed_loop(int(level), requests, seed + k, think_s, **columns), level, duration_s=stage_s)
        for k, level in enumerate(levels)
    ]


def mixed(stage: Stage, shares: Sequence[tuple[float, int, int]], seed: int) -> Stage:
    """The same arrivals with lengths drawn from a few classes, which name them.

    Parameters
    ----------
    shares : sequence of (share, prompt tokens, output tokens)
        Shares are weights > 0.

    Examples
    --------
    >>> stage = mixed(ramp([10], 2, seed=1)[0], [(3, 100, 20), (1, 4000, 20)], seed=2)
    >>> sorted(set(stage.workload.request_class)), int(stage.workload.prompt_tokens.max())
    (['100+20', '4000+20'], 4000)
    """
    weights = check_array("shares", [share for share, _, _ in shares], gt=0)
    n = len(stage.workload)
    drawn = np.random.default_rng([seed, 7]).choice(len(shares), n, p=weights / weights.sum())
    prompts, outputs = (np.array([row[k] for row in shares])[drawn] for k in (1, 2))
    return replace(
        stage,
        workload=replace(
            stage.workload,
            prompt_tokens=prompts,
            output_tokens=outputs,
            request_class=tuple(f"{shares[k][1]}+{shares[k][2]}" for k in drawn),
        ),
    )


def fingerprint(stages: Sequence[Stage]) -> str:
    """The same for the same plan: a run is resumed only if its plan is what it was."""
    digest = hashlib.sha256()
    for stage in stages:
        work = stage.workload
        digest.update(repr((stage.load, stage.duration_s, work.request_class or (), work.clients)).encode())
        digest.update(repr(work.user).encode() if work.user else b"")
        for column in (
            work.arrival_s,
            work.prompt_tokens,
            work.output_tokens,
            work.think_s,
            work.deadline_s,
            work.max_tokens,
            *(work.prefix_hashes or ()),
        ):
            digest.update(b"" if column is None else column.tobytes())
    return digest.hexdigest()


def jobs(stage: Stage, first: int, skip: set[int]) -> list[dict[str, Any]]:
    """The requests of a stage that are still to be sent, numbered from `first`.

    The clock of an open loop that is resumed begins with the first of them.
    """
    work = stage.workload
    times_s = work.think_s if work.think_s is not None else work.arrival_s
    left = _left(stage, first, skip)
    begin_s = _begin_s(stage, left)
    return [
        {
            "request": first + k,
            "offset_ns": round((float(times_s[k]) - begin_s) * 1e9),
            "prompt_tokens": max(1, int(work.prompt_tokens[k])),
            "max_tokens": int((work.output_tokens if work.max_tokens is None else work.max_tokens)[k]),
            "request_class": work.request_class[k] if work.request_class else "",
            "user": work.user[k] if work.user else "",
            "deadline_s": None if work.deadline_s is None else float(work.deadline_s[k]),
            **({"blocks": work.prefix_hashes[k].tolist()} if work.prefix_hashes is not None else {}),
        }
        for k in left
    ]


def sends_for_s(stage: Stage, first: int, skip: set[int], elapsed_s: float) -> float | None:
    """How long what is left of a stage sends, as planned; None where only its requests decide.

    Clients of a closed loop have used up the time that they sent before; an open loop goes on at the arrival that it
    was broken off before.
    """
    if stage.duration_s is None:
        return None
    gone_s = elapsed_s if stage.workload.is_closed else _begin_s(stage, _left(stage, first, skip))
    return max(stage.duration_s - gone_s, 1e-3)


def _left(stage: Stage, first: int, skip: set[int]) -> list[int]:
    return [k for k in range(len(stage.workload)) if first + k not in skip]


def _begin_s(stage: Stage, left: list[int]) -> float:
    work = stage.workload
    return float(work.arrival_s[left[0]]) if left and not work.is_closed and left[0] > 0 else 0.0


def _rising(name: str, levels: Sequence[float]) -> list[float]:
    found = check_array(name, levels, gt=0)
    if len(found) == 0 or (np.diff(found) <= 0).any():
        raise ValueError(f"{name} must hold at least one level, each higher than the one before; got {list(levels)}")
    return [float(level) for level in found]
