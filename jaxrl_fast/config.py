"""From a command line to a `Run`: every setting known, checked and typed. Config ends here.

Hydra reads the grammar and composes the groups ``env``, ``algo``, ``placement`` and the tuned file of the two; what
stands later wins: schema < tuned < ``config=<file>`` < command line. Nothing else of Hydra is used: no working
directory changes, no ``outputs/`` folder, and errors are one line of our own.
"""

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hydra import compose as compose_groups
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import envs
from jaxrl_fast import processes
from jaxrl_fast.algorithm import Algorithm
from jaxrl_fast.algorithms import ALGORITHMS
from jaxrl_fast.checkpoint_files import read_description
from jaxrl_fast.checkpointing import Checkpoints, find, newest_good
from jaxrl_fast.env import Env, VecEnv
from jaxrl_fast.fragments import Overlap
from jaxrl_fast.host_env import HostEnv
from jaxrl_fast.learners import Average, OnNan
from jaxrl_fast.machine import AUTO
from jaxrl_fast.placement import PLACEMENTS
from jaxrl_fast.processes import Processes
from jaxrl_fast.schedules import plain
from jaxrl_fast.schema import ConfigError, Key, algo_keys, nearest, read_value, run_keys, written

CONFIG_DIR = Path(__file__).parent / "config"
GROUPS = ("env", "algo", "placement")
NEEDS = {
    "brax": ("id", "ant"),
    "gymnax": ("id", "CartPole-v1"),
    "gymnasium": ("id", "HalfCheetah-v5"),
    "atari": ("id", "Pong"),
    "probe": ("id", "value"),
    "custom": ("make", "my_package.make"),
}
"""Environments that are a family, what they need to be told, and an example of it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything a run was told. ``env`` and ``env_options`` go to ``envs.make``, ``algo_options`` to the factory.

    ``eval_every`` and ``total_steps`` are environment steps over all environments, for each seed; ``tuned_file`` is the
    file of tuned settings that applied, relative to the config folder. ``resume`` is the checkpoint to go on from;
    ``requeued``: the folder may hold an earlier start of the same run. ``processes`` are those that were named, and
    ``distributed`` says whether to look for those of a cluster. ``auto_width``: ``num_envs`` is to be replaced by what
    is fastest here, with the samples per update that it stands for.
    """

    env: str
    env_options: dict[str, Any]
    algo: str
    algo_options: dict[str, Any]
    placement: str
    overlap: Overlap
    total_steps: int
    num_envs: int
    seed: int
    num_seeds: int
    devices: int | None
    precision: str
    eval_every: int
    eval_episodes: int
    run_dir: str | None = None
    name: str | None = None
    tuned_file: str | None = None
    checkpoints: Checkpoints = Checkpoints()
    pool: dict[str, Any] = dataclasses.field(default_factory=dict)
    learners: int = 1
    average: Average = "gradients"
    resume: str | None = None
    requeued: bool = False
    nan: OnNan = "stop"
    debug: bool = False
    distributed: Literal["auto", "off"] = "auto"
    processes: Processes | None = None
    auto_width: bool = False


class Layer(NamedTuple):
    """Settings from one source, by dotted key; ``source`` introduces its errors."""

    source: str
    values: dict[str, Any]


def compose(argv: Sequence[str] = ()) -> Run:
    """The run that the words of a command line ask for, such as ``["env=cartpole", "algo=ppo", "seed=3"]``.

    Raises:
        ConfigError: one line that names what was wrong and what to write instead.
    """
    told = Layer("", {})
    for word in argv:
        key, value = read_word(word)
        told.values[key] = value
    requeued = told.values.get("resume") == "auto"
    checkpoint = _read_checkpoint(told)
    file = checkpoint or _read_file(told.values.pop("config", None))
    auto_width = _take_auto_width(told, file) and checkpoint is None
    tuned = _take_tuned(told, file)
    groups, file = _choose_groups(told, file)
    defaults, tuned_file = _compose_groups(groups, tuned)
    env, algo, placement = (defaults.values.pop(f"{group}.name") for group in GROUPS)
    keys = {**run_keys(), **algo_keys(algo)}
    values = {name: key.default for name, key in keys.items()}
    for layer in (defaults, file, told):
        values.update(_read_layer(layer, keys, f"algo={algo} env={env}"))
    _check_env(env, values)
    _check_pool(env, told)
    if "/" in (values["name"] or ""):
        raise ConfigError(f"name={values['name']}: it is part of a folder's name, so write it without a slash")
    run = _make_run(env, algo, placement, values, tuned_file)
    return dataclasses.replace(run, requeued=requeued, auto_width=auto_width)


