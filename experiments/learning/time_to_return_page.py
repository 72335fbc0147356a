"""The table of `time_to_return`, from its result file."""

import json
import statistics
from pathlib import Path
from typing import Any

from time_to_return_rows import ROWS, Peer, Row

RESULTS = Path(__file__).parent.parent / "results"
Runs = dict[str, list[dict[str, Any]]]
"""By contender, a run a seed, in the order of seeds."""


def reached_s(curve: list[Any], goal: float) -> float | None:
    """Return the seconds until the first evaluation that reached the goal: from points (steps,
    return, seconds), or from a curve of the learning table.
    """
    points = [(p["returns"], p["wall_s"]) if isinstance(p, dict) else ([p[1]], p[2]) for p in curve]
    return next(
        (float(seconds) for values, seconds in points if statistics.mean(values) >= goal), None
    )


def table(document: dict[str, Any]) -> str:
    """Write all rows, also rows without results."""
    lines = [
        "| to the return | library | seconds, median [least, most] | ratio to the peer | required | goal |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for name, row in ROWS.items():
        lines += row_lines(row, document["rows"].get(name, {}))
    return "\n".join(lines) + "\n"


def row_lines(row: Row, runs: Runs) -> list[str]:
    """List ours, each with its ratio to every peer, then the peers."""
    lines = [
        f"| {row.title} | jaxrl_fast {name} | {seconds(runs.get(name, []))} | {beside(row, runs, name)}"
        for name in row.ours
    ]
    for name, peer in row.peers.items():
        measured = seconds(runs.get(name, [])) if runs.get(name) else earlier(row, peer)
        lines.append(f"| {row.title} | {name} | {measured} | | | |")
    return lines


def seconds(runs: list[dict[str, Any]]) -> str:
    """Summarize all repeats; a repeat that never reached the goal counts as longer than any."""
    if not runs:
        return "not run yet"
    found = sorted(float("inf") if run["reached_s"] is None else run["reached_s"] for run in runs)
    missed = found.count(float("inf"))
    said = [
        "not reached" if x == float("inf") else f"{x:.0f}"
        for x in (statistics.median_high(found), found[0], found[-1])
    ]
    return f"{said[0]} [{said[1]}, {said[2]}], {len(runs)} seed{'s' * (len(runs) > 1)}" + (
        f", {missed} not reached" if missed else ""
    )


def beside(row: Row, runs: Runs, name: str) -> str:
    """Write the ratios to each other library, seed by seed, with the limit and the aim."""
    cells: list[list[str]] = [[], [], []]
    for peer in row.peers:
        pairs = zip(runs.get(name, []), runs.get(peer, []), strict=False)
        ratios = [
            a["reached_s"] / b["reached_s"] for a, b in pairs if a["reached_s"] and b["reached_s"]
        ]
        short = peer.split()[0]
        said = (
            f"**{statistics.median(ratios):.2f} ×** [{min(ratios):.2f}, {max(ratios):.2f}]"
            if ratios
            else "–"
        )
        for cell, value in zip(
            cells, (said, f"{row.must[peer]} ×", f"{row.aim[peer]} ×"), strict=True
        ):
            cell.append(f"{value} {short}" if len(row.peers) > 1 else value)
    return " | ".join("<br>".join(cell) for cell in cells) + " |"


def earlier(row: Row, peer: Peer) -> str:
    """Write a figure of an earlier run, with a label; it has no ratio."""
    if peer.earlier is None or not (RESULTS / peer.earlier[0]).exists():
        return "not run yet"
    document = json.loads((RESULTS / peer.earlier[0]).read_text())
    curve: Any = document
    for key in peer.earlier[1].split("."):
        curve = curve[key]
    at = reached_s(curve, row.goal)
    if at is None:
        return "not run yet"
    return f"not run yet; an earlier run, another day and perhaps another machine: {at:.0f} (`results/{peer.earlier[0]}`)"
