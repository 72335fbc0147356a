"""The settings of a run, and the objects made from them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from jaxrl_fast import envs
from jaxrl_fast.algorithms.defaults import FEWER, FOLLOWING, default_envs, of_environment
from jaxrl_fast.algorithms.registry import CUSTOM, declared_named, make_named, names_of_algorithms
from jaxrl_fast.commands.layers import (
    Layer,
    read_checkpoint,
    read_file,
    sources_of,
    tuned_settings,
)
from jaxrl_fast.core import Box, EnvSpec
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.errors import EnvFailed
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import AnyAlgorithm
from jaxrl_fast.plugins import REFUSED_SUITES, PluginFailed
from jaxrl_fast.runtime import cluster
from jaxrl_fast.runtime.placements import PLACEMENTS, worker_acting
from jaxrl_fast.settings import schema
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.run import Run, complete_pool, may_be_host
from jaxrl_fast.settings.schema import (
    ConfigError,
    Key,
    nearest,
    read_value,
    read_word,
    run_keys,
    written,
)
from jaxrl_fast.settings.signatures import OTHERS, REQUIRED, algo_keys, keys_of_fields, option_keys
from jaxrl_fast.system import import_function
from jaxrl_fast.training.callbacks import check_stop


def make_algorithm(run: Run) -> AnyAlgorithm:
    """Make a run's algorithm, not yet bound to an environment.

    Args:
        run: Settings of the run.

    Returns:
        The algorithm.

    Raises:
        ValueError: Options contradict each other.
    """
    return make_named(run.algo, **run.algo_options, precision=run.precision)


def with_defaults(run: Run, spec: EnvSpec) -> Run:
    """Fill in the settings that depend on the environment and were not set.

    Args:
        run: Settings of the run.
        spec: Its environment.

    Returns:
        The settings, with their origin.
    """
    defaults = {
        name: value
        for name, value in of_environment(run.algo, spec).items()
        if f"algo.{name}" not in run.sources
    }
    sources = run.sources | {f"algo.{name}": f"{CHOSEN}the environment" for name in defaults}
    return dataclasses.replace(run, algo_options=run.algo_options | defaults, sources=sources)


def chosen_later(run: Run) -> list[str]:
    """List the keys that `with_defaults` may fill in once the environment is made.

    Args:
        run: Settings of the run.

    Returns:
        The keys.
    """
    keys = [f"algo.{name}" for name in FOLLOWING.get(run.algo, ())]
    return [key for key in keys if key not in run.sources]


def with_bridge(run: Run) -> Run:
    """Set ``pool.bridge`` to the placement of a run.

    Args:
        run: Settings of the run.

    Returns:
        The settings, with ``worker`` for the placement `WORKER_ACTING`, and elsewhere only if it
        was written.
    """
    configured, written_by = run.pool["bridge"], run.sources.get("pool.bridge", FOLLOWS_PLACEMENT)
    follows = configured == "worker" and written_by == FOLLOWS_PLACEMENT
    bridge = "worker" if run.placement == WORKER_ACTING else "host" if follows else configured
    return dataclasses.replace(run, pool={**run.pool, "bridge": bridge})


def make_envs(run: Run) -> VecEnv | HostEnv:
    """Make a run's environments, to be closed at the end if they are on the host.

    Args:
        run: Settings of the run.

    Returns:
        The environments.

    Raises:
        ValueError: The environment refuses its id or an option.
    """
    pool = {
        name: value
        for name, value in run.pool.items()
        if value is not None and may_be_host(run.env)
    }
    return envs.make_vec(
        run.env, num_envs=run.num_envs, num_seeds=run.num_seeds, pool=pool, **run.env_options
    )


def make_evaluation_envs(run: Run) -> VecEnv | HostEnv:
    """Make one environment like the run's, from which evaluation environments are made.

    Args:
        run: Settings of the run.

    Returns:
        The environment.
    """
    return make_envs(alone(run))


def alone(run: Run) -> Run:
    """Reduce a run to one seed and one environment without workers.

    Args:
        run: Settings of the run.

    Returns:
        The settings.
    """
    pool = {**run.pool, "workers": 0, "num_groups": 1, "order": "fixed"}
    return dataclasses.replace(run, num_envs=1, num_seeds=1, pool=pool)


def env_name(run: Run) -> str:
    """Return the environment's short name, or its id in a suite, for the name of a file.

    Args:
        run: Settings of the run.

    Returns:
        The name, with dashes for slashes.
    """
    return str(run.env_options.get("id", run.env)).replace("/", "-")


WORKER_ACTING = worker_acting.__name__
FOLLOWS_PLACEMENT = "follows placement"
CONTINUOUS = "continuous actions"
FOLLOWS, CHOSEN = "follows num_envs and total_steps", "chosen for "
"""Origins of settings, other than files."""
OF_ENVIRONMENT = "environment's defaults"
FOLLOWS_STEPS, AUTOS = "follows total_steps", ("num_envs", "overlap")


def compose(argv: Sequence[str] = (), *, complete: bool = True) -> Run:
    """Parse the words of a command line to a run.

    Args:
        argv: Words, such as ``["env=cartpole", "algo=ppo", "seed=3"]``.
        complete: Whether arguments that a user's algorithm or a suite requires must be given.

    Returns:
        Settings of the run.

    Raises:
        ConfigError: Unknown key or name, or invalid value.
    """
    command = Layer("", dict(map(read_word, argv)))
    requeued = command.values.get("resume") == "auto"
    checkpoint = read_checkpoint(command)
    file = checkpoint or read_file(command.values.pop("config", None))
    written_in = sources_of((*schema.GROUPS, *AUTOS, "tuned"), command, file)
    auto_width, auto_overlap = (
        _take_auto(name, command, file) and checkpoint is None for name in AUTOS
    )
    tuned = command.values.pop("tuned", file.values.pop("tuned", True))
    tuned = read_value("tuned", tuned, schema.choice_keys()["tuned"])
    placed = command.values.get("placement", AUTO) != AUTO
    groups, file = _choose_groups(command, file)
    id = command.values.get("env.id", file.values.get("env.id"))
    actions = _actions_of(groups, id, {**file.values, **command.values})
    if actions is not None:
        groups["algo"] = "sac" if actions == CONTINUOUS else "ppo"
    defaults, tuned_values = _group_settings(groups, tuned, None if id is None else written(id))
    env, algo, placement = (defaults.values.pop(f"{group}.name") for group in schema.GROUPS)
    algo = _own_algorithm(algo, (command, file))
    keys = {**run_keys(), **algo_keys(algo)}
    values = {name: key.default for name, key in keys.items()}
    sources = {"algo": f"{CHOSEN}{actions}" if actions else defaults.source.removesuffix(": ")}
    unnamed = {
        name: value
        for name, value in schema.EARLIER.items()
        if checkpoint is not None and name in keys
    }
    for layer in (defaults, tuned_values, Layer("checkpoint: ", unnamed), file, command):
        values.update(_read_layer(layer, keys, f"algo={algo} env={env}"))
        sources.update(sources_of(layer.values, layer))
    sources.update(written_in)
    if algo in FEWER and not any(
        "num_envs" in layer.values for layer in (tuned_values, file, command)
    ):
        values["num_envs"] = default_envs(values["num_envs"], values["total_steps"])
        sources["num_envs"] += "" if auto_width else f", {FOLLOWS_STEPS}"
    _evaluate_between_chunks(values, sources, command)
    _check_env(env, values, complete=complete)
    _check_effects(env, command, values)
    _set_bridge(env, placement, values, sources, command, placed=placed)
    if "/" in (values["name"] or ""):
        raise ConfigError(
            f"name={values['name']}: it is part of a folder's name, so write it without a slash"
        )
    chosen = {
        "tuned_file": tuned_values.source.removeprefix("config/").removesuffix(": ") or None,
        "requeued": requeued,
        "auto_width": auto_width,
        "auto_overlap": auto_overlap,
        "sources": sources,
    }
    run = _make_run(env, algo, placement, values, chosen)
    check_stop(run.stop.return_, run.eval)
    if complete:
        _require_options(run)
    _name_followed(run, values)
    return run


def _evaluate_between_chunks(
    values: dict[str, Any], sources: dict[str, str], command: Layer
) -> None:
    """Turn off ``eval.beside`` for settings that need evaluations between chunks."""
    needing = [
        name
        for name in ("eval.share", "stop.return")
        if values[name] is not None and values[name] is not False
    ]
    if not needing:
        return
    setting = needing[-1]
    if "eval.beside" not in (command.values if setting in command.values else sources):
        values["eval.beside"], sources["eval.beside"] = False, f"follows {setting}"


def _set_bridge(
    env: str,
    placement: str,
    values: dict[str, Any],
    sources: dict[str, str],
    command: Layer,
    *,
    placed: bool,
) -> None:
    """Set ``pool.bridge`` to the placement; ``placed``: the command line has one."""
    named = "pool.bridge" in command.values
    if placement == WORKER_ACTING and may_be_host(env):
        if named and values["pool.bridge"] != "worker":
            raise ConfigError(
                f"pool.bridge={values['pool.bridge']}: placement={WORKER_ACTING} has "
                "pool.bridge=worker: leave one out"
            )
        values["pool.bridge"], sources["pool.bridge"] = "worker", FOLLOWS_PLACEMENT
    elif placed and not named and values["pool.bridge"] == "worker":
        # It is of a file, whose placement is replaced.
        values["pool.bridge"], sources["pool.bridge"] = "host", FOLLOWS_PLACEMENT


def _require_options(run: Run) -> None:
    """Check that a user's algorithm has all arguments that it requires."""
    needed = [f"algo.{name}" for name, value in run.algo_options.items() if value == REQUIRED]
    if needed:
        raise ConfigError(
            f"algo.make={run.algo} needs {needed[0]}: write a value, as in {needed[0]}=..."
        )


