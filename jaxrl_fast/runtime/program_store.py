"""Compiled programs on disk, which the next start neither traces nor compiles.

The caller provides a store and must include in its keys everything else that a program depends on.
The structure of a state is saved as JSON, without the modules of its environments: NamedTuples of
this package, and of one that brought the run's suite or algorithm, are restored as their types, a
node of any other type, such as a brax state, as `Other` with its children under the same names.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import jax
from jax import export
from jax.stages import Compiled
from jax.tree_util import DictKey, GetAttrKey, PyTreeDef, SequenceKey

from jaxrl_fast.core import PyTree

OWN = ("jaxrl_fast",)
LEAF = "*"


@jax.tree_util.register_pytree_with_keys_class
class Other:
    """A node whose type is not loaded: ``children`` by ``names``, as in `jax.tree_util.keystr`."""

    def __init__(self, names: tuple[str, ...], children: tuple[PyTree, ...]) -> None:
        self.names, self.children = names, children

    def tree_flatten_with_keys(self) -> tuple[tuple, tuple[str, ...]]:
        """Flatten the node for JAX."""
        return tuple(zip(map(GetAttrKey, self.names), self.children, strict=True)), self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Any) -> "Other":
        """Restore the node for JAX."""
        return cls(names, tuple(children))


def to_json(tree: PyTree, packages: Sequence[str] = OWN) -> Any:
    """Describe the structure of a tree, without its leaves.

    Args:
        tree: Tree.
        packages: Packages whose NamedTuples are named.

    Returns:
        Lists and strings for JSON.
    """
    if jax.tree_util.all_leaves([tree]):
        return LEAF
    if tree is None:
        return None
    entries, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    names = [_name(path[0]) for path, _ in entries]
    children = [to_json(child, packages) for _, child in entries]
    kind = type(tree)
    if kind in (tuple, list):
        return [kind.__name__, children]
    if kind is dict:
        return ["dict", names, children]
    if _is_of(kind.__module__, packages) and issubclass(kind, tuple):
        return ["own", f"{kind.__module__}:{kind.__qualname__}", children]
    return ["other", names, children]


def from_json(described: Any, packages: Sequence[str] = OWN) -> PyTree:
    """Build a tree from its description, with True for each leaf.

    Args:
        described: Result of `to_json`.
        packages: Packages that may be imported.

    Returns:
        The tree.

    Raises:
        ValueError: The description is invalid.
    """
    if described == LEAF:
        return True
    if described is None:
        return None
    kind, *names, children = described
    made = tuple(from_json(child, packages) for child in children)
    if kind in ("tuple", "list"):
        return made if kind == "tuple" else list(made)
    if kind == "dict":
        return dict(zip(names[0], made, strict=True))
    if kind == "own":
        return _own(names[0], packages)(*made)
    return Other(tuple(names[0]), made)


def _is_of(module: str, packages: Sequence[str]) -> bool:
    return module.split(".")[0] in packages


def _own(place: str, packages: Sequence[str]) -> type:
    """Return a NamedTuple of some packages by its module and name."""
    module, _, path = place.partition(":")
    kind: Any = import_module(module) if _is_of(module, packages) else None
    for name in path.split("."):
        kind = getattr(kind, name, None)
    if not isinstance(kind, type) or not issubclass(kind, tuple) or not hasattr(kind, "_fields"):
        raise ValueError(f"{place} is not a type of a state")
    return kind


def _name(key: Any) -> str:
    """Return one step of a path, as a checkpoint names it."""
    if isinstance(key, DictKey):
        if not isinstance(key.key, str):
            raise TypeError(f"a dictionary with the key {key.key!r} cannot be described")
        return key.key
    return (
        key.name
        if isinstance(key, GetAttrKey)
        else str(key.idx if isinstance(key, SequenceKey) else key.key)
    )


class Jit(NamedTuple):
    """Arguments of `jax.jit` for one program.

    Attributes:
        name: Name in a store.
        function: Pure function of trees of arrays.
        donate: Numbers of the arguments that it may overwrite.
        in_shardings: Shardings of the arguments, prefixes of their trees; None for any.
        out_shardings: Shardings of the results, a prefix of their tree; None for any.
        options: Options of the compiler.
    """

    name: str
    function: Callable[..., Any]
    donate: tuple[int, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    options: dict[str, str | bool] | None = None

    def jitted(self) -> Any:
        """Return the function by `jax.jit`."""
        declared = {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}
        shardings = {name: value for name, value in declared.items() if value is not None}
        return jax.jit(
            self.function, donate_argnums=self.donate, compiler_options=self.options, **shardings
        )

    def anywhere(self) -> Any:
        """Return the function by `jax.jit`, also for use within another program.

        It is then compiled as a part with the outer program's options: JAX accepts options of the
        outermost program only.
        """
        alone, part = self.jitted(), self._replace(options=None).jitted()

        def call(*arguments: PyTree) -> Any:
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
            return part(*arguments) if traced else alone(*arguments)

        return call


class Store(Protocol):
    """A storage of programs."""

    @property
    def packages(self) -> Sequence[str]:
        """Packages whose NamedTuples are in the states of the programs."""

    def read(self, name: str, /) -> dict[str, Any] | None:
        """Return the program of a name, or None."""

    def write(self, name: str, content: dict[str, Any], /) -> None:
        """Store a program."""

    def refuse(self, name: str, why: str, /) -> None:
        """Report that a program cannot be used or stored, and why."""


FindStore = Callable[[Any], Store | None]
"""(program: options of its graph, placement, ticks of a chunk, number of seeds) -> store of a run's
programs. The function must include everything else that programs depend on.
"""


class Traced(NamedTuple):
    """A program as it was traced, here or in another process.

    Attributes:
        exported: The program on flat arrays.
        arguments: Structure of its arguments.
        results: Structure of its results.
    """

    exported: export.Exported
    arguments: PyTreeDef
    results: PyTreeDef

    @property
    def out_shapes(self) -> PyTree:
        """Shapes and dtypes of the results."""
        return jax.tree.unflatten(self.results, _shapes(self.exported.out_avals))


class Loaded(NamedTuple):
    """A compiled program, called with trees of the traced structure.

    Attributes:
        compiled: The program on flat arrays.
        results: Structure of its results.
        shapes: Shapes of its arguments.
    """

    compiled: Compiled
    results: PyTreeDef
    shapes: tuple[PyTree, ...]

    def __call__(self, *arguments: PyTree) -> Any:
        """Run the program."""
        return jax.tree.unflatten(self.results, self.compiled(*jax.tree.leaves(arguments)))


def trace(jit: Jit, *arguments: PyTree) -> Traced:
    """Trace a program.

    Args:
        jit: Program.
        *arguments: Arguments, or their shapes.

    Returns:
        The traced program.
    """
    exported = export.export(jit.jitted())(*arguments)
    results = exported.out_tree
    return Traced(_flat(exported), jax.tree.structure(arguments), results)


def read(store: Store, jit: Jit) -> Traced | None:
    """Read a stored program.

    Args:
        store: Storage of programs.
        jit: Program.

    Returns:
        The traced program; None if there is none that can be used.
    """
    stored = store.read(jit.name)
    try:
        return None if stored is None else _from_file(stored, store.packages)
    except Exception as error:  # JAX's errors on a program of another version vary
        store.refuse(jit.name, f"{type(error).__name__}: {error}")
        return None


def write(store: Store, jit: Jit, traced: Traced) -> None:
    """Store a program; one that calls a function of this process is not stored.

    Args:
        store: Storage of programs.
        jit: Program.
        traced: The traced program.
    """
    trees = {"arguments": traced.arguments, "results": traced.results}
    try:
        described = {
            name: to_json(jax.tree.unflatten(t, range(t.num_leaves)), store.packages)
            for name, t in trees.items()
        }
        content = {"exported": bytes(traced.exported.serialize()), **described}
    except (
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:  # the state has types without names
        # A program that reads arrays of this process, such as recorded data, cannot be stored by
        # design.
        if "host_callbacks" not in str(error):
            store.refuse(jit.name, f"{type(error).__name__}: {error}")
        return
    store.write(jit.name, content)


def _from_file(stored: dict[str, Any], packages: Sequence[str]) -> Traced:
    arguments, results = (
        jax.tree.structure(from_json(stored[name], packages)) for name in ("arguments", "results")
    )
    exported = export.deserialize(bytearray(stored["exported"]))
    return Traced(exported=exported, arguments=arguments, results=results)


def compile_stored(
    store: Store, jits: Sequence[Jit], trace_all: Callable[[], Iterable[Traced]]
) -> list[Loaded] | None:
    """Compile programs that belong together, from a store if it contains all of them.

    Otherwise they are traced, and then stored. Each is compiled in a separate thread directly after
    its trace. Signals are handled during the compilation.

    Args:
        store: Storage of programs.
        jits: Programs.
        trace_all: Traces the programs one by one.

    Returns:
        The compiled programs; None if they cannot be exported.
    """
    loaded = [read(store, jit) for jit in jits]
    stored = [program for program in loaded if program is not None]
    all_stored = len(stored) == len(jits)
    traced, running = [], []
    pool = ThreadPoolExecutor(len(jits))
    try:
        for jit, program in zip(jits, stored if all_stored else trace_all(), strict=True):
            traced.append(program)
            running.append(pool.submit(compile, jit, program))
    except (
        ValueError,
        NotImplementedError,
    ) as error:  # a callback; other errors occur again in usual compilation
        store.refuse(jits[len(traced)].name, f"{type(error).__name__}: {error}")
        return None
    finally:
        pool.shutdown(wait=False)
    programs = [program.result() for program in running]
    if not all_stored:
        for jit, program in zip(jits, traced, strict=True):
            write(store, jit, program)
    return programs


def compile(jit: Jit, traced: Traced) -> Loaded:
    """Compile a program, with its shardings and options.

    Args:
        jit: Program.
        traced: The traced program.

    Returns:
        The compiled program.
    """
    shapes = jax.tree.unflatten(traced.arguments, _shapes(traced.exported.in_avals))
    outputs = jax.tree.unflatten(traced.results, range(traced.results.num_leaves))
    leaves = [len(jax.tree.leaves(argument)) for argument in shapes]
    starts = [sum(leaves[:number]) for number in range(len(leaves))]
    donated = [
        i for number in jit.donate for i in range(starts[number], starts[number] + leaves[number])
    ]
    come = None if jit.in_shardings is None else tuple(_spread(jit.in_shardings, shapes))
    leave = None if jit.out_shardings is None else list(_spread(jit.out_shardings, outputs))
    flat = Jit(
        name=jit.name,
        function=traced.exported.call,
        donate=tuple(donated),
        in_shardings=come,
        out_shardings=leave,
        options=jit.options,
    )
    return Loaded(flat.jitted().lower(*jax.tree.leaves(shapes)).compile(), traced.results, shapes)


def _flat(exported: export.Exported) -> export.Exported:
    """Return the program called with arrays one by one, which returns a list."""
    in_tree = jax.tree.structure(((0,) * len(exported.in_avals), {}))
    return dataclasses.replace(
        exported,
        in_tree=in_tree,
        out_tree=jax.tree.structure([0] * len(exported.out_avals)),
        _get_vjp=None,
    )


def _shapes(avals: Any) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
    ]


def _spread(prefix: PyTree, tree: PyTree) -> list[Any]:
    """Return an entry of ``prefix`` for each leaf of ``tree``."""

    def entries(entry: Any, part: PyTree) -> list[Any]:
        return [entry] * len(jax.tree.leaves(part))

    spread = jax.tree.map(entries, prefix, tree, is_leaf=lambda node: node is None)
    return [
        entry
        for part in jax.tree.leaves(spread, is_leaf=lambda node: isinstance(node, list))
        for entry in part
    ]
