"""What a graph must obey before it can run."""

from jaxrl_fast.graph.dataflow import Graph, GraphError, age_of, stages


def check(graph: Graph) -> None:
    """Refuse a graph that has no meaning.

    Raises:
        GraphError: two fragments of one name, two writers of a channel, a read that nothing writes or published before
            the first tick, a delay that belongs to no edge or is not 0 or 1, a cycle of age 0, or a read at age 0 of
            what is written in rounds.
    """
    names = [f.name for f in graph.fragments]
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"two fragments are named '{name}'")
    writer = _writers(graph)
    edges = {(f.name, channel) for f in graph.fragments for channel in f.reads}
    for reader, channel in sorted(edges):
        if channel not in writer:
            raise GraphError(f"fragment '{reader}' reads channel '{channel}', which no fragment writes")
    for edge, age in graph.delays.items():
        if edge not in edges:
            raise GraphError(f"delay for {edge}: fragment '{edge[0]}' does not read channel '{edge[1]}'")
        if age not in (0, 1):
            raise GraphError(f"delay for {edge} is {age}: an edge's age is 0 or 1")
    _check_order(graph, writer)
    if any(f.rounds > 1 for f in graph.fragments):
        _check_rounds(graph)


def _writers(graph: Graph) -> dict[str, str]:
    writer: dict[str, str] = {}
    for fragment in graph.fragments:
        for channel in fragment.writes:
            if channel in writer:
                raise GraphError(
                    f"channel '{channel}' has two writers, fragments '{writer[channel]}' and '{fragment.name}'"
                )
            writer[channel] = fragment.name
    return writer


def _check_order(graph: Graph, writer: dict[str, str]) -> None:
    """Every read must find a value: written earlier in the tick, or at age 1 in the tick before or published."""
    published = {f.name for f in graph.fragments if f.publish is not None}
    seen: set[str] = set()
    for fragment in graph.fragments:
        for channel in fragment.reads:
            late = writer[channel] not in seen
            if late and age_of(graph, fragment.name, channel) == 0:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' at age 0, but its writer "
                    f"'{writer[channel]}' is scheduled later or at the same place: a cycle of age 0"
                )
            if late and writer[channel] not in published:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' in the first tick, before its writer "
                    f"'{writer[channel]}' has stepped: give that fragment a publish"
                )
        seen.add(fragment.name)


def _check_rounds(graph: Graph) -> None:
    """What a cycle writes changes from round to round: only its own members may see that."""
    cycle_of = {f.name: stage for stage in stages(graph.fragments) for f in stage if f.rounds > 1}
    writer = {c: f.name for f in graph.fragments for c in f.writes}
    for fragment in graph.fragments:
        for channel in fragment.reads:
            cycle = cycle_of.get(writer[channel], ())
            if cycle and fragment not in cycle and age_of(graph, fragment.name, channel) == 0:
                raise GraphError(
                    f"fragment '{fragment.name}' reads channel '{channel}' at age 0, which '{writer[channel]}' writes "
                    f"{cycle[0].rounds} times a tick: give the edge age 1"
                )
