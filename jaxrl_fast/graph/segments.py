"""The links of a chain: which neighbouring fragments become one program, in which order, and how each is called."""

from itertools import groupby
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, Sharding

from jaxrl_fast.graph import dataflow as graphs
from jaxrl_fast.graph import exchange
from jaxrl_fast.graph.compiler_choices import compiler_options
from jaxrl_fast.graph.dataflow import Channels, Fragment, Graph
from jaxrl_fast.graph.kept import Jit
from jaxrl_fast.graph.layout import channel_axes, lay, over_seeds
from jaxrl_fast.graph.placements import SAMPLING


class Segment(NamedTuple):
    """``fragments`` that are neighbours in the schedule and belong to one group: one program of a chain, or one host
    fragment.

    ``step(private, stored, fresh, hyper, key, tick, round) -> (private, written, metrics)`` takes channels as the last
    tick left them, and those written by earlier segments in this tick. ``stored`` and ``fresh`` name the channels of
    either kind that lie on its ``devices`` already; ``moved``: for either kind, where the others are copied to, by
    channel; ``written``: the channels that it gives; ``whole``: where the rates and the key go; ``jit``: what ``step``
    is compiled of, None on the host.
    """

    fragments: tuple[Fragment, ...]
    step: Any
    stored: tuple[str, ...]
    fresh: tuple[str, ...]
    written: tuple[str, ...]
    moved: tuple[dict[str, Any], dict[str, Any]]
    whole: Sharding
    devices: tuple[jax.Device, ...]
    jit: Jit | None = None

    @property
    def name(self) -> str:
        """The names of its fragments."""
        return ", ".join(f.name for f in self.fragments)

    @property
    def host(self) -> bool:
        """Whether it is called, not dispatched."""
        return self.fragments[0].host

    @property
    def here(self) -> bool:
        """Whether this process takes part in it."""
        return exchange.is_here(self.devices)

    @property
    def joint(self) -> bool:
        """Whether this process takes part in it with others."""
        return self.here and exchange.spans_processes(self.devices)


class Stage(NamedTuple):
    """``segments`` that take turns ``rounds`` times a tick: the parts of a cycle that spans groups, or one segment."""

    segments: tuple[Segment, ...]
    rounds: int = 1


def make_stages(graph: Graph, home: dict[str, Mesh], num_seeds: int) -> tuple[Stage, ...]:
    """The stages of a tick of ``num_seeds`` seeds, each fragment on the devices of its ``home``."""
    spans = _spanning(graph, home)
    cut = dispatch_order(graph, home)
    segments = [_segment(graph, home, run, num_seeds, one_round=run[0].name in spans) for run in cut]
    stages: list[Stage] = []
    for cycle, members in groupby(segments, lambda s: spans.get(s.fragments[0].name)):
        together = tuple(members)
        rounds = together[0].fragments[0].rounds
        stages += [Stage((s,)) for s in together] if cycle is None else [Stage(together, rounds)]
    return tuple(stages)


def dispatch_order(graph: Graph, home: dict[str, Mesh]) -> list[tuple[Fragment, ...]]:
    """The fragments of a tick, cut into the segments of a chain, in an order that lets groups run at the same time.

    What waits for the fewest other groups comes first, host fragments last among equals, since they block. A segment
    ends where another group waits for what it has written: a program hands nothing on before it ends. A cycle that
    spans groups is cut into one segment per turn.
    """
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    hosts = {f.name for f in graph.fragments if f.host}
    now = {f.name: {writer[c] for c in f.reads if not graphs.age_of(graph, f.name, c)} for f in graph.fragments}
    waits: dict[str, int] = {}
    exports: set[str] = set()
    for stage in graphs.stages(graph.fragments):
        names = {f.name for f in stage}
        apart = {(w, n) for n in names for w in now[n] if w in hosts or home[w] is not home[n]}
        exports |= {w for w, _ in apart}
        before = [waits[w] + ((w, n) in apart) for n in names for w in now[n] - names]
        waits |= dict.fromkeys(names, max(before, default=0))
    spans = _spanning(graph, home)
    segments: list[tuple[Fragment, ...]] = []
    label: Any = None
    for fragment in sorted(graph.fragments, key=lambda f: (waits[f.name], f.host)):
        name = fragment.name
        last, label = label, (id(home[name]), waits[name], spans.get(name), fragment.host)
        if label == last and segments[-1][-1].name not in exports:
            segments[-1] += (fragment,)
        else:
            segments.append((fragment,))
    return segments


