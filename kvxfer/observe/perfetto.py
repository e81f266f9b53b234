"""A recording as a trace-event file, which ui.perfetto.dev and chrome://tracing open.

Owns the mapping: an agent is a process, a transfer is a thread of it, a stretch is
a slice, a step is an instant with all that was recorded, and arrows lead from D's
grant to P and from P's last write to D's landing. Times are microseconds from the
first step of the recording. The format is Google's 'Trace Event Format'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kvxfer.core.ids import Reason
from kvxfer.observe.stretches import Lane, Transfer
from kvxfer.record.steps import Step
from kvxfer.record.transcript import part_words

Event = dict[str, Any]

ARROWS: Final = (
    ("granted", "grant parked", "grant"),
    ("written", "landed", "done"),
)
"""From a step at one agent to a step at another: the last of the first kind before the other."""


def perfetto_json(transfers: Sequence[Transfer]) -> str:
    """The whole file."""
    events = list(perfetto_events(transfers))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def perfetto_events(transfers: Sequence[Transfer]) -> Iterator[Event]:
    """All events; processes are numbered by agent, threads by transfer, from 1."""
    origin = min((one.start_ms for one in transfers), default=0.0)
    agents: dict[tuple[str, int], int] = {}
    arrow = 0
    for number, one in enumerate(transfers, 1):
        placed: list[tuple[Lane, int]] = []
        for lane in one.lanes:
            key = (lane.header.name, lane.header.incarnation)
            if key not in agents:
                agents[key] = len(agents) + 1
                yield _name("process_name", agents[key], 0, f"{key[0]} ({key[1]:016x})")
            pid = agents[key]
            placed.append((lane, pid))
            yield _name("thread_name", pid, number, one.transfer_id)
            yield from _lane(lane, pid, number, origin)
        for start, stop, name in _arrows(placed):
            arrow += 1
            base = {"name": name, "cat": "message", "id": arrow, "tid": number}
            yield {**base, "ph": "s", "pid": start[1], "ts": _us(start[0], origin)}
            yield {**base, "ph": "f", "bp": "e", "pid": stop[1], "ts": _us(stop[0], origin)}


def _lane(lane: Lane, pid: int, tid: int, origin: float) -> Iterator[Event]:
    base: Event = {"pid": pid, "tid": tid, "cat": "kvxfer"}
    for stretch in lane.stretches:
        yield {
            **base,
            "ph": "X",
            "name": stretch.words.split(",")[0],
            "ts": _us(stretch.start_ms, origin),
            "dur": round((stretch.stop_ms - stretch.start_ms) * 1e3, 1),
            "args": {"what": stretch.words},
        }
    for step in lane.steps:
        instant = {"ph": "i", "s": "t", "name": step.step, "ts": _us(step.t_ms, origin)}
        yield {**base, **instant, "args": _args(step)}


def _arrows(
    placed: Sequence[tuple[Lane, int]],
) -> Iterator[tuple[tuple[float, int], tuple[float, int], str]]:
    for first, second, name in ARROWS:
        starts = [(s.t_ms, pid) for lane, pid in placed for s in lane.steps if s.step == first]
        stops = [(s.t_ms, pid) for lane, pid in placed for s in lane.steps if s.step == second]
        for stop in stops:
            before = [start for start in starts if start[0] <= stop[0] and start[1] != stop[1]]
            if before:
                yield max(before), stop, name


def _args(step: Step) -> dict[str, Any]:
    args: dict[str, Any] = {"attempt": step.attempt}
    if step.peer is not None:
        args["peer"] = f"{step.peer.engine_id}/{step.peer.rank}"
    if step.part is not None:
        args["part"] = part_words(step.part)
    if step.reason is not Reason.NONE:
        args["reason"] = step.reason.name
    for name in ("tag", "detail", "size_bytes", "descriptors", "traceparent"):
        if value := getattr(step, name):
            args[name] = value
    return args


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(t_ms: float, origin: float) -> float:
    return round((t_ms - origin) * 1e3, 1)
