"""One episode of moving bodies as a self-contained HTML file with viewer and data."""

import base64
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import PyTree, Timestep
from jaxrl_fast.envs.env import Env, Geom, Motion, Scene, VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.xla_options import acting_options
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.episodes import Playing, evaluation_limit, player

ASSETS = files("jaxrl_fast.views") / "assets"
FULL_SCALE = 32767
"""The largest int16, which represents 1 in rotations and the largest offset in positions."""


def page_of(scene: Scene, motion: Motion) -> str:
    """Make the page of an episode.

    Args:
        scene: Bodies.
        motion: Motion of the bodies.

    Returns:
        HTML.

    Raises:
        ValueError: A position, rotation or reward is not finite.
    """
    # "<" in a title would end the script that contains the data.
    data = {
        "episode": json.dumps(described(scene, motion), allow_nan=False).replace("<", "\\u003c")
    }
    page = (ASSETS / "policy.html").read_text("utf-8")
    return re.sub(
        r"\{\{([\w.]+)\}\}", lambda at: data.get(at[1]) or (ASSETS / at[1]).read_text("utf-8"), page
    )


def described(scene: Scene, motion: Motion) -> dict[str, Any]:
    """Convert an episode for JSON. Arrays are base64 of little-endian numbers.

    A body may run for hundreds of metres, for which the resolution of int16 would be centimetres.
    So the mean over bodies is stored as float32, and each body's offset from it as a fraction of
    the largest offset, with a resolution of 0.03 mm for a body of 1 m. Rotations are int16, too.

    Args:
        scene: Bodies.
        motion: Motion of the bodies.

    Returns:
        Values for JSON.

    Raises:
        ValueError: A position, rotation or reward is not finite.
    """
    check_finite(motion)
    center = motion.positions.mean(axis=1, keepdims=True).astype("<f4")
    offsets = motion.positions - center
    reach = float(np.abs(offsets).max()) or 1.0
    return {
        "title": scene.title,
        "step_s": round(scene.step_s, 6),  # 0.05 is 0.049999997 in float32
        "steps": len(motion.rewards),
        "bodies": motion.positions.shape[1],
        "terminated": motion.terminated,
        "geoms": [_geom(geom) for geom in scene.geoms],
        "center": _base64(center),
        "reach": reach,
        "offsets": _base64(np.rint(offsets / reach * FULL_SCALE).astype("<i2")),
        "rotations": _base64(np.rint(np.clip(motion.rotations, -1, 1) * FULL_SCALE).astype("<i2")),
        "rewards": _base64(motion.rewards.astype("<f4")),
    }


def check_finite(motion: Motion) -> None:
    """Check that a motion can be drawn.

    Args:
        motion: Motion of the bodies.

    Raises:
        ValueError: A position, rotation or reward is not finite.
    """
    for what, numbers in zip(("a position", "a rotation", "a reward"), motion[:3], strict=True):
        if not np.isfinite(numbers).all():
            step = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)))
            raise ValueError(f"{what} of step {step:,} is not a finite number")


def _geom(geom: Geom) -> dict[str, Any]:
    fields = geom._asdict()
    if geom.mesh is not None:
        vertices, faces = geom.mesh
        fields["mesh"] = {
            "vertices": _base64(vertices.astype("<f4")),
            "faces": _base64(faces.astype("<u4")),
        }
    return fields


