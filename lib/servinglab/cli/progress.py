"""Says on stderr what is being done, once it has taken a second.

A terminal shows it in one line that is written over; a file or a pipe gets a new line every five seconds.
"""

from __future__ import annotations

import sys
import threading
import time

FIRST_S = 1.0  # what takes less needs no progress
EVERY_S = 5.0  # between two lines
TERMINAL_EVERY_S = 0.25


class Progress:
    """A context in which `doing` is shown; a thread shows it, so that what is shown can't stop for what is done.

    Parameters
    ----------
    wanted : bool
        False: show nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self.doing = ""
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True) if wanted else None

    def report(self, done: int, total: int) -> None:
        """What `simulate` calls."""
        self.doing = f"simulating: {done:,} of {total:,} requests"

    def pause(self) -> None:
        """Clear the line, so that something else can be printed, and show nothing until `doing` is set again."""
        with self._lock:
            self.doing = ""
            if self._shown and self._terminal:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self._shown = False

    def __enter__(self) -> Progress:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
        self.pause()

    def _run(self) -> None:
        start = time.monotonic()
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            with self._lock:
                if not self.doing:
                    continue
                text = f"{self.doing}, {time.monotonic() - start:.0f} s"
                sys.stderr.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
                sys.stderr.flush()
                self._shown = True
            wait_s = TERMINAL_EVERY_S if self._terminal else EVERY_S
