"""The options of an environment: the fields of a frozen dataclass of its suite."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from jaxrl_fast.core import MAX_SIZE, Number
from jaxrl_fast.envs.env import A_COUNT, is_count
from jaxrl_fast.envs.env_checks import check_option
from jaxrl_fast.fields import check_fields

COUNT = Number(1, MAX_SIZE, "whole")
Count = Annotated[int, COUNT]
OptionalCount = Annotated[int | None, COUNT._replace(optional=True)]
Kinds = Mapping[str, str] | None
"""Kinds of the metrics to report, by name, as in `EnvSpec`; None for the suite's choice."""
OTHERS = "others"
"""Field with the options that a suite hands on to its package."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Options that most suites have."""

    episode_length: OptionalCount = None
    """Time limit in steps; None for the suite's."""


Declared = TypeVar("Declared")


def read_options(kind: type[Declared], values: Mapping[str, Any], of_what: str) -> Declared:
    """Read the options of an environment.

    Args:
        kind: Dataclass of the suite's options. A field `OTHERS` takes those that it does not name.
        values: Values by name.
        of_what: Suite and id, for messages.

    Returns:
        The options.

    Raises:
        ValueError: An option does not exist, has another type, or is out of range.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    declared = {name: value for name, value in values.items() if name in names and name != OTHERS}
    others = {name: value for name, value in values.items() if name not in declared}
    if OTHERS in names:
        declared[OTHERS] = others
    elif others:
        raise unknown_option(of_what, min(others), names)
    options = kind(**declared)
    check_fields(options, "env.")
    return options


def unknown_option(of_what: str, option: str, options: Iterable[str]) -> ValueError:
    """Return the error for an option that does not exist.

    Args:
        of_what: Suite and id.
        option: The option.
        options: Those that exist.

    Returns:
        The error.
    """
    names = sorted(options)
    instead = f"write one of {', '.join(names)}" if names else "leave it out"
    return ValueError(f"{of_what} has no option '{option}': {instead}")


def check_others(
    of_what: str, values: Mapping[str, Any], defaults: Mapping[str, Any], *, counts: bool = False
) -> None:
    """Check options of a suite's package by its defaults.

    Args:
        of_what: Suite and id, for messages.
        values: Values by name.
        defaults: All options of the package with their defaults.
        counts: Whether whole numbers must be at least 1.

    Raises:
        ValueError: An option does not exist, or is of another kind than its default.
    """
    for option, value in values.items():
        if option not in defaults:
            raise unknown_option(of_what, option, defaults)
        check_option(f"env.{option}", value, defaults[option])
        if counts and type(defaults[option]) is int and not is_count(value):
            raise ValueError(f"env.{option}={value}: {A_COUNT}")
