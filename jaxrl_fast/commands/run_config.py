"""All settings of a run, and what is made of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from jaxrl_fast import envs
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.learning.algorithm import Algorithm
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.numerics.optimizers import plain
from jaxrl_fast.runtime import cluster
from jaxrl_fast.runtime.cluster import Processes
from jaxrl_fast.runtime.placements import PLACEMENTS
from jaxrl_fast.runtime.xla_options import starts_kernels_singly
from jaxrl_fast.settings import schema
from jaxrl_fast.settings.machine import AUTO
from jaxrl_fast.settings.schema import ConfigError, Key, algo_keys, nearest, read_value, read_word, run_keys, written
from jaxrl_fast.training.callbacks import to_stderr
from jaxrl_fast.training.checkpoints import find, newest_good, read_description
from jaxrl_fast.training.job import JobOptions

FIRST = ("overlap", "learners", "average")
"""The keys without a section that stand before all others in ``config.yaml``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(schema.RunSchema):
    """All settings of a run: the keys of the command line without a section, the sections, and how it was asked for.

    ``env`` and ``env_options`` go to ``envs.make``, ``algo_options`` to the factory of ``algo``, ``pool`` to the pool
    of worker processes. ``tuned_file``: the file of tuned settings that applied, relative to the config folder.
    ``requeued``: the folder may hold an earlier start of the same run. ``processes``: those that were named on the
    command line. ``auto_width``: ``num_envs`` is to be replaced by the fastest number here that keeps the samples per
    update; ``auto_overlap``: ``overlap`` by what is fastest here. ``sources``: where each setting comes from that is
    not a default, by key.
    """

    env: str
    env_options: dict[str, Any]
    algo: str
    algo_options: dict[str, Any]
    placement: str
    eval: schema.EvalOptions
    checkpoint: schema.Checkpoints
    pool: dict[str, Any]
    tuned_file: str | None = None
    requeued: bool = False
    processes: Processes | None = None
    auto_width: bool = False
    auto_overlap: bool = False
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)


def graph_options(run: Run) -> GraphOptions:
    """The options of the run's graph that do not belong to its algorithm, on the devices that JAX has started."""
    joined = starts_kernels_singly(jax.default_backend())
    return GraphOptions(**_applied_to("graph", run), total_steps=run.total_steps, joined=joined)


def job_options(run: Run) -> JobOptions:
    """How the run is trained, beside its environment and algorithm."""
    graph, options = graph_options(run), _applied_to("job", run)
    return JobOptions(**options, graph=graph, placement=run.placement, eval=run.eval, checkpoints=run.checkpoint)


def _applied_to(target: str, run: Run) -> dict[str, Any]:
    """Collect the settings that are declared to apply to a target, by name."""
    return {name: getattr(run, name) for name, key in run_keys().items() if key.to == target}


def make_algorithm(run: Run) -> Algorithm:
    """The run's algorithm, not yet bound to an environment.

    Raises:
        ValueError: options that do not fit together.
    """
    return ALGORITHMS[run.algo](**run.algo_options, precision=run.precision)


def make_envs(run: Run) -> VecEnv | HostEnv:
    """The run's environments; close them at the end if they are on the host.

    Raises:
        ValueError: the environment refuses its id or an option.
    """
    pool = {name: value for name, value in run.pool.items() if value is not None and may_be_host(run.env)}
    return envs.make_vec(run.env, num_envs=run.num_envs, num_seeds=run.num_seeds, pool=pool, **run.env_options)


def make_evaluation_envs(run: Run) -> VecEnv | HostEnv:
    """An environment like the run's, from which those to evaluate in are made."""
    return make_envs(alone(run))


def alone(run: Run) -> Run:
    """The run with a single environment, and no worker for it."""
    pool = {**run.pool, "workers": 0, "num_groups": 1, "order": "fixed"}
    return dataclasses.replace(run, num_envs=1, num_seeds=1, pool=pool)


def may_be_host(env: str) -> bool:
    """Whether ``pool.*`` may have an effect: the environments are on the host, or a user's own."""
    return envs.is_host(env) or env == "custom"


def env_name(run: Run) -> str:
    """The environment's short name, or its id in a family of them, as part of a file's name."""
    return str(run.env_options.get("id", run.env)).replace("/", "-")


def to_yaml(run: Run) -> str:
    """The run as a file that ``config=<file>`` repeats. It leaves out where results went and which processes shared the
    work: a single one with as many devices computes the same."""
    return OmegaConf.to_yaml(OmegaConf.create(_to_tree(run)))


def flat_settings(run: Run) -> dict[str, Any]:
    """The same by dotted key, as a checkpoint stores it."""
    return schema.by_dotted_key(_to_tree(run))


