"""The page of `gpu`: its figures as tables, predicted and measured."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_fast.training.progress import si

Row = dict[str, Any]
Cells = Callable[[str, Row], list[str]]
NO = "–"


def page(document: dict[str, Any], predicted: dict[str, Row]) -> str:
    """Write Markdown. ``predicted``: rows of targets.json by name."""
    short = [
        "This is the short form. It shows that everything runs; its figures have no meaning.",
        "",
    ]
    title = f"# Measured on {document['number']} × {document['device']}"
    lines = [title, "", *(short if document["short"] else ()), *facts(document)]
    for name, part in document["parts"].items():
        lines += ["", f"## {TITLES[name]}", ""]
        if part["status"] != "measured":
            lines += [f"{part['status']}: {part['why']}"]
            continue
        columns, cells = COLUMNS[name]
        rows = [
            row
            for item in part["rows"].items()
            for row in lines_of(name, *item, columns, cells, predicted)
        ]
        lines += [table_line(columns), "|" + "---|" * len(columns), *rows, "", *NOTES.get(name, ())]
    return "\n".join(lines).rstrip() + "\n"


def facts(document: dict[str, Any]) -> list[str]:
    """List machine, versions, command and method."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    lines = [
        f"{document['machine']}; {versions}; commit {document['commit']}; {document['date']}.",
        f"`{document['command']}`, {document['took_s'] / 60:.0f} minutes. Figures are medians [least, most] of "
        "compiled calls after the warm-up, each timed to its end. Compilation is separate.",
    ]
    return (
        [*lines, "", "```", *document["system"].splitlines(), "```"]
        if document["system"]
        else lines
    )


def lines_of(
    part: str, name: str, row: Row, columns: Sequence[str], cells: Cells, predicted: dict[str, Row]
) -> list[str]:
    """List the line of a row, or of its failure, and the line of its prediction."""
    if "error" in row:
        return [table_line([name, f"failed: {row['error']}", *[""] * (len(columns) - 2)])]
    found = [table_line([name, *cells(name, row)])]
    if part in ("ticks", "placements") and name in predicted:
        found.append(
            table_line(
                [
                    f"{name}, predicted for an {predicted[name]['chip']}",
                    *band_cells(predicted[name]),
                ]
            )
        )
    return found


def table_line(cells: Sequence[str]) -> str:
    """Format a row of a table; a `|` in a cell becomes `/`."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def rate(row: Row, key: str) -> str:
    """Format a rate with its least and most."""
    if key not in row:
        return NO
    return f"{si(row[key]['median'])} [{si(row[key]['least'])}, {si(row[key]['most'])}]"


def memory(row: Row) -> str:
    """Return XLA's prediction for the program, in MB."""
    return NO if row.get("memory_bytes") is None else f"{row['memory_bytes'] / 1e6:,.0f}"


def rate_cells(name: str, row: Row) -> list[str]:
    """Write all rates together."""
    return [
        rate(row, "tick_ms"),
        *(rate(row, key) for key in ("sampling_hz", "update_hz", "update_frame_hz")),
        f"{row['compile_s']:.0f}",
        memory(row),
    ]


def band_cells(row: Row) -> list[str]:
    """Write the predicted band, with launches of 1 to 4 µs."""
    us = dict(zip(("roofline", *row["floors_us"]), row["tick_us"], strict=True))
    ends, rounds = (us[1.0], us[4.0]), row["rounds"]
    amounts = (rounds["env_steps"], rounds["updates"], rounds["updates"] * rounds["batch_size"])
    rates = [f"{si(1e6 * n / ends[1])} to {si(1e6 * n / ends[0])}" for n in amounts]
    most = max(program["memory_bytes"] or 0 for program in row["programs"])
    return [f"{ends[0] / 1e3:.3g} to {ends[1] / 1e3:.3g}", *rates, NO, f"{most / 1e6:,.0f}"]


def update_cells(name: str, row: Row) -> list[str]:
    """Write updates alone, and the least time of their matrix products and memory traffic."""
    work = row.get("an_update")
    if work is None:
        return [rate(row, "update_hz"), rate(row, "update_frame_hz"), NO, NO, NO]
    return [
        rate(row, "update_hz"),
        rate(row, "update_frame_hz"),
        f"{row['us_an_update']:.3g}",
        f"{work['us']:.3g} ({row['roofline_of']})",
        f"{work['kernels']:.0f}, {work['flops'] / 1e9:.3g} GFLOP, {work['bytes'] / 1e6:.3g} MB",
    ]


def law_cells(name: str, row: Row) -> list[str]:
    """Write the difference, and whether it is within rounding."""
    return [
        f"{row['share_of_change']:.1e}",
        "a flag or a count differs"
        if row["largest_difference"] is None
        else f"{row['largest_difference']:.1e}",
        "yes" if row["holds"] else "NO",
        yes(row["bitwise_again"]),
    ]


