"""The words of the command `sweep`: its own keys, what varies, and the settings of each group of
members.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxrl_fast.commands.cli import help_of
from jaxrl_fast.commands.run_config import compose, make_algorithm
from jaxrl_fast.core import MAX_SIZE
from jaxrl_fast.population.planning import AT_THE_END, OF_POPULATION, SearchOptions, check_options
from jaxrl_fast.population.search_space import PREFIX, SearchSpace, make_space
from jaxrl_fast.settings.run import Run
from jaxrl_fast.settings.schema import (
    SWITCHES,
    ConfigError,
    Key,
    keys_of,
    nearest,
    read_value,
    read_word,
    run_keys,
    written,
)
from jaxrl_fast.settings.signatures import algo_keys
from jaxrl_fast.system import CODE, local_path, names_code

KEYS = {
    f"population.{name}" if name in OF_POPULATION else name: key
    for name, key in keys_of(SearchOptions).items()
}
KEYS["at_once"] = Key(
    int | Literal["measure"] | None, None, 1, "trials at once; measure: finds the fastest", MAX_SIZE
)
KEYS |= AT_THE_END | {
    "write_tuned": Key(bool, False, text="write the best settings as a file for config=..."),
    "launcher": Key(
        Literal["none", "local", "slurm"], "none", text="write a script of jobs instead of training"
    ),
    "jobs": Key(int, 8, 1, "jobs of that script", 10_000),
}
"""Keys of this command, in addition to the keys of training."""
MEASURE = "measure"
SWEEP_FILE = "sweep.json"

HELP = help_of(
    "sweep sample.KEY=VALUES [...]",
    KEYS,
    """  sample.algo.learning_rate=log:1e-4:1e-2     a rate, drawn on a logarithmic scale
  sample.algo.discount=uniform:0.95:0.999     on a linear one
  sample.algo.gae_lambda=choice:0.9,0.95      from a list; grid:0.9,0.95 tries all
  sample.algo.policy_hidden=choice:[64],[256,256]   a size: a program for each value, also of num_envs and of
                                              sample.algo=choice:ppo,pqn
  resume=FOLDER                               continue a sweep that was stopped or killed
