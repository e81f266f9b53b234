"""The agent as an engine uses it: real threads, real sockets, the loopback transport."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections import deque
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import trio
from driver_rig import (
    TOKENS,
    Side,
    Start,
    address,
    config,
    new_memory,
    offer,
    register,
    table,
    until,
)

from kvxfer.core.ids import Attempt, Part, Reason, Role
from kvxfer.core.messages import Done, Header
from kvxfer.driver import (
    Agent,
    Landed,
    LetGo,
    Lost,
    ProducerAddress,
    Sent,
    Timings,
    TransferId,
    Unsent,
)
from kvxfer.driver.loop import Loop
from kvxfer.errors import BadValue, LocalFault
from kvxfer.layout.geometry import BlockTable
from kvxfer.status import Status
from kvxfer.transport.caps import Caps
from kvxfer.transport.hooks import without
from kvxfer.transport.registry import open_transport
from kvxfer.wire.codec import encode
from kvxfer.wire.framing import frame

Pair = tuple[Side, Side]


@pytest.mark.parametrize("prefill_first", [True, False])
def test_bytes_arrive_in_either_order(pair: Pair, prefill_first: bool) -> None:
    p, d = pair
    legs = [lambda: offer(p, "t", 3, 7, 5), lambda: register(d, p, "t", 9, 2, 4)]
    for leg in legs if prefill_first else reversed(legs):
        leg()
    landed, let_go = d.collect(2)
    assert isinstance(landed, Landed)
    assert isinstance(let_go, LetGo)
    assert (landed.tag, landed.bytes_received) == ("t", 96)
    (sent,) = p.collect(1)
    assert isinstance(sent, Sent)
    for source, target in zip((3, 7, 5), (9, 2, 4), strict=True):
        np.testing.assert_array_equal(d.block(target), p.block(source))
    others = [n for n in range(16) if n not in (9, 2, 4)]
    assert not any(d.block(n).any() for n in others)
    assert d.agent.counters()["live"] == 0


def test_a_partial_prefix_is_left_alone(pair: Pair) -> None:
    p, d = pair
    d.block(9)[:] = 0x55
    offer(p, "t", 3, 7)
    register(d, p, "t", 9, 2, token_start=3)
    assert isinstance(d.collect(2)[0], Landed)
    slot = 8
    assert (d.block(9)[: 3 * slot] == 0x55).all()
    np.testing.assert_array_equal(d.block(9)[3 * slot :], p.block(3)[3 * slot :])


def test_many_transfers_at_once_over_one_link(pair: Pair) -> None:
    p, d = pair
    for n in range(1, 15):
        register(d, p, f"t{n}", n)
        offer(p, f"t{n}", 15 - n)
    results = d.collect(28)
    assert sum(isinstance(r, Landed) for r in results) == 14
    assert d.agent.counters()["links"] == 1
    for n in range(1, 15):
        np.testing.assert_array_equal(d.block(n), p.block(15 - n))


def test_cancel_gives_lost_then_let_go(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1)
    d.agent.cancel(TransferId("t"), "t")
    lost, let_go = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.CANCELLED_BY_CONSUMER
    assert isinstance(let_go, LetGo)


def test_withdraw_tells_the_consumer(pair: Pair) -> None:
    p, d = pair
    register(d, p, "t", 1)
    p.agent.withdraw(TransferId("t"))
    lost, _ = d.collect(2)
    assert lost.reason is Reason.PRODUCER_ABORTED


def test_nobody_listens(pair: Pair) -> None:
    _, d = pair
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        nobody = (ProducerAddress(engine_id="X", rank=0, host="127.0.0.1", port=port),)
        d.agent.register(
            TransferId("t"), producers=nobody, tables=table(1), token_start=0, token_stop=4
        )
        lost, let_go = d.collect(2)
    assert lost.reason is Reason.UNREACHABLE
    assert str(port) in lost.detail
    assert isinstance(let_go, LetGo)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64 + ".org", "no such host", ""])
def test_a_name_that_is_no_host_loses_one_transfer(pair: Pair, host: str) -> None:
    """[M2] A router's parameters come from a client."""
    p, d = pair
    nowhere = (ProducerAddress(engine_id="P", rank=0, host=host, port=1),)
    register(d, p, "t", 1, producers=nowhere)
    lost, let_go = d.collect(2)
    assert lost.reason is Reason.UNREACHABLE
    assert isinstance(let_go, LetGo)
    register(d, p, "u", 1)
    offer(p, "u", 2)
    assert isinstance(d.collect(2)[0], Landed)


