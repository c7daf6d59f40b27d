"""Does our scheduler decide as a real engine did? Step-by-step traces of vLLM's scheduler, replayed.

A trace is a JSON object: the scenario (requests with their arrival step, and the settings) and, for each step, what
the real scheduler did. `replay` puts the scenario to `servinglab.scheduling.vllm_rules`, and `differences` names the
first step, if any, in which the two decide differently. Nothing here knows of time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence

# what is compared in each step; a trace leaves a key out where nothing came back
_COMPARED = (
    "scheduled", "preempted", "running", "waiting", "blocks_used", "tokens_out", "finished", "blocks_used_after_update",
)  # fmt: skip


def scheduler_of(scenario: Mapping[str, Any]) -> PagedScheduler:
    """The scheduler with a scenario's settings (vLLM's names, as the traces write them)."""
    rules = ContinuousBatching(
        scenario["max_num_seqs"],
        scenario["max_num_batched_tokens"],
        max_model_len=scenario["max_model_len"],
        chunked_prefill=scenario.get("chunked_prefill", True),
        long_prefill_token_threshold=scenario.get("long_prefill_token_threshold", 0),
        adaptive_threshold=scenario.get("long_prefill_token_threshold_adaptive", False),
        policy=scenario.get("policy", "fcfs"),
        max_num_active_seqs=scenario.get("max_num_active_seqs"),
        full_prompt_gate=scenario.get("reserve_full_isl", True),
        watermark=scenario.get("watermark", 0.0),
        prefix_caching=scenario.get("prefix_caching", False),
        async_scheduling=scenario.get("async", False),
    )
    return PagedScheduler(rules, scenario["num_blocks"], scenario["block_size"])


def replay(scenario: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Put a scenario to our scheduler and yield, for each step, the record that the trace has.

    Raises
    ------
    ValueError
        If a request can never be served; the real engine would wait for ever.
    """
    requests = scenario["requests"]
    names = [request["id"] for request in requests]
    coming = deque(sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_step"], i)))
    engine = scheduler_of(scenario)
    in_flight: deque[Any] = deque()
    here, number = 0, 0

    while coming or here:
        while coming and requests[coming[0]]["arrival_step"] <= number:
            i = coming.popleft()
            request = requests[i]
            key = _key(request, i, scenario["block_size"])
            engine.add(Sequence(i, request["prompt_len"], request["output_len"], request.get("priority", 0), key))
            here += 1
        step = engine.schedule()
        in_flight.append(step)
        record = {
            "step": number,
            "scheduled": [
                (names[c.sequence.number], c.tokens, c.start, c.emits, len(c.sequence.blocks)) for c in step.chunks
            ],
            "preempted": sorted(names[s.number] for s in step.preempted),
            "running": [names[s.number] for s in engine.running],
            "waiting": [names[s.number] for s in engine.waiting],
            "blocks_used": engine.used_blocks,
            "tokens_out": [],
            "finished": [],
        }
        emits = any(chunk.emits for chunk in step.chunks)
        if not engine.rules.async_scheduling or len(in_flight) > 1 or not emits:
            back = in_flight.popleft()
            record["tokens_out"] = [names[chunk.sequence.number] for chunk in back.chunks if chunk.emits]
            done = engine.finish(back)
            record["finished"] = sorted(names[sequence.number] for sequence in done)
            here -= len(done)
        record["blocks_used_after_update"] = engine.used_blocks
        yield record
        number += 1


def differences(trace: Mapping[str, Any]) -> str | None:
    """The first difference between a real engine's trace and our replay of it, in words; None if there is none."""
    return compare(trace)[1]


def compare(trace: Mapping[str, Any]) -> tuple[int, str | None]:
    """How many of a real engine's steps our replay equals, and the first difference in words, None if there is none."""
    replayed = list(replay(trace["scenario"]))
    equal, first = 0, None
    for mine, theirs in zip(replayed, trace["steps"], strict=False):
        real = {key: theirs.get(key, []) for key in _COMPARED}
        real["scheduled"] = [(c["id"], c["tokens"], c["from"], c["emits"], c["blocks"]) for c in theirs["scheduled"]]
        real["preempted"], real["finished"] = sorted(real["preempted"]), sorted(real["finished"])
        off = next((key for key in _COMPARED if mine[key] != real[key]), None)
        equal += off is None
        if off and first is None:
            first = f"step {mine['step']}: {off} is {mine[off]}, the engine's is {real[off]}"
    if first is None and len(replayed) != len(trace["steps"]):
        first = f"{len(replayed)} steps of the engine's {len(trace['steps'])}"
    return equal, first


def read_engine_trace(path: str | Path) -> dict[str, Any]:
    """Read one trace.

    Raises
    ------
    ValueError
        If the file isn't a trace; the message names it and what is missing.
    """
    try:
        trace = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    missing = {"scenario", "steps"} - set(trace if isinstance(trace, dict) else ())
    if missing:
        raise ValueError(f"{path}: not a scheduler's trace: it lacks {' and '.join(sorted(missing))}")
    return trace


def _key(request: Mapping[str, Any], number: int, block_size: int) -> Callable[[int], Hashable]:
    """A request's blocks: shared within its group's prefix, its own beyond."""
    group, shared = request.get("prefix_group"), request.get("prefix_len", 0) // block_size
    return lambda k: (group, k) if group is not None and k < shared else (number, k)
