"""Programs: a placement changes numbers only by rounding, shards without a transfer of samples, and
compiles once.
"""

import re
from functools import cache

import jax
import numpy as np
import pixel_envs
import pytest
import tiny

from jaxrl_fast.algorithms.mappo import mappo
from jaxrl_fast.algorithms.ppo import ppo
from jaxrl_fast.algorithms.pqn_vdn import pqn_vdn
from jaxrl_fast.algorithms.sac import sac
from jaxrl_fast.assembly import build_graph
from jaxrl_fast.core import Products
from jaxrl_fast.envs.env import vectorize
from jaxrl_fast.envs.probes import TWO_AGENTS
from jaxrl_fast.learning.run_graph import GraphOptions
from jaxrl_fast.runtime import graph as graphs
from jaxrl_fast.runtime import layout, placements, xla_options
from jaxrl_fast.runtime import program as programs
from jaxrl_fast.runtime.chain import Chain
from jaxrl_fast.runtime.graph import GraphError
from jaxrl_fast.runtime.placements import PLACEMENTS, Group, Placement
from jaxrl_fast.tuning.ceiling import updates_only
from jaxrl_fast.views.hlo import find_collectives

NUM_ENVS = 8
COLLECTIVE = re.compile(r" (all-\w+|collective-\w+|reduce-scatter|ragged-\S+?)(?:-start)?\(")


@cache
def built(
    name: str,
    overlap: str = "none",
    num_envs: int = NUM_ENVS,
    recurrent: int = 0,
    batch_size: int = 16,
    **learning,
):
    """``(graph, hyper)`` of a small run in which every fragment has work in every tick; the
    environments of PPO and SAC have different observations and actions.
    """
    options = dict(
        ppo=dict(
            rollout_length=6,
            num_epochs=2,
            num_minibatches=2,
            policy_hidden=(8,),
            value_hidden=(8,),
            recurrent_size=recurrent,
            normalize_rewards=True,
        ),
        sac=dict(
            rollout_length=2,
            updates_per_tick=3,
            batch_size=batch_size,
            buffer_size=16 * num_envs,
            warmup_steps=1,
            n_step=2,
            policy_hidden=(8,),
            critic_hidden=(8,),
            critic_layer_norm=True,
        ),
    )
    options["mappo"] = options["ppo"] | dict(share_parameters=False)
    algorithm = {"ppo": ppo, "mappo": mappo, "sac": sac}[name](**options[name])
    env = tiny.line(discrete=name == "ppo", num_envs=num_envs)
    if name == "mappo":
        env = vectorize(TWO_AGENTS["two_out"](), num_envs=num_envs)
    return build_graph(env, algorithm, GraphOptions(overlap=overlap, **learning))[
        0
    ], algorithm.hyper


@cache
def compiled(
    name: str,
    placement: str,
    devices: int,
    overlap: str = "none",
    ticks: int = 1,
    seeds: int = 1,
    **learning,
):
    graph, hyper = built(name, overlap, **learning)
    placed = PLACEMENTS[placement](graph, jax.devices()[:devices])
    program = programs.compile(graph, placed, ticks, seeds)
    return program, *program.ready(keys(seeds), hyper)


def keys(seeds: int) -> jax.Array:
    return jax.random.split(jax.random.key(3), seeds)


@cache
def warm_state(name: str, overlap: str = "none", seeds: int = 1, **learning):
    """Return a host state after ended episodes, updates of the statistics and gradient updates."""
    _, init, run = compiled(name, "fused", 1, overlap, seeds=seeds, **learning)
    state = init(keys(seeds), built(name)[1])
    for _ in range(4):
        state, _ = run(state)
    return on_host(state)


def on_host(state):
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else np.asarray(x), state)


def is_key(x) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def from_host(state):
    copy = jax.tree.map(np.array, state)
    return copy._replace(key=jax.random.wrap_key_data(copy.key))


@cache
def one_tick(
    name: str, placement: str, devices: int, overlap: str = "none", seeds: int = 1, **learning
):
    program, _, run = compiled(name, placement, devices, overlap, seeds=seeds, **learning)
    state, metrics = run(program.place(from_host(warm_state(name, overlap, seeds, **learning))))
    return on_host(state), metrics