def flag_cells(name: str, row: Row) -> list[str]:
    """Write rates of both processes, and whether they end alike."""
    again = row.get("again", {})
    return [
        rate(row, "update_hz"),
        rate(again, "update_hz"),
        rate(row, "sampling_hz"),
        yes(row.get("bitwise_again")),
    ]


def graph_cells(name: str, row: Row) -> list[str]:
    """Write rates, and the difference of the results from the default's."""
    share = NO if "share_of_change" not in row else f"{row['share_of_change']:.1e}"
    return [
        rate(row, "tick_ms"),
        rate(row, "update_hz"),
        rate(row, "sampling_hz"),
        yes(row.get("bitwise")),
        share,
    ]


def return_cells(name: str, row: Row) -> list[str]:
    """Write when the goal was reached, or the best return."""
    best = max(row["evaluations"], key=lambda found: found[2])
    summary = row["summary"] or {}
    return [
        f"{row['goal']:,.4g}",
        NO if row["reached_s"] is None else f"{row['reached_s']:.0f}",
        NO if row["reached_at_steps"] is None else f"{row['reached_at_steps']:,}",
        f"{best[2]:,.4g} after {best[1]:.0f} s",
        *(
            si(summary[key]) if key in summary else NO
            for key in ("sampling_hz", "update_hz", "update_frame_hz")
        ),
    ]


def roofline_cells(name: str, row: Row) -> list[str]:
    """List the measured tick, and the band of this card if it is supported."""
    seconds = sorted(row["measured"]["tick_s"])
    measured = (
        f"{1e3 * seconds[len(seconds) // 2]:.3g} [{1e3 * seconds[0]:.3g}, {1e3 * seconds[-1]:.3g}]"
    )
    if "tick_us" not in row:
        return [measured, NO, "unsupported card"]
    us = dict(zip(("roofline", *row["floors_us"]), row["tick_us"], strict=True))
    return [measured, f"{us['roofline'] / 1e3:.3g}", f"{us[1.0] / 1e3:.3g} to {us[4.0] / 1e3:.3g}"]


def test_cells(name: str, row: Row) -> list[str]:
    """Write counts, and the names of failed tests."""
    passed = row["tests"] - row["failures"] - row["errors"] - row["skipped"]
    return [
        str(passed),
        str(row["failures"] + row["errors"]),
        str(row["skipped"]),
        ", ".join(row["failed"]) or NO,
    ]


def yes(value: bool | None) -> str:
    """Format a flag as a word."""
    return {True: "yes", False: "no", None: NO}[value]


RATES = (
    "row",
    "ms per tick",
    "sampling Hz",
    "update Hz",
    "update frame rate",
    "compilation, s",
    "MB",
)
TITLES = {
    "law": "Equal numbers on the accelerator and on the host",
    "sampling": "Sampling by number of environments",
    "updates": "Gradient updates alone by batch size",
    "ticks": "Whole ticks of training, measured and predicted",
    "members": "Populations: whole ticks, rates over all members",
    "returns": "Seconds to a return, imports and compilation included",
    "placements": "Two devices",
    "roofline": "A tick of SAC against its roofline",
    "deterministic": "XLA's deterministic operations",
    "graphs": "Whole ticks as CUDA graphs (JAXRL_FAST_GPU_GRAPHS=1)",
    "tests": "Tests of devices, run on the accelerator",
}
COLUMNS: dict[str, tuple[tuple[str, ...], Cells]] = {
    "law": (
        (
            "run",
            "difference, share of the change",
            "largest difference",
            "within rounding",
            "equal bits in a second process",
        ),
        law_cells,
    ),
    "sampling": (RATES, rate_cells),
    "updates": (
        (
            "run",
            "update Hz",
            "update frame rate",
            "µs per update",
            "roofline µs",
            "work per update",
        ),
        update_cells,
    ),
    "ticks": (RATES, rate_cells),
    "members": (RATES, rate_cells),
    "returns": (
        ("run", "goal", "s", "steps", "best", "sampling Hz", "update Hz", "update frame rate"),
        return_cells,
    ),
    "placements": (RATES, rate_cells),
    "roofline": (
        ("run", "ms per tick, measured", "roofline", "predicted, 1 to 4 µs per kernel"),
        roofline_cells,
    ),
    "deterministic": (
        ("run", "update Hz", "second process", "sampling Hz", "equal bits in a second process"),
        flag_cells,
    ),
    "graphs": (
        (
            "run",
            "ms per tick",
            "update Hz",
            "sampling Hz",
            "default's bits",
            "difference, share of the change",
        ),
        graph_cells,
    ),
    "tests": (("", "passed", "failed", "skipped", "names"), test_cells),
}
NOTES = {
    "law": [
        "Both devices compute products in float32 (`JAX_DEFAULT_MATMUL_PRECISION=highest`). An accelerator's "
        "default is less precise."
    ],
    "deterministic": ["Each row has two processes. Each process compiles all programs again."],
    "tests": [
        "Products are in float32. Tests that need more devices are skipped. On CPUs, a fragment on another device "
        "changes no bit. A failure of this test here means that fusion rounds differently."
    ],
}
