"""The catalogue: what it computes against published counts, what it refuses, and rows of one's own."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.hardware import catalog
from servinglab.hardware.catalog import Model

# Parameters as Hugging Face's weight index counts them; KV bytes a token in 16 bits, 2 · layers · KV heads · head · 2,
# but (512 + 64) · 61 · 2 for DeepSeek's MLA. Sources: each row's own.
KNOWN = {
    "llama-3.1-8b": (8_030_261_248, 8_030_261_248, 131_072),
    "llama-3.1-70b": (70_553_706_496, 70_553_706_496, 327_680),
    "llama-2-13b": (13_015_864_320, 13_015_864_320, 819_200),  # no grouping of KV heads
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512, 57_344),  # biases on queries, keys and values
    "qwen3-32b": (32_762_123_264, 32_762_123_264, 262_144),  # heads · head size isn't the width
    "gemma-2-9b": (9_241_705_984, 9_241_705_984, 344_064),  # tied embeddings, four norms a layer
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248, 131_072),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704, 98_304),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704, 49_152),  # biases in the experts, attention sinks
    "deepseek-v3": (671_026_419_200, 37_552_297_472, 70_272),  # MLA, shared expert, three dense layers
}


@pytest.mark.parametrize("name", KNOWN)
def test_counts_are_the_published_ones(name: str) -> None:
    row = catalog.model(name)
    assert (row.params, row.active_params, row.kv_bytes_per_token()) == KNOWN[name]


def test_every_row_says_where_it_comes_from_and_agrees_with_its_publisher() -> None:
    rows = catalog.builtin()
    assert len(rows.models) >= 28 and len(rows.accelerators) >= 23
    for row in [*rows.models.values(), *rows.accelerators.values()]:
        assert row.source and row.date == "2026-11-29" and row.reliability in ("high", "medium", "low"), row.id
    for row in rows.models.values():
        if row.published_params:
            assert row.params == pytest.approx(row.published_params, rel=1e-4), row.id
        if row.published_active_params:  # rounded, and some publishers leave the input embedding out
            active = (row.active_params, row.active_params - row.parameters.input_embedding)
            assert min(abs(each / row.published_active_params - 1) for each in active) < 0.02, row.id


def test_all_facts_are_in_the_catalogue(data_dir: Path) -> None:
    facts = json.loads((data_dir / "facts" / "models.json").read_text())["models"]
    for name, fact in facts.items():
        row = catalog.model(name)
        assert row.params == fact["params_total"], name
        assert row.active_params == fact["params_active"], name
        assert row.kv_bytes_per_token() == fact["kv_bytes_per_token_bf16"], name
        assert row.kv_bytes_per_token("fp8") == fact["kv_bytes_per_token_fp8"], name
        assert row.weight_bytes("bf16") == fact["weights_bytes_bf16"], name
        assert (row.max_context, row.source) == (fact["max_context"], fact["source"]), name
        for dtype in ("mxfp4", "fp8"):
            if stated := fact.get(f"weights_bytes_checkpoint_{dtype}"):
                # the fact counts one byte for each parameter; embedding and head are really kept in 16 bits
                assert row.weight_dtype == dtype
                assert row.weight_bytes() == pytest.approx(stated, rel=0.003), name
        if window := fact.get("sliding_window"):
            assert (row.sliding_window, row.sliding_layers) == (window["window"], window["sliding_layers"])
            n = 3 * window["window"]
            assert row.kv_bytes(n, hybrid=True) == (
                window["kv_bytes_per_token_global_layers_bf16"] * n + window["kv_bytes_cap_sliding_layers_bf16"]
            ), name


def test_all_accelerators_are_in_the_catalogue(data_dir: Path) -> None:
    facts = json.loads((data_dir / "facts" / "hardware.json").read_text())["hardware"]
    same = {
        "bf16_tflops": "dense_bf16_tflops",
        "fp8_tflops": "dense_fp8_tflops",
        "memory_gb": "memory_gb",
        "visible_gib": "visible_gib",
        "bandwidth_gb_s": "mem_bw_gb_s",
        "tdp_w": "tdp_w",
        "measured_bf16_tflops": "measured_max_matmul_bf16_tflops",
        "reliability": "reliability",
    }
    for name, fact in facts.items():
        row = catalog.accelerator(name)
        assert {ours: getattr(row, ours) for ours in same} == {ours: fact.get(theirs) for ours, theirs in same.items()}
        assert row.ridge_flop_per_byte == pytest.approx(fact["ridge_flop_per_byte_bf16"], abs=0.06), name
        price = fact["price_usd_per_gpu_hour"] or {"low": None, "high": None}
        assert (row.price_low_usd_per_hour, row.price_high_usd_per_hour) == (price["low"], price["high"]), name
        assert row.price_date or price["low"] is None


def test_units() -> None:
    h100 = catalog.accelerator("h100-sxm")
    assert h100.bandwidth_bytes_per_s == 3.35e12
    assert h100.flops("fp8") == 1978.9e12
    assert h100.memory_gib == 79.18  # as software sees it
    b200 = catalog.accelerator("b200-sxm")
    assert b200.memory_gib == pytest.approx(180e9 / 2**30)  # nobody reported it
    assert b200.memory_gib < b200.memory_gb


@pytest.mark.parametrize(
    "spelling",
    ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B", " llama_3.1_8b "],
)
def test_common_spellings_of_a_model(spelling: str) -> None:
    assert catalog.model(spelling).id == "llama-3.1-8b"


@pytest.mark.parametrize("spelling", ["H100", "h100 sxm", "H100-SXM5", "NVIDIA H100 80GB HBM3", "h100_sxm"])
def test_common_spellings_of_an_accelerator(spelling: str) -> None:
    assert catalog.accelerator(spelling).id == "h100-sxm"


def test_unknown_ids_list_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"model 'llama-3\.1-7b' isn't in the catalogue; nearest: .*llama-3\.1-8b"):
        catalog.model("llama-3.1-7b")
    with pytest.raises(ValueError, match=r"accelerator 'h100 smx' isn't in the catalogue; nearest: h100-sxm"):
        catalog.accelerator("h100 smx")
    with pytest.raises(ValueError, match="known: a10, a100-40gb-sxm"):
        catalog.accelerator("?")
    with pytest.raises(ValueError, match="model must be an id or a row of the catalogue; got 8"):
        catalog.model(8)  # type: ignore[arg-type]


def test_a_row_is_taken_as_it_is() -> None:
    row = catalog.model("phi-4")
    assert catalog.model(row) is row
    assert catalog.accelerator(catalog.accelerator("l4")).id == "l4"


def test_precisions() -> None:
    llama = catalog.model("llama-3.1-70b")
    embeddings = 2 * 128_256 * 8192
    assert llama.weight_bytes("fp8") == pytest.approx(llama.params + embeddings, rel=1e-4)
    assert llama.weight_bytes("int4") < llama.weight_bytes("int8") == llama.weight_bytes("fp8")
    assert llama.weight_bytes("fp32") == 4 * llama.params
    assert catalog.model("gpt-oss-120b").weight_bytes() == 65_248_815_744  # the checkpoint's size
    with pytest.raises(ValueError, match=r"weight_dtype must be one of .*; got 'fp7'"):
        llama.weight_bytes("fp7")
    with pytest.raises(ValueError, match=r"'mxfp4' is for routed experts, and llama-3\.1-70b has none"):
        llama.weight_bytes("mxfp4")
    with pytest.raises(ValueError, match=r"kv_dtype must be one of .*; got 'int4'"):
        llama.kv_bytes_per_token("int4")
    with pytest.raises(ValueError, match="compute_dtype 'fp8' isn't in hardware on a10"):
        catalog.accelerator("a10").flops("fp8")


def test_tensor_parallel_shares_heads_and_copies_what_cannot_be_shared() -> None:
    llama, deepseek = catalog.model("llama-3.1-70b"), catalog.model("deepseek-v3")
    assert [llama.kv_bytes_per_token(tensor_parallel=n) for n in (1, 2, 8, 16)] == [327_680, 163_840, 40_960, 40_960]
    assert deepseek.kv_bytes_per_token(tensor_parallel=8) == deepseek.kv_bytes_per_token()
    assert catalog.model("qwen3-235b-a22b").kv_bytes_per_token(tensor_parallel=4) == 48_128  # a real log's
    with pytest.raises(ValueError, match="tensor_parallel must divide the 64 heads"):
        llama.kv_bytes_per_token(tensor_parallel=3)
    with pytest.raises(ValueError, match="tensor_parallel must divide the 10 KV heads of phi-4-14b"):
        catalog.model("phi-4").kv_bytes_per_token(tensor_parallel=4)


@given(st.sampled_from(sorted(catalog.builtin().models)), st.integers(0, 300_000))
def test_a_window_never_holds_more_than_all(name: str, tokens: int) -> None:
    row = catalog.model(name)
    all_of_it = row.kv_bytes(tokens)
    assert all_of_it == tokens * row.kv_bytes_per_token()
    windowed = row.kv_bytes(tokens, hybrid=True)
    assert windowed <= all_of_it
    assert (windowed == all_of_it) == (row.sliding_layers == 0 or tokens <= row.sliding_window)
    assert row.kv_bytes(tokens + 1, hybrid=True) >= windowed


@given(st.sampled_from(sorted(catalog.builtin().models)))
def test_parts_add_up(name: str) -> None:
    parts = catalog.model(name).parameters
    assert parts.active <= parts.total
    assert parts.total - parts.active == (parts.experts - parts.active_experts) * (parts.expert + parts.expert_other)


# --- rows of one's own -----------------------------------------------------------------------------------------------

ROW = """
[models.tiny]
name = "Tiny"
layers = 2
hidden = 64
heads = 4
kv_heads = 2
head_dim = 16
ffn = 128
vocab = 1000
max_context = 512
tied_embeddings = true
source = "this test"
date = "2026-11-29"
reliability = "low"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_row_of_ones_own(tmp_path: Path) -> None:
    mine = catalog.load(_write(tmp_path, ROW))
    tiny = mine.model("TINY")
    attention = 64 * (4 + 2 + 2) * 16 + 64 * 64
    assert tiny.params == 1000 * 64 + 2 * (attention + 3 * 64 * 128 + 2 * 64) + 64
    assert mine.model("llama-3.1-8b") == catalog.model("llama-3.1-8b")
    with pytest.raises(ValueError, match="model 'tiny' isn't in the catalogue"):
        catalog.model("tiny")  # loading changes nothing for others


