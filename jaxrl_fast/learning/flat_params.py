"""A part in training with each network's numbers joined into one vector, where kernels are small or started singly.

An optimizer's step is then a few kernels instead of several for each layer, and the networks of an ensemble are one
batched product. What is computed is the same but for the order of sums in norms. For large networks on a CPU the copies
cost more than they save.
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
from jaxrl_fast.numerics.optimizers import NamedOptimizer

ANY = Part._field_defaults["project"]
"""The constraint on params that is none."""
SMALL_NETWORKS = 2**15
"""Where networks have so few numbers together, each is one vector on every device: to begin an operation takes longer
than to compute it, and an optimizer has several for each layer. PPO makes 1.1 to 1.2 times as many steps so on 4
CartPoles, 1.05 times on 64, and no more with 34,691 numbers (by hand; 2 cores, AMD EPYC of family 26)."""


class Packing(NamedTuple):
    """How a tree of float32 arrays lies in a vector.

    - ``structure``: of the whole tree.
    - ``member``: of one network; the whole tree where it is not an ensemble.
    - ``shapes``: of a network's arrays, in order.
    - ``size``: networks of an ensemble, 0 where it is none.
    """

    structure: Any
    member: Any
    shapes: tuple[tuple[int, ...], ...]
    size: int


def packing_of(params: PyTree, size: int = 0) -> Packing:
    """The packing of a network's params; those of an ensemble of ``size`` are a tuple of equal trees."""
    member = params[0] if size else params
    leaves, structure = jax.tree.flatten(member)
    return Packing(jax.tree.structure(params), structure, tuple(leaf.shape for leaf in leaves), size)


def pack(packing: Packing, tree: PyTree) -> jax.Array:
    """A tree as a vector: array after array, of an ensemble each array of all networks together."""
    members = tree if packing.size else (tree,)
    if packing.size and not isinstance(tree, tuple):
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])
    rows = zip(*(jax.tree.leaves(member) for member in members), strict=True)
    return jnp.concatenate([leaf.reshape(-1) for row in rows for leaf in row])


def stacked(packing: Packing, vector: jax.Array) -> PyTree:
    """The arrays of a vector; those of an ensemble with its networks as the first axis."""
    ahead = (packing.size,) if packing.size else ()
    arrays, start = [], 0
    for shape in packing.shapes:
        length = prod(ahead) * prod(shape)
        arrays.append(vector[start : start + length].reshape(*ahead, *shape))
        start += length
    return jax.tree.unflatten(packing.member, arrays)


def unpack(packing: Packing, vector: jax.Array) -> PyTree:
    """The tree that was packed."""
    tree = stacked(packing, vector)
    if not packing.size:
        return tree
    return tuple(jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(packing.size))


def can_join(part: Part, state: PartState) -> bool:
    """Whether a part's numbers are all alike: float32, without batch norms and without a constraint, and each by itself
    in optimizers that are known for that; and no agents have networks of their own, whose norms a vector would mix."""
    params = state.learned.params
    if not all(isinstance(make, NamedOptimizer) for make in part.optimizers.values()):
        return False
    if any(network.separate for network in part.networks.values()):
        return False
    alike = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    return part.project is ANY and alike and not jax.tree.leaves([statistics_of(tree) for tree in params.values()])


def make_learning(
    agent: BoundAgent, *, start: int = 0, nan: OnNan = "stop", turns: bool = False, joined: bool = False
) -> Learning:
    """What the learners of ``agent`` need, with flat parameters where networks are small; ``joined``: everywhere, and
    the loop's counters too, for devices that start kernels one by one."""
    learning = Learning(agent, start, nan, turns)
    if joined:
        return learning._replace(make_trainer=flat_trainer, scan=scan_joined)
    return learning._replace(make_trainer=flat_trainer) if agent.products.params <= SMALL_NETWORKS else learning


def flat_trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """A part as vectors where that is possible, else in its own form."""
    return (joined_trainer if can_join(part, like) else trainer)(part, like, drop_nonfinite)


