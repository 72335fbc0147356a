"""What a run is made of, before its programs are compiled."""

from typing import NamedTuple

import jax

from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.fragments.build import GraphOptions
from jaxrl_fast.graph.dataflow import Graph
from jaxrl_fast.graph.kept import Store
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.graph.program import Program
from jaxrl_fast.training.planning import Plan


class Job(NamedTuple):
    """A run before it starts: ``env``, ``algorithm`` and the ``agent`` that binds the two; the ``graph`` that
    ``options`` made of them, its ``placement`` and ``program``; and the ``plan`` of its chunks.

    ``keys`` ``[S]``: a random key for each seed; ``failures`` collects what environments on the host raise in a
    callback; ``debug`` as of `learn`; ``store``: where programs are kept, None for nowhere.
    """

    env: VecEnv | HostEnv
    algorithm: Algorithm
    agent: Bound
    graph: Graph
    placement: Placement
    program: Program
    plan: Plan
    keys: jax.Array
    failures: list[Exception]
    options: GraphOptions
    debug: bool
    store: Store | None = None

    @property
    def num_seeds(self) -> int:
        """How many seeds are trained at once."""
        return len(self.keys)
