"""Which small changes of a right answer does no check notice?

    python tests/mutants.py [--only ASSIGNMENT] [--function FUNCTION] [--sample N] [--resume] [--list]

`make mutants` changes every answer in the solutions and every right one in tests/graders in many small ways (see
`mutations`), and asks all check cells that use the function. A mutant that passes them survives: then the checks need
another case, or no input that the task allows tells it apart, and `tests/graders/equivalent.toml` says why:

    [[equivalent]]
    task = "ch01/smallest_batch"
    answer = "solution"                        # or a name in RIGHT
    was = "B = max(1, round(exact))"           # the changed lines as the report shows them, wherever they stand
    now = ["B = max(1, int(exact))", "..."]    # one text or several
    why = "the next line adds one where B is too small"

Exit status: 0, 1 for a survivor without such an explanation or an explanation that fits no survivor, 2 for a wrong
option, a file that can't be read or an answer that its own checks refuse, 130 after Ctrl-C.

What this module does not do: run on Windows, which can't fork, or protect itself from what a mutant does to files.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import tomllib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import nbformat
import servinglab.grading
from grader_answers import ROOT, module
from mutations import Mutation, mutations, normal
from nbformat import NotebookNode
from servinglab.grading.grade import check_functions
from servinglab.grading.notebooks import NotebookError, free_names, grade_id, is_check, is_locked, read_notebook
from servinglab.grading.wire import picture
from told_apart import told_apart

MEMORY_BYTES = 4 * 2**30  # as much as a submission may use
PATIENCE = 20  # how many times its processor time a mutant may take by the clock
MAX_CALLS = 300  # that are kept of each function, to look for inputs near them


class Unusable(Exception):
    """Why there is nothing to say: the text goes to the one who called the command."""


@dataclass
class Task:
    """One function of an assignment: its check cells and its right answers, the solution's first."""

    name: str  # as its file is called in tests/graders: ch01/pot_rate
    checks: list[NotebookNode]
    names: dict[str, Any]  # all that the solution's cells define
    rights: list[Right] = field(default_factory=list)
    fingerprint: str = ""  # of all that a verdict depends on, besides the mutant

    @property
    def function(self) -> str:
        return self.name.partition("/")[2]

    def failed_by(self, answer: Callable[..., Any]) -> str:
        """The first check cell that refuses an answer; empty if none does."""
        for cell in self.checks:
            one = nbformat.v4.new_notebook(cells=[cell])
            if not all(report.passed for report in check_functions(one, {**self.names, self.function: answer})):
                return grade_id(cell)
        return ""

    @functools.cached_property
    def calls(self) -> list[tuple]:
        """The arguments of the checks' calls, each once."""
        known: dict[str, tuple] = {}

        def recorded(*args: Any) -> Any:
            known.setdefault(repr(picture(args)), args)
            return answer(*args)

        answer = self.rights[0].define()
        self.failed_by(recorded)
        return random.Random(0).sample(list(known.values()), min(len(known), MAX_CALLS))


@dataclass
class Right:
    """One right answer: its function and the functions of its file that it calls, as sources."""

    name: str  # "solution", or the name in RIGHT
    main: str  # what its function is called
    sources: dict[str, str]
    names: dict[str, Any]  # all else that they see

    def define(self, changed: Mapping[str, str] | None = None) -> Callable[..., Any]:
        """The function, with some of the sources changed."""
        space = dict(self.names)
        exec(compile("\n".join(({**self.sources, **(changed or {})}).values()), "<mutant>", "exec"), space)
        return space[self.main]


@dataclass(frozen=True)
class Mutant:
    """One changed place of one right answer."""

    task: Task = field(repr=False)
    right: Right
    part: str  # which of the answer's functions is changed
    change: Mutation

    @property
    def key(self) -> str:
        """The same for the same mutant judged by the same checks."""
        about = [self.task.fingerprint, self.task.name, self.right.name, self.part, self.change.source]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]

    def define(self) -> Callable[..., Any]:
        return self.right.define({self.part: self.change.source})


# What there is to change


