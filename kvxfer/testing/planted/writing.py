"""Planted at the consumer that is written to: letting go, counting, telling.

Owns the faults. Invariant: each is one cell or one method.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core.consumer import Consumer
from kvxfer.core.ids import Attempt, Reason
from kvxfer.core.messages import Done, Gone
from kvxfer.core.registrations import Edge, Registration
from kvxfer.core.tables import (
    REQUEST,
    WRITER,
    PartEvent,
    PartState,
    RequestAction,
    RequestEvent,
    RequestState,
    WriterAction,
    WriterEvent,
    WriterState,
)
from kvxfer.core.timers import EdgeTimer, Timers
from kvxfer.core.writers import Writers
from kvxfer.testing.planted.fault import Fault, cell, method

_R, _RE, _RA = RequestState, RequestEvent, RequestAction
_W, _WE, _WA = WriterState, WriterEvent, WriterAction


def _without_names(original: Any) -> Any:
    def end_part(self: Any, reg: Any, edge: Any, part: Any, event: Any, reason: Any) -> None:
        if event is PartEvent.DONE and edge.parts.get(part) is PartState.DONE:
            others = [p for p, state in edge.parts.items() if state is PartState.EXPECTED]
            part = others[0] if others else part
        original(self, reg, edge, part, event, reason)

    return end_part


def _gone_is_done(original: Any) -> Any:
    def message(self: Any, reg: Any, edge: Any, message: Any) -> None:
        if isinstance(message, Gone):
            for part in list(edge.parts):
                self.host.end_part(reg, edge, part, PartEvent.DONE, Reason.NONE)
        else:
            original(self, reg, edge, message)

    return message


def _tells_silent(original: Any) -> Any:
    def tell_lost(self: Any, reg: Any, reason: Any, detail: str) -> None:
        original(self, reg, reason, detail)
        if reg.silent:
            self._emit_lost(reg.key, reg.tag, reason, detail)

    return tell_lost


def _forgets_attempts(_original: Any) -> Any:
    def next_attempt(self: Any, transfer_id: Any) -> Any:
        held = [reg.key.attempt for reg in self._of_transfer(transfer_id)]
        return Attempt(max(held, default=0) + 1)

    return next_attempt


def _newest_attempt(original: Any) -> Any:
    def message(self: Any, link: Any, message: Any) -> None:
        regs = self._of_transfer(message.header.transfer_id)
        if regs and isinstance(message, Done):
            header = attrs.evolve(message.header, attempt=regs[-1].key.attempt)
            message = attrs.evolve(message, header=header)
        original(self, link, message)

    return message


def _any_resolve(_original: Any) -> Any:
    def waiting(self: Any, key: Any) -> Any:
        regs = self._of_transfer(key.transfer_id)
        return next((r for r in regs if r.state is RequestState.WAITING and r.resolving), None)

    return waiting


def _edge_timers_stay(original: Any) -> Any:
    def clear(self: Any, key: Any) -> None:
        if not isinstance(key, EdgeTimer):
            original(self, key)

    return clear


WRITING = (
    Fault(
        name="free on a timer",
        about="D lets the blocks go when P has not answered a CANCEL in time",
        invariants=("A1", "A2"),
        configs=("cancel",),
        plant=cell(WRITER, _W.CANCELLING, _WE.SILENT, _W.QUIET, (_WA.LET_GO,)),
    ),
    Fault(
        name="free on cancel",
        about="D lets the blocks go when its engine cancels",
        invariants=("A1", "A2"),
        configs=("cancel",),
        plant=cell(WRITER, _W.GRANTED, _WE.CANCEL, _W.QUIET, (_WA.LET_GO,)),
    ),
    Fault(
        name="let go on link loss",
        about="D lets the blocks go when the link is lost, without a fence",
        invariants=("A1", "A2"),
        configs=("cut",),
        plant=cell(WRITER, _W.GRANTED, _WE.LINK_LOST, _W.QUIET, (_WA.FAIL_REQUEST, _WA.LET_GO)),
    ),
    Fault(
        name="failed fence is proof",
        about="D takes a fence that was not proven for one that was",
        invariants=("A1", "A2"),
        configs=("cut",),
        plant=cell(WRITER, _W.FENCING, _WE.NOT_FENCED, _W.QUIET, (_WA.LET_GO,)),
    ),
    Fault(
        name="quarantine never retried",
        about="D does not try the fence again",
        invariants=("L1", "L2", "C2"),
        configs=("cut",),
        plant=cell(WRITER, _W.FENCING, _WE.NOT_FENCED, _W.QUARANTINED),
    ),
    Fault(
        name="count without names",
        about="D counts a notice that comes twice as another part",
        invariants=("D1",),
        configs=("notices",),
        plant=method(Consumer, "end_part", _without_names),
    ),
    Fault(
        name="conclude at the first part",
        about="D takes a transfer for landed when one of its parts has landed",
        invariants=("D1",),
        configs=("one",),
        plant=method(
            Edge,
            "all_done",
            lambda _original: lambda self: not self.parts or PartState.DONE in self.parts.values(),
        ),
    ),
    Fault(
        name="conclude at the first error",
        about="D takes an edge for quiet when one of its parts has failed",
        invariants=("A1", "A2"),
        configs=("posts",),
        plant=method(
            Edge,
            "all_ended_quietly",
            lambda original: lambda self: original(self) or PartState.FAILED in self.parts.values(),
        ),
    ),
    Fault(
        name="unknown end is quiet",
        about="D takes a part whose end nobody knows for quiet",
        invariants=("A1", "A2"),
        configs=("posts",),
        plant=method(
            Edge,
            "all_ended_quietly",
            lambda _original: (
                lambda self: (
                    not any(
                        s in (PartState.EXPECTED, PartState.OFFERED) for s in self.parts.values()
                    )
                )
            ),
        ),
    ),
    Fault(
        name="GONE is done",
        about="D takes GONE for a success",
        invariants=("D1", "C3"),
        configs=("engines",),
        plant=method(Writers, "message", _gone_is_done),
    ),
    Fault(
        name="success after failure",
        about="D tells its engine 'landed' after it has told 'lost'",
        invariants=("C1",),
        configs=("cancel",),
        plant=cell(REQUEST, _R.LOST, _RE.ALL_DONE, _R.LANDED, (_RA.TELL_LANDED,)),
    ),
    Fault(
        name="told twice",
        about="D tells its engine of every failure of a request that is lost already",
        invariants=("C1", "N2"),
        configs=("posts",),
        plant=cell(REQUEST, _R.LOST, _RE.FAIL, _R.LOST, (_RA.TELL_LOST,)),
    ),
    Fault(
        name="failure never told",
        about="D cancels the edges of a failed request and says nothing",
        invariants=("C1", "C2"),
        configs=("posts",),
        plant=cell(REQUEST, _R.WAITING, _RE.FAIL, _R.LOST, (_RA.CANCEL_EDGES,)),
    ),
    Fault(
        name="no deadline",
        about="D waits for ever",
        invariants=("C2", "L1", "L2"),
        configs=("one",),
        plant=cell(REQUEST, _R.WAITING, _RE.DEADLINE, _R.WAITING),
    ),
    Fault(
        name="never let go",
        about="D keeps blocks although everybody has let go",
        invariants=("L1", "L2"),
        configs=("one",),
        plant=method(Consumer, "check_quiet", lambda _original: lambda _self, _reg: None),
    ),
    Fault(
        name="a declined transfer is told of",
        about="D names a transfer to its engine that nobody registered",
        invariants=("N2", "R1"),
        configs=("engines",),
        plant=method(Consumer, "_tell_lost", _tells_silent),
    ),
    Fault(
        name="attempt numbers start anew",
        about="D forgets the last attempt once it was let go: the tombstone is lost",
        invariants=("A3", "C1", "D1"),
        configs=("cancel",),
        plant=method(Consumer, "_next_attempt", _forgets_attempts),
    ),
    Fault(
        name="part of an old attempt counts",
        about="D counts a notice for whatever attempt is live",
        invariants=("A3", "D1"),
        configs=("cancel",),
        plant=method(Consumer, "message", _newest_attempt),
    ),
    Fault(
        name="answer to an older Resolve",
        about="D grants the blocks of an attempt that was cancelled under the next one's name",
        invariants=("A1", "A2", "A3"),
        configs=("resolve",),
        plant=method(Consumer, "_waiting", _any_resolve),
    ),
    Fault(
        name="the first rank lands for all",
        about="D takes a transfer for landed when one producer rank has written its parts",
        invariants=("D1",),
        configs=("producers",),
        plant=method(
            Registration,
            "all_done",
            lambda _original: (
                lambda self: self.resolved and any(edge.all_done() for edge in self.edges.values())
            ),
        ),
    ),
    Fault(
        name="the first rank lets go for all",
        about="D lets blocks go when one of two writers has let go",
        invariants=("A1", "A2", "L1"),
        configs=("producers",),
        plant=method(
            Registration,
            "all_quiet",
            lambda _original: lambda self: any(edge.quiet for edge in self.edges.values()),
        ),
    ),
    Fault(
        name="timers leak",
        about="D keeps the timer of an edge that has let go",
        invariants=("L1",),
        configs=("one",),
        plant=method(Timers, "clear", _edge_timers_stay),
    ),
)
