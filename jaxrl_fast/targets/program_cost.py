"""What a program costs on a target: kernels, launches of its host, seconds by XLA's model, memory, collectives."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from jax.stages import Compiled

from jaxrl_fast.targets.accelerators import Chip
from jaxrl_fast.views.hlo import (
    ARRAY,
    Collective,
    Instruction,
    Text,
    array_bytes,
    find_collectives,
    program_bytes,
    read_text,
    trip_count,
)

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


NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"),
    *("partition-id", "replica-id", "opt-barrier", "async-done", "add-dependency"),
}
"""Instructions for which nothing is started on the device."""
SLICING = {"dynamic-slice", "gather", "slice"}
UPDATED = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that write a part of an array in its place, and which operand is that part."""
OP_NAME = re.compile(r'op_name="([^"]*)"')
FUSED = re.compile(r"calls=%([\w.\-]+)")
MODEL_US = re.compile(
    r'"exec_time_us":([\d.e+\-]+),"compute_time_us":[\d.e+\-]+,"memory_access_time_us":[\d.e+\-]+,"name":""'
)
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
TPU_CYCLES_PER_US = 1500
CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]')
WINDOW = re.compile(r"dim_labels=\w+_(\w+)->")


Named = dict[str, Instruction]
"""The instructions of a computation by name."""


class Kernel(NamedTuple):
    """An instruction that starts something on the device.

    - ``name``, ``opcode``: of the instruction.
    - ``scope``: the fragment that asked for it, "" where the program as a whole did.
    - ``runs``: in one call of the program.
    - ``flops``: of its matrix products and convolutions, a run; other arithmetic is not counted.
    - ``moved_bytes``: read and written, a run; of what is sliced or gathered, the slices.
    - ``model_us``: a run, as XLA's model of the device estimates it, None without an estimate.
    """

    name: str
    opcode: str
    scope: str
    runs: float
    flops: float
    moved_bytes: float
    model_us: float | None


def kernels_of(text: Text, scopes: Sequence[str]) -> list[Kernel]:
    """All kernels, with the ``scopes`` (fragments' names) that they belong to."""
    found = []
    for name, runs in text.runs.items():
        own = [i for i in text.computations[name] if starts_something(i)]
        around = {i.name: i for i in text.computations[name]}
        named = [scope_of(i, scopes) for i in own]
        usual = Counter(scope for scope in named if scope).most_common(1)
        inherited = usual[0][0] if len(set(filter(None, named))) == 1 else ""
        found += [_kernel(text, i, around, runs, s or inherited) for i, s in zip(own, named, strict=True)]
    return found


def starts_something(instruction: Instruction) -> bool:
    """Whether a kernel, a copy or a collective stands behind an instruction. Of an asynchronous pair, the start."""
    done = instruction.opcode.endswith("-done")
    return instruction.opcode not in NO_KERNEL and not done


def scope_of(instruction: Instruction, scopes: Sequence[str]) -> str:
    """The first of ``scopes`` in the path of Python functions that an instruction came from."""
    path = OP_NAME.search(instruction.notes)
    for part in path[1].split("/") if path else ():
        plain = part.rpartition("(")[2].rstrip(")")
        if plain in scopes:
            return plain
    return ""


def product_flops(instruction: Instruction, around: Named) -> float:
    """Of a matrix product or a convolution: 2 for each multiplication and addition. 0 for everything else."""
    out = prod(dims_of(instruction.shape))
    if instruction.opcode == "dot" or "__cublas" in instruction.notes:
        axes = CONTRACTED.search(instruction.notes)
        lhs = dims_of(around[instruction.operands[0]].shape)
        return 2.0 * out * prod(lhs[int(n)] for n in re.findall(r"\d+", axes[1])) if axes else 0.0
    if instruction.opcode == "convolution" and (labels := WINDOW.search(instruction.notes)):
        kernel = dims_of(around[instruction.operands[1]].shape)
        return 2.0 * out * prod(kernel) / kernel[labels[1].index("o")]
    return 0.0


def dims_of(shape: str) -> list[int]:
    """The dimensions of the first array in a shape."""
    found = ARRAY.search(shape)
    return [int(n) for n in found[2].split(",") if n] if found else []


