"""What pages put and claim: the rules of `Page`, and of every page of the book."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from page_records import claims, run_page
from servinglab.course.page import Page

PAGE = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {name: python3, display_name: Python 3}
---

# A page

"""
NAMES = sorted(
    page.name
    for page in (Path(__file__).resolve().parents[1] / "chapters").glob("*.md")
    if "kernelspec:" in page.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    ("found", "says", "within"),
    [
        (50.4, "50", None),
        (49.5, "50", None),
        (3.8499, "3.8", None),
        ([65_000.4, 0.43], "65,000 0.43", None),
        (65_900, "65,000", 1000),
        ([2.9, 3.1], "3 3", 0.1),
    ],
)
def test_numbers_that_round_to_those_shown(found: object, says: str, within: float | None) -> None:
    Page("x").claim("number", found, says, within=within)


@pytest.mark.parametrize(
    ("found", "says", "within", "message"),
    [
        (50.6, "50", None, "x-number: the page says 50, its cells say 50.6000"),
        (3.8501, "3.8", None, "the page says 3.8, its cells say 3.85010"),
        ([1, 3], "1 2", None, "the page says 2, its cells say 3.0000"),
        (66_100, "65,000", 1000, "the page says 65,000, its cells say 66,100.0000"),
        (float("nan"), "1", None, "its cells say nan"),
        (False, "", None, "x-number doesn't hold"),
    ],
)
def test_a_claim_that_does_not_hold_says_its_name(found: object, says: str, within: float | None, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Page("x").claim("number", found, says, within=within)


@pytest.mark.parametrize(
    ("found", "says", "within"), [(1.0, "", None), ([True], "", None), (True, "", 1), ([1, 2], "1", None)]
)
def test_a_claim_is_a_condition_or_numbers(found: object, says: str, within: float | None) -> None:
    with pytest.raises(ValueError, match="x-number: found must"):
        Page("x").claim("number", found, says, within=within)


@pytest.mark.slow
def test_what_a_page_stores_is_read_back(tmp_path: Path) -> None:
    cell = """
```{code-cell} ipython3
from servinglab.course.page import Page
page = Page("x")
page.put("rate", 1234.567, 1)
page.put("error", -3.2)
page.put("kind", "reading")
page.claim("rate-shown", [1234.4, 0.5], "1,234 0.50")
page.claim("rises", True)
```
"""
    (tmp_path / "x.md").write_text(PAGE + cell, encoding="utf-8")
    stored = run_page(tmp_path / "x.md")
    assert (stored.text("x-rate"), stored.text("x-error"), stored.text("x-kind")) == ("1,234.6", "−3", "reading")
    assert (stored.number("x-rate"), stored.number("x-error")) == (1234.6, -3)
    assert stored.says("x-rate-shown") == [1234, 0.5]
    assert stored.holds("x-rises")
    assert set(stored.stored) == {"x-rate", "x-error", "x-kind", "x-rate-shown", "x-rises"}


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_claim_stand_in_its_section(repo: Path, name: str) -> None:
    """In digits, so this holds for any language; whether they are true, the page's cells check."""
    for call, shown in claims(repo / "chapters" / name):
        assert isinstance(call.args[0], ast.Constant), f"{name}: a claim has its name in plain letters"
        if len(call.args) > 2:
            assert isinstance(call.args[2], ast.Constant), f"{name}: {call.args[0].value} has its numbers in digits"
            missing = set(call.args[2].value.split()) - shown
            assert not missing, f"{name}: the section of {call.args[0].value} doesn't show {missing}"


@pytest.mark.parametrize("name", NAMES)
def test_the_notebooks_that_a_page_names_are_there(repo: Path, name: str) -> None:
    paths = re.findall(r"exercises/\S+\.ipynb", (repo / "chapters" / name).read_text(encoding="utf-8"))
    assert paths or not name[0].isdigit(), "a chapter names its assignment"
    assert all((repo / path).is_file() for path in paths)


def test_no_words_hide_in_a_directive_option(repo: Path) -> None:
    """An option swallows the rest of its line, and the strict build doesn't mind."""
    for page in (repo / "chapters").glob("*.md"):
        options = re.findall(r"^:(?:class|label|name): (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(len(option.split()) == 1 for option in options), page.name


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("test_chapter*.py")), ids=lambda path: path.name)
def test_no_test_of_a_chapter_looks_for_its_words(repo: Path, path: Path) -> None:
    """A name or a number may be looked for in a page; a phrase would keep it from being edited or translated."""
    pages = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in (repo / "chapters").glob("*.md"))
    phrases = [
        node.value
        for compare in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(compare, ast.Compare) and isinstance(compare.ops[0], ast.In | ast.NotIn)
        for node in ast.walk(compare.left)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
    ]
    assert [phrase for phrase in phrases if phrase in pages] == []
