"""Arrays that lie on devices of some processes only, and how they come to devices of others.

Every process of a run dispatches the same programs in the same order, but for those in which it has no device: what
these give is *absent* there, an array with a shape and a place but no numbers. `move` is the one program that has
devices on both sides of an edge between processes.
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
    """An array's ``shape`` and ``dtype``, where it lies (``source``) and where it goes (``target``)."""

    shape: tuple[int, ...]
    dtype: np.dtype
    source: Sharding
    target: Sharding


def is_here(devices: Sequence[jax.Device]) -> bool:
    """Whether this process drives one of these devices."""
    return any(device.process_index == jax.process_index() for device in devices)


def absent(shapes: PyTree, shardings: PyTree) -> PyTree:
    """Arrays (with shapes and dtypes like those of ``shapes``) whose numbers lie in other processes; ``shardings`` is a
    prefix of ``shapes``."""

    def one(shape: Any, sharding: Sharding) -> jax.Array:
        return jax.make_array_from_single_device_arrays(shape.shape, sharding, [], dtype=shape.dtype)

    return jax.tree.map(one, shapes, spread(shardings, shapes))


def passed_over(step: Callable[..., tuple], *layouts: PyTree) -> Callable[..., tuple]:
    """A ``step`` of other processes, ``(private, ...) -> (private, *outputs)``, as this one makes it: private states
    stay as they are here, and the outputs, with these ``layouts``, are absent."""
    made: list[tuple] = []

    def pass_over(private: PyTree, *arguments: Any) -> tuple:
        if not made:
            shapes = jax.eval_shape(step, private, *arguments)[1:]
            made.append(tuple(absent(own, layout) for own, layout in zip(shapes, layouts, strict=True)))
        return private, *made[0]

    return pass_over


