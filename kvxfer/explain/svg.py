"""The picture as one self-contained SVG.

Owns shapes, colours and words on the canvas. Knows no plan: it draws a `Picture`.
Invariant: no script, no font and nothing from outside; every cell has a tooltip that says
what it is and where it lies on both sides.

Source blocks stand at the left, the target block at the right; each row is a piece of
memory, read from left to right and from top to bottom. One hue is one head, light is an
early token and dark a late one, stripes are a second plane. A frame is one range, and a
curve joins its two ends.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from xml.sax.saxutils import escape

import attrs

from kvxfer.explain.cells import Cell, Key, Panel, memory_order
from kvxfer.explain.picture import Arrow, Picture, Source
from kvxfer.layout.geometry import Plane
from kvxfer.layout.grid import grid_of

ROW_WIDTH = 320
ROW_HEIGHT = 12
LABEL_WIDTH = 176
BETWEEN = 190
MARGIN = 24
GAP_HEIGHT = 13
HEADER = 60
CURVES_MAX = 64
SMALL_CURVES_MAX = 12
"""Curves of ranges that are less than a row, and cross the picture in numbers."""
CELL_WIDTH_MAX = 40.0
LEGEND_HEADS_MAX = 16
LABEL_CHARACTERS_MAX = 32
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.h{font-weight:600;font-size:13px}"
    ".t{font-weight:600;font-size:17px}.s{fill:#666;font-size:10px}"
    ".f{fill:none;stroke:#111}.c{fill:none;stroke-width:1.3;stroke-opacity:.75}"
    ".k{stroke:#fff;stroke-width:.5}.g{fill:#e4e4e4}.w{fill:#a00}"
)


@attrs.frozen
class Spot:
    """Where a cell is drawn."""

    x: float
    y: float
    width: float


@attrs.frozen(kw_only=True)
class Placed:
    """A panel on the canvas."""

    panel: Panel
    x: float
    y: float
    height: float
    width: float
    spots: dict[Key, Spot]
    labels_left: bool


def draw(picture: Picture) -> str:
    """SVG text of the picture."""
    right = MARGIN + LABEL_WIDTH + ROW_WIDTH + BETWEEN
    width = right + ROW_WIDTH + LABEL_WIDTH + MARGIN
    top = 92.0
    placed: list[Placed] = []
    y = top
    for source in picture.sources:
        placed.append(_place(source.panel, MARGIN + LABEL_WIDTH, y, labels_left=True))
        y = placed[-1].y + placed[-1].height + 34
    target = _place(picture.target, right, top, labels_left=False)
    height = max(y, target.y + target.height + 30) + 92
    colours = _Colours(picture)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'width="{width}" height="{height:.0f}" font-family="sans-serif">',
        f"<style>{STYLE}</style>",
        '<defs><pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path d="M0 0V5" stroke="#fff" stroke-width="2.4" '
        'stroke-opacity=".65"/></pattern></defs>',
        f'<rect width="{width}" height="{height:.0f}" fill="#fff"/>',
    ]
    parts += _title(picture)
    for source, place in zip(picture.sources, placed, strict=True):
        heading = f"producer rank {source.edge.producer_rank}"
        parts += _panel(place, heading, source.taken, colours)
    written = frozenset(key for source in picture.sources for key in source.written)
    parts += _panel(target, f"consumer rank {picture.target.shard.rank}", written, colours)
    for source, place in zip(picture.sources, placed, strict=True):
        parts += _ranges(source, place, target, colours)
    parts += _legend(picture, colours, width, height)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Colours:
    """Hue by head, or by plane where there is one head; lightness by token."""

    def __init__(self, picture: Picture) -> None:
        group = picture.group
        self.planes = [plane.name for plane in group.planes]
        self.heads = group.heads_total
        self._start = picture.token_start
        self._tokens = max(1, picture.token_stop - picture.token_start)

    def of(self, head: int, token: int) -> str:
        share = min(1.0, max(0.0, (token - self._start) / self._tokens))
        hue = head / max(self.heads, 1) * 0.92 + 0.58
        red, green, blue = colorsys.hls_to_rgb(hue % 1.0, 0.84 - 0.42 * share, 0.62)
        return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"

    def striped(self, plane: str) -> bool:
        return self.planes.index(plane) % 2 == 1


def _place(panel: Panel, x: float, y: float, *, labels_left: bool) -> Placed:
    spots = {}
    top = y = y + HEADER - 22
    for row in panel.rows:
        if row.gap_bytes:
            y += GAP_HEIGHT
        # As wide as its bytes, all of a row together no wider than the panel.
        scale = min(ROW_WIDTH, CELL_WIDTH_MAX * len(row.cells)) / sum(c.bytes for c in row.cells)
        at = x
        for cell in row.cells:
            spots[cell.key] = Spot(at, y, cell.bytes * scale)
            at += cell.bytes * scale
        y += ROW_HEIGHT
    if panel.rows_hidden:
        y += GAP_HEIGHT
    width = max((spot.x + spot.width - x for spot in spots.values()), default=0.0)
    return Placed(
        panel=panel,
        x=x,
        y=top,
        height=y - top,
        width=width,
        spots=spots,
        labels_left=labels_left,
    )


def _title(picture: Picture) -> list[str]:
    group = picture.group
    layers = len(group.layers)
    shown = ", ".join(picture.layers_shown)
    ranges = sum(source.ranges for source in picture.sources)
    one = "range" if ranges == 1 else "ranges"
    text = f"group {group.name}: where tokens {picture.token_start:,} to "
    text += f"{picture.token_stop - 1:,} go"
    small = f"one block of the consumer, {ranges:,} {one} in all layers; "
    small += f"layers shown: {shown}" + (f" of {layers}" if layers > 1 else "")
    return [
        f'<text class="t" x="{MARGIN}" y="34">{escape(text)}</text>',
        f'<text class="s" x="{MARGIN}" y="54">{escape(small)}</text>',
    ]


def _panel(
    place: Placed,
    heading: str,
    moved: frozenset[Key],
    colours: _Colours,
) -> list[str]:
    panel = place.panel
    numbers = ", ".join(str(block) for block in panel.blocks)
    word = "block" if len(panel.blocks) == 1 else "blocks"
    order = memory_order(panel.shard, panel.group)
    parts = [
        f'<text class="h" x="{place.x}" y="{place.y - 24}">{escape(heading)}, '
        f"{word} {numbers}</text>",
        f'<text class="s" x="{place.x}" y="{place.y - 9}">in memory: {escape(order)}</text>',
    ]
    for row in panel.rows:
        spot = place.spots[row.cells[0].key]
        if row.gap_bytes:
            parts.append(
                f'<text class="s" x="{spot.x}" y="{spot.y - 3}">'
                f"&#8942; {_size(row.gap_bytes)} further on</text>"
            )
        parts.append(_label(place, row.cells, spot.y))
        parts += [_cell(place, cell, cell.key in moved, colours) for cell in row.cells]
    if panel.rows_hidden:
        parts.append(
            f'<text class="s" x="{place.x}" y="{place.y + place.height - 2}">'
            f"&#8942; {panel.rows_hidden} more rows</text>"
        )
    return parts


def _cell(place: Placed, cell: Cell, moved: bool, colours: _Colours) -> str:
    spot = place.spots[cell.key]
    at = f'x="{spot.x:g}" y="{spot.y:g}" width="{spot.width:g}" height="{ROW_HEIGHT}"'
    tip = f"{cell.layer}, head {cell.head}, token {cell.token}, {cell.plane}: "
    tip += f"{cell.bytes} B at {cell.address:#x}"
    tip = f"<title>{escape(tip)}</title>"
    if not moved:
        return f'<rect class="k g" {at}>{tip}</rect>'
    fill = colours.of(cell.head, cell.token)
    shape = f'<rect class="k" {at} fill="{fill}">{tip}</rect>'
    if colours.striped(cell.plane):
        shape += f'<rect {at} fill="url(#stripes)" pointer-events="none"/>'
    return shape


def _label(place: Placed, cells: Sequence[Cell], y: float) -> str:
    """What all cells of a row have in common."""
    first = cells[0]
    words = [layer_label(place.panel.group.layers, first.layer)]
    if all(cell.head == first.head for cell in cells) and place.panel.group.heads_total > 1:
        words.append(f"head {first.head}")
    if all(cell.token == first.token for cell in cells) and len(cells) > 1:
        words.append(_tokens(place.panel, first))
    if all(cell.plane == first.plane for cell in cells) and len(place.panel.planes) > 1:
        words.append(first.plane)
    text = escape(_short(" · ".join(words)))
    if place.labels_left:
        return f'<text class="s" x="{place.x - 8}" y="{y + 10}" text-anchor="end">{text}</text>'
    end = place.x + place.width + 8
    return f'<text class="s" x="{end}" y="{y + 10}">{text}</text>'


def layer_label(names: Sequence[str], name: str) -> str:
    """What tells a layer from its group's others, as 'layer 3' of 'model.layers.3.attn'."""
    rows = [other.split(".") for other in {*names, name}]
    own = name.split(".")
    for end in (0, -1):
        while len(rows) > 1 and min(map(len, rows)) > 1 and len({row[end] for row in rows}) == 1:
            own.pop(end)
            for row in rows:
                row.pop(end)
    text = ".".join(own)
    return f"layer {text}" if text.isdigit() else text


