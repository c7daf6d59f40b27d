"""`servinglab serve-sim`: an OpenAI-compatible server that answers at the simulated engine's pace."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import textwrap
from typing import Any

from servinglab.base.checks import check_number
from servinglab.base.event_loop import precise_loop
from servinglab.base.open_files import open_more_files
from servinglab.cli.engine_options import (
    STEP_TIME_SOURCE,
    Engine,
    add_machine_options,
    add_scheduler_options,
    engine,
    option,
)
from servinglab.cli.law_option import parse_law
from servinglab.metrics import exposed
from servinglab.scheduling.schedulers import StaticBatching
from servinglab.sim_server import faults, fields
from servinglab.sim_server.server import Settings, SimServer, run
from servinglab.workload.lengths import Constant

_HELP = (
    "Serve OpenAI's completions and chat completions, streamed or not, with the timing of a simulated engine: a laptop "
    "answers like a GPU, in words without meaning. Load-test it, point a client at it, or break it on purpose.",
    "Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /health, /metrics (Prometheus, under vLLM's names), "
    "/faults (GET tells, PUT sets). Ctrl-C and SIGTERM let the answers under way end first.",
    "A prompt of token ids has as many tokens as ids; in text each word counts as one, or --chars-per-token "
    "characters do. An answer has max_tokens tokens, 16 if the request names none; with --output-tokens it ends where "
    "that law says, if that is earlier and ignore_eos isn't set.",
    "Each field of a request is done, left unread or refused with 400, as is a name that isn't known. Done: "
    f"{', '.join([*fields.HONOURED, *fields.CHAT, *fields.COMPLETION])}. Left unread, for they only choose words or "
    f"are labels: {', '.join(fields.IGNORED)}. Refused unless they ask for nothing: {', '.join(fields.REFUSED)}.",
    "At its start it raises its limit of open files as far as it may (ulimit -Hn). With none left for a new connection "
    "it answers 503 with Retry-After, though /metrics and the other pages still come, counts that in "
    "servinglab:connection_rejections_total, and says so on stderr once, and once more when it is over.",
    f"The engine's options and defaults are those of servinglab simulate; without any, the step time is that of "
    f"{STEP_TIME_SOURCE}.",
)
_EXAMPLES = """\
examples:
  servinglab serve-sim --model llama-3.1-8b --accelerator h100-sxm --max-num-batched-tokens 8192
  servinglab serve-sim --scheduler dynamic --batch-size 16 --window-s 0.05 --fixed-s 0.4 --per-request-s 0.02
  servinglab serve-sim --max-queue 100 --fault 429:p=0.02,seconds=2 --fault cut:every=50
  curl -N localhost:8000/v1/completions -d '{"prompt": "one two three", "max_tokens": 8, "stream": true}'
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve-sim",
        help="an OpenAI-compatible server with the simulator's timing",
        description="\n\n".join(textwrap.fill(text, 100, break_on_hyphens=False) for text in _HELP),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="servinglab serve-sim [options]",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_serve_sim)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="0: one that is free (default: %(default)s)")
    group.add_argument("--served-model-name", metavar="NAME", help="the model's name (default: --model or servinglab)")
    group.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="X",
        help="run the engine X times as fast; below 1, HTTP's own time weighs less",
    )
    group.add_argument("--output-tokens", type=parse_law, metavar="LAW", help="how long answers are, as in simulate")
    group.add_argument("--chars-per-token", type=int, metavar="N", help="characters of text that count as one token")
    group.add_argument(
        "--stream-interval", type=int, default=1, metavar="N", help="tokens in a chunk of a stream (%(default)s)"
    )
    group.add_argument("--seed", type=int, default=0, help="of lengths and faults (default: %(default)s)")
    group.add_argument("--max-queue", type=int, metavar="N", help="answer 503 while so many requests wait")
    group.add_argument(
        "--drain-s",
        type=float,
        default=5.0,
        metavar="S",
        help="how long it waits for answers at its end (%(default)s)",
    )
    group = parser.add_argument_group(
        "faults, each KIND:p=SHARE or KIND:every=N, some with seconds=S",
        "\n".join(f"  {kind:10}{what}" for kind, what in faults.KINDS.items())
        + f"\nOne request asks for one by the header {faults.HEADER}: KIND",
    )
    group.add_argument("--fault", action="append", default=[], metavar="FAULT", help="may be given several times")
    add_scheduler_options(parser)
    add_machine_options(parser)


def _serve_sim(args: argparse.Namespace) -> int:
    open_more_files()
    defaults: dict[str, Any] = {}
    check_number("drain_s", args.drain_s, ge=0)
    check_number("port", args.port, ge=0, le=65535, integer=True)
    serves = engine(args, defaults)
    settings = Settings(
        serves.scheduler,
        serves.step_time,
        kv=serves.kv,
        pots=serves.pots,
        speed=args.speed,
        model=args.served_model_name or args.model or "servinglab",
        output_tokens=Constant(law) if isinstance(law := args.output_tokens, float) else law,
        seed=args.seed,
        max_queue=args.max_queue,
        faults=args.fault,
        chars_per_token=args.chars_per_token,
        stream_interval=args.stream_interval,
    )
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return runner.run(_serve(settings, args, serves, defaults))


async def _serve(settings: Settings, args: argparse.Namespace, serves: Engine, defaults: dict[str, Any]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    server: SimServer | None = None

    def started(started_server: SimServer) -> None:
        nonlocal server
        server = started_server
        print("\n".join(serves.lines()))
        if defaults:
            used = ", ".join(f"{option(name)} {value}" for name, value in defaults.items())
            print(textwrap.fill(f"defaults used: {used}", 110, subsequent_indent="  ", break_on_hyphens=False))
        if isinstance(settings.scheduler, StaticBatching):
            print("static batching: a request waits until its batch is full, for ever if nobody else comes")
        print(f"serving    {settings.model} at {server.url}/v1  (Ctrl-C ends it)", flush=True)
        gc.collect()
        gc.freeze()  # a later collection then needn't walk what is here for good: it would hold a step up

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C doesn't wait for answers
        loop.call_soon_threadsafe(stop.set)

    before = {name: signal.signal(name, end) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        await run(settings, args.host, args.port, started, stop, args.drain_s)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    assert server is not None
    metrics = server.metrics
    ends = ", ".join(f"{count:,} {reason}" for reason, count in metrics.request_success.items() if count)
    late = metrics.histograms[exposed.STEP_LATENESS]
    steps = late.cumulative()[-1]
    print(f"served     {ends or 'nobody'}; {metrics.generation_tokens:,} tokens in {steps:,} steps", end="")
    print(f", handed over {1e3 * late.sum / steps:.2f} ms after their end on average" if steps else "")
    if (note := server.unpriced_attention) is not None:
        print(f"note       {note}")
    return 0
