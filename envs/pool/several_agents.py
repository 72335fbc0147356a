"""Environments of several agents in a pool; agents that differ are filled up to the largest. No JAX."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl_fast.envs.pool.codec import ActionCodec, ObsCodec, encode_action, encode_obs


def largest_shape(name: str, kinds: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[int, ...]:
    """The shape that holds what each agent observes, by ``(dtype, shape)`` of each.

    Raises:
        ValueError: they differ in more than the length of vectors.
    """
    shapes = {shape for _, shape in kinds}
    if len({dtype for dtype, _ in kinds}) > 1 or (len(shapes) > 1 and {len(shape) for shape in shapes} != {1}):
        each = " and ".join(dict.fromkeys(f"{dtype}{list(shape)}" for dtype, shape in kinds))
        raise ValueError(f"{name}: its agents observe {each}: only vectors of one dtype may differ, in their length")
    return max(shapes)


def most_actions(name: str, numbers: Sequence[int], bounds: Sequence[tuple[Any, Any]]) -> int:
    """How many actions the agent has that has most, 0 where they are continuous, by ``numbers`` and ``bounds`` of each.

    Raises:
        ValueError: they differ in more than the number of discrete actions.
    """
    alike = all(np.array_equal(one, bounds[0]) for one in bounds)
    if not alike or len({number > 0 for number in numbers}) > 1:
        raise ValueError(f"{name}: its agents differ in their actions: only discrete ones may, in their number")
    return max(numbers)


def own_sizes(shapes: Sequence[tuple[int, ...]], numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """`EnvSpec.own_sizes` of agents with observations of these shapes and so many actions."""
    sizes = tuple((int(np.prod(shape)), number) for shape, number in zip(shapes, numbers, strict=True))
    return sizes if len(set(sizes)) > 1 else ()


MASK, OUT, STATE = "action_mask", "out", "state"
"""Entries of observations, as `jaxrl_fast.core` has them, which cannot be imported here without JAX."""
OWN = ("atari", "butterfly", "classic", "sisl")
"""PettingZoo's own families; others are packages themselves."""
MOVED = {"mpe": "mpe2"}
"""Families that are packages of their own by now."""


class Seen(NamedTuple):
    """What agents see.

    - ``obs``: by name, of those that are there or have just left.
    - ``out``: bool ``[A]``.
    - ``state``: the world's own, or None.
    """

    obs: Mapping[Any, Any]
    out: np.ndarray
    state: Any


class AgentsTogether(gymnasium.Env):
    """A parallel environment whose agents act and are paid in one step, as the pool takes it.

    The world is over when no agent is left; it was cut if any of the last ones was, and of these those that were cut
    are not out. ``episode_length``: cut after so many steps; None: as the environment does.
    """

    def __init__(self, env: Any, episode_length: int | None = None) -> None:
        self.env, self.names, self.limit = env, list(env.possible_agents), episode_length
        self.render_mode, self.metadata = getattr(env, "render_mode", None), getattr(env, "metadata", {})
        self.number = {name: i for i, name in enumerate(self.names)}
        self.steps = 0
        space = getattr(env, "state_space", None)
        self.state_space = space if isinstance(space, spaces.Box) and len(space.shape) == 1 else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Seen, dict[str, Any]]:
        """A new episode; agents that are not there yet are out."""
        obs, _ = self.env.reset(seed=seed, options=options)
        self.steps = 0
        return self._seen(obs, self.env.agents), {}

    def step(self, action: Sequence[Any]) -> tuple[Seen, np.ndarray, bool, bool, dict[str, Any]]:
        """``action``: of all agents; of those that are out it does not count. The reward is that of each."""
        live = list(self.env.agents)
        obs, rewards, terminated, truncated, _ = self.env.step({name: action[self.number[name]] for name in live})
        self.steps += 1
        cut = [name for name in live if truncated.get(name) and not terminated.get(name)]
        there = list(self.env.agents)
        if self.steps == self.limit and there:
            cut, there = [*cut, *there], []
        over = not there
        reward = np.array([rewards.get(name, 0.0) for name in self.names], np.float32)
        return self._seen(obs, cut if over else there), reward, over and not cut, over and bool(cut), {}

    def _seen(self, obs: Mapping[Any, Any], there: Sequence[Any]) -> Seen:
        out = np.ones(len(self.names), bool)
        out[[self.number[name] for name in there]] = False
        return Seen(obs, out, None if self.state_space is None else self.env.state())

    def render(self) -> Any:
        """As the environment's own."""
        return self.env.render()

    def close(self) -> None:
        """As the environment's own."""
        self.env.close()


