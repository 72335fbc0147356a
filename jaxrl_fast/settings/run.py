"""The one value of a run: all its settings, and the files that are written from it.

The command composes it from words and files, `jaxrl_fast.learn` from its arguments (`of_program`).
"""

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import jax
import yaml

from jaxrl_fast import envs
from jaxrl_fast.algorithms.registry import CUSTOM, declared_named
from jaxrl_fast.contents import digests_of_sources
from jaxrl_fast.core import EnvSpec, MadeEnv, made_by
from jaxrl_fast.fields import replaced_functions, types_of
from jaxrl_fast.learning.algorithm import AnyAlgorithm, DeclaredAlgorithm, declaration_of
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.numerics.optimizers import is_function, plain
from jaxrl_fast.runtime.cluster import Processes
from jaxrl_fast.runtime.placements import Make
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings import schema
from jaxrl_fast.settings.schema import run_keys
from jaxrl_fast.system import CODE

FIRST = ("overlap", "learners", "average")
"""Keys without a section that precede all others in ``config.yaml``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(schema.RunSchema):
    """All settings of a run: keys without a section, sections, and the origin of the settings.

    Attributes:
        env: Name of the environment, for ``envs.make``.
        env_options: Options of the environment.
        algo: Name of the algorithm, or the path of a user's factory.
        algo_options: Arguments of the algorithm's factory.
        placement: Name of the placement; in a program also a function that makes one.
        eval: Options of evaluation.
        checkpoint: Options of checkpoints.
        stop: When the run ends before ``total_steps``.
        pool: Options of the pool of worker processes.
        tuned_file: File of tuned settings that was applied, relative to the config folder, or None.
        requeued: Whether the folder may contain an earlier start of the same run.
        processes: Processes named on the command line, or None.
        auto_width: Whether to replace ``num_envs`` by the fastest number here with as many samples
            per update.
        auto_overlap: Whether to replace ``overlap`` by the fastest value here.
        sources: Origin of each setting that is not a default, by key.
    """

    env: str
    env_options: dict[str, Any]
    algo: str
    algo_options: dict[str, Any]
    placement: str | Make
    eval: schema.EvalOptions
    checkpoint: schema.Checkpoints
    pool: dict[str, Any]
    stop: schema.StopOptions
    tuned_file: str | None = None
    requeued: bool = False
    processes: Processes | None = None
    auto_width: bool = False
    auto_overlap: bool = False
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def placement_name(self) -> str:
        """Name of the placement."""
        name = getattr(self.placement, "__name__", "own")
        return self.placement if isinstance(self.placement, str) else name


def make_graph_options(run: Run) -> GraphOptions:
    """Return the options of a run's graph, on the devices that JAX has started.

    Args:
        run: Settings of the run.

    Returns:
        The options.
    """
    return GraphOptions(
        overlap=run.overlap,
        learners=run.learners,
        average=run.average,
        total_steps=run.total_steps,
        nan=run.nan,
        shards=run.shards,
        joined=starts_kernels_singly(jax.default_backend()),
    )


def may_be_host(env: str) -> bool:
    """Check whether ``pool.*`` may have an effect: the environments are on the host, or a user's.

    Args:
        env: Name of the environment.

    Returns:
        True for suites on the host, of a file, and ``custom``.
    """
    if env in envs.SHORT_NAMES:
        return False
    suite = envs.suite_of(env)
    return suite is not None and (suite.is_host or suite.selected_by != "id")


class _Dumper(yaml.SafeDumper):
    """Writes texts that some reader takes for a number, such as ``1e5`` or ``nan``, in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value twice that occurs twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None
    with suppress(ValueError):
        float(text)
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(run: Run) -> str:
    """Format a run as a file for ``config=<file>``.

    It omits the folder of results, and the processes, since one process with as many devices
    computes the same.

    Args:
        run: Settings of the run.

    Returns:
        YAML.
    """
    return yaml.dump(_to_tree(run), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flat_settings(run: Run) -> dict[str, Any]:
    """Return a run's settings by dotted key, as a checkpoint stores them.

    Args:
        run: Settings of the run.

    Returns:
        Values by key.
    """
    return schema.by_dotted_key(_to_tree(run))


MADE = "made."
CONTENTS = f"{MADE}contents"
"""Setting with digests of files (`jaxrl_fast.contents`)."""
"""Prefix of the settings of a checkpoint that describe what was made, and are no keys."""
REPEATABLE = "repeatable"
"""Setting of a checkpoint: False if no command can repeat the run."""


def stored_settings(run: Run, env: "Environments", algorithm: AnyAlgorithm) -> dict[str, Any]:
    """Return the settings that a checkpoint stores.

    Args:
        run: Settings of the run.
        env: Its environment.
        algorithm: Its algorithm.

    Returns:
        The run's settings by dotted key, without functions that have no path, and the names of the
        environment and the algorithm that were made.
    """
    settings = {key: value for key, value in flat_settings(run).items() if _is_plain(value)}
    if has_arrays(run):
        settings["data"] = str(run.data)
    code = {"algo.make": run.algo, **run.algo_options, **run.env_options}
    contents = {**env.spec.contents, **digests_of_sources(code)}
    return settings | {
        f"{MADE}env": env.spec.name,
        f"{MADE}arguments": env.spec.arguments,
        f"{MADE}algo": algorithm.name,
        **({CONTENTS: contents} if contents else {}),
    }


def has_arrays(run: Run) -> bool:
    """Return whether a program gave the recorded steps of a run as arrays, which no file names.

    Args:
        run: Settings of the run.

    Returns:
        True for a `jaxrl_fast.Dataset`, False for its place and without data.
    """
    return not isinstance(run.data, str | None)


def _is_plain(value: Any) -> bool:
    """Return whether JSON can store a value."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _to_tree(run: Run) -> dict[str, Any]:
    declared = {key: value for key, value in run.env_options.items() if f"env.{key}" in run_keys()}
    options = {key: value for key, value in run.env_options.items() if key not in declared}
    keys, alone = run_keys(), {name: getattr(run, name) for name in ("placement", *FIRST)}
    for name in sorted(keys, key=lambda name: keys[name].stored == "changed"):
        if "." not in name and keys[name].is_stored(getattr(run, name)):
            alone[name] = getattr(run, name)
    return {
        "env": {"name": run.env, **declared, **({"options": options} if options else {})},
        "algo": {
            **algo_words(run),
            **{key: plain(value) for key, value in run.algo_options.items()},
        },
        "eval": dataclasses.asdict(run.eval),
        "checkpoint": dataclasses.asdict(run.checkpoint),
        **({"stop": {"return": run.stop.return_}} if run.stop.return_ is not None else {}),
        **({"pool": run.pool} if may_be_host(run.env) else {}),
        "tuned": run.tuned_file is not None,
        **alone,
    }


def algo_words(run: Run) -> dict[str, str]:
    """Return the keys that select a run's algorithm.

    Args:
        run: Settings of the run.

    Returns:
        ``name``, and ``make`` of a user's, without ``algo.``.
    """
    named = declared_named(run.algo) is not None
    return {"name": run.algo} if named else {"name": CUSTOM, "make": run.algo}


class Environments(Protocol):
    """The attributes of a `VecEnv` or `HostEnv` that name it in a file."""

    @property
    def num_envs(self) -> int:
        """Number of environments."""

    @property
    def spec(self) -> EnvSpec:
        """Description of one of them."""

    @property
    def made(self) -> MadeEnv | None:
        """How `jaxrl_fast.make_env` made them; None if another function did."""


def of_program(
    env: Environments,
    algorithm: AnyAlgorithm,
    *,
    placement: str | Make,
    eval: schema.EvalOptions,
    checkpoint: schema.Checkpoints,
    **settings: Any,
) -> Run:
    """Return the run of a program's arguments.

    Args:
        env: Environment.
        algorithm: Algorithm.
        placement: Name of the placement, or a function that makes one.
        eval: Options of evaluation.
        checkpoint: Options of checkpoints.
        **settings: Settings without a section, as fields of `Run`.

    Returns:
        The run. It has the words for environment and algorithm that a command needs, as far as
        there are any (`repeated_by`).
    """
    made, declared = made_by(env), declaration_of(algorithm)
    env_words = _words(made.options) if made is not None else {}
    pool_words, num_seeds = env_words.pop("pool", {}), env_words.pop("num_seeds", 1)
    algo_words = _settings_of(algorithm if declared is None else declared)
    precision = algo_words.pop("precision", "f32")
    name = made.name if made is not None else env.spec.name
    num_envs = made.num_envs if made is not None else env.num_envs
    return Run(
        env=name,
        env_options=env_words,
        num_envs=num_envs,
        algo=algorithm.name if declared is None else _name_of(declared),
        algo_options=algo_words | algorithm.sizes(env.num_envs),
        placement=placement,
        precision=precision,
        eval=eval,
        checkpoint=checkpoint,
        pool=complete_pool(pool_words, num_envs, num_seeds) if may_be_host(name) else {},
        stop=schema.StopOptions(),
        **settings,
    )


def complete_pool(overrides: Mapping[str, Any], num_envs: int, num_seeds: int) -> dict[str, Any]:
    """Return the options of a pool with their defaults.

    Args:
        overrides: Options by name.
        num_envs: Number of environments per seed.
        num_seeds: Number of seeds.

    Returns:
        All options.
    """
    from jaxrl_fast.envs.pool.batches import default_groups  # a compiled run has no pool

    options = dataclasses.asdict(schema.PoolSchema()) | dict(overrides)
    if options["num_groups"] is None:
        options["num_groups"] = default_groups(
            num_envs, num_seeds, options["workers"], options["order"]
        )
    return options


NAMELESS = "<locals>", "<lambda>", "__main__.", "function from "
"""Parts of the paths of functions that another process cannot import, and of schedules from Python.
"""


def repeated_by(env: Environments, algorithm: AnyAlgorithm, run: Run) -> str:
    """Write the file with which the command repeats a program's run.

    Args:
        env: Environment.
        algorithm: Algorithm.
        run: Settings of the run (`of_program`).

    Returns:
        YAML; empty if `jaxrl_fast.make_env` did not make the environment, the algorithm is not a
        declared one, or a part has no name.
    """
    declared = declaration_of(algorithm)
    if (
        made_by(env) is None
        or declared is None
        or replaced_functions(declared)
        or not isinstance(run.placement, str)
        or has_arrays(run)
    ):
        return ""
    try:
        text = to_yaml(run)
    except yaml.YAMLError:
        return ""
    return "" if any(part in text for part in NAMELESS) else text


def _name_of(declared: DeclaredAlgorithm) -> str:
    cls = type(declared)
    named = declared_named(declared.name) is cls
    return declared.name if named else f"{cls.__module__}.{cls.__qualname__}"


def _settings_of(algorithm: AnyAlgorithm) -> dict[str, Any]:
    """Return the settings of an algorithm, without functions such as losses."""
    if not isinstance(algorithm, DeclaredAlgorithm):
        options = {**algorithm.options, **algorithm.hyper._asdict()}
        return {name: plain(value) for name, value in options.items()}
    hints = types_of(type(algorithm))
    return {n: plain(getattr(algorithm, n)) for n, hint in hints.items() if not is_function(hint)}


def _words(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments for a file, except functions that it cannot name."""
    return {
        name: value if callable(value) and not _has_path(name, value) else plain(value)
        for name, value in arguments.items()
    }


def _has_path(name: str, function: Any) -> bool:
    return name in CODE and (isinstance(function, str) or hasattr(function, "__qualname__"))
