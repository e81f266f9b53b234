"""Who has no key, another one, an old one, or somebody else's handshake, gets nothing.

Beside each attack the healthy pair goes on, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from attacker import (
    IMPOSTOR,
    LIMITS,
    OTHER_SECRET,
    SECRET,
    Attacker,
    Relay,
    Side,
    fetch,
    fetch_through,
    through,
)
from driver_rig import Start, address, config, new_memory, offer, register, until

from kvxfer.core.ids import Reason, Role
from kvxfer.core.messages import Describe, Grant, Header, Proof, Refuse, Welcome
from kvxfer.driver import Key, KeyFile, KeyRing, LetGo, Lost
from kvxfer.driver.config import AgentConfig
from kvxfer.wire.codec import decode, encode
from kvxfer.wire.framing import frame

Attack = Callable[..., Attacker]
Pair = tuple[Side, Side]


def test_a_pair_that_shares_a_key_works(pair: Pair) -> None:
    p, d = pair
    for block in range(1, 6):
        fetch(p, d, f"t{block}", block)
    assert p.agent.counters().get("unauthenticated", 0) == 0


def test_no_key_is_refused_before_anything_is_described(pair: Pair, attack: Attack) -> None:
    p, d = pair
    fetch(p, d, "before", 1)
    stranger = attack(p)
    stranger.send(attrs.evolve(stranger.hello, key_ids=(), nonce=b""))
    refuse = stranger.receive()
    assert isinstance(refuse, Refuse)
    assert refuse.reason is Reason.UNAUTHENTICATED
    assert stranger.ended()
    fetch(p, d, "after", 2)


def test_a_wrong_key_is_refused_and_learns_nothing(pair: Pair, attack: Attack) -> None:
    p, d = pair
    stranger = attack(p)
    stranger.prove(OTHER_SECRET)
    stranger.send(Describe(transport="loopback", blob=b"", shard=b""))
    fetch(p, d, "beside", 1)
    # What comes is a refusal, sealed with keys that the stranger has not got, and the end.
    assert stranger.ended()
    until(lambda: p.agent.counters().get("unauthenticated", 0) == 1)
    fetch(p, d, "after", 2)


def test_an_agent_with_a_wrong_key_loses_its_transfer_and_says_why(
    pair: Pair, start: Start
) -> None:
    p, d = pair
    impostor = start("X", Role.CONSUMER, keys=IMPOSTOR)
    register(impostor, p, "stolen", 1)
    offer(p, "stolen", 1)
    lost, let_go = impostor.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.AUTHENTICATION_FAILED
    assert isinstance(let_go, LetGo)
    assert not impostor.memory.any()
    # The offer is still there, for whom it was meant.
    register(d, p, "stolen", 1)
    assert [type(r).__name__ for r in d.collect(2)] == ["Landed", "LetGo"]


def test_a_producer_with_a_wrong_key_is_described_nothing(pair: Pair, start: Start) -> None:
    """Whoever takes the place of a producer gets HELLO, no blob and no layout."""
    p, d = pair
    impostor = start("P", Role.PRODUCER, 3, keys=IMPOSTOR)
    register(d, impostor, "trap", 1)
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.AUTHENTICATION_FAILED
    assert impostor.agent.counters()["links"] == 0
    assert not d.memory.any()
    fetch(p, d, "after", 2)


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True)])
def test_a_side_that_requires_a_key_makes_no_link_with_one_that_has_none(
    start: Start, ours: bool, theirs: bool
) -> None:
    ring = KeyRing((Key("k", SECRET),))
    p = start("P", Role.PRODUCER, 1, keys=ring if ours else None)
    d = start("D", Role.CONSUMER, keys=ring if theirs else None)
    register(d, p, "t", 1)
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.UNAUTHENTICATED


def test_where_keys_are_being_handed_out_both_kinds_of_peer_are_served(start: Start) -> None:
    p = start("P", Role.PRODUCER, 1, require_authentication=False)
    with_key, without = start("D", Role.CONSUMER), start("E", Role.CONSUMER, keys=None)
    fetch(p, with_key, "a", 1)
    fetch(p, without, "b", 2)


def test_keys_rotate_without_a_restart_and_the_old_one_ends(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    old, new = f"old {SECRET.hex()}\n", f"new {OTHER_SECRET.hex()}\n"
    path.write_text(old)
    p = start("P", Role.PRODUCER, 1, keys=KeyFile(path))
    before = start("D", Role.CONSUMER, keys=KeyRing((Key("old", SECRET),)))
    fetch(p, before, "old", 1)

    path.write_text(new + old)
    after = start("E", Role.CONSUMER, keys=KeyRing((Key("new", OTHER_SECRET),)))
    late = start("F", Role.CONSUMER, keys=KeyRing((Key("old", SECRET),)))
    fetch(p, after, "new", 2)
    fetch(p, late, "still old", 3)

    path.write_text(new)
    retired = start("G", Role.CONSUMER, keys=KeyRing((Key("old", SECRET),)))
    register(retired, p, "too late", 4)
    lost, _ = retired.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.UNAUTHENTICATED
    # A link that is up outlives its key; it is the next one that needs the new key.
    fetch(p, before, "up since then", 5)
    fetch(p, after, "new again", 6)


def test_a_key_file_that_breaks_leaves_the_keys_of_before(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"k {SECRET.hex()}\n")
    p = start("P", Role.PRODUCER, 1, keys=KeyFile(path))
    path.write_text("half a li")
    fetch(p, start("D", Role.CONSUMER), "broken", 1)
    path.unlink()
    fetch(p, start("E", Role.CONSUMER), "gone", 2)


def test_a_recorded_handshake_is_good_for_nothing(
    pair: Pair, attack: Attack, relay: Callable[..., Relay]
) -> None:
    """All that D has ever sent, sent again by somebody else: P draws another nonce."""
    p, d = pair
    middle = relay(p, lambda _way, _number, payload: [payload])
    fetch_through(p, d, middle, "recorded", 1)
    recorded = b"".join(frame(payload) for payload in middle.seen["out"])
    replayed = attack(p)
    replayed.raw(recorded)
    welcome, proof = replayed.receive(), replayed.receive()
    assert isinstance(welcome, Welcome)
    assert isinstance(proof, Proof)
    assert replayed.ended()
    until(lambda: p.agent.counters().get("unauthenticated", 0) == 1)
    # D's own link has not suffered from somebody who said its name.
    fetch_through(p, d, middle, "after", 2)
    assert p.agent.counters()["links"] == 1


def test_the_acceptors_own_proof_sent_back_to_it_is_refused(pair: Pair, attack: Attack) -> None:
    p, d = pair
    mirror = attack(p)
    _, proof = mirror.greet()
    mirror.send(proof)
    assert mirror.ended()
    until(lambda: p.agent.counters().get("unauthenticated", 0) == 1)
    fetch(p, d, "after", 1)


def test_a_grant_before_the_proof_moves_nothing(pair: Pair, attack: Attack) -> None:
    p, d = pair
    offer(p, "mine", 1)
    eager = attack(p)
    eager.greet()
    header = Header(
        transfer_id="mine",
        attempt=1,
        sender=eager.hello.incarnation,
        receiver=p.agent.incarnation,
    )
    eager.send(Grant(header=header, digest=b"", lease_ms=1000, parts=(), tables=()))
    assert eager.ended()
    register(d, p, "mine", 1)
    assert [type(r).__name__ for r in d.collect(2)] == ["Landed", "LetGo"]


@pytest.mark.parametrize("changes", [{"key_ids": (), "nonce": b""}, {"features": 0}, {"rank": 7}])
def test_a_hello_that_was_changed_on_the_way_makes_no_link(
    pair: Pair, relay: Callable[..., Relay], changes: dict[str, object]
) -> None:
    """Taking the keys out is refused by P, taking anything else out by the proof over it."""
    p, d = pair

    def meddle(way: str, number: int, payload: bytes) -> list[bytes]:
        if (way, number) != ("out", 0):
            return [payload]

        return [encode(attrs.evolve(decode(payload, LIMITS), **changes))]

    middle = relay(p, meddle)
    register(d, p, "t", 1, producers=through(p, middle))
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason in (Reason.UNAUTHENTICATED, Reason.AUTHENTICATION_FAILED)
    fetch(p, d, "direct", 2)


def test_off_loopback_an_agent_without_keys_neither_listens_nor_dials(start: Start) -> None:
    d = start("D", Role.CONSUMER, keys=None)
    p = start("P", Role.PRODUCER, 1, keys=None)
    away = (attrs.evolve(address(p)[0], host="192.0.2.1"),)
    register(d, p, "t", 1, producers=away)
    lost, _ = d.collect(2)
    assert isinstance(lost, Lost)
    assert lost.reason is Reason.UNREACHABLE
    assert "off loopback keys are needed" in lost.detail


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({}, False),
        ({"allow_unauthenticated": True}, True),
        ({"keys": KeyRing((Key("k", SECRET),))}, True),
        ({"keys": KeyRing((Key("k", SECRET),)), "require_authentication": False}, False),
    ],
)
def test_which_agents_may_reach_other_hosts(changes: dict[str, object], allowed: bool) -> None:

    made: AgentConfig = config("D", Role.CONSUMER, new_memory(), **changes)
    assert made.may_reach("192.0.2.1") is allowed
    assert made.may_reach("localhost")
    assert made.may_reach("127.0.0.5")
    assert made.may_reach("::1")
