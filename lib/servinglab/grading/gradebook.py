"""A class's work: a folder of submissions in; scores, CSV and feedback out.

nbgrader keeps the books: it enters the assignment, restores the locked cells, saves the points, writes the feedback
pages. One step of it is replaced: `SandboxExecute` runs each notebook with `grade_one` instead of an ordinary kernel.
Submissions are graded one at a time, each from a cleaned copy, so that a bad one costs that student alone. Results
of earlier runs stay until the same student's same assignment is graded again.

What this module does not do: find out what was handed in (`submissions`), or read and write tables (`tables`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Bool
from traitlets.config import Config

from servinglab.grading import notebooks, tables
from servinglab.grading.apart import in_time
from servinglab.grading.build import generate, nbgrader_course
from servinglab.grading.feedback import FeedbackExporter, LeaveOut, ScrubHidden
from servinglab.grading.grade import Report, grade_one, tidy
from servinglab.grading.sandbox import Limits
from servinglab.grading.submissions import Submission, find_submissions

MAX_PROBLEMS = 50
PAGE_S = 60.0  # for one page of feedback; it takes about one
GRADES = ("student", "assignment", "score", "max_score", "outcome", "problems", "handed_in_as")
_EARLIER = "note: an earlier run gave "


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


class AutogradePlainFiles(Autograde):
    """nbgrader's `Autograde` without its trust in links: it would copy what they lead to, into the feedback as well.

    A submission that holds a link, or is one, is named in the log as an error and left alone; the others are graded.
    """

    def convert_notebooks(self) -> None:
        root = Path(self.coursedir.root, self.coursedir.submitted_directory)
        refused = 0
        for name in sorted(self.assignments):
            folder = Path(name)
            inside = root in folder.parents
            way = [one for one in [*folder.parents][::-1] if inside and root in one.parents] + [folder]
            why = next((f"{one.name} {said}" for one in way if (said := notebooks.refusal(one))), "")
            for book in map(Path, self.assignments[name]):
                if note := notebooks.shared(book):
                    self.log.warning("%s: %s", tidy(book.parent.parent.name), tidy(note))
            if why := why or next(notebooks.left_out(folder), ""):
                del self.assignments[name]
                refused += 1
                shown = folder.relative_to(root) if inside else folder
                self.log.error("%s: not graded: %s", tidy(str(shown)), tidy(why))
        super().convert_notebooks()
        if refused:
            raise NbGraderException(f"{refused} submissions weren't graded: see above")


def settings() -> Config:
    """nbgrader's settings for this course, shared by `nbgrader_config.py` and `grade_folder`."""
    config = Config()
    config.CourseDirectory.source_directory = "solutions"
    config.CourseDirectory.release_directory = "exercises"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.md", ".pytest_cache"]
    config.Autograde.autograde_preprocessors = [
        SandboxExecute if step is Execute else step for step in Autograde.autograde_preprocessors.default_args[0]
    ]
    config.GenerateFeedback.preprocessors = [ScrubHidden, LeaveOut, *GenerateFeedback.preprocessors.default_args[0]]
    config.GenerateFeedback.exporter_class = FeedbackExporter
    config.HTMLExporter.sanitize_html = True
    return config


