"""What was handed in: who, for which assignment, in which file.

Only plain files and folders of the submission itself are read. A link might lead to another student's work or to the
solution, and a pipe never ends: neither is followed or opened, and both are named.

What this module does not do: grade, or decide about late submissions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servinglab.grading import notebooks


@dataclass(frozen=True)
class Submission:
    """One file handed in: who, for which assignment (empty: not recognised), where, and what is odd about it.

    `folder` holds the files that came with the notebook; None where it lies among other people's. `notebook` is None
    where there is nothing to grade.
    """

    student: str
    assignment: str
    notebook: Path | None
    folder: Path | None = None
    problems: tuple[str, ...] = ()


def find_submissions(folder: Path, assignments: Sequence[str], skip: Path | None = None) -> list[Submission]:
    """Everything handed in under `folder`, in the order of the students' names.

    Two layouts are read: `STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb` as nbgrader collects it, and a flat folder of
    `STUDENT.ipynb`. A notebook with another name counts if it is the only one in its folder. What can't be graded,
    such as a link, is a submission without a notebook, unless the same student also handed in one that can.

    Parameters
    ----------
    folder : Path
        What was handed in.
    assignments : sequence of str
        The names of all assignments.
    skip : Path, optional
        An entry of `folder` that is no student, such as the folder for the results.

    Raises
    ------
    OSError
        If `folder` itself can't be read.
    """
    found: list[Submission] = []
    for path in _entries(folder):
        why = notebooks.refusal(path)
        if skip and path.resolve() == skip.resolve():
            continue
        if why:
            # as with plain files, one that isn't called a notebook is nobody's submission
            if path.suffix == ".ipynb" or (path.is_symlink() and not os.path.isfile(path)):
                student = path.stem if path.suffix == ".ipynb" else path.name
                found.append(Submission(student, "", None, None, (f"{path.name} {why}: not read",)))
        elif path.is_dir():
            found += _in_student(path, assignments)
        elif path.suffix == ".ipynb":
            found.append(_recognise(path.stem, path, None, assignments, ()))
    return _beside_proper_ones(found)


def _entries(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if not entry.name.startswith("."))


def _in_student(folder: Path, assignments: Sequence[str]) -> list[Submission]:
    student = folder.name
    try:
        entries = [(path, notebooks.refusal(path)) for path in _entries(folder)]
    except OSError as error:
        return [Submission(student, "", None, None, (f"{student}/ can't be read: {error.strerror}",))]
    found = list[Submission]()
    for path, why in entries:
        if why and path.suffix != ".ipynb" and (path.name in assignments or not os.path.isfile(path)):
            named = path.name if path.name in assignments else ""
            found.append(Submission(student, named, None, None, (f"{path.name} {why}: not read",)))
        elif not why and path.is_dir():
            found += _in_folder(student, path, assignments)
    if not found or any(path.suffix == ".ipynb" for path, _ in entries):
        found += _in_folder(student, folder, assignments)
    return found


def _in_folder(student: str, folder: Path, assignments: Sequence[str]) -> list[Submission]:
    named = folder.name if folder.name in assignments else ""
    try:
        books = [(path, notebooks.refusal(path)) for path in _entries(folder) if path.suffix == ".ipynb"]
    except OSError as error:
        return [Submission(student, named, None, None, (f"{folder.name}/ can't be read: {error.strerror}",))]
    plain = [path for path, why in books if not why and path.is_file()]
    right = [path for path in plain if path.stem in ([named] if named else assignments)]
    if right:
        return [Submission(student, path.stem, path, folder) for path in right]
    if len(plain) == 1:
        expected = f"{named}.ipynb" if named else "ASSIGNMENT.ipynb"
        problem = f"the file is called {plain[0].name}, not {expected}"
        return [_recognise(student, plain[0], folder, [named] if named else assignments, (problem,))]
    what = "no notebook" if not plain else f"{len(plain)} notebooks, none with the assignment's name"
    refused = [f"{path.name} {why}: not read" for path, why in books if why]
    answered = next((path.stem for path, why in books if why and path.stem in assignments), "")
    return [Submission(student, named or answered, None, None, (*refused, f"{what} in {folder.name}/"))]


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


def _beside_proper_ones(found: Sequence[Submission]) -> list[Submission]:
    """Let a student's gradable submission carry the problems of what can't be graded beside it."""
    kept = sorted((one for one in found if one.notebook), key=lambda one: one.student)
    alone = list[Submission]()
    for one in found:
        if one.notebook:
            continue
        for number, proper in enumerate(kept):
            if proper.student == one.student and proper.assignment and one.assignment in ("", proper.assignment):
                kept[number] = replace(proper, problems=(*proper.problems, *one.problems))
                break
        else:
            alone.append(one)
    return sorted([*kept, *alone], key=lambda one: one.student)
