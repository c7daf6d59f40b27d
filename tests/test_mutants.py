"""Mutants: changes that checks should notice, and the command that says which they don't."""

from __future__ import annotations

import doctest
import os
import random
import re
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import nbformat
import pytest
from grader_answers import GRADERS, ROOT
from mutation import changes
from mutation.tasks import mutants_of, read_tasks
from mutation.told_apart import Near, told_apart
from servinglab.grading.build import build_solution

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="make mutants needs processes that fork")
COMMAND = [sys.executable, str(ROOT / "tests" / "mutants.py")]
BOUNDARY = 'task.gives([1, 3, 5], 3, want=3, case="one that is equal", cause="equal is enough")\n'
MINI = f"""---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{{code-cell}} python
:answer: first_from
def first_from(values, limit):
    ### BEGIN SOLUTION
    for value in values:
        if value >= limit:
            return value
    return None
    ### END SOLUTION
```

```{{code-cell}} python
:answer: halvings
def halvings(n):
    ### BEGIN SOLUTION
    count = 0
    while n > 1:
        n = n // 2
        count += 1
    return count
    ### END SOLUTION
```

```{{code-cell}} python
:check: first_from-basic
from servinglab.grading.checks import Task

task = Task(first_from, "first_from(values, limit)", read="nowhere")
task.gives([1, 3, 5], 2, want=3, case="one in the middle", cause="start at the first")
### BEGIN HIDDEN TESTS
task.gives([1, 3, 5], 4, want=5, case="the last one", cause="go on to the end")
task.gives([2, 3], 1, want=2, case="the first one", cause="start at the first")
task.gives([1, 3, 5], 6, want=None, case="none", cause="then it is None")
{BOUNDARY}### END HIDDEN TESTS
```

```{{code-cell}} python
:check: halvings-basic
from servinglab.grading.checks import Task

task = Task(halvings, "halvings(n)", read="nowhere")
task.gives(8, want=3, case="a power of two", cause="count each halving")
```
"""
RIGHT = """
def by_a_list(values, limit):
    found = [value for value in values if value >= limit]
    return found[0] if found else None


WRONG = {}
RIGHT = [by_a_list]
"""
EXPLAINED = """
[[equivalent]]
task = "ch01/first_from"
answer = "solution"
was = "return None"
now = ""
why = "a function that ends without a return answers None"
"""


def course(folder: Path, source: str = MINI, explained: str = EXPLAINED) -> Path:
    """A course of one assignment."""
    (folder / "solutions" / "01_mini").mkdir(parents=True)
    text = folder / "solutions" / "01_mini.md"
    text.write_text(source)
    nbformat.write(build_solution(text), folder / "solutions" / "01_mini" / "01_mini.ipynb")
    answers = folder / "tests" / "graders" / "ch01" / "first_from.py"
    answers.parent.mkdir(parents=True)
    answers.write_text(RIGHT)
    (folder / "tests" / "graders" / "equivalent.toml").write_text(explained)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, "--root", str(folder), *words], capture_output=True, text=True, timeout=300)


def row(said: str, name: str) -> list[int]:
    """Mutants, killed, timed out, survived, explained, open: one row of the table."""
    return [int(word) for word in re.search(rf"^{name} +([\d ]+)$", said, re.MULTILINE)[1].split()]


@needs_fork
@pytest.mark.slow
def test_checks_that_notice_every_change_but_those_explained_give_exit_0(tmp_path):
    done = run(course(tmp_path), "--function", "first_from")
    assert done.returncode == 0, done.stdout + done.stderr
    made, killed, late, survived, explained, left = row(done.stdout, "ch01/first_from")
    assert made == killed + late + survived
    assert (survived, explained, left) == (1, 1, 0)
    assert killed > 10


