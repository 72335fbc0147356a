"""Cost of a program on a target: kernels, launches, seconds by XLA's model, memory, collectives."""

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
HOST_ONLY = {
    "kSequential",
    "kPartitionId",
    "kReplicaId",
    "kGroupStart",
    "kAsyncDone",
    "kCollectiveDone",
}
"""Steps that start nothing on the device."""


class Launches(NamedTuple):
    """Work of the host in one call of a program.

    Attributes:
        graphs: CUDA graphs that it launches.
        alone: Kernels and copies that it launches one by one.
        host_syncs: How often it waits for the device to decide the next step: a branch, or a loop
            of dynamic length.
    """

    graphs: float
    alone: float
    host_syncs: float


def count_launches(thunks: str, metadata: str, trips: Mapping[str, float]) -> Launches:
    """Count the launches of a program.

    A branch counts as taken, and so do all branches of one conditional.

    Args:
        thunks: XLA's dump ``thunk_sequence``.
        metadata: XLA's dump ``thunk_metadata``.
        trips: Iterations of each loop by its instruction's name; a loop that is absent counts once.

    Returns:
        The launches.
    """
    names, totals = thunk_names(metadata), dict.fromkeys(Launches._fields, 0.0)
    blocks: list[
        tuple[int, float]
    ] = []  # depth of each step with inner steps, and how often these run
    for depth, number, kind in steps_of_host(thunks):
        while blocks and depth <= blocks[-1][0]:
            blocks.pop()
        often = blocks[-1][1] if blocks else 1.0
        iterations = trips.get(names.get(number, "")) if kind == LOOP else None
        if kind in (LOOP, CHOICE):
            totals["host_syncs"] += often if iterations is None else 0.0
        elif kind not in HOST_ONLY:
            totals["graphs" if kind == GRAPH else "alone"] += often
        # The parts of a graph or a kernel are launched with it.
        blocks.append(
            (depth, often * (iterations or 1.0) if kind in (LOOP, CHOICE, SEQUENCE) else 0.0)
        )
    return Launches(**totals)


def steps_of_host(thunks: str) -> Iterator[tuple[int, int, str]]:
    """Iterate over the thunks, without conditions of loops, which never run if the iterations are
    static.

    Args:
        thunks: XLA's dump ``thunk_sequence``.

    Returns:
        Depth in the text, number and kind of each thunk.
    """
    in_condition = -1
    for line in thunks.splitlines():
        if CONDITION.match(line):
            in_condition = line.index("c")
        elif BODY.match(line):
            in_condition = -1
        elif in_condition < 0 and (match := LINE.match(line)):
            yield (len(match[1]), int(match[2]), match[3])


def thunk_names(metadata: str) -> dict[int, str]:
    """Return the instruction of each thunk.

    Args:
        metadata: XLA's dump ``thunk_metadata``.

    Returns:
        Names of instructions by the thunk's number.
    """
    names = {}
    for info in METADATA.findall(metadata):
        number, name = (
            re.search(r"thunk_id: (\d+)", info),
            re.search(r'profile_annotation: "([^"]*)"', info),
        )
        if name:
            names[int(number[1]) if number else 0] = name[1]
    return names


