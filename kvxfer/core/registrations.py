"""What a consumer keeps of each transfer: records, no behaviour.

Owns Registration (one attempt of one transfer) and its edges, one for each
producer rank: WriteEdge where the producer writes, ReadEdge where this side
reads. `consumer.py`, `writers.py` and `readers.py` move them. Invariant: an
edge names its registration and never holds it, so records form a tree.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import AttemptKey, Initiator, LinkId, OpId, Part, Peer, PeerKey
from kvxfer.core.messages import Grant
from kvxfer.core.tables import PartState, ReaderState, RequestState, WriterState

_OPEN = (PartState.EXPECTED, PartState.OFFERED)


@attrs.define(eq=False)
class Edge:
    """What both kinds share."""

    attempt: AttemptKey
    key: PeerKey
    peer: Peer | None = None
    link: LinkId | None = None
    parts: dict[Part, PartState] = attrs.field(factory=dict)
    grant: Grant | None = None
    asked_ms: int = 0
    """When the peer was last asked for something that it must answer."""
    serial: int = 0
    """Of the newest GRANT or RENEW."""
    serial_sent_ms: int = 0
    unanswered: bool = False
    lease_until_ms: int = 0
    """On this side's clock: until then the producer surely holds the attempt."""

    def all_done(self) -> bool:
        return all(state is PartState.DONE for state in self.parts.values())

    def all_ended_quietly(self) -> bool:
        return not any(s in _OPEN or s is PartState.UNQUIET for s in self.parts.values())


@attrs.define(eq=False)
class WriteEdge(Edge):
    """Push: one producer rank that may write into the blocks of one registration."""

    state: WriterState = WriterState.DIALLING

    @property
    def dialling(self) -> bool:
        return self.state is WriterState.DIALLING

    @property
    def quiet(self) -> bool:
        return self.state is WriterState.QUIET

    @property
    def quarantined(self) -> bool:
        return self.state is WriterState.QUARANTINED

    @property
    def awaits_fence(self) -> bool:
        return self.state in (WriterState.FENCING, WriterState.QUARANTINED)


@attrs.define(eq=False)
class ReadEdge(Edge):
    """Pull: one producer rank whose blocks this side reads for one registration."""

    state: ReaderState = ReaderState.DIALLING
    ops: set[OpId] = attrs.field(factory=set)

    @property
    def dialling(self) -> bool:
        return self.state is ReaderState.DIALLING

    @property
    def quiet(self) -> bool:
        return self.state is ReaderState.QUIET

    @property
    def quarantined(self) -> bool:
        return self.state is ReaderState.QUARANTINED

    @property
    def awaits_fence(self) -> bool:
        return self.state in (ReaderState.FENCING, ReaderState.QUARANTINED)


AnyEdge = WriteEdge | ReadEdge


@attrs.define(kw_only=True, eq=False)
class Registration:
    """One attempt of one transfer."""

    key: AttemptKey
    tag: str
    silent: bool
    digest: bytes
    edges: dict[PeerKey, AnyEdge]
    initiator: Initiator = Initiator.PRODUCER
    state: RequestState = RequestState.WAITING
    resolving: bool = False
    resolved: bool = False

    def all_done(self) -> bool:
        return self.resolved and all(edge.all_done() for edge in self.edges.values())

    def all_quiet(self) -> bool:
        return all(edge.quiet for edge in self.edges.values())
