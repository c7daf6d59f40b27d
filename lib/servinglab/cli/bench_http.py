"""`servinglab bench http URL`: a load test from the command line; and `servinglab bench show` for what came of one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from servinglab.base.checks import check_number
from servinglab.base.files import check_files, write_json, write_whole
from servinglab.cli import bench_llamacpp, bench_openvino, bench_torch, bench_vllm
from servinglab.cli.engine_options import refuse
from servinglab.cli.law_option import parse_law
from servinglab.cli.progress import Progress
from servinglab.cli.workload_options import add_workload_source, slo, workload
from servinglab.measure.engines import torch_steps
from servinglab.measure.engines.llamacpp_runs import read_llamacpp
from servinglab.measure.engines.vllm_prediction import read_vllm_bench
from servinglab.measure.load_test.plan import Stage, burst, mixed, ramp, ramp_clients, stage_of
from servinglab.measure.load_test.report import LATE_S, LoadTest, Report, make_report, read_load_test
from servinglab.measure.load_test.run import Setup, read_state, run_load_test
from servinglab.measure.load_test.server_facts import key_headers, root_of, served_model
from servinglab.measure.load_test.stream import GOOD_REASONS
from servinglab.measure.load_test.vllm_fields import vllm_bench_fields
from servinglab.measure.readers.read_run import read_run
from servinglab.result.compare import told_plainly
from servinglab.workload.arrival_laws import timed_arrivals

_LENGTHS = {
    "mixed": [(0.8, 200, 100), (0.2, 4000, 200)],
    "long-context": [(1.0, 16_000, 100)],
    "long-output": [(1.0, 200, 2000)],
}
_PROMPT_TOKENS, _OUTPUT_TOKENS = 512, 128
_HELP = (
    "Send streamed requests to an OpenAI-compatible server, time every chunk of the answers, and report throughput and "
    "latency against load. URL is the server's address, such as http://127.0.0.1:8000.",
    "The load is a rate that doesn't wait for the server (--poisson, --deterministic, --gamma, --on-off, "
    "--rate-profile, --trace, --burst), clients who wait for their answers (--closed-loop), "
    "or a ramp of either (--ramp, --ramp-clients) with a recovery gap between levels.",
    "FOLDER gets run.json, requests.jsonl (a line a request, written as it ends), server.jsonl, report.json, "
    "report.png and, for each level, a file with the field names of vLLM's bench. Ctrl-C keeps what there "
    "is; --resume goes on. Nothing is sent twice because it failed, nor to where a redirect points: that would be "
    "another load.",
    "An answer is a success if its finish_reason is a good one (--finish-reason names more). abort, error, an unknown "
    "one and none are failures with names of their own.",
    "The key that a server may want is read from OPENAI_API_KEY and written nowhere; options are written to FOLDER.",
)
_EXAMPLES = """\
the seven tests of the course, against a server at $URL:
  fixed concurrency   servinglab bench http $URL --closed-loop 16 --n 500
  fixed rate          servinglab bench http $URL --poisson 4 --duration-s 120 --warmup-s 20
  ramp                servinglab bench http $URL --ramp 1,2,4,8,16 --stage-s 60 --gap-s 15 --warmup-s 10
  mixed lengths       servinglab bench http $URL --poisson 4 --duration-s 120 --lengths mixed
  long context        servinglab bench http $URL --poisson 0.5 --duration-s 300 --lengths long-context
  long output         servinglab bench http $URL --closed-loop 8 --n 64 --lengths long-output
  bursts              servinglab bench http $URL --burst 50 30 5

a trace of your own traffic, and what came of a run:
  servinglab bench http $URL --trace AzureLLMInferenceTrace_conv.csv --speed 0.5 --head 2000
  servinglab bench show FOLDER --slo ttft_s=2,tpot_s=0.1
"""


def add_parser(commands: Any, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add `bench` and its commands."""
    bench = commands.add_parser(
        "bench",
        help="measure: load-test a server, calibrate an engine or a device",
        description="Load-test an OpenAI-compatible server, read what load tests wrote, and calibrate the simulator "
        "on a real engine or device.",
        allow_abbrev=False,
    )
    actions = bench.add_subparsers(metavar="ACTION", required=True, parser_class=parser_class)
    _add_http(actions)
    _add_show(actions)
    bench_torch.add_parser(actions)
    bench_openvino.add_parser(actions)
    bench_vllm.add_parser(actions)
    bench_llamacpp.add_parser(actions)


