"""The references, an algorithm on one screen each, compute the engine's numbers, tick by tick."""

import ast
import importlib
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.envs import from_gymnax
from reference import dqn, ppo, sac

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "reference").glob("*.py"))
TICKS = (0, 1, 10, 40)


def cartpole():
    """Episodes end by falling, or by the time limit of 20 steps."""
    return from_gymnax.make("CartPole-v1", episode_length=20)


def pendulum():
    """Build Pendulum with episodes that are truncated after 20 steps."""
    return from_gymnax.make("Pendulum-v1", episode_length=20)


def like(example: Any, tree: Any) -> Any:
    """Give the leaves of ``tree`` the structure of ``example``; optimizers nest theirs differently."""
    return jax.tree.unflatten(jax.tree.structure(example), jax.tree.leaves(tree))


def statistics(state: Any) -> tuple:
    """Return the running statistics of observations in the engine's state."""
    own = state.private["statistics"].statistics.obs
    return own.samples, own.mean, own.variance


def sampler(state: Any) -> dict[str, Any]:
    """Return the parts of the engine's state that all references share."""
    own = state.private["sample"]
    totals = own.env.episode.returns, own.env.episode.length
    shared = dict(env=own.env.env_state, obs=own.obs, totals=totals, stats=statistics(state))
    return shared | dict(tick=state.tick, key=state.key)


def ppo_state(state: Any) -> dict[str, Any]:
    learned = state.private["learn"]
    params = {
        "critic": learned["critic"].learned.params["value"],
        "actor": learned["actor"].learned.params["policy"],
    }
    return sampler(state) | dict(
        params=params, moments={name: learned[name].opt_state for name in params}
    )


def sac_state(state: Any) -> dict[str, Any]:
    critic, actor = state.private["learn"]["critic"], state.private["learn"]["actor"]
    params, moments = (
        critic.learned.params | actor.learned.params,
        critic.opt_state | actor.opt_state,
    )
    data = state.private["experience"].data
    replay = dict(obs=data.obs, action=data.action, reward=data.reward, next_obs=data.next_obs)
    replay |= dict(terminated=data.terminated)
    learner = dict(params=params, target=critic.learned.target["q"], moments=moments)
    return sampler(state) | learner | dict(replay=replay)


def dqn_state(state: Any) -> dict[str, Any]:
    critic, data = state.private["learn"]["critic"], state.private["experience"].data
    replay = dict(obs=data.obs, action=data.action, reward=data.reward, next_obs=data.next_obs)
    replay |= dict(terminated=data.terminated)
    learner = dict(
        params=critic.learned.params["q"],
        target=critic.learned.target["q"],
        moments=critic.opt_state,
    )
    return sampler(state) | learner | dict(replay=replay)


PPO = dict(num_envs=8, rollout_length=16, num_minibatches=4)
CASES = {"ppo cartpole": (ppo, cartpole, partial(jf.ppo, normalize_rewards=False), PPO, ppo_state)}
CASES["ppo pendulum"] = (ppo, pendulum, *CASES["ppo cartpole"][2:])
OFF_POLICY = dict(num_envs=4, batch_size=32, buffer_size=120, warmup_steps=32, updates_per_tick=3)
CASES["sac pendulum"] = (sac, pendulum, jf.sac, OFF_POLICY, sac_state)
CASES["dqn cartpole"] = (dqn, cartpole, jf.dqn, OFF_POLICY | dict(total_steps=2_000), dqn_state)


@pytest.mark.parametrize("case", CASES)
@jax.numpy_rank_promotion("allow")  # the references use JAX's default dtype promotion
def test_a_tick_equals_the_engines(case: str):
    module, make_env, algorithm, sizes, convert = CASES[case]
    env, config = make_env(), module.Config(**sizes)
    options = {name: value for name, value in sizes.items() if name != "num_envs"}
    vec_env = jf.vectorize(env, num_envs=config.num_envs)
    total_steps = options.pop("total_steps", None)
    init, train_step = jf.make_train_step(vec_env, algorithm(**options), total_steps=total_steps)
    key = jax.random.key(3)
    engine, engine_step = jax.jit(init)(key), jax.jit(train_step)
    state, step = module.init(env, config, key), jax.jit(lambda s: module.tick(env, config, s)[0])
    assert_equal(state, like(state, module.State(**convert(engine))), case)
    for tick in range(max(TICKS) + 1):
        before, engine = engine, engine_step(engine)[0]
        if tick in TICKS:
            after = step(like(state, module.State(**convert(before))))
            assert_equal(
                after, like(after, module.State(**convert(engine))), f"{case}, tick {tick}"
            )


def assert_equal(reference: Any, engine: Any, where: str) -> None:
    """Compare floats within 1e-6, relative to the largest number of the array; everything else
    exactly.
    """
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(reference), jax.tree.leaves(engine), strict=True
    ):
        name = f"{where}: {jax.tree_util.keystr(path)}"
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, name
        if np.issubdtype(a.dtype, np.floating):
            np.testing.assert_allclose(
                a, b, rtol=0, atol=1e-6 * max(1.0, np.abs(b).max(initial=0.0)), err_msg=name
            )
        else:
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_reference_imports_nothing_of_ours_but_an_environment(path: Path):
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    ours = {node.module for node in nodes if (node.module or "").startswith("jaxrl_fast")}
    assert ours == {"jaxrl_fast.envs"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_names_of_the_engine_exist(path: Path):
    names = re.findall(r"Engine:\s+([\w.,\s]+)\.\s*\"\"\"", path.read_text())
    assert len(names) >= 10
    for name in re.split(r",\s+", ", ".join(names)):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"jaxrl_fast.{module}"), attribute), name


def test_a_reference_learns_as_a_script():
    command = [sys.executable, str(ROOT / "reference" / "ppo.py")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "of 500, solved" in shown.splitlines()[-1]
