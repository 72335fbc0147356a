"""The jobs of `same_numbers` and their environments.

They use only the public API, since the code of any commit runs them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_fast as jf

NUM_ENVS = 8
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": dict(
        rollout_length=16,
        num_epochs=2,
        num_minibatches=2,
        policy_hidden=(32, 32),
        value_hidden=(32, 32),
    ),
    "sac": dict(
        rollout_length=2,
        updates_per_tick=4,
        batch_size=32,
        buffer_size=256,
        warmup_steps=48,
        policy_hidden=(32, 32),
        critic_hidden=(32, 32),
    ),
}


class Job(NamedTuple):
    """``make_env()`` and ``algorithm`` with ``options`` are trained for this many ticks; ``run``:
    arguments of `learn`.

    A job that is the same ``as_`` another is stopped half-way and resumed at this commit. It must
    equal the uninterrupted job at the other commit.
    """

    make_env: Callable[[], Any]
    algorithm: str
    options: Mapping[str, Any] = {}
    run: Mapping[str, Any] = {}
    ticks: int = 20
    as_: str = ""


def cartpole() -> Any:
    """Vectors, discrete actions."""
    return jf.make_env("cartpole", num_envs=NUM_ENVS)


def pendulum() -> Any:
    """Vectors, continuous actions."""
    return jf.make_env("pendulum", num_envs=NUM_ENVS)


def halfcheetah() -> Any:
    """Make an environment of brax."""
    return jf.make_env("halfcheetah", num_envs=NUM_ENVS)


def host(id: str, workers: int) -> Any:
    """Make an environment of Gymnasium, stepped on the host."""
    return jf.make_env("gymnasium", id=id, num_envs=NUM_ENVS, pool={"workers": workers})


def dot(*, discrete: bool) -> Any:
    """Build a bright pixel that actions push along a row; at the border the episode ends."""
    action = jf.Discrete(3) if discrete else jf.Box(-np.ones(1, np.float32), np.ones(1, np.float32))
    spec = jf.EnvSpec("dot", jax.ShapeDtypeStruct((8, 8, 1), jnp.uint8), action, 12, frame_stack=3)

    def look(place: jax.Array) -> jax.Array:
        return jnp.zeros((8, 8, 1), jnp.uint8).at[place[0], place[1]].set(200)

    def reset(key: jax.Array, params: Any) -> tuple:
        place = jax.random.randint(key, (2,), 2, 6)
        return place, look(place)

    def step(place: jax.Array, action: jax.Array, key: jax.Array) -> tuple:
        push = action - 1 if discrete else jnp.round(action[0]).astype(jnp.int32)
        place = (place + jnp.stack([jax.random.randint(key, (), -1, 2), push])).clip(0, 7)
        obs, reward = look(place), 1.0 - 0.2 * jnp.abs(place[1] - 5)
        return place, jf.Timestep(obs, obs, reward, place[1] % 7 == 0, jnp.zeros((), bool))

    return jf.vectorize(jf.Env(spec, reset, step), num_envs=NUM_ENVS)


def masked() -> Any:
    """Build a dictionary with an action mask: on a line of seven places, a step over an end is not
    allowed.
    """
    obs = {
        "action_mask": jax.ShapeDtypeStruct((3,), jnp.bool_),
        "place": jax.ShapeDtypeStruct((2,), jnp.float32),
    }

    def look(place: jax.Array) -> dict[str, jax.Array]:
        mask = jnp.stack([place > 0, jnp.ones((), bool), place < 6])
        return {"action_mask": mask, "place": jnp.stack([place - 3.0, 0.1 * place**2])}

    def reset(key: jax.Array, params: Any) -> tuple:
        place = jax.random.randint(key, (), 0, 7)
        return place, look(place)

    def step(place: jax.Array, action: jax.Array, key: jax.Array) -> tuple:
        place = place + action - 1
        reward, none = 1.0 - 0.3 * jnp.abs(place - 4), jnp.zeros((), bool)
        return place, jf.Timestep(look(place), look(place), reward, none, none)

    return jf.vectorize(
        jf.Env(jf.EnvSpec("masked", obs, jf.Discrete(3), 9), reset, step), num_envs=NUM_ENVS
    )


RATES = dict(learning_rate=jf.Linear(1e-3, 0.0), normalize_rewards=True)
ON_TWO = dict(devices=2)
JOBS: dict[str, Job] = {
    "ppo cartpole": Job(cartpole, "ppo"),
    "ppo halfcheetah": Job(halfcheetah, "ppo", ticks=5),
    "ppo host": Job(lambda: host("CartPole-v1", 1), "ppo"),
    "ppo pixels": Job(lambda: dot(discrete=True), "ppo", ticks=10),
    "ppo action mask": Job(masked, "ppo"),
    "ppo memory": Job(cartpole, "ppo", dict(recurrent_size=8)),
    "ppo rewards normalized, schedule": Job(pendulum, "ppo", RATES),
    "ppo two seeds": Job(cartpole, "ppo", run=dict(num_seeds=2)),
    "ppo data_parallel": Job(cartpole, "ppo", run=dict(placement="data_parallel", **ON_TWO)),
    "ppo learners, gradients": Job(cartpole, "ppo", run=dict(learners=2)),
    "ppo learners, parameters": Job(
        cartpole,
        "ppo",
        run=dict(learners=2, average="parameters", placement="parameter_server", **ON_TWO),
    ),
    "ppo resumed": Job(cartpole, "ppo", as_="ppo cartpole"),
    "sac pendulum": Job(pendulum, "sac"),
    "sac halfcheetah": Job(halfcheetah, "sac", ticks=10),
    "sac host": Job(lambda: host("Pendulum-v1", 0), "sac"),
    "sac pixels": Job(lambda: dot(discrete=False), "sac"),
    "sac n_step, layer norm": Job(pendulum, "sac", dict(n_step=3, critic_layer_norm=True)),
    "sac two seeds": Job(pendulum, "sac", run=dict(num_seeds=2)),
    "sac actor_critic": Job(
        pendulum, "sac", run=dict(overlap="actor_critic", placement="actor_critic", **ON_TWO)
    ),
    "sac overlap all": Job(
        pendulum, "sac", run=dict(overlap="all", placement="sampler_learner", **ON_TWO)
    ),
    "sac learners, gradients": Job(pendulum, "sac", run=dict(learners=2)),
    "sac resumed": Job(pendulum, "sac", as_="sac pendulum"),
}


def algorithm(job: Job) -> jf.Algorithm:
    """Return the job's algorithm."""
    return getattr(jf, job.algorithm)(**{**ALGORITHMS[job.algorithm], **job.options})


def total_steps(job: Job) -> int:
    """Return the environment steps of its ticks."""
    return job.ticks * NUM_ENVS * {**ALGORITHMS[job.algorithm], **job.options}["rollout_length"]
