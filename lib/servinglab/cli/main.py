"""The command line: `servinglab simulate`, `serve-sim`, `bench`, `validate` and others.

It reads options, calls the library and prints; what it prints, the library can compute. A mistake in the input is one
line on stderr and exit status 2; Ctrl-C is 130, with what was done written first.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from servinglab.base.files import check_files, write_json, write_whole
from servinglab.base.version import __version__
from servinglab.cli import bench_http, best_batch, memory, serve_sim
from servinglab.cli.engine_options import (
    MAX_NUM_SEQS,
    STEP_TIME_SOURCE,
    Engine,
    add_machine_options,
    add_scheduler_options,
    engine,
    option,
    refuse,
    require,
)
from servinglab.cli.law_option import parse_law
from servinglab.cli.progress import Progress
from servinglab.cli.workload_options import add_workload_source, slo, workload
from servinglab.engine.clock import SimulationInterrupted
from servinglab.engine.reference.tokens import check_token_workload
from servinglab.engine.simulate import simulate
from servinglab.fidelity import validation
from servinglab.measure.readers.read_run import read_run
from servinglab.result.compare import compare_runs, told_plainly
from servinglab.result.result import Result
from servinglab.result.save import save_run
from servinglab.workload.model import Workload
from servinglab.workload.public_data import report

_SIMULATE_HELP = (
    "Serve a workload on a simulated machine and print what came of it.",
    "The workload is a TRACE (an Azure LLM CSV or a Mooncake JSONL, plain or gzipped) or is generated: give one of "
    "--poisson, --deterministic, --gamma, --on-off, --rate-profile, --closed-loop. LAW is a number for all requests "
    "or one of geometric:MEAN, lognormal:MEDIAN:P99[:MAX], uniform:LO:HI, exponential:MEAN.",
    "Each output token takes one step. A step's time is given by its parts, or follows from --model and --accelerator; "
    "then memory does too, and one pot of continuous batching gets the blocks of KV cache that fit. Otherwise memory "
    "is limited by --kv-blocks or not at all. Where attention within prompts has no price and one has over 4,000 "
    "tokens, the summary says so.",
    f"Defaults, which the output names where they are used: --scheduler continuous, --max-num-seqs {MAX_NUM_SEQS}, "
    f"--pots 1, and if no part of the step time is given, that of {STEP_TIME_SOURCE}. If any part is given, the "
    "parts that aren't are 0.",
)
_SIMULATE_EXAMPLES = """\
examples:
  servinglab simulate AzureLLMInferenceTrace_conv.csv
  servinglab simulate trace.jsonl --speed 2 --slo ttft_s=2,tpot_s=0.1 --out requests.parquet
  servinglab simulate --poisson 20 --n 1000 --seed 42 --scheduler static --batch-size 15 \\
      --fixed-s 0.4 --per-request-s 0.02
  servinglab simulate --closed-loop 64 --n 5000 --seed 1 --prompt-tokens lognormal:500:4000 \\
      --output-tokens geometric:200
  servinglab simulate AzureLLMInferenceTrace_conv.csv --model llama-3.1-8b --accelerator h100-sxm \\
      --max-num-batched-tokens 8192 --save h100.npz
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the command's name; those of the process by default.

    Returns
    -------
    int
        The exit status: 0 all is well; 1 a checked notebook doesn't pass; 2 the input is wrong; 130 Ctrl-C.

    Raises
    ------
    SystemExit
        From --help, --version and for options that aren't understood, as argparse does.

    Examples
    --------
    >>> main(["simulate", "--poisson", "20", "--n", "100", "--seed", "1", "--quiet"])
    0
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()  # here, where a closed pipe is caught, and not when Python ends
    except KeyboardInterrupt as stop:
        print("servinglab: interrupted", *stop.args, file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"servinglab: {_one_line(what)}", file=sys.stderr)
        return 2
    except (ValueError, ImportError, MemoryError) as error:
        print(f"servinglab: {_one_line(str(error)) or type(error).__name__}", file=sys.stderr)
        return 2


