"""Probes: tiny environments with exactly computable best returns.

Each detects one kind of bug, which its test names.

Source: Andy Jones, https://andyljones.com/posts/rl-debugging.html#probe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import OUT, STATE, Box, Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.options import read_options

UNIT = Box(-np.ones(1, np.float32), np.ones(1, np.float32))
PAYOFFS = (0.0, 0.5, 1.0)
"""Rewards of the allowed actions of `mask`."""
FORBIDDEN_PAYOFF = 2.0
"""Reward of a masked action of `mask`."""
MEMORY_STEPS = 4
TRUNCATION_STEPS = 3


def value() -> Env:
    """Make a probe with reward 1 and one step: V = 1. Fails if the value function cannot represent
    a constant.

    Returns:
        The environment.
    """
    return _one_step("value", UNIT, lambda key: jnp.ones(1), lambda obs, action: jnp.ones(()))


def reward() -> Env:
    """Make a probe with observation ±1 and the observation as reward: V(obs) = obs.

    Fails if gradients do not reach the observation.

    Returns:
        The environment.
    """
    return _one_step("reward", UNIT, _sign, lambda obs, action: obs[0])


def discount() -> Env:
    """Make a probe with two steps, observations -1 and 1, and reward 1 at the end: V(-1) = γ and
    V(1) = 1.

    Fails on a wrong discount.

    Returns:
        The environment.
    """
    spec = _spec("discount", jax.ShapeDtypeStruct((1,), jnp.float32), UNIT, 2)

    def step(obs: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        last, following = obs[0] > 0, jnp.ones(1)
        return following, _timestep(following, jnp.where(last, 1.0, 0.0), last)

    return Env(spec, lambda key, params: (-jnp.ones(1), -jnp.ones(1)), step, shortest_episode=2)


def action() -> Env:
    """Make a probe in which action 1 of two pays 1 and the other nothing.

    Fails if the policy gradient has the wrong sign.

    Returns:
        The environment.
    """
    return _one_step(
        "action",
        Discrete(2),
        lambda key: jnp.ones(1),
        lambda obs, action: action.astype(jnp.float32),
    )


def action_continuous() -> Env:
    """Make a probe with reward -(a - 1/2)²: best action 1/2.

    Returns:
        The environment.
    """
    return _one_step(
        "action_continuous", UNIT, lambda key: jnp.ones(1), lambda obs, action: _miss(action, 0.5)
    )


def observation() -> Env:
    """Make a probe with observation ±1, in which action 1 pays 1 at +1, and action 0 at -1.

    Fails if advantages and observations are mixed up.

    Returns:
        The environment.
    """
    return _one_step(
        "observation",
        Discrete(2),
        _sign,
        lambda obs, action: (action == (obs[0] > 0)).astype(jnp.float32),
    )


def observation_continuous() -> Env:
    """Make a probe with observation ±1 and reward -(a - obs/2)²: best action obs/2.

    Returns:
        The environment.
    """
    return _one_step(
        "observation_continuous", UNIT, _sign, lambda obs, action: _miss(action, 0.5 * obs[0])
    )


def dictionary() -> Env:
    """Make a probe with a dictionary of a cue ±1 and noise, and reward -(a - cue/2)²: best action
    cue/2.

    Returns:
        The environment.
    """

    def observe(key: jax.Array) -> PyTree:
        cue_key, noise_key = jax.random.split(key)
        return {"cue": _sign(cue_key), "noise": jax.random.normal(noise_key, (2,))}

    return _one_step(
        "dictionary", UNIT, observe, lambda obs, action: _miss(action, 0.5 * obs["cue"][0])
    )


def mask() -> Env:
    """Make a probe in which actions pay `PAYOFFS`, and a masked one `FORBIDDEN_PAYOFF`.

    At -1 action 2 is masked, at +1 action 1, so that the best allowed actions are 1 and 2. Fails if
    the mask does not reach the policy.

    Returns:
        The environment.
    """

    def observe(key: jax.Array) -> PyTree:
        cue = _sign(key)
        return {"cue": cue, "action_mask": jnp.arange(3) != jnp.where(cue[0] > 0, 1, 2)}

    def pay(obs: PyTree, action: jax.Array) -> jax.Array:
        return jnp.where(obs["action_mask"][action], jnp.asarray(PAYOFFS)[action], FORBIDDEN_PAYOFF)

    return _one_step("mask", Discrete(3), observe, pay)


def truncation() -> Env:
    """Make a probe with reward 1 for ever, truncated every `TRUNCATION_STEPS` steps: V = 1 / (1 -
    γ).

    Fails if a truncation is treated as a termination.

    Returns:
        The environment.
    """
    spec = _spec("truncation", jax.ShapeDtypeStruct((1,), jnp.float32), UNIT, TRUNCATION_STEPS)

    def step(obs: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Timestep]:
        return obs, _timestep(obs, jnp.ones(()), jnp.zeros((), bool))

    return Env(
        spec,
        lambda key, params: (jnp.ones(1), jnp.ones(1)),
        step,
        shortest_episode=TRUNCATION_STEPS,
    )


def memory() -> Env:
    """Make a probe with a cue ±1 that is observed only at the first of `MEMORY_STEPS` steps.

    At the last step, action 1 pays 1 if the cue was +1, and action 0 if it was -1. The best policy
    without memory gets 1/2 on average.

    Returns:
        The environment.
    """
    spec = _spec("memory", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(2), MEMORY_STEPS)

    def observe(cue: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.stack([jnp.where(t == 0, cue, 0.0), (t == MEMORY_STEPS - 1).astype(jnp.float32)])

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        cue, t = _sign(key)[0], jnp.zeros((), jnp.int32)
        return (cue, t), observe(cue, t)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        cue, t = state
        last = t == MEMORY_STEPS - 1
        right = (action == (cue > 0)) & last
        return (cue, t + 1), _timestep(observe(cue, t + 1), right.astype(jnp.float32), last)

    return Env(spec, reset, step, shortest_episode=MEMORY_STEPS)


def two_credit() -> Env:
    """Make a probe in which agent 0 is paid 1 for action 1, and agent 1 for action 0.

    Fails if the credit goes to the other agent.

    Returns:
        The environment.
    """
    return _two("two_credit", lambda key: _seen(), lambda obs, action: action == jnp.array([1, 0]))


def two_observations() -> Env:
    """Make a probe in which each agent observes a separate sign.

    An agent is paid 1 for action 1 at +1 and for action 0 at -1. Fails if agents get each other's
    observations.

    Returns:
        The environment.
    """
    return _two(
        "two_observations",
        lambda key: _seen(own=jax.random.rademacher(key, (2, 1), jnp.float32)),
        lambda obs, action: action == (obs["own"][:, 0] > 0),
    )


def two_state() -> Env:
    """Make a probe in which only the global state is ±1; agent 0 is paid that number, agent 1 its
    negative.

    Fails if the critic does not observe the state.

    Returns:
        The environment.
    """
    return _two(
        "two_state",
        lambda key: _seen(state=_sign(key)),
        lambda obs, action: obs[STATE][0] * jnp.array([1.0, -1.0]),
    )


def two_out() -> Env:
    """Make a probe in which action 1 pays 1, but agent 1 is out in every other episode and paid for
    the wrong action.

    The reward of action 0 is then `FORBIDDEN_PAYOFF`. Fails if an agent is trained on steps in
    which it is out.

    Returns:
        The environment.
    """

    def pay(obs: PyTree, action: jax.Array) -> jax.Array:
        return jnp.where(obs[OUT], FORBIDDEN_PAYOFF * (action == 0), action == 1)

    return _two(
        "two_out",
        lambda key: _seen(out=jnp.stack([jnp.zeros((), bool), jax.random.bernoulli(key)])),
        pay,
    )


TWO_AGENTS: dict[str, Callable[[], Env]] = {
    make.__name__: make for make in (two_credit, two_observations, two_state, two_out)
}
"""Probes with two agents, all of the same shapes. `PROBES` have one."""
_OF_ONE = (
    value,
    reward,
    discount,
    action,
    action_continuous,
    observation,
    observation_continuous,
    truncation,
)
PROBES: dict[str, Callable[[], Env]] = {
    make.__name__: make for make in (*_OF_ONE, memory, mask, dictionary)
}


def ids() -> list[str]:
    """List the probes.

    Returns:
        Sorted names.
    """
    return sorted({**PROBES, **TWO_AGENTS})


@dataclass(frozen=True, kw_only=True)
class Options:
    """A probe has no options."""


def make(id: str, **values: Any) -> Env:
    """Make a probe.

    Args:
        id: Name of the probe.
        **values: Refused options.

    Returns:
        The environment.

    Raises:
        ValueError: An option was given.
    """
    read_options(Options, values, f"probe {id}")
    return {**PROBES, **TWO_AGENTS}[id]()


def _one_step(
    name: str,
    space: Discrete | Box,
    observe: Callable[[jax.Array], PyTree],
    pay: Callable[[PyTree, jax.Array], jax.Array],
) -> Env:
    """Make an environment with episodes of one step from ``observe(key)`` and ``pay(obs, action)``."""

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        obs = observe(key)
        return obs, obs

    def step(obs: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        return obs, _timestep(obs, pay(obs, action), jnp.ones((), bool))

    obs = jax.eval_shape(observe, jax.random.key(0))
    return Env(_spec(name, obs, space, 1), reset, step)


def _two(
    name: str, observe: Callable[[jax.Array], PyTree], pay: Callable[[PyTree, jax.Array], jax.Array]
) -> Env:
    """Make an environment as `_one_step` with two agents and two actions; ``pay`` returns each
    agent's reward.
    """
    env = _one_step(
        name, Discrete(2), observe, lambda obs, action: pay(obs, action).astype(jnp.float32)
    )
    return env._replace(spec=env.spec._replace(num_agents=2))


def _seen(own: Any = None, state: Any = None, out: Any = None) -> PyTree:
    """Return an observation of a probe with two agents, with constants for arguments that are None."""
    return {
        "own": jnp.ones((2, 1)) if own is None else own,
        STATE: jnp.ones(1) if state is None else state,
        OUT: jnp.zeros(2, bool) if out is None else out,
    }


def _spec(name: str, obs: PyTree, space: Discrete | Box, limit: int) -> EnvSpec:
    return EnvSpec(f"probe {name}", obs, space, limit)


def _timestep(obs: PyTree, reward: jax.Array, terminated: jax.Array) -> Timestep:
    return Timestep(obs, obs, reward, terminated, jnp.zeros((), bool))


def _sign(key: jax.Array) -> jax.Array:
    return jax.random.rademacher(key, (1,), jnp.float32)


def _miss(action: jax.Array, target: jax.Array | float) -> jax.Array:
    return -jnp.square(action[0] - target)
