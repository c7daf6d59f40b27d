"""The step time that a measurement came to, read from what it wrote: so that a plan rests on it without copying."""

from __future__ import annotations

import json
import os
from pathlib import Path

from servinglab.step_time.affine import AffineStep

_FILE = "prediction.json"


def read_step_time(path: str | os.PathLike[str]) -> AffineStep:
    """Read the fitted step time of `servinglab bench torch`, `bench vllm` or `bench openvino`.

    Parameters
    ----------
    path : path
        The file that bench torch wrote; the folder of bench vllm or bench openvino, or the ``prediction.json`` in it.

    Returns
    -------
    AffineStep
        In seconds; without the fit's uncertainty, which ``servinglab bench show`` prints.

    Raises
    ------
    ValueError
        If it is neither, or if it is a file of bench torch that fails its own checks.
    OSError
        If it can't be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "prediction.json"
    >>> _ = file.write_text('{"calibration": {"step_time": {"fixed_s": 0.016, "per_request_s": 0.0005}}}')
    >>> read_step_time(file)(1)
    0.0165
    """
    from servinglab.measure.engines.torch_steps import (  # here, so that `import servinglab` stays quick
        is_steps,
        read_steps,
    )

    file = Path(path)
    if file.is_dir():
        file = file / _FILE
        if not file.exists():
            raise ValueError(f"{path} must be a folder of bench vllm or bench openvino: it has no {_FILE}")
    if is_steps(file):
        steps = read_steps(file)
        try:
            failed = [check["name"] for check in steps.checks() if not check["holds"]]
            if not failed:
                return steps.fit().step
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file} isn't whole: {error} is missing") from None
        raise ValueError(f"{file} fails its own checks ({', '.join(failed)}): servinglab bench show {file} says how")
    try:
        return AffineStep(**json.loads(file.read_text("utf-8"))["calibration"]["step_time"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{file} must be of bench torch, or a {_FILE} of bench vllm or bench openvino, with a fitted step time"
        ) from None
