"""Pull, at the producer: one consumer's attempt, which the consumer reads.

Owns the moves of LOAN. Posts nothing. Invariant: once an OFFER has left, the
source stays pinned until the consumer's RELEASE or the end of the lease by this
side's clock, whatever else happens to the source or the link (B1, B2).
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.ids import Reason
from kvxfer.core.messages import Offer, Release
from kvxfer.core.sends import Loan
from kvxfer.core.serving import ServingSide
from kvxfer.core.tables import LOAN, LoanAction, LoanEvent, LoanState


@attrs.define
class Lenders(ServingSide):
    """All attempts that consumers read."""

    lent: int = 0
    """How many of them may be read from right now."""

    # --- what happens to an attempt ---

    def match(self, loan: Loan) -> None:
        self._fire(loan, LoanEvent.MATCH)

    def grow(self, loan: Loan) -> None:
        self._fire(loan, LoanEvent.GROW)

    def refuse(self, loan: Loan, reason: Reason) -> None:
        loan.note_failure(reason)
        self._fire(loan, LoanEvent.REFUSE)

    def stop(self, loan: Loan, reason: Reason) -> None:
        loan.note_failure(reason)
        self._fire(loan, LoanEvent.STOP)

    def supersede(self, loan: Loan) -> None:
        """A newer attempt of the same consumer rank has come."""
        self.stop(loan, Reason.STALE_ATTEMPT)

    def reads(self, loan: Loan) -> bool:
        """True while the consumer may read the source blocks and count on it."""
        return loan.reads

    def link_lost(self, loan: Loan, reason: Reason) -> None:
        loan.note_failure(reason)
        self._fire(loan, LoanEvent.LINK_LOST)

    def lease_over(self, loan: Loan) -> None:
        loan.note_failure(Reason.GRANT_EXPIRED)
        self._fire(loan, LoanEvent.LEASE_EXPIRED)

    def release(self, loan: Loan, release: Release) -> None:
        """The consumer is done: nothing of it reads the blocks any more."""
        # What was not offered cannot have been read.
        offered = loan.state is not LoanState.PARKED and not loan.waiting
        loan.served = release.landed and offered
        if not loan.served:
            loan.note_failure(release.reason)
        self._fire(loan, LoanEvent.RELEASE)

    # --- the machine ---

    def _fire(self, loan: Loan, event: LoanEvent) -> None:
        before = loan.reads
        cell = LOAN.fire(loan.state, event)
        loan.state = cell.target
        self.lent += loan.reads - before
        if cell.target is LoanState.ENDED and cell.actions:
            self.host.forget(loan)
        for action in cell.actions:
            match action:
                case LoanAction.SEND_OFFER:
                    self._send_offer(loan)
                case LoanAction.TELL_NEVER_POSTED:
                    self.tell_never_posted(loan, loan.grant.parts, loan.reason)
                case LoanAction.TELL_GONE:
                    self.tell_gone(loan)
                case LoanAction.SETTLE:
                    self.host.settle(loan, let_down=False)
                case _:
                    assert_never(action)
        if cell.target is LoanState.ENDED and cell.actions:
            self.host.check_idle(loan.key.transfer_id)

    def _send_offer(self, loan: Loan) -> None:
        source = self.host.source_of(loan.key.transfer_id)
        assert source is not None
        parts = self.take_final(loan, source)
        if parts:
            self.ctx.trace(loan.key, "lent", peer=loan.peer.key)
            header = self.ctx.header(loan.key, loan.peer)
            self.ctx.send(
                loan.link.id,
                Offer(
                    header=header,
                    parts=parts,
                    tables=source.tables,
                    token_count=source.token_count if source.sealed else 0,
                ),
            )
