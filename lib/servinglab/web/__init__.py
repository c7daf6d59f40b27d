"""The parts of a page that answer the reader: one piece of HTML each, brought to life by one script.

A `Component` is what a cell displays: data as JSON, and HTML that stands by itself where no script runs. In the book
the script and the style sheet are files that `sphinx_ext` adds to every page; in a live notebook the component
carries both along, so that it works there too. Words that the script shows come from `strings.json`, by language.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import Any

IN_BOOK = "SERVINGLAB_BOOK"  # set by sphinx_ext for the kernels that execute the pages
_SCRIPTS = ("core.js", "guess.js", "quiz.js", "player.js", "kitchen.js", "timeline.js", "explorer.js")


def in_book() -> bool:
    """Whether this cell runs while the book is built."""
    return bool(os.environ.get(IN_BOOK))


@cache
def strings() -> dict[str, dict[str, str]]:
    """The words of the components: language -> key -> text."""
    return json.loads(_read("strings.json"))


@cache
def javascript() -> str:
    """The script of all components. Run twice on one page, it starts only what is new."""
    parts = [f"const STRINGS = {json.dumps(strings(), ensure_ascii=False)};", *map(_read, _SCRIPTS)]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"


@cache
def stylesheet() -> str:
    """The style sheet of all components."""
    return _read("servinglab.css")


def word(key: str) -> str:
    """An English word of the components, as HTML that the script can put into the page's language."""
    return f'<span data-sl-word="{escape(key)}">{escape(strings()["en"][key])}</span>'


def named(text: str) -> str:
    """A name or unit given by the caller, as HTML: put into the page's language if the table knows it."""
    return word(text) if text in strings()["en"] else escape(text)


def data_element(data: Mapping[str, Any] | list[Any]) -> str:
    """JSON that a script can read from the page, in an element that shows nothing."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    inert = text.replace("<", "\\u003c")  # no text may end the element
    return f'<script type="application/json">{inert}</script>'


class Component:
    """One live part of a page.

    Parameters
    ----------
    kind : str
        Which script starts it: "guess", "recall", "kitchen", "steps" or "explorer".
    data : dict
        What the script needs, as plain JSON values (no NaN).
    fallback : str
        HTML that says the same where no script runs.
    summary : str
        One line for a terminal.
    """

    def __init__(self, kind: str, data: Mapping[str, Any], fallback: str, summary: str) -> None:
        self.kind = kind
        self.data = dict(data)
        self.fallback = fallback
        self.summary = summary

    def __repr__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        opening = f'<div class="sl-component" data-sl="{escape(self.kind)}">'
        markup = f"{opening}{data_element(self.data)}{self.fallback}</div>"
        if in_book():
            return markup
        return f"<style>{stylesheet()}</style>{markup}<script>{javascript()}</script>"


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
