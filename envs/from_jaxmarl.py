"""JaxMARL's worlds of several agents. The only file that imports jaxmarl (https://github.com/FLAIROX/JaxMARL, 0.2)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
from jaxmarl.environments import spaces
from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

from envs.foreign import like, relaxed, settled
from jaxrl_fast.core import OUT, STATE, Box, Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.environments.env import Env
from jaxrl_fast.environments.env_laws import check_shapes

REFUSED = {
    "LearnedPolicyEnemySMAX": "it needs the policy of its enemy",
    **{id: "it needs jaxrobotarium" for id in jaxmarl.registered_envs if id.startswith("JaxRobotarium")},
}
NEVER = 2**30
"""The time limit is `vectorize`'s, which tells it from an end of the task."""


def ids() -> list[str]:
    """The registered ids that can run."""
    return sorted(set(jaxmarl.registered_envs) - set(REFUSED))


def make(id: str, *, num_agents: int | None = None, episode_length: int | None = None, **options: Any) -> Env:
    """A registered JaxMARL world; ``options`` go to its constructor, ``scenario`` by its name, such as ``3m``.

    Raises:
        ValueError: it is refused, has not so many agents, does not take the options, or its agents differ in what they
            observe or can do.
    """
    if id in REFUSED:
        raise ValueError(f"env.id={id}: jaxmarl's {id} is not supported: {REFUSED[id]}")
    if "scenario" in options:
        options["scenario"] = _scenario(options["scenario"])
    world = _made(id, options)
    if num_agents not in (None, world.num_agents):
        options["num_agents"] = num_agents
        try:
            world = _made(id, options)
        except ValueError:
            raise ValueError(f"env.num_agents={num_agents}: {id} has {world.num_agents} agents: leave it out") from None
    limit = getattr(world, "max_steps", None)
    if limit is not None:
        world = _made(id, {**options, "max_steps": NEVER})
        # Those of MPE look at the clock before they turn it on.
        limit = episode_length or int(limit) + id.startswith("MPE_")
    env = adapt(world, name=id, max_episode_steps=episode_length or limit, shared_reward="SMAX" in id)
    check_shapes(env, f"jaxmarl {id}")
    return env._replace(success=_battle_is_won(world)) if "EnemySMAX" in id else env


def adapt(world: Any, *, name: str, max_episode_steps: int | None = None, shared_reward: bool = False) -> Env:
    """Any object with JaxMARL's interface as an `Env`. With ``shared_reward`` all agents get the same.

    Raises:
        ValueError: its agents differ in what they observe or can do.
    """
    reset_one, step_one = relaxed(world.reset), relaxed(world.step_env)
    names, allowed = list(world.agents), _allowed(world)
    leave = not name.startswith("MPE_")

    def stacked(by_name: PyTree) -> jax.Array:
        return jnp.stack([jnp.asarray(by_name[agent]) for agent in names])

    def observed(obs: PyTree, state: PyTree, out: jax.Array) -> PyTree:
        seen = {"obs": stacked(obs)}
        if "world_state" in obs:
            seen[STATE] = obs["world_state"]
        if allowed is not None:
            seen["action_mask"] = stacked(allowed(state)).astype(bool)
        return settled({**seen, OUT: out} if leave else seen)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = reset_one(key)
        state = settled(state)
        return state, observed(obs, state, jnp.zeros(len(names), bool))

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        actions = {agent: action[i] for i, agent in enumerate(names)}
        obs, following, reward, done, _ = step_one(key, state, actions)
        following, over = like(following, state), jnp.asarray(done["__all__"], bool).reshape(())
        seen = observed(obs, following, stacked(done).astype(bool) & ~over)
        paid = jnp.asarray(reward[names[0]]).reshape(()) if shared_reward else stacked(reward).reshape(-1)
        return following, Timestep(seen, seen, paid.astype(jnp.float32), over, jnp.zeros((), bool))

    space = _same_for_all(name, "can do", [_action_space(name, world.action_space(agent)) for agent in names])
    shapes = jax.eval_shape(reset_one, jax.random.key(0))[0]
    _same_for_all(name, "observe", [f"{shapes[agent].dtype}{list(shapes[agent].shape)}" for agent in names])
    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    return Env(
        EnvSpec(name, obs, space, max_episode_steps, num_agents=len(names), shared_reward=shared_reward), reset, step
    )


def _made(id: str, options: dict[str, Any]) -> Any:
    try:
        return jaxmarl.make(id, **options)
    except Exception as error:  # any error that an option causes inside jaxmarl
        message = " ".join(str(error).split())
        raise ValueError(f"jaxmarl {id} does not take these options: {message}: leave them out") from error


def _scenario(name: Any) -> Any:
    if name not in MAP_NAME_TO_SCENARIO:
        raise ValueError(f"env.scenario={name}: write one of {', '.join(MAP_NAME_TO_SCENARIO)}")
    return MAP_NAME_TO_SCENARIO[name]


def _allowed(world: Any) -> Callable[[PyTree], PyTree] | None:
    """``allowed(state)``: the actions that each agent may take; None where all always may."""
    allowed = relaxed(world.get_avail_actions)
    try:
        given = jax.eval_shape(lambda key: allowed(relaxed(world.reset)(key)[1]), jax.random.key(0))
    except NotImplementedError:
        return None
    return allowed if isinstance(given, dict) else None


def _battle_is_won(world: Any) -> Callable[[PyTree], jax.Array]:
    def success(state: PyTree) -> jax.Array:
        alive = state.state.unit_alive.astype(bool)
        return jnp.any(alive[: world.num_allies]) & ~jnp.any(alive[world.num_allies :])

    return success


def _same_for_all(name: str, what: str, of_each: list[Any]) -> Any:
    """What all agents have in common."""
    unlike = [other for other in of_each if str(other) != str(of_each[0])]
    if unlike:
        raise ValueError(
            f"{name}: its agents differ in what they {what}, {of_each[0]} and {unlike[0]}, and here these must be "
            "alike: write another env.id"
        )
    return of_each[0]


def _action_space(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        bounds = [np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high)]
        if np.isfinite(bounds).all():
            return Box(*bounds)
    raise ValueError(f"{name} has actions of kind {type(space).__name__}; Discrete and bounded Box are supported")