def _add_http(actions: Any) -> None:
    parser = actions.add_parser(
        "http",
        help="load-test an OpenAI-compatible server",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="servinglab bench http URL (--poisson RATE | --closed-loop CLIENTS | --ramp RATES | ...) [options]\n"
        "       servinglab bench http --resume FOLDER",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_http, service_scale=None, priority=None)
    parser.add_argument("url", nargs="?", metavar="URL")

    group = add_workload_source(parser, trace="--trace", title="load, one of")
    group.add_argument(
        "--burst", type=float, nargs=3, metavar=("SIZE", "EVERY_S", "COUNT"), help="SIZE requests at once, COUNT times"
    )
    group.add_argument(
        "--ramp",
        type=_numbers,
        metavar="RATES",
        help="levels of requests/s, such as 1,2,4,8: each sends exactly rate x --stage-s requests in its time",
    )
    group.add_argument("--ramp-clients", type=_numbers, metavar="CLIENTS", help="levels of clients, such as 1,2,4,8")

    group = parser.add_argument_group("load, further")
    group.add_argument("--n", type=int, help="how many requests (in a ramp of clients: of a level, at most; 10000)")
    group.add_argument(
        "--duration-s",
        type=float,
        metavar="S",
        help="instead of --n: S seconds, with exactly rate x S requests in them (clients: at most 10000)",
    )
    group.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts; 0 if not given")
    group.add_argument(
        "--think-s", type=parse_law, metavar="LAW", help="a client's pause before a request; 0 if not given"
    )
    group.add_argument("--speed", type=float, metavar="X", help="replay X times as fast")
    group.add_argument("--head", type=int, metavar="N", help="the first N requests only")
    group.add_argument("--stage-s", type=float, metavar="S", help="how long a level of a ramp sends; 30 if not given")
    group.add_argument("--gap-s", type=float, metavar="S", help="recovery after a level's last answer; 5 if not given")
    group.add_argument("--ramp-cv", type=float, metavar="CV", help="burstiness of --ramp; 1, Poisson, if not given")

    group = parser.add_argument_group("requests")
    group.add_argument("--api", choices=("chat", "completions"), default="chat", help="chat if not given")
    group.add_argument("--model", metavar="NAME", help="the server's first if not given")
    group.add_argument("--prompt-tokens", type=parse_law, metavar="LAW", help=f"{_PROMPT_TOKENS} if not given")
    group.add_argument(
        "--output-tokens", type=parse_law, metavar="LAW", help=f"{_OUTPUT_TOKENS} if not given: the limit sent"
    )
    group.add_argument("--lengths", choices=sorted(_LENGTHS), help="; ".join(map(_told_lengths, sorted(_LENGTHS))))
    group.add_argument(
        "--mix",
        action="append",
        nargs=3,
        type=float,
        metavar=("SHARE", "PROMPT", "OUTPUT"),
        help="a kind; again for more",
    )
    group.add_argument("--shared-prefix", type=int, default=0, metavar="TOKENS", help="all prompts begin with the same")
    group.add_argument("--prefixes", type=int, default=1, metavar="N", help="with one of N beginnings, in turn")
    group.add_argument(
        "--extra", type=_object, default={}, metavar="JSON", help="more fields, such as '{\"ignore_eos\": true}'"
    )
    group.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="again for more")
    group.add_argument("--usage-per-chunk", action="store_true", help="ask for token counts with each chunk (vLLM)")
    group.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json, for a server that doesn't count")

    group.add_argument(
        "--finish-reason",
        dest="finish_reasons",
        action="append",
        default=[],
        metavar="REASON",
        help="one more that ends a good answer, again for more; none: an answer may end without one. "
        f"Known: {', '.join(GOOD_REASONS)}",
    )

    group = parser.add_argument_group("patience, in seconds")
    for name, default, what in (
        ("connect", Setup.connect_timeout_s, "until there is a connection"),
        ("first-token", Setup.first_token_timeout_s, "from sending to the first byte"),
        ("idle", Setup.idle_timeout_s, "between two pieces of a stream"),
    ):
        group.add_argument(
            f"--{name}-timeout-s", type=float, default=default, metavar="S", help=f"{what}; {default:g} if not given"
        )
    group.add_argument(
        "--timeout-s",
        type=float,
        default=Setup.timeout_s,
        metavar="S",
        help=f"for the whole; {Setup.timeout_s:g} if not given",
    )

    group = parser.add_argument_group("what the server can't tell, for the report")
    for name, what in (
        ("precision", "of the weights"),
        ("quantization", "its method, or none"),
        ("accelerator", "a name, or an id of the catalogue"),
        ("engine", "its name"),
        ("engine-args", "how it was started"),
    ):
        group.add_argument(f"--{name}", metavar="TEXT", help=what)
    group.add_argument("--accelerators", type=int, metavar="N", help="how many")
    group.add_argument(
        "--memory-gib", type=float, metavar="GIB", help="of one; from the catalogue if it is known there"
    )

    group = parser.add_argument_group("the client and its files")
    group.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="sending processes, at most"
    )
    group.add_argument("--metrics-url", metavar="URL", help="the server's metrics; URL/metrics if not given")
    group.add_argument("--out", type=Path, metavar="FOLDER", help="bench-DATE-TIME if not given")
    group.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with a run that was broken off")
    _add_report_options(group)
    group.add_argument("--quiet", action="store_true", help="print nothing but errors")
    group.add_argument("--progress", action="store_true", help="say on stderr how far it is, also without a terminal")


