"""The sampler pool: a seed's results do not depend on how the pool steps, and no step is lost,
invented or shared.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from pool_envs import Uneven, Walk, wait_for

from jaxrl_fast import make_train_step
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.commands.run_config import compose, make_algorithm, make_envs
from jaxrl_fast.envs.from_gymnasium import env_spec, make_custom_host, make_host
from jaxrl_fast.envs.host_env import HostEnv, HostStep
from jaxrl_fast.envs.pool import making
from jaxrl_fast.envs.pool.batches import PoolOptions, check_options, env_seed, joined
from jaxrl_fast.envs.pool.making import make_pool, turns_s
from jaxrl_fast.envs.pool.stepping import describe
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.learning.updates import init_learned
from jaxrl_fast.settings.machine import cpu_cores

CONTINUOUS = "sac", "td3", "flash_sac", "iql", "td3_bc", "fast_td3", "reppo"

ROOT = Path(__file__).parent.parent
NUM_ENVS = 6
STEPS = 40
PID, JAX = 3, 4
"""Index of `Walk`'s observation of its process, and of whether JAX is loaded there."""


def walks(workers: int, num_groups: int = 2, jitter_s: float = 0.0) -> HostEnv:
    options = PoolOptions(workers=workers, num_groups=num_groups)
    return make_custom_host(
        partial(Walk, jitter_s=jitter_s), num_envs=NUM_ENVS, name="walk", pool=options
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[HostEnv]:
    host = walks(2)
    yield host
    host.close()


def actions_at(t: int) -> np.ndarray:
    return (np.arange(NUM_ENVS) * 7 + t * 3) % 9


def roll(host: HostEnv, seed: int, steps: int = STEPS) -> tuple[np.ndarray, list[HostStep]]:
    """Return first observations and steps ``[E]`` of all groups, double buffered."""
    obs, size = host.reset(seed), host.num_envs // host.num_groups
    parts: list[list[HostStep]] = [[] for _ in range(host.num_groups)]
    for t in range(steps + 1):
        for group in range(host.num_groups):
            if t > 0:
                parts[group].append(host.recv(group))
            if t < steps:
                host.send(actions_at(t)[group * size : (group + 1) * size], group)
    return obs, [joined(list(together)) for together in zip(*parts, strict=True)]


def without_pid(first: np.ndarray, steps: list[HostStep]) -> list[np.ndarray]:
    same = [first[:, :PID]]
    for step in steps:
        obs, next_obs, *others = step[: HostStep._fields.index("metrics")]
        same += [obs[:, :PID], next_obs[:, :PID], *others]
    return same


def by_hand(seed: int) -> tuple[np.ndarray, list[HostStep]]:
    """Return the same with plain Gymnasium."""
    envs = [Walk() for _ in range(NUM_ENVS)]
    first = np.stack([env.reset(seed=env_seed(seed, i))[0] for i, env in enumerate(envs)]).astype(
        np.float32
    )
    steps, returns, lengths = [], np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, np.int32)
    for t in range(STEPS):
        results = [env.step(int(action)) for env, action in zip(envs, actions_at(t), strict=True)]
        next_obs, reward, terminated, truncated = (
            np.array(column) for column in list(zip(*results, strict=True))[:4]
        )
        ended = terminated | truncated
        returns, lengths = returns + reward.astype(np.float32), lengths + 1
        obs = next_obs.copy()
        for i in np.flatnonzero(ended):
            obs[i] = envs[i].reset()[0]
        totals = returns.astype(np.float32), lengths.astype(np.int32)
        narrow = obs.astype(np.float32), next_obs.astype(np.float32), reward.astype(np.float32)
        steps.append(HostStep(*narrow, terminated, truncated, *totals))
        returns, lengths = np.where(ended, 0, returns), np.where(ended, 0, lengths)
    return first, steps


