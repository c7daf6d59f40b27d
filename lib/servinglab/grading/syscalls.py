"""System calls that no submission gets: those that keep memory where no limit counts it, and those that leave keys.

The kernel refuses them, as if it didn't know them, to the process that asks for it here and to all that it starts.
Programs lose little by it: shared memory of `multiprocessing` lies in /dev/shm, and all other memory is private.

What this module does not do: limit what is counted. That is `usage`, and the limits that `worker` sets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable

# each with its numbers on x86-64 and on the architectures that share one table (ARM64, RISC-V)
KEYS = {"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)}
UNCOUNTED = {
    # segments, queues and semaphores that belong to nobody
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # files in no folder, so of no limited size
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # what a pipe was lent stays when the lender lets go of it
    "vmsplice": (278, 75),
    # tables in the kernel
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
MMAP, FCNTL = (9, 222), (72, 25)
SHARED_AND_ANONYMOUS, HUGE = 0x21, 0x40000  # memory that stays when it is dropped; memory that counts as none
RECORD_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW: there may be millions of them

# where to look in the tables above, and the kernel's own name of the architecture
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "riscv64": (1, 0xC00000F3)}
SECOND_TABLE = 0x40000000  # x86-64 has every call once more from here on

Instruction = tuple[int, int, int, int]  # code, how far to jump if so, if not, and a number
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where the kernel writes what is asked
ALLOW = (RETURN, 0, 0, 0x7FFF0000)


def refuse_keys() -> None:
    """Refuse, for good, what leaves keys with the kernel, where the user's next process finds them."""
    _refuse(KEYS, uncounted=False)


def refuse_keys_and_uncounted_memory() -> None:
    """Refuse, for good, also what keeps memory where no limit counts it.

    Raises
    ------
    OSError
        If this kernel can't. Where the numbers of its calls aren't known here, nothing is refused.
    """
    _refuse({**KEYS, **UNCOUNTED}, uncounted=True)


def _refuse(calls: dict[str, tuple[int, int]], *, uncounted: bool) -> None:
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        return
    column, architecture = MACHINES[os.uname().machine]
    program: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), _error(errno.ENOSYS)]
    program += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, SECOND_TABLE), _error(errno.ENOSYS)]
    program += _unless(EQUAL, (numbers[column] for numbers in calls.values()), errno.ENOSYS)
    if uncounted:
        flags = [(LOAD, 0, 0, ARGUMENTS + 3 * 8), *_unless(ANY_BIT, [HUGE], errno.ENOMEM)]
        flags += [(AND, 0, 0, SHARED_AND_ANONYMOUS), *_unless(EQUAL, [SHARED_AND_ANONYMOUS], errno.ENOMEM), ALLOW]
        command = [(LOAD, 0, 0, ARGUMENTS + 8), *_unless(EQUAL, RECORD_LOCKS, errno.ENOLCK), ALLOW]
        program += [(EQUAL, 0, len(flags), MMAP[column]), *flags]
        program += [(EQUAL, 0, len(command), FCNTL[column]), *command]
    _install([*program, ALLOW])


def _unless(test: int, values: Iterable[int], failure: int) -> list[Instruction]:
    """Go on unless what was loaded passes the test against one of the values."""
    return [step for value in values for step in ((test, 0, 1, value), _error(failure))]


def _error(number: int) -> Instruction:
    return (RETURN, 0, 0, 0x00050000 | number)


def _install(program: list[Instruction]) -> None:
    """Let the kernel run this on each system call of this thread and of all that it starts."""
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    kept = ctypes.create_string_buffer(code, len(code))
    about = struct.pack("@HP", len(program), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter, by_program = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_filter, by_program, about, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel can't refuse system calls ({os.strerror(number)})")
