"""jaxrl_fast: a fast, JAX-native reinforcement-learning trainer.

::

    import jaxrl_fast as jf
    result = jf.learn(jf.make_env("halfcheetah", num_envs=256), jf.ppo(), total_steps=1_000_000,
    on_metrics=print)

The import changes no JAX setting. JAX is imported with the first name that needs it, so that a
pool's worker, which imports `jaxrl_fast.envs.pool`, does not import it. Commands call `setup`.
"""

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxrl_fast.process import leave_silently_until_imported, watch_forks

IMPORT_START_S = time.perf_counter()
"""Start of the import, from which commands measure their start-up time."""


watch_forks()
leave_silently_until_imported()


if TYPE_CHECKING:
    from jaxrl_fast.algorithms.bc import bc
    from jaxrl_fast.algorithms.defaults import defaults
    from jaxrl_fast.algorithms.dqn import dqn
    from jaxrl_fast.algorithms.fast_td3 import fast_td3
    from jaxrl_fast.algorithms.flash_sac import flash_sac
    from jaxrl_fast.algorithms.impala import impala
    from jaxrl_fast.algorithms.ippo import ippo
    from jaxrl_fast.algorithms.iql import iql
    from jaxrl_fast.algorithms.mappo import mappo
    from jaxrl_fast.algorithms.ppo import ppo
    from jaxrl_fast.algorithms.pqn import pqn
    from jaxrl_fast.algorithms.pqn_vdn import pqn_vdn
    from jaxrl_fast.algorithms.reppo import reppo
    from jaxrl_fast.algorithms.sac import sac
    from jaxrl_fast.algorithms.sac_discrete import sac_discrete
    from jaxrl_fast.algorithms.td3 import td3
    from jaxrl_fast.algorithms.td3_bc import td3_bc
    from jaxrl_fast.api import (
        Result,
        learn,
        load_state,
        make_env,
        make_train_step,
        save_state,
        trained_policy,
    )
    from jaxrl_fast.core import (
        Box,
        Discrete,
        EnvSpec,
        MultiDiscrete,
        Timestep,
        Transition,
        __version__,
    )
    from jaxrl_fast.envs.custom import vectorize
    from jaxrl_fast.envs.env import Env, VecEnv
    from jaxrl_fast.envs.env_checks import check_env
    from jaxrl_fast.envs.host_env import HostEnv, HostStep
    from jaxrl_fast.learning.algorithm import Agent, Algorithm, DeclaredAlgorithm
    from jaxrl_fast.numerics.optimizers import AnyRate, Cosine, Linear, Rate0, Rate01
    from jaxrl_fast.offline.collecting import collect_episodes
    from jaxrl_fast.offline.datasets import Dataset, load_dataset, save_dataset
    from jaxrl_fast.policy.policies import Policy, load_policy, save_policy
    from jaxrl_fast.policy.teacher import with_teacher
    from jaxrl_fast.population.population_run import PopulationResult, train_population
    from jaxrl_fast.settings.machine import setup
    from jaxrl_fast.settings.schema import Checkpoints
    from jaxrl_fast.training.callbacks import EndedEpisodes, Evaluation
    from jaxrl_fast.training.checkpoints import CheckpointError
    from jaxrl_fast.training.episodes import evaluate_policy
    from jaxrl_fast.training.recorder import NonFiniteError

_PUBLIC = {
    "algorithms.defaults": "defaults",
    "algorithms.bc": "bc",
    "algorithms.dqn": "dqn",
    "algorithms.fast_td3": "fast_td3",
    "algorithms.flash_sac": "flash_sac",
    "algorithms.impala": "impala",
    "algorithms.ippo": "ippo",
    "algorithms.iql": "iql",
    "algorithms.mappo": "mappo",
    "algorithms.ppo": "ppo",
    "algorithms.pqn": "pqn",
    "algorithms.pqn_vdn": "pqn_vdn",
    "algorithms.reppo": "reppo",
    "algorithms.sac": "sac",
    "algorithms.sac_discrete": "sac_discrete",
    "algorithms.td3": "td3",
    "algorithms.td3_bc": "td3_bc",
    "api": "Result learn load_state make_env make_train_step save_state trained_policy",
    "core": "Box Discrete EnvSpec MultiDiscrete Timestep Transition __version__",
    "envs.custom": "vectorize",
    "envs.env": "Env VecEnv",
    "envs.env_checks": "check_env",
    "envs.host_env": "HostEnv HostStep",
    "learning.algorithm": "Agent Algorithm DeclaredAlgorithm",
    "offline.datasets": "Dataset load_dataset save_dataset",
    "numerics.optimizers": "AnyRate Cosine Linear Rate0 Rate01",
    "policy.policies": "Policy load_policy save_policy",
    "policy.teacher": "with_teacher",
    "population.population_run": "PopulationResult train_population",
    "settings.machine": "setup",
    "settings.schema": "Checkpoints",
    "training.callbacks": "EndedEpisodes Evaluation",
    "training.checkpoints": "CheckpointError",
    "offline.collecting": "collect_episodes",
    "training.episodes": "evaluate_policy",
    "training.recorder": "NonFiniteError",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jaxrl_fast' has no attribute '{name}'")
    for public, module in _HOME.items():  # all names at once, since their imports overlap
        globals()[public] = getattr(import_module(f"jaxrl_fast.{module}"), public)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
