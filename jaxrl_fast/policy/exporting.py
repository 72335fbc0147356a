"""Policies as JAX and ONNX files, each tested: it must select the policy's actions for random observations."""

import importlib.util
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Discrete, PyTree, __version__, action_shape
from jaxrl_fast.numerics.normalization import is_mask
from jaxrl_fast.policy.onnx_export import to_onnx
from jaxrl_fast.policy.policies import Policy, memory_of, with_memory
from jaxrl_fast.system import replace_file

NUM_STEPS, NUM_ENVS = 10, 100
NUM_OBSERVATIONS = NUM_STEPS * NUM_ENVS
NUM_PERTURBED = 16
ROUNDING = {"f32": (1e-5, 2.0**-20), "bf16": (1e-2, 2.0**-12)}
"""By precision: the difference that any policy may have, as a share of the range of actions, and the relative change of
parameters that simulates rounding.
"""


ActOnBatch = Callable[[PyTree, PyTree, np.ndarray], tuple[Any, PyTree]]
"""(carry: memory ``[E, ...]``, ignored without a memory; obs ``[E, ...]``; first ``[E]``: whether an episode begins) ->
(actions ``[E, ...]``, next carry), as a policy or its exported file computes them.
"""


def compare(policy: Policy, step: ActOnBatch) -> str:
    """Compare actions with the policy's over `NUM_OBSERVATIONS` observations.

    The effect of rounding on actions depends on the policy and its inputs, so it is measured: the difference may be as
    large as the change of the policy's actions when the last bits of its parameters are perturbed.

    Args:
        policy: Policy.
        step: Action selection to test.

    Returns:
        The difference in words.

    Raises:
        ValueError: The actions differ by more.
    """
    rng = np.random.default_rng(0)
    obs = draw_observations(policy, rng)
    first = np.concatenate([np.ones((1, NUM_ENVS), bool), rng.random((NUM_STEPS - 1, NUM_ENVS)) < 0.1])
    tolerance, change = ROUNDING[policy.made_by["options"].get("precision", "f32")]
    act, key = jax.jit(policy.act), jax.random.key(0)
    carry = policy.initial_carry(NUM_ENVS)

    def play_with(params: PyTree) -> np.ndarray:
        return _play(lambda carry, obs, first: act(params, carry, obs, first, key), carry, obs, first)

    expected = play_with(policy.params)
    actual = _play(step, memory_of(carry), obs, first)
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise ValueError(f"actions {actual.dtype}{actual.shape[1:]} instead of {expected.dtype}{expected.shape[1:]}")
    perturbed = np.stack([play_with(_perturb(policy.params, rng, change)) for _ in range(NUM_PERTURBED)])
    space = policy.spec.action
    if isinstance(space, Discrete):
        return _compare_discrete(actual, expected, perturbed)
    return _compare_continuous(actual, expected, perturbed, space.high - space.low, tolerance)


def draw_observations(policy: Policy, rng: np.random.Generator) -> PyTree:
    """Draw random observations.

    They are normal with the mean and deviation of the policy's statistics, else standard normal. Integers are rounded,
    or uniform without statistics (bytes: 0 to 255; others: 0 to 9). A mask allows at least one action.

    Args:
        policy: Policy.
        rng: Random generator.

    Returns:
        Leaves ``[T, E, ...]``.
    """
    spec, stats = policy.spec.obs, policy.params.obs
    known = stats is not None and float(stats.samples) > 0

    def draw(path: tuple, spec: jax.ShapeDtypeStruct, mean: Any, variance: Any) -> np.ndarray:
        size, dtype = (NUM_STEPS, NUM_ENVS, *spec.shape), np.dtype(spec.dtype)
        integer = jnp.issubdtype(dtype, jnp.integer)
        if dtype == np.bool_ or is_mask(path):
            numbers: np.ndarray = rng.random(size) < 0.5
            if is_mask(path):
                np.put_along_axis(numbers, rng.integers(size[-1], size=(*size[:-1], 1)), True, axis=-1)
        elif integer and not known:
            numbers = rng.integers(0, 256 if dtype == np.uint8 else 10, size)
        else:
            numbers = np.asarray(mean) + np.sqrt(np.asarray(variance)) * rng.standard_normal(size)
            if integer:
                numbers = np.clip(np.rint(numbers), np.iinfo(dtype).min, np.iinfo(dtype).max)
        return numbers.astype(dtype)

    if stats is None or not known:
        zeros = jax.tree.map(lambda s: np.zeros(s.shape), spec)
        return jax.tree_util.tree_map_with_path(draw, spec, zeros, jax.tree.map(np.ones_like, zeros))
    variance = jax.tree.map(lambda m2: m2 / stats.samples, stats.m2)
    return jax.tree_util.tree_map_with_path(draw, spec, stats.mean, variance)


