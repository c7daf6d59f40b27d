"""The grader's own work, in a process that may fail."""

from __future__ import annotations

import os
import sys
import time

import pytest
from servinglab.grading.apart import in_time

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process safely")


def endless() -> None:
    while True:
        time.sleep(1)


def deep(level: int = 0) -> None:
    deep(level + 1)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (lambda: None, ""),
        (endless, "it took more than 0.5 s"),
        (lambda: [0] * 10**10, "MemoryError"),
        (deep, "maximum recursion depth exceeded"),
        (lambda: os.kill(os.getpid(), 9), "it ended without a word"),
        (lambda: sys.exit(3), "it ended without a word"),
        (lambda: int("x"), "invalid literal for int() with base 10: 'x'"),
    ],
    ids=["well", "endless", "memory", "recursion", "killed", "left", "wrong"],
)
def test_what_fails_says_why(work, why):
    before = set(os.listdir("/proc/self/fd"))
    assert in_time(work, 0.5 if work is endless else 30.0) == why
    assert set(os.listdir("/proc/self/fd")) <= before


def test_what_it_writes_stays(tmp_path):
    assert in_time(lambda: (tmp_path / "page").write_text("x"), 30.0) == ""
    assert (tmp_path / "page").read_text() == "x"