def make_algorithm(run: Run) -> Algorithm:
    """The run's algorithm, before it meets an environment.

    Raises:
        ValueError: options that do not fit together.
    """
    return ALGORITHMS[run.algo](**run.algo_options, precision=run.precision)


def make_world(run: Run) -> Env:
    """The run's environment: one world, without a batch axis.

    Raises:
        ValueError: the environment refuses its id or an option.
    """
    return envs.make(run.env, **run.env_options)


def make_envs(run: Run) -> VecEnv | HostEnv:
    """The run's environments side by side; those on the host are to be closed.

    Raises:
        ValueError: the environment refuses its id or an option.
    """
    pool = {name: value for name, value in run.pool.items() if value is not None and may_be_host(run.env)}
    return envs.make_vec(run.env, num_envs=run.num_envs, num_seeds=run.num_seeds, pool=pool, **run.env_options)


def pool_defaults() -> dict[str, Any]:
    """``pool.*`` where nothing is told."""
    return {name.removeprefix("pool."): key.default for name, key in run_keys().items() if name.startswith("pool.")}


def may_be_host(env: str) -> bool:
    """Whether ``pool.*`` may mean something: the environments are on the host, or a user's own."""
    return envs.is_host(env) or env == "custom"


def env_name(run: Run) -> str:
    """The environment's short name, or its id in a family of them, as part of a file's name."""
    return str(run.env_options.get("id", run.env)).replace("/", "-")


def to_yaml(run: Run) -> str:
    """The run as a file that ``config=<file>`` repeats. Where its results went is no part of it, nor which processes
    shared the work: a single one with as many devices computes the same."""
    return OmegaConf.to_yaml(OmegaConf.create(_to_tree(run)))


def flat_settings(run: Run) -> dict[str, Any]:
    """The same by dotted key, as a checkpoint keeps it."""
    return _flat_settings(_to_tree(run))


def command_line(argv: Sequence[str], command: str = "train") -> str:
    """The line to type in a shell for these words."""
    return shlex.join(["python", "-m", f"jaxrl_fast.{command}", *argv])


def options_of(group: str) -> list[str]:
    """The names to choose from in a group."""
    if group == "algo":
        return list(ALGORITHMS)
    if group == "placement":
        return [AUTO, *PLACEMENTS]
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


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


def _read_checkpoint(told: Layer) -> Layer | None:
    """The settings of the checkpoint that ``resume`` means, which takes its place in ``told``; None if there is none.

    A run goes on in its own folder, unless another is named or an earlier checkpoint than its newest is asked for.
    """
    keys = run_keys()
    resume, run_dir = (read_value(name, told.values.get(name), keys[name]) for name in ("resume", "run_dir"))
    if resume is None:
        return None
    if "config" in told.values:
        raise ConfigError("resume brings the run's own settings: leave config out")
    if resume == "auto" and run_dir is None:
        raise ConfigError("resume=auto needs to know where: write run_dir=<folder> with it")
    if resume == "auto":
        path = newest_good(Path(run_dir), lambda line: print(line, file=sys.stderr))
    else:
        path = find(Path(resume))
    told.values["resume"] = None if path is None else str(path)
    if path is None:
        return None
    if run_dir is None and path.parent.parent.resolve() == Path(resume).resolve():
        told.values["run_dir"] = str(path.parent.parent)
    known = read_description(path).settings
    if "eval.every" not in known:
        raise ConfigError(f"{path} was written by jf.learn: resume it with jf.learn(resume=...)")
    return Layer(f"{path}: ", dict(known))


