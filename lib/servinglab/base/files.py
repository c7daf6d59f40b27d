"""Files that the command line writes: checked before the work, never half written, and JSON that any reader takes."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def file_stem(name: str) -> str:
    """A run's name as a file's, without its ending.

    Examples
    --------
    >>> file_stem("closed, 8 clients")
    'closed-8-clients'
    """
    return name.replace(",", "").replace(" ", "-")


def check_files(
    files: Mapping[str, Path | str | None], endings: Mapping[str, tuple[str, ...]], source: str | None = None
) -> None:
    """Refuse before the work what would fail after it.

    Parameters
    ----------
    files : mapping
        What each option names; ``-`` is stdout.
    endings : mapping
        The endings that an option's file may have; any if it isn't here.
    source : str, optional
        A file that is read and must not be overwritten.
    """
    written = {option: Path(file) for option, file in files.items() if file and str(file) != "-"}
    for option, file in written.items():
        allowed = endings.get(option, (file.suffix,))
        if file.suffix not in allowed:
            raise ValueError(f"{option} must end in {' or '.join(allowed)}; got {str(file)!r}")
        if file.suffix == ".parquet" and option == "--out" and importlib.util.find_spec("pyarrow") is None:
            raise ValueError("--out to Parquet needs pyarrow: pip install pyarrow, or write CSV")
    seen: dict[Path, str] = {}
    for option, file in written.items():
        if not file.resolve().parent.is_dir():
            raise ValueError(f"no folder {file.resolve().parent} to write {file.name} into")
        if file.is_dir():
            raise ValueError(f"{file} is a folder, not a file to write")
        if source and Path(source).exists() and file.exists() and file.samefile(source):
            raise ValueError(f"writing {file} would overwrite the trace")
        other = seen.setdefault(file.resolve(), option)
        if other != option:
            raise ValueError(f"{other} and {option} must name different files")


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Write beside the file and then rename: nobody ever sees half of it."""
    part = file.with_name(f"{file.name}.part")
    try:
        write(part)
        os.replace(part, file)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"before {file} was written") from None
    finally:
        part.unlink(missing_ok=True)


def write_json(target: str, content: Mapping[str, Any]) -> None:
    """To a file, or to stdout where `target` is ``-``."""
    text = json.dumps(_finite(content), indent=2)
    if target == "-":
        print(text)
    else:

        def write(part: Path) -> None:
            part.write_text(text + "\n", encoding="utf-8")

        write_whole(Path(target), write)


def begin_or_go_on(folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Make a folder in which a file says what its run was begun with; or go on with one that was begun alike.

    Raises
    ------
    ValueError
        If the folder holds a run with other settings, or something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    if file.exists():
        try:
            begun = json.loads(file.read_text("utf-8"))
        except ValueError:
            raise ValueError(f"{file} was damaged: give another --out") from None
        if begun != json.loads(json.dumps(about)):
            raise ValueError(f"{folder} holds a run with other settings: give another --out, or the same options")
    elif any(folder.iterdir()):
        raise ValueError(f"{folder} must be empty or hold a run of this command: it holds something else")
    else:
        write_json(str(file), about)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is undefined or beyond all that was measured is null."""
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