def largest_difference(got, want) -> float:
    """Compute the difference, relative for numbers over 1 and absolute below; a different flag or
    count is infinitely far.
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if not np.issubdtype(b.dtype, np.floating):
            worst = max(worst, 0.0 if np.array_equal(a, b) else np.inf)
        elif b.size:
            worst = max(worst, float(np.max(np.abs(a - b) / np.maximum(np.abs(b), 1.0))))
    return worst


@pytest.mark.parametrize(
    ("name", "placement", "devices"),
    [
        ("ppo", "data_parallel", 1),
        ("ppo", "data_parallel", 4),
        ("mappo", "data_parallel", 2),
        ("mappo", "agents", 2),
        ("sac", "data_parallel", 2),
        ("ppo", "sharded_sampling", 2),
        ("sac", "sharded_sampling", 4),
    ],
)
def test_dividing_among_devices_changes_one_tick_only_by_rounding(name, placement, devices):
    got, metrics = one_tick(name, placement, devices)
    want, reference = one_tick(name, "fused", 1)
    assert largest_difference(got, want) <= 1e-6
    assert largest_difference(dict(metrics), dict(reference)) <= 1e-5  # ratios of small numbers
    # the parameters changed
    assert largest_difference(want.private["learn"], warm_state(name).private["learn"]) > 1e-4


@pytest.mark.parametrize(("name", "shards"), [("ppo", 16), ("sac", 32)])
def test_more_logical_shards_change_a_tick_on_several_devices_only_by_rounding(name, shards):
    learning = dict(num_envs=32, shards=shards)
    if name == "sac":
        learning["batch_size"] = 32
    experience = next(f for f in built(name, **learning)[0].fragments if f.name == "experience")
    assert experience.division.width == shards
    got, _ = one_tick(name, "data_parallel", 4, **learning)
    want, _ = one_tick(name, "fused", 1, **learning)
    assert largest_difference(got, want) <= 1e-6


def test_more_devices_than_logical_shards_are_told_which_key_to_write():
    graph, _ = built("sac", num_envs=64, batch_size=64)
    # numbers in place of devices, since no machine has that many
    placed = placements.data_parallel(graph, range(64))
    with pytest.raises(
        GraphError,
        match=r"cannot shard the 8 logical shards \(common divisor of 8, .* write shards=64 with",
    ):
        placements.check_placed(graph, placed)
    graph, _ = built("sac", num_envs=64, batch_size=64, shards=64)
    placements.check_placed(graph, placed)


@pytest.mark.parametrize(
    ("name", "placement", "devices", "overlap"),
    [
        ("ppo", "data_parallel", 4, "actor_critic"),
        ("sac", "sharded_sampling", 2, "all"),
        ("sac", "sampler_learner", 4, "none"),
    ],
)
def test_every_overlap_means_the_same_under_every_placement(name, placement, devices, overlap):
    got, _ = one_tick(name, placement, devices, overlap)
    want, _ = one_tick(name, "fused", 1, overlap)
    assert largest_difference(got, want) <= 1e-6


@pytest.mark.parametrize(
    ("name", "devices", "overlap", "average"),
    [
        ("sac", 2, "none", "gradients"),
        ("ppo", 4, "all", "gradients"),
        ("ppo", 2, "sampling", "parameters"),
        ("ppo", 2, "none", "turns"),
    ],
)
def test_a_parameter_server_computes_what_one_program_does(name, devices, overlap, average):
    learning = dict(learners=devices, average=average)
    got, _ = one_tick(name, "parameter_server", devices, overlap, **learning)
    want, _ = one_tick(name, "fused", 1, overlap, **learning)
    assert largest_difference(got, want) <= 1e-6


def apart(graph, devices) -> Placement:
    """Define a user's placement: each fragment in a separate program, alternating on two devices."""
    groups = [Group((f.name,), (devices[i % 2],)) for i, f in enumerate(graph.fragments)]
    return Placement("apart", tuple(groups))


@pytest.mark.parametrize(
    ("name", "overlap", "place", "learning"),
    [
        ("sac", "all", apart, {}),
        ("ppo", "actor_critic", placements.actor_critic, {}),
        ("sac", "all", placements.actor_critic, {}),
        ("sac", "sampling", placements.sampler_learner, {}),
    ],
)
def test_moving_fragments_changes_no_bit_over_many_ticks(same_bits, name, overlap, place, learning):
    graph, hyper = built(name, overlap, **learning)
    ends = []
    for move in (placements.fused, place):
        program = programs.compile(graph, move(graph, jax.devices()[:2]), 5)
        init, run = program.ready(keys(1), hyper)
        state = init(keys(1), hyper)
        for _ in range(4):
            state, metrics = run(state)
        ends.append((on_host(state), {k: np.asarray(v) for k, v in metrics.items()}))
    assert largest_difference(ends[1], ends[0]) == 0.0
    assert int(ends[0][0].tick) == 20


