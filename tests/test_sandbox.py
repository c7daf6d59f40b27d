"""The sandbox: what a submission can't see, can't use up and can't survive. Each test is an attack."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from servinglab.grading import sandbox as sandbox_module
from servinglab.grading import syscalls, usage
from servinglab.grading.checks import Unanswered, plain
from servinglab.grading.sandbox import Died, Limits, Remote, Sandbox, SandboxError, isolation_problem
from servinglab.grading.wire import Opaque, WireError, decode, encode, pack, read_frame
from servinglab.grading.worker import KEYCTL

QUICK = Limits(cell_s=3, check_s=1.5, total_s=60)


def said(box: Sandbox, source: str) -> str:
    """What a cell prints; its error, if any, is appended."""
    reply = box.run(textwrap.dedent(source))
    text = "".join(output.get("text", "") for output in reply["outputs"])
    return text + (f"{reply['error']['name']}: {reply['error']['text']}" if reply["error"] else "")


@pytest.fixture
def box(bwrap):
    with Sandbox(None, isolate=True, limits=QUICK, checks=3) as sandbox:
        yield sandbox


@pytest.fixture(params=["isolated", "plain"])
def either(request):
    """The same process with and without bubblewrap."""
    if request.param == "isolated":
        request.getfixturevalue("bwrap")
    with Sandbox(None, isolate=request.param == "isolated", limits=QUICK, checks=3) as sandbox:
        yield sandbox


def test_there_is_no_network(box):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass  # reachable from here
        text = said(
            box,
            f"""
            import socket
            for target in [("127.0.0.1", {port}), ("192.0.2.1", 53), ("1.1.1.1", 443)]:
                try:
                    socket.create_connection(target, timeout=2)
                    print("REACHED", target)
                except OSError as error:
                    print("refused", error.errno)
            print(sorted(name for _, name in socket.if_nameindex()))
            """,
        )
    assert "REACHED" not in text
    assert text.count("refused") == 3
    assert "['lo']" in text


def test_sockets_and_processes_of_the_machine_are_out_of_sight(box):
    text = said(
        box,
        f"""
        import os, socket
        print([name for name in os.listdir("/proc") if name.isdigit()].__len__() <= 3)
        print(os.path.exists("/proc/{os.getpid()}/environ") and {os.getpid()} > 100)
        for path in ("/run", "/var", "/tmp/.X11-unix", "/etc/passwd", "/home", "/sys"):
            print(path, os.path.exists(path))
        try:
            os.kill({os.getpid()}, 0)
            print("FOUND")
        except OSError:
            print("no such process")
        """,
    )
    assert text.startswith("True\nFalse\n")
    assert text.count("True") == 1
    assert "FOUND" not in text


def test_the_environment_holds_nothing_of_the_grader(bwrap, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "sesame-4711")
    with Sandbox(None, isolate=True, limits=QUICK, checks=0) as box:
        text = said(
            box,
            """
            import os
            print(dict(os.environ))
            for name in os.listdir("/proc"):
                if name.isdigit():
                    for part in ("environ", "cmdline"):
                        try:
                            print(open(f"/proc/{name}/{part}", "rb").read())
                        except OSError:
                            pass
            """,
        )
    assert "PATH" in text
    assert "sesame" not in text
    assert "GRADER" not in text


LOOK_FOR_A_KEY = """
import ctypes
libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(9)
for keyring in (-1, -2, -3, -4, -5):
    key = libc.syscall(KEYCTL, 10, keyring, b"user", b"servinglab-test", 0)
    print(key > 0 and libc.syscall(KEYCTL, 11, key, kept, 9) and kept.value)
"""
KEEP_A_KEY = """
import ctypes, sys
from servinglab.grading.sandbox import Limits, Sandbox
look, keyctl = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
libc.syscall(keyctl, 1, None)
if libc.syscall(keyctl - 2, b"user", b"servinglab-test", b"sesame", 6, -3) < 0:  # add_key
    sys.exit("no keys here")
exec(look)
with Sandbox(None, isolate=True, limits=Limits(), checks=0) as box:
    print("inside", *[output["text"] for output in box.run(look)["outputs"]])
