"""Adapter of MuJoCo Playground's environments. The only file that imports mujoco_playground.

Source: https://github.com/google-deepmind/mujoco_playground, 0.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import mujoco

from jaxrl_fast.core import MAX_SIZE, Number
from jaxrl_fast.envs.env import A_COUNT, Env, is_count
from jaxrl_fast.envs.env_checks import check_shapes
from jaxrl_fast.envs.from_brax import OneModel, adapt, brax_envs, quiet
from jaxrl_fast.envs.options import EnvOptions, Kinds, check_others, read_options
from jaxrl_fast.system import fault_of

with quiet():
    from mujoco_playground import registry

# Playground's reachers call it by the name of MuJoCo 3.3
if not hasattr(mujoco.MjSpec, "find_body"):
    mujoco.MjSpec.find_body = mujoco.MjSpec.body


def _clip(x: jax.Array, low: Any = None, high: Any = None, a_max: float | None = None) -> jax.Array:
    """``jnp.clip``, by the name of its upper bound before JAX 0.10 as well."""
    return jnp.clip(x, low, high if a_max is None else a_max)


WITH_OLD_CLIP = registry.manipulation.robotiq_push_cube, registry.manipulation.leap_cube_reorient
"""Playground's modules that call ``jnp.clip(a_max=)``, which JAX 0.10 removed."""
for module in WITH_OLD_CLIP:
    module.jp = SimpleNamespace(**vars(jnp) | {"clip": _clip})

ROBOTS = (*registry.locomotion.ALL_ENVS, *registry.manipulation.ALL_ENVS)
IMPLEMENTATIONS = "jax", "warp"
SHORTEST_OF_ROBOTS = 8
"""A guess at the shortest episode of a robot that falls, in steps. Without pictures the others end
by NaN alone.
"""


def ids() -> list[str]:
    """List the registered ids.

    Returns:
        Sorted ids.
    """
    return sorted(registry.ALL_ENVS)


@dataclass(frozen=True, kw_only=True)
class Options(EnvOptions):
    """Options of an environment of MuJoCo Playground."""

    impl: str | None = None
    """Physics, ``jax`` or ``warp`` (NVIDIA's); None for ``warp`` if there is an NVIDIA card, else
    ``jax``."""
    randomized_models: Annotated[int, Number(0, MAX_SIZE, "whole")] = 0
    """Number of models of the environment's own domain randomization; each episode has one of
    them. 0 for the model without randomization."""
    metrics: Kinds = None
    """Kinds of the metrics to report, by name (`jaxrl_fast.envs.from_brax.adapt`)."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values that override the environment's configuration, such as ``action_repeat=2``, or
    nested."""


def make(id: str, **values: Any) -> Env:
    """Make an environment of MuJoCo Playground.

    Args:
        id: Playground's id.
        **values: `Options`.

    Returns:
        The environment. Of an observation with ``state`` and ``privileged_state``, a policy may
        read the first only (``algo.policy_keys=[state]``).

    Raises:
        ValueError: Unsupported id, implementation or option, or robots that are not on this disk.
    """
    options = read_options(Options, values, f"playground {id}")
    if options.impl not in (None, *IMPLEMENTATIONS):
        raise ValueError(f"env.impl={options.impl}: write one of {', '.join(IMPLEMENTATIONS)}")
    if id in ROBOTS and not registry.mjx_env.MENAGERIE_PATH.exists():
        raise ValueError(
            f"env.id={id} needs the robots of MuJoCo Menagerie: git clone "
            f"https://github.com/google-deepmind/mujoco_menagerie {registry.mjx_env.MENAGERIE_PATH} && git -C "
            f"{registry.mjx_env.MENAGERIE_PATH} checkout {registry.mjx_env.MENAGERIE_COMMIT_SHA}"
        )
    with quiet():
        defaults, overrides = _flat(registry.get_default_config(id)), _flat(dict(options.others))
    check_others(f"playground {id}", overrides, defaults)
    settings = defaults | overrides
    _check_settings(settings)
    repeat = settings.get("action_repeat", 1)
    limit = options.episode_length or -(-int(settings["episode_length"]) // repeat)
    if "impl" in defaults:
        overrides["impl"] = options.impl or ("warp" if jax.default_backend() == "gpu" else "jax")
    try:
        with quiet():
            base = registry.load(id, config_overrides=overrides)
            if options.randomized_models:
                base = _randomized(base, id, options.randomized_models)
            base = (
                base
                if repeat == 1
                else brax_envs.training.EpisodeWrapper(base, limit * repeat, repeat)
            )
            env = adapt(base, name=id, max_episode_steps=limit, title=id, metrics=options.metrics)
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"playground {id} failed: {fault_of(error)}") from error
    check_shapes(env, f"playground {id}")
    shortest = SHORTEST_OF_ROBOTS if id in ROBOTS or settings.get("vision") else limit
    # A reset costs as much as 4 steps of CartpoleSwingup, and 244 of CheetahRun, which stabilizes
    # itself first.
    return env._replace(shortest_episode=shortest, steps_per_reset=limit)


def _check_settings(settings: dict[str, Any]) -> None:
    """Check the numbers of a configuration without which nothing moves."""
    for name in ("action_repeat", "episode_length"):
        if settings.get(name) is not None and not is_count(settings[name]):
            raise ValueError(f"env.{name}={settings[name]}: {A_COUNT}")
    if not 0.0 < settings["sim_dt"] <= settings["ctrl_dt"]:
        times = f"env.sim_dt={settings['sim_dt']}, env.ctrl_dt={settings['ctrl_dt']}"
        raise ValueError(f"{times}: write seconds above 0, sim_dt at most ctrl_dt")


def _flat(options: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested options to paths with dots."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        path = f"{prefix}{name}"
        flat |= (
            _flat(value, f"{path}.") if hasattr(value, "items") and len(value) else {path: value}
        )
    return flat


def _randomized(env: Any, id: str, number: int) -> OneModel:
    """Return an environment whose episodes each have one of some models, drawn by its own domain
    randomization.
    """
    if not is_count(number):
        raise ValueError(f"env.randomized_models={number}: {A_COUNT}, such as 256")
    randomize = registry.get_domain_randomizer(id)
    if randomize is None:
        raise ValueError(
            f"env.randomized_models={number}: Playground has no domain randomization of {id}: leave it out"
        )
    models, axes = randomize(
        env.mjx_model, jax.random.split(jax.random.key_data(jax.random.key(0)), number)
    )
    return OneModel(env, "_mjx_model", models, axes)
