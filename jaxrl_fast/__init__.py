"""jaxrl_fast: a fast, JAX-native reinforcement-learning trainer.

::

    import jaxrl_fast as jf
    result = jf.learn(jf.make_env("halfcheetah", num_envs=256), jf.ppo(), total_steps=1_000_000, on_metrics=print)

Importing changes no JAX setting; commands call `setup`.
"""

import time

IMPORT_START_S = time.perf_counter()
"""When the import began: what a command counts its start-up from."""

from typing import Any

from jaxrl_fast.algorithms import registry
from jaxrl_fast.algorithms.interface import Agent, Algorithm
from jaxrl_fast.algorithms.registry import *  # noqa: F403  # a new algorithm is public by its line there
from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep, Transition, __version__
from jaxrl_fast.environments.env import Env, VecEnv, vectorize
from jaxrl_fast.environments.host_env import HostEnv, HostStep
from jaxrl_fast.evaluation.episodes import evaluate_policy
from jaxrl_fast.numerics.schedules import Cosine, Linear
from jaxrl_fast.policy.policies import Policy, load_policy, save_policy
from jaxrl_fast.runs.checkpoint_files import CheckpointError
from jaxrl_fast.runs.checkpointing import Checkpoints
from jaxrl_fast.settings.runtime import setup
from jaxrl_fast.training.loop import Result, learn
from jaxrl_fast.training.pure import make_train_step
from jaxrl_fast.training.recorder import NonFiniteError

__all__ = ["Agent", "Algorithm", "Box", "CheckpointError", "Checkpoints", "Cosine", "Discrete", "Env"]
__all__ += ["EnvSpec", "HostEnv", "HostStep", "Linear", "NonFiniteError", "Policy", "Result", "Timestep"]
__all__ += ["Transition", "VecEnv", "__version__", "evaluate_policy", "learn", "load_policy", "make_env"]
__all__ += ["make_train_step", "save_policy", "setup", "vectorize"]
__all__ += registry.__all__


def make_env(name: str, *, num_envs: int, **options: Any) -> VecEnv | HostEnv:
    """``num_envs`` copies of a named environment: a short name (``"halfcheetah"``), or a suite with its options
    (``"brax", id="ant", backend="mjx"``; ``"gymnasium", id="HalfCheetah-v5", num_seeds=4, pool={"workers": 2}``,
    stepped on the host, for each of four seeds: close it when done; ``"custom", make=make_my_env``).

    Raises:
        ValueError: the name or an option is unknown; the message says what to write instead.
    """
    import envs

    if not getattr(envs, "JAXRL_FAST", False):
        raise ImportError(
            f"`import envs` found {getattr(envs, '__file__', None)}, which is not jaxrl_fast's package of that name: "
            "remove it or move it behind jaxrl_fast on the path"
        )
    return envs.make_vec(name, num_envs=num_envs, **options)
