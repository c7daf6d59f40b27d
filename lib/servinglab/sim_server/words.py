"""What do answers say? The same few words, over and over; and where is a text that ends one?

An answer is the beginning of one endless text, a token being a word with the space before it, so a stop string can be
found before a token of the answer has been made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

VOCABULARY = ("soup", "rice", "noodles", "dumplings", "tofu", "greens", "broth", "tea")
_CYCLE = "".join(f" {word}" for word in VOCABULARY)  # the text is this again and again, without its first space
_ENDS = list(accumulate(len(word) + 1 for word in VOCABULARY))


def begin_of(place: int) -> int:
    """Where the text's token at this place begins; places and characters count from 0.

    Examples
    --------
    >>> [begin_of(place) for place in (0, 1, 2)], text(0, 9)
    ([0, 4, 9], 'soup rice')
    """
    whole, rest = divmod(place, len(VOCABULARY))
    return max(0, whole * len(_CYCLE) + (_ENDS[rest - 1] if rest else 0) - 1)


def text(begin: int, end: int) -> str:
    """The endless text's characters from `begin` up to `end`."""
    first, length = (begin + 1) % len(_CYCLE), max(0, end - begin)
    return (_CYCLE * (1 + (first + length) // len(_CYCLE)))[first : first + length]


def word(place: int) -> str:
    """The token at this place."""
    return text(begin_of(place), begin_of(place + 1))


@dataclass(frozen=True)
class Stop:
    """Where a stop string is: it is whole with so many `tokens`, and its characters are `begin` to `end`."""

    tokens: int
    begin: int
    end: int


def first_stop(stops: Iterable[str], after: int, most: int) -> Stop | None:
    """The stop string that is whole first, in an answer of at most `most` tokens.

    Parameters
    ----------
    stops : iterable of str
        None of them empty.
    after : int
        How many tokens there must be before the one that completes it.
    most : int

    Returns
    -------
    Stop or None
        Of several that the same token completes, the one that begins first.

    Examples
    --------
    >>> first_stop(["noodles", "e n"], after=0, most=9)
    Stop(tokens=3, begin=8, end=11)
    >>> first_stop(["soup"], after=1, most=8) is None
    True
    """
    longest = begin_of(most)
    found = []
    for stop in stops:
        begin = max(0, begin_of(after) - len(stop) + 1)
        at = text(begin, min(begin + len(_CYCLE) + len(stop), longest)).find(stop)
        if at >= 0:
            end = begin + at + len(stop)
            whole, rest = divmod(end + 1, len(_CYCLE))
            tokens = whole * len(VOCABULARY) + (1 + bisect_left(_ENDS, rest) if rest else 0)
            found.append(Stop(tokens, begin + at, end))
    return min(found, key=lambda stop: (stop.tokens, stop.begin), default=None)
