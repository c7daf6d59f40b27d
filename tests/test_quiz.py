"""Every variant of every question is gradable, and numbers that a page couldn't show or tell apart are refused."""

from __future__ import annotations

import math
import pkgutil
from fractions import Fraction

import pytest
from servinglab.course import quiz, quizzes
from servinglab.course.quiz import Grade, Question, Variant

NAMES = [module.name for module in pkgutil.iter_modules(quizzes.__path__)]
QUESTIONS = [(name, question) for name in NAMES for question in quiz.load(name)]
CASES = [pytest.param(question, id=f"{name}-{question.key}") for name, question in QUESTIONS]


def test_each_quiz_has_five_questions() -> None:
    assert "ch01" in NAMES
    for name in NAMES:
        keys = [question.key for question in quiz.load(name)]
        assert len(keys) == len(set(keys)) == 5, name


@pytest.mark.parametrize("question", CASES)
def test_right_answers_pass_and_wrong_ones_get_their_hint(question: Question) -> None:
    assert len(question.variants) >= 24
    assert len({tuple(sorted(v.given.items())) for v in question.variants}) == len(question.variants)
    for variant in question.variants:
        if question.choices:
            for choice in question.choices:
                expected = Grade(True) if choice == variant.answer else Grade(False, choice)
                assert question.grade(variant, choice) == expected
            continue
        assert question.grade(variant, repr(variant.answer)) == Grade(True)
        assert question.grade(variant, variant.shown()["answer"]) == Grade(True), "what the page shows must pass"
        for hint, value in variant.wrong.items():
            assert question.grade(variant, repr(value)) == Grade(False, hint)
        assert variant.wrong, "a numeric question names at least one wrong idea"


@pytest.mark.parametrize("question", [case for case in CASES if case.values[0].choices])
def test_every_choice_is_right_sometimes(question: Question) -> None:
    assert {variant.answer for variant in question.variants} == set(question.choices)


def test_answers_of_chapter_1_by_hand() -> None:
    rate, busy, stable, little, shows = quiz.load("ch01")
    for v in rate.variants:
        t, r, size = (Fraction(str(v.given[name])) for name in ("fixed_s", "per_request_s", "batch"))
        assert math.isclose(float(v.answer), float(size / (t + r * size)), rel_tol=1e-12)
    for v in busy.variants:
        t, r, size, first, second = (
            Fraction(str(v.given[name])) for name in ("fixed_s", "per_request_s", "batch", "first_s", "second_s")
        )
        assert first <= second
        assert math.isclose(float(v.answer), float(max(first + t + r * size, second) + t + r * size), rel_tol=1e-12)
    found_busy = [v.given["second_s"] < v.also["free_s"] for v in busy.variants]
    assert 4 <= sum(found_busy) <= len(found_busy) - 4, "both branches are asked"
    for v in stable.variants:
        t, r, rate_rps = (Fraction(str(v.given[name])) for name in ("fixed_s", "per_request_s", "rate_rps"))
        keeps_up = [size > rate_rps * (t + r * size) for size in (int(v.answer), int(v.answer) - 1)]
        assert keeps_up == [True, False]
    for v in little.variants:
        assert math.isclose(v.given["number"], v.given["rate_rps"] * float(v.answer), rel_tol=1e-12)
    exactly_one = [v.also["bound"] == pytest.approx(round(v.also["bound"]), abs=1e-9) for v in stable.variants]
    assert sum(exactly_one) >= 6, "ρ = 1 is asked often enough"
    for v in shows.variants:
        rate_rps, completed, before, after = (
            Fraction(str(v.given[name])) for name in ("rate_rps", "completed_rps", "from_line", "to_line")
        )
        assert abs(before + 1800 * (rate_rps - completed) - after) <= 20, "the line of half an hour adds up"
        assert v.answer == ("capacity" if completed < rate_rps and after > before + 20 else "at-least")


@pytest.mark.parametrize("reply", ["", "abc", "1,5", "12 s", "1e", "nan", "inf", "--1", "１２", "0x10", "1e999"])
def test_a_reply_that_is_no_number_is_refused(reply: str) -> None:
    question = Question("q", (Variant({}, 10.0),))
    with pytest.raises(ValueError, match="reply must be a number"):
        question.grade(question.variants[0], reply)


@pytest.mark.parametrize(("reply", "right"), [("10.2", True), ("10.21", False), (" 9.8 ", True), ("+1.0e1", True)])
def test_the_tolerance_is_relative(reply: str, right: bool) -> None:
    question = Question("q", (Variant({}, 10.0),), tolerance=0.02)
    assert question.grade(question.variants[0], reply).right is right


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        (Variant({}, 10.0, {"near": 10.3}), "near .* too near to the right answer"),
        (Variant({}, 10.0, {"a": 20.0, "b": 20.3}), "b .* too near to a"),
        (Variant({"rate": 1 / 3}, 10.0), "rate .* is shown as"),
        (Variant({}, math.inf), "is no number"),
        (Variant({}, "ten"), "is no number"),
    ],
)
def test_unfit_variants_are_refused(variant: Variant, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Question("q", (variant,))


def test_other_faults_of_a_question() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Question("q", ())
    with pytest.raises(ValueError, match="no choice"):
        Question("q", (Variant({}, "c"),), choices=("a", "b"))
    with pytest.raises(ValueError, match="same wrong ideas"):
        Question("q", (Variant({}, 1.0, {"a": 2.0}), Variant({}, 1.0, {"b": 2.0})))
    with pytest.raises(ValueError, match=r"must give 24 fit variants; got 1 "):
        quiz.drawn("q", lambda rng: Variant({"n": 1}, 2.0))
    with pytest.raises(ValueError, match="name must be a module"):
        quiz.load("ch99")


def test_guess_and_recall_say_the_same_without_a_script() -> None:
    recalled = quiz.recall("ch01-best", answer=16.98, unit="orders")
    assert '<strong>17</strong> <span data-sl-word="orders">orders</span>' in recalled._repr_html_()
    assert "<strong>17</strong> x&lt;y" in quiz.recall("a", answer=17, unit="x<y")._repr_html_()
    assert repr(recalled) == "recall ch01-best: 17 orders"
    assert quiz.recall("ch01-best", answer=1234.0).data["shown"] == "1234"
    with pytest.raises(ValueError, match="key must be"):
        quiz.guess("Best Batch")


def test_text_cannot_end_the_data_element() -> None:
    shown = quiz.guess("a", unit="</script><b>")._repr_html_()
    assert "</script><b>" not in shown
