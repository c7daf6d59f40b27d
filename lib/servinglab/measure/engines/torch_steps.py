"""How long do steps take on this device? A model's layers in PyTorch, timed at a grid of points, and fitted.

Three kinds of points: a decode step of some requests that each hold some context, a prompt of some tokens, and the
output head alone, which tells how a step of all layers follows from one of the layers that fit. The device's ceilings
are timed as well, with the same clock, before and after: bytes read a second and the FLOP/s of a large matrix product.
No point may be faster than they allow, and none much faster than a smaller one: `checks` says whether that holds.

The file is JSON lines: a header, then a line a point, written as it is timed, then a line with the outcome. Broken off,
it keeps what there is, and `time_steps` on the same file goes on. Its fields:

==============  ======================================================================================================
header          ``format``, ``format_version``, ``servinglab``; ``environment``: device, versions, threads, clocks;
                ``scaled``: what was built of which model; ``plan``: the points' settings
ceiling         ``when`` (before, after), ``bytes_per_s``, ``flops_per_s``, and ``state``: clocks and load just then
head            ``requests``
decode          ``requests``, ``context`` (tokens that each holds, the new one included)
prefill         ``tokens``
all three       ``seconds`` (median), ``low_s``, ``high_s`` (quartiles), ``samples``, ``runs`` (in each sample),
                ``late`` (samples over 1.5 times the median), ``graph`` (whether a CUDA graph was replayed)
outcome         ``fit``, ``checks``, ``warnings``
==============  ======================================================================================================
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from servinglab.base.checks import check_array, check_choice, check_number
from servinglab.base.version import __version__
from servinglab.hardware import catalog
from servinglab.hardware.catalog import Model
from servinglab.measure.engines.torch_stack import BYTES, Scaled, Stack, import_torch, scale
from servinglab.measure.machine import cpu_name, proc_field
from servinglab.step_time.fit import StepFit, fit_step_time

FORMAT = "servinglab torch steps"
FORMAT_VERSION = 1
LATE = 1.5  # times the median: a sample that something held up
_FASTER = 0.10  # than a ceiling or a smaller point: more is a broken measurement, not noise
_NOISY = 0.10  # interquartile range over median
_SAMPLE_S = 0.002  # a sample repeats its step until it takes so long, lest the clock's own cost counts


@dataclass(frozen=True)
class Plan:
    """Which points are timed, and how carefully.

    Parameters
    ----------
    requests, contexts, prompts : sequence of int
        Decode steps are timed at each of `requests` with each of `contexts`, prompts at each of `prompts` tokens; the
        head at each of `requests`, and at 1 for the prompts.
    kv_tokens : int
        Decode points that hold more in all are left out.
    samples : int
        Of each point, at least 3.
    limit_s : float
        Seconds after which no point is begun.
    seed : int
        Of the order: drift of the device mustn't look like a larger batch.
    """

    requests: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    kv_tokens: int
    samples: int = 15
    limit_s: float = 420.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "contexts", "prompts"):
            values = sorted(set(check_array(name, list(getattr(self, name)), ge=1, integer=True).tolist()))
            object.__setattr__(self, name, tuple(values))
        if len(self.requests) < 2 or len(self.contexts) < 2 or len(self.prompts) < 2:
            raise ValueError(
                "requests, contexts and prompts must each hold at least two values, or no line can be fitted"
            )
        for name, least in (("kv_tokens", self.requests[1] * self.contexts[1]), ("samples", 3), ("seed", 0)):
            object.__setattr__(self, name, check_number(name, getattr(self, name), ge=least, integer=True))
        object.__setattr__(self, "limit_s", check_number("limit_s", self.limit_s, gt=0))

    def points(self) -> list[dict[str, Any]]:
        """All of them, in a shuffled order.

        Examples
        --------
        >>> len(Plan((1, 4), (16, 64), (8, 32), kv_tokens=256).points())
        8
        """
        made: list[dict[str, Any]] = [{"kind": "head", "requests": n} for n in sorted({1, *self.requests})]
        made += [
            {"kind": "decode", "requests": n, "context": c}
            for n in self.requests
            for c in self.contexts
            if n * c <= self.kv_tokens
        ]
        made += [{"kind": "prefill", "tokens": p} for p in self.prompts]
        random.Random(self.seed).shuffle(made)
        return made


def plan_for(device: str, **changes: Any) -> Plan:
    """The usual plan on a GPU or a CPU, with changes.

    Examples
    --------
    >>> plan_for("cpu", samples=5).requests
    (1, 2, 4, 8)
    """
    if device == "cpu":
        usual: dict[str, Any] = dict(requests=(1, 2, 4, 8), contexts=(64, 512), prompts=(16, 64, 256), kv_tokens=4096)
    else:
        usual = dict(
            requests=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            contexts=(128, 512, 2048, 8192),
            prompts=(16, 64, 256, 512, 1024, 2048, 4096, 8192),
            kv_tokens=131_072,
        )
    return Plan(**{**usual, **changes})


@dataclass(frozen=True, eq=False)
class TorchSteps:
    """A file of timed steps. Made by `time_steps` and `read_steps`.

    Attributes
    ----------
    header : dict
    rows : list of dict
        The lines of points and ceilings, as the module's table says.
    """

    header: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def scaled(self) -> Scaled:
        """What was built."""
        told = self.header["scaled"]
        return Scaled(Model(**_tuples(told["model"])), told["layers"], told["experts"], told["dtype"])

    @property
    def plan(self) -> Plan:
        """What was to be timed."""
        return Plan(**self.header["plan"])

    @property
    def missing(self) -> list[dict[str, Any]]:
        """Points of the plan that aren't timed yet."""
        done = {_key(row) for row in self.rows}
        return [point for point in self.plan.points() if _key(point) not in done]

    def steps(self) -> dict[str, np.ndarray]:
        """Columns ``requests``, ``prefill_tokens``, ``kv_tokens`` and ``seconds`` of the whole model's steps.

        For `fit_step_time`, or for a line of your own.

        A step of all L layers is the head's time and L/l times what the l built layers took:
        ``head + (measured − head) · L/l``. A prompt is one request, whose KV is read as it is written.
        """
        scaled, heads = self.scaled, {row["requests"]: row["seconds"] for row in self._of("head")}
        table = []
        for row in self._of("decode"):
            if row["requests"] in heads:
                held = row["requests"] * row["context"]
                table.append((row["requests"], 0, held, self._full(row["seconds"], heads[row["requests"]], scaled)))
        for row in self._of("prefill"):
            if 1 in heads:
                table.append((1, row["tokens"], row["tokens"], self._full(row["seconds"], heads[1], scaled)))
        names = ("requests", "prefill_tokens", "kv_tokens", "seconds")
        return dict(zip(names, np.array(table, np.float64).reshape(-1, 4).T, strict=True))

    def fit(self) -> StepFit:
        """The whole model's step as an `AffineStep`, by relative least squares; see `fit_step_time`."""
        columns = self.steps()
        return fit_step_time(
            columns["requests"], columns["seconds"], columns["prefill_tokens"], columns["kv_tokens"], relative=True
        )

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == kind]

    @staticmethod
    def _full(measured: float, head: float, scaled: Scaled) -> float:
        if scaled.layers == scaled.model.layers:
            return measured
        return head + max(measured - head, 0.0) * scaled.model.layers / scaled.layers

    # What the file says of itself

    def checks(self) -> list[dict[str, Any]]:
        """Whether the numbers can be true: ``name``, ``holds`` and ``detail``, a line each."""
        ceilings = self._of("ceiling")
        found = [_check("ceilings", bool(ceilings), f"{len(ceilings)} timed, before and after")]
        if ceilings:
            reads = max(row["bytes_per_s"] for row in ceilings)
            computes = max(row["flops_per_s"] for row in ceilings)
            worst = [
                (max(bytes_ / reads, flops / computes) / row["seconds"], row)
                for row in self.rows
                if row["kind"] in ("decode", "prefill")
                for bytes_, flops in [least_work(self.scaled, row)]
            ]
            if worst:
                share, row = max(worst, key=lambda pair: pair[0])
                found.append(
                    _check(
                        "no faster than the ceilings",
                        share <= 1 + _FASTER,
                        f"the nearest is {_told(row)}: its floor is {share:.0%} of its time",
                    )
                )
        drops = sorted(self._drops(), reverse=True, key=lambda drop: drop[0])
        told = f"; {_told(drops[0][2])} took {drops[0][0]:.0%} less than {_told(drops[0][1])}" if drops else ""
        found.append(_check("larger steps take longer", not drops, f"{len(drops)} don't{told}"))
        found.append(
            _check("complete", not self.missing, f"{len(self.missing)} of {len(self.plan.points())} points missing")
        )
        return found

    def warnings(self) -> list[str]:
        """What makes the numbers doubtful though they can be true."""
        rows = [row for row in self.rows if row["kind"] != "ceiling"]
        said = []
        if rows:
            spread = float(np.median([(row["high_s"] - row["low_s"]) / row["seconds"] for row in rows]))
            late = sum(row["late"] for row in rows) / sum(row["samples"] for row in rows)
            if spread > _NOISY or late > 0.05:
                said.append(
                    f"noisy: half of a point's samples lie {spread:.0%} apart, {late:.0%} of all took over 1.5 times "
                    "the median; close other programs, fix clocks, or time it when the machine is quiet"
                )
        rates = [row["flops_per_s"] for row in self._of("ceiling")]
        if len(rates) > 1 and abs(rates[-1] / rates[0] - 1) > _NOISY:
            said.append(
                f"the matrix product ran {rates[-1] / rates[0] - 1:+.0%} after against before: clocks or temperature "
                "changed meanwhile"
            )
        return said

    def _drops(self) -> Iterator[tuple[float, dict[str, Any], dict[str, Any]]]:
        """Pairs in which the larger step took less time, beyond noise: by how much, the smaller, the larger."""
        for axis, others in (("context", ("requests",)), ("requests", ("context",)), ("tokens", ())):
            rows = [row for row in self.rows if axis in row and row["kind"] != "head"]
            for small in rows:
                for large in rows:
                    if large[axis] > small[axis] and all(large.get(each) == small.get(each) for each in others):
                        drop = 1 - large["high_s"] / small["low_s"]  # quartiles: beyond what samples differ by
                        if drop > _FASTER:
                            yield drop, small, large

    def __str__(self) -> str:
        environment = self.header["environment"]
        lines = [f"device      {environment['device']}, PyTorch {environment['torch']}"]
        lines += [f"{'model' if not k else '':<12}{text}" for k, text in enumerate(self.scaled.told())]
        for row in self._of("ceiling"):
            rates = f"{row['bytes_per_s'] / 1e9:,.4g} GB/s read, {row['flops_per_s'] / 1e12:,.4g} TFLOP/s"
            lines.append(f"{'ceiling':<12}{rates} ({row['when']})")
        try:
            fit = self.fit()
        except ValueError as error:
            lines.append(f"no fit      {error}")
        else:
            columns = self.steps()
            off = np.abs(fit.residual_s / columns["seconds"])
            lines += [
                "",
                str(fit),
                f"the line is off by {np.median(off):.1%} at the median point, {off.max():.1%} at the worst",
            ]
        lines += [
            "",
            *(f"{'ok' if check['holds'] else 'FAILS':<7}{check['name']}: {check['detail']}" for check in self.checks()),
        ]
        return "\n".join([*lines, *(f"{'warning':<9}{text}" for text in self.warnings())])