def moved_bytes(inside: Named, around: Named, kernel: Instruction) -> float:
    """Bytes that a kernel reads and writes; ``inside``: the instructions that it was fused from, itself if none."""
    if kernel.name in inside:
        read = [_read(around[name], [kernel]) for name in kernel.operands if name in around]
        return sum(read) + _written(kernel, around)
    roots = [i for i in inside.values() if i.is_root]
    users = {name: [i for i in inside.values() if name in i.operands] for name in inside}
    read = [_read(i, users[i.name]) for i in inside.values() if i.opcode == "parameter"]
    return sum(read) + sum(_written(root, inside) for root in roots)


def _kernel(text: Text, i: Instruction, around: Named, runs: float, scope: str) -> Kernel:
    fused = FUSED.search(i.notes) if i.opcode == "fusion" else None
    inside = {x.name: x for x in text.computations[fused[1]]} if fused else {i.name: i}
    model, cycles = MODEL_US.search(i.notes), CYCLES.search(i.notes)
    return Kernel(
        i.name,
        i.opcode,
        scope,
        runs,
        sum(product_flops(x, inside if fused else around) for x in inside.values()),
        moved_bytes(inside, around, i),
        float(model[1]) if model else int(cycles[1]) / TPU_CYCLES_PER_US if cycles else None,
    )


def _read(operand: Instruction, users: list[Instruction]) -> int:
    """What is read of an operand: only the slices, where it is only sliced or written into."""
    if all(user.opcode in {*SLICING, *UPDATED} and user.operands[0] == operand.name for user in users):
        return sum(array_bytes(user.shape) for user in users if user.opcode in SLICING)
    return array_bytes(operand.shape)


def _written(result: Instruction, around: Named) -> int:
    if result.opcode == "tuple":
        return sum(_written(around[name], around) for name in result.operands)
    if result.opcode == "bitcast" and result.operands[0] in around:
        return _written(around[result.operands[0]], around)
    update = around.get(result.operands[UPDATED[result.opcode]]) if result.opcode in UPDATED else None
    return array_bytes((update or result).shape)


FLOORS_US = (0.0, 1.0, 2.0, 4.0)
"""Microseconds that a kernel takes at least, for which the band is given."""
SHORT_US = 2.0
UNROLLED = 8
BIG_COPY_BYTES = 1_000_000
"""From here on a copy is of a replay buffer or a rollout, not of parameters."""


class ProgramCost(NamedTuple):
    """A program of ``fragments`` on each of its devices, over one tick.

    - ``group``: the number of its group of devices, of which it has ``num_devices``.
    - ``kernels``: kernels and copies; ``kernels_of``: the same for each fragment, and "" for what belongs to none;
      ``repeated``: of these, how many one round of the fragment's innermost common loop has (see `rounds_of`).
    - ``short_share``: the share of kernels that run for less than `SHORT_US`.
    - ``launches``: None where the device takes whole programs.
    - ``collectives``: what moves data between its devices.
    - ``product_flops``, ``moved_bytes``: of all kernels together, with every loop counted as often as it runs.
    - ``roofline_us``: the least time for these; ``busy_us``: the band, at each of `FLOORS_US`.
    - ``memory_bytes``: while it runs; ``temporary_bytes``, ``aliased_bytes`` of it.
    - ``big_copies``: copies of more than `BIG_COPY_BYTES` in every tick. (Between chunks a TPU lays arrays out anew.)
    - ``unordered``: scatters that add up in the order in which threads come, so that sums round differently each time.
    """

    fragments: tuple[str, ...]
    group: int
    num_devices: int
    kernels: float
    kernels_of: dict[str, float]
    repeated: dict[str, dict[str, float]]
    short_share: float
    launches: Launches | None
    collectives: tuple[Collective, ...]
    product_flops: float
    moved_bytes: float
    roofline_us: float
    busy_us: tuple[float, ...]
    memory_bytes: int | None
    temporary_bytes: int | None
    aliased_bytes: int | None
    big_copies: tuple[str, ...]
    unordered: tuple[str, ...]


