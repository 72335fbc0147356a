"""Collection of data: whole episodes of a policy, or the steps that a run has in its replay buffer."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import EnvSpec, Extras, PyTree, Transition, require_vectorized
from jaxrl_fast.envs.env import VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.host_rollout import HostRecord, as_rollout
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.learning.rollout import SamplerState, start, unroll
from jaxrl_fast.offline.datasets import Dataset, episodes_in, join, made_here, named_leaves
from jaxrl_fast.policy.policies import (
    Policy,
    PolicyParams,
    built_again,
    by_name,
    from_names,
    require_policy,
)
from jaxrl_fast.runtime.xla_options import acting_options
from jaxrl_fast.settings.run import MADE
from jaxrl_fast.training import checkpoints
from jaxrl_fast.training.callbacks import ShouldStop, to_stderr
from jaxrl_fast.training.checkpoints import CheckpointError, CheckpointFacts
from jaxrl_fast.training.episodes import (
    act_by_step,
    describe_cut,
    evaluation_limit,
    host_seed,
    steps_on_host,
    tell_limit,
)

MAX_ENVS, MAX_HOST_ENVS = 64, 16
"""Most environments that play episodes at the same time, compiled and on the host."""
CHUNK_STEPS = 256
"""Steps of each compiled environment between two transfers to host memory."""


class NothingCollected(ValueError):
    """No episode ended before the collection was stopped."""


def collect_episodes(
    policy: Policy,
    env: VecEnv | HostEnv,
    *,
    episodes: int,
    seed: int = 0,
    should_stop: ShouldStop = lambda: False,
) -> Dataset:
    """Play whole episodes and return all their steps.

    Args:
        policy: Policy, greedy or with sampled actions (`with_sampled_actions`).
        env: Environment, of which copies are made.
        episodes: Number of episodes, each with a new initial state.
        seed: Seed of the episodes.
        should_stop: Called often; after a true answer, the episodes so far are returned.

    Returns:
        The data set.

    Raises:
        ValueError: ``episodes`` is not positive, or the environment cannot be copied.
        NothingCollected: No episode ended before ``should_stop``.
    """
    require_vectorized(env)
    require_policy(policy, env.spec)
    if episodes < 1:
        raise ValueError(f"episodes={episodes}: write a whole number of at least 1")
    tell_limit(env.spec.max_episode_steps)
    limit = evaluation_limit(env.spec.max_episode_steps)
    key = jax.random.fold_in(jax.random.key(seed), 0xC011)
    found: list[Transition] = []
    given = key, episodes, limit, should_stop
    rounds = (
        _compiled_rounds(policy, env, *given)
        if isinstance(env, VecEnv)
        else _host_rounds(policy, env, *given)
    )
    for rollout in rounds:
        found += [_first_episode(rollout, e, limit) for e in range(rollout.reward.shape[1])]
    if not found:
        raise NothingCollected("stopped before the first episodes ended: nothing is collected")
    lengths = [len(episode.reward) for episode in found[:episodes]]
    if line := describe_cut(lengths, env.spec.max_episode_steps):
        to_stderr(line)
    about = {"algo": policy.made_by.get("algo", "own"), "seed": seed, **made_here()}
    return join(found[:episodes], env.spec, about)


def _first_episode(rollout: Transition, env: int, limit: int) -> Transition:
    """Return the first episode of an environment, or its first steps if it is longer than
    ``limit``.
    """
    done = (rollout.terminated | rollout.truncated)[:, env]
    length = min(int(np.argmax(done)) + 1 if done.any() else len(done), limit)
    return jax.tree.map(lambda x: x[:length, env], rollout)


def _joined(parts: list[Transition]) -> Transition:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _compiled_rounds(
    policy: Policy, env: VecEnv, key: jax.Array, episodes: int, limit: int, should_stop: ShouldStop
) -> Iterator[Transition]:
    """Yield steps ``[T, E, ...]`` with at least an episode of each environment."""
    if env.env is None:
        raise ValueError(
            "this environment cannot be copied to collect data: make it with jaxrl_fast.vectorize"
        )
    own = vectorize(env.env, num_envs=min(episodes, MAX_ENVS))

    def act(params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array) -> tuple:
        action, carry = policy.act_arrays(params, carry, obs, first, key)
        return action, carry, Extras({}, {})

    def chunk(
        params: PyTree, state: SamplerState, key: jax.Array
    ) -> tuple[SamplerState, Transition]:
        return unroll(own, lambda *given: act(params, *given), state, key, min(CHUNK_STEPS, limit))[
            :2
        ]

    begin = jax.jit(lambda key: start(own, policy.initial_carry(own.num_envs), key))
    run = jax.jit(chunk, compiler_options=acting_options())
    for number in range(-(-episodes // own.num_envs)):
        begin_key, own_key = jax.random.split(jax.random.fold_in(key, number))
        state, parts, finished = begin(begin_key), list[Transition](), np.zeros(own.num_envs, bool)
        while not finished.all() and len(parts) * CHUNK_STEPS < limit:
            if should_stop():
                return
            state, rollout = run(policy.params, state, jax.random.fold_in(own_key, len(parts)))
            parts.append(jax.device_get(rollout))
            finished |= (parts[-1].terminated | parts[-1].truncated).any(0)
        yield _joined(parts)


def _host_rounds(
    policy: Policy, env: HostEnv, key: jax.Array, episodes: int, limit: int, should_stop: ShouldStop
) -> Iterator[Transition]:
    """Yield steps ``[T, E, ...]`` with at least an episode of each environment."""
    act, num_envs = act_by_step(policy), min(episodes, MAX_HOST_ENVS)
    with closing(env.another(num_envs)) as own:
        for number in range(-(-episodes // num_envs)):
            seed = host_seed(jax.random.fold_in(key, number))
            records, finished = list[HostRecord](), np.zeros(num_envs, bool)
            for record in islice(
                steps_on_host(act, policy.initial_carry, own, policy.params, seed), limit
            ):
                if should_stop():
                    return
                records.append(record)
                finished |= record.step.terminated | record.step.truncated
                if finished.all():
                    break
            yield as_rollout(
                jax.tree.map(lambda *steps: np.stack(steps), *records), Extras({}, {})
            )[0]


def policy_at(path: Path, policy: Policy, algorithm: AnyAlgorithm) -> Policy:
    """Return the policy of a checkpoint, of the first seed.

    Args:
        path: Checkpoint.
        policy: Another policy of the same run.
        algorithm: Algorithm of the run.

    Returns:
        The policy.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or of another run.
    """
    description = checkpoints.read_description(path)
    arrays = checkpoints.read_arrays(description)
    agent, _ = built_again(policy.spec, policy.made_by, algorithm)
    leaves = {}
    for name, wanted in by_name(policy.params).items():
        kind, *rest = name.split("/")
        inner = (
            [rest[0], "params", agent.acts[rest[0]], *rest[1:]]
            if kind == "parts"
            else ["statistics", "obs", *rest]
        )
        found = arrays.get(".".join(["channels", *inner]))
        if found is None or found.shape[found.ndim - wanted.ndim :] != wanted.shape:
            raise CheckpointError(f"checkpoint {path} has no {name} of this policy: write another")
        leaves[name] = jnp.asarray(_of_first_seed(found, description))
    params: PolicyParams = from_names(policy.params, leaves)
    return policy._replace(params=params)


def _of_first_seed(array: np.ndarray, description: CheckpointFacts) -> np.ndarray:
    return array[0] if description.settings.get("num_seeds", 1) > 1 else array


def stored_steps(path: Path, spec: EnvSpec) -> Dataset:
    """Return the steps in the replay buffer of a checkpoint, of the first seed, oldest first.

    Args:
        path: Checkpoint.
        spec: Environment.

    Returns:
        The data set. Its first and last episodes may be cut.

    Raises:
        CheckpointError: The checkpoint has no replay buffer, or one of images.
    """
    description = checkpoints.read_description(path)
    if not description.refills or description.replay_lost:
        raise CheckpointError(f"checkpoint {path} has no replay buffer: leave replay=true out")
    arrays = checkpoints.read_arrays(description)
    rewards = [
        name
        for name in arrays
        if name.startswith("private.experience.") and name.endswith("data.reward")
    ]
    # of a run with data, the steps that it sampled
    rewards = [name for name in rewards if ".recorded." not in name]
    if len(rewards) != 1:
        raise CheckpointError(f"checkpoint {path} stores images only once: leave replay=true out")
    prefix = rewards[0].removesuffix("data.reward")

    def ring(name: str) -> np.ndarray:
        return _of_first_seed(arrays[f"{prefix}{name}"], description)

    steps, capacity = int(ring("steps")), ring("data.reward").shape[1]
    if not steps:
        raise CheckpointError(f"checkpoint {path} has an empty replay buffer: train further")
    order = np.arange(max(0, steps - capacity), steps) % capacity

    def in_time(name: str) -> np.ndarray:
        leaf = ring(f"data.{name}")[:, order].swapaxes(0, 1)
        return leaf.reshape(len(order), -1, *leaf.shape[3:])

    def observed(name: str) -> PyTree:
        paths = [".".join([name, *path.split("/")]).rstrip(".") for path in named_leaves(spec.obs)]
        return jax.tree.unflatten(jax.tree.structure(spec.obs), [in_time(path) for path in paths])

    terminated: Any = in_time("terminated")
    truncated: Any = in_time("truncated")
    action: Any = in_time("action")
    reward: Any = in_time("reward")
    first: Any = np.zeros_like(terminated)
    rollout = Transition(
        obs=observed("obs"),
        action=action,
        reward=reward,
        next_obs=observed("next_obs"),
        terminated=terminated,
        truncated=truncated,
        first=first,
        extras=Extras({}, {}),
    )
    about = {
        "algo": description.settings.get(f"{MADE}algo", description.settings.get("algo", "own")),
        "replay": f"of {description.path.name} steps",
    }
    return join(episodes_in(rollout), spec, {**about, **made_here()})
