"""What `.ci/run` runs, and on which Pythons; make and the Pythons are stand-ins."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / ".ci" / "run"
MAKE = """\
echo "make $*"
[ "$1" != "$REFUSED" ] || exit 2
mkdir -p .venv/bin && cp "$DEFAULT" .venv/bin/python
"""
WORKS = """\
case "$*" in *print*) echo {0}; exit 0;; *"'{0}'"*) exit 0;; esac
exit 1
"""
LAST = (
    "the long tests",
    "compilers for accelerators",
    "what programs cost on accelerators",
)
STAND_IN = "echo 'not installed' >&2; exit 127\n"


def put(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return path


def run(
    folder: Path,
    *stand_ins: str,
    manager: str = "",
    managed: tuple[str, ...] = (),
    refused: str = "",
    **variables: str,
) -> tuple[int, str, str]:
    """Result where Python 3.11 is on the PATH, with ``stand_ins`` that do not run, and a version
    manager; ``refused``: the command that make does not support there.
    """
    programs = folder / "bin"
    default = put(programs / "python3.11", WORKS.format("3.11"))
    put(programs / "make", MAKE)
    for name in ("bash", "cp", "dirname", "mkdir", "sh", "wc"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for version in stand_ins:
        put(programs / f"python{version}", STAND_IN)
    for version in managed:
        put(folder / manager.format(version) / "bin" / "python", WORKS.format(version))
    copied = put(folder / "repository" / ".ci" / "run", "")
    shutil.copy(RUN, copied)
    env = {
        "PATH": str(programs),
        "HOME": str(folder),
        "DEFAULT": str(default),
        "REFUSED": refused,
        **variables,
    }
    nothing = subprocess.DEVNULL
    done = subprocess.run(
        ["bash", copied], env=env, stdin=nothing, capture_output=True, text=True, timeout=900
    )
    return done.returncode, done.stdout, done.stderr


MANAGERS = (
    ".pyenv/versions/{}.1",
    ".asdf/installs/python/{}.1",
    ".local/share/mise/installs/python/{}.1",
    ".local/share/uv/python/cpython-{}.1-linux-x86_64-gnu",
)


def made(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("make")]


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_newest_python_runs_everything_and_the_others_a_part(tmp_path: Path, manager: str):
    status, out, err = run(tmp_path, "3.12", "3.13", manager=manager, managed=("3.12", "3.13"))
    assert (status, err) == (0, "")
    newest, middle = (tmp_path / manager.format(v) / "bin" / "python" for v in ("3.13", "3.12"))
    assert made(out) == [
        f"make setup PYTHON={newest}",
        "make lint",
        "make types",
        "make test COSTS=check",
        "make test-break",
        f"make test-part PYTHON={middle} VENV=.venv-3.12",
        f"make test-part PYTHON={tmp_path}/bin/python3.11 VENV=.venv-3.11",
        "make test-long",
        "make targets",
        "make test-targets",
    ]
    parts = ("a part of it on Python 3.12", "a part of it on Python 3.11")
    ran = (
        "format, lint and texts",
        "types",
        "the suite on Python 3.13",
        "one deliberate break",
        *parts,
        *LAST,
    )
    assert out.splitlines()[-1] == f".ci/run: passed in 0 minutes: {', '.join(ran)}"


def test_one_python_alone_is_enough_where_no_other_is_installed(tmp_path: Path):
    status, out, err = run(tmp_path)
    assert (status, err) == (0, "")
    ran = (
        "format, lint and texts",
        "types",
        "the suite on Python 3.11",
        "one deliberate break",
        *LAST,
    )
    assert out.splitlines()[-1] == f".ci/run: passed in 0 minutes: {', '.join(ran)}"


STEPS = ("lint", "types", "test", "test-break", "test-part", "test-long", "targets", "test-targets")


@pytest.mark.parametrize("refused", STEPS)
def test_what_fails_or_cannot_run_fails_it(tmp_path: Path, refused: str):
    status, out, _ = run(tmp_path, manager=MANAGERS[0], managed=("3.12",), refused=refused)
    assert status != 0
    assert "passed" not in out
    assert made(out)[-1].split()[1] == refused


def test_one_python_of_several_that_are_installed_is_too_few(tmp_path: Path):
    status, out, err = run(tmp_path, "3.12", "3.13")
    assert (status, out) == (1, "")
    assert err == ".ci/run: of the Pythons installed here (3.13 3.12 3.11) only this runs: 3.11\n"


def test_a_file_of_another_version_is_no_python(tmp_path: Path):
    put(tmp_path / ".pyenv/versions/3.12.1/bin/python", WORKS.format("3.10"))
    assert run(tmp_path)[0] == 1


def test_the_part_names_files_that_exist():
    done = subprocess.run(
        ["make", "--dry-run", "test-part"], cwd=RUN.parent.parent, capture_output=True, text=True
    )
    names = re.findall(r"tests/test_\w+\.py", done.stdout)
    assert names and all((RUN.parent.parent / name).exists() for name in names)