@needs_fork
@pytest.mark.slow
def test_without_one_hidden_test_a_mutant_comes_through_and_is_told_apart(tmp_path):
    done = run(course(tmp_path, MINI.replace(BOUNDARY, "")), "--function", "first_from")
    assert done.returncode == 1
    assert row(done.stdout, "ch01/first_from")[-1] == 2
    assert "ch01/first_from, solution" in done.stdout
    assert "-        if value >= limit:\n+        if value > limit:" in done.stdout
    assert "ch01/first_from, by_a_list" in done.stdout
    apart = re.findall(r"told apart by first_from\((.+)\): right (\d+), mutant (\w+)", done.stdout)
    assert len(apart) == 2
    for args, right, _ in apart:
        values, limit = eval(args)
        assert limit in values
        assert int(right) == limit


@needs_fork
@pytest.mark.slow
def test_a_survivor_without_an_explanation_gives_exit_1(tmp_path):
    done = run(course(tmp_path, explained=""), "--function", "first_from", "--search", "0.3")
    assert done.returncode == 1
    assert row(done.stdout, "ch01/first_from")[-1] == 1
    assert "-    return None" in done.stdout
    assert "no input found that tells it apart" in done.stdout


@needs_fork
@pytest.mark.slow
def test_an_explanation_that_fits_no_survivor_is_complained_of(tmp_path):
    gone = EXPLAINED.replace('was = "return None"', 'was = "return nothing"')
    noticed = EXPLAINED.replace('was = "return None"', 'was = "if value >= limit:"').replace(
        'now = ""', 'now = ["if value > limit:"]'
    )
    done = run(course(tmp_path, explained=EXPLAINED + gone + noticed), "--function", "first_from")
    assert done.returncode == 1
    assert row(done.stdout, "ch01/first_from")[-1] == 0
    assert re.search(r"'return nothing' → '': no such mutant", done.stdout)
    assert re.search(r"'if value > limit:': noticed by first_from-basic", done.stdout)


@needs_fork
@pytest.mark.slow
def test_an_endless_mutant_counts_as_killed_by_time(tmp_path):
    done = run(course(tmp_path), "--function", "halvings", "--seconds", "0.2", "--search", "0")
    made, killed, late, survived, *_ = row(done.stdout, "ch01/halvings")
    assert late > 0
    assert made == killed + late + survived


