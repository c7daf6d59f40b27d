"""The simulated server: the simulator's very instants, OpenAI's words, vLLM's metrics, faults on purpose."""

from __future__ import annotations

import heapq
import http.client
import itertools
import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
import servinglab as sl
from hypothesis import given, settings
from hypothesis import strategies as st
from servinglab.metrics import exposed
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence
from servinglab.sim_server import fields, serve
from servinglab.sim_server.api import Ask, count_text, prefix_key
from servinglab.sim_server.faults import Faults, parse_fault
from servinglab.sim_server.http import MAX_BODY_BYTES, Connection
from servinglab.sim_server.live import LiveEngine, LiveRequest
from servinglab.sim_server.prometheus import Metrics
from servinglab.sim_server.words import VOCABULARY, first_stop, word

STEP = sl.AffineStep(0.01, 1e-4, 1e-5, 1e-8)
NEVER_ENDS = sl.AffineStep(5000.0, 0.0)
QUICK = {"speed": 1e6}

# The engine: a clock of its own


class FakeClock:
    """Time that passes only from one thing that happens to the next."""

    def __init__(self, late_ns=0):
        self.now, self._late, self._count, self._heap = 0, late_ns, itertools.count(), []

    def now_ns(self):
        return self.now

    def call_at(self, instant_ns, then):
        entry = [instant_ns, next(self._count), then]
        heapq.heappush(self._heap, entry)
        return Cancel(entry)

    def call_soon(self, then):
        self.call_at(self.now, then)

    def run(self):
        while self._heap:
            instant, _, then = heapq.heappop(self._heap)
            if then is not None:
                self.now = max(self.now, instant + self._late)
                then()


class Cancel:
    def __init__(self, entry):
        self._entry = entry

    def cancel(self):
        self._entry[2] = None


def live_run(work, scheduler, step, kv=None, pots=1, speed=1.0, late_ns=0):
    """Let a workload's requests come at their instants; when each got its first and last token, and the metrics."""
    clock, metrics = FakeClock(late_ns), Metrics("m")
    engine = LiveEngine(scheduler, step, kv, pots, clock, metrics, speed)
    requests = []

    def come(k):
        request = LiveRequest(
            int(work.prompt_tokens[k]), int(work.output_tokens[k]), lambda tokens, done: None, int(work.priority[k])
        )
        requests.append(request)
        engine.submit(request)
        if len(requests) == len(work):
            engine.closing = True

    for k, at in enumerate(work.arrival_s):
        clock.call_at(round(at * 1e9), lambda k=k: come(k))
    clock.run()
    assert engine.idle
    assert (engine.running, engine.waiting) == (0, 0)
    return requests, metrics


SCHEDULERS = [
    (sl.ContinuousBatching(4), None, 1),
    (sl.ContinuousBatching(4), None, 2),
    (sl.ContinuousBatching(4), None, None),
    (sl.StaticBatching(3, last="partial"), None, 1),
    (sl.StaticBatching(3), None, 1),
    (sl.StaticBatching(3, last="partial", streaming=True, padded=False), None, 2),
    (sl.DynamicBatching(4, 0.02), None, 1),
    (sl.ContinuousBatching(4, 64), None, 1),
    (sl.ContinuousBatching(6, 32), sl.Blocks(24, 8), 1),
    (sl.ContinuousBatching(6, 32, async_scheduling=True), sl.Blocks(24, 8), 1),
    (sl.ContinuousBatching(6, 32, policy="priority", long_prefill_token_threshold=16), sl.Blocks(24, 8), 1),
]


@pytest.mark.parametrize(("scheduler", "kv", "pots"), SCHEDULERS, ids=lambda value: str(value)[:60])
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([20.0, 60.0, 200.0]))
@settings(max_examples=8, deadline=None)
def test_every_token_comes_at_the_simulators_instant(scheduler, kv, pots, seed, rate):
    lengths = {name: sl.lengths.Uniform(1, high) for name, high in (("prompt_tokens", 60), ("output_tokens", 12))}
    work = sl.poisson(rate, 40, seed, priority=sl.lengths.Uniform(0, 3), **lengths)
    simulated = sl.reference(work, scheduler, STEP, pots, kv=kv)
    requests, metrics = live_run(work, scheduler, STEP, kv, pots, speed=2.0)
    assert [r.arrival_ns for r in requests] == simulated.arrival_ns.tolist()
    assert [r.first_ns for r in requests] == simulated.first_token_ns.tolist()
    assert [r.last_ns for r in requests] == simulated.finish_ns.tolist()
    assert metrics.num_preemptions == simulated.preemptions.sum()
    assert metrics.generation_tokens == work.output_tokens.sum()
    assert metrics.prompt_tokens == work.prompt_tokens.sum()
    for histogram, column in (
        (metrics.histograms[exposed.TTFT], simulated.ttft_s),
        (metrics.histograms[exposed.QUEUE_TIME], simulated.wait_s),
        (metrics.histograms[exposed.E2E], simulated.e2e_s),
        (metrics.histograms[exposed.TPOT], simulated.tpot_s[work.output_tokens > 1]),
    ):
        assert histogram.sum == pytest.approx(np.sum(column) / 2.0)
        assert histogram.cumulative()[-1] == len(column)
    gaps_s, tokens = simulated.itl()
    assert metrics.histograms[exposed.ITL].sum == pytest.approx(gaps_s @ tokens / 2.0)
    assert metrics.histograms[exposed.ITL].cumulative()[-1] == tokens.sum()


