"""Host environments inside a compiled program, by ordered callbacks, so `make_train_step` and
``scan`` support them.

The state counts the pool's steps. A step raises unless its state's count equals the pool's, which
detects callbacks that were dropped, repeated or given an old state. No callback calls JAX, and
results are copies, never views of shared memory. Only one device is supported: in programs for two,
JAX 0.10 hangs on operands of 147 KB and more.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxrl_fast.core import EpisodeTotals, PyTree, Timestep, reward_shape
from jaxrl_fast.envs.env import VecEnv, VecState, sum_metrics
from jaxrl_fast.envs.episode_metrics import of_values
from jaxrl_fast.envs.host_env import MAX_STEPS, HostEnv, HostStep, as_one_group
from jaxrl_fast.runtime.placements import Placement


class BridgeError(RuntimeError):
    """A compiled program and its host environments are at different steps."""


class Bridge(NamedTuple):
    """Host environments as compiled ones.

    Attributes:
        env: Environments whose ``reset`` and ``step`` call the host environments.
        failures: Errors raised in a callback, which JAX replaces by its errors
            (`callback_errors`).
    """

    env: VecEnv
    failures: list[Exception]


def in_graph(env: VecEnv | HostEnv) -> Bridge:
    """Return the environments to build a graph with.

    Args:
        env: Compiled or host environments.

    Returns:
        A bridge to host environments with ``pool.bridge=callback``, else ``env`` with no failures.

    Raises:
        ValueError: As `make_bridge`.
    """
    if isinstance(env, HostEnv) and env.bridge == "callback":
        return make_bridge(env)
    return Bridge(env, [])  # type: ignore[arg-type]


def check_placement(env: VecEnv | HostEnv, placement: Placement) -> None:
    """Check that callbacks run in one program on one device.

    Args:
        env: Compiled or host environments.
        placement: Placement of the run.

    Raises:
        ValueError: ``pool.bridge=callback`` has a placement for several devices or programs.
    """
    alone = len(placement.groups) == 1 and len(placement.groups[0].devices) == 1
    if isinstance(env, HostEnv) and env.bridge == "callback" and not alone:
        raise ValueError(
            "pool.bridge=callback is compiled into one program for one device: write pool.bridge=host with "
            f"placement={placement.name}, or placement=fused"
        )


def make_bridge(host: HostEnv) -> Bridge:
    """Build a `VecEnv` whose ``reset`` and ``step`` may be compiled, but not vmapped.

    Args:
        host: Host environments.

    Returns:
        The bridge.

    Raises:
        ValueError: The pool serves several seeds, or steps in the order of arrival.
    """
    if host.num_seeds > 1:
        raise ValueError(
            f"num_seeds={host.num_seeds}: an ordered callback serves one seed: write pool.bridge=host, or make the "
            "environments with num_seeds=1"
        )
    if host.recv_any is not None:
        raise ValueError(
            "pool.order=arrival has no fixed order to compile: write pool.bridge=host, or pool.order=fixed"
        )
    failures: list[Exception] = []
    env = VecEnv(
        host.spec,
        host.num_envs,
        reset=_make_reset(host, failures),
        draw_fresh=lambda key, num_steps: (),
        step=_make_step(host, failures),
    )
    return Bridge(
        env._replace(sums=partial(sum_metrics, host.spec)) if host.spec.metrics else env, failures
    )


def _make_reset(host: HostEnv, failures: list[Exception]) -> Any:
    def call(seed: Any) -> np.ndarray:
        return _noting(failures, lambda: host.reset(int(seed)))

    def reset(key: jax.Array) -> tuple[VecState, PyTree]:
        seed = _one_at_a_time(jax.random.bits(key, (), jnp.uint32))
        obs = io_callback(call, _like(host, host.spec.obs), seed, ordered=True)
        return VecState(jnp.zeros((), jnp.int32), ()), obs  # type: ignore[arg-type]  # the pool has the totals

    return reset


def _make_step(host: HostEnv, failures: list[Exception]) -> Any:
    together, kinds = as_one_group(host), host.spec.metrics

    def each(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct((host.num_envs, *shape), dtype)

    obs = _like(host, host.spec.obs)
    result = HostStep(
        obs=obs,
        next_obs=obs,
        reward=each(jnp.float32, *reward_shape(host.spec)),
        terminated=each(bool),
        truncated=each(bool),
        episode_return=each(jnp.float32),
        episode_length=each(jnp.int32),
        metrics=each(jnp.float32, len(kinds)) if kinds else (),
    )
    shapes = (result, jax.ShapeDtypeStruct((), jnp.int32))

    def call(count: Any, action: Any) -> tuple[HostStep, Any]:
        return _noting(failures, lambda: _step_all(together, int(count), np.asarray(action)))

    def step(
        state: VecState, action: jax.Array, key: jax.Array, bank: PyTree, t: jax.Array
    ) -> tuple[VecState, Timestep]:
        result, count = io_callback(
            call, shapes, _one_at_a_time(state.env_state), action, ordered=True
        )
        metrics = of_values(result.metrics, jnp) if kinds else ()
        totals = EpisodeTotals(result.episode_return, result.episode_length, metrics=metrics)
        return VecState(count, ()), Timestep(  # type: ignore[arg-type]
            result.obs, result.next_obs, result.reward, result.terminated, result.truncated, totals
        )

    return step


def _step_all(host: HostEnv, count: int, action: np.ndarray) -> tuple[HostStep, Any]:
    stands = host.steps() % MAX_STEPS
    if count != stands:
        raise BridgeError(
            f"{host.spec.name}: this state is at step {count} and the environments at step {stands}: each state can be "
            "stepped once, in order, and a new init restarts the environments for all states"
        )
    host.send(action, 0)
    whole = host.recv(0)
    if host.require_inside is not None:
        host.require_inside(
            whole.next_obs, lambda row: f"environment {row}, step {host.steps() // host.num_envs}"
        )
    return whole, np.int32(host.steps() % MAX_STEPS)


def _noting(failures: list[Exception], work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        failures.append(error)
        raise


def _like(host: HostEnv, spec: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((host.num_envs, *s.shape), s.dtype), spec)


@jax.custom_batching.custom_vmap
def _one_at_a_time(x: jax.Array) -> jax.Array:
    return x


@_one_at_a_time.def_vmap
def _refuse(axis_size: int, in_batched: Any, x: jax.Array) -> Any:
    raise ValueError(
        f"an environment on the host cannot be vmapped ({axis_size} times here): its steps have one order. For several "
        "seeds write learn(num_seeds=...), for several environments make_env(num_envs=...)"
    )
