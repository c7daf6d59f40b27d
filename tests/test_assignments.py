"""Assignments: built without drift, released without their answers, graded by checks that know each wrong idea."""

from __future__ import annotations

import ast
import re
import shutil

import nbformat
import pytest
from grader_answers import (
    ASSIGNMENTS,
    GRADERS,
    ROOT,
    answers,
    assignment_of,
    checks_using,
    module,
    release,
    solution,
)
from nbclient import NotebookClient
from servinglab.grading import Limits, grade_one
from servinglab.grading.build import SourceError, build, build_solution, main, make_release
from servinglab.grading.checks import UNFILLED
from servinglab.grading.grade import check_functions
from servinglab.grading.notebooks import grade_id, is_check, parts


@pytest.mark.parametrize("answer", list(answers(right=False)), ids=lambda answer: answer.name)
def test_a_wrong_idea_loses_its_points_and_gets_its_hint(answer):
    reports = check_functions(checks_using(solution(answer.assignment), answer.task), {answer.task: answer.function})
    lost = {cell.grade_id.split("-")[1]: cell.message for cell in reports if not cell.passed}
    assert set(lost) == set(answer.lost)
    for check, hint in answer.lost.items():
        if hint is not None:
            assert hint in lost[check]
    assert any(hint for hint in answer.lost.values())


