"""What is refused before a run begins: processes and environments that do not fit."""

from collections.abc import Mapping
from typing import Any

import jax

from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.graph import distributed


def check_host(env: VecEnv | HostEnv, num_seeds: int, debug: bool) -> None:
    """Refuse environments on the host that were made for another number of seeds, or a ``debug`` that would step them
    again.

    Raises:
        ValueError: with what to write instead.
    """
    if isinstance(env, HostEnv) and debug:
        raise ValueError("debug=true computes a tick again, which environments on the host cannot: leave it out")
    if isinstance(env, HostEnv) and env.num_seeds != num_seeds:
        raise ValueError(
            f"num_seeds={num_seeds}: these environments on the host serve {env.num_seeds}: write "
            f"make_env(..., num_seeds={num_seeds})"
        )


def check_processes(env: VecEnv | HostEnv, settings: Mapping[str, Any]) -> None:
    """Refuse processes of one run that were started with different ``settings``, and what works in one process only.

    Raises:
        ValueError: naming the setting.
    """
    distributed.check_agreement(settings)
    if settings["debug"]:
        distributed.require_one("debug=true", jax.process_count())
    if isinstance(env, HostEnv):
        distributed.require_one(f"environment {env.spec.name}, which steps on the host,", jax.process_count())
