"""Operations fuzzed as well as bytes: any event, message, time or link, in any order.

A session of both roles between two peers that follow no rule, driven by an engine
and a transport that keep theirs. It must never raise, tell each end once, stay in
its bounds, and send only on links that are up.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core import messages as m
from kvxfer.core.handshake import Refusal
from kvxfer.core.ids import (
    Attempt,
    Incarnation,
    Initiator,
    LinkId,
    OpId,
    Part,
    Peer,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.session import Session
from kvxfer.limits import Limits, Timings

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_session import RUNS, _describe, _identity, hello

LIMITS = Limits(transfers_max=4, grants_parked_max=4, tombstones_max=6, parts_parked_max=12)
TIMINGS = Timings(
    handshake_ms=500,
    transfer_deadline_ms=2000,
    offer_lease_ms=1000,
    renew_ms=100,
    renew_misses_max=3,
    grant_lease_ms=600,
    lease_margin_ms=20,
    drain_ms=200,
    fence_retry_ms=100,
    tombstone_ms=3000,
)
PARTS = (Part(0, 0, 0, 8), Part(0, 0, 8, 16))
NAMES = st.sampled_from([TransferId("t"), TransferId("t"), TransferId("u")])
PEERS = st.sampled_from([PeerKey("X", 0), PeerKey("Y", 0)])
REASONS = st.sampled_from([Reason.NONE, Reason.DEADLINE, Reason.PEER_LOST])
SOME_PARTS = st.lists(st.sampled_from([*PARTS, Part(5, 0, 0, 8)]), max_size=2, unique=True)
LEASES = st.integers(0, 2000)
FLAG = st.booleans()


@st.composite
def transfer_messages(draw: st.DrawFn, sender: int) -> m.TransferMessage:
    header = m.Header(
        transfer_id=draw(NAMES),
        attempt=Attempt(draw(st.integers(1, 3))),
        sender=Incarnation(draw(st.sampled_from([sender] * 5 + [77]))),
        receiver=Incarnation(draw(st.sampled_from([1] * 5 + [78]))),
    )
    part, why = draw(st.sampled_from(PARTS)), draw(REASONS)
    parts = tuple(draw(SOME_PARTS))
    kind = draw(st.integers(0, 11))
    match kind:
        case 0 | 1:
            return m.Grant(
                header=header,
                digest=b"",
                lease_ms=draw(LEASES),
                parts=parts,
                tables=(RUNS,),
                initiator=draw(st.sampled_from(Initiator)),
            )
        case 2:
            return m.Renew(header=header, lease_ms=draw(LEASES), serial=draw(st.integers(0, 3)))
        case 3:
            return m.Cancel(header=header, reason=why)
        case 4:
            return m.Release(header=header, landed=draw(FLAG), reason=why)
        case 5:
            serial = draw(st.integers(0, 3))
            return m.GrantAck(header=header, serial=serial, lease_ms=draw(LEASES))
        case 6:
            return m.Gone(header=header, reason=why)
        case 7:
            return m.Cancelled(header=header)
        case 8:
            return m.Done(header=header, part=part)
        case 9:
            return m.Failed(header=header, part=part, reason=why, quiet=draw(FLAG))
        case 10:
            return m.NeverPosted(header=header, part=part, reason=why)
        case _:
            return m.Offer(header=header, parts=parts, tables=(RUNS,))


REACHED = Counter[str]()
"""Kinds of effects that came out, over all runs: the rules must get somewhere."""

WANTED = (
    "DropLink",
    "Dial",
    "Fence",
    "Post",
    "Resolve",
    "Send",
    "TellDrained",
    "TellLetGo",
    "TellLost",
    "TellSent",
    "TellUnsent",
)


class SessionMachine(RuleBasedStateMachine):
    """One session; what it asks for is answered by rules, in any order, or never."""

    @initialize()
    def start(self) -> None:
        self.now_ms = 0
        self.session = Session(
            me=_identity("A", 1),
            limits=LIMITS,
            timings=TIMINGS,
            describe=_describe,
            accept=self._accept,
        )
        self.open: dict[LinkId, int] = {}
        self.queued: dict[OpId, fx.Post] = {}
        self.claimed: dict[OpId, fx.Post] = {}
        self.fences: list[Peer] = []
        self.resolves: list[fx.Resolve] = []
        self.grants: list[tuple[LinkId, m.Grant]] = []
        self.attempt = 0
        self.tags = Counter[str]()
        self.told = Counter[tuple[str, str]]()
        self.drained = 0
        self.last = 0

    def _accept(self, _link: LinkId, _peer: Peer, theirs: m.Describe) -> tuple[int, ...]:
        if theirs.shard == b"misfit":
            raise Refusal(Reason.LAYOUT_REFUSED, "drawn")
        return (0,)

    def _tag(self) -> str:
        self.last += 1
        return f"tag{self.last}"

    def _poll(self) -> None:
        while batch := self.session.poll():
            for effect in batch:
                self._effect(effect)

    def _effect(self, effect: fx.Effect) -> None:
        REACHED[type(effect).__name__] += 1
        match effect:
            case fx.Send():
                assert effect.link in self.open
                if isinstance(effect.message, m.Grant):
                    self.grants.append((effect.link, effect.message))
            case fx.DropLink():
                self.open.pop(effect.link, None)
            case fx.Post():
                self.queued[effect.op] = effect
            case fx.StopOp():
                assert effect.op in self.claimed
            case fx.Fence():
                self.fences.append(effect.peer)
            case fx.Resolve():
                self.resolves.append(effect)
            case fx.TellLanded() | fx.TellLost() | fx.TellSent() | fx.TellUnsent():
                self._tell(effect.tag, "end")
            case fx.TellLetGo():
                assert self.told[effect.tag, "end"], "let go before its end"
                self._tell(effect.tag, "let go")
            case fx.TellDrained():
                self.drained += 1
                assert self.drained == 1
                assert self.session.live() == 0

    def _tell(self, tag: str, what: str) -> None:
        assert self.tags[tag], f"told of {tag!r}"
        self.told[tag, what] += 1
        assert self.told[tag, what] == 1, f"{tag} was told {what} twice"

    def _handle(self, event: ev.Event) -> None:
        self.session.handle(event, self.now_ms)
        self._poll()

    # --- links ---

    @rule(peer=PEERS, dial=FLAG)
    def open_link(self, peer: PeerKey, dial: bool) -> None:
        self.last += 1
        link = LinkId(self.last)
        self.open[link] = 2 if peer.engine_id == "X" else 3
        self.session.open_link(link, peer if dial else None, self.now_ms)
        self._poll()

    @rule(peer=PEERS, dial=FLAG, life=st.sampled_from([0, 0, 0, 1]), pull=FLAG)
    def bring_up(self, peer: PeerKey, dial: bool, life: int, pull: bool) -> None:
        """A whole handshake of a peer that keeps the rules of it."""
        self.open_link(peer, dial)
        link, incarnation = LinkId(self.last), (2 if peer.engine_id == "X" else 3) + 10 * life
        self.open[link] = incarnation
        features = 15 if pull else 0
        first: m.Message = attrs.evolve(hello(peer.engine_id, incarnation), features=features)
        if dial:
            first = m.Welcome(
                version=1,
                engine_id=peer.engine_id,
                rank=0,
                incarnation=Incarnation(incarnation),
                role=Role.BOTH,
                features=features,
            )
        for message in (first, m.Describe(transport="fuzz", blob=b"", shard=b"")):
            self.session.receive(link, message, self.now_ms)
            self._poll()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def message(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.open)))
        message = data.draw(transfer_messages(self.open[link]))
        self.session.receive(link, message, self.now_ms)
        self._poll()

    def _up(self, *, dialled: bool) -> list[LinkId]:
        links = self.session.ctx.links
        return [link for link in sorted(links) if links[link].dialled is dialled]

    def _header(self, link: LinkId, name: TransferId, attempt: int) -> m.Header:
        sender = self.session.ctx.links[link].peer.incarnation
        return m.Header(
            transfer_id=name, attempt=Attempt(attempt), sender=sender, receiver=Incarnation(1)
        )

    @precondition(lambda self: self._up(dialled=False))
    @rule(name=NAMES, parts=SOME_PARTS, pull=FLAG, data=st.data())
    def peer_grants(
        self, name: TransferId, parts: list[Part], pull: bool, data: st.DataObject
    ) -> None:
        """A consumer that counts its attempts as it should."""
        link = data.draw(st.sampled_from(self._up(dialled=False)))
        self.attempt += 1
        grant = m.Grant(
            header=self._header(link, name, self.attempt),
            digest=b"",
            lease_ms=600,
            parts=tuple(part for part in parts if part in PARTS),
            tables=(RUNS,),
            initiator=Initiator.CONSUMER if pull else Initiator.PRODUCER,
        )
        self.session.receive(link, grant, self.now_ms)
        self._poll()

    @precondition(lambda self: self._up(dialled=False))
    @rule(name=NAMES, pull=FLAG, data=st.data())
    def peer_meets_an_offer(self, name: TransferId, pull: bool, data: st.DataObject) -> None:
        self.offer(name, 16, True)
        self.peer_grants(name, list(PARTS), pull, data)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), how=st.integers(0, 4))
    def peer_serves(self, data: st.DataObject, how: int) -> None:
        """A producer that answers one of our grants, as asked or not."""
        at = data.draw(st.integers(0, len(self.grants) - 1))
        link, grant = self.grants[at]
        if link not in self.session.ctx.links:
            return
        header = self._header(link, grant.header.transfer_id, grant.header.attempt)
        answers: list[m.Message] = [m.GrantAck(header=header, serial=0, lease_ms=600)]
        match how:
            case 0 | 1:
                answers += [m.Done(header=header, part=part) for part in grant.parts]
            case 2:
                answers.append(m.Offer(header=header, parts=grant.parts, tables=(RUNS,)))
            case 3:
                answers.append(m.Gone(header=header, reason=Reason.OFFER_EXPIRED))
        for answer in answers:
            self.session.receive(link, answer, self.now_ms)
            self._poll()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), number=st.integers(0, 6))
    def handshake_message(self, data: st.DataObject, number: int) -> None:
        link = data.draw(st.sampled_from(sorted(self.open)))
        message: m.Message = (
            hello("X", 2),
            hello("A", 1),
            m.Refuse(reason=Reason.NONE, detail=""),
            m.Bye(reason=Reason.NONE),
            m.Drain(reason=Reason.DRAINING),
            m.Describe(transport="fuzz", blob=b"", shard=b"misfit"),
            m.Describe(transport="fuzz", blob=b"", shard=b""),
        )[number]
        self.session.receive(link, message, self.now_ms)
        self._poll()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.integers(0, 2))
    def end_link(self, data: st.DataObject, how: int) -> None:
        link = data.draw(st.sampled_from(sorted(self.open)))
        if how == 0:
            del self.open[link]
            self.session.close_link(link, Reason.PEER_LOST, self.now_ms)
        elif how == 1:
            self.session.drop(link, Reason.TRANSPORT_FAILED, self.now_ms)
        else:
            self.session.fault(link, "nonsense", self.now_ms)
        self._poll()

    # --- engine ---

    @rule(name=NAMES, peers=st.lists(PEERS, max_size=2, unique=True), pull=FLAG, silent=FLAG)
    def register(self, name: TransferId, peers: list[PeerKey], pull: bool, silent: bool) -> None:
        tag = self._tag()
        self.tags[tag] += not silent
        initiator = Initiator.CONSUMER if pull else Initiator.PRODUCER
        self._handle(
            ev.Register(
                transfer_id=name,
                producers=tuple(peers),
                digest=b"",
                deadline_ms=900,
                tag="" if silent else tag,
                silent=silent,
                initiator=initiator,
            )
        )

    @rule(name=NAMES, data=st.data())
    def cancel(self, name: TransferId, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.tags) or ["none"]))
        self._handle(ev.CancelRegistration(transfer_id=name, reason=Reason.NONE, tag=tag))

    @precondition(lambda self: self.resolves)
    @rule(parts=SOME_PARTS, edges=st.integers(0, 2), fails=FLAG)
    def resolve(self, parts: list[Part], edges: int, fails: bool) -> None:
        asked = self.resolves.pop(0)
        if fails:
            self._handle(
                ev.Unresolvable(
                    transfer_id=asked.transfer_id,
                    attempt=asked.attempt,
                    reason=Reason.OUT_OF_BOUNDS,
                    detail="drawn",
                )
            )
            return
        up = [self.session.ctx.links.get(link) for link in asked.links]
        plans = tuple(
            ev.EdgePlan(peer=link.peer.key, parts=tuple(parts), tables=(RUNS,))
            for link in up[: edges + 1]
            if link is not None
        )
        self._handle(ev.Resolved(transfer_id=asked.transfer_id, attempt=asked.attempt, edges=plans))

    @precondition(lambda self: self._up(dialled=True))
    @rule(name=NAMES, pull=FLAG, data=st.data())
    def grant_at_once(self, name: TransferId, pull: bool, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self._up(dialled=True)))
        self.register(name, [self.session.ctx.links[link].peer.key], pull, False)
        if self.resolves:
            self.resolves.insert(0, self.resolves.pop())
            self.resolve(list(PARTS), 0, False)

    @rule(name=NAMES)
    def expect(self, name: TransferId) -> None:
        self._handle(ev.Expect(transfer_id=name, tag=self._tag()))

    @rule(name=NAMES, tokens=st.sampled_from([0, 8, 16]), sealed=FLAG)
    def offer(self, name: TransferId, tokens: int, sealed: bool) -> None:
        tag = self._tag()
        self.tags[tag] += 1
        self._handle(
            ev.Offer(
                transfer_id=name,
                token_count=tokens,
                digest=b"",
                lease_ms=800,
                tag=tag,
                sealed=sealed,
                tables=(RUNS,),
            )
        )

    @rule(name=NAMES, tokens=st.sampled_from([0, 8, 16]), sealed=FLAG, data=st.data())
    def grow(self, name: TransferId, tokens: int, sealed: bool, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.tags) or ["none"]))
        self._handle(
            ev.Grow(transfer_id=name, token_count=tokens, sealed=sealed, tag=tag, tables=(RUNS,))
        )

    @rule(name=NAMES)
    def withdraw(self, name: TransferId) -> None:
        self._handle(ev.Withdraw(transfer_id=name, reason=Reason.PRODUCER_ABORTED))

    @rule(really=st.integers(0, 15))
    def leave(self, really: int) -> None:
        if really == 0:
            self._handle(ev.Drain())
        elif really == 1:
            self.session.shut_down(self.now_ms)
            self.session.say_bye(Reason.SHUTDOWN)
            self._poll()

    # --- transport and time ---

    @precondition(lambda self: self.queued)
    @rule(data=st.data(), refused=FLAG)
    def post(self, data: st.DataObject, refused: bool) -> None:
        op = data.draw(st.sampled_from(sorted(self.queued)))
        post = self.queued.pop(op)
        if not self.session.claim(op, self.now_ms):
            self._poll()
            return
        self.claimed[op] = post
        self._poll()
        if refused and op in self.claimed:
            del self.claimed[op]
            self._handle(ev.OpNotPosted(op=op, reason=Reason.TRANSPORT_FAILED))

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), end=st.integers(0, 2))
    def end(self, data: st.DataObject, end: int) -> None:
        op = data.draw(st.sampled_from(sorted(self.claimed)))
        del self.claimed[op]
        why = Reason.NONE if end == 0 else Reason.TRANSPORT_FAILED
        self._handle(ev.OpEnded(op=op, done=end == 0, quiet=end < 2, reason=why))

    @rule(op=st.integers(0, 50))
    def unknown_operation(self, op: int) -> None:
        if OpId(op) not in self.queued | self.claimed:
            assert not self.session.claim(OpId(op), self.now_ms)
            self._handle(ev.OpNotPosted(op=OpId(op), reason=Reason.NONE))

    @rule(fenced=FLAG, stray=FLAG, peer=PEERS)
    def fence(self, fenced: bool, stray: bool, peer: PeerKey) -> None:
        answered = Peer(peer, Incarnation(2))
        if self.fences and not stray:
            answered = self.fences.pop(0)
        elif answered in self.fences:
            return
        self._handle(ev.FenceResult(peer=answered, fenced=fenced and not stray))

    @rule(peer=PEERS)
    def unreachable(self, peer: PeerKey) -> None:
        self._handle(ev.Unreachable(peer=peer, reason=Reason.UNREACHABLE))

    @rule(delta_ms=st.sampled_from([0, 1, 50, 150, 700, 4000]))
    def time_passes(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.session.advance(self.now_ms)
        self._poll()

    # --- what always holds ---

    @invariant()
    def tables_are_bounded(self) -> None:
        session = self.session
        assert len(session.consumer.registrations) <= LIMITS.transfers_max
        assert len(session.producer.sources) <= LIMITS.transfers_max
        assert len(session.producer.sends) <= LIMITS.grants_parked_max
        assert len(session.ctx.timers) <= 8 * LIMITS.transfers_max + len(self.open)
        assert set(session.ctx.links) <= set(self.open)

    def teardown(self) -> None:
        """Rest: operations end, fences succeed, nobody answers any more; time passes."""
        self.session.shut_down(self.now_ms)
        for _ in range(60):
            self._poll()
            for op in [*self.queued, *self.claimed]:
                self.queued.pop(op, None)
                self.claimed.pop(op, None)
                self._handle(
                    ev.OpEnded(op=op, done=False, quiet=False, reason=Reason.TRANSPORT_FAILED)
                )
            while self.fences:
                self._handle(ev.FenceResult(peer=self.fences.pop(), fenced=True))
            for link in list(self.open):
                del self.open[link]
                self.session.close_link(link, Reason.PEER_LOST, self.now_ms)
            for name in ("X", "Y"):
                peer = PeerKey(name, 0)
                self._handle(ev.Unreachable(peer=peer, reason=Reason.UNREACHABLE))
            self.time_passes(700)
        assert self.session.live() == 0, "tables are not empty at rest"
        assert self.session.consumer.quarantined() == 0
        for tag in self.tags:
            if self.tags[tag]:
                assert self.told[tag, "end"] == 1, f"{tag} was never told its end"


def test_operations_in_any_order() -> None:
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=250,
            stateful_step_count=90,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    missing = {name for name in WANTED if not REACHED[name]}
    assert missing == set()
