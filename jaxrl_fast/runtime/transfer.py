"""Arrays on devices of some processes only, and their transfer to devices of others.

Every process of a run dispatches the same programs in the same order, except programs in which it
has no device. Their results are *absent* there: arrays with a shape and a sharding but no data.
`move` is the only program with devices on both sides of an edge between processes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxrl_fast.core import PyTree

AXIS = "device"


class Route(NamedTuple):
    """Transfer of an array.

    Attributes:
        shape: Shape of the array.
        dtype: Its type.
        source: Its sharding before.
        target: Its sharding after.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    source: Sharding
    target: Sharding


def is_here(devices: Sequence[jax.Device]) -> bool:
    """Return whether this process drives one of some devices.

    Args:
        devices: Devices.

    Returns:
        True if it does.
    """
    return any(device.process_index == jax.process_index() for device in devices)


def absent(shapes: PyTree, shardings: PyTree) -> PyTree:
    """Return arrays whose data is in other processes.

    Args:
        shapes: Arrays or shapes with dtypes.
        shardings: Shardings, a prefix of ``shapes``.

    Returns:
        Arrays without data.
    """

    def one(shape: Any, sharding: Sharding) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            shape.shape, sharding, [], dtype=shape.dtype
        )

    return jax.tree.map(one, shapes, spread(shardings, shapes))


def passed_over(step: Callable[..., tuple], *layouts: PyTree) -> Callable[..., tuple]:
    """Return a stand-in for a step that only other processes run.

    Args:
        step: ``(private, ...) -> (private, *outputs)``.
        *layouts: Shardings of the outputs.

    Returns:
        A function that returns the private states unchanged, and absent outputs.
    """
    made: list[tuple] = []

    def pass_over(private: PyTree, *arguments: Any) -> tuple:
        if not made:
            shapes = jax.eval_shape(step, private, *arguments)[1:]
            made.append(
                tuple(absent(shape, layout) for shape, layout in zip(shapes, layouts, strict=True))
            )
        return private, *made[0]

    return pass_over


def with_axis(x: jax.Array) -> jax.Array:
    """Compute ``x[None]`` of an array on devices of several processes.

    Args:
        x: Array.

    Returns:
        The array with a leading axis.
    """
    shape, layout = jax.ShapeDtypeStruct((1, *x.shape), x.dtype), x.sharding
    if isinstance(layout, NamedSharding):
        layout = NamedSharding(layout.mesh, PartitionSpec(None, *layout.spec))
    parts = [part.data[None] for part in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape.shape, layout, parts, dtype=shape.dtype)


def spread(prefix: PyTree, tree: PyTree) -> PyTree:
    """Expand a prefix of a tree, such as its shardings, to an entry for each leaf.

    Args:
        prefix: Prefix of ``tree``.
        tree: Tree.

    Returns:
        The entries.
    """
    return jax.tree.map(lambda entry, part: jax.tree.map(lambda _: entry, part), prefix, tree)


def move(tree: PyTree, shardings: PyTree) -> PyTree:
    """Transfer arrays to other shardings, like `jax.device_put`, also between processes.
    Collective.

    Args:
        tree: Arrays.
        shardings: Shardings, a prefix of ``tree``.

    Returns:
        The arrays with these shardings.
    """
    if not shardings:  # the usual case, four calls a tick that take 0.2 ms otherwise
        return tree
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    leaves, structure = jax.tree.flatten(tree)
    across: dict[int, Route] = {}
    for i, target in enumerate(jax.tree.leaves(spread(shardings, tree))):
        route = Route(leaves[i].shape, leaves[i].dtype, leaves[i].sharding, target)
        if between_processes(route):
            across[i] = route
        elif not is_here(tuple(target.device_set)):
            leaves[i] = absent(leaves[i], target)
        else:
            leaves[i] = jax.device_put(leaves[i], target)
    if across:
        moved = _exchange(tuple(across.values()))([leaves[i] for i in across])
        for i, leaf in zip(across, moved, strict=True):
            leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


