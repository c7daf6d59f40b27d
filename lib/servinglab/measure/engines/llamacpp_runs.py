"""What did llama.cpp do with the same load under both rules? A recording, and the simulator beside it.

A recording is a folder, or a zip of it: ``llamacpp.json``, ``others.json`` and a load test's folder for each run,
``calibration-static-1``, ``static-1`` and so on, which `servinglab.read_run` reads one by one. Each rule has a
calibration of its own, for llama.cpp reads prompts alone faster than beside answers.

llama.cpp tells nothing of its steps, but its clients see them: all who run get a token at a step's end. So chunks that
come together are a step, and from one such moment to the next is that step's time, if somebody waited or went on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servinglab.base.checks import check_number
from servinglab.base.text import aligned
from servinglab.engine.reference.pots import reference
from servinglab.measure.calibration.steps import Prediction, prediction_table
from servinglab.measure.load_test.records import Record, pooled_gaps, read_records, unpacked
from servinglab.measure.readers.read_run import read_run
from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching
from servinglab.step_time.fit import TabulatedStep
from servinglab.workload.model import Workload

ABOUT, OTHERS = "llamacpp.json", "others.json"
FORMAT = "servinglab bench llamacpp"
RULES = ("static", "continuous")


@dataclass(frozen=True, eq=False)
class StepsSeen:
    """An engine's steps, as its clients see them. Made by `steps_seen`.

    Attributes
    ----------
    requests, prefill_tokens : int64 arrays
        How many got a token in each step; prompt tokens of those who got their first.
    seconds : float array
        From the step before, or from when the request was sent that opened the step.
    """

    requests: NDArray[np.int64]
    prefill_tokens: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepTable:
    """What a step takes by how many requests are in it, without a prompt and for each prompt token. By `tabulate`.

    Attributes
    ----------
    requests : int64 array
        1, 2 … as many as there are slots.
    decode_s : float array
        Mean seconds of the steps with so many requests and no prompt.
    per_prefill_token_s : float array
        What steps with so many requests took beyond that, for each prompt token in them.
    steps : int64 array
        How many were seen, with a prompt or without.
    """

    requests: NDArray[np.int64]
    decode_s: NDArray[np.float64]
    per_prefill_token_s: NDArray[np.float64]
    steps: NDArray[np.int64]

    @property
    def step(self) -> TabulatedStep:
        """As a step time."""
        seconds = np.stack([self.decode_s, self.decode_s + self.per_prefill_token_s], axis=1)
        return TabulatedStep(self.requests, [0, 1], seconds=seconds, outside="extend")

    def __str__(self) -> str:
        rows = [("requests in a step", "without a prompt", "a prompt token more", "steps seen")]
        columns = (self.requests, 1e3 * self.decode_s, 1e3 * self.per_prefill_token_s, self.steps)
        rows += [(str(n), f"{a:.1f} ms", f"{b:.1f} ms", f"{seen:,}") for n, a, b, seen in zip(*columns, strict=True)]
        return "\n".join(aligned(rows))


@dataclass(frozen=True, eq=False)
class LlamaBench:
    """A recording, calibrated and predicted. Printing it gives a table.

    Attributes
    ----------
    about : mapping
        Versions, settings, the plan, the machine.
    others : mapping
        For each run, by its name, how much of the CPUs other programs used; None where that isn't known.
    steps : mapping of str to StepTable
        By the names of `RULES`: what the calibration's runs show.
    predictions : mapping of str to Prediction
        By the names of `RULES`: the measured runs, and the simulator with that step time.
    """

    about: Mapping[str, Any]
    others: Mapping[str, float | None]
    steps: Mapping[str, StepTable]
    predictions: Mapping[str, Prediction]

    def __str__(self) -> str:
        shares = [share for share in self.others.values() if share is not None]
        about = [("engine", ", ".join(f"{name} {version}" for name, version in self.about["versions"].items()))]
        about.append(("machine", f"{self.about['cpu']}, {self.about['cpus']} CPUs"))
        if shares:
            about.append(("others", f"used {min(shares):.0%} to {max(shares):.0%} of the CPUs' time in a run"))
        lines = [f"{name:9}{text}" for name, text in about]
        for rule, table in self.steps.items():
            lines += ["", f"{rule}:", str(table)]
        return "\n".join([*lines, "", prediction_table(list(self.predictions.values()))])


def rules(slots: int) -> dict[str, ContinuousBatching | DynamicBatching]:
    """The simulator's schedulers that do what llama.cpp does.

    With continuous batching off, a batch is whoever waits when the last one is done: a window of 0. Answers stream, and
    a finished one leaves its steps, which get cheaper, though nobody takes its slot.
    """
    return {
        "static": DynamicBatching(slots, 0.0, streaming=True, padded=False),
        "continuous": ContinuousBatching(slots),
    }


def read_llamacpp(path: str | Path | None = None) -> LlamaBench:
    """Read a recording of `servinglab bench llamacpp`, calibrate on it and predict it.

    Parameters
    ----------
    path : str or Path, optional
        A folder, or a zip of one; the recording that comes with the library if not given.

    Raises
    ------
    ValueError
        If it isn't such a recording, or lacks a run.
    OSError
        If it can't be read.

    Examples
    --------
    >>> bench = read_llamacpp()
    >>> {rule: len(prediction.measured) for rule, prediction in bench.predictions.items()}
    {'static': 2, 'continuous': 2}
    """
    if path is None:
        with resources.as_file(resources.files("servinglab") / "data" / "llamacpp.zip") as file:
            return read_llamacpp(file)
    path = Path(path)
    path.stat()  # what isn't there is another error than what isn't a recording
    with unpacked(path, "bench llamacpp") as folder:
        return _read(folder, path)


def _read(folder: Path, path: Path) -> LlamaBench:
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        slots = check_number("slots", about["settings"]["slots"], ge=1, integer=True)
        repeats = check_number("repeats", about["plan"]["repeats"], ge=1, integer=True)
        known = about["format"] == FORMAT and {"versions", "cpu", "cpus"} <= set(about)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path} isn't a recording of servinglab bench llamacpp: it has no {ABOUT} of one")
    others = read_others(folder)
    steps, predictions = {}, {}
    for rule, scheduler in rules(slots).items():
        calibration, runs = ([f"{kind}-{k}" for k in range(1, repeats + 1)] for kind in (f"calibration-{rule}", rule))
        missing = [name for name in (*calibration, *runs) if name not in others]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}: it was broken off; bench llamacpp --out goes on")
        steps[rule] = tabulate(
            [steps_seen(read_records(folder / name / "requests.jsonl")) for name in calibration], slots
        )
        measured = [read_run(folder / name) for name in runs]
        first = measured[0]
        came = Workload.from_arrivals(first.arrival_s, first.prompt_tokens, first.output_tokens, name="llama.cpp")
        predictions[rule] = Prediction(rule, measured, reference(came, scheduler, steps[rule].step))
    return LlamaBench(about, others, steps, predictions)


def read_others(folder: Path) -> dict[str, float | None]:
    """The runs of a recording that are done, and how much of the CPUs others used in each."""
    file = folder / OTHERS
    if not file.exists():
        return {}
    try:
        return dict[str, float | None](json.loads(file.read_text("utf-8")).items())
    except (ValueError, AttributeError):
        raise ValueError(f"{file} must say how much others used in each run; it was damaged") from None


def steps_seen(records: Sequence[Record]) -> StepsSeen:
    """Find an engine's steps in what its clients saw.

    Parameters
    ----------
    records : sequence of Record
        Of one run. Whoever is read or answered gets a token at the end of each step, in a chunk of its own.

    Returns
    -------
    StepsSeen
        A step ends when its last chunk comes. It began at the end of the one before if somebody in it had been in that,
        or had waited since; if all in it are new, and came to an idle engine, when they were sent (so it holds what
        HTTP takes). Left out are steps that came out of a client's buffer at once with the next ones, and all while a
        request was there whose chunks aren't tokens (a server holds back a token that is half a character) or whose
        prompt wasn't counted.

    Raises
    ------
    ValueError
        If there is no step.
    """
    records = [record for record in records if record.sent_s is not None]
    sent_s = [record.sent_s or 0.0 for record in records]
    hidden = [
        (came_s, record.ended_s)
        for came_s, record in zip(sent_s, records, strict=True)
        if record.prompt_tokens is None or set(record.chunk_tokens or ()) != {1}
    ]
    gaps_s, _ = pooled_gaps(records)
    apart_s = float(np.median(gaps_s)) / 4 if len(gaps_s) else 0.0
    came = sorted(
        (sent_s[number] + at_s, nth, number)
        for number, record in enumerate(records)
        for nth, at_s in enumerate(record.chunk_s)
    )
    steps: list[tuple[float, dict[int, bool]]] = []  # when it ended, and who was in it, new or not
    last_s = -np.inf
    for at_s, nth, number in came:
        if at_s - last_s > apart_s or number in steps[-1][1]:
            steps.append((at_s, {}))
        steps[-1][1][number] = nth == 0
        steps[-1] = (at_s, steps[-1][1])
        last_s = at_s
    rows: list[tuple[int, int, float]] = []
    before_s, before = -np.inf, dict[int, bool]()
    for end_s, now in steps:
        if before.keys() & now.keys():
            began_s = before_s
        elif all(now.values()):
            began_s = max(before_s, *(sent_s[number] for number in now))
        else:
            began_s = np.nan
        if any(came_s < end_s and left_s > began_s for came_s, left_s in hidden):
            began_s = np.nan
        prompts = sum((records[number].prompt_tokens or 0) * new for number, new in now.items())
        rows.append((len(now), prompts, end_s - began_s))
        before_s, before = end_s, now
    requests, prefill = (np.array([row[column] for row in rows], np.int64) for column in (0, 1))
    seconds = np.array([row[2] for row in rows])
    kept = seconds > apart_s  # false for NaN
    kept[:-1] &= ~(seconds[1:] <= apart_s)  # who comes out of the buffer with the next has waited in it
    if not kept.any():
        raise ValueError("records must show at least one step; they show none")
    return StepsSeen(requests[kept], prefill[kept], seconds[kept])


def tabulate(seen: Sequence[StepsSeen], slots: int) -> StepTable:
    """Average steps by how many requests they held.

    An `AffineStep` would do where each request adds as much as the last. On a CPU it doesn't: matrices are multiplied
    in blocks of rows, and a block that isn't full is slower than one that is.

    Parameters
    ----------
    seen : sequence of StepsSeen
    slots : int
        The most requests in a step.

    Raises
    ------
    ValueError
        If some number of requests never occurs without a prompt, or never with one.

    Examples
    --------
    >>> seen = StepsSeen(np.array([1, 1, 2, 2]), np.array([0, 10, 0, 5]), np.array([0.04, 0.14, 0.06, 0.12]))
    >>> print(tabulate([seen], 2))
    requests in a step  without a prompt  a prompt token more  steps seen
    1                            40.0 ms              10.0 ms           2
    2                            60.0 ms              12.0 ms           2
    """
    slots = check_number("slots", slots, ge=1, integer=True)
    requests, prefill, seconds = (
        np.concatenate([getattr(each, name) for each in seen]) for name in ("requests", "prefill_tokens", "seconds")
    )
    levels = np.arange(1, slots + 1)
    decode_s, per_token_s, counts = np.zeros(slots), np.zeros(slots), np.zeros(slots, np.int64)
    for place, level in enumerate(levels):
        plain, prompted = ((requests == level) & has for has in (prefill == 0, prefill > 0))
        for name, steps in (("without", plain), ("with", prompted)):
            if not steps.any():
                raise ValueError(f"seen must hold steps of each number of requests; none of {level} {name} a prompt")
        decode_s[place] = seconds[plain].mean()
        per_token_s[place] = (seconds[prompted] - decode_s[place]).sum() / prefill[prompted].sum()
        counts[place] = plain.sum() + prompted.sum()
    return StepTable(levels, decode_s, per_token_s, counts)
