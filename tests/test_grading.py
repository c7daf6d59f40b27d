"""Grading: reports, messages, bad submissions, tampering, the gradebook and the two command lines."""

from __future__ import annotations

import copy
import csv
import gc
import html
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest
from servinglab.grading import Limits, SandboxError, check_main, grade_main, grade_one
from servinglab.grading.build import build, build_solution, make_release
from servinglab.grading.checks import CheckFailed, Task, Unanswered, hidden, is_number, plain, same
from servinglab.grading.grade import CellReport, Report, check_functions
from servinglab.grading.gradebook import SetupError, grade_folder
from servinglab.grading.notebooks import NotebookError, grade_id, notes, read_notebook, restore
from servinglab.grading.submissions import find_submissions

QUICK = Limits(cell_s=4, check_s=3, total_s=60)

# a hidden input, a hidden answer and a hidden remark that must never be seen
SECRETS = ("731.25", "1462.5", "a remark in the hidden lines")

MINI = f"""---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# Mini

```{{code-cell}} python
:given: setup
FACTOR = 2
```

```{{code-cell}} python
:answer: double
def double(x):
    ### BEGIN SOLUTION
    return FACTOR * x
    ### END SOLUTION
```

```{{code-cell}} python
:check: double-basic
from servinglab.grading.checks import Task

task = Task(double, "double(x)", read="page 1")
task.gives(3, want=6, case="three", cause="twice x", likely=[(9, "this is the square")])
### BEGIN HIDDEN TESTS
# {SECRETS[2]}
task.gives({SECRETS[0]}, want={SECRETS[1]}, case="a larger number", cause="twice x, whatever x is")
### END HIDDEN TESTS
```

```{{code-cell}} python
:answer: total
def total(values):
    ### BEGIN SOLUTION
    return sum(values)
    ### END SOLUTION
```

```{{code-cell}} python
:check: total-basic
from servinglab.grading.checks import Task

task = Task(total, "total(values)", read="page 2")
task.gives([1, 2, 3.5], want=6.5, case="a short list", cause="add them all")
### BEGIN HIDDEN TESTS
task.gives([], want=0, case="an empty list", cause="nothing adds up to zero")
### END HIDDEN TESTS
```
"""


@pytest.fixture(scope="session")
def course(tmp_path_factory) -> Path:
    """A course with one small assignment."""
    root = tmp_path_factory.mktemp("course")
    (root / "solutions").mkdir()
    (root / "solutions" / "mini.md").write_text(MINI)
    build(root)
    return root


@pytest.fixture(scope="session")
def official(course) -> nbformat.NotebookNode:
    return read_notebook(course / "solutions" / "mini" / "mini.ipynb")


@pytest.fixture(scope="session")
def released(course) -> nbformat.NotebookNode:
    return read_notebook(course / "exercises" / "mini" / "mini.ipynb")


RIGHT = {"double": "def double(x):\n    return FACTOR * x", "total": "def total(values):\n    return sum(values)"}


def answered(released, *, before: str = "", after: str = "", **answers: str) -> nbformat.NotebookNode:
    """The released notebook with answers filled in, right ones by default, and cells before and after."""
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        name = grade_id(cell)
        if name in RIGHT:
            cell.source = answers.get(name, RIGHT[name])
    for source, at in ((before, 1), (after, len(notebook.cells) + 1)):
        if source:
            notebook.cells.insert(at, nbformat.v4.new_code_cell(source, id=f"own-{at}"))
    return notebook


def points(report) -> dict[str, float]:
    return {cell.grade_id: cell.points for cell in report.cells}


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def cell(notebook, name):
    return next(one for one in notebook.cells if grade_id(one) == name)


# ---- one notebook ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_failed_check_says_case_answer_expectation_cause_and_place(released, official, bwrap):
    report = grade_one(
        answered(released, double="def double(x):\n    print('noise')\n    return x * x"), source=official, limits=QUICK
    )
    assert points(report) == {"double-basic": 0, "total-basic": 1}
    assert report.cells[0].message.splitlines() == [
        "case:      three: double(3)",
        "came back: 9",
        "expected:  6",
        "likely:    this is the square",
        "read:      page 1",
    ]
    assert not report.passed
    assert report.isolated
    assert report.score == 1
    assert report.max_score == 2
    assert "✗ double-basic" in str(report)
    assert report.problems == ()


@pytest.mark.slow
def test_a_failed_hidden_check_keeps_its_secrets(released, official, bwrap):
    spy = "def double(x):\n    if x == 3:\n        return 6\n    raise ValueError(f'the input was {x}')"
    report = grade_one(answered(released, double=spy), source=official, limits=QUICK)
    message = report.cells[0].message
    assert "a larger number" in message
    assert "an error (ValueError)" in message
    assert "twice x, whatever x is" in message
    assert "page 1" in message
    assert not any(secret in message for secret in SECRETS)
    shown = nbformat.writes(report.notebook)
    outputs = json.dumps([one.get("outputs", []) for one in report.notebook.cells])
    assert not any(secret in outputs for secret in SECRETS)
    assert SECRETS[0] in shown  # the teacher's copy of the check cell itself has it


SPY = """
import builtins, gc, os, sys, threading
needle = "".join(["731", ".", "25"])
remark = " ".join(["remark", "in", "the", "hidden"])

def search():
    found = []
    for root in ("/proc", "/scratch", "/submission", "/work", "/tmp", "/root", "/home", "/etc", "/dev", "/run", "/var"):
        for folder, folders, files in os.walk(root):
            if "site-packages" in folder or "/lib/python" in folder or "/task/" in folder or "/map_files" in folder:
                folders[:] = []
                continue
            for name in files:
                path = os.path.join(folder, name)
                try:
                    if os.path.isfile(path) and os.path.getsize(path) < 2**20:
                        with open(path, "rb") as file:
                            data = file.read(2**20)
                        if needle.encode() in data or remark.encode() in data:
                            found.append(path)
                except OSError:
                    pass
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) < os.getpid():
            try:
                if memory_has_the_remark(pid):
                    found.append(f"memory of {pid}")
            except OSError:
                pass
    return found

def memory_has_the_remark(pid="self"):
    hits = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for row in maps:
            span, rights = row.split()[:2]
            if not rights.startswith("rw") or "[v" in row:
                continue
            low, high = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(low)
                data = memory.read(high - low)
            except (OSError, ValueError):
                continue
            hits += data.count(b"a " + remark.encode())
    return hits
"""


@pytest.mark.slow
def test_a_submission_finds_no_hidden_test_anywhere(course, released, official, bwrap, tmp_path):
    """It searches files, other processes, its own memory (also while a hidden check calls it) and IPython's history."""
    (tmp_path / "data.txt").write_text("an input that came along")
    shutil.copy(course / "solutions" / "mini" / "mini.ipynb", tmp_path / "neighbour.ipynb")
    spying = (
        "def double(x):\n"
        "    if needle in str(x) and (search() or memory_has_the_remark()):\n"
        "        return -1\n"
        "    return FACTOR * x"
    )
    after = (
        "print('files', search())\n"
        "print('memory', memory_has_the_remark())\n"
        "print('history', [text for text in get_ipython().user_ns.get('In', []) if needle in text])\n"
        "print('seen', os.listdir('.'), sorted(os.listdir('/')))"
    )
    report = grade_one(
        answered(released, before=SPY, after=after, double=spying),
        source=official,
        folder=tmp_path,
        limits=Limits(cell_s=30, check_s=30, total_s=120),
    )
    said = "".join(output.get("text", "") for one in report.notebook.cells for output in one.get("outputs", []))
    assert "files []" in said
    assert "memory 0" in said
    assert "history []" in said
    assert "seen ['data.txt']" in said
    assert "neighbour" not in said
    assert points(report) == {"double-basic": 1, "total-basic": 1}


REMEMBER = "kept = []\ndef double(x):\n    kept.append(x)\n    return FACTOR * x"
# by the frames of its callers to the worker's own table of lines: without them it can't make copies of itself
TAKE_OVER = """
import sys
def callers():
    depth = 0
    while True:
        try:
            yield sys._getframe(depth := depth + 1)
        except ValueError:
            return
for frame in callers():
    if frame.f_code.co_name == "main" and "lines" in frame.f_locals:
        frame.f_locals["lines"].clear()
"""


def outputs_of(report) -> str:
    return json.dumps([one.get("outputs", []) for one in report.notebook.cells])


@pytest.mark.slow
def test_who_takes_the_worker_over_is_asked_no_hidden_test_in_the_notebook_itself(released, official, bwrap):
    report = grade_one(
        answered(released, before=TAKE_OVER, double=REMEMBER, after="print('kept', kept)"),
        source=official,
        limits=QUICK,
    )
    assert "kept []" in outputs_of(report)
    assert not any(secret in outputs_of(report) + str(report) for secret in SECRETS)
    assert report.score == 0
    assert "it made no copy of itself for the check" in str(report)


@pytest.mark.slow
def test_without_copies_hidden_tests_come_after_the_last_cell_too(released, official, monkeypatch):
    """As on macOS and Windows, where the notebook's own process answers: its later cells have run by then."""
    from servinglab.grading import grade, sandbox

    monkeypatch.setattr(sandbox, "CAN_FORK", False)
    restored, _ = restore(answered(released, double=REMEMBER, after="print('kept', kept)"), official)
    reports, problems = grade.run_notebook(restored, None, False, QUICK, [])
    assert [report.passed for report in reports.values()] == [True, True]
    assert problems == []
    assert "kept [3, 3]" in json.dumps([one.get("outputs", []) for one in restored.cells])


END_ALL = """
import os, time
def double(x):
    if x WHEN:
        os.kill(os.getppid(), 9)
        time.sleep(9)
    return FACTOR * x
"""


