"""What do the checks say of a mutant? Each is judged in a process of its own, with bounds on time and memory.

What this module does not do: run on Windows, which can't fork, or protect files from what a mutant does to them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from mutation.tasks import Mutant, Right, Task, Unusable
from mutation.told_apart import told_apart

MEMORY_BYTES = 4 * 2**30  # as much as a submission may use
MIN_S = 0.1  # of processor time for a mutant: the clock that ends it is coarse
PATIENCE = 20  # how many times its processor time a mutant may take by the clock


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
                    limits[id(mutant.right)] = max(limit_s, MIN_S, 10 * _seconds_of(mutant.task, mutant.right))
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