def test_a_machine_that_notices_steps_late_moves_no_later_step():
    """One request alone: its last token is due when it would have been, though each step was noticed 3 ms late."""
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=[5], output_tokens=[50])
    scheduler = sl.ContinuousBatching(4, 64)
    (request,), metrics = live_run(work, scheduler, STEP, late_ns=3_000_000)
    assert request.last_ns - request.arrival_ns == sl.reference(work, scheduler, STEP).finish_ns[0]
    assert metrics.histograms[exposed.STEP_LATENESS].sum / 50 == pytest.approx(3e-3)


def test_who_comes_after_a_step_was_due_misses_the_next_one_though_nobody_has_noticed():
    clock, metrics = FakeClock(), Metrics("m")
    engine = LiveEngine(sl.ContinuousBatching(4, 64), sl.AffineStep(0.01, 0.0), None, 1, clock, metrics)
    requests = [LiveRequest(1, 2, lambda tokens, done: None) for _ in range(2)]
    engine.submit(requests[0])
    clock.call_at(9_000_000, lambda: clock.__setattr__("now", 11_000_000))  # the machine was busy meanwhile
    clock.call_at(9_000_001, lambda: engine.submit(requests[1]))
    clock.run()
    assert [r.first_ns for r in requests] == [10_000_000, 30_000_000]
    assert engine.idle


def test_an_aborted_request_gives_its_blocks_back_and_gets_nothing_more():
    for rules in (sl.ContinuousBatching(4, 16), sl.ContinuousBatching(4, 16, async_scheduling=True)):
        engine = PagedScheduler(rules, 16, 4)
        stays, goes, waits = (Sequence(k, 8, 4, 0, lambda i, k=k: (k, i)) for k in range(3))
        for sequence in (stays, goes):
            engine.add(sequence)
        step = engine.schedule()
        engine.add(waits)
        engine.abort(goes)
        engine.abort(waits)
        assert (len(engine.waiting), engine.running) == (0, [stays])
        done = engine.finish(step)
        while not done:
            done = engine.finish(engine.schedule())
        assert (goes.outputs, stays.outputs, engine.used_blocks) == (0, 4, 0)


# HTTP: bytes


class FakeTransport:
    def __init__(self):
        self.written, self.closed = b"", False

    def write(self, data):
        assert not self.closed
        self.written += data

    def close(self):
        self.closed = True


def connection(handle):
    made = Connection(handle, lambda status, message: f"{status} {message}".encode(), set())
    made._transport = FakeTransport()
    return made, made._transport


def answer(waiting):
    """Answer those who wait now; one who comes because of it waits."""
    for conn in [waiting.pop() for _ in list(waiting)]:
        conn.respond(200, b"ok")


WHOLE = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
IN_CHUNKS = b"POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
LAST = b"GET /c HTTP/1.1\r\nConnection: close\r\n\r\n"


@given(cuts=st.lists(st.integers(0, len(WHOLE + IN_CHUNKS)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_requests_are_the_same_however_their_bytes_are_cut(cuts):
    def handle(conn, request):
        seen.append((request.method, request.path, request.body))
        waiting.append(conn)

    seen, waiting = [], []
    conn, transport = connection(handle)
    data = WHOLE + IN_CHUNKS
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        conn.data_received(data[begin:end])
        if begin % 2:  # sometimes the answer comes at once, sometimes after the next request has
            answer(waiting)
    conn.data_received(LAST)
    while waiting:
        answer(waiting)
    assert seen == [("POST", "/a", b"hello"), ("POST", "/b", b"abcde"), ("GET", "/c", b"")]
    assert transport.written.count(b"HTTP/1.1 200 OK") == 3
    assert transport.closed  # as the last one wished


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-100\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, 431),
    ],
)
def test_what_is_no_request_is_answered_once_and_closed(data, status):
    conn, transport = connection(lambda conn, request: pytest.fail("not a request"))
    conn.data_received(data)
    assert transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert transport.closed


def test_an_old_client_gets_an_unframed_stream_that_ends_with_the_connection():
    def handle(conn, request):
        conn.start_stream()
        conn.write(conn.frame(b"data: 1\n\n"))
        conn.end_stream(conn.frame(b"data: [DONE]\n\n"))

    conn, transport = connection(handle)
    conn.data_received(b"GET / HTTP/1.0\r\n\r\n")
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert (body, transport.closed) == (b"data: 1\n\ndata: [DONE]\n\n", True)


