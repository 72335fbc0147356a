"""``python -m jaxrl_fast.evaluate runs/latest episodes=100``: evaluate the policy of a run."""

import sys
from collections.abc import Sequence

import jax
import numpy as np

from jaxrl_fast.commands import cli
from jaxrl_fast.commands.cli import check_spaces, open_run, read_words
from jaxrl_fast.commands.run_config import make_algorithm, make_evaluation_envs
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.envs.episode_metrics import mean_of_finite
from jaxrl_fast.numerics.intervals import mean_interval
from jaxrl_fast.policy.policies import with_sampled_actions
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.schema import MAX_SEED, Key
from jaxrl_fast.training.episodes import evaluate_episodes
from jaxrl_fast.training.progress import share

KEYS = {
    "episodes": Key(int, 100, 1, "number of episodes, each with a new initial state", MAX_SIZE),
    "seed": Key(
        int,
        0,
        0,
        "seed of the episodes; their PRNG keys differ from the keys of training",
        MAX_SEED,
    ),
    "sample": Key(
        bool, False, text="draw actions from the policy's distribution, not the most probable ones"
    ),
}
HELP = cli.help_of("evaluate RUN", KEYS, cli.OF_RUN)


def evaluate_run(words: Sequence[str]) -> int:
    """Play whole episodes with a run's policy, and print the returns.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.
    """
    folder, options = read_words(words, "evaluate", KEYS)
    setup()
    run, policy = open_run(folder, settings=options["settings"])
    policy = with_sampled_actions(policy, make_algorithm(run)) if options["sample"] else policy
    env = make_evaluation_envs(run)
    check_spaces(policy, env.spec, folder)
    key = jax.random.fold_in(jax.random.key(options["seed"]), 0xE7A1)
    played = evaluate_episodes(policy, env, key, episodes=options["episodes"], share=run.eval.share)
    totals = jax.device_get(played)
    returns = totals.returns
    interval = mean_interval(returns)
    print(
        f"{folder}: {env.spec.name}, {policy.made_by['algo']}, {len(returns)} episodes, seed {options['seed']}"
    )
    print(
        f"return  {returns.mean():.1f} ± {returns.std():.1f}"
        + (
            ""
            if interval is None
            else f"  (95 % of the mean [{interval[0]:.1f}, {interval[1]:.1f}])"
        )
    )
    print(
        f"        least {returns.min():.1f}, median {np.median(returns):.1f}, most {returns.max():.1f}"
    )
    print(f"length  {totals.length.mean():.0f} steps on average")
    if not isinstance(totals.success, tuple):
        print(f"success {share(np.mean(totals.success))} of the episodes")
    for name, values in dict(totals.metrics).items():
        mean = mean_of_finite(values)
        print(f"{name}  {'no value' if mean is None else f'{mean:.4g} on average'}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("evaluate", evaluate_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
