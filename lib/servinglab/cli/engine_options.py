"""The command line's options of an engine: scheduler, step time, memory. From words to the library's objects.

Options that don't fit together are refused in one line that names both. A default that is used is put into `defaults`,
under the option's name, so that the output can say it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from servinglab.base.checks import check_number
from servinglab.hardware import catalog
from servinglab.hardware.memory import KVCache, kv_cache
from servinglab.hardware.roofline import Roofline, roofline
from servinglab.measure.step_time_files import read_step_time
from servinglab.scheduling.blocks import Blocks
from servinglab.scheduling.schedulers import (
    ContinuousBatching,
    DynamicBatching,
    LengthBucketedBatching,
    Scheduler,
    StaticBatching,
)
from servinglab.step_time.affine import AffineStep, ClosedForm

STEP_TIME = {
    "fixed_s": 6e-3,
    "per_request_s": 32e-6,
    "per_prefill_token_s": 32e-6,
    "per_kv_token_s": 49e-9,
    "per_prefill_pair_s": 1.06e-9,
}
"""The step time where none is given; `STEP_TIME_SOURCE` says where it comes from."""

STEP_TIME_SOURCE = (
    "an 8B model in 16 bits on one H100-class card: each step reads 16.06 GB of weights (fixed) and 131,072 B of "
    "keys and values per token held, at 80 % of 3.35 TB/s; each token costs 16.06 GFLOP, and each "
    "pair of a prompt's tokens 0.524 MFLOP, at 50 % of 989 TFLOP/s"
)
MAX_NUM_SEQS = 256
UNLIMITED = "unlimited"

_SWITCHES = {  # setting of ContinuousBatching: its option, what the option makes of it, what the option says
    "chunked_prefill": ("--no-chunked-prefill", False, "a prompt is computed whole, in one step"),
    "adaptive_threshold": ("--adaptive-threshold", True, "the threshold grows to an even share of the budget"),
    "full_prompt_gate": ("--no-full-prompt-gate", False, "admit where blocks for the first chunk are free"),
    "reserve_whole_answer": ("--reserve-whole-answer", True, "take blocks for prompt and answer at admission"),
    "prefill_first": ("--prefill-first", True, "prompts pause running answers, as in vLLM's first engine"),
    "prefix_caching": ("--prefix-caching", True, "requests whose prompts begin alike share blocks"),
    "async_scheduling": ("--async-scheduling", True, "schedule a step before the one before it is back"),
}
_NUMBERS = (
    "max_num_batched_tokens",
    "max_num_active_seqs",
    "max_model_len",
    "long_prefill_token_threshold",
    "watermark",
)
TOKEN_SETTINGS = (*_NUMBERS, "policy", *_SWITCHES)  # with any of them tokens are counted
_OF_A_POOL = ("watermark", "full_prompt_gate", "reserve_whole_answer")
_NEVER_LESS = (  # the first of each pair can't be less than the second
    ("max_num_batched_tokens", "max_num_seqs"),
    ("max_num_seqs", "max_num_active_seqs"),
    ("max_model_len", "long_prefill_token_threshold"),
)
_NEVER_BOTH = (("prefill_first", "async_scheduling"), ("reserve_whole_answer", "prefix_caching"))

_POOL = ("block_size", "gpu_memory_utilization", "other_gib")
_ROOF = (
    "weight_dtype",
    "kv_dtype",
    "compute_dtype",
    "tensor_parallel",
    "bandwidth_efficiency",
    "compute_efficiency",
    "overhead_s",
    "interconnect_gb_s",
    "allreduce_latency_s",
)


@dataclass(frozen=True)
class Engine:
    """What the options ask for, ready for `simulate`.

    Attributes
    ----------
    scheduler, step_time, pots, kv
        As `simulate` takes them.
    roof : Roofline or None
        Where the step time comes from a model and an accelerator.
    counts : str or None
        The option by which tokens or blocks are counted, if any.
    """

    scheduler: Scheduler
    step_time: ClosedForm
    pots: int | None
    kv: Blocks | KVCache | None
    roof: Roofline | None
    counts: str | None

    def lines(self) -> list[str]:
        """What is run, for people."""
        return [
            f"scheduler  {_brief(self.scheduler)}",
            *self._step_lines(),
            *self._kv_lines(),
            f"pots       {self.pots or 'endless'}",
        ]

    def _step_lines(self) -> list[str]:
        if self.roof is None:
            return [f"step time  {self.step_time}"]
        roof = self.roof
        where = f"{roof.tensor_parallel} × {roof.accelerator.id}" if roof.tensor_parallel > 1 else roof.accelerator.id
        lines = [
            f"step time  roofline of {roof.model.id} on {where}, the longer of",
            f"           reading    {_in_words(roof.affine('memory'))}",
            f"           computing  {_in_words(roof.affine('compute'))}",
        ]
        left_out = {
            "each step is taken to read all experts": roof.model.experts,
            "sliding windows are taken to be as long as the context": roof.model.sliding_layers,
        }
        return lines + [f"           ({what})" for what, applies in left_out.items() if applies]

    def _kv_lines(self) -> list[str]:
        if self.kv is None:
            return ["KV cache   not limited"]
        blocks = f"KV cache   {self.kv.usable_blocks:,} blocks of {self.kv.block_size} tokens"
        if isinstance(self.kv, Blocks):
            return [blocks]
        kv = self.kv
        source = "given" if not kv.other_is_measured else "the median of logs"
        return [
            f"{blocks}: {kv.kv_gib:.2f} GiB a device",
            f"           {kv.gpu_memory_utilization:g} of {kv.total_gib:.2f} GiB, less {kv.weights_gib:.2f} of weights "
            f"and {kv.other_gib:.2f} of other ({source};",
            f"           measured: {kv.other_range})",
        ]


# The options


def add_scheduler_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduler")
    group.add_argument("--scheduler", choices=("static", "dynamic", "bucketed", "continuous"))
    group.add_argument("--batch-size", type=int, metavar="B", help="all but continuous: requests in a full batch")
    group.add_argument("--window-s", type=float, metavar="S", help="dynamic, bucketed: the oldest's longest wait")
    group.add_argument(
        "--edges", type=_whole_numbers, metavar="N,N", help="bucketed: the longest prompt of each line but the last"
    )
    group.add_argument(
        "--last", choices=("full_price", "partial", "never"), help="static: the last batch if it isn't full"
    )
    group = parser.add_argument_group("continuous batching")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="the most requests in a step")
    group.add_argument(
        "--max-num-batched-tokens", type=_limit, metavar="N", help=f"the most tokens computed in a step, or {UNLIMITED}"
    )
    group.add_argument("--max-num-active-seqs", type=int, metavar="N", help="a tighter cap on running requests")
    group.add_argument("--max-model-len", type=int, metavar="N", help="reject requests of more tokens than this")
    group.add_argument(
        "--long-prefill-token-threshold", type=int, metavar="N", help="the most tokens of one prompt in a step"
    )
    group.add_argument("--policy", choices=("fcfs", "priority"), help="who goes first, and who is preempted")
    group.add_argument("--watermark", type=float, metavar="X", help="share of the blocks that admission leaves free")
    for name, (option, value, text) in _SWITCHES.items():
        group.add_argument(option, dest=name, action="store_const", const=value, help=text)


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("step time, by its parts")
    group.add_argument("--fixed-s", type=float, metavar="S", help="seconds of every step")
    group.add_argument("--per-request-s", type=float, metavar="S", help="plus this for each request in it")
    group.add_argument("--per-prefill-token-s", type=float, metavar="S", help="and for each prompt token computed")
    group.add_argument("--per-kv-token-s", type=float, metavar="S", help="and for each token held and read")
    group.add_argument(
        "--per-prefill-pair-s", type=float, metavar="S", help="and for each pair of tokens that its prompts attend"
    )
    group = parser.add_argument_group("step time, measured")
    group.add_argument(
        "--step-time",
        type=Path,
        metavar="FILE",
        help="fitted by bench torch (its file), bench vllm or bench openvino (the folder)",
    )
    group = parser.add_argument_group("step time, from a model and an accelerator")
    group.add_argument("--model", metavar="ID", help="an id of the catalogue, or a Hugging Face config.json")
    group.add_argument("--accelerator", metavar="ID", help="an id of the catalogue")
    add_catalog_option(group)
    add_precision_options(group)
    group.add_argument("--compute-dtype", metavar="TYPE", help="what matrices are multiplied in")
    group.add_argument("--bandwidth-efficiency", type=float, metavar="X", help="share of the bandwidth reached")
    group.add_argument("--compute-efficiency", type=float, metavar="X", help="share of the FLOP/s reached")
    group.add_argument(
        "--overhead-s", type=float, metavar="S", help="seconds of every step that do neither; also beside --step-time"
    )
    group.add_argument("--interconnect-gb-s", type=float, metavar="GB/S", help="device to device, one way; inf: free")
    group.add_argument("--allreduce-latency-s", type=float, metavar="S", help="of each all-reduce, two a layer")
    group = parser.add_argument_group("memory")
    group.add_argument(
        "--kv-blocks", type=_limit, metavar="N", help=f"blocks of KV cache that requests can use, or {UNLIMITED}"
    )
    add_pool_options(group)
    group = parser.add_argument_group("machines")
    group.add_argument("--pots", type=_pots, metavar="N", help="machines that share the line, or endless")


def add_catalog_option(group: Any) -> None:
    group.add_argument("--catalog", type=Path, metavar="FILE", help="a TOML file with rows of your own")


def add_precision_options(group: Any) -> None:
    group.add_argument("--weight-dtype", metavar="TYPE", help="bf16, fp8, int8, int4, mxfp4; else the publisher's")
    group.add_argument("--kv-dtype", metavar="TYPE", help="bf16, fp8, fp32")
    group.add_argument("--tensor-parallel", type=int, metavar="N", help="devices that share the model")


def add_pool_options(group: Any) -> None:
    group.add_argument("--block-size", type=int, metavar="N", help="tokens in a block")
    group.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X", help="share of a device's memory that the engine may use"
    )
    group.add_argument("--other-gib", type=float, metavar="GIB", help="of it, beside weights and KV cache, a device")


def _limit(text: str) -> int | str:
    try:
        return text if text == UNLIMITED else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number or {UNLIMITED}, not {text!r}") from None


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers with commas between, not {text!r}") from None


def _pots(text: str) -> int | str:
    try:
        return text if text == "endless" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number or endless, not {text!r}") from None


# Words to objects


def option(name: str) -> str:
    """How a setting is spelled on the command line."""
    return _SWITCHES[name][0] if name in _SWITCHES else "--" + name.replace("_", "-")


def refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ValueError(f"{option(name)} {why}")


def require(args: argparse.Namespace, names: Sequence[str], what: str) -> list[Any]:
    for name in names:
        if getattr(args, name) is None:
            raise ValueError(f"{what} needs {option(name)}")
    return [getattr(args, name) for name in names]


def find_rows(args: argparse.Namespace) -> tuple[catalog.Model, catalog.Accelerator]:
    """The rows that --model and --accelerator name, in the catalogue, a file of one's own, or a config.json."""
    rows = catalog.builtin() if args.catalog is None else catalog.load(args.catalog)
    path = Path(args.model)
    from_file = path.suffix == ".json" or (path / "config.json").is_file()
    return (catalog.model_from_config(path) if from_file else rows.model(args.model)), rows.accelerator(
        args.accelerator
    )


