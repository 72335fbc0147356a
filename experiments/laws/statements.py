"""Count the statements of the house: ``python experiments/laws/statements.py [COMMIT ...]``.

A docstring, and a text below a field, is no statement. The engine is what computes and what every
run reads; the plug-ins add to it (docs/house.md). Of a commit, the files of git are counted.
"""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PLUGINS = (
    "envs.pool",
    "hosts",
    "offline",
    "views",
    "population",
    "tuning",
    "targets",
    "suites",
)
"""Packages that the engine does not need."""
COMMANDS_OF_PLUGINS = ("sweep", "autotune", "report", "dashboard", "render", "export")
"""Modules at the root that start them."""


def statements(source: str) -> int:
    """Count the statements of a file.

    Args:
        source: Python.

    Returns:
        Statements, without texts.
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return sum(not _is_text(node) for node in nodes)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def package_of(path: str) -> str:
    """Return the package of a file, with one below it of ``envs``, or the module itself.

    Args:
        path: Path in the repository.

    Returns:
        Name without ``jaxrl_fast.``.
    """
    parts = path.removesuffix(".py").split("/")
    if parts[0] == "envs":
        return "envs.pool" if parts[1] == "pool" else "envs"
    return parts[1]


def sources(commit: str | None) -> dict[str, str]:
    """Read the files of the package.

    Args:
        commit: Commit, None for the files on disk.

    Returns:
        Sources by path.
    """
    listed = ["ls-files"] if commit is None else ["ls-tree", "-r", "--name-only", commit]
    names = _git(*listed).splitlines()
    ours = [
        name
        for name in names
        if name.endswith(".py") and name.split("/")[0] in ("envs", "jaxrl_fast")
    ]
    if commit is None:
        return {name: (ROOT / name).read_text(encoding="utf-8") for name in ours}
    return {name: _git("show", f"{commit}:{name}") for name in ours}


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def main(commits: list[str]) -> None:
    """Print the statements of each package, of the engine and of the plug-ins.

    Args:
        commits: Commits to count, before the files on disk.
    """
    columns = {}
    for commit in [*commits, None]:
        count: Counter[str] = Counter()
        for path, source in sources(commit).items():
            count[package_of(path)] += statements(source)
        columns[commit or "now"] = count
    names = sorted(set().union(*columns.values()))
    halves = {
        "engine": [name for name in names if name not in (*PLUGINS, *COMMANDS_OF_PLUGINS)],
        "plug-ins": [name for name in names if name in (*PLUGINS, *COMMANDS_OF_PLUGINS)],
    }
    print(f"{'':16}" + "".join(f"{name[:10]:>12}" for name in columns))
    for half, members in halves.items():
        for name in members:
            print(f"  {name:14}" + "".join(f"{count[name]:12,}" for count in columns.values()))
        totals = (sum(count[name] for name in members) for count in columns.values())
        print(f"{half:16}" + "".join(f"{total:12,}" for total in totals))
    print(f"{'whole':16}" + "".join(f"{sum(count.values()):12,}" for count in columns.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
