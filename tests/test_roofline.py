"""The roofline: never below what physics allows, right where it can be computed by hand, near public measurements."""

from __future__ import annotations

import csv
import json
import math
import pickle
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.hardware import catalog
from servinglab.hardware.catalog import Model
from servinglab.hardware.roofline import Roofline, roofline
from servinglab.step_time.affine import AffineStep

IDEAL: dict[str, Any] = dict(bandwidth_efficiency=1, compute_efficiency=1, overhead_s=0)


def test_by_hand() -> None:
    """Llama-3.1-8B on an H100: all but the input embedding is read, 131,072 bytes a token of context."""
    step = roofline("llama-3.1-8b", "h100-sxm", **IDEAL)
    read = 2 * (8_030_261_248 - 128_256 * 4096)
    assert step(1) == pytest.approx(read / 3.35e12, rel=1e-12)
    assert step(32, 0, 32 * 4096) == pytest.approx((read + 32 * 4096 * 131_072) / 3.35e12, rel=1e-12)
    parts = step.parts(1, 2047, 2048, prefill_pairs=0)
    matrices = 32 * (4096 * 48 * 128 + 4096 * 4096 + 3 * 4096 * 14_336)
    assert parts.bound == "compute"
    assert parts.gemm_flops == 2 * matrices * 2048 + 2 * 128_256 * 4096
    assert parts.attention_flops == 4 * 4096 * 32 * 2048
    assert step(1, 2047, 2048, prefill_pairs=0) == pytest.approx(
        (parts.gemm_flops + parts.attention_flops) / 989.4e12, rel=1e-12
    )


def test_the_default_pairs_are_those_of_one_prompt() -> None:
    step = roofline("llama-3.1-8b", "h100-sxm")
    assert step(1, 1000, 1000) == step(1, 1000, 1000, prefill_pairs=sum(range(1, 1001)))


def test_thirty_two_requests_gain_sixteen_not_thirty_two() -> None:
    """At 4,096 tokens of context each. Reading also the input embedding, which is only looked up, would say 15.98."""
    step = roofline("llama-3.1-8b", "h100-sxm", **IDEAL)
    gain = 32 * step(1, 0, 4096) / step(32, 0, 32 * 4096)
    assert gain == pytest.approx(15.45, abs=0.01)
    no_context = 32 * step(1) / step(32)
    assert no_context == pytest.approx(32)


def test_half_saturation_and_ridge() -> None:
    step = roofline("llama-3.1-8b", "h100-sxm", **IDEAL)
    side = step.affine("memory")
    r = side.per_request_s + 4096 * side.per_kv_token_s
    half = side.fixed_s / r
    assert half == pytest.approx(15.01e9 / (4096 * 131_072), rel=1e-3)  # 28 requests
    limit = 1 / r
    assert 28 / step(28, 0, 28 * 4096) == pytest.approx(limit / 2, rel=0.01)
    assert step.ridge_requests() == 296  # the H100's 295.3 FLOP a byte
    assert step.parts(295).bound == "memory" and step.parts(296).bound == "compute"
    assert step.ridge_requests(4096) == math.inf  # at this context, reading KV takes longer than computing with it
    assert roofline("llama-3.1-8b", "h100-sxm", compute_efficiency=0.5, bandwidth_efficiency=1).ridge_requests() == 148


def test_a_real_step_beats_no_floor() -> None:
    """RTX PRO 6000, 7 running: 8.6 ms a token (LLMServingSim's log). Counting the input embedding as read says 8.96."""
    floor = roofline("llama-3.1-8b", "rtx-pro-6000", **IDEAL)(7)
    assert floor == pytest.approx(0.00838, abs=1e-5)
    assert floor < 0.0086


