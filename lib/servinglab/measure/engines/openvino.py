"""OpenVINO GenAI's continuous batching as an engine whose steps are taken by hand.

Its scheduler is vLLM's idea with fewer rules: with ``dynamic_split_fuse`` answers come first in each step and prompts
fill the rest of the budget in pieces. As long as memory isn't short that is what `servinglab.ContinuousBatching` does
with chunked prefill, and `servinglab.measure.engines.stepped` checks it at every step. In that mode OpenVINO doesn't
look at its ``max_num_seqs``; requests without a seat wait in front of it, as behind a server's limit. The pool is made
so large that memory is never short, for what happens then differs.

Prompts are random token ids and answers run to their limit: the model's weights decide how long a step takes, not what
they say.
"""

from __future__ import annotations

import json
import os
import platform
import time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.base.checks import check_number
from servinglab.measure.engines.stepped import Taken
from servinglab.scheduling.blocks import Blocks
from servinglab.scheduling.schedulers import ContinuousBatching

BLOCK_SIZE = 32  # tokens in a block of OpenVINO's CPU plugin
_ALIVE: list[Any] = []
MISSING = "OpenVINO GenAI isn't installed, so its engine can't be measured: pip install 'servinglab[openvino]' (300 MB)"


class OpenVinoEngine:
    """A folder with an OpenVINO model, loaded on the CPU.

    Parameters
    ----------
    model_dir : path
        What ``optimum-cli export openvino`` writes: openvino_model.xml and .bin, the tokenizer, config.json.
    max_num_seqs, max_num_batched_tokens : int
        Caps on the requests and the tokens of a step.
    threads : int
        How many compute.
    seed : int
        Of the prompts' token ids.

    Raises
    ------
    ImportError
        If OpenVINO GenAI isn't installed.
    ValueError
        If the folder holds no such model.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 256,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        try:
            import openvino
            import openvino_genai
        except ImportError:
            raise ImportError(MISSING) from None
        folder = Path(model_dir)
        config = _config(folder)
        self._vocab = check_number("vocab_size", config.get("vocab_size"), ge=1, integer=True)
        longest = check_number("max_position_embeddings", config.get("max_position_embeddings"), ge=2, integer=True)
        self.scheduler = ContinuousBatching(max_num_seqs, max_num_batched_tokens, max_model_len=longest)
        self.kv = Blocks(self.scheduler.max_num_seqs * -(-longest // BLOCK_SIZE), BLOCK_SIZE)
        self.threads = check_number("threads", threads, ge=1, integer=True)
        self._rng = np.random.default_rng(seed)
        self._ov, self._genai = openvino, openvino_genai
        rules = openvino_genai.SchedulerConfig()
        rules.max_num_seqs = self.scheduler.max_num_seqs
        rules.max_num_batched_tokens = self.scheduler.max_num_batched_tokens
        rules.num_kv_blocks = self.kv.usable_blocks
        rules.dynamic_split_fuse = True
        rules.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(folder), rules, "CPU", {"INFERENCE_NUM_THREADS": self.threads}
        )
        # OpenVINO has signals handled on a stack of its own, frees that with the pipeline and doesn't take it back:
        # from then on Ctrl-C would be a segmentation fault. So the pipeline stays.
        _ALIVE.append(self._pipeline)
        self._handles: dict[int, Any] = {}
        self._model = folder.resolve().name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Names, versions, threads."""
        return {
            "engine": f"OpenVINO GenAI {metadata.version('openvino-genai')}",
            "openvino": metadata.version("openvino"),
            "model": self._model,
            "device": str(self._ov.Core().get_property("CPU", "FULL_DEVICE_NAME")),
            "threads": self.threads,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.platform(),
        }

    def add(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        """A request of random token ids takes a seat."""
        limits = self._genai.GenerationConfig()
        limits.max_new_tokens, limits.ignore_eos, limits.do_sample = output_tokens, True, False
        ids = self._rng.integers(0, self._vocab, (1, prompt_tokens), dtype=np.int64)
        self._handles[number] = self._pipeline.add_request(number, self._ov.Tensor(ids), limits)

    def step(self) -> Taken:
        """Take one step, then see who got tokens."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._pipeline.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        gave = {}
        for number, handle in list(self._handles.items()):
            if handle.can_read():
                gave[number] = sum(len(output.generated_ids) for output in handle.read().values())
            if handle.get_status() != self._genai.GenerationStatus.RUNNING:
                del self._handles[number]
        return Taken(wall, cpu, self._pipeline.get_metrics().scheduled_requests, gave)


def _config(folder: Path) -> dict[str, Any]:
    for name in ("openvino_model.xml", "config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"model_dir must hold openvino_model.xml and config.json; {folder} has no {name}")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.json'}: must hold one JSON object")
    return config
