"""From an assignment's text source to its solution notebook, and from there to its release.

    python -m servinglab.grading.build [--check] [--variant N] [--root FOLDER] [NAME ...]

`sources` says what a source may hold. This module runs its solution and its checks, so that no assignment is written
whose checks refuse the solution or whose ideas can't be told apart; a variant's dice are rolled until that is so. It
writes `solutions/NAME/NAME.ipynb` and lets nbgrader make `exercises/NAME/NAME.ipynb`. Both are the same bytes each time
and hold the number of their variant; `--check` writes nothing and fails where they aren't what the source gives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from servinglab.grading.checks import hidden, strict
from servinglab.grading.notebooks import (
    BEGIN_HIDDEN,
    END_HIDDEN,
    free_names,
    grade_id,
    is_check,
    is_locked,
    parts,
    read_notebook,
)
from servinglab.grading.sources import Source, SourceError, read_source

MARKERS = (BEGIN_HIDDEN, END_HIDDEN, "### BEGIN SOLUTION", "### END SOLUTION")
# a line that was meant as a marker, whatever its spelling
_LIKE_A_MARKER = re.compile(
    r"^\s*#+\s*(BEG|END|BGIN|HID)|^\s*###+|HID+EN\s*TEST|(BEGIN|END)\s+(SOL|HID|TEST|MARK)", re.IGNORECASE
)


ATTEMPTS = 60  # at the dice of one variant, until its ideas differ in some visible case


def build_solution(text: Path, variant: int = 0) -> NotebookNode:
    """Make the solution notebook of one text source, in one variant.

    Raises
    ------
    SourceError
        For a misspelt or unpaired marker, a repeated id, a check that needs names that no answer gives, a check that
        refuses the solution, a wrong idea that looks like another one in every visible case, and the like.
    """
    return accepted(text, variant)[0]


def accepted(text: Path, variant: int = 0) -> tuple[NotebookNode, Source]:
    """The solution notebook, and the source as it was drawn for it."""
    if variant < 0:
        raise SourceError(f"variant must be 0 or more; got {variant}")
    reason = ""
    for attempt in range(ATTEMPTS if variant else 1):
        source = read_source(text, variant, attempt)
        notebook = _notebook(source, text.stem, variant)
        _check_source(notebook, text.name)
        nbformat.validate(notebook)
        reason = _trial(notebook, source)
        if not reason:
            return notebook, source
    tried = f" in variant {variant}, whatever its dice" if variant else ""
    raise SourceError(f"{text.name}: {reason}{tried}")


def _notebook(source: Source, name: str, variant: int) -> NotebookNode:
    """The source's cells with nbgrader's metadata in place of the source's own."""
    notebook = source.notebook
    for number, cell in enumerate(notebook.cells):
        own = dict(cell.metadata)
        kind = next((kind for kind in ("given", "answer", "check") if kind in own), "")
        cell.metadata = nbformat.NotebookNode()
        cell["id"] = f"cell-{number:02d}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if not kind:
            continue
        identity = str(own[kind])
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", identity):
            raise SourceError(f"{name}.md: {identity!r} must name a code cell, with letters, digits, - and _")
        cell["id"] = identity
        cell.metadata["nbgrader"] = {
            "schema_version": 3,
            "grade_id": identity,
            "grade": kind == "check",
            "solution": kind == "answer",
            "locked": kind != "answer",
            "task": False,
        }
        if kind == "check":
            cell.metadata["nbgrader"]["points"] = int(own.get("points", 1))
            hidden = sum(secret for secret, _ in parts(cell.source))
            cell.metadata["servinglab"] = {"task": identity.split("-")[0], "hidden": hidden}
    title = next((cell for cell in notebook.cells if cell.cell_type == "markdown" and cell.source[:2] == "# "), None)
    if variant and title is not None:
        first, *rest = title.source.split("\n")
        title.source = "\n".join([f"{first} (variant {variant})", *rest])
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        "servinglab": {"assignment": name, "variant": variant},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _trial(notebook: NotebookNode, source: Source) -> str:
    """Why the checks don't fit their own solution, or nothing."""
    with strict() as ideas:
        for cell in filter(is_check, notebook.cells):
            space: dict[str, Any] = {}
            for secret, part in parts(cell.source):
                space |= {name: source.names[name] for name in free_names(part) if name not in space}
                try:
                    with hidden() if secret else contextlib.nullcontext():
                        exec(compile(part, f"<{cell['id']}>", "exec"), space)
                except Exception as error:
                    said = str(error).replace("\n", " ") or type(error).__name__
                    return f"{cell['id']} refuses the solution or can't be run: {said}"
    return "\n".join(ideas.problems())