def test_experts() -> None:
    step = roofline("mixtral-8x7b", "h100-sxm", tensor_parallel=2, interconnect_gb_s=450, **IDEAL)
    assert step.experts_read(1) == pytest.approx(2)
    assert step.experts_read(2) == pytest.approx(8 * (1 - 0.75**2))
    assert step.experts_read(math.inf) == 8
    row = catalog.model("mixtral-8x7b")
    expert = 3 * 4096 * 14_336 * 2 / 2  # bytes on each of two devices
    assert step.parts(3).weight_bytes - step.parts(1).weight_bytes == pytest.approx(
        32 * expert * (step.experts_read(3) - 2)
    )
    everything = step.parts(10_000).weight_bytes
    assert everything == pytest.approx((2 * row.params - 2 * 32_000 * 4096) / 2, rel=1e-6)


def test_mla_reads_little_and_every_device_reads_it() -> None:
    one = roofline("deepseek-v3", "h200-sxm", tensor_parallel=8, interconnect_gb_s=math.inf, **IDEAL)
    more = roofline("deepseek-v3", "h200-sxm", tensor_parallel=16, interconnect_gb_s=math.inf, **IDEAL)
    assert one.parts(1, 0, 1000).kv_bytes == more.parts(1, 0, 1000).kv_bytes == 70_272_000
    assert one.parts(1, 0, 1000).attention_flops == 61 * 2 * 128 * (512 + 64 + 512) * 1000 / 8


def test_windows() -> None:
    step = roofline("gemma-3-27b", "h100-sxm", **IDEAL)
    short, long = step.parts(4, 0, 4 * 1024), step.parts(4, 0, 4 * 8192)
    assert short.kv_bytes == 4 * 1024 * 507_904
    assert long.kv_bytes == 4 * (10 * 8192 + 52 * 1024) * 507_904 / 62


def test_precisions() -> None:
    half, eight = (roofline("llama-3.1-8b", "h100-sxm", weight_dtype=each, **IDEAL) for each in ("bf16", "fp8"))
    assert (half.compute_dtype, eight.compute_dtype) == ("bf16", "fp8")
    assert eight(1) < 0.55 * half(1)
    long = dict(requests=1, prefill_tokens=8192, kv_tokens=8192, prefill_pairs=0)
    assert eight(**long) == pytest.approx(half(**long) / 2, rel=0.02)
    wide = roofline("llama-3.1-8b", "a100-80gb-sxm", weight_dtype="fp8", compute_dtype="bf16", **IDEAL)
    assert wide(1) < 0.55 * roofline("llama-3.1-8b", "a100-80gb-sxm", **IDEAL)(1)
    assert roofline("llama-3.1-8b", "a10", weight_dtype="int4").compute_dtype == "bf16"
    assert roofline("gpt-oss-20b", "h100-sxm").compute_dtype == "bf16"
    small_cache = roofline("llama-3.1-8b", "a10", kv_dtype="fp8", **IDEAL)  # kept in 8 bits, computed in 16
    assert small_cache.parts(1, 0, 100).kv_bytes == 100 * 65_536


def test_communication_is_an_input() -> None:
    shared = dict(tensor_parallel=4, weight_dtype="bf16", **IDEAL)
    none = roofline("llama-3.1-70b", "h100-sxm", interconnect_gb_s=math.inf, **shared)
    some = roofline("llama-3.1-70b", "h100-sxm", interconnect_gb_s=450, allreduce_latency_s=2e-5, **shared)
    ring = 2 * 80 * 2 * (3 / 4) * 10 * 8192 * 2
    assert some(10) - none(10) == pytest.approx(ring / 450e9 + 160 * 2e-5)
    assert roofline("llama-3.1-70b", "h100-sxm", allreduce_latency_s=1, **IDEAL).parts(1).communication_s == 0


# --- the floor -------------------------------------------------------------------------------------------------------

