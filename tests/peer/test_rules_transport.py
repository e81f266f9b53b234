"""Rules about what is handed to the transport, and when (sections 3.2, 5.1, 6.5, 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import cbor2
import numpy as np
import pytest
from door import BLOCKS, Producer, memory_of, shard_of, until
from pumps import LINK, Pumps, table

from kvxfer.core.ids import Reason, Role, TransferId
from kvxfer.core.messages import Grant, Header
from kvxfer.driver import Agent, AgentConfig, Landed, LetGo, Lost, Memory, ProducerAddress, Sent
from kvxfer.limits import Limits
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import without
from kvxfer.transport.loopback import make_ops
from kvxfer.transport.loopback_hub import Hub
from kvxfer.transport.ops import TransportOps
from kvxfer.wire.codec import encode


@attrs.define
class Recorder:
    """Every call of some slots, in order, with what it gave."""

    calls: list[tuple[str, tuple[Any, ...], Any]] = attrs.field(factory=list)

    def around(self, *slots: str) -> Callable[[TransportOps], TransportOps]:
        def wrapped(ops: TransportOps, name: str) -> Any:
            inner = getattr(ops, name)

            def slot(*arguments: Any) -> Any:
                given = inner(*arguments)
                # Columns are copied: the caller may use them again.
                kept = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
                self.calls.append((name, kept, given))
                return given

            return slot

        return lambda ops: attrs.evolve(ops, **{name: wrapped(ops, name) for name in slots})

    def of(self, name: str) -> list[tuple[tuple[Any, ...], Any]]:
        return [(arguments, given) for slot, arguments, given in self.calls if slot == name]


def linked(**settings: Any) -> Pumps:
    pumps = Pumps(**settings)
    pumps.register("first", 1)
    pumps.offer("first", 1)
    pumps.settle()
    assert [type(r) for r in pumps.results["D"]] == [Landed, LetGo]
    pumps.results["D"].clear()
    pumps.results["P"].clear()
    return pumps


def test_memory_is_registered_before_the_blob_is_made() -> None:
    recorder = Recorder()
    linked(bend=recorder.around("register_region", "peer_create")).close()
    for session in {arguments[0] for _, arguments, _ in recorder.calls}:
        mine = [name for name, arguments, _ in recorder.calls if arguments[0] == session]
        assert mine == ["register_region", "peer_create"]


def test_done_rides_on_the_last_write_after_all_others_have_completed() -> None:
    recorder = Recorder()
    small = {"limits": Limits(post_window_descriptors_max=1, windows_per_peer_max=2)}
    pumps = linked(bend=recorder.around("post_write", "poll"), changes=small)
    recorder.calls.clear()
    pumps.register("t", 2, 5, 7, 9, 12)
    pumps.offer("t", 3, 6, 8, 10, 13)
    pumps.settle()
    assert isinstance(pumps.results["D"][0], Landed)
    in_flight: set[int] = set()
    posts = 0
    for name, arguments, given in recorder.calls:
        if name == "poll":
            status, count = given
            assert status == Status.OK
            in_flight -= {int(r) for r in arguments[1]["request"][:count]} if count else set()
            continue
        _, _, _, _, length, notify = arguments
        assert len(length) == 1
        posts += 1
        assert (notify is not None) is (posts == 5)
        if notify is not None:
            assert not in_flight
        in_flight.add(given[1])
        assert len(in_flight) <= 2
    assert posts == 5
    pumps.close()


def test_a_notification_is_the_message_alone() -> None:
    recorder = Recorder()
    pumps = linked(bend=recorder.around("post_write"))
    for arguments, _ in recorder.of("post_write"):
        kind, body = cbor2.loads(arguments[5])
        assert kind == 32
        assert body[18] == [0, 0, 0, 4]
    assert recorder.calls
    assert all(data[:4] == (len(data) - 4).to_bytes(4, "big") for _, data in pumps.sent)
    pumps.close()


def test_every_message_but_done_is_on_the_control_connection() -> None:
    recorder = Recorder()
    pumps = linked(bend=recorder.around("post_write", "send_notification"))
    kinds = {cbor2.loads(data[4:])[0] for _, data in pumps.sent}
    assert 32 not in kinds
    assert {1, 2, 4, 16, 17} <= kinds
    assert recorder.of("send_notification") == []
    pumps.close()


def test_what_the_transport_has_delivered_counts_before_the_loss_of_the_link() -> None:
    pumps = linked()
    pumps.register("t", 2)
    pumps.offer("t", 3)
    pumps.settle("D")
    pumps.settle("P")
    assert isinstance(pumps.results["P"][0], Sent)
    assert pumps.results["D"] == []
    pumps.d.link_closed(LINK, Reason.PEER_LOST, 1.0)
    pumps.settle("D")
    assert [type(r) for r in pumps.results["D"]] == [Landed, LetGo]
    pumps.close()


def test_the_loss_of_the_link_without_a_notice_is_a_loss() -> None:
    pumps = linked()
    pumps.register("t", 2)
    pumps.settle("D")
    pumps.d.link_closed(LINK, Reason.PEER_LOST, 1.0)
    pumps.settle("D")
    assert [type(r) for r in pumps.results["D"]] == [Lost, LetGo]
    pumps.close()


@pytest.mark.parametrize("payload", [b"late", b"", "grant", "cancelled"])
def test_a_notification_that_is_not_done_ends_the_link(payload: Any) -> None:
    pumps = linked()
    pumps.register("t", 2)
    pumps.settle()
    grant = next(iter(pumps.p.session.producer.sends.values())).grant
    if payload == "grant":
        payload = encode(grant)
    elif payload == "cancelled":
        # The one who may say so says it where nobody may.
        payload = cbor2.dumps([21, {0: "t", 1: 1, 2: 1, 3: 1000}])
    assert isinstance(grant, Grant)
    assert isinstance(grant.header, Header)
    (remote,) = pumps.p.peers.by_link.values()
    status = pumps.p.ops.send_notification(pumps.p._transport, remote.handle, payload)
    pumps.settle("D")
    links = pumps.d.session.ctx.links
    # What is empty is refused where it cannot be delivered (8.2.3).
    assert (len(links), status) == ((1, Status.OP_INVALID) if payload == b"" else (0, Status.OK))
    pumps.close()


def test_blobs_are_made_for_one_link_each() -> None:
    recorder = Recorder()
    pumps = linked(bend=recorder.around("peer_create"))
    pumps.p.link_closed(LINK, Reason.PEER_LOST, 1.0)
    pumps.d.link_closed(LINK, Reason.PEER_LOST, 1.0)
    pumps.register("t", 2)
    pumps.offer("t", 2)
    pumps.settle()
    assert isinstance(pumps.results["D"][0], Landed)
    blobs = [given[2] for _, given in recorder.of("peer_create")]
    assert len(blobs) == len(set(blobs)) == 4
    pumps.close()


def test_bytes_behind_the_tokens_stay() -> None:
    pumps = linked()
    before = pumps.memories["D"].reshape(BLOCKS, -1)[2].copy()
    pumps.register("t", 2, stop=3)
    pumps.offer("t", 3)
    pumps.settle()
    after = pumps.memories["D"].reshape(BLOCKS, -1)[2]
    source = pumps.memories["P"].reshape(BLOCKS, -1)[3]
    np.testing.assert_array_equal(after[:24], source[:24])
    np.testing.assert_array_equal(after[24:], before[24:])
    pumps.close()


def test_a_target_that_must_progress_is_driven_while_it_has_granted_anything() -> None:
    recorder = Recorder()
    pumps = linked(bend=recorder.around("poll"))
    assert not pumps.d.busy()
    pumps.register("t", 2)
    pumps.settle()
    for _ in range(5):
        recorder.calls.clear()
        assert pumps.d.busy()
        pumps.turn("D")
        assert recorder.of("poll")
    pumps.offer("t", 3)
    pumps.settle()
    assert not pumps.d.busy()
    pumps.close()


def test_a_transport_without_a_wake_up_is_polled_while_something_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    ops = recorder.around("poll")(without(make_ops(Hub()), Caps.WAKEUP_FD))
    monkeypatch.setattr("kvxfer.driver.agent.open_transport", lambda _name: ops)
    producer = Producer.start()
    memory = memory_of()
    piece = Memory(base=int(memory.ctypes.data), length=memory.nbytes, keepalive=memory)
    config = AgentConfig(
        engine_id="D", role=Role.CONSUMER, shard=shard_of(memory), memories=(piece,)
    )
    agent = Agent.start(config)
    try:
        host, port = producer.address
        here = ProducerAddress(engine_id="P", rank=0, host=host, port=port)
        agent.register(
            TransferId("t"),
            producers=(here,),
            tables=table(2),
            token_start=0,
            token_stop=4,
        )
        until(lambda: producer.agent.counters()["live"] == 1)
        session = agent._pump._transport  # type: ignore[union-attr]
        seen = len(recorder.of("poll"))
        until(lambda: sum(a[0] == session for a, _ in recorder.of("poll")[seen:]) > 20)
    finally:
        agent.close(timeout_s=0.5)
        producer.agent.close(timeout_s=0.5)
