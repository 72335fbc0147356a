"""The dataflow graph: fragments joined by channels. Knows no reinforcement learning and no device.

A *fragment* is a pure step with private state; it reads and writes named *channels*. Once a *tick*, every active
fragment steps, in schedule order. An edge of age 0 carries what was written earlier in the same tick, an edge of age 1
what was written in the tick before; only edges of age 1 let their two ends run at the same time. This is the fixed
topology of the reactor model (arXiv 2312.04704): checked once, scheduled once, no locks.
"""

from collections.abc import Callable, Mapping
from html import escape
from itertools import groupby
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Metrics, Products, PyTree, stable_hash


class ShardingAxes(NamedTuple):
    """The axes along which a fragment's arrays may be divided.

    ``private`` and ``writes`` (by channel) name the axis of each leaf, as prefix trees like those of ``vmap`` (None:
    not divided); ``width`` is how long these axes are, 0 for none, and ``unit`` what they count, such as environments.
    ``limit``: a setting of which ``width`` is a divisor, with its value, for messages.
    """

    private: Any = None
    writes: Mapping[str, Any] = {}
    width: int = 0
    unit: str = "parts"
    limit: tuple[str, int] | None = None


NOT_SHARDED = ShardingAxes()
"""Not divided: every device has all of it."""


Channels = dict[str, PyTree]
"""Values by the name of their channel."""


Step = Callable[[PyTree, Channels, Any, jax.Array], tuple[PyTree, Channels, Metrics]]
"""(private state of a fragment, the channels that it reads, hyper of this tick, key as `step_key`) -> (next state, the
channels that it writes, metrics: scalars by name)."""


CountedStep = Callable[[PyTree, Channels, Any, jax.Array, jax.Array], tuple[PyTree, Channels, Metrics]]
"""As `Step`, with ``turn``: how many times its turn has come before, an int32 that is the same for all seeds."""


class Inner(NamedTuple):
    """Another form of a fragment's private state of one seed, for as long as ticks follow one another in one program:
    ``begin`` and ``end`` turn it into that form and back, ``step`` is the fragment's on it."""

    begin: Callable[[PyTree], PyTree]
    step: Step | CountedStep
    end: Callable[[PyTree], PyTree]


class GraphError(ValueError):
    """A graph that cannot run; the message names the culprit."""


class Fragment(NamedTuple):
    """One box of the graph: a pure step with private state, which ``reads`` and ``writes`` channels by name.

    It steps in the ticks ``start, start + every, ...``; in between, its channels keep their values and its metrics are
    zero. Neighbours with the same ``rounds`` > 1 are a *cycle*: they take turns that many times in a tick, an edge of
    age 1 between two of them is one round old, and their metrics are summed over the rounds.

    ``name``: unique in its graph; random keys depend on it. ``init(key)`` makes the private
    state of one seed before the first tick; its key is made from the run's and ``init_name`` (default: the name), so
    that fragments of different graphs can begin alike. ``publish(private)`` returns the values of every channel that it
    writes before the first tick; needed where a channel is read before its first step. ``counts``: ``step`` is a
    `CountedStep`. ``host``: the step is ordinary Python, called between the compiled ones, and may hold environments
    outside JAX; it is given all seeds at once, and ``publish`` gives the shapes of what it writes for one seed.
    ``tags``: words by which others find fragments of a kind. ``division``: how it may be divided among devices,
    ``by_agents``: by agents that share nothing. ``inner``: its state in a faster form.
    """

    name: str
    init: Callable[[jax.Array], PyTree]
    step: Step | CountedStep
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    publish: Callable[[PyTree], Channels] | None = None
    start: int = 0
    every: int = 1
    rounds: int = 1
    init_name: str = ""
    host: bool = False
    counts: bool = False
    tags: tuple[str, ...] = ()
    division: ShardingAxes = NOT_SHARDED
    by_agents: ShardingAxes = NOT_SHARDED
    inner: Inner | None = None


Fragments = tuple[Fragment, ...]
"""In schedule order."""
Privates = dict[str, PyTree]
"""Private states, by fragment."""


