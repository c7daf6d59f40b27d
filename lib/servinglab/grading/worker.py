"""The submission's side of grading: runs a notebook's own cells, and calls its functions when a check asks.

This process holds the submission and nothing else: no check, no expected answer, no grade. The grader sends it the
source of the submission's cells one by one, and later the names and arguments of calls; what it answers is never
trusted. Before each check it forks, so that a check sees the notebook as it was at that cell and leaves no trace in
it, and so that an endless loop in one check costs that check alone. Where a process can't fork safely (macOS,
Windows), the notebook's process answers by itself.

    python -m servinglab.grading.worker OPTIONS    OPTIONS: JSON of `isolated`, `limits`, `files`, `folder`, `lines`,
                                                   `kernels`

Frames (see `wire`) arrive on standard input and leave on standard output; both are moved away before the first
cell runs.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import io
import json
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from servinglab.grading import syscalls
from servinglab.grading.wire import WireError, encode, pack, picture, read_frame

KEPT_OUTPUT_CHARS = 100_000
KEPT_OUTPUTS = 200
KEPT_MIME = ("text/plain", "image/png")


def set_limits(limits: dict[str, int]) -> None:
    """Lower this process's own limits for good; what a system doesn't know is skipped."""
    try:
        import resource
    except ImportError:
        return
    wanted = {
        "RLIMIT_AS": limits.get("memory_bytes"),
        "RLIMIT_CPU": limits.get("cpu_s"),
        "RLIMIT_FSIZE": limits.get("scratch_bytes"),
        "RLIMIT_NOFILE": limits.get("open_files"),
        "RLIMIT_NPROC": limits.get("processes"),
        "RLIMIT_CORE": 0,
    }
    for name, value in wanted.items():
        if value is None or not hasattr(resource, name):
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
KEYCTL_JOIN_SESSION_KEYRING = 1


def leave_session_keyring() -> None:
    """Take a new, empty keyring: the kernel hands the grader's, with its keys, on into every namespace."""
    number = KEYCTL.get(os.uname().machine) if sys.platform == "linux" else None
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None) >= 0:
        return
    failure = ctypes.get_errno()
    if failure not in (errno.ENOSYS, errno.EPERM):  # those two forbid keys to the submission as well
        raise OSError(failure, f"it can't leave the grader's keyring ({os.strerror(failure)})")


class CellTimeout(BaseException):
    """A cell ran out of time; no `except Exception` in the submission catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `CellTimeout` in this block after `seconds`, where the system has an alarm clock.

    The grader keeps its own clock and ends a process that ignores this one.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise CellTimeout(f"the cell ran for more than {seconds:g} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class BoundedText(io.TextIOBase):
    """Keeps the first characters written to it and counts the rest."""

    def __init__(self, room: int = KEPT_OUTPUT_CHARS) -> None:
        self.room, self.parts, self.dropped = room, list[str](), 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: self.room]
        if kept:
            self.parts.append(kept)
            self.room -= len(kept)
        self.dropped += len(text) - len(kept)
        return len(text)

    def text(self) -> str:
        more = f"\n[{self.dropped:,} more characters were cut]\n" if self.dropped else ""
        return "".join(self.parts) + more


class Notebook:
    """The submission's cells, run one after the other in one IPython shell."""

    def __init__(self) -> None:
        from traitlets.config import Config

        from servinglab.grading.shell import Shell

        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.xmode = "Plain"
        self.shell = Shell.instance(config=config)
        # the error is in the cell's result: no traceback is printed beside it
        self.shell._showtraceback = lambda *args: None  # type: ignore[method-assign]
        self.kept: list[Any] = []

    def run(self, source: str, seconds: float) -> dict[str, Any]:
        """Run one cell; return its outputs (as a notebook keeps them) and its error, if any."""
        from IPython.core.displayhook import CapturingDisplayHook
        from IPython.core.displaypub import CapturingDisplayPublisher

        shown: list[dict[str, Any]] = []
        publisher = CapturingDisplayPublisher(shell=self.shell)
        out, err = BoundedText(), BoundedText()
        before = self.shell.display_pub, self.shell.display_trap.hook, sys.stdout, sys.stderr
        self.shell.display_pub = publisher
        self.shell.display_trap.hook = CapturingDisplayHook(shell=self.shell, outputs=shown)
        sys.stdout, sys.stderr = out, err
        try:
            with time_limit(seconds):
                result = self.shell.run_cell(source, store_history=False)
            failure = result.error_before_exec or result.error_in_exec
        except BaseException as error:
            failure = error
        finally:
            self.shell.display_pub, self.shell.display_trap.hook, sys.stdout, sys.stderr = before
        outputs: list[dict[str, Any]] = []
        for name, stream in (("stdout", out), ("stderr", err)):
            if stream.text():
                outputs.append({"output_type": "stream", "name": name, "text": stream.text()})
        for item in [*publisher.outputs, *shown][:KEPT_OUTPUTS]:
            data = {mime: item["data"][mime] for mime in KEPT_MIME if mime in item["data"]}
            if "text/plain" in data:
                data["text/plain"] = data["text/plain"][:KEPT_OUTPUT_CHARS]
            outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
        return {"outputs": outputs, "error": None if failure is None else self.error(failure)}

    def error(self, failure: BaseException) -> dict[str, str]:
        """An exception's class, its text, and where in the submission it was raised."""
        place, trace = "", failure.__traceback__
        while trace is not None:
            if "ipython-input" in trace.tb_frame.f_code.co_filename:
                place = f"line {trace.tb_lineno} of {trace.tb_frame.f_code.co_name}".replace(" of <module>", "")
            trace = trace.tb_next
        try:
            text = str(failure)[:1000]
        except BaseException:
            text = ""
        return {"name": type(failure).__name__[:100], "text": text, "place": place[:200]}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one question of a check: a name, an attribute, or a call."""
        try:
            with contextlib.redirect_stdout(BoundedText(0)), contextlib.redirect_stderr(BoundedText(0)):
                if "name" in request:
                    if request["name"] not in self.shell.user_ns:
                        return {"missing": True}
                    value = self.shell.user_ns[request["name"]]
                elif "attribute" in request:
                    value = getattr(self.kept[request["ref"]], request["attribute"])
                else:
                    args, kwargs = pickle.loads(base64.b64decode(request["arguments"]))
                    value = self.kept[request["ref"]](*args, **kwargs)
                    return {"value": encode(value, self.keep), "arguments": picture(args)}
                return {"value": encode(value, self.keep)}
        except BaseException as failure:
            return {"error": self.error(failure)}

    def keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept) - 1


def serve(notebook: Notebook, read: Callable[[int], bytes], write: Callable[[bytes], Any]) -> None:
    """Answer a check's questions until it says it is done or closes the line."""
    while "done" not in (request := read_frame(read)):
        write(reply_frame(notebook.answer(request)))


