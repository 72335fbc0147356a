"""Long tables as curves that a page can draw."""

import numpy as np

from jaxrl_fast.runs.reading import Columns

MAX_POINTS = 500
"""A curve with more points is averaged down to at most so many."""
X_COLUMNS = ("env_steps", "wall_s")
"""What a curve is drawn over."""


def thinned(table: Columns, points: int = MAX_POINTS) -> Columns:
    """A table with at most so many rows, each the mean of neighbours; steps and seconds are those of the last."""
    rows = len(next(iter(table.values()), ()))
    if rows <= points:
        return table
    edges = np.linspace(0, rows, points + 1).astype(int)
    return {
        name: column[edges[1:] - 1] if name in (*X_COLUMNS, "updates") else _bucket_means(column, edges)
        for name, column in table.items()
    }


def _bucket_means(column: np.ndarray, edges: np.ndarray) -> np.ndarray:
    known = np.isfinite(column)
    sums = np.add.reduceat(np.where(known, column, 0.0), edges[:-1])
    counts = np.add.reduceat(known, edges[:-1], dtype=float)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
