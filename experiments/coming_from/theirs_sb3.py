from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

env = make_vec_env("CartPole-v1", n_envs=8)
model = PPO(
    "MlpPolicy",
    env,
    learning_rate=lambda left: 1e-3 * left,
    n_steps=128,
    batch_size=256,
    n_epochs=8,
    ent_coef=0.01,
)
model.learn(100_000)
mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", n_envs=8), n_eval_episodes=32)
print("greedy return", mean)
