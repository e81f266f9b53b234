"""Too much, too big, too slow, and not understood: the cost stays bounded, the pair goes on."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
from collections.abc import Callable

import attrs
import pytest
from attacker import QUICK, Attacker, Side, fetch
from driver_rig import Start, config, new_memory, until

from kvxfer.core.ids import Reason, Role
from kvxfer.core.messages import Bye, Proof
from kvxfer.driver import Limits
from kvxfer.errors import BadValue
from kvxfer.wire.codec import encode
from kvxfer.wire.framing import frame

Pair = tuple[Side, Side]
Attack = Callable[..., Attacker]

HALF_OPEN = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 2_000)
"""10,000 where this process may have so many descriptors: the attacker's own ends are in it."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def length(count: int) -> bytes:
    return count.to_bytes(4, "big")


MALFORMED = {
    "no-length": length(0),
    "longest-length": b"\xff" * 4,
    "longer-than-a-hello": length(4097),
    "text": b"GET / HTTP/1.1\r\nHost: kvxfer\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "empty-array": frame(b"\x80"),
    "not-cbor": frame(b"\xff\xff\xff"),
    "nested": frame(b"\x81" * 1000 + b"\x00"),
    "items-without-end": frame(b"\x82\x01\xbb" + b"\xff" * 8),
    "proof-first": frame(encode(Proof(mac=bytes(32)))),
    "pickle": frame(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94."),
}

pytestmark = pytest.mark.timeout(900)
"""A flood competes with its own test for the interpreter lock; how long that takes says nothing."""


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_understood_costs_its_own_link(pair: Pair, attack: Attack, name: str) -> None:
    p, d = pair
    fetch(p, d, "before", 1)
    stranger = attack(p)
    stranger.raw(MALFORMED[name])
    assert stranger.ended()
    fetch(p, d, "after", 2)
    assert p.agent.counters()["links"] == 1


def test_a_message_before_the_proof_has_no_room_for_more_than_a_hello(
    pair: Pair, attack: Attack
) -> None:
    """HELLO is good, and what follows is a DESCRIBE of a megabyte, or the promise of one."""
    p, d = pair
    stranger = attack(p)
    stranger.greet()
    stranger.raw(length(1 << 20))
    assert stranger.ended()
    fetch(p, d, "after", 1)


def test_noise_on_many_connections(pair: Pair, attack: Attack) -> None:
    p, d = pair
    drawn = random.Random(7)
    for n in range(200):
        stranger = attack(p)
        stranger.raw(drawn.randbytes(drawn.randrange(1, 200)))
        stranger.close()
        if n % 50 == 0:
            fetch(p, d, f"t{n}", 1 + n // 50)
    fetch(p, d, "after", 7)
    until(lambda: len(p.agent._loop._links) == 1)


def test_noise_behind_a_proof_ends_that_link_alone(pair: Pair, attack: Attack) -> None:
    p, d = pair
    fetch(p, d, "before", 1)
    stranger = attack(p)
    stranger.prove()
    stranger.raw(frame(b"\x00" * 100))
    assert stranger.ended()
    fetch(p, d, "after", 2)


def test_whoever_is_slow_is_cut_off_by_the_deadline(start: Start, attack: Attack) -> None:
    """One byte at a time, as long as it is taken: the deadline counts from the connection."""
    short = attrs.evolve(QUICK, handshake_ms=4_000)
    p, d = start("P", Role.PRODUCER, 1, timings=short), start("D", Role.CONSUMER)
    fetch(p, d, "before", 1)
    slow = [attack(p) for _ in range(20)]
    hello = frame(encode(slow[0].hello))
    for byte in hello[:-1]:
        for one in slow:
            with contextlib.suppress(OSError):
                one.socket.sendall(bytes([byte]))
        if len(p.agent._loop._links) == 1:
            break
    assert all(one.ended() for one in slow)
    until(lambda: len(p.agent._loop._links) == 1)
    fetch(p, d, "after", 2)


@pytest.mark.timeout(900)  # where the accept queue overflows the kernel makes callers wait
def test_ten_thousand_half_open_connections_do_not_stop_a_transfer(start: Start) -> None:
    """The attacker holds all of them open; the agent holds `half_open_max`, and serves its own."""
    patient = attrs.evolve(QUICK, handshake_ms=60_000)
    bound = 64
    limits = Limits(half_open_max=bound)
    p = start("P", Role.PRODUCER, 1, timings=patient, limits=limits)
    d = start("D", Role.CONSUMER, timings=patient)
    fetch(p, d, "before", 1)
    host, port = p.agent.address
    before = descriptors()
    held: list[socket.socket] = []
    most = 0
    try:
        for n in range(HALF_OPEN):
            held.append(
                socket.create_connection((host, port), timeout=60, source_address=("127.0.0.9", 0))
            )
            if n % 1000 == 500:
                most = max(most, descriptors() - before - len(held))
                fetch(p, d, f"beside {n}", 2)
                # Whoever comes new from elsewhere has a place, too.
                newcomer = start("N", Role.CONSUMER, timings=patient)
                fetch(p, newcomer, f"new {n}", 3)
                newcomer.agent.close(timeout_s=0.5)
        until(lambda: len(p.agent._loop._links) <= bound + 2)
        assert most <= bound + 32
        assert p.agent._loop._lobby.count <= bound
        fetch(p, d, "after", 4)
    finally:
        for one in held:
            one.close()
    until(lambda: p.agent._loop._lobby.count == 0)
    until(lambda: descriptors() <= before + 2)


def test_a_flood_of_good_messages_slows_down_nobody_but_its_sender(
    start: Start, attack: Attack
) -> None:
    """A peer with a key sends 200,000 messages at once; it is read at its rate."""
    limits = Limits(messages_per_s_max=1000, messages_burst_max=100)
    p, d = start("P", Role.PRODUCER, 1, limits=limits), start("D", Role.CONSUMER)
    fetch(p, d, "before", 1)
    flood = attack(p)
    flood.prove()
    unknown = b"\x82\x19\x0f\x00\xa0"
    assert flood.sealer is not None
    data = b"".join(frame(flood.sealer.seal(unknown)) for _ in range(200_000))
    flood.socket.setblocking(False)
    flood.socket.send(data)
    for block in range(2, 8):
        fetch(p, d, f"t{block}", block)
    # At 1000 a second it would take minutes to have taken in a quarter.
    counted = p.agent.counters().get("unknown_messages", 0)
    assert 0 < counted < 200_000 // 4


def test_a_peer_that_says_bye_again_and_again_is_only_forgotten(pair: Pair, attack: Attack) -> None:
    p, d = pair
    for _ in range(20):
        guest = attack(p)
        guest.prove()
        guest.send(Bye(reason=Reason.SHUTDOWN))
        assert guest.ended()
    fetch(p, d, "after", 1)
    until(lambda: len(p.agent._loop._links) == 1)
    assert p.agent._loop._lobby.count == 0


def test_a_flood_of_notices_leaves_everything_else_its_turn(pair: Pair) -> None:
    """Whoever can send to the transport sends without end, faster than they can be looked at."""
    p, d = pair
    fetch(p, d, "before", 1)
    pump = d.agent._pump
    inner = pump.ops.poll_notifications
    handle = next(iter(pump.peers.by_handle))

    def poll(session: int, count_max: int) -> tuple[int, list[tuple[int, bytes]]]:
        status, found = inner(session, count_max)
        return status, (found + [(handle, b"noise")] * count_max)[:count_max]

    quiet = pump.ops
    pump.ops = attrs.evolve(pump.ops, poll_notifications=poll)
    for block in range(2, 6):
        fetch(p, d, f"t{block}", block)
    counters = pump.session.ctx.counters
    assert counters["forged_notices"] > 0
    assert counters["flood_pauses"] > 0
    # The loss of a link takes in what was delivered before; there must be an end to that, too.
    (connection,) = d.agent._loop._links.values()
    d.agent._token.run_sync_soon(connection.scope.cancel)
    until(lambda: not d.agent._loop._links)
    fetch(p, d, "after", 7)
    # The noise ends with the test: what comes after is not about it.
    pump.ops = quiet


@pytest.mark.parametrize(
    "name",
    ["half_open_max", "messages_per_s_max", "messages_burst_max", "notices_per_turn_max"],
)
def test_a_bound_of_nothing_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(BadValue, match=rf"limits\.{name} = 0: at least 1"):
        config("D", Role.CONSUMER, new_memory(), limits=Limits(**{name: 0}))