def test_a_row_of_ones_own_replaces_a_builtin_one(tmp_path: Path) -> None:
    mine = catalog.load(
        _write(
            tmp_path,
            '[accelerators.l4]\nname = "L4"\nbf16_tflops = 1\nmemory_gb = 24\nbandwidth_gb_s = 1\n'
            'source = "x"\ndate = "y"\nreliability = "low"\n',
        )
    )
    assert mine.accelerator("l4").bf16_tflops == 1
    assert catalog.accelerator("l4").bf16_tflops == 121


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers = 2", "layer = 2"), r"models\.tiny: unknown field 'layer'; did you mean 'layers'\?"),
        (("layers = 2\n", ""), r"models\.tiny: missing 1 required .*'layers'"),
        (("layers = 2", "layers = 2.5"), r"models\.tiny: layers must be a whole number >= 1; got 2\.5"),
        (("layers = 2", "layers = -2"), r"layers must be a whole number >= 1; got -2"),
        (("layers = 2", 'layers = "2"'), r"layers must be a whole number >= 1; got '2'"),
        (("heads = 4", "heads = 3"), r"heads must be a multiple of kv_heads \(2\); got 3"),
        (("= true", "= 1"), r"tied_embeddings must be true or false; got 1"),
        (('source = "this test"\n', ""), r"source must be given: each row says where it comes from"),
        (('"low"', '"sure"'), r"reliability must be one of 'high', 'medium', 'low'; got 'sure'"),
        (("[models.tiny]", '[models."Tiny Model"]'), r"an id must be spelled as 'tiny-model'"),
        (('name = "Tiny"', 'name = "Phi-4"'), r"the spelling 'phi-4' already means phi-4-14b"),
        (("[models.tiny]", "[model.tiny]"), r"tables must be \[models\.ID\] or \[accelerators\.ID\]; got 'model'"),
        (("layers = 2", "layers ="), r"mine\.toml: not TOML"),
        (("heads = 4", "sliding_layers = 1\nheads = 4"), r"sliding_window and sliding_layers must both be 0 or both"),
        (("heads = 4", "experts = 4\nheads = 4"), r"experts \(4\) wants experts_per_token in 1 to experts"),
        (("heads = 4", "kv_lora_rank = 4\nheads = 4"), r"qk_rope_head_dim must be > 0 and < head_dim \(16\)"),
        (("heads = 4", 'aliases = "x"\nheads = 4'), r"aliases must be a list of strings; got 'x'"),
    ],
)
def test_a_bad_row_is_refused_by_name(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        catalog.load(_write(tmp_path, ROW.replace(*change)))
    assert "mine.toml" in str(caught.value)


# --- a model's own config.json ---------------------------------------------------------------------------------------


def _config(row: Model) -> dict[str, Any]:
    """The configuration that this row's publisher would write, in the names of its family."""
    config: dict[str, Any] = {
        "hidden_size": row.hidden,
        "num_hidden_layers": row.layers,
        "num_attention_heads": row.heads,
        "num_key_value_heads": row.kv_heads,
        "head_dim": row.head_dim,
        "intermediate_size": row.ffn,
        "vocab_size": row.vocab,
        "max_position_embeddings": row.max_context,
        "tie_word_embeddings": row.tied_embeddings,
    }
    name = row.id
    if name.startswith("llama"):
        return config | {"model_type": "llama", "attention_bias": False}
    if name.startswith("mistral"):
        return config | {"model_type": "mistral", "sliding_window": row.sliding_window}
    if name.startswith("mixtral"):
        experts = {"num_local_experts": row.experts, "num_experts_per_tok": row.experts_per_token}
        return config | {"model_type": "mixtral", "sliding_window": None, **experts}
    if name.startswith("qwen2.5"):
        return config | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131_072}
    if name.startswith("qwen3"):
        experts = {
            "num_experts": row.experts,
            "num_experts_per_tok": row.experts_per_token,
            "moe_intermediate_size": row.expert_ffn,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        return config | ({"model_type": "qwen3_moe", **experts} if row.experts else {"model_type": "qwen3"})
    if name.startswith("gemma-2"):
        return config | {"model_type": "gemma2", "sliding_window": row.sliding_window}
    if name.startswith("gemma-3-1b"):
        return config | {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6}
    if name.startswith("gemma-3"):
        return {"model_type": "gemma3", "text_config": config | {"model_type": "gemma3_text", "sliding_window": 1024}}
    if name.startswith("phi"):
        window = {"sliding_window": row.sliding_window} if row.sliding_window else {}
        return config | {"model_type": "phi3", **window}
    if name.startswith("gpt-oss"):
        return config | {
            "model_type": "gpt_oss",
            "num_local_experts": row.experts,
            "num_experts_per_tok": row.experts_per_token,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * (row.layers // 2),
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        }
    assert name == "deepseek-v3"
    del config["head_dim"]
    return config | {
        "model_type": "deepseek_v3",
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "topk_method": "noaux_tc",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


@pytest.mark.parametrize("name", sorted(catalog.builtin().models))
def test_a_config_gives_the_same_model(tmp_path: Path, name: str) -> None:
    row = catalog.model(name)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_config(row)))
    read = catalog.model_from_config(folder)
    paperwork = ("name", "aliases", "source", "date", "reliability", "note", "published_params")
    kept = dict.fromkeys((*paperwork, "published_active_params"))
    assert dataclasses.replace(read, **{key: getattr(row, key) for key in kept}) == row
    if row.published_params:
        assert read.params == pytest.approx(row.published_params, rel=0.01)


def _read(folder: Path, **config: Any) -> Model:
    path = folder / "config.json"
    base = _config(catalog.model("llama-3.1-8b"))
    path.write_text(json.dumps({key: value for key, value in (base | config).items() if value != "gone"}))
    return catalog.model_from_config(path, id="x")


def test_configs_with_gaps_and_quantised_ones(tmp_path: Path) -> None:
    assert _read(tmp_path, head_dim="gone").head_dim == 128  # width over heads
    assert _read(tmp_path, num_key_value_heads="gone").kv_heads == 32
    weights = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}
    quantised = {"quant_method": "compressed-tensors", **weights}
    assert _read(tmp_path, quantization_config=quantised).weight_dtype == "fp8"
    assert _read(tmp_path, quantization_config={"quant_method": "awq", "bits": 4}).weight_dtype == "int4"
    # Gemma 3 4B's own file leaves heads, head size, vocabulary and context to the defaults of its class
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **text}}))
    read = catalog.model_from_config(path)
    assert (read.params, read.sliding_layers) == (catalog.model("gemma-3-4b").params, 29)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, r"model_type must be one of deepseek_v2, .*; got 'mamba'"),
        ({"model_type": "gone"}, r"model_type must be one of .*; got None"),
        ({"hidden_size": "gone"}, r"config\.json: hidden_size is missing"),
        ({"num_attention_heads": "gone"}, r"num_attention_heads is missing"),
        ({"num_hidden_layers": 0}, r"layers must be a whole number >= 1; got 0"),
        ({"num_key_value_heads": 5}, r"heads must be a multiple of kv_heads \(5\); got 32"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, r"quantization_config must be fp8, mxfp4, or"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, r"mlp_only_layers .* aren't covered"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _read(tmp_path, **config)


def test_what_is_not_a_config_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        catalog.model_from_config(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="must hold one JSON object; got list"):
        catalog.model_from_config(path)
    with pytest.raises(FileNotFoundError):
        catalog.model_from_config(tmp_path / "none")


def test_importing_reads_no_rows() -> None:
    code = "import servinglab, servinglab.hardware.catalog as c; print(c.builtin.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
