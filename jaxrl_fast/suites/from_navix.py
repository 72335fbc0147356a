"""Adapter of NAVIX, MiniGrid in JAX. The only file that imports navix
(https://github.com/epignatelli/navix, 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import navix
import numpy as np

from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, read_options
from jaxrl_fast.system import fault_of

VIEWS = {
    "first_person": navix.observations.symbolic_first_person,
    "whole": navix.observations.symbolic,
    "pixels": navix.observations.rgb,
}
"""What the agent sees: the 7 x 7 cells in front of it, as in MiniGrid, all cells, or a picture."""
SYMBOLS = 11, 6, 4
"""Numbers of kinds, colors and states of a cell."""
STEPS_PER_RESET = 32
"""A reset draws a map, which takes as long as several steps."""


def ids() -> list[str]:
    """List the registered ids.

    Returns:
        Sorted ids.
    """
    return sorted(navix.registry())


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a NAVIX environment."""

    view: Literal["first_person", "whole", "pixels"] = "first_person"
    """What the agent sees (`VIEWS`). Symbols are one-hot, float32 ``[height, width, 21]``."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor."""


def make(id: str, **values: Any) -> Env:
    """Make a NAVIX environment.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment. An episode is a success if it ends with a positive reward.

    Raises:
        ValueError: Unknown view or option.
    """
    options = read_options(Options, values, f"navix {id}")
    limit = {"max_steps": options.episode_length} if options.episode_length else {}
    try:
        base = relaxed(navix.make)(
            id,
            observation_fn=VIEWS[options.view],
            disable_autoreset=True,
            **options.others,
            **limit,
        )
        env = adapt(base, name=id, symbolic=options.view != "pixels")
        check_shapes(env, f"navix {id}")
    except Exception as error:  # any error that an option causes inside navix
        raise ValueError(
            f"navix {id} does not take these options: {fault_of(error)}: leave them out"
        ) from error
    return env._replace(steps_per_reset=STEPS_PER_RESET)


def adapt(env: Any, *, name: str, symbolic: bool) -> Env:
    """Convert an object with NAVIX's interface to an `Env`.

    Args:
        env: Environment that does not reset itself.
        name: Name in the spec.
        symbolic: Its observations are triples of symbols, which become one-hot.

    Returns:
        The environment.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)
    picture = jax.jit(relaxed(navix.observations.rgb))

    def observed(obs: jax.Array) -> jax.Array:
        if not symbolic:
            return jnp.asarray(obs, jnp.uint8)
        return jnp.concatenate(
            [jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(SYMBOLS)], axis=-1
        )

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        first = settled(reset_one(key))
        return first, observed(first.observation)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following = like(step_one(state, action), state)
        obs, reward = (
            observed(following.observation),
            jnp.asarray(following.reward, jnp.float32).reshape(()),
        )
        return following, Timestep(
            obs, obs, reward, following.is_termination(), following.is_truncation()
        )

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    spec = EnvSpec(name, obs, Discrete(int(env.action_space.n)), None)
    success = lambda state: state.is_termination() & (state.reward > 0.0)  # noqa: E731
    return Env(
        spec,
        reset,
        step,
        success=success,
        draw=lambda state: np.asarray(picture(state.state), np.uint8),
    )
