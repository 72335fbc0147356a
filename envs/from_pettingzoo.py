"""Adapter of PettingZoo's parallel environments (https://pettingzoo.farama.org, 1.24+), stepped on
the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxrl_fast.envs.from_gymnasium import filmed, pooled
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.options import EnvOptions, OptionalCount, read_options
from jaxrl_fast.envs.pool.batches import PoolOptions, check_options
from jaxrl_fast.envs.pool.making import FilmedHost
from jaxrl_fast.envs.pool.several_agents import make_parallel
from jaxrl_fast.envs.pool.stepping import RENDER_MODE, make_one


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of a PettingZoo environment."""

    num_agents: OptionalCount = None
    """Expected number of agents. It is only checked: parallel environments have different names for
    it."""
    episode_length: OptionalCount = None
    """Time limit in steps, or None."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``parallel_env``."""


def make_host(
    id: str,
    *,
    num_envs: int,
    num_seeds: int = 1,
    pool: PoolOptions = PoolOptions(),
    **values: Any,
) -> HostEnv:
    """Make a vectorized host environment of a PettingZoo parallel environment.

    Observations are described in `pool.several_agents`. Each agent has a separate reward.

    Args:
        id: ``sisl/pursuit_v5``, ``mpe2/simple_spread_v3`` or ``my_package/my_module``, a module
            with ``parallel_env``.
        num_envs: Number of environments for each seed.
        num_seeds: Number of seeds that the pool serves.
        pool: Options of the pool.
        **values: `Options`.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown id or option, unsupported spaces, ``pool.backend=envpool``, or another
            number of agents.
    """
    options = read_options(Options, values, f"pettingzoo {id}")
    num_agents, limit = options.num_agents, options.episode_length
    pool = check_options(pool, num_envs, num_seeds)
    if pool.backend == "envpool":
        raise ValueError(
            "pool.backend=envpool is for env=gymnasium: leave it out for env=pettingzoo"
        )
    make = partial(make_parallel, _checked(id), dict(options.others), limit)
    host = pooled(make, id, limit, num_envs, num_seeds, pool)
    if num_agents not in (None, host.spec.num_agents):
        host.close()
        raise ValueError(
            f"env.num_agents={num_agents}: {id} has {host.spec.num_agents} agents: leave it out, and write what its "
            "parallel_env calls their number, such as +env.N=5"
        )
    return host


def film(id: str, **values: Any) -> FilmedHost:
    """Make one environment that can be drawn.

    Args:
        id: As in `make_host`.
        **values: `Options`.

    Returns:
        The environment and its camera.

    Raises:
        ValueError: As `make_host`, or the environment has no pictures.
    """
    options = read_options(Options, values, f"pettingzoo {id}")
    drawn = {**options.others, "render_mode": RENDER_MODE}
    make = partial(make_parallel, _checked(id), drawn, options.episode_length)
    return filmed(make_one(make, id), id, options.episode_length)


def _checked(id: Any) -> str:
    if not all(part.isidentifier() for part in str(id).split("/")) or "/" not in str(id):
        raise ValueError(
            f"env.id={id}: write a family and a name, such as mpe2/simple_spread_v3 or sisl/pursuit_v5"
        )
    return str(id)
