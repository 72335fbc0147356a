"""The search space: which settings vary between members, over which values, and the points that are
tried.

A rate (a field of the algorithm's hyper-parameters) is a value in the compiled program, so all its
values share one. Any other setting is compiled in: each of its values is a group of members with a
separate program.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_fast.core import as_number
from jaxrl_fast.numerics.optimizers import Schedule, plain
from jaxrl_fast.settings.schema import ConfigError, Key, nearest, parse_word, read_value, written

RANGES, LISTS = ("log", "uniform"), ("choice", "grid")
FORM = "log:1e-4:1e-2, uniform:0.9:1, choice:1,2,3 or grid:1,2,3"


class Draw(NamedTuple):
    """The values of one setting.

    Attributes:
        kind: ``log`` and ``uniform`` between two numbers, ``choice`` of a list, or all of a
            ``grid``.
        values: The two numbers, or the list.
    """

    kind: str
    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the distribution."""
        if self.kind in LISTS:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = map(math.log, self.values) if self.kind == "log" else self.values
        value = low + (high - low) * share
        return math.exp(value) if self.kind == "log" else value

    def share_of(self, value: Any) -> float:
        """Return the share at which ``at`` gives a value; of a list, the middle of its share."""
        if self.kind in LISTS:
            return (self.values.index(value) + 0.5) / len(self.values)
        low, high = self.values
        if self.kind == "log":
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def near(self, value: Any, factor: float) -> Any:
        """Return a neighbour within the range: a number times ``factor``; of a linear range, as
        large a share away; of a list, the next or previous value.
        """
        if self.kind in LISTS:
            at = self.values.index(value) + (1 if factor > 1.0 else -1)
            return self.values[min(max(at, 0), len(self.values) - 1)]
        low, high = self.values
        moved = value * factor if self.kind == "log" else value + (factor - 1.0) * (high - low)
        return min(max(moved, low), high)


class SearchSpace(NamedTuple):
    """The settings that vary.

    Attributes:
        rates: Draws of hyper-parameters by key, such as ``algo.learning_rate``.
        sizes: Draws of settings that are compiled in, by key.
    """

    rates: dict[str, Draw]
    sizes: dict[str, Draw]

    @property
    def draws(self) -> dict[str, Draw]:
        """All draws by key, sizes first."""
        return {**self.sizes, **self.rates}

    @property
    def grid(self) -> dict[str, Draw]:
        """The settings of which every value is tried."""
        return {key: draw for key, draw in self.draws.items() if draw.kind == "grid"}


PREFIX = "sample."


class Names(NamedTuple):
    """How messages name what a user writes: words of the command, or arguments of a program.

    Attributes:
        varies: Text before the name of a setting that varies.
        setting: ``(key) -> name`` of a setting.
        option: ``(field) -> name`` of a field of `SearchOptions` for populations.
    """

    varies: str
    setting: Callable[[str], str]
    option: Callable[[str], str]

    def varying(self, key: str) -> str:
        """Return the name of a setting that varies."""
        return f"{self.varies}{self.setting(key)}"


OF_COMMAND = Names(varies=PREFIX, setting=lambda key: key, option=lambda name: f"population.{name}")
OF_PROGRAM = Names(
    varies="rates: ",
    setting=lambda key: key.removeprefix("algo."),
    option=lambda name: {"replay": "copy_replay"}.get(name, name),
)

INSTEAD = {
    "seed": "write seeds_per_trial=3, so that each trial has learners with different seeds",
    "algo.name": f"write {PREFIX}algo=choice:ppo,pqn",
}
"""What to write where a setting of the run was to vary."""


def read_draw(key: str, text: str, declared: Key, names: Names = OF_COMMAND) -> Draw:
    """Read how a setting varies.

    Args:
        key: Name of the setting, such as ``algo.learning_rate``.
        text: ``log:low:high``, ``uniform:low:high``, ``choice:a,b,c`` or ``grid:a,b,c``.
        declared: Declaration of the setting.
        names: Names in messages.

    Returns:
        The draw.

    Raises:
        ConfigError: The text has another form, a range is empty, or a value is not one of the
            setting.
    """
    kind, _, rest = text.partition(":")
    named = f"{names.varying(key)}={text}"
    if kind not in (*RANGES, *LISTS) or not rest:
        raise ConfigError(f"{named}: write {FORM}")
    parts = split_list(rest) if kind in LISTS else rest.split(":")
    if "" in parts or rest.count("[") != rest.count("]"):
        missing = "a value" if "" in parts else "a bracket"
        raise ConfigError(f"{named}: {missing} is missing: write {FORM}")
    parsed = [parse_word(f"{key}={part}") for part in parts]
    if any(word.several is not None for word in parsed):
        raise ConfigError(f"{named}: write {FORM}")
    values = tuple(read_value(names.setting(key), word.value, declared) for word in parsed)
    if kind in RANGES:
        _check_range(named, names.setting(key), kind, values)
    elif any(isinstance(value, Schedule) for value in values):
        raise ConfigError(f"{named}: a list holds numbers, not schedules: write numbers")
    elif len(set(map(str, values))) < len(values):
        raise ConfigError(f"{named}: a value is repeated: write each once")
    return Draw(kind, values)


