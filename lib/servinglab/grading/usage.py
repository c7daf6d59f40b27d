"""How much does a sandbox hold? Its processes, its files, and what the kernel keeps for them.

Everything is read from /proc, from outside. What can't be counted from there, a submission can't have (`syscalls`).

What this module does not do: decide how much is too much. That is `sandbox`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INODE_BYTES = 1024  # what the kernel keeps for a file, however empty


@dataclass(frozen=True)
class Processes:
    """The processes below one: their numbers, their threads, and the bytes that they have in memory or swapped out."""

    pids: tuple[int, ...]
    threads: int
    memory: int


def processes(root: int, enough: int) -> Processes:
    """All processes below `root`, and itself; no more are looked for once there are over `enough` threads.

    Memory that several share counts for each of them: `shared_out` is smaller, and slower.
    """
    threads, memory, pids, todo = 0, 0, list[int](), [root]
    while todo and threads <= enough:
        pid = todo.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            for task in os.listdir(f"/proc/{pid}/task"):
                todo += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except (OSError, ValueError):
            continue
        pids.append(pid)
        threads += _sum(r"^Threads:\s+(\d+)", status)
        memory += _sum(r"^(?:VmRSS|VmSwap|VmPTE):\s+(\d+) kB", status) * 1024
    return Processes(tuple(pids), threads, memory)


def shared_out(pids: Sequence[int]) -> int:
    """Bytes of these processes, in memory, swapped out or for page tables; what several share is counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += _sum(r"^(?:Pss|SwapPss):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
            total += _sum(r"^VmPTE:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return total * 1024


def files(pid: int, folders: Sequence[str]) -> int:
    """Bytes that file systems in memory hold, as process `pid` sees them at `folders`."""
    total = 0
    for folder in folders:
        with contextlib.suppress(OSError):
            about = os.statvfs(f"/proc/{pid}/root{folder}")
            total += (about.f_blocks - about.f_bfree) * about.f_frsize + (about.f_files - about.f_ffree) * INODE_BYTES
    return total


def sockets(pid: int) -> int:
    """Bytes that the sockets of the network namespace of process `pid` may hold, whoever has them.

    Of local ones the kernel tells the number alone, so each counts as full. TCP's are known for the whole machine.
    """
    try:
        text = Path(f"/proc/{pid}/net/sockstat").read_text() + Path(f"/proc/{pid}/net/sockstat6").read_text()
    except OSError:
        return 0
    tcp = _sum(r"^TCP6?: inuse (\d+)", text)
    of_tcp = _sum(r"^TCP: .* mem (\d+)", text) * os.sysconf("SC_PAGE_SIZE") if tcp else 0
    return (_sum(r"^sockets: used (\d+)", text) - tcp) * _buffer_bytes() + of_tcp


@functools.cache
def _buffer_bytes() -> int:
    """What may wait in one socket: the kernel allows twice what it says."""
    try:
        return 2 * max(int(Path(f"/proc/sys/net/core/{name}").read_text()) for name in ("wmem_max", "rmem_max"))
    except (OSError, ValueError):
        return 2**20


def _sum(pattern: str, text: str) -> int:
    return sum(map(int, re.findall(pattern, text, re.MULTILINE)))
