"""A process for one submission, as far from everything else as the system allows.

With bubblewrap the process has no network, no capabilities and no way to see other processes; it finds the
interpreter, its packages, this library and its own files, all read-only, and scratch folders of limited size. What it
holds is counted from outside (`usage`); what can't be counted, it can't have (`syscalls`).
Where root grades, the submission runs as a user who owns nothing: what holds it is then not bubblewrap alone.
Without bubblewrap only the limits on time, memory and file size remain, which a hostile submission can get around:
that is for a learner's own work on a learner's own machine, or for a teacher who says so.

What this module does not do: know what a notebook or a check is. It runs sources and answers calls.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import pickle
import queue
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import servinglab
from servinglab.grading import usage
from servinglab.grading.checks import Unanswered
from servinglab.grading.notebooks import copy_files
from servinglab.grading.wire import Opaque, WireError, decode, pack, parse, read_body, read_frame

CAN_FORK = sys.platform == "linux"
BWRAP_AT_LEAST = (0, 8)
GRACE_S = 2.0  # for a cell to stop by itself, beyond its time
BWRAP_OUTSIDE = 2  # its processes that wait outside the sandbox, where the kernel's own limit doesn't count them
SCRATCH = "/scratch"
WRITABLE = ("/tmp", "/dev/shm", SCRATCH)
SUBMISSION = "/submission"
OPEN_FILES = 256


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    `cell_s` and `check_s` are wall-clock seconds for one cell and for one check cell's calls together, `total_s` for
    all cells with their visible checks, and once more for all hidden tests; `memory_bytes` is for one process and for
    all of them together; `scratch_bytes` for each of the writable folders; `processes` counts threads too.
    """

    cell_s: float = 30.0
    check_s: float = 30.0
    total_s: float = 300.0
    memory_bytes: int = 4 * 2**30
    scratch_bytes: int = 64 * 2**20
    processes: int = 128


class SandboxError(Exception):
    """Isolation was asked for and can't be had, or the process did not start."""


class Died(Exception):
    """The submission's process is gone; the text says why, as far as that is known."""


@functools.cache
def isolation_problem() -> str:
    """Why bubblewrap can't isolate a submission here, and what would help; empty where it can."""
    found = shutil.which("bwrap")
    if not found and sys.platform != "linux":
        return "bubblewrap (bwrap) is not installed: it exists for Linux only"
    if not found:
        return "bubblewrap (bwrap) is not installed: install it (Debian, Ubuntu: sudo apt install bubblewrap)"
    version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30).stdout
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < BWRAP_AT_LEAST:
        return f"bubblewrap 0.8 or newer is needed; found {version.strip() or 'no version'}: install a newer one"
    trial = subprocess.run(
        [*_sandbox(None, Limits()), sys.executable, "-P", "-s", "-B", "-c", TRIAL],
        capture_output=True,
        text=True,
        timeout=60,
        env=_environment(SCRATCH),
    )
    if not trial.returncode:
        return ""
    said = (trial.stderr.strip().splitlines() or ["no reason"])[-1]
    if said.startswith("bwrap: ") and "execvp" not in said:
        return (
            f"bubblewrap can't make a sandbox here ({said}): this machine or container must allow user namespaces"
            " to ordinary users"
        )
    cure = "make the environment again, with another Python"
    if os.geteuid() == 0:
        cure = (
            "what root grades runs as an ordinary user, so every user must be able to read this Python and its packages"
        )
    return f"the Python of this environment, {sys.executable}, doesn't start inside the sandbox ({said}): {cure}"


# what the worker needs, found but not imported: this runs before each submission
TRIAL = """
import importlib.util, sys
missing = [name for name in ("IPython", "numpy", "servinglab") if not importlib.util.find_spec(name)]
sys.exit(f"it finds no {' and no '.join(missing)} there" if missing else 0)
"""

# Root's ids are replaced by those of a user who owns nothing and whom nobody else is: far above what systems and
# containers give out, another for each grading process. A container may know small ids only; then it is "nobody".
UNUSED_IDS = 0x7000_0000
BECOME_ORDINARY = """
import os, sys
os.setgroups([])
for user in (int(sys.argv[1]), 65534):
    try:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        break
    except OSError as error:
        failure = error
else:
    sys.exit(f"bwrap: root can't become an ordinary user: {failure}")
os.execv(sys.argv[2], sys.argv[2:])
"""


