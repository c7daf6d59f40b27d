"""Is there an input that tells two answers apart? Found by trial: calls of the checks, and calls that are like them.

An input counts only where every right answer gives the same, so one beyond a task's limits, on which right answers
differ or raise, rarely counts. What is compared is what `Task` compares: the answer, whether the call changes its
arguments, and whether a second call answers the same.

What this module does not do: prove that two functions are the same. Finding nothing proves nothing.
"""

from __future__ import annotations

import copy
import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from servinglab.grading.checks import observe, plain, same
from servinglab.grading.kinds import arrays_as_lists, is_number
from servinglab.grading.wire import picture

Args = tuple[Any, ...]
Path = tuple[Any, ...]
CALL_S = 1.0  # of processor time, after which a call counts as endless
NICE = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.75, 0.9, 0.95, 0.99, 1, 1.5, 2, 3, 5, 10, 100)


class Endless(Exception):
    """A call took too long."""


class Odd(Exception):
    """What came instead of an answer, in words."""


def told_apart(
    mutant: Callable[..., Any],
    rights: Sequence[Callable[..., Any]],
    calls: Sequence[Args],
    *,
    dice: random.Random,
    seconds: float,
) -> dict[str, str] | None:
    """Look for arguments on which `mutant` differs from all the `rights`, which agree.

    Parameters
    ----------
    mutant, rights : callables
        The first right answer is called for each input, the others only where the mutant differs from it.
    calls : sequence of tuples
        Arguments that a task allows.
    dice : random.Random
    seconds : float
        Processor time to spend.

    Returns
    -------
    dict or None
        Texts: the arguments (`args`), what is `right` and what the `mutant` gives.
    """
    until = time.process_time() + seconds
    signal.signal(signal.SIGVTALRM, _stop)

    def differ(args: Args) -> tuple[Any, Any] | None:
        """What is right and what is wrong for these arguments, if they tell."""
        try:
            right = answer(rights[0], args)
            wrong = answer_or_odd(args)
            if not isinstance(wrong, Odd) and same(wrong, right):
                return None
            return (right, wrong) if all(same(answer(other, args), right) for other in rights[1:]) else None
        except Odd:
            return None

    def answer_or_odd(args: Args) -> Any:
        try:
            return answer(_fresh(mutant), args)
        except Odd as odd:
            return odd

    for args in Near(calls, dice):
        if time.process_time() > until:
            return None
        if found := differ(args):
            args, (right, wrong) = _smallest(args, found, differ, until)
            return {"args": _text(args)[1:-1].rstrip(","), "right": _text(right), "mutant": _text(wrong)}
    return None


def answer(function: Callable[..., Any], args: Args) -> Any:
    """What a function answers, as plain values; `Odd` if it doesn't, or breaks one of the rules of all tasks."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CALL_S)
    try:
        got, after = observe(function, args)
        if after != picture(args):
            raise Odd("changes its arguments")
        again, _ = observe(function, args)
        first, second = (arrays_as_lists(plain(value)) for value in (got, again))
    except Odd:
        raise
    except Endless:
        raise Odd("doesn't end") from None
    except Exception as error:
        raise Odd(f"raises {type(error).__name__}: {error}") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if picture([first]) != picture([second]):
        raise Odd(f"answers {_text(first)}, then {_text(second)}")
    return first


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without what its default arguments have kept from earlier calls."""
    if not isinstance(function, FunctionType) or not (function.__defaults__ or function.__kwdefaults__):
        return function
    fresh = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        copy.deepcopy(function.__defaults__),
        function.__closure__,
    )
    fresh.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__)
    return fresh


def _stop(*_: Any) -> None:
    raise Endless


def _text(value: Any, limit: int = 500) -> str:
    text = str(value) if isinstance(value, Odd) else repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


