"""What did the server say, and when? The bytes of one streamed answer, with their times, become an `Answer`.

An OpenAI-compatible server streams server-sent events: blocks of lines that begin with ``data:``, a blank line after
each, and ``[DONE]`` as the last. Nothing here opens a connection or reads a clock, so what a broken stream comes to can
be tried without one.

A chunk isn't a token. How many tokens an answer has is said by the server's `usage`, or counted by a tokenizer, or
unknown; how many each chunk brought is known in four cases only, and `Answer.chunk_tokens_from` names which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[int, bytes]
"""When some bytes came, in ns on any clock, and the bytes."""

TokenEnds = Callable[[str], Sequence[int]]
"""A tokenizer: for each token of a text, the position of the character after it."""

FINISHED = "finished"
CHUNK_TOKENS_FROM = ("usage", "tokenizer", "one token a chunk", "")


@dataclass(frozen=True)
class Answer:
    """One answer as it came.

    Attributes
    ----------
    outcome : str
        ``finished``; or ``cut`` (the stream ended before the answer did), ``malformed`` (an event that isn't what the
        interface promises), ``not_utf8``, ``stream_error`` (the server reported an error in the stream), ``no_tokens``
        (a whole answer without a token).
    detail : str
        What was wrong, for a person.
    chunk_ns : tuple of int
        When each chunk with output came.
    chunk_tokens : tuple of int or None
        Tokens in each of them; None where that isn't known.
    chunk_tokens_from : str
        ``usage``: the server counts with every chunk. ``tokenizer``: the text was cut into tokens again. ``one token a
        chunk``: there are as many chunks as tokens. Empty: unknown.
    prompt_tokens, output_tokens : int or None
        None where neither the server nor a tokenizer counts.
    tokens_from : str
        ``usage``, ``tokenizer`` or empty.
    finish_reason : str
        Why the server stopped, in its words; empty if it never said.
    """

    outcome: str
    detail: str = ""
    chunk_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    chunk_tokens_from: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_from: str = ""
    finish_reason: str = ""


class _Wrong(Exception):
    """An event that ends the reading: its outcome and detail."""


def read_answer(pieces: Sequence[Piece], ended: bool, token_ends: TokenEnds | None = None) -> Answer:
    """Read one streamed answer.

    Parameters
    ----------
    pieces : sequence of (ns, bytes)
        In the order they came, cut anywhere.
    ended : bool
        Whether the transfer ended as the protocol says it should. An answer is whole if ``[DONE]`` came, or if the
        transfer ended after a chunk that gives a reason to finish.
    token_ends : callable, optional
        A tokenizer, for servers that don't count.

    Returns
    -------
    Answer
        What came before a fault is in it.

    Examples
    --------
    >>> chunk = 'data: {"choices": [{"text": " soup", "finish_reason": null}]}\\n\\n'
    >>> usage = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\\n\\n'
    >>> pieces = [(10, chunk.encode()), (30, chunk.encode()), (31, (usage + "data: [DONE]\\n\\n").encode())]
    >>> answer = read_answer(pieces, ended=True)
    >>> answer.outcome, answer.chunk_ns, answer.output_tokens, answer.tokens_from
    ('finished', (10, 30), 2, 'usage')
    >>> read_answer(pieces[:2], ended=True).outcome
    'cut'
    """
    chunks: list[_Chunk] = []
    usage: tuple[int, int] | None = None
    outcome = detail = reason = ""
    done = False
    try:
        for at_ns, data in _events(pieces, ended):
            if data == b"[DONE]":
                done = True
                break
            message = _message(data)
            counted = _usage(message)
            usage = counted or usage
            for text, why in _choice(message):
                chunks.append(_Chunk(at_ns, text, counted[1] if counted else None, bool(why)))
                reason = why or reason
    except _Wrong as wrong:
        outcome, detail = wrong.args
    if not outcome and not (done or (ended and reason)):
        outcome, detail = "cut", "the stream ended before the answer did"
    times, tokens, tokens_from = _split(chunks, usage, token_ends)
    total = usage[1] if usage else None
    counted_by = "usage" if usage else ""
    if total is None and token_ends is not None:
        total, counted_by = len(token_ends("".join(chunk.text for chunk in chunks))), "tokenizer"
    if not outcome and (not times or total == 0):
        outcome, detail = "no_tokens", "the answer is whole and has no token"
    return Answer(
        outcome=outcome or FINISHED,
        detail=detail,
        chunk_ns=times,
        chunk_tokens=tokens,
        chunk_tokens_from=tokens_from,
        prompt_tokens=usage[0] if usage else None,
        output_tokens=total,
        tokens_from=counted_by,
        finish_reason=reason,
    )


@dataclass(frozen=True)
class _Chunk:
    at_ns: int
    text: str
    tokens_so_far: int | None
    last: bool


def _events(pieces: Sequence[Piece], ended: bool) -> Iterator[Piece]:
    """Each event's data, at the time when its last byte came."""
    rest, at_ns = b"", 0
    for at_ns, piece in pieces:
        rest += piece
        if b"\r" in rest:
            half = b"\r" if rest.endswith(b"\r") else b""  # the other half of \r\n may be still to come
            rest = rest.removesuffix(half).replace(b"\r\n", b"\n").replace(b"\r", b"\n") + half
        *blocks, rest = rest.split(b"\n\n")
        for block in blocks:
            yield from _data(at_ns, block)
    if ended and rest.strip() == b"data: [DONE]":  # some servers leave the last blank line out
        yield from _data(at_ns, rest.strip())
    elif ended and rest.strip() and not rest.lstrip().startswith((b"data:", b":", b"event:", b"id:", b"retry:")):
        raise _Wrong("malformed", f"not a stream of events: {_brief(rest)}")


