"""A load test from its plan to a folder of files: starts the workers, gives them their requests, writes what they tell.

The folder holds ``run.json`` (what is run, and how far it is), ``requests.jsonl`` (a line a request, written as it
ends; see `servinglab.measure.load_test.records`) and ``server.jsonl`` (the server's own metrics, a line a second, if it
has any).

A run that is broken off, by Ctrl-C or worse, keeps what it has: `run_load_test` on the same folder sends what is
missing. One process writes the files, so a line is whole or the last one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from servinglab.base.checks import check_choice, check_number
from servinglab.base.files import write_json
from servinglab.base.version import __version__
from servinglab.measure.load_test.plan import Stage, fingerprint, jobs, sends_for_s
from servinglab.measure.load_test.records import Record, read_records
from servinglab.measure.load_test.server_facts import Sampler, server_facts
from servinglab.measure.load_test.tokens import token_ends
from servinglab.metrics.percentiles import percentile

FORMAT = "servinglab load test"
FORMAT_VERSION = 1
_START_IN_S = 0.2
_STARTING_S = 60.0
_RECENT = 1000
BUSY_OVER_S = 1.0  # in less, the share of a core that a process used is that of its first requests


@dataclass(frozen=True)
class Setup:
    """Where requests go, what each of them says, and how long to wait.

    Attributes
    ----------
    root : str
        The server's address, without ``/v1``.
    api : str
        ``chat`` or ``completions``.
    model : str
    seed, shared_tokens, groups : int
        Of the prompts.
    headers : dict
        Sent with each request; not written to the folder.
    extra : dict
        Further fields of each request's body, such as ``{"ignore_eos": true}``.
    usage_per_chunk : bool
        Ask for token counts with each chunk, as vLLM can give them.
    tokenizer : str or None
        A tokenizer file, for servers that don't count.
    finish_reasons : sequence of str
        More reasons to finish that are good (`servinglab.measure.load_test.stream.GOOD_REASONS`); ``none``: ``[DONE]``
        alone is.
    connect_timeout_s, first_token_timeout_s, idle_timeout_s, timeout_s : float, s
        Until there is a connection; from sending to the first byte; between bytes; for the whole. Finite, > 0.

    Raises
    ------
    ValueError
        If one breaks its rule.
    """

    root: str
    api: str
    model: str
    seed: int
    shared_tokens: int = 0
    groups: int = 1
    headers: dict[str, str] | None = None
    extra: dict[str, Any] | None = None
    usage_per_chunk: bool = False
    tokenizer: str | None = None
    finish_reasons: Sequence[str] = ()
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_choice("api", self.api, ("chat", "completions"))
        for name in ("root", "model"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} must be a text that isn't empty; got {value!r}")
        for name, least in (("seed", 0), ("shared_tokens", 0), ("groups", 1)):
            self._keep(name, check_number(name, getattr(self, name), ge=least, integer=True))
        for name in ("connect_timeout_s", "first_token_timeout_s", "idle_timeout_s", "timeout_s"):
            self._keep(name, check_number(name, getattr(self, name), gt=0))
        if not isinstance(self.usage_per_chunk, bool):
            raise ValueError(f"usage_per_chunk must be True or False; got {self.usage_per_chunk!r}")
        if isinstance(self.tokenizer, os.PathLike):
            self._keep("tokenizer", os.fspath(self.tokenizer))
        if self.tokenizer is not None and not isinstance(self.tokenizer, str):
            raise ValueError(f"tokenizer must be a file's path; got {self.tokenizer!r}")
        headers = self.headers
        if headers is not None and not (
            isinstance(headers, dict) and all(isinstance(each, str) for pair in headers.items() for each in pair)
        ):  # the values may hold a key: they aren't shown
            raise ValueError(f"headers must be a dict of texts; got a {type(headers).__name__} with other things in it")
        reasons = self.finish_reasons
        if isinstance(reasons, str) or not all(isinstance(reason, str) for reason in reasons):
            raise ValueError(f"finish_reasons must be a list of words; got {reasons!r}")
        self._check_extra()

    def _check_extra(self) -> None:
        if self.extra is None:
            return
        try:
            kept = isinstance(self.extra, dict) and json.loads(json.dumps(self.extra, allow_nan=False)) == self.extra
        except (TypeError, ValueError):
            kept = False
        if not kept:
            raise ValueError(f"extra must be a dict that JSON can hold, without NaN or infinity; got {self.extra!r}")

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def url(self) -> str:
        """The address that requests go to."""
        return f"{self.root}/v1/{'chat/completions' if self.api == 'chat' else 'completions'}"

    def told(self) -> dict[str, Any]:
        """What is written to the folder: all but the headers, which may hold a key."""
        return {name: value for name, value in vars(self).items() if name != "headers"}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a command of several load tests: those that are done are kept."""


