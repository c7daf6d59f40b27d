"""What did the server say, and when? The bytes of one streamed answer, with their times, become an `Answer`.

An OpenAI-compatible server streams server-sent events: blocks of lines that begin with ``data:``, a blank line after
each, and ``[DONE]`` as the last. Nothing here opens a connection or reads a clock, so what a broken stream comes to can
be tried without one.

A chunk isn't a token. How many tokens an answer has is said by the server's `usage`, or counted by a tokenizer, or
unknown; how many each chunk brought is known in four cases only, and `Answer.chunk_tokens_from` names which.

An end isn't a success. An answer is whole if the stream ended as it should and gave a reason to finish from
`GOOD_REASONS`, or one that the caller names. A reason that nobody here knows is a failure with a name of its own: taken
for success in silence, it could hide that a server gives up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[int, bytes]
"""When some bytes came, in ns on any clock, and the bytes."""

TokenEnds = Callable[[str], Sequence[int]]
"""A tokenizer: for each token of a text, the position of the character after it."""

FINISHED = "finished"
CHUNK_TOKENS_FROM = ("usage", "tokenizer", "one token a chunk", "")

GOOD_REASONS = (
    "stop", "length", "tool_calls", "function_call", "content_filter",  # OpenAI's
    "repetition",  # vLLM's
    "eos", "eos_token", "stop_sequence", "end_turn", "max_tokens",  # what others write for stop and length
)  # fmt: skip
"""Reasons to finish, in lower case, after which an answer is what its sender asked for."""

_ABORTS = ("abort", "aborted", "cancel", "canceled", "cancelled", "timeout", "insufficient_system_resource")
_NO_REASON = "none"
_FIELD = re.compile(rb"\s*(data|event|id|retry)?:")


@dataclass(frozen=True)
class Answer:
    """One answer as it came.

    Attributes
    ----------
    outcome : str
        ``finished``; or ``cut`` (the stream ended before the answer did), ``malformed`` (an event that isn't what the
        interface promises), ``not_utf8``, ``stream_error`` (the server reported an error in the stream),
        ``finish_abort``, ``finish_error``, ``finish_unknown`` (the reason to finish is none to be content with),
        ``not_streamed`` and ``error_body`` (the body is an answer, or an error, and no stream), ``no_tokens`` (a whole
        answer without a token).
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


def read_answer(
    pieces: Sequence[Piece], ended: bool, token_ends: TokenEnds | None = None, good_reasons: Collection[str] = ()
) -> Answer:
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
    good_reasons : collection of str
        More reasons to finish that are good, in lower case; ``none``: also ``[DONE]`` without a reason.

    Returns
    -------
    Answer
        What came before a fault is in it. A count of no token, where text came, is taken for none.

    Examples
    --------
    >>> chunk = 'data: {"choices": [{"text": " soup", "finish_reason": null}]}\\n\\n'
    >>> usage = 'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\\n\\n'
    >>> last = chunk.replace("null", '"stop"')
    >>> pieces = [(10, chunk.encode()), (30, last.encode()), (31, (usage + "data: [DONE]\\n\\n").encode())]
    >>> answer = read_answer(pieces, ended=True)
    >>> answer.outcome, answer.chunk_ns, answer.output_tokens, answer.tokens_from
    ('finished', (10, 30), 2, 'usage')
    >>> read_answer(pieces[:1], ended=True).outcome
    'cut'
    >>> read_answer([(10, chunk.replace("null", '"abort"').encode())], ended=True).outcome
    'finish_abort'
    """
    chunks: list[_Chunk] = []
    usage: tuple[int, int] | None = None
    outcome = detail = reason = bad = ""
    done = False
    try:
        if ended:
            _check_stream(pieces)
        for at_ns, name, data in _events(pieces, ended):
            if data == b"[DONE]":
                done = True
                break
            message = _message(name, data)
            counted = _usage(message)
            usage = counted or usage
            for text, why in _choice(message):
                if text and reason and not bad:
                    raise _Wrong("malformed", f"text after finish_reason {reason!r}: {_brief(text)}")
                chunks.append(_Chunk(at_ns, text, counted[1] if counted else None, bool(why)))
                if not bad:
                    reason, bad = why or reason, _fault_of(why, good_reasons)
    except _Wrong as wrong:
        outcome, detail = wrong.args
    texts = sum(bool(chunk.text) for chunk in chunks)
    if usage is not None and usage[1] == 0 and texts:  # whoever doesn't count may write zeros
        usage = None
    if not outcome and bad:
        outcome, detail = bad, f"finish_reason {reason!r} after {texts} chunks with text"
    if not outcome and not (done or (ended and reason)):
        outcome, detail = "cut", "the stream ended before the answer did"
    times, tokens, tokens_from = _split(chunks, usage, token_ends)
    total = usage[1] if usage else None
    counted_by = "usage" if usage else ""
    if total is None and token_ends is not None:
        total, counted_by = len(token_ends("".join(chunk.text for chunk in chunks))), "tokenizer"
    if not outcome and (not times or total == 0):
        counts = f"text, though usage counts {total} tokens" if total else "token"
        outcome, detail = "no_tokens", f"the answer is whole and has no {counts}"
    if not outcome and not reason and _NO_REASON not in good_reasons:
        outcome, detail = "finish_unknown", "[DONE] without a finish_reason before it"
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


def _fault_of(reason: str, good_reasons: Collection[str]) -> str:
    """The outcome of an answer that ends for this reason; empty where it is a good one, or none yet."""
    name = reason.lower()
    if not name or name in GOOD_REASONS or name in good_reasons:
        return ""
    if name in _ABORTS:
        return "finish_abort"
    return "finish_error" if name.startswith("error") else "finish_unknown"


def _check_stream(pieces: Sequence[Piece]) -> None:
    """Name a whole body that isn't a stream of events."""
    body = b"".join(piece for _, piece in pieces)
    if not body.strip() or _FIELD.match(body):
        return
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        if error := _error(message):
            raise _Wrong("error_body", _brief(error))
        if "choices" in message:
            raise _Wrong("not_streamed", "a whole answer at once, where a stream was asked for")
    raise _Wrong("malformed", f"not a stream of events: {_brief(body)}")


