"""What a submission can take from the grader itself: its time and its memory. Each test is an attack."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from servinglab.grading import syscalls
from servinglab.grading.checks import Unanswered, plain
from servinglab.grading.sandbox import Died, Limits, Sandbox
from servinglab.grading.wire import WireError, decode, encode, pack, parse

QUICK = Limits(cell_s=2, check_s=1.5, total_s=60)


@pytest.fixture(params=["isolated", "plain"])
def either(request):
    """The same process with and without bubblewrap."""
    if request.param == "isolated":
        request.getfixturevalue("bwrap")
    with Sandbox(None, isolate=request.param == "isolated", limits=QUICK, checks=3) as sandbox:
        yield sandbox


# ---- what it sends -----------------------------------------------------------------------------------------------

# writes to every open file: one of them leads to the grader
SEND = """
import json, os, struct, time
def send(message, pause=0):
    packet = message if isinstance(message, bytes) else json.dumps(message).encode()
    packet = struct.pack(">I", len(packet)) + packet
    for part in [packet[k : k + 1] for k in range(len(packet))] if pause else [packet]:
        for fd in range(3, 40):
            try:
                os.write(fd, part)
            except OSError:
                pass
        time.sleep(pause)
"""


@pytest.mark.slow
def test_an_answer_that_trickles_in_is_late(either):
    either.run(SEND + "def drip():\n    send({'value': {'v': 6}}, 0.15)")
    calls = either.open_check(0)
    drip = calls.name("drip")
    with pytest.raises(Unanswered, match="no answer in time"):
        drip()
    with pytest.raises(Unanswered, match="no answer in time"):
        calls.name("drip")  # what still comes is no answer to another question
    either.end_check(calls)


@pytest.mark.slow
def test_a_process_that_reads_nothing_more_is_ended(either):
    either.run(
        SEND + "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "send({'outputs': [], 'error': None})\nwhile True: time.sleep(1)"
    )
    with pytest.raises(Died, match="read nothing"):
        either.run("#" * 10**6)


@pytest.mark.slow
def test_what_nobody_asked_for_waits_outside(either):
    """Of thirty messages of 15 MiB the grader takes in two."""
    flood = SEND + "send({'outputs': [], 'error': None})\nfor _ in range(30):\n    send(b'1' * 15 * 2**20)"
    before = resident_mb()
    either.run(flood)
    until = time.monotonic() + 3
    while resident_mb() - before < 150 and time.monotonic() < until:
        time.sleep(0.1)
    assert resident_mb() - before < 150


def resident_mb() -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024


P = 2**61 - 1  # Python's hash of a whole number is its remainder by this


@pytest.mark.parametrize(
    "data",
    [
        {"a": [1], "dtype": "(130000000,)f8", "shape": [1]},
        {"a": [1.0], "dtype": "f8,f8", "shape": [1]},
        {"a": [1.0], "dtype": "i4, (9,9)f8", "shape": [1]},
        {"a": [1.0], "dtype": "<f2048", "shape": [1]},
        {"a": [1.0], "dtype": "<f8", "shape": [2]},
        {"a": [1.0], "dtype": "<f8", "shape": [-1]},
        {"a": [1.0], "dtype": "<f8", "shape": [True]},
        {"a": [1.0], "dtype": "<f8", "shape": [1] * 99},
        {"a": [[1.0]], "dtype": "<f8", "shape": [1]},
        {"a": ["1.0"], "dtype": "<f8", "shape": [1]},
        {"a": [10**30], "dtype": "<i8", "shape": [1]},
        {"a": [], "dtype": "<f8", "shape": [10**7, 0]},
        {"a": [], "dtype": "<f8", "shape": [0, 10**5, 10**5]},
        {"v": 10**400},
        {"o": "x", "ref": -1},
        {"o": "x", "ref": 10**30},
        {"s": [{"v": k * P} for k in range(200)]},
        {"d": [[{"v": k * P}, {"v": 0}] for k in range(200)]},
        {"l": [{"v": k * P} for k in range(2000)]},
        {"d": [[1, 2, 3]]},
        {"v": [1]},
    ],
    ids=str,
)
def test_what_is_no_plain_value_costs_nothing(data):
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        [0] * 100_000,
        [P + k for k in range(500)],
        {k: k for k in range(50_000)},
        {float(k) for k in range(50_000)},
        {2.0**k for k in range(-1000, 1000)},
        {(k, k + 1) for k in range(10_000)},
        {f"key {k}": [k] for k in range(10_000)},
        10**299,
        float("inf"),
        float("-inf"),
        "e" + "\N{COMBINING ACUTE ACCENT}" * 10**6,
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:12]}",
)
def test_large_honest_values_come_through(value):
    assert decode(parse(pack(encode(value))[4:])) == value


@pytest.mark.parametrize("kind", ["?", "i1", "u2", ">i4", "u8", "f2", "<f4", ">f8", "g"])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 3), (2, 0, 4), (1, 1, 1, 5)])
def test_numeric_arrays_come_through_with_type_and_shape(kind, shape):
    value = (np.arange(np.prod(shape)) % 2).astype(kind).reshape(shape)
    got = decode(parse(pack(encode(value))[4:]))
    assert got.shape == shape
    assert got.dtype == (value.dtype if kind != "g" else np.float64)
    assert (got == value).all()


@pytest.mark.parametrize(
    "body",
    [b"[" * 10**6, b'{"value":' * 10**5, b"9" * 10**6, b"[" + b"[]," * 5 * 10**6 + b"1]", b"\xff\xfe", b"nope"],
    ids=lambda body: str(body[:9]),
)
def test_a_message_that_would_fill_the_memory_is_none(body):
    with pytest.raises(WireError):
        parse(body)


@pytest.mark.slow
def test_an_answer_that_is_too_large_says_so():
    with Sandbox(None, isolate=False, limits=Limits(), checks=1) as box:
        box.run("def many():\n    return [[]] * 600_000\ndef long():\n    return 'x' * 2 * 10**7")
        calls = box.open_check(0)
        for name in ("many", "long"):
            with pytest.raises(Unanswered, match="too large to send"):
                calls.name(name)()
        box.end_check(calls)


def test_names_that_a_submission_chose_are_short(either):
    either.run("def f():\n    raise type('E' * 10**6, (Exception,), {})('t' * 10**6)")
    either.run("def g():\n    return type('K' * 10**6, (), {})()")
    calls = either.open_check(0)
    for name in ("f", "g"):
        with pytest.raises(Unanswered) as caught:
            plain(calls.name(name)())
        assert len(str(caught.value)) < 1500
    either.end_check(calls)


# ---- what it holds -----------------------------------------------------------------------------------------------

LIBC = "import ctypes, fcntl, mmap, os, struct\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def errno_of(call: str) -> str:
    return f"ctypes.set_errno(0)\nresult = {call}\nprint(result if result >= 0 else -ctypes.get_errno())"


KEPT_OUTSIDE = {
    "memory in a file without a name": "os.memfd_create('x')",
    "shared memory that is dropped": "mmap.mmap(-1, 4096)",
    "shared memory of a device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "huge pages": "mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)",
    "a lock on a byte": "fcntl.lockf(open('lock', 'w'), fcntl.LOCK_EX, 1, 5)",
    "a segment of memory": errno_of("libc.shmget(0, 4096, 0o1600)"),
    "semaphores": errno_of("libc.semget(0, 1, 0o1600)"),
    "a queue of messages": errno_of("libc.msgget(0, 0o1600)"),
    "a named queue": errno_of("libc.mq_open(b'/x', os.O_CREAT | os.O_RDWR, 0o600, None)"),
    "a ring for requests": errno_of(
        "libc.syscall(206 if os.uname().machine == 'x86_64' else 0, 1, ctypes.byref(ctypes.c_ulong()))"
    ),
    "another ring": errno_of("libc.syscall(425, 1, ctypes.create_string_buffer(120))"),
    "a page in a pipe": errno_of("libc.vmsplice(os.pipe()[1], (ctypes.c_size_t * 2)(id(os), 8), 1, 0)"),
}


@pytest.fixture(scope="module")
def machine():
    if os.uname().machine not in syscalls.MACHINES:
        pytest.skip(f"the system calls of {os.uname().machine} aren't known here")


@pytest.fixture(scope="module")
def box(bwrap):
    with Sandbox(None, isolate=True, limits=Limits(), checks=1) as sandbox:
        yield sandbox


@pytest.mark.parametrize("what", KEPT_OUTSIDE)
def test_memory_that_no_limit_counts_is_not_given(box, machine, what):
    reply = box.run(LIBC + KEPT_OUTSIDE[what])
    text = "".join(output["text"] for output in reply["outputs"])
    refused = (reply["error"] or {}).get("text", text)
    assert re.search(r"Errno (38|19|12|37)\b|^-(38|12)$", refused), refused


HOARDS = {
    "sockets of one machine": """
