"""Changes of rollouts before they are stored, as `algorithm.Transform` declares them. Only an
algorithm that has one goes through this file.
"""

from typing import Any, NamedTuple

import jax

from jaxrl_fast.core import Batches, PyTree, Transition, stable_hash
from jaxrl_fast.learning.algorithm import Agent, Learned, Part, Peers, init_params
from jaxrl_fast.learning.minibatches import Experience
from jaxrl_fast.numerics.normalization import Statistics
from jaxrl_fast.numerics.optimizers import at_start


class TransformedState(NamedTuple):
    """State of a storage whose rollouts are changed.

    Attributes:
        transform: State of the `Transform`.
        storage: State of the storage after it.
    """

    transform: PyTree
    storage: PyTree


def transformed(experience: Experience, agent: Agent, hyper: Any) -> Experience:
    """Change rollouts before they are stored.

    Args:
        experience: Storage and batches.
        agent: Algorithm built for one environment, with a `Transform`.
        hyper: Hyper-parameters of the algorithm, which may be schedules.

    Returns:
        The storage and batches of changed rollouts.

    Raises:
        ValueError: The `Transform` reads a part that the algorithm does not have.
    """
    transform = agent.transform
    assert transform is not None
    if unknown := [name for name in transform.reads if name not in agent.parts]:
        raise ValueError(
            f"transform reads {', '.join(unknown)}: write one of the parts {', '.join(agent.parts)}"
        )

    def apply(
        state: PyTree, rollout: Transition, learned: Peers, hyper: Any, key: jax.Array
    ) -> tuple:
        peers = {name: learned[name] for name in transform.reads}
        return transform.apply(
            rollout, peers, state, hyper, jax.random.fold_in(key, stable_hash("transform"))
        )

    def init(example: Transition | None) -> TransformedState:
        state = transform.init()
        if example is None:
            return TransformedState(state, experience.init(None))
        learned = {name: learned_shapes(agent.parts[name]) for name in transform.reads}
        changed = jax.eval_shape(
            apply, state, example, learned, at_start(hyper), jax.random.key(0)
        )[0]
        return TransformedState(state, experience.init(changed))

    def step(
        state: TransformedState,
        rollout: Transition,
        learned: Peers,
        statistics: Statistics | None,
        hyper: Any,
        key: jax.Array,
    ) -> tuple[TransformedState, Batches]:
        rollout, after = apply(state.transform, rollout, learned, hyper, key)
        storage, batches = experience.step(state.storage, rollout, learned, statistics, hyper, key)
        return TransformedState(after, storage), batches

    return experience._replace(
        init=init,
        step=step,
        reads=tuple(dict.fromkeys((*experience.reads, *transform.reads))),
        state_axes=TransformedState(None, experience.state_axes),
        metrics=lambda state: experience.metrics(state.storage),
        end_episodes=lambda state: state._replace(storage=experience.end_episodes(state.storage)),
        learn_priorities=lambda state, feedback: state._replace(
            storage=experience.learn_priorities(state.storage, feedback)
        ),
    )


def learned_shapes(part: Part) -> Learned:
    """Return the shapes of a part's `Learned`.

    Args:
        part: Part.

    Returns:
        Shapes and dtypes.
    """
    params = jax.eval_shape(lambda key: init_params(part, key), jax.random.key(0))
    return Learned(params, {name: params[name] for name in part.targets})
