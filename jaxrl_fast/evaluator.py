"""``python -m jaxrl_fast.evaluator FOLDER``: the evaluator process of a run, started by training."""

import os
import sys
from pathlib import Path

import jax
import numpy as np

from jaxrl_fast.assembly import bind
from jaxrl_fast.commands import run_config
from jaxrl_fast.commands.env_cache import env_cache_of, make_cached_envs, store_of
from jaxrl_fast.commands.run_config import alone, make_algorithm
from jaxrl_fast.envs.host_env import HostEnv
from jaxrl_fast.policy.policies import params_template
from jaxrl_fast.settings.machine import collect_garbage_seldom, setup
from jaxrl_fast.settings.run import flat_settings
from jaxrl_fast.system import leave_signals_to_parent
from jaxrl_fast.training.callbacks import to_stderr
from jaxrl_fast.training.episodes import make_periodic_evaluation
from jaxrl_fast.training.evaluator_process import read_ahead, serve, take_what_is_left


def evaluate_for(folder: Path) -> None:
    """Evaluate the parameters that training sends, in environments made from the run's
    ``config.yaml``.

    Args:
        folder: Folder of the run.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of an environment must not mix with the answers
    take_what_is_left()
    leave_signals_to_parent()
    requests = read_ahead(sys.stdin.buffer)
    run = run_config.compose([f"config='{folder / 'config.yaml'}'"])
    setup(cpu_devices=1)
    keeper = env_cache_of(run, to_stderr)
    env, algorithm = make_cached_envs(alone(run), keeper), make_algorithm(run)
    agent = bind(algorithm, env.spec, run.num_envs)
    template = params_template(env.spec, agent.parts, agent.acting, agent.normalize_observations)
    stacked = jax.tree.map(lambda x: np.zeros((run.num_seeds, *x.shape), x.dtype), template)
    keys = jax.random.split(jax.random.key(run.seed), run.num_seeds)
    ahead = None if isinstance(env, HostEnv) else stacked
    program_key = ("evaluation", run.eval.episodes, run.eval.sample, run.num_seeds)
    store = None if keeper is None else store_of(keeper, flat_settings(run), program_key)
    evaluation = make_periodic_evaluation(
        env, algorithm, agent, keys, run.eval, ahead=ahead, store=store
    )
    serve(evaluation.evaluate, stacked, requests, answers)


if __name__ == "__main__":
    collect_garbage_seldom()
    evaluate_for(Path(sys.argv[1]))
