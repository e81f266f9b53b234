"""docs/examples/minimal_peer.py against a real agent: TCP control, the loopback for the bytes."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cbor2
import minimal_peer as mp
import numpy as np
import pytest
from door import BLOCKS, TOKENS, LoopbackDoor, Producer, until
from minimal_peer import Consumer, Refused, Transfer, column

from kvxfer.driver import Sent, Unsent

EXAMPLE = Path(mp.__file__)


@pytest.fixture
def consumer(door: LoopbackDoor, producer: Producer) -> Iterator[Consumer]:
    one = Consumer("D", door.shard, door)
    one.connect(*producer.address, "P", 0)
    yield one
    if one.connection is not None:
        one.connection.socket.close()


def register(one: Consumer, tid: str, *blocks: int, wait_s: float = 20.0) -> Transfer:
    part = (0, 0, 0, len(blocks) * TOKENS)
    table = [0, 0, column(list(blocks)), column([1] * len(blocks))]
    return one.register(tid, [part], [table], time.monotonic(), wait_s)


def turn_until(one: Consumer, condition: Callable[[], Any]) -> None:
    def step() -> Any:
        one.turn(time.monotonic(), 0.01)
        return condition()

    until(step)


def test_it_is_small_and_knows_nothing_of_kvxfer() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    standard = {"__future__", "secrets", "socket", "struct", "dataclasses", "typing"}
    assert imported == standard | {"cbor2"}


@pytest.mark.parametrize("prefill_first", [True, False])
def test_bytes_land(
    consumer: Consumer, producer: Producer, door: LoopbackDoor, prefill_first: bool
) -> None:
    if prefill_first:
        producer.offer("t", 3, 7, 5)
    one = register(consumer, "t", 9, 2, 4)
    if not prefill_first:
        producer.offer("t", 3, 7, 5)
    turn_until(consumer, lambda: one.let_go)
    assert one.request == "landed"
    assert isinstance(producer.result(), Sent)
    for source, target in zip((3, 7, 5), (9, 2, 4)):
        np.testing.assert_array_equal(door.block(target), producer.block(source))
    others = [n for n in range(BLOCKS) if n not in (9, 2, 4)]
    assert not any(door.block(n).any() for n in others)
    assert consumer.transfers == {}


def test_many_transfers_over_one_link(consumer: Consumer, producer: Producer) -> None:
    made = [register(consumer, f"t{n}", n) for n in range(1, 12)]
    for n in range(1, 12):
        producer.offer(f"t{n}", n)
    turn_until(consumer, lambda: all(one.let_go for one in made))
    assert {one.request for one in made} == {"landed"}


def test_nothing_needed_releases_the_producer(consumer: Consumer, producer: Producer) -> None:
    producer.offer("t", 3)
    one = consumer.register("t", [], [], time.monotonic(), 1.0)
    assert one.let_go
    assert isinstance(producer.result(), Sent)


def test_cancel_is_answered(consumer: Consumer, producer: Producer) -> None:
    one = register(consumer, "t", 1)
    consumer.cancel(one, time.monotonic())
    assert (one.request, one.let_go) == ("lost", False)
    turn_until(consumer, lambda: one.let_go)


def test_an_abort_is_told(consumer: Consumer, producer: Producer) -> None:
    one = register(consumer, "t", 1)
    producer.agent.withdraw("t")
    turn_until(consumer, lambda: one.let_go)
    assert (one.request, one.reason) == ("lost", 2)


def test_the_next_attempt_is_another_one(consumer: Consumer, producer: Producer) -> None:
    first = register(consumer, "t", 1)
    consumer.cancel(first, time.monotonic())
    turn_until(consumer, lambda: first.let_go)
    second = register(consumer, "t", 2)
    # An offer that finds only the cancelled attempt ends at once, and the second is on its way.
    until(lambda: producer.agent.counters()["live"] == 1)
    producer.offer("t", 5)
    turn_until(consumer, lambda: second.let_go)
    assert (second.attempt, second.request) == (2, "landed")


def test_blocks_out_of_bounds_lose_one_transfer(consumer: Consumer, producer: Producer) -> None:
    bad = register(consumer, "bad", BLOCKS)
    producer.offer("bad", 1)
    turn_until(consumer, lambda: bad.let_go)
    assert (bad.request, bad.reason) == ("lost", 10)
    assert isinstance(producer.result(), Unsent)
    good = register(consumer, "good", 1)
    producer.offer("good", 2)
    turn_until(consumer, lambda: good.request == "landed")


def test_a_deadline_ends_the_request_and_a_cancel_the_writer(consumer: Consumer) -> None:
    one = register(consumer, "t", 1, wait_s=0.0)
    consumer.turn(time.monotonic())
    assert (one.request, one.reason, one.let_go) == ("lost", 12, False)
    turn_until(consumer, lambda: one.let_go)


def test_a_producer_that_goes_is_fenced(
    consumer: Consumer, producer: Producer, door: LoopbackDoor
) -> None:
    door.proof = False
    waiting, other = register(consumer, "t", 1), register(consumer, "u", 2)
    until(lambda: producer.agent.counters()["live"] == 2)
    # A crash as the consumer sees it: the connection ends without a word.
    token = producer.agent._token
    loop = producer.agent._loop
    token.run_sync_soon(lambda: [c.scope.cancel() for c in loop._links.values()])
    turn_until(consumer, lambda: waiting.request == "lost")
    assert (waiting.let_go, other.let_go) == (False, False)
    door.proof = True
    turn_until(consumer, lambda: waiting.let_go and other.let_go)


def test_the_same_life_vouches_over_a_new_link(
    consumer: Consumer, producer: Producer, door: LoopbackDoor
) -> None:
    door.proof = False
    one = register(consumer, "t", 1)
    until(lambda: producer.agent.counters()["live"] == 1)
    consumer._lose(mp.PEER_LOST)
    consumer.turn(time.monotonic())
    assert not one.let_go
    consumer.connect(*producer.address, "P", 0)
    turn_until(consumer, lambda: one.let_go)


def test_it_renews(producer: Producer, consumer: Consumer) -> None:
    one = register(consumer, "t", 1)
    sent: list[int] = []
    assert consumer.connection is not None
    plain = consumer.connection.send
    consumer.connection.send = lambda kind, body: (sent.append(kind), plain(kind, body))[1]  # type: ignore[method-assign]
    start = time.monotonic()
    for seconds in (1.0, 2.1, 3.0, 4.2):
        consumer.turn(start + seconds)
    assert sent == [mp.RENEW, mp.RENEW]
    assert one.request == "waiting"


def test_silence_is_no_proof(producer: Producer, consumer: Consumer, door: LoopbackDoor) -> None:
    door.proof = False
    one = register(consumer, "t", 1)
    assert consumer.connection is not None
    consumer.connection.receive = lambda _s: None  # type: ignore[method-assign]
    consumer.turn(time.monotonic() + 10.1)
    assert (one.request, one.reason, one.let_go) == ("lost", mp.PEER_SILENT, False)


@pytest.mark.parametrize(("engine", "rank"), [("Q", 0), ("P", 1)])
def test_the_wrong_peer_refuses(
    door: LoopbackDoor, producer: Producer, engine: str, rank: int
) -> None:
    with pytest.raises(Refused) as caught:
        Consumer("D", door.shard, door).connect(*producer.address, engine, rank)
    assert caught.value.args[0] == 21


def test_a_descriptor_that_does_not_fit_is_refused(door: LoopbackDoor, producer: Producer) -> None:
    shard = door.shard
    shard["groups"][0]["heads_total"] = 2
    with pytest.raises(Refused) as caught:
        Consumer("D", shard, door).connect(*producer.address, "P", 0)
    assert caught.value.args[0] == 9


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({18: [5, 5, 5, 5]}, mp.PARTS_MISMATCH), ({2: 99}, 0), ({3: 99}, 0), ({1: 7}, 0)],
)
def test_a_notice_that_names_something_else_is_not_counted(
    consumer: Consumer, changes: dict[int, Any], reason: int
) -> None:
    one = register(consumer, "t", 1)
    done = {0: "t", 1: 1, 2: consumer.producer, 3: consumer.incarnation, 18: [0, 0, 0, TOKENS]}
    consumer._message(mp.DONE, {**done, **changes}, 0.0)
    assert (one.request, one.reason) == ("lost" if reason else "waiting", reason)


def test_a_failed_part_that_is_not_quiet_keeps_the_blocks(consumer: Consumer) -> None:
    one = register(consumer, "t", 1)
    body = {0: "t", 1: 1, 2: consumer.producer, 3: consumer.incarnation, 18: [0, 0, 0, TOKENS]}
    consumer._message(mp.FAILED, {**body, 16: 11, 17: False}, 0.0)
    consumer._message(mp.DONE, body, 0.0)
    assert (one.request, one.reason, one.let_go) == ("lost", 11, False)


def test_nonsense_ends_the_link_and_fences(consumer: Consumer, door: LoopbackDoor) -> None:
    door.proof = False
    one = register(consumer, "t", 1)
    door.notifications = lambda: [b"\xff"]  # type: ignore[method-assign]
    consumer.turn(time.monotonic())
    assert consumer.connection is None
    assert (one.request, one.reason, one.let_go) == ("lost", mp.PROTOCOL_ERROR, False)


def test_what_it_writes_is_what_the_schema_says() -> None:
    pycddl = pytest.importorskip("pycddl")
    path = Path(__file__).resolve().parents[2] / "spec" / "kvxfer-1.cddl"
    schema = pycddl.Schema(path.read_text(encoding="utf-8"))
    head = {0: "t", 1: 1, 2: 3, 3: 4}
    table = [0, 0, column([3]), column([1])]
    grant = {**head, 16: b"", 17: 1, 18: [[0, 0, 0, 4]], 19: [table]}
    schema.validate_cbor(cbor2.dumps([mp.GRANT, grant]))
    schema.validate_cbor(cbor2.dumps([mp.RENEW, {**head, 17: 1}]))
    schema.validate_cbor(cbor2.dumps([mp.CANCEL, {**head, 16: 1}]))
