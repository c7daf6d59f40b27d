"""One notebook in, one report out.

`grade_one` is what the learner's `servinglab check`, the teacher's `servinglab grade` and the tests of the graders
use. It starts a child process that holds the checks; the child starts a second process (see `sandbox`) that holds
the submission. The submission's own cells run over there, in order. The check cells run in the child, where each of
the submission's functions is replaced by a stand-in that asks for the call: the checks' text, their expected
answers and the tools they compare with are never within the submission's reach. Each check sees the notebook as it
was at that cell. Hidden tests run when the last cell is done, so that no later output can carry their inputs away.

What this module does not do: keep a gradebook, or read folders of submissions. That is `gradebook`.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from servinglab.grading import notebooks
from servinglab.grading.checks import UNFILLED, CheckFailed, Unanswered, hidden
from servinglab.grading.kernels import compiled_kernels
from servinglab.grading.sandbox import LATE, Calls, Died, Limits, Sandbox, SandboxError
from servinglab.grading.worker import CellTimeout, time_limit

MAX_RESTARTS = 3
MAX_LATE = 2
NOT_ASKED = f"not run: {MAX_LATE} checks of this task got no answer in time"
COMPARING_S = 10.0  # what a check may need on top of the submission's time
MAX_OUTPUT_CHARS = 10 * 2**20


@dataclass(frozen=True)
class CellReport:
    """One check cell: its points, and the message of the check that failed."""

    grade_id: str
    task: str
    points: float
    max_points: float
    outcome: str  # "passed", "failed", "edited", "not run"
    message: str = ""
    hidden_left: int = 0

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


@dataclass(frozen=True)
class Report:
    """What grading one notebook found.

    `problems` are sentences about the file and its cells; `notebook` is the notebook with the outputs of this run.
    """

    cells: tuple[CellReport, ...]
    problems: tuple[str, ...] = ()
    isolated: bool = False
    notebook: NotebookNode = field(default_factory=nbformat.v4.new_notebook, repr=False)

    @property
    def score(self) -> float:
        """Points won."""
        return sum(cell.points for cell in self.cells)

    @property
    def max_score(self) -> float:
        """Points there are."""
        return sum(cell.max_points for cell in self.cells)

    @property
    def passed(self) -> bool:
        """Whether every check that the notebook holds passes; False for a notebook without checks."""
        return bool(self.cells) and all(cell.passed for cell in self.cells)

    @property
    def hidden_left(self) -> int:
        """How many hidden tests the notebook doesn't hold: they run when it is graded."""
        return sum(cell.hidden_left for cell in self.cells)

    def __str__(self) -> str:
        lines = []
        for cell in self.cells:
            mark = {"passed": "✓", "not run": "–"}.get(cell.outcome, "✗")
            unfilled = UNFILLED in cell.message
            note = "  not filled yet" if unfilled else ""
            lines.append(f"{mark} {cell.grade_id}  ({cell.points:g} of {cell.max_points:g}){note}")
            if not unfilled:
                lines += [f"    {line}" for line in cell.message.splitlines()]
        lines += [f"! {problem}" for problem in self.problems]
        lines.append(f"{self.score:g} of {self.max_score:g} points")
        return "\n".join(lines)


def grade_one(
    notebook: Path | str | NotebookNode,
    *,
    source: Path | str | NotebookNode | None = None,
    folder: Path | None = None,
    isolate: bool = True,
    limits: Limits | None = None,
) -> Report:
    """Run one notebook and its checks, and report.

    Parameters
    ----------
    notebook : path or NotebookNode
        What to grade.
    source : path or NotebookNode, optional
        The assignment with its hidden tests. Every locked cell is put back from it. Without it, the notebook's own
        checks run, and one whose text was edited doesn't count.
    folder : Path, optional
        The folder whose files the notebook may read; by default the one it lies in.
    isolate : bool
        Use bubblewrap. `False` gives the submission the rights of whoever calls this.
    limits : Limits, optional

    Returns
    -------
    Report

    Raises
    ------
    notebooks.NotebookError
        If a file is no notebook.
    SandboxError
        If isolation is asked for and bubblewrap doesn't work here, or the grading process itself fails.
    """
    limits = limits or Limits()
    if not isinstance(notebook, NotebookNode):
        path = Path(notebook)
        notebook = notebooks.read_notebook(path)
        folder = folder or path.resolve().parent
    problems: list[str] = []
    edited: list[str] = []
    if source is None:
        edited = notebooks.edited_cells(notebook)
    else:
        official = source if isinstance(source, NotebookNode) else notebooks.read_notebook(Path(source))
        notebook, problems = notebooks.restore(notebook, official)
    job = {
        "notebook": notebook,
        "folder": str(folder) if folder else None,
        "isolate": isolate,
        "limits": dataclasses.asdict(limits),
        "edited": edited,
    }
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "servinglab.grading.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        # the notebook's time, that of its hidden tests, and what its processes need to start and to end
        patience = limits.total_s * 2 + 120
        out, err = child.communicate(json.dumps(job).encode(), timeout=patience)
    except BaseException as error:
        child.kill()
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise SandboxError(f"grading took more than {patience:g} s") from None
        raise
    if child.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        raise SandboxError(said[-1] if said else f"the grading process ended with status {child.returncode}")
    reply = json.loads(out)
    return Report(
        cells=tuple(
            CellReport(**{**cell, "message": "\n".join(map(tidy, cell["message"].splitlines()))})
            for cell in reply["cells"]
        ),
        problems=tuple(map(tidy, (*problems, *reply["problems"], *notebooks.notes(notebook)))),
        isolated=isolate,
        notebook=nbformat.from_dict(reply["notebook"]),
    )


