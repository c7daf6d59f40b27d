"""The scheduler of tokens and blocks: equal to the real engine's traces; nothing lost; nobody stuck."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import servinglab as sl
from hypothesis import given, settings
from hypothesis import strategies as st
from servinglab.scheduling.blocks import BlockPool, prefix_keys
from servinglab.scheduling.recorded import differences, read_engine_trace
from servinglab.scheduling.vllm_rules import PagedScheduler, Sequence

with gzip.open(Path(__file__).parent / "data" / "vllm_traces.jsonl.gz", "rt", encoding="utf-8") as lines:
    SHIPPED = [json.loads(line) for line in lines]
NEVER_FITS = "s14_never_fits"


@pytest.mark.parametrize("trace", SHIPPED, ids=lambda trace: trace["scenario"]["name"])
def test_every_step_equals_the_real_engines(trace):
    if trace["scenario"]["name"] == NEVER_FITS:  # the engine stalls here; ours says why
        with pytest.raises(ValueError, match="request 1 can never be served: 21 blocks at its end"):
            differences(trace)
    else:
        assert differences(trace) is None


def test_traces_found_in_the_data_folder_come_out_equal_too(data_dir):
    files = sorted((data_dir / "vllm_traces").glob("*.json"))
    assert files
    for file in files:
        trace = read_engine_trace(file)
        if not trace.get("stalled"):
            assert differences(trace) is None, file.name


@pytest.mark.parametrize("setting", ["max_num_batched_tokens", "num_blocks", "reserve_full_isl", "watermark"])
def test_a_changed_setting_is_noticed(setting):
    trace = next(t for t in SHIPPED if t["scenario"]["name"] == "s07_kv_pressure_chunked")
    changed = {"max_num_batched_tokens": 23, "num_blocks": 25, "reserve_full_isl": False, "watermark": 0.5}[setting]
    assert differences({**trace, "scenario": {**trace["scenario"], setting: changed}}) is not None


def test_a_file_that_is_no_trace_is_named(tmp_path):
    for text, message in [("{", "not JSON"), ("[]", "not a scheduler's trace"), ('{"steps": []}', "lacks scenario")]:
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_engine_trace(tmp_path / "x.json")


TOGETHER = [
    (), ("prefix_caching",), ("async_scheduling",), ("prefix_caching", "async_scheduling"), ("prefill_first",),
    ("reserve_whole_answer",), ("prefill_first", "reserve_whole_answer"), ("reserve_whole_answer", "async_scheduling"),
]  # fmt: skip


@st.composite
def scenarios(draw):
    seats = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    blocks = draw(st.integers(2, 30))
    rules = sl.ContinuousBatching(
        seats,
        draw(st.integers(seats, 40)),
        chunked_prefill=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5])),
        adaptive_threshold=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        max_num_active_seqs=draw(st.one_of(st.none(), st.integers(1, seats))),
        full_prompt_gate=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1, 0.5])),
        **dict.fromkeys(draw(st.sampled_from(TOGETHER)), True),
    )
    requests = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 3), st.integers(0, 2)),
                             min_size=1, max_size=12))  # fmt: skip
    return rules, blocks, block_size, requests


@settings(max_examples=600, deadline=None)
@given(scenarios())
@pytest.mark.slow
def test_nothing_is_lost_and_nobody_is_stuck(scenario):
    rules, blocks, block_size, requests = scenario
    engine = PagedScheduler(rules, blocks, block_size)
    sequences = []
    for number, (prompt, output, priority, group) in enumerate(requests):
        key = (lambda n, g: lambda k: ("group", g, k) if g and k < 3 else (n, k))(number, group)
        sequence = Sequence(number, prompt, output, priority, key)
        if engine.why_never(prompt, output) is None:
            engine.add(sequence)
            sequences.append(sequence)
        else:
            with pytest.raises(ValueError, match="can never be served"):
                engine.add(sequence)
    in_flight, steps = [], 0
    computed = {sequence: 0 for sequence in sequences}
    while engine.running or engine.waiting or in_flight:
        step = engine.schedule()
        steps += 1
        assert steps < 20_000, "livelock"
        assert sum(chunk.tokens for chunk in step.chunks) <= rules.max_num_batched_tokens
        assert len(engine.running) <= rules.seats
        in_use = {id(block) for sequence in engine.running for block in sequence.blocks}
        assert len(in_use) == engine.used_blocks <= blocks
        if rules.reserve_whole_answer:
            assert not step.preempted
        assert all(s.computed <= len(s.blocks) * block_size for s in engine.running)
        for chunk in step.chunks:
            computed[chunk.sequence] = chunk.start + chunk.tokens
        in_flight += [step] if step.chunks else []
        assert in_flight or step.preempted, "someone waits, nothing runs"
        if in_flight and (not rules.async_scheduling or len(in_flight) > 1 or not any(c.emits for c in step.chunks)):
            engine.finish(in_flight.pop(0))
    assert all(sequence.outputs == sequence.output_tokens for sequence in sequences)
    assert all(computed[s] == s.prompt_tokens + s.output_tokens - 1 for s in sequences)
    assert engine.used_blocks == 0


def test_a_pool_takes_empty_blocks_first_and_then_the_longest_unused():
    pool = BlockPool(3, caching=True)
    first, second = pool.take(2)
    pool.keep(first, "a")
    pool.keep(second, "b")
    pool.give_back([first, second])
    assert pool.free == 3
    pool.take(1)  # the one that never held anything
    assert [len(pool.find(iter(key))) for key in "ab"] == [1, 1]
    pool.take(1)  # the tail went back first
    assert [len(pool.find(iter(key))) for key in "ab"] == [1, 0]


def test_a_pool_too_small_for_the_longest_request_is_refused():
    with pytest.raises(ValueError, match="num_blocks must hold one request of max_model_len = 100 tokens, 7 blocks"):
        PagedScheduler(sl.ContinuousBatching(1, 10, max_model_len=100), num_blocks=6).check_start()


def test_pieces_of_a_prompt_must_hold_whole_blocks():
    with pytest.raises(ValueError, match="prefix_tokens must be a multiple of block_size = 16; got 24"):
        prefix_keys(0, [1], prefix_tokens=24, block_size=16)
