"""Adapter of JaxMARL's environments. The only file that imports jaxmarl
(https://github.com/FLAIROx/JaxMARL, 0.2).
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import OUT, STATE, Box, Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, OptionalCount, read_options, unknown_option
from jaxrl_fast.envs.pool.several_agents import largest_shape, most_actions, own_sizes
from jaxrl_fast.spaces import Space, space_of_arrays


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress JaxMARL's messages about optional packages; it restores the process's streams to
    print them.
    """
    whole, errors = sys.__stdout__, sys.stderr
    with redirect_stdout(StringIO()) as nowhere:
        sys.__stdout__ = nowhere  # type: ignore[assignment, misc]
        try:
            yield
        finally:
            sys.__stdout__, sys.stderr = whole, errors  # type: ignore[misc]


with _quiet():
    import jaxmarl
    from jaxmarl.environments import spaces
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

REFUSED = {
    "LearnedPolicyEnemySMAX": "it needs the policy of its enemy",
    **{
        id: "it needs jaxrobotarium"
        for id in jaxmarl.registered_envs
        if id.startswith("JaxRobotarium")
    },
}
MABRAX = {"ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"}
SHARED_REWARD = {
    "HeuristicEnemySMAX",
    "hanabi",
    "overcooked",
    "overcooked_v2",
    "switch_riddle",
    *MABRAX,
}
"""Environments whose agents all get the same reward."""
LEAVE_EARLY = {"HeuristicEnemySMAX", "SMAX", "jaxnav"}
"""Environments that continue without their agents that are done."""


class JaxMarlState(NamedTuple):
    """State of an environment.

    Attributes:
        state: JaxMARL's state.
        steps: Steps of the episode so far, int32.
    """

    state: PyTree
    steps: jax.Array


def ids() -> list[str]:
    """List the registered ids that are supported.

    Returns:
        Sorted ids.
    """
    return sorted(set(jaxmarl.registered_envs) - set(REFUSED))


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a JaxMARL environment."""

    num_agents: OptionalCount = None
    """Number of agents; None for the default."""
    episode_length: OptionalCount = None
    """Time limit in steps. The smaller of it and JaxMARL's limit applies."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor. ``scenario`` is a name, such as ``3m``."""


def make(id: str, **values: Any) -> Env:
    """Make a registered JaxMARL environment.

    Args:
        id: JaxMARL id.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unsupported id, number of agents or option, or agents that cannot be padded to
            the largest.
    """
    chosen = read_options(Options, values, f"jaxmarl {id}")
    num_agents, episode_length = chosen.num_agents, chosen.episode_length
    options = dict(chosen.others)
    if id in REFUSED:
        raise ValueError(f"env.id={id}: jaxmarl's {id} is not supported: {REFUSED[id]}")
    if "scenario" in options:
        options["scenario"] = _scenario(options["scenario"])
    base = _made(id, options)
    if num_agents not in (None, base.num_agents):
        options["num_agents"] = num_agents
        try:
            base = _made(id, options)
        except ValueError:
            raise ValueError(
                f"env.num_agents={num_agents}: {id} has {base.num_agents} agents: leave it out"
            ) from None
    limit = getattr(base, "max_steps", None)
    if limit is not None:
        # MPE compares the step counter before incrementing it
        limit = int(limit) + id.startswith("MPE_")
    env = adapt(
        base,
        name=id,
        time_limit=limit,
        shared_reward=id in SHARED_REWARD,
        leave_early=id in LEAVE_EARLY,
    )
    if episode_length is not None:
        env = env._replace(
            spec=env.spec._replace(max_episode_steps=min(episode_length, limit or episode_length))
        )
    check_shapes(env, f"jaxmarl {id}")
    if id.startswith("MPE_"):
        return env._replace(draw=drawings.particles(base))
    if id in ("SMAX", "HeuristicEnemySMAX"):
        env = env._replace(draw=drawings.battle(getattr(base, "_env", base)))
    return env._replace(success=_battle_is_won(base)) if id == "HeuristicEnemySMAX" else env


