"""The house: every module can be imported by its name, and no room or module has the name of an exported function."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import servinglab as sl

MODULES = sorted(
    each.name for each in pkgutil.walk_packages(sl.__path__, "servinglab.") if not each.name.endswith("__main__")
)
ROOMS = sorted(each.name for each in pkgutil.iter_modules(sl.__path__) if each.ispkg)


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_name_gives_the_module(name):
    """`import a.b.c as m` takes what stands at that name in its parent: a function of the same name would hide it."""
    module = importlib.import_module(name)
    found = sys.modules["servinglab"]
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found is module


def test_what_is_exported_is_there_and_no_function_has_the_name_of_a_room():
    for name in sl.__all__:
        assert getattr(sl, name) is not None
        assert not (inspect.isfunction(getattr(sl, name)) and name in ROOMS), name
    reachable = {name for name in sl.__all__ if isinstance(getattr(sl, name), ModuleType)}
    assert reachable == {"catalog", "decide", "grading", "lengths", "metrics", "plots", "theory"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_its_question(room):
    says = inspect.getdoc(importlib.import_module(f"servinglab.{room}")) or ""
    assert says.splitlines()[0].endswith((".", "?", "!")), room


def test_the_readmes_map_names_every_room_and_no_other(repo: Path):
    text = (repo / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == ROOMS
