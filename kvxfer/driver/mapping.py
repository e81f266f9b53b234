"""From descriptors and tables to names and plans.

Owns the translation between core names (parts, block runs) and layout values
(edges, tables, plans). Knows no network. Invariant: the parts of an edge follow
from the two descriptors, the producer's grid and the wanted tokens alone, so
both sides derive the same names (D3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kvxfer.core.effects import Post
from kvxfer.core.events import EdgePlan
from kvxfer.core.ids import Part
from kvxfer.core.messages import BlockRuns
from kvxfer.driver.commands import Offer, Register
from kvxfer.driver.grid import cut_parts, layers_of
from kvxfer.driver.peers import Peers, RemotePeer
from kvxfer.driver.runs import block_runs, block_table
from kvxfer.driver.staged import PartPlan
from kvxfer.errors import BadValue, LayoutMismatch, RemoteFault
from kvxfer.layout.choice import Path, Room, choose
from kvxfer.layout.edges import Edge
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.parts import bytes_wanted, check_state, groups_left_out, part_boxes
from kvxfer.layout.plan import Plan
from kvxfer.layout.table import check_table
from kvxfer.layout.tokens import share_of, shared_tokens, wanted_tokens
from kvxfer.limits import Limits

LIMITS = Limits()
TOKEN_MAX = 1 << 40


def edge_plans(
    shard: Shard,
    remotes: Sequence[RemotePeer],
    command: Register | None,
    limits: Limits = LIMITS,
) -> tuple[EdgePlan, ...]:
    """What must come from each producer rank; nothing at all where there is no command.

    Raises BadValue where the engine's tables do not cover the wanted tokens.
    """
    tables = _runs(shard, command) if command is not None else {}
    plans = []
    for remote in remotes:
        groups = sorted({edge.consumer_group for edge in remote.edges})
        if not groups:
            if remote.idle and shard.rank == min(entry.rank for entry in shard.ranks):
                # A replica that nobody reads: one of us tells it that it need not wait (6.1).
                plans.append(EdgePlan(peer=remote.peer.key, parts=(), tables=()))
            continue
        parts: tuple[Part, ...] = ()
        if command is not None and command.token_start < command.token_stop:
            assert remote.shard is not None
            rank = remote.peer.key.rank
            span = (command.token_start, command.token_stop)
            boxes = part_boxes(remote.shard, shard, remote.edges, *span)
            whole = [Part(rank, b.group, b.token_start, b.token_stop) for b in boxes]
            grid = remote.grid.within(remote.features)
            cut = cut_parts(whole, grid, remote.shard, remote.edges, limits.parts_per_edge_max)
            parts = tuple(part for part in cut if _has_tokens(part, shard, remote))
        used = tuple(tables[g] for g in groups if g in tables)
        plans.append(EdgePlan(peer=remote.peer.key, parts=parts, tables=used))
    covered = {part.group for plan in plans for part in plan.parts}
    if command is not None and command.token_start < command.token_stop:
        missing = groups_left_out(shard, command.token_start, command.token_stop, covered)
        if missing:
            raise LayoutMismatch(f"no producer writes group {missing[0]!r}")
    return tuple(plans)


def _runs(shard: Shard, command: Register) -> dict[int, BlockRuns]:
    for table in command.tables:
        start, stop = command.token_start, command.token_stop
        if 0 <= table.group < len(shard.groups):
            start, stop = wanted_tokens(shard.groups[table.group], start, stop)
        check_table(shard, table, start, stop)
    return {runs.group: runs for runs in block_runs(command.tables)}


def _has_tokens(part: Part, shard: Shard, remote: RemotePeer) -> bool:
    """Are there tokens of the part that both ranks hold (spec 7.5)?"""
    assert remote.shard is not None
    edge = next(edge for edge in remote.edges if edge.consumer_group == part.group)
    here = remote.shard.groups[edge.producer_group]
    shares = share_of(here), share_of(shard.groups[part.group])
    return shared_tokens(*shares, part.token_start, part.token_stop) > 0


def wanted_bytes(shard: Shard, command: Register) -> int:
    """Bytes that land in this shard for the wanted tokens."""
    return bytes_wanted(shard, command.token_start, command.token_stop)


def part_plan(
    peers: Peers, remote: RemotePeer, post: Post, offer: Offer, limits: Limits
) -> PartPlan:
    """What moves for one part that is written: our blocks to theirs, directly or staged.

    Raises RemoteFault where the grant names blocks that its descriptor does not
    have, LayoutMismatch where the ranges cannot be served.
    """
    part = post.part
    if part.producer_rank != peers.config.shard.rank:
        raise RemoteFault("part.producer_rank", part.producer_rank, f"{peers.config.shard.rank}")
    # One check for all parts of the group: their tokens lie in one span of the table.
    parts = [p for p in post.grant.parts if p.group == part.group]
    span = (min(p.token_start for p in parts), max(p.token_stop for p in parts))
    target = _their_table(remote, post.grant.tables, part.group, span, limits)
    sources = {table.group: table for table in offer.tables}
    ways = []
    for edge in remote.edges:
        if edge.consumer_group != part.group:
            continue
        source = sources.get(edge.producer_group)
        if source is None:
            raise RemoteFault("part.group", part.group, "a group that was offered")
        check_table(peers.config.shard, source, part.token_start, part.token_stop)
        group = peers.config.shard.groups[edge.producer_group]
        # While the prefill runs, only a page that is full will not be written to again.
        tokens = offer.token_count if offer.sealed else TOKEN_MAX
        check_state(group, source, part.token_stop, tokens)
        wanted = layers_of(part, peers.config.shard, edge)
        if wanted.layers:
            ways.append(_way(peers, remote, wanted, part, source, target))
    if not any(way.descriptor_count for way in ways):
        raise _moves_nothing(part)
    return PartPlan(
        direct=Plan.concat([way.direct for way in ways]),
        rounds=itertools.chain.from_iterable(way.rounds for way in ways),
        bytes_total=sum(way.bytes_total for way in ways),
        descriptor_count=sum(way.descriptor_count for way in ways),
    )


def _way(
    peers: Peers,
    remote: RemotePeer,
    edge: Edge,
    part: Part,
    source: BlockTable,
    target: BlockTable,
) -> PartPlan:
    """One edge of a part: by the cost rule where there is a staging buffer, else directly."""
    geometry, staging = peers.geometry(remote, edge), peers.staging(remote, edge)
    arguments = (source, target, part.token_start, part.token_stop)
    if staging is not None:
        costs = peers.config.staging_costs
        choice = choose(geometry, *arguments, room=Room(), costs=costs, staging=staging)
        if choice.path is not Path.DIRECT and choice.staged_ranges is not None:
            return PartPlan(
                direct=Plan.empty(),
                rounds=staging.rounds(*arguments),
                bytes_total=choice.bytes_total,
                descriptor_count=choice.staged_ranges,
            )
    return PartPlan.of(geometry.plan(*arguments))


def read_plan(
    peers: Peers, remote: RemotePeer, post: Post, command: Register, limits: Limits
) -> Plan:
    """The byte ranges of one part that is read: their blocks to ours.

    Raises RemoteFault where the offer names blocks that its descriptor does not
    have, LayoutMismatch where the ranges cannot be served.
    """
    part, offer = post.part, post.offer
    assert offer is not None
    assert remote.shard is not None
    targets = {table.group: table for table in command.tables}
    if part.group not in targets:
        raise BadValue("tables", part.group, "a table for every group that is wanted")
    span = (part.token_start, part.token_stop)
    plans = []
    for edge in remote.edges:
        wanted = layers_of(part, remote.shard, edge)
        if edge.consumer_group != part.group or not wanted.layers:
            continue
        source = _their_table(remote, offer.tables, edge.producer_group, span, limits)
        group = remote.shard.groups[edge.producer_group]
        check_state(group, source, part.token_stop, offer.token_count or TOKEN_MAX)
        geometry = peers.geometry(remote, wanted)
        plans.append(geometry.plan(source, targets[part.group], *span))
    return _whole(part, plans)


def _whole(part: Part, plans: Sequence[Plan]) -> Plan:
    """All ranges of a part."""
    plan = Plan.concat(plans)
    if plan.descriptor_count == 0:
        raise _moves_nothing(part)
    return plan


def _moves_nothing(part: Part) -> RemoteFault:
    """A part that moves nothing is a fault, never a part that is done."""
    return RemoteFault("part", part, "tokens, layers and a group that these ranks share")


def _their_table(
    remote: RemotePeer,
    tables: Sequence[BlockRuns],
    group: int,
    span: tuple[int, int],
    limits: Limits,
) -> BlockTable:
    """A table that came from the other side, checked against its descriptor."""
    for runs in tables:
        if runs.group == group:
            table = block_table(runs, limits.blocks_per_grant_max)
            assert remote.shard is not None
            check_table(remote.shard, table, *span)
            return table
    raise RemoteFault("tables", group, "a table for every group of a part")
