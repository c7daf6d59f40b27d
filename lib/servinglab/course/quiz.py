"""Questions with fresh numbers, and guesses that the page remembers.

The words of a question are in the chapter, so that they can be translated; this module holds its numbers: many
variants of each question, each with the right answer and the typical wrong ones. `Question.grade` is the rule by which
the page grades, written a second time there and compared by a test. Nothing here stores an answer: the page keeps a
guess in the reader's own browser.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servinglab.base.checks import check_number
from servinglab.web import Component, named, word

_SLACK = 1e-9  # absolute, so that an exact answer survives the trip through decimal text


@dataclass(frozen=True)
class Variant:
    """One draw of a question.

    Parameters
    ----------
    given : mapping
        Name -> number that the text shows. A number must be exact when shown with six digits.
    answer : float, int or str
        The right answer; for a question with choices, the key of the right one.
    wrong : mapping
        Hint -> the number that somebody with that wrong idea would give. Empty for a question with choices.
    also : mapping
        Name -> number that the explanation shows, rounded to four digits.
    """

    given: Mapping[str, float]
    answer: float | str
    wrong: Mapping[str, float] = field(default_factory=dict)
    also: Mapping[str, float] = field(default_factory=dict)

    def shown(self) -> dict[str, str]:
        """The text of every name that a chapter may show, the answer among them.

        Results have four digits, and from 1,000 on all those before the point.

        Examples
        --------
        >>> Variant(given={"batch": 16, "fixed_s": 0.4}, answer=22.2222).shown()
        {'batch': '16', 'fixed_s': '0.4', 'answer': '22.22'}
        >>> Variant(given={}, answer=131_072.4).shown()
        {'answer': '131072'}
        """
        rounded = dict(self.also)
        if not isinstance(self.answer, str):
            rounded["answer"] = self.answer
        return {name: f"{value:g}" for name, value in self.given.items()} | {
            name: f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" for name, value in rounded.items()
        }


@dataclass(frozen=True)
class Grade:
    """What became of an answer: right or not, and the hint that fits it, if one does."""

    right: bool
    hint: str | None = None


@dataclass(frozen=True)
class Question:
    """A question's numbers.

    Parameters
    ----------
    key : str
        Its name in the chapter.
    variants : tuple of Variant
        What the page draws from.
    unit : str
        Unit of the answer; empty for a count.
    tolerance : float
        Relative: 0.02 accepts answers within 2 %. 0 for whole numbers.
    choices : tuple of str
        Keys of the choices, in the order of the page; empty for a number.

    Raises
    ------
    ValueError
        If a variant has an answer outside the choices, a number that its text would round, or a wrong answer that
        couldn't be told from the right one or from another wrong one.
    """

    key: str
    variants: tuple[Variant, ...]
    unit: str = ""
    tolerance: float = 0.02
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, ge=0, le=0.2)
        if not self.variants:
            raise ValueError(f"variants of {self.key} must hold at least one; got none")
        for variant in self.variants:
            if problem := self.problem(variant):
                raise ValueError(f"variants of {self.key} must be unmistakable; {problem} in {variant}")
            if set(variant.wrong) != set(self.variants[0].wrong):
                raise ValueError(f"variants of {self.key} must name the same wrong ideas; got {set(variant.wrong)}")

    def problem(self, variant: Variant) -> str | None:
        """Why a variant is unfit, or None.

        Examples
        --------
        >>> Question("q", (Variant({}, 10.0),)).problem(Variant({}, 10.0, wrong={"halved": 10.1}))
        'halved (10.1) is too near to the right answer'
        """
        for name, value in variant.given.items():
            if float(f"{value:g}") != value:
                return f"{name} ({value!r}) is shown as {value:g}"
        if self.choices:
            return None if variant.answer in self.choices else f"{variant.answer!r} is no choice"
        if isinstance(variant.answer, str) or not math.isfinite(variant.answer):
            return f"the answer {variant.answer!r} is no number"
        seen: list[tuple[str, float]] = [("the right answer", variant.answer)]
        for name, value in variant.wrong.items():
            for other, number in seen:
                if abs(value - number) <= self.tolerance * (abs(value) + abs(number)) + 2 * _SLACK:
                    return f"{name} ({value:.6g}) is too near to {other}"
            seen.append((name, value))
        return None

    @property
    def hints(self) -> tuple[str, ...]:
        """The keys of the hints that the chapter must write: one for each wrong idea or choice."""
        return self.choices or tuple(self.variants[0].wrong)

    def grade(self, variant: Variant, reply: str) -> Grade:
        """Grade what a reader typed, or the key of the choice picked.

        Raises
        ------
        ValueError
            If the reply to a numeric question isn't a number.

        Examples
        --------
        >>> rate = Variant({"batch": 4}, answer=8.0, wrong={"batches": 2.0})
        >>> question = Question("rate", (rate,), unit="1/s")
        >>> question.grade(rate, "8.1")
        Grade(right=True, hint=None)
        >>> question.grade(rate, "2")
        Grade(right=False, hint='batches')
        """
        if self.choices:
            return Grade(True) if reply == variant.answer else Grade(False, reply)
        number = parse_number(reply)
        assert not isinstance(variant.answer, str)
        if self._near(number, variant.answer):
            return Grade(True)
        hint = next((name for name, value in variant.wrong.items() if self._near(number, value)), None)
        return Grade(False, hint)

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs."""
        return {
            "key": self.key,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "choices": list(self.choices),
            "variants": [{"shown": v.shown(), "answer": v.answer, "wrong": dict(v.wrong)} for v in self.variants],
        }

    def _near(self, number: float, value: float) -> bool:
        return abs(number - value) <= self.tolerance * abs(value) + _SLACK


