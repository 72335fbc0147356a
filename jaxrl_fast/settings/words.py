r"""How a word of the command line is read, ``key=value``.

A value is a number, ``true``, ``false``, ``null``, a text, a list ``[16,16]``, a map ``{a: 1}``, or
several values for ``--multirun``: ``1,2,3``, ``choice(1,2,3)`` or ``range(1,4)``.

- A text without quotes consists of letters, digits, blanks and ``_ / - + . $ % * @ ? | :``. With
  one of ``( ) [ ] { } = ,`` it needs quotes, or a ``\`` before each of them.
- Numbers are written as in Python. ``007``, ``0x1f``, ``1:20``, ``2024-01-01``, ``on`` and ``no``
  are texts, and ``1e6``, ``1_000``, ``.5``, ``inf`` and ``nan`` numbers.
- Upper and lower case are the same in ``true``, ``false``, ``null``, ``inf`` and ``nan``.

This is the grammar of Hydra 1.3, which read the words of 0.2.0, without its casts, ``sort``,
``shuffle``, ``interval``, ``tag`` and ``glob``. ``tests/golden/words.json`` has Hydra's results.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

NAME, ID = r"[A-Za-z_$][\w$-]*", r"[A-Za-z_][\w-]*"
WHOLE, DIGITS = r"(?:0|[1-9](?:_?[0-9])*)", r"[0-9](?:_?[0-9])*"
POINT = rf"(?:{WHOLE}?\.{DIGITS}|{WHOLE}\.)"
KEY = re.compile(
    rf"(\+{{0,2}})({ID}(?:/{ID})+|(?:{NAME}|{WHOLE})(?:\.(?:{NAME}|{WHOLE}))+|(?:{NAME})?)(@.*)?",
    re.A,
)
"""Plus signs, the key, and a package, which is refused."""
INTEGER = re.compile(rf"[+-]?{WHOLE}")
FLOAT = re.compile(rf"[+-]?(?:(?:{POINT}|{WHOLE})[eE][+-]?{DIGITS}|{POINT}|(?i:inf|nan))")
CONSTANTS = {"true": True, "false": False, "null": None}
BLANK = r"[ \t]*"
LETTER = r"\\[()\[\]{}:=, \t\\]|[\w/\-+.$%*@?|\\]|[ \t]+"
"""A letter of a text without quotes, or blanks."""
TEXT = re.compile(rf"\$\{{[^}}]+\}}|{BLANK}:{BLANK}|{LETTER}", re.A)
KEY_IN_MAP = re.compile(LETTER, re.A)
QUOTED = re.compile(r"(['\"])((?:\\\\)*|.*?[^\\](?:\\\\)*)\1", re.S)
FUNCTION = re.compile(rf"(choice|range){BLANK}(?=\()")
COMMA, COLON = re.compile(rf"{BLANK},{BLANK}"), re.compile(rf"{BLANK}:{BLANK}")
MOST_BY_RANGE = 100_000
"""Values of a range; more are a mistake."""


class Word(NamedTuple):
    """A word of the command line.

    Attributes:
        plus: ``+`` or ``++`` before the key, or nothing.
        key: Dotted key.
        package: Package after the key, from ``@`` on, or None.
        value: Value; of several values, their text.
        several: Text of each of several values, None for one value.
    """

    plus: str
    key: str
    package: str | None
    value: Any
    several: tuple[str, ...] | None = None


def parts_of(word: str) -> Word:
    """Split a word, and read its value.

    Args:
        word: Word ``key=value``.

    Returns:
        The word's parts.

    Raises:
        ValueError: It is not of this grammar. The error has no message.
    """
    key, equals, text = word.partition("=")
    parts = KEY.fullmatch(key)
    if not equals or parts is None:
        raise ValueError
    text = text.lstrip(" \t")
    try:
        value, several = _value(text)
    except RecursionError:
        raise ValueError from None
    return Word(plus=parts[1], key=parts[2], package=parts[3], value=value, several=several)


def _value(text: str) -> tuple[Any, tuple[str, ...] | None]:
    """Return the value of a text and None, or a text and the text of each value."""
    function = FUNCTION.match(text)
    if function is not None:
        items, end = _items(text, function.end(), ")", _element)
        several = _called(function[1], items)
    else:
        item, end = _element(text, 0)
        items = [item]
        while (comma := COMMA.match(text, end)) is not None:
            item, end = _element(text, comma.end())
            items.append(item)
        several = [source for _, source in items]
    if text[end:].strip(" \t"):
        raise ValueError
    if function is None and len(items) == 1:
        return items[0][0], None
    return text, tuple(several)


def _called(function: str, items: list[tuple[Any, str]]) -> list[str]:
    """Return the text of each value of ``choice(...)`` or ``range(...)``."""
    if function == "choice" and items:
        return [source for _, source in items]
    numbers = [value for value, _ in items]
    if function == "choice" or not 1 <= len(numbers) <= 3 or {*map(type, numbers)} - {int, float}:
        raise ValueError
    start, stop, step = ([0, *numbers, 1] if len(numbers) == 1 else [*numbers, 1])[:3]
    return [str(value) for value in _range(start, stop, step)]


def _range(start: float, stop: float, step: float) -> Iterator[float]:
    """Yield the values of a range, which are decimal numbers if one of its three numbers is."""
    kind = int if all(isinstance(number, int) for number in (start, stop, step)) else float
    at, last, by = map(Decimal, (start, stop, step))
    if not by or not all(number.is_finite() for number in (at, last, by)):
        raise ValueError
    for _ in range(MOST_BY_RANGE):
        if at >= last if by > 0 else at <= last:
            return
        yield kind(at)
        at += by
    raise ValueError


def _element(text: str, at: int) -> tuple[tuple[Any, str], int]:
    """Return the value at a place and its text, and the place behind it."""
    value, end = _one(text, at)
    return (value, text[at:end]), end


def _one(text: str, at: int) -> tuple[Any, int]:
    """Return the value at a place, and the place behind it."""
    first = text[at : at + 1]
    if first == "[":
        return _items(text, at, "]", _one)
    if first == "{":
        pairs, end = _items(text, at, "}", _pair)
        return dict(pairs), end
    if not first or first not in "'\"":
        return _plain(text, at, TEXT)
    quoted = QUOTED.match(text, at)
    if quoted is None:
        raise ValueError
    # A backslash counts only before the quote, and at the end.
    doubled = re.compile(rf"\\+(?={quoted[1]}|\Z)")
    return doubled.sub(lambda run: "\\" * (len(run[0]) // 2), quoted[2]), quoted.end()


def _items(
    text: str, at: int, close: str, read_one: Callable[[str, int], tuple[Any, int]]
) -> tuple[list[Any], int]:
    """Return the items between brackets, and the place behind; ``at`` is the first bracket's."""
    closing, at = re.compile(rf"{BLANK}\{close}"), _behind_blanks(text, at + 1)
    items: list[Any] = []
    while (end := closing.match(text, at)) is None:
        if items:
            at = _behind(COMMA, text, at)
        item, at = read_one(text, at)
        items.append(item)
    return items, end.end()


