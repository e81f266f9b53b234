"""The timelines of a run as one self-contained HTML page.

Owns what is shown and in which words. Takes all times from the records of the
engines and of their agents; draws nothing that was not recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

import attrs

from kvxfer.demo.reports import Finished, Prefilled
from kvxfer.demo.result import DemoResult
from kvxfer.demo.served import Served
from kvxfer.demo.workload import Mode
from kvxfer.observe.chart import Bar, Row, draw
from kvxfer.observe.page import legend, page

HEADINGS = {
    Mode.PUSH: "Push: D registers its blocks when the request arrives",
    Mode.PULL: "Pull: D registers when P has finished, and reads",
    Mode.STREAM: "Stream: push, and each chunk leaves when it is computed",
}
LEGEND = (
    ("queued", "P: waiting for its turn"),
    ("prefill", "P: prefill"),
    ("write", "one-sided writes of P or reads of D, from first post to last completion"),
    ("granted", "D: blocks registered, KV not there yet"),
    ("ready", "D: KV there, first token not yet"),
    ("decode", "D: decode, from first to last token"),
)


@attrs.frozen(kw_only=True)
class Moments:
    """One request's recorded times, in milliseconds of the host's clock."""

    served: Served
    prefilled: Prefilled
    finished: Finished
    posted_ms: float
    moved_ms: float
    """Of the one-sided operations: the first post, the last end."""


def write_timeline(result: DemoResult, path: Path) -> None:
    """Write the page. OSError where the file cannot be written."""
    path.write_text(demo_page(result), encoding="utf-8")


def demo_page(result: DemoResult) -> str:
    """The page as text. Requests that failed are left out and counted."""
    moments = {mode: collect(result, mode) for mode in result.served}
    overall = max((_end_ms(found) for found in moments.values()), default=1.0)
    zoom = max((_handoff_ms(found) for found in moments.values()), default=1.0)
    body = [_head(result)]
    for mode, found in moments.items():
        rows = [_row(*pair) for pair in zip(found, _origins_ms(found), strict=True)]
        body.append(_section(result, mode, len(found)))
        body.append(draw(rows, overall, HEADINGS[mode]))
        body.append("<p class='note'>The same requests, each from the end of its prefill:</p>")
        closing = [_handoff_row(one) for one in found]
        body.append(draw(closing, zoom, f"{HEADINGS[mode]}, from the end of the prefill"))
    return page("kvxfer demo: timelines", body)


def collect(result: DemoResult, mode: Mode) -> list[Moments]:
    """The answered requests of a mode, in order of arrival, with their operations."""
    posted: dict[str, list[float]] = defaultdict(list)
    moved: dict[str, list[float]] = defaultdict(list)
    for step in (*result.prefill_state.steps, *result.decode_state.steps):
        if step.step == "posted":
            posted[step.transfer_id].append(step.t_ms)
        elif step.step in ("written", "read"):
            moved[step.transfer_id].append(step.t_ms)
    return [
        Moments(
            served=one,
            prefilled=one.prefilled,
            finished=one.finished,
            posted_ms=min(posted[one.transfer_id]),
            moved_ms=max(moved[one.transfer_id]),
        )
        for one in result.served[mode]
        if one.prefilled and one.finished and posted[one.transfer_id] and moved[one.transfer_id]
    ]


def _origins_ms(found: Sequence[Moments]) -> list[float]:
    """The chart's zero for each request: pauses in which the other order ran are cut out."""
    origins: list[float] = []
    origin = busy_until = found[0].served.arrival_ms if found else 0.0
    for one in found:
        origin += max(0.0, one.served.arrival_ms - busy_until)
        busy_until = max(busy_until, one.finished.last_token_ms)
        origins.append(origin)
    return origins


def _end_ms(found: Sequence[Moments]) -> float:
    pairs = zip(found, _origins_ms(found), strict=True)
    return max((one.finished.last_token_ms - origin for one, origin in pairs), default=0.0)


def _handoff_ms(found: Sequence[Moments]) -> float:
    spans = (one.finished.first_token_ms - one.prefilled.stop_ms for one in found)
    return max(spans, default=0.0)


def _row(one: Moments, origin: float) -> Row:
    p, d = one.prefilled, one.finished
    name = f"request {one.served.index}"

    def bar(start: float, stop: float, kind: str, words: str) -> Bar:
        return Bar(start - origin, stop - origin, kind, f"{name}, {words}")

    here = (
        bar(one.served.arrival_ms, p.start_ms, "queued", "queued at P"),
        bar(p.start_ms, p.stop_ms, "prefill", "prefill"),
    )
    there = (
        bar(d.admitted_ms, d.landed_ms, "granted", "registered, waiting for KV"),
        bar(d.landed_ms, d.first_token_ms, "ready", "landed, first token next"),
        bar(d.first_token_ms, d.last_token_ms, "decode", "decode"),
    )
    lanes = _lanes(one, bar(one.posted_ms, one.moved_ms, "write", _moves(one)), here, there)
    return Row(label=f"{name} · {len(one.served.prompt.tokens)}", lanes=lanes)


def _handoff_row(one: Moments) -> Row:
    origin, d = one.prefilled.stop_ms, one.finished
    name = f"request {one.served.index}"

    def bar(start: float, stop: float, kind: str, words: str) -> Bar:
        # What began before the prefill ended is cut at the origin.
        start = max(0.0, start - origin)
        return Bar(start, max(start, stop - origin), kind, f"{name}, {words}")

    there = (
        bar(d.admitted_ms, d.landed_ms, "granted", "registered, waiting for KV"),
        bar(d.landed_ms, d.first_token_ms, "ready", "landed, first token next"),
    )
    lanes = _lanes(one, bar(one.posted_ms, one.moved_ms, "write", _moves(one)), (), there)
    return Row(label=name, lanes=lanes)


def _moves(one: Moments) -> str:
    return "read" if one.served.mode is Mode.PULL else "write"


def _lanes(
    one: Moments, moves: Bar, here: tuple[Bar, ...], there: tuple[Bar, ...]
) -> tuple[tuple[str, tuple[Bar, ...]], ...]:
    """P's and D's lane; the operations are in that of whoever posts them."""
    if one.served.mode is Mode.PULL:
        return (("P", here), ("D", (*there, moves)))
    return (("P", (*here, moves)), ("D", there))


def _head(result: DemoResult) -> str:
    options = result.options
    where = "two processes" if result.two_processes else "one process"
    return (
        "<h1>kvxfer demo: when the KV cache moved</h1>"
        f"<p>{options.requests} requests, {options.concurrency} in the system at a time, over "
        f"{escape(options.transport)} in {where}; P on {options.prefill_ranks}, D on "
        f"{options.decode_ranks} rank(s). Each request has a lane for P and one for D; the number "
        "after its name is its prompt length in tokens. The two orders took turns; the pauses in "
        "which the other one ran are cut out. Hover over a bar for its times.</p>" + legend(LEGEND)
    )


def _section(result: DemoResult, mode: Mode, shown: int) -> str:
    def figure(name: str) -> str:
        value = result.percentile(mode, name, 50)
        return "none" if value is None else f"{value:.1f} ms"

    left_out = len(result.served[mode]) - shown
    missing = f" {left_out} not served and left out." if left_out else ""
    return (
        f"<h2>{escape(HEADINGS[mode])}</h2><p class='note'>Time to first token, median: "
        f"{figure('ttft_ms')}. From the end of the prefill to the KV at D, median: "
        f"{figure('handoff_ms')}.{missing}</p>"
    )
