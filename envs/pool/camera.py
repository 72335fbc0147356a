"""Pictures of a Gymnasium environment while a policy plays it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from jaxrl_fast.environments.host_env import HostEnv

RENDER_MODE = "rgb_array"


class FilmedHost(NamedTuple):
    """One environment on the host, and how to take pictures of it.

    - ``env``: a `HostEnv` of this one; close it when done.
    - ``picture()``: takes a picture of the state after the last step, also where that ended the episode: uint8 RGB
      ``[height, width, 3]``.
    - ``step_s``: how long a step lasts in its pictures, in seconds.
    """

    env: HostEnv
    picture: Callable[[], np.ndarray]
    step_s: float


class Camera(gymnasium.Wrapper):
    """Keeps the picture of an episode's last state, since the pool begins the next episode in the same step."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.last: Any = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's own."""
        result = self.env.step(action)
        self.last = self.env.render() if result[2] or result[3] else None
        return result

    def picture(self) -> np.ndarray:
        """As `FilmedHost.picture`."""
        return np.asarray(self.env.render() if self.last is None else self.last)