def _base64(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


class Watched(NamedTuple):
    """An episode of ``T`` steps.

    Attributes:
        seen: Observed arrays of its states, including the first and the last, leaves
            ``[T + 1, ...]``.
        rewards: Reward of each step, ``[T]``.
        end: ``terminated``, ``truncated``, or ``cut`` if it would continue after the requested
            steps.
    """

    seen: PyTree
    rewards: np.ndarray
    end: str


class _Moment(NamedTuple):
    """A state, and reward and end of the step that led to it."""

    state: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def watch(
    policy: Policy,
    env: Env,
    key: jax.Array,
    *,
    see: Callable[[PyTree], PyTree],
    max_steps: int | None = None,
) -> Watched:
    """Play the first episode of the greedy policy.

    It is the episode of `evaluate_episodes` with the same key and one environment.

    Args:
        policy: Policy.
        env: Environment.
        key: PRNG key.
        see: Pure function that selects arrays from a state of the environment.
        max_steps: Limit of steps, or None.

    Returns:
        The episode.
    """
    one = vectorize(_unending(env), num_envs=1)
    limit = evaluation_limit(env.spec.max_episode_steps)
    most = min(limit, max_steps or limit)

    @partial(jax.jit, compiler_options=acting_options())
    def moments(params: PyTree) -> PyTree:
        start, step = player(policy.act_arrays, policy.initial_carry, one, params, key)

        def advance(now: Playing, _: None) -> tuple[Playing, _Moment]:
            moment = now.state.env_state
            return step(now), moment._replace(state=jax.vmap(see)(moment.state))

        return jax.tree.map(lambda x: x[:, 0], jax.lax.scan(advance, start, length=most + 1)[1])

    made = moments(policy.params)
    terminated, truncated = np.asarray(made.terminated), np.asarray(made.truncated)
    done = terminated | truncated
    steps = int(done.argmax()) if done.any() else most
    end = (
        "terminated"
        if terminated[steps]
        else "truncated"
        if truncated[steps] or steps == limit
        else "cut"
    )
    states = jax.tree.map(lambda x: x[: steps + 1], made.state)
    return Watched(states, np.asarray(made.reward)[1 : steps + 1], end)


def _unending(env: Env) -> Env:
    """Wrap ``env`` so that episodes do not end, and the terminal state, such as a fall, remains
    visible.
    """

    def reset(key: jax.Array, params: PyTree) -> tuple[_Moment, PyTree]:
        state, obs = env.reset(key, params)
        never = jnp.zeros((), bool)
        return _Moment(state, jnp.zeros((), jnp.float32), never, never), obs

    def step(moment: _Moment, action: jax.Array, key: jax.Array) -> tuple[_Moment, Timestep]:
        state, ts = env.step(moment.state, action, key)
        following = _Moment(
            state=state,
            reward=jnp.sum(ts.reward.astype(jnp.float32)),  # over several agents
            terminated=ts.terminated.astype(bool),
            truncated=ts.truncated.astype(bool),
        )
        never = jnp.zeros((), bool)
        return following, ts._replace(terminated=never, truncated=never)

    return Env(env.spec._replace(max_episode_steps=None), reset, step, env.sample_params)


def watch_bodies(
    policy: Policy, env: Env, key: jax.Array, *, max_steps: int | None = None
) -> tuple[Motion, Watched]:
    """Play the first episode of the greedy policy in an environment with bodies.

    Args:
        policy: Policy.
        env: Environment with `Env.bodies`.
        key: PRNG key.
        max_steps: Limit of steps, or None.

    Returns:
        The motion of the bodies, and the episode.
    """
    assert env.bodies is not None
    watched = watch(policy, env, key, see=env.bodies.pose, max_steps=max_steps)
    positions, rotations = jax.tree.map(np.asarray, watched.seen)
    return Motion(positions, rotations, watched.rewards, watched.end == "terminated"), watched


def write_policy_html(policy: Policy, env: Env, path: Path, *, seed: int = 0) -> None:
    """Write a greedy episode as a self-contained page.

    Args:
        policy: Policy.
        env: Environment with `Env.bodies`.
        path: File to write.
        seed: Seed of the episode.

    Raises:
        ValueError: A number is not finite.
    """
    assert env.bodies is not None
    motion, _ = watch_bodies(policy, env, jax.random.key(seed))
    replace_file(path, page_of(env.bodies.scene(), motion))


def with_bodies(env: VecEnv | HostEnv) -> Env | None:
    """Return the single environment of a run if its episodes can be written as pages.

    Args:
        env: Environments of the run.

    Returns:
        The environment, or None if it has no bodies.
    """
    single = env.env if isinstance(env, VecEnv) else None
    return single if single is not None and single.bodies is not None else None


def draw_policy(policy: Policy, env: VecEnv | HostEnv, seed: int, folder: Path) -> bool:
    """Write ``policy.html`` if bodies can be drawn. A failure prints a line on stderr, since the
    run has succeeded.

    Args:
        policy: Policy.
        env: Environment of the run.
        seed: Seed of the episode.
        folder: Folder of the run.

    Returns:
        Whether it was written.
    """
    single = with_bodies(env)
    if single is None:
        return False
    try:
        write_policy_html(policy, single, folder / "policy.html", seed=seed)
    except Exception as error:
        print(f"no policy.html: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