def with_axis(x: jax.Array) -> jax.Array:
    """``x[None]`` of an array that lies on devices of several processes."""
    shape, layout = jax.ShapeDtypeStruct((1, *x.shape), x.dtype), x.sharding
    if isinstance(layout, NamedSharding):
        layout = NamedSharding(layout.mesh, PartitionSpec(None, *layout.spec))
    parts = [part.data[None] for part in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(shape.shape, layout, parts, dtype=shape.dtype)


def spread(prefix: PyTree, tree: PyTree) -> PyTree:
    """A prefix of a tree, such as its shardings, with an entry for each leaf."""
    return jax.tree.map(lambda entry, part: jax.tree.map(lambda _: entry, part), prefix, tree)


def move(tree: PyTree, shardings: PyTree) -> PyTree:
    """Arrays laid out anew, as by `jax.device_put`, from process to process too; ``shardings`` is a prefix of ``tree``.
    Collective."""
    if not shardings:  # most often: four calls a tick, 0.2 ms of it
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
    """Programs that span processes, one after another on CPUs: gloo knows two sums apart only by their order, and a CPU
    computes at the same time what does not wait for each other. On GPUs programs keep the order of their dispatch."""

    def __init__(self) -> None:
        self._last: list[jax.Array] = []

    def wait(self) -> None:
        """Wait for the last of them to end, where it matters."""
        jax.block_until_ready(self._last)
        self._last = []

    def began(self, outputs: PyTree) -> None:
        """Note what a program will give, if its next call does not donate it."""
        leaves = jax.tree.leaves(outputs)
        self._last = leaves if leaves and next(iter(leaves[0].devices())).platform == "cpu" else []


turns = Turns()
"""Those of this process."""


def spans_processes(devices: Sequence[jax.Device]) -> bool:
    """Whether they are driven by several processes."""
    return len({device.process_index for device in devices}) > 1


def compile_move(shapes: PyTree, sources: PyTree, targets: PyTree) -> tuple[jax.Device, ...]:
    """Compile what `move` will need for such arrays. Returns the devices that it has, none if no array leaves its
    process."""
    leaves = (jax.tree.leaves(tree) for tree in (shapes, spread(sources, shapes), spread(targets, shapes)))
    routes = (Route(shape.shape, shape.dtype, *ends) for shape, *ends in zip(*leaves, strict=True))
    across = tuple(route for route in routes if between_processes(route))
    if not across:
        return ()
    _exchange(across)
    return _devices(across)


def between_processes(route: Route) -> bool:
    """Whether an array's way leads from process to process."""
    if route.source.is_equivalent_to(route.target, len(route.shape)):
        return False
    return spans_processes((*route.source.device_set, *route.target.device_set))


@cache
def _exchange(routes: tuple[Route, ...]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """One program for all these arrays, over the devices that have or get any of them: each gives its own share, as
    whole numbers that are zero elsewhere, and the sum of all is every bit of the array."""
    devices = _devices(routes)
    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        return lambda leaves: absent(leaves, [route.target for route in routes])
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    # Each device's share differs, though the layout says that they are alike: inside of `shard_map` nothing asks.
    alike = NamedSharding(mesh, PartitionSpec())

    def exchange(*shares: jax.Array) -> tuple[jax.Array, ...]:
        number = jax.lax.axis_index(AXIS)
        given = [_give(share, route, devices, number) for share, route in zip(shares, routes, strict=True)]
        whole = _add_up(given)
        return tuple(_take(bits, route, devices, number) for bits, route in zip(whole, routes, strict=True))

    spec = PartitionSpec()
    mapped = jax.shard_map(exchange, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    shares = [jax.ShapeDtypeStruct(r.source.shard_shape(r.shape), r.dtype, sharding=alike) for r in routes]
    program = jax.jit(mapped).lower(*shares).compile()
    empty = [
        {d: jax.device_put(np.zeros(s.shape, s.dtype), d) for d in own if d not in route.source.device_set}
        for s, route in zip(shares, routes, strict=True)
    ]

    def run(leaves: list[jax.Array]) -> list[jax.Array]:
        given = []
        for leaf, share, none in zip(leaves, shares, empty, strict=True):
            here = {**none, **{part.device: part.data for part in leaf.addressable_shards}}
            given.append(jax.make_array_from_single_device_arrays(share.shape, alike, [here[d] for d in own]))
        turns.wait()
        moved = program(*given)
        turns.began(moved)
        return [_of(route, taken) for route, taken in zip(routes, moved, strict=True)]

    return run


def _devices(routes: Sequence[Route]) -> tuple[jax.Device, ...]:
    found = {device for route in routes for sharding in (route.source, route.target) for device in sharding.device_set}
    return tuple(sorted(found, key=lambda device: (device.process_index, device.id)))


def _of(route: Route, taken: jax.Array) -> jax.Array:
    """The array at its target, out of what every device of the exchange was given."""
    wanted = route.target.addressable_devices
    parts = [part.data for part in taken.addressable_shards if part.device in wanted]
    return jax.make_array_from_single_device_arrays(route.shape, route.target, parts, dtype=route.dtype)


def _give(share: jax.Array, route: Route, devices: Sequence[jax.Device], number: jax.Array) -> jax.Array:
    """A device's share as whole numbers in an array of the whole shape, zeros where another device gives the same."""
    starts = _starts(route.source, route.shape, devices)
    first = [starts[i] is not None and starts[i] not in starts[:i] for i in range(len(devices))]
    bits = _bits(share)
    bits = jnp.where(jnp.array(first)[number], bits, jnp.zeros_like(bits))
    if share.shape == route.shape:
        return bits
    return jax.lax.dynamic_update_slice(jnp.zeros(route.shape, bits.dtype), bits, _at(starts, route.shape, number))


def _take(bits: jax.Array, route: Route, devices: Sequence[jax.Device], number: jax.Array) -> jax.Array:
    size = route.target.shard_shape(route.shape)
    if size != route.shape:
        bits = jax.lax.dynamic_slice(bits, _at(_starts(route.target, route.shape, devices), route.shape, number), size)
    return _from_bits(bits, route.dtype)


def _starts(sharding: Sharding, shape: tuple[int, ...], devices: Sequence[jax.Device]) -> list[tuple[int, ...] | None]:
    """Where each device's share of an array begins; None for a device without one."""
    shares = sharding.devices_indices_map(shape)
    return [tuple(part.start or 0 for part in shares[d]) if d in shares else None for d in devices]


def _add_up(given: list[jax.Array]) -> list[jax.Array]:
    """The sum over all devices of each array: one all-reduce for each dtype, whatever their number."""
    whole = list(given)
    for dtype in dict.fromkeys(bits.dtype for bits in given):
        alike = [i for i, bits in enumerate(given) if bits.dtype == dtype]
        flat = jax.lax.psum(jnp.concatenate([given[i].reshape(-1) for i in alike]), AXIS)
        for i, part in zip(alike, jnp.split(flat, np.cumsum([given[i].size for i in alike])[:-1]), strict=True):
            whole[i] = part.reshape(given[i].shape)
    return whole


def _at(starts: list[tuple[int, ...] | None], shape: tuple[int, ...], number: jax.Array) -> list[jax.Array]:
    table = jnp.array([start or (0,) * len(shape) for start in starts], jnp.int32)
    return list(table[number])


def _bits(x: jax.Array) -> jax.Array:
    """Unsigned whole numbers of a width that every backend adds up: 8, 32 or 64 bits."""
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
