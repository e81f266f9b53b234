"""The attempts that a producer holds, under the three names by which they are asked for.

Owns the index: by peer and attempt, by transfer, by link. Knows no machine.
Invariant: an attempt is under all its names or under none, and asking by one
name costs nothing for the others.
"""

from __future__ import annotations

import attrs

from kvxfer.core.context import Link
from kvxfer.core.ids import AttemptKey, Initiator, LinkId, Peer, TransferId
from kvxfer.core.messages import Grant
from kvxfer.core.sends import AnyServed, Loan, Send


@attrs.define
class Attempts:
    """All attempts of consumers at one producer."""

    live: dict[tuple[Peer, AttemptKey], AnyServed] = attrs.field(factory=dict)
    parts_held: int = 0
    """Parts of all grants that are held."""
    _by_transfer: dict[TransferId, list[AnyServed]] = attrs.field(factory=dict)
    _by_link: dict[LinkId, dict[AttemptKey, AnyServed]] = attrs.field(factory=dict)

    def hold(self, link: Link, grant: Grant) -> AnyServed:
        kind = Loan if grant.initiator is Initiator.CONSUMER else Send
        served = kind(key=grant.header.key, link=link, grant=grant, waiting=grant.parts)
        self.live[link.peer, served.key] = served
        self._by_transfer.setdefault(served.key.transfer_id, []).append(served)
        self._by_link.setdefault(link.id, {})[served.key] = served
        self.parts_held += len(grant.parts)
        return served

    def forget(self, served: AnyServed) -> None:
        del self.live[served.peer, served.key]
        self.parts_held -= len(served.grant.parts)
        by_link = self._by_link[served.link.id]
        del by_link[served.key]
        if not by_link:
            del self._by_link[served.link.id]
        others = self._by_transfer[served.key.transfer_id]
        others.remove(served)
        if not others:
            del self._by_transfer[served.key.transfer_id]

    def of_transfer(self, transfer_id: TransferId) -> list[AnyServed]:
        return list(self._by_transfer.get(transfer_id, ()))

    def of_link(self, link: LinkId) -> list[AnyServed]:
        return list(self._by_link.get(link, {}).values())

    def transfers(self) -> list[TransferId]:
        return list(self._by_transfer)
