"""Which right answers are there to change, and which check cells judge them?

A task is one function of an assignment. Its right answers are the solution's and those that `RIGHT` lists in
tests/graders; a mutant is one of them with one small change.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import servinglab.grading
from grader_answers import module
from nbformat import NotebookNode
from servinglab.grading.grade import check_functions
from servinglab.grading.notebooks import NotebookError, free_names, grade_id, is_check, is_locked, read_notebook
from servinglab.grading.wire import picture

from mutation.changes import Mutation, mutations, normal

MAX_CALLS = 300  # that are kept of each function, to look for inputs near them


class Unusable(Exception):
    """Why there is nothing to say: the text goes to the one who called the command."""


@dataclass
class Task:
    """One function of an assignment: its check cells and its right answers, the solution's first."""

    name: str  # as its file is called in tests/graders: ch01/pot_rate
    checks: list[NotebookNode]
    names: dict[str, Any]  # all that the solution's cells define
    rights: list[Right] = field(default_factory=list)
    fingerprint: str = ""  # of all that a verdict depends on, besides the mutant

    @property
    def function(self) -> str:
        return self.name.partition("/")[2]

    def failed_by(self, answer: Callable[..., Any]) -> str:
        """The first check cell that refuses an answer; empty if none does."""
        for cell in self.checks:
            one = nbformat.v4.new_notebook(cells=[cell])
            if not all(report.passed for report in check_functions(one, {**self.names, self.function: answer})):
                return grade_id(cell)
        return ""

    @functools.cached_property
    def calls(self) -> list[tuple]:
        """The arguments of the checks' calls, each once."""
        known: dict[str, tuple] = {}

        def recorded(*args: Any) -> Any:
            known.setdefault(repr(picture(args)), args)
            return answer(*args)

        answer = self.rights[0].define()
        self.failed_by(recorded)
        return random.Random(0).sample(list(known.values()), min(len(known), MAX_CALLS))


@dataclass
class Right:
    """One right answer: its function and the functions of its file that it calls, as sources."""

    name: str  # "solution", or the name in RIGHT
    main: str  # what its function is called
    sources: dict[str, str]
    names: dict[str, Any]  # all else that they see

    def define(self, changed: Mapping[str, str] | None = None) -> Callable[..., Any]:
        """The function, with some of the sources changed."""
        space = dict(self.names)
        exec(compile("\n".join(({**self.sources, **(changed or {})}).values()), "<mutant>", "exec"), space)
        return space[self.main]


@dataclass(frozen=True)
class Mutant:
    """One changed place of one right answer."""

    task: Task = field(repr=False)
    right: Right
    part: str  # which of the answer's functions is changed
    change: Mutation

    @property
    def key(self) -> str:
        """The same for the same mutant judged by the same checks."""
        about = [self.task.fingerprint, self.task.name, self.right.name, self.part, self.change.source]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]

    def define(self) -> Callable[..., Any]:
        return self.right.define({self.part: self.change.source})


def read_tasks(root: Path, only: Sequence[str], functions: Sequence[str]) -> list[Task]:
    """The tasks of the assignments under `root`, those of some assignments (by the start of their name) or functions.

    Raises
    ------
    Unusable
        If there are none, or a file can't be read.
    """
    tasks = []
    for path in sorted((root / "solutions").glob("*/*.ipynb")):
        if path.stem == path.parent.name and (not only or path.stem.startswith(tuple(only))):
            try:
                tasks += _tasks_of(root, path)
            except (NotebookError, SyntaxError) as error:
                raise Unusable(f"{path}: {error}") from None
    if unknown := set(functions) - {task.function for task in tasks}:
        known = ", ".join(task.function for task in tasks)
        raise Unusable(f"no check uses a function {min(unknown)!r}; there are: {known or 'none'}")
    if not tasks:
        raise Unusable(f"no solution under {root / 'solutions'} is called {' or '.join(only) or 'NAME/NAME.ipynb'}")
    return [task for task in tasks if not functions or task.function in functions]


def _tasks_of(root: Path, path: Path) -> Iterator[Task]:
    notebook = read_notebook(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names: dict[str, Any] = {"__name__": "solution"}
    defined: dict[str, dict[str, str]] = {}  # for each function of an answer cell, the functions of its cell
    for cell in cells:
        if not is_check(cell):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, f"<{grade_id(cell)}>", "exec"), names)
            if grade_id(cell) and not is_locked(cell):
                own = _functions(cell.source)
                defined |= dict.fromkeys(own, own)
    chapter = f"ch{path.stem[:2]}"
    library = Path(servinglab.grading.__file__).parent
    for function, own in defined.items():
        checks = [cell for cell in cells if is_check(cell) and function in free_names(cell.source)]
        if not checks:
            continue  # a helper of another function
        task = Task(f"{chapter}/{function}", checks, names)
        task.rights.append(Right("solution", function, _called(own, function), names))
        answers = root / "tests" / "graders" / f"{task.name}.py"
        read = [path, *library.glob("*.py")]
        if answers.is_file():
            read.append(answers)
            own, seen = _functions(answers.read_text(encoding="utf-8")), vars(module(answers))
            task.rights += [Right(name, name, _called(own, name), seen) for name in _names(seen["RIGHT"], own, answers)]
        task.fingerprint = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(read))).hexdigest()
        yield task


def _functions(source: str) -> dict[str, str]:
    """The functions that a source defines at its top, in normal form."""
    defined = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return {node.name: normal(ast.unparse(node)) for node in defined}


def _names(functions: Iterable[Callable[..., Any]], own: Mapping[str, str], path: Path) -> Iterator[str]:
    for function in functions:
        if function.__name__ not in own:
            raise Unusable(f"{path}: {function.__name__} in RIGHT is no function of this file")
        yield function.__name__


def _called(own: Mapping[str, str], main: str) -> dict[str, str]:
    """A function's source and those of the functions that it calls, but for those with default arguments.

    Defaults are the switches by which one loop in tests/graders holds many wrong ideas: of a right answer most of it
    is out of use.
    """
    found, left = dict[str, str](), [main]
    while left:
        name = left.pop()
        found[name] = own[name]
        tree = ast.parse(own[name])
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in own and node.id not in found:
                (other,) = ast.parse(own[node.id]).body
                assert isinstance(other, ast.FunctionDef)
                if not other.args.defaults and not other.args.kw_defaults:
                    left.append(node.id)
    return found


def mutants_of(task: Task) -> list[Mutant]:
    """All mutants of a task's right answers that differ from each other and from every right answer."""

    def text(right: Right, source: str) -> str:
        return re.sub(rf"\b{right.main}\b", task.function, source)

    seen = {text(right, source) for right in task.rights for source in right.sources.values()}
    found = []
    for right in task.rights:
        for part, source in right.sources.items():
            for change in mutations(source):
                if (one := text(right, change.source)) not in seen:
                    seen.add(one)
                    found.append(Mutant(task, right, part, change))
    return found