def _add_report_options(group: Any) -> None:
    group.add_argument("--warmup-s", type=float, default=0.0, metavar="S", help="cut, by arrival, from each level")
    group.add_argument("--cooldown-s", type=float, default=0.0, metavar="S", help="cut, by arrival, before its end")
    group.add_argument("--slo", type=slo, metavar="NAME=S,...", help="limits on ttft_s, tpot_s, e2e_s: adds goodput")
    group.add_argument(
        "--late-s", type=float, default=LATE_S, metavar="S", help=f"a later client is the bottleneck; {LATE_S:g}"
    )


def _add_show(actions: Any) -> None:
    parser = actions.add_parser(
        "show",
        help="report on a load test again, with other cuts or limits; or on another tool's",
        description="Print the report of a load test's folder, finished or not; --json and --png write it. Of a result "
        "file of vLLM's bench (--save-detailed), GuideLLM or AIPerf (its records) print the summary, in this library's "
        "definitions; of a file of bench torch its fit and its checks; of a folder of bench vllm or bench llamacpp its "
        "table.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_show)
    parser.add_argument("run_read", type=Path, metavar="FOLDER|FILE")
    _add_report_options(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report; - is stdout, and nothing else is printed")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw throughput, P50 and P99 against load")


# Options to a plan


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 1,2,4; got {text!r}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object ({error})") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object; got {text}")
    return found


def _told_lengths(name: str) -> str:
    kinds = " or ".join(f"{prompt}+{output} ({100 * share:g} %%)" for share, prompt, output in _LENGTHS[name])
    return f"{name}: prompt+output tokens {kinds}"


def _stages(args: argparse.Namespace) -> list[Stage]:
    """The plan that the options describe."""
    columns: dict[str, Any] = {}
    kinds = args.mix or _LENGTHS.get(args.lengths)
    if kinds and (args.mix is None) == (args.lengths is None):
        raise ValueError("--mix and --lengths both choose lengths: give one")
    if args.trace is not None:
        refuse(args, ["mix", "lengths"], "belongs to a generated load; a trace brings its own lengths")
    elif kinds:
        refuse(args, ["prompt_tokens", "output_tokens"], "doesn't go with --mix and --lengths")
    if args.trace is None:
        columns = {
            "prompt_tokens": _PROMPT_TOKENS if args.prompt_tokens is None else args.prompt_tokens,
            "output_tokens": _OUTPUT_TOKENS if args.output_tokens is None else args.output_tokens,
        }
    stages = _levels(args, columns)
    if kinds:
        shares = [(share, int(prompt), int(output)) for share, prompt, output in kinds]
        stages = [mixed(stage, shares, args.seed) for stage in stages]
    return stages