def _sandbox(files: Path | None, limits: Limits, kernels: Path | None = None) -> list[str]:
    """The beginning of a command line: what follows it runs in a sandbox that sees `files` and no other work."""
    bwrap = os.path.realpath(shutil.which("bwrap") or "bwrap")
    needed = [*_needed(), *([kernels] if kernels else [])]
    seen = _read_only(needed)
    size = str(limits.scratch_bytes)
    as_root = os.geteuid() == 0
    submission = ["--ro-bind", SUBMISSION if as_root else str(files), SUBMISSION] if files else []
    sandbox = [
        bwrap,
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--uid", "65534", "--gid", "65534", "--hostname", "kitchen"),
        *("--die-with-parent", "--new-session"),
        *("--proc", "/proc", *_proc_covers(), "--dev", "/dev"),
        *[word for folder in WRITABLE for word in ("--size", size, "--tmpfs", folder)],
        *("--dev-bind", "/dev/full", "/dev/zero"),  # as good to read; mapped, the other is memory that counts nowhere
        *("--dir", f"{SCRATCH}/tmp"),
        *seen,  # after the scratch folders: the checkout or its environment may lie below one of them
        *submission,
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", SCRATCH),
    ]
    if not as_root:
        return sandbox
    # The kernel goes on taking root for root inside a user namespace, whatever its number there. So root only makes a
    # place where an ordinary user can read what root alone may reach (a Python below /root), and becomes that user
    # there. From then on all is as if that user had started the grader.
    return [
        bwrap,
        *("--die-with-parent", "--tmpfs", "/tmp", "--bind", "/proc", "/proc", "--dev", "/dev"),
        *_read_only([*needed, Path(bwrap)]),
        *(["--ro-bind", str(files), SUBMISSION] if files else []),
        *("--chdir", "/"),
        *(sys.executable, "-I", "-S", "-c", BECOME_ORDINARY, str(UNUSED_IDS + os.getpid())),
        *sandbox,
    ]


