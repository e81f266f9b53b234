"""Recordings: the steps of agents as lines of JSON.

Owns the format, version 1. A recording is a header line for one agent, then a line
for each of its steps; a header governs the lines up to the next one, so recordings
are joined by putting one behind the other. Invariants: what is written is read back
equal, times to a tenth of a microsecond; a file that was cut off within its last line
is read up to there; any other damage is named with its line.

    {"kvxfer_recording": 1, "engine": "P", "rank": 0, "role": "producer",
     "incarnation": 7, "monotonic_ms": 1.5, "unix_ms": 1.7e12}
    {"t_ms": 2.25, "transfer": "t1", "attempt": 1, "step": "granted", "peer": ["P", 0]}

`monotonic_ms` and `unix_ms` are the same moment on two clocks: by them recordings of
several hosts come onto one axis, as well as their wall clocks agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from kvxfer.core.ids import Part, PeerKey, Reason, Role, TransferId
from kvxfer.errors import LocalFault
from kvxfer.record.steps import Step

VERSION: Final = 1
MARK: Final = "kvxfer_recording"
_PLAIN: Final = ("tag", "detail", "size_bytes", "descriptors", "traceparent")


class BadRecording(LocalFault):
    """A file is no recording, or one of another version."""


@attrs.frozen(kw_only=True)
class Header:
    """Whose steps follow."""

    engine_id: str
    rank: int
    role: Role
    incarnation: int
    monotonic_ms: float
    unix_ms: float

    @property
    def name(self) -> str:
        return f"{self.engine_id}/{self.rank}"

    def unix_of(self, t_ms: float) -> float:
        """A time of a step as milliseconds since 1970."""
        return t_ms - self.monotonic_ms + self.unix_ms


@attrs.define
class AgentTrack:
    """One life of one agent."""

    header: Header
    steps: list[Step] = attrs.field(factory=list)
    dropped: int = 0
    """Steps that the recorder had to leave out."""


@attrs.define
class Recording:
    """All agents that were recorded."""

    tracks: list[AgentTrack] = attrs.field(factory=list)

    @property
    def dropped(self) -> int:
        return sum(track.dropped for track in self.tracks)


def header_line(header: Header) -> str:
    """The first line of an agent, with its end."""
    return _line(
        {
            MARK: VERSION,
            "engine": header.engine_id,
            "rank": header.rank,
            "role": header.role.name.lower(),
            "incarnation": header.incarnation,
            "monotonic_ms": header.monotonic_ms,
            "unix_ms": header.unix_ms,
        }
    )


def step_line(step: Step) -> str:
    """One step, with the line's end. What says nothing is left out."""
    fields: dict[str, Any] = {
        "t_ms": round(step.t_ms, 4),
        "transfer": step.transfer_id,
        "attempt": step.attempt,
        "step": step.step,
    }
    if step.peer is not None:
        fields["peer"] = [step.peer.engine_id, step.peer.rank]
    if step.part is not None:
        fields["part"] = list(attrs.astuple(step.part))
    if step.reason is not Reason.NONE:
        fields["reason"] = step.reason.name
    fields.update((name, value) for name in _PLAIN if (value := getattr(step, name)))
    return _line(fields)


def dropped_line(count: int) -> str:
    """Says that `count` steps were left out here."""
    return _line({"dropped": count})


def read_recordings(paths: Iterable[Path]) -> Recording:
    """Read and join recordings. BadRecording names file and line; OSError as it comes."""
    recording = Recording()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as lines:
            recording.tracks += _tracks(str(path), lines)
    return recording


def _tracks(name: str, lines: Iterable[str]) -> Iterator[AgentTrack]:
    track: AgentTrack | None = None
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if MARK in fields:
                if track is not None:
                    yield track
                track = AgentTrack(_header(fields))
            elif track is None:
                raise ValueError("no header before it")
            elif "dropped" in fields:
                track.dropped += int(fields["dropped"])
            else:
                track.steps.append(_step(fields))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if track is not None and not line.endswith("\n"):
                break  # The writer was stopped within its last line.
            raise BadRecording(f"{name}, line {number}: {error!r}") from error
    if track is None:
        raise BadRecording(f"{name}: empty, where a recording begins with a header")
    yield track


def _header(fields: Mapping[str, Any]) -> Header:
    if fields[MARK] != VERSION:
        raise ValueError(f"version {fields[MARK]!r} of the format, this is version {VERSION}")
    return Header(
        engine_id=str(fields["engine"]),
        rank=int(fields["rank"]),
        role=Role[fields["role"].upper()],
        incarnation=int(fields["incarnation"]),
        monotonic_ms=float(fields["monotonic_ms"]),
        unix_ms=float(fields["unix_ms"]),
    )


def _step(fields: Mapping[str, Any]) -> Step:
    peer, part = fields.get("peer"), fields.get("part")
    return Step(
        t_ms=float(fields["t_ms"]),
        transfer_id=TransferId(str(fields["transfer"])),
        attempt=int(fields["attempt"]),
        step=str(fields["step"]),
        peer=PeerKey(str(peer[0]), int(peer[1])) if peer is not None else None,
        part=Part(*(int(number) for number in part)) if part is not None else None,
        reason=Reason[fields["reason"]] if "reason" in fields else Reason.NONE,
        tag=str(fields.get("tag", "")),
        detail=str(fields.get("detail", "")),
        size_bytes=int(fields.get("size_bytes", 0)),
        descriptors=int(fields.get("descriptors", 0)),
        traceparent=str(fields.get("traceparent", "")),
    )


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"
