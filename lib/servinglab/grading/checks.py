"""The words that a check cell is written in: call a function, compare, and say what to do about it.

A failed check says five things: the case, what came back, what was expected, the likely cause, and where to read.
`Task` works on the learner's own functions (in Jupyter) and on the stand-ins that the grader puts in their place
(the function then runs in another process). Both ways a function is called twice, each time with copies of the
arguments: it must leave them as they are, and give the same answer again. Inside `hidden()` a message keeps the words
of the case, the cause and the reading, and leaves out every input and every number, so that feedback gives no hidden
test away. Inside `strict()` a check also judges itself: an idea that could not be told from another is an error.

What this module does not do: run notebooks or count points. That is `grade`.
"""

from __future__ import annotations

import builtins
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from servinglab.grading.contracts import Contract
from servinglab.grading.kinds import arrays_as_lists, in_words, is_number, misfit, numbers
from servinglab.grading.wire import Opaque, WireError, decode, encode, picture

__all__ = ["CheckFailed", "Ideas", "Task", "Unanswered", "hidden", "is_number", "numbers", "plain", "same", "strict"]

_hidden = False
_strict: Ideas | None = None

UNFILLED = "the gap is not filled yet: replace `raise NotImplementedError()` by your own lines"
NOTHING = "nothing came back: does every way through your function end in a `return` with its result?"
KEEPS = (
    "something is kept from one call to the next: a list outside the function, or a default such as `found=[]`;"
    " or the answer is drawn at random"
)
ROUNDED = "the answer is rounded: return it with all its digits, and round only what you print"


@contextmanager
def hidden() -> Iterator[None]:
    """Within this block, messages give no inputs and no numbers away."""
    global _hidden
    before, _hidden = _hidden, True
    try:
        yield
    finally:
        _hidden = before


class CheckFailed(AssertionError):
    """One failed check. `str()` is the five-line message; Jupyter shows nothing else."""

    def __init__(self, case: str, came: str, expected: str, cause: str, read: str) -> None:
        self.case, self.came, self.expected, self.cause, self.read = case, came, expected, cause, read
        super().__init__(str(self))

    def __str__(self) -> str:
        rows = [
            ("case", self.case),
            ("came back", self.came),
            ("expected", self.expected),
            ("likely", self.cause),
            ("read", self.read),
        ]
        return "\n".join(f"{label + ':':<11}{text}" for label, text in rows if text)

    def _render_traceback_(self) -> list[str]:
        return ["This check does not pass yet.", *str(self).splitlines()]


