import jax
from rejax import PPO

algo = PPO.create(
    env="CartPole-v1",
    num_envs=32,
    num_steps=64,
    num_epochs=8,
    num_minibatches=8,
    learning_rate=2e-3,
    normalize_observations=True,
    total_timesteps=196_608,
    eval_freq=65_536,
    agent_kwargs=dict(activation="tanh", hidden_layer_sizes=(64, 64)),
)
keys = jax.random.split(jax.random.PRNGKey(0), 8)
_, (_, returns) = jax.jit(jax.vmap(algo.train))(keys)
print("greedy return", returns[:, -1].mean())
