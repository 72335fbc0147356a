"""What the processes of one run do together: read and place arrays that are spread over them, and agree.

In a single process all of this is what it would be without. What is *collective* must be called by every process, in
the same order. How processes find one another and end is in `jaxrl_fast.training.cluster`.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrl_fast.core import PyTree

PLACEMENT = "data_parallel"
"""The one placement that spans processes."""


def is_first() -> bool:
    """Whether this is process 0, the only one that writes files and prints."""
    return jax.process_index() == 0


def is_alone() -> bool:
    """Whether there is no other process."""
    return jax.process_count() == 1


def devices(count: int | None) -> list[jax.Device]:
    """The first ``count`` devices (None: all), of each process the same number.

    Raises:
        ValueError: there are not so many, or the processes cannot share them evenly.
    """
    available = jax.devices()
    if count is not None and not 1 <= count <= len(available):
        raise ValueError(f"devices={count}: JAX has {len(available)} here, write a number from 1 to {len(available)}")
    share = share_of(count or len(available), jax.process_count())
    by_process = ([d for d in available if d.process_index == p] for p in range(jax.process_count()))
    return [device for own in by_process for device in own[:share]]


def share_of(devices: int, num_processes: int) -> int:
    """How many of all ``devices`` each process has.

    Raises:
        ValueError: they cannot be shared evenly.
    """
    if devices % num_processes:
        raise ValueError(
            f"devices={devices} cannot be shared evenly by {num_processes} processes: write a multiple of "
            f"{num_processes}, for all of them together"
        )
    return devices // num_processes


def check_placement(name: str, groups: Sequence[Sequence[jax.Device]]) -> None:
    """Refuse a placement, given the devices of its groups, that is not one program over all processes.

    Raises:
        ValueError: naming it.
    """
    if is_alone():
        return
    everyone = set(range(jax.process_count()))
    if len(groups) != 1 or {device.process_index for device in groups[0]} != everyone:
        raise ValueError(refusal(name, len(everyone)))


def refusal(placement: str, num_processes: int) -> str:
    """What is said of a placement that does not span processes."""
    return (
        f"placement={placement} stays within one process: write placement={PLACEMENT}, which spans the "
        f"{num_processes} of this run"
    )


def join() -> None:
    """Wait until all processes have come here. Collective. What gloo prints the first time is hidden:
    `describe_devices` says the same."""
    if is_alone():
        return
    sys.stdout.flush()
    shown, hidden = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(hidden, 1)
        highest(0)
    finally:
        os.dup2(shown, 1)
        os.close(shown)
        os.close(hidden)


def require_one(what: str, num_processes: int) -> None:
    """Refuse ``what``, which works in a single process only, in a run of several.

    Raises:
        ValueError: there are several.
    """
    if num_processes > 1:
        raise ValueError(f"{what} works in a single process only, not in {num_processes}: write distributed=off there")


def any_process(flag: bool) -> bool:
    """Whether ``flag`` is set in any process. Collective."""
    return bool(highest(int(flag)))


def highest(number: int) -> int:
    """The highest of the processes' numbers. Collective."""
    return number if is_alone() else int(multihost_utils.process_allgather(np.int32(number)).max())


def from_first(tree: PyTree) -> PyTree:
    """Process 0's arrays, in every process, whose own have the same shapes. Collective."""
    return tree if is_alone() else multihost_utils.broadcast_one_to_all(tree)


def to_host(tree: PyTree) -> PyTree:
    """Arrays, wherever they lie, as NumPy's in every process. Collective."""
    if is_alone():
        return jax.device_get(tree)

    def whole(leaf: Any) -> np.ndarray:
        here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
        return np.asarray(leaf) if here else multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, tree)


def put(tree: PyTree, shardings: PyTree) -> PyTree:
    """Arrays that every process has whole, laid out over the devices of all; ``shardings`` is a prefix of ``tree``."""
    if is_alone():
        return jax.device_put(tree, shardings)
    return jax.tree.map(lambda sharding, part: jax.tree.map(lambda x: _put(x, sharding), part), shardings, tree)


def decide(make: Callable[[], str]) -> str:
    """What ``make`` gives in process 0, which alone calls it; its ValueError is raised in all. Collective."""
    if is_alone():
        return make()
    value = error = ""
    if is_first():
        try:
            value = make()
        except ValueError as found:
            error = str(found)
    value, error = json.loads(_texts(json.dumps([value, error]))[0])
    if error:
        raise ValueError(error)
    return value


def check_agreement(settings: Mapping[str, Any]) -> None:
    """Refuse processes that were started with different settings. Collective.

    Raises:
        ValueError: in every process, naming the first setting that differs.
    """
    if is_alone():
        return
    everyone = [json.loads(text) for text in _texts(json.dumps({**settings, "JAX": jax.__version__}, default=str))]
    for process, theirs in enumerate(everyone):
        for key in {**everyone[0], **theirs}:
            if theirs.get(key) != everyone[0].get(key):
                raise ValueError(
                    f"process {process} was started with {key}={theirs.get(key)}, process 0 with "
                    f"{key}={everyone[0].get(key)}: start all of them with the same command"
                )


def _put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _texts(text: str) -> list[str]:
    """The text of every process."""
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(own.size))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: own.size] = own
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]
