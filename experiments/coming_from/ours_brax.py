import jaxrl_fast as jf

env = jf.make_env("brax", id="inverted_pendulum", backend="spring", num_envs=64)
algo = jf.ppo(
    rollout_length=32,
    num_minibatches=8,
    num_epochs=8,
    learning_rate=1e-3,
    discount=0.97,
    entropy_coef=1e-3,
    normalize_observations=True,
)
result = jf.learn(env, algo, total_steps=163_840, eval_every=163_840, eval_episodes=32)
print("greedy return", result.summary["eval_return_mean"])