@needs_fork
@pytest.mark.slow
def test_an_interrupted_run_keeps_what_it_found_and_goes_on(tmp_path):
    folder, results = course(tmp_path), tmp_path / "_build" / "mutants.jsonl"
    words = ["--seconds", "0.5", "--search", "0", "--root", str(folder)]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (results.is_file() and results.read_text().count("\n") > 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, error = process.communicate(timeout=60)
    assert process.returncode == 130, said + error
    assert "--resume judges the others" in error
    before = results.read_text()
    made, *counts = row(said, "in all")
    assert sum(counts[:3]) == before.count("\n") < made
    with open(results, "a") as file:
        file.write('{"key": "cut o')  # by a machine that went down
    made, *counts = row(run(folder, *words, "--resume").stdout, "in all")
    assert sum(counts[:3]) == made
    assert results.read_text().startswith(before)
    keys = re.findall(r'"key": "(\w+)"', results.read_text())
    assert len(keys) == len(set(keys)) == made


@needs_fork
@pytest.mark.slow
def test_a_changed_check_is_asked_again_in_spite_of_resume(tmp_path):
    source = tmp_path / "solutions" / "01_mini.md"
    run(course(tmp_path, MINI.replace(BOUNDARY, "")), "--function", "first_from", "--search", "0")
    source.write_text(MINI)
    nbformat.write(build_solution(source), tmp_path / "solutions" / "01_mini" / "01_mini.ipynb")
    assert run(tmp_path, "--function", "first_from", "--resume").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "explained", "complaint"),
    [
        (["--function", "second_from"], "", "'second_from'; there are: first_from, halvings"),
        (["--only", "02"], "", "is called 02"),
        (["--sample", "0"], "", "must be 1 or more"),
        (["--seconds", "-1"], "", "must be 0 or more"),
        ([], "[[equivalent]]\ntask = 3", "entry 1 needs the texts"),
        ([], EXPLAINED.replace("a function that ends without a return answers None", " "), "entry 1 needs the texts"),
        ([], "[[equivalent", "equivalent.toml"),
    ],
)
def test_what_can_not_be_used_is_named(tmp_path, words, explained, complaint):
    done = run(course(tmp_path, explained=explained), *words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@needs_fork
@pytest.mark.slow
def test_an_answer_that_its_checks_refuse_is_named(tmp_path):
    folder = course(tmp_path)
    answers = folder / "tests" / "graders" / "ch01" / "first_from.py"
    answers.write_text(RIGHT.replace(">=", ">"))
    done = run(folder, "--function", "first_from")
    assert done.returncode == 2
    assert "first_from-basic refuses the unchanged answer 'by_a_list'" in done.stderr


@needs_fork
@pytest.mark.slow
def test_the_command_runs_on_a_function_of_the_course(tmp_path):
    words = ["--function", GRADERS[0].stem, "--sample", "6", "--search", "0", "--results", str(tmp_path / "found")]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert row(done.stdout, "in all")[0] == 6
    assert row(done.stdout, "in all")[1] > 0


@pytest.mark.slow
def test_every_right_answer_of_the_course_has_mutants_and_none_is_made_twice():
    tasks = read_tasks(ROOT, [], [])
    assert {task.name for task in tasks} == {f"{path.parent.name}/{path.stem}" for path in GRADERS}
    made = {task.name: mutants_of(task) for task in tasks}
    assert sum(map(len, made.values())) > 600
    for name, mutants in made.items():
        assert len(mutants) >= 10, name
        assert len({mutant.key for mutant in mutants}) == len(mutants), name


def test_examples():
    assert doctest.testmod(changes).failed == 0
    assert doctest.testmod(changes).attempted > 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b <= c", {"return a <= b <= c", "return a >= b <= c", "return a < b < c", "return a < b > c"}),
        ("return a == 3", {"return a != 3", "return a <= 3", "return a >= 3", "return a == 4", "return a == 2"}),
        ("return a and b", {"return a or b", "return a", "return b"}),
        ("return a // b", {"return a / b", "return a", "return b // a"}),
        ("return a - 1e-09", {"return a + 1e-09", "return a", "return 1e-09 - a", "return a - 0.001"}),
        ("return a * 0.5", {"return a / 0.5", "return 0.5", "return a", "return a * 0.505", "return a * 0.495"}),
        ("return range(a)", {"return range(a + 1)", "return range(a - 1)"}),
        ("return a[b:]", {"return a[b + 1:]", "return a[b - 1:]", "return a[b:-1]"}),
        ("return a[b]", {"return a[b + 1]", "return a[b - 1]"}),
        ("return min(a, 0)", {"return max(a, 0)", "return a", "return 0", "return min(a, 1)", "return min(a, -1)"}),
        ("return any(a)", {"return all(a)"}),
        ("return ceil(a)", {"return floor(a)", "return round(a)", "return a"}),
        ("return round(a)", {"return int(a)", "return a"}),
        ("return sorted(a)", {"return a.sort() or a", "return a"}),
        ("return max(a, default=None)", {"return min(a, default=None)", "return max(a)", "return max(a, default=0)"}),
        ("return g(a, b)", {"return g(b, a)"}),
        ("return -a", {"return a"}),
        (
            "return a < b - 1e-09",
            {f"return a {x}" for x in (">= b - 1e-09", "< b + 1e-09", "< b", "< 1e-09 - b", "< b - 0.001")},
        ),
        ("return 2**30", {"return 2 * 30", "return 2", "return 2 ** 31", "return 2 ** 29"}),
        ("return {'a': 1, 'b': [2, 3.5]}", set()),
        ("return a if b else None", {"return a", "return None", "return a if not b else None", "return a if b else 0"}),
        ("return a, b", {"return (b, a)"}),
        ("a += b", {"a -= b", "a = b"}),
        (
            "return [x for x in a if x > 0]",
            {
                "return [x for x in a[1:] if x > 0]",
                "return [x for x in a[:-1] if x > 0]",
                "return [x for x in a if x >= 0]",
                "return [x for x in a if x <= 0]",
                "return [x for x in a if x > 1]",
                "return [x for x in a if x > -1]",
                "return [x for x in a]",
            },
        ),
    ],
)  # fmt: skip
def test_a_line_is_changed_in_these_ways_and_left_out(line, expected):
    found = list(changes.mutations(f"def f(a, b, c):\n    {line}"))
    assert {one.now for one in found} == {*expected, "pass"}
    assert {one.was for one in found} == {changes.normal(line)}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (["if a:", "return b"], ["return b"]),
        (["if a:", "return b"], []),
        (["if a:"], ["if not a:"]),
        (["break"], ["continue"]),
        (["def f(a, b):", "found = []"], ["def f(a, b, found=[]):"]),
        (["count, seen = (0, {})", "def f(a, b):"], ["count = 0", "def f(a, b, seen={}):"]),
        (["found.append(c)"], []),
        (["for c in b:"], ["for c in b[1:]:"]),
    ],
)
def test_conditions_loops_and_kept_state(was, now):
    source = """def f(a, b):
    "Words."
    found = []
    count, seen = 0, {}
    if a:
        return b
    for c in b:
        if c in a:
            break  # early
        found.append(c)
    return found
"""
    made = [(sorted(one.was.splitlines()), sorted(one.now.splitlines())) for one in changes.mutations(source)]
    assert (sorted(was), sorted(now)) in made