class Graph(NamedTuple):
    """What a run computes in a tick: ``fragments`` in schedule order; ``delays``: ``(reader, channel) -> age`` in
    ticks, 0 where absent; ``hyper_at(hyper, tick)``: the rates of a tick, of rates or schedules; ``products``: its
    matrix products."""

    fragments: tuple[Fragment, ...]
    delays: Mapping[tuple[str, str], int] = {}
    hyper_at: Callable[[Any, jax.Array], Any] = lambda hyper, tick: hyper
    products: Products = UNKNOWN_PRODUCTS

    def _repr_html_(self) -> str:
        rows = []
        for f in self.fragments:
            ages = [f"{c} (a tick old)" if age_of(self, f.name, c) else c for c in f.reads]
            rows.append([f.name, ", ".join(ages), ", ".join(f.writes), "the host" if f.host else "a device"])
        heads = "".join(f"<th>{head}</th>" for head in ("fragment", "reads", "writes", "runs on"))
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><tr>{heads}</tr>{body}</table>"


class TrainState(NamedTuple):
    """Everything a run is. Leaves have a leading axis ``[S, ...]`` (but ``tick``) if there are several seeds.

    ``private``: states by fragment; ``channels``: those that outlive a tick, by name; ``hyper``: rates or schedules;
    ``tick``: ticks done so far, int32; ``key``: the run's random key, which never changes.
    """

    private: dict[str, PyTree]
    channels: Channels
    hyper: Any
    tick: jax.Array
    key: jax.Array


class Moment(NamedTuple):
    """When fragments step.

    - ``hyper``: the run's rates or schedules; ``key``: the run's own.
    - ``tick``: ticks done so far, int32.
    - ``round``: of a cycle; 0 elsewhere.
    """

    hyper: Any
    key: jax.Array
    tick: jax.Array
    round: jax.Array | int = 0


def age_of(graph: Graph, reader: str, channel: str) -> int:
    """The age at which a fragment sees a channel."""
    return graph.delays.get((reader, channel), 0)


def stored_channels(graph: Graph) -> tuple[str, ...]:
    """The channels whose values outlive a tick: those read at age 1, or held by a fragment that skips ticks."""
    aged = {c for f in graph.fragments for c in f.reads if age_of(graph, f.name, c) == 1}
    read = {c for f in graph.fragments for c in f.reads}
    held = {c for f in graph.fragments if _skips(f) for c in f.writes if c in read}
    return tuple(sorted(aged | held))


def stages(fragments: tuple[Fragment, ...]) -> list[tuple[Fragment, ...]]:
    """Fragments in schedule order, one by one or, where they are a cycle, together."""
    runs = [(rounds, tuple(run)) for rounds, run in groupby(fragments, lambda f: f.rounds)]
    return [stage for rounds, run in runs for stage in ([run] if rounds > 1 else [(f,) for f in run])]


def tagged(graph: Graph, tag: str) -> tuple[str, ...]:
    """The names of the fragments with a tag."""
    return tuple(f.name for f in graph.fragments if tag in f.tags)


def init(graph: Graph, key: jax.Array, hyper: Any) -> TrainState:
    """The state before the first tick. No two of its leaves share a buffer, so it can be donated."""
    private = {f.name: f.init(jax.random.fold_in(key, stable_hash(f.init_name or f.name))) for f in graph.fragments}
    private = jax.tree.map(jnp.copy, private)  # an environment's state may share an array with its observation
    published: Channels = {}
    for fragment in graph.fragments:
        if fragment.publish is not None:
            published.update(jax.tree.map(jnp.copy, fragment.publish(private[fragment.name])))
    hyper = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)
    tick = jnp.zeros((), jnp.int32)
    state = TrainState(private, {}, hyper, tick, jnp.copy(key))
    stored = stored_channels(graph)
    missing = [c for c in stored if c not in published]
    if missing:
        shapes = jax.eval_shape(lambda s: _outputs(graph, s, published), state)
        published.update({c: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[c]) for c in missing})
    return state._replace(channels={c: published[c] for c in stored})


def tick(graph: Graph, state: TrainState) -> tuple[TrainState, Metrics]:
    """Step every fragment once, in order. Metrics are named ``fragment/metric``."""
    moment = Moment(state.hyper, state.key, state.tick)
    private, fresh, metrics = step_fragments(graph, graph.fragments, state.private, state.channels, {}, moment)
    channels = {c: fresh[c] for c in state.channels}
    return TrainState(private, channels, state.hyper, state.tick + 1, state.key), metrics


