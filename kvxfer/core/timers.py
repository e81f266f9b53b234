"""Deadlines of the core.

Owns a heap of (deadline, key). Knows no clock: the time is an argument.
Invariant: expiry looks at the earliest deadline whatever the order of insertion
(J2), and a timer that was set again or cleared never fires with its old time.
"""

from __future__ import annotations

import heapq

import attrs

from kvxfer.core.ids import AttemptKey, LinkId, Peer, PeerKey, TransferId


@attrs.frozen
class HandshakeTimer:
    """A link must be up."""

    link: LinkId


@attrs.frozen
class DeadlineTimer:
    """Consumer: every part must have landed."""

    key: AttemptKey


@attrs.frozen
class EdgeTimer:
    """Consumer: renew, ask again, end an operation, or try the fence again."""

    key: AttemptKey
    peer: PeerKey


@attrs.frozen
class GrantTimer:
    """Producer: a grant must have been renewed, or its operations must have ended."""

    peer: Peer
    key: AttemptKey


@attrs.frozen
class OfferTimer:
    """Producer: every consumer must have come."""

    transfer_id: TransferId


TimerKey = HandshakeTimer | DeadlineTimer | EdgeTimer | GrantTimer | OfferTimer


SLACK = 64
"""Dead entries of the heap that are not worth a rebuild."""


@attrs.define
class Timers:
    """Named one-shot timers. Setting a name again replaces its deadline.

    Every call is O(log n) amortised; the heap holds at most twice the live timers.
    """

    _heap: list[tuple[int, int, TimerKey]] = attrs.field(factory=list)
    _live: dict[TimerKey, tuple[int, int, TimerKey]] = attrs.field(factory=dict)
    """The heap's entry that counts, the very one: a tuple more a timer would cost 56 bytes."""
    _serial: int = 0

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        self._serial += 1
        entry = self._live[key] = (deadline_ms, self._serial, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + SLACK:
            # Set again or cleared: as many entries are dead as alive, so this costs O(1) each.
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    def clear(self, key: TimerKey) -> None:
        self._live.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        """Earliest live deadline, or None."""
        while self._heap:
            entry = self._heap[0]
            if self._live.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(self._heap)
        return None

    def expired(self, now_ms: int) -> TimerKey | None:
        """Take one timer whose deadline has come, earliest first, or None."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._live[key]
        return key

    def __len__(self) -> int:
        return len(self._live)
