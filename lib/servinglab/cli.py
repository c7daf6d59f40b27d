"""The command line: `servinglab simulate`, `data`, `check` and `grade`.

It reads options, calls the library and prints; what it prints, the library can compute. A mistake in the input is one
line on stderr and exit status 2; Ctrl-C is 130, with what was done written first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import __version__, lengths
from ._checks import check_choice, check_number
from ._progress import Progress
from .public_data import find_trace, report
from .schedulers import ContinuousBatching, DynamicBatching, Scheduler, StaticBatching
from .simulate import SimulationInterrupted, simulate
from .step_time import AffineStep
from .traces import read_trace
from .workload import Workload, closed_loop, deterministic, gamma_arrivals, on_off, poisson, rate_profile

STEP_TIME = {"fixed_s": 6e-3, "per_request_s": 32e-6, "per_prefill_token_s": 32e-6, "per_kv_token_s": 49e-9}
"""The step time where none is given; `STEP_TIME_SOURCE` says where it comes from."""

STEP_TIME_SOURCE = (
    "an 8B model in 16 bits on one H100-class card: each step reads 16.06 GB of weights (fixed) and 131,072 B of "
    "keys and values per token held, at 80 % of 3.35 TB/s; each token costs 16.06 GFLOP, at 50 % of 989 TFLOP/s"
)
MAX_NUM_SEQS = 256

_SIMULATE_HELP = (
    "Serve a workload on a simulated machine and print what came of it.",
    "The workload is a TRACE (an Azure LLM CSV or a Mooncake JSONL, plain or gzipped) or is generated: give one of "
    "--poisson, --deterministic, --gamma, --on-off, --rate-profile, --closed-loop. LAW is a number for all requests "
    "or one of geometric:MEAN, lognormal:MEDIAN:P99[:MAX], uniform:LO:HI, exponential:MEAN.",
    "Each output token takes one step. Memory for keys and values isn't limited.",
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
        from .grading import check_main, grade_main

        return (check_main if words[0] == "check" else grade_main)(words[1:])
    args = _parser().parse_args(words)
    return args.run(args)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _parser() -> _Parser:
    parser = _Parser(
        prog="servinglab",
        description="Simulate LLM serving, find public traces, check and grade notebooks.",
        epilog="servinglab COMMAND --help says more, with examples.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"servinglab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_simulate(commands)
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

    group = parser.add_argument_group("workload, one of")
    group.add_argument("trace", nargs="?", metavar="TRACE", help="a file, or a name in SERVINGLAB_DATA's traces/")
    group.add_argument("--poisson", type=float, metavar="RATE", help="arrivals without memory, RATE requests/s")
    group.add_argument("--deterministic", type=float, metavar="RATE", help="arrivals like a clock")
    group.add_argument("--gamma", type=float, nargs=2, metavar=("RATE", "CV"), help="burstiness by CV (1 is Poisson)")
    group.add_argument(
        "--on-off", type=float, nargs=4, metavar=("RATE_ON", "RATE_OFF", "MEAN_ON_S", "MEAN_OFF_S"), help="bursts"
    )
    group.add_argument(
        "--rate-profile", nargs="+", metavar="TIME:RATE", help="a rate that runs straight from point to point"
    )
    group.add_argument("--closed-loop", type=int, metavar="CLIENTS", help="clients who wait for their answers")

    group = parser.add_argument_group("workload, further")
    group.add_argument("--n", type=int, help="how many requests are generated")
    group.add_argument("--seed", type=int, help="the generator's seed")
    group.add_argument("--prompt-tokens", type=_law, metavar="LAW", help="0 if not given")
    group.add_argument("--output-tokens", type=_law, metavar="LAW", help="1 if not given: an order of one step")
    group.add_argument("--service-scale", type=_law, metavar="LAW", help="multiplies a step's time; 1 if not given")
    group.add_argument("--think-s", type=_law, metavar="LAW", help="a client's pause; 0 if not given")
    group.add_argument("--head", type=int, metavar="N", help="serve the first N requests only")
    group.add_argument("--speed", type=float, metavar="X", help="replay X times as fast")

    group = parser.add_argument_group("scheduler")
    group.add_argument("--scheduler", choices=("static", "dynamic", "continuous"))
    group.add_argument("--batch-size", type=int, metavar="B", help="static, dynamic: requests in a full batch")
    group.add_argument("--window-s", type=float, metavar="S", help="dynamic: the oldest request's longest wait")
    group.add_argument(
        "--last", choices=("full_price", "partial", "never"), help="static: the last batch if it isn't full"
    )
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="continuous: the most requests in a step")

    group = parser.add_argument_group("machine")
    group.add_argument("--fixed-s", type=float, metavar="S", help="seconds of every step")
    group.add_argument("--per-request-s", type=float, metavar="S", help="plus this for each request in it")
    group.add_argument("--per-prefill-token-s", type=float, metavar="S", help="and for each prompt token computed")
    group.add_argument("--per-kv-token-s", type=float, metavar="S", help="and for each token held and read")
    group.add_argument("--pots", type=_pots, metavar="N", help="machines that share the line, or endless")

    group = parser.add_argument_group("output")
    group.add_argument(
        "--slo", type=_slo, metavar="NAME=S,...", help="limits on ttft_s, tpot_s, e2e_s: adds goodput to the summary"
    )
    group.add_argument("--out", type=Path, metavar="FILE", help="write every request: .csv or .parquet")
    group.add_argument("--json", metavar="FILE", help="write the run and its summary; - is stdout")
    group.add_argument("--quiet", action="store_true", help="print nothing but errors")
    group.add_argument(
        "--progress", action="store_true", help="say on stderr how far it is, also where that isn't a terminal"
    )


# Options to objects


def _law(text: str) -> Any:
    """A number, or a law such as geometric:200."""
    laws: dict[str, Callable[..., lengths.Law]] = {
        "geometric": lengths.Geometric,
        "lognormal": lambda median, p99, maximum=None: lengths.LogNormal(median, p99, max=maximum),
        "uniform": lengths.Uniform,
        "exponential": lengths.Exponential,
    }
    name, *numbers = text.split(":")
    try:
        if not numbers:
            return float(name)
        return laws[name](*map(float, numbers))
    except KeyError:
        raise argparse.ArgumentTypeError(f"no law {name!r}; there are {', '.join(laws)}") from None
    except TypeError:
        raise argparse.ArgumentTypeError(f"{text!r} has too many or too few numbers") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _pots(text: str) -> int | str:
    try:
        return text if text == "endless" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number or endless, not {text!r}") from None


def _slo(text: str) -> dict[str, float]:
    from .metrics import SLO_NAMES

    limits = {}
    for item in text.split(","):
        name, _, limit = item.partition("=")
        try:
            limits[check_choice("NAME", name.strip(), SLO_NAMES)] = check_number(name, float(limit), gt=0)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{item!r}: {error}") from None
    return limits


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise ValueError(f"{_option(name)} {why}")


def _require(args: argparse.Namespace, names: Sequence[str], what: str) -> list[Any]:
    for name in names:
        if getattr(args, name) is None:
            raise ValueError(f"{what} needs {_option(name)}")
    return [getattr(args, name) for name in names]


_GENERATORS = ("poisson", "deterministic", "gamma", "on_off", "rate_profile", "closed_loop")


def _workload(args: argparse.Namespace, defaults: dict[str, Any]) -> Workload:
    sources = [_option(name) for name in _GENERATORS if getattr(args, name) is not None]
    if args.trace is not None:
        sources.insert(0, f"the trace {args.trace}")
    if len(sources) != 1:
        found = f"got {' and '.join(sources)}" if sources else "got none"
        raise ValueError(f"give one workload, a trace or one of {', '.join(map(_option, _GENERATORS))}; {found}")
    columns = ("prompt_tokens", "output_tokens", "service_scale")
    if args.closed_loop is None:
        _refuse(args, ["think_s"], "belongs to --closed-loop")
    if args.trace is not None:
        _refuse(args, ["n", "seed", *columns], "belongs to a generated workload; a trace brings its own requests")
        work = read_trace(find_trace(args.trace))
    else:
        work = _generate(args, {name: getattr(args, name) for name in columns}, defaults)
    if args.head is not None:
        work = work.head(args.head)
    return work if args.speed is None else work.scaled(args.speed)


def _generate(args: argparse.Namespace, columns: dict[str, Any], defaults: dict[str, Any]) -> Workload:
    for name, value in {"prompt_tokens": 0, "output_tokens": 1, "service_scale": 1}.items():
        if columns[name] is None:
            columns[name] = defaults[name] = value
    if args.rate_profile is not None:
        _refuse(args, ["n"], "doesn't go with --rate-profile: the area under the profile decides")
        (seed,) = _require(args, ["seed"], "--rate-profile")
        times_s, rates_rps = _points(args.rate_profile)
        return rate_profile(times_s, rates_rps, seed, **columns)
    if args.deterministic is not None:
        (n,) = _require(args, ["n"], "--deterministic")
        return deterministic(args.deterministic, n, args.seed, **columns)
    n, seed = _require(args, ["n", "seed"], "a random workload")
    if args.poisson is not None:
        return poisson(args.poisson, n, seed, **columns)
    if args.gamma is not None:
        rate_rps, cv = args.gamma
        return gamma_arrivals(rate_rps, n, cv, seed, **columns)
    if args.on_off is not None:
        rate_on_rps, rate_off_rps, mean_on_s, mean_off_s = args.on_off
        return on_off(rate_on_rps, rate_off_rps, mean_on_s, mean_off_s, n, seed, **columns)
    if args.think_s is None:
        defaults["think_s"] = 0
    return closed_loop(args.closed_loop, n, seed, args.think_s or 0, **columns)


def _points(texts: Sequence[str]) -> tuple[list[float], list[float]]:
    points = []
    for text in texts:
        time_s, _, rate_rps = text.partition(":")
        try:
            points.append((float(time_s), float(rate_rps)))
        except ValueError:
            raise ValueError(f"--rate-profile takes points TIME:RATE such as 60:20; got {text!r}") from None
    return [t for t, _ in points], [r for _, r in points]


def _scheduler(args: argparse.Namespace, defaults: dict[str, Any]) -> Scheduler:
    kind = args.scheduler
    if kind is None:
        kind = defaults["scheduler"] = "continuous"
    own = {"static": ("batch_size", "last"), "dynamic": ("batch_size", "window_s"), "continuous": ("max_num_seqs",)}
    for name in ("batch_size", "window_s", "last", "max_num_seqs"):
        if name not in own[kind]:
            _refuse(args, [name], f"doesn't go with --scheduler {kind}")
    if kind == "continuous":
        if args.max_num_seqs is None:
            defaults["max_num_seqs"] = MAX_NUM_SEQS
            return ContinuousBatching(MAX_NUM_SEQS)
        return ContinuousBatching(args.max_num_seqs)
    if kind == "dynamic":
        return DynamicBatching(*_require(args, ["batch_size", "window_s"], "--scheduler dynamic"))
    (batch_size,) = _require(args, ["batch_size"], "--scheduler static")
    if args.last is None:
        defaults["last"] = StaticBatching.last
        return StaticBatching(batch_size)
    return StaticBatching(batch_size, last=args.last)


def _step_time(args: argparse.Namespace, defaults: dict[str, Any]) -> AffineStep:
    given = {name: getattr(args, name) for name in STEP_TIME}
    if all(value is None for value in given.values()):
        defaults.update(STEP_TIME)
        return AffineStep(**STEP_TIME)
    return AffineStep(**{name: value or 0.0 for name, value in given.items()})


# The commands


def _simulate(args: argparse.Namespace) -> int:
    defaults: dict[str, Any] = {}
    _check_files(args)
    scheduler, step_time = _scheduler(args, defaults), _step_time(args, defaults)
    pots = args.pots
    if pots is None:
        pots = defaults["pots"] = 1
    say: Callable[[str], None] = (lambda text: None) if args.quiet else print
    interrupted = False
    with Progress(args.progress or (sys.stderr.isatty() and not args.quiet)) as progress:
        progress.doing = "reading the workload"
        work = _workload(args, defaults)
        progress.pause()
        say(_what_is_run(work, scheduler, step_time, pots, defaults))
        progress.doing = "simulating"
        try:
            machines = None if pots == "endless" else pots
            result = simulate(work, scheduler, step_time, machines, progress=progress.report)
        except SimulationInterrupted as stop:
            result, interrupted = stop.partial, True
        if args.out:  # first of all: after Ctrl-C nobody wants to wait
            progress.doing = f"writing {args.out}"
            _write(args.out, result.to_parquet if args.out.suffix == ".parquet" else result.to_csv)
        progress.doing = "summing up"
        summary = result.summary(args.slo) if args.json or not interrupted else None
        if args.json and summary:
            run = {
                "workload": work.describe(),
                "scheduler": {"kind": type(scheduler).__name__, **vars(scheduler)},
                "step_time": vars(step_time),
                "pots": pots,
                "defaults_used": defaults,
                "interrupted": interrupted,
                "summary": summary.to_dict(),
            }
            progress.pause()
            _write_json(args.json, run)
    if interrupted:
        done = int(result.finished.sum())
        where = f" are UNSERVED in {args.out}" if args.out else " were not served"
        print(
            f"servinglab: interrupted: {done:,} of {len(result):,} requests finished, the other "
            f"{len(result) - done:,}{where}",
            file=sys.stderr,
        )
        return 130
    say(f"\n{summary}")
    if args.out:
        say(f"\nwrote {len(result):,} requests to {args.out}")
    return 0


def _check_files(args: argparse.Namespace) -> None:
    """Refuse before the work what would fail after it."""
    if args.out:
        if args.out.suffix not in (".csv", ".parquet"):
            raise ValueError(f"--out must end in .csv or .parquet; got {str(args.out)!r}")
        if args.out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise ValueError("--out to Parquet needs pyarrow: pip install pyarrow, or write CSV")
    written = [Path(name) for name in (args.out, args.json) if name and name != "-"]
    for file in written:
        if not file.resolve().parent.is_dir():
            raise ValueError(f"no folder {file.resolve().parent} to write {file.name} into")
        if file.is_dir():
            raise ValueError(f"{file} is a folder, not a file to write")
        if args.trace and Path(args.trace).exists() and file.exists() and file.samefile(args.trace):
            raise ValueError(f"writing {file} would overwrite the trace")
    if len({file.resolve() for file in written}) < len(written):
        raise ValueError("--out and --json must name different files")


def _what_is_run(
    work: Workload, scheduler: Scheduler, step_time: AffineStep, pots: int | str, defaults: dict[str, Any]
) -> str:
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
        f"scheduler  {scheduler}",
        f"step time  {step_time}",
        f"pots       {pots}",
    ]
    if defaults:
        used = ", ".join(f"{_option(name)} {value}" for name, value in defaults.items())
        lines += textwrap.wrap(f"defaults used: {used}", 110, subsequent_indent="  ", break_on_hyphens=False)
        if "fixed_s" in defaults:
            lines += textwrap.wrap(
                f"(step time of {STEP_TIME_SOURCE})", 110, initial_indent="  ", subsequent_indent="  "
            )
    return "\n".join(lines)


def _write(file: Path, write: Callable[[Path], None]) -> None:
    """Write beside the file and then rename: nobody ever sees half of it."""
    part = file.with_name(f"{file.name}.part")
    try:
        write(part)
        os.replace(part, file)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"before {file} was written") from None
    finally:
        part.unlink(missing_ok=True)


def _write_json(target: str, run: dict[str, Any]) -> None:
    text = json.dumps(_finite(run), indent=2)
    if target == "-":
        print(text)
    else:

        def write(part: Path) -> None:
            part.write_text(text + "\n", encoding="utf-8")

        _write(Path(target), write)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is undefined or beyond all that was measured is null."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _data(args: argparse.Namespace) -> int:
    print(report())
    return 0
