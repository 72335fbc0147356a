"""Adapter of brax's environments (https://github.com/google/brax, v2), and their bodies' shapes for pictures."""

import inspect
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_option, check_shapes
from jaxrl_fast.envs.scene import Geom, Scene, Triangles

KINDS = ("plane", "heightfield", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
"""MuJoCo's kinds of geoms in the order of its mjtGeom."""
MESH = KINDS.index("mesh")
NO_COLOR = ((0.5, 0.5, 0.5, 1.0), (0.4, 0.33, 0.26, 1.0))
"""Colors that mean "unset": MuJoCo's default, and the one that brax's models use throughout."""


def geoms_of(model: Any) -> tuple[Geom, ...]:
    """List the geoms of a MuJoCo model.

    Args:
        model: ``mujoco.MjModel``.

    Returns:
        Geoms in the model's order. MuJoCo's body 0, which is static, becomes -1, so that the others have the indices of
        brax's links.
    """
    return tuple(_geom(model, index) for index in range(model.ngeom))


def _geom(model: Any, index: int) -> Geom:
    kind = int(model.geom_type[index])
    color = _floats(model.geom_rgba[index])
    return Geom(
        kind=KINDS[kind] if kind < len(KINDS) else f"kind {kind} of MuJoCo",
        body=int(model.geom_bodyid[index]) - 1,
        position=_floats(model.geom_pos[index]),
        rotation=_floats(model.geom_quat[index]),
        size=_floats(model.geom_size[index]),
        color=None if color in NO_COLOR else color,
        mesh=_triangles(model, int(model.geom_dataid[index])) if kind == MESH else None,
    )


def _triangles(model: Any, mesh: int) -> Triangles:
    vertex, face = int(model.mesh_vertadr[mesh]), int(model.mesh_faceadr[mesh])
    return Triangles(
        np.array(model.mesh_vert[vertex : vertex + int(model.mesh_vertnum[mesh])], np.float32),
        np.array(model.mesh_face[face : face + int(model.mesh_facenum[mesh])], np.int32),
    )


def _floats(numbers: np.ndarray) -> tuple[float, ...]:
    """Convert to Python floats of six digits, which float32 has, so that pages are not longer than necessary."""
    return tuple(round(float(number), 6) for number in numbers)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages of brax and MuJoCo at import and construction, also in MUJOCO_LOG.TXT.

    They report a missing warp, an unmaintained package and old model files.

    Returns:
        A context manager.
    """
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mujoco

        before = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(before)


with quiet():
    from brax import envs as brax_envs

BACKENDS = ("generalized", "positional", "spring", "mjx")
MAX_EPISODE_STEPS = 1000
REFUSED = {"swimmer": "brax 0.14.2 calls jnp.clip(a_min=), which JAX 0.10 removed"}
SHORTEST_EPISODE = dict(
    ant=2, fast=8, halfcheetah=8, hopper=6, humanoid=2, humanoidstandup=8, pusher=8, reacher=8, walker2d=6
)
"""Lower bounds of an episode's steps, 1 for ids not listed.

Environments that never terminate have an arbitrary number. The others have a bit less than the shortest of 256
episodes of full thrust (spring: hopper 8, walker2d over 30, ant 4; generalized: hopper 6, walker2d 7); humanoid's is
a guess. They are sampled, not proven: a shorter episode could start from the same state as the one before.
"""


def ids() -> list[str]:
    """List the registered ids that run on current JAX, with all of `BACKENDS`.

    Returns:
        Sorted ids.
    """
    return sorted(set(_constructors()) - set(REFUSED))


def _constructors() -> dict[str, Any]:
    """Return the constructors of brax's environments by id, from a private name of brax."""
    if not hasattr(brax_envs, "_envs"):
        raise ValueError("this version of brax does not list its environments (brax.envs._envs): install brax 0.14")
    return dict(brax_envs._envs)


def make(id: str, *, backend: str = "spring", episode_length: int = MAX_EPISODE_STEPS, **options: Any) -> Env:
    """Make a registered brax environment.

    Args:
        id: brax id.
        backend: One of `BACKENDS`.
        episode_length: Time limit in steps.
        **options: Arguments of the environment's constructor.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown or unsupported id, backend, episode length or option.
    """
    if id in REFUSED:
        raise ValueError(f"env.id={id}: brax's {id} does not run on this JAX: {REFUSED[id]}")
    if backend not in BACKENDS:
        raise ValueError(f"env.backend={backend}: write one of {', '.join(BACKENDS)}")
    if episode_length < 1:
        raise ValueError(f"env.episode_length={episode_length}: an episode has at least one step, write 1000")
    parameters = inspect.signature(_constructors()[id]).parameters.items()
    known = {name: p.default for name, p in parameters if name not in ("backend", "kwargs")}
    for option in set(options) & set(known):
        check_option(f"env.{option}", options[option], known[option])
    try:
        with quiet():
            physics = brax_envs.get_environment(id, backend=backend, **options)
        env = adapt(physics, name=id, max_episode_steps=episode_length, shortest_episode=SHORTEST_EPISODE.get(id, 1))
    except Exception as error:  # any error that an option causes inside brax
        message = " ".join(str(error).split())
        hint = f"write some of {', '.join(known)}" if known else "leave them out"
        raise ValueError(f"brax {id} does not take these options: {message}: {hint}") from error
    if options:
        check_shapes(env, f"brax {id} with these options")
    return env


def adapt(env: Any, *, name: str, max_episode_steps: int | None = MAX_EPISODE_STEPS, shortest_episode: int = 1) -> Env:
    """Convert an object with brax's interface to an `Env`.

    Args:
        env: Unwrapped environment. Its actions are assumed to be in [-1, 1].
        name: Name in the spec.
        max_episode_steps: Time limit in steps, or None.
        shortest_episode: Lower bound of an episode's steps.

    Returns:
        The environment.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state = settled(reset_one(jax.random.key_data(key)))
        return state, state.obs

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following = like(step_one(_copied_containers(state), action), state)
        terminated = following.done.astype(bool)
        return following, Timestep(
            following.obs, following.obs, following.reward, terminated, jnp.zeros_like(terminated)
        )

    obs = jax.eval_shape(lambda key: reset(key, ())[1], jax.random.key(0))
    bound = np.ones(env.action_size, np.float32)
    spec = EnvSpec(name, obs, Box(-bound, bound), max_episode_steps)
    return Env(spec, reset, step, shortest_episode=shortest_episode)


def _copied_containers(state: PyTree) -> PyTree:
    """Copy the dictionaries of a state: ant, hopper, humanoid and walker2d write into ``state.metrics``."""
    return jax.tree.map(lambda x: x, state)


def scene_of(*, id: str, backend: str = "spring", **options: Any) -> Scene:
    """Return the bodies of an environment that `make` makes with the same options.

    Args:
        id: As in `make`.
        backend: As in `make`.
        **options: As in `make`.

    Returns:
        The scene.

    Raises:
        ValueError: The environment has no bodies.
    """
    options.pop("episode_length", None)
    with quiet():
        physics = brax_envs.get_environment(id, backend=backend, **options)
    if not hasattr(physics, "sys"):
        raise ValueError(f"brax's {id} has no bodies to draw")
    return Scene(f"{id}, {backend}", geoms_of(physics.sys.mj_model), float(physics.dt))


def pose_of(state: PyTree) -> tuple[jax.Array, jax.Array]:
    """Return the positions and rotations of the bodies in a state, for every backend.

    Args:
        state: State of an environment with bodies, leaves ``[..., ...]``.

    Returns:
        Positions ``[..., B, 3]`` and rotations ``[..., B, 4]``.
    """
    return state.pipeline_state.x.pos, state.pipeline_state.x.rot
