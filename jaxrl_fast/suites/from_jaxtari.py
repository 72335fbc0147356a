"""Adapter of JAXtari's Atari games in JAX. The only file that imports jaxtari
(https://github.com/k4ntz/JAXAtari, 0.2).

Its wrappers reset environments themselves and so overwrite the last observation of an episode; here
only its games are used, with actions that repeat and stick as in Gymnasium's Atari (Machado et al.
2018, arXiv 1709.06009).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import jaxtari
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_fast.core import EnvSpec, Number, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import actions_of, like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import Count, EnvOptions, OptionalCount, read_options
from jaxrl_fast.system import fault_of

VIEWS = "objects", "pixels"
SIZE, STACKED = 84, 4
"""Height and width of a gray image, and the number of images that a policy observes."""
FRAMES_PER_S, MOST_FRAMES = 60, 108_000
"""Frames in a second, and in the longest episode: half an hour."""


def ids() -> list[str]:
    """List the games.

    Returns:
        Sorted ids.
    """
    return sorted(jaxtari.list_available_games())


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of an Atari game."""

    view: Literal["objects", "pixels"] = "objects"
    """``objects`` for the positions of all objects in the frames of a step, or ``pixels`` for its
    last frame, gray bytes ``[84, 84, 1]``, of which four are stacked."""
    frame_skip: Count = 4
    """Frames in a step; each repeats the action."""
    sticky_actions: Annotated[float, Number(0, 1)] = 0.25
    """Probability with which a frame repeats the action of the frame before instead."""
    episode_length: OptionalCount = None
    """Time limit in steps; None for half an hour."""


def make(id: str, **values: Any) -> Env:
    """Make an Atari game.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown option, a number out of range, or sprites that are not on this disk.
    """
    options = read_options(Options, values, f"jaxtari {id}")
    try:
        base = relaxed(jaxtari.make)(id)
    except RuntimeError as error:
        raise ValueError(
            f"env.id={id} needs Jaxtari's sprites: python -m jaxtari.install_sprites"
        ) from error
    except Exception as error:  # any error of a game that is not finished
        raise ValueError(f"jaxtari {id} failed: {fault_of(error)}") from error
    env = adapt(
        base,
        name=id,
        pixels=options.view == "pixels",
        frame_skip=options.frame_skip,
        sticky_actions=options.sticky_actions,
    )
    check_shapes(env, f"jaxtari {id}")
    limit = options.episode_length or MOST_FRAMES // options.frame_skip
    return env._replace(spec=env.spec._replace(max_episode_steps=limit))


def adapt(env: Any, *, name: str, pixels: bool, frame_skip: int, sticky_actions: float) -> Env:
    """Convert a game of JAXtari to an `Env`.

    Args:
        env: Game without wrappers.
        name: Name in the spec.
        pixels: Observe the picture instead of objects.
        frame_skip: Frames in a step.
        sticky_actions: Probability of repeating the frame before's action.

    Returns:
        The environment.
    """
    reset_one, step_one, render = relaxed(env.reset), relaxed(env.step), relaxed(env.render)

    def flat(obs: Any) -> jax.Array:
        return relaxed(ravel_pytree)(obs)[0].astype(jnp.float32)

    def seen(state: PyTree, frames: jax.Array) -> jax.Array:
        if not pixels:
            return frames.reshape(-1)
        gray = jnp.mean(jnp.asarray(render(state), jnp.float32), axis=-1)
        return jnp.round(jax.image.resize(gray, (SIZE, SIZE), "linear")).astype(jnp.uint8)[
            ..., None
        ]

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        obs, state = reset_one(jax.random.key_data(key))
        state = settled(state)
        return (state, jnp.zeros((), jnp.int32)), seen(state, jnp.stack([flat(obs)] * frame_skip))

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        def frame(carried: Any, sticks: jax.Array) -> Any:
            game, before, over = carried
            chosen = jnp.where(sticks, before, action)
            obs, after, reward, done, _ = step_one(game, chosen)
            game = jax.tree.map(lambda old, new: jnp.where(over, old, new), game, like(after, game))
            paid = jnp.where(over, 0.0, jnp.asarray(reward, jnp.float32).reshape(()))
            return (game, chosen, over | jnp.asarray(done, bool).reshape(())), (flat(obs), paid)

        sticks = jax.random.bernoulli(key, sticky_actions, (frame_skip,))
        (game, last, over), (frames, paid) = jax.lax.scan(
            frame, (*state, jnp.zeros((), bool)), sticks
        )
        obs = seen(game, frames)
        return (game, last), Timestep(obs, obs, jnp.sum(paid), over, jnp.zeros((), bool))

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    spec = EnvSpec(
        name, obs, actions_of(env.action_space(), name), frame_stack=STACKED if pixels else 0
    )
    picture = jax.jit(render)
    return Env(
        spec,
        reset,
        step,
        step_s=frame_skip / FRAMES_PER_S,
        draw=lambda state: np.asarray(picture(state[0]), np.uint8),
    )
