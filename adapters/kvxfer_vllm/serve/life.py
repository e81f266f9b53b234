"""`status` and `down`: what became of a set, and its end.

Owns the judging of records against living processes. Starts nothing. Invariant: `bring_down`
ends what the records name and this machine runs, nothing else, and ends in bounded time.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import attrs

from kvxfer_vllm.pd.client import Client
from kvxfer_vllm.pd.marks import end_marked
from kvxfer_vllm.serve.records import Record, RunFolder
from kvxfer_vllm.serve.setfile import Member, PdSet, Router


class State(Enum):
    """What can be said of a program from here."""

    SERVES = "serves"
    """It answers /health with 200."""
    STARTING = "starting"
    """Its process runs and does not answer, or not well."""
    DEAD = "dead"
    """It was started here and is gone."""
    ABSENT = "absent"
    """Nothing answers, and nothing was started here."""


@attrs.frozen(kw_only=True)
class Seen:
    """One program as it is now."""

    member: Member
    url: str
    state: State
    record: Record | None

    def to_plain(self) -> dict[str, Any]:
        record = self.record
        return {
            "name": self.member.name,
            "kind": self.member.kind.value,
            "host": self.member.host,
            "url": self.url,
            "state": self.state.value,
            "pid": record.mark.pid if record is not None else None,
            "machine": record.machine if record is not None else None,
            "started_at": record.started_at if record is not None else None,
            "log": record.log if record is not None else None,
        }


@attrs.frozen(kw_only=True)
class Ended:
    """How one program came to its end."""

    name: str
    pid: int
    how: str
    """`ended` by itself when asked, `killed` after the grace, `dead` before."""


async def look(pd_set: PdSet, host: str | None) -> list[Seen]:
    """All programs of one host, or of the set, as far as they can be seen from here."""
    members = pd_set.part(host)
    folder = RunFolder(pd_set.run)
    async with Client.open() as client:
        up = await asyncio.gather(*(client.is_up(pd_set.url(member)) for member in members))
    seen = []
    for member, is_up in zip(members, up, strict=True):
        record = folder.read(member.name)
        state = _state(record, is_up)
        seen.append(Seen(member=member, url=pd_set.url(member), state=state, record=record))
    return seen


def _state(record: Record | None, is_up: bool) -> State:
    if record is None or not record.is_here:
        return State.SERVES if is_up else State.ABSENT
    if not record.mark.alive():
        # Whoever answers there was not started from this file.
        return State.DEAD
    return State.SERVES if is_up else State.STARTING


def bring_down(pd_set: PdSet, host: str | None, grace_s: float) -> list[Ended]:
    """End what was started here, the router first so that nothing new comes in."""
    folder = RunFolder(pd_set.run)
    ended = []
    with folder.locked():
        members = pd_set.part(host)
        routers = [member for member in members if isinstance(member, Router)]
        engines = [member for member in members if not isinstance(member, Router)]
        for some in (routers, engines):
            records = [folder.read(member.name) for member in some]
            here = [record for record in records if record is not None and record.is_here]
            ended += _end(here, grace_s)
            folder.forget([record.name for record in here])
    return ended


def _end(records: list[Record], grace_s: float) -> list[Ended]:
    alive = {record.name for record in records if record.mark.alive()}
    killed = end_marked([record.mark for record in records], grace_s)

    def how(record: Record) -> str:
        if record.name not in alive:
            return "dead"
        return "killed" if record.mark in killed else "ended"

    return [Ended(name=record.name, pid=record.mark.pid, how=how(record)) for record in records]
