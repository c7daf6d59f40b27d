"""A streamed answer, however it is cut and whatever is wrong with it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.bench.stream import Answer, read_answer


def chunk(text: str, reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more})


def event(content: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + end


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


DONE = b"data: [DONE]\n\n"


def answer(*pieces: bytes, ended: bool = True, **more: Any) -> Answer:
    """Pieces that come 10 ns apart, the first at 10."""
    return read_answer([(10 * (k + 1), piece) for k, piece in enumerate(pieces)], ended, **more)


def test_a_plain_answer() -> None:
    got = answer(chunk(""), chunk("a"), chunk("b"), chunk("", "length"), event({"choices": [], **usage(7, 2)}), DONE)
    assert got == Answer(
        outcome="finished",
        chunk_ns=(20, 30),
        chunk_tokens=(1, 1),
        chunk_tokens_from="one token a chunk",
        prompt_tokens=7,
        output_tokens=2,
        tokens_from="usage",
        finish_reason="length",
    )


@given(st.lists(st.integers(1, 400), max_size=8), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(cuts: list[int], newline: bytes) -> None:
    whole = b": hello\n\nevent: message\n" + chunk("né") + chunk("日本") + event({"choices": [], **usage(7, 2)}) + DONE
    whole = whole.replace(b"\n", newline)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [(k, whole[a:b]) for k, (a, b) in enumerate(pairwise(edges))]
    got = read_answer(pieces, ended=True)
    assert (got.outcome, got.output_tokens, got.chunk_tokens) == ("finished", 2, (1, 1))
    # a chunk comes when its event's last byte does
    mark = chunk("日本").replace(b"\n", newline)
    end = whole.index(mark) + len(mark)
    last = next(k for k, edge in enumerate(edges[1:]) if edge >= end)
    after = next((k for k, edge in enumerate(edges[1:]) if edge >= end + 1), last)  # a lone \r may be half of \r\n
    assert got.chunk_ns[1] in ({last} if newline == b"\n" else {last, after})


def test_completions_reasoning_and_tools_are_output_too() -> None:
    reasons = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    tools = event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})
    text = event({"choices": [{"text": "c"}]})
    assert answer(reasons, tools, text, DONE).chunk_ns == (10, 20, 30)


def test_the_token_that_ends_an_answer_came_with_the_reason_to_finish() -> None:
    got = answer(chunk("a"), chunk("b"), chunk("", "stop"), event({"choices": [], **usage(7, 3)}), DONE)
    assert (got.chunk_ns, got.chunk_tokens) == ((10, 20, 30), (1, 1, 1))


def test_chunks_are_not_tokens() -> None:
    got = answer(chunk("a b"), chunk("c"), event({"choices": [], **usage(7, 5)}), DONE)
    assert (got.output_tokens, got.chunk_tokens, got.chunk_tokens_from) == (5, None, "")


def test_usage_with_each_chunk_says_how_many_tokens_it_brought() -> None:
    first, second, none = chunk("a", **usage(7, 1)), chunk("b c d", **usage(7, 4)), chunk("", **usage(7, 4))
    got = answer(chunk("", **usage(7, 0)), first, second, none, event({"choices": [], **usage(7, 4)}), DONE)
    assert (got.chunk_ns, got.chunk_tokens, got.chunk_tokens_from) == ((20, 30), (1, 3), "usage")


def words(text: str) -> list[int]:
    """A tokenizer: each space and each word is a token."""
    return [k + 1 for k, letter in enumerate(text) if letter == " " or k + 1 == len(text) or text[k + 1] == " "]


def test_a_tokenizer_counts_where_the_server_does_not() -> None:
    got = answer(chunk("soup "), chunk("sa"), chunk("lad"), DONE, token_ends=words)
    assert (got.output_tokens, got.tokens_from) == (3, "tokenizer")
    # the word cut in two came with its second half
    assert (got.chunk_tokens, got.chunk_tokens_from) == ((2, 0, 1), "tokenizer")


def test_the_servers_count_goes_before_the_tokenizers() -> None:
    pieces = chunk("soup "), chunk("salad"), event({"choices": [], **usage(7, 9)}), DONE
    got = answer(*pieces, token_ends=words)
    assert (got.output_tokens, got.tokens_from, got.chunk_tokens) == (9, "usage", None)


def test_nobody_counted() -> None:
    got = answer(chunk("a"), chunk("b"), DONE)
    assert (got.outcome, got.output_tokens, got.tokens_from, got.chunk_tokens) == ("finished", None, "", None)


@pytest.mark.parametrize(
    ("bad", "outcome", "told"),
    [
        (b"data: {\n\n", "malformed", "isn't JSON"),
        (b"data: 7\n\n", "malformed", "isn't a JSON object"),
        (event({"id": "x"}), "malformed", "without a choice"),
        (event({"choices": [7]}), "malformed", "without a choice"),
        (event({"choices": {}}), "malformed", "without a choice"),
        (event({"choices": [], "usage": {"prompt_tokens": 1}}), "malformed", "usage must hold"),
        (event({"choices": [], **usage(3, -1)}), "malformed", "usage must hold"),
        (b'data: {"choices": [{"text": "\xff"}]}\n\n', "not_utf8", "invalid start byte"),
        (event({"error": {"message": "CUDA out of memory"}}), "stream_error", "out of memory"),
    ],
)
def test_a_bad_event_is_named_and_what_came_before_it_is_kept(bad: bytes, outcome: str, told: str) -> None:
    got = answer(chunk("a"), bad, chunk("b"), DONE)
    assert (got.outcome, got.chunk_ns) == (outcome, (10,))
    assert told in got.detail


def test_where_a_stream_ends_decides_whether_it_was_cut() -> None:
    assert answer(chunk("a"), ended=True).outcome == "cut"
    assert answer(chunk("a"), chunk("", "stop"), ended=False).outcome == "cut"  # its usage may have been lost
    assert answer(chunk("a"), chunk("", "stop"), ended=True).outcome == "finished"
    assert answer(chunk("a"), DONE, ended=False).outcome == "finished"
    assert answer(chunk("a"), b"data: [DONE]", ended=True).outcome == "finished"
    assert answer(chunk("a"), b"data: [DO", ended=True).outcome == "cut"
    assert answer(ended=True).outcome == "cut"


def test_a_text_that_says_done_is_not_the_end() -> None:
    got = answer(chunk("data: [DONE]"), chunk("b"), event({"choices": [], **usage(1, 2)}), DONE)
    assert (got.outcome, got.chunk_ns) == ("finished", (10, 20))


def test_an_answer_that_is_no_stream_and_one_without_a_token() -> None:
    assert answer(b'{"choices": [{"message": {"content": "hi"}}]}').outcome == "malformed"
    assert answer(chunk("", "stop"), DONE).outcome == "no_tokens"
    assert answer(chunk("", "stop"), event({"choices": [], **usage(5, 0)}), DONE).outcome == "no_tokens"
