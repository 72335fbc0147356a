"""brax's environments (https://github.com/google/brax, v2), and the shapes of their bodies for pictures."""

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
"""Colors that say nothing: MuJoCo's default, and the one that brax's own models have throughout."""


def geoms_of(model: Any) -> tuple[Geom, ...]:
    """Every geom of a ``mujoco.MjModel``, in its order. Body 0 of MuJoCo, which never moves, becomes -1, so that the
    others have the indices of brax's links."""
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
    """As Python's, six digits: a model's are float32 or written by hand, and a page is no longer than it must be."""
    return tuple(round(float(number), 6) for number in numbers)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what brax and MuJoCo print at import and construction (no warp, not maintained, old model files), and
    keep it out of MUJOCO_LOG.TXT."""
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
"""Steps that an episode lasts at least: any number where the environment never terminates; else a bit less than the
shortest of 256 episodes of full thrust (spring: hopper 8, walker2d over 30, ant 4; generalized: hopper 6, walker2d 7),
and a guess for humanoid. Sampled, not proven: a shorter episode could start from the same state as the one before.
Those not listed may end at any step."""


def ids() -> list[str]:
    """The registered ids that run on current JAX, with every one of `BACKENDS`."""
    return sorted(set(_constructors()) - set(REFUSED))


def _constructors() -> dict[str, Any]:
    """The constructors of brax's environments by id, from a private name of brax."""
    if not hasattr(brax_envs, "_envs"):
        raise ValueError("this version of brax does not list its environments (brax.envs._envs): install brax 0.14")
    return dict(brax_envs._envs)


def make(id: str, *, backend: str = "spring", episode_length: int = MAX_EPISODE_STEPS, **options: Any) -> Env:
    """A registered brax environment; ``options`` go to its constructor.

    Raises:
        ValueError: the environment is unknown or refused, the backend unknown, or an option is not the constructor's.
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
    """Any object with brax's interface, unwrapped, as an `Env`. Its actions are taken to lie in [-1, 1]."""
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
    """``state`` with its dictionaries copied: ant, hopper, humanoid and walker2d write into ``state.metrics``."""
    return jax.tree.map(lambda x: x, state)


def scene_of(*, id: str, backend: str = "spring", **options: Any) -> Scene:
    """The bodies of an environment that `make` makes with the same options.

    Raises:
        ValueError: the environment has none.
    """
    options.pop("episode_length", None)
    with quiet():
        physics = brax_envs.get_environment(id, backend=backend, **options)
    if not hasattr(physics, "sys"):
        raise ValueError(f"brax's {id} has no bodies to draw")
    return Scene(f"{id}, {backend}", geoms_of(physics.sys.mj_model), float(physics.dt))


def pose_of(state: PyTree) -> tuple[jax.Array, jax.Array]:
    """What a state of an environment with bodies shows, with any backend; leading axes stay: positions ``[B, 3]`` and
    rotations ``[B, 4]`` of its bodies."""
    return state.pipeline_state.x.pos, state.pipeline_state.x.rot