def _name_followed(run: Run, values: Mapping[str, Any]) -> None:
    """Add the origins of settings that follow others, since nothing set them."""
    follows = {f"algo.{n}": FOLLOWS for n, value in run.algo_options.items() if value is not None}
    follows["pool.num_groups"] = "follows num_envs"
    follows |= dict.fromkeys(("eval.every", "checkpoint.every"), FOLLOWS_STEPS)
    run.sources.update((name, text) for name, text in follows.items() if values[name] is None)


def env_needs(run: Run) -> str:
    """Describe the key that a run's suite needs and lacks.

    Args:
        run: Settings of the run.

    Returns:
        A line; "" for none.
    """
    suite = None if run.env in envs.SHORT_NAMES else envs.named_suite(run.env)
    needed = None if suite is None else suite.selected_by
    return needs_of(run.env, run.env_options.get(needed)) if needed is not None else ""


def env_keys(run: Run) -> dict[str, Key]:
    """Return the keys that a run's environment takes, with its defaults.

    Args:
        run: Settings of the run.

    Returns:
        Keys by name as on the command line, such as ``+env.factor``.

    Raises:
        ValueError: The environment's package or function cannot be imported.
    """
    declared_keys, custom = run_keys(), run.env == "custom"
    chosen: dict[str, Any] = {
        name: run.env_options[name] for name in ("id", "make", "file") if name in run.env_options
    }
    suite, options = (run.env, {}) if env_needs(run) else envs.resolve(run.env, chosen)
    if custom and not options:
        suite_keys = {"episode_length": declared_keys["env.episode_length"]}
    elif custom:
        function = import_function(options["make"], "env.make")
        suite_keys = {
            "episode_length": declared_keys["env.episode_length"],
            **option_keys(function),
        }
    else:
        suite_keys = keys_of_fields(envs.adapter_of(suite).Options)
    others = suite_keys.pop(OTHERS, None)
    stack = envs.named_suite(suite).frame_stack
    suite_keys["frame_stack"] = declared_keys["env.frame_stack"]._replace(default=stack)
    suite_keys |= {} if others is None else {OTHERS: others}
    keys = {}
    for name, key in suite_keys.items():
        default, declared = options.get(name, key.default), declared_keys.get(f"env.{name}")
        keys[f"{'' if declared else '+'}env.{name}"] = (declared or key)._replace(default=default)
    return keys


