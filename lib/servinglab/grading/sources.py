"""An assignment's text source, read in one of its variants.

The source is `solutions/NAME.md`, a MyST text notebook. A code cell says what it is in one line:

- `:given: ID` is shown, and locked;
- `:answer: ID` is the reader's, with its gap between `### BEGIN SOLUTION` and `### END SOLUTION`;
- `:check: ID` gives points (`:points: N` if not one). What stands before its first `-` names its task;
- `:shared: TASK` is put in front of every later check of that task, and is no cell of its own;
- `:draw:` is run when the assignment is built, and never released. It sets the names that `{{ … }}` uses.

Anywhere in the text and the code, `{{ expression }}` stands for its value: it sees the names that the draws set and the
functions of the solution. (Draws, given cells and answers are filled in and run first, in their order; they see what
came before them.) `{{ expression | .3g }}` formats it. In code a value without a format is
written as Python writes it, and a `Code` as it is: names, for example. A line that holds nothing but an expression
goes away where its value is an empty text.

A variant is a number. Variant 0 is the one that the course ships. A draw sees

- `variant`, and `dice`, a `random.Random` of that variant;
- `pick(first, *others)`: `first` in variant 0, one of the others in any other;
- `ask(function, parameters, answer)`: the function's `Ask`, what it is asked for in this variant;
- `adapt`: where a variant changes a rule, the draw puts under the function's name what makes an answer to variant 0,
  a function, an answer to this one.

What this module does not do: judge what it reads, or write a notebook. That is `build`.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from servinglab.grading.contracts import WORDS, Contract, draw_contract

KINDS = ("given", "answer", "check", "shared", "draw")
_EXPRESSION = re.compile(r"\{\{\s*(.+?)(?:\s*\|\s*([^|{}]+?))?\s*\}\}")


class SourceError(Exception):
    """An assignment's text that can't be released as it is; the text says what to change."""


class Code(str):
    """A piece of code: `{{ … }}` writes it as it is, without quotes, also where it is an argument of a call."""

    def __repr__(self) -> str:
        return str(self)


class Ask:
    """How one function is asked in a variant, for the text and the code of its source.

    In the text, `{{ rate }}` is the signature and `{{ rate(6, 0.5, 0.03) }}` a call of it, both as this variant asks,
    and `{{ rate.of(6, 0.5, 0.03) }}` is the solution's answer to that call. Arguments are written as in the checks.
    """

    def __init__(self, name: str, contract: Contract, names: dict[str, Any]) -> None:
        self.name, self.contract, self._names = name, contract, names

    def __str__(self) -> str:
        return f"{self.name}({self.contract.parameters})"

    def __call__(self, *args: Any) -> Code:
        """A call, as this variant asks."""
        return Code(f"{self.name}({', '.join(map(repr, self.contract.arguments(args)))})")

    def of(self, *args: Any) -> Any:
        """The solution's answer to a call, as this variant asks."""
        return self._names[self.name](*self.contract.arguments(args))

    def truth(self, *args: Any) -> Any:
        """The solution's answer to a call, as the checks compare it."""
        return self.contract.answer(self.of(*args))

    @property
    def parameters(self) -> Code:
        return Code(self.contract.parameters)

    @property
    def asked(self) -> Code:
        """The last argument of the `Task`, with its comma; empty where the checks' own way is asked for."""
        own = self.contract.shipped == self.contract.asked and self.contract.factor == 1
        return Code("" if own else f'asked=("{self.contract.parameters}", {self.contract.factor}),')

    def name_of(self, argument: str) -> Code:
        """What an argument of the checks is called in this variant."""
        return Code(self.contract.name_of(argument))

    def unit(self, argument: str) -> str:
        """The unit of an argument: what stands after the last ``_`` of its name."""
        return self.name_of(argument).rpartition("_")[2]

    def unit_in_words(self, argument: str) -> str:
        """``"seconds"`` or ``"milliseconds"``; of a rate ``"per second"`` or ``"per minute"``."""
        return WORDS[self.unit(argument)]

    @property
    def per(self) -> str:
        """``"second"`` or ``"minute"``: the unit of time in an answer that is a rate."""
        return "second" if self.contract.factor == 1 else "minute"

    def read_in(self, *lists: str) -> Code:
        """The solution's line that makes the checks' arguments of the asked ones; `lists` names those of numbers."""
        return Code(self.contract.read_in(*lists))

    def result(self, expression: str) -> Code:
        """An expression of the solution, in the unit that this variant asks for."""
        return Code(expression if self.contract.factor == 1 else f"{self.contract.factor} * ({expression})")


