"""One episode of moving bodies as one HTML file that holds its viewer, its data and nothing of the network."""

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

from jaxrl_fast import envs
from jaxrl_fast.core import PyTree, Timestep
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.scene import Geom, Motion, Scene
from jaxrl_fast.policy.policies import Policy
from jaxrl_fast.runtime.xla_options import acting_options
from jaxrl_fast.system import replace_file
from jaxrl_fast.training.episodes import STEP_LIMIT, Playing, player

ASSETS = files("jaxrl_fast.views") / "assets"
FULL_SCALE = 32767
"""The largest int16: stands for 1 in rotations and for the largest offset in positions."""


def page_of(scene: Scene, motion: Motion) -> str:
    """The page.

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    # "<" of a title would end the script that the data lie in.
    data = {"episode": json.dumps(described(scene, motion), allow_nan=False).replace("<", "\\u003c")}
    page = (ASSETS / "policy.html").read_text("utf-8")
    return re.sub(r"\{\{([\w.]+)\}\}", lambda at: data.get(at[1]) or (ASSETS / at[1]).read_text("utf-8"), page)


def described(scene: Scene, motion: Motion) -> dict[str, Any]:
    """An episode as JSON. Arrays are base64 of little-endian numbers.

    A body may run for hundreds of metres, where int16 would be centimetres apart. So the mean over bodies is stored as
    float32, and of each body only the offset from it, as a share of the largest one: for a body of 1 m the steps are
    0.03 mm. Rotations are int16, too.

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    check_finite(motion)
    center = motion.positions.mean(axis=1, keepdims=True).astype("<f4")
    offsets = motion.positions - center
    reach = float(np.abs(offsets).max()) or 1.0
    return {
        "title": scene.title,
        "step_s": round(scene.step_s, 6),  # float32 says 0.049999997
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

    Raises:
        ValueError: a position, rotation or reward is not a number.
    """
    for what, numbers in zip(("a position", "a rotation", "a reward"), motion[:3], strict=True):
        if not np.isfinite(numbers).all():
            step = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)))
            raise ValueError(f"{what} of step {step:,} is not a finite number")


def _geom(geom: Geom) -> dict[str, Any]:
    fields = geom._asdict()
    if geom.mesh is not None:
        vertices, faces = geom.mesh
        fields["mesh"] = {"vertices": _base64(vertices.astype("<f4")), "faces": _base64(faces.astype("<u4"))}
    return fields


def _base64(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


class Watched(NamedTuple):
    """An episode of ``T`` steps.

    - ``seen``: what was seen of its states, the first and the last included, leaves ``[T + 1, ...]``.
    - ``rewards``: of its steps, ``[T]``.
    - ``end``: ``terminated``, ``truncated``, or ``cut`` where it goes on after the steps that were asked for.
    """

    seen: PyTree
    rewards: np.ndarray
    end: str


class _Moment(NamedTuple):
    """A state, and the reward and the end of the step that led to it."""

    state: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


def watch(
    policy: Policy, env: Env, key: jax.Array, *, see: Callable[[PyTree], PyTree], max_steps: int | None = None
) -> Watched:
    """The first episode of the greedy policy, the one that `evaluate_episodes` counts with the same key and one
    environment. ``see``: a pure function, picks arrays from a state of the environment; ``max_steps``: cut it after so
    many."""
    one = vectorize(_unending(env), num_envs=1)
    limit = env.spec.max_episode_steps or STEP_LIMIT
    most = min(limit, max_steps or limit)

    @partial(jax.jit, compiler_options=acting_options())
    def moments(params: PyTree) -> PyTree:
        start, step = player(policy.act, policy.initial_carry, one, params, key)

        def advance(now: Playing, _: None) -> tuple[Playing, _Moment]:
            moment = now.state.env_state
            return step(now), moment._replace(state=jax.vmap(see)(moment.state))

        return jax.tree.map(lambda x: x[:, 0], jax.lax.scan(advance, start, length=most + 1)[1])

    made = moments(policy.params)
    terminated, truncated = np.asarray(made.terminated), np.asarray(made.truncated)
    done = terminated | truncated
    steps = int(done.argmax()) if done.any() else most
    end = "terminated" if terminated[steps] else "truncated" if truncated[steps] or steps == limit else "cut"
    seen = jax.tree.map(lambda x: x[: steps + 1], made.state)
    return Watched(seen, np.asarray(made.reward)[1 : steps + 1], end)


def _unending(env: Env) -> Env:
    """``env`` without an end of its episodes: many of them side by side never reset, so the state in which an episode
    terminated, the fall itself, stays there to be seen."""

    def reset(key: jax.Array, params: PyTree) -> tuple[_Moment, PyTree]:
        state, obs = env.reset(key, params)
        never = jnp.zeros((), bool)
        return _Moment(state, jnp.zeros((), jnp.float32), never, never), obs

    def step(moment: _Moment, action: jax.Array, key: jax.Array) -> tuple[_Moment, Timestep]:
        state, ts = env.step(moment.state, action, key)
        ends = (ts.terminated.astype(bool), ts.truncated.astype(bool))
        following = _Moment(state, jnp.sum(ts.reward.astype(jnp.float32)), *ends)  # the team's, of several agents
        never = jnp.zeros((), bool)
        return following, ts._replace(terminated=never, truncated=never)

    return Env(env.spec._replace(max_episode_steps=None), reset, step, env.sample_params)


def watch_bodies(policy: Policy, env: Env, key: jax.Array, *, max_steps: int | None = None) -> tuple[Motion, Watched]:
    """The first episode of the greedy policy in one of brax's environments: how its bodies move, and what else is known
    of it. ``max_steps``: cut it after so many."""
    from jaxrl_fast.envs.from_brax import pose_of

    watched = watch(policy, env, key, see=pose_of, max_steps=max_steps)
    positions, rotations = jax.tree.map(np.asarray, watched.seen)
    return Motion(positions, rotations, watched.rewards, watched.end == "terminated"), watched


def write_policy_html(policy: Policy, env: Env, path: Path, *, options: dict[str, Any], seed: int = 0) -> None:
    """Write a greedy episode to ``path``, a page that needs nothing but itself; ``options`` are those of the
    environment.

    Raises:
        ValueError: it has no bodies, or they are somewhere that is not a number.
    """
    from jaxrl_fast.envs import from_brax

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
