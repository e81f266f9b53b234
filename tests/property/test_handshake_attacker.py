"""An attacker without a key owns the network of two handshakes: every way it can go is looked at.

One honest dialler, two honest acceptors. Whatever reaches any of them is the attacker's choice out
of all that was ever said, taken apart where he can, and of what he makes himself; only proofs he
cannot make. Proofs are names here, as in the books: equal where role, key and both halves are.

What must hold wherever it ends: a link that is up is a link for one honest side of the other kind,
too, and both have heard and said the same; nothing is described to anybody else. Three weaker
protocols show that the search finds what it looks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs
import pytest

from kvxfer.core.credentials import Credentials
from kvxfer.core.handshake import Handshake, Identity
from kvxfer.core.ids import Incarnation, PeerKey, Role
from kvxfer.core.messages import Describe, Hello, Message, Proof, Refuse, Welcome
from kvxfer.core.tables import LINK, LinkEvent, LinkState

D = Identity(engine_id="d", rank=0, incarnation=Incarnation(11), role=Role.CONSUMER)
P = Identity(engine_id="p", rank=0, incarnation=Incarnation(22), role=Role.PRODUCER)
MACHINES = ("d", "p1", "p2")
DESCRIBE = Describe(transport="x", blob=b"where the memory is", shard=b"s")
STEPS_MAX = 3
"""Nothing needs more messages than three to come up."""

Half = Hello | Welcome | None
Histories = tuple[tuple[Message, ...], ...]
Sign = Callable[[str, Half, Half], str]
"""(role, HELLO, WELCOME) to what is signed."""


def whole(role: str, hello: Half, welcome: Half) -> str:
    return repr((role, hello, welcome))


def without_role(_role: str, hello: Half, welcome: Half) -> str:
    return repr((hello, welcome))


def nonces_only(role: str, hello: Half, welcome: Half) -> str:
    return repr((role, hello and hello.nonce, welcome and welcome.nonce))


def own_nonce_only(role: str, _hello: Half, welcome: Half) -> str:
    """As where the acceptor draws no nonce: a recorded proof is good again."""
    return repr((role, welcome and attrs.evolve(welcome, nonce=b"")))


@attrs.define
class Party:
    """One honest machine, fed with a history."""

    name: str
    sign: Sign
    required: bool
    hello: Half = None
    welcome: Half = None
    checked: bool = False
    said: list[Message] = attrs.field(factory=list)
    shake: Handshake = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        dials = self.name == "d"
        self.shake = Handshake(
            me=D if dials else P,
            dialled=PeerKey("p", 0) if dials else None,
            describe=lambda _peer: DESCRIBE,
            accept=lambda _peer, _theirs: (0,),
            credentials=Credentials(
                nonce=self.name.ljust(32, ".").encode(),
                key_ids=("k",),
                required=self.required,
                prover=self,
            ),
        )
        self.said += self.shake.start().messages

    # --- the prover ---

    def sent(self, message: Hello | Welcome) -> None:
        self._note(message)

    def proof(self, _key_id: str) -> bytes:
        role = "dialler" if self.name == "d" else "acceptor"
        return self.sign(role, self.hello, self.welcome).encode()

    def check(self, _key_id: str, mac: bytes) -> bool:
        role = "acceptor" if self.name == "d" else "dialler"
        self.checked = mac == self.sign(role, self.hello, self.welcome).encode()
        return self.checked

    def _note(self, message: Hello | Welcome) -> None:
        if isinstance(message, Hello):
            self.hello = message
        else:
            self.welcome = message

    # --- what comes ---

    def feed(self, message: Message) -> None:
        awaited = Welcome if self.name == "d" else Hello
        if isinstance(message, awaited):
            self._note(message)
        self.said += self.shake.receive(message).messages


def played(histories: Histories, sign: Sign, *, required: bool) -> list[Party]:
    parties = [Party(name, sign, required) for name in MACHINES]
    for party, history in zip(parties, histories):
        for message in history:
            party.feed(message)
    return parties


def known(parties: list[Party]) -> Iterator[Message]:
    """All that the attacker can say: what was said, and what he makes of it or himself."""
    own = b"m" * 32
    for party in parties:
        for message in party.said:
            yield message
            if isinstance(message, Hello):
                yield attrs.evolve(message, key_ids=(), nonce=b"")
                yield attrs.evolve(message, nonce=own)
                yield attrs.evolve(message, features=0)
            elif isinstance(message, Welcome):
                yield attrs.evolve(message, key_id="", nonce=b"")
                yield attrs.evolve(message, nonce=own)
                yield attrs.evolve(message, features=0)
    yield Proof(mac=b"x" * 32)
    yield DESCRIBE


def wrong(parties: list[Party]) -> str:
    """What must not be, or nothing."""
    by_halves = {(p.hello, p.welcome, p.name == "d") for p in parties}
    up = [p for p in parties if p.shake.state is LinkState.UP]
    for party in parties:
        met = (party.hello, party.welcome, party.name != "d") in by_halves
        described = any(isinstance(message, Describe) for message in party.said)
        if described and not party.checked:
            return f"{party.name} described its memory to somebody without a proof"
        if described and not met:
            return f"{party.name} described its memory to nobody who had said and heard the same"
    if len(up) != len({(p.hello, p.welcome, p.name == "d") for p in up}):
        return "two acceptors are up for one handshake of the dialler"
    return ""


def search(sign: Sign, *, required: bool = True) -> tuple[str, int]:
    """The first thing that is wrong, in the fewest messages, and how many states were looked at."""
    start: Histories = ((),) * len(MACHINES)
    seen, waiting = {start}, deque([start])
    while waiting:
        histories = waiting.popleft()
        parties = played(histories, sign, required=required)
        if found := wrong(parties):
            return found, len(seen)
        sayable = dict.fromkeys(m for m in known(parties) if not isinstance(m, Refuse))
        for n, (party, history) in enumerate(zip(parties, histories)):
            if party.shake.state is LinkState.CLOSED or len(history) == STEPS_MAX:
                continue
            for message in sayable:
                grown = (*histories[:n], (*history, message), *histories[n + 1 :])
                if grown not in seen and fits(party, message):
                    seen.add(grown)
                    waiting.append(grown)
    return "", len(seen)


def fits(party: Party, message: Message) -> bool:
    """Leave out what only closes the link by being of another kind: the tables have those cells."""
    match party.shake.state:
        case LinkState.CALLED:
            return isinstance(message, Hello)
        case LinkState.CALLING:
            return isinstance(message, Welcome)
        case LinkState.CHALLENGED | LinkState.PROVING:
            return isinstance(message, Proof | Describe)
        case LinkState.WELCOMED | LinkState.DESCRIBING:
            return isinstance(message, Describe)
    return False


def test_no_way_leads_to_a_link_that_the_other_side_does_not_share() -> None:
    found, states = search(whole)
    assert found == ""
    assert states > 1_000


def test_the_honest_way_is_among_those_that_were_looked_at() -> None:
    """Else all of the above would hold of a protocol that never comes up."""
    d, p1, _ = played(((), (), ()), whole, required=True)
    p1.feed(d.said[0])
    d.feed(p1.said[0])
    d.feed(p1.said[1])
    p1.feed(d.said[1])
    p1.feed(d.said[2])
    d.feed(p1.said[2])
    assert (d.shake.state, p1.shake.state) == (LinkState.UP, LinkState.UP)
    assert wrong([d, p1]) == ""


@pytest.mark.parametrize("sign", [without_role, nonces_only, own_nonce_only])
def test_a_weaker_proof_is_found_out(sign: Sign) -> None:
    found, _ = search(sign)
    assert found


def test_a_side_that_does_not_require_a_key_can_be_talked_out_of_it() -> None:
    """What `require_authentication=False` gives away; docs/security.md says so."""
    found, _ = search(whole, required=False)
    assert "without a proof" in found


def nothing(*_given: object) -> None:
    """In place of a check."""


@pytest.mark.parametrize("check", ["_check_proof", "_without_key"])
def test_a_core_that_leaves_out_a_check_is_found_out(
    monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    monkeypatch.setattr(Handshake, check, nothing)
    found, _ = search(whole)
    assert "without a proof" in found


def test_a_dialler_that_shows_its_memory_before_the_acceptors_proof_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = dict(LINK.cells)
    early = LINK.fire(LinkState.CALLING, LinkEvent.WELCOME)
    cells[LinkState.CALLING, LinkEvent.WELCOME_KEYED] = early
    planted = attrs.evolve(LINK, cells=cells)
    monkeypatch.setattr("kvxfer.core.handshake.LINK", planted)
    found, _ = search(whole)
    assert found == "d described its memory to somebody without a proof"
