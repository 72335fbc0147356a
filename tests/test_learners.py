"""Learners: several that average gradients learn what one learns; several that average parameters, their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxrl_fast import graph as graphs
from jaxrl_fast.algorithm import Experience, Part, PartState
from jaxrl_fast.algorithms import ppo, sac
from jaxrl_fast.core import Batches
from jaxrl_fast.fragments import build_graph
from jaxrl_fast.learners import build_learners

KEY = jax.random.key(0)


def small_ppo(**options):
    defaults = dict(
        rollout_length=4, num_epochs=2, num_minibatches=2, policy_hidden=(4,), value_hidden=(4,), learning_rate=0.02,
        normalize_advantages=False,
    )  # fmt: skip
    return ppo(**defaults | options)


def after(graph, hyper, ticks: int):
    """The state and metrics after some ticks."""
    tick = jax.jit(lambda state: graphs.tick(graph, state))
    state, metrics = jax.jit(lambda: graphs.init(graph, KEY, hyper))(), {}
    for _ in range(ticks):
        state, metrics = tick(state)
    return state, metrics


def assert_close(got, want, atol: float):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), got, want)


def test_learners_that_average_gradients_learn_what_one_learns_from_whole_batches():
    env, algorithm = tiny.line(discrete=True), small_ppo()
    one, metrics = after(build_graph(env, algorithm)[0], algorithm.hyper, 3)
    graph, _ = build_graph(env, algorithm, learners=4)
    several, own = after(graph, algorithm.hyper, 3)
    for name in ("actor", "critic"):
        assert_close(several.private[f"server_{name}"][name], one.private["learn"][name], atol=1e-5)
        assert_close(several.channels[name], one.channels[name], atol=1e-5)
    assert_close(own["server_critic/value_loss"], metrics["learn/critic/value_loss"], atol=1e-5)
    assert [f.name for f in graph.fragments][-4:] == [
        "gradients_critic", "gradients_actor", "server_critic", "server_actor"
    ]  # fmt: skip
    assert {f.rounds for f in graph.fragments} == {1, 4}


def quadratic(target: str | None = None) -> Part:
    """A number that goes to the mean of its batch and of its peer, by steps of a tenth."""

    def gradients(state, peers, batch, key, hyper):
        pull = 0.0 if target is None else state.params - peers[target]
        return state.params - jnp.mean(batch) + pull, {"loss": state.params}

    def apply(state, grads, hyper):
        return PartState(state.params - 0.1 * grads, (), state.target * 0.5), {}

    def init(key):
        return PartState(jnp.zeros(()), (), jnp.ones(()))

    return Part(init, gradients, apply, reads=() if target is None else (target,))


class Toy:
    """As much of an agent as learners look at: two parts that read each other, batches of two shards."""

    def __init__(self, shards: int = 2, updates: int = 3) -> None:
        self.parts = {"critic": quadratic("actor"), "actor": quadratic("critic")}
        self.updates_per_tick = updates
        self.experience = Experience(lambda example: (), lambda *args: ((), None), shards=shards)


def learn_toy(ticks: int = 2, **options):
    """The channels after some ticks; the shards' batches have means 1 and 3."""
    learning = build_learners(Toy(), **options)
    data, index = jnp.float32([[[1.0]], [[3.0]]]), jnp.zeros((3, 2, 1), jnp.int32)

    def step(private, inputs, hyper, key):
        return private, {"batches": Batches(data, index)}, {}

    source = graphs.Fragment("experience", lambda key: (), step, ("critic", "actor"), ("batches",))
    late = {("experience", "critic"): 1, ("experience", "actor"): 1}
    graph = graphs.Graph((source, *learning.fragments), learning.delays | late)
    graphs.check(graph)
    return after(graph, (), ticks)[0].channels


def reference(ticks: int, *, side_by_side: bool, exchange_every: int, means: list[float]) -> dict[str, float]:
    """The toy in plain Python: learners of their own between two exchanges, then their mean."""
    shared = {"critic": 0.0, "actor": 0.0}
    for update in range(3 * ticks):
        if update % exchange_every == 0:
            local = [dict(shared) for _ in means]
        for own, mean in zip(local, means, strict=True):
            before = dict(shared) if side_by_side else own
            for name, other in (("critic", "actor"), ("actor", "critic")):
                own[name] -= 0.1 * (2 * own[name] - mean - before[other])
        if (update + 1) % exchange_every == 0:
            shared = {name: float(np.mean([own[name] for own in local])) for name in shared}
    return shared


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_every_learner_computes_what_plain_python_does(side_by_side, learners, average):
    channels = learn_toy(side_by_side=side_by_side, learners=learners, average=average)
    exchange_every = 1 if average == "gradients" and learners > 1 else 3
    means = [2.0] if learners == 1 else [1.0, 3.0]
    want = reference(2, side_by_side=side_by_side, exchange_every=exchange_every, means=means)
    got = {name: channels[name] for name in want}
    assert_close(got, want, atol=1e-6)


def test_slow_targets_go_to_the_learners_that_need_them():
    algorithm = sac(
        batch_size=8, buffer_size=64, warmup_steps=1, updates_per_tick=2, policy_hidden=(4,), critic_hidden=(4,)
    )
    graph, _ = build_graph(tiny.line(discrete=False), algorithm, learners=2)
    reads = {f.name: f.reads for f in graph.fragments}
    assert reads["gradients_critic"] == ("batches", "critic", "critic_target", "actor")
    assert reads["gradients_actor"] == ("batches", "actor", "critic")
    state, metrics = after(graph, algorithm.hyper, 1)
    np.testing.assert_array_equal(
        state.channels["critic_target"][0]["params"]["Dense_0"]["kernel"],
        state.private["server_critic"]["critic"].target[0]["params"]["Dense_0"]["kernel"],
    )
    assert np.isfinite(jax.tree.leaves(metrics)).all()


@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_gradients_that_are_not_finite_are_dropped_by_the_server_and_counted(average):
    def broken(value, target):
        return jnp.where(target > 0.5, jnp.inf, 1.0) * (value - target) ** 2

    algorithm = small_ppo(value_loss=broken, num_epochs=1)
    graph, _ = build_graph(tiny.line(discrete=True), algorithm, learners=2, average=average, nan="skip")
    state, metrics = after(graph, algorithm.hyper, 1)
    dropped = sum(float(np.sum(v)) for name, v in metrics.items() if name.endswith("dropped_updates"))
    assert 0 < dropped == round(dropped)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.channels["critic"]))


@pytest.mark.parametrize(("learners", "instead"), [(3, 2), (0, 1), (16, 4)])
def test_learners_that_cannot_share_the_batches_are_refused(learners, instead):
    with pytest.raises(ValueError, match=f"learners={learners} cannot share .* write learners={instead}"):
        build_graph(tiny.line(discrete=True), small_ppo(), learners=learners)
