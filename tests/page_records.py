"""What a page of the book has stored under names, and what its text shows: for tests that look at no sentence."""

from __future__ import annotations

import ast
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
from myst_nb.ext.glue import extract_glue_data
from nbclient import NotebookClient

NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True)
class Records:
    """What the cells of a page have put and claimed, by name."""

    stored: dict[str, Any]

    def text(self, name: str) -> str:
        """What the cells put where the text has this name."""
        return ast.literal_eval(self.stored[name]["data"]["text/plain"])

    def number(self, name: str) -> float:
        """The number that the cells put where the text has this name."""
        return float(self.text(name).replace(",", "").replace("−", "-"))

    def says(self, name: str) -> list[float]:
        """The numbers that the text shows in this claim."""
        return [float(shown.replace(",", "")) for shown in json.loads(self.text(name))["says"]]

    def holds(self, name: str) -> bool:
        """Whether a claim without numbers is there; one that doesn't hold would have stopped the page."""
        return json.loads(self.text(name))["holds"]


def run_page(page: Path) -> Records:
    """Run a page by itself, as the book does."""
    notebook = jupytext.read(page)
    folder = {"metadata": {"path": str(page.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    return Records(extract_glue_data(notebook, [0] * len(notebook.cells), logging.getLogger(__name__)))


def built_page(book: Path, name: str) -> Records:
    """Read what a page stored when the book was built."""
    glued = book / "_build" / "jupyter_execute" / "chapters" / f"{name}.glue.json"
    return Records(json.loads(glued.read_text(encoding="utf-8")))


def claims(page: Path) -> list[tuple[ast.Call, set[str]]]:
    """Find the calls of `claim` in a page, each with the numbers that its section shows, figures' texts included."""
    sections: list[tuple[list[str], list[ast.Call]]] = [([], [])]
    for cell in jupytext.read(page).cells:
        if cell.cell_type == "code":
            sections[-1][0].append(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", ""))
            sections[-1][1].extend(
                node
                for node in ast.walk(ast.parse(cell.source))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "claim"
            )
        else:
            first, *rest = re.split(r"^(?=#+ )", cell.source, flags=re.MULTILINE)
            sections[-1][0].append(first)
            sections += [([text], []) for text in rest]
    return [(call, set(NUMBER.findall(" ".join(texts)))) for texts, found in sections for call in found]
