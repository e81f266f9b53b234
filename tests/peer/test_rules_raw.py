"""Rules about what a peer does with bytes that come over TCP: a real agent, a stranger's socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import cbor2
import minimal_peer as mp
import pytest
from door import BLOCKS, TOKENS, LoopbackDoor, Producer, memory_of, until
from minimal_peer import Connection, Consumer, column

from kvxfer.core.ids import LinkId
from kvxfer.driver import Agent, TransferId, loop
from kvxfer.limits import Limits

WAIT_S = 5.0


@pytest.fixture
def consumer(door: LoopbackDoor, producer: Producer) -> Iterator[Consumer]:
    one = Consumer("D", door.shard, door)
    one.connect(*producer.address, "P", 0)
    yield one
    if one.connection is not None:
        one.connection.socket.close()


def hello(incarnation: int = 77, **changes: Any) -> dict[int, Any]:
    body = {0: b"kvxfer", 16: 1, 17: 1, 18: "D", 19: 0, 20: incarnation, 21: 2, 22: 0}
    return {**body, 23: "P", 24: 0, **{int(k[1:]): v for k, v in changes.items()}}


def until_closed(one: Connection) -> list[tuple[int, dict[int, Any]]]:
    """Every message up to the end of the connection."""
    found = []
    try:
        while True:
            got = one.receive(WAIT_S)
            assert got is not None, "neither a message nor the end"
            found.append(got)
    except ConnectionError:
        one.socket.close()
        return found


def test_a_refusal_is_a_reason_and_then_the_end(producer: Producer) -> None:
    one = Connection(*producer.address)
    one.send(mp.HELLO, hello(k23="Q"))
    ((kind, body),) = until_closed(one)
    assert (kind, body[16]) == (mp.REFUSE, 21)


def test_what_was_written_before_a_refusal_leaves_first(producer: Producer) -> None:
    one = Connection(*producer.address)
    one.send(mp.HELLO, hello())
    one.send(mp.DESCRIBE, {16: "pigeon", 17: b"", 18: b"\xa0"})
    assert [kind for kind, _ in until_closed(one)] == [mp.WELCOME, mp.REFUSE]


@pytest.mark.parametrize("blob", [b"", b"no blob", bytes(200)])
def test_a_blob_that_the_transport_cannot_use_is_refused(
    producer: Producer, door: LoopbackDoor, blob: bytes
) -> None:
    one = Connection(*producer.address)
    one.send(mp.HELLO, hello())
    one.send(mp.DESCRIBE, {16: "loopback", 17: blob, 18: cbor2.dumps(door.shard)})
    found = until_closed(one)
    assert [kind for kind, _ in found] == [mp.WELCOME, mp.REFUSE]
    assert found[-1][1][16] == 11


def test_the_description_of_a_peer_stays_the_same(producer: Producer) -> None:
    seen = []
    for life in (77, 78):
        door = LoopbackDoor(memory_of())
        one = Connection(*producer.address)
        one.send(mp.HELLO, hello(life))
        assert one.receive(WAIT_S)[0] == mp.WELCOME  # type: ignore[index]
        shard = cbor2.dumps(door.shard)
        one.send(mp.DESCRIBE, {16: "loopback", 17: door.blob(), 18: shard})
        kind, body = one.receive(WAIT_S)  # type: ignore[misc]
        assert kind == mp.DESCRIBE
        seen.append(body)
        one.socket.close()
        door.close()
    assert seen[0][18] == seen[1][18]
    assert seen[0][17] != seen[1][17]


@pytest.mark.parametrize("kind", [6, 60, 65535])
def test_an_unknown_type_is_skipped_and_counted(
    consumer: Consumer, producer: Producer, kind: int
) -> None:
    link = consumer.connection
    assert link is not None
    link.send(kind, {16: ["anything"], "later": 1})  # type: ignore[dict-item]
    head = {0: "t", 1: 1, 2: consumer.incarnation, 3: consumer.producer}
    link.send(mp.GRANT, {**head, 16: b"", 17: 1000, 18: [], 19: []})
    answer, body = link.receive(WAIT_S)  # type: ignore[misc]
    assert (answer, body[0], body[1]) == (mp.GRANT_ACK, "t", 1)
    until(lambda: producer.agent.counters().get("unknown_messages") == 1)


def test_done_on_the_control_connection_ends_the_link(consumer: Consumer) -> None:
    link = consumer.connection
    assert link is not None
    head = {0: "t", 1: 1, 2: consumer.incarnation, 3: consumer.producer}
    link.send(mp.DONE, {**head, 18: [0, 0, 0, 4]})
    assert [kind for kind, _ in until_closed(link)] == [mp.REFUSE]


def runs(starts: list[int], lengths: list[int], group: int = 0, first: int = 0) -> list[Any]:
    return [group, first, column(starts), column(lengths)]


GOOD = runs([1], [2])
STOP = 2 * TOKENS
WRONG: dict[str, tuple[list[Any], list[Any]]] = {
    "block outside the pool": ([[0, 0, 0, STOP]], [runs([BLOCKS - 1], [2])]),
    "block far outside": ([[0, 0, 0, STOP]], [runs([(1 << 32) - 1], [2])]),
    "null block": ([[0, 0, 0, STOP]], [runs([0], [2])]),
    "block twice": ([[0, 0, 0, STOP]], [runs([3, 3], [1, 1])]),
    "tokens not covered": ([[0, 0, 0, STOP]], [runs([1], [1])]),
    "table starts too late": ([[0, 0, 0, STOP]], [runs([1], [2], first=1)]),
    "no table of the group": ([[0, 0, 0, STOP]], []),
    "a group that is not described": ([[0, 5, 0, STOP]], [runs([1], [2], group=5)]),
    "a run of no blocks": ([[0, 0, 0, STOP]], [runs([1, 5], [2, 0])]),
    "a part of another rank": ([[3, 0, 0, STOP]], [GOOD]),
}


@pytest.mark.parametrize("name", WRONG)
def test_blocks_that_were_not_described_are_never_written(
    consumer: Consumer, producer: Producer, door: LoopbackDoor, name: str
) -> None:
    parts, tables = WRONG[name]
    link = consumer.connection
    assert link is not None
    producer.offer("t", 3, 4)
    head = {0: "t", 1: 1, 2: consumer.incarnation, 3: consumer.producer}
    link.send(mp.GRANT, {**head, 16: b"", 17: 30_000, 18: parts, 19: tables})
    assert link.receive(WAIT_S)[0] == mp.GRANT_ACK  # type: ignore[index]
    kind, body = link.receive(WAIT_S)  # type: ignore[misc]
    assert (kind, body[16], body[18]) == (mp.NEVER_POSTED, 10, parts[0])
    assert not door.memory.any()
    # The link and the producer go on.
    good = consumer.register("u", [(0, 0, 0, STOP)], [GOOD], 0.0, 1e9)
    producer.offer("u", 3, 4)

    def landed() -> bool:
        consumer.turn(0.0, 0.01)
        return good.let_go

    until(landed)
    assert good.request == "landed"


def test_a_silent_stranger_delays_nobody(producer: Producer, door: LoopbackDoor) -> None:
    strangers = [socket.create_connection(producer.address) for _ in range(20)]
    one = Consumer("D", door.shard, door)
    one.connect(*producer.address, "P", 0)
    producer.offer("t", 3)
    made = one.register("t", [(0, 0, 0, TOKENS)], [runs([1], [1])], 0.0, 1e9)

    def landed() -> bool:
        one.turn(0.0, 0.01)
        return made.let_go

    until(landed)
    assert made.request == "landed"
    for stranger in strangers:
        stranger.close()
    one._lose(0)


def test_links_are_bounded() -> None:
    producer = Producer.start(limits=Limits(links_max=2))
    try:
        first = [socket.create_connection(producer.address, timeout=WAIT_S) for _ in range(2)]
        until(lambda: producer.agent._loop is not None and len(producer.agent._loop._links) == 2)
        third = socket.create_connection(producer.address, timeout=WAIT_S)
        assert third.recv(1) == b""
        for one in (*first, third):
            one.close()
    finally:
        producer.agent.close(timeout_s=0.5)


def test_output_that_a_peer_does_not_read_is_bounded(
    consumer: Consumer, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BACKLOG_BYTES_MAX", 1 << 20)
    agent = producer.agent
    assert agent._loop is not None
    assert agent._token is not None
    (link,) = agent._loop._links
    for _ in range(64):
        agent._token.run_sync_soon(agent._loop._write, LinkId(link), bytes(1 << 20))
    until(lambda: not agent._loop._links)  # type: ignore[union-attr]


def test_an_incarnation_is_new_at_every_start_and_never_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = set()
    for _ in range(3):
        producer = Producer.start()
        lives.add(producer.agent.incarnation)
        producer.agent.close(timeout_s=0.5)
    assert len(lives) == 3
    monkeypatch.setattr("kvxfer.driver.agent.secrets.randbits", lambda _bits: 0)
    producer = Producer.start()
    producer.agent.close(timeout_s=0.5)
    assert producer.agent.incarnation != 0
    assert isinstance(producer.agent, Agent)
    assert TransferId("t") == "t"


@pytest.mark.parametrize("detail", ["", "retry later", "reason 5", "\N{REPLACEMENT CHARACTER}"])
def test_a_detail_changes_nothing(producer: Producer, detail: str) -> None:
    one = Connection(*producer.address)
    one.send(mp.HELLO, hello())
    assert one.receive(WAIT_S)[0] == mp.WELCOME  # type: ignore[index]
    one.send(mp.REFUSE, {16: 9, 17: detail})
    assert until_closed(one) == []
