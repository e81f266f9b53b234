"""Push, at the producer: one consumer's attempt, written part by part.

Owns the moves of SEND. Posts by `operations.py`, as a consumer that reads does.
Invariants: nothing is posted but under a live attempt (A3) from a source that
is offered, looked at again at the moment of posting (B2); every part is told of
(C1).
"""

from __future__ import annotations

from typing import assert_never

import attrs

from kvxfer.core.events import OpEnded, OpNotPosted
from kvxfer.core.ids import Part, Reason
from kvxfer.core.messages import Cancelled, Failed
from kvxfer.core.operations import Operations
from kvxfer.core.sends import Send
from kvxfer.core.serving import ServingSide
from kvxfer.core.tables import SEND, SendAction, SendEvent, SendState
from kvxfer.core.timers import GrantTimer

_FAILURES = (SendEvent.REFUSE, SendEvent.STOP, SendEvent.CANCEL, SendEvent.LINK_LOST)


@attrs.define
class Senders(ServingSide):
    """All attempts that this side writes."""

    operations: Operations

    # --- what happens to an attempt ---

    def match(self, send: Send) -> None:
        self._fire(send, SendEvent.MATCH, Reason.NONE)

    def grow(self, send: Send) -> None:
        self._fire(send, SendEvent.GROW, Reason.NONE)

    def refuse(self, send: Send, reason: Reason) -> None:
        self._fire(send, SendEvent.REFUSE, reason)

    def stop(self, send: Send, reason: Reason) -> None:
        self._fire(send, SendEvent.STOP, reason)

    def cancel(self, send: Send, reason: Reason) -> None:
        self._fire(send, SendEvent.CANCEL, reason)

    def supersede(self, send: Send) -> None:
        """A newer attempt of the same consumer rank has come."""
        self._fire(send, SendEvent.CANCEL, Reason.STALE_ATTEMPT)

    def link_lost(self, send: Send, reason: Reason) -> None:
        self._fire(send, SendEvent.LINK_LOST, reason)

    def lease_over(self, send: Send) -> None:
        send.note_failure(Reason.GRANT_EXPIRED)
        self._fire(send, SendEvent.LEASE_EXPIRED, Reason.GRANT_EXPIRED)

    def reads(self, send: Send) -> bool:
        """True while an operation may read the source blocks."""
        return self.operations.any_claimed(send)

    # --- posting ---

    def may_post(self, owner: Send, part: Part) -> bool:
        source = self.host.source_of(owner.key.transfer_id)
        held = owner.state is SendState.SENDING and source is not None and source.open
        self.ctx.trace(owner.key, "posted" if held else "kept back", peer=owner.peer.key, part=part)
        return held

    def op_ended(self, owner: Send, part: Part, event: OpEnded) -> None:
        if event.done:
            owner.parts_done |= {part}
            self.ctx.trace(owner.key, "written", peer=owner.peer.key, part=part)
        else:
            peer, reason = owner.peer.key, event.reason
            self.ctx.trace(owner.key, "failed", peer=peer, part=part, reason=reason)
            header = self.ctx.header(owner.key, owner.peer)
            failed = Failed(header=header, part=part, reason=event.reason, quiet=event.quiet)
            self.ctx.send(owner.link.id, failed)
            owner.note_failure(event.reason)
            if not event.quiet:
                # Nobody can vouch for the bytes: the consumer must fence, so end the link.
                self.host.doubt(owner)
                self.ctx.request_fence(owner.peer, event.reason)
        self._after_op(owner)

    def op_not_posted(self, owner: Send, part: Part, event: OpNotPosted) -> None:
        self.tell_never_posted(owner, (part,), event.reason)
        owner.note_failure(event.reason)
        self._after_op(owner)

    def _after_op(self, send: Send) -> None:
        self._check_ended(send)
        self.host.check_idle(send.key.transfer_id)

    def _check_ended(self, send: Send) -> None:
        if send.ops:
            return
        if send.state is SendState.DRAINING:
            self._fire(send, SendEvent.DRAINED, send.reason)
        elif not send.waiting:
            self._fire(send, SendEvent.PARTS_ENDED, send.reason)

    # --- the machine ---

    def _fire(self, send: Send, event: SendEvent, reason: Reason) -> None:
        cell = SEND.fire(send.state, event)
        send.state = cell.target
        if event in _FAILURES:
            send.note_failure(reason)
        if cell.target is SendState.ENDED and cell.actions:
            self.host.forget(send)
        for action in cell.actions:
            match action:
                case SendAction.QUEUE_PARTS:
                    self._queue_parts(send)
                case SendAction.STOP_PARTS:
                    self._stop_parts(send)
                case SendAction.FENCE:
                    # Only operations in flight need it; parked or dropped ones touch nothing.
                    if send.ops:
                        self.ctx.request_fence(send.peer, send.reason)
                case SendAction.TELL_NEVER_POSTED:
                    self.tell_never_posted(send, send.grant.parts, send.reason)
                case SendAction.TELL_DRAINED:
                    self._tell_drained(send)
                case SendAction.SETTLE:
                    self.host.settle(send, let_down=send.cancelled and bool(send.grant.parts))
                case _:
                    assert_never(action)

    def _queue_parts(self, send: Send) -> None:
        source = self.host.source_of(send.key.transfer_id)
        assert source is not None
        for part in self.take_final(send, source):
            self.operations.queue(self, send, send.link, send.grant, part, tag=source.tag)
        self._check_ended(send)

    def _stop_parts(self, send: Send) -> None:
        send.waiting = ()
        self.operations.stop(send)
        if send.ops:
            # An operation that never ends must not hold the source for ever: fence it.
            deadline_ms = self.ctx.now_ms + self.ctx.timings.grant_lease_ms
            self.ctx.timers.set(GrantTimer(send.peer, send.key), deadline_ms)
        else:
            self._fire(send, SendEvent.DRAINED, send.reason)

    def _tell_drained(self, send: Send) -> None:
        if send.cancelled:
            header = self.ctx.header(send.key, send.peer)
            self.ctx.send(send.link.id, Cancelled(header=header))
        else:
            self.tell_gone(send)