def _pair(text: str, at: int) -> tuple[tuple[Any, Any], int]:
    """Return a key and a value of a map, and the place behind them."""
    key, at = _plain(text, at, KEY_IN_MAP)
    value, at = _one(text, _behind(COLON, text, at))
    return (key, value), at


def _plain(text: str, at: int, letters: re.Pattern[str]) -> tuple[Any, int]:
    """Return the value without quotes at a place, and the place behind it."""
    characters, end = [], at
    while (letter := letters.match(text, end)) is not None:
        characters.append(letter[0])
        end = letter.end()
    if characters and not characters[-1].strip(" \t"):
        end -= len(characters.pop())
    if not characters:
        raise ValueError
    source = text[at:end]
    if source.lower() in CONSTANTS:
        return CONSTANTS[source.lower()], end
    if INTEGER.fullmatch(source):
        return int(source), end
    if FLOAT.fullmatch(source):
        return float(source), end
    return "".join(one[1:] if len(one) == 2 and one[0] == "\\" else one for one in characters), end


def _behind(mark: re.Pattern[str], text: str, at: int) -> int:
    match = mark.match(text, at)
    if match is None:
        raise ValueError
    return match.end()


def _behind_blanks(text: str, at: int) -> int:
    return _behind(re.compile(BLANK), text, at)
