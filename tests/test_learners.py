"""Data-parallel learners: with averaged gradients they compute the updates of one learner; with
averaged parameters, the mean of their updates.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import build_graph, build_learners
from jaxrl_fast.core import UNKNOWN_PRODUCTS, Batches
from jaxrl_fast.learning.algorithm import GradientResult, Learned, Part
from jaxrl_fast.learning.minibatches import Experience, take_batch
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.learning.updates import Learning, Trainer, Updated, run_updates
from jaxrl_fast.networks.network import scalar
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime.graph import check_graph

KEY = jax.random.key(0)


def small_ppo(**options):
    defaults = dict(
        rollout_length=4,
        num_epochs=2,
        num_minibatches=2,
        policy_hidden=(4,),
        value_hidden=(4,),
        learning_rate=0.02,
        normalize_advantages=False,
    )
    return ppo(**defaults | options)


def after(graph, hyper, ticks: int):
    """Return the state and metrics after some ticks."""
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
    graph, _ = build_graph(env, algorithm, GraphOptions(learners=4))
    several, own = after(graph, algorithm.hyper, 3)
    for name in ("actor", "critic"):
        assert_close(several.private[f"server_{name}"][name], one.private["learn"][name], atol=1e-5)
        assert_close(several.channels[name], one.channels[name], atol=1e-5)
    assert_close(own["server_critic/value_loss"], metrics["learn/critic/value_loss"], atol=1e-5)
    assert [f.name for f in graph.fragments][-4:] == [
        "gradients_critic",
        "gradients_actor",
        "server_critic",
        "server_actor",
    ]
    assert {f.rounds for f in graph.fragments} == {1, 4}


NUMBER = scalar(lambda: jnp.zeros(()))


def quadratic(other: str) -> Part:
    """Build a number that moves toward the mean of its batch and of its peer, by steps of a tenth."""

    def gradients(own, peers, batch, key, hyper):
        x = own.params["x"]
        return GradientResult(
            {"x": 2 * x - jnp.mean(batch) - peers[other].params["x"]}, {"loss": x}
        )

    return Part({"x": NUMBER}, gradients, {"x": lambda hyper: optax.sgd(0.1)}, reads=(other,))


class Toy:
    """A minimal agent for learners: two parts that read each other, batches of two shards."""

    def __init__(self, parts: dict[str, Part] | None = None, updates: int = 3) -> None:
        self.parts = parts or {"critic": quadratic("actor"), "actor": quadratic("critic")}
        self.updates_per_tick, self.hyper, self.acting = (
            updates,
            (),
            SimpleNamespace(chooses=("actor",)),
        )
        self.products, self.num_agents = UNKNOWN_PRODUCTS, None
        self.experience = Experience(lambda example: (), lambda *args: ((), None), take_batch, 2)


def learner_options(*, side_by_side: bool = False, **options):
    return GraphOptions(overlap="actor_critic" if side_by_side else "none", **options)


def learn_toy(ticks: int = 2, toy: Toy | None = None, **options):
    """Return state and metrics after some ticks; the shards' batches have means 1 and 3."""
    toy = toy or Toy()
    learning = build_learners(toy, learner_options(**options))
    data, index = (
        jnp.float32([[[1.0]], [[3.0]]]),
        jnp.zeros((toy.updates_per_tick, 2, 1), jnp.int32),
    )

    def step(private, inputs, hyper, key):
        return private, {"batches": Batches(data, index)}, {}

    source = graphs.Fragment("experience", lambda key: (), step, tuple(toy.parts), ("batches",))
    late = {("experience", name): 1 for name in toy.parts}
    graph = graphs.Graph((source, *learning.fragments), learning.delays | late)
    check_graph(graph)
    return after(graph, (), ticks)


def reference(
    ticks: int, *, side_by_side: bool, exchange_every: int, means: list[float]
) -> dict[str, float]:
    """Compute the toy in plain Python: separate learners between two exchanges, then their mean;
    or, for an exchange every 0 updates, the step of each added to the same number.
    """
    shared = {"critic": 0.0, "actor": 0.0}
    for update in range(3 * ticks):
        if exchange_every == 0:
            before = dict(shared) if side_by_side else shared
            for name, other in (("critic", "actor"), ("actor", "critic")):
                shared[name] -= 0.1 * sum(2 * shared[name] - mean - before[other] for mean in means)
            continue
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
@pytest.mark.parametrize("average", ["gradients", "parameters", "turns"])
def test_every_learner_computes_what_plain_python_does(side_by_side, learners, average):
    channels = learn_toy(side_by_side=side_by_side, learners=learners, average=average)[0].channels
    exchange_every = {"gradients": 1, "parameters": 3, "turns": 0}[average] if learners > 1 else 3
    means = [2.0] if learners == 1 else [1.0, 3.0]
    want = reference(2, side_by_side=side_by_side, exchange_every=exchange_every, means=means)
    got = {name: channels[name].params["x"] for name in want}
    assert_close(got, want, atol=1e-6)


