"""A model's layers in PyTorch with random weights: what a decode step and a prompt make a device compute.

The shapes are those of a catalogue row: width, heads, grouped key-value heads, MLP or routed experts, window, head
matrix. The weights are random and the outputs mean nothing; how long they take is the same. What is scaled to the
device, and how a whole model's step follows, is said by `Scaled`.

What this leaves out of a served model: an engine's scheduler and sampling, norms' and biases' small print, rotary
embeddings, latent attention's compressed cache (MLA is refused), a sliding window within a prompt, leading dense layers
of a mixture of experts, quantised kernels, paged KV caches and several devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from servinglab.base.checks import check_choice, check_number
from servinglab.hardware.catalog import Model

MISSING = "PyTorch isn't installed, so a device can't be timed: pip install 'servinglab[torch]' (CPU build: 1 GB)"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHARE = 0.6  # of the free memory, for weights and KV cache; the rest is for activations and the allocator


def import_torch() -> Any:
    """PyTorch, or one line that says how to get it."""
    try:
        import torch
    except ImportError:
        raise ImportError(MISSING) from None
    return torch


@dataclass(frozen=True)
class Scaled:
    """What is timed of a model, and what isn't.

    Attributes
    ----------
    model : Model
        The whole model.
    layers : int
        Of those, as many as are built. All are alike, so a step of L layers is the head's time and L times a layer's.
    experts : int
        Routed experts built in each layer, at most the model's; 0 for a dense model. With fewer than the model has,
        each token still goes through `experts_per_token`, but a large batch meets fewer different ones.
    dtype : str
        What weights and KV cache are kept and computed in.
    """

    model: Model
    layers: int
    experts: int
    dtype: str

    @property
    def weight_bytes(self) -> int:
        """Of the built layers and the head."""
        return (self.layers * self.layer_numbers + self.head_numbers) * BYTES[self.dtype]

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the built layers."""
        return self.layers * 2 * self.model.kv_heads * self.model.head_dim * BYTES[self.dtype]

    @property
    def head_numbers(self) -> int:
        """Weights of the output matrix."""
        return self.model.hidden * self.model.vocab

    @property
    def attention_numbers(self) -> int:
        """Weights of one layer's attention."""
        m = self.model
        return m.hidden * (m.heads + 2 * m.kv_heads) * m.head_dim + m.heads * m.head_dim * m.hidden

    @property
    def expert_numbers(self) -> int:
        """Weights of one expert, or of a dense layer's MLP."""
        m = self.model
        return (3 if m.gated_mlp else 2) * m.hidden * (m.expert_ffn if self.experts else m.ffn)

    @property
    def layer_numbers(self) -> int:
        """Weights of one layer."""
        if not self.experts:
            return self.attention_numbers + self.expert_numbers
        routed = self.experts * (self.expert_numbers + self.model.hidden)
        return self.attention_numbers + routed + self.model.shared_experts * self.expert_numbers

    def told(self) -> list[str]:
        """What is scaled, in sentences."""
        m = self.model
        lines = [
            f"{self.layers} of {m.layers} layers of {m.id} in {self.dtype}, random weights, "
            f"{self.weight_bytes / 2**30:.3g} GiB"
        ]
        if self.layers < m.layers:
            lines.append(
                f"a step of all {m.layers} layers: the head's share once, the layers' share "
                f"{m.layers / self.layers:g} times"
            )
        if self.experts:
            lines.append("experts run one after the other: small batches take longer than in an engine's fused kernels")
        if self.experts and self.experts < m.experts:
            lines.append(
                f"{self.experts} of {m.experts} experts a layer: large batches read fewer weights than the whole model"
            )
        return lines