def read_tasks(root: Path, only: Sequence[str], functions: Sequence[str]) -> list[Task]:
    """The tasks of the assignments under `root`, those of some assignments (by the start of their name) or functions.

    Raises
    ------
    Unusable
        If there are none, or a file can't be read.
    """
    tasks = []
    for path in sorted((root / "solutions").glob("*/*.ipynb")):
        if path.stem == path.parent.name and (not only or path.stem.startswith(tuple(only))):
            try:
                tasks += _tasks_of(root, path)
            except (NotebookError, SyntaxError) as error:
                raise Unusable(f"{path}: {error}") from None
    if unknown := set(functions) - {task.function for task in tasks}:
        known = ", ".join(task.function for task in tasks)
        raise Unusable(f"no check uses a function {min(unknown)!r}; there are: {known or 'none'}")
    if not tasks:
        raise Unusable(f"no solution under {root / 'solutions'} is called {' or '.join(only) or 'NAME/NAME.ipynb'}")
    return [task for task in tasks if not functions or task.function in functions]


def _tasks_of(root: Path, path: Path) -> Iterator[Task]:
    notebook = read_notebook(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names: dict[str, Any] = {"__name__": "solution"}
    defined: dict[str, dict[str, str]] = {}  # for each function of an answer cell, the functions of its cell
    for cell in cells:
        if not is_check(cell):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, f"<{grade_id(cell)}>", "exec"), names)
            if grade_id(cell) and not is_locked(cell):
                own = _functions(cell.source)
                defined |= dict.fromkeys(own, own)
    chapter = f"ch{path.stem[:2]}"
    library = Path(servinglab.grading.__file__).parent
    for function, own in defined.items():
        checks = [cell for cell in cells if is_check(cell) and function in free_names(cell.source)]
        if not checks:
            continue  # a helper of another function
        task = Task(f"{chapter}/{function}", checks, names)
        task.rights.append(Right("solution", function, _called(own, function), names))
        answers = root / "tests" / "graders" / f"{task.name}.py"
        read = [path, *library.glob("*.py")]
        if answers.is_file():
            read.append(answers)
            own, seen = _functions(answers.read_text(encoding="utf-8")), vars(module(answers))
            task.rights += [Right(name, name, _called(own, name), seen) for name in _names(seen["RIGHT"], own, answers)]
        task.fingerprint = hashlib.sha256(b"".join(each.read_bytes() for each in sorted(read))).hexdigest()
        yield task


def _functions(source: str) -> dict[str, str]:
    """The functions that a source defines at its top, in normal form."""
    defined = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return {node.name: normal(ast.unparse(node)) for node in defined}


def _names(functions: Iterable[Callable[..., Any]], own: Mapping[str, str], path: Path) -> Iterator[str]:
    for function in functions:
        if function.__name__ not in own:
            raise Unusable(f"{path}: {function.__name__} in RIGHT is no function of this file")
        yield function.__name__


def _called(own: Mapping[str, str], main: str) -> dict[str, str]:
    """A function's source and those of the functions that it calls, but for those with default arguments.

    Defaults are the switches by which one loop in tests/graders holds many wrong ideas: of a right answer most of it
    is out of use.
    """
    found, left = dict[str, str](), [main]
    while left:
        name = left.pop()
        found[name] = own[name]
        tree = ast.parse(own[name])
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in own and node.id not in found:
                (other,) = ast.parse(own[node.id]).body
                assert isinstance(other, ast.FunctionDef)
                if not other.args.defaults and not other.args.kw_defaults:
                    left.append(node.id)
    return found


def mutants_of(task: Task) -> list[Mutant]:
    """All mutants of a task's right answers that differ from each other and from every right answer."""

    def text(right: Right, source: str) -> str:
        return re.sub(rf"\b{right.main}\b", task.function, source)

    seen = {text(right, source) for right in task.rights for source in right.sources.values()}
    found = []
    for right in task.rights:
        for part, source in right.sources.items():
            for change in mutations(source):
                if (one := text(right, change.source)) not in seen:
                    seen.add(one)
                    found.append(Mutant(task, right, part, change))
    return found


# What the checks say


