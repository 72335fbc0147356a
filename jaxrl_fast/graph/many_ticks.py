"""Many ticks of a graph in one program: what stays the same leaves the loop, and metrics are rows of numbers."""

import jax
import jax.numpy as jnp

from jaxrl_fast.core import Metrics
from jaxrl_fast.graph.dataflow import Graph, TrainState, tick


def ticks(graph: Graph, state: TrainState, length: int) -> tuple[TrainState, Metrics]:
    """``length`` ticks, one after another; metrics ``[length]``."""
    within = {f.name: f.inner for f in graph.fragments if f.inner is not None}
    inside = graph._replace(
        fragments=tuple(f if f.inner is None else f._replace(step=f.inner.step) for f in graph.fragments)
    )
    names: dict[str, list[str]] = {}

    def one(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        private, channels, number = carry
        after, metrics = tick(inside, state._replace(private=private, channels=channels, tick=number))
        names.clear()
        for name, value in metrics.items():
            names.setdefault(str(value.dtype), []).append(name)
        rows = {dtype: jnp.stack([metrics[name] for name in own]) for dtype, own in names.items()}
        return (after.private, after.channels, after.tick), rows

    begun = {name: form.begin(state.private[name]) for name, form in within.items()}
    carry, rows = jax.lax.scan(one, (state.private | begun, state.channels, state.tick), length=length)
    private, channels, number = carry
    ended = {name: form.end(private[name]) for name, form in within.items()}
    columns = {name: rows[dtype][:, i] for dtype, own in names.items() for i, name in enumerate(own)}
    return state._replace(private=private | ended, channels=channels, tick=number), columns
