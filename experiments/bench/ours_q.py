"""Worker: parallel Q-learning with `jf.dqn` and `jf.learn`:
``python ours_q.py <how> <minibatch> <rounds>``.

``pool``: Gymnasium's Blackjack-v1 in our sampler pool; ``workers``: whole rollouts in its
processes; ``overlap``: the same, the next rollout during an update; ``callback``: the pool, called
from within one compiled program; ``compiled``: the same rules in JAX (`q_blackjack_jax`).
Minibatches are drawn with replacement. The pool has one group: with one stepping process per core,
no core is free to compute the actions of a second group meanwhile.
"""

import sys
import time
from typing import Any

BEGIN = time.perf_counter()
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import q_blackjack  # noqa: E402
import q_blackjack_jax  # noqa: E402
from q_settings import LAST_ROUNDS, SETTINGS  # noqa: E402
from worker import say  # noqa: E402

import jaxrl_fast as jf  # noqa: E402

WARM_ROUNDS = 5
WORKERS: dict[str, Any] = {"num_groups": 1, "bridge": "worker"}
WORLDS = {
    "pool": lambda: jf.make_env(
        "custom", make=q_blackjack.on_host, num_envs=SETTINGS.num_envs, pool={"num_groups": 1}
    ),
    "workers": lambda: jf.make_env(
        "custom", make=q_blackjack.on_host, num_envs=SETTINGS.num_envs, pool=WORKERS
    ),
    "callback": lambda: jf.make_env(
        "custom", make=q_blackjack.on_host, num_envs=SETTINGS.num_envs, pool={"bridge": "callback"}
    ),
    "compiled": lambda: jf.vectorize(q_blackjack_jax.make(), num_envs=SETTINGS.num_envs),
}


def algorithm(minibatch: int) -> jf.Algorithm:
    """Plain Q-learning with a target network, as in the other programs."""
    return jf.dqn(
        learning_rate=SETTINGS.learning_rate,
        discount=SETTINGS.discount,
        epsilon=SETTINGS.epsilon,
        tau=1.0,
        target_period=SETTINGS.target_period,
        max_grad_norm=1e9,
        rollout_length=SETTINGS.rollout_length,
        updates_per_tick=1,
        batch_size=minibatch,
        buffer_size=SETTINGS.buffer_size,
        warmup_steps=0,
        double=False,
        normalize_observations=False,
        q_hidden=(SETTINGS.hidden,),
        q_loss=lambda q, target: jnp.square(q - target),
    )


def main(how: str, minibatch: str, rounds: str) -> None:
    """Train once, and print the seconds."""
    jf.setup(cpu_devices=1, cache=False)
    overlap = "sampling" if how == "overlap" else "none"
    env, rows, asked = WORLDS["workers" if how == "overlap" else how](), [], int(rounds)
    steps_per_round = SETTINGS.num_envs * SETTINGS.rollout_length

    def note(row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            rows.append((row["env_steps"] // steps_per_round, time.perf_counter(), row))

    total = (asked + WARM_ROUNDS) * steps_per_round
    asked_of = {"total_steps": total, "eval_every": total, "eval_episodes": 1, "overlap": overlap}
    jf.learn(env, algorithm(int(minibatch)), on_metrics=note, **asked_of)
    (first, warm, _), (last, now, _) = rows[0], rows[-1]
    late = [row for number, _, row in rows if number > last - LAST_ROUNDS]
    counts = [(row["episode_return"], row["episodes"]) for row in late]
    mean = sum(value * count for value, count in counts) / sum(count for _, count in counts)
    seconds = (now - warm) * asked / (last - first)
    told = env.events() if isinstance(env, jf.HostEnv) else []
    if isinstance(env, jf.HostEnv):
        env.close()
    say(
        {
            "seconds": seconds,
            "total_s": now - BEGIN,
            "return": mean,
            "told": told,
            "jax": jax.__version__,
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