def _play(step: ActOnBatch, carry: PyTree, obs: PyTree, first: np.ndarray) -> np.ndarray:
    """Return the actions ``[T, E, ...]`` for observations."""
    actions = []
    for t in range(NUM_STEPS):
        now = jax.tree.map(operator.itemgetter(t), (obs, first))
        action, carry = step(carry, *now)
        actions.append(np.asarray(action))
    return np.stack(actions)


def _perturb(params: PyTree, rng: np.random.Generator, change: float) -> PyTree:
    def perturb(x: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(x) * (1.0 + change * rng.uniform(-1.0, 1.0, x.shape)), x.dtype)

    return jax.tree.map(perturb, params)


def _compare_discrete(actual: np.ndarray, expected: np.ndarray, perturbed: np.ndarray) -> str:
    differ = actual != expected
    tied = (actual == perturbed).any(axis=0)
    if wrong := np.count_nonzero(differ & ~tied):
        raise ValueError(f"{wrong} of {NUM_OBSERVATIONS:,} actions differ from the policy's")
    count = np.count_nonzero(differ)
    return f"{count} actions differ from the policy's" + (", each a tie within rounding" if count else "")


def _compare_continuous(
    actual: np.ndarray, expected: np.ndarray, perturbed: np.ndarray, span: np.ndarray, tolerance: float
) -> str:
    span = np.where(span > 0, span, 1.0)
    difference = np.abs(actual - expected) / span
    rounding = np.abs(perturbed - expected).max(axis=0) / span
    largest = difference.max()
    if not np.all(difference <= np.maximum(tolerance, rounding)):
        raise ValueError(
            f"actions differ from the policy's by up to {largest:.2g} of their range, more than by rounding"
        )
    return f"actions differ from the policy's by at most {largest:.1e} of their range"


PLATFORMS = ("cpu", "cuda", "tpu")


class Signature(NamedTuple):
    """The exported function, its inputs and its outputs.

    Attributes:
        function: Policy with its parameters as constants. ``act(obs)`` returns actions ``[batch, ...]``; with a memory,
            ``act(carry, obs, first)`` returns actions and the next carry.
        arguments: Pytrees of ``ShapeDtypeStruct`` ``[batch, ...]`` with a symbolic batch size.
        inputs: Name of each leaf of the arguments -> Python expression for it.
        outputs: Names of the results.
    """

    function: Callable[..., Any]
    arguments: tuple[PyTree, ...]
    inputs: dict[str, str]
    outputs: tuple[str, ...]


class Format(NamedTuple):
    """A file format.

    Attributes:
        write: ``(policy) -> content``. Raises ``ValueError`` if the format cannot express the policy.
        load: ``(content) -> action selection``, to compare it with the policy.
        usage: ``(signature, path) -> lines`` of Python that act with the file at ``path``.
    """

    write: Callable[[Policy], bytes]
    load: Callable[[bytes], ActOnBatch]
    usage: Callable[[Signature, Path], list[str]]


def export_policy(policy: Policy, folder: Path, name: str) -> tuple[Path, str]:
    """Write a policy to ``folder/policy.<name>``.

    Args:
        policy: Policy.
        folder: Existing folder.
        name: Name in `FORMATS`.

    Returns:
        Path of the file, and its difference from the policy in words.

    Raises:
        ValueError: The format cannot express the policy, the file differs from it, or a package is missing; no file is
            left.
    """
    path = folder / f"policy.{name}"
    path.unlink(missing_ok=True)
    try:
        content = FORMATS[name].write(policy)
        difference = compare(policy, FORMATS[name].load(content))
    except Exception as error:  # ONNX runtimes raise separate exception types for unsupported models
        raise ValueError(f"{path} was not written: {error}") from error
    replace_file(path, content)
    return path, difference


