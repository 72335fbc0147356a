"""EnvPool as a `HostEnv`: environments in C++, stepped by threads of this process.

The only file that imports EnvPool (https://github.com/sail-sg/envpool, extra ``envpool``), which
takes seconds.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxrl_fast.core import Box, Discrete, EnvSpec
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.envs.pool.batches import Groups, check_groups, check_seeds, env_seed, sealed
from jaxrl_fast.envs.pool.codec import encode_action, encode_obs
from jaxrl_fast.spaces import to_image

SERVES = (
    "Acrobot",
    "Ant",
    "BipedalWalker",
    "BipedalWalkerHardcore",
    "CarRacing",
    "CartPole",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "LunarLander",
    "LunarLanderContinuous",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
"""Gymnasium environments that EnvPool supports in their newest version, listed here to avoid its
import.
"""


def make(id: str, *, num_envs: int, num_groups: int = 1, **options: Any) -> HostEnv:
    """Make a vectorized host environment of EnvPool.

    Args:
        id: EnvPool id.
        num_envs: Number of environments.
        num_groups: Number of groups, each a separate EnvPool.
        **options: Arguments of EnvPool.

    Returns:
        The environment.

    Raises:
        ValueError: EnvPool is not installed, or it does not support the id, an option or the
            spaces.
    """
    check_groups(num_envs, num_groups)
    pool = _EnvPool(id, num_envs, num_groups, options)

    return pool.host_env(
        pool.spec, num_envs, lambda num_envs: make(id, num_envs=num_envs, **options)
    )


class _EnvPool(Groups):
    """One EnvPool for each group.

    EnvPool resets an environment on the step after an episode's last, and ignores that step's
    action. Environments whose episode ended are therefore stepped once more at once, so that the
    policy never observes that step.
    """

    def __init__(self, id: str, num_envs: int, num_groups: int, options: dict[str, Any]) -> None:
        super().__init__(f"the EnvPool of {id}", num_envs, num_groups)
        self.id, self.options = (
            id,
            {name: value for name, value in options.items() if value is not None},
        )
        one = self._start([0])
        observed, acted = one.observation_space, one.action_space
        limit = one.config.get("max_episode_steps")
        one.close()
        if not isinstance(observed, spaces.Box):
            raise ValueError(
                f"EnvPool's {id} has observations of kind {type(observed).__name__}: write pool.backend=workers"
            )
        observe, self.act = encode_obs(observed, id), encode_action(acted, id)
        self.action_dtype = acted.dtype
        action = (
            Discrete(self.act.num_actions)
            if self.act.num_actions
            else Box(self.act.low, self.act.high)
        )
        spec = EnvSpec(id, jax.ShapeDtypeStruct(observe.shape, observe.dtype), action, limit)
        self.layout = observe.space.get("layout")
        self.spec = spec._replace(obs_space=observe.space, action_space=self.act.space)
        self.in_order = np.arange(num_envs // num_groups, dtype=np.int32).tobytes()
        self.dtype = observe.dtype
        self.returns = np.zeros((num_groups, num_envs // num_groups))
        self.pools: list[Any] = []
        self.in_flight: set[int] = set()

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        self.require_open()
        self._close_pools()
        seeds = [env_seed(check_seeds(seed, 1)[0], i) for i in range(self.returns.size)]
        self.pools = [self._start(seeds[rows]) for rows in self.groups]
        self.returns[:], self.steps = 0.0, 0
        self.in_flight.clear()
        return self._arranged(np.concatenate([pool.reset()[0] for pool in self.pools]))

    def send(self, actions: np.ndarray, group: int) -> None:
        self.require_open()
        if not 0 <= group < len(self.pools) or group in self.in_flight:
            raise ValueError(
                f"send to group {group}: write one of 0 to {len(self.groups) - 1} that is not under way"
            )
        wanted = (self.returns.shape[1], *self.act.shape)
        if np.shape(actions) != wanted:
            raise ValueError(
                f"actions of shape {list(np.shape(actions))} were sent: these environments take {list(wanted)}"
            )
        pool = self.pools[group]
        pool.send(np.asarray(self.act.decode(np.asarray(actions)), self.action_dtype))
        self.in_flight.add(group)

    def recv(self, group: int) -> HostStep:
        self.require_open()
        self.require_sent(group, group in self.in_flight)
        self.in_flight.discard(group)
        pool, returns = self.pools[group], self.returns[group]
        obs, *facts, info = pool.recv()
        facts.append(info["elapsed_step"])
        if info["env_id"].tobytes() != self.in_order:
            order = np.argsort(info["env_id"])
            obs, *facts = (array[order] for array in (obs, *facts))
        reward, terminated, truncated, lengths = facts
        obs = next_obs = self._arranged(obs)
        returns += reward
        totals = returns.astype(np.float32)
        if np.count_nonzero(terminated | truncated):
            ended, obs = np.flatnonzero(terminated | truncated), obs.copy()
            returns[ended] = 0.0
            self._begin_anew(pool, obs, ended)
        self.steps += len(reward)
        return sealed(
            HostStep(
                obs=obs,
                next_obs=next_obs,
                reward=reward.astype(np.float32),
                terminated=terminated,
                truncated=truncated,
                episode_return=totals,
                episode_length=lengths,
            )
        )

    def _begin_anew(self, pool: Any, obs: np.ndarray, ended: np.ndarray) -> None:
        """Write the first observations of new episodes into the rows of those that ended."""
        pool.send(
            np.zeros((len(ended), *self.act.shape), self.action_dtype), ended.astype(np.int32)
        )
        fresh, _, _, _, info = pool.recv()
        obs[info["env_id"]] = self._arranged(fresh)

    def _arranged(self, obs: np.ndarray) -> np.ndarray:
        """Return observations ``[E, ...]`` as training takes them."""
        obs = obs if self.layout is None else to_image(obs, self.layout, np)
        return obs.astype(self.dtype)

    def close(self) -> None:
        self.is_open = False
        self._close_pools()

    def _close_pools(self) -> None:
        while self.pools:
            self.pools.pop().close()

    def _start(self, seeds: list[int]) -> Any:
        try:
            with _quiet():
                envpool = import_module("envpool")
                pool = envpool.make(
                    self.id,
                    env_type="gymnasium",
                    num_envs=len(seeds),
                    env_seed=seeds,
                    **self.options,
                )
                _ = pool.observation_space, pool.action_space  # EnvPool caches them
                return pool
        except ModuleNotFoundError as error:
            needed = "'jaxrl_fast[envpool]'" if error.name == "envpool" else error.name
            raise ValueError(
                f"pool.backend=envpool needs the package '{error.name}': pip install {needed}"
            ) from error
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"EnvPool cannot make env.id={self.id} ({message}): write pool.backend=workers"
            ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Gymnasium's warnings about the precision of EnvPool's spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