@pytest.mark.slow
def test_nothing_runs_again_for_its_outputs_once_a_hidden_test_ran(released, official, bwrap):
    """What it could then print of clocks, limits and times would be a way out for what the hidden test asked."""
    look = "import resource\nprint('limits', *[resource.getrlimit(kind)[0] for kind in range(16)])"
    calm = grade_one(answered(released, after=look), source=official, limits=QUICK)
    report = grade_one(
        answered(released, double=END_ALL.replace("WHEN", "!= 3"), after=look), source=official, limits=QUICK
    )
    assert report.score == 0
    assert "no answer: the process ended" in report.cells[0].message
    assert report.problems == (
        "the hidden tests ended early: its process ended",
        "double: no answer: the process ended (double-basic)",
        "total: no answer: the process ended (total-basic)",
        *[problem for problem in report.problems if problem.startswith("note:")],
    )
    # the same end in a visible test starts the notebook again, without that test, and with the same limits
    again = grade_one(
        answered(released, double=END_ALL.replace("WHEN", "== 3"), after=look), source=official, limits=QUICK
    )
    assert points(again) == {"double-basic": 0, "total-basic": 1}
    assert any("(double-basic) was left out: its process ended" in problem for problem in again.problems)
    limits = [re.search(r"limits [-0-9 ]+", outputs_of(one)).group() for one in (calm, report, again)]
    assert limits[0] == limits[1] == limits[2]


CHOSEN = [
    "raise ValueError(f'the input was {x}')",
    "raise NameError(f'the input was {x}', name=f'the input was {x}')",
    "raise KeyError(f'the input was {x}')",
    "raise NotImplementedError(f'the input was {x}')",
    "raise type(f'input_{str(x).replace(chr(46), chr(95))}', (Exception,), {})",
    "return f'the input was {x}'",
    "return {f'the input was {x}': x}",
    "return [x, f'the input was {x}']",
    "return type(f'input_{str(x).replace(chr(46), chr(95))}', (), {})()",
    "return [type(f'input_{str(x).replace(chr(46), chr(95))}', (), {})()]",
    "exec(f'raise ValueError', {'__name__': f'input {x}'})",
]


USES = ["task.gives(731.25, want=1, case='a', cause='b')", "{}[f(731.25)]", "[][f(731.25)]", "int(f(731.25))"]


@pytest.mark.parametrize("use", USES)
@pytest.mark.slow
def test_no_word_of_a_submission_is_in_the_message_of_a_hidden_test(use, bwrap):
    """Whatever it answers or raises, and whatever the hidden line does with it."""
    from servinglab.grading.grade import run_part
    from servinglab.grading.sandbox import Sandbox

    source = f"from servinglab.grading.checks import Task\ntask = Task(f, 'f(x)', read='page 1')\n{use}"
    with Sandbox(None, isolate=True, limits=QUICK, checks=1) as box:
        for number, line in enumerate(CHOSEN):
            box.run(f"def f{number}(x):\n    {line}")
        calls = box.open_check(0)
        for number in range(len(CHOSEN)):
            message = run_part(source, lambda name, number=number: calls.name(f"f{number}"), {}, True)
            assert message
            assert "731" not in message
            assert "input" not in message
        box.end_check(calls)


def test_the_memory_search_of_this_suite_would_find_a_hidden_test_that_was_there(bwrap):
    from servinglab.grading.sandbox import Sandbox

    with Sandbox(None, isolate=True, limits=Limits(cell_s=30), checks=0) as box:
        box.run(SPY)
        box.run("kept = '# ' + 'a ' + remark + ' lines'")
        reply = box.run("print(memory_has_the_remark() > 0)")
    assert reply["outputs"][0]["text"] == "True\n"


TRICKS = {
    "equals everything": "class Yes(float):\n    def __eq__(self, other): return True\n    __hash__ = float.__hash__\n"
    "def double(x): return Yes(0)",
    "patches the checks": "import servinglab.grading.checks as c\nc.same = lambda *a, **k: True\n"
    "c.Task.gives = lambda *a, **k: None\nc.Task.answer = lambda *a, **k: 6\nimport numpy.testing\n"
    "numpy.testing.assert_allclose = lambda *a, **k: None\ndef double(x): return 0",
    "patches builtins": "import builtins\nclass Quiet(BaseException):\n    def __new__(cls, *a): raise SystemExit(0)\n"
    "builtins.AssertionError = Quiet\nbuiltins.isinstance = lambda *a: True\nbuiltins.abs = lambda x: 0\n"
    "def double(x): return 0",
    "patches IPython": "ip = get_ipython()\nip.input_transformers_cleanup.append(lambda lines: [])\n"
    "ip.showtraceback = lambda *a, **k: None\nip.run_cell = lambda *a, **k: None\n"
    "ip.set_custom_exc((Exception,), lambda *a, **k: None)\ndef double(x): return 0",
    "traces": "import sys, threading\nsys.settrace(lambda *a: None)\ndef double(x): return 0",
    "leaves early": "import os\ndef double(x): os._exit(0)",
    "redefines the helpers": "class Task:\n    def __init__(self, *a, **k): pass\n    def gives(self, *a, **k): pass\n"
    "task = Task()\ndef double(x): return 0",
    "takes the check for its own": "def double(x):\n    import sys\n    frame = sys._getframe()\n"
    "    while frame:\n        if 'want' in frame.f_locals: return frame.f_locals['want']\n"
    "        frame = frame.f_back\n"
    "    return 0",
    "answers with an error that says all is well": "class Passed(AssertionError): pass\n"
    "def double(x): raise Passed('passed')",
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.slow
def test_a_trick_wins_no_point_and_costs_only_its_own(trick, released, official, bwrap):
    """Every trick stands in for a wrong answer to `double`; `total` is right throughout."""
    report = grade_one(answered(released, double=TRICKS[trick]), source=official, limits=QUICK)
    assert points(report)["double-basic"] == 0
    if trick not in ("patches IPython", "patches builtins"):  # these two break their own notebook
        assert points(report)["total-basic"] == 1


def test_tricks_are_noted_for_the_teacher(released, official, bwrap):
    report = grade_one(
        answered(released, before="import builtins, sys\nsys.settrace(None)\nfrom servinglab.theory import pot_rate"),
        source=official,
        limits=QUICK,
    )
    noted = [problem for problem in report.problems if problem.startswith("note:")]
    assert [re.search(r"uses (\S+?),", note).group(1) for note in noted] == [
        "servinglab.theory",
        "builtins",
        "sys.settrace",
    ]


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        (["import servinglab as sl", "def f(B):\n    return sl.theory.pot_rate(B, 1, 1)"], ["2 servinglab.theory"]),
        (["def f(B):\n    return sl.simulate(B)", "import servinglab as sl"], ["1 servinglab.simulate"]),
        (["from servinglab import theory as t, reference\nt.mm1"], ["1 servinglab.theory", "1 servinglab.reference"]),
        (["from servinglab.metrics.percentiles import percentile"], ["1 servinglab.metrics"]),
        (["import os as o\no.fork()", "import numpy as np\nnp.maximum(1, 2)"], ["1 os.fork"]),
        (["import servinglab as sl\nsl.AffineStep(1, 1)", "theory = 3"], []),
        (["broken (", "import gc"], ["2 gc"]),
        (["%matplotlib inline\nimport gc", "!ls\nif True:\n    %time 1\nimport ctypes"], ["1 gc", "2 ctypes"]),
        (["%%time\nimport gc", "x = !ls\ny = %pwd\ngc?\n?gc\nimport socket"], ["1 gc", "2 socket"]),
        (["x = 7 \\\n  % 4\nimport gc"], ["1 gc"]),
    ],
)
def test_another_name_hides_nothing_from_the_teacher(cells, noted):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    assert [re.sub(r"note: cell (\d+) uses (\S+?),.*", r"\1 \2", note) for note in notes(notebook)] == noted


@pytest.mark.parametrize(
    "source",
    [
        "-" * 90_000 + "1",
        "(" * 90_000,
        "1+" * 40_000 + "1",
        "not " * 20_000 + "1",
        "a" + "\N{COMBINING ACUTE ACCENT}\N{COMBINING DOT BELOW}" * 40_000 + " = 1",
        "x" + ".a" * 900,
        "\0",
        "import gc\n" * 30_000,
    ],
    ids=["minus", "brackets", "sum", "not", "accents", "dots", "nothing", "long"],
)
def test_looking_for_the_library_takes_no_time_or_memory_worth_naming(source):
    """Each of these took minutes, or ended the grader. The last one is too long to be looked through, and says so."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(one) for one in (source, source, source, "import gc")]
    )
    found = notes(notebook)
    assert found[-1] == "note: cell 4 uses gc, which no solution needs"
    too_long = [f"note: cell {number} is too long to be looked through" for number in (1, 2, 3)]
    assert found[:-1] == (too_long if "gc" in source else [])


@pytest.mark.slow
def test_notebooks_can_be_looked_through_side_by_side():
    """Python 3.11 fails with a SystemError when a thread takes over while another one's tree is made."""

    class Noisy:
        def __init__(self):
            self.me = self

        def __del__(self):
            sum(range(50))

    def look(_):
        for _ in range(50):
            Noisy()
        return len(notes(notebook))

    lines = "".join(f"def f{k}(x):\n    return [x + {k} for y in range(3) if y]\n" for k in range(200))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(f"{lines}import gc")])
    before = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(look, range(40))) == {1}
    finally:
        sys.setswitchinterval(before[0])
        gc.set_threshold(*before[1])


def test_shadowing_modules_beside_the_notebook_do_not_reach_the_checks(released, official, bwrap, tmp_path):
    for name in ("servinglab.py", "numpy.py", "json.py", "random.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise RuntimeError('shadowed')\n")
    report = grade_one(answered(released), source=official, folder=tmp_path, limits=QUICK)
    assert report.score == 2


@pytest.mark.slow
def test_a_loop_a_crash_and_a_broken_helper_cost_what_they_touch(released, official, bwrap, tmp_path):
    (tmp_path / "helper.py").write_text("def broken(:\n")
    report = grade_one(
        answered(
            released,
            before="import helper",
            double="def double(x):\n    while True:\n        pass",
            after="import os\nos._exit(1)",
        ),
        source=official,
        folder=tmp_path,
        limits=QUICK,
    )
    assert points(report) == {"double-basic": 0, "total-basic": 1}
    assert "no answer in time" in report.cells[0].message
    assert any("SyntaxError" in problem for problem in report.problems)
    assert any("was left out" in problem and "ended" in problem for problem in report.problems)


