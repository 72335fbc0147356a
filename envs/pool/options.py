"""The options of a pool, and which of them fit together."""

from typing import NamedTuple

from envs.pool.batches import check_groups


class PoolOptions(NamedTuple):
    """How environments on the host are stepped. Only ``num_groups``, ``order``, ``backend`` and ``bridge`` can change a
    number.

    - ``workers``: worker processes; 0: step in this process; ``"auto"``: measure a few steps and choose.
    - ``num_groups``: groups of environments that take turns: one is stepped while another's actions are computed.
    - ``order``: ``"fixed"``, or ``"arrival"``: whoever is ready first, for environments of very uneven speed; the same
      seed then no longer gives the same run.
    - ``step_timeout_s``: a worker that does not answer for so many seconds is restarted.
    - ``backend``: ``"workers"``, or ``"envpool"``: EnvPool's own environments.
    - ``bridge``: ``"host"``: called between compiled programs; ``"callback"``: called from within the one program of a
      run, on one device.
    """

    workers: int | str = "auto"
    num_groups: int = 2
    order: str = "fixed"
    step_timeout_s: float = 60.0
    backend: str = "workers"
    bridge: str = "host"


def check_options(options: PoolOptions, num_envs: int, num_seeds: int = 1) -> None:
    """Raises ValueError, in one line, where an option does not fit another, or ``num_envs`` environments per seed."""
    check_groups(num_envs, options.num_groups)
    if type(num_seeds) is not int or num_seeds < 1:
        raise ValueError(f"num_seeds={num_seeds}: write a whole number of at least 1")
    workers, size = options.workers, num_envs * num_seeds // options.num_groups
    if workers != "auto" and not (type(workers) is int and workers >= 0):
        raise ValueError(f"pool.workers={workers}: write auto, 0 (in this process) or a number of processes")
    if workers != "auto" and int(workers) > size:
        raise ValueError(f"pool.workers={workers}: a group has {size} environments: write at most {size}")
    if options.order not in ("fixed", "arrival"):
        raise ValueError(f"pool.order={options.order}: write fixed or arrival")
    if options.order == "arrival" and num_seeds > 1:
        raise ValueError(f"num_seeds={num_seeds}: pool.order=arrival serves one: write pool.order=fixed")
    if options.order == "arrival" and workers == 0:
        raise ValueError("pool.order=arrival needs worker processes: write pool.workers=auto or at least 1")
    if options.order == "arrival" and workers != "auto" and size % int(workers):
        raise ValueError(f"pool.order=arrival: {workers} workers do not divide a group of {size} environments evenly")
    timeout_s = options.step_timeout_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(f"pool.step_timeout_s={timeout_s}: write seconds, such as 60")
    if options.backend not in ("workers", "envpool"):
        raise ValueError(f"pool.backend={options.backend}: write workers or envpool")
    if options.bridge not in ("host", "callback"):
        raise ValueError(f"pool.bridge={options.bridge}: write host or callback")
