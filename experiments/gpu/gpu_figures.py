"""Figures of `gpu` from workers' answers: rates with their spread, and the difference of two
states.
"""

import statistics
from typing import Any

import numpy as np
from gpu_jobs import Job

Row = dict[str, Any]
Rows = dict[str, Row]


def rates(job: Job, answer: Row) -> Row:
    """Add sampling Hz, update Hz and update frame rate to a job's answer, where it samples and
    updates.
    """
    row = {"words": job.words, "what": job.what, **{k: v for k, v in answer.items() if k != "keep"}}
    if "seconds" not in answer:
        return row
    hz = [answer["ticks"] * answer["num_seeds"] / s for s in answer["seconds"]]
    row["tick_ms"] = spread([1e3 * s / answer["ticks"] for s in answer["seconds"]])
    if job.what != "updates":
        row["sampling_hz"] = spread([x * answer["num_envs"] * answer["rollout_length"] for x in hz])
    if job.what in ("training", "updates"):
        row["update_hz"] = spread([x * answer["updates_per_tick"] for x in hz])
        row["update_frame_hz"] = spread(
            [x * answer["updates_per_tick"] * answer["batch_size"] for x in hz]
        )
    return row


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def same_bits(one: Row, other: Row) -> bool | None:
    """Return whether two answers end in the same bits; None if one has none."""
    digests = one.get("digest"), other.get("digest")
    return None if None in digests else digests[0] == digests[1]


def compare(one: Row, other: Row) -> Row:
    """Compare two answers' states after the first ticks: for parameters and optimizers, the
    difference as a share of their change; and the largest difference of any number, relative to
    numbers over 1.
    """
    errors = [answer["error"] for answer in (one, other) if "error" in answer]
    if errors:
        return {"error": errors[0]}
    with np.load(one["keep"]) as a, np.load(other["keep"]) as b:
        return difference(dict(a), dict(b))


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> Row:
    """Do the same as `compare` for arrays by name; "first/" is before the first tick."""
    learned = tuple(one["learned"])
    off, change, largest = 0.0, 0.0, 0.0
    for name in (n for n in one if n.startswith("private.")):
        a, b, first = one[name], other[name], one[f"first/{name}"]
        if not np.issubdtype(a.dtype, np.floating):
            largest = largest if np.array_equal(a, b) else np.inf
            continue
        largest = max(
            largest, float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 1.0), initial=0.0))
        )
        if name.startswith(learned):
            off += float(np.sum(np.square(a - b, dtype=np.float64)))
            change += float(np.sum(np.square(a - first, dtype=np.float64)))
    return {
        "share_of_change": (off / change) ** 0.5,
        "largest_difference": None if largest == np.inf else largest,
    }
