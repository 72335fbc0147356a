"""``python -m jaxrl_fast.evaluate runs/latest episodes=100``: how good is the policy that a run left behind?"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.evaluation.episodes import bootstrap_interval, evaluate_episodes
from jaxrl_fast.evaluation.on_host import evaluation_on_host
from jaxrl_fast.policy.policies import load_policy, same_spaces
from jaxrl_fast.settings import cli, config
from jaxrl_fast.settings.run_settings import make_evaluation_envs
from jaxrl_fast.settings.runtime import setup
from jaxrl_fast.settings.schema import MAX_SEED, MAX_SIZE, ConfigError

HELP = """python -m jaxrl_fast.evaluate RUN [episodes=100] [seed=0]
  RUN         a run's folder, such as runs/latest
  episodes    how many episodes to play, each from a fresh start
  seed        of the episodes; their random keys differ from those of training"""


def evaluate_run(words: Sequence[str]) -> int:
    """Play whole episodes with a run's greedy policy and print what they returned.

    Raises:
        ValueError: one line that says what was wrong and what to write instead.
    """
    folder, numbers = read_words(words)
    config_file = folder / "config.yaml"
    if not config_file.exists():
        raise ConfigError(f"{folder} holds no run: write the path of a run's folder, such as runs/latest")
    setup()
    policy = load_policy(folder / "policy")
    run = config.compose([f"config='{config_file}'"])
    env = make_evaluation_envs(run)
    if not same_spaces(policy.spec, env.spec):
        raise ConfigError(
            f"{folder}/policy was trained on {policy.spec.name}, whose observations or actions are not those of the "
            f"{env.spec.name} in {config_file}: put the files of one run together"
        )
    key = jax.random.fold_in(jax.random.key(numbers["seed"]), 0xE7A1)
    if isinstance(env, HostEnv):
        params = jax.tree.map(lambda x: x[None], policy.params)
        first = evaluation_on_host(policy, env, numbers["episodes"])(params, key[None])
        totals = jax.tree.map(lambda x: x[0], first)
    else:
        totals = jax.device_get(evaluate_episodes(policy, env, key, episodes=numbers["episodes"]))
    returns = totals.returns
    low, high = bootstrap_interval(returns)
    print(f"{folder}: {env.spec.name}, {policy.made_by['algo']}, {len(returns)} episodes, seed {numbers['seed']}")
    print(f"return  {returns.mean():.1f} ± {returns.std():.1f}  (95 % of the mean [{low:.1f}, {high:.1f}])")
    print(f"        least {returns.min():.1f}, median {np.median(returns):.1f}, most {returns.max():.1f}")
    print(f"length  {totals.length.mean():.0f} steps on average")
    return 0


def read_words(words: Sequence[str]) -> tuple[Path, dict[str, int]]:
    """The run's folder and the numbers given.

    Raises:
        ConfigError: no folder, several, an unknown key, or not a number in its range.
    """
    numbers = {"episodes": 100, "seed": 0}
    least, most = {"episodes": 1, "seed": 0}, {"episodes": MAX_SIZE, "seed": MAX_SEED}
    folders = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or "/" in key:
            folders.append(Path(word))
        elif key not in numbers:
            raise ConfigError(f"unknown key '{key}': evaluate knows {' and '.join(numbers)}")
        elif not value.isdecimal() or not least[key] <= int(value) <= most[key]:
            raise ConfigError(
                f"{word}: write a whole number from {least[key]} to {most[key]}, for example {key}={numbers[key]}"
            )
        else:
            numbers[key] = int(value)
    if len(folders) != 1:
        raise ConfigError("write the path of one run's folder, such as runs/latest")
    return folders[0], numbers


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.main("evaluate", evaluate_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
