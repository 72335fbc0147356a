"""XLA's figures of a compiled program: operations, memory and collectives.

Collectives are parsed from the text of the compiled program, since XLA's analysis does not include
them.
"""

import re
from functools import cache, partial
from math import nan, prod
from typing import Any, NamedTuple

from jax.stages import Compiled

COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
CALLEES = re.compile(
    r"\b(body|condition|to_apply|calls|\w+_computations?)=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
CONDITION = re.compile(r"\bcondition=%([\w.\-]+)")
COUNTED = re.compile(
    r"ROOT %[\w.\-]+ = pred\[\]\S* compare\(%[\w.\-]+, %([\w.\-]+)\), direction=LT"
)
"""The end of a loop's condition that compares whether a counter is less than a number."""
CONSTANT = re.compile(r"%([\w.\-]+) = s32\[\]\S* constant\((\d+)\)")
ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|(?:ragged-)?all-to-all|reduce-scatter|collective-(?:permute|broadcast))"
    r"(?:-done)?\("
)
"""An instruction that communicates between devices; of an asynchronous pair, the one that ends it.
"""


class Collective(NamedTuple):
    """Collectives of one kind that run equally often.

    Attributes:
        kind: Kind, such as all-reduce.
        instructions: Number of instructions.
        runs: Runs per tick, None in a loop of unknown length. A branch counts as taken.
        size_bytes: Bytes that one run of all instructions gives to each device.
    """

    kind: str
    instructions: int
    runs: float | None
    size_bytes: int


class ProgramFacts(NamedTuple):
    """XLA's figures of a compiled program, for each of its devices; None if the device does not
    report them.

    Attributes:
        flops: Floating-point operations of one call, with the body of every loop counted once.
        accessed_bytes: Bytes read and written in one call, with the body of every loop counted
            once.
        argument_bytes: Memory of arguments.
        output_bytes: Memory of outputs.
        aliased_bytes: Part of the outputs in the memory of arguments.
        temporary_bytes: Memory of temporaries.
        code_bytes: Memory of the program's code.
        loops: Runs per tick of each loop body that runs more than once, None if XLA does not report
            it.
        collectives: Collectives between its devices.
    """

    flops: float | None
    accessed_bytes: float | None
    argument_bytes: int | None
    output_bytes: int | None
    aliased_bytes: int | None
    temporary_bytes: int | None
    code_bytes: int | None
    loops: tuple[float | None, ...]
    collectives: tuple[Collective, ...]


def inspect_program(compiled: Compiled, ticks: float = 1) -> ProgramFacts:
    """Read the figures of a compiled program.

    Args:
        compiled: Compiled program.
        ticks: Ticks per call; 0.5 for two calls per tick.

    Returns:
        The figures.
    """
    cost, size = compiled.cost_analysis() or {}, partial(_memory_size, compiled.memory_analysis())
    text = compiled.as_text() or ""
    # The loop over ticks is left out, since its body runs once a tick.
    loops = sorted(count / ticks for count in loop_runs(text) if not count <= ticks)
    argument, output, alias, temp, code = map(
        size, ("argument", "output", "alias", "temp", "generated_code")
    )
    flops, accessed, collectives = (
        cost.get("flops"),
        cost.get("bytes accessed"),
        find_collectives(text, ticks),
    )
    return ProgramFacts(
        flops=flops,
        accessed_bytes=accessed,
        argument_bytes=argument,
        output_bytes=output,
        aliased_bytes=alias,
        temporary_bytes=temp,
        code_bytes=code,
        loops=tuple(map(_known, loops)),
        collectives=collectives,
    )


def program_bytes(compiled: Compiled) -> int | None:
    """Compute the memory on each device while a program runs.

    It contains arguments, outputs not in the memory of arguments, temporaries and code.

    Args:
        compiled: Compiled program.

    Returns:
        Bytes, or None if the device does not report them.
    """
    memory, kinds = (
        compiled.memory_analysis(),
        ("argument", "output", "temp", "generated_code", "alias"),
    )
    sizes = [size for kind in kinds if (size := _memory_size(memory, kind)) is not None]
    return sum(sizes[:-1]) - sizes[-1] if len(sizes) == len(kinds) else None


def find_collectives(text: str, ticks: float = 1) -> tuple[Collective, ...]:
    """List the collectives in a program's text, grouped by kind and number of runs.

    Args:
        text: Text of the compiled program.
        ticks: Ticks per call.

    Returns:
        Collectives.
    """
    computations, runs = _read(text)
    by_kind: dict[tuple[str, float | None], list[int]] = {}
    for name, often in runs.items():
        for result, kind in COLLECTIVE.findall("\n".join(computations[name])):
            by_kind.setdefault((kind, _known(often / ticks)), []).append(array_bytes(result))
    return tuple(
        Collective(kind, len(sizes), often, sum(sizes)) for (kind, often), sizes in by_kind.items()
    )


def loop_runs(text: str) -> list[float]:
    """Count the runs of each loop body in one call of a program.

    Args:
        text: Text of the compiled program.

    Returns:
        Numbers of runs; NaN if XLA does not report it.
    """
    computations, runs = _read(text)
    called = [call for name in runs for line in computations[name] for call in _calls(line)]
    return [runs.get(callee, 0.0) for callee, loop in called if loop]


def _read(text: str) -> tuple[dict[str, list[str]], dict[str, float]]:
    computations, entry = read_computations(text)
    return computations, computation_runs(computations, entry)


