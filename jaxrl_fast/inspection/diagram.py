"""Where everything of a dataflow picture goes: a layered layout in which no text meets another text or a line.

Columns are the order within a tick. Between two of them lie first the labels of what leaves the left one, then
*tracks*, the only places for vertical lines, one for each channel. What does not go to the next column takes a *lane*,
a horizontal line of its own below all boxes (age 1) or above them (age 0). Lengths are in pixels, y grows downwards.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_fast.inspection.description import ChannelFacts, Description, FragmentFacts
from jaxrl_fast.inspection.labels import group_label, label_of, notes_of

ROW = 36
"""Distance of two ports. Boxes lie on multiples of it and inputs half of it beside outputs, so that the ends of two
channels never lie on one line."""
PORTS = 44
"""Distance of the first input from a box's upper edge; a row more where there are notes."""
TRACK, LANE, PAD, STUB = 12, 14, 16, 14
FRAME_HEADER, MARGIN, TITLE, CAPTION = 30, 24, 36, 20

Point = tuple[float, float]


class Rectangle(NamedTuple):
    """The box of a ``fragment``, with ``notes`` below its name; ``x`` and ``y`` are its upper left corner, and
    ``width`` and ``height`` its size. ``inputs``: the channels that arrive, each with its point."""

    fragment: FragmentFacts
    notes: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float
    inputs: tuple[tuple[str, Point], ...]


class Frame(NamedTuple):
    """The frame of a group, with its ``label``; ``x``, ``y``, ``width`` and ``height`` as of `Rectangle`. ``tint``: the
    number of its color, the same for groups on the same devices."""

    label: str
    tint: int
    x: float
    y: float
    width: float
    height: float


class Wire(NamedTuple):
    """The lines of a ``channel``: one of ``paths``, from corner to corner, for each reader. ``label`` begins above the
    line at the point ``at``, ``note`` below it."""

    channel: ChannelFacts
    label: str
    note: str
    at: Point
    paths: tuple[tuple[Point, ...], ...]


class Diagram(NamedTuple):
    """A picture: everything with its place. ``width`` and ``height`` of all, ``title``, ``captions`` (lines below), a
    frame for each group (``frames``), a box for each fragment (``boxes``) and lines for each channel (``wires``)."""

    width: float
    height: float
    title: str
    captions: tuple[str, ...]
    frames: tuple[Frame, ...]
    boxes: tuple[Rectangle, ...]
    wires: tuple[Wire, ...]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """At least the width of a text in any common sans-serif face."""
    em = sum(0.42 if c in "iljtfrI.,:;|'() " else 1.0 if c in "mwMW@%→" else 0.66 for c in text)
    return em * size * (1.1 if bold else 1.0)


def columns_of(description: Description) -> dict[str, int]:
    """How many fragments must step one after the other before each one can, within a tick."""
    column = {fragment.name: 0 for fragment in description.fragments}
    for fragment in description.fragments:  # in schedule order: writers first
        for channel in description.channels:
            if channel.age == 0 and fragment.name in channel.readers:
                column[fragment.name] = max(column[fragment.name], column[channel.writer] + 1)
    return column


def shelves_of(description: Description, column: dict[str, int]) -> list[int]:
    """Each group's shelf, from the top: groups share one where they stand side by side."""
    taken: list[list[range]] = []
    shelf = [0] * len(description.groups)
    spans = [_span([column[name] for name in group.fragments]) for group in description.groups]
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start, i)):
        free = (
            n
            for n, held in enumerate(taken)
            if all(spans[index].stop <= other.start or other.stop <= spans[index].start for other in held)
        )
        shelf[index] = next(free, len(taken))
        if shelf[index] == len(taken):
            taken.append([])
        taken[shelf[index]].append(spans[index])
    return shelf


def _span(columns: Sequence[int]) -> range:
    return range(min(columns), max(columns) + 1)


