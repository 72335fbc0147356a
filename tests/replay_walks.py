"""Random windows of replay with masks, and a network that walks through them, for references of
targets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import Part, Replay, ReplayBatch, init_params
from jaxrl_fast.networks.network import Network
from jaxrl_fast.replay.buffers import SampledWindows, fold_n_steps, window_length


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def drawn_params(rng: np.random.Generator, part: Part) -> dict[str, Any]:
    """Draw params of a part, by network; nothing is compiled."""
    shapes = jax.eval_shape(lambda: init_params(part, jax.random.key(0)))
    return jax.tree.map(lambda s: 0.7 * normal(rng, *s.shape), shapes)


def draw(
    rng: np.random.Generator,
    data: Replay,
    networks: dict[str, Network],
    num_actions: int,
    batch: int,
) -> SampledWindows:
    """Draw windows ``[1, B, W]`` with masks that allow all; their episodes end in either way.

    ``networks`` are those whose memory before the window is stored, by part.
    """
    shape = 1, batch, window_length(data)
    ends, cuts = rng.random((2, *shape)) < 0.2
    obs, next_obs = (
        {"action_mask": np.ones((*shape, num_actions), bool), "x": normal(rng, *shape, 2)}
        for _ in "ab"
    )
    action, reward = rng.integers(0, num_actions, shape).astype(np.int32), 3.0 * normal(rng, *shape)
    outcome = reward, next_obs, ends, cuts & ~ends
    steps = Transition(obs, action, *outcome, np.roll(ends | cuts, 1, axis=2), Extras({}, {}))
    zeros = {part: net.initial_memory(batch) for part, net in networks.items()}
    return SampledWindows(steps, jax.tree.map(lambda x: normal(rng, 1, *x.shape), zeros), None)


def walk(
    net: Network, params: Any, sampled: SampledWindows, part: str
) -> tuple[np.ndarray, np.ndarray]:
    """Run a network from step to step of the windows.

    Returns:
        Outputs ``[W, B, ...]`` of the steps, and of the observations after each of them; members of
        an ensemble come behind ``W``.
    """
    steps = jax.tree.map(lambda x: x[0], sampled.steps)
    memory = jax.tree.map(lambda x: x[0], sampled.memory[part]) if net.recurrent else ()
    step: Callable[..., tuple] = jax.jit(net.apply)
    outputs, following = [], []
    for t in range(steps.reward.shape[1]):
        obs, next_obs = ({"x": seen["x"][None, :, t]} for seen in (steps.obs, steps.next_obs))
        output, after = step(params, memory, obs, steps.first[None, :, t])
        memory = jax.tree.map(lambda x: x[0], after)
        outputs.append(np.float64(output)[..., 0, :, :])
        after_it, _ = step(params, memory, next_obs, np.zeros_like(steps.first[None, :, t]))
        following.append(np.float64(after_it)[..., 0, :, :])
    return np.stack(outputs), np.stack(following)


def forbid(
    sampled: SampledWindows, now: tuple[np.ndarray, ...], following: tuple[np.ndarray, ...]
) -> SampledWindows:
    """Forbid each action that is the best by one of several values ``[W, B, num_actions]``, of each
    observation.
    """
    masked = []
    for obs, values in ((sampled.steps.obs, now), (sampled.steps.next_obs, following)):
        mask = obs["action_mask"].copy()
        for q in values:
            np.put_along_axis(mask[0], q.argmax(-1).T[..., None], False, axis=-1)
        masked.append(obs | {"action_mask": mask})
    return sampled._replace(steps=sampled.steps._replace(obs=masked[0], next_obs=masked[1]))


def batch_of(
    sampled: SampledWindows, data: Replay, discount: float, *, memory: bool
) -> ReplayBatch:
    """Return the windows as losses read them."""
    batch = fold_n_steps(sampled, jnp.float32(discount), data, memory=memory)
    return jax.tree.map(lambda x: np.asarray(x)[0].swapaxes(0, 1), batch)


def starts(data: Replay) -> range:
    """Return the steps of a window that enter the loss."""
    return range(data.burn_in, data.burn_in + data.sequence_length)
