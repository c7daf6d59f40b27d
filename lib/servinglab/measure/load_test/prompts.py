"""What do the prompts say? Words of a chosen number, the same from one seed, shared at the start or not at all.

The words are common English ones of four letters, each of which the usual tokenizers make one token of. So a prompt
of n words is about n tokens, and a chat template adds some: what was counted by the server or a tokenizer stands in the
report beside what was asked for.

No two prompts share a beginning unless they are told to, or a server's prefix cache would answer for its engine: each
begins with eight words drawn for it alone. What follows is cut from one long text, as drawing every word would cost the
client more time than sending it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCABULARY = (
    "able back base been best bill body book call card care case city come cost data date deal down each easy even "
    "ever face fact feel file find five food form four free full game give good half hand have head hear help here "
    "high home hope hour idea into just keep kind know land last late left less life like line list live long look"
)
_WORDS = VOCABULARY.split()
_WIDE = 5  # a word and its space
_TEXT_WORDS = 1 << 16
_OWN_WORDS = 8  # 72**8 beginnings
_BLOCK_WORDS = 512  # a block of a Mooncake trace


class Prompts:
    """Makes prompts.

    Parameters
    ----------
    seed : int
        The same seed gives the same prompts.
    shared_tokens : int
        How many words at the start all prompts of a group share; a shorter prompt is cut from them.
    groups : int
        How many different shared beginnings there are; request k begins with number k mod groups.

    Examples
    --------
    >>> prompts = Prompts(seed=1, shared_tokens=3)
    >>> a, b = prompts.text("0.0", 0, 12), prompts.text("0.1", 1, 12)
    >>> len(a.split()), a.split()[:3] == b.split()[:3], a.split()[3:6] == b.split()[3:6]
    (12, True, False)
    """

    def __init__(self, seed: int, shared_tokens: int = 0, groups: int = 1) -> None:
        self._seed = seed
        self._groups = groups
        self._text = "".join(f" {word}" for word in random.Random(f"{seed} text").choices(_WORDS, k=_TEXT_WORDS))
        self._shared = [self._words(f"shared {group}", shared_tokens) for group in range(groups)]

    def text(self, name: str, request: int, tokens: int, blocks: Sequence[int] | None = None) -> str:
        """A prompt of `tokens` words.

        Parameters
        ----------
        name : str
            Whose own words these are; a request that is sent again gets another name, or it would be in the cache.
        request : int
            Decides the group.
        tokens : int
            At least 1.
        blocks : sequence of int, optional
            The ids of the prompt's blocks of 512 tokens, from a trace: equal ids are equal text.
        """
        if blocks is None:
            begin = self._shared[request % self._groups][: _WIDE * tokens]
        else:
            begin = "".join(self._words(f"block {block}", _BLOCK_WORDS) for block in blocks)[: _WIDE * tokens]
        return (begin + self._words(name, tokens - len(begin) // _WIDE))[1:]

    def _words(self, name: str, count: int) -> str:
        if count <= 0:
            return ""
        rng = random.Random(f"{self._seed} {name}")
        own = "".join(f" {word}" for word in rng.choices(_WORDS, k=min(count, _OWN_WORDS)))
        start = _WIDE * rng.randrange(_TEXT_WORDS)
        rest = _WIDE * (count - _OWN_WORDS)
        text = self._text[start : start + max(rest, 0)]
        while len(text) < rest:
            text += self._text[: rest - len(text)]
        return own + text
