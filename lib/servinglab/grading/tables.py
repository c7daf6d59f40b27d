"""Tables of results that outlive a run: CSV files that programs write, and that teachers open, edit and save.

A new row takes the place of the old row with the same key; every other row, and every column of the teacher's own,
stays. A file that can't be understood is left as it is, and named.

What this module does not do: know what a row is about.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?%?")


class TableError(Exception):
    """A table that can't be read or written; the text says which, why and what to do."""


@dataclass(frozen=True)
class Table:
    """Names of columns, and rows that hold a text for each of them."""

    columns: tuple[str, ...] = ()
    rows: tuple[Mapping[str, str], ...] = ()


def plain(text: str) -> str:
    """A text in which no spreadsheet sees a formula, whichever separator it reads the file with.

    Examples
    --------
    >>> plain("=cmd()"), plain("a;=b"), plain("-3.5")
    ("'=cmd()", 'a,=b', '-3.5')
    """
    text = text.encode("utf-8", "replace").decode().replace(";", ",").replace("\t", " ")
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(text) else text


def read(path: Path, needs: Sequence[str]) -> Table:
    """Read a table, as this module or as spreadsheet software wrote it: with commas, semicolons or tabs.

    Parameters
    ----------
    path : Path
        A file that isn't there is an empty table.
    needs : sequence of str
        Columns without which it is no such table.

    Raises
    ------
    TableError
        If the file is no such table: nothing in it is guessed.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return Table()
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8; save it as “CSV UTF-8”") from None
    except OSError as error:
        raise TableError(f"{path} can't be read: {error.strerror}") from None
    first, _, rest = text.partition("\n")
    if re.fullmatch(r"sep=.\r?", first):
        text = rest
    for separator in ",;\t":
        try:
            lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
        except csv.Error as error:
            raise _unusable(path, f"it can't be read as CSV ({error})") from None
        header = [name.strip() for name in lines[0]] if lines else []
        if set(needs) <= set(header):
            return _table(path, header, lines, decimal_comma=separator != ",")
    missing = next(name for name in needs if name not in header)
    raise _unusable(path, f"its first line has no column {missing!r}")


def _table(path: Path, header: list[str], lines: list[list[str]], *, decimal_comma: bool) -> Table:
    width = max((number for number, name in enumerate(header, 1) if name), default=0)
    columns = [name or f"column {number}" for number, name in enumerate(header[:width], 1)]
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise _unusable(path, f"it has two columns {twice!r}")
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if any(cells[width:]):
            raise _unusable(path, f"line {number} has {len(cells)} cells, the first line has {width}")
        if any(cells):
            cells = [cell.replace(",", ".") if decimal_comma and _NUMBER.fullmatch(cell) else cell for cell in cells]
            padded = [*cells, *[""] * (width - len(cells))]  # spreadsheets leave empty cells at the end out
            rows.append(dict(zip(columns, padded, strict=False)))
    return Table(tuple(columns), tuple(rows))


def _unusable(path: Path, why: str) -> TableError:
    return TableError(f"{path}: {why}. It is left as it is: mend it, or move it away to start a new one")


def merge(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]], key: Sequence[str]) -> None:
    """Put rows into the table as it is on disk now, sorted by `key`; an interruption leaves the old one or the new one.

    Parameters
    ----------
    path : Path
        The table; made if it isn't there.
    columns : sequence of str
        Columns of `rows`. Other columns of the table stay behind them, also in the rows that are replaced.
    rows : sequence of mapping
        They replace all rows with the same key.
    key : sequence of str
        Columns that say what a row is about.

    Raises
    ------
    TableError
        If the table can't be read or written.
    """
    old = read(path, key)
    extra = [name for name in old.columns if name not in columns]
    before = {tuple(row[name] for name in key): row for row in reversed(old.rows)}
    replaced = {tuple(row[name] for name in key) for row in rows}
    kept = [row for row in old.rows if tuple(row[name] for name in key) not in replaced]
    for row in rows:
        earlier = before.get(tuple(row[name] for name in key), {})
        kept.append({**{name: earlier.get(name, "") for name in extra}, **row})
    kept.sort(key=lambda row: [row[name] for name in key])
    names = [*columns, *extra]
    _write(path, [names, *([row.get(name, "") for name in names] for row in kept)])


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="", encoding="utf-8") as file:
            temporary = file.name
            csv.writer(file).writerows(rows)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = ""
    except OSError as error:
        raise TableError(f"{path} can't be written: {error.strerror}") from None
    finally:
        if temporary:
            os.unlink(temporary)