class Near:
    """Inputs like those of some calls: the calls themselves, then endlessly others, near short calls more often.

    What the calls have in common is kept: signs, ranges (with some room), and which lists are in order.
    """

    def __init__(self, calls: Sequence[Args], dice: random.Random) -> None:
        self.calls = sorted(calls, key=lambda args: len(repr(args)))
        self.dice = dice
        self.ranges: dict[Path, tuple[float, float]] = {}
        for args in calls:
            for path in _places(args):
                value = _get(args, path)
                if is_number(value) and math.isfinite(value):
                    low, high = self.ranges.get(_general(path), (value, value))
                    self.ranges[_general(path)] = min(low, value), max(high, value)
        lengths = {len(args) for args in calls}
        self.ordered = [k for k in range(min(lengths, default=0)) if all(_is_ordered(args[k]) for args in calls)]

    def __iter__(self) -> Iterator[Args]:
        yield from self.calls
        while any(self.calls):
            args = self.calls[int(len(self.calls) * self.dice.random() ** 2)]
            for _ in range(self.dice.choice((2, 3, 4, 6))):  # some come to nothing
                args = self._varied(args)
            yield tuple(
                sorted(value) if k in self.ordered and isinstance(value, list) else value
                for k, value in enumerate(args)
            )

    def _varied(self, args: Args) -> Args:
        """The arguments with one of them, one value within them or the length of lists changed, or as they are."""
        dice = self.dice
        places = list(_places(args))
        if not places:
            return args
        way = dice.random()
        lists = [value for value in args if isinstance(value, (list, tuple)) and value]
        if way < 0.15:  # an argument of another call
            k = dice.randrange(len(args))
            other = dice.choice(self.calls)
            return _put(args, (k,), other[k]) if len(other) == len(args) else args
        if way < 0.3 and lists:  # one item less, in all lists of that length
            length = len(dice.choice(lists))
            return _without(args, length, dice.randrange(length))
        path = dice.choice(places)
        if way < 0.45:  # a value from the same place of another call: None, for example
            source = dice.choice(self.calls)
            like = [one for one in _places(source) if _general(one) == _general(path)]
            return _put(args, path, _get(source, dice.choice(like))) if like else args
        value = _get(args, path)
        if isinstance(value, bool):
            return _put(args, path, not value)
        if not is_number(value) or not math.isfinite(value):
            return args
        if way < 0.6:  # equal to another number, or to a sum: where limits lie
            others = [other for one in places if one != path and is_number(other := _get(args, one))]
            new = dice.choice([0, *others]) + dice.choice((0, 0, 1, -1)) * dice.choice([0, *others])
        elif isinstance(value, int):
            new = dice.choice((value + 1, value - 1, 2 * value, value // 2, 0, 1, 2, 3, 7, 10))
        else:
            nice = dice.choice(NICE)
            near = value * (1 + dice.choice((-1, 1)) * 10 ** -dice.uniform(0.3, 8))
            new = dice.choice((near, round(value, dice.randrange(4)), value * 2, value / 2, nice, value + nice))
        if not math.isfinite(new):
            return args
        new = int(new) if isinstance(value, int) else float(new)
        return _put(args, path, new) if self._allows(path, new) else args

    def _allows(self, path: Path, value: float) -> bool:
        """Whether a number lies in the range of its place, which is widened to half and twice its ends."""
        low, high = self.ranges[_general(path)]
        low = low / 2 if low > 0 else 2 * low
        below_1 = 0 < high < 1  # it may have to be
        high = (1 + high) / 2 if below_1 else 2 * high if high > 0 else high / 2
        return low <= value <= high


def _is_ordered(value: Any) -> bool:
    """Whether this is a list in ascending order."""
    try:
        return isinstance(value, list) and value == sorted(value)
    except TypeError:
        return False


def _smallest(args: Args, found: Any, differ: Callable[[Args], Any], until: float) -> tuple[Args, Any]:
    """Arguments without what isn't needed, and what is found with them: items go from all lists of one length."""
    place = 0
    while time.process_time() < until:
        length = max((len(value) for value in args if isinstance(value, (list, tuple))), default=0)
        if place >= length:
            break
        fewer = _without(args, length, place)
        if still := differ(fewer):
            args, found = fewer, still
        else:
            place += 1
    return args, found


def _without(args: Args, length: int, place: int) -> Args:
    return tuple(
        [*value[:place], *value[place + 1 :]] if isinstance(value, (list, tuple)) and len(value) == length else value
        for value in args
    )


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths to all that is no list, tuple or dictionary."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    else:
        yield path
        return
    for key, item in pairs:
        yield from _places(item, (*path, key))


def _general(path: Path) -> Path:
    """The path without the places in lists of any length: below the argument only keys tell."""
    return (path[0], *("" if isinstance(key, int) and depth == 0 else key for depth, key in enumerate(path[1:])))


def _get(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: Path, new: Any) -> Any:
    """A copy with something else at one place."""
    if not path:
        return copy.deepcopy(new)
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _put(value[key], tuple(rest), new)}
    items = list(value)
    items[key] = _put(items[key], tuple(rest), new)
    return tuple(items) if isinstance(value, tuple) else items