def test_a_process_without_descriptors_goes_on_accepting() -> None:
    """[M2] EMFILE at accept ends nothing."""
    calls = []

    class Listener:
        async def accept(self) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            await trio.sleep_forever()

    async def run() -> None:
        loop = Loop(
            pump=SimpleNamespace(config=config("D", Role.CONSUMER, new_memory())),
            listeners=[],
            mailbox=deque(),
            deliver=print,
            publish=print,
        )
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loop._accept, Listener())
                while len(calls) < 2:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(run)
    assert len(calls) == 2


def test_wrong_engine_at_the_address(pair: Pair) -> None:
    p, d = pair
    (here,) = address(p)
    other = (ProducerAddress(engine_id="Q", rank=0, host=here.host, port=here.port),)
    register(d, p, "t", 1, producers=other)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.WRONG_PEER
    assert "this is ('P', 0)" in lost.detail


def test_unlike_layouts_are_refused_with_the_field(start: Start) -> None:
    p = start("P", Role.PRODUCER, 1)
    memory = new_memory()
    odd = config("D", Role.CONSUMER, memory)
    group = odd.shard.groups[0]
    plane = attrs.evolve(group.planes[0], name="other")
    shard = attrs.evolve(odd.shard, groups=(attrs.evolve(group, planes=(plane,)),))
    d = Side(Agent.start(attrs.evolve(odd, shard=shard)), memory)
    try:
        register(d, p, "t", 1)
        lost, _ = d.collect(2)
    finally:
        d.agent.close(0.5)
    assert lost.reason is Reason.LAYOUT_REFUSED
    assert "planes" in lost.detail


@pytest.mark.parametrize(
    ("blocks", "what"),
    [((0,), "null block"), ((99,), "0 to 15"), ((-1,), "0 to 15"), ((3, 3), "once")],
)
def test_bad_blocks_fail_that_transfer_only(pair: Pair, blocks: tuple, what: str) -> None:
    p, d = pair
    register(d, p, "bad", *blocks)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.OUT_OF_BOUNDS
    assert what in lost.detail
    register(d, p, "good", 1)
    offer(p, "good", 2)
    assert isinstance(d.collect(2)[0], Landed)


def test_a_table_that_is_no_column_fails_that_transfer_only(pair: Pair) -> None:
    p, d = pair
    strange = (BlockTable(group=0, first_token=0, blocks=[1]),)
    register(d, p, "bad", 1, tables=strange)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.LAYOUT_REFUSED
    register(d, p, "good", 1)
    offer(p, "good", 2)
    assert isinstance(d.collect(2)[0], Landed)


def test_bad_blocks_of_the_producer_fail_that_transfer_only(pair: Pair) -> None:
    p, d = pair
    register(d, p, "bad", 1)
    offer(p, "bad", 99)
    lost, _ = d.collect(2)
    assert lost.reason is Reason.OUT_OF_BOUNDS
    assert isinstance(p.collect(1)[0], Unsent)
    register(d, p, "good", 1)
    offer(p, "good", 2)
    assert isinstance(d.collect(2)[0], Landed)


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x00\x00\x00\x01\xa0", b"\x00" * 1000]
)
def test_noise_on_the_control_port_harms_nobody(pair: Pair, noise: bytes) -> None:
    p, d = pair
    host, port = p.agent.address
    with socket.create_connection((host, port), timeout=5) as stranger:
        stranger.sendall(noise)
        register(d, p, "t", 1)
        offer(p, "t", 2)
        assert isinstance(d.collect(2)[0], Landed)
        stranger.settimeout(5)
        while stranger.recv(4096):
            pass
    assert p.agent.counters()["protocol_faults"] >= 1