def _tokens(panel: Panel, cell: Cell) -> str:
    tokens = grid_of(panel.shard, panel.group, _plane(panel, cell)).tokens_per_state
    last = cell.token + tokens - 1
    return f"token {last}" if tokens == 1 else f"tokens {cell.token} to {last}"


def _plane(panel: Panel, cell: Cell) -> Plane:
    return next(plane for plane in panel.group.planes if plane.name == cell.plane)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS_MAX else "…" + text[1 - LABEL_CHARACTERS_MAX :]


def _ranges(source: Source, here: Placed, there: Placed, colours: _Colours) -> list[str]:
    parts = []
    weight = 1.6 if len(source.arrows) <= CURVES_MAX else 0.7
    for arrow in source.arrows:
        parts += _frames(here, arrow.source, weight) + _frames(there, arrow.target, weight)
    parts += [_curve(here, there, arrow, colours) for arrow in _with_curve(source)]
    return parts


def _with_curve(source: Source) -> tuple[Arrow, ...]:
    rows = len(source.panel.rows)
    return source.arrows[: CURVES_MAX if len(source.arrows) <= rows else SMALL_CURVES_MAX]


def _frames(place: Placed, cells: Sequence[Cell], weight: float) -> list[str]:
    """The outline of a range: one box where its rows are whole, else one for each row."""
    boxes: list[list[float]] = []
    for cell in cells:
        spot = place.spots[cell.key]
        end = spot.x + spot.width
        if boxes and boxes[-1][3] == spot.y + ROW_HEIGHT:
            boxes[-1][2] = end
        elif boxes and boxes[-1][3] == spot.y and _full(place, boxes[-1]):
            boxes[-1][3] = spot.y + ROW_HEIGHT
            boxes[-1][2] = max(boxes[-1][2], end)
        else:
            boxes.append([spot.x, spot.y, end, spot.y + ROW_HEIGHT])
    return [
        f'<rect class="f" x="{x0:.2f}" y="{y0:.1f}" width="{x1 - x0:.2f}" '
        f'height="{y1 - y0:.1f}" stroke-width="{weight}"/>'
        for x0, y0, x1, y1 in boxes
    ]


