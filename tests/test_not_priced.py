"""Attention within prompts isn't priced: wherever a run has long ones, its numbers say so."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import pytest
import servinglab as sl
from servinglab import decide, plots
from servinglab.cli.main import main

CARD = sl.roofline("llama-3.1-8b", "h100-sxm")
SETTINGS = "--model llama-3.1-8b --accelerator h100-sxm"


def run_of(prompt_tokens: int, step_time=None) -> sl.Result:
    work = sl.Workload.from_arrivals([0.0, 0.1], prompt_tokens=[prompt_tokens, 10], output_tokens=[2, 30])
    return sl.simulate(work, sl.ContinuousBatching(8, 2048), step_time or CARD.sides())


def test_a_summary_says_it_of_prompts_above_four_thousand_tokens():
    assert "up to 4,001 tokens" in run_of(4001).summary().not_priced
    assert "not_priced" in str(run_of(4001).summary())
    assert run_of(4000).summary().not_priced == ""
    assert "not_priced" not in str(run_of(4000).summary())


def test_a_saved_run_still_says_it_and_a_comparison_counts_it_as_no_figure(tmp_path):
    run = run_of(9000)
    sl.save_run(run, tmp_path / "run.npz")
    again = sl.read_run(tmp_path / "run.npz")
    assert again.summary().not_priced == run.summary().not_priced != ""
    assert "not_priced" not in sl.compare_runs(run, again).figures


def test_simulate_says_what_the_longest_prompt_would_cost(capsys):
    words = f"simulate --poisson 0.1 --n 3 --seed 1 --prompt-tokens 100000 {SETTINGS} --output-tokens 2"
    whole = CARD(1, 100_000, 100_000)
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert f"the longest, 100,000 tokens, takes {whole:.2f} s alone and whole, priced at" in out
    assert main([*words.split(), "--quiet", "--json", "-"]) == 0
    assert f"{whole:.2f} s" in json.loads(capsys.readouterr().out)["summary"]["not_priced"]


@pytest.mark.parametrize(("tokens", "says"), [(5000, True), (3000, False)])
def test_best_batch_says_it(capsys, tokens, says):
    words = f"best-batch --poisson 1 --slo e2e_s=60 --scheduler continuous --max-batch-size 4 --prompt-tokens {tokens}"
    assert main([*words.split(), *SETTINGS.split(), "--requests", "2000", "--max-requests", "2000"]) == 0
    assert ("not priced attention within prompts" in capsys.readouterr().out) is says


def test_the_answer_in_python_says_it_too():
    answer = decide.best_batch(
        lambda n, seed: sl.poisson(1, n, seed, prompt_tokens=6000), CARD.sides(), {"e2e_s": 60}, "continuous",
        max_batch_size=2, max_num_batched_tokens=4096, requests=2000, max_requests=2000,
    )  # fmt: skip
    assert "6,000 tokens" in answer.to_dict()["not_priced"]


@pytest.mark.parametrize("draw", [plots.latency_histogram, plots.latency_cdf, plots.timeline])
def test_a_figure_is_marked(draw):
    def texts(run):
        found = [text.get_text() for text in draw(run).texts]
        plt.close("all")
        return found

    assert "without prompt attention" in texts(run_of(9000))
    assert "without prompt attention" not in texts(run_of(500))
    assert "without prompt attention" in [text.get_text() for text in plots.queue_growth({"a": run_of(9000)}).texts]
    plt.close("all")
