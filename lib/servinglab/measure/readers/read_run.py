"""One reader for every run in a file: saved by us, measured by us, or written by another tool."""

from __future__ import annotations

from pathlib import Path

from servinglab.result.result import Result
from servinglab.result.save import is_saved_run, read_saved_run


def read_run(path: str | Path, since: str | None = None) -> Result:
    """Read a run: one that `save_run` or a hook to an engine wrote, a load test, or another tool's result file.

    Parameters
    ----------
    path : str or Path
        The content decides, not the name. For what isn't `save_run`'s see
        `servinglab.measure.readers.other_tools.read_measured_run`.
    since : {"scheduled", "sent"}, optional
        Of a measured run only: what an arrival is, when the plan wanted the request sent or when it was sent. By
        default the first for a load test's folder and the second for other tools, which don't all have a schedule.

    Returns
    -------
    Result
        A file from another version of servinglab is read with a warning that names both.

    Raises
    ------
    ValueError
        If it isn't a run, is damaged, or was written in a format that this version doesn't know.
    OSError
        If it can't be read.

    Examples
    --------
    >>> read_run(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: ...read_run.py isn't a run: neither a NumPy archive of servinglab, nor the folder or the records ...
    """
    # here, so that `import servinglab` stays quick
    from servinglab.measure.readers.other_tools import read_measured_run

    if not is_saved_run(path):
        return read_measured_run(path, since)
    if since is not None:
        raise ValueError(f"since belongs to measured runs; {path} is a saved one")
    return read_saved_run(path)
