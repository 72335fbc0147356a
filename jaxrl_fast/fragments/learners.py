"""Learners: how batches become parameters, by one learner or several, each part in turn or side by side.

One learner is a fragment ``learn`` that makes all K updates of a tick, or a fragment per part. Several learners have
equal shares of every batch; what they find is averaged by a ``server``, after every update or once a tick, or applied
by it in turns.
"""

from typing import NamedTuple

from jaxrl_fast.algorithms.interface import Part
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.experience.minibatches import MAX_SHARDS
from jaxrl_fast.fragments.averaging import averaging_gradients, averaging_parameters
from jaxrl_fast.fragments.joined_parts import make_learning
from jaxrl_fast.fragments.learning import Average, Delays, OnNan, learn_fragment
from jaxrl_fast.graph.dataflow import Fragment


class Learners(NamedTuple):
    """The fragments of learning, and how they are connected.

    - ``fragments``: in the order in which they run.
    - ``delays``: 1 for each (reader, channel) whose data is one tick, or round, old (`dataflow.Graph`).
    """

    fragments: tuple[Fragment, ...]
    delays: Delays


def build_learners(
    agent: Bound,
    *,
    max_shards: int = MAX_SHARDS,
    side_by_side: bool = False,
    learners: int = 1,
    average: Average = "gradients",
    start: int = 0,
    nan: OnNan = "stop",
    joined: bool = False,
) -> Learners:
    """The learning half of a graph; its fragments read ``batches`` and write a channel of `Learned` for each part.

    By default the parts take turns at every update, and each reads what the others have just learned (SAC and TD3 as
    published). ``side_by_side``: each reads the others' parameters of the last exchange, so that they can run at the
    same time; an exchange is a tick, or an update where a server applies the gradients of several learners.
    ``max_shards``: as the agent was bound with, for the message.

    Raises:
        ValueError: the batches do not divide into equal shares for so many learners.
    """
    if learners != 1:
        check_shares(agent, learners, max_shards)
    learning = make_learning(agent, start=start, nan=nan, turns=average == "turns", joined=joined)
    teams = [(name,) for name in agent.parts] if side_by_side else [tuple(agent.parts)]
    if learners > 1 and average != "parameters":
        return Learners(*averaging_gradients(learning, side_by_side, learners))
    if learners > 1:
        pairs = [averaging_parameters(learning, team, learners) for team in teams]
        return _delayed(tuple(pair[0] for pair in pairs) + tuple(pair[1] for pair in pairs), agent.parts)
    return _delayed(tuple(learn_fragment(learning, team) for team in teams), agent.parts)


def check_shares(agent: Bound, learners: int, max_shards: int) -> None:
    """Raises ValueError where the batches do not divide into equal shares for so many learners."""
    shards = agent.experience.shards
    if learners < 1 or shards % learners:
        raise ValueError(
            f"learners={learners} cannot share the {shards} logical shards of the batches (common divisor of "
            f"{max_shards}, num_envs and the batch): write learners={_divisor_near(shards, learners)}, or "
            + (
                f"shards={learners} with sizes that {learners} divides"
                if learners > 0 and max_shards % learners
                else "other sizes"
            )
        )


def _delayed(fragments: tuple[Fragment, ...], parts: dict[str, Part]) -> Learners:
    delays = {(f.name, c): 1 for f in fragments for c in f.reads if c in parts}
    return Learners(fragments, delays)


def _divisor_near(number: int, wanted: int) -> int:
    return max(d for d in range(1, number + 1) if number % d == 0 and d <= max(wanted, 1))