def test_a_server_in_turns_makes_one_optimizer_step_for_each_learner():
    """Adam's first step has the same size for any gradient: two successive steps are twice as long
    as one step along their mean.
    """
    part = quadratic("critic")._replace(optimizers={"x": lambda hyper: optax.adam(0.1)}, reads=())
    part = part._replace(
        gradients=lambda own, *_: GradientResult(
            {"x": own.params["x"] - 1.0}, {"loss": jnp.ones(())}
        )
    )
    ends = {}
    for average in ("gradients", "turns"):
        state, metrics = learn_toy(1, Toy({"critic": part}, 1), learners=2, average=average)
        ends[average] = float(state.channels["critic"].params["x"])
        assert float(metrics["server_critic/loss"]) == 1.0
    assert ends == pytest.approx({"gradients": 0.1, "turns": 0.2}, abs=1e-5)


def test_in_turns_every_step_counts_as_an_update_of_the_run():
    """A target network that updates at every third update does so in the middle of a round."""

    def rate(hyper, updates):
        return jnp.where((updates + 1) % 3 == 0, 1.0, 0.0)

    part = counting(1)._replace(targets=("x",), target_rate=rate)
    for updates, followed in ((1, 0.0), (2, 3.0), (3, 6.0)):
        state, _ = learn_toy(1, Toy({"critic": part}, updates), learners=2, average="turns")
        assert float(state.channels["critic"].params["x"]) == 2.0 * updates
        assert float(state.channels["critic"].target["x"]) == followed


HOW = [
    dict(),
    dict(side_by_side=True),
    dict(learners=2, average="gradients"),
    dict(learners=2, average="parameters"),
]


@pytest.mark.parametrize("how", HOW, ids=["alone", "side_by_side", "gradients", "parameters"])
@pytest.mark.parametrize(("updates", "ticks"), [(4, 2), (1, 5), (3, 3)])
def test_a_delayed_part_steps_at_every_nth_update_of_the_run(how, updates, ticks):
    """Also where a tick has fewer updates; metrics are means over the learner's steps."""
    parts = {"critic": counting(1), "actor": counting(2)}
    state, metrics = learn_toy(ticks, Toy(parts, updates), **how)
    steps = {
        name: float(channel.params["x"])
        for name, channel in state.channels.items()
        if name in parts
    }
    total = updates * ticks
    assert steps == {"critic": total, "actor": -(-total // 2)}
    if updates == 4:
        means = {float(v) for name, v in metrics.items() if name.endswith("/one")}
        assert means == {1.0}


def counting(every: int) -> Part:
    """Build a number that counts its steps."""

    def gradients(own, peers, batch, key, hyper):
        return GradientResult({"x": -jnp.ones(())}, {"one": jnp.ones(())})

    return Part({"x": NUMBER}, gradients, {"x": lambda hyper: optax.sgd(1.0)}, every=every)


@pytest.mark.parametrize("how", HOW, ids=["alone", "side_by_side", "gradients", "parameters"])
def test_statistics_targets_and_constraints_are_published_with_the_params(how):
    """A network with batch statistics, a slow copy and a bound: readers get all three, averaged
    where learners average.
    """

    def gradients(own, peers, batch, key, hyper):
        variables = own.params["x"]
        grads = {"params": -10.0 * jnp.ones(()), "batch_stats": {"mean": jnp.zeros(())}}
        return GradientResult(
            {"x": grads}, {}, {"x": {"mean": variables["batch_stats"]["mean"] + jnp.mean(batch)}}
        )

    network = NUMBER._replace(
        init=lambda key: {"params": jnp.zeros(()), "batch_stats": {"mean": jnp.zeros(())}},
        project=lambda params: {**params, "params": jnp.minimum(params["params"], 1.0)},
    )
    part = Part(
        {"x": network},
        gradients,
        {"x": lambda hyper: optax.adam(10.0)},
        targets=("x",),
        target_rate=lambda hyper, updates: 0.5,
    )
    state, _ = learn_toy(2, Toy({"critic": part}, 1), **how)
    learned = state.channels["critic"]
    assert isinstance(learned, Learned)
    # batches have the mean 2
    assert_close(learned.params["x"], {"params": 1.0, "batch_stats": {"mean": 4.0}}, atol=1e-6)
    assert_close(learned.target["x"], {"params": 0.75, "batch_stats": {"mean": 2.5}}, atol=1e-6)


def test_a_delayed_part_is_skipped_under_several_seeds_and_not_computed_for_nothing():
    """Its step is inside a conditional of the compiled program; a select would compute it at every
    update.
    """
    parts = {"critic": counting(1), "actor": counting(2)}
    (fragment,) = build_learners(Toy(parts, 4)).fragments
    states = jax.vmap(fragment.init)(jax.random.split(KEY, 2))
    batches = Batches(jnp.ones((2, 1, 1)), jnp.zeros((4, 2, 1), jnp.int32))

    def step(state, key, turn):
        return fragment.step(state, {"batches": batches}, (), key, turn)[0]

    text = str(
        jax.make_jaxpr(jax.vmap(step, in_axes=(0, 0, None)))(
            states, jax.random.split(KEY, 2), jnp.int32(0)
        )
    )
    assert text.count(" cond[") == 1


def test_readers_of_a_part_see_its_slow_target():
    algorithm = sac(
        batch_size=8,
        buffer_size=64,
        warmup_steps=1,
        updates_per_tick=2,
        policy_hidden=(4,),
        critic_hidden=(4,),
    )
    graph, _ = build_graph(tiny.line(discrete=False), algorithm, GraphOptions(learners=2))
    reads = {f.name: f.reads for f in graph.fragments}
    assert reads["gradients_critic"] == ("batches", "critic", "actor")
    assert reads["gradients_actor"] == ("batches", "actor", "critic")
    state, metrics = after(graph, algorithm.hyper, 1)
    published, kept = state.channels["critic"], state.private["server_critic"]["critic"].learned
    jax.tree.map(np.testing.assert_array_equal, published, kept)
    assert jax.tree.leaves(published.target)
    assert np.isfinite(jax.tree.leaves(metrics)).all()


@pytest.mark.parametrize("average", ["gradients", "parameters", "turns"])
def test_gradients_that_are_not_finite_are_dropped_by_the_server_and_counted(average):
    def broken(value, target):
        return jnp.where(target > 0.5, jnp.inf, 1.0) * (value - target) ** 2

    algorithm = small_ppo(value_loss=broken, num_epochs=1)
    graph, _ = build_graph(
        tiny.line(discrete=True), algorithm, GraphOptions(learners=2, average=average, nan="skip")
    )
    state, metrics = after(graph, algorithm.hyper, 2)
    dropped = sum(
        float(np.sum(v)) for name, v in metrics.items() if name.endswith("dropped_updates")
    )
    assert 0 < dropped == round(dropped)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.channels["critic"]))


