"""Adapter of Atari's games in ALE (https://ale.farama.org), stepped on the host with the usual
preprocessing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from jaxrl_fast.core import MAX_SIZE, Number
from jaxrl_fast.envs.from_gymnasium import env_spec, filmed
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.options import Count, EnvOptions, OptionalCount, read_options
from jaxrl_fast.envs.pool import recipes
from jaxrl_fast.envs.pool.batches import PoolOptions, check_options
from jaxrl_fast.envs.pool.making import FilmedHost, in_process, make_pool, measurement
from jaxrl_fast.envs.pool.stepping import RENDER_MODE, MakeGymnasium, describe, make_one

FRAMES_PER_S = 60


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of an Atari game."""

    clip_rewards: bool = True
    """Replace training rewards by their signs."""
    life_loss: bool = False
    """End a training episode with each lost life."""
    sticky: bool = True
    """Repeat the last action with probability 0.25 (Machado et al., 2018)."""
    frame_skip: Count = 4
    """Frames for which an action is repeated; the maximum of the last two is observed."""
    noop_max: Annotated[int, Number(0, MAX_SIZE, "whole")] = 30
    """Largest number of idle frames at the start of a game."""
    screen_size: Count = 84
    """Height and width of a frame in pixels."""
    episode_length: OptionalCount = recipes.ATARI_EPISODE_STEPS
    """Time limit in steps of the policy, or None."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ALE."""


def make_host(
    id: str,
    *,
    num_envs: int,
    num_seeds: int = 1,
    pool: PoolOptions = PoolOptions(),
    **values: Any,
) -> HostEnv:
    """Make a vectorized host environment of an Atari game: one grey frame ``[84, 84, 1]`` uint8 a
    step, unstacked.

    Reported returns are the true scores of whole games. ``another``, for evaluation, makes games
    without clipped rewards and without ends of episodes at lost lives.

    Args:
        id: ``Pong`` or ``ALE/Pong-v5``.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown game or option, ``pool.backend=envpool``, or a package of the extra
            ``atari`` is not installed.
    """
    options = read_options(Options, values, f"atari {id}")
    pool = check_options(pool, num_envs, num_seeds)
    if pool.backend == "envpool":
        raise ValueError("pool.backend=envpool is for env=gymnasium: leave it out for env=atari")
    measure = measurement(pool, num_envs * num_seeds)
    whole = describe(_whole_game(id, options), id, measure=measure, metrics=False)
    played = whole._replace(
        make=_game(id, options, life_loss=options.life_loss), clip_rewards=options.clip_rewards
    )
    spec = env_spec(whole, options.episode_length)
    host = make_pool(played, spec, num_envs=num_envs, num_seeds=num_seeds, options=pool)
    return host._replace(
        bridge=pool.bridge, another=lambda num_envs: in_process(whole, spec, num_envs=num_envs)
    )


def film(id: str, **values: Any) -> FilmedHost:
    """Make one Atari game that can be drawn, as for evaluation: a whole game with its true score.

    Args:
        id: As in `make_host`.
        **values: `Options`.

    Returns:
        The environment and its camera.

    Raises:
        ValueError: As `make_host`.
    """
    options = read_options(Options, values, f"atari {id}")
    made = make_one(_whole_game(id, options, render_mode=RENDER_MODE), id)
    film = filmed(made, id, options.episode_length)
    return film._replace(step_s=options.frame_skip / FRAMES_PER_S)


def _whole_game(id: str, options: Options, **more: Any) -> MakeGymnasium:
    return _game(id, options, life_loss=False, **more)


def _game(id: str, options: Options, *, life_loss: bool, **more: Any) -> MakeGymnasium:
    return recipes.atari(
        id,
        sticky=options.sticky,
        life_loss=life_loss,
        frame_skip=options.frame_skip,
        noop_max=options.noop_max,
        screen_size=options.screen_size,
        episode_length=options.episode_length,
        **options.others,
        **more,
    )
