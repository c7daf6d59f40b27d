"""`servinglab best-batch`: which batch keeps a promise about the P99?"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from servinglab.base.files import check_files, write_json
from servinglab.cli.engine_options import TOKEN_SETTINGS, Engine, add_machine_options, engine, option, refuse
from servinglab.cli.law_option import parse_law
from servinglab.cli.progress import Progress
from servinglab.cli.workload_options import slo
from servinglab.decide.evaluate import KINDS, PREFERENCES, Traffic
from servinglab.decide.search import SearchInterrupted, best_batch
from servinglab.result.compare import told_plainly
from servinglab.workload.arrival_laws import poisson
from servinglab.workload.model import Workload
from servinglab.workload.public_data import find_trace
from servinglab.workload.traces import read_trace

_LARGEST = 64
_HELP = (
    "Try a scheduler's settings from small to large, by exact laws where there are some and by simulation elsewhere, "
    "and name the best of those whose P99s keep every limit. If none does, say what would: a longer limit, a lower "
    "rate, another scheduler.",
    "The workload is a TRACE, judged as it is, or --poisson RATE, of which as many requests are drawn as it takes to "
    "be sure. LAW is a number for all requests or one of geometric:MEAN, lognormal:MEDIAN:P99[:MAX], uniform:LO:HI, "
    "exponential:MEAN. Static batching chooses the batch size, dynamic the batch size and the window, continuous "
    "max_num_seqs and, with --max-num-batched-tokens, the budget of tokens up to that.",
)
_EXAMPLES = """\
examples:
  servinglab best-batch --poisson 20 --slo e2e_s=1.8 --fixed-s 0.4 --per-request-s 0.02
  servinglab best-batch --poisson 20 --slo e2e_s=1.8 --scheduler dynamic --fixed-s 0.4 --per-request-s 0.02
  servinglab best-batch --poisson 8 --prompt-tokens lognormal:500:4000 --output-tokens geometric:200 \\
      --slo ttft_s=0.5,tpot_s=0.015 --scheduler continuous --max-batch-size 256 --max-num-batched-tokens 8192
  servinglab best-batch AzureLLMInferenceTrace_conv.csv --model llama-3.1-8b --accelerator h100-sxm \\
      --slo ttft_s=1,tpot_s=0.03 --scheduler continuous --max-batch-size 256
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "best-batch",
        help="the best batch whose P99 keeps a promise",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="servinglab best-batch (TRACE | --poisson RATE) --slo NAME=S,... [options]",
        allow_abbrev=False,
    )
    # the engine's options of one batch, of which this command tries many
    parser.set_defaults(run=_best_batch, **dict.fromkeys(("batch_size", "window_s", "edges", "last", "max_num_seqs")))
    parser.set_defaults(**dict.fromkeys(TOKEN_SETTINGS))
    group = parser.add_argument_group("workload")
    group.add_argument("trace", nargs="?", metavar="TRACE", help="a file, or a name in SERVINGLAB_DATA's traces/")
    group.add_argument("--poisson", type=float, metavar="RATE", help="arrivals without memory, RATE requests/s")
    group.add_argument("--prompt-tokens", type=parse_law, metavar="LAW", help="0 if not given")
    group.add_argument("--output-tokens", type=parse_law, metavar="LAW", help="1 if not given: an order of one step")
    group.add_argument("--head", type=int, metavar="N", help="the first N requests of the trace only")
    group.add_argument("--speed", type=float, metavar="X", help="replay the trace X times as fast")
    group = parser.add_argument_group("promise")
    group.add_argument("--slo", type=slo, metavar="NAME=S,...", required=True, help="limits on ttft_s, tpot_s, e2e_s")
    group.add_argument("--q", type=float, metavar="Q", help="on which percentile, as a fraction; 0.99 if not given")
    group = parser.add_argument_group("search")
    group.add_argument("--scheduler", choices=KINDS, help="static if not given")
    group.add_argument(
        "--max-batch-size", type=int, metavar="N", help=f"the largest batch, or max_num_seqs; {_LARGEST} if not given"
    )
    group.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="continuous: the largest budget of tokens in a step"
    )
    group.add_argument("--prefer", choices=PREFERENCES, help="of those that keep the promise")
    group.add_argument("--requests", type=int, metavar="N", help="requests of the short runs, with --poisson")
    group.add_argument("--max-requests", type=int, metavar="N", help="requests of the longest run, with --poisson")
    group.add_argument("--seed", type=int, help="the generator's seed; 1 if not given")
    group.add_argument("--no-remedies", action="store_true", help="don't look for what would do if nothing does")
    add_machine_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write the answer and all candidates; - is stdout, and only that")
    group.add_argument(
        "--progress", action="store_true", help="say on stderr how far it is, also where that isn't a terminal"
    )


