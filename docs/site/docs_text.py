"""The checkable parts of the README and the pages of ``docs/``: blocks of code, command lines,
links, figures.

- A Python block runs after the blocks above it on its page. A comment ``<!-- first: ... -->`` right
  above a block holds lines that run before it and are not shown. A block whose first line is
  ``# name.py`` is also written to that file.
- A command line is a line of a block without a language, or of a ``bash`` one, that begins with a
  supported program.
- A figure with a source is written ``2,734<!--= results/x.json key.of.a.number -->``, followed by a
  factor such as ``* 100``. ``_`` in a key also stands for a space.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:<!-- first:\n(?P<first>.*?)-->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```",
    re.M | re.S,
)
PROGRAM = re.compile(
    r"^\s*(?:(?:[A-Z_]+=\S+|srun|mpirun(?: --?[\w-]+ \S+)*|sh -c '?)\s+)*(?:\S*python3? |make |pip )"
)
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
SCRIPT = re.compile(
    r"\b(?:experiments|docs/site)/[\w/]+\.(?:py|lock)\b|\bexperiments(?:\.\w+)+(?=\.\w)"
)
FIGURE = re.compile(r"([-−]?\d[\d,]*\.?\d*)([^\d<]{0,12})<!--= (\S+) (\S+)(?: \* (\S+))? -->")


class Block(NamedTuple):
    """A Python block of a page: its ``code``, and the lines to run ``first``."""

    page: str
    code: str
    first: str = ""


class Figure(NamedTuple):
    """A figure of a page as ``written``, and the number it should show."""

    page: str
    written: str
    source: str
    value: float


def pages() -> list[Path]:
    """Return the README and all pages of ``docs/``."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


def name_of(path: Path) -> str:
    """Return a page's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def python_blocks(path: Path, language: str = "python") -> list[Block]:
    """Return the blocks of a page in a language, in order."""
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [
        Block(name_of(path), m["body"], m["first"] or "")
        for m in found
        if m["language"] == language
    ]


def command_lines(path: Path) -> list[str]:
    """Return the command lines of a page, without their comments."""
    bodies = [
        m["body"]
        for m in FENCE.finditer(path.read_text(encoding="utf-8"))
        if m["language"] in ("", "bash", "sh")
    ]
    lines = [line for body in bodies for line in body.replace("\\\n", " ").splitlines()]
    return [re.split(r"\s{2,}", line.strip())[0] for line in lines if PROGRAM.match(line)]


def links(path: Path) -> list[str]:
    """Return the targets of the links and pictures of a page, without links within code."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    return [one or other for one, other in LINK.findall(text)]


def anchors(path: Path) -> set[str]:
    """Return the headings of a page as anchors, as forges and MkDocs make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    slugs = (
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower())
        for heading in headings
    )
    return {slug.replace(" ", "-") for slug in slugs} | {
        re.sub(r"[\s-]+", "-", slug) for slug in slugs
    }


def broken_links(path: Path) -> list[str]:
    """Return links within the repository that lead nowhere."""
    wrong = []
    for link in links(path):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(link)
    return wrong


def texts() -> list[Path]:
    """Return all files that may name a script: pages, code, recorded results, and files that run
    commands.
    """
    single = [
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", ".ci/run")
    ]
    folders = (".github", "docs", "examples", "experiments", "jaxrl_fast", "envs", "tests")
    kinds = {".md", ".py", ".yml", ".yaml", ".json"}
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in kinds
    ]
    return [*single, *found]


def scripts(text: str) -> set[str]:
    """Return the paths of scripts of ``experiments/`` and ``docs/site/`` in a text.

    A module, as in ``env.make=experiments.learning.environments.function``, counts as its file.
    """
    found = {match[0] for match in SCRIPT.finditer(text)}
    return {name if "/" in name else name.replace(".", "/") + ".py" for name in found}


def missing_scripts(text: str) -> list[str]:
    """Return the scripts that a text names and that do not exist."""
    return sorted(name for name in scripts(text) if not (ROOT / name).is_file())


def figures(path: Path) -> list[Figure]:
    """Return the figures of a page that name their source, each with the number in the source."""
    found = []
    for written, _, source, key, factor in FIGURE.findall(path.read_text(encoding="utf-8")):
        value = json.loads((ROOT / "experiments" / source).read_text())
        for part in key.split("."):
            value = (
                value[int(part)]
                if isinstance(value, list)
                else value[part if part in value else spaced(part)]
            )
        found.append(
            Figure(name_of(path), written, f"{source} {key}", float(value) * float(factor or 1))
        )
    return found


def spaced(key: str) -> str:
    """Return a key of a result file with its spaces."""
    return key.replace("_", " ")


def shows(figure: Figure) -> bool:
    """Return whether a figure is its number, rounded to the written digits."""
    digits = len(figure.written.partition(".")[2])
    return float(figure.written.replace(",", "").replace("−", "-")) == round(figure.value, digits)
