"""Reading what was handed in, and putting the released text back where it was changed.

A submission is read with care (size, encoding, JSON, notebook format) and compared with the assignment it answers.
Answers stay as they are; every locked cell gets its official text again, and each difference is reported in words.

What this module does not do: run anything.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import hashlib
import json
import os
import shutil
import stat
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

MAX_NOTEBOOK_BYTES = 20 * 2**20
MAX_CONTAINERS = 10**6  # lists and tables in one file: each takes two bytes there and up to 200 in memory
MAX_CELLS = 10_000  # with their outputs: each costs as much to validate as a hundred lines of text
MAX_SEARCHED_CHARS = 100_000  # of one cell, for the teacher's notes; ten times as much in all
MAX_FILES_BYTES = 50 * 2**20
MAX_LEFT_OUT = 20
_parsing = threading.Lock()  # Python 3.11 mixes up the depths of two trees that are made at the same time
BEGIN_HIDDEN = "### BEGIN HIDDEN TESTS"
END_HIDDEN = "### END HIDDEN TESTS"


# finished versions of many tasks
_ANSWERS = tuple(
    f"servinglab.{name}"
    for name in (
        "theory", "metrics", "decide", "simulate", "reference", "engine", "scheduling", "roofline", "kv_cache",
        "hardware", "measure", "monitoring",
    )
)  # fmt: skip
# nothing that a solution needs; harmless in the sandbox, but worth a teacher's look
_UNUSUAL = (
    "builtins",
    "ctypes",
    "gc",
    "inspect",
    "multiprocessing",
    "servinglab.grading",
    "signal",
    "socket",
    "subprocess",
)
MAX_PARTS = 3  # no name in these tables has more
_UNUSUAL_CALLS = ("os._exit", "os.fork", "os.write", "sys.settrace", "sys.setprofile", "sys.modules", "atexit.register")


class NotebookError(Exception):
    """A file that is no notebook; the text says why."""


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook of format 4, whatever it is: `NotebookError` says why it can't be read."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would never end
            raise NotebookError(f"{path.name} is no plain file")
        if about.st_size > MAX_NOTEBOOK_BYTES:
            raise NotebookError(f"{path.name} has {about.st_size:,} bytes; the limit is {MAX_NOTEBOOK_BYTES:,}")
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotebookError(f"{path.name} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise NotebookError(f"{path.name} can't be read: {error.strerror}") from None
    try:
        if too_large := _too_large(text):
            raise NotebookError(f"{path.name} has {too_large}")
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
        nbformat.writes(notebook).encode("utf-8")
        for cell in notebook.cells:
            if not isinstance(cell.metadata.get("nbgrader", {}), dict):
                raise NotebookError(f"{path.name}: a cell's grading metadata is not a table")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotebookError(f"{path.name} is not a notebook: {reason[:200]}") from None
    except nbformat.ValidationError as error:
        raise NotebookError(f"{path.name} is not a valid notebook: {str(error.message)[:200]}") from None
    return notebook


def _too_large(text: str) -> str:
    """What a file has too much of to be validated in a reasonable time; empty if it is no notebook or no large one."""
    count = text.count("{") + text.count("[")
    if count > MAX_CONTAINERS:
        return f"{count:,} lists and tables; the limit is {MAX_CONTAINERS:,}"
    book = json.loads(text)
    sheets = [book, *_lists(book, "worksheets")]  # format 3 has its cells in there
    cells = [cell for sheet in sheets for cell in _lists(sheet, "cells")]
    count = len(cells) + sum(len(_lists(cell, "outputs")) for cell in cells)
    return f"{count:,} cells and outputs; the limit is {MAX_CELLS:,}" if count > MAX_CELLS else ""


def _lists(table: Any, name: str) -> list[Any]:
    found = table.get(name) if isinstance(table, dict) else None
    return found if isinstance(found, list) else []


def grade_id(cell: NotebookNode) -> str:
    """The cell's identity in the assignment; empty for a cell of the reader's own."""
    found = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    return found if isinstance(found, str) else ""


def is_check(cell: NotebookNode) -> bool:
    """Whether the cell gives points."""
    return bool(grade_id(cell)) and cell.metadata["nbgrader"].get("grade") is True and cell.cell_type == "code"


def is_locked(cell: NotebookNode) -> bool:
    """Whether the cell's text belongs to the assignment, not to the reader."""
    return bool(grade_id(cell)) and not cell.metadata["nbgrader"].get("solution", False)


