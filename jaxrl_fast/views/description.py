"""Describes a graph under a placement in plain numbers, from its layouts, shapes and compiled
programs.

Unknown values are None, as are values that need a trace in a run's folder.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jax.stages import Compiled

from jaxrl_fast.core import PyTree
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime.graph import Channels, Fragment, Graph, TrainState
from jaxrl_fast.runtime.layout import channel_axes, homes, lay, over_seeds
from jaxrl_fast.runtime.placements import WORKERS, Placement, divided, shards
from jaxrl_fast.runtime.program_store import Loaded
from jaxrl_fast.views.hlo import ProgramFacts, inspect_program


class Leaf(NamedTuple):
    """One array of a channel, over all seeds.

    Attributes:
        path: Path within the channel, keys joined by points.
        shape: Shape.
        dtype: Dtype.
        size_bytes: Size in bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


class ChannelFacts(NamedTuple):
    """A channel, as read at one age.

    Attributes:
        name: Name of the channel.
        writer: Fragment that writes it.
        readers: Fragments that read it at this age.
        age: Age in ticks, 0 or 1.
        per_round: Whether the readers belong to the writer's cycle, where age 1 is one round.
        leaves: Arrays, or None.
        size_bytes: Bytes of all arrays, over all seeds.
        tick_bytes: Bytes written in a tick, counted once for all readers.
        crossing_bytes: Bytes copied between devices in a tick for these readers.
    """

    name: str
    writer: str
    readers: tuple[str, ...]
    age: int
    per_round: bool
    leaves: tuple[Leaf, ...] | None
    size_bytes: int | None
    tick_bytes: float | None
    crossing_bytes: float | None


