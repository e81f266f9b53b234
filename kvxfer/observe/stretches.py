"""From the steps of a recording to stretches of time: what each agent waited for or did.

Owns the meaning of each stretch. Knows no drawing. Invariant: every time is one that
was recorded; a stretch that has no recorded end is left out, but for a transfer that
had not ended, whose last wait is drawn up to the end of the recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.record.lines import Header, Recording
from kvxfer.record.steps import ASKED_TO_RECEIVE, ASKED_TO_SEND, TOLD, Step

ENDS: Final = ("landed", "lost", "cancelled", "sent", "unsent")


@attrs.frozen(kw_only=True)
class Stretch:
    """Unix milliseconds; `kind` is a class of the page's style."""

    start_ms: float
    stop_ms: float
    kind: str
    words: str


@attrs.frozen(kw_only=True)
class Lane:
    """One transfer at one agent. Times of `steps` are unix milliseconds."""

    header: Header
    steps: Sequence[Step]
    stretches: Sequence[Stretch]


@attrs.frozen(kw_only=True)
class Transfer:
    """One transfer at every agent that saw it, producers first."""

    transfer_id: TransferId
    lanes: Sequence[Lane]

    @property
    def start_ms(self) -> float:
        return min(lane.steps[0].t_ms for lane in self.lanes)

    @property
    def stop_ms(self) -> float:
        return max(lane.steps[-1].t_ms for lane in self.lanes)

    @property
    def outcome(self) -> str:
        """What each side's engine was told, in a few words."""
        found = {s.step.removeprefix(TOLD) for lane in self.lanes for s in lane.steps}
        return ", ".join(word for word in ("landed", "lost", "sent", "unsent") if word in found)


def transfers_of(recording: Recording) -> list[Transfer]:
    """All transfers of a recording in the order in which they began."""
    by_transfer: dict[TransferId, list[tuple[Header, list[Step]]]] = defaultdict(list)
    end_ms = 0.0
    for track in recording.tracks:
        steps: dict[TransferId, list[Step]] = defaultdict(list)
        for step in track.steps:
            at_ms = track.header.unix_of(step.t_ms)
            end_ms = max(end_ms, at_ms)
            steps[step.transfer_id].append(attrs.evolve(step, t_ms=at_ms))
        for transfer_id, found in steps.items():
            by_transfer[transfer_id].append((track.header, found))
    transfers = [
        Transfer(transfer_id=transfer_id, lanes=_lanes(tracks, end_ms))
        for transfer_id, tracks in by_transfer.items()
    ]
    return sorted(transfers, key=lambda one: one.start_ms)


def _lanes(tracks: Iterable[tuple[Header, list[Step]]], end_ms: float) -> tuple[Lane, ...]:
    lanes = []
    for header, steps in tracks:
        found = (*_sending(steps, end_ms), *_receiving(steps, end_ms))
        lanes.append(Lane(header=header, steps=steps, stretches=found))
    return tuple(sorted(lanes, key=lambda lane: (not _sends(lane.steps), lane.header.name)))


def _sends(steps: Sequence[Step]) -> bool:
    return any(step.step in ("offered", "grant parked", ASKED_TO_SEND) for step in steps)


def _first(steps: Sequence[Step]) -> Mapping[str, Step]:
    """The first step of each name."""
    found: dict[str, Step] = {}
    for step in steps:
        found.setdefault(step.step, step)
    return found


def _moving(steps: Sequence[Step], end: str, words: str) -> list[Stretch]:
    """From the first post to the end of the last part, by attempt."""
    found = []
    for attempt in sorted({step.attempt for step in steps if step.step == end}):
        posted = [s.t_ms for s in steps if s.step == "posted" and s.attempt == attempt]
        ended = [s.t_ms for s in steps if s.step == end and s.attempt == attempt]
        if posted:
            text = f"{words}, {len(ended)} part(s){_moved(steps)}"
            span = {"start_ms": min(posted), "stop_ms": max(ended)}
            found.append(Stretch(kind="write", words=text, **span))
    return found


def _moved(steps: Sequence[Step]) -> str:
    told = next((s for s in steps if s.step.startswith(TOLD) and s.size_bytes), None)
    if told is None:
        return ""
    ranges = f" in {told.descriptors} ranges" if told.descriptors else ""
    return f", {told.size_bytes} bytes{ranges}"


def _sending(steps: Sequence[Step], end_ms: float) -> list[Stretch]:
    """The producer's side of a transfer."""
    if not _sends(steps):
        return []
    first = _first(steps)
    found: list[Stretch] = []
    parked, offered = first.get("grant parked"), first.get("offered")
    matched, ended = first.get("matched"), first.get("sent") or first.get("unsent")
    last = matched or ended
    until_ms = last.t_ms if last is not None else end_ms
    waits = [step for step in (parked, offered) if step is not None]
    if waits:
        begun = min(waits, key=lambda step: step.t_ms)
        words = "registration here, waits for the prefill"
        if begun.step == "offered":
            words = "offered, waits for a registration"
        kind = "granted" if begun is parked else "queued"
        found.append(Stretch(start_ms=begun.t_ms, stop_ms=until_ms, kind=kind, words=words))
    found += _moving(steps, "written", "written")
    if "lent" in first:
        stop_ms = ended.t_ms if ended is not None else end_ms
        found.append(_stretch(first["lent"].t_ms, stop_ms, "granted", "lent, the consumer reads"))
    if ended is not None and ended.step == "unsent":
        words = f"unsent, {ended.reason.name}"
        found.append(Stretch(start_ms=ended.t_ms, stop_ms=ended.t_ms, kind="held", words=words))
    return found


def _receiving(steps: Sequence[Step], end_ms: float) -> list[Stretch]:
    """The consumer's side of a transfer, attempt by attempt."""
    found: list[Stretch] = []
    asked = next((s for s in steps if s.step == ASKED_TO_RECEIVE), None)
    for attempt in sorted({s.attempt for s in steps if s.step == "registered"}):
        mine = [s for s in steps if s.attempt == attempt]
        first = _first(mine)
        begun_ms = first["registered"].t_ms
        if asked is not None:
            begun_ms, asked = asked.t_ms, None
        ended = next((first[name] for name in ENDS if name in first), None)
        stop_ms = ended.t_ms if ended is not None else end_ms
        granted_ms = first["granted"].t_ms if "granted" in first else stop_ms
        found.append(_stretch(begun_ms, granted_ms, "queued", "registered, connects"))
        if "granted" in first:
            words = f"blocks registered, waits for KV{_moved(mine)}"
            found.append(_stretch(granted_ms, stop_ms, "granted", words))
        found += _moving(mine, "read", "read")
        if ended is not None and ended.step != "landed":
            let_go_ms = first["let go"].t_ms if "let go" in first else end_ms
            words = f"{ended.step}, {ended.reason.name}: blocks held until nobody writes"
            found.append(_stretch(stop_ms, let_go_ms, "held", words))
    return found


def _stretch(start_ms: float, stop_ms: float, kind: str, words: str) -> Stretch:
    return Stretch(start_ms=start_ms, stop_ms=stop_ms, kind=kind, words=words)