def run_or_raise(folder: Path, setup: Setup, stages: Sequence[Stage], gap_s: float = 0.0) -> list[Record]:
    """Run a load test of which every request must be answered, from one process; its records.

    Raises
    ------
    Interrupted
        On Ctrl-C.
    ChildProcessError
        If a request failed.
    """
    if not run_load_test(folder, setup, stages, workers=1, gap_s=gap_s):
        raise Interrupted
    records = read_records(folder / "requests.jsonl")
    failed = [record for record in records if not record.finished]
    if failed:
        raise ChildProcessError(f"{len(failed)} of {len(records)} requests failed, the first: {failed[0].outcome}")
    return records


@contextmanager
def ended_as_by_ctrl_c() -> Generator[None]:
    """Whoever ends this program ends the servers that it started."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_load_test(
    folder: Path,
    setup: Setup,
    stages: Sequence[Stage],
    *,
    workers: int = 2,
    gap_s: float = 0.0,
    metrics_url: str | None = None,
    about: dict[str, Any] | None = None,
    doing: Callable[[str], None] = lambda text: None,
) -> bool:
    """Run a load test, or what is left of one.

    Parameters
    ----------
    folder : Path
        Empty or new; or that of a run with the same plan, which is then resumed.
    setup : Setup
    stages : sequence of Stage
        One after another. The next begins `gap_s` after the last answer of the one before, so that no queue is handed
        on.
    workers : int
        Processes that send, at most: none is started that would have nothing to send. An open loop's requests are
        dealt out in turn. In a closed loop client c (from 0) belongs to process c mod the number of processes, and who
        of a process's clients is free first takes the next of its requests.
    gap_s : float
        Recovery between stages.
    metrics_url : str, optional
        Where the server's metrics are; ``/metrics`` if not given.
    about : dict, optional
        What the server can't tell: kept with the run.
    doing : callable, optional
        Called a few times a second with how far the run is.

    Returns
    -------
    bool
        Whether all was sent; False after Ctrl-C.

    Raises
    ------
    ValueError
        If an argument breaks its rule, or the folder holds something else, or a run of another plan.
    ChildProcessError
        If a sending process, or another part of the load generator, fails; with its reason.
    ImportError
        If aiohttp isn't installed, or a tokenizer is named and the package for it isn't.
    """
    workers = check_number("workers", workers, ge=1, integer=True)
    gap_s = check_number("gap_s", gap_s, ge=0)
    if find_spec("aiohttp") is None:  # the sending processes need it
        raise ImportError("a load test needs aiohttp: pip install 'servinglab[bench]'")
    if setup.tokenizer is not None:
        token_ends(setup.tokenizer)  # here, where a mistake is told before anything is sent
    headers = setup.headers or {}
    workers = min(workers, max(_hands(stage) for stage in stages))
    metrics_url = metrics_url or f"{setup.root}/metrics"
    state, done, spent_s = _open_folder(folder, stages)
    if not state:
        state = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "servinglab": __version__,
            "plan": fingerprint(stages),
            "began_unix_s": time.time(),
            "sessions": 0,
            "complete": False,
            "setup": setup.told(),
            "about": about or {},
            "workers": workers,
            "gap_s": gap_s,
            "stages": [_told(stage) for stage in stages],
            "stages_over": [],
            "clocks": [],
            "server": server_facts(setup.root, headers, metrics_url),
        }
    session = state["sessions"]
    state["sessions"] += 1
    since_s = max(time.time() - state["began_unix_s"], spent_s)  # a wall clock may go back
    origin_ns = time.perf_counter_ns() - round(since_s * 1e9)

    def save() -> None:
        write_json(str(folder / "run.json"), state)

    save()
    files = folder / "requests.jsonl", folder / "server.jsonl"
    with files[0].open("ab") as out:
        more = {
            "url": setup.url,
            "models_url": f"{setup.root}/v1/models",
            "headers": headers,
            "extra": setup.extra or {},
        }
        crew = _Crew(workers, {**vars(setup), **more}, out)
        try:
            with Sampler(metrics_url, headers, files[1], origin_ns, crew.fail):
                sent_before = False
                for k, stage in enumerate(stages):
                    first = _first(stages, k)
                    work = [] if k in state["stages_over"] else jobs(stage, first, done)
                    if work:
                        if sent_before:
                            doing(f"recovering for {gap_s:g} s before stage {k + 1}")
                            time.sleep(gap_s)
                        sent_before = True
                        elapsed_s = sum(_lasted(old) for old in state["clocks"] if old["stage"] == k)
                        sends_s = sends_for_s(stage, first, done, elapsed_s)
                        clock: dict[str, Any] = {"session": session, "stage": k, "sends_s": sends_s}
                        state["clocks"].append(clock)
                        title = f"stage {k + 1} of {len(stages)} ({stage.load:g} {stage.unit})"
                        clients = stage.workload.clients
                        base = {"stage": k, "session": session, "origin_ns": origin_ns, "clients": clients}
                        if crew.run(base, work, clock, _Tally(doing, title, len(work)), save):
                            save()
                            return False
                    state["stages_over"].append(k)
                    save()
            state["complete"] = True
            save()
            return True
        except KeyboardInterrupt:  # between two stages
            save()
            return False
        finally:
            crew.dismiss()


class _Crew:
    """The sending processes."""

    def __init__(self, workers: int, setup: dict[str, Any], out: IO[bytes]) -> None:
        self._out = out
        self._said: queue.SimpleQueue[tuple[str, dict[str, Any] | None, bytes]] = queue.SimpleQueue()
        apart: dict[str, Any] = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined, unused-ignore]
            if os.name == "nt"
            else {"start_new_session": True}
        )  # Ctrl-C is for the process that writes
        package = str(Path(__file__).resolve().parents[3])
        paths = [package, os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "servinglab.measure.load_test.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environ,
                **apart,
            )
            for _ in range(workers)
        ]
        self._threads = [
            threading.Thread(target=self._listen, args=(number, process.stdout), daemon=True)
            for number, process in enumerate(self._processes)
        ]
        try:
            for thread in self._threads:
                thread.start()
            for number in range(workers):
                self._tell(number, {"do": "setup", **setup})
            self._all_say("ready", workers)
        except BaseException:
            self.dismiss()
            raise

    def run(
        self,
        base: dict[str, Any],
        work: list[dict[str, Any]],
        clock: dict[str, Any],
        say: Callable[[dict[str, Any]], None],
        save: Callable[[], None],
    ) -> bool:
        """Run one stage; True if it was broken off."""
        hands = base["clients"] or len(self._processes)  # request j belongs to client j mod clients, he to a process
        shares: dict[int, list[dict[str, Any]]] = {}
        for j, job in enumerate(work):
            shares.setdefault(j % hands % len(self._processes), []).append(job)
        duration_ns = None if clock["sends_s"] is None else round(clock["sends_s"] * 1e9)
        for number, mine in shares.items():
            clients = len(range(number, base["clients"], len(self._processes)))
            shared = {"clients": clients, "closed": base["clients"] > 0, "duration_ns": duration_ns}
            self._tell(number, {"do": "stage", **base, **shared, "jobs": mine})
        self._all_say("loaded", len(shares))
        start_ns = time.perf_counter_ns() + round(_START_IN_S * 1e9)
        clock |= {"start_s": (start_ns - base["origin_ns"]) / 1e9, "ended_s": None, "workers": []}
        save()
        for number in shares:
            self._tell(number, {"do": "start", "start_ns": start_ns})
        over: list[dict[str, Any]] = []
        stopped = False
        while len(over) < len(shares):
            try:
                message, line = self._next(None)
            except KeyboardInterrupt:
                if stopped:
                    raise
                stopped = True
                for number in shares:
                    self._tell(number, {"do": "stop"})
                continue
            if "over" in message:
                over.append(message)
            else:
                self._out.write(line)
                self._out.flush()
                say(message)
        ended_ns = time.perf_counter_ns()
        clock["ended_s"] = (ended_ns - base["origin_ns"]) / 1e9
        lasted_s = (ended_ns - start_ns) / 1e9
        clock["workers"] = [
            {
                "busy": told["cpu_s"] / lasted_s if lasted_s >= BUSY_OVER_S else None,
                "lag_p99_s": told["lag_p99_s"],
                "lag_max_s": told["lag_max_s"],
            }
            for told in over
        ]
        return stopped

    def fail(self, why: str) -> None:
        """End the run: `run` raises, with this reason. For threads."""
        self._said.put((why, None, b""))

    def dismiss(self) -> None:
        """End the processes: they stop when there is nothing more to read."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join()

    def _listen(self, number: int, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        gone = f"sending process {number} ended before its work was done"
        with pipe:
            for line in pipe:
                try:
                    message = json.loads(line)
                    failed = message.get("failed")
                except (ValueError, AttributeError):
                    failed = f"it wrote {line[:200]!r}"
                if failed is not None:
                    self.fail(f"{gone}: {failed}")
                else:
                    self._said.put(("", message, line))
        self.fail(gone)

    def _next(self, timeout_s: float | None) -> tuple[dict[str, Any], bytes]:
        try:
            why, message, line = self._said.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildProcessError(f"the sending processes didn't start within {timeout_s:g} s") from None
        if message is None:
            raise ChildProcessError(why)
        return message, line

    def _all_say(self, word: str, count: int) -> None:
        for _ in range(count):
            message, _ = self._next(_STARTING_S)
            if word not in message:
                raise ChildProcessError(f"a sending process said {message} and not {word!r}")

    def _tell(self, number: int, message: dict[str, Any]) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise ChildProcessError(f"sending process {number} ended before its work was done") from None


def _open_folder(folder: Path, stages: Sequence[Stage]) -> tuple[dict[str, Any], set[int], float]:
    """The state of a run that is resumed (empty for a new one), what is done of it, and the seconds it has taken."""
    folder.mkdir(parents=True, exist_ok=True)
    file, requests = folder / "run.json", folder / "requests.jsonl"
    if not file.exists():
        if any(folder.iterdir()):
            raise ValueError(f"{folder} must be empty or hold a load test: it holds something else")
        return {}, set(), 0.0
    state = read_state(folder)
    if state["plan"] != fingerprint(stages):
        raise ValueError(f"{folder} holds a run of another plan; resume it with the options that it was begun with")
    if state["complete"]:
        raise ValueError(f"{folder} holds a run that is complete")
    if not requests.exists():
        return state, set(), 0.0
    text = requests.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):  # a killed run's last line
        with requests.open("r+b") as out:
            out.truncate(whole)
    records = read_records(requests)
    for clock in state["clocks"]:
        if clock.get("ended_s") is None:
            ends = [r.ended_s for r in records if (r.session, r.stage) == (clock["session"], clock["stage"])]
            clock["ended_s"] = max(ends, default=clock.get("start_s", 0.0))
    done = {record.request for record in records if record.outcome != "interrupted"}
    return state, done, max((record.ended_s for record in records), default=0.0)


