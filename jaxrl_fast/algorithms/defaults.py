"""Settings of an algorithm that depend on the environment, for runs that nobody tuned, with the
reason for each number.

Settings that depend only on the number of environments and the length of the run are the
algorithm's own (`Algorithm.sizes`), except that number itself (`default_envs`). Nothing depends on
the machine. Returns here are of single trials; docs/defaults.md has the resulting settings next to
another library, with intervals.
"""

import math
from typing import Any, Protocol

import jax

from jaxrl_fast import spaces
from jaxrl_fast.algorithms.registry import declared_named, names_of_algorithms
from jaxrl_fast.core import Box, EnvSpec, is_image, require_vectorized


class Environments(Protocol):
    """What the defaults need of a `VecEnv` or `HostEnv`."""

    num_envs: int
    spec: EnvSpec


def defaults(algo: str, env: Environments, *, total_steps: int) -> dict[str, Any]:
    """Return the settings with which the command trains in an environment that nobody tuned.

    Example: ``jf.ppo(**jf.defaults("ppo", env, total_steps=100_000))``.

    Args:
        algo: Name of the algorithm.
        env: Vectorized environment.
        total_steps: Environment steps of the run.

    Returns:
        Arguments of the algorithm's factory; all others have the defaults of its signature.

    Raises:
        ValueError: Unknown algorithm, or an environment that is not vectorized.
    """
    require_vectorized(env)
    declared = declared_named(algo)
    if declared is None:
        raise ValueError(f"algo={algo} is unknown: write one of {', '.join(names_of_algorithms())}")
    return declared().sizes(env.num_envs, total_steps) | of_environment(algo, env.spec)


def of_environment(algo: str, spec: EnvSpec) -> dict[str, Any]:
    """Return the settings that depend on the environment.

    Args:
        algo: Name of the algorithm.
        spec: Environment.

    Returns:
        Arguments of the algorithm's factory.
    """
    both = isinstance(spec.obs, dict) and {PRIVILEGED, OBSERVED} <= set(spec.obs)
    options: dict[str, Any] = {name: _KEYS[name] for name in ASYMMETRIC.get(algo, ()) if both}
    if algo not in ("ppo", "ippo", "mappo"):
        return options
    options |= {"normalize_rewards": True} if algo == "ppo" else {}
    if isinstance(spec.action, Box):
        options |= CONTINUOUS | (_of_ppo(spec, spec.action) if algo == "ppo" else {})
    return options


FEWER = ("ppo", "dqn", "sac", "td3", "flash_sac", "sac_discrete")
"""Algorithms with fewer environments in short runs."""
STEPS_PER_ENV, FEWEST_ENVS = 25_000, 4
"""Steps of each environment in a short run, and its fewest environments."""


def default_envs(most: int, total_steps: int) -> int:
    """Return the default number of environments of `FEWER`, a power of two, or the environment's
    usual number.

    In a short run many environments see only the beginnings of episodes: PPO on Freeway after
    100,000 steps had 3.6 (0.7 to 6.2) with 64 environments, 6.6 (2.3 to 9.8) with 8 and 8.5 (6.9 to
    11.4) with 4 (3 seeds, other settings equal), DQN after 50,000 steps 0.6 with 64 and 8.8 with 4,
    TD3 on brax's inverted_pendulum after 20,000 steps 69 and 1,000 (1 and 2 seeds).

    Args:
        most: Usual number of environments.
        total_steps: Environment steps of the run.

    Returns:
        Number of environments.
    """
    return min(most, max(FEWEST_ENVS, 2 ** int(math.log2(max(1, total_steps // STEPS_PER_ENV)))))


_REWARDS = ("entropy_coef", "normalize_rewards")
_SCALES = ("initial_deviation", "free_deviation", "normalize_observations")
OBSERVED, PRIVILEGED = "state", "privileged_state"
"""Entries of an observation of MuJoCo Playground's robots: what the robot measures, and what only
the simulator has.
"""
_KEYS = {"policy_keys": (OBSERVED,), "critic_keys": (PRIVILEGED,)}
_BOTH = ("ppo", "sac", "sac_discrete", "td3", "flash_sac", "fast_td3", "reppo", "iql", "td3_bc")
ASYMMETRIC = dict.fromkeys(_BOTH, tuple(_KEYS)) | {"bc": ("policy_keys",)}
"""Algorithms whose policy then reads the first and whose critic the second, as brax's trainer of
these robots.
"""
FOLLOWING = ASYMMETRIC | {"ppo": (*_REWARDS, *_SCALES, *_KEYS), "ippo": _REWARDS, "mappo": _REWARDS}
"""Settings by algorithm that `of_environment` may choose."""
CONTINUOUS: dict[str, Any] = {"normalize_rewards": True, "entropy_coef": 0.0}
"""The value network does not reach rewards of any magnitude: Pendulum-v1 -1,131, with normalized
rewards -169 (with discrete actions, LunarLander-v3 69 and 150). Continuous actions need no bonus
for entropy.
"""
FEW_ACTIONS, FEW_NUMBERS, SMALL_RANGE = 3, 12, 0.2
"""Numbers in an action and in an observation of simulators with few joints; half range of a number
that is small.
"""


def _of_ppo(spec: EnvSpec, action: Box) -> dict[str, Any]:
    """Choose exploration and scales for continuous actions (means of 3 seeds, 100,000 steps at a
    rate of 3e-4).

    Of few numbers, a deviation of 1 tries all of their range, and one that is the same in every
    state lasts longer: brax's hopper 504, with one by state 414. Of many at once it disturbs too
    much: HalfCheetah-v5 1,963 with 0.69, 2,823 with 0.4. Observations of few numbers stay in their
    own units, because dividing by a small deviation makes small numbers dominate: Hopper-v5 459, in
    its own units 1,486. If bounds declare that one of them is always small, they are normalized:
    MountainCarContinuous-v0's velocity is within 0.07, and in their own units no seed reached the
    goal; normalized, two of three did (94). Many numbers are normalized: HalfCheetah-v5 704
    without.
    """
    numbers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(spec.obs) if not is_image(leaf))
    parts = [] if spec.obs_space is None else spaces.parts_of(spec.obs_space)
    small = any(part.space.get("half_range", math.inf) < SMALL_RANGE for part in parts)
    scales = {"normalize_observations": False} if 0 < numbers <= FEW_NUMBERS and not small else {}
    few = action.low.size <= FEW_ACTIONS
    return (
        {"initial_deviation": 1.0, "free_deviation": True} if few else {"initial_deviation": 0.4}
    ) | scales
