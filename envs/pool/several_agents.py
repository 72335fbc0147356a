"""Multi-agent environments in a pool. Agents that differ in size are padded to the largest. No JAX."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl_fast.envs.pool.codec import ActionCodec, ObsCodec, describe_obs, encode_action, flat_obs


def largest_shape(name: str, kinds: Sequence[tuple[Any, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the shape that holds the observation of every agent.

    Args:
        name: Name in error messages.
        kinds: ``(dtype, shape)`` of each agent's observation.

    Returns:
        The largest shape.

    Raises:
        ValueError: The observations differ in more than the length of vectors.
    """
    shapes = {shape for _, shape in kinds}
    if len({dtype for dtype, _ in kinds}) > 1 or (
        len(shapes) > 1 and {len(shape) for shape in shapes} != {1}
    ):
        each = " and ".join(dict.fromkeys(f"{dtype}{list(shape)}" for dtype, shape in kinds))
        raise ValueError(
            f"{name}: its agents observe {each}: only vectors of one dtype may differ, in their length"
        )
    return max(shapes)


def most_actions(name: str, numbers: Sequence[int], bounds: Sequence[tuple[Any, Any]]) -> int:
    """Return the largest number of discrete actions of an agent.

    Args:
        name: Name in error messages.
        numbers: Number of discrete actions of each agent, 0 if continuous.
        bounds: Bounds of the continuous actions of each agent.

    Returns:
        The largest number, 0 if actions are continuous.

    Raises:
        ValueError: The actions differ in more than the number of discrete actions.
    """
    alike = all(np.array_equal(one, bounds[0]) for one in bounds)
    if not alike or len({number > 0 for number in numbers}) > 1:
        raise ValueError(
            f"{name}: its agents differ in their actions: only discrete ones may, in their number"
        )
    return max(numbers)


def own_sizes(
    shapes: Sequence[tuple[int, ...]], numbers: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return `EnvSpec.own_sizes` of agents.

    Args:
        shapes: Shape of each agent's observation.
        numbers: Number of discrete actions of each agent.

    Returns:
        (observation size, number of actions) of each agent; ``()`` if all are equal.
    """
    sizes = tuple(
        (int(np.prod(shape)), number) for shape, number in zip(shapes, numbers, strict=True)
    )
    return sizes if len(set(sizes)) > 1 else ()


MASK, OUT, STATE = "action_mask", "out", "state"
"""Entries of observations. They repeat `jaxrl_fast.core`, which imports JAX."""
OWN = ("atari", "butterfly", "classic", "sisl")
"""Families of environments inside PettingZoo. Others are separate packages."""
MOVED = {"mpe": "mpe2"}
"""Families that left PettingZoo -> their package."""


class Seen(NamedTuple):
    """Observations of all agents.

    Attributes:
        obs: Observation by name, of the agents that are present or have just left.
        out: Agents that are absent, bool ``[A]``.
        state: Global state of the environment, or None.
    """

    obs: Mapping[Any, Any]
    out: np.ndarray
    state: Any


class AgentsTogether(gymnasium.Env):
    """A parallel environment as the pool takes it, with one action and one reward array for all
    agents.

    An episode ends when no agent is left. It is truncated if any of the last agents was truncated;
    of these agents, those truncated are not out. ``episode_length`` is a time limit in steps; None
    uses the environment's.
    """

    def __init__(self, env: Any, episode_length: int | None = None) -> None:
        self.env, self.names, self.limit = env, list(env.possible_agents), episode_length
        self.render_mode, self.metadata = (
            getattr(env, "render_mode", None),
            getattr(env, "metadata", {}),
        )
        self.number = {name: i for i, name in enumerate(self.names)}
        self.steps = 0
        space = getattr(env, "state_space", None)
        self.state_space = (
            space if isinstance(space, spaces.Box) and len(space.shape) == 1 else None
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Seen, dict[str, Any]]:
        """Start an episode; agents that are not present yet are out."""
        obs, _ = self.env.reset(seed=seed, options=options)
        self.steps = 0
        return self._seen(obs, self.env.agents), {}

    def step(self, action: Sequence[Any]) -> tuple[Seen, np.ndarray, bool, bool, dict[str, Any]]:
        """Step with the actions of all agents (ignored for those that are out), and return the
        reward of each.
        """
        live = list(self.env.agents)
        obs, rewards, terminated, truncated, _ = self.env.step(
            {name: action[self.number[name]] for name in live}
        )
        self.steps += 1
        cut = [name for name in live if truncated.get(name) and not terminated.get(name)]
        there = list(self.env.agents)
        if self.steps == self.limit and there:
            cut, there = [*cut, *there], []
        over = not there
        reward = np.array([rewards.get(name, 0.0) for name in self.names], np.float32)
        return (
            self._seen(obs, cut if over else there),
            reward,
            over and not cut,
            over and bool(cut),
            {},
        )

    def _seen(self, obs: Mapping[Any, Any], there: Sequence[Any]) -> Seen:
        out = np.ones(len(self.names), bool)
        out[[self.number[name] for name in there]] = False
        return Seen(obs, out, None if self.state_space is None else self.env.state())

    def render(self) -> Any:
        """Draw the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        getattr(self.env, "close", lambda: None)()


def acting_together(make: Callable[[], Any], episode_length: int | None = None) -> AgentsTogether:
    """Make a parallel environment for the pool.

    Args:
        make: Makes a PettingZoo parallel environment.
        episode_length: Time limit in steps, or None.

    Returns:
        The environment.
    """
    return AgentsTogether(make(), episode_length)


def make_parallel(
    id: str, options: Mapping[str, Any], episode_length: int | None = None
) -> AgentsTogether:
    """Make a parallel environment by id for the pool.

    Args:
        id: ``sisl/pursuit_v5``, or ``my_package/my_module``, a module with ``parallel_env``.
        options: Arguments of ``parallel_env``.
        episode_length: Time limit in steps, or None.

    Returns:
        The environment.

    Raises:
        ValueError: The module does not exist, or has no ``parallel_env``.
    """
    family, _, name = id.rpartition("/")
    family = MOVED.get(family, family).replace("/", ".")
    module = f"pettingzoo.{family}.{name}" if family in OWN else f"{family}.{name}"
    try:
        package = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"there is no module {module}") from error
    if not hasattr(package, "parallel_env"):
        raise ValueError(
            f"{module} has no parallel_env, its agents take turns: write env=custom with a function that returns "
            "pettingzoo.utils.turn_based_aec_to_parallel(...) of its env"
        )
    return AgentsTogether(package.parallel_env(**options), episode_length)


