"""Host environments in the graph: sampling driven from Python, and whole episodes for evaluation.

Actions are computed on the devices of the sampling fragment's group, for one group of environments while the others
are being stepped (double buffering, as in Sample Factory, arXiv 2006.11751, section 3.1).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.algorithm import Agent
from jaxrl_fast.core import EpisodeTotals, PyTree, Transition
from jaxrl_fast.graph import Channels, Fragment
from jaxrl_fast.host_env import HostEnv, HostStep
from jaxrl_fast.normalize import normalize
from jaxrl_fast.policy import Policy, PolicyParams

T = TypeVar("T")
R = TypeVar("R")
STEP_LIMIT = 100_000
"""Where an evaluation episode of an environment without a time limit is cut, in steps."""


MAX_STEPS = 2**31
"""Where the count of steps begins anew: it is an int32."""


class HostSamplerState(NamedTuple):
    """As `rollout.SamplerState`; ``steps`` over all environments since they were last started, int32."""

    steps: Any
    obs: PyTree
    first: Any
    carry: PyTree


class HostRecord(NamedTuple):
    """What happened at one step of one group; ``extras`` are still on the device."""

    obs: PyTree
    first: Any
    action: np.ndarray
    extras: PyTree
    step: HostStep


def host_sample_fragment(env: HostEnv, agent: Agent, rollout_shapes: Transition) -> Fragment:
    """As `fragments.sample_fragment` for environments outside JAX.

    The environments are started anew in the first tick, and wherever their count of steps is not that of the state:
    after a resume, episodes begin again.
    """
    reads = agent.acting_parts + (("statistics",) if agent.normalize_observations else ())
    groups, size = env.num_groups, env.num_envs // env.num_groups

    @jax.jit
    def act(inputs: Channels, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array, i: int) -> tuple:
        params = {name: inputs[name] for name in agent.acting_parts}
        seen = normalize(inputs["statistics"].obs, obs) if agent.normalize_observations else obs
        return agent.explore(params, carry, seen, first, jax.random.fold_in(key, i))

    def init(key: jax.Array) -> HostSamplerState:
        obs = jax.tree.map(lambda s: jnp.zeros((env.num_envs, *s.shape), s.dtype), env.spec.obs)
        first = jnp.ones(env.num_envs, bool)
        return HostSamplerState(jnp.zeros((), jnp.int32), obs, first, agent.initial_carry(env.num_envs))

    def publish(private: HostSamplerState) -> Channels:
        return {"rollout": jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), rollout_shapes)}

    def step(private: HostSamplerState, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        now = _begin(env, agent, private, key)
        now = now._replace(obs=jax.device_get(now.obs), first=np.asarray(now.first))
        waiting: list[tuple] = [_slice(now, group, size) for group in range(groups)]
        records: list[list[HostRecord]] = []
        for t in range(agent.rollout_length + 1):
            row = []
            for group in range(groups):
                obs, first, carry, sent = waiting[group]
                if sent is not None:
                    result = env.recv(group)
                    row.append(HostRecord(obs, first, sent[0], sent[1], result))
                    obs, first = result.obs, result.terminated | result.truncated
                if t < agent.rollout_length:
                    action, carry, extras = act(inputs, carry, obs, first, key, t * groups + group)
                    sent = np.asarray(action), extras
                    env.send(sent[0], group)
                waiting[group] = obs, first, carry, sent
            records += [row] if row else []
        rollout, metrics = _collect(records)
        steps = np.int32(env.steps() % MAX_STEPS)
        return HostSamplerState(steps, *_join([w[:3] for w in waiting])), {"rollout": rollout}, metrics

    return Fragment("sample", init, step, reads, ("rollout",), publish, host=True)


def play_on_host(
    act: Callable[..., Any], initial_carry: Callable[[int], PyTree], env: HostEnv, params: PyTree, seed: int
) -> EpisodeTotals:
    """The first episode of every environment, totals ``[E]``, as `evaluation.play`. ``act`` should be compiled."""
    obs = env.reset(seed)
    finished = np.zeros(env.num_envs, bool)
    totals = EpisodeTotals(np.zeros(env.num_envs, np.float32), np.zeros(env.num_envs, np.int32))  # type: ignore[arg-type]
    carry, first = initial_carry(env.num_envs), ~finished
    key = jax.random.key(seed)
    for _ in range(env.spec.max_episode_steps or STEP_LIMIT):
        action, carry = act(params, carry, obs, first, key)
        env.send(np.asarray(action), 0)
        step = env.recv(0)
        obs, first = step.obs, step.terminated | step.truncated
        own = EpisodeTotals(step.episode_return, step.episode_length)  # type: ignore[arg-type]
        totals = jax.tree.map(partial(np.where, finished), totals, own)
        finished = finished | first
        if finished.all():
            break
    return totals


def evaluation_on_host(
    policy: Policy, env: HostEnv, episodes: int
) -> Callable[[PolicyParams, jax.Array], EpisodeTotals]:
    """``evaluate(params, keys)``: totals ``[1, episodes]``, always from the same starts, in environments of its own."""
    act = jax.jit(policy.act)

    def evaluate(params: PolicyParams, keys: jax.Array) -> EpisodeTotals:
        worlds = env.another(episodes)
        try:
            seed = int(jax.random.bits(jax.random.fold_in(keys[0], 0xE7A1), (), jnp.uint32))
            one = jax.tree.map(lambda x: x[0], params)
            totals = play_on_host(act, policy.initial_carry, worlds, one, seed)
        finally:
            worlds.close()
        return jax.tree.map(lambda x: x[None], totals)

    return evaluate


def telling(run: Callable[[T], R], env: HostEnv, tell: Callable[[str], None]) -> Callable[[T], R]:
    """``run``, after which what has happened in the environments is told."""

    def call(state: T) -> R:
        result = run(state)
        for line in env.events():
            tell(line)
        return result

    return call


def _begin(env: HostEnv, agent: Agent, private: HostSamplerState, key: jax.Array) -> HostSamplerState:
    """Where the environments stand, if that is where the state left them; else their start."""
    taken = int(private.steps)
    if taken and env.steps() % MAX_STEPS == taken:
        return private
    seed = int(jax.random.bits(key, (), jnp.uint32))
    first = np.ones(env.num_envs, bool)
    return HostSamplerState(np.int32(0), env.reset(seed), first, agent.initial_carry(env.num_envs))


def _slice(state: HostSamplerState, group: int, size: int) -> tuple[PyTree, Any, PyTree, None]:
    def part(leaf: Any) -> Any:
        return leaf[group * size : (group + 1) * size]

    return *jax.tree.map(part, (state.obs, state.first, state.carry)), None


def _join(groups: list[PyTree]) -> PyTree:
    """Groups side by side again, leaves ``[E, ...]``."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(groups))


def _collect(records: list[list[HostRecord]]) -> tuple[Transition, dict[str, Any]]:
    """The rollout ``[T, E, ...]`` and its sums, as `rollout.unroll` gives them, in memory of its own."""
    rows = [_join(row) for row in jax.device_get(records)]
    all_: HostRecord = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    step = all_.step
    fields: Any = (
        all_.obs, all_.action, step.reward, step.next_obs, step.terminated, step.truncated, all_.first, all_.extras
    )  # fmt: skip
    done = (step.terminated | step.truncated) & (step.episode_length > 0)  # not a step that was lost
    real = [x for x in jax.tree.leaves((step.next_obs, step.reward)) if np.issubdtype(x.dtype, np.floating)]
    bad = np.any([~np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in real], axis=0)
    metrics = {
        "episodes": np.int32(done.sum()),
        "episode_return_sum": np.float32(np.where(done, step.episode_return, 0.0).sum()),
        "episode_length_sum": np.int32(np.where(done, step.episode_length, 0).sum()),
        "nonfinite_step": np.int32(np.argmax(bad) if bad.any() else -1),
    }
    return Transition(*fields), metrics
