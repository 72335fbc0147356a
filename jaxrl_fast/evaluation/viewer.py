"""``policy.html``: one greedy episode of a trained policy, for brax's environments."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs
from jaxrl_fast.core import PyTree, Timestep
from jaxrl_fast.environments.env import Env, VecEnv, vectorize
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.environments.scene import Motion
from jaxrl_fast.evaluation.episode_page import page_of
from jaxrl_fast.evaluation.episodes import player
from jaxrl_fast.policy.policies import Policy


def unending(env: Env) -> Env:
    """``env`` without an end of its episodes: many of them side by side never reset, so the state in which an episode
    terminated, the fall itself, stays there to be seen."""

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, timestep = env.step(state, action, key)
        never = jnp.zeros_like(timestep.terminated)
        return following, timestep._replace(terminated=never, truncated=never)

    return env._replace(spec=env.spec._replace(max_episode_steps=None), step=step)


def greedy_episode(policy: Policy, env: Env, key: jax.Array, *, max_steps: int) -> Motion:
    """The first episode of the greedy policy in one of brax's environments, cut after ``max_steps``."""
    from envs.from_brax import pose_of

    one = vectorize(unending(env), num_envs=1)

    @jax.jit
    def poses(params: PyTree) -> PyTree:
        start, step = player(policy.act, policy.initial_carry, one, params, key)
        seen = jax.lax.scan(lambda now, _: (step(now), pose_of(now.state.env_state)), start, length=max_steps + 1)[1]
        return jax.tree.map(lambda x: x[:, 0], seen)

    positions, rotations, rewards, done = jax.tree.map(np.asarray, poses(policy.params))
    terminated = bool(done[1:].any())
    steps = int(done[1:].argmax()) + 1 if terminated else max_steps
    return Motion(positions[: steps + 1], rotations[: steps + 1], rewards[1 : steps + 1], terminated)


def write_policy_html(policy: Policy, env: Env, path: Path, *, options: dict[str, Any], seed: int = 0) -> None:
    """Write a greedy episode to ``path``, a page that needs nothing but itself; ``options`` are those of the
    environment.

    Raises:
        ValueError: it has no bodies, or they are somewhere that is not a number.
    """
    from envs import from_brax

    scene = from_brax.scene_of(**options)
    limit = env.spec.max_episode_steps or from_brax.MAX_EPISODE_STEPS
    path.write_text(page_of(scene, greedy_episode(policy, env, jax.random.key(seed), max_steps=limit)), "utf-8")


def draw_policy(
    policy: Policy, env: VecEnv | HostEnv, name: str, options: dict[str, Any], seed: int, folder: Path
) -> bool:
    """Write ``policy.html`` if the environment is one of brax's; return whether it was written. Where that fails, a
    line on stderr says so, since the run itself has succeeded. ``name`` and ``options`` are those of ``envs.make``."""
    suite, options = envs.resolve(name, dict(options))
    if suite != "brax" or isinstance(env, HostEnv) or env.env is None:
        return False
    options.pop("frame_stack", None)
    try:
        write_policy_html(policy, env.env, folder / "policy.html", options=options, seed=seed)
    except Exception as error:
        print(f"no policy.html: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
