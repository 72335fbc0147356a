"""The instructions of an optimized program's text, with what XLA's compilers noted behind each."""

import re
from typing import NamedTuple

from jaxrl_fast.inspection.hlo import TRIPS, computation_runs, read_computations

NAME = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
OPERAND = re.compile(r"%([\w.\-]+)")
COMMENT = re.compile(r"/\*.*?\*/")
CALLED = {
    "while": re.compile(r"body=(%[\w.\-]+)"),
    "conditional": re.compile(r"(?:branch_computations|true_computation|false_computation)=\{?(%[^},]+(?:, %[^},]+)*)"),
    "call": re.compile(r"to_apply=(%[\w.\-]+)"),
}
"""Where the computations stand that an instruction runs step by step, as the program's own."""


class Instruction(NamedTuple):
    """One line of a computation: its ``name`` and ``opcode``, the ``shape`` of its result, its ``operands`` (names of
    other instructions), ``notes``, all that stands behind them, and whether it gives the computation's result
    (``is_root``)."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    notes: str
    is_root: bool


class Text(NamedTuple):
    """A program: ``computations`` by name; ``runs``: how often those that run step by step do so in one call of the
    program (NaN: in a loop of unknown length). Others are the insides of kernels."""

    computations: dict[str, tuple[Instruction, ...]]
    runs: dict[str, float]


def read_text(text: str) -> Text:
    """Read a program as XLA prints it."""
    lines, entry = read_computations(text)
    found = {
        name: tuple(read for line in lines[name] if (read := read_instruction(line)) is not None) for name in lines
    }
    often, stepped, waiting = computation_runs(lines, entry), set(), [entry]
    while waiting:
        name = waiting.pop()
        stepped.add(name)
        waiting += [called for instruction in found[name] for called in steps_of(instruction) if called not in stepped]
    return Text(found, {name: often[name] for name in stepped if name in often})


def read_instruction(line: str) -> Instruction | None:
    """An instruction; None for another line."""
    start = NAME.match(line)
    if start is None:
        return None
    rest = COMMENT.sub("", line[start.end() :])
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opens = rest.index("(", shape_end)
    closes = _closing(rest, opens)
    operands = tuple(OPERAND.findall(rest[opens:closes]))
    return Instruction(
        start[2], rest[:shape_end], rest[shape_end:opens].strip(), operands, rest[closes + 1 :], bool(start[1])
    )


def steps_of(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs step by step."""
    pattern = CALLED.get(instruction.opcode)
    lists = [] if pattern is None else pattern.findall(instruction.notes)
    return [name for names in lists for name in OPERAND.findall(names)]


def trip_count(instruction: Instruction) -> float | None:
    """How often a loop runs, if XLA knows."""
    found = TRIPS.search(instruction.notes)
    return float(found[1]) if found else None


def _closing(text: str, opens: int) -> int:
    """The place of the bracket that closes the one at ``opens``."""
    depth = 0
    for place in range(opens, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(f"unbalanced brackets in {text!r}")
