"""Environments of a MuJoCo file (https://mujoco.readthedocs.io, XMLreference): compiled by MJX, or
in C on the host.

A task is a few functions of the user, the same for both: ``reward(data, action)``, and if needed
``observe(data)``, ``terminated(data)``, ``start(model, uniform)`` and
``randomize(model, uniform)``. ``data`` and ``model`` have MuJoCo's names, such as ``data.qpos`` and
``model.body_mass``; ``uniform(low, high, shape)`` draws numbers. Functions that use Python's
operators, or ``jax.numpy``, serve both.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

from jaxrl_fast.contents import digests_of_arrays
from jaxrl_fast.core import Box, EnvSpec, Number, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import relaxed
from jaxrl_fast.envs.env import Bodies, Env, Scene
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.from_brax import geoms_of, pose_of, quiet
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.options import Count, OptionalCount, read_options
from jaxrl_fast.system import fault_of, import_function

BACKENDS = "mjx", "mujoco"
CONTROL_S = 0.02
"""Shortest default time between two actions, in seconds, as in MuJoCo's own control suites."""
EPISODE_LENGTH = 1_000
WIDTH, HEIGHT = 480, 360
"""Size of pictures of the host's environments, in pixels."""
FUNCTIONS = "reward", "observe", "terminated", "start", "randomize"
LIGHT = 0.5
"""Ambient light of these pictures; a file without lights would be dark."""
Uniform = Callable[..., Any]
"""``(low, high, shape=()) -> array``: draws uniform numbers."""