def _read_file(path: Any) -> Layer:
    """The settings of a config file; of the groups it may say the name only, or a section with ``name``."""
    if path is None:
        return Layer("", {})
    try:
        tree = OmegaConf.to_container(OmegaConf.load(str(path)))
    except OSError as error:
        if error.strerror is None:  # OmegaConf's own: a number, or a text of a kind
            raise ConfigError(f"config={path}: write keys and values, such as seed: 3") from None
        raise ConfigError(f"config={path}: {error.strerror}; write the path of a config.yaml") from None
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"config={path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"config={path}: write keys and values, such as seed: 3")
    if "resume" in tree:
        raise ConfigError(f"{path}: resume stands on the command line: write it there")
    return Layer(f"{path}: ", _flat_settings(tree))


def _to_tree(run: Run) -> dict[str, Any]:
    told = {key: value for key, value in run.env_options.items() if f"env.{key}" in run_keys()}
    options = {key: value for key, value in run.env_options.items() if key not in told}
    alone = (
        "placement", "overlap", "learners", "average", "total_steps", "num_envs", "seed", "num_seeds", "devices",
        "precision", "name", "nan",
        "debug",
    )  # fmt: skip
    return {
        "env": {"name": run.env, **told, **({"options": options} if options else {})},
        "algo": {"name": run.algo, **{key: plain(value) for key, value in run.algo_options.items()}},
        "eval": {"every": run.eval_every, "episodes": run.eval_episodes},
        "checkpoint": run.checkpoints._asdict(),
        **({"pool": run.pool} if may_be_host(run.env) else {}),
        "tuned": run.tuned_file is not None,
        **{key: getattr(run, key) for key in alone},
    }


