"""Makes the `HostEnv` of Gymnasium environments: stepped by worker processes, or in this one."""

from envs.pool.cost import choose_workers
from envs.pool.options import PoolOptions, check_options
from envs.pool.parallel import make_workers
from envs.pool.serial import in_process
from envs.pool.stepping import HostEnvSpec
from jaxrl_fast.core import EnvSpec
from jaxrl_fast.environments.host_env import HostEnv


def make_pool(host_spec: HostEnvSpec, spec: EnvSpec, *, num_envs: int, num_seeds: int, options: PoolOptions) -> HostEnv:
    """``num_envs`` environments for each of ``num_seeds``, stepped as ``options`` say.

    Raises:
        ValueError: an option is wrong, or the environments cannot be sent to other processes.
    """
    check_options(options, num_envs, num_seeds)
    num_rows = num_envs * num_seeds
    by_arrival, reason = options.order == "arrival", ""
    workers = options.workers
    if workers == "auto":
        workers, reason = choose_workers(host_spec, num_rows // options.num_groups, options)
    if by_arrival:
        reason = f"{reason}{'; ' if reason else ''}pool.order=arrival: the same seed does not give the same run"
    if workers == 0:
        return in_process(
            host_spec, spec, num_envs=num_rows, num_groups=options.num_groups, num_seeds=num_seeds, reason=reason
        )
    return make_workers(
        host_spec,
        spec,
        num_envs=num_rows,
        num_groups=options.num_groups,
        num_seeds=num_seeds,
        num_workers=int(workers),
        reason=reason,
        step_timeout_s=options.step_timeout_s,
        by_arrival=by_arrival,
        another=lambda num_envs: in_process(host_spec, spec, num_envs=num_envs),
    )