NO_KERNEL = {
    *(
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "while",
        "conditional",
        "call",
        "after-all",
    ),
    *("partition-id", "replica-id", "opt-barrier", "async-done", "add-dependency"),
}
"""Instructions that start nothing on the device."""
SLICING = {"dynamic-slice", "gather", "slice"}
UPDATED = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that write a part of an array in place, and the operand that is this part."""
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
"""Instructions of a computation by name."""


class Kernel(NamedTuple):
    """An instruction that starts work on the device.

    Attributes:
        name: Name of the instruction.
        opcode: Its operation.
        scope: Fragment that it belongs to; "" for the program as a whole.
        runs: Runs in one call of the program.
        flops: FLOP of its matrix products and convolutions in a run; other arithmetic is not
            counted.
        moved_bytes: Bytes read and written in a run; of a slice or gather, only the slices.
        model_us: Microseconds of a run by XLA's model of the device; None without an estimate.
    """

    name: str
    opcode: str
    scope: str
    runs: float
    flops: float
    moved_bytes: float
    model_us: float | None


def kernels_of(text: Text, scopes: Sequence[str]) -> list[Kernel]:
    """Return all kernels of a program.

    Args:
        text: Parsed program.
        scopes: Names of fragments.

    Returns:
        The kernels, each with its fragment.
    """
    kernels = []
    for name, runs in text.runs.items():
        launched = [i for i in text.computations[name] if starts_something(i)]
        around = {i.name: i for i in text.computations[name]}
        named = [scope_of(i, scopes) for i in launched]
        usual = Counter(scope for scope in named if scope).most_common(1)
        inherited = usual[0][0] if len(set(filter(None, named))) == 1 else ""
        kernels += [
            _kernel(text, i, around, runs, s or inherited)
            for i, s in zip(launched, named, strict=True)
        ]
    return kernels


def starts_something(instruction: Instruction) -> bool:
    """Return whether an instruction starts a kernel, copy or collective; of an asynchronous pair,
    the start does.

    Args:
        instruction: Instruction.

    Returns:
        True if it does.
    """
    done = instruction.opcode.endswith("-done")
    return instruction.opcode not in NO_KERNEL and not done


def scope_of(instruction: Instruction, scopes: Sequence[str]) -> str:
    """Return the fragment that an instruction belongs to.

    Args:
        instruction: Instruction.
        scopes: Names of fragments.

    Returns:
        The first of ``scopes`` in the instruction's path of Python functions, or "".
    """
    path = OP_NAME.search(instruction.notes)
    for part in path[1].split("/") if path else ():
        plain = part.rpartition("(")[2].rstrip(")")
        if plain in scopes:
            return plain
    return ""


def product_flops(instruction: Instruction, around: Named) -> float:
    """Count the FLOP of a matrix product or convolution, 2 for each multiply-add.

    Args:
        instruction: Instruction.
        around: Instructions of its computation.

    Returns:
        FLOP; 0 for other instructions.
    """
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
    """Return the dimensions of the first array in a shape.

    Args:
        shape: Shape in XLA's text.

    Returns:
        The dimensions.
    """
    match = ARRAY.search(shape)
    return [int(n) for n in match[2].split(",") if n] if match else []


def moved_bytes(inside: Named, around: Named, kernel: Instruction) -> float:
    """Count the bytes that a kernel reads and writes.

    Args:
        inside: Instructions fused in the kernel; the kernel if nothing is fused.
        around: Instructions of its computation.
        kernel: Instruction.

    Returns:
        Bytes.
    """
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
        name=i.name,
        opcode=i.opcode,
        scope=scope,
        runs=runs,
        flops=sum(product_flops(x, inside if fused else around) for x in inside.values()),
        moved_bytes=moved_bytes(inside, around, i),
        model_us=float(model[1])
        if model
        else int(cycles[1]) / TPU_CYCLES_PER_US
        if cycles
        else None,
    )


def _read(operand: Instruction, users: list[Instruction]) -> int:
    """Count the bytes read of an operand: only the slices, if it is only sliced or updated."""
    if all(
        user.opcode in {*SLICING, *UPDATED} and user.operands[0] == operand.name for user in users
    ):
        return sum(array_bytes(user.shape) for user in users if user.opcode in SLICING)
    return array_bytes(operand.shape)


def _written(result: Instruction, around: Named) -> int:
    if result.opcode == "tuple":
        return sum(_written(around[name], around) for name in result.operands)
    if result.opcode == "bitcast" and result.operands[0] in around:
        return _written(around[result.operands[0]], around)
    update = (
        around.get(result.operands[UPDATED[result.opcode]]) if result.opcode in UPDATED else None
    )
    return array_bytes((update or result).shape)


FLOORS_US = (0.0, 1.0, 2.0, 4.0)
"""Assumed shortest times of a kernel in microseconds, for which the band is computed."""
SHORT_US = 2.0
UNROLLED = 8
BIG_COPY_BYTES = 1_000_000
"""Larger copies are of a replay buffer or a rollout, not of parameters."""


class ProgramCost(NamedTuple):
    """Cost of a program on each of its devices, in one tick.

    Attributes:
        fragments: Fragments of the program.
        group: Number of its group of devices.
        num_devices: Devices of the group.
        kernels: Number of kernels and copies.
        kernels_of: The same for each fragment, and "" for kernels of no fragment.
        repeated: For each fragment, the number of kernels by their runs in a tick (`by_round`).
        short_share: Share of kernels that run for less than `SHORT_US`.
        launches: Work of the host; None if the device runs whole programs.
        collectives: Transfers between its devices.
        product_flops: FLOP of all kernels, with loops counted by their iterations.
        moved_bytes: Bytes of all kernels, with loops counted by their iterations.
        roofline_us: Shortest time for these, in microseconds.
        busy_us: Time with each of `FLOORS_US`.
        memory_bytes: Memory while it runs.
        temporary_bytes: Temporary part of the memory.
        aliased_bytes: Part of the memory that inputs and outputs share.
        big_copies: Copies of more than `BIG_COPY_BYTES` in every tick. (A TPU also changes layouts
            between chunks.)
        unordered: Scatters that sum in the order of threads, so that results round differently each
            time.
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
    """Analyze a compiled program.

    Args:
        compiled: The program.
        fragments: Its fragments.
        chip: Kind of its devices.
        group: Number of its group of devices.
        num_devices: Devices of the group.
        calls: Calls in a tick.
        dumped: Result of `program_cost.find_dump`.

    Returns:
        The cost.
    """
    source = compiled.as_text() or ""
    text = read_text(source)
    kernels = [kernel._replace(runs=kernel.runs * calls) for kernel in kernels_of(text, fragments)]
    # By XLA's model of the device, else by the roofline.
    times = [(k.runs, roofline_us(k, chip) if k.model_us is None else k.model_us) for k in kernels]
    total = sum(k.runs for k in kernels)
    memory, big = compiled.memory_analysis(), 2 * BIG_COPY_BYTES  # read and written
    return ProgramCost(
        fragments=tuple(fragments),
        group=group,
        num_devices=num_devices,
        kernels=total,
        kernels_of={
            scope: sum(k.runs for k in kernels if k.scope == scope) for scope in (*fragments, "")
        },
        repeated={scope: by_round([k for k in kernels if k.scope == scope]) for scope in fragments},
        short_share=sum(runs for runs, us in times if us < SHORT_US) / max(total, 1),
        launches=None if dumped is None else _launches(dumped, text, calls),
        collectives=find_collectives(source, 1 / calls),
        product_flops=sum(k.runs * k.flops for k in kernels),
        moved_bytes=sum(k.runs * k.moved_bytes for k in kernels),
        roofline_us=sum(k.runs * roofline_us(k, chip) for k in kernels),
        busy_us=tuple(sum(runs * max(us, floor) for runs, us in times) for floor in FLOORS_US),
        memory_bytes=program_bytes(compiled),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
        aliased_bytes=getattr(memory, "alias_size_in_bytes", None),
        big_copies=tuple(
            f"{k.name} ({k.scope})"
            for k in kernels
            if k.opcode == "copy" and k.runs >= 1 and k.moved_bytes > big
        ),
        unordered=unordered_scatters(text),
    )