def _levels(args: argparse.Namespace, columns: dict[str, Any]) -> list[Stage]:
    ramps = [name for name in ("ramp", "ramp_clients", "burst") if getattr(args, name) is not None]
    if len(ramps) > 1:
        raise ValueError(f"give one load; got {' and '.join(f'--{name}' for name in ramps).replace('_', '-')}")
    if not ramps or ramps == ["burst"]:
        refuse(args, ["stage_s", "gap_s"], "belongs to --ramp and --ramp-clients")
    if ramps != ["ramp"]:
        refuse(args, ["ramp_cv"], "belongs to --ramp")
    if ramps:
        names = ("poisson", "deterministic", "gamma", "on_off", "rate_profile", "closed_loop", "trace")
        refuse(args, [*names, "duration_s", "speed", "head"], f"doesn't go with --{ramps[0].replace('_', '-')}")
        if ramps != ["ramp_clients"]:
            refuse(args, ["n", "think_s"], f"doesn't go with --{ramps[0]}")
    stage_s = 30.0 if args.stage_s is None else args.stage_s
    if args.ramp is not None:
        cv = 1.0 if args.ramp_cv is None else args.ramp_cv
        return ramp(args.ramp, stage_s, args.seed, cv, **columns)
    if args.ramp_clients is not None:
        requests = 10_000 if args.n is None else args.n
        return ramp_clients(args.ramp_clients, stage_s, args.seed, requests, args.think_s or 0.0, **columns)
    if args.burst is not None:
        size, every_s, count = args.burst
        work = burst(size, every_s, count, columns["prompt_tokens"], columns["output_tokens"], args.seed)
        return [Stage(work, size)]
    return [_single(args, columns)]


def _single(args: argparse.Namespace, columns: dict[str, Any]) -> Stage:
    given = argparse.Namespace(**{**vars(args), **columns})
    if args.trace is not None:
        given.seed = None  # it is the prompts'
    rates = [args.poisson, args.deterministic, args.gamma and args.gamma[0]]
    rate = next((rate for rate in rates if rate is not None), None)
    if args.duration_s is not None:
        check_number("--duration-s", args.duration_s, gt=0)
        if args.n is not None:
            raise ValueError("--n and --duration-s both say how much is sent: give one")
        if rate is not None:
            refuse(args, ["speed", "head"], "doesn't go with --duration-s")
            given.n = max(1, round(rate * args.duration_s))
        elif args.closed_loop is not None:
            given.n = 10_000
        else:
            raise ValueError("--duration-s goes with --poisson, --deterministic, --gamma and --closed-loop")
    work = workload(given, {})
    if work.is_closed:
        return stage_of(work, args.duration_s)
    if rate is None or args.duration_s is None:
        return stage_of(work, load=rate and rate * (args.speed or 1))
    if args.deterministic is None:  # drawn again, so that they fill the time
        work = timed_arrivals(rate, args.duration_s, args.seed, args.gamma[1] if args.gamma else 1.0, **columns)
    return Stage(work, rate, args.duration_s)


def _headers(lines: list[str]) -> dict[str, str]:
    headers = key_headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header must be NAME:VALUE; got {line!r}")
        headers[name.strip()] = value.strip()
    return headers


def _about(args: argparse.Namespace) -> dict[str, Any]:
    names = ("precision", "quantization", "accelerator", "accelerators", "memory_gib", "engine", "engine_args")
    about = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if "accelerator" in about and "memory_gib" not in about:
        from servinglab.hardware.catalog import accelerator

        with suppress(ValueError):  # any name will do; only its memory isn't known then
            about["memory_gib"] = accelerator(about["accelerator"]).memory_gib
    return about


# The commands


def _http(args: argparse.Namespace) -> int:
    if args.resume is not None:
        folder = args.resume
        if args.url is not None:
            raise ValueError("--resume takes everything from its folder: give no URL")
        args = _as_begun(args, read_state(folder))
    elif args.url is None:
        raise ValueError("give the server's URL, or --resume FOLDER")
    else:
        folder = args.out or Path(datetime.now().strftime("bench-%Y%m%d-%H%M%S"))
    stages = _stages(args)
    root, headers = root_of(args.url), _headers(args.header)
    model = args.model or served_model(root, headers)
    names = (
        "api", "seed", "extra", "usage_per_chunk", "tokenizer", "finish_reasons", "connect_timeout_s",
        "first_token_timeout_s", "idle_timeout_s", "timeout_s",
    )  # fmt: skip
    setup = Setup(
        root=root,
        model=model,
        shared_tokens=args.shared_prefix,
        groups=args.prefixes,
        headers=headers,
        **{name: getattr(args, name) for name in names},
    )
    if not args.quiet:
        requests = sum(len(stage.workload) for stage in stages)
        levels = f"{len(stages)} level{'s' * (len(stages) > 1)}"
        print(
            f"{setup.url}, model {model}: {requests:,} requests, {levels}, written to {folder}",
            flush=True,
        )
    with Progress(args.progress or (sys.stderr.isatty() and not args.quiet)) as progress:
        whole = run_load_test(
            folder,
            setup,
            stages,
            workers=args.workers,
            gap_s=5.0 if args.gap_s is None else args.gap_s,
            metrics_url=args.metrics_url,
            about=_about(args) | {"words": args.words},
            doing=lambda text: setattr(progress, "doing", text),
        )
        progress.doing = "summing up"
        test = read_load_test(folder)
        report = make_report(test, **_cuts(args)) if test.records else None
        if report is not None:
            _write(test, report, folder)
    if report is not None and not args.quiet:
        print(f"\n{report}")
    if not whole:
        left = sum(len(stage.workload) for stage in stages) - len(test.records)
        print(f"servinglab: interrupted: {left:,} requests weren't sent; go on with --resume {folder}", file=sys.stderr)
        return 130
    return 0


