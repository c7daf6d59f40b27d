"""How many tokens fit? From a device's memory to KV blocks, and from blocks to requests.

The engine takes `gpu_memory_utilization` of each device's memory for *everything*; weights and what the engine needs
to work (activations, CUDA graphs, libraries) come off first, and the KV cache gets the rest, in whole blocks:

    blocks = ⌊(utilization · total − weights − other) / (block_size · KV bytes a token)⌋

Weights and bytes a token follow from the model. `other` doesn't: it is measured, and logs range from 1.2 to 7.5 GiB.
It is an input here; left out, the median of the logs stands in, and every answer can be had for the whole range.

What this leaves out: pools shared by several models, offloading to the host, LoRA adapters, CPU swap. One line of a
log shows one device, while the engine takes the fewest blocks of all: `num_blocks` takes all devices' figures.

Computed weights lie within 1 % of the logs, except gpt-oss-20b (12.82 against 13.47 GiB: its kernels pad experts of
2,880 to 2,944 or 3,072 columns), and models read with a vision tower, which the catalogue doesn't count. Engines also
keep tables of rotary angles there (0.03 GiB for a context of 131,072).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from servinglab.base.checks import check_number
from servinglab.hardware import catalog
from servinglab.hardware.catalog import GIB, Accelerator, Model


@dataclass(frozen=True)
class MeasuredOther:
    """What logs show beside weights and KV cache, in GiB a device.

    Attributes
    ----------
    low_gib, median_gib, high_gib : float
    logs : int
        How many logs that is.
    of : str
        Whose logs they are.
    """

    low_gib: float
    median_gib: float
    high_gib: float
    logs: int
    of: str

    def __str__(self) -> str:
        low, high = f"{self.low_gib:.2f}", f"{self.high_gib:.2f}"
        return f"{low} to {high} GiB, median {self.median_gib:.2f}: {self.logs} logs {self.of}"


@cache
def _logs() -> tuple[dict[str, Any], ...]:
    text = (resources.files("servinglab") / "data" / "memory.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["other"])


def measured_other(total_gib: float | None = None) -> MeasuredOther:
    """The range of 'other' memory in engine logs: of devices of about this size, else of all.

    Parameters
    ----------
    total_gib : float, optional
        Memory of the device, > 0. Logs count as near if their device has between 2/3 and 3/2 of it.

    Examples
    --------
    >>> print(measured_other(79.18))
    2.26 to 7.51 GiB, median 5.39: 7 logs of devices of 79 GiB
    >>> print(measured_other(23.52))
    1.15 to 2.42 GiB, median 1.78: 2 logs of devices of 24 GiB
    >>> print(measured_other(192))
    1.15 to 7.51 GiB, median 4.89: 9 logs of devices of 24 to 79 GiB (none near 192 GiB)
    """
    logs: Sequence[dict[str, Any]] = _logs()
    near = logs
    if total_gib is not None:
        total_gib = check_number("total_gib", total_gib, gt=0)
        near = [log for log in logs if 2 / 3 <= log["total_gib"] / total_gib <= 3 / 2]
    chosen = near or logs
    sizes = sorted({round(log["total_gib"]) for log in chosen})
    of = f"of devices of {sizes[0]} to {sizes[-1]} GiB" if len(sizes) > 1 else f"of devices of {sizes[0]} GiB"
    if not near:
        of += f" (none near {total_gib:g} GiB)"
    values = [log["other_gib"] for log in chosen]
    return MeasuredOther(min(values), median(values), max(values), len(values), of)


def num_blocks(
    model: str | Model,
    kv_gib: float | Sequence[float],
    *,
    block_size: int = 16,
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
) -> int:
    """Whole KV blocks in this much memory a device, as the engine's log counts them.

    Parameters
    ----------
    model : str or Model
        An id of the catalogue or a row.
    kv_gib : float or sequence of float
        "Available KV cache memory" of one device, or of each; the engine takes the fewest blocks.
    block_size : int
        Tokens a block.
    kv_dtype : {"bf16", "fp16", "fp8", "fp32"}
        What keys and values are kept in.
    tensor_parallel : int
        Devices that share the model.

    Raises
    ------
    ValueError
        If an argument is out of range or the model can't be shared so.

    Examples
    --------
    A log of vLLM 0.6 says 3.81 GiB and 1,952 blocks; 3.81 is rounded.

    >>> num_blocks("llama-3.1-8b", 3.805), num_blocks("llama-3.1-8b", 3.815)
    (1948, 1953)
    """
    row = catalog.model(model)
    size = check_number("block_size", block_size, ge=1, integer=True)
    a_block = size * row.kv_bytes_per_token(kv_dtype, tensor_parallel)
    devices = [kv_gib] if isinstance(kv_gib, (int, float)) else list(kv_gib)
    if not devices:
        raise ValueError("kv_gib must hold at least one device's figure; got none")
    return min(int(check_number("kv_gib", each, ge=0) * GIB // a_block) for each in devices)


@dataclass(frozen=True, repr=False)
class KVCache:
    """The KV cache of one replica: how its memory is split, and what fits. Made by `kv_cache`.

    Attributes
    ----------
    model, accelerator : Model, Accelerator
    total_gib : float
        Memory of a device.
    gpu_memory_utilization : float
        Share of it that the engine may use, for everything.
    weights_gib, other_gib : float
        What comes off first, a device.
    other_range : MeasuredOther
        What logs show for devices of this size. `other_is_measured` says whether their median stands in.
    other_is_measured : bool
        False where the caller gave `other_gib`.
    block_size : int
        Tokens a block.
    kv_dtype, weight_dtype : str
    bytes_per_token : int
        KV bytes a token on each device.
    tensor_parallel : int
        Devices of the replica; all GiB are a device's, tokens and requests are the replica's.
    """

    model: Model
    accelerator: Accelerator
    total_gib: float
    gpu_memory_utilization: float
    weights_gib: float
    other_gib: float
    other_range: MeasuredOther
    other_is_measured: bool
    block_size: int
    kv_dtype: str
    weight_dtype: str
    bytes_per_token: int
    tensor_parallel: int
    _inputs: dict[str, Any] = field(compare=False)

    @property
    def budget_gib(self) -> float:
        """What the engine may use: utilisation times total."""
        return self.gpu_memory_utilization * self.total_gib

    @property
    def kv_gib(self) -> float:
        """What is left for the KV cache; negative where weights and the rest exceed the budget."""
        return self.budget_gib - self.weights_gib - self.other_gib

    @property
    def num_blocks(self) -> int:
        """Blocks as the engine's log counts them, one null block included."""
        return int(max(0.0, self.kv_gib) * GIB // (self.block_size * self.bytes_per_token))

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: vLLM keeps one as the null block."""
        return max(0, self.num_blocks - 1)

    @property
    def tokens(self) -> int:
        """`num_blocks` times `block_size`: "GPU KV cache size" in the log."""
        return self.num_blocks * self.block_size

    @property
    def bytes(self) -> int:
        """Bytes of all blocks on each device."""
        return self.tokens * self.bytes_per_token

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one request of this many tokens holds.

        Parameters
        ----------
        tokens : int
            Prompt and answer so far, at least 0.
        """
        return -(-check_number("tokens", tokens, ge=0, integer=True) // self.block_size)

    def starts(self, max_model_len: int) -> bool:
        """Whether the engine starts: one request of `max_model_len` tokens must fit by itself.

        vLLM compares with all blocks, the null block included, so a request of exactly that length can still stall.
        """
        return 0 < self.blocks_of(check_number("max_model_len", max_model_len, ge=1, integer=True)) <= self.num_blocks

    def missing_gib(self, max_model_len: int) -> float:
        """GiB a device that are missing to start with this `max_model_len`; 0 if it starts."""
        if self.starts(max_model_len):
            return 0.0
        needed = self.blocks_of(max_model_len) * self.block_size * self.bytes_per_token
        return needed / GIB - self.kv_gib

    def max_concurrency(self, max_model_len: int) -> float:
        """ "Maximum concurrency" in vLLM's log: all blocks over the blocks of one request of this length."""
        return self.num_blocks / self.blocks_of(check_number("max_model_len", max_model_len, ge=1, integer=True))

    def max_requests(self, tokens: int, *, hybrid: bool = False) -> int:
        """Requests of this length, prompt and answer together, that fit at the same time.

        Parameters
        ----------
        tokens : int
            At least 1.
        hybrid : bool
            Whether the engine frees what sliding layers no longer look at. Such a layer then holds the window's blocks
            and one more, which it is filling.
        """
        tokens = check_number("tokens", tokens, ge=1, integer=True)
        needed = self.blocks_of(tokens) * self.model.layers
        if hybrid and self.model.sliding_layers:
            held = min(self.blocks_of(tokens), self.blocks_of(self.model.sliding_window) + 1)
            needed += self.model.sliding_layers * (held - self.blocks_of(tokens))
        return self.usable_blocks * self.model.layers // needed

    def change(self, **inputs: Any) -> KVCache:
        """The same question with other inputs of `kv_cache`.

        Examples
        --------
        What would an FP8 cache change?

        >>> cache = kv_cache("llama-3.1-8b", "h100-sxm")
        >>> cache.change(kv_dtype="fp8").max_requests(4096), cache.max_requests(4096)
        (203, 101)
        """
        known = kv_cache.__kwdefaults__ or {}
        unknown = [name for name in inputs if name not in known and name not in ("model", "accelerator")]
        if unknown:
            raise ValueError(f"change takes the inputs of kv_cache; got {unknown[0]!r}")
        return kv_cache(**{**self._inputs, **inputs})

    def over_the_range(self) -> tuple[KVCache, KVCache]:
        """The caches with the most and the least 'other' memory that logs show: the worst and the best case.

        Examples
        --------
        >>> worst, best = kv_cache("llama-3.1-8b", "h100-sxm").over_the_range()
        >>> worst.max_requests(4096), best.max_requests(4096)
        (97, 108)
        """
        return self.change(other_gib=self.other_range.high_gib), self.change(other_gib=self.other_range.low_gib)

    def __repr__(self) -> str:
        given = {name: each for name, each in self._inputs.items() if name not in ("model", "accelerator")}
        rest = ", ".join(f"{name}={each!r}" for name, each in given.items() if each is not None)
        return f"kv_cache({self.model.id!r}, {self.accelerator.id!r}, {rest})"

    def __str__(self) -> str:
        where = f"{self.model.id}, {self.weight_dtype} weights, {self.kv_dtype} KV"
        on = f"{self.tensor_parallel} × {self.accelerator.id}" if self.tensor_parallel > 1 else self.accelerator.id
        source = f"median of logs: {self.other_range}" if self.other_is_measured else f"given; logs: {self.other_range}"
        lines = [
            f"{where} on {on}",
            f"total         {self.total_gib:8.2f} GiB a device",
            f"budget        {self.budget_gib:8.2f} GiB = {self.gpu_memory_utilization:g} of it, for everything",
            f"- weights     {self.weights_gib:8.2f} GiB",
            f"- other       {self.other_gib:8.2f} GiB ({source})",
            f"= KV cache    {self.kv_gib:8.2f} GiB",
            f"blocks        {self.num_blocks:8,} of {self.block_size} tokens",
            f"tokens        {self.tokens:8,}",
        ]
        return "\n".join(lines)


def kv_cache(
    model: str | Model,
    accelerator: str | Accelerator,
    *,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    tensor_parallel: int = 1,
    other_gib: float | None = None,
    weights_gib: float | None = None,
    total_gib: float | None = None,
) -> KVCache:
    """The KV cache that a model has on an accelerator.

    Parameters
    ----------
    model, accelerator : str or row
        Ids of the catalogue, or rows of your own.
    gpu_memory_utilization : float
        Share of each device's memory that the engine may use for everything, > 0 and <= 1. vLLM's default was 0.9
        and is 0.92 since 0.32.
    block_size : int
        Tokens a block, at least 1.
    kv_dtype : {"bf16", "fp16", "fp8", "fp32"}
        What keys and values are kept in.
    weight_dtype : str, optional
        A key of `catalog.WEIGHT_BITS`; the publisher's precision if left out.
    tensor_parallel : int
        Devices that share the model, at least 1. Weights are split evenly; key-value heads are copied where there are
        more devices than heads, and an MLA cache on every device.
    other_gib : float, optional
        Activations, graphs and libraries, a device, >= 0. Take it from your engine's log. Left out, it's the median
        of the logs in `measured_other`.
    weights_gib : float, optional
        Weights a device from a log, where the engine pads or converts them; computed if left out.
    total_gib : float, optional
        Memory that software sees; the catalogue's if left out.

    Returns
    -------
    KVCache
        Also where nothing is left for it: then it has no blocks and `starts` is False.

    Raises
    ------
    ValueError
        If an argument is out of range, an id is unknown, or the model can't be shared so.

    Notes
    -----
    Up to vLLM 0.11 CUDA graphs came on top of the utilisation's share; they aren't in `other_gib` then.

    Examples
    --------
    >>> print(kv_cache("llama-3.1-8b", "rtx-4090", other_gib=1.15))
    llama-3.1-8b, bf16 weights, bf16 KV on rtx-4090
    total            23.52 GiB a device
    budget           21.17 GiB = 0.9 of it, for everything
    - weights        14.96 GiB
    - other           1.15 GiB (given; logs: 1.15 to 2.42 GiB, median 1.78: 2 logs of devices of 24 GiB)
    = KV cache        5.06 GiB
    blocks           2,590 of 16 tokens
    tokens          41,440

    The real engine had 2,588 blocks; does it start with the model's whole context?

    >>> kv_cache("llama-3.1-8b", "rtx-4090", other_gib=1.15).starts(131_072)
    False
    """
    inputs = dict(locals())
    row, device = catalog.model(model), catalog.accelerator(accelerator)
    utilization = check_number("gpu_memory_utilization", gpu_memory_utilization, gt=0, le=1)
    ways = check_number("tensor_parallel", tensor_parallel, ge=1, integer=True)
    size = check_number("block_size", block_size, ge=1, integer=True)
    total = device.memory_gib if total_gib is None else check_number("total_gib", total_gib, gt=0)
    if weights_gib is None:
        weights_gib = row.weight_bytes(weight_dtype) / GIB / ways
    weights = check_number("weights_gib", weights_gib, ge=0)
    measured = measured_other(total)
    other = measured.median_gib if other_gib is None else check_number("other_gib", other_gib, ge=0)
    return KVCache(
        model=row,
        accelerator=device,
        total_gib=total,
        gpu_memory_utilization=utilization,
        weights_gib=weights,
        other_gib=other,
        other_range=measured,
        other_is_measured=other_gib is None,
        block_size=size,
        kv_dtype=kv_dtype,
        weight_dtype=row.weight_dtype if weight_dtype is None else weight_dtype,
        bytes_per_token=row.kv_bytes_per_token(kv_dtype, ways),
        tensor_parallel=ways,
        _inputs=inputs,
    )