def options_of(group: str) -> list[str]:
    """List the names of a group.

    Args:
        group: ``algo``, ``placement`` or ``env``.

    Returns:
        Names.
    """
    if group == "placement":
        return [AUTO, *PLACEMENTS]
    if group == "algo":
        return [*names_of_algorithms(), CUSTOM]
    return sorted([*envs.SHORT_NAMES, *envs.names_of_suites()])


def _take_auto(key: str, command: Layer, file: Layer) -> bool:
    """Remove ``auto`` as the value of a key from the layers, and return whether it is the effective
    value.

    The remaining value is the start of the selection, for ``num_envs`` the number that determines
    the samples per update.
    """
    value = command.values.get(key, file.values.get(key))
    for layer in (command, file):
        if layer.values.get(key) == AUTO:
            del layer.values[key]
    return bool(value == AUTO)


def _choose_groups(command: Layer, file: Layer) -> tuple[dict[str, str], Layer]:
    """Return the names of the groups, and the file's settings without the settings of a replaced
    group.
    """
    groups, values = {}, dict(file.values)
    for group in schema.GROUPS:
        chosen = [layer.pop(group) for layer in (values, command.values) if group in layer]
        names = [_known_option(group, written(value)) for value in chosen]
        if len(set(names)) > 1:
            values = {
                key: value for key, value in values.items() if not key.startswith(f"{group}.")
            }
        if names:
            groups[group] = names[-1]
    return groups, Layer(file.source, values)