def roofline_us(kernel: Kernel, chip: Chip) -> float:
    """Return the shortest time of a kernel's products and memory traffic.

    Args:
        kernel: Kernel.
        chip: Kind of the device.

    Returns:
        Microseconds.
    """
    return 1e6 * max(kernel.flops / chip.product_flops, kernel.moved_bytes / chip.bandwidth)


def by_group(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Sum values by group.

    Args:
        pairs: ``(group, value)``.

    Returns:
        Sums by group.
    """
    sums: dict[int, float] = {}
    for group, value in pairs:
        sums[group] = sums.get(group, 0.0) + value
    return sums


def by_round(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Count kernels by their runs in a tick.

    Args:
        kernels: Kernels.

    Returns:
        Numbers of kernels by runs, as text.
    """
    return dict[str, float](Counter(f"{kernel.runs:g}" for kernel in kernels))


def kernels_a_round(cost: ProgramCost, fragment: str, rounds: float) -> float | None:
    """Return a fragment's kernels in each of a tick's rounds (updates, or steps of environments).

    Kernels of loops within a round are counted by their runs. A loop may be unrolled by up to
    `UNROLLED` rounds.

    Args:
        cost: Cost of the program.
        fragment: Name of the fragment.
        rounds: Rounds in a tick.

    Returns:
        Kernels per round; None if no kernel runs that often.
    """
    runs = {float(often): number for often, number in cost.repeated.get(fragment, {}).items()}
    least = rounds if rounds <= UNROLLED else rounds / UNROLLED
    inside = sum(often * number for often, number in runs.items() if often >= least)
    return inside / rounds if inside else None


def unordered_scatters(text: Text) -> tuple[str, ...]:
    """Return the scatters that may add to one position twice.

    Args:
        text: Parsed program.

    Returns:
        Names of instructions.
    """
    scatters = [
        i
        for instructions in text.computations.values()
        for i in instructions
        if i.opcode == "scatter"
    ]
    return tuple(
        i.name for i in scatters if "unique_indices=true" not in i.notes and _adds(i.notes, text)
    )


def _adds(notes: str, text: Text) -> bool:
    """Return whether a scatter's computation uses the previous value."""
    name = notes.partition("to_apply=%")[2].partition(",")[0].split()[0]
    combiner = text.computations.get(name, ())
    return any(i.is_root and i.opcode != "parameter" for i in combiner)


def _launches(dumped: tuple[str, str], text: Text, calls: float) -> Launches:
    loops = [
        i
        for instructions in text.computations.values()
        for i in instructions
        if i.opcode == "while"
    ]
    trips = {loop.name: trips for loop in loops if (trips := trip_count(loop)) is not None}
    launches = count_launches(*dumped, trips)
    return Launches(
        graphs=calls * launches.graphs,
        alone=calls * launches.alone,
        host_syncs=calls * launches.host_syncs,
    )


AFTER, BEFORE, DUMP_METADATA = (
    "thunk_sequence_after_thunk_passes.txt",
    "thunk_sequence.txt",
    "thunk_metadata.txt",
)


def find_dump(folder: Path, program: str) -> tuple[str, str] | None:
    """Read XLA's dump of the newest program with a module name.

    Args:
        folder: Folder of the dumps.
        program: Name of the module, such as ``jit_learn``.

    Returns:
        Thunks (steps of the host) and their metadata; None if there are none, as for a TPU.
    """
    dumps = sorted(folder.glob(f"module_*.{program}.{DUMP_METADATA}"))
    if not dumps:
        return None
    stem = str(dumps[-1]).removesuffix(DUMP_METADATA)
    # XLA omits the first if the passes changed nothing
    after, before = (
        Path(stem + AFTER),
        Path(stem + BEFORE),
    )
    return (after if after.exists() else before).read_text(encoding="utf-8"), dumps[-1].read_text(
        encoding="utf-8"
    )


def module_name(hlo: str) -> str:
    """Return the name of a program's module.

    Args:
        hlo: Text of the program.

    Returns:
        The name.
    """
    return hlo.partition("HloModule ")[2].partition(",")[0].strip()