@pytest.mark.parametrize(("name", "recurrent"), [("ppo", 0), ("ppo", 4), ("sac", 0)])
def test_divided_programs_add_up_but_never_move_samples(name, recurrent):
    graph, hyper = built(name, recurrent=recurrent)
    program = programs.compile(graph, placements.data_parallel(graph, jax.devices()[:2]), 2)
    found = set(COLLECTIVE.findall(program.ready(keys(1), hyper)[1].as_text()))
    assert found == {"all-reduce"}


def crossing_sizes(text: str) -> set[int]:
    """Return the lengths of all axes of the results of a program's collectives."""
    lines = [line for line in text.splitlines() if COLLECTIVE.search(line)]
    shapes = [
        shape
        for line in lines
        for shape in re.findall(r"\w+\[([\d,]*)\]", line.partition(" all-")[0])
    ]
    return {int(size) for shape in shapes for size in shape.split(",") if size}


@pytest.mark.parametrize("name", ["mappo", "pqn_vdn"])
def test_agents_on_devices_of_their_own_tell_each_other_no_parameter(name):
    width, keys_of = 11, keys(1)  # no other size is a multiple of it
    options: dict = dict(rollout_length=6, num_epochs=2, num_minibatches=2, share_parameters=False)
    if name == "mappo":
        algorithm = mappo(
            **options, policy_hidden=(width,), value_hidden=(width,), normalize_rewards=True
        )
    else:
        algorithm = pqn_vdn(**options, q_hidden=(width,), epsilon=0.1)
    graph, _ = build_graph(vectorize(TWO_AGENTS["two_out"](), num_envs=NUM_ENVS), algorithm)
    found = {}
    for placement in ("agents", "data_parallel"):
        program = programs.compile(graph, PLACEMENTS[placement](graph, jax.devices()[:2]), 1)
        init, run = program.ready(keys_of, algorithm.hyper)
        found[placement] = {size for size in crossing_sizes(run.as_text()) if size % width == 0}
        parts = init(keys_of, algorithm.hyper).private["learn"].values()
        if placement == "agents":
            for leaf in jax.tree.leaves(list(parts)):
                assert leaf.shape[0] == 2 and leaf.addressable_shards[0].data.shape[0] == 1
    assert found["data_parallel"] and not found["agents"]


def test_devices_of_agents_tell_each_other_in_a_step_only_what_these_do():
    steps, num_agents = 7, 2  # nothing else runs seven times
    algorithm = mappo(rollout_length=steps, num_epochs=2, num_minibatches=2, share_parameters=False)
    graph, _ = build_graph(vectorize(TWO_AGENTS["two_out"](), num_envs=NUM_ENVS), algorithm)
    program = programs.compile(graph, placements.agents(graph, jax.devices()[:num_agents]), 1)
    crossing = find_collectives(program.ready(keys(1), algorithm.hyper)[1].as_text())
    in_a_step = [(found.kind, found.size_bytes) for found in crossing if found.runs == steps]
    actions = NUM_ENVS * num_agents * np.dtype(np.int32).itemsize
    assert in_a_step == [("all-gather", actions)]


def test_agents_are_divided_only_where_each_has_networks_of_its_own():
    graph, _ = built("mappo")
    with pytest.raises(
        GraphError, match="cannot shard the 2 agents of 'sample' evenly over 3 devices"
    ):
        programs.compile(graph, placements.agents(graph, jax.devices()[:3]), 1)
    with pytest.raises(
        GraphError,
        match="shards agents, and this environment has one: write placement=data_parallel",
    ):
        placements.agents(built("ppo")[0], jax.devices()[:2])
    with pytest.raises(GraphError, match="has one learner for each agent: write learners=1"):
        placements.agents(built("mappo", learners=2)[0], jax.devices()[:2])
    env = vectorize(TWO_AGENTS["two_out"](), num_envs=NUM_ENVS)
    with pytest.raises(GraphError, match=r"these share one: write algo\.share_parameters=false"):
        placements.agents(build_graph(env, mappo())[0], jax.devices()[:2])


def test_sampling_on_two_devices_joins_them_only_for_its_metrics():
    graph, hyper = built("sac")
    program = programs.compile(graph, placements.sharded_sampling(graph, jax.devices()[:2]), 1)
    text = program.ready(keys(1), hyper)[1].segments[0].step.as_text()
    assert set(COLLECTIVE.findall(text)) == {"all-reduce"}
    assert not COLLECTIVE.findall(text.partition("\nENTRY")[0])  # none in a loop