def _check_range(named: str, key: str, kind: str, values: Sequence[Any]) -> None:
    try:
        low, high = map(as_number, values)
    except (TypeError, ValueError):
        raise ConfigError(f"{named}: write two numbers, as in {kind}:1e-4:1e-2") from None
    if kind == "log" and min(low, high) <= 0.0:
        raise ConfigError(
            f"{named}: a logarithmic range begins above 0: write uniform:... or larger numbers"
        )
    if low == high:
        raise ConfigError(
            f"{named}: nothing varies: write {key}={low:g} without sample., or a range"
        )
    if not low < high:
        raise ConfigError(
            f"{named}: the first number must be the smaller: write {kind}:{high:g}:{low:g}"
        )


def split_list(text: str) -> list[str]:
    """Split a text at the commas outside of brackets.

    Args:
        text: Such as ``[64,64],[256,256]``.

    Returns:
        The parts.
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def make_space(
    texts: Mapping[str, str],
    keys: Mapping[str, Key],
    rates: Sequence[str],
    names: Names = OF_COMMAND,
) -> SearchSpace:
    """Read a search space.

    Args:
        texts: How settings vary, by key.
        keys: Declarations of all settings that may vary, by key.
        rates: Keys of those that are hyper-parameters.
        names: Names in messages.

    Returns:
        The space.

    Raises:
        ConfigError: A key is unknown, a size has a range, or as `read_draw`.
    """
    draws = {}
    for key, text in texts.items():
        if key not in keys:
            named = {names.setting(one): declared for one, declared in keys.items()}
            hint = INSTEAD.get(key) or nearest(names.setting(key), named)
            size = "" if len(keys) == len(rates) else ", or a size"
            hint = (
                f"write one of {', '.join(map(names.setting, rates))}{size}"
                if hint.startswith("write one of")
                else hint
            )
            raise ConfigError(
                f"{names.varying(key)}: there is no such setting of the algorithm: {hint}"
            )
        if key not in rates and text.split(":")[0] in RANGES:
            listed = ", ".join(rate.removeprefix("algo.") for rate in rates)
            raise ConfigError(
                f"{names.varying(key)}={text}: it is none of the rates ({listed}) but a size or a choice, compiled into "
                f"the program; each of its values is a group of members: write {names.varying(key)}=choice:..."
            )
        draws[key] = read_draw(key, text, keys[key], names)
    within = {key: draw for key, draw in draws.items() if key in rates}
    return SearchSpace(within, {key: draw for key, draw in draws.items() if key not in rates})


Shares = dict[str, float]
"""A point of the space: the share in [0, 1) of each setting's distribution, by key."""


def value_of(space: SearchSpace, shares: Shares) -> dict[str, Any]:
    """Return the settings at a point.

    Args:
        space: Search space.
        shares: The point.

    Returns:
        Values by key.
    """
    return {key: draw.at(shares[key]) for key, draw in space.draws.items()}


def random_shares(space: SearchSpace, seed: int, number: int) -> Shares:
    """Draw a point. It depends on nothing but the arguments, so that more trials repeat the first
    ones.

    Args:
        space: Search space.
        seed: Seed of the search.
        number: Number of the trial.

    Returns:
        The point; a grid's settings take their values in turn.
    """
    rng = np.random.default_rng([seed, number])
    drawn = {
        key: float(share)
        for key, share in zip(space.draws, rng.random(len(space.draws)), strict=True)
    }
    grid = space.grid
    if grid:
        cells = list(itertools.product(*(range(len(draw.values)) for draw in grid.values())))
        cell = cells[number % len(cells)]
        drawn |= {
            key: (at + 0.5) / len(draw.values)
            for (key, draw), at in zip(grid.items(), cell, strict=True)
        }
    return drawn


def all_sizes(space: SearchSpace) -> list[dict[str, Any]]:
    """List the settings of every group.

    Args:
        space: Search space.

    Returns:
        Values of the settings that are compiled in, by key; one empty dictionary without any.
    """
    products = itertools.product(*(draw.values for draw in space.sizes.values()))
    return [dict(zip(space.sizes, values, strict=True)) for values in products]


def grid_size(space: SearchSpace) -> int:
    """Return the number of points of the grid.

    Args:
        space: Search space.

    Returns:
        The number, 1 without a grid.
    """
    return math.prod(len(draw.values) for draw in space.grid.values())


class TrialOutcome(NamedTuple):
    """A trial as a sampler sees it.

    Attributes:
        shares: Its point.
        score: Its last score; None before the first, -inf if it diverged.
        steps: Environment steps at that score.
        seconds: Seconds of one member until then.
        finished: Whether it trains no further.
    """

    shares: Shares
    score: float | None
    steps: int
    seconds: float
    finished: bool


Ask = Callable[[int, Sequence[TrialOutcome]], Shares]
"""(number of the new trial, the trials before it) -> its point."""


def describe_point(point: Mapping[str, Any]) -> str:
    """Describe the settings of a member in a few words.

    Args:
        point: Values by key.

    Returns:
        Such as ``learning_rate 0.0003, discount 0.99``.
    """
    texts = {key.removeprefix("algo."): plain(value) for key, value in point.items()}
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {written(value)}"
        for name, value in texts.items()
    )