ENGINES = st.sampled_from(
    [
        ("llama-3.1-8b", "h100-sxm", 1, None),
        ("llama-3.1-70b", "h100-sxm", 2, "fp8"),
        ("qwen3-30b-a3b", "rtx-pro-6000", 1, None),
        ("gemma-3-27b", "mi300x", 1, None),
        ("gpt-oss-20b", "rtx-4090", 1, None),
        ("deepseek-v3", "b200-sxm", 8, None),
        ("qwen2.5-7b", "apple-m4-max", 1, "int4"),
    ]
)
MEMBERS = st.lists(
    st.tuples(st.integers(0, 20_000), st.one_of(st.just(0), st.integers(1, 4000))), min_size=1, max_size=40
)  # tokens held before, prompt tokens computed now (0: a decoding request)


def _floor_s(model: Model, engine: Roofline, members: list[tuple[int, int]]) -> float:
    """Seconds below which no engine can do this step: bytes it must read, FLOPs it must do, at the printed rates."""
    p, ways = model.parameters, engine.tensor_parallel
    small, linear, expert = model.weight_bits(engine.weight_dtype)
    weights = small * ((p.head or p.input_embedding) + p.other) + linear * p.linear
    weights += p.active_experts * (expert * p.expert + small * p.expert_other)  # at least one token's experts
    read = weights / 8 / ways
    gemm = pairs_flops = 0.0
    full, sliding, window = model.layers - model.sliding_layers, model.sliding_layers, model.sliding_window
    numbers = model.kv_numbers_per_layer(ways) * 2
    for before, prompt in members:
        new = prompt or 1
        end = before + new
        read += numbers * (full * end + sliding * min(end, window + new - 1))
        gemm += 2 * (p.linear + p.active_experts * p.expert) * new
        seen = [min(position, window) for position in range(before + 1, end + 1)] if sliding else []
        pairs = full * (new * end - new * (new - 1) / 2) + sliding * sum(seen)
        size = 2 * model.head_dim if not model.v_head_dim else model.head_dim + model.v_head_dim
        pairs_flops += 2 * model.heads * size * pairs
    wide = engine.accelerator.flops(engine.compute_dtype)
    seconds = gemm / ways / wide + pairs_flops / ways / engine.accelerator.flops("bf16")
    return max(read / engine.accelerator.bandwidth_bytes_per_s, seconds)


@given(ENGINES, MEMBERS, st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0, 0.01))
def test_never_below_the_floor(
    which: tuple[str, str, int, str | None],
    members: list[tuple[int, int]],
    bandwidth: float,
    compute: float,
    overhead: float,
) -> None:
    model, device, ways, dtype = which
    engine = roofline(
        model, device, tensor_parallel=ways, weight_dtype=dtype, interconnect_gb_s=math.inf,
        bandwidth_efficiency=bandwidth, compute_efficiency=compute, overhead_s=overhead,
    )  # fmt: skip
    prefill = sum(prompt for _, prompt in members)
    held = sum(before + (prompt or 1) for before, prompt in members)
    pairs = sum(prompt * (before + prompt) - prompt * (prompt - 1) / 2 for before, prompt in members if prompt)
    floor = _floor_s(engine.model, engine, members) * (1 - 1e-12)
    assert engine(len(members), prefill, held, prefill_pairs=pairs) >= floor
    prompts = [member for member in members if member[1]]
    if len(prompts) <= 1 and all(before == 0 for before, _ in prompts):
        assert engine(len(members), prefill, held) >= floor


@given(ENGINES, st.integers(1, 500), st.integers(0, 10_000), st.integers(0, 1_000_000))
def test_more_work_never_takes_less(which: tuple[str, str, int, str | None], n: int, p: int, k: int) -> None:
    model, device, ways, dtype = which
    engine = roofline(model, device, tensor_parallel=ways, weight_dtype=dtype, interconnect_gb_s=300)
    base = engine(n, p, k)
    assert math.isfinite(base) and base > engine.overhead_s
    assert engine(n + 1, p, k) >= base and engine(n, p + 1, k) >= base and engine(n, p, k + 1) >= base