def _run(words: Sequence[str]) -> int:
    if words and words[0] in ("check", "grade"):  # these parse their own options
        from servinglab.grading import check_main, grade_main

        return (check_main if words[0] == "check" else grade_main)(words[1:])
    args = _parser().parse_args(words, argparse.Namespace(words=list(words)))
    return args.run(args)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _parser() -> _Parser:
    parser = _Parser(
        prog="servinglab",
        description="Simulate LLM serving, say what fits in memory, find public traces, check and grade notebooks.",
        epilog="servinglab COMMAND --help says more, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"servinglab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_simulate(commands)
    serve_sim.add_parser(commands)
    bench_http.add_parser(commands, _Parser)
    _add_compare(commands)
    validate = commands.add_parser(
        "validate",
        help="how far the simulator is from real engines",
        description="Replay real schedulers' decisions, fit real runs to their first requests and simulate them whole, "
        "predict published points from others, and print how far off each figure is. The data is what SERVINGLAB_DATA "
        "holds; what isn't there is named. Takes some minutes.",
        allow_abbrev=False,
    )
    validation.add_arguments(validate)
    validate.set_defaults(run=validation.validate_main)
    best_batch.add_parser(commands)
    memory.add_parser(commands)
    data = commands.add_parser(
        "data",
        help="which public traces are here, and where to get the rest",
        description="Say which public traces SERVINGLAB_DATA holds, and where their owners publish the rest.",
    )
    data.set_defaults(run=_data)
    for name, what in (
        ("check", "run a notebook's checks and print hints"),
        ("grade", "grade a folder of submissions"),
    ):
        commands.add_parser(name, help=what, add_help=False)
    return parser


def _add_simulate(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="serve a trace or a generated workload, print a summary",
        description="\n\n".join(textwrap.fill(text, 100) for text in _SIMULATE_HELP),
        epilog=_SIMULATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="servinglab simulate (TRACE | --poisson RATE --n N --seed S | ...) [options]",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_simulate)

    add_workload_source(parser, trace="trace", title="workload, one of")
    group = parser.add_argument_group("workload, further")
    group.add_argument("--n", type=int, help="how many requests are generated")
    group.add_argument("--seed", type=int, help="the generator's seed")
    group.add_argument("--prompt-tokens", type=parse_law, metavar="LAW", help="0 if not given")
    group.add_argument("--output-tokens", type=parse_law, metavar="LAW", help="1 if not given: an order of one step")
    group.add_argument("--service-scale", type=parse_law, metavar="LAW", help="multiplies step times; 1 if not given")
    group.add_argument("--priority", type=parse_law, metavar="LAW", help="smaller is more urgent; 0 if not given")
    group.add_argument("--think-s", type=parse_law, metavar="LAW", help="a client's pause; 0 if not given")
    group.add_argument("--head", type=int, metavar="N", help="serve the first N requests only")
    group.add_argument("--speed", type=float, metavar="X", help="replay X times as fast")

    add_scheduler_options(parser)
    add_machine_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--slo", type=slo, metavar="NAME=S,...", help="limits on ttft_s, tpot_s, e2e_s: adds goodput to the summary"
    )
    group.add_argument("--out", type=Path, metavar="FILE", help="write every request: .csv or .parquet")
    group.add_argument("--json", metavar="FILE", help="write what was run and its summary; - is stdout")
    group.add_argument("--save", type=Path, metavar="FILE", help="write the whole run: .npz, for servinglab compare")
    group.add_argument("--quiet", action="store_true", help="print nothing but errors")
    group.add_argument(
        "--progress", action="store_true", help="say on stderr how far it is, also where that isn't a terminal"
    )


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="two saved runs side by side",
        description="Print what differs in the settings of two runs, and their summaries with the difference in %, "
        "(B - A)/A. A run is a file that `servinglab simulate --save` wrote, a load test's folder, or a result file of "
        "vLLM's bench, GuideLLM or AIPerf.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_compare)
    parser.add_argument("run_a", type=Path, metavar="RUN_A")
    parser.add_argument("run_b", type=Path, metavar="RUN_B")
    parser.add_argument("--slo", type=slo, metavar="NAME=S,...", help="limits on ttft_s, tpot_s, e2e_s: adds goodput")
    parser.add_argument("--json", metavar="FILE", help="write the comparison; - is stdout, and nothing else is printed")


# The commands


