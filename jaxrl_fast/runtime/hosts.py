"""Operations of the processes of one run: reading and placing arrays that are spread over them, and
agreeing.

In a single process they do nothing special. A *collective* function must be called by every
process, in the same order. `jaxrl_fast.runtime.cluster` connects and ends processes.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_fast.core import PyTree
from jaxrl_fast.runtime.transfer import absent

PLACEMENT = "data_parallel"
"""Default placement of several processes."""
WITHIN_ONE = ("fused", "central_inference", "worker_acting")
"""Placements on one device."""
LEAST_BYTES, MOST_PADDED = 4_096, 1_048_576
"""Bounds in bytes between which summed data is padded to a power of two."""


def is_first() -> bool:
    """Return whether this is process 0, the only one that writes files and prints.

    Returns:
        True in process 0.
    """
    return jax.process_index() == 0


def is_alone() -> bool:
    """Return whether there is only one process.

    Returns:
        True with one process.
    """
    return jax.process_count() == 1


def devices(count: int | None) -> list[jax.Device]:
    """Return the first devices, equally many of each process.

    Args:
        count: Number of devices over all processes; None for all.

    Returns:
        The devices.

    Raises:
        ValueError: There are too few devices, or they cannot be shared evenly.
    """
    available = jax.devices()
    if count is not None and not 1 <= count <= len(available):
        raise ValueError(
            f"devices={count}: JAX has {len(available)} here, write a number from 1 to {len(available)}"
        )
    return available[:count] if is_alone() else _of_each_process(available, count)


def _of_each_process(available: list[jax.Device], count: int | None) -> list[jax.Device]:
    share = share_of(count or len(available), jax.process_count())
    by_process = (
        [d for d in available if d.process_index == p] for p in range(jax.process_count())
    )
    return [device for devices in by_process for device in devices[:share]]


def share_of(devices: int, num_processes: int) -> int:
    """Return how many devices each process has.

    Args:
        devices: Devices over all processes.
        num_processes: Number of processes.

    Returns:
        Devices per process.

    Raises:
        ValueError: The devices cannot be shared evenly.
    """
    if devices % num_processes:
        raise ValueError(
            f"devices={devices} cannot be shared evenly by {num_processes} processes: write a multiple of "
            f"{num_processes}, for all of them together"
        )
    return devices // num_processes


def check_placement(name: str, groups: Sequence[Sequence[jax.Device]]) -> None:
    """Check that a placement gives every process work.

    Args:
        name: Name of the placement.
        groups: Devices of its groups.

    Raises:
        ValueError: A process has no device.
    """
    busy = {device.process_index for group in groups for device in group}
    idle = [process for process in range(jax.process_count()) if process not in busy]
    if len(busy) == 1 and idle:
        raise ValueError(refusal(name, jax.process_count()))
    if idle:
        raise ValueError(
            f"placement={name} leaves process {idle[0]} of {jax.process_count()} without work: write "
            f"placement={PLACEMENT}, another devices=..., or fewer processes"
        )


def refusal(placement: str, num_processes: int) -> str:
    """Return the error message for a placement that does not span processes.

    Args:
        placement: Name of the placement.
        num_processes: Number of processes.

    Returns:
        The message.
    """
    return (
        f"placement={placement} stays within one process: write placement={PLACEMENT}, which spans the "
        f"{num_processes} of this run"
    )


def join() -> None:
    """Wait until all processes have called this. Collective."""
    if not is_alone():
        with _hidden_gloo():
            highest(0)


def connect(groups: Iterable[Sequence[jax.Device]]) -> None:
    """Connect the devices of each group before they are timed. Collective.

    Args:
        groups: Devices of each group.
    """
    for devices in dict.fromkeys(tuple(group) for group in groups):
        local = [device for device in devices if device.process_index == jax.process_index()]
        if local and len({device.process_index for device in devices}) > 1:
            mesh = Mesh(devices, ("device",))
            rows = jax.make_array_from_callback(
                (len(devices), 1),
                NamedSharding(mesh, PartitionSpec("device")),
                lambda index: np.zeros((1, 1), np.uint8),
            )
            with _hidden_gloo():
                jax.block_until_ready(_sum_rows(rows, NamedSharding(mesh, PartitionSpec())))


def require_one(what: str, num_processes: int) -> None:
    """Check that a run has a single process.

    Args:
        what: Feature that works in a single process only, for the message.
        num_processes: Number of processes.

    Raises:
        ValueError: There are several processes.
    """
    if num_processes > 1:
        raise ValueError(
            f"{what} works in a single process only, not in {num_processes}: write distributed=off"
        )


def any_process(flag: bool) -> bool:
    """Return whether a flag is set in any process. Collective.

    Args:
        flag: Flag of this process.

    Returns:
        True if one is set.
    """
    return bool(highest(int(flag)))


def highest(number: int) -> int:
    """Return the maximum of the processes' numbers. Collective.

    Args:
        number: Number of this process, an int32.

    Returns:
        The maximum.
    """
    return number if is_alone() else int(multihost_utils.process_allgather(np.int32(number)).max())


def from_first(tree: PyTree) -> PyTree:
    """Broadcast process 0's arrays. Collective.

    Args:
        tree: Arrays, of equal shapes in every process.

    Returns:
        Process 0's arrays.
    """
    return tree if is_alone() else multihost_utils.broadcast_one_to_all(tree)


def to_host(tree: PyTree) -> PyTree:
    """Fetch a run's arrays, on any devices of any processes, as NumPy arrays in every process.
    Collective.

    Args:
        tree: Arrays.

    Returns:
        NumPy arrays.
    """
    return jax.device_get(tree) if is_alone() else _gather(tree)


def _gather(tree: PyTree) -> PyTree:
    def whole(leaf: Any) -> np.ndarray:
        if not isinstance(leaf, jax.Array):
            return np.asarray(leaf)
        devices: set[Any] = leaf.sharding.device_set
        if len({device.process_index for device in devices}) < jax.process_count():
            return add_up(own_share(leaf))
        return (
            np.asarray(leaf)
            if leaf.is_fully_replicated
            else multihost_utils.process_allgather(leaf, tiled=True)
        )

    return jax.tree.map(whole, tree)


def own_copy(tree: PyTree) -> PyTree:
    """Return this process's copy of arrays that every process has (`everywhere`).

    Args:
        tree: Arrays.

    Returns:
        The arrays on this process's device.
    """
    return tree if is_alone() else jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def own_shares(tree: PyTree) -> PyTree:
    """Fetch this process's shares of arrays together (`own_share`).

    Args:
        tree: Arrays.

    Returns:
        NumPy arrays.
    """
    if is_alone():
        return jax.device_get(tree)
    for leaf in jax.tree.leaves(tree):
        for part in leaf.addressable_shards:
            part.data.copy_to_host_async()
    return jax.tree.map(own_share, tree)


def own_share(leaf: jax.Array) -> np.ndarray:
    """Fetch this process's share of an array.

    Args:
        leaf: Array.

    Returns:
        NumPy array of the whole shape, zero outside this process's share.
    """
    share = np.zeros(leaf.shape, leaf.dtype)
    for part in leaf.addressable_shards:
        if part.replica_id == 0:
            share[part.index] = np.asarray(part.data)
    return share


def add_up(tree: PyTree) -> PyTree:
    """Sum the NumPy arrays of all processes. Collective.

    Each number must be nonzero in at most one process, so that the sum of the bytes is exact.

    Args:
        tree: NumPy arrays.

    Returns:
        The sums.
    """
    if is_alone():
        return tree
    leaves, structure = jax.tree.flatten(tree)
    data = b"".join(leaf.tobytes() for leaf in leaves)
    few = max(LEAST_BYTES, 1 << (len(data) - 1).bit_length())  # few sizes, so few programs
    row = np.zeros((1, few if few <= MOST_PADDED else len(data)), np.uint8)
    row[0, : len(data)] = np.frombuffer(data, np.uint8)
    mesh = _one_device_each()
    rows = jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("process")), row
    )
    total = _sum_rows(rows, NamedSharding(mesh, PartitionSpec())).addressable_data(0)
    parts = np.split(np.asarray(total), np.cumsum([leaf.nbytes for leaf in leaves]))[:-1]
    whole = [
        part.view(leaf.dtype).reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, whole)


def everywhere() -> NamedSharding:
    """Return the sharding of arrays that every process has: a copy on one device of each.

    Returns:
        The sharding.
    """
    return NamedSharding(_one_device_each(), PartitionSpec())


def put(tree: PyTree, shardings: PyTree) -> PyTree:
    """Transfer arrays that every process has to devices of any process.

    Arrays that already have the sharding are not copied.

    Args:
        tree: Arrays.
        shardings: Shardings, a prefix of ``tree``.

    Returns:
        The arrays on these devices.
    """
    if is_alone():
        return jax.device_put(tree, shardings)
    return jax.tree.map(
        lambda sharding, part: jax.tree.map(lambda x: _put(x, sharding), part), shardings, tree
    )


def copy(tree: PyTree) -> PyTree:
    """Copy arrays on their devices.

    Args:
        tree: Arrays.

    Returns:
        The copies.
    """

    def copied(leaf: Any) -> Any:
        elsewhere = isinstance(leaf, jax.Array) and not leaf.sharding.addressable_devices
        return leaf if elsewhere else jnp.copy(leaf)

    return jax.tree.map(copied, tree)


def decide(make: Callable[[], str]) -> str:
    """Compute a value in process 0, and return it in all. Collective.

    Args:
        make: Computes the value; its ``ValueError`` is raised in all processes.

    Returns:
        The value.

    Raises:
        ValueError: ``make`` raised it.
    """
    return make() if is_alone() else _decide_for_all(make)


def _decide_for_all(make: Callable[[], str]) -> str:
    value = error = ""
    if is_first():
        try:
            value = make()
        except ValueError as found:
            error = str(found)
    value, error = json.loads(_texts(json.dumps([value, error]))[0])
    if error:
        raise ValueError(error)
    return value


def check_agreement(settings: Mapping[str, Any]) -> None:
    """Check that all processes have equal settings. Collective.

    Args:
        settings: Settings of this process.

    Raises:
        ValueError: A setting differs; raised in every process, with the first such setting.
    """
    everyone = [
        json.loads(text)
        for text in _texts(json.dumps({**settings, "JAX": jax.__version__}, default=str))
    ]
    for process, theirs in enumerate(everyone):
        for key in {**everyone[0], **theirs}:
            if theirs.get(key) != everyone[0].get(key):
                raise ValueError(
                    f"process {process} was started with {key}={theirs.get(key)}, process 0 with "
                    f"{key}={everyone[0].get(key)}: start all of them with the same command"
                )


@contextmanager
def _hidden_gloo() -> Iterator[None]:
    """Hide gloo's output about a new connection; `cluster.describe_devices` contains the same."""
    sys.stdout.flush()
    shown, hidden = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(hidden, 1)
        yield
    finally:
        os.dup2(shown, 1)
        os.close(shown)
        os.close(hidden)