@dataclass(frozen=True)
class Graded:
    """One submission's result. `outcome` is "graded" or "not graded"; the second one scores 0.

    `student` is the id in all results, `handed_in_as` the name of the folder or file.
    """

    student: str
    assignment: str
    score: float
    max_score: float
    outcome: str
    problems: tuple[str, ...]
    points: Mapping[str, float]
    handed_in_as: str = ""


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

    Rows of earlier runs stay, unless the same student's same assignment is graded again.

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
        grade would mean anything. Also if `out` holds results of other checks.
    tables.TableError
        If a table in `out` can't be understood or written: it is left as it is.
    """
    known = sorted(path.parent.name for path in (root / "solutions").glob("*/*.ipynb") if path.stem == path.parent.name)
    if assignment and assignment not in known:
        raise SetupError(
            f"no assignment {assignment!r} in {root / 'solutions'}; there are: {', '.join(known) or 'none'}"
        )
    if not submissions.is_dir():
        raise SetupError(f"no folder {submissions}")
    try:
        found = find_submissions(submissions, known, skip=out)
    except OSError as error:
        raise SetupError(f"{submissions} can't be read: {error.strerror}") from None
    found = [one for one in found if not assignment or one.assignment in (assignment, "")]
    if not found:
        raise SetupError(
            f"no submission in {submissions}: expected STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb or STUDENT.ipynb"
        )
    out.mkdir(parents=True, exist_ok=True)
    names = sorted({one.assignment for one in found if one.assignment})
    officials = {name: notebooks.read_notebook(root / "solutions" / name / f"{name}.ipynb") for name in names}
    before = tables.read(out / "grades.csv", GRADES[:2]).rows
    for name, official in officials.items():
        _refuse_other_checks(out, name, official)
    for name, official in officials.items():
        path = root / "solutions" / name / f"{name}.ipynb"
        trial = grade_one(path, source=official, isolate=isolate, limits=limits)
        if not trial.passed:
            bad = next((str(cell.message) for cell in trial.cells if not cell.passed), "it has no checks")
            raise SetupError(f"the solution of {name} itself doesn't get full marks here, so nobody is graded: {bad}")
        generate(out, name, source=root / "solutions", release=out / "release", database=True)
    results: list[Graded] = []
    taken: set[tuple[str, str]] = set()
    ids = student_ids(
        [one.student for one in found], {row["handed_in_as"]: row["student"] for row in before if "handed_in_as" in row}
    )
    for one in found:
        student = ids[one.student]
        if (student, one.assignment) in taken:
            twice = f"a second submission of {student} for {one.assignment or 'no assignment'}"
            one = Submission(one.student, "", None, None, (*one.problems, twice))
        taken.add((student, one.assignment))
        earlier = next((row for row in before if (row["student"], row["assignment"]) == (student, one.assignment)), {})
        graded = _grade(one, student, officials.get(one.assignment), earlier, out, root, isolate, limits)
        results.append(graded)
        _write_tables(out, results, officials)
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


def student_ids(names: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """An id of their own for all: two names that nbgrader can't tell apart must not share a grade.

    Parameters
    ----------
    names : sequence of str
        Names of folders and files, as they were handed in.
    known : mapping, optional
        Ids of earlier runs by the name as `written`: the same name keeps its id, and no other name gets it.

    Examples
    --------
    >>> student_ids(["Ada L.", "Ada_L.", "bob"])
    {'Ada_L.': 'Ada_L.', 'bob': 'bob', 'Ada L.': 'Ada_L._2'}
    >>> student_ids(["Ada L."], {"Ada_L.": "Ada_L.", "Ada L.": "Ada_L._2"})
    {'Ada L.': 'Ada_L._2'}
    """
    known = known or {}
    ids: dict[str, str] = {}
    for name in names:
        if (mine := known.get(written(name), "")) and mine not in ids.values():
            ids.setdefault(name, mine)
    for name in sorted(dict.fromkeys(names), key=lambda name: student_id(name) != name):
        if name not in ids:
            taken = {*known.values(), *ids.values()}
            wanted = student_id(name)
            wishes = [wanted, *(f"{wanted}_{k}" for k in range(2, 3 + len(taken)))]
            ids[name] = next(wish for wish in wishes if wish not in taken)
    return ids


def written(name: str) -> str:
    """A folder's name as a table can hold it: readable, and different for different names.

    Examples
    --------
    >>> written("Ada L."), written("=a;b\\n")
    ('Ada L.', '\\\\u{3d}a\\\\u{3b}b\\\\u{a}')
    """
    return re.sub(r"[^\w .,()'!?#&@+-]|^[\s@+-]", lambda odd: f"\\u{{{ord(odd[0]):x}}}", name)


def _grade(
    one: Submission,
    student: str,
    official: NotebookNode | None,
    earlier: Mapping[str, str],
    out: Path,
    root: Path,
    isolate: bool,
    limits: Limits | None,
) -> Graded:
    name = one.assignment
    problems = list(one.problems)
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
        problems += [*differences, *filter(None, [notebooks.shared(one.notebook)])]
        problems += notebooks.copy_files(one.folder, clean) if one.folder else []
        nbformat.write(restored, clean / f"{name}.ipynb")
        report = _with_nbgrader(student, name, out, root, isolate, limits)
        problems += report.problems
    except notebooks.NotebookError as error:
        problems.append(str(error))
    except Exception as error:
        problems.append(f"not graded: {str(error) or type(error).__name__}")
    if report is None and official is not None:
        _enter_zero(student, name, out)
    score, outcome = report.score if report else 0.0, "graded" if report else "not graded"
    if name:
        problems += _earlier(earlier, f"{score:g}", f"{most:g}", outcome)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{len(problems) - MAX_PROBLEMS} more problems"]
    graded = Graded(
        student,
        name,
        score,
        most,
        outcome,
        tuple(tidy(problem)[:500] for problem in problems),
        {cell.grade_id: cell.points for cell in report.cells} if report else {},
        one.student,
    )
    _write_report(graded, report, out)
    return graded


def _earlier(row: Mapping[str, str], score: str, most: str, outcome: str) -> list[str]:
    """A note of the grade that this one replaces, if it is another; said again while there is nothing to grade."""
    if row.get("outcome") == "graded":
        had = (row.get("score", ""), row.get("max_score", ""))
        return [f"{_EARLIER}{had[0]} of {had[1]}"] if had != (score, most) else []
    return [said for said in row.get("problems", "").split("; ") if said.startswith(_EARLIER) and outcome != "graded"]


def _with_nbgrader(student: str, name: str, out: Path, root: Path, isolate: bool, limits: Limits | None) -> Report:
    """Let nbgrader restore, grade and enter one cleaned submission, and write its feedback page."""
    execute = SandboxExecute(limits=limits, isolate=isolate, enabled=True)
    with _course_of(student, name, out, root) as course:
        grader = Autograde(**course)
        grader.autograde_preprocessors = [
            execute if step is SandboxExecute else step for step in grader.autograde_preprocessors
        ]
        grader.start()
    assert execute.report is not None
    left_out = _write_page(student, name, out, root)
    return dataclasses.replace(execute.report, problems=(*execute.report.problems, *left_out))


def _write_page(student: str, name: str, out: Path, root: Path) -> list[str]:
    """Let nbgrader write one feedback page; return what was left out of it, if anything."""

    def generate_page(own: bool) -> None:
        with _course_of(student, name, out, root) as course:
            course["config"].LeaveOut.own = own
            GenerateFeedback(**course).start()

    failure = in_time(lambda: generate_page(True), PAGE_S)
    if not failure:
        return []
    if not in_time(lambda: generate_page(False), PAGE_S):
        return [f"the feedback page shows nothing that the student wrote: {failure}"]
    shutil.rmtree(out / "feedback" / student / name, ignore_errors=True)
    return [f"there is no feedback page: {failure}"]


@contextlib.contextmanager
def _course_of(student: str, name: str, out: Path, root: Path) -> Iterator[dict]:
    with nbgrader_course(out, name, source=root / "solutions") as course:
        course["config"].merge({key: value for key, value in settings().items() if key != "CourseDirectory"})
        course["coursedir"].student_id = student
        yield course


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
    if report is None and graded.assignment:
        shutil.rmtree(folder, ignore_errors=True)  # an earlier submission's page is no feedback on this one
    folder.mkdir(parents=True, exist_ok=True)
    text = line(graded) if report is None else f"{line(graded)}\n\n{report}"
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def _checks(notebook: NotebookNode) -> list[str]:
    return [notebooks.grade_id(cell) for cell in notebook.cells if notebooks.is_check(cell)]


def _refuse_other_checks(out: Path, name: str, official: NotebookNode) -> None:
    """Points of two different sets of checks don't belong into one table, nor into one gradebook."""
    table, checks = tables.read(out / f"{name}.csv", ["student"]), _checks(official)
    release, before = out / "release" / name / f"{name}.ipynb", list[str]()
    if release.is_file():
        before = _checks(notebooks.read_notebook(release))
    new = [check for check in checks if check not in table.columns]
    gone = [check for check in table.columns if check in before and check not in checks]
    if table.rows and (new or gone):
        changes = [f"{what}: {', '.join(those)}" for what, those in (("new", new), ("gone", gone)) if those]
        raise SetupError(
            f"the checks of {name} changed since the results in {out} ({'; '.join(changes)}): grade everyone again"
            " into another folder (--out), or put the checks and their columns back"
        )


def _write_tables(out: Path, results: Sequence[Graded], officials: Mapping[str, NotebookNode]) -> None:
    """Merge the results of this run into the tables on disk."""
    rows = [
        {
            "student": one.student,
            "assignment": one.assignment,
            "score": f"{one.score:g}",
            "max_score": f"{one.max_score:g}",
            "outcome": one.outcome,
            "problems": "; ".join(map(tables.plain, one.problems)),
            "handed_in_as": written(one.handed_in_as),
        }
        for one in results
    ]
    tables.merge(out / "grades.csv", GRADES, rows, key=GRADES[:2])
    for name, official in officials.items():
        checks = _checks(official)
        rows = [
            {
                "student": one.student,
                "score": f"{one.score:g}",
                **{check: f"{one.points.get(check, 0.0):g}" for check in checks},
            }
            for one in results
            if one.assignment == name
        ]
        tables.merge(out / f"{name}.csv", ["student", "score", *checks], rows, key=["student"])
