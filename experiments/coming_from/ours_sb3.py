import jax

import jaxrl_fast as jf

env = jf.make_env("gymnasium", id="CartPole-v1", num_envs=8, pool={"workers": 0})
algo = jf.ppo(
    learning_rate=jf.Linear(1e-3, 0.0), rollout_length=128, num_minibatches=4, num_epochs=8
)
result = jf.learn(env, algo, total_steps=100_000, eval_episodes=32)
env.close()
judge = jf.make_env("cartpole", num_envs=8)
print(
    "greedy return", jf.evaluate_policy(result.policy, judge, jax.random.key(1), episodes=32).mean()
)
