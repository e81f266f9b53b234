"""The handshake: order, versions, identity, refusals with a reason."""

import attrs
import pytest

from kvxfer.core.handshake import Handshake, Identity, Refusal
from kvxfer.core.ids import Incarnation, Peer, PeerKey, Reason, Role
from kvxfer.core.messages import Bye, Describe, Hello, Refuse, Welcome
from kvxfer.core.tables import LinkState

D = Identity(engine_id="d", rank=0, incarnation=Incarnation(11), role=Role.CONSUMER)
P = Identity(engine_id="p", rank=3, incarnation=Incarnation(22), role=Role.PRODUCER)
DESCRIBE = Describe(transport="x", blob=b"b", shard=b"s")


def side(me: Identity, dialled: PeerKey | None, **changes: object) -> Handshake:
    given = {"describe": lambda _peer: DESCRIBE, "accept": lambda _peer, _theirs: (0,)}
    return Handshake(me=me, dialled=dialled, **(given | changes))


def hello(**changes: object) -> Hello:
    dialler = side(D, PeerKey("p", 3))
    (message,) = dialler.start().messages
    return attrs.evolve(message, **changes)


def refusal(handshake: Handshake, message: object) -> Refuse:
    outcome = handshake.receive(message)
    assert outcome.close
    assert handshake.state is LinkState.CLOSED
    (refuse,) = outcome.messages
    assert isinstance(refuse, Refuse)
    return refuse


def test_two_sides_come_up_knowing_each_other() -> None:
    d, p = side(D, PeerKey("p", 3)), side(P, None)
    (first,) = d.start().messages
    assert p.start().messages == ()
    (welcome,) = p.receive(first).messages
    assert isinstance(welcome, Welcome)
    (describe,) = d.receive(welcome).messages
    answer = p.receive(describe)
    assert answer.up
    assert d.receive(answer.messages[0]).up
    assert d.peer == Peer(PeerKey("p", 3), Incarnation(22))
    assert p.peer == Peer(PeerKey("d", 0), Incarnation(11))
    assert (d.version, p.version) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version_min": 2, "version_max": 9}, Reason.VERSION_MISMATCH),
        ({"version_min": 0, "version_max": 0}, Reason.VERSION_MISMATCH),
        ({"expected_engine_id": "other"}, Reason.WRONG_PEER),
        ({"expected_rank": 4}, Reason.WRONG_PEER),
        ({"role": Role.PRODUCER}, Reason.ROLE_MISMATCH),
        ({"incarnation": Incarnation(22)}, Reason.WRONG_PEER),
    ],
)
def test_hello_is_refused_with_its_reason(changes: dict, reason: Reason) -> None:
    assert refusal(side(P, None), hello(**changes)).reason is reason


def test_a_newer_dialler_is_met_at_the_highest_common_version() -> None:
    p = side(P, None)
    (welcome,) = p.receive(hello(version_min=1, version_max=7)).messages
    assert welcome.version == 1


def test_an_empty_expected_engine_takes_whoever_answers() -> None:
    assert not side(P, None).receive(hello(expected_engine_id="")).close


def test_phase_two_before_phase_one_is_refused_undecoded() -> None:
    def never(_peer: Peer, _theirs: Describe) -> tuple[int, ...]:
        raise AssertionError("looked at phase 2")

    outcome = side(P, None, accept=never).receive(DESCRIBE)
    assert outcome.close


def test_a_layout_refusal_reaches_the_peer_and_the_waiting_side() -> None:
    def refuse(_peer: Peer, _theirs: Describe) -> tuple[int, ...]:
        raise Refusal(Reason.LAYOUT_REFUSED, "layer 7 is nowhere")

    d, p = side(D, PeerKey("p", 3)), side(P, None, accept=refuse)
    (welcome,) = p.receive(d.start().messages[0]).messages
    (describe,) = d.receive(welcome).messages
    answer = p.receive(describe)
    assert answer.close
    assert not answer.up
    outcome = d.receive(answer.messages[0])
    assert outcome.unreachable
    assert (d.reason, d.detail) == (Reason.LAYOUT_REFUSED, "layer 7 is nowhere")


def test_a_transport_that_cannot_describe_itself_refuses_too() -> None:
    def refuse(_peer: Peer) -> Describe:
        raise Refusal(Reason.TRANSPORT_FAILED, "no agent")

    p = side(P, None, describe=refuse)
    p.receive(hello())
    outcome = p.receive(DESCRIBE)
    assert outcome.close
    assert outcome.messages[-1] == Refuse(reason=Reason.TRANSPORT_FAILED, detail="no agent")


@pytest.mark.parametrize("engine", ["p", "q"])
def test_the_dialler_checks_who_answers(engine: str) -> None:
    d = side(D, PeerKey("p", 3))
    d.start()
    welcome = Welcome(
        version=1,
        engine_id=engine,
        rank=3,
        incarnation=Incarnation(22),
        role=Role.PRODUCER,
        features=0,
    )
    outcome = d.receive(welcome)
    assert outcome.close == (engine == "q")
    assert outcome.unreachable == (engine == "q")


def test_silence_ends_the_handshake_on_both_sides() -> None:
    d, p = side(D, PeerKey("p", 3)), side(P, None)
    d.start()
    assert d.timeout().unreachable
    assert p.timeout().close
    assert d.reason is Reason.UNREACHABLE


def test_a_second_hello_on_a_link_that_is_up_ends_it() -> None:
    p = side(P, None)
    p.receive(hello())
    assert p.receive(DESCRIBE).up
    outcome = p.receive(hello())
    assert outcome.lost
    assert outcome.close


def test_bye_ends_a_link_with_the_peers_reason() -> None:
    p = side(P, None)
    p.receive(hello())
    p.receive(DESCRIBE)
    assert p.receive(Bye(reason=Reason.SHUTDOWN)).lost
    assert p.reason is Reason.SHUTDOWN
