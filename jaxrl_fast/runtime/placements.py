"""Placements: which fragments are compiled into one program, and the devices of each program.

A placement changes results only by float rounding, because delays, keys and logical shards belong
to the graph.
"""

from collections.abc import Sequence
from math import gcd
from typing import Literal, NamedTuple, Protocol

import jax

from jaxrl_fast.runtime import hosts
from jaxrl_fast.runtime.graph import Fragment, Graph, GraphError, age_of, tagged

SAMPLING, LEARNING, ACTING, SERVER, REPLAY = "sampling", "learning", "acting", "server", "replay"
"""Tags of fragments, read by placements, reports and checkpoints: fragments that step environments,
that make gradient updates, that update only parts that select actions, that average, and replay,
which a resumed run can refill.
"""
WORKERS = "workers"
"""Tag of a fragment whose environments' processes select the actions."""


class Group(NamedTuple):
    """Fragments that are compiled together, and their devices.

    Attributes:
        fragments: Names of the fragments.
        devices: Several devices shard the seeds first, then the axes that the fragments name.
    """

    fragments: tuple[str, ...]
    devices: tuple[jax.Device, ...]


class Placement(NamedTuple):
    """Where a graph runs.

    Attributes:
        name: Name in messages.
        groups: Groups that together contain every fragment exactly once; they may share devices.
        divides: What the devices of a group shard in addition to seeds: environments and batches,
            or agents.
    """

    name: str
    groups: tuple[Group, ...]
    divides: Literal["batch", "agents"] = "batch"


class Make(Protocol):
    """Makes a placement: one of `PLACEMENTS`, or a user's function."""

    def __call__(self, graph: Graph, devices: Sequence[jax.Device], /) -> Placement:
        """Make the placement.

        Args:
            graph: Graph.
            devices: Available devices, the first ``devices=N`` of JAX's.

        Raises:
            GraphError: The placement does not support the graph or the devices.
        """


