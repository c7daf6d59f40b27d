"""What is simulated without the attention within its prompts says so, wherever a prompt has over 4,000 tokens."""

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
from servinglab.hardware.prompt_attention import LONG_PROMPT, MARK, unpriced_attention
from servinglab.measure.readers.read_run import read_run
from servinglab.metrics.knee import level_of
from servinglab.plots.steps import step_timeline
from servinglab.result.compare import compare_runs
from servinglab.result.save import save_run
from servinglab.result.setup import RunSetup
from servinglab.sim_server.server import serve

matplotlib.use("Agg")

ROOF = sl.roofline("llama-3.1-8b", "h100-sxm")
TYPED = sl.AffineStep(0.01, 1e-4, 1e-5)
CARD = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm"]
NOTE = "attention within prompts isn't priced"
WHOLE = f"{NOTE}: the longest prompt, 131,000 tokens, would take 10.66 s alone, simulated as 3.081"


def served(prompt: int, step: Any = TYPED, budget: int | None = None, **rules: Any) -> sl.Result:
    """Two requests, the second with this prompt."""
    work = sl.Workload.from_arrivals([0.0, 100.0], prompt_tokens=[10, prompt], output_tokens=[2, 2])
    return sl.simulate(work, sl.ContinuousBatching(256, budget, **rules), step)


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    status = cli.main([str(word) for word in words])
    return status, *capsys.readouterr()


# The line


@pytest.mark.parametrize("budget", [None, 8192, 1000, 512])
@pytest.mark.parametrize("prompt", [LONG_PROMPT + 1, 9000, 131_000])
def test_the_price_is_the_rooflines_and_the_simulated_time_the_engines(prompt: int, budget: int | None) -> None:
    run = served(prompt, ROOF.sides(), budget)
    note = run.unpriced_attention
    assert note is not None and note.startswith(f"{NOTE}: the longest prompt, {prompt:,} tokens, ")
    numbers = note.replace(" s alone", "").split("would take ")[1].split(", simulated as ")
    priced, simulated = (float(each.replace(",", "")) for each in numbers)
    assert simulated == pytest.approx(run.ttft_s[1], rel=5e-4)
    # pairs don't depend on the pieces: the pieces cost what they cost, plus all the attention
    whole, flat = ROOF(1, prompt, prompt), ROOF.sides()(1, prompt, prompt)
    assert priced - simulated == pytest.approx(whole - flat, rel=0.1)
    if budget is None:
        assert priced == pytest.approx(whole, rel=5e-4)


def test_the_line_of_a_prompt_of_131_000_tokens() -> None:
    assert served(131_000, ROOF.sides()).unpriced_attention == WHOLE


@pytest.mark.parametrize("step", [TYPED, ROOF.sides(), ROOF.affine("sum"), lambda n, p, k: 0.01 + 1e-5 * p])
def test_up_to_4000_tokens_nothing_is_said(step: Any) -> None:
    for prompt, said in ((LONG_PROMPT, False), (LONG_PROMPT + 1, True)):
        note = unpriced_attention(prompt, sl.ContinuousBatching(8), step)
        assert (note is not None) == said
        assert note is None or f"{prompt:,} tokens" in note


def test_a_typed_a_fitted_and_an_own_step_time_have_no_price() -> None:
    assert unpriced_attention(5000, None, TYPED) == (
        f"{NOTE}: the step time has no term for it, and the longest prompt has 5,000 tokens"
    )
    assert unpriced_attention(5000, None, sl.RoofStep(TYPED, TYPED)) == unpriced_attention(5000, None, TYPED)
    assert unpriced_attention(5000, None, lambda n, p, k: 0.01) == (
        f"{NOTE}: the step time is told totals only, and the longest prompt has 5,000 tokens"
    )


def test_a_side_of_a_roofline_knows_it_even_with_another_overhead() -> None:
    step = replace(ROOF.affine("compute"), fixed_s=0.5)
    assert "would take 10.66 s alone" in str(unpriced_attention(131_000, sl.ContinuousBatching(8), step))
    assert step == replace(sl.AffineStep(0.5, step.per_request_s), **{
        name: getattr(step, name) for name in ("per_prefill_token_s", "per_kv_token_s")
    })  # fmt: skip