def read_computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Split a program's text into computations.

    Args:
        text: Text of the compiled program.

    Returns:
        Instructions by computation, and the name of the entry computation.
    """
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            lines = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line.startswith("  "):
            lines.append(line)
    return computations, entry


def computation_runs(computations: dict[str, list[str]], entry: str) -> dict[str, float]:
    """Count the runs of each computation in one call of the program.

    Args:
        computations: Instructions by computation.
        entry: Name of the entry computation.

    Returns:
        Runs by computation, without computations that are never called, of which XLA leaves some.
    """
    callers: dict[str, list[tuple[str, float]]] = {name: [] for name in computations}
    for name, lines in computations.items():
        for line in lines:
            for callee, loop in _calls(line):
                callers[callee].append((name, loop_trips(line, computations) if loop else 1.0))

    @cache
    def runs(name: str) -> float:
        if name == entry:
            return 1.0
        return sum(runs(caller) * times for caller, times in callers[name] if runs(caller))

    return {name: runs(name) for name in computations if runs(name)}


def loop_trips(line: str, computations: dict[str, list[str]]) -> float:
    """Return the runs of a loop's body.

    XLA notes them; otherwise (on TPUs) they are the number that the condition compares a counter
    with, since loops of JAX count from 0 in ones.

    Args:
        line: Instruction of the loop.
        computations: Instructions by computation.

    Returns:
        Number of runs, NaN if unknown.
    """
    noted, condition = TRIPS.search(line), CONDITION.search(line)
    if noted or not condition:
        return float(noted[1]) if noted else nan
    text = "\n".join(computations.get(condition[1], ()))
    counted = COUNTED.search(text)
    numbers = dict(CONSTANT.findall(text))
    return float(numbers[counted[1]]) if counted and counted[1] in numbers else nan


def _calls(line: str) -> list[tuple[str, bool]]:
    """List the computations that an instruction calls, and whether as the body of a loop."""
    return [
        (name[1:], role == "body")
        for role, names in CALLEES.findall(line)
        for name in names.split(", ")
    ]


def array_bytes(shape: str) -> int:
    """Compute the size of an array or a tuple of arrays.

    Args:
        shape: XLA shape, such as ``(f32[256]{0}, pred[])``.

    Returns:
        Bytes.
    """
    arrays = ARRAY.findall(shape)
    return sum(
        prod(int(n) for n in dims.split(",") if n) * max(1, int(bits or 8) // 8)
        for bits, dims in arrays
    )


def _memory_size(memory: Any, kind: str) -> int | None:
    return getattr(memory, f"{kind}_size_in_bytes", None)


def _known(number: float) -> float | None:
    return None if number != number else number


NAME = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
OPERAND = re.compile(r"%([\w.\-]+)")
COMMENT = re.compile(r"/\*.*?\*/")
CALLED = {
    "while": re.compile(r"body=(%[\w.\-]+)"),
    "conditional": re.compile(
        r"(?:branch_computations|true_computation|false_computation)=\{?(%[^},]+(?:, %[^},]+)*)"
    ),
    "call": re.compile(r"to_apply=(%[\w.\-]+)"),
}
"""Patterns of the computations that an instruction runs step by step, by opcode."""


class Instruction(NamedTuple):
    """One instruction of a computation.

    Attributes:
        name: Name.
        shape: Shape of the result.
        opcode: Opcode.
        operands: Names of other instructions.
        notes: Text after the operands.
        is_root: Whether it computes the result of the computation.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    notes: str
    is_root: bool


class Text(NamedTuple):
    """The parsed text of a program.

    Attributes:
        computations: Instructions by computation.
        runs: Runs of the computations that run step by step in one call, NaN in a loop of unknown
            length. Other computations are parts of kernels.
    """

    computations: dict[str, tuple[Instruction, ...]]
    runs: dict[str, float]


def read_text(text: str) -> Text:
    """Parse a program's text.

    Args:
        text: Text of the compiled program.

    Returns:
        The parsed program.
    """
    lines, entry = read_computations(text)
    computations = {
        name: tuple(read for line in lines[name] if (read := read_instruction(line)) is not None)
        for name in lines
    }
    often, stepped, waiting = computation_runs(lines, entry), set(), [entry]
    while waiting:
        name = waiting.pop()
        stepped.add(name)
        waiting += [
            called
            for instruction in computations[name]
            for called in steps_of(instruction)
            if called not in stepped
        ]
    return Text(computations, {name: often[name] for name in stepped if name in often})


def read_instruction(line: str) -> Instruction | None:
    """Parse an instruction.

    Args:
        line: Line of a computation.

    Returns:
        The instruction; None for another line.
    """
    start = NAME.match(line)
    if start is None:
        return None
    rest = COMMENT.sub("", line[start.end() :])
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opens = rest.index("(", shape_end)
    closes = _closing(rest, opens)
    operands = tuple(OPERAND.findall(rest[opens:closes]))
    return Instruction(
        name=start[2],
        shape=rest[:shape_end],
        opcode=rest[shape_end:opens].strip(),
        operands=operands,
        notes=rest[closes + 1 :],
        is_root=bool(start[1]),
    )


def steps_of(instruction: Instruction) -> list[str]:
    """List the computations that an instruction runs step by step.

    Args:
        instruction: Instruction.

    Returns:
        Names of computations.
    """
    pattern = CALLED.get(instruction.opcode)
    lists = [] if pattern is None else pattern.findall(instruction.notes)
    return [name for names in lists for name in OPERAND.findall(names)]


def trip_count(instruction: Instruction) -> float | None:
    """Return the number of iterations of a loop, if XLA notes it.

    Args:
        instruction: Instruction of the loop.

    Returns:
        Number of iterations, or None.
    """
    match = TRIPS.search(instruction.notes)
    return float(match[1]) if match else None


def _closing(text: str, opens: int) -> int:
    """Return the position of the bracket that closes the one at ``opens``."""
    depth = 0
    for place in range(opens, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"unbalanced brackets in {text!r}")
