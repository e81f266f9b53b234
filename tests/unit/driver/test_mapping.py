"""What the driver refuses when it turns names into byte ranges."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvxfer.core.ids import Part, PeerKey
from kvxfer.driver.commands import Register
from kvxfer.driver.mapping import edge_plans, part_plan
from kvxfer.driver.peers import RemotePeer
from kvxfer.errors import LayoutMismatch, RemoteFault
from kvxfer.layout.geometry import BlockTable
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
