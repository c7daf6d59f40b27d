"""Every step of a real vLLM, from a file: as a trace for the rules, and as a `Result` for metrics and figures.

The file is JSON lines, compressed by xz. The first says what was run. A line ``arrive`` is a request, in the order in
which the scheduler got them: the step before which that was, when vLLM's front end got it and when its engine did
(nanoseconds on one monotonic clock), prompt and answer tokens, priority. A line ``step`` is a step: four instants
(deciding begins and ends, the model's tokens are back, they are handed on), for each request what was computed (number,
tokens, from where, whether a token comes out, blocks held), who runs and waits, who lost their blocks, and who is done.

In the `Result` requests arrive at the engine. A step lasts from its decision until the next one's, or, where nobody is
left, until its tokens are handed on: so what vLLM does between two steps belongs to the first.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servinglab.engine.arrivals import Arrivals
from servinglab.engine.clock import drive
from servinglab.engine.protocol import Given
from servinglab.measure.readers.vllm_run import MeasuredRun
from servinglab.result.setup import RunSetup
from servinglab.scheduling.blocks import Blocks
from servinglab.scheduling.recorded import scheduler_of
from servinglab.step_time.affine import attended_pairs
from servinglab.workload.model import Workload

FORMAT = "servinglab vllm steps"
FORMAT_VERSION = 1


def write_vllm_steps(path: Path, about: Mapping[str, Any], recording: str) -> None:
    """Write one load of a recording: what the recorder wrote between its start and its end, whole lines.

    What comes before the first request is the load before's: an empty step, after its last answer.
    """
    lines = recording.splitlines()
    while lines and "arrive" not in json.loads(lines[0]):
        del lines[0]
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, **about}
    text = "\n".join([json.dumps(header), *lines, ""])
    path.write_bytes(lzma.compress(text.encode()))


def read_vllm_steps(path: str | Path) -> MeasuredRun:
    """Read one load: what came, what happened, and under which settings.

    Returns
    -------
    MeasuredRun
        Its `result` has a log of steps; `meta` is the file's first line, which says what was run and on what.

    Raises
    ------
    ValueError
        If it isn't such a file, or a request in it isn't done; the message names the line.
    OSError
        If it can't be read.
    """
    return _run(path, *_lines(Path(path)))


def vllm_trace(path: str | Path) -> dict[str, Any]:
    """The same file as a trace for `servinglab.scheduling.recorded`: what came before which step, and what each step
    did."""
    return _trace(*_lines(Path(path)))


def read_run_and_trace(path: str | Path) -> tuple[MeasuredRun, dict[str, Any]]:
    """What `read_vllm_steps` and `vllm_trace` give of one file, read once."""
    lines = _lines(Path(path))
    return _run(path, *lines), _trace(*lines)


def _run(
    path: str | Path, about: dict[str, Any], requests: list[list[int]], steps: list[dict[str, Any]]
) -> MeasuredRun:
    config = about["config"]
    rules = scheduler_of(config).rules
    kv = Blocks(config["num_blocks"], config["block_size"])
    order = sorted(range(len(requests)), key=lambda k: (requests[k][2], k))
    opens = requests[order[0]][2]
    work = Workload.from_arrivals(
        [(requests[k][2] - opens) / 1e9 for k in order],
        [requests[k][3] for k in order],
        [requests[k][4] for k in order],
        name=about["load"],
    )
    setup = RunSetup(
        workload=about["load"],
        scheduler=rules,
        kv=kv,
        source=f"vLLM {about['environment']['vllm']}",
        facts={"engine": about["environment"]},
    )
    loop = _Recorded(work, steps, {k: place for place, k in enumerate(order)}, opens)
    result = drive(
        loop, work, Arrivals(work), loop.join, None, loop.lost.__getitem__, pots=1, step_time=None,
        setup=setup,
    )  # fmt: skip
    if not result.finished.all():
        raise ValueError(f"{path}: {int((~result.finished).sum())} of {len(result)} requests aren't done in it")
    return MeasuredRun(about["load"], work, result, rules, kv, meta=about)


def _trace(about: dict[str, Any], requests: list[list[int]], steps: list[dict[str, Any]]) -> dict[str, Any]:
    first = requests[0][0]
    scenario = about["config"] | {
        "requests": [
            {"id": k, "arrival_step": step - first, "prompt_len": prompt, "output_len": output, "priority": priority}
            for k, (step, _, _, prompt, output, priority) in enumerate(requests)
        ]
    }
    names = ("id", "tokens", "from", "emits", "blocks")
    rows: list[dict[str, Any]] = [
        {**step, "scheduled": [dict(zip(names, chunk, strict=True)) for chunk in step["scheduled"]]} for step in steps
    ]
    while rows and not (rows[-1]["scheduled"] or rows[-1]["preempted"]):
        rows.pop()  # vLLM's last look, after the last answer
    return {"scenario": scenario, "steps": rows}


class _Recorded:
    """A loop (`servinglab.engine.clock.Loop`) whose steps are those of a recording."""

    def __init__(self, work: Workload, steps: Sequence[dict[str, Any]], place: Mapping[int, int], opens: int) -> None:
        self.scheduled_ns: dict[int, int] = {}
        self.waited_ns = 0
        self.lost = [0] * len(work)
        self._prompts = work.prompt_tokens.tolist()
        self._coming = [step for step in steps if step["scheduled"] or step["preempted"]][::-1]
        self._place, self._opens = place, opens
        self._under_way: tuple[dict[str, Any], list[Given]] | None = None
        self._here = self._running = self._looked = self._preempted = 0
        self._answered: set[int] = set()

    def next_ns(self) -> int | None:
        """The end of the step under way, or the next one's start."""
        if self._under_way is not None:
            return self._under_way[0]["end_ns"]
        return self._start(self._coming[-1]) if self._coming else None

    def join(self, number: int, now: int) -> None:
        """A request comes."""
        self._look(now)
        self._here += 1

    def end(self, now: int) -> list[Given]:
        """The step's tokens come out."""
        if self._under_way is None:
            return []
        self._look(now)
        given = self._under_way[1]
        self._under_way = None
        done = sum(each.done for each in given)
        self._here -= done
        self._running -= done
        return given

    def begin(self, now: int) -> list[dict[str, Any]]:
        """The next step begins, if it was now."""
        if self._under_way is not None or not self._coming or self._start(self._coming[-1]) != now:
            return []
        self._look(now)
        step = self._coming.pop()
        for number in step["preempted"]:
            self.lost[self._place[number]] += 1
        self._preempted += len(step["preempted"])
        self._running = len(step["running"])
        left = len(step["running"]) + len(step["waiting"]) - len(step["finished"])
        goes_on = left > 0 and bool(self._coming)
        end = self._start(self._coming[-1]) if goes_on else step["ns"][3] - self._opens
        prefill = pairs = first = decode = 0
        given = []
        for number, tokens, start, emits, _ in step["scheduled"]:
            k = self._place[number]
            self.scheduled_ns.setdefault(k, now)
            if tokens > 1 or start < self._prompts[k]:
                prefill += tokens
                pairs += attended_pairs(tokens, start)
            if emits:
                new = k not in self._answered
                self._answered.add(k)
                first, decode = first + new, decode + (not new)
                given.append((k, number in step["finished"]))
        row = dict(
            start_ns=now, end_ns=end, pot=0, steps=1, running=self._running, charged=len(step["scheduled"]),
            prefill_tokens=prefill, kv_tokens=sum(chunk[1] + chunk[2] for chunk in step["scheduled"]),
            prefill_pairs=pairs, decode_tokens=decode, first_tokens=first, waiting=self._here - self._running,
            waited_request_s=self.waited_ns / 1e9, kv_blocks=step["blocks_used"], preempted=self._preempted,
        )  # fmt: skip
        self._under_way = row, [Given(k, 1, done, row) for k, done in given]
        if not step["scheduled"]:
            return []
        self.waited_ns = self._preempted = 0
        return [row]

    def _start(self, step: dict[str, Any]) -> int:
        return step["ns"][0] - self._opens

    def _look(self, now: int) -> None:
        self.waited_ns += (self._here - self._running) * (now - self._looked)
        self._looked = now


