"""Worker: other libraries' trainers in MuJoCo Playground and Craftax, for
`experiments/learning/suites.py`.

``python peer_suites.py brax_sac|rejax_ppo <id> <seed> <steps> <every>`` trains, and prints the
curve, (steps, mean greedy return), and the seconds with compilation and evaluations. brax's SAC has
Playground's settings for it; Rejax's PPO has Craftax's baseline settings
(https://github.com/MichaelTMatthews/Craftax_Baselines), with 64 environments.
"""

import json
import sys
import time
from typing import Any

import jax
import numpy as np

EPISODES = 32
CRAFTAX = dict(
    num_envs=64,
    num_steps=64,
    num_epochs=4,
    num_minibatches=8,
    learning_rate=2e-4,
    gamma=0.99,
    gae_lambda=0.8,
    clip_eps=0.2,
    ent_coef=0.01,
    max_grad_norm=1.0,
)


def brax_sac(id: str, seed: int, steps: int, every: int) -> list[tuple[int, float]]:
    """Train brax's SAC in an environment of Playground."""
    from brax.training.agents.sac import networks
    from brax.training.agents.sac import train as sac
    from mujoco_playground import registry, wrapper
    from mujoco_playground.config import dm_control_suite_params

    settings = dict(dm_control_suite_params.brax_sac_config(id))
    sizes = settings.pop("network_factory", {})
    # brax's SAC has no such option, and resets in each episode
    settings.pop("num_resets_per_eval", None)
    settings |= {
        "num_timesteps": steps,
        "num_evals": steps // every + 1,
        "seed": seed,
        "num_eval_envs": EPISODES,
    }
    curve: list[tuple[int, float]] = []
    sac.train(
        environment=registry.load(id, config_overrides={"impl": "jax"}),
        wrap_env_fn=wrapper.wrap_for_brax_training,
        network_factory=lambda *args, **named: networks.make_sac_networks(*args, **named, **sizes),
        progress_fn=lambda at, metrics: curve.append(
            (int(at), float(metrics["eval/episode_reward"]))
        ),
        **settings,
    )
    return curve


def rejax_craftax(id: str, **settings: Any) -> tuple[Any, Any]:
    """Return Rejax's PPO with Craftax's baseline settings, and the environment."""
    from craftax.craftax_env import make_craftax_env_from_name
    from gymnax.environments import spaces
    from rejax import PPO

    env = make_craftax_env_from_name(id, auto_reset=True)
    params, actions = env.default_params, spaces.Discrete(env.num_actions)
    env.action_space = lambda params=None: actions  # Rejax recognizes gymnax's own classes
    nets = {"activation": "tanh", "hidden_layer_sizes": (512, 512, 512)}
    return PPO.create(env=env, env_params=params, **CRAFTAX, agent_kwargs=nets, **settings), env


def rejax_ppo(id: str, seed: int, steps: int, every: int) -> list[tuple[int, float]]:
    """Train Rejax's PPO in Craftax."""
    from rejax.evaluate import evaluate

    algo, env = rejax_craftax(id, total_timesteps=steps, eval_freq=every)

    def evaluated(algo: Any, state: Any, key: jax.Array) -> Any:
        return evaluate(algo.make_act(state), key, env, env.default_params, EPISODES, 10_000)

    algo = algo.replace(eval_callback=evaluated)
    _, (_, returns) = jax.block_until_ready(jax.jit(algo.train)(jax.random.PRNGKey(seed)))
    means = np.asarray(returns).mean(-1)
    return [(i * every, float(mean)) for i, mean in enumerate(means)]


if __name__ == "__main__":
    who, id, *numbers = sys.argv[1:]
    began = time.time()
    curve = {"brax_sac": brax_sac, "rejax_ppo": rejax_ppo}[who](id, *map(int, numbers))
    print(json.dumps({"curve": curve, "seconds": time.time() - began}))
