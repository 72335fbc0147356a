"""PettingZoo's parallel environments (https://pettingzoo.farama.org, 1.24 and later), stepped on the host by
`jaxrl_fast.envs.pool`."""

from functools import partial
from typing import Any

from jaxrl_fast.envs.from_gymnasium import filmed, pooled
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.pool.batches import PoolOptions, check_options
from jaxrl_fast.envs.pool.making import RENDER_MODE, FilmedHost
from jaxrl_fast.envs.pool.several_agents import make_parallel
from jaxrl_fast.envs.pool.stepping import make_one


def make_host(
    id: str,
    *,
    num_envs: int,
    num_seeds: int = 1,
    pool: PoolOptions = PoolOptions(),
    num_agents: int | None = None,
    episode_length: int | None = None,
    **options: Any,
) -> HostEnv:
    """``num_envs`` of a parallel environment for each of ``num_seeds``: ``sisl/pursuit_v5``, ``mpe2/simple_spread_v3``
    or ``my_package/my_module``, a module with ``parallel_env``, to which ``options`` go.

    Observations are those of `pool.several_agents`; each agent has its own reward. ``num_agents`` is only checked:
    parallel environments call it differently. ``episode_length``: cut after so many steps.

    Raises:
        ValueError: unknown id or option, or spaces that are not supported; one line that says what to write.
    """
    check_options(pool, num_envs, num_seeds)
    if pool.backend == "envpool":
        raise ValueError("pool.backend=envpool is for env=gymnasium: leave it out for env=pettingzoo")
    make = partial(make_parallel, _checked(id), options, episode_length)
    host = pooled(make, id, episode_length, num_envs, num_seeds, pool)
    if num_agents not in (None, host.spec.num_agents):
        host.close()
        raise ValueError(
            f"env.num_agents={num_agents}: {id} has {host.spec.num_agents} agents: leave it out, and write what its "
            "parallel_env calls their number, such as +env.N=5"
        )
    return host


def film(id: str, *, num_agents: int | None = None, episode_length: int | None = None, **options: Any) -> FilmedHost:
    """One environment as `make_host` makes them, to be drawn.

    Raises:
        ValueError: as `make_host`, or it has no pictures.
    """
    make = partial(make_parallel, _checked(id), {**options, "render_mode": RENDER_MODE}, episode_length)
    return filmed(make_one(make, id), id, episode_length)


def _checked(id: Any) -> str:
    if not all(part.isidentifier() for part in str(id).split("/")) or "/" not in str(id):
        raise ValueError(f"env.id={id}: write a family and a name, such as mpe2/simple_spread_v3 or sisl/pursuit_v5")
    return str(id)
