"""`servinglab bench openvino MODEL_DIR`: calibrate a real engine on this machine, predict it, and show both."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from servinglab.base.files import file_stem, write_json, write_whole
from servinglab.cli.progress import Progress
from servinglab.measure.calibration.steps import prediction_table
from servinglab.measure.engines.openvino import OpenVinoEngine
from servinglab.measure.engines.predicted_loads import Outcome, predict_loads
from servinglab.measure.engines.stepped import CLOCKS
from servinglab.result.compare import told_plainly
from servinglab.result.result import Result
from servinglab.result.save import save_run

_HELP = (
    "Step OpenVINO GenAI's continuous batching by hand on this machine's CPU: time short runs, fit a step time to "
    "them, predict three loads that the fit hasn't seen (open loop at a half of the capacity and near the knee, and a "
    "closed loop), and print predicted beside measured. Time passes only while the engine computes.",
    "MODEL_DIR holds an OpenVINO model, as optimum-cli export openvino writes it. Needs pip install "
    "'servinglab[openvino]'.",
    "With --out, FOLDER gets every measured and predicted run as .npz, which servinglab.read_run and servinglab "
    "compare read, and at last prediction.json. Ctrl-C keeps the runs that were measured.",
)


def add_parser(actions: Any) -> None:
    """Add `bench openvino`."""
    parser = actions.add_parser(
        "openvino",
        help="calibrate OpenVINO GenAI on this CPU, and predict it",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--n", type=int, default=200, help="requests in each load; 200 if not given")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts; 0 if not given")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of measuring; 3 if not given")
    parser.add_argument("--max-num-seqs", type=int, default=8, metavar="N", help="requests at once; 8 if not given")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=256, metavar="N", help="tokens in a step; 256 if not given"
    )
    parser.add_argument(
        "--longest-prompt", type=int, default=512, metavar="TOKENS", help="of all that is run; 512 if not given"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that compute; 1 if not given")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu, with one thread, leaves out the time that other programs take; wall if not given",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="made if it isn't there")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _run(args: argparse.Namespace) -> int:
    if args.clock == "cpu" and args.threads != 1:
        raise ValueError(f"--clock cpu needs --threads 1: CPU time adds up over threads; got {args.threads}")
    engine = OpenVinoEngine(
        args.model_dir,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        threads=args.threads,
        seed=args.seed,
    )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    with Progress(sys.stderr.isatty() and not args.quiet) as progress:
        outcome = predict_loads(
            engine,
            n=args.n,
            seed=args.seed,
            repeats=args.repeats,
            longest_prompt=args.longest_prompt,
            clock=args.clock,
            say=partial(setattr, progress, "doing"),
            keep=partial(_keep, args.out),
        )
    if args.out:
        _write(outcome, engine, args.out)
    if not args.quiet:
        facts = engine.facts
        print(f"engine      {facts['engine']}, {facts['model']}")
        print(f"device      {facts['device']}, {args.threads} of {os.cpu_count()} CPUs")
        print(f"steps       {outcome.steps:,}, each formed as the scheduler's rules say")
        busy = outcome.cpu_per_wall / args.threads
        print(f"machine     the engine had {busy:.0%} of its threads' time{' ' + _BUSY if busy < 0.9 else ''}")
        print(f"\n{outcome.calibration}\n\n{prediction_table(outcome.predictions)}")
        if args.out:
            print(f"\nwrote {args.out / 'prediction.json'} and the runs beside it")
    return 0


_BUSY = "(the rest went to other programs: wall-clock figures hold for this hour only)"


def _keep(folder: Path | None, name: str, run: Result) -> None:
    if folder:
        write_whole(folder / f"{file_stem(name)}.npz", partial(save_run, run))


def _write(outcome: Outcome, engine: OpenVinoEngine, folder: Path) -> None:
    for each in outcome.predictions:
        _keep(folder, f"{each.load}, predicted", each.predicted)
    content = {
        "engine": engine.facts,
        "scheduler": told_plainly(engine.scheduler),
        "kv": told_plainly(engine.kv),
        "clock": outcome.runs[0].setup.clock,
        "cpu_per_wall": outcome.cpu_per_wall,
        "calibration": outcome.calibration.to_dict(),
        "loads": {each.load: each.rows() for each in outcome.predictions},
    }
    write_json(str(folder / "prediction.json"), content)