def is_vllm_steps(path: Path) -> bool:
    """Whether the file is compressed by xz, as these are; reading it says more."""
    with path.open("rb") as file:
        return file.read(6) == b"\xfd7zXZ\0"


def _lines(path: Path) -> tuple[dict[str, Any], list[list[int]], list[dict[str, Any]]]:
    """The header, the requests and the steps; requests and steps are numbered from 0."""
    try:
        rows = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()]
        about = rows[0]
        known = about["format"] == FORMAT and about["format_version"] == FORMAT_VERSION
    except (lzma.LZMAError, ValueError, LookupError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path} isn't a recording of vLLM's steps in format {FORMAT_VERSION}, or is damaged")
    requests: list[list[int]] = []
    steps: list[dict[str, Any]] = []
    first = about["first_request"]
    names = ("scheduled", "running", "waiting", "preempted", "finished", "tokens_out")
    for number, row in enumerate(rows[1:], start=2):
        try:
            if "arrive" in row:
                step, front_ns, came_ns, prompt, output, priority = row["arrive"]
                requests.append([step, front_ns, came_ns, prompt, output, priority])
                continue
            chunks = [[chunk[0] - first, *chunk[1:]] for chunk in row["scheduled"]]
            lists = {name: [each - first for each in row[name]] for name in names[1:]}
            steps.append({**row, **lists, "scheduled": chunks})
            if len(row["ns"]) != 4 or any(len(chunk) != 5 for chunk in chunks):
                raise ValueError
        except (KeyError, TypeError, ValueError, IndexError):
            raise ValueError(f"{path}:{number}: a line must be a request or a step, with its parts") from None
    if not requests:
        raise ValueError(f"{path} holds no request")
    return about, requests, steps
