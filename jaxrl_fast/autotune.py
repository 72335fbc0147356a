"""``python -m jaxrl_fast.autotune env=halfcheetah``: find the fastest settings on this machine,
store and draw them.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from jaxrl_fast import envs
from jaxrl_fast.commands import cli, run_config, tuning_cache
from jaxrl_fast.commands.run_config import env_name, make_algorithm
from jaxrl_fast.learning.run_graph import Overlap
from jaxrl_fast.settings.run import Run
from jaxrl_fast.settings.schema import ConfigError, Key, nearest, read_value, read_word
from jaxrl_fast.system import local_path
from jaxrl_fast.tuning import candidates
from jaxrl_fast.tuning.measuring import Settings
from jaxrl_fast.tuning.running import results_folder, run_sweep
from jaxrl_fast.tuning.width_sweep import Objective, SweepPlan, left_open
from jaxrl_fast.views.graph_tables import new_console, new_table

KEYS = {
    "objective": Key(
        Objective, "training", text="rate to maximize: of training, or of sampling alone"
    ),
    "knobs": Key(
        tuple[str, ...],
        (),
        text=f"settings to vary, of {', '.join(candidates.KNOBS)}; default open ones",
    ),
    "repeats": Key(int, 5, 1, "measurements of a candidate that is not clearly behind", 1000),
    "repeat_s": Key(float, 1.0, 0, "shortest duration of a measurement in seconds", 3600),
    "max_num_envs": Key(int | None, None, 1, "largest number of environments"),
    "memory_cap_gb": Key(
        float | None, None, 0, "memory for a candidate; default 80 % of the free memory"
    ),
    "out": Key(str, "sweeps", text="folder of <env>_<algo>.json, .csv and .png", path=True),
}
"""Keys of this command, in addition to the keys of training."""


HELP = cli.help_of(
    "autotune",
    KEYS,
    "python -m jaxrl_fast.autotune show | clear: show or remove the findings on this machine, which num_envs=auto and",
    "placement=auto use. Finds the fastest settings for a run, reports how every candidate changes training results,",
    "and saves no policy. All keys of train as well: python -m jaxrl_fast.train env=cartpole algo=dqn --help",
)


def tune(words: list[str]) -> int:
    """Run a sweep, or ``show`` or ``clear`` the findings.

    Args:
        words: Words of the command line.

    Returns:
        Exit code.

    Raises:
        ConfigError: Invalid words.
    """
    if words and words[0] in ("show", "clear"):
        if words[1:]:
            raise ConfigError(
                f"{' '.join(words[:2])}: write python -m jaxrl_fast.autotune {words[0]} without other words"
            )
        if words[0] == "clear":
            print(f"{tuning_cache.clear()} findings removed")
        else:
            show()
        return 0
    options, others = take_own(words)
    plan = make_plan(run_config.compose(others), options)
    cap = options["memory_cap_gb"]
    with (
        results_folder(local_path(options["out"], "out")) as out,
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
    ):
        print(
            f"{envs.describe(plan.asked.env, plan.asked.env_options)}; {plan.asked.algo}, objective {plan.objective}"
        )
        settings = Settings(
            Path(folder), cap and cap * 1e9, options["repeats"], options["repeat_s"]
        )
        suffix = "" if plan.objective == "training" else f"_{plan.objective}"
        stem = f"{env_name(plan.asked)}_{plan.asked.algo.replace('.', '-')}{suffix}"
        return run_sweep(plan, settings, out / stem, words, tuple(KEYS))


def take_own(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate this command's keys from the other words.

    Args:
        words: Words of the command line.

    Returns:
        Values by key, and the other words.

    Raises:
        ConfigError: Invalid value, unknown knob, or ``resume``.
    """
    values = {name: key.default for name, key in KEYS.items()}
    others = []
    for word in words:
        name, _, text = word.partition("=")
        if name == "knobs" and text.strip():
            values[name] = tuple(part.strip() for part in text.strip("[] ").split(","))
        elif name == "resume":
            raise ConfigError(
                f"{word}: autotune does not resume runs: write config=<its folder>/config.yaml instead"
            )
        elif name in KEYS:
            values[name] = read_value(name, read_word(word)[1], KEYS[name])
        else:
            others.append(word)
    for knob in values["knobs"]:
        if knob not in candidates.KNOBS:
            raise ConfigError(f"knobs={knob}: {nearest(knob, candidates.KNOBS)}")
    return values, others


def make_plan(run: Run, options: dict[str, Any]) -> SweepPlan:
    """Plan a sweep.

    Args:
        run: Settings of the run.
        options: Values of `KEYS`.

    Returns:
        The plan.

    Raises:
        ConfigError: ``overlap=auto``.
        ValueError: An option of the environment or the algorithm is wrong.
    """
    if run.auto_overlap:
        raise ConfigError(f"overlap=auto is for train: write one of {', '.join(get_args(Overlap))}")
    make_algorithm(run)
    candidates.check_sizes(run)
    envs.resolve(run.env, dict(run.env_options))
    requested = dataclasses.replace(run, auto_width=False, distributed="off", processes=None)
    knobs = left_open(requested, options["knobs"])
    return SweepPlan(
        asked=requested,
        objective=options["objective"],
        knobs=knobs,
        requested=options["knobs"],
        max_num_envs=options["max_num_envs"],
    )


def show() -> None:
    """Print all findings."""
    findings = tuning_cache.read()
    columns = ("objective", "asked for", "fastest", "device, versions", "when")
    table = new_table("environment, algorithm", *columns)
    for key, finding in findings.items():
        table.add_row(*tuning_cache.describe(key, finding))
    if findings:
        new_console().print(table)
    print(
        f"{len(findings)} findings in {tuning_cache.file() or 'no file, since JAXRL_FAST_CACHE=off'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Words of the command line, None for the arguments of the process.

    Returns:
        Exit code.
    """
    return cli.main("autotune", tune, argv, lambda: HELP)


if __name__ == "__main__":
    sys.exit(main())