def test_what_tells_two_functions_apart_is_found_near_the_calls_and_made_small():
    def mutant(values, limit):
        return sum(value > limit for value in values)

    def right(values, limit):
        return sum(value >= limit for value in values)

    calls = [([1.0, 2.5, 4.0, 7.0], 3.0), ([0.5, 0.25], 0.1)]
    found = told_apart(mutant, [right], calls, dice=random.Random(1), seconds=20)
    values, limit = eval(found["args"])
    assert values == [limit]
    assert (found["right"], found["mutant"]) == ("1", "0")
    assert told_apart(right, [right], [([1.0], 1.0)], dice=random.Random(1), seconds=0.2) is None


def test_inputs_keep_what_the_calls_have_in_common():
    calls = [([0.5, 1.0, 2.0], [3, None, 1], 0.9), ([0.1, 0.4], [2, 2], 0.5)]
    tried = list(islice(Near(calls, random.Random(3)), 2000))
    assert tried[:2] == calls[::-1]
    for times, tokens, share in tried:
        assert times == sorted(times)
        assert all(0 < time <= 4 for time in times)
        assert all(token is None or token > 0 for token in tokens)
        assert 0 < share < 1
    assert len({repr(args) for args in tried}) > 700
    assert {len(times) for times, _, _ in tried} >= {0, 1, 2, 3}
    assert any(times[0] == times[1] for times, _, _ in tried if len(times) > 1)


def test_an_input_on_which_right_answers_differ_tells_nothing():
    rights = [lambda x: x, lambda x: abs(x)]
    assert told_apart(abs, rights, [(2,)], dice=random.Random(1), seconds=0.2) is None


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (lambda values: values.sort() or values, "changes its arguments"),
        (lambda values, kept=[]: kept.extend(values) or sorted(kept), ", then "),
        (lambda values: sorted(values)[len(values) :][0], "raises IndexError"),
    ],
)
def test_what_breaks_the_rules_of_all_tasks_is_told_apart(mutant, said):
    found = told_apart(mutant, [sorted], [([2, 1],)], dice=random.Random(1), seconds=5)
    assert found["right"] == repr(sorted(eval(found["args"])))
    assert said in found["mutant"]