def arrange(description: Description, title: str, captions: Sequence[str]) -> Diagram:
    """Give everything its place; channels that nobody reads are left out."""
    column = columns_of(description)
    nets = [channel._replace(leaves=None) for channel in description.channels if channel.readers]
    lanes = _lanes(nets, column)
    ports = {f.name: _ports(f.name, nets, lanes) for f in description.fragments}
    heights = {f.name: _height(f, description, *map(len, ports[f.name])) for f in description.fragments}
    above = sum(net.age == 0 for net in lanes)
    first = MARGIN + TITLE + above * LANE
    tops, bottom = _stack(description, column, heights, first)
    lane_y = _lane_heights(lanes, first - above * LANE, bottom + LANE)

    ys = _port_heights(description, ports, tops)
    tracks = _tracks(nets, column, lane_y, ys)
    widths = _column_widths(description, column, ports)
    left, track_x, end = _across(widths, nets, column, tracks)

    boxes = tuple(
        Rectangle(
            f,
            notes_of(f, description),
            left[column[f.name]],
            tops[f.name],
            widths[column[f.name]],
            heights[f.name],
            tuple((net.name, (left[column[f.name]], ys[f.name, net])) for net in ports[f.name][0]),
        )
        for f in description.fragments
    )
    box_of = {box.fragment.name: box for box in boxes}
    wires = tuple(_wire(net, column, box_of, ys, track_x, lane_y) for net in nets)
    below = bottom + LANE * (1 + len(lanes) - above)
    lines = [text_width(title, 17, bold=True), *(text_width(line, 12) for line in captions)]
    return Diagram(
        max(end, *lines) + 2 * MARGIN,
        below + CAPTION * len(captions) + MARGIN,
        title,
        tuple(captions),
        _frames(description, box_of),
        boxes,
        wires,
    )


def _lanes(nets: list[ChannelFacts], column: dict[str, int]) -> dict[ChannelFacts, int]:
    """The lanes of those that need one, numbered from the boxes outwards: the shortest lies next to them."""
    needed = [net for net in nets if any(column[reader] != column[net.writer] + 1 for reader in net.readers)]
    spans = {net: abs(column[net.writer] + 1 - min(column[r] for r in net.readers)) for net in needed}
    lanes = {}
    for age in (0, 1):
        for number, net in enumerate(sorted((n for n in needed if n.age == age), key=lambda n: spans[n])):
            lanes[net] = number
    return lanes


def _lane_heights(lanes: dict[ChannelFacts, int], top: float, bottom: float) -> dict[ChannelFacts, float]:
    above = sum(net.age == 0 for net in lanes)
    return {
        net: bottom + LANE * number if net.age else top + LANE * (above - 1 - number) for net, number in lanes.items()
    }


def _ports(
    name: str, nets: list[ChannelFacts], lanes: dict[ChannelFacts, int]
) -> tuple[list[ChannelFacts], list[ChannelFacts]]:
    """A fragment's inputs and outputs from top to bottom: lines that come from or go below, the outermost first, are
    under all others, so that they do not cross."""

    def height(net: ChannelFacts) -> tuple:
        return net.age, -lanes[net] if net in lanes else 0

    inputs = sorted((net for net in nets if name in net.readers), key=height)
    return inputs, sorted((net for net in nets if net.writer == name), key=height)


def _ports_from(fragment: FragmentFacts, description: Description) -> float:
    return PORTS + (ROW if notes_of(fragment, description) else 0)


def _height(fragment: FragmentFacts, description: Description, inputs: int, outputs: int) -> float:
    needed = max(ROW * (inputs - 1), ROW * (outputs - 1) + ROW / 2, 0)
    return _ports_from(fragment, description) + needed + ROW / 2


def _stack(
    description: Description, column: dict[str, int], heights: dict[str, float], first: float
) -> tuple[dict[str, float], float]:
    """The upper edge of every box, and the lower end of all frames."""
    shelf = shelves_of(description, column)
    tops: dict[str, float] = {}
    bottom = first
    for number in range(max(shelf) + 1):
        start = _up_to_row(bottom + FRAME_HEADER + (PAD if number else 0))
        free = dict.fromkeys(column.values(), start)
        for fragment in description.fragments:
            if shelf[fragment.group] == number:
                at = column[fragment.name]
                tops[fragment.name] = free[at]
                bottom = max(bottom, free[at] + heights[fragment.name] + PAD)
                free[at] = _up_to_row(free[at] + heights[fragment.name] + PAD)
    return tops, bottom