def joined_trainer(part: Part, like: PartState, drop_nonfinite: bool) -> Trainer:
    """A part as vectors: its state has one for each network's params, target and each moment of the optimizer.

    ``like``: the part's state as it is outside of the updates. A network that is a single number stays one.
    """
    trees = {name: tree for name, tree in like.learned.params.items() if not isinstance(tree, jax.Array)}
    packings = {name: packing_of(tree, part.networks[name].ensemble_size) for name, tree in trees.items()}
    shown = unpack if any(network.recurrent for network in part.networks.values()) else stacked

    def over(function: Callable[[Packing, Any], Any], by_network: Mapping[str, Any]) -> dict[str, Any]:
        return {name: function(packings[name], x) if name in packings else x for name, x in by_network.items()}

    def begin(state: PartState) -> PartState:
        learned = Learned(*(over(pack, networks) for networks in state.learned))
        return PartState(learned, over(pack_moments, state.opt_state))

    def end(state: PartState) -> PartState:
        likes = {name: (state.opt_state[name], like.opt_state[name]) for name in packings}
        return PartState(published(state), {**state.opt_state, **over(unpack_moments, likes)})

    def published(state: PartState) -> Learned:
        return Learned(*(over(unpack, networks) for networks in state.learned))

    def seen(state: PartState) -> Learned:
        return Learned(*(over(shown, networks) for networks in state.learned))

    def update(
        state: PartState, peers: dict[str, Learned], batch: Any, key: jax.Array, hyper: Any, updates: jax.Array
    ) -> Updated:
        found = part.gradients(seen(state), peers, batch, key, hyper)
        found = found._replace(grads=over(pack, found.grads))
        return apply_gradients(part, state, found, hyper, updates, drop_nonfinite=drop_nonfinite)

    return Trainer(begin, end, seen, published, update)


def pack_moments(packing: Packing, opt_state: PyTree) -> PyTree:
    """An optimizer's state with a vector wherever it has the params' structure."""
    is_like = _is_like(packing)
    return jax.tree.map(lambda x: pack(packing, x) if is_like(x) else x, opt_state, is_leaf=is_like)


def unpack_moments(packing: Packing, moments: tuple[PyTree, PyTree]) -> PyTree:
    """The optimizer's state that was packed: ``moments`` are the packed one, and one that has its structure."""
    is_like = _is_like(packing)
    packed, like = moments
    places, structure = jax.tree.flatten(like, is_leaf=is_like)
    values = zip(places, jax.tree.leaves(packed), strict=True)
    return jax.tree.unflatten(structure, [unpack(packing, x) if is_like(place) else x for place, x in values])


def scan_joined(step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], state: PyTree, xs: PyTree) -> tuple:
    """As `jax.lax.scan`, eight steps at a time; single numbers of the state, such as counts of updates, are a vector
    for each type between steps."""
    leaves, structure = jax.tree.flatten(state)
    places: dict[str, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if leaf.ndim == 0:
            places.setdefault(str(leaf.dtype), []).append(i)

    def gather(state: PyTree) -> tuple[dict, list]:
        leaves = jax.tree.leaves(state)
        vectors = {dtype: jnp.stack([leaves[i] for i in own]) for dtype, own in places.items()}
        return vectors, [leaf for leaf in leaves if leaf.ndim]

    def scatter(vectors: dict, arrays: list) -> PyTree:
        numbers = {i: vectors[dtype][n] for dtype, own in places.items() for n, i in enumerate(own)}
        others = iter(arrays)
        return jax.tree.unflatten(structure, [numbers[i] if i in numbers else next(others) for i in range(len(leaves))])

    def gathered(carry: tuple[dict, list], x: PyTree) -> tuple[tuple[dict, list], PyTree]:
        state, outputs = step(scatter(*carry), x)
        return gather(state), outputs

    end, outputs = jax.lax.scan(gathered, gather(state), xs, unroll=8)
    return scatter(*end), outputs


def _is_like(packing: Packing) -> Callable[[Any], bool]:
    return lambda x: jax.tree.structure(x) == packing.structure