"""


@pytest.mark.slow
def test_the_keys_of_the_graders_session_stay_with_the_grader(bwrap):
    machine = os.uname().machine
    if machine not in KEYCTL:
        pytest.skip(f"the number of keyctl on {machine} isn't known here")
    look = LOOK_FOR_A_KEY.replace("KEYCTL", str(KEYCTL[machine]))
    command = [sys.executable, "-c", KEEP_A_KEY, look, str(KEYCTL[machine])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "no keys here" in done.stderr:
        pytest.skip("this machine or container gives no process any keys")
    outside, _, inside = done.stdout.partition("inside")
    assert "sesame" in outside, done.stderr
    assert inside.split() == ["False"] * 5


LEAVE_A_KEY = """
import ctypes, os
libc = ctypes.CDLL(None)
for keyring in (-2, -3, -4, -5, libc.syscall(KEYCTL, 22, -1, -4)):
    print(libc.syscall(KEYCTL - 2, b"user", b"servinglab-left", b"sesame", 6, keyring))
"""


@pytest.mark.slow
def test_a_submission_leaves_no_key_for_the_next_one(either):
    """The kernel keeps keyrings of a user for days, whoever runs as that user."""
    machine = os.uname().machine
    if machine not in syscalls.MACHINES:
        pytest.skip(f"the system calls of {machine} aren't known here")
    source = LEAVE_A_KEY.replace("KEYCTL", str(KEYCTL[machine]))
    assert said(either, source).split() == ["-1"] * 5
    either.run(
        f"def leave():\n    import io, contextlib\n    with contextlib.redirect_stdout(io.StringIO()) as kept:\n"
        f"        exec({source!r})\n    return kept.getvalue()"
    )
    calls = either.open_check(0)
    assert calls.name("leave")().split() == ["-1"] * 5
    either.end_check(calls)


def test_there_are_no_capabilities_and_no_way_to_get_them(box):
    text = said(
        box,
        """
        import ctypes, os
        rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        print([int(rows[name], 16) for name in sets], rows["NoNewPrivs"].strip())
        libc = ctypes.CDLL(None, use_errno=True)
        print([libc.unshare(flag) for flag in (0x10000000, 0x00020000, 0x40000000)])  # user, mount, network
        print("mount", libc.mount(b"tmpfs", b"/scratch", b"tmpfs", 0, None))
        for change in (os.setuid, os.setgid):
            try:
                change(0)
                print("BECAME ROOT")
            except OSError:
                print("no")
        """,
    )
    assert "[0, 0, 0, 0, 0] 1" in text
    assert "[-1, -1, -1]" in text
    assert "mount -1" in text
    assert "BECAME" not in text


def test_nothing_can_be_written_but_the_scratch_folders(box):
    text = said(
        box,
        """
        import os
        written = set()
        for folder, folders, files in os.walk("/"):
            if folder.startswith(("/proc", "/usr/lib", "/lib")) and folder.count("/") > 3:
                folders[:] = []
            try:
                with open(os.path.join(folder, "probe"), "w") as file:
                    file.write("x")
                written.add("/".join(folder.split("/")[: 3 if folder.startswith("/dev") else 2]))
            except OSError:
                pass
        print(sorted(written))
        """,
    )
    assert text.strip() == "['/dev/shm', '/scratch', '/tmp']"


def test_the_kernels_settings_can_be_read_but_nothing_in_proc_changed(box):
    """Opening is enough: whoever can open core_pattern for writing has the machine."""
    text = said(
        box,
        """
        import os
        print(len(open("/proc/sys/kernel/core_pattern").read()) > 0)
        found, tried = [], 0
        for folder, folders, files in os.walk("/proc"):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
            for name in files:
                tried += 1
                try:
                    os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
                    found.append(os.path.join(folder, name))
                except OSError:
                    pass
        print(tried > 300, found)
        readable = []
        for name in ("kcore", "kmsg", "keys", "kallsyms", "timer_list", "interrupts", "cmdline", "sysrq-trigger"):
            try:
                readable += [name for _ in open(f"/proc/{name}", "rb").read(1)]
            except OSError:
                pass
        print(readable, os.listdir("/proc/fs"), os.listdir("/proc/irq"), os.listdir("/proc/bus"))
        """,
    )
    assert text == "True\nTrue []\n[] [] [] []\n"


@pytest.fixture
def as_root(bwrap):
    if os.geteuid() != 0:
        pytest.skip("only root can try what root's submissions may do")


def test_a_submission_graded_by_root_is_an_ordinary_user_of_the_machine(as_root, box):
    box.run("import os\nif os.fork() == 0:\n    import time\n    time.sleep(60)")
    pids = usage.processes(box._process.pid, 1000).pids
    rows = [dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines()) for pid in pids]
    # the first is root's own, and only waits for the others
    users = {tuple(row["Uid"].split()) for row in rows[1:]}
    groups = {(*row["Gid"].split(), *row["Groups"].split()) for row in rows[1:]}
    assert len(rows) >= 4
    assert len(users) == len(groups) == 1
    assert "0" not in (*users.pop(), *groups.pop())


def test_a_file_for_root_alone_is_for_root_alone_inside_too(as_root, tmp_path, monkeypatch):
    folder = tmp_path / "bound"
    folder.mkdir()
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (folder / name).write_text(f"{name} text")
        (folder / name).chmod(mode)
    needed = sandbox_module._needed
    monkeypatch.setattr(sandbox_module, "_needed", lambda: [*needed(), folder])
    with Sandbox(None, isolate=True, limits=QUICK, checks=0) as box:
        assert said(box, f"print(open({str(folder / 'open')!r}).read())") == "open text\n"
        assert "PermissionError" in said(box, f"open({str(folder / 'closed')!r})")


def test_files_come_along_whatever_the_graders_umask(bwrap, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.csv").write_text("1,2\n")
    before = os.umask(0o077)
    try:
        with Sandbox(tmp_path, isolate=True, limits=QUICK, checks=0) as box:
            assert said(box, "print(open('sub/data.csv').read().strip())") == "1,2\n"
    finally:
        os.umask(before)


def test_scratch_is_limited_in_size(bwrap):
    with Sandbox(None, isolate=True, limits=Limits(cell_s=20, scratch_bytes=8 * 2**20), checks=0) as box:
        text = said(
            box,
            """
            import errno
            for folder in ("/scratch", "/dev/shm", "/tmp"):
                total = 0
                try:
                    for k in range(100):
                        with open(f"{folder}/{k}", "wb") as file:
                            total += file.write(bytes(2**20))
                except OSError as error:
                    print(folder, total <= 8 * 2**20, errno.errorcode[error.errno])
            """,
        )
    assert text.count("True ENOSPC") == 3 or text.count("True") == 3


def test_files_come_along_but_no_notebook_no_link_and_no_neighbour(bwrap, tmp_path):
    mine, others = tmp_path / "ada", tmp_path / "bob"
    (mine / "sub").mkdir(parents=True)
    others.mkdir()
    (others / "answers.txt").write_text("42")
    (mine / "data.csv").write_text("1,2\n")
    (mine / "sub" / "helper.py").write_text("VALUE = 7\n")
    (mine / "work.ipynb").write_text("{}")
    (mine / "link.txt").symlink_to(others / "answers.txt")
    (mine / "folder").symlink_to(others)
    with Sandbox(mine, isolate=True, limits=QUICK, checks=0) as box:
        text = said(
            box,
            f"""
            import os, sys
            print(open("data.csv").read().strip(), sorted(os.listdir(".")))
            sys.path.append("sub")
            import helper
            print(helper.VALUE, os.path.exists({str(others)!r}), os.path.exists({str(mine)!r}))
            open("mine.txt", "w").write("kept for this run only")
            """,
        )
    assert text.startswith("1,2 ['data.csv', 'sub']\n7 False False\n")
    assert not (mine / "mine.txt").exists()


@pytest.mark.slow
def test_a_loop_is_stopped_by_its_cell_limit_and_the_rest_still_runs(either):
    reply = either.run("kept = 1")
    assert reply["error"] is None
    before = time.monotonic()
    reply = either.run("while True:\n    try:\n        pass\n    except Exception:\n        pass")
    assert reply["error"]["name"] == "CellTimeout"
    assert time.monotonic() - before < 2 * QUICK.cell_s
    assert said(either, "print(kept)") == "1\n"


def test_a_cell_that_ignores_its_alarm_is_ended(bwrap):
    with Sandbox(None, isolate=True, limits=Limits(cell_s=1, total_s=30), checks=0) as box:
        with pytest.raises(Died, match="more time than its limit"):
            box.run("import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass")
        assert not box.alive
        with pytest.raises(Died):
            box.run("1")


def test_processes_are_limited_by_the_kernel_whoever_grades(bwrap):
    if not sandbox_module._counts_by_namespace():
        pytest.skip("a kernel before 5.14 counts the processes of all namespaces together")
    with Sandbox(None, isolate=True, limits=Limits(cell_s=20, processes=60), checks=0) as box:
        text = said(
            box,
            """
            import os, time
            for count in range(1000):
                if os.fork() == 0:
                    time.sleep(60)
            """,
        )
    assert text.startswith("BlockingIOError")


def test_memory_is_limited(bwrap):
    limits = Limits(cell_s=20, memory_bytes=600 * 2**20)
    with Sandbox(None, isolate=True, limits=limits, checks=0) as box:
        assert "MemoryError" in said(box, "hog = [bytearray(50 * 2**20) for _ in range(100)]")
        assert said(box, "print('still here')") == "still here\n"


def test_many_processes_may_not_share_out_a_large_memory(bwrap):
    limits = Limits(cell_s=20, memory_bytes=600 * 2**20)
    with Sandbox(None, isolate=True, limits=limits, checks=0) as box, pytest.raises(Died, match="memory"):
        box.run(
            "import os, time\n"
            "for _ in range(8):\n"
            "    if os.fork() == 0:\n"
            "        hog = bytearray(150 * 2**20)\n"
            "        for k in range(0, len(hog), 4096): hog[k] = 1\n"
            "        time.sleep(60)\n"
            "time.sleep(60)"
        )


def test_a_fork_bomb_ends_itself_only(bwrap):
    with Sandbox(None, isolate=True, limits=Limits(cell_s=10, processes=60), checks=0) as box:
        try:
            reply = box.run("import os\nwhile True:\n    os.fork()")
            assert reply["error"]["name"] in ("BlockingIOError", "CellTimeout")
        except Died as death:
            assert "processes" in str(death)
    time.sleep(0.2)
    left = [
        pid
        for pid in os.listdir("/proc")
        if pid.isdigit() and b"servinglab.grading.worker" in _read(f"/proc/{pid}/cmdline") and _parent(pid) == 1
    ]
    assert left == []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _parent(pid: str) -> int:
    fields = _read(f"/proc/{pid}/stat").decode(errors="replace").rsplit(")", 1)[-1].split()
    return int(fields[1]) if len(fields) > 1 else 0


def test_endless_output_is_cut(either):
    reply = either.run("for _ in range(10**5):\n    print('x' * 100)\nimport sys\nprint('y' * 10**7, file=sys.stderr)")
    sizes = [len(output["text"]) for output in reply["outputs"]]
    assert len(sizes) == 2
    assert all(size < 101_000 for size in sizes)
    assert "more characters were cut" in reply["outputs"][0]["text"]


def test_output_behind_pythons_back_goes_nowhere(either):
    assert said(either, "import os\nos.write(1, b'x' * 10)\nos.write(2, b'y' * 10)\nprint('seen')").endswith("seen\n")


@pytest.mark.parametrize(
    "ending", ["import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_an_ended_process_is_reported(either, ending):
    with pytest.raises(Died, match="ended"):
        either.run(ending)


def test_exit_does_not_end_the_notebook(either):
    assert "SystemExit" in said(either, "import sys\nsys.exit(3)")
    assert said(either, "print(1)") == "1\n"


def test_a_check_works_on_a_copy_of_the_notebook_as_it_was(either):
    either.run("state = [1]\ndef step(x):\n    state.append(x)\n    return list(state)")
    first = either.open_check(0)
    either.run("state = ['later']")
    assert first.name("step")(5) == [1, 5]
    assert first.name("step")(6) == [1, 5, 6]
    either.end_check(first)
    assert said(either, "print(state)") == "['later']\n"


@pytest.mark.slow
def test_an_endless_call_costs_its_check_only(either):
    either.run(
        "def stuck():\n    while True:\n        try:\n            pass\n        except BaseException:\n            pass"
    )
    either.run("def fine():\n    return 3")
    calls = either.open_check(0)
    with pytest.raises(Unanswered, match="no answer in time"):
        calls.name("stuck")()
    either.end_check(calls)
    calls = either.open_check(1)
    assert calls.name("fine")() == 3
    either.end_check(calls)
    assert said(either, "print(1)") == "1\n"


def test_a_call_that_ends_its_process_costs_its_check_only(either):
    either.run("import os\ndef leave():\n    os._exit(0)")
    calls = either.open_check(0)
    with pytest.raises(Unanswered, match="the process ended"):
        calls.name("leave")()
    either.end_check(calls)
    assert said(either, "print(1)") == "1\n"


BAD = """
def bad(x):
    y = x + 1
    return y / 0

