"""The dataflow graph as SVG, and as Mermaid text for pages that support it, without external
programs.

The SVG is a sequence diagram: each fragment has a column and each channel a row, in the order of a
tick, so that no text overlaps another text or box. Lengths are in pixels, and y increases
downwards.
"""

from html import escape
from math import copysign
from pathlib import Path
from typing import Any

from jaxrl_fast.runtime.graph import Graph, TrainState
from jaxrl_fast.runtime.placements import Placement
from jaxrl_fast.training.callbacks import Tell
from jaxrl_fast.views.description import (
    ChannelFacts,
    Description,
    describe,
    device_names,
    group_label,
    label_of,
    notes_of,
    run_shapes,
)

FILLS = ("#e9f1fe", "#e9f6ec", "#fdf4e0", "#f2edfb", "#fdecec", "#e4f4f5")
EDGES = ("#9dbbe8", "#97cba6", "#e0c07a", "#bfa9e4", "#e2a6a6", "#8dc6cc")
"""Colors of groups' frames; groups on the same devices share a color."""
SOLID, DASHED, INK, FAINT = "#33475b", "#b5532a", "#1d2733", "#5d6b7a"
PAPER, BORDER, BOX, LIFELINE = "#ffffff", "#dde2e8", "#7c8b9b", "#b4bfca"
DARK = {
    **dict(
        zip(FILLS, ("#16263d", "#14291b", "#2f2611", "#241c38", "#351c1c", "#122c2f"), strict=True)
    ),
    **dict(
        zip(EDGES, ("#3d5f92", "#3a6b4a", "#7d6524", "#5f4a8c", "#874545", "#2f6b72"), strict=True)
    ),
    SOLID: "#b9c9da",
    DASHED: "#ff9d66",
    INK: "#eef2f6",
    FAINT: "#a3afbb",
    PAPER: "#1a2027",
    BORDER: "#2d3742",
    BOX: "#8796a6",
    LIFELINE: "#55616e",
}
"""Colors where the reader prefers dark pages."""
DARK_STYLE = "".join(
    f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in DARK.items()
)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MARGIN, PAD, ROW, ARROW, LOOP = 24.0, 14.0, 46.0, 8.0, 26.0
FRAMES, BOXES = 64.0, 94.0
"""Upper edges."""
MARK = "made by jaxrl_fast"
"""A mark in every file written here, so that only such files are replaced."""
CAPTIONS = (
    "Top to bottom: the order within a tick. A channel goes from the dot of its writer to the arrows of its readers.",
    "Dashed, age 1: read as the last tick (or round) left it.",
)


