"""Which small changes of a right answer does no check notice?

    python tests/mutants.py [--only ASSIGNMENT] [--function FUNCTION] [--sample N] [--resume] [--list]

`make mutants` changes every answer in the solutions and every right one in tests/graders in many small ways (see
`mutation.changes`), and asks all check cells that use the function. A mutant that passes them survives: then the checks
need another case, or no input that the task allows tells it apart, and tests/graders/equivalent.toml says why (see
`mutation.explained`).

Exit status: 0, 1 for a survivor without such an explanation or an explanation that fits no survivor, 2 for a wrong
option, a file that can't be read or an answer that its own checks refuse, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grader_answers import ROOT
from mutation.explained import read_explanations, stale
from mutation.judging import judged
from mutation.tasks import Mutant, Unusable, mutants_of, read_tasks


def table(mutants: Sequence[Mutant], results: Mapping[str, dict], explained: Callable[[Mutant], bool]) -> str:
    """One row for each task, and their sum."""
    columns = ("mutants", "killed", "timed out", "survived", "explained", "open")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        verdict = results.get(mutant.key, {}).get("verdict", "")
        found = ["mutants", verdict]
        if verdict == "survived":
            found.append("explained" if explained(mutant) else "open")
        for name in (mutant.task.name, "in all"):
            counts[name].update(found)
    total = counts.pop("in all", Counter())
    width = max([len(name) for name in counts] + [8])
    lines = [" " * width + "".join(f"{column:>11}" for column in columns)]
    for name, row in [*counts.items(), ("in all", total)]:
        lines.append(name.ljust(width) + "".join(f"{row[column]:>11}" for column in columns))
    return "\n".join(lines)


def portrait(mutant: Mutant, apart: Mapping[str, str] | None) -> str:
    """A survivor: what is changed, and what tells it apart."""
    kind = mutant.change.kind
    before, after = mutant.right.sources[mutant.part].splitlines(), mutant.change.source.splitlines()
    title = f"{mutant.task.name}, {mutant.right.name}"
    diff = difflib.unified_diff(before, after, title, f"survived: {kind}", n=2, lineterm="")
    lines = [line for line in diff if not line.startswith("@@")]
    if apart:
        call = f"{mutant.task.function}({apart['args']})"
        lines.append(f"told apart by {call}: right {apart['right']}, mutant {apart['mutant']}")
    else:
        lines.append("no input found that tells it apart")
    return "\n".join(lines)


class Progress:
    """How far it is, on standard error: one line that changes on a terminal, one for every hundred elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.counts = total, Counter[str]()
        self.live = sys.stderr.isatty()

    def add(self, mutant: Mutant, verdict: str) -> None:
        self.counts[verdict] += 1
        done = self.counts.total()
        if self.live or done % 100 == 0 or done == self.total:
            said = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
            line = f"{done} of {self.total}: {said} ({mutant.task.name})"
            print(f"\r\033[K{line}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live and self.counts:
            print(file=sys.stderr)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(args)
    try:
        return _run(options)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make mutants", description="Changes right answers in small ways, and says which changes no check notices."
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="assignments whose name starts so: 01, for example"
    )
    parser.add_argument("--function", action="append", default=[], metavar="FUNCTION", help="these functions alone")
    parser.add_argument("--sample", type=_count, metavar="N", help="judge N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws another sample (default: 0)")
    parser.add_argument("--list", action="store_true", help="say how many mutants there are; judge none")
    parser.add_argument("--resume", action="store_true", help="take what the results file says of the same mutants")
    parser.add_argument("--jobs", type=_count, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, metavar="S", help="processor time of a mutant, at least (default: 2)"
    )
    parser.add_argument(
        "--search",
        type=_seconds,
        default=3.0,
        metavar="S",
        help="processor time to look for an input that tells a survivor apart (default: 3; 0: don't look)",
    )
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the course (default: this one)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: _build/mutants.jsonl in the course")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more; got {text}")
    return value


def _run(options: argparse.Namespace) -> int:
    tasks = read_tasks(options.root, options.only, options.function)
    made = [mutant for task in tasks for mutant in mutants_of(task)]
    if options.list:
        for task in tasks:
            counts = Counter(mutant.right.name for mutant in made if mutant.task is task)
            print(f"{counts.total():5}  {task.name}: {', '.join(f'{name} {n}' for name, n in counts.items())}")
        print(f"{len(made):5}  in all")
        return 0
    if not hasattr(os, "fork"):
        raise Unusable("make mutants needs processes that fork: Linux or macOS")
    path = options.root / "tests" / "graders" / "equivalent.toml"
    explanations = read_explanations(path)
    if options.only or options.function:
        explanations = [one for one in explanations if one.task in {task.name for task in tasks}]

    def explained(mutant: Mutant) -> bool:
        return any(one.fits(mutant) for one in explanations)

    mutants = made
    if options.sample and options.sample < len(made):
        chosen = sorted(random.Random(options.seed).sample(range(len(made)), options.sample))
        mutants = [made[number] for number in chosen]
    file = options.results or options.root / "_build" / "mutants.jsonl"
    results = _known(file) if options.resume else {}
    left = [mutant for mutant in mutants if mutant.key not in results]
    file.parent.mkdir(parents=True, exist_ok=True)
    progress, interrupted = Progress(len(left)), False
    with open(file, "a" if options.resume else "w", encoding="utf-8") as out:
        if options.resume:
            out.write("\n")  # the last line may have been cut off
        try:
            for mutant, result in judged(
                left, jobs=options.jobs, limit_s=options.seconds, search_s=options.search, explained=explained
            ):
                results[mutant.key] = result
                about = {"key": mutant.key, "task": mutant.task.name, "answer": mutant.right.name}
                print(json.dumps({**about, **result}), file=out, flush=True)
                progress.add(mutant, result["verdict"])
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.end()
    survivors = [mutant for mutant in mutants if results.get(mutant.key, {}).get("verdict") == "survived"]
    unexplained = [mutant for mutant in survivors if not explained(mutant)]
    for mutant in unexplained:
        print(portrait(mutant, results[mutant.key]["apart"]), end="\n\n")
    complaints = list(stale(explanations, made, results))
    for complaint in complaints:
        print(f"{path.name}: {complaint}")
    print(table(mutants, results, explained))
    if interrupted:
        done = sum(mutant.key in results for mutant in mutants)
        print(f"interrupted: {done} of {len(mutants)} are judged; --resume judges the others", file=sys.stderr)
        return 130
    return 1 if unexplained or complaints else 0


def _known(file: Path) -> dict[str, dict]:
    """The results in a file; a line that was cut off doesn't count."""
    known = {}
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError, KeyError):
                result = json.loads(line)
                known[result["key"]] = result
    return known


if __name__ == "__main__":
    sys.exit(main())
