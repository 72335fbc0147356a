"""What a run is made of, before its programs are compiled."""

from typing import NamedTuple

import jax

from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.fragments.build import Overlap
from jaxrl_fast.fragments.learners import OnNan
from jaxrl_fast.graph.dataflow import Graph
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.graph.program import Program
from jaxrl_fast.training.planning import Plan


class Job(NamedTuple):
    """``keys`` ``[S]``, one for each seed; ``failures`` collects what environments on the host raise in a callback;
    ``overlap``, ``nan`` and ``debug`` are those of `learn`; replay is empty until tick ``empty_until``."""

    env: VecEnv | HostEnv
    algorithm: Algorithm
    agent: Bound
    graph: Graph
    placement: Placement
    program: Program
    plan: Plan
    keys: jax.Array
    failures: list[Exception]
    overlap: Overlap
    nan: OnNan
    debug: bool
    empty_until: int

    @property
    def num_seeds(self) -> int:
        """How many seeds are trained at once."""
        return len(self.keys)