@dataclass(frozen=True)
class Source:
    """One variant of a text source: cells with their kind and identity in `metadata`, everything filled in.

    `names` holds what the draws, the given cells and the solutions define; `adapt` maps a function's name to what
    makes an answer to variant 0 an answer to this one.
    """

    notebook: NotebookNode
    names: dict[str, Any]
    adapt: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]


def read_source(text: Path, variant: int = 0, attempt: int = 0) -> Source:
    """Read a source in one variant; `attempt` rolls its dice anew.

    Raises
    ------
    SourceError
        For metadata that is unknown, and for a draw, a solution or an expression that fails.
    """
    import jupytext

    notebook = jupytext.read(text, fmt="md:myst")
    dice = random.Random(f"{text.stem} {variant} {attempt}")

    def pick(first: Any, *others: Any) -> Any:
        return dice.choice(others) if variant and others else first

    adapt: dict[str, Any] = {}
    names: dict[str, Any] = {"variant": variant, "dice": dice, "pick": pick, "Code": Code, "adapt": adapt}

    def ask(function: str, parameters: str, answer: str = "", keep: Sequence[str] = ()) -> Ask:
        contract = draw_contract(parameters, answer, variant, dice, keep)
        adapt[function] = contract.fit
        return Ask(function, contract, names)

    names["ask"] = ask
    cells = [(cell, *_kind(cell, f"{text.name}: cell {number}")) for number, cell in enumerate(notebook.cells, 1)]
    for runs in (True, False):
        for cell, kind, _, where in cells:
            if runs == (kind in ("draw", "given", "answer")):
                cell.source = _filled(cell.source, names, where, code=cell.cell_type == "code")
                if runs:
                    _run(cell.source, names, where)
    shared: dict[str, str] = {}
    for cell, kind, identity, where in cells:
        if kind == "shared":
            if identity in shared:
                raise SourceError(f"{where}: two shared cells for one task")
            shared[identity] = cell.source.strip()
        if kind == "check" and (common := shared.get(identity.split("-")[0])):
            cell.source = f"{common}\n\n{cell.source}"
    notebook.cells = [cell for cell, kind, *_ in cells if kind not in ("draw", "shared")]
    return Source(notebook, names, adapt)


def _kind(cell: NotebookNode, where: str) -> tuple[str, str, str]:
    """A cell's kind and identity, empty for one of plain text or code, and where it is, for messages."""
    own = dict(cell.metadata)
    kinds = [kind for kind in KINDS if kind in own]
    if len(kinds) > 1 or set(own) - {*KINDS, "points"} or (kinds and cell.cell_type != "code"):
        raise SourceError(f"{where} has the metadata {sorted(own)}; one kind is allowed")
    if not kinds:
        return "", "", where
    identity = "" if kinds == ["draw"] else str(own[kinds[0]])
    return kinds[0], identity, f"{where} ({identity or kinds[0]})"


def _filled(text: str, names: dict[str, Any], where: str, *, code: bool) -> str:
    """The text with each `{{ expression }}` replaced by its value.

    Examples
    --------
    >>> _filled("{{ x }} s of {{ sum(many) | .1f }}", {"x": 0.25, "many": [1, 2]}, "", code=False)
    '0.25 s of 3.0'
    >>> _filled("wait({{ name }}, {{ many }})", {"name": "a", "many": [1, 0.5]}, "", code=True)
    "wait('a', [1, 0.5])"
    """

    def value(found: re.Match[str]) -> str:
        expression, form = found.groups()
        try:
            result = eval(expression, names)
            result = result.item() if hasattr(result, "item") else result
            if isinstance(result, (set, frozenset)):
                raise TypeError("a set has another order in every process: sort it")
            if form:
                return format(result, form)
            if code and not isinstance(result, (Code, Ask)):
                return repr(result)
            return f"{result:.12g}" if isinstance(result, float) else str(result)
        except Exception as error:
            raise SourceError(f"{where}: {{{{ {expression} }}}} fails: {type(error).__name__}: {error}") from None

    lines = []
    for line in text.split("\n"):
        filled = _EXPRESSION.sub(value, line)
        if filled.strip() or not line.strip():
            lines.append(filled)
    return "\n".join(lines)


def _run(source: str, names: dict[str, Any], where: str) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, where, "exec"), names)
    except Exception as error:
        raise SourceError(f"{where} fails: {type(error).__name__}: {error}") from None
