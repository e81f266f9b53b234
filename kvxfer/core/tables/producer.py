"""Producer's machines: the source blocks of one transfer, one consumer's attempt.

Owns SOURCE and SEND; LOAN, its counterpart in pull, is in `loan.py`. Data only.
Invariant: SOURCE reaches RELEASED only from a state in which no operation reads the blocks (B1).
"""

from __future__ import annotations

from enum import Enum

from kvxfer.core.machine import row, table

# --- producer: the source blocks of one transfer ---


class SourceState(Enum):
    EXPECTED = "expected"
    UNWANTED = "unwanted"
    STREAMING = "streaming"
    OFFERED = "offered"
    CLOSING = "closing"
    RELEASED = "released"


class SourceEvent(Enum):
    STREAM = "engine offers a first piece"
    GROW = "more is final"
    OFFER = "engine offers all, or seals"
    WITHDRAW = "engine withdraws"
    LEASE_EXPIRED = "offer lease over, nobody came"
    CONSUMER_ENDED = "a consumer cancelled, failed or was lost"
    CONSUMER_CAME = "a new attempt was granted"
    SERVED = "every consumer has its parts"
    IDLE = "no operation reads the blocks"


class SourceAction(Enum):
    MATCH = "match parked grants, queue what is final"
    STOP_SENDS = "stop every send"
    TELL_END = "tell engine: sent or unsent"
    FORGET = "forget, nothing was offered"
    CHECK_IDLE = "idle already?"


_S, _SE, _SA = SourceState, SourceEvent, SourceAction

SOURCE = table(
    "source",
    SourceState,
    SourceEvent,
    _S.EXPECTED,
    {_S.RELEASED},
    [
        row(
            _S.EXPECTED,
            {
                _SE.STREAM: (_S.STREAMING, (_SA.MATCH,)),
                _SE.OFFER: (_S.OFFERED, (_SA.MATCH,)),
                _SE.WITHDRAW: (_S.RELEASED, (_SA.STOP_SENDS, _SA.FORGET)),
                _SE.CONSUMER_ENDED: (_S.UNWANTED, ()),
            },
            {_SE.GROW, _SE.LEASE_EXPIRED, _SE.CONSUMER_CAME, _SE.SERVED, _SE.IDLE},
        ),
        row(
            # The consumer went away while the prefill ran: an offer ends at once.
            _S.UNWANTED,
            {
                _SE.STREAM: (_S.RELEASED, (_SA.TELL_END,)),
                _SE.OFFER: (_S.RELEASED, (_SA.TELL_END,)),
                _SE.WITHDRAW: (_S.RELEASED, (_SA.STOP_SENDS, _SA.FORGET)),
                _SE.CONSUMER_CAME: (_S.EXPECTED, ()),
            },
            {_SE.GROW, _SE.LEASE_EXPIRED, _SE.CONSUMER_ENDED, _SE.SERVED, _SE.IDLE},
        ),
        row(
            # Pinned from here on. The lease of the offer runs from the seal.
            _S.STREAMING,
            {
                _SE.GROW: (_S.STREAMING, (_SA.MATCH,)),
                _SE.OFFER: (_S.OFFERED, (_SA.MATCH,)),
                _SE.WITHDRAW: (_S.CLOSING, (_SA.STOP_SENDS, _SA.CHECK_IDLE)),
                _SE.CONSUMER_ENDED: (_S.CLOSING, (_SA.STOP_SENDS, _SA.CHECK_IDLE)),
                _SE.SERVED: (_S.CLOSING, (_SA.CHECK_IDLE,)),
            },
            {_SE.STREAM, _SE.LEASE_EXPIRED, _SE.CONSUMER_CAME, _SE.IDLE},
        ),
        row(
            _S.OFFERED,
            {
                _SE.WITHDRAW: (_S.CLOSING, (_SA.STOP_SENDS, _SA.CHECK_IDLE)),
                _SE.LEASE_EXPIRED: (_S.CLOSING, (_SA.STOP_SENDS, _SA.CHECK_IDLE)),
                _SE.CONSUMER_ENDED: (_S.CLOSING, (_SA.STOP_SENDS, _SA.CHECK_IDLE)),
                _SE.SERVED: (_S.CLOSING, (_SA.CHECK_IDLE,)),
            },
            {_SE.STREAM, _SE.GROW, _SE.OFFER, _SE.CONSUMER_CAME, _SE.IDLE},
        ),
        row(
            # New operations are refused; the pin stays until the last one ended (B1).
            _S.CLOSING,
            {_SE.IDLE: (_S.RELEASED, (_SA.TELL_END,))},
            {
                _SE.STREAM,
                _SE.GROW,
                _SE.OFFER,
                _SE.WITHDRAW,
                _SE.LEASE_EXPIRED,
                _SE.CONSUMER_ENDED,
                _SE.CONSUMER_CAME,
                _SE.SERVED,
            },
        ),
        row(_S.RELEASED, {}, SourceEvent),
    ],
)