class Unanswered(Exception):
    """The function under test gave no answer.

    `came` says what happened instead; `public` says it without a word that the submission could have chosen, for
    the messages of hidden checks.
    """

    def __init__(self, came: str, public: str = "an error", cause: str = "") -> None:
        super().__init__(came)
        self.came, self.public, self.cause = came, public, cause

    @classmethod
    def from_error(cls, name: str, text: str, place: str = "") -> Unanswered:
        """For an exception of class `name`, raised at `place` where the function ran."""
        kind = getattr(builtins, name, None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        return cls(
            name + (f": {text}" if text else "") + (f" ({place})" if place else ""),
            f"an error ({name})" if known else "an error",
            UNFILLED if name == "NotImplementedError" else "",
        )


@dataclass
class Ideas:
    """What `strict()` collects: for each visible case, the answers that the ideas lead to.

    `cases` maps a function's name to one list for each case, of (idea, answer, whether another idea or the right
    answer looks the same).
    """

    cases: dict[str, list[list[tuple[str, Any, bool]]]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """One sentence for each idea that no visible case tells from the others and from the right answer."""
        found = []
        for name, cases in self.cases.items():
            told_apart = {why for case in cases for why, _, alike in case if not alike}
            for why in dict.fromkeys(why for case in cases for why, _, _ in case):
                if why not in told_apart:
                    found.append(f"{name}: no visible case tells this idea from the others: {why!r}")
        return found


@contextmanager
def strict() -> Iterator[Ideas]:
    """Within this block, checks of right answers also collect what their wrong ideas would answer.

    Examples
    --------
    >>> with strict() as ideas:
    ...     task = Task(lambda x: 2 * x, "double(x)", "", returns=int, ideas=[(lambda x: x**2, "that is the square")])
    ...     _ = task.gives(2, want=4, case="two", cause="")
    >>> ideas.problems()
    ["double: no visible case tells this idea from the others: 'that is the square'"]
    """
    global _strict
    before, _strict = _strict, Ideas()
    try:
        yield _strict
    finally:
        _strict = before


class Task:
    """One function under test, and where its chapter explains it.

    Parameters
    ----------
    function : callable
        The learner's function.
    signature : str
        How a call reads, for example ``pot_rate(B, fixed_s, per_request_s)``.
    read : str
        The chapter and section to read when a check fails.
    returns : type, union or list, optional
        What every answer must be, see `kinds.misfit`: ``float``, ``int | None``, ``[float]`` (a list of any length),
        ``[int, int]`` (a list of two). A tuple or an array counts as a list. Without it any plain value goes.
    ideas : sequence of (function, str)
        Wrong answers worked out from the arguments, each with the cause that it betrays. One that can't be worked out
        for some arguments raises, and is passed over. `gives` tries them after those of the case; where several lead
        to the answer that came, the message names them all.
    asked : (str, int), optional
        Where a variant asks the function in another way: its parameters, and what it answers for 1. The arguments and
        answers of the checks, and of the ideas, stay those of `signature`; messages show the function's own.

    Examples
    --------
    >>> task = Task(lambda x: x * x, "square(x)", read="chapter 0", ideas=[(lambda x: 2 * x, "that is twice x")])
    >>> task.gives(3, want=9, case="a small number", cause="multiply x by itself")
    9
    >>> task.gives(3, want=8, case="a small number", cause="multiply x by itself", likely=[(9, "never")])
    Traceback (most recent call last):
    ...
    servinglab.grading.checks.CheckFailed: case:      a small number: square(3)
    came back: 9
    expected:  8
    likely:    never
    read:      chapter 0
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: str,
        read: str,
        *,
        returns: Any = None,
        ideas: Sequence[tuple[Callable[..., Any], str]] = (),
        asked: tuple[str, int] | None = None,
    ) -> None:
        self.function, self.read, self.returns, self.ideas = function, read, returns, ideas
        self.name, _, own = signature.rstrip(")").partition("(")
        parameters, factor = asked or (own, 1)
        self.signature = f"{self.name}({parameters})"
        self.contract = Contract(_names(own), _names(parameters), factor)

    def gives(
        self,
        *args: Any,
        want: Any,
        case: str,
        cause: str,
        likely: Sequence[tuple[Any, str]] = (),
        words: str = "",
        tolerance: float = 1e-9,
    ) -> Any:
        """Call the function and compare its answer with `want`.

        Parameters
        ----------
        *args
            The call's arguments.
        want : None, bool, str, number, or a sequence or dictionary of these
            The right answer. Numbers are compared within `tolerance`, sequences whatever their type.
        case : str
            The case in words, without its numbers: it is shown for hidden checks too.
        cause : str
            What is likely wrong when no idea matches.
        likely : sequence of (answer or predicate, str)
            Wrong answers of this case that betray their cause. A predicate comes after all answers and ideas.
        words : str
            What the right answer means, without its numbers.
        tolerance : float
            Relative, and absolute for answers within 1 of zero.

        Returns
        -------
        object
            The plain answer.

        Raises
        ------
        CheckFailed
            If the answer is missing, not plain, of the wrong kind or not equal.
        """
        known = [*((answer, why) for answer, why in likely if not callable(answer)), *self._worked_out(args)]

        def betrayed(got: Any) -> str:
            """The causes that this wrong answer betrays, or nothing."""
            causes = dict.fromkeys(why for wrong, why in known if same(got, wrong, tolerance))
            guesses = (why for wrong, why in likely if callable(wrong) and _says_yes(wrong, got))
            return "; or: ".join(causes) or next(guesses, "")

        got = self._answer(args, case, cause, betrayed)
        if same(got, want, tolerance):
            if _strict is not None and not _hidden and self.ideas:
                self._judge_ideas(want, known, likely, tolerance)
            return got
        own = self.contract.asked_for
        rounded = is_rounded(got, want) or is_rounded(own(got), own(want))  # before or after a change of units
        cause = betrayed(got) or (ROUNDED if rounded else cause)
        if got is None and not any(wrong is None for wrong, _ in known):
            cause = f"{NOTHING} If it is None on purpose: {cause}"
        if _hidden:
            self._fail(case, args, describe(got, want), words, cause)
        came, expected = show_apart(own(got), own(want))
        self._fail(case, args, came, f"{expected}: {words}" if words and words != expected else expected, cause)

    def answer(self, *args: Any, case: str, cause: str = "") -> Any:
        """Call the function, twice, and return its answer as plain values, for checks of a property.

        Raises
        ------
        CheckFailed
            If the answer is missing, not plain or of the wrong kind, if the second call gives another one, or if a
            call changes its arguments.
        """
        return self._answer(args, case, cause, lambda got: "")

    def _answer(self, args: tuple, case: str, cause: str, betrayed: Callable[[Any], str]) -> Any:
        got, changed = self._call(args, case, cause)
        if changed:
            why = f"your function changes {changed}, which belongs to whoever calls it: work on a copy"
            self._fail(case, args, f"{changed} was changed by the call", "the arguments as they were", why)
        if self.returns is not None and (wrong := misfit(got, self.returns)):
            kind = in_words(self.returns)
            why = betrayed(got) or (NOTHING if got is None else f"the answer must be {kind}")
            shown = (
                show_apart(own := self.contract.asked_for(got), round(own))[0] if is_fraction(got) else self._show(got)
            )
            self._fail(case, args, wrong if _hidden else shown, kind, why)
        again, _ = self._call(args, case, cause)
        if picture([again]) != picture([got]):
            came = "two answers" if _hidden else f"{self._show(got)}, then {self._show(again)}"
            self._fail(case, args, f"{came}, for the same call", "the same answer each time", KEEPS)
        return sorted(got) if isinstance(got, (set, frozenset)) and self.returns == [str] else got

    def require(self, holds: bool, *, case: str, want: str, cause: str, came: str = "", args: tuple = ()) -> None:
        """Fail unless `holds`; `want` and `cause` are words, `came` is shown for visible checks only."""
        if not holds:
            self._fail(case, args, "an answer that breaks this rule" if _hidden or not came else came, want, cause)

    def _fail(self, case: str, args: tuple, came: str, want: str, cause: str) -> NoReturn:
        raise CheckFailed(self._case(case, args), came, want, cause, self.read)

    def _call(self, args: tuple, case: str, cause: str) -> tuple[Any, str]:
        """The answer to one call with copies of `args`, and the name of an argument that the call changed, if any."""
        asked = self.contract.arguments(args) if args else ()
        try:
            answer, after = observe(self.function, asked)
            answer = self.contract.answer(arrays_as_lists(plain(answer)))
        except Unanswered as error:
            failure = error
        except Exception as error:
            failure = Unanswered.from_error(type(error).__name__, str(error))
        else:
            changed = zip(self.contract.asked, picture(asked), after, strict=False)
            return answer, next((f"`{name}`" for name, before, now in changed if before != now), "")
        came = failure.public if _hidden else failure.came
        raise CheckFailed(self._case(case, args), came, "an answer", failure.cause or cause, self.read)

    def _worked_out(self, args: tuple) -> list[tuple[Any, str]]:
        """What each of the task's ideas answers, as far as it can be worked out for these arguments."""
        found = []
        for idea, why in self.ideas:
            try:
                found.append((arrays_as_lists(idea(*copy.deepcopy(args))), why))
            except (ArithmeticError, ValueError, LookupError, TypeError, StopIteration):
                continue
        return found

    def _judge_ideas(self, want: Any, known: list, likely: Sequence[tuple[Any, str]], tolerance: float) -> None:
        assert _strict is not None
        for wrong, why in likely:
            if callable(wrong) and _says_yes(wrong, want):
                raise ValueError(f"{self.name}: the right answer looks like the wrong idea {why!r}")
            if not callable(wrong) and same(wrong, want, tolerance):
                raise ValueError(f"{self.name}: the right answer is the wrong idea {why!r}")
        _strict.cases.setdefault(self.name, []).append(
            [
                (
                    why,
                    wrong,
                    same(wrong, want, tolerance)
                    or any(other != why and same(wrong, answer, tolerance) for answer, other in known),
                )
                for wrong, why in known
            ]
        )

    def _case(self, case: str, args: tuple) -> str:
        if _hidden:
            return f"{case} (a hidden check of {self.signature})"
        asked = self.contract.arguments(args) if args else ()
        return f"{case}: {self.name}({', '.join(map(show, asked))})" if args else f"{case}: {self.signature}"

    def _show(self, answer: Any) -> str:
        return show(self.contract.asked_for(answer))


def _names(parameters: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in parameters.split(",") if name.strip())


def _says_yes(predicate: Callable[[Any], Any], got: Any) -> bool:
    """Whether a predicate holds; one that can't read this answer doesn't."""
    try:
        return bool(predicate(got))
    except Exception:
        return False


def observe(function: Callable[..., Any], args: tuple) -> tuple[Any, list[str]]:
    """Call `function` with copies of `args`; return its answer and `picture` of the arguments after the call."""
    elsewhere = getattr(function, "observe", None)  # the stand-in for a function of another process
    if elsewhere is not None:
        return elsewhere(*args)
    copies = copy.deepcopy(args)
    answer = function(*copies)
    return answer, picture(copies)


def plain(value: Any) -> Any:
    """Return `value` with numpy scalars and 0-d arrays turned into numbers; refuse any object that is not plain data.

    Raises
    ------
    Unanswered
        For an object of a class of its own, such as one whose ``==`` always says yes.

    Examples
    --------
    >>> import numpy as np
    >>> plain([np.float64(0.5), np.int64(3), np.array(2.0)])
    [0.5, 3, 2.0]
    """
    try:
        value = decode(encode(value))
    except (WireError, RecursionError):
        raise Unanswered("an answer that is not plain data", public="an answer that is not plain data") from None
    odd = _find_opaque(value)
    if odd is not None:
        raise Unanswered(
            f"an object of class {odd.kind}",
            public="an answer that is not plain data",
            cause="return plain numbers, None, lists or dictionaries of them",
        )
    return value


def _find_opaque(value: Any) -> Opaque | None:
    if isinstance(value, Opaque):
        return value
    items: list[Any] = []
    if isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set)):
        items = list(value)
    return next((found for item in items if (found := _find_opaque(item)) is not None), None)


