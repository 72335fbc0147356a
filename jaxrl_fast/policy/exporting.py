"""Policies as JAX and ONNX files, each tested: it must select the policy's actions for random
observations.
"""

import importlib.util
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast import spaces
from jaxrl_fast.core import Box, Discrete, EnvSpec, PyTree, __version__, action_shape
from jaxrl_fast.policy.onnx_export import to_onnx
from jaxrl_fast.policy.policies import Policy, memory_of, with_memory
from jaxrl_fast.system import replace_file

NUM_STEPS, NUM_ENVS = 10, 100
NUM_OBSERVATIONS = NUM_STEPS * NUM_ENVS
NUM_PERTURBED = 16
ROUNDING = {"f32": (1e-5, 2.0**-20), "bf16": (1e-2, 2.0**-12)}
"""By precision: the difference that any policy may have, as a share of the range of actions, and
the relative change of parameters that simulates rounding.
"""


ActOnBatch = Callable[[PyTree, PyTree, np.ndarray], tuple[Any, PyTree]]
"""(carry: memory ``[E, ...]``, ignored without a memory; obs ``[E, ...]``; first ``[E]``: whether
an episode begins) -> (actions ``[E, ...]``, next carry), as a policy or its exported file computes
them.
"""


def compare(policy: Policy, step: ActOnBatch) -> str:
    """Compare actions with the policy's over `NUM_OBSERVATIONS` observations.

    The effect of rounding on actions depends on the policy and its inputs, so it is measured: the
    difference may be as large as the change of the policy's actions when the last bits of its
    parameters are perturbed.

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
    first = np.concatenate(
        [np.ones((1, NUM_ENVS), bool), rng.random((NUM_STEPS - 1, NUM_ENVS)) < 0.1]
    )
    tolerance, change = ROUNDING[policy.made_by["options"].get("precision", "f32")]
    act, key = jax.jit(policy.act), jax.random.key(0)
    carry = policy.initial_carry(NUM_ENVS)

    def play_with(params: PyTree) -> np.ndarray:
        return _play(
            lambda carry, obs, first: act(params, carry, obs, first, key), carry, obs, first
        )

    expected = play_with(policy.params)
    actual = _play(step, memory_of(carry), obs, first)
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise ValueError(
            f"actions {actual.dtype}{actual.shape[1:]} instead of {expected.dtype}{expected.shape[1:]}"
        )
    perturbed = np.stack(
        [play_with(_perturb(policy.params, rng, change)) for _ in range(NUM_PERTURBED)]
    )
    space = policy.spec.action
    if not isinstance(space, Box):
        return _compare_discrete(actual, expected, perturbed)
    span = space.high - space.low
    if expected.shape[2:] != action_shape(policy.spec):  # of several agents, one after another
        span = np.tile(span.ravel(), policy.spec.num_agents or 1)
    return _compare_continuous(actual, expected, perturbed, span, tolerance)


def draw_observations(policy: Policy, rng: np.random.Generator) -> PyTree:
    """Draw random observations of the environment's own space, of the parts that the policy reads.

    Numbers are normal with the mean and deviation of the policy's statistics, else standard normal.
    Integers are rounded, or uniform without statistics (bytes: 0 to 255; others: 0 to 9); Discrete
    ones are uniform. A mask allows at least one action.

    Args:
        policy: Policy.
        rng: Random generator.

    Returns:
        Leaves ``[T, E, ...]``.
    """
    adapter, stats = policy.adapter, policy.params.obs
    has_moments = stats is not None and float(stats.samples) > 0
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree.leaves_with_path(policy.spec.obs)
    ]
    moments: dict[str, Any] = {}
    if stats is not None and has_moments:
        moments = dict(
            zip(
                names,
                zip(*map(jax.tree.leaves, (stats.mean, stats.variance)), strict=True),
                strict=True,
            )
        )

    def draw(part: spaces.SpacePart) -> np.ndarray:
        space, shape = part.space, (NUM_STEPS, NUM_ENVS, *spaces.own_shape(part.space))
        dtype = spaces.file_dtype(space)
        if spaces.MASK in part.path:
            numbers: np.ndarray = rng.random(shape) < 0.5
            np.put_along_axis(
                numbers, rng.integers(shape[-1], size=(*shape[:-1], 1)), True, axis=-1
            )
            return numbers.astype(dtype)
        limits = spaces.range_of(space)
        if space["kind"] in ("Discrete", "MultiDiscrete") and limits is not None:
            return rng.integers(limits[0], limits[1] + 1, shape).astype(dtype)
        if dtype == np.bool_ or space["kind"] == "MultiBinary":
            return (rng.random(shape) < 0.5).astype(dtype)
        mean, variance = moments.get(part.name, (0.0, 1.0))
        if np.shape(mean) not in ((), shape[2:]):
            mean, variance = 0.0, 1.0
        if dtype.kind in "iu" and part.name not in moments:
            return rng.integers(0, 256 if dtype == np.uint8 else 10, shape).astype(dtype)
        numbers = np.asarray(mean) + np.sqrt(np.asarray(variance)) * rng.standard_normal(shape)
        if dtype.kind in "iu":
            numbers = np.clip(np.rint(numbers), np.iinfo(dtype).min, np.iinfo(dtype).max)
        return numbers.astype(dtype)

    return spaces.build(
        adapter.space, {part.path: draw(part) for part in adapter.parts(policy.params)}
    )


def _play(step: ActOnBatch, carry: PyTree, obs: PyTree, first: np.ndarray) -> np.ndarray:
    """Return the actions ``[T, E, ...]`` for observations; several agents one after another."""
    actions = []
    for t in range(NUM_STEPS):
        now = jax.tree.map(operator.itemgetter(t), (obs, first))
        action, carry = step(carry, *now)
        each = [np.asarray(one) for one in jax.tree.leaves(action)]
        actions.append(
            each[0]
            if len(each) == 1
            else np.concatenate([one.reshape(NUM_ENVS, -1) for one in each], 1)
        )
    return np.stack(actions)


def _perturb(params: PyTree, rng: np.random.Generator, change: float) -> PyTree:
    def perturb(x: jax.Array) -> jax.Array:
        return jnp.asarray(
            np.asarray(x) * (1.0 + change * rng.uniform(-1.0, 1.0, x.shape)), x.dtype
        )

    return jax.tree.map(perturb, params)


def _compare_discrete(actual: np.ndarray, expected: np.ndarray, perturbed: np.ndarray) -> str:
    differ = actual != expected
    tied = (actual == perturbed).any(axis=0)
    if wrong := np.count_nonzero(differ & ~tied):
        raise ValueError(f"{wrong} of {NUM_OBSERVATIONS:,} actions differ from the policy's")
    count = np.count_nonzero(differ)
    return f"{count} actions differ from the policy's" + (
        ", each a tie within rounding" if count else ""
    )


def _compare_continuous(
    actual: np.ndarray,
    expected: np.ndarray,
    perturbed: np.ndarray,
    span: np.ndarray,
    tolerance: float,
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
        function: Policy with its parameters as constants. ``act(obs)`` returns actions
            ``[batch, ...]``; with a memory, ``act(carry, obs, first)`` returns actions and the next
            carry.
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
        write: ``(policy) -> content``. Raises ``ValueError`` if the format cannot express the
            policy.
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
        ValueError: The format cannot express the policy, the file differs from it, or a package is
            missing; no file is left.
    """
    path = folder / f"policy.{name}"
    path.unlink(missing_ok=True)
    try:
        content = FORMATS[name].write(policy)
        difference = compare(policy, FORMATS[name].load(content))
    except (
        Exception
    ) as error:  # ONNX runtimes raise separate exception types for unsupported models
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

    params, adapter = policy.params, policy.adapter
    parts = adapter.parts(params)
    leaves = {
        part.path: batched(spaces.own_shape(part.space), spaces.file_dtype(part.space))
        for part in parts
    }
    obs = spaces.build(adapter.space, leaves)
    inputs = _spellings("obs", obs)

    def act(obs: PyTree) -> Any:
        first = jnp.ones(jax.tree.leaves(obs)[0].shape[:1], bool)
        return policy.act(params, policy.initial_carry(1), obs, first, jax.random.key(0))[0]

    def act_with_memory(carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Any, PyTree]:
        whole = with_memory(policy.initial_carry(first.shape[0]), carry)
        action, whole = policy.act(params, whole, obs, first, jax.random.key(0))
        return action, memory_of(whole)

    memory = memory_of(policy.initial_carry(1))
    if memory is None:
        return Signature(act, (obs,), inputs, tuple(_spellings("action", jax.eval_shape(act, obs))))
    carry = jax.tree.map(lambda x: batched(x.shape[1:], x.dtype), memory)
    carried = _spellings("carry", carry)
    arguments = carry, obs, batched((), bool)
    actions = _spellings("action", jax.eval_shape(act_with_memory, *arguments)[0])
    outputs = (*actions, *(f"next_{name}" for name in carried))
    return Signature(act_with_memory, arguments, {**carried, **inputs, "first": "first"}, outputs)


