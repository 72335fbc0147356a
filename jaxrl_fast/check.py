"""``python -m jaxrl_fast.check env=custom env.make=my_package.make``: play an environment, and report broken rules."""

import sys
from collections.abc import Sequence

from jaxrl_fast import envs
from jaxrl_fast.commands import cli
from jaxrl_fast.commands.run_config import alone, compose, make_envs
from jaxrl_fast.envs.env import Env, VecEnv
from jaxrl_fast.envs.env_checks import RULES, Verdict, Report, check_env
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.schema import MAX_SIZE, Key

KEYS = {"steps": Key(int, 1_000, 1, maximum=MAX_SIZE)}
HELP = """python -m jaxrl_fast.check env=custom env.make=my_package.make [env.*=...] [seed=0] [steps=1000]
  env, env.*  environment and its options, as for training
  seed        seed of the episodes
  steps       steps of each of 8 environments with random, extreme, lowest and highest actions
A line for each rule begins with ok, wrong, or note for what may be intended:
{rules}
Exit code: 0; 1 if a rule is broken; 2 for settings that cannot be run."""


def check_run(words: Sequence[str]) -> int:
    """Check the environment of a command line, and print the report.

    Args:
        words: Words of the command line.

    Returns:
        Exit code: 0, or 1 if a rule is broken.
    """
    own = [word for word in words if word.partition("=")[0] in KEYS]
    given = cli.split_words(own, "check", KEYS)[1]
    run = alone(compose([word for word in words if word not in own]))
    setup()
    print(envs.describe(run.env, run.env_options), flush=True)

    def another() -> Env:
        made = make_envs(run)
        assert isinstance(made, VecEnv) and made.env is not None
        return made.env

    try:
        env = make_envs(run)
    except envs.RuleBroken as error:
        report = Report("", (Verdict("wrong", "spec", str(error)),))
        print(report)
        return 1
    try:
        again = another if run.env == "custom" else None  # other environments are determined by their names
        report = check_env(env, num_steps=given["steps"], seed=run.seed, another=again)
    finally:
        if isinstance(env, HostEnv):
            env.close()
    return 1 if report.wrong else 0


def help_text() -> str:
    """Build the text of ``--help``.

    Returns:
        The text.
    """
    return HELP.format(rules="\n".join(f"  - {rule}" for rule in RULES.values()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("check", check_run, argv, help_text)


if __name__ == "__main__":
    sys.exit(main())
