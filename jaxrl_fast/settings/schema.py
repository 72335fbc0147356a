"""The keys of a run, each declared once, and how their values are read.

A key of a run is a field of a dataclass here: type, default, help, range, target, and whether a
resumed run may change it. The command line, its help, config files, checkpoints, `Run`, and the
options of a graph and of a job follow from these. Keys of an algorithm are derived from its factory
(`signatures`).
"""

import dataclasses
import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jaxrl_fast.core import MAX_SIZE, Log, Number, as_number, as_whole
from jaxrl_fast.learning.run_graph import GraphOptions, Overlap
from jaxrl_fast.learning.updates import Average, OnNan
from jaxrl_fast.networks.network import Precision
from jaxrl_fast.numerics.optimizers import (
    A_RATE,
    A_TABLE,
    FILE,
    Schedule,
    as_rate,
    numbers_of,
    one_of,
)
from jaxrl_fast.settings.words import Word, parts_of
from jaxrl_fast.system import CODE, local_path, names_code

MAX_SEED = 2**32 - 1
"""JAX uses only the lowest 32 bits of a larger seed."""
GROUPS = ("env", "algo", "placement")
"""Keys that are names in one file and sections in another."""

EARLIER = {"algo.warmup_actions": "policy", "algo.initial_deviation": 0.694}
EARLIER |= {
    "algo.network": "mlp",
    "algo.memory": "gru",
    "algo.num_critics": 2,
    "algo.critic_dropout": 0.0,
    "algo.priority_exponent": 0.0,
}
EARLIER |= dict.fromkeys(
    (f"algo.{name}" for name in ("free_deviation", "clip_actions", "orthogonal")), False
)
EARLIER |= dict.fromkeys((f"algo.{name}" for name in ("share_torso", "normalize_values")), False)
"""Values of settings that checkpoints until 0.2.0 do not name."""
SWITCHES = "algo.max_kl", "algo.desired_kl", "algo.fixed_temperature"
"""Hyper-parameters that add a state to a run, or remove one, unless they are 0: a resumed run
cannot switch them.
"""


class ConfigError(ValueError):
    """Settings that cannot be run; the message is one line with the value to write instead."""


class Key(NamedTuple):
    """Declaration of a setting.

    Attributes:
        type: Type of its values.
        default: Default value.
        minimum: Smallest number, also in a list.
        text: Line of help, with the unit.
        maximum: Largest number, also in a list.
        resume: Whether a resumed run may have another value: no, yes, or yes without a message.
        stored: Whether config files and checkpoints contain it: always, if it differs from the
            default, or never.
        aside: Whether ``--help`` lists only its name.
        path: Whether it is the path of a file or folder.
    """

    type: Any
    default: Any
    minimum: float | None = None
    text: str = ""
    maximum: float | None = None
    resume: Literal["fixed", "free", "silent"] = "fixed"
    stored: Literal["always", "changed", "never"] = "always"
    aside: bool = False
    path: bool = False

    def range(self) -> Number:
        """Return the range of its numbers."""
        least, most = -math.inf if self.minimum is None else self.minimum, self.maximum
        kind: Any = {int: "whole", int | None: "whole", Any: "rate"}.get(self.type, "number")
        return Number(
            least, math.inf if most is None else most, kind, self.type not in (int, float)
        )

    def is_stored(self, value: Any) -> bool:
        """Return whether config files and checkpoints contain the key with this value."""
        return self.stored == "always" or (self.stored == "changed" and value != self.default)


def setting(
    default: Any,
    text: str,
    minimum: float | None = None,
    maximum: float | None = None,
    **others: Any,
) -> Any:
    """Declare a dataclass field as a `Key`.

    Args:
        default: Default value.
        text: Line of help, with the unit.
        minimum: Smallest number.
        maximum: Largest number.
        **others: Other fields of `Key`; ``type`` replaces the annotation if it allows more values.

    Returns:
        A dataclass field.
    """
    return dataclasses.field(
        default=default, metadata=dict(text=text, minimum=minimum, maximum=maximum, **others)
    )