def _check_source(notebook: NotebookNode, where: str) -> None:
    identities = [cell["id"] for cell in notebook.cells]
    for identity in identities:
        if identities.count(identity) > 1:
            raise SourceError(f"{where}: two cells are called {identity}")
    given = set[str]()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        name = cell["id"]
        for number, line in enumerate(cell.source.splitlines(), 1):
            if line.strip() not in MARKERS and _LIKE_A_MARKER.search(line):
                raise SourceError(f"{where}: {name}, line {number} looks like a marker but is none: {line.strip()!r}")
        open_marker = ""
        for line in map(str.strip, cell.source.splitlines()):
            if line in MARKERS:
                begins, rest = line.startswith("### BEGIN "), line.split(" ", 2)[2]
                if begins == bool(open_marker) or (not begins and rest != open_marker):
                    raise SourceError(f"{where}: {name} has the marker {line!r} without its partner")
                open_marker = rest if begins else ""
        if open_marker:
            raise SourceError(f"{where}: {name} never ends its {open_marker}")
        if is_check(cell):
            if not any(not secret for secret, _ in parts(cell.source)) or "### BEGIN SOLUTION" in cell.source:
                raise SourceError(f"{where}: {name} must show at least one check and hold no solution")
            used = set[str]()
            for _, source in parts(cell.source):
                try:
                    ast.parse(source)
                except SyntaxError as error:
                    raise SourceError(f"{where}: {name}: hidden and visible lines must stand alone ({error})") from None
            used.update(free_names(cell.source))
            if missing := used - given:
                raise SourceError(f"{where}: {name} uses {sorted(missing)}, which no answer before it gives")
        elif BEGIN_HIDDEN in cell.source:
            raise SourceError(f"{where}: {name} has hidden tests but is no check")
        elif not is_locked(cell) and grade_id(cell):
            if "### BEGIN SOLUTION" not in cell.source:
                raise SourceError(f"{where}: {name} is an answer without a marked solution")
            given |= {node.name for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef)}


class NbgraderError(Exception):
    """nbgrader gave up; the text is the last line of its own log that says why."""