@pytest.mark.slow
def test_a_function_that_never_answers_leaves_time_for_the_other_tasks(repo, bwrap):
    """Six checks ask it; after two without an answer in time the rest aren't tried."""
    official = read_notebook(repo / "solutions" / "01_one_pot" / "01_one_pot.ipynb")
    notebook = copy.deepcopy(official)
    cell(notebook, "serve_static").source = "def serve_static(*arguments):\n    while True:\n        pass"
    report = grade_one(notebook, source=official, limits=Limits(cell_s=10, check_s=3, total_s=120))
    said = {one.grade_id: one.message for one in report.cells if one.task == "serve_static"}
    assert len(said) == 6
    assert ["no answer in time" in message for message in said.values()] == [True] * 6
    assert [message.startswith("not run: 2 checks") for message in said.values()] == [False] * 2 + [True] * 4
    assert report.score == report.max_score - 6
    (why,) = [problem for problem in report.problems if "no answer in time" in problem]
    asked = [name for name, message in said.items() if message.startswith("case")]
    assert why == f"serve_static: no answer in time ({', '.join(asked)}); 4 more of its checks were not run"


@pytest.mark.slow
def test_cells_that_use_up_the_notebooks_time_cost_what_comes_after_them(released, official, bwrap):
    endless = "while True: pass"
    late = answered(released)
    for number in range(6):
        late.cells.append(nbformat.v4.new_code_cell(endless, id=f"late-{number}"))
    report = grade_one(late, source=official, limits=Limits(cell_s=2, check_s=2, total_s=7))
    assert report.score == 2
    assert any("not run: the notebook's 7 s were used up" in problem for problem in report.problems)

    early = answered(released)
    at = early.cells.index(cell(early, "total"))
    for number in range(6):
        early.cells.insert(at, nbformat.v4.new_code_cell(endless, id=f"early-{number}"))
    report = grade_one(early, source=official, limits=Limits(cell_s=2, check_s=2, total_s=7))
    assert points(report) == {"double-basic": 1, "total-basic": 0}
    assert report.cells[1].outcome == "not run"
    assert "the notebook's 7 s were used up" in report.cells[1].message
    assert sum("the notebook's 7 s were used up" in problem for problem in report.problems) == 1


@pytest.mark.slow
def test_hidden_tests_have_a_time_in_all_as_well(released, official, bwrap):
    endless = "def double(x):\n    while x != 3:\n        pass\n    return 6"
    report = grade_one(answered(released, double=endless), source=official, limits=Limits(check_s=9, total_s=3))
    assert "no answer in time" in report.cells[0].message
    assert report.cells[1].message == "not run: the 3 s for all hidden tests were used up"
    assert report.problems == ("double: no answer in time (double-basic)",)


@pytest.mark.parametrize(
    ("use", "said"),
    [("[0] * double(10**9)", "MemoryError"), ("for _ in range(double(10**12)):\n    pass", "took too long")],
    ids=["memory", "time"],
)
@pytest.mark.slow
def test_an_answer_that_a_check_chokes_on_costs_that_check_alone(official, released, bwrap, monkeypatch, use, said):
    greedy = copy.deepcopy(official)
    cell(greedy, "double-basic").source = use
    report = grade_one(answered(released), source=greedy, limits=Limits(cell_s=4, check_s=1, total_s=60))
    assert points(report) == {"double-basic": 0, "total-basic": 1}
    assert said in report.cells[0].message


@pytest.mark.slow
def test_a_check_that_is_late_in_two_runs_of_a_notebook_is_late_once(released, official, bwrap):
    """A cell that ends its process starts the notebook again; the task's other checks must still be asked."""
    twice = copy.deepcopy(official)
    for name in ("one", "two"):
        more = copy.deepcopy(cell(twice, "double-basic"))
        more.metadata.nbgrader.grade_id = f"double-{name}"
        more["id"] = f"double-{name}"
        more.source = more.source.replace("task.gives(3, want=6", f"task.gives({4 if name == 'one' else 5}, want=0")
        twice.cells.append(more)
    loop = "def double(x):\n    while x == 3:\n        pass\n    return 2 * x"
    notebook = copy.deepcopy(twice)
    cell(notebook, "double").source = loop
    notebook.cells.append(nbformat.v4.new_code_cell("import os\nos._exit(1)", id="ends"))
    report = grade_one(notebook, source=twice, limits=QUICK)
    messages = {one.grade_id: one.message for one in report.cells}
    assert "no answer in time" in messages["double-basic"]
    assert "came back: 8" in messages["double-one"]
    assert "came back: 10" in messages["double-two"]


@pytest.mark.slow
def test_a_notebook_that_never_gives_up_is_given_up(released, official):
    killer = answered(released, before="import os\nos._exit(1)", after="import os\nos._exit(1)")
    for number in range(4):
        killer.cells.append(nbformat.v4.new_code_cell("import os\nos._exit(2)", id=f"more-{number}"))
    report = grade_one(killer, source=official, isolate=False, limits=QUICK)
    assert {one.outcome for one in report.cells} == {"not run"}
    assert report.score == 0
    assert any("ended the run" in problem for problem in report.problems)


@pytest.mark.slow
def test_a_missing_answer_is_named(released, official):
    notebook = answered(released)
    notebook.cells = [one for one in notebook.cells if grade_id(one) != "double"]
    report = grade_one(notebook, source=official, isolate=False, limits=QUICK)
    assert "double is not defined here" in report.cells[0].message
    assert report.problems == ("answer cell double is missing",)
    assert report.cells[1].passed


@pytest.mark.slow
def test_numpy_answers_are_accepted(released, official):
    report = grade_one(
        answered(
            released,
            before="import numpy as np",
            double="def double(x):\n    return np.float64(2) * x",
            total="def total(values):\n    return np.sum(values)",
        ),
        source=official,
        isolate=False,
        limits=QUICK,
    )
    assert report.passed


LIAR = """
import base64, json, os, struct
def say(reply):
    body = json.dumps(reply).encode()
    for fd in (3, 4, 5, 6):
        try:
            os.write(fd, struct.pack(">I", len(body)) + body)
        except OSError:
            pass
say({"outputs": [OUTPUT], "error": {"name": "Odd", "text": "two\\nlines \\x1b[31m \\ud800", "place": ""}})
os._exit(0)
"""


@pytest.mark.parametrize(
    "output",
    [
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<script>alert(5)</script>"}},
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": '"><script>alert(5)</script>'}},
        {"output_type": "stream", "name": "stdout", "text": ["<script>alert(5)</script>"]},
        {"output_type": "error", "ename": "alert(5)"},
        "alert(5)",
    ],
    ids=["html", "image", "list", "error", "text"],
)
@pytest.mark.slow
def test_outputs_forged_past_the_workers_filters_are_dropped(released, official, output):
    forged = answered(released, after=LIAR.replace("OUTPUT", repr(output)))
    report = grade_one(forged, source=official, isolate=False, limits=QUICK)
    assert "alert(5)" not in json.dumps([one.get("outputs", []) for one in report.notebook.cells])
    assert any("sent an output that is none" in problem or "left out" in problem for problem in report.problems)
    assert all(problem.isprintable() for problem in report.problems)


@pytest.mark.slow
def test_one_odd_character_stops_nobody(course, released, tmp_path, bwrap):
    """Text that can't be written as UTF-8, colours and line breaks, in code, in messages and in a file's name."""
    odd = "raise ValueError('a lone half: ' + chr(0xD800) + chr(27) + '[31m' + chr(10) + 'zoe  mini  2 of 2')"
    hand_in(tmp_path / "in", "ada", answered(released, after=odd))
    path = hand_in(tmp_path / "in", "bob", answered(released), "a\x1bb.ipynb")
    (path.parent / "plain.txt").write_text("x")
    raw = hand_in(tmp_path / "in", "cy", answered(released, after="MARK"))
    raw.write_text(raw.read_text().replace("MARK", "'\\ud800'"))
    hand_in(tmp_path / "in", "dee", answered(released))
    lines: list[str] = []
    results = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lines.append)
    assert [one.student for one in results] == ["ada", "bob", "cy", "dee"]
    assert [one.score for one in results if one.student != "cy"] == [2, 2, 2]
    assert not any("\x1b" in line or "\nzoe" in line for line in lines)
    assert "surrogates not allowed" in " ".join(results[2].problems)
    assert len(table(tmp_path / "out" / "grades.csv")) == 4


def test_a_broken_grader_says_so_and_is_no_zero(released, official, monkeypatch, bwrap):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxError, match="bubblewrap"):
        grade_one(answered(released), source=official)


# ---- putting the released text back ------------------------------------------------------------------------------


def test_an_edited_check_is_put_back_and_reported(released, official):
    notebook = answered(released, double="def double(x):\n    return 0")
    cell(notebook, "double-basic").source = "pass"
    cell(notebook, "setup").source = "FACTOR = 0"
    cell(notebook, "total-basic").metadata.nbgrader.points = 100
    restored, problems = restore(notebook, official)
    assert cell(restored, "double-basic").source == cell(official, "double-basic").source
    assert cell(restored, "setup").source == "FACTOR = 2"
    assert cell(restored, "total-basic").metadata.nbgrader.points == 1
    assert problems == [f"cell {name} was edited: its released text is put back" for name in ("setup", "double-basic")]


def test_a_deleted_check_is_put_back_in_its_place(released, official):
    notebook = answered(released)
    notebook.cells = [one for one in notebook.cells if grade_id(one) not in ("setup", "double-basic")]
    restored, problems = restore(notebook, official)
    names = [grade_id(one) for one in restored.cells if grade_id(one)]
    assert names == ["setup", "double", "double-basic", "total", "total-basic"]
    assert problems == [f"cell {name} was missing: it is put back" for name in ("setup", "double-basic")]


