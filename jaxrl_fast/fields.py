"""Settings as the fields of frozen dataclasses: their types, checks and documentation.

A field is declared once. Its type gives its range and its choices, and whether it is a rate, which
may change during a run. The string below it is its documentation.
"""

import ast
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from jaxrl_fast.core import Number
from jaxrl_fast.numerics.optimizers import (
    check_choice,
    check_function,
    declared_number,
    has_choices,
    is_function,
    read_number,
)

Result = TypeVar("Result")


def by_class(function: Callable[[type], Result]) -> Callable[[type], Result]:
    """Compute a function once for each class.

    Args:
        function: Function of a class.

    Returns:
        The function, which stores its results.
    """
    return cast(Callable[[type], Result], cache(function))


@by_class
def types_of(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their ranges.

    Args:
        cls: Dataclass.

    Returns:
        Types by field, in order.
    """
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


@by_class
def ranges_of(cls: type) -> dict[str, Number]:
    """Return the ranges of a dataclass's numbers.

    Args:
        cls: Dataclass.

    Returns:
        Ranges by field, for the fields that are numbers.
    """
    ranges = {name: declared_number(hint) for name, hint in types_of(cls).items()}
    return {name: number for name, number in ranges.items() if number is not None}


@by_class
def rate_names(cls: type) -> tuple[str, ...]:
    """Return the fields that may change during a run, and may be schedules.

    Args:
        cls: Dataclass.

    Returns:
        Names, in order.
    """
    return tuple(name for name, number in ranges_of(cls).items() if number.kind == "rate")


@by_class
def hyper_type(cls: type) -> Any:
    """Return the NamedTuple of a dataclass's rates.

    Args:
        cls: Dataclass.

    Returns:
        The type, the same one for each call.
    """
    kind = namedtuple(f"{cls.__name__}Hyper", rate_names(cls))  # type: ignore[misc]  # of its fields
    kind.__module__, kind.__qualname__ = cls.__module__, f"{cls.__qualname__}.Hyper"
    # A stored program names the type of its results by this path.
    cls.Hyper = kind  # type: ignore[attr-defined]
    return kind


def hyper_of(declared: Any) -> Any:
    """Return the rates of a declared algorithm, to be the hyper-parameters of a run.

    Args:
        declared: Instance of a dataclass with rates.

    Returns:
        A NamedTuple (`hyper_type`).
    """
    kind = hyper_type(type(declared))
    return kind(**{name: getattr(declared, name) for name in kind._fields})


def options_of(declared: Any) -> dict[str, Any]:
    """Return the fields that are neither rates nor functions, such as losses.

    Args:
        declared: Instance of a dataclass.

    Returns:
        Values by field.
    """
    rates = rate_names(type(declared))
    return {
        name: getattr(declared, name)
        for name, hint in types_of(type(declared)).items()
        if name not in rates and not is_function(hint)
    }


def replaced_functions(declared: Any) -> list[str]:
    """Return the names of the fields that are functions, such as losses, and not the default ones.

    Args:
        declared: Instance of a dataclass.

    Returns:
        Names of fields.
    """
    hints = types_of(type(declared))
    return [
        field.name
        for field in fields(declared)
        if is_function(hints[field.name]) and getattr(declared, field.name) is not field.default
    ]


def check_fields(declared: Any, prefix: str = "") -> None:
    """Check and convert the fields of a frozen dataclass, in its ``__post_init__``.

    Args:
        declared: Instance, which is changed: numbers are converted, and lists become tuples.
        prefix: Text before the names of fields in messages.

    Raises:
        ValueError: A field has another type, or is out of range.
    """
    ranges = ranges_of(type(declared))
    for name, hint in types_of(type(declared)).items():
        value = getattr(declared, name)
        if has_choices(hint):
            check_choice(prefix + name, value, hint)
        elif is_function(hint):
            check_function(prefix + name, value, hint)
        elif name in ranges:
            value = read_number(prefix + name, value, ranges[name])
        if get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        object.__setattr__(declared, name, value)


def texts_of(cls: type) -> dict[str, str]:
    """Return the documentation of a dataclass's fields: the strings below them.

    Args:
        cls: Dataclass.

    Returns:
        Texts by field; a field that a subclass declares again without a text has the text of its
        base. Empty where a module has no source.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= _texts_of_module(base.__module__).get(base.__qualname__, {})
    return {field.name: texts[field.name] for field in fields(cls) if field.name in texts}


@cache
def _texts_of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the texts below the fields of a module's classes, by class and field."""
    try:
        source = inspect.getsource(sys.modules[name])  # also of a module in a zip
    except (KeyError, OSError, TypeError):
        return {}
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: _texts_below(node.body) for node in classes}


def _texts_below(body: list[ast.stmt]) -> dict[str, str]:
    texts = {}
    for field, below in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            texts[field.target.id] = " ".join(below.value.value.split())
    return texts


def plain_type(hint: Any) -> Any:
    """Return a type without its range.

    Args:
        hint: Type annotation.

    Returns:
        The type.
    """
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