def _needed() -> list[Path]:
    """What this Python, its packages and this library consist of, as far as it is there."""
    base, prefix, scheme = Path(sys.base_prefix), Path(sys.prefix), sysconfig.get_paths()
    of_the_system = base in (Path("/usr"), Path("/"))
    wanted = [
        Path(scheme["stdlib"]) if of_the_system else base,
        Path(sys.executable),
        # of an environment no more than this: somebody may have made it in the folder of the course itself
        *[prefix / name for name in ("pyvenv.cfg", "bin", "lib", "lib64") if prefix != base],
        *[Path(folder) for folder in (scheme["purelib"], scheme["platlib"], *site.getsitepackages())],
        *[Path(folder) for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")],
        Path("/etc/ld.so.cache"),
        Path(servinglab.__file__).parent,
    ]
    return [path for path in wanted if path.exists()]


def _read_only(paths: Iterable[Path]) -> list[str]:
    """Arguments that show these paths read-only under the names they have here: with every link on the way to them."""
    links: dict[Path, str] = {}
    real = {_resolve(path, links) for path in paths}
    bound = sorted(path for path in real if real.isdisjoint(path.parents))
    made = sorted(link for link in links if real.isdisjoint(link.parents))
    # bubblewrap's own choice for folders on the way is 0700, and root's wouldn't let an ordinary user pass
    folders = sorted({folder for path in (*bound, *made) for folder in path.parents} - {Path("/")})
    arguments = [word for folder in folders for word in ("--perms", "0755", "--dir", str(folder))]
    arguments += [word for link in made for word in ("--symlink", links[link], str(link))]
    return arguments + [word for path in bound for word in ("--ro-bind", str(path), str(path))]


def _resolve(path: Path, links: dict[Path, str]) -> Path:
    """The place of an existing path without any link; each link on the way is added to `links`."""
    done, left = Path("/"), list(path.absolute().parts[1:])
    while left:
        name = left.pop(0)
        step = done.parent if name == ".." else done / name
        if step.is_symlink():
            links[step] = os.readlink(step)
            target = Path(links[step])
            done = Path("/") if target.is_absolute() else done
            left = [part for part in target.parts if part != "/"] + left
        else:
            done = step
    return done


def _proc_covers() -> list[str]:
    """Arguments that leave of /proc the processes, the settings to be read, and a few facts that programs ask for."""
    arguments = ["--ro-bind-try", "/proc/sys", "/proc/sys"]
    for entry in sorted(Path("/proc").iterdir()):
        if entry.name.isdigit() or entry.is_symlink() or entry.name in PROC_SHOWN:
            continue
        cover = ["--tmpfs", str(entry), "--remount-ro", str(entry)]
        arguments += cover if entry.is_dir() else ["--ro-bind", "/dev/null", str(entry)]
    return arguments


PROC_SHOWN = ("sys", "cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")


def _counts_by_namespace() -> bool:
    """Whether Linux counts the processes of a user for each namespace apart; before 5.14 it counted them together."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (5, 14)


def _environment(scratch: str) -> dict[str, str]:
    """The only variables that a submission sees."""
    needed_by_windows = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    return {
        **needed_by_windows,
        "PATH": str(Path(sys.executable).parent),
        "HOME": scratch,
        "TMPDIR": f"{scratch}/tmp",
        "IPYTHONDIR": f"{scratch}/ipython",
        "MPLCONFIGDIR": f"{scratch}/matplotlib",
        "NUMBA_CACHE_DIR": f"{scratch}/numba",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": str(Path(servinglab.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "LANG": "C.UTF-8",
        # one thread each: memory limits count every thread's arena, and a class is graded in parallel if at all
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }


class Sandbox:
    """One submission's process. Use as a context manager.

    Parameters
    ----------
    files : Path or None
        The folder beside the notebook; its plain files, but no notebook, are copied into the process's working folder.
    isolate : bool
        Use bubblewrap.
    limits : Limits
    checks : int
        How many check cells will come: each gets its own line and its own copy of the process.
    kernels : Path, optional
        A folder of `kernels.compiled_kernels`, for a submission that simulates.
    seconds : float, optional
        What is left of `limits.total_s`, if not all of it.

    Raises
    ------
    SandboxError
        If isolation is asked for and not possible, or the process doesn't start.
    """

    def __init__(
        self,
        files: Path | None,
        *,
        isolate: bool,
        limits: Limits,
        checks: int,
        seconds: float | None = None,
        kernels: Path | None = None,
    ) -> None:
        if isolate and (problem := isolation_problem()):
            raise SandboxError(problem)
        self.limits = limits
        self.cause = ""
        self._sealed = False
        self._inside = 0  # the process whose files and sockets are those of the sandbox, once there is one
        self._deadline = time.monotonic() + (limits.total_s if seconds is None else seconds)
        self._replies: queue.Queue[bytes | None] = queue.Queue(maxsize=1)
        self._stack = contextlib.ExitStack()
        pairs = [socket.socketpair() for _ in range(checks)] if CAN_FORK else []
        self._lines = [ours for ours, _ in pairs]
        self._scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="servinglab-"))
        work = Path(self._scratch, "work")
        work.mkdir()
        if files:
            copy_files(files, work)
            for path in (work, *work.rglob("*")):  # whatever the umask: the reader may be another user
                path.chmod(0o755 if path.is_dir() else 0o644)
        if isolate:
            scratch, folder, copied = SCRATCH, f"{SCRATCH}/work", SUBMISSION
            command = _sandbox(work, limits, kernels)
        else:
            scratch, folder, copied, command = self._scratch, str(work), None, []
            Path(scratch, "tmp").mkdir()
        lines = [theirs.fileno() for _, theirs in pairs]
        options = {
            "isolated": isolate,
            "limits": {
                "memory_bytes": limits.memory_bytes,
                "scratch_bytes": limits.scratch_bytes,
                "cpu_s": int(limits.total_s) + 60,
                **({"open_files": OPEN_FILES} if isolate else {}),
                # where the user's other processes count as well, only `_watch` limits them
                **({"processes": limits.processes} if isolate and _counts_by_namespace() else {}),
            },
            "files": copied,
            "folder": folder,
            "lines": lines,
            "kernels": str(kernels) if kernels else None,
        }
        python = [sys.executable, "-P", "-s", "-B", "-m", "servinglab.grading.worker", json.dumps(options)]
        self._errors = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (the stack closes it)
        self._process = subprocess.Popen(
            [*command, *python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._scratch,
            env=_environment(scratch),
            pass_fds=lines,
            start_new_session=True,
        )
        for _, theirs in pairs:
            theirs.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        if sys.platform == "linux":
            threading.Thread(target=self._watch, daemon=True).start()
        try:
            self._ask(None, 60.0, "its start")
        except Died as error:
            self._errors.seek(0)
            said = self._errors.read(4000).decode(errors="replace").strip().splitlines()
            self.close()
            raise SandboxError(f"the submission's process did not start: {said[-1] if said else error}") from None
        if isolate:
            self._inside = usage.processes(self._process.pid, limits.processes).pids[-1]  # there is one child each yet

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and everything it started."""
        self._end("")
        self._process.wait()
        # a reader must be gone before its pipe is closed: the number would be used again, and it would read on there
        for _ in range(100):
            with contextlib.suppress(queue.Empty):
                self._replies.get_nowait()  # it may wait until somebody takes what it has read
            self._listener.join(timeout=0.05)
            if not self._listener.is_alive():
                break
        pipes = [self._process.stdin, *self._lines, *([] if self._listener.is_alive() else [self._process.stdout])]
        for pipe in pipes:
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._stack.close()

    @property
    def alive(self) -> bool:
        """Whether the process still runs and was not told to end."""
        return not self.cause and self._process.poll() is None

    @property
    def left_s(self) -> float:
        """Seconds that are left of the notebook's time."""
        return self._deadline - time.monotonic()

    def run(self, source: str) -> dict[str, Any]:
        """Run one cell: its `outputs` as in a notebook, and its `error` (class and text) or None.

        Raises
        ------
        Died
            If the process is gone, or had to be ended because it ignored its time limit.
        """
        seconds = max(min(self.limits.cell_s, self.left_s), 0.1)
        reply = self._ask({"run": source, "seconds": seconds}, seconds + GRACE_S, "a cell")
        if not isinstance(reply.get("outputs"), list):
            raise Died(self._end("it sent something that is no answer"))
        return reply

    def open_check(self, number: int) -> Calls:
        """The notebook as it is now, ready to answer calls until `end_check`."""
        reply = self._ask({"check": number}, 10.0, "copying the notebook for a check")
        if "error" in reply:
            raise Died("it could not start a process for the check")
        if CAN_FORK:
            if not reply.get("forked"):  # then hidden tests would be asked where later cells can see them
                raise Died(self._end("it made no copy of itself for the check"))
            return Calls(functools.partial(_ask_line, self._lines[number]), self._until, number)

        def ask_here(request: dict[str, Any], seconds: float) -> Any:
            try:
                return self._ask(request, seconds, "a check")
            except Died:
                raise (_late() if "time" in self.cause else _dead()) from None

        return Calls(ask_here, self._until, number)

    def _until(self) -> float:
        """When a check that starts now must have its answers."""
        return min(time.monotonic() + self.limits.check_s, self._deadline)

    def end_check(self, calls: Calls) -> None:
        """Let go of one check's copy of the notebook."""
        with contextlib.suppress(Died):
            if not CAN_FORK:
                self._send({"done": True}, GRACE_S)
            elif self._sealed:
                self._send({"end": calls.number}, GRACE_S)
            else:
                self._ask({"end": calls.number}, 5.0, "ending a check")

    def put_off(self, calls: Calls) -> None:
        """Let a check wait until it is opened again: its copy waits with it; without copies, the notebook goes on."""
        if not CAN_FORK:
            self.end_check(calls)

    def seal(self) -> None:
        """Listen to the notebook's own process no more: only its copies still answer, for `total_s` from now on.

        Hidden tests come after this, so that nothing that is shown can hold what they ask.
        """
        self._sealed = CAN_FORK
        self._deadline = time.monotonic() + self.limits.total_s

    def reopen(self, calls: Calls) -> None:
        """Go on with a check that was put off."""
        calls.restart_clock()
        if not CAN_FORK:
            with contextlib.suppress(Died):  # who is dead gives no answer
                self.open_check(calls.number)

    def _send(self, request: dict[str, Any], seconds: float) -> None:
        assert self._process.stdin is not None
        stuck = threading.Timer(seconds, self._end, [f"it read nothing for {seconds:g} s"])
        stuck.start()
        try:
            self._process.stdin.write(pack(request))
            self._process.stdin.flush()
        except OSError:
            raise Died(self._end("its process ended")) from None
        finally:
            stuck.cancel()

    def _ask(self, request: dict[str, Any] | None, seconds: float, what: str) -> dict[str, Any]:
        assert not self._sealed
        if request is not None:
            self._send(request, seconds)
        try:
            reply = self._replies.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            raise Died(self._end(f"{what} took more time than its limit of {seconds:g} s")) from None
        try:
            answer = None if reply is None else parse(reply)
        except WireError:
            answer = None
        if not isinstance(answer, dict):
            raise Died(self._end("its process ended"))
        return answer

    def _listen(self) -> None:
        """Read ahead by one message: whoever sends more waits until this one was asked for. Drop what is not heard."""
        assert self._process.stdout is not None
        read: Callable[[int], bytes] = functools.partial(os.read, self._process.stdout.fileno())
        try:
            while True:
                body = read_body(read)
                if not self._sealed:
                    self._replies.put(body)
        except (WireError, OSError, ValueError):
            self._replies.put(None)

    def _watch(self) -> None:
        """End a sandbox that uses more memory or processes, all together, than it may."""
        most = self.limits.processes + BWRAP_OUTSIDE
        while self._process.poll() is None:
            found = usage.processes(self._process.pid, most)
            inside = usage.files(self._inside, WRITABLE) + usage.sockets(self._inside) if self._inside else 0
            if found.threads > most:
                self._end(f"it started more than {self.limits.processes} processes")
            elif (
                found.memory + inside > self.limits.memory_bytes
                and usage.shared_out(found.pids) + inside > self.limits.memory_bytes
            ):
                self._end(f"it used more than {self.limits.memory_bytes / 2**30:g} GiB of memory")
            time.sleep(0.1)

    def _end(self, cause: str) -> str:
        """Kill everything in the sandbox; the first cause given is the one reported."""
        self.cause = self.cause or cause
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        return self.cause


class Calls:
    """Asks one copy of the notebook for names, attributes and calls, within one time limit for them all.

    `ask` sends a request and returns the reply, within some seconds; `until` says when answers to what starts now
    must be there. `silence` is what came in place of an answer, once that happened: nothing more is asked then.
    """

    def __init__(self, ask: Callable[[dict[str, Any], float], Any], until: Callable[[], float], number: int) -> None:
        self._ask, self._limit, self.number = ask, until, number
        self.silence: Silent | None = None
        self.restart_clock()

    def restart_clock(self) -> None:
        self._until = self._limit()

    def name(self, name: str) -> Any:
        """The value of a global name; `NameError` where the notebook has none."""
        reply = self.request({"name": name})
        if reply is _MISSING:
            raise NameError(f"name {name!r} is not defined")
        return reply

    def request(self, request: dict[str, Any]) -> Any:
        return self._reply(request)[0]

    def call(self, ref: int, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list[str]]:
        """The answer to a call, and a `wire.picture` of its arguments after it."""
        arguments = base64.b64encode(pickle.dumps((args, kwargs))).decode()
        value, after = self._reply({"ref": ref, "arguments": arguments})
        match after:
            case [*texts] if all(isinstance(text, str) for text in texts):
                return value, texts
        raise _dead()

    def _reply(self, request: dict[str, Any]) -> tuple[Any, Any]:
        """The answer to one question, and what was said of a call's arguments."""
        if self.silence:
            raise self.silence
        try:
            match self._ask(request, self._until - time.monotonic()):
                case {"missing": True}:
                    return _MISSING, None
                case {"error": {"name": str(name), "text": str(text), "place": str(place)}}:
                    raise Unanswered.from_error(name[:100], text[:1000], place[:200])
                case {"value": value, **rest}:
                    try:
                        plain = decode(value)
                    except (WireError, RecursionError):
                        raise Unanswered(NOT_PLAIN, NOT_PLAIN) from None
                    if isinstance(plain, Opaque):  # the stand-in's class has the name of what it stands for
                        plain = type(plain.kind, (Remote,), {})(self, plain)
                    return plain, rest.get("arguments")
            raise _dead()
        except Silent as silence:
            self.silence = silence
            raise


class Remote:
    """Stands in for a function or an object of the submission: calls and attributes are asked for over there."""

    def __init__(self, calls: Calls, value: Opaque) -> None:
        self._calls, self._value = calls, value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._calls.call(self._value.ref, args, kwargs)[0]

    def observe(self, *args: Any) -> tuple[Any, list[str]]:
        """Call it, and say what its arguments are after the call: see `checks.observe`."""
        return self._calls.call(self._value.ref, args, {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._calls.request({"ref": self._value.ref, "attribute": name})


_MISSING = object()


NOT_PLAIN = "an answer that is not plain data"
LATE = "no answer in time"


class Silent(Unanswered):
    """No answer came, and none will."""


class Late(Silent):
    """No answer within the check's time."""


def _late() -> Late:
    return Late(LATE, LATE, "a loop that does not end, or one that is far too slow")


def _dead() -> Silent:
    return Silent(
        "no answer: the process ended",
        "no answer: the process ended",
        "the function used too much memory or ended its own process",
    )


def _ask_line(line: socket.socket, request: dict[str, Any], seconds: float) -> Any:
    """Send a request and read its reply, both within `seconds`, however slowly the other side writes."""
    until = time.monotonic() + seconds

    def waiting() -> socket.socket:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
        return line

    try:
        waiting().sendall(pack(request))
        return read_frame(lambda size: waiting().recv(size))
    except TimeoutError:
        raise _late() from None
    except (OSError, WireError):
        raise _dead() from None