def run_part(source: str, names: Mapping[str, Any] | Callable[[str], Any], space: dict[str, Any], secret: bool) -> str:
    """Run one part of a check cell; return the message of its failure, or nothing.

    Parameters
    ----------
    source : str
        Visible or hidden lines of a check cell.
    names : mapping or callable
        Where the notebook's names come from; `KeyError` or `NameError` for one that isn't there.
    space : dict
        The cell's own names; kept between its parts.
    secret : bool
        Whether these lines are hidden: the message then gives no input and no number away.
    """
    find = names if callable(names) else names.__getitem__
    for name in notebooks.free_names(source):
        try:
            if name not in space:
                space[name] = find(name)
        except (NameError, KeyError):
            return f"{name} is not defined here: its cell is missing, or stopped before it was reached"
        except Unanswered as failure:
            return failure.public if secret else failure.came
    try:
        with hidden() if secret else contextlib.nullcontext():
            exec(compile(source, "<check>", "exec"), space)
    except CheckFailed as failure:
        return str(failure)
    except Unanswered as failure:
        return failure.public if secret else failure.came
    except Exception as failure:
        # an answer of a kind that the check did not expect; its text may quote the check, or the answer
        return f"the check could not read the answer ({type(failure).__name__})"
    return ""


def check_functions(official: NotebookNode, names: Mapping[str, Any]) -> tuple[CellReport, ...]:
    """Run an assignment's check cells on functions of this process, without any protection.

    For the tests of the graders: the same check text, the same messages, no notebook and no child process.
    """
    reports = []
    for cell in filter(notebooks.is_check, official.cells):
        space: dict[str, Any] = {}
        message = ""
        for secret, source in notebooks.parts(cell.source):
            message = message or run_part(source, names, space, secret)
        reports.append(_report(cell, message))
    return tuple(reports)


def _report(cell: NotebookNode, message: str, outcome: str = "") -> CellReport:
    points = float(cell.metadata.nbgrader.get("points", 0))
    own = cell.metadata.get("servinglab", {})
    outcome = outcome or ("failed" if message else "passed")
    held = any(secret for secret, _ in notebooks.parts(cell.source))
    return CellReport(
        grade_id=notebooks.grade_id(cell),
        task=_task(cell),
        points=points if outcome == "passed" else 0.0,
        max_points=points,
        outcome=outcome,
        message=message,
        hidden_left=0 if held else int(own.get("hidden", 0)),
    )


def _task(cell: NotebookNode) -> str:
    return str(cell.metadata.get("servinglab", {}).get("task", notebooks.grade_id(cell)))


class _Ended(Exception):
    """Cell `index` took the submission's process down."""

    def __init__(self, index: int, cause: str) -> None:
        super().__init__(cause)
        self.index, self.cause = index, cause


