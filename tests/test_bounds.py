"""The bounds of training, measured where training runs."""

import jax
import pytest

from jaxrl_fast import make_env
from jaxrl_fast.commands.run_config import compose, make_algorithm
from jaxrl_fast.runtime.graph import Graph
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.tuning.trial import part_of


@pytest.mark.parametrize("name", ["sharded_sampling", "sampler_learner", "actor_critic"])
@pytest.mark.parametrize("what", ["environments", "sampling"])
def test_the_bounds_of_sampling_have_the_devices_that_sampling_has_in_training(name, what):
    run = compose(["env=cartpole", "algo=ppo", "num_envs=4", "algo.rollout_length=4"])
    env, algorithm = make_env("cartpole", num_envs=4), make_algorithm(run)
    training, bound = part_of("training", run, env, algorithm), part_of(what, run, env, algorithm)
    assert sampling_devices(bound, name) == sampling_devices(training, name)


def sampling_devices(graph: Graph, placement: str) -> tuple:
    groups = PLACEMENTS[placement](graph, jax.devices()[:2]).groups
    return next(group.devices for group in groups if "sample" in group.fragments)