def _simulate(args: argparse.Namespace) -> int:
    defaults: dict[str, Any] = {}
    check_files(
        {"--out": args.out, "--json": args.json, "--save": args.save},
        {"--out": (".csv", ".parquet"), "--save": (".npz",)},
        args.trace,
    )
    serves = engine(args, defaults)
    _check_workload_options(args, serves)
    say: Callable[[str], None] = (lambda text: None) if args.quiet else print
    interrupted = False
    with Progress(args.progress or (sys.stderr.isatty() and not args.quiet)) as progress:
        progress.doing = "reading the workload"
        work = workload(args, defaults)
        if serves.counts:
            check_token_workload(work)
        progress.pause()
        say(_what_is_run(work, serves, defaults))
        progress.doing = "simulating"
        try:
            with _warnings_as_lines(progress, args.quiet):
                result = simulate(
                    work, serves.scheduler, serves.step_time, serves.pots, kv=serves.kv, progress=progress.report
                )
        except SimulationInterrupted as stop:
            result, interrupted = stop.partial, True
        if args.out:  # first of all: after Ctrl-C nobody wants to wait
            progress.doing = f"writing {args.out}"
            write_whole(args.out, result.to_parquet if args.out.suffix == ".parquet" else result.to_csv)
        if args.save:
            progress.doing = f"writing {args.save}"
            write_whole(args.save, partial(save_run, _described(result, serves, interrupted)))
        progress.doing = "summing up"
        summary = result.summary(args.slo) if args.json or not interrupted else None
        if args.json and summary:
            run = {
                "workload": work.describe(),
                "scheduler": told_plainly(serves.scheduler),
                "step_time": told_plainly(serves.step_time),
                "roofline": told_plainly(serves.roof),
                "kv": told_plainly(serves.kv),
                "pots": serves.pots or "endless",
                "defaults_used": defaults,
                "interrupted": interrupted,
                "summary": summary.to_dict(),
            }
            progress.pause()
            write_json(args.json, run)
    files = [str(file) for file in (args.out, args.save) if file]
    if interrupted:
        done = int(result.finished.sum())
        where = f" are UNSERVED in {' and '.join(files)}" if files else " were not served"
        print(
            f"servinglab: interrupted: {done:,} of {len(result):,} requests finished, the other "
            f"{len(result) - done:,}{where}",
            file=sys.stderr,
        )
        return 130
    say(f"\n{summary}")
    if args.out:
        say(f"\nwrote {len(result):,} requests to {args.out}")
    if args.save:
        say(f"\nsaved the run to {args.save}")
    return 0


def _check_workload_options(args: argparse.Namespace, serves: Engine) -> None:
    """Refuse what a generated workload and the engine's options say of each other."""
    if args.priority is not None and args.policy != "priority":
        raise ValueError("--priority needs --policy priority")
    if serves.counts and args.trace is None:
        refuse(args, ["service_scale"], f"doesn't go with {serves.counts}: where tokens are counted, they decide")
        require(args, ["prompt_tokens"], f"{serves.counts} counts tokens, and")


def _described(result: Result, serves: Engine, interrupted: bool) -> Result:
    """The result with what `simulate` can't know of the run."""
    return replace(result, setup=replace(result.setup, roofline=serves.roof, interrupted=interrupted))


@contextmanager
def _warnings_as_lines(progress: Progress | None = None, quiet: bool = False) -> Generator[None]:
    """Show the library's warnings, as they come, as one line each on stderr."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if quiet:
            return
        doing = progress.doing if progress else ""
        if progress:
            progress.pause()
        print(f"servinglab: {_one_line(str(message))}", file=sys.stderr)
        if progress:
            progress.doing = doing

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _what_is_run(work: Workload, serves: Engine, defaults: dict[str, Any]) -> str:
    about = work.describe()
    if work.is_closed:
        arrivals = f"from {work.clients:,} clients"
    else:
        arrivals = f"over {about['span_s']:,.1f} s ({about['rate_rps']:.4g} requests/s, CV {about['cv']:.3g})"
    lines = [
        f"workload   {work.name}",
        f"           {len(work):,} requests {arrivals}",
        f"           {about['mean_prompt_tokens']:,.1f} prompt and {about['mean_output_tokens']:,.1f} output tokens "
        "each, on average; one step per output token",
        *serves.lines(),
    ]
    if defaults:
        used = ", ".join(f"{option(name)} {value}" for name, value in defaults.items())
        lines += textwrap.wrap(f"defaults used: {used}", 110, subsequent_indent="  ", break_on_hyphens=False)
        if "fixed_s" in defaults:
            lines += textwrap.wrap(
                f"(step time of {STEP_TIME_SOURCE})", 110, initial_indent="  ", subsequent_indent="  "
            )
    return "\n".join(lines)


def _compare(args: argparse.Namespace) -> int:
    check_files({"--json": args.json}, {})
    with _warnings_as_lines():
        runs = [read_run(path) for path in (args.run_a, args.run_b)]
    both = compare_runs(*runs, names=(str(args.run_a), str(args.run_b)), slo=args.slo)
    if args.json:
        write_json(args.json, both.to_dict())
    if args.json != "-":
        print(both)
    return 0


def _data(args: argparse.Namespace) -> int:
    print(report())
    return 0
