"""A real vLLM, measured, calibrated and predicted: what is sent, what is kept of it, and what comes of what was kept.

`measure` sends the loads to a running server through the load generator and keeps of each one file of vLLM's steps
(`servinglab.measure.readers.vllm_steps`). `read_vllm_bench` reads a folder of these files, or one zipped: it calibrates
on those that are for it, predicts the others from their plans, and replays every step's decision by the scheduler's
rules.

Times are the engine's: a request arrives when it reaches the engine, its tokens are out when a step is over. What HTTP
adds stands beside it. Only one thing of HTTP is in the prediction: a client of a closed loop sends its next request a
moment after its answer, and how long that moment is comes from the calibration's own closed loops, by counting:
clients × time − the requests' time in the engine is what the clients spent outside it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from servinglab.base.files import file_stem, write_whole
from servinglab.base.text import aligned, show_number
from servinglab.engine.simulate import simulate
from servinglab.measure.calibration.steps import Calibration, Prediction, calibrate, prediction_table
from servinglab.measure.engines.predicted_loads import calibration_loads, loads
from servinglab.measure.engines.vllm_server import VllmServer, VllmSettings
from servinglab.measure.load_test.plan import Stage
from servinglab.measure.load_test.records import to_result, unpacked
from servinglab.measure.load_test.run import Setup, run_or_raise
from servinglab.measure.machine import cpu_clock, cpu_name, others_share
from servinglab.measure.readers.vllm_run import MeasuredRun
from servinglab.measure.readers.vllm_steps import read_run_and_trace, read_vllm_steps, write_vllm_steps
from servinglab.result.result import Result
from servinglab.scheduling.recorded import compare
from servinglab.workload.arrival_laws import closed_loop
from servinglab.workload.lengths import Uniform
from servinglab.workload.model import Workload

_STEPS = ".steps.jsonl.xz"
CALIBRATION, LOAD = "calibration", "load"
_FIRST = 2  # rounds of calibration before the loads: their rates follow from them


@dataclass(frozen=True, eq=False)
class VllmBench:
    """What was measured on a real vLLM, and what the simulator says of it. Made by `read_vllm_bench`.

    Attributes
    ----------
    environment : mapping
        Versions, processor, threads, model, settings, date.
    calibration : Calibration
    turnaround_s : float
        From a client's answer to its next request at the engine, on average, in the calibration's closed loops.
    predictions : sequence of Prediction
    runs : mapping of str to MeasuredRun
        Every measured run, those of the calibration included, by its file's name.
    equal : int
        Steps that our rules decide as vLLM did, given who came before which step.
    steps : int
        All steps.
    difference : str or None
        The first difference.
    client : mapping of str to mapping
        For each run of a load, medians as the HTTP client saw them.
    """

    environment: Mapping[str, Any]
    calibration: Calibration
    turnaround_s: float
    predictions: Sequence[Prediction]
    runs: Mapping[str, MeasuredRun]
    equal: int
    steps: int
    difference: str | None
    client: Mapping[str, Mapping[str, float]]

    @property
    def others(self) -> float | None:
        """The largest share of the machine that others used during a run; None where that isn't known."""
        shares = [run.meta["others"] for run in self.runs.values() if run.meta["others"] is not None]
        return max(shares, default=None)

    def __str__(self) -> str:
        about = self.environment
        shape = about["settings"]
        preempted = sum(int(run.result.preemptions.sum()) for run in self.runs.values())
        lines = [
            f"engine   vLLM {about['vllm']}, torch {about['torch']}, {about['date']}",
            f"model    random Llama, {shape['layers']} layers of {shape['hidden']}, float32",
            f"machine  {about['cpu']}, {shape['threads']} of {about['cpus']} CPUs computing"
            + ("" if self.others is None else f"; others used at most {self.others:.0%} of it in a run"),
            f"steps    {self.equal:,} of {self.steps:,} decided as by our rules; {preempted:,} preemptions",
        ]
        if self.difference:
            lines.append(f"         first difference: {self.difference}")
        table = [("at the client and at the engine", "TTFT P50", "TPOT P50", "E2E P50")]
        for name, seen in self.client.items():
            engine = _medians(self.runs[name].result)
            cells = [f"{show_number(seen[each])} / {show_number(engine[each])} s" for each in ("ttft", "tpot", "e2e")]
            table.append((name, *cells))  # type: ignore[arg-type]
        return "\n".join(
            [
                *lines,
                f"\n{self.calibration}",
                f"clients of closed loops turn around in {1e3 * self.turnaround_s:.1f} ms",
                f"\n{prediction_table(self.predictions)}\n",
                *aligned(table),
            ]
        )


