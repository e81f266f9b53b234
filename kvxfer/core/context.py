"""What the machines of one session share: outbox, timers, links, counters.

Owns the table of links and the queue of links that died while an event was
being worked on. Knows no machine. Invariant: at most one link per peer and
direction; a link that is not in the table is never sent on.
"""

from __future__ import annotations

from collections import Counter, deque

import attrs

from kvxfer.core.effects import Dial, DropLink, Effect, Fence, Send, Trace
from kvxfer.core.ids import (
    NO_FEATURES,
    AttemptKey,
    Feature,
    Incarnation,
    LinkId,
    Part,
    Peer,
    PeerKey,
    Reason,
)
from kvxfer.core.messages import Header, TransferMessage
from kvxfer.core.timers import Timers
from kvxfer.limits import Limits, Timings


@attrs.define
class Link:
    """A control connection that is up."""

    id: LinkId
    peer: Peer
    dialled: bool
    ranks: tuple[int, ...]
    heard_ms: int
    features: Feature = NO_FEATURES
    """What both ends have."""
    draining: bool = False
    """The producer at the other end takes no new grant."""
    engine: frozenset[PeerKey] = attrs.field(init=False)
    """The ranks as peers. One set for all transfers of the link: each would take 200 bytes."""

    def __attrs_post_init__(self) -> None:
        self.engine = frozenset(PeerKey(self.peer.key.engine_id, rank) for rank in self.ranks)


@attrs.define(kw_only=True)
class Context:
    """Shared by the consumer and the producer half of a session."""

    incarnation: Incarnation
    limits: Limits
    timings: Timings
    check_digest: bool
    now_ms: int = 0
    closing: bool = False
    """Shutting down: what is asked from now on is refused (P1)."""
    draining: bool = False
    """Nothing new is taken in; what is there is finished."""
    drained: bool = False
    """All that was there has ended, and the engine is told."""
    out: list[Effect] = attrs.field(factory=list)
    timers: Timers = attrs.field(factory=Timers)
    counters: Counter[str] = attrs.field(factory=Counter)
    links: dict[LinkId, Link] = attrs.field(factory=dict)
    lost: deque[tuple[Link, Reason]] = attrs.field(factory=deque)
    fences: set[Peer] = attrs.field(factory=set)
    dialling: set[PeerKey] = attrs.field(factory=set)
    _by_peer: dict[tuple[PeerKey, bool], LinkId] = attrs.field(factory=dict)

    def emit(self, effect: Effect) -> None:
        self.out.append(effect)

    def trace(
        self,
        key: AttemptKey,
        step: str,
        *,
        peer: PeerKey | None = None,
        part: Part | None = None,
        reason: Reason = Reason.NONE,
    ) -> None:
        self.emit(
            Trace(
                transfer_id=key.transfer_id,
                attempt=key.attempt,
                step=step,
                peer=peer,
                part=part,
                reason=reason,
            )
        )

    def send(self, link: LinkId | None, message: TransferMessage) -> None:
        """Send where the link is still up; else the message has no reader any more."""
        if link is not None and link in self.links:
            self.emit(Send(link=link, message=message))

    def header(self, key: AttemptKey, peer: Peer) -> Header:
        return Header(
            transfer_id=key.transfer_id,
            attempt=key.attempt,
            sender=self.incarnation,
            receiver=peer.incarnation,
        )

    def reply(self, header: Header) -> Header:
        """The header of an answer."""
        return attrs.evolve(header, sender=self.incarnation, receiver=header.sender)

    def add_link(self, link: Link) -> None:
        """Take a link in. What stood in its place has been dropped before."""
        assert (link.peer.key, link.dialled) not in self._by_peer
        self.links[link.id] = link
        self._by_peer[link.peer.key, link.dialled] = link.id

    def remove_link(self, link_id: LinkId, reason: Reason) -> None:
        """Forget a link that is gone already, and queue its loss for the machines."""
        link = self.links.pop(link_id)
        del self._by_peer[link.peer.key, link.dialled]
        self.lost.append((link, reason))

    def drop_link(self, link_id: LinkId, reason: Reason) -> None:
        """Close a link on our own wish."""
        if link_id in self.links:
            self.emit(DropLink(link=link_id, reason=reason))
            self.remove_link(link_id, reason)

    def dial(self, key: PeerKey) -> None:
        """Ask for a link unless there is one, or one is on its way."""
        if self.link_to(key, dialled=True) is None and key not in self.dialling:
            self.dialling.add(key)
            self.emit(Dial(peer=key))

    def link_to(self, key: PeerKey, *, dialled: bool) -> Link | None:
        link_id = self._by_peer.get((key, dialled))
        return self.links[link_id] if link_id is not None else None

    def request_fence(self, peer: Peer, reason: Reason, *, again: bool = False) -> None:
        """Ask for a fence once per peer; links to that life of the peer end before it.

        `again`: a retry is about links that have ended; one that is up now carried none of it.
        """
        if not again:
            for dialled in (True, False):
                link = self.link_to(peer.key, dialled=dialled)
                if link is not None and link.peer == peer:
                    self.drop_link(link.id, reason)
        if peer not in self.fences:
            self.fences.add(peer)
            self.emit(Fence(peer=peer))
