"""``python -m jaxrl_fast.report runs/a runs/b``: show runs on a self-contained page, or as a
figure.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_fast.commands import cli
from jaxrl_fast.settings.schema import ConfigError, Key
from jaxrl_fast.training.run_folder import is_run, read_run
from jaxrl_fast.views.report_page import (
    REPORT_FILE,
    joined_members,
    page_of,
    page_of_joined,
    write_report,
)

FIGURES = (".pdf", ".svg", ".png")

HELP = """python -m jaxrl_fast.report RUN [RUN ...] [out=FILE]
  RUN   folder of a run, such as runs/latest, which may still be training. Several are compared: curves, rates, and
        differing settings
  out   an .html page, or a figure for a paper (.pdf, .svg, .png): curves and rliable's aggregate metrics over seeds.
        Default: report.html in the run's folder, comparison.html here for several"""


def report_on(words: Sequence[str]) -> int:
    """Write a page or a figure about runs, and print its path.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.

    Raises:
        ConfigError: Invalid words, or the file is not writable.
    """
    folders, out = read_words(words)
    path = out or (folders[0] / REPORT_FILE if len(folders) == 1 else Path("comparison.html"))
    try:
        write(folders, path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror}): write another out=..."
        ) from None
    print(path)
    return 0


def write(folders: Sequence[Path], path: Path) -> None:
    """Write a page or a figure, depending on the suffix.

    Args:
        folders: Folders of the runs.
        path: File to write.
    """
    if path.suffix in FIGURES:
        from jaxrl_fast.views.paper_figure import draw_figure

        draw_figure([read_run(folder) for folder in folders], path)
    elif len(folders) == 1 and path == folders[0] / REPORT_FILE:
        write_report(folders[0])
    else:
        views = [read_run(folder) for folder in folders]
        joined = joined_members(views)
        path.write_text(
            page_of(views) if joined is None else page_of_joined(views, joined), "utf-8"
        )


def read_words(words: Sequence[str]) -> tuple[list[Path], Path | None]:
    """Parse the words of the command line.

    Args:
        words: Words of the command line.

    Returns:
        Folders of the runs, and the requested file or None.

    Raises:
        ConfigError: No folder, a folder without a run, a repeated run, an unknown key, or an
            unsupported suffix.
    """
    folders, options = cli.split_words(words, "report", {"out": Key(str, None, path=True)})
    out = None if options["out"] is None else Path(options["out"])
    if out is not None and out.suffix not in (".html", *FIGURES):
        raise ConfigError(f"out={out}: write a file that ends in .html, {', '.join(FIGURES)}")
    if not folders:
        raise ConfigError("write the path of a run's folder, such as runs/latest")
    for folder in folders:
        if not is_run(folder):
            raise ConfigError(
                f"{folder} contains no run: write the path of a run's folder, such as runs/latest"
            )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("two of these folders are the same run: write each once")
    return folders, out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("report", report_on, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
