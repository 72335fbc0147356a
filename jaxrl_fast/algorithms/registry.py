"""The algorithms by name. A new one needs a file of its own here, and its name in `ALGORITHMS` and ``__all__``."""

from collections.abc import Callable

from jaxrl_fast.algorithms.dqn import dqn
from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac

__all__ = ["dqn", "ppo", "sac"]
ALGORITHMS: dict[str, Callable[..., Algorithm]] = {"dqn": dqn, "ppo": ppo, "sac": sac}
