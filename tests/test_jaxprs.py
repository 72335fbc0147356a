"""What the package reads of traced programs, in the installed JAX: split, written in NumPy and as
ONNX, each form of a call, a loop of one step, a branch and every primitive whose name or parameters
differ between versions of JAX.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from jaxrl_fast import jaxprs
from jaxrl_fast.hosts.act_split import Value, run_operations, split
from jaxrl_fast.hosts.numpy_source import to_numpy
from jaxrl_fast.policy.onnx_export import to_onnx

SCALE = jnp.arange(1.0, 4.0)[None]


@jax.custom_jvp
def with_jvp(x: jax.Array) -> jax.Array:
    return SCALE * x


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), SCALE * tangents[0]))


@jax.custom_vjp
def with_vjp(x: jax.Array) -> jax.Array:
    return SCALE * x


with_vjp.defvjp(lambda x: (with_vjp(x), None), lambda _, g: (SCALE * g,))


def one_step(x: jax.Array) -> tuple:
    """Loop over one step, with constants, two carries, and inputs and results for each step."""

    def body(carry: tuple, now: jax.Array) -> tuple:
        total, count = carry
        return (total + now * SCALE, count + 1.0), (now - total, now.sum(-1))

    (total, count), (difference, sums) = jax.lax.scan(body, (x, jnp.zeros(())), x[None])
    return total + count, difference[0], sums[0]


def one_step_without_inputs(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, _: (carry * SCALE, None), x, length=1)[0]


FORMS = {
    "jit": jax.jit(lambda x: x + SCALE),
    "jit in jit": jax.jit(lambda x: jax.jit(lambda y: y * SCALE)(x) + 1.0),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "checkpoint": jax.checkpoint(lambda x: x * SCALE),
    "a loop of one step": one_step,
    "a loop of one step without inputs": one_step_without_inputs,
    "a loop in a checkpoint": jax.checkpoint(one_step),
    "a branch by platform": lambda x: jax.lax.platform_dependent(
        x, cpu=lambda x: x * SCALE, default=lambda x: x * SCALE
    ),
    "stack": lambda x: jnp.stack([x, x + SCALE], axis=1),
    "split": lambda x: [part * 2.0 for part in jnp.split(x, 3, axis=-1)],
    "concatenate": lambda x: jnp.concatenate([x, SCALE * x], axis=-1),
    "square": jnp.square,
    "argmax": lambda x: jnp.argmax(x * SCALE, axis=-1),
    "select": lambda x: jnp.where(x > 0.0, x, SCALE),
    "softmax": lambda x: jax.nn.log_softmax(x * SCALE),
    "gelu": jax.nn.gelu,
    "einsum": lambda x: jnp.einsum("bi,ij->bj", x, np.eye(3, dtype=np.float32)),
    "exp and log": lambda x: (
        jnp.log(jnp.exp(x) + 1.0) + jnp.sin(x) * jnp.cos(x) + jnp.floor(x) + jnp.sign(x)
    ),
}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)


def results_of(name: str, x: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(FORMS[name](x))]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_split_and_computes_what_jax_does(name: str, x: np.ndarray):
    program = split(lambda tick, step, act: FORMS[name](act[0]), (), (), (x,))
    assert not {"scan", "cond", "platform_index", *jaxprs.CALLS} & {op.name for op in program.act}
    (given,) = (value for values in program.inputs.values() for value in values)
    arrays = run_operations(program.act, {given.number: x})
    got = [arrays[out.number] if isinstance(out, Value) else out for out in program.outputs]
    for one, other in zip(got, results_of(name, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_written_in_numpy(name: str, x: np.ndarray):
    source = to_numpy(split(lambda tick, step, act: FORMS[name](act[0]), (), (), (x,)))
    names: dict[str, Any] = {}
    exec(source.text, names)
    got = names["make"](np, source.constants)(x)
    for one, other in zip(got, results_of(name, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_exported_to_onnx(name: str, x: np.ndarray):
    (batch,) = jax.export.symbolic_shape("batch")
    want = results_of(name, x)
    outputs = [f"y{i}" for i in range(len(want))]
    shape = jax.ShapeDtypeStruct((batch, 3), np.float32)
    model = to_onnx(partial(leaves_of, name), [shape], ["x"], outputs, {"env": "none"})
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for one, other in zip(session.run(outputs, {"x": x}), want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def leaves_of(name: str, x: jax.Array) -> list[jax.Array]:
    return jax.tree.leaves(FORMS[name](x))


def test_a_loop_of_two_steps_is_no_single_step():
    loop = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, y: (c + y, c), x, jnp.ones((2, 1, 3))))(
        SCALE
    )
    (eqn,) = (eqn for eqn in loop.jaxpr.eqns if eqn.primitive.name == "scan")
    assert jaxprs.single_step(eqn) is None and len(jaxprs.inner_programs(eqn)) == 1
