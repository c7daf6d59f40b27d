"""`servinglab best-batch`: it asks the library what its options say, and refuses in one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import servinglab as sl
from servinglab.cli import best_batch as command
from servinglab.cli import main as cli
from servinglab.decide.search import best_batch
from servinglab.scheduling.blocks import Blocks
from servinglab.workload.lengths import Geometric

POT = ["--fixed-s", "0.4", "--per-request-s", "0.02", "--max-batch-size", "20"]


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[Any, str, str]:
    try:
        status: Any = cli.main(["best-batch", *map(str, words)])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def test_prints_the_librarys_answer(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--poisson", 20, "--slo", "e2e_s=2", *POT)
    expected = best_batch(20, sl.AffineStep(0.4, 0.02), {"e2e_s": 2.0}, max_batch_size=20)
    assert (status, err) == (0, "")
    assert str(expected) in out
    assert "defaults used: --scheduler static, --pots 1, --q 0.99, --seed 1" in out
    status, out, _ = run(capsys, "--poisson", 20, "--slo", "e2e_s=2", *POT, "--json", "-")
    report = json.loads(out)
    assert status == 0 and report["choice"]["settings"] == {"batch_size": 18}
    assert report["step_time"]["fixed_s"] == 0.4 and len(report["candidates"]) == len(expected.candidates)


def test_hands_over_what_the_options_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def spy(*words: Any, **named: Any) -> Any:
        asked.append((*words, named))
        return best_batch(20, sl.AffineStep(0.4, 0.02), {"e2e_s": 2.0}, max_batch_size=1, remedies=False)

    monkeypatch.setattr(command, "best_batch", spy)
    words = (
        "--poisson 4 --prompt-tokens 100 --output-tokens geometric:20 --slo ttft_s=1,tpot_s=0.1 --scheduler continuous "
        "--max-num-batched-tokens 512 --kv-blocks 900 --q 0.95 --prefer least_work --requests 3000 --seed 7 "
        "--no-remedies"
    )
    assert run(capsys, *shlex.split(words))[0] == 0
    traffic, _, slo, kind, named = asked[0]
    drawn = traffic(50, 3)
    same = sl.poisson(4, 50, 3, prompt_tokens=100, output_tokens=Geometric(20))
    assert (drawn.output_tokens == same.output_tokens).all() and (drawn.arrival_s == same.arrival_s).all()
    assert (slo, kind) == ({"ttft_s": 1.0, "tpot_s": 0.1}, "continuous")
    progress = named.pop("progress")
    progress(3, {"max_num_seqs": 4})
    assert named == {
        "pots": 1, "kv": Blocks(900), "max_num_batched_tokens": 512, "prefer": "least_work", "requests": 3000,
        "max_requests": None, "remedies": False, "max_batch_size": 64, "q": 0.95, "seed": 7,
    }  # fmt: skip

    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.0000000,20,1\n"
    )
    assert run(capsys, trace, "--slo", "ttft_s=1", "--head", 2, "--speed", 2, "--scheduler", "continuous")[0] == 0
    traffic = asked[1][0]
    assert len(traffic) == 2 and traffic.output_tokens.tolist() == [44, 109]
    assert traffic.rate_rps == pytest.approx(2 / 4.314579)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--slo e2e_s=1", "give one workload, a trace or --poisson; got none"),
        ("trace.csv --poisson 3 --slo e2e_s=1", "give one workload, a trace or --poisson; got both"),
        ("--poisson 20", "the following arguments are required: --slo"),
        ("--poisson 20 --slo p99=1", "'p99=1': NAME must be one of 'ttft_s', 'tpot_s', 'e2e_s'; got 'p99'"),
        ("--poisson 20 --slo e2e_s=1 --speed 2", "--speed belongs to a trace"),
        ("trace.csv --slo e2e_s=1 --seed 2", "--seed belongs to --poisson; a trace brings its own requests"),
        (
            "--poisson 20 --slo e2e_s=1 --max-num-batched-tokens 9",
            "--max-num-batched-tokens doesn't go with --scheduler",
        ),
        ("--poisson 20 --slo e2e_s=1 --kv-blocks 9", "--kv-blocks doesn't go with --scheduler static"),
        ("--poisson 20 --slo e2e_s=1 --q 99", "q must be a finite number > 0 and < 1; got 99.0"),
        ("--poisson 20 --slo e2e_s=1 --max-batch-size 0", "max_batch_size must be a whole number >= 1; got 0"),
    ],
)
def test_refuses_in_one_line(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    status, out, err = run(capsys, *shlex.split(words))
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_an_interrupted_search_says_what_it_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*words: Any, **named: Any) -> Any:
        report = named.pop("progress")

        def stop(done: int, settings: Any) -> None:
            report(done, settings)
            if done == 12:
                raise KeyboardInterrupt

        return best_batch(*words, **named, progress=stop)

    monkeypatch.setattr(command, "best_batch", stopped)
    status, out, err = run(capsys, "--poisson", 20, "--slo", "e2e_s=1.8", *POT)
    assert (status, out) == (130, "")
    assert err.startswith("servinglab: interrupted after 12 candidates; the smallest so far: batch_size=")


def test_its_examples_can_be_parsed() -> None:
    text = command._EXAMPLES.replace("\\\n", " ")
    examples = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    assert len(examples) == 4
    for example in examples:
        args = cli._parser().parse_args(shlex.split(example)[1:])
        assert args.slo
