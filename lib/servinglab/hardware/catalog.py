"""Which models and accelerators are there, and what follows from their numbers?

A row states what a publisher printed: layers, heads, FLOP/s, bytes. Parameters, weight bytes and KV bytes per token
are computed from it by the formulas below, which the tests hold against published counts and real engine logs.
Each row names its source, the date it was looked up and how far to trust it.

What this leaves out: vision and audio towers, draft and multi-token-prediction layers, and the padding that an engine
adds for its kernels. FLOP/s are dense, 16-bit with 32-bit accumulation. GB and TFLOP/s are powers of ten; GiB is 2**30.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from servinglab.base.checks import check_choice, check_number
from servinglab.hardware.hf_config import dimensions

GIB = 2**30
KV_BITS: Mapping[str, int] = MappingProxyType({"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8})
WEIGHT_BITS: Mapping[str, float] = MappingProxyType(
    {
        "fp32": 32,
        "bf16": 16,
        "fp16": 16,
        "fp8": 8,
        "int8": 8,
        "int4": 4 + (16 + 4) / 128,  # AWQ, GPTQ: a 16-bit scale and a 4-bit zero for each 128 weights
        "mxfp4": 4 + 8 / 32,  # an 8-bit scale for each 32 weights
    }
)
RELIABILITY = ("high", "medium", "low")

Row = TypeVar("Row", "Model", "Accelerator")


@dataclass(frozen=True)
class Parameters:
    """A model's parameters by what an engine does with them. Counts, not bytes.

    Attributes
    ----------
    input_embedding : int
        The table that tokens are looked up in; a step reads one row a token.
    head : int
        The output matrix; 0 where it's tied to the input embedding (which then is read as the head).
    linear : int
        Matrices of attention, dense MLPs and shared experts: every token goes through them.
    other : int
        Norms, biases, routers, attention sinks; kept in 16 bits when the rest is quantised.
    expert : int
        Matrices of one routed expert of one layer.
    expert_other : int
        Biases of that expert.
    experts : int
        Routed experts, all layers together.
    active_experts : int
        Routed experts that one token goes through, all layers together.
    """

    input_embedding: int
    head: int
    linear: int
    other: int
    expert: int
    expert_other: int
    experts: int
    active_experts: int

    @property
    def always(self) -> int:
        """Everything but the routed experts."""
        return self.input_embedding + self.head + self.linear + self.other

    @property
    def total(self) -> int:
        return self.always + self.experts * (self.expert + self.expert_other)

    @property
    def active(self) -> int:
        return self.always + self.active_experts * (self.expert + self.expert_other)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer, as its public configuration describes it.

    Parameters
    ----------
    id, name : str
        The catalogue's key; the publisher's name.
    layers, hidden, heads, kv_heads, head_dim : int
        Layers, width, query heads, key-value heads, and the size of a head (of a query and a key, with MLA).
    ffn, vocab, max_context : int
        Inner width of the dense MLP, vocabulary, longest context in tokens.
    tied_embeddings : bool
        Whether the output matrix is the input embedding.
    gated_mlp, qkv_bias, output_bias, qk_norm, attention_sinks : bool
        Three MLP matrices instead of two; biases of the attention's input and output; a norm on queries and keys; one
        learned logit a head.
    norms_per_layer : int
        Norms as wide as the model in each layer: 2, or 4 in Gemma.
    q_lora_rank, kv_lora_rank, qk_rope_head_dim, v_head_dim : int
        Multi-head latent attention where ``kv_lora_rank > 0``. `q_lora_rank` 0: queries aren't compressed.
    experts, experts_per_token, expert_ffn, shared_experts, dense_layers : int
        Mixture of experts where ``experts > 0``: in all layers but the first `dense_layers`.
    router_bias, expert_bias : bool
        Biases there.
    sliding_window, sliding_layers : int
        That many layers attend to the last `sliding_window` tokens only.
    weight_dtype : str
        The precision that the publisher ships: a key of `WEIGHT_BITS`.
    published_params, published_active_params : int or None
        What the publisher states; used in no formula.
    aliases, source, date, reliability, note
        Other spellings; where the row comes from, when it was looked up, ``"high"``, ``"medium"`` or ``"low"``.

    Raises
    ------
    ValueError
        If a field is outside its range, or two of them contradict each other.

    Examples
    --------
    >>> llama = model("llama-3.1-8b")
    >>> llama.params, llama.kv_bytes_per_token()
    (8030261248, 131072)
    >>> model("qwen3-30b-a3b").active_params
    3353032704
    """

    id: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_context: int
    tied_embeddings: bool
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    norms_per_layer: int = 2
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    sliding_window: int = 0
    sliding_layers: int = 0
    weight_dtype: str = "bf16"
    published_params: int | None = None
    published_active_params: int | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    reliability: str = "medium"
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_text(self, ("id", "name", "source", "date", "note", "weight_dtype", "reliability"))
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_context"):
            _set_number(self, name, ge=1, integer=True)
        counts = ("ffn", "norms_per_layer", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "experts")
        more = ("experts_per_token", "expert_ffn", "shared_experts", "dense_layers", "sliding_window", "sliding_layers")
        for name in (*counts, *more):
            _set_number(self, name, ge=0, integer=True)
        for name in ("published_params", "published_active_params"):
            if getattr(self, name) is not None:
                _set_number(self, name, ge=1, integer=True)
        flags = ("tied_embeddings", "gated_mlp", "qkv_bias", "output_bias", "qk_norm", "attention_sinks")
        for name in (*flags, "router_bias", "expert_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false; got {getattr(self, name)!r}")
        check_choice("weight_dtype", self.weight_dtype, tuple(WEIGHT_BITS))
        check_choice("reliability", self.reliability, RELIABILITY)
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads ({self.kv_heads}); got {self.heads}")
        if self.sliding_layers > self.layers:
            raise ValueError(f"sliding_layers must be <= layers ({self.layers}); got {self.sliding_layers}")
        if bool(self.sliding_layers) != bool(self.sliding_window):
            raise ValueError(
                "sliding_window and sliding_layers must both be 0 or both > 0; "
                f"got {self.sliding_window} and {self.sliding_layers}"
            )
        if self.kv_lora_rank and not 0 < self.qk_rope_head_dim < self.head_dim:
            raise ValueError(
                f"qk_rope_head_dim must be > 0 and < head_dim ({self.head_dim}) with kv_lora_rank; "
                f"got {self.qk_rope_head_dim}"
            )
        if self.experts and not (0 < self.experts_per_token <= self.experts and self.expert_ffn):
            raise ValueError(
                f"experts ({self.experts}) wants experts_per_token in 1 to experts and expert_ffn > 0; "
                f"got {self.experts_per_token} and {self.expert_ffn}"
            )
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers must be <= layers ({self.layers}); got {self.dense_layers}")
        if self.ffn == 0 and (not self.experts or self.dense_layers):
            raise ValueError("ffn must be > 0 in a model with dense layers; got 0")

    @property
    def is_mla(self) -> bool:
        """Whether the KV cache holds one compressed vector a token and layer instead of keys and values."""
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> Parameters:
        """Parameters by use. A matrix from m to n numbers has m·n of them; the sums are spelled out in the source."""
        d, hd = self.hidden, self.head_dim
        if self.is_mla:
            v = self.v_head_dim or hd
            query = self.q_lora_rank * (d + self.heads * hd) if self.q_lora_rank else d * self.heads * hd
            down = d * (self.kv_lora_rank + self.qk_rope_head_dim)
            up = self.kv_lora_rank * self.heads * (hd - self.qk_rope_head_dim + v)
            attention = query + down + up + self.heads * v * d
            attention_other = self.q_lora_rank + self.kv_lora_rank  # norms of the compressed vectors
        else:
            attention = d * (self.heads + 2 * self.kv_heads) * hd + self.heads * hd * d
            attention_other = 2 * hd if self.qk_norm else 0
        if self.qkv_bias:
            attention_other += (self.heads + 2 * self.kv_heads) * hd
        attention_other += (d if self.output_bias else 0) + (self.heads if self.attention_sinks else 0)

        matrices = 3 if self.gated_mlp else 2
        dense = (self.layers - self.moe_layers) * matrices * d * self.ffn
        shared = self.moe_layers * self.shared_experts * matrices * d * self.expert_ffn
        router = self.moe_layers * self.experts * (d + (1 if self.router_bias else 0))
        norms = (self.layers * self.norms_per_layer + 1) * d
        return Parameters(
            input_embedding=self.vocab * d,
            head=0 if self.tied_embeddings else self.vocab * d,
            linear=self.layers * attention + dense + shared,
            other=self.layers * attention_other + router + norms,
            expert=matrices * d * self.expert_ffn if self.experts else 0,
            expert_other=(matrices - 1) * self.expert_ffn + d if self.expert_bias else 0,
            experts=self.moe_layers * self.experts,
            active_experts=self.moe_layers * self.experts_per_token,
        )

    @property
    def params(self) -> int:
        """Parameters in all."""
        return self.parameters.total

    @property
    def active_params(self) -> int:
        """Parameters that one token meets, the input embedding included."""
        return self.parameters.active

    def weight_bits(self, dtype: str | None = None) -> tuple[float, float, float]:
        """Bits of one parameter: in embedding, head, norms and biases; in the other matrices; in routed experts.

        Quantised checkpoints keep the first group in 16 bits; ``"mxfp4"`` is for routed experts only, as gpt-oss
        ships it. Block scales of FP8 (under 0.03 %) aren't counted.

        Raises
        ------
        ValueError
            If `dtype` isn't in `WEIGHT_BITS`, or is ``"mxfp4"`` for a model without experts.
        """
        dtype = check_choice("weight_dtype", self.weight_dtype if dtype is None else dtype, tuple(WEIGHT_BITS))
        bits = WEIGHT_BITS[dtype]
        if dtype == "mxfp4":
            if not self.experts:
                raise ValueError(f"weight_dtype 'mxfp4' is for routed experts, and {self.id} has none")
            return 16, 16, bits
        return max(16, bits), bits, bits

    def weight_bytes(self, dtype: str | None = None) -> float:
        """Bytes of all weights, for all devices together.

        Parameters
        ----------
        dtype : str, optional
            A key of `WEIGHT_BITS`; the publisher's own precision if left out.

        Examples
        --------
        >>> round(model("llama-3.1-8b").weight_bytes() / GIB, 2)
        14.96
        >>> round(model("llama-3.1-70b").weight_bytes("fp8") / GIB, 2)
        67.67
        """
        small, linear, expert = self.weight_bits(dtype)
        p = self.parameters
        in_small = p.input_embedding + p.head + p.other + p.experts * p.expert_other
        return (small * in_small + linear * p.linear + expert * p.experts * p.expert) / 8

    def kv_numbers_per_layer(self, tensor_parallel: int = 1) -> int:
        """Numbers that one token leaves in one layer's cache on each device.

        ``2 · kv_heads · head_dim / tensor_parallel`` (keys and values), a key-value head being copied where there are
        more devices than heads. With MLA ``kv_lora_rank + qk_rope_head_dim``, copied on every device.

        Raises
        ------
        ValueError
            If the heads can't be shared out evenly.
        """
        ways = check_number("tensor_parallel", tensor_parallel, ge=1, integer=True)
        if self.heads % ways:
            raise ValueError(f"tensor_parallel must divide the {self.heads} heads of {self.id}; got {ways}")
        if self.is_mla:
            return self.kv_lora_rank + self.qk_rope_head_dim
        if self.kv_heads % ways and ways % self.kv_heads:
            raise ValueError(
                f"tensor_parallel must divide the {self.kv_heads} KV heads of {self.id} or be a multiple of them; "
                f"got {ways}"
            )
        return 2 * max(1, self.kv_heads // ways) * self.head_dim

    def kv_bytes_per_token(self, dtype: str = "bf16", tensor_parallel: int = 1) -> int:
        """Bytes that one token holds in the KV cache of each device, all layers alike.

        Parameters
        ----------
        dtype : {"bf16", "fp16", "fp8", "fp32"}
        tensor_parallel : int
            Devices that share the model.

        Examples
        --------
        >>> model("deepseek-v3").kv_bytes_per_token()
        70272
        >>> model("llama-3.1-70b").kv_bytes_per_token("fp8", tensor_parallel=2)
        81920
        """
        bits = KV_BITS[check_choice("kv_dtype", dtype, tuple(KV_BITS))]
        return self.layers * self.kv_numbers_per_layer(tensor_parallel) * bits // 8

    def kv_bytes(self, tokens: int, dtype: str = "bf16", tensor_parallel: int = 1, *, hybrid: bool = False) -> int:
        """Bytes that one request of this length holds on each device.

        Parameters
        ----------
        tokens : int
            Prompt and answer so far.
        hybrid : bool
            Whether the engine drops what a sliding layer no longer looks at:
            ``full layers · n + sliding layers · min(n, window)`` instead of ``layers · n``.

        Examples
        --------
        >>> gemma = model("gemma-3-27b")
        >>> round(gemma.kv_bytes(32_768) / gemma.kv_bytes(32_768, hybrid=True), 2)
        5.33
        """
        tokens = check_number("tokens", tokens, ge=0, integer=True)
        per_layer = self.kv_bytes_per_token(dtype, tensor_parallel) // self.layers
        if not hybrid:
            return self.layers * per_layer * tokens
        sliding = self.sliding_layers * min(tokens, self.sliding_window)
        return per_layer * ((self.layers - self.sliding_layers) * tokens + sliding)


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device: what it computes, holds and reads.

    Parameters
    ----------
    id, name : str
        The catalogue's key; the vendor's name.
    bf16_tflops : float
        Dense 16-bit 10**12 FLOP/s.
    fp8_tflops : float or None
        Dense 8-bit floating-point rate; None where the device has no such arithmetic.
    memory_gb, bandwidth_gb_s : float
        As the vendor prints them, 10**9 bytes (a second).
    visible_gib : float or None
        Memory that software saw, 2**30 bytes; None where nobody reported it.
    measured_bf16_tflops, measured_fp8_tflops : float or None
        The best matrix multiplication that anyone published.
    tdp_w : float or None
        Power in watts.
    price_low_usd_per_hour, price_high_usd_per_hour : float or None
        Range over vendors at `price_date`, not a quote; `price_source` says which.
    aliases, source, date, reliability, note
        As in `Model`.

    Examples
    --------
    >>> h100 = accelerator("h100-sxm")
    >>> round(h100.ridge_flop_per_byte)
    295
    """

    id: str
    name: str
    bf16_tflops: float
    memory_gb: float
    bandwidth_gb_s: float
    fp8_tflops: float | None = None
    visible_gib: float | None = None
    measured_bf16_tflops: float | None = None
    measured_fp8_tflops: float | None = None
    tdp_w: float | None = None
    price_low_usd_per_hour: float | None = None
    price_high_usd_per_hour: float | None = None
    price_date: str = ""
    price_source: str = field(default="", repr=False)
    aliases: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    reliability: str = "medium"
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_text(self, ("id", "name", "source", "date", "note", "reliability", "price_date", "price_source"))
        for name in ("bf16_tflops", "memory_gb", "bandwidth_gb_s"):
            _set_number(self, name, gt=0)
        optional = ("fp8_tflops", "visible_gib", "measured_bf16_tflops", "measured_fp8_tflops", "tdp_w")
        for name in (*optional, "price_low_usd_per_hour", "price_high_usd_per_hour"):
            if getattr(self, name) is not None:
                _set_number(self, name, gt=0)
        check_choice("reliability", self.reliability, RELIABILITY)
        low, high = self.price_low_usd_per_hour, self.price_high_usd_per_hour
        if (low is None) != (high is None) or (low is not None and high is not None and low > high):
            raise ValueError(f"price_low_usd_per_hour must be given with a price_high >= it; got {low!r} and {high!r}")
        if self.visible_gib is not None and self.visible_gib > 1.02 * self.memory_gb:
            raise ValueError(f"visible_gib must be about memory_gb ({self.memory_gb:g}); got {self.visible_gib:g}")

    @property
    def memory_gib(self) -> float:
        """2**30 bytes that an engine can see: as reported, else `memory_gb` taken at its word.

        The second is a low figure: an "80 GB" card has 79.2 GiB where 80·10**9 bytes would be 74.5.
        """
        return self.visible_gib if self.visible_gib is not None else self.memory_gb * 1e9 / GIB

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bandwidth_gb_s * 1e9

    @property
    def ridge_flop_per_byte(self) -> float:
        """16-bit FLOPs for each byte read at which computing takes as long as reading."""
        return self.bf16_tflops * 1e3 / self.bandwidth_gb_s

    def flops(self, dtype: str = "bf16") -> float:
        """Dense FLOP/s in this precision.

        Parameters
        ----------
        dtype : {"bf16", "fp16", "fp8"}

        Raises
        ------
        ValueError
            If the device lacks the precision, or the catalogue its rate.

        Examples
        --------
        >>> accelerator("a100-80gb-sxm").flops("fp8")
        Traceback (most recent call last):
        ...
        ValueError: compute_dtype 'fp8' isn't in hardware on a100-80gb-sxm; weights kept in 8 bits are computed with
        compute_dtype 'bf16' there
        """
        check_choice("compute_dtype", dtype, ("bf16", "fp16", "fp8"))
        if dtype != "fp8":
            return self.bf16_tflops * 1e12
        if self.fp8_tflops is None:
            raise ValueError(
                f"compute_dtype 'fp8' isn't in hardware on {self.id}; weights kept in 8 bits are computed with "
                "compute_dtype 'bf16' there"
            )
        return self.fp8_tflops * 1e12


@dataclass(frozen=True, eq=False)
class Catalog:
    """Rows by id. `load` makes one from the built-in rows and a file of your own.

    Attributes
    ----------
    models : mapping of str to Model
    accelerators : mapping of str to Accelerator
    """

    models: Mapping[str, Model]
    accelerators: Mapping[str, Accelerator]

    def model(self, name: str | Model) -> Model:
        """The row of this id, alias or common spelling; a `Model` is returned as it is.

        Raises
        ------
        ValueError
            If there is none; the message lists the nearest ids.

        Examples
        --------
        >>> builtin().model("meta-llama/Llama-3.1-8B-Instruct").id
        'llama-3.1-8b'
        >>> builtin().model("llama-3-8b")
        Traceback (most recent call last):
        ...
        ValueError: model 'llama-3-8b' isn't in the catalogue; nearest: llama-3.1-8b, llama-2-13b, llama-2-7b
        """
        return name if isinstance(name, Model) else _find("model", name, self.models)

    def accelerator(self, name: str | Accelerator) -> Accelerator:
        """The row of this id, alias or common spelling; an `Accelerator` is returned as it is.

        Examples
        --------
        >>> builtin().accelerator("NVIDIA H100 80GB HBM3").id
        'h100-sxm'
        """
        return name if isinstance(name, Accelerator) else _find("accelerator", name, self.accelerators)


@cache
def builtin() -> Catalog:
    """The rows that come with the library, read once.

    Examples
    --------
    >>> "h200-sxm" in builtin().accelerators
    True
    """
    folder = resources.files("servinglab") / "data"
    empty = Catalog(MappingProxyType({}), MappingProxyType({}))
    with_models = _add(empty, (folder / "models.toml").read_text("utf-8"), "models.toml")
    return _add(with_models, (folder / "hardware.toml").read_text("utf-8"), "hardware.toml")


def model(name: str | Model) -> Model:
    """The built-in model of this id, alias or common spelling. See `Catalog.model`."""
    return builtin().model(name)


def accelerator(name: str | Accelerator) -> Accelerator:
    """The built-in accelerator of this id, alias or common spelling. See `Catalog.accelerator`."""
    return builtin().accelerator(name)


def load(path: str | Path) -> Catalog:
    """The built-in rows and those of a TOML file; a row of the file replaces a built-in one of the same id.

    The file holds tables ``[models.ID]`` and ``[accelerators.ID]`` with the fields of `Model` and `Accelerator`.
    The functions of this library that take an id also take such a row: ``kv_cache(mine.model("x"), "h100-sxm")``.

    Raises
    ------
    ValueError
        If the file isn't TOML, or a row has an unknown, missing or bad field. The message names file, row and field.
    OSError
        If it can't be read.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> text = '''
    ... [accelerators.half-h100]
    ... name = "Half an H100"
    ... bf16_tflops = 494.7
    ... memory_gb = 40
    ... bandwidth_gb_s = 1675
    ... source = "made up"
    ... date = "2026-11-29"
    ... reliability = "low"
    ... '''
    >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.toml")
    >>> _ = path.write_text(text)
    >>> load(path).accelerator("half-h100").bandwidth_gb_s
    1675.0
    """
    path = Path(path)
    return _add(builtin(), path.read_text("utf-8"), str(path))


def model_from_config(path: str | Path, id: str | None = None) -> Model:
    """A model from a Hugging Face ``config.json``: its parameters are counted from the dimensions there.

    Parameters
    ----------
    path : str or Path
        The file, or a folder that holds it.
    id : str, optional
        The row's id; from ``_name_or_path``, else the folder's name, if left out.

    Returns
    -------
    Model
        ``weight_dtype`` follows ``quantization_config`` where there is one. Vision towers aren't counted.

    Raises
    ------
    ValueError
        If the file isn't such a configuration, is of a model type that the formulas don't cover, or lacks a dimension.
    OSError
        If it can't be read.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    ...           "max_position_embeddings": 131072}
    >>> path = pathlib.Path(tempfile.mkdtemp(), "config.json")
    >>> _ = path.write_text(json.dumps(config))
    >>> model_from_config(path, id="mine").params
    8030261248
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file}: must hold one JSON object; got {type(config).__name__}")
    name = str(config.get("_name_or_path") or file.resolve().parent.name)
    try:
        row = dimensions(config)
        return Model(
            id=id or _spelling(name), name=name, **row, source=str(file), reliability="high", note="read from a config"
        )
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _add(base: Catalog, text: str, where: str) -> Catalog:
    """`base` and the rows of a TOML text, checked."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: not TOML ({error})") from None
    unknown = set(content) - {"models", "accelerators"}
    if unknown:
        raise ValueError(f"{where}: tables must be [models.ID] or [accelerators.ID]; got {sorted(unknown)[0]!r}")
    models = _rows(Model, base.models, content.get("models", {}), f"{where}: models")
    accelerators = _rows(Accelerator, base.accelerators, content.get("accelerators", {}), f"{where}: accelerators")
    return Catalog(models, accelerators)


def _rows(kind: type[Row], base: Mapping[str, Row], tables: Any, where: str) -> Mapping[str, Row]:
    known = [each.name for each in fields(kind) if each.name != "id"]
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f"{where} must be tables, one for each id")
    rows = dict(base)
    for key, table in tables.items():
        for name in table:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; fields: {', '.join(known)}"
                raise ValueError(f"{where}.{key}: unknown field {name!r}{hint}")
        missing = [name for name in ("source", "date", "reliability") if name not in table]
        try:
            if missing:
                raise ValueError(f"{missing[0]} must be given: each row says where it comes from")
            if key != _spelling(key):
                raise ValueError(f"an id must be spelled as {_spelling(key)!r}")
            aliases = table.get("aliases", [])
            if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
                raise ValueError(f"aliases must be a list of strings; got {aliases!r}")
            row = kind(id=key, **{**table, "aliases": tuple(aliases)})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}.{key}: {str(error).replace(f'{kind.__name__}.__init__() ', '')}") from None
        rows[key] = row
    _check_spellings(rows, where)
    return MappingProxyType(rows)


def _check_spellings(rows: Mapping[str, Any], where: str) -> None:
    owners: dict[str, str] = {}
    for key, row in rows.items():
        for spelling in (key, *_spellings(row)):
            owner = owners.setdefault(spelling, key)
            if owner != key:
                raise ValueError(f"{where}.{key}: the spelling {spelling!r} already means {owner}")


def _spelling(name: str) -> str:
    """One spelling of a name: no owner before a slash, lower case, hyphens between words."""
    words = name.strip().rsplit("/", 1)[-1].lower().replace("_", " ").replace("(", " ").replace(")", " ")
    return "-".join(words.split())


def _find(kind: str, name: Any, rows: Mapping[str, Row]) -> Row:
    if not isinstance(name, str):
        raise ValueError(f"{kind} must be an id or a row of the catalogue; got {name!r}")
    owners = {spelling: row for row in rows.values() for spelling in _spellings(row)}
    wanted = _spelling(name)
    endings = ("-instruct", "-it", "-chat", "-hf", "-base")
    shorter: list[str] = [wanted.removesuffix(ending) for ending in endings]
    for spelling in (wanted, *shorter):
        if spelling in rows:
            return rows[spelling]
        if spelling in owners:
            return owners[spelling]
    near: list[str] = []
    for spelling in difflib.get_close_matches(wanted, owners, n=9, cutoff=0.4):
        if owners[spelling].id not in near:
            near.append(owners[spelling].id)
    listed = f"nearest: {', '.join(near[:3])}" if near else f"known: {', '.join(sorted(rows))}"
    raise ValueError(f"{kind} {name!r} isn't in the catalogue; {listed}")


def _spellings(row: Model | Accelerator) -> tuple[str, ...]:
    return (_spelling(row.name), *map(_spelling, row.aliases))


def _check_text(row: Any, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(getattr(row, name), str):
            raise ValueError(f"{name} must be a string; got {getattr(row, name)!r}")


def _set_number(row: Any, name: str, **rule: Any) -> None:
    object.__setattr__(row, name, check_number(name, getattr(row, name), **rule))