def reply_frame(reply: dict[str, Any]) -> bytes:
    try:
        return pack(reply)
    except (WireError, ValueError, TypeError, RecursionError):
        return pack({"error": {"name": "ValueError", "text": "the answer is too large to send", "place": ""}})


def main(options: dict[str, Any]) -> None:
    control = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    read, write = control[0].read, control[1].write

    def write_all(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[write(view) :]

    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    leave_session_keyring()
    if options["isolated"]:
        syscalls.refuse_keys_and_uncounted_memory()
    else:
        with contextlib.suppress(OSError):
            syscalls.refuse_keys()
    import numpy  # noqa: F401  (before the submission's folder can shadow it)

    notebook = Notebook()
    if options["files"]:
        # ignore a name that can't be read: only the cell that needs it should fail
        with contextlib.suppress(shutil.Error, OSError):
            shutil.copytree(options["files"], options["folder"], dirs_exist_ok=True)
    if options["kernels"]:
        with contextlib.suppress(shutil.Error, OSError):
            shutil.copytree(options["kernels"], os.environ["NUMBA_CACHE_DIR"])
    Path(options["folder"]).mkdir(parents=True, exist_ok=True)
    os.chdir(options["folder"])
    sys.path.insert(0, "")
    lines = {number: socket.socket(fileno=fileno) for number, fileno in enumerate(options["lines"])}
    set_limits(options["limits"])
    write_all(pack({"ready": True}))

    children: dict[int, int] = {}
    while True:
        request = read_frame(read)
        if "run" in request:
            write_all(reply_frame(notebook.run(request["run"], request["seconds"])))
        elif "check" in request:
            number = request["check"]
            if number not in lines:
                write_all(pack({"forked": False}))
                serve(notebook, read, write_all)
                continue
            sys.stdout.flush()
            try:
                child = os.fork()
            except OSError as error:
                write_all(pack({"error": str(error)}))
                continue
            if child == 0:
                try:
                    # a copy that outlives the notebook must not keep its line open, nor those of other checks
                    for end in control:
                        end.close()
                    for other in lines.keys() - {number}:
                        lines[other].close()
                    os.setsid()  # a signal to its own group is none to the notebook's
                    leave_session_keyring()
                    serve(notebook, lines[number].recv, lines[number].sendall)
                finally:
                    os._exit(0)
            lines[number].close()
            children[number] = child
            write_all(pack({"forked": True}))
        elif "end" in request:
            child = children.pop(request["end"])
            for end_it in (os.killpg, os.kill):  # with all that it started; before it has its own group, it alone
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end_it(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
            write_all(pack({"ended": True}))


if __name__ == "__main__":
    # the grader went away: nothing is left to say
    with contextlib.suppress(WireError):
        main(json.loads(sys.argv[1]))
