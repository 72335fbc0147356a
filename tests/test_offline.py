"""Recorded data: files, collection, learning without an environment, and then with it."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_commands import Commands
from tiny import host_line, line

import jaxrl_fast as jf
from jaxrl_fast.algorithms.iql import expectile_error
from jaxrl_fast.core import Box, Extras, Transition
from jaxrl_fast.learning.data import NEXT_ACTION
from jaxrl_fast.offline.collecting import policy_at, stored_steps
from jaxrl_fast.offline.datasets import (
    episodes_in,
    join,
    load_dataset,
    save_dataset,
    steps_in,
    to_minari,
    usable,
)
from jaxrl_fast.offline.recorded import Recorded, mixed_source, read_recorded
from jaxrl_fast.policy.policies import with_sampled_actions
from jaxrl_fast.replay.buffers import Window, fold_n_steps, ring_buffer

SPEC = line(discrete=False).spec
SMALL: dict[str, Any] = dict(batch_size=8, policy_hidden=(8,))
ACTOR_CRITIC: dict[str, Any] = {**SMALL, "critic_hidden": (8,)}
LEARNERS = {
    "bc": lambda **more: jf.bc(**SMALL, **more),
    "iql": lambda **more: jf.iql(**ACTOR_CRITIC, buffer_size=400, **more),
    "td3_bc": lambda **more: jf.td3_bc(
        **ACTOR_CRITIC, buffer_size=400, critic_penalty=0.01, **more
    ),
    "sac": lambda **more: jf.sac(**ACTOR_CRITIC, buffer_size=400, **more),
}


def quiet(message: str) -> None:
    """Drop a message."""


def steps(lengths: list[int], seed: int = 0) -> Transition:
    """Make steps ``[T, 1, ...]`` whose first observation counts them, in episodes of these lengths."""
    rng, total = np.random.default_rng(seed), sum(lengths)
    count = np.arange(total, dtype=np.float32)[:, None, None]
    obs, after = (
        np.concatenate([x, rng.random(x.shape, np.float32)], axis=2) for x in (count, count + 1)
    )
    last = np.zeros((total, 1), bool)
    last[np.cumsum(lengths) - 1] = True
    terminated = last & (rng.random((total, 1)) < 0.5)
    action = rng.uniform(-2, 1, (total, 1, 1)).astype(np.float32)
    reward = rng.random((total, 1)).astype(np.float32)
    return Transition(
        obs, action, reward, after, terminated, last & ~terminated, last, Extras({}, {})
    )


def dataset_of(lengths: list[int], seed: int = 0) -> jf.Dataset:
    """Make a data set for `line`."""
    return join(episodes_in(steps(lengths, seed)), SPEC, {})


LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def test_minari_has_what_was_written_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = dataset_of([3, 1, 4])
    to_minari(dataset, "line/test-v0", SPEC)
    found = load_dataset("minari:line/test-v0")
    jax.tree.map(
        np.testing.assert_array_equal, found._replace(about={}), dataset._replace(about={})
    )
    with pytest.raises(ValueError, match="Minari refuses it"):
        to_minari(dataset, "line/test-v0", SPEC)
    with pytest.raises(ValueError, match="minari list local shows the names"):
        load_dataset("minari:line/other-v0")


@given(LENGTHS, st.integers(0, 5))
def test_a_data_set_has_the_steps_that_it_was_made_of(lengths: list[int], seed: int) -> None:
    made = steps(lengths, seed)
    dataset = dataset_of(lengths, seed)
    found = steps_in(dataset, SPEC)
    assert dataset.lengths.tolist() == lengths
    for name in ("action", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name)[:, 0])
    np.testing.assert_array_equal(found.obs[:, 0], np.arange(sum(lengths)))
    np.testing.assert_array_equal(found.next_obs[:, 0], np.arange(sum(lengths)) + 1)
    np.testing.assert_array_equal(np.flatnonzero(found.first), np.cumsum([0, *lengths[:-1]]))
    np.testing.assert_allclose(dataset.returns.sum(), made.reward.sum(), rtol=1e-5)


def test_a_data_set_is_read_as_it_was_written_and_a_change_is_refused(tmp_path: Path) -> None:
    dataset = dataset_of([3, 1, 4])
    named = dataset._replace(obs={"arm/joints": dataset.obs[""], "camera": dataset.obs[""][:, :1]})
    for number, one in enumerate((dataset, named)):
        save_dataset(one, tmp_path / str(number))
        found = load_dataset(tmp_path / str(number))
        jax.tree.map(
            np.testing.assert_array_equal, found._replace(about={}), one._replace(about={})
        )
    with pytest.raises(ValueError, match="contains a data set already"):
        save_dataset(dataset, tmp_path / "0")
    file = tmp_path / "0" / "actions.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"actions.npy is damaged"):
        load_dataset(tmp_path / "0")
    description = tmp_path / "1" / "dataset.json"
    content = json.loads(description.read_text())
    content["files"]["../0/rewards"] = content["files"].pop("rewards")
    description.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"rewards.npy is damaged"):
        load_dataset(tmp_path / "1")
    description.write_text("{")
    with pytest.raises(ValueError, match=r"dataset.json is damaged"):
        load_dataset(tmp_path / "1")
    with pytest.raises(ValueError, match="holds no data set"):
        load_dataset(tmp_path / "2")
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "config.yaml").touch()
    with pytest.raises(ValueError, match="contains other files"):
        save_dataset(dataset, tmp_path / "3")


def test_arrays_of_ones_own_are_taken_with_the_dtypes_of_numpy() -> None:
    wide = jax.tree.map(
        lambda x: x.astype(np.float64) if x.dtype == np.float32 else x.astype(np.int64), OWN
    )
    found = usable(wide, DISCRETE, "own")
    jax.tree.map(np.testing.assert_array_equal, found, OWN)
    assert [leaf.dtype.itemsize for leaf in (found.obs[""], found.action, found.reward)] == [
        4,
        4,
        4,
    ]
    unmarked = OWN._replace(truncated=np.zeros(8, bool), terminated=np.zeros(8, bool))
    assert np.flatnonzero(usable(unmarked, DISCRETE, "own").truncated).tolist() == [2, 3, 7]


DISCRETE = line(discrete=True).spec
OWN = dataset_of([3, 1, 4])._replace(action=np.arange(8, dtype=np.int32) % 2, about={})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(obs={"": OWN.obs[""][:8]}), "observations has 8 rows, not 11"),
        (dict(reward=OWN.reward[:7]), "reward has 7 rows, not 8"),
        (dict(lengths=np.array([3, 1, 3])), "lengths must be above 0 and add up to its 8 actions"),
        (dict(lengths=np.array([4, 0, 4])), "lengths must be above 0"),
        (dict(action=OWN.action + 1), "its actions are 1 to 2, line has 2, counted from 0"),
        (
            dict(obs={"": np.where(np.arange(11)[:, None] == 3, np.nan, OWN.obs[""])}),
            "observations have a NaN",
        ),
        (dict(reward=OWN.reward + np.inf), "reward have a NaN or an infinity"),
        (dict(terminated=np.arange(8) == 5), "step 5 ends an episode"),
        (
            dict(reward=np.zeros((4, 2))),
            r"rewards have the shape \[4, 2\]: write one number a step, \[4\]",
        ),
        (
            dict(reward=OWN.reward.astype(str)),
            "its rewards are no array of numbers: ndarray of str",
        ),
        (dict(action=[{"a": 1}] * 8), "its actions are no array of numbers: list of dict"),
        (dict(action=(np.zeros(8), np.zeros(8))), "no array of numbers: tuple of 2 parts"),
        (dict(action=["left"] * 8), "its actions are no array of numbers: list of str"),
        (
            dict(obs=[[1.0], [1.0, 2.0]]),
            "its observations are no array of numbers: rows of several",
        ),
        (dict(lengths=8), "its lengths are no array of numbers: int;"),
        (dict(lengths=[3.5, 1, 3.5]), "its lengths are not all whole numbers"),
        (dict(truncated=OWN.reward), "its truncated are not all true or false"),
        (dict(terminated=np.full(8, np.nan)), "its terminated are not all true or false"),
    ],
)
def test_arrays_of_ones_own_that_training_would_misread_are_refused(
    change: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        usable(OWN._replace(**change), DISCRETE, "own")


def test_arrays_of_ones_own_may_have_other_forms(tmp_path: Path) -> None:
    forms = [
        dict(obs=OWN.obs[""], lengths=OWN.lengths.astype(float), reward=OWN.reward[:, None]),
        dict(
            obs=OWN.obs[""].tolist(), terminated=OWN.terminated.astype(int), action=list(OWN.action)
        ),
        jax.tree.map(jnp.asarray, OWN._replace(about={}))._asdict(),
    ]
    for number, form in enumerate(forms):
        given = OWN._replace(**form)
        stored = load_dataset(save_dataset(given, tmp_path / str(number)))
        for dataset in (usable(given, DISCRETE, "own"), usable(stored, DISCRETE, "own")):
            jax.tree.map(np.testing.assert_array_equal, dataset, OWN)


@pytest.mark.parametrize("far", [9.9, 1.01])
def test_recorded_actions_outside_of_the_space_are_refused(far: float) -> None:
    dataset = dataset_of([3, 1, 4])
    box = SPEC.action
    assert isinstance(box, Box)
    inside = dataset._replace(action=np.clip(dataset.action, box.low, box.high))
    usable(inside, SPEC, "own")
    outside = inside.action.copy()
    outside[5] = far * box.high
    with pytest.raises(
        ValueError, match=r"its actions\[0\] are .* line has -2 to 1: write what the env"
    ):
        usable(inside._replace(action=outside), SPEC, "own")
    at_the_edge = np.nextafter(np.float32(box.high), np.float32(9))
    usable(inside._replace(action=np.full_like(outside, at_the_edge)), SPEC, "own")


def corrupted(dataset: jf.Dataset, draw: Any) -> jf.Dataset:
    """Change one field of a data set to something that it cannot hold."""
    field = draw(st.sampled_from(["obs", "action", "reward", "terminated", "truncated", "lengths"]))
    value = dataset.obs[""] if field == "obs" else getattr(dataset, field)
    of_reals = field in ("obs", "action", "reward")
    kinds = ["shorter", "reshaped", "text", "object", "scalar", "none", *["nan"] * of_reals]
    kind = draw(st.sampled_from(kinds))
    at = draw(st.integers(0, len(value) - 1))
    if kind == "nan":
        changed = value.copy()
        changed[at] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    else:
        changed = {
            "shorter": value[:-1],
            "reshaped": np.concatenate([value.reshape(len(value), -1)] * 2, axis=1),
            "text": [str(one) for one in value],
            "object": [{"x": one} for one in value],
            "scalar": value.flat[0],
            "none": None,
        }[kind]
    return dataset._replace(**{field: changed})


@settings(max_examples=100)
@given(lengths=LENGTHS, data=st.data())
def test_no_damaged_data_set_is_taken(lengths: list[int], data: Any) -> None:
    dataset = dataset_of(lengths)
    usable(dataset, SPEC, "own")
    with pytest.raises(ValueError, match="data=own: its ") as error:
        usable(corrupted(dataset, data.draw), SPEC, "own")
    assert "\n" not in str(error.value)


def test_what_is_no_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write a folder, or in Python a jf.Dataset, not dict"):
        read_recorded({"obs": 1}, jf.bc(), DISCRETE, 100, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "env", [line(discrete=True), host_line(discrete=True)], ids=["compiled", "host"]
)
def test_collected_episodes_are_whole_and_of_the_policy(env: Any) -> None:
    policy = jf.learn(
        line(discrete=True), jf.dqn(q_hidden=(8,), epsilon=0.1), total_steps=40, eval_every=0
    ).policy
    dataset = jf.collect_episodes(policy, env, episodes=70, seed=1)
    found = steps_in(dataset, env.spec)
    assert len(dataset.lengths) == 70 and dataset.lengths.max() <= 5
    ends = np.cumsum(dataset.lengths) - 1
    assert (found.terminated | found.truncated)[ends].all() and (
        found.terminated | found.truncated
    ).sum() == 70
    np.testing.assert_array_equal(policy(found.obs), found.action)
    np.testing.assert_allclose(found.reward, 1.0 - np.abs(found.next_obs[:, 0]), rtol=1e-5)
    again = jf.collect_episodes(policy, env, episodes=70, seed=1)
    np.testing.assert_array_equal(again.obs[""], dataset.obs[""])
    assert not np.array_equal(
        jf.collect_episodes(policy, env, episodes=70, seed=2).obs[""][:9], dataset.obs[""][:9]
    )


def test_actions_sampled_on_the_host_have_new_noise_in_each_step() -> None:
    options: dict[str, Any] = dict(
        policy_hidden=(8,), value_hidden=(8,), normalize_observations=False
    )
    algorithm = jf.ppo(rollout_length=8, num_minibatches=2, **options)
    policy = jf.learn(
        line(discrete=False), algorithm, total_steps=32, eval_every=0, tell=quiet
    ).policy
    # the same distribution everywhere
    constant = policy._replace(params=jax.tree.map(jnp.zeros_like, policy.params))
    dataset = jf.collect_episodes(
        with_sampled_actions(constant, algorithm), host_line(discrete=False), episodes=4
    )
    assert len(np.unique(dataset.action)) == len(dataset.action)


def test_the_replay_of_a_run_with_data_is_what_the_run_sampled(tmp_path: Path) -> None:
    env = line(discrete=False)
    options: dict[str, Any] = dict(
        data=dataset_of([5] * 20), online_steps=40, eval_every=0, tell=quiet
    )
    jf.learn(env, LEARNERS["iql"](), total_steps=80, run_dir=tmp_path, **options)
    found = stored_steps(tmp_path / "checkpoints" / "80", env.spec)
    assert len(found.action) == 40
    # as in the environment
    np.testing.assert_allclose(found.obs[""][:, 1], 5 + 2 * found.obs[""][:, 0], rtol=1e-5)


def test_a_checkpoints_policy_acts_as_the_run_did_then(tmp_path: Path) -> None:
    """Also of an algorithm that is not one of this package."""
    own = LEARNERS["sac"](warmup_steps=8)._replace(name="my_package.make")
    result = jf.learn(
        line(discrete=False), own, total_steps=80, eval_every=0, tell=quiet, run_dir=tmp_path
    )
    other = result.policy._replace(params=jax.tree.map(jnp.zeros_like, result.policy.params))
    found, obs = (
        policy_at(tmp_path / "checkpoints" / "80", other, own),
        jnp.array([[0.3, 5.6], [-0.2, 4.6]]),
    )
    np.testing.assert_array_equal(found(obs), result.policy(obs))


def recorded_of(lengths: list[int], *, online: bool, offline_steps: int = 8) -> Recorded:
    """Read a data set for a run."""
    found = read_recorded(
        dataset_of(lengths), jf.iql(), SPEC, offline_steps + 8 * online, 8 * online
    )
    assert found is not None
    return found


@given(LENGTHS.filter(lambda lengths: sum(lengths) >= 8), st.integers(1, 3))
def test_recorded_windows_are_consecutive_and_end_with_their_episode(
    lengths: list[int], n_step: int
) -> None:
    data = (
        jf.td3_bc(batch_size=8, n_step=n_step)
        .build(SPEC, 2)
        .data._replace(sequence_length=1, burn_in=0)
    )
    window = Window(n_step, 1, (NEXT_ACTION,))
    buffer = ring_buffer(capacity=64, num_envs=2, batch_size=8, window=window)
    recorded = recorded_of(lengths, online=False)
    if -(-sum(lengths) // buffer.shards) < n_step + 1:
        with pytest.raises(ValueError, match="too few for sequences"):
            mixed_source(buffer, recorded, 2, 16, window)
        return
    source = mixed_source(buffer, recorded, 2, 64, window)
    example = jax.tree.map(lambda x: jnp.zeros((1, 2, *x.shape[2:]), x.dtype), steps([1]))
    example = example._replace(extras=Extras({NEXT_ACTION: jnp.zeros((1, 2, 1))}, {}))
    sampled = source.sample(source.init(example), jax.random.key(0), None).windows
    batch = fold_n_steps(sampled, jnp.float32(0.5), data, memory=False)
    whole, discount = recorded.steps, 0.5
    done = whole.terminated | whole.truncated
    for obs, reward, bootstrap, next_obs, following in zip(
        *(
            x.reshape(-1, *x.shape[3:])
            for x in (batch.obs, batch.reward, batch.bootstrap, batch.next_obs)
        ),
        batch.extras[NEXT_ACTION].reshape(-1, 1),
        strict=True,
    ):
        at = int(obs[0])
        last = at
        while last < at + n_step - 1 and int(next_obs[0]) > last + 1:
            assert not done[last]  # no window goes over the end of an episode
            last += 1
        powers = discount ** np.arange(last - at + 1)
        np.testing.assert_allclose(reward, (whole.reward[at : last + 1] * powers).sum(), rtol=1e-5)
        assert bootstrap == pytest.approx(
            0.0 if whole.terminated[last] else discount ** (last - at + 1)
        )
        np.testing.assert_array_equal(following, np.nan if done[at] else whole.action[at + 1])


def test_the_action_after_the_last_step_of_an_episode_is_missing() -> None:
    recorded = recorded_of([3, 1, 2], online=False)
    following = np.append(recorded.steps.action[1:, 0], np.nan)
    following[[2, 3, 5]] = np.nan
    np.testing.assert_array_equal(recorded.steps.extras.decision[NEXT_ACTION][:, 0], following)


def test_half_of_each_batch_is_recorded_once_the_run_has_sampled_steps() -> None:
    window = Window()
    buffer = ring_buffer(capacity=64, num_envs=2, batch_size=8, window=window)
    source = mixed_source(buffer, recorded_of([8, 8], online=True), 4, 16, window)
    rollout = jax.tree.map(lambda x: jnp.full((1, 2, *x.shape[2:]), 100, x.dtype), steps([1]))
    state, shares = source.init(rollout), []
    for tick in range(4):
        state = source.add(state, rollout)
        obs = source.sample(state, jax.random.key(tick), None).windows.steps.obs
        shares.append((np.asarray(obs)[..., 0] == 100).reshape(-1, 8).mean(1).tolist())
    assert shares == [[0.0] * 4, [0.0] * 4, [0.5] * 4, [0.5] * 4]


@pytest.mark.parametrize("online", [0, 40])
@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "bc"])
def test_no_environment_is_stepped_while_a_run_is_offline(name: str, online: int) -> None:
    env, counts = host_line(discrete=False), list[int]()
    options: dict[str, Any] = dict(data=dataset_of([5] * 20), online_steps=online, eval_every=0)
    jf.learn(
        env,
        LEARNERS[name](),
        total_steps=80,
        on_metrics=lambda row: counts.append(env.steps()),
        **options,
    )
    assert len(counts) == 20 and counts[9] == 0
    assert env.steps() == online


def test_an_offline_run_learns_from_the_statistics_of_its_data() -> None:
    data = dataset_of([5] * 20)
    state = jf.learn(
        line(discrete=False), LEARNERS["iql"](), total_steps=8, data=data, eval_every=0
    ).state
    found, observed = state.channels["statistics"].obs, steps_in(data, SPEC).obs
    np.testing.assert_allclose(found.mean[0], observed.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.variance[0], observed.var(0), rtol=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
def test_placements_and_seeds_change_an_offline_run_only_by_rounding(name: str) -> None:
    online = 0 if name == "bc" else 16
    options: dict[str, Any] = dict(
        total_steps=48, data=dataset_of([5] * 20), online_steps=online, eval_every=0
    )
    env = line(discrete=False, num_envs=4)
    alone = jf.learn(env, LEARNERS[name](), **options).state
    sharded = jf.learn(env, LEARNERS[name](), placement="data_parallel", devices=2, **options).state
    seeds = jf.learn(env, LEARNERS[name](), num_seeds=2, **options).state
    for other in (sharded, jax.tree.map(lambda x: x[:1] if jnp.ndim(x) else x, seeds)):
        for a, b in zip(
            jax.tree.leaves(alone.channels), jax.tree.leaves(other.channels), strict=True
        ):
            np.testing.assert_allclose(a[:1], b[:1], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "online"), [("bc", 0), ("iql", 0), ("td3_bc", 160), ("sac", 160)])
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, online: int, tmp_path: Path) -> None:
    env, options = (
        line(discrete=False),
        dict(data=dataset_of([5] * 20), online_steps=online, eval_every=0, tell=quiet),
    )
    whole = jf.learn(
        env, LEARNERS[name](), total_steps=240, run_dir=tmp_path / "whole", **options
    ).state
    rows: list[Any] = []
    stop: Any = dict(on_metrics=rows.append, should_stop=lambda: len(rows) >= 20)
    jf.learn(env, LEARNERS[name](), total_steps=240, run_dir=tmp_path / "cut", **stop, **options)
    last = jf.learn(
        env,
        LEARNERS[name](),
        total_steps=240,
        run_dir=tmp_path / "cut",
        resume=tmp_path / "cut",
        **options,
    ).state
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(last), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def test_an_offline_run_goes_on_online_but_not_back(tmp_path: Path) -> None:
    env = host_line(discrete=False)
    options: dict[str, Any] = dict(
        data=dataset_of([5] * 20), eval_every=0, tell=quiet, run_dir=tmp_path
    )
    jf.learn(env, LEARNERS["iql"](), total_steps=80, **options)
    assert env.steps() == 0
    jf.learn(env, LEARNERS["iql"](), total_steps=120, online_steps=40, resume=tmp_path, **options)
    assert env.steps() == 40
    with pytest.raises(ValueError, match="the environment has been stepped since 80 steps"):
        jf.learn(
            env, LEARNERS["iql"](), total_steps=160, online_steps=40, resume=tmp_path, **options
        )


@pytest.mark.parametrize("learner", [jf.iql, jf.td3_bc], ids=lambda learner: learner.name)
def test_offline_learners_are_better_than_the_actions_that_they_learn_from(learner: Any) -> None:
    """A random policy made the data; both find the actions that it was paid for."""
    rng, count = np.random.default_rng(0), 400
    obs = rng.uniform(-1, 1, (count * 2, 2)).astype(np.float32)
    obs[:, 1] = 5 + 2 * obs[:, 0]
    action = rng.uniform(-2, 1, (count, 1)).astype(np.float32)
    # the best action follows from the observation
    reward = -np.abs(action[:, 0] - obs[::2, 0] + 0.3)
    ends = np.ones(count, bool)
    data = jf.Dataset({"": obs}, action, reward, ends, ~ends, np.ones(count, int))
    options: dict[str, Any] = dict(
        policy_hidden=(32,), critic_hidden=(32,), learning_rate=1e-2, batch_size=64
    )
    options |= (
        dict(actor_penalty=0.02)
        if learner is jf.td3_bc
        else dict(advantage_scale=10.0, expectile=0.9)
    )
    policy = jf.learn(
        line(discrete=False),
        learner(**options),
        total_steps=1_000,
        data=data,
        eval_every=0,
        tell=quiet,
    ).policy
    error = np.abs(np.asarray(policy(obs[::2]))[:, 0] - obs[::2, 0] + 0.3)
    assert error.mean() < 0.15 < np.abs(reward).mean() / 4


def test_behaviour_cloning_repeats_recorded_actions() -> None:
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (400, 2)).astype(np.float32)
    ends = np.ones(200, bool)
    for discrete in (False, True):
        wanted = obs[::2, :1] > 0 if discrete else np.clip(obs[::2, :1] - 0.3, -2, 1)
        action = wanted[:, 0].astype(np.int32) if discrete else wanted
        data = jf.Dataset(
            {"": obs}, action, np.zeros(200, np.float32), ends, ~ends, np.ones(200, int)
        )
        algorithm = jf.bc(policy_hidden=(32,), learning_rate=1e-2, batch_size=64)
        env = line(discrete=discrete)
        policy = jf.learn(
            env, algorithm, total_steps=800, data=data, eval_every=0, tell=quiet
        ).policy
        found = np.asarray(policy(obs[::2]))
        assert (found == action).mean() > 0.95 if discrete else np.abs(found - action).mean() < 0.1


def test_the_expectile_error_is_least_at_the_expectile() -> None:
    samples = jnp.linspace(0.0, 1.0, 101)
    means = jnp.linspace(0.0, 1.0, 1001)
    # of the uniform distribution: e² (1 - t) = (1 - e)² t
    for expectile, least in (
        (0.5, 0.5),
        (0.9, 0.75),
    ):
        loss = jax.vmap(lambda m, t=expectile: jnp.mean(expectile_error(samples - m, t)))(means)
        assert means[jnp.argmin(loss)] == pytest.approx(least, abs=0.005)


REFUSED = {
    "data alone": (lambda: jf.bc(), {}, "algo=bc learns from data alone: write data="),
    "bc online": (lambda: jf.bc(), {"data": [5] * 9, "online_steps": 8}, "learns from data alone"),
    "on-policy": (
        lambda: jf.ppo(),
        {"data": [5] * 9},
        "algo=ppo learns from its own newest steps, not from data",
    ),
    "prioritized": (
        lambda: jf.sac(priority_exponent=0.6),
        {"data": [5] * 9},
        "does not support prioritized",
    ),
    "too long": (
        lambda: jf.iql(),
        {"data": [5] * 9, "online_steps": 999},
        "online_steps=999 are the last of",
    ),
    "no data": (lambda: jf.iql(), {"online_steps": 8}, "add data="),
    "next actions": (
        lambda: jf.td3_bc(critic_penalty=0.1, n_step=3),
        {"data": [5] * 9},
        "data has the next action only",
    ),
    "too little": (lambda: jf.iql(), {"data": [1]}, "data of 1 steps are too few"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_learned_offline_is_refused_in_one_line(case: str) -> None:
    make, options, message = REFUSED[case]
    given_data = {**options, "data": dataset_of(options["data"])} if "data" in options else options
    with pytest.raises(ValueError, match=message):
        jf.learn(line(discrete=False), make(), total_steps=80, **given_data)


def test_data_of_another_environment_are_refused() -> None:
    data = dataset_of([5] * 9)
    with pytest.raises(ValueError, match=r"its observations are an array float32 \[2\]"):
        jf.learn(jf.make_env("pendulum", num_envs=2), jf.iql(), total_steps=80, data=data)
    with pytest.raises(ValueError, match="line takes whole numbers"):
        jf.learn(line(discrete=True), jf.bc(), total_steps=80, data=data)


def test_commands_collect_and_learn_from_files(tmp_path: Path, commands: Commands) -> None:
    """A run's episodes and replay are written; a second run learns from them, and goes on online."""
    small = [
        "num_envs=4",
        "eval.episodes=4",
        "eval.beside=false",
        "algo.policy_hidden=[8]",
        "algo.critic_hidden=[8]",
    ]
    run, data, off = tmp_path / "run", tmp_path / "data", tmp_path / "off"

    def call(command: str, *words: str, status: int = 0) -> str:
        ended = commands.run(tmp_path, command, *words, trains=True)
        assert ended.status == status, ended.err
        return ended.err if status else ended.out

    call("train", "env=pendulum", "algo=sac", "total_steps=800", *small, f"run_dir={run}")
    assert "6 episodes, 1,200 steps" in call("collect", str(run), f"out={data}", "episodes=6")
    assert json.loads((data / "dataset.json").read_text())["about"]["run"] == str(run)
    assert "800 steps" in call("collect", str(run), f"out={tmp_path / 'replay'}", "replay=true")
    steps_there = sorted(
        int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()
    )
    there = call(
        "collect", str(run), f"out={tmp_path / 'old'}", f"policy={steps_there[0]}", "episodes=2"
    )
    assert "2 episodes" in there
    assert "write newest, best, or the steps of" in call(
        "collect", str(run), f"out={tmp_path / 'x'}", "policy=7", status=2
    )
    assert "contains a data set already" in call("collect", str(run), f"out={data}", status=2)
    assert "write where to put the data" in call("collect", str(run), status=2)
    words = ["env=pendulum", "algo=iql", "total_steps=400", *small]
    assert "iql learns from its own steps, without data" in call(
        "train", *words, f"run_dir={tmp_path / 'without'}"
    )
    shown = call("train", *words, f"data={data}", f"run_dir={off}")
    assert f"learns from {data}" in shown and "not cached" not in shown
    assert '"of 400, from data alone"' in (off / "report.html").read_text()
    call("train", f"resume={off}", "total_steps=800", "online_steps=400")
    assert json.loads((off / "summary.json").read_text())["env_steps"] == 800
    words = [
        "env=pendulum",
        "algo=sac",
        f"data={data}",
        "total_steps=400",
        *small,
        f"out={tmp_path / 'drawn'}",
    ]
    call("explain", *words)
    drawn = json.loads((tmp_path / "drawn" / "graph.json").read_text())
    assert next(part["start"] for part in drawn["fragments"] if part["name"] == "learn") == 1, (
        "data need no warm-up"
    )
