"""Rollouts changed before they are stored, and windows relabeled with a later step of the same
episode.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl_fast as jf
from examples import curiosity, hindsight
from jaxrl_fast.core import Extras, Transition
from jaxrl_fast.learning.algorithm import Transform
from jaxrl_fast.replay.buffers import Window, ring_buffer, uniform_source
from jaxrl_fast.replay.relabeling import hindsight_buffer, hindsight_source, steps_ahead

NUM_ENVS = 4
SMALL = dict(rollout_length=1, warmup_steps=8, buffer_size=64, batch_size=8, epsilon=0.1)


def rollout(start: int, done: np.ndarray) -> Transition:
    """Steps ``[T, E]`` that name their time and environment, with given episode ends."""
    time, env = np.meshgrid(np.arange(start, start + len(done)), np.arange(NUM_ENVS), indexing="ij")
    obs = np.stack([time, env], axis=-1).astype(np.int32)
    no = np.zeros(done.shape, bool)
    return Transition(obs, time, time.astype(np.float32), obs, done, no, no, Extras({}, {}))


def remember(steps: Transition, later: Transition, key: jax.Array) -> Transition:
    """Put the later step's time in place of the reward."""
    return steps._replace(
        reward=jnp.full_like(steps.reward, later.reward),
        next_obs=jnp.broadcast_to(later.obs, steps.next_obs.shape),
    )


def drawn(done: np.ndarray, length: int, capacity_t: int, window: int, cut_at: int | None = None):
    """Return all drawn windows and their later steps, after rollouts of ``length`` steps."""
    shape = Window(length=window)
    sizes = dict(capacity=capacity_t * NUM_ENVS, num_envs=NUM_ENVS, batch_size=4, window=shape)
    buffer = hindsight_buffer(ring_buffer(**sizes))
    source = hindsight_source(
        uniform_source(buffer, 64, shape), remember, shape, lambda state: state
    )
    state = buffer.init(jax.tree.map(jnp.asarray, rollout(0, done[:1])))
    add = jax.jit(buffer.add)
    for start in range(0, len(done), length):
        state = add(state, rollout(start, done[start : start + length]))
        if cut_at == start:
            state = buffer.end_episodes(state)
    return jax.device_get(jax.jit(source.sample)(state, jax.random.key(1), None).windows.steps)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_later_step_is_of_the_same_episode_and_every_one_is_drawn(data: st.DataObject):
    length, num_rollouts = data.draw(st.sampled_from([1, 3, 4])), data.draw(st.integers(2, 6))
    capacity_t, window = (
        data.draw(st.sampled_from([6, 8, 12])),
        data.draw(st.sampled_from([1, 2, 3])),
    )
    total = length * num_rollouts
    if total < window or min(capacity_t, total) <= window:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    done = rng.random((total, NUM_ENVS)) < data.draw(st.sampled_from([0.1, 0.4]))
    steps = drawn(done, length, capacity_t, window)
    for time, env, later, other in zip(
        steps.obs[..., 0, 0].ravel(),
        steps.obs[..., 0, 1].ravel(),
        steps.reward[..., 0].ravel(),
        steps.next_obs[..., 0, 1].ravel(),
        strict=True,
    ):
        ends = np.flatnonzero(done[time:, env])
        last = time + ends[0] if len(ends) else total - 1  # a slow reference: look for the end
        assert other == env and min(time + window - 1, last) <= later <= last


def test_every_later_step_is_equally_likely():
    done = np.zeros((8, NUM_ENVS), bool)
    done[-1] = True
    steps = drawn(done, 4, 8, 1)
    later = np.concatenate([steps.reward[steps.obs[..., 0] == t] for t in range(1)])
    assert set(later.tolist()) <= set(range(8)) and len(set(later.tolist())) > 4


def test_an_episode_that_was_cut_does_not_go_on():
    steps = drawn(np.zeros((8, NUM_ENVS), bool), 4, 8, 1, cut_at=0)
    before = steps.obs[..., 0] < 4
    assert steps.reward[before].max() == 3 and steps.reward[~before].max() == 7


def test_steps_ahead_counts_to_the_episodes_end():
    done = np.array([0, 0, 1, 0, 1, 0, 0], bool)
    assert steps_ahead(jnp.asarray(done)[None, :, None])[0, :, 0].tolist() == [2, 1, 0, 1, 0, 1, 0]