def same(got: Any, want: Any, tolerance: float = 1e-9) -> bool:
    """Whether two plain values are equal, numbers within `tolerance`.

    Examples
    --------
    >>> same(0.1 + 0.2, 0.3), same(True, 1), same((1.0, 2), [1, 2]), same(None, 0)
    (True, False, True, False)
    """
    if is_number(got) and is_number(want):
        return bool(got == want) or math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance)
    if type(got).__module__ == "numpy":
        got = got.tolist()
    if type(want).__module__ == "numpy":
        want = want.tolist()
    if isinstance(want, (list, tuple)):
        return (
            isinstance(got, (list, tuple))
            and len(got) == len(want)
            and all(same(g, w, tolerance) for g, w in zip(got, want, strict=True))
        )
    if isinstance(want, dict):
        return isinstance(got, dict) and set(got) == set(want) and all(same(got[k], want[k], tolerance) for k in want)
    return type(got) is type(want) and bool(got == want)


def is_fraction(value: Any) -> bool:
    """Whether a plain value is a finite number that isn't whole."""
    return isinstance(value, float) and math.isfinite(value) and value != int(value)


def is_rounded(got: Any, want: Any) -> bool:
    """Whether `got` is `want` rounded to one to eight digits after the point, in each number where they differ.

    Examples
    --------
    >>> is_rounded(8.82, 8.8235294), is_rounded([1.5, 0.67], [1.5, 2 / 3]), is_rounded(8.83, 8.8235294)
    (True, True, False)
    """
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        pairs = list(zip(got, want, strict=False))
        return len(got) == len(want) > 0 and all(same(*pair) or is_rounded(*pair) for pair in pairs)
    if not (is_fraction(got) and is_fraction(want)):
        return False
    return any(
        math.isclose(got, round(got, digits), rel_tol=1e-12) and abs(got - want) <= 0.5000001 * 10**-digits
        for digits in range(1, 9)
    )