def _data(at_ns: int, block: bytes) -> Iterator[Piece]:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    if lines:
        yield at_ns, b"\n".join(lines)


def _message(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Wrong("not_utf8", f"{error.reason} at byte {error.start} of an event: {_brief(data)}") from None
    except (ValueError, RecursionError) as error:
        raise _Wrong("malformed", f"an event isn't JSON ({error}): {_brief(data)}") from None
    if not isinstance(message, dict):
        raise _Wrong("malformed", f"an event isn't a JSON object: {_brief(data)}")
    if message.get("error"):
        raise _Wrong("stream_error", _brief(json.dumps(message["error"])))
    return message


def _usage(message: dict[str, Any]) -> tuple[int, int] | None:
    usage = message.get("usage")
    if usage is None:
        return None
    try:
        counts = tuple(usage[name] for name in ("prompt_tokens", "completion_tokens"))
        if all(type(count) is int and count >= 0 for count in counts):
            return counts[0], counts[1]
    except (KeyError, TypeError):
        pass
    raise _Wrong("malformed", f"usage must hold whole prompt_tokens and completion_tokens: {_brief(str(usage))}")


def _choice(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The text and the reason to finish of an event's choice; nothing where it has none, as in the one with usage."""
    choices = message.get("choices")
    try:
        if choices == [] or (choices is None and message.get("usage")):
            return
        choice = choices[0]  # type: ignore[index]  # what isn't a list is caught
        delta = choice.get("delta") or {}
        texts = [choice.get("text"), *(delta.get(name) for name in ("reasoning_content", "reasoning", "content"))]
        text = "".join(each for each in texts if each)
        if delta.get("tool_calls"):
            text += json.dumps(delta["tool_calls"])
        yield text, str(choice.get("finish_reason") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Wrong("malformed", f"an event without a choice: {_brief(json.dumps(message))}") from None


def _split(
    chunks: Sequence[_Chunk], usage: tuple[int, int] | None, token_ends: TokenEnds | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None, str]:
    """The times of the chunks with output, the tokens in each of them, and how these are known."""
    so_far = [chunk.tokens_so_far for chunk in chunks]
    if len(chunks) > 1 and all(count is not None for count in so_far):
        gained = [now - before for now, before in zip(so_far, [0, *so_far], strict=False)]  # type: ignore[operator]
        if all(gain >= 0 for gain in gained):
            kept = [(chunk.at_ns, gain) for chunk, gain in zip(chunks, gained, strict=True) if gain or chunk.text]
            return tuple(at for at, _ in kept), tuple(gain for _, gain in kept), "usage"
    texts = [chunk for chunk in chunks if chunk.text]
    times = tuple(chunk.at_ns for chunk in texts)
    if token_ends is not None:
        ends = token_ends("".join(chunk.text for chunk in texts))
        if usage is None or len(ends) == usage[1]:
            return times, _tokens_in(texts, ends), "tokenizer"
    if usage is not None and len(texts) == usage[1]:
        return times, (1,) * len(texts), "one token a chunk"
    if usage is not None and len(texts) + 1 == usage[1] and chunks[-1].last and not chunks[-1].text:
        # the token that ends the answer has no text: it came with the chunk that says so
        return (*times, chunks[-1].at_ns), (1,) * usage[1], "one token a chunk"
    return times, None, ""


def _tokens_in(chunks: Sequence[_Chunk], ends: Sequence[int]) -> tuple[int, ...]:
    """A token came with the chunk that brought its last character."""
    counts, begun, done = [], 0, 0
    for chunk in chunks:
        begun += len(chunk.text)
        upto = done
        while upto < len(ends) and ends[upto] <= begun:
            upto += 1
        counts.append(upto - done)
        done = upto
    return tuple(counts)


def _brief(value: bytes | str) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
