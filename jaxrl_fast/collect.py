"""``python -m jaxrl_fast.collect runs/latest out=data/walk``: write episodes of a run's policy to
files.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from jaxrl_fast.commands import cli
from jaxrl_fast.commands.cli import POLICIES, check_spaces, open_run, read_words
from jaxrl_fast.commands.run_config import make_algorithm, make_evaluation_envs
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.offline.collecting import (
    NothingCollected,
    collect_episodes,
    policy_at,
    stored_steps,
)
from jaxrl_fast.offline.datasets import (
    MINARI,
    Dataset,
    import_minari,
    refuse_full,
    save_dataset,
    to_minari,
)
from jaxrl_fast.policy.policies import Policy, with_sampled_actions
from jaxrl_fast.settings.machine import setup
from jaxrl_fast.settings.run import Run
from jaxrl_fast.settings.schema import MAX_SEED, ConfigError, Key
from jaxrl_fast.training.checkpoints import FOLDER, all_steps
from jaxrl_fast.training.stop_signals import StopSignal

KEYS = {
    "out": Key(
        str,
        None,
        text="new folder for the data, or minari:<id>, such as minari:pendulum/sac-v0",
        path=True,
    ),
    "episodes": Key(int, 100, 1, "number of episodes, each with a new initial state", MAX_SIZE),
    "policy": Key(str, "newest", text="newest, best, or the steps of a checkpoint, such as 200000"),
    "sample": Key(
        bool, False, text="draw actions from the policy's distribution, not the most probable ones"
    ),
    "seed": Key(
        int,
        0,
        0,
        "seed of the episodes; their PRNG keys differ from the keys of training",
        MAX_SEED,
    ),
    "replay": Key(
        bool,
        False,
        text="the steps in the replay buffer of the checkpoint, in place of new episodes",
    ),
}
HELP = cli.help_of("collect RUN out=data/NAME", KEYS, cli.OF_RUN)


def collect_run(words: Sequence[str]) -> int:
    """Play whole episodes with a run's policy, and write their steps.

    Args:
        words: Words of the command line.

    Returns:
        Exit code: 0, or 128 and the number of the signal that ended it; its episodes so far are
        written.

    Raises:
        ConfigError: No place to write to, or unknown policy.
        ValueError: The run cannot be read, or the place cannot be written.
    """
    folder, given = read_words(words, "collect", KEYS)
    out = given["out"]
    if out is None:
        raise ConfigError("write where to put the data, such as out=data/walk")
    if out.startswith(MINARI):
        import_minari()
    else:
        refuse_full(Path(out))
    stop = StopSignal(what="the first episode", stops="when the episodes so far are written")
    setup()
    run, policy = open_run(folder, POLICIES.get(given["policy"], "policy"), given["settings"])
    checkpoint = checkpoint_of(folder, given["policy"], newest=given["replay"])
    with ExitStack() as stack:
        env = make_evaluation_envs(run)
        if isinstance(env, HostEnv):
            stack.callback(env.close)
        check_spaces(policy, env.spec, folder)
        if given["replay"]:
            assert checkpoint is not None
            dataset = stored_steps(checkpoint, env.spec)
        else:
            chosen = (
                policy if checkpoint is None else policy_at(checkpoint, policy, make_algorithm(run))
            )
            chosen = (
                with_sampled_actions(chosen, make_algorithm(run)) if given["sample"] else chosen
            )
            try:
                dataset = collect_episodes(
                    chosen,
                    env,
                    episodes=given["episodes"],
                    seed=given["seed"],
                    should_stop=stop,
                )
            except NothingCollected as error:
                assert stop.number is not None
                print(error, file=sys.stderr)
                return 128 + stop.number
        about = {
            **dataset.about,
            "run": str(folder),
            "policy": given["policy"],
            "sample": given["sample"],
        }
        write(dataset._replace(about=about), out, run, policy)
    return 128 + stop.number if stop.number is not None else 0


def checkpoint_of(folder: Path, which: str, *, newest: bool) -> Path | None:
    """Return the checkpoint that a policy's name means.

    Args:
        folder: Folder of the run.
        which: ``newest``, ``best``, or a number of steps.
        newest: Whether the newest policy shall be read from a checkpoint, too.

    Returns:
        The checkpoint; None for a policy in a separate folder.

    Raises:
        ConfigError: There is no such checkpoint.
    """
    if which in POLICIES and not newest:
        return None
    steps = all_steps(folder / FOLDER)
    found = (
        steps[-1:] if which == "newest" else [number for number in steps if str(number) == which]
    )
    if not found:
        there = ", ".join(map(str, steps)) or "none"
        raise ConfigError(
            f"policy={which}: write newest, best, or the steps of a checkpoint (there: {there})"
        )
    return folder / FOLDER / str(found[0])


def write(dataset: Dataset, out: str, run: Run, policy: Policy) -> None:
    """Write a data set, and print what it holds.

    Args:
        dataset: Data set.
        out: Folder or name in Minari.
        run: Settings of the run.
        policy: Policy of the run.
    """
    if out.startswith(MINARI):
        to_minari(dataset, out.removeprefix(MINARI), policy.spec, env_id(run))
    else:
        save_dataset(dataset, out)
    arrays = dataset._replace(about={})
    returns, size = dataset.returns, sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
    print(f"{out}: {len(returns):,} episodes, {len(dataset.action):,} steps, {size / 1e6:.1f} MB")
    print(
        f"return  {returns.mean():.1f} ± {returns.std():.1f}, least {returns.min():.1f}, most {returns.max():.1f}"
    )


def env_id(run: Run) -> str | None:
    """Return the id of a run's environment in Gymnasium.

    Args:
        run: Settings of the run.

    Returns:
        The id, or None.
    """
    options: dict[str, Any] = dict(run.env_options)
    return options.get("id") if run.env == "gymnasium" else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("collect", collect_run, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
