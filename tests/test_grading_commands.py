"""The grading commands as a teacher types them, with an environment made from the system's own Python, by two users."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
ASSIGNMENT = "01_one_pot"
USER = 0x7000_0000 - 1  # nobody's


def link_or_copy(source: str, target: str) -> None:
    """A second name for the same file, where both lie on one disk: a gigabyte of packages takes seconds."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def place(repo: Path, bwrap: str) -> Generator[Path]:
    """A folder that every user may read: an environment of the system's Python, a course, and one submission."""
    asked = [SYSTEM_PYTHON, "-I", "-c", "import sys, venv; print(*sys.version_info[:2], sep='.')"]
    try:
        version = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{SYSTEM_PYTHON} isn't there or has no venv: grading isn't tried with the system's own Python")
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != ours:
        pytest.skip(f"{SYSTEM_PYTHON} is {version} and can't use the packages of {ours}: grading isn't tried with it")
    with tempfile.TemporaryDirectory(prefix="night kitchen ") as name:
        folder = Path(name)
        folder.chmod(0o755)
        subprocess.run([SYSTEM_PYTHON, "-I", "-m", "venv", "--without-pip", folder / ".venv"], check=True, timeout=60)
        packages = folder / ".venv" / "lib" / f"python{version}" / "site-packages"
        left_out = shutil.ignore_patterns("*servinglab*", "__pycache__", "*openvino*")
        shutil.copytree(sysconfig.get_paths()["purelib"], packages, True, left_out, link_or_copy, dirs_exist_ok=True)
        templates = Path("share", "jupyter", "nbconvert")
        shutil.copytree(Path(sys.prefix, templates), folder / ".venv" / templates)
        script = folder / ".venv" / "bin" / "alembic"  # nbgrader calls it by its name
        script.write_text('#!/bin/sh\nexec "${0%/*}/python" -m alembic "$@"\n')
        script.chmod(0o755)
        (packages / "servinglab.pth").write_text(f"{folder / 'course' / 'lib'}\n")
        for part in ("lib", f"solutions/{ASSIGNMENT}", f"exercises/{ASSIGNMENT}"):
            shutil.copytree(repo / part, folder / "course" / part)
        (folder / "submitted").mkdir()
        shutil.copy(repo / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", folder / "submitted" / "ada.ipynb")
        yield folder


@pytest.mark.parametrize("who", ["whoever runs the tests", "an ordinary user"])
@pytest.mark.slow
def test_one_submission_is_graded_with_the_systems_own_python(place: Path, tmp_path: Path, who: str) -> None:
    if who == "an ordinary user" and os.geteuid() != 0:
        pytest.skip("only root can become another user: whoever runs the tests is an ordinary one already")
    with tempfile.TemporaryDirectory() as home:
        other = {"user": USER, "group": USER, "extra_groups": []} if who == "an ordinary user" else {}
        if other:
            os.chown(home, USER, USER)
        beside = [subprocess.Popen(["sleep", "300"], **other) for _ in range(150)]  # more than a submission may have
        try:
            done = {
                name: subprocess.run(
                    [place / ".venv" / "bin" / "python", "-m", "servinglab", name, *arguments],
                    cwd=home,
                    env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home},
                    capture_output=True,
                    text=True,
                    timeout=300,
                    **other,
                )
                for name, arguments in {
                    "check": [place / "submitted" / "ada.ipynb"],
                    "grade": [place / "submitted", "--course", place / "course", "--assignment", ASSIGNMENT],
                }.items()
            }
        finally:
            for process in beside:
                process.kill()
                process.wait()
        for name, one in done.items():
            assert (one.returncode, one.stderr) == (0, ""), f"{name}: {one.stdout}{one.stderr}"
        rows = list(csv.DictReader(Path(home, "grades", "grades.csv").read_text().splitlines()))
        assert [(row["student"], row["score"] == row["max_score"]) for row in rows] == [("ada", True)]