@pytest.mark.slow
def test_of_a_copied_cell_the_last_one_counts(released, official):
    notebook = answered(released)
    for name in ("double", "double-basic"):
        notebook.cells.append(copy.deepcopy(cell(notebook, name)))
    notebook.cells[-2].source = "def double(x):\n    return 0"
    restored, problems = restore(notebook, official)
    assert [grade_id(one) for one in restored.cells].count("double-basic") == 1
    assert grade_id(restored.cells[-1]) == "double-basic"
    assert problems == [
        f"cell {name} is there more than once: the last one counts" for name in ("double", "double-basic")
    ]
    assert len({one["id"] for one in restored.cells}) == len(restored.cells)
    report = grade_one(notebook, source=official, isolate=False, limits=QUICK)
    assert points(report) == {"double-basic": 0, "total-basic": 1}


@pytest.mark.slow
def test_cells_that_claim_points_of_their_own_get_none(released, official):
    notebook = answered(released)
    own = nbformat.v4.new_code_cell("1", id="own")
    own.metadata["nbgrader"] = {**cell(notebook, "total-basic").metadata.nbgrader, "grade_id": "bonus", "points": 50}
    notebook.cells.append(own)
    report = grade_one(notebook, source=official, isolate=False, limits=QUICK)
    assert points(report) == {"double-basic": 1, "total-basic": 1}
    assert "cell bonus is not part of this assignment: it is run but not graded" in report.problems


@pytest.mark.slow
def test_an_answer_turned_into_text_is_read_as_code(released, official):
    notebook = answered(released)
    number = notebook.cells.index(cell(notebook, "double"))
    text = nbformat.v4.new_markdown_cell(notebook.cells[number].source, id="double")
    text.metadata = notebook.cells[number].metadata
    notebook.cells[number] = text
    report = grade_one(notebook, source=official, isolate=False, limits=QUICK)
    assert report.score == 2
    assert any("turned into a markdown cell" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"{", "not a notebook"),
        (b"[]", "not a notebook"),
        (b"{}", "not a"),
        (b'{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "not a"),
        (b"[" * 200_000, "not a notebook"),
        (b'{"cells": [{"cell_type": "code"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "not a"),
        (b"x" * (20 * 2**20 + 1), "the limit is"),
        (b'{"cells": [], "metadata": {"a": [' + b"[]," * 10**6 + b"1]}}", "1,000,004 lists and tables"),
        (b'{"cells": [' + b"{}," * 20_000 + b"{}]}", "20,001 cells and outputs; the limit is"),
        (b'{"cells": [{"outputs": [' + b"1," * 20_000 + b"1]}]}", "20,002 cells and outputs; the limit is"),
        (b'{"cells": [], "metadata": {"a": ' + b"9" * 10**5 + b"}}", "not a notebook"),
        (b'{"cells": [], "metadata": {}, "nbformat": 1e999, "nbformat_minor": 5}', "not a"),
        (b'{"cells": [], "metadata": {}, "nbformat": NaN, "nbformat_minor": 5}', "not a"),
    ],
    ids=[
        *("encoding", "JSON", "list", "empty", "cells", "deep", "half a cell", "huge", "brackets", "many cells"),
        *("many outputs", "a long number", "endless", "no number"),
    ],
)
def test_a_file_that_is_no_notebook_is_named_with_its_cause(tmp_path, data, complaint):
    path = tmp_path / "work.ipynb"
    path.write_bytes(data)
    with pytest.raises(NotebookError, match=f"work.ipynb .*{complaint}"):
        read_notebook(path)


# ---- the learner -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_says_what_passes_and_how_many_hidden_checks_remain(course, released, tmp_path, capsys):
    path = tmp_path / "mini.ipynb"
    nbformat.write(answered(released), path)
    assert check_main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "✓ double-basic" in said
    assert "2 of 2 points" in said
    assert "2 hidden checks remain" in said

    assert check_main([str(course / "exercises" / "mini")]) == 1
    said = capsys.readouterr().out
    assert said.count("not filled yet") == 2
    assert "0 of 2 points" in said


@pytest.mark.slow
def test_check_counts_no_edited_check(released, tmp_path, capsys):
    notebook = answered(released, double="def double(x):\n    return 0")
    cell(notebook, "double-basic").source = "pass"
    nbformat.write(notebook, tmp_path / "mini.ipynb")
    assert check_main([str(tmp_path / "mini.ipynb")]) == 1
    assert "this check's text was edited" in capsys.readouterr().out


def test_check_names_a_file_it_cannot_read(tmp_path, capsys):
    (tmp_path / "bad.ipynb").write_text("{")
    assert check_main([str(tmp_path / "bad.ipynb"), str(tmp_path / "none.ipynb")]) == 2
    said = capsys.readouterr().err
    assert "bad.ipynb is not a notebook" in said
    assert "none.ipynb can't be read" in said


@pytest.mark.parametrize("option", ["--timeout=-1", "--timeout=0", "--timeout=nan", "--timeout=inf", "--timeout=x"])
def test_a_time_limit_that_is_none_is_refused(option, capsys):
    for command in (check_main, grade_main):
        with pytest.raises(SystemExit) as end:
            command([option, "somewhere"])
        assert end.value.code == 2
        assert "argument --timeout: must be a number > 0" in capsys.readouterr().err


def test_a_longer_time_for_a_cell_is_a_longer_time_in_all(released, tmp_path, monkeypatch):
    import servinglab.grading.cli as cli

    nbformat.write(released, tmp_path / "mini.ipynb")
    given = []
    monkeypatch.setattr(cli, "grade_one", lambda path, isolate, limits: given.append(limits) or Report(()))
    for seconds in ("10", "90"):
        check_main(["--timeout", seconds, str(tmp_path / "mini.ipynb")])
    assert [(limits.cell_s, limits.check_s, limits.total_s) for limits in given] == [(10, 10, 300), (90, 90, 900)]


def test_check_of_a_notebook_without_checks_does_not_pass(tmp_path, capsys):
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "empty.ipynb")
    assert check_main([str(tmp_path / "empty.ipynb")]) == 1
    assert "holds no checks" in capsys.readouterr().out


# ---- the class ---------------------------------------------------------------------------------------------------


def hand_in(folder: Path, student: str, notebook, name: str = "mini.ipynb") -> Path:
    path = folder / student / "mini" / name
    path.parent.mkdir(parents=True)
    if isinstance(notebook, bytes):
        path.write_bytes(notebook)
    else:
        nbformat.write(notebook, path)
    return path


@pytest.fixture(scope="module")
def graded(course, released, tmp_path_factory, request):
    """One run over a class in which nearly everyone does something wrong."""
    request.getfixturevalue("bwrap")
    folder, out = tmp_path_factory.mktemp("submitted"), tmp_path_factory.mktemp("grades")
    edited, deleted, copied = answered(released), answered(released), answered(released)
    cell(edited, "double-basic").source = "pass"
    deleted.cells = [one for one in deleted.cells if grade_id(one) != "total-basic"]
    copied.cells.append(copy.deepcopy(cell(copied, "double-basic")))
    copied.cells[-1]["id"] = "the-copy"
    helper = hand_in(folder, "helper", answered(released, before="import helper"))
    (helper.parent / "helper.py").write_text("import nothing_like_this\n")
    (helper.parent / "answers").symlink_to(course / "solutions")
    hand_in(folder, "aaa-bytes", b"\xff\xfe")
    hand_in(folder, "bbb-json", b"{")
    hand_in(folder, "copied", copied)
    hand_in(folder, "crash", answered(released, before="import os\nos.kill(os.getpid(), 9)"))
    hand_in(folder, "deleted", deleted)
    hand_in(folder, "edited", edited)
    hand_in(folder, "loop", answered(released, after="while True: pass"))
    hand_in(folder, "loud", answered(released, after="for _ in range(10**6): print('x' * 50)"))
    hand_in(folder, "markup", answered(released, after="print('<script>alert(1)</script>')"))
    hand_in(folder, "renamed", answered(released), "my work (final).ipynb")
    hand_in(folder, "wrong", answered(released, double="def double(x):\n    return 6 if x == 3 else x"))
    hand_in(folder, "zz right", answered(released))
    (folder / "nothing" / "mini").mkdir(parents=True)
    scripted = answered(released)
    markup = "<script>alert(2)</script><img src=x onerror=alert(3)>[x](javascript:alert(4))"
    scripted.cells.insert(0, nbformat.v4.new_markdown_cell(markup, id="md"))
    hand_in(folder, "scripted", scripted)
    lines: list[str] = []
    results = grade_folder(folder, out, course, limits=QUICK, tell=lines.append)
    return {one.student: one for one in results}, out, lines


@pytest.mark.slow
def test_every_submission_is_graded_or_named(graded):
    results, _, lines = graded
    assert {name: (one.score, one.outcome) for name, one in results.items()} == {
        "aaa-bytes": (0, "not graded"),
        "bbb-json": (0, "not graded"),
        "copied": (2, "graded"),
        "crash": (2, "graded"),
        "deleted": (2, "graded"),
        "edited": (2, "graded"),
        "helper": (2, "graded"),
        "loop": (2, "graded"),
        "loud": (2, "graded"),
        "markup": (2, "graded"),
        "nothing": (0, "not graded"),
        "renamed": (2, "graded"),
        "scripted": (2, "graded"),
        "wrong": (1, "graded"),
        "zz_right": (2, "graded"),
    }
    assert len(lines) == len(results)


