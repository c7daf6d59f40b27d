"""Build the book with every warning an error, and print the address to open.

    python tools/build_book.py [--source FOLDER] [--output FOLDER]

The pages go to OUTPUT/_build/html (both folders: the root of the checkout, if not named). Pages are always read and
written anew, because a warning of a page that isn't read again is never repeated; cells run again only if they or the
library changed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JUPYTER_BOOK = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]


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
    options = ["--path-output", str(output), "-W", "-n", "--keep-going"]
    status = subprocess.run([*JUPYTER_BOOK, "build", str(source), *options]).returncode
    if status:
        sys.exit(status)
    print(f"\nOpen the book: {(made / 'html' / 'index.html').as_uri()}")


if __name__ == "__main__":
    main()
