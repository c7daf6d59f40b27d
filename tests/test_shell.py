"""Lines of a notebook that are no Python: magics, commands, questions. None of them may cost the answer below it."""

from __future__ import annotations

import pytest
from servinglab.grading.sandbox import Limits, Sandbox


@pytest.fixture(scope="module", params=["isolated", "plain"])
def box(request):
    if request.param == "isolated":
        request.getfixturevalue("bwrap")
    with Sandbox(None, isolate=request.param == "isolated", limits=Limits(cell_s=30), checks=0) as sandbox:
        yield sandbox


def said(box: Sandbox, source: str) -> str:
    """What a cell prints; its error, if any, is appended."""
    reply = box.run(source)
    text = "".join(str(output.get("text", output.get("data"))) for output in reply["outputs"])
    return text + (f"{reply['error']['name']}: {reply['error']['text']}" if reply["error"] else "")


TOPS = [
    "%matplotlib inline",
    "%matplotlib qt",
    "%matplotlib widget",
    "%matplotlib",
    "%pylab inline",
    "%config InlineBackend.figure_format = 'retina'",
    "%load_ext autoreload\n%autoreload 2",
    "%load_ext an_extension_that_is_not_here\n%its_magic on",
    "%pip install a-package",
    "!pip install a-package",
    "!exit 3",
    "files = !ls",
    "!!ls",
    "%ls",
    "?print",
    "print??",
    "%%time",
    "%%capture kept",
    "%time 1 / 0",
    "get_ipython().run_line_magic('matplotlib', 'inline')",
    "get_ipython().system('ls')",
]


@pytest.mark.parametrize("top", TOPS)
def test_the_answer_below_a_line_that_is_no_python_counts(box, top):
    reply = box.run(f"{top}\ndef answer():\n    return {top!r}")
    assert reply["error"] is None
    assert said(box, "print(answer())") == f"{top}\n"


def test_a_line_that_did_nothing_says_so(box):
    assert "%nothing failed here (UsageError" in said(box, "%nothing\nkept = 1")
    assert "ZeroDivisionError" in said(box, "%time 1 / 0")


def test_a_command_says_how_it_went(box):
    text = said(box, "!echo $((6 * 7))\nstatus = _exit_code\nlines = !echo $((6 * 7))\nprint(status, lines)")
    assert text in (
        "42\n0 ['42']\n",
        "!echo $((6 * 7)): not run: there is no shell here (No such file or directory)\n"
        "127 ['!echo $((6 * 7)): not run: there is no shell here (No such file or directory)']\n",
    )
    assert said(box, "word = 'six'\n!echo {word} $word").endswith(("six six\n", "(No such file or directory)\n"))


def test_figures_stay_in_the_notebook_whatever_was_asked_for(box):
    reply = box.run("%matplotlib tk\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])")
    assert any("image/png" in output.get("data", {}) for output in reply["outputs"])


def test_an_endless_command_ends_with_its_cell():
    with Sandbox(None, isolate=False, limits=Limits(cell_s=1), checks=0) as box:
        assert said(box, "!while true; do :; done").startswith("CellTimeout")
        assert said(box, "print(1)") == "1\n"


def test_a_cell_magic_that_is_not_there_stops_its_cell_as_in_jupyter(box):
    assert "UsageError" in said(box, "%%nothing\nkept = 2")