def _show(args: argparse.Namespace) -> int:
    check_files({"--json": args.json, "--png": args.png}, {"--png": (".png",)})
    if args.run_read.is_file():
        return _show_other(args)
    for command, read in ((bench_vllm, read_vllm_bench), (bench_llamacpp, read_llamacpp)):
        if command.is_bench(args.run_read):
            if args.json or args.png or args.slo or args.warmup_s or args.cooldown_s or args.late_s != LATE_S:
                raise ValueError("a folder of bench vllm or bench llamacpp is shown as it is, without these options")
            print(read(args.run_read))
            return 0
    test = read_load_test(args.run_read)
    report = make_report(test, **_cuts(args))
    if args.png:
        write_whole(args.png, _drawn(report))
    if args.json:
        write_json(args.json, report.content)
    if args.json != "-":
        print(report)
    return 0


def _show_other(args: argparse.Namespace) -> int:
    """Of a run without a folder: what it is, and its summary."""
    if args.png or args.warmup_s or args.cooldown_s:
        raise ValueError("--png, --warmup-s and --cooldown-s belong to a load test's folder")
    if torch_steps.is_steps(args.run_read):
        steps = torch_steps.read_steps(args.run_read)
        if args.json:
            write_json(args.json, {**steps.header, **torch_steps.outcome(steps)})
        if args.json != "-":
            print(steps)
        return 0
    result = read_run(args.run_read)
    about, summary = told_plainly(result.setup.told()), result.summary(args.slo)
    if args.json:
        write_json(args.json, {"description": about, "summary": summary.to_dict()})
    if args.json != "-":
        print("\n".join(f"{name:<18}  {value}" for name, value in about.items()), f"\n{summary}", sep="\n")
    return 0


def _cuts(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("warmup_s", "cooldown_s", "late_s", "slo")}


def _as_begun(args: argparse.Namespace, state: dict[str, Any]) -> argparse.Namespace:
    """The options that a run was begun with; only what is said on the way is this command's."""
    words = state["about"]["words"]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_parser(parser.add_subparsers(), argparse.ArgumentParser)
    begun = parser.parse_args(words)
    begun.words, begun.model = words, state["setup"]["model"]
    begun.quiet, begun.progress = args.quiet, args.progress
    return begun


def _write(test: LoadTest, report: Report, folder: Path) -> None:
    write_json(str(folder / "report.json"), report.content)
    write_whole(folder / "report.png", _drawn(report))
    for stage, content in vllm_bench_fields(test).items():
        write_json(str(folder / f"vllm-{stage}.json"), content)


def _drawn(report: Report) -> Callable[[Path], None]:
    """What draws the report: against load, or, of one level, the distribution of its latencies."""

    def draw(file: Path) -> None:
        import matplotlib.style
        from matplotlib.figure import Figure

        from servinglab.plots.figures import STYLE, latency_cdf, load_curve

        unit = report.content["levels"][0]["unit"]
        ramp = len(report.levels) > 1
        with resources.as_file(STYLE) as style, matplotlib.style.context(style):
            figure = Figure(figsize=(6.4, 6.4 if ramp else 4.0), layout="constrained")
            if ramp:
                axes = figure.subplots(2, 1, sharex=True)
                load_curve(report.levels, report.knee, unit="1/s" if unit == "requests/s" else unit, axes=axes)
            else:
                latency_cdf(report.levels[0].latency_s, ax=figure.subplots())
            figure.savefig(file, format="png", dpi=150)

    return draw
