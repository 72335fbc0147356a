"""Worlds that were built before: what a run knows of one without building it.

Building a brax world, its packages included, takes longer than all else that a second start does, and only tracing
needs it.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import envs
from jaxrl_fast.core import EnvSpec, PyTree
from jaxrl_fast.environments.env import Env, VecEnv, vectorize
from jaxrl_fast.environments.host_env import HostEnv
from jaxrl_fast.policy.policies import spec_from_json, spec_to_json
from jaxrl_fast.settings.identity import digest, identity_of
from jaxrl_fast.settings.kept_files import FOLDER, KeptFiles
from jaxrl_fast.settings.run_settings import Run, make_envs
from jaxrl_fast.settings.runtime import cache_root


class Keeper(NamedTuple):
    """The ``files`` in which what was made for a run is kept, and its ``identity``: all that this depends on beside the
    run's settings."""

    files: KeptFiles
    identity: dict[str, Any]


def keeper_of(run: Run, tell: Callable[[str], None]) -> Keeper | None:
    """The `Keeper` of a run, for which JAX has started; None where nothing may be kept: with
    ``JAXRL_FAST_CACHE=off``, for worlds that are more than their names, in several processes, and with ``debug``, which
    traces each tick's operations."""
    root = cache_root()
    if root is None or run.debug or jax.process_count() > 1:
        return None
    suite, _ = envs.resolve(run.env, dict(run.env_options))
    known = identity_of(suite)
    return None if known is None else Keeper(KeptFiles(root / FOLDER, tell), known)


def make_kept_envs(run: Run, keeper: Keeper | None) -> VecEnv | HostEnv:
    """As `make_envs`; a world that was built before is built only when it is traced."""
    if keeper is None:
        return make_envs(run)
    name = f"world-{digest(keeper.identity, *envs.resolve(run.env, dict(run.env_options)))}"
    known = keeper.files.read(name)
    if known is not None:
        return vectorize(_built_later(run, known), num_envs=run.num_envs)
    env = make_envs(run)
    if isinstance(env, VecEnv) and env.env is not None:
        facts = _facts(env.env)
        if same(spec_from_json(facts["spec"]), env.spec):
            keeper.files.write(name, facts)
    return env


def same(one: EnvSpec, other: EnvSpec) -> bool:
    """Whether two specs are the same in everything, containers included."""
    if str(jax.tree.structure(one)) != str(jax.tree.structure(other)):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype for a, b in pairs)


def _facts(env: Env) -> dict[str, Any]:
    return {
        "spec": spec_to_json(env.spec),
        "shortest_episode": int(env.shortest_episode),
        "step_s": float(env.step_s),
        "draws": env.draw is not None,
        "succeeds": env.success is not None,
    }


def _built_later(run: Run, known: dict[str, Any]) -> Env:
    """The world of a run, built at the first call of one of its functions."""
    built: list[Env] = []
    lock = threading.Lock()

    def world() -> Env:
        with lock, jax.ensure_compile_time_eval():  # its arrays outlive the trace that asks for it
            if not built:
                built.append(envs.make(run.env, **run.env_options))
        return built[0]

    return Env(
        spec_from_json(known["spec"]),
        lambda key, params: world().reset(key, params),
        lambda state, action, key: world().step(state, action, key),
        lambda key: world().sample_params(key),
        known["shortest_episode"],
        known["step_s"],
        (lambda state: _of(world().draw, state)) if known["draws"] else None,
        (lambda state: _of(world().success, state)) if known["succeeds"] else None,
    )


def _of(function: Any, state: PyTree) -> Any:
    return function(state)