def assert_equal(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_a_pool_gives_what_its_environments_give_step_by_step(pool: HostEnv):
    expected = without_pid(*by_hand(5))
    assert_equal(without_pid(*roll(pool, 5)), expected)
    assert pool.steps() == NUM_ENVS * STEPS
    ends = np.array([step.terminated | step.truncated for step in by_hand(5)[1]])
    assert ends.sum() > NUM_ENVS  # or the test would cover few episode ends


@pytest.mark.parametrize(("workers", "num_groups"), [(0, 1), (0, 3), (1, 2), (3, 2), (2, 1)])
def test_neither_workers_nor_groups_change_a_number(workers: int, num_groups: int):
    host = walks(workers, num_groups)
    try:
        assert_equal(without_pid(*roll(host, 5)), without_pid(*by_hand(5)))
        if workers:
            assert len({int(pid) for pid in host.reset(0)[:, PID]}) == workers
    finally:
        host.close()


def test_workers_have_equal_work_over_all_groups(pool: HostEnv):
    _, counts = np.unique(pool.reset(0)[:, PID], return_counts=True)
    assert list(counts) == [3, 3]  # each of the two groups has three


def test_timing_does_not_change_a_number():
    host = walks(2, jitter_s=2e-4)
    try:
        expected = without_pid(*by_hand(3))
        for _ in range(20):
            assert_equal(without_pid(*roll(host, 3)), expected)
    finally:
        host.close()


def test_every_environment_has_a_seed_of_its_own_and_another_seed_gives_others(pool: HostEnv):
    positions = np.concatenate([pool.reset(seed)[:, 0] for seed in (0, 1)])
    assert len(np.unique(positions)) == 2 * NUM_ENVS


def test_a_reset_drops_what_is_in_flight(pool: HostEnv):
    pool.reset(1)
    pool.send(np.zeros(3, int), 0)
    pool.send(np.zeros(3, int), 1)
    assert_equal(without_pid(*roll(pool, 5)), without_pid(*by_hand(5)))


def test_what_was_received_is_never_overwritten(pool: HostEnv):
    first = pool.reset(2)
    pool.send(np.ones(3, int), 0)
    received = [first, *jax.tree.leaves(pool.recv(0))]
    copies = [np.copy(array) for array in received]
    roll(pool, 9, steps=10)
    assert_equal(received, copies)


def test_groups_are_received_in_any_order(pool: HostEnv):
    pool.reset(0)
    pool.send(np.full(3, 1), 0)
    pool.send(np.full(3, 2), 1)
    late, early = pool.recv(1), pool.recv(0)
    pool.reset(0)
    pool.send(np.full(3, 1), 0)
    np.testing.assert_array_equal(pool.recv(0).reward, early.reward)
    pool.send(np.full(3, 2), 1)
    np.testing.assert_array_equal(pool.recv(1).reward, late.reward)


@pytest.mark.parametrize("workers", [0, 2])
def test_calls_out_of_turn_are_refused_in_one_line(workers: int):
    host = walks(workers)
    host.reset(0)
    for call, says in [
        (lambda: host.recv(0), "nothing was sent"),
        (lambda: host.send(np.zeros(4, int), 0), "shape [4]"),
        (lambda: host.send(np.zeros(3, int), 2), "there are groups 0 to 1"),
        (lambda: host.reset(-1), "seed=-1"),
    ]:
        with pytest.raises(ValueError) as caught:
            call()
        assert says in str(caught.value) and "\n" not in str(caught.value)
    host.send(np.zeros(3, int), 0)
    with pytest.raises(ValueError, match="still to be received"):
        host.send(np.zeros(3, int), 0)
    host.close()
    host.close()
    with pytest.raises(ValueError, match="closed"):
        host.recv(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (PoolOptions(num_groups=4), "write num_envs=8 or pool.num_groups=1"),
        (PoolOptions(workers=4, num_groups=2), "write at most 3"),
        (PoolOptions(workers=7), "write at most 6"),
        (PoolOptions(workers=-1), "pool.workers=-1"),
        (PoolOptions(order="random"), "write fixed or arrival"),
        (PoolOptions(order="arrival", workers=0), "needs worker processes"),
        (PoolOptions(order="arrival", workers=4), "do not divide"),
        (PoolOptions(step_timeout_s=0), "step_timeout_s=0"),
        (PoolOptions(backend="ray"), "write workers or envpool"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: PoolOptions, says: str):
    with pytest.raises(ValueError) as caught:
        make_custom_host(Walk, num_envs=NUM_ENVS, pool=options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_workers_never_load_jax(pool: HostEnv):
    assert not pool.reset(0)[:, JAX].any()


@pytest.mark.parametrize(
    ("step_s", "where"), [(1e-6, "in this process"), (0.02, "by 2 worker processes")]
)
def test_it_is_measured_whether_workers_pay_and_said_in_one_line(
    step_s: float, where: str, monkeypatch
):
    """The measurement reads a clock that only the environment's steps advance."""
    now = [0.0]

    class Timed(Walk):
        def step(self, action: int) -> tuple:
            now[0] += step_s
            return super().step(action)

    monkeypatch.setattr(making, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    host = make_custom_host(Timed, num_envs=2, name="toy", pool=PoolOptions(num_groups=1))
    try:
        (line,) = host.events()
        assert where in line or cpu_cores() == 1
        assert host.events() == []
    finally:
        host.close()


@pytest.mark.parametrize(
    ("cores", "num_envs", "num_groups", "step_us", "fastest"),
    [
        (2, 4, 2, 6, 0),
        (2, 1, 1, 20, 0),
        (2, 64, 2, 6, 1),
        (2, 16, 2, 43, 1),
        (2, 64, 2, 43, 2),
        (2, 15, 1, 40, 2),
        (1, 64, 2, 43, 0),
        (16, 64, 2, 43, 15),
        (16, 512, 2, 400, 16),
    ],
)
def test_what_was_fastest_is_expected_to_be(cores, num_envs, num_groups, step_us, fastest):
    """Measured in training with 4 and 64 light environments and 16 and 64 of HalfCheetah on 2
    cores.

    Elsewhere the costs decide: with many cores, one is left for action selection until steps take
    far longer than these.
    """
    took_s = turns_s(
        cores, num_envs // num_groups, 1e-6 * step_us, PoolOptions(num_groups=num_groups)
    )
    assert min(took_s, key=lambda workers: took_s[workers]) == fastest


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_slice_of_a_pool_is_what_a_pool_of_its_own_would_be(workers):
    options = PoolOptions(workers=workers, num_groups=2)
    both = make_custom_host(Walk, num_envs=NUM_ENVS, num_seeds=2, name="walk", pool=options)
    assert (both.num_envs, both.num_seeds) == (NUM_ENVS, 2)
    halves = [slice(0, NUM_ENVS // 2), slice(NUM_ENVS // 2, NUM_ENVS)]
    first, steps = both.reset([3, 5]), []
    for t in range(STEPS):
        for group, rows in enumerate(halves):
            both.send(np.tile(actions_at(t)[rows], 2), group)
        steps.append(joined([both.recv(0), both.recv(1)]))
    for i, seed in enumerate((3, 5)):
        rows = np.concatenate([np.arange(3) + group * NUM_ENVS + i * 3 for group in range(2)])
        alone = walks(0)
        want = without_pid(*roll(alone, seed))
        got = without_pid(first[rows], [jax.tree.map(itemgetter(rows), step) for step in steps])
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
        alone.close()
    with pytest.raises(ValueError, match="1 seeds for a pool of 2 slices"):
        both.reset(3)
    both.close()


def test_by_arrival_the_fast_do_not_wait_for_the_slow(tmp_path):
    """The slow environment steps only once it may, which is after 30 steps of the other worker's
    environments.
    """
    options, may_step = PoolOptions(workers=2, num_groups=2, order="arrival"), tmp_path / "may_step"
    may_step.touch()  # an environment is tried first
    host = make_custom_host(
        partial(Uneven, partial(wait_for, may_step)), num_envs=8, name="uneven", pool=options
    )
    may_step.unlink()
    assert "the same seed does not give the same run" in host.events()[0]
    assert host.send_to is not None and host.recv_any is not None
    seed = next(
        s
        for s in range(1000)
        if [env_seed(s, i) % 4 == 0 for i in range(8)] == [True] + 7 * [False]
    )
    steps = np.zeros(8, int)
    host.reset(seed)
    host.send_to(np.zeros(8, int), np.arange(8))
    for turn in range(32):
        if turn == 30:
            assert list(steps) == 2 * [0, 0, 30, 30]
            may_step.touch()
        indices, step = host.recv_any()
        assert len(indices) == 4
        steps[indices] += 1
        np.testing.assert_array_equal(step.obs[:, 0], steps[indices])  # nothing lost, nothing twice
        np.testing.assert_array_equal(
            step.reward, np.where(steps[indices] == 1, 0, 1 + indices % 2)
        )
        with pytest.raises(ValueError, match="as recv_any gave them"):
            host.send_to(np.zeros(4, int), indices[::-1])
        if turn < 30:
            host.send_to(1 + indices % 2, indices)
    assert list(steps) == 2 * [1, 1, 31, 31]
    assert host.steps() == steps.sum() == 32 * 4
    host.close()


def test_learning_by_arrival_gives_every_environment_its_steps_in_order():
    options = PoolOptions(workers=2, num_groups=2, order="arrival")
    host = make_custom_host(
        partial(Uneven, partial(time.sleep, 0.002)), num_envs=8, name="uneven", pool=options
    )
    graph, agent = build_graph(
        host, ppo(rollout_length=10, num_minibatches=2, policy_hidden=(4,), value_hidden=(4,))
    )
    sample, key = graph.fragments[0], jax.random.key(0)
    inputs = init_learned(agent, agent.acting.parts, key)
    inputs["statistics"] = graph.fragments[1].publish(graph.fragments[1].init(key))["statistics"]
    private = sample.init(key)
    for tick in range(3):
        private, outputs, _ = sample.step(private, inputs, (), jax.random.key(tick))
        rollout = outputs["rollout"]
        counted = np.broadcast_to(tick * 10 + np.arange(10, dtype=np.float32)[:, None], (10, 8))
        np.testing.assert_array_equal(rollout.obs[..., 0], counted)
        np.testing.assert_array_equal(rollout.next_obs[..., 0], counted + 1)
        np.testing.assert_array_equal(rollout.reward, rollout.action)
        assert rollout.first.sum() == (8 if tick == 0 else 0)
    assert host.steps() == 240 == int(private.steps)
    host.close()


def test_ten_thousand_batches_on_two_groups_do_not_deadlock():
    host = make_custom_host(
        Uneven, num_envs=4, name="fast", pool=PoolOptions(workers=2, num_groups=2)
    )
    obs = host.reset(0)
    for group in (0, 1):
        host.send(np.zeros(2, int), group)
    for _ in range(5_000):
        for group in (0, 1):
            obs = host.recv(group).obs
            host.send(np.zeros(2, int), group)
    assert host.steps() == 20_000
    np.testing.assert_array_equal(obs[:, 0], 5_000)
    host.close()


def test_evaluation_environments_are_of_the_same_kind_and_in_this_process(pool: HostEnv):
    other = pool.another(3)
    assert (other.num_envs, other.num_groups, other.spec) == (3, 1, pool.spec)
    assert set(other.reset(0)[:, PID]) == {np.float32(os.getpid())}
    np.testing.assert_array_equal(other.reset(4)[:, 0], pool.reset(4)[:3, 0])
    other.close()


def test_a_closure_of_a_script_without_a_main_guard_works(tmp_path):
    (tmp_path / "script.py").write_text(
        """
import gymnasium, numpy as np
from jaxrl_fast.envs.from_gymnasium import make_custom_host
from jaxrl_fast.envs.pool.batches import PoolOptions


print("started")
scale = 3.0

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {}
    def step(self, action):
        return np.ones(2), scale * action, False, False, {}

host = make_custom_host(lambda: Mine(), num_envs=4, pool=PoolOptions(workers=2, num_groups=1))
host.reset(0)
host.send(np.arange(4) % 2, 0)
print(host.recv(0).reward.tolist())
"""
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "started\n[0.0, 3.0, 0.0, 3.0]\n"


def test_images_keep_their_bytes_and_a_pool_of_gymnasium_gives_what_gymnasium_gives():
    host = make_host("CartPole-v1", num_envs=2, pool=PoolOptions(workers=2, num_groups=1))
    obs = host.reset(7)
    env = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(obs[1], env.reset(seed=env_seed(7, 1))[0])
    for _ in range(30):
        host.send(np.ones(2, int), 0)
        step = host.recv(0)
        following, reward, terminated, truncated, _ = env.step(1)
        np.testing.assert_array_equal(step.next_obs[1], following)
        assert (step.reward[1], step.terminated[1], step.truncated[1]) == (
            reward,
            terminated,
            truncated,
        )
        if terminated:
            np.testing.assert_array_equal(step.obs[1], env.reset()[0])
    host.close()


class _Still:
    """Stands for a pool with workers, which would cost processes."""

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def _replace(self, **_: Any) -> "_Still":
        return self


@pytest.mark.parametrize("cores", range(1, 9))
def test_every_number_of_environments_fits_the_defaults_on_every_number_of_cores(
    cores, monkeypatch
):
    def workers(host_spec, spec, *, num_workers, num_groups, num_envs, **_):
        assert num_envs % num_groups == 0 and 1 <= num_workers <= num_envs // num_groups
        return _Still(num_groups)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(making, "make_workers", workers)
    found = set()
    for step_s in (1e-6, 1e-3):
        host_spec = describe(
            partial(Walk), "walk", measure=lambda env, host_spec, step_s=step_s: step_s
        )
        for num_envs in range(1, 34):
            made = make_pool(
                host_spec,
                env_spec(host_spec),
                num_envs=num_envs,
                num_seeds=1,
                options=PoolOptions(),
            )
            assert made.num_groups == (2 if num_envs % 2 == 0 else 1)
            found.add(isinstance(made, _Still))
    assert found == ({False} if cores == 1 else {False, True})


@pytest.mark.parametrize("order", ["fixed", "arrival"])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_the_default_of_groups_follows_the_given_workers(order, num_seeds):
    """An option is refused only if no number of groups supports it."""
    for num_envs, workers in product(range(1, 34), range(9)):
        options, whole = PoolOptions(workers=workers, order=order), num_envs * num_seeds
        possible = workers <= whole
        if order == "arrival":
            possible = num_seeds == 1 and 0 < workers <= whole and whole % workers == 0
        if not possible:
            with pytest.raises(ValueError, match=r"workers|num_seeds"):
                check_options(options, num_envs, num_seeds)
            continue
        groups = check_options(options, num_envs, num_seeds).num_groups
        words = [
            f"num_envs={num_envs}",
            f"num_seeds={num_seeds}",
            f"pool.workers={workers}",
            f"pool.order={order}",
        ]
        if workers in (1, 2, 5) and num_envs < 9:
            run = compose(["env=gymnasium", "env.id=CartPole-v1", "algo=ppo", *words])
            assert run.pool["num_groups"] == groups
        half = whole // 2
        two = num_envs % 2 == 0 and workers <= half and (order == "fixed" or half % workers == 0)
        assert groups == (2 if two else 1)


@pytest.mark.parametrize("widths", [(1, 7), (2, 3, 8, 11, 16, 33)], ids=["two", "more"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_number_of_environments_fits_the_default_sizes(name, widths):
    agents, continuous = ("ippo", "mappo", "pqn_vdn"), CONTINUOUS
    env = (
        "traffic_junction_4" if name in agents else "pendulum" if name in continuous else "cartpole"
    )
    for num_envs in widths:
        run = compose([f"env={env}", f"algo={name}", "tuned=false", f"num_envs={num_envs}"])
        build_graph(make_envs(run), make_algorithm(run), GraphOptions(total_steps=run.total_steps))
    init, step = make_train_step(make_envs(run), make_algorithm(run), total_steps=run.total_steps)
    jax.eval_shape(step, jax.eval_shape(init, jax.random.key(0)))  # shapes of the last width
    host = compose(["env=gymnasium", "env.id=CartPole-v1", f"algo={name}", f"num_envs={num_envs}"])
    assert host.pool["num_groups"] == 1