def describe(policy: Policy) -> dict[str, str]:
    """Describe a policy, its inputs and its outputs.

    Args:
        policy: Policy.

    Returns:
        Texts by topic.
    """

    def array(name: str, shape: Sequence[int], dtype: Any) -> str:
        return f"{name} {jax.dtypes.canonicalize_dtype(dtype)}[{', '.join(['batch', *map(str, shape)])}]"

    def observed(part: spaces.SpacePart) -> str:
        name, space = ".".join(["obs", *map(str, part.path)]), part.space
        values = f" ({spaces.text_of(space)})" if space["kind"] == "Discrete" else ""
        return array(name, spaces.own_shape(space), spaces.file_dtype(space)) + values

    about = {
        "env": policy.spec.name,
        "algo": policy.made_by["algo"],
        "observation": ", ".join(map(observed, policy.adapter.parts(policy.params))),
        "action": _action_text(policy.spec, array),
    }
    memory = memory_of(policy.initial_carry(1))
    if memory is not None:
        parts = [
            array(_name("carry", path), x.shape[1:], x.dtype)
            for path, x in jax.tree.leaves_with_path(memory)
        ]
        begins = f"{array('first', (), bool)}, true where an episode begins, resets it"
        about["memory"] = f"{' and '.join(parts)}, zeros at the start; {begins}"
    return about