class Turns:
    """Order of the programs that span processes, which run one after another on CPUs.

    gloo distinguishes two sums only by their order, and a CPU computes independent programs at the
    same time. GPUs run programs in the order of their dispatch.
    """

    def __init__(self) -> None:
        self._last: list[jax.Array] = []

    def wait(self) -> None:
        """Wait for the last program to end, on CPUs."""
        jax.block_until_ready(self._last)
        self._last = []

    def began(self, outputs: PyTree) -> None:
        """Note the outputs of a program, if its next call does not donate them."""
        leaves = jax.tree.leaves(outputs)
        self._last = leaves if leaves and next(iter(leaves[0].devices())).platform == "cpu" else []


turns = Turns()
"""Order of the programs of this process."""


def spans_processes(devices: Sequence[jax.Device]) -> bool:
    """Return whether several processes drive some devices.

    Args:
        devices: Devices.

    Returns:
        True if they do.
    """
    return len({device.process_index for device in devices}) > 1


def compile_move(shapes: PyTree, sources: PyTree, targets: PyTree) -> tuple[jax.Device, ...]:
    """Compile the program that `move` uses for arrays.

    Args:
        shapes: Shapes of the arrays.
        sources: Shardings before, a prefix of ``shapes``.
        targets: Shardings after, a prefix of ``shapes``.

    Returns:
        Devices of the program; empty if no array leaves its process.
    """
    leaves = (
        jax.tree.leaves(tree) for tree in (shapes, spread(sources, shapes), spread(targets, shapes))
    )
    routes = (Route(shape.shape, shape.dtype, *ends) for shape, *ends in zip(*leaves, strict=True))
    across = tuple(route for route in routes if between_processes(route))
    if not across:
        return ()
    _exchange(across)
    return _devices(across)


def between_processes(route: Route) -> bool:
    """Return whether a transfer is between processes.

    Args:
        route: Transfer.

    Returns:
        True if it is.
    """
    if route.source.is_equivalent_to(route.target, len(route.shape)):
        return False
    return spans_processes((*route.source.device_set, *route.target.device_set))


