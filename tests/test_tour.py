"""Every example of the tour runs as it stands there, or shorter; no page types what the command line refuses."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from servinglab.cli import main as cli

ROOT = Path(__file__).resolve().parents[1]
TRACE = "AzureLLMInferenceTrace_conv.csv"
# what the tests change so that an example takes seconds: each must be on the page
SHORTER = {
    f"{TRACE} ": f"{TRACE} --head 1000 ",
    "servinglab validate": "servinglab validate --part traces",
    "--stage-s 60 --gap-s 15 --warmup-s 10": "--stage-s 2 --gap-s 0 --warmup-s 0",
}
# above an example, a line "% MARK"; one without runs everywhere, and what needs an engine is only parsed
MARKS = {"", "needs: data", "starts: a server", "needs: a server", "needs: an engine"}
NO_PARSER = {"check", "grade"}  # these two parse their own options


@dataclass(frozen=True)
class Example:
    """A block of a page: where it begins, its language, its text, and the mark above it."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    def commands(self) -> list[list[str]]:
        """The words of each line; comments, and … for words that a page leaves out, aren't among them."""
        lines = self.text.replace("\\\n", " ").replace(" …", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def examples(page: Path) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    blocks = re.finditer(
        r"^(?:% (?P<mark>[^\n]*)\n\n)?```(?P<language>sh|python)\n(?P<text>.*?)^```$", text, re.M | re.S
    )
    return [
        Example(
            page.name,
            text[: block.start("language")].count("\n") + 1,
            *block.group("language", "text"),
            block["mark"] or "",
        )
        for block in blocks
    ]


TOUR = examples(ROOT / "chapters" / "tour.md")
README = examples(ROOT / "README.md")
TYPED = [
    (example, words)
    for page in [ROOT / "README.md", *sorted((ROOT / "chapters").glob("*.md"))]
    for example in examples(page)
    if example.language == "sh"
    for words in example.commands()
    if words[0] == "servinglab" and words[1] not in NO_PARSER
]
RUN = [each for each in TOUR if each.mark != "needs: an engine"]
RUN += [each for each in README if each.language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("example", RUN, ids=lambda example: f"{example.page}-{example.line}")
def test_an_example_runs(example: Example, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if example.mark == "needs: data":
        (tmp_path / TRACE).symlink_to(request.getfixturevalue("data_dir") / "traces" / TRACE)
    text = example.text
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    example = replace(example, text=text)
    if example.mark == "starts: a server":
        (words,) = example.commands()
        with serving(words, tmp_path):
            pass
    elif example.mark == "needs: a server":
        starts = next(each for each in TOUR if each.mark == "starts: a server")
        with serving(starts.commands()[0], tmp_path) as port:
            run(example, tmp_path, port)
    else:
        run(example, tmp_path)


def run(example: Example, folder: Path, port: int = 8000) -> None:
    """Run a block's commands, or its Python, in the folder; each must end well and say something."""
    if example.language == "python":
        commands = [[sys.executable, "-c", example.text]]
    else:
        commands = [local(words, port) for words in example.commands()]
    for words in commands:
        if words[0] == "curl" and not shutil.which("curl"):
            pytest.skip("curl isn't installed: one example of the tour isn't run")
        done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip(), shlex.join(words)


def local(words: list[str], port: int) -> list[str]:
    """The command as this machine runs it: by this Python, at the server of this test."""
    words = [word.replace("localhost:8000", f"localhost:{port}") for word in words]
    return [sys.executable, "-m", *words] if words[0] == "servinglab" else words


def environment() -> dict[str, str]:
    """Of this process, with the library that is tested."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "lib")}


@contextmanager
def serving(words: list[str], folder: Path) -> Iterator[int]:
    """Start a server at a free port, yield the port when it answers, and stop it as Ctrl-C does."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with (folder / "server.txt").open("w+", encoding="utf-8") as said:
        process = subprocess.Popen(
            [*local(words, port), "--port", str(port)], cwd=folder, env=environment(), stdout=said, stderr=said
        )
        try:
            until = time.monotonic() + 60
            while not answers(port):
                assert process.poll() is None and time.monotonic() < until, (folder / "server.txt").read_text()
                time.sleep(0.1)
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(timeout=30)
    assert status in (0, 130), (folder / "server.txt").read_text()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/v1/models", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.parametrize(
    ("example", "words"), TYPED, ids=[f"{example.page}-{example.line}-{words[1]}" for example, words in TYPED]
)
def test_the_command_line_takes_what_the_pages_type(example: Example, words: list[str]) -> None:
    words = words[1:]
    try:
        cli._parser().parse_args(words, argparse.Namespace(words=words))
    except SystemExit as stop:
        pytest.fail(f"{example.page}:{example.line}: {shlex.join(words)} ends with {stop.code}")


def test_the_tour_has_examples_of_each_kind_and_the_tests_shorten_what_is_on_it() -> None:
    assert {each.mark for each in TOUR} == MARKS
    page = (ROOT / "chapters" / "tour.md").read_text(encoding="utf-8")
    assert [long for long in SHORTER if long not in page] == []


def test_the_tour_shows_every_command() -> None:
    commands = next(
        action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)
    ).choices
    page = (ROOT / "chapters" / "tour.md").read_text(encoding="utf-8")
    assert [name for name in commands if name not in NO_PARSER and f"servinglab {name}" not in page] == []
