"""OpenAI's words: what a request asks for, and what an answer looks like, as bytes.

**How many tokens a prompt has.** A prompt that is a list of token ids has as many as the list. In text each word, that
is each run of characters between white space, counts as one token (or each `chars_per_token` characters, rounded up, if
that is set). A chat's messages are counted one by one and added; no template is added. Answers are made of words, one a
token, so the rule counts them right too.

**How long an answer is.** `max_tokens` tokens, unless a law of lengths is set: then the answer ends where the law says,
if that is earlier, and not before `min_tokens`; ``ignore_eos`` has it go on to `max_tokens` all the same. A text of
``stop`` ends it, too, once it is whole and there were `min_tokens`; unless ``include_stop_str_in_output`` is set, the
answer's text ends before it. As the text is known ahead (`words`), nothing of it is held back in a stream meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from servinglab.sim_server.fields import why_refused
from servinglab.sim_server.words import begin_of, first_stop, text, word

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions; here for chats too

_STATUS_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A request that gets an error for an answer."""

    def __init__(
        self, status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.headers = status, param, headers


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """An error as OpenAI's clients expect it.

    Examples
    --------
    >>> print(error_body(404, "no model x", "model").decode())
    {"error":{"message":"no model x","type":"NotFoundError","param":"model","code":404}}
    """
    kind = _STATUS_TYPES.get(status, "BadRequestError")
    return to_json({"error": {"message": message, "type": kind, "param": param, "code": status}})


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Ask:
    """What a request asks for.

    Attributes
    ----------
    chat : bool
        A chat, or a completion.
    pieces : list
        The prompt's tokens by the counting rule: ids, words or runs of characters.
    max_tokens, min_tokens, priority : int
    ignore_eos, stream, include_usage, usage_per_chunk : bool
    stops : tuple of str
        Texts that end the answer; it ends with one of them if `keep_stop`, and else before it.
    """

    chat: bool
    pieces: list[Any]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    usage_per_chunk: bool = False
    priority: int = 0
    stops: tuple[str, ...] = ()
    keep_stop: bool = False


def read_ask(body: bytes, chat: bool, model: str, chars_per_token: int | None = None) -> Ask:
    """Read a request's body.

    Raises
    ------
    ApiError
        400 for what isn't JSON, breaks a rule or isn't done here, with the field's name; 404 for another model.

    Examples
    --------
    >>> ask = read_ask(b'{"prompt": "three short words", "max_tokens": 5}', chat=False, model="m")
    >>> len(ask.pieces), ask.max_tokens
    (3, 5)
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, f"the body must be a JSON object; got {type(fields).__name__}")
    asked = fields.get("model")
    if asked not in (None, model):
        raise ApiError(404, f"the model {asked!r} does not exist; {model!r} does", "model")
    if refused := why_refused(fields, chat):
        raise ApiError(400, refused[1], refused[0])
    stream = _flag(fields, "stream")
    options = fields.get("stream_options") or {}
    if options and not stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    if not isinstance(options, dict):
        raise ApiError(400, f"stream_options must be an object; got {options!r}", "stream_options")
    limit = "max_completion_tokens" if chat and fields.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _whole(fields, limit, DEFAULT_MAX_TOKENS, 1)
    min_tokens = _whole(fields, "min_tokens", 0, 0)
    if min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens must be at most {limit}, {max_tokens}; got {min_tokens}", "min_tokens")
    pieces = _chat_pieces(fields, chars_per_token) if chat else _prompt_pieces(fields, chars_per_token)
    if not pieces:
        name = "messages" if chat else "prompt"
        raise ApiError(400, f"{name} must hold at least one token; got none", name)
    return Ask(
        chat, pieces, max_tokens, min_tokens, _flag(fields, "ignore_eos"), stream, _flag(options, "include_usage"),
        _flag(options, "continuous_usage_stats"), _whole(fields, "priority", 0, None),
        _stops(fields), _flag(fields, "include_stop_str_in_output"),
    )  # fmt: skip


def count_text(text: str, chars_per_token: int | None = None) -> list[str]:
    """A text's tokens by the rule of this module.

    Examples
    --------
    >>> count_text("two  words"), count_text("two  words", chars_per_token=4)
    (['two', 'words'], ['two ', ' wor', 'ds'])
    """
    if chars_per_token is None:
        return text.split()
    return [text[at : at + chars_per_token] for at in range(0, len(text), chars_per_token)]


def _prompt_pieces(fields: Mapping[str, Any], chars_per_token: int | None) -> list[Any]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return count_text(prompt, chars_per_token)
    if isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(each, (str, list)) for each in prompt):
        raise ApiError(400, f"prompt must be one prompt here; got {len(prompt)}", "prompt")
    raise ApiError(400, f"prompt must be a text or a list of token ids; got {prompt!r:.60}", "prompt")


def _chat_pieces(fields: Mapping[str, Any], chars_per_token: int | None) -> list[Any]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, f"messages must be a list of at least one message; got {messages!r:.60}", "messages")
    pieces: list[Any] = []
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, f"messages[{place}] must be an object with a role; got {message!r:.60}", "messages")
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise ApiError(400, f"messages[{place}].content must be text; got {part!r:.60}", "messages")
            pieces += count_text(part["text"], chars_per_token)
    return pieces


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop")
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, f"stop must be a text or a list of texts, none of them empty; got {value!r:.60}", "stop")
    return tuple(stops)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false; got {value!r:.60}", name)
    return bool(value)


def _whole(fields: Mapping[str, Any], name: str, default: int, least: int | None) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int or (least is not None and value < least) or abs(value) > 10**9:
        rule = "a whole number" if least is None else f"a whole number >= {least}"
        raise ApiError(400, f"{name} must be {rule}; got {value!r:.60}", name)
    return value


def prefix_key(pieces: list[Any], block_size: int, number: int) -> Callable[[int], Hashable]:
    """What the k-th block of a request's KV cache holds: equal where prompts are equal from the start up to there.

    Blocks that hold more than the prompt are nobody else's.
    """
    chain: list[int] = []

    def key(k: int) -> Hashable:
        if (k + 1) * block_size > len(pieces):
            return number, k
        while len(chain) <= k:
            at = len(chain) * block_size
            chain.append(hash((chain[-1] if chain else None, tuple(pieces[at : at + block_size]))))
        return chain[k]

    return key


@dataclass(frozen=True)
class Ending:
    """How many tokens an answer has, why it ends there, and how many characters are shown; None: all of its tokens'."""

    tokens: int
    reason: str
    characters: int | None = None


def ending(ask: Ask, drawn: int | None) -> Ending:
    """Where the answer ends; `drawn` is what the law of lengths says.

    Examples
    --------
    >>> ask = Ask(chat=False, pieces=["a"], max_tokens=10, min_tokens=4)
    >>> [(end.tokens, end.reason) for end in (ending(ask, drawn) for drawn in (None, 7, 2, 30))]
    [(10, 'length'), (7, 'stop'), (4, 'stop'), (10, 'length')]
    >>> ending(Ask(chat=False, pieces=["a"], max_tokens=10, stops=("tofu",)), None)
    Ending(tokens=5, reason='stop', characters=28)
    """
    if drawn is None or ask.ignore_eos or drawn >= ask.max_tokens:
        end = Ending(ask.max_tokens, "length")
    else:
        end = Ending(max(drawn, ask.min_tokens, 1), "stop")
    stop = first_stop(ask.stops, ask.min_tokens, end.tokens)
    if stop is None:
        return end
    return Ending(stop.tokens, "stop", stop.end if ask.keep_stop else stop.begin)


class Wording:
    """One answer's bytes.

    Parameters
    ----------
    ask : Ask
    number : int
        The request's, for its id.
    model : str
    characters : int or None
        How many are shown; None: all.
    """

    def __init__(self, ask: Ask, number: int, model: str, characters: int | None = None) -> None:
        self._ask, self._model, self._characters = ask, model, characters
        self.id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{number:012d}"
        self._created = int(time.time())

    def event(self, place: int, size: int, reason: str | None) -> bytes:
        """The event of `size` tokens from `place` on, which counts from 0; the last has a reason."""
        said = self._text(place, size)
        body: dict[str, Any] = {"delta": {"content": said}} if self._ask.chat else {"text": said}
        more = {"usage": self._usage(place + size)} if self._ask.usage_per_chunk else {}
        return self._data([{"index": 0, **body, "logprobs": None, "finish_reason": reason}], **more)

    def first(self) -> bytes:
        """The event before a chat's first token; nothing for a completion."""
        if not self._ask.chat:
            return b""
        return self._data([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def usage(self, tokens: int) -> bytes:
        """The event with the counts."""
        return self._data([], usage=self._usage(tokens))

    @staticmethod
    def done() -> bytes:
        """The event after the last."""
        return b"data: [DONE]\n\n"

    def malformed(self) -> bytes:
        """An event that isn't JSON."""
        return self.event(0, 1, None)[:-10] + b"\n\n"

    def not_utf8(self) -> bytes:
        """An event whose text isn't UTF-8."""
        return self.event(0, 1, None).replace(word(0).encode(), b"\xc3\x28\xff", 1)

    def whole(self, tokens: int, reason: str) -> bytes:
        """The answer that isn't streamed."""
        said = self._text(0, tokens)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._ask.chat:
            choice["message"] = {"role": "assistant", "content": said}
        else:
            choice["text"] = said
        kind = "chat.completion" if self._ask.chat else "text_completion"
        return to_json({**self._head(kind), "choices": [choice], "usage": self._usage(tokens)})

    def _text(self, place: int, size: int) -> str:
        end = begin_of(place + size)
        return text(begin_of(place), end if self._characters is None else min(end, self._characters))

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self._ask.pieces)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def _data(self, choices: list[Any], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._ask.chat else "text_completion"
        return b"data: " + to_json({**self._head(kind), "choices": choices, **more}) + b"\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}
