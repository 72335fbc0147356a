"""All settings of a run, and what is made of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
from omegaconf import OmegaConf

import envs
from jaxrl_fast.algorithms.interface import Algorithm
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.environments.env import VecEnv
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.fragments.learners import GraphOptions, Overlap
from jaxrl_fast.fragments.learning import Average, OnNan
from jaxrl_fast.graph.compiler_choices import starts_kernels_singly
from jaxrl_fast.numerics.schedules import plain
from jaxrl_fast.runs.checkpointing import Checkpoints
from jaxrl_fast.runs.loggers import Log
from jaxrl_fast.settings.schema import run_keys
from jaxrl_fast.training.cluster import Processes
from jaxrl_fast.training.job import JobOptions

GROUPS = ("env", "algo", "placement")


@dataclasses.dataclass(frozen=True)
class Run:
    """All settings of a run; fields named like a key of the command line mean the same (`schema`).

    ``env`` and ``env_options`` go to ``envs.make``, ``algo_options`` to the factory of ``algo``, ``pool`` to the pool
    of worker processes. ``total_steps`` and ``eval_every`` are environment steps over all environments, for each seed.
    ``tuned_file``: the file of tuned settings that applied, relative to the config folder. ``resume``: the path of the
    checkpoint to go on from; ``requeued``: the folder may hold an earlier start of the same run. ``processes``: those
    that were named on the command line; ``distributed``: whether to look for those of a cluster. ``auto_width``:
    ``num_envs`` is to be replaced by the fastest number here that keeps the samples per update; ``auto_overlap``:
    ``overlap`` by what is fastest here. ``sources``: where each
    setting comes from that is not a default, by key.
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
    eval_beside: bool = True
    eval_device: Literal["cpu", "same"] = "cpu"
    eval_picture: bool = False
    run_dir: str | None = None
    name: str | None = None
    log: Log = "tensorboard"
    tuned_file: str | None = None
    checkpoints: Checkpoints = Checkpoints()
    pool: dict[str, Any] = dataclasses.field(default_factory=dict)
    learners: int = 1
    average: Average = "gradients"
    shards: int = GraphOptions().shards
    resume: str | None = None
    requeued: bool = False
    nan: OnNan = "stop"
    debug: bool = False
    distributed: Literal["auto", "off"] = "auto"
    processes: Processes | None = None
    auto_width: bool = False
    auto_overlap: bool = False
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)


def graph_options(run: Run) -> GraphOptions:
    """The options of the run's graph that do not belong to its algorithm, on the devices that JAX has started."""
    return GraphOptions(
        run.overlap,
        run.learners,
        run.average,
        run.total_steps,
        run.nan,
        joined=starts_kernels_singly(jax.default_backend()),
        shards=run.shards,
    )


def job_options(run: Run) -> JobOptions:
    """How the run is trained, beside its environment and algorithm."""
    return JobOptions(
        run.total_steps,
        run.seed,
        run.num_seeds,
        graph_options(run),
        run.placement,
        run.devices,
        run.eval_every,
        run.eval_episodes,
        run.eval_beside,
        run.eval_device,
        run.checkpoints,
        run.resume,
        run.debug,
    )


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


def pool_defaults() -> dict[str, Any]:
    """The defaults of ``pool.*``."""
    return {name.removeprefix("pool."): key.default for name, key in run_keys().items() if name.startswith("pool.")}


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
    return by_dotted_key(_to_tree(run))


def _to_tree(run: Run) -> dict[str, Any]:
    known = {key: value for key, value in run.env_options.items() if f"env.{key}" in run_keys()}
    options = {key: value for key, value in run.env_options.items() if key not in known}
    alone = tuple(
        "placement overlap learners average total_steps num_envs seed num_seeds devices precision name log "
        "nan debug".split()
    )
    return {
        "env": {"name": run.env, **known, **({"options": options} if options else {})},
        "algo": {"name": run.algo, **{key: plain(value) for key, value in run.algo_options.items()}},
        "eval": {
            "every": run.eval_every,
            "episodes": run.eval_episodes,
            "beside": run.eval_beside,
            "device": run.eval_device,
            "picture": run.eval_picture,
        },
        "checkpoint": run.checkpoints._asdict(),
        **({"pool": run.pool} if may_be_host(run.env) else {}),
        "tuned": run.tuned_file is not None,
        **{key: getattr(run, key) for key in alone},
        **({} if run.shards == GraphOptions().shards else {"shards": run.shards}),
    }


def by_dotted_key(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Leaves by dotted key; the name of a group has the group's own key (``env``, not ``env.name``)."""
    return {key.removesuffix(".name") if key[:-5] in GROUPS else key: v for key, v in flatten(tree).items()}


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; an environment's option that is a dictionary is one leaf."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict) and prefix != "env.options.":
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