@pytest.mark.parametrize("path", GRADERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_there_are_enough_wrong_and_right_answers_and_the_right_ones_keep_everything(path):
    assert len(module(path).WRONG) >= 6
    assert len(module(path).RIGHT) >= 2
    own = checks_using(solution(assignment_of(path)), path.stem)
    assert own.cells
    for right in module(path).RIGHT:
        for cell in check_functions(own, {path.stem: right}):
            assert cell.passed, f"{right.__name__}: {cell.grade_id}\n{cell.message}"


@pytest.mark.parametrize("path", GRADERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_answer_of_a_file_is_tried(path):
    """A function that neither a list nor another function names was forgotten."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in named]


@pytest.mark.parametrize("path", GRADERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_list_may_come_as_a_list_a_tuple_or_an_array(path):
    import numpy as np

    def as_array(values):
        try:
            return np.array(values)
        except ValueError:  # rows of several lengths, or a list beside a number
            return np.array(values, dtype=object)

    own = checks_using(solution(assignment_of(path)), path.stem)
    right = module(path).RIGHT[0]
    for form in (list, tuple, as_array):

        def answer(*args, form=form):
            found = right(*args)
            return form(found) if isinstance(found, (list, tuple)) else found

        for cell in check_functions(own, {path.stem: answer}):
            assert cell.passed, f"{form.__name__}: {cell.grade_id}\n{cell.message}"


def odd(kind):
    """Something that a learner's function may give back by mistake."""
    import numpy as np

    return {
        "nothing": None,
        "an empty list": [],
        "an empty dictionary": {},
        "an empty text": "",
        "not a number": float("nan"),
        "endless": float("inf"),
        "negative": -1,
        "yes": True,
        "a list of nothing": [None],
        "an array": np.array([1.0, 2.0]),
        "a nested list": [[1, 2], [3]],
        "a text": "12",
        "a set": {1, 2},
        "a huge number": 10**400,
    }[kind]


ODD = (
    "nothing", "an empty list", "an empty dictionary", "an empty text", "not a number", "endless", "negative", "yes",
    "a list of nothing", "an array", "a nested list", "a text", "a set", "a huge number",
)  # fmt: skip


@pytest.mark.parametrize("path", GRADERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_odd_answer_gets_a_readable_message(path):
    own = checks_using(solution(assignment_of(path)), path.stem)
    for kind in ODD:
        for cell in check_functions(own, {path.stem: lambda *args, kind=kind: odd(kind)}):
            assert "the check could not read the answer" not in cell.message, f"{kind}: {cell.grade_id}"


@pytest.mark.slow
def test_every_check_of_an_assignment_is_tried_by_wrong_answers():
    tried: dict[str, set[str]] = {name: set() for name in ASSIGNMENTS}
    for answer in answers(right=False):
        own = checks_using(solution(answer.assignment), answer.task)
        reports = check_functions(own, {answer.task: answer.function})
        tried[answer.assignment] |= {cell.grade_id for cell in reports if not cell.passed}
    for name in ASSIGNMENTS:
        assert tried[name] == {grade_id(cell) for cell in solution(name).cells if is_check(cell)}


@pytest.mark.slow
def test_hidden_hints_quote_no_line_and_no_number_of_their_test():
    """Every message a wrong answer gets from hidden lines, against the text of those lines."""
    for answer in answers(right=False):
        own = checks_using(solution(answer.assignment), answer.task)
        secret = {
            grade_id(cell): "\n".join(text for hidden, text in parts(cell.source) if hidden) for cell in own.cells
        }
        for cell in check_functions(own, {answer.task: answer.function}):
            if "hidden check" not in cell.message:
                continue
            numbers = set(re.findall(r"\d+\.\d+|\d{3,}", secret[cell.grade_id]))
            assert not numbers & set(re.findall(r"\d+\.\d+|\d{3,}", cell.message))
            for line in secret[cell.grade_id].splitlines():
                assert len(line.strip()) < 25 or line.strip() not in cell.message


def test_nothing_has_drifted(capsys):
    assert main(["--check", "--root", str(ROOT)]) == 0, capsys.readouterr()


def test_drift_is_found_and_building_mends_it(tmp_path):
    name = ASSIGNMENTS[0]
    shutil.copytree(ROOT / "solutions", tmp_path / "solutions")
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    released = tmp_path / "exercises" / name / f"{name}.ipynb"
    before = released.read_bytes()
    released.write_bytes(before.replace(b"Task 1", b"Task 7", 1))
    assert build(tmp_path, [name], check=True) == [f"exercises/{name}/{name}.ipynb"]
    assert released.read_bytes() != before
    build(tmp_path, [name])
    assert released.read_bytes() == before


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_release_holds_no_hidden_line_no_answer_and_no_marker(name):
    text = "\n".join(cell.source for cell in release(name).cells)
    assert not re.search(r"HIDDEN|BEGIN|END S|SOLUTION", text)
    visible = {
        line.strip()
        for cell in solution(name).cells
        for hidden, part in parts(cell.source)
        if not hidden
        for line in part.splitlines()
    }
    hidden_lines = [
        line.strip()
        for cell in solution(name).cells
        for hidden, part in parts(cell.source)
        if hidden
        for line in part.splitlines()
        if line.strip() and line.strip() not in visible
    ]
    assert len(hidden_lines) > 50
    released = {line.strip() for line in text.splitlines()}
    assert not released & set(hidden_lines)
    assert [cell["id"] for cell in release(name).cells] == [cell["id"] for cell in solution(name).cells]
    assert all(cell["id"] for cell in release(name).cells)


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.slow
def test_a_release_fails_in_exactly_its_check_cells(name, tmp_path):
    """In an ordinary Jupyter kernel, as a learner sees it."""
    notebook = release(name)
    NotebookClient(
        notebook, kernel_name="python3", timeout=60, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    failing = [
        cell["id"]
        for cell in notebook.cells
        if cell.cell_type == "code" and any(output.output_type == "error" for output in cell.outputs)
    ]
    assert failing == [grade_id(cell) for cell in notebook.cells if is_check(cell)]
    shown = "\n".join(
        "\n".join(output.traceback)
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    )
    assert shown.count(UNFILLED) == len(failing)
    assert "Traceback" not in shown


@pytest.mark.parametrize("name", ASSIGNMENTS)
@pytest.mark.slow
def test_the_solution_gets_full_marks_in_half_of_the_time(name, bwrap):
    limits = Limits()
    half = Limits(cell_s=limits.cell_s / 2, check_s=limits.check_s / 2)
    path = ROOT / "solutions" / name / f"{name}.ipynb"
    report = grade_one(path, source=path, limits=half)
    assert report.isolated
    assert report.problems == ()
    assert report.score == report.max_score == sum(cell.max_points for cell in report.cells) > 0
    assert report.passed


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_each_check_gives_one_point_and_says_where_to_read(name):
    page = next((ROOT / "chapters").glob(f"{name[:2]}_*.md")).read_text(encoding="utf-8")
    headings = {line.lstrip("# ").strip() for line in page.splitlines() if line.startswith("#")}
    for cell in filter(is_check, solution(name).cells):
        assert cell.metadata.nbgrader.points == 1
        sections = re.findall(r"read=\"chapter \d+, “(.+?)”\"", cell.source)
        assert sections, grade_id(cell)
        assert set(sections) <= headings, grade_id(cell)


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_points_and_minutes_add_up_and_help_fades(name):
    """Each heading says its task's minutes and points, the first lines those of all; the last function is empty."""
    notebook = release(name)
    tasks, last = [], ""
    for cell in notebook.cells:
        heading = re.search(r"^## Task \d+: .* \((\d+) minutes, (\d+) points\)$", cell.source, re.MULTILINE)
        if heading:
            tasks.append([int(heading[1]), int(heading[2]), 0])
        elif is_check(cell):
            tasks[-1][2] += cell.metadata.nbgrader.points
        elif cell.metadata.get("nbgrader", {}).get("solution"):
            last = cell.source
    minutes, points, checked = map(sum, zip(*tasks, strict=True))
    assert all(own == cells for _, own, cells in tasks)
    assert all(3 <= spent / own <= 6 for spent, own, _ in tasks)
    said = re.search(r"(\d+) points.*about (\d+) minutes", notebook.cells[0].source, re.DOTALL)
    assert int(said[1]) == points == checked
    assert abs(int(said[2]) - minutes) <= 3
    page = next((ROOT / "chapters").glob(f"{name[:2]}_*.md")).read_text(encoding="utf-8")
    assert f"takes about {said[2]} minutes" in " ".join(page.split())
    function = ast.parse(last).body[-1]
    assert [type(line) for line in function.body] == [ast.Expr, ast.Raise]  # what it is for, and nothing given
    assert re.search(
        r"(simulate|reference|closed_loop)\(", "".join(c.source for c in notebook.cells if not is_check(c))
    )


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_checks_use_inputs_that_the_text_does_not_contain(name):
    """No worked example of the text is also a case of a check."""
    shown = "\n".join(cell.source for cell in solution(name).cells if not is_check(cell))
    examples = {call for call in re.findall(r"`\w+\(([^`]*)\)`", shown) if re.search(r"\d", call)}
    assert examples
    for cell in filter(is_check, solution(name).cells):
        for call in re.findall(r"task\.(?:gives|answer)\(\s*([^=]*?), (?:want|case)=", cell.source, re.DOTALL):
            assert call not in examples


MINI = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{code-cell} python
:answer: double
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
```

```{code-cell} python
:check: double-basic
from servinglab.grading.checks import Task

Task(double, "double(x)", read="nowhere").gives(3, want=6, case="three", cause="twice x")
### BEGIN HIDDEN TESTS
Task(double, "double(x)", read="nowhere").gives(4, want=8, case="another", cause="twice x")
### END HIDDEN TESTS
```
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("### BEGIN HIDDEN TESTS", "### BEGIN HIDEN TESTS", "looks like a marker"),
        ("### BEGIN HIDDEN TESTS", "###BEGIN HIDDEN TESTS", "looks like a marker"),
        ("### BEGIN HIDDEN TESTS", "### Begin hidden tests", "looks like a marker"),
        ("### END HIDDEN TESTS", "### END HIDDEN TEST", "looks like a marker"),
        ("### BEGIN HIDDEN TESTS", "# HIDDEN TESTS", "looks like a marker"),
        ("### BEGIN SOLUTION", "### BEGIN SOLUTIONS", "looks like a marker"),
        ("### END HIDDEN TESTS\n", "", "never ends its HIDDEN TESTS"),
        ("### BEGIN HIDDEN TESTS\n", "", "without its partner"),
        ("    ### END SOLUTION\n", "", "never ends its SOLUTION"),
        (":check: double-basic", ":answer: double-basic", "has hidden tests but is no check"),
        (":check: double-basic", ":check: double", "two cells are called double"),
        (":check: double-basic", ":chekc: double-basic", "metadata"),
        ('Task(double, "double(x)", read="nowhere").gives(4', 'Task(triple, "", read="").gives(4', "uses ['triple']"),
        ("### BEGIN HIDDEN TESTS\n", "if True:\n### BEGIN HIDDEN TESTS\n", "stand alone"),
    ],
)
def test_a_source_that_would_leak_or_could_not_be_graded_is_refused(tmp_path, old, new, complaint):
    assert old in MINI
    text = tmp_path / "mini.md"
    text.write_text(MINI.replace(old, new, 1))
    with pytest.raises(SourceError, match=re.escape(complaint)):
        build_solution(text)


def test_a_good_source_is_released_the_same_way_each_time(tmp_path):
    text = tmp_path / "mini.md"
    text.write_text(MINI)
    first, second = (make_release(build_solution(text), "mini") for _ in range(2))
    assert nbformat.writes(first) == nbformat.writes(second)
    assert "gives(3" in first.cells[1].source
    assert "gives(4" not in nbformat.writes(first)
    assert "return 2" not in nbformat.writes(first)
    assert first.cells[1].metadata.servinglab.hidden == 1


def test_a_text_left_in_a_released_folder_is_refused(tmp_path):
    (tmp_path / "solutions" / "mini").mkdir(parents=True)
    (tmp_path / "solutions" / "mini.md").write_text(MINI)
    (tmp_path / "solutions" / "mini" / "answers.md").write_text("6")
    with pytest.raises(SourceError, match="would be released"):
        build(tmp_path, ["mini"])
