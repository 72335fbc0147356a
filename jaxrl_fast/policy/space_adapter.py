"""A policy's conversion between the environment's own observations and actions and the arrays of
training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Var

from jaxrl_fast import spaces
from jaxrl_fast.core import EnvSpec, PyTree
from jaxrl_fast.numerics.normalization import RunningStats


class PolicyParams(NamedTuple):
    """Arrays of a policy.

    Attributes:
        parts: Params of the networks that select actions, by part of the algorithm.
        obs: Statistics that normalize observations; None without normalization.
    """

    parts: dict[str, PyTree]
    obs: RunningStats | None


ActBatch = Callable[[PolicyParams, PyTree, PyTree, jax.Array, jax.Array], tuple[Any, PyTree]]
"""``(params, carry, obs, first, key) -> (actions, carry)`` of a batch."""


class SpaceAdapter:
    """Conversion between an environment's own observations and actions and the arrays of a policy.

    Attributes:
        space: Observation space.
        spec: Environment.
    """

    def __init__(
        self, spec: EnvSpec, act_arrays: ActBatch, initial_carry: Callable[[int], PyTree]
    ) -> None:
        self.spec, self.space = spec, spec.obs_space or spaces.space_of_arrays(spec.obs)
        self._act, self._carry = act_arrays, initial_carry
        self._arrays: SpaceAdapter | None = None
        self._readers: dict[tuple, tuple[spaces.SpacePart, spaces.Read]] = {}
        self._compiled: dict[tuple[tuple, ...], Callable[..., jax.Array]] = {}

    def of(self, obs: PyTree) -> "SpaceAdapter":
        """Return the adapter of an observation: several agents may also observe the arrays of
        training.
        """
        named = (
            isinstance(obs, Mapping)
            and isinstance(self.spec.obs, dict)
            and set(obs) <= set(self.spec.obs)
        )
        if self.space["kind"] != "Agents" or not named:
            return self
        if self._arrays is None:
            self._arrays = SpaceAdapter(
                self.spec._replace(obs_space=None, action_space=None), self._act, self._carry
            )
        return self._arrays

    def parts(self, params: PolicyParams) -> list[spaces.SpacePart]:
        """Return the parts of observations on which actions depend."""
        if not self._readers:
            parts = spaces.parts_of(self.space)
            used = zip(parts, self._used(parts, self._arrays_read(params)), strict=True)
            self._readers = {
                part.path: (part, spaces.reader(part)) for part, is_used in used if is_used
            }
        return [part for part, _ in self._readers.values()]

    def read(self, params: PolicyParams, obs: PyTree) -> tuple[tuple[tuple, ...], list[Any]]:
        """Take the parts that actions depend on out of an observation.

        Args:
            params: Parameters of the policy.
            obs: Observation with any leading axes. With several agents, those that are missing are
                out.

        Returns:
            The paths of the parts, and their arrays.

        Raises:
            ValueError: The observation has other shapes, dtypes or names.
        """
        if not self._readers:
            self.parts(params)
        readers = self._readers
        try:
            if self.space["kind"] == "Agents":
                agents = set(obs) - {"world_state"} if isinstance(obs, Mapping) else set()
                if not agents or not agents <= set(self.space["spaces"]):
                    raise ValueError(f"its agents are {', '.join(self.space['spaces'])}")
                readers = {path: both for path, both in readers.items() if path[0] in obs}
            values = [read(obs) for _, read in readers.values()]
            if len(values) > 1:
                spaces.lead_of([part for part, _ in readers.values()], values)
            return tuple(readers), values
        except ValueError as error:
            texts = {path: spaces.text_of(part.space) for path, (part, _) in readers.items()}
            expected = str(spaces.build(self.space, texts) if texts else {}).replace("'", "")
            received = spaces.text_of_value(obs)
            received += "" if str(error).startswith(f"it is {received}, not ") else f": {error}"
            raise ValueError(
                f"the policy of {self.spec.name} takes {expected}, but this observation is {received}"
            ) from error

    def to_arrays(self, paths: Sequence[tuple], values: Sequence[Any], xp: Any = jnp) -> PyTree:
        """Convert parts ``[..., *own]`` to the arrays of training; others are zeros."""
        by_path, spec = dict(zip(paths, values, strict=True)), self.spec.obs
        lead = self.lead(paths, values)
        if self.spec.obs_space is None:
            every = [part.path for part in spaces.parts_of(self.space)]
            leaves = [
                xp.asarray(by_path[path], s.dtype)
                if path in by_path
                else xp.zeros((*lead, *s.shape), s.dtype)
                for path, s in zip(every, jax.tree.leaves(spec), strict=True)
            ]
            return jax.tree.unflatten(jax.tree.structure(spec), leaves)
        if self.space["kind"] == "Agents":
            assert self.spec.action_space is not None
            arrays = spaces.encode_agents(self.space, self.spec.action_space, spec, by_path, xp)
        else:
            arrays = spaces.encode(self.space, by_path, xp)
        if not isinstance(spec, dict):
            return arrays
        empty = {
            name: xp.zeros((*lead, *s.shape), s.dtype)
            for name, s in spec.items()
            if name not in arrays
        }
        return {**arrays, **empty}

    def lead(self, paths: Sequence[tuple], values: Sequence[Any]) -> tuple[int, ...]:
        """Return the batch axes of parts."""
        parts = {part.path: part for part in spaces.parts_of(self.space)}
        return spaces.lead_of([parts[path] for path in paths], values)

    def to_actions(self, action: Any, xp: Any = jnp) -> Any:
        """Convert actions of training to the environment's own."""
        return (
            action
            if self.spec.action_space is None
            else spaces.decode(self.spec.action_space, action, xp)
        )

    def first_action(self, params: PolicyParams, obs: PyTree) -> Any:
        """Return actions for observations that begin episodes, compiled; inside of `jax.jit` as
        JAX's arrays.
        """
        paths, values = self.read(params, obs)
        for path, value in zip(paths, values, strict=True):
            if isinstance(value, jax.Array) and not isinstance(value, Tracer):
                what = f"'{'.'.join(map(str, path))}'" if path else "the observation"
                spaces.require_finite(value, f"the policy of {self.spec.name}: {what}")
        if paths not in self._compiled:
            self._compiled[paths] = jax.jit(partial(self._first_action, paths))
        action = self._compiled[paths](params, values)
        if self.spec.action_space is None:
            return action
        xp: Any = jnp if isinstance(action, Tracer) else np
        actions = self.to_actions(action if xp is jnp else np.asarray(action), xp)
        return (
            {name: x for name, x in actions.items() if name in obs}
            if self.space["kind"] == "Agents"
            else actions
        )

    def _first_action(
        self, paths: tuple, params: PolicyParams, values: list[jax.Array]
    ) -> jax.Array:
        obs, lead = self.to_arrays(paths, values), self.lead(paths, values)
        batch = jax.tree.map(lambda x: x.reshape(math.prod(lead), *x.shape[len(lead) :]), obs)
        begins = jnp.ones(math.prod(lead), bool)
        action, _ = self._act(
            params, self._carry(math.prod(lead)), batch, begins, jax.random.key(0)
        )
        return action.reshape((*lead, *action.shape[1:]))

    def _arrays_read(self, params: PolicyParams) -> list[bool]:
        """Return for each array of training whether actions or memory depend on it."""
        obs = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), self.spec.obs)

        def act(obs: PyTree) -> tuple:
            return self._act(params, self._carry(1), obs, jnp.ones(1, bool), jax.random.key(0))

        jaxpr = jax.make_jaxpr(act)(obs).jaxpr
        needed = {var for var in jaxpr.outvars if isinstance(var, Var)}
        for equation in reversed(jaxpr.eqns):
            if needed & set(equation.outvars):
                needed |= {var for var in equation.invars if isinstance(var, Var)}
        return [var in needed for var in jaxpr.invars]

    def _used(self, parts: Sequence[spaces.SpacePart], is_read: Sequence[bool]) -> list[bool]:
        """Return for each part whether its array is read."""
        if self.spec.obs_space is None or len(parts) == 1:
            return list(is_read) if len(is_read) == len(parts) else [True] * len(parts)
        if self.space["kind"] == "Agents":
            return [True] * len(parts)
        names = {
            path[0].key
            for (path, _), used in zip(
                jax.tree.leaves_with_path(self.spec.obs), is_read, strict=True
            )
            if used
        }
        return [
            (spaces.MASK if part.path[0] == spaces.MASK else part.name) in names for part in parts
        ]


def adapter_of(
    spec: EnvSpec, act_arrays: ActBatch, initial_carry: Callable[[int], PyTree]
) -> SpaceAdapter:
    """Return the adapter of a function that selects actions, the same one at each call.

    Args:
        spec: Environment.
        act_arrays: Action selection on the arrays of training.
        initial_carry: `Policy.initial_carry`.

    Returns:
        The adapter.
    """
    adapter: SpaceAdapter | None = getattr(act_arrays, "adapter", None)
    if adapter is None or adapter.spec is not spec:
        adapter = SpaceAdapter(spec, act_arrays, initial_carry)
        vars(act_arrays)["adapter"] = adapter
    return adapter
