"""The animated kitchen: who waits, cooks and leaves under several rules at once, and a table where no script runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from servinglab.metrics.rates import Window, request_throughput
from servinglab.web import Component, named, word

if TYPE_CHECKING:
    from servinglab.result.result import Result


KITCHEN_ORDERS = 40  # more don't fit on a phone


def kitchen(results: Mapping[str, Result]) -> Component:
    """The same orders under several schedulers, animated side by side: who waits, who cooks, who leaves.

    Parameters
    ----------
    results : mapping name -> Result
        Runs of one workload of at most 40 orders, on one pot, without prompts. The names "static", "dynamic" and
        "continuous" are shown in the page's language.

    Returns
    -------
    Component
        Displays itself in a notebook and in the book.

    Raises
    ------
    ValueError
        If there is nothing to show or the runs can't be shown side by side.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.2, 0.3], output_tokens=[1, 4, 2, 2])
    >>> pot = sl.AffineStep(0.4, 0.02)
    >>> kitchen({"static": sl.simulate(orders, sl.StaticBatching(2), pot),
    ...          "continuous": sl.simulate(orders, sl.ContinuousBatching(2), pot)})
    kitchen: static, continuous; 4 orders
    """
    if not results:
        raise ValueError("results must hold at least one run; got none")
    runs = list(results.values())
    for name, run in results.items():
        if not np.array_equal(run.arrival_ns, runs[0].arrival_ns) or not np.array_equal(
            run.output_tokens, runs[0].output_tokens
        ):
            raise ValueError(f"results must be runs of the same orders; {name!r} differs from the first")
    lanes = [_lane(name, run) for name, run in results.items()]
    data = {"duration": max(lane["last"] for lane in lanes), "lanes": lanes}
    summary = f"kitchen: {', '.join(results)}; {len(runs[0])} orders"
    return Component("kitchen", data, _kitchen_table(results), summary)


def _lane(name: str, run: Result) -> dict[str, Any]:
    """One scheduler's run as the page's script wants it: each order's moments and its seat; the pot's steps."""
    steps = run.steps()
    if run.pots != 1:
        raise ValueError(f"results must be runs on one pot; {name!r} has {run.pots or 'endless'} pots")
    if not run.finished.all() or len(run) > KITCHEN_ORDERS or not len(run):
        raise ValueError(
            f"results must be of 1 to {KITCHEN_ORDERS} orders, all of them served; "
            f"{name!r} has {int(run.finished.sum())} of {len(run)} served"
        )
    if run.prompt_tokens.any():
        raise ValueError(f"results must be of orders without prompts; {name!r} has prompts")
    first = np.searchsorted(steps.start_ns, run.scheduled_ns)
    ends = [steps.end_ns[k : k + n].tolist() for k, n in zip(first, run.output_tokens.tolist(), strict=True)]
    scheduler = run.setup.scheduler
    if scheduler.run_to_completion:  # a seat is free again when the whole batch is done
        done = {moment: 0 for moment in run.scheduled_ns.tolist()}
        for moment, end in zip(run.scheduled_ns.tolist(), ends, strict=True):
            done[moment] = max(done[moment], end[-1])
        leaves = [done[moment] for moment in run.scheduled_ns.tolist()]
    else:
        leaves = [end[-1] for end in ends]
    seats = int(getattr(scheduler, "batch_size", 0) or getattr(scheduler, "max_num_seqs", 0))
    orders = [
        {
            "arrival": run.arrival_s[k].item(),
            "scheduled": run.scheduled_s[k].item(),
            "finish": run.finish_s[k].item(),
            "leaves": leaves[k] / 1e9,
            "ends": [end / 1e9 for end in ends[k]],
            "seat": seat,
        }
        for k, seat in enumerate(_seats(run.scheduled_ns.tolist(), leaves))
    ]
    return {
        "name": name,
        "seats": max(seats, 1 + max(order["seat"] for order in orders)),
        "last": float(np.nanmax(run.finish_s, initial=0.0)),
        "orders": orders,
        "steps": (np.column_stack([steps.start_ns, steps.end_ns]) / 1e9).tolist(),
    }


def _seats(taken: Sequence[int], left: Sequence[int]) -> list[int]:
    """The lowest free seat for each order, by the moment it sits down."""
    free_from: list[int] = []
    seats = [0] * len(taken)
    for k in sorted(range(len(taken)), key=lambda k: (taken[k], k)):
        seat = next((s for s, moment in enumerate(free_from) if moment <= taken[k]), len(free_from))
        if seat == len(free_from):
            free_from.append(0)
        free_from[seat] = left[k]
        seats[k] = seat
    return seats


def _kitchen_table(results: Mapping[str, Result]) -> str:
    """The outcome in words and numbers, for who can't see the animation."""
    head = ("scheduler", "last_served", "throughput", "mean_latency", "max_latency")
    rows = []
    for name, run in results.items():
        last_s = float(run.finish_s.max())
        rate = request_throughput(run, Window([(0.0, last_s)]))  # as the animation counts: from when the doors open
        cells = (f"{last_s:.2f} s", f"{rate:.2f} /s", f"{run.e2e_s.mean():.2f} s", f"{run.e2e_s.max():.2f} s")
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{named(name)}</th>{numbers}</tr>')
    header = "".join(f'<th scope="col">{word(key)}</th>' for key in head)
    return (
        f'<details><summary>{word("table")}</summary><div class="sl-scroll"><table>'
        f"<thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )
