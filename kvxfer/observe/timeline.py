"""A recording as one self-contained HTML page.

Owns what is shown and in which words. Draws nothing that was not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from kvxfer.observe.chart import Bar, Row, draw
from kvxfer.observe.page import legend, page
from kvxfer.observe.stretches import Lane, Transfer

LEGEND: Final = (
    ("queued", "P: offered, nobody came yet; D: connecting"),
    ("granted", "blocks of D registered, KV not there yet"),
    ("write", "one-sided writes of P or reads of D, from first post to last completion"),
    ("held", "failed; at D: blocks held until nobody can write"),
)


def timeline_page(transfers: Sequence[Transfer], *, left_out: int = 0, dropped: int = 0) -> str:
    """The page as text.

    `left_out`: transfers that are in the recording and not in `transfers`; `dropped`:
    steps that the recorders had to leave out. Both are said on the page.
    """
    origin = min((one.start_ms for one in transfers), default=0.0)
    span = max((one.stop_ms for one in transfers), default=1.0) - origin
    longest = max((one.stop_ms - one.start_ms for one in transfers), default=1.0)
    body = [
        "<h1>kvxfer: recorded transfers</h1>",
        f"<p>{len(transfers)} transfers{_notes(left_out, dropped)}. Each has a lane for every "
        "agent that saw it. Hover over a bar for its times.</p>",
        legend(LEGEND),
        "<h2>On one clock</h2>",
        draw([_row(one, origin) for one in transfers], span, "transfers on one clock"),
        "<h2>Each from its first step</h2>",
        draw([_row(one, one.start_ms) for one in transfers], longest, "each from its first step"),
    ]
    return page("kvxfer: recorded transfers", body)


def _notes(left_out: int, dropped: int) -> str:
    notes = ""
    if left_out:
        notes += f", {left_out} more are in the recording and not drawn"
    if dropped:
        notes += f"; {escape(str(dropped))} steps were not recorded, since they came too fast"
    return notes


def _row(one: Transfer, origin: float) -> Row:
    name = one.transfer_id if len(one.transfer_id) <= 20 else f"…{one.transfer_id[-19:]}"
    lanes = [(lane.header.name[-12:], _bars(one, lane, origin)) for lane in one.lanes]
    return Row(label=name, lanes=lanes)


def _bars(one: Transfer, lane: Lane, origin: float) -> list[Bar]:
    return [
        Bar(
            stretch.start_ms - origin,
            stretch.stop_ms - origin,
            stretch.kind,
            f"{one.transfer_id} at {lane.header.name}: {stretch.words}",
        )
        for stretch in lane.stretches
    ]