def encode_agents(
    env: AgentsTogether, name: str
) -> tuple[ObsCodec, ActionCodec, tuple[tuple[int, int], ...]]:
    """Make the codecs of all agents' observations and actions.

    An observation is a record with ``obs`` ``[A, ...]``, ``out``, and if present ``action_mask``
    and ``state``.

    Args:
        env: Environment.
        name: Name in error messages.

    Returns:
        Codec of observations, codec of actions, and `EnvSpec.own_sizes`.

    Raises:
        ValueError: Spaces that are not supported, or that cannot be padded to the largest.
    """
    views = [_view(env.env.observation_space(agent)) for agent in env.names]
    codecs = [flat_obs(space, name) for space, _ in views]
    spaces_of = {agent: describe_obs(env.env.observation_space(agent), name) for agent in env.names}
    acts = [encode_action(env.env.action_space(agent), name) for agent in env.names]
    act = _all_actions(acts, name)
    act = act._replace(
        space={
            "kind": "Agents",
            "spaces": {a: one.space for a, one in zip(env.names, acts, strict=True)},
        }
    )
    numbers = [one.num_actions for one in acts]
    shape = largest_shape(name, [(codec.dtype, codec.shape) for codec in codecs])
    masked = act.num_actions > 0 and (
        any(has_mask for _, has_mask in views) or len(set(numbers)) > 1
    )
    fields: list[tuple] = [
        ("obs", codecs[0].dtype, (len(codecs), *shape)),
        (OUT, np.bool_, (len(codecs),)),
    ]
    if masked:
        fields.append((MASK, np.bool_, (len(codecs), act.num_actions)))
    if env.state_space is not None:
        fields.append((STATE, np.float32, env.state_space.shape))
    write = _writer(
        env.names, codecs, [has_mask for _, has_mask in views], numbers if masked else []
    )
    sizes = own_sizes([codec.shape for codec in codecs], numbers)
    return (
        ObsCodec((), np.dtype(fields, align=True), write, {"kind": "Agents", "spaces": spaces_of}),
        act,
        sizes,
    )


def _view(space: spaces.Space) -> tuple[spaces.Space, bool]:
    """Return an agent's observation space without the action mask, and whether it has one."""
    if not (isinstance(space, spaces.Dict) and MASK in space.spaces):
        return space, False
    return spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK}), True


def _all_actions(acts: Sequence[ActionCodec], name: str) -> ActionCodec:
    """Make the codec of all agents' actions, ``[A, ...]``. ``num_actions`` and bounds are one
    agent's.
    """
    first, numbers = acts[0], [one.num_actions for one in acts]
    most = most_actions(name, numbers, [(one.low, one.high) for one in acts])

    def decode(actions: np.ndarray) -> list[tuple]:
        return list(zip(*(one.decode(actions[:, i]) for i, one in enumerate(acts)), strict=True))

    if len({one.sizes for one in acts}) > 1:
        raise ValueError(
            f"{name}: its agents differ in the parts of their actions: only one discrete part may"
        )
    return first._replace(shape=(len(acts), *first.shape), decode=decode, num_actions=most)


def _writer(
    names: Sequence[Any], codecs: Sequence[ObsCodec], masked: Sequence[bool], numbers: Sequence[int]
) -> Callable[[Any, Any], None]:
    """Make a function that writes a `Seen` into a record. ``numbers`` of actions is empty if there
    are no masks.
    """
    flat = len(codecs[0].shape) == 1
    lengths = [codec.shape[0] if flat else None for codec in codecs]

    def write(row: Any, observed: Seen) -> None:
        views, state = row["obs"], observed.state
        row[OUT][...] = observed.out
        for i, name in enumerate(names):
            obs = observed.obs.get(name)
            if obs is None:
                views[i] = 0
                continue
            codecs[i].write(views[i, : lengths[i]] if flat else views[i, ...], obs)
        if numbers:
            _write_masks(row[MASK], observed.obs)
        if state is not None:
            row[STATE][...] = state

    def _write_masks(masks: np.ndarray, obs: Mapping[Any, Any]) -> None:
        for i, name in enumerate(names):
            mask = obs[name][MASK] if masked[i] and name in obs else True
            masks[i] = False
            masks[i, : numbers[i]] = mask

    return write
