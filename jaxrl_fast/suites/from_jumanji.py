"""Adapter of Jumanji's environments. The only file that imports jumanji.

Source: https://github.com/instadeepai/jumanji, 1.1. Jumanji's time limit terminates an episode;
here it never applies, and `vectorize` truncates instead.
"""

import inspect
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from jumanji.environments import LevelBasedForaging, RobotWarehouse
from jumanji.environments.routing.lbf.generator import RandomGenerator as ForagingGenerator
from jumanji.environments.routing.robot_warehouse.generator import (
    RandomGenerator as WarehouseGenerator,
)
from jumanji.environments.swarms.search_and_rescue.reward import IndividualRewardFn

from jaxrl_fast.core import Actions, Box, Discrete, EnvSpec, MultiDiscrete, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import A_COUNT, Env, is_count
from jaxrl_fast.envs.env_checks import check_option, check_shapes
from jaxrl_fast.envs.options import (
    EnvOptions,
    OptionalCount,
    check_others,
    read_options,
    unknown_option,
)
from jaxrl_fast.system import fault_of

NEVER = 2**30
"""A time limit in steps that is never reached."""
STEPS_PER_RESET = 32
"""A reset generates a problem, which takes as long as several steps."""
STEP_S = 0.25
"""Duration of a step in pictures, in seconds."""
FORAGING: dict[str, Any] = dict(
    grid_size=8, fov=8, num_agents=2, num_food=2, max_agent_level=2, force_coop=True
)
FORAGING |= dict(grid_observation=False, normalize_reward=True, penalty=0.0, episode_length=100)
"""Jumanji's defaults: an 8 x 8 field, 2 players, 2 pieces of food that each need both players.
Every player observes the whole field unless ``fov`` is given.
"""
WAREHOUSE: dict[str, Any] = dict(
    shelf_rows=1, shelf_columns=3, column_height=8, num_agents=4, sensor_range=1
)
WAREHOUSE |= dict(request_queue_size=4, episode_length=500)
"""tiny-4ag of Papoudakis et al. (arXiv 2006.07869). Jumanji's defaults are another warehouse."""
WORLDS: dict[str, dict[str, Any]] = {"LevelBasedForaging": FORAGING, "RobotWarehouse": WAREHOUSE}
"""Id -> default options."""


EMPTY_PICTURE = "MMST-v0"
"""Jumanji's viewer scales the axes of this picture so that nothing is inside them."""
OF_AGENTS = {"LevelBasedForaging-v0", "RobotWarehouse-v0", "SearchAndRescue-v0"}
"""Registered ids whose agents each have an observation."""


def ids() -> list[str]:
    """List the supported ids.

    Returns:
        Two class names of Jumanji, whose options are `WORLDS`, and the registered ids.
    """
    return [
        *WORLDS,
        *sorted(jumanji.registered_environments() - {f"{world}-v0" for world in WORLDS}),
    ]


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a Jumanji environment."""

    num_agents: OptionalCount = None
    """Number of agents; None for the default."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Jumanji's constructor, and of the generators of `WORLDS`."""


def make(id: str, **values: Any) -> Env:
    """Make a Jumanji environment.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown option, or a value that Jumanji does not accept.
    """
    chosen = read_options(Options, values, f"jumanji {id}")
    num_agents, episode_length = chosen.num_agents, chosen.episode_length
    options = dict(chosen.others)
    if id not in WORLDS:
        return _registered(id, num_agents, episode_length, options)
    named = {"num_agents": num_agents, "episode_length": episode_length}
    changes = {name: value for name, value in named.items() if value is not None} | options
    check_others(f"jumanji {id}", changes, WORLDS[id], counts=True)
    world = WORLDS[id] | changes
    if id == "LevelBasedForaging" and "fov" not in options:
        world["fov"] = world["grid_size"]
    limit = world.pop("episode_length")
    try:
        base = _foraging(**world) if id == "LevelBasedForaging" else _warehouse(**world)
    except (AssertionError, ValueError, TypeError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"jumanji {id} does not take these options: {message}") from error
    env = adapt(base, name=id, time_limit=limit, shared_reward=id == "RobotWarehouse")
    check_shapes(env, f"jumanji {id}")
    if id == "RobotWarehouse":
        goals = [(int(x), int(y)) for x, y in base.goals]
        return env._replace(draw=lambda state: drawings.warehouse(state, goals))
    draw = drawings.foraging(world["grid_size"])
    return env._replace(draw=draw, success=lambda state: jnp.all(state.food_items.eaten))


