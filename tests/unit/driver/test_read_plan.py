"""What a consumer refuses to read, and the pages that hold a state for good."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from kvxfer.core.ids import Part, PeerKey, TransferId
from kvxfer.core.messages import Offer as OfferMessage
from kvxfer.driver.commands import Offer, Register
from kvxfer.driver.mapping import part_plan, read_plan
from kvxfer.driver.peers import RemotePeer
from kvxfer.driver.runs import block_runs, block_table
from kvxfer.errors import BadValue, LayoutMismatch, RemoteFault
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import BlockTable, GroupKind, Shard
from kvxfer.layout.orders import engine_shards
from kvxfer.layout.plan import Plan
from kvxfer.limits import Limits

(FULL,) = engine_shards(
    bases=[0], layers=("a", "b"), blocks=8, tokens_per_block=4, heads_total=1, content_bytes=2
)
STATE = attrs.evolve(FULL, groups=(attrs.evolve(FULL.groups[0], kind=GroupKind.STATE),))
LIMITS = Limits()


def table(*blocks: int) -> tuple[BlockTable, ...]:
    return (BlockTable(group=0, first_token=0, blocks=np.array(blocks)),)


def rig(shard: Shard) -> tuple[SimpleNamespace, RemotePeer]:
    """Peers whose geometry is one byte: what is refused is refused before it is asked."""
    remote = RemotePeer(
        link=1, peer=SimpleNamespace(key=PeerKey("p", 0)), dialled=True, handle=1, blob=b""
    )
    remote.shard, remote.edges = shard, edges_between(FULL, FULL)
    one = np.ones(1, np.uint64)
    plan = SimpleNamespace(plan=lambda *_: Plan(one, one, one))
    peers = SimpleNamespace(
        config=SimpleNamespace(shard=shard),
        geometry=lambda _remote, _edge: plan,
        staging=lambda _remote, _edge: None,
    )
    return peers, remote


def read(
    part: Part, *blocks: int, token_count: int = 0, shard: Shard = FULL, mine: object = None
) -> Plan:
    peers, remote = rig(shard)
    offer = OfferMessage(
        header=None, parts=(part,), tables=block_runs(table(*blocks)), token_count=token_count
    )
    command = Register(
        transfer_id=TransferId("t"),
        producers=(),
        tables=table(1, 2) if mine is None else (),
        token_start=0,
        token_stop=8,
    )
    return read_plan(peers, remote, SimpleNamespace(part=part, offer=offer), command, LIMITS)


def test_what_is_covered_is_read() -> None:
    assert read(Part(0, 0, 0, 8), 3, 4).descriptor_count == 1


def test_a_table_that_is_missing_or_too_short_is_a_fault_of_the_peer_or_ours() -> None:
    with pytest.raises(BadValue, match="covering tokens"):
        read(Part(0, 0, 0, 8), 3)
    with pytest.raises(BadValue, match="a table for every group"):
        read(Part(0, 0, 0, 8), 3, 4, mine=())
    peers, remote = rig(FULL)
    bare = OfferMessage(header=None, parts=(), tables=())
    post = SimpleNamespace(part=Part(0, 0, 0, 8), offer=bare)
    command = Register(
        transfer_id=TransferId("t"), producers=(), tables=table(1, 2), token_start=0, token_stop=8
    )
    with pytest.raises(RemoteFault, match="a table for every group"):
        read_plan(peers, remote, post, command, LIMITS)


@pytest.mark.parametrize(
    ("token_stop", "token_count", "held"),
    [
        (6, 6, True),  # sealed where the part ends
        (6, 7, False),  # the page went on: its state is that after token 7
        (6, 0, False),  # not sealed: a later chunk writes this page again
        (4, 0, True),  # a page that is full keeps its state
        (4, 100, True),
    ],
)
def test_a_state_page_is_read_only_where_it_holds_that_state(
    token_stop: int, token_count: int, held: bool
) -> None:
    part = Part(0, 0, 0, token_stop)
    if held:
        read(part, 3, 4, token_count=token_count, shard=STATE)
        return
    with pytest.raises(LayoutMismatch, match="the page holds the state after"):
        read(part, 3, 4, token_count=token_count, shard=STATE)


@pytest.mark.parametrize(
    ("token_stop", "sealed", "held"), [(6, True, True), (6, False, False), (4, False, True)]
)
def test_a_state_page_is_written_out_under_the_same_rule(
    token_stop: int, sealed: bool, held: bool
) -> None:
    peers, remote = rig(STATE)
    part = Part(0, 0, 0, token_stop)
    grant = SimpleNamespace(tables=block_runs(table(1, 2)), parts=(part,))
    offer = Offer(
        transfer_id=TransferId("t"), tables=table(3, 4), token_count=token_stop, sealed=sealed
    )
    post = SimpleNamespace(part=part, grant=grant)
    if held:
        part_plan(peers, remote, post, offer, LIMITS)
        return
    with pytest.raises(LayoutMismatch, match="the page holds the state after"):
        part_plan(peers, remote, post, offer, LIMITS)


def test_a_part_that_moves_nothing_is_never_done() -> None:
    """[C3] A layer range that the producer does not have, say."""
    with pytest.raises(RemoteFault, match="tokens, layers and a group"):
        read(Part(0, 0, 0, 8, 2, 9), 3, 4)


def test_tables_survive_the_way_there_and_back() -> None:
    for blocks in ((1,), (5, 6, 7, 1, 3, 4), ()):
        for entry in table(*blocks):
            column = np.array(blocks, dtype=np.int64)
            (runs,) = block_runs([attrs.evolve(entry, blocks=column)])
            np.testing.assert_array_equal(block_table(runs, 100).blocks, column)
    wide = BlockTable(group=1, first_token=16, blocks=np.array([1 << 40]))
    (runs,) = block_runs([wide])
    assert runs.starts.width == 8
    assert block_table(runs, 1).first_token == 16