def read_vllm_bench(path: str | Path) -> VllmBench:
    """Read what `servinglab bench vllm` measured, calibrate on it and predict it.

    Parameters
    ----------
    path : path
        A folder that the command wrote, or a zip file of one.

    Raises
    ------
    ValueError
        If there is nothing to calibrate with or to predict, or a file is damaged.
    """
    with unpacked(path, "bench vllm") as folder:
        return _read(folder, path)


def _read(folder: Path, path: str | Path) -> VllmBench:
    files = sorted(folder.glob(f"*{_STEPS}"))
    names = [file.name.removesuffix(_STEPS) for file in files]
    runs, traces = {}, {}
    for name, file in zip(names, files, strict=True):
        runs[name], traces[name] = read_run_and_trace(file)
    for_calibration = [run for run in runs.values() if run.meta["for"] == CALIBRATION]
    of_load: dict[str, list[MeasuredRun]] = {}
    for run in sorted((run for run in runs.values() if run.meta["for"] == LOAD), key=lambda run: run.meta["order"]):
        of_load.setdefault(run.name, []).append(run)
    if not for_calibration or not of_load:
        raise ValueError(f"{path} must hold runs that calibrate and loads; got {len(runs)} recordings")
    calibration = calibrate([run.result for run in for_calibration])
    turnaround_s = _turnaround_s(for_calibration)
    predictions = []
    for name, measured in of_load.items():
        work = _planned(measured[0].meta["plan"], name, turnaround_s)
        predicted = simulate(work, measured[0].scheduler, calibration.fit.step, kv=measured[0].kv)
        predictions.append(Prediction(name, [run.result for run in measured], predicted))
    equal = steps = 0
    difference = None
    for name, trace in traces.items():
        same, first = compare(trace)
        equal, steps = equal + same, steps + len(trace["steps"])
        if first and not difference:
            difference = f"{name}, {first}"
    return VllmBench(
        environment=next(iter(runs.values())).meta["environment"],
        calibration=calibration,
        turnaround_s=turnaround_s,
        predictions=predictions,
        runs=runs,
        equal=equal,
        steps=steps,
        difference=difference,
        client={name: run.meta["client"] for name, run in runs.items() if run.meta["for"] == LOAD},
    )


