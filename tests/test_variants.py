"""Variants of the assignments: other numbers, units and cases, judged as the course's own.

pytest tests/test_variants.py --variants 20
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import nbformat
import pytest
from grader_answers import ASSIGNMENTS, ROOT, Answer, answers, checks_using, drawn, module, solution
from servinglab.grading.build import SourceError, accepted, build, main, make_release
from servinglab.grading.contracts import Contract
from servinglab.grading.grade import check_functions
from servinglab.grading.notebooks import grade_id, is_check, read_notebook


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", metafunc.config.getoption("variants"))


def lost(answer: Answer, variant: int) -> dict[str, str]:
    """The checks that an answer to variant 0 loses when it is asked as this variant asks, and their messages."""
    notebook, source = drawn(answer.assignment, variant)
    fit = source.adapt.get(answer.task, lambda own: own)
    reports = check_functions(checks_using(notebook, answer.task), {answer.task: fit(answer.function)})
    return {cell.grade_id.split("-")[1]: cell.message for cell in reports if not cell.passed}


@pytest.mark.slow
@pytest.mark.parametrize("answer", list(answers()), ids=lambda answer: answer.name)
def test_an_answer_is_judged_the_same_in_every_variant(answer, variant):
    messages = lost(answer, variant)
    assert set(messages) == set(answer.lost)
    for check, hint in answer.lost.items():
        assert hint is None or hint in messages[check]


def in_time(found: object, seconds: float = 1.0) -> object:
    """A function that is interrupted, as the grader does, where it never ends; anything else as it is.

    A loop that waits for a request may wait for ever if its arguments come in another order.
    """
    if not isinstance(found, Callable):
        return found

    def late(signum, frame):
        raise TimeoutError

    def limited(*args):
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return found(*args)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return limited


@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_the_shipped_answers_are_no_answers_to_a_variant(name, variant):
    """Pasted as they stand, the public solutions keep a third of the points at most."""
    notebook, _ = drawn(name, variant)
    functions: dict = {}
    for cell in solution(name).cells:
        if cell.cell_type == "code" and not is_check(cell):
            exec(cell.source, functions)
    given = {}
    for cell in notebook.cells:  # the variant's own tables and helpers
        if cell.cell_type == "code" and grade_id(cell) and cell.metadata.nbgrader.locked and not is_check(cell):
            exec(cell.source, given)
    reports = check_functions(notebook, {**given, **{name: in_time(found) for name, found in functions.items()}})
    assert sum(cell.points for cell in reports) <= sum(cell.max_points for cell in reports) / 3


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_variant_says_which_it_is_and_has_the_same_checks(name, variant):
    notebook, _ = drawn(name, variant)
    assert notebook.metadata.servinglab.variant == variant
    assert f"(variant {variant})" in notebook.cells[0].source.splitlines()[0]
    own = solution(name)
    assert list(map(grade_id, filter(is_check, notebook.cells))) == list(map(grade_id, filter(is_check, own.cells)))
    assert nbformat.writes(notebook) == nbformat.writes(accepted(ROOT / "solutions" / f"{name}.md", variant)[0])
    assert not any("{{" in cell.source for cell in notebook.cells)
    make_release(notebook, name)


def test_every_task_says_what_it_returns_and_tells_its_ideas_apart():
    for name in ASSIGNMENTS:
        for cell in filter(is_check, solution(name).cells):
            assert "returns=" in cell.source, grade_id(cell)
            assert "def wrong_ideas" not in cell.source, grade_id(cell)


@pytest.mark.parametrize("path", sorted({answer.path for answer in answers()}), ids=lambda path: path.stem)
def test_an_adapted_right_answer_survives_the_way_there_and_back(path):
    """What a contract does to arguments and answers, undone by `fit`, is nothing."""
    contract = Contract(("B", "wait_s", "rate_rps"), ("rate_rpm", "B", "wait_ms"), 1000)
    fitted = contract.fit(lambda B, wait_s, rate_rps: [B, wait_s, rate_rps, None])
    assert contract.answer(fitted(*contract.arguments((3, 0.07, 12.5)))) == [3, 0.07, 12.5, None]
    assert module(path).RIGHT


MINI = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{code-cell} python
:draw:
double = ask("twice", "x_s", "s")
x, y = pick((3, 7), (4, 2), (5, 8), (6, 9))
```

# Twice

`{{ double }}` doubles: `{{ double(x) }}` is {{ double.of(x) }} {{ double.unit("x_s") }}.

```{code-cell} python
:answer: twice
def twice({{ double.parameters }}):
    ### BEGIN SOLUTION
    {{ double.read_in() }}
    return {{ double.result("2 * x_s") }}
    ### END SOLUTION
```

```{code-cell} python
:shared: twice
from servinglab.grading.checks import Task

task = Task(twice, "twice(x_s)", "", returns=float, ideas=[(lambda x: x**2, "squares")], {{ double.asked }})
```

```{code-cell} python
:check: twice-basic
task.gives({{ y }}, want={{ double.truth(y) }}, case="one", cause="twice x")
```
"""


def written(tmp_path, text):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "mini.md").write_text(text)
    return tmp_path / "solutions" / "mini.md"


def test_the_command_makes_a_variant_and_keeps_it(tmp_path, capsys):
    written(tmp_path, MINI)
    command = ["--root", str(tmp_path)]
    assert main([*command, "--variant", "3"]) == 0
    released = read_notebook(tmp_path / "exercises" / "mini" / "mini.ipynb")
    assert released.cells[0].source.startswith("# Twice (variant 3)")
    assert main(["--check", *command]) == 0
    assert main([*command]) == 0
    assert read_notebook(tmp_path / "exercises" / "mini" / "mini.ipynb") == released
    assert main(["--check", "--variant", "0", *command]) == 1
    assert main([*command, "--variant", "0"]) == 0
    assert read_notebook(tmp_path / "exercises" / "mini" / "mini.ipynb").cells[0].source.startswith("# Twice\n")
    assert main([*command, "--variant", "-1"]) == 1
    assert "variant must be 0 or more; got -1" in capsys.readouterr().err


def test_dice_are_rolled_until_the_ideas_differ(tmp_path):
    """Of two doubled is two squared: no variant shows that case."""
    text = written(tmp_path, MINI)
    shown = [accepted(text, variant)[0].cells[-1].source for variant in range(1, 12)]
    assert not any("gives(2," in source for source in shown)
    assert len(set(shown)) > 3


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("{{ double.truth(y) }}", "15", "refuses the solution"),
        ("lambda x: x**2", "lambda x: 2 * x", "no visible case tells this idea"),
        ("{{ double.of(x) }}", "{{ double.off(x) }}", "{{ double.off(x) }} fails: AttributeError"),
        ("x, y = pick", "x, y = choose", "fails: NameError"),
        (":shared: twice", ":shared: twice\n:points: 2\n:given: more", "one kind is allowed"),
        ("task.gives({{ y }}", "task.gives({{ y }}, 2", "a call has the arguments x_s; got 2 values"),
    ],
)
def test_a_source_that_cannot_be_judged_is_refused(tmp_path, old, new, complaint):
    text = written(tmp_path, MINI.replace(old, new, 1))
    with pytest.raises(SourceError, match=re.escape(complaint)):
        for variant in range(4):
            accepted(text, variant)


def test_build_makes_what_the_source_says(tmp_path):
    written(tmp_path, MINI)
    assert build(tmp_path, variant=2) == ["solutions/mini/mini.ipynb", "exercises/mini/mini.ipynb"]
    assert build(tmp_path) == []