GRAPH = GraphOptions()


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluation of a run, ``eval.*``.

    Attributes:
        every: Environment steps between two evaluations; None for a tenth of the run, 0 for no
            evaluation.
        episodes: Episodes of each evaluation.
        `beside`: Whether a background process evaluates during training.
        device: Device of that process.
        picture: Whether an episode is drawn after each evaluation.
        share: Whether the host environments of training play the episodes, between chunks.
        sample: Whether actions are drawn from the policy's distribution.
    """

    every: int | None = setting(
        None, "env steps per evaluation, 0 none; 10 a run", 0, resume="free"
    )
    episodes: int = setting(32, "episodes in an evaluation", 1, MAX_SIZE, resume="free")
    beside: bool = setting(
        True, "in a background process, during training", resume="silent", aside=True
    )
    device: Literal["cpu", "same"] = setting(
        "cpu", "device of the background process:", resume="silent", aside=True
    )
    picture: bool = setting(
        False, "draw an episode after each, in a subprocess", resume="silent", aside=True
    )
    share: bool = setting(
        False, "in training's own host envs, between chunks", resume="free", aside=True
    )
    sample: bool = setting(
        False, "draw actions from the policy, not greedy ones", resume="free", aside=True
    )


@dataclasses.dataclass(frozen=True)
class StopOptions:
    """When a run ends before ``total_steps``, ``stop.*``. A field whose name Python reserves has a
    ``_`` at its end.

    Attributes:
        return_: Mean greedy return of an evaluation, over all seeds, at which the run ends; None
            for never.
    """

    return_: float | None = setting(
        None, "greedy return at which to stop", resume="free", stored="changed", aside=True
    )


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a run, ``checkpoint.*``.

    Attributes:
        every: Environment steps between two checkpoints; None for a tenth of the run.
        `keep`: Number of the newest checkpoints to retain in addition to the best; 0 for no
            checkpoints.
        replay: Whether the newest checkpoint contains the replay buffer.
    """

    every: int | None = setting(
        None, "env steps between checkpoints; a tenth of the run", 1, resume="free"
    )
    keep: int = setting(2, "newest ones to retain, plus the best; 0 makes none", 0, resume="free")
    replay: bool = setting(True, "save the replay buffer too, in the newest", resume="free")

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: A value is wrong.
        """
        check_fields(self, "checkpoint.")


@dataclasses.dataclass(frozen=True)
class DistributedSchema:
    """Keys ``distributed.*``: the arguments of `cluster.named_processes`. ``distributed`` is a key
    of `RunSchema`.
    """

    coordinator: str | None = setting(None, "host:port where process 0 listens", stored="never")
    num_processes: int | None = setting(None, "processes of the run", 1, stored="never")
    process_id: int | None = setting(None, "which of them this one is, from 0", 0, stored="never")


@dataclasses.dataclass(frozen=True)
class EnvSchema:
    """Keys ``env.*``. Each environment refuses those it does not support; others are given as
    ``+env.name=value``.
    """

    id: str | None = setting(
        None, "id within its suite, with env=brax, gymnax, gymnasium and the like"
    )
    backend: str | None = setting(None, "physics of brax, or with env=mjcf mjx or mujoco")
    file: str | None = setting(None, "robot.xml, with env=mjcf")
    make: str | None = setting(None, "my_package.make, with env=custom")
    num_agents: int | None = setting(
        None, "agents of a multi-agent env, if it can vary", 1, MAX_SIZE
    )
    episode_length: int | None = setting(
        None, "time limit in steps; the environment's", 1, MAX_SIZE
    )
    frame_stack: int | None = setting(None, "images in a frame stack; 4 with env=atari", 0, 255)
    frame_skip: int | None = setting(None, "frames of a game per action; 4", 1, MAX_SIZE)
    sticky: bool | None = setting(None, "repeat a game's last action now and then; true")
    life_loss: bool | None = setting(None, "end training episodes with each life; false")
    noop_max: int | None = setting(None, "most idle frames at a game's start; 30", 0, MAX_SIZE)
    clip_rewards: bool | None = setting(None, "use only the signs of a game's rewards; true")


@dataclasses.dataclass(frozen=True)
class AlgoSchema:
    """Keys ``algo.*`` of all algorithms; the others are the arguments of a factory (`algo_keys`)."""

    make: str | None = setting(None, "my_package.make, with algo=custom", resume="free", aside=True)


@dataclasses.dataclass(frozen=True)
class PoolSchema:
    """Keys ``pool.*``: stepping of host environments, as
    `jaxrl_fast.envs.pool.batches.PoolOptions`.
    """

    workers: int | None = setting(
        None, "worker processes, 0 none; measured", 0, 4096, resume="free"
    )
    num_groups: int | None = setting(
        None, "groups that take turns; 2, or 1 if envs or workers need it", 1, MAX_SIZE
    )
    order: Literal["fixed", "arrival"] = setting("fixed", "order of the environments:")
    step_timeout_s: float = setting(
        60.0, "seconds after which a silent worker is restarted", 0, resume="free"
    )
    backend: Literal["workers", "envpool"] = setting("workers", "implementation of the pool:")
    bridge: Literal["host", "callback", "worker"] = setting(
        "host", "called between programs, within, or by rollout:", resume="free"
    )
    out_of_space: Literal["stop", "count"] = setting(
        "stop", "outside of their space:", resume="free"
    )


@dataclasses.dataclass(frozen=True)
class ChoiceSchema:
    """Keys that select the defaults of all others."""

    env: str = setting("halfcheetah", "the environment")
    algo: str | None = setting(None, "the algorithm; depends on the environment")
    placement: str = setting("auto", "devices of each part of the run", resume="free")
    tuned: bool = setting(
        True, "start from the settings tuned for environment and algorithm", resume="silent"
    )


@dataclasses.dataclass(frozen=True)
class RunSchema:
    """Other keys without a section, as fields of `Run`."""

    total_steps: int = setting(
        1_000_000, "env steps over all environments, for each seed", 1, resume="free"
    )
    num_envs: int = setting(
        64, "parallel environments; auto: as measured here", 1, MAX_SIZE, type=int | Literal["auto"]
    )
    seed: int = setting(0, "the first random seed", 0, MAX_SEED)
    num_seeds: int = setting(1, "seeds trained at once in one program", 1, MAX_SIZE)
    overlap: Overlap = setting(GRAPH.overlap, "delayed edges:", type=Literal[Overlap, "auto"])
    learners: int = setting(GRAPH.learners, "learners that share the gradient updates", 1, MAX_SIZE)
    average: Average = setting(GRAPH.average, "averaged quantity:", aside=True)
    shards: int = setting(
        GRAPH.shards,
        "most shards of replay and batches",
        1,
        MAX_SIZE,
        stored="changed",
        aside=True,
    )
    devices: int | None = setting(
        None, "devices to use, or on a CPU to make", 1, 1024, resume="free"
    )
    precision: Precision = setting("f32", "precision of matrix products:")
    run_dir: str | None = setting(
        None, "folder of results; runs/<env>/<algo>/<time>-...", stored="never", path=True
    )
    name: str | None = setting(None, "a label for the run", resume="silent", aside=True)
    log: Log = setting(
        "tensorboard", "destination of scalars, besides tables:", resume="silent", aside=True
    )
    resume: str | None = setting(
        None, "a run's folder, to continue, or auto: run_dir", stored="never", path=True
    )
    data: str | None = setting(
        None,
        "recorded episodes to learn from (collect), or minari:<id>",
        stored="changed",
        aside=True,
        path=True,
    )
    online_steps: int = setting(
        0,
        "last of total_steps, in which env is stepped, with data",
        0,
        resume="free",
        stored="changed",
        aside=True,
    )
    teacher: str | None = setting(
        None, "a run whose policy teaches this one", stored="changed", aside=True, path=True
    )
    teacher_share: float = setting(
        0.5, "share of the run in which its weight falls to 0", 0, 1, stored="changed", aside=True
    )
    nan: OnNan = setting(GRAPH.nan, "action on NaN or Inf:", resume="free")
    debug: bool = setting(False, "find the operation that gave a NaN", resume="free", aside=True)
    distributed: Literal["auto", "off"] = setting(
        "auto", "join the processes of a cluster:", stored="never"
    )


SECTIONS = {
    "": RunSchema,
    "eval.": EvalOptions,
    "checkpoint.": Checkpoints,
    "distributed.": DistributedSchema,
}
SECTIONS |= {"env.": EnvSchema, "algo.": AlgoSchema, "pool.": PoolSchema, "stop.": StopOptions}


@cache
def run_keys() -> dict[str, Key]:
    """Return the keys that every run has.

    Returns:
        Keys by dotted name.
    """
    return {
        name: key
        for prefix, schema in SECTIONS.items()
        for name, key in keys_of(schema, prefix).items()
    }


@cache
def choice_keys() -> dict[str, Key]:
    """Return the keys that select the defaults of all others.

    Returns:
        Keys by name.
    """
    return keys_of(ChoiceSchema)


def resume_rule(name: str) -> Literal["fixed", "free", "silent"]:
    """Return whether a resumed run may change a setting.

    Args:
        name: Dotted name; options of environments and algorithms are fixed.

    Returns:
        As `Key.resume`.
    """
    key = {**choice_keys(), **run_keys()}.get(name)
    return "fixed" if key is None else key.resume


def argument_ranges() -> dict[str, Number]:
    """Return the ranges of the numeric arguments of `jaxrl_fast.learn`, as of the keys of the same
    names.

    Returns:
        Ranges by argument.
    """
    keys = {re.sub(r"^(eval|stop)\.", r"\1_", name): key for name, key in run_keys().items()}
    return {
        name: key.range()
        for name, key in keys.items()
        if key.range().kind == "whole" or name == "stop_return"
    }


def by_dotted_key(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flatten a tree of settings; the name of a group has the group's key (``env``, not
    ``env.name``).

    Args:
        tree: Nested dictionaries.

    Returns:
        Leaves by dotted key.
    """
    return {
        key.removesuffix(".name") if key[:-5] in GROUPS else key: v
        for key, v in flatten(tree).items()
    }


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries; an environment's option that is a dictionary is one leaf.

    Args:
        tree: Nested dictionaries.
        prefix: Prefix of the keys.

    Returns:
        Leaves by dotted key.
    """
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict) and prefix != "env.options.":
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_value(name: str, value: Any, key: Key) -> Any:
    """Convert a value to the type of its key: ``2e5`` is a whole number, ``"linear:3e-4:0"`` a
    schedule.

    Args:
        name: Dotted name, for the message.
        value: Value from a command line or file.
        key: Declaration.

    Returns:
        The converted value.

    Raises:
        ConfigError: The value has another type, or is out of range.
    """
    try:
        result = _convert(value, key.type)
    except (TypeError, ValueError, KeyError, OverflowError):
        wanted = A_TABLE if str(value).startswith(f"{FILE}:") else describe_type(key.type)
        raise ConfigError(f"{name}={written(value)}: write {wanted}") from None
    if key.path and result is not None:
        local_path(result, name)
    numbers = (
        result
        if isinstance(result, tuple) and not isinstance(result, Schedule)
        else numbers_of(result)
    )
    numbers = tuple(n for n in numbers if isinstance(n, int | float))
    if not key.range().holds(*numbers):
        raise ConfigError(f"{name}={written(value)}: {key.range().instead_of(*numbers)}")
    return result


def describe_type(hint: Any) -> str:
    """Describe a type in words, to follow "write" in a message.

    Args:
        hint: Type annotation.

    Returns:
        The description.
    """
    if hint is Any:
        return A_RATE
    if get_origin(hint) is Literal:
        return one_of(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join("null" if t is NoneType else describe_type(t) for t in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list such as {'[obs,map]' if get_args(hint)[0] is str else '[256,256]'}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[hint]


def describe_key(key: Key) -> str:
    """Describe the allowed values of a setting in a few words.

    Args:
        key: Declaration.

    Returns:
        Its type or choices, and its range; "" for a type of an environment's own.
    """
    try:
        text = {Any: "number or schedule"}.get(key.type) or describe_type(key.type)
    except (KeyError, TypeError):
        return ""
    least, most = key.range().least, key.range().most
    below = most < MAX_SIZE
    if least > -math.inf:
        text += f", {least:g} to {most:g}" if below else f", at least {least:g}"
    return re.sub(r"\ba ", "", text).removeprefix("one of ")


ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discount",
    "ent_coef": "entropy_coef",
    "device": "devices",
}
"""Names of other libraries, and ours."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Suggest names similar to a word.

    Args:
        word: Word without a match.
        allowed: Allowed names.

    Returns:
        ``"did you mean ...?"``, or all names if none is similar.
    """
    names = {k.lower(): k for k in allowed}
    *_, last = word.lower().split(".")
    last = ELSEWHERE.get(last, last)
    close = [k for low, k in names.items() if low.rpartition(".")[2] == last]
    similar = {low: difflib.SequenceMatcher(None, low, word.lower()).ratio() for low in names}
    best = max(similar.values(), default=0.0)
    least = max(0.65, best - 0.1)
    close = close or [
        names[low]
        for low in sorted(similar, key=similar.__getitem__)[::-1]
        if similar[low] >= least
    ]
    return (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"write one of {', '.join(names.values())}"
    )


def check_fields(options: Any, prefix: str = "") -> None:
    """Check and convert the fields of a frozen dataclass that were declared by `setting`.

    Args:
        options: The dataclass, which is changed.
        prefix: Before the names of its keys.

    Raises:
        ConfigError: A value is wrong.
    """
    for name, key in keys_of(type(options)).items():
        object.__setattr__(
            options, name, read_value(f"{prefix}{name}", getattr(options, name), key)
        )


def keys_of(schema: type, prefix: str = "") -> dict[str, Key]:
    """Return the keys that the fields of a dataclass declare.

    Args:
        schema: Dataclass, whose fields are made by `setting`.
        prefix: Before the names of the keys.

    Returns:
        Declarations by key.
    """
    hints, fields = get_type_hints(schema), dataclasses.fields(schema)
    keys = (
        (f.name, Key(**{"type": hints[f.name], "default": f.default, **f.metadata})) for f in fields
    )
    return {prefix + name.removesuffix("_"): key for name, key in keys}


def _convert(value: Any, wanted: Any) -> Any:
    """Convert ``value``; raise one of Python's errors if it is not of the type."""
    origin, args = get_origin(wanted), get_args(wanted)
    if wanted is object:
        return value
    if wanted is Any:
        return as_rate(value)
    if origin in (Union, UnionType):
        return _convert_to_one(value, args)
    if origin is Literal:
        return args[args.index("off" if value is False else value)]  # in YAML, off is false
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(value)
        return tuple(_convert(v, args[0]) for v in value)
    if wanted is NoneType and value is None:
        return None
    if wanted is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is int:
        return as_whole(value)
    if wanted is float:
        return as_number(value)
    raise TypeError(value)