@pytest.mark.parametrize(
    ("student", "problem"),
    [
        ("aaa-bytes", "not UTF-8"),
        ("bbb-json", "not a notebook"),
        ("copied", "cell double-basic is there more than once"),
        ("crash", "was left out: its process ended"),
        ("deleted", "cell total-basic was missing"),
        ("edited", "cell double-basic was edited"),
        ("helper", "answers is a link"),
        ("helper", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("loop", "CellTimeout"),
        ("nothing", "no notebook in mini/"),
        ("renamed", "the file is called my work (final).ipynb"),
        ("zz_right", "the name 'zz right' is entered as zz_right"),
    ],
)
@pytest.mark.slow
def test_a_bad_submission_is_reported_by_name_with_its_cause(graded, student, problem):
    results, out, lines = graded
    assert any(problem in text for text in results[student].problems)
    assert any(text.startswith(student) and problem in text for text in lines)
    rows = table(out / "grades.csv")
    assert problem in next(row["problems"] for row in rows if row["student"] == student)


@pytest.mark.slow
def test_the_gradebook_of_nbgrader_holds_the_same_points(graded):
    from nbgrader.api import Gradebook

    results, out, _ = graded
    with Gradebook(f"sqlite:///{out}/gradebook.db") as book:
        kept = {
            one.student.id: (one.score, one.max_score, one.needs_manual_grade)
            for one in book.assignment_submissions("mini")
        }
    assert kept == {name: (one.score, 2, False) for name, one in results.items()}


@pytest.mark.slow
def test_the_tables_hold_a_row_for_each(graded):
    results, out, _ = graded
    rows = table(out / "grades.csv")
    assert {row["student"]: float(row["score"]) for row in rows} == {name: one.score for name, one in results.items()}
    rows = {row["student"]: row for row in table(out / "mini.csv")}
    assert rows["wrong"] == {"student": "wrong", "score": "1", "double-basic": "0", "total-basic": "1"}
    assert rows["bbb-json"]["total-basic"] == "0"


@pytest.mark.slow
def test_feedback_shows_the_hint_and_no_hidden_test(graded):
    _, out, _ = graded
    pages = sorted((out / "feedback").rglob("*.*"))
    assert len([page for page in pages if page.suffix == ".html"]) == 12
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not any(secret in text for secret in SECRETS), page
        assert "HIDDEN TESTS" not in text
        assert "an empty list" not in text
    wrong = (out / "feedback" / "wrong" / "mini" / "mini.html").read_text(encoding="utf-8")
    assert "twice x, whatever x is" in wrong
    assert "hidden tests ran here" in wrong
    assert "a number, too small" in wrong


class Scripts(HTMLParser):
    """Collects what a browser would run: the text of scripts, and attributes that are handlers or addresses."""

    def __init__(self):
        super().__init__()
        self.inside, self.found = False, []

    def handle_starttag(self, tag, attributes):
        self.inside = tag == "script"
        self.found += [value for name, value in attributes if name.startswith("on") or name in ("src", "href")]

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found.append(data)


@pytest.mark.slow
def test_feedback_runs_no_script_of_a_submission(graded):
    _, out, _ = graded
    for student in ("scripted", "markup"):
        page = (out / "feedback" / student / "mini" / "mini.html").read_text(encoding="utf-8")
        scripts = Scripts()
        scripts.feed(page)
        assert "alert(" in page
        assert not any("alert(" in (text or "") for text in scripts.found)
        assert re.search(r"<h1[^>]*>Mini", page)


@pytest.mark.slow
def test_feedback_of_a_loud_submission_is_small(graded):
    _, out, _ = graded
    quiet = (out / "feedback" / "zz_right" / "mini" / "mini.html").stat().st_size
    assert (out / "feedback" / "loud" / "mini" / "mini.html").stat().st_size < quiet + 300_000


@pytest.mark.slow
def test_feedback_leaves_out_what_would_take_too_long_to_show(course, released, tmp_path, bwrap):
    """250,000 brackets took six minutes. The assignment, its messages and all else are shown."""
    notebook = answered(released, double="def double(x):\n    return x * x", after="print('[' * 90_000)")
    for number in range(14):  # each output is cut at 100,000 characters, together they are too many
        notebook.cells.append(nbformat.v4.new_code_cell("print('y' * 90_000)", id=f"loud-{number}"))
    for number, source in enumerate(("a short text of mine", "[" * 250_000, "# a\n" * 60_000)):
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(source, id=f"text-{number}"))
    notebook.cells.append(nbformat.v4.new_code_cell("a = 1\n" * 4_000, id="code"))
    hand_in(tmp_path / "in", "ada", notebook)
    (one,) = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert one.score == 1
    page = (tmp_path / "out" / "feedback" / "ada" / "mini" / "mini.html").read_text(encoding="utf-8")
    assert len(page) < 3_000_000
    for text in (
        "a short text of mine",
        "this is the square",
        "(A text of 250,000 characters is left out of this page.)",
    ):
        assert text in page
    assert "(A text of 240,000 characters is left out of this page.)" in page
    assert "24,000 characters of code are left out of this page" in page
    assert re.search(r"\([\d,]+ characters of output are left out of this page\)", page)


@pytest.mark.slow
def test_a_feedback_page_that_takes_too_long_is_made_without_what_the_student_wrote(
    course, released, tmp_path, bwrap, monkeypatch
):
    import servinglab.grading.gradebook as gradebook

    wrong = answered(released, before="# a remark of mine\nprint('a loud word')", total="total = 3")
    for student in ("ada", "bob"):
        hand_in(tmp_path / "in", student, wrong)
    tries = iter([True, False, True, True])  # ada's page fails once, bob's twice

    def in_time(work, seconds):
        return "it took more than 60 s" if next(tries) else original(work, seconds)

    original = gradebook.in_time
    monkeypatch.setattr(gradebook, "in_time", in_time)
    ada, bob = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert (ada.score, bob.score) == (1, 1)
    page = (tmp_path / "out" / "feedback" / "ada" / "mini" / "mini.html").read_text(encoding="utf-8")
    assert "a remark of mine" not in page
    assert "a loud word" not in page
    assert "a short list" in page
    assert "characters of code are left out of this page" in page
    assert any("shows nothing that the student wrote: it took more than 60 s" in text for text in ada.problems)
    assert any("there is no feedback page: it took more than 60 s" in text for text in bob.problems)
    folder = tmp_path / "out" / "feedback" / "bob" / "mini"
    assert [path.name for path in folder.iterdir()] == ["report.txt"]


@pytest.mark.slow
def test_grading_again_changes_nothing(graded, course, released, tmp_path):
    """Into the same gradebook: a second run replaces the first one's grades."""
    _, out, _ = graded
    hand_in(tmp_path, "wrong", answered(released))
    again = grade_folder(tmp_path, out, course, limits=QUICK, tell=lambda text: None)
    assert [one.score for one in again] == [2]


@pytest.mark.slow
def test_a_flat_folder_is_read_and_brings_no_neighbours_along(course, released, tmp_path, bwrap):
    nbformat.write(answered(released, after="import os\nprint(os.listdir('.'))"), tmp_path / "ada.ipynb")
    (tmp_path / "bob.ipynb").write_text("not a notebook")
    (tmp_path / "notes.txt").write_text("about everybody")
    found = list(find_submissions(tmp_path, ["mini", "other"]))
    assert [(one.student, one.assignment, one.folder) for one in found] == [("ada", "mini", None), ("bob", "", None)]
    out = tmp_path / "out"
    assert grade_main([str(tmp_path), "--out", str(out), "--course", str(course)]) == 1
    rows = table(out / "grades.csv")
    assert [(row["student"], row["score"]) for row in rows] == [("ada", "2"), ("bob", "0")]
    assert "notes.txt" not in (out / "feedback" / "ada" / "mini" / "mini.html").read_text()


@pytest.mark.slow
def test_one_grade_for_one_student_whatever_the_names(course, released, tmp_path, bwrap):
    """Two names that the gradebook can't tell apart are two students; a second file of one student doesn't count."""
    wrong = answered(released, double="def double(x):\n    return x")
    hand_in(tmp_path, "Ada L.", wrong)
    hand_in(tmp_path, "Ada_L.", answered(released))
    nbformat.write(wrong, tmp_path / "Ada_L..ipynb")
    lines: list[str] = []
    found = grade_folder(tmp_path, tmp_path / "out", course, limits=QUICK, tell=lines.append)
    assert [(one.student, one.score, one.outcome) for one in found] == [
        ("Ada_L._2", 1, "graded"),
        ("Ada_L.", 2, "graded"),
        ("Ada_L.", 0, "not graded"),
    ]
    assert "the name 'Ada L.' is entered as Ada_L._2" in lines[0]
    assert "a second submission of Ada_L. for mini" in lines[2]
    assert "2 of 2" in (tmp_path / "out" / "feedback" / "Ada_L." / "mini" / "report.txt").read_text()
    rows = table(tmp_path / "out" / "mini.csv")
    assert [(row["student"], row["score"]) for row in rows] == [("Ada_L.", "2"), ("Ada_L._2", "1")]


@pytest.mark.slow
def test_an_interruption_keeps_the_results_so_far(course, released, tmp_path, bwrap, monkeypatch, capsys):
    import servinglab.grading.gradebook as gradebook

    for student in ("ada", "bob", "cy"):
        hand_in(tmp_path / "in", student, answered(released))
    original = gradebook.grade_one

    def impatient(notebook, **kwargs):
        if "bob" in str(kwargs.get("folder", "")):
            raise KeyboardInterrupt
        return original(notebook, **kwargs)

    monkeypatch.setattr(gradebook, "grade_one", impatient)
    assert grade_main([str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(course)]) == 130
    assert "results so far" in capsys.readouterr().err
    rows = table(tmp_path / "out" / "grades.csv")
    assert [(row["student"], row["score"]) for row in rows] == [("ada", "2")]


def test_nobody_is_graded_where_the_solution_itself_fails(course, released, tmp_path, bwrap, capsys):
    """As on a machine where the library, or a package that the checks need, is missing."""
    root = tmp_path / "course"
    shutil.copytree(course, root)
    path = root / "solutions" / "mini" / "mini.ipynb"
    path.write_text(path.read_text().replace("from servinglab.grading.checks import Task", "import a_missing_package"))
    hand_in(tmp_path / "in", "ada", answered(released))
    assert grade_main([str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(root)]) == 2
    assert "nobody is graded" in capsys.readouterr().err
    assert not (tmp_path / "out" / "grades.csv").exists()


@pytest.mark.parametrize("case", ["no folder", "empty folder", "unknown assignment"])
def test_what_cannot_be_graded_at_all_is_one_line(course, tmp_path, case):
    folder = tmp_path / ("none" if case == "no folder" else "")
    with pytest.raises(
        SetupError, match={"no folder": "no folder", "empty folder": "no submission"}.get(case, "there are: mini")
    ):
        grade_folder(folder, tmp_path / "out", course, assignment="maxi" if case == "unknown assignment" else "")