def _to_tree(run: Run) -> dict[str, Any]:
    known = {key: value for key, value in run.env_options.items() if f"env.{key}" in run_keys()}
    options = {key: value for key, value in run.env_options.items() if key not in known}
    keys, alone = run_keys(), {name: getattr(run, name) for name in ("placement", *FIRST)}
    for name in sorted(keys, key=lambda name: keys[name].stored == "changed"):
        if "." not in name and keys[name].is_stored(getattr(run, name)):
            alone[name] = getattr(run, name)
    return {
        "env": {"name": run.env, **known, **({"options": options} if options else {})},
        "algo": {"name": run.algo, **{key: plain(value) for key, value in run.algo_options.items()}},
        "eval": dataclasses.asdict(run.eval),
        "checkpoint": dataclasses.asdict(run.checkpoint),
        **({"pool": run.pool} if may_be_host(run.env) else {}),
        "tuned": run.tuned_file is not None,
        **alone,
    }


CONFIG_DIR = Path(__file__).parent.parent / "config"
COMMAND_LINE, FOLLOWS = "command line", "follows num_envs"
"""Where a setting comes from, beside files."""
NEEDS = {**{suite: ("id", id) for suite, id in envs.EXAMPLE_IDS.items()}, "custom": ("make", "my_package.make")}
"""Names that stand for a family of environments: which key of ``env.*`` chooses one, and an example."""


class Layer(NamedTuple):
    """Settings from one source, such as a file: ``values`` by dotted key; ``source`` begins its error messages."""

    source: str
    values: dict[str, Any]


def compose(argv: Sequence[str] = ()) -> Run:
    """The run that the words of a command line ask for, such as ``["env=cartpole", "algo=ppo", "seed=3"]``.

    Raises:
        ConfigError: one line that names what was wrong and what to write instead.
    """
    given = Layer("", dict(map(read_word, argv)))
    requeued = given.values.get("resume") == "auto"
    checkpoint = _read_checkpoint(given)
    file = checkpoint or _read_file(given.values.pop("config", None))
    auto_width = _take_auto("num_envs", given, file) and checkpoint is None
    auto_overlap = _take_auto("overlap", given, file) and checkpoint is None
    tuned = given.values.pop("tuned", file.values.pop("tuned", True))
    tuned = read_value("tuned", tuned, schema.choice_keys()["tuned"])
    groups, file = _choose_groups(given, file)
    id = given.values.get("env.id", file.values.get("env.id"))
    defaults, tuned_values = _group_settings(groups, tuned, None if id is None else written(id))
    env, algo, placement = (defaults.values.pop(f"{group}.name") for group in schema.GROUPS)
    keys = {**run_keys(), **algo_keys(algo)}
    values, sources = {name: key.default for name, key in keys.items()}, {}
    for layer in (defaults, tuned_values, file, given):
        values.update(_read_layer(layer, keys, f"algo={algo} env={env}"))
        sources.update(dict.fromkeys(layer.values, layer.source.removesuffix(": ") or COMMAND_LINE))
    _check_env(env, values)
    _check_pool(env, given)
    if "/" in (values["name"] or ""):
        raise ConfigError(f"name={values['name']}: it is part of a folder's name, so write it without a slash")
    tuned_file = tuned_values.source.removeprefix("config/").removesuffix(": ") or None
    chosen = {"tuned_file": tuned_file, "requeued": requeued, "auto_width": auto_width, "auto_overlap": auto_overlap}
    run = _make_run(env, algo, placement, values, chosen | {"sources": sources})
    found = [f"algo.{name}" for name, value in run.algo_options.items() if value is not None]
    run.sources.update((name, FOLLOWS) for name in found if values[name] is None)
    return run


def options_of(group: str) -> list[str]:
    """The names to choose from in a group."""
    if group == "algo":
        return list(ALGORITHMS)
    if group == "placement":
        return [AUTO, *PLACEMENTS]
    return sorted(_environments())


def _read_checkpoint(given: Layer) -> Layer | None:
    """The settings of the checkpoint that ``resume`` means, None without one; its path replaces ``resume`` in
    ``given``.

    A run goes on in its own folder, unless another is named or ``resume`` names a checkpoint instead of a run.
    """
    keys = run_keys()
    resume, run_dir = (read_value(name, given.values.get(name), keys[name]) for name in ("resume", "run_dir"))
    if resume is None:
        return None
    if "config" in given.values:
        raise ConfigError("resume brings the run's own settings: leave config out")
    if resume == "auto" and run_dir is None:
        raise ConfigError("resume=auto needs to know where: write run_dir=<folder> with it")
    path = newest_good(Path(run_dir), to_stderr) if resume == "auto" else _without_links(find(Path(resume)))
    given.values["resume"] = None if path is None else str(path)
    if path is None:
        return None
    if run_dir is None and path.parent.parent.resolve() == Path(resume).resolve():
        given.values["run_dir"] = str(path.parent.parent)
    known = read_description(path).settings
    if "eval.every" not in known:
        raise ConfigError(f"{path} was written by jf.learn: resume it with jf.learn(resume=...)")
    return Layer(f"{path}: ", dict(known))


def _without_links(path: Path) -> Path:
    """Where a path leads: ``runs/latest`` is another folder as soon as this run has its own."""
    return path if path.absolute() == path.resolve() else path.resolve()


