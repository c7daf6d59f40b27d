"""How the suite runs, tried on a suite of its own: order, who runs alone, what is said of skipped tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture
def book():
    pass

def note(name):
    start = time.monotonic()
    time.sleep(0.05)
    with open(Path(__file__).with_name("notes.txt"), "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER')} {name} {start} {time.monotonic()}\\n")

"""
TEST = "@pytest.mark.parametrize('k', range({n}))\n{mark}def test_{name}(k{uses}):\n    note('{name}')\n\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with this suite's conftest.py and pytest's marks."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    marks = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["markers"]
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n" + "".join(f"    {mark}\n" for mark in marks))
    return tmp_path


def add(suite: Path, name: str, n: int, mark: str = "", uses: str = "") -> None:
    mark = f"@pytest.mark.{mark}\n" if mark else ""
    test = TEST.format(n=n, name=name, mark=mark, uses=f", {uses}" if uses else "")
    (suite / f"test_{name}.py").write_text(FILE + test)


def run(suite: Path, *words: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=suite, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def notes(suite: Path) -> list[tuple[str, str, float, float]]:
    lines = [line.split() for line in (suite / "notes.txt").read_text().splitlines()]
    return [(worker, name, float(start), float(end)) for worker, name, start, end in lines]


@pytest.mark.slow
def test_nothing_runs_beside_a_test_that_is_alone(suite: Path) -> None:
    for name in ("a", "b"):
        add(suite, f"{name}_alone", 8, "alone")
        add(suite, f"{name}_any", 8)
    run(suite, "-n", "2", "--dist=loadfile", "--no-loadscope-reorder")
    ran = notes(suite)
    assert len(ran) == 32
    assert len({worker for worker, *_ in ran}) == 2
    for (_, one, start, end), (_, other, began, ended) in product(ran, ran):
        if "alone" in one and (start, end) != (began, ended):
            assert ended <= start or end <= began, f"{other} ran beside {one}"


@pytest.mark.slow
def test_the_book_is_built_first_and_then_the_slow_files_come(suite: Path) -> None:
    add(suite, "a_alone", 1, "alone")
    add(suite, "b_any", 1)
    add(suite, "c_builds", 1, uses="book")
    add(suite, "d_reads", 1, uses="book")
    add(suite, "e_slow", 1, "slow")
    run(suite)
    assert [name for _, name, *_ in notes(suite)] == ["c_builds", "e_slow", "b_any", "d_reads", "a_alone"]
    (suite / "notes.txt").unlink()
    run(suite, "-m", "not slow")
    assert [name for _, name, *_ in notes(suite)] == ["b_any", "a_alone"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_each_reason_to_skip_has_one_line_with_its_count(suite: Path, workers: list[str]) -> None:
    for name in ("a", "b"):
        add(suite, name, 3)
        with (suite / f"test_{name}.py").open("a") as file:
            file.write("def test_two():\n    pytest.skip('no oven')\n\n")
            file.write("@pytest.mark.skipif(True, reason='no flour')\ndef test_three(): pass\n\n")
            file.write("@pytest.mark.xfail\ndef test_four(): assert False\n\n")
    (suite / "test_c.py").write_text("import pytest\npytest.skip('no oven', allow_module_level=True)\n")
    said = run(suite, *workers)
    (told,) = re.findall(r"=+ skipped, and why =+\n(.*?)\n=", said, re.S)
    assert [line for line in told.splitlines() if line] == ["    3  no oven", "    2  no flour"]
