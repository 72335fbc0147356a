"""A policy as files that need no jaxrl_fast: one for JAX, one for ONNX runtimes.

What is written is the greedy policy on raw observations, its statistics of them included: ``action = act(obs)`` on a
batch of any size, or ``action, carry = act(carry, obs, first)`` where the policy has a memory.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_fast.core import Discrete, PyTree, __version__, action_shape
from jaxrl_fast.files import replace_file
from jaxrl_fast.policy.export_check import ActOnBatch, compare
from jaxrl_fast.policy.onnx_export import to_onnx
from jaxrl_fast.policy.policies import Policy, memory_of, with_memory

PLATFORMS = ("cpu", "cuda", "tpu")


class Signature(NamedTuple):
    """The ``function`` that is exported, and what goes in and comes out.

    ``function``: a policy with its parameters as constants inside. ``act(obs)`` returns actions ``[batch, ...]``; with
    a memory, ``act(carry, obs, first)`` returns actions and the next carry.

    ``arguments``: pytrees of ``ShapeDtypeStruct`` ``[batch, ...]`` with a symbolic batch size; ``inputs``: the name of
    each leaf of them -> its spelling in Python; ``outputs``: the names of what it returns.
    """

    function: Callable[..., Any]
    arguments: tuple[PyTree, ...]
    inputs: dict[str, str]
    outputs: tuple[str, ...]


class Format(NamedTuple):
    """A kind of file.

    - ``write(policy)``: makes its content. Raises ``ValueError`` where the format cannot express the policy.
    - ``load(content)``: makes its content act, to compare it with the policy.
    - ``usage(signature, path)``: lines of Python that act with the file at ``path``.
    """

    write: Callable[[Policy], bytes]
    load: Callable[[bytes], ActOnBatch]
    usage: Callable[[Signature, Path], list[str]]


def export_policy(policy: Policy, folder: Path, name: str) -> tuple[Path, str]:
    """Write ``folder/policy.<name>``, ``name`` one of `FORMATS`; returns its path and how far it is from the policy.

    Raises:
        ValueError: the format cannot express the policy, the file would not agree with it, or a package is missing; no
            file is left there.
    """
    path = folder / f"policy.{name}"
    path.unlink(missing_ok=True)
    try:
        content = FORMATS[name].write(policy)
        difference = compare(policy, FORMATS[name].load(content))
    except Exception as error:  # ONNX runtimes have exceptions of their own for what they cannot take
        raise ValueError(f"{path} was not written: {error}") from error
    replace_file(path, content)
    return path, difference


def signature(policy: Policy) -> Signature:
    """The function that is exported, and what goes in and comes out."""
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
    """What the policy is and what goes in and comes out, in words."""

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
        begins = f"{array('first', (), bool)}, true where an episode begins, forgets it"
        about["memory"] = f"{' and '.join(parts)}, zeros to begin with; {begins}"
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
    """The name of each leaf of an input, and how it is written in Python."""
    return {_name(root, path): f"{root}{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(tree)}


def has_onnx() -> bool:
    """Whether the packages that ONNX files need are installed."""
    return all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
