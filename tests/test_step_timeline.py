"""Who does what in each step: held against the run's log and rows, and what the page gets of it."""

from __future__ import annotations

import numpy as np
import pytest
import servinglab as sl
from servinglab.plots.steps import step_states, step_timeline

STEP = sl.AffineStep(0.02, 0.002, 0.0005)
SCHEDULERS = {
    "static": (sl.StaticBatching(3, last="partial"), None),
    "static streaming": (sl.StaticBatching(4, last="partial", streaming=True, padded=False), None),
    "window": (sl.DynamicBatching(3, window_s=0.05), None),
    "seats": (sl.ContinuousBatching(3), None),
    "budget": (sl.ContinuousBatching(4, 16), None),
    "whole prompts": (sl.ContinuousBatching(4, 64, chunked_prefill=False), None),
    "prompts first": (sl.ContinuousBatching(4, 32, prefill_first=True), None),
    "blocks": (sl.ContinuousBatching(4, 16), sl.Blocks(14, block_size=4)),
    "priority": (sl.ContinuousBatching(4, 16, policy="priority"), sl.Blocks(14, block_size=4)),
}


def _chat(seed: int) -> sl.Workload:
    rng = np.random.default_rng(seed)
    n = 14
    return sl.Workload.from_arrivals(
        np.cumsum(rng.exponential(0.04, n)),
        prompt_tokens=rng.integers(1, 30, n),
        output_tokens=rng.integers(1, 20, n),
        priority=rng.integers(0, 3, n),
    )


@pytest.mark.filterwarnings("ignore:simulated step by step")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_states_add_up_to_the_log_and_the_rows(name: str) -> None:
    scheduler, kv = SCHEDULERS[name]
    lost = 0
    for seed in range(6):
        chat = _chat(seed)
        run = sl.simulate(chat, scheduler, STEP, kv=kv)
        told, log = step_states(run, chat), run.steps()
        reads, decodes = told.states == "p", told.states == "d"
        assert np.array_equal((told.tokens > 0), reads | decodes)
        if not getattr(scheduler, "padded", False):
            assert np.array_equal((reads | decodes).sum(axis=0), log.charged)
            assert np.array_equal(np.where(reads, told.tokens, 0).sum(axis=0), log.prefill_tokens)
        elif name == "window":
            assert np.array_equal((told.states == "h").any(axis=0), log.charged > (reads | decodes).sum(axis=0))
        assert np.array_equal((told.states == "w").sum(axis=0) + (told.states == "x").sum(axis=0), log.waiting)
        known = log.kv_blocks >= 0
        assert np.array_equal(told.kv_blocks[known], log.kv_blocks[known])
        for k in range(len(chat)):
            busy = np.flatnonzero(reads[k] | decodes[k])
            assert log.start_ns[busy[0]] == run.scheduled_ns[k]
            if scheduler.streaming:
                assert log.end_ns[busy[-1]] == run.finish_ns[k]
            assert (told.states[k] == "x").sum() == run.preemptions[k]
            if not run.preemptions[k]:
                assert told.tokens[k].sum() == chat.prompt_tokens[k] + chat.output_tokens[k] - 1
        lost += int(run.preemptions.sum())
        assert ("s" in told.states) <= (name in {"budget", "whole prompts", "prompts first", "blocks", "priority"})
    assert (lost > 0) == (kv is not None)


def test_states_are_those_of_a_loop_written_anew() -> None:
    """Seats only, one token a step: the rule in six lines."""
    chat = sl.Workload.from_arrivals([0, 0, 0, 0.05], prompt_tokens=[4] * 4, output_tokens=[3, 5, 12, 6])
    run = sl.simulate(chat, sl.ContinuousBatching(3), STEP)
    assert ["".join(row) for row in step_states(run, chat).states] == [
        "pdd.........",
        "pdddd.......",
        "pddddddddddd"[:12],
        "..wpddddd...",
    ]
    static = sl.simulate(chat, sl.StaticBatching(3, last="partial"), STEP)
    assert ["".join(row) for row in step_states(static, chat).states][:2] == [
        "pddhhhhhhhhh......",
        "pddddhhhhhhh......",
    ]


def test_a_run_of_another_workload_is_refused() -> None:
    chat = _chat(0)
    run = sl.simulate(chat, sl.ContinuousBatching(4, 16), STEP)
    with pytest.raises(ValueError, match="result must be a run of the workload"):
        step_states(run, _chat(1))
    urgent = sl.Workload.from_arrivals(
        chat.arrival_s, prompt_tokens=chat.prompt_tokens, output_tokens=chat.output_tokens, priority=np.arange(14)[::-1]
    )
    by_priority = sl.reference(urgent, sl.ContinuousBatching(4, 16, policy="priority"), STEP)
    with pytest.raises(ValueError, match=r"step \d+ computes .* its log says"):
        step_states(by_priority, chat)
    with pytest.raises(ValueError, match="one pot; got 2 pots"):
        step_states(sl.simulate(chat, sl.ContinuousBatching(4), STEP, pots=2), chat)
    with pytest.raises(ValueError, match="async_scheduling"):
        step_states(sl.reference(chat, sl.ContinuousBatching(4, 16, async_scheduling=True), STEP), chat)


