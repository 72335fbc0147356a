"""Placements: which fragments are compiled into one program, and the devices each program runs on.

With `program`, which compiles them, the only file that knows devices. A placement changes numbers only by float
rounding, since delays, keys and logical shards belong to the graph.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import NamedTuple

import jax

from jaxrl_fast.graph import Graph, GraphError


class Group(NamedTuple):
    """Fragments compiled together, and the devices they run on. Several devices divide the seeds first, then the axes
    that the fragments name."""

    fragments: tuple[str, ...]
    devices: tuple[jax.Device, ...]


class Placement(NamedTuple):
    """A name and the groups that together hold every fragment exactly once. Groups may share devices."""

    name: str
    groups: tuple[Group, ...]


def fused(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """The whole graph as one program on one device."""
    return Placement("fused", (Group(_names(graph), (devices[0],)),))


def data_parallel(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """One program over all devices; seeds and batches divided."""
    return Placement("data_parallel", (Group(_names(graph), tuple(devices)),))


def sharded_sampling(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Sampling divided over all devices, learning on one."""
    sampling = tuple(name for name in _names(graph) if name == "sample")
    learning = tuple(name for name in _names(graph) if name != "sample")
    groups = Group(sampling, tuple(devices)), Group(learning, (devices[0],))
    return Placement("sharded_sampling", tuple(group for group in groups if group.fragments))


PLACEMENTS: dict[str, Callable[[Graph, Sequence[jax.Device]], Placement]] = {
    "fused": fused,
    "data_parallel": data_parallel,
    "sharded_sampling": sharded_sampling,
}


def check(graph: Graph, placement: Placement, num_seeds: int = 1) -> None:
    """Refuse a placement that does not hold every fragment exactly once, or divides one unevenly.

    Raises:
        GraphError: naming the fragment.
    """
    known = _names(graph)
    placed = [name for group in placement.groups for name in group.fragments]
    for name in placed:
        if name not in known:
            raise GraphError(f"placement '{placement.name}' places fragment '{name}', which the graph does not have")
        if placed.count(name) > 1:
            raise GraphError(f"placement '{placement.name}' places fragment '{name}' twice")
    for name in known:
        if name not in placed:
            raise GraphError(f"placement '{placement.name}' leaves fragment '{name}' out")
    for group in placement.groups:
        _check_division(graph, placement.name, group, num_seeds)


def shards(group: Group, num_seeds: int) -> tuple[int, int]:
    """Into how many parts a group divides the seeds, and each seed's own axes."""
    over_seeds = gcd(num_seeds, len(group.devices))
    return over_seeds, len(group.devices) // over_seeds


def _check_division(graph: Graph, placement: str, group: Group, num_seeds: int) -> None:
    if not group.devices or len(set(group.devices)) < len(group.devices):
        raise GraphError(f"placement '{placement}' gives fragments {', '.join(group.fragments)} no or repeated devices")
    parts = shards(group, num_seeds)[1]
    for fragment in graph.fragments:
        if fragment.name in group.fragments and fragment.width % parts:
            raise GraphError(
                f"placement={placement} divides the {fragment.width} {fragment.unit} of '{fragment.name}' among "
                f"{parts} devices, which does not come out even: write sizes that {parts} divides, another "
                "devices=..., or placement=fused"
            )


def _names(graph: Graph) -> tuple[str, ...]:
    return tuple(fragment.name for fragment in graph.fragments)
