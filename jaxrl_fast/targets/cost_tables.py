"""What programs would cost on a target, as tables and sentences for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from jaxrl_fast.inspection.description import plain
from jaxrl_fast.inspection.labels import byte_size
from jaxrl_fast.inspection.tables import new_table
from jaxrl_fast.runs.progress import si
from jaxrl_fast.targets.compiling import ForTarget, Rounds
from jaxrl_fast.targets.program_cost import FLOORS_US, SHORT_US, ProgramCost, by_group, kernels_a_round
from jaxrl_fast.targets.room import Room
from jaxrl_fast.targets.target import Target


def launch_table(costs: Sequence[ProgramCost]) -> Table:
    """A row a program: what starts in a tick."""
    columns = (">devices", ">kernels", ">graphs", ">alone", ">host waits", ">GFLOP*", ">GB moved", ">memory")
    table = new_table("programs, a tick, each device", *columns)
    for cost in costs:
        launches = ("-", "-", "-") if cost.launches is None else (f"{number:,.0f}" for number in cost.launches)
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
    """A row a floor: how long a tick would last, and the rates that follow."""
    table = new_table("if a kernel takes at least", ">ms a tick", ">steps/s", ">updates/s", ">frames/s")
    for name, us in band(costs):
        rates = [n / us * 1e6 for n in (rounds.env_steps, rounds.updates, rounds.updates * rounds.batch_size)]
        table.add_row(name, f"{us / 1e3:.3g}", *map(si, rates))
    return table


def band(costs: Sequence[ProgramCost]) -> list[tuple[str, float]]:
    """Microseconds a tick, by what is assumed: the programs of a group one after another, groups beside each other."""
    named = [("nothing (roofline)", [(c.group, c.roofline_us) for c in costs])]
    named += [(f"{floor:g} µs", [(c.group, c.busy_us[i]) for c in costs]) for i, floor in enumerate(FLOORS_US)]
    return [(name, max(by_group(pairs).values())) for name, pairs in named]


def cost_lines(found: ForTarget) -> list[str]:
    """What the tables do not show."""
    lines = [*round_lines(found), *collective_lines(found.costs), *memory_lines(found.room)]
    for cost in found.costs:
        name = ", ".join(cost.fragments)
        if cost.big_copies:
            lines.append(f"copies of more than 1 MB in {name}: {', '.join(cost.big_copies)}")
        if cost.unordered:
            lines.append(
                f"not deterministic there: {len(cost.unordered)} scatters of {name} add in the order in which threads "
                "come (XLA_FLAGS=--xla_gpu_deterministic_ops=true makes them wait for each other)"
            )
    short = sum(c.short_share * c.kernels for c in found.costs) / max(1.0, sum(c.kernels for c in found.costs))
    lines += [
        f"{short:.0%} of the kernels would run for less than {SHORT_US:g} µs: their number is the time",
        "* of matrix products. The band cannot tell: how products run once they are tuned on the device, how long a "
        "launch takes there, what a network adds, and how far XLA's model of the device is off. Trust orderings that "
        "are far apart.",
    ]
    return lines


def round_lines(found: ForTarget) -> list[str]:
    """Kernels of an update and of a step of all environments."""
    rounds = found.rounds
    pairs = [(name, rounds.updates, "update") for name in rounds.learning]
    pairs += [(name, rounds.steps, "step of all environments") for name in rounds.sampling]
    kernels = [
        (name, kernels_a_round(cost, name, number), what)
        for name, number, what in pairs
        for cost in found.costs
        if name in cost.fragments
    ]
    return [f"{name}: {number:.0f} kernels and copies in each {what}" for name, number, what in kernels if number]


def collective_lines(costs: Sequence[ProgramCost]) -> list[str]:
    """What moves between the devices of a program."""
    lines = []
    for cost in costs:
        for found in cost.collectives:
            often = "in a loop of unknown length" if found.runs is None else f"{found.runs:g} times a tick"
            lines.append(
                f"{', '.join(cost.fragments)}: {found.instructions} {found.kind}, {often}, "
                f"{byte_size(found.size_bytes)} together each time"
            )
    return lines


def memory_lines(room: Room) -> list[str]:
    """What of a device's memory the run takes, and how far it could grow."""
    needed, limit = byte_size(room.needed_bytes), byte_size(room.limit_bytes)
    sizes = f"memory: {needed} of the {limit} that JAX takes by default of each device"
    if room.needed_bytes >= room.limit_bytes:
        return [f"{sizes}: does not fit: write a smaller num_envs or algo.buffer_size"]
    lines = [sizes, f"  at least num_envs={room.largest_num_envs:,} fits, if all but replay grows with it"]
    if room.largest_buffer_size is not None:
        lines.append(f"  the largest replay that fits beside the rest: algo.buffer_size={room.largest_buffer_size:,}")
    return lines


def cost_facts(costs: Sequence[ProgramCost], rounds: Rounds, target: Target) -> dict[str, Any]:
    """For ``graph.json``: what is not in the programs' own figures."""

    def each(fragments: tuple[str, ...], number: int) -> dict[str, float | None]:
        return {n: kernels_a_round(c, n, number) for c in costs for n in c.fragments if n in fragments}

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