def test_the_page_gets_every_combination_in_the_sliders_order() -> None:
    chat = _chat(2)
    runs = {(n, b): sl.simulate(chat, sl.ContinuousBatching(n, b), STEP) for b in (64, 16) for n in (4, 2)}
    data = step_timeline(chat, runs, sliders=["max_num_seqs", "max_num_batched_tokens"]).data
    assert [each["stops"] for each in data["sliders"]] == [["2", "4"], ["16", "64"]]
    assert [lane["last"] for lane in data["lanes"]] == [
        runs[key].segments.end_ns.max() / 1e9 for key in [(2, 16), (2, 64), (4, 16), (4, 64)]
    ]
    assert [each["start"] for each in data["sliders"]] == [0, 0]
    shown = step_timeline(chat, runs, sliders=["max_num_seqs", "max_num_batched_tokens"], start=(4, 16))
    assert [each["start"] for each in shown.data["sliders"]] == [1, 0]
    assert "<strong>max_num_seqs 4, max_num_batched_tokens 16</strong>" in shown._repr_html_()
    with pytest.raises(ValueError, match=r"start must be a key of results.*\(3, 16\)"):
        step_timeline(chat, runs, sliders=["max_num_seqs", "max_num_batched_tokens"], start=(3, 16))
    assert data["duration"] == max(run.segments.end_ns.max() / 1e9 for run in runs.values())
    lane = data["lanes"][2]
    told = step_states(runs[4, 16], chat)
    for k, row in enumerate(lane["rows"]):
        assert row["states"] == "".join(told.states[k])
        assert sum(row["prefill"]) == chat.prompt_tokens[k]
    del runs[2, 64]
    with pytest.raises(ValueError, match=r"lacks \(2, 64\)"):
        step_timeline(chat, runs, sliders=["max_num_seqs", "max_num_batched_tokens"])


def test_the_table_says_the_steps_without_a_script() -> None:
    chat = sl.Workload.from_arrivals([0.0, 0.0], prompt_tokens=[6, 3], output_tokens=[2, 1])
    run = sl.simulate(chat, sl.ContinuousBatching(2, 4), sl.AffineStep(0.1, 0.0), kv=sl.Blocks(9, block_size=2))
    html = step_timeline(chat, {"<run>": run}, labels=["A", "B"])._repr_html_()
    assert "&lt;run&gt;" in html and "<run>" not in html
    assert html.count('<th scope="row">') == len(run.steps()) and "6/9" in html
    for labels in (["A"], [1, 2]):
        with pytest.raises(ValueError, match="labels must be one string for each of 2 requests"):
            step_timeline(chat, {"run": run}, labels=labels)


def test_a_rejected_request_is_gone_at_once_and_an_unserved_one_never() -> None:
    chat = sl.Workload.from_arrivals([0.0, 0.01, 0.5], prompt_tokens=[5, 60, 5], output_tokens=[6, 6, 4])
    run = sl.simulate(chat, sl.ContinuousBatching(3, 16, max_model_len=30), STEP, kv=sl.Blocks(14, block_size=4))
    rows = step_timeline(chat, {"run": run}).data["lanes"][0]["rows"]
    assert [row["gone"] for row in rows] == [run.finish_s[0], 0.01, run.finish_s[2]]
    assert set(rows[1]["states"]) == {"."}
    waiting = sl.simulate(chat, sl.StaticBatching(2, last="never"), STEP)
    last = step_timeline(chat, {"run": waiting}).data["lanes"][0]["rows"][2]
    assert last["gone"] is None and set(last["states"]) <= {".", "w"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"results": []}, "results must map names or tuples to at least one run"),
        ({"results": {"a": 1}}, "result must be a run"),
        ({"workload": {"b": None}}, "workload must have the keys of results; it lacks 'a'"),
        ({"workload": None}, "workload what it ran"),
        ({"results": {(1,): None}, "sliders": "n"}, "sliders must be a sequence of names"),
        ({"results": {(1,): None, ("x",): None}, "sliders": ["n"]}, "each slider's values must have an order"),
        ({"start": "a"}, "start must be a key of results, with sliders"),
    ],
)
def test_bad_arguments_are_named(arguments, message: str) -> None:
    chat = sl.Workload.from_arrivals([0.0, 0.0], output_tokens=[2, 1])
    run = sl.simulate(chat, sl.ContinuousBatching(2), STEP)
    with pytest.raises(ValueError, match=message):
        step_timeline(**{"workload": chat, "results": {"a": run}} | arguments)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({}, "at least one run"),
        (
            {
                "long": sl.simulate(
                    sl.Workload.from_arrivals([0.0], output_tokens=[401]), sl.ContinuousBatching(1), STEP
                )
            },
            "400",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(results, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_timeline(sl.Workload.from_arrivals([0.0], output_tokens=[401]), results)
