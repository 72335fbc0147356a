"""Adapter of simulators that step many environments at once: Gymnasium's `VectorEnv`, Isaac Lab,
mjlab, ManiSkill, ...

A simulator has ``num_envs``, ``reset()`` and ``step(actions)`` over NumPy, JAX or PyTorch arrays
``[E, ...]``:

* ``reset`` returns ``obs`` or ``(obs, info)``;
* ``step`` returns ``(obs, reward, terminated, truncated, info)``, or ``(obs, reward, done, info)``
  with ``info["time_outs"]``, as in RSL-RL;
* spaces of one environment are ``single_observation_space`` and ``single_action_space``, or
  ``observation_space`` and ``action_space``; without any, observations are unbounded and
  ``num_actions`` actions are in [-1, 1].

How episodes restart is `Restart`, read from ``metadata["autoreset_mode"]`` or ``autoreset_mode``.
Arrays of PyTorch and JAX on the device of training stay there (`HostEnv.on_device`), by DLPack
(https://dmlc.github.io/dlpack).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from importlib import import_module
from traceback import format_exc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from jax.dlpack import from_dlpack

from jaxrl_fast.core import Box, Discrete, EnvSpec, MultiDiscrete, PyTree
from jaxrl_fast.envs.env_checks import check_spaces
from jaxrl_fast.envs.errors import EnvFailed
from jaxrl_fast.envs.host_env import UNTOLD, DeviceStep, DeviceSteps, HostEnv, HostStep
from jaxrl_fast.envs.pool.batches import Groups, check_seeds
from jaxrl_fast.envs.pool.codec import ActionCodec, Outside, encode_action, encode_obs
from jaxrl_fast.spaces import (
    CONTAINERS,
    Space,
    array_of,
    decode,
    is_bounded,
    own_shape,
    parts_of,
    to_image,
)
from jaxrl_fast.system import fault_of

FINAL_OBS = "final_obs", "final_observation"
"""Entries of ``info`` with the terminal observations, if episodes restart in the same step."""
OF_TORCH = {"cpu": "cpu", "cuda": "gpu"}
"""PyTorch's name of a device -> JAX's."""


class Restart(Enum):
    """When the next episode of an environment begins.

    Attributes:
        SAME_STEP: In the step that ended the last one; ``info`` has the terminal observation.
        NEXT_STEP: In the step after it, whose action is ignored. It is one step more, which is not
            counted, unless ``reset`` takes a ``reset_mask``.
        DISABLED: When ``reset(options={"reset_mask": done})`` is called.
    """

    SAME_STEP = "SameStep"
    NEXT_STEP = "NextStep"
    DISABLED = "Disabled"


class Layout(NamedTuple):
    """Spaces of one environment.

    Attributes:
        space: Space of observations as plain data.
        act: Codec of actions.
        spec: Spec of an environment.
        outside: As in `ObsCodec`.
    """

    space: Space
    act: ActionCodec
    spec: EnvSpec
    outside: Outside | None


def make_host(
    again: Callable[[int], Any], first: Any, *, name: str, num_envs: int, num_seeds: int = 1
) -> HostEnv:
    """Make a host environment of a simulator.

    Args:
        again: ``(num_envs) -> simulator``, makes another one, for evaluation. It may ignore the
            number.
        first: Simulator with at least ``num_envs`` environments, of which the first are used.
        name: Name in the spec and in messages.
        num_envs: Number of environments.
        num_seeds: Number of seeds.

    Returns:
        The environment, in one group.

    Raises:
        ValueError: The simulator has fewer environments, its spaces are not supported, it fails, or
            there are several seeds.
    """
    if num_seeds > 1:
        raise ValueError(
            f"num_seeds={num_seeds}: {name} is one simulator, which serves one seed: leave num_seeds out"
        )
    made = _of(first, "num_envs")
    if made < num_envs:
        raise ValueError(
            f"num_envs={num_envs}: {name} made {made} environments: write num_envs={made}, or a parameter num_envs of "
            "the function"
        )
    try:
        simulator = _Simulator(first, name, num_envs)
    except EnvFailed as error:
        raise ValueError(str(error).splitlines()[0]) from error

    def another(number: int) -> HostEnv:
        other = again(number)
        return make_host(again, other, name=name, num_envs=min(number, _of(other, "num_envs")))

    def watched(number: int, tell: Callable[[str], None]) -> HostEnv:
        alone, outside = another(number), simulator.layout.outside

        def recv(group: int) -> HostStep:
            step = alone.recv(group)
            for row, entry, text in [] if outside is None else outside(step.next_obs)[:1]:
                tell(f"environment {row} observes {entry or 'a number'} {text}")
            return step

        return alone._replace(recv=recv)

    more = {
        "overlaps": False,
        "success": lambda: simulator.successes.copy(),
        "on_device": simulator.on_device(),
    }
    return simulator.host_env(simulator.layout.spec, num_envs, another, watched=watched, **more)


class _Simulator(Groups):
    """A simulator as one group of environments, in NumPy (`HostEnv`) or on the device
    (`DeviceSteps`).
    """

    def __init__(self, simulator: Any, name: str, num_envs: int) -> None:
        super().__init__(name, num_envs, 1)
        self.simulator, self.num_envs, self.made_envs = (
            simulator,
            num_envs,
            _of(simulator, "num_envs"),
        )
        self.restart, self.resets_rows, self.declared = _restart_of(simulator)
        started = self._start(0)
        self.layout = _layout_of(simulator, started, name)
        self.like = jax.tree.leaves(started)[0]
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int32)
        self.successes = np.full(num_envs, UNTOLD, np.int8)
        self.ended: Any = None
        self.before: Any = None
        self.sent: Any = None
        self.reported: set[str] = set()

    def reset(self, seed: int | Sequence[int]) -> Any:
        self.require_open()
        self.before = self._seen(self._start(check_seeds(seed, 1)[0]))
        self.returns[:], self.lengths[:] = 0.0, 0
        return self.before

    def send(self, actions: np.ndarray, group: int) -> None:
        self.require_open()
        self.require_idle(group, self.sent is not None)
        wanted = (self.num_envs, *self.layout.act.shape)
        if np.shape(actions) != wanted:
            raise ValueError(
                f"actions of shape {list(np.shape(actions))} were sent: it takes {list(wanted)}"
            )
        spare = self.made_envs - self.num_envs
        padded = (
            np.concatenate([actions, np.repeat(actions[-1:], spare, axis=0)])
            if spare
            else np.array(actions)
        )
        self.sent = _like(decode(self.layout.act.space, padded, np), self.like)

    def recv(self, group: int) -> HostStep:
        self.require_open()
        self.require_sent(group, self.sent is not None)
        outcome, self.sent = self._advance(self.sent), None
        obs, began = self._seen(outcome.obs), self._rows(outcome.began)
        reward, terminated, truncated = (self._rows(x) for x in outcome[2:5])
        terminated = terminated.astype(bool)
        truncated = truncated.astype(bool) & ~terminated
        self.returns += reward
        self.lengths += ~began
        done, next_obs = terminated | truncated, obs
        returns, lengths = self.returns.astype(np.float32), self.lengths.copy()
        if done.any():
            finals = self.before if outcome.final_obs is None else self._seen(outcome.final_obs)
            next_obs = jax.tree.map(partial(_where, done), finals, obs)
            self.returns[done], self.lengths[done] = 0.0, 0
        if outcome.success is not None:
            counted = done & ~began
            self.successes[counted] = self._rows(outcome.success)[counted]
        self.before = obs
        self.steps += self.num_envs
        return HostStep(
            obs=obs,
            next_obs=next_obs,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            episode_return=returns,
            episode_length=lengths,
        )

    def close(self) -> None:
        if self.is_open and hasattr(self.simulator, "close"):
            self.simulator.close()
        self.is_open = False

    def on_device(self) -> DeviceSteps | None:
        """Return the functions that leave arrays on their device; None if training has another one,
        or for NumPy.
        """
        here = _device_kind(self.like) == jax.default_backend() and self.num_envs == self.made_envs
        arrange = lambda obs: _arranged(self.layout.space, obs, jnp)  # noqa: E731
        decoded = partial(decode, self.layout.act.space, xp=jnp)
        return (
            DeviceSteps(self._reset_arrays, self._step_arrays, arrange, decoded) if here else None
        )

    def _reset_arrays(self, seed: int) -> PyTree:
        self.require_open()
        return _copies(
            _arranged(self.layout.space, jax.tree.map(self._shared, self._start(seed)), jnp)
        )

    def _step_arrays(self, actions: jax.Array) -> DeviceStep:
        self.require_open()
        # only then were all arrays of the last step read, which a step overwrites
        jax.block_until_ready(actions)
        outcome = self._advance(_like(actions, self.like))
        self.steps += self.num_envs
        step = DeviceStep(
            obs=outcome.obs,
            final_obs=outcome.final_obs,
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            began=outcome.began,
        )
        return jax.tree.map(self._shared, step)

    def _shared(self, array: Any) -> Any:
        """Return a JAX array of the same memory, or a converted copy, which is reported once."""
        if not hasattr(array, "detach"):
            return jnp.asarray(array)
        dtype = str(array.dtype).removeprefix("torch.")
        narrow = {"float64": "float", "int64": "int"}.get(dtype)
        if narrow and dtype not in self.reported:
            self.reported.add(dtype)
            self.lines.append(
                f"{self.title} gives arrays of {dtype}: each is converted to 32 bits in every step"
            )
        return from_dlpack((getattr(array, narrow)() if narrow else array).detach().contiguous())

    def _start(self, seed: int) -> PyTree:
        """Start an episode in every environment; return the simulator's observations."""
        self.steps, self.sent, self.ended = 0, None, None
        arguments = {"seed": seed % 2**31} if _takes(self.simulator.reset, "seed") else {}
        return self._observed(self._call("reset", **arguments))

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a function of the simulator. An error has its traceback after the first line."""
        try:
            return getattr(self.simulator, name)(*args, **options)
        except Exception as error:
            raise EnvFailed(
                f"{self.title}: {name} failed: {fault_of(error)}\n{format_exc()}"
            ) from error

    def _observed(self, result: Any) -> PyTree:
        """Return the observations in the result of ``reset``."""
        return _plain(result[0] if isinstance(result, tuple) else result)

    def _advance(self, actions: Any) -> "SimulatorStep":
        """Take a step of all environments, and bring its results into one form."""
        result = self._call("step", actions)
        if isinstance(result, tuple) and len(result) == 5 and _is_privileged(result[1]):
            result = result[:1] + result[2:]
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            what = (
                f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            )
            raise ValueError(
                f"{self.title}: step returned {what}: return (obs, reward, terminated, truncated, info), or (obs, "
                "reward, done, info) with info['time_outs']"
            )
        obs, reward, *ends, info = result
        info = {} if info is None else info
        if not isinstance(info, Mapping):
            raise ValueError(
                f"{self.title}: step returned {type(info).__name__} as info: return a dictionary"
            )
        if not self.declared and any(info.get(name) is not None for name in FINAL_OBS):
            self.restart, self.resets_rows, self.declared = Restart.SAME_STEP, False, True
        terminated, truncated = ends if len(ends) == 2 else _by_time_outs(ends[0], info)
        infos = (x for x in (info.get("final_info"), info) if isinstance(x, Mapping))
        success = next((x["success"] for x in infos if "success" in x), None)
        outcome = SimulatorStep(
            obs=_plain(obs),
            final_obs=None,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            began=False,
            success=success,
        )
        if self.resets_rows:
            return self._reset_rows(outcome)
        if self.restart is Restart.NEXT_STEP:
            return self._skip_first(outcome)
        return outcome._replace(final_obs=self._final_obs(outcome, info))

    def _reset_rows(self, outcome: "SimulatorStep") -> "SimulatorStep":
        """Start new episodes where one ended."""
        done = _numpy(outcome.terminated).astype(bool) | _numpy(outcome.truncated).astype(bool)
        if not done.any():
            return outcome._replace(final_obs=outcome.obs)
        final = jax.tree.map(_copy, outcome.obs)
        obs = self._observed(self._call("reset", options={"reset_mask": _like(done, self.like)}))
        return outcome._replace(obs=obs, final_obs=final)

    def _skip_first(self, outcome: "SimulatorStep") -> "SimulatorStep":
        """Mark the steps that only begin an episode: truncated, with no reward and no length."""
        before, ends = self.ended, (outcome.terminated | outcome.truncated)
        if before is not None and "next" not in self.reported and _numpy(before).any():
            self.reported.add("next")
            self.lines.append(
                f"{self.title} begins an episode in the step after the last one ended. Updates use these steps, "
                "which mean nothing, too: autoreset_mode=SameStep or Disabled is better"
            )
        self.ended = ends if before is None else ends & ~before
        if before is None:
            return outcome._replace(final_obs=outcome.obs)
        return outcome._replace(
            final_obs=outcome.obs, truncated=outcome.truncated | before, began=before
        )

    def _final_obs(self, outcome: "SimulatorStep", info: Mapping[str, Any]) -> PyTree:
        """Return the terminal observations, or None where the simulator gives none."""
        reported = next((info[name] for name in FINAL_OBS if info.get(name) is not None), None)
        # Gymnasium's: None where no episode ended
        if isinstance(reported, np.ndarray) and reported.dtype == object:
            finals = jax.tree.map(np.array, outcome.obs)
            for row in (i for i, one in enumerate(reported) if one is not None):
                jax.tree.map(partial(_put, row), finals, _plain(reported[row]))
            return finals
        if reported is None and "ends" not in self.reported and _numpy(outcome.truncated).any():
            self.reported.add("ends")
            self.lines.append(
                f"{self.title} gives no info['final_obs']: where a time limit ends an episode, the observation before "
                "the last is used in its place"
            )
        return None if reported is None else _plain(reported)

    def _rows(self, array: Any) -> np.ndarray:
        """Return the numbers of the environments that are used, ``[E]``."""
        rows = np.broadcast_to(_numpy(array), (self.made_envs, *np.shape(array)[1:]))
        return rows.reshape(len(rows))[: self.num_envs]

    def _seen(self, obs: PyTree) -> PyTree:
        """Return read-only copies of observations, as training takes them."""
        rows = jax.tree.map(lambda x: _numpy(x)[: self.num_envs], obs)
        copied = jax.tree.map(np.array, _arranged(self.layout.space, rows, np))
        for array in jax.tree.leaves(copied):
            array.setflags(write=False)
        return copied


class SimulatorStep(NamedTuple):
    """Results of one step of all environments, in the simulator's arrays ``[E, ...]``, which it may
    overwrite.

    Attributes:
        obs: Observations for the policy.
        final_obs: Terminal observations where episodes ended; None where the simulator gives none.
        reward: Rewards.
        terminated: Whether an episode ended by termination.
        truncated: Whether an episode ended by its limit.
        began: Whether the step only began an episode.
        success: Whether an episode succeeded; None if unknown.
    """

    obs: PyTree
    final_obs: PyTree
    reward: Any
    terminated: Any
    truncated: Any
    began: Any
    success: Any


def _of(simulator: Any, name: str) -> Any:
    """Return an attribute of a simulator, or of the one inside Gymnasium's wrappers; None if there
    is none.
    """
    value = getattr(simulator, name, None)
    return getattr(getattr(simulator, "unwrapped", None), name, None) if value is None else value


def _restart_of(simulator: Any) -> tuple[Restart, bool, bool]:
    """Return when episodes restart, whether rows are to be reset at once, and whether the simulator
    declares it.
    """
    mode = _of(simulator, "autoreset_mode") or (_of(simulator, "metadata") or {}).get(
        "autoreset_mode"
    )
    by_default = Restart.NEXT_STEP if isinstance(simulator, VectorEnv) else Restart.SAME_STEP
    text = getattr(mode, "value", mode)
    if text is not None and text not in {one.value for one in Restart}:
        raise ValueError(
            f"autoreset_mode={text}: write one of {', '.join(one.value for one in Restart)}"
        )
    restart = by_default if text is None else Restart(text)
    plain = isinstance(getattr(simulator, "unwrapped", simulator), SyncVectorEnv | AsyncVectorEnv)
    resets_rows = restart is Restart.DISABLED or (restart is Restart.NEXT_STEP and plain)
    return restart, resets_rows, text is not None or plain


def _is_privileged(second: Any) -> bool:
    """Check whether the second result of a step are a critic's observations, as in the first
    versions of RSL-RL.
    """
    return second is None or np.shape(second)[1:] not in ((), (1,))


def _layout_of(simulator: Any, started: PyTree, name: str) -> Layout:
    """Return the spaces of one environment."""
    num_envs, row = _of(simulator, "num_envs"), jax.tree.map(lambda x: _numpy(x)[0], started)
    obs_space = _space_of(simulator, "observation_space")
    acted = _space_of(simulator, "action_space")
    if _of(simulator, "single_observation_space") is None and _holds(obs_space, started):
        obs_space, acted = _of_one(obs_space, num_envs), _of_one(acted, num_envs)
    codec = encode_obs(obs_space if isinstance(obs_space, spaces.Space) else _unbounded(row), name)
    observed = codec.space
    _check_row(observed, row, name)
    if any(part.space["kind"] == "MultiDiscrete" for part in parts_of(observed)):
        raise ValueError(
            f"{name} observes MultiDiscrete numbers: a simulator may have Box, Discrete or a Dict of these"
        )
    if acted is None and _of(simulator, "num_actions") is None:
        raise ValueError(
            f"{name} has no single_action_space: give it one, or num_actions for actions in [-1, 1]"
        )
    act = encode_action(_bounded(acted, simulator), name)
    shapes = {part.name: jax.ShapeDtypeStruct(*array_of(part.space)) for part in parts_of(observed)}
    several = MultiDiscrete(act.sizes) if act.sizes else Discrete(act.num_actions)
    action = several if act.sizes or act.num_actions else Box(act.low, act.high)
    limit = getattr(_of(simulator, "spec"), "max_episode_steps", None) or _of(
        simulator, "max_episode_length"
    )
    obs = shapes if observed["kind"] in CONTAINERS else next(iter(shapes.values()))
    spec = EnvSpec(name, obs, action, None if limit is None else int(limit))
    spec = spec._replace(obs_space=observed, action_space=act.space)
    check_spaces(spec, name)
    return Layout(observed, act, spec, codec.outside)


def _space_of(simulator: Any, name: str) -> Any:
    """Return a space: Gymnasium's, or another library's box; None if there is none."""
    candidates = (_of(simulator, key) for key in (f"single_{name}", name))
    return next((space for space in candidates if _is_space(space)), None)


def _is_space(space: Any) -> bool:
    return isinstance(space, spaces.Space) or all(hasattr(space, name) for name in Bounds._fields)


def _holds(space: Any, started: PyTree) -> bool:
    """Check whether a space is of all environments together, by the observations."""
    if isinstance(space, spaces.Dict):
        return isinstance(started, dict) and all(
            _holds(space[name], started.get(name)) for name in space
        )
    return space is not None and started is not None and np.shape(started) == space.shape


def _of_one(space: Any, num_envs: int) -> Any:
    """Return the space of one environment from the space of all."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _of_one(part, num_envs) for name, part in space.items()})
    if space is None or space.shape[:1] != (num_envs,) or not hasattr(space, "low"):
        return space
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)  # type: ignore[arg-type, union-attr]
    low, high = (
        bound[0] if np.shape(bound) == space.shape else bound for bound in (space.low, space.high)
    )
    return Bounds(shape=space.shape[1:], low=low, high=high)