def _up_to_row(y: float) -> float:
    return -(-y // ROW) * ROW


def _port_heights(
    description: Description, ports: dict[str, tuple[list[ChannelFacts], list[ChannelFacts]]], tops: dict[str, float]
) -> dict[tuple[str, ChannelFacts], float]:
    """The height of every end of a channel, by fragment and channel; none writes and reads the same one at one end."""
    ys: dict[tuple[str, ChannelFacts], float] = {}
    for fragment in description.fragments:
        start = tops[fragment.name] + _ports_from(fragment, description)
        inputs, outputs = ports[fragment.name]
        ys |= {(fragment.name, net): start + ROW * i for i, net in enumerate(inputs)}
        ys |= {(f"{fragment.name} out", net): start + ROW * (i + 0.5) for i, net in enumerate(outputs)}
    return ys


def _tracks(
    nets: list[ChannelFacts],
    column: dict[str, int],
    lane_y: dict[ChannelFacts, float],
    ys: dict[tuple[str, ChannelFacts], float],
) -> dict[int, list[ChannelFacts]]:
    """The channels with a vertical line in the gap before each column, from left to right, with few crossings."""
    sides: dict[int, dict[ChannelFacts, tuple[list[float], list[float]]]] = {}
    for net in nets:
        leaves = column[net.writer] + 1
        gaps = {leaves, *(column[reader] for reader in net.readers)}
        for gap in gaps:
            left = [ys[f"{net.writer} out", net]] if gap == leaves else []
            right = [ys[reader, net] for reader in net.readers if column[reader] == gap]
            left += [lane_y[net]] if min(gaps) < gap else []
            right += [lane_y[net]] if max(gaps) > gap else []
            sides.setdefault(gap, {})[net] = left, right
    return {gap: _untangle(ends) for gap, ends in sides.items()}


def _untangle(ends: dict[ChannelFacts, tuple[list[float], list[float]]]) -> list[ChannelFacts]:
    """Swap neighbors while that saves a crossing of one's vertical line with the other's horizontal ones."""

    def crossings(a: ChannelFacts, b: ChannelFacts) -> int:
        def through(net: ChannelFacts, heights: list[float]) -> int:
            own = ends[net][0] + ends[net][1]
            return sum(min(own) < y < max(own) for y in heights)

        return through(a, ends[b][0]) + through(b, ends[a][1])

    order = list(ends)
    for _ in order:
        for i in range(len(order) - 1):
            a, b = order[i : i + 2]
            if crossings(b, a) < crossings(a, b):
                order[i : i + 2] = b, a
    return order


def _column_widths(
    description: Description, column: dict[str, int], ports: dict[str, tuple[list[ChannelFacts], list[ChannelFacts]]]
) -> list[float]:
    widths = [120.0] * (max(column.values()) + 1)
    for fragment in description.fragments:
        texts = [text_width(fragment.name, 15, bold=True)]
        texts += [text_width(note, 11) for note in notes_of(fragment, description)]
        texts += [text_width(net.name, 11) + PAD for net in ports[fragment.name][0]]
        at = column[fragment.name]
        widths[at] = max(widths[at], *(width + 2 * STUB for width in texts))
    for group in description.groups:
        at = min(column[name] for name in group.fragments)
        widths[at] = max(widths[at], text_width(group_label(group), 12, bold=True))
    return widths


def _across(
    widths: list[float], nets: list[ChannelFacts], column: dict[str, int], tracks: dict[int, list[ChannelFacts]]
) -> tuple[list[float], dict[tuple[int, ChannelFacts], float], float]:
    """The left edge of every column, the x of every track, and where the last one ends."""
    left, track_x, x = [], {}, float(MARGIN)
    for gap in range(len(widths) + 1):
        labels = [
            max(text_width(net.name, 12, bold=True), text_width(label_of(net), 11)) + 2 * STUB
            for net in nets
            if column[net.writer] + 1 == gap
        ]
        x += (PAD if gap else 0) + max(labels, default=0)
        for net in tracks.get(gap, ()):
            track_x[gap, net] = x
            x += TRACK
        if gap < len(widths):
            x += PAD + STUB
            left.append(x)
            x += widths[gap]
    return left, track_x, x


def _wire(
    net: ChannelFacts,
    column: dict[str, int],
    box_of: dict[str, Rectangle],
    ys: dict[tuple[str, ChannelFacts], float],
    track_x: dict[tuple[int, ChannelFacts], float],
    lane_y: dict[ChannelFacts, float],
) -> Wire:
    leaves, box = column[net.writer] + 1, box_of[net.writer]
    start = box.x + box.width, ys[f"{net.writer} out", net]
    x = track_x[leaves, net]
    paths = []
    for reader in net.readers:
        end = box_of[reader].x, ys[reader, net]
        path = [start, (x, start[1])]
        if column[reader] != leaves:
            there = track_x[column[reader], net]
            path += [(x, lane_y[net]), (there, lane_y[net]), (there, end[1])]
        else:
            path.append((x, end[1]))
        paths.append((*path, end))
    return Wire(net, net.name, label_of(net), (start[0] + PAD + STUB / 2, start[1]), tuple(paths))


def _frames(description: Description, box_of: dict[str, Rectangle]) -> tuple[Frame, ...]:
    kinds = list(dict.fromkeys(group.devices for group in description.groups))
    frames = []
    for group in description.groups:
        own = [box_of[name] for name in group.fragments]
        x, y = min(box.x for box in own) - PAD, min(box.y for box in own) - FRAME_HEADER
        right, low = max(box.x + box.width for box in own) + PAD, max(box.y + box.height for box in own) + PAD
        frames.append(Frame(group_label(group), kinds.index(group.devices), x, y, right - x, low - y))
    return tuple(frames)
