"""Training with each network's parameters in one vector, for small networks or devices that start
kernels singly.

An optimizer's step is then a few kernels instead of several for each layer, and the networks of an
ensemble are one batched product. Results differ only by the order of sums in norms. For large
networks on a CPU the copies cost more than they save.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_fast.core import PyTree
from jaxrl_fast.learning.acting import BoundAgent
from jaxrl_fast.learning.algorithm import Learned, Part
from jaxrl_fast.learning.updates import (
    Learning,
    OnNan,
    PartState,
    Trainer,
    Updated,
    apply_gradients,
    statistics_of,
    trainer,
)
from jaxrl_fast.networks.network import UNCONSTRAINED
from jaxrl_fast.numerics.optimizers import NamedOptimizer

SMALL_NETWORKS = 2**15
"""Largest number of parameters of all networks for which every device joins each network into one
vector.

In small networks it takes longer to start an operation than to compute it, and an optimizer has
several operations for each layer. Joining makes PPO 1.1 to 1.2 times as fast on 4 CartPoles, 1.05
times on 64, and no faster with 34,691 parameters (measured by hand; 2 cores, AMD EPYC of family
26).
"""


class Packing(NamedTuple):
    """Layout of a tree of float32 arrays in a vector.

    Attributes:
        structure: Structure of the whole tree.
        member: Structure of one network; of the whole tree without an ensemble.
        shapes: Shapes of a network's arrays, in order.
        size: Number of networks of an ensemble; 0 without one.
    """

    structure: Any
    member: Any
    shapes: tuple[tuple[int, ...], ...]
    size: int


def packing_of(params: PyTree, size: int = 0) -> Packing:
    """Return the packing of a network's params.

    Args:
        params: Params; of an ensemble, a tuple of equal trees.
        size: Number of networks of an ensemble; 0 without one.

    Returns:
        The packing.
    """
    member = params[0] if size else params
    leaves, structure = jax.tree.flatten(member)
    return Packing(
        jax.tree.structure(params), structure, tuple(leaf.shape for leaf in leaves), size
    )


def pack(packing: Packing, tree: PyTree) -> jax.Array:
    """Join a tree into a vector, array after array; of an ensemble, each array of all networks
    together.

    Args:
        packing: Layout.
        tree: Params or gradients; of an ensemble, a tuple or stacked.

    Returns:
        The vector.
    """
    members = tree if packing.size else (tree,)
    if packing.size and not isinstance(tree, tuple):
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])
    rows = zip(*(jax.tree.leaves(member) for member in members), strict=True)
    return jnp.concatenate([leaf.reshape(-1) for row in rows for leaf in row])


def stacked(packing: Packing, vector: jax.Array) -> PyTree:
    """Split a vector into arrays.

    Args:
        packing: Layout.
        vector: The vector.

    Returns:
        The arrays; of an ensemble, with its networks as first axis.
    """
    ahead = (packing.size,) if packing.size else ()
    arrays, start = [], 0
    for shape in packing.shapes:
        length = prod(ahead) * prod(shape)
        arrays.append(vector[start : start + length].reshape(*ahead, *shape))
        start += length
    return jax.tree.unflatten(packing.member, arrays)


def unpack(packing: Packing, vector: jax.Array) -> PyTree:
    """Split a vector into the tree that was packed.

    Args:
        packing: Layout.
        vector: The vector.

    Returns:
        The tree; of an ensemble, a tuple.
    """
    tree = stacked(packing, vector)
    if not packing.size:
        return tree
    return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(packing.size))


def can_join(part: Part, state: PartState) -> bool:
    """Return whether a part's parameters can be one vector.

    All must be float32, without batch norms and constraints, with an optimizer that treats each
    number separately. Agents must not have separate networks, whose norms a vector would mix.

    Args:
        part: Part.
        state: Its state, or the shapes.

    Returns:
        True if the parameters can be joined.
    """
    params = state.learned.params
    if not all(isinstance(make, NamedOptimizer) for make in part.optimizers.values()):
        return False
    if any(
        network.separate or network.project is not UNCONSTRAINED
        for network in part.networks.values()
    ):
        return False
    alike = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    return alike and not jax.tree.leaves([statistics_of(tree) for tree in params.values()])


def make_learning(
    agent: BoundAgent,
    *,
    start: int = 0,
    nan: OnNan = "stop",
    turns: bool = False,
    joined: bool = False,
) -> Learning:
    """Return the settings of an agent's learners, with flat parameters for small networks.

    Args:
        agent: Algorithm bound to its environments.
        start: First tick with updates.
        nan: Action on NaN or infinity.
        turns: Whether a server steps along one learner's gradients after another.
        joined: Whether to join networks of any size, and the loop's counters, for devices that
            start kernels singly.

    Returns:
        The settings.
    """
    learning = Learning(agent, start, nan, turns)
    if joined:
        return learning._replace(make_trainer=flat_trainer, scan=scan_joined)
    return (
        learning._replace(make_trainer=flat_trainer)
        if agent.products.params <= SMALL_NETWORKS
        else learning
    )


def flat_trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """Return the trainer of a part as vectors, or in its own form if `can_join` is false.

    Args:
        part: Part.
        like: State of the part, or the shapes.
        drop_nonfinite: Whether to skip updates with NaN or infinity.

    Returns:
        The trainer.
    """
    return (joined_trainer if can_join(part, like) else trainer)(part, like, drop_nonfinite)


def joined_trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """Return the trainer of a part as vectors: one for each network's params, target and optimizer
    moment.

    A network that is a single number stays a number.

    Args:
        part: Part.
        like: State of the part outside of the updates, or the shapes.
        drop_nonfinite: Whether to skip updates with NaN or infinity.

    Returns:
        The trainer.
    """
    trees = {
        name: tree for name, tree in like.learned.params.items() if not isinstance(tree, jax.Array)
    }
    packings = {
        name: packing_of(tree, part.networks[name].ensemble_size) for name, tree in trees.items()
    }
    shown = unpack if any(network.recurrent for network in part.networks.values()) else stacked

    def over(
        function: Callable[[Packing, Any], Any], by_network: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            name: function(packings[name], x) if name in packings else x
            for name, x in by_network.items()
        }

    def of_learned(function: Callable[[Packing, Any], Any], state: PartState) -> Learned:
        return Learned(
            params=over(function, state.learned.params),
            target=over(function, state.learned.target),
        )

    def begin(state: PartState) -> PartState:
        return PartState(of_learned(pack, state), over(pack_moments, state.opt_state))

    def end(state: PartState) -> PartState:
        likes = {name: (state.opt_state[name], like.opt_state[name]) for name in packings}
        return PartState(published(state), {**state.opt_state, **over(unpack_moments, likes)})

    def published(state: PartState) -> Learned:
        return of_learned(unpack, state)

    def seen(state: PartState) -> Learned:
        return of_learned(shown, state)

    def update(
        state: PartState,
        peers: dict[str, Learned],
        batch: Any,
        key: jax.Array,
        hyper: Any,
        updates: jax.Array,
    ) -> Updated:
        result = part.gradients(seen(state), peers, batch, key, hyper)
        result = result._replace(grads=over(pack, result.grads))
        return apply_gradients(part, state, result, hyper, updates, drop_nonfinite=drop_nonfinite)

    return Trainer(begin, end, seen, published, update)


def pack_moments(packing: Packing, opt_state: PyTree) -> PyTree:
    """Replace each params-like tree of an optimizer's state by a vector.

    Args:
        packing: Layout of the params.
        opt_state: State of the optimizer.

    Returns:
        The packed state.
    """
    is_like = _is_like(packing)
    return jax.tree.map(lambda x: pack(packing, x) if is_like(x) else x, opt_state, is_leaf=is_like)


def unpack_moments(packing: Packing, moments: tuple[PyTree, PyTree]) -> PyTree:
    """Restore an optimizer's state that was packed.

    Args:
        packing: Layout of the params.
        moments: The packed state, and a state with the structure to restore.

    Returns:
        The unpacked state.
    """
    is_like = _is_like(packing)
    packed, like = moments
    places, structure = jax.tree.flatten(like, is_leaf=is_like)
    values = zip(places, jax.tree.leaves(packed), strict=True)
    return jax.tree.unflatten(
        structure, [unpack(packing, x) if is_like(place) else x for place, x in values]
    )


def scan_joined(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], state: PyTree, xs: PyTree
) -> tuple:
    """Scan like `jax.lax.scan`, unrolled eight times, with the state's scalars joined into one
    vector per dtype.

    Args:
        step: Step of the scan.
        state: Initial state.
        xs: Inputs of the steps.

    Returns:
        Final state and stacked outputs.
    """
    leaves, structure = jax.tree.flatten(state)
    places: dict[str, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if leaf.ndim == 0:
            places.setdefault(str(leaf.dtype), []).append(i)

    def gather(state: PyTree) -> tuple[dict, list]:
        leaves = jax.tree.leaves(state)
        vectors = {
            dtype: jnp.stack([leaves[i] for i in indices]) for dtype, indices in places.items()
        }
        return vectors, [leaf for leaf in leaves if leaf.ndim]

    def scatter(vectors: dict, arrays: list) -> PyTree:
        numbers = {
            i: vectors[dtype][n] for dtype, indices in places.items() for n, i in enumerate(indices)
        }
        others = iter(arrays)
        return jax.tree.unflatten(
            structure, [numbers[i] if i in numbers else next(others) for i in range(len(leaves))]
        )

    def gathered(carry: tuple[dict, list], x: PyTree) -> tuple[tuple[dict, list], PyTree]:
        state, outputs = step(scatter(*carry), x)
        return gather(state), outputs

    end, outputs = jax.lax.scan(gathered, gather(state), xs, unroll=8)
    return scatter(*end), outputs


def _is_like(packing: Packing) -> Callable[[Any], bool]:
    return lambda x: jax.tree.structure(x) == packing.structure
