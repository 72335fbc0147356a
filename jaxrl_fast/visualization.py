"""Moving pictures of a trained policy: a page with one greedy episode, for worlds that have a body."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.env import Env
from jaxrl_fast.policy import Policy


def greedy_episode(policy: Policy, world: Env, key: jax.Array, num_steps: int) -> tuple[PyTree, int]:
    """The states of one greedy episode, leaves ``[num_steps, ...]``, and how many of them it really has."""
    params_key, reset_key, step_key = jax.random.split(key, 3)
    state, obs = world.reset(reset_key, world.sample_params(params_key))

    def step(loop: tuple, key: jax.Array) -> tuple[tuple, tuple[PyTree, jax.Array]]:
        state, obs, first, carry = loop
        batch = jax.tree.map(lambda x: x[None], obs)
        action, carry = policy.act(policy.params, carry, batch, first[None], key)
        following, timestep = world.step(state, action[0], key)
        done = timestep.terminated | timestep.truncated
        return (following, timestep.next_obs, jnp.zeros((), bool), carry), (state, done)

    start = state, obs, jnp.ones((), bool), policy.initial_carry(1)
    _, (states, done) = jax.jit(lambda s, keys: jax.lax.scan(step, s, keys))(
        start, jax.random.split(step_key, num_steps)
    )
    ended = jnp.flatnonzero(done)
    return states, int(ended[0]) + 1 if ended.size else num_steps


def write_policy_html(policy: Policy, world: Env, path: Path, *, world_options: dict[str, Any], seed: int = 0) -> None:
    """``policy.html``: a greedy episode in brax's viewer, which a browser loads from the network."""
    from envs import from_brax

    limit = world.spec.max_episode_steps or from_brax.MAX_EPISODE_STEPS
    states, length = greedy_episode(policy, world, jax.random.key(seed), limit)
    path.write_text(from_brax.render(jax.tree.map(lambda x: x[:length], states), **world_options))
