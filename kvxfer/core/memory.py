"""What a producer remembers of attempts that are over.

Owns the tombstones that answer a late GRANT, RENEW or CANCEL, and the list of
attempts that this side never vouches for. Invariant: a late message creates
nothing (F2), and no answer says 'drained' of an attempt that is not proven so.
"""

from __future__ import annotations

import attrs

from kvxfer.core.context import Context
from kvxfer.core.ids import Attempt, AttemptKey, Peer, Reason, TransferId
from kvxfer.core.tombstones import Tombstones


@attrs.frozen
class Seen:
    """The newest attempt of one life of a consumer rank that this producer knows of."""

    attempt: Attempt
    served: bool = False


@attrs.define
class AttemptMemory:
    """Bounded in number and time, but for attempts that are unproven."""

    ctx: Context
    unproven: dict[Peer, set[AttemptKey]] = attrs.field(factory=dict)
    """Attempts with an operation that failed unproven. Each cost the peer its link, so
    there are few; they are kept for the life of the peer."""
    _seen: Tombstones[tuple[Peer, TransferId], Seen] = attrs.field(init=False)
    _ended: Tombstones[TransferId, Reason] = attrs.field(init=False)
    _unwanted: Tombstones[TransferId, Reason] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        count_max, life_ms = self.ctx.limits.tombstones_max, self.ctx.timings.tombstone_ms
        self._seen = Tombstones(count_max, life_ms)
        self._ended = Tombstones(count_max, life_ms)
        self._unwanted = Tombstones(count_max, self.ctx.timings.grant_lease_ms)

    def note_unwanted(self, transfer_id: TransferId, reason: Reason) -> None:
        """The consumer went away before this side's engine had said a word of the transfer.

        Kept for a lease at most: an engine may use the name again for something else.
        """
        self._unwanted.put(transfer_id, reason, self.ctx.now_ms)

    def take_unwanted(self, transfer_id: TransferId) -> Reason | None:
        """Why the transfer that begins now is not wanted any more; asked once."""
        reason = self._unwanted.get(transfer_id, self.ctx.now_ms)
        self._unwanted.drop(transfer_id)
        return reason

    def seen(self, peer: Peer, transfer_id: TransferId) -> Seen | None:
        """The newest attempt of this life of the peer; another life starts anew (I1)."""
        return self._seen.get((peer, transfer_id), self.ctx.now_ms)

    def note(self, peer: Peer, key: AttemptKey, *, served: bool = False) -> None:
        known = self.seen(peer, key.transfer_id)
        if known is not None and known.attempt > key.attempt:
            return
        self._seen.put((peer, key.transfer_id), Seen(key.attempt, served), self.ctx.now_ms)

    def ended(self, transfer_id: TransferId) -> Reason | None:
        """Why the latest source of this transfer ended, if there was one."""
        return self._ended.get(transfer_id, self.ctx.now_ms)

    def note_ended(self, transfer_id: TransferId, reason: Reason) -> None:
        self._ended.put(transfer_id, reason, self.ctx.now_ms)

    def begin(self, transfer_id: TransferId) -> None:
        """The engine starts the transfer anew."""
        self._ended.drop(transfer_id)

    def doubt(self, peer: Peer, key: AttemptKey) -> None:
        self.unproven.setdefault(peer, set()).add(key)

    def vouches(self, peer: Peer, key: AttemptKey) -> bool:
        return key not in self.unproven.get(peer, ())

    def new_life(self, peer: Peer) -> None:
        """Another life of the peer needs no memory of the older ones (I1)."""
        for older in [p for p in self.unproven if p.key == peer.key and p != peer]:
            del self.unproven[older]
