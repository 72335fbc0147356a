"""Slots: the members of one compiled program, side by side along the seeds' axis.

A member's numbers depend neither on its slot nor on the others': its state has its random key, its
rates, and, if members may begin at different times, its tick. Members move between slots and the
host's memory as named arrays.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import PyTree
from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.graph import Graph, TrainState
from jaxrl_fast.runtime.hosts import from_named, named
from jaxrl_fast.runtime.layout import OWN_TICKS, SEED_AXES, RunChunk
from jaxrl_fast.runtime.placements import REPLAY, SAMPLING
from jaxrl_fast.training.job import MAX_CHUNK_STEPS, Job

Arrays = dict[str, np.ndarray]
"""A member's state in the host's memory, by name; PRNG keys as numbers."""


class Slots(NamedTuple):
    """A compiled program of several members, and the functions that move them.

    Attributes:
        job: Job of the program; its number of seeds is the number of slots.
        program: The program.
        ticks_per_chunk: Ticks of one call of the program.
        own_ticks: Whether members may begin at different times.
    """

    job: Job
    program: programs.Program
    ticks_per_chunk: int
    own_ticks: bool

    @property
    def number(self) -> int:
        """Number of slots."""
        return self.job.num_seeds


def make_slots(job: Job, segment_ticks: int, *, own_ticks: bool) -> Slots:
    """Build the program of a job for members.

    Args:
        job: Job with one seed a slot.
        segment_ticks: Ticks between two comparisons of members, a multiple of the ticks of a chunk.
        own_ticks: Whether members may begin at different times.

    Returns:
        The slots.
    """
    most = max(1, MAX_CHUNK_STEPS // (job.plan.steps_per_tick * job.num_seeds))
    ticks = max(n for n in range(1, segment_ticks + 1) if segment_ticks % n == 0 and n <= most)
    separate_ticks = own_ticks and job.num_seeds > 1
    program = programs.compile(
        job.graph, job.placement, ticks, job.num_seeds, OWN_TICKS if separate_ticks else SEED_AXES
    )
    return Slots(job, program, ticks, separate_ticks)


def member_key(seed: int) -> jax.Array:
    """Return the random key of a member, the same as of a run alone with this seed.

    Args:
        seed: Seed.

    Returns:
        A key.
    """
    return jax.random.split(jax.random.key(seed), 1)[0]


def member_bytes(job: Job) -> tuple[int, int]:
    """Return the size of a member's state, without computing it.

    Args:
        job: Job with any number of seeds.

    Returns:
        Bytes of the whole state, and of the replay buffer in it.
    """
    one = programs.compile(job.graph, job.placement, 1, 1)
    state = jax.eval_shape(one.init, jax.eval_shape(lambda: job.keys[:1]), job.algorithm.hyper)
    refills = [f.name for f in job.graph.fragments if REPLAY in f.tags]
    replay = sum(_size(state.private[name]) for name in refills)
    return _size(state), replay


def _size(tree: PyTree) -> int:
    return sum(
        leaf.size * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if leaf.dtype != jax.dtypes.float0
    )


def rates_of(hypers: Sequence[Any]) -> Any:
    """Stack the hyper-parameters of members.

    Args:
        hypers: Hyper-parameters of each member, numbers or schedules of equal kinds.

    Returns:
        Leaves ``[S, ...]``, float32.
    """
    return jax.tree.map(
        lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *hypers
    )


class CompiledSlots(NamedTuple):
    """A compiled program.

    Attributes:
        init: ``(keys [S]) -> state``, with the rates of the algorithm.
        run: As in `Program`.
    """

    init: Any
    run: RunChunk


def compile_slots(slots: Slots) -> CompiledSlots:
    """Compile the programs of slots, once.

    Args:
        slots: Slots.

    Returns:
        The programs.
    """
    hyper = slots.job.algorithm.hyper
    init, run = slots.program.ready(slots.job.keys, hyper)
    return CompiledSlots(lambda keys: init(keys, hyper), run)


def begin(
    slots: Slots, ready: CompiledSlots, seeds: Sequence[int], hypers: Sequence[Any]
) -> TrainState:
    """Make the first state of a member in every slot.

    Args:
        slots: Slots.
        ready: Compiled programs.
        seeds: Seed of each slot.
        hypers: Hyper-parameters of each slot.

    Returns:
        The state.
    """
    keys = jnp.stack([member_key(seed) for seed in seeds])
    return with_rates(slots, ready.init(keys), hypers)


def with_rates(slots: Slots, state: TrainState, hypers: Sequence[Any]) -> TrainState:
    """Replace the rates of all members.

    Args:
        slots: Slots.
        state: State.
        hypers: Hyper-parameters of each slot.

    Returns:
        The state.
    """
    stacked = rates_of(hypers)
    if slots.number == 1:
        stacked = jax.tree.map(lambda leaf: leaf[0], stacked)
    old = jax.tree.leaves(state.hyper)[0].sharding
    return state._replace(hyper=hosts.copy(hosts.put(stacked, old)))


def merged(slots: Slots, state: TrainState, fresh: TrainState, new: Sequence[bool]) -> TrainState:
    """Put new members into some slots; a tick that all share stays.

    Args:
        slots: Slots.
        state: State of the members that stay.
        fresh: State with a new member in every slot.
        new: Whether a slot gets its new member, ``[S]``.

    Returns:
        The state.
    """
    if all(new):
        return fresh
    return _merge(state, fresh, np.asarray(new))


@jax.jit
def _merge(state: TrainState, fresh: TrainState, new: jax.Array) -> TrainState:
    def choose(old: jax.Array, other: jax.Array) -> jax.Array:
        return (
            jnp.where(new.reshape(new.shape + (1,) * (old.ndim - 1)), other, old)
            if old.ndim
            else old
        )

    return jax.tree.map(choose, state, fresh)


MEASURED_S = 1.0
"""Duration of a measurement in seconds."""


def seconds_of_member(slots: Slots, ready: CompiledSlots) -> float:
    """Measure what a member costs in this program.

    Args:
        slots: Slots.
        ready: Compiled programs.

    Returns:
        Seconds of a tick, divided by the number of slots.
    """
    state = begin(slots, ready, range(slots.number), [slots.job.algorithm.hyper] * slots.number)
    state, _ = ready.run(state)
    jax.block_until_ready(state)
    began, chunks = time.perf_counter(), 0
    while time.perf_counter() - began < MEASURED_S:
        state, metrics = ready.run(state)
        hosts.to_host(metrics)
        chunks += 1
    return (time.perf_counter() - began) / (chunks * slots.ticks_per_chunk * slots.number)


def take(slots: Slots, state: TrainState, slot: int) -> Arrays:
    """Copy a member to the host. Collective.

    Args:
        slots: Slots.
        state: State.
        slot: Number of its slot.

    Returns:
        Its arrays.
    """
    leaves = named(state)
    axis = {name: _has_axis(slots, name) for name in leaves}
    if not hosts.is_alone():  # other processes have some of the slots
        leaves = hosts.to_host(leaves)
    picked = {name: leaf[slot] if axis[name] else leaf for name, leaf in leaves.items()}
    return {
        name: np.array(hosts.to_host(leaf) if hosts.is_alone() else leaf)
        for name, leaf in picked.items()
    }


def put(slots: Slots, state: TrainState, members: Mapping[int, Arrays]) -> TrainState:
    """Put members from the host into slots.

    Args:
        slots: Slots.
        state: State of the others.
        members: Arrays of each member by slot.

    Returns:
        The state.
    """
    if not members:
        return state
    leaves = {name: np.array(hosts.to_host(leaf)) for name, leaf in named(state).items()}
    for (slot, arrays), name in itertools.product(members.items(), leaves):
        if _has_axis(slots, name):
            leaves[name][slot] = arrays[name]
        else:
            leaves[name] = arrays[name]
    return placed(slots, state, leaves)


def _has_axis(slots: Slots, name: str) -> bool:
    return slots.number > 1 and (slots.own_ticks or name != "tick")


def placed(slots: Slots, template: TrainState, arrays: Mapping[str, np.ndarray]) -> TrainState:
    """Put a whole state from a file on the devices.

    Args:
        slots: Slots.
        template: State of the same structure.
        arrays: Arrays by name.

    Returns:
        The state. It is copied, since a CPU device may use the memory of a NumPy array, which a
        chunk overwrites.
    """
    return hosts.copy(slots.program.place(from_named(template, arrays)))


def named_marks(marked: TrainState) -> dict[str, bool]:
    """Return the marks of `copied` by name of the array.

    Args:
        marked: Marks.

    Returns:
        Marks by name.
    """
    leaves = jax.tree_util.tree_leaves_with_path(marked)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def named_rates(hyper: Any) -> Arrays:
    """Return the rates of a member by the names of `named`.

    Args:
        hyper: Hyper-parameters, numbers or schedules.

    Returns:
        Arrays by name.
    """
    leaves = jax.tree_util.tree_leaves_with_path({"hyper": hyper})
    names = [
        f"hyper.{jax.tree_util.keystr(path[1:], simple=True, separator='.')}" for path, _ in leaves
    ]
    return {
        name: np.asarray(leaf, np.float32) for name, (_, leaf) in zip(names, leaves, strict=True)
    }


def copied(graph: Graph, state: TrainState, *, replay: bool) -> TrainState:
    """Mark what a member takes over from the one that it copies.

    It takes parameters, optimizers and statistics: whatever belongs to no environment. Its random
    key, its tick, its environments and, unless asked for, its replay buffer stay.

    Args:
        graph: Graph of the run.
        state: State, for its structure.
        replay: Whether the replay buffer is copied, too.

    Returns:
        A bool for each array.
    """

    def whole(tree: PyTree, value: bool) -> PyTree:
        return jax.tree.map(lambda leaf: value, tree)

    def by_axes(axes: PyTree, tree: PyTree) -> PyTree:
        unsharded = jax.tree.map(lambda axis: axis is None, axes, is_leaf=lambda axis: axis is None)
        return jax.tree.broadcast(unsharded, tree)

    fragments = {f.name: f for f in graph.fragments}
    writer = {c: f for f in graph.fragments for c in f.writes}
    private = {}
    for name, part in state.private.items():
        tags = fragments[name].tags
        fixed = False if SAMPLING in tags else replay if REPLAY in tags else None
        private[name] = (
            by_axes(fragments[name].division.private, part) if fixed is None else whole(part, fixed)
        )
    channels = {}
    for name, part in state.channels.items():
        f = writer[name]
        channels[name] = (
            whole(part, False) if SAMPLING in f.tags else by_axes(f.division.writes.get(name), part)
        )
    rest = {field: whole(getattr(state, field), False) for field in ("hyper", "tick", "key")}
    return TrainState(private, channels, **rest)


def adopt(
    state: TrainState, marked: TrainState, targets: Sequence[int], sources: Sequence[int]
) -> TrainState:
    """Let members continue as copies of others.

    Only the copied members move between devices.

    Args:
        state: State with several slots.
        marked: Marks of `copied`.
        targets: Slots of the members that are replaced.
        sources: Slots of the members that are copied.

    Returns:
        The state.
    """
    chosen = [
        leaf
        for leaf, mark in zip(jax.tree.leaves(state), jax.tree.leaves(marked), strict=True)
        if mark
    ]
    after = iter(_adopt(chosen, np.asarray(targets), np.asarray(sources)))
    return jax.tree.map(lambda leaf, mark: next(after) if mark else leaf, state, marked)


@jax.jit
def _adopt(leaves: list[jax.Array], targets: np.ndarray, sources: np.ndarray) -> list[jax.Array]:
    return [leaf.at[targets].set(leaf[sources]) for leaf in leaves]
