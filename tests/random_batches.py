"""Random params, and random minibatches of the shapes that training has, for which nothing is
compiled.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Transition
from jaxrl_fast.envs.env import VecEnv
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Learned, Part, ReplayBatch, init_params
from jaxrl_fast.learning.run_graph import rollout_shapes

KEY = jax.random.key(0)


def init_shapes(part: Part) -> dict[str, Any]:
    return jax.eval_shape(lambda: init_params(part, KEY))


def redrawn(rng: np.random.Generator, tree: Any, scale: float = 1.0) -> Any:
    """Draw normal numbers of the shapes of a tree, as float32."""
    return jax.tree.map(lambda x: (scale * rng.normal(size=x.shape)).astype(np.float32), tree)


def drawn_learned(rng: np.random.Generator, parts: dict[str, Part]) -> dict[str, Learned]:
    """Draw params and other target params, by part."""
    params = {name: redrawn(rng, init_shapes(part), 0.7) for name, part in parts.items()}
    targets = {
        name: redrawn(rng, {t: params[name][t] for t in part.targets}, 0.7)
        for name, part in parts.items()
    }
    return {name: Learned(params[name], targets[name]) for name in parts}


def drawn_batch(rng: np.random.Generator, env: VecEnv, agent: BoundAgent) -> Any:
    """Draw a minibatch, without a first step of an episode."""
    example = rollout_shapes(env, agent)
    learned = {name: Learned(init_shapes(part)) for name, part in agent.parts.items()}

    def minibatch(rollout: Transition, learned: dict[str, Learned]) -> Any:
        stored = agent.experience.init(example)
        batches = agent.experience.step(stored, rollout, learned, None, agent.hyper, KEY)[1]
        return agent.experience.take(batches.data, batches.indices[0])

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == jnp.float32:
            return rng.normal(size=leaf.shape).astype(np.float32)
        return (
            np.zeros(leaf.shape) if leaf.dtype == bool else rng.integers(0, 2, leaf.shape)
        ).astype(leaf.dtype)

    batch = jax.tree.map(drawn, jax.eval_shape(minibatch, example, learned))
    if not isinstance(batch, ReplayBatch) or isinstance(batch.last, tuple):
        return batch
    length, size = batch.reward.shape
    last = np.arange(len(batch.first) - length, len(batch.first), dtype=np.int32)
    return batch._replace(last=np.repeat(last[:, None], size, axis=1))
