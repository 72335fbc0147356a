"""Worker: parallel Q-learning with Ray, in the environment of peers_ray.lock.

``python q_ray.py written|tuned <minibatch> <rounds>`` uses the settings of `q_learning.SETTINGS`,
which all programs share. ``written`` has the design of the Reactor paper's benchmark: an actor per
environment, which sends each step as separate tensors, and a replay buffer that is an actor.
``tuned`` computes the same rounds with Ray's recommended design: an actor per core with a batch of
environments, acting in NumPy; the weights are put once a round, a rollout comes back as six arrays,
and the buffer is an array in the learner.
"""

import os
import random
import sys
import time
from collections import deque
from typing import Any

BEGIN = time.perf_counter()
import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from q_settings import SETTINGS, at_end  # noqa: E402
from worker import say  # noqa: E402

CORES = len(os.sched_getaffinity(0))


def network() -> torch.nn.Module:
    """Build the network, 3-32-2."""
    return torch.nn.Sequential(
        torch.nn.Linear(3, SETTINGS.hidden), torch.nn.ReLU(), torch.nn.Linear(SETTINGS.hidden, 2)
    )


class Learner:
    """The network, its target network and the optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.target, self.updates = network(), network(), 0
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=SETTINGS.learning_rate)

    def update(self, obs: Any, action: Any, reward: Any, following: Any, done: Any) -> None:
        """Make one step on a minibatch of tensors ``[B, ...]``."""
        with torch.no_grad():
            best = self.target(following).max(1).values
            wanted = reward + SETTINGS.discount * best * (1 - done)
        found = self.net(obs).gather(1, action[:, None])[:, 0]
        loss = torch.nn.functional.mse_loss(found, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % SETTINGS.target_period == 0:
            self.target.load_state_dict(self.net.state_dict())


class OneEnvironment:
    """An actor of ``written``."""

    def __init__(self, seed: int) -> None:
        self.env, self.net = gymnasium.make("Blackjack-v1"), network()
        self.obs = torch.tensor([self.env.reset(seed=seed)[0]], dtype=torch.float32)

    def rollout(self, weights: dict[str, torch.Tensor]) -> list[tuple]:
        """Return steps, each a tuple of tensors and numbers."""
        self.net.load_state_dict(weights)
        steps = []
        for _ in range(SETTINGS.rollout_length):
            with torch.no_grad():
                greedy = int(self.net(self.obs).argmax())
            action = (
                int(self.env.action_space.sample())
                if random.random() < SETTINGS.epsilon
                else greedy
            )
            obs, reward, terminated, truncated, _ = self.env.step(action)
            following = torch.tensor([obs], dtype=torch.float32)
            steps.append((self.obs, action, float(reward), following, float(terminated)))
            over = terminated or truncated
            self.obs = (
                torch.tensor([self.env.reset()[0]], dtype=torch.float32) if over else following
            )
        return steps


class Memory:
    """The replay buffer of ``written``, an actor."""

    def __init__(self, minibatch: int) -> None:
        self.steps: deque = deque(maxlen=SETTINGS.buffer_size)
        self.minibatch = minibatch

    def exchange(self, steps: list[tuple]) -> list[tuple]:
        """Add these, return a minibatch."""
        self.steps.extend(steps)
        return random.sample(list(self.steps), min(self.minibatch, len(self.steps)))


class ManyEnvironments:
    """An actor of ``tuned``: a batch of ``count`` environments."""

    def __init__(self, first: int, count: int) -> None:
        self.envs = [gymnasium.make("Blackjack-v1", disable_env_checker=True) for _ in range(count)]
        self.obs = np.array(
            [env.reset(seed=first + i)[0] for i, env in enumerate(self.envs)], np.float32
        )
        self.rng = np.random.default_rng(first)

    def rollout(self, weights: list[np.ndarray]) -> list[np.ndarray]:
        """Return observation, action, reward, next observation and end of
        ``rollout_length * count`` steps.
        """
        (first, first_bias, second, second_bias), kept = weights, []
        shape = SETTINGS.rollout_length, len(self.envs)
        explores, guess = self.rng.random(shape) < SETTINGS.epsilon, self.rng.integers(0, 2, shape)
        for t in range(SETTINGS.rollout_length):
            values = np.maximum(self.obs @ first.T + first_bias, 0) @ second.T + second_bias
            action = np.where(explores[t], guess[t], values.argmax(1))
            stepped = [env.step(one) for env, one in zip(self.envs, action.tolist(), strict=True)]
            following = np.array([one[0] for one in stepped], np.float32)
            done = np.array([one[2] for one in stepped], np.float32)
            kept.append(
                (
                    self.obs,
                    action,
                    np.array([one[1] for one in stepped], np.float32),
                    following,
                    done,
                )
            )
            self.obs = following.copy()
            for i in np.flatnonzero(done):
                self.obs[i] = self.envs[i].reset()[0]
        return [np.concatenate(column) for column in zip(*kept, strict=True)]


def written(minibatch: int) -> Any:
    """Make a round of the paper's design; return the returns of the episodes that ended."""
    actors = [ray.remote(OneEnvironment).remote(seed) for seed in range(SETTINGS.num_envs)]
    memory, learner = ray.remote(Memory).remote(minibatch), Learner()

    def round_() -> list[float]:
        weights = learner.net.state_dict()
        steps = [
            step
            for rollout in ray.get([a.rollout.remote(weights) for a in actors])
            for step in rollout
        ]
        obs, action, reward, following, done = zip(
            *ray.get(memory.exchange.remote(steps)), strict=True
        )
        numbers = (torch.tensor(reward), torch.cat(following), torch.tensor(done))
        learner.update(torch.cat(obs), torch.tensor(action), *numbers)
        return [step[2] for step in steps if step[4]]

    return round_


def tuned(minibatch: int) -> Any:
    """Make a round with an actor per core."""
    shares = np.array_split(np.arange(SETTINGS.num_envs), min(CORES, SETTINGS.num_envs))
    actors = [ray.remote(ManyEnvironments).remote(int(one[0]), len(one)) for one in shares]
    learner, rng, filled, at = Learner(), np.random.default_rng(0), 0, 0
    size = SETTINGS.buffer_size
    columns = ((3,), "f4"), ((), "i8"), ((), "f4"), ((3,), "f4"), ((), "f4")
    kept = [np.zeros((size, *shape), kind) for shape, kind in columns]

    def round_() -> list[float]:
        nonlocal filled, at
        weights = ray.put([value.numpy() for value in learner.net.state_dict().values()])
        rewards: list[float] = []
        for rollout in ray.get([actor.rollout.remote(weights) for actor in actors]):
            places = (at + np.arange(len(rollout[0]))) % size
            for column, new in zip(kept, rollout, strict=True):
                column[places] = new
            at, filled = (at + len(places)) % size, min(size, filled + len(places))
            rewards += rollout[2][rollout[4] > 0].tolist()
        chosen = rng.choice(filled, min(minibatch, filled), replace=False)
        learner.update(*(torch.from_numpy(column[chosen]) for column in kept))
        return rewards

    return round_


def main(how: str, minibatch: str, rounds: str) -> None:
    """Train once, and print the seconds."""
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    round_ = {"written": written, "tuned": tuned}[how](int(minibatch))
    round_()
    warm, rewards = time.perf_counter(), []
    for _ in range(int(rounds)):
        rewards.append(round_())
    now = time.perf_counter()
    say({"seconds": now - warm, "total_s": now - BEGIN, "return": at_end(rewards), "actors": how})
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