def _full(place: Placed, box: list[float]) -> bool:
    return abs(box[0] - place.x) < 0.01


def _curve(here: Placed, there: Placed, arrow: Arrow, colours: _Colours) -> str:
    start, end = here.spots[arrow.source[0].key], there.spots[arrow.target[0].key]
    last_start = here.spots[arrow.source[-1].key]
    last_end = there.spots[arrow.target[-1].key]
    x0, y0 = last_start.x + last_start.width, (start.y + last_start.y + ROW_HEIGHT) / 2
    x1, y1 = end.x, (end.y + last_end.y + ROW_HEIGHT) / 2
    bend = (x1 - x0) * 0.45
    cell = arrow.source[0]
    colour = colours.of(cell.head, 10**12)
    tip = f"range {arrow.number}: {arrow.bytes:,} bytes"
    return (
        f'<path class="c" stroke="{colour}" d="M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} '
        f'{x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"><title>{tip}</title></path>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="2.4" fill="{colour}"/>'
    )


def _legend(picture: Picture, colours: _Colours, width: float, height: float) -> list[str]:
    y = height - 62
    parts = [f'<path d="M{MARGIN} {y - 16}H{width - MARGIN}" stroke="#ddd"/>']
    x = float(MARGIN)
    middle = (picture.token_start + picture.token_stop) // 2
    heads = range(picture.target.group.head_start, picture.target.group.head_stop)
    for head in heads[:LEGEND_HEADS_MAX]:
        fill = colours.of(head, middle)
        parts.append(f'<rect x="{x}" y="{y - 9}" width="11" height="11" fill="{fill}"/>')
        parts.append(f'<text class="s" x="{x + 14}" y="{y}">head {head}</text>')
        x += 58
    if len(heads) > LEGEND_HEADS_MAX:
        more = len(heads) - LEGEND_HEADS_MAX
        parts.append(f'<text class="s" x="{x}" y="{y}">and {more} more</text>')
    words = "light to dark: early to late tokens · grey: not moved by these edges · "
    words += "frame: one range · curve: where it goes"
    if len(colours.planes) > 1:
        stripes = [name for name in colours.planes if colours.striped(name)]
        words += f" · stripes: {', '.join(stripes)}"
    hidden = sum(len(source.arrows) - len(_with_curve(source)) for source in picture.sources)
    if hidden:
        words += f" · curves of {hidden} more ranges are left out"
    parts.append(f'<text class="s" x="{MARGIN}" y="{y + 20}">{escape(words)}</text>')
    for index, text in enumerate(picture.unknown):
        at = y + 36 + 13 * index
        parts.append(f'<text class="w" x="{MARGIN}" y="{at}">not shown: {escape(text)}</text>')
    return parts


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
