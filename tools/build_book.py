"""Build the book from clean, with every warning an error, and print the address to open.

    python tools/build_book.py [--output FOLDER]

The pages go to FOLDER/_build/html (FOLDER: the root of the checkout). Pages are always read and written anew, because
a warning of a page that isn't read again is never repeated; cells run again only if they or the library changed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(output: Path, *more: str) -> Path:
    """Build strictly into `output`; return the first page, or exit with what went wrong."""
    made = output / "_build"
    for old in (made / "html", made / ".doctrees", made / "jupyter_execute"):
        shutil.rmtree(old, ignore_errors=True)
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    options = ["build", str(ROOT), "--path-output", str(output), "-W", "-n", "--keep-going", *more]
    if status := subprocess.run([*command, *options]).returncode:
        sys.exit(status)
    return made / "html" / "index.html"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT, metavar="FOLDER")
    page = build(parser.parse_args().output.resolve())
    print(f"\nOpen the book: {page.as_uri()}")


if __name__ == "__main__":
    main()
