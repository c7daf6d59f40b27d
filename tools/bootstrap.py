"""The course's commands, with nothing but Python: `python tools/bootstrap.py book` is what `make book` calls.

Makes the environment `.venv` from requirements.lock when that is new or has changed, with uv where it is
installed and with pip where it isn't, then runs the command inside it. Written so that an old Python can
still read this file and say, in one line, that it is too old.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "servinglab.stamp"
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"
SUPPORTED = ((3, 13), (3, 12), (3, 11))  # the order in which to look for one
LOCKED = ("dev", "bench")  # the extras that every environment has
# a test worker for each core; each takes whole files, in the order that conftest.py sets
WORKERS = ("--numprocesses=logical", "--maxprocesses=8", "--dist=loadfile", "--no-loadscope-reorder")
LAYERS = "from importlinter.cli import lint_imports_command as lint; lint()"
ENGINES = "openvino"  # the extra that `make engines` adds
WINDOWS = os.name == "nt"

HELP = """\
make book        build the book from clean and print the file to open
make check       lint, types, layers and the fast tests: two minutes, for while you work
make test        lint, types, layers and every test: library, notebooks, book, graders
make exercises   write solutions/ and exercises/ again from their text sources
make mutants     say which small changes of right answers no check notices (ARGS="--help" says more)
make grade       grade the folder submitted/ (ARGS="--help" says more)
make format      format the code as `make test` asks for it
make lock        resolve requirements.lock again from pyproject.toml (needs uv)
make clean       remove what the commands made, but for .venv
make env         only make .venv
make engines     add a real engine to .venv, OpenVINO GenAI (300 MB): its tests then run, and bench openvino

Without make:    python tools/bootstrap.py book
Options:         make test ARGS="-k theory -x"  or  python tools/bootstrap.py test -k theory -x
"""


class SetupError(Exception):
    """What is missing and its cure, in one line."""


def main(argv=None):
    """Run one command; return its exit status."""
    name, *args = (sys.argv[1:] if argv is None else argv) or ["help"]
    if name == "help":
        print(HELP, end="")
        return 0
    if name not in COMMANDS:
        print("unknown command {!r}; one of: help, {}".format(name, ", ".join(COMMANDS)), file=sys.stderr)
        return 2
    try:
        return COMMANDS[name](args)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# The environment


def ensure_environment():
    """Make or update `.venv` unless its stamp says that it is that of this lock, project file and folder."""
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == fingerprint() and version_of(venv_python()):
        return
    if STAMP.is_file():
        STAMP.unlink()  # from here on an interruption leaves an unfinished environment, and no stamp
    uv = shutil.which("uv")
    if version_of(venv_python()) not in SUPPORTED:
        create_venv(find_python(), uv)
    install(uv)
    STAMP.write_text(fingerprint(), encoding="utf-8")


def fingerprint():
    """Return what the environment depends on: the lock, the project file and where the checkout lies."""
    digest = hashlib.sha256(str(ROOT).encode())
    for path in (LOCK, PROJECT):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def find_python():
    """Return the path of a supported Python: this one if it will do, or else the newest on PATH."""
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for major, minor in SUPPORTED:
        found = shutil.which("python{}.{}".format(major, minor))
        if found and version_of(found) == (major, minor):
            return found
    raise SetupError(old_python_message())


def old_python_message():
    """Return one line for a machine without a supported Python."""
    cures = {
        "Darwin": "brew install python@3.13",
        "Windows": "winget install Python.Python.3.13",
        "Linux": "sudo apt install python3.13 (or 3.12, 3.11: what your release has)",
    }
    cure = cures.get(platform.system(), "install one from python.org")
    if shutil.which("uv"):
        cure = "uv python install 3.13"
    needs = "The course needs Python 3.11, 3.12 or 3.13 and found only {}."
    return (needs + " Cure: {}, then run this again.").format(platform.python_version(), cure)


def missing_venv_message(version):
    """Return one line for a Python that can't make environments (Debian ships that part apart)."""
    name = "python{}.{}".format(*version)
    if platform.system() == "Linux":
        cure = "sudo apt install {}-venv".format(name)
    else:
        cure = "install Python again, whole, from python.org"
    return "{} has no venv and ensurepip to make an environment with. Cure: {}, then run this again.".format(name, cure)


