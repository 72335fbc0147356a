"""What a program would cost on a device that is not here: launches, work, traffic, memory, and a band of time.

The band is no forecast. Each kernel is taken to last as long as XLA's model of the device says, and at least as long as
a launch; that floor is not known without the device, so it is given for several values.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jax.stages import Compiled

from jaxrl_fast.inspection.hlo import Collective, find_collectives, program_bytes
from jaxrl_fast.targets.chips import Chip
from jaxrl_fast.targets.hlo_instructions import Text, read_text, trip_count
from jaxrl_fast.targets.kernels import Kernel, kernels_of
from jaxrl_fast.targets.thunks import Launches, count_launches

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
    """Read a program that is called ``calls`` times a tick; ``dumped``: what `dumps.find_dump` found of it."""
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
