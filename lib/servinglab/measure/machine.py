"""What this machine is, and how much of it others used while a measurement ran. Linux tells; others don't say all."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuClock:
    """CPU seconds since the machine started: all that were used, by whoever; and by this process's family."""

    used_s: float
    ours_s: float
    at_s: float


def cpu_name() -> str:
    """The processor's model."""
    return proc_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def proc_field(file: str, field: str) -> str | None:
    """What Linux says of itself; None elsewhere."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), None)


def cpu_clock() -> CpuClock | None:
    """Read the clocks; None where there is no /proc."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = fields[3] + fields[4]
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return CpuClock((sum(fields) - idle) / ticks, sum(_family(os.getpid())) / ticks, up_s)
    except (OSError, ValueError, AttributeError):
        return None


def others_share(before: CpuClock | None, after: CpuClock | None) -> float | None:
    """CPU seconds that others used, as a share of all that the machine's CPUs had between two readings; at least 0.

    Examples
    --------
    >>> others_share(CpuClock(10, 5, 100), CpuClock(14, 7, 100 + 8 / (os.cpu_count() or 1)))
    0.25
    """
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    others_s = (after.used_s - before.used_s) - (after.ours_s - before.ours_s)
    return max(0.0, others_s / (after.at_s - before.at_s) / (os.cpu_count() or 1))


def _family(pid: int) -> list[int]:
    """CPU ticks of a process and of all that descend from it, those that are gone included."""
    found = []
    todo = [pid]
    while todo:
        each = todo.pop()
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            found += [int(field) for field in fields[11:15]]  # its own and its ended children's, user and system
            for task in os.listdir(f"/proc/{each}/task"):
                todo += map(int, Path(f"/proc/{each}/task/{task}/children").read_text().split())
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return found