def least_work(scaled: Scaled, row: dict[str, Any]) -> tuple[float, float]:
    """Bytes that a point must at least read, and FLOPs that it must at least compute, of the built layers.

    A mixture of experts reads at least the experts of one token; a window's layers read at most the window.
    """
    m, size = scaled.model, BYTES[scaled.dtype]
    tokens = row["requests"] if row["kind"] == "decode" else row["tokens"]
    sequences = row["requests"] if row["kind"] == "decode" else 1
    active = m.experts_per_token + m.shared_experts if scaled.experts else 1
    layer = scaled.attention_numbers + active * scaled.expert_numbers
    numbers = scaled.layers * layer + scaled.head_numbers
    flops = 2.0 * tokens * scaled.layers * layer + 2.0 * sequences * scaled.head_numbers
    if row["kind"] == "prefill":
        pairs = row["tokens"] * (row["tokens"] + 1) / 2 * scaled.layers
        return size * numbers, flops + 4.0 * m.heads * m.head_dim * pairs
    windows = round(scaled.layers * m.sliding_layers / m.layers)
    near = min(row["context"], m.sliding_window) if windows else row["context"]
    held = tokens * ((scaled.layers - windows) * row["context"] + windows * near)
    return size * (numbers + 2.0 * m.kv_heads * m.head_dim * held), flops + 4.0 * m.heads * m.head_dim * held


