"""The kernels of a compiled program: how often each runs, what it computes, reads and writes, and for whom."""

import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from jaxrl_fast.inspection.hlo import ARRAY, array_bytes
from jaxrl_fast.targets.hlo_instructions import Instruction, Text

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
