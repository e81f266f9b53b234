"""Planted where peers and links are told apart: lives, fences, renewals, drain.

Owns the faults. Invariant: each is one method.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core.consumer import Consumer
from kvxfer.core.context import Context
from kvxfer.core.ids import Attempt, Reason
from kvxfer.core.messages import Renew
from kvxfer.core.session import Session
from kvxfer.core.tables import WriterEvent
from kvxfer.core.writers import Writers
from kvxfer.testing.planted.fault import Fault, method


def _fence_for_all(original: Any) -> Any:
    def fence_result(self: Any, event: Any) -> None:
        peers = {
            edge.peer
            for reg in self.registrations.values()
            for edge in reg.edges.values()
            if edge.awaits_fence
        }
        for peer in sorted(peers, key=lambda peer: peer.key):
            original(self, attrs.evolve(event, peer=peer))

    return fence_result


def _fence_for_later_links(_original: Any) -> Any:
    def fence_result(self: Any, reg: Any, edge: Any, peer: Any, *, fenced: bool) -> None:
        if edge.peer == peer:
            fact = WriterEvent.FENCED if fenced else WriterEvent.NOT_FENCED
            self._fire(reg, edge, fact, Reason.PEER_LOST)

    return fence_result


def _fence_stays_asked(original: Any) -> Any:
    def fence_result(self: Any, event: Any) -> None:
        original(self, event)
        self.ctx.fences.add(event.peer)

    return fence_result


def _dial_stays_asked(original: Any) -> Any:
    def unreachable(self: Any, event: Any) -> None:
        original(self, event)
        self.ctx.dialling.add(event.peer)

    return unreachable


def _old_link_stays(_original: Any) -> Any:
    def link_up(self: Any, link: Any) -> None:
        self.ctx.add_link(link)
        (self.consumer if link.dialled else self.producer).link_up(link)

    return link_up


def _renews_another(original: Any) -> Any:
    def send(self: Any, link: Any, message: Any) -> None:
        if isinstance(message, Renew):
            header = attrs.evolve(message.header, attempt=Attempt(message.header.attempt + 1))
            message = attrs.evolve(message, header=header)
        original(self, link, message)

    return send


def _never_renews(original: Any) -> Any:
    def send(self: Any, link: Any, message: Any) -> None:
        if not isinstance(message, Renew):
            original(self, link, message)

    return send


def _takes_while_draining(original: Any) -> Any:
    def refusal(self: Any, event: Any) -> Any:
        reason = original(self, event)
        return Reason.NONE if reason is Reason.DRAINING else reason

    return refusal


def _never_drained(original: Any) -> Any:
    def drain(self: Any) -> None:
        original(self)
        self.ctx.drained = True

    return drain


LINKING = (
    Fault(
        name="forget the incarnation",
        about="a message for an earlier life is taken for one's own",
        invariants=("D1", "A3"),
        configs=("new-life",),
        plant=method(Session, "_current", lambda _original: lambda _s, _l, _m: True),
    ),
    Fault(
        name="fence of another peer accepted",
        about="D takes the fence of one producer rank for that of all",
        invariants=("A1", "A2"),
        configs=("fences",),
        plant=method(Consumer, "fence_result", _fence_for_all),
    ),
    Fault(
        name="fence of an earlier link accepted",
        about="D takes a fence for proof of what came over a link that is up",
        invariants=("A1", "A2"),
        configs=("relink",),
        plant=method(Writers, "fence_result", _fence_for_later_links),
        states_max=20_000,
    ),
    Fault(
        name="a fence is asked for once only",
        about="D never asks again for a fence of the same life",
        invariants=("L1", "L2", "C2"),
        configs=("cut",),
        plant=method(Consumer, "fence_result", _fence_stays_asked),
    ),
    Fault(
        name="a failed dial is never repeated",
        about="D takes a dial that has failed for one under way",
        invariants=("L1",),
        configs=("dial",),
        plant=method(Consumer, "unreachable", _dial_stays_asked),
    ),
    Fault(
        name="a second link beside the first",
        about="the old link to a peer is not ended when a new one comes up",
        invariants=("I1",),
        configs=("cut",),
        plant=method(Session, "_link_up", _old_link_stays),
    ),
    Fault(
        name="renew the wrong id",
        about="D renews an attempt that does not exist",
        invariants=("J3",),
        configs=("calm",),
        plant=method(Context, "send", _renews_another),
    ),
    Fault(
        name="never renew",
        about="D lets its lease lapse",
        invariants=("J3",),
        configs=("calm",),
        plant=method(Context, "send", _never_renews),
    ),
    Fault(
        name="drained at once",
        about="an engine is told that it has drained while transfers are open",
        invariants=("P1",),
        configs=("drain",),
        plant=method(Session, "live", lambda _original: lambda _self: 0),
    ),
    Fault(
        name="new work while draining",
        about="D takes registrations after it was told to drain",
        invariants=("P1",),
        configs=("drain",),
        plant=method(Consumer, "_refusal", _takes_while_draining),
    ),
    Fault(
        name="never drained",
        about="an engine that drains is never told that it may stop",
        invariants=("P1",),
        configs=("drain",),
        plant=method(Session, "_drain", _never_drained),
    ),
)