@given(st.integers(1, 2000), st.integers(0, 3000), st.integers(0, 2_000_000), st.sampled_from(["bf16", "fp8"]))
def test_the_two_sides_make_the_roof(n: int, p: int, k: int, dtype: str) -> None:
    engine = roofline(
        "llama-3.1-70b", "h100-sxm", weight_dtype=dtype, tensor_parallel=4, interconnect_gb_s=450,
        allreduce_latency_s=1e-5,
    )  # fmt: skip
    memory, compute, both = (engine.affine(bound) for bound in ("memory", "compute", "sum"))
    roof = engine(n, p, k)
    assert isinstance(memory, AffineStep)
    assert max(memory(n, p, k), compute(n, p, k)) == pytest.approx(roof, rel=1e-9)
    assert roof * (1 - 1e-9) <= both(n, p, k) <= 2 * roof * (1 + 1e-9)


# --- against measurements --------------------------------------------------------------------------------------------

# RTX 4090, Llama-3.1-8B, vLLM 0.19.0 (casys-kaist/LLMServingSim@5daddb21, MIT; seconds without prefill):
# running, share of the 41,392 tokens of KV in use, milliseconds a token.
RTX_4090 = [(17.8, 0.61, 20.4), (32.3, 0.985, 25.6), (42.3, 0.985, 26.0)]


def test_decode_steps_of_a_real_4090() -> None:
    step = roofline("llama-3.1-8b", "rtx-4090")
    errors = [step(n, 0, used * 41_392) * 1e3 / ms - 1 for n, used, ms in RTX_4090]  # type: ignore[arg-type]
    assert all(0 < error < 0.17 for error in errors), errors
    floor = roofline("llama-3.1-8b", "rtx-4090", **IDEAL)
    assert all(floor(n, 0, used * 41_392) * 1e3 < ms for n, used, ms in RTX_4090)  # type: ignore[arg-type]


