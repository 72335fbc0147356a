import jax

import jaxrl_fast as jf

env = jf.make_env("cartpole", num_envs=32)
algo = jf.ppo(
    learning_rate=jf.Linear(1e-3, 0.0), rollout_length=64, num_epochs=8, num_minibatches=8
)
init, train_step = jf.make_train_step(env, algo, total_steps=196_608)


def train(key):
    return jax.lax.scan(lambda state, _: train_step(state), init(key), length=196_608 // (32 * 64))


keys = jax.random.split(jax.random.key(0), 8)
states, metrics = jax.jit(jax.vmap(train))(keys)
ended = metrics["sample/episodes"][:, -8:].sum()  # of every tick [seeds, ticks]
print("return while training", metrics["sample/episode_return_sum"][:, -8:].sum() / ended)
