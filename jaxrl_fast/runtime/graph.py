"""The dataflow graph: fragments joined by channels, independent of reinforcement learning and of
devices.

A *fragment* is a pure step with private state; it reads and writes named *channels*. Once a *tick*,
every active fragment steps, in schedule order. A *chunk* is a fixed number of ticks that one call
runs. An edge of age 0 carries data written earlier in the same tick, an edge of age 1 data of the
tick before; only edges of age 1 let their two ends run at the same time. This is the fixed topology
of the reactor model (arXiv 2312.04704): checked once, scheduled once, no locks.
"""

from collections.abc import Callable, Mapping
from html import escape
from itertools import groupby
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from jaxrl_fast.core import UNKNOWN_PRODUCTS, Metrics, Products, PyTree, select, stable_hash


class ShardingAxes(NamedTuple):
    """Axes along which a fragment's arrays may be sharded.

    Attributes:
        private: Axis of each leaf of the private state, a prefix tree as in ``vmap`` (None: not
            sharded).
        writes: The same for written channels, by name.
        width: Size of these axes; 0 for none.
        unit: What the axes count, such as environments.
        limit: A setting of which ``width`` is a divisor, with its value, for messages.
    """

    private: Any = None
    writes: Mapping[str, Any] = {}
    width: int = 0
    unit: str = "parts"
    limit: tuple[str, int] | None = None


NOT_SHARDED = ShardingAxes()
"""Not sharded: every device has a full copy."""


Channels = dict[str, PyTree]
"""Values by channel."""


Step = Callable[[PyTree, Channels, Any, jax.Array], tuple[PyTree, Channels, Metrics]]
"""(private state of a fragment, channels that it reads, hyper of this tick, key as `step_key`) ->
(next state, channels that it writes, metrics: scalars by name).
"""


CountedStep = Callable[
    [PyTree, Channels, Any, jax.Array, jax.Array], tuple[PyTree, Channels, Metrics]
]
"""As `Step`, with ``turn``: the number of the fragment's steps before, an int32 that is equal for
all seeds.
"""


class Inner(NamedTuple):
    """Another form of a fragment's private state of one seed, for consecutive ticks in one program.

    Attributes:
        begin: Converts the private state to that form.
        step: Step on that form.
        end: Converts it back.
    """

    begin: Callable[[PyTree], PyTree]
    step: Step | CountedStep
    end: Callable[[PyTree], PyTree]


class GraphError(ValueError):
    """A graph that cannot run; the message names the fragment or channel."""


