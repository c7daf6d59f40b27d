"""How long can one engine step take, from the model's numbers and the device's?

A step reads the weights once and each request's KV cache, and multiplies every token with the weights. Reading and
computing overlap, so the longer of the two decides (Williams, Waterman, Patterson 2009, "Roofline"):

    t = max(bytes / (bandwidth · its efficiency), FLOPs / (peak · its efficiency)) + communication + overhead

    bytes = weights that the step touches + KV tokens · bytes a token
    FLOPs = 2 · parameters that a token meets · tokens + attention, 2 · heads · (key + value size) a pair of tokens

With efficiencies of 1 and no overhead this is a floor that no engine beats; real ones reach 0.65 to 0.9 of a bandwidth
and 0.45 to 0.8 of a peak. The defaults, and how far they are from measurements, are in `roofline`'s notes.

What this leaves out: activations' traffic, kernels' shapes and launch gaps beyond `overhead_s`, layers that are
memory-bound while others compute, overlap of communication. The step's arguments say how many tokens there are, not
how they are shared out: prompt tokens are taken as one prompt from its start unless `prefill_pairs` says more, and a
request whose prompt is computed counts as one token more than it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

from servinglab.base.checks import check_choice, check_number
from servinglab.hardware import catalog
from servinglab.hardware.catalog import Accelerator, Model
from servinglab.step_time.affine import AffineStep, RoofStep, attended_pairs

# What matrices in this precision are multiplied in: weights of 4 bits, and int8, are widened first.
COMPUTE_DTYPE = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "int8": "bf16", "int4": "bf16", "mxfp4": "bf16"}


@dataclass(frozen=True)
class StepParts:
    """What one step does on each device, and how long each part takes.

    Attributes
    ----------
    weight_bytes, kv_bytes : float
        Read from memory.
    gemm_flops, attention_flops : float
        Computed.
    allreduce_bytes : float
        Sent by each device.
    memory_s, compute_s, communication_s, overhead_s : float
        Seconds, with the efficiencies; the step takes ``max(memory_s, compute_s) + communication_s + overhead_s``.
    """

    weight_bytes: float
    kv_bytes: float
    gemm_flops: float
    attention_flops: float
    allreduce_bytes: float
    memory_s: float
    compute_s: float
    communication_s: float
    overhead_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s) + self.communication_s + self.overhead_s

    @property
    def bound(self) -> str:
        """``"memory"`` or ``"compute"``: which of the two is longer."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


