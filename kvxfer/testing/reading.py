"""The consumer's own READs in a `Duet`, and what they may find in the producer's memory.

Owns the READs queued and posted, and the knowledge of which source blocks went
to somebody else. Knows no rule of the protocol. Invariant: a READ that ended
well counts as good bytes only if its source was held from the first byte of it
to the last (B2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kvxfer.core import effects as fx
from kvxfer.core import events as ev
from kvxfer.core.ids import AttemptKey, Incarnation, OpId, Reason
from kvxfer.testing.between import Cable, Posted

if TYPE_CHECKING:
    from kvxfer.testing.duet import Duet


@attrs.define(eq=False)
class Read(Posted):
    """One claimed READ: what the consumer's transport still works on."""

    source: tuple[Incarnation, str] = (Incarnation(0), "")
    """The producer's life and its tag for the blocks."""
    tainted: bool = False
    """The blocks were somebody else's for a part of the time."""
    aborted: bool = False
    """A fence was tried: it ends, and not well."""


@attrs.define(eq=False)
class Reading:
    """All READs of the consumer's present life."""

    duet: Duet
    queued: dict[OpId, fx.Post] = attrs.field(factory=dict)
    posted: dict[OpId, Read] = attrs.field(factory=dict)
    lent: dict[tuple[Incarnation, AttemptKey], str] = attrs.field(factory=dict)
    """Which source blocks each OFFER was about."""
    reused: set[tuple[Incarnation, str]] = attrs.field(factory=set)

    def clear(self) -> None:
        """The consumer dies, and its operations with it."""
        self.queued.clear()
        self.posted.clear()

    # --- what the producer does to its memory ---

    def lend(self, life: Incarnation, key: AttemptKey, tag: str) -> None:
        self.lent[life, key] = tag

    def reuse(self, life: Incarnation, tag: str) -> None:
        """The producer's engine writes something else into these blocks from now on."""
        self.reused.add((life, tag))
        for read in self.posted.values():
            read.tainted |= read.source == (life, tag)

    def lose_life(self, life: Incarnation) -> None:
        """The producer dies: no READ of its memory ends well."""
        for read in self.posted.values():
            read.tainted |= read.source[0] == life

    # --- moves ---

    def post(self, op: OpId) -> bool:
        duet, post = self.duet, self.queued.pop(op)
        if not duet.consumer.claim(op, duet.now_ms):
            duet.say(f"D drops READ {op}")
            duet.settle()
            return False
        cable = duet.cables[post.link]
        key = post.grant.header.key
        source = (cable.producer_life, self.lent[cable.producer_life, key])
        read = Read(op, post, cable, source=source, tainted=source in self.reused)
        self.posted[op] = read
        duet.say(f"D posts READ {op} of {key.transfer_id}")
        if not cable.shut_by_consumer:
            duet.enter_danger(duet.consumer.me.incarnation, read)
        duet.settle()
        return True

    def refuse(self, op: OpId) -> None:
        """The transport takes nothing of it."""
        duet = self.duet
        self.queued.pop(op)
        if duet.consumer.claim(op, duet.now_ms):
            duet.say(f"READ {op} cannot be posted")
            duet.consumer.handle(ev.OpNotPosted(op=op, reason=Reason.TRANSPORT_FAILED), duet.now_ms)
        duet.settle()

    def may_end_well(self, read: Read) -> bool:
        alive = read.cable.producer_life == self.duet.producer.me.incarnation
        return alive and not read.aborted and not read.cable.shut_by_consumer

    def finish(self, op: OpId, *, done: bool, quiet: bool = True) -> None:
        """A posted READ ends at the consumer."""
        duet, read = self.duet, self.posted.pop(op)
        quiet = quiet or done
        if done and not read.tainted:
            duet.parts_landed.add((read.post.grant.header.key, read.post.part))
        if quiet:
            duet.danger.pop((duet.consumer.me.incarnation, op), None)
        duet.say(f"READ {op} ends, done={done} quiet={quiet} tainted={read.tainted}")
        reason = Reason.NONE if done else Reason.TRANSPORT_FAILED
        duet.consumer.handle(ev.OpEnded(op=op, done=done, quiet=quiet, reason=reason), duet.now_ms)
        duet.settle()

    def abort(self, life: Incarnation) -> None:
        """A fence was tried: operations over links that have ended come to their end."""
        for read in self.posted.values():
            cable: Cable = read.cable
            if cable.producer_life == life and not cable.open_at_consumer:
                read.aborted = True
