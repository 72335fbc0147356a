"""Adapter of Pgx's games. The only file that imports pgx (https://github.com/sotetsuk/pgx, 2.6).

The agent is player 0 of a game of several players, and the others are part of the environment.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pgx

from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs import drawings
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, OptionalCount, read_options

OPPONENTS = "random", "one_ply"
LIMITS = {"minatar-freeway": 2500}
"""Time limits, in steps, of games that count them as an end. The limits of board games are their
rules.
"""
STEPS_PER_RESET = 64
"""States of board games are large, and so is a bank of them."""
MOST_LAYERS = 32
"""Largest number of layers of an observation that is drawn; chess has 119, with its history."""
SELF = 0
"""The agent's number as a player. Who begins is drawn in every episode."""
Opponent = Callable[[PyTree, jax.Array], jax.Array]
"""``(state, key) -> action`` of the player whose turn it is."""


def ids() -> list[str]:
    """List the available games.

    Returns:
        Sorted ids.
    """
    return sorted(pgx.available_envs())


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a game of Pgx."""

    opponent: str | None = None
    """The other players of a game of several: ``random`` makes legal moves, all equally probable;
    ``one_ply`` wins at once where it can and else does the same. None for ``random``."""
    episode_length: OptionalCount = None
    """Time limit in steps; None for the game's."""


def make(id: str, **values: Any) -> Env:
    """Make a game of Pgx.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment, whose observation has ``obs``, as Pgx gives it, and ``action_mask``.

    Raises:
        ValueError: Unknown opponent, or one for a game of one player, or an unknown option.
    """
    options = read_options(Options, values, f"pgx {id}")
    opponent = options.opponent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of chess and others
        base = relaxed(pgx.make)(id)
    several = base.num_players > 1
    if opponent is not None and (not several or opponent not in OPPONENTS):
        instead = (
            f"write one of {', '.join(OPPONENTS)}"
            if several
            else f"{id} has one player: leave it out"
        )
        raise ValueError(f"env.opponent={opponent}: {instead}")
    play = (one_ply(base) if opponent == "one_ply" else random_play) if several else None
    limit = options.episode_length or LIMITS.get(id)
    env = adapt(base, name=id, opponent=play, max_episode_steps=limit)
    check_shapes(env, f"pgx {id}")
    shape, observe = env.spec.obs["obs"].shape, jax.jit(_observe(base))
    drawn = len(shape) == 3 and shape[2] <= MOST_LAYERS
    draw = (lambda state: drawings.grid(observe(state))) if drawn else None
    return env._replace(steps_per_reset=STEPS_PER_RESET, draw=draw)


def adapt(
    env: Any, *, name: str, opponent: Opponent | None, max_episode_steps: int | None = None
) -> Env:
    """Convert an object with Pgx's interface to an `Env`.

    Args:
        env: Game of Pgx.
        name: Name in the spec.
        opponent: The other players' moves; None for a game of one player.
        max_episode_steps: Time limit in steps, or None.

    Returns:
        The environment. An episode of a game of several players is a success if the agent wins.
    """
    init, step_one, observe = relaxed(env.init), relaxed(env.step), relaxed(_observe(env))

    def observed(state: PyTree) -> PyTree:
        observation = observe(state)
        return {"action_mask": state.legal_action_mask, "obs": jnp.asarray(observation)}

    def waited(state: PyTree, key: jax.Array) -> PyTree:
        """Play the other players' moves until the agent's turn or the end, and add up the rewards."""
        if opponent is None:
            return state

        def is_others(carried: tuple[PyTree, jax.Array]) -> jax.Array:
            now = carried[0]
            return (now.current_player != SELF) & ~now.terminated & ~now.truncated

        def move(carried: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
            before, key = carried
            key, opponent_key, chance = jax.random.split(key, 3)
            after = step_one(before, opponent(before, opponent_key), jax.random.key_data(chance))
            return like(after.replace(rewards=before.rewards + after.rewards), before), key

        return jax.lax.while_loop(is_others, move, (state, key))[0]

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        first, others = jax.random.split(key)
        state = waited(settled(init(jax.random.key_data(first))), others)
        return state, observed(state)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        chance, others = jax.random.split(key)
        following = waited(
            like(step_one(state, action, jax.random.key_data(chance)), state), others
        )
        obs, reward = observed(following), following.rewards[SELF].astype(jnp.float32)
        terminated = following.terminated
        return following, Timestep(obs, obs, reward, terminated, following.truncated & ~terminated)

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    spec = EnvSpec(name, obs, Discrete(obs["action_mask"].shape[0]), max_episode_steps)
    success = (
        None if opponent is None else (lambda state: state.terminated & (state.rewards[SELF] > 0))
    )
    return Env(spec, reset, step, success=success)


def random_play(state: PyTree, key: jax.Array) -> jax.Array:
    """Move legally at random: an `Opponent`.

    Args:
        state: State of the game.
        key: Key of the move.

    Returns:
        The action.
    """
    return jax.random.categorical(key, jnp.where(state.legal_action_mask, 0.0, -jnp.inf))


def one_ply(env: Any) -> Opponent:
    """Make an opponent that tries all its moves for one step.

    Args:
        env: Game of Pgx.

    Returns:
        The opponent: it makes a move with the largest reward for itself, one of them at random.
    """
    step_one = relaxed(env.step)

    def play(state: PyTree, key: jax.Array) -> jax.Array:
        chance, choice = jax.random.split(key)
        actions = jnp.arange(state.legal_action_mask.shape[0])
        after = jax.vmap(lambda action: step_one(state, action, jax.random.key_data(chance)))(
            actions
        )
        rewards = after.rewards[:, state.current_player]
        legal = jnp.where(state.legal_action_mask, rewards, -jnp.inf)
        return jax.random.categorical(choice, jnp.where(legal >= jnp.max(legal), 0.0, -jnp.inf))

    return play


def _observe(env: Any) -> Callable[[PyTree], jax.Array]:
    """Return what the agent sees, also while it is not its turn."""

    def observe(state: PyTree) -> jax.Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of player_id
            return env.observe(state, jnp.int32(SELF))

    return observe