def adapt(
    env: Any,
    *,
    name: str,
    time_limit: int | None = None,
    shared_reward: bool = False,
    leave_early: bool = False,
) -> Env:
    """Convert an object with JaxMARL's interface to an `Env`.

    Args:
        env: JaxMARL-style environment.
        name: Name in the spec.
        time_limit: Number of steps after which ``done`` is a truncation, or None.
        shared_reward: All agents get the same reward.
        leave_early: Agents that are done are marked as out while the others continue.

    Returns:
        The environment.

    Raises:
        ValueError: The agents' observations or actions cannot be padded to the largest.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step_env)
    names = list(env.agents)
    acts = [_action_space(name, env.action_space(agent)) for agent in names]
    numbers = [act.num_actions if isinstance(act, Discrete) else 0 for act in acts]
    most = most_actions(
        name, numbers, [(0, 0) if isinstance(act, Discrete) else act for act in acts]
    )
    space = Discrete(most) if most else acts[0]
    shapes = jax.eval_shape(reset_one, jax.random.key(0))[0]
    if not (isinstance(shapes, dict) and set(names) <= set(shapes)):
        raise ValueError(
            f"{name} gives no observations by the names of its agents: write another env.id"
        )
    largest_shape(name, [(shapes[agent].dtype, shapes[agent].shape) for agent in names])
    allowed = (_allowed(env) or _all_of(names, numbers)) if most else None

    def stacked(by_name: PyTree) -> jax.Array:
        return filled_up([jnp.asarray(by_name[agent]) for agent in names])

    def observed(obs: PyTree, state: PyTree, out: jax.Array) -> PyTree:
        arrays = {"obs": stacked(obs)}
        if "world_state" in obs:
            arrays[STATE] = obs["world_state"]
        if allowed is not None:
            arrays["action_mask"] = stacked(allowed(state)).astype(bool)
        return settled({**arrays, OUT: out} if leave_early else arrays)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = reset_one(key)
        state = JaxMarlState(settled(state), jnp.zeros((), jnp.int32))
        return state, observed(obs, state.state, jnp.zeros(len(names), bool))

    def step(
        state: JaxMarlState, action: jax.Array, key: jax.Array
    ) -> tuple[JaxMarlState, Timestep]:
        actions = {agent: action[i] for i, agent in enumerate(names)}
        obs, following, reward, done, _ = step_one(key, state.state, actions)
        following, steps = (
            JaxMarlState(like(following, state.state), state.steps + 1),
            state.steps + 1,
        )
        over = jnp.asarray(done["__all__"], bool).reshape(())
        in_time = over if time_limit is None else over & (steps < time_limit)
        next_obs = observed(obs, following.state, stacked(done).astype(bool).reshape(-1) & ~over)
        paid = (
            jnp.asarray(reward[names[0]]).reshape(())
            if shared_reward
            else stacked(reward).reshape(-1)
        )
        return following, Timestep(
            next_obs, next_obs, paid.astype(jnp.float32), in_time, jnp.zeros((), bool)
        )

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    sizes = own_sizes([shapes[agent].shape for agent in names], numbers)
    spec = EnvSpec(
        name,
        obs,
        space,
        max_episode_steps=time_limit,
        frame_stack=0,
        num_agents=len(names),
        shared_reward=shared_reward,
        own_sizes=sizes,
    )
    agent_spaces = _own_spaces(
        names, [shapes[agent] for agent in names], acts, masked=allowed is not None
    )
    return Env(spec._replace(obs_space=agent_spaces[0], action_space=agent_spaces[1]), reset, step)


def _own_spaces(
    names: list[str],
    shapes: list[jax.ShapeDtypeStruct],
    acts: list[Discrete | Box],
    *,
    masked: bool,
) -> tuple[Space, Space]:
    """Return the spaces of the agents by name. An agent with a mask observes ``obs`` and
    ``action_mask``.
    """
    obs_spaces, acted = {}, {}
    for name, shape, act in zip(names, shapes, acts, strict=True):
        obs_spaces[name] = space_of_arrays(shape)
        if isinstance(act, Discrete):
            acted[name] = {"kind": "Discrete", "n": act.num_actions, "start": 0, "dtype": "int32"}
        else:
            acted[name] = {"kind": "Box", "shape": list(act.low.shape), "dtype": "float32"}
        if masked and isinstance(act, Discrete):
            mask = space_of_arrays(jax.ShapeDtypeStruct((act.num_actions,), bool))
            obs_spaces[name] = {
                "kind": "Dict",
                "spaces": {"action_mask": mask, "obs": obs_spaces[name]},
            }
    return {"kind": "Agents", "spaces": obs_spaces}, {"kind": "Agents", "spaces": acted}


def _made(id: str, options: dict[str, Any]) -> Any:
    try:
        env = jaxmarl.make(id, **options)
    except Exception as error:  # any error that an option causes inside jaxmarl
        message = " ".join(str(error).split())
        raise ValueError(
            f"jaxmarl {id} does not take these options: {message}: leave them out"
        ) from error
    classes = {*type(env).__mro__, *type(getattr(env, "_env", env)).__mro__} - {object}
    accepted = {name for cls in classes for name in inspect.signature(cls).parameters} - {
        "args",
        "kwargs",
        "env_kwargs",
    }
    if unknown := sorted(set(options) - accepted):  # some constructors ignore unknown arguments
        raise unknown_option(f"jaxmarl {id}", unknown[0], accepted)
    return env


def _scenario(name: Any) -> Any:
    if name not in MAP_NAME_TO_SCENARIO:
        raise ValueError(f"env.scenario={name}: write one of {', '.join(MAP_NAME_TO_SCENARIO)}")
    return MAP_NAME_TO_SCENARIO[name]


def _allowed(env: Any) -> Callable[[PyTree], PyTree] | None:
    """Return ``allowed(state)``, the masks of the allowed actions by agent; None if all actions are
    always allowed.
    """
    allowed = relaxed(getattr(env, "get_legal_moves", env.get_avail_actions))
    try:
        masks = jax.eval_shape(lambda key: allowed(relaxed(env.reset)(key)[1]), jax.random.key(0))
    except NotImplementedError:
        return None
    return allowed if isinstance(masks, dict) else None


def _all_of(names: list[str], numbers: list[int]) -> Callable[[PyTree], PyTree] | None:
    """Return masks as `_allowed` if agents have different numbers of actions, else None."""
    masks = {agent: np.ones(number, bool) for agent, number in zip(names, numbers, strict=True)}
    return (lambda state: masks) if len(set(numbers)) > 1 else None


def _battle_is_won(env: Any) -> Callable[[PyTree], jax.Array]:
    def success(state: PyTree) -> jax.Array:
        alive = state.state.state.unit_alive.astype(bool)
        return jnp.any(alive[: env.num_allies]) & ~jnp.any(alive[env.num_allies :])

    return success


def filled_up(arrays: list[jax.Array]) -> jax.Array:
    """Stack the agents' arrays, padding shorter vectors with zeros at the end.

    Args:
        arrays: One array for each agent, equal in shape except that vectors may differ in length.

    Returns:
        Array ``[A, ...]``.
    """
    most = max(x.shape[:1] for x in arrays)
    return jnp.stack(
        [jnp.pad(x, (0, most[0] - len(x))) if x.shape[:1] < most else x for x in arrays]
    )


def _action_space(name: str, space: Any) -> Discrete | Box:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        bounds = [
            np.broadcast_to(np.asarray(bound, np.float32), space.shape)
            for bound in (space.low, space.high)
        ]
        if np.isfinite(bounds).all():
            return Box(*bounds)
    raise ValueError(
        f"{name} has actions of kind {type(space).__name__}; Discrete and bounded Box are supported"
    )
