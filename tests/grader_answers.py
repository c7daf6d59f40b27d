"""The answers in tests/graders, wrong and right, and the check cells that judge them."""

from __future__ import annotations

import copy
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import nbformat
from servinglab.grading.build import accepted
from servinglab.grading.notebooks import is_check, read_notebook
from servinglab.grading.sources import Source

ROOT = Path(__file__).resolve().parents[1]
ASSIGNMENTS = sorted(path.stem for path in (ROOT / "solutions").glob("*.md"))
GRADERS = sorted((ROOT / "tests" / "graders").glob("ch*/*.py"))


@dataclass(frozen=True)
class Answer:
    """One answer to one task. `lost` has the checks that it must lose, each with words of its hint, or None for any."""

    path: Path
    idea: str
    lost: dict[str, str | None]

    @property
    def function(self) -> Callable:
        """The answer itself, made anew: an earlier judgement left nothing in it."""
        return getattr(load(self.path), self.idea)

    @property
    def task(self) -> str:
        return self.path.stem

    @property
    def assignment(self) -> str:
        return assignment_of(self.path)

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}-{self.task}-{self.idea}"


def assignment_of(path: Path) -> str:
    """The assignment that a file of answers belongs to."""
    return next(name for name in ASSIGNMENTS if name.startswith(path.parent.name[2:]))


def load(path: Path) -> ModuleType:
    """One file of answers: `WRONG` and `RIGHT`."""
    spec = importlib.util.spec_from_file_location(f"graders_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


module = functools.cache(load)


def answers(*, right: bool = True, wrong: bool = True) -> Iterator[Answer]:
    """All of them, file by file."""
    for path in GRADERS:
        if wrong:
            yield from (Answer(path, function.__name__, lost) for function, lost in module(path).WRONG.items())
        if right:
            yield from (Answer(path, function.__name__, {}) for function in module(path).RIGHT)


def solution(name: str) -> nbformat.NotebookNode:
    return read_notebook(ROOT / "solutions" / name / f"{name}.ipynb")


def release(name: str) -> nbformat.NotebookNode:
    return read_notebook(ROOT / "exercises" / name / f"{name}.ipynb")


@functools.cache
def drawn(name: str, variant: int) -> tuple[nbformat.NotebookNode, Source]:
    """An assignment's solution in one variant, and its source."""
    return accepted(ROOT / "solutions" / f"{name}.md", variant)


def checks_using(notebook: nbformat.NotebookNode, function: str) -> nbformat.NotebookNode:
    """The assignment reduced to the check cells that call `function`."""
    one = copy.copy(notebook)
    one.cells = [
        cell for cell in notebook.cells if is_check(cell) and re.search(rf"\bTask\(\s*{function},", cell.source)
    ]
    return one
