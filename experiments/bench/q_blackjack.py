"""Blackjack of the Reactor paper's parallel Q-learning (see `q_learning`): Gymnasium's, and the same rules in JAX."""

import gymnasium
import numpy as np


class ThreeNumbers(gymnasium.Wrapper):
    """Observe the player's sum, the dealer's card and whether an ace counts 11, as three raw numbers.

    The tuple itself is returned: the pool writes it into its float32 array, as Ray's actors do with a whole batch.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 31.0, (3,), np.float32)
        self.step = env.step


def on_host() -> gymnasium.Env:
    """Make Gymnasium's Blackjack-v1, without the checks of its first steps."""
    return ThreeNumbers(gymnasium.make("Blackjack-v1", disable_env_checker=True))
