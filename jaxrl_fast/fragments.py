"""The fragments of a reinforcement-learning run, and the graph they form.

::

    sample ──rollout──▶ statistics ──statistics──▶ (next tick)
       │
       └──rollout──▶ experience ──batches──▶ learn ──actor, critic──▶ (next tick)
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_fast.algorithm import Agent, Algorithm, Part, PartState, Statistics, all_finite, drop_nonfinite
from jaxrl_fast.buffers import take_batch
from jaxrl_fast.core import Batches, Metrics, PyTree, Transition
from jaxrl_fast.env import VecEnv
from jaxrl_fast.graph import Channels, Fragment, Graph, check, stable_hash
from jaxrl_fast.normalize import init_stats, normalize, update_stats
from jaxrl_fast.rollout import SamplerState, start, unroll
from jaxrl_fast.schedules import has_schedule, resolve

Overlap = Literal["none", "sampling", "actor_critic", "all"]
OnNan = Literal["stop", "skip"]
"""What a number that is not finite does: end the run, or be left out of what is learned."""
DROPPED = "dropped_updates"


class StatisticsState(NamedTuple):
    """``statistics`` so far and each environment's running discounted return ``[E]``."""

    statistics: Statistics
    discounted: jax.Array


def sample_fragment(env: VecEnv, agent: Agent) -> Fragment:
    """Steps the environments with the exploring policy; writes ``rollout`` ``[T, E, ...]``."""
    reads = agent.acting_parts + (("statistics",) if agent.normalize_observations else ())

    def init(key: jax.Array) -> SamplerState:
        return start(env, agent.initial_carry(env.num_envs), key)

    def step(private: SamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        params = {name: inputs[name] for name in agent.acting_parts}

        def act(carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
            return agent.explore(params, carry, _seen(inputs.get("statistics"), obs), first, key)

        private, rollout, metrics = unroll(env, act, private, key, agent.rollout_length)
        return private, {"rollout": rollout}, metrics

    return Fragment(
        "sample", init, step, reads, ("rollout",),
        private_axes=0, write_axes={"rollout": 1}, width=env.num_envs, unit="environments",
    )  # fmt: skip


def statistics_fragment(env: VecEnv, agent: Agent, nan: OnNan = "stop") -> Fragment:
    """The one writer of ``statistics``: observations and discounted returns, merged over all environments.

    With ``nan="skip"`` it passes over rollouts that are not finite throughout: one NaN would stay in it for ever.
    """

    def init(key: jax.Array) -> StatisticsState:
        statistics = Statistics(init_stats(env.spec.obs), init_stats(jax.ShapeDtypeStruct((), jnp.float32)))
        return StatisticsState(statistics, jnp.zeros(env.num_envs, jnp.float32))

    def step(private: StatisticsState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        rollout: Transition = inputs["rollout"]
        statistics, discounted = private
        if agent.normalize_rewards:
            discounted, history = _discounted_returns(discounted, rollout, hyper)
            statistics = statistics._replace(returns=update_stats(statistics.returns, history, 2))
        if agent.normalize_observations:
            statistics = statistics._replace(obs=update_stats(statistics.obs, rollout.obs, 2))
        after = StatisticsState(statistics, discounted)
        if nan == "skip":
            sound = all_finite((rollout.obs, rollout.reward))
            after = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, private)
        return after, {"statistics": after.statistics}, {}

    return Fragment(
        "statistics", init, step, ("rollout",), ("statistics",), publish=lambda p: {"statistics": p.statistics},
        private_axes=StatisticsState(statistics=None, discounted=0), width=env.num_envs,  # type: ignore[arg-type]
        unit="environments",
    )  # fmt: skip


def experience_fragment(env: VecEnv, agent: Agent) -> Fragment:
    """Turns rollouts into the ``batches`` of a tick's gradient updates; a replay buffer lives here."""
    reads = ("rollout", *agent.experience.reads) + (("statistics",) if _needs_statistics(agent) else ())

    def init(key: jax.Array) -> PyTree:
        return agent.experience.init(rollout_shapes(env, agent))

    def step(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        params = {name: inputs[name] for name in agent.experience.reads}
        private, batches = agent.experience.step(
            private, inputs["rollout"], params, inputs.get("statistics"), hyper, key
        )
        return private, {"batches": batches}, {}

    return Fragment(
        "experience", init, step, reads, ("batches",), private_axes=agent.experience.state_axes,
        write_axes={"batches": Batches(data=0, indices=1)}, width=agent.experience.shards,  # type: ignore[arg-type]
        unit="logical shards (common divisor of 8, num_envs and the batch)",
    )  # fmt: skip


def alternate(parts: dict[str, Part], start: int = 0, nan: OnNan = "stop") -> Fragment:
    """A learner in which the parts take turns at every gradient update, as SAC and TD3 are published."""
    parts = _guarded(parts, nan)
    names = tuple(parts)

    def init(key: jax.Array) -> dict[str, PartState]:
        return {name: _init_part(parts[name], name, key) for name in names}

    def step(private: dict[str, PartState], inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        batches: Batches = inputs["batches"]

        def update(states: dict[str, PartState], xs: tuple[jax.Array, jax.Array]) -> tuple[dict, Metrics]:
            index, key = xs
            batch = take_batch(batches.data, index)
            metrics: Metrics = {}
            for name, part_key in zip(names, jax.random.split(key, len(names)), strict=True):
                peers = {other: state.params for other, state in states.items()}
                new, own = parts[name].update(states[name], peers, batch, part_key, hyper)
                states = {**states, name: new}
                metrics |= {f"{name}/{metric}": value for metric, value in own.items()}
            return states, metrics

        keys = jax.random.split(key, batches.indices.shape[0])
        private, metrics = jax.lax.scan(update, private, (batches.indices, keys))
        norms = {f"{name}/param_norm": _norm(private[name].params) for name in names}
        return private, publish(private), {**_over_updates(metrics, nan), **norms}

    def publish(private: dict[str, PartState]) -> Channels:
        return {name: private[name].params for name in names}

    return Fragment("learn", init, step, ("batches",), names, publish, start=start)


def side_by_side(parts: dict[str, Part], start: int = 0, nan: OnNan = "stop") -> tuple[Fragment, ...]:
    """A learner of one fragment per part, each making all K updates of a tick against the others' parameters of
    the last tick, so that they can be placed apart and run at the same time."""
    others = {name: tuple(other for other in parts if other != name) for name in parts}
    return tuple(_part_fragment(name, part, others[name], start, nan) for name, part in _guarded(parts, nan).items())


def build_graph(
    env: VecEnv,
    algorithm: Algorithm,
    *,
    overlap: Overlap = "none",
    total_steps: int | None = None,
    nan: OnNan = "stop",
    empty_until: int = 0,
) -> tuple[Graph, Agent]:
    """The graph of one run. ``overlap`` chooses the edges that lag a tick; it changes what is computed, and
    computes the same under every placement. ``nan="skip"`` leaves out the updates that would give a number that is not
    finite. ``empty_until``: the tick at which replay is filled from, later than 0 where a resumed run has lost it.

    Raises:
        ValueError: algorithm and environment do not fit, or a schedule has no ``total_steps`` to run over.
    """
    agent = algorithm.build(env.spec, env.num_envs)
    steps_per_tick = env.num_envs * agent.rollout_length
    if has_schedule(algorithm.hyper) and total_steps is None:
        raise ValueError(f"a schedule among the rates of {algorithm.name} needs total_steps")
    lag = overlap in ("sampling", "all")
    split = overlap in ("actor_critic", "all")
    start = empty_until + agent.warmup_ticks + lag
    learners = side_by_side(agent.parts, start, nan) if split else (alternate(agent.parts, start, nan),)
    statistics = (statistics_fragment(env, agent, nan),) if _needs_statistics(agent) else ()
    fragments = (sample_fragment(env, agent), *statistics, experience_fragment(env, agent), *learners)

    last_tick = {"statistics", *agent.parts}
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in last_tick}
    delays |= {(f.name, "batches"): 1 for f in learners if lag}

    def hyper_at(hyper: Any, tick: jax.Array) -> Any:
        return resolve(hyper, jnp.clip(tick * (steps_per_tick / (total_steps or steps_per_tick)), 0.0, 1.0))

    graph = Graph(fragments, delays, hyper_at)
    check(graph)
    return graph, agent


def rollout_shapes(env: VecEnv, agent: Agent) -> Transition:
    """The shapes of a rollout ``[T, E, ...]``, found without tracing the environment, which can take seconds."""

    def one_step(key: jax.Array) -> Transition:
        params = {name: agent.parts[name].init(key).params for name in agent.acting_parts}
        obs = jax.tree.map(lambda s: jnp.zeros((env.num_envs, *s.shape), s.dtype), env.spec.obs)
        flag, reward = jnp.zeros(env.num_envs, bool), jnp.zeros(env.num_envs, jnp.float32)
        action, _, extras = agent.explore(params, agent.initial_carry(env.num_envs), obs, flag, key)
        return Transition(obs, action, reward, obs, flag, flag, flag, extras)

    step = jax.eval_shape(one_step, jax.random.key(0))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((agent.rollout_length, *x.shape), x.dtype), step)


def _part_fragment(name: str, part: Part, others: tuple[str, ...], start: int, nan: OnNan) -> Fragment:
    def init(key: jax.Array) -> PartState:
        return _init_part(part, name, key)

    def step(private: PartState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        batches: Batches = inputs["batches"]

        def update(state: PartState, xs: tuple[jax.Array, jax.Array]) -> tuple[PartState, Metrics]:
            index, key = xs
            peers = {other: inputs[other] for other in others} | {name: state.params}
            return part.update(state, peers, take_batch(batches.data, index), key, hyper)

        keys = jax.random.split(key, batches.indices.shape[0])
        private, metrics = jax.lax.scan(update, private, (batches.indices, keys))
        return private, publish(private), {**_over_updates(metrics, nan), "param_norm": _norm(private.params)}

    def publish(private: PartState) -> Channels:
        return {name: private.params}

    return Fragment(f"learn_{name}", init, step, ("batches", *others), (name,), publish, start=start)


def _init_part(part: Part, name: str, key: jax.Array) -> PartState:
    return part.init(jax.random.fold_in(key, stable_hash(name)))


def _norm(params: PyTree) -> jax.Array:
    """Of parameters at the end of a tick: not finite if any of them is not, whatever the losses say."""
    return optax.tree.norm(params)


def _guarded(parts: dict[str, Part], nan: OnNan) -> dict[str, Part]:
    return {name: drop_nonfinite(part) for name, part in parts.items()} if nan == "skip" else parts


def _over_updates(metrics: Metrics, nan: OnNan) -> Metrics:
    """Means over the updates of a tick, dropped ones left out and counted."""
    if nan == "stop":
        return {name: jnp.mean(values) for name, values in metrics.items()}

    def mean(values: jax.Array) -> jax.Array:
        finite = jnp.isfinite(values)
        return jnp.sum(jnp.where(finite, values, 0.0)) / jnp.maximum(jnp.sum(finite), 1)

    return {name: jnp.sum(v) if name.endswith(DROPPED) else mean(v) for name, v in metrics.items()}


def _needs_statistics(agent: Agent) -> bool:
    return agent.normalize_observations or agent.normalize_rewards


def _seen(statistics: Statistics | None, obs: PyTree) -> PyTree:
    return obs if statistics is None else normalize(statistics.obs, obs)


def _discounted_returns(before: jax.Array, rollout: Transition, hyper: Any) -> tuple[jax.Array, jax.Array]:
    """Each environment's discounted return so far at every step ``[T, E]``, carried over from rollout to rollout."""

    def step(total: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, done = xs
        total = total * hyper.discount + reward * hyper.reward_scale
        return jnp.where(done, 0.0, total), total

    return jax.lax.scan(step, before, (rollout.reward, rollout.terminated | rollout.truncated))