# --- producer: one consumer's attempt ---


class SendState(Enum):
    PARKED = "parked"
    SENDING = "sending"
    DRAINING = "draining"
    ENDED = "ended"


class SendEvent(Enum):
    MATCH = "offer fits the grant"
    GROW = "more is final"
    REFUSE = "offer does not fit"
    CANCEL = "CANCEL"
    STOP = "source closed"
    LEASE_EXPIRED = "not renewed"
    LINK_LOST = "link lost"
    PARTS_ENDED = "every part ended"
    DRAINED = "no operation posted"


class SendAction(Enum):
    QUEUE_PARTS = "queue every final part for posting"
    STOP_PARTS = "drop what is not posted"
    FENCE = "fence the peer"
    TELL_NEVER_POSTED = "send NEVER_POSTED for every part"
    TELL_DRAINED = "send CANCELLED or GONE"
    SETTLE = "tell the source how it ended"


_N, _NE, _NA = SendState, SendEvent, SendAction

SEND = table(
    "send",
    SendState,
    SendEvent,
    _N.PARKED,
    {_N.ENDED},
    [
        row(
            _N.PARKED,
            {
                _NE.MATCH: (_N.SENDING, (_NA.QUEUE_PARTS,)),
                _NE.REFUSE: (_N.ENDED, (_NA.TELL_NEVER_POSTED,)),
                _NE.CANCEL: (_N.ENDED, (_NA.TELL_DRAINED, _NA.SETTLE)),
                _NE.STOP: (_N.ENDED, (_NA.TELL_DRAINED,)),
                _NE.LEASE_EXPIRED: (_N.ENDED, (_NA.TELL_DRAINED, _NA.SETTLE)),
                _NE.LINK_LOST: (_N.ENDED, (_NA.SETTLE,)),
            },
            {_NE.GROW, _NE.PARTS_ENDED, _NE.DRAINED},
        ),
        row(
            _N.SENDING,
            {
                _NE.GROW: (_N.SENDING, (_NA.QUEUE_PARTS,)),
                _NE.CANCEL: (_N.DRAINING, (_NA.STOP_PARTS,)),
                _NE.STOP: (_N.DRAINING, (_NA.STOP_PARTS,)),
                # A consumer that neither renews nor answers may never let an operation
                # end; the fence on this side ends them.
                _NE.LEASE_EXPIRED: (_N.DRAINING, (_NA.STOP_PARTS, _NA.FENCE)),
                _NE.LINK_LOST: (_N.DRAINING, (_NA.STOP_PARTS, _NA.FENCE)),
                _NE.PARTS_ENDED: (_N.ENDED, (_NA.SETTLE,)),
            },
            {_NE.MATCH, _NE.REFUSE, _NE.DRAINED},
        ),
        row(
            _N.DRAINING,
            {
                _NE.LEASE_EXPIRED: (_N.DRAINING, (_NA.FENCE,)),
                _NE.LINK_LOST: (_N.DRAINING, (_NA.FENCE,)),
                _NE.DRAINED: (_N.ENDED, (_NA.TELL_DRAINED, _NA.SETTLE)),
            },
            {_NE.MATCH, _NE.GROW, _NE.REFUSE, _NE.CANCEL, _NE.STOP, _NE.PARTS_ENDED},
        ),
        row(_N.ENDED, {}, SendEvent),
    ],
)
