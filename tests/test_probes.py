"""PPO and SAC find the known answer of every probe in a few thousand steps."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.probes import FORBIDDEN_PAYOFF, PROBES
from jaxrl_fast import graph as graphs
from jaxrl_fast.algorithm import Agent, Algorithm
from jaxrl_fast.algorithms.ppo import _networks as ppo_networks
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import _networks as sac_networks
from jaxrl_fast.algorithms.sac import q_values, sac
from jaxrl_fast.core import Discrete
from jaxrl_fast.env import VecEnv, vectorize
from jaxrl_fast.fragments import build_graph
from jaxrl_fast.normalize import normalize
from jaxrl_fast.rollout import start, unroll
from jaxrl_fast.schedules import Linear

DISCOUNT = 0.8
NUM_ENVS = 16
CONTINUOUS = [name for name, make in PROBES.items() if not isinstance(make().spec.action, Discrete)]
VALUES = {
    "value": {1.0: 1.0},
    "reward": {-1.0: -1.0, 1.0: 1.0},
    "discount": {-1.0: DISCOUNT, 1.0: 1.0},
    "truncation": {1.0: 1.0 / (1.0 - DISCOUNT)},
}
"""Probe -> observation -> value."""
BEST_RETURN = {
    "action": 1.0,
    "action_continuous": 0.0,
    "observation": 1.0,
    "observation_continuous": 0.0,
    "memory": 1.0,
    "mask": 0.75,
    "dictionary": 0.0,
}
"""Probe -> mean return of the best policy."""


class Trained(NamedTuple):
    env: VecEnv
    agent: Agent
    algorithm: Algorithm
    params: dict
    statistics: object

    def seen(self, obs):
        return obs if self.statistics is None else normalize(self.statistics.obs, obs)


def train(probe: str, algorithm: Algorithm, total_steps: int) -> Trained:
    env = vectorize(PROBES[probe](), num_envs=NUM_ENVS)
    graph, agent = build_graph(env, algorithm, total_steps=total_steps)
    ticks = total_steps // (NUM_ENVS * agent.rollout_length)

    @jax.jit
    def run(key):
        state = graphs.init(graph, key, algorithm.hyper)
        return jax.lax.scan(lambda s, _: (graphs.tick(graph, s)[0], None), state, length=ticks)[0]

    private = run(jax.random.key(1)).private
    params = {name: part.params for name, part in private["learn"].items()}
    statistics = private["statistics"].statistics if "statistics" in private else None
    return Trained(env, agent, algorithm, params, statistics)


def play(trained: Trained, mode: str = "greedy", num_steps: int = 32):
    """A rollout of the trained policy, and the mean return of its whole episodes."""
    agent = trained.agent

    def act(carry, obs, first, key):
        action, carry, *_ = getattr(agent, mode)(trained.params, carry, trained.seen(obs), first, key)
        return action, carry, ()

    key = jax.random.key(2)
    state = start(trained.env, agent.initial_carry(NUM_ENVS), key)
    _, rollout, metrics = jax.jit(lambda s, k: unroll(trained.env, act, s, k, num_steps))(state, key)
    return rollout, float(metrics["episode_return_sum"] / metrics["episodes"])


@cache
def learned_ppo(probe: str) -> Trained:
    """The rate falls to zero, so that the answer does not hang on the seed: with a constant one 5 to 9 of 24 seeds
    missed the best continuous action by more than the tolerance."""
    recurrent = probe == "memory"
    algorithm = ppo(
        learning_rate=Linear(3e-3, 0.0), discount=DISCOUNT, rollout_length=16, num_epochs=4, num_minibatches=4,
        entropy_coef=0.001, policy_hidden=(32,), value_hidden=(32,), recurrent_size=16 if recurrent else 0,
    )  # fmt: skip
    return train(probe, algorithm, 24_000 if recurrent else 12_000)


@cache
def learned_sac(probe: str) -> Trained:
    algorithm = sac(
        learning_rate=3e-3, temperature_learning_rate=1e-2, initial_temperature=0.1, discount=DISCOUNT, tau=0.05,
        target_entropy_per_action=-2.0, updates_per_tick=16, batch_size=64, buffer_size=8_000, warmup_steps=256,
        policy_hidden=(32, 32), critic_hidden=(32, 32),
    )  # fmt: skip
    return train(probe, algorithm, 4_000)


def ppo_value(trained: Trained, obs):
    _, value = ppo_networks(trained.env.spec, **trained.algorithm.options)
    obs = trained.seen(jnp.full((1, 1, 1), obs))
    return value.apply(trained.params["critic"], (), obs, jnp.zeros((1, 1), bool))[0].item()


def sac_value(trained: Trained, obs):
    _, critic = sac_networks(trained.env.spec, **trained.algorithm.options)
    obs = trained.seen(jnp.full((1, 1), obs))
    q = q_values(critic, trained.params["critic"], obs, jnp.zeros((1, 1)))
    return float(jnp.min(q))


@pytest.mark.parametrize("probe", VALUES)
@pytest.mark.parametrize(("learned", "value"), [(learned_ppo, ppo_value), (learned_sac, sac_value)], ids=["ppo", "sac"])
def test_value_is_learned(probe, learned, value):
    trained = learned(probe)
    for obs, expected in VALUES[probe].items():
        assert value(trained, obs) == pytest.approx(expected, rel=0.05, abs=0.05)


@pytest.mark.parametrize("probe", BEST_RETURN)
def test_ppo_finds_the_best_policy(probe):
    _, mean_return = play(learned_ppo(probe), num_steps=64)
    assert mean_return == pytest.approx(BEST_RETURN[probe], abs=0.02)


@pytest.mark.parametrize("probe", [name for name in BEST_RETURN if name in CONTINUOUS])
def test_sac_finds_the_best_policy(probe):
    _, mean_return = play(learned_sac(probe))
    assert mean_return == pytest.approx(BEST_RETURN[probe], abs=0.02)


def test_a_masked_action_is_never_sampled():
    rollout, _ = play(learned_ppo("mask"), mode="explore", num_steps=64)
    assert not np.any(np.asarray(rollout.reward) == FORBIDDEN_PAYOFF)


def test_memory_is_needed():
    algorithm = ppo(learning_rate=3e-3, rollout_length=16, policy_hidden=(32,), value_hidden=(32,))
    _, mean_return = play(train("memory", algorithm, 12_000), num_steps=64)
    assert mean_return < 0.7


def test_every_probe_has_a_known_answer():
    assert set(PROBES) == {*VALUES, *BEST_RETURN}
