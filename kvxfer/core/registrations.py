"""What a consumer keeps of each transfer: records, no behaviour.

Owns Registration (one attempt of one transfer) and Edge (one producer rank in
it). `consumer.py` moves them.
"""

from __future__ import annotations

import attrs

from kvxfer.core.ids import AttemptKey, LinkId, Part, Peer, PeerKey
from kvxfer.core.messages import BlockRuns
from kvxfer.core.tables import PartState, RequestState, WriterState


@attrs.define
class Edge:
    """One producer rank in one registration."""

    key: PeerKey
    state: WriterState = WriterState.DIALLING
    peer: Peer | None = None
    link: LinkId | None = None
    parts: dict[Part, PartState] = attrs.field(factory=dict)
    tables: tuple[BlockRuns, ...] = ()
    asked_ms: int = 0
    """When the peer was last asked for something that it must answer."""

    def all_ended_quietly(self) -> bool:
        return all(s not in (PartState.EXPECTED, PartState.UNQUIET) for s in self.parts.values())


@attrs.define(kw_only=True, eq=False)
class Registration:
    """One attempt of one transfer."""

    key: AttemptKey
    tag: str
    silent: bool
    digest: bytes
    edges: dict[PeerKey, Edge]
    state: RequestState = RequestState.WAITING
    resolving: bool = False
    resolved: bool = False

    def all_done(self) -> bool:
        return self.resolved and all(
            s is PartState.DONE for e in self.edges.values() for s in e.parts.values()
        )

    def all_quiet(self) -> bool:
        return all(e.state is WriterState.QUIET for e in self.edges.values())
