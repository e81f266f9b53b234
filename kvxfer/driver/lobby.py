"""Connections that were accepted and have not finished their handshake, bounded.

Owns who has to leave when there are too many. Knows no socket. Invariant: never more
than `count_max`; whoever opens many from one address closes its own, not those of others.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

Leave = Callable[[], None]


@attrs.define
class Lobby:
    """Half-open connections by the address from which they came, oldest first."""

    count_max: int
    count: int = 0
    _by_address: dict[str, dict[int, Leave]] = attrs.field(factory=dict)

    def enter(self, address: str, guest: int, leave: Leave) -> None:
        """Take one in; at the bound, the oldest of the most crowded address is told to leave."""
        if self.count >= self.count_max:
            crowd = max(self._by_address, key=lambda one: len(self._by_address[one]))
            oldest = next(iter(self._by_address[crowd]))
            leave_now = self._by_address[crowd][oldest]
            self.exit(crowd, oldest)
            leave_now()
        self._by_address.setdefault(address, {})[guest] = leave
        self.count += 1

    def exit(self, address: str, guest: int) -> None:
        """The handshake is over, or the connection. Harmless where it was told to leave."""
        guests = self._by_address.get(address, {})
        if guests.pop(guest, None) is not None:
            self.count -= 1
            if not guests:
                del self._by_address[address]
