"""Plays environments for `env_checks.check_env`: compiled ones and ones on the host in the same
way, in NumPy.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import OUT, Box, EnvSpec, MultiDiscrete, PyTree, Timestep, action_shape
from jaxrl_fast.envs.env import Env, vectorize
from jaxrl_fast.envs.host_env import HostEnv

NUM_ENVS = 8
SHORT_STEPS = 100
"""Steps that are played again to compare them."""
MAX_S = 20.0
"""Longest time to play in seconds."""
ACTIONS = ("random", "random", "extreme", "extreme", "lowest", "highest", "random", "random")
"""Actions of each environment."""


class Played(NamedTuple):
    """One step of ``E`` environments under test, as arrays of NumPy.

    Attributes:
        obs: Next observation for the policy, leaves ``[E, ...]``.
        next_obs: Observation after the action, leaves ``[E, ...]``.
        given_obs: ``obs`` of the environment's own result; on the host ``next_obs``.
        reward: Rewards, ``[E]`` or ``[E, A]``.
        terminated: Bool ``[E]``, with the time limit applied.
        truncated: Bool ``[E]``, with the time limit applied.
        ended: Whether the environment itself ended its episode, bool ``[E]``.
        before: Scalars of the state before the step, float32 ``[E, K]``.
        after: The same after the step.
    """

    obs: Any
    next_obs: Any
    given_obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: np.ndarray
    before: np.ndarray
    after: np.ndarray


class Player(NamedTuple):
    """`NUM_ENVS` environments under test.

    Attributes:
        spec: Their spec.
        start: ``(seed) -> obs``, starts an episode in each.
        step: ``(actions) -> Played``.
        steps_per_s: ``() -> steps per second`` so far, over all environments; 0 if it is not
            measured.
        close: Closes them.
    """

    spec: EnvSpec
    start: Callable[[int], Any]
    step: Callable[[np.ndarray], Played]
    steps_per_s: Callable[[], float]
    close: Callable[[], None]


class _Seen(NamedTuple):
    """What `compiled_player` records of a step, carried as an observation."""

    obs: PyTree
    given: PyTree
    ended: jax.Array
    before: jax.Array
    after: jax.Array


def _scalars(state: PyTree) -> jax.Array:
    """Return the numbers of a state without axes, some of which may count steps."""
    leaves = [
        x
        for x in jax.tree.leaves(state)
        if jnp.shape(x) == () and jnp.issubdtype(jnp.result_type(x), jnp.number)
    ]
    return (
        jnp.stack([jnp.asarray(x).astype(jnp.float32) for x in leaves])
        if leaves
        else jnp.zeros(0, jnp.float32)
    )


def compiled_player(env: Env) -> Player:
    """Make a player of a compiled environment.

    Args:
        env: Single environment.

    Returns:
        The player.
    """

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        state, obs = env.reset(key, params)
        numbers = _scalars(state)
        return state, _Seen(
            obs=obs, given=obs, ended=jnp.zeros((), bool), before=numbers, after=numbers
        )

    def step(state: PyTree, action: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        after, ts = env.step(state, action, key)
        ended = ts.terminated.astype(bool) | ts.truncated.astype(bool)
        observed = _Seen(
            obs=ts.next_obs,
            given=ts.obs,
            ended=ended,
            before=_scalars(state),
            after=_scalars(after),
        )
        return after, ts._replace(obs=observed, next_obs=observed)

    vec = vectorize(env._replace(reset=reset, step=step), num_envs=NUM_ENVS)
    begin = jax.jit(vec.reset)

    @jax.jit
    def advance(state: PyTree, actions: jax.Array, key: jax.Array) -> tuple[PyTree, Timestep]:
        return vec.step(state, actions, key, vec.draw_fresh(jax.random.fold_in(key, 1), 1), 0)

    now: dict[str, Any] = {}

    def start(seed: int) -> Any:
        now["key"] = jax.random.key(seed)
        now["state"], observed = begin(now["key"])
        return jax.tree.map(np.asarray, observed.obs)

    def play(actions: np.ndarray) -> Played:
        now["key"] = jax.random.fold_in(now["key"], 0)
        now["state"], ts = advance(now["state"], actions, now["key"])
        ts = jax.tree.map(np.asarray, ts)
        after = ts.next_obs
        return Played(
            obs=ts.obs.obs,
            next_obs=after.obs,
            given_obs=after.given,
            reward=ts.reward,
            terminated=ts.terminated,
            truncated=ts.truncated,
            ended=after.ended,
            before=after.before,
            after=after.after,
        )

    return Player(
        spec=env.spec, start=start, step=play, steps_per_s=lambda: 0.0, close=lambda: None
    )


def host_player(host: HostEnv) -> Player:
    """Make a player of environments on the host.

    Args:
        host: `NUM_ENVS` environments in one group.

    Returns:
        The player.
    """
    none, took_s = np.zeros((NUM_ENVS, 0), np.float32), [0.0]

    def by_name(obs: Any) -> Any:
        names = getattr(getattr(obs, "dtype", None), "names", None)
        return {name: obs[name] for name in names} if names else obs

    def play(actions: np.ndarray) -> Played:
        begin_s = time.perf_counter()
        host.send(actions, 0)
        step = host.recv(0)
        took_s.append(time.perf_counter() - begin_s)
        obs, next_obs = by_name(step.obs), by_name(step.next_obs)
        return Played(
            obs=obs,
            next_obs=next_obs,
            given_obs=next_obs,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            ended=step.terminated | step.truncated,
            before=none,
            after=none,
        )

    speed = lambda: NUM_ENVS * (len(took_s) - 1) / max(sum(took_s), 1e-9)  # noqa: E731
    return Player(
        spec=host.spec,
        start=lambda seed: by_name(host.reset(seed)),
        step=play,
        steps_per_s=speed,
        close=host.close,
    )


def choose_actions(spec: EnvSpec, obs: Any, rng: np.random.Generator) -> np.ndarray:
    """Choose the actions `ACTIONS`.

    Args:
        spec: Spec of the environments.
        obs: Observations, whose ``action_mask`` restricts discrete actions.
        rng: Random generator.

    Returns:
        Actions ``[E, ...]``.
    """
    shape = (NUM_ENVS, *action_shape(spec))
    if isinstance(spec.action, Box):
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in spec.action)
        chosen = {
            "random": rng.uniform(low, high),
            "extreme": np.where(rng.random(shape) < 0.5, low, high),
        }
        chosen |= {"lowest": low, "highest": high}
    else:
        sizes = (
            spec.action.sizes
            if isinstance(spec.action, MultiDiscrete)
            else (spec.action.num_actions,)
        )
        lead = shape[:-1] if isinstance(spec.action, MultiDiscrete) else shape
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        allowed: Any = (
            np.ones((*lead, sum(sizes)), np.bool_) if mask is None else np.asarray(mask, np.bool_)
        )
        chosen = {kind: np.zeros((*lead, len(sizes))) for kind in set(ACTIONS)}
        for part, part_allowed in enumerate(np.split(allowed, np.cumsum(sizes)[:-1], axis=-1)):
            ranks: dict[str, np.ndarray] = {
                kind: rng.random(part_allowed.shape) for kind in ("random", "extreme")
            }
            ranks |= {
                "lowest": -np.arange(1.0 * part_allowed.shape[-1]),
                "highest": np.arange(1.0 * part_allowed.shape[-1]),
            }
            for kind, rank in ranks.items():
                chosen[kind][..., part] = np.where(part_allowed, rank, -np.inf).argmax(-1)
        chosen = {kind: action.reshape(shape) for kind, action in chosen.items()}
    actions = np.stack([chosen[kind][i] for i, kind in enumerate(ACTIONS)])
    return actions.astype(np.float32 if isinstance(spec.action, Box) else np.int32)


class Trace(NamedTuple):
    """Episodes as they were played.

    Attributes:
        first: First observations.
        steps: The first `SHORT_STEPS` steps.
        ends: Length and kind (``terminated`` or ``truncated``) of each finished episode.
        faults: The first fault of each broken rule, by rule.
    """

    first: Any
    steps: list[Played]
    ends: list[tuple[int, str]]
    faults: dict[str, str]


def play_episodes(
    player: Player, num_steps: int, seed: int, *, changed: bool = False, until_s: float = MAX_S
) -> Trace:
    """Play with actions that depend on the seed only.

    Args:
        player: Environments.
        num_steps: Steps of each environment.
        seed: Seed of the environments and actions.
        changed: Give environment 0 other actions.
        until_s: Longest time in seconds.

    Returns:
        What was observed.
    """
    rng, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    trace = Trace(player.start(seed), [], [], {})
    obs, first, begin_s = trace.first, trace.first, time.perf_counter()
    lengths, moved = np.zeros(NUM_ENVS, int), False
    counts: Any = True  # numbers of the state that count steps, bool ``[K]``
    again: dict[str, list[bool]] = {"terminated": [], "truncated": []}
    for number in range(1, num_steps + 1):
        actions = choose_actions(player.spec, obs, rng)
        if changed:
            actions[0] = choose_actions(player.spec, obs, other)[0]
        step = player.step(actions)
        lengths += 1
        note_faults(trace.faults, step, number)
        counts = counts & ((step.after == step.before + 1) | step.ended[:, None]).all(0)
        if (counts & (step.after == 0) & (step.before > 1) & step.ended[:, None]).any():
            message = "a counter in the state starts again where an episode ends: an Env does not reset itself"
            trace.faults.setdefault("terminal", f"step {number}: {message}")
        back = equal(step.next_obs, first)
        moved = moved or not back[~step.ended].all()
        again["terminated"].extend(back[step.ended & step.terminated])
        again["truncated"].extend(back[step.ended & step.truncated])
        for i in np.flatnonzero(step.terminated | step.truncated):
            trace.ends.append(
                (int(lengths[i]), "terminated" if step.terminated[i] else "truncated")
            )
        over = step.terminated | step.truncated
        lengths[over] = 0
        first = jax.tree.map(
            lambda new, old, over=over: np.where(over, new.T, old.T).T, step.obs, first
        )
        if number <= SHORT_STEPS:
            trace.steps.append(step)
        obs = step.obs
        if time.perf_counter() - begin_s > until_s:
            break
    if moved and any(len(ends) > 1 and all(ends) for ends in again.values()):
        message = "each terminal observation equals the first one of its episode: return the observation after the action"
        trace.faults.setdefault("terminal", message)
    return trace


def equal(one: Any, other: Any) -> np.ndarray:
    """Compare two trees by environment.

    Args:
        one: Leaves ``[E, ...]``.
        other: Leaves ``[E, ...]``.

    Returns:
        Whether all leaves are equal, bool ``[E]``. NaN equals NaN.
    """
    same = np.ones(NUM_ENVS, bool)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        alike = (a == b) | ((a != a) & (b != b))
        same &= np.asarray(alike).reshape(NUM_ENVS, -1).all(1)
    return same


def note_faults(faults: dict[str, str], step: Played, number: int) -> None:
    """Add the first fault of each rule that one step shows.

    Args:
        faults: Faults by rule, changed in place.
        step: Step.
        number: Number of the step from 1.
    """

    def place(flags: Any) -> str:
        i = int(np.argmax(flags))
        return f"step {number} of an environment with {ACTIONS[i]} actions"

    for what, tree in (("observation", step.next_obs), ("reward", step.reward)):
        for leaf in jax.tree.leaves(tree):
            if np.issubdtype(leaf.dtype, np.floating):
                bad = ~np.isfinite(leaf.reshape(NUM_ENVS, -1)).all(1)
                if bad.any():
                    value = leaf.reshape(NUM_ENVS, -1)[np.argmax(bad)]
                    value = value[~np.isfinite(value)][0]
                    faults.setdefault("finite", f"{place(bad)}: {what} {value}")
    if isinstance(step.obs, dict) and "action_mask" in step.obs:
        some = np.logical_or(np.any(step.obs["action_mask"], axis=-1), step.obs.get(OUT, False))
        none = ~np.reshape(some, (NUM_ENVS, -1)).all(1)
        if none.any():
            faults.setdefault("mask", f"{place(none)}: no action is allowed")
    differs = ~equal(step.given_obs, step.next_obs)
    if differs.any():
        message = "obs differs from next_obs, though an Env does not reset itself: return the same observation as both"
        faults.setdefault("terminal", f"{place(differs)}: {message}")
