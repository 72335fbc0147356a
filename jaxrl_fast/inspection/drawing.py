"""The dataflow graph as a picture: SVG text for people, Mermaid text for pages that know it. Needs no other program."""

from collections.abc import Sequence
from html import escape
from math import copysign
from pathlib import Path
from typing import Any

from jaxrl_fast.graph.dataflow import Graph, TrainState
from jaxrl_fast.graph.placements import Placement
from jaxrl_fast.inspection.description import Description, describe, run_shapes
from jaxrl_fast.inspection.diagram import CAPTION, MARGIN, Diagram, Frame, Point, Rectangle, Wire, arrange
from jaxrl_fast.inspection.labels import device_names, label_of, notes_of
from jaxrl_fast.runs.hooks import Tell

TINTS = (
    ("#e9f1fe", "#9dbbe8"),
    ("#e9f6ec", "#97cba6"),
    ("#fdf4e0", "#e0c07a"),
    ("#f2edfb", "#bfa9e4"),
    ("#fdecec", "#e2a6a6"),
    ("#e4f4f5", "#8dc6cc"),
)
"""Fill and edge of a group's frame."""
SOLID, DASHED, INK, FAINT = "#33475b", "#b5532a", "#1d2733", "#5d6b7a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
CORNER, ARROW = 7.0, 8.0
MARK = "made by jaxrl_fast"
"""A mark in every file that is written here, so that only such files are replaced."""
CAPTIONS = (
    "Left to right: the order within a tick; fragments in one column do not wait for each other.",
    "Dashed, age 1: read as the last tick (or round) left it.",
)


def to_svg(description: Description, title: str) -> str:
    """The graph as SVG on a light ground of its own, so that it reads well in a dark viewer too."""
    diagram = arrange(description, title, CAPTIONS)
    width, height = round(diagram.width), round(diagram.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{FONT}" font-size="12" fill="{INK}">',
        f"<!-- {MARK} -->",
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="#ffffff" stroke="#dde2e8"/>',
        _text((MARGIN, 42), title, size=17, bold=True),
        *(_frame(frame) for frame in diagram.frames),
        *(_wire(wire) for wire in diagram.wires),
        *(_box(box) for box in diagram.boxes),
        *_captions(diagram),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def to_mermaid(description: Description, title: str) -> str:
    """The graph as a Mermaid flowchart."""
    lines = ["---", f'title: "{_plain(title)}"', "---", f"%% {MARK}", "flowchart LR"]
    for number, group in enumerate(description.groups):
        lines.append(f'  subgraph group{number}["{_plain(device_names(group.devices))}"]')
        for fragment in description.fragments:
            if fragment.group == number:
                notes = "".join(f"<br/><small>{_plain(note)}</small>" for note in notes_of(fragment, description))
                lines.append(f'    {_id(fragment.name)}["{_plain(fragment.name)}{notes}"]')
        lines.append("  end")
    for channel in description.channels:
        label = _plain(", ".join(filter(None, (channel.name, label_of(channel)))))
        arrow = "-.->" if channel.age else "-->"
        lines += [f'  {_id(channel.writer)} {arrow}|"{label}"| {_id(reader)}' for reader in channel.readers]
    return "\n".join(lines) + "\n"


def draw_run(
    path: Path, title: str, graph: Graph, placement: Placement, state: TrainState, run: Any, num_seeds: int, tell: Tell
) -> None:
    """Draw the graph of a run that is about to start; traces and compiles nothing, so some sizes are left out.

    A picture that cannot be written does not stop the run: ``tell`` gets a line.
    """
    description = describe(graph, placement, state, num_seeds, shapes=run_shapes(run))
    try:
        path.write_text(to_svg(description, title))
    except OSError as error:
        tell(f"no {path.name} ({error.strerror or error})")


def _frame(frame: Frame) -> str:
    fill, edge = TINTS[frame.tint % len(TINTS)]
    box = f'x="{frame.x:g}" y="{frame.y:g}" width="{frame.width:g}" height="{frame.height:g}"'
    label = _text((frame.x + 12, frame.y + 19), frame.label, bold=True, color=FAINT)
    return f'<rect {box} rx="10" fill="{fill}" stroke="{edge}"/>\n{label}'


def _box(box: Rectangle) -> str:
    size = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    parts = [f'<rect {size} rx="8" fill="#ffffff" stroke="#7c8b9b" stroke-width="1.2"/>']
    parts.append(_text((box.x + 14, box.y + 24), box.fragment.name, size=15, bold=True))
    for row, note in enumerate(box.notes):
        parts.append(_text((box.x + 14, box.y + 41 + 15 * row), note, size=11, color=FAINT))
    parts += [_text((x + 14, y + 4), name, size=11, color=FAINT) for name, (x, y) in box.inputs]
    return "\n".join(parts)


def _wire(wire: Wire) -> str:
    color = DASHED if wire.channel.age else SOLID
    dash = ' stroke-dasharray="6 4"' if wire.channel.age else ""
    x, y = wire.at
    readers = ", ".join(wire.channel.readers)
    note = f" ({wire.note})" if wire.note else ""
    parts = [f"<g><title>{escape(f'{wire.label}: {wire.channel.writer} → {readers}{note}')}</title>"]
    for path in wire.paths:
        parts.append(f'<path d="{_rounded(path)}" fill="none" stroke="{color}" stroke-width="1.6"{dash}/>')
        tip_x, tip_y = path[-1]
        corners = ((tip_x, tip_y), (tip_x - ARROW, tip_y - ARROW / 2), (tip_x - ARROW, tip_y + ARROW / 2))
        parts.append(f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}" fill="{color}"/>')
    parts += [
        _text((x, y - 5), wire.label, bold=True, color=color),
        _text((x, y + 13), wire.note, size=11, color=FAINT),
    ]
    return "\n".join([*parts, "</g>"])


def _captions(diagram: Diagram) -> list[str]:
    start = diagram.height - CAPTION * len(diagram.captions)
    return [_text((MARGIN, start + CAPTION * row), line, color=FAINT) for row, line in enumerate(diagram.captions)]


def _rounded(path: Sequence[Point]) -> str:
    """Straight lines with round corners; the end stops short of the arrow's tip."""
    (x, y), last = path[0], (path[-1][0] - ARROW / 2, path[-1][1])
    points = [*path[:-1], last]
    text = f"M{x:g},{y:g}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before), _towards(corner, after)
        text += f" L{start[0]:g},{start[1]:g} Q{corner[0]:g},{corner[1]:g} {end[0]:g},{end[1]:g}"
    return f"{text} L{last[0]:g},{last[1]:g}"


def _towards(corner: Point, other: Point) -> Point:
    """The point where a round corner begins, on a horizontal or vertical line."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    step = min(CORNER, (abs(dx) + abs(dy)) / 2)
    return corner[0] + (copysign(step, dx) if dx else 0.0), corner[1] + (copysign(step, dy) if dy else 0.0)


def _text(at: Point, text: str, *, size: float = 12, bold: bool = False, color: str = INK) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{at[0]:g}" y="{at[1]:g}" font-size="{size:g}"{weight} fill="{color}">{escape(text)}</text>'


def _id(name: str) -> str:
    """A name that Mermaid takes: its own words, such as ``end``, cannot be one."""
    return "f_" + "".join(c if c.isalnum() else "_" for c in name)


def _plain(text: str) -> str:
    return text.replace('"', "'")
