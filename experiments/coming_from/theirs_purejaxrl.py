import jax
from ppo import make_train  # purejaxrl/ppo.py

config = {
    "LR": 1e-3,
    "NUM_ENVS": 32,
    "NUM_STEPS": 64,
    "TOTAL_TIMESTEPS": 196_608,
    "UPDATE_EPOCHS": 8,
    "NUM_MINIBATCHES": 8,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ENV_NAME": "CartPole-v1",
    "ANNEAL_LR": True,
}
keys = jax.random.split(jax.random.PRNGKey(0), 8)
out = jax.jit(jax.vmap(make_train(config)))(keys)
info = out["metrics"]  # of every step [seeds, updates, steps, environments]
print("return while training", info["returned_episode_returns"][:, -1].mean())