def run_notebook(
    notebook: NotebookNode, folder: Path | None, isolate: bool, limits: Limits, edited: list[str]
) -> tuple[dict[int, CellReport], list[str]]:
    """Run a notebook; start again without a cell that took the process down before any hidden test ran."""
    run = _Run(notebook, limits, edited)
    while True:
        try:
            problems = run.once(folder, isolate)
            break
        except _Ended as end:
            run.skipped[end.index] = end.cause
            if len(run.skipped) > MAX_RESTARTS or run.left_s < 1:
                checks = {index: cell for index, cell in enumerate(notebook.cells) if notebooks.is_check(cell)}
                reports = {index: _report(cell, f"not run: {end.cause}", "not run") for index, cell in checks.items()}
                return reports, [f"{run.place(end.index)} ended the run: {end.cause}"]
    left_out = [f"{run.place(index)} was left out: {why}" for index, why in run.skipped.items()]
    return run.reports, [*left_out, *problems, *run.without_answers()]


class _Run:
    """One notebook's way through the sandbox, begun anew if a cell ends it.

    `skipped` holds the cells that ended a process and how they did; `silent` the checks that were asked in vain and
    what came in place of an answer. `reports` are those of the last time.
    """

    def __init__(self, notebook: NotebookNode, limits: Limits, edited: list[str]) -> None:
        self.notebook, self.limits, self.edited = notebook, limits, edited
        self.until = time.monotonic() + limits.total_s
        self.skipped: dict[int, str] = {}
        self.silent: dict[int, str] = {}
        self.reports: dict[int, CellReport] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left of the notebook's time."""
        return self.until - time.monotonic()

    def place(self, index: int) -> str:
        """What a cell is called in a problem."""
        name = notebooks.grade_id(self.notebook.cells[index])
        return f"cell {index + 1}" + (f" ({name})" if name else "")

    def once(self, folder: Path | None, isolate: bool) -> list[str]:
        """Run every cell and check, all hidden tests at the end, in one sandbox; return the problems.

        Nothing of the submission is heard after the first hidden test but the answers to these tests.
        """
        self.reports = {}
        checks = sum(map(notebooks.is_check, self.notebook.cells))
        kernels = _kernels(self.notebook)
        with Sandbox(
            folder, isolate=isolate, limits=self.limits, checks=checks, seconds=self.left_s, kernels=kernels
        ) as box:
            waiting, problems = self._cells(box)
            box.seal()
            for index, calls, space, secret in waiting:
                box.reopen(calls)
                if box.left_s > 0:
                    self.reports[index] = self._ask(index, secret, calls, space, True)
                else:
                    said = f"not run: the {self.limits.total_s:g} s for all hidden tests were used up"
                    self.reports[index] = _report(self.notebook.cells[index], said, "not run")
                box.end_check(calls)
            if waiting and not box.alive:
                problems.append(f"the hidden tests ended early: {box.cause or 'its process ended'}")
        for index, report in self.reports.items():
            if not report.passed:
                self.notebook.cells[index].outputs = [_error("CheckFailed", report.message)]
        return problems

    def _cells(self, box: Sandbox) -> tuple[list[tuple[int, Calls, dict[str, Any], list[str]]], list[str]]:
        """Run every cell and ask every visible check; return the checks with hidden tests to come, and the problems."""
        waiting: list[tuple[int, Calls, dict[str, Any], list[str]]] = []
        problems: list[str] = []
        outputs = _Outputs()
        used_up = f"not run: the notebook's {self.limits.total_s:g} s were used up"
        for index, cell in enumerate(self.notebook.cells):
            if cell.cell_type != "code":
                continue
            cell.outputs = []
            if box.left_s <= 0:
                if not any(problem.endswith(used_up) for problem in problems):
                    problems.append(f"{self.place(index)} and those after it: {used_up}")
                if notebooks.is_check(cell):
                    self.reports[index] = _report(cell, used_up, "not run")
            elif not notebooks.is_check(cell):
                if index in self.skipped:
                    cell.outputs = [_error("Stopped", self.skipped[index])]
                elif cell.source.strip():
                    try:
                        reply = box.run(cell.source)
                    except Died as death:
                        raise _Ended(index, str(death)) from None
                    problems += outputs.keep(cell, reply, self.place(index))
            elif index in self.skipped:
                self.reports[index] = _report(cell, f"no answer: {self.skipped[index]}")
            elif notebooks.grade_id(cell) in self.edited:
                message = "this check's text was edited: put the released text back, then it counts again"
                self.reports[index] = _report(cell, message, "edited")
            else:
                visible = [source for secret, source in notebooks.parts(cell.source) if not secret]
                secret = [source for secret, source in notebooks.parts(cell.source) if secret]
                space: dict[str, Any] = {}
                try:
                    calls = box.open_check(len(self.reports))
                except Died as death:
                    raise _Ended(index, str(death)) from None
                self.reports[index] = self._ask(index, visible, calls, space, False)
                if secret and self.reports[index].passed:
                    waiting.append((index, calls, space, secret))
                    box.put_off(calls)
                else:
                    box.end_check(calls)
                if not box.alive:
                    raise _Ended(index, box.cause or "its process ended")
        return waiting, problems

    def _ask(self, index: int, sources: list[str], calls: Calls, space: dict[str, Any], secret: bool) -> CellReport:
        """Run parts of a check up to the first failure. A task that is late again and again isn't asked any more."""
        cell = self.notebook.cells[index]
        if len(self._late(_task(cell)) - {index}) >= MAX_LATE:  # the other tasks need the time
            return _report(cell, NOT_ASKED, "not run")
        message = ""
        try:
            with time_limit(self.limits.check_s + COMPARING_S):
                for source in sources:
                    message = message or run_part(source, calls.name, space, secret)
        except CellTimeout:
            message = "the answers took too long to compare"
        if calls.silence:
            self.silent[index] = calls.silence.public
        return _report(cell, message)

    def _late(self, task: str) -> set[int]:
        """Checks of a task that got no answer in time."""
        cells = self.notebook.cells
        return {index for index, why in self.silent.items() if why == LATE and _task(cells[index]) == task}

    def without_answers(self) -> list[str]:
        """One sentence for each task and each way in which it gave no answer."""
        silent: dict[tuple[str, str], list[str]] = {}
        for index, why in self.silent.items():
            silent.setdefault((self.reports[index].task, why), []).append(self.reports[index].grade_id)
        not_asked = Counter(report.task for report in self.reports.values() if report.message == NOT_ASKED)
        return [
            f"{task}: {why} ({', '.join(names)})"
            + (f"; {not_asked[task]} more of its checks were not run" if why == LATE and not_asked[task] else "")
            for (task, why), names in silent.items()
        ]


