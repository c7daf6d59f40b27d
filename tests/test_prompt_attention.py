"""Attention within prompts is priced; what is simulated without it says so where a prompt has over 4,000 tokens."""

from __future__ import annotations

import http.client
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import servinglab as sl
from servinglab import plots
from servinglab.cli import main as cli
from servinglab.decide.search import best_batch
from servinglab.measure.readers.read_run import read_run
from servinglab.metrics.knee import level_of
from servinglab.plots.steps import step_timeline
from servinglab.result.compare import compare_runs
from servinglab.result.save import save_run
from servinglab.result.setup import RunSetup
from servinglab.sim_server.server import serve
from servinglab.step_time.prompt_attention import LONG_PROMPT, MARK, unpriced_attention

matplotlib.use("Agg")

ROOF = sl.roofline("llama-3.1-8b", "h100-sxm")
TYPED = sl.AffineStep(0.01, 1e-4, 1e-5)
CARD = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm"]
FLAT = ["--fixed-s", 0.01, "--per-request-s", 1e-4, "--per-prefill-token-s", 1e-5]
NOTE = "attention within prompts isn't priced"
WHOLE = f"{NOTE}: the step time has no term for it, and the longest prompt has 131,000 tokens"


def served(prompt: int, step: Any = TYPED, budget: int | None = None, **rules: Any) -> sl.Result:
    """Two requests, the second with this prompt."""
    work = sl.Workload.from_arrivals([0.0, 100.0], prompt_tokens=[10, prompt], output_tokens=[2, 2])
    return sl.simulate(work, sl.ContinuousBatching(256, budget, **rules), step)


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    status = cli.main([str(word) for word in words])
    return status, *capsys.readouterr()


# The price


def alone_s(prompt: int, budget: int | None, step: Any = None) -> float:
    """Seconds to the first token of a prompt that is alone; both engines say the same."""
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=prompt, output_tokens=1)
    rules = sl.ContinuousBatching(1, budget)
    fast, plain = (serve(work, rules, ROOF.sides() if step is None else step) for serve in (sl.simulate, sl.reference))
    assert fast.ttft_s[0] == plain.ttft_s[0]
    return float(fast.ttft_s[0])


