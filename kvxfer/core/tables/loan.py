"""Producer's machine in pull: one consumer's attempt that reads the source blocks.

Owns LOAN. Data only. Invariant: after an OFFER has left, LOAN ends only by the
consumer's RELEASE or when the lease is over by this side's clock; the consumer
counts nothing that it read later (spec section 6.13).
"""

from __future__ import annotations

from enum import Enum

from kvxfer.core.machine import row, table


class LoanState(Enum):
    PARKED = "parked"
    LENT = "lent"
    RECALLED = "recalled"
    ENDED = "ended"


class LoanEvent(Enum):
    MATCH = "offer fits the grant"
    GROW = "more is final"
    REFUSE = "offer does not fit"
    RELEASE = "RELEASE"
    STOP = "source closed"
    LEASE_EXPIRED = "not renewed"
    LINK_LOST = "link lost"


class LoanAction(Enum):
    SEND_OFFER = "send OFFER of every final part"
    TELL_NEVER_POSTED = "send NEVER_POSTED for every part"
    TELL_GONE = "send GONE"
    SETTLE = "tell the source how it ended"


_L, _LE, _LA = LoanState, LoanEvent, LoanAction

LOAN = table(
    "loan",
    LoanState,
    LoanEvent,
    _L.PARKED,
    {_L.ENDED},
    [
        row(
            _L.PARKED,
            {
                _LE.MATCH: (_L.LENT, (_LA.SEND_OFFER,)),
                _LE.REFUSE: (_L.ENDED, (_LA.TELL_NEVER_POSTED,)),
                _LE.RELEASE: (_L.ENDED, (_LA.SETTLE,)),
                _LE.STOP: (_L.ENDED, (_LA.TELL_GONE,)),
                _LE.LEASE_EXPIRED: (_L.ENDED, (_LA.TELL_GONE, _LA.SETTLE)),
                _LE.LINK_LOST: (_L.ENDED, (_LA.SETTLE,)),
            },
            {_LE.GROW},
        ),
        row(
            _L.LENT,
            {
                _LE.GROW: (_L.LENT, (_LA.SEND_OFFER,)),
                _LE.RELEASE: (_L.ENDED, (_LA.SETTLE,)),
                _LE.STOP: (_L.RECALLED, (_LA.TELL_GONE,)),
                _LE.LEASE_EXPIRED: (_L.ENDED, (_LA.TELL_GONE, _LA.SETTLE)),
                # It may be reading still: the lease ends that, nothing earlier does.
                _LE.LINK_LOST: (_L.RECALLED, ()),
            },
            {_LE.MATCH, _LE.REFUSE},
        ),
        row(
            _L.RECALLED,
            {
                _LE.RELEASE: (_L.ENDED, (_LA.SETTLE,)),
                _LE.LEASE_EXPIRED: (_L.ENDED, (_LA.SETTLE,)),
            },
            {_LE.MATCH, _LE.GROW, _LE.REFUSE, _LE.STOP, _LE.LINK_LOST},
        ),
        row(_L.ENDED, {}, LoanEvent),
    ],
)