def measure(
    server: VllmServer,
    folder: Path,
    settings: VllmSettings,
    versions: Mapping[str, Any],
    *,
    n: int,
    repeats: int,
    seed: int,
    longest_prompt: int,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Send everything that isn't in the folder yet: in each round every load, and after each what calibrates.

    A shared machine changes its pace within a minute, so calibration is spread over the whole as the loads are, and
    many short rounds say more than a few long ones.

    Raises
    ------
    Interrupted
        On Ctrl-C.
    """
    environment = environment_of(settings, versions)
    send = partial(_send, server, folder, environment, seed)
    seats = settings.max_num_seqs
    made = calibration_loads(seats, longest_prompt)
    bursts = [each for each in made if not each.is_closed]
    loops = [each for each in made if each.is_closed]

    def calibration_round(number: int) -> None:
        send(f"{CALIBRATION}-{number}-bursts", CALIBRATION, "bursts", bursts)
        for loop in loops:
            name = f"closed, {loop.clients} clients"
            send(f"{CALIBRATION}-{number}-closed-{loop.clients}", CALIBRATION, name, [loop])

    say("warming up")
    shutil.rmtree(folder / "warm-up", ignore_errors=True)
    run_or_raise(folder / "warm-up", _setup(server, seed), [Stage(bursts[-1], 1.0)])
    say("calibrating")
    for number in range(_FIRST):
        calibration_round(number)
    first = [
        read_vllm_steps(file).result
        for number in range(_FIRST)
        for file in sorted(folder.glob(f"{CALIBRATION}-{number}-*{_STEPS}"))
    ]
    plans = dict(loads(calibrate(first).fit.step, seats, n, seed, longest_prompt))
    plans["closed, short of memory"] = _short_of_memory(settings, n, seed)
    for number in range(1, repeats + 1):
        for place, (name, work) in enumerate(plans.items(), start=1):
            say(f"round {number} of {repeats}: {name}")
            send(f"{file_stem(name)}-{number}", LOAD, name, [work])
            say(f"round {number} of {repeats}: calibrating")
            calibration_round(_FIRST - 1 + (number - 1) * len(plans) + place)


def environment_of(settings: VllmSettings, versions: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording ought to say of where it was made."""
    packages = dict(versions["packages"])
    torch = packages.pop("torch")
    return {
        "vllm": ", ".join(f"{version} ({name})" for name, version in packages.items()),
        "torch": torch,
        "python": versions["python"],
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "settings": asdict(settings),
    }


def _short_of_memory(settings: VllmSettings, n: int, seed: int) -> Workload:
    """Clients whose answers grow until they need half as much again as the pool has: some lose their blocks."""
    seats = settings.max_num_seqs
    tokens = round(1.5 * settings.usable_blocks * settings.block_size / seats)
    tokens = min(tokens, settings.max_model_len)
    prompts, outputs = Uniform(tokens // 8, tokens // 4), Uniform(tokens // 2, tokens * 3 // 4)
    return closed_loop(seats, max(seats, n // 10), seed + 1, prompt_tokens=prompts, output_tokens=outputs)


def _setup(server: VllmServer, seed: int) -> Setup:
    return Setup(server.root, "completions", "random", seed, extra={"ignore_eos": True, "temperature": 0})


def _send(
    server: VllmServer,
    folder: Path,
    environment: Mapping[str, Any],
    seed: int,
    file: str,
    purpose: str,
    name: str,
    works: Sequence[Workload],
) -> None:
    """Send one run, and keep what vLLM did meanwhile; nothing if that is here already."""
    kept = folder / f"{file}{_STEPS}"
    if kept.exists():
        return
    client = folder / file
    shutil.rmtree(client, ignore_errors=True)  # of a run that was broken off
    stages = [Stage(work, float(work.clients or 1)) for work in works]
    before = server.recording.read_text("utf-8")
    clock = cpu_clock()
    records = run_or_raise(client, _setup(server, seed), stages, gap_s=0.1)
    others = others_share(clock, cpu_clock())
    about = {
        "load": name,
        "for": purpose,
        "order": len(list(folder.glob(f"*{_STEPS}"))),
        "others": others,
        "plan": _told(works[0]) if len(works) == 1 else None,
        "client": _medians(to_result(records, "sent")),
        "config": json.loads(before.split("\n", 1)[0])["config"],
        "environment": environment,
        "first_request": before.count('\n{"arrive":'),
    }
    recording = server.recording.read_text("utf-8")[len(before) :]
    whole = recording[: recording.rfind("\n") + 1]
    write_whole(kept, lambda part: write_vllm_steps(part, about, whole))


def _told(work: Workload) -> dict[str, Any]:
    """A plan, for JSON."""
    return {
        "clients": work.clients,
        "arrival_s": None if work.is_closed else work.arrival_s.tolist(),
        "prompt_tokens": work.prompt_tokens.tolist(),
        "output_tokens": work.output_tokens.tolist(),
    }


def _planned(plan: Mapping[str, Any], name: str, turnaround_s: float) -> Workload:
    """The plan again; a client's first request is sent at once."""
    lengths = {each: plan[each] for each in ("prompt_tokens", "output_tokens")}
    clients = plan["clients"]
    if not clients:
        arrival_s = np.array(plan["arrival_s"])
        return Workload.from_arrivals(
            arrival_s - arrival_s[0], **lengths, name=name
        )  # a recording opens with the first
    think_s = np.full(len(plan["prompt_tokens"]), turnaround_s)
    think_s[:clients] = 0.0
    return replace(closed_loop(clients, len(think_s), 0, think_s, **lengths), name=name)


def _turnaround_s(runs: Sequence[MeasuredRun]) -> float:
    """Clients' time outside the engine for each request after their first, in closed loops, until the last is sent."""
    outside_s, requests = 0.0, 0
    for run in runs:
        plan = run.meta["plan"]
        if plan is None or not plan["clients"] or len(run) <= plan["clients"]:
            continue
        came, left = np.sort(run.result.arrival_ns), run.result.finish_ns
        last = came[-1]
        inside = float((np.minimum(left, last) - run.result.arrival_ns).sum())
        # each client counts from its own first request on
        outside_s += (float((last - came[: plan["clients"]]).sum()) - inside) / 1e9
        requests += len(run) - plan["clients"]
    # clients that have nothing left to send are outside, too, but only after the others' last request
    return max(0.0, outside_s / requests) if requests else 0.0


def _medians(result: Result) -> dict[str, float]:
    summary = result.summary()
    return {"ttft": summary.ttft_s.p50, "tpot": summary.tpot_s.p50, "e2e": summary.e2e_s.p50}
