"""`servinglab memory`: how much KV cache does a model have on an accelerator, and what fits into it?"""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from servinglab.base.files import check_files, write_json
from servinglab.base.text import aligned
from servinglab.cli.engine_options import (
    add_catalog_option,
    add_pool_options,
    add_precision_options,
    find_rows,
    given_or_default,
    option,
)
from servinglab.hardware.memory import KVCache, kv_cache

_TOKENS = (1024, 4096, 16384)
_INPUTS = (
    "gpu_memory_utilization",
    "block_size",
    "kv_dtype",
    "weight_dtype",
    "tensor_parallel",
    "other_gib",
    "weights_gib",
    "total_gib",
)
_HELP = (
    "Split an accelerator's memory as a serving engine does, and say what fits: blocks and tokens of KV cache, "
    "requests of given lengths at the same time, whether the engine starts, and what another precision of the cache "
    "would change.",
    "What the engine needs beside weights and KV cache isn't computed but measured: take --other-gib from your "
    "engine's log. Without it the median of published logs is taken, and their range is shown beside it.",
    "MODEL is an id of the catalogue or a Hugging Face config.json; an unknown id lists the nearest. Defaults that are "
    "used are named in the output.",
)
_EXAMPLES = """\
examples:
  servinglab memory llama-3.1-8b rtx-4090
  servinglab memory llama-3.1-70b h100-sxm --tensor-parallel 4 --tokens 2000 32000 --max-model-len 65536
  servinglab memory qwen3-30b-a3b a100-80gb-sxm --other-gib 4.2 --json -
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "memory",
        help="how many tokens and requests fit on an accelerator",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="servinglab memory MODEL ACCELERATOR [options]",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_memory)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("accelerator", metavar="ACCELERATOR")
    group = parser.add_argument_group("engine")
    add_pool_options(group)
    add_precision_options(group)
    group.add_argument("--weights-gib", type=float, metavar="GIB", help="weights a device, from a log")
    group.add_argument("--total-gib", type=float, metavar="GIB", help="memory of a device that software sees")
    add_catalog_option(group)
    group = parser.add_argument_group("questions")
    group.add_argument("--tokens", type=int, nargs="+", metavar="N", help="lengths of requests, prompt and answer")
    group.add_argument(
        "--max-model-len", type=int, metavar="N", help="does it start with this? The model's own if not given"
    )
    group.add_argument(
        "--hybrid", action="store_const", const=True, help="free what sliding layers no longer look at, when counting"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write the answers; - is stdout, and nothing else is printed")


def _memory(args: argparse.Namespace) -> int:
    check_files({"--json": args.json}, {})
    defaults: dict[str, Any] = {}
    model, accelerator = find_rows(args)
    known = {**(kv_cache.__kwdefaults__ or {}), "weight_dtype": model.weight_dtype}
    cache = kv_cache(model, accelerator, **given_or_default(args, _INPUTS, known, defaults))
    if args.other_gib is None:
        defaults["other_gib"] = cache.other_gib
    if args.hybrid and not model.sliding_layers:
        raise ValueError(f"--hybrid is for models with sliding windows; {model.id} has none")
    lengths = args.tokens
    if lengths is None:
        lengths = [n for n in _TOKENS if n <= model.max_context]
        defaults["tokens"] = " ".join(map(str, lengths))
    longest = args.max_model_len
    if longest is None:
        longest = defaults["max_model_len"] = model.max_context
    answers = {name: _answers(case, lengths, longest, bool(args.hybrid)) for name, case in _cases(cache).items()}
    if args.json:
        measured = cache.other_range
        report = {
            "model": model.id,
            "accelerator": accelerator.id,
            "tensor_parallel": cache.tensor_parallel,
            "block_size": cache.block_size,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "total_gib": cache.total_gib,
            "budget_gib": cache.budget_gib,
            "weights_gib": cache.weights_gib,
            "measured_other_gib": {
                "low": measured.low_gib, "median": measured.median_gib, "high": measured.high_gib,
                "logs": measured.logs, "of": measured.of,
            },
            "max_model_len": longest,
            "defaults_used": defaults,
            "cases": answers,
        }  # fmt: skip
        write_json(args.json, report)
    if args.json != "-":
        print(_text(cache, answers, lengths, longest, defaults))
    return 0


def _cases(cache: KVCache) -> dict[str, KVCache]:
    """The case that is asked about, and those beside it."""
    cases = {"as asked": cache}
    if cache.other_is_measured:
        most, least = cache.over_the_range()
        cases |= {f"other {most.other_gib:.2f} GiB": most, f"other {least.other_gib:.2f} GiB": least}
    another = "bf16" if cache.kv_dtype == "fp8" else "fp8"
    return cases | {f"{another} KV": cache.change(kv_dtype=another)}


def _answers(cache: KVCache, lengths: list[int], longest: int, hybrid: bool) -> dict[str, Any]:
    return {
        "kv_dtype": cache.kv_dtype,
        "other_gib": cache.other_gib,
        "bytes_per_token": cache.bytes_per_token,
        "kv_gib": cache.kv_gib,
        "num_blocks": cache.num_blocks,
        "tokens": cache.tokens,
        "requests": {str(tokens): cache.max_requests(tokens, hybrid=hybrid) for tokens in lengths},
        "starts": cache.starts(longest),
        "missing_gib": cache.missing_gib(longest),
    }


def _text(
    cache: KVCache, answers: dict[str, dict[str, Any]], lengths: list[int], longest: int, defaults: dict[str, Any]
) -> str:
    def row(title: str, show: Any) -> tuple[str, ...]:
        return title, *(show(each) for each in answers.values())

    rows = [
        ("what fits", *answers),
        row("KV bytes a token, a device", lambda each: f"{each['bytes_per_token']:,}"),
        row("KV cache, GiB a device", lambda each: f"{each['kv_gib']:.2f}"),
        row("blocks", lambda each: f"{each['num_blocks']:,}"),
        row("tokens, all requests together", lambda each: f"{each['tokens']:,}"),
        *(
            row(f"requests of {tokens:,} tokens", lambda each, n=str(tokens): f"{each['requests'][n]:,}")
            for tokens in lengths
        ),
        row(f"starts with --max-model-len {longest:,}", lambda each: "yes" if each["starts"] else "no"),
    ]
    if not all(each["starts"] for each in answers.values()):
        rows.append(
            row("missing for it, GiB a device", lambda each: "–" if each["starts"] else f"{each['missing_gib']:.2f}")
        )
    lines = [str(cache), "", *aligned(rows)]
    if defaults:
        used = ", ".join(f"{option(name)} {value}" for name, value in defaults.items())
        lines += ["", *textwrap.wrap(f"defaults used: {used}", 110, subsequent_indent="  ", break_on_hyphens=False)]
    return "\n".join(lines)
