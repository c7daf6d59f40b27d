"""Why is a survivor as right as the answer that it was made from? `tests/graders/equivalent.toml` says so in words.

[[equivalent]]
task = "ch01/smallest_batch"
answer = "solution"                        # or a name in RIGHT
was = "B = max(1, round(exact))"           # the changed lines as the report shows them, wherever they stand
now = ["B = max(1, int(exact))", "..."]    # one text or several
why = "the next line adds one where B is too small"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.tasks import Mutant, Unusable


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
