"""Peers as the driver sees them: transport handle, memory layout, edges.

Owns phase 2 of the handshake (DESCRIBE) and the handles' life: created for a
link, connected with the peer's blob, fenced or destroyed at its end. Knows no
protocol state. Invariant: a handle whose link is gone is never posted to, and
stays until no request of it is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import attrs

from kvxfer.core.handshake import Refusal
from kvxfer.core.ids import NO_FEATURES, Feature, LinkId, Peer, Reason
from kvxfer.core.messages import Describe
from kvxfer.driver.config import AgentConfig
from kvxfer.driver.grid import WHOLE, Grid
from kvxfer.errors import KvxferError, LayoutMismatch, RemoteFault
from kvxfer.layout.edges import Edge, edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.layout.staging import Side, Staging
from kvxfer.layout.translate import EdgeGeometry
from kvxfer.status import Status
from kvxfer.transport.ops import TransportOps
from kvxfer.wire.cbor import decode_plain, encode_plain

GEOMETRIES_MAX = 256
"""Kept per link; a peer that names ever new layer ranges has the rest worked out each time."""


@attrs.define(kw_only=True)
class RemotePeer:
    """One link's other end."""

    link: LinkId
    peer: Peer
    dialled: bool
    handle: int
    blob: bytes
    shard: Shard | None = None
    edges: tuple[Edge, ...] = ()
    """Edges between this rank and the peer's rank."""
    idle: bool = False
    """A producer's rank of which no rank of this engine wants anything."""
    features: Feature = NO_FEATURES
    """What both ends have, once the link is up."""
    grid: Grid = WHOLE
    """Where parts are cut that come from this peer."""
    geometries: dict[Edge, EdgeGeometry] = attrs.field(factory=dict)
    stagings: dict[Edge, Staging | None] = attrs.field(factory=dict)
    requests_open: int = 0


