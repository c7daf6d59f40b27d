"""Options of the command line that describe a workload: a trace, or how one is generated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from servinglab.base.checks import check_choice, check_number
from servinglab.cli.engine_options import option, refuse, require
from servinglab.workload.arrival_laws import closed_loop, deterministic, gamma_arrivals, on_off, poisson, rate_profile
from servinglab.workload.model import Workload
from servinglab.workload.public_data import find_trace
from servinglab.workload.traces import read_trace

GENERATORS = ("poisson", "deterministic", "gamma", "on_off", "rate_profile", "closed_loop")


def add_workload_source(parser: argparse.ArgumentParser, *, trace: str, title: str) -> Any:
    """The options of which one is given: where the requests come from. The argument or option `trace` names a trace."""
    group = parser.add_argument_group(title)
    optional: dict[str, Any] = {} if trace.startswith("-") else {"nargs": "?"}
    group.add_argument(trace, metavar="TRACE", help="a file, or a name in SERVINGLAB_DATA's traces/", **optional)
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
    return group


def slo(text: str) -> dict[str, float]:
    """Limits such as ttft_s=2,tpot_s=0.1."""
    from servinglab.metrics.slo import SLO_NAMES

    limits = {}
    for item in text.split(","):
        name, _, limit = item.partition("=")
        try:
            limits[check_choice("NAME", name.strip(), SLO_NAMES)] = check_number(name, float(limit), gt=0)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{item!r}: {error}") from None
    return limits


def workload(args: argparse.Namespace, defaults: dict[str, Any]) -> Workload:
    """The one workload that the options describe; defaults that were used are added to `defaults`."""
    sources = [option(name) for name in GENERATORS if getattr(args, name) is not None]
    if args.trace is not None:
        sources.insert(0, f"the trace {args.trace}")
    if len(sources) != 1:
        found = f"got {' and '.join(sources)}" if sources else "got none"
        raise ValueError(f"give one workload, a trace or one of {', '.join(map(option, GENERATORS))}; {found}")
    columns = ("prompt_tokens", "output_tokens", "service_scale", "priority")
    if args.closed_loop is None:
        refuse(args, ["think_s"], "belongs to --closed-loop")
    if args.trace is not None:
        refuse(args, ["n", "seed", *columns], "belongs to a generated workload; a trace brings its own requests")
        work = read_trace(find_trace(args.trace))
    else:
        work = _generate(args, {name: getattr(args, name) for name in columns}, defaults)
    if args.head is not None:
        work = work.head(args.head)
    return work if args.speed is None else work.scaled(args.speed)


def _generate(args: argparse.Namespace, columns: dict[str, Any], defaults: dict[str, Any]) -> Workload:
    columns = {name: value for name, value in columns.items() if name != "priority" or value is not None}
    for name, value in {"prompt_tokens": 0, "output_tokens": 1, "service_scale": 1}.items():
        if columns[name] is None:
            columns[name] = defaults[name] = value
    if args.rate_profile is not None:
        refuse(args, ["n"], "doesn't go with --rate-profile: the area under the profile decides")
        (seed,) = require(args, ["seed"], "--rate-profile")
        times_s, rates_rps = _points(args.rate_profile)
        return rate_profile(times_s, rates_rps, seed, **columns)
    if args.deterministic is not None:
        (n,) = require(args, ["n"], "--deterministic")
        return deterministic(args.deterministic, n, args.seed, **columns)
    n, seed = require(args, ["n", "seed"], "a random workload")
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
