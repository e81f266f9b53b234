"""What the driver refuses when it turns names into byte ranges."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from kvxfer.core.ids import FEATURES, Part, PeerKey
from kvxfer.driver.commands import Register
from kvxfer.driver.grid import Grid
from kvxfer.driver.mapping import edge_plans, part_plan
from kvxfer.driver.peers import RemotePeer
from kvxfer.errors import LayoutMismatch, RemoteFault
from kvxfer.layout.edges import edges_of
from kvxfer.layout.geometry import BlockTable, GroupKind, RankHolding, Shard, holding_of
from kvxfer.layout.orders import engine_shards
from kvxfer.limits import Limits

(SHARD,) = engine_shards(
    bases=[0], layers=("a",), blocks=8, tokens_per_block=4, heads_total=1, content_bytes=2
)


def test_a_part_under_another_ranks_name_is_not_written() -> None:
    peers = SimpleNamespace(config=SimpleNamespace(shard=SHARD))
    post = SimpleNamespace(part=Part(5, 0, 0, 4))
    with pytest.raises(RemoteFault, match="producer_rank"):
        part_plan(peers, None, post, None, Limits())


def test_wanted_tokens_without_any_writer_are_refused() -> None:
    """No edge at all must never look like a transfer with nothing left to wait for."""
    remote = RemotePeer(
        link=1, peer=SimpleNamespace(key=PeerKey("p", 0)), dialled=True, handle=1, blob=b""
    )
    command = Register(
        transfer_id="t",
        producers=(),
        tables=(BlockTable(group=0, first_token=0, blocks=np.array([1])),),
        token_start=0,
        token_stop=4,
    )
    with pytest.raises(LayoutMismatch, match="no producer writes group 'kv'"):
        edge_plans(SHARD, [remote], command)


def consumer_and_remote(**changes: object) -> tuple[Shard, RemotePeer]:
    """A consumer, and as its peer context rank 1 of two that take turns of four tokens."""
    (group,) = SHARD.groups
    mine = attrs.evolve(group, **changes)
    theirs = [
        attrs.evolve(mine, context_rank=n, context_size=2, context_interleave=4) for n in range(2)
    ]
    ranks = tuple(RankHolding(rank=n, holdings=(holding_of(g),)) for n, g in enumerate(theirs))
    producer = attrs.evolve(SHARD, rank=1, groups=(theirs[1],), ranks=ranks)
    own = (RankHolding(rank=0, holdings=(holding_of(mine),)),)
    consumer = attrs.evolve(SHARD, groups=(mine,), ranks=own)
    remote = RemotePeer(
        link=1,
        peer=SimpleNamespace(key=PeerKey("p", 1)),
        dialled=True,
        handle=1,
        blob=b"",
        shard=producer,
        edges=edges_of(producer, consumer, 1, 0),
    )
    return consumer, remote


def parts_of(consumer: Shard, remote: RemotePeer, start: int, stop: int) -> list[Part]:
    command = Register(
        transfer_id="t",
        producers=(),
        tables=(BlockTable(group=0, first_token=0, blocks=np.arange(1, 5)),),
        token_start=start,
        token_stop=stop,
    )
    (plan,) = edge_plans(consumer, [remote], command)
    return list(plan.parts)


def test_parts_name_the_tokens_that_a_group_needs() -> None:
    consumer, remote = consumer_and_remote(kind=GroupKind.WINDOW, reach=7)
    assert parts_of(consumer, remote, 0, 16) == [Part(1, 0, 9, 16)]


def test_parts_without_a_common_token_are_left_out() -> None:
    """Turns of four: tokens 4 to 7 and 12 to 15 are the peer's, the rest is another rank's."""
    consumer, remote = consumer_and_remote()
    assert parts_of(consumer, remote, 0, 16) == [Part(1, 0, 0, 16)]
    remote.grid, remote.features = Grid(part_tokens=4), FEATURES
    assert parts_of(consumer, remote, 0, 16) == [Part(1, 0, 4, 8), Part(1, 0, 12, 16)]
    assert parts_of(consumer, remote, 5, 14) == [Part(1, 0, 5, 8), Part(1, 0, 12, 14)]
