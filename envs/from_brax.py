"""Adapter of brax's environments (https://github.com/google/brax, v2), and their bodies' shapes for
pictures.
"""

import inspect
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Box, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import (
    Delegating,
    around,
    changed,
    layers_of,
    like,
    relaxed,
    settled,
)
from jaxrl_fast.envs.env import Bodies, Env, Geom, Scene, Triangles
from jaxrl_fast.envs.env_checks import check_option, check_shapes
from jaxrl_fast.envs.episode_metrics import WrongMetrics, chosen
from jaxrl_fast.envs.options import Count, Kinds, read_options

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
        Geoms in the model's order. MuJoCo's body 0, which is static, becomes -1, so that the others
        have the indices of brax's links.
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
    """Convert to Python floats of six digits, which float32 has, so that pages are not longer than
    necessary.
    """
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
    ant=2,
    fast=8,
    halfcheetah=8,
    hopper=6,
    humanoid=2,
    humanoidstandup=8,
    pusher=8,
    reacher=8,
    walker2d=6,
)
"""Lower bounds of an episode's steps, 1 for ids not listed.

Environments that never terminate have an arbitrary number. The others have a bit less than the
shortest of 256 episodes of full thrust (spring: hopper 8, walker2d over 30, ant 4; generalized:
hopper 6, walker2d 7); humanoid's is a guess. They are sampled, not proven: a shorter episode could
start from the same state as the one before.
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
        raise ValueError(
            "this version of brax does not list its environments (brax.envs._envs): install brax 0.14"
        )
    return dict(brax_envs._envs)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a brax environment."""

    backend: Literal["generalized", "positional", "spring", "mjx"] = "spring"
    """Physics."""
    episode_length: Count = MAX_EPISODE_STEPS
    """Time limit in steps."""
    metrics: Kinds = None
    """Kinds of the metrics to report, by name (`adapt`)."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""


def make(id: str, **values: Any) -> Env:
    """Make a registered brax environment.

    Args:
        id: brax id.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown or unsupported id, backend, episode length or option.
    """
    if id in REFUSED:
        raise ValueError(f"env.id={id}: brax's {id} does not run on this JAX: {REFUSED[id]}")
    chosen = read_options(Options, values, f"brax {id}")
    backend, episode_length, metrics = chosen.backend, chosen.episode_length, chosen.metrics
    options = dict(chosen.others)
    parameters = inspect.signature(_constructors()[id]).parameters.items()
    defaults = {name: p.default for name, p in parameters if name not in ("backend", "kwargs")}
    for option in set(options) & set(defaults):
        check_option(f"env.{option}", options[option], defaults[option])
    try:
        with quiet():
            physics = brax_envs.get_environment(id, backend=backend, **options)
        title = f"{id}, {backend}"
        env = adapt(
            physics, name=id, max_episode_steps=episode_length, title=title, metrics=metrics
        )
        env = env._replace(shortest_episode=SHORTEST_EPISODE.get(id, 1))
    except WrongMetrics:
        raise
    except Exception as error:  # any error that an option causes inside brax
        message = " ".join(str(error).split())
        hint = f"write some of {', '.join(defaults)}" if defaults else "leave them out"
        raise ValueError(f"brax {id} does not take these options: {message}: {hint}") from error
    if options:
        check_shapes(env, f"brax {id} with these options")
    return env


def adapt(
    env: Any,
    *,
    name: str,
    max_episode_steps: int | None = MAX_EPISODE_STEPS,
    title: str = "",
    metrics: Mapping[str, str] | None = None,
) -> Env:
    """Convert an object with brax's interface to an `Env`.

    Args:
        env: Environment as `unwrapped` returns it. Its actions are assumed to be in [-1, 1]. A step
            whose ``info["truncation"]`` is 1 is truncated, as in brax's own training.
        name: Name in the spec.
        max_episode_steps: Time limit in steps, or None.
        title: Title of pictures, or "" for ``name``.
        metrics: Kinds of the numbers in ``state.metrics`` to report, by name, as in `EnvSpec`; None
            for the means of all.

    Returns:
        The environment.

    Raises:
        WrongMetrics: A metric is unknown.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state = settled(reset_one(jax.random.key_data(key)))
        return state, state.obs

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following = like(step_one(_copied_containers(state), action), state)
        done = jnp.asarray(following.done).astype(bool)
        truncated = done & jnp.asarray(
            (getattr(following, "info", None) or {}).get("truncation", False), bool
        )
        return following, Timestep(
            obs=following.obs,
            next_obs=following.obs,
            reward=following.reward,
            terminated=done & ~truncated,
            truncated=truncated,
            metrics={metric: following.metrics[metric] for metric in kinds},
        )

    state, obs = jax.eval_shape(lambda key: reset(key, ()), jax.random.key(0))
    kinds = chosen(_kinds_of(state), metrics, name)
    bound = np.ones(env.action_size, np.float32)
    spec = EnvSpec(name, obs, Box(-bound, bound), max_episode_steps, metrics=kinds)
    return Env(spec, reset, step, bodies=_bodies_of(env, title or name, state))