def step_fragments(
    graph: Graph, fragments: Fragments, private: Privates, stored: Channels, fresh: Channels, moment: Moment
) -> tuple[Privates, Channels, Metrics]:
    """Step some of a graph's fragments in order: once, or all rounds of a cycle.

    ``stored`` holds channels as the last tick left them, ``fresh`` what others have written in this one.
    Returns the fragments' private states, the channels that they wrote, and their metrics.
    """
    after: Privates = {}
    written: Channels = {}
    metrics: Metrics = {}
    for stage in stages(fragments):
        step = step_round if stage[0].rounds == 1 else _step_cycle
        own = {f.name: private[f.name] for f in stage}
        own, outputs, more = step(graph, stage, own, stored, fresh | written, moment)
        after |= own
        written |= outputs
        metrics |= more
    return after, written, metrics


def step_round(
    graph: Graph, fragments: Fragments, private: Privates, stored: Channels, fresh: Channels, moment: Moment
) -> tuple[Privates, Channels, Metrics]:
    """Step each fragment once, as `step_fragments`; of a cycle, the given round, with ``stored`` as the last round left
    it."""
    hyper = graph.hyper_at(moment.hyper, moment.tick)
    after: Privates = {}
    written: Channels = {}
    metrics: Metrics = {}
    for fragment in fragments:
        now = fresh | written
        inputs = {c: stored[c] if age_of(graph, fragment.name, c) else now[c] for c in fragment.reads}
        # No compiler may merge the arithmetic of two fragments: in one program or in several, they round alike.
        own_private, inputs = jax.lax.optimization_barrier((private[fragment.name], inputs))
        step = step_of(fragment, moment.tick * fragment.rounds + moment.round)
        if _skips(fragment):
            held = {c: stored[c] for c in fragment.writes if c in stored}
            step = _step_or_hold(fragment, step, held, moment.tick)
        with jax.named_scope(fragment.name):
            stepped = step(own_private, inputs, hyper, step_key(fragment, moment.key, moment.tick, moment.round))
        after[fragment.name], outputs, own = jax.lax.optimization_barrier(stepped)
        written.update(outputs)
        metrics.update({f"{fragment.name}/{name}": value for name, value in own.items()})
    return after, written, metrics


def step_key(fragment: Fragment, key: jax.Array, tick: jax.Array, round: jax.Array | int = 0) -> jax.Array:
    """A fragment's key in a tick (of a cycle: and round), from the run's: it depends on nothing else."""
    own = jax.random.fold_in(jax.random.fold_in(key, tick), stable_hash(fragment.name))
    return jax.random.fold_in(own, round) if fragment.rounds > 1 else own


def _step_cycle(
    graph: Graph, cycle: Fragments, private: Privates, stored: Channels, fresh: Channels, moment: Moment
) -> tuple[Privates, Channels, Metrics]:
    """All rounds of a cycle; of its channels, those are handed on that outlive a tick."""
    own = {c: stored[c] for f in cycle for c in f.writes if c in stored}

    def one_round(carry: tuple, round: jax.Array) -> tuple[tuple, Metrics]:
        private, last = carry
        now = moment._replace(round=round)
        after, written, metrics = step_round(graph, cycle, private, stored | last, fresh, now)
        return (after, {c: written[c] for c in last}), metrics

    (after, last), metrics = jax.lax.scan(one_round, (private, own), jnp.arange(cycle[0].rounds))
    return after, last, jax.tree.map(lambda values: jnp.sum(values, axis=0), metrics)


def _step_or_hold(fragment: Fragment, step: Step, held: Channels, tick: jax.Array) -> Step:
    """``step``, or in a tick that the fragment skips its state as it is; ``held``: what its channels hold so far."""

    def step_or_hold(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        metrics_shape = jax.eval_shape(step, private, inputs, hyper, key)[2]

        def act(private: PyTree, inputs: Channels) -> tuple[PyTree, Channels, Metrics]:
            private, outputs, metrics = step(private, inputs, hyper, key)
            return private, {c: outputs[c] for c in held}, metrics

        def rest(private: PyTree, inputs: Channels) -> tuple[PyTree, Channels, Metrics]:
            return private, held, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics_shape)

        active = (tick >= fragment.start) & ((tick - fragment.start) % fragment.every == 0)
        return jax.lax.cond(active, act, rest, private, inputs)

    return step_or_hold