def read_state(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says.

    Raises
    ------
    ValueError
        If it isn't that of a load test in a format that this version knows.
    """
    file = folder / "run.json"
    if folder.is_dir() and not file.exists():
        raise ValueError(f"{folder} isn't the folder of a load test: it holds no run.json")
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        known = state["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{file} isn't that of a load test")
    if state["format_version"] != FORMAT_VERSION:
        raise ValueError(
            f"{file} was written by servinglab {state['servinglab']} in format {state['format_version']}; "
            f"{__version__} reads format {FORMAT_VERSION}"
        )
    return state


def _told(stage: Stage) -> dict[str, Any]:
    return {"load": stage.load, "unit": stage.unit, "duration_s": stage.duration_s, **stage.workload.describe()}


def _hands(stage: Stage) -> int:
    """How many could send at the same time."""
    return min(len(stage.workload), stage.workload.clients or len(stage.workload))


def _first(stages: Sequence[Stage], k: int) -> int:
    return sum(len(stage.workload) for stage in stages[:k])


def _lasted(clock: dict[str, Any]) -> float:
    return max(0.0, (clock.get("ended_s") or 0.0) - clock.get("start_s", 0.0))


class _Tally:
    """Live progress of one stage: called with each request's record, speaks a few times a second."""

    def __init__(self, doing: Callable[[str], None], title: str, total: int) -> None:
        self._doing, self._title, self._total = doing, title, total
        self._ended = self._failed = 0
        self._latencies_s: deque[float] = deque(maxlen=_RECENT)
        self._next_s = 0.0
        doing(f"{title}: 0 of {total:,} requests")

    def __call__(self, record: dict[str, Any]) -> None:
        self._ended += 1
        if record["outcome"] == "finished":
            self._latencies_s.append(record["finish_s"] - record["scheduled_s"])
        else:
            self._failed += 1
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + 0.25
        parts = [f"{self._title}: {self._ended:,} of {self._total:,} requests", f"{self._failed:,} failed"]
        if self._latencies_s:
            parts += [f"E2E P{100 * q:g} {percentile(list(self._latencies_s), q):.3g} s" for q in (0.5, 0.99)]
        self._doing(", ".join(parts))
