"""What the commands share that begin with a run's folder: their words, its settings and its policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_fast.core import EnvSpec
from jaxrl_fast.policy.policies import Policy, load_policy, same_spaces
from jaxrl_fast.settings.config import compose
from jaxrl_fast.settings.run_settings import Run
from jaxrl_fast.settings.schema import ConfigError


class Whole(NamedTuple):
    """A key that takes a whole number: its ``default``, the ``least`` and the ``most`` that it may be."""

    default: int
    least: int
    most: int


def read_words(
    words: Sequence[str], command: str, numbers: Mapping[str, Whole], texts: Sequence[str] = ()
) -> tuple[Path, dict[str, int], dict[str, str]]:
    """The run's folder, the numbers with their defaults, and those of the ``texts`` that were given.

    Raises:
        ConfigError: no folder, several, an unknown key, or not a number in its range.
    """
    found, given = {key: number.default for key, number in numbers.items()}, dict[str, str]()
    folders = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or "/" in key:
            folders.append(Path(word))
        elif key in texts:
            given[key] = value
        elif key in numbers:
            found[key] = _whole(word, value, numbers[key])
        else:
            *others, last = (*texts, *numbers)
            raise ConfigError(f"unknown key '{key}': {command} knows {', '.join(others)} and {last}")
    if len(folders) != 1:
        raise ConfigError("write the path of one run's folder, such as runs/latest")
    return folders[0], found, given


def open_run(folder: Path, policy: str = "policy") -> tuple[Run, Policy]:
    """The settings of a run, and the policy in its subfolder ``policy``.

    Raises:
        ValueError: there is no run, or no policy; one line that says what to write instead.
    """
    config_file = folder / "config.yaml"
    if not config_file.exists():
        raise ConfigError(f"{folder} holds no run: write the path of a run's folder, such as runs/latest")
    return compose([f"config='{config_file}'"]), load_policy(folder / policy)


def check_spaces(policy: Policy, spec: EnvSpec, folder: Path) -> None:
    """Check that a policy was trained on environments like the one in its run's settings.

    Raises:
        ConfigError: it was not.
    """
    if not same_spaces(policy.spec, spec):
        raise ConfigError(
            f"{folder}/policy was trained on {policy.spec.name}, whose observations or actions are not those of the "
            f"{spec.name} in {folder / 'config.yaml'}: put the files of one run together"
        )


def _whole(word: str, value: str, number: Whole) -> int:
    if not value.isdecimal() or not number.least <= int(value) <= number.most:
        key = word.partition("=")[0]
        raise ConfigError(
            f"{word}: write a whole number from {number.least} to {number.most}, for example {key}={number.default}"
        )
    return int(value)
