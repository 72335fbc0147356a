"""EvoRL's population-based training of PPO on gymnax CartPole-v1, in a separate environment
(evorl-jax, gymnax 1.0).

``python peer_evorl.py <seed> [default|cartpole] [devices]`` trains eight members, each with its own
learning rate, and prints one line of JSON. The settings come from EvoRL's configs at 36836c0, which
its wheel lacks: ``default`` is ``agent/pbt-ppo.yaml`` upon ``agent/ppo.yaml``, ``cartpole`` takes
PPO's numbers from ``agent/exp/ppo/gymnax/cartpole.yaml``. Only the length differs: 25 iterations of
4,096 steps a member, with an exchange after each but the first. EvoRL evaluates every member at the
end, in 128 episodes. The best is evaluated in 128 new ones.
"""

import time

BEGIN = time.perf_counter()  # before the imports, which count

import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402

if len(sys.argv) > 3:
    # before EvoRL's modules make their first array
    jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))

STEPS_PER_EXCHANGE, ITERATIONS, EPISODES = 4096, 25, 128
shard_map = jax.shard_map


def old_shard_map(function: Callable, check_rep: bool = True, **kwargs: Any) -> Callable:
    """Accept the argument ``check_rep``: jax 0.10 calls it ``check_vma``, and evorl-jax 0.1.1 fails
    without it.
    """
    return shard_map(function, check_vma=check_rep, **kwargs)


jax.shard_map = old_shard_map

import numpy as np  # noqa: E402
from evorl.algorithms.meta.pbt import PBTWorkflow  # noqa: E402
from evorl.recorders import Recorder  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

# not read: PBTWorkflow makes its own Adam, which does not clip
PPO = dict(
    workflow_cls="evorl.algorithms.ppo.PPOWorkflow",
    num_envs=4,
    normalize_obs=False,
    normalize_gae=False,
    rollout_length=512,
    discount=0.99,
    gae_lambda=0.95,
    clip_epsilon=0.2,
    gae_horizon=0,
    minibatch_size=256,
    reuse_rollout_epochs=4,
    num_eval_envs=16,
    eval_episodes=16,
    loss_weights=dict(actor_loss=1.0, critic_loss=0.5, actor_entropy=-0.01),
    optimizer=dict(lr=3e-4, grad_clip_norm=10.0),
    agent_network=dict(
        actor_hidden_layer_sizes=[256, 256],
        critic_hidden_layer_sizes=[256, 256],
        policy_obs_key=None,
        value_obs_key=None,
    ),
)
CARTPOLE = dict(
    num_envs=16,
    rollout_length=32,
    minibatch_size=128,
    agent_network=PPO["agent_network"]
    | dict(actor_hidden_layer_sizes=[64, 64], critic_hidden_layer_sizes=[64, 64]),
)
POPULATION = dict(
    pop_size=8,
    num_iters=ITERATIONS,
    bottom_ratio=0.2,  # of eight, rounded: two
    top_ratio=0.2,
    perturb_factor=dict(lr=0.2),
    search_space=dict(lr=dict(low=1e-5, high=1e-2)),
    num_eval_envs=EPISODES,
    eval_episodes=EPISODES,
    eval_interval=ITERATIONS,
    env=dict(env_name="CartPole-v1", env_type="gymnax", max_episode_steps=500),
    checkpoint=dict(enable=False),
)


class LastOf(Recorder):
    """Holds the last value of each thing that the workflow reports, and when the first report came."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.first_s = 0.0

    def init(self) -> None:
        """Open nothing."""

    def write(self, data: Mapping[str, Any], step: int) -> None:
        """Store the values."""
        del step
        self.first_s = self.first_s or time.perf_counter() - BEGIN
        self.values |= data

    def close(self) -> None:
        """Close nothing."""


def main(seed: int, settings: str = "default") -> dict[str, Any]:
    """Train the population, and evaluate the best member."""
    ppo = PPO | {"default": {}, "cartpole": CARTPOLE}[settings]
    steps = STEPS_PER_EXCHANGE // (ppo["num_envs"] * ppo["rollout_length"])
    config = POPULATION | dict(
        target_workflow=ppo, workflow_steps_per_iter=steps, warmup_steps=steps, seed=seed
    )
    workflow = PBTWorkflow.build_from_config(OmegaConf.create(config))
    last = LastOf()
    workflow.add_recorders([last])
    state = workflow.learn(workflow.init(jax.random.PRNGKey(seed)))

    # The last exchange has no training after it: a member that it replaced is a copy with a rate
    # that was never used.
    rates = np.asarray(state.pop.lr)
    trained = rates == np.asarray(last.values["pop"]["lr"])
    returns = np.asarray(last.values["eval/pop_episode_returns"]["val"], dtype=float)
    best = int(np.argmax(np.where(trained, returns, -np.inf)))
    trained_s = time.perf_counter() - BEGIN

    member = jax.device_get(jax.tree.map(lambda leaf: leaf[best], state.pop_workflow_state))
    evaluate = jax.jit(workflow.evaluator.evaluate, static_argnums=2)
    episodes = np.asarray(
        evaluate(member.agent_state, jax.random.PRNGKey(seed + 1_000_000), EPISODES).episode_returns
    )
    workflow.close()
    return {
        "seconds_total": time.perf_counter() - BEGIN,
        # imports, compilation of the training, one iteration
        "seconds_to_first_iteration": last.first_s,
        "seconds_without_last_evaluation": trained_s,
        "env_steps_per_member": int(member.metrics.sampled_timesteps),
        "population": len(rates),
        "best_return_mean": float(episodes.mean()),
        "return_std": float(episodes.std()),
        "episodes": len(episodes),
        "lr_best": float(rates[best]),
        "returns_of_members": returns.tolist(),
        "seed": seed,
        "settings": settings,
        "devices": jax.device_count(),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), *sys.argv[2:3])))
