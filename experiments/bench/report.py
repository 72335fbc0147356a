"""The table and the chart of the benchmark, from the JSON of its rows."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ORDER = (
    *("ppo_halfcheetah", "sac_halfcheetah", "sac_halfcheetah_256"),
    *("ppo_cartpole_4", "ppo_cartpole", "ppo_cartpole_2048", "cartpole_8_seeds"),
)

WITH = {
    "bf16": "`precision=bf16`",
    "apart": "`placement=actor_critic overlap=actor_critic`",
    "raw": "raw observations on our side only",
}
"""Variants of ours, below their row."""


def write_report(folder: Path) -> str:
    """Write ``table.md`` and ``bench.png`` next to the rows; return the table."""
    rows = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ORDER
        if (folder / f"{name}.json").exists()
    }
    profiles = {name: folder / f"profile_{name}.json" for name in rows}
    profiles = {
        name: json.loads(path.read_text()) for name, path in profiles.items() if path.exists()
    }
    table = "\n".join([*_rates(rows), "", *_bounds(rows), "", *_profiles(rows, profiles)]) + "\n"
    (folder / "table.md").write_text(table)
    _chart(rows, folder / "bench.png")
    return table


def _rates(rows: dict[str, Any]) -> list[str]:
    lines = [
        "| work, 2 CPU cores | peer | ours | ratio, median [least, most] | required | goal | compile, peer / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        compile_s = row["compile_s"]
        rate = row["rate"]
        lines.append(
            f"| {row['title']} | {_number(rate['peer'])} | {_number(rate['ours'])} | **{_ratio(row['ratio'])}** "
            f"| {row['must']} × | {row['aim']} × | {_seconds(compile_s['peer'])} / {_seconds(compile_s['ours'])} |"
        )
        for kind, label in WITH.items():
            if f"ratio_{kind}" in row:
                figures = f"{_number(rate[f'ours, {kind}'])} | {_ratio(row[f'ratio_{kind}'])}"
                lines.append(f"| … with {label} | | {figures} | | | |")
    return lines


def _bounds(rows: dict[str, Any]) -> list[str]:
    lines = [
        "| bounds of the same run | environments alone | updates alone | training | share of the bound |",
        "|---|---|---|---|---|",
    ]
    for row in rows.values():
        if "share_of_bound" in row:
            rate = row["rate"]
            lines.append(
                f"| {row['title']} | {_number(rate['environments alone'])} | {_number(rate['updates alone'])} "
                f"| {_number(rate['ours'])} | {_percent(row['share_of_bound'])} |"
            )
    return lines


def _profiles(rows: dict[str, Any], profiles: dict[str, Any]) -> list[str]:
    lines = [
        "| profile | part | share of training | traced time by kind of operation | traced / CPU / wall-clock time |",
        "|---|---|---|---|---|",
    ]
    for name, parts in profiles.items():
        for part, profile in parts.items():
            kinds = ", ".join(
                f"{kind} {share:.0%}" for kind, share in profile["shares"].items() if share >= 0.01
            )
            share = f"{profile['share_of_training']:.0%}"
            times = " / ".join(
                f"{1e3 * profile[time]:,.0f}" for time in ("traced_s", "cpu_s", "wall_s")
            )
            lines.append(f"| {rows[name]['title']} | {part} | {share} | {kinds} | {times} ms |")
    return lines


def _seconds(value: float | None) -> str:
    return "not separable" if value is None else f"{value:.0f} s"


def _number(spread: dict[str, float]) -> str:
    digits = 1 if spread["median"] < 1000 else 0
    return f"{spread['median']:,.{digits}f} [{spread['least']:,.{digits}f}, {spread['most']:,.{digits}f}]"


def _ratio(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} × [{spread['least']:.2f}, {spread['most']:.2f}]"


def _percent(spread: dict[str, float]) -> str:
    return f"{spread['median']:.0%} [{spread['least']:.0%}, {spread['most']:.0%}]"


def _chart(rows: dict[str, Any], path: Path) -> None:
    """Plot the ratios to the other library, a bar per row, with the spread and the two goals."""
    figure, axes = plt.subplots(figsize=(8, 0.9 * len(rows) + 1.2), layout="constrained")
    for y, row in enumerate(rows.values()):
        speed = _speed(row, row["ratio"])
        axes.barh(y, speed["median"], height=0.5, color="#4477aa")
        error = [[speed["median"] - speed["least"]], [speed["most"] - speed["median"]]]
        axes.errorbar(speed["median"], y, xerr=error, color="black", capsize=4, linewidth=1)
        for goal, style in ((row["must"], "-"), (row["aim"], ":")):
            goal = 1 / goal if row["unit"] == "seconds" else goal
            axes.plot([goal, goal], [y - 0.38, y + 0.38], color="#cc3311", linestyle=style)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(
        range(len(rows)), [row["title"].replace(", ", ",\n", 1) for row in rows.values()]
    )
    axes.invert_yaxis()
    axes.set_xlabel("speed, times the peer's (red: must, dotted: aim)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _speed(row: dict[str, Any], ratio: dict[str, float]) -> dict[str, float]:
    """Return a ratio for which more is better: a ratio of seconds is inverted."""
    if row["unit"] != "seconds":
        return ratio
    return {"median": 1 / ratio["median"], "least": 1 / ratio["most"], "most": 1 / ratio["least"]}