def _exists(group: str, name: str) -> bool:
    """Return whether a group has a name; packages of others are asked only where ours lack it."""
    if group == "env":
        return name in envs.SHORT_NAMES or envs.suite_of(name) is not None
    if group == "algo":
        return name == CUSTOM or declared_named(name) is not None
    return name in options_of(group)


def _known_option(group: str, name: str) -> str:
    if group == "env" and name in REFUSED_SUITES:
        envs.resolve(name, {})
    if not _exists(group, name):
        ids = f"env=gymnasium env.id={name}, env=gymnax env.id=... or env=brax env.id=..."
        more = f"; any other id is {ids}" if group == "env" else ""
        raise ConfigError(f"{group}={name} is unknown: {nearest(name, options_of(group))}{more}")
    return name


def _group_settings(groups: Mapping[str, str], tuned: bool, id: str | None) -> tuple[Layer, Layer]:
    """Return the settings of the groups, and of the tuned file if one applies. ``id`` is within a
    suite.
    """
    env = groups.get("env", schema.choice_keys()["env"].default)
    short = envs.SHORT_NAMES.get(env)
    suite = envs.named_suite(env if short is None else short.suite)
    row = suite.defaults if short is None else short.defaults
    algo = groups.get("algo", row.algo if id is None else suite.algo_of_id.get(id, row.algo))
    names = {
        "env.name": env,
        "algo.name": algo,
        "placement.name": groups.get("placement", schema.choice_keys()["placement"].default),
    }
    sizes: dict[str, Any] = {"num_envs": row.num_envs, "total_steps": row.total_steps}
    sizes |= {"pool.out_of_space": "count"} if id in suite.leaves_its_space else {}
    defaults = Layer(f"{OF_ENVIRONMENT}: ", {**sizes, **names})
    return defaults, tuned_settings(env, id, algo) if tuned else Layer("", {})


