"""Host environments in the graph: rollouts report all steps, placements change no bit, no action
waits without need.
"""

from functools import cache, partial

import jax
import numpy as np
import pytest
import tiny

import jaxrl_fast as jf
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import placements
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain
from jaxrl_fast.runtime.graph import GraphError

SMALL = dict(policy_hidden=(4,), learning_rate=0.02)


def algorithm(name: str):
    if name == "ppo":
        return ppo(
            rollout_length=6,
            num_epochs=1,
            num_minibatches=2,
            value_hidden=(4,),
            recurrent_size=4,
            **SMALL,
        )
    return sac(
        rollout_length=2,
        updates_per_tick=2,
        batch_size=8,
        buffer_size=200,
        warmup_steps=8,
        critic_hidden=(4,),
        **SMALL,
    )


def chunks(
    name: str,
    placement: str,
    overlap: str = "none",
    num: int = 3,
    seeds: tuple[int, ...] = (0,),
    **how,
):
    """Return the rollouts and the final state of three chunks of two ticks."""
    env = tiny.host_line(discrete=name == "ppo", num_seeds=len(seeds))._replace(**how)
    keys = jax.vmap(jax.random.key)(np.array(seeds))
    graph, _ = build_graph(env, algorithm(name), GraphOptions(overlap=overlap))
    placed = placements.PLACEMENTS[placement](graph, jax.devices()[:2])
    program = programs.compile(graph, placed, 2, len(seeds))
    init, run = program.ready(keys, algorithm(name).hyper)
    state = init(keys, algorithm(name).hyper)
    rows = []
    for _ in range(num):
        state, metrics = run(state)
        rows.append(metrics)
    return run, jax.device_get(state._replace(key=())), rows


@cache
def fused(name: str, overlap: str = "none"):
    return chunks(name, "fused", overlap)


@pytest.mark.parametrize(
    ("name", "placement", "overlap"),
    [
        ("ppo", "central_inference", "none"),
        ("ppo", "sampler_learner", "sampling"),
        ("sac", "actor_critic", "all"),
    ],
)
def test_every_placement_computes_the_same_bits_from_a_host_environment(
    same_bits, name, placement, overlap
):
    _, want, want_rows = fused(name, overlap)
    _, got, rows = chunks(name, placement, overlap)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    jax.tree.map(np.testing.assert_array_equal, rows, want_rows)
    assert sum(int(row["sample/episodes"].sum()) for row in rows) > 0


def test_deciding_on_all_groups_at_once_changes_no_bit():
    _, want, _ = fused("ppo")
    _, got, _ = chunks("ppo", "fused", overlaps=False)
    jax.tree.map(np.testing.assert_array_equal, got, want)


close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "placement"), [("ppo", "fused"), ("sac", "sampler_learner")])
def test_each_seed_of_a_shared_pool_learns_as_it_does_alone(name, placement):
    _, together, rows = chunks(name, placement, "sampling", num=2, seeds=(3, 5))
    for i, seed in enumerate((3, 5)):
        _, alone, own_rows = chunks(name, placement, "sampling", num=2, seeds=(seed,))
        mine = jax.tree.map(lambda x, i=i: x[i], together._replace(tick=(), hyper=()))
        steps = mine.private["sample"].steps
        # the pool counts the steps of all its slices
        assert steps == 2 * alone.private["sample"].steps
        mine.private["sample"] = mine.private["sample"]._replace(
            steps=alone.private["sample"].steps
        )
        jax.tree.map(close, mine, alone._replace(tick=(), hyper=()))
        jax.tree.map(lambda x, y, i=i: close(x[i], y[0]), rows, own_rows)