def acting_together(make: Callable[[], Any], episode_length: int | None = None) -> AgentsTogether:
    """What ``make`` makes, as the pool takes it."""
    return AgentsTogether(make(), episode_length)


def make_parallel(id: str, options: Mapping[str, Any], episode_length: int | None = None) -> AgentsTogether:
    """The parallel environment that ``id`` names: ``sisl/pursuit_v5``, or ``my_package/my_module``, whose
    ``parallel_env(**options)`` makes it.

    Raises:
        ValueError: there is no such module, or no parallel environment in it.
    """
    family, _, name = id.rpartition("/")
    family = MOVED.get(family, family).replace("/", ".")
    module = f"pettingzoo.{family}.{name}" if family in OWN else f"{family}.{name}"
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"there is no module {module}") from error
    if not hasattr(found, "parallel_env"):
        raise ValueError(f"{module} has no parallel_env: its agents take turns, and here all act in every step")
    return AgentsTogether(found.parallel_env(**options), episode_length)


def encode_agents(env: AgentsTogether, name: str) -> tuple[ObsCodec, ActionCodec, tuple[tuple[int, int], ...]]:
    """How observations and actions of all agents are stored: a record with ``obs`` ``[A, ...]``, ``out``, and
    ``action_mask`` and ``state`` where there are such; and ``own_sizes`` as in `EnvSpec`.

    Raises:
        ValueError: spaces that are not supported, or that cannot be filled up to the largest.
    """
    views = [_view(env.env.observation_space(agent)) for agent in env.names]
    codecs = [encode_obs(space, name) for space, _ in views]
    acts = [encode_action(env.env.action_space(agent), name) for agent in env.names]
    act, numbers = _all_actions(acts, name), [one.num_actions for one in acts]
    shape = largest_shape(name, [(codec.dtype, codec.shape) for codec in codecs])
    masked = act.num_actions > 0 and (any(own for _, own in views) or len(set(numbers)) > 1)
    fields: list[tuple] = [("obs", codecs[0].dtype, (len(codecs), *shape)), (OUT, np.bool_, (len(codecs),))]
    if masked:
        fields.append((MASK, np.bool_, (len(codecs), act.num_actions)))
    if env.state_space is not None:
        fields.append((STATE, np.float32, env.state_space.shape))
    write = _writer(env.names, codecs, [own for _, own in views], numbers if masked else [])
    sizes = own_sizes([codec.shape for codec in codecs], numbers)
    return ObsCodec((), np.dtype(fields, align=True), write), act, sizes


def _view(space: spaces.Space) -> tuple[spaces.Space, bool]:
    """What an agent sees without the mask of its actions, and whether there is one."""
    if not (isinstance(space, spaces.Dict) and MASK in space.spaces):
        return space, False
    return spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK}), True


def _all_actions(acts: Sequence[ActionCodec], name: str) -> ActionCodec:
    """The actions of all agents, ``[A, ...]``; those of one where the codec says what an agent may do."""
    first, numbers = acts[0], [one.num_actions for one in acts]
    most = most_actions(name, numbers, [(one.low, one.high) for one in acts])

    def decode(actions: np.ndarray) -> list[tuple]:
        return list(zip(*(one.decode(actions[:, i]) for i, one in enumerate(acts)), strict=True))

    return ActionCodec((len(acts), *first.shape), first.dtype, decode, most, first.low, first.high)


def _writer(
    names: Sequence[Any], codecs: Sequence[ObsCodec], masked: Sequence[bool], numbers: Sequence[int]
) -> Callable[[Any, Any], None]:
    """Writes a `Seen` into a record; ``numbers``: how many actions each agent has, empty where there are no masks."""
    flat = len(codecs[0].shape) == 1
    lengths = [codec.shape[0] if flat else None for codec in codecs]

    def write(row: Any, seen: Seen) -> None:
        views, state = row["obs"], seen.state
        row[OUT][...] = seen.out
        for i, name in enumerate(names):
            obs = seen.obs.get(name)
            if obs is None:
                views[i] = 0
                continue
            codecs[i].write(views[i, : lengths[i]] if flat else views[i, ...], obs)
        if numbers:
            _write_masks(row[MASK], seen.obs)
        if state is not None:
            row[STATE][...] = state

    def _write_masks(masks: np.ndarray, obs: Mapping[Any, Any]) -> None:
        for i, name in enumerate(names):
            own = obs[name][MASK] if masked[i] and name in obs else True
            masks[i] = False
            masks[i, : numbers[i]] = own

    return write
