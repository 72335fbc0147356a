import jaxrl_fast as jf

env = jf.make_env("cartpole", num_envs=32)
algo = jf.ppo(
    rollout_length=64,
    num_epochs=8,
    num_minibatches=8,
    learning_rate=2e-3,
    activation="tanh",
    policy_hidden=(64, 64),
    value_hidden=(64, 64),
)
result = jf.learn(env, algo, total_steps=196_608, eval_every=65_536, num_seeds=8)
print("greedy return", result.summary["eval_return_mean"])