def test_a_rollout_tells_what_happened_in_the_environments():
    env = tiny.host_line(discrete=False)
    graph, _ = build_graph(env, algorithm("sac"))
    sample = graph.fragments[0]
    private, channels = sample.init(jax.random.key(0)), {}
    for fragment in graph.fragments:
        channels |= fragment.publish(fragment.init(jax.random.key(1))) if fragment.publish else {}
    rollouts = []
    for tick in range(4):
        private, outputs, _ = sample.step(private, channels, (), jax.random.key(tick))
        rollouts.append(outputs["rollout"])
    whole = jax.tree.map(lambda *x: np.concatenate(x), *rollouts)
    done = whole.terminated | whole.truncated
    assert done.any() and not done.all()
    moved = whole.next_obs[..., 0] - whole.obs[..., 0]
    # `next_obs`, also at the end of an episode
    np.testing.assert_allclose(moved, whole.action[..., 0], atol=1e-6)
    np.testing.assert_allclose(whole.reward, 1.0 - np.abs(whole.next_obs[..., 0]), atol=1e-6)
    np.testing.assert_array_equal(whole.obs[1:][~done[:-1]], whole.next_obs[:-1][~done[:-1]])
    np.testing.assert_array_equal(whole.first[1:], done[:-1])
    assert whole.first[0].all()
    assert int(private.steps) == whole.reward.size == env.steps()


def test_what_does_not_wait_for_the_host_is_dispatched_before_it_is_called():
    run, _, _ = fused("ppo", "sampling")
    assert isinstance(run, Chain)
    assert [segment.name for segment in run.segments] == [
        "learn",
        "sample",
        "statistics, experience",
    ]
    run, _, _ = fused("ppo")
    assert [segment.name for segment in run.segments] == ["sample", "statistics, experience, learn"]


def test_learning_evaluates_in_environments_of_its_own_and_resumes_with_fresh_episodes(tmp_path):
    def learn(total_steps: int, **options):
        env = tiny.host_line(discrete=True)
        return jf.learn(
            env,
            algorithm("ppo"),
            total_steps=total_steps,
            eval_episodes=4,
            tell=lambda line: None,
            **options,
        )

    first = learn(96, run_dir=tmp_path / "run")
    again = learn(96)
    jax.tree.map(
        np.testing.assert_array_equal, first.state.private["learn"], again.state.private["learn"]
    )
    assert first.summary["eval_episodes"] == 4 and np.isfinite(first.summary["eval_return_mean"])
    on = learn(192, resume=tmp_path / "run")
    assert on.summary["env_steps"] == 192
    assert int(on.state.private["sample"].steps[0]) == 96  # counted from the new start


def test_a_number_that_is_not_finite_names_the_step(tmp_path):
    env = tiny.host_line(discrete=False)
    broken = env._replace(
        recv=lambda group: (s := env.recv(group))._replace(reward=s.reward + np.float32(np.nan))
    )
    with pytest.raises(
        jf.NonFiniteError, match=r"environment line gave a NaN .* at step 1 of an environment"
    ):
        jf.learn(broken, algorithm("sac"), total_steps=64, eval_episodes=1)


def test_what_the_host_cannot_do_is_refused_in_a_line():
    graph, _ = build_graph(tiny.host_line(discrete=True), algorithm("ppo"))
    with pytest.raises(
        GraphError, match="data_parallel shards 'sample' over 2 devices, but it runs on the host"
    ):
        programs.compile(graph, placements.data_parallel(graph, jax.devices()[:2]), 1)
    for env, num_seeds in (
        (tiny.host_line(discrete=True), 2),
        (tiny.host_line(discrete=True, num_seeds=2), 1),
    ):
        with pytest.raises(
            ValueError,
            match=rf"num_seeds={num_seeds}: .* write make_env\(..., num_seeds={num_seeds}\)",
        ):
            jf.learn(env, algorithm("ppo"), total_steps=24, num_seeds=num_seeds)
    compiled, _ = build_graph(tiny.line(discrete=True), algorithm("ppo"))
    with pytest.raises(GraphError, match="central_inference is for environments on the host"):
        placements.central_inference(compiled, jax.devices())
