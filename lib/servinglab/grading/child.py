"""The child process of `grade_one`: a job on standard input, a report on standard output, nothing else printed."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

# jsonschema, which nbformat needs, takes this package where it is there; it costs a second at each start, for a
# check of addresses that no notebook asks for
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

import nbformat  # noqa: E402

from servinglab.grading.apart import bound_memory  # noqa: E402
from servinglab.grading.grade import run_notebook  # noqa: E402
from servinglab.grading.sandbox import Limits, SandboxError  # noqa: E402


def main() -> None:
    """Grade the notebook of one job."""
    bound_memory()
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job = json.load(sys.stdin)
    notebook = nbformat.from_dict(job["notebook"])
    folder = Path(job["folder"]) if job["folder"] else None
    reports, problems = run_notebook(notebook, folder, job["isolate"], Limits(**job["limits"]), job["edited"])
    reply = {
        "cells": [dataclasses.asdict(reports[index]) for index in sorted(reports)],
        "problems": problems,
        "notebook": notebook,
    }
    with os.fdopen(answer, "w") as out:
        json.dump(reply, out)


if __name__ == "__main__":
    try:
        main()
    except SandboxError as error:
        sys.exit(str(error))