def test_a_roofline_that_sees_the_whole_prompt_prices_it_and_one_that_sees_pieces_does_not() -> None:
    assert unpriced_attention(131_000, sl.ContinuousBatching(8), ROOF) is None
    pieces = unpriced_attention(131_000, sl.ContinuousBatching(8, 512), ROOF)
    assert pieces is not None and pieces.startswith("attention within prompts is priced within a step only: ")


def test_a_prompt_in_a_million_pieces_is_priced_at_once() -> None:
    few, many = (sl.ContinuousBatching(1, budget) for budget in (10_000, 20))
    long = 10_000 * 1000  # as many pieces as are asked for one by one
    priced = str(unpriced_attention(long, few, ROOF.sides())).split("would take ")[1].split(" s alone")[0]
    assert float(priced.replace(",", "")) == pytest.approx(ROOF(1, long, long), rel=0.01)
    assert NOTE in str(unpriced_attention(long, many, ROOF.sides()))


def test_only_prompts_that_were_served_count() -> None:
    assert served(9000, max_model_len=5000).unpriced_attention is None


def test_a_measured_run_pays_for_all_its_work() -> None:
    run = served(9000)
    measured = replace(run, step_time=None, setup=RunSetup(source="one of flesh and blood"))
    assert run.unpriced_attention is not None and measured.unpriced_attention is None


# Where it is said


def test_the_summary_says_it_once_and_its_dictionary_too() -> None:
    summary = served(131_000, ROOF.sides()).summary()
    assert str(summary).count(NOTE) == 1 and WHOLE in str(summary)
    assert summary._repr_html_().count("attention within prompts") == 1
    assert summary.to_dict()["unpriced_attention"] == WHOLE
    short = served(4000).summary()
    assert "note" not in str(short) and short.to_dict()["unpriced_attention"] is None


@pytest.mark.parametrize("step", [ROOF.sides(), TYPED])
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
    words = ["simulate", "--poisson", 0.01, "--n", 3, "--seed", 1, *CARD, "--kv-blocks", "unlimited"]
    status, out, err = command(capsys, *words, "--prompt-tokens", 131_000, "--json", tmp_path / "run.json")
    assert (status, err) == (0, "") and out.count(NOTE) == 1 and WHOLE in out
    assert json.loads((tmp_path / "run.json").read_text())["summary"]["unpriced_attention"] == WHOLE
    status, out, _ = command(capsys, *words, "--prompt-tokens", 4000)
    assert status == 0 and NOTE not in out


def test_best_batch_says_it_in_the_answer_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["best-batch", "--poisson", 0.01, "--slo", "ttft_s=9", "--scheduler", "continuous", *CARD]
    words += ["--max-batch-size", 2, "--requests", 2000, "--max-requests", 2000]
    status, out, err = command(capsys, *words, "--prompt-tokens", 120_000)
    assert (status, err) == (0, "")
    assert out.count(NOTE) == 1 and "the longest prompt, 120,000 tokens, would take " in out
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
        serve(sl.ContinuousBatching(8), ROOF.sides(), speed=1e6) as url,
        closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as client,
    ):
        for tokens in (4000, 5000, 6000):
            assert [NOTE in each.message for each in caplog.records] == [True] * (tokens > 5000)
            client.request("POST", "/v1/completions", json.dumps({"prompt": [1] * tokens, "max_tokens": 1}))
            assert client.getresponse().read()
    assert len(caplog.records) == 1 and "5,000 tokens" in caplog.records[0].message


def test_serve_sim_says_it_when_it_comes_and_at_its_end() -> None:
    words = [sys.executable, "-m", "servinglab", "serve-sim", "--port", "0", "--speed", "1000", *CARD]
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
    assert err.count("\n") == 1 and f"servinglab: {NOTE}: the longest prompt, 5,000 tokens, would take" in err
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
