"""One job of `same_numbers`, with the code that PYTHONPATH names.

``python -P same_numbers_run.py JOB TREE FOLDER [--initial FILE] [--broken]`` trains and leaves in
FOLDER ``initial.npz`` (parameters and targets before the first tick, by name; without
``--initial``), ``final.npz`` (the whole last state by name), ``run/metrics.csv`` and
``run/evals.csv``. The code of two commits runs it, so it uses only their public API, the names of a
state's leaves, and the function ``init(graph, key, hyper)``.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_fast as jf

# last: this folder must hide nothing of the other commit
sys.path.append(str(Path(__file__).parent))

from same_numbers_jobs import JOBS, Job, algorithm, total_steps

PARTS = r"(actor|critic)(_local)?"
IN_SERVER = rf"^private\.server(_\w+)?\.{PARTS}\.params\."
IN_CHANNEL = rf"^channels\.{PARTS}\.params\."
RENAMES: dict[str, list[tuple[str, str]]] = {
    "ppo": [
        (r"\.learned\.params\.(policy|value)\.", ".params."),
        (rf"{IN_SERVER}(policy|value)\.", r"private.server\1.\2."),
        (rf"{IN_CHANNEL}(policy|value)\.", r"channels.\1\2."),
        (r"\.carry\.memory\.", ".carry."),
    ],
    "sac": [
        (r"\.learned\.params\.q\.", ".params."),
        (r"\.learned\.target\.q\.", ".target."),
        (r"\.learned\.params\.", ".params."),
        (rf"{IN_SERVER}q\.", r"private.server\1.\2."),
        (rf"{IN_CHANNEL}q\.", r"channels.\1\2."),
        (rf"{IN_CHANNEL}", r"channels.\1\2."),
        (r"^channels\.critic\.target\.q\.", "channels.critic_target."),
        (r"\.temperature$", ".log_temperature"),
    ],
}
"""By algorithm: (regex, replacement), all applied in turn with `re.sub` to names of leaves: from
this tree's names to the names of commits before “An algorithm file says its rates ...”.

Nothing is renamed where the other commit has this tree's names.
"""
ENV_STATE = [(r"\.env\.env_state\b", ".env.world"), (r"\.env\.world\.state\b", ".env.world.world")]
"""The same for the states of environments, to the names of commits before `VecState.env_state`."""
LEARNED = re.compile(r"private\.(learn|server)\w*\.|channels\.(actor|critic)\w*\.")
"""Leaves that hold parameters, targets and optimizers, by their names at the other commit."""
OPTIONAL = re.compile(
    r"\.opt_state\b|^channels\.critic_target\.|^private\.server\.critic\.target\."
)
"""The leaves among them that may lack a partner: they begin at zero in any case, or are copies of
others.
"""
SEED = 7


def mapped(name: str, job: Job) -> str:
    """Return the name of a leaf or a column of this tree at the other commit."""
    for pattern, replacement in RENAMES[job.algorithm]:
        name = re.sub(pattern, replacement, name)
    return name


def mapped_env(name: str) -> str:
    """Return the name of a leaf of this tree at a commit before `VecState.env_state`."""
    for pattern, replacement in ENV_STATE:
        name = re.sub(pattern, replacement, name)
    return name


def named_leaves(state: Any) -> dict[str, Any]:
    """Return a state's leaves by path, with random keys as numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {name_of(path): numbers(leaf) for path, leaf in leaves}


