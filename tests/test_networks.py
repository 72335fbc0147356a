"""Networks: dtypes, memory, and no leaks between the elements of a batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from jaxrl_fast.learning.updates import statistics_of, trainable, with_statistics
from jaxrl_fast.networks.network import Head, action_mask, ensemble, features, make_network

pytestmark = pytest.mark.usefixtures("strict_dtypes")

KEY = jax.random.key(0)
SPEC = jax.ShapeDtypeStruct((3,), jnp.float32)
L, B = 6, 4
OBS = jax.random.normal(jax.random.key(1), (L, B, 3))
FIRST = jnp.zeros((L, B), bool).at[3, 1].set(True).at[0].set(True)


@pytest.fixture(scope="module", params=[0, 5], ids=["feed_forward", "recurrent"])
def network(request):
    net = make_network(SPEC, 2, hidden=(8,), activation="tanh", recurrent_size=request.param)
    return net._replace(apply=jax.jit(net.apply)), jax.jit(net.init)(KEY), net.initial_memory(B)


def test_mlp_equals_numpy():
    net = make_network(SPEC, 2, hidden=(8, 8), activation="tanh")
    params = jax.jit(net.init)(KEY)
    outputs, carry = net.apply(params, (), OBS, FIRST)
    numbers = jax.tree.map(np.float64, params)
    np.testing.assert_allclose(
        outputs, references.mlp(numbers, np.float64(OBS)), rtol=1e-5, atol=1e-5
    )
    assert not jax.tree.leaves(carry)


def test_a_sequence_equals_its_steps(network):
    net, params, carry = network
    whole, after = net.apply(params, carry, OBS, FIRST)
    for t in range(L):
        step, memories = net.apply(params, carry, OBS[t : t + 1], FIRST[t : t + 1])
        carry = jax.tree.map(lambda x: x[0], memories)
        np.testing.assert_allclose(step[0], whole[t], atol=1e-6)
        for leaf, want in zip(jax.tree.leaves(carry), jax.tree.leaves(after), strict=True):
            np.testing.assert_allclose(leaf, want[t], atol=1e-6)


@pytest.mark.parametrize("network", [5], indirect=True, ids=["recurrent"])
def test_memory_is_used_and_forgotten_at_first(network):
    net, params, carry = network
    first = jnp.zeros((L, B), bool).at[3, 1].set(True)
    whole, _ = net.apply(params, carry, OBS, first)
    fresh, _ = net.apply(params, carry, OBS[3:], jnp.zeros((L - 3, B), bool))
    np.testing.assert_allclose(whole[3:, 1], fresh[:, 1], atol=1e-6)
    assert np.abs(whole[3:, 0] - fresh[:, 0]).max() > 1e-3


def test_elements_of_a_batch_do_not_leak(network):
    net, params, carry = network
    before, _ = net.apply(params, carry, OBS, FIRST)
    after, _ = net.apply(params, carry, OBS.at[:, 2].set(100.0), FIRST.at[2, 2].set(True))
    others = np.array([0, 1, 3])
    np.testing.assert_array_equal(before[:, others], after[:, others])
    assert np.abs(before[:, 2] - after[:, 2]).max() > 1e-3


@pytest.mark.parametrize("recurrent_size", [0, 5])
def test_bf16_keeps_parameters_gradients_and_outputs_in_f32(recurrent_size):
    wide = jnp.ones((1, 1, 512))
    spec = jax.ShapeDtypeStruct((512,), jnp.float32)
    net = make_network(spec, 2, hidden=(8,), precision="bf16", recurrent_size=recurrent_size)
    params, carry, first = jax.jit(net.init)(KEY), net.initial_memory(1), jnp.zeros((1, 1), bool)

    def loss(params):
        return jnp.sum(net.apply(params, carry, wide, first)[0])

    shapes = jax.eval_shape(
        lambda p: (p, jax.grad(loss)(p), net.apply(p, carry, wide, first)), params
    )
    leaves = jax.tree.leaves(shapes)
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_bf16_multiplies_in_bf16_and_sums_in_f32():
    net = make_network(jax.ShapeDtypeStruct((512,), jnp.float32), 1, hidden=(), precision="bf16")
    params = jax.tree.map(jnp.ones_like, jax.jit(net.init)(KEY))
    # bf16 rounds it to 1; a bf16 sum would not reach 513
    x = jnp.full((1, 1, 512), 1.001, jnp.float32)
    assert net.apply(params, (), x, FIRST[:1, :1])[0] == 513.0


def test_layer_norm_forgets_the_scale_of_its_inputs():
    net = make_network(SPEC, 2, hidden=(16,), layer_norm=True)
    params = jax.jit(net.init)(KEY)
    np.testing.assert_allclose(
        net.apply(params, (), OBS, FIRST)[0],
        net.apply(params, (), 1000.0 * OBS, FIRST)[0],
        atol=1e-3,
    )


@pytest.mark.parametrize("network", [0, 5], ids=["feed_forward", "recurrent"])
def test_dropout_acts_before_layer_norm_and_only_with_a_key(network: int):
    options = dict(hidden=(8, 8), activation="tanh", layer_norm=True, recurrent_size=network)
    net, plain = make_network(SPEC, 2, **options, dropout=0.5), make_network(SPEC, 2, **options)
    params, carry = jax.jit(net.init)(KEY), net.initial_memory(B)
    np.testing.assert_array_equal(
        net.apply(params, carry, OBS, FIRST)[0], plain.apply(params, carry, OBS, FIRST)[0]
    )
    assert net.with_dropout is not None and plain.with_dropout is None
    apply = net.with_dropout(jax.random.key(3)).apply
    masks = references.dropout_masks(lambda: apply(params, carry, OBS, FIRST), 1)[0]
    assert [mask.shape for mask in masks] == [(L * B, 8)] * 2 and 0.3 < np.mean(masks) < 0.7
    outputs = apply(params, carry, OBS, FIRST)[0]
    head = {"params": params["params"]["head"]} if network else params
    seen = plain.apply(params, carry, OBS, FIRST)[1] if network else OBS
    rows = np.float64(seen).swapaxes(0, 1).reshape(L * B, -1)  # the batch comes first in a network
    wanted = (
        references.mlp(jax.tree.map(np.float64, head), rows, masks, 0.5)
        .reshape(B, L, 2)
        .swapaxes(0, 1)
    )
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)


def test_members_drop_other_outputs_also_with_stacked_params():
    net = ensemble(make_network(SPEC, 2, hidden=(8,), dropout=0.5), 3)
    params = jax.jit(net.init)(KEY)
    assert net.with_dropout is not None
    apply = net.with_dropout(jax.random.key(3)).apply
    masks = references.dropout_masks(lambda: apply(params, (), OBS, FIRST), 3)
    assert (masks[0][0] != masks[1][0]).any() and (masks[1][0] != masks[2][0]).any()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    np.testing.assert_allclose(
        apply(stacked, (), OBS, FIRST)[0], apply(params, (), OBS, FIRST)[0], rtol=1e-5, atol=1e-6
    )


def test_features_flatten_a_dictionary_without_its_mask():
    obs = {
        "action_mask": jnp.ones((L, B, 7)),
        "image": jnp.full((L, B, 2, 2), 2, jnp.uint8),
        "scalar": jnp.full((L, B), 3.0),
    }
    x = features(obs)
    assert (x.shape, x.dtype) == ((L, B, 5), jnp.float32)
    np.testing.assert_array_equal(x[0, 0], [2, 2, 2, 2, 3])
    assert action_mask(obs) is obs["action_mask"]
    assert action_mask(OBS) is None


def test_a_policy_starts_near_the_middle_of_its_actions():
    net = make_network(SPEC, 2, hidden=(64,), out_scale=0.01)
    assert np.abs(net.apply(jax.jit(net.init)(KEY), (), OBS, FIRST)[0]).max() < 0.1


def test_heads_share_all_but_the_last_layer_and_start_at_their_own_scale():
    heads = {"policy": Head(3, 0.01), "value": Head(1)}
    net = make_network(SPEC, heads, hidden=(64,))
    params = jax.jit(net.init)(KEY)
    outputs, _ = net.apply(params, (), OBS, FIRST)
    assert {name: out.shape for name, out in outputs.items()} == {
        "policy": (L, B, 3),
        "value": (L, B, 1),
    }
    last = params["params"]["Dense_1"]["kernel"]
    assert last.shape == (64, 4)
    np.testing.assert_allclose(last[:, :3].std() * 8, 0.01, rtol=0.2)
    np.testing.assert_allclose(last[:, 3:].std() * 8, 1.0, rtol=0.3)
    hidden = np.maximum(np.float64(OBS) @ params["params"]["Dense_0"]["kernel"], 0.0)
    np.testing.assert_allclose(outputs["value"], hidden @ last[:, 3:], atol=1e-5)


def test_a_network_reads_the_keys_that_it_is_told():
    spec = {"action_mask": jax.ShapeDtypeStruct((3,), jnp.bool_), "a": SPEC, "b": SPEC}
    net = make_network(spec, 2, hidden=(8,), keys=("b",))
    params = jax.jit(net.init)(KEY)
    obs = {"action_mask": jnp.ones((L, B, 3), bool), "a": OBS, "b": 2.0 * OBS}
    before, _ = net.apply(params, (), obs, FIRST)
    np.testing.assert_array_equal(net.apply(params, (), {**obs, "a": 0.0 * OBS}, FIRST)[0], before)
    assert np.abs(net.apply(params, (), {**obs, "b": 0.0 * OBS}, FIRST)[0] - before).max() > 1e-3
    with pytest.raises(ValueError, match=r"no key 'c': write some of a, b"):
        make_network(spec, 2, hidden=(8,), keys=("c",))
    with pytest.raises(
        ValueError, match=r"no key 'c': they are not a dictionary: leave the keys out"
    ):
        make_network(SPEC, 2, hidden=(8,), keys=("c",))


@pytest.mark.parametrize("recurrent_size", [0, 5])
def test_a_network_of_actions_remembers_observations_alone(recurrent_size):
    net = ensemble(
        make_network(SPEC, 1, hidden=(8,), action_shape=(2,), recurrent_size=recurrent_size), 2
    )
    params, memory = jax.jit(net.init)(KEY), net.initial_memory(B)
    action = jax.random.normal(jax.random.key(2), (L, B, 2))
    q, after = net.apply(params, memory, OBS, FIRST, action)
    other_q, other_after = net.apply(params, memory, OBS, FIRST, -action)
    assert q.shape == (2, L, B, 1)
    assert np.abs(q - other_q).max() > 1e-3
    assert np.abs(q[0] - q[1]).max() > 1e-3  # two networks
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(other_after), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(jax.tree.leaves(after)) == (2 if recurrent_size else 0)


def test_a_batch_norm_sees_the_batch_while_it_learns_and_what_it_has_seen_elsewhere():
    net = make_network(SPEC, 2, hidden=(16,), batch_norm=True)
    params, big = jax.jit(net.init)(KEY), 1000.0 * OBS
    outputs, after = net.in_loss(params, (), big, FIRST)
    # removes the scale
    np.testing.assert_allclose(outputs, net.in_loss(params, (), OBS, FIRST)[0], atol=1e-3)
    assert np.abs(
        net.apply(params, (), big, FIRST)[0] - outputs
    ).max() > 1.0 and not jax.tree.leaves(after)

    def see(_, params):
        grads = jax.grad(lambda params: jnp.sum(net.in_loss(params, (), big, FIRST)[0]))(params)
        return with_statistics(params, params, grads)

    params = jax.lax.fori_loop(0, 1000, see, params)
    np.testing.assert_allclose(net.apply(params, (), big, FIRST)[0], outputs, atol=1e-2)
    before = net.apply(params, (), OBS, FIRST)[0]
    after = net.apply(params, (), OBS.at[:, 2].set(100.0), FIRST)[0]
    # in inference mode, no element leaks into another
    np.testing.assert_array_equal(before[:, :2], after[:, :2])


@pytest.mark.parametrize("size", [0, 2])
def test_the_gradient_of_batch_norms_statistics_is_their_change(size: int):
    """A loss that uses the network once, or several times, or not at all, returns no statistics and
    moves them.
    """
    one = make_network(SPEC, 2, hidden=(16,), batch_norm=True)
    net = ensemble(one, size) if size else one
    params = jax.jit(net.init)(KEY)

    def loss(params, runs=1):
        return sum(
            (jnp.sum(jnp.square(net.in_loss(params, (), OBS, FIRST)[0])) for _ in range(runs)),
            jnp.zeros(()),
        )

    grads = jax.jit(jax.grad(loss))(params)
    found = statistics_of(with_statistics(params, params, grads))
    for own, new, grad in zip(
        *((x if size else (x,)) for x in (params, found, grads)), strict=True
    ):
        flat = np.asarray(features(OBS), np.float64).reshape(
            -1, own["params"]["Dense_0"]["kernel"].shape[0]
        )
        inside = flat @ np.asarray(own["params"]["Dense_0"]["kernel"], np.float64)
        np.testing.assert_allclose(
            new["BatchNorm_0"]["mean"], 0.01 * inside.mean(0), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(
            new["BatchNorm_0"]["var"], 0.99 + 0.01 * inside.var(0), rtol=1e-5
        )
        assert all(
            np.abs(x).max() > 0.0 for x in jax.tree.leaves(trainable(grad)["params"]["Dense_1"])
        )
    for runs in (0, 2):
        several = statistics_of(jax.grad(partial(loss, runs=runs))(params))
        expected = jax.tree.map(lambda x, runs=runs: runs * x, statistics_of(grads))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), several, expected)


def test_without_a_batch_norm_learning_is_applying():
    net = ensemble(make_network(SPEC, 2, hidden=(8,), layer_norm=True), 2)
    params = jax.jit(net.init)(KEY)
    np.testing.assert_array_equal(
        net.in_loss(params, (), OBS, FIRST)[0], net.apply(params, (), OBS, FIRST)[0]
    )