def _action_text(spec: EnvSpec, array: Callable[..., str]) -> str:
    """Describe the actions of an exported file."""
    action_space = spec.action_space
    if action_space is not None and action_space["kind"] == "Agents":
        each = action_space["spaces"].items()
        return ", ".join(
            array(f"action.{name}", spaces.own_shape(one), spaces.file_dtype(one))
            for name, one in each
        )
    space, shape = spec.action, action_shape(spec)
    if isinstance(space, Box):
        low, high = (
            str(np.unique(x)[0] if np.unique(x).size == 1 else x.tolist())
            for x in (space.low, space.high)
        )
        return f"{array('action', shape, jnp.float32)} from {low} to {high}"
    if isinstance(space, Discrete):
        start = 0 if action_space is None else action_space["start"]
        return (
            f"{array('action', shape, jnp.int32)} from {start} to {start + space.num_actions - 1}"
        )
    shape, start = (
        (shape, 0)
        if action_space is None
        else (spaces.own_shape(action_space), action_space.get("start", 0))
    )
    first = np.broadcast_to(start, np.shape(space.sizes) if action_space is None else shape)
    last = first + np.reshape(space.sizes, first.shape) - 1
    return f"{array('action', shape, jnp.int32)} from {first.tolist()} to {last.tolist()}"


def fast(policy: Policy) -> Callable[..., Any]:
    """Return a policy as a function that ONNX Runtime runs in one thread (`Policy.fast`).

    Args:
        policy: Policy.

    Returns:
        ``(obs) -> action``; with a memory ``(carry, obs, first) -> (action, carry)``.

    Raises:
        ValueError: A package is missing, or ONNX cannot express the policy.
    """
    if not has_onnx():
        raise ValueError("policy.fast() needs two packages: pip install onnx onnxruntime")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    content = _write_onnx(policy, otherwise="call the policy itself")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    adapter, params, memory = policy.adapter, policy.params, memory_of(policy.initial_carry(1))
    parts = adapter.parts(params)
    inputs = [
        (".".join(["obs", *map(str, one.path)]), spaces.file_dtype(one.space)) for one in parts
    ]
    shapes = [spaces.own_shape(part.space) for part in parts]
    outputs = [tensor.name for tensor in session.get_outputs()]
    action_space = policy.spec.action_space
    num_actions = sum(name.partition(".")[0] == "action" for name in outputs)
    carried = [name.removeprefix("next_") for name in outputs[num_actions:]]

    def feed_of(obs: PyTree) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        read, values = adapter.read(params, obs)
        if len(read) < len(parts):
            raise ValueError(
                "policy.fast() needs the observations of all agents: call the policy itself"
            )
        lead = values[0].shape[: values[0].ndim - len(shapes[0])]
        feed = {}
        for (name, dtype), value, shape in zip(inputs, values, shapes, strict=True):
            if not isinstance(value, np.ndarray | np.generic):  # `read` has checked NumPy's
                spaces.require_finite(value, f"the policy of {policy.spec.name}: {name}")
            feed[name] = np.asarray(value, dtype).reshape(-1, *shape)
        return feed, lead

    def action_of(results: list[np.ndarray], lead: tuple[int, ...]) -> Any:
        actions = [x.reshape((*lead, *x.shape[1:])) for x in results[:num_actions]]
        if action_space is None:
            return actions[0]
        if action_space["kind"] == "Agents":
            each = {name.partition(".")[2]: x for name, x in zip(outputs, actions, strict=False)}
            return {
                name: each[name].astype(spaces.own_dtype(one))[()]
                for name, one in action_space["spaces"].items()
            }
        return actions[0].astype(spaces.own_dtype(action_space))[()]

    def act(obs: PyTree) -> Any:
        feed, lead = feed_of(obs)
        return action_of(session.run(outputs, feed), lead)

    def act_with_memory(carry: Any, obs: PyTree, first: Any) -> tuple[Any, Any]:
        feed, lead = feed_of(obs)
        size = math.prod(lead)
        if carry is None:
            zeros = jax.tree.leaves(memory_of(policy.initial_carry(size)))
            carry = dict(zip(carried, map(np.asarray, zeros), strict=True))
        begins = np.broadcast_to(np.asarray(first, bool), lead).reshape(size)
        results = session.run(outputs, {**carry, **feed, "first": begins})
        return action_of(results, lead), dict(zip(carried, results[num_actions:], strict=True))

    return act if memory is None else act_with_memory


