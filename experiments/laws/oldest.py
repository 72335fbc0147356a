"""Whether the oldest packages that pyproject.toml allows work together: runs the tests of `make
test-part` on the current Python, which should be the oldest.

``python3.11 experiments/laws/oldest.py`` makes the environment .venv-oldest: the lowest compatible
versions of the dependencies in pyproject.toml, and the newest versions of their dependencies
(resolved by uv). The result is written to experiments/results/oldest.json. Where a test fails,
raise a lower bound in pyproject.toml and start again.
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
    """Return the packages that pyproject.toml names, normalized."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve() -> dict[str, str]:
    """Return versions by package, of all packages to install."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    subprocess.run(
        [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "uv"], check=True
    )
    words = [
        "pip",
        "compile",
        "--quiet",
        "--resolution",
        "lowest-direct",
        "--extra",
        "dev",
        "--no-header",
    ]
    uv = [
        ENVIRONMENT / "bin" / "uv",
        *words,
        "--no-annotate",
        "--python",
        PYTHON,
        ROOT / "pyproject.toml",
    ]
    done = subprocess.run(uv, check=True, stdout=subprocess.PIPE, text=True)
    return dict(line.split("==") for line in done.stdout.split())


def install(versions: dict[str, str]) -> None:
    pins = [f"{name}=={version}" for name, version in versions.items()]
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    subprocess.run([*pip, *pins], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", ROOT], check=True)
    (ENVIRONMENT / ".installed-dev").touch()  # else make would update it


def test() -> tuple[int, str]:
    """Return the result of the tests, and their last line."""
    done = subprocess.run(
        ["make", "test-part", f"VENV={ENVIRONMENT.name}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
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
        "versions": {
            name: version
            for name, version in versions.items()
            if normal(name) in {*direct(), "jaxlib"}
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
