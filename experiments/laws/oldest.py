"""Whether the oldest packages that pyproject.toml allows work together: the part of the tests that `make test-part`
runs, on the Python that this is started with, which is to be the oldest.

``python3.11 experiments/laws/oldest.py`` makes the environment .venv-oldest: of what pyproject.toml asks for the lowest
versions that fit together, of what those ask for the newest (resolved by uv). The result is written to
experiments/results/oldest.json. Where something fails, raise a floor in pyproject.toml and start again.
"""

import json
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-oldest"
PYTHON = ENVIRONMENT / "bin" / "python"
RESULT = ROOT / "experiments" / "results" / "oldest.json"


def direct() -> set[str]:
    """The packages that pyproject.toml names, normalized."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> dict[str, str]:
    """Versions by package, of all that is to be installed."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "uv"], check=True)
    words = ["pip", "compile", "--quiet", "--resolution", "lowest-direct", "--extra", "dev", "--no-header"]
    uv = [ENVIRONMENT / "bin" / "uv", *words, "--no-annotate", "--python", PYTHON, ROOT / "pyproject.toml"]
    done = subprocess.run(uv, check=True, stdout=subprocess.PIPE, text=True)
    return dict(line.split("==") for line in done.stdout.split())


def install(versions: dict[str, str]) -> None:
    pins = [f"{name}=={version}" for name, version in versions.items()]
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    subprocess.run([*pip, *pins], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", ROOT], check=True)
    (ENVIRONMENT / ".installed-dev").touch()  # else make would bring it up to date


def test() -> tuple[int, str]:
    """How the tests ended, and their last line."""
    done = subprocess.run(
        ["make", "test-part", f"VENV={ENVIRONMENT.name}"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout)
    return done.returncode, done.stdout.strip().splitlines()[-1]


def main() -> int:
    versions = resolve()
    install(versions)
    status, said = test()
    result = {
        "command": "python experiments/laws/oldest.py",
        "python": platform.python_version(),
        "tests": re.sub(r" in \d.*", "", said),
        "versions": {name: version for name, version in versions.items() if normal(name) in {*direct(), "jaxlib"}},
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
