"""The setup: what bootstrap says and does, what lock and wheel hold, what the README promises."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/bootstrap.py, its environment moved to an empty folder and no uv to be found."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "servinglab.stamp")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return module


def fake_python(folder: Path, name: str, version: str, *, has_venv: bool = True) -> Path:
    """An interpreter that knows its version, and whether it can import venv and ensurepip; nothing else."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    answer = f'case "$2" in *version_info*) echo "{version}";; *) exit {0 if has_venv else 1};; esac'
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def make_stamp(bootstrap: ModuleType, text: str) -> None:
    """A finished environment of a supported Python, with this stamp."""
    bootstrap.venv_python().parent.mkdir(parents=True)
    fake_python(bootstrap.venv_python().parent, bootstrap.venv_python().name, "3 12")
    bootstrap.STAMP.write_text(text)


needs_sh = pytest.mark.skipif(os.name == "nt", reason="the stand-in interpreters are shell scripts")


@pytest.mark.parametrize(
    ("system", "cure"),
    [
        ("Darwin", "brew install python@3.13"),
        ("Linux", "sudo apt install python3.13"),
        ("Windows", "winget install Python.Python.3.13"),
        ("Plan9", "python.org"),
    ],
)
def test_an_old_python_is_named_in_one_line_with_its_cure(bootstrap, monkeypatch, capsys, system, cure):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 6, "final", 0))
    monkeypatch.setattr(bootstrap.platform, "python_version", lambda: "3.9.6")
    monkeypatch.setattr(bootstrap.platform, "system", lambda: system)
    assert bootstrap.main(["env"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs Python 3.11, 3.12 or 3.13 and found only 3.9.6" in said
    assert cure in said


def test_a_python_that_is_too_new_is_named_as_well(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 14, 0, "final", 0))
    with pytest.raises(bootstrap.SetupError, match=r"needs Python 3\.11"):
        bootstrap.find_python()


@needs_sh
def test_an_unsupported_python_hands_over_to_the_newest_that_runs(bootstrap, monkeypatch, tmp_path):
    fake_python(tmp_path / "bin", "python3.13", "").write_text("#!/bin/sh\nexit 127\n")  # a shim of nothing
    fake_python(tmp_path / "bin", "python3.11", "3 11")
    wanted = fake_python(tmp_path / "bin", "python3.12", "3 12")
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 6, "final", 0))
    assert bootstrap.find_python() == str(wanted)


@needs_sh
def test_a_missing_venv_package_is_named_in_one_line_with_its_cure(bootstrap, monkeypatch, capsys, tmp_path):
    python = fake_python(tmp_path / "bin", "python3", "3 11", has_venv=False)
    monkeypatch.setattr(bootstrap.sys, "executable", str(python))
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 11, 2, "final", 0))
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Linux")
    assert bootstrap.main(["env"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "python3.11 has no venv and ensurepip" in said
    assert "sudo apt install python3.11-venv" in said


def test_bootstrap_is_readable_by_an_old_python():
    ast.parse((ROOT / "tools" / "bootstrap.py").read_text(encoding="utf-8"), feature_version=(3, 7))


@needs_sh
def test_the_environment_is_made_once_and_again_when_the_lock_changes(bootstrap, monkeypatch, tmp_path):
    installs = []
    monkeypatch.setattr(bootstrap, "install", installs.append)
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==2.0\n")
    monkeypatch.setattr(bootstrap, "LOCK", lock)
    make_stamp(bootstrap, bootstrap.fingerprint())
    assert bootstrap.main(["env"]) == 0
    assert not installs
    lock.write_text("numpy==2.1\n")
    assert bootstrap.main(["env"]) == 0
    assert bootstrap.main(["env"]) == 0
    assert len(installs) == 1


@needs_sh
def test_an_interrupted_installation_leaves_no_stamp(bootstrap, monkeypatch):
    def interrupted(uv):
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "install", interrupted)
    make_stamp(bootstrap, "of an older lock")
    assert bootstrap.main(["env"]) == 130
    assert not bootstrap.STAMP.exists()


@pytest.fixture
def ran(bootstrap, monkeypatch) -> list[tuple[str, ...]]:
    """What would have been run, each with success but for the types."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(bootstrap, "ensure_environment", lambda: None)
    monkeypatch.setattr(bootstrap, "in_environment", lambda *words: commands.append(words) or "mypy" in words)
    return commands


def test_a_failing_check_fails_the_test_command_and_the_others_still_run(bootstrap, ran, capsys):
    assert bootstrap.main(["test", "-k", "theory"]) == 1
    assert ran[-1] == ("-m", "pytest", *bootstrap.WORKERS, "-k", "theory")
    assert [words[1] for words in ran] == ["ruff", "ruff", "mypy", bootstrap.LAYERS, "pytest"]
    assert capsys.readouterr().err == "Failed: types\n"


def test_the_quick_check_leaves_out_nothing_but_slow_tests(bootstrap, ran):
    bootstrap.main(["test"])
    bootstrap.main(["check"])
    whole, quick = ran[:5], ran[5:]
    assert quick == [*whole[:-1], (*whole[-1], "-m", "not slow")]


def test_the_layers_are_checked(bootstrap, tmp_path):
    """On a library of two rooms, the lower of which imports from the upper."""
    for room, imports in (("upper", ""), ("lower", "import house.upper")):
        (tmp_path / "house" / room).mkdir(parents=True)
        (tmp_path / "house" / room / "__init__.py").write_text(imports)
    (tmp_path / "house" / "__init__.py").write_text("")
    contract = '{ name = "House", type = "layers", containers = ["house"], layers = ["upper", "lower"] }'
    (tmp_path / "pyproject.toml").write_text(f'[tool.importlinter]\nroot_package = "house"\ncontracts = [{contract}]\n')
    command = [sys.executable, "-c", bootstrap.LAYERS, "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "House BROKEN" in done.stdout


def test_make_has_a_target_for_each_command_and_help_names_them(bootstrap):
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert targets
    assert set(targets[1].split()) == {"help", *bootstrap.COMMANDS}
    for command in bootstrap.COMMANDS:
        assert f"make {command} " in bootstrap.HELP


# The lock and the package


def locked() -> dict[str, str]:
    """Name -> version, from the lines of the lock that aren't comments."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", line
            assert requirement.url is None, line
            pins[requirement.name] = pin.version
    return pins


def test_the_lock_covers_what_the_project_file_asks_for(bootstrap):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *chain(*(extras[name] for name in bootstrap.LOCKED))]
    assert bootstrap.ENGINES in extras
    assert bootstrap.ENGINES not in bootstrap.LOCKED
    pins = locked()
    assert len(pins) > len(asked)
    for text in asked:
        requirement = Requirement(text)
        version = pins.get(requirement.name)
        assert version, f"{requirement.name} is not in requirements.lock: run make lock"
        assert version in requirement.specifier, f"{text} isn't met by the lock's {version}: run make lock"