class FragmentFacts(NamedTuple):
    """A fragment.

    Attributes:
        name: Name.
        reads: Channels that it reads.
        writes: Channels that it writes.
        group: Index of its group.
        start: First tick in which it steps.
        every: Ticks between its active ticks.
        rounds: Steps in an active tick.
        host: Whether it is Python on the host.
        width: Length of its sharding axes, 0 for none.
        unit: Unit of the axes, such as environments.
        parts: Number of shards of the axes.
        state_bytes: Bytes of its private state, over all seeds.
        acts_there: Whether the processes of its environments select the actions.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    group: int
    start: int
    every: int
    rounds: int
    host: bool
    width: int
    unit: str
    parts: int
    state_bytes: int
    acts_there: bool = False


class GroupFacts(NamedTuple):
    """Fragments that are placed together.

    Attributes:
        fragments: Names of the fragments.
        devices: Devices, such as ``cpu:0``.
        seed_parts: Number of parts into which the devices shard the seeds.
    """

    fragments: tuple[str, ...]
    devices: tuple[str, ...]
    seed_parts: int


class PlacedProgram(NamedTuple):
    """A program of a group.

    Attributes:
        fragments: Fragments that it steps.
        group: Index of the group.
        calls: Calls per tick; less than 1 for several ticks per call.
        facts: XLA's figures, None for fragments in Python.
    """

    fragments: tuple[str, ...]
    group: int
    calls: float
    facts: ProgramFacts | None


class Description(NamedTuple):
    """A graph under a placement.

    Attributes:
        placement: Name of the placement.
        num_seeds: Number of seeds trained at once.
        fragments: Fragments of the graph.
        channels: Channels of the graph.
        groups: Groups of the placement, which fragments and programs refer to by index.
        programs: Programs, empty if none were inspected.
    """

    placement: str
    num_seeds: int
    fragments: tuple[FragmentFacts, ...]
    channels: tuple[ChannelFacts, ...]
    groups: tuple[GroupFacts, ...]
    programs: tuple[PlacedProgram, ...]


def describe(
    graph: Graph,
    placement: Placement,
    state: TrainState,
    num_seeds: int = 1,
    *,
    shapes: Channels | None = None,
    run: Any = None,
    ticks_per_chunk: int = 1,
) -> Description:
    """Describe a graph. Without ``run`` the cost is negligible.

    Args:
        graph: Graph.
        placement: Placement of the graph.
        state: State of the program, or its shapes.
        num_seeds: Number of seeds.
        shapes: Available shapes of channels that do not outlive a tick.
        run: Result of `Program.ready`, to inspect its programs; None for none.
        ticks_per_chunk: Ticks of a chunk.

    Returns:
        The description.
    """
    graph, shapes = divided(graph, placement), {**(shapes or {}), **state.channels}
    group_of = {
        name: index for index, group in enumerate(placement.groups) for name in group.fragments
    }
    fragments = tuple(
        _fragment(f, placement, group_of[f.name], state, num_seeds) for f in graph.fragments
    )
    names = [tuple(f"{d.platform}:{d.id}" for d in group.devices) for group in placement.groups]
    groups = tuple(
        GroupFacts(group.fragments, devices, shards(group, num_seeds)[0])
        for group, devices in zip(placement.groups, names, strict=True)
    )
    programs = [] if run is None else _placed_programs(run, group_of, ticks_per_chunk)
    written = [(writer, name) for writer in graph.fragments for name in writer.writes]
    read = [
        (writer, name, *how)
        for writer, name in written
        for how in _readers(graph, writer, name).items()
    ]
    channels = tuple(
        _channel(graph, w, name, *how, readers, shapes.get(name)) for w, name, how, readers in read
    )
    if programs:
        channels = _with_crossing(channels, graph, placement, shapes, num_seeds, programs)
    return Description(placement.name, num_seeds, fragments, channels, groups, tuple(programs))


def _placed_programs(
    run: Any, group_of: dict[str, int], ticks_per_chunk: int
) -> list[PlacedProgram]:
    parts = compiled_parts(run, tuple(group_of), ticks_per_chunk)
    facts = [
        inspect_program(step, 1 / calls) if isinstance(step, Compiled) else None
        for _, step, calls in parts
    ]
    return [
        PlacedProgram(p[0], group_of[p[0][0]], p[2], f) for p, f in zip(parts, facts, strict=True)
    ]


def _with_crossing(
    channels: tuple[ChannelFacts, ...],
    graph: Graph,
    placement: Placement,
    shapes: Channels,
    num_seeds: int,
    programs: list[PlacedProgram],
) -> tuple[ChannelFacts, ...]:
    """Add the bytes copied between devices to the channels."""
    home, axes = homes(placement, num_seeds), channel_axes(graph)
    crossing = [
        _crossing(c, axes[c.name], shapes.get(c.name), home, num_seeds, programs) for c in channels
    ]
    return tuple(c._replace(crossing_bytes=x) for c, x in zip(channels, crossing, strict=True))


def trace_shapes(graph: Graph, state: TrainState, shapes: Channels, num_seeds: int = 1) -> Channels:
    """Infer the shapes of all channels.

    Tracing the fragments that write unknown channels takes seconds for some environments. Host
    fragments cannot be traced.

    Args:
        graph: Graph.
        state: State of the program, or its shapes.
        shapes: Shapes of channels that need not be inferred.
        num_seeds: Number of seeds.

    Returns:
        Shapes by channel.
    """
    shapes = {**shapes, **state.channels}
    for fragment in graph.fragments:
        if (
            fragment.host
            or set(fragment.writes) <= set(shapes)
            or not set(fragment.reads) <= set(shapes)
        ):
            continue

        def outputs(
            private: PyTree, inputs: Channels, hyper: Any, key: Any, fragment: Fragment = fragment
        ) -> Channels:
            step = graphs.step_of(fragment, jnp.zeros((), jnp.int32))
            return step(private, inputs, graph.hyper_at(hyper, jnp.zeros((), jnp.int32)), key)[1]

        inputs = {channel: shapes[channel] for channel in fragment.reads}
        over = over_seeds(outputs, num_seeds, (0, 0, 0, 0), 0)
        written = jax.eval_shape(over, state.private[fragment.name], inputs, state.hyper, state.key)
        shapes = {**written, **shapes}
    return shapes


def run_shapes(run: Any) -> Channels:
    """Return the compiled shapes of the channels between the programs of a chain.

    Args:
        run: Compiled chunk.

    Returns:
        Shapes by channel, empty if ``run`` is no chain.
    """
    steps = [
        segment.step
        for segment in getattr(run, "segments", ())
        if isinstance(segment.step, Compiled | Loaded)
    ]
    taken = [step.shapes if isinstance(step, Loaded) else step.args_info[0] for step in steps]
    return {
        name: value
        for arguments in taken
        for channels in arguments[1:3]
        for name, value in channels.items()
    }


def plain(value: Any) -> Any:
    """Convert to dictionaries, lists, numbers and texts for JSON; NaN becomes None.

    Args:
        value: Nested NamedTuples, dictionaries, tuples and scalars.

    Returns:
        The converted value.
    """
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def compiled_parts(
    run: Any, names: tuple[str, ...], ticks_per_chunk: int
) -> list[tuple[tuple[str, ...], Any, float]]:
    """List the programs of a chunk.

    Args:
        run: Compiled chunk, one program or a chain.
        names: Names of all fragments.
        ticks_per_chunk: Ticks of a chunk.

    Returns:
        Fragments, program and calls per tick.
    """
    if isinstance(run, Compiled):
        return [(names, run, 1 / ticks_per_chunk)]
    return [
        (tuple(f.name for f in segment.fragments), segment.step, stage.rounds)
        for stage in run.stages
        for segment in stage.segments
    ]


def _fragment(
    fragment: Fragment, placement: Placement, group: int, state: TrainState, num_seeds: int
) -> FragmentFacts:
    parts = shards(placement.groups[group], num_seeds)[1] if fragment.division.width else 1
    size = sum(leaf.size_bytes for leaf in _leaves(state.private[fragment.name]))
    return FragmentFacts(
        name=fragment.name,
        reads=fragment.reads,
        writes=fragment.writes,
        group=group,
        start=fragment.start,
        every=fragment.every,
        rounds=fragment.rounds,
        host=fragment.host,
        width=fragment.division.width,
        unit=fragment.division.unit,
        parts=parts,
        state_bytes=size,
        acts_there=WORKERS in fragment.tags,
    )


def _readers(
    graph: Graph, writer: Fragment, channel: str
) -> dict[tuple[int, bool], tuple[str, ...]]:
    """Return the readers of a channel by age and whether in rounds; an output without readers
    counts, too.
    """
    cycle = next(stage for stage in graphs.stages(graph.fragments) if writer in stage)
    readers: dict[tuple[int, bool], tuple[str, ...]] = {}
    for fragment in graph.fragments:
        if channel in fragment.reads:
            edge = (
                graphs.age_of(graph, fragment.name, channel),
                writer.rounds > 1 and fragment in cycle,
            )
            readers[edge] = (*readers.get(edge, ()), fragment.name)
    return readers or {(0, False): ()}


def _channel(
    graph: Graph,
    writer: Fragment,
    name: str,
    age: int,
    per_round: bool,
    readers: tuple[str, ...],
    shapes: PyTree,
) -> ChannelFacts:
    leaves = None if shapes is None else _leaves(shapes)
    size = None if leaves is None else sum(leaf.size_bytes for leaf in leaves)
    times = (writer.rounds if per_round else 1) / writer.every
    tick_bytes = None if size is None else size * times
    return ChannelFacts(
        name=name,
        writer=writer.name,
        readers=readers,
        age=age,
        per_round=per_round,
        leaves=leaves,
        size_bytes=size,
        tick_bytes=tick_bytes,
        crossing_bytes=None,
    )


def _crossing(
    channel: ChannelFacts,
    axes: Any,
    shapes: PyTree,
    home: Any,
    num_seeds: int,
    programs: list[PlacedProgram],
) -> float | None:
    """Compute the bytes per tick that programs copy from other devices. ``home``: mesh of each
    fragment.
    """
    if channel.leaves is None:
        return None
    here = lay(home[channel.writer], axes, num_seeds)
    total = 0.0
    for program in programs:
        if set(channel.readers) & set(program.fragments):
            there = lay(home[program.fragments[0]], axes, num_seeds)
            total += program.calls * bytes_moved(shapes, here, there)
    return total


def bytes_moved(shapes: PyTree, source: PyTree, target: PyTree) -> int:
    """Compute the bytes that devices of one layout need and do not have in another.

    Args:
        shapes: Pytree of shapes.
        source: Prefix tree of shardings.
        target: Prefix tree of shardings.

    Returns:
        Bytes.
    """
    leaves = jax.tree.leaves(shapes)
    layouts = zip(
        *(jax.tree.leaves(jax.tree.broadcast(layout, shapes)) for layout in (source, target)),
        strict=True,
    )
    return sum(_missing(leaf, *pair) for leaf, pair in zip(leaves, layouts, strict=True))


def _missing(leaf: Any, source: Sharding, target: Sharding) -> int:
    held = source.devices_indices_map(leaf.shape)
    missing = 0
    for device, wanted in target.devices_indices_map(leaf.shape).items():
        box = _box(wanted, leaf.shape)
        common = 0
        if device in held:
            pairs = zip(box, _box(held[device], leaf.shape), strict=True)
            common = math.prod(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in pairs)
        missing += math.prod(stop - start for start, stop in box) - common
    return missing * leaf.dtype.itemsize


def _box(index: Any, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [part.indices(length)[:2] for part, length in zip(index, shape, strict=True)]


def _leaves(tree: PyTree) -> tuple[Leaf, ...]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]
    return tuple(
        Leaf(name, tuple(x.shape), str(x.dtype), math.prod(x.shape) * x.dtype.itemsize)
        for name, x in named
    )


def notes_of(fragment: FragmentFacts, description: Description) -> tuple[str, ...]:
    """Return up to two short lines for a fragment's box, only about unusual properties.

    Args:
        fragment: Fragment.
        description: Description with the fragment.

    Returns:
        Lines.
    """
    whole = fragment.parts == 1 and copies(fragment, description) == 1
    where = () if whole and not fragment.host else (axes_note(fragment, description),)
    return (*where, *(() if time_note(fragment) == "every tick" else (time_note(fragment),)))


def axes_note(fragment: FragmentFacts, description: Description) -> str:
    """Describe the sharding axes of a fragment.

    Args:
        fragment: Fragment.
        description: Description with the fragment.

    Returns:
        Text, such as ``8 rows over 2 devices``.
    """
    axes = f"{fragment.width} {fragment.unit.partition(' (')[0]}" if fragment.width else ""
    if fragment.host:
        where = "rollouts and actions in workers" if fragment.acts_there else "on the host"
        return f"{axes}, {where}" if axes else where
    if fragment.parts > 1:
        return f"{axes} over {fragment.parts} devices"
    same = copies(fragment, description)
    return f"the same on {same} devices" if same > 1 else axes or "none"


def time_note(fragment: FragmentFacts) -> str:
    """Describe the ticks in which a fragment steps.

    Args:
        fragment: Fragment.

    Returns:
        Text, such as ``every tick``.
    """
    often = [f"{fragment.rounds} rounds a tick"] if fragment.rounds > 1 else []
    often += [f"every {fragment.every} ticks"] if fragment.every > 1 else []
    often += [f"from tick {fragment.start}"] if fragment.start else []
    return ", ".join(often) or "every tick"


def copies(fragment: FragmentFacts, description: Description) -> int:
    """Count the devices that replicate a fragment, for each seed.

    Args:
        fragment: Fragment.
        description: Description with the fragment.

    Returns:
        Number of devices.
    """
    group = description.groups[fragment.group]
    return len(group.devices) // group.seed_parts // fragment.parts


def label_of(channel: ChannelFacts) -> str:
    """Describe the size and age of a channel.

    Args:
        channel: Channel.

    Returns:
        Text, "" if there is nothing to describe.
    """
    times = " a round" if channel.per_round else ""
    size = [] if channel.size_bytes is None else [byte_size(channel.size_bytes) + times]
    age = ["one round old" if channel.per_round else "age 1"] if channel.age else []
    return ", ".join(size + age)


def byte_size(number: float | None) -> str:
    """Format a number of bytes in powers of 1000.

    Args:
        number: Bytes, or None if unknown.

    Returns:
        Text, such as ``1.2 MB``, or "?".
    """
    if number is None:
        return "?"
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def device_names(devices: Sequence[str]) -> str:
    """Format names of devices.

    Args:
        devices: Names, such as ``cpu:0``.

    Returns:
        Text, such as ``cpu:0, cpu:1`` or ``cpu:0 to cpu:7``.
    """
    kinds = {device.partition(":")[0] for device in devices}
    numbers = [int(device.partition(":")[2]) for device in devices]
    unbroken = all(b == a + 1 for a, b in pairwise(numbers))
    if len(devices) > 2 and len(kinds) == 1 and unbroken:
        return f"{devices[0]} to {devices[-1]}"
    return ", ".join(devices)


def group_label(group: GroupFacts) -> str:
    """Describe a group's devices and their share of seeds.

    Args:
        group: Group.

    Returns:
        Text.
    """
    seeds = f", seeds in {group.seed_parts} parts" if group.seed_parts > 1 else ""
    return device_names(group.devices) + seeds
