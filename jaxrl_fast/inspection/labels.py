"""Short texts on what a description holds, the same in the picture and on the terminal."""

from collections.abc import Sequence
from itertools import pairwise

from jaxrl_fast.inspection.description import ChannelFacts, Description, FragmentFacts, GroupFacts


def notes_of(fragment: FragmentFacts, description: Description) -> tuple[str, ...]:
    """What a box says below its title, in up to two short lines: only what is out of the ordinary."""
    whole = fragment.parts == 1 and copies(fragment, description) == 1
    where = () if whole and not fragment.host else (axes_note(fragment, description),)
    return (*where, *(() if time_note(fragment) == "every tick" else (time_note(fragment),)))


def axes_note(fragment: FragmentFacts, description: Description) -> str:
    """What of a fragment may be divided among devices, and whether it is."""
    axes = f"{fragment.width} {fragment.unit.partition(' (')[0]}" if fragment.width else ""
    if fragment.host:
        return f"{axes}, on the host" if axes else "on the host"
    if fragment.parts > 1:
        return f"{axes} over {fragment.parts} devices"
    same = copies(fragment, description)
    return f"the same on {same} devices" if same > 1 else axes or "none"


def time_note(fragment: FragmentFacts) -> str:
    """When a fragment steps."""
    often = [f"{fragment.rounds} rounds a tick"] if fragment.rounds > 1 else []
    often += [f"every {fragment.every} ticks"] if fragment.every > 1 else []
    often += [f"from tick {fragment.start}"] if fragment.start else []
    return ", ".join(often) or "every tick"


def copies(fragment: FragmentFacts, description: Description) -> int:
    """How many devices step the very same fragment, of each seed."""
    group = description.groups[fragment.group]
    return len(group.devices) // group.seed_parts // fragment.parts


def label_of(channel: ChannelFacts) -> str:
    """What a line says of its channel besides the name: size and age."""
    times = " a round" if channel.per_round else ""
    size = [] if channel.size_bytes is None else [byte_size(channel.size_bytes) + times]
    age = ["one round old" if channel.per_round else "age 1"] if channel.age else []
    return ", ".join(size + age)


def byte_size(number: float | None) -> str:
    """Bytes as a person reads them, in powers of 1000: ``1.2 MB``; "?" for None, which is not known."""
    if number is None:
        return "?"
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def device_names(devices: Sequence[str]) -> str:
    """Devices in few words: ``cpu:0, cpu:1`` or ``cpu:0 to cpu:7``."""
    kinds = {device.partition(":")[0] for device in devices}
    numbers = [int(device.partition(":")[2]) for device in devices]
    unbroken = all(b == a + 1 for a, b in pairwise(numbers))
    if len(devices) > 2 and len(kinds) == 1 and unbroken:
        return f"{devices[0]} to {devices[-1]}"
    return ", ".join(devices)


def group_label(group: GroupFacts) -> str:
    """A group's devices, and what they do with several seeds."""
    seeds = f", seeds in {group.seed_parts} parts" if group.seed_parts > 1 else ""
    return device_names(group.devices) + seeds