@pytest.mark.slow
def test_without_bubblewrap_a_teacher_must_say_unsafe(course, released, tmp_path, monkeypatch, capsys):
    from servinglab.grading.sandbox import isolation_problem

    hand_in(tmp_path / "in", "ada", answered(released))
    arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(course)]
    isolation_problem.cache_clear()
    monkeypatch.setenv("PATH", "")
    try:
        assert grade_main(arguments) == 2
        assert "--unsafe" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert grade_main([*arguments, "--unsafe"]) == 0
        assert "ada  mini  2 of 2" in capsys.readouterr().out
        assert check_main([str(tmp_path / "in" / "ada" / "mini" / "mini.ipynb")]) == 0
    finally:
        isolation_problem.cache_clear()


# ---- links and what else is no plain file ------------------------------------------------------------------------


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


LINKS = {
    "the student's folder": lambda folder, course: link(folder / "eve", folder / "ada"),
    "the assignment's folder": lambda folder, course: link(folder / "eve" / "mini", folder / "ada" / "mini"),
    "the solution's folder": lambda folder, course: link(folder / "eve" / "mini", course / "solutions" / "mini"),
    "the notebook": lambda folder, course: link(
        folder / "eve" / "mini" / "mini.ipynb", folder / "ada" / "mini" / "mini.ipynb"
    ),
    "a flat notebook": lambda folder, course: link(folder / "eve.ipynb", folder / "ada" / "mini" / "mini.ipynb"),
    "a notebook in the student's folder": lambda folder, course: link(
        folder / "eve" / "mini.ipynb", folder / "ada" / "mini" / "mini.ipynb"
    ),
    "a link to nothing": lambda folder, course: link(folder / "eve", folder / "nobody"),
}


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.slow
def test_a_link_is_no_submission_and_is_named(case, course, released, tmp_path, bwrap):
    """Whatever it leads to, somebody else's work or the solution, it scores nothing and shows nothing."""
    hand_in(tmp_path / "in", "ada", answered(released))
    LINKS[case](tmp_path / "in", course)
    lines: list[str] = []
    results = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lines.append)
    assert [(one.student, one.score, one.outcome) for one in results] == [
        ("ada", 2, "graded"),
        ("eve", 0, "not graded"),
    ]
    assert any("is a link" in problem for problem in results[1].problems)
    assert "is a link" in lines[1]
    assert "is a link" in table(tmp_path / "out" / "grades.csv")[1]["problems"]
    assert not list((tmp_path / "out" / "feedback" / "eve").rglob("*.html"))


@pytest.mark.slow
def test_who_also_handed_in_a_notebook_of_their_own_is_graded(course, released, tmp_path, bwrap):
    """And the link, or the empty folder, beside it is named."""
    hand_in(tmp_path, "ada", answered(released))
    link(tmp_path / "eve" / "mini", tmp_path / "ada" / "mini")
    nbformat.write(answered(released, double="def double(x):\n    return x"), tmp_path / "eve.ipynb")
    (tmp_path / "fay" / "mini").mkdir(parents=True)
    nbformat.write(answered(released), tmp_path / "fay.ipynb")
    own = hand_in(tmp_path, "gil", answered(released), "work.ipynb")
    link(own.parent / "mini.ipynb", tmp_path / "ada" / "mini" / "mini.ipynb")
    results = grade_folder(tmp_path, tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert [(one.student, one.score, one.outcome) for one in results] == [
        ("ada", 2, "graded"),
        ("eve", 1, "graded"),
        ("fay", 2, "graded"),
        ("gil", 2, "graded"),
    ]
    assert any("mini is a link" in problem for problem in results[1].problems)
    assert any("no notebook in mini/" in problem for problem in results[2].problems)
    assert any("mini.ipynb is a link" in problem for problem in results[3].problems)


@pytest.mark.slow
def test_links_beside_a_notebook_are_left_out_at_every_depth(course, released, tmp_path, bwrap):
    (tmp_path / "secret.txt").write_text("everybody's grades")
    look = "import os\nprint('seen', sorted(os.path.join(f, n) for f, _, ns in os.walk('.') for n in ns))"
    folder = hand_in(tmp_path / "in", "eve", answered(released, after=look)).parent
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "own.txt").write_text("mine")
    for name in ("data.txt", "deep/er/data.txt", "deep/er/other.ipynb", ".hidden"):
        link(folder / name, tmp_path / "secret.txt")
    link(folder / "deep" / "all", course / "solutions")
    os.mkfifo(folder / "deep" / "pipe")
    os.link(tmp_path / "secret.txt", folder / "twin.txt")
    (one,) = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert one.score == 2
    for name in ("data.txt", "deep/er/data.txt", "deep/er/other.ipynb", ".hidden", "deep/all"):
        assert f"{name} is a link: left out" in one.problems
    assert "deep/pipe is no plain file: left out" in one.problems
    assert any(problem.startswith("note: twin.txt is a hard link") for problem in one.problems)
    page = (tmp_path / "out" / "feedback" / "eve" / "mini" / "mini.html").read_text(encoding="utf-8")
    assert "seen ['./deep/own.txt', './twin.txt']" in html.unescape(page)


