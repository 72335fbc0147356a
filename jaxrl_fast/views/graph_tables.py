"""Tables for the terminal, of a graph and its programs and in general."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxrl_fast.training.progress import si
from jaxrl_fast.views.description import (
    ChannelFacts,
    Description,
    PlacedProgram,
    axes_note,
    byte_size,
    device_names,
    group_label,
    time_note,
)

WIDTH = 118
"""Columns of text if the output is not a terminal."""


def new_console() -> Console:
    """Make a console as wide as the terminal, or `WIDTH` if the output is a file.

    Returns:
        The console.
    """
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


def new_table(title: str, *columns: str) -> Table:
    """Make a table without a frame.

    Args:
        title: Title of the first column.
        *columns: Titles of the other columns; those that begin with ``>`` are aligned to the right.

    Returns:
        The table.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"\n{title}", overflow="fold")
    for name in columns:
        table.add_column(
            f"\n{name.lstrip('>')}",
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    return table


def fragment_table(description: Description) -> Table:
    """Make a table with a row per fragment, in the order of a tick.

    Args:
        description: Description of the graph.

    Returns:
        The table.
    """
    table = new_table("fragments", "devices", "reads", "writes", "axes", "steps", ">state")
    old = {
        (reader, channel.name): " (last round)" if channel.per_round else " (last tick)"
        for channel in description.channels
        for reader in channel.readers
        if channel.age
    }
    for fragment in description.fragments:
        reads = [name + old.get((fragment.name, name), "") for name in fragment.reads]
        table.add_row(
            fragment.name,
            device_names(description.groups[fragment.group].devices),
            "\n".join(reads),
            "\n".join(fragment.writes),
            axes_note(fragment, description),
            time_note(fragment),
            byte_size(fragment.state_bytes),
        )
    return table


def channel_table(description: Description) -> Table:
    """Make a table with a row per channel and age.

    Args:
        description: Description of the graph.

    Returns:
        The table.
    """
    table = new_table(
        "channels", "from → to", "age", "arrays", ">size", ">a tick", ">between devices"
    )
    for channel in description.channels:
        age = "1 round" if channel.age and channel.per_round else str(channel.age)
        sizes = channel.size_bytes, channel.tick_bytes, channel.crossing_bytes
        table.add_row(
            channel.name,
            f"{channel.writer} → {', '.join(channel.readers) or 'no fragment'}",
            age if channel.readers else "-",
            arrays_of(channel),
            *map(byte_size, sizes),
        )
    return table


def arrays_of(channel: ChannelFacts) -> str:
    """Describe the number and dtypes of a channel's arrays, and the largest array.

    Args:
        channel: Channel.

    Returns:
        Two lines of text, or "?".
    """
    if not channel.leaves:
        return "?"
    largest = max(channel.leaves, key=lambda leaf: leaf.size_bytes)
    kinds = ", ".join(sorted({leaf.dtype for leaf in channel.leaves}))
    name = ".".join(largest.path.split(".")[-2:])
    shape = ", ".join(map(str, largest.shape))
    return f"{len(channel.leaves)} {kinds}\nlargest {name} [{shape}]"


def program_table(description: Description) -> Table:
    """Make a table of the programs of each group, with XLA's figures per device.

    Args:
        description: Description of the graph.

    Returns:
        The table.
    """
    columns = (
        "devices",
        ">FLOPs*",
        ">accessed*",
        ">arguments",
        ">outputs",
        ">in place",
        ">temporaries",
        ">loops run",
    )
    table = new_table("programs", *columns)
    for number, group in enumerate(description.groups):
        programs = [program for program in description.programs if program.group == number]
        for program in programs:
            table.add_row(*program_row(program, group_label(group)))
        inspected = [
            (program.calls, program.facts) for program in programs if program.facts is not None
        ]
        if len(inspected) > 1:
            flops = sum(calls * (facts.flops or 0) for calls, facts in inspected)
            accessed = sum(calls * (facts.accessed_bytes or 0) for calls, facts in inspected)
            table.add_row("  together, a tick", group_label(group), si(flops), byte_size(accessed))
    return table


def program_row(program: PlacedProgram, devices: str) -> list[str]:
    """Make the row of a program, with "?" for unreported figures.

    Args:
        program: Program.
        devices: Label of its devices.

    Returns:
        Cells.
    """
    names, facts = ", ".join(program.fragments), program.facts
    if facts is None:
        return [names, "the host, in Python"]
    if program.calls > 1:
        names += f" ({program.calls:g} calls a tick)"
    sizes = (
        facts.accessed_bytes,
        facts.argument_bytes,
        facts.output_bytes,
        facts.aliased_bytes,
        facts.temporary_bytes,
    )
    loops = ", ".join("?" if runs is None else f"{runs:g}" for runs in dict.fromkeys(facts.loops))
    flops = "?" if facts.flops is None else si(facts.flops)
    return [names, devices, flops, *map(byte_size, sizes), loops or "-"]


def collective_lines(description: Description) -> list[str]:
    """Describe the collectives that the compiler inserted to communicate between the devices of a
    program.

    Args:
        description: Description of the graph.

    Returns:
        Lines.
    """
    lines = ["", "collectives in the compiled programs"]
    for program in description.programs:
        for collective in program.facts.collectives if program.facts else ():
            often = (
                f"in a loop, {collective.runs or 0:g} times a tick"
                if collective.runs
                else "in a loop of unknown length"
            )
            often = "once a tick" if collective.runs == 1 else often
            text = f"{collective.instructions} {collective.kind}, {often}, "
            text += f"{byte_size(collective.size_bytes)} in total each time"
            lines.append(f"  {', '.join(program.fragments)}: {text}")
    return lines if len(lines) > 2 else [*lines, "  none"]


def closing_lines(description: Description, facts: dict[str, Any]) -> list[str]:
    """Explain the figures, and report the compile time.

    Args:
        description: Description of the graph.
        facts: ``compile_s`` in seconds, and ``programs_from_disk``, the number of programs loaded
            from the cache.

    Returns:
        Lines.
    """
    disk = facts["programs_from_disk"]
    cached = f", {disk} program{'s' if disk > 1 else ''} loaded from the disk cache" if disk else ""
    seeds = (
        f"; shapes and sizes are of all {description.num_seeds} seeds"
        if description.num_seeds > 1
        else ""
    )
    return [
        "",
        "* XLA's analysis, for one device and one tick (or call). The body of a loop counts once, however often it",
        "  runs, so programs with loops do more work than shown: the column 'loops run' has the runs of each body in a",
        f"  tick{seeds}.",
        f"traced and compiled in {facts['compile_s']:.1f} s{cached}",
    ]
