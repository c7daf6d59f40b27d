"""Build the book with every warning an error; print each page that is run, and the address to open.

    python tools/build_book.py [--source FOLDER] [--output FOLDER]

The pages go to OUTPUT/_build/html (both folders: the root of the checkout, if not named). Pages are always read and
written anew, because a warning of a page that isn't read again is never repeated; cells run again only if they or the
library changed. A build that fails prints all that Jupyter Book said.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JUPYTER_BOOK = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EVENT = re.compile(
    r"reading sources\.\.\. \[ *\d+%\] (?P<read>\S+)"
    r"|(?P<starts>Executing notebook using)"
    r"|Executing notebook (?P<failed>failed)"
    r"|Executed notebook in (?P<took_s>[\d.]+) seconds"
    r"|(?P<cached>Using cached notebook)"
)


def main() -> None:
    """Build, or end with the exit status of what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    folders = parser.parse_args()
    source = folders.source.resolve()
    output = (folders.output or source).resolve()
    made = output / "_build"
    for old in (made / "html", made / ".doctrees", made / "jupyter_execute"):
        shutil.rmtree(old, ignore_errors=True)
    sys.exit(build(source, output) or report(made / "html"))


def build(source: Path, output: Path) -> int:
    """Run Jupyter Book; return its exit status."""
    command = [*JUPYTER_BOOK, "build", str(source), "--path-output", str(output), "-W", "-n", "--keep-going"]
    print(f"Building the book of {source}; pages that are run:", flush=True)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            said = follow(process.stdout)
        except KeyboardInterrupt:
            process.wait()  # it got the same Ctrl-C
            return 130
    if process.returncode:
        print(f"\n{said}\nThe build failed: above is all that Jupyter Book said.")
    else:
        print("".join(line for line in said.splitlines(True) if re.search(r"\bwarning\b", line, re.IGNORECASE)), end="")
    return process.returncode


def follow(lines: Iterable[str]) -> str:
    """Print a page's name when it starts to run and its seconds when it has; return everything that was said."""
    said = []
    page, read, run, cached = "", 0, 0, 0
    for line in lines:
        said.append(line)
        event = EVENT.search(COLOURS.sub("", line))
        if not event:
            continue
        if event["read"]:
            page, read = event["read"], read + 1
        elif event["starts"]:
            print(f"  {page} ", end="", flush=True)
        elif event["failed"]:
            print(event["failed"], flush=True)
        elif event["took_s"]:
            print(f"{float(event['took_s']):.0f} s", flush=True)
            run += 1
        else:
            cached += 1
    print(f"Pages read: {read} ({run} run, {cached} as they were run before, {read - run - cached} without cells)")
    return "".join(said)


def report(html: Path) -> int:
    """Say what was written and what to open."""
    files = [path for path in html.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    print(f"Pages written: {pages}, with {len(files) - pages} other files ({size_mb:.0f} MB), to {html}")
    print(f"Open the book: {(html / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    main()
