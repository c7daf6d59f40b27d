"""Every answer in tests/graders, handed in as a learner would: judged by `check`, and by `grade` with what it hides.

Notebooks are filled with one answer to each task, so that as many as the longest list of answers do for an assignment.
"""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import nbformat
import pytest
from grader_answers import ASSIGNMENTS, ROOT, Answer, answers, checks_using, release
from servinglab.grading import grade_one
from servinglab.grading.grade import check_functions
from servinglab.grading.notebooks import grade_id

pytestmark = pytest.mark.slow


def hand_in(name: str, filled: list[Answer]) -> nbformat.NotebookNode:
    """The released notebook with these answers written into its answer cells."""
    notebook = release(name)
    for answer in filled:
        cell = next(cell for cell in notebook.cells if cell.get("id") == answer.task)
        cell.source = f"{answer.path.read_text(encoding='utf-8')}\n\n{answer.task} = {answer.idea}\n"
    return notebook


def packed(name: str) -> list[list[Answer]]:
    """Answers to an assignment, in as few notebooks as can be."""
    by_task = defaultdict(list)
    for answer in answers():
        if answer.assignment == name:
            by_task[answer.task].append(answer)
    return [[answer for answer in row if answer] for row in zip_longest(*by_task.values())]


def lost(cells, checks: set[str]) -> dict[str, str]:
    return {cell.grade_id.split("-")[1]: cell.message for cell in cells if not cell.passed and cell.grade_id in checks}


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_what_is_handed_in_is_judged_as_in_this_process(name, bwrap, tmp_path):
    source = ROOT / "solutions" / name / f"{name}.ipynb"
    visible = release(name)

    def judge(numbered: tuple[int, list[Answer]]) -> list[str]:
        number, filled = numbered
        folder = Path(tmp_path, str(number))
        folder.mkdir()
        path = folder / f"{name}.ipynb"
        nbformat.write(hand_in(name, filled), path)
        checked, graded = grade_one(path, isolate=False), grade_one(path, source=source)
        wrong = []
        for answer in filled:
            own = checks_using(visible, answer.task)
            checks = set(map(grade_id, own.cells))
            seen = set(lost(check_functions(own, {answer.task: answer.function}), checks))
            if (taken := set(lost(checked.cells, checks))) != seen:
                wrong.append(f"{answer.name}: check takes {sorted(taken)}, not {sorted(seen)}")
            messages = lost(graded.cells, checks)
            if set(messages) != set(answer.lost):
                wrong.append(f"{answer.name}: grade takes {sorted(messages)}, not {sorted(answer.lost)}")
            for check, hint in answer.lost.items():
                if hint and hint not in messages.get(check, hint):
                    wrong.append(f"{answer.name}: {check} has no hint {hint!r}: {messages[check]}")
        return wrong

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(judge, enumerate(packed(name))) for line in lines]
    assert not found, "\n".join(found)
