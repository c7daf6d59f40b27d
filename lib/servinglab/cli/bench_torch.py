"""`servinglab bench torch`: time a model's steps on this device, fit a step time, and check the numbers."""

from __future__ import annotations

import argparse
import sys
import textwrap
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from servinglab.cli.progress import Progress
from servinglab.hardware import catalog
from servinglab.hardware.catalog import Model
from servinglab.measure.engines.torch_stack import BYTES, import_torch
from servinglab.measure.engines.torch_steps import Plan, TorchSteps, plan_for, read_steps, time_steps

_HELP = (
    "Time a model's layers in PyTorch, with random weights, on this machine's GPU or CPU: decode steps against "
    "requests and context, prompts against tokens. The median, quartiles and late samples of each point go to FILE "
    "as it is timed; then a step time is fitted to them. Where not all layers fit, those that do are timed, and the "
    "output says how a whole step follows.",
    "The device's read bandwidth and matrix FLOP/s are timed before and after. The exit status is 1 if a point is "
    "faster than they allow, a larger step is faster than a smaller one, or points are missing.",
    "Ctrl-C keeps what there is; --resume FILE goes on, and servinglab bench show FILE prints it again. Needs pip "
    "install 'servinglab[torch]'.",
)
_EXAMPLES = """\
examples:
  servinglab bench torch                              # llama-3.1-8b on a GPU, in a few minutes
  servinglab bench torch --model qwen3-30b-a3b --layers 8
  servinglab bench torch --model qwen3-0.6b --device cpu --threads 1 --samples 7
"""


def add_parser(actions: Any) -> None:
    """Add `bench torch`."""
    parser = actions.add_parser(
        "torch",
        help="time a model's steps on this GPU or CPU",
        description="\n\n".join(textwrap.fill(text, 100) for text in _HELP),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--model",
        metavar="ID|FOLDER",
        help="of the catalogue, or with a config.json; llama-3.1-8b on a GPU, qwen3-0.6b on a CPU",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), help="a GPU if there is one")
    parser.add_argument("--dtype", choices=tuple(BYTES), help="bfloat16 on a GPU and float32 on a CPU if not given")
    parser.add_argument("--layers", type=int, metavar="N", help="build at most N; all that fit on a GPU, 2 on a CPU")
    parser.add_argument("--threads", type=int, metavar="N", help="on a CPU; PyTorch's choice if not given")
    group = parser.add_argument_group("points; lists such as 1,8,64")
    group.add_argument("--requests", type=_counts, metavar="LIST", help="of decode steps")
    group.add_argument("--contexts", type=_counts, metavar="LIST", help="tokens that each holds")
    group.add_argument("--prompts", type=_counts, metavar="LIST", help="tokens of a prompt")
    group.add_argument("--kv-tokens", type=int, metavar="N", help="leave out decode points that hold more in all")
    group.add_argument("--samples", type=int, metavar="N", help=f"of each point; {Plan.samples} if not given")
    group.add_argument(
        "--limit-s", type=float, metavar="S", help=f"begin no point after so long; {Plan.limit_s:g} if not given"
    )
    group.add_argument("--seed", type=int, metavar="N", help="of the points' order and the weights; 0 if not given")
    group = parser.add_argument_group("the file")
    group.add_argument("--out", type=Path, metavar="FILE", help="JSON lines; torch-DATE-TIME.jsonl if not given")
    group.add_argument("--resume", type=Path, metavar="FILE", help="go on with a file that was broken off")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


_POINTS = ("requests", "contexts", "prompts", "kv_tokens", "samples", "limit_s", "seed")
_BUILT = ("model", "device", "dtype", "layers", "threads")


def _run(args: argparse.Namespace) -> int:
    torch = import_torch()
    given = {name: getattr(args, name) for name in (*_BUILT, *_POINTS) if getattr(args, name) is not None}
    if args.resume:
        fixed = [f"--{name.replace('_', '-')}" for name in given if name != "limit_s"]
        if fixed or args.out:
            raise ValueError(f"--resume goes on as the file was begun; it doesn't go with {(*fixed, '--out')[0]}")
        file, begun = args.resume, read_steps(args.resume)
        where, built = begun.header["environment"], begun.scaled
        model, plan = built.model, Plan(**{**begun.header["plan"], **given})
        how: dict[str, Any] = dict(
            device=where["kind"], dtype=built.dtype, layers=built.layers, threads=where["threads"], resume=True
        )
    else:
        device = given.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        model = _model(given.get("model") or ("llama-3.1-8b" if device == "cuda" else "qwen3-0.6b"))
        plan = plan_for(device, **{name: given[name] for name in _POINTS if name in given})
        file = args.out or Path(datetime.now().strftime("torch-%Y%m%d-%H%M%S.jsonl"))
        how = {"device": device, **{name: given.get(name) for name in ("dtype", "layers", "threads")}}
    with Progress(sys.stderr.isatty() and not args.quiet) as progress:
        try:
            steps = time_steps(file, model, plan=plan, say=partial(setattr, progress, "doing"), **how)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"with what was timed in {file}: --resume {file} goes on") from None
    if not args.quiet:
        print(f"{steps}\n\nwrote {file}")
    return passes(steps)


def passes(steps: TorchSteps) -> int:
    """The exit status: 0 if every check holds, else 1."""
    return 0 if all(check["holds"] for check in steps.checks()) else 1


def _model(name: str) -> Model:
    return catalog.model_from_config(name) if Path(name).is_dir() else catalog.model(name)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))
