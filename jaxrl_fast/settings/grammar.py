"""Reads the words of a command line by Hydra's grammar."""

import shlex
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from jaxrl_fast.settings.schema import ConfigError, run_keys


def command_line(argv: Sequence[str], command: str = "train") -> str:
    """The line to type in a shell for these words."""
    return shlex.join(["python", "-m", f"jaxrl_fast.{command}", *argv])


def read_word(word: str) -> tuple[str, Any]:
    """A word of the command line as key and value.

    Raises:
        ConfigError: it has no key, no value, several values, or is not in Hydra's grammar.
    """
    override = parse_word(word)
    if override.is_sweep_override():
        raise ConfigError(f"{word}: several values are several runs: add --multirun")
    return str(override.key_or_group), override.value()


def parse_word(word: str) -> Override:
    """A word of the command line as Hydra reads it, which may be a sweep.

    Raises:
        ConfigError: as for `read_word`.
    """
    key, equals, value = word.partition("=")
    if word.startswith("~"):
        raise ConfigError(f"{word}: settings cannot be removed; tuned=false leaves the tuned ones out")
    if not equals or not key.strip():
        raise ConfigError(f"cannot read '{word}': write key=value, for example env=halfcheetah (--help lists the keys)")
    if not value.strip():
        raise ConfigError(f"{word} has no value: write it behind the equals sign, without a space")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        raise ConfigError(f"cannot read '{word}': quote the value, as in \"{key}='...'\"") from None
    if override.package is not None:
        raise ConfigError(f"cannot read '{word}': write key=value, without '@'")
    if override.is_add() and str(override.key_or_group).startswith("env.") and override.key_or_group not in run_keys():
        override.key_or_group = f"env.options.{override.key_or_group.removeprefix('env.')}"
    return override
