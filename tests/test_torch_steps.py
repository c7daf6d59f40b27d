"""Timed steps of a device: the arithmetic on made-up files, and PyTorch's layers where PyTorch is installed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servinglab as sl
from servinglab.cli.bench_torch import passes
from servinglab.cli.main import main
from servinglab.hardware.catalog import Model, model
from servinglab.measure.engines.torch_stack import Scaled, scale
from servinglab.measure.engines.torch_steps import (
    FORMAT,
    FORMAT_VERSION,
    Plan,
    TorchSteps,
    _rewrite,
    least_work,
    outcome,
    plan_for,
    read_steps,
    time_steps,
)

TINY = Model(
    id="tiny", name="Tiny", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=128, max_context=512,
    tied_embeddings=True,
)  # fmt: skip
MOE = replace(TINY, id="tiny-moe", experts=6, experts_per_token=2, expert_ffn=32, shared_experts=1)
WINDOW = replace(TINY, id="tiny-window", sliding_layers=2, sliding_window=8, gated_mlp=False)
PLAN = Plan((1, 2, 4), (8, 32), (4, 16), kv_tokens=128, samples=3)
TRUTH = sl.AffineStep(0.010, 1e-4, 2e-4, 1e-6)


def made_up(**changes: Any) -> TorchSteps:
    """A file as if a device took exactly what TRUTH says for all layers, and 1 ms + 10 µs a request for the head."""
    built = Scaled(TINY, layers=2, experts=0, dtype="float32")
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "servinglab": sl.__version__,
        "environment": {"kind": "cpu", "device": "a made-up device", "torch": "0", "threads": 1},
        "scaled": {"model": asdict(TINY), "layers": 2, "experts": 0, "dtype": "float32"},
        "plan": asdict(PLAN),
    }
    rows: list[dict[str, Any]] = [ceiling("before")]
    for point in PLAN.points():
        n = point.get("requests", 1)
        head = 0.001 + 1e-5 * n
        if point["kind"] == "head":
            seconds = head
        else:
            held = n * point["context"] if point["kind"] == "decode" else point["tokens"]
            whole = TRUTH(n, point.get("tokens", 0), held)
            seconds = head + (whole - head) * built.layers / TINY.layers
        rows.append({**point, **timed(seconds), **changes})
    return TorchSteps(json.loads(json.dumps(header)), [*rows, ceiling("after")])


def timed(seconds: float) -> dict[str, Any]:
    return dict(
        seconds=seconds, low_s=0.99 * seconds, high_s=1.01 * seconds, samples=3, runs=1, late=0, graph=False
    )  # fmt: skip


def ceiling(when: str, flops: float = 1e9) -> dict[str, Any]:
    return {"kind": "ceiling", "when": when, "bytes_per_s": 1e9, "flops_per_s": flops, "state": {}}


def test_the_fit_of_cut_layers_is_that_of_the_whole_model():
    steps = made_up()
    fit = steps.fit()
    for name in fit.interval:
        assert getattr(fit.step, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6), name
    assert len(steps.steps()["seconds"]) == len(PLAN.points()) - 3  # but for the heads
    assert passes(steps) == 0
    assert not steps.warnings()
    assert "2 of 3 layers of tiny" in str(steps)
    assert "FAILS" not in str(steps)


def failing(steps: TorchSteps) -> list[str]:
    return [check["name"] for check in steps.checks() if not check["holds"]]


def test_a_step_that_beats_the_ceilings_is_found():
    steps = made_up()
    slow = [row if row["kind"] != "ceiling" else {**row, "flops_per_s": 1e7, "bytes_per_s": 1e7} for row in steps.rows]
    assert failing(TorchSteps(steps.header, slow)) == ["no faster than the ceilings"]
    # just fast enough: the floor of the busiest point is 100 % of its time
    shares = {
        json.dumps(row): least_work(steps.scaled, row)[0] / row["seconds"]
        for row in steps.rows
        if row["kind"] in ("decode", "prefill")
    }
    just = [row if row["kind"] != "ceiling" else {**row, "bytes_per_s": max(shares.values())} for row in steps.rows]
    assert failing(TorchSteps(steps.header, just)) == []


def test_a_larger_step_that_takes_less_time_is_found_and_named():
    steps = made_up()
    rows = [
        {**row, **timed(row["seconds"] / 2)} if (row.get("requests"), row.get("context")) == (4, 32) else row
        for row in steps.rows
    ]
    broken = TorchSteps(steps.header, rows)
    assert failing(broken) == ["larger steps take longer"]
    assert "decode of 4 with 32 tokens each took" in str(broken)
    assert passes(broken) == 1
    # within what the samples differ by it's noise
    noisy = [
        {**row, "low_s": 0.4 * row["seconds"], "high_s": 1.6 * row["seconds"]} if "low_s" in row else row
        for row in rows
    ]
    assert failing(TorchSteps(steps.header, noisy)) == []
    assert "noisy" in TorchSteps(steps.header, noisy).warnings()[0]


def test_missing_points_and_changing_clocks_are_said():
    steps = made_up()
    fewer = TorchSteps(steps.header, steps.rows[:4])
    assert failing(fewer) == ["complete"]
    assert len(fewer.missing) == len(PLAN.points()) - 3
    drifted = TorchSteps(steps.header, [*steps.rows[:-1], ceiling("after", flops=0.5e9)])
    assert "-50%" in drifted.warnings()[0]
    empty = TorchSteps(steps.header, [])
    assert "no fit" in str(empty)
    assert outcome(empty)["fit"] is None


def test_late_samples_make_a_warning():
    assert "33% of all took over" in made_up(late=1).warnings()[0]


def test_a_file_comes_back_and_half_a_line_is_passed_over(tmp_path, capsys):
    steps = made_up()
    file = tmp_path / "steps.jsonl"
    _rewrite(file, [steps.header, *steps.rows, outcome(steps)])
    again = read_steps(file)
    assert (again.header, again.rows) == (steps.header, steps.rows)
    with file.open("a") as out:
        out.write('{"kind": "dec')
    assert read_steps(file).rows == steps.rows
    assert main(["bench", "show", str(file)]) == 0
    assert "ok     larger steps take longer" in capsys.readouterr().out
    assert main(["bench", "show", str(file), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["fit"]["step_time"]["fixed_s"] == pytest.approx(0.010)


def test_a_plan_takes_the_step_time_from_the_file(tmp_path, capsys):
    steps = made_up()
    file = tmp_path / "steps.jsonl"
    _rewrite(file, [steps.header, *steps.rows, outcome(steps)])
    found = sl.read_step_time(file)
    coefficients = [name for name in asdict(TRUTH) if name != "roofline"]
    assert [getattr(found, name) for name in coefficients] == pytest.approx(
        [getattr(TRUTH, name) for name in coefficients], rel=1e-6
    )
    words = ["simulate", "--poisson", "20", "--n", "50", "--seed", "1", "--prompt-tokens", "9", "--output-tokens", "5"]
    assert main([*words, "--step-time", str(file)]) == 0
    assert str(found) in capsys.readouterr().out
    rows = [dict(row, seconds=1e-9) if row["kind"] == "decode" else row for row in steps.rows]
    for broken, why in (
        ([steps.header], "fails its own checks"),
        ([{"format": FORMAT, "format_version": 1}], "isn't whole"),
    ):
        _rewrite(file, broken)
        with pytest.raises(ValueError, match=rf"steps\.jsonl {why}"):
            sl.read_step_time(file)
    _rewrite(file, [steps.header, *rows])
    with pytest.raises(ValueError, match=r"fails its own checks \(.*ceilings.*\): servinglab bench show"):
        sl.read_step_time(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no timed steps"),
        ('{"format": "another", "format_version": 1}\n', "1: not a line of timed steps of format 1"),
        (json.dumps({"format": FORMAT, "format_version": 2}) + "\n", "version 2"),
        (json.dumps({"format": FORMAT, "format_version": 1}) + '\n{"kind": "x"}\n', "2: not a line"),
    ],
)
def test_what_isnt_such_a_file_is_refused(tmp_path, text, said):
    file = tmp_path / "steps.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_steps(file)


def test_the_least_work_of_a_dense_decode_step_is_the_rooflines():
    llama = model("llama-3.1-8b")
    built = Scaled(llama, llama.layers, 0, "bfloat16")
    roof = sl.roofline(llama, "h100-sxm")
    parts = roof.parts(16, 0, 16 * 1000)
    bytes_, flops = least_work(built, {"kind": "decode", "requests": 16, "context": 1000})
    assert bytes_ == pytest.approx(parts.weight_bytes + parts.kv_bytes, rel=1e-3)  # but for the norms
    assert flops == pytest.approx(parts.gemm_flops + parts.attention_flops, rel=1e-9)
    assert built.weight_bytes == pytest.approx(roof.parts(1).weight_bytes, rel=1e-3)
    assert built.kv_bytes_per_token == llama.kv_bytes_per_token()
    prompt = roof.parts(1, 512, 512)
    # the roofline counts the prompt's request as one token more
    _, flops = least_work(built, {"kind": "prefill", "tokens": 513})
    assert flops == pytest.approx(prompt.gemm_flops + prompt.attention_flops, rel=2e-3)


def test_a_mixture_is_cut_in_experts_before_it_is_refused():
    moe = model("qwen3-30b-a3b")
    assert scale(moe, "bfloat16", 200e9).layers == moe.layers
    assert scale(moe, "bfloat16", 200e9).experts == moe.experts
    small = scale(moe, "bfloat16", 3e9)
    assert small.experts < moe.experts
    assert small.weight_bytes <= 0.6 * 3e9
    assert "experts a layer" in " ".join(small.told())
    with pytest.raises(ValueError, match="one layer and the head of qwen3-30b-a3b in bfloat16"):
        scale(moe, "bfloat16", 1e9)
    with pytest.raises(ValueError, match="latent attention"):
        scale(model("deepseek-v3"), "bfloat16", 1e12)
    assert scale(model("llama-3.1-8b"), "bfloat16", 200e9, layers=4).layers == 4


def test_a_mixtures_weights_are_the_catalogues():
    moe = model("qwen3-30b-a3b")
    p, built = moe.parameters, Scaled(moe, moe.layers, moe.experts, "bfloat16")
    assert built.weight_bytes == pytest.approx(2 * (p.head + p.linear + p.other + p.experts * p.expert), rel=1e-4)


def test_bad_plans_are_named():
    for wrong, said in (
        ({"requests": (4,)}, "must each hold at least two values"),
        ({"prompts": (0, 4)}, r"prompts\[0\] must be a whole number >= 1"),
        ({"samples": 2}, "samples must be a whole number >= 3"),
        ({"limit_s": 0}, "limit_s must be a finite number > 0"),
        ({"kv_tokens": 10}, "kv_tokens must be"),
    ):
        with pytest.raises(ValueError, match=said):
            plan_for("cpu", **wrong)


def test_without_pytorch_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "torch"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'servinglab[torch]'" in said


# PyTorch


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch isn't installed: no layers are run")


def naive(torch: Any, stack: Any, hidden: Any, cache: Any | None) -> Any:
    """The same layers, one token, head and expert at a time, in float64."""
    m, f = stack.scaled.model, torch.nn.functional
    group = m.heads // m.kv_heads
    x = hidden.double()
    for number, layer in enumerate(stack._layers):
        layer = {name: each.double() for name, each in layer.items()}
        normed = x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(hidden.dtype).eps).sqrt()
        parts = normed @ layer["qkv"].T
        q, k, v = parts.split([m.heads * m.head_dim, m.kv_heads * m.head_dim, m.kv_heads * m.head_dim], -1)
        seen = torch.zeros_like(q)
        for s in range(x.shape[0]):
            for t in range(x.shape[1]):
                for head in range(m.heads):
                    of_q = slice(head * m.head_dim, (head + 1) * m.head_dim)
                    kv = head // group
                    of_kv = slice(kv * m.head_dim, (kv + 1) * m.head_dim)
                    if cache is None:
                        keys, values = k[s, : t + 1, of_kv], v[s, : t + 1, of_kv]
                    else:
                        keys = torch.cat([cache[number, 0, s, kv, :-1].double(), k[s, :1, of_kv]])
                        values = torch.cat([cache[number, 1, s, kv, :-1].double(), v[s, :1, of_kv]])
                        if number < round(stack.scaled.layers * m.sliding_layers / m.layers):
                            keys, values = keys[-m.sliding_window :], values[-m.sliding_window :]
                    weights = (keys @ q[s, t, of_q] / m.head_dim**0.5).softmax(0)
                    seen[s, t, of_q] = weights @ values
        x = x + seen @ layer["out"].T
        normed = x / (x.pow(2).mean(-1, keepdim=True) + torch.finfo(hidden.dtype).eps).sqrt()

        def mlp(y: Any, up: Any, down: Any) -> Any:
            wide = up @ y
            gate, value = wide[: len(wide) // 2], wide[len(wide) // 2 :]
            wide = f.silu(gate) * value if m.gated_mlp else f.gelu(wide)
            return down @ wide

        for s in range(x.shape[0]):
            for t in range(x.shape[1]):
                y = normed[s, t]
                if not stack.scaled.experts:
                    x[s, t] += mlp(y, layer["up"], layer["down"])
                    continue
                scores = layer["router"] @ y
                best = scores.argsort(descending=True)[: m.experts_per_token]
                for expert, weight in zip(best.tolist(), scores[best].softmax(0), strict=True):
                    x[s, t] += weight * mlp(y, layer["ups"][expert], layer["downs"][expert])
                if m.shared_experts:
                    x[s, t] += mlp(y, layer["up"], layer["down"])
    return x[:, -1] @ stack._head.double().T


@pytest.mark.parametrize("row", [TINY, MOE, WINDOW], ids=lambda row: row.id)
@pytest.mark.parametrize("decode", [True, False], ids=["decode", "prefill"])
def test_the_layers_compute_what_a_transformer_computes(torch, row, decode):
    from servinglab.measure.engines.torch_stack import Stack

    stack = Stack(Scaled(row, 3, row.experts, "float32"), "cpu", seed=1)
    hidden = stack.tokens(3, 1 if decode else 7)
    cache = stack.cache(3, 20) if decode else None
    with torch.inference_mode():
        ours, theirs = stack.forward(hidden, cache), naive(torch, stack, hidden, cache)
    assert ours.shape == (3, row.vocab)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.alone
def test_steps_are_timed_into_a_file_that_an_interruption_leaves_whole(torch, tmp_path):
    file = tmp_path / "steps.jsonl"

    def press(text: str) -> None:
        if ", 6 of " in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        time_steps(file, TINY, device="cpu", plan=PLAN, say=press)
    half = read_steps(file)
    assert len(half.missing) == len(PLAN.points()) - 5
    with pytest.raises(ValueError, match="is there already"):
        time_steps(file, TINY, device="cpu", plan=PLAN)
    with pytest.raises(ValueError, match="was begun with samples 3; got 4"):
        time_steps(file, TINY, device="cpu", plan=replace(PLAN, samples=4), resume=True)
    with pytest.raises(ValueError, match="was begun with model tiny; got tiny-moe"):
        time_steps(file, MOE, device="cpu", plan=PLAN, resume=True)
    whole = time_steps(file, TINY, device="cpu", plan=PLAN, resume=True)
    assert not whole.missing
    assert [row for row in whole.rows if row["kind"] != "ceiling"][:5] == half.rows[1:]
    assert read_steps(file).rows == whole.rows
    last = json.loads(file.read_text().splitlines()[-1])
    assert last["kind"] == "outcome"
    assert {row["kind"] for row in whole.rows} == {"ceiling", "head", "decode", "prefill"}
    for row in whole.rows:
        if row["kind"] != "ceiling":
            assert 0 < row["low_s"] <= row["seconds"] <= row["high_s"]
    assert whole.scaled.layers == 2
    columns = whole.steps()
    assert (columns["seconds"] > 0).all()
    assert sorted(set(columns["prefill_tokens"].tolist())) == [0, 4, 16]


@pytest.mark.alone
def test_a_mixture_of_experts_is_timed(torch, tmp_path):
    steps = time_steps(tmp_path / "moe.jsonl", MOE, device="cpu", plan=PLAN)
    assert not steps.missing
    assert np.isfinite(steps.steps()["seconds"]).all()


@pytest.mark.alone
def test_time_that_is_over_leaves_points_for_later(torch, tmp_path):
    steps = time_steps(tmp_path / "steps.jsonl", TINY, device="cpu", plan=replace(PLAN, limit_s=1e-9))
    assert len(steps.missing) == len(PLAN.points())
    assert passes(steps) == 1


@pytest.mark.alone
def test_the_command_times_resumes_and_shows(torch, tmp_path, capsys):
    folder, file = tmp_path / "tiny", tmp_path / "steps.jsonl"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(config))
    points = ["--requests", "1,2", "--contexts", "8,16", "--prompts", "4,8", "--kv-tokens", "64", "--samples", "3"]
    words = ["bench", "torch", "--model", str(folder), "--device", "cpu", *points, "--out", str(file)]
    assert main([*words, "--limit-s", "1e-9", "--quiet"]) == 1  # incomplete
    capsys.readouterr()
    # whether larger steps take longer is the machine's to say
    assert main(["bench", "torch", "--resume", str(file), "--limit-s", "60"]) in (0, 1)
    said = capsys.readouterr().out
    assert "2 of 3 layers of tiny in float32" in said
    assert "0 of 8 points missing" in said
    assert main(["bench", "torch", "--resume", str(file), "--samples", "5"]) == 2
    assert "it doesn't go with --samples" in capsys.readouterr().err
    assert main(["bench", "show", str(file)]) == 0
    assert Path(file).read_text().count("\n") == 1 + 2 + 8 + 2 + 1  # the first try timed its ceilings, too
