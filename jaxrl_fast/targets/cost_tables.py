"""Costs of programs on a target, or measured here, as tables and sentences for the terminal."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from jaxrl_fast.runtime.placements import Placement
from jaxrl_fast.settings.schema import ConfigError, read_word
from jaxrl_fast.targets.accelerators import (
    CHIPS,
    THIS,
    Chip,
    Target,
    compile_only,
    parse_target,
    python_for,
)
from jaxrl_fast.targets.compiling import ForTarget, Room, Rounds, costs_of
from jaxrl_fast.targets.program_cost import (
    FLOORS_US,
    SHORT_US,
    ProgramCost,
    by_group,
    kernels_a_round,
)
from jaxrl_fast.training.progress import si
from jaxrl_fast.tuning.trial import Ready
from jaxrl_fast.views.description import byte_size, plain
from jaxrl_fast.views.graph_tables import new_console, new_table


def launch_table(costs: Sequence[ProgramCost]) -> Table:
    """Build a table with a row per program: its launches in a tick.

    Args:
        costs: Costs of the programs.

    Returns:
        The table.
    """
    columns = (
        ">devices",
        ">kernels",
        ">graphs",
        ">alone",
        ">host waits",
        ">GFLOP*",
        ">GB moved",
        ">memory",
    )
    table = new_table("programs, a tick, each device", *columns)
    for cost in costs:
        launches = (
            ("-", "-", "-")
            if cost.launches is None
            else (f"{number:,.0f}" for number in cost.launches)
        )
        table.add_row(
            ", ".join(cost.fragments),
            str(cost.num_devices),
            f"{cost.kernels:,.0f}",
            *launches,
            f"{cost.product_flops / 1e9:.3g}",
            f"{cost.moved_bytes / 1e9:.3g}",
            byte_size(cost.memory_bytes),
        )
    return table


def band_table(costs: Sequence[ProgramCost], rounds: Rounds, target: Target) -> Table:
    """Build a table with a row per assumed kernel time: the duration of a tick and the resulting
    rates.

    Args:
        costs: Costs of the programs.
        rounds: Repetitions within a tick.
        target: Target.

    Returns:
        The table.
    """
    table = new_table(
        "if a kernel takes at least", ">ms a tick", ">steps/s", ">updates/s", ">frames/s"
    )
    for name, us in band(costs):
        rates = [
            n / us * 1e6
            for n in (rounds.env_steps, rounds.updates, rounds.updates * rounds.batch_size)
        ]
        table.add_row(name, f"{us / 1e3:.3g}", *map(si, rates))
    return table


def band(costs: Sequence[ProgramCost]) -> list[tuple[str, float]]:
    """Estimate the duration of a tick. Programs of a group run one after another, groups at the
    same time.

    Args:
        costs: Costs of the programs.

    Returns:
        ``(assumption, microseconds)`` for each assumed kernel time.
    """
    named = [("nothing (roofline)", [(c.group, c.roofline_us) for c in costs])]
    named += [
        (f"{floor:g} µs", [(c.group, c.busy_us[i]) for c in costs])
        for i, floor in enumerate(FLOORS_US)
    ]
    return [(name, max(by_group(pairs).values())) for name, pairs in named]


def cost_lines(result: ForTarget) -> list[str]:
    """Describe costs that the tables do not contain.

    Args:
        result: Compiled run.

    Returns:
        Lines of text.
    """
    lines = [*round_lines(result), *collective_lines(result.costs), *memory_lines(result.room)]
    for cost in result.costs:
        name = ", ".join(cost.fragments)
        if cost.big_copies:
            lines.append(f"copies of more than 1 MB in {name}: {', '.join(cost.big_copies)}")
        if cost.unordered:
            lines.append(
                f"not deterministic there: {len(cost.unordered)} scatters of {name} add in the order of threads "
                "(XLA_FLAGS=--xla_gpu_deterministic_ops=true makes them wait for each other)"
            )
    short = sum(c.short_share * c.kernels for c in result.costs) / max(
        1.0, sum(c.kernels for c in result.costs)
    )
    lines += [
        f"{short:.0%} of the kernels would run for less than {SHORT_US:g} µs: their number determines the time",
        "* of matrix products. The band does not include products tuned on the device, the time of a launch there, the "
        "network, and the error of XLA's model. Trust orderings that are far apart.",
    ]
    return lines


def round_lines(result: ForTarget) -> list[str]:
    """Describe the kernels of an update and of a step of all environments.

    Args:
        result: Compiled run.

    Returns:
        Lines of text.
    """
    rounds = result.rounds
    pairs = [(name, rounds.updates, "update") for name in rounds.learning]
    pairs += [(name, rounds.steps, "step of all environments") for name in rounds.sampling]
    kernels = [
        (name, kernels_a_round(cost, name, number), what)
        for name, number, what in pairs
        for cost in result.costs
        if name in cost.fragments
    ]
    return [
        f"{name}: {number:.0f} kernels and copies in each {what}"
        for name, number, what in kernels
        if number
    ]


def collective_lines(costs: Sequence[ProgramCost]) -> list[str]:
    """Describe the transfers between the devices of a program.

    Args:
        costs: Costs of the programs.

    Returns:
        Lines of text.
    """
    lines = []
    for cost in costs:
        for collective in cost.collectives:
            often = (
                "in a loop of unknown length"
                if collective.runs is None
                else f"{collective.runs:g} times a tick"
            )
            lines.append(
                f"{', '.join(cost.fragments)}: {collective.instructions} {collective.kind}, {often}, "
                f"{byte_size(collective.size_bytes)} together each time"
            )
    return lines


def memory_lines(room: Room) -> list[str]:
    """Describe a run's use of a device's memory, and how far it could grow.

    Args:
        room: Memory of the fullest device.

    Returns:
        Lines of text.
    """
    needed, limit = byte_size(room.needed_bytes), byte_size(room.limit_bytes)
    sizes = f"memory: {needed} of the {limit} that JAX takes by default of each device"
    if room.needed_bytes >= room.limit_bytes:
        return [f"{sizes}: too much: write a smaller num_envs or algo.buffer_size"]
    lines = [
        sizes,
        f"  enough for at least num_envs={room.largest_num_envs:,}, if all but replay grows with it",
    ]
    if room.largest_buffer_size is not None:
        lines.append(
            f"  the largest replay in the remaining memory: algo.buffer_size={room.largest_buffer_size:,}"
        )
    return lines


def cost_facts(costs: Sequence[ProgramCost], rounds: Rounds, target: Target) -> dict[str, Any]:
    """Return the data for ``graph.json``.

    Args:
        costs: Costs of the programs.
        rounds: Repetitions within a tick.
        target: Target.

    Returns:
        Values for JSON.
    """

    def each(fragments: tuple[str, ...], number: int) -> dict[str, float | None]:
        return {
            n: kernels_a_round(c, n, number) for c in costs for n in c.fragments if n in fragments
        }

    return {
        "name": target.name,
        "chip": target.chip.title,
        "num_devices": target.num_devices,
        "rounds": plain(rounds),
        "programs": plain(tuple(costs)),
        "floors_us": list(FLOORS_US),
        "tick_us": plain(tuple(us for _, us in band(costs))),
        "kernels_an_update": plain(each(rounds.learning, rounds.updates)),
        "kernels_a_step": plain(each(rounds.sampling, rounds.steps)),
    }


DUMP = "JAXRL_FAST_TARGET_DUMP"
"""Set in the process that has the compiler: folder in which XLA writes."""


def dump_folder() -> Path | None:
    """Return the folder in which XLA writes in this process.

    Returns:
        The folder; None in a process that was not started to compile for a target.
    """
    folder = os.environ.get(DUMP)
    return Path(folder) if folder else None


def explain_elsewhere(words: Sequence[str], target: str, folder: Path) -> int:
    """Run the explanation in a process that has the compiler.

    With ``num_envs=64,1024`` it runs once for each width, and prints a table by width.

    Args:
        words: Arguments of the command.
        target: Name of the target.
        folder: Folder of the results.

    Returns:
        Exit code.

    Raises:
        ConfigError: There is no such target, or no compiler for it.
    """
    parse_target(target)
    widths = asked_widths(words)
    if len(widths) < 2:
        return run_once([*words, f"target={target}", f"out={folder}"], target)
    rest = [word for word in words if not _is_width(word)]
    costs = []
    for width in widths:
        subfolder = folder / f"num_envs_{width}"
        status = run_once(
            [*rest, f"num_envs={width}", f"target={target}", f"out={subfolder}"], target, quiet=True
        )
        if status:
            return status
        costs.append(
            (width, json.loads((subfolder / "graph.json").read_text(encoding="utf-8"))["target"])
        )
        print(f"num_envs={width}: compiled in {costs[-1][1]['compile_s']:.0f} s", flush=True)
    print_widths(costs)
    print(f"written: {folder}/num_envs_*/graph.json")
    return 0


def asked_widths(words: Sequence[str]) -> list[int]:
    """Return the numbers of environments that ``num_envs`` lists.

    Args:
        words: Arguments of the command.

    Returns:
        The numbers; empty without a list.

    Raises:
        ConfigError: An entry of the list is not a number.
    """
    values = [
        word.partition("=")[2] if "," in word else str(read_word(word)[1])
        for word in words
        if _is_width(word)
    ]
    parts = values[-1].split(",") if values else []
    if len(parts) > 1 and not all(part.isdecimal() for part in parts):
        raise ConfigError(
            f"num_envs={values[-1]}: write numbers with commas between them, as in num_envs=64,1024"
        )
    return [int(part) for part in parts] if len(parts) > 1 else []


def run_once(words: Sequence[str], target: str, *, quiet: bool = False) -> int:
    """Run the command in the process that has the compiler.

    Args:
        words: Arguments of the command.
        target: Name of the target.
        quiet: Whether to hide its output.

    Returns:
        Exit code.
    """
    python = python_for(parse_target(target).chip.platform)
    with tempfile.TemporaryDirectory(prefix="jaxrl_fast-target-") as dump:
        command = [str(python), "-m", "jaxrl_fast.explain", *words]
        done = subprocess.run(
            command,
            env={**compile_only(Path(dump)), DUMP: dump},
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            text=True,
        )
    lines = [line for line in done.stderr.splitlines() if not is_compilers_talk(line)]
    if lines:
        print("\n".join(lines), file=sys.stderr)
    return done.returncode


def is_compilers_talk(line: str) -> bool:
    """Return whether a line is XLA's logging, such as
    ``W1123 08:42:03.615707   20162 sort.cc:929]``.

    Args:
        line: Line of stderr.

    Returns:
        True for logging.
    """
    head, bracket, _ = line.partition("]")
    return bool(bracket) and head[:1] in "IWE" and head[1:5].isdecimal() and ".cc:" in head


def print_widths(results: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Print a table with a row per width.

    Args:
        results: ``(num_envs, cost_facts)`` by width.
    """
    columns = (
        ">steps a tick",
        ">kernels a tick",
        ">ms at 1 µs",
        ">ms at 4 µs",
        ">steps/s",
        ">memory",
    )
    table = new_table("by width", *columns)
    for width, facts in results:
        us = dict(zip(("roofline", *facts["floors_us"]), facts["tick_us"], strict=True))
        rates = sorted(facts["rounds"]["env_steps"] / us[floor] * 1e6 for floor in (1.0, 4.0))
        table.add_row(
            f"num_envs={width}",
            f"{facts['rounds']['env_steps']:,}",
            f"{sum(program['kernels'] for program in facts['programs']):,.0f}",
            f"{us[1.0] / 1e3:.3g}",
            f"{us[4.0] / 1e3:.3g}",
            " to ".join(map(si, rates)),
            byte_size(max(program["memory_bytes"] or 0 for program in facts["programs"])),
        )
    new_console().print(table)