@pytest.mark.parametrize("placement", [placements.data_parallel, placements.sharded_sampling])
def test_a_replay_buffer_is_updated_in_place_under_every_placement(placement):
    algorithm = sac(
        batch_size=16,
        buffer_size=8 * 50_000,
        warmup_steps=1,
        updates_per_tick=1,
        policy_hidden=(4,),
        critic_hidden=(4,),
    )
    graph, _ = build_graph(tiny.line(discrete=False, num_envs=NUM_ENVS), algorithm)
    program = programs.compile(graph, placement(graph, jax.devices()[:2]), 1)
    _, run = program.ready(keys(1), algorithm.hyper)
    texts = [s.step.as_text() for s in run.segments] if isinstance(run, Chain) else [run.as_text()]
    assert not re.findall(r"\[[\d,]*50000[\d,]*\]\S* copy(?:-start)?\(", "".join(texts))


@pytest.mark.parametrize(("name", "seeds"), [("ppo", 2), ("sac", 4)])
def test_divided_seeds_equal_seeds_on_one_device_and_have_nothing_to_say_to_each_other(name, seeds):
    _, _, run = compiled(name, "data_parallel", 2, seeds=seeds)
    assert not COLLECTIVE.findall(run.as_text())
    got, _ = one_tick(name, "data_parallel", 2, seeds=seeds)
    want, _ = one_tick(name, "fused", 1, seeds=seeds)
    assert largest_difference(got, want) <= 1e-6


def test_more_devices_than_seeds_divide_the_environments_too():
    got, _ = one_tick("ppo", "data_parallel", 4, seeds=2)
    want, _ = one_tick("ppo", "fused", 1, seeds=2)
    assert largest_difference(got, want) <= 1e-6


@pytest.mark.parametrize("placement", ["fused", "data_parallel", "actor_critic"])
def test_every_program_compiles_once_donates_private_states_and_does_not_grow_memory(placement):
    graph, hyper = built("ppo")
    program = programs.compile(graph, PLACEMENTS[placement](graph, jax.devices()[:2]), 2)
    init, run = program.ready(keys(1), hyper)
    state = init(keys(1), hyper)
    sizes = []
    for _ in range(6):
        old = state
        state, metrics = run(state)
        jax.block_until_ready((state, metrics))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.private))
        del old
        sizes.append((len(jax.live_arrays()), sum(x.nbytes for x in jax.live_arrays())))
    assert len(set(sizes[2:])) == 1


def test_a_division_that_does_not_come_out_even_is_refused_before_compiling():
    graph, _ = built("ppo", num_envs=6)
    with pytest.raises(
        GraphError,
        match="placement=data_parallel cannot shard the 6 environments of 'sample' evenly over 4 devices",
    ):
        programs.compile(graph, placements.data_parallel(graph, jax.devices()[:4]), 1)
    graph, _ = built("sac", num_envs=6)
    with pytest.raises(
        GraphError,
        match=r"cannot shard the 2 logical shards .* of 'experience' evenly over 3 devices",
    ):
        programs.compile(graph, placements.data_parallel(graph, jax.devices()[:3]), 1)
    with pytest.raises(GraphError, match="no or repeated devices"):
        programs.compile(graph, placements.data_parallel(graph, jax.devices()[:1] * 2), 1)


def test_as_many_keys_as_seeds_are_wanted():
    graph, hyper = built("ppo")
    program = programs.compile(graph, placements.fused(graph, jax.devices()), 1, num_seeds=2)
    with pytest.raises(GraphError, match="3 keys for a program of 2 seeds"):
        program.init(keys(3), hyper)


def test_vectorize_draws_the_same_starts_however_they_are_laid_out():
    env = tiny.line(discrete=True, num_envs=4)
    rows = env.draw_fresh(jax.random.key(0), 3)
    again = vectorize(env.env, num_envs=4).draw_fresh(jax.random.key(0), 3)
    assert largest_difference(rows, again) == 0.0
    assert graphs.age_of(built("ppo")[0], "sample", "actor") == 1


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setitem(xla_options.CPU_OPTIONS, "no_such_option", True)
    graph, _ = built("ppo")
    monkeypatch.setattr(xla_options, "processor_family", lambda: ("", 0))
    mesh = layout.homes(PLACEMENTS["fused"](graph, jax.devices("cpu")[:1]), 1)["sample"]
    told = xla_options.compiler_options(mesh)
    assert set(told) == {name for name in xla_options.CPU_OPTIONS if name != "no_such_option"}