@cache
def _exchange(routes: tuple[Route, ...]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """Compile one program for all transfers, over the devices that have or get any of the arrays.

    Each device gives its share as unsigned integers that are zero elsewhere; the sum over devices
    has every bit of the array.
    """
    devices = _devices(routes)
    local = [device for device in devices if device.process_index == jax.process_index()]
    if not local:
        return lambda leaves: absent(leaves, [route.target for route in routes])
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    # Each device's share differs, although the sharding is replicated; `shard_map` does not check
    # this.
    alike = NamedSharding(mesh, PartitionSpec())

    def exchange(*shares: jax.Array) -> tuple[jax.Array, ...]:
        number = jax.lax.axis_index(AXIS)
        contributions = [
            _give(share, route, devices, number)
            for share, route in zip(shares, routes, strict=True)
        ]
        whole = _add_up(contributions)
        return tuple(
            _take(bits, route, devices, number) for bits, route in zip(whole, routes, strict=True)
        )

    spec = PartitionSpec()
    mapped = jax.shard_map(exchange, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    shares = [
        jax.ShapeDtypeStruct(r.source.shard_shape(r.shape), r.dtype, sharding=alike) for r in routes
    ]
    program = jax.jit(mapped).lower(*shares).compile()
    empty = [
        {
            d: jax.device_put(np.zeros(s.shape, s.dtype), d)
            for d in local
            if d not in route.source.device_set
        }
        for s, route in zip(shares, routes, strict=True)
    ]

    def run(leaves: list[jax.Array]) -> list[jax.Array]:
        inputs = []
        for leaf, share, none in zip(leaves, shares, empty, strict=True):
            here = {**none, **{part.device: part.data for part in leaf.addressable_shards}}
            inputs.append(
                jax.make_array_from_single_device_arrays(
                    share.shape, alike, [here[d] for d in local]
                )
            )
        turns.wait()
        moved = program(*inputs)
        turns.began(moved)
        return [_of(route, taken) for route, taken in zip(routes, moved, strict=True)]

    return run


def _devices(routes: Sequence[Route]) -> tuple[jax.Device, ...]:
    involved = {
        device
        for route in routes
        for sharding in (route.source, route.target)
        for device in sharding.device_set
    }
    return tuple(sorted(involved, key=lambda device: (device.process_index, device.id)))


def _of(route: Route, taken: jax.Array) -> jax.Array:
    """Assemble the array at its target from the results of all devices."""
    wanted = route.target.addressable_devices
    parts = [part.data for part in taken.addressable_shards if part.device in wanted]
    return jax.make_array_from_single_device_arrays(
        route.shape, route.target, parts, dtype=route.dtype
    )


def _give(
    share: jax.Array, route: Route, devices: Sequence[jax.Device], number: jax.Array
) -> jax.Array:
    """Return a device's share as unsigned integers of the whole shape, zero if another device gives
    the same share.
    """
    starts = _starts(route.source, route.shape, devices)
    first = [starts[i] is not None and starts[i] not in starts[:i] for i in range(len(devices))]
    bits = _bits(share)
    bits = jnp.where(jnp.array(first)[number], bits, jnp.zeros_like(bits))
    if share.shape == route.shape:
        return bits
    return jax.lax.dynamic_update_slice(
        jnp.zeros(route.shape, bits.dtype), bits, _at(starts, route.shape, number)
    )


def _take(
    bits: jax.Array, route: Route, devices: Sequence[jax.Device], number: jax.Array
) -> jax.Array:
    size = route.target.shard_shape(route.shape)
    if size != route.shape:
        bits = jax.lax.dynamic_slice(
            bits, _at(_starts(route.target, route.shape, devices), route.shape, number), size
        )
    return _from_bits(bits, route.dtype)


def _starts(
    sharding: Sharding, shape: tuple[int, ...], devices: Sequence[jax.Device]
) -> list[tuple[int, ...] | None]:
    """Return where each device's share of an array begins; None for a device without one."""
    shares = sharding.devices_indices_map(shape)
    return [tuple(part.start or 0 for part in shares[d]) if d in shares else None for d in devices]


def _add_up(shares: list[jax.Array]) -> list[jax.Array]:
    """Sum each array over all devices, with one all-reduce for each dtype."""
    whole = list(shares)
    for dtype in dict.fromkeys(bits.dtype for bits in shares):
        alike = [i for i, bits in enumerate(shares) if bits.dtype == dtype]
        flat = jax.lax.psum(jnp.concatenate([shares[i].reshape(-1) for i in alike]), AXIS)
        for i, part in zip(
            alike, jnp.split(flat, np.cumsum([shares[i].size for i in alike])[:-1]), strict=True
        ):
            whole[i] = part.reshape(shares[i].shape)
    return whole


def _at(
    starts: list[tuple[int, ...] | None], shape: tuple[int, ...], number: jax.Array
) -> list[jax.Array]:
    table = jnp.array([start or (0,) * len(shape) for start in starts], jnp.int32)
    return list(table[number])


def _bits(x: jax.Array) -> jax.Array:
    """Return unsigned integers of a width that every backend sums: 8, 32 or 64 bits."""
    if jnp.issubdtype(x.dtype, jnp.bool_):
        return x.astype(jnp.uint8)
    width = 8 * x.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{width}"))
    return bits.astype(jnp.uint32) if width == 16 else bits


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.bool_):
        return bits.astype(bool)
    narrow = bits.astype(jnp.uint16) if dtype.itemsize == 2 else bits
    return jax.lax.bitcast_convert_type(narrow, dtype)
