"""How the suite runs: which file is taken first, what runs alone, what was skipped and why.

`make test` starts a worker for each core (pytest-xdist), and a worker takes whole files, so that a file's fixtures are
made once. Two marks steer it. `slow`: `make check` leaves the test out. `alone`: it measures time or drives a load, so
nothing runs beside it. A test with neither is fast. Fixtures are in tests/conftest.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

try:
    import fcntl
except ImportError:  # Windows: there a test that is marked `alone` may have a neighbour
    fcntl = None  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many variants of the assignments are tried: `--variants 20`."""
    parser.addoption(
        "--variants",
        type=lambda n: range(1, int(n) + 1),
        default=[7],
        help="variants 1 to N of the assignments (default: 7)",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what executes pages or notebooks as slow; put the files that take longest first."""
    traits: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        uses = {"book", "records", "chromium"} & set(getattr(item, "fixturenames", ()))
        if uses or item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow)
        traits[item.path] |= uses | {mark.name for mark in item.iter_markers()}
    builder = next((path for path in traits if "book" in traits[path]), None)
    items.sort(key=lambda item: -1 if item.path == builder else rank(traits[item.path]))


def rank(traits: set[str]) -> int:
    """When a file's turn comes. The one that builds the book is first; others that read it are late and don't wait."""
    if "alone" in traits:
        return 3
    if traits & {"book", "records"}:
        return 2
    return 0 if "slow" in traits else 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the tests of several workers run side by side, but none beside one that is marked `alone`."""
    if fcntl is None or not hasattr(item.config, "workerinput"):
        return (yield)
    with open(__file__) as shared_by_all:
        fcntl.flock(shared_by_all, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say for each reason how many tests were skipped."""
    if lines := skip_lines(terminalreporter.stats.get("skipped", ())):
        terminalreporter.section("skipped, and why")
        for line in lines:
            terminalreporter.write_line(line)


def skip_lines(reports: Iterable[Any]) -> list[str]:
    """One line for each reason, the most frequent first."""
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    return [f"{count:5}  {' '.join(reason.split())}" for reason, count in reasons.most_common()]
