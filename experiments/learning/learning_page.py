"""Pictures and the page of the learning table."""

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from learning_rows import PEERS, ROWS, Peer, Row

from jaxrl_fast import envs
from jaxrl_fast.training.episodes import interquartile_mean

PAGE = Path(__file__).resolve().parents[2] / "docs" / "learning.md"
HEAD = """# Learning results

`python experiments/learning/learning.py` writes this page. The greedy return is the mean over seeds in the last
evaluation, with its 95 % interval from three seeds on ([Student's t](intervals.md)). For SMAX it is the share of battles
won. A target such as "≥ 1.3 × row" compares both rows at the last step of the shorter run. A row that did not reach its
target is marked "missed". A row's name leads to its command, seconds, machine and curve. Longer runs, with their speed
and memory over hours: [long_runs.md](long_runs.md).
"""
TABLE = """
## {title}

| row | steps | seeds | greedy return [95 %] | target |
|---|---|---|---|---|
"""
ROWS_HEAD = """# Learning results: {title}

`python experiments/learning/learning.py` writes this page ([all rows](../learning.md)). Seconds cover the whole command
with all seeds, compilation and evaluations. `experiments/results/` has settings and curve of each row.
"""
TITLES = {
    "custom": "environments of these experiments",
    "gymnasium": "Gymnasium",
    "atari": "Atari",
    "jaxmarl": "JaxMARL",
}
TITLES |= {"jumanji": "Jumanji", "peers": "other libraries"}
"""Names of suites and of the rows without one, where they differ from the key of `suite_of`."""


def must(row: Row) -> str:
    """Describe a row's goal."""
    if row.rival is not None:
        rival, factor = row.rival
        return f"≥ {factor:g} × {rival}"
    if row.must_reach is None:
        return "–"
    return f"{'< ' if row.unsolved else '≥ '}{row.must_reach:g}"


def beside(row: Row, curve: list[dict[str, Any]], rivals: dict[str, list[dict[str, Any]]]) -> str:
    """Describe the returns of row and rival at equal steps; empty without a result of the rival."""
    if row.rival is None or row.rival[0] not in rivals:
        return ""
    form = " ({:.2f} against {:.2f})" if row.success else " ({:.0f} against {:.0f})"
    return form.format(*at_equal_steps(curve, rivals[row.rival[0]]))


def passes(row: Row, curve: list[dict[str, Any]], rivals: dict[str, list[dict[str, Any]]]) -> bool:
    """Return whether a row's curve reaches its goal; true without a goal or without a result of the
    rival.
    """
    if row.rival is not None:
        rival, factor = row.rival
        if rival not in rivals:
            return True
        own, other = at_equal_steps(curve, rivals[rival])
        return own >= factor * other
    value = float(np.mean(curve[-1]["returns"]))
    if row.must_reach is None:
        return True
    return value < row.must_reach if row.unsolved else value >= row.must_reach