def _token_ms(point: dict[str, Any], **engine: Any) -> float:
    """Time per output token of a closed loop: a decode step, and its share of the others' prompts."""
    step = roofline(
        "llama-3.1-70b", "h100-sxm", weight_dtype="fp8", tensor_parallel=point["n_gpu"], interconnect_gb_s=450, **engine
    )
    n, prompt, answer = point["concurrency"], point["isl"], point["osl"]
    held = n * (prompt + answer // 2)
    alone = step(n, 0, held)
    return 1e3 * (alone + (step(n, prompt, held) - alone) * n / answer)


def test_seventy_billion_on_h100s(data_dir: Path) -> None:
    points = json.loads((data_dir / "facts" / "bench_points.json").read_text())["points"]
    runs = [point for point in points if point["group"] == "aiconfigurator"]
    assert len(runs) == 15
    errors = [_token_ms(run, allreduce_latency_s=34e-6) / run["itl_ms"] - 1 for run in runs]
    assert mean(map(abs, errors)) < 0.10 and max(map(abs, errors)) < 0.20
    silent = [_token_ms(run) / run["itl_ms"] - 1 for run in runs]
    assert min(silent) < -0.5  # bytes alone don't explain what eight devices lose to each other
    ideal = [_token_ms(run, **IDEAL) / run["itl_ms"] for run in runs]
    assert max(ideal) < 1


def test_no_measurement_of_splitwise_is_below_the_floor(data_dir: Path) -> None:
    """Llama-2-70B, 2023. And two devices' prompts reach the compute efficiencies that the notes state."""
    devices = {"a100-80gb": ("a100-80gb-sxm", 300, 0.59, 0.70), "h100-80gb": ("h100-sxm", 450, 0.45, 0.51)}
    prompts: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
    with (data_dir / "facts" / "splitwise_perf_model.csv").open() as file:
        for row in csv.DictReader(file):
            if row["model"] != "llama2-70b" or row["hardware"] not in devices:
                continue
            device, link, _, _ = devices[row["hardware"]]
            ways, batch, prompt = (int(row[key]) for key in ("tensor_parallel", "batch_size", "prompt_size"))
            engine = roofline("llama-2-70b", device, tensor_parallel=ways, interconnect_gb_s=link, **IDEAL)
            assert engine(batch, 0, batch * prompt) * 1e3 < float(row["token_time"])
            if batch == 1:
                prompts[row["hardware"], ways, prompt].append(
                    engine(1, prompt, prompt) * 1e3 / float(row["prompt_time"])
                )
    for (device, ways, prompt), shares in prompts.items():
        assert median(shares) < 1
        if ways == 2 and prompt >= 512:
            low, high = devices[device][2:]
            assert low < median(shares) < high, (device, prompt)


def test_it_travels_and_says_what_it_is() -> None:
    step = roofline("llama-3.1-70b", "h100-sxm", tensor_parallel=2, interconnect_gb_s=450)
    assert eval(repr(step), {"roofline": roofline}) == step
    sent = pickle.loads(pickle.dumps(step))
    assert sent == step and sent(3, 4, 5) == step(3, 4, 5)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"weight_dtype": "fp8", "accelerator": "a100"},
            r"weight_dtype 'fp8' of llama-3\.1-8b: compute_dtype",
        ),
        ({"compute_dtype": "fp8", "accelerator": "l4"}, None),
        ({"compute_dtype": "fp8", "accelerator": "a10"}, r"^compute_dtype 'fp8' isn't in hardware on a10"),
        ({"compute_dtype": "int8"}, r"compute_dtype must be one of 'bf16', 'fp16', 'fp8'; got 'int8'"),
        ({"weight_dtype": "fp32"}, r"weight_dtype must be one of .*; got 'fp32'"),
        ({"weight_dtype": "mxfp4"}, r"'mxfp4' is for routed experts, and llama-3\.1-8b has none"),
        ({"kv_dtype": "fp4"}, r"kv_dtype must be one of .*; got 'fp4'"),
        ({"bandwidth_efficiency": 0}, r"bandwidth_efficiency must be a finite number > 0 and <= 1; got 0"),
        ({"compute_efficiency": 1.1}, r"compute_efficiency must be a finite number > 0 and <= 1; got 1\.1"),
        ({"overhead_s": -1}, r"overhead_s must be a finite number >= 0; got -1"),
        ({"tensor_parallel": 2}, r"interconnect_gb_s must be given with tensor_parallel > 1"),
        ({"tensor_parallel": 2, "interconnect_gb_s": 0}, r"interconnect_gb_s must be a finite number > 0; got 0"),
        ({"tensor_parallel": 5}, r"tensor_parallel must divide the 32 heads"),
        ({"allreduce_latency_s": math.nan}, r"allreduce_latency_s must be a finite number >= 0; got nan"),
        ({"model": "gpt-4"}, r"model 'gpt-4' isn't in the catalogue"),
    ],
)
def test_bad_inputs_are_refused_by_name(inputs: dict[str, Any], message: str | None) -> None:
    engine: dict[str, Any] = {"model": "llama-3.1-8b", "accelerator": "h100-sxm", **inputs}
    if message is None:
        roofline(**engine)
        return
    with pytest.raises(ValueError, match=message):
        roofline(**engine)


def test_bad_steps_are_refused_by_name() -> None:
    step = roofline("llama-3.1-8b", "h100-sxm")
    with pytest.raises(ValueError, match="requests, prefill_tokens and kv_tokens must be >= 0; got 1, -2 and 0"):
        step(1, -2)
    with pytest.raises(ValueError, match="must be >= 0; got nan, 0 and 0"):
        step(math.nan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefill_pairs must be >= 0; got -1"):
        step(1, 1, 1, prefill_pairs=-1)
    with pytest.raises(ValueError, match="bound must be one of 'memory', 'compute', 'sum'; got 'network'"):
        step.affine("network")
