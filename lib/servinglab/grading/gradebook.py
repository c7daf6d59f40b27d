"""A class's work: a folder of submissions in; scores, CSV and feedback out.

nbgrader keeps the books: it enters the assignment, restores the locked cells, saves the points, writes the feedback
pages. One step of it is replaced: `SandboxExecute` runs each notebook with `grade_one` instead of an ordinary kernel.
Submissions are graded one at a time, each from a cleaned copy, so that a bad one costs that student alone.

What this module does not do: collect submissions, or decide about late ones.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bleach  # type: ignore[import-untyped]
import nbformat
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Bool
from traitlets.config import Config

from servinglab.grading import notebooks
from servinglab.grading.build import generate, nbgrader_course
from servinglab.grading.grade import Report, grade_one, tidy
from servinglab.grading.sandbox import Limits

# what markdown makes; everything else in a text cell is shown as it was written
TEXT_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i"),
    *("li", "ol", "p", "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
HIDDEN_NOTE = "# (hidden tests ran here)"


class SetupError(Exception):
    """Nothing can be graded on this machine as it is; the text says why."""


class SandboxExecute(NbGraderPreprocessor):
    """In place of nbgrader's `Execute`: runs the notebook with `grade_one`, isolated by default."""

    isolate = Bool(True, help="Run submissions in bubblewrap; False gives them the rights of this user.").tag(
        config=True
    )

    def __init__(self, limits: Limits | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = limits
        self.report: Report | None = None

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        folder = resources.get("metadata", {}).get("path") or None
        # nbgrader has put the locked cells back; its checksums are those of the cells with their hidden tests
        self.report = grade_one(
            nb, folder=Path(folder).resolve() if folder else None, isolate=self.isolate, limits=self.limits
        )
        return self.report.notebook, resources


class ScrubHidden(NbGraderPreprocessor):
    """Takes the text of hidden tests out of feedback."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if notebooks.BEGIN_HIDDEN in cell.source and notebooks.is_check(cell):
            cell.source = notebooks.without_hidden(cell.source).rstrip() + f"\n{HIDDEN_NOTE}"
        return cell, resources


class FeedbackExporter(HTMLExporter):
    """Feedback pages in which no script of a submission runs: they are opened on a teacher's screen.

    nbgrader's template forgets to clean text cells; `sanitize_html` covers the rest.
    """

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        html = super().markdown2html(context, source)
        return bleach.clean(html, tags=TEXT_TAGS, attributes={"*": ["class", "id", "href", "title", "align"]})


def settings() -> Config:
    """nbgrader's settings for this course, shared by `nbgrader_config.py` and `grade_folder`."""
    config = Config()
    config.CourseDirectory.source_directory = "solutions"
    config.CourseDirectory.release_directory = "exercises"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.md", ".pytest_cache"]
    config.Autograde.autograde_preprocessors = [
        SandboxExecute if step is Execute else step for step in Autograde.autograde_preprocessors.default_args[0]
    ]
    config.GenerateFeedback.preprocessors = [ScrubHidden, *GenerateFeedback.preprocessors.default_args[0]]
    config.GenerateFeedback.exporter_class = FeedbackExporter
    config.HTMLExporter.sanitize_html = True
    return config


@dataclass(frozen=True)
class Submission:
    """One file handed in: who, for which assignment (empty: not recognised), where, and what is odd about it.

    `folder` holds the files that came with the notebook; None where it lies among other people's.
    """

    student: str
    assignment: str
    notebook: Path | None
    folder: Path | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graded:
    """One submission's result. `outcome` is "graded" or "not graded"; the second one scores 0."""

    student: str
    assignment: str
    score: float
    max_score: float
    outcome: str
    problems: tuple[str, ...]
    points: Mapping[str, float]


def find_submissions(folder: Path, assignments: Sequence[str]) -> Iterator[Submission]:
    """Everything handed in under `folder`, in the order of the students' names.

    Two layouts are read: `STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb` as nbgrader collects it, and a flat folder of
    `STUDENT.ipynb`. A notebook with another name counts if it is the only one in its folder.
    """
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        if entry.is_file() and entry.suffix == ".ipynb":
            yield _recognise(entry.stem, entry, None, assignments, ())
        elif entry.is_dir():
            inner = [sub for sub in sorted(entry.iterdir()) if sub.is_dir() and not sub.name.startswith(".")]
            for sub in [*inner, *([entry] if list(entry.glob("*.ipynb")) or not inner else [])]:
                yield _in_folder(entry.name, sub, assignments)


def _in_folder(student: str, folder: Path, assignments: Sequence[str]) -> Submission:
    named = folder.name if folder.name in assignments else ""
    found = sorted(path for path in folder.glob("*.ipynb") if path.is_file() and not path.is_symlink())
    right = [path for path in found if path.stem in ([named] if named else assignments)]
    if right:
        return Submission(student, right[0].stem, right[0], folder)
    if len(found) == 1:
        expected = f"{named}.ipynb" if named else "ASSIGNMENT.ipynb"
        problem = f"the file is called {found[0].name}, not {expected}"
        return _recognise(student, found[0], folder, [named] if named else assignments, (problem,))
    what = "no notebook" if not found else f"{len(found)} notebooks, none with the assignment's name"
    return Submission(student, named, None, None, (f"{what} in {folder.name}/",))


def _recognise(
    student: str, path: Path, folder: Path | None, assignments: Sequence[str], problems: tuple[str, ...]
) -> Submission:
    """Find out from a notebook's own metadata which assignment it answers, if there is a choice."""
    known = assignments[0] if len(assignments) == 1 else ""
    try:
        name = notebooks.read_notebook(path).metadata.get("servinglab", {}).get("assignment")
        known = name if isinstance(name, str) and name in assignments else known
    except (notebooks.NotebookError, AttributeError):
        pass  # said again, with its cause, when it is graded
    if not known:
        problems = (*problems, f"{path.name} doesn't say which assignment it answers")
    return Submission(student, known, path, folder, problems)


def grade_folder(
    submissions: Path,
    out: Path,
    root: Path,
    *,
    isolate: bool = True,
    limits: Limits | None = None,
    assignment: str = "",
    tell: Callable[[str], None] = print,
) -> list[Graded]:
    """Grade every submission in a folder; write `grades.csv`, one CSV for each assignment, and feedback, into `out`.

    Parameters
    ----------
    submissions, out, root : Path
        What was handed in; where results go (created); the course with its `solutions/`.
    isolate, limits
        As in `grade_one`.
    assignment : str
        Grade this assignment only.
    tell : callable
        Gets one line for each submission.

    Returns
    -------
    list of Graded
        In the order graded. Results so far are on disk after each submission, also when this is interrupted.

    Raises
    ------
    SetupError
        If there is nothing to grade, or if a solution doesn't get full marks on this machine: then nobody's
        grade would mean anything.
    """
    known = sorted(path.parent.name for path in (root / "solutions").glob("*/*.ipynb") if path.stem == path.parent.name)
    if assignment and assignment not in known:
        raise SetupError(
            f"no assignment {assignment!r} in {root / 'solutions'}; there are: {', '.join(known) or 'none'}"
        )
    if not submissions.is_dir():
        raise SetupError(f"no folder {submissions}")
    found = [
        one for one in find_submissions(submissions, known) if not assignment or one.assignment in (assignment, "")
    ]
    if not found:
        raise SetupError(
            f"no submission in {submissions}: expected STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb or STUDENT.ipynb"
        )
    out.mkdir(parents=True, exist_ok=True)
    officials = {}
    for name in sorted({one.assignment for one in found if one.assignment}):
        path = root / "solutions" / name / f"{name}.ipynb"
        officials[name] = notebooks.read_notebook(path)
        trial = grade_one(path, source=officials[name], isolate=isolate, limits=limits)
        if not trial.passed:
            bad = next((str(cell.message) for cell in trial.cells if not cell.passed), "it has no checks")
            raise SetupError(f"the solution of {name} itself doesn't get full marks here, so nobody is graded: {bad}")
        generate(out, name, source=root / "solutions", release=out / "release", database=True)
    results: list[Graded] = []
    taken: set[tuple[str, str]] = set()
    ids = student_ids([one.student for one in found])
    for one in found:
        key = (ids[one.student], one.assignment)
        if key in taken:
            twice = f"a second submission of {key[0]} for {key[1] or 'no assignment'}"
            one = Submission(one.student, "", None, None, (*one.problems, twice))
        taken.add(key)
        official = officials.get(one.assignment)
        graded = _grade(one, key[0], official, out, root, isolate, limits)
        results.append(graded)
        _write_csv(out, results, officials)
        tell(line(graded))
    return results


def line(graded: Graded) -> str:
    """One submission in one or more lines, for a terminal."""
    head = f"{graded.student}  {graded.assignment or '?'}  {graded.score:g} of {graded.max_score:g}"
    head += "" if graded.outcome == "graded" else f"  {graded.outcome.upper()}"
    return "\n".join([head, *(f"    {problem}" for problem in graded.problems)])


def student_id(name: str) -> str:
    """A folder's name as nbgrader can use it.

    Examples
    --------
    >>> student_id("Ada L."), student_id("[x]*")
    ('Ada_L.', 'x__')
    """
    return re.sub(r"[^\w.@-]", "_", name).lstrip("._-@") or "nameless"


def student_ids(names: Sequence[str]) -> dict[str, str]:
    """An id of their own for all: two names that nbgrader can't tell apart must not share a grade.

    Examples
    --------
    >>> student_ids(["Ada L.", "Ada_L.", "bob"])
    {'Ada_L.': 'Ada_L.', 'bob': 'bob', 'Ada L.': 'Ada_L._2'}
    """
    ids = {name: name for name in names if student_id(name) == name}
    for name in names:
        if name not in ids:
            wanted = student_id(name)
            wishes = [wanted, *(f"{wanted}_{k}" for k in range(2, 2 + len(names)))]
            ids[name] = next(wish for wish in wishes if wish not in ids.values())
    return ids


def _grade(
    one: Submission,
    student: str,
    official: NotebookNode | None,
    out: Path,
    root: Path,
    isolate: bool,
    limits: Limits | None,
) -> Graded:
    name = one.assignment
    problems = [tidy(problem) for problem in one.problems]
    if student != one.student:
        problems.append(f"the name {one.student!r} is entered as {student}")
    most = (
        sum(cell.metadata.nbgrader.points for cell in official.cells if notebooks.is_check(cell)) if official else 0.0
    )
    report = None
    try:
        if official is None or one.notebook is None:
            raise notebooks.NotebookError("nothing to grade")
        clean = out / "submitted" / student / name
        shutil.rmtree(clean, ignore_errors=True)
        clean.mkdir(parents=True)
        submitted = notebooks.read_notebook(one.notebook)
        restored, differences = notebooks.restore(submitted, official)
        problems += map(tidy, differences)
        problems += notebooks.copy_files(one.folder, clean) if one.folder else []
        nbformat.write(restored, clean / f"{name}.ipynb")
        report = _with_nbgrader(student, name, out, root, isolate, limits)
        problems += report.problems
    except notebooks.NotebookError as error:
        problems.append(tidy(str(error)))
    except Exception as error:
        problems.append(tidy(f"not graded: {str(error) or type(error).__name__}")[:500])
    if report is None and official is not None:
        _enter_zero(student, name, out)
    graded = Graded(
        student,
        name,
        report.score if report else 0.0,
        most,
        "graded" if report else "not graded",
        tuple(problems),
        {cell.grade_id: cell.points for cell in report.cells} if report else {},
    )
    _write_report(graded, report, out)
    return graded


def _with_nbgrader(student: str, name: str, out: Path, root: Path, isolate: bool, limits: Limits | None) -> Report:
    """Let nbgrader restore, grade and enter one cleaned submission, and write its feedback page."""
    execute = SandboxExecute(limits=limits, isolate=isolate, enabled=True)
    with nbgrader_course(out, name, source=root / "solutions") as course:
        course["config"].merge({key: value for key, value in settings().items() if key != "CourseDirectory"})
        course["coursedir"].student_id = student
        grader = Autograde(**course)
        grader.autograde_preprocessors = [
            execute if step is SandboxExecute else step for step in grader.autograde_preprocessors
        ]
        grader.start()
        GenerateFeedback(**course).start()
    assert execute.report is not None
    return execute.report


def _enter_zero(student: str, name: str, out: Path) -> None:
    """Enter a submission that can't be run."""
    with nbgrader_course(out, name) as course, Gradebook(course["coursedir"].db_url) as book:
        book.update_or_create_student(student)
        submission = book.update_or_create_submission(name, student)
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = 0, False
        book.db.commit()


def _write_report(graded: Graded, report: Report | None, out: Path) -> None:
    folder = out / "feedback" / graded.student / (graded.assignment or "unrecognised")
    folder.mkdir(parents=True, exist_ok=True)
    text = line(graded) if report is None else f"{line(graded)}\n\n{report}"
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def _write_csv(out: Path, results: Sequence[Graded], officials: Mapping[str, NotebookNode]) -> None:
    rows = [
        [one.student, one.assignment, f"{one.score:g}", f"{one.max_score:g}", one.outcome, "; ".join(one.problems)]
        for one in results
    ]
    _replace_csv(out / "grades.csv", [["student", "assignment", "score", "max_score", "outcome", "problems"], *rows])
    for name, official in officials.items():
        checks = [notebooks.grade_id(cell) for cell in official.cells if notebooks.is_check(cell)]
        rows = [
            [one.student, f"{one.score:g}", *(f"{one.points.get(check, 0.0):g}" for check in checks)]
            for one in results
            if one.assignment == name
        ]
        _replace_csv(out / f"{name}.csv", [["student", "score", *checks], *rows])


def _replace_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a table so that an interruption leaves the old one or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([cell.encode("utf-8", "replace").decode() for cell in row] for row in rows)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
