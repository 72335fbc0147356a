"""Train in a Gymnasium environment: ``python examples/gymnasium_env.py``.

A `gymnasium.Env` runs in Python on the host and needs no wrapper: pass a function that makes it.
``workers`` is the number of processes that step the environments; 0 steps them in this process.
"""

import gymnasium
import numpy as np

import jaxrl_fast as jf


class Thermostat(gymnasium.Env):
    """A leaking room with a heater (off, half or full power) and a door that opens at random. A
    step is a minute.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start in a cold room, with the door shut."""
        super().reset(seed=seed)
        self.celsius, self.door_open = self.np_random.uniform(5.0, 15.0), False
        return self.see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Update the temperature; the cost is the distance from 21 °C plus energy."""
        if self.np_random.random() < 0.1:
            self.door_open = not self.door_open
        leak = 0.12 if self.door_open else 0.03
        self.celsius += 0.8 * float(action) - leak * (self.celsius - 5.0)
        return self.see(), -0.1 * abs(self.celsius - 21.0) - 0.02 * float(action), False, False, {}

    def see(self) -> np.ndarray:
        """Return the observation: scaled temperature and door."""
        return np.clip([(self.celsius - 21.0) / 16.0, float(self.door_open)], -1.0, 1.0).astype(
            np.float32
        )


def main(total_steps: int = 60_000, num_envs: int = 16, workers: int = 0) -> float:
    """Train a policy and play an hour; return the mean return of the last evaluation."""
    make = lambda: gymnasium.wrappers.TimeLimit(Thermostat(), 60)  # noqa: E731
    env = jf.make_env("custom", make=make, num_envs=num_envs, pool={"workers": workers})
    algo = jf.ppo(rollout_length=64, learning_rate=1e-3, discount=0.95)
    result = jf.learn(env, algo, total_steps=total_steps, eval_episodes=16)
    env.close()
    print(
        "greedy returns:",
        [round(row["eval_return_mean"], 1) for row in result.history if row["kind"] == "eval"],
    )

    room = make()
    obs, _ = room.reset(seed=1)
    for minute in range(60):
        action = int(result.policy(obs))
        if minute % 4 == 0:
            degrees = room.unwrapped.celsius
            print(
                f"{minute:2} min {'open' if obs[1] else '    '} {'#' * int(degrees):<25} {degrees:4.1f} °C"
            )
        obs, *_ = room.step(action)
    return float(result.summary["eval_return_mean"])


if __name__ == "__main__":
    main()