def show_apart(got: Any, want: Any) -> tuple[str, str]:
    """Two different plain values as texts that differ: the first entries that do, or all digits, where `show` hides it.

    Examples
    --------
    >>> show_apart(2.5, 3), show_apart(270.00000000000006, 270)
    (('2.5', '3'), ('270.00000000000006', '270'))
    >>> show_apart([0] * 9 + [1], [0] * 9 + [2])
    ('entry 10 is 1', 'entry 10 is 2')
    """
    texts = show(got), show(want)
    if texts[0] != texts[1]:
        return texts
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        for place, pair in enumerate(zip(got, want, strict=False), start=1):
            if not same(*pair):
                came, expected = show_apart(*pair)
                return f"entry {place} is {came}", f"entry {place} is {expected}"
    return repr(got), repr(want)


def show(value: Any, limit: int = 160) -> str:
    """A short, readable form of a plain value: six significant figures, long lists cut."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        text = repr(value)
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, (list, tuple)):
        items = [show(item, 40) for item in value[:8]]
        text = _listed(items, len(value))
        while len(text) > limit and len(items) > 1:
            items.pop()
            text = _listed(items, len(value))
    elif type(value).__module__ == "numpy":
        text = show(value.tolist(), limit)
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _listed(items: list[str], total: int) -> str:
    return "[" + ", ".join(items + [f"… ({total} in all)"] * (total > len(items))) + "]"


def describe(got: Any, want: Any) -> str:
    """What kind of wrong answer this is, without a number."""
    if got is None:
        return "None"
    if isinstance(got, bool):
        return str(got)
    if is_number(got):
        if math.isnan(got):
            return "not a number (nan)"
        if not is_number(want):
            return "a number"
        return "a number, too large" if got > want else "a number, too small"
    if type(got).__module__ == "numpy" or isinstance(got, (list, tuple)):
        if not isinstance(want, (list, tuple)):
            return "a list"
        return "a list with wrong values" if len(got) == len(want) else "a list of the wrong length"
    return f"a {type(got).__name__} with wrong values" if type(got) is type(want) else f"a {type(got).__name__}"
