"""Learners: how batches become parameters, by one learner or several, each part in turn or side by side.

One learner is a fragment ``learn`` that makes all K updates of a tick, or a fragment per part. Several learners have
equal shares of every batch; what they find is averaged by a ``server``, after every update or once a tick, or applied
by it in turns.
"""

from typing import Literal, NamedTuple

from jaxrl_fast.algorithms.interface import Part
from jaxrl_fast.experience.binding import Bound
from jaxrl_fast.experience.minibatches import MAX_SHARDS
from jaxrl_fast.fragments.averaging import averaging_gradients, averaging_parameters
from jaxrl_fast.fragments.joined_parts import make_learning
from jaxrl_fast.fragments.learning import Average, Delays, OnNan, learn_fragment
from jaxrl_fast.graph.dataflow import Fragment

Overlap = Literal["none", "sampling", "actor_critic", "all"]


class GraphOptions(NamedTuple):
    """What a graph depends on beside algorithm and environment. The placement is not among it: it changes no number.

    - ``overlap``: which fragments read data of the last tick, so that they can run at the same time as its writers.
    - ``learners``, ``average``: how many learners share the gradient updates, and what is averaged over them.
    - ``total_steps``: environment steps of the run, over all environments; schedules end there.
    - ``nan``: stop on NaN or Inf, or skip such updates.
    - ``empty_until``: the tick at which replay starts to fill; later than 0 in a resumed run that has lost it.
    - ``joined``: arrays that are treated alike are joined into one, for devices that start kernels one by one; changes
      numbers only by rounding.
    - ``shards``: the most logical shards of replay and minibatches, among which devices can divide them.
    """

    overlap: Overlap = "none"
    learners: int = 1
    average: Average = "gradients"
    total_steps: int | None = None
    nan: OnNan = "stop"
    empty_until: int = 0
    joined: bool = False
    shards: int = MAX_SHARDS


class Learners(NamedTuple):
    """The fragments of learning, and how they are connected.

    - ``fragments``: in the order in which they run.
    - ``delays``: 1 for each (reader, channel) whose data is one tick, or round, old (`dataflow.Graph`).
    """

    fragments: tuple[Fragment, ...]
    delays: Delays


def build_learners(agent: Bound, options: GraphOptions = GraphOptions(), start: int = 0) -> Learners:
    """The learning half of a graph; its fragments read ``batches`` and write a channel of `Learned` for each part.

    By default the parts take turns at every update, and each reads what the others have just learned (SAC and TD3 as
    published). Where ``options.overlap`` lets them run at the same time, each reads the others' parameters of the last
    exchange; an exchange is a tick, or an update where a server applies the gradients of several learners. ``start``:
    the first tick with updates.

    Raises:
        ValueError: the batches do not divide into equal shares for so many learners.
    """
    learners, average, side_by_side = options.learners, options.average, options.overlap in ("actor_critic", "all")
    if learners != 1:
        check_shares(agent, learners, options.shards)
    learning = make_learning(agent, start=start, nan=options.nan, turns=average == "turns", joined=options.joined)
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