def _read_file(path: Any) -> Layer:
    """The settings of a config file. A group (env, algo, placement) is a name, or a section with ``name``."""
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
        raise ConfigError(f"{path}: resume works on the command line only: write it there")
    return Layer(f"{path}: ", schema.by_dotted_key(tree))


def _take_auto(key: str, given: Layer, file: Layer) -> bool:
    """Remove ``auto`` as the value of a key from the layers; whether it has the last word. What then remains is what
    the choice begins with: of ``num_envs`` the number that says how many samples per update to hold."""
    asked = given.values.get(key, file.values.get(key))
    for layer in (given, file):
        if layer.values.get(key) == AUTO:
            del layer.values[key]
    return bool(asked == AUTO)


def _choose_groups(given: Layer, file: Layer) -> tuple[dict[str, str], Layer]:
    """The options chosen for the groups, and the file's settings without those of a group that was chosen anew."""
    groups, values = {}, dict(file.values)
    for group in schema.GROUPS:
        chosen = [layer.pop(group) for layer in (values, given.values) if group in layer]
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


def _group_settings(groups: Mapping[str, str], tuned: bool, id: str | None) -> tuple[Layer, Layer]:
    """The settings of the chosen groups, and those of the tuned file, if one applies. ``id``: within a family."""
    env = groups.get("env", schema.choice_keys()["env"].default)
    row = _environments()[env]
    algo = groups.get("algo", row.get("algo_of_id", {}).get(id, row["algo"]))
    names = {
        "env.name": env,
        "algo.name": algo,
        "placement.name": groups.get("placement", schema.choice_keys()["placement"].default),
    }
    sizes = {"num_envs": row["num_envs"], "total_steps": row["total_steps"]}
    defaults = Layer("config/envs.yaml: ", {**sizes, **names})
    return defaults, _tuned_settings(env, id, algo) if tuned else Layer("", {})


def _tuned_settings(env: str, id: str | None, algo: str) -> Layer:
    """Those of ``<env>_<id>_<algo>.yaml`` (a slash of the id is a dash there), else of ``<env>_<algo>.yaml``, else
    none."""
    own = [] if id is None else [f"{env}_{id.replace('/', '-')}_{algo}.yaml"]
    for name in (*own, f"{env}_{algo}.yaml"):
        path = CONFIG_DIR / "tuned" / name
        if path.exists():
            return Layer(f"config/tuned/{name}: ", schema.flatten(OmegaConf.to_container(OmegaConf.load(path))))
    return Layer("", {})


@cache
def _environments() -> dict[str, dict[str, Any]]:
    """``config/envs.yaml``: the defaults of each environment."""
    return OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "envs.yaml"))  # type: ignore[return-value]


def _read_layer(layer: Layer, keys: Mapping[str, Key], of_what: str) -> dict[str, Any]:
    """The layer's values with their types; what is under ``env.options`` is checked by the environment."""
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
    if name.removesuffix(".name") in schema.GROUPS:
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
    """Refuse a family of environments without the key that chooses one, and such a key without a family."""
    needed, example = NEEDS.get(env, (None, None))
    if needed is not None and values[f"env.{needed}"] is None:
        raise ConfigError(f"env={env} needs env.{needed}: write for example env={env} env.{needed}={example}")
    for key in ("id", "make"):
        if key != needed and values[f"env.{key}"] is not None:
            takers = " or ".join(f"env={name}" for name, need in NEEDS.items() if need[0] == key)
            raise ConfigError(f"env.{key}={values[f'env.{key}']} has no effect with env={env}: write it with {takers}")


def _check_pool(env: str, given: Layer) -> None:
    for name in given.values:
        if name.startswith("pool.") and not may_be_host(env):
            raise ConfigError(
                f"{name} has no effect with env={env}, which is compiled: write it with env=gymnasium or atari"
            )


def _make_run(env: str, algo: str, placement: str, values: dict[str, Any], others: dict[str, Any]) -> Run:
    def section(prefix: str) -> dict[str, Any]:
        return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    options = section("env.options.")
    algo_options = section("algo.")
    algo_options |= ALGORITHMS[algo](**algo_options).sizes(values["num_envs"])
    env_options = {k: v for k, v in section("env.").items() if v is not None and not k.startswith("options.")}
    named = cluster.named_processes(**section("distributed."))
    if named is not None and values["distributed"] == "off":
        raise ConfigError("distributed=off means a single process: leave it out, or the other distributed.* keys")
    tenth = max(1, values["total_steps"] // 10)
    return Run(
        **{key: value for key, value in values.items() if "." not in key},
        **others,
        env=env,
        env_options={**env_options, **options},
        algo=algo,
        algo_options=algo_options,
        placement=placement,
        eval=schema.EvalOptions(**section("eval.") | {"every": values["eval.every"] or tenth}),
        checkpoint=schema.Checkpoints(**section("checkpoint.") | {"every": values["checkpoint.every"] or tenth}),
        pool=section("pool."),
        processes=named,
    )