def _best_batch(args: argparse.Namespace) -> int:
    check_files({"--json": args.json}, {}, args.trace)
    defaults: dict[str, Any] = {}
    serves = _engine(args, defaults)
    settings = {"max_batch_size": args.max_batch_size, "q": args.q, "seed": args.seed}
    for name, usual in {"max_batch_size": _LARGEST, "q": 0.99, "seed": 1}.items():
        if settings[name] is None and not (name == "seed" and args.trace):
            defaults[name] = usual
        settings[name] = usual if settings[name] is None else settings[name]
    with Progress(args.progress or sys.stderr.isatty()) as progress:
        progress.doing = "reading the workload"
        traffic = _traffic(args, defaults)

        def report(done: int, candidate: Mapping[str, Any]) -> None:
            now = ", ".join(f"{name} {value:g}" for name, value in candidate.items())
            progress.doing = f"{done} tried, now {now}"

        try:
            answer = best_batch(
                traffic, serves.step_time, args.slo, args.scheduler, pots=serves.pots, kv=serves.kv,
                max_num_batched_tokens=args.max_num_batched_tokens, prefer=args.prefer, requests=args.requests,
                max_requests=args.max_requests, remedies=not args.no_remedies, progress=report, **settings,
            )  # fmt: skip
        except SearchInterrupted as stop:
            progress.pause()
            print(f"servinglab: {stop}", file=sys.stderr)
            return 130
    if args.json:
        run = {"step_time": told_plainly(serves.step_time), "kv": told_plainly(serves.kv), "defaults_used": defaults}
        write_json(args.json, {**run, **answer.to_dict()})
    if args.json != "-":
        print("\n".join([*serves.lines()[1:], str(answer)]))
        if defaults:
            used = ", ".join(f"{option(name)} {value}" for name, value in defaults.items())
            print(textwrap.fill(f"defaults used: {used}", 110, subsequent_indent="  ", break_on_hyphens=False))
    return 0


def _engine(args: argparse.Namespace, defaults: dict[str, Any]) -> Engine:
    """The machine; its scheduler is one that the search will try, so that what doesn't go together is refused."""
    if args.scheduler is None:
        args.scheduler = defaults["scheduler"] = "static"
    if args.scheduler == "continuous":
        args.max_num_seqs = 1
    else:
        args.batch_size = 1
        args.window_s = 0.0 if args.scheduler == "dynamic" else None
    serves = engine(args, defaults)
    defaults.pop("last", None)
    return serves


def _traffic(args: argparse.Namespace, defaults: dict[str, Any]) -> Traffic:
    if (args.trace is None) == (args.poisson is None):
        raise ValueError(f"give one workload, a trace or --poisson; got {'none' if args.trace is None else 'both'}")
    if args.trace is not None:
        why = "belongs to --poisson; a trace brings its own requests"
        refuse(args, ["prompt_tokens", "output_tokens", "requests", "max_requests", "seed"], why)
        work = read_trace(find_trace(args.trace))
        work = work if args.head is None else work.head(args.head)
        return work if args.speed is None else work.scaled(args.speed)
    refuse(args, ["head", "speed"], "belongs to a trace")
    columns: dict[str, Any] = {"prompt_tokens": 0, "output_tokens": 1}
    for name in columns:
        if getattr(args, name) is None:
            defaults[name] = columns[name]
        else:
            columns[name] = getattr(args, name)
    if columns == {"prompt_tokens": 0, "output_tokens": 1}:
        return float(args.poisson)
    rate_rps: float = args.poisson

    def draw(n: int, seed: int) -> Workload:
        return poisson(rate_rps, n, seed, **columns)

    return draw