def _spanning(graph: Graph, home: dict[str, Mesh]) -> dict[str, int]:
    """The members of cycles that span several groups, with a number for each cycle."""
    cycles = [stage for stage in graphs.stages(graph.fragments) if len({id(home[f.name]) for f in stage}) > 1]
    return {f.name: i for i, cycle in enumerate(cycles) for f in cycle}


def _segment(
    graph: Graph, home: dict[str, Mesh], fragments: tuple[Fragment, ...], num_seeds: int, *, one_round: bool
) -> Segment:
    mesh = home[fragments[0].name]
    own = {c for f in fragments for c in f.writes}
    aged = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 1}
    now = {c for f in fragments for c in f.reads if graphs.age_of(graph, f.name, c) == 0} - own
    held = own & set(graphs.stored_channels(graph))
    outside = set(graphs.stored_channels(graph)) | {c for f in graph.fragments if f not in fragments for c in f.reads}
    stored, fresh, written = (tuple(sorted(names)) for names in (aged | held, now, own & outside))
    axes = channel_axes(graph)
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    at = {c: lay(mesh, axes[c], num_seeds) for c in (*stored, *fresh, *written)}
    host = fragments[0].host
    jit = None if host else _jit(graph, mesh, fragments, (stored, fresh, written), at, num_seeds, one_round)
    step = jit.jitted() if jit else _called(graph, fragments[0], {c: at[c] for c in written}, num_seeds)

    def come(names: tuple[str, ...]) -> dict[str, Any]:
        return {c: at[c] for c in names if home[writer[c]] is not mesh}

    moved = come(stored), come(fresh)
    stay = [tuple(c for c in names if c not in moves) for names, moves in zip((stored, fresh), moved, strict=True)]
    whole, devices = lay(mesh, None, num_seeds), tuple(mesh.devices.flat)
    if not exchange.is_here(devices):
        step = exchange.passed_over(step, {c: at[c] for c in written}, whole)
    return Segment(fragments, step, stay[0], stay[1], written, moved, whole, devices, jit)


def _jit(
    graph: Graph,
    mesh: Mesh,
    fragments: tuple[Fragment, ...],
    channels: tuple[tuple[str, ...], ...],
    at: dict[str, Any],
    num_seeds: int,
    one_round: bool,
) -> Jit:
    stored, fresh, written = channels

    def one_seed(
        private: Any, stored: Channels, fresh: Channels, hyper: Any, key: jax.Array, tick: jax.Array, round: jax.Array
    ) -> tuple:
        step = graphs.step_round if one_round else graphs.step_fragments
        moment = graphs.Moment(hyper, key, tick, round if one_round else 0)
        after, outputs, metrics = step(graph, fragments, private, stored, fresh, moment)
        return after, {c: outputs[c] for c in written}, metrics

    one_seed.__name__ = "_".join(f.name for f in fragments)  # what profilers and the compiler's dumps call the program
    private = {f.name: lay(mesh, f.division.private, num_seeds) for f in fragments}
    whole = lay(mesh, None, num_seeds)
    acting = all(SAMPLING in f.tags for f in fragments)
    return Jit(
        one_seed.__name__,
        over_seeds(one_seed, num_seeds, (0, 0, 0, 0, 0, None, None), 0),
        (0,),
        (private, {c: at[c] for c in stored}, {c: at[c] for c in fresh}, whole, whole, None, None),
        (private, {c: at[c] for c in written}, whole),
        compiler_options(mesh, products=graph.products, acting=acting),
    )


def _called(graph: Graph, fragment: Fragment, written: dict[str, Any], num_seeds: int) -> Any:
    """The step of a host fragment: rates and keys (of all seeds) are computed for it, what it writes goes to its
    group's devices."""
    rates = jax.jit(over_seeds(graph.hyper_at, num_seeds, (0, None), 0))
    own_key = jax.jit(over_seeds(lambda key, tick: graphs.step_key(fragment, key, tick), num_seeds, (0, None), 0))

    def step(
        private: Any, stored: Channels, fresh: Channels, hyper: Any, key: jax.Array, tick: Any, round: Any
    ) -> tuple:
        inputs = {c: (stored if graphs.age_of(graph, fragment.name, c) else fresh)[c] for c in fragment.reads}
        own_step = graphs.step_of(fragment, tick)
        after, outputs, metrics = own_step(private[fragment.name], inputs, rates(hyper, tick), own_key(key, tick))
        named = {f"{fragment.name}/{name}": value for name, value in metrics.items()}
        return {fragment.name: after}, jax.device_put({c: outputs[c] for c in written}, written), named

    return step
