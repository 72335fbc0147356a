"""Builds the site for ``make docs``.

``python docs/site/assemble.py build/site`` writes the input of Zensical. The same command with
``--finish`` makes the built pages independent of any server.

The README, CONTRIBUTING, CHANGELOG, SECURITY and the pages of ``docs/`` are copied; the reference
is generated from the code (`reference_pages`). A link that leads out of ``docs/`` leads to a copy,
so that the site opens from disk.
"""

import re
import shutil
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
DOCS, ROOT = HERE.parent, HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
TOP |= {"SECURITY.md": "security.md"}
PICTURES = {".png", ".svg", ".gif", ".html"}
LINK = re.compile(r"(\]\()([^()\s]+)((?: \"[^\"]*\")?\))")
LONG = re.compile(r"(`[^`]{60,}`)(?= \|)")
"""A command in a cell of a table: the style gives it room."""
FENCE = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)


def sources() -> dict[Path, str]:
    """Return every page's source, and its path in the site."""
    pages = {ROOT / name: target for name, target in TOP.items() if (ROOT / name).exists()}
    own = (path for path in sorted(DOCS.glob("**/*.md")) if HERE not in path.parents)
    return pages | {path: path.relative_to(DOCS).as_posix() for path in own}


def relinked(page: Path, target: str, folder: Path, known: dict[Path, str]) -> str:
    """Return a page whose links lead to pages of the site, or to copies of files in ``folder``.

    Raises:
        SystemExit: A link leads nowhere.
    """

    def link(found: re.Match[str]) -> str:
        to, _, anchor = found[2].partition("#")
        if not to or re.match(r"[a-z]+:", to):
            return found[0]
        file = (page.parent / to).resolve()
        if not file.exists():
            raise SystemExit(f"{page.relative_to(ROOT)}: {found[2]} leads nowhere")
        place = known.get(file) or copied(file, folder)
        up = "../" * target.count("/")
        return f"{found[1]}{up}{place}{'#' + anchor if anchor else ''}{found[3]}"

    parts = FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(
        part if part.lstrip().startswith("```") else spaced(LINK.sub(link, part)) for part in parts
    )


def spaced(text: str) -> str:
    """Insert an empty line before lists and tables, which the site requires and forges do not, and
    mark long commands of tables for the style.
    """
    lines = [""]
    for line in text.split("\n"):
        line = LONG.sub(r"\1{.long}", line) if line.startswith("|") else line
        before = lines[-1]
        begins = (line.startswith("- ") and not before.startswith(("- ", "  "))) or line[
            :1
        ] == "|" != before[:1]
        lines += ["", line] if begins and before else [line]
    return ("\n" if text.startswith(("\n- ", "\n|")) else "") + "\n".join(lines[1:])


def copied(file: Path, folder: Path) -> str:
    """Return the path of a copy of a repository file in the site; text files end in .txt, so that
    browsers show them.

    For a folder, copy the list of its files.
    """
    name = f"files/{file.relative_to(ROOT).as_posix()}"
    if file.is_dir():
        place = folder / f"{name}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(
            "\n".join(sorted(x.name for x in file.iterdir() if not x.name.startswith("__"))) + "\n"
        )
        return f"{name}.txt"
    name += "" if file.suffix in PICTURES else ".txt"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, folder / name)
    return name


def named_in(tree: object) -> set[str]:
    """Return the pages that a navigation names."""
    if isinstance(tree, str):
        return {tree}
    branches = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return set().union(*(named_in(branch) for branch in branches))


def navigation(nav: list, pages: set[str]) -> list:
    """Return the navigation of ``mkdocs.yml``; pages that it does not name are appended to How-to.

    Raises:
        SystemExit: It names a missing page.
    """
    if missing := named_in(nav) - pages:
        raise SystemExit(
            f"docs/site/mkdocs.yml names pages that are not there: {', '.join(sorted(missing))}"
        )
    more = sorted(pages - named_in(nav))
    return [{"How-to": [*entry["How-to"], *more]} if "How-to" in entry else entry for entry in nav]


SHIM = re.compile(r'<script src="https://unpkg.com/iframe-worker/shim"[^>]*></script>')
LOADS = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(https?:[^\"]+)")


def finish(pages: Path) -> None:
    """Let search work from disk without a script of another server.

    Raises:
        SystemExit: A page still loads a file from another server.
    """
    shutil.copy(HERE / "search_from_disk.js", pages)
    for page in pages.glob("**/*.html"):
        up = "../" * (len(page.relative_to(pages).parts) - 1)
        text = SHIM.sub(f'<script src="{up}search_from_disk.js"></script>', page.read_text())
        page.write_text(text)
        loaded = [url for url in LOADS.findall(text) if "canonical" not in url]
        if loaded and "files" not in page.relative_to(pages).parts:
            raise SystemExit(f"{page} loads {', '.join(loaded)}")


def main(out: Path) -> None:
    """Write the sources of the site and its settings to ``out``."""
    from reference_pages import reference_pages

    shutil.rmtree(out, ignore_errors=True)
    folder = out / "pages"
    known = sources()
    for page, target in known.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(relinked(page, target, folder, known))
    (folder / "reference").mkdir()
    for name, text in reference_pages().items():
        (folder / "reference" / name).write_text(text)
    shutil.copy(HERE / "style.css", folder / "style.css")
    settings = yaml.safe_load((HERE / "mkdocs.yml").read_text())
    settings["nav"] = navigation(
        settings["nav"], {path.relative_to(folder).as_posix() for path in folder.glob("**/*.md")}
    )
    (out / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))


if __name__ == "__main__":
    finish(Path(sys.argv[1]) / "html") if "--finish" in sys.argv else main(Path(sys.argv[1]))
