"""Adapter of Octax's CHIP-8 games. The only file that imports octax
(https://github.com/riiswa/octax, 0.1).
"""

import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from octax import environments as octax_envs
from octax.env import OctaxEnv

from jaxrl_fast.core import Discrete, EnvSpec, PyTree, Timestep
from jaxrl_fast.envs.adapter_utils import like, relaxed, settled
from jaxrl_fast.envs.env import Env
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.options import EnvOptions, check_others, read_options
from jaxrl_fast.system import fault_of

OPTIONS = {"instruction_frequency": 700, "frame_skip": 4}
"""Options and their defaults: instructions in a second, and frames in a step."""
FRAMES_PER_S = 60
STEPS_PER_RESET = 64
"""All episodes begin in one state, which is large."""
TEST_ROM = "test_opcode.ch8"
SCALE = 8
"""Pixels in a picture for each of the game's."""


def ids() -> list[str]:
    """List the games.

    Returns:
        Sorted ids; a game with levels has one for each, such as ``cavern1``.
    """
    names = [module.name for module in pkgutil.iter_modules(octax_envs.__path__)]
    roms = Path(octax_envs.get_rom_path(TEST_ROM)).parent.glob("*.ch8")
    levels = [
        rom.stem for rom in roms if rom.stem.rstrip("0123456789") in names and rom.stem not in names
    ]
    with_levels = {level.rstrip("0123456789") for level in levels}
    return sorted({*names, *levels} - with_levels)


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a CHIP-8 game."""

    others: Mapping[str, Any] = field(default_factory=dict)
    """Other values of `OPTIONS`."""


def make(id: str, **values: Any) -> Env:
    """Make a CHIP-8 game.

    Args:
        id: One of `ids`.
        **values: `Options`.

    Returns:
        The environment. It observes the last frames, bool ``[height, width, frame_skip]``.

    Raises:
        ValueError: Unknown option, or one of the wrong kind.
    """
    options = read_options(Options, values, f"octax {id}")
    check_others(f"octax {id}", options.others, OPTIONS, counts=True)
    limit = inspect.signature(OctaxEnv).parameters["max_num_steps_per_episodes"].default
    try:
        base, _ = relaxed(octax_envs.create_environment)(id, **options.others)
    except (AttributeError, ImportError, FileNotFoundError, ValueError) as error:
        raise ValueError(f"octax {id} failed: {fault_of(error)}") from error
    env = adapt(base, name=id, max_episode_steps=options.episode_length or limit)
    check_shapes(env, f"octax {id}")
    return env._replace(steps_per_reset=STEPS_PER_RESET)


def adapt(env: Any, *, name: str, max_episode_steps: int | None = None) -> Env:
    """Convert an object with Octax's interface to an `Env`.

    Args:
        env: Environment of Octax.
        name: Name in the spec.
        max_episode_steps: Time limit in steps, or None.

    Returns:
        The environment.
    """
    reset_one, step_one = relaxed(env.reset), relaxed(env.step)

    def observed(frames: jax.Array) -> jax.Array:
        return jnp.asarray(frames, bool).transpose(2, 1, 0)  # of [frames, width, height]

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        state, frames, _ = reset_one(jax.random.key_data(key))
        return settled(state), observed(frames)

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        following, frames, reward, terminated, _, _ = step_one(state, action)
        obs, over = observed(frames), jnp.asarray(terminated, bool).reshape(())
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return like(following, state), Timestep(obs, obs, reward, over, jnp.zeros((), bool))

    def draw(state: PyTree) -> np.ndarray:
        shown = np.asarray(state.display, np.uint8).T[..., None] * np.full(3, 255, np.uint8)
        return shown.repeat(SCALE, 0).repeat(SCALE, 1)

    obs = jax.eval_shape(reset, jax.random.key(0), ())[1]
    spec = EnvSpec(name, obs, Discrete(int(env.num_actions)), max_episode_steps)
    return Env(spec, reset, step, step_s=env.frame_skip / FRAMES_PER_S, draw=draw)
