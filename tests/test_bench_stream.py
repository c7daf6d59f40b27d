"""A streamed answer, however it is cut and whatever is wrong with it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.measure.load_test.stream import Answer, read_answer


def chunk(text: str, reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more})


def event(content: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + end


STOP = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'


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
    words = chunk("né") + chunk("日本")
    whole = b": hello\n\nevent: message\n" + words + STOP + event({"choices": [], **usage(7, 2)}) + DONE
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
    assert answer(reasons, tools, text, STOP, DONE).chunk_ns == (10, 20, 30)


def test_the_token_that_ends_an_answer_came_with_the_reason_to_finish() -> None:
    got = answer(chunk("a"), chunk("b"), chunk("", "stop"), event({"choices": [], **usage(7, 3)}), DONE)
    assert (got.chunk_ns, got.chunk_tokens) == ((10, 20, 30), (1, 1, 1))


def test_chunks_are_not_tokens() -> None:
    got = answer(chunk("a b"), chunk("c"), STOP, event({"choices": [], **usage(7, 5)}), DONE)
    assert (got.output_tokens, got.chunk_tokens, got.chunk_tokens_from) == (5, None, "")


def test_usage_with_each_chunk_says_how_many_tokens_it_brought() -> None:
    first, second, none = chunk("a", **usage(7, 1)), chunk("b c d", **usage(7, 4)), chunk("", "stop", **usage(7, 4))
    got = answer(chunk("", **usage(7, 0)), first, second, none, event({"choices": [], **usage(7, 4)}), DONE)
    assert (got.chunk_ns, got.chunk_tokens, got.chunk_tokens_from) == ((20, 30), (1, 3), "usage")


def words(text: str) -> list[int]:
    """A tokenizer: each space and each word is a token."""
    return [k + 1 for k, letter in enumerate(text) if letter == " " or k + 1 == len(text) or text[k + 1] == " "]


def test_a_tokenizer_counts_where_the_server_does_not() -> None:
    got = answer(chunk("soup "), chunk("sa"), chunk("lad"), STOP, DONE, token_ends=words)
    assert (got.output_tokens, got.tokens_from) == (3, "tokenizer")
    # the word cut in two came with its second half
    assert (got.chunk_tokens, got.chunk_tokens_from) == ((2, 0, 1), "tokenizer")


def test_the_servers_count_goes_before_the_tokenizers() -> None:
    pieces = chunk("soup "), chunk("salad"), STOP, event({"choices": [], **usage(7, 9)}), DONE
    got = answer(*pieces, token_ends=words)
    assert (got.output_tokens, got.tokens_from, got.chunk_tokens) == (9, "usage", None)


def test_nobody_counted() -> None:
    got = answer(chunk("a"), chunk("b"), STOP, DONE)
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
        (b"event: error\n" + event({"message": "out of memory"}), "stream_error", "out of memory"),
        (b"event: error\ndata: out of memory\n\n", "stream_error", "out of memory"),
        (b"event: error\n\n", "stream_error", "error"),
        (event({"object": "error", "message": "out of memory", "code": 500}), "stream_error", "out of memory"),
        (event({"choices": [{"index": 1, "text": "b"}]}), "malformed", "one answer was asked for"),
        (event({"choices": [{"text": "b"}, {"text": "c"}]}), "malformed", "one answer was asked for"),
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
    assert answer(chunk("a"), STOP, DONE, ended=False).outcome == "finished"
    assert answer(chunk("a"), STOP, b"data: [DONE]", ended=True).outcome == "finished"
    assert answer(chunk("a"), b"data: [DO", ended=True).outcome == "cut"
    assert answer(ended=True).outcome == "cut"


def test_a_text_that_says_done_is_not_the_end() -> None:
    got = answer(chunk("data: [DONE]"), chunk("b"), STOP, event({"choices": [], **usage(1, 2)}), DONE)
    assert (got.outcome, got.chunk_ns) == ("finished", (10, 20))


def test_an_answer_without_a_token() -> None:
    assert answer(DONE).outcome == "no_tokens"
    assert answer(chunk("", "stop"), DONE).outcome == "no_tokens"
    assert answer(chunk("", "stop"), event({"choices": [], **usage(5, 0)}), DONE).outcome == "no_tokens"
    got = answer(STOP, event({"choices": [], **usage(5, 9)}), DONE)
    assert (got.outcome, got.detail) == (
        "no_tokens",
        "the answer is whole and has no text, though usage counts 9 tokens",
    )


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("stop", "finished"), ("length", "finished"), ("tool_calls", "finished"), ("function_call", "finished"),
        ("content_filter", "finished"), ("eos_token", "finished"), ("STOP", "finished"),
        ("abort", "finish_abort"), ("cancelled", "finish_abort"), ("insufficient_system_resource", "finish_abort"),
        ("error", "finish_error"), ("error: out of memory", "finish_error"),
        ("soup", "finish_unknown"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ended", [True, False])
def test_what_ended_an_answer_decides_whether_it_is_one(reason: str, outcome: str, ended: bool) -> None:
    half = chunk("a"), chunk("b"), chunk("", reason), event({"choices": [], **usage(7, 2)}), DONE
    got = answer(*half, ended=ended)
    assert (got.outcome, got.finish_reason, got.output_tokens, got.chunk_ns) == (outcome, reason, 2, (10, 20))
    assert outcome == "finished" or repr(reason) in got.detail


def test_an_abort_is_one_whatever_follows_it() -> None:
    assert answer(chunk("a"), chunk("", "abort"), STOP, DONE).outcome == "finish_abort"
    assert answer(chunk("a"), chunk("", "abort"), ended=False).outcome == "finish_abort"
    assert answer(chunk("", "abort"), DONE).outcome == "finish_abort"  # not an empty answer


def test_done_alone_is_no_reason_to_finish() -> None:
    got = answer(chunk("a"), DONE)
    assert (got.outcome, got.chunk_ns) == ("finish_unknown", (10,))
    assert "[DONE] without a finish_reason" in got.detail


def test_a_servers_own_reasons_are_known_if_they_are_named() -> None:
    assert answer(chunk("a", "Soup"), DONE, good_reasons=["soup"]).outcome == "finished"
    assert answer(chunk("a"), DONE, good_reasons=["none"]).outcome == "finished"
    assert answer(chunk("a"), DONE, good_reasons=["soup"]).outcome == "finish_unknown"
    assert answer(chunk("a", "abort"), DONE, good_reasons=["abort"]).outcome == "finished"


def test_text_after_the_reason_to_finish_is_no_answer() -> None:
    got = answer(chunk("a"), chunk("b", "stop"), chunk("c"), DONE)
    assert (got.outcome, got.chunk_ns) == ("malformed", (10, 20))
    assert "'stop'" in got.detail
    assert answer(chunk("a", "stop"), chunk("", "stop"), chunk(""), DONE).outcome == "finished"


@pytest.mark.parametrize(
    ("body", "outcome", "told"),
    [
        (b'{"error": {"message": "no soup", "code": 500}}', "error_body", "no soup"),
        (b' \n{"object": "error", "message": "no soup"}\n\n', "error_body", "no soup"),
        (b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}', "not_streamed", "stream"),
        (b'{"detail": "no soup"}', "malformed", 'not a stream of events: b\'{"detail": "no soup"}\''),
        (b"<html>\n\n<body>Bad gateway</body>\n\n</html>\n\n", "malformed", "not a stream of events"),
        (b'{"error": {"message": "no ', "malformed", "not a stream of events"),
    ],
)
def test_a_body_that_is_no_stream_is_named_by_what_it_is(body: bytes, outcome: str, told: str) -> None:
    for pieces in ((body,), (body[:1], body[1:9], body[9:])):
        got = answer(*pieces)
        assert (got.outcome, got.chunk_ns) == (outcome, ())
        assert told in got.detail
    assert answer(body, ended=False).outcome == "cut"


def test_a_count_that_what_came_belies_is_none() -> None:
    nothing = event({"choices": [], **usage(0, 0)})
    got = answer(chunk("a"), chunk("b"), STOP, nothing, DONE)
    assert (got.outcome, got.output_tokens, got.prompt_tokens, got.tokens_from) == ("finished", None, None, "")
    got = answer(chunk("soup "), chunk("salad"), STOP, nothing, DONE, token_ends=words)
    assert (got.output_tokens, got.tokens_from, got.chunk_tokens) == (3, "tokenizer", (2, 1))
    # counts with each chunk that end elsewhere than the whole's
    pieces = chunk("a", **usage(7, 1)), chunk("b", "stop", **usage(7, 2)), event({"choices": [], **usage(7, 9)}), DONE
    got = answer(*pieces)
    assert (got.output_tokens, got.chunk_tokens, got.chunk_tokens_from) == (9, None, "")
    got = answer(chunk("a", **usage(0, 0)), chunk("b", "stop", **usage(0, 0)), DONE)
    assert (got.outcome, got.output_tokens, got.chunk_ns, got.chunk_tokens) == ("finished", None, (10, 20), None)
