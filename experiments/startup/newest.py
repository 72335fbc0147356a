"""The newest version of every dependency: what installs, what holds the others back, and whether
the tests pass.

``python experiments/startup/newest.py .venv-newest`` installs the project's dependencies without
their upper bounds in an environment, and prints for each the installed and the newest version, and
which package excludes the newest. ``make newest`` then runs the tests there.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent.parent
EXTRA = "dev"
LISTED = """
import json
from importlib.metadata import distributions
print(json.dumps({one.metadata["Name"]: [one.version, one.requires or []] for one in distributions()}))
"""


def wanted() -> list[Requirement]:
    """Return the requirements of the project and of its extra for developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        Requirement(text)
        for text in (*project["dependencies"], *project["optional-dependencies"][EXTRA])
    ]


def without_upper_bounds(requirement: Requirement) -> str:
    """Return a requirement with its lower bound alone, for this Python and later ones."""
    lower = ",".join(str(part) for part in requirement.specifier if part.operator == ">=")
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{lower}"


def install(python: Path) -> None:
    """Install the newest versions that go together, and the project without its own bounds."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--upgrade", "--upgrade-strategy=eager", *map(without_upper_bounds, wanted())],
        check=True,
    )
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)


def newest(python: Path, name: str) -> str | None:
    """Return the newest version that runs on this Python."""
    command = [str(python), "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.split("(", 1)[1].split(")", 1)[0] if "(" in done.stdout else None


def report(python: Path) -> list[str]:
    """Return a line for each dependency, and who excludes its newest version."""
    listed = subprocess.run(
        [str(python), "-c", LISTED], check=True, capture_output=True, text=True
    ).stdout
    installed = {name.lower().replace("_", "-"): row for name, row in json.loads(listed).items()}
    lines = []
    for requirement in sorted(wanted(), key=lambda one: one.name):
        name = requirement.name.lower()
        now, last = installed[name][0], newest(python, name)
        if last is None or Version(now) >= Version(last):
            lines.append(f"{name} {now}")
            continue
        holders = [other for other, (_, needs) in installed.items() if excludes(needs, name, last)]
        lines.append(
            f"{name} {now}, newest {last}: held back by {', '.join(sorted(holders)) or 'its dependencies'}"
        )
        if not requirement.specifier.contains(last):
            lines[-1] += "; our bound excludes it, too"
    return lines


def excludes(needs: list[str], name: str, version: str) -> bool:
    """Return whether a package's requirements exclude a version of another."""
    parsed = [Requirement(text) for text in needs]
    active = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return any(
        one.name.lower().replace("_", "-") == name and not one.specifier.contains(version)
        for one in active
    )


if __name__ == "__main__":
    venv = Path(sys.argv[1])
    interpreter = venv / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install(interpreter)
    print("\n".join(report(interpreter)))