def cost_of(
    compiled: Compiled,
    fragments: Sequence[str],
    chip: Chip,
    *,
    group: int,
    num_devices: int,
    calls: float,
    dumped: tuple[str, str] | None,
) -> ProgramCost:
    """Read a program that is called ``calls`` times a tick; ``dumped``: what `program_cost.find_dump` found of it."""
    source = compiled.as_text() or ""
    text = read_text(source)
    kernels = [kernel._replace(runs=kernel.runs * calls) for kernel in kernels_of(text, fragments)]
    # As XLA's model of the device has it, else the roofline.
    times = [(k.runs, roofline_us(k, chip) if k.model_us is None else k.model_us) for k in kernels]
    total = sum(k.runs for k in kernels)
    memory, big = compiled.memory_analysis(), 2 * BIG_COPY_BYTES  # read and written
    return ProgramCost(
        tuple(fragments),
        group,
        num_devices,
        total,
        {scope: sum(k.runs for k in kernels if k.scope == scope) for scope in (*fragments, "")},
        {scope: by_round([k for k in kernels if k.scope == scope]) for scope in fragments},
        sum(runs for runs, us in times if us < SHORT_US) / max(total, 1),
        None if dumped is None else _launches(dumped, text, calls),
        find_collectives(source, 1 / calls),
        sum(k.runs * k.flops for k in kernels),
        sum(k.runs * k.moved_bytes for k in kernels),
        sum(k.runs * roofline_us(k, chip) for k in kernels),
        tuple(sum(runs * max(us, floor) for runs, us in times) for floor in FLOORS_US),
        program_bytes(compiled),
        getattr(memory, "temp_size_in_bytes", None),
        getattr(memory, "alias_size_in_bytes", None),
        tuple(f"{k.name} ({k.scope})" for k in kernels if k.opcode == "copy" and k.runs >= 1 and k.moved_bytes > big),
        unordered_scatters(text),
    )


def roofline_us(kernel: Kernel, chip: Chip) -> float:
    """The least time that a kernel's products and traffic take."""
    return 1e6 * max(kernel.flops / chip.product_flops, kernel.moved_bytes / chip.bandwidth)


def by_group(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Sums by group."""
    sums: dict[int, float] = {}
    for group, value in pairs:
        sums[group] = sums.get(group, 0.0) + value
    return sums


def by_round(kernels: Sequence[Kernel]) -> dict[str, float]:
    """How many kernels run how often a tick, by that number."""
    return dict[str, float](Counter(f"{kernel.runs:g}" for kernel in kernels))


def kernels_a_round(cost: ProgramCost, fragment: str, rounds: float) -> float | None:
    """Kernels of a fragment in each of ``rounds`` rounds a tick (updates, or steps of environments), those of loops
    within a round counted as often as they run; None if nothing runs so often. A loop may do up to `UNROLLED` rounds
    at a time."""
    runs = {float(often): number for often, number in cost.repeated.get(fragment, {}).items()}
    least = rounds if rounds <= UNROLLED else rounds / UNROLLED
    inside = sum(often * number for often, number in runs.items() if often >= least)
    return inside / rounds if inside else None


def unordered_scatters(text: Text) -> tuple[str, ...]:
    """The scatters of a program that may meet the same place twice and add there."""
    found = [i for instructions in text.computations.values() for i in instructions if i.opcode == "scatter"]
    return tuple(i.name for i in found if "unique_indices=true" not in i.notes and _adds(i.notes, text))


def _adds(notes: str, text: Text) -> bool:
    """Whether a scatter's computation keeps something of what was there."""
    name = notes.partition("to_apply=%")[2].partition(",")[0].split()[0]
    combiner = text.computations.get(name, ())
    return any(i.is_root and i.opcode != "parameter" for i in combiner)


def _launches(dumped: tuple[str, str], text: Text, calls: float) -> Launches:
    loops = [i for instructions in text.computations.values() for i in instructions if i.opcode == "while"]
    trips = {loop.name: trips for loop in loops if (trips := trip_count(loop)) is not None}
    counted = count_launches(*dumped, trips)
    return Launches(*(calls * number for number in counted))


AFTER, BEFORE, DUMP_METADATA = "thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt", "thunk_metadata.txt"


def find_dump(folder: Path, program: str) -> tuple[str, str] | None:
    """The thunks (steps of the host) and their metadata, of the newest program whose module has this name, such as
    ``jit_learn``; None where there are none, as for a TPU."""
    found = sorted(folder.glob(f"module_*.{program}.{DUMP_METADATA}"))
    if not found:
        return None
    stem = str(found[-1]).removesuffix(DUMP_METADATA)
    after, before = Path(stem + AFTER), Path(stem + BEFORE)  # the first is left out where the passes changed nothing
    return (after if after.exists() else before).read_text(), found[-1].read_text()


def module_name(hlo: str) -> str:
    """The name of a program's module, from its text."""
    return hlo.partition("HloModule ")[2].partition(",")[0].strip()
