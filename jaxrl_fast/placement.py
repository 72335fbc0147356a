"""The public names of `jaxrl_fast.runtime.placements`, for user placements."""

from jaxrl_fast.runtime.placements import (
    PLACEMENTS,
    Group,
    Make,
    Placement,
    actor_critic,
    agents,
    central_inference,
    data_parallel,
    fused,
    parameter_server,
    place,
    runs_in_parallel,
    sampler_learner,
    sharded_sampling,
    shards,
    worker_acting,
)
from jaxrl_fast.runtime.placements import check_placed as check

__all__ = [
    "PLACEMENTS",
    "Group",
    "Make",
    "Placement",
    "actor_critic",
    "agents",
    "central_inference",
    "check",
]
__all__ += [
    "data_parallel",
    "fused",
    "parameter_server",
    "place",
    "runs_in_parallel",
    "sampler_learner",
]
__all__ += ["sharded_sampling", "shards", "worker_acting"]