def test_producer_that_goes_ends_what_waits_for_it(start: Start) -> None:
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)
    register(d, p, "t", 1)
    offer(p, "u", 3)
    until(lambda: p.agent.counters()["live"] == 2)
    p.agent.close(timeout_s=2)
    lost, let_go = d.collect(2)
    assert lost.reason is Reason.SHUTDOWN
    assert isinstance(let_go, LetGo)
    assert isinstance(p.agent.take()[0], Unsent)


def test_consumer_that_goes_frees_the_producer(start: Start) -> None:
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)
    register(d, p, "t", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    d.agent.close(timeout_s=2)
    results = d.agent.take()
    assert [type(r) for r in results] == [Lost, LetGo]
    offer(p, "t", 3, lease_ms=100)
    assert isinstance(p.collect(1)[0], Unsent)


def test_deadline_ends_a_wait_without_prefill(start: Start) -> None:
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)
    register(d, p, "t", 1, deadline_ms=50)
    lost, let_go = d.collect(2)
    assert lost.reason is Reason.DEADLINE
    assert isinstance(let_go, LetGo)


def test_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = ("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(BadValue, match="free address"):
            Agent.start(config("P", Role.PRODUCER, new_memory(), listen=listen))
    assert not [t for t in threading.enumerate() if t.name.startswith("kvxfer-P")]


def test_unknown_transport_is_a_clear_error() -> None:
    with pytest.raises(LocalFault, match="loopback"):
        Agent.start(config("D", Role.CONSUMER, new_memory(), transport="pigeon"))


def test_a_transport_that_cannot_push_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    weak = without(open_transport("loopback"), Caps.NOTIFY_AFTER_VISIBLE)
    monkeypatch.setattr("kvxfer.driver.agent.open_transport", lambda _name: weak)
    with pytest.raises(BadValue, match="NOTIFY_AFTER_VISIBLE"):
        Agent.start(config("D", Role.CONSUMER, new_memory()))


def test_arrivals_that_need_our_calls_are_polled_for_beside_a_silent_descriptor(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    """[K-8.2.5] A descriptor may be declared beside TARGET_MUST_PROGRESS, and say nothing."""
    ops = open_transport("loopback")
    silent, other_end = os.pipe()
    lazy = attrs.evolve(
        ops,
        caps=lambda session: ops.caps(session) | Caps.TARGET_MUST_PROGRESS,
        wakeup_fd=lambda _session: (Status.OK, silent),
    )
    monkeypatch.setattr("kvxfer.driver.agent.open_transport", lambda _name: lazy)
    quick = Timings(transfer_deadline_ms=5_000, renew_ms=60_000)
    p = start("P", Role.PRODUCER, 1, timings=quick)
    d = start("D", Role.CONSUMER, timings=quick)
    register(d, p, "t", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    offer(p, "t", 2)
    assert isinstance(d.collect(2)[0], Landed)
    p.agent.close()
    d.agent.close()
    os.close(silent)
    os.close(other_end)


def test_what_nobody_foresaw_ends_one_transfer_not_the_thread(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = pair

    def surprise(*_: object) -> None:
        raise OverflowError("not foreseen")

    with monkeypatch.context() as patched:
        patched.setattr("kvxfer.driver.pump.part_plan", surprise)
        register(d, p, "t", 1)
        offer(p, "t", 2)
        assert d.collect(2)[0].reason is Reason.PROTOCOL_ERROR
        assert isinstance(p.collect(1)[0], Unsent)
    register(d, p, "u", 1)
    offer(p, "u", 2)
    assert isinstance(d.collect(2)[0], Landed)


def test_done_on_the_control_connection_ends_the_link(pair: Pair) -> None:
    """Only the transport may say that bytes have arrived."""
    p, d = pair
    register(d, p, "t", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    pump = p.agent._pump
    (link,) = pump.session.ctx.links.values()
    header = Header(
        transfer_id=TransferId("t"),
        attempt=Attempt(1),
        sender=p.agent.incarnation,
        receiver=d.agent.incarnation,
    )
    done = Done(header=header, part=Part(0, 0, 0, TOKENS))
    token = p.agent._token
    token.run_sync_soon(p.agent._loop._write, link.id, frame(encode(done)))
    lost, _ = d.collect(2)
    assert lost.reason is Reason.PROTOCOL_ERROR


def test_a_public_address_needs_a_word() -> None:
    with pytest.raises(BadValue, match="off loopback keys are needed"):
        config("P", Role.PRODUCER, new_memory(), listen=("0.0.0.0", 0))


def test_a_producer_needs_an_address() -> None:
    with pytest.raises(BadValue, match="consumers dial"):
        config("P", Role.PRODUCER, new_memory(), listen=None)


@pytest.mark.parametrize("name", ["", "x" * 513, "\ud800", b"t", 7, None])
def test_a_bad_name_is_refused_where_it_is_given(pair: Pair, name: object) -> None:
    p, d = pair
    for call in (
        lambda: register(d, p, name, 1),
        lambda: offer(p, name, 1),
        lambda: p.agent.withdraw(name),
        lambda: p.agent.expect(name),
        lambda: d.agent.cancel(name),
    ):
        with pytest.raises(BadValue, match="transfer_id"):
            call()


def test_a_stranger_gets_no_room_before_his_hello(pair: Pair) -> None:
    p, _ = pair
    with socket.create_connection(p.agent.address, timeout=5) as stranger:
        stranger.sendall((1 << 20).to_bytes(4, "big") + b"\x00" * 100)
        stranger.settimeout(5)
        while stranger.recv(4096):
            pass
    assert p.agent.counters()["protocol_faults"] == 1


def test_waiting_costs_no_turns_where_the_transport_wakes_us(pair: Pair) -> None:
    """A registration whose prefill runs for long must not keep the writer thread polling."""
    p, d = pair
    register(d, p, "t", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    turns = []
    pump = d.agent._pump
    whole = type(pump).turn

    def counted(self: object, now_ms: float, **given: bool) -> object:
        turns.append(now_ms)
        return whole(self, now_ms, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(pump), "turn", counted)
        assert not d.agent.wait(0.5)
    # The renewals' timer alone; polling would have made some hundred turns.
    assert len(turns) < 20
    offer(p, "t", 2)
    assert isinstance(d.collect(2)[0], Landed)


def test_a_late_notice_does_not_keep_the_thread_spinning(pair: Pair) -> None:
    """It lies in the transport with nothing open here: fetched, not signalled for ever."""
    p, d = pair
    register(d, p, "t", 1)
    offer(p, "t", 2)
    assert isinstance(d.collect(2)[0], Landed)
    pump = p.agent._pump
    (remote,) = pump.peers.by_link.values()
    status = pump.ops.send_notification(pump._transport, remote.handle, b"late")
    assert status == 0
    until(lambda: d.agent.counters().get("protocol_faults", 0) == 1)


def test_closed_agent_refuses_work(start: Start) -> None:
    p, d = start("P", Role.PRODUCER, 1), start("D", Role.CONSUMER)
    d.agent.close()
    d.agent.close()
    with pytest.raises(LocalFault, match="closed"):
        register(d, p, "t", 1)


def test_a_consumer_that_stood_still_does_not_take_its_producer_for_silent(
    start: Start,
) -> None:
    """Its thread does nothing for longer than a silent peer is borne; so does a paused host."""
    quick = Timings(renew_ms=100, renew_misses_max=5)
    p = start("P", Role.PRODUCER, 1)
    d = start("D", Role.CONSUMER, timings=quick)
    register(d, p, "t", 1)
    until(lambda: p.agent.counters()["live"] == 1)
    assert d.agent._token is not None
    d.agent._token.run_sync_soon(time.sleep, 2.5)
    until(lambda: d.agent.counters().get("stalls", 0) > 0)
    offer(p, "t", 2)
    assert isinstance(d.collect(2)[0], Landed)
    assert np.array_equal(d.block(1), p.block(2))


def test_lease_is_kept_while_renewed(start: Start) -> None:
    """A consumer that waits longer than the grant's lease keeps its place by renewing."""
    # A thread that a busy machine keeps waiting for a second is not a silent peer.
    quick = Timings(renew_ms=100, grant_lease_ms=1_500, renew_misses_max=600)
    p = start("P", Role.PRODUCER, 1, timings=quick)
    d = start("D", Role.CONSUMER, timings=quick)
    register(d, p, "t", 1)
    assert not d.agent.wait(2.0)
    offer(p, "t", 2)
    assert isinstance(d.collect(2)[0], Landed)
