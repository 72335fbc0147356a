"""Prioritized replay: our sum tree, rebuilt each tick, against flashbax's, which is updated in
place.

``python experiments/bench/replay_speed.py`` (after ``pip install --no-deps flashbax==0.1.3``) makes
the same ticks with both: add a step of 64 environments, sample K batches of 256, return their
priorities. Ours samples a tick's batches at once; flashbax is called in its usual way, once for
each batch, all of a tick in one program. They run in turn; medians and spread are written to
experiments/results/replay_speed.json. Run it on an otherwise idle machine.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flashbax
import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from describe import machine, versions

from jaxrl_fast.core import Transition
from jaxrl_fast.learning.algorithm import Prioritize
from jaxrl_fast.learning.feedback import Feedback
from jaxrl_fast.replay.buffers import ring_buffer
from jaxrl_fast.replay.prioritized import prioritized_source

RESULTS = Path(__file__).parent.parent / "results" / "replay_speed.json"
NUM_ENVS, BATCH, OBS = 64, 256, (17,)
TICKS, REPEATS = 20, 7
EXPONENT, CORRECTION = 0.6, 0.4
SIZES = [(capacity, batches) for capacity in (100_000, 1_000_000) for batches in (1, 8, 32)]

Tick = Callable[[Any, jax.Array], tuple[Any, jax.Array]]


def step_of(key: jax.Array) -> Transition:
    """Build one step of every environment, ``[1, E, ...]``."""
    obs = jax.random.normal(key, (1, NUM_ENVS, *OBS))
    flag = jnp.zeros((1, NUM_ENVS), bool)
    return Transition(obs, jnp.zeros((1, NUM_ENVS, 6)), obs[..., 0], obs, flag, flag, flag, ())


def ours(capacity: int, batches: int) -> tuple[Any, Tick]:
    """Build a full buffer of ours, and a tick."""
    buffer = ring_buffer(capacity=capacity, num_envs=NUM_ENVS, batch_size=BATCH)
    prioritize = Prioritize("critic", EXPONENT, lambda hyper: CORRECTION)
    source = prioritized_source(buffer, batches * BATCH // buffer.shards, prioritize)

    def tick(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        add_key, sample_key, priority_key = jax.random.split(key, 3)
        state = source.add(state, step_of(add_key))
        sampled = source.sample(state, sample_key, None)
        found = jax.random.uniform(priority_key, sampled.weight.shape)
        state = source.learn_priorities(state, Feedback(sampled.places, found))
        return state, jnp.sum(sampled.windows.steps.obs) + jnp.sum(sampled.weight)

    return source.init(jax.eval_shape(step_of, jax.random.key(0))), tick


def theirs(capacity: int, batches: int) -> tuple[Any, Tick]:
    """Build a full buffer of flashbax's, and a tick."""
    buffer = flashbax.make_prioritised_flat_buffer(
        max_length=capacity,
        min_length=BATCH,
        sample_batch_size=BATCH,
        add_sequences=False,
        add_batch_size=NUM_ENVS,
        priority_exponent=EXPONENT,
        device="cpu",
    )

    def without_time(step: Transition) -> dict[str, Any]:
        kept = step._replace(extras={}, first={})._asdict()
        return jax.tree.map(
            lambda x: x[0], {name: value for name, value in kept.items() if name != "next_obs"}
        )

    def tick(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        add_key, batch_key = jax.random.split(key)
        state = buffer.add(state, without_time(step_of(add_key)))

        def one_batch(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            sample_key, priority_key = jax.random.split(key)
            sampled = buffer.sample(state, sample_key)
            weight = sampled.probabilities**-CORRECTION
            found = jax.random.uniform(priority_key, sampled.indices.shape)
            state = buffer.set_priorities(state, sampled.indices, found)
            return state, jnp.sum(sampled.experience.first["obs"]) + jnp.sum(weight)

        state, sums = jax.lax.scan(one_batch, state, jax.random.split(batch_key, batches))
        return state, jnp.sum(sums)

    example = jax.tree.map(lambda x: x[0], without_time(step_of(jax.random.key(0))))
    return buffer.init(example), tick


def timed(state: Any, tick: Tick, capacity: int) -> Callable[[], float]:
    """Compile and fill; then each call returns the seconds of a tick."""
    run = jax.jit(lambda state, keys: jax.lax.scan(tick, state, keys), donate_argnums=0)
    keys = jax.random.split(jax.random.key(1), TICKS)
    for _ in range(min(20, 2 + capacity // (NUM_ENVS * TICKS))):
        state, _ = run(state, keys)

    def repeat() -> float:
        nonlocal state
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(run(state, keys))
        return (time.perf_counter() - begin) / TICKS

    repeat()
    return repeat


def compare(capacity: int, batches: int) -> dict[str, Any]:
    """Measure the seconds of a tick with either, in turn."""
    makers = {"ours": ours, "flashbax": theirs}
    repeats = {name: timed(*make(capacity, batches), capacity) for name, make in makers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(REPEATS):
        for name, repeat in repeats.items():
            seconds[name].append(repeat())
    ratios = sorted(a / b for a, b in zip(seconds["flashbax"], seconds["ours"], strict=True))
    return {
        "capacity": capacity,
        "batches_a_tick": batches,
        "tick_ms": {name: 1e3 * statistics.median(values) for name, values in seconds.items()},
        "ours_is_faster_by": [statistics.median(ratios), ratios[0], ratios[-1]],
    }


def main() -> None:
    """Measure all sizes, and write the results."""
    rows = []
    for capacity, batches in SIZES:
        rows.append(compare(capacity, batches))
        print(rows[-1], flush=True)
    found = {
        "machine": machine(),
        "versions": {**versions(), "flashbax": "0.1.3"},
        "batch": BATCH,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