def scale(model: Model, dtype: str, free_bytes: float, *, layers: int | None = None, kv_tokens: int = 0) -> Scaled:
    """Cut a model's layers, and then its experts, until weights and KV cache fit.

    Parameters
    ----------
    model : Model
    dtype : {"float32", "bfloat16", "float16"}
    free_bytes : float
        Of the device; 60 % of it is used.
    layers : int, optional
        At most so many; all that fit by default.
    kv_tokens : int
        Tokens of KV cache that must fit beside the weights.

    Raises
    ------
    ValueError
        If not even one layer fits, or the model has latent attention.

    Examples
    --------
    >>> from servinglab.hardware.catalog import model
    >>> scale(model("llama-3.1-8b"), "bfloat16", 80e9, kv_tokens=100_000).layers
    32
    >>> scale(model("llama-3.1-70b"), "bfloat16", 80e9, kv_tokens=100_000).layers
    21
    """
    check_choice("dtype", dtype, tuple(BYTES))
    if model.is_mla:
        raise ValueError(
            f"model must have keys and values in its cache; {model.id} has latent attention, which isn't built"
        )
    room = _SHARE * check_number("free_bytes", free_bytes, gt=0)
    most = model.layers if layers is None else check_number("layers", layers, ge=1, le=model.layers, integer=True)
    made = Scaled(model, 1, model.experts, dtype)
    while made.experts > max(1, model.experts_per_token) and _bytes(made, kv_tokens) > room:
        made = replace(made, experts=max(model.experts_per_token, made.experts // 2))
    fixed, each = made.head_numbers * BYTES[dtype], _bytes(made, kv_tokens) - made.head_numbers * BYTES[dtype]
    fit = min(most, int((room - fixed) // each))
    if fit < 1:
        raise ValueError(
            f"one layer and the head of {model.id} in {dtype} with {kv_tokens:,} tokens of KV cache need "
            f"{_bytes(made, kv_tokens) / 2**30:.3g} GiB, more than {_SHARE:.0%} of the {free_bytes / 2**30:.3g} GiB "
            "free"
        )
    return replace(made, layers=fit)


def _bytes(made: Scaled, kv_tokens: int) -> int:
    return made.weight_bytes + made.kv_bytes_per_token * kv_tokens


class Stack:
    """The layers, the head and a KV cache, on one device.

    Parameters
    ----------
    scaled : Scaled
    device : str
        ``"cuda"`` or ``"cpu"``.
    seed : int
        Of the weights, which decide which experts a token meets.
    """

    def __init__(self, scaled: Scaled, device: str, seed: int = 0) -> None:
        self.torch = torch = import_torch()
        self.scaled, self.device = scaled, device
        self.dtype = getattr(torch, scaled.dtype)
        torch.manual_seed(seed)
        m = scaled.model
        self._layers = [self._layer() for _ in range(scaled.layers)]
        self._head = self._random(m.vocab, m.hidden)

    def _random(self, *shape: int) -> Any:
        weights = self.torch.empty(shape, dtype=self.dtype, device=self.device)
        return weights.normal_(0.0, shape[-1] ** -0.5)

    def _layer(self) -> dict[str, Any]:
        m, s = self.scaled.model, self.scaled
        made = {
            "qkv": self._random((m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden),
            "out": self._random(m.hidden, m.heads * m.head_dim),
        }
        ups = 2 if m.gated_mlp else 1
        if not s.experts:
            return {**made, "up": self._random(ups * m.ffn, m.hidden), "down": self._random(m.hidden, m.ffn)}
        made["router"] = self._random(s.experts, m.hidden)
        made["ups"] = self._random(s.experts, ups * m.expert_ffn, m.hidden)
        made["downs"] = self._random(s.experts, m.hidden, m.expert_ffn)
        if m.shared_experts:
            wide = m.shared_experts * m.expert_ffn
            made |= {"up": self._random(ups * wide, m.hidden), "down": self._random(m.hidden, wide)}
        return made

    def cache(self, sequences: int, context: int) -> Any:
        """A KV cache of `context` tokens for each sequence and layer, of shape (layers, 2, sequences, heads, ...)."""
        m = self.scaled.model
        return self._random(self.scaled.layers, 2, sequences, m.kv_heads, context, m.head_dim)

    def tokens(self, sequences: int, each: int) -> Any:
        """Hidden vectors of `each` tokens of so many sequences."""
        return self._random(sequences, each, self.scaled.model.hidden)

    def forward(self, hidden: Any, cache: Any | None) -> Any:
        """One step: the hidden vectors through all layers, and the last of each sequence through the head.

        With a cache each sequence has one token, whose key and value take the cache's last place (decode); without one
        the tokens attend to each other, each to those before it (prefill).
        """
        torch, m = self.torch, self.scaled.model
        sequences, each, _ = hidden.shape
        functional = torch.nn.functional
        for number, layer in enumerate(self._layers):
            normed = functional.rms_norm(hidden, (m.hidden,))
            q, k, v = (
                part.view(sequences, each, -1, m.head_dim).transpose(1, 2)
                for part in functional.linear(normed, layer["qkv"]).split(
                    [m.heads * m.head_dim, m.kv_heads * m.head_dim, m.kv_heads * m.head_dim], dim=-1
                )
            )
            if cache is not None:
                keys, values = cache[number]
                keys[:, :, -1:], values[:, :, -1:] = k, v
                if number < self._sliding:
                    keys, values = keys[:, :, -m.sliding_window :], values[:, :, -m.sliding_window :]
                # the query heads of a group are one head's rows: keys are read once, not copied for each head
                grouped = q.reshape(sequences, m.kv_heads, m.heads // m.kv_heads, m.head_dim)
                seen = functional.scaled_dot_product_attention(grouped, keys, values)
                seen = seen.reshape(sequences, m.heads, 1, m.head_dim)
            else:
                seen = functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=m.heads != m.kv_heads
                )
            hidden = hidden + functional.linear(seen.transpose(1, 2).reshape(sequences, each, -1), layer["out"])
            hidden = hidden + self._mlp(functional.rms_norm(hidden, (m.hidden,)), layer)
        return self.head(hidden[:, -1])

    def head(self, hidden: Any) -> Any:
        """Hidden vectors of shape (sequences, width) through the output matrix."""
        return self.torch.nn.functional.linear(hidden, self._head)

    @property
    def _sliding(self) -> int:
        """Built layers with a window: the model's share, rounded."""
        m = self.scaled.model
        return round(self.scaled.layers * m.sliding_layers / m.layers)

    def _mlp(self, x: Any, layer: dict[str, Any]) -> Any:
        if not self.scaled.experts:
            return self._dense(x, layer["up"], layer["down"])
        torch, flat = self.torch, x.reshape(-1, x.shape[-1])
        weights, chosen = torch.nn.functional.linear(flat, layer["router"]).topk(self.scaled.model.experts_per_token)
        weights = weights.softmax(-1)
        result = torch.zeros_like(flat)
        for expert in range(self.scaled.experts):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            if len(rows):
                came = self._dense(flat[rows], layer["ups"][expert], layer["downs"][expert])
                result.index_add_(0, rows, came * weights[rows, place, None])
        if "up" in layer:
            result = result + self._dense(flat, layer["up"], layer["down"])
        return result.view_as(x)

    def _dense(self, x: Any, up: Any, down: Any) -> Any:
        functional = self.torch.nn.functional
        wide = functional.linear(x, up)
        if self.scaled.model.gated_mlp:
            gate, wide = wide.chunk(2, dim=-1)
            wide = functional.silu(gate) * wide
        else:
            wide = functional.gelu(wide)
        return functional.linear(wide, down)