def _flat_settings(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """By dotted key; of a group, its own key is its name."""
    return {key.removesuffix(".name") if key[:-5] in GROUPS else key: v for key, v in _flatten(tree).items()}


def _take_tuned(told: Layer, file: Layer) -> bool:
    asked = file.values.pop("tuned", True)
    return bool(read_value("tuned", told.values.pop("tuned", asked), Key(bool, True)))


def _take_auto_width(told: Layer, file: Layer) -> bool:
    """Whether ``num_envs=auto`` was asked for last; what stands before it says for which samples per update."""
    asked = told.values.get("num_envs", file.values.get("num_envs"))
    for layer in (told, file):
        if layer.values.get("num_envs") == AUTO:
            del layer.values["num_envs"]
    return bool(asked == AUTO)


def _choose_groups(told: Layer, file: Layer) -> tuple[dict[str, str], Layer]:
    """The groups asked for, and what the file says of those that are still its own."""
    groups, values = {}, dict(file.values)
    for group in GROUPS:
        chosen = [layer.pop(group) for layer in (values, told.values) if group in layer]
        names = [_known_option(group, written(value)) for value in chosen]
        if len(set(names)) > 1:
            values = {key: value for key, value in values.items() if not key.startswith(f"{group}.")}
        if names:
            groups[group] = names[-1]
    return groups, Layer(file.source, values)


def _known_option(group: str, name: str) -> str:
    if name not in options_of(group):
        more = "; any other id is env=brax env.id=... or env=gymnax env.id=..." if group == "env" else ""
        raise ConfigError(f"{group}={name} is unknown: {nearest(name, options_of(group))}{more}")
    return name


def _compose_groups(groups: Mapping[str, str], tuned: bool) -> tuple[Layer, str | None]:
    """The settings of the chosen groups and of the tuned file, if one applies."""
    store = ConfigStore.instance()
    for group, names in (("algo", ALGORITHMS), ("placement", options_of("placement"))):
        for name in names:
            store.store(group=group, name=name, node={"name": name})
    words = [f"{group}={name}" for group, name in groups.items()] + ([] if tuned else ["~tuned"])
    with initialize_config_dir(str(CONFIG_DIR.resolve()), version_base="1.3"):
        values = _flatten(OmegaConf.to_container(compose_groups("run", overrides=words)))
    tuned_file = f"tuned/{values['env.name']}_{values['algo.name']}.yaml"
    applies = tuned and (CONFIG_DIR / tuned_file).exists()
    return Layer("jaxrl_fast/config: ", values), tuned_file if applies else None


def _read_layer(layer: Layer, keys: Mapping[str, Key], of_what: str) -> dict[str, Any]:
    """Typed values. What is under ``env.options`` is the environment's own to check."""
    typed = {}
    for name, value in layer.values.items():
        if name.startswith("env.options."):
            typed[name] = value
            continue
        if name not in keys:
            raise ConfigError(f"{layer.source}unknown key '{name}' for {of_what}: {_nearest_key(name, keys)}")
        try:
            typed[name] = read_value(name, value, keys[name])
        except ConfigError as error:
            raise ConfigError(f"{layer.source}{error}") from None
    return typed


def _nearest_key(name: str, keys: Mapping[str, Key]) -> str:
    if name.removesuffix(".name") in GROUPS:
        return f"did you mean {name.removesuffix('.name')}?"
    section = [key for key in keys if key.split(".")[0] == name.split(".")[0]]
    owners = [f"algo={algo}" for algo in ALGORITHMS if name in algo_keys(algo)]
    if owners:
        return f"it belongs to {' or '.join(owners)}"
    hint = nearest(name, keys)
    if hint.startswith("write one of"):
        hint = f"write one of {', '.join(section)}" if section else "--help lists the keys"
    return f"{hint} (an option of the environment's own is written +{name}=...)" if name.startswith("env.") else hint


def _check_env(env: str, values: Mapping[str, Any]) -> None:
    """Hold what a family of environments needs, and keep it from those that are one environment."""
    needed, example = NEEDS.get(env, (None, None))
    if needed is not None and values[f"env.{needed}"] is None:
        raise ConfigError(f"env={env} needs env.{needed}: write for example env={env} env.{needed}={example}")
    for key in ("id", "make"):
        if key != needed and values[f"env.{key}"] is not None:
            takers = " or ".join(f"env={name}" for name, need in NEEDS.items() if need[0] == key)
            raise ConfigError(f"env.{key}={values[f'env.{key}']} says nothing beside env={env}: write it with {takers}")


def _check_pool(env: str, told: Layer) -> None:
    for name in told.values:
        if name.startswith("pool.") and not may_be_host(env):
            raise ConfigError(
                f"{name} says nothing beside env={env}, which is compiled: write it with env=gymnasium or atari"
            )


def _make_run(env: str, algo: str, placement: str, values: dict[str, Any], tuned_file: str | None) -> Run:
    def section(prefix: str) -> dict[str, Any]:
        return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    options = section("env.options.")
    env_options = {k: v for k, v in section("env.").items() if v is not None and not k.startswith("options.")}
    alone = {key: value for key, value in values.items() if "." not in key}
    named = processes.told(**section("distributed."))
    if named is not None and values["distributed"] == "off":
        raise ConfigError("distributed=off means a single process: leave it out, or the other distributed.* keys")
    return Run(
        env=env, env_options={**env_options, **options}, algo=algo, algo_options=section("algo."),
        placement=placement, eval_every=values["eval.every"] or max(1, values["total_steps"] // 10),
        eval_episodes=values["eval.episodes"], tuned_file=tuned_file, checkpoints=_checkpoints(values),
        processes=named, pool=section("pool."), **alone,
    )  # fmt: skip


def _checkpoints(values: dict[str, Any]) -> Checkpoints:
    every = values["checkpoint.every"] or max(1, values["total_steps"] // 10)
    return Checkpoints(every, values["checkpoint.keep"], values["checkpoint.replay"])


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; an option of an environment stays whole."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict) and prefix != "env.options.":
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
