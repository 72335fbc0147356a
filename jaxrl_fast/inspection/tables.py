"""Plain tables for the terminal."""

import sys

from rich.console import Console
from rich.table import Table

WIDTH = 118
"""Columns of text where the output is not a terminal."""


def new_console() -> Console:
    """A console as wide as the terminal, or `WIDTH` where the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)


def new_table(title: str, *columns: str) -> Table:
    """A table without frame; a column that begins with ``>`` is aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"\n{title}", overflow="fold")
    for name in columns:
        table.add_column(f"\n{name.lstrip('>')}", justify="right" if name.startswith(">") else "left", overflow="fold")
    return table