def parse_number(text: str) -> float:
    """Read a number as the page does: plain decimal, with an optional exponent.

    Raises
    ------
    ValueError
        If the text is anything else.

    Examples
    --------
    >>> parse_number(" 18.7 ")
    18.7
    """
    if not re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", text, re.IGNORECASE | re.ASCII):
        raise ValueError(f"reply must be a number such as 18.7; got {text!r}")
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"reply must be a number that a float can hold; got {text!r}")
    return number


def drawn(
    key: str,
    draw: Callable[[np.random.Generator], Variant],
    *,
    count: int = 24,
    seed: int = 0,
    unit: str = "",
    tolerance: float = 0.02,
    choices: tuple[str, ...] = (),
) -> Question:
    """A question with `count` different variants, drawn at random; unfit draws are drawn again.

    Parameters
    ----------
    draw : callable
        Takes a random generator, returns a `Variant`.

    Raises
    ------
    ValueError
        If 100 draws for each variant don't give enough different ones that are fit.

    Examples
    --------
    >>> def twice(rng):
    ...     n = int(rng.integers(1, 100))
    ...     return Variant({"n": n}, answer=2 * n, wrong={"squared": n**2})
    >>> question = drawn("twice", twice, tolerance=0)
    >>> len(question.variants)
    24
    """
    rng = np.random.default_rng(seed)
    variants: dict[str, Variant] = {}
    judge: Question | None = None
    problem = "too few different draws"
    for _ in range(100 * count):
        variant = draw(rng)
        judge = judge or Question(key, (Variant({}, choices[0] if choices else 0.0),), unit, tolerance, choices)
        found = judge.problem(variant)
        if found:
            problem = found
            continue
        variants[repr(sorted(variant.given.items()))] = variant
        if len(variants) == count:
            return Question(key, tuple(variants.values()), unit, tolerance, choices)
    raise ValueError(f"draw of {key} must give {count} fit variants; got {len(variants)} ({problem})")


def load(name: str) -> tuple[Question, ...]:
    """The questions of a quiz: `QUESTIONS` of the module `servinglab.course.quizzes.NAME`.

    Examples
    --------
    >>> len(load("ch01"))
    5
    """
    try:
        return tuple(importlib.import_module(f"servinglab.course.quizzes.{name}").QUESTIONS)
    except ModuleNotFoundError as error:
        if error.name != f"servinglab.course.quizzes.{name}":
            raise
        raise ValueError(f"name must be a module of servinglab.course.quizzes; got {name!r}") from None


def guess(key: str, unit: str = "") -> Component:
    """A field in which the reader writes down a guess; the browser keeps it.

    Parameters
    ----------
    key : str
        Unique in the book, such as "ch01-best-batch". The question itself is in the text above.
    unit : str
        Shown behind the field.
    """
    _check_key(key)
    fallback = f'<p class="sl-fallback">{word("guess_on_paper")}</p>'
    return Component("guess", {"key": key, "unit": unit}, fallback, f"guess {key}")


def recall(key: str, answer: float, unit: str = "", digits: int = 3) -> Component:
    """The guess written down as `key`, beside the computed answer.

    Parameters
    ----------
    key : str
        As given to `guess`.
    answer : float
        What the computation gives.
    unit : str
        As given to `guess`.
    digits : int
        Significant digits to show; a whole number is shown in full.
    """
    _check_key(key)
    value = float(check_number("answer", answer))
    digits = check_number("digits", digits, ge=1, le=9, integer=True)
    whole = value.is_integer()
    text = str(int(value)) if whole else np.format_float_positional(value, digits, fractional=False, trim="-")
    fallback = f'<p class="sl-fallback">{word("computed")}: <strong>{text}</strong> {named(unit)}</p>'
    data = {"key": key, "unit": unit, "answer": value, "shown": text}
    return Component("recall", data, fallback, f"recall {key}: {text} {unit}".rstrip())


def _check_key(key: str) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key):
        raise ValueError(f"key must be lower-case words joined by hyphens; got {key!r}")