@pytest.mark.parametrize(("learners", "instead"), [(3, 2), (0, 1), (16, 4)])
def test_learners_that_cannot_share_the_batches_are_refused(learners, instead):
    with pytest.raises(
        ValueError, match=f"learners={learners} cannot share .* write learners={instead}"
    ):
        build_graph(tiny.line(discrete=True), small_ppo(), GraphOptions(learners=learners))


def test_every_part_has_another_key_in_every_update():
    def update(state, peers, batch, key, hyper, updates):
        # 24 bits, which float32 holds
        return Updated(state, {"drawn": jax.random.bits(key) >> 8}, ())

    same = lambda state: state  # noqa: E731
    trainers = dict.fromkeys("ab", Trainer(same, same, same, same, update))
    experience = SimpleNamespace(take=lambda data, index: (), prioritized_by=None)
    agent = SimpleNamespace(
        experience=experience, parts=dict.fromkeys("ab", SimpleNamespace(every=1))
    )
    states, batches = (
        dict.fromkeys("ab", jnp.zeros(())),
        Batches((), jnp.zeros((5, 1, 1), jnp.int32)),
    )
    _, metrics, _ = run_updates(
        Learning(agent), trainers, states, {}, batches, KEY, None, jnp.int32(0)
    )
    assert (
        len({int(number) for drawn in metrics.values() for number in drawn})
        == len(metrics) * 5
        == 10
    )


@pytest.mark.parametrize("average", ["gradients", "parameters"])
def test_learners_have_different_keys(average: str):
    def gradients(own, peers, batch, key, hyper):
        drawn = jax.random.uniform(key)
        return GradientResult({"x": jnp.zeros(())}, {"loss": drawn, "square": drawn**2})

    part = quadratic("critic")._replace(reads=(), gradients=gradients)
    _, metrics = learn_toy(1, Toy({"critic": part}, 1), learners=2, average=average)
    mean, square = (
        metrics[name]
        for what in ("loss", "square")
        for name in metrics
        if name.endswith(f"/{what}")
    )
    assert square - mean**2 > 1e-6
