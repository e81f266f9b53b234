"""This library's own core as a subject of the vectors.

Owns the translation between the plain events of the files and `Session`. Knows no
rule of the protocol: it is the example for whoever wraps another implementation.
Invariant: nothing is answered here that a driver would not answer.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, assert_never

import attrs

from kvxfer.conformance.vectors import Plain, Rejected, Skipped
from kvxfer.conformance.vectors_plain import (
    from_plain,
    part_of,
    part_plain,
    table_of,
    to_numbers,
    to_plain,
)
from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.credentials import MAC_BYTES, NONCE_BYTES, Credentials
from kvxfer.core.handshake import Identity, Refusal
from kvxfer.core.ids import (
    NO_FEATURES,
    Feature,
    Incarnation,
    Initiator,
    LinkId,
    OpId,
    Peer,
    PeerKey,
    Reason,
    Role,
    TransferId,
)
from kvxfer.core.messages import Describe, Hello, Proof, Welcome
from kvxfer.core.session import Session
from kvxfer.errors import LayoutMismatch, RemoteFault
from kvxfer.layout.edges import edges_between
from kvxfer.layout.geometry import Shard
from kvxfer.layout.plain import shard_from_plain, shard_to_plain
from kvxfer.limits import Limits, Timings
from kvxfer.wire.cbor import decode_plain, encode_plain
from kvxfer.wire.codec import UnknownMessage, decode, encode
from kvxfer.wire.schema import BY_CLASS

LIMITS = Limits()


def decode_to_plain(data: bytes) -> tuple[str, Plain]:
    """Our decoder as `check_codec` wants it."""
    try:
        message = decode(data, LIMITS)
    except UnknownMessage:
        raise Skipped from None
    except RemoteFault as fault:
        raise Rejected(str(fault)) from None
    return BY_CLASS[type(message)].number.name, to_numbers(message)


def encode_from_plain(name: str, message: Plain) -> bytes:
    """Our encoder as `check_codec` wants it."""
    return encode(from_plain({"type": name, **message}))


def peer_key(plain: Plain) -> PeerKey:
    return PeerKey(plain["engine_id"], plain["rank"])


def peer(plain: Plain) -> Peer:
    return Peer(peer_key(plain), Incarnation(plain["incarnation"]))


def peer_plain(key: PeerKey) -> Plain:
    return {"engine_id": key.engine_id, "rank": key.rank}


def life_plain(one: Peer) -> Plain:
    return {**peer_plain(one.key), "incarnation": one.incarnation}


def features_of(names: list[str]) -> Feature:
    return reduce(operator.or_, (Feature[name] for name in names), NO_FEATURES)


def timings_of(settings: Plain) -> Timings:
    """The files name durations by what the specification says of them."""
    given = settings["timings"]
    return Timings(
        handshake_ms=given["handshake_ms"],
        renew_ms=given["renew_ms"],
        renew_misses_max=given["silence_ms"] // given["renew_ms"],
        drain_ms=given["cancel_silence_ms"],
        grant_lease_ms=given["lease_bound_ms"],
        lease_margin_ms=given["lease_margin_ms"],
        fence_retry_ms=given["fence_retry_ms"],
        tombstone_ms=given["remember_ms"],
    )


@attrs.define
class Shards:
    """Phase 2 of the handshake, as far as it needs no transport."""

    transport: str
    mine: Shard
    dialled: dict[LinkId, bool] = attrs.field(factory=dict)
    given: dict[LinkId, tuple[int, ...]] = attrs.field(factory=dict)
    """Links whose handshake the case takes as done: ranks of the other engine."""

    def describe(self, _link: LinkId, _peer: Peer) -> Describe:
        shard = encode_plain(shard_to_plain(self.mine))
        return Describe(transport=self.transport, blob=b"", shard=shard)

    def accept(self, link: LinkId, peer: Peer, theirs: Describe) -> tuple[int, ...]:
        if link in self.given:
            return self.given[link]
        if theirs.transport != self.transport:
            raise Refusal(Reason.TRANSPORT_MISMATCH, theirs.transport)
        try:
            shard = shard_from_plain(decode_plain(theirs.shard, LIMITS), LIMITS)
            if shard.rank != peer.key.rank:
                raise RemoteFault("shard.rank", shard.rank, f"{peer.key.rank}")
            pair = (shard, self.mine) if self.dialled[link] else (self.mine, shard)
            edges = edges_between(*pair)
        except (RemoteFault, LayoutMismatch) as fault:
            raise Refusal(Reason.LAYOUT_REFUSED, str(fault)) from fault
        if self.dialled[link]:
            return tuple(sorted({e.producer_rank for e in edges}))
        return tuple(sorted({e.consumer_rank for e in edges}))


_RIGHT, _WRONG = b"\1" * MAC_BYTES, bytes(MAC_BYTES)


class Word:
    """A prover without a secret: the files say which proofs are right."""

    def sent(self, message: Hello | Welcome) -> None:
        """What is proven does not matter."""

    def proof(self, _key_id: str) -> bytes:
        return _RIGHT

    def check(self, _key_id: str, mac: bytes) -> bool:
        return mac == _RIGHT


@attrs.define
class CoreMachine:
    """`Session` behind the plain events of the files. A `vectors.Machine`."""

    session: Session
    shards: Shards
    credentials: Credentials
    wants: dict[str, list[Plain]] = attrs.field(factory=dict)
    """By tag: what the engine wants of each producer."""
    ops: dict[OpId, fx.Post] = attrs.field(factory=dict)
    now_ms: int = 0

    @classmethod
    def make(cls, settings: Plain) -> CoreMachine:
        """A `vectors.MakeMachine`."""
        shards = Shards(
            settings["transport"],
            shard_from_plain({**settings["shard"], "rank": settings["rank"]}, LIMITS),
        )
        bounds = settings["limits"]
        session = Session(
            me=Identity(
                engine_id=settings["engine_id"],
                rank=settings["rank"],
                incarnation=Incarnation(settings["incarnation"]),
                role=Role[settings["role"]],
                features=features_of(settings["features"]),
            ),
            limits=Limits(
                transfers_max=bounds["transfers"],
                grants_parked_max=bounds["grants"],
                tombstones_max=bounds["remembered"],
            ),
            timings=timings_of(settings),
            describe=shards.describe,
            accept=shards.accept,
            check_digest=settings["check_digest"],
        )
        key_ids = tuple(settings["keys"])
        credentials = Credentials(
            nonce=b"\xc4" * NONCE_BYTES if key_ids else b"",
            key_ids=key_ids,
            required=settings["require_key"],
            prover=Word(),
        )
        return cls(session, shards, credentials)

    def step(self, event: Plain, at_ms: int) -> Sequence[Plain]:
        self._advance(at_ms)
        found = self._effects()
        before = set(self.session.ctx.links)
        handler = getattr(self, f"_on_{event['event']}")
        found += handler(event) or []
        found += self._effects()
        if event["event"] != "link_up":
            found += [self._up(link) for link in self.session.ctx.links if link not in before]
        return found

    def _advance(self, at_ms: int) -> None:
        """Every timer at its own time, as a driver that never sleeps too long does."""
        while (due := self.session.next_deadline_ms()) is not None and due <= at_ms:
            self.now_ms = max(due, self.now_ms)
            self.session.advance(self.now_ms)
        self.now_ms = at_ms

    # --- connections ---

    def _on_time(self, _event: Plain) -> None:
        self.session.advance(self.now_ms)

    def _on_connection(self, event: Plain) -> None:
        link, called = LinkId(event["link"]), event["dialled"]
        self.shards.dialled[link] = called is not None
        dialled = peer_key(called) if called else None
        self.session.open_link(link, dialled, self.now_ms, self.credentials)

    def _on_message(self, event: Plain) -> None:
        message = from_plain(event["message"])
        self.session.receive(LinkId(event["link"]), message, self.now_ms)

    _on_notification = _on_message

    def _on_proof(self, event: Plain) -> None:
        proof = Proof(mac=_RIGHT if event["right"] else _WRONG)
        self.session.receive(LinkId(event["link"]), proof, self.now_ms)

    def _on_undecodable(self, event: Plain) -> None:
        self.session.fault(LinkId(event["link"]), "", self.now_ms)

    def _on_connection_lost(self, event: Plain) -> None:
        self.session.close_link(LinkId(event["link"]), Reason.PEER_LOST, self.now_ms)

    def _on_link_up(self, event: Plain) -> list[Plain]:
        """The four messages of a handshake that the case is not about."""
        link, other = LinkId(event["link"]), peer(event["peer"])
        me = self.session.me
        self.shards.given[link] = tuple(event["ranks"])
        engine_id, rank = other.key.engine_id, other.key.rank
        dialled = other.key if event["dialled"] else None
        self.session.open_link(link, dialled, self.now_ms)
        hello: Hello | Welcome
        if dialled is not None:
            hello = Welcome(
                version=1,
                engine_id=engine_id,
                rank=rank,
                incarnation=other.incarnation,
                role=Role.PRODUCER,
                features=features_of(event.get("features", [])),
            )
        else:
            hello = Hello(
                version_min=1,
                version_max=1,
                engine_id=engine_id,
                rank=rank,
                incarnation=other.incarnation,
                role=Role.CONSUMER,
                features=features_of(event.get("features", [])),
                expected_engine_id=me.engine_id,
                expected_rank=me.rank,
            )
        for message in (hello, Describe(transport=self.shards.transport, blob=b"", shard=b"")):
            self.session.receive(link, message, self.now_ms)
        shaking = ("HELLO", "WELCOME", "DESCRIBE")
        return [
            e
            for e in self._effects()
            if not (e["effect"] == "send" and e["message"]["type"] in shaking)
        ]

    def _up(self, link: LinkId) -> Plain:
        up = self.session.ctx.links[link]
        return {"effect": "up", "link": link, "peer": life_plain(up.peer)}

    # --- engines ---

    def _on_register(self, event: Plain) -> None:
        self.wants[event["tag"]] = event["wants"]
        self._register(event, tag=event["tag"], silent=False)

    def _on_decline(self, event: Plain) -> None:
        self._register(event, tag="", silent=True)

    def _register(self, event: Plain, *, tag: str, silent: bool) -> None:
        self.session.handle(
            ev.Register(
                transfer_id=TransferId(event["transfer_id"]),
                producers=tuple(peer_key(p) for p in event["producers"]),
                digest=bytes.fromhex(event.get("digest", "")),
                deadline_ms=event.get("deadline_ms", 1_000_000),
                tag=tag,
                silent=silent,
                initiator=Initiator[event.get("initiator", "PRODUCER")],
            ),
            self.now_ms,
        )

    def _on_cancel(self, event: Plain) -> None:
        self.session.handle(
            ev.CancelRegistration(
                transfer_id=TransferId(event["transfer_id"]),
                reason=Reason.CANCELLED_BY_CONSUMER,
                tag=event["tag"],
            ),
            self.now_ms,
        )

    def _on_expect(self, event: Plain) -> None:
        tid = TransferId(event["transfer_id"])
        self.session.handle(ev.Expect(transfer_id=tid, tag=event["tag"]), self.now_ms)

    def _on_offer(self, event: Plain) -> None:
        self.session.handle(
            ev.Offer(
                transfer_id=TransferId(event["transfer_id"]),
                token_count=event["tokens"],
                digest=bytes.fromhex(event["digest"]),
                lease_ms=event["lease_ms"],
                tag=event["tag"],
                sealed=event.get("sealed", True),
                tables=tuple(table_of(t) for t in event.get("tables", ())),
            ),
            self.now_ms,
        )

    def _on_grow(self, event: Plain) -> None:
        self.session.handle(
            ev.Grow(
                transfer_id=TransferId(event["transfer_id"]),
                token_count=event["tokens"],
                sealed=event["sealed"],
                tag=event["tag"],
                tables=tuple(table_of(t) for t in event.get("tables", ())),
                token_ahead=event.get("tokens_ahead", 0),
                layers_final=event.get("layers_final", 0),
            ),
            self.now_ms,
        )

    def _on_withdraw(self, event: Plain) -> None:
        self.session.handle(
            ev.Withdraw(
                transfer_id=TransferId(event["transfer_id"]),
                reason=Reason.PRODUCER_ABORTED,
                tag=event["tag"],
            ),
            self.now_ms,
        )

    def _on_shut_down(self, _event: Plain) -> None:
        self.session.shut_down(self.now_ms)

    def _on_drain(self, _event: Plain) -> None:
        self.session.handle(ev.Drain(), self.now_ms)

    # --- the transport ---

    def _on_claim(self, event: Plain) -> list[Plain]:
        op = self._op(event["op"])
        if op is None or not self.session.claim(op, self.now_ms):
            return []
        return [{"effect": "post", "op": event["op"]}]

    def _on_op_ended(self, event: Plain) -> None:
        op = self._op(event["op"])
        if op is None:
            return
        done = event["end"] == "done"
        self.session.handle(
            ev.OpEnded(
                op=op,
                done=done,
                quiet=event["end"] != "unquiet",
                reason=Reason.NONE if done else Reason.TRANSPORT_FAILED,
            ),
            self.now_ms,
        )

    def _on_not_posted(self, event: Plain) -> None:
        op = self._op(event["op"])
        if op is not None:
            self.session.handle(ev.OpNotPosted(op=op, reason=Reason[event["reason"]]), self.now_ms)

    def _on_fence_result(self, event: Plain) -> None:
        fenced = ev.FenceResult(peer=peer(event["peer"]), fenced=event["proven"])
        self.session.handle(fenced, self.now_ms)

    def _on_unreachable(self, event: Plain) -> None:
        gone = ev.Unreachable(peer=peer_key(event["peer"]), reason=Reason.UNREACHABLE)
        self.session.handle(gone, self.now_ms)

    def _op(self, plain: Plain) -> OpId | None:
        return next((op for op, post in self.ops.items() if op_plain(post) == plain), None)

    # --- effects ---

    def _effects(self) -> list[Plain]:
        found: list[Plain] = []
        while batch := self.session.poll():
            for effect in batch:
                found += self._effect(effect)
        return found

    def _effect(self, effect: fx.Effect) -> list[Plain]:
        match effect:
            case fx.Send():
                plain = {"link": effect.link, "message": to_plain(effect.message)}
                return [{"effect": "send", **plain}]
            case fx.Dial():
                return [{"effect": "dial", "peer": peer_plain(effect.peer)}]
            case fx.DropLink():
                return [{"effect": "close", "link": effect.link}]
            case fx.Resolve():
                self.session.handle(self._resolved(effect), self.now_ms)
                return []
            case fx.Fence():
                return [{"effect": "fence", "peer": life_plain(effect.peer)}]
            case fx.Post():
                self.ops[effect.op] = effect
                return [{"effect": "queue", "op": op_plain(effect)}]
            case fx.StopOp():
                return [{"effect": "stop", "op": op_plain(self.ops[effect.op])}]
            case fx.TellDrained():
                return [{"effect": "drained"}]
            case fx.Trace():
                return []
            case _:
                return [told(effect)]

    def _resolved(self, ask: fx.Resolve) -> ev.Resolved:
        wants: list[Any] = []
        if ask.silent:
            links = self.session.ctx.links
            wants = [{"peer": peer_plain(links[k].peer.key)} for k in ask.links]
        else:
            wants = self.wants[ask.tag]
        edges = tuple(
            ev.EdgePlan(
                peer=peer_key(want["peer"]),
                parts=tuple(part_of(p) for p in want.get("parts", ())),
                tables=tuple(table_of(t) for t in want.get("tables", ())),
            )
            for want in wants
        )
        return ev.Resolved(transfer_id=ask.transfer_id, attempt=ask.attempt, edges=edges)


def op_plain(post: fx.Post) -> Plain:
    """Files name an operation by what it moves, and for whom."""
    return {
        "link": post.link,
        "transfer_id": post.grant.header.transfer_id,
        "attempt": post.grant.header.attempt,
        "part": part_plain(post.part),
    }


def told(
    effect: fx.TellLanded | fx.TellLost | fx.TellLetGo | fx.TellSent | fx.TellUnsent,
) -> Plain:
    """What an engine is told."""
    named = {"tag": effect.tag, "transfer_id": effect.transfer_id}
    match effect:
        case fx.TellLanded():
            return {"effect": "landed", **named, "attempt": effect.attempt}
        case fx.TellLost():
            reason = effect.reason.name
            return {"effect": "lost", **named, "attempt": effect.attempt, "reason": reason}
        case fx.TellLetGo():
            return {"effect": "let_go", **named, "attempt": effect.attempt}
        case fx.TellSent():
            return {"effect": "sent", **named}
        case fx.TellUnsent():
            return {"effect": "unsent", **named, "reason": effect.reason.name}
        case _:
            assert_never(effect)