def _is_width(word: str) -> bool:
    return word.partition("=")[0] == "num_envs"


REPEATS = 5
ENOUGH_S = 10.0


def compare_here(
    ready: Ready, placed: Placement, rounds: Rounds, dump: Path, *, warmup_ticks: int
) -> dict[str, Any]:
    """Measure a run here, and print the result next to XLA's prediction if there is one.

    Args:
        ready: Compiled run.
        placed: Its placement.
        rounds: Repetitions within a tick.
        dump: Folder in which XLA wrote.
        warmup_ticks: Ticks before the first update.

    Returns:
        Measurement and prediction for JSON.
    """
    measured = measure_ticks(ready, warmup_ticks)
    low_s, tick_s, high_s = (f(measured["tick_s"]) for f in (min, statistics.median, max))
    rates = [
        n / tick_s for n in (rounds.env_steps, rounds.updates, rounds.updates * rounds.batch_size)
    ]
    kind, number = (
        jax.devices()[0].device_kind,
        len({d for group in placed.groups for d in group.devices}),
    )
    print(
        f"measured on {number} {kind}: {1e3 * tick_s:.3g} ms a tick "
        f"[{1e3 * low_s:.3g}, {1e3 * high_s:.3g}], {si(rates[0])} steps/s, "
        f"{si(rates[1])} updates/s, {si(rates[2])} frames/s"
    )
    facts = {"name": THIS, "chip": kind, "num_devices": number, "measured": measured}
    chip = chip_here()
    if chip is None:
        print(
            f"no prediction for {kind}: write target=h100 for the cost of the programs on an H100"
        )
        return facts
    target = Target(THIS, chip, number, "")
    costs = costs_of(ready.run, placed, ready.ticks, target, dump)
    for table in (launch_table(costs), band_table(costs, rounds, target)):
        new_console().print(table)
    shares = ", ".join(f"{1e6 * tick_s / us:.3g} x at {name}" for name, us in band(costs))
    print(f"measured / predicted: {shares}")
    return {**facts, **cost_facts(costs, rounds, target)}


def chip_here() -> Chip | None:
    """Return the figures of this machine's devices.

    Returns:
        The chip; None for a CPU, and for devices without figures in `CHIPS`.
    """
    kind = jax.devices()[0].device_kind.lower().replace(" ", "")
    return next((chip for name, chip in CHIPS.items() if name.removeprefix("tpu-") in kind), None)


def measure_ticks(ready: Ready, warmup_ticks: int) -> dict[str, Any]:
    """Run chunks until the warm-up of replay is over, then time some more.

    Args:
        ready: Compiled run.
        warmup_ticks: Ticks before the first update.

    Returns:
        ``tick_s``, seconds per tick of each timed chunk, and ``first_chunk_s``, seconds of the
        first chunk.
    """
    state, seconds = ready.init(), list[float]()
    warm = 1 + warmup_ticks // ready.ticks
    while len(seconds) < warm + REPEATS and sum(seconds[warm:]) < ENOUGH_S:
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(ready.run(state))
        seconds.append(time.perf_counter() - begin)
    return {"first_chunk_s": seconds[0], "tick_s": [s / ready.ticks for s in seconds[warm:]]}
