"""The engine's side of the pump: commands in, results out, and the book between them.

Owns what an engine has said about each of its requests until the core has told
its end. Knows no network. Invariant: an entry lives from its command to the last
result about it, so the book is empty when nothing is live.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.ids import PeerKey, TransferId
from kvxfer.core.session import Session
from kvxfer.driver import commands as cmd
from kvxfer.driver import results as rs
from kvxfer.driver.runs import block_runs
from kvxfer.limits import Limits, Timings

Tell = fx.TellLanded | fx.TellLost | fx.TellLetGo | fx.TellSent | fx.TellUnsent
Key = tuple[TransferId, str]
"""A transfer and the engine's own name for the request: two attempts may be alive at once."""


@attrs.define(kw_only=True)
class Wanted:
    """A registration of ours."""

    command: cmd.Register
    started_ms: float
    bytes_wanted: int = 0
    bytes_read: int = 0
    descriptors: int = 0


@attrs.define(kw_only=True)
class Offered:
    """An offer of ours."""

    command: cmd.Offer
    first_post_ms: float = 0.0
    bytes_written: int = 0
    descriptors: int = 0


@attrs.define
class Desk:
    """All requests of one agent's engine."""

    limits: Limits
    timings: Timings
    wanted: dict[Key, Wanted] = attrs.field(factory=dict)
    offered: dict[Key, Offered] = attrs.field(factory=dict)
    addresses: dict[PeerKey, tuple[str, int]] = attrs.field(factory=dict)
    bytes_received: int = 0

    # --- commands ---

    def event_of(self, command: cmd.Command, now_ms: float) -> ev.Event:
        """Write a command into the book; gives the core's event for it."""
        match command:
            case cmd.Register():
                return self._register(command, now_ms)
            case cmd.Decline():
                self._learn(command.producers)
                return ev.Register(
                    transfer_id=command.transfer_id,
                    producers=_keys(command.producers),
                    digest=b"",
                    deadline_ms=self.timings.handshake_ms,
                    silent=True,
                )
            case cmd.Cancel():
                return ev.CancelRegistration(
                    transfer_id=command.transfer_id, reason=command.reason, tag=command.tag
                )
            case cmd.Expect():
                return ev.Expect(transfer_id=command.transfer_id, tag=command.tag)
            case cmd.Offer():
                return self._offer(command)
            case cmd.Grow():
                return self._grow(command)
            case cmd.Withdraw():
                return ev.Withdraw(
                    transfer_id=command.transfer_id, reason=command.reason, tag=command.tag
                )
            case cmd.Drain():
                return ev.Drain()
            case cmd.Evict():
                return ev.Evict(engine_id=command.engine_id, rank=command.rank)
            case _:
                assert_never(command)

    def _register(self, command: cmd.Register, now_ms: float) -> ev.Event:
        self._learn(command.producers)
        entry = Wanted(command=command, started_ms=now_ms)
        self.wanted.setdefault((command.transfer_id, command.tag), entry)
        return ev.Register(
            transfer_id=command.transfer_id,
            producers=_keys(command.producers),
            digest=command.digest,
            deadline_ms=command.deadline_ms or self.timings.transfer_deadline_ms,
            tag=command.tag,
            initiator=command.initiator,
        )

    def _offer(self, command: cmd.Offer) -> ev.Event:
        self.offered.setdefault((command.transfer_id, command.tag), Offered(command=command))
        return ev.Offer(
            transfer_id=command.transfer_id,
            token_count=command.token_count,
            digest=command.digest,
            lease_ms=command.lease_ms or self.timings.offer_lease_ms,
            tag=command.tag,
            sealed=command.sealed,
            tables=block_runs(command.tables),
        )

    def _grow(self, command: cmd.Grow) -> ev.Event:
        offered = self.offered.get((command.transfer_id, command.tag))
        if offered is not None and not offered.command.sealed:
            offered.command = attrs.evolve(
                offered.command,
                tables=command.tables,
                token_count=command.token_count,
                sealed=command.sealed,
            )
        return ev.Grow(
            transfer_id=command.transfer_id,
            token_count=command.token_count,
            sealed=command.sealed,
            tag=command.tag,
            tables=block_runs(command.tables),
            token_ahead=command.token_ahead,
            layers_final=command.layers_final,
        )

    def _learn(self, producers: tuple[cmd.ProducerAddress, ...]) -> None:
        """The latest address of a peer counts; the least recently named one leaves first."""
        for p in producers:
            key = PeerKey(p.engine_id, p.rank)
            self.addresses.pop(key, None)
            self.addresses[key] = (p.host, p.port)
        while len(self.addresses) > self.limits.links_max:
            self.addresses.pop(next(iter(self.addresses)))

    # --- results ---

    def result_of(self, tell: Tell, session: Session, now_ms: float) -> rs.Result:
        """What the engine is told, and the end of the entry where it is the last word."""
        match tell:
            case fx.TellLanded():
                return self._landed(tell, now_ms)
            case fx.TellLost():
                return rs.Lost(
                    transfer_id=tell.transfer_id,
                    attempt=tell.attempt,
                    tag=tell.tag,
                    reason=tell.reason,
                    detail=tell.detail,
                )
            case fx.TellLetGo():
                # A refused registration (attempt 0) must not end a live one of the same tag.
                if tell.attempt or not session.consumer.holds(tell.transfer_id, tell.tag):
                    self.wanted.pop((tell.transfer_id, tell.tag), None)
                return rs.LetGo(transfer_id=tell.transfer_id, attempt=tell.attempt, tag=tell.tag)
            case fx.TellSent():
                return self._sent(tell, now_ms)
            case fx.TellUnsent():
                if not session.producer.holds(tell.transfer_id, tell.tag):
                    self.offered.pop((tell.transfer_id, tell.tag), None)
                return rs.Unsent(transfer_id=tell.transfer_id, tag=tell.tag, reason=tell.reason)
            case _:
                assert_never(tell)

    def _landed(self, tell: fx.TellLanded, now_ms: float) -> rs.Result:
        wanted = self.wanted[tell.transfer_id, tell.tag]
        self.bytes_received += wanted.bytes_wanted
        return rs.Landed(
            transfer_id=tell.transfer_id,
            attempt=tell.attempt,
            tag=tell.tag,
            bytes_received=wanted.bytes_wanted,
            elapsed_ms=now_ms - wanted.started_ms,
            bytes_read=wanted.bytes_read,
            descriptors=wanted.descriptors,
            told_ms=now_ms,
        )

    def _sent(self, tell: fx.TellSent, now_ms: float) -> rs.Result:
        offered = self.offered.pop((tell.transfer_id, tell.tag))
        return rs.Sent(
            transfer_id=tell.transfer_id,
            tag=tell.tag,
            bytes_written=offered.bytes_written,
            descriptors=offered.descriptors,
            elapsed_ms=now_ms - (offered.first_post_ms or now_ms),
        )


def _keys(producers: tuple[cmd.ProducerAddress, ...]) -> tuple[PeerKey, ...]:
    return tuple(PeerKey(p.engine_id, p.rank) for p in producers)