@partial(jax.jit, static_argnums=1)
def _sum_rows(rows: jax.Array, layout: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.sum(rows, axis=0, dtype=rows.dtype), layout)


@cache
def _one_device_each() -> Mesh:
    processes = range(jax.process_count())
    return Mesh(
        [next(d for d in jax.devices() if d.process_index == p) for p in processes], ("process",)
    )


def _put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if not sharding.addressable_devices:
        return absent(leaf, sharding)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf)
        )
    array = np.asarray(leaf)
    # Copied, because on a CPU two devices may use the memory of one NumPy array directly.
    return jax.make_array_from_callback(array.shape, sharding, lambda index: np.array(array[index]))


def _texts(text: str) -> list[str]:
    """Return the text of every process."""
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def named(state: PyTree) -> dict[str, Any]:
    """Return a state's arrays by name, PRNG keys as numbers.

    Args:
        state: State.

    Returns:
        Arrays by name.
    """
    return {
        name_of(path): as_numbers(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def from_named(template: PyTree, arrays: Mapping[str, Any]) -> PyTree:
    """Undo `named`.

    Args:
        template: State of the same structure.
        arrays: Arrays by name.

    Returns:
        The state.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: from_numbers(leaf, arrays[name_of(path)]), template
    )


def name_of(path: tuple) -> str:
    """Return the name of an array of a state.

    Args:
        path: Path in the tree.

    Returns:
        Its parts, joined by points.
    """
    return jax.tree_util.keystr(path, simple=True, separator=".")


def as_numbers(leaf: Any) -> Any:
    """Return an array, of a PRNG key its numbers.

    Args:
        leaf: Array or keys.

    Returns:
        An array.
    """
    return (
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )


def from_numbers(leaf: Any, array: Any) -> Any:
    """Undo `as_numbers`.

    Args:
        leaf: Array or keys of the same kind.
        array: Array.

    Returns:
        Keys if ``leaf`` is keys, else the array.
    """
    if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return array
    return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
