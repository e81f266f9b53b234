"""What an agent still holds when it is to end, sleep or be scaled away.

Owns the naming of what is left, for people and programs. Ends nothing. Invariant: empty
exactly when the core says that nothing is live.
"""

from __future__ import annotations

from enum import Enum

import attrs

from kvxfer.core.ids import TransferId
from kvxfer.core.session import Session
from kvxfer.core.tables import RequestState


class Held(Enum):
    """Why something is not over."""

    WANTED = "wanted"
    """Consumer: a registration that waits for its KV."""
    QUARANTINED = "quarantined"
    """Consumer: its request has ended; a peer may still write into the blocks."""
    OFFERED = "offered"
    """Producer: a source that waits for its consumers, or is being read."""
    SERVED = "served"
    """Producer: a consumer's attempt that has not ended."""


@attrs.frozen(kw_only=True)
class Leftover:
    """One entry of the tables that are empty when nothing is live.

    `tag` is the engine's own name for the request, where it gave one. `peer` is the other
    side, as engine/rank, where the entry is about one.
    """

    held: Held
    transfer_id: TransferId
    tag: str = ""
    peer: str = ""

    def __str__(self) -> str:
        about = [f"for {self.tag}"] * bool(self.tag) + [f"with {self.peer}"] * bool(self.peer)
        return " ".join([self.held.value, self.transfer_id, *about])


@attrs.frozen(kw_only=True)
class Closed:
    """How an agent came to its end."""

    ended: bool
    """The writer thread is over, and with it all that the transport did for this agent. If
    False a call into the transport has not come back: the memory must stay where it is."""
    leftovers: tuple[Leftover, ...]
    """What was not over when the time was; what the thread could not say is not in it."""

    @property
    def clean(self) -> bool:
        """Nothing was cut off."""
        return self.ended and not self.leftovers


def leftovers_of(session: Session) -> tuple[Leftover, ...]:
    """Everything that is live, the oldest of each kind first."""
    wanted = [
        Leftover(
            held=Held.WANTED if reg.state is RequestState.WAITING else Held.QUARANTINED,
            transfer_id=reg.key.transfer_id,
            tag=reg.tag,
        )
        for reg in session.consumer.registrations.values()
    ]
    offered = [
        Leftover(held=Held.OFFERED, transfer_id=source.transfer_id, tag=source.tag)
        for source in session.producer.sources.values()
    ]
    served = [
        Leftover(
            held=Held.SERVED,
            transfer_id=attempt.transfer_id,
            peer=f"{peer.key.engine_id}/{peer.key.rank}",
        )
        for peer, attempt in session.producer.sends
    ]
    # An operation belongs to one of these and ends before it.
    return (*wanted, *offered, *served)
