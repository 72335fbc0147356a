"""Moving pictures of a trained policy: a page with one greedy episode, for worlds that have a body."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import envs
from jaxrl_fast.core import PyTree
from jaxrl_fast.environments.env import Env, VecEnv, vectorize
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.evaluation.episodes import player
from jaxrl_fast.policy.policies import Policy


def greedy_episode(policy: Policy, world: Env, key: jax.Array, num_steps: int) -> tuple[PyTree, int]:
    """The states of one greedy episode, leaves ``[num_steps, ...]``, and how many of them it really has."""
    env = vectorize(world, num_envs=1)

    @jax.jit
    def states(params: PyTree) -> tuple[PyTree, jax.Array]:
        start, step = player(policy.act, policy.initial_carry, env, params, key)
        return jax.lax.scan(lambda now, _: (step(now), (now.state.world, now.finished)), start, length=num_steps)[1]

    worlds, finished = states(policy.params)
    return jax.tree.map(lambda x: x[:, 0], worlds), int(jnp.sum(~finished))


def write_policy_html(policy: Policy, world: Env, path: Path, *, world_options: dict[str, Any], seed: int = 0) -> None:
    """``policy.html``: a greedy episode in brax's viewer, which a browser loads from the network."""
    from envs import from_brax

    limit = world.spec.max_episode_steps or from_brax.MAX_EPISODE_STEPS
    states, length = greedy_episode(policy, world, jax.random.key(seed), limit)
    path.write_text(from_brax.render(jax.tree.map(lambda x: x[:length], states), **world_options))


def draw_policy(
    policy: Policy, env: VecEnv | HostEnv, name: str, options: dict[str, Any], seed: int, folder: Path
) -> bool:
    """Write ``policy.html`` for brax's worlds, and say whether there is one; a page that cannot be made does not spoil
    a run that has been trained. ``name`` and ``options`` are those of ``envs.make``."""
    suite, options = envs.resolve(name, dict(options))
    if suite != "brax" or isinstance(env, HostEnv) or env.world is None:
        return False
    try:
        write_policy_html(policy, env.world, folder / "policy.html", world_options=options, seed=seed)
    except Exception as error:
        print(f"no policy.html: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