@pytest.mark.parametrize(
    ("prompt", "budget", "seconds"), [(131_000, None, 10.66), (8192, 8192, 0.223), (32_768, 8192, 1.249)]
)
def test_a_long_prompt_takes_what_its_attention_takes(prompt: int, budget: int | None, seconds: float) -> None:
    """By hand: 2·P·params of matrices and 4·d·layers·heads a pair, at 60 % of 989.5 TFLOP/s; and 1 ms a step."""
    assert alone_s(prompt, budget) == pytest.approx(seconds, abs=5 * 10 ** -(1 + len(str(seconds).split(".")[1])))
    pairs, steps = prompt * (prompt + 1) / 2, -(-prompt // (budget or prompt))
    by_hand = (2 * 6.979e9 * prompt + 4 * 128 * 32 * 32 * pairs) / (0.6 * 989.5e12) + 0.001 * steps
    assert alone_s(prompt, budget) == pytest.approx(by_hand, rel=0.01)


@pytest.mark.parametrize("budget", [None, 8192, 1000, 512])
@pytest.mark.parametrize("prompt", [1, 7000, 131_000])
def test_pairs_do_not_depend_on_the_pieces(prompt: int, budget: int | None) -> None:
    pairs_only = sl.AffineStep(1e-9, 0.0, 0.0, 0.0, 1e-9)
    steps = -(-prompt // (budget or prompt))
    assert alone_s(prompt, budget, pairs_only) == pytest.approx(1e-9 * (steps + prompt * (prompt + 1) / 2), abs=2e-9)


def test_tokens_found_in_the_prefix_cache_are_attended_but_not_computed() -> None:
    work = sl.Workload.from_arrivals([0.0, 9.0], [1024, 1024], [1, 1], prefix_hashes=[[1, 2], [1, 3]])
    rules = sl.ContinuousBatching(4, 4096, prefix_caching=True)
    run = sl.simulate(work, rules, sl.AffineStep(1e-3, 0.0), kv=sl.Blocks(1000, 16))
    assert run.segments is not None
    assert run.segments.prefill_tokens.tolist() == [1024, 512]
    assert run.segments.prefill_pairs.tolist() == [1024 * 1025 // 2, 512 * 512 + 512 * 513 // 2]


@pytest.mark.filterwarnings("ignore:simulated step by step")
def test_a_step_time_of_ones_own_is_told_the_pairs_if_it_has_their_name() -> None:
    told = []

    def named(requests: int, prefill_tokens: int, kv_tokens: int, prefill_pairs: int = 0) -> float:
        told.append(prefill_pairs)
        return 0.01

    class Named:
        def __call__(self, requests: int, prefill_tokens: int, kv_tokens: int, *, prefill_pairs: int) -> float:
            return named(requests, prefill_tokens, kv_tokens, prefill_pairs)

    def other(requests: int, prefill_tokens: int, kv_tokens: int, weather: str = "fair") -> float:
        assert weather == "fair"
        return 0.01

    for step in (named, Named()):
        alone_s(100, 64, step)
        assert told == 2 * [64 * 65 // 2, 36 * 64 + 36 * 37 // 2]
        told.clear()
    alone_s(100, 64, other)
    assert alone_s(100, 64, ROOF) == pytest.approx(alone_s(100, 64), rel=1e-6)


def test_best_batch_does_not_promise_what_one_prompt_alone_exceeds() -> None:
    """A prompt of 100,000 tokens takes 6.77 s alone; 4.29 s were promised while its attention had no price."""
    assert alone_s(100_000, 8192) == pytest.approx(6.77, rel=0.01)
    work = sl.poisson(0.02, 300, seed=1, prompt_tokens=100_000, output_tokens=8)
    limits = dict(scheduler="continuous", max_batch_size=4, max_num_batched_tokens=8192, remedies=False)
    for limit, keeps in ((5.0, False), (60.0, True)):
        answer = best_batch(work, ROOF.sides(), {"ttft_s": limit}, q=0.5, **limits)
        assert (answer.choice is not None) == keeps
        assert answer.alone["ttft_s"] == pytest.approx(6.77, rel=0.01)


def test_the_clock_knows_the_pairs() -> None:
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=1_000_000, output_tokens=1)
    with pytest.raises(ValueError, match=r"a step of this run could last 2\.5e\+04 s"):
        sl.simulate(work, sl.ContinuousBatching(1), sl.AffineStep(0.1, 0.0, 0.0, 0.0, 5e-8))
    sl.simulate(work, sl.ContinuousBatching(1, 8192), sl.AffineStep(0.1, 0.0, 0.0, 0.0, 5e-8))


# The line, where there is no price


@pytest.mark.parametrize("step", [TYPED, sl.RoofStep(TYPED, TYPED), lambda n, p, k: 0.01 + 1e-5 * p])
def test_up_to_4000_tokens_nothing_is_said(step: Any) -> None:
    for prompt, said in ((LONG_PROMPT, False), (LONG_PROMPT + 1, True)):
        note = unpriced_attention(prompt, step)
        assert (note is not None) == said
        assert note is None or f"{prompt:,} tokens" in note


def test_a_typed_and_an_own_step_time_have_no_price() -> None:
    assert unpriced_attention(5000, TYPED) == (
        f"{NOTE}: the step time has no term for it, and the longest prompt has 5,000 tokens"
    )
    assert unpriced_attention(5000, lambda n, p, k: 0.01) == (
        f"{NOTE}: the step time is told totals only, and the longest prompt has 5,000 tokens"
    )


@pytest.mark.parametrize(
    "step",
    [ROOF, ROOF.sides(), ROOF.affine("sum"), replace(TYPED, per_prefill_pair_s=1e-9), lambda n, prefill_pairs: 1],
)
def test_what_prices_it_says_nothing(step: Any) -> None:
    assert unpriced_attention(131_000, step) is None


def test_only_prompts_that_were_served_count() -> None:
    assert served(9000, max_model_len=5000).unpriced_attention is None


def test_a_measured_run_pays_for_all_its_work() -> None:
    run = served(9000)
    measured = replace(run, step_time=None, setup=RunSetup(source="one of flesh and blood"))
    assert run.unpriced_attention is not None and measured.unpriced_attention is None


# Where it is said


def test_the_summary_says_it_once_and_its_dictionary_too() -> None:
    summary = served(131_000).summary()
    assert str(summary).count(NOTE) == 1 and WHOLE in str(summary)
    assert summary._repr_html_().count("attention within prompts") == 1
    assert summary.to_dict()["unpriced_attention"] == WHOLE
    short = served(4000).summary()
    assert "note" not in str(short) and short.to_dict()["unpriced_attention"] is None


@pytest.mark.parametrize("step", [sl.RoofStep(TYPED, TYPED), TYPED])
def test_a_saved_run_still_says_it(step: Any, tmp_path: Any) -> None:
    run = served(131_000, step)
    save_run(run, tmp_path / "run.npz")
    again = read_run(tmp_path / "run.npz")
    assert again.unpriced_attention == run.unpriced_attention is not None


def test_a_saved_run_of_an_own_step_time_still_says_it(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match="step by step"):
        run = served(5000, lambda n, p, k: 0.01)
    save_run(run, tmp_path / "run.npz")
    assert read_run(tmp_path / "run.npz").unpriced_attention == run.unpriced_attention is not None


def test_a_comparison_says_of_which_run() -> None:
    long, short = served(5000), served(100)
    both = compare_runs(long, short)
    assert f"note A    {long.unpriced_attention}" in str(both) and str(both).count(NOTE) == 1
    assert f"note AB   {long.unpriced_attention}" in str(compare_runs(long, long))
    assert both.to_dict()["unpriced_attention"] == [long.unpriced_attention, None]
    assert not [name for name in both.figures if "unpriced" in name]


def test_simulate_says_it_in_the_report_and_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    words = ["simulate", "--poisson", 0.01, "--n", 3, "--seed", 1]
    long = [*words, "--prompt-tokens", 131_000]
    status, out, err = command(capsys, *long, *FLAT, "--json", tmp_path / "run.json")
    assert (status, err) == (0, "") and out.count(NOTE) == 1 and WHOLE in out
    assert json.loads((tmp_path / "run.json").read_text())["summary"]["unpriced_attention"] == WHOLE
    for priced in ([*long, *CARD, "--kv-blocks", "unlimited"], long, [*words, *FLAT, "--prompt-tokens", 4000]):
        status, out, _ = command(capsys, *priced)
        assert status == 0 and NOTE not in out


def test_best_batch_says_it_in_the_answer_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["best-batch", "--poisson", 0.01, "--slo", "ttft_s=9", "--scheduler", "continuous", *FLAT]
    words += ["--max-batch-size", 2, "--requests", 2000, "--max-requests", 2000]
    status, out, err = command(capsys, *words, "--prompt-tokens", 120_000)
    assert (status, err) == (0, "")
    assert out.count(NOTE) == 1 and "the longest prompt has 120,000 tokens" in out
    _, out, _ = command(capsys, *words, "--prompt-tokens", 120_000, "--json", "-")
    assert NOTE in json.loads(out)["unpriced_attention"]
    _, out, _ = command(capsys, *words, "--prompt-tokens", 4000)
    assert NOTE not in out


def test_best_batch_says_it_where_nothing_meets_the_promise() -> None:
    work = sl.poisson(1, 50, seed=1, prompt_tokens=9000)
    answer = best_batch(work, TYPED, {"ttft_s": 1e-3}, "continuous", max_batch_size=2, remedies=False)
    assert answer.choice is None and str(answer).count(NOTE) == 1


def test_the_server_warns_at_the_first_long_prompt_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "servinglab")
    with (
        serve(sl.ContinuousBatching(8), TYPED, speed=1e6) as url,
        closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as client,
    ):
        for tokens in (4000, 5000, 6000):
            assert [NOTE in each.message for each in caplog.records] == [True] * (tokens > 5000)
            client.request("POST", "/v1/completions", json.dumps({"prompt": [1] * tokens, "max_tokens": 1}))
            assert client.getresponse().read()
    assert len(caplog.records) == 1 and "5,000 tokens" in caplog.records[0].message


def test_serve_sim_says_it_when_it_comes_and_at_its_end() -> None:
    words = [sys.executable, "-m", "servinglab", "serve-sim", "--port", "0", "--speed", "1000", *map(str, FLAT)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("serving"))
        address = line.split("http://")[1].split("/")[0]
        with closing(http.client.HTTPConnection(address, timeout=20)) as client:
            for tokens in (5000, 131_000):
                client.request("POST", "/v1/completions", json.dumps({"prompt": [1] * tokens, "max_tokens": 1}))
                assert client.getresponse().read()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err.count("\n") == 1 and f"servinglab: {NOTE}: the step time has no term for it, and the longest" in err
    assert out.endswith(f"note       {WHOLE}\n")


# Figures


@pytest.fixture(autouse=True)
def no_figures_stay() -> Iterator[None]:
    yield
    plt.close("all")


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("prompt", [4000, 5000])
@pytest.mark.parametrize(
    "draw",
    [
        lambda run: plots.queue_growth({"a": run, "b": run}),
        plots.latency_histogram,
        plots.latency_cdf,
        lambda run: plots.latency_cdf({"measured": np.array([1.0, 2.0]), "a": run}),
        plots.timeline,
        lambda run: plots.load_curve([level_of(run, 1), level_of(run, 2)])[0],
    ],
)
def test_figures_of_runs_with_long_prompts_carry_one_mark(draw: Any, prompt: int) -> None:
    assert texts(draw(served(prompt))).count(MARK) == (prompt > 4000)


def test_a_figure_of_arrays_can_be_marked_and_is_marked_once() -> None:
    ax = plots.curves([1, 2], {"a": [1, 2]}, x_label="x", y_label="y")
    plots.mark_unpriced(ax, served(4000))
    assert MARK not in texts(ax)
    plots.mark_unpriced(ax, served(4000), served(5000))
    plots.mark_unpriced(ax, served(5000))
    assert texts(ax).count(MARK) == 1


@pytest.mark.parametrize("prompt", [4000, 5000])
def test_the_step_timeline_says_it_in_its_table_and_tells_the_script(prompt: int) -> None:
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=prompt, output_tokens=2)
    shown = step_timeline(work, {"a": sl.simulate(work, sl.ContinuousBatching(2, 2048), TYPED)})
    assert (MARK in shown.fallback) == (prompt > 4000)
    assert [lane["unpriced"] for lane in shown.data["lanes"]] == [prompt > 4000]