def name_of(path: tuple) -> str:
    """Format a path as ``private.learn.critic.params.params.Dense_0.kernel``."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def numbers(leaf: Any) -> Any:
    """Return the data of a leaf, also of a random key."""
    return (
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )


def required(names: Any) -> set[str]:
    """Return the names, as at the other commit, that must have a partner in the other state."""
    return {name for name in names if LEARNED.match(name) and not OPTIONAL.search(name)}


def put_parameters(state: Any, initial: dict[str, np.ndarray], rename: Callable[[str], str]) -> Any:
    """Replace the parameters of a first state with the initial parameters.

    Raises:
        ValueError: A leaf has no partner, or one of another shape.
    """
    names = {rename(name) for name in named_leaves(state)}
    for name in sorted(required(names) ^ required(initial)):
        owner = "the other commit's initial parameters" if name in initial else "this tree's state"
        raise ValueError(f"{name} of {owner} finds no partner: write a line of RENAMES")

    def put(path: tuple, leaf: jax.Array) -> jax.Array:
        given = initial.get(rename(name_of(path)))
        if given is None:
            return leaf
        if (given.shape, given.dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(
                f"{name_of(path)} is {leaf.dtype}{leaf.shape}, its partner {given.dtype}{given.shape}"
            )
        return jnp.asarray(given)

    return jax.tree_util.tree_map_with_path(put, state)


def replace_init(initial: dict[str, np.ndarray], rename: Callable[[str], str]) -> list[str]:
    """Make every graph begin with these parameters from now on. All seeds begin alike: their keys
    differ.

    Locates the function by name and arguments in any module, and replaces it wherever it was
    imported. Returns a list that is empty until the function is called.
    """
    for name in jf.__all__:  # a public name loads its module on first use
        getattr(jf, name)
    modules = [
        module for name, module in sys.modules.items() if name.partition(".")[0] == "jaxrl_fast"
    ]
    places = [
        (module, name, value)
        for module in modules
        for name, value in vars(module).items()
        if is_init(value)
    ]
    found = {value for _, _, value in places}
    if len(found) != 1:
        raise RuntimeError(
            f"expected one function init(graph, key, hyper) in jaxrl_fast, got {found}"
        )
    original, called = found.pop(), list[str]()

    def init(graph: Any, key: jax.Array, hyper: Any) -> Any:
        called.append("init")
        return put_parameters(original(graph, key, hyper), initial, rename)

    for module, name, _ in places:
        setattr(module, name, init)
    return called


def is_init(value: Any) -> bool:
    """Return whether this function makes the first state of a graph."""
    wanted = ["graph", "key", "hyper"]
    return (
        inspect.isfunction(value)
        and value.__name__ == "init"
        and [*inspect.signature(value).parameters] == wanted
    )


def draw(job: Job) -> dict[str, np.ndarray]:
    """Return the job's initial parameters, by name."""
    env, known = job.make_env(), ("overlap", "learners", "average")
    chosen = {name: value for name, value in job.run.items() if name in known}
    init, _ = jf.make_train_step(env, algorithm(job), total_steps=total_steps(job), **chosen)
    first = jax.jit(
        lambda key: {n: x for n, x in named_leaves(init(key)).items() if LEARNED.match(n)}
    )
    initial = jax.tree.map(np.array, first(jax.random.key(SEED)))
    close(env)
    return initial


def close(env: Any) -> None:
    """End the processes of environments on the host."""
    if isinstance(env, jf.HostEnv):
        env.close()


def train(job: Job, folder: Path, broken: bool) -> Any:
    """Return the last state; a broken run is stopped half-way and resumed."""
    seen: list[str] = []
    common: dict[str, Any] = dict(
        total_steps=total_steps(job),
        seed=SEED,
        eval_every=total_steps(job),
        eval_episodes=2,
        run_dir=folder,
        checkpoints=jf.Checkpoints(keep=int(broken)),
        tell=lambda line: None,
        **job.run,
    )
    env = job.make_env()
    if broken:
        jf.learn(
            env,
            algorithm(job),
            on_metrics=lambda row: seen.append(row["kind"]),
            should_stop=lambda: seen.count("train") >= job.ticks // 2,
            **common,
        )
    state = jf.learn(env, algorithm(job), resume=folder if broken else None, **common).state
    close(env)
    return state


def main() -> None:
    """Run one job; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("tree", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--initial", type=Path)
    parser.add_argument("--broken", action="store_true")
    args = parser.parse_args()
    # By file: an editable install adds its ``jaxrl_fast.envs`` to a tree that has ``envs`` next to
    # ``jaxrl_fast``.
    envs = import_module(
        "jaxrl_fast.envs" if (args.tree / "jaxrl_fast" / "envs").exists() else "envs"
    )
    for module in (jf, envs):
        assert Path(str(module.__file__)).is_relative_to(args.tree.resolve()), (
            f"{module.__file__}: not of {args.tree}"
        )
    jax.config.update("jax_num_cpu_devices", 2)
    job = JOBS[args.job]
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.initial is None:
        initial, rename = draw(job), str
        np.savez(args.folder / "initial.npz", **initial)
    else:
        initial = dict(np.load(args.initial))
        old = not any(".learned." in name for name in initial)
        rename = partial(mapped, job=job) if old else str
    called = replace_init(initial, rename)
    state = train(job, args.folder / "run", args.broken)
    assert called, "training began without the function init that was replaced"
    np.savez(
        args.folder / "final.npz",
        **{name: np.asarray(leaf) for name, leaf in named_leaves(state).items()},
    )


if __name__ == "__main__":
    main()