class Robot(NamedTuple):
    """A model and its task.

    Attributes:
        name: Name of the file.
        model: MuJoCo's model.
        frame_skip: Physics steps of an action.
        noise: Largest deviation of an episode's first position and velocity from the model's.
        sensors: Slices of ``sensordata`` to observe, or None.
        tasks: The user's functions by name; None for those that are not given.
    """

    name: str
    model: Any
    frame_skip: int
    noise: float
    sensors: tuple[slice, ...] | None
    tasks: dict[str, Callable[..., Any] | None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a MuJoCo file."""

    backend: Literal["mjx", "mujoco"] = "mjx"
    """``mjx`` compiles the physics; ``mujoco`` steps it on the host."""
    reward: Any = None
    """``(data, action) -> number`` after each step, or its name, such as ``my_package.reward``."""
    observe: Any = None
    """``(data) -> array [N]``, or the names of sensors, in order. Without it, positions and
    velocities."""
    terminated: Any = None
    """``(data) -> bool``; without it only the time limit ends an episode."""
    start: Any = None
    """``(model, uniform) -> (qpos, qvel)``; without it the first keyframe, or ``qpos0`` at rest."""
    randomize: Any = None
    """``(model, uniform) -> {name: array}``, fields of the model that differ in each episode."""
    reset_noise: Annotated[float, Number(0)] = 0.01
    """Largest deviation of an episode's first position and velocity from ``start``."""
    frame_skip: OptionalCount = None
    """Physics steps of an action; by default as many as `CONTROL_S` needs."""
    episode_length: Count = EPISODE_LENGTH
    """Time limit in steps."""


def make(file: str, **given: Any) -> Env:
    """Make the compiled environment of a MuJoCo file.

    Args:
        file: Path of the XML file.
        **given: `Options`; `make_host` serves ``backend="mujoco"``.

    Returns:
        The environment. Its actions are the actuators' controls, in their ranges.

    Raises:
        ValueError: The file cannot be read or has something that MJX lacks, an option is wrong, or
            a function fails.
    """
    options = read_options(Options, given, "mjcf")
    robot = _robot(file, options)
    if options.backend == "mujoco":
        raise ValueError(
            "env.backend=mujoco is stepped on the host and cannot be compiled: write make_env(...)"
        )
    try:
        with quiet():
            env = _compiled(robot, options.episode_length)
            check_shapes(env, f"env.file={file}")
    except Exception as error:  # any error of MJX or of the user's functions
        raise ValueError(
            f"env.file={file} cannot be compiled: {fault_of(error)}; env.backend=mujoco steps it on the host"
        ) from error
    return env


def make_host(
    file: str, *, num_envs: int, num_seeds: int = 1, pool: Any = None, **options: Any
) -> HostEnv:
    """Make environments of a MuJoCo file that are stepped by MuJoCo on the host.

    Args:
        file: As in `make`.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **options: As in `make`.

    Returns:
        The environments.

    Raises:
        ValueError: As `make`, or an option of the pool is wrong.
    """
    host = import_module("jaxrl_fast.envs.from_gymnasium")
    first, own = HostRobot(file, **options), partial(HostRobot, file, **options)
    sizes = {"num_envs": num_envs, "num_seeds": num_seeds, "max_episode_steps": first.limit}
    contents = contents_of(first.robot.model)
    made = host.make_custom_host(own, name=Path(file).stem, pool=pool, first=first, **sizes)
    return made._replace(spec=made.spec._replace(contents=contents))


def film(file: str, **options: Any) -> Any:
    """Make one environment on the host that can be drawn.

    Args:
        file: As in `make`.
        **options: As in `make`.

    Returns:
        The environment and its camera (`FilmedHost`).

    Raises:
        ValueError: As `make`.
    """
    host = import_module("jaxrl_fast.envs.from_gymnasium")
    limit = options.get("episode_length") or EPISODE_LENGTH
    return host.filmed(
        host.recipes.limited(partial(HostRobot, file, **options), limit), Path(file).stem, limit
    )


def _robot(file: str, options: Options) -> Robot:
    """Read the file, and check the options."""
    given = {name: getattr(options, name) for name in FUNCTIONS}
    if not Path(file).is_file():
        raise ValueError(f"env.file={file}: there is no such file in {Path.cwd()}: write its path")
    try:
        model = mujoco.MjModel.from_xml_path(file)
    except ValueError as error:
        raise ValueError(
            f"env.file={file}: MuJoCo cannot read it: {' '.join(str(error).split())}"
        ) from error
    if given["reward"] is None:
        raise ValueError(
            "env=mjcf needs a reward: +env.reward=my_package.reward, a function (data, action) -> number"
        )
    free = [
        model.actuator(i).name or str(i)
        for i in range(model.nu)
        if not model.actuator_ctrllimited[i]
    ]
    if free or not model.nu:
        what = (
            f"its actuator {free[0]} has no ctrlrange: write one"
            if free
            else "it has no actuator: write one"
        )
        raise ValueError(f"env.file={file}: {what} in the file")
    seen: Any = given["observe"]
    listed = isinstance(seen, Sequence) and not isinstance(seen, str)
    if not (seen is None or callable(seen) or isinstance(seen, str) or (listed and len(seen))):
        raise ValueError(
            f"env.observe={seen}: write a function, as my_package.observe, or sensors, as [first,second]"
        )
    functions = {
        name: import_function(function, f"env.{name}") if isinstance(function, str) else function
        for name, function in given.items()
    }
    steps = options.frame_skip or max(1, round(CONTROL_S / model.opt.timestep))
    named = tuple(_sensor(model, name, file) for name in seen) if listed else None
    # unstable physics must end in a NaN, not restart
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return Robot(
        name=Path(file).stem,
        model=model,
        frame_skip=steps,
        noise=options.reset_noise,
        sensors=named,
        tasks=functions,
    )


NO_PHYSICS = re.compile(
    r"_|name|text|tex_|mat_|skin_|light_|cam_|mesh_|bvh_|oct_|tuple_"
    r"|\w*(rgba|matid|texid|dataid|_user|_group|texcoord|adr|bvhnum|geomnum|aabb"
    r"|acc0|invweight0|length0|M0|subtreemass)$|tendon_width$"
)
"""Fields of a model that are names, visual, derived, or numbers of parts that may be visual."""


def contents_of(model: Any) -> dict[str, str]:
    """Return digests of all that determines a model's physics, without names, visuals and paths.

    Args:
        model: MuJoCo's model.

    Returns:
        Digests by field, such as ``model body_mass`` and ``model opt.timestep``. Geoms that collide
        with nothing are left out: their masses are in their bodies.
    """
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    arrays = {
        name: value[collides] if name.startswith("geom_") else value
        for name in dir(model)
        if not NO_PHYSICS.match(name) and isinstance(value := getattr(model, name), np.ndarray)
    }
    arrays |= {
        f"opt.{name}": np.asarray(getattr(model.opt, name))
        for name in dir(model.opt)
        if not name.startswith("_")
    }
    meshes = model.geom_dataid[collides & (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)]
    vertices = [
        model.mesh_vert[model.mesh_vertadr[i] : model.mesh_vertadr[i] + model.mesh_vertnum[i]]
        for i in meshes
    ]
    arrays["mesh_vert"] = np.concatenate(vertices) if vertices else np.zeros(0, np.float32)
    return digests_of_arrays("model", arrays)


def _sensor(model: Any, name: str, file: str) -> slice:
    named = [model.sensor(i).name for i in range(model.nsensor)]
    if name not in named:
        raise ValueError(
            f"env.observe: {file} has no sensor '{name}': write some of {', '.join(named) or 'none'}"
        )
    begin, size = int(model.sensor(name).adr[0]), int(model.sensor(name).dim[0])
    return slice(begin, begin + size)


def _observe(robot: Robot, data: Any, xp: Any) -> Any:
    """Return the observation of MJX's or MuJoCo's data."""
    own = robot.tasks["observe"]
    if robot.sensors is not None:
        return xp.concatenate([data.sensordata[part] for part in robot.sensors])
    return xp.concatenate([data.qpos, data.qvel, data.act]) if own is None else own(data)


def _begun(robot: Robot) -> Any:
    """Return MuJoCo's data at the first keyframe, or at rest."""
    data = mujoco.MjData(robot.model)
    if robot.model.nkey:
        mujoco.mj_resetDataKeyframe(robot.model, data, 0)
    mujoco.mj_forward(robot.model, data)
    return data


def _first(robot: Robot, model: Any, begun: Any, uniform: Uniform) -> tuple[Any, Any]:
    """Draw the first position and velocity of an episode. A quaternion may need to be normalized."""
    own = robot.tasks["start"]
    found = (begun.qpos, begun.qvel) if own is None else own(model, uniform)
    sizes, noise = (robot.model.nq, robot.model.nv), robot.noise
    qpos, qvel = (x if hasattr(x, "shape") else np.asarray(x, np.float32) for x in found)
    if (qpos.shape, qvel.shape) != tuple((size,) for size in sizes):
        raise ValueError(
            f"start returned shapes {qpos.shape} and {qvel.shape}: write ({sizes[0]},) and ({sizes[1]},)"
        )
    return tuple(x + uniform(-noise, noise, x.shape) if noise else x for x in (qpos, qvel))  # type: ignore[return-value]


def _changes(robot: Robot, model: Any, uniform: Uniform) -> dict[str, Any]:
    """Draw the fields of the model that differ in an episode, by name, such as ``body_mass`` or
    ``opt.gravity``.
    """
    randomize = robot.tasks["randomize"]
    found = {} if randomize is None else randomize(model, uniform)
    for name, value in found.items():
        try:
            wanted = np.shape(attrgetter(name)(robot.model))
        except AttributeError:
            raise ValueError(f"randomize changes '{name}', which a model does not have") from None
        if np.shape(value) != wanted:
            raise ValueError(
                f"randomize changes {name} to shape {list(np.shape(value))}: the model has {list(wanted)}"
            )
    return found


def _drawing(key: jax.Array) -> Uniform:
    """Return a function that draws other numbers in each call."""
    keys = [key]

    def uniform(low: Any, high: Any, shape: Sequence[int] = ()) -> jax.Array:
        keys[0], now = jax.random.split(keys[0])
        return jax.random.uniform(now, tuple(shape), jnp.float32, low, high)

    return uniform


class RobotState(NamedTuple):
    """State of a compiled robot.

    Attributes:
        data: MJX's data.
        changed: Fields of the model that differ in this episode.
    """

    data: Any
    changed: dict[str, jax.Array]


def _compiled(robot: Robot, limit: int) -> Env:
    model = mjx.put_model(robot.model, impl="jax")
    begun = _begun(robot)
    empty = mjx.put_data(robot.model, begun, impl="jax")
    ends = robot.tasks["terminated"] or (lambda data: False)
    reward_of: Any = robot.tasks["reward"]

    def of_episode(changed: dict[str, jax.Array]) -> Any:
        return model.tree_replace(dict(changed)) if changed else model

    @relaxed
    def reset(key: jax.Array, params: PyTree) -> tuple[RobotState, jax.Array]:
        uniform = _drawing(key)
        changed = jax.tree.map(jnp.asarray, _changes(robot, model, uniform))
        own = of_episode(changed)
        qpos, qvel = _first(robot, own, begun, uniform)
        data = mjx.forward(own, empty.replace(qpos=jnp.float32(qpos), qvel=jnp.float32(qvel)))
        return RobotState(data, changed), _observe(robot, data, jnp).astype(jnp.float32)

    @relaxed
    def step(state: RobotState, action: jax.Array, key: jax.Array) -> tuple[RobotState, Timestep]:
        own, data = of_episode(state.changed), state.data.replace(ctrl=action)
        data = jax.lax.fori_loop(0, robot.frame_skip, lambda i, data: mjx.step(own, data), data)
        obs, over = _observe(robot, data, jnp).astype(jnp.float32), jnp.asarray(ends(data), bool)
        reward = jnp.float32(reward_of(data, action))
        return RobotState(data, state.changed), Timestep(
            obs, obs, reward, over, jnp.zeros((), bool)
        )

    obs = jax.eval_shape(lambda key: reset(key, ())[1], jax.random.key(0))
    bounds = robot.model.actuator_ctrlrange.astype(np.float32)
    step_s = robot.frame_skip * robot.model.opt.timestep
    bodies = Bodies(lambda: Scene(robot.name, geoms_of(robot.model), step_s), pose_of)
    spec = EnvSpec(
        name=robot.name,
        obs=obs,
        action=Box(bounds[:, 0], bounds[:, 1]),
        max_episode_steps=limit,
        contents=contents_of(robot.model),
    )
    shortest = limit if robot.tasks["terminated"] is None else 1
    # a reset holds MJX's whole data
    more: dict[str, Any] = {
        "shortest_episode": shortest,
        "steps_per_reset": limit,
    }
    return Env(spec, reset, step, step_s=step_s, bodies=bodies, **more)


class HostRobot(gymnasium.Env):
    """One environment of a MuJoCo file, stepped by MuJoCo, with the arguments of `make`."""

    def __init__(self, file: str, *, render_mode: str = "rgb_array", **given: Any) -> None:
        options = read_options(Options, given, "mjcf")
        self.robot = _robot(file, options)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": 1 / (self.robot.frame_skip * self.robot.model.opt.timestep),
        }
        self.render_mode, self.model, self.limit = (
            render_mode,
            self.robot.model,
            options.episode_length,
        )
        self.model.vis.headlight.ambient[:] = LIGHT
        self.begun = _begun(self.robot)
        self.data: Any = _begun(self.robot)
        self.renderer: Any = None
        bounds = self.model.actuator_ctrlrange.astype(np.float32)
        self.action_space = gymnasium.spaces.Box(bounds[:, 0], bounds[:, 1])
        try:
            shape = np.shape(_observe(self.robot, self.data, np))
        except Exception as error:  # any error of the user's function
            raise ValueError(f"env.observe failed: {fault_of(error)}") from error
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.original: dict[str, np.ndarray] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start an episode."""
        super().reset(seed=seed)
        uniform = self.np_random.uniform
        for name, value in self.original.items():
            attrgetter(name)(self.model)[...] = value
        for name, value in _changes(self.robot, self.model, uniform).items():
            field = attrgetter(name)(self.model)
            self.original.setdefault(name, field.copy())
            field[...] = value
        reset = mujoco.mj_resetDataKeyframe if self.model.nkey else mujoco.mj_resetData
        reset(self.model, self.data, *([0] if self.model.nkey else []))
        self.data.qpos[:], self.data.qvel[:] = _first(self.robot, self.model, self.begun, uniform)
        mujoco.mj_normalizeQuat(self.model, self.data.qpos)
        mujoco.mj_forward(self.model, self.data)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, self.robot.frame_skip)
        ends, reward = self.robot.tasks["terminated"], self.robot.tasks["reward"]
        assert reward is not None
        over = ends is not None and bool(ends(self.data))
        return self._seen(), float(reward(self.data, action)), over, False, {}

    def _seen(self) -> np.ndarray:
        return np.asarray(_observe(self.robot, self.data, np), np.float32)

    def render(self) -> np.ndarray:
        """Draw the state."""
        self.renderer = self.renderer or mujoco.Renderer(self.model, HEIGHT, WIDTH)
        self.renderer.update_scene(self.data)
        return self.renderer.render()

    def close(self) -> None:
        """Close the renderer."""
        if self.renderer is not None:
            self.renderer.close()
