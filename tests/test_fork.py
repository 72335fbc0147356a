"""A process that is forked after JAX has started answers in one line, and does not wait for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import jax.numpy as jnp, jaxrl_fast as jf

def child():
    for call in {}:
        try:
            eval(call)
        except ValueError as error:
            print(error)

if __name__ == "__main__":
    env = jf.make_env("probe", id="observation", num_envs=2)
    policy = jf.learn(env, jf.ppo(), total_steps=8, eval_every=0, tell=lambda line: None).policy
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    process.kill()
"""
CALLS = [
    'jf.make_env("cartpole", num_envs=2)',
    "jf.learn(env, jf.ppo(), total_steps=8)",
    "jf.make_train_step(env, jf.ppo())",
    "jf.evaluate_policy(policy, env, None, episodes=1)",
    "jf.collect_episodes(policy, env, episodes=1)",
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_after_a_fork_every_function_answers_in_one_line(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(CALLS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(CALLS), done.stdout + done.stderr
    assert all('multiprocessing.get_context("spawn")' in line for line in lines)