def _kinds_of(state: PyTree) -> dict[str, str]:
    """Declare the numbers in ``state.metrics`` as means over the steps of an episode."""
    metrics = getattr(state, "metrics", None)
    named = metrics.items() if isinstance(metrics, dict) else ()
    numbers = {
        name: value.dtype.kind in "fiub"
        for name, value in named
        if getattr(value, "shape", None) == ()
    }
    return {name: "mean" for name, is_real in numbers.items() if is_real and isinstance(name, str)}


def _copied_containers(state: PyTree) -> PyTree:
    """Copy the dictionaries of a state: ant, hopper, humanoid and walker2d write into
    ``state.metrics``.
    """
    return jax.tree.map(lambda x: x, state)


def _bodies_of(env: Any, title: str, state: PyTree) -> Bodies | None:
    """Return the bodies of an environment of brax or MuJoCo Playground, or None if ``state`` has no
    poses of bodies.
    """
    physics = _physics(env)
    if not (hasattr(getattr(physics, "sys", physics), "mj_model") and hasattr(physics, "dt")):
        return None
    try:
        jax.eval_shape(pose_of, state)
    except (AttributeError, TypeError):
        return None
    return Bodies(lambda: scene_of(env, title), pose_of)


def scene_of(env: Any, title: str) -> Scene:
    """Return the bodies of an environment.

    Args:
        env: Environment of brax or MuJoCo Playground with a MuJoCo model, with or without wrappers.
        title: Title of pictures.

    Returns:
        The scene.
    """
    base = _physics(env)
    repeats = math.prod(
        vars(layer).get("action_repeat", 1)
        for layer, _ in layers_of(env)
        if hasattr(layer, "__dict__")
    )
    return Scene(title, geoms_of(getattr(base, "sys", base).mj_model), float(base.dt) * repeats)


def _physics(env: Any) -> Any:
    """Return the environment inside all wrappers that has a model of MuJoCo, or the innermost."""
    layers = [layer for layer, _ in reversed(layers_of(env))]
    return next(
        (layer for layer in layers if hasattr(getattr(layer, "sys", layer), "mj_model")), layers[0]
    )


def pose_of(state: PyTree) -> tuple[jax.Array, jax.Array]:
    """Return the positions and rotations of the bodies in a state, for every backend, and for
    MuJoCo Playground.

    Args:
        state: State of an environment with bodies, leaves ``[..., ...]``.

    Returns:
        Positions ``[..., B, 3]`` and rotations ``[..., B, 4]``.
    """
    if hasattr(state, "data"):
        # MuJoCo's body 0 is static
        return state.data.xpos[..., 1:, :], state.data.xquat[..., 1:, :]
    return state.pipeline_state.x.pos, state.pipeline_state.x.rot


LIBRARIES = ("brax", "mujoco_playground")
EPISODE = "EpisodeWrapper"
DROPPED = ("VmapWrapper", "AutoResetWrapper", "BraxAutoResetWrapper", "EvalWrapper")
"""Wrappers of these libraries that do what `vectorize` and evaluation do."""
SAMPLED = {
    "DomainRandomizationVmapWrapper": ("_sys_v", "sys"),
    "BraxDomainRandomizationVmapWrapper": ("_mjx_model_v", "_mjx_model"),
}
"""Wrappers with domain randomization -> their attribute with the models of all environments, the
environment's with its model.
"""
KNOWN = (EPISODE, *DROPPED, *SAMPLED)
MARKS = ("first_obs", "first_pipeline_state", "first_state", "first_data")
"""Ends of the names in ``state.info`` with which a wrapper resets the environment."""
INSTEAD = "return the environment inside it; jaxrl_fast adds batches, resets and the time limit (env.episode_length=...)"


