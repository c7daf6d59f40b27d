"""The words that a check cell is written in: call a function, compare, and say what to do about it.

A failed check says five things: the case, what came back, what was expected, the likely cause, and where to read.
`Task` works on the learner's own functions (in Jupyter) and on the stand-ins that the grader puts in their place
(the function then runs in another process). Inside `hidden()` a message keeps the words of the case, the cause and
the reading, and leaves out every input and every number, so that feedback gives no hidden test away.

What this module does not do: run notebooks or count points. That is `grade`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from servinglab.grading.wire import Opaque, WireError, decode, encode

_hidden = False

UNFILLED = "the gap is not filled yet: replace `raise NotImplementedError()` by your own lines"


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

    Examples
    --------
    >>> task = Task(lambda x: x * x, "square(x)", read="chapter 0")
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

    def __init__(self, function: Callable[..., Any], signature: str, read: str) -> None:
        self.function, self.signature, self.read = function, signature, read
        self.name = signature.split("(")[0]

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
            What is likely wrong when none of `likely` matches.
        likely : sequence of (answer or predicate, str)
            Wrong answers that betray their cause, tried in order.
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
            If the answer is missing, not plain or not equal.
        """
        got = self.answer(*args, case=case, cause=cause)
        if same(got, want, tolerance):
            return got
        for wrong, why in likely:
            if wrong(got) if callable(wrong) else same(got, wrong, tolerance):
                cause = why
                break
        expected = words if _hidden else show(want) + (f": {words}" if words else "")
        came = describe(got, want) if _hidden else show(got)
        raise CheckFailed(self._case(case, args), came, expected, cause, self.read)

    def answer(self, *args: Any, case: str, cause: str = "") -> Any:
        """Call the function and return its answer as plain values, for checks of a property."""
        try:
            return plain(self.function(*args))
        except Unanswered as error:
            failure = error
        except Exception as error:
            failure = Unanswered.from_error(type(error).__name__, str(error))
        came = failure.public if _hidden else failure.came
        raise CheckFailed(self._case(case, args), came, "an answer", failure.cause or cause, self.read)

    def require(self, holds: bool, *, case: str, want: str, cause: str, came: str = "", args: tuple = ()) -> None:
        """Fail unless `holds`; `want` and `cause` are words, `came` is shown for visible checks only."""
        if not holds:
            shown = "an answer that breaks this rule" if _hidden or not came else came
            raise CheckFailed(self._case(case, args), shown, want, cause, self.read)

    def _case(self, case: str, args: tuple) -> str:
        if _hidden:
            return f"{case} (a hidden check of {self.signature})"
        return f"{case}: {self.name}({', '.join(show(arg) for arg in args)})" if args else f"{case}: {self.signature}"


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


def is_number(value: Any) -> bool:
    """Whether a plain value is a number (True and False are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def numbers(value: Any) -> list[float] | None:
    """A plain sequence or array of numbers as a list of floats; None for anything else."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not all(is_number(item) for item in value):
        return None
    return [float(item) for item in value]


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


def show(value: Any, limit: int = 160) -> str:
    """A short, readable form of a plain value: six significant figures, long lists cut."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        text = repr(value)
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, (list, tuple)):
        items = [show(item, 40) for item in value[:8]]
        more = [f"… ({len(value)} in all)"] if len(value) > 8 else []
        text = "[" + ", ".join(items + more) + "]"
    elif type(value).__module__ == "numpy":
        text = show(value.tolist(), limit)
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
