"""A scheduler for vLLM that writes down what vLLM's own decides. It runs in vLLM's process, where servinglab isn't.

``--scheduler-cls vllm_recorder.RecordingScheduler``, with this file's folder on PYTHONPATH and the file to write in
VLLM_RECORD. `servinglab.measure.readers.vllm_steps` says what the lines mean, and reads them. One line goes out a step,
after it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any


class Recording:
    """Mixed in before a scheduler's class: writes each request that comes and each step.

    Requests are numbered in the order in which the scheduler gets them, steps in the order of its calls.
    """

    requests: dict[str, Any]
    running: list[Any]
    waiting: Any
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._out = open(os.environ["VLLM_RECORD"], "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
        self._numbers: dict[str, int] = {}
        self._steps = 0
        self._row: dict[str, Any] = {}
        here: Any = self
        rules, cache = here.scheduler_config, here.cache_config
        self._write(
            config={
                "max_num_seqs": rules.max_num_seqs,
                "max_num_batched_tokens": rules.max_num_batched_tokens,
                "max_model_len": here.max_model_len,
                "block_size": here.block_size,
                "num_blocks": here.kv_cache_config.num_blocks - 1,  # one is the null block
                "chunked_prefill": rules.enable_chunked_prefill,
                "prefix_caching": bool(cache.enable_prefix_caching),
                "policy": rules.policy,
                "watermark": rules.watermark,
                "reserve_full_isl": rules.scheduler_reserve_full_isl,
                "long_prefill_token_threshold": rules.long_prefill_token_threshold,
                "async": bool(rules.async_scheduling),
            }
        )

    def add_request(self, request: Any) -> Any:
        """Note who comes, and when vLLM's front end and when its engine got it."""
        now_ns, wall_s = time.monotonic_ns(), time.time()
        if request.request_id not in self._numbers:
            self._numbers[request.request_id] = len(self._numbers)
            front_ns = now_ns - round((wall_s - request.arrival_time) * 1e9)
            came_ns = getattr(request, "came_ns", now_ns)
            lengths = [request.num_prompt_tokens, request.max_tokens]
            self._write(arrive=[self._steps, front_ns, came_ns, *lengths, request.priority])
        return super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Note what the step holds."""
        begin_ns = time.monotonic_ns()
        lost = {name: request.num_preemptions for name, request in self.requests.items()}
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        number = self._numbers
        chunks = []
        held = self.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            computed = request.num_computed_tokens
            chunks.append(
                [number[name], tokens, computed - tokens, int(computed >= request.num_tokens), len(held[name])]
            )
        self._row = {
            "step": self._steps,
            "ns": [begin_ns],
            "scheduled": chunks,
            "running": [number[request.request_id] for request in self.running],
            "waiting": [number[request.request_id] for request in self.waiting],
            "preempted": [number[n] for n, r in self.requests.items() if r.num_preemptions > lost[n]],
            "blocks_used": self._used_blocks(),
        }
        self._steps += 1
        self._row["ns"].append(time.monotonic_ns())
        return output

    def update_from_output(self, scheduled: Any, result: Any) -> Any:
        """Note when the step's tokens are out, and who is done."""
        before = set(self.requests)
        back_ns = time.monotonic_ns()
        outputs = super().update_from_output(scheduled, result)  # type: ignore[misc]
        self._row["ns"] += [back_ns, time.monotonic_ns()]
        self._row["tokens_out"] = [
            self._numbers[each.request_id] for of in outputs.values() for each in of.outputs if each.new_token_ids
        ]
        self._row["finished"] = sorted(self._numbers[name] for name in before - set(self.requests))
        self._row["blocks_used_after_update"] = self._used_blocks()
        self._write(**self._row)
        return outputs

    def _used_blocks(self) -> int:
        here: Any = self
        return here.kv_cache_config.num_blocks - 1 - self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _write(self, **line: Any) -> None:
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._out.flush()


try:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
except ImportError:  # in servinglab's own environment, where only the tests use this
    pass
else:
    _make = Request.__init__

    def _stamped(self: Any, *args: Any, **kwargs: Any) -> None:
        """A thread makes requests as they reach the engine; the scheduler sees them only between two steps."""
        _make(self, *args, **kwargs)
        self.came_ns = time.monotonic_ns()

    Request.__init__ = _stamped

    class RecordingScheduler(Recording, Scheduler):
        """vLLM's scheduler, recorded."""
