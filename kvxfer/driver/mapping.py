"""From descriptors and tables to names and plans.

Owns the translation between core names (parts, block runs) and layout values
(edges, tables, plans). Knows no network. Invariant: the parts of an edge follow
from the two descriptors and the wanted tokens alone, so both sides derive the
same names (D3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvxfer.core.effects import Post
from kvxfer.core.events import EdgePlan
from kvxfer.core.ids import Part
from kvxfer.core.messages import BlockRuns, Column, Grant
from kvxfer.driver.commands import Offer, Register
from kvxfer.driver.peers import Peers, RemotePeer
from kvxfer.errors import LayoutMismatch, RemoteFault
from kvxfer.layout.geometry import BlockTable, Shard
from kvxfer.layout.parts import bytes_wanted, check_state, groups_left_out, part_boxes
from kvxfer.layout.plan import Plan
from kvxfer.layout.table import blocks_of, check_table, runs_of
from kvxfer.layout.tokens import wanted_tokens
from kvxfer.limits import Limits


def edge_plans(
    shard: Shard, remotes: Sequence[RemotePeer], command: Register | None
) -> tuple[EdgePlan, ...]:
    """What each producer rank must write; nothing at all where there is no command.

    Raises BadValue where the engine's tables do not cover the wanted tokens.
    """
    tables = _runs(shard, command) if command is not None else {}
    plans = []
    for remote in remotes:
        groups = sorted({edge.consumer_group for edge in remote.edges})
        if not groups:
            continue
        parts: tuple[Part, ...] = ()
        if command is not None and command.token_start < command.token_stop:
            assert remote.shard is not None
            rank = remote.peer.key.rank
            span = (command.token_start, command.token_stop)
            boxes = part_boxes(remote.shard, shard, remote.edges, *span)
            parts = tuple(Part(rank, b.group, b.token_start, b.token_stop) for b in boxes)
        used = tuple(tables[g] for g in groups if g in tables)
        plans.append(EdgePlan(peer=remote.peer.key, parts=parts, tables=used))
    covered = {part.group for plan in plans for part in plan.parts}
    if command is not None and command.token_start < command.token_stop:
        missing = groups_left_out(shard, command.token_start, command.token_stop, covered)
        if missing:
            raise LayoutMismatch(f"no producer writes group {missing[0]!r}")
    return tuple(plans)


def _runs(shard: Shard, command: Register) -> dict[int, BlockRuns]:
    runs = {}
    for table in command.tables:
        start, stop = command.token_start, command.token_stop
        if 0 <= table.group < len(shard.groups):
            start, stop = wanted_tokens(shard.groups[table.group], start, stop)
        check_table(shard, table, start, stop)
        starts, lengths = runs_of(table.blocks)
        runs[table.group] = BlockRuns(
            group=table.group,
            first_token=table.first_token,
            starts=_column(starts),
            lengths=_column(lengths),
        )
    return runs


def _column(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> Column:
    width = 4 if values.size == 0 or int(values.max()) < 1 << 32 else 8
    return Column(width, values.astype(f"<u{width}").tobytes())


def wanted_bytes(shard: Shard, command: Register) -> int:
    """Bytes that land in this shard for the wanted tokens."""
    return bytes_wanted(shard, command.token_start, command.token_stop)


def part_plan(peers: Peers, remote: RemotePeer, post: Post, offer: Offer, limits: Limits) -> Plan:
    """The byte ranges of one part: our blocks to theirs.

    Raises RemoteFault where the grant names blocks that its descriptor does not
    have, LayoutMismatch where the ranges cannot be served.
    """
    part = post.part
    if part.producer_rank != peers.config.shard.rank:
        raise RemoteFault("part.producer_rank", part.producer_rank, f"{peers.config.shard.rank}")
    target = _granted_table(remote, post.grant, part.group, limits)
    sources = {table.group: table for table in offer.tables}
    plans = []
    for edge in remote.edges:
        if edge.consumer_group != part.group:
            continue
        source = sources.get(edge.producer_group)
        if source is None:
            raise RemoteFault("part.group", part.group, "a group that was offered")
        check_table(peers.config.shard, source, part.token_start, part.token_stop)
        group = peers.config.shard.groups[edge.producer_group]
        check_state(group, source, part.token_stop, offer.token_count)
        geometry = peers.geometry(remote, edge)
        plans.append(geometry.plan(source, target, part.token_start, part.token_stop))
    if not plans:
        raise RemoteFault("part.group", part.group, "a group of an edge between these ranks")
    return Plan.concat(plans)


def _granted_table(remote: RemotePeer, grant: Grant, group: int, limits: Limits) -> BlockTable:
    for runs in grant.tables:
        if runs.group == group:
            blocks = blocks_of(
                _values(runs.starts), _values(runs.lengths), limits.blocks_per_grant_max
            )
            table = BlockTable(group=group, first_token=runs.first_token, blocks=blocks)
            assert remote.shard is not None
            # One check for all parts of the group: their tokens lie in one span of the table.
            starts = [p.token_start for p in grant.parts if p.group == group]
            stops = [p.token_stop for p in grant.parts if p.group == group]
            check_table(remote.shard, table, min(starts), max(stops))
            return table
    raise RemoteFault("grant.tables", group, "a table for every group of a part")


def _values(column: Column) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(column.data, f"<u{column.width}").astype(np.uint64)