class Odd(Exception):
    def __str__(self):
        raise ValueError

def odd():
    raise Odd
"""


def test_errors_come_back_with_their_place_and_names_that_are_missing_are_said(either):
    either.run(BAD.lstrip())
    calls = either.open_check(0)
    with pytest.raises(Unanswered, match=r"ZeroDivisionError: division by zero \(line 3 of bad\)"):
        calls.name("bad")(1)
    with pytest.raises(Unanswered, match="Odd"):
        calls.name("odd")()
    with pytest.raises(NameError, match="nobody"):
        calls.name("nobody")
    either.end_check(calls)


BUCKET = """
class Bucket:
    def __init__(self, size):
        self.size = size

    def take(self, n):
        self.size -= n
        return self.size
"""


def test_objects_and_their_methods_can_be_used_from_a_check(either):
    either.run(BUCKET)
    calls = either.open_check(0)
    bucket = calls.name("Bucket")(10)
    assert bucket.take(3) == 7
    assert bucket.size == 7
    either.end_check(calls)


def test_a_message_names_the_class_of_an_answer_that_is_no_value(either):
    either.run("class Ladle: pass\ndef ladle(): return Ladle()\ndef two(): return [Ladle(), 1]")
    calls = either.open_check(0)
    for name in ("ladle", "two"):
        with pytest.raises(Unanswered, match="an object of class Ladle"):
            plain(calls.name(name)())
    either.end_check(calls)


@pytest.mark.slow
def test_answers_are_plain_values_whatever_the_submission_sends(either):
    either.run(
        "import numpy as np\n"
        "class Yes(float):\n"
        "    def __eq__(self, other): return True\n"
        "    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n"
        "class Deep(list): pass\n"
        "def yes(): return Yes(1)\n"
        "def inside(): return [1, Yes(2)]\n"
        "def values(): return np.float32(0.5), np.arange(3), {'a': np.int64(2)}, {1.5}, None, 10**30\n"
        "def deep():\n"
        "    x = []\n"
        "    for _ in range(10**5): x = [x]\n"
        "    return x\n"
        "def huge(): return 10**5000\n"
        "def big(): return list(range(10**7))\n"
    )
    calls = either.open_check(0)
    assert not isinstance(calls.name("yes")(), float)
    assert isinstance(calls.name("inside")()[1], Opaque)
    half, row, table, some, none, large = calls.name("values")()
    assert (half, row.tolist(), table, some, none, large) == (0.5, [0, 1, 2], {"a": 2}, {1.5}, None, 10**30)
    assert type(half) is float
    for name in ("deep", "huge", "big"):
        try:
            answer = calls.name(name)()
        except Unanswered:
            continue
        assert isinstance(answer, Remote) or "Opaque" in repr(answer)
    either.end_check(calls)


FORGER = """
import json, os, struct
body = json.dumps({frame!r}).encode() if {frame!r} is not None else b"\\xff" * 40
packet = struct.pack(">I", {size} or len(body)) + body
def forge(x=0):
    for fd in range(3, 64):
        try:
            os.write(fd, packet)
        except OSError:
            pass
    return -1