# OpenAI's API


@contextmanager
def running(scheduler=None, step=STEP, **settings):
    with (
        serve(scheduler or sl.ContinuousBatching(8, 512), step, **{**QUICK, **settings}) as url,
        closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as client,
    ):
        client.connect()
        yield client


@pytest.fixture(scope="module")
def plain():
    with running(sl.ContinuousBatching(8, 512, max_model_len=1000), kv=sl.Blocks(100)) as client:
        yield client


def post(client, path, body, headers=None):
    client.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), headers or {})
    return client.getresponse()


def complete(client, headers=None, path="/v1/completions", **fields):
    prompt = {"messages": [{"role": "user", "content": "one two three"}]} if "chat" in path else {"prompt": [1, 2, 3]}
    return post(client, path, {**prompt, **fields}, headers)


def events(response):
    """The data of each event, [DONE] last."""
    data = [line[6:] for line in response.read().split(b"\n\n") if line]
    assert data[-1] == b"[DONE]"
    return [json.loads(each) for each in data[:-1]]


def test_a_completion_is_whole_or_streamed_with_the_same_words(plain):
    whole = json.load(complete(plain, max_tokens=11))
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 11, "total_tokens": 14}
    assert (whole["object"], whole["model"]) == ("text_completion", "servinglab")
    assert whole["choices"][0]["finish_reason"] == "length"
    text = whole["choices"][0]["text"]
    assert len(count_text(text)) == 11
    assert set(text.split()) == set(VOCABULARY)

    response = complete(plain, max_tokens=11, stream=True, stream_options={"include_usage": True})
    assert response.getheader("content-type").startswith("text/event-stream")
    *chunks, usage = events(response)
    assert len(chunks) == 11
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 10 + ["length"]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_chat_is_whole_or_streamed_with_the_same_words(plain):
    whole = json.load(complete(plain, path="/v1/chat/completions", max_completion_tokens=4))
    message = whole["choices"][0]["message"]
    assert (whole["object"], message["role"], whole["usage"]["prompt_tokens"]) == ("chat.completion", "assistant", 3)
    first, *chunks = events(complete(plain, path="/v1/chat/completions", max_tokens=4, stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == message["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_chunks_may_hold_several_tokens_and_say_how_many_there_are_so_far():
    for scheduler in (sl.ContinuousBatching(8, 512), sl.DynamicBatching(8, 0.0)):  # the second hands all over at once
        with running(scheduler, stream_interval=4) as client:
            text = json.load(complete(client, max_tokens=11))["choices"][0]["text"]
            options = {"continuous_usage_stats": True}
            chunks = events(complete(client, max_tokens=11, stream=True, stream_options=options))
            assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 5, 9, 11]
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
            lines = fault(client, "malformed", stream=True, max_tokens=11).read().split(b"\n\n")
            assert [line.endswith(b"}") for line in lines[:-2]] == [True, True, False, True, True]


def test_a_step_time_that_breaks_ends_the_server_and_says_why():
    def breaks(requests, prefill_tokens, kv_tokens):
        raise ValueError("no such step")

    with pytest.raises(ValueError, match="no such step"), running(step=breaks) as client:  # noqa: SIM117
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            complete(client)


def test_answers_of_one_token(plain):
    assert json.load(complete(plain, max_tokens=1))["usage"]["completion_tokens"] == 1
    (chunk,) = events(complete(plain, max_tokens=1, stream=True))
    assert chunk["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("two words", 2), ("  spaced \n out ", 2), ([5, 6, 7, 8], 4), (["one prompt"], 2), ([[9, 9]], 2)],
)
def test_a_prompts_tokens_are_counted_by_the_stated_rule(plain, prompt, tokens):
    assert json.load(complete(plain, prompt=prompt))["usage"]["prompt_tokens"] == tokens


def test_text_is_counted_by_characters_where_that_is_set():
    with running(chars_per_token=4) as client:
        assert json.load(complete(client, prompt="one two three"))["usage"]["prompt_tokens"] == 4
        parts = [{"type": "text", "text": "12345"}, {"type": "text", "text": "123"}]
        body = {"messages": [{"role": "user", "content": parts}]}
        assert json.load(post(client, "/v1/chat/completions", body))["usage"]["prompt_tokens"] == 3


def test_a_law_of_lengths_ends_answers_unless_the_request_says_otherwise():
    def lengths(client, n, **fields):
        answers = [json.load(complete(client, **fields)) for _ in range(n)]
        return [(a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]) for a in answers]

    for seed in (1, 2):
        with running(output_tokens=sl.lengths.Uniform(2, 9), seed=seed) as client:
            drawn = sl.lengths.Uniform(2, 9).sample(np.random.default_rng(seed), 1024).tolist()
            assert lengths(client, 6, max_tokens=20) == [(n, "stop") for n in drawn[:6]]
            assert lengths(client, 2, max_tokens=2) == [(2, "length")] * 2
            assert lengths(client, 2, max_tokens=20, ignore_eos=True) == [(20, "length")] * 2
            assert lengths(client, 2, max_tokens=20, min_tokens=15) == [(15, "stop")] * 2


BAD = [
    ({"prompt": ""}, 400, "prompt must hold at least one token; got none", "prompt"),
    ({"prompt": None}, 400, "prompt must be a text or a list of token ids; got None", "prompt"),
    ({"prompt": ["a", "b"]}, 400, "prompt must be one prompt here; got 2", "prompt"),
    ({"prompt": [1, -2]}, 400, "prompt must be a text or a list of token ids; got [1, -2]", "prompt"),
    ({"model": "gpt"}, 404, "the model 'gpt' does not exist; 'servinglab' does", "model"),
    ({"max_tokens": 0}, 400, "max_tokens must be a whole number >= 1; got 0", "max_tokens"),
    ({"max_tokens": True}, 400, "max_tokens must be a whole number >= 1; got True", "max_tokens"),
    ({"max_tokens": 4, "min_tokens": 5}, 400, "min_tokens must be at most max_tokens, 4; got 5", "min_tokens"),
    ({"stream": "yes"}, 400, "stream must be true or false; got 'yes'", "stream"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options needs stream to be true", "stream_options"),
    ({"n": 2}, 400, "n must be 1 here; got 2", "n"),
    ({"n": True}, 400, "n must be 1 here; got true", "n"),
    ({"logprobs": 0}, 400, "logprobs must be null here; got 0", "logprobs"),
    ({"logprobs": 5, "stream": True}, 400, "logprobs must be null here; got 5", "logprobs"),
    ({"suffix": "and tea"}, 400, 'suffix must be null here; got "and tea"', "suffix"),
    ({"logit_bias": {"7": 1}}, 400, "logit_bias must be null here", "logit_bias"),
    ({"stop_token_ids": [7]}, 400, "stop_token_ids must be null here", "stop_token_ids"),
    ({"tools": [{"type": "function"}]}, 400, "tools must be null here", "tools"),
    ({"response_format": {"type": "json_object"}}, 400, 'response_format must be {"type": "text"} here', None),
    ({"stop": ""}, 400, "stop must be a text or a list of texts, none of them empty; got ''", "stop"),
    ({"stop": ["a", 7]}, 400, "stop must be a text or a list of texts", "stop"),
    ({"max_token": 7}, 400, "max_token is not known here; did you mean max_tokens?", "max_token"),
    ({"messages": []}, 400, "messages is not known here", "messages"),
    ({"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage is not known here", None),
    ({"max_tokens": 999}, 422, "1002 tokens are more than max_model_len = 1000", "prompt"),
]


@pytest.mark.parametrize(("fields", "status", "message", "param"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_request_gets_openais_error(plain, fields, status, message, param):
    response = complete(plain, **fields)
    error = json.load(response)["error"]
    assert (response.status, error["code"]) == (status, status)
    assert error["param"] == (param or next(reversed(fields)))
    assert message in error["message"]


CHAT = "/v1/chat/completions"


OPENAI = """model max_tokens n stop stream stream_options temperature top_p seed user presence_penalty
    frequency_penalty logit_bias logprobs """
OPENAI_CHAT = """messages audio function_call functions max_completion_tokens metadata modalities parallel_tool_calls
    prediction prompt_cache_key prompt_cache_retention reasoning_effort response_format safety_identifier service_tier
    store tool_choice tools top_logprobs verbosity web_search_options"""
VLLM = """top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens allowed_token_ids prompt_logprobs
    add_special_tokens bad_words structured_outputs guided_json guided_regex guided_choice guided_grammar priority
    request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params vllm_xargs
    use_beam_search"""


def test_every_field_is_done_or_refused_or_told_to_be_ignored(plain):
    """The fields of OpenAI's two endpoints and vLLM's own: none is passed over in silence."""
    completions, chats, vllm = OPENAI.split(), (OPENAI + OPENAI_CHAT).split(), VLLM.split()
    for names, own in (
        ([*completions, "prompt", "best_of", "echo", "suffix"], fields.COMPLETION),
        (chats, fields.CHAT),
    ):
        groups = [[*fields.HONOURED, *own], fields.IGNORED, fields.REFUSED]
        known = [name for group in groups for name in group]
        assert set(names + vllm) <= set(known)
        assert len(known) == len(set(known))  # each in one
    for path in ("/v1/completions", CHAT):
        nulls = dict.fromkeys([*fields.IGNORED, *fields.REFUSED])  # what isn't set asks for nothing
        assert complete(plain, path=path, max_tokens=1, **nulls).read()
        harmless = {"temperature": 0.7, "top_p": 0.9, "seed": 1, "user": "u", "tools": [], "tool_choice": "none",
                    "response_format": {"type": "text"}, "logit_bias": {}, "logprobs": False}  # fmt: skip
        response = complete(plain, path=path, max_tokens=3, **harmless)
        assert (response.status, json.load(response)["usage"]["completion_tokens"]) == (200, 3)
    for name, value in {"tools": [{}], "tool_choice": "required", "logprobs": True, "top_logprobs": 2}.items():
        response = complete(plain, path=CHAT, **{name: value})
        assert (response.status, json.load(response)["error"]["param"]) == (400, name)


def test_the_command_tells_what_it_honours(capsys):
    from servinglab.cli.main import main

    with pytest.raises(SystemExit):
        main(["serve-sim", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert all(re.search(rf"\b{name}\b", told) for name in [*fields.HONOURED, *fields.IGNORED])


def slow_stop(stops, after, most):
    """Token by token: how many there are when a stop string is complete, and the text before it."""
    for tokens in range(after + 1, most + 1):
        text = "".join(word(k) for k in range(tokens))
        begin = len("".join(word(k) for k in range(after)))
        found = [at for stop in stops if (at := text.find(stop, max(0, begin - len(stop) + 1))) >= 0]
        if found:
            return tokens, min(found)
    return None


ENDLESS = "".join(word(k) for k in range(60))
PIECES = st.tuples(st.integers(0, 200), st.integers(1, 90)).map(lambda cut: ENDLESS[cut[0] : cut[0] + cut[1]])


@given(stops=st.lists(PIECES | st.text("soup riceab", min_size=1, max_size=4), max_size=3), after=st.integers(0, 20))
@settings(deadline=None)
def test_a_stop_string_is_found_where_reading_on_would_find_it(stops, after):
    found = first_stop(stops, after, 60)
    assert (found and (found.tokens, found.begin)) == slow_stop(stops, after, 60)
    if found:
        assert ENDLESS[found.begin : found.end] in stops
        assert first_stop(stops, after, found.tokens - 1) is None


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
@pytest.mark.parametrize(
    ("asked", "text", "tokens", "reason"),
    [
        ({"stop": "tofu"}, "soup rice noodles dumplings ", 5, "stop"),
        ({"stop": [" tea", "ice n"]}, "soup r", 3, "stop"),
        ({"stop": "ice n", "include_stop_str_in_output": True}, "soup rice n", 3, "stop"),
        ({"stop": "soup", "min_tokens": 1}, "soup rice noodles dumplings tofu greens broth tea ", 9, "stop"),
        ({"stop": "soup"}, "", 1, "stop"),
        ({"stop": ["Human:", "\n"]}, "soup rice noodles dumplings tofu greens broth tea soup rice", 10, "length"),
        ({"stop": None}, "soup rice noodles dumplings tofu greens broth tea soup rice", 10, "length"),
        ({"stop": []}, "soup rice noodles dumplings tofu greens broth tea soup rice", 10, "length"),
    ],
)
def test_a_stop_string_ends_an_answer_before_it(plain, path, asked, text, tokens, reason):
    whole = json.load(complete(plain, path=path, max_tokens=10, **asked))
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == reason
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
    assert whole["usage"]["completion_tokens"] == tokens
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = events(complete(plain, path=path, max_tokens=10, **asked, **options))
    pieces = [c["choices"][0]["delta"]["content"] if path == CHAT else c["choices"][0]["text"] for c in chunks]
    assert ("".join(pieces), usage["usage"]["completion_tokens"]) == (text, tokens)
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == reason


def test_a_law_of_lengths_and_a_stop_string_end_an_answer_at_the_first_of_them():
    with running(output_tokens=sl.lengths.Constant(4)) as client:
        for stop, tokens in (("rice", 2), ("tofu", 4)):
            assert json.load(complete(client, max_tokens=9, stop=stop))["usage"]["completion_tokens"] == tokens


def test_bad_bodies_and_paths_get_openais_error_too(plain):
    for body, message in [(b"{", "the body is not JSON"), (b"[1]", "the body must be a JSON object; got list")]:
        response = post(plain, "/v1/completions", body)
        assert (response.status, message in json.load(response)["error"]["message"]) == (400, True)
    for messages in (None, [], ["hi"], [{"role": "user", "content": [{"type": "image_url"}]}]):
        response = post(plain, "/v1/chat/completions", {"messages": messages})
        assert (response.status, json.load(response)["error"]["param"]) == (400, "messages")
    response = post(plain, "/v1/embeddings", {})
    assert (response.status, json.load(response)["error"]["type"]) == (404, "NotFoundError")
    plain.request("GET", "/v1/completions")
    response = plain.getresponse()
    assert (response.status, response.getheader("allow")) == (405, "POST")
    response.read()


def get(client, path):
    client.request("GET", path)
    response = client.getresponse()
    assert response.status == 200
    return response.read().decode()


def samples(client):
    """Each sample of /metrics; a histogram's buckets left out."""
    lines = [
        line for line in get(client, "/metrics").splitlines() if not line.startswith("#") and "_bucket" not in line
    ]
    return {
        name + "".join(f":{value}" for value in re.findall(r'(?:kind|finished_reason)="(\w+)"', labels)): float(value)
        for name, labels, value in (re.fullmatch(r"(\S+?)\{(.*)\} (\S+)", line).groups() for line in lines)
    }


def test_models_health_and_metrics_under_vllms_names():
    with running(model='a "model"', kv=sl.Blocks(100)) as client:
        assert json.loads(get(client, "/v1/models"))["data"][0]["id"] == 'a "model"'
        assert get(client, "/health") == ""
        for _ in range(3):
            complete(client, max_tokens=5).read()
        found = samples(client)
        names = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total
            prompt_tokens_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total
            time_to_first_token_seconds_sum inter_token_latency_seconds_count e2e_request_latency_seconds_count
            request_time_per_output_token_seconds_count request_queue_time_seconds_count
            request_inference_time_seconds_count request_prefill_time_seconds_count request_decode_time_seconds_count
            request_prompt_tokens_count request_generation_tokens_count request_params_max_tokens_count
            iteration_tokens_total_count"""
        assert {f"vllm:{name}" for name in names.split()} <= set(found)
        assert found["vllm:prompt_tokens_total"] == 9
        assert found["vllm:generation_tokens_total"] == 15
        assert found["vllm:inter_token_latency_seconds_count"] == 12
        assert found["vllm:request_success_total:length"] == 3
        assert found["vllm:num_requests_running"] == found["vllm:kv_cache_usage_perc"] == 0
        text = get(client, "/metrics")
        assert text.count("# TYPE") == len(set(re.findall(r"# TYPE (\S+)", text)))
        assert r'model_name="a \"model\""' in text
        assert 'cache_config_info{block_size="16",engine="0",' in text
        assert 'num_gpu_blocks="101"' in text
        assert 'vllm:request_generation_tokens_bucket{engine="0",le="5.0",' in text


def test_prompts_that_begin_alike_hit_the_prefix_cache():
    with running(sl.ContinuousBatching(8, 512, prefix_caching=True), kv=sl.Blocks(100, 4)) as client:
        for prompt in ("a b c d e f g h i", "a b c d e f x y z", "b b c d e f g h i"):
            complete(client, prompt=prompt).read()
        found = samples(client)
        assert found["vllm:prefix_cache_hits_total"] == 4
        assert found["vllm:prefix_cache_queries_total"] == 27


def test_prefix_keys_are_equal_as_far_as_prompts_are():
    one, other = (prefix_key(list(text), 2, number) for number, text in enumerate(["abcdef", "abcxef"]))
    assert [one(k) == other(k) for k in range(3)] == [True, False, False]
    assert one(3) == (0, 3)


@contextmanager
def asking(client, **fields):
    """A request whose answer nobody reads yet, on a connection of its own."""
    sock = socket.create_connection((client.host, client.port), timeout=20)
    body = json.dumps({"prompt": "a", **fields}).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    try:
        yield sock
    finally:
        sock.close()


def until(client, name, value):
    for _ in range(2000):
        if (found := samples(client))[name] == value:
            return found
    raise AssertionError(f"{name} stays {found[name]}, not {value}")


@pytest.mark.parametrize("scheduler", [sl.ContinuousBatching(1, 512), sl.ContinuousBatching(1)], ids=["blocks", "pot"])
def test_a_full_line_is_an_overload_and_clients_who_go_leave_it(scheduler):
    with running(scheduler, NEVER_ENDS, speed=1, max_queue=1) as client:
        with asking(client):
            until(client, "vllm:num_requests_running", 1)
            with asking(client, stream=True):
                until(client, "vllm:num_requests_waiting", 1)
                response = complete(client)
                assert (response.status, response.getheader("retry-after")) == (503, "1")
                assert "1 requests wait, and 1 may" in json.load(response)["error"]["message"]
            until(client, "vllm:num_requests_waiting", 0)
        found = until(client, "vllm:num_requests_running", 0)
        assert found["vllm:request_success_total:abort"] == 2
        assert found["vllm:admission_rejections_total"] == 1


# Faults


def fault(client, text, **fields):
    return complete(client, {"x-servinglab-fault": text}, **fields)


def test_errors_on_purpose(plain):
    response = fault(plain, "429:seconds=7")
    assert (response.status, response.getheader("retry-after")) == (429, "7")
    assert json.load(response)["error"]["type"] == "RateLimitError"
    response = fault(plain, "500")
    assert (response.status, json.load(response)["error"]["code"]) == (500, 500)
    response = fault(plain, "fire")
    assert (response.status, "fault must be one of '429'" in json.load(response)["error"]["message"]) == (400, True)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_cut_in_the_middle(plain, stream):
    with pytest.raises(http.client.IncompleteRead) as cut:
        fault(plain, "cut", stream=stream, max_tokens=8).read()
    plain.close()
    partial = cut.value.partial
    assert partial
    assert b"tea" not in partial  # the last word
    assert partial.count(b"data: ") == (4 if stream else 0)


def test_an_event_that_is_not_json_and_one_that_is_not_utf8(plain):
    for kind, error in (("malformed", json.JSONDecodeError), ("utf8", UnicodeDecodeError)):
        lines = fault(plain, kind, stream=True, max_tokens=8).read().split(b"\n\n")
        bad = []
        for place, line in enumerate(lines[:-2]):
            try:
                json.loads(line.removeprefix(b"data: ").decode())
            except error:
                bad.append(place)
        assert (len(lines), bad) == (8 + 1 + 2, [4])  # between the fourth token and the fifth; [DONE] and the end
        with pytest.raises(error):
            json.loads(fault(plain, kind, max_tokens=8).read().decode())


@pytest.mark.parametrize("stream", [True, False])
def test_a_hung_answer_keeps_the_connection_open_and_the_engine_goes_on(stream):
    with running() as client:
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            fault(client, "hang", stream=stream, max_tokens=4).read()
        client.close()
        client.timeout = 20
        until(client, "vllm:request_success_total:length", 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_slow_first_byte_loses_nothing(plain, stream):
    response = fault(plain, "slow:seconds=0.05", stream=stream, max_tokens=4)
    assert len(events(response)) == 4 if stream else json.load(response)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
def test_clients_who_dont_wait_for_a_slow_first_byte_break_nothing(stream):
    with running() as client:
        client.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": stream}),
                       {"x-servinglab-fault": "slow:seconds=0.05"})  # fmt: skip
        client.close()
        threading.Event().wait(0.1)
        assert complete(client).status == 200


def test_new_connections_are_refused_and_open_ones_stay():
    with running() as client:
        assert fault(client, "refuse:seconds=1000").read()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((client.host, client.port)).close()
        assert complete(client).status == 200  # and the server can end all the same


def test_connections_are_accepted_again_when_the_time_is_over():
    with running() as client:
        assert fault(client, "refuse:seconds=0.05").read()
        client.close()
        for _ in range(2000):
            try:
                client.connect()
                break
            except ConnectionRefusedError:
                threading.Event().wait(0.01)
        assert complete(client).status == 200


def test_faults_by_flag_and_by_the_endpoint():
    with running(faults=["500:every=3"]) as client:
        statuses = []
        for _ in range(6):
            response = complete(client)
            statuses.append(response.status)
            response.read()
        assert statuses == [200, 200, 500, 200, 200, 500]
        assert samples(client)["servinglab:faults_total:500"] == 2
        client.request("PUT", "/faults", '{"faults": ["429:p=1"], "seed": 3}')
        assert json.load(client.getresponse())["faults"] == [{"kind": "429", "p": 1.0, "every": None, "seconds": 1.0}]
        response = complete(client)
        assert (response.status, response.read() != b"") == (429, True)
        for body in ('{"faults": ["429"]}', '{"faults": [3]}', "[]", "x"):
            client.request("PUT", "/faults", body)
            response = client.getresponse()
            assert (response.status, "the body must be like" in json.load(response)["error"]["message"]) == (400, True)
        assert json.loads(get(client, "/faults"))["count"] == {"500": 2, "429": 1}


def test_draws_follow_the_seed_and_the_probability():
    def kinds(seed, *texts):
        faults = Faults([parse_fault(text) for text in texts], seed)
        return [drawn.kind if (drawn := faults.draw()) else None for _ in range(4000)]

    alone = kinds(1, "cut:p=0.1")
    assert alone == kinds(1, "cut:p=0.1") != kinds(2, "cut:p=0.1")
    assert alone.count("cut") == pytest.approx(400, abs=4 * (4000 * 0.1 * 0.9) ** 0.5)
    both = kinds(1, "cut:p=0.1", "slow:every=2")
    assert [k == "cut" for k in both] == [k == "cut" for k in alone]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fire:p=1", "fault must be one of"),
        ("cut:p=2", "p must be a finite number >= 0 and <= 1; got 2.0"),
        ("cut:every=0", "every must be a whole number >= 1; got 0"),
        ("cut:p=0.1,every=2", "fault cut takes p or every, not both"),
        ("cut:seconds=1", "a setting of fault cut must be one of 'p', 'every'"),
        ("slow:seconds=x", "seconds of fault slow must be a number; got 'x'"),
        ("cut:every=2.5", "every of fault cut must be a number"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_fault(text)


# Starting and ending


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"speed": 0}, "speed must be a finite number > 0"),
        ({"max_queue": 0}, "max_queue must be a whole number >= 1; got 0"),
        ({"faults": ["cut"]}, "fault cut needs p= or every="),
        ({"step_time": None}, "step_time must be callable"),
        ({"scheduler": "continuous"}, "scheduler must have a method admit"),
        ({"kv": sl.Blocks(10), "pots": 2}, "pots must be 1 where tokens or blocks are counted; got 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_listens(setting, message):
    with (
        pytest.raises(ValueError, match=re.escape(message)),
        serve(**{"scheduler": sl.ContinuousBatching(8), "step_time": STEP, **setting}),
    ):
        pass


def test_a_port_that_is_taken_is_an_error(plain):
    with pytest.raises(OSError, match="in use"), serve(sl.ContinuousBatching(8), STEP, port=plain.port):
        pass


def test_the_command_serves_until_it_is_told_to_end_and_lets_answers_end_first():
    command = [sys.executable, "-m", "servinglab", "serve-sim", "--port", "0", "--scheduler", "static"]
    command += ["--batch-size", "2", "--last", "partial", "--fixed-s", "0.01", "--served-model-name", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("serving"):
                break
        assert any("a request waits until its batch is full" in line for line in lines)
        host, port = re.search(r"m at http://([\d.]+):(\d+)/v1", lines[-1]).groups()
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as client:
            client.connect()
            with asking(client, max_tokens=3, stream=True) as sock:  # alone in its batch: it waits
                until(client, "vllm:num_requests_waiting", 1)
                process.send_signal(signal.SIGTERM)
                answer = b""
                while piece := sock.recv(65536):
                    answer += piece
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "served     1 length; 3 tokens in 1 steps" in out


def test_the_command_says_in_one_line_what_is_wrong(plain, capsys):
    from servinglab.cli.main import main

    for words, message in [
        (["--port", str(plain.port)], "in use"),
        (["--fault", "fire"], "fault must be one of"),
        (["--speed", "-1"], "speed must be a finite number > 0"),
        (["--kv-blocks", "10", "--pots", "2"], "--kv-blocks doesn't go with --pots 2"),
    ]:
        assert main(["serve-sim", *words]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert (captured.out, captured.err.count("\n")) == ("", 1)


# The limit of open files


@contextmanager
def limited(soft, hard, *words):
    """The command in a process that may open so many files; yields it and its address."""
    resource = pytest.importorskip("resource", reason="this system has no limit of open files")
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 0:
        pytest.skip("this process may not open that many files")
    script = f"""if True:
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
        from servinglab.cli.main import main
        sys.exit(main(["serve-sim", "--port", "0", *sys.argv[1:]]))"""
    command = [sys.executable, "-c", script, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            served = next(line for line in process.stdout if line.startswith("serving"))
            yield process, *re.search(r"http://([\d.]+):(\d+)/v1", served).groups()
        finally:
            process.kill()


def test_the_command_opens_as_many_files_as_it_may():
    with limited(64, 400, "--fixed-s", "5000") as (_, host, port), ExitStack() as held:
        client = held.enter_context(closing(http.client.HTTPConnection(host, int(port), timeout=20)))
        for _ in range(200):
            held.enter_context(asking(client))
        found = until(client, "vllm:num_requests_waiting", 199)  # the first step is under way
        assert found["servinglab:connections_open"] == 201
        assert found["servinglab:connection_rejections_total"] == 0


def test_at_the_limit_of_open_files_new_requests_get_503_and_metrics_say_so():
    asks = 150
    with limited(
        100,
        100,
        "--fixed-s",
        "5000",
    ) as (process, host, port):
        with ExitStack() as held:
            socks = [held.enter_context(closing(socket.create_connection((host, int(port)), 20))) for _ in range(asks)]
            for sock in socks:
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 15\r\n\r\n" + b'{"prompt": "a"}')
            # each that isn't served is told at once, as a client can understand it
            told = []
            deadline = time.monotonic() + 20
            while len(told) < asks - 90 or select.select(socks, [], [], 0.5)[0]:
                assert time.monotonic() < deadline
                for sock in select.select(socks, [], [], 1)[0]:
                    told.append(http.client.HTTPResponse(sock))
                    told[-1].begin()
                    socks.remove(sock)
            for response in told:
                assert (response.status, response.getheader("retry-after")) == (503, "1")
                assert response.getheader("connection") == "close"
                error = json.load(response)["error"]
                assert (error["type"], "open files" in error["message"]) == ("ServiceUnavailableError", True)
            with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as client:
                found = samples(client)  # on a connection beyond the limit
            assert found["servinglab:connection_rejections_total"] == len(told)
            assert found["vllm:num_requests_waiting"] == asks - len(told) - 1  # the first step is under way
            assert asks - len(told) >= 50
            # who comes and says nothing is let go, so that others are heard
            idle = [held.enter_context(closing(socket.create_connection((host, int(port)), 20))) for _ in range(20)]
            with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as client:
                assert get(client, "/health") == ""
            for sock in idle:
                sock.settimeout(20)
                assert sock.recv(1) == b""
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as client:
            found = until(client, "vllm:num_requests_running", 0)
            assert found["servinglab:connections_open"] == 1
            assert found["servinglab:connection_rejections_total"] == len(told) + len(idle)
            with asking(client):  # there is room again
                until(client, "vllm:num_requests_waiting", 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    begun, ended = err.splitlines()
    assert "100 files" in begun
    assert f"again: {len(told) + len(idle)} were turned away" in ended


def test_an_ask_is_plain_data():
    assert Ask(chat=False, pieces=["a"], max_tokens=3) == Ask(False, ["a"], 3)