class Fragment(NamedTuple):
    """A node of the graph: a pure step with private state.

    It steps in the ticks ``start, start + every, ...``; in between, its channels are unchanged and
    its metrics are zero. Neighbours with the same ``rounds`` > 1 are a *cycle*: they take turns
    that many times in a tick, an edge of age 1 between two of them is one round old, and their
    metrics are summed over the rounds.

    Attributes:
        name: Unique name in its graph; random keys depend on it.
        init: ``(key) -> private state`` of one seed before the first tick.
        step: Function of one tick.
        reads: Channels that it reads.
        writes: Channels that it writes.
        publish: ``(private) -> channels`` that it writes, before the first tick; needed where a
            channel is read before the fragment's first step. Of a host fragment, it gives the
            shapes for one seed.
        start: First tick in which it steps.
        every: Ticks between two steps.
        rounds: Steps in a tick.
        init_name: Name from which the key of ``init`` is derived (default: ``name``), so that
            fragments of different graphs can have equal initial states.
        host: Whether the step is ordinary Python, called between compiled steps with all seeds at
            once. It may use environments outside JAX.
        counts: Whether ``step`` is a `CountedStep`.
        tags: Kinds of the fragment, such as `placements.SAMPLING`.
        `division`: Axes along which it may be sharded over devices.
        by_agents: Axes along which agents that share nothing may be sharded.
        inner: Faster form of its state.
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
"""Fragments in schedule order."""
Privates = dict[str, PyTree]
"""Private states by fragment."""


class Graph(NamedTuple):
    """The computation of a tick.

    Attributes:
        fragments: Fragments in schedule order.
        delays: ``(reader, channel) -> age`` in ticks, 0 where absent.
        hyper_at: ``(hyper, tick) -> hyper-parameters`` of a tick, from numbers or schedules.
        products: Size of its matrix products.
    """

    fragments: tuple[Fragment, ...]
    delays: Mapping[tuple[str, str], int] = {}
    hyper_at: Callable[[Any, jax.Array], Any] = lambda hyper, tick: hyper
    products: Products = UNKNOWN_PRODUCTS

    def _repr_html_(self) -> str:
        rows = []
        for f in self.fragments:
            ages = [f"{c} (a tick old)" if age_of(self, f.name, c) else c for c in f.reads]
            rows.append(
                [f.name, ", ".join(ages), ", ".join(f.writes), "the host" if f.host else "a device"]
            )
        heads = "".join(f"<th>{head}</th>" for head in ("fragment", "reads", "writes", "runs on"))
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        return f"<table><tr>{heads}</tr>{body}</table>"


class TrainState(NamedTuple):
    """State of a run. Leaves have a leading axis ``[S, ...]`` (but ``tick``) if there are several
    seeds.

    Attributes:
        private: Private states by fragment.
        channels: Channels that outlive a tick, by name.
        hyper: Hyper-parameters, numbers or schedules.
        tick: Number of completed ticks, int32.
        key: Random key of the run, which never changes.
    """

    private: dict[str, PyTree]
    channels: Channels
    hyper: Any
    tick: jax.Array
    key: jax.Array


class Moment(NamedTuple):
    """When fragments step.

    Attributes:
        hyper: Hyper-parameters of the run, numbers or schedules.
        key: Random key of the run.
        tick: Number of completed ticks, int32.
        round: Round of a cycle; 0 elsewhere.
    """

    hyper: Any
    key: jax.Array
    tick: jax.Array
    round: jax.Array | int = 0


def age_of(graph: Graph, reader: str, channel: str) -> int:
    """Return the age at which a fragment reads a channel.

    Args:
        graph: Graph.
        reader: Name of the fragment.
        channel: Name of the channel.

    Returns:
        0 or 1.
    """
    return graph.delays.get((reader, channel), 0)


def stored_channels(graph: Graph) -> tuple[str, ...]:
    """Return the channels whose values outlive a tick.

    Args:
        graph: Graph.

    Returns:
        Channels that are read at age 1, or written by a fragment that skips ticks.
    """
    aged = {c for f in graph.fragments for c in f.reads if age_of(graph, f.name, c) == 1}
    read = {c for f in graph.fragments for c in f.reads}
    held = {c for f in graph.fragments if _skips(f) for c in f.writes if c in read}
    return tuple(sorted(aged | held))


def stages(fragments: tuple[Fragment, ...]) -> list[tuple[Fragment, ...]]:
    """Group fragments into stages.

    Args:
        fragments: Fragments in schedule order.

    Returns:
        Single fragments, and cycles as one stage each.
    """
    runs = [(rounds, tuple(run)) for rounds, run in groupby(fragments, lambda f: f.rounds)]
    return [
        stage for rounds, run in runs for stage in ([run] if rounds > 1 else [(f,) for f in run])
    ]


def tagged(graph: Graph, tag: str) -> tuple[str, ...]:
    """Return the fragments with a tag.

    Args:
        graph: Graph.
        tag: Tag.

    Returns:
        Names of fragments.
    """
    return tuple(f.name for f in graph.fragments if tag in f.tags)


def init(graph: Graph, key: jax.Array, hyper: Any) -> TrainState:
    """Initialize the state before the first tick. No two leaves share a buffer, so it can be
    donated.

    Args:
        graph: Graph.
        key: Random key of the run.
        hyper: Hyper-parameters, numbers or schedules.

    Returns:
        The state of one seed.
    """
    private = {
        f.name: f.init(jax.random.fold_in(key, stable_hash(f.init_name or f.name)))
        for f in graph.fragments
    }
    # an environment's state may share an array with its observation
    private = jax.tree.map(jnp.copy, private)
    published: Channels = {}
    for fragment in graph.fragments:
        if fragment.publish is not None:
            published.update(jax.tree.map(jnp.copy, fragment.publish(private[fragment.name])))
    hyper = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)
    state = TrainState(private, {}, hyper, jnp.zeros((), jnp.int32), jnp.copy(key))
    stored = stored_channels(graph)
    missing = [c for c in stored if c not in published]
    if missing:
        shapes = jax.eval_shape(lambda s: _outputs(graph, s, published), state)
        published.update(
            {c: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[c]) for c in missing}
        )
    return state._replace(channels={c: published[c] for c in stored})


def tick(graph: Graph, state: TrainState) -> tuple[TrainState, Metrics]:
    """Step every fragment once, in order.

    Args:
        graph: Graph.
        state: State of one seed.

    Returns:
        The next state, and metrics named ``fragment/metric``.
    """
    moment = Moment(state.hyper, state.key, state.tick)
    private, fresh, metrics = step_fragments(
        graph, graph.fragments, state.private, state.channels, {}, moment
    )
    channels = {c: fresh[c] for c in state.channels}
    return TrainState(private, channels, state.hyper, state.tick + 1, state.key), metrics


def step_fragments(
    graph: Graph,
    fragments: Fragments,
    private: Privates,
    stored: Channels,
    fresh: Channels,
    moment: Moment,
) -> tuple[Privates, Channels, Metrics]:
    """Step some of a graph's fragments in order: once, or all rounds of a cycle.

    Args:
        graph: Graph.
        fragments: Fragments to step.
        private: Their private states.
        stored: Channels after the last tick.
        fresh: Channels written in this tick.
        moment: When they step.

    Returns:
        The fragments' private states, the channels that they wrote, and their metrics.
    """
    after, written, metrics = Privates(), Channels(), Metrics()
    for stage in stages(fragments):
        step = step_round if stage[0].rounds == 1 else _step_cycle
        of_stage = {f.name: private[f.name] for f in stage}
        of_stage, outputs, more = step(graph, stage, of_stage, stored, fresh | written, moment)
        after |= of_stage
        written |= outputs
        metrics |= more
    return after, written, metrics


def step_round(
    graph: Graph,
    fragments: Fragments,
    private: Privates,
    stored: Channels,
    fresh: Channels,
    moment: Moment,
) -> tuple[Privates, Channels, Metrics]:
    """Step each fragment once; of a cycle, make one round.

    Args:
        graph: Graph.
        fragments: Fragments to step.
        private: Their private states.
        stored: Channels after the last tick, or round of a cycle.
        fresh: Channels written in this tick.
        moment: When they step.

    Returns:
        As `step_fragments`.
    """
    hyper = graph.hyper_at(moment.hyper, moment.tick)
    after, written, metrics = Privates(), Channels(), Metrics()
    for fragment in fragments:
        now = fresh | written
        inputs = {
            c: stored[c] if age_of(graph, fragment.name, c) else now[c] for c in fragment.reads
        }
        # Prevent fusion across fragments, so that one program and several round equally.
        own_private, inputs = jax.lax.optimization_barrier((private[fragment.name], inputs))
        step = step_of(fragment, moment.tick * fragment.rounds + moment.round)
        if _skips(fragment):
            held = {c: stored[c] for c in fragment.writes if c in stored}
            hold = (
                _step_then_choose
                if fragment.start <= SHORT_WAIT and fragment.every == 1
                else _step_or_hold
            )
            step = hold(fragment, step, held, moment.tick)
        with jax.named_scope(fragment.name):
            stepped = step(
                own_private,
                inputs,
                hyper,
                step_key(fragment, moment.key, moment.tick, moment.round),
            )
        after[fragment.name], outputs, fragment_metrics = jax.lax.optimization_barrier(stepped)
        written.update(outputs)
        metrics.update(
            {f"{fragment.name}/{name}": value for name, value in fragment_metrics.items()}
        )
    return after, written, metrics


def step_key(
    fragment: Fragment, key: jax.Array, tick: jax.Array, round: jax.Array | int = 0
) -> jax.Array:
    """Return a fragment's random key in a tick, and in the round of a cycle.

    Args:
        fragment: Fragment.
        key: Random key of the run.
        tick: Number of completed ticks.
        round: Round of a cycle.

    Returns:
        A key that depends on nothing else.
    """
    tick_key = jax.random.fold_in(jax.random.fold_in(key, tick), stable_hash(fragment.name))
    return jax.random.fold_in(tick_key, round) if fragment.rounds > 1 else tick_key


def _step_cycle(
    graph: Graph,
    cycle: Fragments,
    private: Privates,
    stored: Channels,
    fresh: Channels,
    moment: Moment,
) -> tuple[Privates, Channels, Metrics]:
    """Make all rounds of a cycle; return its channels that outlive a tick."""
    initial = {c: stored[c] for f in cycle for c in f.writes if c in stored}

    def one_round(carry: tuple, round: jax.Array) -> tuple[tuple, Metrics]:
        private, last = carry
        now = moment._replace(round=round)
        after, written, metrics = step_round(graph, cycle, private, stored | last, fresh, now)
        return (after, {c: written[c] for c in last}), metrics

    (after, last), metrics = jax.lax.scan(
        one_round, (private, initial), jnp.arange(cycle[0].rounds)
    )
    return after, last, jax.tree.map(lambda values: jnp.sum(values, axis=0), metrics)


SHORT_WAIT = 2
"""Most ticks that a fragment steps in vain: with a condition, an accelerator's host would wait in
every tick.
"""


def _step_then_choose(fragment: Fragment, step: Step, held: Channels, tick: jax.Array) -> Step:
    """Wrap ``step`` like `_step_or_hold`, for a short wait: it steps always, and takes the result
    from then on.
    """

    def step_then_choose(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        after, outputs, metrics = step(private, inputs, hyper, key)
        stepped = after, {c: outputs[c] for c in held}, metrics
        return select(
            tick >= fragment.start, stepped, (private, held, jax.tree.map(jnp.zeros_like, metrics))
        )

    return step_then_choose


def _step_or_hold(fragment: Fragment, step: Step, held: Channels, tick: jax.Array) -> Step:
    """Wrap ``step`` to return the state and ``held``, the channels' last values, in ticks that the
    fragment skips.
    """

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
    """Return a fragment's step function as a `Step`.

    Args:
        fragment: Fragment.
        turn: Number of its steps before.

    Returns:
        The step, with ``turn`` bound if it counts.
    """
    if not fragment.counts:
        return cast(Step, fragment.step)
    counted = cast(CountedStep, fragment.step)
    return lambda private, inputs, hyper, key: counted(private, inputs, hyper, key, turn)


def active_ticks(fragment: Fragment, first: int, last: int) -> int:
    """Count the ticks ``first .. last - 1`` in which a fragment steps.

    Args:
        fragment: Fragment.
        first: First tick.
        last: Tick after the last.

    Returns:
        Number of ticks.
    """

    def before(tick: int) -> int:
        return max(0, -(-(tick - fragment.start) // fragment.every))

    return before(last) - before(first)


def _skips(fragment: Fragment) -> bool:
    return fragment.start > 0 or fragment.every > 1


def _outputs(graph: Graph, state: TrainState, published: Channels) -> Channels:
    """Compute all channels of a first tick, for their shapes; ``published`` has all read before
    they are written.
    """
    key, channels = state.key, dict(published)
    hyper = graph.hyper_at(state.hyper, state.tick)
    for fragment in graph.fragments:
        private, inputs = state.private[fragment.name], {c: channels[c] for c in fragment.reads}
        if fragment.host and fragment.publish is not None:
            channels.update(fragment.publish(private))
        else:
            channels.update(step_of(fragment, state.tick)(private, inputs, hyper, key)[1])
    return channels


def check_graph(graph: Graph) -> Graph:
    """Check that a graph can run.

    Args:
        graph: Graph.

    Returns:
        The graph.

    Raises:
        GraphError: Two fragments have one name, a channel has two writers or none, a delay belongs
            to no edge or is not 0 or 1, a cycle has age 0, a channel is read in the first tick
            without `Fragment.publish`, or a fragment outside a cycle reads its channel at age 0.
    """
    names = [f.name for f in graph.fragments]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GraphError(f"two fragments are named '{twice[0]}'")
    writer: dict[str, str] = {}
    for name, channel in ((f.name, c) for f in graph.fragments for c in f.writes):
        if channel in writer:
            raise GraphError(
                f"channel '{channel}' has two writers, fragments '{writer[channel]}' and '{name}'"
            )
        writer[channel] = name
    edges = {(f.name, channel) for f in graph.fragments for channel in f.reads}
    for reader, channel in sorted(edges):
        if channel not in writer:
            raise GraphError(
                f"fragment '{reader}' reads channel '{channel}', which no fragment writes"
            )
    for edge, age in graph.delays.items():
        if edge not in edges:
            raise GraphError(
                f"delay for {edge}: fragment '{edge[0]}' does not read channel '{edge[1]}'"
            )
        if age not in (0, 1):
            raise GraphError(f"delay for {edge} is {age}: an edge's age is 0 or 1")
    _check_order(graph, writer)
    if any(f.rounds > 1 for f in graph.fragments):
        _check_rounds(graph)
    return graph


def _check_order(graph: Graph, writer: dict[str, str]) -> None:
    """Check that every read has a value: from earlier in the tick, or at age 1 from the tick before
    or ``publish``.
    """
    published = {f.name for f in graph.fragments if f.publish is not None}
    written: set[str] = set()
    for fragment in graph.fragments:
        for channel in fragment.reads:
            late = writer[channel] not in written
            now = age_of(graph, fragment.name, channel) == 0
            if late and (now or writer[channel] not in published):
                raise _too_early(fragment.name, channel, writer[channel], now=now)
        written.add(fragment.name)


def _too_early(reader: str, channel: str, writer: str, *, now: bool) -> GraphError:
    if now:
        return GraphError(
            f"fragment '{reader}' reads channel '{channel}' at age 0, but its writer "
            f"'{writer}' is scheduled later or at the same place: a cycle of age 0"
        )
    return GraphError(
        f"fragment '{reader}' reads channel '{channel}' in the first tick, before its writer "
        f"'{writer}' has stepped: give that fragment a publish"
    )


def _check_rounds(graph: Graph) -> None:
    """Check that only members of a cycle read its channels at age 0, because they change from round
    to round.
    """
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