def _actions_of(groups: Mapping[str, str], id: Any, values: Mapping[str, Any]) -> str | None:
    """Return the kind of actions of an environment of Gymnasium if it determines the algorithm,
    else None.

    Other suites have default algorithms that support all kinds of actions.
    """
    env = groups.get("env")
    if (
        env != "gymnasium"
        or id is None
        or "algo" in groups
        or written(id) in envs.named_suite(env).algo_of_id
    ):
        return None
    prefix = "env.options."
    options = {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
    try:
        space = import_module("jaxrl_fast.envs.from_gymnasium").look(written(id), **options)
    except (ValueError, EnvFailed):  # the run reports it when it makes its environments
        return None
    return CONTINUOUS if isinstance(space, Box) else "discrete actions"


def _read_layer(layer: Layer, keys: Mapping[str, Key], of_what: str) -> dict[str, Any]:
    """Convert the layer's values to their types. The environment checks ``env.options`` itself."""
    typed = {}
    for name, value in layer.values.items():
        if name.startswith("env.options."):
            typed[name] = value
            continue
        if name not in keys:
            raise ConfigError(
                f"{layer.source}unknown key '{name}' for {of_what}: {_nearest_key(name, keys)}"
            )
        try:
            typed[name] = read_value(name, value, keys[name])
        except ConfigError as error:
            raise ConfigError(f"{layer.source}{error}") from None
    return typed


def _has_key(algo: str, name: str) -> bool:
    """Return whether an algorithm has a key; a package that cannot be loaded has none."""
    with suppress(PluginFailed):
        return name in algo_keys(algo)
    return False


def _nearest_key(name: str, keys: Mapping[str, Key]) -> str:
    if name.removesuffix(".name") in schema.GROUPS:
        return f"did you mean {name.removesuffix('.name')}?"
    section = [key for key in keys if key.split(".")[0] == name.split(".")[0]]
    owners = [f"algo={algo}" for algo in names_of_algorithms() if _has_key(algo, name)]
    if owners:
        return f"it belongs to {' or '.join(owners)}"
    hint = nearest(name, keys)
    if hint.startswith("write one of"):
        hint = f"write one of {', '.join(section)}" if section else "--help lists the keys"
    return (
        f"{hint} (write +{name}=... for an option of the environment)"
        if name.startswith("env.")
        else hint
    )


def _own_algorithm(algo: str, layers: Iterable[Layer]) -> str:
    """Return the path of a user's factory if the algorithm is ``custom``, else its name."""
    paths = [
        layer.values["algo.make"] for layer in layers if layer.values.get("algo.make") is not None
    ]
    make = read_value("algo.make", paths[0], run_keys()["algo.make"]) if paths else None
    if algo == CUSTOM and make is None:
        raise ConfigError(
            "algo=custom needs algo.make: write for example algo=custom algo.make=my_package.make"
        )
    if algo != CUSTOM and make is not None:
        raise ConfigError(
            f"algo.make={make} has no effect with algo={algo}: write it with algo=custom"
        )
    return algo if make is None else make.replace(":", ".")


def _check_env(env: str, values: Mapping[str, Any], *, complete: bool) -> None:
    """Refuse a suite without its required key, and such a key without a suite."""
    suite = None if env in envs.SHORT_NAMES else envs.named_suite(env)
    needed = None if suite is None else suite.selected_by
    for key in ("id", "make", "file"):
        if key != needed and values[f"env.{key}"] is not None:
            takers = " or ".join(
                f"env={name}" for name, record in envs.SUITES.items() if record.selected_by == key
            )
            raise ConfigError(
                f"env.{key}={values[f'env.{key}']} has no effect with env={env}: write it with {takers}"
            )
    missing = needs_of(env, values[f"env.{needed}"]) if needed is not None else ""
    if missing and complete:
        raise ConfigError(missing)


def needs_of(env: str, value: Any) -> str:
    """Describe the key that a suite needs.

    Args:
        env: Name of the environment.
        value: Value of this key.

    Returns:
        A line; "" if it has a value, or there is no such key.
    """
    suite = None if env in envs.SHORT_NAMES else envs.named_suite(env)
    if suite is None or value is not None:
        return ""
    needed = suite.selected_by
    return f"env={env} needs env.{needed}: write for example env={env} env.{needed}={suite.example}"


def _check_effects(env: str, command: Layer, values: Mapping[str, Any]) -> None:
    """Refuse words of a command that would change nothing."""
    unused = [name for name in command.values if name.startswith("pool.") and not may_be_host(env)]
    if unused:
        raise ConfigError(
            f"{unused[0]} has no effect with env={env}, which is compiled: write env=gymnasium or atari"
        )
    if "algo.memory" in command.values and values.get("algo.recurrent_size") == 0:
        raise ConfigError(
            f"algo.memory={values['algo.memory']} needs a size: add algo.recurrent_size=64"
        )


RESERVED = {
    "num_envs": "the number of environments, num_envs=",
    "num_seeds": "the number of seeds, num_seeds=",
    "pool": "the section pool.*",
}
"""Arguments of `envs.make_vec`, which a function that makes environments may have, too."""


def _make_run(
    env: str, algo: str, placement: str, values: dict[str, Any], others: dict[str, Any]
) -> Run:
    def section(prefix: str) -> dict[str, Any]:
        return {
            key.removeprefix(prefix): value
            for key, value in values.items()
            if key.startswith(prefix)
        }

    options = section("env.options.")
    if reserved := sorted(options.keys() & RESERVED.keys()):
        raise ConfigError(
            f"+env.{reserved[0]}: an option of an environment cannot have this name, which is {RESERVED[reserved[0]]}: "
            "rename the argument"
        )
    algo_options = section("algo.")
    algo_options.pop("make")
    if REQUIRED not in algo_options.values():
        sizes = make_named(algo, **algo_options).sizes(values["num_envs"], values["total_steps"])
        algo_options |= {name: size for name, size in sizes.items() if name in algo_options}
    env_options = {
        k: v for k, v in section("env.").items() if v is not None and not k.startswith("options.")
    }
    named = cluster.named_processes(**section("distributed."))
    if named is not None and values["distributed"] == "off":
        raise ConfigError(
            "distributed=off means a single process: leave it out, or the other distributed.* keys"
        )
    tenth, every = max(1, values["total_steps"] // 10), values["eval.every"]
    return Run(
        **{key: value for key, value in values.items() if "." not in key},
        **others,
        env=env,
        env_options={**env_options, **options},
        algo=algo,
        algo_options=algo_options,
        placement=placement,
        eval=schema.EvalOptions(**section("eval.") | {"every": tenth if every is None else every}),
        checkpoint=schema.Checkpoints(
            **section("checkpoint.") | {"every": values["checkpoint.every"] or tenth}
        ),
        stop=schema.StopOptions(values["stop.return"]),
        pool=complete_pool(section("pool."), values["num_envs"], values["num_seeds"]),
        processes=named,
    )