@dataclass(frozen=True, repr=False)
class Roofline:
    """A step time from model and hardware facts, callable as `AffineStep` is.

    Made by `roofline`, which explains the fields.
    """

    model: Model
    accelerator: Accelerator
    weight_dtype: str
    kv_dtype: str
    compute_dtype: str
    tensor_parallel: int
    bandwidth_efficiency: float
    compute_efficiency: float
    overhead_s: float
    interconnect_gb_s: float
    allreduce_latency_s: float

    def __repr__(self) -> str:
        rest = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self)[2:])
        return f"roofline({self.model.id!r}, {self.accelerator.id!r}, {rest})"

    def __call__(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: float | None = None
    ) -> float:
        """Seconds of one step.

        Parameters
        ----------
        requests : int
            Requests in the step, each of which gets a token, at least 0.
        prefill_tokens : int
            Prompt tokens computed in the step, at least 0.
        kv_tokens : int
            Tokens of context that the step's requests hold, the new ones included, at least 0.
        prefill_pairs : float, optional
            Pairs of tokens that the prompts attend (`attended_pairs`). Left out: those of one prompt of all the
            step's prompt tokens.
        """
        return self.parts(requests, prefill_tokens, kv_tokens, prefill_pairs).seconds

    def parts(
        self, requests: int, prefill_tokens: int = 0, kv_tokens: int = 0, prefill_pairs: float | None = None
    ) -> StepParts:
        """Bytes, FLOPs and seconds of one step; the arguments are those of a call.

        Examples
        --------
        >>> step = roofline("llama-3.1-8b", "h100-sxm")
        >>> step.parts(32, 0, 32 * 4096).bound, step.parts(1, 2048, 2048).bound
        ('memory', 'compute')
        """
        if not (requests >= 0 and prefill_tokens >= 0 and kv_tokens >= 0):
            raise ValueError(
                "requests, prefill_tokens and kv_tokens must be >= 0; "
                f"got {requests!r}, {prefill_tokens!r} and {kv_tokens!r}"
            )
        tokens = requests + prefill_tokens
        pairs = attended_pairs(prefill_tokens) if prefill_pairs is None else prefill_pairs
        if not pairs >= 0:
            raise ValueError(f"prefill_pairs must be >= 0; got {prefill_pairs!r}")
        m = self.model
        full, sliding = m.layers - m.sliding_layers, m.sliding_layers
        near = min(kv_tokens, m.sliding_window * requests)  # at least Σ min(context, window), and equal if alike

        weights = self._weight_bytes(tokens)
        kv = self._kv_bytes_per_layer * (full * kv_tokens + sliding * min(kv_tokens, near + prefill_tokens))
        gemm = self._gemm_flops_per_token * tokens
        head = self._head_flops * requests
        decode_pairs = full * kv_tokens + sliding * near
        prompt_pairs = full * pairs + sliding * min(pairs, m.sliding_window * prefill_tokens)
        attention = self._decode_flops_per_pair * decode_pairs + self._prefill_flops_per_pair * prompt_pairs

        sent = self._allreduce_bytes_per_token * tokens
        return StepParts(
            weight_bytes=weights,
            kv_bytes=kv,
            gemm_flops=gemm + head,
            attention_flops=attention,
            allreduce_bytes=sent,
            memory_s=(weights + kv) / self._bytes_per_s,
            compute_s=gemm / self._flops_per_s + (head + attention) / self._flops_16_per_s,
            communication_s=sent / (self.interconnect_gb_s * 1e9) + self._allreduces * self.allreduce_latency_s,
            overhead_s=self.overhead_s,
        )

    def affine(self, bound: str = "memory") -> AffineStep:
        """One side of the roof as an `AffineStep`, which the fast engine understands.

        The longer of the ``"memory"`` and ``"compute"`` sides is the roofline itself for a dense model without
        windows. Their ``"sum"`` is never below it and at most twice it. A mixture of experts is taken to read all its
        experts, and a window to be as long as the context.

        Parameters
        ----------
        bound : {"memory", "compute", "sum"}

        Examples
        --------
        >>> step = roofline("llama-3.1-8b", "h100-sxm")
        >>> side = step.affine("memory")
        >>> abs(side(32, 0, 32 * 4096) - step(32, 0, 32 * 4096)) < 1e-12
        True

        Half of the throughput's limit at 4,096 tokens of context is reached with t_fixed / r requests:

        >>> round(side.fixed_s / (side.per_kv_token_s * 4096))
        33
        """
        return replace(self._side(bound), roofline=self)

    def _side(self, bound: str) -> AffineStep:
        check_choice("bound", bound, ("memory", "compute", "sum"))
        sent_s = self._allreduce_bytes_per_token / (self.interconnect_gb_s * 1e9)
        fixed = self.overhead_s + self._allreduces * self.allreduce_latency_s
        request = prefill = sent_s
        kv = pair = 0.0
        layers = self.model.layers
        if bound != "compute":
            fixed += self._weight_bytes(math.inf) / self._bytes_per_s
            kv += self._kv_bytes_per_layer * layers / self._bytes_per_s
        if bound != "memory":
            token_s = self._gemm_flops_per_token / self._flops_per_s
            request += token_s + self._head_flops / self._flops_16_per_s
            prefill += token_s
            kv += self._decode_flops_per_pair * layers / self._flops_16_per_s
            pair = self._prefill_flops_per_pair * layers / self._flops_16_per_s
        return AffineStep(fixed, request, prefill, kv, pair)

    def sides(self) -> RoofStep:
        """Both sides of the roof, as the fast engine understands them; `affine` says what they leave out.

        Examples
        --------
        >>> step = roofline("llama-3.1-8b", "h100-sxm")
        >>> abs(step.sides()(32, 0, 32 * 4096) - step(32, 0, 32 * 4096)) < 1e-12
        True
        """
        return RoofStep(self._side("memory"), self._side("compute"), roofline=self)

    def ridge_requests(self, context_tokens: int = 0) -> float:
        """Requests from which a decode step takes longer to compute than to read; infinite where it never does.

        Parameters
        ----------
        context_tokens : int
            Tokens that each request holds, at least 0.

        Examples
        --------
        With efficiencies of 1 it's the device's FLOP per byte; context moves it away, for reading KV isn't shared:

        >>> ideal = roofline("llama-3.1-8b", "h100-sxm", bandwidth_efficiency=1, compute_efficiency=1)
        >>> ideal.ridge_requests(), ideal.ridge_requests(256), ideal.ridge_requests(4096)
        (296, 848, inf)
        """
        context = check_number("context_tokens", context_tokens, ge=0, integer=True)

        def computes(requests: int) -> bool:
            return self.parts(requests, 0, requests * context).bound == "compute"

        high = 1
        while not computes(high):
            high *= 2
            if high > 2**40:
                return math.inf
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if computes(middle) else (middle, high)
        return high

    def experts_read(self, tokens: float) -> float:
        """Distinct experts of one layer that this many tokens are expected to touch: ``E · (1 − (1 − k/E)^tokens)``.

        Each token picks k of E, evenly and independently; real routers are less even, which touches fewer.

        Examples
        --------
        >>> step = roofline("qwen3-30b-a3b", "h100-sxm")
        >>> [round(step.experts_read(tokens), 1) for tokens in (1, 8, 64)]
        [8.0, 51.6, 125.9]
        """
        m = self.model
        if not m.experts:
            return 0.0
        missed = 0.0 if math.isinf(tokens) else (1 - m.experts_per_token / m.experts) ** tokens
        return m.experts * (1 - missed)

    def _weight_bytes(self, tokens: float) -> float:
        """Bytes of weights a device that a step of this many tokens touches."""
        m = self.model
        return self._always_bytes + self._expert_bytes * m.moe_layers * self.experts_read(tokens)

    @cached_property
    def _always_bytes(self) -> float:
        small, linear, _ = self.model.weight_bits(self.weight_dtype)
        p = self.model.parameters
        head = p.head or p.input_embedding  # a table that isn't the head, too, is only looked up
        return (small * (head + p.other) + linear * p.linear) / 8 / self.tensor_parallel

    @cached_property
    def _expert_bytes(self) -> float:
        small, _, expert = self.model.weight_bits(self.weight_dtype)
        p = self.model.parameters
        return (small * p.expert_other + expert * p.expert) / 8 / self.tensor_parallel

    @cached_property
    def _kv_bytes_per_layer(self) -> float:
        return self.model.kv_bytes_per_token(self.kv_dtype, self.tensor_parallel) / self.model.layers

    @cached_property
    def _gemm_flops_per_token(self) -> float:
        p = self.model.parameters
        return 2 * (p.linear + p.active_experts * p.expert) / self.tensor_parallel

    @cached_property
    def _head_flops(self) -> float:
        p = self.model.parameters
        return 2 * (p.head or p.input_embedding) / self.tensor_parallel

    @cached_property
    def _decode_flops_per_pair(self) -> float:
        """Of one layer. MLA attends in the compressed space."""
        m = self.model
        sizes = 2 * m.kv_lora_rank + m.qk_rope_head_dim if m.is_mla else 2 * m.head_dim
        return 2 * m.heads * sizes / self.tensor_parallel

    @cached_property
    def _prefill_flops_per_pair(self) -> float:
        m = self.model
        return 2 * m.heads * (m.head_dim + (m.v_head_dim or m.head_dim)) / self.tensor_parallel

    @cached_property
    def _allreduces(self) -> int:
        """Two a layer: after attention and after the MLP."""
        return 2 * self.model.layers if self.tensor_parallel > 1 else 0

    @cached_property
    def _allreduce_bytes_per_token(self) -> float:
        """A ring sends 2·(n − 1)/n of a vector as wide as the model, in 16 bits."""
        ways = self.tensor_parallel
        return self._allreduces * 2 * (ways - 1) / ways * self.model.hidden * 2

    @cached_property
    def _bytes_per_s(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s * self.bandwidth_efficiency

    @cached_property
    def _flops_16_per_s(self) -> float:
        """Head and attention are computed in 16 bits."""
        return self.accelerator.flops("bf16") * self.compute_efficiency

    @cached_property
    def _flops_per_s(self) -> float:
        return self.accelerator.flops(self.compute_dtype) * self.compute_efficiency


def roofline(
    model: str | Model,
    accelerator: str | Accelerator,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str = "bf16",
    compute_dtype: str | None = None,
    tensor_parallel: int = 1,
    bandwidth_efficiency: float = 0.8,
    compute_efficiency: float = 0.6,
    overhead_s: float = 0.001,
    interconnect_gb_s: float | None = None,
    allreduce_latency_s: float = 0.0,
) -> Roofline:
    """A step time from what a model holds and what a device does.

    Parameters
    ----------
    model, accelerator : str or row
        Ids of the catalogue, or rows of your own.
    weight_dtype : str, optional
        ``"bf16"``, ``"fp16"``, ``"fp8"``, ``"int8"``, ``"int4"`` or ``"mxfp4"``; the publisher's if left out.
    kv_dtype : {"bf16", "fp16", "fp8", "fp32"}
        What keys and values are kept in. It needs no arithmetic of that kind.
    compute_dtype : {"bf16", "fp16", "fp8"}, optional
        What the matrices are multiplied in. Left out: FP8 weights in FP8, all others widened to 16 bits.
    tensor_parallel : int
        Devices that share each layer, at least 1.
    bandwidth_efficiency, compute_efficiency : float
        Share of the printed bandwidth and of the printed FLOP/s that is reached, > 0 and <= 1.
    overhead_s : float
        Seconds of every step that neither reads nor computes: scheduling, launches, sampling; at least 0.
    interconnect_gb_s : float
        10**9 bytes a second from one device to the next, one way; needed with ``tensor_parallel > 1``. Infinite leaves
        it out. NVLink of an H100 has 450, of an A100 300, PCIe 4.0 x16 about 25.
    allreduce_latency_s : float
        Seconds that each of the two all-reduces a layer takes however small it is, at least 0.

    Raises
    ------
    ValueError
        If an argument is out of range, an id is unknown, the model can't be shared so, or the device lacks the
        precision.

    Notes
    -----
    Defaults, held against public measurements in ``tests/test_roofline.py``. Decode steps of Llama-3.1-8B on an RTX
    4090 under vLLM 0.19.0 (LLMServingSim's logs) come out 1 to 16 % too long. Llama-3.1-70B in FP8 on 2, 4 and 8
    H100s under vLLM (aiconfigurator's runs) wants `allreduce_latency_s` near 34 µs, for all-reduces cost more than
    their bytes: then time per output token is off by 8 % on average, 19 % at most; fitted to two of the three, the
    third comes out within 5 to 8 % on average, 18 % at most. For prompts a compute efficiency of 0.6 to 0.7 fits two
    A100s and 0.46 to 0.5 two H100s in Splitwise's measurements of 2023; the best matrix multiplication published
    for an H100 reaches 0.80. Fit yours.

    Examples
    --------
    Reading a weight once serves 32 requests as well as one, yet at 4,096 tokens of context the gain isn't 32:

    >>> step = roofline("llama-3.1-8b", "h100-sxm", bandwidth_efficiency=1, compute_efficiency=1, overhead_s=0)
    >>> round(32 * step(1, 0, 4096) / step(32, 0, 32 * 4096), 1)
    15.5
    """
    row, device = catalog.model(model), catalog.accelerator(accelerator)
    dtype = row.weight_dtype if weight_dtype is None else weight_dtype
    check_choice("weight_dtype", dtype, tuple(COMPUTE_DTYPE))
    row.weight_bits(dtype)
    row.kv_bytes_per_token(kv_dtype, tensor_parallel)
    computing = COMPUTE_DTYPE[dtype] if compute_dtype is None else compute_dtype
    try:
        device.flops(computing)
    except ValueError as error:
        chosen = f"weight_dtype {dtype!r} of {row.id}: " if compute_dtype is None else ""
        raise ValueError(f"{chosen}{error}") from None
    ways = check_number("tensor_parallel", tensor_parallel, ge=1, integer=True)
    if interconnect_gb_s is None:
        if ways > 1:
            raise ValueError(
                "interconnect_gb_s must be given with tensor_parallel > 1 (math.inf leaves communication out)"
            )
        interconnect_gb_s = math.inf
    if interconnect_gb_s != math.inf:
        interconnect_gb_s = check_number("interconnect_gb_s", interconnect_gb_s, gt=0)
    return Roofline(
        model=row,
        accelerator=device,
        weight_dtype=dtype,
        kv_dtype=kv_dtype,
        compute_dtype=computing,
        tensor_parallel=ways,
        bandwidth_efficiency=check_number("bandwidth_efficiency", bandwidth_efficiency, gt=0, le=1),
        compute_efficiency=check_number("compute_efficiency", compute_efficiency, gt=0, le=1),
        overhead_s=check_number("overhead_s", overhead_s, ge=0),
        interconnect_gb_s=interconnect_gb_s,
        allreduce_latency_s=check_number("allreduce_latency_s", allreduce_latency_s, ge=0),
    )
