"""IPython's shell as a notebook has it, where there is no terminal, no screen, no network and often no shell.

What this module does not do: run cells or keep their outputs. That is `worker`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import SList


class Shell(InteractiveShell):
    """A line that only this place can't obey says so and stops nothing: the answer below it still counts.

    That is so for line magics (``%matplotlib qt``, an extension that isn't installed) and for commands
    (``!pip install``), whose failure stops no cell in Jupyter either. A cell magic (``%%name``) takes the whole cell,
    and fails as it does there.
    """

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: there is no screen."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """Keep figures in the notebook, whichever window or widget was asked for."""
        return super().enable_matplotlib("inline")

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        """Run ``%name line``."""
        try:
            return super().run_line_magic(magic_name, line, _stack_depth=_stack_depth + 1)
        except Exception as error:
            print(f"%{magic_name} failed here ({type(error).__name__}: {error})", file=sys.stderr)
            return None

    def system(self, cmd: str) -> None:
        """Run ``!cmd`` and print what it prints; its status goes into `_exit_code`, as in Jupyter."""
        status = _run(self.var_expand(cmd, depth=1), sys.stdout.write)
        self.user_ns["_exit_code"] = status

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """The output of ``x = !cmd``, as a list of lines or as text."""
        parts = list[str]()
        _run(self.var_expand(cmd, depth=depth + 1), parts.append)
        text = "".join(parts)
        return SList(text.splitlines()) if split else text


def _run(command: str, write: Callable[[str], Any]) -> int:
    """Run a shell's command, hand on its output as it comes, and return its status."""
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        write(f"!{command}: not run: there is no shell here ({error.strerror})\n")
        return 127
    assert process.stdout is not None
    try:
        for line in process.stdout:
            write(line)
        return process.wait()
    finally:  # also when the cell's time is over
        process.kill()
        process.stdout.close()
        process.wait()
