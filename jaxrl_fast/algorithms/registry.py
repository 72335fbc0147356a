"""The algorithms by name. A new algorithm needs a separate file here, and its name in `ALGORITHMS` and ``__all__``."""

from collections.abc import Callable

from jaxrl_fast.algorithms.dqn import dqn
from jaxrl_fast.algorithms.flash_sac import flash_sac
from jaxrl_fast.algorithms.impala import impala
from jaxrl_fast.algorithms.ippo import ippo
from jaxrl_fast.algorithms.mappo import mappo
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.pqn import pqn
from jaxrl_fast.algorithms.pqn_vdn import pqn_vdn
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.algorithms.sac_discrete import sac_discrete
from jaxrl_fast.algorithms.td3 import td3
from jaxrl_fast.learning.algorithm import Algorithm

__all__ = ["dqn", "flash_sac", "impala", "ippo", "mappo", "ppo", "pqn", "pqn_vdn", "sac", "sac_discrete", "td3"]
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    make.__name__: make for make in (dqn, flash_sac, impala, ippo, mappo, ppo, pqn, pqn_vdn, sac, sac_discrete, td3)
}