class _Memory(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def nbgrader_course(root: Path, name: str, **folders: Path) -> Iterator[dict]:
    """Arguments for an nbgrader converter whose gradebook and folders lie in `root`; its log becomes the error's text.

    Raises
    ------
    NbgraderError
        In place of nbgrader's own exception, which only points to its log.
    """
    from nbgrader.converters.base import NbGraderException
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(root.resolve())
    config.CourseDirectory.db_url = f"sqlite:///{root.resolve()}/gradebook.db"
    config.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.md", ".pytest_cache"]
    for step, folder in folders.items():
        setattr(config.CourseDirectory, f"{step}_directory", str(folder.resolve()))
    course = CourseDirectory(config=config)
    course.assignment_id = name
    memory, logger = _Memory(), logging.getLogger("traitlets")
    logger.addHandler(memory)
    path = os.environ.get("PATH", "")
    # nbgrader calls `alembic` by name, also where the environment isn't activated
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy's advice to nbgrader
            yield {"coursedir": course, "config": config, "force": True}
    except NbGraderException as error:
        causes = [text.strip().splitlines()[-1] for text in memory.lines if "Traceback" in text]
        raise NbgraderError(f"{name}: {(causes or memory.lines or [str(error)])[0]}") from None
    finally:
        os.environ["PATH"] = path
        logger.removeHandler(memory)


def make_release(solution: NotebookNode, name: str) -> NotebookNode:
    """The released version of a solution notebook, made by nbgrader and searched for what must not be in it."""
    with tempfile.TemporaryDirectory(prefix="servinglab-") as temporary:
        root = Path(temporary)
        source = root / "source" / name / f"{name}.ipynb"
        source.parent.mkdir(parents=True)
        nbformat.write(solution, source)
        generate(root, name, source=root / "source", release=root / "release", database=False)
        release = read_notebook(root / "release" / name / f"{name}.ipynb")
    _check_release(release, solution, name)
    return release


def generate(root: Path, name: str, *, source: Path, release: Path, database: bool) -> None:
    """Let nbgrader make one release and, with `database`, enter the assignment into the gradebook under `root`."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import SaveCells

    with nbgrader_course(root, name, source=source, release=release) as course:
        converter = GenerateAssignment(**course, no_database=not database)
        if not database:
            converter.preprocessors = [step for step in converter.preprocessors if step is not SaveCells]
        converter.start()


def _check_release(release: NotebookNode, solution: NotebookNode, name: str) -> None:
    """Refuse a release that holds a marker, a hidden line or a solution line."""
    text = "\n".join(cell.source for cell in release.cells)
    visible, secret = set[str](), list[str]()
    for cell in solution.cells:
        inside = False
        for line in map(str.strip, cell.source.splitlines()):
            if line in MARKERS:
                inside = line.startswith("### BEGIN ")
            elif inside:
                secret.append(line)
            else:
                visible.add(line)
    leaks = [mark for mark in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS") if mark in text]
    lines = {line.strip() for line in text.splitlines()}
    leaks += [line for line in secret if line in lines and line not in visible]
    if leaks:
        raise SourceError(f"{name}: the release would show {leaks[0]!r}")


def variant_of(notebook: NotebookNode) -> int:
    """The number of the variant that a built notebook says it is."""
    found = notebook.metadata.get("servinglab", {}).get("variant", 0)
    return found if isinstance(found, int) else 0


def build(root: Path, names: Sequence[str] = (), *, variant: int | None = None, check: bool = False) -> list[str]:
    """Build assignments; return the files that changed (or, with `check`, would change).

    Parameters
    ----------
    root : Path
        The course: holds `solutions/` and `exercises/`.
    names : sequence of str
        Assignments; all of them by default.
    variant : int, optional
        Which variant; by default the one that is there, and 0 where none is.
    check : bool
        Write nothing.
    """
    changed = []
    for name in names or sorted(path.stem for path in (root / "solutions").glob("*.md")):
        text = root / "solutions" / f"{name}.md"
        if not text.is_file():
            raise SourceError(f"no assignment {name!r}: {text} is missing")
        there = root / "solutions" / name / f"{name}.ipynb"
        number = variant if variant is not None else variant_of(read_notebook(there)) if there.is_file() else 0
        solution = build_solution(text, number)
        for folder, notebook in (("solutions", solution), ("exercises", make_release(solution, name))):
            path = root / folder / name / f"{name}.ipynb"
            new = nbformat.writes(notebook) + "\n"
            if not path.is_file() or path.read_text(encoding="utf-8") != new:
                changed.append(path.relative_to(root).as_posix())
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(new, encoding="utf-8")
        stray = [path for path in (root / "solutions" / name).glob("*") if path.suffix in (".md", ".py")]
        if stray:
            raise SourceError(f"{stray[0]} would be released: keep sources outside solutions/{name}/")
        for extra in sorted((root / "solutions" / name).glob("*")):
            copy = root / "exercises" / name / extra.name
            if extra.suffix == ".ipynb" or not extra.is_file():
                continue
            if not copy.is_file() or copy.read_bytes() != extra.read_bytes():
                changed.append(copy.relative_to(root).as_posix())
                if not check:
                    shutil.copy(extra, copy)
    return changed


def main(args: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 for drift under `--check` or a source that can't be released."""
    parser = argparse.ArgumentParser(prog="servinglab.grading.build", description="Build solutions and releases.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="assignments; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.add_argument(
        "--variant",
        type=int,
        metavar="N",
        help="other numbers and cases; 0 is the course's (default: what is there)",
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the course's folder (default: this one)")
    options = parser.parse_args(args)
    try:
        changed = build(options.root, options.names, variant=options.variant, check=options.check)
    except (SourceError, NbgraderError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in changed:
        print(f"{'out of date' if options.check else 'written'}: {path}")
    if options.check and changed:
        print("run `make exercises`", file=sys.stderr)
    return int(bool(options.check and changed))


if __name__ == "__main__":
    sys.exit(main())