def fused(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """The whole graph as one program on one device.

    Args:
        graph: Graph.
        devices: Available devices.

    Returns:
        The placement.
    """
    return Placement("fused", (Group(_names(graph), (devices[0],)),))


def data_parallel(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """One program over all devices, with sharded seeds and batches.

    Args:
        graph: Graph.
        devices: Available devices.

    Returns:
        The placement.
    """
    return Placement("data_parallel", (Group(_names(graph), tuple(devices)),))


def sharded_sampling(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Sampling sharded over all devices, learning on one.

    Args:
        graph: Graph.
        devices: Available devices.

    Returns:
        The placement.
    """
    return _two_groups("sharded_sampling", graph, tagged(graph, SAMPLING), devices, devices[:1])


def actor_critic(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Critic on one device, actor and sampling on another.

    Args:
        graph: Graph.
        devices: Available devices, at least 2.

    Returns:
        The placement.
    """
    _require_devices("actor_critic", devices, 2)
    acting = tagged(graph, SAMPLING) + tagged(graph, ACTING)
    return _two_groups("actor_critic", graph, acting, devices[1:2], devices[:1])


def sampler_learner(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Learning on the first device, sampling on the others.

    Args:
        graph: Graph.
        devices: Available devices, at least 2.

    Returns:
        The placement.
    """
    _require_devices("sampler_learner", devices, 2)
    samplers = _even(graph, tagged(graph, SAMPLING), devices[1:])
    return _two_groups("sampler_learner", graph, tagged(graph, SAMPLING), samplers, devices[:1])


def parameter_server(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Learners on all devices, one server that averages.

    Args:
        graph: Graph with a server.
        devices: Available devices.

    Returns:
        The placement.

    Raises:
        GraphError: The graph has no server.
    """
    workers = tuple(name for name in _names(graph) if name not in tagged(graph, SERVER))
    if len(workers) == len(graph.fragments):
        raise GraphError(
            "placement=parameter_server: with one learner there is nothing for a server to average: write learners=2 "
            "or more with it"
        )
    learners = _even(graph, workers, devices)
    return _two_groups("parameter_server", graph, workers, learners, devices[:1])


def agents(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Agents with separate networks, sharded over all devices.

    Args:
        graph: Graph of several agents.
        devices: Available devices.

    Returns:
        The placement.

    Raises:
        GraphError: There is one agent, agents share networks, or there are several learners.
    """
    _require_agents(graph)
    return Placement("agents", (Group(_names(graph), tuple(devices)),), "agents")


def central_inference(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Environments on the host, actions by the learner's device.

    Args:
        graph: Graph with host environments.
        devices: Available devices.

    Returns:
        The placement.

    Raises:
        GraphError: The environments are compiled.
    """
    if not any(f.host for f in graph.fragments):
        raise GraphError(
            "placement=central_inference is for environments on the host. This run has compiled ones, whose actions "
            "cost a transfer per step elsewhere, or recorded steps: write placement=fused or placement=sampler_learner"
        )
    return Placement("central_inference", (Group(_names(graph), (devices[0],)),))


def worker_acting(graph: Graph, devices: Sequence[jax.Device]) -> Placement:
    """Whole rollouts, actions included, in worker processes.

    Args:
        graph: Graph of host environments with ``pool.bridge=worker``.
        devices: Available devices.

    Returns:
        The placement.

    Raises:
        GraphError: The environments are compiled, or wait for actions.
    """
    if not tagged(graph, WORKERS):
        host = any(f.host for f in graph.fragments)
        instead = (
            "make the environments with pool={'bridge': 'worker'}"
            if host
            else "write placement=fused"
        )
        reason = (
            "these wait for actions" if host else "this run has compiled ones, or recorded steps"
        )
        raise GraphError(
            f"placement=worker_acting is for host environments whose processes select actions, and {reason}: {instead}"
        )
    return Placement("worker_acting", (Group(_names(graph), (devices[0],)),))


_MAKERS = (
    fused,
    data_parallel,
    sharded_sampling,
    actor_critic,
    sampler_learner,
    parameter_server,
    central_inference,
)
PLACEMENTS: dict[str, Make] = {make.__name__: make for make in (*_MAKERS, worker_acting, agents)}


def place(graph: Graph, placement: str | Make, devices: int | None) -> Placement:
    """Place a graph on the first of JAX's devices.

    Args:
        graph: Graph.
        placement: Name in `PLACEMENTS`, or a user's function.
        devices: Number of devices; None for all.

    Returns:
        The placement.

    Raises:
        ValueError: The name does not exist, there are too few devices, or the placement does not
            span all processes.
    """
    placed = place_on(graph, placement, hosts.devices(devices))
    if not hosts.is_alone():
        hosts.check_placement(placed.name, [group.devices for group in placed.groups])
    return placed


def place_on(graph: Graph, placement: str | Make, devices: Sequence[jax.Device]) -> Placement:
    """Place a graph on given devices, which need not exist here.

    Args:
        graph: Graph.
        placement: Name in `PLACEMENTS`, or a user's function.
        devices: Available devices.

    Returns:
        The placement.

    Raises:
        ValueError: The name does not exist, or there are too few devices.
    """
    if placement not in PLACEMENTS if isinstance(placement, str) else not callable(placement):
        raise ValueError(f"placement={placement}: write one of {', '.join(PLACEMENTS)}")
    make = PLACEMENTS[placement] if isinstance(placement, str) else placement
    try:
        return make(graph, devices)
    except IndexError:
        raise _too_few(placement, len(devices)) from None


def _too_few(placement: str | Make, count: int) -> ValueError:
    name = placement if isinstance(placement, str) else getattr(placement, "__name__", "placement")
    return ValueError(
        f"placement {name} asks for more devices than the {count} there are: write a larger devices=..., "
        "or let groups share devices"
    )


def divided(graph: Graph, placement: Placement) -> Graph:
    """Return the graph with the sharding axes that the placement uses.

    Args:
        graph: Graph.
        placement: Placement.

    Returns:
        The graph, in which `Fragment.division` shards batches or agents.
    """
    if placement.divides == "batch":
        return graph
    return graph._replace(
        fragments=tuple(f._replace(division=f.by_agents) for f in graph.fragments)
    )


def check_placed(graph: Graph, placement: Placement, num_seeds: int = 1) -> None:
    """Check that a placement has every fragment exactly once, shards them evenly, and has host
    fragments on one device.

    Args:
        graph: Graph.
        placement: Placement.
        num_seeds: Number of seeds.

    Raises:
        GraphError: It does not; the message names the fragment.
    """
    placed = [name for group in placement.groups for name in group.fragments]
    if sorted(placed) != sorted(_names(graph)):
        raise _misplaced(placement.name, placed, _names(graph))
    for group in placement.groups:
        if len(group.devices) != 1:
            _check_division(divided(graph, placement), placement, group, num_seeds)
        for fragment in graph.fragments:
            if fragment.host and fragment.name in group.fragments:
                _check_host(fragment, placement.name, group)


def _misplaced(placement: str, placed: Sequence[str], fragments: Sequence[str]) -> GraphError:
    for name in placed:
        if name not in fragments:
            return GraphError(
                f"placement '{placement}' places fragment '{name}', which the graph does not have"
            )
        if placed.count(name) > 1:
            return GraphError(f"placement '{placement}' places fragment '{name}' twice")
    name = next(name for name in fragments if name not in placed)
    return GraphError(f"placement '{placement}' leaves fragment '{name}' out")


def runs_in_parallel(graph: Graph, placement: Placement) -> bool:
    """Return whether any work can run at the same time.

    Args:
        graph: Graph.
        placement: Placement.

    Returns:
        True if a group has several devices, or two fragments on different devices never wait for
        each other in some ticks.
    """
    if any(len(group.devices) > 1 for group in placement.groups):
        return True
    home = {name: group.devices for group in placement.groups for name in group.fragments}
    waits = _waits_within(graph, ticks=3)
    names = _names(graph)
    return any(
        home[a] != home[b] and (a, 0) not in waits[b, t] and (b, t) not in waits[a, 0]
        for a in names
        for b in names
        for t in range(3)
    )


def shards(group: Group, num_seeds: int) -> tuple[int, int]:
    """Return the number of parts into which a group shards the seeds, and each seed's axes.

    Args:
        group: Group.
        num_seeds: Number of seeds.

    Returns:
        ``(parts of the seeds, parts of each seed)``.
    """
    over_seeds = gcd(num_seeds, len(group.devices))
    return over_seeds, len(group.devices) // over_seeds


def _check_division(graph: Graph, placement: Placement, group: Group, num_seeds: int) -> None:
    if not group.devices or len(set(group.devices)) < len(group.devices):
        raise GraphError(
            f"placement '{placement.name}' gives fragments {', '.join(group.fragments)} no or repeated devices"
        )
    parts = shards(group, num_seeds)[1]
    for fragment in graph.fragments:
        width, unit = fragment.division.width, fragment.division.unit
        if fragment.name in group.fragments and width % parts:
            key, value = fragment.division.limit or ("", 0)
            raised = f"{key}={parts} with " if value % parts else ""
            sizes = "" if placement.divides == "agents" else f"{raised}sizes that {parts} divides, "
            raise GraphError(
                f"placement={placement.name} cannot shard the {width} {unit} of '{fragment.name}' evenly over "
                f"{parts} devices: write {sizes}another devices=..., or placement=fused"
            )


def _check_host(fragment: Fragment, placement: str, group: Group) -> None:
    if len(group.devices) > 1:
        raise GraphError(
            f"placement={placement} shards '{fragment.name}' over {len(group.devices)} devices, but it runs on "
            "the host: write placement=fused, sampler_learner or central_inference"
        )
    if fragment.publish is None or fragment.start or fragment.every > 1 or fragment.rounds > 1:
        raise GraphError(
            f"host fragment '{fragment.name}' must publish its channels and step once in every tick"
        )


def _waits_within(graph: Graph, ticks: int) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """Return, for each fragment and tick, the fragments and ticks that must have ended before."""
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    waits: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for tick in range(ticks):
        for fragment in graph.fragments:
            edges = {(writer[c], tick - age_of(graph, fragment.name, c)) for c in fragment.reads}
            predecessors = [node for node in edges | {(fragment.name, tick - 1)} if node in waits]
            waits[fragment.name, tick] = set(predecessors).union(
                *(waits[node] for node in predecessors)
            )
    return waits


def _two_groups(
    name: str,
    graph: Graph,
    first: tuple[str, ...],
    devices: Sequence[jax.Device],
    others: Sequence[jax.Device],
) -> Placement:
    """Place the fragments ``first`` on ``devices``, the rest on ``others``; a group may be empty."""
    names = _names(graph)
    groups = (
        Group(tuple(n for n in names if n in first), tuple(devices)),
        Group(tuple(n for n in names if n not in first), tuple(others)),
    )
    return Placement(name, tuple(group for group in groups if group.fragments))


def _require_devices(placement: str, devices: Sequence[jax.Device], least: int) -> None:
    if len(devices) < least:
        raise GraphError(
            f"placement={placement} needs {least} devices and has {len(devices)}: write devices={least}, or "
            "placement=fused"
        )


def _require_agents(graph: Graph) -> None:
    undivided = {f.name for f in graph.fragments if not f.by_agents.width}
    if undivided.intersection(tagged(graph, SAMPLING)):
        raise GraphError(
            "placement=agents shards agents, and this environment has one: write placement=data_parallel"
        )
    if tagged(graph, SERVER):
        raise GraphError("placement=agents has one learner for each agent: write learners=1")
    if undivided.intersection(tagged(graph, LEARNING)):
        raise GraphError(
            "placement=agents shards the agents' networks, and these share one: write algo.share_parameters=false "
            "(and algo.mixer=vdn: a mixer is shared)"
        )


def _even(
    graph: Graph, names: Sequence[str], devices: Sequence[jax.Device]
) -> Sequence[jax.Device]:
    """Return as many of the devices as divide the widths of the fragments ``names``."""
    widths = [f.division.width for f in graph.fragments if f.name in names]
    count = next(n for n in range(len(devices), 0, -1) if not any(width % n for width in widths))
    return devices[:count]


def _names(graph: Graph) -> tuple[str, ...]:
    return tuple(fragment.name for fragment in graph.fragments)
