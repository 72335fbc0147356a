"""Adapter of Craftax's environments. The only file that imports craftax.

Source: https://github.com/MichaelTMatthews/Craftax, 1.6.

Craftax's time limit terminates an episode; here it never applies, and `vectorize` truncates
instead.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from jaxrl_fast.core import PyTree, Timestep
from jaxrl_fast.envs import from_gymnax
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.episode_metrics import chosen
from jaxrl_fast.envs.options import EnvOptions, Kinds, check_others, read_options

NEVER = 2**30
"""A time limit in steps that is never reached."""
STEPS_PER_RESET = 64
"""A reset draws a map, which takes as long as ten steps."""
IDS = tuple(
    f"Craftax-{game}{observed}-v1"
    for game in ("", "Classic-")
    for observed in ("Symbolic", "Pixels")
)
SCORE = "achievements"
"""Name of the metric with the number of achievements."""


def ids() -> list[str]:
    """List the ids.

    Returns:
        Craftax and Craftax-Classic, by symbols and by pixels.
    """
    return list(IDS)


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of Craftax."""

    metrics: Kinds = None
    """Kinds of the achievements to report, by name, as in `EnvSpec`; None for all. Each is 1 once
    it is reached in an episode, and ``achievements`` is their number."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values that override Craftax's default parameters."""


def make(id: str, **values: Any) -> Env:
    """Make Craftax or Craftax-Classic.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment. Pixels are bytes ``[height, width, 3]``.

    Raises:
        ValueError: Unknown option, or one of the wrong kind.
    """
    options = read_options(Options, values, f"craftax {id}")
    base = make_craftax_env_from_name(id, auto_reset=False)
    params = base.default_params
    fixed = ("max_timesteps", "fractal_noise_angles")
    changeable = {name: value for name, value in vars(params).items() if name not in fixed}
    check_others(f"craftax {id}", options.others, changeable, counts=True)
    limit = options.episode_length or int(params.max_timesteps)
    inner = from_gymnax.adapt(base, params.replace(max_timesteps=NEVER, **options.others), name=id)
    env = _with_pixels(inner) if "Pixels" in id else inner
    env = _with_achievements(
        env, "craftax_classic" if "Classic" in id else "craftax", options.metrics
    )
    check_shapes(env, f"craftax {id}")
    spec = env.spec._replace(max_episode_steps=limit)
    return env._replace(spec=spec, steps_per_reset=STEPS_PER_RESET, draw=_picture(id))


def _picture(id: str) -> Callable[[PyTree], np.ndarray]:
    """Return `Env.draw`: the agent's view and what it carries, by Craftax's own renderer."""

    @functools.cache
    def renderer() -> Callable[[Any], jax.Array]:
        game = import_module(
            f"craftax.{'craftax_classic' if 'Classic' in id else 'craftax'}.renderer"
        )
        return jax.jit(game.make_craftax_pixel_renderer(game.BLOCK_PIXEL_SIZE_IMG))

    return lambda state: np.asarray(renderer()(state.state)).clip(0, 255).astype(np.uint8)


def _with_pixels(env: Env) -> Env:
    """Return an environment with observations as bytes, which take a quarter of the memory."""

    def seen(obs: jax.Array) -> jax.Array:
        return jnp.round(255.0 * obs).astype(jnp.uint8)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        state, obs = env.reset(key, params)
        return state, seen(obs)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, timestep = env.step(state, action, key)
        obs = seen(timestep.obs)
        return following, timestep._replace(obs=obs, next_obs=obs)

    obs = jax.ShapeDtypeStruct(env.spec.obs.shape, jnp.uint8)
    return env._replace(spec=env.spec._replace(obs=obs), reset=reset, step=step)


def _with_achievements(env: Env, game: str, metrics: Mapping[str, str] | None) -> Env:
    """Return an environment that reports the achievements of an episode."""
    named = {
        one.name.lower(): one.value
        for one in import_module(f"craftax.{game}.constants").Achievement
    }
    kinds = chosen({SCORE: "last", **dict.fromkeys(named, "last")}, metrics, env.spec.name)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, timestep = env.step(state, action, key)
        reached = following.state.achievements.astype(jnp.float32)
        values = {
            name: jnp.sum(reached) if name == SCORE else reached[named[name]] for name in kinds
        }
        return following, timestep._replace(metrics=values)

    return env._replace(spec=env.spec._replace(metrics=kinds), step=step)