"""


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        ({"value": {"v": 6}}, 0),
        ({"value": {"o": "x", "ref": "y"}}, 0),
        ([], 0),
        (None, 0),
        ({"value": {}}, 2**31),
        ({}, 7),
    ],
    ids=["an answer", "a bad answer", "a list", "no JSON", "a huge frame", "a cut frame"],
)
def test_forged_frames_give_at_worst_an_unanswered_check(frame, size):
    with Sandbox(None, isolate=False, limits=Limits(cell_s=1, check_s=1), checks=1) as box:
        box.run(FORGER.format(frame=frame, size=size))
        calls = box.open_check(0)
        forge = calls.name("forge")
        try:
            got = forge(3)
        except Unanswered:
            got = None
        assert got in (None, 6, -1)
        box.end_check(calls)
        with contextlib.suppress(Died):
            box.run("forge()")
            box.run("1")


# ---- where the Python lies ---------------------------------------------------------------------------------------


def make_environment(python: Path, folder: Path) -> Path:
    """An environment made with `python`, without packages; returns its interpreter."""
    subprocess.run([python, "-I", "-m", "venv", "--without-pip", "--symlinks", folder], check=True, timeout=60)
    return folder / "bin" / "python"


def inside(python: Path, source: str) -> str:
    """What a program prints in the sandbox that a grader run by `python` makes."""
    grader = (
        "import subprocess, sys\n"
        "from servinglab.grading.sandbox import Limits, _sandbox\n"
        "command = [*_sandbox(None, Limits()), sys.executable, '-I', '-c', sys.argv[1]]\n"
        "sys.exit(subprocess.run(command).returncode)"
    )
    packages = [path for path in sys.path if path.endswith("-packages")]
    path = os.pathsep.join([str(Path(sandbox_module.__file__).parents[2]), *packages])
    done = subprocess.run(
        [python, "-c", grader, source],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def through_links(python: Path, folder: Path) -> Path:
    """As /usr/bin/python3 -> /etc/alternatives/python3 -> ../python3.11, through folders that are links themselves."""
    for name in ("first links", "second", "third"):
        (folder / name).mkdir()
    (folder / "linked").symlink_to("third")
    (folder / "third" / "python3").symlink_to(python)
    (folder / "second" / "python3").symlink_to("../linked/python3")
    (folder / "first links" / "python3").symlink_to(folder / "second" / "python3")
    return make_environment(folder / "first links" / "python3", folder / "env")


def linked_checkout(python: Path, folder: Path) -> Path:
    make_environment(python, folder / "real" / ".venv")
    (folder / "link").symlink_to("real")
    return folder / "link" / ".venv" / "bin" / "python"


def environment_of_an_environment(python: Path, folder: Path) -> Path:
    return make_environment(make_environment(python, folder / "one"), folder / "two")


def linked_environment(python: Path, folder: Path) -> Path:
    make_environment(python, folder / "elsewhere" / "env")
    (folder / ".venv").symlink_to(folder / "elsewhere" / "env")
    return folder / ".venv" / "bin" / "python"


@pytest.mark.parametrize(
    "layout", [through_links, linked_checkout, linked_environment, environment_of_an_environment, make_environment]
)
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
@pytest.mark.slow
def test_a_python_starts_inside_wherever_it_lies_and_whatever_leads_to_it(bwrap, layout, place):
    python = Path(os.path.realpath(sys.executable))
    with tempfile.TemporaryDirectory(dir=place, prefix="a place ") as folder:
        found = layout(python, Path(folder))
        assert inside(found, "import sys, ctypes, json; print('started', sys.prefix)").startswith("started")


@pytest.mark.slow
def test_an_environment_in_the_courses_own_folder_shows_no_solution(bwrap, tmp_path):
    found = make_environment(Path(os.path.realpath(sys.executable)), tmp_path)
    (tmp_path / "solutions").mkdir()
    assert inside(found, f"import os; print(sorted(os.listdir({str(tmp_path)!r})))") in (
        "['bin', 'lib', 'lib64', 'pyvenv.cfg']\n",
        "['bin', 'lib', 'pyvenv.cfg']\n",
    )


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("bwrap: No permissions to create new namespace", "must allow user namespaces to ordinary users"),
        ("bwrap: execvp /x/bin/python: No such file or directory", "the Python of this environment"),
        ("ModuleNotFoundError: No module named 'encodings'", "the Python of this environment"),
    ],
)
def test_the_advice_names_what_is_wrong(tmp_path, monkeypatch, trouble, words):
    stand_in = tmp_path / "bwrap"
    stand_in.write_text(f'#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.8.0 && exit\necho "{trouble}" >&2\nexit 1')
    stand_in.chmod(0o755)
    isolation_problem.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    try:
        problem = isolation_problem()
    finally:
        isolation_problem.cache_clear()
    assert words in problem
    assert trouble in problem
    assert "install" not in problem


def test_packages_that_only_the_grader_can_read_are_missed_before_anybody_is_graded(bwrap, monkeypatch):
    needed = sandbox_module._needed
    lib = (Path(sys.prefix, "lib"), Path(sys.prefix, "lib64"))
    without = [path for path in needed() if not path.name.endswith("-packages") and path not in lib]
    monkeypatch.setattr(sandbox_module, "_needed", lambda: without)
    isolation_problem.cache_clear()
    try:
        assert "finds no IPython and no numpy" in isolation_problem()
    finally:
        isolation_problem.cache_clear()


def test_without_bubblewrap_isolation_is_refused_with_its_reason(monkeypatch):
    isolation_problem.cache_clear()
    monkeypatch.setenv("PATH", "")
    try:
        with pytest.raises(SandboxError, match="not installed"):
            Sandbox(None, isolate=True, limits=QUICK, checks=0)
    finally:
        isolation_problem.cache_clear()


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.slow
def test_figures_and_displayed_values_are_kept(isolate, request):
    if isolate:
        request.getfixturevalue("bwrap")
    with Sandbox(None, isolate=isolate, limits=Limits(cell_s=60), checks=0) as box:
        reply = box.run("import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nplt.gcf().axes.__len__()")
    kinds = {mime for output in reply["outputs"] for mime in output.get("data", {})}
    assert "image/png" in kinds
    assert any(output.get("data", {}).get("text/plain") == "1" for output in reply["outputs"])


def test_scripts_in_displayed_values_are_dropped(either):
    reply = either.run("from IPython.display import HTML, display\ndisplay(HTML('<script>alert(1)</script>'))")
    assert "script" not in str(reply)


def test_frames_are_read_whole_or_refused():
    data = pack({"a": 1})
    rest = bytearray(data)

    def two_at_a_time(size):
        part = bytes(rest[: min(size, 2)])
        del rest[: len(part)]
        return part

    assert read_frame(two_at_a_time) == {"a": 1}
    with pytest.raises(WireError, match="closed"):
        read_frame(lambda size: b"")
    with pytest.raises(WireError, match="limit"):
        read_frame(lambda size: b"\xff" * size)
    deep = b"[" * 10**5
    chunks = iter([len(deep).to_bytes(4, "big"), deep])
    with pytest.raises(WireError):
        read_frame(lambda size: next(chunks))


@pytest.mark.parametrize(
    "data",
    [
        {"x": 1},
        {"v": []},
        {"a": [1, 2], "dtype": "<f8", "shape": [5]},
        {"a": 1, "dtype": "O8", "shape": []},
        {"s": [{"l": []}]},
        7,
    ],
)
def test_what_is_not_plain_is_not_decoded(data):
    with pytest.raises(WireError):
        decode(data)


def test_plain_values_survive_the_way():
    value = [1, 2.5, "x", None, True, (1, [2]), {"k": {"n": 1}}, {3}]
    assert decode(encode(value)) == value