@pytest.mark.parametrize(("name", "placement"), [("ppo", "fused"), ("sac", "actor_critic")])
def test_a_first_state_of_few_optimizations_is_that_of_all_but_for_rounding(
    monkeypatch, name, placement
):
    graph, hyper = built(name)

    def first_state():
        program = programs.compile(graph, PLACEMENTS[placement](graph, jax.devices()[:2]), 1)
        shapes = jax.eval_shape(lambda keys: jax.jit(program.init)(keys, hyper), keys(1))
        state = program.init(keys(1), hyper)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(
            lambda x: (x.shape, x.dtype), state
        )
        ready = on_host(program.ready(keys(1), hyper)[0](keys(1), hyper))
        assert largest_difference(on_host(state), ready) == 0.0
        return ready

    few = first_state()
    known = {o: v for o, v in xla_options.STARTING_OPTIONS.items() if xla_options.xla_knows(o, v)}
    assert known and xla_options.starting_options() == known
    monkeypatch.setattr(xla_options, "STARTING_OPTIONS", {})
    assert largest_difference(few, first_state()) <= 1e-6


def test_small_products_are_not_eigens():
    mesh = layout.homes(PLACEMENTS["fused"](built("ppo")[0], jax.devices("cpu")[:1]), 1)["sample"]
    several = vectorize(TWO_AGENTS["two_out"](), num_envs=NUM_ENVS)
    for size in (0, 4):
        graph, _ = build_graph(several, mappo(recurrent_size=size))
        assert (
            graph.products.sequences == (size > 0)
            and not built("ppo", recurrent=size)[0].products.sequences
        )
    few = xla_options.compiler_options(mesh, products=Products(sequences=True))
    assert set(xla_options.compiler_options(mesh)) - set(few) == {xla_options.EIGEN}


def test_a_graph_knows_whether_its_programs_step_environments():
    sizes = dict(rollout_length=8, num_minibatches=2)
    for env, stepped in (
        (tiny.host_line(discrete=True), False),
        (tiny.line(discrete=True, num_envs=4), True),
    ):
        assert build_graph(env, ppo(**sizes))[0].products.environments == stepped
        assert updates_only(env, ppo(**sizes)).products.environments == stepped


@pytest.mark.parametrize(
    "more, environments, eigen", [(0, False, False), (1, False, True), (0, True, True)]
)
def test_updates_of_a_host_environment_are_not_eigens_unless_large(more, environments, eigen):
    mesh = layout.homes(PLACEMENTS["fused"](built("ppo")[0], jax.devices("cpu")[:1]), 1)["sample"]
    products = Products(largest=xla_options.YNNPACK_PRODUCT + more, environments=environments)
    assert (xla_options.EIGEN in xla_options.compiler_options(mesh, products=products)) == eigen


def test_programs_of_small_products_are_compiled_for_them():
    mesh = layout.homes(PLACEMENTS["fused"](built("ppo")[0], jax.devices("cpu")[:1]), 1)["sample"]
    told = [
        set(
            xla_options.compiler_options(
                mesh, products=Products(largest=xla_options.SMALL_PRODUCT + more)
            )
        )
        for more in (0, 1)
    ]
    assert told[0] - told[1] == set(xla_options.SMALL_OPTIONS)


def test_the_largest_product_is_that_of_a_minibatch_with_the_largest_layer():
    env = tiny.line(discrete=True, num_envs=4)
    sizes = dict(rollout_length=8, num_minibatches=2, policy_hidden=(8,), value_hidden=(8, 16))
    products = build_graph(env, ppo(**sizes))[0].products
    assert not products.sequences and products.largest == 16 * 8 * 16
    assert products.params == 2 * 8 + 8 + 8 * 2 + 2 + 2 * 8 + 8 + 8 * 16 + 16 + 16 + 1
    images = vectorize(pixel_envs.motion(), num_envs=4)
    assert build_graph(images, ppo(rollout_length=8, num_minibatches=2))[
        0
    ].products.largest == float("inf")


WIDE = [
    ("AuthenticAMD", 25, False),
    ("AuthenticAMD", 26, True),
    ("GenuineIntel", 26, False),
    ("", 0, False),
]


@pytest.mark.parametrize(("vendor", "family", "wide"), WIDE)
def test_vectors_are_as_wide_as_a_processor_computes_at_once(monkeypatch, vendor, family, wide):
    mesh = layout.homes(PLACEMENTS["fused"](built("ppo")[0], jax.devices("cpu")[:1]), 1)["sample"]
    monkeypatch.setattr(xla_options, "processor_family", lambda: (vendor, family))
    assert (set(xla_options.WIDE_VECTORS) <= set(xla_options.compiler_options(mesh))) == wide
    assert not set(xla_options.WIDE_VECTORS) & set(xla_options.compiler_options(mesh, acting=True))