def _check_row(space: Space, row: PyTree, name: str) -> None:
    """Check that the observation of one environment has the shapes of its space."""
    for part in parts_of(space):
        try:
            shape = np.shape(_at(row, part.path))
        except (KeyError, TypeError, IndexError):
            raise ValueError(
                f"{name} observes no '{part.name}', which its observation_space has"
            ) from None
        if shape != own_shape(part.space):
            what = f"'{part.name}' of shape" if part.path else "shape"
            raise ValueError(
                f"{name} observes {what} {list(shape)} in each environment: its space has {list(own_shape(part.space))}"
            )


class Bounds(NamedTuple):
    """A box of another library.

    Attributes:
        shape: Shape.
        low: Lower bounds, which broadcast to the shape.
        high: Upper bounds.
    """

    shape: tuple[int, ...]
    low: Any
    high: Any


def _bounded(space: Any, simulator: Any) -> spaces.Space:
    """Return an action space with bounds, -1 and 1 where it has neither, as RSL-RL's policies take
    it.
    """
    if space is None:
        space = Bounds((int(_of(simulator, "num_actions")),), -np.inf, np.inf)
    if not hasattr(space, "low") or np.dtype(getattr(space, "dtype", "float32")).kind != "f":
        return space
    low, high = (
        np.broadcast_to(np.float32(bound), space.shape) for bound in (space.low, space.high)
    )
    free = ~is_bounded(low, low) & ~is_bounded(high, high)
    low, high = np.where(free, np.float32(-1.0), low), np.where(free, np.float32(1.0), high)
    return spaces.Box(low, high, dtype=np.float32)