@pytest.mark.slow
def test_a_notebook_that_shares_its_bytes_with_another_is_noted(course, released, tmp_path, bwrap):
    path = hand_in(tmp_path, "ada", answered(released))
    os.link(path, tmp_path / "eve.ipynb")
    results = grade_folder(tmp_path, tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert [any("is a hard link" in problem for problem in one.problems) for one in results] == [True, True]


@pytest.mark.parametrize("place", ["eve.ipynb", "eve/mini/mini.ipynb"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.slow
def test_a_pipe_or_a_socket_in_place_of_a_notebook_stops_nobody(course, released, tmp_path, bwrap, place, kind):
    hand_in(tmp_path / "in", "zoe", answered(released))
    path = tmp_path / "in" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    with pytest.raises(NotebookError, match=r"is no plain file|can't be read"):
        read_notebook(path)
    results = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert [(one.student, one.outcome) for one in results] == [("eve", "not graded"), ("zoe", "graded")]
    assert any("is no plain file" in problem for problem in results[0].problems)


ODD_NAMES = [b"l\xffnk", b"l\nzoe  mini  2 of 2", b"l\x1b[31mnk", b"=cmd()", "l\u202enk".encode()]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.slow
def test_a_name_ends_no_batch_and_forges_no_line(course, released, tmp_path, bwrap, name, capsys):
    """As a student, as a linked student, as a folder, and as a file or a link beside a notebook."""
    hand_in(tmp_path / "in", "ada", answered(released))
    beside = hand_in(tmp_path / "in", "bob", answered(released)).parent
    folder = os.fsencode(tmp_path / "in")
    for at in (folder + b"/", folder + b"/cy/", os.fsencode(beside) + b"/"):
        os.makedirs(at, exist_ok=True)
        os.symlink(b"/nowhere", at + name)
        os.symlink(b"/nowhere", at + name + b".ipynb")
    Path(os.fsdecode(os.fsencode(beside) + b"/x" + name)).write_text("plain")
    whole = Path(os.fsdecode(folder + b"/x" + name)) / "mini"
    whole.mkdir(parents=True)
    nbformat.write(answered(released), whole / "mini.ipynb")
    arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(course)]
    assert grade_main(arguments) == 1
    said = capsys.readouterr().out
    assert not any(line.startswith("zoe") for line in said.splitlines())
    assert all(line.isprintable() for line in said.splitlines())
    rows = table(tmp_path / "out" / "grades.csv")
    assert {row["student"]: row["score"] for row in rows if row["outcome"] == "graded"}.keys() >= {"ada", "bob"}
    assert [row["score"] for row in rows if row["student"].startswith("x")] == ["2"]
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())


@pytest.mark.slow
def test_an_unreadable_folder_costs_its_student_alone(course, released, tmp_path, bwrap, monkeypatch):
    """The superuser, who runs some test suites, may read everything: so the refusal is made here."""
    for student in ("ada", "bob", "cy", "dee"):
        hand_in(tmp_path / "in", student, answered(released))
    (tmp_path / "in" / "dee" / "mini" / "locked").mkdir()
    shut = [tmp_path / "in" / "bob", tmp_path / "in" / "cy" / "mini", tmp_path / "in" / "dee" / "mini" / "locked"]
    original = os.scandir

    def scandir(path="."):
        if isinstance(path, str | os.PathLike) and Path(path) in shut:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    results = grade_folder(tmp_path / "in", tmp_path / "out", course, limits=QUICK, tell=lambda text: None)
    assert [(one.student, one.outcome) for one in results] == [
        ("ada", "graded"),
        ("bob", "not graded"),
        ("cy", "not graded"),
        ("dee", "graded"),
    ]
    assert results[1].problems[0] == "bob/ can't be read: Permission denied"
    assert results[2].problems[0] == "mini/ can't be read: Permission denied"
    assert results[3].problems == ("locked can't be read (Permission denied): left out",)
    shut.append(tmp_path / "in")
    with pytest.raises(SetupError, match="can't be read: Permission denied"):
        grade_folder(tmp_path / "in", tmp_path / "out", course, tell=lambda text: None)


def test_two_assignments_in_a_students_folder_are_two_submissions(released, tmp_path):
    for name in ("mini", "other"):
        path = tmp_path / "ada" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(released, path)
    found = find_submissions(tmp_path, ["mini", "other"])
    assert [(one.student, one.assignment) for one in found] == [("ada", "mini"), ("ada", "other")]


@pytest.mark.slow
def test_results_that_lie_among_the_submissions_are_none(course, released, tmp_path, bwrap):
    hand_in(tmp_path, "ada", answered(released))
    for _ in range(2):
        results = grade_folder(tmp_path, tmp_path / "grades", course, limits=QUICK, tell=lambda text: None)
        assert [one.student for one in results] == ["ada"]


def nbgrader(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """The command itself, as a teacher types it in the course's folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    line = [sys.executable, "-m", "nbgrader", *words, "mini", "--force"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path})


@pytest.mark.slow
def test_nbgrader_autograde_refuses_links_too(repo, course, released, tmp_path, bwrap):
    """It would copy what a link leads to, such as everybody's grades, and its feedback would show it."""
    root = tmp_path / "course"
    shutil.copytree(course, root)
    shutil.copy(repo / "nbgrader_config.py", root)
    assert nbgrader(root, "generate_assignment").returncode == 0
    submitted = root / "submitted"
    hand_in(submitted, "ada", answered(released))
    (submitted / "ada" / "mini" / "data.txt").write_text("mine")
    link(submitted / "bea" / "mini", submitted / "ada" / "mini")
    link(submitted / "cal", submitted / "ada")
    link(submitted / "deb" / "mini" / "mini.ipynb", submitted / "ada" / "mini" / "mini.ipynb")
    for student, name in (("eve", "data.txt"), ("fay", "deep/data.txt"), ("gil", ".data")):
        link(hand_in(submitted, student, answered(released)).parent / name, root / "gradebook.db")
    os.mkfifo(hand_in(submitted, "hal", answered(released)).parent / "timestamp.txt")
    done = nbgrader(root, "autograde")
    assert done.returncode != 0
    for student in ("bea", "cal", "deb", "eve", "fay", "gil", "hal"):
        assert re.search(f"ERROR.*{student}.*not graded: .* is (a link|no plain file)", done.stderr), student
    assert sorted(path.name for path in (root / "autograded").iterdir()) == ["ada"]
    assert (root / "autograded" / "ada" / "mini" / "data.txt").read_text() == "mine"
    for student in ("bea", "cal", "deb", "eve", "fay", "gil", "hal"):
        there = submitted / student
        there.unlink() if there.is_symlink() else shutil.rmtree(there)
    assert nbgrader(root, "autograde").returncode == 0


# ---- tables that outlive a run -----------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch):
    """Grading that runs nothing, without nbgrader: a notebook with "wrong" for `total` gets no point, any other 2."""
    import servinglab.grading.gradebook as gradebook

    def generate(out, name, source, release, database):
        (release / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name / f"{name}.ipynb", release / name)

    def with_nbgrader(student, name, out, root, isolate, limits):
        notebook = read_notebook(out / "submitted" / student / name / f"{name}.ipynb")
        right = "wrong" not in cell(notebook, "total").source
        return Report(
            tuple(
                CellReport(grade_id(one), "task", float(right), 1.0, "passed" if right else "failed")
                for one in notebook.cells
                if grade_id(one).endswith("-basic")
            )
        )

    full = Report((CellReport("x", "x", 1.0, 1.0, "passed"),))
    monkeypatch.setattr(gradebook, "grade_one", lambda *args, **kwargs: full)
    monkeypatch.setattr(gradebook, "_with_nbgrader", with_nbgrader)
    monkeypatch.setattr(gradebook, "_enter_zero", lambda *args: None)
    monkeypatch.setattr(gradebook, "generate", generate)


def grade_quickly(folder: Path, out: Path, course: Path, **more):
    return grade_folder(folder, out, course, isolate=False, tell=lambda text: None, **more)


def keys(path: Path) -> list[tuple[str, str, str]]:
    return [(row["student"], row.get("assignment", "mini"), row["score"]) for row in table(path)]


def test_grading_one_late_student_keeps_the_rows_of_the_others(quickly, course, released, tmp_path):
    for student in ("cy", "ada", "bob"):
        hand_in(tmp_path / "in", student, answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    hand_in(tmp_path / "late", "bea", answered(released))
    hand_in(tmp_path / "late", "bob", answered(released, total="wrong"))
    results = grade_quickly(tmp_path / "late", tmp_path / "out", course)
    expected = [("ada", "mini", "2"), ("bea", "mini", "2"), ("bob", "mini", "0"), ("cy", "mini", "2")]
    assert [one.student for one in results] == ["bea", "bob"]
    assert keys(tmp_path / "out" / "grades.csv") == expected
    assert keys(tmp_path / "out" / "mini.csv") == expected
    assert "note: an earlier run gave 2 of 2" in table(tmp_path / "out" / "grades.csv")[2]["problems"]
    assert table(tmp_path / "out" / "grades.csv")[0]["problems"] == ""


def test_an_interrupted_second_run_keeps_the_first_ones_rows(quickly, course, released, tmp_path, monkeypatch):
    import servinglab.grading.gradebook as gradebook

    for student in ("ada", "bob", "cy"):
        hand_in(tmp_path / "in", student, answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    before = (tmp_path / "out" / "grades.csv").read_bytes(), (tmp_path / "out" / "mini.csv").read_bytes()
    original = gradebook._with_nbgrader

    def impatient(student, *rest):
        if student == "bob":
            raise KeyboardInterrupt
        return original(student, *rest)

    monkeypatch.setattr(gradebook, "_with_nbgrader", impatient)
    with pytest.raises(KeyboardInterrupt):
        grade_quickly(tmp_path / "in", tmp_path / "out", course)
    assert ((tmp_path / "out" / "grades.csv").read_bytes(), (tmp_path / "out" / "mini.csv").read_bytes()) == before


def test_a_submission_that_can_no_longer_be_graded_says_what_it_had(quickly, course, released, tmp_path):
    hand_in(tmp_path / "in", "ada", answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    page = tmp_path / "out" / "feedback" / "ada" / "mini" / "mini.html"
    page.write_text("of the first run")
    (tmp_path / "in" / "ada" / "mini" / "mini.ipynb").write_text("{")
    for _ in range(2):  # said again as long as it lasts
        grade_quickly(tmp_path / "in", tmp_path / "out", course)
        (row,) = table(tmp_path / "out" / "grades.csv")
        assert (row["score"], row["max_score"], row["outcome"]) == ("0", "2", "not graded")
        assert "not a notebook" in row["problems"]
        assert row["problems"].count("note: an earlier run gave 2 of 2") == 1
        assert not page.exists()
    (tmp_path / "in" / "ada" / "mini" / "mini.ipynb").unlink()
    nbformat.write(answered(released), tmp_path / "in" / "ada" / "mini" / "mini.ipynb")
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    assert table(tmp_path / "out" / "grades.csv")[0]["problems"] == ""


def test_an_old_row_stays_without_its_feedback(quickly, course, released, tmp_path):
    hand_in(tmp_path / "in", "ada", answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    shutil.rmtree(tmp_path / "out" / "feedback")
    hand_in(tmp_path / "late", "bob", answered(released))
    grade_quickly(tmp_path / "late", tmp_path / "out", course)
    assert [row[0] for row in keys(tmp_path / "out" / "grades.csv")] == ["ada", "bob"]


def test_a_students_id_does_not_depend_on_who_else_is_in_the_folder(quickly, course, released, tmp_path):
    hand_in(tmp_path / "in", "Ada L.", answered(released, total="wrong"))
    hand_in(tmp_path / "in", "Ada_L.", answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    hand_in(tmp_path / "late", "Ada L.", answered(released, total="wrong"))
    hand_in(tmp_path / "later", "Ada?L.", answered(released, total="wrong"))
    for folder in ("late", "later"):
        grade_quickly(tmp_path / folder, tmp_path / "out", course)
    rows = table(tmp_path / "out" / "grades.csv")
    assert {row["handed_in_as"]: (row["student"], row["score"]) for row in rows} == {
        "Ada_L.": ("Ada_L.", "2"),
        "Ada L.": ("Ada_L._2", "0"),
        "Ada?L.": ("Ada_L._3", "0"),
    }
    other = tmp_path / "other"
    hand_in(tmp_path / "first", "Bo B", answered(released, total="wrong"))
    hand_in(tmp_path / "second", "Bo_B", answered(released))
    for folder in ("first", "second", "first"):
        grade_quickly(tmp_path / folder, other, course)
    assert keys(other / "grades.csv") == [("Bo_B", "mini", "0"), ("Bo_B_2", "mini", "2")]


def test_a_second_submission_costs_no_earlier_row(quickly, course, released, tmp_path):
    hand_in(tmp_path / "in", "ada", answered(released))
    nbformat.write(answered(released, total="wrong"), tmp_path / "in" / "ada.ipynb")
    for _ in range(2):
        grade_quickly(tmp_path / "in", tmp_path / "out", course)
        assert keys(tmp_path / "out" / "grades.csv") == [("ada", "", "0"), ("ada", "mini", "2")]
        assert "a second submission of ada for mini" in table(tmp_path / "out" / "grades.csv")[0]["problems"]


@pytest.mark.parametrize("dialect", ["BOM, semicolons, decimal commas", "tabs", "a line that names the separator"])
def test_a_table_that_a_spreadsheet_saved_is_read(quickly, course, released, tmp_path, dialect):
    hand_in(tmp_path / "in", "ada", answered(released))
    hand_in(tmp_path / "in", "bob", answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", course)
    for name in ("grades.csv", "mini.csv"):
        rows = list(csv.reader((tmp_path / "out" / name).read_text(encoding="utf-8").splitlines()))
        rows = [[*row, extra] for row, extra in zip(rows, ["remark", 'good; "well" done', "-0,5"], strict=True)]
        rows[1] = ["1,5" if one == "2" else one for one in rows[1]]
        separator = "\t" if dialect == "tabs" else ";"
        file = io.StringIO(newline="")
        csv.writer(file, delimiter=separator).writerows(rows)
        first = "sep=;\r\n" if dialect.startswith("a line") else ""
        data = (first + file.getvalue()).encode("utf-8-sig" if dialect.startswith("BOM") else "utf-8")
        (tmp_path / "out" / name).write_bytes(data)
    hand_in(tmp_path / "late", "bob", answered(released, total="wrong"))
    grade_quickly(tmp_path / "late", tmp_path / "out", course)
    for name in ("grades.csv", "mini.csv"):
        rows = table(tmp_path / "out" / name)
        assert [row["score"] for row in rows] == ["1.5", "0"]
        assert [row["remark"] for row in rows] == ['good; "well" done', "-0.5"]


BROKEN = {
    "not UTF-8": (b"student,assignment\r\nj\xe9r\xf4me,mini\r\n", "not UTF-8"),
    "an open quote": (b'student,assignment,problems\r\nada,mini,"x\r\nbob,mini,y\r\n', "can't be read"),
    "no header": (b"ada,mini,2,2,graded,\r\n", "no column 'student'"),
    "too many cells": (b"student,assignment\r\nada,mini,2\r\n", "line 2 has 3 cells"),
    "the same column twice": (b"student,assignment,score,score\r\nada,mini,2,1\r\n", "two columns 'score'"),
    "only a blank": (b"\r\n", "no column 'student'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_table_that_someone_broke_is_named_and_kept(quickly, course, released, tmp_path, case, capsys):
    data, complaint = BROKEN[case]
    hand_in(tmp_path / "in", "ada", answered(released))
    (tmp_path / "out").mkdir()
    for name in ("grades.csv", "mini.csv"):
        (tmp_path / "out" / name).write_bytes(data)
        arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(course), "--unsafe"]
        assert grade_main(arguments) == 2
        said = capsys.readouterr().err
        assert name in said
        assert complaint in said
        assert len(said.splitlines()) == 1
        assert (tmp_path / "out" / name).read_bytes() == data
        (tmp_path / "out" / name).unlink()
        assert [path.name for path in (tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize("name", ["grades.csv", "mini.csv"])
def test_a_table_that_cannot_be_opened_is_one_line(quickly, course, released, tmp_path, name, capsys):
    hand_in(tmp_path / "in", "ada", answered(released))
    (tmp_path / "out" / name).mkdir(parents=True)
    arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(course), "--unsafe"]
    assert grade_main(arguments) == 2
    assert re.fullmatch(f".*{name} can't be read: .*\n", capsys.readouterr().err)


def test_rows_of_two_runs_at_once_are_all_kept(quickly, course, released, tmp_path, monkeypatch):
    """Each row is merged into the table as it is then, also with what a teacher or a second run has just saved."""
    hand_in(tmp_path / "in", "ada", answered(released))
    hand_in(tmp_path / "in", "bob", answered(released))
    hand_in(tmp_path / "other", "cy", answered(released))
    again = iter([lambda: grade_quickly(tmp_path / "other", tmp_path / "out", course), lambda: None])
    grade_folder(tmp_path / "in", tmp_path / "out", course, isolate=False, tell=lambda text: next(again)())
    assert [row[0] for row in keys(tmp_path / "out" / "grades.csv")] == ["ada", "bob", "cy"]
    assert [row[0] for row in keys(tmp_path / "out" / "mini.csv")] == ["ada", "bob", "cy"]


def test_results_of_other_checks_are_not_mixed(quickly, released, course, tmp_path, capsys):
    root = tmp_path / "course"
    shutil.copytree(course, root)
    hand_in(tmp_path / "in", "ada", answered(released))
    grade_quickly(tmp_path / "in", tmp_path / "out", root)
    (root / "solutions" / "mini.md").write_text(MINI.replace(":check: total-basic", ":check: sum-basic"))
    build(root)
    before = (tmp_path / "out" / "mini.csv").read_bytes()
    arguments = [str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--course", str(root), "--unsafe"]
    assert grade_main(arguments) == 2
    said = capsys.readouterr().err
    assert "the checks of mini changed" in said
    assert "sum-basic" in said
    assert "total-basic" in said
    assert "--out" in said
    assert (tmp_path / "out" / "mini.csv").read_bytes() == before


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(A1)", "a;=cmd()", "a\tb\n=cmd()"])
def test_no_cell_is_a_formula(quickly, course, released, tmp_path, name):
    """Whichever separator a spreadsheet takes for one."""
    folder = hand_in(tmp_path / "in", name.replace("/", "_"), answered(released)).parent
    link(folder / name.replace("/", "_"), tmp_path)
    link(tmp_path / "in" / "ada" / name.replace("/", "_"), tmp_path)
    for _ in range(2):
        grade_quickly(tmp_path / "in", tmp_path / "out", course)
        text = (tmp_path / "out" / "grades.csv").read_text(encoding="utf-8")
        for separator in ",;\t":
            for row in csv.reader(text.splitlines(), delimiter=separator):
                assert not any(re.match(r"[\s\"]*[=+@-]", one) for one in row), (separator, row)
        assert len(table(tmp_path / "out" / "grades.csv")) == 2


# ---- the words of a check ----------------------------------------------------------------------------------------


def test_hidden_messages_hold_no_input_and_no_number():
    task = Task(lambda *args: 17.5, "f(x)", read="page 3")
    with hidden(), pytest.raises(CheckFailed) as failure:
        task.gives(42.25, want=99.5, case="a case", cause="a cause", words="in words")
    assert not re.search(r"\d\d", str(failure.value).replace("page 3", ""))
    assert "a number, too small" in str(failure.value)
    with pytest.raises(CheckFailed, match=r"a case: f\(42.25\)"):
        task.gives(42.25, want=99.5, case="a case", cause="a cause")


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (1, 1.0, True),
        (np.float64(0.5), 0.5, True),
        (np.int64(3), 3, True),
        (Fraction(1, 3), 1 / 3, True),
        (Decimal("0.25"), 0.25, True),
        (np.array(["A", "E"]), ["A", "E"], True),
        ([np.str_("A")], ["A"], True),
        (True, 1, False),
        (1, True, False),
        ("1", 1, False),
        (None, 0, False),
        (None, None, True),
        (float("nan"), float("nan"), False),
        (float("inf"), float("inf"), True),
        (1 + 1e-12, 1, True),
        (1 + 1e-6, 1, False),
        ([1, 2], (1.0, 2.0), True),
        (np.array([1, 2]), [1, 2], True),
        (np.array([4, None]), [4, None], True),
        (np.array(None), None, True),
        (np.array([[Fraction(1, 2), None]]), [[0.5, None]], True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1.0}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
    ],
)
def test_equality_is_that_of_plain_values(got, want, equal):
    assert same(plain(got), want) is equal


@pytest.mark.parametrize(("value", "number"), [(3.0, True), (3, True), (True, False), ("3", False), ([3.0], False)])
def test_an_array_without_dimensions_is_what_it_holds(value, number):
    got = Task(lambda: np.array(value), "f()", read="page").answer(case="a case")
    assert is_number(got) is number
    assert same(got, value)
    assert is_number(plain([np.array(value)])[0]) is number


def test_objects_with_ideas_of_their_own_are_no_answers():
    class Yes(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    for value in (Yes(1), [Yes(1)], {"a": Yes(1)}, np.array([Yes(1), None]), lambda: 1, object()):
        with pytest.raises(Unanswered):
            plain(value)
    with pytest.raises(CheckFailed, match="return plain numbers"):
        Task(lambda: Yes(1), "f()", read="page").gives(want=2, case="a case", cause="a cause")


def message(answer, want, words="", **task):
    with pytest.raises(CheckFailed) as failure:
        Task(lambda x: answer, "f(x)", "page", **task).gives(3, want=want, case="a case", cause="a cause", words=words)
    return failure.value


@pytest.mark.parametrize(
    ("answer", "want", "rounded"),
    [
        (8.82, 8.823529411764707, True),
        (8.83, 8.823529411764707, False),
        (9, 8.823529411764707, False),  # an answer of its own
        (0.0, 0.04, False),
        ([2.375, 0.18], [2.375, 0.175], True),
        ([2.5, 0.18], [2.375, 0.175], False),
        (float("inf"), 8.5, False),
        (None, 8.5, False),
    ],
)
def test_a_rounded_answer_is_told_so(answer, want, rounded):
    assert ("the answer is rounded" in message(answer, want).cause) is rounded


def test_an_answer_rounded_in_its_own_unit_is_told_so_too():
    for answer in (529.41, 60 * 8.82):  # per minute, or per second and then in minutes
        assert "the answer is rounded" in message(answer, 8.823529411764707, asked=("x", 60)).cause


@pytest.mark.parametrize(
    ("answer", "want", "returns", "came", "expected"),
    [
        (270.00000000000006, 270, int, "270.00000000000006", "a whole number"),
        (45.11278, 46, int, "45.1128", "a whole number"),
        (1.0000001, 1.0, float, "1.0000001", "1.0"),
        ([1, 2] * 9, [1, 2] * 8 + [1, 3], [float], "entry 18 is 2", "entry 18 is 3"),
        (15.0, None, float | None, "15", "None"),
    ],
)
def test_what_came_and_what_was_expected_never_read_the_same(answer, want, returns, came, expected):
    failure = message(answer, want, words="None" if want is None else "", returns=returns)
    assert (failure.came, failure.expected) == (came, expected)


def test_a_long_list_is_cut_between_two_entries():
    rows = [[k, k + 0.125, 123456.5, 17] for k in range(30)]
    failure = message(0.5, 1.5)
    assert failure.case == "a case: f(3)"
    with pytest.raises(CheckFailed, match=r"f\(\[\[0, .*\], … \(30 in all\)\]\)"):
        Task(lambda x: 0, "f(x)", "page").gives(rows, want=1, case="a case", cause="a cause")


def test_jupyter_shows_the_message_and_no_traceback():
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    with capture_output() as shown:
        shell.run_cell(
            "from servinglab.grading.checks import Task\n"
            "Task(lambda x: 1, 'f(x)', read='page 9').gives(5, want=2, case='five', cause='two is meant')"
        )
    text = shown.stdout + shown.stderr
    assert "likely:    two is meant" in text
    assert "Traceback" not in text
    assert "gives(5" not in text


def test_the_fast_way_and_the_sandbox_say_the_same(official, released, bwrap):
    """The tests of the graders call functions in this process; learners and teachers go through the sandbox."""
    names = {"double": lambda x: x * x, "total": lambda values: sum(values) or None}
    fast = check_functions(official, names)
    slow = grade_one(
        answered(released, double="double = lambda x: x * x", total="total = lambda values: sum(values) or None"),
        source=official,
        limits=QUICK,
    )
    assert fast == slow.cells
    assert [one.passed for one in fast] == [False, False]


def test_the_mini_assignment_is_what_the_tests_think(official, released):
    assert "731.25" in nbformat.writes(official)
    assert "731.25" not in nbformat.writes(released)
    assert build_solution and make_release
