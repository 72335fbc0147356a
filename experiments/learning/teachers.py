"""A teacher that sees the angular velocity, and a student with a memory that does not: Pendulum,
three seeds.

``python experiments/learning/teachers.py`` makes the missing runs; ``offline.py`` writes them into
``docs/offline.md``. The score is 0 for random actions and 1 for the teacher's return. A result is
written when its run ends.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import ROOT, commit, machine, versions
from learning import read_curve

import jaxrl_fast as jf
from jaxrl_fast import envs
from jaxrl_fast.core import Timestep
from jaxrl_fast.envs.env import Env, VecEnv, vectorize

RESULT = ROOT / "experiments" / "results" / "teachers.json"
SEEDS, EPISODES, RANDOM, SOLVED = 3, 50, -1_200.0, 0.95
TEACHER_STEPS, ALONE_STEPS, TAUGHT_STEPS = 30_000, 1_000_000, 100_000
ALONE_EVALUATIONS, TAUGHT_EVALUATIONS = 50, 50


def named_pendulum() -> VecEnv:
    """Make Pendulum whose observation has the entries ``angle`` and ``velocity``."""
    whole = envs.make("pendulum")
    assert isinstance(whole, Env)
    entry = jax.ShapeDtypeStruct
    spec = whole.spec._replace(
        obs={"angle": entry((2,), jnp.float32), "velocity": entry((1,), jnp.float32)}
    )

    def named(obs: jax.Array) -> dict[str, jax.Array]:
        return {"angle": obs[:2], "velocity": obs[2:]}

    def reset(key: jax.Array, params: Any) -> tuple[Any, Any]:
        state, obs = whole.reset(key, params)
        return state, named(obs)

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Timestep]:
        state, ts = whole.step(state, action, key)
        return state, ts._replace(obs=named(ts.obs), next_obs=named(ts.next_obs))

    return vectorize(whole._replace(spec=spec, reset=reset, step=step), num_envs=16)


def student() -> jf.Algorithm:
    """Make the student, which reads the angle only."""
    return jf.ppo(
        recurrent_size=64, rollout_length=128, policy_keys=("angle",), critic_keys=("angle",)
    )


def trained(
    algorithm: jf.Algorithm, steps: int, evaluations: int
) -> tuple[dict[str, Any], jf.Policy]:
    """Train three seeds; return their curves and the best policy."""
    began = time.time()
    how: dict[str, Any] = dict(
        num_seeds=SEEDS, eval_every=steps // evaluations, eval_episodes=EPISODES
    )
    with tempfile.TemporaryDirectory() as place:
        result = jf.learn(
            named_pendulum(), algorithm, total_steps=steps, run_dir=f"{place}/run", **how
        )
        curve = [
            [point["env_steps"], point["returns"]] for point in read_curve(Path(place) / "run")
        ]
    return {"curve": curve, "seconds": time.time() - began}, result.policy


def solved_at(curve: list, teacher: float, seed: int) -> float:
    """Return the steps of the first evaluation with 95 % of the teacher's score; infinity if there
    is none.
    """
    scores = [(steps, (returns[seed] - RANDOM) / (teacher - RANDOM)) for steps, returns in curve]
    return next((steps for steps, score in scores if score >= SOLVED), np.inf)


def read() -> dict[str, Any]:
    """Return all results by name."""
    return json.loads(RESULT.read_text()) if RESULT.exists() else {}


def steps_of(done: dict[str, Any], name: str) -> list[float]:
    """Return the steps of each seed until its score is high enough."""
    return [
        solved_at(done[name]["curve"], done["teacher"]["return"], seed) for seed in range(SEEDS)
    ]


def main() -> None:
    """Make the missing runs, and print the steps of each seed."""
    done = read()

    def write(name: str, made: dict[str, Any]) -> None:
        done[name] = {**made, "machine": machine(), "versions": versions(), "commit": commit()}
        RESULT.write_text(json.dumps(done, indent=1) + "\n")

    place = ROOT / "experiments" / "data" / "teacher"
    if "teacher" not in done or not (place / "policy.json").exists():
        made, policy = trained(jf.sac(policy_hidden=(64, 64)), TEACHER_STEPS, 10)
        jf.save_policy(policy, place)
        returned = jf.evaluate_policy(policy, named_pendulum(), jax.random.key(7), episodes=200)
        write("teacher", {**made, "return": float(returned.mean())})
    teacher = jf.load_policy(place)
    if "taught" not in done:
        write(
            "taught",
            trained(jf.with_teacher(student(), teacher), TAUGHT_STEPS, TAUGHT_EVALUATIONS)[0],
        )
    if "alone" not in done:
        write("alone", trained(student(), ALONE_STEPS, ALONE_EVALUATIONS)[0])
    for name in ("taught", "alone"):
        print(name, steps_of(done, name), done[name]["curve"][-1], done["teacher"]["return"])


if __name__ == "__main__":
    main()
