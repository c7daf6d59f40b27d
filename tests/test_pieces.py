"""Kernels out of small functions: pieces are built once, in the whole, and index arrays from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from numba.core.codegen import JITCodeLibrary  # noqa: E402
from servinglab.base import compiled, pieces  # noqa: E402


@compiled.part
def last_but(column, k):
    return column[len(column) - 1 - k]


@compiled.apart
def put(column, k, value):
    column[k] = value


@compiled.part
def swap_ends(column):
    first = column[0]
    put(column, 0, last_but(column, 0))
    put(column, len(column) - 1, first)


def kernel(function):
    return numba.njit(pipeline_class=pieces.KernelCompiler)(function)


def test_pieces_make_no_machine_code_but_in_the_kernel(monkeypatch):
    built, finish = [], JITCodeLibrary._finalize_specific
    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", lambda self: (built.append(self.name), finish(self))[1])
    column = np.arange(5)
    kernel(lambda column: swap_ends(column))(column)
    assert column.tolist() == [4, 1, 2, 3, 0]
    assert [name for name in built if name != "nrt"] == [built[-1]]  # nrt: numba's own, made once a process


def test_what_is_apart_stays_apart_and_what_is_a_part_does_not():
    whole = kernel(lambda column: swap_ends(column))
    whole(np.arange(5))
    calls = [line for line in next(iter(whole.inspect_llvm().values())).splitlines() if " call " in line]
    assert any("put" in line for line in calls)
    assert not any("last_but" in line or "swap_ends" in line for line in calls)


def test_python_cannot_call_a_piece():
    with pytest.raises(TypeError):
        last_but(np.arange(5), 0)


@pytest.mark.slow
def test_a_negative_index_is_found_where_bounds_are_checked(tmp_path: Path):
    file = tmp_path / "counting.py"
    file.write_text(
        "import numpy as np\nfrom servinglab.base.compiled import compiled, part\n"
        "@part\ndef read(column, k):\n    return column[k]\n"
        "@compiled\ndef reads(column, k):\n    return read(column, k)\n"
        "print(reads(np.arange(5), 2))\nreads(np.arange(5), -1)\n"
    )
    where = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, env=os.environ | where, check=False)
    assert ran.stdout == "2\n"
    assert "IndexError" in ran.stderr
