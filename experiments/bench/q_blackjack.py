"""Blackjack of the Reactor paper's parallel Q-learning (see `q_learning`): Gymnasium's, and the
same rules in JAX.
"""

import gymnasium
import numpy as np


class ThreeNumbers(gymnasium.ObservationWrapper):
    """Observe the player's sum, the dealer's card and whether an ace counts 11, as three raw
    numbers.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 31.0, (3,), np.float32)

    def observation(self, observation: tuple[int, int, int]) -> np.ndarray:
        """Return float32 ``[3]``."""
        return np.array(observation, np.float32)


def on_host() -> gymnasium.Env:
    """Make Gymnasium's Blackjack-v1, without the checks of its first steps."""
    return ThreeNumbers(gymnasium.make("Blackjack-v1", disable_env_checker=True))
