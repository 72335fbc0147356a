"""``python -m jaxrl_fast.check env=custom env.make=my_package.make``: play an environment, and
report broken rules.
"""

import sys
from collections.abc import Sequence
from functools import partial

from jaxrl_fast import envs
from jaxrl_fast.commands import cli
from jaxrl_fast.commands.run_config import alone, compose, make_envs
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.envs.env_checks import RULES, check_env
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.run import may_be_host
from jaxrl_fast.settings.schema import Key

RULES_LISTED = "\n".join(f"  - {rule}" for rule in RULES.values())
KEYS = {
    "steps": Key(
        int, 1_000, 1, "steps of each of 8 environments with random and extreme actions", MAX_SIZE
    )
}
HELP = cli.help_of(
    "check env=custom env.make=my_package.make",
    KEYS,
    "env.*, seed: as for training: python -m jaxrl_fast.train env=... --help lists the options of an environment",
    "A line for each rule begins with ok, wrong, or note for what may be intended:",
    RULES_LISTED,
    "Exit code: 0; 1 if a rule is broken; 2 for settings that cannot be run.",
)


def check_run(words: Sequence[str]) -> int:
    """Check the environment of a command line, and print the report.

    Args:
        words: Words of the command line.

    Returns:
        Exit code: 0, or 1 if a rule is broken.
    """
    check_words = [word for word in words if word.partition("=")[0] in KEYS]
    num_steps = cli.split_words(check_words, "check", KEYS)[1]["steps"]
    run = alone(compose([word for word in words if word not in check_words]))
    setup()
    print(envs.describe(run.env, run.env_options), flush=True)
    # Other environments are determined by their names, and a second one would only be compiled
    # again.
    env = partial(make_envs, run) if may_be_host(run.env) else make_envs(run)
    return 1 if check_env(env, num_steps=num_steps, seed=run.seed).wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("check", check_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