def judge(mutant: Mutant, line: Connection, limit_s: float, search_s: float) -> None:
    """In a process of its own: send the verdict; of a survivor then an input that tells it apart, if one is found."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    _limit(limit_s)
    try:
        answer = mutant.define()
        cell = mutant.task.failed_by(answer)
    except BaseException as error:  # also SystemExit: whatever it is, it is no right answer
        line.send({"verdict": "killed", "by": type(error).__name__})
        return
    line.send({"verdict": "killed" if cell else "survived", "by": cell})
    if not cell and search_s:
        _limit(search_s * 2 + 10)
        dice = random.Random(mutant.key)
        rights = [mutant.right, *(right for right in mutant.task.rights if right is not mutant.right)]
        definitions = [right.define() for right in rights]
        line.send(told_apart(answer, definitions, mutant.task.calls, dice=dice, seconds=search_s))


def _limit(seconds: float) -> None:
    """Let this process end, by a signal that nothing handles, after so much processor time; bound its memory."""
    import resource

    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * PATIENCE)
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such bound
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def judged(
    mutants: Sequence[Mutant], *, jobs: int, limit_s: float, search_s: float, explained: Callable[[Mutant], bool]
) -> Iterator[tuple[Mutant, dict]]:
    """Judge mutants side by side, each in a process of its own; yield each with its verdict when it is there."""
    fork = multiprocessing.get_context("fork")
    waiting = list(reversed(mutants))
    running: dict[int, tuple[Any, Connection, Mutant]] = {}
    limits: dict[int, float] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                if id(mutant.right) not in limits:
                    limits[id(mutant.right)] = max(limit_s, 10 * _seconds_of(mutant.task, mutant.right))
                ours, theirs = fork.Pipe(duplex=False)
                search = 0.0 if explained(mutant) else search_s
                about = mutant, theirs, limits[id(mutant.right)], search
                process = fork.Process(target=judge, args=about, daemon=True)
                with _no_interrupt():
                    process.start()
                    running[process.sentinel] = process, ours, mutant
                theirs.close()
            for sentinel in wait(list(running)):
                process, ours, mutant = running.pop(sentinel)
                process.join()
                yield mutant, _verdict(process.exitcode, list(_messages(ours)))
    finally:
        for process, _, _ in running.values():
            process.kill()


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Within this block Ctrl-C waits: what it raises while a process forks is lost. The child never sees it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _seconds_of(task: Task, right: Right) -> float:
    """Processor time that the checks take with a right answer, which must pass them all."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = task.failed_by(right.define())
        if failed:
            raise Unusable(f"{task.name}: {failed} refuses the unchanged answer {right.name!r}")
        seconds = time.process_time() - start
        _ = task.calls  # before the fork: once for all mutants
    return seconds


def _messages(line: Connection) -> Iterator[Any]:
    with contextlib.closing(line), contextlib.suppress(EOFError):
        while True:
            yield line.recv()


def _verdict(status: int, messages: list[Any]) -> dict:
    if not messages:
        late = -status in (signal.SIGPROF, signal.SIGALRM)
        return {"verdict": "timed out" if late else "killed", "by": "time" if late else f"exit status {status}"}
    verdict, *apart = messages
    return {**verdict, "apart": apart[0] if apart else None}


# What is known of survivors


@dataclass(frozen=True)
class Explanation:
    """Why mutants of one line are as right as the answer."""

    task: str
    answer: str
    was: str
    now: tuple[str, ...]
    why: str

    def fits(self, mutant: Mutant) -> bool:
        about = (mutant.task.name, mutant.right.name, mutant.change.was)
        return about == (self.task, self.answer, self.was) and mutant.change.now in self.now


def read_explanations(path: Path) -> list[Explanation]:
    """The explained survivors; none where there is no file.

    Raises
    ------
    Unusable
        If the file is no TOML, or an entry lacks something.
    """
    if not path.is_file():
        return []
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{path}: {error}") from None
    found = []
    for number, entry in enumerate(entries, 1):
        texts = {name: entry.get(name) for name in ("task", "answer", "was", "why")}
        now = entry.get("now")
        now = [now] if isinstance(now, str) else now
        good = isinstance(now, list) and now and all(isinstance(text, str) for text in now)
        if not good or not all(isinstance(text, str) for text in texts.values()) or not texts["why"].strip():
            raise Unusable(f"{path}: entry {number} needs the texts task, answer, was, now and why; got {entry}")
        lines = [_stripped(text) for text in now]
        found.append(Explanation(**{**texts, "was": _stripped(texts["was"]), "now": tuple(lines)}))
    return found


def _stripped(text: str) -> str:
    return "\n".join(map(str.strip, text.strip("\n").splitlines()))


def stale(explanations: Iterable[Explanation], mutants: Sequence[Mutant], results: Mapping[str, dict]) -> Iterator[str]:
    """One sentence for each explanation that fits no mutant, or only such as a check notices."""
    for one in explanations:
        for now in one.now:
            fitting = [m for m in mutants if one.fits(m) and m.change.now == now]
            verdicts = [results.get(m.key, {"verdict": "survived"}) for m in fitting]
            about = f"{one.task}, {one.answer}: {one.was!r} → {now!r}"
            if not fitting:
                yield f"{about}: no such mutant is made any more"
            elif all(verdict["verdict"] != "survived" for verdict in verdicts):
                yield f"{about}: noticed by {verdicts[0]['by']}, so it is not equivalent"


# What is printed


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


# The command


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