def _unbounded(row: PyTree) -> spaces.Space:
    """Return a space of the observations of one environment."""
    if isinstance(row, dict):
        return spaces.Dict({name: _unbounded(part) for name, part in row.items()})
    return spaces.Box(-np.inf, np.inf, np.shape(row), np.float32)


def _arranged(space: Space, obs: PyTree, xp: Any) -> PyTree:
    """Return observations ``[E, ...]`` as training takes them, by the same rule as one
    environment's.
    """
    if space["kind"] not in CONTAINERS:
        return _array(space, obs, xp)
    return {part.name: _array(part.space, _at(obs, part.path), xp) for part in parts_of(space)}


def _array(space: Space, values: Any, xp: Any) -> Any:
    shape, dtype = array_of(space)
    if space["kind"] == "Discrete":
        numbers = xp.arange(space["n"]) + space.get("start", 0)
        return (values.reshape(-1, 1) == numbers[None]).astype(dtype)
    if layout := space.get("layout"):
        return to_image(values.reshape(len(values), *own_shape(space)), layout, xp).astype(dtype)
    return values.reshape(len(values), *shape).astype(dtype)


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _by_time_outs(done: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return terminated and truncated of RSL-RL's interface, whose ``time_outs`` mark the ends by a
    limit.
    """
    limits = info.get("time_outs")
    done = done if str(done.dtype).endswith("bool") else done != 0
    limits = (
        done & False
        if limits is None
        else (limits if str(limits.dtype).endswith("bool") else limits != 0)
    )
    return done & ~limits, done & limits


def _plain(obs: Any) -> PyTree:
    """Return nested dictionaries of any mapping, such as a TensorDict."""
    return {str(name): _plain(part) for name, part in obs.items()} if hasattr(obs, "items") else obs


def _numpy(array: Any) -> np.ndarray:
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def _like(array: Any, like: Any) -> Any:
    """Return an array in the library and on the device of another one."""
    if hasattr(like, "detach"):
        torch = import_module("torch")
        tensor = (
            torch.from_dlpack(array)
            if isinstance(array, jax.Array)
            else torch.from_numpy(np.array(array))
        )
        return tensor.to(like.device, torch.int64 if tensor.dtype == torch.int32 else tensor.dtype)
    return jnp.asarray(array) if isinstance(like, jax.Array) else np.asarray(array)


def _device_kind(array: Any) -> str | None:
    """Return JAX's name of an array's device; None for NumPy, and for another GPU than the first."""
    if isinstance(array, jax.Array):
        return next(iter(array.devices())).platform
    if not hasattr(array, "detach"):
        return None
    first = array.device.index in (None, jax.local_devices()[0].local_hardware_id)
    return OF_TORCH.get(array.device.type) if first or array.device.type == "cpu" else None


def _copy(array: Any) -> Any:
    return (
        array.clone()
        if hasattr(array, "clone")
        else array
        if isinstance(array, jax.Array)
        else np.array(array)
    )


_copies = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))
"""Copies arrays that a simulator may overwrite."""


def _put(row: int, whole: np.ndarray, part: Any) -> None:
    whole[row] = part


def _where(done: np.ndarray, yes: Any, no: Any) -> Any:
    return np.where(done.reshape(-1, *(1,) * (no.ndim - 1)), yes, no)


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a function written in C
        return False