def at_equal_steps(curve: list[dict[str, Any]], rival: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the mean returns of two curves where the shorter one ends.

    Where they were not evaluated at the same step, use the rival's next evaluation and the row's
    last one; NaN where the rival has none so early.
    """
    end = min(curve[-1]["env_steps"], rival[-1]["env_steps"])
    own = [point["returns"] for point in curve if point["env_steps"] <= end] or [float("nan")]
    other = [point["returns"] for point in rival if point["env_steps"] >= end]
    return float(np.mean(own[-1])), float(np.mean(other[0]))


def suite_of(name: str) -> str:
    """Return the suite of a row's environment, or ``peers`` for another library's."""
    if name not in ROWS:
        return "peers"
    env = next(word.removeprefix("env=") for word in ROWS[name].words if word.startswith("env="))
    return envs.SHORT_NAMES[env].suite if env in envs.SHORT_NAMES else env


def table_line(name: str, result: dict[str, Any], rivals: dict[str, list[dict[str, Any]]]) -> str:
    """Write a row of a table; ``rivals``: the curves of all rows by name."""
    row, interval, digits = ROWS.get(name, Row(())), result["return_ci95"], digits_of(result)
    spread = "" if interval is None else f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    missed = "" if passes(row, result["curve"], rivals) else " (missed)"
    cells = [
        f"[{name}](learning/{suite_of(name)}.md#{name})",
        f"{result['env_steps']:,}",
        f"{len(result['curve'][-1]['returns'])}",
        f"{result['return_mean']:.{digits}f}{spread}",
        f"{must(row)}{beside(row, result['curve'], rivals)}{missed}",
    ]
    return f"| {' | '.join(cells)} |"


def digits_of(result: dict[str, Any]) -> int:
    """Return the decimals of a row's returns."""
    return 2 if abs(result["return_mean"]) < 10 else 1


def paragraph(name: str, result: dict[str, Any]) -> str:
    """Write a row's section of the page of its suite."""
    row, middle = ROWS.get(name, Row(())), f"{result['return_iqm']:.{digits_of(result)}f}"
    command = f"`{' '.join(row.words) or result['command']}`"
    facts = f"{result['wall_s']:.0f} s on {result['machine']}; interquartile mean {middle}"
    return f"\n## {name}\n\n{command}\n\n{facts}. [Curve](../../experiments/results/{name}.png)\n"


def who(seeds: int) -> str:
    """Describe the lines of a picture."""
    return "1 seed" if seeds == 1 else f"{seeds} seeds, interquartile mean"


def write_page(results: Path) -> None:
    """Write ``docs/learning.md``, and a page of each suite in ``docs/learning/``, from the
    available results.
    """
    for path, text in pages_of(read_results(results)).items():
        (PAGE.parent / path).parent.mkdir(exist_ok=True)
        (PAGE.parent / path).write_text(text)


def pages_of(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Write all pages from the results of rows."""
    rivals = {name: result["curve"] for name, result in found.items()}
    pages = {PAGE.name: HEAD}
    for suite in dict.fromkeys(map(suite_of, [*ROWS, *PEERS])):
        names = [name for name in [*ROWS, *PEERS] if suite_of(name) == suite]
        lines = [
            table_line(name, found[name], rivals)
            if name in found
            else f"| {name} | not run yet{' |' * 4}"
            for name in names
        ]
        title = TITLES.get(suite, suite)
        pages[PAGE.name] += TABLE.format(title=title) + "\n".join(lines) + "\n"
        sections = [paragraph(name, found[name]) for name in names if name in found]
        pages[f"learning/{suite}.md"] = ROWS_HEAD.format(title=title) + "".join(sections)
    return pages


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """Return the available results, by row."""
    paths = {name: results / f"{name}.json" for name in [*ROWS, *PEERS]}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def value_of(row: Row | Peer) -> str:
    """Describe the quantity of a row's curve."""
    return "share of episodes won" if row.success else "greedy return"


def draw(curve: list[dict[str, Any]], title: str, path: Path, value: str = "greedy return") -> None:
    """Plot each seed's ``value``, and their interquartile mean, against steps and seconds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    steps = [point["env_steps"] for point in curve]
    seconds = [point["wall_s"] for point in curve]
    returns = np.array([point["returns"] for point in curve])
    middle = [interquartile_mean(values) for values in returns]
    figure, plots = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for plot, x, label in zip(
        plots, (steps, seconds), ("environment steps", "seconds, all counted"), strict=True
    ):
        plot.plot(x, returns, color="tab:blue", alpha=0.3, linewidth=1)
        plot.plot(x, middle, color="tab:blue", marker="o", markersize=3)
        plot.set_xlabel(label)
        plot.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
        plot.grid(alpha=0.3)
    plots[0].set_ylabel(f"{value}: {who(returns.shape[1])}")
    figure.suptitle(
        textwrap.fill(title, 130, break_long_words=False, break_on_hyphens=False), fontsize="medium"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
