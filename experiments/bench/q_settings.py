"""Parallel Q-learning as in the Reactor paper's benchmark: the common settings of all programs of
`q_learning`.

Imports only packages that all programs have.
"""

from typing import NamedTuple


class Settings(NamedTuple):
    """A round is ``num_envs x rollout_length`` steps and one update; the target network updates
    every ``target_period`` updates.
    """

    num_envs: int = 16
    rollout_length: int = 100
    buffer_size: int = 20_000
    hidden: int = 32
    learning_rate: float = 0.01
    discount: float = 0.99
    epsilon: float = 0.1
    target_period: int = 10


SETTINGS = Settings()
LAST_ROUNDS = 50


def at_end(rewards: list[list[float]]) -> float:
    """Compute the mean return of the episodes of the last rounds, with exploration."""
    last = [reward for one in rewards[-LAST_ROUNDS:] for reward in one]
    return sum(last) / len(last)
