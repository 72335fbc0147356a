"""The keys of algorithms and environments, from the signatures and docstrings of the functions that
make them.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_type_hints

from jaxrl_fast.algorithms.registry import declared_named, factory_of, made_by_user
from jaxrl_fast.core import MAX_SIZE, Number
from jaxrl_fast.envs.options import OTHERS as HANDED_ON
from jaxrl_fast.fields import plain_type, ranges_of, texts_of, types_of
from jaxrl_fast.learning.algorithm import DeclaredAlgorithm
from jaxrl_fast.numerics.optimizers import is_function
from jaxrl_fast.settings.schema import Key, describe_type

NOT_OPTIONS = ("precision",)
"""Arguments of factories that are keys of the run, not of the algorithm."""


def algo_keys(name: str) -> dict[str, Key]:
    """Return the keys ``algo.*`` of an algorithm.

    They are the fields of a declared algorithm, without losses; of a user's function, which makes
    one, its arguments.

    Args:
        name: Name of the algorithm, or the path of a user's factory.

    Returns:
        Keys by dotted name.

    Raises:
        ValueError: A user's factory cannot be imported, or fails.
    """
    factory = factory_of(name)
    if isinstance(factory, type) and issubclass(factory, DeclaredAlgorithm):
        return {f"algo.{field}": key for field, key in keys_of_fields(factory).items()}
    return _keys_of_user(factory, name)


def keys_of_fields(declared: type) -> dict[str, Key]:
    """Return the keys of the fields of an algorithm or of a suite's options, without losses and
    `NOT_OPTIONS`.

    Args:
        declared: Dataclass.

    Returns:
        Keys by field; `OTHERS` stands for names that are handed on.
    """
    texts, ranges, keys = texts_of(declared), ranges_of(declared), {}
    layers = Number(1, MAX_SIZE, "whole")
    for field in dataclasses.fields(declared):
        hint = types_of(declared)[field.name]
        if is_function(hint) or field.name in NOT_OPTIONS:
            continue
        number = layers if hint == tuple[int, ...] else ranges.get(field.name, Number())
        plain = plain_type(hint)
        keys[field.name] = Key(
            type=plain | None if number.optional and plain is Any else plain,
            default=REQUIRED if field.default is dataclasses.MISSING else field.default,
            minimum=number.least,
            text=texts.get(field.name, "").replace("`", ""),
            maximum=number.most,
        )
    if HANDED_ON in keys:
        keys[OTHERS] = keys.pop(HANDED_ON)._replace(type=object, default=REQUIRED)
    return keys


def _keys_of_user(factory: Callable[..., Any], name: str) -> dict[str, Key]:
    """Return the keys of a user's factory; a rate of its hyper-parameters may be a schedule, and
    need not be named.
    """
    keys = {
        n: key
        for n, key in option_keys(factory).items()
        if not callable(key.default) and n not in NOT_OPTIONS
    }
    others = keys.pop(OTHERS, None)
    needs = any(key.default == REQUIRED for key in keys.values())
    rates = {} if needs else made_by_user(factory, name, {}).hyper._asdict()
    keys |= (
        {}
        if others is None
        else {n: Key(Any, value) for n, value in rates.items() if n not in keys}
    )
    typed = {
        n: Any if n in rates else key.type if _is_read(key.type) else object
        for n, key in keys.items()
    }
    return {f"algo.{n}": key._replace(type=typed[n]) for n, key in keys.items()}


def _is_read(hint: Any) -> bool:
    """Return whether `read_value` can read values of a type."""
    try:
        return bool(describe_type(hint))
    except (KeyError, TypeError):
        return False


def texts_of_algorithm(name: str) -> dict[str, str]:
    """Return the descriptions of an algorithm's keys.

    Args:
        name: Name of the algorithm; a user's, whose code is not imported, has none.

    Returns:
        Descriptions by dotted name.
    """
    declared = declared_named(name)
    texts = {} if declared is None else texts_of(declared)
    return {f"algo.{field}": text.replace("`", "") for field, text in texts.items()}


ARGUMENTS, ENTRY = (
    re.compile(r"^Args:\n(.*?)(?=^\S|\Z)", re.M | re.S),
    re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.M),
)


def meanings_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of a function's arguments.

    Args:
        function: Function, with a docstring in Google style or another one.

    Returns:
        Descriptions by name, without marks of code; empty for another docstring.
    """
    section = ARGUMENTS.search((inspect.getdoc(function) or "").replace("**", ""))
    entries = ENTRY.findall(section[1]) if section else []
    return {name: " ".join(text.replace("`", "").split()) for name, text in entries}


def option_keys(function: Callable[..., Any]) -> dict[str, Key]:
    """Return the keyword arguments of a function that makes an environment.

    Args:
        function: Function.

    Returns:
        Keys by name, with the default `REQUIRED` where an argument has none; `OTHERS` stands for
        any other name.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function written in C
        return {OTHERS: Key(object, REQUIRED)}
    hints: dict[str, Any] = {}
    with suppress(Exception):  # a user's annotation may name anything
        hints = get_type_hints(function)
    texts, keys = meanings_of(function), {}
    for p in parameters:
        if p.kind is p.VAR_KEYWORD and p.name != "unknown":
            keys[OTHERS] = Key(object, REQUIRED, text=texts.get(p.name, ""))
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            default = REQUIRED if p.default is p.empty else p.default
            plain = p.annotation if p.annotation in (bool, int, float, str) else object
            keys[p.name] = Key(hints.get(p.name, plain), default, text=texts.get(p.name, ""))
    return keys


REQUIRED, OTHERS = "VALUE", "NAME"
"""Default of a key without one, and name of the key that stands for all others."""
