"""The peer of `population.py ray`: the same 64 learning rates as trials of Ray Tune, in a pool of
two processes.

Each trial calls `jaxrl_fast.learn`; all share one cache of compiled programs.
"""

import sys

import numpy as np
import ray
from ray import tune

from jaxrl_fast.population.search_space import Draw, SearchSpace, random_shares, value_of

KEY = "algo.learning_rate"
SPACE = SearchSpace({KEY: Draw("log", (1e-5, 1e-1))}, {})


def train(config: dict) -> dict:
    """Train one learning rate."""
    import jaxrl_fast as jf

    jf.setup(cpu_devices=1, cache=True)
    env = jf.make_env("cartpole", num_envs=4)
    result = jf.learn(
        env, jf.ppo(learning_rate=config["rate"]), total_steps=config["steps"], eval_every=0
    )
    returns = [
        row["episode_return"] for row in result.history if row.get("episode_return") is not None
    ]
    return {"score": float(np.mean(returns[-5:]))}


if __name__ == "__main__":
    steps = int(sys.argv[1])
    rates = [value_of(SPACE, random_shares(SPACE, 0, i))[KEY] for i in range(64)]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    space = {"rate": tune.grid_search(rates), "steps": steps}
    config = tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=2, reuse_actors=True)
    trainable = tune.with_resources(train, {"cpu": 1})
    results = tune.Tuner(trainable, param_space=space, tune_config=config).fit()
    print(results.get_best_result().metrics["score"])
