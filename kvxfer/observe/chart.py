"""Bars on a time axis, as SVG text.

Owns the drawing: sizes, axis, lanes, hover titles. Knows nothing of transfers.
Invariant: everything is inline and escaped; the text names no address outside
itself, so a page made of it needs no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import attrs

WIDTH = 1200
GUTTER = 132
RIGHT = 16
TOP = 26
LANE = 9
LANE_GAP = 2
ROW_GAP = 8
BAR_MIN = 1.5
"""Bars shorter than this many pixels are drawn so wide, or they would vanish."""


@attrs.frozen
class Bar:
    """One stretch of time, in milliseconds from the chart's origin."""

    start_ms: float
    stop_ms: float
    kind: str
    """Name of a class of the page's style sheet."""
    title: str


@attrs.frozen(kw_only=True)
class Row:
    """One request: a label and its lanes, from the top."""

    label: str
    lanes: Sequence[tuple[str, Sequence[Bar]]]


def draw(rows: Sequence[Row], span_ms: float, description: str) -> str:
    """The chart as one `svg` element; the axis runs from 0 to at least `span_ms`."""
    step = tick_ms(span_ms)
    span = max(step, math.ceil(span_ms / step) * step)
    scale = (WIDTH - GUTTER - RIGHT) / span
    parts: list[str] = []
    y = TOP
    for row in rows:
        parts += _row(row, y, scale)
        y += len(row.lanes) * (LANE + LANE_GAP) + ROW_GAP
    ticks = _ticks(span, step, scale, y)
    head = (
        f'<svg viewBox="0 0 {WIDTH} {y + 4}" role="img" aria-label="{escape(description)}" '
        f'xmlns="http://www.w3.org/2000/svg">'
    )
    return "\n".join([head, *ticks, *parts, "</svg>"])


def tick_ms(span_ms: float) -> float:
    """A round distance of 1, 2 or 5 times a power of ten that gives 6 to 15 ticks."""
    raw = max(span_ms, 1e-3) / 15
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= raw)


def _ticks(span: float, step: float, scale: float, bottom: float) -> list[str]:
    parts = []
    for index in range(round(span / step) + 1):
        x = GUTTER + index * step * scale
        parts.append(
            f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom:.1f}"/>'
        )
        unit = " ms" if index == 0 else ""
        parts.append(f'<text class="tick" x="{x:.1f}" y="{TOP - 11}">{index * step:g}{unit}</text>')
    return parts


def _row(row: Row, y: float, scale: float) -> list[str]:
    middle = y + len(row.lanes) * (LANE + LANE_GAP) / 2
    parts = [f'<text class="label" x="4" y="{middle + 3:.1f}">{escape(row.label)}</text>']
    for name, bars in row.lanes:
        parts.append(
            f'<text class="lane" x="{GUTTER - 8}" y="{y + LANE - 1:.1f}">{escape(name)}</text>'
        )
        parts += [_bar(bar, y, scale) for bar in bars]
        y += LANE + LANE_GAP
    return parts


def _bar(bar: Bar, y: float, scale: float) -> str:
    x = GUTTER + bar.start_ms * scale
    width = max(BAR_MIN, (bar.stop_ms - bar.start_ms) * scale)
    title = f"{bar.title}: {bar.start_ms:.2f} to {bar.stop_ms:.2f} ms"
    return (
        f'<rect class="{escape(bar.kind)}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" '
        f'height="{LANE}" rx="1.5"><title>{escape(title)} '
        f"({bar.stop_ms - bar.start_ms:.2f} ms)</title></rect>"
    )