def _kernels(notebook: NotebookNode) -> Path | None:
    """Compiled kernels, for a notebook whose own cells may simulate."""
    own = (cell.source for cell in notebook.cells if cell.cell_type == "code" and not notebooks.is_check(cell))
    return compiled_kernels() if any("servinglab" in source for source in own) else None


class _Outputs:
    """Takes a submission's outputs into its notebook: known kinds only, checked again, within a size for all cells."""

    def __init__(self, room: int = MAX_OUTPUT_CHARS) -> None:
        self.room = room

    def keep(self, cell: NotebookNode, reply: Mapping[str, Any], place: str) -> list[str]:
        """Put one run's outputs into its cell; return what went wrong."""
        problems = []
        for output in reply["outputs"]:
            node = self._checked(output)
            if node is None:
                problems.append(f"{place} sent an output that is none")
                break
            size = len(json.dumps(node))
            if size > self.room:
                problems.append(f"{place} and those after it have too much output: it is left out")
                break
            self.room -= size
            cell.outputs.append(node)
        match reply.get("error"):
            case {"name": str(name), "text": str(text), "place": str(where)}:
                name, text, where = _whole(name), _whole(text[:1000]), _whole(where)
                cell.outputs.append(_error(name[:100], f"{text} ({where[:200]})" if where else text))
                problems.append(f"{place} stopped with {name[:100]}: {text}"[:300])
        return problems

    def _checked(self, output: Any) -> NotebookNode | None:
        match output:
            case {"output_type": "stream", "name": "stdout" | "stderr" as name, "text": str(text)}:
                return nbformat.v4.new_output("stream", name=name, text=_whole(text))
            case {"output_type": "display_data", "data": {**data}} if all(
                (kind == "text/plain" and isinstance(value, str)) or (kind == "image/png" and _is_png(value))
                for kind, value in data.items()
            ):
                return nbformat.v4.new_output("display_data", data={k: _whole(str(v)) for k, v in data.items()})
        return None


def _whole(text: str) -> str:
    """Without halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _is_png(value: Any) -> bool:
    try:
        return base64.b64decode(value.replace("\n", ""), validate=True).startswith(b"\x89PNG")
    except (AttributeError, ValueError):
        return False


def tidy(text: str) -> str:
    """One printable line: a submission chooses parts of what is printed about it.

    Examples
    --------
    >>> tidy("name\\n\\x1b[31mred \\ud800")
    'name ?[31mred ?'
    """
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.splitlines()))


def _error(name: str, text: str) -> NotebookNode:
    return nbformat.v4.new_output("error", ename=name, evalue=text.split("\n")[0], traceback=[f"{name}: {text}"])
