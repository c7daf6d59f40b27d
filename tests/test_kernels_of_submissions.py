"""Submissions that simulate get the compiled simulator; others don't wait for it."""

from __future__ import annotations

import nbformat
import pytest
from servinglab.grading import grade_one, kernels

SIMULATES = """
import os, pathlib, warnings
import servinglab as sl

warnings.simplefilter("ignore")


def compiled():
    return sum(1 for path in pathlib.Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbc"))


before = compiled()
work = sl.Workload.from_arrivals([0.0] * 3, prompt_tokens=50, output_tokens=4)
for rules in (sl.ContinuousBatching(2), sl.ContinuousBatching(2, policy="priority")):
    sl.simulate(work, rules, sl.AffineStep(0.01, 0.001, 1e-4, 1e-6))
print(before > 0, compiled() - before)
"""


def printed(report) -> str:
    return report.notebook.cells[-1].outputs[0].text


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [True, False])
def test_a_submission_that_simulates_compiles_nothing(isolate, request):
    pytest.importorskip("numba")
    if isolate:
        request.getfixturevalue("bwrap")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SIMULATES)])
    assert printed(grade_one(notebook, isolate=isolate)) == "True 0\n"


def test_where_nothing_can_be_kept_each_compiles_its_own(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernels.compiled_kernels() is None


def test_kernels_are_made_once_and_those_of_older_sources_go(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        kernels, "COMPILE", "import os, pathlib; pathlib.Path(os.environ['NUMBA_CACHE_DIR'], 'x').touch()"
    )
    (tmp_path / "servinglab" / "kernels-old").mkdir(parents=True)
    folder = kernels.compiled_kernels()
    assert [path.name for path in folder.iterdir()] == ["x"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    monkeypatch.setattr(kernels, "COMPILE", "raise SystemExit(1)")
    assert kernels.compiled_kernels() == folder
