"""Planted where the consumer reads: its lease, its own operations, the loan at the producer.

Owns the faults. Invariant: each is one cell or one method.
"""

from __future__ import annotations

from typing import Any

import attrs

from kvxfer.core.edges import EdgeSide
from kvxfer.core.lenders import Lenders
from kvxfer.core.readers import Readers
from kvxfer.core.tables import (
    LOAN,
    READER,
    LoanAction,
    LoanEvent,
    LoanState,
    ReaderAction,
    ReaderEvent,
    ReaderState,
)
from kvxfer.testing.planted.fault import Fault, cell, method

_L, _LE, _LA = LoanState, LoanEvent, LoanAction
_R, _RE, _RA = ReaderState, ReaderEvent, ReaderAction


def _counts_late(original: Any) -> Any:
    def op_ended(self: Any, owner: Any, part: Any, event: Any) -> None:
        owner.lease_until_ms = self.ctx.now_ms + 1
        original(self, owner, part, event)

    return op_ended


def _from_the_answer(_original: Any) -> Any:
    def leased(self: Any, edge: Any, answer: Any) -> None:
        edge.unanswered = False
        edge.lease_until_ms = max(edge.lease_until_ms, self.ctx.now_ms + answer.lease_ms)

    return leased


def _without_margin(_original: Any) -> Any:
    def leased(_self: Any, edge: Any, answer: Any) -> None:
        if edge.unanswered and answer.serial == edge.serial:
            edge.unanswered = False
            edge.lease_until_ms = max(edge.lease_until_ms, edge.serial_sent_ms + answer.lease_ms)

    return leased


def _drained_at_once(_original: Any) -> Any:
    def check_drained(self: Any, reg: Any, edge: Any) -> None:
        self._fire(reg, edge, ReaderEvent.DRAINED, None)

    return check_drained


def _assumes_quiet(original: Any) -> Any:
    def op_ended(self: Any, owner: Any, part: Any, event: Any) -> None:
        original(self, owner, part, attrs.evolve(event, quiet=True))

    return op_ended


def _loans_do_not_pin(_original: Any) -> Any:
    def reads(_self: Any, _loan: Any) -> bool:
        return False

    return reads


READING = (
    Fault(
        name="READ counts after the lease",
        about="D counts what it has read after P may have used the blocks for something else",
        invariants=("C3",),
        configs=("pull",),
        plant=method(Readers, "op_ended", _counts_late),
    ),
    Fault(
        name="lease runs from the answer",
        about="D counts its lease from the moment at which the answer came in",
        invariants=("C3",),
        configs=("pull",),
        plant=method(EdgeSide, "leased", _from_the_answer),
    ),
    Fault(
        name="lease without a margin",
        about="D counts its lease to the end, as if its clock ran exactly as P's does",
        invariants=("C3",),
        configs=("pull-drift",),
        plant=method(EdgeSide, "leased", _without_margin),
    ),
    Fault(
        name="reader lets go on cancel",
        about="D lets blocks go that its own READs write",
        invariants=("A1", "A2", "L1"),
        configs=("pull",),
        plant=cell(READER, _R.READING, _RE.CANCEL, _R.QUIET, (_RA.SEND_RELEASE, _RA.LET_GO)),
    ),
    Fault(
        name="RELEASE while reading",
        about="D releases with its own READs posted",
        invariants=("A1", "A2"),
        configs=("pull",),
        plant=method(Readers, "_check_drained", _drained_at_once),
    ),
    Fault(
        name="unknown READ is quiet",
        about="D takes its own READ of unknown end for quiet",
        invariants=("A1", "A2"),
        configs=("pull",),
        plant=method(Readers, "op_ended", _assumes_quiet),
    ),
    Fault(
        name="withdrawal ends a loan",
        about="P frees what a consumer reads when its engine takes it back",
        invariants=("C3",),
        configs=("pull-cut",),
        plant=cell(LOAN, _L.LENT, _LE.STOP, _L.ENDED, (_LA.TELL_GONE, _LA.SETTLE)),
    ),
    Fault(
        name="link loss ends a loan",
        about="P frees what a consumer reads when the link is lost",
        invariants=("C3",),
        configs=("pull-cut",),
        plant=cell(LOAN, _L.LENT, _LE.LINK_LOST, _L.ENDED, (_LA.SETTLE,)),
    ),
    Fault(
        name="loans do not pin",
        about="P looks for its own operations only before it frees a source",
        invariants=("C3",),
        configs=("pull-cut",),
        plant=method(Lenders, "reads", _loans_do_not_pin),
    ),
)