def unwrapped(env: Any, name: str, episode_length: int | None = None) -> tuple[Any, int]:
    """Return an environment without the wrappers of brax and MuJoCo Playground that batch, reset or
    evaluate it.

    An ``EpisodeWrapper`` stays, since it repeats actions. A user's wrapper stays and is called.
    With a wrapper for domain randomization, every episode samples one of its models.

    Args:
        env: brax-style environment, with or without wrappers.
        name: Name in error messages.
        episode_length: Time limit in steps, or None for the environment's.

    Returns:
        The environment, and its time limit in steps.

    Raises:
        ValueError: A wrapper is not supported.
    """
    *layers, (inner, _) = layers_of(env)
    config = getattr(inner, "_config", None)  # MuJoCo Playground's
    limit = getattr(config, "episode_length", None) or MAX_EPISODE_STEPS
    for layer, held in reversed(layers):
        kind = _kind(layer, name)
        if kind == EPISODE:
            limit = -(-layer.episode_length // layer.action_repeat)
            length = (episode_length or limit) * layer.action_repeat
            inner = changed(around(layer, held, inner, name), episode_length=length)
        elif kind in SAMPLED:
            inner = OneModel(
                inner, SAMPLED[kind][1], getattr(layer, SAMPLED[kind][0]), layer._in_axes
            )
        elif kind not in DROPPED:
            inner = around(layer, held, inner, name)
    if layers:
        _check_single(inner, f"{name}: {type(layers[0][0]).__name__}")
    return inner, episode_length or limit


def _kind(layer: Any, name: str) -> str:
    """Return the class of a library's wrapper, or "" for a user's. Refuse what cannot be taken
    apart.
    """
    class_name, library = type(layer).__name__, type(layer).__module__.split(".")[0]
    if library in LIBRARIES and class_name in KNOWN:
        return class_name
    parents = [
        base.__name__
        for base in type(layer).__mro__[1:]
        if base.__module__.split(".")[0] in LIBRARIES
    ]
    parent = next((parent for parent in parents if parent in KNOWN), None)
    delegates = library in LIBRARIES and hasattr(type(layer), "__getattr__")
    foreign = library == "gymnax" or (delegates and class_name != "Wrapper")
    if (
        parent
        or foreign
        or any(word in class_name.lower() for word in ("autoreset", "vmap", "timelimit"))
    ):
        which = f"a subclass of brax's {parent}" if parent else "a wrapper"
        raise ValueError(f"{name}: {class_name} is {which} that is not supported: {INSTEAD}")
    return ""


def _check_single(env: Any, what: str) -> None:
    """Check that a wrapped environment is single, and does not reset itself."""
    state = jax.eval_shape(
        lambda key: relaxed(env.reset)(jax.random.key_data(key)), jax.random.key(0)
    )
    if not all(hasattr(state, field) for field in ("obs", "reward", "done")):
        raise ValueError(
            f"{what} gives {type(state).__name__}, not a brax State with obs, reward and done: {INSTEAD}"
        )
    shape = jnp.shape(state.reward) or jnp.shape(state.done)
    if shape:
        raise ValueError(f"{what} makes a batch: a reward has shape {list(shape)}: {INSTEAD}")
    mark = next(
        (key for key in getattr(state, "info", None) or {} if str(key).endswith(MARKS)), None
    )
    if mark is not None:
        raise ValueError(f"{what} resets the environment (state.info has '{mark}'): {INSTEAD}")


class OneModel(Delegating):
    """An environment whose episodes each have one of several models (domain randomization).

    Attributes:
        env: Environment of brax or MuJoCo Playground.
        attribute: Its attribute with the model.
        models: Models, leaves that vary ``[..., N, ...]``.
        axes: The axis of the models for each leaf, or None where it does not vary.
    """

    def __init__(self, env: Any, attribute: str, models: Any, axes: Any) -> None:
        super().__init__(env)
        self.attribute, self.models, self.axes = attribute, models, axes

    def reset(self, rng: jax.Array) -> Any:
        """Start an episode with one of the models, all equally probable."""
        sizes = jax.tree.leaves(self._each(lambda axis, x: x.shape[axis], lambda part: None))
        number = jax.random.randint(jax.random.fold_in(rng, 1), (), 0, min(sizes))
        return self._with_model(number, self.env.reset, rng)

    def step(self, state: Any, action: jax.Array) -> Any:
        """Step the episode with its model."""
        return self._with_model(state.info["model"], self.env.step, state, action)

    def _with_model(self, number: jax.Array, function: Any, *args: Any) -> Any:
        base = self.env.unwrapped
        before = getattr(base, self.attribute)
        setattr(
            base,
            self.attribute,
            self._each(lambda axis, x: jnp.take(x, number, axis), lambda part: part),
        )
        try:
            state = function(*args)
        finally:
            setattr(base, self.attribute, before)
        return state.replace(info={**state.info, "model": number})

    def _each(self, varied: Callable[[int, Any], Any], common: Callable[[Any], Any]) -> PyTree:
        """Map the leaves that differ between the models, by their axis, and the parts that all
        models share.
        """

        def convert(axis: int | None, part: Any) -> Any:
            return common(part) if axis is None else jax.tree.map(lambda x: varied(axis, x), part)

        return jax.tree.map(convert, self.axes, self.models, is_leaf=lambda axis: axis is None)