def step_of(fragment: Fragment, turn: jax.Array) -> Step:
    """A fragment's step at its ``turn``, whether it counts them or not."""
    if not fragment.counts:
        return cast(Step, fragment.step)
    counted = cast(CountedStep, fragment.step)
    return lambda private, inputs, hyper, key: counted(private, inputs, hyper, key, turn)


def active_ticks(fragment: Fragment, first: int, last: int) -> int:
    """In how many of the ticks ``first .. last - 1`` the fragment steps."""

    def before(tick: int) -> int:
        return max(0, -(-(tick - fragment.start) // fragment.every))

    return before(last) - before(first)


def _skips(fragment: Fragment) -> bool:
    return fragment.start > 0 or fragment.every > 1


def _outputs(graph: Graph, state: TrainState, published: Channels) -> Channels:
    """All channels of a first tick, for their shapes: what is read before it is written comes from ``published``."""
    key, channels = state.key, dict(published)
    hyper = graph.hyper_at(state.hyper, state.tick)
    for fragment in graph.fragments:
        private, inputs = state.private[fragment.name], {c: channels[c] for c in fragment.reads}
        if fragment.host and fragment.publish is not None:
            channels.update(fragment.publish(private))
        else:
            channels.update(step_of(fragment, state.tick)(private, inputs, hyper, key)[1])
    return channels


def check(graph: Graph) -> None:
    """Refuse a graph that has no meaning.

    Raises:
        GraphError: two fragments of one name, two writers of a channel, a read that nothing writes or published before
            the first tick, a delay that belongs to no edge or is not 0 or 1, a cycle of age 0, or a read at age 0 of
            what is written in rounds.
    """
    names = [f.name for f in graph.fragments]
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"two fragments are named '{name}'")
    writer = _writers(graph)
    edges = {(f.name, channel) for f in graph.fragments for channel in f.reads}
    for reader, channel in sorted(edges):
        if channel not in writer:
            raise GraphError(f"fragment '{reader}' reads channel '{channel}', which no fragment writes")
    for edge, age in graph.delays.items():
        if edge not in edges:
            raise GraphError(f"delay for {edge}: fragment '{edge[0]}' does not read channel '{edge[1]}'")
        if age not in (0, 1):
            raise GraphError(f"delay for {edge} is {age}: an edge's age is 0 or 1")
    _check_order(graph, writer)
    if any(f.rounds > 1 for f in graph.fragments):
        _check_rounds(graph)


def _writers(graph: Graph) -> dict[str, str]:
    writer: dict[str, str] = {}
    for fragment in graph.fragments:
        for channel in fragment.writes:
            if channel in writer:
                raise GraphError(
                    f"channel '{channel}' has two writers, fragments '{writer[channel]}' and '{fragment.name}'"
                )
            writer[channel] = fragment.name
    return writer


def _check_order(graph: Graph, writer: dict[str, str]) -> None:
    """Every read must find a value: written earlier in the tick, or at age 1 in the tick before or published."""
    published = {f.name for f in graph.fragments if f.publish is not None}
    seen: set[str] = set()
    for fragment in graph.fragments:
        for channel in fragment.reads:
            late = writer[channel] not in seen
            if late and age_of(graph, fragment.name, channel) == 0:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' at age 0, but its writer "
                    f"'{writer[channel]}' is scheduled later or at the same place: a cycle of age 0"
                )
            if late and writer[channel] not in published:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' in the first tick, before its writer "
                    f"'{writer[channel]}' has stepped: give that fragment a publish"
                )
        seen.add(fragment.name)


def _check_rounds(graph: Graph) -> None:
    """What a cycle writes changes from round to round: only its own members may see that."""
    cycle_of = {f.name: stage for stage in stages(graph.fragments) for f in stage if f.rounds > 1}
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    for fragment in graph.fragments:
        for channel in fragment.reads:
            cycle = cycle_of.get(writer[channel], ())
            if cycle and fragment not in cycle and age_of(graph, fragment.name, channel) == 0:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' at age 0, which '{writer[channel]}' writes "
                    f"{cycle[0].rounds} times a tick: give the edge age 1"
                )
