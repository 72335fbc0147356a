"""``policy.html``: one greedy episode of a trained policy, for brax's environments."""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import envs
from jaxrl_fast.environments.env import Env, VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.environments.scene import Motion
from jaxrl_fast.evaluation.episode_page import page_of
from jaxrl_fast.evaluation.watching import Watched, watch
from jaxrl_fast.files import replace_file
from jaxrl_fast.policy.policies import Policy


def watch_bodies(policy: Policy, env: Env, key: jax.Array, *, max_steps: int | None = None) -> tuple[Motion, Watched]:
    """The first episode of the greedy policy in one of brax's environments: how its bodies move, and what else is known
    of it. ``max_steps``: cut it after so many."""
    from envs.from_brax import pose_of

    watched = watch(policy, env, key, see=pose_of, max_steps=max_steps)
    positions, rotations = jax.tree.map(np.asarray, watched.seen)
    return Motion(positions, rotations, watched.rewards, watched.end == "terminated"), watched


def write_policy_html(policy: Policy, env: Env, path: Path, *, options: dict[str, Any], seed: int = 0) -> None:
    """Write a greedy episode to ``path``, a page that needs nothing but itself; ``options`` are those of the
    environment.

    Raises:
        ValueError: it has no bodies, or they are somewhere that is not a number.
    """
    from envs import from_brax

    scene = from_brax.scene_of(**{name: value for name, value in options.items() if name != "frame_stack"})
    motion, _ = watch_bodies(policy, env, jax.random.key(seed))
    replace_file(path, page_of(scene, motion))


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
