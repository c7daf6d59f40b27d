"""Shared fixtures: what a test may need and a machine may lack. A missing part skips with one clear line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings
from page_records import Records, built_page, run_page

os.environ.setdefault("MPLBACKEND", "Agg")  # figures without a screen, also in the kernels that tests start

# The suite tries the same examples each time, so that a red run can be repeated;
# `HYPOTHESIS_PROFILE=explore make test` draws new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

if threading.current_thread() is threading.main_thread():  # a worker of pytest-xdist is told to ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore_glob = ["*.ipynb"]  # nbval is for solutions/; notebooks in here are material for tests


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no doctests in tests/: that would import the wrong solutions that graders are tested with."""
    found = yield
    return [collector for collector in found if type(collector).__name__ != "DoctestModule"]


CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM_PATHS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public traces; a wrong setting fails, no setting skips."""
    setting = os.environ.get("SERVINGLAB_DATA", "")
    if not setting:
        pytest.skip("SERVINGLAB_DATA is not set (README, Data): the public traces aren't here")
    folder = Path(setting)
    if not (folder / "traces").is_dir():
        pytest.fail(f"SERVINGLAB_DATA must name a folder that holds traces/; got {setting!r}")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium or Chrome to drive headless."""
    for name in CHROMIUM_NAMES:
        if found := shutil.which(name):
            return found
    for path in CHROMIUM_PATHS:
        if os.access(path, os.X_OK):
            return path
    pytest.skip("no chromium, google-chrome or chrome on PATH: the built pages aren't driven")


@pytest.fixture(scope="session")
def bwrap() -> str:
    """Path of a bubblewrap that can really make a sandbox here (some containers forbid it)."""
    found = shutil.which("bwrap")
    if not found:
        pytest.skip("bubblewrap (bwrap) isn't installed: the grading sandbox isn't tested")
    ordinary = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [found, "--unshare-all", "--ro-bind", "/", "/", "--chdir", "/", "true"]
    trial = subprocess.run(command, capture_output=True, text=True, timeout=30, **ordinary)
    if trial.returncode:
        reason = (trial.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"bubblewrap can't make a sandbox here ({reason}): the grading sandbox isn't tested")
    return found


@pytest.fixture(scope="session")
def book(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages: built once, strictly, from clean, whichever worker is first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # every worker has its own in there
    output, said = folder / "book", folder / "book.txt"
    with FileLock(folder / "book.lock"):
        if not said.exists():
            command = [sys.executable, str(repo / "tools" / "build_book.py"), "--output", str(output)]
            build = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
            said.write_text(build.stdout if build.returncode else "", encoding="utf-8")
    if failure := said.read_text(encoding="utf-8"):
        pytest.fail(f"the book doesn't build:\n{failure}", pytrace=False)
    return output / "_build" / "html"


@pytest.fixture(scope="session")
def records(repo: Path, request: pytest.FixtureRequest) -> Callable[[str], Records]:
    """What a page's cells have put and claimed: from the book if a test builds it, else by running that page alone."""
    built = any("book" in getattr(item, "fixturenames", ()) for item in request.session.items)

    @cache
    def read(name: str) -> Records:
        if built:
            return built_page(request.getfixturevalue("book").parents[1], name)
        return run_page(repo / "chapters" / f"{name}.md")

    return read
