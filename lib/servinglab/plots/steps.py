"""Who does what in each step of a run: waits, reads its prompt, decodes, pauses, is preempted.

`Result` keeps totals per step, not per request. `step_states` works them out again: for seats alone from the rows of
the requests, where tokens or blocks are counted by putting the same requests to `servinglab.scheduling.vllm_rules` once
more, and it compares every step with the run's log. `step_timeline` shows runs side by side, or one of several chosen
by sliders.

Not modelled: asynchronous scheduling, where two steps overlap, and more than one pot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from servinglab.base.arrays import Ints
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.scheduling.blocks import prefix_keys
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.scheduling.vllm_rules import PagedScheduler
from servinglab.scheduling.vllm_rules import Sequence as Request
from servinglab.web import Component, named, word
from servinglab.workload.model import PREFIX_TOKENS, Workload
from servinglab.workload.outcomes import NEVER, TURNED_AWAY, Status

MOST_REQUESTS = 24  # more rows don't fit on a phone
MOST_STEPS = 400  # nor do more columns

AWAY, WAITS, PREFILLS, DECODES, PAUSES, HELD, PREEMPTED = ".", "w", "p", "d", "s", "h", "x"
_WORDS = {
    WAITS: "waits", PREFILLS: "prefill", DECODES: "decode", PAUSES: "pauses", HELD: "done_waits",
    PREEMPTED: "preempted",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StepStates:
    """What each of n requests does in each of m steps.

    Attributes
    ----------
    start_ns, end_ns : int64 arrays of m
    states : array of n by m characters
        ``.`` not here, ``w`` waits, ``p`` computes prompt tokens, ``d`` decodes, ``s`` has a seat but gets no token,
        ``h`` has its answer but must stay until the batch ends, ``x`` loses its blocks to make room for this step.
    tokens : int64 array of n by m
        Tokens computed.
    kv_blocks : int64 array of m
        Blocks in use during the step; 0 where no pool is modelled.
    """

    start_ns: Ints
    end_ns: Ints
    states: npt.NDArray[np.str_]
    tokens: npt.NDArray[np.int64]
    kv_blocks: npt.NDArray[np.int64]


def step_states(result: Result, workload: Workload) -> StepStates:
    """What each request does in each step.

    Parameters
    ----------
    result : Result
        A run of `simulate` or `reference` on one pot, with its log.
    workload : Workload
        What was run.

    Returns
    -------
    StepStates

    Raises
    ------
    ValueError
        If the run isn't of this workload, has no log, several pots or asynchronous scheduling.

    Examples
    --------
    >>> import servinglab as sl
    >>> chat = sl.Workload.from_arrivals([0.0, 0.0, 0.1], prompt_tokens=[6, 3, 2], output_tokens=[2, 1, 2])
    >>> run = sl.simulate(chat, sl.ContinuousBatching(2, 4), sl.AffineStep(0.1, 0.0))
    >>> states = step_states(run, chat)
    >>> for row in states.states:
    ...     print("".join(row))
    ppd..
    wpp..
    .wwpd
    >>> states.tokens.tolist()
    [[4, 2, 1, 0, 0], [0, 2, 1, 0, 0], [0, 0, 0, 2, 1]]
    """
    if not isinstance(result, Result) or not isinstance(workload, Workload):
        raise ValueError(f"result must be a run, and workload what it ran; got {type(result)} and {type(workload)}")
    log = result.steps()
    if result.pots != 1:
        raise ValueError(f"result must be a run on one pot; got {result.pots or 'endless'} pots")
    same_requests = (
        len(workload) == len(result)
        and np.array_equal(workload.prompt_tokens, result.prompt_tokens)
        and np.array_equal(workload.output_tokens, result.output_tokens)
    )
    if not same_requests:
        raise ValueError(f"result must be a run of the workload; {len(result)} requests differ from {len(workload)}")
    scheduler = result.setup.scheduler
    kv = result.setup.kv
    if isinstance(scheduler, ContinuousBatching) and (kv is not None or scheduler.counts_tokens):
        return _put_again(result, workload, scheduler, kv, log)
    return _from_rows(result, scheduler, log)


def _from_rows(result: Result, scheduler: Any, log: Segments) -> StepStates:
    """Where only seats count, a request gets a token in every step from its first on."""
    n, m = len(result), len(log)
    states = np.full((n, m), AWAY)
    tokens = np.zeros((n, m), np.int64)
    begins = np.searchsorted(log.start_ns, result.scheduled_ns)
    ends = begins + result.output_tokens
    for k in range(n):
        arrived = int(np.searchsorted(log.start_ns, result.arrival_ns[k]))
        if result.scheduled_ns[k] == NEVER:
            states[k, arrived:] = WAITS
            continue
        first, last = int(begins[k]), int(ends[k])
        states[k, arrived:first] = WAITS
        states[k, first:last] = DECODES
        tokens[k, first:last] = 1
        if result.prompt_tokens[k]:
            states[k, first] = PREFILLS
            tokens[k, first] = result.prompt_tokens[k]
        if getattr(scheduler, "run_to_completion", False):
            batch = result.scheduled_ns == result.scheduled_ns[k]
            states[k, last : int(ends[batch].max())] = HELD
    return StepStates(log.start_ns, log.end_ns, states, tokens, np.zeros(m, np.int64))


def _put_again(result: Result, workload: Workload, rules: ContinuousBatching, kv: Any, log: Segments) -> StepStates:
    """Where tokens or blocks count: the same requests, put to the scheduler at the same moments."""
    if rules.async_scheduling:
        raise ValueError("result must be a run without async_scheduling, in which steps don't overlap; got one with it")
    n, m = len(result), len(log)
    engine = PagedScheduler(rules, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
    served = [k for k in range(n) if result.status[k] != Status.REJECTED]
    coming = deque(sorted(served, key=lambda k: (int(result.arrival_ns[k]), k)))
    states = np.full((n, m), AWAY)
    tokens = np.zeros((n, m), np.int64)
    kv_blocks = np.zeros(m, np.int64)
    for at in range(m):
        while coming and result.arrival_ns[coming[0]] <= log.start_ns[at]:
            k = coming.popleft()
            ids = workload.prefix_hashes[k] if workload.prefix_hashes is not None else None
            key = prefix_keys(k, ids, PREFIX_TOKENS, engine.block_size)
            prompt, output = int(workload.prompt_tokens[k]), int(workload.output_tokens[k])
            engine.add(Request(k, prompt, output, int(workload.priority[k]), key))
        step, lost = engine.schedule(), set()
        while step.preempted and not step.chunks:  # room was made, and nobody could use it yet
            lost |= {victim.number for victim in step.preempted}
            step = engine.schedule()
        lost |= {victim.number for victim in step.preempted}
        for sequence in engine.waiting:
            states[sequence.number, at] = PREEMPTED if sequence.number in lost else WAITS
        for sequence in engine.running:
            states[sequence.number, at] = PAUSES
        prefill = 0
        for chunk in step.chunks:
            reads = chunk.tokens > 1 or chunk.start < chunk.sequence.prompt_tokens
            states[chunk.sequence.number, at] = PREFILLS if reads else DECODES
            tokens[chunk.sequence.number, at] = chunk.tokens
            prefill += chunk.tokens if reads else 0
        kv_blocks[at] = engine.used_blocks if kv is not None else 0
        if (len(step.chunks), prefill) != (log.charged[at], log.prefill_tokens[at]):
            raise ValueError(
                f"result must be a run of the workload; step {at} computes {prefill} prompt tokens of "
                f"{len(step.chunks)} requests, its log says {log.prefill_tokens[at]} of {log.charged[at]}"
            )
        engine.finish(step)
    return StepStates(log.start_ns, log.end_ns, states, tokens, kv_blocks)


def step_timeline(
    workload: Workload | Mapping[Any, Workload],
    results: Mapping[Any, Result],
    *,
    sliders: Sequence[str] = (),
    start: tuple[Any, ...] | None = None,
    labels: Sequence[str] | None = None,
) -> Component:
    """Runs step by step, animated: a row for each request, a column for each step, below it the blocks in use.

    Parameters
    ----------
    workload : Workload, or a mapping with the keys of `results`
        What was run; one for each run where they differ.
    results : mapping
        Without sliders: name -> run, shown one below the other on one axis of time. With sliders: a tuple of values,
        one for each slider -> run, for every combination; one run is shown at a time.
    sliders : sequence of str
        Names of what is varied, such as "max_num_seqs".
    start : tuple, optional
        The run that is shown first. Default: the smallest values.
    labels : sequence of str, optional
        The rows' names. Default: 1, 2, 3 …

    Returns
    -------
    Component
        Displays itself in a notebook and in the book; where no script runs, a table of the steps. A rejected request
        has only the mark of its arrival.

    Raises
    ------
    ValueError
        If there is nothing to show, too much of it, or a combination of the sliders or a workload is missing.

    Examples
    --------
    >>> import servinglab as sl
    >>> chat = sl.Workload.from_arrivals([0.0, 0.0, 0.1], prompt_tokens=[6, 3, 2], output_tokens=[2, 1, 2])
    >>> runs = {(n,): sl.simulate(chat, sl.ContinuousBatching(n, 4), sl.AffineStep(0.1, 0.0)) for n in (1, 2)}
    >>> step_timeline(chat, {"one seat": runs[1,], "two seats": runs[2,]})
    step timeline: one seat, two seats
    >>> step_timeline(chat, runs, sliders=["max_num_seqs"])
    step timeline: max_num_seqs 1, 2
    """
    if not isinstance(results, Mapping) or not results:
        raise ValueError(f"results must map names or tuples to at least one run; got {results!r}")
    if isinstance(sliders, str):
        raise ValueError(f"sliders must be a sequence of names; got {sliders!r}")
    missing = [key for key in results if isinstance(workload, Mapping) and key not in workload]
    if missing:
        raise ValueError(f"workload must have the keys of results; it lacks {missing[0]!r}")
    stops: list[list[Any]] = []
    if sliders:
        if any(not isinstance(key, tuple) or len(key) != len(sliders) for key in results):
            raise ValueError(f"results must be keyed by tuples of {len(sliders)} values; got {list(results)[:3]}")
        try:
            stops = [sorted({key[place] for key in results}) for place in range(len(sliders))]
        except TypeError:
            raise ValueError(f"each slider's values must have an order; got {list(results)[:3]}") from None
        missing = [key for key in product(*stops) if key not in results]
        if missing:
            raise ValueError(f"results must hold a run for every combination of {list(sliders)}; it lacks {missing[0]}")
    if start is not None and (not sliders or start not in results):
        raise ValueError(f"start must be a key of results, with sliders; got {start!r}")
    first = [each.index(value) for each, value in zip(stops, start, strict=True)] if start else [0] * len(stops)
    keys = list(product(*stops)) if sliders else list(results)
    lanes = []
    for key in keys:
        name = "" if sliders else str(key)
        lanes.append(_lane(name, results[key], workload[key] if isinstance(workload, Mapping) else workload, labels))
    data = {
        "duration": max(lane["last"] for lane in lanes),
        "lanes": lanes,
        "sliders": [
            {"label": name, "stops": [f"{at:g}" if isinstance(at, float) else str(at) for at in each], "start": index}
            for name, each, index in zip(sliders, stops, first, strict=True)
        ],
    }
    told = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in zip(sliders, stops, strict=True))
    shown = lanes
    if sliders:
        at = start or keys[0]
        name = ", ".join(f"{slider} {value}" for slider, value in zip(sliders, at, strict=True))
        shown = [{**lanes[keys.index(at)], "name": name}]
    return Component(
        "steps",
        data,
        _table(shown),
        f"step timeline: {told or ', '.join(map(str, keys))}",
    )


def _lane(name: str, run: Result, workload: Workload, labels: Sequence[str] | None) -> dict[str, Any]:
    """One run as the page's script wants it: the steps' times, and for each request a character a step."""
    told = step_states(run, workload)
    n, m = told.states.shape
    if not 1 <= n <= MOST_REQUESTS or not 1 <= m <= MOST_STEPS:
        raise ValueError(
            f"results must be of 1 to {MOST_REQUESTS} requests and 1 to {MOST_STEPS} steps; got {n} requests, {m} steps"
        )
    if labels is not None and (len(labels) != n or not all(isinstance(label, str) for label in labels)):
        raise ValueError(f"labels must be one string for each of {n} requests; got {labels!r}")
    kv = run.setup.kv
    gone_ns = np.where(np.isin(run.status, TURNED_AWAY), run.arrival_ns, run.finish_ns)
    rows = []
    for k in range(n):
        reads = told.states[k] == PREFILLS
        rows.append(
            {
                "name": labels[k] if labels is not None else str(k + 1),
                "arrival": run.arrival_ns[k] / 1e9,
                "gone": gone_ns[k] / 1e9 if gone_ns[k] != NEVER else None,
                "states": "".join(told.states[k]),
                "prefill": told.tokens[k][reads].tolist(),
            }
        )
    start, end = told.start_ns / 1e9, told.end_ns / 1e9
    return {
        "name": name,
        "unpriced": run.unpriced_attention is not None,
        "last": float(end[-1]),
        "steps": [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in zip(start, end, strict=True)],
        "rows": rows,
        "blocks": told.kv_blocks.tolist() if kv is not None else None,
        "pool": kv.usable_blocks if kv is not None else None,
    }


def _table(lanes: Sequence[dict[str, Any]]) -> str:
    """The same in words, for who can't see the picture: a row for each step, a column for each request."""
    parts = [f"<summary>{word('steps_table')}</summary>"]
    for lane in lanes:
        names = "".join(f'<th scope="col">{escape(row["name"])}</th>' for row in lane["rows"])
        blocks = f'<th scope="col">{word("kv_blocks")}</th>' if lane["blocks"] else ""
        head = (
            f'<tr><th scope="col">{word("step_number")}</th><th scope="col">{word("time")} (s)</th>{names}{blocks}</tr>'
        )
        reads = [iter(row["prefill"]) for row in lane["rows"]]
        body = []
        for at, (start, _end) in enumerate(lane["steps"]):
            cells = []
            for row, tokens in zip(lane["rows"], reads, strict=True):
                state = row["states"][at]
                count = f" {next(tokens)}" if state == PREFILLS else ""
                cells.append(f"<td>{word(_WORDS[state]) + count if state in _WORDS else ''}</td>")
            blocks = f"<td>{lane['blocks'][at]}/{lane['pool']}</td>" if lane["blocks"] else ""
            body.append(f'<tr><th scope="row">{at + 1}</th><td>{start:.3f}</td>{"".join(cells)}{blocks}</tr>')
        title = f"<p><strong>{named(lane['name'])}</strong></p>" if lane["name"] else ""
        title += f"<p>{word('unpriced')}</p>" if lane["unpriced"] else ""
        parts.append(
            f'{title}<div class="sl-scroll"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div>'
        )
    return f"<details>{''.join(parts)}</details>"