@attrs.define
class Peers:
    """All links of one agent towards the transport."""

    config: AgentConfig
    ops: TransportOps
    transport_session: int
    was_dialled: Callable[[LinkId], bool]
    by_link: dict[LinkId, RemotePeer] = attrs.field(factory=dict)
    by_handle: dict[int, RemotePeer] = attrs.field(factory=dict)
    _ended: dict[Peer, list[RemotePeer]] = attrs.field(factory=lambda: defaultdict(list))
    _own_shard: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._own_shard = encode_plain(shard_to_plain(self.config.shard))

    # --- handshake phase 2, called by the core ---

    def describe(self, link: LinkId, peer: Peer) -> Describe:
        remote = self._remote(link, peer)
        return Describe(
            transport=self.ops.name,
            blob=remote.blob,
            shard=self._own_shard,
            part_tokens=self.config.part_tokens,
            part_layers=self.config.part_layers,
        )

    def accept(self, link: LinkId, peer: Peer, theirs: Describe) -> tuple[int, ...]:
        """Check the peer's description, connect to it; ranks of its engine that matter here."""
        if theirs.transport != self.ops.name:
            raise Refusal(
                Reason.TRANSPORT_MISMATCH, f"peer has {theirs.transport}, this side {self.ops.name}"
            )
        remote = self._remote(link, peer)
        try:
            plain = decode_plain(theirs.shard, self.config.limits)
            shard = shard_from_plain(plain, self.config.limits)
            if shard.rank != peer.key.rank:
                raise RemoteFault("shard.rank", shard.rank, f"the rank of HELLO, {peer.key.rank}")
            ranks = self._match(remote, shard)
            remote.grid = Grid(part_tokens=theirs.part_tokens, part_layers=theirs.part_layers)
        except (RemoteFault, LayoutMismatch) as fault:
            raise Refusal(Reason.LAYOUT_REFUSED, str(fault)) from fault
        except Exception as error:
            # A description that our maths did not foresee must not end the writer thread.
            self.config.logger.exception("description of %s", peer.key)
            raise Refusal(Reason.LAYOUT_REFUSED, f"cannot be read: {error!r}") from error
        handle, blob = remote.handle, theirs.blob
        status = self.ops.peer_connect(self.transport_session, handle, blob)
        if status != Status.OK:
            detail = self.ops.last_error(self.transport_session)
            raise Refusal(Reason.TRANSPORT_FAILED, f"peer_connect: {status.name} {detail}")
        return ranks

    def _match(self, remote: RemotePeer, shard: Shard) -> tuple[int, ...]:
        mine = self.config.shard
        producer, consumer = (shard, mine) if remote.dialled else (mine, shard)
        pair = (producer.rank, consumer.rank)
        edges = edges_between(producer, consumer)
        remote.shard = shard
        remote.edges = tuple(e for e in edges if (e.producer_rank, e.consumer_rank) == pair)
        remote.idle = all(e.producer_rank != producer.rank for e in edges)
        if remote.dialled:
            ranks = {e.producer_rank for e in edges if e.consumer_rank == mine.rank}
        else:
            ranks = {e.consumer_rank for e in edges if e.producer_rank == mine.rank}
        return tuple(sorted(ranks))

    def _remote(self, link: LinkId, peer: Peer) -> RemotePeer:
        remote = self.by_link.get(link)
        if remote is None:
            status, handle, blob = self.ops.peer_create(self.transport_session)
            if status != Status.OK:
                detail = self.ops.last_error(self.transport_session)
                raise Refusal(Reason.TRANSPORT_FAILED, f"peer_create: {status.name} {detail}")
            remote = RemotePeer(
                link=link, peer=peer, dialled=self.was_dialled(link), handle=handle, blob=blob
            )
            self.by_link[link] = self.by_handle[handle] = remote
        return remote

    # --- end of links ---

    def end_link(self, link: LinkId) -> None:
        """The link is gone. The handle stays for a fence, until `sweep`."""
        remote = self.by_link.pop(link, None)
        if remote is not None:
            self._ended[remote.peer].append(remote)

    def fence(self, peer: Peer) -> bool:
        """Shut the peer out: every handle of links that are gone. True only with proof."""
        proven = True
        for remote in self._ended.get(peer, ()):
            status = self.ops.fence_peer(self.transport_session, remote.handle)
            proven = proven and status == Status.OK
        return proven

    def sweep(self, wanted: Callable[[Peer], bool]) -> None:
        """Destroy ended handles that no fence waits for and no request is open on."""
        for peer, ended in list(self._ended.items()):
            if wanted(peer):
                continue
            for remote in [r for r in ended if r.requests_open == 0]:
                ended.remove(remote)
                del self.by_handle[remote.handle]
                self.ops.peer_destroy(self.transport_session, remote.handle)
            if not ended:
                del self._ended[peer]

    def geometry(self, remote: RemotePeer, edge: Edge) -> EdgeGeometry:
        """Worked out once for each edge; the layers of a part make an edge of their own."""
        found = remote.geometries.get(edge)
        if found is None:
            if remote.shard is None:
                raise KvxferError(f"link {remote.link} has no description yet")
            mine = self.config.shard
            pair = (remote.shard, mine) if remote.dialled else (mine, remote.shard)
            found = EdgeGeometry.build(*pair, edge)
            if len(remote.geometries) < GEOMETRIES_MAX:
                remote.geometries[edge] = found
        return found

    def staging(self, remote: RemotePeer, edge: Edge) -> Staging | None:
        """The way of an edge through our staging buffer; None where it has no room for a block."""
        buffer = self.config.staging
        if buffer is None:
            return None
        if edge not in remote.stagings:
            geometry = self.geometry(remote, edge)
            try:
                found = Staging.build(geometry, Side.PRODUCER, buffer.base, buffer.length)
            except LayoutMismatch:
                found = None
            if len(remote.stagings) >= GEOMETRIES_MAX:
                return found
            remote.stagings[edge] = found
        return remote.stagings[edge]
