"""What a student gets to read: the pages that nbgrader makes, without hidden tests, scripts or endless texts.

What this module does not do: grade, or keep books. That is `gradebook`.
"""

from __future__ import annotations

from typing import Any

import bleach  # type: ignore[import-untyped]
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer

from servinglab.grading import notebooks

# what markdown makes; everything else in a text cell is shown as it was written
TEXT_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i"),
    *("li", "ol", "p", "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
HIDDEN_NOTE = "# (hidden tests ran here)"


class ScrubHidden(NbGraderPreprocessor):
    """Takes the text of hidden tests out of feedback."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if notebooks.BEGIN_HIDDEN in cell.source and notebooks.is_check(cell):
            cell.source = notebooks.without_hidden(cell.source).rstrip() + f"\n{HIDDEN_NOTE}"
        return cell, resources


class LeaveOut(NbGraderPreprocessor):
    """Leaves out what would take too long to show, and says so: making HTML of 250,000 brackets takes minutes."""

    own = Bool(True, help="Show what the student wrote and what it printed; the assignment and its messages stay.").tag(
        config=True
    )
    cell_chars = Integer(20_000, help="The longest cell of a student that is shown.").tag(config=True)
    page_chars = Integer(200_000, help="How much of a student's cells is shown in all.").tag(config=True)
    output_chars = Integer(1_000_000, help="How much of their outputs is shown in all.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        room, output_room = (self.page_chars, self.output_chars) if self.own else (0, 0)
        if not self.own:
            nb.cells = [cell for cell in nb.cells if notebooks.grade_id(cell)]
        for cell in nb.cells:
            if not notebooks.is_locked(cell):
                size = len(cell.source)
                if size > min(room, self.cell_chars):
                    cell.source = self._instead(cell, size)
                else:
                    room -= size
            if cell.cell_type == "code" and not notebooks.is_check(cell):
                sizes = [len(str(output)) for output in cell.outputs]
                if sum(sizes) > output_room:
                    note = f"({sum(sizes):,} characters of output are left out of this page)"
                    cell.outputs = [NotebookNode(output_type="stream", name="stdout", text=note)]
                else:
                    output_room -= sum(sizes)
        return nb, resources

    def _instead(self, cell: NotebookNode, size: int) -> str:
        if cell.cell_type == "code":
            return f"# ({size:,} characters of code are left out of this page)"
        return f"(A text of {size:,} characters is left out of this page.)"


class FeedbackExporter(HTMLExporter):
    """Feedback pages in which no script of a submission runs: they are opened on a teacher's screen.

    nbgrader's template forgets to clean text cells; `sanitize_html` covers the rest.
    """

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        html = super().markdown2html(context, source)
        return bleach.clean(html, tags=TEXT_TAGS, attributes={"*": ["class", "id", "href", "title", "align"]})