def adapt(env: Any, *, name: str, time_limit: int | None, shared_reward: bool = False) -> Env:
    """Convert a Jumanji environment to an `Env`.

    Args:
        env: Environment whose observation has ``agents_view`` ``[A, ...]`` and ``action_mask``
            ``[A, actions]``. Its last step counts as a termination.
        name: Name in the spec.
        time_limit: Time limit in steps for `vectorize`, or None.
        shared_reward: All agents get the same reward.

    Returns:
        The environment.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def observed(obs: Any) -> PyTree:
        return {
            "action_mask": jnp.asarray(obs.action_mask, bool),
            "obs": jnp.asarray(obs.agents_view, jnp.float32),
        }

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state, first = reset_one(jax.random.key_data(key))
        return settled(state), observed(first.observation)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, timestep = step_one(state, action)
        obs, reward = observed(timestep.observation), jnp.asarray(timestep.reward, jnp.float32)
        return like(following, state), Timestep(
            obs, obs, reward, timestep.last(), jnp.zeros((), bool)
        )

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    num_agents, num_actions = obs["action_mask"].shape
    spec = EnvSpec(
        name,
        obs,
        Discrete(num_actions),
        time_limit,
        num_agents=num_agents,
        shared_reward=shared_reward,
    )
    return Env(spec, reset, step, step_s=STEP_S)


def _foraging(**options: Any) -> LevelBasedForaging:
    takes = inspect.signature(ForagingGenerator).parameters
    generator = ForagingGenerator(**{option: options.pop(option) for option in takes})
    return LevelBasedForaging(generator=generator, time_limit=NEVER, **options)


def _warehouse(**options: Any) -> RobotWarehouse:
    return RobotWarehouse(generator=WarehouseGenerator(**options), time_limit=NEVER)


def _registered(
    id: str, num_agents: int | None, episode_length: int | None, options: dict[str, Any]
) -> Env:
    """Make a registered environment. Its own time limit is one step later than the one that
    truncates.
    """
    if num_agents is not None:
        raise ValueError(f"env.num_agents={num_agents}: jumanji {id} takes none: leave it out")
    if episode_length is not None and not is_count(episode_length):
        raise ValueError(f"env.episode_length={episode_length}: {A_COUNT}")
    try:
        base = jumanji.make(id)
        parameters = inspect.signature(type(base)).parameters
        defaults = {name: vars(base).get(name, p.default) for name, p in parameters.items()}
        for option, value in options.items():
            if option not in defaults or option == "time_limit":
                plain = [
                    name for name, now in defaults.items() if isinstance(now, int | float | str)
                ]
                others = {*plain, "episode_length"} - {"time_limit"}
                raise unknown_option(f"jumanji {id}", option, others)
            check_option(f"env.{option}", value, defaults[option])
            if type(defaults[option]) is int and not is_count(value):
                raise ValueError(f"env.{option}={value}: {A_COUNT}")
        limit = episode_length or getattr(base, "time_limit", None)
        overrides = {"time_limit": limit + 1} if limit and "time_limit" in defaults else {}
        if id == "SearchAndRescue-v0":  # its rewards fall until its time limit
            overrides["reward_fn"] = lambda targets, step, later: IndividualRewardFn()(
                targets, step, later - 1
            )
        base = jumanji.make(id, **options, **overrides)
        env = adapt_alone(base, name=id, time_limit=limit, of_agents=id in OF_AGENTS)
        check_shapes(env, f"jumanji {id}")
    except (AssertionError, AttributeError, IndexError, OSError, TypeError) as error:
        raise ValueError(f"jumanji {id} failed: {fault_of(error)}") from error
    draw = None if id == EMPTY_PICTURE else lambda state: _drawn(base, state)
    return env._replace(steps_per_reset=STEPS_PER_RESET, draw=draw)


def _drawn(env: Any, state: Any) -> np.ndarray:
    """Return the picture of Jumanji's own viewer, which shows a figure of matplotlib."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    with warnings.catch_warnings(action="ignore"):  # a figure without a screen cannot be shown
        try:
            # GraphColoring takes twenty times as long with JAX's arrays
            env.render(jax.tree.map(np.asarray, state))
        except AttributeError:  # Maze uses their `at`
            env.render(state)
    canvas: Any = pyplot.gcf().canvas
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def adapt_alone(env: Any, *, name: str, time_limit: int | None, of_agents: bool = False) -> Env:
    """Convert an environment of Jumanji to an `Env`, whatever arrays it observes.

    Args:
        env: Environment.
        name: Name in the spec.
        time_limit: Time limit in steps for `vectorize`, or None.
        of_agents: The first axis of actions is agents. Where observations have as many rows, these
            are the agents' own; others are common to all. Else one agent chooses all parts of an
            action.

    Returns:
        The environment. It observes a dictionary by the paths of Jumanji's fields, such as
        ``items.x_len``. A mask of combinations makes the action one number; a mask for each part,
        or none, `MultiDiscrete`. ``extras`` are metrics of an episode's last step.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)
    shapes = jax.eval_shape(lambda key: reset_one(jax.random.key_data(key)), jax.random.key(0))[1]
    action, act = _actions(
        env.action_spec, getattr(shapes.observation, "action_mask", None), of_agents
    )
    num_agents = env.action_spec.shape[0] if of_agents else None
    shown = {key: "last" for key, value in (shapes.extras or {}).items() if value.shape == ()}

    def observed(obs: Any) -> PyTree:
        by_path = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(obs):
            x = jnp.asarray(leaf)
            if num_agents is not None and x.shape[:1] != (num_agents,):
                x = jnp.broadcast_to(x.reshape(1, -1), (num_agents, x.size))
            is_mask = num_agents is None and ".".join(map(_word, path)) == "action_mask"
            by_path[".".join(map(_word, path))] = x.reshape(-1) if is_mask else x
        return by_path

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state, first = reset_one(jax.random.key_data(key))
        return settled(state), observed(first.observation)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, timestep = step_one(state, act(action))
        obs, paid = observed(timestep.observation), jnp.asarray(timestep.reward, jnp.float32)
        reward = paid if num_agents is not None and paid.shape else jnp.sum(paid)
        over, alive = timestep.last(), jnp.any(timestep.discount > 0.0)
        values = {key: jnp.asarray(timestep.extras[key], jnp.float32) for key in shown}
        return like(following, state), Timestep(
            obs, obs, reward, over & ~alive, over & alive, metrics=values
        )

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    spec = EnvSpec(name, obs, action, time_limit, num_agents=num_agents, metrics=shown)
    return Env(spec, reset, step, step_s=STEP_S)


def _word(entry: Any) -> str:
    """Return the name of one part of a path in a pytree."""
    return str(
        next(getattr(entry, name) for name in ("name", "key", "idx") if hasattr(entry, name))
    )


def _actions(spec: Any, mask: jax.ShapeDtypeStruct | None, of_agents: bool) -> tuple[Actions, Any]:
    """Return the action space, of each agent if there are several, and the conversion of an action
    to Jumanji's.
    """
    if not np.issubdtype(spec.dtype, np.integer):
        low, high = (
            np.broadcast_to(np.asarray(x, np.float32), spec.shape)
            for x in (spec.minimum, spec.maximum)
        )
        return (Box(low[0], high[0]) if of_agents else Box(low, high)), lambda action: action
    if spec.shape == ():
        return Discrete(int(spec.num_values)), lambda action: action
    most = np.asarray(
        getattr(spec, "num_values", None) if hasattr(spec, "num_values") else spec.maximum + 1
    )
    sizes = tuple(int(size) for size in np.broadcast_to(most, spec.shape))
    if mask is not None and mask.shape == sizes:
        return Discrete(math.prod(sizes)), lambda action: jnp.stack(
            jnp.unravel_index(action, sizes)
        ).astype(spec.dtype)
    if mask is not None:
        sizes = (mask.shape[1],) * mask.shape[0]
    return MultiDiscrete(sizes), lambda action: action.astype(spec.dtype)