def parts(source: str) -> list[tuple[bool, str]]:
    """Split a check cell into (hidden?, source) parts at the lines that mark hidden tests.

    Line numbers are kept: the parts are padded with empty lines.

    Examples
    --------
    >>> parts("a\\n### BEGIN HIDDEN TESTS\\nb\\n### END HIDDEN TESTS")
    [(False, 'a\\n'), (True, '\\n\\nb\\n')]
    """
    found: list[tuple[bool, str]] = []
    hidden, current, start = False, list[str](), 0
    for number, line in enumerate([*source.splitlines(), END_HIDDEN]):
        if line.strip() in (BEGIN_HIDDEN, END_HIDDEN):
            if any(row.strip() for row in current):
                found.append((hidden, "\n" * start + "\n".join(current) + "\n"))
            hidden, current, start = line.strip() == BEGIN_HIDDEN, [], number + 1
        else:
            current.append(line)
    return found


def without_hidden(source: str) -> str:
    """The source as it is released."""
    kept, hidden = [], False
    for line in source.split("\n"):
        if line.strip() in (BEGIN_HIDDEN, END_HIDDEN):
            hidden = line.strip() == BEGIN_HIDDEN
        elif not hidden:
            kept.append(line)
    return "\n".join(kept)


def free_names(source: str) -> list[str]:
    """Names that a check takes from the notebook: used, but neither made there nor built in.

    Examples
    --------
    >>> free_names("from math import pi\\nfor k in range(3): print(area(k), pi)")
    ['area']
    """
    used, made = set[str](), set(dir(builtins))
    for node in ast.walk(_parsed(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.split(".")[0])
            case ast.ExceptHandler(name=str(name)):
                made.add(name)
    return sorted(used - made)


def checksum(cell: NotebookNode) -> str:
    """nbgrader's own checksum of a cell (`nbgrader.utils.compute_checksum`), without nbgrader's import time."""
    about = cell.metadata.nbgrader
    grade, solution = bool(about.get("grade", False)), bool(about.get("solution", False))
    locked = (not solution) and (grade or bool(about.get("locked", False)))
    texts = [cell.source, cell.cell_type, str(grade), str(solution), str(locked), about["grade_id"]]
    if grade:
        texts.append(str(float(about["points"])))
    return hashlib.md5("".join(texts).encode(), usedforsecurity=False).hexdigest()


def edited_cells(notebook: NotebookNode) -> list[str]:
    """Locked cells whose text no longer fits the checksum that the release gave them.

    A solution, as it is built, has no checksums: nothing in it counts as edited.
    """
    locked = [cell for cell in notebook.cells if is_locked(cell)]
    if not any("checksum" in cell.metadata.nbgrader for cell in locked):
        return []
    return [grade_id(cell) for cell in locked if cell.metadata.nbgrader.get("checksum") != checksum(cell)]


def notes(notebook: NotebookNode) -> list[str]:
    """What a teacher may want to look at in the reader's own cells: the library's finished versions, system tricks.

    Nothing is forbidden by it, and a determined hand gets around it: the protection is that checks run elsewhere.

    Examples
    --------
    >>> cell = nbformat.v4.new_code_cell("from servinglab.theory import pot_rate")
    >>> notes(nbformat.v4.new_notebook(cells=[cell]))
    ['note: cell 1 uses servinglab.theory, which holds finished versions of many tasks']
    """
    trees: dict[int, ast.AST] = {}
    found, searched = list[str](), 0
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code" and not is_locked(cell):
            size = len(cell.source)
            if size > MAX_SEARCHED_CHARS or searched + size > 10 * MAX_SEARCHED_CHARS:
                found.append(f"note: cell {number} is too long to be looked through")
                continue
            searched += size
            if tree := _tree(cell.source):
                trees[number] = tree
    imported = dict(pair for tree in trees.values() for pair in _imports(tree))  # one cell's imports serve the others
    for number, tree in trees.items():
        used = {full for _, full in _imports(tree)} | _attributes(tree, imported)
        heads = {".".join(one.split(".")[:length]) for one in used for length in range(1, MAX_PARTS + 1)}
        for name in _ANSWERS:
            if name in heads:
                found.append(f"note: cell {number} uses {name}, which holds finished versions of many tasks")
        for name in (*_UNUSUAL, *_UNUSUAL_CALLS):
            if name in heads:
                found.append(f"note: cell {number} uses {name}, which no solution needs")
    return found


def _tree(source: str) -> ast.AST | None:
    """A cell as Python reads it, without its lines for IPython; None if it is no Python: it says so when it runs."""
    if not source.isascii():  # how long Python compares names grows with the square of the accents on one letter
        source = "".join(one for one in source if not unicodedata.combining(one))
    for text in (source, "\n".join(map(_without_magic, source.split("\n")))):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return _parsed(text)
    return None


def _parsed(source: str) -> ast.AST:
    with _parsing:
        return ast.parse(source)


def _without_magic(line: str) -> str:
    words = line.strip()
    if words.startswith(("%", "!", "?")) or words.endswith("?"):
        return line[: len(line) - len(line.lstrip())] + "pass"
    name, sign, value = line.partition("=")
    return f"{name}= None" if sign and value.lstrip().startswith(("%", "!")) else line


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported name, as the cell calls it and in full."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.asname or alias.name, alias.name
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"


def _attributes(tree: ast.AST, imported: Mapping[str, str]) -> set[str]:
    """Dotted names such as `sl.theory.pot_rate`, their first part in full; of long ones only the beginning."""
    used = set[str]()
    for node in ast.walk(tree):
        parts, value = list[str](), node
        while isinstance(value, ast.Attribute) and len(parts) < MAX_PARTS:
            parts.insert(0, value.attr)
            value = value.value
        if parts and isinstance(value, ast.Name):
            used.add(".".join([imported.get(value.id, value.id), *parts]))
    return used


def restore(submitted: NotebookNode, official: NotebookNode) -> tuple[NotebookNode, list[str]]:
    """Give a submission the assignment's own cells back.

    Parameters
    ----------
    submitted, official : NotebookNode
        What was handed in, and the assignment with its hidden tests.

    Returns
    -------
    notebook : NotebookNode
        The submission's cells in their order: answers untouched, locked cells as in `official`, missing locked cells
        put back behind their predecessor, copies without their grading identity (the last one counts).
    problems : list of str
        One sentence for each difference.
    """
    table = {grade_id(cell): cell for cell in official.cells if grade_id(cell)}
    problems: list[str] = []
    last = {grade_id(cell): number for number, cell in enumerate(submitted.cells) if grade_id(cell) in table}
    copies = {
        name
        for number, cell in enumerate(submitted.cells)
        if (name := grade_id(cell)) in table and number != last[name]
    }
    problems += [f"cell {name} is there more than once: the last one counts" for name in table if name in copies]
    cells: list[NotebookNode] = []
    for number, cell in enumerate(submitted.cells):
        cell, name = copy.deepcopy(cell), grade_id(cell)
        if name not in table or number != last[name]:
            if name and name not in table:
                problems.append(f"cell {name} is not part of this assignment: it is run but not graded")
            cell.metadata.pop("nbgrader", None)
            cells.append(cell)
            continue
        own = table[name]
        if is_locked(own):
            texts = (without_hidden(own.source).rstrip(), own.source.rstrip())
            if cell.cell_type != own.cell_type or cell.source.rstrip() not in texts:
                problems.append(f"cell {name} was edited: its released text is put back")
            cell = copy.deepcopy(own)
        else:
            if cell.cell_type != own.cell_type:
                problems.append(f"cell {name} was turned into a {cell.cell_type} cell: it is read as {own.cell_type}")
                source = cell.source
                cell = copy.deepcopy(own)
                cell.source = source
            cell.metadata["nbgrader"] = copy.deepcopy(own.metadata["nbgrader"])
        cells.append(cell)
    here = {grade_id(cell) for cell in cells}
    before = ""
    for name, own in table.items():
        if name not in here:
            if is_locked(own):
                problems.append(f"cell {name} was missing: it is put back")
                at = next((n + 1 for n, cell in enumerate(cells) if grade_id(cell) == before), 0)
                cells.insert(at, copy.deepcopy(own))
            else:
                problems.append(f"answer cell {name} is missing")
                continue
        before = name
    notebook: Any = copy.deepcopy(official)
    notebook.cells = cells
    _give_new_ids_to_copies(cells)
    return notebook, problems


def _give_new_ids_to_copies(cells: list[NotebookNode]) -> None:
    taken: set[str] = set()
    for number, cell in enumerate(cells):
        if cell.get("id") in taken or "id" not in cell:
            cell["id"] = f"copy-{number}"
        taken.add(cell["id"])


def refusal(path: Path) -> str:
    """Why an entry of a submission isn't read; empty for a plain file and for a folder.

    A link leads anywhere, a pipe never ends.
    """
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return f"can't be read ({error.strerror})"
    if stat.S_ISLNK(mode):
        return "is a link"
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is no plain file"


def shared(path: Path) -> str:
    """A note if a file has a second name somewhere: it may be another student's file. Empty if it hasn't."""
    names = path.lstat().st_nlink
    return f"note: {path.name} is a hard link, one of {names} names of one file: see whose it is" if names > 1 else ""


def left_out(folder: Path) -> Iterator[str]:
    """One sentence for each entry under a submission's folder that mustn't be read: links, pipes and the like."""
    for here, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            if why := refusal(Path(here, name)):
                yield f"{Path(here, name).relative_to(folder)} {why}"


def copy_files(source: Path, target: Path) -> list[str]:
    """Copy what lies beside a notebook: plain files only, within a size, and no notebook.

    A notebook may hold hidden tests or answers, a link may lead to them: neither comes within a submission's reach.

    Returns
    -------
    list of str
        One sentence for each file that was left out, the first twenty of them, or that has another name elsewhere.
    """
    problems, total = list[str](), 0

    def unreadable(error: OSError) -> None:
        problems.append(f"{Path(error.filename).relative_to(source)} can't be read ({error.strerror}): left out")

    for folder, folders, files in os.walk(source, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted([*files, *folders]):
            path = Path(folder, name)
            try:
                if why := refusal(path):
                    problems.append(f"{path.relative_to(source)} {why}: left out")
                    continue
                if name in folders or name.endswith(".ipynb") or name.startswith("."):
                    continue
                total += path.stat().st_size
                if total > MAX_FILES_BYTES:
                    problems.append(f"more than {MAX_FILES_BYTES:,} bytes beside the notebook: the rest is left out")
                    return _shortened(problems)
                copied = target / path.relative_to(source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copied)
            except OSError as error:
                problems.append(f"{path.relative_to(source)} can't be read ({error.strerror}): left out")
                continue
            problems += filter(None, [shared(path)])
    return _shortened(problems)


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - MAX_LEFT_OUT
    return [*problems[:MAX_LEFT_OUT], f"{more} more like these"] if more > 0 else problems
