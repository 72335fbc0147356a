"""What a GPU's host does to run a program: how many graphs and single kernels it launches, and where it waits.

Read from XLA's dump of its thunks, the steps of the host: a `kCommandBuffer` is one launch of a CUDA graph.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

LINE = re.compile(r"^( *)(\d+): (k\w+)")
CONDITION = re.compile(r"^ *condition:$")
BODY = re.compile(r"^ *body:$")
METADATA = re.compile(r"thunk_metadata \{\s*thunk_info \{(.*?)\n  \}", re.DOTALL)
GRAPH, LOOP, CHOICE, SEQUENCE = "kCommandBuffer", "kWhile", "kConditional", "kSequential"
HOST_ONLY = {"kSequential", "kPartitionId", "kReplicaId", "kGroupStart", "kAsyncDone", "kCollectiveDone"}
"""Steps that start nothing on the device."""


class Launches(NamedTuple):
    """What the host does in one call of a program.

    - ``graphs``: CUDA graphs that it launches.
    - ``alone``: kernels and copies that it launches one by one.
    - ``host_syncs``: how often it waits for the device to learn what comes next: a branch, or a loop of unknown length.
    """

    graphs: float
    alone: float
    host_syncs: float


class Thunk(NamedTuple):
    """A thunk: its ``depth`` in the text, ``number`` and ``kind``."""

    depth: int
    number: int
    kind: str


def count_launches(thunks: str, metadata: str, trips: Mapping[str, float]) -> Launches:
    """Count what XLA wrote down as ``thunk_sequence`` and ``thunk_metadata``; ``trips``: how often each loop of the
    program runs, by the name of its instruction (absent: unknown, and counted once).

    A branch counts as taken, and so do all the branches of one choice.
    """
    names = thunk_names(metadata)
    totals = dict.fromkeys(("graphs", "alone", "host_syncs"), 0.0)
    blocks: list[tuple[int, float]] = []  # depth of each step that holds others, and how often these run
    for step in steps_of_host(thunks):
        while blocks and step.depth <= blocks[-1][0]:
            blocks.pop()
        often = blocks[-1][1] if blocks else 1.0
        known = trips.get(names.get(step.number, "")) if step.kind == LOOP else None
        role = role_of(step.kind, known is not None)
        if role:
            totals[role] += often
        # What a graph or a kernel consists of is launched with it.
        inner = often * (known or 1.0) if step.kind in (LOOP, CHOICE, SEQUENCE) else 0.0
        blocks.append((step.depth, inner))
    return Launches(**totals)


def role_of(kind: str, trips_known: bool) -> str:
    """What a thunk is counted as; "" if as nothing."""
    if kind in (LOOP, CHOICE):
        return "" if trips_known else "host_syncs"
    return "graphs" if kind == GRAPH else "" if kind in HOST_ONLY else "alone"


def steps_of_host(thunks: str) -> Iterator[Thunk]:
    """The thunks in order. Conditions of loops are left out: where the trips are known they never run."""
    in_condition = -1
    for line in thunks.splitlines():
        if CONDITION.match(line):
            in_condition = line.index("c")
        elif BODY.match(line):
            in_condition = -1
        elif in_condition < 0 and (found := LINE.match(line)):
            yield Thunk(len(found[1]), int(found[2]), found[3])


def thunk_names(metadata: str) -> dict[int, str]:
    """The instruction behind each thunk, by the thunk's number."""
    names = {}
    for info in METADATA.findall(metadata):
        number, name = re.search(r"thunk_id: (\d+)", info), re.search(r'profile_annotation: "([^"]*)"', info)
        if name:
            names[int(number[1]) if number else 0] = name[1]
    return names
