"""``policy.html``: one greedy episode of a trained policy in brax's viewer, for brax's environments."""

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


def greedy_episode(policy: Policy, env: Env, key: jax.Array, num_steps: int) -> tuple[PyTree, int]:
    """The states of one greedy episode, leaves ``[num_steps, ...]``, and how many of them belong to it."""
    one = vectorize(env, num_envs=1)

    @jax.jit
    def states(params: PyTree) -> tuple[PyTree, jax.Array]:
        start, step = player(policy.act, policy.initial_carry, one, params, key)
        return jax.lax.scan(lambda now, _: (step(now), (now.state.env_state, now.finished)), start, length=num_steps)[1]

    env_states, finished = states(policy.params)
    return jax.tree.map(lambda x: x[:, 0], env_states), int(jnp.sum(~finished))


def write_policy_html(policy: Policy, env: Env, path: Path, *, options: dict[str, Any], seed: int = 0) -> None:
    """Write a greedy episode in brax's viewer, which a browser loads from the network, to ``path``; ``options`` are
    those of the environment."""
    from envs import from_brax

    limit = env.spec.max_episode_steps or from_brax.MAX_EPISODE_STEPS
    states, length = greedy_episode(policy, env, jax.random.key(seed), limit)
    path.write_text(from_brax.render(jax.tree.map(lambda x: x[:length], states), **options))


def draw_policy(
    policy: Policy, env: VecEnv | HostEnv, name: str, options: dict[str, Any], seed: int, folder: Path
) -> bool:
    """Write ``policy.html`` if the environment is one of brax's; return whether it was written. Where that fails, a
    line on stderr says so, since the run itself has succeeded. ``name`` and ``options`` are those of ``envs.make``."""
    suite, options = envs.resolve(name, dict(options))
    if suite != "brax" or isinstance(env, HostEnv) or env.env is None:
        return False
    try:
        write_policy_html(policy, env.env, folder / "policy.html", options=options, seed=seed)
    except Exception as error:
        print(f"no policy.html: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
