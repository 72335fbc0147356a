from brax import envs
from brax.training.agents.ppo import train as ppo

_, _, metrics = ppo.train(
    environment=envs.get_environment("inverted_pendulum", backend="spring"),
    num_timesteps=163_840,
    num_envs=64,
    unroll_length=32,
    batch_size=64,
    num_minibatches=8,
    num_updates_per_batch=8,
    episode_length=1000,
    learning_rate=1e-3,
    discounting=0.97,
    entropy_cost=1e-3,
    normalize_observations=True,
    deterministic_eval=True,
    num_eval_envs=32,
    num_evals=2,
)
print("greedy return", metrics["eval/episode_reward"])
