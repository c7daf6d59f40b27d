"""The command lines: `servinglab check` for a learner, `servinglab grade` for a teacher."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from servinglab.base.checks import check_number
from servinglab.grading import notebooks
from servinglab.grading.grade import grade_one
from servinglab.grading.sandbox import Limits, SandboxError, isolation_problem


def check_main(args: Sequence[str] | None = None) -> int:
    """Run the checks of a learner's own notebooks; 0 if all pass, 1 if one doesn't, 2 if a file can't be checked."""
    parser = argparse.ArgumentParser(
        prog="servinglab check",
        description="Run an exercise from top to bottom and say which of its checks pass, with hints.",
        epilog="Exit status: 0 every check in the notebook passes; 1 one doesn't; 2 the file can't be checked.",
    )
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="an exercise, or its folder")
    parser.add_argument("--timeout", type=_positive, default=30.0, metavar="SECONDS", help="for one cell (default: 30)")
    options = parser.parse_args(args)
    status = 0
    for path in [one for given in options.notebooks for one in _notebooks_in(given)]:
        # the learner's own code on the learner's own machine: isolate it where that is possible, run it anyway
        isolate = not isolation_problem()
        limits = _limits(options.timeout)
        try:
            report = grade_one(path, isolate=isolate, limits=limits)
        except (notebooks.NotebookError, SandboxError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            status = 2
            continue
        print(path)
        print(report)
        if not report.cells:
            print("this notebook holds no checks: is it an exercise?")
        if report.hidden_left:
            print(f"{report.hidden_left} hidden checks remain: they run when the notebook is graded")
        status = max(status, 0 if report.passed else 1)
    return status


def _positive(text: str) -> float:
    try:
        return float(check_number(text, float(text), gt=0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number > 0; got {text!r}") from None


def _limits(cell_s: float, **more: int) -> Limits:
    """The notebook's time in all is that of ten cells, and no less than by default."""
    return Limits(cell_s=cell_s, check_s=cell_s, total_s=max(Limits.total_s, 10 * cell_s), **more)


def _notebooks_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.ipynb")) or [path] if path.is_dir() else [path]


def grade_main(args: Sequence[str] | None = None) -> int:
    """Grade a folder of submissions; 0 if all were graded, 1 if one wasn't, 2 if none can be, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="servinglab grade",
        description="Grade a folder of submissions: STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, or just STUDENT.ipynb.",
        epilog="Exit status: 0 all graded; 1 a submission wasn't graded; 2 nothing can be graded; 130 interrupted.",
    )
    parser.add_argument("submissions", nargs="?", type=Path, default=Path("submitted"), help="default: submitted/")
    parser.add_argument("--out", type=Path, default=Path("grades"), help="where results go (default: grades/)")
    parser.add_argument("--course", type=Path, default=Path(), help="the course's folder (default: this one)")
    parser.add_argument("--assignment", default="", metavar="NAME", help="grade this one only")
    parser.add_argument("--timeout", type=_positive, default=30.0, metavar="SECONDS", help="for one cell (default: 30)")
    parser.add_argument("--memory", type=_positive, default=4.0, metavar="GIB", help="for one submission (default: 4)")
    parser.add_argument(
        "--unsafe", action="store_true", help="run submissions without bubblewrap, with all your rights on this machine"
    )
    options = parser.parse_args(args)
    if not options.unsafe and (problem := isolation_problem()):
        print(
            f"{problem}. Submissions are other people's programs: nothing is graded, unless you say --unsafe to run"
            " them with your own rights.",
            file=sys.stderr,
        )
        return 2
    from servinglab.grading.build import NbgraderError
    from servinglab.grading.gradebook import SetupError, grade_folder
    from servinglab.grading.tables import TableError

    limits = _limits(options.timeout, memory_bytes=int(options.memory * 2**30))
    try:
        results = grade_folder(
            options.submissions,
            options.out,
            options.course,
            isolate=not options.unsafe,
            limits=limits,
            assignment=options.assignment,
        )
    except (SetupError, TableError, SandboxError, NbgraderError, notebooks.NotebookError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\ninterrupted; the results so far are in {options.out / 'grades.csv'}", file=sys.stderr)
        return 130
    bad = [one for one in results if one.outcome != "graded"]
    print(f"{len(results) - len(bad)} of {len(results)} submissions graded: {options.out / 'grades.csv'}")
    return 1 if bad else 0