def given_or_default(
    args: argparse.Namespace, names: Sequence[str], of: Mapping[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    """Those of the options that are given; the defaults of the others, unless they're None, are noted."""
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    defaults.update({name: of[name] for name in names if name not in given and of[name] is not None})
    return given


def engine(args: argparse.Namespace, defaults: dict[str, Any]) -> Engine:
    """Check what the options say of each other, and make what they ask for."""
    pots = args.pots
    if pots is None:
        pots = defaults["pots"] = 1
    if pots != "endless":
        check_number("pots", pots, ge=1, integer=True)
    scheduler = _scheduler(args, defaults)
    continuous = isinstance(scheduler, ContinuousBatching)
    counts = None
    if isinstance(scheduler, ContinuousBatching):
        usual = ContinuousBatching(scheduler.max_num_seqs)
        counts = next((option(n) for n in TOKEN_SETTINGS if getattr(scheduler, n) != getattr(usual, n)), None)
    if isinstance(args.kv_blocks, int):
        counts = counts or option("kv_blocks")
    if pots != 1:
        if counts:
            raise ValueError(f"{counts} doesn't go with --pots {pots}: tokens and blocks are counted in one pot")
        refuse(args, _POOL, f"doesn't go with --pots {pots}: tokens and blocks are counted in one pot")
    if not continuous:
        refuse(args, ["kv_blocks", *_POOL], f"doesn't go with --scheduler {args.scheduler}")
    step_time, roof = _step_time(args, defaults)
    kv = _kv(args, defaults, roof, pooled=continuous and pots == 1)
    if kv is not None:
        counts = counts or option("model")
    else:
        for name in _OF_A_POOL:
            refuse(args, [name], "needs a pool of KV blocks: give --kv-blocks, or --model and --accelerator")
    if isinstance(scheduler, ContinuousBatching):
        _check_longest(scheduler, kv, roof)
    return Engine(scheduler, step_time, None if pots == "endless" else pots, kv, roof, counts)


def _sets(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, name) not in (None, UNLIMITED)


def _scheduler(args: argparse.Namespace, defaults: dict[str, Any]) -> Scheduler:
    kind = args.scheduler
    if kind is None:
        kind = defaults["scheduler"] = "continuous"
    own = {
        "static": ("batch_size", "last"),
        "dynamic": ("batch_size", "window_s"),
        "bucketed": ("batch_size", "window_s", "edges"),
        "continuous": ("max_num_seqs", *TOKEN_SETTINGS),
    }
    for name in ("batch_size", "window_s", "edges", "last", "max_num_seqs", *TOKEN_SETTINGS):
        if name not in own[kind]:
            refuse(args, [name], f"doesn't go with --scheduler {kind}")
    if kind == "continuous":
        return _continuous(args, defaults)
    if kind == "dynamic":
        return DynamicBatching(*require(args, ["batch_size", "window_s"], "--scheduler dynamic"))
    if kind == "bucketed":
        batch_size, window_s, edges = require(args, ["batch_size", "window_s", "edges"], "--scheduler bucketed")
        return LengthBucketedBatching(batch_size, window_s, edges=edges)
    (batch_size,) = require(args, ["batch_size"], "--scheduler static")
    if args.last is None:
        defaults["last"] = StaticBatching.last
        return StaticBatching(batch_size)
    return StaticBatching(batch_size, last=args.last)


def _continuous(args: argparse.Namespace, defaults: dict[str, Any]) -> ContinuousBatching:
    settings = {name: getattr(args, name) for name in ("max_num_seqs", *TOKEN_SETTINGS) if _sets(args, name)}
    if "max_num_seqs" not in settings:
        settings["max_num_seqs"] = defaults["max_num_seqs"] = MAX_NUM_SEQS
    if args.max_num_batched_tokens is None:
        defaults["max_num_batched_tokens"] = UNLIMITED
    never_less = list(_NEVER_LESS)
    if "chunked_prefill" in settings:
        if "max_num_batched_tokens" not in settings:
            raise ValueError(f"{option('chunked_prefill')} needs --max-num-batched-tokens: without it no prompt is cut")
        never_less.append(("max_num_batched_tokens", "max_model_len"))
    for larger, smaller in never_less:
        if settings.get(larger, math.inf) < settings.get(smaller, -math.inf):
            less, more = (
                f"{option(name)} {settings[name]}{' (the default)' if name in defaults else ''}"
                for name in (larger, smaller)
            )
            why = f", as {option('chunked_prefill')} doesn't allow" if smaller == "max_model_len" else ""
            raise ValueError(f"{less} is less than {more}{why}")
    for a, b in _NEVER_BOTH:
        if a in settings and b in settings:
            raise ValueError(f"{option(a)} doesn't go with {option(b)}")
    if "adaptive_threshold" in settings and not settings.get("long_prefill_token_threshold"):
        raise ValueError("--adaptive-threshold needs --long-prefill-token-threshold")
    return ContinuousBatching(**settings)


def _step_time(args: argparse.Namespace, defaults: dict[str, Any]) -> tuple[ClosedForm, Roofline | None]:
    given = {name: getattr(args, name) for name in STEP_TIME}
    if args.model is not None:
        require(args, ["accelerator"], "--model")
        refuse(args, ["step_time", *STEP_TIME], "doesn't go with --model: the model and the accelerator decide")
        if (args.tensor_parallel or 1) > 1 and args.interconnect_gb_s is None:
            raise ValueError(
                f"--tensor-parallel {args.tensor_parallel} needs --interconnect-gb-s (NVLink of an H100: 450; inf "
                "leaves communication out)"
            )
        model, accelerator = find_rows(args)
        known = {**(roofline.__kwdefaults__ or {}), "weight_dtype": model.weight_dtype}
        if (args.tensor_parallel or 1) == 1:
            refuse(args, ["interconnect_gb_s", "allreduce_latency_s"], "needs --tensor-parallel of at least 2")
            known["allreduce_latency_s"] = None
        roof = roofline(model, accelerator, **given_or_default(args, _ROOF, known, defaults))
        return roof.sides(), roof
    if args.step_time is not None:
        refuse(args, ["accelerator", "catalog", *(name for name in _ROOF if name != "overhead_s")], "needs --model")
        refuse(args, list(STEP_TIME), "doesn't go with --step-time: the measurement decides")
        step = read_step_time(args.step_time)
        overhead_s = check_number("overhead_s", args.overhead_s or 0.0, ge=0)
        return replace(step, fixed_s=step.fixed_s + overhead_s), None
    refuse(args, ["accelerator", "catalog", *_ROOF], "needs --model")
    if all(value is None for value in given.values()):
        defaults.update(STEP_TIME)
        return AffineStep(**STEP_TIME), None
    return AffineStep(**{name: value or 0.0 for name, value in given.items()}), None


def _kv(
    args: argparse.Namespace, defaults: dict[str, Any], roof: Roofline | None, pooled: bool
) -> Blocks | KVCache | None:
    if args.kv_blocks is not None:
        refuse(args, _POOL[1:], "doesn't go with --kv-blocks")
        if args.kv_blocks == UNLIMITED:
            refuse(args, ["block_size"], f"doesn't go with --kv-blocks {UNLIMITED}")
            return None
        check_number("kv_blocks", args.kv_blocks, ge=1, integer=True)
        if args.block_size is None:
            defaults["block_size"] = Blocks.block_size
            return Blocks(args.kv_blocks)
        return Blocks(args.kv_blocks, args.block_size)
    if roof is None or not pooled:
        refuse(args, ["block_size"], "needs --kv-blocks, or --model and --accelerator")
        refuse(args, _POOL, "needs --model and --accelerator")
        if pooled:
            defaults["kv_blocks"] = UNLIMITED
        return None
    known = kv_cache.__kwdefaults__ or {}
    settings = {name: getattr(roof, name) for name in ("weight_dtype", "kv_dtype", "tensor_parallel")}
    cache = kv_cache(roof.model, roof.accelerator, **settings, **given_or_default(args, _POOL, known, defaults))
    if args.other_gib is None:
        defaults["other_gib"] = cache.other_gib
    if cache.usable_blocks < 1:
        raise ValueError(
            f"--model {roof.model.id} doesn't fit --accelerator {roof.accelerator.id}: of {cache.budget_gib:.2f} GiB, "
            f"weights take {cache.weights_gib:.2f} and the rest {cache.other_gib:.2f} "
            f"(--kv-blocks {UNLIMITED} simulates it all the same)"
        )
    return cache


def _check_longest(scheduler: ContinuousBatching, kv: Blocks | KVCache | None, roof: Roofline | None) -> None:
    """One request of --max-model-len must fit the pool, as the engine itself demands, and the model."""
    longest = scheduler.max_model_len
    if longest is None:
        return
    if roof is not None and longest > roof.model.max_context:
        raise ValueError(
            f"--max-model-len {longest} is more than the {roof.model.max_context} tokens that --model {roof.model.id} "
            "was made for"
        )
    if kv is not None and -(-longest // kv.block_size) > kv.usable_blocks:
        source = "--kv-blocks" if isinstance(kv, Blocks) else "--gpu-memory-utilization"
        raise ValueError(
            f"--max-model-len {longest} needs {-(-longest // kv.block_size)} blocks of KV cache; {source} gives "
            f"{kv.usable_blocks}"
        )


def _in_words(side: AffineStep) -> str:
    parts = [f"{1e3 * side.fixed_s:.4g} ms"]
    parts += [
        f"{1e6 * seconds:.4g} µs a {what}"
        for seconds, what in (
            (side.per_request_s, "request"),
            (side.per_prefill_token_s, "prompt token"),
            (side.per_kv_token_s, "token held"),
            (side.per_prefill_pair_s, "pair of a prompt's tokens"),
        )
        if seconds
    ]
    return " + ".join(parts)


def _brief(scheduler: Scheduler) -> str:
    """The scheduler with the settings that aren't its defaults."""
    if not isinstance(scheduler, ContinuousBatching):
        return str(scheduler)
    said = [
        f"{each.name}={getattr(scheduler, each.name)!r}"
        for each in fields(scheduler)
        if each.default is MISSING or getattr(scheduler, each.name) != each.default
    ]
    return f"ContinuousBatching({', '.join(said)})"
