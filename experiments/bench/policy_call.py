"""Microseconds of one call of a policy in a loop of Python: called, under jax.jit, and by ONNX
Runtime.

    python experiments/bench/policy_call.py [results.json]

Gymnasium's CartPole-v1 (4 numbers, one of 2 actions) and HalfCheetah-v5's spaces (17 numbers in
float64, 6 in float32), networks of 64 x 64 and 256 x 256, untrained: the time does not depend on
the numbers. Each way is timed in turn, 15 rounds of 1,000 calls; median, least and largest of the
rounds. The limit is the bare ONNX session.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

import jaxrl_fast as jf
from jaxrl_fast.policy.exporting import FORMATS

ROUNDS, CALLS = 15, 1000
ROWS = {
    "CartPole-v1, ppo 64 x 64": (
        "CartPole-v1",
        jf.ppo(rollout_length=8, num_minibatches=1, policy_hidden=(64, 64)),
    ),
    "HalfCheetah-v5, sac 256 x 256": (
        "HalfCheetah-v5",
        jf.sac(warmup_steps=16, batch_size=8, buffer_size=64, policy_hidden=(256, 256)),
    ),
}


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of one call, over `CALLS` calls."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS


def row(id: str, algorithm: jf.Algorithm) -> dict[str, list[float]]:
    """Time all ways to call one policy: median, least and largest microseconds by way."""
    env = jf.make_env("gymnasium", id=id, num_envs=2, pool={"workers": 0, "num_groups": 1})
    policy = jf.learn(env, algorithm, total_steps=32, eval_episodes=1, eval_beside=False).policy
    obs = np.asarray(env.reset(0)[0], np.float64 if id.startswith("Half") else np.float32)
    env.close()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    content = FORMATS["onnx"].write(policy)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feed, fast, jitted = {"obs": obs[None].astype(np.float32)}, policy.fast(), jax.jit(policy)
    ways: dict[str, Callable[[], Any]] = {
        "policy(obs)": lambda: policy(obs),
        "jax.jit(policy)(obs), not waited for": lambda: jitted(obs),
        "jax.jit(policy)(obs) as NumPy": lambda: np.asarray(jitted(obs)),
        "policy.fast()(obs)": lambda: fast(obs),
        "limit: the ONNX session alone": lambda: session.run(None, feed),
    }
    for call in ways.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            took[name].append(1e6 * seconds(call))
    return {name: [statistics.median(us), min(us), max(us)] for name, us in took.items()}


def main() -> None:
    results = {name: row(*given) for name, given in ROWS.items()}
    for name, ways in results.items():
        for way, (median, least, most) in ways.items():
            print(f"{name:<32} {way:<38} {median:7.1f} µs [{least:.1f}, {most:.1f}]")
    if len(sys.argv) > 1:
        about = {"jax": jax.__version__, "onnxruntime": onnxruntime.__version__, "us": results}
        Path(sys.argv[1]).write_text(f"{json.dumps(about, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
