"""The book builds strictly from clean, and the strict build fails when it should."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from servinglab import web
from servinglab.course.sphinx_ext import library_hash


class _Tags(HTMLParser):
    """Collects every start tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _tags(page: Path) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser.found


@pytest.fixture(scope="module")
def pages(book: Path) -> list[Path]:
    return sorted((book / "chapters").glob("*.html"))


def test_every_page_of_the_contents_is_built(repo: Path, book: Path) -> None:
    listed = re.findall(r"(?:file|root): (\S+)", (repo / "_toc.yml").read_text(encoding="utf-8"))
    assert len(listed) >= 5
    assert [name for name in listed if not (book / f"{name}.html").is_file()] == []


def test_every_image_says_what_it_shows(pages: list[Path]) -> None:
    images = [(page.name, tag) for page in pages for name, tag in _tags(page) if name == "img"]
    assert images
    for page, image in images:
        assert (image.get("alt") or "").strip(), f"{page}: {image['src']} has no alternative text"
        assert not (image["alt"] or "").startswith(".."), f"{page}: {image['src']} has a file name for a text"


def test_pages_load_nothing_from_elsewhere(pages: list[Path]) -> None:
    for page in pages:
        for name, tag in _tags(page):
            loaded = tag.get("src") or (tag.get("href") if name == "link" else None) or ""
            outside = re.match(r"(https?:)?//", loaded)
            assert not outside, f"{page.name} loads {loaded}"


def test_the_extension_brings_the_components(book: Path) -> None:
    assert (book / "_static" / "servinglab.js").read_text(encoding="utf-8") == web.javascript()
    assert (book / "_static" / "servinglab.css").read_text(encoding="utf-8") == web.stylesheet()


def test_languages_have_the_same_words() -> None:
    words = web.strings()
    assert set(words) == {"en", "zh"}
    assert set(words["en"]) == set(words["zh"])
    for key, text in words["en"].items():
        assert sorted(re.findall(r"{\w+}", text)) == sorted(re.findall(r"{\w+}", words["zh"][key])), key


def test_every_word_is_used(repo: Path) -> None:
    folder = repo / "lib" / "servinglab"
    code = "".join(path.read_text(encoding="utf-8") for path in [*folder.rglob("*.js"), *folder.rglob("*.py")])
    assert [key for key in web.strings()["en"] if not re.search(rf"[\"'`]{key}[\"'`]", code)] == []


# --- the strict build on a small book with one fault ------------------------------------------------------------------

PAGE = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {name: python3, display_name: Python 3}
---

# A small book
"""


TOLD = r"""Building the book of \S+; pages that are run:
  chapters/index \d+ s
Pages read: 1 \({pages}, 0 without cells\)
Pages written: \d+, with \d+ other files \(\d+ MB\), to \S+
Open the book: file://\S+/index\.html
"""


def _small_book(repo: Path, folder: Path, body: str) -> Path:
    """A book of one page with the real configuration."""
    (folder / "chapters").mkdir(parents=True)
    shutil.copy(repo / "_config.yml", folder)
    shutil.copytree(repo / "assets", folder / "assets")
    (folder / "_toc.yml").write_text("format: jb-book\nroot: chapters/index\n", encoding="utf-8")
    (folder / "chapters" / "index.md").write_text(PAGE + body, encoding="utf-8")
    return folder


def _build(repo: Path, source: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repo / "tools" / "build_book.py"), "--source", str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def build_small_book(repo: Path, folder: Path, body: str) -> Path:
    """The folder of the built pages of a book of one page."""
    build = _build(repo, _small_book(repo, folder, body))
    assert build.returncode == 0, build.stdout + build.stderr
    return folder / "_build" / "html"


def _cell(code: str) -> str:
    return f"\n```{{code-cell}} ipython3\n{code}\n```\n"


WRONG_LINKS_AND_QUIZZES = """
{ref}`nowhere`

:::{quiz} ch99
Nothing.
:::

:::::{quiz} ch01
::::{quiz-question} pot-rate
How many at {fresh}`batch`?
::::
:::::
"""


@pytest.mark.slow
def test_the_build_fails_on_a_cell_that_fails(repo: Path, tmp_path: Path) -> None:
    build = _build(repo, _small_book(repo, tmp_path / "small", _cell("raise RuntimeError('burnt')")))
    assert build.returncode != 0
    assert "RuntimeError: burnt" in re.sub(r"\x1b\[[0-9;]*m", "", build.stdout + build.stderr)
    assert "chapters/index failed" in build.stdout
    assert "Open the book" not in build.stdout


@pytest.mark.slow
def test_the_build_fails_on_dead_links_and_on_quizzes_that_do_not_fit(repo: Path, tmp_path: Path) -> None:
    build = _build(repo, _small_book(repo, tmp_path / "small", WRONG_LINKS_AND_QUIZZES))
    assert build.returncode != 0
    said = build.stdout + build.stderr
    assert "undefined label: 'nowhere'" in said
    assert "quiz ch99: name must be a module of servinglab.course.quizzes" in said
    assert "quiz ch01: the page asks ['pot-rate']" in said


@pytest.mark.slow
def test_cells_run_again_when_the_library_changes(repo: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    source = _small_book(
        repo, tmp_path / "small", _cell(f"with open({str(runs)!r}, 'a') as file:\n    file.write('x')")
    )
    for hashed, expected in (("one", "x"), ("two", "xx")):
        config = (repo / "_config.yml").read_text(encoding="utf-8")
        (source / "_config.yml").write_text(f"{config}    servinglab_library: {hashed}\n", encoding="utf-8")
        build = _build(repo, source)
        assert build.returncode == 0, build.stdout + build.stderr
        assert runs.read_text() == expected, f"after building with library {hashed!r}"
    assert re.fullmatch(TOLD.format(pages="1 run, 0 as they were run before"), build.stdout), build.stdout
    build = _build(repo, source)
    assert runs.read_text() == "xx"
    assert "Pages read: 1 (0 run, 1 as they were run before, 0 without cells)\n" in build.stdout


def test_the_hash_sees_every_file_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.js").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    first = library_hash(tmp_path)
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    assert library_hash(tmp_path) == first
    (tmp_path / "part" / "a.js").write_text("2")
    second = library_hash(tmp_path)
    (tmp_path / "part" / "a.js").rename(tmp_path / "part" / "b.js")
    assert len({first, second, library_hash(tmp_path)}) == 3


@pytest.mark.slow
def test_translators_get_questions_and_alternative_texts(repo: Path, tmp_path: Path) -> None:
    figure = """
```{code-cell} ipython3
---
mystnb:
  image:
    alt: A line that rises.
---
import matplotlib.pyplot as plt
_ = plt.plot([1, 2])
```
"""
    source = _small_book(repo, tmp_path / "small", figure + _quiz_of(repo))
    code = "from jupyter_book.cli.main import main; main()"
    options = ["build", str(source), "--builder", "custom", "--custom-builder", "gettext"]
    build = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, timeout=300)
    assert build.returncode == 0, build.stdout + build.stderr
    catalogue = (source / "_build" / "gettext" / "chapters" / "index.pot").read_text(encoding="utf-8")
    assert "A line that rises." in catalogue
    assert "{fresh}`batch`" in catalogue


def _quiz_of(repo: Path) -> str:
    """Chapter 1's quiz, as it stands there."""
    chapter = next((repo / "chapters").glob("01_*.md")).read_text(encoding="utf-8")
    quiz = re.search(r"^(:{6,}){quiz} ch01$.*?^\1$", chapter, re.MULTILINE | re.DOTALL)
    assert quiz
    return f"\n{quiz[0]}\n"