def _convert_to_one(value: Any, kinds: tuple[Any, ...]) -> Any:
    """Convert the value to the first of several types that accepts it."""
    for kind in kinds:
        with suppress(TypeError, ValueError):
            return _convert(value, kind)
    raise TypeError(value)


def written(value: Any) -> str:
    """Format a value as on the command line.

    Args:
        value: Value of a setting.

    Returns:
        The text.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{written(v)}' for k, v in value.items())}}}"
    return str(value)


def command_line(argv: Sequence[str], command: str = "train") -> str:
    """Return the shell command for arguments.

    Args:
        argv: Arguments.
        command: Module of the command.

    Returns:
        The command, quoted for a shell.
    """
    return shlex.join(["python", "-m", f"jaxrl_fast.{command}", *argv])


def named_again(settings: Mapping[str, Any]) -> list[str]:
    """Return the words that a command needs in addition to a run's folder, since a folder's code is
    not executed.

    Args:
        settings: Content of ``config.yaml``.

    Returns:
        ``algo.make=...`` and such of a user's algorithm, network or memory, or nothing.
    """
    algo = settings["algo"] if isinstance(settings.get("algo"), dict) else {}
    return [f"algo.{name}={algo[name]}" for name in CODE if names_code(algo.get(name))]


def read_word(word: str) -> tuple[str, Any]:
    """Read an argument of the command line.

    Args:
        word: Argument ``key=value``.

    Returns:
        Key and value.

    Raises:
        ConfigError: It has no key, no value or several values, or is not of the grammar of `words`.
    """
    parts = parse_word(word)
    if parts.several is not None:
        raise ConfigError(f"{word}: several values start several runs: add --multirun")
    return parts.key, parts.value


PLAIN_TEXT = re.compile(r"[\w./:@%+~ -]+")


def parse_word(word: str) -> Word:
    """Parse an argument of the command line; it may be a sweep.

    Args:
        word: Argument ``key=value``.

    Returns:
        Its parts; an option of an environment's own, ``+env.x``, has the key ``env.options.x``.

    Raises:
        ConfigError: It has no key or no value, or is not of the grammar of `words`.
    """
    key, equals, value = word.partition("=")
    if word.startswith("~"):
        raise ConfigError(
            f"{word}: settings cannot be removed; tuned=false leaves the tuned ones out"
        )
    if not equals or not key.strip():
        raise ConfigError(
            f"cannot read '{word}': write key=value, for example env=halfcheetah (--help lists the keys)"
        )
    if not value.strip():
        raise ConfigError(f"{word} has no value: write it after the equals sign, without a space")
    # other letters than English ones need quotes only where they are not the whole value
    plain = not value.isascii() and PLAIN_TEXT.fullmatch(value)
    try:
        parts = parts_of(f"{key}='{value}'" if plain else word)
    except ValueError:
        called = re.match(r"\w+[ \t]*\(.*\)", value)
        instead = (
            ", and write the values of a sweep with commas, as in seed=1,2,3" if called else ""
        )
        raise ConfigError(
            f"cannot read '{word}': quote the value, as in \"{key}='...'\"{instead}"
        ) from None
    if parts.package is not None:
        raise ConfigError(f"cannot read '{word}': write key=value, without '@'")
    if parts.plus == "+" and parts.key.startswith("env.") and parts.key not in run_keys():
        return parts._replace(key=f"env.options.{parts.key.removeprefix('env.')}")
    return parts
