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


def count_launches(thunks: str, metadata: str, trips: Mapping[str, float]) -> Launches:
    """Count what XLA wrote down as ``thunk_sequence`` and ``thunk_metadata``; ``trips``: how often each loop of the
    program runs, by the name of its instruction (absent: unknown, and counted once).

    A branch counts as taken, and so do all the branches of one choice.
    """
    names, totals = thunk_names(metadata), dict.fromkeys(Launches._fields, 0.0)
    blocks: list[tuple[int, float]] = []  # depth of each step that holds others, and how often these run
    for depth, number, kind in steps_of_host(thunks):
        while blocks and depth <= blocks[-1][0]:
            blocks.pop()
        often = blocks[-1][1] if blocks else 1.0
        known = trips.get(names.get(number, "")) if kind == LOOP else None
        if kind in (LOOP, CHOICE):
            totals["host_syncs"] += often if known is None else 0.0
        elif kind not in HOST_ONLY:
            totals["graphs" if kind == GRAPH else "alone"] += often
        # What a graph or a kernel consists of is launched with it.
        blocks.append((depth, often * (known or 1.0) if kind in (LOOP, CHOICE, SEQUENCE) else 0.0))
    return Launches(**totals)


def steps_of_host(thunks: str) -> Iterator[tuple[int, int, str]]:
    """The thunks in order: depth in the text, number and kind. Conditions of loops are left out: where the trips are
    known they never run."""
    in_condition = -1
    for line in thunks.splitlines():
        if CONDITION.match(line):
            in_condition = line.index("c")
        elif BODY.match(line):
            in_condition = -1
        elif in_condition < 0 and (found := LINE.match(line)):
            yield (len(found[1]), int(found[2]), found[3])


def thunk_names(metadata: str) -> dict[int, str]:
    """The instruction behind each thunk, by the thunk's number."""
    names = {}
    for info in METADATA.findall(metadata):
        number, name = re.search(r"thunk_id: (\d+)", info), re.search(r'profile_annotation: "([^"]*)"', info)
        if name:
            names[int(number[1]) if number else 0] = name[1]
    return names