All members of a group train side by side in one program. All keys of train as well.""",
)


class Sweep(NamedTuple):
    """A sweep that was read from a command line.

    Attributes:
        words_given: All words of the command line.
        words: Those for training, without this command's.
        run: Settings of a member, without those that vary.
        options: Options of the search.
        given: Values of all keys of this command.
        space: Search space.
    """

    words_given: list[str]
    words: list[str]
    run: Run
    options: SearchOptions
    given: dict[str, Any]
    space: SearchSpace


def read_sweep(words: Sequence[str]) -> Sweep:
    """Read a command line.

    Args:
        words: Words.

    Returns:
        The sweep.

    Raises:
        ConfigError: A word is wrong, or words contradict each other.
    """
    values = {name: key.default for name, key in KEYS.items()}
    texts: dict[str, str] = {}
    others = []
    for word in words:
        name, equals, text = word.partition("=")
        if name.startswith(PREFIX) and equals:
            texts[name.removeprefix(PREFIX)] = text
        elif name in KEYS:
            values[name] = read_value(name, read_word(word)[1], KEYS[name])
        else:
            _check_key(word, name)
            others.append(word)
    run = compose(others)
    _check_run(run)
    short = {name.removeprefix("population."): value for name, value in values.items()}
    short["at_once"] = None if values["at_once"] == MEASURE else values["at_once"]
    options = SearchOptions(**{name: short[name] for name in keys_of(SearchOptions)})
    space = make_space(
        texts, _varying(run, texts), [f"algo.{name}" for name in make_algorithm(run).hyper._fields]
    )
    for key, draw in space.rates.items():
        if (
            key in SWITCHES
            and draw.kind in ("choice", "grid")
            and 0 in draw.values
            and len(draw.values) > 1
        ):
            raise ConfigError(
                f"{PREFIX}{key}: 0 switches it off, which compiles another program: leave 0 out"
            )
    check_options(options, space, run.total_steps)
    _check_unused(values, run, space)
    return Sweep(
        words_given=list(words), words=others, run=run, options=options, given=values, space=space
    )


def _check_key(word: str, name: str) -> None:
    """Refuse a word that resembles a key of this command, and none of training."""
    head = name.lstrip("+").partition(".")[0]
    hint = nearest(name if head == "population" else head, [*KEYS, PREFIX.rstrip(".")])
    if hint.startswith("did") and head not in {key.partition(".")[0] for key in run_keys()}:
        raise ConfigError(f"{word}: {hint}")


def _check_unused(values: Mapping[str, Any], run: Run, space: SearchSpace) -> None:
    """Refuse words that would have no effect."""
    if values["jobs"] != KEYS["jobs"].default and values["launcher"] == "none":
        raise ConfigError(
            f"jobs={values['jobs']} is for a script of jobs: write launcher=slurm or launcher=local with it"
        )
    if values["launcher"] != "none" and run.run_dir is not None:
        raise ConfigError(
            f"run_dir={run.run_dir}: a script of jobs names a folder for each job: leave it out"
        )
    if values["launcher"] != "none" and space.grid:
        raise ConfigError(
            f"launcher={values['launcher']}: every job would try the whole grid: write choice: for grid:"
        )


def _check_run(run: Run) -> None:
    if run.num_seeds > 1:
        raise ConfigError(
            f"num_seeds={run.num_seeds}: write seeds_per_trial={run.num_seeds}; a trial's score is their mean"
        )
    for key, value in (("resume", run.resume), ("data", run.data), ("teacher", run.teacher)):
        if value is not None:
            raise ConfigError(f"{key}={value} is for train: leave it out")
    if run.auto_width or run.auto_overlap:
        raise ConfigError("num_envs=auto and overlap=auto are for train: write a value")


def _varying(run: Run, texts: Mapping[str, str]) -> dict[str, Key]:
    """Return the declarations of all settings that may vary."""
    keys = {**algo_keys(run.algo), "num_envs": run_keys()["num_envs"]}
    if "algo" in texts:
        keys["algo"] = Key(str, run.algo)
    return keys


def run_of(sweep: Sweep, sizes: Mapping[str, Any]) -> Run:
    """Return the settings of a group: compiled-in settings as given, rates in the middle of their
    range.

    Args:
        sweep: The sweep.
        sizes: Values of the settings that are compiled in, by key.

    Returns:
        The settings.
    """
    words = [word for word in sweep.words if word.partition("=")[0] not in sizes]
    middle = {key: draw.at(0.5) for key, draw in sweep.space.rates.items()}
    return compose(
        [*words, *(f"{key}={written(value)}" for key, value in {**sizes, **middle}.items())]
    )


def take_resume(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Take ``resume=FOLDER`` out of the words, and read the folder's words.

    Args:
        words: Words of the command line.

    Returns:
        The folder or None, and the words of the sweep.

    Raises:
        ConfigError: The folder is not a sweep's, or other words are given.
    """
    folders = [word.partition("=")[2] for word in words if word.startswith("resume=")]
    if not folders:
        return None, list(words)
    folder = local_path(folders[-1], "resume")
    others = [word for word in words if not word.startswith("resume=")]
    if not folders[-1] or not folder.is_dir():
        raise ConfigError(
            f"resume={folders[-1]}: there is no such folder: write the folder of a sweep"
        )
    try:
        stored = json.loads((folder / SWEEP_FILE).read_text("utf-8"))["words"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"resume={folder}: it is not the folder of a sweep: write one that `sweep` made"
        ) from None
    code = [word for word in stored if names_own_code(word)]
    missing = [word for word in code if word not in others]
    if missing:
        raise ConfigError(
            f"{folder} names {missing[0]}, and code that a folder names is not executed: write it again"
        )
    strange = [word for word in others if word not in stored]
    if strange:
        raise ConfigError(
            f"{strange[0]}: a sweep continues with the words that began it: leave it out"
        )
    return folder, stored


def names_own_code(word: str) -> bool:
    """Return whether a word of the command line names code of the user's.

    Args:
        word: Word.

    Returns:
        True for ``algo.make=...`` and the like.
    """
    key, _, value = word.partition("=")
    return key in {f"algo.{name}" for name in CODE} and names_code(value)