def test_the_wheel_carries_every_file_of_the_package(tmp_path):
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    wheels.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "lib", source / "lib", ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("servinglab-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("servinglab/")}
    lib = source / "lib"
    assert packed == {file.relative_to(lib).as_posix() for file in (lib / "servinglab").rglob("*.*")}


def test_importing_the_package_loads_nothing_heavy():
    heavy = {
        "IPython",
        "ipywidgets",
        "matplotlib",
        "nbformat",
        "nbgrader",
        "numba",
        "pandas",
        "scipy",
        "sphinx",
    }
    script = "import sys, servinglab; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert "servinglab" in loaded.stdout.split()
    assert heavy.isdisjoint(loaded.stdout.split())


def test_every_public_name_loads():
    import servinglab

    missing = []
    for name in servinglab.__all__:
        try:
            getattr(servinglab, name)
        except (AttributeError, ImportError) as error:
            missing.append(f"{name}: {error}")
    assert not missing


# The repository


def tracked(*patterns: str) -> list[str]:
    """The files of the commit, or a skip where the course was downloaded without git."""
    git = shutil.which("git")
    if not git or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the tracked files can't be listed")
    listed = subprocess.run([git, "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    hosts = ("pypi", "pythonhosted", "registry", "deb.debian")
    forbidden = [
        r"https?://[\w.-]*(" + "|".join(map(re.escape, hosts)) + r")[\w-]*\.",
        re.escape(".." + "/shared"),
        r"(?<![\w.~:/-])/(" + "|".join(("work", "root", "home")) + r")/\w",
        r"--(extra-)?index" + r"-url|--find" + r"-links",
    ]
    pattern = re.compile("|".join(forbidden))
    found = []
    for name in tracked():
        text = (ROOT / name).read_bytes()
        if b"\0" not in text and (hit := pattern.search(text.decode("utf-8", "replace"))):
            found.append(f"{name}: {hit[0]}")
    assert not found


def test_the_map_in_the_readme_is_that_of_the_folders():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Map\n.*?```text\n(.*?)```", readme, re.M | re.S)
    assert section, "the README has no section Map with a text block"
    named = list(chain(*(line[:23].split() for line in section[1].splitlines())))
    for name in named:
        assert (ROOT / name).exists(), f"the README's map names {name}, which doesn't exist"
    known = {name.strip("/").split("/")[0] for name in named}
    visible = {name.split("/")[0] for name in tracked() if not name.startswith(".")}
    assert visible <= known, f"the README's map leaves out {sorted(visible - known)}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_page_of_the_repository_links_to_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets
    for target in targets:
        assert "://" in target or (ROOT / target).exists(), target


def test_the_readme_is_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130  # of 65 lines each


def test_the_changelog_knows_the_version():
    import servinglab

    assert servinglab.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
