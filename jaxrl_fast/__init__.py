"""jaxrl_fast: a fast, JAX-native reinforcement-learning trainer.

::

    import jaxrl_fast as jf
    result = jf.learn(jf.make_env("halfcheetah", num_envs=256), jf.ppo(), total_steps=1_000_000, on_metrics=print)

Importing changes no JAX setting; commands call `setup`.
"""

import time

from jaxrl_fast.algorithms import registry
from jaxrl_fast.algorithms.registry import *
from jaxrl_fast.api import Result, learn, make_env, make_train_step
from jaxrl_fast.core import Box, Discrete, EnvSpec, Timestep, Transition, __version__
from jaxrl_fast.envs.env import Env, VecEnv, vectorize
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.learning.algorithm import Agent, Algorithm
from jaxrl_fast.numerics.optimizers import Cosine, Linear
from jaxrl_fast.policy.policies import Policy, load_policy, save_policy
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.training.checkpoints import CheckpointError, Checkpoints
from jaxrl_fast.training.episodes import evaluate_policy
from jaxrl_fast.training.recorder import NonFiniteError

IMPORT_START_S = time.perf_counter()
"""When the import began: what a command counts its start-up from."""


__all__ = ["Agent", "Algorithm", "Box", "CheckpointError", "Checkpoints", "Cosine", "Discrete", "Env"]
__all__ += ["EnvSpec", "HostEnv", "HostStep", "Linear", "NonFiniteError", "Policy", "Result", "Timestep"]
__all__ += ["Transition", "VecEnv", "__version__", "evaluate_policy", "learn", "load_policy", "make_env"]
__all__ += ["make_train_step", "save_policy", "setup", "vectorize"]
__all__ += registry.__all__