def _events(pieces: Sequence[Piece], ended: bool) -> Iterator[tuple[int, bytes, bytes]]:
    """Each event's name and data, at the time when its last byte came."""
    rest, at_ns = b"", 0
    for at_ns, piece in pieces:
        rest += piece
        if b"\r" in rest:
            half = b"\r" if rest.endswith(b"\r") else b""  # the other half of \r\n may be still to come
            rest = rest.removesuffix(half).replace(b"\r\n", b"\n").replace(b"\r", b"\n") + half
        *blocks, rest = rest.split(b"\n\n")
        for block in blocks:
            yield from _event(at_ns, block)
    if ended and rest.strip() == b"data: [DONE]":  # some servers leave the last blank line out
        yield from _event(at_ns, rest.strip())
    elif ended and rest.strip() and not _FIELD.match(rest):
        raise _Wrong("malformed", f"not a stream of events: {_brief(rest)}")


def _event(at_ns: int, block: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    fields = [line.partition(b":") for line in block.split(b"\n")]
    data = [value.removeprefix(b" ") for name, colon, value in fields if name == b"data" and colon]
    name = next((value.strip() for name, _, value in fields if name == b"event"), b"")
    if data or name == b"error":
        yield at_ns, name, b"\n".join(data)


def _message(name: bytes, data: bytes) -> dict[str, Any]:
    if name == b"error":
        raise _Wrong("stream_error", f"an event named error: {_brief(data)}")
    try:
        message = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Wrong("not_utf8", f"{error.reason} at byte {error.start} of an event: {_brief(data)}") from None
    except (ValueError, RecursionError) as error:
        raise _Wrong("malformed", f"an event isn't JSON ({error}): {_brief(data)}") from None
    if not isinstance(message, dict):
        raise _Wrong("malformed", f"an event isn't a JSON object: {_brief(data)}")
    if told := _error(message):
        raise _Wrong("stream_error", _brief(told))
    return message


def _error(message: dict[str, Any]) -> str:
    """The error that a message is, as OpenAI and as older engines write it; empty if it is none."""
    if message.get("error"):
        return json.dumps(message["error"])
    return json.dumps(message) if message.get("object") == "error" else ""


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
        if len(choices) > 1 or choice.get("index"):  # type: ignore[arg-type]
            raise _Wrong("malformed", f"one answer was asked for, and more come: {_brief(json.dumps(message))}")
        delta = choice.get("delta") or {}
        texts = [
            choice.get("text"),
            *(delta.get(name) for name in ("reasoning_content", "reasoning", "content", "refusal")),
        ]
        text = "".join(each for each in texts if each)
        text += "".join(json.dumps(delta[name]) for name in ("tool_calls", "function_call") if delta.get(name))
        yield text, str(choice.get("finish_reason") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Wrong("malformed", f"an event without a choice: {_brief(json.dumps(message))}") from None


def _split(
    chunks: Sequence[_Chunk], usage: tuple[int, int] | None, token_ends: TokenEnds | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None, str]:
    """The times of the chunks with output, the tokens in each of them, and how these are known."""
    so_far = [chunk.tokens_so_far for chunk in chunks]  # believed if they end where the whole's count does
    if usage is not None and len(chunks) > 1 and None not in so_far and so_far[-1] == usage[1]:
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