def _write_jax(policy: Policy) -> bytes:
    function, arguments, _, _ = signature(policy)
    return bytes(jax.export.export(jax.jit(function), platforms=PLATFORMS)(*arguments).serialize())


def _load_jax(content: bytes) -> ActOnBatch:
    exported = jax.export.deserialize(bytearray(content))
    call = jax.jit(exported.call)
    return (
        call
        if len(jax.tree.unflatten(exported.in_tree, exported.in_avals)[0]) > 1
        else lambda carry, obs, first: (call(obs), carry)
    )


def _write_onnx(policy: Policy, *, otherwise: str = "use formats=jax") -> bytes:
    made_with = {"jaxrl_fast": __version__, "jax": jax.__version__}
    function, arguments, inputs, outputs = signature(policy)
    try:
        return to_onnx(function, arguments, list(inputs), outputs, describe(policy) | made_with)
    except ValueError as error:
        raise ValueError(f"{error}: {otherwise}") from None


def _load_onnx(content: bytes) -> ActOnBatch:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]

    def step(carry: PyTree, obs: PyTree, first: np.ndarray) -> tuple[np.ndarray, PyTree]:
        leaves = jax.tree.leaves((carry, obs, first) if names[-1] == "first" else obs)
        results = session.run(None, dict(zip(names, map(np.asarray, leaves), strict=True)))
        size = len(results) - len(jax.tree.leaves(carry)) if names[-1] == "first" else len(results)
        after = (
            jax.tree.unflatten(jax.tree.structure(carry), results[size:])
            if size < len(results)
            else carry
        )
        return results[:size], after

    return step


def _jax_usage(signature: Signature, path: Path) -> list[str]:
    arguments = ", ".join(
        dict.fromkeys(spelling.partition("[")[0] for spelling in signature.inputs.values())
    )
    results = ", ".join(
        dict.fromkeys(name.removeprefix("next_").partition(".")[0] for name in signature.outputs)
    )
    return [
        f'act = jax.export.deserialize(pathlib.Path("{path}").read_bytes()).call',
        f"{results} = act({arguments})",
    ]


def _onnx_usage(signature: Signature, path: Path) -> list[str]:
    feed = ", ".join(f'"{name}": {spelling}' for name, spelling in signature.inputs.items())
    carried = [name.removeprefix("next_") for name in signature.outputs]
    results = ", ".join(signature.inputs.get(name, name) for name in carried)
    return [
        f'session = onnxruntime.InferenceSession("{path}")',
        f"[{results}] = session.run(None, {{{feed}}})",
    ]


FORMATS = {
    "jax": Format(_write_jax, _load_jax, _jax_usage),
    "onnx": Format(_write_onnx, _load_onnx, _onnx_usage),
}


def _name(root: str, path: tuple) -> str:
    return ".".join(
        [root, *([jax.tree_util.keystr(path, simple=True, separator=".")] if path else [])]
    )


def _spellings(root: str, tree: PyTree) -> dict[str, str]:
    """Return the name of each leaf of an input, and its Python expression."""
    return {
        _name(root, path): f"{root}{jax.tree_util.keystr(path)}"
        for path, _ in jax.tree.leaves_with_path(tree)
    }


def has_onnx() -> bool:
    """Return whether the packages for ONNX files are installed.

    Returns:
        True if they are.
    """
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
