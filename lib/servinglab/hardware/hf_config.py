"""The dimensions in a Hugging Face ``config.json``, as fields of `servinglab.hardware.catalog.Model`.

One small function for each family of architectures says how its configuration names them and what it leaves unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servinglab.base.checks import check_number


def dimensions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Model` from a configuration.

    Raises
    ------
    ValueError
        If the model type or the quantisation isn't covered, or a dimension is missing.

    Examples
    --------
    >>> config = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096}
    >>> dimensions(config)["sliding_layers"]
    32
    """
    quantization = config.get("quantization_config")
    text = config.get("text_config")
    if isinstance(text, Mapping):  # a multimodal model: its language part
        quantization = quantization or text.get("quantization_config")
        config = {**{key: config[key] for key in ("model_type", "tie_word_embeddings") if key in config}, **text}
    kind = config.get("model_type")
    if kind not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise ValueError(f"model_type must be one of {known}; got {kind!r} (write a catalogue row instead)")
    row = _FAMILIES[kind](_Config({**_DEFAULTS.get(kind, {}), **config}))
    return row | ({"weight_dtype": _quantized(quantization)} if quantization else {})


class _Config(dict[str, Any]):
    """A configuration whose missing dimension is an error that names it."""

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{key} is missing")

    def number(self, key: str, default: int = 0) -> int:
        value = self.get(key)
        return default if value is None else int(check_number(key, value, ge=0, integer=True))

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)


# What a configuration of these types may leave out (the defaults of the configuration classes in transformers).
_GEMMA3 = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip
_DEFAULTS: dict[Any, dict[str, Any]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
}


def _llama(c: _Config) -> dict[str, Any]:
    heads = c.number("num_attention_heads") or c["num_attention_heads"]
    bias = c.flag("attention_bias")
    return dict(
        layers=c["num_hidden_layers"],
        hidden=c["hidden_size"],
        heads=heads,
        kv_heads=c.number("num_key_value_heads", heads),
        head_dim=c.number("head_dim") or c["hidden_size"] // heads,
        ffn=c["intermediate_size"],
        vocab=c["vocab_size"],
        max_context=c.number("max_position_embeddings", 2048),
        tied_embeddings=c.flag("tie_word_embeddings"),
        qkv_bias=bias,
        output_bias=bias,
    )


def _windowed(c: _Config) -> dict[str, Any]:
    """Mistral and Phi-3: a window, if set, holds for every layer."""
    row = _llama(c)
    window = c.number("sliding_window")
    return row | (dict(sliding_window=window, sliding_layers=row["layers"]) if window else {})


def _qwen2(c: _Config) -> dict[str, Any]:
    return _llama(c) | dict(qkv_bias=c.flag("attention_bias", True), output_bias=False) | _listed_windows(c)


def _qwen3(c: _Config) -> dict[str, Any]:
    return _llama(c) | dict(qk_norm=True) | _listed_windows(c)


def _listed_windows(c: _Config) -> dict[str, int]:
    if not c.flag("use_sliding_window"):
        return {}
    layers = c.number("num_hidden_layers") - c.number("max_window_layers")
    return dict(sliding_window=c.number("sliding_window"), sliding_layers=layers) if layers > 0 else {}


def _mixtral(c: _Config) -> dict[str, Any]:
    return _windowed(c) | dict(
        experts=c["num_local_experts"], experts_per_token=c["num_experts_per_tok"], expert_ffn=c["intermediate_size"]
    )


def _qwen3_moe(c: _Config) -> dict[str, Any]:
    if c.get("mlp_only_layers") or c.number("decoder_sparse_step", 1) != 1:
        raise ValueError("mlp_only_layers and decoder_sparse_step other than 1 aren't covered")
    return _qwen3(c) | dict(
        experts=c["num_experts"], experts_per_token=c["num_experts_per_tok"], expert_ffn=c["moe_intermediate_size"]
    )


def _alternating(c: _Config, period: int, of_period: int) -> int:
    """Sliding layers: from the list of layer types, else `of_period` of every `period` in order."""
    layers = c.number("num_hidden_layers")
    types = c.get("layer_types")
    if types:
        return sum(kind == "sliding_attention" for kind in types)
    return sum(index % period < of_period for index in range(layers))


def _gemma2(c: _Config) -> dict[str, Any]:
    return _llama(c) | dict(norms_per_layer=4, sliding_window=c["sliding_window"], sliding_layers=_alternating(c, 2, 1))


def _gemma3(c: _Config) -> dict[str, Any]:
    period = c.number("sliding_window_pattern", 6)
    return _llama(c) | dict(
        norms_per_layer=4,
        qk_norm=True,
        sliding_window=c["sliding_window"],
        sliding_layers=_alternating(c, period, period - 1),
    )


def _gpt_oss(c: _Config) -> dict[str, Any]:
    return _llama(c) | dict(
        qkv_bias=True,
        output_bias=True,
        attention_sinks=True,
        router_bias=True,
        expert_bias=True,
        experts=c["num_local_experts"],
        experts_per_token=c["num_experts_per_tok"],
        expert_ffn=c["intermediate_size"],
        sliding_window=c["sliding_window"],
        sliding_layers=_alternating(c, 2, 1),
    )


def _deepseek(c: _Config) -> dict[str, Any]:
    if c.number("moe_layer_freq", 1) != 1:
        raise ValueError("moe_layer_freq other than 1 isn't covered")
    rope = c["qk_rope_head_dim"]
    heads = c["num_attention_heads"]
    return _llama(c) | dict(
        kv_heads=heads,
        head_dim=c["qk_nope_head_dim"] + rope,
        q_lora_rank=c.number("q_lora_rank"),
        kv_lora_rank=c["kv_lora_rank"],
        qk_rope_head_dim=rope,
        v_head_dim=c["v_head_dim"],
        experts=c.number("n_routed_experts"),
        experts_per_token=c.number("num_experts_per_tok"),
        expert_ffn=c.number("moe_intermediate_size"),
        shared_experts=c.number("n_shared_experts"),
        dense_layers=c.number("first_k_dense_replace"),
        router_bias=c.get("topk_method") == "noaux_tc",
    )


_FAMILIES: dict[Any, Callable[[_Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _windowed,
    "mistral3": _windowed,
    "mixtral": _mixtral,
    "phi3": _windowed,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}


def _quantized(config: Mapping[str, Any]) -> str:
    """The key of `WEIGHT_BITS` that a quantization_config means."""
    method = config.get("quant_method")
    if method in ("fp8", "mxfp4"):
        return str(method)
    bits: Any = config.get("bits")
    kind: Any = "int"
    if method == "compressed-tensors":
        groups = config.get("config_groups") or {}
        weights = [group.get("weights") or {} for group in groups.values()]
        kinds = {(each.get("num_bits"), each.get("type")) for each in weights}
        if len(kinds) == 1:
            bits, kind = kinds.pop()
    named: dict[Any, str] = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "int4"}
    if (bits, kind) not in named:
        raise ValueError(f"quantization_config must be fp8, mxfp4, or 4 or 8 bits throughout; got {dict(config)!r}")
    return named[bits, kind]
