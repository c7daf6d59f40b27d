"""Compiled kernels for submissions that simulate: made once on a machine, handed to each in a copy.

A submission's process starts with an empty cache of its own, so without this each would compile the simulator again:
about ten seconds for a notebook that simulates one second. What is handed over was compiled from this library alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import servinglab

# both kernels of tokens and the one of pots
COMPILE = """
import warnings
import servinglab as sl
warnings.simplefilter("ignore")
work = sl.Workload.from_arrivals([0.0, 0.1], prompt_tokens=[20, 30], output_tokens=[3, 2])
step = sl.AffineStep(1e-3, 1e-4, 1e-6, 1e-9)
for rules in (sl.ContinuousBatching(2), sl.ContinuousBatching(2, policy="priority")):
    sl.simulate(work, rules, step, kv=sl.Blocks(100))
    sl.simulate(work, rules, step)
pot = sl.Workload.from_arrivals([0.0, 0.1])
for rules in (sl.StaticBatching(2), sl.DynamicBatching(2, 0.1), sl.ContinuousBatching(2)):
    sl.simulate(pot, rules, step)
"""


def compiled_kernels() -> Path | None:
    """The folder that holds them, filled on the first call on a machine; None where no place for it is found."""
    try:
        folder = _cache() / f"kernels-{_stamp()}"
    except importlib.metadata.PackageNotFoundError:  # without numba nothing is compiled
        return None
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            environment = {
                **os.environ,
                "NUMBA_CACHE_DIR": str(new),
                "PYTHONPATH": str(Path(servinglab.__file__).parents[1]),
            }
            subprocess.run([sys.executable, "-P", "-c", COMPILE], env=environment, capture_output=True, check=True)
            for path in (new, *new.rglob("*")):  # whatever the umask: the reader may be another user
                path.chmod(0o755 if path.is_dir() else 0o644)
            new.rename(folder)
        for old in folder.parent.glob("kernels-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    except (OSError, subprocess.CalledProcessError):
        return folder if folder.is_dir() else None  # another process was first, or each submission compiles its own
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "servinglab")


def _stamp() -> str:
    """What the compiled code depends on: this library's sources and their place, numba, Python."""
    home = Path(servinglab.__file__).parent
    digest = hashlib.sha256(f"{home} {sys.version} {importlib.metadata.version('numba')}".encode())
    for path in sorted([*home.glob("engine/**/*.py"), *home.glob("base/*.py")]):
        # numba looks at the time too
        digest.update(f"{path.relative_to(home)} {path.stat().st_mtime_ns}".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