def test_hindsight_goals_were_reached_and_rewards_belong_to_them():
    """On the whole way: DQN's replay in a graph, whose drawn batches must be consistent with the
    environment's rule.
    """
    env = jf.vectorize(hindsight.bits(5), num_envs=8)
    batches = []
    agent = hindsight.dqn(share=1.0, warmup_steps=128).build(env.spec, 8)
    gradients = agent.parts["critic"].gradients

    def seen(own, peers, batch, key, hyper):
        jax.debug.callback(
            lambda *leaves: batches.append(leaves), batch.obs, batch.reward, batch.bootstrap
        )
        return gradients(own, peers, batch, key, hyper)

    part = agent.parts["critic"]._replace(gradients=seen)
    algo = hindsight.dqn(share=1.0, warmup_steps=128)._replace(
        build=lambda spec, n: agent._replace(parts={"critic": part})
    )
    jf.learn(env, algo, total_steps=320, eval_every=0)
    rewards = np.concatenate([np.ravel(reward) for _, reward, _ in batches])
    ended = np.concatenate([np.ravel(bootstrap) for *_, bootstrap in batches]) == 0.0
    assert 0.1 < np.mean(rewards == 0.0) < 1.0 and np.array_equal(ended, rewards == 0.0)


def test_hindsight_solves_what_replay_alone_does_not():
    returns = {}
    for share in (0.8, 0.0):
        env = jf.vectorize(hindsight.bits(8), num_envs=8)
        result = jf.learn(
            env,
            hindsight.dqn(share=share, warmup_steps=500),
            total_steps=6000,
            eval_every=6000,
            seed=1,
        )
        returns[share] = result.summary["eval_success_rate"]
    assert returns[0.8] > 0.9 and returns[0.0] < 0.5, returns


@pytest.mark.parametrize(
    ("algo", "words"), [(hindsight.dqn(), "has no goals: set EnvSpec.goal_reward")]
)
def test_an_environment_without_goals_is_refused(algo: jf.Algorithm, words: str):
    with pytest.raises(ValueError, match=words):
        jf.make_train_step(jf.make_env("cartpole", num_envs=4), algo)


def shaped(transform: Transform, algorithm: jf.Algorithm) -> jf.Algorithm:
    return algorithm._replace(
        build=lambda spec, n: algorithm.build(spec, n)._replace(transform=transform)
    )


@pytest.mark.parametrize("make", [jf.ppo, jf.dqn], ids=lambda make: make.name)
def test_a_transform_that_changes_nothing_changes_no_number(make):
    env = jf.make_env("cartpole", num_envs=4)
    same = Transform(lambda: (), lambda rollout, learned, state, hyper, key: (rollout, state))
    sizes = dict(rollout_length=8) if make is jf.ppo else SMALL
    ends = []
    for algorithm in (make(**sizes), shaped(same, make(**sizes))):
        init, step = jf.make_train_step(env, algorithm)
        state = init(jax.random.key(0))
        for _ in range(3):
            state, _ = jax.jit(step)(state)
        ends.append(jax.tree.leaves(state.channels))
    assert all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_transform_has_a_state_sees_parameters_and_changes_what_is_stored():
    def apply(rollout, learned, state, hyper, key):
        assert set(learned) == {"critic"} and hyper.discount is not None
        return rollout._replace(reward=rollout.reward + 100.0 * state), state + 1.0

    transform = Transform(lambda: jnp.ones(()), apply, reads=("critic",))
    env = jf.make_env("cartpole", num_envs=4)
    init, step = jf.make_train_step(env, shaped(transform, jf.dqn(**SMALL)))
    state = init(jax.random.key(0))
    for _ in range(3):
        state, _ = jax.jit(step)(state)
    storage = state.private["experience"]
    stored = np.unique(np.asarray(storage.storage.data.reward)[:, :3])
    assert float(storage.transform) == 4.0 and stored.tolist() == [101.0, 201.0, 301.0]


def test_a_transform_reads_only_parts_that_there_are():
    wrong = Transform(lambda: (), lambda *given: given, reads=("curiosity",))
    with pytest.raises(
        ValueError, match="transform reads curiosity: write one of the parts critic, actor"
    ):
        jf.make_train_step(jf.make_env("cartpole", num_envs=4), shaped(wrong, jf.ppo()))


def test_a_run_with_bonus_and_hindsight_resumes_to_the_bit(tmp_path):
    """Also with several seeds, so that states of transforms have a seed axis."""
    for name, world, algorithm in (
        (
            "bonus",
            curiosity.deep_sea(4),
            curiosity.ppo(rollout_length=8, num_minibatches=2, num_epochs=1),
        ),
        ("goals", hindsight.bits(4), hindsight.dqn(buffer_size=256, warmup_steps=128)),
    ):
        env, common = jf.vectorize(world, num_envs=4), dict(num_seeds=2, eval_every=0)
        whole = jf.learn(
            env, algorithm, total_steps=256, run_dir=tmp_path / f"{name}_whole", **common
        )
        jf.learn(env, algorithm, total_steps=128, run_dir=tmp_path / name, **common)
        # The chunks of a resumed run have the size of its start.
        rest = jf.learn(
            env,
            algorithm,
            total_steps=256,
            run_dir=tmp_path / name,
            resume=tmp_path / name,
            **common,
        )
        leaves = [jax.tree.leaves(jax.device_get(r.state.channels)) for r in (whole, rest)]
        assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True)), name
