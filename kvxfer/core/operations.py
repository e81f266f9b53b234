"""Own one-sided operations: one per part, from queued to ended, for push and pull alike.

Owns the table of operations and the rule of the last look: an operation is
claimed at the moment of posting and only if its owner still may post (B2).
Knows neither role: a producer that writes and a consumer that reads are both
a `PostingSide`. Invariants: an operation that was claimed leaves the table only
by its end; one that was never claimed can be dropped at once.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

import attrs

from kvxfer.core.context import Context, Link
from kvxfer.core.effects import Post, StopOp
from kvxfer.core.events import OpEnded, OpNotPosted
from kvxfer.core.ids import OpId, Part
from kvxfer.core.messages import Grant, Offer


class OpPhase(Enum):
    QUEUED = "queued"
    CLAIMED = "claimed"


class Owner(Protocol):
    """What an operation belongs to: a producer's send or a consumer's edge."""

    ops: set[OpId]


class PostingSide(Protocol):
    """The role that posts. `owner` is always the one that was given to `queue`."""

    def may_post(self, owner: Any, part: Part) -> bool: ...

    def op_ended(self, owner: Any, part: Part, event: OpEnded) -> None: ...

    def op_not_posted(self, owner: Any, part: Part, event: OpNotPosted) -> None: ...


@attrs.define
class Op:
    """One part on its way. Exists until its end is known."""

    side: PostingSide
    owner: Owner
    part: Part
    phase: OpPhase = OpPhase.QUEUED


@attrs.define
class Operations:
    """All operations of one agent."""

    ctx: Context
    table: dict[OpId, Op] = attrs.field(factory=dict)
    _last: int = 0

    def queue(
        self,
        side: PostingSide,
        owner: Owner,
        link: Link,
        grant: Grant,
        part: Part,
        *,
        tag: str,
        offer: Offer | None = None,
    ) -> None:
        """Ask the driver to post one part; it comes back by `claim`, then by its end."""
        self._last += 1
        op_id = OpId(self._last)
        self.table[op_id] = Op(side, owner, part)
        owner.ops.add(op_id)
        self.ctx.emit(
            Post(
                op=op_id,
                link=link.id,
                peer=link.peer,
                grant=grant,
                part=part,
                tag=tag,
                offer=offer,
            )
        )

    def claim(self, op_id: OpId) -> bool:
        """The last check, at the moment of posting (B2). False: do not post, forget the op."""
        op = self.table.get(op_id)
        if op is None or op.phase is not OpPhase.QUEUED:
            return False
        if not op.side.may_post(op.owner, op.part):
            return False
        op.phase = OpPhase.CLAIMED
        return True

    def stop(self, owner: Owner) -> list[Part]:
        """Drop what is not claimed, tell the driver to stop the rest; gives the parts dropped."""
        dropped = []
        for op_id in sorted(owner.ops):
            op = self.table[op_id]
            if op.phase is OpPhase.CLAIMED:
                self.ctx.emit(StopOp(op=op_id))
            else:
                del self.table[op_id]
                owner.ops.discard(op_id)
                dropped.append(op.part)
        return dropped

    def any_claimed(self, owner: Owner) -> bool:
        """True while an operation of the owner may be in flight."""
        return any(self.table[op].phase is OpPhase.CLAIMED for op in owner.ops)

    def ended(self, event: OpEnded) -> None:
        op = self._take(event.op)
        if op is not None:
            op.side.op_ended(op.owner, op.part, event)

    def not_posted(self, event: OpNotPosted) -> None:
        op = self._take(event.op)
        if op is not None:
            op.side.op_not_posted(op.owner, op.part, event)

    def _take(self, op_id: OpId) -> Op | None:
        op = self.table.pop(op_id, None)
        if op is None:
            self.ctx.counters["late_operations"] += 1
            return None
        op.owner.ops.discard(op_id)
        return op
