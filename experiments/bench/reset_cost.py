"""The cost of new initial states: our bank of initial states against no reset at all.

``python experiments/bench/reset_cost.py`` needs an otherwise idle machine. It measures steady-state
steps/s of a 32-step unroll under uniform random actions, with 256 environments. The baseline has a
bank that is drawn once and reused, so that only the drawing differs. Both are timed in turn (A B A
B ...).
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jaxrl_fast.envs import make
from jaxrl_fast.envs.env import VecEnv, vectorize
from jaxrl_fast.learning.rollout import SamplerState, start, unroll

ENVIRONMENTS = ("halfcheetah", "hopper")
NUM_ENVS = 256
NUM_STEPS = 32
UNROLLS_PER_REPEAT = 8
REPEATS = 9
RESULT = Path(__file__).parent.parent / "results" / "reset_cost.json"

Run = Callable[[SamplerState, jax.Array], SamplerState]


def unrolls(env: VecEnv) -> Run:
    """Compile ``UNROLLS_PER_REPEAT`` unrolls under uniform random actions."""

    def act(carry: tuple, obs: Any, first: jax.Array, key: jax.Array) -> tuple:
        return (
            jax.random.uniform(key, (NUM_ENVS, *env.spec.action.low.shape), jnp.float32, -1.0, 1.0),
            carry,
            (),
        )

    def run(state: SamplerState, key: jax.Array) -> SamplerState:
        def one(state: SamplerState, key: jax.Array) -> tuple[SamplerState, jax.Array]:
            state, rollout, metrics = unroll(env, act, state, key, NUM_STEPS)
            return state, metrics["episode_return_sum"] + jnp.sum(rollout.reward)

        return jax.lax.scan(one, state, jax.random.split(key, UNROLLS_PER_REPEAT))[0]

    return jax.jit(run)


def without_drawing(env: VecEnv) -> VecEnv:
    """Build the same environments, except that the bank is drawn once, here."""
    bank = jax.jit(lambda key: env.draw_fresh(key, NUM_STEPS))(jax.random.key(7))
    return env._replace(draw_fresh=lambda key, num_steps: bank)


def seconds(run: Run, state: SamplerState, key: jax.Array) -> float:
    """Return the wall-clock time of one repeat."""
    begin = time.perf_counter()
    jax.block_until_ready(run(state, key))
    return time.perf_counter() - begin


def measure(name: str) -> dict[str, Any]:
    """Return the median rates of both, and the cost: one minus the median of the ratios of
    neighbours in time.
    """
    env = vectorize(make(name, backend="spring"), num_envs=NUM_ENVS)
    bank, floor = unrolls(env), unrolls(without_drawing(env))
    state = jax.jit(lambda key: start(env, (), key))(jax.random.key(0))
    seconds(floor, state, jax.random.key(1))
    state = jax.block_until_ready(bank(state, jax.random.key(1)))
    pairs = []
    for i in range(REPEATS):
        key = jax.random.key(2 + i)
        pairs.append((seconds(bank, state, key), seconds(floor, state, key)))
    steps = NUM_ENVS * NUM_STEPS * UNROLLS_PER_REPEAT
    costs = sorted(1.0 - without / with_bank for with_bank, without in pairs)
    return {
        "env": name,
        "backend": "spring",
        "shortest_episode": env.env.shortest_episode,
        "bank_steps_per_s": steps / statistics.median(a for a, _ in pairs),
        "floor_steps_per_s": steps / statistics.median(b for _, b in pairs),
        "cost_median": statistics.median(costs),
        "cost_quartiles": [costs[len(costs) // 4], costs[(3 * len(costs)) // 4]],
        "bank_s": [a for a, _ in pairs],
        "floor_s": [b for _, b in pairs],
    }


def main() -> None:
    """Measure, print a table, write the JSON."""
    rows = [measure(name) for name in ENVIRONMENTS]
    print(f"{'environment':12} {'bank':>12} {'no drawing':>12} {'cost':>7}  quartiles")
    for row in rows:
        low, high = row["cost_quartiles"]
        rates = f"{row['bank_steps_per_s']:12,.0f} {row['floor_steps_per_s']:12,.0f}"
        print(f"{row['env']:12} {rates} {row['cost_median']:7.1%}  {low:.1%} to {high:.1%}")
    setting = {
        "num_envs": NUM_ENVS,
        "num_steps": NUM_STEPS,
        "repeats": REPEATS,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "unit": "agent decisions per second over all environments",
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"setting": setting, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
