"""Whether an exported file acts as its policy does: both choose actions for the same random observations."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Discrete, PyTree
from jaxrl_fast.numerics.running_stats import is_mask
from jaxrl_fast.policy.policies import Policy, memory_of

NUM_STEPS, NUM_ENVS = 10, 100
NUM_OBSERVATIONS = NUM_STEPS * NUM_ENVS
NUM_PERTURBED = 16
ROUNDING = {"f32": (1e-5, 2.0**-20), "bf16": (1e-2, 2.0**-12)}
"""By precision: the difference allowed to any policy, as a share of the range of actions, and the relative change of
parameters that stands for rounding."""


ActOnBatch = Callable[[PyTree, PyTree, np.ndarray], tuple[Any, PyTree]]
"""(carry: the memory ``[E, ...]``, ignored where there is none; obs ``[E, ...]``; first ``[E]``: whether an episode
begins) -> (actions ``[E, ...]``, next carry), as a policy or its exported file does."""


def compare(policy: Policy, step: ActOnBatch) -> str:
    """How far the actions of ``step`` are from the policy's over `NUM_OBSERVATIONS` observations, in words.

    How much rounding may change actions depends on the policy and its inputs, so it is measured: they may also differ
    by as much as the policy's own do when its parameters are perturbed in their last bits.

    Raises:
        ValueError: they differ by more.
    """
    rng = np.random.default_rng(0)
    obs = draw_observations(policy, rng)
    first = np.concatenate([np.ones((1, NUM_ENVS), bool), rng.random((NUM_STEPS - 1, NUM_ENVS)) < 0.1])
    tolerance, change = ROUNDING[policy.made_by["options"].get("precision", "f32")]
    act, key = jax.jit(policy.act), jax.random.key(0)
    carry = policy.initial_carry(NUM_ENVS)

    def play_with(params: PyTree) -> np.ndarray:
        return _play(lambda carry, obs, first: act(params, carry, obs, first, key), carry, obs, first)

    expected = play_with(policy.params)
    actual = _play(step, memory_of(carry), obs, first)
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise ValueError(f"actions {actual.dtype}{actual.shape[1:]} instead of {expected.dtype}{expected.shape[1:]}")
    perturbed = np.stack([play_with(_perturb(policy.params, rng, change)) for _ in range(NUM_PERTURBED)])
    space = policy.spec.action
    if isinstance(space, Discrete):
        return _compare_discrete(actual, expected, perturbed)
    return _compare_continuous(actual, expected, perturbed, space.high - space.low, tolerance)


def draw_observations(policy: Policy, rng: np.random.Generator) -> PyTree:
    """Observations, leaves ``[T, E, ...]``: normal with the mean and deviation that the policy has seen, else standard
    normal. Integers are rounded, or else even (a byte: 0 to 255; others: 0 to 9); a mask allows at least one action."""
    spec, stats = policy.spec.obs, policy.params.obs
    known = stats is not None and float(stats.samples) > 0

    def draw(path: tuple, spec: jax.ShapeDtypeStruct, mean: Any, variance: Any) -> np.ndarray:
        size, dtype = (NUM_STEPS, NUM_ENVS, *spec.shape), np.dtype(spec.dtype)
        integer = jnp.issubdtype(dtype, jnp.integer)
        if dtype == np.bool_ or is_mask(path):
            numbers: np.ndarray = rng.random(size) < 0.5
            if is_mask(path):
                np.put_along_axis(numbers, rng.integers(size[-1], size=(*size[:-1], 1)), True, axis=-1)
        elif integer and not known:
            numbers = rng.integers(0, 256 if dtype == np.uint8 else 10, size)
        else:
            numbers = np.asarray(mean) + np.sqrt(np.asarray(variance)) * rng.standard_normal(size)
            if integer:
                numbers = np.clip(np.rint(numbers), np.iinfo(dtype).min, np.iinfo(dtype).max)
        return numbers.astype(dtype)

    if stats is None or not known:
        zeros = jax.tree.map(lambda s: np.zeros(s.shape), spec)
        return jax.tree_util.tree_map_with_path(draw, spec, zeros, jax.tree.map(np.ones_like, zeros))
    variance = jax.tree.map(lambda m2: m2 / stats.samples, stats.m2)
    return jax.tree_util.tree_map_with_path(draw, spec, stats.mean, variance)


def _play(step: ActOnBatch, carry: PyTree, obs: PyTree, first: np.ndarray) -> np.ndarray:
    """Actions ``[T, E, ...]``."""
    actions = []
    for t in range(NUM_STEPS):
        now = jax.tree.map(operator.itemgetter(t), (obs, first))
        action, carry = step(carry, *now)
        actions.append(np.asarray(action))
    return np.stack(actions)


def _perturb(params: PyTree, rng: np.random.Generator, change: float) -> PyTree:
    def perturb(x: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(x) * (1.0 + change * rng.uniform(-1.0, 1.0, x.shape)), x.dtype)

    return jax.tree.map(perturb, params)


def _compare_discrete(actual: np.ndarray, expected: np.ndarray, perturbed: np.ndarray) -> str:
    differ = actual != expected
    tied = (actual == perturbed).any(axis=0)
    if wrong := np.count_nonzero(differ & ~tied):
        raise ValueError(f"{wrong} of {NUM_OBSERVATIONS:,} actions differ from the policy's")
    count = np.count_nonzero(differ)
    return f"{count} actions differ from the policy's" + (", each a tie within rounding" if count else "")


def _compare_continuous(
    actual: np.ndarray, expected: np.ndarray, perturbed: np.ndarray, span: np.ndarray, tolerance: float
) -> str:
    span = np.where(span > 0, span, 1.0)
    difference = np.abs(actual - expected) / span
    rounding = np.abs(perturbed - expected).max(axis=0) / span
    largest = difference.max()
    if not np.all(difference <= np.maximum(tolerance, rounding)):
        raise ValueError(
            f"actions differ from the policy's by up to {largest:.2g} of their range, more than by rounding"
        )
    return f"actions differ from the policy's by at most {largest:.1e} of their range"
