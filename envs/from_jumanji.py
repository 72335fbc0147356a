"""Adapter of Jumanji's multi-agent environments. The only file that imports jumanji.

Source: https://github.com/instadeepai/jumanji, 1.1. Jumanji's time limit terminates an episode; here it never
applies, and `vectorize` truncates instead.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jumanji.environments import LevelBasedForaging, RobotWarehouse
from jumanji.environments.routing.lbf.generator import RandomGenerator as ForagingGenerator
from jumanji.environments.routing.robot_warehouse.generator import RandomGenerator as WarehouseGenerator

from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import A_COUNT, Env, is_count
from jaxrl_fast.envs.env_checks import check_option, check_shapes

NEVER = 2**30
"""A time limit in steps that is never reached."""
STEP_S = 0.25
"""Duration of a step in pictures, in seconds."""
FORAGING = {
    "grid_size": 8,
    "fov": 8,
    "num_agents": 2,
    "num_food": 2,
    "max_agent_level": 2,
    "force_coop": True,
    "grid_observation": False,
    "normalize_reward": True,
    "penalty": 0.0,
    "episode_length": 100,
}
"""Jumanji's defaults: an 8 x 8 field, 2 players, 2 pieces of food that each need both players. Every player observes
the whole field unless ``fov`` is given.
"""
WAREHOUSE = {
    "shelf_rows": 1,
    "shelf_columns": 3,
    "column_height": 8,
    "num_agents": 4,
    "sensor_range": 1,
    "request_queue_size": 4,
    "episode_length": 500,
}
"""tiny-4ag of Papoudakis et al. (arXiv 2006.07869). Jumanji's defaults are another warehouse."""
WORLDS: dict[str, dict[str, Any]] = {"LevelBasedForaging": FORAGING, "RobotWarehouse": WAREHOUSE}
"""Id -> default options."""


def ids() -> list[str]:
    """List the supported ids: environments with an observation for each agent.

    Returns:
        Jumanji's class names.
    """
    return list(WORLDS)


def make(id: str, *, num_agents: int | None = None, episode_length: int | None = None, **options: Any) -> Env:
    """Make a Jumanji environment.

    Args:
        id: One of `ids`.
        num_agents: Number of agents, or None for the default.
        episode_length: Time limit in steps, or None for the default.
        **options: Arguments of Jumanji's constructor and generator (`WORLDS`).

    Returns:
        The environment.

    Raises:
        ValueError: Unknown option, or a value that Jumanji does not accept.
    """
    named = {"num_agents": num_agents, "episode_length": episode_length}
    given = WORLDS[id] | {name: value for name, value in named.items() if value is not None} | options
    for option, value in given.items():
        if option not in WORLDS[id]:
            raise ValueError(f"jumanji {id} has no option '{option}': write some of {', '.join(sorted(WORLDS[id]))}")
        check_option(f"env.{option}", value, WORLDS[id][option])
        if type(WORLDS[id][option]) is int and not is_count(value):
            raise ValueError(f"env.{option}={value}: {A_COUNT}")
    if id == "LevelBasedForaging" and "fov" not in options:
        given["fov"] = given["grid_size"]
    limit = given.pop("episode_length")
    try:
        base = _foraging(**given) if id == "LevelBasedForaging" else _warehouse(**given)
    except (AssertionError, ValueError, TypeError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"jumanji {id} does not take these options: {message}") from error
    env = adapt(base, name=id, time_limit=limit, shared_reward=id == "RobotWarehouse")
    check_shapes(env, f"jumanji {id}")
    if id == "RobotWarehouse":
        goals = [(int(x), int(y)) for x, y in base.goals]
        return env._replace(draw=lambda state: drawings.warehouse(state, goals))
    draw = drawings.foraging(given["grid_size"])
    return env._replace(draw=draw, success=lambda state: jnp.all(state.food_items.eaten))


def adapt(env: Any, *, name: str, time_limit: int | None, shared_reward: bool = False) -> Env:
    """Convert a Jumanji environment to an `Env`.

    Args:
        env: Environment whose observation has ``agents_view`` ``[A, ...]`` and ``action_mask`` ``[A, actions]``. Its
            last step counts as a termination.
        name: Name in the spec.
        time_limit: Time limit in steps for `vectorize`, or None.
        shared_reward: All agents get the same reward.

    Returns:
        The environment.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def observed(obs: Any) -> PyTree:
        return {"action_mask": jnp.asarray(obs.action_mask, bool), "obs": jnp.asarray(obs.agents_view, jnp.float32)}

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state, first = reset_one(jax.random.key_data(key))
        return settled(state), observed(first.observation)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, given = step_one(state, action)
        obs, reward = observed(given.observation), jnp.asarray(given.reward, jnp.float32)
        return like(following, state), Timestep(obs, obs, reward, given.last(), jnp.zeros((), bool))

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    num_agents, num_actions = obs["action_mask"].shape
    spec = EnvSpec(name, obs, Discrete(num_actions), time_limit, num_agents=num_agents, shared_reward=shared_reward)
    return Env(spec, reset, step, step_s=STEP_S)


def _foraging(**given: Any) -> LevelBasedForaging:
    takes = inspect.signature(ForagingGenerator).parameters
    generator = ForagingGenerator(**{option: given.pop(option) for option in takes})
    return LevelBasedForaging(generator=generator, time_limit=NEVER, **given)


def _warehouse(**given: Any) -> RobotWarehouse:
    return RobotWarehouse(generator=WarehouseGenerator(**given), time_limit=NEVER)