def signature(policy: Policy) -> Signature:
    """Return the exported function of a policy, its inputs and its outputs.

    Args:
        policy: Policy.

    Returns:
        The signature.
    """
    (batch,) = jax.export.symbolic_shape("batch")

    def batched(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), jax.dtypes.canonicalize_dtype(dtype))

    params = policy.params
    obs = jax.tree.map(lambda s: batched(s.shape, s.dtype), policy.spec.obs)
    inputs = _spellings("obs", obs)

    def act(obs: PyTree) -> jax.Array:
        first = jnp.ones(jax.tree.leaves(obs)[0].shape[:1], bool)
        return policy.act(params, policy.initial_carry(1), obs, first, jax.random.key(0))[0]

    def act_with_memory(carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[jax.Array, PyTree]:
        whole = with_memory(policy.initial_carry(first.shape[0]), carry)
        action, whole = policy.act(params, whole, obs, first, jax.random.key(0))
        return action, memory_of(whole)

    memory = memory_of(policy.initial_carry(1))
    if memory is None:
        return Signature(act, (obs,), inputs, ("action",))
    carry = jax.tree.map(lambda x: batched(x.shape[1:], x.dtype), memory)
    carried = _spellings("carry", carry)
    outputs = ("action", *(f"next_{name}" for name in carried))
    return Signature(act_with_memory, (carry, obs, batched((), bool)), {**carried, **inputs, "first": "first"}, outputs)


def describe(policy: Policy) -> dict[str, str]:
    """Describe a policy, its inputs and its outputs.

    Args:
        policy: Policy.

    Returns:
        Texts by topic.
    """

    def array(name: str, shape: Sequence[int], dtype: Any) -> str:
        return f"{name} {jax.dtypes.canonicalize_dtype(dtype)}[{', '.join(['batch', *map(str, shape)])}]"

    space, shape = policy.spec.action, action_shape(policy.spec)
    leaves = jax.tree.leaves_with_path(policy.spec.obs)
    about = {
        "env": policy.spec.name,
        "algo": policy.made_by["algo"],
        "observation": ", ".join(array(_name("obs", path), s.shape, s.dtype) for path, s in leaves),
    }
    if isinstance(space, Discrete):
        about["action"] = f"{array('action', shape, jnp.int32)} from 0 to {space.num_actions - 1}"
    else:
        low, high = (str(np.unique(x)[0] if np.unique(x).size == 1 else x.tolist()) for x in (space.low, space.high))
        about["action"] = f"{array('action', shape, jnp.float32)} from {low} to {high}"
    memory = memory_of(policy.initial_carry(1))
    if memory is not None:
        parts = [array(_name("carry", path), x.shape[1:], x.dtype) for path, x in jax.tree.leaves_with_path(memory)]
        begins = f"{array('first', (), bool)}, true where an episode begins, resets it"
        about["memory"] = f"{' and '.join(parts)}, zeros at the start; {begins}"
    return about


def _write_jax(policy: Policy) -> bytes:
    function, arguments, _, _ = signature(policy)
    return bytes(jax.export.export(jax.jit(function), platforms=PLATFORMS)(*arguments).serialize())


def _load_jax(content: bytes) -> ActOnBatch:
    exported = jax.export.deserialize(bytearray(content))
    call = jax.jit(exported.call)
    return call if len(exported.out_avals) > 1 else lambda carry, obs, first: (call(obs), carry)


def _write_onnx(policy: Policy) -> bytes:
    made_with = {"jaxrl_fast": __version__, "jax": jax.__version__}
    function, arguments, inputs, outputs = signature(policy)
    return to_onnx(function, arguments, list(inputs), outputs, describe(policy) | made_with)


def _load_onnx(content: bytes) -> ActOnBatch:
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]

    def step(carry: PyTree, obs: PyTree, first: np.ndarray) -> tuple[np.ndarray, PyTree]:
        leaves = jax.tree.leaves((carry, obs, first) if names[-1] == "first" else obs)
        action, *rest = session.run(None, dict(zip(names, map(np.asarray, leaves), strict=True)))
        return action, jax.tree.unflatten(jax.tree.structure(carry), rest) if rest else carry

    return step


def _jax_usage(signature: Signature, path: Path) -> list[str]:
    arguments = ", ".join(dict.fromkeys(spelling.partition("[")[0] for spelling in signature.inputs.values()))
    results = ", ".join(dict.fromkeys(name.removeprefix("next_").partition(".")[0] for name in signature.outputs))
    return [f'act = jax.export.deserialize(pathlib.Path("{path}").read_bytes()).call', f"{results} = act({arguments})"]


def _onnx_usage(signature: Signature, path: Path) -> list[str]:
    feed = ", ".join(f'"{name}": {spelling}' for name, spelling in signature.inputs.items())
    carried = [name.removeprefix("next_") for name in signature.outputs]
    results = ", ".join(signature.inputs.get(name, name) for name in carried)
    return [f'session = onnxruntime.InferenceSession("{path}")', f"[{results}] = session.run(None, {{{feed}}})"]


FORMATS = {"jax": Format(_write_jax, _load_jax, _jax_usage), "onnx": Format(_write_onnx, _load_onnx, _onnx_usage)}


def _name(root: str, path: tuple) -> str:
    return ".".join([root, *([jax.tree_util.keystr(path, simple=True, separator=".")] if path else [])])


def _spellings(root: str, tree: PyTree) -> dict[str, str]:
    """Return the name of each leaf of an input, and its Python expression."""
    return {_name(root, path): f"{root}{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(tree)}


def has_onnx() -> bool:
    """Return whether the packages for ONNX files are installed.

    Returns:
        True if they are.
    """
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
