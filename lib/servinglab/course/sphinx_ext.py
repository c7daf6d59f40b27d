"""What the book asks of Sphinx: fresh pages after a change of the library, the components' files, quizzes.

Add `servinglab.course.sphinx_ext` to the extensions. It does not style pages and does not execute cells: the theme and
MyST-NB do.

A quiz is written in Markdown, so that it can be translated, and takes its numbers from `servinglab.course.quizzes`:

    ::::::{quiz} ch01
    :::::{quiz-question} pot-rate
    A pot takes {fresh}`fixed_s` s and {fresh}`per_request_s` s a dish. How many orders a second at B = {fresh}`batch`?

    ::::{quiz-hint} batches
    That is batches a second: each serves B orders.
    ::::

    ::::{quiz-why}
    Q = B / (t + rB) = {fresh}`answer` orders a second.
    ::::
    :::::
    ::::::

A question with choices has one `{quiz-choice} key` block for each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from servinglab import web
from servinglab.course import quiz

_LOG = logging.getLogger(__name__)


def library_hash(root: Path) -> str:
    """A short hash of every file of a library: pages executed with another one are stale."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    # The kernels inherit both: components show their static form, and figures reach the page whatever the shell says.
    os.environ[web.IN_BOOK] = "1"
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    app.add_config_value(
        "servinglab_library", library_hash(Path(web.__file__).parents[1]), "env"
    )  # a change re-reads every page
    app.connect("config-inited", _key_cache_on_library)
    app.connect("builder-inited", _write_components)
    app.connect("build-finished", _drop_font_preloads)
    app.add_css_file("servinglab.css")
    app.add_js_file("servinglab.js", loading_method="defer")

    app.add_node(element, html=(_visit_element, _depart_element), **_OTHER_BUILDERS)
    app.add_directive("quiz", QuizDirective)
    app.add_directive("quiz-question", QuestionDirective)
    for name in ("hint", "choice", "why"):
        app.add_directive(f"quiz-{name}", PartDirective)
    app.add_role("fresh", FreshRole())
    app.add_transform(FillQuizzes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _key_cache_on_library(app: Sphinx, config: Config) -> None:
    caches = Path(app.outdir).parent / ".jupyter_cache"
    for other in caches.glob("*"):
        if other.name != config.servinglab_library:  # executed with a library that is gone
            shutil.rmtree(other, ignore_errors=True)
    config.nb_execution_cache_path = str(caches / config.servinglab_library)


def _write_components(app: Sphinx) -> None:
    if app.builder.format == "html":
        static = Path(app.outdir, "_static")
        static.mkdir(parents=True, exist_ok=True)
        (static / "servinglab.css").write_text(web.stylesheet(), encoding="utf-8")
        (static / "servinglab.js").write_text(web.javascript(), encoding="utf-8")


def _drop_font_preloads(app: Sphinx, exception: Exception | None) -> None:
    """Take out the theme's early requests for fonts: a browser refuses them, with errors, for a page from a file."""
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            kept = re.sub(r'<link rel="preload" as="font"[^>]*>\s*', "", text)
            if kept != text:
                page.write_text(kept, encoding="utf-8")


# --- quizzes ---------------------------------------------------------------------------------------------------------


class element(nodes.General, nodes.Element):  # docutils names its nodes in lower case
    """An HTML element with a `tag` and `attrs`; other builders show only what it holds."""


def _visit_element(writer: Any, node: element) -> None:
    writer.body.append(writer.starttag(node, node["tag"], "", **node["attrs"]))


def _depart_element(writer: Any, node: element) -> None:
    writer.body.append(f"</{node['tag']}>")


def _pass(writer: Any, node: element) -> None:
    pass


_OTHER_BUILDERS: Any = {name: (_pass, _pass) for name in ("latex", "text", "man", "texinfo", "gettext")}


def _element(tag: str, kind: str, **attrs: str) -> element:
    return element("", tag=tag, kind=kind, attrs=attrs, classes=[f"sl-{kind}"])


class QuizDirective(SphinxDirective):
    """`{quiz} NAME`: the questions of `servinglab.course.quizzes.NAME`."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        node = _element("div", "quiz", **{"data-quiz": self.arguments[0]})
        node["name"] = self.arguments[0]
        self.set_source_info(node)
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


class QuestionDirective(SphinxDirective):
    """`{quiz-question} KEY`: text, then its hints, choices and explanation."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        node = _element("div", "question", **{"data-key": self.arguments[0]})
        node["key"] = self.arguments[0]
        self.set_source_info(node)
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


class PartDirective(SphinxDirective):
    """`{quiz-hint} KEY`, `{quiz-choice} KEY` or `{quiz-why}`, inside a question."""

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"class": directives.class_option}

    def run(self) -> list[nodes.Node]:
        kind = self.name.removeprefix("quiz-")
        if (kind == "why") == bool(self.arguments):
            raise self.error(f"{self.name} takes {'no key' if kind == 'why' else 'one key'}")
        key = self.arguments[0] if self.arguments else ""
        node = _element("details" if kind == "why" else "div", kind, **({"data-key": key} if key else {}))
        node["key"] = key
        if kind == "why":
            node += nodes.raw("", f"<summary>{web.word('explanation')}</summary>", format="html")
        self.set_source_info(node)
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


class FreshRole(SphinxRole):
    """``{fresh}`name` ``: a number that changes with each draw."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        node = _element("span", "fresh", **{"data-name": self.text})
        node["key"] = self.text
        node += nodes.Text(self.text)
        return [node], []


def _inside(root: nodes.Node, kind: str) -> Iterator[element]:
    return (node for node in root.findall(element) if node["kind"] == kind)


class FillQuizzes(SphinxTransform):
    """Compare each quiz with its numbers, show the first draw, and add all draws for the page's script.

    It runs after translation, so a placeholder lost in a translation is found too.
    """

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        for node in list(_inside(self.document, "quiz")):
            try:
                self._fill(node)
            except ValueError as problem:
                _LOG.warning("quiz %s: %s", node["name"], problem, location=node)

    def _fill(self, node: element) -> None:
        questions = {question.key: question for question in quiz.load(node["name"])}
        written = [part["key"] for part in _inside(node, "question")]
        if written != list(questions):
            raise ValueError(
                f"the page asks {written}; servinglab.course.quizzes.{node['name']} holds {list(questions)}"
            )
        for part in _inside(node, "question"):
            question = questions[part["key"]]
            _check_parts(part, question)
            first = question.variants[0].shown()
            for fresh in _inside(part, "fresh"):
                if fresh["key"] not in first:
                    raise ValueError(f"{question.key} draws no {fresh['key']!r}; it draws {sorted(first)}")
                fresh[:] = [nodes.Text(first[fresh["key"]])]
        data = web.data_element([question.to_json() for question in questions.values()])
        node.append(nodes.raw("", data, format="html"))


def _check_parts(part: element, question: quiz.Question) -> None:
    for kind, expected in (("hint", question.hints), ("choice", question.choices)):
        found = [child["key"] for child in _inside(part, kind)]
        if sorted(found) != sorted(expected):
            raise ValueError(f"{question.key} needs the {kind}s {sorted(expected)}; the page has {sorted(found)}")
    if len(list(_inside(part, "why"))) != 1:
        raise ValueError(f"{question.key} needs one quiz-why")
