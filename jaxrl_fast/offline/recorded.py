"""Learning from recorded steps: before the environment is stepped, and later next to the steps that
the run samples.

Recorded steps are a second replay buffer that never changes. While a run is offline, its fragment
``sample`` does not step the environment, and batches are of recorded steps only; a step of the run
then stands for one that the data has already. Online, half of each batch is recorded and half is
sampled (RLPD, arXiv 2302.02948, section 4.1).
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.contents import digests_of_arrays
from jaxrl_fast.core import EnvSpec, Extras, PyTree, Transition, is_image, stable_hash
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.envs.host_rollout import no_steps
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Agent, AnyAlgorithm, OnPolicy, declaration_of
from jaxrl_fast.learning.data import NEXT_ACTION
from jaxrl_fast.numerics.normalization import Statistics, update_returns, update_stats
from jaxrl_fast.offline.datasets import Dataset, load_dataset, steps_in, usable
from jaxrl_fast.policy.teacher import TEACHER
from jaxrl_fast.replay.buffers import (
    Buffer,
    RingState,
    Sampled,
    SampledWindows,
    Source,
    Window,
    gather_windows,
)
from jaxrl_fast.replay.buffers import uniform_source as uniform
from jaxrl_fast.runtime.graph import Channels, Fragment, step_of

NO_CONTENTS: dict[str, str] = {}


class Recorded(NamedTuple):
    """Recorded steps, and how long a run learns from them alone.

    Attributes:
        steps: All steps ``[N, ...]`` in host memory, with `NEXT_ACTION` among their extras.
        offline_steps: Steps of the run before its environment is stepped.
        online: Whether the environment is stepped at all.
        contents: Digests of the data set's arrays.
    """

    steps: Transition
    offline_steps: int
    online: bool
    contents: dict[str, str] = NO_CONTENTS

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.steps):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        return f"Recorded({digest.hexdigest()[:16]}, {self.offline_steps}, {self.online})"

    def ticks(self, steps_per_tick: int) -> int:
        """Return the ticks before the environment is stepped."""
        return -(-self.offline_steps // steps_per_tick)

    def source(self, buffer: Buffer, steps_per_tick: int, number: int, window: Window) -> Source:
        """Return the source of batches, as `mixed_source`."""
        return mixed_source(buffer, self, steps_per_tick, number, window)


def read_recorded(
    data: Dataset | str | Path | None,
    algorithm: AnyAlgorithm,
    spec: EnvSpec,
    total_steps: int,
    online_steps: int,
) -> Recorded:
    """Read the data that a run shall learn from.

    Args:
        data: Data set, or its place (`load_dataset`).
        algorithm: Algorithm of the run.
        spec: Environment of the run.
        total_steps: Steps of the run.
        online_steps: Last steps of the run, which are the environment's.

    Returns:
        The recorded steps.

    Raises:
        ValueError: The data set is missing, damaged or of another environment, or ``online_steps``
            is too large.
    """
    if algorithm.needs_data and (data is None or online_steps):
        raise ValueError(
            f"algo={algorithm.name} learns from data alone: write data=..., and no online_steps"
        )
    if data is None:
        raise ValueError(f"online_steps={online_steps} needs data: add data=..., or leave it out")
    if online_steps > total_steps:
        raise ValueError(
            f"online_steps={online_steps} are the last of total_steps={total_steps}: write at most as many"
        )
    given, name = (
        (load_dataset(data), str(data)) if isinstance(data, str | Path) else (data, "dataset")
    )
    if spec.num_agents is not None:
        raise ValueError(
            f"data={name}: {spec.name} has several agents, which data do not support: leave data out"
        )
    dataset = usable(given, spec, name)
    steps = steps_in(dataset, spec)
    following = np.concatenate([steps.action[1:], steps.action[-1:]])
    ends = np.concatenate([steps.first[1:], [True]])
    if np.issubdtype(following.dtype, np.floating):
        following = np.where(
            ends.reshape(-1, *[1] * (following.ndim - 1)), np.float32(np.nan), following
        )
    steps = steps._replace(extras=Extras({NEXT_ACTION: following}, {}))  # type: ignore[dict-item]  # on the host
    parts = {f"obs {path}".rstrip(): leaf for path, leaf in dataset.obs.items()}
    parts |= {
        name: array for name, array in dataset._asdict().items() if name not in ("obs", "about")
    }
    return Recorded(
        steps=steps,
        offline_steps=total_steps - online_steps,
        online=online_steps > 0,
        contents=digests_of_arrays("data", parts),
    )


def with_data(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """Let an algorithm learn from recorded steps, without warm-up.

    Args:
        algorithm: Algorithm.

    Returns:
        The algorithm. Its ``build`` raises if it cannot learn from them.
    """

    def build(spec: EnvSpec, num_envs: int) -> Agent:
        agent = algorithm.build(spec, num_envs)
        data, instead = agent.data, "write algo=iql or algo=td3_bc"
        if isinstance(data, OnPolicy):
            raise ValueError(
                f"algo={algorithm.name} learns from its own newest steps, not from data: {instead}"
            )
        if any(is_image(leaf) for leaf in jax.tree.leaves(spec.obs)):
            raise ValueError(
                f"data does not support the images of {spec.name}, which replay stores once: leave it out"
            )
        if data.prioritize is not None or data.relabel is not None:
            raise ValueError(
                f"data does not support prioritized or relabeled replay: leave them out, or {instead}"
            )
        lacking = [key for key in data.keep if key != NEXT_ACTION]
        if TEACHER in lacking:
            raise ValueError(
                "a teacher acts on steps that the student samples, not on data: leave teacher or data out"
            )
        if lacking or agent.transform is not None:
            needs = ", ".join(lacking) or "a change of rollouts"
            raise ValueError(f"algo={algorithm.name} needs more than data has ({needs}): {instead}")
        return agent._replace(data=data._replace(warmup_steps=0, warmup_actions="policy"))

    return algorithm._replace(build=build, declared=declaration_of(algorithm))


class MixedState(NamedTuple):
    """State of the replay of recorded and sampled steps.

    Attributes:
        recorded: Recorded steps, which do not change.
        sampled: Buffer of the run's own steps.
        ticks: Number of ticks so far, int32.
    """

    recorded: RingState
    sampled: RingState
    ticks: jax.Array


def mixed_source(
    buffer: Buffer, recorded: Recorded, steps_per_tick: int, number: int, window: Window
) -> Source:
    """Build the source of batches whose windows are recorded and sampled in turn.

    Until the run has sampled a whole window, all are recorded.

    Args:
        buffer: Buffer of the run's own steps.
        recorded: Recorded steps.
        steps_per_tick: Steps of a tick over all environments.
        number: Windows of each shard in a tick.
        window: Shape of the windows.

    Returns:
        The source.
    """
    stored, ticks = recorded_buffer(recorded.steps, buffer, window), recorded.ticks(steps_per_tick)
    old, new = uniform(stored, number, window), uniform(buffer, -(-number // 2), window)

    def init(example: Transition) -> MixedState:
        return MixedState(old.init(example), new.init(example), jnp.zeros((), jnp.int32))

    def add(state: MixedState, rollout: Transition) -> MixedState:
        after = state._replace(ticks=state.ticks + 1)
        if not recorded.online:
            return after
        # Offline, the zeros of a rollout that was not sampled are written but not counted.
        sampled = new.add(state.sampled, rollout)
        steps = jnp.where(state.ticks < ticks, state.sampled.steps, sampled.steps)
        return after._replace(sampled=sampled._replace(steps=steps))

    def sample(state: MixedState, key: jax.Array, hyper: Any) -> Sampled:
        windows = old.sample(state.recorded, key, hyper).windows
        if not recorded.online:
            return Sampled(windows)
        own = new.sample(
            state.sampled, jax.random.fold_in(key, stable_hash("sampled")), hyper
        ).windows
        ready = state.sampled.steps >= window.length + window.stride - 1

        def in_turn(a: jax.Array, b: jax.Array) -> jax.Array:
            both = jnp.repeat(b, 2, axis=1)[:, :number]
            use = ready & (jnp.arange(number) % 2 == 1)
            return jnp.where(use.reshape(1, -1, *[1] * (a.ndim - 2)), both, a)

        return Sampled(jax.tree.map(in_turn, windows, own))

    def end_episodes(state: MixedState) -> MixedState:
        return state._replace(sampled=buffer.end_episodes(state.sampled))

    axes = MixedState(stored.state_axes, buffer.state_axes, None)  # type: ignore[arg-type]  # axes
    return Source(
        init, add, sample, end_episodes, axes, lambda state: buffer.metrics(state.sampled)
    )


def recorded_buffer(steps: Transition, like: Buffer, window: Window) -> Buffer:
    """Build a buffer that is full of recorded steps from the start; its shards have consecutive
    steps.

    Args:
        steps: Recorded steps ``[N, ...]`` in host memory.
        like: Buffer with the same number of shards.
        window: Shape of the windows.

    Returns:
        The buffer, to which nothing can be added.

    Raises:
        ValueError: There are too few steps for a window.
    """
    total, shards = len(steps.reward), like.shards
    slots = -(-total // shards)
    if slots < window.length + window.stride:
        raise ValueError(
            f"data of {total} steps are too few for sequences of {window.length} in each of {shards} shards: collect "
            f"at least {(window.length + window.stride) * shards}"
        )
    rows = (np.arange(shards * slots) % total).reshape(shards, slots)
    at_start = np.arange(slots) == 0

    def lanes() -> Transition:
        data = jax.tree.map(lambda x: np.ascontiguousarray(x[rows][:, :, None]), steps)
        decision = {name: data.extras.decision[name] for name in window.keep}
        extras: Any = Extras(decision, {}) if decision else ()
        first: Any = data.first | at_start[None, :, None] if window.memory else ()
        return data._replace(first=first, extras=extras)

    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((shards, slots, 1, *x.shape[1:]), x.dtype),
        steps._replace(
            first=steps.first if window.memory else (),  # type: ignore[arg-type]
            extras=Extras({name: steps.extras.decision[name] for name in window.keep}, {})
            if window.keep
            else (),
        ),
    )

    def init(example: Transition) -> RingState:
        # A callback, since as constants the steps would be compiled.
        data = jax.pure_callback(lanes, shapes, vmap_method="broadcast_all")
        memory: PyTree = () if not window.memory else example.extras.memory
        memory = jax.tree.map(
            lambda leaf: jnp.zeros(
                (shards, slots // window.stride, 1, *leaf.shape[2:]), leaf.dtype
            ),
            memory,
        )
        return RingState(data, jnp.int32(slots), memory)

    def available(state: RingState) -> tuple[jax.Array, jax.Array]:
        return state.steps, state.steps

    def windows(state: RingState, start: jax.Array, env: jax.Array) -> SampledWindows:
        return gather_windows(state, start, env, window)

    return like._replace(
        init=init,
        available=available,
        windows=windows,
        end_episodes=lambda state: state,
        envs_per_shard=1,
        slots=slots // window.stride,
    )


def starting_offline(
    fragments: tuple[Fragment, ...],
    env: VecEnv | HostEnv,
    agent: BoundAgent,
    shapes: Transition,
    recorded: Recorded,
) -> tuple[Fragment, ...]:
    """Let fragments wait until a run is online.

    Args:
        fragments: The fragment ``sample``, ``statistics`` if there is one, and one that makes
            batches.
        env: Environments.
        agent: Algorithm bound to them.
        shapes: Shapes of a rollout of one seed.
        recorded: Recorded steps of the run.

    Returns:
        The fragments in the same order.
    """
    sample, *statistics, experience = fragments
    ticks = recorded.ticks(env.num_envs * agent.rollout_length)
    merging = [merging_later(fragment, agent, recorded.steps, ticks) for fragment in statistics]
    return (
        sampling_later(sample, env, shapes, ticks, online=recorded.online),
        *merging,
        experience,
    )


def recorded_statistics(agent: BoundAgent, steps: Transition, start: Statistics) -> Statistics:
    """Compute the statistics of recorded steps, which normalize observations and rewards from the
    first update.

    Args:
        agent: Algorithm bound to its environments.
        steps: Recorded steps ``[N, ...]``.
        start: Statistics of no data.

    Returns:
        The statistics.
    """
    found = start
    if agent.normalize_observations:
        found = found._replace(obs=update_stats(start.obs, jax.tree.map(jnp.asarray, steps.obs), 1))
    if agent.normalize_rewards:
        column = jax.tree.map(
            lambda x: jnp.asarray(x)[:, None], steps._replace(obs=(), next_obs=(), extras=())
        )
        found, _ = update_returns(found, jnp.zeros(1), column, agent.hyper)
    return found


def sampling_later(
    fragment: Fragment, env: VecEnv | HostEnv, shapes: Transition, ticks: int, *, online: bool
) -> Fragment:
    """Let the fragment ``sample`` step its environments only after some ticks.

    Args:
        fragment: Fragment that samples.
        env: Its environments.
        shapes: Shapes of a rollout of one seed.
        ticks: Ticks in which no environment is stepped; its rollouts are zeros.
        online: Whether it steps them at all.

    Returns:
        The fragment.
    """
    if isinstance(env, HostEnv):
        return _sampling_later_on_host(fragment, env, shapes, ticks, online=online)

    def step(
        private: PyTree, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        sample = step_of(fragment, turn - ticks)
        measured = jax.eval_shape(sample, private, inputs, hyper, key)[2]

        def rest() -> tuple:
            metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), measured)
            return (
                private,
                {"rollout": _zeros(shapes, jnp)},
                {**metrics, "nonfinite_step": jnp.int32(-1)},
            )

        return (
            jax.lax.cond(turn < ticks, rest, lambda: sample(private, inputs, hyper, key))
            if online
            else rest()
        )

    return fragment._replace(step=step, counts=True)


def _zeros(shapes: Transition, xp: Any, seeds: tuple[int, ...] = ()) -> Transition:
    return jax.tree.map(lambda s: xp.zeros((*seeds, *s.shape), s.dtype), shapes)


def _sampling_later_on_host(
    fragment: Fragment, env: HostEnv, shapes: Transition, ticks: int, *, online: bool
) -> Fragment:
    """As `sampling_later`; a run that never samples needs no fragment on the host."""
    sample: Callable[..., tuple] = fragment.step

    def never(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array) -> tuple:
        return (
            private,
            {"rollout": _zeros(shapes, jnp)},
            jax.tree.map(jnp.asarray, no_steps(env, ())),
        )

    def step(private: PyTree, inputs: Channels, hyper: Any, key: jax.Array, turn: Any) -> tuple:
        if int(turn) >= ticks:
            return sample(private, inputs, hyper, key)
        seeds = (env.num_seeds,) if env.num_seeds > 1 else ()
        return private, {"rollout": _zeros(shapes, np, seeds)}, no_steps(env, seeds)

    if online:
        return fragment._replace(step=step, counts=True)
    return fragment._replace(step=never, host=False)


def merging_later(fragment: Fragment, agent: BoundAgent, steps: Transition, ticks: int) -> Fragment:
    """Let the fragment ``statistics`` begin with the statistics of recorded steps, and merge
    rollouts only later.

    Args:
        fragment: Fragment of the statistics.
        agent: Algorithm bound to its environments.
        steps: Recorded steps ``[N, ...]``.
        ticks: Ticks whose rollouts it ignores.

    Returns:
        The fragment.
    """
    plain: Callable[..., tuple] = fragment.step
    empty = jax.eval_shape(fragment.init, jax.random.key(0)).statistics
    start = recorded_statistics(
        agent, steps, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)
    )

    def init(key: jax.Array) -> PyTree:
        return fragment.init(key)._replace(statistics=start)

    def step(
        private: PyTree, inputs: Channels, hyper: Any, key: jax.Array, turn: jax.Array
    ) -> tuple:
        after, _, metrics = plain(private, inputs, hyper, key)
        now = jax.tree.map(lambda new, old: jnp.where(turn < ticks, old, new), after, private)
        return now, {"statistics": now.statistics}, metrics

    return fragment._replace(init=init, step=step, counts=True)