# Timing


def time_steps(
    path: str | os.PathLike[str],
    model: str | Model,
    *,
    device: str | None = None,
    dtype: str | None = None,
    layers: int | None = None,
    threads: int | None = None,
    plan: Plan | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> TorchSteps:
    """Time a model's steps on this device into a file.

    Parameters
    ----------
    path : path
        The file, JSON lines.
    model : str or Model
        Whose shapes are built.
    device : {"cuda", "cpu"}, optional
        A GPU if there is one.
    dtype : {"float32", "bfloat16", "float16"}, optional
        bfloat16 on a GPU, float32 on a CPU.
    layers : int, optional
        At most so many are built; on a GPU as many as fit, on a CPU 2, if left out.
    threads : int, optional
        On a CPU; PyTorch's own choice if left out.
    plan : Plan, optional
        `plan_for` the device if left out.
    resume : bool
        Go on with the file: its own header says what is timed, and the other arguments must agree or be left out.
    say : callable
        Is told what is being timed.

    Returns
    -------
    TorchSteps
        Also where the plan's time was over before all points were timed: see `TorchSteps.missing`.

    Raises
    ------
    ImportError
        If PyTorch isn't installed.
    ValueError
        If an argument breaks its rule, or the file is of another run.
    KeyboardInterrupt
        On Ctrl-C; the file holds what was timed.
    """
    torch = import_torch()
    file = Path(path)
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    check_choice("device", kind, ("cuda", "cpu"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be 'cpu' where PyTorch finds no GPU; got 'cuda'")
    if threads is not None:
        torch.set_num_threads(check_number("threads", threads, ge=1, integer=True))
    row = catalog.model(model)
    chosen = plan_for(kind) if plan is None else plan
    built = scale(
        row,
        dtype or ("bfloat16" if kind == "cuda" else "float32"),
        _free_bytes(torch, kind),
        layers=min(2, row.layers) if layers is None and kind == "cpu" else layers,
        kv_tokens=chosen.kv_tokens,
    )
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "servinglab": __version__,
        "environment": environment(torch, kind),
        "scaled": {"model": asdict(row), "layers": built.layers, "experts": built.experts, "dtype": built.dtype},
        "plan": asdict(chosen),
    }
    header = json.loads(json.dumps(header))
    if resume:
        steps = read_steps(file)
        _check_same(file, steps.header, header)
        steps.header["plan"]["limit_s"] = chosen.limit_s  # each session has its own
        _rewrite(file, [steps.header, *steps.rows])
    else:
        if file.exists():
            raise ValueError(f"{file} is there already: resume it, or name another")
        steps = TorchSteps(header, [])
        _rewrite(file, [header])
    with file.open("a", encoding="utf-8") as out, torch.inference_mode():
        _time_missing(_Timer(torch, kind), Stack(built, kind, chosen.seed), steps, out, say)
        _append(out, outcome(steps))
    return steps


def outcome(steps: TorchSteps) -> dict[str, Any]:
    """The last line of the file."""
    try:
        fit = steps.fit()
        told: dict[str, Any] | None = {
            "step_time": {name: getattr(fit.step, name) for name in fit.interval},
            "interval": {name: list(ends) for name, ends in fit.interval.items()},
            "confidence": fit.confidence,
            "held_at_zero": list(fit.at_zero),
        }
    except ValueError:
        told = None  # too few points yet
    return {"kind": "outcome", "fit": told, "checks": steps.checks(), "warnings": steps.warnings()}


def read_steps(path: str | os.PathLike[str]) -> TorchSteps:
    """Read a file of timed steps; a last line without its end is passed over.

    Raises
    ------
    ValueError
        If it isn't such a file, naming the line.
    OSError
        If it can't be read.
    """
    file = Path(path)
    rows = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            if number == 1 and (row["format"], row["format_version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {row['format']!r}, version {row['format_version']!r}")
            if number > 1 and row["kind"] not in ("ceiling", "head", "decode", "prefill", "outcome"):
                raise ValueError(f"kind {row['kind']!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}:{number}: not a line of timed steps of format {FORMAT_VERSION} ({error})"
            ) from None
        rows.append(row)
    if not rows:
        raise ValueError(f"{file} holds no timed steps")
    return TorchSteps(rows[0], [row for row in rows[1:] if row["kind"] != "outcome"])


def is_steps(path: str | os.PathLike[str]) -> bool:
    """Whether a file says in its first line that it holds timed steps."""
    with open(path, "rb") as file:
        return file.read(200).startswith(b'{"format": "%s"' % FORMAT.encode())


class _Timer:
    """Times a function on a device."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._cuda = torch, device == "cuda"

    def __call__(self, function: Callable[[], Any], samples: int, graph: bool = True) -> dict[str, Any]:
        """Median and quartiles of so many samples, each of as many runs as take a while, after warming up."""
        function, graphed = self._graph(function) if self._cuda and graph else (function, False)
        for _ in range(3):
            once = self._sample(function, 1)
        runs = max(1, min(100, math.ceil(_SAMPLE_S / max(once, 1e-7))))
        self._sample(function, runs)
        times = np.array([self._sample(function, runs) for _ in range(samples)])
        low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
        late = int((times > LATE * middle).sum())
        return dict(seconds=middle, low_s=low, high_s=high, samples=samples, runs=runs, late=late, graph=graphed)

    def _sample(self, function: Callable[[], Any], runs: int) -> float:
        """Seconds of one run, over so many."""
        if self._cuda:
            begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(runs):
                function()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3 / runs
        start = time.perf_counter()
        for _ in range(runs):
            function()
        return (time.perf_counter() - start) / runs

    def _graph(self, function: Callable[[], Any]) -> tuple[Callable[[], Any], bool]:
        """The function as a CUDA graph, so that launching its kernels costs next to nothing; itself if it can't be."""
        cuda = self._torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(3):
                function()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph):
                function()
        except RuntimeError:  # something in it waits for the device
            cuda.synchronize()
            return function, False
        return graph.replay, True


def _time_missing(timer: _Timer, stack: Stack, steps: TorchSteps, out: IO[str], say: Callable[[str], None]) -> None:
    plan, begun = steps.plan, time.monotonic()
    missing = steps.missing

    def keep(row: dict[str, Any]) -> None:
        steps.rows.append(row)
        _append(out, row)

    say("the device's ceilings")
    if missing:
        keep(_ceilings(timer, stack, plan.samples, "before"))
    for number, point in enumerate(missing):
        if time.monotonic() - begun > plan.limit_s:
            break
        say(f"{_told(point)}, {number + 1} of {len(missing)} points")
        keep({**point, **timer(_work(stack, point), plan.samples, graph=not stack.scaled.experts)})
    if missing:
        say("the device's ceilings again")
        keep(_ceilings(timer, stack, plan.samples, "after"))


def _work(stack: Stack, point: dict[str, Any]) -> Callable[[], Any]:
    """What a point runs; its tensors are made here, outside the clock."""
    if point["kind"] == "head":
        hidden = stack.tokens(point["requests"], 1)[:, 0]
        return lambda: stack.head(hidden)
    if point["kind"] == "prefill":
        hidden = stack.tokens(1, point["tokens"])
        return lambda: stack.forward(hidden, None)
    hidden, cache = stack.tokens(point["requests"], 1), stack.cache(point["requests"], point["context"])
    return lambda: stack.forward(hidden, cache)


def _ceilings(timer: _Timer, stack: Stack, samples: int, when: str) -> dict[str, Any]:
    """The best of two ways to read as many bytes as the weights have, and a large matrix product.

    As many bytes, so that a model that fits the processor's cache is held against the cache.
    """
    torch, cuda = stack.torch, stack.device == "cuda"
    make = dict(dtype=stack.dtype, device=stack.device)
    size = BYTES[stack.scaled.dtype]
    wide = 4096 if cuda else 1024
    rows = max(wide // 4, min(stack.scaled.weight_bytes, 2**30 if cuda else 2**29) // size // wide)
    matrix, vector = torch.ones(rows, wide, **make), torch.ones(wide, **make)
    other = torch.empty_like(matrix)
    product = timer(lambda: torch.mv(matrix, vector), samples)["low_s"]
    copy = timer(lambda: other.copy_(matrix), samples)["low_s"]
    read = max(size * rows * wide / product, 2 * size * rows * wide / copy)
    n = 8192 if cuda else 1024
    a, b = torch.ones(n, n, **make), torch.ones(n, n, **make)
    computed = timer(lambda: torch.mm(a, b), samples)["low_s"]
    return {
        "kind": "ceiling",
        "when": when,
        "bytes_per_s": read,
        "flops_per_s": 2.0 * n**3 / computed,
        "state": _state(cuda),
    }


# The machine


def environment(torch: Any, device: str) -> dict[str, Any]:
    """What a measurement depends on, in plain values."""
    told: dict[str, Any] = {
        "kind": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        told |= {
            "device": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _nvidia_smi("driver_version"),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    else:
        told |= {"device": cpu_name(), "capability": torch.backends.cpu.get_cpu_capability()}
    return told


_SMI = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")


def _state(cuda: bool) -> dict[str, Any]:
    """Clocks, temperature and load just now; null where the machine doesn't tell."""
    state: dict[str, Any] = {"load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}
    if cuda:
        return state | {name: _nvidia_smi(name) for name in _SMI}
    return state | {"cpu_mhz": proc_field("/proc/cpuinfo", "cpu MHz")}


def _nvidia_smi(field: str) -> str | None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    command = [smi, f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()


def _free_bytes(torch: Any, device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    available = proc_field("/proc/meminfo", "MemAvailable")
    return float(available.split()[0]) * 1024 if available else 4.0 * 2**30  # not every system tells


# The file


def _check_same(file: Path, begun: dict[str, Any], asked: dict[str, Any]) -> None:
    for part, names in (
        ("environment", ("kind", "device", "torch", "threads")),
        ("scaled", tuple(asked["scaled"])),
        ("plan", tuple(asked["plan"])),
    ):
        for name in names:
            was, now = begun[part].get(name), asked[part][name]
            if was != now and name != "limit_s":
                raise ValueError(f"{file} was begun with {name} {_brief(was)}; got {_brief(now)}")


def _rewrite(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")


def _append(out: IO[str], row: dict[str, Any]) -> None:
    out.write(json.dumps(row, allow_nan=False) + "\n")
    out.flush()


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("kind", "requests", "context", "tokens"))


def _told(row: dict[str, Any]) -> str:
    if row["kind"] == "prefill":
        return f"a prompt of {row['tokens']:,} tokens"
    held = f" with {row['context']:,} tokens each" if "context" in row else ""
    return f"{row['kind']} of {row['requests']:,}{held}"


def _check(name: str, holds: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "holds": bool(holds), "detail": detail}


def _brief(value: Any) -> str:
    return str(value["id"]) if isinstance(value, dict) and "id" in value else repr(value)


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