kept = []
try:
    while True:
        pair = socket.socketpair()
        kept += pair
        for one in pair:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10**7)
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(bytes(65536))
except OSError:
    time.sleep(60)
""",
    "sockets of a network": """
kept, server = [], socket.create_server(("127.0.0.1", 0), backlog=200)
try:
    while True:
        kept += [socket.create_connection(server.getsockname()), server.accept()[0]]
        for one in kept[-2:]:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(bytes(2**20))
except OSError:
    time.sleep(60)
""",
    "empty files": """
for folder in ("/tmp", "/scratch"):
    for number in range(10**6):
        os.mknod(f"{folder}/{os.getpid()} {number}")
""",
}


@pytest.mark.parametrize("what", HOARDS)
@pytest.mark.slow
def test_what_the_kernel_keeps_for_a_submission_counts_as_its_memory(bwrap, what):
    limits = Limits(cell_s=50, memory_bytes=500 * 2**20)
    many = "import contextlib, os, socket, time\nfor _ in range(3):\n    if os.fork() == 0: break\n"
    died = pytest.raises(Died, match=r"more than 0.488281 GiB of memory")
    with Sandbox(None, isolate=True, limits=limits, checks=0) as box, died:
        box.run(many + HOARDS[what])


HONEST = {
    "processes": "import multiprocessing as mp\nwith mp.Pool(2) as pool: print(sum(pool.map(abs, range(-9, 9))))",
    "shared arrays": "import multiprocessing as mp\nprint(sum(mp.Array('d', 100)), mp.Value('i', 3).value)",
    "shared memory": "from multiprocessing import shared_memory as s\ns.SharedMemory(create=True, size=9).unlink()\n"
    "print(1)",
    "an event loop": "import asyncio\nprint(asyncio.new_event_loop().run_until_complete(asyncio.sleep(0, 5)))",
    "a server": "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
    "c = socket.create_connection(s.getsockname())\nprint(c.send(b'x'))",
    "compiled code": "import numba\nprint(numba.njit(lambda x: x + 1)(1))",
    "calls from C": "import ctypes\nprint(ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)())",
    "temporary files": "import tempfile, mmap\nwith tempfile.TemporaryFile() as f:\n"
    "    f.write(bytes(9)); f.flush(); print(len(mmap.mmap(f.fileno(), 0)))",
    "zeros": "print(open('/dev/zero', 'rb').read(3))",
    "a database": "import sqlite3\nprint(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\nprint(sum(T(4).map(abs, range(9))))",
}


@pytest.mark.parametrize("what", HONEST)
def test_what_a_notebook_may_well_do_still_works(box, what):
    reply = box.run(HONEST[what])
    assert reply["error"] is None
    assert reply["outputs"][0]["text"].strip()