def version_of(python):
    """Return (major, minor) of an interpreter, or None where it doesn't run."""
    try:
        answer = subprocess.run(
            [str(python), "-c", "import sys; print(*sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(int(part) for part in answer.split())


def create_venv(python, uv):
    """Make an empty `.venv` with this interpreter, in the place of one that no longer works."""
    if VENV.exists():
        shutil.rmtree(str(VENV))
    if uv:
        run([uv, "venv", "--quiet", "--no-project", "--python", python, VENV])
        return
    probe = [python, "-c", "import venv, ensurepip"]
    if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
        raise SetupError(missing_venv_message(version_of(python)))
    run([python, "-m", "venv", VENV])


def install(uv):
    """Install the locked versions, then servinglab itself as an editable package."""
    print(
        "Installing the environment into .venv: about 1 GB, {}".format(
            "half a minute with uv" if uv else "two or three minutes with pip"
        ),
        flush=True,
    )
    pip = installer(uv)
    run([*pip, "-r", LOCK])
    # the lock holds setuptools: without isolation nothing is downloaded that the lock doesn't name
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT])


def installer(uv):
    """Return the command that installs into `.venv`, less what it installs."""
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", venv_python()]
    return [venv_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def venv_python():
    """Return the path of the environment's interpreter."""
    return VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")


def run(command):
    """Run a step of the setup; a failure ends the setup in one line below the step's own words."""
    words = [str(word) for word in command]
    try:
        subprocess.run(words, cwd=str(ROOT), check=True)
    except (OSError, subprocess.CalledProcessError):
        raise SetupError("The setup stopped at: {}".format(" ".join(words))) from None


def in_environment(*words):
    """Run the environment's Python from the root of the checkout; return its exit status."""
    environ = dict(os.environ, VIRTUAL_ENV=str(VENV))
    environ["PATH"] = str(venv_python().parent) + os.pathsep + environ.get("PATH", "")
    environ.pop("PYTHONHOME", None)
    return subprocess.call([str(venv_python()), *words], cwd=str(ROOT), env=environ)


# The commands


def make_environment(args):
    """Only make the environment."""
    ensure_environment()
    return 0


def engines(args):
    """Add the engine that few need and no page does; the lock's versions stay as they are."""
    ensure_environment()
    package = "{}[{}]".format(ROOT, ENGINES)
    run([*installer(shutil.which("uv")), "--no-build-isolation", "-c", LOCK, "--editable", package])
    return 0


def book(args):
    """Build the book and print the page to open."""
    ensure_environment()
    return in_environment("tools/build_book.py", *args)


def check(args):
    """Run what takes no more than two minutes."""
    return test(["-m", "not slow", *args])


def test(args):
    """Run every check, also after one has failed; the tests come last and take the arguments."""
    ensure_environment()
    checks = {
        "lint": ["-m", "ruff", "check", "."],
        "format": ["-m", "ruff", "format", "--check", "."],
        "types": ["-m", "mypy"],
        "layers": ["-c", LAYERS, "--no-cache"],
        "tests": ["-m", "pytest", *WORKERS, *args],
    }
    failed = []
    for name, command in checks.items():
        print("== {}".format(name), flush=True)
        if in_environment(*command):
            failed.append(name)
    if failed:
        print("Failed: {}".format(", ".join(failed)), file=sys.stderr)
    return 1 if failed else 0


def exercises(args):
    """Write the solutions and the released exercises again from their text sources."""
    ensure_environment()
    return in_environment("-m", "servinglab.grading.build", *args)


def mutants(args):
    """Ask the checks of the assignments which small changes of right answers they notice."""
    ensure_environment()
    return in_environment("tests/mutants.py", *args)


def grade(args):
    """Grade a folder of submissions."""
    ensure_environment()
    return in_environment("-m", "servinglab", "grade", *args)


def format_code(args):
    """Sort imports, mend what ruff can mend, and format."""
    ensure_environment()
    return in_environment("-m", "ruff", "check", "--fix", ".") | in_environment("-m", "ruff", "format", ".")


def lock(args):
    """Resolve the lock again for every supported Python and system; `--upgrade` also takes newer versions."""
    uv = shutil.which("uv")
    if not uv:
        raise SetupError("make lock needs uv. Cure: pip install uv, then run this again.")
    options = "--universal --fork-strategy fewest --python-version 3.11 --quiet --no-config"
    extras = ["--extra={}".format(extra) for extra in LOCKED]
    command = [uv, "pip", "compile", *extras, *options.split(), "--custom-compile-command", "make lock", *args]
    run([*command, "--output-file", LOCK.name, PROJECT.name])
    return 0


def clean(args):
    """Remove what the commands made, but for the environment and a teacher's folders."""
    for name in ("_build", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis", "build", "dist"):
        shutil.rmtree(str(ROOT / name), ignore_errors=True)
    for top in ("lib", "tests", "tools"):
        for folder in (ROOT / top).rglob("__pycache__"):
            shutil.rmtree(str(folder))
    return 0


COMMANDS = {
    "book": book,
    "check": check,
    "test": test,
    "exercises": exercises,
    "mutants": mutants,
    "grade": grade,
    "format": format_code,
    "lock": lock,
    "clean": clean,
    "env": make_environment,
    "engines": engines,
}

if __name__ == "__main__":
    sys.exit(main())
