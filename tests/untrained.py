"""Untrained runs, made in a moment: a configuration and a policy whose weights are all 0."""

from pathlib import Path

from jaxrl_fast.assembly import bind
from jaxrl_fast.commands.run_config import compose, make_algorithm, make_evaluation_envs
from jaxrl_fast.policy.policies import Policy, make_policy, params_template, save_policy
from jaxrl_fast.settings.run import to_yaml

SMALL = ["tuned=false", "num_envs=4", "algo.policy_hidden=[4]", "algo.value_hidden=[4]"]


def untrained_run(folder: Path, *words: str) -> Policy:
    """Write the folder of a run of PPO; return its policy, which always takes action 0."""
    run = compose([*words, "algo=ppo", *SMALL])
    env, algorithm = make_evaluation_envs(run), make_algorithm(run)
    if hasattr(env, "close"):
        env.close()
    agent = bind(algorithm, env.spec, run.num_envs)
    params = params_template(env.spec, agent.parts, agent.acting, agent.normalize_observations)
    made_by = {
        "algo": "ppo",
        "options": algorithm.options,
        "num_envs": run.num_envs,
        "normalize_observations": agent.normalize_observations,
    }
    policy = make_policy(env.spec, agent.acting, params, made_by)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(run))
    save_policy(policy, folder / "policy")
    return policy