def to_svg(description: Description, title: str) -> str:
    """Draw a graph as SVG, light or dark as the reader prefers. Channels without readers are
    omitted.

    Args:
        description: Description of the graph.
        title: Title of the picture.

    Returns:
        SVG.
    """
    channels = [channel for channel in description.channels if channel.readers]
    notes = {fragment.name: notes_of(fragment, description) for fragment in description.fragments}
    low = BOXES + 38 + 15 * max(map(len, notes.values()))
    bottom, x, parts, middles = (
        low + ROW * (len(channels) + 1),
        MARGIN,
        list[str](),
        dict[str, float](),
    )
    devices = list(dict.fromkeys(group.devices for group in description.groups))
    for number, group in enumerate(description.groups):
        left, boxes = x, list[str]()
        for fragment in (f for f in description.fragments if f.group == number):
            lines = notes[fragment.name]
            width = max(
                96.0,
                text_width(fragment.name, 15, bold=True),
                *(text_width(line, 11) for line in lines),
            )
            middles[fragment.name] = x + 2 * PAD + width / 2
            boxes.append(_box(fragment.name, lines, x + PAD, width + 2 * PAD, low, bottom))
            x += width + 3 * PAD
        x = max(x, left + text_width(group_label(group), 12, bold=True) + PAD) + PAD
        tint = devices.index(group.devices) % len(FILLS)
        style = f'fill="{FILLS[tint]}" stroke="{EDGES[tint]}"'
        parts.append(_rectangle(left, FRAMES, x - left, bottom - FRAMES, style))
        parts += [
            _text(left + PAD, FRAMES + 19, group_label(group), bold=True, color=FAINT),
            *boxes,
        ]
        x += 2 * PAD
    height = bottom + 20 * len(CAPTIONS) + MARGIN
    ends = [
        x - PAD,
        *(text_width(line, 12) + MARGIN for line in CAPTIONS),
        text_width(title, 17, bold=True) + MARGIN,
    ]
    for row, channel in enumerate(channels):
        text, end = _channel(channel, middles, low + ROW * (row + 1))
        parts.append(text)
        ends.append(end)
    parts += [
        _text(MARGIN, bottom + 24 + 20 * row, line, color=FAINT)
        for row, line in enumerate(CAPTIONS)
    ]
    width = round(max(ends) + MARGIN)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}" '
        f'font-family="{FONT}" font-size="12" fill="{INK}">',
        f"<!-- {MARK} -->\n<title>{escape(title)}</title>",
        f"<style>@media (prefers-color-scheme: dark){{{DARK_STYLE}}}</style>",
        _rectangle(0.5, 0.5, width - 1, height - 1, f'fill="{PAPER}" stroke="{BORDER}"'),
        _text(MARGIN, 42, title, size=17, bold=True),
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Estimate an upper bound of a text's width in common sans-serif fonts.

    Args:
        text: Text.
        size: Font size in pixels.
        bold: Whether the text is bold.

    Returns:
        Width in pixels.
    """
    em = sum(0.42 if c in "iljtfrI.,:;|'() " else 1.0 if c in "mwMW@%→" else 0.66 for c in text)
    return em * size * (1.1 if bold else 1.0)


def to_mermaid(description: Description, title: str) -> str:
    """Draw a graph as a Mermaid flowchart.

    Args:
        description: Description of the graph.
        title: Title of the picture.

    Returns:
        Mermaid text.
    """
    lines = ["---", f'title: "{_plain(title)}"', "---", f"%% {MARK}", "flowchart LR"]
    for number, group in enumerate(description.groups):
        lines.append(f'  subgraph group{number}["{_plain(device_names(group.devices))}"]')
        for fragment in description.fragments:
            if fragment.group == number:
                notes = "".join(
                    f"<br/><small>{_plain(note)}</small>"
                    for note in notes_of(fragment, description)
                )
                lines.append(f'    {_id(fragment.name)}["{_plain(fragment.name)}{notes}"]')
        lines.append("  end")
    for channel in description.channels:
        label = _plain(", ".join(filter(None, (channel.name, label_of(channel)))))
        arrow = "-.->" if channel.age else "-->"
        lines += [
            f'  {_id(channel.writer)} {arrow}|"{label}"| {_id(reader)}'
            for reader in channel.readers
        ]
    return "\n".join(lines) + "\n"


def draw_run(
    path: Path,
    title: str,
    graph: Graph,
    placement: Placement,
    state: TrainState,
    run: Any,
    num_seeds: int,
    tell: Tell,
) -> None:
    """Draw the graph of a run that is about to start, without tracing or compiling, so that some
    sizes are omitted.

    Args:
        path: File to write.
        title: Title of the picture.
        graph: Graph of the run.
        placement: Placement of the graph.
        state: First state.
        run: Compiled chunk.
        num_seeds: Number of seeds.
        tell: Gets a line if the file cannot be written, which does not stop the run.
    """
    description = describe(graph, placement, state, num_seeds, shapes=run_shapes(run))
    try:
        path.write_text(to_svg(description, title), encoding="utf-8")
    except OSError as error:
        tell(f"no {path.name} ({error.strerror or error})")


def _box(
    name: str, notes: tuple[str, ...], x: float, width: float, low: float, bottom: float
) -> str:
    """Draw a fragment's box, down to ``low``, and the vertical line at which its channels begin and
    end.
    """
    middle = x + width / 2
    parts = [f'<path d="M{middle:g},{low:g} V{bottom - PAD:g}" stroke="{LIFELINE}"/>']
    parts.append(
        _rectangle(
            x, BOXES, width, low - BOXES, f'fill="{PAPER}" stroke="{BOX}" stroke-width="1.2"'
        )
    )
    parts.append(_text(x + PAD, BOXES + 24, name, size=15, bold=True))
    parts += [
        _text(x + PAD, BOXES + 41 + 15 * row, note, size=11, color=FAINT)
        for row, note in enumerate(notes)
    ]
    return "\n".join(parts)


def _channel(channel: ChannelFacts, middles: dict[str, float], y: float) -> tuple[str, float]:
    """Draw a channel's row, and return it with the right end of its texts."""
    start, ends, label = (
        middles[channel.writer],
        [middles[name] for name in channel.readers],
        label_of(channel),
    )
    color, dash = (DASHED, ' stroke-dasharray="6 4"') if channel.age else (SOLID, "")
    style = f'fill="none" stroke="{color}" stroke-width="1.6"{dash}'
    said = f"{channel.name}: {channel.writer} → {', '.join(channel.readers)}{f' ({label})' if label else ''}"
    parts = [f"<g><title>{escape(said)}</title>"]
    for reach in {min(start, *ends), max(start, *ends)} - {start}:
        parts.append(
            f'<path d="M{start:g},{y:g} H{reach - copysign(ARROW / 2, reach - start):g}" {style}/>'
        )
    if start in ends:
        parts.append(f'<path d="M{start:g},{y:g} h{LOOP} v12 h{ARROW / 2 - LOOP}" {style}/>')
    for end in ends:
        back, tip = copysign(ARROW, start - end), y if end != start else y + 12
        corners = (
            f"{end:g},{tip:g} {end + back:g},{tip - ARROW / 2:g} {end + back:g},{tip + ARROW / 2:g}"
        )
        parts.append(f'<polygon points="{corners}" fill="{color}"/>')
    parts.append(f'<circle cx="{start:g}" cy="{y:g}" r="3.5" fill="{color}"/>')
    x = min(start, *ends) + PAD + (LOOP if start == min(ends) else 0)
    parts.append(_text(x, y - 6, channel.name, bold=True, color=color))
    parts.append(_text(x, y + 14, label, size=11, color=FAINT))
    return "\n".join([*parts, "</g>"]), x + max(
        text_width(channel.name, 12, bold=True), text_width(label, 11)
    )


def _rectangle(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" {style}/>'


def _text(
    x: float, y: float, text: str, *, size: float = 12, bold: bool = False, color: str = INK
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{weight} fill="{color}">{escape(text)}</text>'


def _id(name: str) -> str:
    """Return a valid name for Mermaid, which reserves words such as ``end``."""
    return "f_" + "".join(c if c.isalnum() else "_" for c in name)


def _plain(text: str) -> str:
    return text.replace('"', "'")
