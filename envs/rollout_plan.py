"""What the processes of environments on the host need to make whole rollouts."""

from typing import NamedTuple

import numpy as np

Fields = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of arrays by name."""


class ActProgram(NamedTuple):
    """Action selection of some environments.

    Attributes:
        source: NumPy source of ``make(np, constants, *tick) -> act``; "" for ``exported``.
        constants: Arrays that the source reads.
        exported: Serialized JAX function of all inputs; used without a source.
    """

    source: str
    constants: list[np.ndarray]
    exported: bytes = b""


class Given(NamedTuple):
    """An array that the trainer computes before a rollout: ``given<i>`` of the shared arrays.

    Attributes:
        each_step: Whether it has the axis ``T``: ``[T, ...]``.
        axis: Axis of the environments in the program's input; the shared array has them as rows
            ``[R, ...]``, behind ``T``. None: the shared array is ``[S, ...]``, of each step
            ``[T, G, S, ...]``.
    """

    each_step: bool
    axis: int | None


class RolloutPlan(NamedTuple):
    """A rollout as its processes need it.

    Attributes:
        length: Steps of each environment, ``T``.
        num_seeds: Number of seeds, ``S``.
        num_groups: Number of groups, ``G``.
        programs: Action selection by number of environments.
        given: Inputs of the programs before carry, observations and ``first``.
        entries: Names of the observations' entries in the order of the programs' inputs; () for one
            array.
        num_carry: Number of arrays of the carry.
        num_decision: Number of arrays to store at each step.
        num_memory: Number of arrays to store at the starts of sequences.
        memory_every: Steps between two starts.
        fields: Shared arrays (`pool.rolling.rollout_fields`).
    """

    length: int
    num_seeds: int
    num_groups: int
    programs: dict[int, ActProgram]
    given: list[Given]
    entries: tuple[str, ...]
    num_carry: int
    num_decision: int
    num_memory: int
    memory_every: int
    fields: Fields
